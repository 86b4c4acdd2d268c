"""The doctor on real networks: peers that answer and peers that do not, a wrong clock, a taken port, the way in."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from directory_nodes import Create, address_of, identities, signed
from namespaces import PUBLIC, switch

from swarm.cli.checkup.findings import Finding, Level
from swarm.cli.checkup.network import Network, Place
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.runtime.clock import SystemClock
from swarm.runtime.identity import load_or_create
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.pulse import PulseKeeper

SLOW_S = 40.0
NOBODY = "12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i"
SECRETS = {"HF_TOKEN": "hf_sesame", "SWARM_GATEWAY_API_KEYS": "sesame"}


class SlowClock(SystemClock):
    def wall_s(self) -> float:
        return super().wall_s() - SLOW_S


@pytest.fixture
def closed_port() -> Iterator[int]:
    """One that nobody listens on, and nobody else gets meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


async def looked(place: Place, clock: SystemClock, model: str | None = None) -> dict[str, list[Finding]]:
    """What the checks of the network find, by check."""
    told: list[Finding] = []
    opened: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    opened.set_result(None)
    await Network(place, clock, told.append, 60.0, model, opened).look()
    return {check: [finding for finding in told if finding.check == check] for check in {f.check for f in told}}


def levels(findings: list[Finding]) -> list[Level]:
    return [finding.level for finding in findings]


async def test_what_is_wrong_is_told_one_by_one(create: Create, closed_port: int) -> None:
    """One good peer; the others are told with the reason, and how many are left. This machine's clock is slow."""
    transport, directory = await create()
    await PulseKeeper(transport, SystemClock()).serve()
    [server] = identities(1)
    record, announcement = signed(server)
    await directory.publish(record, announcement)
    taken = transport.addresses[0].split("/")[4]
    stranger = await Libp2pTransport.create(None)
    try:
        peers = [address_of(transport), f"/ip4/127.0.0.1/tcp/{closed_port}/p2p/{NOBODY}", "not an address",
                 address_of(stranger), address_of(transport).replace(str(transport.peer_id), NOBODY)]  # fmt: skip
        told = await looked(Place("127.0.0.1", int(taken), (), peers), SlowClock(), "demo")
    finally:
        await stranger.close()
    assert levels(told["port"]) == [Level.ERROR]
    assert "in use" in told["port"][0].what
    good, *bad = told["peer"]
    assert good.level is Level.OK
    assert "protocol 1, " in good.what
    assert levels(bad) == [Level.WARNING] * 4
    for finding, why in zip(
        bad, ("refused", "is not an address", "does not speak swarm.pulse", "another peer answers"), strict=True
    ):
        assert why in finding.what
        assert "1 of 5 initial peers answer" in finding.what
        assert finding.fix
    [clock] = told["clock"]
    assert clock.level is Level.ERROR
    assert clock.what.startswith(f"{SLOW_S:.0f} s behind other nodes'")
    assert levels(told["reach"]) == [Level.UNKNOWN]
    assert levels(told["swarm"]) == [Level.WARNING]


async def test_nobody_answers(closed_port: int) -> None:
    place = Place("127.0.0.1", 0, (), [f"/ip4/127.0.0.1/tcp/{closed_port}/p2p/{NOBODY}"])
    told = await looked(place, SystemClock())
    assert levels(told["peer"]) == [Level.ERROR]
    assert levels(told["daemon"]) == [Level.OK]
    assert set(told) == {"peer", "daemon"}, "what cannot be told is not"


async def test_what_is_announced() -> None:
    """Names of the domain .invalid are never known."""
    announced = ("/dns4/surely.invalid/tcp/31337", "/ip4/192.168.1.2/tcp/31337", "/dns4/localhost/tcp/31337")
    told = await looked(Place("127.0.0.1", 0, announced, []), SystemClock())
    assert levels(told["announce"]) == [Level.ERROR, Level.OK, Level.OK]


async def test_without_anybody_to_ask_it_says_what_is_unknown() -> None:
    told = await looked(Place("127.0.0.1", 0, (), []), SystemClock())
    assert {check: levels(found) for check, found in told.items()} == {
        "daemon": [Level.OK], "peers": [Level.UNKNOWN], "clock": [Level.UNKNOWN],
    }  # fmt: skip


async def test_the_clock_of_a_node_is_asked_of_the_others(create: Create) -> None:
    first = await create()
    _, second = await create(first)
    [offset_s] = await second.clock_offsets_s()
    assert abs(offset_s) < 1.0
    assert isinstance(second, HivemindDirectory)


def test_the_whole_command_among_public_addresses(launcher: Any) -> None:
    """A peer dials back, relays are offered, nothing secret is printed, and the exit code is that of a healthy node."""
    with switch(2, PUBLIC) as net:
        try:
            first = launcher.run(
                "swarm", "bootstrap", "--identity", str(launcher.folder / "a"), "--json", prefix=net.inside(0)
            )
            address = f"/ip4/{net.address(0)}/tcp/31337/p2p/{load_or_create(launcher.folder / 'a').peer_id}"
            assert json.loads(first.line(60.0))["addresses"] == [address]
            doctor = launcher.run(
                "swarm", "doctor", "--json", "--device", "cpu", "--port", "31400", "--initial-peers", address,
                prefix=["env", *(f"{name}={value}" for name, value in SECRETS.items()), *net.inside(1)],
            )  # fmt: skip
            assert doctor.wait(120.0) == 0, doctor.stderr
            said = [json.loads(line) for line in iter(doctor.lines.get_nowait, None)]
            found = {line["check"]: line for line in said if line["event"] == "check"}
            assert said[-1]["error"] == 0
            assert said[-1]["ok"] == sum(line.get("level") == "ok" for line in said)
            assert found["reach"]["level"] == "ok"
            assert "port 31400 is reachable" in found["reach"]["what"]
            assert found["relay"]["level"] == found["clock"]["level"] == found["port"]["level"] == "ok"
            assert not any(secret in json.dumps(said) for secret in (*SECRETS.values(), net.address(1)))
        finally:
            launcher.end()
