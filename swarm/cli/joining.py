"""How a command comes into a swarm: by addresses that servers print, or by looking around on the local network."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from swarm.cli.options.checks import check_addresses
from swarm.core.errors import ConfigError
from swarm.transport.addresses import split_peer
from swarm.transport.lan import LOOK_S, check_swarm_name


def add_joining(group: argparse._ArgumentGroup | argparse.ArgumentParser) -> None:
    """``--initial-peers``, ``--lan`` and ``--lan-name``, the same in all commands; ``check_joining`` wants one."""
    group.add_argument("--initial-peers", nargs="+", default=[], metavar="ADDRESS", help="whom to join through: "
                       "addresses as servers and `bootstrap` print them; one that answers is enough")  # fmt: skip
    group.add_argument(
        "--lan",
        action="store_true",
        help=f"find peers on the local network without any address: those that run with --lan too (looks {LOOK_S:g} s)",
    )
    group.add_argument(
        "--lan-name", default="", metavar="NAME",
        help="with --lan: only those that were given the same name, so that several swarms in one network stay apart",
    )  # fmt: skip


def check_joining(options: argparse.Namespace, *, alone: bool = False) -> None:
    """Raise ``ConfigError`` for malformed addresses, and where nothing says whom to join unless ``alone`` is fine."""
    check_addresses("--initial-peers", options.initial_peers)
    check_swarm_name(options.lan_name)
    if options.lan_name and not options.lan:
        raise ConfigError("--lan-name goes with --lan", hint="give both, or neither")
    if not options.initial_peers and not options.lan and not alone:
        raise ConfigError(
            "whom to join? --initial-peers is missing",
            hint="copy an address that a server printed, or find one on the local network with --lan",
        )


def joining_text(initial_peers: Sequence[str]) -> str:
    """Whom a start waits for."""
    if not initial_peers:
        return "starting the network"
    first = split_peer(initial_peers[0])[0]
    return f"joining the swarm through {first}" + (f" and {len(initial_peers) - 1} more" * (len(initial_peers) > 1))


def lan_of(options: argparse.Namespace) -> bool | str:
    """As ``connect``'s option ``lan`` wants it: False, True, or the name of the swarm."""
    return (options.lan_name or True) if options.lan else False


async def find_initial_peers(options: argparse.Namespace, *, host: str) -> tuple[str, ...]:
    """The addresses that were given and those that were found near, on the interface of ``host``.

    Raises ``PeerUnreachableError`` if there are none, ``NetworkError`` if the local network cannot be searched.
    """
    from swarm.client.connect import peers_to_join

    return await peers_to_join(options.initial_peers, lan=lan_of(options), host=host)
