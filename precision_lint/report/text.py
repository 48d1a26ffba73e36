"""Text for people: a code frame, the reasons and the fix, or one line a diagnostic."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from precision_lint.api import Applicability, Diagnostic, Evidence, Fix, Position, Severity
from precision_lint.display import printable
from precision_lint.report import files
from precision_lint.source import Source

CONTEXT = 1
"""Lines shown before and after a finding."""
WIDTH = 120
"""Characters of a source line shown; a longer line is cut around the caret."""
BETWEEN = 6
"""Lines shown between the first and the last of a range; of more, some give way to a mark."""
TAB = 4
_CUT = "..."
_COLORS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.INFO: "cyan"}


class _Pen:
    """Styles text, or leaves it plain."""

    def __init__(self, color: bool) -> None:
        self.color = color

    def __call__(self, text: str, **style: Any) -> str:
        return click.style(text, **style) if self.color and text else text

    def gutter(self, text: str) -> str:
        return self(text, fg="blue", bold=True)


def full(
    diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source], *, color: bool = False
) -> str:
    """Header, code frame, confidence, evidence and fix of each, parted by an empty line."""
    pen = _Pen(color)
    return "\n\n".join(_block(d, sources, pen) for d in diagnostics)


def concise(
    diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source], *, color: bool = False
) -> str:
    """``path:row:column: CODE [*] message`` of each; ``[*]`` marks what ``--fix`` repairs."""
    pen = _Pen(color)
    return "\n".join(_line(d, sources, pen) for d in diagnostics)


def _line(diagnostic: Diagnostic, sources: Mapping[str, Source], pen: _Pen) -> str:
    fix = diagnostic.fix
    mark = " [*]" if fix and fix.applicability is Applicability.SAFE else ""
    place = pen(_place(diagnostic.filename, diagnostic.start, sources), bold=True)
    code = pen(diagnostic.code, fg=_COLORS[diagnostic.severity], bold=True)
    return f"{place}: {code}{pen(mark, fg='cyan')} {printable(diagnostic.message)}"


def _block(diagnostic: Diagnostic, sources: Mapping[str, Source], pen: _Pen) -> str:
    source = sources.get(diagnostic.filename)
    place = pen(_place(diagnostic.filename, diagnostic.start, sources), bold=True)
    level = pen(
        f"{diagnostic.severity.value}[{diagnostic.code}]",
        fg=_COLORS[diagnostic.severity],
        bold=True,
    )
    header = f"{place}: {level} {diagnostic.name}: {pen(printable(diagnostic.message), bold=True)}"
    frame = _frame(diagnostic, source, pen) if source else []
    margin = max((len(label) for label, _ in frame), default=1)
    lines = [f"{pen.gutter(f'{label:>{margin}} |')} {body}".rstrip() for label, body in frame]
    edge = pen.gutter(" " * margin + " =")
    notes = [f"{edge} {note}" for note in _notes(diagnostic, sources, pen)]
    return "\n".join([header, *lines, *notes])


def _notes(diagnostic: Diagnostic, sources: Mapping[str, Source], pen: _Pen) -> list[str]:
    notes = []
    if not diagnostic.code.startswith("MP0"):  # the engine's own diagnostics are no judgement
        notes.append(f"{pen('confidence', bold=True)}: {diagnostic.confidence.value}")
    if diagnostic.assumptions:
        notes.append(f"{pen('assumed', bold=True)}: {'; '.join(diagnostic.assumptions)}")
    notes += [_evidence(link, diagnostic.filename, sources, pen) for link in diagnostic.evidence]
    if diagnostic.fix:
        notes.append(_fix(diagnostic.fix, pen))
    return notes


def _evidence(link: Evidence, filename: str, sources: Mapping[str, Source], pen: _Pen) -> str:
    note = f"{pen('note', bold=True)}: {printable(link.message)}"
    if link.start:
        return f"{note} ({_place(link.filename or filename, link.start, sources)})"
    return f"{note} ({printable(link.filename)})" if link.filename else note


def _fix(fix: Fix, pen: _Pen) -> str:
    label, option = {
        Applicability.SAFE: ("safe", "; --fix"),
        Applicability.UNSAFE: ("unsafe", "; --unsafe-fixes"),
        Applicability.DISPLAY: ("by hand", ""),
    }[fix.applicability]
    reason = f": {printable(fix.reason)}" if fix.reason else ""
    title = pen("fix", fg="green", bold=True)
    return f"{title}: {printable(fix.title)} ({label}{reason}{option})"


def _place(filename: str, position: Position, sources: Mapping[str, Source]) -> str:
    cell, inner = files.spot(filename, position, sources)
    return f"{printable(filename)}{cell}:{inner.row}:{inner.column}"


@dataclass(frozen=True)
class _Line:
    """A source line as the screen shows it, cut to ``WIDTH`` characters around a column."""

    shown: str
    columns: list[int]
    """Screen column where each character starts; the last is the end of the line."""
    first: int
    """Index of the first character kept, less the length of the mark that stands for the rest."""

    def screen(self, column: int) -> int:
        """Screen column (from 0) of a column of the file (from 1), or the nearest one shown."""
        return self.columns[min(max(column - 1 - self.first, 0), len(self.columns) - 1)]


def _line_at(source: Source, row: int, column: int) -> _Line:
    start = source.lines[row - 1]
    end = source.lines[row] if row < len(source.lines) else len(source.text)
    text = source.shown[start:end].rstrip("\r\n")
    first = 0
    if len(text) > WIDTH:
        first = max(0, min(column - 1 - WIDTH // 3, len(text) - WIDTH))
        before = _CUT if first else ""
        after = _CUT if first + WIDTH < len(text) else ""
        text = f"{before}{text[first : first + WIDTH]}{after}"
        first -= len(before)
    shown: list[str] = []
    columns = [0]
    for character in text:
        width = 2 if unicodedata.east_asian_width(character) in "WF" else 1
        if character == "\t":
            width = TAB - columns[-1] % TAB
            character = " " * width
        elif unicodedata.combining(character):
            width = 0
        shown.append(printable(character))
        columns.append(columns[-1] + width)
    return _Line("".join(shown), columns, first)


def _frame(diagnostic: Diagnostic, source: Source, pen: _Pen) -> list[tuple[str, str]]:
    """Line number (or nothing) and body of each line shown; [] if the file has no such rows."""
    start, end = diagnostic.start, max(diagnostic.end, diagnostic.start)
    last = len(source.lines) - (source.lines[-1] == len(source.text))
    if not 1 <= start.row <= end.row <= max(last, 1):
        return []

    def mark(text: str) -> str:
        return pen(text, fg=_COLORS[diagnostic.severity], bold=True)

    def view(row: int, column: int = 1, prefix: str = "") -> tuple[str, str]:
        return str(row - above), f"{prefix}{_line_at(source, row, column).shown}"

    def near(rows: range) -> list[tuple[str, str]]:
        return [view(row, start.column, "" if start.row == end.row else "  ") for row in rows]

    first, final = (_line_at(source, at.row, at.column) for at in (start, end))
    above, below = _outside(source, start, last)
    left, right = first.screen(start.column), final.screen(end.column)
    frame = [("", ""), *near(range(max(above + 1, start.row - CONTEXT), start.row + 1))]
    if start.row == end.row:
        right = first.screen(end.column)  # both ends in one line, cut around the start
        frame.append(("", mark(" " * left + "^" * max(1, right - left))))
    else:
        frame.append(("", mark(f" {'_' * (left + 1)}^")))
        bar = f"{mark('|')} "
        between = range(start.row + 1, end.row)
        if len(between) > BETWEEN:
            frame += [view(row, prefix=bar) for row in between[: BETWEEN - 2]]
            frame.append((_CUT, bar))
            frame += [view(row, prefix=bar) for row in between[-1:]]
        else:
            frame += [view(row, prefix=bar) for row in between]
        frame += [view(end.row, end.column, bar), ("", mark(f"|{'_' * max(1, right)}^"))]
    return frame + near(range(end.row + 1, min(end.row + CONTEXT, below) + 1))


def _outside(source: Source, start: Position, last: int) -> tuple[int, int]:
    """The row before the first and the last row of a notebook's cell, or of the file."""
    cell = source.notebook and source.notebook.cell(source.index(start))
    if not cell:
        return 0, last
    return source.position(cell.start).row - 1, source.position(cell.end).row
