"""hivemind's handle on a running daemon, which its DHT needs: attached, kept from breaking, and let go of."""

from __future__ import annotations

import asyncio
from typing import Any

from swarm.transport.hivemind_import import P2P
from swarm.transport.p2pd import Daemon


async def attach(daemon: Daemon) -> Any:
    """hivemind's ``P2P`` on ``daemon``; let go of it with ``release``."""
    p2p = await P2P.replicate(daemon.control_maddr)
    p2p._client.control._pending_calls = PendingCalls()
    return p2p


async def release(p2p: Any) -> None:
    """Shut hivemind's handle and wait for the tasks it leaves behind."""
    control = p2p._client.control
    handlers = list(control._handler_tasks.values())
    for task in handlers:
        task.cancel()
    await p2p.shutdown()
    await asyncio.gather(control._read_task, control._write_task, *handlers, return_exceptions=True)


class PendingCalls(dict[Any, Any]):
    """hivemind's table of unary calls in flight, without those already cancelled or answered.

    hivemind sets the result of a call it has just timed out, which raises inside its only reading task and so ends
    every later unary call of the process. A done call that is "not there" is skipped instead.
    """

    def __contains__(self, call_id: object) -> bool:
        future = self.get(call_id)
        return future is not None and not future.done()
