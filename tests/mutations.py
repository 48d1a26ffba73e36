"""Does the harness notice when a rule, its fix or its proof is broken?

Three kinds of mutants for each rule, all made by operators, none by hand:

fix
    The text that the fixer makes is sabotaged: an upcast becomes a cast to half or is left out,
    autocast stays on, a dtype is wrong, a number is a ten-thousandth or ten thousand times of what
    it was, an inserted line is missing, the fix does nothing at all.
rule
    The rule's own module is changed so that it misses more: a number is a thousandth or a
    thousandfold, a comparison is turned round, a callable is taken off its list, a confidence
    becomes ``possible``, a function gives up at once.
proof
    What the proof declares is loosened: an error is said to be a million times as large, another
    failure is declared, or none.

A mutant is killed when ``verify`` of that rule no longer proves everything, or the rule no longer
finds what its fixtures expect.  A rule needs one killed mutant of each kind (of the first only if
its proof has a fix to sabotage), and each survivor a reason in `REASONS`.

    python -m tests.mutations [--select MP301] [--limit 4] [--jobs 2]

It takes two minutes of processor time.

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
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import torch

from precision_lint import registry
from precision_lint.api import Rule
from precision_lint.harness import collect, judge, verify
from precision_lint.harness.cases import Case, Dtype, Expected, Failure, Level, Policy
from precision_lint.harness.collect import Proof
from precision_lint.harness.execute import Fault
from precision_lint.harness.expectations import modules

KINDS = ("fix", "rule", "proof")
PROMOTED = "one of two upcasts is enough: float32 with half is computed in float32"
WIDENED = "float32 is right as well there: what is written to, or returned to, casts it down"
UNSEEN = "the place is in the module, and no case executes it: other cases hold the same fix"
SPELLING = "another spelling of a call that the fixtures have; tests/test_amp_spellings.py holds it"
NAMES_ONLY = "a gap: the list has more operations than the fixtures use"
SECOND = "a gap: the fixtures have no place where only this confidence or condition decides"
BETWEEN = "a gap: no fixture lies between the two bounds"

REASONS: tuple[tuple[str, str, str], ...] = (
    ("MP202", r"Confidence\.\w+ becomes possible", SECOND),
    ("MP109", r"fix .*without .*zero_grad'",
     "gradients then add up, and the proof asks only whether anything is learnt"),
    ("MP114", r"fix .*is_enabled", "what a scaler that is off guards there changes nothing"),
    ("MP113|MP210", r"fix .*without", UNSEEN),
    ("MP205", r"fix .*without ''", "backward computes the same inside of the region"),
    ("MP212", r"rule .*pinned", "fixtures have one pin: tests/test_requirements.py asks"),
    ("MP212", r"fix .*without", "a GradScaler is for cuda where nothing is said"),
    ("MP303", r"fix .*without 'torch'", "F.log_softmax is the same function"),
    ("MP209", r"(fix|proof) .*", "the scores were rounded before, which errs as much as the loss"),
    ("MP205", r"rule `if (statement|shown) is None", "the fix is shown only"),
    ("MP202|MP203|MP205|MP206|MP401|MP404|MP406|MP505",
     r"rule .*(is always true|is turned round)", SECOND),
    ("MP208", r"half_model.py: without",
     "scores of thousands make a softmax of 0 and 1, whatever their scale"),
    ("MP401", r"proof .*no failure is declared", "promotion counts where a proof declares it only"),
    ("MP213|MP408", r"the finding has no fix", "the fix is shown only"),
    ("MP307|MP312", r"rule 1e-\d+ becomes 1e-1\d", "float16 makes 0 of the one and of the other"),
    ("MP302|MP303|MP305|MP604|MP607|MP407|MP603|MP312|MP308|MP309|MP307|MP310|MP507|MP304|MP301",
     r"rule (\d\S* becomes|.*turned round)", BETWEEN),
    ("MP305|MP306|MP309|MP601|MP607", r"fix .*without '(.float|float)", PROMOTED),
    ("MP405|MP501", r"an upcast is missing", "autocast is off, and the operands are float32 there"),
    ("MP402|MP407|MP503|MP604", r"fix .*(goes up|is missing|not followed)", WIDENED),
    ("MP506", r"an upcast goes down", "NumPy has float16, what it lacks is bfloat16"),
    ("MP311", r"two_masks.py: without ','", "an entry that the case does not call"),
    ("MP313", r"fix .*: 1.0 is", "any number that is not 0 keeps the gradient finite"),
    ("MP...", r"rule without 'einops", "einops is not installed where proofs run"),
    ("MP...", r"rule without 'torch\.(cpu|cuda)\.", SPELLING),
    ("MP...", r"rule without '", NAMES_ONLY),
)  # fmt: skip
"""Code, a part of what was changed, and why the mutant is right to survive."""
SABOTAGE: tuple[tuple[str, str, str], ...] = (
    (r"\.float\(\)", ".half()", "an upcast goes down"),
    (r"\.float\(\)", "", "an upcast is missing"),
    (r"torch\.float32", "torch.float16", "float32 becomes float16"),
    (r"enabled=False", "enabled=True", "autocast stays on"),
    (r"dtype=[\w.]+\.dtype", "dtype=torch.float32", "the dtype is not followed"),
    (r"\.to\([\w.]+\.dtype\)", ".float()", "the cast goes up"),
    (r"\.to\([\w.]+\.dtype\)", "", "the cast is missing"),
)
NUMBER = re.compile(r"(?<![\w.])(?:\d+\.\d*|\.\d+|\d+)(?:e[+-]?\d+)?(?![\w.])")
NOTHING = ("return", "return None", "return ()", "return []", "return False")
"""How a function of a rule says that there is nothing to report."""
TOKEN = re.compile(r"\w+|\s+|.", re.DOTALL)
NAMES = re.compile(r"NameError|UnboundLocalError")
"""What a mutant raises that does not even run; that one is killed says nothing."""


@dataclass(frozen=True)
class Mutant:
    """A broken rule, fix or proof; ``run`` says what ``verify`` then complains of, or nothing."""

    kind: str
    what: str
    run: Callable[[], str]


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant; ``complaint`` is empty where it survives."""

    code: str
    kind: str
    what: str
    complaint: str

    @property
    def words(self) -> str:
        """Why it was killed, or why it is right to survive."""
        return self.complaint or reason(self) or "without a reason"


# fixes


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
    changed = hunks(original, fixed)
    for pattern, replacement, what in SABOTAGE:
        text = fixed
        for start, end, new, _ in reversed(changed):
            text = text[:start] + re.sub(pattern, replacement, new) + text[end:]
        if text != fixed:
            yield text, what
    for start, _, new, _ in changed:
        for number in NUMBER.finditer(new):
            for factor in (1e-4, 1e4):
                value = f"{float(number[0]) * factor:g}"
                if float(value):
                    at = slice(start + number.start(), start + number.end())
                    yield fixed[: at.start] + value + fixed[at.stop :], f"{number[0]} is {value}"
    for start, end, new, old in changed if len(changed) > 1 else ():
        yield fixed[:start] + old + fixed[end:], f"without {' '.join(new.split())[:40]!r}"
    if fixed != original:
        yield f"{original}\n# no fix\n", "the fix does nothing"  # judged by what it does


def of_fix(proof: Proof, limit: int) -> list[Mutant]:
    """Mutants of the fixed texts of a rule's modules: of each operator one, then another."""
    assert proof.folder is not None
    found: list[tuple[int, Mutant]] = []
    seen: Counter[str] = Counter()
    cases = [case for case in proof.cases if case.level != "none" and case.hazardous]
    for module, level in dict.fromkeys((case.module, case.level) for case in cases):
        path = proof.folder / module
        original, fixed = verify.texts(proof.rule, path, level)
        those = [case for case in cases if (case.module, case.level) == (module, level)]
        for text, what in sabotaged(original, fixed or original):
            if not parses(text):
                continue
            operator = "number" if NUMBER.match(what) else what.split("'")[0]
            found.append(
                (seen[operator], Mutant("fix", f"{module}: {what}", _fixing(those, path, text)))
            )
            seen[operator] += 1
    return [mutant for _, mutant in sorted(found, key=lambda one: one[0])][:limit]


def parses(text: str) -> bool:
    """Whether a text is Python."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _fixing(cases: Sequence[Case], path: Path, text: str) -> Callable[[], str]:
    original = path.read_text(encoding="utf-8")
    return lambda: next(complaints(cases, path, original, text), "")


# execution


def complaints(cases: Iterable[Case], path: Path, original: str, fixed: str) -> Iterator[str]:
    """What ``verify`` says of cases with these texts; hazardous conditions one by one come first,
    because one complaint is enough."""
    for case in cases:
        text = None if case.level == "none" else fixed
        for part in [*conditions(case), case]:
            try:
                cells = judge.prove(part, path, original, text, "cpu")
            except Fault as fault:
                yield str(fault)
            except Exception as error:  # as of a child that dies
                yield f"{type(error).__name__}: {error}"
            else:
                for cell in cells:
                    if cell.verdict == "failed":
                        yield f"{cell.policy}/{cell.dtype} {cell.phase}: {cell.reasons[0]}"


def conditions(case: Case) -> Iterator[Case]:
    """A case in each of its hazardous conditions alone."""
    for policy, dtype in case.every_condition():
        if case.skipped(policy, dtype) is None and case.expected(policy, dtype):
            yield only(case, policy, dtype, case.expected(policy, dtype))


def only(case: Case, policy: Policy, dtype: Dtype, expected: Expected) -> Case:
    """A case in one condition, with this failure."""
    rest = {f"{p}/{d}": "elsewhere" for p, d in case.every_condition() if (p, d) != (policy, dtype)}
    return replace(case, before={f"{policy}/{dtype}": expected}, skip=rest)


# rules


class _Weaker(ast.NodeTransformer):
    """Makes one change in a module: the ``number``-th place where one is possible."""

    def __init__(self, number: int) -> None:
        self.left = number
        self.what = ""
        self.row = 0

    def _now(self, node: ast.expr | ast.stmt) -> bool:
        self.left -= 1
        if self.left == -1:
            self.row = node.lineno
        return self.left == -1

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if isinstance(node.value, float) and node.value not in (0.0, 1.0):
            for factor in (1e-3, 1e3):
                if self._now(node):
                    self.what = f"{node.value:g} becomes {node.value * factor:g}"
                    return ast.copy_location(ast.Constant(node.value * factor), node)
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        swaps = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}
        for place, operator in enumerate(node.ops):
            if type(operator) in swaps and self._now(node):
                self.what = f"{ast.unparse(node)} is turned round"
                node.ops[place] = swaps[type(operator)]()
                return node
        if isinstance(node.ops[0], ast.Is | ast.IsNot):
            return node  # a confidence that is asked for is not given
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if isinstance(node.func, ast.Name) and node.func.id in ("calls", "events", "operators"):
            for argument in node.args:
                if len(node.args) > 1 and self._now(node):
                    self.what = f"without {ast.unparse(argument)}"
                    node.args = [one for one in node.args if one is not argument]
                    return node
        if isinstance(node.func, ast.Attribute) and node.func.attr == "finding":
            for keyword in node.keywords:
                if keyword.arg == "fix" and self._now(node):
                    self.what = "the finding has no fix"
                    node.keywords = [one for one in node.keywords if one is not keyword]
                    return node
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if ast.unparse(node) in ("Confidence.LIKELY", "Confidence.CERTAIN") and self._now(node):
            self.what = f"{ast.unparse(node)} becomes possible"
            return ast.copy_location(ast.Attribute(node.value, "POSSIBLE", node.ctx), node)
        return node

    def visit_If(self, node: ast.If) -> ast.stmt:
        last = node.body[0] if len(node.body) == 1 else None
        leaves = isinstance(last, ast.Return) and ast.unparse(last) in NOTHING
        if leaves and self._now(node):
            self.what = f"`if {ast.unparse(node.test)[:60]}` is always true"
            node.test = ast.copy_location(ast.Constant(True), node.test)
            return node
        return self.generic_visit(node)  # type: ignore[return-value]


def of_rule(proof: Proof, limit: int) -> list[Mutant]:
    """Mutants of a rule's module, spread over all places that can be changed."""
    module = importlib.import_module(proof.rule.__module__)
    path = Path(str(module.__file__))
    text = path.read_text(encoding="utf-8")
    found = []
    for number in itertools.count():
        change = _Weaker(number)
        tree = ast.fix_missing_locations(change.visit(ast.parse(text)))
        if not change.what:
            break
        mutated = types.ModuleType(f"{proof.rule.__module__}_mutant")
        mutated.__file__ = str(path)
        sys.modules[mutated.__name__] = mutated  # dataclasses look their module up
        try:
            exec(compile(tree, str(path), "exec"), mutated.__dict__)
        except ArithmeticError:  # a number that no constant expression can hold
            continue
        changed: type[Rule] = getattr(mutated, proof.rule.__name__)
        what = f"{change.what} (row {change.row})"
        found.append(Mutant("rule", what, _ruling(proof, changed)))
    count = min(limit, len(found))
    return [found[i * len(found) // count] for i in range(count)]


def _ruling(proof: Proof, changed: type[Rule]) -> Callable[[], str]:
    """Verify all cases with a changed rule."""

    def run() -> str:
        assert proof.folder is not None
        for path in modules(proof.folder):
            for line in verify.mistaken(changed, path):
                return line
        for name, level in dict.fromkeys((case.module, case.level) for case in proof.cases):
            fixture = proof.folder / name
            original, genuine = verify.texts(proof.rule, fixture, level)
            try:
                _, fixed = verify.texts(changed, fixture, level)
            except collect.InvalidProof as error:
                return str(error)
            if fixed is None or fixed == genuine:  # what stays the same was proven before
                continue
            those = [case for case in proof.cases if (case.module, case.level) == (name, level)]
            for line in complaints(those, fixture, original, fixed):
                return line
        return ""

    return run


# proofs


def looser(expected: tuple[Failure, ...]) -> Iterator[tuple[Expected, str]]:
    """Other declarations that must not hold where these do."""
    for failure in expected:
        if failure.kind == "error":
            above = replace(failure, above=failure.above * 1e6)  # more than any loss scale makes
            yield above, f"{failure} becomes {above}"
        elif failure.kind == "raises":
            yield Failure.raises("no such words"), f"{failure} becomes other words"
        else:
            yield Failure.raises("no such words"), f"{failure} becomes raises"
    yield None, "no failure is declared"


def of_proof(proof: Proof, limit: int) -> list[Mutant]:
    """Mutants of what a proof declares, one condition at a time, spread over its cases."""
    assert proof.folder is not None
    found = []
    for case in proof.cases:
        path = proof.folder / case.module
        for policy, dtype in case.every_condition():
            expected = case.expected(policy, dtype)
            if case.skipped(policy, dtype) is None and expected:
                for other, what in looser(expected):
                    run = _declaring(proof.rule, case, policy, dtype, other, path)
                    found.append(Mutant("proof", f"{case.title} {policy}/{dtype}: {what}", run))
    # an odd step, so that both kinds of changes are drawn
    return found[:: max(1, len(found) // limit) | 1][:limit]


def _declaring(
    rule: type[Rule], case: Case, policy: Policy, dtype: Dtype, other: Expected, path: Path
) -> Callable[[], str]:
    def run() -> str:
        # an unsafe fix need not cure anything in the one condition that is left
        level: Level = "unsafe" if case.level == "safe" else case.level
        changed = replace(only(case, policy, dtype, ()), level=level)
        changed = replace(changed, before={f"{policy}/{dtype}": other})
        original, fixed = verify.texts(rule, path, case.level)
        return next(complaints([changed], path, original, fixed or original), "")

    return run


# the run


def mutants(proof: Proof, limit: int, kinds: Iterable[str] = KINDS) -> list[Mutant]:
    """The mutants of a rule, at most so many of a kind."""
    makers = {"fix": of_fix, "rule": of_rule, "proof": of_proof}
    return [mutant for kind in kinds for mutant in makers[kind](proof, limit)]


def judged(code: str, limit: int, kinds: Sequence[str] = KINDS) -> list[Verdict]:
    """What becomes of a rule's mutants; those that do not run at all are left out."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    proof = collect.proof(registry.rules()[code])
    if proof.folder is None:
        return []
    found = [(mutant, _complaint(mutant)) for mutant in mutants(proof, limit, kinds)]
    return [
        Verdict(code, mutant.kind, mutant.what, complaint)
        for mutant, complaint in found
        if not NAMES.search(complaint)
    ]


def _complaint(mutant: Mutant) -> str:
    try:
        return mutant.run()
    except Exception as error:  # a rule may crash where it assumes what was taken away
        return f"crashes: {type(error).__name__}: {error}"


def reason(verdict: Verdict) -> str:
    """Why a mutant is right to survive; nothing where nobody says."""
    return next(
        (
            why
            for code, part, why in REASONS
            if re.fullmatch(code, verdict.code)
            and re.search(part, f"{verdict.kind} {verdict.what}")
        ),
        "",
    )


def lacking(verdicts: Sequence[Verdict]) -> list[str]:
    """The kinds of which a rule has mutants, and none is killed."""
    made = Counter((one.code, one.kind) for one in verdicts)
    killed = Counter((one.code, one.kind) for one in verdicts if one.complaint)
    return [
        f"{code}: no mutant of the kind {kind} is killed; write a case"
        for code, kind in made
        if not killed[code, kind]
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--select", default="ALL", help="codes or prefixes, by default all")
    parser.add_argument("--limit", type=int, default=4, help="mutants of a kind and rule")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    chosen = sorted({code for one in given.select.split(",") for code in registry.known(one)})
    chosen = [code for code in chosen if code in registry.rules()]
    verdicts: list[Verdict] = []
    with ProcessPoolExecutor(given.jobs, get_context("spawn")) as pool:
        for found in pool.map(judged, chosen, itertools.repeat(given.limit)):
            verdicts += found
            for one in found:
                word = "killed  " if one.complaint else "survived"
                words = " ".join(one.words.split())[:140]
                print(f"{word} {one.code} {one.kind:5} {one.what} ({words})", flush=True)
    absent = lacking(verdicts)
    print("\n".join(absent), end="\n" if absent else "")
    made = {(one.code, one.kind) for one in verdicts}
    nothing = {"fix": "its proof executes no fix", "proof": "it declares no failure in half"}
    for code, kind in itertools.product(chosen, KINDS):
        if (code, kind) not in made:
            print(
                f"{code}: no mutants of the kind {kind}: {nothing.get(kind, 'nothing to change')}"
            )
    survivors = [one for one in verdicts if not one.complaint]
    unexplained = sum(not reason(one) for one in survivors)
    for kind in KINDS:
        those = [one for one in verdicts if one.kind == kind]
        killed = sum(bool(one.complaint) for one in those)
        rules = len({one.code for one in those if one.complaint})
        print(f"{kind:5}: {len(those)} mutants, {killed} killed, in {rules} rules")
    print(f"survived: {len(survivors)}, without a reason: {unexplained}")
    return int(bool(absent or unexplained))


if __name__ == "__main__":
    sys.exit(main())
