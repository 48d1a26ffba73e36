from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Edit,
    Evidence,
    Finding,
    Fix,
    Half,
    Provenance,
    Rule,
    Severity,
    calls,
    operators,
)

TOTALS = re.compile(
    r"(?<![a-z])(\w*total\w*|\w*sums?|acc\w*|running\w*|\w*loss(es)?|counts?|correct|hist\w*|"
    r"stats?|energy|score|tally|\w*norms?|moments?|degrees?|occupancy|votes?|mass)(?![a-z])"
)
"""Names of what adds up over many terms."""
MANY = re.compile(
    r"loader|batch|dataset|\bdata\b|stream|samples|chunks|episodes|shape\[(1|-2)\]|size\((1|-2)\)|"
    r"steps|seq|len|frames|time|tokens|losses|rows|num_\w*(samples|points|tokens)|\bT\b|iters"
)
"""What loops with many rounds go over."""
GROUPS = re.compile(
    r"(?<![a-z])(\w*counts?|hist\w*|degrees?|freq\w*|clusters?|segments?|graphs?|\w*totals?|"
    r"\w*sums?|centroids?|centers?|bins|occup\w*|votes?|pooled)(?![a-z])"
)
"""Names of what holds one number, or row, for a group of many."""
NAMED = frozenset({"torch.float16", "torch.half", "torch.bfloat16", "numpy.float16"})
EXACT = {"float16": 2048, "bfloat16": 256}


class AccumulateInHalf(Rule):
    """Sum that is kept in half precision over many additions, and stops growing.

    ## What it flags
    - `total += x` and `total = total + x` in a loop over batches, chunks or time steps, where both
      are half: the total starts as a Python number and becomes a half tensor with the first term,
      or it is created in the dtype of the activations;
    - `buffer[place] += x` in a loop, into a buffer that is created in half by name, as
      the votes and weights of overlapping windows;
    - `index_add_` and `index_put_(..., accumulate=True)` into half counts, histograms, and sums of
      clusters or segments.

    It stays silent where the terms are float32 (`.item()`, `.float()`, losses under autocast; what
    a model returns as its loss is `possible`), for a float32 total (adding in place keeps its
    dtype), for sums over the layers of a model and other short loops, and for one operation that
    adds up by itself (`sum`, `cumsum`), which does so in float32 inside.

    ## Why it breaks
    The sum of a half number and a term below half a unit of its last place is the number itself:
    counting ones ends at 2,048 in float16 and at 256 in bfloat16. The mean of 3,000 equal losses is
    a third too small in float16 and a tenth of itself in bfloat16. `index_add_` does the same,
    row by row.

    ## Example
    ```python
    total = 0.0
    for batch in loader:
        total += model(batch).mean()
    ```
    Use instead:
    ```python
    total = 0.0
    for batch in loader:
        total += model(batch).mean().float()
    ```

    ## Fix safety
    Safe: `.float()` on a float32 term does nothing. A total that is created in half is created in
    float32 instead; there is no fix where it goes on into a layer. For a log, `.item()` is right as
    well and frees the graph.

    ## How to silence
    `# precision-lint: ignore[MP406] reason` or `# noqa: MP406` on the line.

    ## Sources
    Higham, The Accuracy of Floating Point Summation (1993); measured for torch 2.13 on the CPU.
    """

    code = "MP406"
    name = "accumulate-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    triggers = operators(ast.AugAssign, ast.Assign, pattern=r"\+=|=[ \t]*[\w.]+[ \t]*\+") | calls(
        "Tensor.index_add_", "Tensor.index_put_"
    )

    def check(self, node: ast.stmt | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.Call):
            yield from self._indexed(node, at)
            return
        found = _term(node)
        if found is None:
            yield from _placed(node, at)
            return
        total, term = found
        if not TOTALS.search(total.id.lower()):
            return
        loop = _long_loop(node, total.id, at)
        if loop is None or Care.in_test(at):
            return
        half = _half(term, at)
        first = _first(total.id, loop, at)
        if half is None or first is None:
            return
        started = at.value(first)
        if started.kind != "number" and at.half(started, at.region(first)) is None:
            return
        confidence = min(half.confidence, Confidence.LIKELY, key=lambda c: c.rank)
        notes = [at.note(first, "it starts here"), at.note(loop.iter, "every round adds a term")]
        yield self._finding(
            node, total.id, half, confidence, notes, _wide(term, first, total, at), at
        )

    def _finding(
        self,
        node: ast.stmt | ast.expr,
        name: str,
        half: Half,
        confidence: Confidence,
        notes: list[Evidence],
        fix: Fix | None,
        at: Context,
    ) -> Finding:
        return at.finding(
            node,
            f"{name} adds up in {half.dtype}: terms of 1 are lost from {EXACT[half.dtype]} on",
            confidence,
            evidence=dict.fromkeys((*half.evidence, *notes)),
            fix=fix,
        )

    def _indexed(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """``counts.index_add_(0, index, ones)``"""
        if not isinstance(node.func, ast.Attribute) or not isinstance(node.func.value, ast.Name):
            return
        total = node.func.value
        if not GROUPS.search(total.id.lower()) or Care.in_test(at):
            return
        name, given = node.func.attr, {k.arg: k.value for k in node.keywords}
        if name == "index_put_":
            flag = node.args[2] if len(node.args) > 2 else given.get("accumulate")
            if flag is None or at.value(flag).const is not True:
                return
        place, keyword = (2, "source") if name == "index_add_" else (1, "values")
        source = node.args[place] if len(node.args) > place else given.get(keyword)
        first = at.definition(total.id, total)
        if source is None or first is None:
            return
        kept = at.value(total)
        half = at.half(kept, at.region(node))
        if half is None or not kept.is_tensor:
            return
        confidence = half.confidence
        if kept.variable:
            model = at.half_models is not None and at.project.half is not None and at.plausible
            if not model:
                confidence = Confidence.POSSIBLE
        fix = None
        edits = _created_wide(first, at)
        here = at.statement(node)
        used = any(at.reaches_layer(use) for use in at.uses(total.id))
        if edits is not None and here is not None and not used:
            more = at.edit.append(here, {source: ".float()"})
            if more is not None:
                title = "add up in float32"
                fix = Fix(title, Applicability.SAFE, (*edits, *more))
        notes = [at.note(first, "it is created here")]
        yield self._finding(node, total.id, half, confidence, notes, fix, at)


def _placed(node: ast.stmt, at: Context) -> Iterator[Finding]:
    """``buffer[place] += x`` into a buffer of half numbers."""
    match node:
        case ast.AugAssign(target=ast.Subscript(value=buffer), op=ast.Add()):
            pass
        case ast.Assign(targets=[ast.Subscript(value=buffer) as place], value=ast.BinOp(
            left=ast.Subscript() as left, op=ast.Add()
        )) if ast.unparse(place) == ast.unparse(left):  # fmt: skip
            pass
        case _:
            return
    loop = next((p for p in at.ancestors(node) if isinstance(p, (ast.For, ast.While))), None)
    if loop is None or Care.in_test(at):
        return
    name = at.text(buffer)
    made = _created_half(name, at.function.nodes, at)
    cls = at.function.cls
    if made is None and name.startswith("self.") and cls is not None:
        stored = at.module.stores(cls).get(name[5:])
        if stored is not None and stored[1] is not None:
            made = _half_creation(stored[0], at.inside(stored[1]))
    if made is None:
        return
    dtype = "bfloat16" if "bfloat16" in ast.unparse(made) else "float16"
    yield at.finding(
        node,
        f"{name} adds up in {dtype}: terms of 1 are lost from {EXACT[dtype]} on"
        + (", and a sum above 65504 is inf" if dtype == "float16" else ""),
        Confidence.LIKELY,
        evidence=(at.note(made, "it is created in half here"),),
    )


def _created_half(name: str, nodes: list[ast.AST], at: Context) -> ast.Call | None:
    """A creation of ``name`` in half in this function."""
    for node in nodes:
        if isinstance(node, ast.Assign) and any(at.text(t) == name for t in node.targets):
            made = _half_creation(node.value, at)
            if made is not None:
                return made
    return None


def _half_creation(node: ast.expr, at: Context) -> ast.Call | None:
    """A tensor or array that is created in half by name, or by the default of a parameter."""
    if not isinstance(node, ast.Call):
        return None
    if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        if node.func.attr in ("half", "bfloat16"):
            return node
        if node.func.attr in ("to", "cuda", "pin_memory"):
            inner = _half_creation(node.func.value, at)
            if inner is not None:
                return inner
    for dtype in [*(k.value for k in node.keywords if k.arg == "dtype"), *node.args]:
        meant = at.function.defaults().get(getattr(dtype, "id", ""), dtype)
        if at.qualify(meant) in NAMED:
            return node
    return None


def _term(node: ast.stmt) -> tuple[ast.Name, ast.expr] | None:
    """``total`` and ``x`` of ``total += x`` or ``total = total + x``."""
    if isinstance(node, ast.AugAssign):
        if isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            return node.target, node.value
        return None
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return None
    target, value = node.targets[0], node.value
    if not isinstance(target, ast.Name) or not isinstance(value, ast.BinOp):
        return None
    if isinstance(value.op, ast.Add) and isinstance(value.left, ast.Name):
        return (target, value.right) if value.left.id == target.id else None
    return None


def _long_loop(node: ast.stmt, name: str, at: Context) -> ast.For | None:
    """The loop around an addition, if it may have many rounds."""
    for parent in at.ancestors(node):
        if isinstance(parent, ast.For):
            text = at.text(parent.iter).lower()
            value = at.value(parent.iter.args[-1]) if isinstance(parent.iter, ast.Call) and (
                parent.iter.args) else None  # fmt: skip
            if value is not None and isinstance(value.const, int) and value.const <= 64:
                continue
            if MANY.search(text) or (value is not None and isinstance(value.const, int)):
                return parent
        elif isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return None
    return None


def _first(name: str, loop: ast.For, at: Context) -> ast.expr | None:
    """What a total starts as, in front of the loop."""
    earlier = [s for s in at.function.assigned.get(name, []) if s.lineno < loop.lineno]
    return max(earlier, key=lambda s: (s.lineno, s.col_offset)) if earlier else None


def _half(term: ast.expr, at: Context) -> Half | None:
    """Why a term is believed to be half."""
    value = at.value(term)
    if not value.maybe_tensor:
        return None
    half = at.half(value, at.region(term))
    if half is not None and value.dtype.startswith("~call") and "loss" in at.text(term).lower():
        return replace(half, confidence=Confidence.POSSIBLE)  # autocast makes losses float32
    if half is None or not value.variable or "amp" in value.tags:
        return half
    if value.wide and at.half_models is None:
        return None
    if Provenance.computed(term, at) is None:
        return None
    if at.half_models is not None and at.project.half is not None and at.plausible:
        return half
    return Half(half.dtypes, Confidence.POSSIBLE, half.evidence)


def _wide(term: ast.expr, first: ast.expr, total: ast.Name, at: Context) -> Fix | None:
    """The sum in float32."""
    title = "add up in float32"
    if any(at.reaches_layer(use) for use in at.uses(total.id) if use.lineno > term.lineno):
        return None
    if at.value(first).kind == "number":
        statement = at.statement(term)
        edits = at.edit.append(statement, {term: ".float()"}) if statement is not None else None
    else:
        edits = _created_wide(first, at)
    return Fix(title, Applicability.SAFE, edits) if edits is not None else None


def _created_wide(first: ast.expr, at: Context) -> tuple[Edit, ...] | None:
    """A creation in the dtype of another tensor, in float32 instead."""
    statement = at.statement(first)
    spelling, imports = at.torch()
    if not isinstance(first, ast.Call) or statement is None or imports:
        return None
    given = next((k.value for k in first.keywords if k.arg == "dtype"), None)
    wide = f"{spelling}.float32"
    if given is not None:
        follows = at.text(given).endswith(".dtype") or isinstance(given, ast.Name)
        return at.edit.replace(statement, {given: wide}) if follows else None
    name = at.text(first.func).rpartition(".")[2]
    if name.endswith("_like") or name.startswith("new_"):
        return at.edit.add_keyword(statement, first, "dtype", wide)
    return None
