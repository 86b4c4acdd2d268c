"""Directory records: what a server says of itself, signed with the key its peer id contains.

A record travels as the exact bytes that were signed, so a node that does not know a newer field relays it intact.
"""

from __future__ import annotations

import enum
import math
from typing import Annotated

import msgspec

from swarm.core.errors import BadRecordError, BadSignatureError, ConfigError
from swarm.core.ids import ModelId, PeerId
from swarm.core.keys import RECORD_DOMAIN, SIGNATURE_BYTES, Identity, verify
from swarm.core.limits import (
    MAX_ADDRESS_CHARS,
    MAX_ADDRESSES,
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_NAME_CHARS,
    MAX_RECORD_BYTES,
    MAX_RECORD_LIFETIME_S,
    PROTOCOL_MAJOR,
)
from swarm.core.numerics import Numerics
from swarm.core.spans import Span

CLOCK_SKEW_S = 60.0
"""How far ahead of ours a peer's clock may be before its records count as long-lived."""


class State(enum.Enum):
    """What a server is doing, as its announcement says."""

    JOINING = "joining"
    ONLINE = "online"
    DRAINING = "draining"
    OFFLINE = "offline"


class Reach(enum.Enum):
    """How strangers reach a server."""

    DIRECT = "direct"
    RELAYED = "relayed"
    UNREACHABLE = "unreachable"


Layer = Annotated[int, msgspec.Meta(ge=0, le=MAX_LAYERS)]
Address = Annotated[str, msgspec.Meta(max_length=MAX_ADDRESS_CHARS)]


class Announcement(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The slow record of one server: what it holds and how to reach it.

    ``start`` and ``end`` are its span; ``head`` says it holds norm and LM head, ``embeddings`` that it holds those.
    ``instance`` is drawn at every start: two instances under one peer id are two processes with one key.
    ``sequence`` grows with every announcement of an instance, ``started_s`` and ``expires_s`` are wall time.
    ``kv_tokens`` is the KV budget, ``memory_bytes`` what the weights take.
    """

    protocol: int = PROTOCOL_MAJOR
    model: Annotated[str, msgspec.Meta(max_length=400)]
    layer_count: Annotated[int, msgspec.Meta(ge=1, le=MAX_LAYERS)]
    peer: Annotated[str, msgspec.Meta(max_length=64)]
    start: Layer
    end: Layer
    head: bool = False
    embeddings: bool = False
    addresses: Annotated[tuple[Address, ...], msgspec.Meta(max_length=MAX_ADDRESSES)] = ()
    reach: Reach = Reach.DIRECT
    state: State = State.ONLINE
    numerics: Numerics
    kv_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS * MAX_LAYERS)] = 0
    context_tokens: Annotated[int, msgspec.Meta(ge=0, le=MAX_CONTEXT_TOKENS)] = 0
    memory_bytes: Annotated[int, msgspec.Meta(ge=0, le=2**53)] = 0
    software: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""
    public_name: Annotated[str, msgspec.Meta(max_length=MAX_NAME_CHARS)] = ""
    instance: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    sequence: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
    started_s: float
    expires_s: float

    @property
    def span(self) -> Span:
        return Span(self.start, self.end)

    @property
    def peer_id(self) -> PeerId:
        return PeerId(self.peer)


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Signed bytes as they travel: the peer id that signed, the signature, the canonical payload."""

    peer: Annotated[str, msgspec.Meta(max_length=64)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_RECORD_BYTES)]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_record_decoder = msgspec.msgpack.Decoder(SignedRecord)
_announcement_decoder = msgspec.msgpack.Decoder(Announcement)


def sign_announcement(identity: Identity, announcement: Announcement) -> bytes:
    """The record's wire bytes.

    Raises ``ConfigError`` for what every reader would refuse whatever the time: it speaks for another peer, breaks a
    field's bound, says something absurd, or is over ``MAX_RECORD_BYTES``.
    """
    if announcement.peer != identity.peer_id:
        raise ConfigError("an announcement must carry the signer's own peer id")
    payload = _encoder.encode(announcement)
    try:
        _check_sense(_announcement_decoder.decode(payload))
    except (msgspec.DecodeError, BadRecordError) as error:
        raise ConfigError(f"nobody would accept this announcement: {error}") from error
    record = SignedRecord(announcement.peer, identity.sign(RECORD_DOMAIN, payload), payload)
    data = _encoder.encode(record)
    if len(data) > MAX_RECORD_BYTES:
        raise ConfigError(
            f"the announcement takes {len(data)} bytes, over {MAX_RECORD_BYTES}", hint="announce fewer addresses"
        )
    return data


def read_announcement(data: bytes, *, now_s: float, expected_peer: str | None = None) -> Announcement:
    """Parse and check one record; return it only if every check holds.

    Checked: size, form, the signature under the peer id, protocol major, lifetime (not expired at ``now_s``, not
    longer than ten minutes), a span inside its own layer count, known numerics, a well-formed model id, printable
    texts, and that the record is ``expected_peer``'s if one is given.
    Raises ``BadRecordError`` or ``BadSignatureError``.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise BadRecordError(f"record of {len(data)} bytes", peer=expected_peer or "")
    try:
        record = _record_decoder.decode(data)
        announcement = _announcement_decoder.decode(record.payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecordError(f"malformed record: {error}", peer=expected_peer or "") from error
    if expected_peer is not None and record.peer != expected_peer:
        raise BadSignatureError("a record signed by somebody else", peer=expected_peer)
    if announcement.peer != record.peer:
        raise BadSignatureError("a record that speaks for another peer", peer=record.peer)
    verify(record.peer, RECORD_DOMAIN, record.payload, record.signature)
    _check_sense(announcement)
    _check_lifetime(announcement, now_s)
    return announcement


def _check_lifetime(announcement: Announcement, now_s: float) -> None:
    lifetime_s = announcement.expires_s - now_s
    if not 0 < lifetime_s <= MAX_RECORD_LIFETIME_S + CLOCK_SKEW_S:
        raise BadRecordError(f"expires in {lifetime_s:.0f} s", peer=announcement.peer)


def _check_sense(announcement: Announcement) -> None:
    peer = announcement.peer
    if announcement.protocol != PROTOCOL_MAJOR:
        raise BadRecordError(f"speaks protocol {announcement.protocol}, not {PROTOCOL_MAJOR}", peer=peer)
    if not 0 <= announcement.started_s < announcement.expires_s < math.inf:  # a NaN fails this too
        raise BadRecordError("lives from or to an impossible time", peer=peer)
    if not announcement.start < announcement.end <= announcement.layer_count:
        raise BadRecordError(
            f"span {announcement.start}:{announcement.end} of {announcement.layer_count} layers", peer=peer
        )
    if not announcement.numerics.known:
        raise BadRecordError(f"unknown numerics {announcement.numerics}", peer=peer)
    try:
        ModelId.parse(announcement.model)
    except ConfigError as error:
        raise BadRecordError("malformed model id", peer=peer) from error
    if not all(map(str.isprintable, (announcement.software, announcement.public_name, *announcement.addresses))):
        raise BadRecordError("unprintable characters in a name or an address", peer=peer)
