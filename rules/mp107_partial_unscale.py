from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Context,
    Finding,
    Fix,
    Remedy,
    Rule,
    Severity,
    Violation,
    events,
)


class PartialUnscale(Rule):
    """Clip over parameters of an optimizer that was not unscaled, while another one was.

    ## What it flags
    With several optimizers and one scaler: `clip_grad_norm_` or `clip_grad_value_` of parameters
    whose optimizer was not unscaled since the backward, while `scaler.unscale_` of another one ran.
    Which parameters an optimizer holds is read from where it is made (`SGD(net.parameters())`, in
    this function, this class or this module) or from its `param_groups`.

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
    triggers = events("partly-unscaled-clip", pattern=r"\.unscale_\(")

    def check(self, violation: Violation, at: Context) -> Iterator[Finding]:
        evidence = []
        if violation.backward is not None:
            evidence.append(at.note(violation.backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "they are clipped here")
        fix = None
        repaired = Remedy(violation, at).unscale_too()
        if repaired is not None:
            edits, removed = repaired
            evidence += [at.note(call, "it is unscaled only here") for call in removed]
            title = f"unscale {violation.optimizer} before the clip"
            fix = Fix(title, Applicability.SAFE, edits)
        done = " and ".join(violation.unscaled) or "the other optimizer"
        yield at.finding(
            violation.node,
            f"gradients of {violation.optimizer} are clipped while still multiplied by the loss "
            f"scale: only {done} was unscaled",
            violation.confidence,
            evidence=evidence,
            fix=fix,
        )
