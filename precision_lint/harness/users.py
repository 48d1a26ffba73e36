"""``precision-lint verify PATHS``: the findings in users' code, executed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from precision_lint import progress, registry
from precision_lint.display import printable
from precision_lint.harness import emit, page, plan, told, witnesses
from precision_lint.harness.children import Children
from precision_lint.harness.collect import Proof, proof
from precision_lint.harness.plan import Examined, Plan
from precision_lint.harness.policy import UnsupportedTorch, require_torch
from precision_lint.harness.witnesses import BYTES, SECONDS, Verdict

NOTICE = (
    "verify executes parts of this code (what is flagged, and what that needs) in child processes: "
    f"at most {SECONDS} s and {BYTES >> 30} GiB for each finding, in a temporary directory, without "
    "network where the platform allows that"
)


def loops() -> frozenset[str]:
    """Codes of rules whose proofs execute training loops only: no expression shows the hazard."""
    return _loops(proof(rule) for rule in registry.rules().values())


def _loops(proofs: Iterable[Proof]) -> frozenset[str]:
    return frozenset(
        one.rule.code
        for one in proofs
        if one.cases and all(case.regime == "training" for case in one.cases)
    )


def plans(files: Iterable[Examined | str], errors: list[str]) -> list[Plan]:
    """What is to be searched in some files; why others cannot be read goes to ``errors``."""
    proofs = [proof(rule) for rule in registry.rules().values()]
    known, training = plan.claims(proofs), _loops(proofs)
    found: list[Plan] = []
    for one in files:
        if isinstance(one, str):
            errors.append(one)
        else:
            found += plan.plans(one, training, known)
    return found


def main(
    files: Iterable[Examined | str],
    keyword: str = "",
    exitfirst: bool = False,
    jobs: int | None = None,
    output_format: str = "text",
    report: Path | None = None,
    tests: Path | None = None,
) -> int:
    """Search witnesses for the findings in ``files`` and print the verdicts; the exit status.

    0: none is proven.  1: at least one is, so the code breaks.  2: wrong use, or a file that cannot
    be read.  130: interrupted; what is known by then is printed.
    """
    try:
        require_torch()
        if report is not None:
            page.require()
    except (UnsupportedTorch, page.Missing) as error:
        sys.stderr.write(f"precision-lint verify: {error}\n")
        return 2
    errors: list[str] = []
    todo = [one for one in plans(files, errors) if keyword in title(one)]
    for line in errors:
        sys.stderr.write(f"{printable(line)}\n")
    if todo:
        sys.stderr.write(f"{NOTICE}\n")
    verdicts, interrupted = _search(
        todo, exitfirst, jobs or os.cpu_count() or 1, report is not None
    )
    sys.stdout.write(told.FORMATS[output_format](verdicts, interrupted))
    if report is not None:
        report.write_text(page.of_witnesses(verdicts, "cpu"), encoding="utf-8")
    if tests is not None:
        for path in emit.write(verdicts, tests):
            sys.stderr.write(f"wrote {printable(str(path))}\n")
    if interrupted:
        sys.stderr.write("precision-lint verify: interrupted; this is what was found by then\n")
        return 130
    if errors:
        return 2
    return int(any(one.outcome == "proven" for one in verdicts))


def title(one: Plan) -> str:
    """What ``-k`` looks in."""
    finding = one.finding
    return f"{finding.filename}:{finding.start.row} {finding.code} {finding.name}"


def _search(
    todo: Sequence[Plan], exitfirst: bool, jobs: int, sweep: bool
) -> tuple[list[Verdict], bool]:
    children = Children()
    verdicts: dict[int, Verdict] = {}
    places = {id(one): number for number, one in enumerate(todo)}
    interrupted = False
    with progress.bar(len(todo), "findings") as tick:

        def done(verdict: Verdict) -> None:
            verdicts[places[id(verdict.plan)]] = verdict
            tick(f"{verdict.finding.code} {verdict.place}")
            if exitfirst and verdict.outcome == "proven":
                children.stop()

        try:
            for _ in witnesses.search(todo, jobs=jobs, children=children, done=done, sweep=sweep):
                pass
        except KeyboardInterrupt:
            interrupted = True
    return [verdicts[number] for number in sorted(verdicts)], interrupted
