from __future__ import annotations

from collections.abc import Iterator

from precision_lint import remedies
from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class GradientsScrubbedBeforeStep(Rule):
    """Infinite gradients that are replaced before the scaler could see them.

    ## What it flags
    `nan_to_num`, `masked_fill_` and assignments through a mask of `isnan`, `isinf` or `isfinite` on
    gradients between `scaler.scale(loss).backward()` and `scaler.unscale_(optimizer)` (or
    `scaler.step`, which unscales). Helpers are followed.

    It stays silent after `unscale_`: the scaler has recorded what is infinite by then and skips the
    step. Clamps are reported as clips, by another rule.

    ## Why it breaks
    A scaler finds its scale by trying: it skips the steps whose gradients overflow, and halves the
    scale. A gradient that was scrubbed looks fine. `nan_to_num` turns inf into 3.4e38, which is
    5.2e33 after unscaling, and the parameters move by that; with `posinf=0` the gradient is lost,
    the scale stays where it is or grows, and every later step loses it too.

    ## Example
    ```python
    scaler.scale(loss).backward()
    for p in model.parameters():
        p.grad.nan_to_num_()
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    for p in model.parameters():
        p.grad.nan_to_num_()
    scaler.step(optimizer)
    ```

    ## Fix safety
    Unsafe: `unscale_` is put before the scrub, so steps that overflow are skipped from then on;
    gradients that are nan for another reason are skipped as well, where they were replaced before.

    ## How to silence
    `# precision-lint: ignore[MP108] reason` or `# noqa: MP108` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: gradient scaling; the numbers are measured.
    """

    code = "MP108"
    name = "gradients-scrubbed-before-step"
    severity = Severity.ERROR
    applicability = Applicability.UNSAFE
    listens = ("scrubbed-gradients",)
    supersedes = ("MP101",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        reason = "steps whose gradients are nan for another reason than the scale are skipped too"
        yield Finding(
            "inf and nan in gradients are replaced before the scaler sees them: a step that overflowed "
            "is not skipped",
            fix=remedies.unscale(event, at, "unscale the gradients first", reason),
            related=remedies.backward(event),
        )
