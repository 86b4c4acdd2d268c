"""Evidence has one encoding: whoever sends another gets nowhere, so that its hash is its name."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from swarm.core.errors import BadProofError, MisuseError, PeerError

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def read_canonical(
    data: bytes,
    decoder: msgspec.msgpack.Decoder[T],
    *,
    most_bytes: int,
    what: str,
    error: type[PeerError] = BadProofError,
) -> T:
    """What ``data`` encodes, if msgpack in its shortest form would write the same; else ``error`` names ``what``."""
    if len(data) > most_bytes:
        raise error(f"a {what} of {len(data)} bytes")
    try:
        found = decoder.decode(data)
    except (msgspec.DecodeError, MisuseError, RecursionError) as caught:  # MisuseError: no sender of ours makes such
        raise error(f"malformed {what}: {caught}") from caught
    if _encoder.encode(found) != data:
        raise error(f"a {what} in another than its canonical form")
    return found
