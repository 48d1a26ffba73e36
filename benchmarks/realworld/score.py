"""Findings against labels: which places a linter flags, and how often it speaks in all."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.realworld.cases import CONTEXTS, KINDS, Entry
from benchmarks.realworld.linters import DEFAULT, Finding
from benchmarks.realworld.trees import Tree

NEAR = 2
"""Lines by which a finding may miss the labelled range."""

FLAGS = ("covered", "default", "possible", "near")
"""What a verdict says of a place."""

Fitting = Mapping[str, frozenset[str]]
"""By category the codes and names of the rules that fit it."""


@dataclass(frozen=True)
class Verdict:
    """What a linter says of one place.

    ``covered``: it has a rule that fits the category.  ``default`` and ``possible``: such a rule
    flags the place, at the confidence that is shown by default or at any.  ``near``: any rule does.
    """

    id: str
    kind: str
    set: str
    repo: str
    fix_commit: str | None
    category: str
    context: str | None
    covered: bool
    default: bool
    possible: bool
    near: bool
    rules: tuple[str, ...]


@dataclass(frozen=True)
class Alarms:
    """How often a linter speaks in a tree: ``fitting`` counts rules that fit any category."""

    repo: str
    commit: str
    lines: int
    default: int
    possible: int
    fitting: int


def judged(
    entry: Entry, findings: Iterable[Finding], tree: Tree, fitting: Fitting
) -> Verdict | None:
    """The verdict on an entry by the findings in its tree; None if its lines are not known."""
    if entry.lines is None:
        return None
    first, last = entry.lines
    here = [
        one
        for one in findings
        if first - NEAR <= one.row <= last + NEAR and relative(one.file, tree) == entry.file
    ]
    fits = [one for one in here if {one.code, one.name} & fitting[entry.category]]
    return Verdict(
        entry.id,
        entry.kind,
        entry.set,
        entry.repo,
        entry.fix_commit,
        entry.category,
        entry.context,
        bool(fitting[entry.category]),
        any(one.confidence in DEFAULT for one in fits),
        bool(fits),
        bool(here),
        tuple(sorted({one.code or one.name for one in here})),
    )


def relative(file: str, tree: Tree) -> str:
    """A file as a linter names it, relative to the tree."""
    path = Path(tree.path, file)
    return (path.relative_to(tree.path) if tree.path in path.parents else path).as_posix()


def alarms(findings: Sequence[Finding], tree: Tree, fitting: Fitting, lines: int) -> Alarms:
    """Every finding in a tree of which ``lines`` lines of Python were linted."""
    rules = frozenset[str]().union(*fitting.values())
    shown = [one for one in findings if one.confidence in DEFAULT]
    return Alarms(
        tree.repo,
        tree.commit,
        lines,
        len(shown),
        len(findings),
        sum(bool({one.code, one.name} & rules) for one in shown),
    )


def summary(verdicts: Sequence[Verdict], heads: Sequence[Alarms]) -> dict[str, Any]:
    """All figures; ``heads`` are the alarms in the newest tree of each repository."""
    kinds = {kind: [one for one in verdicts if one.kind == kind] for kind in KINDS}
    cases = kinds["case"]
    return {
        "cases": _twice(cases),
        "contexts": {
            context: _twice(one for one in cases if one.context == context) for context in CONTEXTS
        },
        "categories": _by_category(cases),
        "fixes": _twice(_fixes(cases)),
        "negatives": _counted(kinds["negative"]),
        "negative_categories": _by_category(kinds["negative"]),
        "residuals": _twice(kinds["residual"]),
        "alarms": {
            key: sum(getattr(one, key) for one in heads)
            for key in ("lines", "default", "possible", "fitting")
        },
    }


def _counted(rows: Iterable[Verdict]) -> dict[str, int]:
    rows = list(rows)
    flags = {key: sum(getattr(one, key) for one in rows) for key in ("default", "possible", "near")}
    return {"n": len(rows), **flags}


def _twice(rows: Iterable[Verdict]) -> dict[str, dict[str, int]]:
    """Counts of all rows, and of those whose category the linter has a rule for."""
    rows = list(rows)
    return {"all": _counted(rows), "covered": _counted(one for one in rows if one.covered)}


def _by_category(rows: Sequence[Verdict]) -> dict[str, dict[str, int | bool]]:
    return {
        category: {**_counted(of), "covered": of[0].covered}
        for category in sorted({one.category for one in rows})
        for of in [[one for one in rows if one.category == category]]
    }


def _fixes(cases: Iterable[Verdict]) -> Iterator[Verdict]:
    """One verdict for the cases of one commit, which is flagged where any of them is."""
    commits: dict[tuple[str, str | None], Verdict] = {}
    for one in cases:
        key = (one.repo, one.fix_commit)
        if known := commits.get(key):
            either = {flag: getattr(known, flag) or getattr(one, flag) for flag in FLAGS}
            commits[key] = replace(known, **either)
        else:
            commits[key] = one
    yield from commits.values()


def report(figures: Mapping[str, Any], sets: Mapping[str, Mapping[str, Any]]) -> str:
    """The figures of ``summary`` as text, and the main ones of each of several sets."""
    rows = ["case", *(f"  {name}" for name in figures["contexts"]), "fix", "standing hazard"]
    counts = [
        figures["cases"], *figures["contexts"].values(), figures["fixes"], figures["residuals"]
    ]  # fmt: skip
    lines = [f"{'flagged by a fitting rule':42} {'default':>12} {'possible':>12} {'any rule':>12}"]
    for title, count in zip(rows, counts, strict=True):
        lines += [_line(title, count["all"]), _line("    where a rule exists", count["covered"])]
    lines += [_line("negative (false alarms)", figures["negatives"]), ""]
    for name, of in sets.items() if len(sets) > 1 else ():
        lines.append(_line(f"{name} set, case", of["cases"]["all"]))
        lines += [_line(f"  {context}", count["all"]) for context, count in of["contexts"].items()]
        lines += [_line("  negative (false alarms)", of["negatives"]), ""]
    for kind, title in (("categories", "cases"), ("negative_categories", "negatives")):
        for category, count in figures[kind].items():
            name = category if count["covered"] else f"({category})"
            lines.append(_line(f"{title[:-1]} {name}", count))
    alarms = figures["alarms"]
    if alarms["lines"]:
        rates = {key: 1000 * alarms[key] / alarms["lines"] for key in alarms}
        lines += [
            "",
            f"{alarms['lines']:,} lines in the newest tree of each repository; alarms per 1,000: "
            f"{rates['default']:.2f} by default, {rates['fitting']:.2f} of them by rules that fit "
            f"a category, {rates['possible']:.2f} at any confidence",
        ]
    return "\n".join(lines)


def _line(title: str, count: Mapping[str, int]) -> str:
    cells = (f"{count[key]} / {count['n']}" for key in ("default", "possible", "near"))
    return f"{title:42} " + " ".join(f"{cell:>12}" for cell in cells)
