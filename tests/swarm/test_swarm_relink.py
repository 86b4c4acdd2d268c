"""A lost server is replaced by hand, frame by frame: whoever is lost, the tokens are those of an undisturbed chain."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from by_hand import HandChain, Place
from fakes import HIDDEN, FakeClient, step
from harness import SPANS, Node, Swarm

from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.server.config import ServerConfig
from swarm.wire.fields import DECODE_LANE
from swarm.wire.messages import Answer, Result

PROMPT = list(range(40, 60))
SAMPLING = SamplingParams(
    temperature=1.2, top_k=40, top_p=0.97, repetition_penalty=1.3, presence_penalty=0.4, seed=5, top_logprobs=2
)


def tokens(results: Sequence[Result]) -> list[int]:
    return [result.tokens[0] for result in results]


async def chain(swarm: Swarm, client: FakeClient, nodes: Sequence[Node] = (), **opening: object) -> HandChain:
    return await HandChain(client, nodes or await swarm.serve(*SPANS), **opening).open()


@pytest.mark.parametrize(
    ("lost", "spans"),
    [
        ([0], ["0:1"]),
        ([1], ["1:3"]),
        ([2], ["3:5"]),
        ([1], ["1:2", "2:3"]),
        ([0], ["0:5"]),
        ([2], ["3:4", "0:5"]),
        ([0, 2], ["0:1", "3:5"]),
        ([0, 1], ["0:1", "1:3"]),
        ([1, 2], ["1:3", "3:5"]),
        ([0, 1, 2], ["0:1", "1:3", "3:5"]),
    ],
    ids=str,
)
async def test_whoever_is_lost_the_tokens_are_the_same(
    swarm: Swarm, client: FakeClient, lost: list[int], spans: list[str]
) -> None:
    """And only whom the loss concerns computes again."""
    nodes = await swarm.serve(*SPANS)
    mended = await chain(swarm, client, nodes)
    results = [await mended.prompt(PROMPT)]
    results += await mended.go_on(results[0], 6)
    newcomers = await swarm.serve(*spans)
    held, computed = len(mended.ids), [len(node.rows) for node in nodes]
    for index in lost:
        await swarm.crash(nodes[index])
    parts = [newcomers] if len(lost) == 1 else [[newcomer] for newcomer in newcomers]
    said = await mended.heal(dict(zip(lost, parts, strict=True)))
    assert {(reply.kv_length, index) for index, reply in said.items()} == {
        (held, index) for index in range(3) if index not in lost
    }
    assert all(reply.logged_rows == (0 if index == 2 else held) for index, reply in said.items())
    assert [len(node.rows) for node in nodes] == computed, "the survivors kept their KV"
    assert all(sum(newcomer.rows) == held for newcomer in newcomers), newcomers
    results += await mended.go_on(results[-1], 6)
    assert tokens(results) == swarm.reference.greedy(PROMPT, 13, eos_token_id=None)


@pytest.mark.parametrize("codec", ["raw", "int8"])
@pytest.mark.parametrize("lost", [0, 1, 2])
async def test_sampling_with_penalties_goes_on_as_if_nothing_had_been(
    swarm: Swarm, client: FakeClient, codec: str, lost: int
) -> None:
    """A new tail has the whole history from the replay, and its parameters from the step that comes again."""
    nodes = await swarm.serve(*SPANS, *SPANS)
    undisturbed = FakeClient(swarm)
    plain = await chain(swarm, undisturbed, nodes[3:], codec=codec)
    first = await plain.prompt(PROMPT, params=SAMPLING)
    wanted = [first, *await plain.go_on(first, 11)]
    await undisturbed.close()
    mended = await chain(swarm, client, nodes[:3], codec=codec)
    results = [await mended.prompt(PROMPT, params=SAMPLING)]
    results += await mended.go_on(results[0], 5)
    await swarm.crash(nodes[lost])
    await mended.heal({lost: [nodes[3 + lost]]})
    results += await mended.go_on(results[-1], 6, Answer(len(PROMPT), SAMPLING))
    assert tokens(results) == tokens(wanted)
    for ours, theirs in zip(results, wanted, strict=True):
        assert ours.logprobs[0].chosen == pytest.approx(theirs.logprobs[0].chosen, abs=1e-3)


@pytest.mark.parametrize("replay_mb", [0.0, 0.001])
async def test_without_a_log_the_tokens_are_fed_from_the_front(
    swarm: Swarm, client: FakeClient, replay_mb: float
) -> None:
    """The survivors on the way compute again; whoever is behind the last newcomer keeps its KV."""
    config = ServerConfig(replay_mb=replay_mb)
    nodes = await swarm.serve(*SPANS, config=config)
    mended = await chain(swarm, client, nodes)
    results = [await mended.prompt(PROMPT)]
    results += await mended.go_on(results[0], 4)
    computed = sum(nodes[2].rows)
    [newcomer] = await swarm.serve("1:3", config=config)
    await swarm.crash(nodes[1])
    said = await mended.heal({1: [newcomer]})
    assert said[0].logged_rows == 0
    assert said[0].kv_length == len(mended.ids)
    assert sum(nodes[0].rows) == 2 * len(mended.ids)
    assert sum(nodes[2].rows) == computed
    results += await mended.go_on(results[-1], 6)
    assert tokens(results) == swarm.reference.greedy(PROMPT, 11, eos_token_id=None)


async def test_a_newcomer_feeds_the_next_one(swarm: Swarm, client: FakeClient) -> None:
    """It logs what it computes of a replay, and the steps after it; and so does one that was fed from the front."""
    nodes = await swarm.serve(*SPANS)
    mended = await chain(swarm, client, nodes)
    results = [await mended.prompt(PROMPT)]
    for lost in (1, 2, 0, 1, 2):
        results += await mended.go_on(results[-1], 3)
        gone = mended.places[lost].node
        [newcomer] = await swarm.serve(SPANS[lost])
        await swarm.crash(gone)
        said = await mended.heal({lost: [newcomer]})
        assert all(reply.logged_rows == len(mended.ids) for index, reply in said.items() if index < 2)
    results += await mended.go_on(results[-1], 3)
    assert tokens(results) == swarm.reference.greedy(PROMPT, 19, eos_token_id=None)


async def test_a_session_may_go_on_from_fewer_rows(swarm: Swarm, client: FakeClient) -> None:
    """What was under way, or rolled back, is void: cache, log and history are cut to what the client keeps."""
    nodes = await swarm.serve(*SPANS, "1:3")
    mended = await chain(swarm, client, nodes[:3])
    results = [await mended.prompt(PROMPT)]
    results += await mended.go_on(results[0], 6)
    await mended.ask([7, 7, 7], want=3)
    await swarm.crash(nodes[1])
    said = await mended.heal({1: [nodes[3]]}, keep=len(PROMPT) + 2)
    assert {reply.kv_length for reply in said.values()} == {len(PROMPT) + 2}
    again = await mended.go_on(results[2], 6)
    assert tokens([*results[:3], *again]) == swarm.reference.greedy(PROMPT, 9, eos_token_id=None)


async def test_hidden_rows_heal_like_tokens(swarm: Swarm, client: FakeClient) -> None:
    """The other end of the wire's choices: rows in, rows out, and no ids to go with them."""
    [first, *tails] = await swarm.serve("1:3", "3:5", "3:5", ends=False)
    rows = np.random.default_rng(3).standard_normal((21, HIDDEN)).astype(np.float32)
    mended = HandChain(client, [first, tails[0]], embed=False, head=False)
    mended.places[0].span = Span(1, 3)
    await mended.open()
    link, last = mended.links[DECODE_LANE], step(1, 20, ids=False)
    await link.send(step(rows=20, ids=False), rows[:20].tobytes())
    await mended.heard(mended.tail)
    await link.send(last, rows[20].tobytes())
    wanted = await payload_of(mended.tail)
    mended.ids = [0] * 20  # what they were embedded from does not matter
    await mended.heal({1: [tails[1]]})
    await link.send(msgspec.structs.replace(last, generation=1, seq=0), rows[20].tobytes())
    np.testing.assert_allclose(await payload_of(mended.tail), wanted, atol=1e-5)
    assert tails[1].rows == [20, 1]


async def payload_of(place: Place) -> npt.NDArray[np.float32]:
    assert place.control is not None
    frame = await place.control.receive()
    assert isinstance(frame.message, Result), frame.message
    return np.frombuffer(frame.payload, np.float32)
