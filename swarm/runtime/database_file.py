"""A file of ours in SQLite: opened by several processes at once, whole after any crash, its errors told to people."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from swarm.core.errors import ConfigError, DamagedFileError, MisuseError

BUSY_S = 30.0
"""So long one process waits for another's transaction."""
OPEN_RETRY_S = 0.05


@dataclass(frozen=True, slots=True)
class Schema:
    """What a file holds: ``what`` it is called to people, the statements that make its tables, and what to do about a
    damaged one."""

    what: str
    version: int
    tables: str
    if_damaged: str


class DatabaseFile:
    """One connection. Every transaction is on the disk when it returns (WAL, ``synchronous=FULL``), or never was.

    May be used from several threads, one transaction at a time. All methods raise ``ConfigError`` that names the file
    and says what to do if it is of another version, full, or held by another process for ``BUSY_S``, and
    ``DamagedFileError`` if it is damaged.
    """

    def __init__(self, path: Path | None, schema: Schema) -> None:
        """Open ``path``, made if it is not there; None keeps all in memory."""
        self._path = path
        self._schema = schema
        self._lock = threading.RLock()
        with self._told():
            self._database = _connect(path, schema)

    def close(self) -> None:
        """Idempotent."""
        with self._lock:
            self._database.close()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction that no other process writes beside; taken back if the block raises."""
        with self._lock, self._told():
            if self._database.in_transaction:
                raise MisuseError(f"a transition of the {self._schema.what} uses the store itself")
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
            raise _explained(error, self._path, self._schema) from error


def _connect(path: Path | None, schema: Schema) -> sqlite3.Connection:
    if path is None:
        database = _opened(":memory:")
    else:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with suppress(FileExistsError):  # closing a file that is there would drop the locks SQLite has on it here
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))  # SQLite would let others read it
        database = _opened(str(path))
    try:
        _prepare(database, schema)
    except BaseException:
        database.close()
        raise
    return database


def _opened(name: str) -> sqlite3.Connection:
    database = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA synchronous = FULL")
    return database


def _prepare(database: sqlite3.Connection, schema: Schema) -> None:
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
    if version not in (0, schema.version):
        raise ConfigError(f"a {schema.what} of version {version}", hint="update the package")
    if version == 0:
        for statement in schema.tables.split(";"):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {schema.version}")
    database.execute("COMMIT")


def _explained(error: sqlite3.Error | OSError, path: Path | None, schema: Schema) -> ConfigError:
    name = f"{schema.what} {str(path)!r}" if path is not None else f"{schema.what} in memory"
    if isinstance(error, OSError):
        return ConfigError(f"cannot use the {name}: {error.strerror or error}", hint="choose another file")
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return DamagedFileError(f"the {name} is damaged: {error}", hint=schema.if_damaged)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        hint = "see which process holds it, and end that one"
        return ConfigError(f"the {name} was in use for over {BUSY_S:.0f} s", hint=hint)
    if code == sqlite3.SQLITE_FULL:
        return ConfigError(f"no room on the disk for the {name}", hint="make room there")
    hint = "see that it may be read and written; if it is another program's, choose another file"
    return ConfigError(f"cannot use the {name}: {error}", hint=hint)
