from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Helper,
    Lowered,
    Provenance,
    Region,
    Rule,
    Severity,
    operators,
)

CAST = re.compile(r"\.float\(|float32|\.double\(|\.to\(|\.type\(|upcast|cast_?to")
COMPUTES = re.compile(
    r"loss|crit|head|net|model|layer|proj|block|norm|attn|attention|conv|linear|mlp|encode|decode"
    r"|forward|predict|sampl|match|warp|render|classif|fc"
)
"""Names of what computes with tensors that it is given."""
HALVES = frozenset({"float16", "bfloat16", "low"})


class AutocastDisabledWithoutUpcast(Rule):
    """autocast(enabled=False) around a product whose operands are half all the same.

    ## What it flags
    `@`, `matmul`, `bmm`, `einsum`, `F.linear`, convolutions, attention and layers with weights
    under `autocast(enabled=False)`, on tensors that the region around it has made half (the output
    of a layer, a product), or that the caller hands over from one, without `.float()`. Functions of
    the same file that hand their arguments to layers count as layers, and `autocast(dtype=
    torch.float32)` as switched off, which it is.

    A call of something unknown in a `with` that switches autocast off and in which nothing is cast
    up is `possible`.

    It stays silent for tensors that are float32 for certain: upcast operands, softmax, norms and
    sums, parameters, and under `custom_fwd(cast_inputs=torch.float32)`, which casts its arguments.
    What a function is given is only `possible`, unless a call shows that it is half, or a method in
    a project that trains under autocast leaves it for some statements and casts nothing.

    ## Why it breaks
    Switching autocast off stops further casts; it does not undo those that were made. A tensor that
    left a layer in float16 is float16 inside the inner region too, so the product runs in half and
    overflows as before: 65,536 products of values up to 4 are inf with and without the inner
    region. Where the other operand is a float32 weight, it raises `mat1 and mat2 must have the
    same dtype`.

    ## Example
    ```python
    hidden = self.proj(x)
    with torch.autocast(device_type=x.device.type, enabled=False):
        scores = torch.matmul(hidden, hidden.transpose(-1, -2))
    ```
    Use instead:
    ```python
    hidden = self.proj(x)
    with torch.autocast(device_type=x.device.type, enabled=False):
        scores = torch.matmul(hidden.float(), hidden.float().transpose(-1, -2))
    ```

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing. The result becomes float32, which the
    surrounding region takes as it is.

    ## How to silence
    `# precision-lint: ignore[MP203] reason` or `# noqa: MP203` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: `autocast(enabled=False)` in enabled regions, "inputs from
    the surrounding region should be cast to float32 before use".
    """

    code = "MP203"
    name = "autocast-disabled-without-upcast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(ast.Call, ast.MatMult, pattern=r"[Aa]utocast")

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        region = at.region(node)
        if not _is_off(region) or region.node is None or _casts_arguments(region.node, at):
            return
        found = Lowered.of(node, at) or _helped(node, at)
        if found is None or not found.operands:
            if isinstance(node, ast.Call) and _is_first_unknown(node, region.node, at):
                yield at.finding(
                    node,
                    "autocast is switched off around this and nothing is cast up: what came in "
                    "half is half inside as well",
                    Confidence.POSSIBLE,
                    evidence=(at.note(region.node, "autocast is switched off here"),),
                )
            return
        values = [at.value(operand) for operand in found.operands]
        if any(v.dtype == "float64" for v in values) or self._is_geometry(found, at):
            return
        left = [(o, _half(o, region.node, at)) for o in found.operands]
        halves = {o: half for o, half in left if half is not None}
        if not halves:
            return
        confidence = max((half[0] for half in halves.values()), key=lambda c: c.rank)
        evidence = [at.note(region.node, "autocast is switched off here")]
        for half in halves.values():
            evidence += [link for link in half[1] if link.start != evidence[0].start]
        statement = at.statement(node)
        edits = None
        if statement is not None:
            edits = at.edit.append(statement, dict.fromkeys(halves, ".float()"))
        names = list(dict.fromkeys(at.text(o)[:40] for o in halves))
        what = ", ".join(names)
        evidence = [*dict.fromkeys(evidence), *at.around(node, "this is to run in float32")]
        verb = "are" if len(names) > 1 else "is"
        raises = found.layer or any(v.dtype == "float32" for v in values)
        harm = "raises beside float32" if raises else "runs in half as before"
        yield at.finding(
            node,
            f"{what} {verb} half already: switching autocast off casts nothing up, {found.name} "
            f"{harm}",
            confidence,
            evidence=evidence,
            fix=Fix("upcast the operands", Applicability.SAFE, edits) if edits else None,
        )

    @staticmethod
    def _is_geometry(found: Lowered, at: Context) -> bool:
        _, operands = at.product(found.node)
        return bool(operands) and at.geometry(found.node, operands) is not None


def _is_first_unknown(node: ast.Call, manager: ast.expr, at: Context) -> bool:
    """Whether a call is the first of a block without autocast that computes nobody knows what, of
    tensors that may be half, in a block that casts nothing up."""
    block = next(
        (
            p
            for p in at.ancestors(node)
            if isinstance(p, (ast.With, ast.AsyncWith))
            and any(item.context_expr is manager for item in p.items)
        ),
        None,
    )
    if block is None or any(CAST.search(ast.unparse(statement)) for statement in block.body):
        return False
    calls = [c for s in block.body for c in ast.walk(s) if isinstance(c, ast.Call)]
    known = [c for c in calls if Lowered.of(c, at) is not None]
    unknown = [c for c in calls if _may_compute(c, at)]
    return not known and bool(unknown) and unknown[0] is node


def _may_compute(call: ast.Call, at: Context) -> bool:
    """Whether a call of an object or a function, of which nothing is known, is given what may be
    half tensors."""
    if at.qualify(call.func) is not None or not call.args:
        return False
    func = call.func
    own = isinstance(func, ast.Name) or (
        isinstance(func, ast.Attribute) and at.text(func.value) == "self"
    )
    name = getattr(func, "attr", getattr(func, "id", ""))
    if not own or name in dir(builtins) or not COMPUTES.search(name):
        return False
    values = [at.value(argument) for argument in call.args]
    return any(
        (v.dtype in HALVES or v.variable or v.kind == "unknown")
        and v.dtype != "float32"
        and not isinstance(a, ast.Constant)
        for v, a in zip(values, call.args, strict=True)
    )


def _casts_arguments(node: ast.expr, at: Context) -> bool:
    """Whether what switches autocast off is a decorator that brings its arguments up as well."""
    callee = node.func if isinstance(node, ast.Call) else node
    name = at.qualify(callee) or getattr(callee, "attr", getattr(callee, "id", ""))
    return str(name).endswith(("custom_fwd", "force_fp32"))


def _is_off(region: Region) -> bool:
    return region.state == "off" or (region.state == "on" and region.dtype == "float32")


def _made_within(operand: ast.expr, at: Context) -> bool:
    """Whether a value comes out of a function or product in the region, whose own operands are
    reported, or was brought up on the way there."""
    source = at.definition(operand.id, operand) if isinstance(operand, ast.Name) else None
    if source is not None and at.value(source).dtype == "float32":
        return True  # on one of several ways
    if isinstance(source, ast.Tuple) and all(at.value(e).dtype == "float32" for e in source.elts):
        return True
    return any(
        _is_off(at.region(origin)) and (_helped(origin, at) or Lowered.of(origin, at)) is not None
        for origin in Provenance.of(operand, at)
        if isinstance(origin, (ast.Call, ast.BinOp))
    )


def _helped(node: ast.Call | ast.BinOp, at: Context) -> Lowered | None:
    """A function of this file whose layers get what it is given, as it is."""
    helper = Helper.of(node, at) if isinstance(node, ast.Call) else None
    if helper is None or helper.module is not at.module or not isinstance(node, ast.Call):
        return None
    inside = at.inside(helper.function)
    operands: dict[int, ast.expr] = {}
    for part in helper.function.nodes:
        made = Lowered.of(part, inside) if isinstance(part, ast.Call) else None
        if made is not None and made.layer and inside.region(made.node).state == "inherited":
            given = helper.passed(made.operands[0])
            if given is not None:
                operands[id(given)] = given
    return Lowered(at.text(node.func), node, tuple(operands.values()), layer=True)


def _half(
    operand: ast.expr, manager: ast.expr, at: Context
) -> tuple[Confidence, tuple[Evidence, ...]] | None:
    """How sure it is that an operand came half into the region, and why; None: it did not."""
    value = at.value(operand)
    half = at.half(value, at.region(operand))
    if half is None or value.tags & {"parameter", "buffer"}:
        return None
    if "cast" in value.tags or value.dtype == "~cast":
        return None  # of this dtype on purpose
    if value.variable and _made_within(operand, at):
        return None
    source = at.definition(operand.id, operand) if isinstance(operand, ast.Name) else None
    made = Lowered.of(source, at) if source is not None else None
    if made is not None and source is not None:
        around = at.region(source)
        if around.state == "off":
            return None  # its own operands are reported
        note = at.note(source, "autocast makes it half here")
        if not value.variable:
            return half.confidence, (*half.evidence, note)
        known = at.project.autocast
        if around.state == "inherited" and at.plausible and known and at.believes(known):
            return Confidence.LIKELY, (note, known)
    if not value.variable:
        return half.confidence, half.evidence
    for passed in at.module.arguments(at.function, value.dtype[1:]):
        given = passed.value
        if passed.module is at.module and given.dtype in HALVES and "cast" not in given.tags:
            message = f"{at.function.qualname}() is given half tensors here"
            return Confidence.LIKELY, (at.note(passed.call, message),)
    known = at.project.autocast
    entered = [
        item.context_expr
        for around in at.ancestors(operand)
        if isinstance(around, (ast.With, ast.AsyncWith))
        for item in around.items
    ]
    # a module leaves autocast in the middle of its work; where all of a function does, by a
    # decorator or in its first statement, what it is given is its caller's
    body = at.function.node.body
    first = body[1:2] if isinstance(body[0], ast.Expr) else body[:1]
    inside = not set(first) & set(at.ancestors(operand))
    here = manager in entered and at.function.cls is not None and inside
    if known and at.believes(known) and at.plausible and here and not at.without_gradient:
        quiet = any("no_grad" in ast.unparse(manager) for manager in entered)
        if quiet or at.mentions(CAST.pattern):  # features of raw inputs
            return Confidence.POSSIBLE, half.evidence
        return Confidence.LIKELY, (*half.evidence, known)
    return Confidence.POSSIBLE, half.evidence
