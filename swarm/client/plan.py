"""What a chain is opened and mended with: who serves which layers, and what a newcomer is fed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from swarm.core.announcement import Announcement
from swarm.core.ids import ModelId, PeerId
from swarm.core.spans import Span
from swarm.wire.fields import Codec, Priority


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One server of the chain: which layers it runs, and its signed announcement for its predecessor."""

    announcement: Announcement
    record: bytes
    span: Span

    @property
    def peer(self) -> PeerId:
        return self.announcement.peer_id

    @property
    def short(self) -> str:
        """The server for people: its own name, if it has one, and the end of its peer id."""
        name = self.announcement.public_name
        return f"{name} ({self.peer[-8:]})" if name else self.peer[-8:]


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """Everything the OPENs of a chain say."""

    model: ModelId
    stages: Sequence[StagePlan]
    kv_tokens: int
    embed: bool
    head: bool
    codec: Codec = "raw"
    numerics: str = ""
    priority: Priority = "interactive"


@dataclass(frozen=True, slots=True)
class Patch:
    """The places ``[first, end)`` of a chain give way to ``newcomers``, which tile the same layers."""

    first: int
    end: int
    newcomers: tuple[StagePlan, ...]


@dataclass(frozen=True, slots=True)
class Feed:
    """What the client sends where no server can replay: the session's own tokens, from the first one on.

    ``payload(a, b)`` is what a step with the rows ``[a, b)`` carries, ``ids`` says that it begins with token ids, and
    ``horizon`` is the length of the prompt they belong to, 0 for none (see ``Step``).
    """

    payload: Callable[[int, int], Sequence[bytes | memoryview]]
    ids: bool
    horizon: int
