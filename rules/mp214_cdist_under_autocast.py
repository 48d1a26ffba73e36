from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class CdistUnderAutocast(Rule):
    """Distance matrix that runs only because autocast upcasts it, and raises outside the region.

    ## What it flags
    `torch.cdist`, `torch.pdist` and `F.pdist` in an autocast region, or in a function that runs
    under one, on operands that may be half. Shown as info: it does not fail a run.

    It stays silent where both operands are float32 for certain (`.float()`, or a branch on the
    dtype), and where they are proven half outside autocast: that is MP504. Where only the project
    says autocast and the operands are positions that no known layer gave, it is `possible`, and
    so it is where nothing in the project is made half, so that no half tensor is outside.

    ## Why it breaks
    Autocast runs `cdist` in float32, and the operation has no half kernel. So the same line that
    trains well raises `"cdist_cuda" not implemented for 'Half'` as soon as it is reached with half
    tensors outside of the region: an evaluation loop without autocast on a `.half()` copy of the
    model, or a matcher called after the region has ended. With `p=2` and more than 25 rows it goes
    through a matrix product in half instead and is 3.9 % off on [0, 1].

    ## Example
    ```python
    cost = torch.cdist(pred_boxes, target_boxes, p=1)
    ```
    Use instead:
    ```python
    cost = torch.cdist(pred_boxes.float(), target_boxes.float(), p=1)
    ```
    Leave the result in float32: `.to(pred_boxes.dtype)` turns distances above 65504 into inf.

    ## Fix safety
    Safe: `.float()` on a float32 operand does nothing (a float64 one comes down to float32),
    and autocast runs the operation in float32 anyway.

    ## How to silence
    `# precision-lint: ignore[MP214] reason` or `# noqa: MP214` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA and CPU op reference.
    """

    code = "MP214"
    name = "cdist-under-autocast"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    listens = ("distance-in-region",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        yield Finding(
            f"{facts['operation']} has no half kernel: it works inside of autocast only",
            fix=at.fix(f"upcast the operands of {facts['operation']}", at.upcast(facts["upcast"])),
        )
