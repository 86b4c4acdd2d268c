"""Texts fed with token ids by whoever keeps the head: the logits are the whole model's, whatever befalls the chain."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count

import numpy as np
import numpy.typing as npt
import pytest
from fakes import FakeServer, rows_of
from harness import SPANS, Node, Swarm, until
from tiny_model import CONTEXT
from trouble import HOP_S

from swarm.client.conversation import PREFILL_CHUNK_ROWS
from swarm.client.feeding import REST_AFTER_S, SPARE_TOKENS, AsyncTokenSession
from swarm.core.errors import BadLogitsError, MisuseError, PeerLostError, PromptTooLongError, SwarmError
from swarm.transport.framing import FrameStream
from swarm.wire.frames import Frame
from swarm.wire.messages import Open, Result, Step

TEXT = [4 + (7 * place + place * place) % 250 for place in range(2 * PREFILL_CHUNK_ROWS + 30)]
"""Three chunks of it."""


@dataclass
class RowsTail(FakeServer):
    """A last server that answers every step with so many rows of one value."""

    rows: int = 1
    value: float = 1.0

    async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
        message = frame.message
        assert isinstance(message, Step)
        held = message.keep + message.rows
        answer = Result(message.generation, message.epoch, message.seq, held, (), rows=self.rows)
        await control.send(answer, rows_of(self.value, self.rows))


def check(swarm: Swarm, got: npt.NDArray[np.float32], ids: list[int]) -> None:
    """``got`` are the logits after the last tokens of ``ids``."""
    wanted = swarm.reference.logits(ids)[len(ids) - len(got) :].numpy()
    np.testing.assert_allclose(got, wanted, atol=2e-5, rtol=0)


def nodes_of(swarm: Swarm, session: AsyncTokenSession) -> list[Node]:
    """Who serves it, in order."""
    nodes = {str(node.peer): node for node in swarm.nodes}
    return [nodes[stage.peer] for stage in session.chain]


async def test_all_logits_of_a_prompt_then_of_some_tokens_then_of_one(swarm: Swarm) -> None:
    await swarm.serve()
    session = AsyncTokenSession(swarm.client("local"))
    first = await session.feed(0, TEXT[:-8], want=len(TEXT) - 8)
    check(swarm, first, TEXT[:-8])
    assert len(first) == len(TEXT) - 8
    check(swarm, await session.feed(len(TEXT) - 8, TEXT[-8:-1], want=3), TEXT[:-1])
    check(swarm, await session.feed(len(TEXT) - 1, TEXT[-1:], want=1), TEXT)
    assert (await session.feed(len(TEXT), [5], want=0)).shape == (0, swarm.files.vocab_size)
    assert [str(stage).split("[")[1] for stage in session.chain] == [f"{span}]" for span in SPANS]
    assert session.exact
    assert not session.heals
    await session.close()
    await swarm.check_free()


async def test_what_is_kept_is_not_computed_again(swarm: Swarm, node: Node) -> None:
    session = AsyncTokenSession(swarm.client("local"))
    await session.feed(0, TEXT[:40], want=1)
    node.rows.clear()
    check(swarm, await session.feed(30, [9, 8, 7], want=3), [*TEXT[:30], 9, 8, 7])
    check(swarm, await session.feed(0, TEXT[1:4], want=3), TEXT[1:4])
    assert sum(node.rows) == 6


@pytest.mark.parametrize("chunk", [0, 1, 2])
@pytest.mark.parametrize("place", [0, 1, 2])
async def test_a_server_dies_while_logits_of_the_whole_prompt_come(swarm: Swarm, place: int, chunk: int) -> None:
    """At its work on this chunk. What has come stays valid, what is missing comes from others."""
    nodes = await swarm.serve()
    reached, killed, forwards = asyncio.Event(), threading.Event(), count()
    loop = asyncio.get_running_loop()

    def hold() -> None:
        if next(forwards) == chunk:
            loop.call_soon_threadsafe(reached.set)
            killed.wait(30.0)

    nodes[place].engine.before = hold  # type: ignore[attr-defined]
    session = AsyncTokenSession(swarm.client("local"))
    feeding = asyncio.create_task(session.feed(0, TEXT, want=len(TEXT)))
    await reached.wait()
    rows = chunk * PREFILL_CHUNK_ROWS
    await until(lambda: session._conversation is not None and session._conversation.position == rows)
    await swarm.serve(SPANS[place])
    await swarm.crash(nodes[place])
    killed.set()
    logits = await feeding
    check(swarm, logits, TEXT)
    assert len(logits) == len(TEXT)
    [heal] = session.heals
    assert [stage.peer for stage in heal.lost] == [nodes[place].peer]
    check(swarm, await session.feed(len(TEXT), [17], want=1), [*TEXT, 17])
    await swarm.clock.sleep(2 * REST_AFTER_S)
    assert len(session.heals) == 1, "told once, also when it rests"


async def test_a_text_outgrows_its_room_and_moves_to_another_chain(swarm: Swarm, node: Node) -> None:
    session = AsyncTokenSession(swarm.client("local"))
    await session.feed(0, TEXT[:10], want=1, room=12)
    assert node.kv_tokens - node.engine.free_tokens == 12
    check(swarm, await session.feed(10, TEXT[10:20], want=4, room=12), TEXT[:20])
    await swarm.quiet()
    assert node.kv_tokens - node.engine.free_tokens == 2 * 20 + SPARE_TOKENS
    with pytest.raises(PromptTooLongError, match=f"context of {CONTEXT}"):
        await session.feed(20, [5] * CONTEXT, want=1)
    check(swarm, await session.feed(20, [5], want=1), [*TEXT[:20], 5])


async def test_nobody_takes_over_and_then_somebody_is_there(swarm: Swarm) -> None:
    await swarm.serve()
    session = AsyncTokenSession(swarm.client("local", heal_timeout_s=1.0))
    await session.feed(0, TEXT[:10], want=1)
    await swarm.crash(nodes_of(swarm, session)[1])
    with pytest.raises(PeerLostError):
        await session.feed(10, [5], want=1)
    assert session.chain == ()
    with pytest.raises(SwarmError, match="layers 1 to 2"):
        await session.feed(10, [5], want=1)
    await swarm.serve(SPANS[1])
    check(swarm, await session.feed(10, [6, 7], want=2), [*TEXT[:10], 6, 7])


@pytest.mark.parametrize("rows", [1, 3])
async def test_a_tail_with_other_rows_than_asked_for_is_replaced(swarm: Swarm, rows: int) -> None:
    """The answers are asked for again, all of them."""
    await swarm.serve("0:1", "1:3")
    swarm.liars = True
    await RowsTail(swarm, "3:5", rows=rows).start()
    session = AsyncTokenSession(swarm.client("local"))
    feeding = asyncio.create_task(session.feed(0, TEXT[:7], want=2))
    await until(lambda: session.chain)
    await swarm.serve("3:5")
    check(swarm, await feeding, TEXT[:7])
    assert len(session.heals) == 1


async def test_rows_that_are_no_numbers(swarm: Swarm) -> None:
    await swarm.serve("0:1", "1:3")
    swarm.liars = True
    await RowsTail(swarm, "3:5", value=float("nan")).start()
    session = AsyncTokenSession(swarm.client("local", heal_timeout_s=1.0))
    with pytest.raises(BadLogitsError):
        await session.feed(0, TEXT[:7], want=1)


async def test_closed_while_it_opens_and_while_it_is_fed(swarm: Swarm) -> None:
    await swarm.serve()
    swarm.delay(HOP_S)
    for moment in (lambda session: swarm.nodes[0].server.table, lambda session: session.chain):
        session = AsyncTokenSession(swarm.client("local"))
        feeding = asyncio.create_task(session.feed(0, TEXT, want=1))
        await _when(moment, session)
        session.release()
        with pytest.raises((MisuseError, PeerLostError), match="closed"):
            await feeding
        with pytest.raises(MisuseError, match="closed"):
            await session.feed(0, TEXT, want=1)
        await swarm.clock.sleep(5.0)
        await swarm.check_free()


async def test_a_feed_that_is_cancelled_may_be_followed_by_another(swarm: Swarm) -> None:
    await swarm.serve()
    swarm.delay(HOP_S)
    session = AsyncTokenSession(swarm.client("local"))
    await session.feed(0, TEXT[:3], want=1)
    feeding = asyncio.create_task(session.feed(3, TEXT[3:], want=1))
    await swarm.clock.sleep(3 * HOP_S)
    with pytest.raises(MisuseError, match="already"):
        await session.feed(3, [5], want=1)
    feeding.cancel()
    await asyncio.gather(feeding, return_exceptions=True)
    check(swarm, await session.feed(2, TEXT[2:9], want=7), TEXT[:9])


async def test_standbys_are_kept_while_it_is_fed_and_let_go_when_it_rests(swarm: Swarm) -> None:
    await swarm.serve(*SPANS, *SPANS)
    model = swarm.client("local")
    session = AsyncTokenSession(model)
    await session.feed(0, TEXT[:3], want=1)
    for token in range(5, 9):
        await swarm.clock.sleep(REST_AFTER_S / 2)
        assert model._standbys._watched, "fed often enough"
        await session.feed(token - 2, [token], want=1)
    await swarm.clock.sleep(2 * REST_AFTER_S)
    assert not model._standbys._watched
    check(swarm, await session.feed(7, [9], want=1), [*TEXT[:3], 5, 6, 7, 8, 9])


@pytest.mark.parametrize(
    ("keep", "ids", "want", "named"),
    [(1, [5], 1, "keep 1"), (0, [], 0, "without tokens"), (0, [5], 2, "2 of 1"), (0, [99999], 1, "vocabulary")],
)
async def test_what_cannot_be_is_refused(swarm: Swarm, keep: int, ids: list[int], want: int, named: str) -> None:
    await swarm.serve()
    with pytest.raises(MisuseError, match=named):
        await AsyncTokenSession(swarm.client("local")).feed(keep, ids, want=want)


async def test_a_remote_head_keeps_its_logits(swarm: Swarm) -> None:
    await swarm.serve()
    conversation = await swarm.client("remote").open(16, lambda progress: None, "interactive")
    with pytest.raises(MisuseError, match='head="local"'):
        await conversation.feed([5], want=1)
    await conversation.close()


async def _when(moment: Callable[[AsyncTokenSession], object], session: AsyncTokenSession) -> None:
    await until(lambda: moment(session))
