"""Every message survives the wire, and nothing else passes for one."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import ProtocolViolation
from swarm.core.limits import (
    COMPACT_RECEIPT_BYTES,
    MAX_CONTEXT_TOKENS,
    MAX_LAYERS,
    MAX_PROOF_BYTES,
    MAX_REASON_CHARS,
    MAX_STAGE_NUMBERS,
    MAX_STAGES,
    MAX_STEP_ROWS,
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
