"""``python -m swarm.health``: a swarm in a browser, as JSON and for Prometheus."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from contextlib import AsyncExitStack
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from swarm.cli.joining import add_joining, check_joining
from swarm.cli.node import AskingNode, asking_node
from swarm.cli.options.http_options import add_http, base_url, check_http, is_loopback, known_hosts
from swarm.cli.output.console import Console, HumanConsole, JsonConsole
from swarm.cli.output.tables import option_name
from swarm.cli.signals import STOPPED_EARLY, Signals, first_of, stop_imports, unless_stopped
from swarm.core.errors import ConfigError, NetworkError
from swarm.health.options import HealthOptions
from swarm.runtime.clock import SystemClock
from swarm.runtime.folders import data_folder
from swarm.runtime.reputation import ReputationStore

if TYPE_CHECKING:
    from swarm.health.state import SwarmState
    from swarm.health.watching.watch import Watch

DEFAULTS = HealthOptions()
ALL_INTERFACES = "0.0.0.0"
HISTORY_FILE = "health-history.sqlite"
IN_MEMORY = ":memory:"
ONCE_S = 15.0
"""So long `--once` waits for servers to say how they are."""
EXAMPLES = """\
examples:
  a page at http://127.0.0.1:8080/ for this machine:
    python -m swarm.health --initial-peers /ip4/192.0.2.1/tcp/31337/p2p/12D3KooW...
  what it knows now, as JSON, for a script:
    python -m swarm.health --initial-peers ... --once
  for a network, behind a proxy that calls it swarm.example.org:
    python -m swarm.health --initial-peers ... --host 0.0.0.0 --allow-host swarm.example.org

It reads the swarm's directory, asks every server how it is, and shows what it made of both: /api/v1/state is the same
as JSON, /api/v1/stream tells of changes, /metrics is for Prometheus (docs/health.md). A swarm without any server is
shown as that; servers appear within seconds.

who may look: with the default --host this machine alone. With --host 0.0.0.0 everybody who reaches the port; the page
only shows, changes nothing, and holds no secrets. What it shows (public names, peer ids, layers, speeds) every member
of the swarm can read in the directory anyway; of sessions it knows random labels and times, never who or what.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = "Watch a swarm: a page for people, JSON and Prometheus for programs."
    parser.epilog = EXAMPLES
    parser.set_defaults(rivals=[("history", "no_history")])
    where = parser.add_argument_group("which swarm")
    add_joining(where)
    where.add_argument("--model", nargs="+", default=[], metavar="MODEL",
                       help="only these, by their name or id in the swarm (default: all that it lists)")  # fmt: skip
    where.add_argument("--identity", type=Path,
                       help="key file of this page's node, made if missing (default: a new key each time)")  # fmt: skip
    _add_http(parser.add_argument_group("who may look"))
    kept = parser.add_argument_group("what is kept")
    kept.add_argument("--history", type=Path, metavar="FILE",
                      help=f"where the last 24 hours are kept (default: {HISTORY_FILE} in the data "
                      "folder)")  # fmt: skip
    kept.add_argument("--no-history", action="store_true", help="keep them in memory, until the end")
    kept.add_argument("--store", type=Path, metavar="FILE", help="what this machine found of servers' honesty "
                      "(default: what its verifiers and clients keep)")  # fmt: skip
    parser.add_argument("--once", action="store_true", help="print the state as JSON and end, without any page")
    parser.add_argument("--json", action="store_true", help="print events as JSON, one a line")


def _add_http(group: argparse._ArgumentGroup) -> None:
    add_http(group, port=8080, page="page", share=DEFAULTS.connections_per_address)
    group.add_argument("--streams", type=int, default=DEFAULTS.streams, metavar="N",
                       help=f"live readers at once (default: {DEFAULTS.streams}); others come back later")  # fmt: skip
    group.add_argument("--streams-per-address", type=int, default=DEFAULTS.streams_per_address, metavar="N",
                       help=f"of them from one address (default: {DEFAULTS.streams_per_address}; behind a proxy all "
                       "come from the proxy's)")  # fmt: skip


def run(options: argparse.Namespace) -> int:
    check_joining(options)
    checked = health_options(options)
    history_file(options)
    console: Console = JsonConsole(sys.stdout) if options.json else HumanConsole(sys.stdout)
    with stop_imports():  # what the loop needs takes seconds to import: mistakes are told before that
        for name in ("swarm.dht.hivemind_directory", "swarm.transport.libp2p", "swarm.health.service"):
            import_module(name)
    with ReputationStore(options.store or ReputationStore.default_path(), SystemClock()) as store:
        return asyncio.run(_look(options, checked, store, console))


def health_options(options: argparse.Namespace) -> HealthOptions:
    """The page's options, checked. ``ConfigError`` names what is wrong."""
    check_http(options)
    for flag in ("streams", "streams_per_address"):
        if getattr(options, flag) < 1:
            raise ConfigError(f"{option_name(flag)} is {getattr(options, flag)}", hint="give at least 1")
    return HealthOptions(
        hosts=known_hosts(options),
        origins=tuple(options.cors_origin),
        page=not options.no_page,
        streams=options.streams,
        streams_per_address=options.streams_per_address,
        connections_per_address=options.connections_per_address,
    )


def history_file(options: argparse.Namespace) -> Path | str:
    """Where the history is kept; ``ConfigError`` for two answers, or a user without a home."""
    if options.no_history and options.history is not None:
        raise ConfigError("--history and --no-history are both given", hint="give one of them")
    if options.no_history or options.once:
        return IN_MEMORY
    return options.history or data_folder() / HISTORY_FILE


async def _look(options: argparse.Namespace, checked: HealthOptions, store: ReputationStore, console: Console) -> int:
    """Join, unless told to stop meanwhile; then one look, or a page until the end."""
    signals = Signals(asyncio.get_running_loop())
    async with AsyncExitStack() as stack:
        joining = stack.enter_async_context(asking_node(options, host=ALL_INTERFACES))
        if (node := await unless_stopped(signals.stop, joining)) is None:
            return STOPPED_EARLY
        watch = _watch(options, node, store)
        if options.once:
            return await _once(watch, node, signals)
        await _serve(options, checked, watch, node, signals, console)
        return 0


def _watch(options: argparse.Namespace, node: AskingNode, store: ReputationStore) -> Watch:
    from swarm.health.watching.watch import Watch, WatchOptions, WatchParts

    asked = WatchOptions(models=tuple(options.model), initial_peers=node.peers, history=history_file(options))
    return Watch(WatchParts(node.transport, node.directory, node.clock, store), asked)


async def _once(watch: Watch, node: AskingNode, signals: Signals) -> int:
    """Print one state; raises ``NetworkError`` if the directory does not answer."""
    watching = asyncio.create_task(watch.run())
    looking = asyncio.create_task(_first_sight(watch, ONCE_S))
    broken = asyncio.create_task(node.transport.wait_broken())
    try:
        await first_of(signals.stop, watching, looking, broken)
        if signals.stop.is_set():
            return STOPPED_EARLY
        if broken.done():
            raise broken.result()
        if watching.done():
            watching.result()
        state = looking.result()
    finally:
        await _cancelled(watching, looking, broken)
    if state.observer.directory_at is None:
        raise NetworkError(
            state.observer.problem or "the directory does not answer", hint="is a server of --initial-peers running?"
        )
    print(msgspec.json.encode(state).decode())
    return 0


async def _first_sight(watch: Watch, limit_s: float) -> SwarmState:
    """The first state in which every server has told how it is or why not; after ``limit_s`` whatever there is."""
    state = watch.state()
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            while state.observer.directory_at is None or not _all_asked(state):
                state = await watch.changed(state.revision)
    return state


def _all_asked(state: SwarmState) -> bool:
    return all(server.stats or server.stats_note for model in state.models for server in model.servers)


async def _serve(
    options: argparse.Namespace,
    checked: HealthOptions,
    watch: Watch,
    node: AskingNode,
    signals: Signals,
    console: Console,
) -> None:
    """Serve until told to stop; raises what ends the watch, or that the libp2p daemon died."""
    from swarm.health.service import HealthService

    service = HealthService(watch, node.clock, checked)
    tasks: list[asyncio.Task[Any]] = []
    try:
        _announce(options, await service.listen(options.host, options.port), console)
        running = asyncio.create_task(service.run())
        broken = asyncio.create_task(node.transport.wait_broken())
        tasks += [running, broken, asyncio.create_task(_tell(watch, console))]
        await first_of(signals.stop, running, broken)
        if broken.done():
            raise broken.result()
        if running.done():
            running.result()
    finally:
        await service.stop()
        await _cancelled(*tasks)


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(watch: Watch, console: Console) -> None:
    """Say once what is there, and what is wrong whenever that changes."""
    state = watch.state()
    problem, seen = "", False
    while True:
        if state.observer.directory_at is not None and not seen:
            seen = True
            servers = sum(len(model.servers) for model in state.models)
            text = f"The swarm has {_count(len(state.models), 'model')} and {_count(servers, 'server')}."
            if not servers:
                text = "No server is in the swarm yet; the page shows them as they come."
            console.event("watching", text, models=len(state.models), servers=servers)
        if state.observer.problem != problem:
            problem = state.observer.problem
            text = f"What is shown may be old: {problem}" if problem else "The directory answers again."
            console.event("problem" if problem else "recovered", text, problem=problem)
        state = await watch.changed(state.revision)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _announce(options: argparse.Namespace, port: int, console: Console) -> None:
    url = base_url(options.host, port)
    page = "" if options.no_page else f"a page:      {url}/\n"
    text = f"listening on {url}\n{page}as JSON:     {url}/api/v1/state\nPrometheus:  {url}/metrics"
    console.event("listening", text, url=url, port=port)
    if not is_loopback(options.host):
        console.event("public", "Everybody who reaches this port may look (nothing can be changed through it).")
