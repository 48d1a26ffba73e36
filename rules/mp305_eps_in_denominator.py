from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Edits, Event, Finding, Link, Rule, Severity


class EpsInDenominator(Rule):
    """Epsilon in a denominator that rounds to zero in float16, or whose reciprocal overflows.

    ## What it flags
    `a / (b + eps)`, `a / b.clamp(min=eps)`, `torch.div(a, b + eps)`, `(b + eps).reciprocal()`,
    `a /= b + eps`, `a.div_(b + eps)` and the other guards of MP301, where `b` is computed in this
    function, may be float16 and may come near 0, and `eps` is at most 1.53e-5. The constant may
    come from a name, a default argument, an attribute of the class, another module, the default of
    a configuration (`config.get("eps", 1e-8)`), or `torch.finfo(torch.float32)`.

    It stays silent where `b` is float32 for certain (`.float()`; a sum, norm or softmax inside a
    CUDA autocast region), is an integer or a Python number, or is bounded away from 0, for
    `torch.finfo(x.dtype)`, for bfloat16, for a norm (MP307) and in front of a logarithm (MP301),
    and for an epsilon that survives where the quotient is clamped on both sides.

    It is only `possible` for a denominator that is an argument or an attribute itself, for what two
    arguments promote to (the union of predicted and target boxes is float32 if the targets are),
    for metrics under `no_grad`, for a sum or norm in a project that trains under autocast and what
    no known layer or activation function made there (statistics of features), and for an epsilon
    that survives where the numerator vanishes with the denominator.

    ## Why it breaks
    float16's smallest subnormal is `2**-24`, about 6e-8. A guard up to `2**-25` (2.98e-8), such as
    1e-8, rounds to 0: 0/0 is nan and a/0 is inf. A guard between 2.98e-8 and 1.53e-5, such as 1e-7
    or 1e-6, survives, but its reciprocal exceeds 65504: a quotient whose numerator does not
    vanish too is inf, and so is the gradient 1/eps of one whose numerator does.

    ## Example
    ```python
    attention = torch.relu(scores)
    peak = attention.amax(dim=-1, keepdim=True)
    weights = attention / (peak + 1e-8)
    ```
    Use instead:
    ```python
    attention = torch.relu(scores)
    peak = attention.amax(dim=-1, keepdim=True)
    weights = (attention.float() / (peak.float() + 1e-8)).to(attention.dtype)
    ```

    ## Fix safety
    Safe: `.float()` on both operands, so float32 results are the same to the bit (float64 comes
    down to float32). The quotient goes back to the dtype of its numerator where it goes on as an
    activation. Where it goes on and may exceed half's range itself, as `1 / (x + 1e-8)`, the fix
    is unsafe: the result stays float32, and a layer in pure half would not take it. The backward
    pass is finite only while loss scale times gradient over epsilon stays below 65504.

    ## How to silence
    `# precision-lint: ignore[MP305] reason` or `# noqa: MP305` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA op-specific behavior (`div` is not listed and runs in
    the dtype of its operands; `sum`, `norm` and `softmax` run in float32).
    """

    code = "MP305"
    name = "eps-in-denominator"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("weak-denominator",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["clamped"] and facts["fate"] == "zero":
            return  # the guard is the finding (MP308)
        related = []
        if facts["epsilon_at"] is not None:
            related.append(Link(f"this is {facts['epsilon']:g}", facts["epsilon_at"]))
        if facts["base_at"] is not None:
            related.append(Link("the guarded value is made here", facts["base_at"]))
        yield Finding(
            f"epsilon {facts['epsilon']:g} in the denominator {_fate(event)}",
            fix=at.fix("upcast the quotient's operands", _edits(event, at)),
            related=tuple(related),
        )


def _fate(event: Event) -> str:
    """What becomes of the quotient in half."""
    epsilon = event.facts["epsilon"]
    if event.facts["fate"] == "zero":
        return "rounds to 0 in float16, so a quotient by 0 gives inf or nan"
    return f"survives in float16, but its reciprocal {1 / epsilon:.3g} exceeds 65504"


def _edits(event: Event, at: Context) -> Edits | None:
    places = [*at.at_origin(event)]
    if event.facts["numerator"] is not None:
        places.append(event.facts["numerator"])
    if event.facts["fate"] != "zero":
        return at.upcast(dict.fromkeys(places))  # the quotient does not fit into half
    return at.compute_wide(event, places)
