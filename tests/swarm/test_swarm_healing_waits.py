"""Nobody is there to take over: the client waits for somebody, says so, and in the end says what was lost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from harness import SPANS, Node, Swarm
from trouble import HOP_S, PROMPT, Moment, ask, chain_of, greedy

from swarm.core.errors import GenerationInterruptedError, NoRouteError, PeerLostError, SwarmError
from swarm.core.ids import ModelId
from swarm.core.listing import Listing
from swarm.server.config import ServerConfig
from swarm.transport.memory import LinkShape

OPTIONS = {"max_new_tokens": 6, "ignore_eos": True}


@pytest.mark.parametrize(("place", "head"), [(0, "local"), (0, "remote"), (1, "remote"), (2, "local"), (2, "remote")])
async def test_somebody_appears_while_the_client_waits(swarm: Swarm, place: int, head: str) -> None:
    await swarm.serve(*SPANS)
    moment = Moment()

    async def kill_and_come(chain: list[Node]) -> None:
        await swarm.crash(chain[place])
        await asyncio.sleep(20.0)
        await swarm.serve(SPANS[place])

    result = await ask(swarm, swarm.client(head), kill_and_come, moment=moment)
    assert list(result.token_ids) == greedy(swarm)
    [heal] = result.heals
    assert 19.0 < heal.pause_s < 25.0
    assert "waiting up to 60 s" in moment.details()
    assert "layer" in moment.details()


async def test_the_same_server_comes_back(swarm: Swarm) -> None:
    """Cut off from everybody for some seconds; it has failed the session, but nobody else is there."""
    await swarm.serve(*SPANS)
    model = swarm.client()

    async def cut(chain: list[Node]) -> None:
        others = [chain[0].peer, chain[2].peer, model.parts.transport.peer_id]
        for other in others:
            swarm.network.cut(chain[1].peer, other)
        await asyncio.sleep(7.0)
        for other in others:
            swarm.network.mend(chain[1].peer, other)

    result = await ask(swarm, model, cut)
    assert list(result.token_ids) == greedy(swarm)
    assert [stage.peer for stage in result.heals[-1].lost] == [stage.peer for stage in result.heals[-1].replaced_by]


async def test_two_die_and_their_successors_come_one_by_one(swarm: Swarm) -> None:
    await swarm.serve(*SPANS)

    async def kill_and_come(chain: list[Node]) -> None:
        await swarm.crash(chain[0])
        await asyncio.sleep(5.0)
        await swarm.crash(chain[2])
        await asyncio.sleep(5.0)
        await swarm.serve(SPANS[2])
        await asyncio.sleep(5.0)
        await swarm.serve(SPANS[0])

    result = await ask(swarm, swarm.client(), kill_and_come)
    assert list(result.token_ids) == greedy(swarm)


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_nobody_comes(swarm: Swarm, place: int) -> None:
    """Not a hang and not a silent stop: the layers are named, and what is valid of the answer is in the error."""
    await swarm.serve(*SPANS)
    victims: list[Node] = []

    async def kill(chain: list[Node]) -> None:
        victims.append(chain[place])
        await swarm.crash(chain[place])

    began_s = swarm.clock.monotonic_s()
    with pytest.raises(GenerationInterruptedError, match=f"layers {SPANS[place]}") as caught:
        await ask(swarm, swarm.client(heal_timeout_s=15.0), kill)
    assert 14.0 < swarm.clock.monotonic_s() - began_s < 20.0
    error = caught.value
    assert "within 15 s" in str(error)
    assert isinstance(error.__cause__, PeerLostError)
    assert isinstance(error.__cause__.__cause__, NoRouteError)
    assert error.__cause__.peer == victims[0].peer
    assert len(error.token_ids) >= 6
    wanted = greedy(swarm)[: len(error.token_ids)]
    assert list(error.token_ids) == wanted
    assert error.text == swarm.reference.tokenizer.decode(wanted)
    await swarm.check_free(besides=victims)


async def test_a_prompt_that_nobody_finishes_raises_the_reason_itself(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    model = swarm.client(heal_timeout_s=0.0)
    slow = LinkShape(delay_s=HOP_S, bits_per_s=400e3)  # a third of a second for every chunk of the prompt
    swarm.network.shape(nodes[1].peer, nodes[2].peer, slow)
    moment = Moment("prefill", done=1)
    answer = model.generate(input_ids=[9] * 600, max_new_tokens=8, ignore_eos=True, progress=moment)
    task = asyncio.create_task(answer)
    await moment.come()
    await swarm.crash(nodes[1])
    with pytest.raises(PeerLostError, match="layers 1:3"):
        await task


async def test_only_servers_of_other_numerics(swarm: Swarm) -> None:
    """They would do another computation than the one that was begun; the error says which."""
    await swarm.serve(*SPANS)
    await swarm.serve("1:3", dtype="bfloat16")

    async def kill(chain: list[Node]) -> None:
        await swarm.crash(chain[1])

    with pytest.raises(GenerationInterruptedError, match="compute in bfloat16 and not in float32"):
        await ask(swarm, swarm.client(heal_timeout_s=3.0), kill)


async def test_other_numerics_where_they_may_mix(swarm: Swarm) -> None:
    """The answer goes on, and says that it is not exact."""
    await swarm.serve(*SPANS)
    model = swarm.client(mixed_numerics=True)

    async def kill(chain: list[Node]) -> None:
        [other] = await swarm.serve(SPANS[1], dtype="bfloat16")
        assert other not in chain
        await asyncio.sleep(1.0)
        await swarm.crash(chain[1])

    result = await ask(swarm, model, kill, max_new_tokens=200)
    assert len(result.token_ids) == 200
    assert [stage.peer for stage in result.chain][1] == swarm.nodes[-1].peer
    assert not result.exact


async def test_the_same_numerics_before_any_other(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, SPANS[1])

    async def kill(chain: list[Node]) -> None:
        await swarm.serve(SPANS[1], dtype="bfloat16")
        await swarm.crash(chain[1])

    result = await ask(swarm, swarm.client(mixed_numerics=True), kill)
    assert list(result.token_ids) == greedy(swarm)
    assert result.exact


async def test_a_full_standby_is_waited_for(swarm: Swarm) -> None:
    """It has no room at first; a session that ends there makes some."""
    await swarm.serve("0:5", kv_tokens=300)
    blocker = swarm.client().session(max_tokens=290)
    await blocker.generate("x", **OPTIONS)
    await swarm.serve(*SPANS)
    await asyncio.sleep(5.0)  # the full one has said so
    moment = Moment()

    async def kill(chain: list[Node]) -> None:
        await swarm.crash(chain[1])
        await asyncio.sleep(8.0)
        await blocker.close()

    result = await ask(swarm, swarm.client(), kill, moment=moment)
    assert list(result.token_ids) == greedy(swarm)
    [heal] = result.heals
    assert 7.5 < heal.pause_s < 20.0
    assert "is busy" in moment.details()


async def test_an_idle_chain_that_nobody_can_heal_is_opened_anew(swarm: Swarm) -> None:
    """Between two answers any chain will do, also one of other servers altogether."""
    await swarm.serve(*SPANS)
    session = swarm.client().session()
    first = await session.generate("Tell me ", **OPTIONS)
    await swarm.crash(chain_of(swarm, session)[1])
    await swarm.serve("0:5", dtype="bfloat16")
    await asyncio.sleep(1.0)
    second = await session.generate("and more", **OPTIONS)
    assert len(second.chain) == 1
    assert second.heals == ()
    assert session.token_ids[: len("Tell me ") + 6][-6:] == first.token_ids
    await session.close()


async def test_every_server_found_the_session_idle(swarm: Swarm) -> None:
    """Nobody failed: the next call opens a chain over the same servers."""
    await swarm.serve(*SPANS, config=ServerConfig(idle_timeout_s=20.0))
    session = swarm.client().session()
    first = await session.generate("Tell me ", **OPTIONS)
    await asyncio.sleep(60.0)
    second = await session.generate("and more", **OPTIONS)
    assert {stage.peer for stage in second.chain} == {stage.peer for stage in first.chain}
    ids = [*swarm.reference.tokenizer.encode("Tell me "), *first.token_ids]
    ids += swarm.reference.tokenizer.encode("and more")
    assert list(second.token_ids) == swarm.reference.greedy(ids, 6, eos_token_id=None)
    await session.close()


async def test_cancelled_while_it_waits_nothing_stays(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    model = swarm.client()
    moment = Moment()
    swarm.delay(0.005)
    task = asyncio.create_task(model.generate(PROMPT, max_new_tokens=300, ignore_eos=True, progress=moment))
    await moment.come()
    await swarm.crash(nodes[1])
    await asyncio.sleep(10.0)
    assert "waiting" in moment.details()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await swarm.check_free(besides=[nodes[1]])


async def test_closed_while_it_waits(swarm: Swarm) -> None:
    nodes = await swarm.serve(*SPANS)
    session = swarm.client().session()
    moment = Moment()
    swarm.delay(0.005)
    task = asyncio.create_task(session.generate(PROMPT, max_new_tokens=300, ignore_eos=True, progress=moment))
    await moment.come()
    await swarm.crash(nodes[1])
    await asyncio.sleep(10.0)
    began_s = swarm.clock.monotonic_s()
    await session.close()
    with pytest.raises(SwarmError, match="closed"):
        await task
    assert swarm.clock.monotonic_s() - began_s < 1.0
    await swarm.check_free(besides=[nodes[1]])


async def test_a_directory_that_answers_late_holds_up_nobody_who_could_take_over(
    swarm: Swarm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only standby failed a moment ago, so a fresh view would be better: but somebody waits for a token."""
    await swarm.serve(*SPANS, SPANS[1])
    client = swarm.client()
    read = client.parts.directory.servers

    async def late(model: ModelId) -> Sequence[Listing]:
        await asyncio.sleep(8.0)
        return await read(model)

    async def kill(chain: list[Node]) -> None:
        [standby] = [node for node in swarm.nodes if node not in chain]
        client._opener.ground.avoided.note(standby.peer, swarm.clock.monotonic_s())
        monkeypatch.setattr(client.parts.directory, "servers", late)
        await swarm.crash(chain[1])

    result = await ask(swarm, client, kill)
    assert list(result.token_ids) == greedy(swarm)
    [heal] = result.heals
    assert heal.pause_s < 2.0
