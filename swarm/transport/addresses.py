"""Multiaddresses as text: which part is the peer, which is public, and what that says about reach. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from swarm.core.ids import PeerId
from swarm.core.records import Reach

_PEER = "/p2p/"
_CIRCUIT = "/p2p-circuit"


def split_peer(address: str) -> tuple[str, PeerId | None]:
    """``("/ip4/…/tcp/…", peer)``: the address without its last ``/p2p/`` part, and that part or None.

    The relay named inside a circuit address (``…/p2p/RELAY/p2p-circuit``) is part of the way, not the peer.
    """
    head, marker, tail = address.rpartition(_PEER)
    if marker and tail and "/" not in tail:
        return head, PeerId(tail)
    return address, None


def join_peer(address: str, peer: PeerId) -> str:
    """The address with ``/p2p/<peer>`` at its end: what another node needs as an initial peer."""
    return f"{split_peer(address)[0]}{_PEER}{peer}"


def is_relayed(address: str) -> bool:
    """True if the address leads through a relay."""
    return _CIRCUIT in address


def is_loopback(address: str) -> bool:
    """True if only this machine can dial it."""
    parts = address.split("/")
    host = parts[2] if len(parts) > 2 else ""
    return host.startswith("127.") or host in ("::1", "localhost")


def is_public(address: str) -> bool:
    """True if strangers on the internet could dial it: a DNS name, or an address outside the private ranges."""
    parts = address.split("/")
    if len(parts) < 3:
        return False
    if parts[1] in ("dns", "dns4", "dns6", "dnsaddr"):
        return parts[2] != "localhost"
    try:
        return parts[1] in ("ip4", "ip6") and ipaddress.ip_address(parts[2]).is_global
    except ValueError:
        return False


def widest_first(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses, those that most others can dial first: public, relayed, this network's, this machine's own."""

    def rank(address: str) -> int:
        if is_relayed(address):
            return 1
        if is_public(address):
            return 0
        return 3 if is_loopback(address) else 2

    return tuple(sorted(addresses, key=rank))


def reach_of(addresses: Iterable[str], initial_peers: Iterable[str]) -> Reach:
    """What can be known of how others reach a node, from its visible addresses and the peers it joined through.

    A direct public address: ``DIRECT`` (libp2p withdraws public addresses its peers could not dial back). Only
    circuit addresses beyond private ones: ``RELAYED``. Only private addresses: ``DIRECT`` in a private swarm, whose
    initial peers are all private too; ``UNREACHABLE`` when the swarm is on the internet.
    """
    visible = tuple(addresses)
    if any(is_public(address) and not is_relayed(address) for address in visible):
        return Reach.DIRECT
    if any(is_relayed(address) for address in visible):
        return Reach.RELAYED
    if visible and not any(is_public(peer) for peer in initial_peers):
        return Reach.DIRECT
    return Reach.UNREACHABLE
