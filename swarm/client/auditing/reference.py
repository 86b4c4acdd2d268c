"""Who computes a suspect's rows again: an own replica, or another server (``auditors``)."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.verification.calibration import Floats
from swarm.verification.strikes import TRUSTED

if TYPE_CHECKING:
    from swarm.engine.replica import Replica


@dataclass(frozen=True, eq=False, slots=True)
class Replay:
    """A stage's rows from position 0 on, to be computed again.

    ``inputs`` is float32 ``[n, hidden]`` as the stage received them, None where it embeds ``token_ids``. ``dtype`` is
    what they were received in. Rows from ``first`` on are wanted. ``horizon`` as in ``Step``.
    """

    span: Span
    numerics: Numerics
    token_ids: tuple[int, ...]
    inputs: Floats | None
    first: int
    horizon: int

    @property
    def rows(self) -> int:
        return len(self.token_ids)


class Reference(Protocol):
    """Computes rows again. ``name`` is ``strikes.TRUSTED`` or the auditor's peer id."""

    @property
    def name(self) -> str: ...

    @property
    def numerics(self) -> Numerics: ...

    async def outputs(self, replay: Replay) -> Floats:
        """``[rows - first, hidden]``; raises ``SwarmError`` if it cannot or does not."""
        ...

    async def embedded(self, token_ids: Sequence[int]) -> Floats | None:
        """The rows that layer 0 reads, ``[n, hidden]``; None if it has no embeddings to show."""
        ...

    async def logits(self, finals: Floats) -> Floats | None:
        """Of rows of the last layer, ``[n, vocabulary]``; None if it has no head to show."""
        ...


class OwnReference:
    """The own replica: nobody can lie in its place. ``replica`` may hold more layers than are asked for."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._turn = asyncio.Lock()
        self.name = TRUSTED
        self.numerics = replica.numerics

    async def outputs(self, replay: Replay) -> Floats:
        """See ``Reference``. Computes beside the loop."""
        raise NotImplementedError

    async def embedded(self, token_ids: Sequence[int]) -> Floats | None:
        raise NotImplementedError

    async def logits(self, finals: Floats) -> Floats | None:
        raise NotImplementedError
