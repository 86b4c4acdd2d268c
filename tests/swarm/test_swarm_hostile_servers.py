"""Servers that lie, garble or fall silent: the client says who it was, keeps what is valid, and goes on elsewhere."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from fakes import FakeServer, blamed, rows_of, step
from harness import Swarm

from swarm.core.errors import (
    BusyError,
    GenerationInterruptedError,
    PeerUnreachableError,
    RefusedError,
    SwarmError,
)
from swarm.transport.framing import FrameStream
from swarm.wire.frames import Frame, encode_head
from swarm.wire.messages import (
    Busy,
    Failed,
    LinkLost,
    Noop,
    Open,
    Refused,
    Result,
    Step,
    TokenLogprobs,
)
from swarm.wire.payload import pack_ids

OPTIONS = {"max_new_tokens": 8, "ignore_eos": True}


def answer_to(message: Step, **changes: Any) -> Result:
    fields: dict[str, Any] = {
        "generation": message.generation,
        "epoch": message.epoch,
        "seq": message.seq,
        "kv_length": message.keep + message.rows,
        "tokens": (7,) if message.want else (),
    }
    return Result(**(fields | changes))


@dataclass
class Tail(FakeServer):
    """Answers every step with token 7, until its ``lie_at``-th wanted answer, which is the test's."""

    lie_at: int = 0
    wanted: int = 0

    async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
        message = frame.message
        assert isinstance(message, Step)
        if message.want:
            self.wanted += 1
            if self.wanted > self.lie_at:
                await self.lie(control, message)
                return
        await control.send(answer_to(message))

    async def lie(self, control: FrameStream, message: Step) -> None:
        """Nothing: silence."""


@dataclass
class SaysTail(Tail):
    """Lies with one crafted result."""

    changes: dict[str, Any] | None = None
    payload: bytes = b""

    async def lie(self, control: FrameStream, message: Step) -> None:
        await control.send(answer_to(message, **(self.changes or {})), *([self.payload] if self.payload else []))


LIES: dict[str, dict[str, Any]] = {
    "too few rows held": {"kv_length": 0},
    "too many rows held": {"kv_length": 4_000_000},
    "no token": {"tokens": ()},
    "two tokens": {"tokens": (7, 8)},
    "a token outside the vocabulary": {"tokens": (260,)},
    "a token outside by far": {"tokens": (2_000_000,)},
}


@pytest.mark.parametrize("lie_at", [0, 3])
@pytest.mark.parametrize("name", sorted(LIES))
async def test_a_tail_that_lies(swarm: Swarm, name: str, lie_at: int) -> None:
    await swarm.serve("0:3")
    tail = await SaysTail(swarm, "3:5", lie_at=lie_at, changes=LIES[name]).start()
    with pytest.raises(SwarmError) as caught:
        await swarm.client(heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert blamed(caught.value, tail.peer), caught.value
    if lie_at:
        assert isinstance(caught.value, GenerationInterruptedError)
        assert caught.value.token_ids == (7,) * lie_at
    await swarm.check_free()
    await tail.transport.close()
    await swarm.serve("3:5")
    await swarm.answers()


@pytest.mark.parametrize(
    "logprobs",
    [
        (),
        (TokenLogprobs(-1.0, ()),),
        (TokenLogprobs(-1.0, ((7, -1.0), (8, -1.0), (9, -2.0))),),
        (TokenLogprobs(-1.0, ((7, -1.0), (300, -1.0))),),
    ],
)
async def test_a_tail_with_other_logprobs_than_asked_for(swarm: Swarm, logprobs: tuple[TokenLogprobs, ...]) -> None:
    await swarm.serve("0:3")
    tail = await SaysTail(swarm, "3:5", changes={"logprobs": logprobs}).start()
    with pytest.raises(SwarmError) as caught:
        await swarm.client(heal_timeout_s=1.0).generate("x", logprobs=2, **OPTIONS)
    assert blamed(caught.value, tail.peer)


@pytest.mark.parametrize(
    ("rows", "payload"),
    [
        (0, b""),
        (2, rows_of(1.0, 2)),
        (1, rows_of(1.0)[:-4]),
        (1, b""),
        (1, rows_of(1.0) + bytes(1000)),
    ],
)
async def test_a_tail_with_wrong_hidden_rows(swarm: Swarm, rows: int, payload: bytes) -> None:
    await swarm.serve("0:3")
    tail = await SaysTail(swarm, "3:5", changes={"tokens": (), "rows": rows}, payload=payload).start()
    with pytest.raises(SwarmError) as caught:
        await swarm.client("local", heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert blamed(caught.value, tail.peer)


async def test_a_tail_with_nan_rows_for_a_local_head(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    await SaysTail(swarm, "3:5", changes={"tokens": (), "rows": 1}, payload=rows_of(float("nan"))).start()
    with pytest.raises(SwarmError, match="not finite"):
        await swarm.client("local", heal_timeout_s=1.0).generate("x", **OPTIONS)
    await swarm.check_free()


async def test_text_held_back_for_a_stop_string_is_valid_too(swarm: Swarm) -> None:
    """All of it may begin the stop string, so nothing was shown when the answer broke."""
    await swarm.serve("0:3")
    await SaysTail(swarm, "3:5", lie_at=3, changes={"tokens": ()}).start()
    said = swarm.reference.tokenizer.decode([7])
    stream = await swarm.client(heal_timeout_s=1.0).stream("x", stop=[said * 9], **OPTIONS)
    pieces: list[str] = []

    async def listen() -> None:
        async for piece in stream:
            pieces.append(piece)

    with pytest.raises(GenerationInterruptedError) as caught:
        await listen()
    assert caught.value.token_ids == (7,) * 3
    assert caught.value.text == "".join(pieces) == said * 3


@dataclass
class RambleTail(Tail):
    """Sends results nobody asked for before each honest one."""

    async def lie(self, control: FrameStream, message: Step) -> None:
        for changes in ({"seq": 10_000}, {"epoch": 9}, {"generation": 3}):
            await control.send(answer_to(message, tokens=(9,), **changes))
        await control.send(Noop())
        for _ in range(2):  # the honest one twice: the second must not count as another step's
            await control.send(answer_to(message))


async def test_results_for_unknown_steps_are_no_answers(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    await RambleTail(swarm, "3:5").start()
    result = await swarm.client(heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert result.token_ids == (7,) * 8


async def test_a_tail_that_takes_steps_and_is_silent(swarm: Swarm) -> None:
    """No hang for ever: after the step's time the answer ends with what is valid."""
    await swarm.serve("0:3")
    await Tail(swarm, "3:5", lie_at=2).start()
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(GenerationInterruptedError, match="within 60 s") as caught:
        await swarm.client(heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert caught.value.token_ids == (7, 7)
    assert swarm.clock.monotonic_s() - began_s < 65.0
    await swarm.check_free()


# -- control streams that garble ------------------------------------------------------------------------------


@dataclass
class GarbleTail(Tail):
    """Answers with raw bytes."""

    data: bytes = b""

    async def lie(self, control: FrameStream, message: Step) -> None:
        await control._stream.write(self.data)


@pytest.mark.parametrize(
    "data", [bytes(64), b"\xff" * 64, b"HTTP/1.1 200 OK\r\n\r\n", b"\x00\x00\x00\x04\x00\x02\x91\x63"]
)
async def test_garbage_on_the_clients_control_stream(swarm: Swarm, data: bytes) -> None:
    await swarm.serve("0:3")
    tail = await GarbleTail(swarm, "3:5", lie_at=1, data=data).start()
    with pytest.raises(GenerationInterruptedError) as caught:
        await swarm.client(heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert blamed(caught.value, tail.peer)
    assert caught.value.token_ids == (7,)
    await swarm.check_free()


async def test_an_announced_result_of_many_megabytes_is_not_waited_for(swarm: Swarm) -> None:
    await swarm.serve("0:3")
    where = Result(0, 0, 0, 1, (7,))
    tail = await GarbleTail(swarm, "3:5", data=encode_head(where, 32 * 1024 * 1024)).start()
    with pytest.raises(SwarmError, match="frame of") as caught:
        await swarm.client(heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert blamed(caught.value, tail.peer)


@dataclass
class Middle(FakeServer):
    """The first of two; sends the client results, or the next server nonsense."""

    crime: str = ""

    async def on_step(self, control: FrameStream, opened: Open, frame: Frame) -> None:
        message = frame.message
        assert isinstance(message, Step)
        rows, ids = message.rows, bytes(frame.payload)[: 4 * message.rows]
        good = rows_of(0.5, rows)
        match self.crime:
            case "sends a result":
                await control.send(answer_to(message))
            case "sends rows of NaN":
                await self.push(opened, message, ids, rows_of(float("nan"), rows))
            case "sends half a tensor":
                await self.push(opened, message, ids, good[: len(good) // 2])
            case "sends no ids":
                await self.push(opened, step(rows=rows, ids=False), good)
            case "sends ids outside the vocabulary":
                await self.push(opened, message, pack_ids([1000] * rows), good)
            case "keeps rows that are not there":
                await self.push(opened, step(rows=rows, keep=9), ids, good)
            case "jumps ahead":
                await self.push(opened, step(seq=900, rows=rows), ids, good)
            case "reports a loss":
                await control.send(LinkLost("somebody", "or so it says"))
            case "gives up":
                await control.send(Failed("server", "out of memory"))


MIDDLE_CRIMES = {
    "sends a result": True,
    "sends rows of NaN": False,
    "sends half a tensor": True,
    "sends no ids": True,
    "keeps rows that are not there": True,
    "jumps ahead": True,
    "gives up": True,
    "reports a loss": False,
}
"""Whether the message names the liar."""


@pytest.mark.parametrize("crime", sorted(MIDDLE_CRIMES))
async def test_a_server_in_the_middle_that_lies(swarm: Swarm, crime: str) -> None:
    [last] = await swarm.serve("3:5")
    liar = await Middle(swarm, "0:3", crime=crime).start()
    with pytest.raises(SwarmError) as caught:
        await asyncio.wait_for(swarm.client(heal_timeout_s=1.0).generate("xyz", **OPTIONS), 30.0)
    if MIDDLE_CRIMES[crime]:
        assert liar.peer[-8:] in str(caught.value), caught.value
    assert len(str(caught.value)) > 20
    await swarm.check_free()
    assert last.idle
    await liar.transport.close()
    await swarm.serve("0:3")
    await swarm.answers()


# -- opening ----------------------------------------------------------------------------------------------------


@dataclass
class Opener(FakeServer):
    """Answers OPEN in its own way."""

    manner: str = ""

    async def on_open(self, control: FrameStream, opened: Open) -> None:
        match self.manner:
            case "silence":
                return
            case "garbage":
                await control._stream.write(b"\xff" * 64)
            case "hangs up":
                await control.close()
            case "result":
                await control._stream.write(b"\x00\x00\x00\x09\x00\x07\x97\x07\x00\x00\x00\x00\x00")
            case "busy for ever":
                await control.send(Busy(5.0, "no room"))
            case "busy for an hour":
                await control.send(Busy(3600.0, "no room"))
            case "refuses":
                await control.send(Refused("not you"))
            case "rude words":
                await control.send(Refused("\x1b[31m" + "x" * 390))


@pytest.mark.parametrize(
    ("manner", "error"),
    [
        ("silence", PeerUnreachableError),
        ("garbage", PeerUnreachableError),
        ("hangs up", PeerUnreachableError),
        ("result", PeerUnreachableError),
        ("busy for ever", BusyError),
        ("busy for an hour", BusyError),
        ("refuses", RefusedError),
        ("rude words", RefusedError),
    ],
)
async def test_a_server_that_does_not_open(swarm: Swarm, manner: str, error: type[SwarmError]) -> None:
    """The error names it, nothing stays reserved at the others, and with an alternative the client never notices."""
    await swarm.serve("0:3")
    bad = await Opener(swarm, "3:5", manner=manner).start()
    began_s = swarm.clock.monotonic_s()
    with pytest.raises(error) as caught:
        await swarm.client(busy_timeout_s=60.0).generate("x", **OPTIONS)
    assert bad.peer[-8:] in str(caught.value)
    assert str(caught.value).isprintable()
    assert swarm.clock.monotonic_s() - began_s < 62.0
    await swarm.check_free()
    await swarm.serve("3:5")
    for _ in range(3):  # whichever of the two it tries first
        await swarm.answers()
    await swarm.check_free()


async def test_eight_servers_that_never_answer_delay_one_open_and_not_the_next(swarm: Swarm) -> None:
    await swarm.serve("0:3", "3:5")
    for _ in range(8):
        await Opener(swarm, "0:5", manner="silence").start()
    client = swarm.client(heal_timeout_s=1.0)
    for longest_s in (70.0, 1.0):
        began_s = swarm.clock.monotonic_s()
        await client.generate("x", **OPTIONS)
        assert swarm.clock.monotonic_s() - began_s < longest_s
    await swarm.check_free()


async def test_a_crowd_of_servers_that_never_answer_costs_a_bounded_time(swarm: Swarm) -> None:
    """Anybody may announce any number of servers; two honest ones are among them."""
    await swarm.serve("0:3", "3:5")
    for _ in range(20):
        await Opener(swarm, "0:5", manner="silence").start()
    began_s = swarm.clock.monotonic_s()
    result = await swarm.client(heal_timeout_s=1.0).generate("x", **OPTIONS)
    assert list(result.token_ids) == swarm.reference.greedy("x", len(result.token_ids), eos_token_id=None)
    assert swarm.clock.monotonic_s() - began_s < 120.0
    await swarm.check_free()


async def test_a_server_that_did_not_answer_is_not_tried_again_soon(swarm: Swarm) -> None:
    """Nor is it given up: where no other will do it gets another chance at once."""
    nodes = await swarm.serve("0:3", "3:5")
    silent = await Opener(swarm, "0:5", manner="silence").start()
    client = swarm.client(heal_timeout_s=1.0)
    await client.generate("x", **OPTIONS)
    began_s = swarm.clock.monotonic_s()
    for _ in range(3):
        await client.generate("x", **OPTIONS)
    assert swarm.clock.monotonic_s() - began_s < 1.0
    assert len(silent.opens) == 1
    await swarm.check_free()
    await nodes[0].server.leave()
    with pytest.raises(PeerUnreachableError):
        await client.generate("x", **OPTIONS)
    assert len(silent.opens) == 2
