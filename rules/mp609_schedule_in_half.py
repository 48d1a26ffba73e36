from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class ScheduleInHalf(Rule):
    """Noise schedule of a diffusion model whose cumulative product is taken in half.

    ## What it flags
    `torch.cumprod(1 - betas, dim=0)` and `alphas.cumprod(0)` of float16 or bfloat16 betas: made
    with a half dtype, after a cast (of `1 - betas` as well), outside of CUDA autocast. Also
    `1 - table[t]` where the table of products was finished in float32 and has been half since: cast
    to the dtype of half latents, or a buffer of a module that is made half, whatever it is cast to
    then; and the root of it, where the table is a cosine schedule (`cos(...) ** 2` of a `linspace`).

    It stays silent for float32 and float64 schedules, where the finished table is cast and not
    subtracted from 1, in CUDA autocast, which runs `cumprod` in float32, and for products that are
    no schedule by their names.

    ## Why it breaks
    `1 - 1e-4` rounds to 1 in float16 (its neighbour below is 0.9995), and in bfloat16 everything
    above 0.998 does. The product itself is 0.3 % off in float16; what breaks is one minus it:
    measured for the linear schedule of 1000 steps from 1e-4 to 0.02, the standard deviation of the
    noise is 0 for the first steps, and a step that divides by it is inf or nan.

    ## Example
    ```python
    betas = torch.linspace(1e-4, 0.02, 1000).half()
    alphas_bar = torch.cumprod(1 - betas, dim=0)
    ```
    Use instead:
    ```python
    betas = torch.linspace(1e-4, 0.02, 1000).half()
    alphas_bar = torch.cumprod(1 - betas.float(), dim=0)
    ```
    or make the schedule in float64 once, and cast what is picked from it for a step.

    ## Fix safety
    There is none where the digits are gone already: for a finished table, and for `1 - betas` that
    was cast. Otherwise safe: float32 schedules stay the same to the bit. In half the table is float32 then, and
    promotes the latents that it meets.

    ## How to silence
    `# precision-lint: ignore[MP609] reason` or `# noqa: MP609` on the line.

    ## Sources
    Ho, Jain, Abbeel: Denoising Diffusion Probabilistic Models, 2020. PyTorch, `torch.finfo`;
    Automatic Mixed Precision: CUDA ops that autocast to float32 (`cumprod`).
    """

    code = "MP609"
    name = "schedule-in-half"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    listens = ("half-schedule",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        what = "table of products" if facts["table"] else "cumulative product"
        yield Finding(
            f"the {what} of a schedule is in half: one minus it is 0 in the first steps",
            fix=at.fix("compute the schedule in float32", at.upcast(facts["upcast"])),
        )
