"""A server behind a NAT: it waits until strangers can reach it, and announces the way that holds at the time."""

from __future__ import annotations

import asyncio
import io
import json
from typing import Any

import pytest

from swarm.cli.hosting.reachability import LOOK_EVERY_S, follow, wait_reachable
from swarm.cli.output.console import JsonConsole
from swarm.core.announcement import Announcement, Reach, State
from swarm.core.errors import PeerUnreachableError
from swarm.core.ids import ModelId
from swarm.core.keys import Identity
from swarm.core.limits import MAX_ADDRESSES
from swarm.core.numerics import Numerics
from swarm.dht.memory import MemoryDirectory, MemoryDirectoryStore
from swarm.runtime.clock import VirtualClock
from swarm.server.config import ServerConfig
from swarm.server.reports.announcer import Announcer

MODEL = ModelId("m", "r", "0" * 16)
IDENTITY = Identity(bytes(32))
HOME = "/ip4/192.168.1.7/tcp/31337"
RELAYED = "/ip4/8.8.8.8/tcp/1/p2p/12D3KooWGzc2rWz44EuzugTtqHrkn7iqXTnBzwB8vat8nD2tkw1i/p2p-circuit"


class Node:
    """A transport whose addresses a test changes."""

    def __init__(self) -> None:
        self.addresses: tuple[str, ...] = (HOME,)
        self.now = Reach.UNREACHABLE
        self.looks = 0
        self.broken = False

    async def reach(self) -> Reach:
        self.looks += 1
        if self.broken:
            raise PeerUnreachableError("the local libp2p daemon is gone")
        return self.now

    def find_relay(self) -> None:
        self.addresses, self.now = (RELAYED, HOME), Reach.RELAYED


class Setting:
    """A node, its announcer in a directory, and what was said."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        now_s = self.clock.wall_s()
        base = Announcement(
            model=str(MODEL), layer_count=4, peer=IDENTITY.peer_id, start=0, end=4, numerics=Numerics("float32"),
            addresses=(HOME,), reach=Reach.UNREACHABLE, state=State.ONLINE, instance=1, sequence=0,
            started_s=now_s, expires_s=now_s + 1,
        )  # fmt: skip
        self.directory = MemoryDirectory(MemoryDirectoryStore(self.clock))
        self.announcer = Announcer(self.directory, IDENTITY, self.clock, base, ServerConfig())
        self.node = Node()
        self.out = io.StringIO()
        self.console = JsonConsole(self.out)

    @property
    def said(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


@pytest.fixture
def setting() -> Setting:
    return Setting()


async def test_a_server_waits_loudly_until_a_relay_is_found(setting: Setting) -> None:
    node, announcer = setting.node, setting.announcer
    waiting = asyncio.create_task(wait_reachable(node, announcer, setting.console, setting.clock))
    await setting.clock.advance(180.0)
    assert not waiting.done()
    assert [event["event"] for event in setting.said] == ["warning"]
    assert "NOBODY CAN REACH" in setting.said[0]["message"]
    node.find_relay()
    await setting.clock.advance(LOOK_EVERY_S)
    assert waiting.done()
    assert (announcer.current.reach, announcer.current.addresses) == (Reach.RELAYED, (RELAYED, HOME))
    assert setting.said[-1]["event"] == "reach"
    assert setting.said[-1]["addresses"] == [f"{RELAYED}/p2p/{IDENTITY.peer_id}", f"{HOME}/p2p/{IDENTITY.peer_id}"]


async def test_a_server_that_can_be_reached_waits_for_nothing(setting: Setting) -> None:
    setting.announcer.locate(Reach.DIRECT, [HOME])
    await wait_reachable(setting.node, setting.announcer, setting.console, setting.clock)
    assert setting.node.looks == 0
    assert setting.said == []


async def test_the_next_announcement_says_the_new_way(setting: Setting) -> None:
    node, announcer = setting.node, setting.announcer
    following = asyncio.create_task(follow(node, announcer, setting.console, setting.clock))
    await setting.clock.advance(3 * LOOK_EVERY_S)
    assert setting.said == [], "nothing new"
    node.find_relay()
    await setting.clock.advance(LOOK_EVERY_S)
    await announcer.publish()
    [listing] = await setting.directory.servers(MODEL)
    announced = listing.announcement
    assert (announced.reach, announced.addresses) == (Reach.RELAYED, (RELAYED, HOME))
    node.addresses = (HOME, RELAYED)
    await setting.clock.advance(LOOK_EVERY_S)
    assert len(setting.said) == 1, "another order of the same addresses is no news"
    node.broken = True
    await setting.clock.advance(LOOK_EVERY_S)
    with pytest.raises(PeerUnreachableError, match="daemon is gone"):
        await following


def test_no_more_addresses_are_announced_than_a_record_holds(setting: Setting) -> None:
    many = [f"/ip4/8.8.8.8/tcp/{port}" for port in range(1, 2 * MAX_ADDRESSES)]
    assert setting.announcer.locate(Reach.DIRECT, many)
    assert not setting.announcer.locate(Reach.DIRECT, many)
    assert setting.announcer.signed()
    assert len(setting.announcer.current.addresses) == MAX_ADDRESSES
