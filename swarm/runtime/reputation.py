"""What this machine makes of other peers, on its disk: standings, marks, proofs and the ledger. Never rolled back.

A write is on the disk when it returns, which may take some milliseconds: in an event loop, call it by
``asyncio.to_thread`` where somebody waits for something else. Reads are from memory or a few microseconds long.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from swarm.core.clock import Clock
from swarm.core.errors import ConfigError, MisuseError
from swarm.core.ids import PeerId
from swarm.core.limits import MAX_PROOF_BYTES
from swarm.runtime.database_file import DatabaseFile
from swarm.runtime.folders import data_folder
from swarm.runtime.reputation_file import REPUTATIONS
from swarm.verification.allegation import ProofKind
from swarm.verification.standings.ledger import Ledger
from swarm.verification.standings.strikes import Apart, Standing

__all__ = ["IN_MEMORY", "Event", "KeptProof", "Known", "ProofKind", "ReputationStore", "open_reputation"]

IN_MEMORY = ":memory:"
FILE_NAME = "reputation.sqlite"
MAX_PEERS = 100_000
"""Beyond, those without audits, strikes and ejection are forgotten, the ones not heard of for longest first."""
MAX_EVENTS = 10_000
MAX_JUDGED = 100_000
MAX_ACCUSATIONS = 10_000
MAX_PROOFS = 1024
MAX_PROOFS_BYTES = 512 * 1024 * 1024
"""Beyond, the oldest are forgotten; whoever was ejected by them stays so."""

T = TypeVar("T")

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Known:
    """One peer as the store has it. ``error`` is e of the window audited last, None if none was."""

    peer: PeerId
    standing: Standing
    error: float | None
    changed_s: float


@dataclass(frozen=True, slots=True)
class Event:
    """What happened to a peer's standing, at which wall time."""

    time_s: float
    peer: PeerId
    what: str


@dataclass(frozen=True, slots=True)
class KeptProof:
    """A proof in the store, its bytes aside. ``digest`` is their SHA-256."""

    digest: bytes
    subject: PeerId
    kind: ProofKind
    size: int
    time_s: float


@dataclass(frozen=True, slots=True)
class _Marks:
    ejected: frozenset[PeerId]
    apart: Apart


class ReputationStore:
    """One file, which several processes may have open at once: each sees what the others did.

    A transition is applied to what the file holds at that moment, in one transaction, so none is lost whoever else
    writes and whenever a process is killed. Every method raises ``ConfigError`` that names the file, and says what to
    do, if it is damaged, full or cannot be written.
    """

    def __init__(self, path: Path | str, clock: Clock) -> None:
        """Open ``path``, made if it is not there; ``IN_MEMORY`` keeps nothing."""
        self._clock = clock
        self._file = DatabaseFile(None if str(path) == IN_MEMORY else Path(path), REPUTATIONS)
        self._marks: tuple[int, _Marks] | None = None

    @staticmethod
    def default_path() -> Path:
        """In the data folder; ``ConfigError`` for a user without a home."""
        return data_folder() / FILE_NAME

    def close(self) -> None:
        """Idempotent; nothing else may be called after it."""
        self._file.close()

    def __enter__(self) -> ReputationStore:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- standings ------------------------------------------------------------------------------------------

    def standing(self, peer: PeerId) -> Standing:
        """That of a stranger for a peer that is not known."""
        with self._file.reading() as database:
            return _standing(database, peer)

    def known(self) -> list[Known]:
        """Every peer that has a standing, in order of id."""
        with self._file.reading() as database:
            rows = database.execute("SELECT peer, standing, error, changed_s FROM peers ORDER BY peer").fetchall()
        return [Known(PeerId(peer), _read_standing(data), error, when) for peer, data, error, when in rows]

    def change(
        self, peer: PeerId, transition: Callable[[Standing], Standing], *, error: float | None = None
    ) -> Standing:
        """Apply ``transition`` (of ``standings.strikes``) to what is known of ``peer``; returns the result.

        ``error`` is e if a window was audited. A first strike, or ejection, also withholds what the ledger has for
        ``peer``, and all of it is noted as events. ``transition`` may not use the store.
        """
        now_s = self._clock.wall_s()
        with self._file.writing() as database:
            before = _standing(database, peer)
            after = transition(before)
            if after != before or error is not None:
                _put_standing(database, peer, after, error, now_s)
            for what in _told(before, after):
                _note(database, now_s, peer, what)
            if (after.strikes or after.ejected) and not (before.strikes or before.ejected):
                ledger = _ledger(database)
                ledger.strike(peer)
                _put_single(database, "ledger", ledger.to_bytes())
        self._marks = None
        return after

    # -- marks for routing ----------------------------------------------------------------------------------

    def ejected(self) -> frozenset[PeerId]:
        """Whom this node does not deal with any more."""
        return self._current().ejected

    def apart(self) -> Apart:
        """Who may not be put side by side."""
        return self._current().apart

    def keep_apart(self, one: PeerId, other: PeerId) -> None:
        """A link between the two broke: never put them side by side again. ``MisuseError`` if they are one."""
        with self._file.writing() as database:
            before = _apart(database)
            if not before.allow(one, other):
                return
            _put_single(database, "apart", msgspec.msgpack.encode(before.and_also(one, other)))
            _note(database, self._clock.wall_s(), one, f"kept apart from {other}: their link broke")
        self._marks = None

    def _current(self) -> _Marks:
        with self._file.reading() as database:
            version, marks = self._file.version(), self._marks
            if marks is None or marks[0] != version:
                rows = database.execute("SELECT peer FROM peers WHERE ejected").fetchall()
                marks = version, _Marks(frozenset(PeerId(peer) for (peer,) in rows), _apart(database))
                self._marks = marks
            return marks[1]

    # -- accusations ----------------------------------------------------------------------------------------

    def accuse(self, subject: PeerId, digest: bytes, until_s: float) -> bool:
        """Note that somebody accuses ``subject`` by a proof that nobody here has checked; True if that is news.

        It counts as ``accused`` until the wall time ``until_s``, or until ``judge`` has a verdict on the proof; one
        that was judged is not noted again.
        """
        if self.verdict(digest) is not None:
            return False
        with self._file.writing() as database:
            asked = subject, digest
            known = database.execute("SELECT 1 FROM accusations WHERE subject = ? AND digest = ?", asked).fetchone()
            database.execute("INSERT OR REPLACE INTO accusations VALUES (?, ?, ?)", (*asked, until_s))
            database.execute("DELETE FROM accusations WHERE until_s <= ?", (self._clock.wall_s(),))
            _keep_newest(database, "accusations", MAX_ACCUSATIONS)
        return known is None

    def accused(self) -> frozenset[PeerId]:
        """Whom an unchecked accusation names at this moment, the ejected left out."""
        with self._file.reading() as database:
            rows = database.execute(
                "SELECT DISTINCT subject FROM accusations WHERE until_s > ?", (self._clock.wall_s(),)
            ).fetchall()
        return frozenset(PeerId(subject) for (subject,) in rows) - self.ejected()

    def judge(self, digest: bytes, *, proven: bool) -> None:
        """The proof of this digest was checked here: it holds, or it does not. Accusations by it are settled."""
        with self._file.writing() as database:
            entry = digest, int(proven), self._clock.wall_s()
            database.execute("INSERT OR REPLACE INTO judged VALUES (?, ?, ?)", entry)
            database.execute("DELETE FROM accusations WHERE digest = ?", (digest,))
            _keep_newest(database, "judged", MAX_JUDGED)

    def verdict(self, digest: bytes) -> bool | None:
        """Whether the proof of this digest holds; None if it was never checked here."""
        with self._file.reading() as database:
            row = database.execute("SELECT proven FROM judged WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else bool(row[0])

    # -- proofs ---------------------------------------------------------------------------------------------

    def keep_proof(self, subject: PeerId, kind: ProofKind, data: bytes) -> bytes:
        """Keep a proof that this node has checked, to hand it on; returns its digest (SHA-256)."""
        if not 0 < len(data) <= MAX_PROOF_BYTES:
            raise MisuseError(f"a proof of {len(data)} bytes")
        digest = hashlib.sha256(data).digest()
        with self._file.writing() as database:
            entry = digest, subject, kind, len(data), self._clock.wall_s(), data
            database.execute("INSERT OR IGNORE INTO proofs VALUES (?, ?, ?, ?, ?, ?)", entry)
            database.execute(
                "DELETE FROM proofs WHERE rowid IN (SELECT rowid FROM (SELECT rowid,"
                " row_number() OVER newest AS place, sum(size) OVER newest AS bytes FROM proofs"
                " WINDOW newest AS (ORDER BY rowid DESC)) WHERE place > ? OR bytes > ?)",
                (MAX_PROOFS, MAX_PROOFS_BYTES),
            )
        return digest

    def proof(self, digest: bytes) -> bytes | None:
        """The bytes of a kept proof."""
        with self._file.reading() as database:
            row = database.execute("SELECT data FROM proofs WHERE digest = ?", (digest,)).fetchone()
        return None if row is None else bytes(row[0])

    def proofs(self) -> list[KeptProof]:
        """All kept ones, the latest first."""
        with self._file.reading() as database:
            rows = database.execute(
                "SELECT digest, subject, kind, size, time_s FROM proofs ORDER BY rowid DESC"
            ).fetchall()
        return [KeptProof(*row) for row in rows]

    # -- ledger and events ----------------------------------------------------------------------------------

    def ledger(self) -> Ledger:
        """A copy of the ledger as it is."""
        with self._file.reading() as database:
            return _ledger(database)

    def change_ledger(self, work: Callable[[Ledger], T]) -> T:
        """Let ``work`` change the ledger, in one transaction; returns what it returns. If it raises, nothing changed.

        ``work`` may not use the store.
        """
        with self._file.writing() as database:
            ledger = _ledger(database)
            result = work(ledger)
            ledger.forget_expired(self._clock.wall_s())
            _put_single(database, "ledger", ledger.to_bytes())
        return result

    def note(self, peer: PeerId, what: str) -> None:
        """Note an event about ``peer``."""
        with self._file.writing() as database:
            _note(database, self._clock.wall_s(), peer, what)

    def events(self, peer: PeerId | None = None) -> list[Event]:
        """What was noted, about ``peer`` or about everybody, in order of time."""
        where, which = ("", ()) if peer is None else (" WHERE peer = ?", (peer,))
        with self._file.reading() as database:
            rows = database.execute(f"SELECT time_s, peer, what FROM events{where} ORDER BY number", which).fetchall()
        return [Event(*row) for row in rows]


def open_reputation(path: Path | str | None, clock: Clock) -> ReputationStore:
    """The store in ``path``; None: the one in the data folder, or where there can be none, one that lasts as long as
    this process. Raises as ``ReputationStore`` does: one that is damaged is never passed over.
    """
    if path is not None:
        return ReputationStore(path, clock)
    try:
        chosen = ReputationStore.default_path()
        chosen.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        writable = os.access(chosen.parent, os.W_OK)
    except (ConfigError, OSError):
        writable = False
    if not writable:
        _log.warning("no data folder that can be written: what is learnt of servers is forgotten when this ends")
        return ReputationStore(IN_MEMORY, clock)
    return ReputationStore(chosen, clock)


def _standing(database: sqlite3.Connection, peer: str) -> Standing:
    row = database.execute("SELECT standing FROM peers WHERE peer = ?", (peer,)).fetchone()
    return Standing() if row is None else _read_standing(row[0])


def _read_standing(data: bytes) -> Standing:
    try:
        return Standing.from_bytes(data)
    except MisuseError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def _put_standing(
    database: sqlite3.Connection, peer: str, standing: Standing, error: float | None, now_s: float
) -> None:
    kept = bool(standing.strikes or standing.ejected or standing.audited)
    new = database.execute("SELECT 1 FROM peers WHERE peer = ?", (peer,)).fetchone() is None
    database.execute(
        "INSERT INTO peers VALUES (?1, ?2, ?3, ?4, ?5, ?6) ON CONFLICT (peer) DO UPDATE SET standing = ?2,"
        " ejected = ?3, kept = ?4, error = coalesce(?5, error), changed_s = ?6",
        (peer, standing.to_bytes(), bool(standing.ejected), kept, error, now_s),
    )
    if new:
        database.execute(
            "DELETE FROM peers WHERE peer IN (SELECT peer FROM peers WHERE NOT kept ORDER BY changed_s"
            " LIMIT max(0, (SELECT count(*) FROM peers) - ?))",
            (MAX_PEERS,),
        )


def _told(before: Standing, after: Standing) -> list[str]:
    """The events that lead from one standing to the next."""
    told = [f"strike {len(before.strikes) + n + 1}" for n in range(len(after.strikes) - len(before.strikes))]
    if after.raised > before.raised:
        told.append(f"its next {after.raised} windows are all audited")
    if after.ejected != before.ejected:
        told.append(f"ejected: {after.ejected}")
    return told


def _apart(database: sqlite3.Connection) -> Apart:
    data = _single(database, "apart")
    try:
        return Apart() if data is None else msgspec.msgpack.decode(data, type=Apart)
    except msgspec.MsgspecError as error:
        raise ConfigError("a damaged entry in the store of reputations", hint="restore it from a copy") from error


def _ledger(database: sqlite3.Connection) -> Ledger:
    data = _single(database, "ledger")
    return Ledger() if data is None else Ledger.from_bytes(data)


def _single(database: sqlite3.Connection, name: str) -> bytes | None:
    row = database.execute("SELECT value FROM singles WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def _put_single(database: sqlite3.Connection, name: str, value: bytes) -> None:
    database.execute("INSERT OR REPLACE INTO singles VALUES (?, ?)", (name, value))


def _note(database: sqlite3.Connection, now_s: float, peer: str, what: str) -> None:
    number = database.execute("INSERT INTO events (time_s, peer, what) VALUES (?, ?, ?)", (now_s, peer, what)).lastrowid
    database.execute("DELETE FROM events WHERE number <= ?", ((number or 0) - MAX_EVENTS,))


def _keep_newest(database: sqlite3.Connection, table: str, most: int) -> None:
    database.execute(
        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY rowid"
        f" LIMIT max(0, (SELECT count(*) FROM {table}) - ?))",
        (most,),
    )
