"""One server process, from joining the swarm to leaving it."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm.cli.checks import read_max_memory
from swarm.cli.console import Console
from swarm.cli.probe import probe
from swarm.cli.reachability import follow, wait_reachable
from swarm.core.announcement import Announcement
from swarm.core.errors import SwarmError
from swarm.core.keys import Identity
from swarm.core.spans import Span, missing_layers
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.engine.opening import OpenedSpan, SpanRequest, open_span
from swarm.engine.weights import LoadOptions
from swarm.models.files import ModelFiles
from swarm.models.progress import Progress, ProgressLine, human_bytes
from swarm.runtime.clock import SystemClock
from swarm.runtime.files import raise_open_file_limit
from swarm.scheduling.reasons import layers_text
from swarm.server.announcer import Announcer, first_announcement
from swarm.server.config import ServerConfig
from swarm.server.service import Server, ServerParts
from swarm.transport.addresses import join_peer
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.options import NatOptions

STOPPED_EARLY = 130
"""Exit code of a server that was told to stop before it was ready."""


class Signals:
    """What Ctrl-C and SIGTERM ask for: the first to ``stop`` in good order, a second one to ``hurry``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.stop = asyncio.Event()
        self.hurry = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received)

    def _received(self) -> None:
        (self.hurry if self.stop.is_set() else self.stop).set()


@dataclass(frozen=True, slots=True)
class Node:
    """This process's place in the network."""

    transport: Libp2pTransport
    directory: HivemindDirectory


@dataclass(frozen=True, slots=True)
class Host:
    """What a server process was told to serve, and who it is."""

    options: argparse.Namespace
    console: Console
    files: ModelFiles
    span: Span
    identity: Identity
    identity_path: Path

    async def serve(self) -> int:
        """Join, load, prove, announce, serve until a signal or a fatal error, leave. Returns the exit code."""
        raise_open_file_limit()
        signals = Signals(asyncio.get_running_loop())
        stopped = asyncio.create_task(signals.stop.wait())
        starting = asyncio.create_task(self._start(signals))
        await asyncio.wait({starting, stopped}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            self.console.event("stopping", "Stopping before it was ready.")
            starting.cancel()
        try:
            node, opened = await starting
        except asyncio.CancelledError:
            return STOPPED_EARLY
        try:
            return await self._run(node, opened, signals)
        finally:
            await _close(node)

    async def _start(self, signals: Signals) -> tuple[Node, OpenedSpan]:
        """Join first, since that takes seconds and says early what is wrong; then load, which may take an hour."""
        node = await self._join()
        try:
            opened = await asyncio.to_thread(open_span, self.files, self._request(), self._progress(signals))
        except BaseException:
            await _close(node)
            raise
        return node, opened

    async def _join(self) -> Node:
        options, peers = self.options, tuple(self.options.initial_peers)
        transport = await Libp2pTransport.create(
            self.identity_path,
            host=options.host,
            port=options.port,
            announce=tuple(options.announce),
            initial_peers=peers,
            nat=NatOptions(auto_relay=bool(peers), relays=tuple(options.relay)),
        )
        try:
            return Node(transport, await HivemindDirectory.create(transport.p2p, peers, SystemClock()))
        except BaseException:
            await transport.close()
            raise

    def _request(self) -> SpanRequest:
        options = self.options
        return SpanRequest(
            span=self.span,
            embeddings=self.span.start == 0 and not options.no_head,
            head=self.span.end == self.files.layer_count and not options.no_head,
            weights=LoadOptions(
                options.device, options.dtype, options.quantization, read_max_memory(options.max_memory)
            ),
            kv_tokens=options.kv_tokens,
            threads=options.threads,
        )

    def _progress(self, signals: Signals) -> Progress:
        """Reports bytes, and ends the loading thread once the server was told to stop: nothing else can."""
        report = self.console.progress if self.options.json else ProgressLine(sys.stderr)

        def progress(label: str, done: int, total: int) -> None:
            if signals.stop.is_set():
                raise SwarmError("loading was stopped")
            report(label, done, total)

        return progress

    async def _run(self, node: Node, opened: OpenedSpan, signals: Signals) -> int:
        clock, config = SystemClock(), self._config()
        base = self._announcement(node.transport, opened, clock.wall_s())
        announcer = Announcer(node.directory, self.identity, clock, base, config)
        announcer.locate(await node.transport.reach(), node.transport.addresses)
        server = Server(ServerParts(node.transport, opened.engine, announcer, clock), config)
        await server.start()
        doors = asyncio.create_task(self._open_doors(node, opened, server))
        network = asyncio.create_task(_watch_network(node, server))
        await _first(signals.stop, server.fatal, doors)
        network.cancel()
        await self._leave(server, signals.hurry, doors)
        if doors.done() and not doors.cancelled() and (error := doors.exception()) is not None:
            raise error
        if server.fatal.done():
            raise server.fatal.result()
        self.console.event("stopped", "Stopped; the announcement is withdrawn.")
        return 0

    def _config(self) -> ServerConfig:
        return ServerConfig(
            max_sessions=self.options.max_sessions,
            idle_timeout_s=self.options.idle_timeout,
            drain_timeout_s=self.options.drain_timeout,
            public_name=self.options.public_name,
        )

    def _announcement(self, transport: Libp2pTransport, opened: OpenedSpan, now_s: float) -> Announcement:
        return first_announcement(
            self.files.model_id,
            opened.engine,
            transport,
            now_s,
            instance=secrets.randbits(63),
            public_name=self.options.public_name,
        )

    async def _open_doors(self, node: Node, opened: OpenedSpan, server: Server) -> None:
        """Banner, a way in for strangers, self-probe, announcement, READY, in this order."""
        announcer, clock, info = server.parts.announcer, server.parts.clock, opened.engine.info
        self._banner(opened, announcer.current)
        await wait_reachable(node.transport, announcer, self.console, clock)
        self.console.event("probing", "Checking that this server answers strangers…")
        report = await probe(announcer.current, announcer.signed(), info.hidden_size)
        await server.announce()
        found = [listing.announcement for listing in await node.directory.servers(self.files.model_id)]
        missing = missing_layers((record.span for record in found), info.layer_count)
        covered = f"{layers_text(missing)} still missing" if missing else "every layer is held"
        self.console.event(
            "ready",
            f"READY  serving layers {info.span} of {self.files.name}; prefill {report.prefill_s * 1e3:.0f} ms, "
            f"decode step {report.decode_s * 1e3:.0f} ms; {_count(len(found), 'server')} in the swarm, {covered}. "
            "Ctrl-C to leave.",
            prefill_s=report.prefill_s,
            decode_s=report.decode_s,
            servers=len(found),
            missing=[[span.start, span.end] for span in missing],
        )
        await follow(node.transport, announcer, self.console, clock)

    def _banner(self, opened: OpenedSpan, announced: Announcement) -> None:
        info = opened.engine.info
        if opened.note:
            self.console.warning(opened.note)
        joins = [join_peer(address, announced.peer_id) for address in announced.addresses]
        kv_bytes = announced.kv_tokens * info.kv_bytes_per_token
        lines = [
            f"peer id   {announced.peer}",
            f"model     {self.files.model_id}",
            f"span      {info.span} of {info.layer_count} layers"
            + (", with embeddings" if info.embeddings else "")
            + (", with LM head" if info.head else ""),
            f"device    {' and '.join(opened.devices)}, {announced.numerics}",
            f"memory    {human_bytes(info.memory_bytes)} of weights, KV for {announced.kv_tokens} tokens "
            f"(up to {human_bytes(kv_bytes)})",
            f"reach     {announced.reach.value}",
        ]
        if joins:
            join = f"--model {self.options.model} --initial-peers {joins[0]}"
            lines += ["", "Others join with:", f"  python -m swarm.server --blocks A:B {join}"]
            lines += ["and ask with:", f'  python -m swarm generate "Hello" {join}']
        self.console.event(
            "banner",
            "\n".join(lines),
            peer=announced.peer,
            model=announced.model,
            span=[info.span.start, info.span.end],
            device=",".join(opened.devices),
            numerics=str(announced.numerics),
            memory_bytes=info.memory_bytes,
            kv_tokens=announced.kv_tokens,
            reach=announced.reach.value,
            addresses=joins,
        )

    async def _leave(self, server: Server, hurry: asyncio.Event, doors: asyncio.Task[None]) -> None:
        """Drain, unless a second signal or a fatal error says to go at once."""
        running = len(server.table)
        if running and not server.fatal.done():
            text = f"Leaving: {_count(running, 'session')} may finish. Ctrl-C again to go at once."
            self.console.event("draining", text, sessions=running)
        doors.cancel()
        with contextlib.suppress(asyncio.CancelledError, SwarmError):
            await doors
        if server.fatal.done() or hurry.is_set():
            await server.leave()
            return
        stopping = asyncio.create_task(server.stop())
        hurrying = asyncio.create_task(hurry.wait())
        await asyncio.wait({stopping, hurrying}, return_when=asyncio.FIRST_COMPLETED)
        hurrying.cancel()
        if not stopping.done():
            stopping.cancel()
            await asyncio.gather(stopping, return_exceptions=True)
            await server.leave()
        else:
            await stopping


async def _first(stop: asyncio.Event, fatal: asyncio.Future[SwarmError], doors: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(stop.wait())
    things: set[asyncio.Future[Any]] = {waiting, fatal, doors}
    await asyncio.wait(things, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


async def _watch_network(node: Node, server: Server) -> None:
    """Without its libp2p daemon a server serves nobody, and must not seem to."""
    error = await node.transport.wait_broken()
    if not server.fatal.done():
        server.fatal.set_result(error)


async def _close(node: Node) -> None:
    await node.directory.close()
    await node.transport.close()


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
