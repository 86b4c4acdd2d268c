"""Receipts as servers sign them in a live session: complete, linked, and only of what was accepted."""

from __future__ import annotations

import pytest
from fakes import FakeClient
from harness import SPANS, Swarm
from signed_chain import SignedChain

PROMPT = list(range(40, 140))


async def chain(swarm: Swarm, client: FakeClient, *spans: str, **opening: object) -> SignedChain:
    return await SignedChain(client, await swarm.serve(*(spans or SPANS)), **opening).open()


@pytest.mark.parametrize("codec", ["raw", "int8"])
async def test_every_window_is_covered(swarm: Swarm, client: FakeClient, codec: str) -> None:
    """From the prompt in chunks to the last decoded row, whose window is shorter."""
    signed = await chain(swarm, client, codec=codec)
    last = await signed.prompt(PROMPT, chunk=37)
    await signed.go_on(last, 45)
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 32, 32, 17]
    assert set(signed.settled.values()) == {145}
