from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Hardcoded,
    Meeting,
    Rule,
    Severity,
    calls,
)

CREATED = ("zeros", "ones", "full", "eye", "tensor")


class HardcodedDtype(Rule):
    """float32 named in a forward pass where the dtype of the activations is meant.

    ## What it flags
    In `forward`, of a model that the project runs in half: masks and one-hot vectors made float32
    (`mask.float()`), constants with `dtype=torch.float32` and `torch.FloatTensor(...)` that are
    multiplied with, added to or joined with the output of a layer and go on into the next layer.

    Where the widened result is returned or goes elsewhere it is only possible. The rule stays
    silent where the numbers themselves need float32 (activations that are upcast, positions,
    denominators, buffers), where the result is cast at once, under autocast, which casts the next
    layer's input down again, and in projects that show no half models. A float32 tensor that goes
    into a layer or a product directly is MP502's.

    ## Why it breaks
    A float32 tensor with dimensions promotes half activations, and the next layer raises `mat1 and
    mat2 must have the same dtype, but got Float and Half`. In float32 and under autocast the code
    works.

    ## Example
    ```python
    hidden = self.inner(x)
    hidden = hidden * mask.float()[..., None]
    return self.outer(hidden)
    ```
    Use instead:
    ```python
    hidden = self.inner(x)
    hidden = hidden * mask.to(hidden.dtype)[..., None]
    return self.outer(hidden)
    ```

    ## Fix safety
    Safe: in a float32 model the dtype is what it was. Zeros and ones are exact in half; a constant
    is rounded as every weight of the model is.

    ## How to silence
    `# precision-lint: ignore[MP403] reason` or `# noqa: MP403` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion.
    """

    code = "MP403"
    name = "hardcoded-dtype"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    triggers = calls(
        "Tensor.float", "Tensor.to", *Hardcoded.LEGACY, *(f"torch.{name}" for name in CREATED)
    )

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        met = Hardcoded.meeting(node, at)
        half = at.half(at.value(met.other), at.region(met.use)) if met is not None else None
        if met is None or half is None:
            return
        reaches = at.reaches_layer(met.use)
        text = " ".join(at.text(met.other).split())[:40]
        yield at.finding(
            node,
            f"float32 is named here and promotes {text}, which is {half.dtype} in a half model",
            half.confidence if reaches else Confidence.POSSIBLE,
            evidence=dict.fromkeys((*half.evidence, at.note(met.use, "both meet here"))),
            fix=self._fix(node, met, at),
        )

    def _fix(self, node: ast.Call, met: Meeting, at: Context) -> Fix | None:
        statement = at.statement(node)
        other = met.other
        while isinstance(other, ast.Subscript):
            other = other.value
        if statement is None or not isinstance(other, ast.Name):
            return None
        if not at.same_at(other.id, node, met.use):
            return None
        dtype = f"{other.id}.dtype"
        given = next((k.value for k in node.keywords if k.arg == "dtype"), None)
        if at.qualify(node.func) in Hardcoded.LEGACY:
            edits = at.edit.append(statement, {node: f".to({dtype})"})
        elif given is not None:
            edits = at.edit.replace(statement, {given: dtype})
        elif isinstance(node.func, ast.Attribute):
            edits = at.edit.exchange(statement, {node: f".to({dtype})"})
        else:
            return None
        if edits is None:
            return None
        return Fix(f"follow the dtype of {other.id}", Applicability.SAFE, edits)
