"""Kept responses as rows of SQLite, in memory or in a file, within bounds of number, bytes and age.

Knows SQL and bytes; knows neither HTTP nor what is in a response. Not for several threads at once. Where a bound is
passed, the owner that has most of it loses what it has not used for longest: no owner can push out another's.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from corellm.errors import ConfigError

_VERSION = 1
_SCHEMA = f"""
CREATE TABLE responses (
    id TEXT PRIMARY KEY, owner TEXT NOT NULL, previous TEXT, status TEXT NOT NULL, used REAL NOT NULL,
    num_bytes INTEGER NOT NULL, input BLOB NOT NULL, response BLOB NOT NULL, events BLOB
);
CREATE INDEX of_age ON responses (used);
CREATE INDEX of_owner ON responses (owner, used);
CREATE TABLE totals (owner TEXT PRIMARY KEY, number INTEGER NOT NULL, num_bytes INTEGER NOT NULL);
CREATE TRIGGER added AFTER INSERT ON responses BEGIN
    INSERT INTO totals VALUES (new.owner, 1, new.num_bytes)
        ON CONFLICT DO UPDATE SET number = number + 1, num_bytes = num_bytes + excluded.num_bytes;
END;
CREATE TRIGGER dropped AFTER DELETE ON responses BEGIN
    UPDATE totals SET number = number - 1, num_bytes = num_bytes - old.num_bytes WHERE owner = old.owner;
    DELETE FROM totals WHERE owner = old.owner AND number = 0;
END;
PRAGMA user_version = {_VERSION};
"""
_CHAIN = """
WITH RECURSIVE chain (id, depth) AS (
    SELECT ?, 0 UNION ALL
    SELECT previous, depth + 1 FROM chain JOIN responses USING (id) WHERE owner = ? AND used >= ? AND previous NOT NULL
)
SELECT chain.id, status, num_bytes
FROM chain LEFT JOIN responses found ON found.id = chain.id AND owner = ? AND used >= ?
ORDER BY depth DESC
"""


class Row(NamedTuple):
    """A kept response."""

    id: str
    owner: str
    """Whose it is: only they find it."""
    previous: str | None
    """The response that it goes on with."""
    status: str
    input: bytes
    """Its own input, as JSON."""
    response: bytes
    """All of it, as JSON."""
    events: bytes | None = None
    """The events of its stream, as JSON, if a client may come back to them."""

    @property
    def num_bytes(self) -> int:
        """Bytes that count for it."""
        return len(self.input) + len(self.response) + len(self.events or b"")


class Found(NamedTuple):
    """A kept response, without its input."""

    status: str
    response: bytes
    events: bytes | None


class Link(NamedTuple):
    """A response of a conversation, as far as it is known without reading it."""

    id: str
    status: str | None
    """None for one that is not there any more."""
    num_bytes: int | None


class ResponseTable:
    """The rows.

    Args:
        file: where they are; None for memory.
        max_kept: most of them.
        max_bytes: most bytes of them together; each has fewer.
        max_seconds: how long one is kept that is not used.

    Raises:
        ConfigError: the file cannot be used.
    """

    def __init__(self, file: str | None, *, max_kept: int, max_bytes: int, max_seconds: float) -> None:
        self._max_kept, self._max_bytes, self._max_seconds = max_kept, max_bytes, max_seconds
        self._db = sqlite3.connect(":memory:", check_same_thread=False) if file is None else _opened(file)
        if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            self._db.executescript(_SCHEMA)

    def put(self, row: Row) -> None:
        """Add a row, or replace the one of its id; others make way for it."""
        with self._db:
            self._db.execute("DELETE FROM responses WHERE id = ?", [row.id])
            self._db.execute("DELETE FROM responses WHERE used < ?", [self._oldest])
            self._db.execute(
                "INSERT INTO responses VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [*row[:4], time.time(), row.num_bytes, *row[4:]],
            )
            while not self._fits():
                self._drop_one(row.id)

    def get(self, id: str, owner: str) -> Found | None:
        """An owner's response; None if there is none of this id."""
        found = self._db.execute(
            "SELECT status, response, events FROM responses WHERE id = ? AND owner = ? AND used >= ?",
            [id, owner, self._oldest],
        ).fetchone()
        return Found(*found) if found else None

    def delete(self, id: str, owner: str) -> bool:
        """Remove an owner's response; returns whether there was one."""
        with self._db:
            return self._db.execute("DELETE FROM responses WHERE id = ? AND owner = ?", [id, owner]).rowcount == 1

    def chain(self, id: str, owner: str) -> list[Link]:
        """The responses of a conversation that ends with an owner's, the first one first."""
        of_owner = [owner, self._oldest]
        return [Link(*found) for found in self._db.execute(_CHAIN, [id, *of_owner, *of_owner])]

    def use(self, ids: Sequence[str]) -> list[tuple[bytes, bytes]]:
        """Inputs and responses of a conversation, which are kept for longer; fewer if some were dropped meanwhile."""
        now = time.time()
        with self._db:
            self._db.executemany("UPDATE responses SET used = ? WHERE id = ?", [(now, id) for id in ids])
        selected = (self._db.execute("SELECT input, response FROM responses WHERE id = ?", [id]) for id in ids)
        return [found for cursor in selected for found in cursor]

    def totals(self) -> tuple[int, int]:
        """The number of responses, and their bytes."""
        number, num_bytes = self._db.execute("SELECT total(number), total(num_bytes) FROM totals").fetchone()
        return int(number), int(num_bytes)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    @property
    def _oldest(self) -> float:
        return time.time() - self._max_seconds

    def _fits(self) -> bool:
        number, num_bytes = self.totals()
        return number <= self._max_kept and num_bytes <= self._max_bytes

    def _drop_one(self, but: str) -> None:
        """Drop what was not used for longest, of the owner that has most of which there is too much."""
        number, _ = self.totals()
        most = "number" if number > self._max_kept else "num_bytes"
        for (owner,) in self._db.execute(f"SELECT owner FROM totals ORDER BY {most} DESC").fetchall():
            dropped = self._db.execute(
                "DELETE FROM responses WHERE id ="
                " (SELECT id FROM responses WHERE owner = ? AND id != ? ORDER BY used LIMIT 1)",
                [owner, but],
            )
            if dropped.rowcount:
                return
        raise AssertionError("one response is within the bounds")


def _opened(file: str) -> sqlite3.Connection:
    """A database in a file that only this process can use, and only this user can read."""
    told = f"responses_store {file!r:.200}"
    if not Path(file).parent.is_dir():
        raise ConfigError(f"{told}: there is no such directory; make it")
    try:
        os.close(os.open(file, os.O_CREAT | os.O_RDWR, 0o600))
        db = sqlite3.connect(file, check_same_thread=False, timeout=1.0)
    except (OSError, ValueError, sqlite3.Error) as error:
        raise ConfigError(f"{told} cannot be opened for writing; choose another file") from error
    try:
        db.execute("PRAGMA locking_mode = EXCLUSIVE")
        db.execute("PRAGMA secure_delete = ON")  # what a client deletes is not in the file any more
        db.execute("PRAGMA journal_mode = WAL")
        db.execute("PRAGMA synchronous = NORMAL")
        db.execute("BEGIN IMMEDIATE")  # takes the lock, which stays
        db.rollback()
        (version,) = db.execute("PRAGMA user_version").fetchone()
        (tables,) = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
        mode = stat.S_IMODE(os.stat(file).st_mode)
    except sqlite3.Error as error:
        db.close()
        is_busy = isinstance(error, sqlite3.OperationalError) and "locked" in str(error)
        reason = "another process uses it; give each server its own" if is_busy else "it is no database of SQLite"
        raise ConfigError(f"{told}: {reason}") from error
    if tables and version != _VERSION:
        db.close()
        raise ConfigError(f"{told} is another program's, or another version's; choose another file")
    if mode & 0o077:
        db.close()
        raise ConfigError(
            f"{told}: other users can read it (mode {mode:o}), and it holds conversations; run chmod 600 on it"
        )
    return db
