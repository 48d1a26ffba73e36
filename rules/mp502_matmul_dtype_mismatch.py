from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from precision_lint.api import (
    Applicability,
    Context,
    Cost,
    Event,
    Finding,
    Fix,
    Link,
    Rule,
    Severity,
)


class MatmulDtypeMismatch(Rule):
    """Matrix product or layer with half and float32 operands, which raises outside autocast.

    ## What it flags
    `@`, `matmul`, `bmm`, `mm`, `einsum`, `linear`, `conv*`, `grid_sample`, attention and
    recurrent layers outside autocast, where one operand is half and the other float32: created
    without dtype (`torch.eye(n)`), made float32 (`one_hot(...).float()`), passed to a model that
    was cast, held as a plain float32 attribute that `model.half()` does not convert, or an input
    that was upcast (`self.fc(x.float())`). The message says which operand is which, and where the wide one is
    made.

    Inside autocast it flags the half type that is not the region's, where autocast promotes:
    `addcmul`, `dot`, `grid_sample`, writes by index and the like on CUDA, `cat` and `stack` on the CPU.

    It stays silent where autocast casts both operands down, where either dtype is open,
    for norms without weights, for layers that the code keeps in float32, and for an einsum that
    sums over nothing, which promotes. Products of geometry are MP501's, because they have to go
    up instead. Models of text with images or sound cast these themselves, but for a few.

    ## Why it breaks
    Matrix products do not promote: `expected m1 and m2 to have the same dtype, but got: c10::Half
    != float`. The code works in float32 and under autocast, and fails in the first evaluation or
    export of a half model. What autocast promotes takes float32 and the region's dtype: a bfloat16
    model in a region of float16, which is the default on CUDA, raises `Unexpected floating
    ScalarType in at::autocast::prioritize`.

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
    Safe: with a float32 operand the added dtype or cast changes nothing. There is no fix for a
    norm, whose weight may be absent, for a layer inside a container, for a whole model, or for the
    other half type in a region.

    ## How to silence
    `# precision-lint: ignore[MP502] reason` or `# noqa: MP502` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (matrix products are not elementwise). PyTorch, Automatic
    Mixed Precision: ops that promote to the widest input type.
    """

    code = "MP502"
    name = "matmul-dtype-mismatch"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("dtype-mismatch", "other-half")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "other-half":
            operand = at.quoted(facts["operand"], "an operand")
            yield Finding(
                f"{operand} is {facts['dtype']} inside autocast to {facts['region']}: "
                f"`{facts['operation']}` takes float32 and the region's dtype there, so this raises",
                event.place,
            )
            return
        if facts["writes"] or facts["backward"] is not None or _other_rule(facts):
            return
        wide = at.quoted(facts["wide"], "the weight")
        narrow = at.quoted(facts["narrow"], "the weight")
        name = facts["operation"]
        related = []
        if facts["origin_at"] is not None and facts["origin_at"] != event.place:
            related.append(
                Link(f"the {facts['wide_dtype']} operand is made here", facts["origin_at"])
            )
        yield Finding(
            f"{narrow} is {facts['narrow_dtype']} and {wide} is {facts['wide_dtype']}: "
            f"{LAYERS.get(name, f'`{name}`')} does not promote dtypes, so this raises",
            event.place,
            _fix(event, at),
            tuple(related),
        )


LAYERS = {"recurrent": "the layer", "model": "the model"}
"""Operations that no function is named after."""


def _other_rule(facts: Mapping[str, Any]) -> bool:
    """Whether what made the operand wide is the finding (MP401, MP402, MP403)."""
    if facts["origin"] == "numpy" and facts["float64"]:
        return True
    if not facts["near"] or (facts["float64"] and facts["origin"] not in ("created", "numpy")):
        return False
    if facts["origin"] in ("created", "numpy") and facts["layer"]:
        return True
    return not facts["direct"] and facts["origin"] in ("created", "numpy", "named", "mask", "cast")


def _fix(event: Event, at: Context) -> Fix | None:
    """Cast the wide operand to the dtype of the other one."""
    facts = event.facts
    wide, narrow = facts["wide"], facts["narrow"]
    if wide is None or "norm" in facts["operation"] or facts["operation"] == "model":
        return None
    layer = at.callee(event.place) if facts["layer"] else None
    if layer is not None and layer.startswith("self."):
        first = f"next({layer}.parameters())"
        named = not facts["among"] and facts["operation"] != "recurrent"
        follows: str | None = f"{layer}.weight" if named else first
    else:
        follows = at.text(narrow) if narrow is not None and at.is_name(narrow) else None
    if follows is None:
        return None
    return at.fix(f"cast it to the dtype of {follows}", at.upcast([wide], f".to({follows}.dtype)"))
