"""Share of findings that ``precision-lint verify PATHS`` proves by itself, on the fixtures as code.

Each fixture module is copied into a directory of its own, without its proof, and its findings are
searched for witnesses as those of any user: the inputs that the proofs know are hidden.  Rules that
judge the order of calls in a training loop, or values that one file creates for another, have no
expression to execute and are told apart.

    python benchmarks/witnesses.py [--select MP301,MP501] [--jobs 2] [--least 0.8]

Exit code 1 if less than ``--least`` of the expression-level findings are proven.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from precision_lint import registry, runner
from precision_lint.api import Rule
from precision_lint.config import Overrides, Resolver
from precision_lint.harness import expectations, told, users, witnesses
from precision_lint.harness.witnesses import Verdict


def expression_level(rule: type[Rule]) -> bool:
    """Whether a rule judges expressions, rather than events of the analysis."""
    return bool(rule.triggers.calls or rule.triggers.nodes) and not rule.triggers.events


def examined(rules: Iterable[type[Rule]], home: Path) -> Iterator[runner.Examined | str]:
    """Copies of the fixtures of some rules, each linted alone with its own rule."""
    modules = expectations.fixtures(expectations.home())
    for rule in rules:
        folder = f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
        for fixture in (one for one in modules if one.rule == folder):
            target = home / folder / fixture.path.stem
            target.mkdir(parents=True)
            copied = target / fixture.path.name
            shutil.copy(fixture.path, copied)
            overrides = Overrides(select=(rule.code,), preview=True, no_cache=True)
            yield from runner.examine([copied], Resolver(overrides, None, True))


def table(verdicts: Iterable[Verdict], rules: dict[str, type[Rule]]) -> tuple[str, float]:
    """The share proven by rule, and that of all expression-level findings."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in verdicts:
        counts[one.finding.code][told.outcome(one)] += 1
    words = ("proven", "not reproduced", "cannot be isolated")
    lines = [f"{'rule':32}  {'findings':>8}  " + "  ".join(f"{w:>18}" for w in words) + "  share"]
    total: Counter[str] = Counter()
    for code, found in sorted(counts.items()):
        level = expression_level(rules[code])
        total += found if level else Counter()
        share = f"{found['proven'] / found.total():6.0%}" if level else "     -"
        row = "  ".join(f"{found[word]:>18}" for word in words)
        lines.append(f"{code} {rules[code].name:26}  {found.total():>8}  {row}  {share}")
    proven = total["proven"] / total.total() if total else 0.0
    lines.append(
        f"expression-level findings: {total.total()}, proven: {total['proven']} ({proven:.1%})"
    )
    return "\n".join(lines), proven


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--select", default="ALL", help="codes or prefixes, by default all")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--least", type=float, default=0.8, help="share that must be proven")
    parser.add_argument("-v", "--verbose", action="store_true", help="print each verdict")
    given = parser.parse_args()
    known = registry.rules()
    chosen = {code for one in given.select.split(",") for code in registry.known(one)}
    rules = {code: rule for code, rule in known.items() if code in chosen}
    errors: list[str] = []
    with tempfile.TemporaryDirectory() as home:
        plans = users.plans(examined(rules.values(), Path(home)), errors)
        verdicts = list(witnesses.search(plans, jobs=given.jobs))
    for line in errors:
        sys.stderr.write(f"{line}\n")
    for one in verdicts:
        if given.verbose or one.outcome != "proven":
            name = "/".join(Path(one.finding.filename).parts[-2:])
            seen = one.answer.get("before", one.reason)
            print(f"{one.finding.code} {name}:{one.finding.start.row}: {told.outcome(one)}: {seen}")
    text, share = table(verdicts, known)
    print(text)
    return int(share < given.least or bool(errors))


if __name__ == "__main__":
    sys.exit(main())
