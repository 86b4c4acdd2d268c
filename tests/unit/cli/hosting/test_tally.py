"""What a server contributes, noted while it serves; and how that is shown."""

from __future__ import annotations

import argparse
import asyncio
import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from swarm.cli.commands import contributed
from swarm.cli.hosting.serving_line import line_text
from swarm.cli.hosting.tally import TELL_EVERY_S, Tally, contribution_text, count
from swarm.cli.output.console import HumanConsole, JsonConsole
from swarm.core.errors import ConfigError
from swarm.runtime.clock import VirtualClock
from swarm.runtime.contribution import Contribution, ContributionFile, Contributions

MODEL = "demo@main#0123456789abcdef"
PROBE = Contribution(sessions=1, prefill_rows=8, prefill_row_layers=80)
WORK = Contribution(sessions=3, decode_rows=1000, decode_row_layers=10_000, heals=1, receipts=40, countersigned=2)


async def at_once(work: Callable[[], None]) -> None:
    work()


class Scene:
    """A tally whose server does what ``now`` says; ``life`` is one process of it."""

    def __init__(self, folder: Path) -> None:
        self.clock = VirtualClock()
        self.file = ContributionFile.of(folder / "key")
        self.out = io.StringIO()
        self.now = PROBE
        self.serving = True

    async def life(self, *work: tuple[float, Contribution], killed: bool = False) -> None:
        """Serve so many seconds after each step of work, then leave, or be killed."""
        self.now = PROBE
        tally = Tally(self.file, MODEL, lambda: self.now, JsonConsole(self.out), self.clock)
        running = asyncio.create_task(tally.run(lambda: self.serving, at_once))
        await self.clock.settle()
        for seconds, done in work:
            self.now += done
            await self.clock.advance(seconds)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        if not killed:
            tally.close()

    @property
    def noted(self) -> Contribution:
        found = self.file.read()
        assert found is not None
        return found.total

    def told(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in self.out.getvalue().splitlines()]


def test_processes_add_up_and_their_probes_of_themselves_do_not_count(tmp_path: Path) -> None:
    scene = Scene(tmp_path)

    async def lives() -> None:
        await scene.life((120.0, WORK))
        await scene.life((60.0, WORK), (60.0, WORK))

    asyncio.run(lives())
    assert scene.noted == WORK + WORK + WORK + Contribution(online_s=240.0)
    last = scene.told()[-1]
    assert last["event"] == "contributed"
    assert last["process"] == (WORK + WORK + Contribution(online_s=120.0)).as_dict()
    assert last["total"] == scene.noted.as_dict()


def test_a_killed_process_loses_less_than_a_minute(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asyncio.run(scene.life((300.0, WORK), killed=True))
    assert scene.noted.sessions == WORK.sessions
    assert scene.noted.online_s >= 240.0


def test_nothing_is_written_while_nothing_happens(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    scene.serving = False
    asyncio.run(scene.life((600.0, Contribution())))
    assert scene.noted == Contribution()
    written = scene.file.path.stat().st_ino
    asyncio.run(scene.life((600.0, Contribution())))
    assert scene.file.path.stat().st_ino != written, "once a process, to show that it ran"


def test_it_is_told_every_ten_minutes(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asyncio.run(scene.life((3 * TELL_EVERY_S, WORK)))
    assert [event["event"] for event in scene.told()] == ["contributed"] * 4


def test_a_damaged_note_is_put_aside_and_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene(tmp_path)
    scene.file.path.write_text("{")
    asyncio.run(scene.life((60.0, WORK)))
    assert scene.noted.sessions == WORK.sessions
    assert "could not be read" in caplog.text
    assert (tmp_path / "key.contributed.json.unreadable").read_text() == "{"


def test_shown_for_people_and_programs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = argparse.Namespace(identity=tmp_path / "key", json=False)
    assert contributed.run(options) == 0
    assert "nothing yet" in capsys.readouterr().out
    file = ContributionFile.of(options.identity)
    file.write(Contributions(1.7e9, 1.8e9, {MODEL: WORK}))
    contributed.run(options)
    out = capsys.readouterr().out
    assert "3 sessions, 1,000 tokens decoded" in out
    assert "demo@main" in out
    options.json = True
    contributed.run(options)
    told = json.loads(capsys.readouterr().out)
    assert told["total"] == told["models"][MODEL] == WORK.as_dict()
    file.path.write_text("{")
    with pytest.raises(ConfigError, match="cannot be read"):
        contributed.run(options)


def test_figures_in_few_digits() -> None:
    assert [count(number) for number in (0, 7, 1234, 9999, 12_345, 2_600_000, 5e12)] == [
        "0", "7", "1,234", "9,999", "12.3 k", "2.6 M", "5 T",
    ]  # fmt: skip
    assert contribution_text(Contribution(sessions=1, online_s=7500.0, sent_bytes=10**6)) == (
        "1 session, 0 tokens decoded and 0 read (0 token-layers), 2 h 5 min online, 1.0 MB sent"
    )


def test_how_things_are_while_nothing_happens() -> None:
    fields: dict[str, object] = {
        "resting": "", "sessions": 2, "decode_tokens_per_s": 31.44, "prefill_tokens_per_s": 0.0, "queued_steps": 1,
        "kv_used_share": 0.124, "step_p50_s": 0.042, "servers": 5, "limits": "20 Mbit/s of upload",
    }  # fmt: skip
    assert line_text("0:10", fields) == (
        "serving 0:10: 2 sessions, 31.4 tok/s, 1 queued, KV 12 % used, step 42 ms; 5 servers in the swarm; "
        "at most 20 Mbit/s of upload"
    )
    resting = fields | {"resting": "owner", "sessions": 0, "step_p50_s": None, "queued_steps": 0, "limits": ""}
    assert line_text("0:10", resting).startswith("resting (owner), 0:10 in memory: 0 sessions")


def test_consoles_say_how_often_they_want_to_hear_it() -> None:
    assert JsonConsole(io.StringIO()).status_every_s == 60.0
    assert HumanConsole(io.StringIO(), io.StringIO()).status_every_s == 300.0
