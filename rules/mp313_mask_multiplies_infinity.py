from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Link, Rule, Severity


class MaskMultipliesInfinity(Rule):
    """Mask that is applied behind a logarithm or a quotient, where 0 times infinity is nan.

    ## What it flags
    `torch.where(mask, x.log(), 0)`, and the same with `log2`, `log10`, `sqrt`, `rsqrt`,
    `reciprocal` or a division by `x`, also as a term or a factor (`x * x.log()`); and
    `mask * x.log()`, where nothing guards `x` and `x` may be float16.

    It stays silent where `x` is guarded by an epsilon or a clamp or bounded away from 0, where the
    argument is chosen by `torch.where` as well, where no gradient passes (for `where`), and for
    the logarithm of a sigmoid or softmax, which MP301 and MP303 report.

    ## Why it breaks
    `where` keeps the infinity out of the forward pass only. Its backward pass multiplies the
    gradient 0 of the entries that were masked by 1/x, which is inf at 0, and 0 * inf is nan: one
    masked entry makes all gradients of the step nan. A mask that multiplies does that in the
    forward pass. float32 has the same rule and meets it less often: products and sigmoids below
    2.98e-8 are 0 in float16.

    ## Example
    ```python
    p = torch.sigmoid(a.half()) * torch.sigmoid(b.half())
    loss = torch.where(keep, p.log(), 0.0).mean()
    ```
    Use instead:
    ```python
    p = torch.sigmoid(a.half()) * torch.sigmoid(b.half())
    loss = torch.where(keep, torch.where(keep, p, 1.0).log(), 0.0).mean()
    ```

    ## Fix safety
    There is no fix yet. By hand: `torch.where(keep, x, 1.0)` as the argument, so that what the
    mask drops is finite.

    ## How to silence
    `# precision-lint: ignore[MP313] reason` or `# noqa: MP313` on the line.

    ## Sources
    PyTorch, autograd mechanics; PyTorch issue 10729 (nan gradients of `torch.where`).
    """

    code = "MP313"
    name = "mask-multiplies-infinity"
    severity = Severity.INFO
    applicability = None
    listens = ("masked-infinity",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        what = "quotient" if facts["operation"] == "div" else "logarithm"
        where = "" if facts["everywhere"] else " in half"
        if facts["how"] == "mul":
            message = f"the {what} can be infinite{where}, and times a mask of 0 that is nan"
        else:
            message = (
                f"the {what} can be infinite{where}: its gradient is nan even where not selected"
            )
        yield Finding(message, related=(Link("it is made here", facts["made"]),))
