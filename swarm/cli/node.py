"""A node that only asks: a libp2p daemon and a client of the directory, for commands that look at a swarm."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from swarm.cli.joining import find_initial_peers, joining_text
from swarm.cli.output.live_line import LiveLine, waiting
from swarm.runtime.clock import SystemClock
from swarm.runtime.identity import load_or_create

if TYPE_CHECKING:
    from swarm.dht.hivemind_directory import HivemindDirectory
    from swarm.transport.libp2p import Libp2pTransport


@dataclass(frozen=True, slots=True)
class AskingNode:
    """``peers`` are the addresses it joined through."""

    transport: Libp2pTransport
    directory: HivemindDirectory
    clock: SystemClock
    peers: Sequence[str]


@asynccontextmanager
async def asking_node(options: argparse.Namespace, *, host: str) -> AsyncIterator[AskingNode]:
    """Join the swarm that ``add_joining``'s options name, as ``options.identity`` if that is given.

    ``host`` is the address to listen on. Raises ``ConfigError`` and ``NetworkError`` as joining does.
    """
    with waiting(LiveLine(sys.stderr, logs=False), joining_text(options.initial_peers)):
        node = await _joined(options, host=host)
    try:
        yield node
    finally:
        await node.directory.close()
        await node.transport.close()


async def _joined(options: argparse.Namespace, *, host: str) -> AskingNode:
    from swarm.dht.hivemind_directory import HivemindDirectory
    from swarm.transport.libp2p import Libp2pTransport
    from swarm.transport.options import NatOptions

    clock = SystemClock()
    peers = await find_initial_peers(options, host=host)
    nat = NatOptions(dht_mode="client", serve_relay=False, port_map=False)
    if options.identity is not None:
        load_or_create(options.identity)
    transport = await Libp2pTransport.create(options.identity, host=host, initial_peers=peers, nat=nat)
    try:
        directory = await HivemindDirectory.create(transport.p2p, peers, clock, client_mode=True)
    except BaseException:
        await transport.close()
        raise
    return AskingNode(transport, directory, clock, peers)
