from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    events,
)

if TYPE_CHECKING:
    from precision_lint.api import Promotion

SEQUENCES = ("linspace", "logspace", "arange")
COUNTS = re.compile(
    r"(?<![a-z])(ids?|idx|index|indices|labels?|steps?|len|lengths?|counts?|mask\w*)(?![a-z])"
)
"""Words of names whose tensors hold integers or flags."""


class DtypelessCreation(Rule):
    """Tensor created without dtype that widens a half tensor to float32.

    ## What it flags
    `torch.zeros`, `ones`, `full`, `rand`, `randn`, `eye`, `linspace`, `arange` of floats,
    `tensor([...])` of floats and `from_numpy` without `dtype=`, combined by arithmetic, `cat`,
    `stack` or `where` with a tensor that may be half.

    It stays silent for 0-d tensors and Python numbers (they do not promote), for integer tensors,
    `*_like` and `new_*`, for an explicit dtype or a later `.to(x.dtype)`, and for tensors that are
    only indexed, compared or logged.

    ## Why it breaks
    The default dtype is float32 whatever the model's is, and a float32 tensor with dimensions
    promotes a half one: `cat`, `stack`, `where`, `+` and `*` of the two are float32 (float64
    from numpy). Nothing is said until the result meets the next half layer, which raises `mat1
    and mat2 must have the same dtype, but got Float and Half`. Under autocast that layer casts
    it down again, so there it costs memory only, and this rule is silent. It is silent too
    where the widened tensor is cast next, or ends in a loss: there float32 is what one wants.

    ## Example
    ```python
    ones = torch.ones(batch, count, 1, device=points.device)
    homogeneous = torch.cat([points, ones], dim=-1)
    ```
    Use instead:
    ```python
    ones = torch.ones(batch, count, 1, device=points.device, dtype=points.dtype)
    homogeneous = torch.cat([points, ones], dim=-1)
    ```

    ## Fix safety
    Safe: with a float32 neighbour the dtype is what it was. `linspace` and `arange` are
    computed in float32 and cast at the end, because their steps lose bits in half. The fix is
    unsafe where the neighbour's name says that it may hold integers, whose dtype must not be
    followed.

    ## How to silence
    `# precision-lint: ignore[MP401] reason` or `# noqa: MP401` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (dimensions, zero-dimensional tensors, numbers).
    """

    code = "MP401"
    name = "dtypeless-creation"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    triggers = events(
        "creation-promotes",
        pattern=r"\b(?:zeros|ones|full|empty|rand|randn|linspace|logspace|arange|eye|tensor|"
        r"as_tensor|from_numpy|normal)\s*\(",
    )

    def check(self, event: Promotion, at: Context) -> Iterator[Finding]:
        region = event.region
        half = at.half(event.value, region)
        if half is None or _one_element(event.made, at):
            return
        confidence = half.confidence
        if region.on and confidence is not Confidence.POSSIBLE:
            confidence = Confidence.POSSIBLE  # the next listed operation casts it down again
        elif not _proven(event, at) and at.project.half is None:
            confidence = Confidence.POSSIBLE
        if not _matters(event, at):
            confidence = Confidence.POSSIBLE
        name = at.text(event.made.func)
        evidence = [at.note(event.use, "it is combined with a half tensor here"), *half.evidence]
        if at.project.half is not None and not _proven(event, at):
            evidence.append(at.project.half)
        wide = at.value(event.made).dtype
        yield at.finding(
            event.made,
            f"{name} without dtype is {wide} and promotes {at.text(event.other)} from {half.dtype}",
            confidence,
            evidence=dict.fromkeys(evidence),
            fix=self._fix(event, at),
        )

    def _fix(self, event: Promotion, at: Context) -> Fix | None:
        neighbour = _neighbour(event, at) if _is_tensor(event, at) else None
        statement = at.statement(event.made)
        if neighbour is None or statement is None:
            return None
        last = event.made.func
        kind = last.attr if isinstance(last, ast.Attribute) else ""
        counts = COUNTS.search(neighbour.rpartition(".")[2].lower()) is not None
        if kind in SEQUENCES or kind == "from_numpy":
            edits = at.edit.append(statement, {event.made: f".to({neighbour}.dtype)"})
        else:
            edits = at.edit.add_keyword(statement, event.made, "dtype", f"{neighbour}.dtype")
        if edits is None:
            return None
        return Fix(
            f"create it with the dtype of {neighbour}",
            Applicability.UNSAFE if counts else Applicability.SAFE,
            edits,
            f"{neighbour} may hold integers" if counts else None,
        )


def _matters(event: Promotion, at: Context) -> bool:
    """Whether the widened tensor is one, holds no counts, and goes on into the model."""
    words = at.text(event.other).lower()
    value = event.value
    if not _is_tensor(event, at):
        return False
    if COUNTS.search(words) or COUNTS.search(value.dtype):
        return False
    return _proven(event, at) or at.reaches_layer(event.use)


def _is_tensor(event: Promotion, at: Context) -> bool:
    """Whether the widened operand is used as a tensor, and is no number of the configuration."""
    return event.value.is_tensor or event.value.dtype in at.analysis.tensors


def _proven(event: Promotion, at: Context) -> bool:
    return event.value.dtype in ("float16", "bfloat16")


def _one_element(made: ast.Call, at: Context) -> bool:
    """Whether the tensor is a one-element accumulator, which widens nothing that matters."""
    if not made.args:
        return False
    name = at.text(made.func).rpartition(".")[2]
    first = made.args[0]
    if name in ("tensor", "as_tensor"):
        return isinstance(first, (ast.List, ast.Tuple)) and len(first.elts) == 1
    if isinstance(first, (ast.List, ast.Tuple)):
        sizes = [at.value(item).const for item in first.elts]
    else:
        sizes = [at.value(item).const for item in made.args]
    return name in ("zeros", "ones", "full", "empty") and sizes[:1] == [1] and len(sizes) == 1


def _neighbour(event: Promotion, at: Context) -> str | None:
    """A tensor in scope before the creation whose dtype is that of the promoted operand."""
    names = []
    for keyword in event.made.keywords:
        if keyword.arg == "device" and isinstance(keyword.value, ast.Attribute):
            names.append(keyword.value.value)
    node = event.other
    while isinstance(node, ast.Subscript):
        node = node.value
    names.append(node)
    for candidate in names:
        if not isinstance(candidate, (ast.Name, ast.Attribute)):
            continue
        text = at.text(candidate)
        if candidate is node or at.value(candidate).dtype == event.value.dtype:
            if at.same_at(text, event.made, event.use):
                return text
    variable = event.value.dtype[1:]
    if event.value.variable and variable in {p.arg for p in at.function.parameters()}:
        if at.same_at(variable, event.made, event.use):
            return variable
    return None
