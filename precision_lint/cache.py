"""What was computed from bytes before, on disk: an SQLite table in the project's cache directory.

Keys are digests of contents, so nothing ever needs to be invalidated; several processes may use
one cache at a time.  A cache that cannot be used (read-only, damaged, locked) is silently not used,
and nothing is written through a link.  Values are texts, JSON by convention: a cache that came with
a foreign project cannot run code.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import os
import sys
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import precision_lint

if TYPE_CHECKING:
    import sqlite3

DIRECTORY = ".precision_lint_cache"
FILE = "facts.sqlite3"
SUFFIXES = ("", "-wal", "-shm", "-journal")
"""What SQLite adds to the name of a table for files beside it."""
KEEP_DAYS = 30
"""Entries that no run asked for in this time are deleted."""
_MARKS = {".gitignore": "*\n", "CACHEDIR.TAG": "Signature: 8a477f597d28d172789f06886806bc55\n"}


def digest(*parts: bytes) -> bytes:
    """A key for contents; other contents, or another version of this package, give another."""
    whole = hashlib.blake2b(_version(), digest_size=20)
    for part in parts:
        whole.update(len(part).to_bytes(8, "little"))
        whole.update(part)
    return whole.digest()


@functools.cache
def _version() -> bytes:
    """This package's version and source: an editable install changes without a new version."""
    whole = hashlib.blake2b(f"{precision_lint.__version__} {sys.version_info[:2]}".encode())
    for name, entry in sorted(_sources(str(Path(__file__).parent))):
        status = entry.stat()
        whole.update(f"{name} {status.st_size} {status.st_mtime_ns}".encode())
    return whole.digest()


def _sources(directory: str, within: str = "") -> Iterator[tuple[str, os.DirEntry[str]]]:
    with os.scandir(directory) as listing:
        for entry in listing:
            name = f"{within}/{entry.name}"
            if entry.is_dir():
                if entry.name != "__pycache__":
                    yield from _sources(entry.path, name)
            elif name.endswith((".py", ".json")):
                yield name, entry


SUM = 8
"""Characters before each text that tell whether it is whole."""


def _sum(text: str) -> str:
    return f"{zlib.crc32(text.encode('utf8', 'surrogatepass')):0{SUM}x}"


def _is_whole(value: object) -> bool:
    """Whether a text is as it was written: what writes over the table may leave parts of it as they were."""
    return isinstance(value, str) and value.startswith(_sum(value[SUM:]))


class Cache:
    """Texts by content digest; without a directory it remembers nothing.

    The table is opened by the first question, and made by the first answer.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._opened: sqlite3.Connection | None = None

    def _table(self, make: bool = False) -> sqlite3.Connection | None:
        directory = self._directory
        if self._opened is not None or directory is None:
            return self._opened
        if not make and not (directory / FILE).exists():
            return None
        import sqlite3  # late: most runs of a hook find no file that needs it

        try:
            self._opened = _open(directory)
        except (OSError, sqlite3.Error):
            self._directory = None
        return self._opened

    @property
    def remembers(self) -> bool:
        """Whether anything is kept."""
        return self._directory is not None

    def get(self, keys: Iterable[bytes]) -> dict[bytes, str]:
        """The texts that are known of these keys."""
        found: dict[bytes, str] = {}
        wanted = list(dict.fromkeys(keys))
        table = self._table() if wanted else None
        if table is None:
            return found
        today = int(time.time() // 86400)
        with self._unless_it_fails():
            for start in range(0, len(wanted), 500):
                some = wanted[start : start + 500]
                marks = ",".join("?" * len(some))
                rows = table.execute(
                    f"SELECT key, value, day FROM facts WHERE key IN ({marks})", some
                ).fetchall()
                found |= {key: value[SUM:] for key, value, _ in rows if _is_whole(value)}
                stale = [(today, key) for key, _, day in rows if day not in (today - 1, today)]
                if stale:
                    with table:
                        table.executemany("UPDATE facts SET day = ? WHERE key = ?", stale)
        return found

    def put(self, values: Mapping[bytes, str]) -> None:
        """Remember texts by their keys."""
        table = self._table(make=True) if values else None
        if table is None:
            return
        today = int(time.time() // 86400)
        rows = [(key, f"{_sum(value)}{value}", today) for key, value in values.items()]
        with self._unless_it_fails(), table:
            table.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?, ?)", rows)
            table.execute("DELETE FROM facts WHERE day < ?", (today - KEEP_DAYS,))

    def close(self) -> None:
        """Let others have the table; what is asked for later is not known."""
        if self._opened is not None:
            self._opened.close()
        self._opened = self._directory = None

    @contextlib.contextmanager
    def _unless_it_fails(self) -> Iterator[None]:
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            if self._opened is not None and self._directory is not None:
                _close(self._opened, self._directory, error)
            self._opened = self._directory = None


def _open(directory: Path) -> sqlite3.Connection:
    import sqlite3

    if linked(directory):
        raise OSError(f"{directory} is a link")
    if not directory.is_dir():
        directory.mkdir(parents=True)
        for name, text in _MARKS.items():
            (directory / name).write_text(text, "utf8")
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


def linked(directory: Path) -> bool:
    """Whether a cache's directory, or the table in it, is a link, which may lead anywhere, or a pipe."""
    files = (directory / f"{FILE}{side}" for side in SUFFIXES)
    return directory.is_symlink() or any(file.is_symlink() or file.is_fifo() for file in files)


def _close(table: sqlite3.Connection, directory: Path, error: sqlite3.Error) -> None:
    """Close a table that failed; a damaged one is removed, so that the next run starts again."""
    import sqlite3

    table.close()
    if not isinstance(error, sqlite3.OperationalError):  # locked, read-only or full
        _remove(directory)


def _remove(directory: Path) -> None:
    for side in SUFFIXES:
        with contextlib.suppress(OSError):
            (directory / f"{FILE}{side}").unlink()


def clean(directory: Path) -> bool:
    """Remove what runs have left in a directory, and it, if nothing else is there.

    Whether there was something.  Raises OSError for a link, and for what cannot be removed.
    """
    if linked(directory):
        raise OSError(errno.ELOOP, "is a link", str(directory))
    found = [path for side in SUFFIXES if (path := directory / f"{FILE}{side}").is_file()]
    for name, text in _MARKS.items():
        path = directory / name
        if path.is_file() and not path.is_symlink() and path.read_bytes() == text.encode():
            found.append(path)
    for path in found:
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # others keep something there
        directory.rmdir()
    return bool(found)
