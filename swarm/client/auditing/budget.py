"""How many bytes audits may fetch in a stretch of time."""

from __future__ import annotations

from collections import deque

HOUR_S = 3600.0


class Budget:
    """``limit_bytes`` in any ``window_s``, checked before an audit begins: the last one may go over it.

    It has no clock: the caller says what time it is.
    """

    def __init__(self, limit_bytes: float, window_s: float = HOUR_S) -> None:
        self._limit_bytes = limit_bytes
        self._window_s = window_s
        self._spent: deque[tuple[float, int]] = deque()

    def spend(self, now_s: float, byte_count: int) -> None:
        """So much was fetched."""
        self._spent.append((now_s, byte_count))

    def wait_s(self, now_s: float) -> float:
        """How long until less than the limit was spent within the window; 0 if that is so now."""
        while self._spent and self._spent[0][0] <= now_s - self._window_s:
            self._spent.popleft()
        spent = sum(count for _, count in self._spent)
        for at_s, count in self._spent:
            if spent < self._limit_bytes:
                break
            spent -= count
            if spent < self._limit_bytes:
                return at_s + self._window_s - now_s
        return 0.0
