"""What this machine makes of other peers, on its disk: standings, marks, proofs and the ledger. Never rolled back;
what was not proven is over in its time (``strikes``), or when the user forgives it.

A write is on the disk when it returns, which may take some milliseconds: in an event loop, call it by
``asyncio.to_thread`` where somebody waits for something else. Reads are from memory or a few microseconds long.
"""

from __future__ import annotations

import hashlib
import logging
import os
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
from swarm.runtime.reputation_rows import (
    changes,
    doubt_older,
    has_older,
    keep_newest,
    note_event,
    put_single,
    put_standing,
    read_standing,
    stored_apart,
    stored_ledger,
    stored_standing,
    withhold,
)
from swarm.verification.allegation import ProofKind
from swarm.verification.standings.apart import Apart, Broken, Kept
from swarm.verification.standings.ledger import Ledger
from swarm.verification.standings.strikes import Standing, dated, forgiven, lapsed

__all__ = ["IN_MEMORY", "Event", "KeptProof", "Known", "ProofKind", "ReputationStore", "open_reputation"]

IN_MEMORY = ":memory:"
FILE_NAME = "reputation.sqlite"
MAX_JUDGED = 100_000
MAX_ACCUSATIONS = 10_000
MAX_PROOFS = 1024
BY_WORD = 2
"""In the table of judged proofs: it holds, as others say who computed it again."""
FORGIVEN = 3
"""Likewise: others said so, the user forgave it, and nobody here asks them again."""
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
    ejected: dict[PeerId, Standing]
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
        try:
            self._doubt_older()
        except BaseException:
            self.close()
            raise

    def _doubt_older(self) -> None:
        with self._file.reading() as database:
            older = has_older(database)
        if older:
            with self._file.writing() as database:
                doubt_older(database, self._clock.wall_s())

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
        """As it is now; that of a stranger for a peer that is not known."""
        with self._file.reading() as database:
            return lapsed(stored_standing(database, peer), self._clock.wall_s())

    def known(self) -> list[Known]:
        """Every peer that has a standing, in order of id."""
        with self._file.reading() as database:
            rows = database.execute("SELECT peer, standing, error, changed_s FROM peers ORDER BY peer").fetchall()
        now_s = self._clock.wall_s()
        return [
            Known(PeerId(peer), lapsed(read_standing(data), now_s), error, when) for peer, data, error, when in rows
        ]

    def change(
        self, peer: PeerId, transition: Callable[[Standing], Standing], *, error: float | None = None
    ) -> Standing:
        """Apply ``transition`` (of ``standings.strikes``) to what is known of ``peer``; returns the result.

        ``error`` is e if a window was audited. A first strike, or ejection, also withholds what the ledger has for
        ``peer``, and all of it is noted as events. ``transition`` may not use the store.
        """
        now_s = self._clock.wall_s()
        with self._file.writing() as database:
            stored = stored_standing(database, peer)
            before = lapsed(stored, now_s)
            after = dated(before, transition(before), now_s)
            if after != stored or error is not None:
                put_standing(database, peer, after, error, now_s)
            for what in (*changes(stored, before), *changes(before, after)):
                note_event(database, now_s, peer, what)
            withhold(database, peer, stored, after)
        self._marks = None
        return after

    def forgive(self, peer: PeerId, *, proven: bool = False) -> Standing:
        """Hold nothing unproven against ``peer`` any more: strikes, a term, accusations, broken links. The rest too
        if ``proven``; its proofs are kept and count no more, but another one would. Returns what is left.

        Kept proofs that held by the word of others are settled: nobody here judges them anew, whoever tells of them.
        """
        now_s = self._clock.wall_s()
        with self._file.writing() as database:
            stored = stored_standing(database, peer)
            after = forgiven(lapsed(stored, now_s), proven=proven)
            if after != stored:
                put_standing(database, peer, after, None, now_s)
                withhold(database, peer, stored, after)
            database.execute("DELETE FROM accusations WHERE subject = ?", (peer,))
            database.execute(
                "INSERT OR REPLACE INTO judged SELECT digest, ?, ? FROM judged WHERE proven = ?"
                " AND digest IN (SELECT digest FROM proofs WHERE subject = ?)",
                (FORGIVEN, now_s, BY_WORD, peer),
            )
            put_single(database, "apart", msgspec.msgpack.encode(stored_apart(database).without(peer)))
            note_event(database, now_s, peer, "forgiven" + (", what was proven too" if proven else ""))
        self._marks = None
        return after

    # -- marks for routing ----------------------------------------------------------------------------------

    def ejected(self) -> frozenset[PeerId]:
        """Whom this node does not deal with, for good or at this moment."""
        ejected = self._current().ejected
        if not ejected:
            return frozenset()
        now_s = self._clock.wall_s()
        return frozenset(peer for peer, known in ejected.items() if not known.passing or lapsed(known, now_s).ejected)

    def apart(self) -> Kept:
        """Who may not be put side by side now."""
        return self._current().apart.at(self._clock.wall_s())

    def broken_links(self) -> tuple[Broken, ...]:
        """Every pair whose link broke that is remembered, kept apart now or not."""
        return self._current().apart.pairs

    def take_links(self, links: tuple[Broken, ...]) -> None:
        """Remember of broken links what another store does, and nothing else."""
        with self._file.writing() as database:
            put_single(database, "apart", msgspec.msgpack.encode(Apart(links)))
        self._marks = None

    def keep_apart(self, one: PeerId, other: PeerId) -> None:
        """A link between the two broke: keep them apart, the longer the more often. ``MisuseError`` if they are one."""
        now_s = self._clock.wall_s()
        with self._file.writing() as database:
            before = stored_apart(database)
            after = before.and_also(one, other, now_s)
            if after == before:
                return
            put_single(database, "apart", msgspec.msgpack.encode(after))
            times = after.pairs[-1].times
            again = f" again, {times} times by now" if times > 1 else ""
            note_event(database, now_s, one, f"kept apart from {other}: their link broke{again}")
        self._marks = None

    def _current(self) -> _Marks:
        with self._file.reading() as database:
            version, marks = self._file.version(), self._marks
            if marks is None or marks[0] != version:
                rows = database.execute("SELECT peer, standing FROM peers WHERE ejected").fetchall()
                ejected = {PeerId(peer): read_standing(data) for peer, data in rows}
                marks = version, _Marks(ejected, stored_apart(database))
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
            keep_newest(database, "accusations", MAX_ACCUSATIONS)
        return known is None

    def accused(self) -> frozenset[PeerId]:
        """Whom an unchecked accusation names at this moment, the ejected left out."""
        with self._file.reading() as database:
            rows = database.execute(
                "SELECT DISTINCT subject FROM accusations WHERE until_s > ?", (self._clock.wall_s(),)
            ).fetchall()
        return frozenset(PeerId(subject) for (subject,) in rows) - self.ejected()

    def judge(self, digest: bytes, *, proven: bool, by_word: bool = False) -> None:
        """The proof of this digest was checked here: it holds, or it does not. Accusations by it are settled.

        ``by_word``: it holds by the word of others, and only for as long as what followed from it counts.
        """
        word = proven and by_word
        with self._file.writing() as database:
            entry = digest, BY_WORD if word else int(proven), self._clock.wall_s()
            # what another process found by own weights, or the user forgave, meanwhile is more than a word
            database.execute(f"INSERT OR {'IGNORE' if word else 'REPLACE'} INTO judged VALUES (?, ?, ?)", entry)
            database.execute("DELETE FROM accusations WHERE digest = ?", (digest,))
            keep_newest(database, "judged", MAX_JUDGED)

    def verdict(self, digest: bytes, *, own_weights: bool = False) -> bool | None:
        """Whether the proof of this digest holds; None if it was never checked here, or is to be checked again.

        ``own_weights``: asked by one that can compute it by own weights, to which the word of others is no verdict.
        """
        with self._file.reading() as database:
            row = database.execute("SELECT proven FROM judged WHERE digest = ?", (digest,)).fetchone()
            if row is None or row[0] != BY_WORD:
                return None if row is None else bool(row[0])
            if own_weights:
                return None
            kept = database.execute("SELECT subject FROM proofs WHERE digest = ?", (digest,)).fetchone()
            standing = Standing() if kept is None else lapsed(stored_standing(database, kept[0]), self._clock.wall_s())
        return True if standing.strikes or standing.ejected else None

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
            return stored_ledger(database)

    def change_ledger(self, work: Callable[[Ledger], T]) -> T:
        """Let ``work`` change the ledger, in one transaction; returns what it returns. If it raises, nothing changed.

        ``work`` may not use the store.
        """
        with self._file.writing() as database:
            ledger = stored_ledger(database)
            result = work(ledger)
            ledger.forget_expired(self._clock.wall_s())
            put_single(database, "ledger", ledger.to_bytes())
        return result

    def note(self, peer: PeerId, what: str) -> None:
        """Note an event about ``peer``."""
        with self._file.writing() as database:
            note_event(database, self._clock.wall_s(), peer, what)

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
