"""Evidence has one encoding: whoever sends another gets nowhere, so that its hash is its name."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from swarm.core.errors import BadProofError

T = TypeVar("T")

_encoder = msgspec.msgpack.Encoder()


def read_canonical(data: bytes, decoder: msgspec.msgpack.Decoder[T], *, most_bytes: int, what: str) -> T:
    """What ``data`` encodes, if msgpack in its shortest form would write the same; ``BadProofError`` names ``what``."""
    try:
        if len(data) > most_bytes:
            raise BadProofError(f"a {what} of {len(data)} bytes")
        found = decoder.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadProofError(f"malformed {what}: {error}") from error
    if _encoder.encode(found) != data:
        raise BadProofError(f"a {what} in another than its canonical form")
    return found
