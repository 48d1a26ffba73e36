from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class EpsBeforeLog(Rule):
    """Epsilon before a logarithm that rounds to zero in float16, or whose reciprocal overflows.

    ## What it flags
    `log`, `log2` and `log10` of `x + eps`, `x.clamp(min=eps)`, `torch.maximum(x, eps)`,
    `torch.where(x > eps, x, eps)`, `x.masked_fill(x == 0, eps)` or `a / (b + eps)` where `x` may
    be float16 and `eps` is at most 1.53e-5. The constant may come from a name, a default
    argument, an attribute of the class, or the machine limits of numpy and `sys`. A sigmoid, a
    softmax or one minus it counts as guarded by 0 where nothing guards it. One minus a sigmoid
    is MP302's, the logarithm of a sigmoid in one expression MP303's, an inverse sigmoid MP309's.

    A function that does nothing but that (`def log(t, eps=1e-12)`) is reported where it is called
    with a half value, which is only `possible` unless the caller asks for a dtype.

    It stays silent where the value is float32 for certain (`.float()` before the addition; a
    softmax, exp, sum or norm inside the same CUDA autocast region, which runs in float32), where
    the value is bounded away from zero, for `torch.finfo(x.dtype)`, for a surviving epsilon where
    no gradient passes (detached, under `no_grad`, made of an array or of buffers alone, only
    compared or rounded) or `x` itself is the
    factor of the logarithm (`x * log(x + 1e-7)`, whose gradient is bounded), and for bfloat16,
    whose range is that of float32, except for `log(1 - p)`: `1 - p` is 0 there from logits of 6.3
    on.

    It is only `possible` where a project that trains under autocast would have to run in pure half
    (the value is a softmax, exp or sum), where the name says that a value comes from the data
    (`gt`, `target`, `prior`, `sigma`), for a cost without gradient whose complement MP302 reports,
    for a clamp from 7.6e-6 on, which stops nearly all large gradients, and for a subnormal constant
    such as 1e-45 next to float32 values.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8. A guard up to `2**-25` (2.98e-8), such as
    1e-8, rounds to 0: the sum is still 0 and the logarithm is -inf, under CUDA autocast too,
    because the addition runs in half *before* `log` is cast up. A guard between 2.98e-8 and
    1.53e-5, such as 1e-7 or 1e-6, survives, so the forward pass is finite, but the gradient 1/eps
    exceeds 65504 and is inf. `clamp(min=1e-6)` on a half value is the second kind: it cures the
    loss and leaves the gradient infinite. Both thresholds hold at loss scale 1 and grow with it.

    ## Example
    ```python
    p = torch.sigmoid(logits)
    loss = -torch.log(p + 1e-8)
    ```
    Use instead:
    ```python
    p = torch.sigmoid(logits.float())
    loss = -torch.log(p + 1e-8)
    ```

    ## Fix safety
    Safe: only `.float()` is inserted, so float32 results are the same to the bit (float64
    values come down to float32). It goes on the argument of the operation that produces the
    probability where the analysis finds that, in the function or in its callers. Where the half value
    comes from elsewhere it goes on the value itself, and the fix is unsafe: the forward pass is
    then finite, but a gradient of 1/eps still overflows on its way back into the half value.
    For an epsilon that survives (1e-7) this would cure nothing, so there the fix is only shown:
    upcast at the origin, or use `log_softmax`, `logsigmoid` or `logsumexp`.

    ## How to silence
    `# precision-lint: ignore[MP301] reason` or `# noqa: MP301` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA op-specific behavior (`add` is not listed, `log` runs
    in float32). An Empirical Study on Numerical Bugs in Deep Learning Programs, ASE 2022.
    """

    code = "MP301"
    name = "eps-before-log"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("log-guard",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related = []
        if facts["epsilon_at"] is not None:
            related.append(Link(f"this is {facts['epsilon']:g}", facts["epsilon_at"]))
        if facts["base_at"] is not None:
            related.append(Link("the guarded value is made here", facts["base_at"]))
        guard = f"epsilon {facts['epsilon']:g}" if facts["epsilon"] else "value without a guard"
        yield Finding(
            f"{guard} before {facts['operation']} {_fate(event)}",
            fix=_fix(event, at),
            related=tuple(related),
        )


def _fate(event: Event) -> str:
    """What becomes of a guard in half."""
    epsilon = event.facts["epsilon"]
    if not epsilon:
        return "is 0 in float16 below 2**-25, where log gives -inf"
    if event.facts["fate"] == "zero":
        return "rounds to 0 in float16, so log of 0 gives -inf"
    return (
        f"survives in float16, but its reciprocal {1 / epsilon:.3g} exceeds 65504, "
        "so the gradient is inf"
    )


def _fix(event: Event, at: Context) -> Fix | None:
    edits = at.upcast(at.at_origin(event))
    if edits is None:
        return None
    reason = "the gradient still overflows on its way into the half value; upcast at its origin"
    if not event.facts["known"] and event.facts["fate"] != "zero":
        return at.shown("upcast before the guard", reason, edits)
    forward_only = event.facts["passes"] and not event.facts["at_origin"]
    return at.fix("upcast the guarded value", edits, reason if forward_only else None)
