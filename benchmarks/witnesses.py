"""Share of findings that ``precision-lint verify PATHS`` proves by itself.

On the fixtures as if they were users' code: each module is copied into a directory of its own,
without its proof, so that the inputs that the proofs know are hidden.  Rules whose proofs execute
training loops only have no expression to execute, and are told apart; so are findings of any
rule in what only acts in a later call: an optimizer, a scaler, a function of autograd's.

    python -m benchmarks.witnesses [--select MP301,MP501] [--jobs 2] [--least 0.8]

On the bugs of ``benchmarks.realworld``: the findings of any confidence that hit a case, by a rule
that fits its category, in the tree of its commit.

    python -m benchmarks.witnesses --realworld --mirrors DIR [--only REPO|ID]

A random sample of findings, and whether the tests that come of the proven ones pass elsewhere:

    python -m benchmarks.witnesses --sample 16 --emit-test DIR && python -m pytest DIR

Exit code 1 if less than ``--least`` of the expression-level findings are proven, or if a file or
a tree cannot be read.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.realworld.__main__ import CACHE
from benchmarks.realworld.cases import Entry, load
from benchmarks.realworld.linters import LINTERS
from benchmarks.realworld.score import NEAR
from benchmarks.realworld.trees import Trees, Unavailable
from precision_lint import inspection, registry
from precision_lint.api import Confidence
from precision_lint.config import Overrides, Resolver
from precision_lint.harness import emit, expectations, told, users, witnesses
from precision_lint.harness.plan import Plan
from precision_lint.harness.witnesses import Verdict

SECONDS = 120
"""Time one finding may take, more than `verify` gives it: a busy machine is to change no figure."""
WORDS = ("proven", "not reproduced", "cannot be isolated")


@dataclass(frozen=True)
class Found:
    """A planned finding, with what it is called in reports: a fixture's place, or a case."""

    plan: Plan
    place: str


def of_fixtures(codes: Iterable[str], home: Path, errors: list[str]) -> list[Found]:
    """Plans for copies of the fixtures of some rules, each linted alone with its own rule."""
    modules = expectations.fixtures(expectations.home())
    rules = registry.rules()

    def examined() -> Iterator[inspection.Examined | str]:
        for code in codes:
            folder = f"{code.lower()}_{rules[code].name.replace('-', '_')}"
            for fixture in (one for one in modules if one.rule == folder):
                target = home / folder / fixture.path.stem
                target.mkdir(parents=True)
                copied = target / fixture.path.name
                shutil.copy(fixture.path, copied)
                stated = expectations.stated(copied)
                overrides = Overrides(select=(code,), preview=True, no_cache=True, precision=stated)
                yield from inspection.examine([copied], Resolver(overrides, None, True))

    def place(plan: Plan) -> str:
        path = Path(plan.finding.filename)
        return f"{path.parent.parent.name}/{path.name}:{plan.finding.start.row}"

    return [Found(plan, place(plan)) for plan in users.plans(examined(), errors)]


def of_cases(
    entries: Sequence[Entry], codes: Sequence[str], trees: Trees, cache: Path, errors: list[str]
) -> Iterator[list[Found]]:
    """Plans for the findings that hit a case, by a rule that fits it, tree after tree."""
    fitting = LINTERS["precision-lint"].fitting()
    wanted: dict[tuple[str, str], list[Entry]] = defaultdict(list)
    for entry in entries:
        if fitting[entry.category] & set(codes):
            wanted[entry.repo, entry.commit].append(entry)
    for (repo, commit), cases in wanted.items():
        try:
            top = trees.get(repo, commit).path
        except Unavailable as error:
            errors.append(str(error))
            continue
        rules = {code for case in cases for code in fitting[case.category]} & set(codes)
        resolver = Resolver(
            Overrides(
                select=tuple(sorted(rules)),
                confidence=Confidence.POSSIBLE,
                preview=True,
                cache_dir=cache,
            ),
            None,
            True,
        )
        found = []
        paths = {case.id: top / case.file for case in cases}
        for one in inspection.examine(sorted({*paths.values()}), resolver):
            if isinstance(one, str):
                errors.append(f"{repo}@{commit[:12]}: {one}")
                continue
            path = Path(one.source.filename)
            for case in (case for case in cases if paths[case.id] == path):
                hits = [
                    d
                    for d in one.diagnostics
                    if hit(case, d.start.row) and d.code in fitting[case.category]
                ]
                print(f"{case.id}: {len(hits)} findings", file=sys.stderr, flush=True)
                found += [
                    Found(plan, f"{case.id} {case.file}:{plan.finding.start.row}")
                    for plan in users.plans([replace(one, diagnostics=hits)], errors)
                ]
        yield found


def hit(entry: Entry, row: int) -> bool:
    """Whether a finding at this row is one of the case."""
    assert entry.lines is not None
    return entry.lines[0] - NEAR <= row <= entry.lines[1] + NEAR


def searched(found: Sequence[Found], jobs: int, seconds: int) -> list[Verdict]:
    """The verdicts, in the order of the findings."""
    places = {id(one.plan): one.place for one in found}

    def tell(one: Verdict) -> None:
        words = " ".join(str(one.answer.get("before") or one.reason).split())[:160]
        line = f"{one.finding.code} {places[id(one.plan)]}: {told.outcome(one)}: {words}"
        print(line, file=sys.stderr, flush=True)

    return list(
        witnesses.search([one.plan for one in found], jobs=jobs, seconds=seconds, done=tell)
    )


def table(verdicts: Sequence[Verdict], loops: frozenset[str]) -> tuple[str, dict[str, Any]]:
    """The share proven by rule, and figures; ``loops``: codes that judge no expressions."""
    rules = registry.rules()
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in verdicts:
        counts[one.finding.code][told.outcome(one)] += 1
    lines = [f"{'rule':38}  {'findings':>8}  " + "  ".join(f"{w:>18}" for w in WORDS) + "  share"]
    total: Counter[str] = Counter()
    later: Counter[str] = Counter()
    for one in verdicts:
        if one.finding.code not in loops:
            (later if one.plan.later else total)[told.outcome(one)] += 1
    for code, each in sorted(counts.items()):
        share = f"{each['proven'] / each.total():6.0%}" if code not in loops else "     -"
        row = "  ".join(f"{each[word]:>18}" for word in WORDS)
        lines.append(f"{code} {rules[code].name:32}  {each.total():>8}  {row}  {share}")
    proven = total["proven"] / total.total() if total else 0.0
    lines.append(
        f"expression-level findings: {total.total()}, proven: {total['proven']} ({proven:.1%}); "
        f"in what acts later: {later.total()}, proven: {later['proven']}; "
        f"findings in training loops: {len(verdicts) - total.total() - later.total()}"
    )
    figures = {
        "findings": total.total(),
        **{word: total[word] for word in WORDS},
        "share": round(proven, 4),
        "in what acts later": {"findings": later.total(), "proven": later["proven"]},
        "in training loops": len(verdicts) - total.total() - later.total(),
        "rules": {
            code: {word: each[word] for word in WORDS if each[word]}
            for code, each in sorted(counts.items())
        },
    }
    return "\n".join(lines), figures


def of_places(found: Sequence[Found], verdicts: Sequence[Verdict]) -> dict[str, int]:
    """Cases by the best verdict on one of their findings."""
    best: dict[str, str] = {}
    for one, verdict in zip(found, verdicts, strict=True):
        case = one.place.partition(" ")[0]
        best[case] = min(best.get(case, WORDS[-1]), told.outcome(verdict), key=WORDS.index)
    return {"cases": len(best), **{word: [*best.values()].count(word) for word in WORDS}}


def written(
    figures: dict[str, Any], found: Sequence[Found], verdicts: Sequence[Verdict], seconds: int
) -> str:
    """JSON with one line for each finding."""
    head = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "seconds": seconds,
        "figures": figures,
        "findings": [],
    }
    rows = [
        {
            "code": verdict.finding.code,
            "place": one.place,
            "verdict": told.outcome(verdict),
            "later": bool(verdict.plan.later),
            "shows": verdict.answer.get("before") or " ".join(verdict.reason.split())[:200],
        }
        for one, verdict in zip(found, verdicts, strict=True)
    ]
    lines = ",\n".join(f"  {json.dumps(row)}" for row in rows)
    return (
        json.dumps(head, indent=1).replace('"findings": []', f'"findings": [\n{lines}\n ]') + "\n"
    )


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.witnesses", description=(__doc__ or "").splitlines()[0]
    )
    add = parser.add_argument
    add("--select", default="ALL", help="codes or prefixes, by default all")
    add("--jobs", type=int, default=os.cpu_count() or 1)
    add("--seconds", type=int, default=SECONDS, help="time for one finding (%(default)s)")
    add("--least", type=float, default=0.0, help="share that must be proven")
    add("--sample", type=int, metavar="N", help="N random findings of those in expressions")
    add("--seed", type=int, default=0, help="of the sample (%(default)s)")
    add("--emit-test", type=Path, metavar="DIR", help="write a test for each proven finding")
    add("--output", type=Path, metavar="FILE", help="write figures and verdicts as JSON")
    add("--realworld", action="store_true", help="findings at the cases of benchmarks.realworld")
    add("--mirrors", type=Path, metavar="DIR", help="git repositories in DIR/<owner>+<name>/")
    add("--clone", nargs="?", const="https://github.com", metavar="URL", help="clone the others")
    add("--work", type=Path, default=CACHE, metavar="DIR", help="for trees and clones")
    add("--only", default="", metavar="REPO|ID", help="parts of names, or ids")
    return parser


def main() -> int:
    parser = arguments()
    given = parser.parse_args()
    codes = sorted({code for one in given.select.split(",") for code in registry.known(one)})
    codes = [code for code in codes if code in registry.rules()]
    errors: list[str] = []
    found: list[Found] = []
    verdicts: list[Verdict] = []
    stopped = False
    with tempfile.TemporaryDirectory() as home:
        if given.realworld:
            parts = given.only.split(",")
            entries = [e for e in load("case") if any(p in e.repo or p == e.id for p in parts)]
            trees = Trees(given.work, given.mirrors, given.clone)
            groups = of_cases(entries, codes, trees, given.work / "cache", errors)
        else:
            groups = iter([of_fixtures(codes, Path(home), errors)])
        if given.sample is not None:
            some = [one for group in groups for one in group if not one.plan.reason]
            groups = iter([random.Random(given.seed).sample(some, min(given.sample, len(some)))])
        try:
            for group in groups:
                verdicts += searched(group, given.jobs, given.seconds)
                found += group
        except KeyboardInterrupt:  # what is known by then counts
            stopped = True
    found = found[: len(verdicts)]
    for line in errors:
        sys.stderr.write(f"{line}\n")
    if given.emit_test:
        emit.write(verdicts, given.emit_test)
    text, figures = table(verdicts, users.loops())
    print(text)
    if given.realworld:
        figures = {
            "stopped": stopped,
            "cases": len(entries),
            "flagged": of_places(found, verdicts),
            **figures,
        }
        print(f"cases: {len(entries)}, flagged: {figures['flagged']}")
    if given.output:
        given.output.write_text(written(figures, found, verdicts, given.seconds))
    return int(figures["share"] < given.least or bool(errors))


if __name__ == "__main__":
    sys.exit(main())
