"""Frames: ``u32 body length · u16 header length · header (msgpack) · payload``, big-endian.

The body length counts everything after itself. Both lengths are checked before anything is allocated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import msgspec

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES
from swarm.wire.evidence import FetchedRows, ProofPart
from swarm.wire.messages import Message, Replay, Result, Step

PREFIX_BYTES = 6
_PREFIX = struct.Struct(">IH")
_HEADER_LENGTH_BYTES = 2
WITH_PAYLOAD = (Step, Replay, Result, FetchedRows, ProofPart)
"""The messages that may carry a payload."""

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(Message)


@dataclass(frozen=True, slots=True)
class Frame:
    """One message and the raw bytes that came with it."""

    message: Message
    payload: memoryview | bytes = b""


def encode_head(message: Message, payload_bytes: int = 0) -> bytes:
    """Prefix and header of a frame whose payload of ``payload_bytes`` the caller sends right after.

    Raises ``MisuseError`` if header or frame would be over the limit, or the message takes no payload: a peer would
    hang up on it.
    """
    if payload_bytes and not isinstance(message, WITH_PAYLOAD):
        raise MisuseError(f"a {type(message).__name__} carries no payload")
    header = _encoder.encode(message)
    body = _HEADER_LENGTH_BYTES + len(header) + payload_bytes
    if len(header) > MAX_HEADER_BYTES or body > MAX_FRAME_BYTES:
        raise MisuseError(f"a {type(message).__name__} frame of {body} bytes is over the wire's limit")
    return _PREFIX.pack(body, len(header)) + header


def parse_prefix(prefix: bytes, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[int, int]:
    """``(header bytes, payload bytes)`` that follow a 6-byte prefix; ``ProtocolViolation`` if either is absurd."""
    body, header = _PREFIX.unpack(prefix)
    if not 0 < header <= MAX_HEADER_BYTES:
        raise ProtocolViolation(f"frame header of {header} bytes (limit {MAX_HEADER_BYTES})")
    if not header + _HEADER_LENGTH_BYTES <= body <= max_frame_bytes:
        raise ProtocolViolation(f"frame of {body} bytes (limit {max_frame_bytes})")
    return header, body - header - _HEADER_LENGTH_BYTES


def parse_message(header: bytes | memoryview, payload_bytes: int = 0) -> Message:
    """Decode a header into exactly one of the known messages; ``ProtocolViolation`` for anything else.

    ``payload_bytes`` is what the prefix announced: only messages that take a payload may have one, so that nobody
    makes us hold 64 MiB for a no-op.
    """
    try:
        message = _decoder.decode(header)
    except (msgspec.DecodeError, RecursionError, MisuseError) as error:  # MisuseError: a message that makes no sense
        raise ProtocolViolation(f"not a message: {str(error)[:120]}") from error
    if payload_bytes and not isinstance(message, WITH_PAYLOAD):
        raise ProtocolViolation(f"a {type(message).__name__} with {payload_bytes} bytes of payload")
    return message


def decode_frame(data: bytes, *, max_frame_bytes: int = MAX_FRAME_BYTES) -> tuple[Frame, int]:
    """The first frame of ``data`` and how many bytes it took. ``ProtocolViolation`` if it is bad or incomplete."""
    if len(data) < PREFIX_BYTES:
        raise ProtocolViolation("incomplete frame prefix")
    header, payload = parse_prefix(data[:PREFIX_BYTES], max_frame_bytes=max_frame_bytes)
    end = PREFIX_BYTES + header + payload
    if len(data) < end:
        raise ProtocolViolation(f"frame of {end} bytes cut at {len(data)}")
    message = parse_message(data[PREFIX_BYTES : PREFIX_BYTES + header], payload)
    return Frame(message, memoryview(data)[PREFIX_BYTES + header : end]), end
