"""Clients that settle wrongly, counter-sign what is not theirs, or never read their receipts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest
from fakes import FakeClient, ended
from harness import MOMENT_S, SPANS, Swarm, turns, until
from signed_chain import SignedChain

from swarm.core.ids import SessionKey
from swarm.core.keys import Identity
from swarm.server.config import ServerConfig
from swarm.server.record import notary
from swarm.verification.signed.receipts import COUNTERSIGNATURE_DOMAIN, countersign, verify_countersignature
from swarm.wire.evidence import Countersign, Settle, Signed
from swarm.wire.messages import Failed, Open, Relink

PROMPT = list(range(40, 110))


async def settled(swarm: Swarm, client: FakeClient, **opening: object) -> SignedChain:
    """A session of one server, settled with three receipts."""
    signed = await SignedChain(client, await swarm.serve("0:5"), **opening).open()
    await signed.prompt(PROMPT, chunk=70)
    await signed.settle()
    assert len(signed.receipts(signed.tail)) == 3
    return signed


async def test_the_counter_signature_of_the_last_receipt_is_kept(swarm: Swarm, client: FakeClient) -> None:
    """It stands for those before it too, and lies with the session's rows."""
    signed = await settled(swarm, client)
    last = signed.receipts(signed.tail)[-1].receipt
    await signed.countersign(signed.tail)
    await signed.close()
    await swarm.quiet()
    opened = signed.tail.opened
    assert isinstance(opened, Open)
    key = SessionKey(client.peer, opened.session, opened.stage)
    closed = signed.tail.node.server._serving.reception.shelf.find(key)
    assert closed is not None
    assert closed.kept.notary is not None
    verify_countersignature(last, closed.kept.notary.countersignature)


async def other_receipt(signed: SignedChain) -> None:
    """The one before the last."""
    earlier = signed.receipts(signed.tail)[-2].receipt
    await signed.tail.control.send(Countersign(countersign(signed.client.identity, earlier)))  # type: ignore[union-attr]


async def other_key(signed: SignedChain) -> None:
    digest = signed.receipts(signed.tail)[-1].receipt.digest()
    await signed.tail.control.send(Countersign(Identity(bytes(32)).sign(COUNTERSIGNATURE_DOMAIN, digest)))  # type: ignore[union-attr]


async def twice(signed: SignedChain) -> None:
    await signed.countersign(signed.tail)
    await signed.countersign(signed.tail)


async def settle_again(signed: SignedChain) -> None:
    await signed.tail.control.send(Settle(70))  # type: ignore[union-attr]


async def heal_after(signed: SignedChain) -> None:
    await signed.tail.control.send(Relink(1, 70))  # type: ignore[union-attr]


@pytest.mark.parametrize("wrong", [other_receipt, other_key, twice, settle_again, heal_after])
async def test_what_no_honest_client_says_ends_the_session(
    swarm: Swarm, client: FakeClient, wrong: Callable[[SignedChain], Awaitable[None]]
) -> None:
    signed = await settled(swarm, client)
    await wrong(signed)
    last = await ended(signed.tail.control)
    assert isinstance(last, Failed)
    assert last.fault == "client"
    await swarm.answers()


async def test_nothing_is_counter_signed_before_it_is_settled(swarm: Swarm, client: FakeClient) -> None:
    signed = await SignedChain(client, await swarm.serve("0:5")).open()
    await signed.prompt(PROMPT, chunk=35)
    await signed.catch_up()
    await signed.countersign(signed.tail)
    last = await ended(signed.tail.control)
    assert isinstance(last, Failed)
    assert last.fault == "client"
    assert "nobody asked for" in last.reason


async def test_there_is_nothing_to_settle_where_nothing_is_signed(swarm: Swarm, client: FakeClient) -> None:
    [node] = await swarm.serve("0:5", config=ServerConfig(receipts=False))
    signed = SignedChain(client, [node])
    await super(SignedChain, signed).open()
    await settle_again(signed)
    last = await ended(signed.tail.control)
    assert isinstance(last, Failed)
    assert "no receipts" in last.reason


async def test_a_session_that_computed_nothing_settles_for_nothing(swarm: Swarm, client: FakeClient) -> None:
    """Nor is a client punished for rows that a heal has not brought back."""
    signed = await SignedChain(client, await swarm.serve("0:5")).open()
    await signed.ask_to_settle(signed.tail, 500)
    assert signed.settled == {signed.tail.number: 0}


async def test_steps_after_the_end_are_not_computed(swarm: Swarm, client: FakeClient) -> None:
    signed = await settled(swarm, client)
    for token in range(5):
        await signed.send([token], keep=70)
    await swarm.quiet()
    assert signed.tail.node.rows == [70]


async def test_who_reads_no_receipts_is_computed_no_more(
    swarm: Swarm, client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A middle server's control stream carries nothing else: its receipts must not pile up without end."""
    monkeypatch.setattr(notary, "MAX_BEHIND_ROWS", 64)
    nodes = await swarm.serve(*SPANS)
    swarm.small_buffers(400)
    signed = await SignedChain(client, nodes, kv_tokens=640).open()
    middle = signed.places[1]
    for first in range(0, 600, 30):
        await signed.send(list(range(30)), keep=first, horizon=600, want=0)
    await swarm.quiet()
    assert sum(nodes[0].rows) < 600
    computed = sum(middle.node.rows)
    assert computed < 400
    await until(lambda: not middle.node.server.batcher._running)
    await turns(50)
    assert sum(middle.node.rows) == computed, "it waits"
    while len(middle.receipts) < 17:
        await read(signed)
    assert sum(middle.node.rows) == 600
    assert [receipt.receipt[3] for receipt in middle.receipts] == list(range(17)), "in order, by window"


async def read(signed: SignedChain) -> None:
    """Take what every server has sent so far."""
    for place in signed.places:
        assert place.control is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(MOMENT_S):
                while True:
                    message = (await place.control.receive()).message
                    place.receipts += [message] if isinstance(message, Signed) else []
