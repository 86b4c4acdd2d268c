"""Every message survives the wire, and nothing else passes for one."""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, MisuseError, ProtocolViolation
from swarm.core.limits import (
    COMPACT_RECEIPT_BYTES,
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
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
from swarm.wire.frames import PREFIX_BYTES, encode_head, parse_message, parse_prefix
from swarm.wire.messages import (
    Accept,
    Answer,
    Busy,
    Close,
    Downstream,
    Failed,
    Hello,
    LinkLost,
    Message,
    Noop,
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
    AskStatus,
    Histogram,
    LinkFigures,
    StageFigures,
    StatusReport,
    Totals,
)

encode = msgspec.msgpack.encode

counters = st.integers(0, 2**32 - 1)
tokens = st.integers(0, MAX_CONTEXT_TOKENS)
token_ids = st.integers(0, MAX_VOCABULARY - 1)
secrets = st.binary(min_size=16, max_size=16)
digests = st.binary(min_size=32, max_size=32)
signatures = st.binary(min_size=64, max_size=64)
compact_receipts = st.binary(min_size=COMPACT_RECEIPT_BYTES, max_size=COMPACT_RECEIPT_BYTES)
reasons = st.text(alphabet=st.characters(categories=["L", "N", "P"]), max_size=MAX_REASON_CHARS)
peers = st.text(min_size=1, max_size=64, alphabet=st.characters(codec="utf-8"))
stages = st.integers(0, MAX_STAGE_NUMBERS - 1)
upstreams = st.builds(Upstream, peers, secrets)
downstreams = st.builds(Downstream, st.binary(min_size=1, max_size=100), stages, secrets)
logprobs = st.floats(max_value=0)
answers = st.builds(
    Answer,
    tokens,
    st.builds(SamplingParams, st.floats(0, 2), st.integers(0, 50), st.floats(0.1, 1), seed=st.integers(0, 2**63 - 1)),
)


@st.composite
def opens(draw: st.DrawFn) -> Open:
    start = draw(st.integers(0, 100))
    return Open(
        protocol=draw(st.integers(0, 65535)),
        model=draw(st.text(max_size=40)),
        session=draw(secrets),
        stage=draw(stages),
        start=start,
        end=draw(st.integers(start + 1, 200)),
        embed=draw(st.booleans()),
        head=draw(st.booleans()),
        kv_tokens=draw(st.integers(1, MAX_CONTEXT_TOKENS)),
        numerics=draw(st.sampled_from(["", "float32", "bfloat16+nf4"])),
        codec=draw(st.sampled_from(["raw", "int8"])),
        upstream=draw(upstreams),
        downstream=draw(st.none() | downstreams),
        nonce=draw(secrets),
        commitment=draw(st.binary(min_size=32, max_size=32)),
        feedback=draw(st.booleans()),
        generation=draw(counters),
        priority=draw(st.sampled_from(["interactive", "batch"])),
        signed_rows=draw(tokens),
    )


@st.composite
def fetches(draw: st.DrawFn) -> FetchRows:
    first = draw(st.integers(0, MAX_CONTEXT_TOKENS - 1))
    last = draw(st.integers(first + 1, MAX_CONTEXT_TOKENS))
    want = draw(st.sampled_from(["leaves", "outputs", "sent"]))
    return FetchRows(draw(secrets), draw(stages), draw(digests), first, last, want)


@st.composite
def results(draw: st.DrawFn) -> Result:
    sampled = draw(st.lists(token_ids, max_size=5))
    entry = st.builds(TokenLogprobs, logprobs, st.lists(st.tuples(token_ids, logprobs), max_size=3).map(tuple))
    scored = draw(st.lists(entry, min_size=len(sampled), max_size=len(sampled)) | st.just([]))
    where = [draw(counters) for _ in range(3)]
    return Result(*where, draw(tokens), tuple(sampled), tuple(scored), draw(st.integers(0, MAX_STEP_ROWS)))


totals = st.integers(0, 2**62)
moments = st.floats(0, 1e9)
measured = st.none() | st.floats(0, 3600)


@st.composite
def chains(draw: st.DrawFn) -> StageFigures:
    start = draw(st.integers(0, MAX_LAYERS - 1))
    end = draw(st.integers(start + 1, MAX_LAYERS))
    label, rows = draw(st.binary(min_size=8, max_size=8)), (draw(totals), draw(totals))
    spent = [draw(measured) for _ in range(4)]
    return StageFigures(label, draw(stages), start, end, *rows, *spent, draw(moments), draw(moments))


links = st.builds(LinkFigures, peers, measured, measured, st.none() | st.floats(0, 1e9))


@st.composite
def histograms(draw: st.DrawFn) -> Histogram:
    buckets = len(BUCKETS_S) + 1
    return Histogram(tuple(draw(st.lists(totals, min_size=buckets, max_size=buckets))), draw(st.floats(0, 1e12)))


reports = st.builds(
    StatusReport,
    moments,
    st.floats(0, 1),
    st.builds(Totals, *[totals] * 9),
    histograms(),
    histograms(),
    totals,
    totals,
    totals,
    st.lists(chains(), max_size=3).map(tuple),
    st.lists(links, max_size=3).map(tuple),
)

STRATEGIES: dict[type, st.SearchStrategy[Any]] = {
    Open: opens(),
    Accept: st.builds(
        Accept,
        counters,
        counters,
        tokens,
        st.booleans(),
        receipts=st.booleans(),
        calibration=st.just(b"") | digests,
    ),
    Busy: st.builds(Busy, st.floats(0, 3600), reasons),
    Refused: st.builds(Refused, reasons),
    Hello: st.builds(Hello, peers, secrets, stages, secrets, st.sampled_from([0, 1]), counters),
    Step: st.builds(
        Step,
        counters,
        counters,
        counters,
        tokens,
        st.integers(1, MAX_STEP_ROWS),
        st.integers(0, MAX_STEP_ROWS),
        st.booleans(),
        tokens,
        st.none() | answers,
    ),
    Result: results(),
    LinkLost: st.builds(LinkLost, peers, reasons, counters),
    Failed: st.builds(Failed, st.sampled_from(["client", "server", "idle", "draining"]), reasons),
    Close: st.builds(Close),
    Noop: st.builds(Noop),
    Relink: st.builds(
        Relink,
        counters,
        tokens,
        st.none() | upstreams,
        st.none() | downstreams,
        st.none() | st.integers(0, MAX_STAGES - 1),
        tokens,
    ),
    Relinked: st.builds(Relinked, counters, tokens, tokens),
    Replay: st.builds(
        Replay,
        counters,
        tokens,
        st.integers(1, MAX_STEP_ROWS),
        st.booleans(),
        tokens,
        st.integers(0, MAX_STAGES - 1),
    ),
    Replayed: st.builds(Replayed, counters, tokens),
    Pace: st.builds(Pace, st.none() | st.floats(0, 3600), st.floats(0, 3600)),
    Signed: st.builds(Signed, counters, counters, compact_receipts),
    Settle: st.builds(Settle, tokens),
    Settled: st.builds(Settled, tokens),
    Countersign: st.builds(Countersign, signatures),
    FetchRows: fetches(),
    FetchedRows: st.builds(FetchedRows, tokens, st.integers(1, MAX_STEP_ROWS), st.booleans()),
    FetchProof: st.builds(FetchProof, digests),
    ProofPart: st.builds(ProofPart, st.integers(1, MAX_PROOF_BYTES)),
    AskStatus: st.builds(AskStatus),
    StatusReport: reports,
}

messages = st.one_of(*STRATEGIES.values())


def header_of(message: Message) -> bytes:
    return encode_head(message)[PREFIX_BYTES:]


def test_every_message_type_is_tested_here() -> None:
    assert set(STRATEGIES) == set(get_args(Message))


@pytest.mark.parametrize("kind", get_args(Message), ids=lambda kind: kind.__name__)
def test_every_message_survives_the_wire(kind: type) -> None:
    @settings(max_examples=40)
    @given(STRATEGIES[kind])
    def round_trip(message: Message) -> None:
        head = encode_head(message)
        assert parse_prefix(head[:PREFIX_BYTES]) == (len(head) - PREFIX_BYTES, 0)
        back = parse_message(head[PREFIX_BYTES:])
        assert type(back) is kind
        assert back == message

    round_trip()


def test_tags_are_the_contract() -> None:
    """Renumbering a message would make it mean something else to every older peer."""
    order = (
        Open, Accept, Busy, Refused, Hello, Step, Result, LinkLost, Failed, Close, Noop,
        Relink, Relinked, Replay, Replayed, Pace,
        Signed, Settle, Settled, Countersign, FetchRows, FetchedRows, FetchProof, ProofPart, AskStatus, StatusReport,
    )  # fmt: skip
    assert [kind.__struct_config__.tag for kind in order] == list(range(1, 27))


RECEIPT = bytes(range(COMPACT_RECEIPT_BYTES))
SESSION, DIGEST, SIGNATURE = b"s" * 16, b"d" * 32, b"g" * 64


@pytest.mark.parametrize(
    ("message", "header"),
    [
        (
            Accept(1, 2, 3, receipts=True, calibration=DIGEST),
            b"\x99\x02\x01\x02\x03\xc2\xc0\xc0\xc3\xc4\x20" + DIGEST,
        ),
        (Signed(3, 300, RECEIPT), b"\x94\x11\x03\xcd\x01\x2c\xc4\xb1" + RECEIPT),
        (Settle(70_000), b"\x92\x12\xce\x00\x01\x11\x70"),
        (Settled(33), b"\x92\x13\x21"),
        (Countersign(SIGNATURE), b"\x92\x14\xc4\x40" + SIGNATURE),
        (
            FetchRows(SESSION, 2, DIGEST, 32, 160, "outputs"),
            b"\x97\x15\xc4\x10" + SESSION + b"\x02\xc4\x20" + DIGEST + b"\x20\xcc\xa0\xa7outputs",
        ),
        (FetchedRows(32, 128, True), b"\x94\x16\x20\xcc\x80\xc3"),
        (FetchProof(DIGEST), b"\x92\x17\xc4\x20" + DIGEST),
        (ProofPart(5), b"\x92\x18\x05"),
        (AskStatus(), b"\x91\x19"),
    ],
    ids=lambda part: type(part).__name__,
)
def test_the_layout_of_evidence_is_frozen(message: Message, header: bytes) -> None:
    """Msgpack arrays, the tag first, the fields in order: what servers of two versions must agree on."""
    assert header_of(message) == header
    assert parse_message(header) == message


@given(messages, st.lists(st.integers(0, 100) | st.text(max_size=5) | st.none(), min_size=1, max_size=3))
def test_fields_appended_by_a_later_version_are_ignored(message: Message, extra: list[Any]) -> None:
    fields = msgspec.msgpack.decode(header_of(message))
    defaults = len(type(message).__struct_fields__) + 1 - len(fields)
    assert defaults == 0, "all fields are always written, so that more can follow"
    assert parse_message(encode(fields + extra)) == message


@pytest.mark.parametrize("tag", [0, 27, 255, 2**32, -1, "1", None, 1.0, True, [1], {}])
def test_an_unknown_tag_is_refused(tag: object) -> None:
    with pytest.raises(ProtocolViolation, match="not a message"):
        parse_message(encode([tag, 1, 2, 3]))


@settings(max_examples=200)
@given(st.binary(max_size=100))
def test_random_bytes_are_a_message_or_a_violation(data: bytes) -> None:
    outcome: object
    try:
        outcome = parse_message(data)
    except ProtocolViolation as error:
        outcome = error
    assert isinstance(outcome, get_args(Message)) or (len(str(outcome)) < 200 and str(outcome).isprintable())


@settings(max_examples=200)
@given(messages, st.data())
def test_garbled_messages_are_a_message_or_a_violation(message: Message, data: st.DataObject) -> None:
    header = bytearray(header_of(message))
    for _ in range(data.draw(st.integers(1, 3))):
        header[data.draw(st.integers(0, len(header) - 1))] = data.draw(st.integers(0, 255))
    with suppress(ProtocolViolation):
        assert isinstance(parse_message(bytes(header)), get_args(Message))
    with pytest.raises(ProtocolViolation):
        parse_message(header_of(message)[:-1])


wire_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=200)
@given(messages, st.data())
def test_any_value_in_any_field_is_in_bounds_or_a_violation(message: Message, data: st.DataObject) -> None:
    fields = msgspec.msgpack.decode(header_of(message))
    fields[data.draw(st.integers(0, len(fields) - 1))] = data.draw(wire_values)
    try:
        back = parse_message(encode(fields))
    except ProtocolViolation:
        return
    assert parse_message(header_of(back)) == back


@pytest.mark.parametrize("depth", [10, 1000, 16_000])
def test_deep_nesting_is_a_violation_or_ignored(depth: int) -> None:
    try:
        assert parse_message(b"\x92\x0b" + b"\x91" * depth + b"\x90") == Noop()
    except ProtocolViolation:
        assert depth > 100


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
