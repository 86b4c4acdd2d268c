"""Inbound streams: each handler in a task that somebody owns, bounded in number, never able to hurt the loop."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter

from swarm.core.errors import SwarmError
from swarm.core.ids import PeerId
from swarm.transport.protocol import Stream, StreamHandler

MAX_INBOUND_STREAMS = 4096
MAX_INBOUND_STREAMS_PER_PEER = 512
SHARE = 8
"""One peer may hold this fraction of what is left: where a few peers grab all they can, newcomers find room."""

_log = logging.getLogger(__name__)


class HandlerTasks:
    """Owns the tasks of a transport's inbound streams, and closes each stream when its handler is done."""

    def __init__(
        self, *, max_streams: int = MAX_INBOUND_STREAMS, max_per_peer: int = MAX_INBOUND_STREAMS_PER_PEER
    ) -> None:
        self._max_streams = max_streams
        self._max_per_peer = max_per_peer
        self._tasks: set[asyncio.Task[None]] = set()
        self._per_peer: Counter[PeerId] = Counter()
        self._closed = False

    def __len__(self) -> int:
        return len(self._tasks)

    def admits(self, peer: PeerId) -> bool:
        """False if ``peer`` or everybody together holds as many streams as allowed, or after ``close``."""
        left = self._max_streams - len(self._tasks)
        allowed = min(self._max_per_peer, -(-left // SHARE))
        return not self._closed and self._per_peer[peer] < allowed

    def start(self, protocol: str, handler: StreamHandler, stream: Stream) -> None:
        """Run ``handler`` on ``stream`` in a task of its own. The caller has asked ``admits`` first."""
        self._per_peer[stream.peer] += 1
        task = asyncio.create_task(_serve(protocol, handler, stream), name=f"stream {protocol}")
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._forget(done, stream.peer))

    def _forget(self, task: asyncio.Task[None], peer: PeerId) -> None:
        self._tasks.discard(task)
        self._per_peer[peer] -= 1
        if self._per_peer[peer] <= 0:
            del self._per_peer[peer]

    async def close(self) -> None:
        """Cancel every handler and wait until each has closed its stream. Safe to call from inside a handler."""
        self._closed = True
        waiting = [task for task in self._tasks if task is not asyncio.current_task()]
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


async def _serve(protocol: str, handler: StreamHandler, stream: Stream) -> None:
    try:
        await handler(stream)
    except SwarmError as error:
        _log.debug("stream %s from %s ended: %s", protocol, stream.peer, error)
    except Exception as error:
        _log.error("the handler of %s failed on a stream from %s: %r", protocol, stream.peer, error)
        _log.debug("where it failed", exc_info=True)
    finally:
        await stream.close()
