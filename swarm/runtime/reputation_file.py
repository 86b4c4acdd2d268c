"""What the file of the store of reputations looks like inside."""

from __future__ import annotations

from swarm.runtime.database_file import Schema

REPUTATIONS = Schema(
    what="store of reputations",
    version=1,
    if_damaged="restore it from a copy, or move it away to begin anew without its strikes and ejections",
    tables="""
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
""",
)
