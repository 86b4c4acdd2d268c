"""Hashes of rows as the client sends and gets them: those that servers at the other end compute from the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.client.evidence.known import NOT_SENT, KnownRows, hashes_of, tensor_digests
from swarm.core.errors import ProtocolViolation
from swarm.core.sampling import SamplingParams
from swarm.verification.signed.leaves import digest_rows, id_hashes, row_hash
from swarm.verification.signed.merkle import merkle_root
from swarm.wire.messages import Answer, Replay, Result, Step
from swarm.wire.payload import pack_ids
from swarm.wire.tensors import cut_tensor, encode_tensor

ONE, OTHER = SamplingParams(seed=1), SamplingParams(seed=2)


def step(keep: int, rows: int, want: int = 1, *, ids: bool = True, params: SamplingParams | None = None) -> Step:
    answer = Answer(keep + rows, params) if params is not None else None
    return Step(0, 0, 0, keep, rows, want, ids=ids, answer=answer)


def result(kv_length: int, *tokens: int, rows: int = 0) -> Result:
    return Result(0, 0, 0, kv_length, tokens, rows=rows)


@given(st.integers(1, 5), st.integers(1, 200), st.sampled_from(["float32", "bfloat16"]))
def test_int8_rows_are_scales_then_values(rows: int, hidden: int, dtype: str) -> None:
    """As whoever knows the hidden size cuts them."""
    width = 4 if dtype == "float32" else 2
    raw = np.random.default_rng(rows * hidden).integers(0, 60, rows * hidden * width, np.uint8).tobytes()
    tensor = encode_tensor(raw, "int8", dtype, hidden)
    apart = [digest_rows(1, *cut_tensor(tensor, "int8", dtype, hidden, row, row + 1))[0] for row in range(rows)]
    assert tensor_digests(tensor, rows, "int8") == apart


@given(st.lists(st.integers(0, 999), min_size=1, max_size=9), st.booleans(), st.booleans())
def test_ids_alone_rows_alone_or_both(ids: list[int], with_ids: bool, replayed: bool) -> None:
    tensor = bytes(range(8 * len(ids)))
    made = Replay(0, 0, len(ids), with_ids) if replayed else step(0, len(ids), ids=with_ids)
    rows = [digest_rows(1, tensor[8 * place : 8 * place + 8])[0] for place in range(len(ids))]
    named = [row_hash(row, token if with_ids else None) for row, token in zip(rows, ids, strict=True)]
    parts = [pack_ids(ids), tensor] if with_ids else [tensor]
    assert hashes_of(made, parts, "raw") == hashes_of(made, [b"".join(parts)], "raw") == named
    assert hashes_of(step(0, len(ids)), [pack_ids(ids)], "raw") == id_hashes(ids)


def test_what_was_asked_and_answered() -> None:
    known = KnownRows("raw")
    known.send(step(0, 3, 2, params=ONE), [pack_ids([5, 6, 7])])
    assert known.entry_root(0, 3) == merkle_root(id_hashes([5, 6, 7]))
    assert known.exit_root(0, 1) == merkle_root([NOT_SENT])
    assert known.exit_root(0, 3) is None, "the answers have not come"
    known.hear(result(3, 8, 9), b"")
    assert known.exit_root(0, 3) == merkle_root(id_hashes([None, 8, 9]))
    assert known.answers == ((1, 8), (2, 9))
    assert known.params == ((3, ONE),)
    known.send(step(3, 1), [pack_ids([8])])
    known.send(step(4, 1, params=OTHER), [pack_ids([9])])
    assert known.params == ((3, ONE), (5, OTHER))
    known.truncate(4)
    assert known.params == ((3, ONE),)
    known.truncate(2)
    assert (known.params, known.answers) == ((), ((1, 8),))
    assert known.entry_root(0, 3) is None
    assert (known.most, known.work) == (5, 5)


def test_an_answer_nobody_asked_for_changes_nothing() -> None:
    known = KnownRows("raw")
    known.send(step(0, 3), [pack_ids([5, 6, 7])])
    for told in (result(3, 1, 2), result(4, 1), result(1, 1, 1), result(3)):
        known.hear(told, b"")
    assert known.answers == ()
    known.hear(result(3, 1), b"")
    known.hear(result(3, 2), b"")
    assert known.answers == ((2, 1),)


def test_rows_that_come_back() -> None:
    known = KnownRows("raw")
    known.send(step(0, 2, 2, ids=False), [bytes(16)])
    with pytest.raises(ProtocolViolation):
        known.hear(result(2, rows=2), bytes(15))
    known.hear(result(2, rows=2), bytes(range(16)))
    assert known.exit_root(0, 2) == merkle_root([row_hash(row) for row in digest_rows(2, bytes(range(16)))])
    assert known.answers == ()


def test_rows_that_were_fed_again() -> None:
    known = KnownRows("raw")
    known.send(step(0, 3, 3), [pack_ids([5, 6, 7])])
    known.hear(result(3, 1, 2, 3), b"")
    known.refeed(id_hashes([50, 60, 70]), 1)
    assert known.entry_root(0, 3) == merkle_root(id_hashes([5, 60, 70]))
    known.unanswer(2)
    assert known.exit_root(0, 3) == merkle_root(id_hashes([1, 2, None]))
    assert known.answers == ((0, 1), (1, 2))
