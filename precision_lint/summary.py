"""What a run came to, in a few lines or as counts of each code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from precision_lint.api import Applicability, Diagnostic
from precision_lint.jobs import Mode
from precision_lint.runner import Result


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}" if count == 1 or word == "info" else f"{count:,} {word}s"


def _tally(diagnostics: Iterable[Diagnostic]) -> str:
    counts = Counter(diagnostic.severity.value for diagnostic in diagnostics)
    words = ("error", "warning", "info")
    return ", ".join(_plural(counts[word], word) for word in words if counts[word])


def summary(result: Result, mode: Mode, statistics: bool = False) -> list[str]:
    """What to say after the findings; ``statistics`` adds sizes and time."""
    lines = []
    found = [*result.diagnostics, *result.fixed]
    fixes = Counter(d.fix.applicability for d in result.diagnostics if d.fix)
    safe, unsafe = fixes[Applicability.SAFE], fixes[Applicability.UNSAFE]
    if mode is Mode.DIFF:
        count = _tally(result.fixed)
        lines.append(f"Would fix {count}." if count else "Would fix nothing.")
    elif found:
        notes = ""
        if result.fixed:
            notes = f" ({len(result.fixed):,} fixed, {len(result.diagnostics):,} remaining)"
        elif safe and unsafe:
            notes = f" ({safe:,} fixable with `--fix`, {unsafe:,} more with `--unsafe-fixes`)"
        elif safe:
            notes = f" ({safe:,} fixable with `--fix`)"
        elif unsafe:
            notes = f" ({unsafe:,} fixable with `--fix --unsafe-fixes`)"
        lines.append(f"Found {_tally(found)}{notes}.")
    elif result.files and not result.errors:
        lines.append("All checks passed!")
    if result.hidden:
        hidden = _plural(result.hidden, "possible finding")
        them = "it" if result.hidden == 1 else "them"
        lines.append(f"{hidden} not shown; `--confidence possible` shows {them}.")
    held = sum(silent.baseline for silent in result.silenced)
    if held:
        them = "it is" if held == 1 else "they are"
        lines.append(f"{_plural(held, 'finding')} not shown; {them} not new.")
    gone = sum(sum(counts.values()) for counts in result.gone.values())
    if gone:
        lines.append(
            f"{_plural(gone, 'finding')} of the baseline {'is' if gone == 1 else 'are'} gone; "
            f"`precision-lint baseline prune` removes {'it' if gone == 1 else 'them'}."
        )
    if statistics:
        files, rows = _plural(result.files, "file"), _plural(result.lines, "line")
        lines.append(f"Linted {files}, {rows} in {result.seconds:.2f} s.")
    return lines


def table(diagnostics: Sequence[Diagnostic], human: bool) -> str:
    """Counts of each code, the most frequent first, as a table or as JSON."""
    counts = Counter((d.code, d.name) for d in diagnostics)
    fixable = Counter(
        d.code for d in diagnostics if d.fix and d.fix.applicability is Applicability.SAFE
    )
    ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    if not human:
        rows = [
            {"code": code, "name": name, "count": count, "fixable_count": fixable[code]}
            for (code, name), count in ranked
        ]
        return json.dumps(rows, indent=2)
    width = max((len(f"{count:,}") for count in counts.values()), default=0)
    return "\n".join(
        f"{count:>{width},}  {code}  {'[*]' if fixable[code] else '[ ]'}  {name}"
        for (code, name), count in ranked
    )
