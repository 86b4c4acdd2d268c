"""Serving hours: what is read, and that the next change is one and the first."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError
from swarm.core.hours import AHEAD_S, DAY_MIN, DAYS, Hours

BERLIN = ZoneInfo("Europe/Berlin")


def on_the_wall(zone: ZoneInfo) -> Callable[[float], int]:
    def minute(at_s: float) -> int:
        local = datetime.fromtimestamp(at_s, zone)
        return local.weekday() * DAY_MIN + local.hour * 60 + local.minute

    return minute


@pytest.mark.parametrize(
    ("text", "open_at", "shut_at"),
    [
        ("22:00-08:00", ["mon 22:00", "mon 07:59", "sun 23:59"], ["mon 08:00", "wed 21:59"]),
        ("mon-fri 18:00-08:00, sat-sun", ["sat 12:00", "sat 03:00", "fri 18:00"], ["mon 07:00", "tue 17:59"]),
        ("fri 22:00-08:00", ["sat 07:59"], ["sat 08:00", "fri 07:59", "fri 21:59"]),
        ("sun 22:00-02:00", ["mon 01:59"], ["mon 02:00", "sun 01:00"]),
        ("SAT", ["sat 00:00", "sat 23:59"], ["sun 00:00", "fri 23:59"]),
        ("fri-mon 08:00-24:00", ["sun 23:59", "mon 08:00"], ["tue 00:00", "thu 12:00"]),
    ],
)
def test_windows_are_what_people_mean(text: str, open_at: list[str], shut_at: list[str]) -> None:
    hours = Hours.parse(text)
    assert all(hours.open_at(at(when)) for when in open_at)
    assert not any(hours.open_at(at(when)) for when in shut_at)


def at(when: str) -> int:
    day, _, clock = when.partition(" ")
    hour, _, minute = clock.partition(":")
    return DAYS.index(day) * DAY_MIN + int(hour) * 60 + int(minute)


@pytest.mark.parametrize(
    "text",
    ["", ",", "22-08", "25:00-08:00", "22:00-24:01", "22:60-08:00", "08:00-08:00", "moon", "mon-", "22:00-08:00 mon",
     "mon tue 08:00-09:00", "mon tue", "mon 08:00", "٢٢:٠٠-٠٨:٠٠", "x" * 501],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Hours.parse(text)
    assert caught.value.hint


def test_always_never_changes() -> None:
    hours = Hours.parse("mon-sun")
    assert hours.always
    assert Hours.parse("00:00-12:00, 12:00-24:00").always
    assert hours.next_change(0.0, on_the_wall(BERLIN)) is None


clocks = st.tuples(st.integers(0, 23), st.integers(0, 59)).map(lambda time: f"{time[0]}:{time[1]:02}")
times = st.tuples(clocks, clocks).filter(lambda pair: pair[0] != pair[1]).map("-".join)
days = st.one_of(st.sampled_from(DAYS), st.tuples(st.sampled_from(DAYS), st.sampled_from(DAYS)).map("-".join))
windows = st.one_of(times, days, st.tuples(days, times).map(" ".join))
schedules = st.lists(windows, min_size=1, max_size=3).map(", ".join)
# Around both of a year's clock changes in either zone, and over years.
moments = st.one_of(st.integers(1_711_000_000, 1_713_000_000), st.integers(1_728_000_000, 1_731_000_000),
                    st.integers(0, 4_000_000_000))  # fmt: skip
zones = st.sampled_from([BERLIN, ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata"), ZoneInfo("UTC")])


@given(schedules, moments, zones)
@example("sun 02:10-02:20", 1_711_800_000, BERLIN)  # the window that putting clocks forward swallows
@example("sun 02:10-02:20", 1_729_980_000, BERLIN)  # and the one that comes twice
def test_the_next_change_is_one_and_nothing_changes_before_it(text: str, now_s: int, zone: ZoneInfo) -> None:
    hours, wall = Hours.parse(text), on_the_wall(zone)
    is_open = hours.open_at(wall(now_s))
    change_s = hours.next_change(now_s, wall)
    if change_s is None:
        assert hours.always
        return
    assert now_s < change_s <= now_s + AHEAD_S
    assert hours.open_at(wall(change_s)) is not is_open
    step_s = max(60, int(change_s - now_s) // 500)
    assert all(hours.open_at(wall(at_s)) is is_open for at_s in range(now_s, int(change_s), step_s))
    assert hours.open_at(wall(change_s - 1)) is is_open


def test_a_window_follows_the_wall_clock_over_a_clock_change() -> None:
    hours, wall = Hours.parse("22:00-08:00"), on_the_wall(BERLIN)
    opened_s = datetime(2024, 3, 30, 22, 0, tzinfo=BERLIN).astimezone(UTC).timestamp()  # the night is 9 hours long
    closes_s = hours.next_change(opened_s, wall)
    assert closes_s is not None
    assert closes_s - opened_s == 9 * 3600
    assert wall(closes_s) % DAY_MIN == 8 * 60
