"""When a running server rests: its owner paused it, or it is outside its hours."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from swarm.cli.hosting.limits import local_time
from swarm.cli.output.console import Console
from swarm.cli.signals import PauseSwitch, first_of
from swarm.core.clock import Clock
from swarm.core.hours import Hours
from swarm.models.progress import human_s
from swarm.runtime.server_state import ServerState
from swarm.server.service import Server

LOOK_EVERY_S = 20.0
"""A machine that slept through a change of its hours notices so soon after it woke."""

Wall = Callable[[float], int]
"""Which minute of the week the clock on the wall shows at seconds since 1970."""


class Timetable:
    """Whether a server should rest at a moment, and why: its owner's word counts more than its hours."""

    def __init__(self, hours: Hours | None, wall: Wall) -> None:
        self._hours = hours
        self._wall = wall

    def why(self, now_s: float, *, paused: bool) -> str:
        """``owner``, ``schedule``, or nothing."""
        if paused:
            return "owner"
        hours = self._hours
        return "" if hours is None or hours.open_at(self._wall(now_s)) else "schedule"

    def change_s(self, now_s: float) -> float | None:
        """When the hours begin or end next, None if they never do (seconds since 1970)."""
        return None if self._hours is None else self._hours.next_change(now_s, self._wall)

    def text(self, now_s: float) -> str:
        """Until when it rests."""
        change_s = self.change_s(now_s)
        if change_s is None:
            return "outside its hours"
        return f"outside its hours until {local_time(change_s)} (in {human_s(change_s - now_s)})"


class Rest:
    """Has a server rest and wake. It holds ``calm`` while it rests: nobody moves the server meanwhile.

    ``whose`` is the option that names it to another command.
    """

    def __init__(
        self,
        switch: PauseSwitch,
        timetable: Timetable,
        console: Console,
        state: ServerState,
        clock: Clock,
        whose: str = "",
    ) -> None:
        self.calm = asyncio.Lock()
        self.resting = ""
        """Why it rests now, or nothing."""
        self._switch = switch
        self._timetable = timetable
        self._console = console
        self._state = state
        self._clock = clock
        self._whose = whose

    @property
    def _why(self) -> str:
        return self._timetable.why(self._clock.wall_s(), paused=self._switch.paused)

    async def wait_for_hours(self) -> None:
        """Before anything is loaded: return once there is nothing against serving."""
        while why := self._why:
            self.resting = why
            text, fields = self._told(why)
            self._state.tell("paused" if why == "owner" else "waiting", why=why, **fields)
            self._console.event("resting", f"Not starting yet: {text}.", why=why, **fields)
            while self._why == why:
                await self._look()
        self.resting = ""

    async def run(self, server: Server) -> NoReturn:
        """Until cancelled."""
        self._state.tell("serving")
        while True:
            if self._why:
                async with self.calm:
                    await self._rest(server)
            await self._look()

    async def _rest(self, server: Server) -> None:
        """Rest for as long as there is a reason to."""
        try:
            await self._drain(server)
            while why := self._why:
                if why != self.resting:
                    self._say_resting(why, server)
                await self._look()
        finally:
            self.resting = ""
        await server.wake()
        self._console.event("resumed", f"Serving layers {server.parts.engine.info.span} again.")
        self._state.tell("serving")

    async def _drain(self, server: Server) -> None:
        """Let sessions finish, unless it is called off meanwhile."""
        self.resting = "draining"
        sessions, within_s = len(server.table), server.config.drain_timeout_s
        self._state.tell("draining", sessions=sessions)
        text = f"{sessions} running may finish within {within_s:g} s" if sessions else "none is running"
        self._console.event("pausing", f"Taking no new sessions; {text}.", sessions=sessions)
        draining = asyncio.create_task(server.rest())
        try:
            with self._console.waiting(draining_text(server)):
                while self._why and not draining.done():
                    await self._look(draining)
            if draining.done():
                await draining
        finally:
            draining.cancel()
            with suppress(asyncio.CancelledError):
                await draining

    async def _look(self, *others: asyncio.Future[None]) -> None:
        """Return when something may have changed."""
        pause = asyncio.create_task(self._clock.sleep(LOOK_EVERY_S))
        try:
            await first_of(self._switch.changed, pause, *others)
        finally:
            pause.cancel()
            self._switch.changed.clear()

    def _told(self, why: str) -> tuple[str, dict[str, object]]:
        now_s = self._clock.wall_s()
        if why == "owner":
            return f"paused by its owner; `python -m swarm resume{self._whose}` goes on", {"until": None}
        return self._timetable.text(now_s), {"until": self._timetable.change_s(now_s)}

    def _say_resting(self, why: str, server: Server) -> None:
        self.resting = why
        text, fields = self._told(why)
        span = server.parts.engine.info.span
        self._state.tell("paused" if why == "owner" else "resting", why=why, **fields)
        self._console.event(
            "paused" if why == "owner" else "resting",
            f"RESTING: {text}. Layers {span} stay in memory.",
            why=why,
            **fields,
        )


def draining_text(server: Server) -> Callable[[float], str]:
    """What is still left to wait for."""
    within_s = server.config.drain_timeout_s

    def text(seconds: float) -> str:
        left = len(server.table)
        sessions = "1 session" if left == 1 else f"{left} sessions"
        return f"draining: {sessions} left, {human_s(within_s - seconds)} at most"

    return text
