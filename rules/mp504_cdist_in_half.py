from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class CdistInHalf(Rule):
    """Distance matrix of half tensors outside autocast: it raises, or is silently wrong.

    ## What it flags
    `torch.cdist`, `torch.pdist` and `F.pdist` whose operands are half outside of any autocast
    region: after `.half()`, `.bfloat16()`, `.to(torch.float16)`, a half model in this project. In
    a project with no sign of half it is `possible`.

    It stays silent inside autocast, which runs the operation in float32 (MP214 shows those), and
    where the operands are upcast or the branch has tested their dtype.

    ## Why it breaks
    With `p=1`, or with at most 25 rows on either side, there is no half kernel and the call raises
    `"cdist" not implemented for 'Half'` (`"cdist_cuda"` on CUDA). With `p=2` and more than 25 rows
    it runs, through a half matrix product: the result is off by 3.9 % for coordinates in [0, 1]
    and inf for pixel coordinates.

    ## Example
    ```python
    distance = torch.cdist(a.half(), b.half())
    ```
    Use instead:
    ```python
    distance = torch.cdist(a.half().float(), b.half().float())
    ```

    ## Fix safety
    Safe: `.float()` on a float32 operand does nothing (a float64 one comes down to float32).
    The result stays in float32, because distances above 65504 would be inf in half.

    ## How to silence
    `# precision-lint: ignore[MP504] reason` or `# noqa: MP504` on the line.

    ## Sources
    PyTorch, `torch.cdist` (`compute_mode`: a matrix product above 25 rows).
    """

    code = "MP504"
    name = "cdist-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("missing-kernel", "missing-kernel-elsewhere")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["operation"] not in ("cdist", "pdist"):
            return
        yield Finding(
            f"`{facts['operation']}` of {facts['dtype']} tensors raises with `p=1` or with up to 25 rows; "
            "with more rows it can be off by 3.9 % or inf",
            fix=at.fix(
                f"upcast the operands of {facts['operation']}", at.upcast(facts["operands"])
            ),
        )
