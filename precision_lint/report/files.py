"""How machines are told of a file, of a place in it, and why it was flagged."""

from __future__ import annotations

import os
from pathlib import Path

from precision_lint.api import Applicability, Diagnostic, Evidence, Fix


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


def notes(diagnostic: Diagnostic, base: Path) -> list[str]:
    """Confidence, evidence and fix of a diagnostic, a line each."""
    lines = []
    if not diagnostic.code.startswith("MP0"):  # the engine's own diagnostics are no judgement
        lines.append(f"confidence: {diagnostic.confidence.value}")
    lines += [f"note: {_evidence(link, diagnostic, base)}" for link in diagnostic.evidence]
    if diagnostic.fix:
        lines.append(f"fix: {promise(diagnostic.fix)}")
    return lines


def _evidence(link: Evidence, diagnostic: Diagnostic, base: Path) -> str:
    if not (link.start or link.filename):
        return link.message
    place = relative(link.filename or diagnostic.filename, base)
    return f"{link.message} ({place}{f':{link.start.row}' if link.start else ''})"


def promise(fix: Fix) -> str:
    """A fix with what it promises."""
    label = "by hand" if fix.applicability is Applicability.DISPLAY else fix.applicability.value
    return f"{fix.title} ({label}{f': {fix.reason}' if fix.reason else ''})"
