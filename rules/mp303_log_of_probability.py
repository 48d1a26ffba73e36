from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class LogOfProbability(Rule):
    """Logarithm of a sigmoid, a softmax or a sum of exponentials, computed in two steps in half.

    ## What it flags
    `torch.log(torch.sigmoid(x))`, `F.softmax(x, dim=-1).log()` and `x.exp().sum(dim).log()`, each
    in one expression, where the first step may be float16.

    It stays silent where that step is float32 (upcast; a softmax or exp inside a CUDA autocast
    region), for bfloat16, whose exponents hold what these steps make, for exponentials that are
    bounded, and where a name holds the probability, which other code may need (MP301).

    ## Why it breaks
    A sigmoid or a softmax below `2**-25` is 0 in float16, which is reached 17 below the largest
    logit, and its logarithm is -inf; the gradient, 0/0, is nan. An exponential is inf from 11.09
    on. The sigmoid stays half under autocast as well. `F.logsigmoid`, `log_softmax` and
    `logsumexp` are one step, in which nothing of this is formed: they are finite, forward and
    backward, in pure half too.

    ## Example
    ```python
    loss = -torch.log(torch.softmax(logits.half(), dim=-1)).mean()
    ```
    Use instead:
    ```python
    loss = -torch.log_softmax(logits.half(), dim=-1, dtype=torch.float32).mean()
    ```

    ## Fix safety
    Safe where the argument of the probability is upcast: float32 results stay as they are.
    `log(sigmoid(x))` becomes `logsigmoid(x)`, which is unsafe because it rounds differently: float32
    results change by about 1e-6, and become finite where they were -inf.

    ## How to silence
    `# precision-lint: ignore[MP303] reason` or `# noqa: MP303` on the line.

    ## Sources
    PyTorch, `torch.nn.functional.log_softmax` ("doing these two operations separately is slower
    and numerically unstable"), `torch.nn.functional.logsigmoid`, `torch.logsumexp`.
    """

    code = "MP303"
    name = "log-of-probability"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("log-probability",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related: tuple[Link, ...] = ()
        if facts["base_at"] is not None:
            related = (Link("the value is made here", facts["base_at"]),)
        base = facts["base"]
        yield Finding(
            f"{facts['operation']} of {'an' if base[0] in 'aeiou' else 'a'} {base} is -inf where the {base} "
            "underflows in float16, below 2**-25",
            fix=_stable(event, at),
            related=related,
        )


def _stable(event: Event, at: Context) -> Fix | None:
    """Take the logarithm in one step where the sigmoid is inside of it, else compute in float32."""
    inner, operands = event.facts["base_at"], event.facts["upcast"]
    if event.facts["base"] == "sigmoid" and len(operands) == 1 and inner is not None:
        if at.is_argument(inner, event.place):
            torch, imports = at.torch()
            text = f"{torch}.nn.functional.logsigmoid({at.text(operands[0])})"
            edits = at.replace({event.place: text})
            reason = "one step rounds differently, and is finite where two give -inf"
            joined = None if edits is None else (*imports, *edits)
            return at.fix("take the logarithm of the sigmoid in one step", joined, reason)
    return at.fix("upcast the argument", at.upcast(at.at_origin(event)))
