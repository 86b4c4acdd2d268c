"""The network is gone for over a minute, for everybody, and comes back: so do servers and clients, by themselves."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from directory_nodes import MODEL, Create, Node, identities, peers_seen, signed
from namespaces import switch

from swarm.core.keys import Identity
from swarm.dht.hivemind_circle import door_of
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.dht.keeper import JITTER, MAX_PAUSE_S
from swarm.runtime.clock import SystemClock
from swarm.transport.libp2p import Libp2pTransport

OUTAGE_S = 65.0
CUT_OFF_S = 40.0
"""From the outage's begin until a server has noticed and said so."""
BACK_S = 30.0
"""From its end until a server says that it is back, and until a client's answers come again."""
TOKENS = 8
LONG = 150
TORN_S = 120.0
"""For the rest of the answer that the outage met, if it goes on."""


class Client:
    """The process that asks."""

    def __init__(self, process: Any) -> None:
        self.process = process
        self.said: list[dict[str, Any]] = []

    def ask(self, name: str, count: int) -> None:
        self.process.process.stdin.write(f"{name} {count}\n")
        self.process.process.stdin.flush()

    def heard(self, name: str, timeout_s: float) -> dict[str, Any]:
        """What it says to ``name``; other answers that come first are kept."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := [said for said in self.said if said["name"] == name]):
            self.said.append(json.loads(self.process.line(max(deadline_s - time.monotonic(), 0.01)) or "null"))
        return found[0]


def test_a_minute_without_network_is_survived_by_servers_and_clients(launcher: Any) -> None:
    """The server through which all others came is cut off like everybody else."""
    with switch(3) as net:
        try:
            options = ("--host", "0.0.0.0", "--dtype", "float32")
            first = launcher.server("0:15", *options, prefix=net.inside(0)).ready()
            second = launcher.server("15:30", *options, join=first.address, prefix=net.inside(1))
            script = str(Path(__file__).parent / "outage_client.py")
            client = Client(launcher.run(script, first.address, prefix=net.inside(2)))
            second.ready()
            client.heard("connected", 60.0)
            client.ask("before", TOKENS)
            tokens = client.heard("before", 60.0)["tokens"]
            assert len(tokens) == TOKENS

            client.ask("during", LONG)
            time.sleep(1.0)
            net.off()
            began_s = time.monotonic()
            for server in (first, second):
                server.event("cut_off", began_s + CUT_OFF_S - time.monotonic())
            time.sleep(max(began_s + OUTAGE_S - time.monotonic(), 0.0))
            assert [server.process.poll() for server in (first, second, client.process)] == [None] * 3
            net.on()
            back_s = time.monotonic()
            check_recovery(client, tokens, back_s)
            for server in (first, second):
                outage = server.event("back", back_s + BACK_S - time.monotonic())
                assert OUTAGE_S - CUT_OFF_S < outage["seconds"] < OUTAGE_S + BACK_S
            check_torn(client.heard("during", TORN_S), tokens)
            assert [event["event"] for event in second.events].count("cut_off") == 1
        finally:
            launcher.end()  # before its namespaces go


def check_recovery(client: Client, tokens: list[int], since_s: float) -> None:
    """The client asks again and again, as its user would, until the right answer comes."""
    for number in range(1000):
        client.ask(f"after{number}", TOKENS)
        said = client.heard(f"after{number}", BACK_S)
        if "error" not in said:
            break
        assert time.monotonic() < since_s + BACK_S, f"still: {said['error']}"
        time.sleep(0.5)
    assert said["tokens"] == tokens
    assert time.monotonic() < since_s + BACK_S


def check_torn(said: dict[str, Any], tokens: list[int]) -> None:
    """The answer that the outage met was finished after all, or ended with a reason and the tokens that are valid."""
    assert said["tokens"][:TOKENS] == tokens[: len(said["tokens"])]
    assert said.get("error") or len(said["tokens"]) == LONG


async def test_a_first_node_that_was_restarted_is_found_by_those_who_know_each_other(
    create: Create, tmp_path: Path
) -> None:
    """It has forgotten them, and they have no need of it."""
    key = tmp_path / "first.key"
    key.write_bytes(Identity(os.urandom(32)).to_protobuf())
    first = await start_first(key, 0)
    others = [await create(first), await create(first)]
    [server] = identities(1)
    await others[0][1].publish(*signed(server))
    port = int(first[0].addresses[0].rpartition("/")[2])
    await stop(first)
    async with asyncio.timeout(20.0):  # until nobody counts on it any more
        while any(first[0].peer_id in directory.keeper._circle.known() for _, directory in others):
            for _, directory in others:
                await directory.servers(MODEL)
            await asyncio.sleep(0.1)
    assert not any(directory.keeper.alone for _, directory in others)

    again = await start_first(key, port)
    try:
        async with asyncio.timeout(MAX_PAUSE_S * JITTER[1] + 10.0):
            while await peers_seen(again[1]) != [server.peer_id]:  # noqa: ASYNC110  # the others look in real time
                await asyncio.sleep(0.2)
    finally:
        await stop(again)


@pytest.mark.parametrize(
    ("address", "door"),
    [
        ("/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWA", ("192.0.2.1", 31337)),
        ("/ip6/2001:db8::1/tcp/1", ("2001:db8::1", 1)),
        ("/dns4/swarm.example/tcp/443/wss", ("swarm.example", 443)),
        ("/ip4/192.0.2.1/tcp/1/p2p/12D3KooWA/p2p-circuit/p2p/12D3KooWB", None),
        ("/ip4/192.0.2.1/udp/1/quic-v1", None),
        ("/ip4/192.0.2.1/tcp/x", None),
        ("/ip4/192.0.2.1", None),
        ("", None),
    ],
)
def test_where_a_plain_connection_can_knock(address: str, door: tuple[str, int] | None) -> None:
    assert door_of(address) == door


async def start_first(key: Path, port: int) -> Node:
    transport = await Libp2pTransport.create(key, port=port)
    return transport, await HivemindDirectory.create(transport.p2p, [], SystemClock())


async def stop(node: Node) -> None:
    transport, directory = node
    await directory.close()
    await transport.close()
