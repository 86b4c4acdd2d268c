"""What a chain is opened and mended with: who serves which layers, and what a newcomer is fed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from swarm.core.announcement import Announcement
from swarm.core.ids import ModelId, PeerId
from swarm.core.spans import Span
from swarm.verification.challenges.commitment import AUDIT_SECRET_BYTES
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


def draw_secret() -> bytes:
    """A session's audit secret r, which nobody can guess."""
    return secrets.token_bytes(AUDIT_SECRET_BYTES)


@dataclass(frozen=True, slots=True)
class ChainPlan:
    """Everything the OPENs of a chain say. They commit to ``audit_secret``, which is not in them."""

    model: ModelId
    stages: Sequence[StagePlan]
    kv_tokens: int
    embed: bool
    head: bool
    codec: Codec = "raw"
    numerics: str = ""
    priority: Priority = "interactive"
    audit_secret: bytes = field(default_factory=draw_secret, repr=False)


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
