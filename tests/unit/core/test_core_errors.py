"""The error tree, and text that strangers wrote."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core import errors
from swarm.core.errors import (
    BadSignatureError,
    BusyError,
    CapacityError,
    GenerationInterruptedError,
    MisuseError,
    NetworkError,
    PeerError,
    PeerLostError,
    ProtocolViolation,
    SwarmError,
)
from swarm.core.text import clip

PEER = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq"
BRANCHES = (MisuseError, PeerError, NetworkError, CapacityError)


def test_every_error_is_a_swarm_error_on_at_most_one_branch() -> None:
    classes = [value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, Exception)]
    assert len(classes) > 15
    for one in classes:
        assert issubclass(one, SwarmError)
        assert sum(issubclass(one, branch) for branch in BRANCHES) <= 1
        assert one.__doc__


def test_the_hint_follows_the_message_in_brackets() -> None:
    assert str(MisuseError("no such file")) == "no such file"
    assert str(MisuseError("no such file", hint="check the path")) == "no such file (check the path)"


def test_a_peer_error_names_the_peer_by_its_last_eight_characters() -> None:
    error = ProtocolViolation("sent garbage", peer=PEER, hint="update it")
    assert str(error) == "peer Umo7R3pq: sent garbage (update it)"
    assert error.peer == PEER
    assert ProtocolViolation("sent garbage").message == "sent garbage"


def test_what_a_peer_wrote_cannot_steer_the_terminal() -> None:
    error = BadSignatureError("name \x1b[2J\r\n\u202eevil\ud800", peer="\x1b]0;x")
    assert str(error).isprintable()
    assert "\x1b" not in error.peer
    assert len(str(ProtocolViolation("x" * 100_000, peer="y" * 100_000))) < 1100


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        (BusyError("full", retry_after_s=2.5), {"retry_after_s": 2.5}),
        (PeerLostError("gone", peer=PEER), {"peer": PEER}),
        (GenerationInterruptedError("cut", token_ids=(1, 2), text="ab"), {"token_ids": (1, 2), "text": "ab"}),
    ],
)
def test_errors_carry_what_the_caller_needs(error: SwarmError, fields: dict[str, object]) -> None:
    assert {name: getattr(error, name) for name in fields} == fields


@given(st.text(alphabet=st.characters(), max_size=60), st.integers(1, 50))
def test_clipped_text_is_short_printable_and_can_be_encoded(text: str, limit: int) -> None:
    shown = clip(text, limit)
    assert len(shown) <= limit
    assert shown.isprintable()
    shown.encode("utf-8")


INVISIBLE = "\u115f\u1160\u2800\u3164\uffa0"
"""Letters and signs that show nothing."""


@given(st.text(alphabet=st.characters(categories=["L", "N", "P", "S"], exclude_characters=INVISIBLE), max_size=50))
def test_harmless_text_is_left_alone(text: str) -> None:
    assert clip(text, 50) == text


def test_a_cut_is_visible() -> None:
    assert clip("abcdef", 6) == "abcdef"
    assert clip("abcdefg", 6) == "abcde…"
    assert clip("a\nb\x07c", 6) == "a b?c"
