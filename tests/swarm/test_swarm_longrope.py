"""A text that outgrows a long-rope model's short rotary table: the answer stays transformers' own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from by_hand import HandChain
from fakes import FakeClient
from harness import Engines, Node, Swarm, leak_check
from tiny_model import LAYERS, Reference, write_model
from transformers import Phi3Config
from trouble import NEW_TOKENS, Moment, ask, greedy

from swarm.client.feeding import AsyncTokenSession
from swarm.models.folder import open_folder

SHORT = 48
"""Tokens up to which the short table is used."""
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": SHORT,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [2.0, 3.0, 4.0, 5.0],
}


@pytest.fixture(scope="module")
def phi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny-phi3")
    write_model(folder, 0, Phi3Config, original_max_position_embeddings=SHORT, rope_parameters=dict(ROPE))
    return folder


@pytest_asyncio.fixture
async def long_swarm(phi: Path, errors: list[object]) -> AsyncIterator[Swarm]:
    built = Swarm(Engines(open_folder(phi)), Reference(phi))
    await built.serve("0:2", f"2:{LAYERS}")
    yield built
    await leak_check(built, errors)


@pytest.mark.parametrize("head", ["remote", "local"])
@pytest.mark.parametrize("prompt_tokens", [SHORT - 8, SHORT - 1, SHORT, SHORT + 1, 3 * SHORT])
async def test_crossing_equals_transformers(long_swarm: Swarm, head: str, prompt_tokens: int) -> None:
    prompt = "The river crosses three valleys. " * 8
    prompt = prompt[:prompt_tokens]
    result = await long_swarm.client(head).generate(prompt, max_new_tokens=24, ignore_eos=True)
    assert list(result.token_ids) == long_swarm.reference.greedy(prompt, 24, eos_token_id=None)


async def test_a_session_that_crosses_between_two_answers(long_swarm: Swarm) -> None:
    """Its KV of the short table is of no use to the long one."""
    session = long_swarm.client().session(max_tokens=4 * SHORT)
    first = await session.generate("x" * (SHORT // 2), max_new_tokens=8, ignore_eos=True)
    second = await session.generate("y" * SHORT, max_new_tokens=8, ignore_eos=True)
    ids = [*long_swarm.reference.tokenizer.encode("x" * (SHORT // 2)), *first.token_ids]
    ids += long_swarm.reference.tokenizer.encode("y" * SHORT)
    assert list(second.token_ids) == long_swarm.reference.greedy(ids, 8, eos_token_id=None)
    await session.close()


async def test_penalties_survive_the_crossing(long_swarm: Swarm) -> None:
    """The answer's own counts go on where they stood: both heads agree on them across the switch."""
    options = {"max_new_tokens": 24, "ignore_eos": True, "presence_penalty": 0.7, "temperature": 1.0, "seed": 5}
    prompt = "z" * (SHORT - 6)
    remote = await long_swarm.client("remote").generate(prompt, **options)
    local = await long_swarm.client("local").generate(prompt, **options)
    assert remote.token_ids == local.token_ids


@pytest.mark.parametrize("lost", [0, 1])
async def test_replayed_rows_keep_the_table_they_were_computed_with(long_swarm: Swarm, lost: int) -> None:
    """Decoded rows on both sides of the limit travel in one frame; the short ones must not get the long table."""
    spans = ("0:2", f"2:{LAYERS}")
    others = await long_swarm.serve(*spans, spans[lost])
    prompt = list(range(40, 40 + SHORT - 8))
    answers = []
    for nodes in (others[:2], long_swarm.nodes[:2]):
        client = FakeClient(long_swarm)
        chain = await HandChain(client, nodes).open()
        results = [await chain.prompt(prompt)]
        results += await chain.go_on(results[0], 20)
        if nodes[0] is not others[0]:
            await chain.heal({lost: [others[2]]})
        results += await chain.go_on(results[-1], 12)
        answers.append([(result.tokens, result.logprobs) for result in results])
        await client.close()
    assert answers[0] == answers[1]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("prompt_tokens", [SHORT - 8, SHORT - 2, 3 * SHORT])
async def test_a_newcomer_computes_with_the_table_that_was_used(
    long_swarm: Swarm, place: int, prompt_tokens: int
) -> None:
    """Before the crossing, after it, and in a text that began beyond it; from the client's tokens and from a log."""
    await long_swarm.serve("0:2", f"2:{LAYERS}")
    prompt = ("The river crosses three valleys. " * 8)[:prompt_tokens]

    async def kill(chain: list[Node]) -> None:
        await long_swarm.crash(chain[place])

    result = await ask(long_swarm, long_swarm.client(), kill, prompt=prompt)
    assert result.heals
    assert list(result.token_ids) == greedy(long_swarm, prompt)


@pytest.mark.parametrize("place", [0, 1])
async def test_a_long_prompt_is_healed_while_its_first_rows_are_held(long_swarm: Swarm, place: int) -> None:
    """Few rows are committed, fewer than the short table covers; they were computed with the long one all the same."""
    for node in [*long_swarm.nodes, *await long_swarm.serve("0:2", f"2:{LAYERS}")]:
        node.engine.takes_s = 0.05  # type: ignore[attr-defined]
    ids = [4 + (index * 37) % 250 for index in range(300)]

    async def kill(chain: list[Node]) -> None:
        await long_swarm.crash(chain[place])

    moment = Moment("prefill", done=1)
    result = await ask(long_swarm, long_swarm.client(), kill, moment=moment, prompt=None, input_ids=ids)
    assert result.heals
    assert list(result.token_ids) == long_swarm.reference.greedy(ids, NEW_TOKENS, eos_token_id=None)


async def test_a_session_that_shrinks_back_below_the_crossing(long_swarm: Swarm) -> None:
    """What is left of a long text was computed with the long table, and a short one needs the short table."""
    session = long_swarm.client().session(max_tokens=4 * SHORT)
    await session.generate("The river crosses three valleys. " * 3, max_new_tokens=4, ignore_eos=True)
    session.truncate(12)
    result = await session.generate("y" * 8, max_new_tokens=8, ignore_eos=True)
    assert list(result.token_ids) == greedy(long_swarm, "The river cr" + "y" * 8, 8)
    await session.close()


@pytest.mark.parametrize("first", [SHORT - 8, SHORT, 2 * SHORT])
async def test_logits_of_a_text_that_is_fed_over_the_edge_and_cut_back(long_swarm: Swarm, first: int) -> None:
    """As a whole text of each length has them."""
    session = AsyncTokenSession(long_swarm.client("local"))
    text = [4 + 7 * place % 250 for place in range(first)]
    await session.feed(0, text, want=1)
    for keep, new in ((first, [9] * (SHORT + 2)), (SHORT // 2, [11, 12]), (SHORT // 2 + 2, [13] * SHORT)):
        text = [*text[:keep], *new]
        logits = await session.feed(keep, new, want=2)
        wanted = long_swarm.reference.logits(text)[-2:].numpy()
        np.testing.assert_allclose(logits, wanted, atol=2e-5, rtol=0)
