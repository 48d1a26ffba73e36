from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Outgrown,
    Rule,
    Severity,
    Upcast,
    calls,
)

LIMITS = {"exp": 11.09, "expm1": 11.09, "exp2": 16.0}
"""The arguments from which on the result exceeds 65504."""
CASTS = frozenset({"float", "double", "to", "type"})
WIDE = re.compile(r"torch\.(float|double)|device|cuda|cpu|FloatTensor")
"""What a cast names that is no way back to half."""
LOGS = frozenset({"log", "log1p", "logsumexp"})
SCALES = re.compile(r"log_?(var|std|scale|sigma|alpha|decay|dt|lambda)|logit_scale|ln_", re.I)
"""Names of logarithms of scales, which stay near 0."""
ENTROPY = re.compile(r"\b(\w+) ?\* ?\(?(?:torch\.)?(?:log\w*\()?\1\b")
"""``p * log(p)``, ``p * (p + eps).log()``."""


class ExpInHalf(Rule):
    """Exponential of a float16 value from which no maximum was subtracted.

    ## What it flags
    `torch.exp(x)` and `torch.expm1(x)` of float16 values: after a cast, of what a region has left
    in half, in CPU autocast; and `torch.exp2`, which CUDA autocast leaves in half as well.

    It stays silent for `x - x.max()` and other arguments that are below 11.09, for bounded ones
    (sigmoid, a layer norm, a clamp), for bfloat16, inside CUDA autocast, which runs `exp` in
    float32, and where another rule says more: MP303 for `log(exp(x).sum())`, MP304 for an
    exponential that is upcast right behind. Logarithms of scales (`log_var`, `logit_scale`) are
    `possible`, and so is what the project alone suggests to be half, or nothing does.

    ## Why it breaks
    The logarithm of 65504 is 11.09: from there on `exp` is inf in float16, where float32 takes
    88.7 (16 for `exp2`). A softmax by hand divides inf by inf, which is nan.

    ## Example
    ```python
    scores = logits.half()
    weights = torch.exp(scores)
    ```
    Use instead:
    ```python
    scores = logits.half()
    weights = torch.exp(scores.float())
    ```
    or `torch.exp(scores - scores.amax(-1, keepdim=True))`, where weights are normalised afterwards.

    ## Fix safety
    Safe where the exponential ends in a loss or a metric: `.float()` on float32 does nothing.
    Elsewhere unsafe: it stays in float32, and a layer in half would not take it.

    ## How to silence
    `# precision-lint: ignore[MP603] reason` or `# noqa: MP603` on the line; or clamp the argument.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float32 (`exp`, `expm1`; `exp2`
    is not listed); `torch.finfo`.
    """

    code, name = "MP603", "exp-in-half"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = calls("torch.exp", "Tensor.exp", "torch.exp2", "Tensor.exp2", "torch.expm1",
                     "Tensor.expm1")  # fmt: skip

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is None or operation[0] not in LIMITS:
            return
        name, operand = operation
        limit, given, value = LIMITS[name], at.value(operand), at.value(node)
        half = at.float16(value, at.region(node))
        if half is None or given.hi < limit:
            return
        taken = at.qualify(node.func) is not None  # torch.exp takes tensors only
        if not given.maybe_tensor or not (taken or at.is_tensor(operand)):
            return
        confidence = Outgrown.reaching(half, operand, at)
        if _below(operand, at) or Outgrown.bounded(operand, at, limit) or _elsewhere(node, at):
            return
        if SCALES.search(at.text(operand)):
            confidence = Confidence.POSSIBLE
        yield at.finding(
            node,
            f"{name} in float16 is inf from {limit:g} on, and nothing bounds its argument",
            confidence,
            evidence=half.evidence,
            fix=Upcast.of([operand], node, at, fits=False),
        )


def _below(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether an argument is bounded by its form: a maximum subtracted, a distance negated, or an
    entropy, which is at most the logarithm of how many there are."""
    match node:
        case ast.Name(id=name):
            source = at.definition(name, node) if depth else None
            return source is not None and _below(source, at, depth - 1)
        case ast.UnaryOp(op=ast.USub(), operand=inner):
            words = at.text(inner)
            if "log" in words and ENTROPY.search(words):
                return True
            return re.search(r"dist|\*\* ?2|square|abs|pow|cost|energy|norm", words) is not None
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return re.search(r"max|logsumexp|lse", at.text(right)) is not None or (
                _below(left, at, depth)
            )
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return _below(left, at, depth) or _below(right, at, depth)
        case ast.Subscript(value=inner):
            return _below(inner, at, depth)
    return False


def _elsewhere(node: ast.expr, at: Context) -> bool:
    """Whether another rule speaks of this exponential: of its late upcast, or its logarithm."""
    parent = at.parents.get(id(node))
    call = at.parents.get(id(parent)) if isinstance(parent, ast.Attribute) else None
    if isinstance(parent, ast.Attribute) and isinstance(call, ast.Call) and parent.attr in CASTS:
        back = parent.attr in ("to", "type") and WIDE.search(at.text(call)) is None
        return not back  # MP304
    for around in at.ancestors(node):
        operation = at.operation(around) if isinstance(around, ast.Call) else None
        if operation is not None and operation[0] in LOGS:
            summed = at.operation(operation[1])
            return summed is not None and summed[0] == "sum"  # MP303
        if isinstance(around, ast.stmt):
            break
    return False
