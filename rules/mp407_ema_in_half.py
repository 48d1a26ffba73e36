from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Rule, Severity


class EmaInHalf(Rule):
    """Exponential moving average that is kept in half precision, where it stops moving.

    ## What it flags
    `kept.mul_(decay).add_(new, alpha=1 - decay)`, `kept.copy_(decay * kept + (1 - decay) * new)`,
    `kept.lerp_(new, 1 - decay)`, `kept.sub_((1 - decay) * (kept - new))` and `kept = m * kept + (1
    - m) * new`, of a variable of a loop too if `m` is known, where what is kept is half: a tensor
    that is cast to it, or the parameters of a module that is a copy of one that the file makes
    half; also in the branch of a condition that has found what is kept to be half.

    It stays silent on a copy in float32 (`copy.deepcopy(model).float()`), on models that are only
    run under autocast, whose weights are float32, and on fast averages (decay below 0.95, or 0.99
    where only float16 is in question). In a project with half models elsewhere it is possible.

    ## Why it breaks
    A step of the average is `(1 - decay) * (new - kept)`; below half a unit of the last place it is
    rounded away. From 0 towards a weight of 1, 5,000 steps with a decay of 0.9999 end at 0.25 in
    float16 and at 0.031 in bfloat16 (float32: 0.39, and it goes on); with 0.999 at 0.73 and 0.50.
    From 1 to 1.1 nothing moves at all. As a half number 0.9999 itself is 1.0.

    ## Example
    ```python
    model = Net().to(torch.bfloat16)
    ema = copy.deepcopy(model)
    for batch in loader:
        train_step(model, batch)
        for kept, new in zip(ema.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(new.data, alpha=0.001)
    ```
    Use instead:
    ```python
    model = Net().to(torch.bfloat16)
    ema = copy.deepcopy(model).float()
    for batch in loader:
        train_step(model, batch)
        for kept, new in zip(ema.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(new.data, alpha=0.001)
    ```

    ## Fix safety
    There is no fix yet. By hand: `.float()` on the copy that is averaged. It takes twice the
    memory; cast it where it is evaluated.

    ## How to silence
    `# precision-lint: ignore[MP407] reason` or `# noqa: MP407` on the line.

    ## Sources
    IEEE 754 binary16; PyTorch, `torch.optim.swa_utils.AveragedModel`.
    """

    code = "MP407"
    name = "ema-in-half"
    severity = Severity.ERROR
    applicability = None
    listens = ("slow-average",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        kept = at.quoted(facts["kept"], "of weights")
        stuck = "25 %" if facts["half"] == "float16" else "3 %"
        decay = facts["decay"]
        steps = "small steps" if decay is None else f"steps of a decay of {decay:g}"
        yield Finding(
            f"moving average {kept} in {facts['half']} stops short: {steps} are rounded away (with 0.9999 "
            f"it goes only {stuck} of the way to a new value)",
        )
