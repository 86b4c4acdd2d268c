"""Frames: lengths are judged before anything is allocated, and bytes come back as they went."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swarm.core.errors import MisuseError, ProtocolViolation
from swarm.core.limits import MAX_FRAME_BYTES, MAX_HEADER_BYTES, MAX_RECORD_BYTES
from swarm.wire.frames import PREFIX_BYTES, decode_frame, encode_head, parse_message, parse_prefix
from swarm.wire.messages import Accept, Close, Downstream, Hello, Noop, Relink, Replay, Result, Step, Upstream

STEP = Step(1, 2, 3, 4, 5, 1)


@given(st.binary(max_size=300), st.binary(max_size=20))
def test_a_frame_comes_back_whole_and_leaves_the_rest(payload: bytes, rest: bytes) -> None:
    data = encode_head(STEP, len(payload)) + payload
    frame, taken = decode_frame(data + rest)
    assert frame.message == STEP
    assert bytes(frame.payload) == payload
    assert taken == len(data)


@given(st.lists(st.sampled_from([Noop(), Close(), Accept(1, 2, 3), STEP, Result(0, 0, 0, 9, (1, 2))]), max_size=6))
def test_frames_follow_each_other_without_a_gap(messages: list[Noop]) -> None:
    data = b"".join(encode_head(message) for message in messages)
    read = []
    while data:
        frame, taken = decode_frame(data)
        read.append(frame.message)
        data = data[taken:]
    assert read == messages


def test_the_layout_is_the_contract() -> None:
    """u32 length of all that follows, u16 length of the header, header, payload; big-endian."""
    assert encode_head(Noop()) == bytes.fromhex("00000004 0002 91 0b")
    assert encode_head(Close(), 0) == bytes.fromhex("00000004 0002 91 0a")
    header = bytes.fromhex("9a 06 01 02 03 04 05 01 c2 00 c0")
    assert encode_head(STEP, 256) == bytes.fromhex("0000010d 000b") + header


def test_the_layout_of_what_heals_a_chain() -> None:
    """Frozen: a server and a client of different versions meet here."""

    def header(message: Relink | Replay | Hello) -> str:
        return encode_head(message)[PREFIX_BYTES:].hex(" ", 1)

    assert header(Relink(2, 3)) == "97 0c 02 03 c0 c0 c0 00"
    assert header(Relink(2, 3, Upstream("up", bytes(16)), Downstream(b"r", 4, bytes(16)), 5)) == (
        f"97 0c 02 03 92 a2 75 70 c4 10{' 00' * 16} 93 c4 01 72 04 c4 10{' 00' * 16} 05 00"
    )
    assert header(Replay(2, 3, 4, True, 5, 6)) == "97 0e 02 03 04 c3 05 06"
    assert header(Hello("c", bytes(16), 7, bytes(16), 1, 2)) == (
        f"97 05 a1 63 c4 10{' 00' * 16} 07 c4 10{' 00' * 16} 01 02"
    )


def test_a_decode_steps_fixed_cost_is_under_200_bytes() -> None:
    largest = Step(2**32 - 1, 2**32 - 1, 2**32 - 1, 4_000_000, 1, 1, True, 4_000_000)
    assert len(encode_head(largest, 10**6)) < 60


@given(st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1), st.integers(10, MAX_FRAME_BYTES))
def test_lengths_are_bounded_before_anything_is_read(body: int, header: int, limit: int) -> None:
    prefix = struct.pack(">IH", body, header)
    if 1 <= header <= MAX_HEADER_BYTES and 2 + header <= body <= limit:
        header_bytes, payload_bytes = parse_prefix(prefix, max_frame_bytes=limit)
        assert header_bytes == header
        assert header_bytes + payload_bytes + 2 == body
    else:
        with pytest.raises(ProtocolViolation, match="bytes"):
            parse_prefix(prefix, max_frame_bytes=limit)


@pytest.mark.parametrize(
    ("body", "header", "good"),
    [
        (2 + 1, 1, True),
        (2, 0, False),
        (0, 0, False),
        (1 + 1, 1, False),
        (MAX_FRAME_BYTES, 1, True),
        (MAX_FRAME_BYTES + 1, 1, False),
        (2 + MAX_HEADER_BYTES, MAX_HEADER_BYTES, True),
        (3 + MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1, False),
        (2**32 - 1, 2**16 - 1, False),
    ],
)
def test_the_edges_of_the_limits(body: int, header: int, good: bool) -> None:
    prefix = struct.pack(">IH", body, header)
    if good:
        assert parse_prefix(prefix) == (header, body - header - 2)
    else:
        with pytest.raises(ProtocolViolation):
            parse_prefix(prefix)


@settings(max_examples=200)
@given(st.binary(max_size=64))
def test_random_bytes_are_a_frame_or_a_violation(data: bytes) -> None:
    try:
        _, taken = decode_frame(data)
    except ProtocolViolation:
        return
    assert PREFIX_BYTES < taken <= len(data)


@given(st.binary(max_size=40), st.data())
def test_a_cut_frame_is_a_violation(payload: bytes, data: st.DataObject) -> None:
    whole = encode_head(STEP, len(payload)) + payload
    with pytest.raises(ProtocolViolation, match=r"incomplete|cut"):
        decode_frame(whole[: data.draw(st.integers(0, len(whole) - 1))])


def test_only_steps_replays_and_results_carry_a_payload() -> None:
    for message in (STEP, Replay(1, 0, 1), Result(0, 0, 0, 1)):
        assert parse_message(encode_head(message)[PREFIX_BYTES:], 10**6) == message
    for message in (Noop(), Close(), Accept(0, 0, 0), Relink(1, 0)):
        with pytest.raises(ProtocolViolation, match="1 bytes of payload"):
            parse_message(encode_head(message)[PREFIX_BYTES:], 1)
        with pytest.raises(MisuseError, match="carries no payload"):
            encode_head(message, 1)
        longer = bytearray(encode_head(message) + b"!")
        longer[3] += 1
        with pytest.raises(ProtocolViolation, match="payload"):
            decode_frame(bytes(longer))


def test_we_do_not_send_what_a_peer_would_hang_up_on() -> None:
    room = MAX_FRAME_BYTES - (len(encode_head(STEP)) - 4)
    assert parse_prefix(encode_head(STEP, room)[:PREFIX_BYTES])[1] == room
    with pytest.raises(MisuseError, match="over the wire's limit"):
        encode_head(STEP, room + 1)


def test_the_largest_messages_fit_a_header() -> None:
    from swarm.core.limits import MAX_LOGIT_BIAS, MAX_SAMPLED_ROWS, MAX_TOP_LOGPROBS, MAX_VOCABULARY
    from swarm.core.sampling import SamplingParams
    from swarm.wire.messages import Answer, Open, TokenLogprobs

    token = MAX_VOCABULARY - 1
    bias = SamplingParams(logit_bias=tuple((token, 0.1) for _ in range(MAX_LOGIT_BIAS)), seed=2**63 - 1)
    top = TokenLogprobs(-0.1, tuple((token, -0.1) for _ in range(MAX_TOP_LOGPROBS)))
    up, down = Upstream("\U0001f600" * 64, b"i" * 16), Downstream(b"d" * MAX_RECORD_BYTES, 65535, b"o" * 16)
    widest = (
        Step(2**32 - 1, 2**32 - 1, 2**32 - 1, 4_000_000, 512, 64, True, 4_000_000, Answer(4_000_000, bias)),
        Result(2**32 - 1, 0, 0, 0, (token,) * MAX_SAMPLED_ROWS, (top,) * MAX_SAMPLED_ROWS),
        Open(
            1, "\U0001f600" * 400, b"s" * 16, 0, 0, 4096, True, True, 1, "\U0001f600" * 64, "int8", up, down, b"n" * 16,
            b"c" * 32, True, 2**32 - 1, "interactive",
        ),
        Relink(2**32 - 1, 4_000_000, up, down, 255),
    )  # fmt: skip
    for message in widest:
        assert parse_message(encode_head(message)[PREFIX_BYTES:]) == message
