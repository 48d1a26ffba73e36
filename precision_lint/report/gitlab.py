"""GitLab's code quality report, in the part of CodeClimate's format that GitLab reads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from precision_lint import fingerprint
from precision_lint.api import Diagnostic, Position, Severity
from precision_lint.report import files
from precision_lint.source import Source

_SEVERITIES = {Severity.ERROR: "major", Severity.WARNING: "minor", Severity.INFO: "info"}


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """A list of issues; paths are relative to ``CI_PROJECT_DIR``, as GitLab demands.

    Fingerprints do not depend on rows, so that code which moves is no new issue.
    """
    base = files.top("CI_PROJECT_DIR")
    keys = (fingerprint.of(d, sources) for d in diagnostics)
    issues = [_issue(d, key, base, sources) for d, key in fingerprint.numbered(diagnostics, keys)]
    return json.dumps(issues, indent=2)


def _issue(
    diagnostic: Diagnostic, key: str, base: Path, sources: Mapping[str, Source]
) -> dict[str, object]:
    start, end = files.span(diagnostic, sources)
    path = files.relative(diagnostic.filename, base)
    unique = hashlib.sha256(f"{path}\0{key}".encode("utf8", "surrogatepass")).hexdigest()
    said = [f"{diagnostic.code} {diagnostic.name}: {diagnostic.message}"]
    return {
        "description": "; ".join([*said, *files.notes(diagnostic, base, sources)]),
        "check_name": diagnostic.code,
        "fingerprint": unique,
        "severity": _SEVERITIES[diagnostic.severity],
        "location": {
            "path": path,
            "positions": {"begin": _at(start), "end": _at(end)},
        },
    }


def _at(position: Position) -> dict[str, int]:
    return {"line": position.row, "column": position.column}
