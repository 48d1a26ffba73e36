from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Rule, Severity


class AttentionScaledTooLate(Rule):
    """Attention scores scaled after the product in float16, when they may be inf already.

    ## What it flags
    A product of queries and keys (`@`, `matmul`, `bmm`, `einsum`) that runs in float16, is then
    divided by `sqrt(d)` or multiplied by a scale, at once or in a later statement, and goes through
    a softmax.

    It stays silent where an operand was scaled or normalised before (`q * scale`, a query norm),
    for bfloat16, which has the range of float32, for `scaled_dot_product_attention`, which scales
    in float32, and for factors that may be above 1 (`logit_scale`, a temperature). A function that
    no float16 region is known to reach is only `possible`.

    ## Why it breaks
    The sum of `d` products is rounded to float16 before it is scaled. With `d = 128` and entries
    around 60 it passes 65504 and is inf; inf divided by 11.3 is inf, the softmax of a row with inf
    is nan, and so are its gradients: 2,944 of them in the measured case, where scaling the queries
    first left none.

    ## Example
    ```python
    scores = torch.matmul(query, key.transpose(-1, -2)) / math.sqrt(width)
    weights = scores.softmax(dim=-1)
    ```
    Use instead:
    ```python
    scores = torch.matmul(query / math.sqrt(width), key.transpose(-1, -2))
    weights = scores.softmax(dim=-1)
    ```
    `F.scaled_dot_product_attention(query, key, value)` does that, and is faster.

    ## Fix safety
    Unsafe: float32 results change in the last digit, unless the scale is a power of two. Scores
    beyond 65504 times `sqrt(d)` overflow even so. No fix where something was added between the
    product and its scale, or where the scale is in another statement.

    ## How to silence
    `# precision-lint: ignore[MP208] reason` or `# noqa: MP208` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16. PyTorch,
    `torch.nn.functional.scaled_dot_product_attention`.
    """

    code = "MP208"
    name = "attention-scaled-too-late"
    severity = Severity.ERROR
    applicability = Applicability.UNSAFE
    listens = ("late-scale",)
    supersedes = ("MP201", "MP202")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        yield Finding(
            "attention scores can exceed 65504 in float16 before they are scaled down",
            fix=_fix(event, at),
        )


def _fix(event: Event, at: Context) -> Fix | None:
    facts, reason = event.facts, "which factor to scale is a choice"
    title = "scale a factor before the product"
    whole, product, factor, scale = (
        facts[name] for name in ("whole", "product", "factor", "scale")
    )
    if None in (whole, product, factor, scale):
        return at.shown(title, reason)
    edits = at.moved_factor(whole, product, factor, scale, facts["sign"])
    if edits is None:
        return at.shown(title, reason)
    return at.fix(title, edits, "the product rounds differently")
