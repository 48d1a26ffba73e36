"""Workflow commands that GitHub Actions shows as annotations in a pull request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from precision_lint.api import Diagnostic, Severity
from precision_lint.display import printable
from precision_lint.report import files
from precision_lint.source import Source

_COMMANDS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "notice"}


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """A command for each diagnostic, with its evidence and fix in the message.

    Paths are relative to ``GITHUB_WORKSPACE``, as those of a pull request are.
    """
    base = files.top("GITHUB_WORKSPACE")
    return "\n".join(_command(d, base, sources) for d in diagnostics)


def _command(diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]) -> str:
    start, end = files.span(diagnostic, sources)
    properties = {
        "file": printable(files.relative(diagnostic.filename, base)),
        "line": start.row,
        "endLine": max(end.row, start.row),
        "title": f"{diagnostic.code} {diagnostic.name}",
    }
    if start.row == end.row:  # columns of two rows are refused
        properties |= {"col": start.column, "endColumn": max(end.column, start.column)}
    said = ",".join(f"{name}={_property(str(value))}" for name, value in properties.items())
    message = "\n".join([printable(diagnostic.message), *files.notes(diagnostic, base, sources)])
    return f"::{_COMMANDS[diagnostic.severity]} {said}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
