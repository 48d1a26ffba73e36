from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Fix, Rule, Severity


class PartialUnscale(Rule):
    """Clip over parameters of an optimizer that was not unscaled, while another one was.

    ## What it flags
    With several optimizers and one scaler: `clip_grad_norm_` or `clip_grad_value_` of
    parameters whose optimizer was not unscaled since the backward, while `scaler.unscale_` of
    another one ran. Which parameters an optimizer holds is read from where it is made
    (`SGD(net.parameters())`, in this function, this class or this module) or from its
    `param_groups`. A loop over optimizers covers all of them.

    Where that is not known it stays silent. Clips before any `unscale_` are another rule's.

    ## Why it breaks
    `unscale_` divides the gradients of one optimizer only. The others still carry the scale: a
    `max_norm` of 1.0 acts on them as 1.5e-5, so with SGD they stand still (loss 3.55 where it
    should be 0.01). Where one norm is taken over both, it is 65536 times too large, and the
    gradients that were unscaled vanish as well. Nothing raises.

    ## Example
    ```python
    scaler.unscale_(encoder_optimizer)
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    ```
    Use instead:
    ```python
    scaler.unscale_(encoder_optimizer)
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    scaler.unscale_(decoder_optimizer)
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    ```

    ## Fix safety
    Safe: without a scale (a disabled scaler) `unscale_` does nothing.

    ## How to silence
    `# precision-lint: ignore[MP107] reason` or `# noqa: MP107` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: gradient clipping; working with multiple models,
    losses, and optimizers.
    """

    code = "MP107"
    name = "partial-unscale"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("partial-unscale",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        yield Finding(
            "gradients of one optimizer are clipped while still multiplied by the loss scale: only "
            "another one was unscaled",
            fix=_unscaled(event, at),
            related=remedies.backward(event),
        )


def _unscaled(event: Event, at: Context) -> Fix | None:
    """Unscale the optimizer whose parameters are clipped."""
    missing = event.facts["missing"]
    if missing is None or missing[0].path != at.path:
        return None
    step, scaler, optimizer = missing
    if not at.is_known(scaler, event.place) or not at.is_known(optimizer, event.place):
        return None
    name = at.text(optimizer)
    line = f"{at.text(scaler)}.unscale_({name})"
    edits = at.insert_beside(event.place, step, line)
    for place in event.facts["unscales"]:
        if at.text(place) == line:
            removed = at.remove(place)
            edits = None if edits is None or removed is None else (*edits, *removed)
    return at.fix(f"unscale {name} before the clip", edits)
