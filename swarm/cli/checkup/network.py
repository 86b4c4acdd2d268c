"""The way out and the way in: libp2p's daemon, initial peers, the clock, the port from outside, relays, the swarm."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

from swarm.cli.apart import apart
from swarm.cli.checkup.coverage import judge_coverage, judge_models, named
from swarm.cli.checkup.findings import Check, Finding, Report, error, guarded, ok, unknown, warning
from swarm.cli.options.checks import check_addresses
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, NetworkError, SwarmError
from swarm.core.ids import ModelId, PeerId
from swarm.dht.clock_watch import MOST_S, shared_offset_s
from swarm.dht.hivemind_circle import door_of
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.models.files import ModelFiles
from swarm.transport.addresses import is_public, split_peer
from swarm.transport.autonat import DialedBack, Outcome, ask_dial_back
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.options import NatOptions, check_port
from swarm.transport.pinger import Pinger
from swarm.transport.pulse import PULSE_PROTOCOL

RELAY_PROTOCOL = "/libp2p/circuit/relay/0.2.0/hop"
KNOCK_S = 4.0
DIAL_S = 6.0
MOST_ASKED = 3
"""Peers that are asked to dial back."""
ANOTHER_PEER = "check that it runs and its port is open, or ask for another address"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a server would stand, and whom it would join through."""

    host: str
    port: int
    announce: Sequence[str]
    initial_peers: Sequence[str]


@dataclass(frozen=True, slots=True)
class Met:
    """An initial peer that answered as a node of this swarm."""

    peer: PeerId
    address: str


@dataclass(frozen=True, slots=True)
class Network:
    """The checks that need a node of one's own; each step takes ``limit_s`` at most.

    ``model`` is what was asked for, and ``opened`` waits for its files (None: there are none, or it cannot be opened).
    """

    place: Place
    clock: Clock
    report: Report
    limit_s: float
    model: str | None
    opened: asyncio.Future[ModelFiles | None]

    async def look(self) -> None:
        """Run them all, as far as each is possible after those before it. Never raises a network's fault."""
        free = await self._look_at_port()
        if self.place.announce:
            await self._step("announce", self._look_at_announced)
        async with AsyncExitStack() as stack:
            started: list[Libp2pTransport] = []

            async def start(report: Report) -> None:
                started.append(await stack.enter_async_context(self._node(self.place.port if free else 0)))
                report(ok("daemon", "libp2p's daemon starts and listens"))

            await self._step("daemon", start)
            if not started:
                return
            if not self.place.initial_peers:
                self._nobody_to_ask()
                return
            met = await self._look_at_peers(started[0])
            if met:
                await self._look_through(started[0], met, free=free)

    async def _step(self, name: str, run: Callable[[Report], Awaitable[None]]) -> None:
        await guarded(Check(name, run), self.report, self.limit_s)

    @asynccontextmanager
    async def _node(self, port: int) -> AsyncIterator[Libp2pTransport]:
        nat = NatOptions(dht_mode="client", serve_relay=False, port_map=False)
        transport = await Libp2pTransport.create(
            None, host=self.place.host, port=port, announce=tuple(self.place.announce), nat=nat
        )
        try:
            yield transport
        finally:
            await transport.close()

    async def _look_at_port(self) -> bool:
        """Whether the port is free; reported."""
        where = f"{self.place.host} port {self.place.port}"
        try:
            await apart(lambda: check_port(self.place.host, self.place.port))
        except ConfigError as fault:
            fix = "a server that runs already may have it; stop that, or choose another --port"
            self.report(error("port", fault.message, fix if self.place.port else fault.hint))
            return False
        except OSError as fault:
            self.report(error("port", f"cannot listen on {where}: {fault.strerror}", "give an address of this machine"))
            return False
        if self.place.port:
            self.report(ok("port", f"{where} is free"))
        return True

    async def _look_at_announced(self, report: Report) -> None:
        """Names must be known; a private address is of no use to strangers."""
        loop = asyncio.get_running_loop()
        for address in self.place.announce:
            _, kind, host, *_ = address.split("/")
            try:
                if kind.startswith("dns"):
                    await loop.getaddrinfo(host, None)
            except OSError as fault:
                what = f"{address}: the name is not known ({fault.strerror})"
                report(error("announce", what, "mend the DNS record, or announce an address in figures"))
                continue
            report(judge_announced(address, self.place.initial_peers))

    def _nobody_to_ask(self) -> None:
        fix = "give --initial-peers with an address that a server printed"
        self.report(unknown("peers", "nobody to ask: whether the swarm is reachable, and this machine from it", fix))
        by_hand = "`timedatectl` must say that the system clock is synchronized; or give --initial-peers"
        self.report(unknown("clock", "not compared with anybody's", by_hand))

    # -- peers ----------------------------------------------------------------------------------------------

    async def _look_at_peers(self, transport: Libp2pTransport) -> list[Met]:
        """Everybody at once; who answers is reported at once, who does not when it is known whether anybody does."""
        answers = await asyncio.gather(*(self._meet(transport, address) for address in self.place.initial_peers))
        met = [answer for answer in answers if isinstance(answer, Met)]
        for answer in answers:
            if isinstance(answer, Finding):
                others = f" ({len(met)} of {len(answers)} initial peers answer)"
                self.report(warning("peer", answer.what + others, answer.fix) if met else answer)
        return met

    async def _meet(self, transport: Libp2pTransport, address: str) -> Met | Finding:
        try:
            check_addresses("--initial-peers", [address])
        except ConfigError as fault:
            return error("peer", fault.message, fault.hint)
        where, peer = split_peer(address)
        assert peer is not None  # checked
        name = f"…{peer[-8:]} at {where}"
        if why := await _knock(where):
            return error("peer", f"{name}: {why}", ANOTHER_PEER)
        try:
            await (await transport.dial(peer, PULSE_PROTOCOL, addresses=[where], timeout_s=DIAL_S)).close()
        except NetworkError as fault:
            return _refusal(name, fault)
        rtt_s = await Pinger(transport, self.clock).rtt_s(peer, [where])
        trip = "" if rtt_s is None else f", {rtt_s * 1e3:.1f} ms there and back"
        self.report(ok("peer", f"{name} answers, protocol {PULSE_PROTOCOL.rpartition('.')[2]}{trip}"))
        return Met(peer, where)

    # -- through them ---------------------------------------------------------------------------------------

    async def _look_through(self, transport: Libp2pTransport, met: Sequence[Met], *, free: bool) -> None:
        async with AsyncExitStack() as stack:
            joined: list[HivemindDirectory] = []

            async def join(report: Report) -> None:
                addresses = [f"{one.address}/p2p/{one.peer}" for one in met]
                directory = await HivemindDirectory.create(transport.p2p, addresses, self.clock, client_mode=True)
                stack.push_async_callback(directory.close)
                joined.append(directory)

            steps = [self._step("reach", partial(self._look_at_reach, transport, met, free))]
            await self._step("directory", join)
            if joined:
                steps.append(self._step("clock", partial(self._look_at_clock, joined[0])))
                steps.append(self._step("swarm", partial(self._look_at_swarm, joined[0])))
            await asyncio.gather(*steps)

    async def _look_at_clock(self, directory: HivemindDirectory, report: Report) -> None:
        report(judge_clock(await directory.clock_offsets_s()))

    async def _look_at_swarm(self, directory: HivemindDirectory, report: Report) -> None:
        entries = await directory.models()
        if self.model is None:
            report(judge_models(entries))
            return
        try:
            files = await asyncio.shield(self.opened)
        except SwarmError:
            files = None  # said by the check of the model
        wanted = files.model_id if files is not None else named(self.model, entries)
        if wanted is None:
            report(judge_coverage(self.model, 0, [], self.place.initial_peers[0]))
            return
        listings = await directory.servers(ModelId.parse(str(wanted)))
        layers = (
            files.layer_count if files is not None else next(e.layer_count for e in entries if e.model == str(wanted))
        )
        report(judge_coverage(self.model, layers, listings, self.place.initial_peers[0]))

    async def _look_at_reach(self, transport: Libp2pTransport, met: Sequence[Met], free: bool, report: Report) -> None:
        if not free:
            fix = "stop what has the port and look again, or check with `nc -vz ADDRESS PORT` from another network"
            report(unknown("reach", "whether strangers get in: the port is in use, so no answer would be ours", fix))
        else:
            report(judge_reach(await self._ask_around(transport, met), self._ports(transport), met))
        relays = await asyncio.gather(*(_offers(transport, one, RELAY_PROTOCOL) for one in met))
        report(judge_relays(sum(relays), len(relays)))

    def _ports(self, transport: Libp2pTransport) -> list[int]:
        """Those that strangers would dial."""
        doors = map(door_of, [*self.place.announce, *transport.addresses])
        return list(dict.fromkeys(door[1] for door in doors if door is not None))

    async def _ask_around(self, transport: Libp2pTransport, met: Sequence[Met]) -> DialedBack:
        """The first peer's word that says anything; one that reached us counts for more than one that did not."""
        answers = await asyncio.gather(*(
            ask_dial_back(transport, transport.peer_id, one.peer, [one.address], self._ports(transport))
            for one in met[:MOST_ASKED]
        ))  # fmt: skip
        return min(answers, key=lambda answer: list(Outcome).index(answer.outcome))


async def _knock(address: str) -> str:
    """Open a TCP connection and close it; empty if it worked or cannot be tried like that, else why not."""
    door = door_of(address)
    if door is None:
        return ""
    try:
        async with asyncio.timeout(KNOCK_S):
            _, writer = await asyncio.open_connection(*door)
    except TimeoutError:
        return f"no answer in {KNOCK_S:g} s"
    except OSError as fault:
        number = fault.errno or 0
        return os.strerror(number) if number > 0 else str(fault.strerror or fault)
    writer.transport.abort()
    return ""


async def _offers(transport: Libp2pTransport, met: Met, protocol: str) -> bool:
    try:
        stream = await transport.dial(met.peer, protocol, addresses=[met.address], timeout_s=DIAL_S)
    except NetworkError:
        return False
    await stream.close()
    return True


def _refusal(name: str, fault: NetworkError) -> Finding:
    if "protocols not supported" in fault.message:
        what = f"{name} is there and does not speak {PULSE_PROTOCOL}"
        return error("peer", what, "it runs another version of swarm, or is no server: update both, or ask for another")
    return error("peer", f"{name}: {fault.message}", ANOTHER_PEER)


# -- verdicts -----------------------------------------------------------------------------------------------


def judge_clock(offsets_s: Sequence[float]) -> Finding:
    """``offsets_s``: how far other nodes' clocks are ahead of this machine's."""
    if not offsets_s:
        fix = "`timedatectl` must say that the system clock is synchronized"
        return unknown("clock", "no peer told its time", fix)
    offset_s = shared_offset_s(offsets_s)
    asked = f"{len(offsets_s)} asked" if len(offsets_s) > 1 else "one asked, who may be wrong himself"
    if abs(offset_s) > MOST_S:
        way = "behind" if offset_s > 0 else "ahead of"
        what = f"{abs(offset_s):.0f} s {way} other nodes' ({asked}): records live for seconds, so none will count"
        return error("clock", what, "switch on time synchronization: `timedatectl set-ntp true`")
    return ok("clock", f"within {max(abs(offset_s), 0.1):.1f} s of other nodes' ({asked})")


def judge_announced(address: str, initial_peers: Sequence[str]) -> Finding:
    """Whether those who join through ``initial_peers`` could dial ``address``."""
    if not is_public(address) and any(map(is_public, initial_peers)):
        what = f"{address} is a private address, and the swarm is on the internet: strangers cannot dial it"
        return warning("announce", what, "announce the public address that forwards to it, or nothing")
    return ok("announce", f"{address} is what others will dial")


def judge_reach(answer: DialedBack, ports: Sequence[int], met: Sequence[Met]) -> Finding:
    """What a peer said that was asked to dial ``ports`` of this machine."""
    which = f"port {ports[0]}" if ports else "the port"
    by_hand = f"from another network, while a server runs: nc -vz ADDRESS {ports[0] if ports else 'PORT'}"
    if answer.outcome is Outcome.REACHED:
        return ok("reach", f"{which} is reachable: a peer has dialled it")
    if answer.outcome is Outcome.FAILED:
        fix = f"forward TCP {which} to this machine and open it in the firewall, or give --relay"
        return warning("reach", f"{which} is not reachable: a peer tried and failed", fix)
    if not any(is_public(one.address) for one in met):
        what = f"{which} not tried: the peers are in a private network, where whoever reaches this machine is let in"
        return unknown("reach", what, by_hand)
    return unknown("reach", f"{which} not tried: no peer would ({answer.why or 'no reason given'})", by_hand)


def judge_relays(offering: int, asked: int) -> Finding:
    """How many of the initial peers would relay for a server that nobody can dial."""
    if offering:
        return ok("relay", f"{offering} of {asked} initial peers relay for servers behind a NAT")
    what = "no initial peer relays: a server that nobody can dial would not be found"
    return warning("relay", what, "needed only behind a NAT: then give --relay a peer that does")
