"""A reading of a directory made by hand, in time that stands still unless moved."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sights import NOW_S, PEERS, announced, metrics

from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId, PeerId
from swarm.core.listing import Listing
from swarm.core.model_entry import ModelEntry
from swarm.health.watching.reading import NO_EVIDENCE, Evidence, Reading
from swarm.runtime.clock import VirtualClock

ANNA, BERT, CARL = PEERS[:3]
REAL = "real@main#0123456789abcdef"


def listing(peer: PeerId, *, live: bool = True, sequence: int = 1, **changes: Any) -> Listing:
    told = announced(peer, 0, 2, changes.pop("layers", 6), **changes)
    return Listing(told, b"", metrics(peer, sequence=sequence) if live else None)


class Shelf:
    """A directory by hand, which may fail. Counts whose servers were read."""

    def __init__(self) -> None:
        self.index: list[ModelEntry] = []
        self.shelves: dict[str, list[Listing]] = {}
        self.read: list[str] = []
        self.fails = False

    def add(self, model: str, *peers: PeerId, layers: int = 6) -> None:
        self.index.append(
            ModelEntry(model=model, peer=ANNA, instance=1, sequence=1, expires_s=NOW_S + 600, layer_count=layers)
        )
        self.shelves[model] = [listing(peer, model=model) for peer in peers]

    async def entries(self) -> Sequence[ModelEntry]:
        if self.fails:
            raise NetworkError("the directory does not answer")
        return self.index

    async def servers(self, model: ModelId) -> list[Listing]:
        if self.fails:
            raise NetworkError("the directory does not answer")
        self.read.append(str(model))
        return self.shelves.get(str(model), [])


class Desk:
    """A reading, in time that stands still unless moved."""

    def __init__(self, *wanted: str) -> None:
        self.clock = VirtualClock()
        self.shelf = Shelf()
        directory: Any = self.shelf
        self.reading = Reading(directory, self.clock, wanted)

    async def look(self, after_s: float = 2.0, evidence: Evidence = NO_EVIDENCE) -> None:
        await self.clock.advance(after_s)
        await self.reading.look(evidence)


def name_of(number: int) -> str:
    return f"a{number:04}@main#0123456789abcdef"


def reached(*peers: PeerId) -> Evidence:
    return Evidence(dict.fromkeys(peers, "203.0.113.0/24"), peers)


def whole(desk: Desk, name: str, *peers: PeerId) -> None:
    """A model that each of ``peers`` serves by itself."""
    desk.shelf.add(name)
    desk.shelf.shelves[name] = [Listing(announced(peer, 0, 6, 6, model=name), b"", metrics(peer)) for peer in peers]


def shown(desk: Desk) -> list[str]:
    return [str(one.model) for one in desk.reading.shown()]
