from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class GuardBelowHalfRange(Rule):
    """Clamp whose limit half rounds to 0, or to 1, so that it guards nothing.

    ## What it flags
    `x.clamp(min=eps)`, `torch.clamp_min(x, eps)` and `torch.maximum(x, eps)` with an epsilon of at
    most 2.98e-8, `torch.finfo(torch.float32).tiny` included, where `x` may be float16; and
    `p.clamp(eps, 1 - eps)` whose upper limit rounds to 1: closer than 2.44e-4 in float16, 1.95e-3
    in bfloat16. Limits may come from names, defaults, attributes and other modules.

    Likewise a table that is cast to half before it is divided by its own maximum or sum, which its
    small entries do not live to see. `possible`: small values that are replaced by an epsilon that
    vanishes too (`x[x == 0] = 1e-8`).

    It stays silent where `x` is float32 (upcast, float32 by autocast), bounded by itself, an
    integer or a Python number, for a limit of 0, for a limit near 1 inside of a logarithm, which
    is 0 there, and where the clamp guards a logarithm, a
    denominator, a root or an inverse sigmoid in this function, which rules of their own report.
    A value that an argument brings is `possible` only.

    ## Why it breaks
    A limit takes the dtype of the tensor. 1e-8 is 0 in float16, so zeros pass. Next to 1 float16
    has steps of `2**-11` and bfloat16 of `2**-8`, so 1 - 1e-4 is 1 in both: behind
    `p.clamp(1e-4, 1 - 1e-4)` p is still 1, `log(1 - p)` and `atanh(p)` are -inf and inf, and the
    gradient of `acos(p)` is infinite.

    ## Example
    ```python
    cosine = torch.tanh(x.half()).clamp(-1 + 1e-6, 1 - 1e-6)
    angle = torch.acos(cosine)
    ```
    Use instead:
    ```python
    cosine = torch.tanh(x.half()).float().clamp(-1 + 1e-6, 1 - 1e-6)
    angle = torch.acos(cosine)
    ```

    ## Fix safety
    Safe where the result ends in a loss: only `.float()` is inserted, so float32 results are the
    same to the bit (float64 comes down to float32). Unsafe where a function of a half model
    returns a quotient by it: that stays float32, because half does not hold the limit. There is none for
    `torch.maximum`, whose limit is a tensor that has lost it already.

    ## How to silence
    `# precision-lint: ignore[MP308] reason` or `# noqa: MP308` on the line; or choose the limit by
    `torch.finfo(x.dtype).eps`.

    ## Sources
    PyTorch, `torch.finfo` (`eps` is `2**-10` for float16 and `2**-7` for bfloat16), `torch.clamp`.
    """

    code = "MP308"
    name = "guard-below-half-range"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("lost-guard", "weak-denominator")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "weak-denominator":
            if facts["clamped"] is not None and facts["fate"] == "zero":
                yield _divided(event, at)
            return
        related: tuple[Link, ...] = ()
        if facts["limit_at"] is not None:
            related = (Link(f"this is {facts['limit']:g}", facts["limit_at"]),)
        dtype = "float16" if facts["becomes"] == 0 else "half"
        yield Finding(
            f"limit {facts['limit']:g} rounds to {facts['becomes']:g} in {dtype}, so "
            f"`{facts['operation']}` lets values be {facts['becomes']:g}",
            fix=at.fix("upcast the limited value", at.upcast(at.at_origin(event))),
            related=related,
        )


def _divided(event: Event, at: Context) -> Finding:
    """A limit that is 0 in half, below a quotient."""
    facts = event.facts
    place, said = facts["clamped"], facts["epsilon_at"]
    reason = "the quotient is returned in float32 then" if at.widens(event) else None
    related = [Link("the quotient is here", event.place)]
    if said is not None:
        related.append(Link(f"this is {facts['epsilon']:g}", said))
    return Finding(
        f"limit {facts['epsilon']:g} rounds to 0 in float16, so `clamp` lets the denominator be 0",
        place if place.path == at.path else None,
        at.fix("upcast the limited value", at.upcast(at.at_origin(event)), reason),
        tuple(related),
    )
