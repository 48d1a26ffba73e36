"""Findings that a project has put off: a file that lists them by content, and counts.

An entry is a rule and a normalised expression of a file, and how often it occurs there; rows are
not in it, so that code may move.  What exceeds the count is new.  Paths are relative to the
baseline's own directory and written with slashes.
"""

from __future__ import annotations

import functools
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from precision_lint import fingerprint
from precision_lint.api import Diagnostic
from precision_lint.config import ALWAYS, ConfigError
from precision_lint.source import Source

NAME = "precision-lint-baseline.json"
VERSION = 1
SHOWN = 100
"""Characters of an expression that are written, for people to read; the hash is of all of it."""
REMAKE = "make it anew with `precision-lint baseline create`"

Counts = Mapping[str, int]
"""How often each key (``fingerprint.key``) is held of one file."""


@dataclass
class Baseline:
    """Counts by file, and the expression of each key for people to read."""

    files: dict[str, dict[str, int]] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def total(self) -> int:
        return sum(sum(counts.values()) for counts in self.files.values())

    def add(self, name: str, key: str, text: str, count: int = 1) -> None:
        """Count one more finding of a file."""
        counts = self.files.setdefault(name, {})
        counts[key] = counts.get(key, 0) + count
        self.texts[key] = text


def name(file: Path, path: Path) -> str:
    """How the baseline ``file`` calls the file at an absolute path."""
    try:
        return Path(os.path.relpath(path, file.parent)).as_posix()
    except ValueError:  # on another drive of Windows
        return path.as_posix()


def part(
    source: Source, diagnostics: Iterable[Diagnostic], held: Counts
) -> tuple[list[Diagnostic], list[Diagnostic]]:
    """The diagnostics of a file that are new, and those that are held.

    Of equal ones the first are held; why a file could not be linted is always new.
    """
    left = Counter(held)
    new: list[Diagnostic] = []
    known: list[Diagnostic] = []
    for diagnostic in diagnostics:
        key = fingerprint.key(diagnostic, source) if left else ""
        if left[key] > 0 and diagnostic.code not in ALWAYS:
            left[key] -= 1
            known.append(diagnostic)
        else:
            new.append(diagnostic)
    return new, known


def gone(
    source: Source, diagnostics: Iterable[Diagnostic], held: Counts, codes: Iterable[str]
) -> Counts:
    """What is held of these codes and does not occur any more."""
    on = tuple(codes)
    left = Counter({key: n for key, n in held.items() if key.startswith(on)})
    left.subtract(fingerprint.key(d, source) for d in diagnostics if left)
    return +left


def most(*several: Counts) -> Counts:
    """The larger count of each key."""
    union: Counter[str] = Counter()
    for counts in several:
        union |= Counter(counts)
    return union


def held(file: Path, path: Path) -> Counts:
    """What the baseline ``file`` holds of the file at an absolute path.

    Raises ConfigError if the baseline cannot be read.
    """
    try:
        changed = file.stat().st_mtime_ns
    except OSError:
        changed = 0
    return _loaded(file, changed).files.get(name(file, path), {})


@functools.lru_cache(maxsize=8)
def _loaded(file: Path, changed: int) -> Baseline:
    return load(file)


def load(file: Path) -> Baseline:
    """Read a baseline; raises ConfigError, one line, for a file that is none."""
    try:
        data = file.read_bytes()
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
        raise ConfigError(f"{file}: {what}; {REMAKE}") from None
    try:
        table = json.loads(data)
    except (ValueError, RecursionError) as error:
        place = f":{error.lineno}:{error.colno}" if isinstance(error, json.JSONDecodeError) else ""
        raise ConfigError(f"{file}{place}: is not JSON; resolve conflicts, or {REMAKE}") from None
    version = table.get("version") if isinstance(table, dict) else None
    if version != VERSION:
        what = f"is not a baseline of version {VERSION}"
        raise ConfigError(f"{file}: {what}; {REMAKE}, or update precision-lint")
    made = Baseline()
    for path, entries in _items(file, table.get("files")):
        for entry in entries if isinstance(entries, list) else [None]:
            code, digest, count, text = _entry(file, path, entry)
            made.add(path, f"{code}:{digest}", text, count)
    return made


def _items(file: Path, value: Any) -> Iterable[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise ConfigError(f'{file}: "files" is not an object; {REMAKE}')
    return value.items()


def _entry(file: Path, path: str, entry: Any) -> tuple[str, str, int, str]:
    if isinstance(entry, dict):
        code, digest = entry.get("code"), entry.get("hash")
        count, text = entry.get("count", 1), entry.get("expression", "")
        if (
            isinstance(code, str)
            and re.fullmatch(r"MP\d{3}", code)
            and isinstance(digest, str)
            and isinstance(text, str)
            and type(count) is int
            and count > 0
        ):
            return code, digest, count, text
    what = f"an entry of {path} is not code, hash, count and expression"
    raise ConfigError(f"{file}: {what}; {REMAKE}")


def render(made: Baseline) -> str:
    """The text of a baseline: sorted, an entry a line, so that branches seldom conflict."""
    files = []
    for path, counts in sorted(made.files.items()):
        entries = []
        for key, count in sorted(counts.items()):
            code, _, digest = key.partition(":")
            entry = {"code": code, "hash": digest, "count": count}
            entries.append(f"      {json.dumps(entry | {'expression': made.texts[key]})}")
        if entries:
            files.append(f"    {json.dumps(path)}: [\n" + ",\n".join(entries) + "\n    ]")
    body = "{\n" + ",\n".join(files) + "\n  }" if files else "{}"
    return f'{{\n  "version": {VERSION},\n  "files": {body}\n}}\n'


def save(made: Baseline, file: Path) -> None:
    """Write a baseline; raises OSError, and ConfigError for a symbolic link.

    The name may be that of the configuration of a foreign project, whose links may lead anywhere.
    """
    if file.is_symlink():
        raise ConfigError(f"{file}: is a symbolic link; name the file that it leads to")
    file.write_bytes(render(made).encode())


def shown(diagnostic: Diagnostic, source: Source) -> str:
    """The expression of a diagnostic as a baseline shows it."""
    text = fingerprint.normalised(fingerprint.expression(diagnostic, source))
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 3]}..."
