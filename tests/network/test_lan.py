"""Servers and clients that find each other by multicast DNS, through real sockets, without any address."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from namespaces import PUBLIC, switch
from zeroconf.asyncio import AsyncServiceInfo, AsyncZeroconf

from swarm.client.blocking import SwarmModel
from swarm.core.errors import ConfigError, NetworkError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.transport.lan import Notice
from swarm.transport.lan_mdns import SERVICE, MdnsNetwork

LOOPBACK = "127.0.0.1"
WITHIN_S = 20.0
ONE, OTHER = (Identity(bytes([number]) * 32).peer_id for number in (1, 2))


@pytest.fixture
def name() -> str:
    """Of a swarm that no other test of this machine looks for."""
    return uuid4().hex


@pytest.fixture
async def near() -> AsyncIterator[Callable[..., Any]]:
    opened: list[MdnsNetwork] = []

    async def network(swarm: str) -> MdnsNetwork:
        opened.append(await MdnsNetwork.open(host=LOOPBACK, swarm=swarm))
        return opened[-1]

    yield network
    for each in opened:
        await each.close()


def notice(peer: PeerId, swarm: str = "") -> Notice:
    return Notice(peer, (f"/ip4/{LOOPBACK}/tcp/4001",), swarm)


def shout(datagrams: Iterable[bytes]) -> None:
    """Anything at all, to all who listen for multicast DNS on this machine."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as mouth:
        mouth.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(LOOPBACK))
        for datagram in datagrams:
            mouth.sendto(datagram, ("224.0.0.251", 5353))


async def gone(network: MdnsNetwork) -> None:
    deadline_s = time.monotonic() + WITHIN_S
    while network.heard():
        assert time.monotonic() < deadline_s, "still heard"
        await asyncio.sleep(0.05)


async def test_told_heard_and_taken_back(near: Callable[..., Any], name: str) -> None:
    one, other = await near(name), await near(name)
    await one.advertise(notice(ONE))
    await other.advertise(notice(OTHER))
    await one.wait_news()
    await other.wait_news()
    assert list(one.heard()) == [notice(OTHER, name)]
    assert list(other.heard()) == [notice(ONE, name)]
    await one.close()
    await gone(other)


async def test_garbage_of_strangers_is_dropped_and_the_rest_heard(near: Callable[..., Any], name: str) -> None:
    network = await near(name)
    stranger = AsyncZeroconf(interfaces=[LOOPBACK])
    try:
        told = [
            {},
            {b"peer": b"\xff" * 200},
            {b"peer": OTHER.encode(), b"addr0": b"/ip4/8.8.8.8/tcp/1", b"swarm": name.encode()},
            {b"peer": None, b"addr0": None},
        ]
        services = [
            AsyncServiceInfo(SERVICE, f"<x> {number}.{SERVICE}", port=number, properties=properties,
                             parsed_addresses=[LOOPBACK], server=f"stranger-{number}.local.")
            for number, properties in enumerate(told)
        ]  # fmt: skip
        await asyncio.gather(*map(stranger.async_register_service, services))
        shout(random.Random(7).randbytes(size) for size in range(0, 400, 8))
        honest = await near(name)
        await honest.advertise(notice(ONE))
        await network.wait_news()
        assert list(network.heard()) == [notice(ONE, name)]
    finally:
        await stranger.async_close()


async def test_loopback_alone_is_nothing_to_tell_others(name: str) -> None:
    """Others would pass it over, so whoever tells nothing else must hear that nobody finds him."""
    network = await MdnsNetwork.open(swarm=name)
    try:
        for addresses in ((f"/ip4/{LOOPBACK}/tcp/4001",), (f"/ip4/{LOOPBACK}/tcp/4001", "/ip4/8.8.8.8/tcp/4001")):
            with pytest.raises(NetworkError, match="no address that machines near by can dial"):
                await network.advertise(Notice(ONE, addresses, name))
    finally:
        await network.close()


async def test_an_interface_is_an_address() -> None:
    with pytest.raises(ConfigError, match="not an IP address"):
        await MdnsNetwork.open(host="localhost")


def test_two_servers_that_start_at_once_are_one_swarm_and_a_client_finds_it(launcher: Any, name: str) -> None:
    """Each chooses its layers by itself: they hold the whole model only if each knew of the other."""
    servers = [launcher.server("auto", "--num-blocks", "15", lan=name) for _ in range(2)]
    spans = sorted(tuple(server.event("blocks")["span"]) for server in servers)
    assert spans == [(0, 15), (15, 30)]
    for server in servers:
        server.ready()
    began = [server for server in servers if any(event["event"] == "alone" for event in server.events)]
    assert len(began) <= 1  # on a busy machine one may be up only when the other has looked long enough
    with SwarmModel.connect("demo", lan=name, host=LOOPBACK) as model:
        assert [(stage.start, stage.end) for stage in model.generate("Hello", max_new_tokens=2).chain] == spans
    for server in servers:
        server.signal(signal.SIGINT)
    for server in servers:
        assert server.wait() == 0
    after = launcher.run("swarm", "status", "--lan", "--lan-name", name, "--host", LOOPBACK)
    assert after.wait(60.0) == 4
    assert "nobody on the local network answered" in after.stderr


def test_machines_of_one_network_find_each_other(launcher: Any, tmp_path: Path, name: str) -> None:
    """As they come, listening on every interface, and with no address at hand; on a campus, whose are public."""
    near = ("--lan", "--lan-name", name, "--json")
    with switch(2, PUBLIC) as machines:
        try:
            key = ("--identity", str(tmp_path / "first.key"))
            first = launcher.run("swarm", "bootstrap", *near, *key, prefix=machines.inside(0))
            while (line := first.line(60.0)) is not None and json.loads(line)["event"] != "ready":
                continue
            assert line is not None, first.stderr
            asked = launcher.run("swarm", "status", *near, prefix=machines.inside(1))
            assert asked.wait(60.0) == 0, asked.stderr
            first.signal(signal.SIGINT)
            assert first.wait() == 0
        finally:
            launcher.end()  # before its namespaces go
