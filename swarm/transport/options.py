"""What a libp2p node is started with: addresses, ports and NAT options, checked before the daemon sees them."""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal

from swarm.core.errors import ConfigError
from swarm.transport.addresses import split_peer
from swarm.transport.multiaddr import to_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NatOptions:
    """How to be reached from behind a NAT.

    ``relays`` (multiaddresses with their ``/p2p/`` part) are used at once and announced: whoever gives them knows that
    nobody can dial this node. Without any, ``auto_relay`` has libp2p find out whether that is so, and then look for
    relays among the initial peers and those they know; with fewer than four candidates it takes the first after three
    minutes. ``port_map`` asks the router for a port (UPnP, NAT-PMP). ``serve_relay`` offers ours to others once we are
    known to be public. ``reachability`` overrules libp2p's finding. ``dht_mode`` is the part taken in libp2p's address
    book: ``client`` for nodes that come and go.
    """

    auto_relay: bool = False
    relays: tuple[str, ...] = ()
    port_map: bool = True
    serve_relay: bool = True
    reachability: Literal["auto", "public", "private"] = "auto"
    dht_mode: Literal["auto", "server", "client"] = "server"


def daemon_flags(listen: str, announce: tuple[str, ...], initial_peers: tuple[str, ...], nat: NatOptions) -> list[str]:
    """The daemon's command line; ``ConfigError`` for a malformed address or one that lacks its peer."""
    for address in (*initial_peers, *nat.relays):
        if split_peer(checked(address))[1] is None:
            raise ConfigError(f"{address!r} does not name a peer", hint="write it as /ip4/…/tcp/…/p2p/<peer id>")
    for address in announce:
        if "/tcp/0" in f"{checked(address)}/" or "/udp/0/" in f"{address}/":
            raise ConfigError(f"cannot announce port 0: {address!r}", hint="announce the port that is open outside")
    loopback = listen.startswith(("/ip4/127.", "/ip6/::1/"))
    relays = nat.relays or (initial_peers if nat.auto_relay else ())
    flags = [
        f"-hostAddrs={listen}",
        f"-autonat={int(not loopback)}",
        f"-natPortMap={int(nat.port_map and not loopback)}",
        f"-autoRelay={int(nat.auto_relay or bool(nat.relays))}",
        f"-relayDiscovery={int(not nat.relays)}",
        f"-relayService={int(nat.serve_relay)}",
        "-relayTimeLimit=24h",
        "-relay=1",
        "-connManager=1",
        "-connLo=1024",  # above connHi it closes connections, streams or not, down to connLo
        "-connHi=2048",
        "-tls=1",
        "-idleTimeout=30s",
        {"auto": "-dht=1", "server": "-dhtServer=1", "client": "-dhtClient=1"}[nat.dht_mode],
    ]
    reachability = "private" if nat.relays and nat.reachability == "auto" else nat.reachability
    if reachability != "auto":
        flags.append(f"-forceReachability{reachability.capitalize()}=1")
    if announce:
        flags.append(f"-announceAddrs={','.join(announce)}")
    if relays:
        flags.append(f"-trustedRelays={','.join(relays)}")
    return flags


def checked(address: str) -> str:
    """The multiaddress itself, or ``ConfigError`` if it is none."""
    to_bytes(address)
    return address


def dialable(address: str) -> str | None:
    """The address without its peer part, or None if it cannot be read (a peer may announce anything)."""
    with suppress(ConfigError):
        return split_peer(checked(address))[0]
    return None


def listen_address(host: str, port: int) -> str:
    """The multiaddress of a host (a name or an address of this machine) and TCP port; ``ConfigError`` if it is none."""
    if not 0 <= port <= 65535:
        raise ConfigError(f"port {port} is outside 0 to 65535")
    try:
        family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host!r}: {error.strerror}", hint="give an address of this machine"
        ) from error
    kind = "ip6" if family == socket.AF_INET6 else "ip4"
    return f"/{kind}/{str(where[0]).partition('%')[0]}/tcp/{port}"


def check_port(host: str, port: int) -> None:
    """Bind the port once ourselves. The daemon listens with SO_REUSEPORT, so it would share a port with another
    daemon in silence, each getting half of the connections."""
    family, *_, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(where)
        except OSError as error:
            reason = error.strerror or str(error)
            hint = "choose another port, or 0 for any free one" if port else "give an address of this machine"
            raise ConfigError(f"cannot listen on {host} port {port}: {reason}", hint=hint) from error
