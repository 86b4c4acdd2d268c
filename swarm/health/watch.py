"""Watches a swarm for a page: reads the directory, asks every server how it is, and keeps what it made of both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from swarm.core.clock import Clock
from swarm.core.version import VERSION
from swarm.dht.protocol import Directory
from swarm.health.state import EventState, HistoryState, ObserverState, SwarmState
from swarm.runtime.reputation import ReputationStore
from swarm.transport.protocol import Transport


@dataclass(frozen=True, slots=True)
class WatchParts:
    """What a watch needs of its node. ``reputation`` is what this machine makes of servers; None: nothing is known."""

    transport: Transport
    directory: Directory
    clock: Clock
    reputation: ReputationStore | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchOptions:
    """``models`` restricts the page to those (whole ids or names; empty: all of the index). ``initial_peers`` go into
    the commands that volunteers copy, where no live server can be named. ``history`` is the file of the last 24 h.
    """

    models: Sequence[str] = ()
    initial_peers: Sequence[str] = ()
    history: Path | str = ":memory:"


class Watch:
    """One page's eyes. Nothing happens before ``run``."""

    def __init__(self, parts: WatchParts, options: WatchOptions | None = None) -> None:
        self._parts = parts
        self._options = options or WatchOptions()
        now_s = parts.clock.wall_s()
        observer = ObserverState(
            peer=str(parts.transport.peer_id),
            since_at=now_s,
            directory_at=None,
            problem="",
            software=f"swarm {VERSION}",
        )
        self._state = SwarmState(at=now_s, revision=1, observer=observer, models=[], events=[])

    async def run(self) -> NoReturn:
        """Watch until cancelled; everything opened is closed then."""
        await asyncio.Event().wait()
        raise AssertionError("the wait ended")

    def state(self) -> SwarmState:
        """The newest; before the first reading one without models."""
        return self._state

    async def changed(self, revision: int) -> SwarmState:
        """Wait until there is a state of another revision than ``revision``; the newest one then."""
        while self._state.revision == revision:
            await self._parts.clock.sleep(1.0)
        return self._state

    async def history(self, model: str, hours: float) -> HistoryState:
        """The last ``hours`` (24 at most) of a model by its id or name; empty columns for one that is not known."""
        return HistoryState(
            model=model, step_s=30.0, at=[], tokens_per_s=[], covered_share=[], servers=[], step_p50_s=[], step_p99_s=[]
        )

    def events(self, after: int = 0, limit: int = 100) -> list[EventState]:
        """Those with a number above ``after``, oldest first; of more than ``limit`` the newest."""
        return []

    async def proof(self, digest: str) -> bytes | None:
        """The proof whose SHA-256 is ``digest`` (hex), if this machine checked and keeps it."""
        return None
