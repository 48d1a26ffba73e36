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


class HardcodedDtype(Rule):
    """float32 named in a forward pass where the dtype of the activations is meant.

    ## What it flags
    In code that runs with half weights: masks and one-hot vectors made float32
    (`mask.float()`), constants with `dtype=torch.float32` and `torch.FloatTensor(...)` that are
    multiplied with, added to or joined with a half tensor, or reach a layer with half weights
    by such a way.

    It stays silent where the numbers themselves need float32 (activations that are upcast,
    losses, buffers), where a test of the dtype has chosen float32, where the result is cast at
    once or only ranked (`topk`, of which the indices are kept), and under autocast, which casts
    the next layer's input down again. A float32 tensor that goes into a layer or a product
    directly is MP502's.

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
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("widened", "dtype-mismatch", "wide-buffer")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "wide-buffer":
            if facts["origin"] == "named" and facts["origin_at"].path == at.path:
                yield Finding(
                    f"the float32 result of `{facts['origin_name']}` goes into `{facts['operation']}` beside "
                    "tensors that are half in a half model: a compiled kernel takes one dtype",
                    facts["origin_at"],
                    related=(Link("it goes in here", event.place),),
                )
            return
        kinds = ("named", "mask") if event.kind == "widened" else ("named", "mask", "cast")
        if facts["origin"] not in kinds or facts["origin_at"] is None or facts["float64"]:
            return
        if event.kind == "dtype-mismatch" and (
            facts["direct"] or facts["writes"] or not facts["near"]
        ):
            return
        place, ends = at.stands(event, "both meet here")
        other = facts.get("other")
        text = at.operand(other)
        dtype = facts.get("other_dtype") or facts["narrow_dtype"]
        yield Finding(
            f"`float32` is written here and promotes {text}, which is {dtype} in a half model",
            place,
            _follow(event, at) if event.kind == "widened" else None,
            ends,
        )


def _follow(event: Event, at: Context) -> Fix | None:
    """Take the dtype of the half tensor that it meets."""
    origin, other = event.facts["origin_at"], event.facts["other"]
    if origin is None or other is None or not event.facts["in_place"] or origin.path != at.path:
        return None
    if not at.is_name(other):
        return None
    return at.fix(f"follow the dtype of {at.text(other)}", at.dtype_of(origin, at.text(other)))
