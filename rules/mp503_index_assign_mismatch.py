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


class IndexAssignMismatch(Rule):
    """Indexed write of a half tensor into a float32 one, or the reverse, which raises.

    ## What it flags
    `buffer[index] = x` with a tensor, a mask or a list as the index, `index_add_`, `index_copy_`,
    `index_reduce_`, `index_put_`, `put_`, `scatter_` and its variants, `masked_scatter` and `lerp`,
    where one side is float32 (created without dtype, made by `.float()`) and the other half: the
    output of a layer under autocast or of a half model, a tensor cast to half. Under autocast a
    parameter stays in float32 and is stored into half features (`x[mask] = self.mask_token`).

    It stays silent in these cases, in which torch casts or both sides agree:

    - The index is a slice or a plain integer.
    - The value is a Python number, or a tensor without dimensions that is written through a mask.
    - `buffer[index] += x`, which adds in the buffer's dtype.
    - One side is made with the dtype of the other (`zeros_like(x)`, `dtype=x.dtype`).

    It is only `possible` where nothing shows the dtypes of the two tensors. Under autocast it is
    `likely` all the same for these writes:

    - a value that was computed with a buffer, which stays in float32;
    - a product, into a tensor made like the input of that product;
    - a value that was computed with ground truth, into a tensor made like a prediction.

    ## Why it breaks
    These kernels do not promote: `Index put requires the source and destination dtypes match, got
    Float for the destination and Half for the source`, `index_add_(): self (Float) and source
    (Half) must have the same scalar type`, `scatter(): Expected self.dtype to be equal to
    src.dtype`. Autocast does not help: on CUDA it promotes `index_put` and `scatter_add` out of
    place only, not the forms that write. The float32 run has one dtype and works.

    A slice of the same buffer takes any dtype without a word, and a value above 65504 is inf there.

    ## Example
    ```python
    padded = torch.zeros(mask.shape + (width,), device=mask.device)
    padded[mask] = self.proj(tokens)
    ```
    Use instead:
    ```python
    padded = torch.zeros(mask.shape + (width,), device=mask.device)
    padded[mask] = self.proj(tokens).to(padded.dtype)
    ```

    ## Fix safety
    Safe: the cast does nothing where both are float32, and gradients pass it.

    ## How to silence
    `# precision-lint: ignore[MP503] reason` or `# noqa: MP503` on the line.

    ## Sources
    PyTorch, `Tensor.index_put_`, `Tensor.index_add_`, `Tensor.scatter_`; Automatic Mixed Precision,
    CUDA ops that promote to the widest input type.
    """

    code = "MP503"
    name = "index-assign-mismatch"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("dtype-mismatch",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if not facts["writes"]:
            return
        narrow = at.quoted(facts["narrow"], "one side")
        wide = at.quoted(facts["wide"], "the other")
        related = []
        if facts["origin_at"] is not None and facts["origin_at"] != event.place:
            related.append(Link(f"the {facts['wide_dtype']} side is made here", facts["origin_at"]))
        yield Finding(
            f"{narrow} is {facts['narrow_dtype']} and {wide} is {facts['wide_dtype']}: "
            f"`{facts['operation']}` does not cast, so this raises",
            event.place,
            _fix(event, at),
            tuple(related),
        )


def _fix(event: Event, at: Context) -> Fix | None:
    """Cast what is written to the dtype of what it is written into."""
    facts = event.facts
    into, given = ("narrow", "wide") if facts["into_narrow"] else ("wide", "narrow")
    if facts[into] is None or facts[given] is None or not at.is_name(facts[into]):
        return None
    name = at.text(facts[into])
    edits = at.upcast([facts[given]], f".to({name}.dtype)")
    return at.fix(f"cast to the dtype of {name}", edits)
