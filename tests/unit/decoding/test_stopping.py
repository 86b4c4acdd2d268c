"""Stop rules: the same text however tokens divide it, nothing shown too early, the right reason."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from swarm.core.errors import ConfigError, MisuseError
from swarm.decoding.stopping import Release, StopWatch

EOS = 0


class Pieces:
    """A decoder whose tokens are strings by number; the last ``late`` characters of each come one push later."""

    def __init__(self, pieces: list[str], late: int = 0) -> None:
        self._pieces, self._late, self._waiting = pieces, late, ""

    def push(self, token_id: int) -> str:
        text = self._waiting + self._pieces[token_id - 1]
        cut = max(0, len(text) - self._late)
        self._waiting = text[cut:]
        return text[:cut]

    def finish(self) -> str:
        text, self._waiting = self._waiting, ""
        return text


def watch_all(
    pieces: list[str], *, stops: tuple[str, ...] = (), max_tokens: int = 100, eos_after: bool = True, late: int = 0
) -> tuple[str, str | None, int, list[Release]]:
    watch = StopWatch(Pieces(pieces, late), max_tokens=max_tokens, eos_ids={EOS}, stop_strings=stops)
    releases = []
    for token_id in [*range(1, len(pieces) + 1), *([EOS] if eos_after else [])]:
        releases.append(watch.push(token_id))
        if watch.finish_reason is not None:
            break
    assert all(release.finish_reason is None for release in releases[:-1])
    assert not releases or releases[-1].finish_reason == watch.finish_reason
    return "".join(release.text for release in releases), watch.finish_reason, len(releases), releases


def text_before_stop(text: str, stops: tuple[str, ...]) -> str:
    """Character by character: the first moment at which the text ends with a stop string."""
    for end in range(1, len(text) + 1):
        matches = [stop for stop in stops if text[:end].endswith(stop)]
        if matches:
            return text[: end - max(map(len, matches))]
    return text


pieces_strategy = st.lists(st.text("ab\n", max_size=4), max_size=12)
stops_strategy = st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=3).map(tuple)


@given(pieces=pieces_strategy, stops=stops_strategy, late=st.integers(0, 3))
def test_text_is_that_of_reading_character_by_character(pieces: list[str], stops: tuple[str, ...], late: int) -> None:
    text, reason, count, _ = watch_all(pieces, stops=stops, late=late)
    assert text == text_before_stop("".join(pieces), stops)
    assert reason == "stop"
    assert count <= len(pieces) + 1


@given(pieces=pieces_strategy, stops=stops_strategy)
def test_what_is_held_back_is_only_what_may_begin_a_stop_string(pieces: list[str], stops: tuple[str, ...]) -> None:
    """At every moment shown and held make up the text so far, and the held part is the longest possible beginning."""
    _, reason, count, releases = watch_all(pieces, stops=stops, eos_after=False)
    shown = ""
    for index, release in enumerate(releases[: count - (reason is not None)], start=1):
        shown += release.text
        so_far = "".join(pieces[:index])
        assert so_far.startswith(shown)
        held = so_far[len(shown) :]
        assert not held or any(stop.startswith(held) for stop in stops)
        longer = [so_far[cut:] for cut in range(len(shown))]
        assert not any(stop.startswith(end) for stop in stops for end in longer)


@given(pieces=pieces_strategy.filter(bool), stops=stops_strategy, late=st.integers(0, 3))
def test_length_ends_with_all_the_text(pieces: list[str], stops: tuple[str, ...], late: int) -> None:
    text, reason, count, _ = watch_all(pieces, stops=stops, late=late, max_tokens=len(pieces), eos_after=False)
    whole = "".join(pieces)
    assert text == text_before_stop(whole, stops)
    assert reason == ("stop" if any(stop in whole for stop in stops) else "length")
    assert reason == "stop" or count == len(pieces)


def test_a_stop_string_across_three_tokens() -> None:
    text, reason, count, releases = watch_all(["Hi E", "N", "D more", "never"], stops=("END",))
    assert (text, reason, count) == ("Hi ", "stop", 3)
    assert [release.text for release in releases] == ["Hi ", "", ""]


def test_a_false_beginning_is_released() -> None:
    _, _, _, releases = watch_all(["\n", "\n", "x"], stops=("\n\nUser",))
    assert [release.text for release in releases] == ["", "", "\n\nx", ""]


def test_eos_on_the_last_allowed_token_is_a_stop() -> None:
    assert watch_all(["a", "b"], max_tokens=3)[:3] == ("ab", "stop", 3)
    assert watch_all(["a", "b"], max_tokens=2)[:3] == ("ab", "length", 2)


def test_a_stop_string_on_the_last_allowed_token_is_a_stop() -> None:
    assert watch_all(["a", "b."], stops=(".",), max_tokens=2)[:3] == ("ab", "stop", 2)


def test_eos_releases_what_was_held() -> None:
    assert watch_all(["a", "\n"], stops=("\n\n",))[:2] == ("a\n", "stop")


def test_without_eos_the_answer_goes_on() -> None:
    watch = StopWatch(Pieces(["a"]), max_tokens=9)
    assert watch.push(1) == Release("a", None)
    assert watch.finish_reason is None


def test_cut_gives_the_valid_rest() -> None:
    watch = StopWatch(Pieces(["a#", "b"], late=1), max_tokens=9, stop_strings=("#!",))
    assert watch.push(1).text == "a"
    assert watch.cut() == "#"
    assert watch.cut() == ""


def test_nothing_may_follow_the_end() -> None:
    watch = StopWatch(Pieces(["a"]), max_tokens=1)
    watch.push(1)
    with pytest.raises(MisuseError, match="ended"):
        watch.push(1)


def test_bad_rules_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty"):
        StopWatch(Pieces([]), max_tokens=1, stop_strings=("a", ""))
    with pytest.raises(ConfigError, match="max_tokens"):
        StopWatch(Pieces([]), max_tokens=0)
