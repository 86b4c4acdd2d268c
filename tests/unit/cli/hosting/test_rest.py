"""When a server rests: its owner's word, its hours, and what is told of both."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from swarm.cli.hosting.rest import LOOK_EVERY_S, Rest, Timetable
from swarm.cli.output.console import JsonConsole
from swarm.cli.signals import PauseSwitch
from swarm.core.hours import WEEK_MIN, Hours
from swarm.core.spans import Span
from swarm.runtime.clock import VirtualClock
from swarm.runtime.server_state import ServerState
from swarm.server.service import Server

DRAIN_S = 30.0
HOUR_S = 3600.0
WHOSE = " --identity second.key"


@dataclass
class FakeServer:
    """Rests as a server does: at once, or once its sessions are through."""

    clock: VirtualClock
    busy_s: float = 0.0
    said: list[str] = field(default_factory=list)
    table: list[int] = field(default_factory=list)
    config: Any = field(default_factory=lambda: SimpleNamespace(drain_timeout_s=DRAIN_S))
    parts: Any = field(
        default_factory=lambda: SimpleNamespace(engine=SimpleNamespace(info=SimpleNamespace(span=Span(0, 10))))
    )

    async def rest(self) -> None:
        self.said.append("rest")
        await self.clock.sleep(self.busy_s)
        self.said.append("rested")

    async def wake(self) -> None:
        self.said.append("wake")


@dataclass
class Scene:
    clock: VirtualClock
    switch: PauseSwitch
    rest: Rest
    server: FakeServer
    state: ServerState
    events: list[dict[str, Any]]

    def told(self) -> list[str]:
        return [event["event"] for event in self.events]

    async def flip(self, paused: bool) -> None:
        """As the signal does."""
        self.switch._switched(paused)
        await self.clock.advance(0.1)

    def now(self) -> dict[str, Any]:
        return self.state.read(os.getpid())


class Events(JsonConsole):
    def __init__(self, events: list[dict[str, Any]]) -> None:
        super().__init__(io.StringIO())
        self._events = events

    def event(self, name: str, text: str, **fields: object) -> None:
        self._events.append({"event": name, "text": text, **json.loads(json.dumps(fields))})


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def scene(folder: Path, schedule: str = "", *, minute: int = 0) -> Scene:
    """On a Monday, ``minute`` minutes after midnight."""
    clock, switch, events = VirtualClock(), PauseSwitch(), cast(list[dict[str, Any]], [])
    began_s = clock.wall_s()
    timetable = Timetable(
        Hours.parse(schedule) if schedule else None, lambda at_s: (minute + int(at_s - began_s) // 60) % WEEK_MIN
    )
    state = ServerState(folder / "state")
    return Scene(
        clock, switch, Rest(switch, timetable, Events(events), state, clock, WHOSE), FakeServer(clock), state, events
    )


def run(scene: Scene, work: Any) -> None:
    async def both() -> None:
        running = asyncio.create_task(scene.rest.run(cast(Server, scene.server)))
        await scene.clock.advance(0.1)
        try:
            await work()
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    asyncio.run(both())


def test_paused_and_resumed(tmp_path: Path) -> None:
    found = scene(tmp_path)

    async def work() -> None:
        assert found.now() == {"pid": os.getpid(), "state": "serving"}
        await found.flip(True)
        assert found.server.said == ["rest", "rested"]
        assert (found.rest.resting, found.now()["state"]) == ("owner", "paused")
        assert found.rest.calm.locked(), "nobody moves it meanwhile"
        await found.clock.advance(24 * HOUR_S)
        assert found.told() == ["pausing", "paused"]
        await found.flip(False)
        assert found.server.said[2:] == ["wake"]
        assert (found.rest.resting, found.now()["state"]) == ("", "serving")
        assert found.told() == ["pausing", "paused", "resumed"]
        assert f"`python -m swarm resume{WHOSE}` goes on" in found.events[1]["text"]
        assert not found.rest.calm.locked()

    run(found, work)


def test_resumed_while_sessions_finish(tmp_path: Path) -> None:
    found = scene(tmp_path)
    found.server.busy_s = 20.0

    async def work() -> None:
        await found.flip(True)
        assert (found.rest.resting, found.now()["state"]) == ("draining", "draining")
        await found.clock.advance(5.0)
        await found.flip(False)
        assert found.server.said == ["rest", "wake"]
        assert "paused" not in found.told()
        await found.flip(True)
        await found.clock.advance(20.0)
        assert found.server.said[2:] == ["rest", "rested"]

    run(found, work)


def test_hours_begin_and_end_by_themselves(tmp_path: Path) -> None:
    found = scene(tmp_path, "08:00-22:00", minute=12 * 60)

    async def work() -> None:
        await found.clock.advance(9 * HOUR_S)
        assert not found.rest.resting
        await found.clock.advance(HOUR_S + LOOK_EVERY_S)
        assert (found.rest.resting, found.now()["state"]) == ("schedule", "resting")
        assert found.now()["until"] == pytest.approx(found.clock.wall_s() + 10 * HOUR_S, abs=120)
        assert "(in 9 h 59 min)" in found.events[-1]["text"] or "(in 10 h)" in found.events[-1]["text"]
        await found.clock.advance(10 * HOUR_S)
        assert found.server.said == ["rest", "rested", "wake"]

    run(found, work)


def test_a_pause_outlasts_the_hours_and_the_other_way_round(tmp_path: Path) -> None:
    found = scene(tmp_path, "08:00-22:00", minute=21 * 60)

    async def work() -> None:
        await found.flip(True)
        await found.clock.advance(20 * HOUR_S)  # over the night: it is inside its hours again, and still paused
        assert found.rest.resting == "owner"
        await found.clock.advance(6 * HOUR_S)
        await found.flip(False)
        assert found.rest.resting == "schedule"
        assert found.server.said == ["rest", "rested"]

    run(found, work)


def test_outside_its_hours_nothing_is_loaded_yet(tmp_path: Path) -> None:
    found = scene(tmp_path, "mon 08:00-22:00", minute=7 * 60)

    async def both() -> None:
        waiting = asyncio.create_task(found.rest.wait_for_hours())
        await found.clock.advance(0.5 * HOUR_S)
        assert not waiting.done()
        assert found.now()["state"] == "waiting"
        await found.clock.advance(0.5 * HOUR_S + LOOK_EVERY_S)
        assert waiting.done()
        assert not found.rest.resting

    asyncio.run(both())
    assert "Not starting yet" in found.events[0]["text"]


def test_a_signal_before_the_loop_runs_counts(tmp_path: Path) -> None:
    switch = PauseSwitch()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert switch.paused
    os.kill(os.getpid(), signal.SIGUSR2)
    assert not switch.paused


def test_what_a_dead_server_left_is_not_believed(tmp_path: Path) -> None:
    state = ServerState.of(tmp_path / "key")
    state.tell("paused")
    assert state.path.stat().st_mode & 0o777 == 0o600
    assert state.read(os.getpid())["state"] == "paused"
    assert state.read(os.getpid() + 1) == {}
    state.path.write_text("[" * 100_000)
    assert state.read(os.getpid()) == {}
    state.forget()
    state.forget()
    assert list(tmp_path.iterdir()) == []
