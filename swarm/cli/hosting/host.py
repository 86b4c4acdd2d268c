"""One server process, from joining the swarm to leaving it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from swarm.cli.hosting.banner import show_banner
from swarm.cli.hosting.blocks import Blocks
from swarm.cli.hosting.control import key_option
from swarm.cli.hosting.keeping import Keeping
from swarm.cli.hosting.limits import hours_of, limits_text, wall_minute
from swarm.cli.hosting.loading import Loaded, Loader
from swarm.cli.hosting.mover import Mover, Prove
from swarm.cli.hosting.outages import follow_outages
from swarm.cli.hosting.probe import ProbeReport, probe
from swarm.cli.hosting.reachability import follow, wait_reachable
from swarm.cli.hosting.ready import ready_event, worth
from swarm.cli.hosting.rest import Rest, Timetable, draining_text
from swarm.cli.hosting.tally import Tally, figures_of
from swarm.cli.joining import joining_text
from swarm.cli.neighbourhood import Neighbourhood
from swarm.cli.output.console import Console
from swarm.cli.signals import STOPPED_EARLY, PauseSwitch, Signals, first_of
from swarm.core.announcement import State
from swarm.core.errors import IdentityInUseError, NetworkError, SwarmError
from swarm.core.keys import Identity
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.engine.capacity import Room
from swarm.engine.opening import OpenedSpan
from swarm.models.files import ModelFiles
from swarm.runtime.clock import SystemClock
from swarm.runtime.contribution import ContributionFile
from swarm.runtime.files import raise_open_file_limit
from swarm.runtime.remembered import RememberedSpans
from swarm.runtime.server_state import ServerState
from swarm.server.config import ServerConfig
from swarm.server.placing import Placement
from swarm.server.reports.announcer import Announcer
from swarm.server.seat import Seat, facts_of
from swarm.server.service import Server, ServerParts
from swarm.transport.capped import CappedTransport, UplinkCap
from swarm.transport.lan import Notice
from swarm.transport.lan_mdns import MdnsNetwork
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.options import NatOptions
from swarm.transport.protocol import Transport
from swarm.verification.verdicts.calibration import Calibration

T = TypeVar("T")

STOPPED_TEXT = "Stopped before it was ready."
WITHDRAW_S = 1.5
"""For taking a claim back."""


@dataclass(frozen=True, slots=True)
class Node:
    """This process's place in the network."""

    transport: Libp2pTransport
    directory: HivemindDirectory
    near: Neighbourhood | None = None
    """With ``--lan``."""


@dataclass(frozen=True, slots=True)
class Ready:
    """A server that has its span, but has not shown itself yet."""

    node: Node
    announcer: Announcer
    placement: Placement
    seat: Seat
    room: Room
    loaded: Loaded


@dataclass(frozen=True, slots=True)
class Host:
    """What a server process was told to serve, and who it is."""

    options: argparse.Namespace
    console: Console
    files: ModelFiles
    identity: Identity
    identity_path: Path
    calibration: Calibration | None
    switch: PauseSwitch

    async def serve(self) -> int:
        """Join, load, prove, announce, serve until a signal or a fatal error, leave. Returns the exit code."""
        raise_open_file_limit()
        signals = Signals(asyncio.get_running_loop())
        self.switch.follow(asyncio.get_running_loop())
        state = ServerState.of(self.identity_path)
        hours = Timetable(hours_of(self.options), wall_minute)
        rest = Rest(self.switch, hours, self.console, state, SystemClock(), key_option(self.options.identity))
        try:
            return await self._serve(Loader(self.options, self.files, self.console, signals), rest)
        finally:
            state.forget()

    async def _serve(self, loader: Loader, rest: Rest) -> int:
        signals = loader.signals
        starting = asyncio.create_task(self._start(loader, rest))
        await first_of(signals.stop, starting)
        if not starting.done():
            starting.cancel()
        try:
            ready = await starting
        except asyncio.CancelledError:
            self.console.event("stopped", STOPPED_TEXT)
            return STOPPED_EARLY
        try:
            return await self._run(ready, loader, rest)
        finally:
            await _close(ready.node)

    # -- starting -------------------------------------------------------------------------------------------

    async def _start(self, loader: Loader, rest: Rest) -> Ready:
        """Join first, since that takes seconds and says early what is wrong; then load, which may take an hour."""
        await rest.wait_for_hours()
        with self.console.waiting(joining_text(self.options.initial_peers)):
            node = await self._join()
        try:
            return await self._take_seat(node, loader)
        except BaseException:
            await _close(node)
            raise

    async def _join(self) -> Node:
        options, peers = self.options, tuple(self.options.initial_peers)
        transport = await Libp2pTransport.create(
            self.identity_path,
            host=options.host,
            port=options.port,
            announce=tuple(options.announce),
            initial_peers=peers,
            nat=NatOptions(
                auto_relay=bool(peers), relays=tuple(options.relay), serve_relay=options.uplink_mbps is None
            ),
        )
        node = None
        try:
            node = Node(transport, await HivemindDirectory.create(transport.p2p, peers, SystemClock()))
            return node if not options.lan else await self._look_around(node)
        except BaseException:
            await (transport.close() if node is None else _close(node))
            raise

    async def _look_around(self, node: Node) -> Node:
        """Known to those near from now on, and in one swarm with them."""
        host, name = self.options.host, self.options.lan_name
        near = Neighbourhood(await MdnsNetwork.open(host=host, swarm=name), node.directory, SystemClock(), self.console)
        try:
            await near.enter(Notice(self.identity.peer_id, node.transport.addresses, name))
        except BaseException:
            await near.network.close()
            raise
        return replace(node, near=near)

    async def _take_seat(self, node: Node, loader: Loader) -> Ready:
        """Know the span, then load it; others are told meanwhile what this server will hold, if it chose by itself."""
        clock, blocks = SystemClock(), self._blocks
        room = await loader.room()
        seat = blocks.seat(room, self.identity.peer_id)
        base = seat.announcement(clock.wall_s())
        announcer = Announcer(node.directory, self.identity, clock, base, self._config())
        announcer.locate(await node.transport.reach(), node.transport.addresses)
        placement = blocks.placement(announcer, clock)
        if not blocks.chosen:
            loaded = await loader.load(blocks.told)
        else:
            await announcer.check_twin()
            try:
                span = await blocks.take(placement, base.model)
                loaded = await _while_announced(announcer, loader.load(span))
            except IdentityInUseError:
                raise
            except BaseException:
                await _withdraw(announcer)
                raise
            blocks.remembered.put(base.model, span)
        announcer.amend(**facts_of(loaded.opened.engine, loaded.speed))
        return Ready(node, announcer, placement, seat, room, loaded)

    @property
    def _blocks(self) -> Blocks:
        return Blocks(self.options, self.files, self.console, RememberedSpans.of(self.identity_path))

    def _config(self) -> ServerConfig:
        return ServerConfig(
            max_sessions=self.options.max_sessions,
            idle_timeout_s=self.options.idle_timeout,
            drain_timeout_s=self.options.drain_timeout,
            replay_mb=self.options.replay_mb,
            receipts=not self.options.no_receipts,
            audit_hold_s=self.options.audit_hold,
            stats=not self.options.no_stats,
            uplink_mbps=self.options.uplink_mbps,
            region=self.options.region,
            public_name=self.options.public_name,
        )

    # -- serving --------------------------------------------------------------------------------------------

    def _server(self, ready: Ready) -> Server:
        transport: Transport = ready.node.transport
        if self.options.uplink_mbps is not None:
            transport = CappedTransport(transport, UplinkCap(self.options.uplink_mbps, SystemClock()))
        parts = ServerParts(
            transport,
            ready.loaded.opened.engine,
            ready.announcer,
            SystemClock(),
            ready.loaded.speed,
            capacity_layers=ready.seat.capacity_layers,
            calibration=self.calibration,
        )
        return Server(parts, self._config())

    async def _run(self, ready: Ready, loader: Loader, rest: Rest) -> int:
        server = self._server(ready)
        file, model = ContributionFile.of(self.identity_path), str(self.files.model_id)
        tally = Tally(file, model, lambda: figures_of(server), self.console, server.parts.clock)
        await server.start()
        keeping = Keeping(rest, tally)
        doors = asyncio.create_task(self._open_doors(ready, server, loader, keeping))
        network = asyncio.create_task(_watch_network(ready.node, server))
        await first_of(loader.signals.stop, server.fatal, doors)
        network.cancel()
        cut = await self._leave(server, loader.signals.hurry, doors)
        if keeping.ready.is_set():
            tally.close()
        if doors.done() and not doors.cancelled() and (error := doors.exception()) is not None:
            raise error
        if server.fatal.done():
            raise server.fatal.result()
        if cut is not None:
            text = f"Stopped at once; {_count(cut, 'session')} cut short, the announcement is withdrawn."
            self.console.event("stopped", text, cut=cut)
            return STOPPED_EARLY
        if not keeping.ready.is_set():
            self.console.event("stopped", STOPPED_TEXT)
            return STOPPED_EARLY
        self.console.event("stopped", "Stopped; the announcement is withdrawn.")
        return 0

    async def _open_doors(self, ready: Ready, server: Server, loader: Loader, keeping: Keeping) -> None:
        """Banner, a way in for strangers, self-probe, announcement, READY, in this order; then follow what changes."""
        node, announcer, clock = ready.node, ready.announcer, server.parts.clock
        opened = ready.loaded.opened

        async def prove(opened: OpenedSpan) -> ProbeReport:
            self.console.event("probing", "Checking that this server answers strangers…")
            with self.console.waiting("a stranger's prefill and step"):
                return await probe(announcer.current, announcer.signed(), opened.engine.info.hidden_size)

        show_banner(self.console, opened, announcer.current, self.options.model, limits_text(self.options))
        with self.console.waiting("waiting for a way in for strangers"):
            await wait_reachable(node.transport, announcer, self.console, clock)
        report = await prove(opened)
        await server.announce()
        await self._say_ready(server, report, ready)
        keeping.ready.set()
        await self._follow(ready, server, loader, keeping, prove)

    async def _follow(self, ready: Ready, server: Server, loader: Loader, keeping: Keeping, prove: Prove) -> None:
        """Whatever changes while it serves, until cancelled."""
        node, keeper = ready.node, ready.node.directory.keeper
        work: list[Coroutine[Any, Any, Any]] = [
            follow(node.transport, ready.announcer, self.console, server.parts.clock),
            follow_outages(keeper, self.console, server.hurry),
            *keeping.work(server, self.console, self.options),
        ]
        if node.near is not None:
            work.append(node.near.follow())
        if self._blocks.chosen and not self.options.no_rebalance:
            mover = Mover(
                server,
                ready.placement,
                loader,
                self._blocks,
                prove,
                alone=lambda: keeper.alone,
                calm=keeping.rest.calm,
                every_s=self.options.rebalance_every,
            )
            work.append(mover.run())
        tasks = [asyncio.create_task(each) for each in work]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _say_ready(self, server: Server, report: ProbeReport, ready: Ready) -> None:
        with self.console.waiting("looking what this server adds to the swarm"):
            found, adds = await worth(server, ready.room, busy=ready.loaded.busy)
        text, fields = ready_event(server.parts.engine.info, self.files.name, report, found, adds)
        self.console.event("ready", text, **fields)

    async def _leave(self, server: Server, hurry: asyncio.Event, doors: asyncio.Task[None]) -> int | None:
        """Drain, unless a second signal or a fatal error says to go at once.

        How many sessions a second signal cut short; None without one.
        """
        running = len(server.table)
        if running and not server.fatal.done():
            text = f"Leaving: {_count(running, 'session')} may finish. Ctrl-C again to go at once."
            self.console.event("draining", text, sessions=running)
        doors.cancel()
        with contextlib.suppress(asyncio.CancelledError, SwarmError):
            await doors
        stopping = asyncio.create_task(server.leave() if server.fatal.done() else server.stop())
        with self.console.waiting(draining_text(server)):
            await first_of(hurry, stopping)
        if stopping.done():
            await stopping
            return None
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        cut = len(server.table)
        await server.leave()
        return cut


async def _while_announced(announcer: Announcer, work: Coroutine[Any, Any, T]) -> T:
    """What ``work`` returns; meanwhile the announcement is kept alive. Raises if it turns out to be another's."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def lost(error: IdentityInUseError) -> None:
        failed.set_exception(error)

    working, keeping = asyncio.create_task(work), asyncio.create_task(announcer.run(lost))
    try:
        waited: set[asyncio.Future[Any]] = {working, failed}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        return await working
    finally:
        for task in (working, keeping):
            task.cancel()
        failed.cancel()
        await asyncio.gather(working, keeping, return_exceptions=True)


async def _withdraw(announcer: Announcer) -> None:
    """A claim is freed at once, not when it expires."""
    with contextlib.suppress(NetworkError, TimeoutError):
        async with asyncio.timeout(WITHDRAW_S):
            await announcer.publish(state=State.OFFLINE, intent=None)


async def _watch_network(node: Node, server: Server) -> None:
    """Without its libp2p daemon a server serves nobody, and must not seem to."""
    error = await node.transport.wait_broken()
    if not server.fatal.done():
        server.fatal.set_result(error)


async def _close(node: Node) -> None:
    if node.near is not None:
        await node.near.network.close()
    await node.directory.close()
    await node.transport.close()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
