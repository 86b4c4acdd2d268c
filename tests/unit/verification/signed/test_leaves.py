"""Leaves have one form, rows one hash on both ends of a link."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BadProofError, MisuseError
from swarm.core.limits import MAX_CONTEXT_TOKENS, MAX_VOCABULARY
from swarm.verification.signed.leaves import (
    LEAF_BYTES,
    NO_ROW,
    RECEIVED,
    SENT,
    SKETCH_BYTES,
    TAIL_LEAF_BYTES,
    Answers,
    Leaf,
    digest_rows,
    id_hashes,
    row_hash,
    row_hashes,
    step_leaves,
)

hashes = st.binary(min_size=32, max_size=32)
middle_leaves = st.builds(
    Leaf,
    st.integers(0, MAX_CONTEXT_TOKENS - 1),
    hashes,
    hashes,
    hashes,
    st.binary(min_size=SKETCH_BYTES, max_size=SKETCH_BYTES),
)
answered_leaves = st.builds(
    lambda leaf, final, token_id: replace(leaf, final=final, token_id=token_id),
    middle_leaves,
    hashes,
    st.integers(0, MAX_VOCABULARY - 1),
)
LEAF = Leaf(3, b"r" * 32, b"o" * 32, b"s" * 32)


@given(middle_leaves | answered_leaves)
def test_round_trip(leaf: Leaf) -> None:
    data = leaf.canonical()
    assert Leaf.parse(data) == leaf
    assert len(data) == (LEAF_BYTES if leaf.token_id is None else TAIL_LEAF_BYTES)
    assert (data[RECEIVED], data[SENT]) == (leaf.received, leaf.sent)


@given(st.binary(max_size=200) | st.binary(min_size=LEAF_BYTES, max_size=LEAF_BYTES))
def test_what_parses_has_one_form(data: bytes) -> None:
    try:
        leaf = Leaf.parse(data)
    except BadProofError:
        return
    assert leaf.canonical() == data


def test_frozen_vector() -> None:
    """Other bytes here mean that old receipts can no longer be opened: that takes a new version of receipts."""
    middle = Leaf(258, b"\1" * 32, b"\2" * 32, b"\3" * 32, bytes(range(16)))
    expected = "00" + "00000102" + "01" * 32 + "02" * 32 + "03" * 32 + "000102030405060708090a0b0c0d0e0f"
    assert middle.canonical().hex() == expected
    tail = replace(middle, final=b"\4" * 32, token_id=65539)
    assert tail.canonical().hex() == "01" + expected[2:] + "04" * 32 + "00010003"


@pytest.mark.parametrize(
    "wrong",
    [
        {"position": -1},
        {"position": MAX_CONTEXT_TOKENS},
        {"received": b""},
        {"output": bytes(33)},
        {"sent": bytes(31)},
        {"sketch": bytes(17)},
        {"final": bytes(32)},
        {"token_id": 3},
        {"final": bytes(31), "token_id": 3},
        {"final": bytes(32), "token_id": MAX_VOCABULARY},
        {"final": bytes(32), "token_id": -1},
    ],
)
def test_a_leaf_that_cannot_be_is_not_written(wrong: dict[str, object]) -> None:
    with pytest.raises(MisuseError):
        replace(LEAF, **wrong).canonical()  # type: ignore[arg-type]


def test_attack_leaf_of_an_impossible_form() -> None:
    good = LEAF.canonical()
    tail = replace(LEAF, final=bytes(32), token_id=1).canonical()
    impossible = [
        good[:-1],
        good + b"\0",
        b"\1" + good[1:],  # says it answered, and has no answer
        b"\0" + tail[1:],
        b"\2" + good[1:],
        good[:1] + b"\xff" * 4 + good[5:],
        tail[:-4] + b"\xff" * 4,
    ]
    for data in impossible:
        with pytest.raises(BadProofError):
            Leaf.parse(data)


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=3), st.data())
def test_digests_are_those_of_each_rows_own_bytes(rows: int, widths: list[int], data: st.DataObject) -> None:
    parts = [data.draw(st.binary(min_size=rows * width, max_size=rows * width)) for width in widths]
    expected = [
        sha256(b"".join(part[row * width : (row + 1) * width] for part, width in zip(parts, widths, strict=True)))
        for row in range(rows)
    ]
    assert digest_rows(rows, *[memoryview(part) for part in parts]) == [one.digest() for one in expected]


def test_bytes_that_are_no_whole_rows() -> None:
    for rows, part in ((2, b"abc"), (0, b"ab"), (3, b"a")):
        with pytest.raises(MisuseError):
            digest_rows(rows, part)
    assert digest_rows(2, b"") == [NO_ROW, NO_ROW]


def test_a_row_is_named_with_the_id_that_rode_along() -> None:
    digest = digest_rows(1, b"row")[0]
    assert len({row_hash(digest), row_hash(digest, 0), row_hash(digest, 1), row_hash(NO_ROW, 0)}) == 4
    assert row_hashes([digest, NO_ROW], [5, 6]) == [row_hash(digest, 5), row_hash(NO_ROW, 6)]
    assert row_hashes([digest]) == [row_hash(digest)]
    with pytest.raises(MisuseError):
        row_hashes([digest], [1, 2])


def test_what_was_not_sent_has_a_hash_of_its_own() -> None:
    assert id_hashes([7, None, 0]) == [row_hash(NO_ROW, 7), row_hash(NO_ROW), row_hash(NO_ROW, 0)]


def test_leaves_of_a_middle_stages_step() -> None:
    rows = [digest_rows(1, bytes([place]))[0] for place in range(9)]
    received, outputs, sent = rows[:3], rows[3:6], rows[6:]
    expected = [Leaf(10 + row, received[row], outputs[row], sent[row]) for row in range(3)]
    assert step_leaves(10, received, outputs, sent) == expected
    sketched = step_leaves(10, received, outputs, sent, sketches=bytes(range(48)))
    assert [leaf.sketch for leaf in sketched] == [bytes(range(row, row + 16)) for row in (0, 16, 32)]


def test_leaves_of_a_tails_step() -> None:
    """A prompt's last chunk: only its last two rows were to be answered."""
    rows = [digest_rows(1, bytes([place]))[0] for place in range(6)]
    leaves = step_leaves(10, rows[:3], rows[3:], None, answers=Answers(rows[:2], [4, 5]))
    assert [leaf.sent for leaf in leaves] == id_hashes([None, 4, 5])
    assert [(leaf.final, leaf.token_id) for leaf in leaves] == [(b"", None), (rows[0], 4), (rows[1], 5)]
    silent = step_leaves(10, rows[:3], rows[3:], None, answers=Answers([], []))
    assert [leaf.sent for leaf in silent] == id_hashes([None] * 3)
    for leaf in leaves + silent:
        assert Leaf.parse(leaf.canonical()) == leaf


def test_a_step_with_something_missing() -> None:
    rows = [bytes(32)] * 3
    with pytest.raises(MisuseError):
        step_leaves(0, rows, rows[:2], rows)
    with pytest.raises(MisuseError):
        step_leaves(0, rows, rows, rows[:2])
    with pytest.raises(MisuseError):
        step_leaves(0, rows, rows, rows, sketches=bytes(47))
    for answers in (Answers(rows * 2, [1] * 6), Answers(rows[:1], [4, 5]), Answers(rows, [])):
        with pytest.raises(MisuseError):
            step_leaves(0, rows, rows, None, answers=answers)
