"""The subnets of this machine's own interfaces: who lives in one is near, whatever kind of address it has."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

import psutil

Host = ipaddress.IPv4Address | ipaddress.IPv6Address
Subnet = ipaddress.IPv4Network | ipaddress.IPv6Network

NEAR = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "169.254.0.0/16", "100.64.0.0/10", "127.0.0.0/8"),
        *("fc00::/7", "fe80::/10", "::1/128"),
    )
)
"""Near on every machine. Named one by one: what is merely not public may be a broadcast, or carry a public IPv4 address
inside IPv6."""
WIDEST_BITS = {4: 16, 6: 48}
"""By the version of IP, the shortest prefix that still is one network: the largest that a single site commonly has, a
/16 of IPv4 or a /48 of IPv6. A shorter one is a mistake or a provider's, and whoever else lives in it a stranger."""


def own_subnets() -> tuple[Subnet, ...]:
    """Those of interfaces that are up, neither loopback nor one end of a tunnel; none where the system does not tell.

    As they are now: a machine that comes into another network later has others.
    """
    try:
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
        interfaces = psutil.net_if_addrs()
    except OSError:
        return ()
    found = (
        subnet_of(entry.address, entry.netmask)
        for name, entries in interfaces.items()
        if name in up
        for entry in entries
        if entry.ptp is None
    )
    return tuple(dict.fromkeys(subnet for subnet in found if subnet is not None))


def subnet_of(address: str, netmask: str | None) -> Subnet | None:
    """The subnet of an interface with this address; None for loopback, for a machine alone, for what is too wide
    (``WIDEST_BITS``), and for what is no address of IP."""
    try:
        host = ipaddress.ip_address(address.partition("%")[0])
        mask = ipaddress.ip_address(netmask or "")
    except ValueError:
        return None
    bits = int(mask).bit_count()
    whole = host.version == mask.version and int(mask) == (1 << bits) - 1 << (mask.max_prefixlen - bits)
    if not whole or host.is_loopback or not WIDEST_BITS[host.version] <= bits < host.max_prefixlen:
        return None
    return ipaddress.ip_network(f"{host}/{bits}", strict=False)


def lives_near(host: Host, subnets: tuple[Subnet, ...]) -> bool:
    """True for a machine in a private network, for this one, and for a machine in one of ``subnets``."""
    if any(host.version == network.version and host in network for network in NEAR):
        return True
    return any(host.version == subnet.version and host in subnet and host not in _nobody(subnet) for subnet in subnets)


def _nobody(subnet: Subnet) -> Iterator[Host]:
    """The addresses of IPv4 that mean the subnet itself, and everybody in it; a link of two (/31) has neither."""
    if subnet.version == 4 and subnet.prefixlen < 31:
        yield from (subnet.network_address, subnet.broadcast_address)
