"""``python -m swarm.server``: load a span, join the swarm, prove that it serves, and leave in good order."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import secrets
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swarm import __version__
from swarm.cli.console import Console, HumanConsole, JsonConsole
from swarm.cli.probe import probe
from swarm.core.errors import ConfigError, SwarmError
from swarm.core.keys import Identity
from swarm.core.numerics import DTYPE_BYTES, QUANTIZATIONS, Numerics
from swarm.core.records import Announcement, Reach, State
from swarm.core.spans import Span
from swarm.dht.hivemind_directory import HivemindDirectory
from swarm.engine.executor import SpanEngine
from swarm.engine.opening import OpenedSpan, SpanRequest, open_span
from swarm.engine.weights import LoadOptions
from swarm.models.files import ModelFiles
from swarm.models.progress import ProgressLine, human_bytes
from swarm.models.resolve import resolve
from swarm.runtime.clock import SystemClock
from swarm.runtime.folders import data_folder
from swarm.runtime.identity import IdentityLock, load_or_create
from swarm.server.announcer import Announcer
from swarm.server.config import ServerConfig
from swarm.server.service import Server, ServerParts
from swarm.transport.addresses import join_peer
from swarm.transport.libp2p import Libp2pTransport
from swarm.transport.options import NatOptions

DEFAULTS = ServerConfig()
EXAMPLES = """\
examples:
  the first server of a new swarm, holding layers 0 to 9 of the demo model:
    python -m swarm.server --model demo --blocks 0:10 --new-swarm
  the next one, joining through the address that the first one printed:
    python -m swarm.server --model demo --blocks 10:20 --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  a second server on the same machine needs a key of its own:
    ... --identity ~/second.key

Your machine sees the activations of every prompt that passes through it, and whoever holds the first
layers can recover the text. Others can see yours in the same way: nothing here is confidential.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Hold a span of a model's layers and answer for them, until Ctrl-C."
    parser.epilog = EXAMPLES
    what = parser.add_argument_group("what to serve")
    what.add_argument("--model", required=True, help="demo, a folder, or a Hugging Face id, optionally ID@REVISION")
    what.add_argument("--blocks", required=True, metavar="A:B", help="layers to hold, half-open: 0:10 is layers 0 to 9")
    what.add_argument("--revision", help="branch, tag or commit of a Hugging Face id")
    what.add_argument("--no-head", action="store_true", help="do not hold the LM head, even with the last layer")
    where = parser.add_argument_group("whom to join")
    where.add_argument(
        "--initial-peers", nargs="+", default=[], metavar="ADDRESS", help="addresses other servers print"
    )
    where.add_argument("--new-swarm", action="store_true", help="start a swarm of one's own, for others to join")
    where.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    where.add_argument("--port", type=int, default=0, help="TCP port to listen on (default: any free one)")
    where.add_argument("--announce", nargs="+", default=[], metavar="ADDRESS", help="addresses to tell others instead")
    where.add_argument("--relay", nargs="+", default=[], metavar="ADDRESS", help="relays to use behind a NAT")
    where.add_argument("--identity", type=Path, help="key file; made if missing (default: in the data folder)")
    where.add_argument("--public-name", default="", help="what others see beside the peer id")
    how = parser.add_argument_group("how to compute")
    how.add_argument("--device", default="auto", help="auto, cpu, cuda, cuda:N or mps (ROCm counts as cuda)")
    how.add_argument("--dtype", default="auto", choices=("auto", *DTYPE_BYTES), help="auto: the checkpoint's own")
    how.add_argument("--quantization", default="none", choices=QUANTIZATIONS, help="of the weights, by bitsandbytes")
    how.add_argument("--kv-tokens", type=int, metavar="N", help="KV budget over all sessions (default: a quarter of "
                     "free memory)")  # fmt: skip
    how.add_argument("--threads", type=int, metavar="N", help="CPU threads of one forward (default: torch's choice)")
    how.add_argument("--max-sessions", type=int, default=DEFAULTS.max_sessions, metavar="N", help="at once")
    how.add_argument("--idle-timeout", type=float, default=DEFAULTS.idle_timeout_s, metavar="S",
                     help="close a session without a step for this long (default: 300 s)")  # fmt: skip
    how.add_argument("--drain-timeout", type=float, default=DEFAULTS.drain_timeout_s, metavar="S",
                     help="how long Ctrl-C lets running sessions finish (default: 30 s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def run(options: argparse.Namespace) -> int:
    if bool(options.initial_peers) == options.new_swarm:
        raise ConfigError(
            "a server needs either --initial-peers or --new-swarm",
            hint="join with an address another server printed, or start a swarm of your own with --new-swarm",
        )
    if options.kv_tokens is not None and options.kv_tokens < 1:
        raise ConfigError(f"--kv-tokens is {options.kv_tokens}", hint="give at least 1")
    if options.max_sessions < 1:
        raise ConfigError(f"--max-sessions is {options.max_sessions}", hint="give at least 1")
    if len(options.public_name) > 64:
        raise ConfigError("--public-name is longer than 64 characters")
    console: Console = JsonConsole(sys.stdout) if options.json else HumanConsole(sys.stdout)
    span = Span.parse(options.blocks)
    path = options.identity or data_folder() / "identity.key"
    with IdentityLock(path):
        identity = load_or_create(path)
        progress = console.progress if options.json else ProgressLine(sys.stderr)
        files = resolve(options.model, revision=options.revision, progress=progress)
        span = span.within(files.layer_count)
        opened = open_span(files, _request(options, files, span), progress)
        host = Host(options, console, files, identity, path, opened)
        return asyncio.run(host.serve())


def _request(options: argparse.Namespace, files: ModelFiles, span: Span) -> SpanRequest:
    return SpanRequest(
        span=span,
        embeddings=span.start == 0 and not options.no_head,
        head=span.end == files.layer_count and not options.no_head,
        weights=LoadOptions(options.device, options.dtype, options.quantization),
        kv_tokens=options.kv_tokens,
        threads=options.threads,
    )


@dataclass(frozen=True, slots=True)
class Host:
    """One server process from its loaded engine to its end."""

    options: argparse.Namespace
    console: Console
    files: ModelFiles
    identity: Identity
    identity_path: Path
    opened: OpenedSpan

    @property
    def engine(self) -> SpanEngine:
        return self.opened.engine

    async def serve(self) -> int:
        """Join, prove, announce, serve until a signal or a fatal error, leave. Returns the exit code."""
        stop = asyncio.Event()
        hurry = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, lambda: hurry.set() if stop.is_set() else stop.set())
        joining = asyncio.create_task(self._join())
        await asyncio.wait({joining, asyncio.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED)
        if not joining.done():
            joining.cancel()
        try:
            transport, directory, server = await joining
        except asyncio.CancelledError:
            return 130
        try:
            ready = asyncio.create_task(self._open_doors(transport, directory, server))
            await _first(stop, server.fatal, ready)
            await self._leave(server, hurry, ready)
        finally:
            await directory.close()
            await transport.close()
        if ready.done() and not ready.cancelled() and (error := ready.exception()) is not None:
            raise error
        if server.fatal.done():
            raise server.fatal.result()
        self.console.event("stopped", "Stopped; the announcement is withdrawn.")
        return 0

    async def _join(self) -> tuple[Libp2pTransport, HivemindDirectory, Server]:
        options, clock = self.options, SystemClock()
        peers: Sequence[str] = tuple(options.initial_peers)
        transport = await Libp2pTransport.create(
            self.identity_path,
            host=options.host,
            port=options.port,
            announce=tuple(options.announce),
            initial_peers=peers,
            nat=NatOptions(auto_relay=bool(peers), relays=tuple(options.relay)),
        )
        try:
            directory = await HivemindDirectory.create(transport.p2p, peers, clock)
        except BaseException:
            await transport.close()
            raise
        config = ServerConfig(
            max_sessions=options.max_sessions,
            idle_timeout_s=options.idle_timeout,
            drain_timeout_s=options.drain_timeout,
            public_name=options.public_name,
        )
        base = self._announcement(transport.addresses, clock.wall_s(), await transport.reach())
        announcer = Announcer(directory, self.identity, clock, base, config)
        server = Server(ServerParts(transport, self.engine, announcer, clock), config)
        await server.start()
        return transport, directory, server

    def _announcement(self, addresses: tuple[str, ...], now_s: float, reach: Reach) -> Announcement:
        info = self.engine.info
        return Announcement(
            model=str(self.files.model_id),
            layer_count=info.layer_count,
            peer=self.identity.peer_id,
            start=info.span.start,
            end=info.span.end,
            head=info.head,
            embeddings=info.embeddings,
            addresses=addresses[:16],
            reach=reach,
            state=State.JOINING,
            numerics=Numerics(info.dtype, info.quantization),
            kv_tokens=self.engine.free_tokens,
            context_tokens=info.context_tokens,
            memory_bytes=info.memory_bytes,
            software=f"swarm {__version__}",
            public_name=self.options.public_name,
            instance=secrets.randbits(63),
            sequence=0,
            started_s=now_s,
            expires_s=now_s,
        )

    async def _open_doors(self, transport: Libp2pTransport, directory: HivemindDirectory, server: Server) -> None:
        """Banner, self-probe, announcement, READY, in this order."""
        self._banner(transport, server.parts.announcer.current)
        self.console.event("probing", "Checking that this server answers strangers…")
        announcer = server.parts.announcer
        report = await probe(announcer.current, announcer.signed(), self.engine.info.hidden_size)
        await server.announce()
        joined = await directory.servers(self.files.model_id)
        self.console.event(
            "ready",
            f"READY  serving layers {self.engine.info.span} of {self.files.name}; prefill {report.prefill_s * 1e3:.0f} "
            f"ms, decode step {report.decode_s * 1e3:.0f} ms; {len(joined)} servers in the swarm. Ctrl-C to leave.",
            prefill_s=report.prefill_s,
            decode_s=report.decode_s,
            servers=len(joined),
        )
        await asyncio.Event().wait()

    def _banner(self, transport: Libp2pTransport, announced: Announcement) -> None:
        info = self.engine.info
        if self.opened.note:
            self.console.warning(self.opened.note)
        joins = [join_peer(address, transport.peer_id) for address in announced.addresses]
        kv_bytes = announced.kv_tokens * info.kv_bytes_per_token
        lines = [
            f"peer id   {transport.peer_id}",
            f"model     {self.files.model_id}",
            f"span      {info.span} of {info.layer_count} layers"
            + (", with embeddings" if info.embeddings else "")
            + (", with LM head" if info.head else ""),
            f"device    {info.device}, {announced.numerics}",
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
            peer=transport.peer_id,
            model=str(self.files.model_id),
            span=[info.span.start, info.span.end],
            device=info.device,
            numerics=str(announced.numerics),
            memory_bytes=info.memory_bytes,
            kv_tokens=announced.kv_tokens,
            reach=announced.reach.value,
            addresses=joins,
        )

    async def _leave(self, server: Server, hurry: asyncio.Event, ready: asyncio.Task[None]) -> None:
        """Drain, unless a second signal or a fatal error says to go at once."""
        running = len(server.table)
        if running and not server.fatal.done():
            self.console.event("draining", f"Leaving: {running} sessions may finish. Ctrl-C again to go at once.")
        ready.cancel()
        with contextlib.suppress(asyncio.CancelledError, SwarmError):
            await ready
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


async def _first(stop: asyncio.Event, fatal: asyncio.Future[SwarmError], ready: asyncio.Task[None]) -> None:
    waiting = asyncio.create_task(stop.wait())
    things: set[asyncio.Future[Any]] = {waiting, fatal, ready}
    await asyncio.wait(things, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
