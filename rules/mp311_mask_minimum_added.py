from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Helper,
    Rule,
    Severity,
    calls,
    operators,
)

LARGEST = 65504.0
SHAPED = frozenset({
    "to", "type_as", "view", "reshape", "unsqueeze", "squeeze", "expand", "repeat", "triu", "tril",
    "contiguous", "transpose", "permute", "expand_as", "flatten", "clone", "float", "half",
    "bfloat16",
})  # fmt: skip
FILLED = frozenset({"full", "full_like", "new_full", "masked_fill", "masked_fill_", "where"})

INFINITE = frozenset({
    'float("-inf")', '-float("inf")', "-torch.inf", "-math.inf", "-np.inf", "-numpy.inf",
})  # fmt: skip


SDPA = "scaled_dot_product_attention"
CASTS = frozenset({"to", "type_as", "type", "half", "bfloat16"})
MASK = re.compile(r"mask|bias")
NARROW = re.compile(r"dtype$|float16|torch\.half|^(q|query|x|scores|hidden_states)$")
"""What a mask is cast to where that may be half: the dtype of activations."""
MINIMUM = re.compile(r"finfo\([^\n]*\)\.min|-1e\+?\d{2}|-3\.4\d*e\+?38")
"""Fill values that are finite in float32 alone."""


class MaskMinimumAdded(Rule):
    """Additive mask of a dtype's smallest number, added to another one or to scores.

    ## What it flags
    The sum of two masks that hold `torch.finfo(dtype).min` (or a literal close to -65504), in one
    expression such as `scores + causal + padding`, where the sum may be half, also where a short
    function of the project makes them; `finfo(dtype).min` times 2 or more; in a project that runs
    half precision an additive mask that is cast as `scaled_dot_product_attention` gets it, in a
    file that fills with a minimum. As `possible`: a causal mask as one of the two, which leaves the
    diagonal to the other; one such mask added to scores that may be float16; and
    `masked_fill(mask, -inf)` in a function with a softmax.

    It stays silent for one `masked_fill` with the minimum, for masks of -1e4, for masks whose
    minimum is taken (`torch.minimum`), for boolean masks, and in bfloat16 for float16's minimum.

    ## Why it breaks
    The minimum has no room below it: min + min is -inf, in bfloat16 and float32 too, and in
    float16 -65504 - 17 is. A row whose entries are all -inf is nan in softmax, and nan spreads
    over the batch: a sample without any token that a second mask hits as well. With the minimum
    alone the same row is uniform, which is harmless.

    ## Example
    ```python
    low = torch.finfo(torch.float16).min
    bias = banned * low + padding * low
    ```
    Use instead:
    ```python
    low = torch.finfo(torch.float16).min
    bias = torch.minimum(banned * low, padding * low)
    ```

    ## Fix safety
    Unsafe: `torch.minimum` of both masks takes the place of their sum. Entries that one mask hits
    are the same to the bit; those that both hit are the minimum instead of -inf (in float32 with
    a float16 minimum: -65504 instead of -131008). There is no fix where the masks are added in
    two statements, nor for one mask: use `masked_fill` on the scores.

    ## How to silence
    `# precision-lint: ignore[MP311] reason` or `# noqa: MP311` on the line.

    ## Sources
    PyTorch, `torch.finfo`, `torch.nn.functional.scaled_dot_product_attention` (boolean masks).
    """

    code, name = "MP311", "mask-minimum-added"
    severity, applicability = Severity.WARNING, Applicability.UNSAFE
    triggers = operators(
        ast.Add, ast.Mult, pattern=r"finfo|655\d\d|-6\.?5?e\+?4|inf|mask\w*\("
    ) | calls(
        "Tensor.masked_fill",
        "Tensor.masked_fill_",
        "torch.masked_fill",
        "torch.nn.functional.scaled_dot_product_attention",
    )

    def check(self, node: ast.expr, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") != SDPA:
            if at.qualify(node.func) != f"torch.nn.functional.{SDPA}":
                yield from self._infinite(node, at)
                return
        if isinstance(node, ast.Call):
            yield from self._narrowed(node, at)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
            yield from self._multiplied(node, at)
        elif isinstance(node, ast.BinOp):
            yield from self._added(node, at)

    def _added(self, node: ast.BinOp, at: Context) -> Iterator[Finding]:
        if not _has_minimum(node.right, at) and not _has_minimum(node.left, at):
            return
        half = at.half(at.value(node), at.region(node))
        if half is None:
            return
        masks = [term for term in _terms(node, at) if _has_minimum(term, at)]
        if "float16" not in half.dtypes and all(_of_float16(mask, at) for mask in masks):
            return  # bfloat16 has room for twice that
        if len(masks) > 1:
            yield at.finding(
                node,
                "two masks of the smallest number are added: their sum is -inf, and a row that "
                "both mask is nan in softmax",
                Confidence.POSSIBLE if any(_is_causal(m, at) for m in masks) else half.confidence,
                evidence=half.evidence,
                fix=_fix(node, at),
            )
        elif "float16" in half.dtypes:
            yield at.finding(
                node,
                "a mask of the smallest number is added to scores: below -16 the sum is -inf in "
                "float16",
                Confidence.POSSIBLE,
                evidence=half.evidence,
            )

    def _multiplied(self, node: ast.BinOp, at: Context) -> Iterator[Finding]:
        for one, other in ((node.left, node.right), (node.right, node.left)):
            factor = at.value(other).const if _is_minimum(one, at) else None
            if isinstance(factor, (int, float)) and factor > 1:
                yield at.finding(
                    node,
                    f"{factor:g} times the smallest number of a dtype is beyond it",
                    Confidence.LIKELY if at.project.evidence else Confidence.POSSIBLE,
                    evidence=at.project.evidence[:1],
                )

    def _narrowed(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A mask that attention gets in another dtype than that whose minimum it holds."""
        given = next((k.value for k in node.keywords if k.arg == "attn_mask"), None)
        if given is None:
            given = node.args[3] if len(node.args) > 3 else None
        if isinstance(given, ast.IfExp):
            given = given.orelse if isinstance(given.body, ast.Constant) else given.body
        cast = _cast_mask(given, at) if given is not None else None
        if cast is None or not MINIMUM.search(at.source.text):
            return
        yield at.finding(
            cast,
            "a mask that holds the smallest number of float32 is -inf in half: a row that is "
            "masked as a whole is nan in softmax",
            Care.offered(at),
            evidence=at.settings[:1],
        )

    def _infinite(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """``-inf`` filled into what a softmax of this function may get."""
        if not node.args or ast.unparse(node.args[-1]).replace("'", '"') not in INFINITE:
            return
        text = at.text(node).lower()
        if "causal" in text or "triu" in text or "tril" in text or not at.mentions(r"[sS]oftmax"):
            return
        half = at.half(at.value(node), at.region(node))
        if half is not None:
            yield at.finding(
                node,
                "a row that is masked as a whole is -inf, and nan in softmax",
                Confidence.POSSIBLE,
                evidence=half.evidence,
            )


def _cast_mask(node: ast.expr, at: Context) -> ast.Call | None:
    """The cast of an additive mask, which may be the last thing that its name was bound to."""
    if isinstance(node, ast.Name) and MASK.search(node.id.lower()):
        made = [
            part.value
            for part in at.function.nodes
            if isinstance(part, ast.Assign)
            and part.lineno < node.lineno
            and any(isinstance(t, ast.Name) and t.id == node.id for t in part.targets)
        ]
        node = made[-1] if made else node
    match node:
        case ast.Subscript(value=inner):
            return _cast_mask(inner, at)
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in SHAPED - CASTS:
            return _cast_mask(inner, at)  # behind views
        case ast.Call(func=ast.Attribute(value=inner, attr=name)) if name in CASTS:
            if not MASK.search(at.text(inner).lower()):
                return None
            target = [*node.args, *(k.value for k in node.keywords if k.arg == "dtype")]
            named = any(NARROW.search(at.text(t)) for t in target)
            return node if named or name in ("half", "bfloat16", "type_as") else None
    return None


def _terms(node: ast.expr, at: Context, depth: int = 3) -> Iterator[ast.expr]:
    """The terms of a sum; a name stands for what it was bound to."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        yield from _terms(node.left, at, depth)
        yield from _terms(node.right, at, depth)
        return
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Add):
            yield from _terms(source, at, depth - 1)
            return
    yield node


def _has_minimum(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether a term is a mask that holds the smallest number of a dtype."""
    match node:
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _is_minimum(left, at) or _is_minimum(right, at)
        case ast.Subscript(value=inner):
            return _has_minimum(inner, at, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return source is not None and _has_minimum(source, at, depth - 1)
        case ast.Call(args=arguments, keywords=keywords):
            operation = at.operation(node)
            if operation is None:
                return depth > 0 and _gives_minimum(node, at, depth)
            if operation[0] in SHAPED:
                return _has_minimum(operation[1], at, depth)
            if operation[0] == "masked_fill" and at.value(operation[1]).lo != 0:
                return False  # scores, not a mask
            given = [*arguments, *(keyword.value for keyword in keywords)]
            return operation[0] in FILLED and any(_is_minimum(item, at) for item in given)
    return False


def _gives_minimum(call: ast.Call, at: Context, depth: int) -> bool:
    """Whether a short function of the project returns such a mask."""
    helper = Helper.of(call, at)
    if helper is None:
        return False
    there = at.of(helper.module, helper.function)
    given = [n.value for n in helper.function.nodes if isinstance(n, ast.Return) and n.value]
    return bool(given) and all(_has_minimum(value, there, depth - 1) for value in given)


def _of_float16(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether the smallest number that a mask holds is float16's for certain."""
    for part in ast.walk(node):
        if isinstance(part, (ast.Attribute, ast.Constant, ast.UnaryOp)) and _is_minimum(part, at):
            const = at.value(part).const
            return isinstance(const, (int, float)) and const >= -LARGEST
        if isinstance(part, ast.Name) and depth:
            source = at.definition(part.id, part)
            if source is not None and _of_float16(source, at, depth - 1):
                return True
    return False


def _is_causal(node: ast.expr, at: Context) -> bool:
    """Whether a mask never hits a row as a whole."""
    source = at.definition(node.id, node) if isinstance(node, ast.Name) else None
    text = f"{at.text(node)} {at.text(source) if source is not None else ''}".lower()
    return "causal" in text or "triu" in text or "tril" in text


def _is_minimum(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """``torch.finfo(...).min``, or a literal near float16's smallest number."""
    match node:
        case ast.Attribute(value=ast.Call(func=func), attr="min"):
            return (at.qualify(func) or "").endswith(".finfo")
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            if source is not None:
                return _is_minimum(source, at, depth - 1)
    const = at.value(node).const
    return isinstance(const, (int, float)) and -LARGEST <= const <= -LARGEST / 2


def _fix(node: ast.BinOp, at: Context) -> Fix | None:
    """``torch.minimum`` of two masks that stand side by side."""
    statement = at.statement(node)
    left, right = node.left, node.right
    scores = ""
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Add):
        scores, left = f"{at.text(left.left)} + ", left.right
    if not (_has_minimum(left, at) and _has_minimum(right, at)) or statement is None:
        return None
    spelling, imports = at.torch()
    text = f"{scores}{spelling}.minimum({at.text(left)}, {at.text(right)})"
    edits = at.edit.replace(statement, {node: text})
    if edits is None or "#" in at.text(node):
        return None
    why = "entries that both masks hit are the smallest number instead of the sum"
    return Fix("take the minimum of both masks", Applicability.UNSAFE, (*imports, *edits), why)
