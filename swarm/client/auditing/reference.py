"""Who computes a suspect's rows again: an own replica, or another server (``auditors``)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from swarm.core.errors import MisuseError
from swarm.core.numerics import Numerics
from swarm.core.spans import Span
from swarm.verification.standings.strikes import TRUSTED
from swarm.verification.verdicts.calibration import Floats

if TYPE_CHECKING:
    from swarm.engine.replica import Replica

T = TypeVar("T")


@dataclass(frozen=True, eq=False, slots=True)
class Replay:
    """A stage's rows from position 0 on, to be computed again.

    ``inputs`` is float32 ``[n, hidden]`` as the stage received them, None where it embeds ``token_ids`` ``[n]``. Rows
    from ``first`` on are wanted, of ``hidden`` values. ``horizon`` as in ``Step``.
    """

    span: Span
    numerics: Numerics
    token_ids: tuple[int, ...]
    inputs: Floats | None
    first: int
    hidden: int
    horizon: int = 0

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
        """Of rows of the last layer, float32 ``[n, vocabulary]``; None if it has no head to show."""
        ...


class OwnReference:
    """The own replica: nobody can lie in its place. ``replica`` may hold more layers than are asked for.

    Computes beside the loop, one thing at a time.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._turn = asyncio.Lock()
        self.name = TRUSTED
        self.numerics = replica.numerics

    @property
    def span(self) -> Span:
        return self._replica.info.span

    async def outputs(self, replay: Replay) -> Floats:
        """See ``Reference``; ``MisuseError`` for layers that the replica does not hold."""
        if not self.span.covers(replay.span):
            raise MisuseError(f"a replica of layers {self.span} was asked for {replay.span}")
        inputs = replay.token_ids if replay.inputs is None else np.asarray(replay.inputs, np.float32)
        return await self._run(
            lambda: self._replica.outputs(inputs, span=replay.span, first=replay.first, horizon=replay.horizon)
        )

    async def embedded(self, token_ids: Sequence[int]) -> Floats | None:
        """See ``Reference``."""
        if not self._replica.info.embeddings:
            return None
        return await self._run(lambda: self._replica.embedded(token_ids))

    async def logits(self, finals: Floats) -> Floats | None:
        """See ``Reference``."""
        if not self._replica.info.head:
            return None
        return await self._run(lambda: self._replica.logits(np.asarray(finals, np.float32)))

    async def _run(self, work: Callable[[], T]) -> T:
        async with self._turn:
            return await asyncio.to_thread(work)
