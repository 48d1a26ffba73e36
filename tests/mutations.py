"""Does the harness notice when a rule or its fix is broken?  Prints killed and survived mutants.

Two kinds of mutants for each rule:

fix
    The text that the fixer makes is sabotaged: an upcast becomes a cast to half or is left out,
    autocast stays on, a dtype is wrong, an inserted line is missing.
threshold
    The rule's own module is changed so that it misses more: a number is a thousandth or a
    thousandfold, a comparison is turned round, a callable is taken off its list.

A mutant is killed when ``verify`` of that rule no longer proves everything.  A rule needs one
killed mutant of each kind, and each survivor a reason in `REASONS`.

    python tests/mutations.py [--select MP301] [--limit 3] [--jobs 2]

Exit code 1: a rule has no killed mutant of a kind, or a mutant survives without a reason.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import importlib
import itertools
import re
import sys
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from precision_lint import registry
from precision_lint.api import Rule
from precision_lint.harness import collect, verify
from precision_lint.harness.cases import Level
from precision_lint.harness.collect import Proof

REASONS: tuple[tuple[str, str, str], ...] = (
    ("MP10[12]", r"Confidence.LIKELY becomes possible",
     "a gap: fixtures are single files, and none has its backward pass elsewhere"),
    ("MP401", r"Confidence.LIKELY becomes possible",
     "held by the expectations of beside_weights.py (tests/test_rules.py), whose fix is unsafe"),
    ("MP502", r"Confidence.LIKELY becomes possible",
     "the expectations of apart.py hold one of two places, which has no fix; a gap: no fixture "
     "depends on the other"),
    ("MP...", r"without 'einops.einsum'", "einops is not installed where proofs run"),
    ("MP...", r"without 'torch.pdist'",
     "an older name of torch.nn.functional.pdist, which is executed"),
    ("MP301", r": 2 becomes",
     "0.002**-25 flags more, not less; the `# ok:` lines hold that (tests/test_rules.py)"),
    ("MP301", r"guard.epsilon < NORMAL is turned round",
     "findings of subnormal guards have no fix"),
    ("MP401", r"judged\[0\].rank > best\[0\].rank is turned round",
     "a gap: no fixture uses one tensor at two places of different confidence"),
    ("MP501", r"projection.py: an upcast is missing",
     "its operands are float32, so leaving autocast is enough; half_points.py has half ones"),
)  # fmt: skip
"""Code, a part of what was changed, and why the mutant is right to survive."""
SABOTAGE: tuple[tuple[str, str, str], ...] = (
    (r"\.float\(\)", ".half()", "an upcast goes down"),
    (r"\.float\(\)", "", "an upcast is missing"),
    (r"enabled=False", "enabled=True", "autocast stays on"),
    (r"dtype=[\w.]+\.dtype", "dtype=torch.float32", "the dtype is not followed"),
    (r"\.to\([\w.]+\.dtype\)", ".float()", "the cast goes up"),
)
TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)


@dataclass(frozen=True)
class Mutant:
    """A broken rule or fix; ``run`` says what ``verify`` then complains of."""

    code: str
    kind: str
    what: str
    run: Callable[[], list[str]]


def hunks(original: str, fixed: str) -> list[tuple[int, int, str, str]]:
    """Start and end in the fixed text, what it has there, and what the original had."""
    before, after = TOKEN.findall(original), TOKEN.findall(fixed)
    offsets = [0, *itertools.accumulate(map(len, after))]
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [
        (offsets[c], offsets[d], "".join(after[c:d]), "".join(before[a:b]))
        for tag, a, b, c, d in matcher.get_opcodes()
        if tag != "equal"
    ]


def sabotaged(original: str, fixed: str) -> Iterator[tuple[str, str]]:
    """Texts of broken fixes, and what is wrong with each."""
    for pattern, replacement, what in SABOTAGE:
        text = fixed
        for start, end, new, _ in reversed(hunks(original, fixed)):
            text = text[:start] + re.sub(pattern, replacement, new) + text[end:]
        if text != fixed:
            yield text, what
    for start, end, new, old in hunks(original, fixed):
        text = fixed[:start] + old + fixed[end:]
        if text != original:
            yield text, f"without {' '.join(new.split())[:40]!r}"


def parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def of_fix(proof: Proof, limit: int) -> Iterator[Mutant]:
    """Mutants of the fixed texts of a rule's modules."""
    wanted = [case for case in proof.cases if case.level != "none" and case.hazardous]
    seen: set[str] = set()
    for case in wanted:
        assert proof.folder is not None
        original, fixed = verify.texts(proof.rule, proof.folder / case.module, case.level)
        for text, what in sabotaged(original, fixed or original):
            if what in seen or not parses(text):
                continue
            seen.add(what)
            run = _proving(proof, case.module, case.level, (original, text))
            yield Mutant(proof.rule.code, "fix", f"{case.module}: {what}", run)
            if len(seen) == limit:
                return


def _proving(
    proof: Proof, module: str, level: Level, pair: tuple[str, str]
) -> Callable[[], list[str]]:
    """Verify the cases of a module with these texts in place of the fixer's."""

    def run() -> list[str]:
        chosen = [i for i, c in enumerate(proof.cases) if c.module == module and c.level == level]
        result = verify.Result(proof.rule)
        verify.execute(proof, dict.fromkeys(chosen, pair), result)
        return result.failures

    return run


class _Threshold(ast.NodeTransformer):
    """Makes one change in a module: the ``number``-th place where one is possible."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.what = ""

    def _now(self) -> bool:
        self.left -= 1
        return self.left == -1

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, float) and node.value not in (0.0, 1.0):
            for factor in (1e-3, 1e3):
                if self._now():
                    self.what = (
                        f"line {node.lineno}: {node.value:g} becomes {node.value * factor:g}"
                    )
                    return ast.copy_location(ast.Constant(node.value * factor), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        swaps = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
        for place, operator in enumerate(node.ops):
            if type(operator) in swaps and self._now():
                self.what = f"line {node.lineno}: {ast.unparse(node)} is turned round"
                node.ops[place] = swaps[type(operator)]()
                return node
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in ("calls", "events", "operators"):
            for argument in node.args:
                if len(node.args) > 1 and self._now():
                    self.what = f"line {node.lineno}: without {ast.unparse(argument)}"
                    node.args = [one for one in node.args if one is not argument]
                    return node
        if isinstance(node.func, ast.Attribute) and node.func.attr == "finding":
            for keyword in node.keywords:
                if keyword.arg == "fix" and self._now():
                    self.what = f"line {node.lineno}: the finding has no fix"
                    node.keywords = [one for one in node.keywords if one is not keyword]
                    return node
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if ast.unparse(node) in ("Confidence.LIKELY", "Confidence.CERTAIN") and self._now():
            self.what = f"line {node.lineno}: {ast.unparse(node)} becomes possible"
            return ast.copy_location(ast.Attribute(node.value, "POSSIBLE", node.ctx), node)
        return node


def of_threshold(proof: Proof, limit: int) -> Iterator[Mutant]:
    """Mutants of a rule's module, spread over all places that can be changed."""
    module = importlib.import_module(proof.rule.__module__)
    path = Path(str(module.__file__))
    text = path.read_text(encoding="utf-8")
    texts: list[tuple[str, str]] = []
    for number in itertools.count():
        change = _Threshold(number)
        tree = ast.fix_missing_locations(change.visit(ast.parse(text)))
        if not change.what:
            break
        texts.append((ast.unparse(tree), change.what))
    step = max(1, len(texts) // limit)
    for mutated, what in texts[::step][:limit]:
        yield Mutant(proof.rule.code, "threshold", what, _judging(proof, mutated, path))


def _judging(proof: Proof, text: str, path: Path) -> Callable[[], list[str]]:
    """Verify all cases with a changed rule."""

    def run() -> list[str]:
        module = types.ModuleType(f"{proof.rule.__module__}_mutant")
        module.__file__ = str(path)
        exec(compile(text, str(path), "exec"), module.__dict__)
        changed: type[Rule] = getattr(module, proof.rule.__name__)
        errors: list[str] = []
        mutant = Proof(changed, proof.folder, proof.cases)
        for case in proof.cases:
            assert proof.folder is not None
            pair = _pair(mutant, case.module, case.level, errors)
            genuine = _pair(proof, case.module, case.level, [])
            if errors or pair != genuine:  # what stays the same was proven before
                index = proof.cases.index(case)
                result = verify.Result(changed, errors=errors)
                if not errors:
                    verify.execute(mutant, {index: pair}, result)
                if result.failures:
                    return result.failures
        return []

    return run


def _pair(proof: Proof, module: str, level: Level, errors: list[str]) -> tuple[str, str | None]:
    assert proof.folder is not None
    try:
        return verify.texts(proof.rule, proof.folder / module, level)
    except collect.InvalidProof as error:
        errors.append(str(error))
        return "", None


def reason(mutant: Mutant) -> str:
    """Why a mutant is right to survive; nothing where nobody says."""
    return next(
        (
            why
            for code, part, why in REASONS
            if re.fullmatch(code, mutant.code) and re.search(part, mutant.what)
        ),
        "",
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--select", default="ALL", help="codes or prefixes, by default all")
    parser.add_argument("--limit", type=int, default=3, help="mutants of a kind and rule")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = {code for one in given.select.split(",") for code in registry.known(one)}
    mutants: list[Mutant] = []
    for code, rule in registry.rules().items():
        proof = collect.proof(rule)
        if code in chosen and proof.folder is not None:
            mutants += [*of_fix(proof, given.limit), *of_threshold(proof, given.limit)]
    killed: dict[tuple[str, str], int] = {}
    unexplained = 0
    with ThreadPoolExecutor(given.jobs) as pool:
        for mutant, failures in zip(mutants, pool.map(lambda m: m.run(), mutants), strict=True):
            key = mutant.code, mutant.kind
            killed[key] = killed.get(key, 0) + bool(failures)
            verdict = "killed  " if failures else "survived"
            why = failures[0][:110] if failures else reason(mutant)
            unexplained += not why
            what = f"{verdict} {mutant.code} {mutant.kind:9} {mutant.what}"
            print(f"{what} ({why or 'without a reason'})", flush=True)
    codes = {mutant.code for mutant in mutants}
    lacking = [
        (code, kind)
        for code in sorted(codes)
        for kind in ("fix", "threshold")
        if not killed.get((code, kind))
    ]
    for code, kind in lacking:
        print(f"{code}: no mutant of the kind {kind} is killed; write a case")
    count = f"mutants: {len(mutants)}, killed: {sum(killed.values())}, rules: {len(codes)}"
    print(f"{count}, survived without a reason: {unexplained}")
    return int(bool(lacking or unexplained))


if __name__ == "__main__":
    sys.exit(main())
