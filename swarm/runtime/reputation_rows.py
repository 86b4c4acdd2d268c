"""What is in the tables of the store of reputations, a row at a time: inside a transaction of the caller's."""

from __future__ import annotations

import sqlite3

import msgspec

from swarm.core.errors import ConfigError, MisuseError
from swarm.verification.standings.apart import Apart
from swarm.verification.standings.ledger import Ledger
from swarm.verification.standings.strikes import TERMS, Standing, dated, doubted

MAX_PEERS = 100_000
"""Beyond, those without audits, strikes and ejection are forgotten, the ones not heard of for longest first."""
MAX_EVENTS = 10_000
OF_OLDER = "ejected AND instr(standing, CAST('passing' AS BLOB)) = 0"
"""Ejections by versions that did not note which of them were proven."""


def stored_standing(database: sqlite3.Connection, peer: str) -> Standing:
    row = database.execute("SELECT standing FROM peers WHERE peer = ?", (peer,)).fetchone()
    return Standing() if row is None else read_standing(row[0])


def read_standing(data: bytes) -> Standing:
    try:
        return Standing.from_bytes(data)
    except MisuseError as error:
        raise ConfigError(error.message, hint=error.hint) from error


def put_standing(
    database: sqlite3.Connection, peer: str, standing: Standing, error: float | None, now_s: float
) -> None:
    kept = bool(standing.strikes or standing.ejected or standing.audited or standing.terms)
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


def has_older(database: sqlite3.Connection) -> bool:
    return database.execute(f"SELECT 1 FROM peers WHERE {OF_OLDER} LIMIT 1").fetchone() is not None


def doubt_older(database: sqlite3.Connection, now_s: float) -> None:
    """What older versions ejected without a proof that is kept is out for one term from now, no longer for good."""
    rows = database.execute(
        f"SELECT peer, standing, peer IN (SELECT subject FROM proofs) FROM peers WHERE {OF_OLDER}"
    ).fetchall()
    for peer, data, proof_kept in rows:
        before = read_standing(data)
        after = before if proof_kept else dated(before, doubted(before), now_s)
        database.execute("UPDATE peers SET standing = ? WHERE peer = ?", (after.to_bytes(), peer))
        if after != before:
            note_event(
                database, now_s, peer, f"ejected by an older version, without proof: for {TERMS.first_s / 3600:.3g} h"
            )


def changes(before: Standing, after: Standing) -> list[str]:
    """The events that lead from one standing to the next."""
    told = [f"strike {len(before.strikes) + n + 1}" for n in range(len(after.strikes) - len(before.strikes))]
    if after.raised > before.raised:
        told.append(f"its next {after.raised} windows are all audited")
    if before.ejected and not after.ejected:
        told.append("let back in, on probation")
    elif after.ejected != before.ejected:
        term = f" for {TERMS.after(after.terms) / 3600:.3g} h" if after.passing else ""
        told.append(f"ejected{term}: {after.ejected}")
    return told


def withhold(database: sqlite3.Connection, peer: str, before: Standing, after: Standing) -> None:
    """What the ledger has for ``peer``, while there is a strike or an ejection; and give it back."""
    was, bad = (bool(standing.strikes or standing.ejected) for standing in (before, after))
    if was == bad:
        return
    ledger = stored_ledger(database)
    (ledger.strike if bad else ledger.pardon)(peer)
    put_single(database, "ledger", ledger.to_bytes())


def stored_apart(database: sqlite3.Connection) -> Apart:
    data = _single(database, "apart")
    try:
        return Apart() if data is None else msgspec.msgpack.decode(data, type=Apart)
    except msgspec.MsgspecError as error:
        raise ConfigError("a damaged entry in the store of reputations", hint="restore it from a copy") from error


def stored_ledger(database: sqlite3.Connection) -> Ledger:
    data = _single(database, "ledger")
    return Ledger() if data is None else Ledger.from_bytes(data)


def _single(database: sqlite3.Connection, name: str) -> bytes | None:
    row = database.execute("SELECT value FROM singles WHERE name = ?", (name,)).fetchone()
    return None if row is None else bytes(row[0])


def put_single(database: sqlite3.Connection, name: str, value: bytes) -> None:
    database.execute("INSERT OR REPLACE INTO singles VALUES (?, ?)", (name, value))


def note_event(database: sqlite3.Connection, now_s: float, peer: str, what: str) -> None:
    number = database.execute("INSERT INTO events (time_s, peer, what) VALUES (?, ?, ?)", (now_s, peer, what)).lastrowid
    database.execute("DELETE FROM events WHERE number <= ?", ((number or 0) - MAX_EVENTS,))


def keep_newest(database: sqlite3.Connection, table: str, most: int) -> None:
    database.execute(
        f"DELETE FROM {table} WHERE rowid IN (SELECT rowid FROM {table} ORDER BY rowid"
        f" LIMIT max(0, (SELECT count(*) FROM {table}) - ?))",
        (most,),
    )
