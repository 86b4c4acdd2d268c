"""Servers die in the middle of an answer: it goes on, token for token the same, and only what was lost is computed
again.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from harness import SPANS, Node, Swarm
from trouble import NEW_TOKENS, PROMPT, Moment, ask, chain_of, forget_rows, greedy

from swarm.client.results import GenerationResult
from swarm.engine.speed import SpanSpeed
from swarm.server.config import ServerConfig

HEADS = pytest.mark.parametrize("head", ["local", "remote"])
SAMPLING: dict[str, Any] = {
    "temperature": 1.1, "top_p": 0.95, "seed": 7, "repetition_penalty": 1.2, "frequency_penalty": 0.6, "logprobs": 2
}  # fmt: skip


async def killed(swarm: Swarm, places: tuple[int, ...], head: str = "remote", **options: Any) -> GenerationResult:
    """An answer whose servers at these places of the chain die at once after some tokens."""

    async def kill(chain: list[Node]) -> None:
        forget_rows(swarm.nodes)
        await asyncio.gather(*(swarm.crash(chain[place]) for place in places))

    return await ask(swarm, swarm.client(head), kill, **options)


@HEADS
@pytest.mark.parametrize("places", [(0,), (1,), (2,), (0, 1), (1, 2), (0, 2), (0, 1, 2)])
async def test_whoever_dies_the_answer_is_the_same(swarm: Swarm, places: tuple[int, ...], head: str) -> None:
    """One, two side by side, two apart, all: with a replica of each."""
    await swarm.serve(*SPANS, *SPANS)
    result = await killed(swarm, places, head)
    assert list(result.token_ids) == greedy(swarm)
    assert result.exact
    assert result.finish_reason == "length"
    lost = [(stage.start, stage.end) for heal in result.heals for stage in heal.lost]
    spans = [tuple(map(int, SPANS[place].split(":"))) for place in places]
    assert sorted(lost) == spans
    assert sorted((s.start, s.end) for heal in result.heals for s in heal.replaced_by) == spans
    assert not {s.peer for s in result.chain} & {s.peer for heal in result.heals for s in heal.lost}


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_only_the_lost_span_is_computed_again(swarm: Swarm, place: int) -> None:
    """The others keep their KV: from the kill on they see the new tokens, and the one step that was under way."""
    await swarm.serve(*SPANS, *SPANS)
    result = await killed(swarm, (place,))
    nodes = {node.peer: node for node in swarm.nodes}
    [heal] = result.heals
    assert len(PROMPT) + 5 <= heal.replayed_rows <= len(PROMPT) + 6
    for index, stage in enumerate(result.chain):
        rows = nodes[stage.peer].rows
        if index == place:
            assert sum(rows) == len(PROMPT) + NEW_TOKENS - 1
            assert max(rows) > 1, "replayed in chunks, not row by row"
        else:
            assert set(rows) == {1}
            assert len(rows) <= NEW_TOKENS - 6 + 1


async def test_replayed_from_the_tokens_where_no_log_is_kept(swarm: Swarm) -> None:
    """The survivors before the gap compute again what they hold; those behind it do not."""
    await swarm.serve(*SPANS, *SPANS, config=ServerConfig(replay_mb=0.0))
    result = await killed(swarm, (1,))
    assert list(result.token_ids) == greedy(swarm)
    first, middle, last = (next(n for n in swarm.nodes if n.peer == stage.peer) for stage in result.chain)
    assert sum(middle.rows) == len(PROMPT) + NEW_TOKENS - 1
    assert sum(first.rows) >= result.heals[0].replayed_rows
    assert set(last.rows) == {1}


@HEADS
async def test_a_standby_of_several_servers(swarm: Swarm, head: str) -> None:
    """Nobody holds the whole lost span; two do together, in part."""
    await swarm.serve("0:5")
    await swarm.serve("0:3", "2:5")
    result = await killed(swarm, (0,), head)
    assert list(result.token_ids) == greedy(swarm)
    assert len(result.chain) == 2


async def test_a_server_beside_the_gap_takes_it_over(swarm: Swarm) -> None:
    """Only a neighbour holds the lost layers: it takes them with its own."""
    [survivor] = await swarm.serve("0:5", speed=SpanSpeed(tau_s=0.2))
    [victim] = await swarm.serve("3:5", speed=SpanSpeed(tau_s=0.001))

    async def kill(chain: list[Node]) -> None:
        assert chain == [survivor, victim]
        await swarm.crash(victim)

    result = await ask(swarm, swarm.client(), kill)
    assert list(result.token_ids) == greedy(swarm)
    [heal] = result.heals
    assert [(stage.start, stage.end) for stage in heal.replaced_by] == [(0, 5)]
    assert [stage.peer for stage in result.chain] == [survivor.peer]


@HEADS
@pytest.mark.parametrize("place", [0, 2])
async def test_sampling_with_penalties_and_logprobs(swarm: Swarm, place: int, head: str) -> None:
    """The last server's history, counts and all, is rebuilt from what was replayed."""
    await swarm.serve(*SPANS, *SPANS)
    options = {"max_new_tokens": NEW_TOKENS, "ignore_eos": True} | SAMPLING
    undisturbed = await swarm.client(head).generate(PROMPT, **options)
    result = await killed(swarm, (place,), head, **SAMPLING)
    assert result.heals
    assert result.token_ids == undisturbed.token_ids
    assert len(result.logprobs) == NEW_TOKENS
    for healed, wanted in zip(result.logprobs, undisturbed.logprobs, strict=True):
        assert healed.logprob == pytest.approx(wanted.logprob, abs=1e-4)
        assert [token for token, _ in healed.top] == [token for token, _ in wanted.top]


@pytest.mark.parametrize("place", [0, 1, 2])
async def test_what_a_lossy_wire_carried_is_replayed_as_it_was(swarm: Swarm, place: int) -> None:
    """The log keeps wire bytes: a newcomer sees exactly what the lost server saw."""
    await swarm.serve(*SPANS, *SPANS)
    model = swarm.client(codec="int8")
    undisturbed = await model.generate(PROMPT, max_new_tokens=NEW_TOKENS, ignore_eos=True)

    async def kill(chain: list[Node]) -> None:
        await swarm.crash(chain[place])

    result = await ask(swarm, model, kill)
    assert result.token_ids == undisturbed.token_ids
    assert result.heals
    assert not result.exact


@HEADS
async def test_one_after_the_other_until_nobody_of_the_first_chain_is_left(swarm: Swarm, head: str) -> None:
    await swarm.serve(*SPANS * 3)
    model = swarm.client(head)
    moment = Moment()

    async def kill_them_all(_: list[Node]) -> None:
        for place in (1, 0, 2, 1):
            await swarm.crash(chain_of(swarm, model)[place])
            await moment.healed()
            await asyncio.sleep(0.05)

    result = await ask(swarm, model, kill_them_all, moment=moment, max_new_tokens=120)
    assert list(result.token_ids) == greedy(swarm, new_tokens=120)
    assert len(result.heals) == 4
    assert "take over" in moment.details()


async def test_eight_sessions_at_once(swarm: Swarm) -> None:
    """A server of all of them dies: every answer is its own."""
    nodes = await swarm.serve(*SPANS)
    model = swarm.client()
    prompts = [f"{index} {PROMPT}"[: 8 + 5 * index] for index in range(8)]
    moments = [Moment(done=3 + index) for index in range(8)]
    swarm.delay(0.005)
    tasks = [
        asyncio.create_task(model.generate(prompt, max_new_tokens=30, ignore_eos=True, progress=moment))
        for prompt, moment in zip(prompts, moments, strict=True)
    ]
    await moments[4].come()
    await swarm.serve(*SPANS)
    swarm.delay(0.005)
    await swarm.crash(nodes[1])
    results = await asyncio.gather(*tasks)
    for prompt, result in zip(prompts, results, strict=True):
        assert list(result.token_ids) == greedy(swarm, prompt, 30), prompt
        assert len(result.heals) == 1
