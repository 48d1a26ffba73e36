"""What was computed from bytes before, on disk: an SQLite table in the project's cache directory.

Keys are digests of contents, so nothing ever needs to be invalidated; several processes may use
one cache at a time.  A cache that cannot be used (read-only, damaged, locked, a link) is silently not
used.
Values are texts, JSON by convention: a cache that came with a foreign project cannot run code.
"""

from __future__ import annotations

import contextlib
import hashlib
import sqlite3
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import precision_lint

DIRECTORY = ".precision_lint_cache"
FILE = "facts.sqlite3"
SUFFIXES = ("", "-wal", "-shm", "-journal")
"""What SQLite adds to the name of a table for files beside it."""
KEEP_DAYS = 30
"""Entries that no run asked for in this time are deleted."""


def digest(*parts: bytes) -> bytes:
    """A key for contents; other contents, or another version of this package, give another."""
    whole = hashlib.blake2b(_VERSION, digest_size=20)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


def _version() -> bytes:
    """This package's version and source: an editable install changes without a new version."""
    whole = hashlib.blake2b(f"{precision_lint.__version__} {sys.version_info[:2]}".encode())
    here = Path(__file__).parent
    for path in sorted((*here.rglob("*.py"), *here.glob("torchmodel/*.json"))):
        whole.update(stamp(path))
    return whole.digest()


def stamp(path: Path) -> bytes:
    """What changes with a file of this package, or of one with rules."""
    status = path.stat()
    return f"{path.name} {status.st_size} {status.st_mtime_ns}".encode()


_VERSION = _version()


class Cache:
    """Texts by content digest; without a directory it remembers nothing."""

    def __init__(self, directory: Path | None) -> None:
        self._table: sqlite3.Connection | None = None
        self._directory = directory or Path()
        if directory is not None:
            with contextlib.suppress(OSError, sqlite3.Error):
                self._table = _open(directory)

    @property
    def remembers(self) -> bool:
        """Whether anything is kept."""
        return self._table is not None

    def get(self, keys: Iterable[bytes]) -> dict[bytes, str]:
        """The texts that are known of these keys."""
        found: dict[bytes, str] = {}
        if self._table is None:
            return found
        wanted = list(dict.fromkeys(keys))
        today = int(time.time() // 86400)
        try:
            for start in range(0, len(wanted), 500):
                some = wanted[start : start + 500]
                marks = ",".join("?" * len(some))
                rows = self._table.execute(
                    f"SELECT key, value, day FROM facts WHERE key IN ({marks})", some
                ).fetchall()
                found |= {key: value for key, value, _ in rows if isinstance(value, str)}
                stale = [(today, key) for key, _, day in rows if day not in (today - 1, today)]
                if stale:
                    with self._table:
                        self._table.executemany("UPDATE facts SET day = ? WHERE key = ?", stale)
        except sqlite3.Error as error:
            self._give_up(error)
        return found

    def put(self, values: Mapping[bytes, str]) -> None:
        """Remember texts by their keys."""
        if self._table is None or not values:
            return
        today = int(time.time() // 86400)
        rows = [(key, value, today) for key, value in values.items()]
        try:
            with self._table:
                self._table.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)
                self._table.execute("DELETE FROM facts WHERE day < ?", (today - KEEP_DAYS,))
        except sqlite3.Error as error:
            self._give_up(error)

    def close(self) -> None:
        """Let others have the table; what is asked for later is not known."""
        if self._table is not None:
            self._table.close()
            self._table = None

    def _give_up(self, error: sqlite3.Error) -> None:
        if self._table is not None:
            _close(self._table, self._directory, error)
            self._table = None


def _is_ours(directory: Path) -> bool:
    """Whether nothing there is a link: those of a foreign project may lead anywhere."""
    if directory.is_symlink():
        return False
    files = (directory / f"{FILE}{suffix}" for suffix in SUFFIXES)
    return not any(file.is_symlink() or file.is_fifo() for file in files)


def _open(directory: Path) -> sqlite3.Connection:
    if not _is_ours(directory):
        raise FileExistsError(directory)
    if not directory.is_dir():
        directory.mkdir(parents=True)
        (directory / ".gitignore").write_text("*\n", "utf8")
        (directory / "CACHEDIR.TAG").write_text(
            "Signature: 8a477f597d28d172789f06886806bc55\n", "utf8"
        )
    table = sqlite3.connect(directory / FILE, timeout=1.0)
    try:
        table.execute("PRAGMA journal_mode = WAL")
        table.execute("PRAGMA synchronous = OFF")
        table.execute(
            "CREATE TABLE IF NOT EXISTS facts (key BLOB PRIMARY KEY, value TEXT, day INTEGER)"
        )
    except sqlite3.Error as error:
        _close(table, directory, error)
        raise
    return table


def _close(table: sqlite3.Connection, directory: Path, error: sqlite3.Error) -> None:
    """Close a table that failed; a damaged one is removed, so that the next run starts again."""
    table.close()
    if isinstance(error, sqlite3.OperationalError):
        return  # locked, read-only or full
    for suffix in SUFFIXES:
        with contextlib.suppress(OSError):
            (directory / f"{FILE}{suffix}").unlink()
