"""Objects in the shape of ruff's JSON output, plus confidence and evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from precision_lint import catalogue
from precision_lint.api import Diagnostic, Evidence, Position
from precision_lint.source import Source


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """A list in ASCII, in the order given; ``[]`` for no diagnostics."""
    return json.dumps([_object(d, sources) for d in diagnostics], indent=2)


def lines(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """An object a line, so that a reader need not wait for the end."""
    return "\n".join(json.dumps(_object(d, sources)) for d in diagnostics)


def _object(diagnostic: Diagnostic, sources: Mapping[str, Source]) -> dict[str, Any]:
    source = sources.get(diagnostic.filename)
    return {
        "cell": None,
        **_place(diagnostic.start, diagnostic.end, source),
        "code": diagnostic.code,
        "name": diagnostic.name,
        "message": diagnostic.message,
        "filename": diagnostic.filename,
        "severity": diagnostic.severity.value,
        "confidence": diagnostic.confidence.value,
        "modes": list(diagnostic.modes),
        "assumptions": list(diagnostic.assumptions),
        "evidence": [_link(link, diagnostic, sources) for link in diagnostic.evidence],
        "fix": _fix(diagnostic, source),
        "url": diagnostic.url or catalogue.page(diagnostic.code),
    }


def _link(link: Evidence, diagnostic: Diagnostic, sources: Mapping[str, Source]) -> dict[str, Any]:
    filename = link.filename or diagnostic.filename
    place = _place(link.start, link.end, sources.get(filename))
    return {"message": link.message, "filename": filename, **place}


def _fix(diagnostic: Diagnostic, source: Source | None) -> dict[str, Any] | None:
    """None too where the source vanished: an edit without its place helps nobody."""
    fix = diagnostic.fix
    if fix is None or source is None:
        return None
    return {
        "applicability": fix.applicability.value,
        "message": fix.title,
        "reason": fix.reason,
        "edits": [
            {
                "content": edit.text,
                **_place(source.position(edit.start), source.position(edit.end), source),
            }
            for edit in sorted(fix.edits)
        ],
    }


def _place(start: Position | None, end: Position | None, source: Source | None) -> dict[str, Any]:
    """Where something is; in a notebook, the number of the cell and places in it."""
    place: dict[str, Any] = {}
    if source is not None and source.notebook and start:
        place["cell"], start = source.in_cell(start)
        end = source.in_cell(end)[1] if end else None
    return place | {"location": _location(start), "end_location": _location(end)}


def _location(position: Position | None) -> dict[str, int] | None:
    if position is None:
        return None
    return {"row": position.row, "column": position.column}
