from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class UnscaledGradientCheck(Rule):
    """Gradient that is inspected while it is still multiplied by the loss scale.

    ## What it flags
    Reads of gradients (`isnan`, `isfinite`, `norm`, `max`, histograms, comparisons, printing),
    or calls of helpers that read them, between `scaler.scale(loss).backward()` and
    `scaler.unscale_(optimizer)`. The first read after each backward is reported.

    What is added to gradients that no loss scale multiplies: noise, a weight decay or an L1
    term by hand (`p.grad.add_(p.data, alpha=decay)`). `scaler.step` divides it by the scale.

    Norms, powers and checks of what `torch.autograd.grad(scaler.scale(loss), inputs)` gives, such as a
    gradient penalty, where nothing in the function uses `scaler.get_scale()`.

    What `torch.autograd.grad(outputs, inputs)` gives divided by `scaler.get_scale()`, where no scaler
    multiplied the outputs or their `grad_outputs`: the gradient is 65536 times too small.

    Frameworks that scale inside, where the code or the configuration shows that they run in float16:

    - reads after `accelerator.backward(loss)` or `fabric.backward(loss)`, until
      `accelerator.unscale_gradients()`, `accelerator.clip_grad_norm_()` or
      `accelerator.clip_grad_value_()` has unscaled them;
    - reads in Lightning's `on_after_backward`.

    It stays silent in these cases:

    - `grad is None`, assignments, and linear operations such as `all_reduce`;
    - paths whose backward is not scaled, and a scaler made with `enabled=False`;
    - a scaler that is passed to code outside of the project;
    - a wrapper that scales, unscales and steps in one call, such as timm's `NativeScaler`;
    - Lightning's `on_before_optimizer_step`, which runs after Lightning has unscaled.

    ## Why it breaks
    The scale starts at 65536. A gradient of 1.0 is 65536 then, which float16 cannot hold: the
    check reports an explosion that is not there and the step is skipped, or a norm that is logged
    is 65536 times too large, while a real explosion hides among the false ones.

    ## Example
    ```python
    scaler.scale(loss).backward()
    norm = max(p.grad.norm() for p in model.parameters())
    scaler.unscale_(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = max(p.grad.norm() for p in model.parameters())
    ```

    ## Fix safety
    Safe: without a scale (a disabled scaler) `unscale_` does nothing. It is inserted before the
    read and a later duplicate is removed, because a second `unscale_` raises (MP103). With
    gradient accumulation `unscale_` may only run in the iteration that steps; a read outside of
    that branch has to be moved by hand.
    What `torch.autograd.grad` gave is divided by `scaler.get_scale()` where it is read: that is 1.0 for
    a disabled scaler, and `unscale_` divides nothing but `.grad`.

    ## How to silence
    `# precision-lint: ignore[MP101] reason` or `# noqa: MP101` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: working with unscaled gradients, gradient
    accumulation.
    """

    code = "MP101"
    name = "unscaled-gradient-check"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("scaled-gradient-read", "divided-unscaled")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        if event.kind == "divided-unscaled":
            yield Finding(
                "these outputs are not multiplied by the loss scale (65536 at first), by which their gradient "
                "is divided",
                related=(Link("the gradient is divided here", event.facts["divided"]),),
            )
            return
        added = event.facts["how"] == "gradient-added"
        yield Finding(
            f"gradients are {'changed by what is not scaled' if added else 'read'} while still "
            "multiplied by the loss scale (65536 at first)",
            fix=_divided(event, at)
            if event.facts["how"] == "autograd"
            else remedies.unscale(event, at, "unscale the gradients first"),
            related=remedies.backward(event),
        )


def _divided(event: Event, at: Context) -> Fix | None:
    """Divide a gradient of ``torch.autograd.grad`` by the scale, which ``unscale_`` doesn't know of."""
    gradient, scalers = at.receiver(event.place), event.facts["scalers"]
    if gradient is None or not scalers or not at.is_known(scalers[0], event.place):
        return None
    name = at.text(scalers[0])
    edits = at.rewrite({gradient: f"(_ / {name}.get_scale())"})
    return at.fix(f"divide by the scale of {name}", edits)
