"""Multiaddresses as text: which part is the peer, which is public, and what that says about reach. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable

from swarm.core.announcement import Reach
from swarm.core.ids import PeerId

_PEER = "/p2p/"
_CIRCUIT = "/p2p-circuit"
_UNICAST = ipaddress.ip_network("2000::/3")
"""The part of IPv6 that is given out; the rest that counts as global is deprecated, or maps private IPv4 addresses."""
_TUNNELLED = ipaddress.ip_network("2002::/16")
"""6to4: carries any IPv4 address, private ones too."""


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
        host = ipaddress.ip_address(parts[2]) if parts[1] in ("ip4", "ip6") else None
    except ValueError:
        return False
    if host is None or not host.is_global or host.is_multicast:
        return False
    return host.version == 4 or (host in _UNICAST and host not in _TUNNELLED)


def household(address: str) -> str:
    """What counts as one place when strangers are counted: an IPv4 address, or the /64 of an IPv6 one.

    Empty for this machine, for streams that come through a relay (others do too), and for what is no address.
    """
    parts = address.split("/")
    if len(parts) < 3 or is_relayed(address) or is_loopback(address):
        return ""
    try:
        host = ipaddress.ip_address(parts[2])
    except ValueError:
        return ""
    return str(ipaddress.ip_network((host, 32 if host.version == 4 else 64), strict=False))


def is_neighbour(address: str, own: Iterable[str]) -> bool:
    """True if the address lies in a private network with one of our ``own``: the same /24, or /64 in IPv6."""
    place = _network(address)
    return place is not None and any(_network(other) == place for other in own)


def _network(address: str) -> str | None:
    """The private network of a direct address; None for this machine's own, public and relayed ones, and names."""
    parts = address.split("/")
    if len(parts) < 3 or is_relayed(address) or is_loopback(address) or is_public(address):
        return None
    try:
        host = ipaddress.ip_address(parts[2])
    except ValueError:
        return None
    if not host.is_private or host.is_loopback or host.is_link_local or host.is_unspecified:
        return None
    return str(ipaddress.ip_network((host, 24 if host.version == 4 else 64), strict=False))


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
