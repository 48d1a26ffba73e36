from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Doubt,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)

LOST = {
    "sigmoid": "is 0 in float16 for logits below -17",
    "softmax": "is 0 in float16 for logits 17 below the largest",
    "logsumexp": "overflows in float16 for values above 11.09",
}
STABLE = {"sigmoid": "logsigmoid", "softmax": "log_softmax", "logsumexp": "logsumexp"}
EXPONENT = 11.09
"""From here on an exponential overflows in float16."""


class LogOfProbability(Rule):
    """Logarithm of a sigmoid, a softmax or a sum of exponentials, computed in two steps in half.

    ## What it flags
    `torch.log(torch.sigmoid(x))`, `F.softmax(x, dim=-1).log()` and `x.exp().sum(dim).log()`, each
    in one expression, where the first step may be float16.

    It stays silent where that step is float32 (upcast; a softmax or exp inside a CUDA autocast
    region), for bfloat16, whose exponents hold what these steps make, for exponentials that are
    bounded, and where a name holds the probability, which other code may need (MP301).

    ## Why it breaks
    A sigmoid or a softmax below `2**-25` is 0 in float16, which is reached 17 below the largest
    logit, and its logarithm is -inf; the gradient, 0/0, is nan. An exponential is inf from 11.09
    on. The sigmoid stays half under autocast as well. `F.logsigmoid`, `log_softmax` and
    `logsumexp` are one step, in which nothing of this is formed: they are finite, forward and
    backward, in pure half too.

    ## Example
    ```python
    loss = -torch.log(torch.softmax(logits.half(), dim=-1)).mean()
    ```
    Use instead:
    ```python
    loss = -torch.log_softmax(logits.half(), dim=-1, dtype=torch.float32).mean()
    ```

    ## Fix safety
    Unsafe, because one step rounds differently: float32 results change by about 1e-6, and become
    finite where they were -inf. A `log_softmax` is taken with `dtype=torch.float32`, because half
    rounds log-probabilities to 3 digits; its result is float32 then. There is no fix for a sum
    over all dimensions, and none for an epsilon in between, which the stable form would drop.

    ## How to silence
    `# precision-lint: ignore[MP303] reason` or `# noqa: MP303` on the line.

    ## Sources
    PyTorch, `torch.nn.functional.log_softmax` ("doing these two operations separately is slower
    and numerically unstable"), `torch.nn.functional.logsigmoid`, `torch.logsumexp`.
    """

    code, name = "MP303", "log-of-probability"
    severity, applicability = Severity.ERROR, Applicability.UNSAFE
    triggers = calls("torch.log", "Tensor.log")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is None or operation[0] != "log":
            return
        argument = operation[1]
        made = _made(argument, at)
        if made is None:
            return
        name, call = made
        value = at.value(call)
        half = at.float16(value, at.region(call))
        if half is None:
            return
        what = "a sum of exponentials" if name == "logsumexp" else f"a {name}"
        yield at.finding(
            node,
            f"log of {what}, which {LOST[name]}; use {STABLE[name]}",
            Doubt.lowered(half, value, call, at),
            evidence=half.evidence,
            fix=_fix(node, argument, name, at),
        )


def _made(node: ast.expr, at: Context) -> tuple[str, ast.Call] | None:
    """What a logarithm is taken of, and the call whose dtype matters."""
    operation = at.operation(node)
    if operation is None or not isinstance(node, ast.Call):
        return None
    name, operand = operation
    if name in ("sigmoid", "softmax"):
        return name, node
    inner = at.operation(operand) if name == "sum" else None
    if inner is None or inner[0] != "exp" or not isinstance(operand, ast.Call):
        return None
    return ("logsumexp", operand) if at.value(inner[1]).hi > EXPONENT else None


def _fix(node: ast.Call, argument: ast.expr, name: str, at: Context) -> Fix | None:
    statement = at.statement(node)
    if statement is None or not isinstance(argument, ast.Call):
        return None
    spelling, imports = at.torch()
    functional = at.qualify(argument.func) is not None
    given = [*argument.args, *(keyword.value for keyword in argument.keywords)]
    if any(isinstance(item, ast.Starred) for item in given):
        return None
    operation = at.operation(argument)
    if operation is None:
        return None
    operand = operation[1]
    rest = [at.text(item) for item in argument.args[1 if functional else 0 :]]
    rest += [f"{k.arg}={at.text(k.value)}" for k in argument.keywords if k.arg]
    if name == "sigmoid":
        text = f"{spelling}.nn.functional.logsigmoid({at.text(operand)})"
    elif name == "softmax":
        if not any(k.arg == "dtype" for k in argument.keywords):
            rest.append(f"dtype={spelling}.float32")
        text = f"{spelling}.log_softmax({', '.join([at.text(operand), *rest])})"
    else:
        inner = at.operation(operand)
        if inner is None or not rest:
            return None  # logsumexp has to be told a dimension
        text = f"{spelling}.logsumexp({', '.join([at.text(inner[1]), *rest])})"
    edits = at.edit.replace(statement, {node: text})
    if edits is None or "#" in at.text(node):
        return None
    return Fix(
        f"use {STABLE[name]}",
        Applicability.UNSAFE,
        (*imports, *edits),
        "float32 results change in the last digits, and are finite where they were -inf",
    )
