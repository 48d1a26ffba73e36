from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace

from precision_lint.api import (
    Applicability,
    Context,
    Doubt,
    Evidence,
    Finding,
    Fix,
    Guard,
    Half,
    Rule,
    Severity,
    calls,
)

LEAST = {"float16": "8.32", "bfloat16": "6.24"}
"""Logits from which on a sigmoid rounds to 1."""
REACHED = {"float16": 8.32, "bfloat16": 6.24}


class LogOneMinusSigmoid(Rule):
    """Logarithm of one minus a sigmoid that rounds to 1 in half, bfloat16 included.

    ## What it flags
    `torch.log(1 - torch.sigmoid(x))`, the same with an epsilon of at most 1.53e-5 or a clamp, as
    in focal losses and matching costs, and `torch.log1p(-torch.sigmoid(x))`, where the sigmoid may
    be float16 or bfloat16.

    It stays silent where the sigmoid is float32 (`torch.sigmoid(x.float())`), where the logits are
    clamped below 6.24. Softmax, exp and other producers are MP301's.

    ## Why it breaks
    Next to 1, float16 has steps of `2**-11` and bfloat16 of `2**-8`. A sigmoid is 1 in float16 from
    logits of 8.32 on and in bfloat16 from 6.24 on, and one minus it is 0. In float16 an epsilon up
    to 2.98e-8 is 0 too, so the logarithm is -inf. In bfloat16 `log(0 + 1e-8)` is finite and
    wrong: at x = 9 it is -18.4 instead of -9.0, off by 9.4, and its gradient with respect to x
    is 0. The examples that are wrong with confidence, which a focal loss is about, teach nothing.

    ## Example
    ```python
    p = torch.sigmoid(logits)
    loss = -torch.log(1 - p + 1e-8)
    ```
    Use instead:
    ```python
    p = torch.sigmoid(logits.float())
    loss = -torch.log(1 - p + 1e-8)
    ```

    ## Fix safety
    Safe: only `.float()` on the argument of the sigmoid is inserted, so float32 results are the
    same to the bit (float64 values come down to float32). `F.logsigmoid(-logits.float())` is
    better still, because float32's sigmoid is 1 from logits of 17 on, but it drops the epsilon.
    Where the sigmoid is not in sight the fix is only shown.

    ## How to silence
    `# precision-lint: ignore[MP302] reason` or `# noqa: MP302` on the line.

    ## Sources
    PyTorch, `torch.nn.functional.logsigmoid`; Automatic Mixed Precision, CUDA op-specific behavior
    (`sigmoid` is not listed and stays half under autocast).
    """

    code, name = "MP302", "log-one-minus-sigmoid"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = calls(
        "torch.log", "torch.log2", "torch.log10", "torch.log1p", "torch.log_", "Tensor.log",
        "Tensor.log2", "Tensor.log10", "Tensor.log1p", "Tensor.log_",
    )  # fmt: skip

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is None:
            return
        name, argument = operation
        guard = _negated(argument, at) if name == "log1p" else Guard.of(argument, node, at)
        if guard is None or guard.others or not 0 <= guard.epsilon <= Guard.OVERFLOWS:
            return
        if name != "log1p" and guard.complements(at) != "sigmoid":
            return
        half = at.half(at.value(guard.operand), at.region(node))
        dtypes = _harmed(half, guard, at) if half is not None else frozenset()
        if half is None or not dtypes:
            return
        half = replace(half, dtypes=dtypes)
        evidence: list[Evidence] = [*half.evidence]
        if not isinstance(guard.node, ast.Constant) and guard.epsilon:
            evidence.append(at.note(guard.node, f"this is {guard.epsilon:g}"))
        producer = guard.made(at)
        if producer is not None:
            evidence.append(at.note(producer, "the sigmoid is made here"))
        yield at.finding(
            node,
            _message(guard, half, name),
            Doubt.lowered(half, at.value(guard.operand), guard.operand, at),
            evidence=evidence,
            fix=_fix(node, guard, half, at),
        )


def _negated(node: ast.expr, at: Context) -> Guard | None:
    """The sigmoid in ``log1p(-sigmoid(x))``."""
    if not isinstance(node, ast.UnaryOp) or not isinstance(node.op, ast.USub):
        return None
    guard = Guard(node.operand, 0.0, node.operand)
    operation = at.operation(guard.made(at) or node)
    return guard if operation is not None and operation[0] == "sigmoid" else None


def _harmed(half: Half, guard: Guard, at: Context) -> frozenset[str]:
    """Half dtypes in which the sigmoid may round to 1."""
    producer = guard.made(at)
    operation = at.operation(producer) if producer is not None else None
    most = at.value(operation[1]).hi if operation is not None else float("inf")
    return frozenset(d for d in half.dtypes if most >= REACHED.get(d, 0.0))


def _fix(node: ast.Call, guard: Guard, half: Half, at: Context) -> Fix | None:
    """The upcast; behind the sigmoid it cures the epsilon of an entropy, but no sigmoid of 1."""
    fix = guard.fix(node, at)
    early = all(is_early for _, is_early in guard.upcasts(at))
    bounded = guard.epsilon > 0 and "float16" in half.dtypes and guard.times_itself(node, at)
    if fix is None or early or bounded:
        return fix
    why = "a sigmoid that is 1 in half stays 1: upcast what it is made of"
    return replace(fix, applicability=Applicability.DISPLAY, reason=why)


def _message(guard: Guard, half: Half, name: str) -> str:
    what = "-sigmoid" if name == "log1p" else "1 - sigmoid"
    becomes = "-1" if name == "log1p" else "0"
    text = f"{what} is {becomes} in {half.dtype} from logits of {LEAST[half.dtype]} on"
    if guard.epsilon == 0 or (half.dtype == "float16" and guard.epsilon <= Guard.VANISHES):
        lost = f" and epsilon {guard.epsilon:g} is 0 too" if guard.epsilon else ""
        return f"{text}{lost}, so {name} gives -inf"
    return f"{text}, so {name} gives that of epsilon {guard.epsilon:g} and no gradient"
