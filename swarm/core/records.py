"""Directory records as they travel: signed with the key their peer id contains, read only if every check holds.

A record travels as the exact bytes that were signed, so a node that does not know a newer field relays it intact.
The signed bytes name kind, model, shard and signer, and so the one key and subkey under which the record may stand.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, TypeAlias

import msgspec

from swarm.core.accusation import Accusation
from swarm.core.announcement import Announcement
from swarm.core.errors import BadRecordError, BadSignatureError, ConfigError
from swarm.core.keys import RECORD_DOMAIN, SIGNATURE_BYTES, Identity, verify
from swarm.core.limits import MAX_RECORD_BYTES, PROTOCOL_MAJOR
from swarm.core.metrics import Metrics
from swarm.core.model_entry import ModelEntry
from swarm.core.record_base import Record

CLOCK_SKEW_S = 60.0
"""How far ahead of ours a peer's clock may be before its records count as long-lived."""
MODELS_KEY = f"swarm/models/{PROTOCOL_MAJOR}"
"""Where the model index stands."""

AnyRecord: TypeAlias = Announcement | Metrics | ModelEntry | Accusation


class SignedRecord(msgspec.Struct, frozen=True, array_like=True):
    """Signed bytes as they travel: the peer id that signed, the signature, the canonical payload."""

    peer: Annotated[str, msgspec.Meta(max_length=64)]
    signature: Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
    payload: Annotated[bytes, msgspec.Meta(max_length=MAX_RECORD_BYTES)]


_encoder = msgspec.msgpack.Encoder(order="deterministic")
_signed_decoder = msgspec.msgpack.Decoder(SignedRecord)
_decoder: msgspec.msgpack.Decoder[AnyRecord] = msgspec.msgpack.Decoder(AnyRecord)


def shard_of(peer: str, depth: int) -> str:
    """Which of 2^``depth`` shards a peer's records stand in: the first bits of its hash, as zeros and ones."""
    bits = int.from_bytes(hashlib.sha256(peer.encode()).digest()[:4], "big")
    return f"{bits:032b}"[:depth]


def shard_key(kind: type[Record], model: str, shard: str) -> str:
    """The directory key of a model's announcements or metrics in one shard ("" is the undivided whole)."""
    name = kind.__struct_config__.tag
    return f"swarm/{name}/{PROTOCOL_MAJOR}/{model}" + (f"/{shard}" if shard else "")


def accusation_key(model: str, subject: str) -> str:
    """Where accusations of one server stand: each server's by itself, so that nobody's can push out another's."""
    return f"{shard_key(Accusation, model, '')}/{subject}"


def key_of(record: AnyRecord) -> str:
    """The only directory key under which ``record`` may stand; its subkey is ``record.peer``."""
    if isinstance(record, ModelEntry):
        return MODELS_KEY
    if isinstance(record, Accusation):
        return accusation_key(record.model, record.subject)
    return shard_key(type(record), record.model, shard_of(record.peer, record.shard_depth))


def sign_record(identity: Identity, record: AnyRecord) -> bytes:
    """The record's wire bytes.

    Raises ``ConfigError`` for what every reader would refuse whatever the time: it speaks for another peer, breaks a
    field's bound, says something absurd, or is over ``MAX_RECORD_BYTES``.
    """
    if record.peer != identity.peer_id:
        raise ConfigError("a record must carry the signer's own peer id")
    payload = _encoder.encode(record)
    try:
        _decoder.decode(payload).check()
    except (msgspec.DecodeError, BadRecordError) as error:
        raise ConfigError(f"nobody would accept this record: {error}") from error
    data = _encoder.encode(SignedRecord(record.peer, identity.sign(RECORD_DOMAIN, payload), payload))
    if len(data) > MAX_RECORD_BYTES:
        raise ConfigError(f"the record takes {len(data)} bytes, over {MAX_RECORD_BYTES}", hint="name fewer addresses")
    return data


def read_record(data: bytes, *, now_s: float, expected_peer: str | None = None) -> AnyRecord:
    """Parse and check one record of any kind; return it only if every check holds.

    Checked: size, form, the signature under the peer id, protocol major, lifetime (not expired at ``now_s``, no longer
    than its kind may live), the kind's own sense (a span inside its model, finite figures, known numerics…), and that
    it is ``expected_peer``'s if one is given. Raises ``BadRecordError`` or ``BadSignatureError``.
    """
    if len(data) > MAX_RECORD_BYTES:
        raise BadRecordError(f"record of {len(data)} bytes", peer=expected_peer or "")
    try:
        signed = _signed_decoder.decode(data)
        record = _decoder.decode(signed.payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRecordError(f"malformed record: {error}", peer=expected_peer or "") from error
    if expected_peer is not None and signed.peer != expected_peer:
        raise BadSignatureError("a record signed by somebody else", peer=expected_peer)
    if record.peer != signed.peer:
        raise BadSignatureError("a record that speaks for another peer", peer=signed.peer)
    verify(signed.peer, RECORD_DOMAIN, signed.payload, signed.signature)
    record.check()
    lifetime_s = record.expires_s - now_s
    if not 0 < lifetime_s <= record.LIFETIME_S + CLOCK_SKEW_S:
        raise BadRecordError(f"expires in {lifetime_s:.0f} s", peer=record.peer)
    return record


def read_announcement(data: bytes, *, now_s: float, expected_peer: str | None = None) -> Announcement:
    """``read_record`` for what must be an announcement."""
    record = read_record(data, now_s=now_s, expected_peer=expected_peer)
    if not isinstance(record, Announcement):
        raise BadRecordError("not an announcement", peer=record.peer)
    return record
