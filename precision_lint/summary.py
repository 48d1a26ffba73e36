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
        lines.append("No findings." if _lost(result) else "All checks passed!")
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
    lines += _cut(result, statistics)
    if statistics:
        files, rows = _plural(result.files, "file"), _plural(result.lines, "line")
        lines.append(f"Linted {files}, {rows} in {result.seconds:.2f} s.")
    return lines


LOST = {
    "steps": "it takes more steps than the analysis follows",
    "typestate": "it has more paths of GradScaler's protocol than the analysis follows",
}
"""Bounds behind which findings of a function are missing, and why."""
COARSE = {
    "contexts": ("call", "not followed again, so less is known of the result"),
    "constructors": ("construction", "not followed again, so less is known of the object"),
    "importers": ("file", "not looked at that import these; name their directory instead"),
}
"""Bounds behind which less is known: what was left out, and what comes of it."""


def _lost(result: Result) -> dict[str, str]:
    """Functions that were not analysed to the end, and why."""
    return {
        f"{name}: {function or 'top level'}": LOST[what]
        for name, cuts in sorted(result.cut.items())
        for what, function, _ in cuts
        if what in LOST
    }


def _cut(result: Result, statistics: bool) -> list[str]:
    """What bounds of the analysis cut off; ``statistics``: which functions, and values as well."""
    lost, lines = _lost(result), []
    if lost:
        shown = f" ({next(iter(lost))})" if len(lost) == 1 else ""
        what = f"{_plural(len(lost), 'function')}{shown} {'is' if len(lost) == 1 else 'are'}"
        more = "" if len(lost) == 1 or statistics else "; `--statistics` names them"
        lines.append(f"{what} not analysed to the end, so findings may be missing{more}.")
    if statistics:
        lines += [f"  {place}: {why}" for place, why in lost.items()]
        times = Counter[str]()
        for cuts in result.cut.values():
            times.update({what: n for what, _, n in cuts if what in COARSE})
        lines += [
            f"{_plural(times[what], noun)} {rest}."
            for what, (noun, rest) in COARSE.items()
            if times[what]
        ]
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
