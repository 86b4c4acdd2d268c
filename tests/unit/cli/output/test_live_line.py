"""The line about what goes on now, and the consoles that own one."""

from __future__ import annotations

import io
import json
import logging

import pytest

from swarm.cli.output.console import HumanConsole, JsonConsole
from swarm.cli.output.live_line import LOG_AFTER_S, LiveLine, waiting
from swarm.runtime.logs import make_room, setup_logging


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> list[str]:
        """What a person sees: each line with only what was drawn on it last."""
        return [line.rsplit("\r\x1b[K", 1)[-1] for line in self.getvalue().split("\n")]


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def line_on(stream: io.StringIO, time: Time, columns: int = 80) -> LiveLine:
    return LiveLine(stream, clock=time, columns=lambda _: columns, tick_s=1e6)


def test_a_terminal_shows_how_long_it_has_been_and_nothing_afterwards() -> None:
    terminal, time = Terminal(), Time()
    line = line_on(terminal, time)
    with waiting(line, "joining"):
        for seconds, shown in ((1.0, "joining, 1 s"), (75.0, "joining, 1 min 15 s")):
            time.now = seconds
            line.tick()
            assert terminal.screen == [shown]
    assert terminal.screen == [""]


def test_other_output_takes_its_place_and_it_comes_back_below() -> None:
    terminal, time = Terminal(), Time()
    line = line_on(terminal, time)
    line.show(lambda seconds: "serving")
    line.tick()
    line.lift()
    terminal.write("news\n")
    line.tick()
    assert terminal.screen == ["news", "serving"]
    line.muted = True
    line.lift()
    line.tick()
    assert terminal.screen == ["news", ""]
    line.clear()


def test_a_wait_inside_a_wait_gives_the_line_back() -> None:
    terminal, time = Terminal(), Time()
    line = line_on(terminal, time)
    with waiting(line, "outer"):
        with waiting(line, "inner"):
            line.tick()
            assert terminal.screen == ["inner, 0 s"]
        line.tick()
        assert terminal.screen == ["outer, 0 s"]
    assert terminal.screen == [""]


def test_a_log_gets_few_lines_and_none_of_a_short_wait() -> None:
    log, time = io.StringIO(), Time()
    line = line_on(log, time)
    with waiting(line, "joining"):
        for second in range(301):
            time.now = float(second)
            line.tick()
    assert log.getvalue().splitlines() == ["joining, 5 s", "joining, 20 s", "joining, 1 min 20 s"]
    with waiting(line, "joining"):
        time.now += LOG_AFTER_S - 1
        line.tick()
    assert len(log.getvalue().splitlines()) == 3


def test_a_line_is_cut_and_what_peers_wrote_cannot_steer_the_terminal() -> None:
    terminal, time = Terminal(), Time()
    line = line_on(terminal, time, columns=20)
    line.show(lambda seconds: "\x1b[2J" + "x" * 50)
    line.tick()
    [shown] = terminal.screen
    assert len(shown) == 19
    assert "\x1b" not in shown
    line.clear()


def test_a_closed_stream_ends_it_quietly() -> None:
    terminal, time = Terminal(), Time()
    line = line_on(terminal, time)
    line.show(lambda seconds: "waiting")
    terminal.close()
    line.tick()
    line.clear()


def test_events_and_log_lines_do_not_land_on_the_line() -> None:
    terminal = Terminal()
    setup_logging(stream=terminal)
    console = HumanConsole(terminal, terminal)
    try:
        console.status(lambda seconds: "serving")
        console._quiet.tick()
        console.event("blocks", "Taking layers 0 to 9.")
        console._quiet.tick()
        logging.getLogger("swarm.test").warning("careful")
        console._quiet.tick()
        console.progress("weights", 1, 2)
        console._quiet.tick()
        console.progress("weights", 2, 2)
        console.status(None)
    finally:
        make_room(None)
        setup_logging()
    shown = terminal.screen
    assert shown[0] == "Taking layers 0 to 9."
    assert shown[1].endswith("warning test: careful")
    assert shown[2].startswith("weights: 2 B of 2 B (100 %)")
    assert shown[3:] == [""]


def test_a_program_hears_of_long_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(JsonConsole, "WAITING_AFTER_S", 0.01)
    monkeypatch.setattr(JsonConsole, "WAITING_EVERY_S", 0.01)
    out = io.StringIO()
    console = JsonConsole(out)
    with console.waiting("joining"):
        while out.getvalue().count("\n") < 2:
            pass
    first = json.loads(out.getvalue().splitlines()[0])
    assert (first["event"], first["what"]) == ("waiting", "joining")
    assert first["seconds"] >= 0
