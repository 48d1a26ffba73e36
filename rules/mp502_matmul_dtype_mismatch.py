from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class MatmulDtypeMismatch(Rule):
    """Matrix product or layer with half and float32 operands, which raises outside autocast.

    ## What it flags
    `@`, `matmul`, `bmm`, `mm`, `einsum`, `linear`, `conv*`, `grid_sample`, attention and norms
    with a weight outside autocast, where one operand is half and the other float32: created without
    dtype (`torch.eye(n)`), made float32 (`one_hot(...).float()`), held as a plain float32 attribute
    that `model.half()` does not convert, or moved by hand (`self.x.to(device)`), because what is
    not moved with its module is not cast with it either. Likewise

    - a float32 tensor that goes into a layer whose weights may be half (`self.fc(x.float())`), or
      into a model that the code makes half,
    - an input that a wrapped layer takes in its own dtype and that meets an adapter's weights,
    - what a norm's own class or an embedding meets where the file makes only other layers half,
    - an operand that one branch creates in `x.dtype` and the other in float32,
    - what a module without weights makes of float32 noise or tables, in a layer.

    Only possible: attention weights that a bias of its own dtype was added to, an adapter's input
    that the wrapped layer takes too, inputs that are moved to a device and not cast, entries of a
    batch that a whole model is given, what comes back from numpy or a processor on a device alone,
    an input of a first layer where the function follows the dtype of its activations, the matrix
    that a helper is given for what it casts up, and saved inputs that a `backward` multiplies by a
    gradient as it comes. So are

    - images scaled to [-1, 1] and latents that an autoencoder is given uncast, a pipeline's
      embeddings, entries of a processor moved to a model's device, tables of a scheduler,
    - a parameter of `forward` that goes into a part uncast, where others are cast to `self.dtype`,
    - inputs that one flag makes half, or a model, where nothing casts the other of the two,
    - a norm that calls `super().forward(x.float())`.

    Likely where the project runs half models, else possible: a forward pass outside of the region
    that another method puts around it, a product of what was upcast on a condition with what was
    made before that, an own head on a pre-trained model, and queries or keys that are made float32
    before an attention whose values are not (there mixed precision is enough).

    Likely by themselves, because the file says both: `F.linear(x, self.weight.to(x.dtype),
    self.bias)`; a parameter in a product as it is, where other weights of the file are cast to
    `x.dtype`; the one layer of a constructor that does not get the dtype of the others; the output
    of a model that the constructor makes half in a layer that it does not.

    It stays silent inside autocast, which casts both operands down, where either dtype is open, for
    norms without weights, for layers that the code keeps in float32, and for an einsum that sums
    over nothing, which promotes. A tensor created without dtype in a function that follows a dtype
    elsewhere is MP401's. Products of geometry are MP501's, because they have to go up instead.
    Operands of which nothing says that they share a dtype (two parameters of a function, the
    features and the grid of `grid_sample`) are only possible, and so is everything here in a
    project that trains under autocast, unless it has half models too and the module follows a dtype
    somewhere, or creates the float32 tensor itself: only then is the code meant to run outside of
    the region. A layer that is given `x.float()` where autocast is off is `possible` too.

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
    Safe: with a float32 operand the added dtype or cast changes nothing. There is no fix for a
    norm, whose weight may be absent, or for a layer inside a container.

    ## How to silence
    `# precision-lint: ignore[MP502] reason` or `# noqa: MP502` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (matrix products are not elementwise).
    """

    code = "MP502"
    name = "matmul-dtype-mismatch"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("dtype-mismatch",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["writes"] or facts["backward"] is not None or _other_rule(facts):
            return
        wide = at.text(facts["wide"]) if facts["wide"] is not None else "the weight"
        narrow = at.text(facts["narrow"]) if facts["narrow"] is not None else "the weight"
        related = []
        if facts["origin_at"] is not None and facts["origin_at"] != event.place:
            related.append(
                Link(f"the {facts['wide_dtype']} operand is made here", facts["origin_at"])
            )
        yield Finding(
            f"{narrow[:40]} is {facts['narrow_dtype']} and {wide[:40]} is {facts['wide_dtype']}: "
            f"{facts['operation']} does not promote, this raises",
            event.place,
            _fix(event, at),
            tuple(related),
        )


def _other_rule(facts: Mapping[str, Any]) -> bool:
    """Whether what made the operand wide is the finding (MP401, MP402, MP403)."""
    if facts["origin"] == "numpy" and facts["float64"]:
        return True
    if facts["origin"] in ("created", "numpy") and facts["layer"]:
        return True
    return not facts["direct"] and facts["origin"] in ("created", "numpy", "named", "mask", "cast")


def _fix(event: Event, at: Context) -> Fix | None:
    """Cast the wide operand to the dtype of the other one."""
    facts = event.facts
    wide, narrow = facts["wide"], facts["narrow"]
    if wide is None or "norm" in facts["operation"]:
        return None
    layer = at.callee(event.place) if facts["layer"] else None
    if layer is not None and layer.startswith("self."):
        follows: str | None = f"{layer}.weight"
    else:
        follows = at.text(narrow) if narrow is not None and at.is_name(narrow) else None
    if follows is None:
        return None
    return at.fix(f"cast it to the dtype of {follows}", at.upcast([wide], f".to({follows}.dtype)"))
