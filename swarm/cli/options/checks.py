"""Mistakes on the command line that can be told at once, before libraries that take seconds to import."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from swarm.core.errors import ConfigError
from swarm.transport.addresses import split_peer
from swarm.transport.multiaddr import to_bytes

AUTO = "auto"
"""As ``--blocks``: the server chooses for itself."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kMGT]?)(i?)B?")
_POWERS = {"": 0, "k": 1, "M": 2, "G": 3, "T": 4}


def check_addresses(flag: str, addresses: Iterable[str], *, with_peer: bool = True) -> None:
    """Raise ``ConfigError`` for an address that is none, or does not say whose it is but must."""
    example = "/ip4/203.0.113.7/tcp/31337" + ("/p2p/12D3KooW…" if with_peer else "")
    whole = f"copy it whole from the server's output; it looks like {example}"
    for address in addresses:
        parts = address.split("/")
        if parts[0] or len(parts) < 3:
            raise ConfigError(f"{flag}: {address!r} is not an address", hint=f"write it like {example}")
        if with_peer and split_peer(address)[1] is None:
            raise ConfigError(f"{flag}: {address!r} does not say whose it is", hint=whole)
        try:
            to_bytes(address)
        except ConfigError as error:
            raise ConfigError(f"{flag}: {error.message}", hint=whole if with_peer else error.hint) from error


def read_max_memory(items: Sequence[str]) -> dict[int | str, int] | None:
    """Bytes by GPU number or ``cpu`` from ``["0=8GB", "cpu=16GiB"]``, None for none; ``ConfigError`` if unreadable."""
    limits: dict[int | str, int] = {}
    for item in items:
        device, _, text = item.partition("=")
        size = _SIZE.fullmatch(text)
        if size is None or not (device == "cpu" or device.isdecimal()):
            raise ConfigError(f"cannot read --max-memory {item!r}", hint="write DEVICE=SIZE, like 0=8GB or cpu=16GB")
        base = 1024 if size[3] else 1000
        limits["cpu" if device == "cpu" else int(device)] = int(float(size[1]) * base ** _POWERS[size[2]])
    return limits or None
