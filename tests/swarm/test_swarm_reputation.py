"""What a client makes of servers decides whom it takes: the ejected never, the accused last, broken links not again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from harness import SPANS, Node, Swarm
from proofs_at_hand import evidence_against, signed_accusation
from trouble import greedy

from swarm.client.evidence.records import ReceiptProblem, SessionRecord
from swarm.client.judging.bench import FIRST_LOOK_S
from swarm.client.judging.jury import LOOK_EVERY_S
from swarm.client.model import AsyncSwarmModel
from swarm.core.errors import NoRouteError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.dht.memory import MemoryDirectory
from swarm.engine.speed import SpanSpeed
from swarm.verification.standings.apart import pair_of
from swarm.verification.standings.strikes import Standing, equivocated

FAST, SLOW = SpanSpeed(tau_s=0.001), SpanSpeed(tau_s=0.02)
PROMPT = "what becomes of a cheat"


async def answer(model: AsyncSwarmModel, new_tokens: int = 4) -> list[str]:
    """Ask; the answer is the reference's. Who served."""
    result = await model.generate(PROMPT, max_new_tokens=new_tokens, ignore_eos=True)
    return [stage.peer for stage in result.chain]


def peers(nodes: list[Node]) -> list[PeerId]:
    return [node.peer for node in nodes]


async def test_the_ejected_are_never_taken_however_fast_they_are(swarm: Swarm) -> None:
    fast = await swarm.serve(*SPANS, speed=FAST)
    slow = await swarm.serve(*SPANS, speed=SLOW)
    model = swarm.client()
    assert await answer(model) == peers(fast)
    model.reputation.change(fast[1].peer, equivocated)
    assert fast[1].peer not in await answer(model)
    model.reputation.change(slow[1].peer, equivocated)
    with pytest.raises(NoRouteError, match="layers 1 to 2; 2 servers were left out, ejected") as caught:
        await answer(model)
    assert "reputation" in caught.value.hint


async def test_the_accused_are_taken_only_where_nobody_else_is(swarm: Swarm) -> None:
    fast = await swarm.serve(*SPANS, speed=FAST)
    [slow] = await swarm.serve(SPANS[1], speed=SLOW)
    model = swarm.client()
    until_s = swarm.clock.wall_s() + 100.0
    model.reputation.accuse(fast[1].peer, b"1" * 32, until_s)
    model.reputation.accuse(fast[0].peer, b"0" * 32, until_s)
    assert await answer(model) in (peers(fast), [fast[0].peer, slow.peer, fast[2].peer])
    model.reputation.judge(b"0" * 32, proven=False)
    assert await answer(model) == [fast[0].peer, slow.peer, fast[2].peer]
    await asyncio.sleep(101.0)
    assert await answer(model) == peers(fast)


async def test_two_whose_link_broke_are_not_put_side_by_side_again(swarm: Swarm) -> None:
    fast = await swarm.serve(*SPANS, speed=FAST)
    [slow] = await swarm.serve(SPANS[1], speed=SLOW)
    model = swarm.client()
    model.reputation.keep_apart(fast[0].peer, fast[1].peer)
    assert await answer(model) == [fast[0].peer, slow.peer, fast[2].peer]
    model.reputation.keep_apart(slow.peer, fast[2].peer)
    assert await answer(model) == [fast[0].peer, slow.peer, fast[1].peer, fast[2].peer]
    model.reputation.keep_apart(slow.peer, fast[1].peer)
    with pytest.raises(NoRouteError, match="keeps those apart whose common link broke; one is tried again in 60 s"):
        await answer(model)


async def test_a_session_leaves_whoever_is_ejected_and_its_answer_goes_on(swarm: Swarm) -> None:
    first = await swarm.serve(*SPANS, speed=FAST)
    second = await swarm.serve(*SPANS, speed=SLOW)
    model = swarm.client()
    session = model.session(max_tokens=200)
    one = await session.generate(PROMPT, max_new_tokens=8, ignore_eos=True)
    assert [stage.peer for stage in one.chain] == peers(first)
    model.reputation.change(first[1].peer, equivocated)
    model.reputation.change(second[1].peer, lambda standing: standing)
    more = await session.generate(" and then", max_new_tokens=8, ignore_eos=True)
    assert [stage.peer for stage in more.chain] == [first[0].peer, second[1].peer, first[2].peer]
    ids = [*model.encode(PROMPT, {}), *one.token_ids, *model.encode(" and then", {}, first=False)]
    assert list(more.token_ids) == swarm.reference.greedy(ids, 8, eos_token_id=None)
    await session.close()


async def test_an_answer_under_way_leaves_whoever_is_ejected_meanwhile(swarm: Swarm) -> None:
    first = await swarm.serve(*SPANS, speed=SLOW)
    second = await swarm.serve(*SPANS, speed=SpanSpeed(tau_s=0.03))
    model = swarm.client()
    asking = asyncio.create_task(model.generate(PROMPT, max_new_tokens=60, ignore_eos=True))
    await asyncio.sleep(1.5)
    model.reputation.change(first[1].peer, equivocated)
    result = await asking
    assert [stage.peer for heal in result.heals for stage in heal.lost] == [first[1].peer]
    assert result.chain[1].peer == second[1].peer
    assert list(result.token_ids) == greedy(swarm, PROMPT, 60)


async def test_nobody_takes_over_from_the_lost_who_was_ejected_since_he_stood_by(swarm: Swarm) -> None:
    first = await swarm.serve(*SPANS, speed=FAST)
    second = await swarm.serve(*SPANS, speed=SLOW)
    third = await swarm.serve(SPANS[1], speed=SpanSpeed(tau_s=0.1))
    model = swarm.client(heal_timeout_s=5.0)
    session = model.session(max_tokens=200)
    await session.generate(PROMPT, max_new_tokens=4, ignore_eos=True)
    model.reputation.change(second[1].peer, equivocated)
    await swarm.crash(first[1])
    result = await session.generate(" go on", max_new_tokens=4, ignore_eos=True)
    assert [stage.peer for stage in result.chain] == [first[0].peer, third[0].peer, first[2].peer]
    model.reputation.keep_apart(first[0].peer, second[1].peer)
    await session.close()


async def test_evidence_in_the_directory_keeps_the_first_session_of_a_new_client_from_a_cheat(swarm: Swarm) -> None:
    """It waits a moment for it, and no longer."""
    fast = await swarm.serve(*SPANS, speed=FAST)
    slow = await swarm.serve(*SPANS, speed=SLOW)
    await accuse(swarm, fast[1])
    model = swarm.client()
    assert (await answer(model))[1] == slow[1].peer
    assert model.reputation.ejected() == {fast[1].peer}
    swarm.store.delay_s = 1.0
    hurried = swarm.client()
    began_s = swarm.clock.monotonic_s()
    await hurried._bench.begin()
    assert swarm.clock.monotonic_s() - began_s == pytest.approx(FIRST_LOOK_S, abs=0.01)
    await asyncio.sleep(LOOK_EVERY_S)
    assert hurried.reputation.ejected() == {fast[1].peer}


async def test_a_client_that_idles_hears_of_a_cheat_and_tells_others(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    await swarm.serve(*SPANS)
    model = swarm.client()
    await answer(model)
    holder = await accuse(swarm, nodes[1])
    await asyncio.sleep(LOOK_EVERY_S + 1.0)
    assert model.reputation.ejected() == {nodes[1].peer}
    told = await MemoryDirectory(swarm.store).accusations(swarm.files.model_id, [nodes[1].peer])
    assert {record.peer for record in told} == {holder.peer_id, model.parts.transport.peer_id}
    assert nodes[1].peer not in await answer(model)


async def test_what_a_session_showed_has_consequences(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    model = swarm.client()
    await answer(model, new_tokens=40)
    await model.endings.wait(5.0)
    await swarm.quiet()
    store = model.reputation
    assert [store.ledger().account(node.peer).earned for node in nodes] == [0, 0, 0], "on probation nobody earns"
    for node in nodes:
        store.change(node.peer, lambda standing: Standing(audited=1000))
    model = swarm.client()
    for node in nodes:
        model.reputation.change(node.peer, lambda standing: Standing(audited=1000))
    records: list[SessionRecord] = []
    model.witness.on_settled.append(records.append)
    await answer(model, new_tokens=40)
    await model.endings.wait(5.0)
    await swarm.quiet()
    [record] = records
    ledger = model.reputation.ledger()
    spans = {node.peer: len(node.engine.info.span) for node in nodes}
    assert record.covered_rows > 40
    assert {peer: ledger.account(peer).earned for peer in spans} == {
        peer: layers * record.covered_rows for peer, layers in spans.items()
    }
    one, two, three = peers(nodes)
    me = model.parts.transport.peer_id
    shown = (
        ReceiptProblem("broken link", (one, two), "their rows differ"),
        ReceiptProblem("broken link", (me, one), "its rows differ"),
        ReceiptProblem("lie", (three,), "no honest server says so"),
        ReceiptProblem("missing", (two,), "it never came"),
        ReceiptProblem("equivocation", (two,), "two", evidence_against(nodes[1].identity, swarm.files.model_id)),
    )
    model._bench._settled(replaced(record, shown))
    await swarm.quiet()
    assert model.reputation.apart().pairs == {pair_of(one, two)}
    assert model.reputation.ejected() == {two}
    assert len(model.reputation.standing(three).strikes) == 1
    assert model.reputation.standing(one).strikes == ()
    account = model.reputation.ledger().account(three)
    assert (account.earned, account.withheld) == (0, spans[three] * record.covered_rows)


async def test_the_same_lie_in_two_sessions_ejects(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    model = swarm.client()
    records: list[SessionRecord] = []
    model.witness.on_settled.append(records.append)
    for _ in range(2):
        await answer(model)
    await model.endings.wait(5.0)
    lie = (ReceiptProblem("lie", (nodes[0].peer,), "no honest server says so"),)
    for record in (records[0], records[0], records[1]):
        assert model.reputation.ejected() == frozenset()
        model._bench._settled(replaced(record, lie))
        await swarm.quiet()
    assert model.reputation.ejected() == {nodes[0].peer}
    assert model.reputation.standing(nodes[0].peer).passing, "nobody else could check it, so it is not for good"
    model.reputation.forgive(nodes[0].peer)
    assert await answer(model) == peers(nodes)


def replaced(record: SessionRecord, problems: tuple[ReceiptProblem, ...]) -> SessionRecord:
    return replace(record, problems=problems)


async def accuse(swarm: Swarm, node: Node) -> Identity:
    """Somebody holds evidence against the server and says so."""
    holder = swarm.identity()
    now_s = swarm.clock.wall_s()
    await MemoryDirectory(swarm.store).publish(*signed_accusation(holder, node.identity, swarm.files.model_id, now_s))
    return holder
