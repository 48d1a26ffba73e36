"""The labelled places: bugs, traps and standing hazards, read from the ``.jsonl`` files here."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

HERE = Path(__file__).parent
KINDS = {"case": "cases.jsonl", "negative": "negatives.jsonl", "residual": "residuals.jsonl"}
CONTEXTS = ("same-function", "same-file", "cross-file", "config-only")
"""What one must see to decide: from one function up to a configuration file."""
SETS = ("first", "second", "held-out")
"""Sets by who may see them while rules are written; nobody tunes to ``held-out``."""

_PLACE = {"id", "set", "repo", "file", "lines"}
KEYS = {
    "case": _PLACE
    | {"fix_commit", "parent_commit", "category", "context", "description", "fix"},
    "negative": _PLACE | {"commit", "naive_category", "context", "why_safe"},
    "residual": _PLACE | {"commit", "category", "description"},
}  # fmt: skip
OPTIONAL = {"case": {"within"}, "negative": {"context", "within"}, "residual": {"within"}}


class InvalidEntry(Exception):
    """A line that breaks the schema; the text is one line ``file:line: what; what to do``."""


@dataclass(frozen=True)
class Category:
    """A kind of bug, and by linter the rules that fit it: each one's code and name."""

    name: str
    description: str
    rules: Mapping[str, tuple[frozenset[str], ...]]


@dataclass(frozen=True)
class Entry:
    """A labelled place in the tree of ``commit``, for a case the parent of ``fix_commit``.

    ``lines`` are the first and last of the range, counted from 1; None in a residual whose lines
    are not known.  ``within`` is the directory that is linted, None for the whole tree.
    """

    kind: str
    id: str
    repo: str
    commit: str
    file: str
    lines: tuple[int, int] | None
    category: str
    context: str | None
    description: str
    fix_commit: str | None
    fix: str | None
    set: str
    within: str | None


@functools.cache
def categories() -> dict[str, Category]:
    """All categories by name."""
    rows = json.loads((HERE / "categories.json").read_text())
    return {
        name: Category(
            name,
            row["description"],
            {
                linter: tuple(frozenset(rule.split()) for rule in rules)
                for linter, rules in row["rules"].items()
            },
        )
        for name, row in rows.items()
    }


def load(kind: str, path: Path | None = None) -> list[Entry]:
    """The entries of a kind, by default from its file beside this module.

    :raises InvalidEntry: at the first line that breaks the schema
    """
    path = path or HERE / KINDS[kind]
    entries: dict[str, Entry] = {}
    for row, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            entry = _entry(kind, json.loads(line))
            if entry.id in entries:
                raise ValueError(f"id {entry.id} is taken; write another")
        except ValueError as error:
            raise InvalidEntry(f"{path.name}:{row}: {error}") from error
        entries[entry.id] = entry
    return list(entries.values())


def _entry(kind: str, row: dict[str, Any]) -> Entry:
    if wrong := sorted((row.keys() ^ KEYS[kind]) - OPTIONAL[kind]):
        raise ValueError(f"keys {', '.join(wrong)} are missing or unknown; see README.md")
    entry = Entry(
        kind,
        row["id"],
        row["repo"],
        row["parent_commit"] if kind == "case" else row["commit"],
        row["file"],
        tuple(row["lines"]) if row["lines"] else None,
        row["naive_category"] if kind == "negative" else row["category"],
        row.get("context"),
        row["why_safe"] if kind == "negative" else row["description"],
        row.get("fix_commit"),
        row.get("fix"),
        row["set"],
        row.get("within"),
    )
    _validate(entry)
    return entry


def _validate(entry: Entry) -> None:
    commits = [entry.commit, *([entry.fix_commit] if entry.fix_commit is not None else [])]
    if not all(re.fullmatch(r"[0-9a-f]{40}", commit) for commit in commits):
        raise ValueError("a commit is not 40 hexadecimal digits; write it in full")
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", entry.repo):
        raise ValueError(f"repo is {entry.repo!r}; write owner/name")
    if entry.set not in SETS:
        raise ValueError(f"set is {entry.set!r}; write one of {', '.join(SETS)}")
    path = PurePosixPath(entry.file)
    if path.is_absolute() or ".." in path.parts or path.as_posix() != entry.file:
        raise ValueError(f"file is {entry.file!r}; write it relative to the repository")
    if entry.within is not None and entry.within not in map(str, path.parents):
        raise ValueError(f"file is not within {entry.within!r}; write a directory that holds it")
    if entry.lines is None:
        if entry.kind != "residual":
            raise ValueError("lines are null; write [first, last]")
    elif len(entry.lines) != 2 or not 1 <= entry.lines[0] <= entry.lines[1]:
        raise ValueError(f"lines are {list(entry.lines)}; write [first, last], from 1")
    if entry.category not in categories():
        raise ValueError(f"category {entry.category!r} is unknown; add it to categories.json")
    if entry.context not in CONTEXTS and (entry.kind == "case" or entry.context is not None):
        raise ValueError(f"context is {entry.context!r}; write one of {', '.join(CONTEXTS)}")
    if not entry.description or entry.fix == "":
        raise ValueError("a text is empty; describe the place in your own words")
