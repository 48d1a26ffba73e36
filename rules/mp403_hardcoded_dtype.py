from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class HardcodedDtype(Rule):
    """float32 named in a forward pass where the dtype of the activations is meant.

    ## What it flags
    In `forward`, of a model that the project runs in half: masks and one-hot vectors made float32
    (`mask.float()`), constants with `dtype=torch.float32` and `torch.FloatTensor(...)` that are
    multiplied with, added to or joined with the output of a layer and go on into the next layer.

    Where the widened result is returned or goes elsewhere it is only possible. The same in other
    functions, with tensors that they are given, positions and counts included: likely where the
    project runs the module in half models, otherwise possible.

    A buffer that `torch.FloatTensor(n, m)` makes for a kernel of an extension, which takes it for
    the dtype of its inputs (possible for coordinates where models are trained under autocast, which
    leaves those in float32). A module that its owner's `forward` casts (`self.gate =
    self.gate.float()`; only possible in files that don't speak of DeepSpeed or FSDP). A helper that
    casts every tensor in nested containers to half, integers too. A parameter `dtype` that is
    float64 by default where it is float32 in other functions of the file.

    Only possible: float32 that a whole model is given (`model(torch.from_numpy(a).float())`),
    activations that a `forward` makes float32 and neither casts back nor returns as logits, and
    grids of a helper that takes a device and no dtype. The float32 target of a
    `binary_cross_entropy` is likely where the project runs half precision, a loop that makes each
    entry of a batch half where models are half.

    float16 is flagged too where it is named for others: a model that is made `.half()` whatever
    `dtype` its class was given, inputs that are always made half where the model is so on a
    condition, and normal noise that is drawn in half and cast up, whose 11 (bfloat16: 8) bits stay.
    So are a cast under a flag for float16 where the one for bfloat16 beside it is not asked,
    activations that `if x.dtype == torch.float32` makes float16, and, where the project runs half
    precision, noise drawn in the dtype of a tensor that is made float32 next.

    The rule stays silent where the numbers themselves need float32 (activations that are upcast,
    losses, buffers), where a test of the dtype has chosen float32, where the result is cast at
    once or only ranked (`topk`, of which the indices are kept), under autocast, which casts the
    next layer's input down again, and in projects that show no half models. A float32
    tensor that goes into a layer or a product directly is MP502's.

    ## Why it breaks
    A float32 tensor with dimensions promotes half activations, and the next layer raises `mat1 and
    mat2 must have the same dtype, but got Float and Half`. In float32 and under autocast the code
    works. A kernel raises, or reads bytes of float32 as halves. A module that is cast in `forward`
    gets new parameters each time that something has made it half again (ZeRO and FSDP hold views of
    the old ones). Whole numbers above 2048 are not exact in float16.

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
    is rounded as every weight of the model is. Only the dtype of a mask, one-hot vector or constant
    in `forward` is fixed; a position or a count may need float32 until its last step.

    ## How to silence
    `# precision-lint: ignore[MP403] reason` or `# noqa: MP403` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion.
    """

    code = "MP403"
    name = "hardcoded-dtype"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("widened", "dtype-mismatch")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        kinds = ("named", "mask") if event.kind == "widened" else ("named", "mask", "cast")
        if facts["origin"] not in kinds or facts["origin_at"] is None or facts["float64"]:
            return
        if event.kind == "dtype-mismatch" and (facts["direct"] or facts["writes"]):
            return
        origin = facts["origin_at"]
        place = origin if origin.path == at.path else event.place
        other = facts.get("other")
        text = at.text(other)[:40] if other is not None else "what it meets"
        dtype = facts.get("other_dtype") or facts["narrow_dtype"]
        yield Finding(
            f"float32 is named here and promotes {text}, which is {dtype} in a half model",
            place,
            _follow(event, at) if event.kind == "widened" else None,
            (Link("both meet here", event.place),),
        )


def _follow(event: Event, at: Context) -> Fix | None:
    """Take the dtype of the half tensor that it meets."""
    origin, other = event.facts["origin_at"], event.facts["other"]
    if origin is None or other is None or not event.facts["in_place"] or origin.path != at.path:
        return None
    if not at.is_name(other):
        return None
    return at.fix(f"follow the dtype of {at.text(other)}", at.dtype_of(origin, at.text(other)))
