"""Time as an argument: the pure floors see it only through this protocol."""

from __future__ import annotations

from typing import Protocol


class Clock(Protocol):
    """Two clocks: one that never jumps, for durations, and one that other machines share, for expiries."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary fixed moment; never goes back."""
        ...

    def wall_s(self) -> float:
        """Seconds since 1970 UTC, as near to other peers' as this machine knows."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds`` of this clock."""
        ...
