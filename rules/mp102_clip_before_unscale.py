from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class ClipBeforeUnscale(Rule):
    """Gradient clipping that sees gradients multiplied by the loss scale.

    ## What it flags
    `clip_grad_norm_`, `clip_grad_value_` and wrappers of them between
    `scaler.scale(loss).backward()` and `scaler.step(optimizer)`, if no
    `scaler.unscale_(optimizer)` comes before the clip.

    Some frameworks scale the loss themselves (`accelerator.backward(loss)`, `fabric.backward`,
    `self.manual_backward`) and have a clip method that unscales first. In such code, torch's own
    clip functions are flagged if the run uses float16.

    A clip is flagged as well if `unscale_` stands in an `if` before it, the loss is always scaled and
    the scaler is always on: where the `if` is skipped, the clip sees scaled gradients.

    It stays silent where the path to the clip unscales first, where the scaler may be off
    (`if use_amp:`), where the loss is not scaled, for a scaler made with `enabled=False`, and for
    methods that unscale by themselves (`accelerator.clip_grad_norm_`, Fabric, Lightning).

    ## Why it breaks
    Nothing raises. With a scale of 65536 a `max_norm` of 1.0 acts as 1.5e-5: SGD stands still (loss
    3.55 after 60 steps where it should be 0.01). Adam divides each gradient by its own size, so it
    still trains, but as if every step had a gradient of the same tiny norm. `clip_grad_value_` also
    turns inf into a finite number. The scaler then does not skip a step that overflowed.

    ## Example
    ```python
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    ```

    ## Fix safety
    Safe: `unscale_` of a disabled scaler does nothing. With gradient accumulation, `unscale_` is
    added in the branch that steps. If the clip is outside of that branch, or behind an `unscale_` that
    may be skipped, there is no automatic fix.

    ## How to silence
    `# precision-lint: ignore[MP102] reason` or `# noqa: MP102` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: gradient clipping.
    """

    code = "MP102"
    name = "clip-before-unscale"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("scaled-clip",)
    supersedes = ("MP101",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        message = (
            "gradients are clipped while still multiplied by the loss scale: a max_norm of 1 acts as "
            "1/65536"
        )
        if event.facts.get("passed"):
            message = "where `unscale_` is skipped, " + message
            yield Finding(message, related=remedies.backward(event))
            return
        fix = remedies.unscale(event, at, "unscale the gradients before clipping")
        yield Finding(message, fix=fix, related=remedies.backward(event))
