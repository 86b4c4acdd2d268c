"""The progress line, and downloads from sources that say little."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path

import pytest

from swarm.core.errors import DownloadError
from swarm.models.download import Expected, Remote, download
from swarm.models.progress import ProgressLine, human_bytes, human_s, silent


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_bytes_for_people() -> None:
    assert [human_bytes(n) for n in (0, 999, 1000, 92_871_040, 5.4e8, 2e9, 3e12)] == [
        "0 B", "999 B", "1.0 kB", "92.9 MB", "540.0 MB", "2.0 GB", "3.0 TB",
    ]  # fmt: skip


def test_a_terminal_line_is_redrawn_in_place_but_not_too_often() -> None:
    terminal, time = Terminal(), Time()
    line = ProgressLine(terminal, clock=time)
    line("file", 20_000_000, 100_000_000)
    for step in range(1, 41):
        time.now = step / 16
        line("file", 20_000_000 + step * 1_250_000, 100_000_000)
    text = terminal.getvalue()
    assert text.count("\r") == 11
    assert "\n" not in text
    assert "70.0 MB of 100.0 MB (70 %) at 20.0 MB/s 2 s left" in text.split("\r")[-1]
    line("file", 100_000_000, 100_000_000)
    assert terminal.getvalue().endswith("\n")
    assert "100.0 MB of 100.0 MB (100 %)" in terminal.getvalue().split("\r")[-1]


def test_a_quick_one_leaves_its_first_and_last_state_in_a_log() -> None:
    log = io.StringIO()
    line = ProgressLine(log, clock=Time())
    for done in range(0, 101, 10):
        line("file", done, 100)
    line("file", 100, 100)
    assert log.getvalue().splitlines() == ["file: 0 B of 100 B (0 %)", "file: 100 B of 100 B (100 %)"]


def test_a_long_one_leaves_a_line_every_few_seconds_in_a_log_and_fewer_later() -> None:
    log, time = io.StringIO(), Time()
    line = ProgressLine(log, clock=time)
    for second in range(601):
        time.now = second
        line("file", second * 1_000_000, 600_000_000)
    lines = log.getvalue().splitlines()
    assert "\r" not in log.getvalue()
    assert lines[1] == "file: 5.0 MB of 600.0 MB (1 %) at 1.0 MB/s 9 min 55 s left"
    assert 20 < len(lines) < 40
    assert lines[-1] == "file: 600.0 MB of 600.0 MB (100 %) at 1.0 MB/s"


def test_the_speed_is_that_of_the_last_seconds() -> None:
    terminal, time = Terminal(), Time()
    line = ProgressLine(terminal, clock=time)
    for tick in range(400):  # 20 s at 100 MB/s, of which a mean would speak for long, then 20 s at 1 MB/s
        time.now = tick / 10
        line("file", int(min(time.now, 20.0) * 1e8 + max(time.now - 20.0, 0.0) * 1e6), 3_000_000_000)
    assert " at 1.0 MB/s" in terminal.getvalue().split("\r")[-1]


def test_a_line_stays_within_a_narrow_terminal() -> None:
    terminal, time = Terminal(), Time()
    line = ProgressLine(terminal, clock=time, columns=lambda _: 30)
    line("a file with a long name", 1_000, 2_000)
    time.now = 1.0
    line("a file with a long name", 1_500, 2_000)
    drawn = [part.removeprefix("\x1b[K") for part in terminal.getvalue().split("\r") if part]
    assert [len(part) for part in drawn] == [29, 29]
    assert drawn[-1].endswith("…")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min"), (200, "3 min 20 s"), (7500, "2 h 5 min"), (273_600, "3 d 4 h")],
)
def test_times_for_people(seconds: float, text: str) -> None:
    assert human_s(seconds) == text


def test_a_new_label_starts_a_new_line_and_an_unknown_total_is_left_out() -> None:
    terminal = Terminal()
    line = ProgressLine(terminal, clock=Time())
    line("one", 5, 0)
    line("two", 1, 2)
    line.close()
    line.close()
    assert terminal.getvalue() == "\r\x1b[Kone: 5 B\n\r\x1b[Ktwo: 1 B of 2 B (50 %)\n"


def test_a_file_url_from_a_local_index_works_and_resumes(tmp_path: Path) -> None:
    source = tmp_path / "wheel"
    source.write_bytes(bytes(range(256)) * 5000)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    target = tmp_path / "got"
    (tmp_path / "got.part").write_bytes(source.read_bytes()[:1000])
    reports: list[int] = []
    download(
        lambda: Remote(source.as_uri()), target, Expected("wheel", digest), lambda _, done, __: reports.append(done)
    )
    assert target.read_bytes() == source.read_bytes()
    assert reports[-1] == len(source.read_bytes())
    assert not (tmp_path / "got.part").exists()


def test_a_stale_part_of_another_file_is_thrown_away(tmp_path: Path) -> None:
    source = tmp_path / "wheel"
    source.write_bytes(b"right" * 100)
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    (tmp_path / "got.part").write_bytes(b"wrong")
    expected = Expected("wheel", digest)
    with pytest.raises(DownloadError, match=r"wheel does not match its sha256"):
        download(lambda: Remote(source.as_uri()), tmp_path / "got", expected, silent)
    download(lambda: Remote(source.as_uri()), tmp_path / "got", expected, silent)
    assert (tmp_path / "got").read_bytes() == source.read_bytes()


def test_an_unreachable_source_gives_up_after_five_idle_tries(tmp_path: Path) -> None:
    pauses: list[float] = []
    asked: list[int] = []

    def locate() -> Remote:
        asked.append(1)
        return Remote("http://127.0.0.1:1/file")

    with pytest.raises(DownloadError, match=r"cannot download it: .*refused.*it resumes"):
        download(locate, tmp_path / "it", Expected("it", "0" * 64), silent, pause=pauses.append)
    assert len(asked) == 5
    assert pauses == [2.0, 4.0, 8.0, 16.0]
