from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Edit,
    Finding,
    Fix,
    Guard,
    Noise,
    Outgrown,
    Rule,
    Severity,
    calls,
)

CHANCE = {
    "float16": "float16's is 0 in one of 4,000 elements",
    "bfloat16": "bfloat16's is 0 in one of 500 elements",
}


class RandomLogInHalf(Rule):
    """Logarithm of uniform noise that is drawn in half, where it is often exactly 0.

    ## What it flags
    `torch.log(u)` where `u` is `torch.rand_like(x)`, `torch.rand(..., dtype=x.dtype)` or
    `x.new_empty(...).uniform_()` and half: without an epsilon, or with one that is 0 in float16
    (at most 2.98e-8). That is how Gumbel and exponential noise are made by hand.

    It stays silent for noise in float32 (`torch.rand(shape)` is, under autocast too), for
    `log(1 - u)` (`u` is never 1), for an epsilon that the dtype holds, and for `F.gumbel_softmax`
    and `exponential_()`, which have no logarithm of 0.

    ## Why it breaks
    `rand` draws multiples of `2**-11` in float16 and of `2**-8` in bfloat16: measured, 2.5e-4 and
    1.9e-3 of all elements are exactly 0 (6e-8 in float32), and their logarithm is -inf. In a batch
    of 4,000 logits one is chosen by an infinite noise in every step, and its gradient is nan. The
    usual `+ 1e-8` or `+ 1e-20` rounds to 0 in float16. Autocast does not help: it takes the
    logarithm in float32, of a noise that is 0.

    ## Example
    ```python
    x = logits.half()
    noise = -torch.log(-torch.log(torch.rand_like(x) + 1e-8))
    ```
    Use instead:
    ```python
    x = logits.half()
    noise = (-torch.log(-torch.log(torch.rand_like(x, dtype=torch.float32) + 1e-8))).to(x.dtype)
    ```

    ## Fix safety
    Safe: float32 noise is drawn as before, and the result returns to the dtype that the noise had
    (Gumbel noise of float32 is at most 16.6). Where that dtype has no short name the result stays
    in float32, and the fix is unsafe.

    ## How to silence
    `# precision-lint: ignore[MP608] reason` or `# noqa: MP608` on the line.

    ## Sources
    PyTorch, `torch.rand`, `torch.Tensor.uniform_`, `torch.nn.functional.gumbel_softmax`; Jang et
    al., Categorical Reparameterization with Gumbel-Softmax, 2017.
    """

    code, name = "MP608", "random-log-in-half"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = calls("torch.log", "Tensor.log", "torch.log2", "Tensor.log2")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = at.operation(node)
        if operation is None:
            return
        guard = Guard.of(operation[1], node, at)
        if guard is not None and guard.others:
            return
        noise = Noise.of(guard.operand if guard is not None else operation[1], at)
        if noise is None:
            return
        half = at.half(at.value(noise.call), at.region(noise.call))
        epsilon = guard.epsilon if guard is not None else 0.0
        if half is None or epsilon > Guard.VANISHES:
            return
        dtypes = half.dtypes if epsilon == 0 else half.dtypes & {"float16"}
        if not dtypes:
            return
        dtype = "float16" if "float16" in dtypes else "bfloat16"
        against = f", and epsilon {epsilon:g} is 0 there" if epsilon else ""
        touched = []
        if at.statement(noise.call) is not at.statement(node):
            touched.append(at.note(noise.call, "drawn in half here"))
        yield at.finding(
            node,
            f"logarithm of uniform noise in half: {CHANCE[dtype]}{against}",
            Outgrown.confidence(half, noise.call, at, pure=True),
            evidence=[*half.evidence, *touched, *at.around(node, "the noise")],
            fix=_fix(node, noise, at),
        )


def _fix(node: ast.Call, noise: Noise, at: Context) -> Fix | None:
    torch, imports = at.torch()
    title = "draw the noise in float32"
    drawn = _drawn(noise.call, f"{torch}.float32", at)
    outer, statement = _outermost(node, at), at.statement(node)
    origin = at.statement(noise.call)
    if drawn is None or statement is None or origin is None:
        return None
    suffix = f".to({noise.dtype})" if noise.dtype else ""
    edits: tuple[Edit, ...] | None
    if origin is statement:
        text, start = at.text(outer), at.edit.offset(outer)
        first, last = at.edit.offset(noise.call) - start, at.edit.end(noise.call) - start
        text = text[:first] + drawn + text[last:]
        if suffix:
            text = f"{text}{suffix}" if isinstance(outer, ast.Call) else f"({text}){suffix}"
        edits = None if "#" in text else at.edit.replace(statement, {outer: text})
    else:
        edits = at.edit.replace(origin, {noise.call: drawn})
        back = at.append({outer: suffix}) if suffix else ()
        edits = None if edits is None or back is None else (*edits, *back)
    if edits is None:
        return None
    if not suffix:
        why = "the result is float32 then, and a layer in half would not take it"
        return Fix(title, Applicability.UNSAFE, (*imports, *edits), why)
    title += ", and return to its dtype"
    return Fix(title, Applicability.SAFE, (*imports, *edits))


def _drawn(call: ast.Call, dtype: str, at: Context) -> str | None:
    """A creation as it is, but of ``dtype``."""
    if any(k.arg is None for k in call.keywords):
        return None
    given = [at.text(argument) for argument in call.args]
    given += [f"{k.arg}={at.text(k.value)}" for k in call.keywords if k.arg != "dtype"]
    return f"{at.text(call.func)}({', '.join([*given, f'dtype={dtype}'])})"


def _outermost(node: ast.expr, at: Context) -> ast.expr:
    """The noise that a logarithm is made into: behind a sign, a number, another logarithm."""
    outer = node
    for parent in at.ancestors(node):
        match parent:
            case ast.UnaryOp(op=ast.USub()):
                pass
            case ast.BinOp(left=left, right=right):
                other = right if left is outer else left
                if at.value(other).kind != "number":
                    break
            case ast.Attribute(attr="log" | "neg" | "clamp" | "log_" | "neg_" | "log2"):
                continue
            case ast.Call():
                operation = at.operation(parent)
                if operation is None or operation[0] not in ("log", "neg", "clamp", "log2"):
                    break
            case _:
                break
        outer = parent
    return outer
