from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Outgrown,
    Rule,
    Severity,
    Upcast,
    calls,
    operators,
)

TABLE = re.compile(r"^alphas?_?(?:cumprod|bars?)$")
"""Names of the products that a schedule keeps."""
SCHEDULE = re.compile(r"alpha|beta|(?<![a-z])acp|signal|noise", re.I)


class ScheduleInHalf(Rule):
    """Noise schedule of a diffusion model whose cumulative product is taken in half.

    ## What it flags
    `torch.cumprod(1 - betas, dim=0)` and `alphas.cumprod(0)` of float16 or bfloat16 betas: made
    with a half dtype, after a cast, outside of CUDA autocast. Also `1 - table[t]` where the table
    of products was finished in float32 and is half when it is read: cast to the dtype of half
    latents, or a buffer of a module that is made half.

    It stays silent for float32 and float64 schedules, where the finished table is cast and not
    subtracted from 1, in CUDA autocast, which runs `cumprod` in float32, and for products that are
    no schedule by their names.

    ## Why it breaks
    `1 - 1e-4` rounds to 1 in float16 (its neighbour below is 0.9995), and in bfloat16 everything
    above 0.998 does. The product itself is 0.3 % off in float16; what breaks is one minus it:
    measured for the linear schedule of 1000 steps from 1e-4 to 0.02, the standard deviation of the
    noise is 0 for the first steps, and a step that divides by it is inf or nan.

    ## Example
    ```python
    betas = torch.linspace(1e-4, 0.02, 1000).half()
    alphas_bar = torch.cumprod(1 - betas, dim=0)
    ```
    Use instead:
    ```python
    betas = torch.linspace(1e-4, 0.02, 1000).half()
    alphas_bar = torch.cumprod(1 - betas.float(), dim=0)
    ```
    or make the schedule in float64 once, and cast what is picked from it for a step.

    ## Fix safety
    Unsafe: float32 schedules stay the same to the bit, but in half the table is float32 then, and
    promotes the latents that it meets.

    ## How to silence
    `# precision-lint: ignore[MP609] reason` or `# noqa: MP609` on the line.

    ## Sources
    Ho, Jain, Abbeel: Denoising Diffusion Probabilistic Models, 2020. PyTorch, `torch.finfo`;
    Automatic Mixed Precision: CUDA ops that autocast to float32 (`cumprod`).
    """

    code, name = "MP609", "schedule-in-half"
    severity, applicability = Severity.INFO, Applicability.UNSAFE
    triggers = calls("torch.cumprod", "Tensor.cumprod") | operators(
        ast.Sub, pattern=r"cumprod|alphas?_?bar"
    )

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.BinOp):
            yield from self._remainder(node, at)
            return
        operation = at.operation(node)
        if operation is None or any(k.arg == "dtype" for k in node.keywords):
            return
        origin = _origin(operation[1], at)
        if not SCHEDULE.search(at.text(operation[1]) + " " + at.text(origin)):
            return
        half = at.half(at.value(node), at.region(node))
        if half is None or at.value(origin).kind == "number":
            return
        edits = at.append({origin: ".float()"})
        fix = None
        if edits is not None:
            why = "the schedule is float32 then, and promotes what it meets"
            title = f"make the schedule in float32: upcast {Upcast.named([origin], at)}"
            fix = Fix(title, Applicability.UNSAFE, edits, why)
        touched = []
        if at.statement(origin) is not at.statement(node):
            touched.append(at.note(origin, "the betas, in half"))
        yield at.finding(
            node,
            f"schedule in {half.dtype}: 1 - 1e-4 rounds to 1, and one minus the product is 0 in "
            "the first steps",
            Outgrown.confidence(half, origin, at, pure=True),
            evidence=[*half.evidence, *touched],
            fix=fix,
        )

    def _remainder(self, node: ast.BinOp, at: Context) -> Iterator[Finding]:
        """``1 - table[t]`` of a table that was made in float32 and is half where it is read."""
        if not isinstance(node.left, ast.Constant) or node.left.value != 1:
            return
        if at.value(node.right).dtype in ("", "float32", "float64"):
            return
        table = _table(node.right, at)
        half = at.half(at.value(node.right), at.region(node)) if table is not None else None
        if table is None or half is None or not half.told:
            return
        yield at.finding(
            node,
            f"the schedule is {half.dtype} here: one minus the product is 0 in the first steps, "
            "and what is divided by it inf",
            min(half.confidence, Confidence.LIKELY, key=lambda c: c.rank),
            severity=Severity.WARNING,
            evidence=[*half.evidence, at.note(table, "the table of products")],
        )


def _table(node: ast.expr, at: Context, depth: int = 5) -> ast.expr | None:
    """The attribute that an entry of a table of cumulative products is read from."""
    match node:
        case ast.Subscript(value=inner) | ast.Call(func=ast.Attribute(value=inner)) if depth:
            return _table(inner, at, depth - 1)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return _table(source, at, depth - 1) if source is not None else None
        case ast.Attribute(attr=name):
            if TABLE.search(name):
                return node
            owner = at.function.cls if at.text(node) == f"self.{name}" else None
            stored = at.module.stores(owner).get(name) if owner is not None else None
            return node if stored and "cumprod" in ast.unparse(stored[0]) else None
    return None


def _origin(node: ast.expr, at: Context, depth: int = 3) -> ast.expr:
    """The betas that a product of ``1 - betas`` is taken of."""
    match node:
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Sub):
                return _origin(source, at, depth - 1)
        case ast.BinOp(left=ast.Constant(), op=ast.Sub(), right=right):
            return right
    return node
