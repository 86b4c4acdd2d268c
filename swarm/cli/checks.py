"""Mistakes on the command line that can be told at once, before libraries that take seconds to import."""

from __future__ import annotations

from collections.abc import Iterable

from swarm.core.errors import ConfigError
from swarm.transport.addresses import split_peer


def check_addresses(flag: str, addresses: Iterable[str], *, with_peer: bool = True) -> None:
    """Raise ``ConfigError`` for an address that is plainly none, or does not say whose it is but must.

    The transport looks closer later; here only what people mistype or cut short.
    """
    example = "/ip4/203.0.113.7/tcp/31337" + ("/p2p/12D3KooW…" if with_peer else "")
    for address in addresses:
        parts = address.split("/")
        if parts[0] or len(parts) < 3:
            raise ConfigError(f"{flag}: {address!r} is not an address", hint=f"write it like {example}")
        if with_peer and split_peer(address)[1] is None:
            hint = f"copy it whole from the server's output; it looks like {example}"
            raise ConfigError(f"{flag}: {address!r} does not say whose it is", hint=hint)
