"""What is in the files of a project: digests, sizes and what they are about, by their status.

A file whose size, times and inode are those of the last run is not read again.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from pathlib import Path
from typing import NamedTuple

from precision_lint import notebook
from precision_lint.cache import Cache, digest
from precision_lint.source import Failure, load, may_hold_tensors

SUPPRESSION = re.compile(
    rb"precision-lint\s*:|noqa\s*:[^\r\n]*(?:MP\d|[a-z\d]-[a-z])", re.IGNORECASE
)
_HALF = (b"autocast", b"float16", b"half", b"GradScaler")
SETTLED = 2_000_000_000
"""Nanoseconds after its last change from which on a file's status tells of its next change."""
_SWITCHES = (
    b"_amp", b"_fp16", b"_bf16", b"_float16", b"_bfloat16", b"_half", b"_mixed_p", b"_autocast",
    b"_auto_mixed", b"_automatic_mixed", b"_apex", b"_grad_scaler", b"_gradscaler",
)  # fmt: skip
LOOK, TENSORS, HALF, IMPORTS, SILENCES, SWITCHES = 1, 2, 4, 8, 16, 32
"""Flags: it may lead to a diagnostic; it holds tensors; it speaks of half; it imports; a comment in it
silences findings; a name in it may be of a switch (``use_amp``)."""


class Contents(NamedTuple):
    """What a file holds; ``key`` is a digest of its bytes in hexadecimal digits."""

    key: str
    lines: int
    flags: int


NOTHING = Contents(digest(b"").hex(), 0, 0)


def contents(name: str, data: bytes) -> Contents:
    """What the bytes of a file come to."""
    python = notebook.python(name, data)
    flags = TENSORS if may_hold_tensors(python) else 0
    if flags and any(word in data for word in _HALF):
        flags |= HALF
    if b"import" in data:
        flags |= IMPORTS
    lower = data.lower()
    if any(word in lower for word in _SWITCHES):
        flags |= SWITCHES
    odd = not name.endswith(notebook.SUFFIX) and (b"\0" in data or not data.isascii())
    if (b"noqa" in lower or b"precision-lint" in lower) and SUPPRESSION.search(data) is not None:
        flags |= LOOK | SILENCES
    if odd or may_hold_tensors(data):
        flags |= LOOK
    lines = data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
    return Contents(digest(data).hex(), lines, flags)


class Index:
    """The contents of the files below a directory, as far as they are known."""

    def __init__(self, home: Path) -> None:
        self._home = f"{home}{os.sep}"
        self._known: dict[str, tuple[str, Contents]] = {}
        self._seen: dict[str, tuple[str, Contents]] = {}
        self._status: dict[str, str] = {}  # of those as they were then
        self._new = False

    @property
    def _key(self) -> bytes:
        return digest(b"index 2", self._home.encode("utf8", "surrogateescape"))

    def load(self, cache: Cache) -> None:
        """Take over what the last run has kept."""
        try:
            known = json.loads(cache.get([self._key]).get(self._key) or "{}")
            self._known = {
                name: (status, Contents(key, lines, flags))
                for name, (status, key, lines, flags) in known.items()
            }
        except (ValueError, TypeError, AttributeError):
            self._known = {}

    def save(self, cache: Cache) -> None:
        """Keep what is known, if a file is new or another one now."""
        if not self._new:
            return
        known = {name: (status, *found) for name, (status, found) in self._kept().items()}
        cache.put({self._key: json.dumps(known)})
        self._new = False

    def _kept(self) -> dict[str, tuple[str, Contents]]:
        gone = [
            n for n in self._known if n not in self._seen and not os.path.exists(self._home + n)
        ]
        kept = {**self._known, **self._seen}
        for name in gone:
            del kept[name]
        return {name: found for name, found in kept.items() if found[0]}

    def of(self, where: str) -> Contents | None:
        """The contents of a file by its absolute path; None where it cannot be read."""
        name = where[len(self._home) :] if where.startswith(self._home) else where
        seen = self._seen.get(name)
        if seen is not None:
            return seen[1]
        try:
            found = os.stat(where)
        except (OSError, ValueError):
            return None
        status = self._status[name] = _status(found)
        known = self._known.get(name)
        if known is None or known[0] != status:
            if not stat.S_ISREG(found.st_mode):
                return None
            data = load(where)
            if isinstance(data, Failure):
                return None
            if time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < SETTLED:
                status = ""  # its next change may not show
            known = status, contents(name, data)
            self._new |= bool(status)
        self._seen[name] = known
        return known[1]

    def changed(self, where: str) -> bool:
        """Whether a file is another one now: what was made of it may be of either text."""
        name = where[len(self._home) :] if where.startswith(self._home) else where
        try:
            return name in self._seen and self._status[name] != _status(os.stat(where))
        except OSError:
            return True


def _status(found: os.stat_result) -> str:
    return f"{found.st_size} {found.st_mtime_ns} {found.st_ctime_ns} {found.st_ino}"
