"""Places, diagnostics and edits as the protocol has them."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from pathlib import Path

from lsprotocol import types
from pygls.uris import from_fs_path

from precision_lint import catalogue, registry, source
from precision_lint.api import Diagnostic, Edit, Evidence, Position, Severity
from precision_lint.source import Source
from precision_lint.suppress import UNUSED

Encoding = types.PositionEncodingKind | str
NAME = "precision-lint"
_UNITS = {"utf-8": ("utf-8", 1), "utf-16": ("utf-16-le", 2), "utf-32": ("utf-32-le", 4)}
"""By the name of a position encoding: how a line is written in it, and bytes of a unit."""
_SEVERITIES = {
    Severity.ERROR: types.DiagnosticSeverity.Error,
    Severity.WARNING: types.DiagnosticSeverity.Warning,
    Severity.INFO: types.DiagnosticSeverity.Information,
}


def _codec(encoding: Encoding) -> tuple[str, int]:
    name = encoding.value if isinstance(encoding, types.PositionEncodingKind) else encoding
    return _UNITS[name]


def position(text: Source, at: Position, encoding: Encoding) -> types.Position:
    """A place in a text, counted as the client does; the end of the text for one behind it."""
    if at.row > len(text.lines):
        at = text.position(len(text.text))
    start = text.lines[at.row - 1]
    codec, size = _codec(encoding)
    head = text.text[start : start + at.column - 1]
    return types.Position(at.row - 1, len(head.encode(codec, "surrogatepass")) // size)


def place(text: Source, at: types.Position, encoding: Encoding) -> Position:
    """The reverse of ``position``; a place behind the end of a line is its end."""
    row = min(at.line, len(text.lines) - 1)
    start = text.lines[row]
    end = text.lines[row + 1] if row + 1 < len(text.lines) else len(text.text)
    line = text.text[start:end].rstrip("\r\n")
    codec, size = _codec(encoding)
    head = line.encode(codec, "surrogatepass")[: at.character * size].decode(codec, "ignore")
    return Position(row + 1, len(head) + 1)


def span(text: Source, start: Position, end: Position, encoding: Encoding) -> types.Range:
    return types.Range(position(text, start, encoding), position(text, end, encoding))


def uri(path: str | Path) -> str:
    """The address of a file; a relative one lies below the working directory."""
    return from_fs_path(str(Path.cwd() / path)) or ""


def diagnostic(
    found: Diagnostic, text: Source, encoding: Encoding, related: bool
) -> types.Diagnostic:
    """A diagnostic; ``related``: with its evidence, which the client can show."""
    address = found.url or catalogue.page(found.code) or _home(found.code)
    read = functools.cache(_read)
    assumed = [Evidence(f"assumed: {text}") for text in found.assumptions]
    links = [_related(link, found, text, encoding, read) for link in (*found.evidence, *assumed)]
    return types.Diagnostic(
        range=span(text, found.start, found.end, encoding),
        message=found.message,
        severity=_SEVERITIES[found.severity],
        code=found.code,
        code_description=types.CodeDescription(address) if address else None,
        source=NAME,
        tags=[types.DiagnosticTag.Unnecessary] if found.code == UNUSED else None,
        related_information=links if related and links else None,
        data={"name": found.name, "confidence": found.confidence.value},
    )


def _related(
    link: Evidence,
    found: Diagnostic,
    text: Source,
    encoding: Encoding,
    read: Callable[[str], Source | None],
) -> types.DiagnosticRelatedInformation:
    """A link of the evidence; a fact without a place is one about the finding's own."""
    name, start, end = link.filename or found.filename, link.start, link.end
    if not (link.start or link.filename):
        start, end = found.start, found.end
    start = start or Position(1, 1)
    home = text if name == found.filename else read(name)
    if home is None:
        where = types.Range(types.Position(start.row - 1, 0), types.Position(start.row - 1, 0))
    else:
        if home.notebook:
            start, end = home.physical(start), end and home.physical(end)
        where = span(home.file, start, max(end or start, start), encoding)
    return types.DiagnosticRelatedInformation(types.Location(uri(name), where), link.message)


def _read(name: str) -> Source | None:
    found = source.read(Path.cwd() / name, name)
    return found if isinstance(found, Source) else None


@functools.cache
def _home(code: str) -> str | None:
    """The module of a rule, whose docstring is its documentation."""
    rule = registry.rules().get(code)
    file = inspect.getsourcefile(rule) if rule else None
    return from_fs_path(file) if file else None


def edits(text: Source, changes: Iterable[Edit], encoding: Encoding) -> list[types.TextEdit]:
    return [
        types.TextEdit(
            span(text, text.position(edit.start), text.position(edit.end), encoding), edit.text
        )
        for edit in sorted(changes)
    ]


def differences(before: Source, after: str, encoding: Encoding) -> list[types.TextEdit]:
    """Edits of lines that make one text of another."""
    old = [before.text[a:b] for a, b in zip(before.lines, [*before.lines[1:], None], strict=True)]
    new = Source("", after)
    lines = [after[a:b] for a, b in zip(new.lines, [*new.lines[1:], None], strict=True)]
    changes = []
    for tag, a, b, c, d in difflib.SequenceMatcher(None, old, lines).get_opcodes():
        if tag != "equal":
            starts = [*before.lines, len(before.text)]
            changes.append(Edit(starts[a], starts[b], "".join(lines[c:d])))
    return edits(before, changes, encoding)
