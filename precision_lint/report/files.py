"""How machines are told of a file, of a place in it, and why it was flagged."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from precision_lint.api import Applicability, Diagnostic, Evidence, Fix, Position
from precision_lint.display import printable
from precision_lint.source import Source


def top(variable: str) -> Path:
    """The root of the checkout as the CI system has it in a variable, or the working directory."""
    return Path(os.path.realpath(os.environ.get(variable) or Path.cwd()))


def relative(filename: str, base: Path) -> str:
    """A file's path from the resolved ``base``, with slashes; absolute if it lies elsewhere.

    Links to directories are resolved, as git does not follow them, but not one to the file.
    """
    directory, name = os.path.split(Path.cwd() / filename)
    path = Path(os.path.realpath(directory), name)
    if path.is_relative_to(base):
        return path.relative_to(base).as_posix()
    return path.as_posix()


def spot(filename: str, position: Position, sources: Mapping[str, Source]) -> tuple[str, Position]:
    """``:cell 3`` and the place in that cell where the file is a notebook, else only the place."""
    source = sources.get(filename)
    cell, inner = source.in_cell(position) if source else (None, position)
    return f":cell {cell}" if cell else "", inner


def span(diagnostic: Diagnostic, sources: Mapping[str, Source]) -> tuple[Position, Position]:
    """Start and end in the file's own text, which of a notebook is JSON."""
    source = sources.get(diagnostic.filename)
    if source is None:
        return diagnostic.start, diagnostic.end
    return source.physical(diagnostic.start), source.physical(diagnostic.end)


def notes(diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]) -> list[str]:
    """Cell of a notebook, confidence, evidence and fix of a diagnostic, a printable line each."""
    cell, inner = spot(diagnostic.filename, diagnostic.start, sources)
    lines = [f"in {cell[1:]}, line {inner.row}"] if cell else []
    if not diagnostic.code.startswith("MP0"):  # the engine's own diagnostics are no judgement
        lines.append(f"confidence: {diagnostic.confidence.value}")
    if diagnostic.assumptions:
        lines.append(f"assumed: {'; '.join(diagnostic.assumptions)}")
    lines += [f"note: {_evidence(link, diagnostic, base, sources)}" for link in diagnostic.evidence]
    if diagnostic.fix:
        lines.append(f"fix: {promise(diagnostic.fix)}")
    return [printable(line) for line in lines]


def _evidence(
    link: Evidence, diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]
) -> str:
    if not (link.start or link.filename):
        return link.message
    filename = link.filename or diagnostic.filename
    place = relative(filename, base)
    if link.start:
        cell, inner = spot(filename, link.start, sources)
        place += f"{cell}:{inner.row}"
    return f"{link.message} ({place})"


def promise(fix: Fix) -> str:
    """A fix with what it promises."""
    label = "by hand" if fix.applicability is Applicability.DISPLAY else fix.applicability.value
    return f"{fix.title} ({label}{f': {fix.reason}' if fix.reason else ''})"
