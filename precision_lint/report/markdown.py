"""A summary in Markdown, made for ``$GITHUB_STEP_SUMMARY`` and for comments on merge requests."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from precision_lint.api import Diagnostic
from precision_lint.display import printable
from precision_lint.report import files
from precision_lint.source import Source

MOST = 200
"""Findings listed; GitHub refuses summaries of more than 1 MiB."""
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|~$&])")


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """Counts of each rule, and a table of findings with their evidence folded below it."""
    if not diagnostics:
        return "## precision-lint\n\nNo findings."
    base = files.top("GITHUB_WORKSPACE")
    counts = Counter((d.code, d.name, d.severity.value) for d in diagnostics)
    parts = [
        "## precision-lint",
        _table(
            ("Rule", "Severity", "Findings"),
            [(f"{code} {name}", severity, f"{n:,}") for (code, name, severity), n in
             sorted(counts.items(), key=lambda item: (-item[1], item[0]))],
        ),
        _table(
            ("Place", "Rule", "Finding", "Fix"),
            [_row(d, base, sources) for d in diagnostics[:MOST]],
        ),
    ]  # fmt: skip
    if len(diagnostics) > MOST:
        parts.append(f"{len(diagnostics) - MOST:,} more are not listed.")
    parts.append("<details><summary>Why</summary>")
    parts += [_why(d, base, sources) for d in diagnostics[:MOST]]
    return "\n\n".join([*parts, "</details>"])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def _row(diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]) -> tuple[str, ...]:
    sure = "" if diagnostic.code.startswith("MP0") else f" ({diagnostic.confidence.value})"
    fix = _escaped(files.promise(diagnostic.fix)) if diagnostic.fix else ""
    rule = f"{diagnostic.code}{sure}"
    return _place(diagnostic, base, sources), rule, _escaped(diagnostic.message), fix


def _why(diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]) -> str:
    lines = [f"- {_escaped(note)}" for note in files.notes(diagnostic, base, sources)]
    place = _place(diagnostic, base, sources)
    return "\n".join([f"{place}: {_escaped(diagnostic.message)}\n", *lines])


def _place(diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]) -> str:
    """The file and row, with a link to the commit where GitHub says which it is."""
    path = files.relative(diagnostic.filename, base)
    cell, inner = files.spot(diagnostic.filename, diagnostic.start, sources)
    parts = [os.environ.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "SHA")]
    text = _escaped(f"{path}{cell}:{inner.row}")
    if not all(parts):
        return text
    server, repository, commit = parts
    row = files.span(diagnostic, sources)[0].row
    page = f"{server}/{repository}/blob/{commit}/{quote(os.fsencode(path))}"
    return f"[{text}]({page}{'?plain=1' if cell else ''}#L{row})"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(r"\\\1", printable(" ".join(text.split())))
