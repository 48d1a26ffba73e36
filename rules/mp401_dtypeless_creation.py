from __future__ import annotations

from collections.abc import Iterator

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


class DtypelessCreation(Rule):
    """Tensor created without dtype that widens a half tensor to float32.

    ## What it flags
    `torch.zeros`, `ones`, `full`, `rand`, `randn`, `eye`, `linspace`, `arange` of floats,
    `tensor([...])` of floats, `torch.Tensor` and `from_numpy` of float32 without `dtype=`,
    where the tensor is combined by arithmetic, `cat`, `stack` or `where` with one that is half,
    or goes into a layer whose weights are.

    It stays silent for 0-d tensors and Python numbers (they do not promote), for integer
    tensors, `*_like` and `new_*`, for an explicit dtype or a later `.to(x.dtype)`, for tensors
    that are only indexed, compared or logged, inside autocast regions, and for layers that the
    code keeps in float32. Float64 of NumPy is MP402's, an operand of a matrix product MP502's.

    ## Why it breaks
    The default dtype is float32 whatever the model's is, and a float32 tensor with dimensions
    promotes a half one: `cat`, `stack`, `where`, `+` and `*` of the two are float32. Nothing is
    said until the result meets the next half layer, which raises `mat1 and mat2 must have the
    same dtype, but got Float and Half`. Under autocast that layer casts it down again, so there it
    costs memory only, and this rule is silent. It is silent too where the widened tensor is cast
    next, or ends in a loss: there float32 is what one wants; and for float64 from NumPy (MP402).

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
    followed, and for parameters, which lose small updates in half.

    ## How to silence
    `# precision-lint: ignore[MP401] reason` or `# noqa: MP401` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (dimensions, zero-dimensional tensors, numbers).
    """

    code = "MP401"
    name = "dtypeless-creation"
    severity = Severity.INFO
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("widened", "dtype-mismatch", "wide-input", "wide-buffer")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind in ("wide-buffer", "wide-input"):
            yield from _elsewhere(event, at)
            return
        if (
            facts["origin"] not in ("created", "numpy")
            or facts["float64"]
            or facts["origin_at"] is None
        ):
            return
        name = facts["origin_name"]
        if event.kind == "widened":
            place, ends = at.stands(event, "it is combined with a half tensor here")
            other = at.operand(facts["other"])
            yield Finding(
                f"`{name}` without dtype is {facts['wide_dtype']} and promotes {other} "
                f"from {facts['other_dtype']}",
                place,
                _follow(event, at),
                ends,
            )
        elif facts["layer"] and facts["direct"] and not facts["writes"]:
            place, ends = at.stands(event, "it goes in here")
            yield Finding(
                INTO_LAYER.format(name, facts["wide_dtype"], facts["narrow_dtype"]),
                place,
                _like_the_layer(event, at),
                ends,
            )


INTO_LAYER = "`{}` without dtype is {} and goes into a layer whose weights are {}: this raises"


def _elsewhere(event: Event, at: Context) -> Iterator[Finding]:
    """What a compiled kernel takes, or a layer in another file, which is where it shows."""
    facts = event.facts
    if event.kind == "wide-input":
        dtypes = facts["wide_dtype"], facts["narrow_dtype"]
        yield Finding(INTO_LAYER.format(facts["origin_name"], *dtypes))
    elif facts["origin"] == "created" and facts["origin_at"].path == at.path:
        yield Finding(
            f"`{facts['origin_name']}` without dtype is float32 and goes into "
            f"`{facts['operation']}` beside tensors that are half in a half model: a compiled kernel "
            "takes one dtype",
            facts["origin_at"],
            related=(Link("it goes in here", event.place),),
        )


BEHIND = frozenset({"from_numpy", "Tensor", "linspace", "arange", "logspace"})
"""Creations that have no dtype argument, or that are only exact in float32: they are cast after."""


def _like_the_layer(event: Event, at: Context) -> Fix | None:
    """Make the tensor in the dtype of the weights that it meets."""
    layer, origin = at.callee(event.place), event.facts["origin_at"]
    if layer is None or not layer.startswith("self.") or origin.path != at.path:
        return None
    if event.facts["operation"] == "model":  # it need not have a weight by that name
        return None
    if not at.together(origin, event.place):
        return None
    dtype = f"{layer}.weight.dtype"
    if event.facts["origin_name"] in BEHIND:
        edits = at.upcast([origin], f".to({dtype})")
    else:
        edits = at.add_keyword(origin, "dtype", dtype)
    return at.fix(f"create it with the dtype of {layer}.weight", edits)


def _follow(event: Event, at: Context) -> Fix | None:
    """Make the tensor in the dtype of the half one that it meets."""
    origin, other = event.facts["origin_at"], event.facts["other"]
    if origin is None or other is None or not event.facts["in_place"] or origin.path != at.path:
        return None
    if not at.is_name(other):
        return None
    name = at.text(other)
    title = f"create it with the dtype of {name}"
    if event.facts["origin_name"] in BEHIND:
        return at.fix(title, at.upcast([origin], f".to({name}.dtype)"))
    return at.fix(title, at.add_keyword(origin, "dtype", f"{name}.dtype"))
