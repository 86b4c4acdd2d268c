"""The metrics record: what makes sense reads back as it was, the rest is refused by reader and writer alike."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.announcement import Announcement
from swarm.core.errors import BadRecordError, ConfigError
from swarm.core.keys import RECORD_DOMAIN, Identity
from swarm.core.limits import MAX_SHARD_DEPTH, PROTOCOL_MAJOR
from swarm.core.metrics import BATCHES, MAX_RTT_PEERS, METRICS_LIFETIME_S, Metrics
from swarm.core.record_base import MAX_RATE, MAX_SECONDS
from swarm.core.records import CLOCK_SKEW_S, SignedRecord, key_of, read_record, shard_key, sign_record

NOW_S = 1_800_000_000.0
ALICE = Identity(b"a" * 32)
MODEL = "org/model@main#0123456789abcdef"


def metrics(**changes: Any) -> Metrics:
    fields: dict[str, Any] = {
        "model": MODEL,
        "peer": ALICE.peer_id,
        "instance": 7,
        "sequence": 1,
        "expires_s": NOW_S + METRICS_LIFETIME_S,
        "tau_s": 0.01,
        "fixed_s": 0.002,
        "kv_free_tokens": 4096,
    }
    return Metrics(**{**fields, **changes})


def with_field(**changes: Any) -> bytes:
    """What a peer that skips our checks can sign."""
    payload = msgspec.msgpack.encode({**msgspec.to_builtins(metrics()), **changes})
    return msgspec.msgpack.encode(SignedRecord(ALICE.peer_id, ALICE.sign(RECORD_DOMAIN, payload), payload))


seconds = st.floats(0, MAX_SECONDS)
good = st.builds(
    metrics,
    tau_s=seconds,
    fixed_s=seconds,
    step_s=st.one_of(st.just(()), st.tuples(*[seconds] * len(BATCHES))),
    prefill_tokens_per_s=st.floats(0, MAX_RATE),
    kv_free_tokens=st.integers(0, 2**30),
    sessions=st.integers(0, 2**31),
    queued_steps=st.integers(0, 2**31),
    uplink_mbps=st.one_of(st.none(), st.floats(0.001, MAX_RATE)),
    rtt_s=st.dictionaries(st.text(max_size=60), seconds, max_size=MAX_RTT_PEERS),
    shard_depth=st.integers(0, MAX_SHARD_DEPTH),
)


@given(good)
def test_good_metrics_read_back_as_they_were_written(one: Metrics) -> None:
    assert read_record(sign_record(ALICE, one), now_s=NOW_S, expected_peer=ALICE.peer_id) == one
    assert key_of(one).startswith(shard_key(Metrics, MODEL, ""))
    assert len(key_of(one)) == len(shard_key(Metrics, MODEL, "")) + one.shard_depth + (one.shard_depth > 0)


ABSURD: list[tuple[dict[str, Any], str]] = [
    *(({name: value}, name) for name in ("tau_s", "fixed_s") for value in (math.nan, math.inf, -1e-9, 3601.0)),
    *(({"prefill_tokens_per_s": value}, "prefill_tokens_per_s") for value in (math.nan, -1.0, 1e13)),
    *(({"uplink_mbps": value}, "uplink_mbps") for value in (math.nan, math.inf, -5.0, 0.0, 5e-324)),
    *(({"step_s": [0.1, value, 0.1, 0.1]}, "step_s") for value in (math.nan, math.inf, -0.1)),
    ({"step_s": [0.1, 0.1]}, "2 step times"),
    ({"step_s": [0.1] * 5}, "step_s"),
    *(({"rtt_s": {"a": value}}, "rtt_s") for value in (math.nan, -math.inf, -0.1, 3601.0)),
    ({"rtt_s": {str(n): 0.1 for n in range(MAX_RTT_PEERS + 1)}}, "rtt_s"),
    ({"rtt_s": {"p" * 65: 0.1}}, "rtt_s"),
    ({"rtt_s": [0.1]}, "rtt_s"),
    ({"kv_free_tokens": -1}, "kv_free_tokens"),
    ({"kv_free_tokens": 2**50}, "kv_free_tokens"),
    ({"sessions": -1}, "sessions"),
    ({"queued_steps": 2**32}, "queued_steps"),
    ({"tau_s": "fast"}, "tau_s"),
    ({"tau_s": None}, "tau_s"),
    ({"protocol": PROTOCOL_MAJOR + 1}, "protocol"),
    ({"shard_depth": MAX_SHARD_DEPTH + 1}, "shard_depth"),
    ({"shard_depth": -1}, "shard_depth"),
    ({"expires_s": math.nan}, "impossible time"),
    ({"kind": "weather"}, "weather"),
    ({"model": "model"}, "malformed model id"),
]


@pytest.mark.parametrize(("changes", "why"), ABSURD)
def test_absurd_metrics_are_refused_though_rightly_signed(changes: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRecordError, match=why):
        read_record(with_field(**changes), now_s=NOW_S)


@pytest.mark.parametrize(
    "changes", [{"tau_s": math.nan}, {"step_s": (0.1,)}, {"uplink_mbps": 0.0}, {"rtt_s": {"a": -1.0}}]
)
def test_one_does_not_publish_what_nobody_would_read(changes: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="nobody would accept"):
        sign_record(ALICE, metrics(**changes))


def test_metrics_live_a_minute_at_most_an_announcement_ten() -> None:
    longest = metrics(expires_s=NOW_S + Metrics.LIFETIME_S + CLOCK_SKEW_S)
    assert read_record(sign_record(ALICE, longest), now_s=NOW_S) == longest
    with pytest.raises(BadRecordError, match="expires in 121 s"):
        read_record(sign_record(ALICE, metrics(expires_s=NOW_S + 121)), now_s=NOW_S)
    assert METRICS_LIFETIME_S < Metrics.LIFETIME_S < Announcement.LIFETIME_S


def test_an_unknown_field_of_a_newer_version_does_no_harm() -> None:
    assert read_record(with_field(gpu="new"), now_s=NOW_S) == metrics()


def test_metrics_are_no_announcement() -> None:
    assert key_of(metrics()) != shard_key(Announcement, MODEL, "")
    assert not isinstance(read_record(sign_record(ALICE, metrics()), now_s=NOW_S), Announcement)
