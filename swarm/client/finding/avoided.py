"""Servers that failed this client, or stand accused, which it tries only where no other will do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from swarm.core.ids import PeerId

AVOID_S = 60.0
"""For so long at first: an announcement outlives its server by a minute, and to dial a dead machine takes seconds."""
MAX_AVOID_S = 600.0
"""A server that fails time and again is avoided twice as long each time, up to this."""


@dataclass(frozen=True, slots=True)
class _Failed:
    until_s: float
    length_s: float


def _nobody() -> frozenset[PeerId]:
    return frozenset()


class Avoided:
    """Remembers failures. It has no clock: the caller says what time it is.

    ``accused`` says who else is to be avoided at the moment of the question.
    """

    def __init__(self, accused: Callable[[], frozenset[PeerId]] = _nobody) -> None:
        self._accused = accused
        self._failed: dict[PeerId, _Failed] = {}

    def note(self, peer: PeerId, now_s: float) -> None:
        """``peer`` has failed; again, if as much time as it was avoided for has not passed since then."""
        self._forget(now_s)
        before = self._failed.get(peer)
        length_s = AVOID_S if before is None else min(2 * before.length_s, MAX_AVOID_S)
        self._failed[peer] = _Failed(now_s + length_s, length_s)

    def at(self, now_s: float) -> frozenset[PeerId]:
        """Whom to avoid now."""
        self._forget(now_s)
        return frozenset(peer for peer, failed in self._failed.items() if failed.until_s > now_s) | self._accused()

    def _forget(self, now_s: float) -> None:
        self._failed = {
            peer: failed for peer, failed in self._failed.items() if failed.until_s + failed.length_s > now_s
        }
