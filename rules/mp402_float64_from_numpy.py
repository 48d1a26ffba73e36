from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Cost,
    Event,
    Finding,
    Fix,
    Rule,
    Severity,
)


class Float64FromNumpy(Rule):
    """float64 data of NumPy that promote float32 or half tensors.

    ## What it flags
    `torch.from_numpy(a)`, `torch.tensor(a)` and `torch.as_tensor(a)` of arrays that NumPy makes in
    float64 (`np.linspace`, `np.hanning`, `np.random.normal`, `np.eye`, ...), held in a buffer, an
    attribute or a local name, or returned by a function, where they are added to, multiplied or
    joined with activations, or with a tensor of a lower dtype; and where they weigh the classes of
    a loss, which takes no other dtype than that of its predictions.

    It stays silent on arrays with a dtype of their own or an `astype`, on tensors that are cast
    (`.float()`, `.to(x.dtype)`, `dtype=`), where the result is cast at once, and on arrays whose
    dtype is not known. Beside what the code makes float32, outside of autocast, it is only
    `possible`, unless something runs in half. Products with float32 and dtypes beside a half model
    are MP401's.

    ## Why it breaks
    float64 wins every promotion, so activations are float64 from there on: 4 to 8 times the memory
    of half, and on most GPUs a 32nd or 64th of the speed. Autocast casts float32 only, so the next
    layer raises `mat1 and mat2 must have the same dtype, but got Double and Half` (or `and
    BFloat16`), in a region as well as in a half model.

    ## Example
    ```python
    window = torch.from_numpy(np.hanning(x.shape[1]))
    y = x * window
    ```
    Use instead:
    ```python
    window = torch.from_numpy(np.hanning(x.shape[1])).to(x.dtype)
    y = x * window
    ```

    ## Fix safety
    Unsafe: in a float32 run the result was float64 and comes down to float32, about seven digits.

    ## How to silence
    `# precision-lint: ignore[MP402] reason` or `# noqa: MP402` on the line.

    ## Sources
    NumPy, data types (float64 by default); PyTorch, `torch.from_numpy`; Automatic Mixed Precision
    (float64 is not eligible for autocast).
    """

    code = "MP402"
    name = "float64-from-numpy"
    severity = Severity.WARNING
    cost = Cost.RAISES
    applicability = Applicability.UNSAFE
    listens = ("widened", "dtype-mismatch")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["origin"] not in ("numpy", "created") or not facts["float64"]:
            return
        place, ends = at.stands(event, "both meet here")
        told = event.kind == "dtype-mismatch" and facts["near"] and not facts["direct"]
        if told and place == event.place:
            return  # of what it widened before
        met = facts.get("other") or facts.get("narrow")
        text = at.operand(met)
        yield Finding(
            f"float64 from NumPy promotes {text}; autocast does not cast it down, so that the next "
            "layer raises",
            place,
            _lowered(event, at),
            ends,
        )


def _lowered(event: Event, at: Context) -> Fix | None:
    """Bring it to the dtype of the tensor that it meets, or to float32."""
    origin, other = event.facts["origin_at"], event.facts.get("other")
    if origin is None or origin.path != at.path:
        return None
    cast = ".float()"
    if other is not None and event.facts["in_place"] and at.is_name(other):
        cast = f".to({at.text(other)}.dtype)"
    reason = "in a float32 run the result was float64"
    return at.fix("bring it down from float64", at.upcast([origin], cast), reason)
