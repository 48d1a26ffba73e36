from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Edits, Event, Finding, Rule, Severity


class UpcastTooLate(Rule):
    """`.float()` behind an operation whose result half has lost already.

    ## What it flags
    `(x + eps).float()` with an epsilon of at most 2.98e-8, `(x * x).float()`, `x.square().float()`,
    `x.pow(2).float()`, `(x ** 2).float()` and `x.exp().float()` (or `.double()`,
    `.to(torch.float32)`), where `x` may be float16; `(a * b).float()` of factors whose limits are
    known (a sigmoid times 40,000) and whose product exceeds 65504, or that two linear or
    convolution layers give.

    It stays silent where `x` is upcast, where its bounds exclude an overflow (a sigmoid, a
    normalised vector, a value from which its maximum was subtracted), for bfloat16, and where
    autocast runs the operation in float32 (`pow` and `exp` in a CUDA region). A matrix product
    that is upcast afterwards is MP201's where it is large. It is only `possible` where pure half
    would be needed in a project that trains under autocast.

    ## Why it breaks
    The operation runs in the dtype of its operands, and the cast comes after it. 1e-8 is 0 in
    float16, so `(p + 1e-8).float().log()` is -inf where p is 0, as without `.float()`. Squares
    overflow from 256 on and exponentials from 11.09 on: inf in half stays inf in float32.

    ## Example
    ```python
    energy = (x * x).float().mean(dim=-1)
    ```
    Use instead:
    ```python
    energy = (x.float() * x.float()).mean(dim=-1)
    ```

    ## Fix safety
    Safe: the cast moves to the operands, and the result has the dtype that it had; float32 results
    are the same to the bit.

    ## How to silence
    `# precision-lint: ignore[MP304] reason` or `# noqa: MP304` on the line.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision: CUDA op-specific behavior (`mul` and `add`
    are not listed, `pow` and `exp` run in float32).
    """

    code = "MP304"
    name = "upcast-too-late"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("late-cast", "late-cast-log")
    supersedes = ("MP301", "MP601", "MP603")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        yield Finding(
            f"the cast to float32 comes too late: the result of `{facts['operation']}` can be out of "
            "half precision's range by then",
            fix=at.fix("cast before the operation", _edits(event, at)),
        )


def _edits(event: Event, at: Context) -> Edits | None:
    moved = None
    if event.kind == "late-cast" and not event.facts["double"]:  # a sum in float64 stays one
        moved = at.move_cast(event.place, event.facts["upcast"])
    return moved if moved is not None else at.upcast(event.facts["upcast"])
