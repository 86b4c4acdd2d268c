"""``swarm bootstrap``: a peer that holds no layers, and through which others find each other: its address stays."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from swarm.cli.hosting.outages import follow_outages
from swarm.cli.joining import add_joining, check_joining, joining_text
from swarm.cli.options.checks import check_addresses
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.signals import STOPPED_EARLY, Signals, first_of, stop_imports, unless_stopped
from swarm.core.clock import Clock
from swarm.core.errors import ConfigError
from swarm.runtime.clock import SystemClock
from swarm.runtime.files import raise_open_file_limit
from swarm.runtime.folders import data_folder
from swarm.runtime.identity import IdentityLock, load_or_create
from swarm.transport.addresses import is_loopback, is_public, is_relayed, join_peer

if TYPE_CHECKING:
    from swarm.cli.neighbourhood import Neighbourhood
    from swarm.dht.hivemind_directory import HivemindDirectory
    from swarm.transport.libp2p import Libp2pTransport

DEFAULT_PORT = 31337
REPORT_EVERY_S = 300.0
LOOK_EVERY_S = 5.0

EXAMPLES = """\
examples:
  on a machine with an open port, whose address stays:
    python -m swarm bootstrap
  behind a router that forwards the port, or under a name:
    python -m swarm bootstrap --announce /dns4/swarm.example.org/tcp/31337
  a second one, so that the swarm outlives either (each may name the other, whichever starts first):
    python -m swarm bootstrap --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...

Servers and clients give the address that it prints as --initial-peers. It needs no model, no GPU and some 350 MB of
memory: it holds signed records of who serves what (each is checked before it is kept), introduces peers to each other,
and lends its address to servers behind a NAT until they have a direct way. No prompt, no answer and no weights pass
through it, except for relayed servers, encrypted. Its key makes its address: keep the file, or a copy of it.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Run a stable first peer that others join through, until Ctrl-C. It holds no layers."
    parser.epilog = EXAMPLES
    where = parser.add_argument_group("where others find it")
    where.add_argument("--host", default="0.0.0.0", help="address to listen on (default: all)")
    where.add_argument("--port", type=int, default=DEFAULT_PORT, help="TCP port to listen on (default: "
                       f"{DEFAULT_PORT}; 0: any free one, another after each start)")  # fmt: skip
    where.add_argument("--announce", nargs="+", default=[], metavar="ADDRESS", help="addresses to tell others instead "
                       "of those it finds, like /dns4/swarm.example.org/tcp/31337")  # fmt: skip
    where.add_argument("--identity", type=Path, metavar="FILE", help="key file, made if missing (default: "
                       "bootstrap.key in the data folder); the printed addresses change with it")  # fmt: skip
    add_joining(parser.add_argument_group("other peers to know, if there are any"))
    parser.add_argument("--no-relay", action="store_true", help="do not relay for servers behind a NAT")
    parser.add_argument("--report-every", type=float, default=REPORT_EVERY_S, metavar="S",
                        help=f"between two lines that say how it is (default: {REPORT_EVERY_S:g} s)")  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of text")


def check(options: argparse.Namespace) -> None:
    """Raise ``ConfigError`` for what is wrong whatever the network says."""
    check_joining(options, alone=True)
    check_addresses("--announce", options.announce, with_peer=False)
    if not 0 <= options.port <= 65535:
        raise ConfigError(f"--port {options.port} is outside 0 to 65535", hint="0 takes any free one")
    if not 0 < options.report_every < float("inf"):
        raise ConfigError(f"--report-every is {options.report_every}", hint="give seconds, more than 0")


def run(options: argparse.Namespace) -> int:
    check(options)
    console: Console = JsonConsole(sys.stdout) if options.json else HumanConsole(sys.stdout)
    path = options.identity or data_folder() / "bootstrap.key"
    with IdentityLock(path):
        load_or_create(path)
        with stop_imports():  # what the network needs takes a second to import: mistakes are told before that
            import swarm.cli.neighbourhood
            import swarm.dht.hivemind_directory  # noqa: F401
        return asyncio.run(_run(options, console, path))


async def _run(options: argparse.Namespace, console: Console, path: Path) -> int:
    raise_open_file_limit()
    signals = Signals(asyncio.get_running_loop())
    async with contextlib.AsyncExitStack() as stack:
        with console.waiting(joining_text(options.initial_peers)):
            node = await unless_stopped(signals.stop, stack.enter_async_context(running(options, console, path)))
        if node is None:
            return STOPPED_EARLY
        work = node.start(options.report_every)
        broken = asyncio.create_task(node.transport.wait_broken())
        try:
            await first_of(signals.stop, broken, *work)
            if broken.done():
                raise broken.result()
            for task in work:
                if task.done():
                    await task
        finally:
            broken.cancel()
            for task in work:
                task.cancel()
            await asyncio.gather(broken, *work, return_exceptions=True)
        console.event("stopped", "Stopped. Others keep their connections to each other.")
    return 0


@dataclass(slots=True)
class Bootstrap:
    """A running peer, and what is told of it."""

    transport: Libp2pTransport
    directory: HivemindDirectory
    near: Neighbourhood | None
    console: Console
    clock: Clock
    told: tuple[str, ...] = ()

    def start(self, report_every_s: float) -> list[asyncio.Task[NoReturn]]:
        """Begin what goes on until the end."""
        work = [
            self._follow_addresses(),
            self._report(report_every_s),
            follow_outages(self.directory.keeper, self.console, lambda: None),
            *([] if self.near is None else [self.near.follow()]),
        ]
        return [asyncio.create_task(each) for each in work]

    async def _follow_addresses(self) -> NoReturn:
        """Say how others join, and again whenever that changes: observed addresses come minutes after the start."""
        while True:
            await self.transport.refresh()
            if self.transport.addresses != self.told:
                self._say_ready(first=not self.told)
            await self.clock.sleep(LOOK_EVERY_S)

    def _say_ready(self, *, first: bool) -> None:
        self.told = self.transport.addresses
        wide = [address for address in self.told if not is_loopback(address)]
        joins = [join_peer(address, self.transport.peer_id) for address in wide or self.told]
        public = any(is_public(address) and not is_relayed(address) for address in wide)
        begin = "READY" if first else "Now at other addresses"
        lines = [f"{begin}  {self.transport.peer_id}", "", "Servers and clients join with one of:"]
        lines += [f"  --initial-peers {join}" for join in joins]
        name, fields = "ready" if first else "reach", {"peer": self.transport.peer_id, "addresses": joins}
        self.console.event(name, "\n".join(lines), public=public, **fields)
        if wide and not public:
            self.console.warning(
                "only this network can dial that: for the internet forward the port, and --announce the public address"
            )

    async def _report(self, every_s: float) -> NoReturn:
        began_s = self.clock.monotonic_s()
        while True:
            await self.clock.sleep(every_s)
            peers, records, up_s = len(self.directory.known()), self.directory.held, self.clock.monotonic_s() - began_s
            self.console.event(
                "health",
                f"{peers} peers known, {records} records held, {self.directory.dropped} refused, "
                f"up for {duration(up_s)}",
                peers=peers,
                records=records,
                refused=self.directory.dropped,
                uptime_s=round(up_s, 1),
            )


def duration(seconds: float) -> str:
    """Time as people say it: one figure, rounded down."""
    for unit, length_s in (("days", 86400.0), ("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 2 * length_s:
            return f"{int(seconds / length_s)} {unit}"
    return f"{int(seconds)} seconds"


@contextlib.asynccontextmanager
async def running(options: argparse.Namespace, console: Console, path: Path) -> AsyncIterator[Bootstrap]:
    """The peer with the key at ``path``; initial peers that do not answer are tried on, so that two can name each
    other. Raises as ``Libp2pTransport.create`` does."""
    from swarm.dht.hivemind_directory import HivemindDirectory
    from swarm.transport.libp2p import Libp2pTransport
    from swarm.transport.options import NatOptions
    from swarm.transport.pulse import PulseKeeper

    clock, nat = SystemClock(), NatOptions(serve_relay=not options.no_relay)
    peers = tuple(options.initial_peers)
    transport = await Libp2pTransport.create(
        path, host=options.host, port=options.port, announce=tuple(options.announce), nat=nat
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(transport.close)
        await PulseKeeper(transport, clock).serve()  # so that others can measure the way here
        directory = await HivemindDirectory.create(transport.p2p, peers, clock, must_join=False)
        stack.push_async_callback(directory.close)
        if peers and not directory.known():
            console.warning("none of --initial-peers answers yet: starting without them, and trying again")
        near = await _neighbourhood(options, console, transport, directory) if options.lan else None
        if near is not None:
            stack.push_async_callback(near.network.close)
        yield Bootstrap(transport, directory, near, console, clock)


async def _neighbourhood(
    options: argparse.Namespace, console: Console, transport: Libp2pTransport, directory: HivemindDirectory
) -> Neighbourhood:
    from swarm.cli.neighbourhood import Neighbourhood
    from swarm.transport.lan import Notice
    from swarm.transport.lan_mdns import MdnsNetwork

    network = await MdnsNetwork.open(host=options.host, swarm=options.lan_name)
    near = Neighbourhood(network, directory, SystemClock(), console)
    try:
        await near.enter(Notice(transport.peer_id, transport.addresses, options.lan_name))
    except BaseException:
        await network.close()
        raise
    return near
