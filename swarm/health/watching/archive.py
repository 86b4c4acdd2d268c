"""What a page remembers over restarts: a day of figures, and the latest events. In SQLite; all of it blocks."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from swarm.core.errors import DamagedFileError
from swarm.health.state import EventState, HistoryState, ModelState
from swarm.runtime.database_file import DatabaseFile, Schema

IN_MEMORY = ":memory:"
STEP_S = 30.0
"""A row of every model so often."""
KEPT_S = 24 * 3600.0
MAX_EVENTS = 2000
GAP_ROWS = 3
"""So many rows missing are a gap, which is shown as one."""
HISTORY = Schema(
    what="history of the health page",
    version=1,
    if_damaged="move it away to begin a new one",
    tables="""
CREATE TABLE figures (
    model TEXT NOT NULL, slot INTEGER NOT NULL, at REAL NOT NULL, tokens_per_s REAL, served_tokens_per_s REAL,
    covered_share REAL, servers INTEGER, step_p50_s REAL, step_p99_s REAL, PRIMARY KEY (model, slot)
) WITHOUT ROWID;
CREATE INDEX figures_slot ON figures (slot);
CREATE TABLE events (
    number INTEGER PRIMARY KEY AUTOINCREMENT, at REAL NOT NULL, kind TEXT NOT NULL, model TEXT NOT NULL,
    peer TEXT NOT NULL, text TEXT NOT NULL, proof TEXT NOT NULL
);
""",
)

_COLUMNS = "at, tokens_per_s, served_tokens_per_s, covered_share, servers, step_p50_s, step_p99_s"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Past:
    """When a model was first heard of, and whether it was ever ``whole``: every layer served."""

    first_at: float
    whole: bool = False


class Archive:
    """One file; every write is on the disk when it returns. Methods raise what ``DatabaseFile`` does."""

    def __init__(self, path: Path | str) -> None:
        """Open ``path``, made if it is not there; ``IN_MEMORY`` keeps nothing. A damaged file is moved aside first."""
        self._path = None if str(path) == IN_MEMORY else Path(path)
        self.notice = ""
        try:
            self._file = DatabaseFile(self._path, HISTORY)
        except DamagedFileError as error:
            self._file = self._anew(error)

    def close(self) -> None:
        """Idempotent."""
        self._file.close()

    def renew(self, error: DamagedFileError) -> None:
        """Begin a new file, the damaged one is moved aside; ``notice`` says so."""
        self._file.close()
        self._file = self._anew(error)

    def _anew(self, error: DamagedFileError) -> DatabaseFile:
        if self._path is None:
            raise error
        aside = self._path.with_name(f"{self._path.name}.damaged")
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                os.replace(f"{self._path}{suffix}", f"{aside}{suffix}")
        self.notice = f"{error.message}; it is now {str(aside)!r}, and the history begins anew"
        _log.warning("%s", self.notice)
        return DatabaseFile(self._path, HISTORY)

    # -- figures --------------------------------------------------------------------------------------------

    def add(self, models: Sequence[ModelState], now_s: float) -> None:
        """A row for every model; one of the same half minute is replaced, and those over a day old are forgotten."""
        rows = [
            (
                model.model,
                int(now_s // STEP_S),
                now_s,
                model.tokens_per_s,
                model.served_tokens_per_s,
                covered_share(model),
                sum(server.condition == "serving" for server in model.servers),
                model.step_p50_s,
                model.step_p99_s,
            )
            for model in models
        ]
        with self._file.writing() as database:
            database.executemany("INSERT OR REPLACE INTO figures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", rows)
            oldest, newest = int((now_s - KEPT_S) // STEP_S), int(now_s // STEP_S)
            database.execute("DELETE FROM figures WHERE slot < ? OR slot > ?", (oldest, newest))

    def models(self) -> dict[str, Past]:
        """What is remembered of each model."""
        with self._file.reading() as database:
            rows = database.execute("SELECT model, min(at), max(covered_share) FROM figures GROUP BY model").fetchall()
        return {model: Past(first_at, whole=(covered or 0.0) >= 1.0) for model, first_at, covered in rows}

    def history(self, model: str, hours: float, now_s: float) -> HistoryState:
        """See ``HistoryState``; where rows are missing, one of nothing stands for them."""
        since = int((now_s - min(max(hours, 0.0) * 3600.0, KEPT_S)) // STEP_S)
        with self._file.reading() as database:
            rows = database.execute(
                f"SELECT {_COLUMNS} FROM figures WHERE model = ? AND slot >= ? ORDER BY slot", (model, since)
            ).fetchall()
        shown: list[tuple[float | None, ...]] = []
        for row in rows:
            if shown and row[0] - (shown[-1][0] or 0.0) > GAP_ROWS * STEP_S:
                shown.append(((shown[-1][0] or 0.0) + STEP_S, *(None,) * (len(row) - 1)))
            shown.append(row)
        columns = [list(column) for column in zip(*shown, strict=True)] if shown else [[] for _ in range(7)]
        at, tokens, served, covered, servers, p50, p99 = columns
        return HistoryState(
            model=model,
            step_s=STEP_S,
            at=[float(moment or 0.0) for moment in at],
            tokens_per_s=tokens,
            served_tokens_per_s=served,
            covered_share=covered,
            servers=[None if count is None else int(count) for count in servers],
            step_p50_s=p50,
            step_p99_s=p99,
        )

    # -- events ---------------------------------------------------------------------------------------------

    def note(self, events: Sequence[EventState], *, above: int = 0) -> list[EventState]:
        """Keep events; the same with their numbers, which are higher than ``above`` and all that were given before."""
        numbered = []
        with self._file.writing() as database:
            if above > (database.execute("SELECT max(number) FROM events").fetchone()[0] or 0):
                database.execute("INSERT INTO events VALUES (?, 0, '', '', '', '', '')", (above,))
                database.execute("DELETE FROM events WHERE number = ?", (above,))
            for event in events:
                number = database.execute(
                    "INSERT INTO events (at, kind, model, peer, text, proof) VALUES (?, ?, ?, ?, ?, ?)",
                    (event.at, event.kind, event.model, event.peer, event.text, event.proof),
                ).lastrowid
                numbered.append(replace(event, number=number or 0))
            if numbered:
                database.execute("DELETE FROM events WHERE number <= ?", (numbered[-1].number - MAX_EVENTS,))
        return numbered

    def events(self, limit: int = MAX_EVENTS) -> list[EventState]:
        """The newest ``limit``, the oldest of them first."""
        with self._file.reading() as database:
            rows = database.execute(
                "SELECT number, at, kind, model, peer, text, proof FROM events ORDER BY number DESC LIMIT ?", (limit,)
            ).fetchall()
        names = "number", "at", "kind", "model", "peer", "text", "proof"
        return [EventState(**dict(zip(names, row, strict=True))) for row in reversed(rows)]


def covered_share(model: ModelState) -> float | None:
    """How much of the model's layers somebody serves; None of one without layers."""
    if not model.layers:
        return None
    return 1.0 - sum(end - start for start, end in model.missing) / model.layers
