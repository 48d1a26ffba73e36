from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Rule, Severity


class MaskMinimumAdded(Rule):
    """Additive mask of a dtype's smallest number, added to another one or to scores.

    ## What it flags
    The sum of two masks that hold `torch.finfo(dtype).min` (or a literal close to -65504), in one
    expression such as `scores + causal + padding`, where the sum may be half, also where a short
    function of the project makes them; `finfo(dtype).min` times 2 or more, or times the sum of two
    masks.

    It stays silent for one mask that is added to scores (-inf only below a score of -16, and nan
    only if a whole row is masked), for one `masked_fill` with the minimum, for masks of -1e4, for
    masks whose minimum is taken (`torch.minimum`), for a sum of masks that is clamped to 1, for
    boolean masks, and in bfloat16 for float16's minimum.

    ## Why it breaks
    The minimum has no room below it: min + min is -inf, in bfloat16 and float32 too, and in
    float16 -65504 - 17 is. A row whose entries are all -inf is nan in softmax, and nan spreads
    over the batch: a sample without any token that a second mask hits as well. With the minimum
    alone the same row is uniform, which is harmless.

    ## Example
    ```python
    low = torch.finfo(torch.float16).min
    bias = banned * low + padding * low
    ```
    Use instead:
    ```python
    low = torch.finfo(torch.float16).min
    bias = torch.minimum(banned * low, padding * low)
    ```

    ## Fix safety
    There is no fix yet. By hand: `torch.minimum` of both masks in the place of their sum, or
    `masked_fill` of the scores for one mask.

    ## How to silence
    `# precision-lint: ignore[MP311] reason` or `# noqa: MP311` on the line.

    ## Sources
    PyTorch, `torch.finfo`, `torch.nn.functional.scaled_dot_product_attention` (boolean masks).
    """

    code = "MP311"
    name = "mask-minimum-added"
    severity = Severity.WARNING
    applicability = None
    listens = ("minimum-added",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["how"] == "two":
            message = (
                "two masks of the most negative half number add up to -inf, so a row of both is nan"
            )
        else:
            message = "a multiple of the most negative half number is -inf"
        yield Finding(message)
