from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Cost, Event, Finding, Fix, Rule, Severity


class BceUnderAutocast(Rule):
    """binary_cross_entropy or BCELoss in a CUDA autocast region, where torch refuses to run it.

    ## What it flags
    `F.binary_cross_entropy(...)` and calls of an `nn.BCELoss` under autocast for CUDA or a device
    that is only known at run time.

    A call of a name (`criterion`, `self.losses["gan"]`) that another function of the file binds to
    an `nn.BCELoss` counts; it is `possible` where the name is bound to others too.

    It stays silent under `autocast(enabled=False)`, for a region on the CPU, whose autocast runs
    the loss in float32, and for the forms with logits. A function that no region is known to
    reach is only `possible`, because the loss may be taken after the region.

    ## Why it breaks
    A probability that was rounded to 0 or 1 in half has an infinite logarithm, so torch raises
    `binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast`. `.float()` on the operands
    does not help: the check is on the region. `binary_cross_entropy_with_logits` is fine.

    ## Example
    ```python
    loss = F.binary_cross_entropy(torch.sigmoid(logits), target)
    ```
    Use instead:
    ```python
    loss = F.binary_cross_entropy_with_logits(logits, target)
    ```

    ## Fix safety
    Where a sigmoid is the argument of `binary_cross_entropy`, the fix takes its logits. That is
    unsafe: float32 results change in the last digits, and where the sigmoid saturates (beyond
    16.6 in float32) the plain form stops at its clamp of 100 with a gradient of 0, and the new
    one goes on. Everywhere else the loss is computed in float32 outside of autocast, which is
    safe.

    ## How to silence
    `# precision-lint: ignore[MP206] reason` or `# noqa: MP206` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: "Prefer binary_cross_entropy_with_logits over
    binary_cross_entropy".
    """

    code = "MP206"
    name = "bce-under-autocast"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = ("banned-operation",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        yield Finding(
            "autocast refuses binary_cross_entropy: it raises inside a region",
            fix=_outside(event, at),
        )


def _outside(event: Event, at: Context) -> Fix | None:
    """Take the logits where the sigmoid is an argument, else leave autocast for the loss."""
    operands, logits = event.facts["operands"], event.facts["logits"]
    call = at.call(event.place)
    if logits is not None and call is not None and event.facts["function"]:
        name = at.callee(event.place)
        taken = call.put(0, at.text(logits))
        if name is None or taken is None:
            return None
        edits = (*call.callee(f"{name}_with_logits"), *taken)
        return at.fix("take the logits", edits, "one step rounds differently from two")
    if len(operands) != 2:
        return None
    wrapped = at.without_autocast(event.place, operands, None, "loss")
    return at.fix("compute the loss outside of autocast", wrapped)
