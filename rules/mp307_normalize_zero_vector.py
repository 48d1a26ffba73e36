from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Doubt,
    Finding,
    Guard,
    Quotient,
    Rule,
    Severity,
    Upcast,
    operators,
)

ZEROS = re.compile(r"(?i)mask|pad|relu|zero|empty|dropout|sparse|valid|clamp|\bdiff\b|cross\(")
"""What code speaks of whose vectors may be 0."""
DEFAULTS = {"normalize": (1e-12, 3), "cosine_similarity": (1e-8, 3)}
"""The epsilon of an operation where none is passed, and at which position it is."""


class NormalizeZeroVector(Rule):
    """Normalisation of a vector that may be 0, with an epsilon that is 0 in float16.

    ## What it flags
    `F.normalize` (whose default epsilon is 1e-12), `F.cosine_similarity` and
    `nn.CosineSimilarity` (1e-8), and
    `x / (x.norm() + eps)` or `x / x.norm().clamp(min=eps)` with an epsilon of at most 2.98e-8,
    where the operation runs on float16: in a half model, on a tensor that was cast, in CPU
    autocast.

    It stays silent inside CUDA autocast, which runs all of them in float32, for upcast operands,
    for bfloat16, for an epsilon that float16 holds, and for a norm without any epsilon, which is
    nan in float32 too. It is only `possible` in a project that trains under autocast, for an
    epsilon from 2.98e-8 to 1.53e-5, which only makes gradients infinite, and for a default epsilon
    where neither the function nor its class speaks of what makes a vector 0 (a mask, padding, a
    ReLU, dropout) and what is normalised is no difference.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8: 1e-8 and 1e-12 round to 0. A vector of
    zeros (a padded token, a dead feature behind a ReLU, a masked row) is divided by 0, and 0/0 is
    nan, which a similarity matrix or an attention spreads over the batch. In float32 the result
    is 0, which is what the epsilon is for.

    ## Example
    ```python
    x = torch.relu(features.half())
    unit = F.normalize(x, dim=-1)
    ```
    Use instead:
    ```python
    x = torch.relu(features.half())
    unit = F.normalize(x.float(), dim=-1).to(x.dtype)
    ```

    ## Fix safety
    Safe: the operands are upcast and the result returns to their dtype, so float32 results are
    the same to the bit (float64 comes down to float32).

    ## How to silence
    `# precision-lint: ignore[MP307] reason` or `# noqa: MP307` on the line; or pass `eps=1e-6`.

    ## Sources
    PyTorch, `torch.nn.functional.normalize` (`eps=1e-12`), `torch.nn.functional.cosine_similarity`
    (`eps=1e-8`).
    """

    code, name = "MP307", "normalize-zero-vector"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = operators(
        ast.Call, ast.Div, pattern=r"normalize\(|cosine_similarity\(|CosineSimilarity|norm\w*\("
    )

    def check(self, node: ast.expr, at: Context) -> Iterator[Finding]:
        operation = _layer(node, at) or at.operation(node)
        if operation is not None and operation[0] in DEFAULTS and isinstance(node, ast.Call):
            yield from self._operation(node, operation[0], at)
            return
        quotient = Quotient.of(node, at)
        if quotient is None or quotient.guard.epsilon > Guard.OVERFLOWS:
            return
        guard = quotient.guard
        if not quotient.by_norm(at) or quotient.away(at):
            return
        value = at.value(guard.operand)
        half = at.float16(value, at.region(node))
        if half is None or guard.before_log(node, at):
            return
        confidence = Doubt.lowered(half, value, guard.operand, at)
        survives = guard.epsilon > Guard.VANISHES
        if survives and guard.without_gradient(node, at):
            return
        if survives and confidence is not Confidence.CERTAIN:
            confidence = Confidence.POSSIBLE
        evidence = [*half.evidence]
        if not isinstance(guard.node, ast.Constant):
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        fate = (
            f"survives in float16, but the gradient {1 / guard.epsilon:.3g} of a zero vector is inf"
            if survives
            else "rounds to 0 in float16, so a zero vector gives nan"
        )
        fix, touched = quotient.fix(at)
        yield at.finding(
            node,
            f"epsilon {guard.epsilon:g} beside a norm {fate}",
            confidence,
            evidence=[*evidence, *touched],
            fix=fix,
        )

    def _operation(self, node: ast.Call, name: str, at: Context) -> Iterator[Finding]:
        epsilon = _epsilon(node, name, at)
        if epsilon is None or epsilon > Guard.VANISHES:
            return
        value = at.value(node)  # what autocast makes of it
        half = at.float16(value, at.region(node))
        if half is None:
            return
        operands = node.args[: 2 if name == "cosine_similarity" else 1]
        if not operands or any(isinstance(operand, ast.Starred) for operand in operands):
            return
        explicit = "eps" in {k.arg for k in node.keywords} or len(node.args) > DEFAULTS[name][1]
        given = "epsilon" if explicit else "the default epsilon"
        confidence = Doubt.lowered(half, value, operands[0], at)
        if confidence is Confidence.LIKELY and not explicit and not _may_be_zero(operands, at):
            confidence = Confidence.POSSIBLE
        yield at.finding(
            node,
            f"{given} {epsilon:g} of {name} rounds to 0 in float16, so a zero vector gives nan",
            confidence,
            evidence=half.evidence,
            fix=Upcast.of(list(operands), node, at),
        )


def _layer(node: ast.expr, at: Context) -> tuple[str, ast.expr] | None:
    """``self.cosine(x, y)`` of an ``nn.CosineSimilarity`` that keeps its epsilon of 1e-8."""
    cls = at.function.cls
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or cls is None:
        return None
    if len(node.args) != 2 or at.text(node.func.value) != "self":
        return None
    stored = at.module.stores(cls).get(node.func.attr)
    made = stored[0] if stored is not None else None
    if not isinstance(made, ast.Call) or at.qualify(made.func) != "torch.nn.CosineSimilarity":
        return None
    if len(made.args) > 1 or any(k.arg in ("eps", None) for k in made.keywords):
        return None
    return "cosine_similarity", node.args[0]


def _may_be_zero(operands: Sequence[ast.expr], at: Context) -> bool:
    """Whether a difference is normalised, or the code around speaks of what makes vectors 0."""
    for operand in operands:
        made = at.definition(operand.id, operand) if isinstance(operand, ast.Name) else operand
        if isinstance(made, ast.BinOp) and isinstance(made.op, ast.Sub):
            return True
    cls = at.function.cls
    methods = cls.methods.values() if cls is not None else [at.function]
    return any(ZEROS.search(ast.unparse(method.node)) for method in methods)


def _epsilon(node: ast.Call, name: str, at: Context) -> float | None:
    default, place = DEFAULTS[name]
    given = next((k.value for k in node.keywords if k.arg == "eps"), None)
    if given is None and len(node.args) > place:
        given = node.args[place]
    if given is None:
        return None if any(k.arg is None for k in node.keywords) else default
    const = at.value(given).const
    return float(const) if isinstance(const, (int, float)) else None
