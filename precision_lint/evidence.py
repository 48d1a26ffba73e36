"""The places of a project that show in which precision modes it is run, and what follows to be stated."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from precision_lint import gathering, runner, source
from precision_lint.api import Position
from precision_lint.config import Resolver
from precision_lint.events import Sign
from precision_lint.precision.modes import MODES
from precision_lint.project import files
from precision_lint.project.code import Imports
from precision_lint.project.contents import TENSORS
from precision_lint.source import Source
from precision_lint.stating import Modes, Said
from precision_lint.syntax.imports import is_test

PROVED, OFFERED, TESTED = "proved", "offered", "tested"
"""The code says so; it does where an option, a condition or a setting says so; a test does."""


@dataclass(frozen=True)
class Shown:
    """A place that shows a mode."""

    mode: str
    how: str
    name: str
    """The file as its project names it."""
    path: Path
    shown: str
    """The file as a reader finds it; of a notebook with its cell."""
    row: int
    text: str
    """The line, without what is around it."""
    reach: frozenset[str] | None
    """Files that may run so because of it; None: that cannot be told."""


@dataclass(frozen=True)
class Evidence:
    """What a project shows.

    home: the project's directory.  shown: places, by mode, proved ones first.  tensors: the files of the
    project that hold tensors.
    """

    home: Path
    shown: tuple[Shown, ...]
    tensors: frozenset[str]

    @property
    def counted(self) -> list[Shown]:
        """The places that speak of the project, not only of its tests."""
        return [one for one in self.shown if one.how != TESTED]

    def by_mode(self, how: str) -> dict[str, list[Shown]]:
        """The places that show a mode in some way, by mode."""
        found: dict[str, list[Shown]] = {}
        for one in self.shown:
            if one.how == how:
                found.setdefault(one.mode, []).append(one)
        return found


def collect(
    path: Path, resolver: Resolver, suggested: bool = True, workers: int | None = None
) -> Evidence:
    """The places of the project that a path lies in.

    suggested: whether options, conditions and settings count, too.
    """
    root = files.project_root(files.absolute(path))
    settings = resolver(root)
    with closing(gathering.cache_of(root, settings)) as cache:
        code = gathering.project(root, settings, (), cache)
        signs = gathering.shown(root, code, cache, workers or runner.cores())
        imports = Imports(code, cache)
        reach = {sign: _reach(sign, code.names, imports) for sign in signs}
        tensors = frozenset(name for name in code.names if code.contents(name).flags & TENSORS)
        read = _Reader(code.path, code.shown)
        found = {}
        for sign in signs:
            how = _how(sign, reach[sign] is None)
            if suggested or how != OFFERED:
                one = read.place(sign, how, reach[sign])
                key = one.mode, one.shown, one.row
                if key not in found or how == PROVED:
                    found[key] = one
    order = {mode: number for number, mode in enumerate(MODES)}
    ways = (PROVED, OFFERED, TESTED)
    ranked = sorted(
        found.values(), key=lambda one: (order[one.mode], ways.index(one.how), one.name, one.row)
    )
    return Evidence(code.root, tuple(ranked), tensors)


def _how(sign: Sign, setting: bool) -> str:
    if is_test(sign.place.path):
        return TESTED
    return OFFERED if sign.flag or setting else PROVED


def _reach(sign: Sign, names: Collection[str], imports: Imports) -> frozenset[str] | None:
    if sign.place.path not in names:
        return None  # a setting speaks of whoever reads it
    if sign.inside:
        return frozenset({sign.place.path})
    return frozenset(imports.reach(sign.place.path))


class _Reader:
    """Reads lines of files; each file once."""

    def __init__(self, path: Callable[[str], Path], shown: Callable[[str], str]) -> None:
        self._path, self._shown = path, shown
        self._read: dict[str, Source | None] = {}

    def place(self, sign: Sign, how: str, reach: frozenset[str] | None) -> Shown:
        name, row = sign.place.path, sign.place.row
        path, shown = self._path(name), self._shown(name)
        text = self._source(name)
        line = sign.text
        if text is not None and row <= len(text.lines):
            end = text.lines[row] if row < len(text.lines) else len(text.text)
            line = text.text[text.lines[row - 1] : end].strip()
            cell, inner = text.in_cell(Position(row, 1))
            row = inner.row
            shown += f":cell {cell}" if cell else ""
        mode = next(mode for mode, number in MODES.items() if number == sign.mode)
        return Shown(mode, how, name, path, shown, row, line, reach)

    def _source(self, name: str) -> Source | None:
        if name not in self._read:
            text = source.read(self._path(name), name)
            self._read[name] = text if isinstance(text, Source) else None
        return self._read[name]


def proposed(found: Evidence, given: Iterable[str] | None = None) -> Said | None:
    """What to state: the given modes, or those that are shown; None: none is."""
    counted = found.counted
    modes: dict[str, list[Shown]] = {} if given is None else {mode: [] for mode in given}
    for one in counted:
        if given is None or one.mode in modes:
            modes.setdefault(one.mode, []).append(one)
    if given is not None:
        return Said({mode: _comments(places) for mode, places in modes.items()})
    if not modes:
        return None
    parts = {mode: _part(found, places) for mode, places in modes.items()}
    general = {mode: places for mode, places in modes.items() if not parts[mode]}
    if not general:  # of the rest nothing is known
        general, parts = modes, {}
    overrides: dict[str, Modes] = {}
    for part in sorted({part for part in parts.values() if part}):
        here = [mode for mode in modes if mode in general or parts[mode] == part]
        overrides[f"{part}/**"] = {
            mode: [] if mode in general else _comments(modes[mode]) for mode in here
        }
    return Said({mode: _comments(places) for mode, places in general.items()}, overrides)


def _part(found: Evidence, places: Iterable[Shown]) -> str:
    """The directory in which a mode stays; empty where it may leave any.

    That is one which holds all its places and all that these import, and not all of the project.
    """
    touched: set[str] = set()
    for one in places:
        if one.reach is None:
            return ""
        touched |= {one.name, *(one.reach & found.tensors)}
    parents = [str(PurePosixPath(name).parent) for name in touched]
    part = "" if "." in parents else os.path.commonpath(parents).replace(os.sep, "/")
    others = (name for name in found.tensors if not is_test(name))
    return part if part and any(not name.startswith(f"{part}/") for name in others) else ""


def _comments(places: Iterable[Shown]) -> list[str]:
    """Places as the file of the configuration names them."""
    return list(dict.fromkeys(f"{one.name}:{one.row}" for one in places))


__all__ = ["OFFERED", "PROVED", "TESTED", "Evidence", "Shown", "collect", "proposed"]
