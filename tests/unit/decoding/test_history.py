"""A history's incremental counts equal those counted afresh, through any growth and rollback."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import MisuseError
from swarm.core.limits import MAX_VOCABULARY
from swarm.decoding.history import History

moves = st.lists(st.one_of(st.lists(st.integers(0, 9), max_size=12), st.floats(0, 1)), max_size=12)


def counts_of(history: History) -> dict[int, int]:
    return dict(zip(history.distinct_ids.tolist(), history.answer_counts.tolist(), strict=True))


@given(moves=moves, answer_start=st.integers(0, 8))
def test_counts_equal_a_recount_after_growth_and_rollback(moves: list[object], answer_start: int) -> None:
    history, tokens = History(answer_start=answer_start), list[int]()
    for move in moves:
        if isinstance(move, list):
            history.extend(move)
            tokens += move
        else:
            keep = round(float(move) * len(tokens))  # type: ignore[arg-type]
            history.truncate(keep)
            del tokens[keep:]
        answer = Counter(tokens[answer_start:])
        assert history.token_ids == tuple(tokens)
        assert len(history) == len(tokens)
        assert counts_of(history) == {token: answer[token] for token in set(tokens)}


def test_more_distinct_ids_than_first_slots() -> None:
    history = History(range(1000), answer_start=500)
    assert sorted(history.distinct_ids.tolist()) == list(range(1000))
    assert counts_of(history) == {token: int(token >= 500) for token in range(1000)}


@pytest.mark.parametrize("bad", [-1, MAX_VOCABULARY])
def test_what_is_no_token_id_is_refused(bad: int) -> None:
    with pytest.raises(MisuseError, match="no token id"):
        History([1, bad], answer_start=0)


def test_bad_lengths_are_refused() -> None:
    history = History([1, 2], answer_start=1)
    for length in (-1, 3):
        with pytest.raises(MisuseError, match="cannot keep"):
            history.truncate(length)
    with pytest.raises(MisuseError):
        History(answer_start=-1)
