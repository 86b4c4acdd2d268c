"""A message's fields have bounds: a stranger's beyond them is a violation, one's own is a mistake."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from swarm.core.errors import ConfigError, MisuseError, ProtocolViolation
from swarm.core.limits import (
    COMPACT_RECEIPT_BYTES,
    MAX_CONTEXT_TOKENS,
    MAX_PROOF_BYTES,
    MAX_REASON_CHARS,
    MAX_RECORD_BYTES,
    MAX_SAMPLED_ROWS,
    MAX_STAGE_NUMBERS,
    MAX_STAGES,
    MAX_STEP_ROWS,
    MAX_TOP_LOGPROBS,
    MAX_VOCABULARY,
)
from swarm.core.sampling import SamplingParams
from swarm.wire.evidence import (
    Countersign,
    FetchedRows,
    FetchProof,
    FetchRows,
    ProofPart,
    Settle,
    Settled,
    Signed,
)
from swarm.wire.frames import PREFIX_BYTES, encode_head, parse_message
from swarm.wire.messages import (
    Accept,
    Answer,
    Busy,
    Downstream,
    Failed,
    Hello,
    LinkLost,
    Message,
    Open,
    Pace,
    Refused,
    Relink,
    Relinked,
    Replay,
    Replayed,
    Result,
    Step,
    TokenLogprobs,
    Upstream,
)
from swarm.wire.status import (
    BUCKETS_S,
    MAX_CHAINS,
    MAX_LINKS,
    Histogram,
    StatusReport,
    Totals,
)

encode = msgspec.msgpack.encode


def header_of(message: Message) -> bytes:
    return encode_head(message)[PREFIX_BYTES:]


RECEIPT = bytes(range(COMPACT_RECEIPT_BYTES))
SESSION, DIGEST, SIGNATURE = b"s" * 16, b"d" * 32, b"g" * 64


GOOD_UP, GOOD_DOWN = Upstream("up", b"i" * 16), Downstream(b"record", 1, b"o" * 16)
GOOD_OPEN = Open(
    1, "m@r#0123456789abcdef", b"s" * 16, 0, 0, 10, True, False, 100, "", "raw", GOOD_UP, GOOD_DOWN, b"n" * 16,
    b"c" * 32,
)  # fmt: skip
GOOD_HELLO = Hello("c", b"s" * 16, 0, b"x" * 16, 0)
GOOD_RELINK = Relink(1, 5, GOOD_UP, GOOD_DOWN, 0)
GOOD_REPLAY = Replay(1, 0, 1)
EMPTY = Histogram((0,) * (len(BUCKETS_S) + 1), 0.0)
GOOD_REPORT = StatusReport(1.0, 0.5, Totals(), EMPTY, EMPTY, 0, 0, 0)
GOOD_CHAIN = [b"l" * 8, 0, 0, 10, 1, 1, None, 0.1, None, None, 0.0, 0.0]
GOOD_LINK = ["p", 0.1, None, None]
GOOD_FETCH = FetchRows(SESSION, 0, DIGEST, 0, 32, "leaves")


def altered(message: Message, **changes: Any) -> bytes:
    """The header a peer without our checks would send."""
    fields = dict(zip(message.__struct_fields__, msgspec.msgpack.decode(header_of(message))[1:], strict=True))
    assert set(changes) <= set(fields)
    return encode([type(message).__struct_config__.tag, *{**fields, **changes}.values()])


GOOD_STEP = Step(0, 0, 0, 0, 1, 1)
GOOD_RESULT = Result(0, 0, 0, 5, (7,))


@pytest.mark.parametrize(
    ("message", "changes"),
    [
        (GOOD_OPEN, {"protocol": 65536}),
        (GOOD_OPEN, {"model": "m" * 401}),
        (GOOD_OPEN, {"session": b"s" * 15}),
        (GOOD_OPEN, {"session": b"s" * 17}),
        (GOOD_OPEN, {"stage": MAX_STAGE_NUMBERS}),
        (GOOD_OPEN, {"generation": 2**32}),
        (GOOD_OPEN, {"priority": "first"}),
        (GOOD_OPEN, {"start": 10}),
        (GOOD_OPEN, {"end": 0}),
        (GOOD_OPEN, {"end": 5000}),
        (GOOD_OPEN, {"kv_tokens": 0}),
        (GOOD_OPEN, {"kv_tokens": MAX_CONTEXT_TOKENS + 1}),
        (GOOD_OPEN, {"codec": "zip"}),
        (GOOD_OPEN, {"upstream": None}),
        (GOOD_OPEN, {"upstream": ["", b"i" * 16]}),
        (GOOD_OPEN, {"upstream": ["u" * 65, b"i" * 16]}),
        (GOOD_OPEN, {"upstream": ["up", b""]}),
        (GOOD_OPEN, {"downstream": [b"", 1, b"o" * 16]}),
        (GOOD_OPEN, {"downstream": [b"d" * (MAX_RECORD_BYTES + 1), 1, b"o" * 16]}),
        (GOOD_OPEN, {"downstream": [b"d", MAX_STAGE_NUMBERS, b"o" * 16]}),
        (GOOD_OPEN, {"downstream": [b"d", 1, b"o" * 17]}),
        (GOOD_OPEN, {"commitment": b"c" * 31}),
        (Accept(0, 0, 0), {"sessions": -1}),
        (Accept(0, 0, 0), {"tau_s": math.nan}),
        (Accept(0, 0, 0), {"tau_s": -0.001}),
        (Accept(0, 0, 0), {"fixed_s": math.inf}),
        (Accept(0, 0, 0), {"fixed_s": 3601.0}),
        (GOOD_OPEN, {"signed_rows": MAX_CONTEXT_TOKENS + 1}),
        (Accept(0, 0, 0), {"calibration": b"d" * 31}),
        (Accept(0, 0, 0), {"calibration": b"d" * 33}),
        (Accept(0, 0, 0), {"receipts": 1}),
        (Busy(1.0, ""), {"retry_after_s": -1.0}),
        (Busy(1.0, ""), {"retry_after_s": math.nan}),
        (Busy(1.0, ""), {"retry_after_s": math.inf}),
        (Refused(""), {"reason": "r" * (MAX_REASON_CHARS + 1)}),
        (GOOD_HELLO, {"lane": 2}),
        (GOOD_HELLO, {"stage": MAX_STAGE_NUMBERS}),
        (GOOD_HELLO, {"generation": -1}),
        (LinkLost("p", ""), {"generation": 2**32}),
        (Failed("idle", ""), {"fault": "nobody"}),
        (GOOD_STEP, {"rows": 0}),
        (GOOD_STEP, {"rows": MAX_STEP_ROWS + 1}),
        (GOOD_STEP, {"seq": 2**32}),
        (GOOD_STEP, {"keep": MAX_CONTEXT_TOKENS + 1}),
        (GOOD_STEP, {"answer": [0, [math.nan]]}),
        (GOOD_STEP, {"answer": [0, [0.0, 0, 0.0]]}),
        (GOOD_STEP, {"answer": [0, [0.0, 0, 1.0, 1.0, 0.0, 0.0, [[1, math.inf]]]]}),
        (GOOD_STEP, {"answer": [0, [0.0, 0, 1.0, 1.0, 0.0, 0.0, [[1, 1.0]] * 1025]]}),
        (GOOD_RESULT, {"tokens": [0] * (MAX_SAMPLED_ROWS + 1)}),
        (GOOD_RESULT, {"tokens": [MAX_VOCABULARY]}),
        (GOOD_RESULT, {"logprobs": [[-1.0, []], [-1.0, []]]}),
        (GOOD_RESULT, {"logprobs": [[math.nan, []]]}),
        (GOOD_RESULT, {"logprobs": [[0.5, []]]}),
        (GOOD_RESULT, {"logprobs": [[-1.0, [[1, -1.0]] * (MAX_TOP_LOGPROBS + 1)]]}),
        (GOOD_RELINK, {"generation": 2**32}),
        (GOOD_RELINK, {"keep": MAX_CONTEXT_TOKENS + 1}),
        (GOOD_RELINK, {"upstream": ["", b"i" * 16]}),
        (GOOD_RELINK, {"downstream": [b"", 1, b"o" * 16]}),
        (GOOD_RELINK, {"replay_hops": MAX_STAGES}),
        (GOOD_RELINK, {"signed_rows": -1}),
        (Relinked(1, 5, 5), {"logged_rows": -1}),
        (Relinked(1, 5, 5), {"kv_length": MAX_CONTEXT_TOKENS + 1}),
        (GOOD_REPLAY, {"rows": 0}),
        (GOOD_REPLAY, {"rows": MAX_STEP_ROWS + 1}),
        (GOOD_REPLAY, {"hops": MAX_STAGES}),
        (GOOD_REPLAY, {"horizon": MAX_CONTEXT_TOKENS + 1}),
        (Replayed(1, 5), {"generation": -1}),
        (Pace(None, 0.0), {"step_s": math.nan}),
        (Pace(None, 0.0), {"held_s": -1.0}),
        (Pace(None, 0.0), {"held_s": math.inf}),
        (Signed(0, 0, RECEIPT), {"receipt": RECEIPT[:-1]}),
        (Signed(0, 0, RECEIPT), {"receipt": RECEIPT + b"0"}),
        (Signed(0, 0, RECEIPT), {"epoch": 2**32}),
        (Settle(5), {"keep": -1}),
        (Settle(5), {"keep": MAX_CONTEXT_TOKENS + 1}),
        (Settled(5), {"rows": MAX_CONTEXT_TOKENS + 1}),
        (Countersign(SIGNATURE), {"signature": SIGNATURE[:-1]}),
        (Countersign(SIGNATURE), {"signature": SIGNATURE + b"0"}),
        (GOOD_FETCH, {"session": SESSION + b"0"}),
        (GOOD_FETCH, {"stage": MAX_STAGE_NUMBERS}),
        (GOOD_FETCH, {"secret": DIGEST[:-1]}),
        (GOOD_FETCH, {"first": 32}),
        (GOOD_FETCH, {"first": -1}),
        (GOOD_FETCH, {"last": MAX_CONTEXT_TOKENS + 1}),
        (GOOD_FETCH, {"want": "weights"}),
        (FetchedRows(0, 1), {"rows": 0}),
        (FetchedRows(0, 1), {"rows": MAX_STEP_ROWS + 1}),
        (FetchedRows(0, 1), {"first": MAX_CONTEXT_TOKENS + 1}),
        (FetchProof(DIGEST), {"digest": DIGEST + b"0"}),
        (ProofPart(1), {"total_bytes": 0}),
        (ProofPart(1), {"total_bytes": MAX_PROOF_BYTES + 1}),
        (GOOD_REPORT, {"busy_share": 1.01}),
        (GOOD_REPORT, {"busy_share": math.nan}),
        (GOOD_REPORT, {"uptime_s": -1.0}),
        (GOOD_REPORT, {"answers": 2**62 + 1}),
        (GOOD_REPORT, {"totals": [-1]}),
        (GOOD_REPORT, {"forward_s": [[0] * len(BUCKETS_S), 0.0]}),
        (GOOD_REPORT, {"step_s": [[0] * (len(BUCKETS_S) + 2), 0.0]}),
        (GOOD_REPORT, {"step_s": [[0] * (len(BUCKETS_S) + 1), math.inf]}),
        (GOOD_REPORT, {"chains": [GOOD_CHAIN] * (MAX_CHAINS + 1)}),
        (GOOD_REPORT, {"chains": [[b"l" * 9, *GOOD_CHAIN[1:]]]}),
        (GOOD_REPORT, {"chains": [[*GOOD_CHAIN[:2], 10, *GOOD_CHAIN[3:]]]}),
        (GOOD_REPORT, {"chains": [[*GOOD_CHAIN[:6], math.nan, *GOOD_CHAIN[7:]]]}),
        (GOOD_REPORT, {"chains": [[*GOOD_CHAIN[:10], math.inf, 0.0]]}),
        (GOOD_REPORT, {"links": [GOOD_LINK] * (MAX_LINKS + 1)}),
        (GOOD_REPORT, {"links": [["", None, None, None]]}),
        (GOOD_REPORT, {"links": [["p", None, None, -1.0]]}),
    ],
)
def test_a_field_out_of_bounds_is_a_violation(message: Message, changes: dict[str, Any]) -> None:
    assert parse_message(altered(message)) == message
    with pytest.raises(ProtocolViolation):
        parse_message(altered(message, **changes))


def test_ones_own_senseless_message_is_ones_own_fault() -> None:
    with pytest.raises(MisuseError, match="layers 10:10"):
        msgspec.structs.replace(GOOD_OPEN, start=10)
    with pytest.raises(MisuseError, match="rows 32:32"):
        msgspec.structs.replace(GOOD_FETCH, first=32)
    with pytest.raises(MisuseError, match="calibration hash of 5 bytes"):
        Accept(0, 0, 0, calibration=b"short")
    with pytest.raises(MisuseError, match="2 log probabilities for 1 tokens"):
        Result(0, 0, 0, 1, (7,), (TokenLogprobs(-1.0, ()),) * 2)
    with pytest.raises(ConfigError, match="top_p"):
        Answer(0, SamplingParams(top_p=2.0))


@pytest.mark.parametrize("kind", [Refused, lambda text: Busy(0, text), lambda text: Failed("idle", text)])
def test_words_for_a_person_are_cut_so_that_they_can_always_be_sent(kind: Any) -> None:
    message = kind("why\n" * 1000 + "\ud800")
    assert len(message.reason) == MAX_REASON_CHARS
    assert message.reason.isprintable()
    assert parse_message(header_of(message)) == message
    assert LinkLost("peer", "\ud800").reason == "?"
