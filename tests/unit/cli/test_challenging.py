"""What is said while a challenge goes on, and how it is stopped."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from swarm.cli.challenging import Going, Steps
from swarm.cli.commands.challenge import Asking
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.output.live_line import Text
from swarm.client.auditing.challenges import Finding
from swarm.client.auditing.suspects import Suspect
from swarm.client.results import Progress
from swarm.core.ids import PeerId
from swarm.core.sampling import SamplingParams
from swarm.core.spans import Span
from swarm.verification.challenges.challenge import Challenge

CHALLENGE = Challenge(b"s" * 32, (1, 2, 3), 64, SamplingParams(), 1.0)
SUSPECT = Suspect(PeerId("12D3KooWabcdefgh"), Span(10, 20), Span(10, 20), "alpha")
NAME = "alpha (abcdefgh) layers 10:20"


class Seen:
    """The phases as they begin, and a clock that is set by hand."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.phases: list[tuple[str, Text]] = []
        self.watch = Going(SUSPECT, lambda phase, text: self.phases.append((phase, text)), lambda: self.now_s).watch

    def said(self, seconds: float) -> str:
        return self.phases[-1][1](seconds)


def test_every_wait_says_what_for_and_how_long() -> None:
    seen = Seen()
    seen.watch.answer(Progress("routing"))
    assert seen.said(3.0) == f"finding a chain through {NAME}: looking for servers, 3 s"
    seen.watch.answer(Progress("waiting", detail="all are busy"))
    assert seen.said(70.0) == f"finding a chain through {NAME}: waiting all are busy, 1 min 10 s"
    seen.watch.answer(Progress("prefill", 0, 56))
    assert seen.said(5.0) == f"asking {NAME}: reading 0/56 tokens (0 %), 5 s"
    seen.now_s = 10.0
    seen.watch.answer(Progress("decode", 1, 256))
    assert seen.said(10.0) == f"asking {NAME}: 1 of up to 256 tokens, 10 s"
    seen.now_s = 20.0
    seen.watch.answer(Progress("decode", 6, 256))
    assert seen.said(20.0) == f"asking {NAME}: 6 of up to 256 tokens, 20 s, at most 8 min 20 s left at this speed"
    seen.watch.doing("settling", 0)
    assert seen.said(2.0) == f"{NAME}: waiting for its last receipts, 10 s at most, 2 s"
    seen.watch.doing("fetching", 311)
    assert seen.said(4.0) == f"{NAME}: fetching 311 rows, 4 s"
    seen.watch.doing("computing", 311)
    assert seen.said(9.0) == f"{NAME}: computing 311 rows again, 9 s"
    assert [phase for phase, _ in seen.phases] == ["finding", "asking", "settling", "fetching", "computing"]


@pytest.mark.parametrize("console_of", [HumanConsole, JsonConsole])
def test_where_no_terminal_is_every_phase_has_its_line(console_of: Any) -> None:
    stream = io.StringIO()
    console: Console = JsonConsole(stream) if console_of is JsonConsole else HumanConsole(stream, stream)
    with Steps(console) as steps:
        steps("asking", lambda seconds: f"asking, {seconds:.0f} s")
        steps("fetching", lambda seconds: f"fetching, {seconds:.0f} s")
    lines = stream.getvalue().splitlines()
    said = [json.loads(line)["what"] for line in lines] if console_of is JsonConsole else lines
    assert said == ["asking, 0 s", "fetching, 0 s"]


def asking(stream: io.StringIO) -> Asking:
    trust: Any = None  # nothing here looks at it
    return Asking(trust, CHALLENGE, None, HumanConsole(stream, stream))


async def test_ctrl_c_says_that_nothing_was_decided_and_lets_the_session_end() -> None:
    stream, stop, ended = io.StringIO(), asyncio.Event(), []
    one = asking(stream)

    async def work() -> None:
        try:
            stop.set()
            await asyncio.Event().wait()
        finally:
            ended.append(stream.getvalue())

    assert await one.unless_told(stop, work()) is None
    assert ended == ["interrupted: nothing was decided\n"], "said at once, then ended in good order"


async def test_what_was_decided_before_ctrl_c_is_told_all_the_same() -> None:
    stream, stop = io.StringIO(), asyncio.Event()
    one = asking(stream)
    found = Finding(SUSPECT, CHALLENGE, "passed", "")

    async def work() -> None:
        one.found = found
        stop.set()
        await asyncio.Event().wait()

    assert await one.unless_told(stop, work()) is found
    assert stream.getvalue() == ""


async def test_what_goes_wrong_is_raised() -> None:
    async def work() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        await asking(io.StringIO()).unless_told(asyncio.Event(), work())
