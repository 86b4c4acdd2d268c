"""A chain breaks at awkward moments: while a prompt is read, between answers, during a rollback, during a heal."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import SPANS, Node, Swarm, turns, until
from trouble import HOP_S, NEW_TOKENS, PROMPT, Moment, ask, chain_of, forget_rows, greedy

from swarm.client.conversation import PREFILL_CHUNK_ROWS
from swarm.core.errors import SwarmError

HEADS = pytest.mark.parametrize("head", ["local", "remote"])
LONG = [4 + (index * 37) % 250 for index in range(4 * PREFILL_CHUNK_ROWS + 9)]


@HEADS
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_while_several_chunks_of_a_prompt_are_in_flight(swarm: Swarm, place: int, head: str) -> None:
    for node in await swarm.serve(*SPANS, *SPANS):
        node.engine.takes_s = 0.05  # type: ignore[attr-defined]
    model = swarm.client(head)

    async def kill(chain: list[Node]) -> None:
        forget_rows(swarm.nodes)
        await swarm.crash(chain[place])

    moment = Moment("prefill", done=1)
    result = await ask(swarm, model, kill, moment=moment, input_ids=LONG, prompt=None, max_new_tokens=6)
    assert list(result.token_ids) == swarm.reference.greedy(LONG, 6, eos_token_id=None)
    assert len(result.heals) == 1
    done = [progress.done for progress in moment.seen if progress.phase == "prefill"]
    assert done == sorted(done)
    assert done[-1] == len(LONG)
    nodes = {node.peer: node for node in swarm.nodes}
    newcomer = nodes[result.heals[0].replaced_by[0].peer]
    assert sum(newcomer.rows) == len(LONG) + 5, "what was replayed and what was sent again, nothing twice"


@HEADS
@pytest.mark.parametrize("count", range(0, 60, 20))
async def test_before_a_single_row_is_held(swarm: Swarm, head: str, count: int) -> None:
    """At any turn of the loop around opening and first step: an answer, whoever it was that died."""
    nodes = await swarm.serve(*SPANS, *SPANS)
    task = asyncio.create_task(swarm.client(head).generate("x", max_new_tokens=4, ignore_eos=True))
    await turns(count)
    await swarm.crash(nodes[count % 3])
    assert list((await task).token_ids) == greedy(swarm, "x", 4)


@HEADS
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_between_two_answers_of_a_session(swarm: Swarm, place: int, head: str) -> None:
    """The next call replaces the lost span alone: the others keep the first answer's KV."""
    await swarm.serve(*SPANS, *SPANS)
    session = swarm.client(head).session()
    options: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True}
    first = await session.generate("Tell me ", **options)
    chain = chain_of(swarm, session)
    forget_rows(swarm.nodes)
    await swarm.crash(chain[place])
    await asyncio.sleep(5.0)
    second = await session.generate("and more", **options)
    ids = [*swarm.reference.tokenizer.encode("Tell me "), *first.token_ids]
    ids += swarm.reference.tokenizer.encode("and more")
    assert list(second.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    assert [(s.start, s.end) for heal in second.heals for s in heal.lost] == [tuple(map(int, SPANS[place].split(":")))]
    for other, node in enumerate(chain):
        if other != place:
            assert sum(node.rows) == 1 + len("and more") + 5, "nothing of the first answer was computed again"
    third = await session.generate("!", **options)
    assert third.heals == ()
    await session.close()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_after_a_truncation_that_no_server_has_heard_of(swarm: Swarm, place: int) -> None:
    """The rollback and the heal come to the servers at once."""
    await swarm.serve(*SPANS, *SPANS)
    session = swarm.client().session()
    options: dict[str, Any] = {"max_new_tokens": 6, "ignore_eos": True}
    await session.generate("A conversation so far", **options)
    session.truncate(9)
    await swarm.crash(chain_of(swarm, session)[place])
    await asyncio.sleep(1.0)
    result = await session.generate("other", **options)
    assert list(result.token_ids) == greedy(swarm, "A convers" + "other", 6)
    assert result.heals[0].replayed_rows == 9
    await session.close()


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_during_the_first_step_after_a_rollback(swarm: Swarm, place: int) -> None:
    await swarm.serve(*SPANS, *SPANS)
    session = swarm.client().session(max_tokens=600)
    await session.generate("A conversation so far", max_new_tokens=6, ignore_eos=True)
    session.truncate(9)

    async def kill(chain: list[Node]) -> None:
        await swarm.crash(chain[place])

    ids = [*swarm.reference.tokenizer.encode("A convers"), *LONG[:300]]
    moment = Moment("prefill", done=1)
    result = await ask(swarm, session, kill, moment=moment, input_ids=LONG[:300], prompt=None, max_new_tokens=6)
    assert list(result.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    assert result.heals
    await session.close()


@pytest.mark.parametrize(("place", "head"), [(0, "local"), (0, "remote"), (1, "remote"), (2, "remote")])
async def test_a_newcomer_that_dies_while_it_is_fed(swarm: Swarm, place: int, head: str) -> None:
    await swarm.serve(*SPANS * 3)
    model = swarm.client(head)
    old: list[Node] = []

    def feeding() -> list[Node]:
        return [node for node in swarm.nodes if node not in old and node.server.table and node.rows]

    async def kill_both(chain: list[Node]) -> None:
        old.extend(chain)
        forget_rows(swarm.nodes)
        await swarm.crash(chain[place])
        await until(feeding)
        old.extend(feeding())
        await swarm.crash(old[-1])

    result = await ask(swarm, model, kill_both, input_ids=LONG[:200], prompt=None)
    assert list(result.token_ids) == swarm.reference.greedy(LONG[:200], NEW_TOKENS, eos_token_id=None)
    assert old[-1].peer not in {stage.peer for stage in result.chain}
    assert len(result.heals) == 1


@HEADS
async def test_a_survivor_that_dies_during_the_heal(swarm: Swarm, head: str) -> None:
    """The one that replays its log goes as well: now two places are lost."""
    await swarm.serve(*SPANS * 2)
    model = swarm.client(head)

    async def kill_two(chain: list[Node]) -> None:
        await swarm.crash(chain[1])
        await asyncio.sleep(0.1 + 3 * HOP_S)
        await swarm.crash(chain[0])

    result = await ask(swarm, model, kill_two, input_ids=LONG[:200], prompt=None)
    assert list(result.token_ids) == swarm.reference.greedy(LONG[:200], NEW_TOKENS, eos_token_id=None)
    assert sum(len(heal.lost) for heal in result.heals) == 2


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_frozen_server_that_wakes_after_its_replacement_is_not_heard(swarm: Swarm, place: int) -> None:
    await swarm.serve(*SPANS * 2)
    moment = Moment()

    async def freeze(chain: list[Node]) -> None:
        swarm.network.freeze(chain[place].peer)
        began_s = swarm.clock.monotonic_s()
        await moment.healed()
        assert swarm.clock.monotonic_s() - began_s < 3.5
        swarm.network.thaw(chain[place].peer)

    result = await ask(swarm, swarm.client(), freeze, moment=moment, max_new_tokens=60)
    assert list(result.token_ids) == greedy(swarm, new_tokens=60)
    assert len(result.heals) == 1
    await asyncio.sleep(5.0)
    await swarm.check_free()


@pytest.mark.parametrize("link", [0, 1])
async def test_a_link_cut_between_two_living_servers(swarm: Swarm, link: int) -> None:
    """Either end may be replaced; the later one is, if somebody stands by for it."""
    await swarm.serve(*SPANS * 2)

    async def cut(chain: list[Node]) -> None:
        swarm.network.cut(chain[link].peer, chain[link + 1].peer)

    result = await ask(swarm, swarm.client(), cut)
    assert list(result.token_ids) == greedy(swarm)
    [heal] = result.heals
    assert [f"{stage.start}:{stage.end}" for stage in heal.lost] == [SPANS[link + 1]]


async def test_a_link_cut_where_only_the_earlier_end_has_a_standby(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, SPANS[0])

    async def cut(chain: list[Node]) -> None:
        swarm.network.cut(chain[0].peer, chain[1].peer)

    result = await ask(swarm, swarm.client(), cut)
    assert list(result.token_ids) == greedy(swarm)
    assert [f"{stage.start}:{stage.end}" for stage in result.heals[0].lost] == [SPANS[0]]


async def test_a_link_that_was_cut_for_a_moment_and_nobody_stands_by(swarm: Swarm) -> None:
    """The two reach each other anew; no row is computed again."""
    nodes = await swarm.serve(*SPANS)

    async def cut(chain: list[Node]) -> None:
        forget_rows(swarm.nodes)
        swarm.network.cut(chain[0].peer, chain[1].peer)
        await asyncio.sleep(2.5)
        swarm.network.mend(chain[0].peer, chain[1].peer)

    result = await ask(swarm, swarm.client(), cut)
    assert list(result.token_ids) == greedy(swarm)
    assert [heal.lost for heal in result.heals] == [()]
    assert all(max(node.rows) == 1 for node in nodes)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_client_cut_off_from_one_server(swarm: Swarm, place: int) -> None:
    await swarm.serve(*SPANS * 2)
    model = swarm.client()

    async def cut(chain: list[Node]) -> None:
        swarm.network.cut(model.parts.transport.peer_id, chain[place].peer)

    result = await ask(swarm, model, cut)
    assert list(result.token_ids) == greedy(swarm)
    assert [f"{stage.start}:{stage.end}" for stage in result.heals[0].lost] == [SPANS[place]]


@pytest.mark.parametrize("after", range(0, 50, 11))
async def test_cancelled_at_any_moment_of_a_heal_nothing_stays(swarm: Swarm, after: int) -> None:
    nodes = await swarm.serve(*SPANS * 2)
    model = swarm.client()
    swarm.delay(HOP_S)
    stream = await model.stream(PROMPT, max_new_tokens=300, ignore_eos=True)
    for _ in range(4):
        await stream.next_piece()
    victim = next(node for node in nodes if len(node.server.table) and node.engine.info.span.start == 1)
    await swarm.crash(victim)
    await asyncio.sleep(0.1)  # now the client believes it
    await turns(after)
    await stream.aclose()
    await swarm.check_free(besides=[victim])


@pytest.mark.parametrize("after", range(0, 40, 19))
async def test_a_session_closed_during_a_heal_raises_and_holds_nothing(swarm: Swarm, after: int) -> None:
    nodes = await swarm.serve(*SPANS * 2)
    session = swarm.client().session()
    swarm.delay(HOP_S)
    task = asyncio.create_task(session.generate("x", max_new_tokens=300, ignore_eos=True))
    await until(lambda: any(node.rows for node in nodes if node.engine.info.span.end == 5))
    victim = next(node for node in nodes if len(node.server.table) and node.engine.info.span.start == 1)
    await swarm.crash(victim)
    await asyncio.sleep(0.1)
    await turns(after)
    await session.close()
    with pytest.raises(SwarmError):
        await task
    await swarm.check_free(besides=[victim])
