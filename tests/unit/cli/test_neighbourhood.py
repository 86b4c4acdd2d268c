"""Nodes with --lan: who starts a swarm, who joins, and that those who begin at once end in one."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from swarm.cli.neighbourhood import AGAIN_S, Neighbourhood
from swarm.cli.output.console import JsonConsole
from swarm.core.errors import NetworkError
from swarm.core.ids import PeerId
from swarm.core.keys import Identity
from swarm.runtime.clock import VirtualClock
from swarm.transport.lan import LOOK_S, MemoryAir, MemoryNetwork, Notice


@dataclass
class Swarms:
    """Directories by peer; each knows whom it met, and is known to him."""

    up: dict[str, Acquainted] = field(default_factory=dict)

    def reached_from(self, peer: str) -> set[str]:
        reached, todo = set(), [peer]
        while todo:
            at = todo.pop()
            if at not in reached:
                reached.add(at)
                todo += self.up[at].met
        return reached


@dataclass
class Acquainted:
    peer: str
    swarms: Swarms
    met: set[str] = field(default_factory=set)
    dialled: list[str] = field(default_factory=list)

    def known(self) -> frozenset[str]:
        return frozenset(self.met)

    async def meet(self, peer: str, addresses: Sequence[str]) -> str:
        self.dialled.append(peer)
        assert all(address.endswith(f"/p2p/{peer}") for address in addresses)
        if peer not in self.swarms.up:
            return "connection refused"
        self.met.add(peer)
        self.swarms.up[peer].met.add(self.peer)
        return ""


@dataclass
class Node:
    near: Neighbourhood
    notice: Notice
    said: io.StringIO

    @property
    def events(self) -> list[str]:
        return [json.loads(line)["event"] for line in self.said.getvalue().splitlines()]


class Street:
    """Nodes of one local network."""

    def __init__(self) -> None:
        self.air, self.clock, self.swarms = MemoryAir(), VirtualClock(), Swarms()

    def node(self, number: int, swarm: str = "") -> Node:
        peer: PeerId = Identity(number.to_bytes(32, "big")).peer_id
        directory = self.swarms.up[peer] = Acquainted(peer, self.swarms)
        said = io.StringIO()
        near = Neighbourhood(self.air.join(swarm), directory, self.clock, JsonConsole(said))
        return Node(near, Notice(peer, (f"/ip4/10.0.0.{number}/tcp/31337",)), said)


async def test_the_first_starts_a_swarm_and_the_second_joins_it_at_once() -> None:
    street = Street()
    first, second = street.node(1), street.node(2)
    await street.clock.run(first.near.enter(first.notice))
    assert street.clock.monotonic_s() == LOOK_S
    assert first.events == ["alone"]
    await street.clock.run(second.near.enter(second.notice))
    assert street.clock.monotonic_s() == LOOK_S
    assert second.events == ["neighbour"]


class Deaf(MemoryNetwork):
    """Of a machine without an address to tell."""

    async def advertise(self, notice: Notice) -> None:
        raise NetworkError(f"no address in {notice.addresses}")


async def test_who_cannot_be_told_of_says_so_and_promises_nothing() -> None:
    street = Street()
    node = street.node(1)
    node.near.network = Deaf(street.air, "")
    await street.clock.run(node.near.enter(node.notice))
    told = [json.loads(line) for line in node.said.getvalue().splitlines()]
    assert [line["event"] for line in told] == ["warning", "alone"]
    assert "others on the local network do not find this server" in str(told[0])
    assert "will find it" not in str(told[1])


async def test_two_that_start_at_once_end_in_one_swarm() -> None:
    street = Street()
    nodes = [street.node(1), street.node(2)]
    await asyncio.gather(*(street.clock.run(node.near.enter(node.notice)) for node in nodes))
    assert street.clock.monotonic_s() == 0.0
    assert all("alone" not in node.events for node in nodes)
    assert street.swarms.reached_from(nodes[0].notice.peer) == set(street.swarms.up)


async def test_swarms_that_did_not_hear_of_each_other_become_one_later() -> None:
    """Datagrams were lost when both began: each says that it starts a swarm, and neither stays by itself."""
    street = Street()
    left, right = street.node(1), street.node(2)
    ears, street.air.ears = street.air.ears, []
    for node in (left, right):
        await street.clock.run(node.near.enter(node.notice))
        assert node.events == ["alone"]
    street.air.ears = ears
    following = [asyncio.create_task(node.near.follow()) for node in (left, right)]
    await street.clock.advance(1.0)
    await left.near.network.advertise(left.notice)
    await street.clock.advance(1.0)
    assert street.swarms.reached_from(left.notice.peer) == set(street.swarms.up)
    for task in following:
        task.cancel()
    await asyncio.gather(*following, return_exceptions=True)


async def test_who_does_not_answer_is_tried_again_and_nobody_waits_for_him() -> None:
    street = Street()
    ghost = street.node(9)
    await ghost.near.network.advertise(ghost.notice)
    del street.swarms.up[ghost.notice.peer]
    node = street.node(1)
    await street.clock.run(node.near.enter(node.notice))
    assert street.clock.monotonic_s() == LOOK_S
    assert node.events == ["alone"]
    following = asyncio.create_task(node.near.follow())
    await street.clock.settle()
    tried = len(street.swarms.up[node.notice.peer].dialled)
    street.swarms.up[ghost.notice.peer] = Acquainted(ghost.notice.peer, street.swarms)
    await street.clock.advance(AGAIN_S)
    assert len(street.swarms.up[node.notice.peer].dialled) == tried + 1
    assert node.events == ["alone", "neighbour"]
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)


async def test_swarms_of_different_names_stay_apart() -> None:
    street = Street()
    kitchen, garage = street.node(1, "kitchen"), street.node(2, "garage")
    await street.clock.run(kitchen.near.enter(kitchen.notice))
    await street.clock.run(garage.near.enter(garage.notice))
    assert garage.events == ["alone"]
    assert not garage.near.directory.known()


async def test_who_is_in_a_swarm_already_does_not_wait() -> None:
    street = Street()
    node, other = street.node(1), street.node(2)
    await node.near.directory.meet(other.notice.peer, other.notice.initial_peers)
    await street.clock.run(node.near.enter(node.notice))
    assert street.clock.monotonic_s() == 0.0
    assert node.events == []
