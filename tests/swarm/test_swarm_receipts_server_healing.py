"""Receipts over heals: whoever is lost and however the rows come back, every window is answered for by all."""

from __future__ import annotations

import pytest
from fakes import FakeClient
from harness import SPANS, Swarm
from signed_chain import SignedChain

from swarm.server.config import ServerConfig
from swarm.verification.signed.receipts import WINDOW_ROWS

PROMPT = list(range(40, 140))


@pytest.mark.parametrize("logged", [True, False], ids=["logged", "fed"])
@pytest.mark.parametrize("lost", [[0], [1], [2], [0, 1], [0, 2], [0, 1, 2]], ids=str)
async def test_whoever_is_lost_every_window_is_covered(
    swarm: Swarm, client: FakeClient, lost: list[int], logged: bool
) -> None:
    """Fed from a log, or from the front, where survivors on the way compute again what they have signed."""
    config = ServerConfig() if logged else ServerConfig(replay_mb=0.0)
    nodes = await swarm.serve(*SPANS, config=config)
    newcomers = await swarm.serve(*(SPANS[index] for index in lost), config=config)
    signed = await SignedChain(client, nodes).open()
    await signed.go_on(await signed.prompt(PROMPT, chunk=30), 5)
    await signed.catch_up()
    early = {place.number: len(signed.receipts(place)) for place in signed.places}
    assert set(early.values()) == {3}
    survivors = [place for index, place in enumerate(signed.places) if index not in lost]
    for index in lost:
        await swarm.crash(nodes[index])
    await signed.heal_signed({index: [newcomer] for index, newcomer in zip(lost, newcomers, strict=True)})
    last = await signed.ask([9])
    await signed.go_on(last, 30)
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 32, 32, 8]
    assert [window.window for window in windows] == list(range(5))
    for place in survivors:
        assert [one.receipt.window for one in signed.receipts(place)] == list(range(5))
    for place in signed.places:
        if place not in survivors:
            assert [one.receipt.window for one in signed.receipts(place)] == [3, 4], "others signed what was before"


async def test_windows_that_not_all_have_signed_are_signed_again(swarm: Swarm, client: FakeClient) -> None:
    """The server that is lost had not signed: the survivors, who had, do so again, and the newcomer in full."""
    nodes = await swarm.serve(*SPANS)
    [newcomer] = await swarm.serve("1:3")
    signed = await SignedChain(client, nodes).open()
    await signed.go_on(await signed.prompt(PROMPT, chunk=30), 5)
    await signed.catch_up()
    lost = signed.places[1]
    for window in (1, 2):
        del signed.book._windows[window][lost.number]  # as if its receipts had been lost on the way
    counters = [one.receipt.counter for one in signed.receipts(signed.tail)]
    await swarm.crash(nodes[1])
    await signed.heal_signed({1: [newcomer]})
    await signed.ask([9])
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 32, 10]
    assert [one.receipt.window for one in signed.receipts(signed.places[1])] == [1, 2, 3]
    again = [one.receipt.counter for one in signed.receipts(signed.tail)]
    assert again[0] == counters[0]
    assert min(again[1:]) > max(counters)


async def test_a_heal_that_goes_back_and_another_one(swarm: Swarm, client: FakeClient) -> None:
    """Rows that were under way are void; then the newcomer is lost as well, in the middle of a window."""
    nodes = await swarm.serve(*SPANS)
    newcomers = await swarm.serve("1:3", "1:3", "0:1")
    signed = await SignedChain(client, nodes).open()
    await signed.go_on(await signed.prompt(PROMPT[:50], chunk=30), 10)
    await swarm.crash(nodes[1])
    await signed.catch_up()
    await signed.heal_signed({1: [newcomers[0]]}, keep=55)
    await signed.go_on(await signed.ask([8]), 20)
    await swarm.crash(newcomers[0])
    await signed.heal_signed({1: [newcomers[1]]}, keep=70)
    await swarm.crash(nodes[0])
    await signed.heal_signed({0: [newcomers[2]]})
    await signed.go_on(await signed.ask([8]), 30)
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 32, 5]


async def test_settling_right_after_a_heal(swarm: Swarm, client: FakeClient) -> None:
    """No step has come in the new generation: the last receipts are signed all the same."""
    nodes = await swarm.serve(*SPANS)
    [newcomer] = await swarm.serve("3:5")
    signed = await SignedChain(client, nodes).open()
    await signed.go_on(await signed.prompt(PROMPT[:70], chunk=30), 5)
    await signed.catch_up()
    await swarm.crash(nodes[2])
    await signed.heal_signed({2: [newcomer]})
    windows = await signed.settle()
    assert [window.rows for window in windows] == [32, 32, 11]


async def test_a_heal_while_rows_wait_to_be_hashed(swarm: Swarm, client: FakeClient) -> None:
    """Rows that the client keeps were computed and sent, but no leaf is made of them yet: they are not lost."""
    nodes = await swarm.serve(*SPANS)
    [newcomer] = await swarm.serve("1:3")
    signed = await SignedChain(client, nodes).open()
    desks = [node.server._serving.reception._desk for node in nodes]
    for desk in desks:
        assert desk is not None
        await desk.turn.acquire()  # nobody gets to write
    await signed.go_on(await signed.prompt(PROMPT[:90], chunk=45), 3)
    await swarm.crash(nodes[1])
    await signed.heal_signed({1: [newcomer]}, keep=91)
    for desk in desks:
        assert desk is not None
        desk.turn.release()
    await signed.go_on(await signed.ask([8]), 9)
    windows = await signed.settle()
    assert [window.rows for window in windows] == [WINDOW_ROWS] * 3 + [5]
