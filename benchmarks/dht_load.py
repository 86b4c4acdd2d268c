"""A busy DHT: another node that looks up and stores records at the servers under test, at a fixed rate.

It runs in a process of its own (``python -m benchmarks.dht_load ADDRESS ...``), so that it competes with the servers
for their daemons and loops, not with the client for one interpreter.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress

from swarm.core.announcement import Announcement
from swarm.core.errors import NetworkError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.numerics import Numerics
from swarm.core.records import sign_record
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.runtime.clock import SystemClock
from swarm.transport.libp2p import Libp2pTransport

READY = "loading\n"
CALLS_PER_S = 20
"""Lookups and stores a second, in turns: what about a hundred servers and clients would ask of one node."""


@contextmanager
def busy_dht(peers: Sequence[str]) -> Iterator[None]:
    """Load the servers' DHT while the block runs, under a model id of its own."""
    command = [sys.executable, "-m", "benchmarks.dht_load", *peers]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or process.stdout.readline() != READY:
                raise NetworkError("the load on the DHT did not start")
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30.0)


async def run(peers: Sequence[str]) -> None:
    """Join, say so, and load the DHT until cancelled."""
    clock = SystemClock()
    transport = await Libp2pTransport.create(None, initial_peers=peers)
    directory = await HivemindDirectory.create(transport.p2p, peers, clock, client_mode=True)
    print(READY, end="", flush=True)
    try:
        await _load(directory, clock)
    finally:
        await directory.close()
        await transport.close()


async def _load(directory: HivemindDirectory, clock: SystemClock) -> None:
    model = ModelId("load", "main", secrets.token_hex(8))
    identities = [Identity(secrets.token_bytes(32)) for _ in range(50)]
    running: set[asyncio.Task[None]] = set()
    try:
        for turn in range(10**9):
            task = asyncio.create_task(_call(directory, model, identities[turn % 50], clock, store=turn % 2 == 0))
            running.add(task)
            task.add_done_callback(running.discard)
            await asyncio.sleep(1 / CALLS_PER_S)
    finally:  # calls in flight end by themselves: hivemind does not tidy up after a cancelled one
        await asyncio.gather(*running, return_exceptions=True)


async def _call(
    directory: HivemindDirectory, model: ModelId, identity: Identity, clock: SystemClock, *, store: bool
) -> None:
    try:
        if not store:
            await directory.servers(model)
            return
        now_s = clock.wall_s()
        announcement = Announcement(
            model=str(model),
            layer_count=30,
            peer=identity.peer_id,
            start=0,
            end=10,
            numerics=Numerics("float32"),
            instance=1,
            sequence=int(now_s * 1000),
            started_s=now_s,
            expires_s=now_s + 60,
        )
        await directory.publish(sign_record(identity, announcement), announcement)
    except NetworkError:
        return  # the load goes on, whatever one call meets


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(run(sys.argv[1:]))
