"""Query strings: what is not understood is refused, and named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from swarm.health.web.errors import ApiError
from swarm.health.web.parameters import Pairs, read_digest, read_events, read_history, read_nothing


def test_what_is_asked() -> None:
    history = read_history([("model", "demo@main#12"), ("hours", "0.5")])
    assert (history.model, history.hours) == ("demo@main#12", 0.5)
    assert read_history([("model", "demo")]).hours == 24.0
    events = read_events([("limit", "1000"), ("after", "9007199254740991")])
    assert (events.after, events.limit) == (2**53 - 1, 1000)
    events = read_events([])
    assert (events.after, events.limit) == (0, 100)
    read_nothing([])


@pytest.mark.parametrize(
    ("read", "query", "name"),
    [
        (read_history, [], "model"),
        (read_history, [("model", "")], "model"),
        (read_history, [("model", "x" * 301)], "model"),
        (read_history, [("model", "a"), ("model", "b")], "model"),
        (read_history, [("model", "a"), ("hours", "0")], "hours"),
        (read_history, [("model", "a"), ("hours", "24.1")], "hours"),
        (read_history, [("model", "a"), ("hours", "-1")], "hours"),
        (read_history, [("model", "a"), ("hours", "nan")], "hours"),
        (read_history, [("model", "a"), ("hours", "1e1")], "hours"),
        (read_history, [("model", "a"), ("hours", " 1")], "hours"),
        (read_history, [("model", "a"), ("hours", "१")], "hours"),
        (read_history, [("model", "a"), ("hour", "1")], "hour"),
        (read_events, [("limit", "0")], "limit"),
        (read_events, [("limit", "1001")], "limit"),
        (read_events, [("after", "-1")], "after"),
        (read_events, [("after", "9007199254740992")], "after"),
        (read_events, [("after", "")], "after"),
        (read_events, [("after", "1_0")], "after"),
        (read_nothing, [("x" * 100, "")], "x" * 50),
    ],
)
def test_what_cannot_be_is_named(read: Callable[[Pairs], object], query: Pairs, name: str) -> None:
    with pytest.raises(ApiError) as caught:
        read(query)
    assert (caught.value.status, caught.value.param) == (400, name)


@pytest.mark.parametrize("digest", ["", "a" * 63, "A" * 64, "g" * 64, "../" + "a" * 61, "a" * 64 + "\n"])
def test_a_digest_is_nothing_else(digest: str) -> None:
    with pytest.raises(ApiError):
        read_digest(digest)
    assert read_digest("a0" * 32) == "a0" * 32
