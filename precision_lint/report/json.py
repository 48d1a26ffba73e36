"""Objects in the shape of ruff's JSON output, plus confidence and evidence."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from precision_lint.api import Diagnostic, Position
from precision_lint.source import Source


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """A list in ASCII, in the order given; ``[]`` for no diagnostics."""
    return json.dumps([_object(d, sources.get(d.filename)) for d in diagnostics], indent=2)


def lines(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """An object a line, so that a reader need not wait for the end."""
    return "\n".join(json.dumps(_object(d, sources.get(d.filename))) for d in diagnostics)


def _object(diagnostic: Diagnostic, source: Source | None) -> dict[str, Any]:
    return {
        "code": diagnostic.code,
        "name": diagnostic.name,
        "message": diagnostic.message,
        "filename": diagnostic.filename,
        "location": _location(diagnostic.start),
        "end_location": _location(diagnostic.end),
        "severity": diagnostic.severity.value,
        "confidence": diagnostic.confidence.value,
        "evidence": [
            {
                "message": link.message,
                "filename": link.filename or diagnostic.filename,
                "location": _location(link.start),
                "end_location": _location(link.end),
            }
            for link in diagnostic.evidence
        ],
        "fix": _fix(diagnostic, source),
        "url": diagnostic.url,
    }


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
                "location": _location(source.position(edit.start)),
                "end_location": _location(source.position(edit.end)),
            }
            for edit in sorted(fix.edits)
        ],
    }


def _location(position: Position | None) -> dict[str, int] | None:
    if position is None:
        return None
    return {"row": position.row, "column": position.column}
