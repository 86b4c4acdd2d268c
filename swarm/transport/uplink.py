"""How fast this machine can send, from what it sends anyway.

A write that returns at once only filled a buffer, and one that waits may wait for a peer that reads slowly. So only
bursts count: after a quiet time, when every buffer on the way and the receiver's own queue are empty, as many bytes as
those queues take, if sending them took a time that can be measured. What is left is limited by the sender's line, or
looks slower than it is; therefore the largest of late values counts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from swarm.core.clock import Clock

QUIET_S = 0.5
"""Before a burst, nothing was being sent for so long."""
BUFFER_BYTES = 512 * 1024
"""Of every stream: what a write may leave in buffers of this machine when it returns."""
BURST_BYTES = 4 * 1024 * 1024
"""Of a burst, what counts: receivers queue twice as much before they make a sender wait."""
MIN_BYTES = 512 * 1024
"""A burst that sent less beyond the buffers measures those and not the line."""
SMALL_BYTES = 64 * 1024
"""Less than this leaves every buffer as good as empty: a decode step makes nobody busy."""
MIN_S = 0.005
DECLINE = 0.1
"""By this share of the difference a lower measurement lowers the estimate."""


class UplinkMeter:
    """One for all streams of a node. ``mbps`` is None until a burst was measured, in Mbit/s from then on.

    ``sent_bytes`` counts all that was written, whether or not it measured anything. ``whole`` measures too what this
    one does; see ``part``.
    """

    def __init__(self, clock: Clock, whole: UplinkMeter | None = None) -> None:
        self.sent_bytes = 0
        self._clock = clock
        self._whole = whole
        self._writers = 0
        self._buffers = 0
        self._bytes = 0
        self._began_s = 0.0
        self._busy_s = float("-inf")
        self._counts = False
        self.mbps: float | None = None

    def part(self) -> UplinkMeter:
        """A meter of some of the node's streams, those to one peer: what else is sent meanwhile makes it read less."""
        return UplinkMeter(self._clock, self)

    @contextmanager
    def sending(self, byte_count: int) -> Iterator[None]:
        """Around a write of ``byte_count`` bytes; one that fails does not count."""
        self._begin(byte_count)
        sent_bytes = 0
        try:
            yield
            sent_bytes = byte_count
        finally:
            self._end(sent_bytes)

    def _begin(self, byte_count: int) -> None:
        if self._whole is not None:
            self._whole._begin(byte_count)
        if self._writers == 0:
            self._began_s, self._bytes, self._buffers = self._clock.monotonic_s(), 0, 0
            self._counts = self._began_s - self._busy_s >= QUIET_S
        self._writers += 1
        self._buffers += byte_count >= SMALL_BYTES

    def _end(self, sent_bytes: int) -> None:
        if self._whole is not None:
            self._whole._end(sent_bytes)
        self.sent_bytes += sent_bytes
        self._writers -= 1
        self._bytes += sent_bytes
        now_s = self._clock.monotonic_s()
        if self._bytes >= SMALL_BYTES:
            self._busy_s = now_s
        if self._counts and (self._writers == 0 or self._bytes >= BURST_BYTES):
            self._counts = False
            self._take(self._bytes - self._buffers * BUFFER_BYTES, now_s - self._began_s)

    def _take(self, sent_bytes: int, took_s: float) -> None:
        if sent_bytes < MIN_BYTES or took_s < MIN_S:
            return
        mbps = 8e-6 * sent_bytes / took_s
        if self.mbps is None or mbps > self.mbps:
            self.mbps = mbps
        else:
            self.mbps += DECLINE * (mbps - self.mbps)
