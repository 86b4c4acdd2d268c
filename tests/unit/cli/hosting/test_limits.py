"""The limits a volunteer sets: what is refused, how they are told, and the clock they go by."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator

import pytest

from swarm.cli.hosting.limits import add_limits, check_limits, hours_of, limits_text, local_time, wall_minute
from swarm.core.errors import ConfigError
from swarm.core.hours import DAY_MIN


def options(*given: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_limits(parser)
    parsed = parser.parse_args(given)
    parsed.max_memory = []
    return parsed


def test_without_any_nothing_is_limited_or_told() -> None:
    free = options()
    check_limits(free)
    assert limits_text(free) == ""
    assert hours_of(free) is None
    assert (free.memory_share, free.uplink_mbps) == (1.0, None)


def test_all_of_them_are_told() -> None:
    given = options("--memory-share", "0.5", "--uplink-mbps", "20", "--schedule", "22:00-08:00")
    check_limits(given)
    assert limits_text(given) == "50 % of the memory, 20 Mbit/s of upload, hours 22:00-08:00"
    hours = hours_of(given)
    assert hours is not None
    assert hours.open_at(23 * 60)


@pytest.mark.parametrize(
    ("given", "names"),
    [
        (("--memory-share", "0"), "--memory-share"),
        (("--memory-share", "50"), "--memory-share"),
        (("--memory-share", "nan"), "--memory-share"),
        (("--uplink-mbps", "0"), "--uplink-mbps"),
        (("--uplink-mbps", "inf"), "--uplink-mbps"),
        (("--uplink-mbps", "nan"), "--uplink-mbps"),
        (("--schedule", "at night"), "at night"),
    ],
)
def test_what_is_no_limit_is_refused(given: tuple[str, str], names: str) -> None:
    with pytest.raises(ConfigError, match=names) as caught:
        check_limits(options(*given))
    assert caught.value.hint


def test_two_limits_of_one_thing_are_refused() -> None:
    given = options("--memory-share", "0.5")
    given.max_memory = ["0=8GB"]
    with pytest.raises(ConfigError, match="--max-memory"):
        check_limits(given)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("berlin")
def test_the_clock_is_the_one_on_the_wall() -> None:
    before_s = 1_711_846_740.0  # Sunday 2024-03-31 01:59 in Berlin, a minute before the clocks go forward
    assert wall_minute(before_s) == 6 * DAY_MIN + 119
    assert wall_minute(before_s + 60) == 6 * DAY_MIN + 180
    assert local_time(before_s + 60) == "Sun 03:00"
