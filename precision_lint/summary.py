"""What a run came to, in a few lines or as counts of each code."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from precision_lint.api import Applicability, Confidence, Diagnostic
from precision_lint.jobs import Mode
from precision_lint.precision.modes import MODES
from precision_lint.runner import Result


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'s' * (count != 1)}"


def _tally(diagnostics: Iterable[Diagnostic]) -> str:
    counts = Counter(diagnostic.severity.value for diagnostic in diagnostics)
    words = {"error": "error", "warning": "warning", "info": "info finding"}
    return ", ".join(_plural(counts[one], word) for one, word in words.items() if counts[one])


def summary(
    result: Result,
    mode: Mode,
    statistics: bool = False,
    modes: bool = False,
    marked: bool = False,
) -> list[str]:
    """What to say after the findings.

    statistics: adds sizes and time.  modes: adds the precision modes that were gone by.  marked:
    whether findings were shown with the mark ``[*]``.
    """
    lines = []
    found = [*result.diagnostics, *result.fixed]
    if mode is Mode.DIFF:
        count = _tally(result.fixed)
        lines.append(f"Would fix {count}." if count else "Would fix nothing.")
    elif found:
        lines.append(f"Found {_tally(found)}{_fixes(result, marked)}.")
    elif result.files and not result.errors:
        lines.append(_nothing(result))
    if modes and mode is Mode.CHECK:
        lines += _modes(result)
    lines += _hidden(result)
    lines += _put_off(result)
    lines += _cut(result, statistics)
    if statistics:
        files, rows = _plural(result.files, "file"), _plural(result.lines, "line")
        lines.append(f"Linted {files}, {rows} in {result.seconds:.2f} s.")
    return lines


def _fixes(result: Result, marked: bool) -> str:
    """What was fixed, or could be."""
    if result.fixed:
        return f" ({len(result.fixed):,} fixed, {len(result.diagnostics):,} remaining)"
    fixes = Counter(d.fix.applicability for d in result.diagnostics if d.fix)
    safe, unsafe = fixes[Applicability.SAFE], fixes[Applicability.UNSAFE]
    legend = "[*] " if marked else ""
    if safe and unsafe:
        return f" ({legend}{safe:,} fixable with `--fix`, {unsafe:,} more with `--unsafe-fixes`)"
    if safe:
        return f" ({legend}{safe:,} fixable with `--fix`)"
    return f" ({unsafe:,} fixable with `--fix --unsafe-fixes`)" if unsafe else ""


def _hidden(result: Result) -> list[str]:
    """How many findings the threshold hides, how sure those are, and what shows them."""
    counts = [(one.value, n) for one in reversed(Confidence) if (n := result.hidden.get(one.value))]
    if not counts:
        return []
    total, (least, _) = sum(n for _, n in counts), counts[-1]
    said = " and ".join(f"{n:,} {level}" for level, n in counts)
    noun, them = ("finding", "it") if total == 1 else ("findings", "them")
    return [f"{said} {noun} not shown; `--confidence {least}` shows {them}."]


def _nothing(result: Result) -> str:
    """What to say where nothing was found."""
    if not result.torch:
        them = "The file does" if result.files == 1 else f"None of the {result.files:,} files"
        rest = " not use torch" if result.files == 1 else " uses torch"
        return f"{them}{rest}, so there is nothing to check: name the code that does."
    return "No findings." if _lost(result) or result.warnings else "All checks passed!"


def _put_off(result: Result) -> list[str]:
    """What a baseline holds, and what it needs to hold no more."""
    lines = []
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
    return lines


MODES_SHOWN = 3
"""Modes that the summary names; of more it gives the number."""


def _modes(result: Result) -> list[str]:
    """The modes that were gone by, where they come from, and which other one would show most."""
    said = [f"{mode} (stated {_where(where)})" for mode, where in result.stated.items()]
    for mode, (place, flag) in result.modes.items():
        said.append(f"{mode} ({place}{', depends on an option' if flag else ''})")
    known = ", ".join(said[:MODES_SHOWN]) or "none shown by the code"
    if len(said) > MODES_SHOWN:
        known += f" and {len(said) - MODES_SHOWN} more"
    further = ""
    if result.more and not result.stated:
        mode = max(result.more, key=lambda name: result.more[name])
        how = " everywhere" if mode in result.modes else " as well" if result.modes else ""
        # to state a mode is to state them all: those in force must stay, and then hold everywhere
        all_of = [name for name in MODES if name == mode or name in result.modes]
        least = "at least " if any(name in result.more for name in all_of if name != mode) else ""
        count = f"{least}{result.more[mode]:,} more"
        further = f"; {count} if {mode} were run{how}: --precision {','.join(all_of)}"
    return [f"modes: {known}{further}"] if said or further else []


def _where(where: str) -> str:
    return f"by {where}" if where.startswith("--") else f"in {where}"


LOST = {
    "steps": "it takes more steps than the analysis follows",
    "typestate": "it has more paths of GradScaler's protocol than the analysis follows",
}
"""Bounds behind which findings of a function are missing, and why."""
COARSE = {
    "contexts": ("call", "not followed again, so less is known of the result"),
    "constructors": ("construction", "not followed again, so less is known of the object"),
    "importers": (
        "file",
        "not looked at that import these or may run them; name their directory instead",
    ),
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
    """Counts of each code: as a table by mode, the dearest first, or as JSON, the most frequent first."""
    if not human:
        return _json(diagnostics)
    groups: dict[tuple[str, ...], list[Diagnostic]] = {}
    for one in diagnostics:
        groups.setdefault(one.modes, []).append(one)
    width = max((len(f"{n:,}") for n in Counter(d.code for d in diagnostics).values()), default=0)
    parts = []
    for modes in sorted(groups, key=_order):
        head = [f"{_named(modes)}:"] if modes else []
        parts += [*head, *_counts(groups[modes], width)]
    return "\n".join(parts)


def _order(modes: tuple[str, ...]) -> tuple[bool, int, tuple[int, ...]]:
    """What is no matter of modes comes first, then what is so as it is written."""
    known = ["code", *MODES]
    return modes != (), len(modes), tuple(known.index(mode) for mode in modes)


def _named(modes: tuple[str, ...]) -> str:
    return ", ".join("as written" if mode == "code" else mode for mode in modes)


def _counts(diagnostics: Sequence[Diagnostic], width: int) -> list[str]:
    counts = Counter((d.code, d.name) for d in diagnostics)
    fixable = _fixable(diagnostics)
    from precision_lint import catalogue  # imported late: a run without findings has no use for it

    ranked = sorted(counts, key=lambda one: (catalogue.cost(one[0]), -counts[one], one))
    return [
        f"{counts[code, name]:>{width},}  {code}  {'[*]' if fixable[code] else '[ ]'}  {name}"
        for code, name in ranked
    ]


def _fixable(diagnostics: Sequence[Diagnostic]) -> Counter[str]:
    return Counter(
        d.code for d in diagnostics if d.fix and d.fix.applicability is Applicability.SAFE
    )


def _json(diagnostics: Sequence[Diagnostic]) -> str:
    counts = Counter((d.code, d.name) for d in diagnostics)
    modes = {code: Counter(_named(d.modes) for d in diagnostics if d.code == code and d.modes)
             for code, _ in counts}  # fmt: skip
    fixable = _fixable(diagnostics)
    rows = [
        {
            "code": code,
            "name": name,
            "count": count,
            "fixable_count": fixable[code],
            "modes": modes[code],
        }
        for (code, name), count in sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    ]
    return json.dumps(rows, indent=2)
