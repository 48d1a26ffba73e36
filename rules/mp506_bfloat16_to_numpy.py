from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Evidence,
    Fed,
    Finding,
    Fix,
    Provenance,
    Rule,
    Severity,
    calls,
)

CASTS = frozenset({
    "float", "double", "to", "type", "half", "long", "int", "bool", "byte", "argmax", "argmin",
    "argsort", "nonzero", "tolist", "item", "numpy", "size",
})  # fmt: skip
TRANSFORMS = tuple(f"torchvision.transforms.{part}" for part in ("", "v2.", "transforms."))
"""Where torchvision keeps what turns a tensor to a picture, by way of NumPy."""


class Bfloat16ToNumpy(Rule):
    """A bfloat16 tensor that is handed to NumPy, which has no such dtype.

    ## What it flags
    `x.numpy()`, `numpy.asarray(x)`, `numpy.array(x)` and torchvision's `to_pil_image(x)` and
    `ToPILImage()(x)`, which go through NumPy, of a tensor that is bfloat16: cast to it, the output
    of a model under a bfloat16 autocast region, the result of a layer in a project that runs in
    bfloat16.

    It stays silent on float16, which NumPy has, where the tensor is upcast or made of integers
    (`argmax`, `long`), on results that autocast gives in float32 (`softmax`, losses), and on those
    of a region that is float16, whatever others of the project are. Where only the project says
    bfloat16, or nothing does, the finding is `possible`; the result of a whole model is likely
    where the project makes models bfloat16 and uses no autocast.

    ## Why it breaks
    `TypeError: Got unsupported ScalarType BFloat16`. It often shows in the first evaluation, after
    the first epoch of training.

    ## Example
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    found.append(scores.cpu().numpy())
    ```
    Use instead:
    ```python
    with torch.autocast("cuda", dtype=torch.bfloat16):
        scores = model(x)
    found.append(scores.cpu().float().numpy())
    ```

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing, and every bfloat16 number is one in float32.

    ## How to silence
    `# precision-lint: ignore[MP506] reason` or `# noqa: MP506` on the line.

    ## Sources
    PyTorch, `Tensor.numpy`; NumPy, scalar types.
    """

    code = "MP506"
    name = "bfloat16-to-numpy"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "Tensor.numpy", "numpy.asarray", "numpy.array",
        *(f"{home}functional.to_pil_image" for home in TRANSFORMS),
        *(f"{home}ToPILImage" for home in TRANSFORMS),
    )  # fmt: skip

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        qualified = at.qualify(node.func)
        if qualified is not None and qualified.endswith(".ToPILImage"):
            for call in _applied(node, at):
                yield from self._handed(call, call.args[0], at)
            return
        if qualified is not None:
            operand = node.args[0] if node.args else None
        else:
            operand = node.func.value if isinstance(node.func, ast.Attribute) else None
        if operand is not None:
            yield from self._handed(node, operand, at)

    def _handed(self, node: ast.Call, operand: ast.expr, at: Context) -> Iterator[Finding]:
        """A tensor that a call hands to NumPy."""
        if isinstance(operand, ast.Starred):
            return
        judged = _bfloat16(operand, node, at)
        if judged is None:
            return
        confidence, evidence = judged
        statement = at.statement(node)
        edits = at.edit.append(statement, {operand: ".float()"}) if statement is not None else None
        fix = None
        if edits is not None:
            fix = Fix("upcast to float32", Applicability.SAFE, edits)
        text = " ".join(at.text(operand).split())
        yield at.finding(
            node,
            f"{text[:50]} may be bfloat16, which NumPy does not have: this raises",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _applied(maker: ast.Call, at: Context) -> Iterator[ast.Call]:
    """The calls of a transform, where it is made or by the name that it gets in this function."""
    parent = at.parents.get(id(maker))
    makers: list[ast.expr] = [maker]
    if isinstance(parent, ast.Assign) and isinstance(parent.targets[0], ast.Name):
        makers = [*at.uses(parent.targets[0].id)]
    for use in makers:
        call = at.parents.get(id(use))
        if isinstance(call, ast.Call) and call.func is use and call.args:
            yield call


def _bfloat16(
    operand: ast.expr, node: ast.Call, at: Context
) -> tuple[Confidence, tuple[Evidence, ...]] | None:
    """How sure it is that an operand is bfloat16, and why."""
    value = at.value(operand)
    if not value.maybe_tensor or value.dtype == "float16":
        return None
    half = at.half(value, at.region(node))
    if half is not None and "bfloat16" in half.dtypes:
        if not value.variable or "amp" in value.tags or half.told:
            confidence = half.confidence if half.dtypes == {"bfloat16"} else Confidence.LIKELY
            return confidence, half.evidence
    elif half is None and value.dtype:
        return None  # of a dtype that NumPy has
    if Care.in_test(at):
        return None
    made = Provenance.computed(operand, at)
    called = _of_model(operand, at)
    if made is None and called is None:  # only a method of that name says that it is a tensor
        tensor = at.is_tensor(operand) or not value.dtype
        if at.qualify(node.func) or "cast" in value.tags or not tensor or _cast(operand, at):
            return None
        return Confidence.POSSIBLE, half.evidence if half is not None else ()
    if called is not None and made is None and _cast(operand, at, called.lineno):
        return None
    origin = made or called
    assert origin is not None
    note = at.note(origin, "it comes out of this layer, product or model")
    confidence = half.confidence if half is not None else Confidence.POSSIBLE
    if made is None or value.wide or half is None:
        pure = at.half_models is not None and at.project.half_dtypes == {"bfloat16"}
        confidence = Confidence.LIKELY if pure and _inference(at) else Confidence.POSSIBLE
        return confidence, (*at.settings[-1:], note)
    if half.dtypes != {"bfloat16"} or not at.plausible:
        confidence = Confidence.POSSIBLE
    return confidence, (*half.evidence, note)


def _inference(at: Context) -> bool:
    """Whether the project's half model is the one at hand, as far as one can see."""
    evidence = at.half_models
    return evidence is not None and at.believes(evidence) and at.project.autocast is None


def _of_model(operand: ast.expr, at: Context) -> ast.Call | None:
    """The call of a whole model that a value comes out of: ``model(x).logits``."""
    for origin in Provenance.of(operand, at):
        node = origin
        while isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        if isinstance(node, ast.Name) and node is not origin:
            source = at.definition(node.id, node)
            node = source if source is not None else node
        if isinstance(node, ast.Call) and at.qualify(node.func) is None:
            path = at.text(node.func).lower()
            if Fed.MODEL.search(path):
                return node
    return None


def _cast(operand: ast.expr, at: Context, since: int = 0) -> bool:
    """Whether a value is cast, or made of integers, on its way here from a row on."""
    return any(
        isinstance(origin, ast.Call)
        and (origin.end_lineno or since) >= since
        and isinstance(origin.func, ast.Attribute)
        and origin.func.attr in CASTS
        and not _moves(origin)
        for origin in Provenance.of(operand, at)
    )


def _moves(call: ast.Call) -> bool:
    """Whether ``x.to(...)`` names a device alone."""
    assert isinstance(call.func, ast.Attribute)
    given = [ast.unparse(a) for a in [*call.args, *(k.value for k in call.keywords)]]
    return call.func.attr == "to" and all(re.search(r"cpu|cuda|device", text) for text in given)
