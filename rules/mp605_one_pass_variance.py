from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class OnePassVariance(Rule):
    """Variance as a difference of two means, which cancels in half precision.

    ## What it flags
    `(x * x).mean(d) - x.mean(d) ** 2` and its spellings (`x.pow(2)`, `torch.square`, local names
    for either mean), and the same with averages over windows (`pool(x * x) - pool(x) ** 2`, a blur,
    a convolution with a window, as SSIM has it) or quotients of sums (`squares / n - (total / n) **
    2`, `squares - total ** 2 / n`), where the values are float16 or bfloat16: after a cast, in a
    half model, and in an autocast region, which runs neither `mul` nor `mean` in float32.

    It stays silent for `x.var()`, for `x.float()`, and where autocast runs the square in float32
    (`x.pow(2)` on CUDA).

    ## Why it breaks
    Both means agree in the digits that half has as soon as they are large against the deviation.
    Measured in float16 with a deviation of 1: off by 17 % at a mean of 20, two of three variances
    are 0 or negative at 100 (and their roots nan), and at 1000 the squares are inf and the
    difference is nan. In bfloat16 half of them are 0 or negative at a mean of 20. `var` subtracts
    the mean first and accumulates in float32: its error is 5e-4.

    ## Example
    ```python
    x = (samples + 100).half()
    variance = (x * x).mean(-1) - x.mean(-1) ** 2
    ```
    Use instead:
    ```python
    x = (samples + 100).half()
    variance = x.var(-1, unbiased=False)
    ```
    or upcast first: `x = x.float()`.

    ## Fix safety
    There is none for a convolution, which a region casts back to half. Otherwise safe: float32
    results stay the same to the bit. The difference of means cancels there as well, at means from
    1000 deviations on: `x.var(unbiased=False)` does not.

    ## How to silence
    `# precision-lint: ignore[MP605] reason` or `# noqa: MP605` on the line.

    ## Sources
    Chan, Golub, LeVeque: Algorithms for Computing the Sample Variance, 1983. PyTorch, `torch.var`.
    """

    code = "MP605"
    name = "one-pass-variance"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("one-pass-variance",)
    supersedes = ("MP601",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        yield Finding(
            "mean(x ** 2) - mean(x) ** 2 cancels in half: 0 or nan where the mean is 100 times the "
            "deviation",
            fix=at.fix("compute the moments in float32", at.upcast(event.facts["upcast"])),
        )
