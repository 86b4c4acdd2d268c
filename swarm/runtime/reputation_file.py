"""The file under the store of reputations: SQLite, opened by several processes at once, whole after any crash."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from swarm.core.errors import ConfigError, MisuseError

VERSION = 1
BUSY_S = 30.0
"""So long one process waits for another's transaction."""
OPEN_RETRY_S = 0.05

_TABLES = """
CREATE TABLE peers (
    peer TEXT PRIMARY KEY, standing BLOB NOT NULL, ejected INTEGER NOT NULL, kept INTEGER NOT NULL,
    error REAL, changed_s REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX peers_ejected ON peers (peer) WHERE ejected;
CREATE TABLE singles (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE accusations (
    subject TEXT NOT NULL, digest BLOB NOT NULL, until_s REAL NOT NULL, UNIQUE (subject, digest)
);
CREATE TABLE judged (digest BLOB NOT NULL UNIQUE, proven INTEGER NOT NULL, time_s REAL NOT NULL);
CREATE TABLE proofs (
    digest BLOB NOT NULL UNIQUE, subject TEXT NOT NULL, kind TEXT NOT NULL, size INTEGER NOT NULL, time_s REAL NOT NULL,
    data BLOB NOT NULL
);
CREATE TABLE events (number INTEGER PRIMARY KEY AUTOINCREMENT, time_s REAL NOT NULL, peer TEXT NOT NULL,
    what TEXT NOT NULL);
"""


class ReputationFile:
    """One connection. Every transaction is on the disk when it returns (WAL, ``synchronous=FULL``), or never was.

    May be used from several threads, one transaction at a time. All methods raise ``ConfigError`` that names the file
    and says what to do if it is damaged, of another version, full, or held by another process for ``BUSY_S``.
    """

    def __init__(self, path: Path | None) -> None:
        """``path`` None keeps all in memory."""
        self._path = path
        self._lock = threading.RLock()
        with self._told():
            self._database = _connect(path)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._database.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process writes beside; taken back if the block raises."""
        with self._lock, self._told():
            if self._database.in_transaction:
                raise MisuseError("a transition of the store of reputations uses the store itself")
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield self._database
                self._database.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):  # it may have been taken back already
                    self._database.execute("ROLLBACK")
                raise

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """For single statements: each sees one moment of the file."""
        with self._lock, self._told():
            yield self._database

    def version(self) -> int:
        """Another number whenever another process has changed the file."""
        with self.reading() as database:
            return int(database.execute("PRAGMA data_version").fetchone()[0])

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise _explained(error, self._path) from error


def _connect(path: Path | None) -> sqlite3.Connection:
    if path is None:
        database = _opened(":memory:")
    else:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # closing a file that is there would drop the locks SQLite has on it here
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # SQLite would let others read it
        database = _opened(str(path))
    try:
        _prepare(database)
    except BaseException:
        database.close()
        raise
    return database


def _opened(name: str) -> sqlite3.Connection:
    database = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA synchronous = FULL")
    return database


def _prepare(database: sqlite3.Connection) -> None:
    """Switch to WAL and make the tables, whoever else does so at this moment."""
    until_s = time.monotonic() + BUSY_S
    while True:  # the switch does not wait for others, unlike everything else
        try:
            database.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until_s:
                raise
            time.sleep(OPEN_RETRY_S)
    database.execute("BEGIN IMMEDIATE")
    version = int(database.execute("PRAGMA user_version").fetchone()[0])
    if version not in (0, VERSION):
        raise ConfigError(f"a store of reputations of version {version}", hint="update the package")
    if version == 0:
        for statement in _TABLES.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {VERSION}")
    database.execute("COMMIT")


def _explained(error: sqlite3.Error | OSError, path: Path | None) -> ConfigError:
    name = repr(str(path)) if path is not None else "in memory"
    if isinstance(error, OSError):
        return ConfigError(
            f"cannot use the store of reputations {name}: {error.strerror or error}", hint="choose another file"
        )
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        hint = "restore it from a copy, or move it away to begin anew without its strikes and ejections"
        return ConfigError(f"the store of reputations {name} is damaged: {error}", hint=hint)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        hint = "see which process holds it, and end that one"
        return ConfigError(f"the store of reputations {name} was in use for over {BUSY_S:.0f} s", hint=hint)
    if code == sqlite3.SQLITE_FULL:
        return ConfigError(f"no room on the disk for the store of reputations {name}", hint="make room there")
    hint = "see that it may be read and written; if it is another program's, choose another file"
    return ConfigError(f"cannot use the store of reputations {name}: {error}", hint=hint)
