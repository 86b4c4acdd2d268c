"""Admission by KV tokens, and what a slot holds."""

from __future__ import annotations

import threading

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import BusyError, RefusedError
from swarm.engine.kv import KVPool, layer_buffers


def _pool(total: int = 100, context: int = 64) -> KVPool:
    return KVPool(total_tokens=total, context_tokens=context, layer_count=2)


def test_busy_names_what_is_free_and_when_to_retry() -> None:
    pool = _pool()
    pool.open(60)
    with pytest.raises(BusyError, match="50 KV tokens wanted, 40 of 100 free") as caught:
        pool.open(50)
    assert caught.value.retry_after_s == 1.0
    assert pool.free_tokens == 40
    assert pool.open(40).capacity == 40


@pytest.mark.parametrize(("tokens", "reason"), [(65, "context is 64"), (0, "0 tokens"), (-1, "-1 tokens")])
def test_what_can_never_fit_is_refused(tokens, reason) -> None:
    with pytest.raises(RefusedError, match=reason):
        _pool().open(tokens)


def test_more_than_the_whole_budget_is_refused_not_busy() -> None:
    with pytest.raises(RefusedError, match="whole budget is 32"):
        _pool(total=32).open(33)


def test_close_gives_back_once() -> None:
    pool = _pool()
    slot = pool.open(30)
    pool.close(slot)
    pool.close(slot)
    assert pool.free_tokens == 100
    assert slot.closed


def test_memory_is_taken_at_the_first_write_and_freed_at_close() -> None:
    pool = _pool()
    slot = pool.open(30)
    assert slot.layers() == [None, None]
    key, value = torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 4)
    keys, values = layer_buffers(slot.layers(), 1, slot.capacity, (key, value))
    assert keys.shape == (2, 30, 8)
    assert values.shape == (2, 30, 4)
    assert layer_buffers(slot.layers(), 1, slot.capacity, (key, value))[0] is keys
    pool.close(slot)
    assert slot.layers() == [None, None]


@given(st.lists(st.integers(1, 40), max_size=40))
def test_the_budget_is_never_exceeded_nor_leaked(wanted: list[int]) -> None:
    pool, held = _pool(), []
    for index, tokens in enumerate(wanted):
        try:
            held.append(pool.open(tokens))
        except BusyError:
            assert tokens > pool.free_tokens
        if index % 3 == 2 and held:
            pool.close(held.pop(0))
        assert pool.free_tokens == 100 - sum(slot.capacity for slot in held) >= 0
    for slot in held:
        pool.close(slot)
    assert pool.free_tokens == 100


def test_open_and_close_from_many_threads() -> None:
    pool = KVPool(total_tokens=10_000, context_tokens=64, layer_count=1)

    def churn() -> None:
        for _ in range(200):
            pool.close(pool.open(7))

    threads = [threading.Thread(target=churn) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert pool.free_tokens == 10_000
