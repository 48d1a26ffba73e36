from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
    operators,
)


class MatmulDtypeMismatch(Rule):
    """Matrix product of a half tensor and a float32 one, which raises outside autocast.

    ## What it flags
    `@`, `matmul`, `bmm`, `mm` and `einsum` outside autocast where one operand is half and the other
    float32: created without dtype (`torch.eye(n)`), made float32 (`one_hot(...).float()`), or held
    as a plain float32 attribute that `model.half()` does not convert.

    It stays silent inside autocast, which casts both operands down, and where either dtype is
    open. Products of geometry are MP501's, because they have to go up instead.

    ## Why it breaks
    Matrix products do not promote: `expected m1 and m2 to have the same dtype, but got: c10::Half
    != float`. The code works in float32 and under autocast, and fails in the first evaluation or
    export of a half model.

    ## Example
    ```python
    rotation = torch.eye(size, device=x.device)
    y = torch.bmm(x, rotation.expand(len(x), -1, -1))
    ```
    Use instead:
    ```python
    rotation = torch.eye(size, device=x.device, dtype=x.dtype)
    y = torch.bmm(x, rotation.expand(len(x), -1, -1))
    ```

    ## Fix safety
    Safe: with a float32 operand the added dtype or cast changes nothing.

    ## How to silence
    `# precision-lint: ignore[MP502] reason` or `# noqa: MP502` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (matrix products are not elementwise).
    """

    code = "MP502"
    name = "matmul-dtype-mismatch"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.matmul",
        "torch.bmm",
        "torch.mm",
        "torch.einsum",
        "torch.baddbmm",
        "torch.mv",
        "Tensor.matmul",
        "Tensor.bmm",
        "Tensor.mm",
        "Tensor.mv",
    ) | operators(ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]")

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        region = at.region(node)
        if region.on:
            return
        _, operands = at.product(node)
        if len(operands) != 2 or at.geometry(node, operands) is not None:
            return
        for half_node, wide_node in (operands, operands[::-1]):
            half_value, wide = at.value(half_node), at.value(wide_node)
            if wide.dtype != "float32" or not wide.is_tensor:
                continue
            if "autocast" in half_value.dtype or any(t.startswith("widened") for t in wide.tags):
                continue  # half only inside a region, or the creation is reported (MP401)
            half = at.half(half_value, region)
            if half is None:
                continue
            confidence = half.confidence
            if half_value.dtype not in ("float16", "bfloat16"):
                explicit = wide.made is not None or wide.tags & {"cast", "plain"}
                explicit = explicit or half_value.tags & {"buffer", "parameter"}
                if at.project.half is None or not explicit:
                    confidence = Confidence.POSSIBLE
            elif at.project.autocast is not None and region.state == "inherited":
                confidence = Confidence.LIKELY
            origin = wide.made or wide.node
            evidence = [*half.evidence]
            if at.project.half is not None and at.project.half not in evidence:
                evidence.append(at.project.half)
            if origin is not None:
                evidence.append(at.note(origin, "the float32 operand is made here"))
            yield at.finding(
                node,
                f"{at.text(half_node)} may be {half.dtype} and {at.text(wide_node)} is float32: "
                "matrix products do not promote, this raises",
                confidence,
                evidence=evidence,
                fix=self._fix(node, half_node, wide_node, at),
            )
            return

    def _fix(self, node: ast.expr, half: ast.expr, wide: ast.expr, at: Context) -> Fix | None:
        explicit = {"float16": ".half()", "bfloat16": ".bfloat16()"}.get(at.value(half).dtype)
        here = at.statement(node)
        if explicit is not None and at.value(wide).made is None and here is not None:
            edits = at.edit.append(here, {wide: explicit})
            title = f"cast {at.text(wide)} to {at.value(half).dtype}"
            if edits is None:
                return None
            return Fix(title, Applicability.UNSAFE, edits, "its own float32 use gets lost")
        follow = half
        while isinstance(follow, (ast.Subscript, ast.Call)):
            if isinstance(follow, ast.Call):
                if not isinstance(follow.func, ast.Attribute) or at.qualify(follow.func):
                    return None
                follow = follow.func.value
            else:
                follow = follow.value
        if not isinstance(follow, (ast.Name, ast.Attribute)):
            return None
        name = at.text(follow)
        if at.value(follow).dtype != at.value(half).dtype:
            return None
        made = at.value(wide).made
        statement = at.statement(made) if made is not None else None
        if made is not None and statement is not None and at.bound_before(name, made):
            edits = at.edit.add_keyword(statement, made, "dtype", f"{name}.dtype")
            title = f"create it with the dtype of {name}"
        else:
            here = at.statement(node)
            if here is None:
                return None
            edits = at.edit.append(here, {wide: f".to({name}.dtype)"})
            title = f"cast {at.text(wide)} to the dtype of {name}"
        return None if edits is None else Fix(title, Applicability.SAFE, edits)
