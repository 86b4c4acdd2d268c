"""Keys, peer ids and signatures."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BadSignatureError, ConfigError
from swarm.core.keys import RECORD_DOMAIN, SEED_BYTES, SIGNATURE_BYTES, Identity, peer_id_of, public_key_of, verify

# Test vectors of libp2p's peer-ids specification; the peer id is what other implementations derive from them.
PRIVATE = bytes.fromhex(
    "080112407e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d"
    "1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e"
)
PUBLIC = bytes.fromhex("080112201ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
PEER = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"
RSA_PEER = "QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"

seeds = st.binary(min_size=SEED_BYTES, max_size=SEED_BYTES)


def test_libp2ps_own_vector() -> None:
    identity = Identity.from_protobuf(PRIVATE)
    assert identity.public_key == PUBLIC[4:]
    assert identity.peer_id == PEER
    assert identity.to_protobuf() == PRIVATE
    assert public_key_of(PEER) == PUBLIC[4:]


def test_the_signature_is_plain_ed25519_over_the_tagged_message() -> None:
    """RFC 8032 signatures are deterministic, so a receipt written today can be checked by anybody for ever."""
    from nacl.signing import SigningKey

    message = bytes([len(b"swarm/record/1")]) + b"swarm/record/1" + b"hello"
    expected = SigningKey(PRIVATE[4:36]).sign(message).signature
    assert Identity.from_protobuf(PRIVATE).sign(RECORD_DOMAIN, b"hello") == expected


@given(seeds)
def test_the_peer_id_contains_the_key(seed: bytes) -> None:
    identity = Identity(seed)
    assert public_key_of(identity.peer_id) == identity.public_key
    assert peer_id_of(identity.public_key) == identity.peer_id
    assert Identity.from_protobuf(identity.to_protobuf()).peer_id == identity.peer_id


@given(seeds, st.binary(max_size=200), st.data())
def test_a_signature_holds_for_its_message_only(seed: bytes, message: bytes, data: st.DataObject) -> None:
    identity = Identity(seed)
    signature = identity.sign(RECORD_DOMAIN, message)
    verify(identity.peer_id, RECORD_DOMAIN, message, signature)

    at = data.draw(st.integers(0, 8 * SIGNATURE_BYTES - 1))
    flipped = bytearray(signature)
    flipped[at // 8] ^= 1 << at % 8
    for bad in (
        (identity.peer_id, RECORD_DOMAIN, message + b"\0", signature),
        (identity.peer_id, b"swarm/strike/1", message, signature),
        (identity.peer_id, RECORD_DOMAIN, message, bytes(flipped)),
        (identity.peer_id, RECORD_DOMAIN, message, signature[:-1]),
        (identity.peer_id, RECORD_DOMAIN, message, b""),
        (PEER, RECORD_DOMAIN, message, signature),
    ):
        with pytest.raises(BadSignatureError):
            verify(*bad)


def test_a_byte_moved_from_domain_to_message_does_not_keep_the_signature() -> None:
    identity = Identity(b"s" * SEED_BYTES)
    signature = identity.sign(b"swarm/record/1", b"hello")
    with pytest.raises(BadSignatureError):
        verify(identity.peer_id, b"swarm/record/", b"1hello", signature)


@pytest.mark.parametrize(
    "peer",
    ["", "x", RSA_PEER, PEER[:-1], PEER + "1", "1" + PEER, PEER.replace("B", "0"), "пир", "1" * 10_000, "\ud800"],
)
def test_what_holds_no_ed25519_key_verifies_nothing(peer: str) -> None:
    with pytest.raises(BadSignatureError, match="not an Ed25519 peer id"):
        public_key_of(peer)


@pytest.mark.parametrize("blank", [" ", "\n", "\t ", "\x0b"])
def test_one_key_has_one_name(blank: str) -> None:
    """Base58 decoders strip blanks: a peer id with one more would be a second name for the same key."""
    identity = Identity.from_protobuf(PRIVATE)
    with pytest.raises(BadSignatureError):
        verify(PEER + blank, RECORD_DOMAIN, b"m", identity.sign(RECORD_DOMAIN, b"m"))


@given(st.text(max_size=70))
def test_no_random_text_is_a_peer_id(text: str) -> None:
    with pytest.raises(BadSignatureError) as caught:
        public_key_of(text)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("size", [0, 31, 33, 64])
def test_a_seed_of_another_length_is_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"not {size}"):
        Identity(b"\0" * size)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not an Ed25519"),
        (PRIVATE[:-1], "not an Ed25519"),
        (PRIVATE + b"\0", "not an Ed25519"),
        (b"\x08\x02" + PRIVATE[2:], "not an Ed25519"),
        (PRIVATE[:-1] + b"\0", "damaged"),
        (PRIVATE[:4] + b"\xff" + PRIVATE[5:], "damaged"),
    ],
)
def test_a_bad_key_file_is_refused_with_what_to_do(data: bytes, why: str) -> None:
    with pytest.raises(ConfigError, match=f"{why}.*delete the identity file"):
        Identity.from_protobuf(data)
