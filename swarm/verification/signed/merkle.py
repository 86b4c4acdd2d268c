"""Merkle trees over SHA-256: a root that binds a list, and short proofs that one entry is in it.

Source: RFC 6962, section 2.1. A leaf is hashed under the prefix 0x00 and an inner node under 0x01, so neither can be
passed off as the other. The rule for odd levels: the last node of a level with an odd count moves up unchanged. It is
never paired with itself, as in trees where two different lists have one root (CVE-2012-2459), so among lists of one
count a root has one list, as long as SHA-256 has no collisions; and the count is signed beside every root.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256

from swarm.core.errors import BadProofError, ConfigError
from swarm.core.limits import MAX_TREE_LEAVES

HASH_BYTES = 32

_LEAF = b"\x00"
_NODE = b"\x01"


def leaf_hash(data: bytes) -> bytes:
    """The hash under which ``data`` stands in a tree."""
    return sha256(_LEAF + data).digest()


def merkle_root(leaf_hashes: Sequence[bytes]) -> bytes:
    """The root over ``leaf_hashes``, 32 bytes. n - 1 hashes, about 1 µs each.

    Each must be of 32 bytes, as ``leaf_hash`` makes them: entries of other lengths could run into each other.
    ``ConfigError`` for none or more than ``MAX_TREE_LEAVES``: an empty list has no root.
    """
    _check_count(len(leaf_hashes))
    level = list(leaf_hashes)
    while len(level) > 1:
        level = _next_level(level)
    return level[0]


def merkle_proof(leaf_hashes: Sequence[bytes], index: int) -> tuple[bytes, ...]:
    """The siblings that lead from entry ``index`` to the root, lowest first; at most ⌈log2 n⌉.

    ``ConfigError`` if there is no such entry, or ``merkle_root`` would refuse the list.
    """
    _check_count(len(leaf_hashes))
    if not 0 <= index < len(leaf_hashes):
        raise ConfigError(f"entry {index} of a tree with {len(leaf_hashes)}")
    level, siblings = list(leaf_hashes), []
    while len(level) > 1:
        if index ^ 1 < len(level):
            siblings.append(level[index ^ 1])
        level, index = _next_level(level), index // 2
    return tuple(siblings)


def verify_proof(root: bytes, leaf: bytes, index: int, count: int, proof: Sequence[bytes]) -> None:
    """Raise ``BadProofError`` unless ``leaf`` (a leaf hash) is entry ``index`` of the ``count`` below ``root``.

    ``count`` must come from where ``root`` comes from; the proof says nothing about it. Every length is checked
    before a hash is made.
    """
    if not (1 <= count <= MAX_TREE_LEAVES and 0 <= index < count):
        raise BadProofError(f"a proof for entry {index} of {count}")
    if len(proof) != _proof_length(index, count) or any(len(part) != HASH_BYTES for part in (root, leaf, *proof)):
        raise BadProofError("a proof of another shape than its tree")
    node, siblings = leaf, iter(proof)
    while count > 1:
        if index & 1:
            node = _node_hash(next(siblings), node)
        elif index + 1 < count:
            node = _node_hash(node, next(siblings))
        index, count = index // 2, (count + 1) // 2
    if node != root:
        raise BadProofError("a proof that leads to another root")


def _proof_length(index: int, count: int) -> int:
    length = 0
    while count > 1:
        length += index ^ 1 < count
        index, count = index // 2, (count + 1) // 2
    return length


def _next_level(level: list[bytes]) -> list[bytes]:
    pairs = zip(level[::2], level[1::2], strict=False)
    above = [sha256(_NODE + left + right).digest() for left, right in pairs]
    return above + level[-1:] if len(level) % 2 else above


def _node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(_NODE + left + right).digest()


def _check_count(count: int) -> None:
    if not 1 <= count <= MAX_TREE_LEAVES:
        raise ConfigError(f"a Merkle tree over {count} leaves, it takes 1 to {MAX_TREE_LEAVES}")
