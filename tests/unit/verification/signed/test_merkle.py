"""Trees bind their lists, proofs prove one entry, and the known ways to confuse them fail."""

from __future__ import annotations

from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BadProofError, ConfigError
from swarm.core.limits import MAX_TREE_LEAVES
from swarm.verification.signed.merkle import leaf_hash, merkle_proof, merkle_root, verify_proof

lists = st.lists(st.binary(max_size=8), min_size=1, max_size=40)


def rfc6962_root(entries: list[bytes]) -> bytes:
    """The recursive definition of RFC 6962: split at the largest power of two below n."""
    if len(entries) == 1:
        return sha256(b"\0" + entries[0]).digest()
    split = 1
    while split * 2 < len(entries):
        split *= 2
    return sha256(b"\1" + rfc6962_root(entries[:split]) + rfc6962_root(entries[split:])).digest()


def hashed(entries: list[bytes]) -> list[bytes]:
    return [leaf_hash(entry) for entry in entries]


@given(lists)
def test_root_is_that_of_rfc_6962(entries: list[bytes]) -> None:
    assert merkle_root(hashed(entries)) == rfc6962_root(entries)


@given(lists, st.data())
def test_every_entry_has_a_proof(entries: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(entries) - 1))
    leaves = hashed(entries)
    verify_proof(merkle_root(leaves), leaves[index], index, len(leaves), merkle_proof(leaves, index))


@given(lists, st.data())
def test_a_proof_holds_at_its_own_place_only(entries: list[bytes], data: st.DataObject) -> None:
    index, other = data.draw(st.integers(0, len(entries) - 1)), data.draw(st.integers(0, len(entries) + 1))
    leaves = hashed([bytes([place]) + entry for place, entry in enumerate(entries)])
    if index != other:
        with pytest.raises(BadProofError):
            verify_proof(merkle_root(leaves), leaves[index], other, len(leaves), merkle_proof(leaves, index))


@given(lists, lists)
def test_other_lists_have_other_roots(one: list[bytes], other: list[bytes]) -> None:
    if one != other:
        assert merkle_root(hashed(one)) != merkle_root(hashed(other))


@given(lists, st.data())
def test_a_changed_proof_fails(entries: list[bytes], data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(entries) - 1))
    leaves = hashed(entries)
    parts = [merkle_root(leaves), leaves[index], *merkle_proof(leaves, index)]
    place = data.draw(st.integers(0, len(parts) - 1))
    bit = data.draw(st.integers(0, 255))
    changed = bytearray(parts[place])
    changed[bit // 8] ^= 1 << bit % 8
    parts[place] = bytes(changed)
    with pytest.raises(BadProofError):
        verify_proof(parts[0], parts[1], index, len(leaves), parts[2:])


@pytest.mark.parametrize("count", range(1, 34))
def test_attack_repeated_last_leaves_give_another_root(count: int) -> None:
    """CVE-2012-2459: there, a list and the list with its tail repeated had the same root."""
    leaves = hashed([bytes([place]) for place in range(count)])
    for tail in range(1, count + 1):
        assert merkle_root(leaves + leaves[-tail:]) != merkle_root(leaves)


def test_attack_inner_node_passed_off_as_a_leaf() -> None:
    leaves = hashed([b"a", b"b", b"c", b"d"])
    left, right = merkle_root(leaves[:2]), merkle_root(leaves[2:])
    assert merkle_root([leaf_hash(left + right)]) != merkle_root(leaves)
    assert merkle_root(hashed([left, right])) != merkle_root(leaves)
    with pytest.raises(BadProofError):  # the count says how long the proof must be
        verify_proof(merkle_root(leaves), left, 0, 4, [right])


@pytest.mark.parametrize(
    ("index", "count", "proof"),
    [
        (-1, 2, [bytes(32)]),
        (2, 2, [bytes(32)]),
        (0, 0, []),
        (0, MAX_TREE_LEAVES + 1, [bytes(32)] * 13),
        (0, 2, []),
        (0, 2, [bytes(32)] * 2),
        (0, 2, [bytes(31)]),
        (0, 10**30, []),
    ],
)
def test_attack_proof_of_an_impossible_shape(index: int, count: int, proof: list[bytes]) -> None:
    with pytest.raises(BadProofError):
        verify_proof(bytes(32), bytes(32), index, count, proof)


def test_attack_root_or_leaf_of_another_length() -> None:
    for root, leaf in ((b"", bytes(32)), (bytes(32), b"")):
        with pytest.raises(BadProofError):
            verify_proof(root, leaf, 0, 1, [])


def test_misuse_is_named() -> None:
    for wrong in ([], [bytes(32)] * (MAX_TREE_LEAVES + 1)):
        with pytest.raises(ConfigError):
            merkle_root(wrong)
        with pytest.raises(ConfigError):
            merkle_proof(wrong, 0)
    with pytest.raises(ConfigError):
        merkle_proof([bytes(32)], 1)
