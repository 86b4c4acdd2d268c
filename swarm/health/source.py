"""What the HTTP side needs of a watch."""

from __future__ import annotations

from typing import NoReturn, Protocol

from swarm.health.state import EventState, HistoryState, SwarmState


class Source(Protocol):
    """A ``Watch``, or a test's hand-built states."""

    async def run(self) -> NoReturn:
        """Watch until cancelled."""
        ...

    def state(self) -> SwarmState:
        """The newest; before the first reading one without models."""
        ...

    async def changed(self, revision: int) -> SwarmState:
        """Wait until there is a state of another revision than ``revision``; the newest one then."""
        ...

    async def history(self, model: str, hours: float) -> HistoryState:
        """The last ``hours`` of a model by its id or name; empty columns for one that is not known."""
        ...

    def events(self, after: int = 0, limit: int = 100) -> list[EventState]:
        """Those with a number above ``after``, oldest first; of more than ``limit`` the newest."""
        ...

    async def proof(self, digest: str) -> bytes | None:
        """The proof whose SHA-256 is ``digest`` (hex), if this machine checked and keeps it."""
        ...
