"""Signed announcements: every kind of bad one is refused, every good one survives being passed on."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.announcement import Announcement, Coordinate, Intent, Reach, State
from swarm.core.errors import BadRecordError, BadSignatureError, ConfigError, PeerError
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.limits import (
    MAX_ADDRESSES,
    MAX_LAYERS,
    MAX_RECORD_BYTES,
    MAX_RECORD_LIFETIME_S,
    MAX_SHARD_DEPTH,
    PROTOCOL_MAJOR,
)
from swarm.core.numerics import Numerics
from swarm.core.record_base import MIN_RATE
from swarm.core.records import CLOCK_SKEW_S, SignedRecord, read_announcement, sign_record

NOW_S = 1_800_000_000.0
ALICE, MALLORY = Identity(b"a" * 32), Identity(b"m" * 32)
MODEL = "org/model@main#0123456789abcdef"

encode = msgspec.msgpack.encode


def announcement(**changes: Any) -> Announcement:
    fields: dict[str, Any] = {
        "model": MODEL,
        "layer_count": 30,
        "peer": ALICE.peer_id,
        "start": 10,
        "end": 20,
        "numerics": Numerics("float32"),
        "instance": 7,
        "sequence": 1,
        "started_s": NOW_S - 5,
        "expires_s": NOW_S + 60,
    }
    return Announcement(**{**fields, **changes})


def signed(payload: bytes, *, identity: Identity = ALICE, peer: str | None = None) -> bytes:
    """What a peer that skips our checks can put on the wire: any payload, rightly signed."""
    return encode(SignedRecord(peer or identity.peer_id, identity.sign(RECORD_DOMAIN, payload), payload))


def with_field(**changes: Any) -> bytes:
    return signed(encode({**msgspec.to_builtins(announcement()), **changes}))


names = st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=20)
good = st.builds(
    announcement,
    start=st.integers(0, 19),
    end=st.integers(20, 30),
    head=st.booleans(),
    embeddings=st.booleans(),
    addresses=st.lists(names, max_size=MAX_ADDRESSES).map(tuple),
    reach=st.sampled_from(Reach),
    state=st.sampled_from(State),
    numerics=st.builds(Numerics, st.sampled_from(["float32", "bfloat16"]), st.sampled_from(["none", "nf4"])),
    kv_tokens=st.integers(0, 10**9),
    context_tokens=st.integers(0, 10**6),
    memory_bytes=st.integers(0, 2**53),
    capacity_layers=st.integers(0, MAX_LAYERS),
    power_layers_per_s=st.one_of(st.just(0.0), st.floats(MIN_RATE, 1e12)),
    region=names,
    intent=st.one_of(
        st.none(),
        st.builds(Intent, st.integers(0, 14), st.integers(15, 30), st.floats(0, NOW_S + 60)),
    ),
    coordinate=st.one_of(
        st.none(),
        st.builds(Coordinate, st.floats(-3600, 3600), st.floats(-3600, 3600), st.floats(0, 3600), st.floats(0, 3600)),
    ),
    shard_depth=st.integers(0, MAX_SHARD_DEPTH),
    software=names,
    public_name=names,
    instance=st.integers(0, 2**63 - 1),
    sequence=st.integers(0, 2**63 - 1),
    expires_s=st.floats(NOW_S + 1, NOW_S + MAX_RECORD_LIFETIME_S),
)


@given(good)
def test_a_good_record_reads_back_as_it_was_written(one: Announcement) -> None:
    data = sign_record(ALICE, one)
    assert len(data) <= MAX_RECORD_BYTES
    assert read_announcement(data, now_s=NOW_S, expected_peer=ALICE.peer_id) == one
    assert read_announcement(data, now_s=NOW_S) == one


def test_span_and_peer_are_offered_as_types() -> None:
    one = announcement()
    assert (one.span.start, one.span.end, one.peer_id) == (10, 20, ALICE.peer_id)


def test_the_same_announcement_always_has_the_same_bytes() -> None:
    assert sign_record(ALICE, announcement()) == sign_record(ALICE, announcement())


@given(st.dictionaries(names.filter(lambda name: not hasattr(Announcement, name)), st.integers() | names, max_size=4))
def test_fields_of_a_later_version_survive_an_old_relay(extra: dict[str, Any]) -> None:
    small = {name: value for name, value in extra.items() if not isinstance(value, int) or abs(value) < 2**63}
    data = with_field(**small)
    assert read_announcement(data, now_s=NOW_S) == announcement()
    relayed = encode(msgspec.msgpack.decode(data, type=SignedRecord))
    assert relayed == data
    payload = msgspec.msgpack.decode(msgspec.msgpack.decode(relayed, type=SignedRecord).payload)
    assert {name: payload[name] for name in small} == small


ABSURD: list[tuple[dict[str, Any], str]] = [
    ({"protocol": PROTOCOL_MAJOR + 1}, "protocol 2"),
    ({"expires_s": NOW_S}, "expires in 0 s"),
    ({"expires_s": NOW_S - 1}, "expires in -1 s"),
    ({"expires_s": NOW_S + MAX_RECORD_LIFETIME_S + CLOCK_SKEW_S + 1}, "expires in 661 s"),
    ({"expires_s": math.nan}, "impossible time"),
    ({"expires_s": math.inf}, "impossible time"),
    ({"expires_s": -math.inf}, "impossible time"),
    ({"started_s": math.nan}, "impossible time"),
    ({"started_s": -1.0}, "impossible time"),
    ({"started_s": NOW_S + 61}, "impossible time"),
    ({"start": 20}, "span 20:20"),
    ({"start": 21}, "span 21:20"),
    ({"end": 31}, "span 10:31 of 30"),
    ({"layer_count": 0}, "layer_count"),
    ({"layer_count": MAX_LAYERS + 1}, "layer_count"),
    ({"start": -1}, "start"),
    ({"start": 1.5}, "start"),
    ({"end": "20"}, "end"),
    ({"numerics": ["float64"]}, "unknown numerics"),
    ({"numerics": ["float32", "int3"]}, "unknown numerics"),
    ({"numerics": "float32"}, "numerics"),
    ({"model": "model"}, "malformed model id"),
    ({"model": "m" * 401}, "model"),
    ({"kv_tokens": -1}, "kv_tokens"),
    ({"context_tokens": 2**40}, "context_tokens"),
    ({"memory_bytes": 2**60}, "memory_bytes"),
    ({"instance": -1}, "instance"),
    ({"sequence": 2**63}, "sequence"),
    ({"state": "sleeping"}, "state"),
    ({"reach": None}, "reach"),
    ({"head": 1}, "head"),
    ({"addresses": ["a"] * (MAX_ADDRESSES + 1)}, "addresses"),
    ({"addresses": ["a" * 201]}, "addresses"),
    ({"addresses": ["/ip4/\x1b[2J"]}, "unprintable"),
    ({"public_name": "n" * 65}, "public_name"),
    ({"public_name": "a\nb"}, "unprintable"),
    ({"software": "\u202e"}, "unprintable"),
    ({"region": "a\nb"}, "unprintable"),
    ({"region": "r" * 65}, "region"),
    ({"power_layers_per_s": math.nan}, "power_layers_per_s"),
    ({"power_layers_per_s": -1.0}, "power_layers_per_s"),
    ({"power_layers_per_s": 1e-308}, "power_layers_per_s"),
    ({"power_layers_per_s": math.inf}, "power_layers_per_s"),
    ({"capacity_layers": -1}, "capacity_layers"),
    ({"capacity_layers": MAX_LAYERS + 1}, "capacity_layers"),
    ({"intent": [20, 31, NOW_S]}, "impossible span"),
    ({"intent": [5, 5, NOW_S]}, "impossible span"),
    ({"intent": [9, 5, NOW_S]}, "impossible span"),
    ({"intent": [0, 5, math.nan]}, "impossible span"),
    ({"intent": [0, 5, math.inf]}, "impossible span"),
    ({"intent": [0, 5, -1.0]}, "impossible span"),
    ({"intent": [-1, 5, NOW_S]}, "intent"),
    ({"intent": [0, 5]}, "intent"),
    ({"coordinate": [math.nan, 0.0, 0.0, 1.0]}, "x_s"),
    ({"coordinate": [0.0, -math.inf, 0.0, 1.0]}, "y_s"),
    ({"coordinate": [0.0, 0.0, -0.001, 1.0]}, "height_s"),
    ({"coordinate": [0.0, 0.0, 0.0, math.nan]}, "error"),
    ({"coordinate": [4000.0, 0.0, 0.0, 1.0]}, "x_s"),
    ({"coordinate": [0.0, 0.0]}, "coordinate"),
    ({"shard_depth": -1}, "shard_depth"),
    ({"shard_depth": 17}, "shard_depth"),
    ({"kind": "weather"}, "weather"),
]


@pytest.mark.parametrize(("changes", "why"), ABSURD)
def test_an_absurd_record_is_refused_though_rightly_signed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRecordError, match=why) as caught:
        read_announcement(with_field(**changes), now_s=NOW_S)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("field", ["model", "layer_count", "peer", "start", "end", "numerics", "instance", "expires_s"])
def test_a_record_without_a_field_is_refused(field: str) -> None:
    fields = msgspec.to_builtins(announcement())
    del fields[field]
    with pytest.raises(BadRecordError, match=field):
        read_announcement(signed(encode(fields)), now_s=NOW_S)


def test_the_lifetime_limit_leaves_room_for_a_skewed_clock() -> None:
    longest = announcement(expires_s=NOW_S + MAX_RECORD_LIFETIME_S + CLOCK_SKEW_S)
    assert read_announcement(sign_record(ALICE, longest), now_s=NOW_S) == longest


def test_an_unsigned_record_is_refused() -> None:
    payload = encode(announcement())
    with pytest.raises(BadSignatureError, match="does not verify"):
        read_announcement(encode(SignedRecord(ALICE.peer_id, b"\0" * 64, payload)), now_s=NOW_S)
    with pytest.raises(BadRecordError):
        read_announcement(encode([ALICE.peer_id, b"", payload]), now_s=NOW_S)
    with pytest.raises(BadRecordError):
        read_announcement(payload, now_s=NOW_S)


def test_a_signature_from_another_domain_is_refused() -> None:
    payload = encode(announcement())
    data = encode(SignedRecord(ALICE.peer_id, ALICE.sign(b"swarm/receipt/1", payload), payload))
    with pytest.raises(BadSignatureError):
        read_announcement(data, now_s=NOW_S)


def test_nobody_speaks_for_another_peer() -> None:
    payload = encode(announcement())
    with pytest.raises(BadSignatureError, match="speaks for another"):
        read_announcement(signed(payload, identity=MALLORY), now_s=NOW_S)
    with pytest.raises(BadSignatureError, match="does not verify"):
        read_announcement(signed(payload, identity=MALLORY, peer=ALICE.peer_id), now_s=NOW_S)


def test_a_good_record_under_another_peers_subkey_is_refused() -> None:
    data = sign_record(ALICE, announcement())
    with pytest.raises(BadSignatureError, match="somebody else") as caught:
        read_announcement(data, now_s=NOW_S, expected_peer=MALLORY.peer_id)
    assert caught.value.peer == MALLORY.peer_id


def test_a_peer_without_an_ed25519_id_is_refused() -> None:
    payload = encode(announcement(peer="QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N"))
    data = signed(payload, peer="QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
    with pytest.raises(BadSignatureError, match="not an Ed25519"):
        read_announcement(data, now_s=NOW_S)


def test_an_oversize_record_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(BadRecordError, match="record of 4097 bytes"):
        read_announcement(b"\xc1" * (MAX_RECORD_BYTES + 1), now_s=NOW_S)


@pytest.mark.parametrize("depth", [10, 1000, 3500])
def test_deep_nesting_in_an_unknown_field_does_no_harm(depth: int) -> None:
    data = with_field(z=msgspec.Raw(b"\x91" * depth + b"\x90"))
    assert len(data) <= MAX_RECORD_BYTES
    try:
        assert read_announcement(data, now_s=NOW_S) == announcement()
    except BadRecordError:
        assert depth > 100


@settings(max_examples=200)
@given(st.binary(max_size=300))
def test_random_bytes_are_refused_cleanly(data: bytes) -> None:
    with pytest.raises(PeerError):
        read_announcement(data, now_s=NOW_S)


@settings(max_examples=200)
@given(st.data())
def test_a_garbled_record_never_reads_as_something_else(data: st.DataObject) -> None:
    whole = sign_record(ALICE, announcement(public_name="alice", addresses=("/ip4/127.0.0.1/tcp/1",)))
    garbled = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    garbled[at] ^= data.draw(st.integers(1, 255))
    with pytest.raises(PeerError):
        read_announcement(bytes(garbled), now_s=NOW_S)
    with pytest.raises(PeerError):
        read_announcement(whole[:at], now_s=NOW_S)


def test_one_cannot_sign_for_another() -> None:
    with pytest.raises(ConfigError, match="own peer id"):
        sign_record(MALLORY, announcement())


@pytest.mark.parametrize(
    "changes",
    [
        {"end": 31},
        {"addresses": ("a",) * (MAX_ADDRESSES + 1)},
        {"public_name": "a\nb"},
        {"context_tokens": -1},
        {"model": "model"},
        {"started_s": math.nan},
    ],
)
def test_one_does_not_publish_what_nobody_would_read(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="nobody would accept"):
        sign_record(ALICE, announcement(**changes))


def test_one_does_not_publish_what_is_too_large() -> None:
    wide = announcement(addresses=("é" * 200,) * MAX_ADDRESSES)
    with pytest.raises(ConfigError, match="name fewer addresses"):
        sign_record(ALICE, wide)
