"""The last few states of a watch, encoded once for however many read them."""

from __future__ import annotations

import asyncio
import secrets
import zlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import msgspec

from swarm.core.clock import Clock
from swarm.health.source import Source
from swarm.health.state import SwarmState
from swarm.health.web.patches import difference

KEPT = 8
"""States that patches can be made from: a reader who is further behind gets a whole one."""
LEVEL = 3
"""Of deflate: several times as fast as the usual 6, for a tenth more bytes."""


@dataclass(frozen=True)
class Encoded:
    """Bytes, and the same packed as raw deflate blocks that may follow any others of their kind (RFC 1951)."""

    plain: bytes

    @cached_property
    def packed(self) -> bytes:
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        return packer.compress(self.plain) + packer.flush(zlib.Z_SYNC_FLUSH)

    @cached_property
    def gzipped(self) -> bytes:
        """As one whole gzip file (RFC 1952)."""
        return GZIP_HEAD + self.packed + gzip_tail(zlib.crc32(self.plain), len(self.plain))


GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"


def gzip_tail(crc: int, length: int) -> bytes:
    """What ends a gzip file of packed pieces whose bytes in all have this CRC-32 and length."""
    return b"\x03\x00" + crc.to_bytes(4, "little") + (length & 0xFFFFFFFF).to_bytes(4, "little")


class Feed:
    """Follows ``source``, once in ``pace_s`` at most. ``heard`` is called with every state, the present one included.

    ``closed`` is set at the end, for those who wait.
    """

    def __init__(
        self, source: Source, clock: Clock, *, pace_s: float, heard: Callable[[SwarmState], None] = lambda state: None
    ) -> None:
        self._source = source
        self._clock = clock
        self._pace_s = pace_s
        self._heard = heard
        # Revisions begin anew with every process, and a reader may come back from the one before.
        self._run = secrets.token_hex(4)
        self._states: OrderedDict[int, SwarmState] = OrderedDict()
        self._whole: tuple[int, Encoded] | None = None
        self._patches: dict[int, Encoded] = {}
        self._moved = asyncio.Event()
        self.closed = asyncio.Event()
        self._take(source.state())

    @property
    def newest(self) -> SwarmState:
        """The state that readers are brought to."""
        return self._states[next(reversed(self._states))]

    async def follow(self) -> NoReturn:
        """Take every new state until cancelled."""
        while True:
            self._take(await self._source.changed(self.newest.revision))
            await self._clock.sleep(self._pace_s)

    def close(self) -> None:
        """Let everybody go who waits."""
        self.closed.set()
        self._moved.set()

    async def moved_from(self, revision: int) -> None:
        """Return once there is a newer state than ``revision``, or the feed is closed."""
        while self.newest.revision == revision and not self.closed.is_set():
            await self._moved.wait()

    def mark(self, revision: int) -> str:
        """A revision's name among those of all processes, fit for an ``ETag`` or an event's ``id``."""
        return f"{self._run}-{revision}"

    def known(self, mark: str) -> int | None:
        """The revision of a mark, if a patch can still be made from it."""
        run, _, revision = mark.partition("-")
        if run != self._run or not revision.isdecimal() or len(revision) > 16:
            return None
        return int(revision) if int(revision) in self._states else None

    def whole(self) -> Encoded:
        """The newest state as JSON."""
        newest = self.newest
        if self._whole is None or self._whole[0] != newest.revision:
            self._whole = (newest.revision, Encoded(msgspec.json.encode(newest)))
        return self._whole[1]

    def event(self, base: int | None) -> Encoded:
        """The event that brings a reader of revision ``base`` (None: of none) to the newest state."""
        old = self._states.get(base) if base is not None else None
        key = -1 if old is None else old.revision
        if key not in self._patches:
            self._patches[key] = Encoded(self._state_event() if old is None else self._patch_event(old))
        return self._patches[key]

    def _state_event(self) -> bytes:
        return self._framed("state", self.whole().plain)

    def _patch_event(self, old: SwarmState) -> bytes:
        return self._framed("patch", msgspec.json.encode(difference(old, self.newest)))

    def _framed(self, kind: str, data: bytes) -> bytes:
        """JSON has no line breaks, so one ``data`` line is enough."""
        head = f"event: {kind}\nid: {self.mark(self.newest.revision)}\ndata: "
        return head.encode() + data + b"\n\n"

    def _take(self, state: SwarmState) -> None:
        self._heard(state)
        self._states[state.revision] = state
        while len(self._states) > KEPT:
            self._states.popitem(last=False)
        self._patches.clear()
        self._moved.set()
        self._moved = asyncio.Event()
