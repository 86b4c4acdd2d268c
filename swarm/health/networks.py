"""Which network an address is in: peer ids cost nothing and addresses little, networks something. Pure."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

NOWHERE = ""
"""Of those whose address says nothing: they count as one network."""
PREFIX_BITS = {4: 24, 6: 48}
"""By the version of IP, what one owner commonly has."""
DOMAIN_LABELS = 2
"""At the end of a DNS name: what stands before them is its owner's to make up."""


def network_of(address: str) -> str:
    """The /24 of an IPv4 multiaddress, the /48 of an IPv6 one, the domain of a name; ``NOWHERE`` for anything else.

    That of a relayed address is its relay's: who comes that way is nobody in particular.
    """
    parts = address.split("/")
    if len(parts) < 3:
        return NOWHERE
    if parts[1].startswith("dns"):
        return ".".join(parts[2].lower().rstrip(".").split(".")[-DOMAIN_LABELS:])
    try:
        host = ipaddress.ip_address(parts[2])
    except ValueError:
        return NOWHERE
    return str(ipaddress.ip_network((host, PREFIX_BITS[host.version]), strict=False))


def first_network(addresses: Sequence[str]) -> str:
    """That of the first address that has one."""
    return next((network for address in addresses if (network := network_of(address))), NOWHERE)
