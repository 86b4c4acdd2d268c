"""Multiaddresses between text and libp2p's binary form (multiformats specification), for the parts a node dials.

hivemind's own codec writes ``/p2p/`` parts as CIDs, which libp2p refuses, so no relayed address would survive it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

import base58

from swarm.core.errors import ConfigError
from swarm.core.limits import MAX_ADDRESS_CHARS

_MAX_BYTES = 1024


@dataclass(frozen=True, slots=True)
class _Part:
    """One protocol: its code, the size of its value (None: length-prefixed; 0: none), and the value's codec."""

    name: str
    code: int
    size: int | None
    encode: Callable[[str], bytes]
    decode: Callable[[bytes], str]


def _encode_port(text: str) -> bytes:
    if not text.isascii() or not text.isdecimal():
        raise ValueError("a port is a number")
    return int(text).to_bytes(2, "big")


def _encode_name(text: str) -> bytes:
    if not text or not text.isprintable():
        raise ValueError("an empty or unprintable name")
    return text.encode("idna")


def _encode_peer(text: str) -> bytes:
    raw: bytes = base58.b58decode(text)
    if len(raw) < 3 or raw[1] != len(raw) - 2:
        raise ValueError("not a peer id")
    return raw


def _nothing(text: str) -> bytes:
    return b""


def _parts() -> list[_Part]:
    ports = [("tcp", 6), ("udp", 273)]
    names = [("dns", 53), ("dns4", 54), ("dns6", 55), ("dnsaddr", 56)]
    plain = [("p2p-circuit", 290), ("tls", 448), ("quic", 460), ("quic-v1", 461), ("ws", 477), ("wss", 478)]
    return [
        _Part(
            "ip4", 4, 4, lambda text: ipaddress.IPv4Address(text).packed, lambda raw: str(ipaddress.IPv4Address(raw))
        ),
        _Part(
            "ip6", 41, 16, lambda text: ipaddress.IPv6Address(text).packed, lambda raw: str(ipaddress.IPv6Address(raw))
        ),
        _Part("p2p", 421, None, _encode_peer, lambda raw: base58.b58encode(raw).decode("ascii")),
        *(_Part(name, code, 2, _encode_port, lambda raw: str(int.from_bytes(raw, "big"))) for name, code in ports),
        *(_Part(name, code, None, _encode_name, lambda raw: raw.decode("idna")) for name, code in names),
        *(_Part(name, code, 0, _nothing, lambda raw: "") for name, code in plain),
    ]


_BY_NAME = {part.name: part for part in _parts()}
_BY_CODE = {part.code: part for part in _parts()}


def to_bytes(address: str) -> bytes:
    """libp2p's binary form; ``ConfigError`` that shows the address if it is malformed or of an unknown kind."""
    out = bytearray()
    try:
        if len(address) > MAX_ADDRESS_CHARS or not address.startswith("/"):
            raise ValueError("too long, or without a leading slash")
        words = iter(address[1:].split("/"))
        for name in words:
            part = _BY_NAME[name]
            value = b"" if part.size == 0 else part.encode(next(words))
            prefix = varint(len(value)) if part.size is None else b""
            out += varint(part.code) + prefix + value
    except (KeyError, ValueError, StopIteration, OverflowError) as error:
        raise ConfigError(
            f"not a multiaddress: {address[:MAX_ADDRESS_CHARS]!r}", hint="example: /ip4/203.0.113.7/tcp/31337"
        ) from error
    return bytes(out)


def to_text(raw: bytes) -> str | None:
    """The text form, or None for anything malformed or of a kind this module does not know."""
    if len(raw) > _MAX_BYTES:
        return None
    words, at = [""], 0
    try:
        while at < len(raw):
            code, at = _read_varint(raw, at)
            part = _BY_CODE[code]
            size = part.size
            if size is None:
                size, at = _read_varint(raw, at)
            if at + size > len(raw):
                return None
            words += [part.name] if part.size == 0 else [part.name, part.decode(raw[at : at + size])]
            at += size
    except (KeyError, ValueError, IndexError):
        return None
    return "/".join(words)


def varint(value: int) -> bytes:
    """A number as protobuf and multiformats write it: seven bits a byte, the lowest first."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift <= 28:
        byte = raw[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise ValueError("a number of over 35 bits")
