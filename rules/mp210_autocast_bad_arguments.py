from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    BadArguments,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
)


class AutocastBadArguments(Rule):
    """Arguments of autocast or GradScaler that raise, or that mean something else in silence.

    ## What it flags
    - A keyword that the callable does not have: `torch.cuda.amp.autocast(device_type="cuda")`,
      `autocast("cuda", enable=False)`, `torch.amp.GradScaler(device_type="cuda")`.
    - A missing device type, a `torch.device` or a dtype in its place, or one that torch does not
      know (`"gpu"`).
    - A flag where the dtype stands (`autocast("cuda", False)`), a dtype as text.
    - What is taken for another parameter without an error:
      `torch.cuda.amp.autocast(torch.bfloat16)` runs in float16, `torch.cuda.amp.GradScaler(False)`
      has the initial scale 0, after which parameters are nan, `torch.cuda.amp.GradScaler(use_amp)`
      the scale 1, and `torch.amp.GradScaler(False)` is on.
    - `autocast("cuda", torch.float32)`, which runs the listed operations in float32, so that
      nothing is mixed any more; as a warning, not inside of another region, and only `possible` in
      a function that does not train.

    It stays silent for `"cuda:0"`, which works, for `*args`, for `**options` unless a dict in the
    same function has a wrong key, for a name that is imported from two places where they differ,
    and in a `try` that catches the error.

    ## Why it breaks
    `torch.autocast(device_type, dtype, enabled)` and `torch.cuda.amp.autocast(enabled, dtype)` take
    their parameters in another order, and so do the two GradScalers. Some mixtures raise a
    TypeError or a ValueError where the region is entered; the others train in another precision
    than the code says.

    ## Example
    ```python
    scaler = torch.cuda.amp.GradScaler(use_amp)
    ```
    Use instead:
    ```python
    scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
    ```

    ## Fix safety
    Safe where the argument says what is meant: it gets its name, or its right spelling. Where the
    device is missing, `"cuda"` is a guess, and the fix unsafe. float32 in a region has no fix.

    ## How to silence
    `# precision-lint: ignore[MP210] reason` or `# noqa: MP210` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: `torch.autocast`, `torch.amp.GradScaler`; executed
    with torch 2.13.
    """

    code = "MP210"
    name = "autocast-bad-arguments"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast",
        "torch.cpu.amp.autocast",
        "torch.amp.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cpu.amp.GradScaler",
    )

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if any(isinstance(p, ast.Try) and p.handlers for p in at.ancestors(node)):
            return
        problem = BadArguments.of(node, at)
        if problem is None:
            return
        fix = None
        if problem.edits is not None:
            level = Applicability.UNSAFE if problem.guess else Applicability.SAFE
            fix = Fix("say what is meant", level, problem.edits, problem.guess)
        yield at.finding(
            node,
            problem.message,
            problem.confidence,
            severity=problem.severity,
            evidence=at.why(at.region(node)) if problem.severity is Severity.WARNING else (),
            fix=fix,
        )
