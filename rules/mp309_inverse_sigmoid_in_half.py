from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Doubt,
    Evidence,
    Finding,
    Guard,
    LogOdds,
    Rule,
    Severity,
    Upcast,
    calls,
)

STEPS = {"float16": 2.0**-12, "bfloat16": 2.0**-9}
"""An epsilon up to here is lost in 1 - epsilon (half of a step, ties to even)."""


class InverseSigmoidInHalf(Rule):
    """Inverse sigmoid in half: infinite where the probability is 1.

    ## What it flags
    `torch.log(p.clamp(min=eps) / (1 - p).clamp(min=eps))`, with its parts in names or written
    with `+ eps`, where `p` may be float16 and `eps` is at most 1.53e-5; and `torch.logit(p, eps)`
    with an epsilon of at most 2.44e-4 where `p` may be float16, 1.95e-3 where it may be bfloat16.

    It stays silent where `p` is float32 (upcast, float32 boxes from the data), and for a larger
    epsilon. It is only `possible` where a name says that `p` comes from the data, and for a
    `torch.logit` of what is handed in.

    ## Why it breaks
    Detectors refine boxes by `inverse_sigmoid(reference)`, with eps = 1e-5. In float16 the
    quotient at p = 1 is 1/1e-5 = 1e5, beyond 65504, so the logarithm is inf, and so is every box
    after it; a half sigmoid is 1 from a logit of 8.32 on. `torch.logit` clamps to 1 - eps, which
    is 1 again: in float16 up to 2.44e-4 and in bfloat16 up to 1.95e-3, and logit(1) is inf.

    ## Example
    ```python
    x = reference.half()
    logit = torch.log(x.clamp(min=1e-5) / (1 - x).clamp(min=1e-5))
    ```
    Use instead:
    ```python
    x = reference.half()
    logit = torch.log(x.float().clamp(min=1e-5) / (1 - x.float()).clamp(min=1e-5)).to(x.dtype)
    ```

    ## Fix safety
    Safe: the probability is upcast wherever it stands in the formula, and the result, at most
    11.5 for 1e-5, returns to its dtype, so float32 results are the same to the bit (float64 comes
    down to float32).

    ## How to silence
    `# precision-lint: ignore[MP309] reason` or `# noqa: MP309` on the line; or take eps = 1e-3.

    ## Sources
    PyTorch, `torch.logit` (the input is clamped to [eps, 1 - eps]). Deformable DETR,
    arXiv:2010.04159, appendix A.4 (iterative refinement in inverse sigmoid space).
    """

    code, name = "MP309", "inverse-sigmoid-in-half"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = calls(
        "torch.log", "Tensor.log", "torch.logit", "torch.special.logit", "Tensor.logit"
    )

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is None:
            return
        name, argument = operation
        places: list[ast.expr]
        if name == "logit":
            epsilon, places = _epsilon(node, at), [argument]
            limits, doubt = STEPS, Doubt.strict
            tested = argument
        else:
            odds = LogOdds.of(argument, node, at)
            if odds is None:
                return
            epsilon, places = odds.guard.epsilon, list(odds.places)
            limits, doubt = {"float16": Guard.OVERFLOWS}, Doubt.lowered
            tested = odds.probability
        value = at.value(tested)
        half = at.half(value, at.region(node))
        if half is None or epsilon is None:
            return
        harmed = [d for d in limits if d in half.dtypes and 0 < epsilon <= limits[d]]
        if not harmed or value.hi < 1 - STEPS["bfloat16"]:
            return
        statement = at.statement(node)
        evidence: list[Evidence] = [*half.evidence]
        evidence += [
            at.note(place, "made of this")
            for place in places
            if at.statement(place) is not statement
        ]
        fate = (
            f"1 - {epsilon:g} is 1 in {harmed[0]}"
            if name == "logit"
            else f"1 / {epsilon:g} exceeds 65504"
        )
        yield at.finding(
            node,
            f"inverse sigmoid in {harmed[0]} gives inf at 1: {fate}",
            doubt(half, value, tested, at),
            evidence=evidence,
            fix=Upcast.of(places, node, at),
        )


def _epsilon(node: ast.Call, at: Context) -> float | None:
    """The epsilon of ``torch.logit``; None: it has none, and is inf at 1 in any dtype."""
    given = [k.value for k in node.keywords if k.arg == "eps"]
    given += node.args[1:2] if at.qualify(node.func) is not None else node.args[:1]
    const = at.value(given[0]).const if given else None
    return float(const) if isinstance(const, (int, float)) else None
