from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class ClipBeforeUnscale(Rule):
    """Gradient clipping that sees gradients multiplied by the loss scale.

    ## What it flags
    `clip_grad_norm_`, `clip_grad_value_` and wrappers of them between
    `scaler.scale(loss).backward()` and `scaler.step(optimizer)` without
    `scaler.unscale_(optimizer)` before.

    The same with the torch function behind the backward of a framework that scales inside
    (`accelerator.backward(loss)`, `fabric.backward`, `self.manual_backward`) and has a clip of
    its own, where float16 is in force.

    It stays silent where any path to the clip unscales first (`if use_amp:`), on paths whose
    backward is not scaled, for a scaler made with `enabled=False`, and for wrappers that
    unscale by themselves (`accelerator.clip_grad_norm_`, Fabric, Lightning).

    ## Why it breaks
    Nothing raises. With a scale of 65536 a `max_norm` of 1.0 acts as 1.5e-5: SGD stands still (loss
    3.55 after 60 steps where it should be 0.01). Adam divides by the gradient's own size, so it
    goes on, but as if every gradient had the same tiny norm. `clip_grad_value_` also turns inf into
    a finite number, so the scaler does not skip the step that it should skip.

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
    Safe: without a scale (a disabled scaler) `unscale_` does nothing. With gradient
    accumulation it goes into the branch that steps; where the clip itself is outside of that
    branch there is no automatic fix.

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
        yield Finding(
            "gradients are clipped while still multiplied by the loss scale: a max_norm of 1 acts as "
            "1/65536",
            fix=remedies.unscale(event, at, "unscale the gradients before clipping"),
            related=remedies.backward(event),
        )
