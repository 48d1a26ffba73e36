"""What is to be searched for a finding of a user's file: slices, inputs, conditions."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from precision_lint.api import Applicability, Diagnostic, Edit
from precision_lint.harness import slicing, steps
from precision_lint.harness.cases import Failure, as_tuple
from precision_lint.harness.collect import Proof
from precision_lint.harness.hypotheses import hypotheses
from precision_lint.harness.scope import Scope
from precision_lint.harness.slicing import CannotIsolate, Place
from precision_lint.observing import Around, Known, enclosing
from precision_lint.source import Source


class Seen(Protocol):
    """What the interpreter knows inside of a file (`precision_lint.observing.Observation`)."""

    def value(self, node: ast.AST) -> Known: ...
    def around(self, nodes: Iterable[ast.AST]) -> Around: ...


class Examined(Protocol):
    """A file with findings (`precision_lint.inspection.Examined`)."""

    @property
    def source(self) -> Source: ...
    @property
    def tree(self) -> ast.Module: ...
    @property
    def diagnostics(self) -> list[Diagnostic]: ...
    @property
    def seen(self) -> Seen: ...
    @property
    def fixed(self) -> Callable[[], str]: ...


@dataclass
class Variant:
    """One slice of a finding: the original, and what fixes make of it, with their names."""

    original: str
    inputs: list[dict[str, Any]]
    sizes: list[int]
    fixed: list[str] = field(default_factory=list)
    fixes: list[str] = field(default_factory=list)


@dataclass
class Plan:
    """All that a child needs for one finding; ``reason``: why there is nothing to run."""

    finding: Diagnostic
    variants: list[Variant] = field(default_factory=list)
    conditions: list[dict[str, Any]] = field(default_factory=list)
    reason: str = ""
    stands_for: dict[str, str] = field(default_factory=dict)
    claims: tuple[str, ...] = ()
    tree: ast.Module | None = None
    """Of the file."""
    later: str = ""
    """Why no value of an expression shows the hazard, whatever the rule (`_later`)."""

    def job(self, number: int, sweep: bool = False) -> dict[str, Any]:
        """What the child is sent; ``sweep``: whether the witness is to be drawn."""
        return {
            "id": number,
            "variants": [
                {
                    "original": one.original,
                    "fixed": one.fixed,
                    "inputs": one.inputs,
                    "sizes": one.sizes,
                }
                for one in self.variants
            ],
            "conditions": self.conditions,
            "claims": self.claims,
            "cure": self.cure,
            "sweep": sweep,
        }

    def add(self, variant: Variant) -> None:
        """Search this as well, unless the same text is searched."""
        if all(variant.original != one.original for one in self.variants):
            self.variants.append(variant)

    @property
    def cure(self) -> bool:
        """Whether a proof has to show that the fix cures; one that is shown only need not."""
        fix = self.finding.fix
        return fix is not None and fix.applicability is not Applicability.DISPLAY


Claims = Mapping[str, tuple[str, ...]]
"""By code, the kinds of failures that a rule's own proof declares."""


def claims(proofs: Iterable[Proof]) -> Claims:
    """What a rule says breaks; a witness of something else proves nothing about its findings."""
    return {
        proof.rule.code: tuple(
            sorted(
                {
                    name
                    for case in proof.cases
                    for expected in case.before.values()
                    for failure in as_tuple(expected)
                    for name in _claim(failure, case.unit)
                }
            )
        )
        for proof in proofs
    }


def _claim(failure: Failure, unit: str | None) -> tuple[str, ...]:
    """``unit``: of a case whose errors are absolute; only what is counted, or has no dimension,
    is off by too much whatever its size."""
    gradient = "gradient " if failure.phase == "backward" else ""
    if unit is not None and failure.kind == "error" and not gradient:
        what = "whole" if unit else "absolute"
        return ("error", f"{what} above {failure.above:g}")
    kinds = {
        "raises": ("raises", f"raises {failure.text}"),
        "promoted": ("widened",),
        "vanished": (f"{gradient}error",),
        "error": (f"{gradient}error",),
    }
    return kinds.get(failure.kind, (f"{gradient}nonfinite",))


def plans(file: Examined, loops: frozenset[str], known: Claims) -> list[Plan]:
    """A plan for each finding of a file.

    ``loops``: codes of rules whose hazard is the order of calls in a training loop.
    """
    whole: dict[str, str] = {}

    def everything() -> str:
        if "text" not in whole:
            whole["text"] = file.fixed()
        return whole["text"]

    found = [_plan(file, one, loops, everything) for one in file.diagnostics]
    for one in found:
        one.claims = known.get(one.finding.code, ())
        if any("step" in each for each in one.conditions):
            one.claims = (*one.claims, "error", "nonfinite")
    return found


def _plan(
    file: Examined, finding: Diagnostic, loops: frozenset[str], everything: Callable[[], str]
) -> Plan:
    result = Plan(finding, tree=file.tree)
    if finding.code in loops:
        return _in_step(file, result, everything)
    tree = file.tree
    flagged = _flagged(tree, finding, file.source)
    result.later = _later(tree, finding)
    if flagged is None:
        result.reason = "what is flagged is no expression"
        return result
    try:
        place = slicing.locate(tree, flagged)
    except CannotIsolate as error:
        result.reason = str(error)
        return result
    for how in ({}, {"branches": True}, {"narrow": True}):
        if not isinstance(flagged, ast.expr):
            result.reason = "what is flagged is no expression"
            break
        try:
            variant = _variant(file, place, flagged, how, finding, everything)
        except CannotIsolate as error:
            result.reason = result.reason or str(error)
            break
        # what is around a flagged expression may keep its values away: alone, it needs a cure
        unfixed = finding.fix is None and "narrow" not in how
        if variant.fixed or not result.variants or unfixed:
            result.add(variant)
    for whole in (False, True):
        with contextlib.suppress(CannotIsolate):
            further = slicing.onward(tree, place, whole)
            variant = _variant(file, further, None, {}, finding, everything)
            raises = not result.variants and ast.unparse(flagged) in variant.original
            if raises or (variant.fixed and result.cure):
                result.add(variant)
    if result.cure and not any(one.fixed for one in result.variants):
        result.variants[:0] = _where_fixed(file, finding, everything)
    if not result.variants:
        return result
    result.reason = ""
    result.conditions = _conditions(file, flagged, finding)
    result.stands_for = {
        one["name"]: one["stands_for"] for v in result.variants for one in v.inputs
    }
    return result


def _in_step(file: Examined, result: Plan, everything: Callable[[], str]) -> Plan:
    """A plan for a finding of a training loop: the step around it, and what the fixes make of it."""
    finding, tree = result.finding, file.tree
    place = _statement(tree, finding.start.row)
    try:
        if place is None:
            raise CannotIsolate("it is in no statement")
        one = steps.step(tree, slicing.statement_at(tree, place), place.function)
    except CannotIsolate as error:
        proof = f"`precision-lint verify --select {finding.code}` executes one that has it"
        result.reason = f"the hazard is in a training loop, and {error}; {proof}"
        return result
    result.variants.append(_step(file, finding, everything, place, one, False))
    with contextlib.suppress(CannotIsolate):
        one = steps.step(tree, slicing.statement_at(tree, place), place.function, True)
        result.variants.append(_step(file, finding, everything, place, one, True))
    condition = {"policy": "cuda", "dtype": "float16", "inputs": "float32", "region": False}
    result.conditions = [{**condition, "amp": True, "step": True}]
    return result


def _step(
    file: Examined,
    finding: Diagnostic,
    everything: Callable[[], str],
    place: Place,
    one: slicing.Slice,
    overflow: bool,
) -> Variant:
    """A step, and what fixes make of it."""
    variant = Variant(one.text, [], [])
    statement = slicing.statement_at(file.tree, place)
    taken = steps.arms(file.tree, statement)
    for title, text in _fixes(file.source, finding, everything):
        with contextlib.suppress(CannotIsolate, SyntaxError):
            after = ast.parse(text)
            flagged = _same(statement, after)
            with contextlib.suppress(CannotIsolate):  # the fix may replace the statement
                flagged = flagged or slicing.statement_at(
                    after, slicing.follow(place, file.tree, after)
                )
            ways = steps.arms(after, flagged) if flagged is not None else {}
            if any(taken.get(test, way) != way for test, way in ways.items()):
                flagged = None  # that is another statement
            fixed = steps.step(after, flagged, place.function, overflow, taken)
            if fixed.text != one.text and fixed.text not in variant.fixed:
                variant.fixed.append(fixed.text)
                variant.fixes.append(title)
    return variant


def _same(statement: ast.stmt, after: ast.Module) -> ast.stmt | None:
    """The only statement of a tree with the same text, or the same condition."""

    def head(node: ast.AST) -> str:
        return ast.unparse(node.test if isinstance(node, ast.If) else node)

    kind, text = type(statement), head(statement)
    found = [node for node in ast.walk(after) if isinstance(node, kind) and head(node) == text]
    return found[0] if len(found) == 1 else None


def _statement(tree: ast.Module, row: int) -> Place | None:
    """The innermost statement that a row is of."""
    best = None
    for path, function, _ in slicing.functions(tree):
        for number, one in enumerate(slicing.statements(function)):
            inner = [s.lineno for block in slicing.blocks(one) for s in block]
            if one.lineno <= row <= (min(inner) - 1 if inner else one.end_lineno or 0):
                best = slicing.place_of(path, number, one)
    return best


def _where_fixed(
    file: Examined, finding: Diagnostic, everything: Callable[[], str]
) -> list[Variant]:
    """The statement that the fix changes, with the calls that it makes: it may be of a caller."""
    edits = finding.fix.edits if finding.fix is not None else ()
    for row in {file.source.position(one.start).row for one in edits}:
        place = _statement(file.tree, row)
        with contextlib.suppress(CannotIsolate):
            if place is not None:
                variant = _variant(file, place, None, {}, finding, everything)
                if variant.fixed:
                    return [variant]
    return []


def _later(tree: ast.Module, finding: Diagnostic) -> str:
    """Which later call shows the hazard of a finding, if it constructs what only acts then."""
    scope, row = Scope(tree), finding.start.row
    for node in ast.walk(tree):
        if not isinstance(node, (ast.expr, ast.stmt)) or not node.lineno <= row <= (
            node.end_lineno or 0
        ):
            continue
        if isinstance(node, ast.Call) and _covers(node, finding):
            name = scope.qualified(node.func)
            if name.startswith("torch.optim.") or name.rpartition(".")[2] == "GradScaler":
                return "the hazard is in later steps of what is constructed, not in an expression"
        if isinstance(node, ast.ClassDef):
            if any(scope.qualified(b) == "torch.autograd.Function" for b in node.bases):
                return "the hazard is in what autograd calls, not in an expression"
    return ""


def _covers(node: ast.Call, finding: Diagnostic) -> bool:
    """Whether a finding is this call, or in its arguments."""
    start, end = (finding.start.row, finding.start.column), (finding.end.row, finding.end.column)
    first, last = (node.lineno, 0), (node.end_lineno or 0, node.end_col_offset or 0)
    return first <= start and end[0] <= last[0]


def _flagged(tree: ast.Module, finding: Diagnostic, source: Source) -> ast.expr | ast.stmt | None:
    """The outermost expression at the place of a finding, or the statement that changes a value.

    Of an assignment to names and attributes, it is what they are given.
    """
    start, end = source.index(finding.start), source.index(finding.end)
    changed: ast.stmt | None = None
    for node in ast.walk(tree):
        if not isinstance(node, (ast.expr, ast.stmt)) or node.lineno != finding.start.row:
            continue
        if source.offset(node.lineno, node.col_offset) == start:
            if source.offset(node.end_lineno or 0, node.end_col_offset or 0) == end:
                if isinstance(node, ast.expr):
                    return node
                if isinstance(node, (ast.Assign, ast.AugAssign)):
                    changed = node
    if isinstance(changed, ast.Assign):
        whole = all(isinstance(one, (ast.Name, ast.Attribute)) for one in changed.targets)
        return changed.value if whole else changed
    return changed


def _variant(
    file: Examined,
    place: Place,
    flagged: ast.expr | None,
    how: Mapping[str, bool],
    finding: Diagnostic,
    everything: Callable[[], str],
) -> Variant:
    tree = file.tree
    one, where = slicing.cut(tree, place, flagged, **how)
    values = {free.name: _known(file, free.node) for free in one.inputs}
    found, sizes = hypotheses(one, values, _documentation(file, finding.start.row))
    variant = Variant(one.text, [h.as_json() for h in found], sizes)
    names = {free.name for free in one.inputs}
    for title, text in _fixes(file.source, finding, everything):
        try:
            after = ast.parse(text)
            fixed, _ = slicing.cut(after, slicing.follow(where, tree, after), None, **how)
        except (CannotIsolate, SyntaxError):
            continue
        new = {free.name for free in fixed.inputs} - names
        if not new and fixed.text != one.text and fixed.text not in variant.fixed:
            variant.fixed.append(fixed.text)
            variant.fixes.append(title)
    return variant


def _known(file: Examined, node: ast.expr | None) -> Known:
    return file.seen.value(node) if node is not None else Known()


def _documentation(file: Examined, row: int) -> str:
    """The text of a function up to its end, where shapes may be told in words."""
    node = enclosing(file.tree, row)
    if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return ""
    rows = file.source.text.splitlines()[node.lineno - 1 : node.end_lineno]
    doc = ast.get_docstring(node) or ""
    comments = "\n".join(row.partition("#")[2] for row in rows if "#" in row)
    return f"{doc}\n{comments}"


def _fixes(
    source: Source, finding: Diagnostic, everything: Callable[[], str]
) -> Iterable[tuple[str, str]]:
    """Fixed texts, the finding's own fix first; the rest of the file's fixes may be needed too."""
    fix = finding.fix
    if fix is None or not fix.edits:
        return
    shown = " (shown only)" if fix.applicability is Applicability.DISPLAY else ""
    yield fix.title + shown, _edited(source.text, fix.edits)
    yield f"{fix.title}, with the other fixes of the file", everything()


def _edited(text: str, edits: Sequence[Edit]) -> str:
    for edit in sorted(set(edits), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def _conditions(file: Examined, flagged: ast.AST, finding: Diagnostic) -> list[dict[str, Any]]:
    """How the slice is run, what the finding claims first."""
    around = file.seen.around([flagged, *ast.walk(flagged)])
    words = " ".join([finding.message, *(one.message for one in finding.evidence)])
    dtypes = [d for d in ("float16", "bfloat16") if re.search(rf"(?<![a-z]){d}", words)]
    dtypes += [d for d in ("float16", "bfloat16") if d not in dtypes]
    written = around.dtypes.get("code", "")
    if around.state == "on" and written in ("float16", "bfloat16"):
        dtypes = [written]
    policy = "cpu" if around.device == "cpu" else "cuda"

    def condition(dtype: str, inputs: str, around: bool, amp: bool = True) -> dict[str, Any]:
        return {"policy": policy, "dtype": dtype, "inputs": inputs, "region": around, "amp": amp}

    found = []
    for dtype in dtypes:
        regional = [condition(dtype, "float32", True), condition(dtype, "low", True)]
        eager = [condition(dtype, "low", False)]
        if around.state == "on":
            found += [*regional, condition(dtype, "low", False, amp=False)]
        elif around.state == "off" or "autocast" not in words:
            found += eager + (regional if around.state != "off" else [])
        else:
            found += regional + eager
    return found
