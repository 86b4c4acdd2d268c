"""A machine whose clock is wrong learns it from the first node it meets."""

from __future__ import annotations

import asyncio

import pytest
from directory_nodes import Create, address_of

from swarm.dht import clock_watch
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.runtime.clock import SystemClock
from swarm.transport.libp2p import Libp2pTransport

SLOW_S = 40.0


class SlowClock(SystemClock):
    def wall_s(self) -> float:
        return super().wall_s() - SLOW_S


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Clients of other files may live in this process, whose servers are gone."""
    return [record.getMessage() for record in caplog.records if record.name == clock_watch.__name__]


async def test_a_slow_clock_is_told_by_how_much(create: Create, caplog: pytest.LogCaptureFixture) -> None:
    first = await create()
    await create(first)
    assert told(caplog) == []
    address = address_of(first[0])
    transport = await Libp2pTransport.create(None, initial_peers=[address])
    try:
        directory = await HivemindDirectory.create(transport.p2p, [address], SlowClock(), client_mode=True)
        async with asyncio.timeout(20.0):
            while not told(caplog):  # noqa: ASYNC110  # it is told whenever the answer comes
                await asyncio.sleep(0.05)
        await directory.close()
    finally:
        await transport.close()
    [message] = told(caplog)
    assert message.startswith(f"this machine's clock is {SLOW_S:.0f} s behind other nodes' (")
