from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class SumInHalf(Rule):
    """Sum of float16 values of one sign over all elements, or over height and width.

    ## What it flags
    `x.sum()`, `x.sum(dim=(-2, -1))` and `x.cumsum(d)` that run on float16: after a cast, of what a
    region has left in half, in CPU autocast. Only values that cannot cancel (squares, absolute
    values, probabilities, masks) are `likely`, and a phase: a cumulative sum that goes into a sine
    or is taken modulo a number. So are losses with `reduction="sum"`, and the sum of a mask by which a
    sum of what it masks is divided. Other sums are `possible`.

    It stays silent for `dtype=torch.float32`, for upcast operands, for bfloat16, inside CUDA
    autocast, which runs `sum`, `cumsum` and `prod` in float32, for `mean` and `norm`, which
    accumulate in float32, for a sum of softmax weights, which is 1, and for a total that is only
    compared with a constant that half holds (`x.abs().sum() > 0`).

    ## Why it breaks
    The sum accumulates in float32, but its result has to fit into float16, which ends at 65504: a
    mask of 256 x 256 ones has the sum 65536, which is inf, and the division by the area that
    follows comes too late. `mean` divides before it rounds. Counts above 2048 are rounded too:
    2049 ones have the sum 2048.

    ## Example
    ```python
    mask = torch.sigmoid(logits.half())
    area = mask.sum()
    ```
    Use instead:
    ```python
    mask = torch.sigmoid(logits.half())
    area = mask.sum(dtype=torch.float32)
    ```
    or `mask.mean()`.

    ## Fix safety
    Safe where the sum ends in a loss or a metric: with `dtype=torch.float32` a float32 sum is the
    same to the bit. Elsewhere unsafe: the sum stays in float32, and a layer in half would not take
    it.

    ## How to silence
    `# precision-lint: ignore[MP602] reason` or `# noqa: MP602` on the line.

    ## Sources
    PyTorch, `torch.sum` (`dtype`); Automatic Mixed Precision: CUDA ops that autocast to float32.
    """

    code = "MP602"
    name = "sum-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("sum-overflow",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        before = " before it is divided" if facts["mean"] else ""
        if facts["loss"]:
            fix = at.fix("upcast the operands", at.upcast(facts["upcast"]))
        else:
            dtype = f"{at.torch()[0]}.float32"
            fix = at.fix("sum in float32", at.add_keyword(event.place, "dtype", dtype))
        message = f"{facts['operation']} in float16 exceeds 65504{before} with enough terms"
        yield Finding(message, fix=fix)
