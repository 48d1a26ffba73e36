from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class RandomLogInHalf(Rule):
    """Logarithm of uniform noise that is drawn in half, where it is often exactly 0.

    ## What it flags
    `torch.log(u)` where `u` is `torch.rand_like(x)`, `torch.rand(..., dtype=x.dtype)` or
    `x.new_empty(...).uniform_()` and half: without an epsilon, or with one that is 0 in float16
    (at most 2.98e-8). That is how Gumbel and exponential noise are made by hand. And random numbers
    that are drawn in half (`torch.randn(shape, dtype=torch.float16)`) and cast to float32 behind.

    It stays silent for noise in float32 (`torch.rand(shape)` is, under autocast too), for
    `log(1 - u)` (`u` is never 1), for an epsilon that the dtype holds, and for `F.gumbel_softmax`
    and `exponential_()`, which have no logarithm of 0.

    ## Why it breaks
    `rand` draws multiples of `2**-11` in float16 and of `2**-8` in bfloat16: measured, 2.5e-4 and
    1.9e-3 of all elements are exactly 0 (6e-8 in float32), and their logarithm is -inf. In a batch
    of 4,000 logits one is chosen by an infinite noise in every step, and its gradient is nan. The
    usual `+ 1e-8` or `+ 1e-20` rounds to 0 in float16. Autocast does not help: it takes the
    logarithm in float32, of a noise that is 0. Normal numbers in bfloat16 keep 8 bits: what a sampler
    computes in float32 of them shows their grid.

    ## Example
    ```python
    x = logits.half()
    noise = -torch.log(-torch.log(torch.rand_like(x) + 1e-8))
    ```
    Use instead:
    ```python
    x = logits.half()
    noise = (-torch.log(-torch.log(torch.rand_like(x, dtype=torch.float32) + 1e-8))).to(x.dtype)
    ```

    ## Fix safety
    Safe: float32 noise is drawn as before, and the result returns to the dtype that the noise had
    (Gumbel noise of float32 is at most 16.6). Where that dtype has no short name the result stays
    in float32, and the fix is unsafe.

    ## How to silence
    `# precision-lint: ignore[MP608] reason` or `# noqa: MP608` on the line.

    ## Sources
    PyTorch, `torch.rand`, `torch.Tensor.uniform_`, `torch.nn.functional.gumbel_softmax`; Jang et
    al., Categorical Reparameterization with Gumbel-Softmax, 2017.
    """

    code = "MP608"
    name = "random-log-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("log-noise", "coarse-noise")
    supersedes = ("MP301",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if event.kind == "coarse-noise":
            yield Finding(
                f"random numbers are drawn in {facts['half']} and cast up afterwards: they keep the "
                f"coarse steps of {facts['half']}",
                related=(Link("cast up here", facts["cast"]),),
            )
            return
        yield Finding(
            "uniform numbers drawn in half are 0 once in 4096 (float16) or 512 (bfloat16) draws, "
            f"and {facts['operation']} of 0 is -inf",
            fix=_wide(event, at),
        )


def _wide(event: Event, at: Context) -> Fix | None:
    """Draw in float32."""
    drawn = event.facts["base_at"]
    if drawn is None or drawn.path != at.path:
        return None
    if event.facts["base"] == "uniform":  # in place: what it is drawn into is made in float32
        drawn = at.receiver(drawn)
    torch, imports = at.torch()
    edits = at.set_keyword(drawn, "dtype", f"{torch}.float32") if drawn is not None else None
    return at.fix("draw in float32", None if edits is None else (*imports, *edits))
