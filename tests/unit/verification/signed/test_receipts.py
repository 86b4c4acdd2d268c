"""Receipts: one form, one signer, one place; and what a stranger may try with them."""

from __future__ import annotations

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from receipted_chain import CLIENT, EXPIRES_S, MODEL, NOW_S, SERVERS, Chain, forge, leaves_of, opening, sign

from swarm.core.errors import (
    BadProofError,
    BadSignatureError,
    ConfigError,
    ExpiredReceiptError,
    MisuseError,
    ProtocolViolation,
)
from swarm.core.keys import Identity
from swarm.core.limits import MAX_RECEIPT_BYTES
from swarm.verification.signed.leaves import RECEIVED
from swarm.verification.signed.merkle import leaf_hash, merkle_proof, merkle_root, verify_proof
from swarm.verification.signed.receipts import (
    NO_HASH,
    RECEIPT_DOMAIN,
    Opening,
    Receipt,
    SignedReceipt,
    check_rows,
    countersign,
    open_leaves,
    sign_receipt,
    verify_countersignature,
    verify_receipt,
)

VECTOR = Receipt(
    version=1,
    opening=Opening(
        signer=Identity(bytes(range(32))).peer_id,
        client=Identity(bytes(32)).peer_id,
        session=bytes(range(16)),
        nonce=bytes(range(16, 32)),
        stage=2,
        start=10,
        end=20,
        model=MODEL,
        calibration=bytes(range(32, 64)),
        numerics="bfloat16+int8",
        commitment=bytes(range(64, 96)),
    ),
    first=320,
    last=352,
    leaf_root=b"\1" * 32,
    in_root=b"\2" * 32,
    out_root=b"\3" * 32,
    previous=b"\4" * 32,
    counter=2**40 + 7,
    expires_s=1_800_000_000,
)


def test_frozen_vector() -> None:
    """Another value here means that nobody can check an old receipt: that takes a new version and domain tag."""
    signed = sign_receipt(Identity(bytes(range(32))), VECTOR)
    assert VECTOR.canonical().hex() == (
        "9a019bd934313244334b6f6f574134586f70314a6154334d487877594d6b436570597376346950566f704d5877437a35"
        "694859644266655342d934313244334b6f6f5744704a3741733742574177524d6675315655325743714e6a7671333837"
        "4a45594b44426a346b78366e58544ec410000102030405060708090a0b0c0d0e0fc410101112131415161718191a1b1c"
        "1d1e1f020a14ba64656d6f406d61696e2330313233343536373839616263646566c420202122232425262728292a2b2c"
        "2d2e2f303132333435363738393a3b3c3d3e3fad62666c6f617431362b696e7438c420404142434445464748494a4b4c"
        "4d4e4f505152535455565758595a5b5c5d5e5fcd0140cd0160c420010101010101010101010101010101010101010101"
        "0101010101010101010101c4200202020202020202020202020202020202020202020202020202020202020202c42003"
        "03030303030303030303030303030303030303030303030303030303030303c420040404040404040404040404040404"
        "0404040404040404040404040404040404cf0000010000000007ce6b49d200"
    )
    assert VECTOR.digest().hex() == "f8445f15038c55ab527a9fb79d66a6af32f61c307c3484591c1b7781cfc0896b"
    assert signed.signature.hex() == (
        "6faac2cdb47b2e6cdee6b506da972d1b24e6250b97294752f4ef5b79b6a35a07"
        "83ccbcf5f517d3a16c4cbac5a5a15f96b640ae93e237eb18f33d63b4b2c48804"
    )
    assert countersign(Identity(bytes(32)), VECTOR).hex() == (
        "8a06b8220f980a95fe1c041e2256534f3adf0ae23acf6f5db5c9f61d66c76033"
        "24e05936b500480dc08709ba0d92dffbdae80da93c845c663f4a0bd1968e3f04"
    )


receipts = st.builds(
    lambda window, rows, counter, roots, stage: replace(
        VECTOR,
        opening=replace(VECTOR.opening, stage=stage),
        first=32 * window,
        last=32 * window + rows,
        counter=counter,
        leaf_root=roots[:32],
        in_root=roots[32:64],
        out_root=roots[64:],
    ),
    st.integers(0, 2**17 - 1),
    st.integers(1, 32),
    st.integers(0, 2**63 - 1),
    st.binary(min_size=96, max_size=96),
    st.integers(0, 65535),
)


@given(receipts)
def test_round_trip(receipt: Receipt) -> None:
    data = receipt.canonical()
    assert Receipt.parse(data) == receipt
    assert len(data) <= MAX_RECEIPT_BYTES


@given(receipts, receipts)
def test_other_receipts_have_other_hashes(one: Receipt, other: Receipt) -> None:
    assert (one == other) == (one.digest() == other.digest())


def test_the_longest_receipt_fits() -> None:
    longest = replace(VECTOR.opening, model="m" * 400, numerics="n" * 64, signer="s" * 64, client="c" * 64)
    assert len(replace(VECTOR, opening=longest).canonical()) <= MAX_RECEIPT_BYTES


@given(receipts, st.integers(0, 8 * 64 - 1))
def test_attack_changed_signature(receipt: Receipt, bit: int) -> None:
    signed = sign_receipt(Identity(bytes(range(32))), receipt)
    assert verify_receipt(signed, now_s=NOW_S) is receipt
    changed = bytearray(signed.signature)
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BadSignatureError):
        verify_receipt(SignedReceipt(receipt, bytes(changed)), now_s=NOW_S)


@pytest.mark.parametrize("field", ["leaf_root", "in_root", "out_root", "previous"])
def test_attack_changed_contents(field: str) -> None:
    signed = sign_receipt(Identity(bytes(range(32))), VECTOR)
    with pytest.raises(BadSignatureError):
        verify_receipt(SignedReceipt(replace(VECTOR, **{field: bytes(32)}), signed.signature), now_s=NOW_S)


def test_attack_receipt_in_somebody_elses_name() -> None:
    """Signed with the thief's key, and names another server."""
    stolen = replace(VECTOR, opening=replace(VECTOR.opening, signer=SERVERS[1].peer_id))
    signature = SERVERS[0].sign(RECEIPT_DOMAIN, stolen.canonical())
    with pytest.raises(BadSignatureError):
        verify_receipt(SignedReceipt(stolen, signature), now_s=NOW_S)
    with pytest.raises(ConfigError):
        sign_receipt(SERVERS[0], stolen)


@pytest.mark.parametrize("domain", [b"swarm/record/1", b"swarm/countersignature/1"])
def test_attack_signature_made_for_something_else(domain: bytes) -> None:
    identity = Identity(bytes(range(32)))
    with pytest.raises(BadSignatureError):
        verify_receipt(SignedReceipt(VECTOR, identity.sign(domain, VECTOR.canonical())), now_s=NOW_S)


def test_attack_expired_receipt() -> None:
    signed = Chain(3).window()[0]
    assert verify_receipt(signed, now_s=EXPIRES_S - 1) is signed.receipt
    for now_s in (EXPIRES_S, EXPIRES_S + 1, math.inf, math.nan):
        with pytest.raises(ExpiredReceiptError):
            verify_receipt(signed, now_s=now_s)


def test_attack_rows_that_are_no_window() -> None:
    for first, last in ((1, 33), (0, 33), (32, 32), (32, 31), (0, 0)):
        with pytest.raises(ConfigError):
            replace(VECTOR, first=first, last=last)
        fields = msgspec.msgpack.decode(VECTOR.canonical())
        assert fields[2:4] == [320, 352]
        data = msgspec.msgpack.encode([*fields[:2], first, last, *fields[4:]])
        with pytest.raises(ProtocolViolation, match="not a window"):
            Receipt.parse(data)


def test_attack_receipt_in_another_encoding() -> None:
    """Else one receipt would have several hashes, and one signature several receipts."""
    data = VECTOR.canonical()
    assert data[:2] == b"\x9a\x01"
    for other in (
        b"\x9a\xcc\x01" + data[2:],  # a number in a longer form
        b"\x9b" + data[1:] + b"\xc0",  # a field more, which decoders skip
        data + b"\0",
        b"\x9a\x02" + data[2:],
        data[:-1],
        b"",
        b"\x91" * 5000,
        data + bytes(MAX_RECEIPT_BYTES),
    ):
        with pytest.raises(ProtocolViolation):
            Receipt.parse(other)


def test_what_nobody_would_accept_is_not_signed() -> None:
    identity = Identity(bytes(range(32)))
    for wrong in (replace(VECTOR, counter=-1), replace(VECTOR, in_root=b""), replace(VECTOR, version=2)):
        with pytest.raises(ConfigError):
            sign_receipt(identity, wrong)
    with pytest.raises(MisuseError):
        replace(VECTOR.opening, start=20)


def test_the_clients_word_on_a_receipt() -> None:
    receipt = Chain(3).window()[0].receipt
    signature = countersign(CLIENT, receipt)
    verify_countersignature(receipt, signature)
    with pytest.raises(ConfigError):
        countersign(SERVERS[0], receipt)
    for other, sealed in (
        (replace(receipt, last=receipt.last - 1), signature),
        (receipt, signature[:-1]),
        (receipt, SERVERS[0].sign(b"swarm/countersignature/1", receipt.digest())),
        (receipt, CLIENT.sign(RECEIPT_DOMAIN, receipt.digest())),
    ):
        with pytest.raises(BadSignatureError):
            verify_countersignature(other, sealed)


def test_leaves_open_their_receipt() -> None:
    chain = Chain(3)
    receipt = chain.window()[0].receipt
    found = chain.builders[0].signed_window(0)
    assert found is not None
    leaves = leaves_of(chain.openings[0], range(32))
    assert open_leaves(receipt, found[1]) == leaves
    check_rows(receipt.in_root, [leaf.received for leaf in leaves], receipt)
    check_rows(receipt.out_root, [leaf.sent for leaf in leaves], receipt)
    hashed = [leaf_hash(leaf) for leaf in found[1]]
    verify_proof(receipt.leaf_root, hashed[5], 5, receipt.rows, merkle_proof(hashed, 5))


def test_attack_other_leaves_than_were_signed() -> None:
    chain = Chain(3)
    receipt = chain.window()[0].receipt
    good = [leaf.canonical() for leaf in leaves_of(chain.openings[0], range(32))]
    other = leaves_of(chain.openings[0], range(32), version=1)[7].canonical()
    for wrong in (good[:-1], [*good, good[-1]], [*good[:7], other, *good[8:]], good[::-1], []):
        with pytest.raises(BadProofError, match="not the leaves"):
            open_leaves(receipt, wrong)


def test_attack_receipt_whose_roots_are_not_its_leaves() -> None:
    """The leaves open it, so this is the signer's own contradiction."""
    chain = Chain(3)
    signed = chain.window()[0]
    encoded = [leaf.canonical() for leaf in leaves_of(chain.openings[0], range(32))]
    for field, words in (("in_root", "received"), ("out_root", "sent")):
        with pytest.raises(BadProofError, match=f"contradiction.*{words}") as caught:
            open_leaves(forge(signed, **{field: bytes(32)}).receipt, encoded)
        assert caught.value.peer == signed.receipt.signer
    with pytest.raises(BadProofError, match="contradiction: leaves of other rows"):
        open_leaves(forge(signed, first=32, last=64).receipt, encoded)


def test_attack_rows_that_the_signer_never_had() -> None:
    chain = Chain(3)
    receipt = chain.window()[0].receipt
    rows = [leaf.received for leaf in leaves_of(chain.openings[0], range(32))]
    joined = [rows[0] + rows[1][:1], rows[1][1:], *rows[2:]]  # the same bytes, cut elsewhere
    for wrong in (rows[::-1], rows[:-1], [*rows, rows[-1]], joined, []):
        with pytest.raises(BadProofError):
            check_rows(receipt.in_root, wrong, receipt)


def test_roots_are_over_what_crossed_the_links() -> None:
    chain = Chain(3, 6)
    first, second = chain.window()
    assert first.receipt.out_root == second.receipt.in_root
    encoded = [leaf.canonical() for leaf in leaves_of(chain.openings[1], range(32))]
    assert second.receipt.in_root == merkle_root([leaf[RECEIVED] for leaf in encoded])
    assert first.receipt.previous == NO_HASH


def test_a_forged_opening_is_still_its_signers() -> None:
    """``forge`` itself: what it makes verifies, so the tests that use it fail for what they change and nothing else."""
    signed = forge(Chain(3).window()[0], nonce=bytes(16))
    verify_receipt(signed, now_s=NOW_S)
    assert signed == sign(signed.receipt)
    assert signed.receipt.opening != opening(0, 0, 3)
