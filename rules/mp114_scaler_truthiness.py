from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Scaler,
    Severity,
    calls,
)


class ScalerTruthiness(Rule):
    """Truth of a GradScaler, which is always True, also where the scaler is disabled.

    ## What it flags
    `if scaler:`, `scaler and ...`, `not scaler` and `bool(scaler)` where the name stands for a
    GradScaler wherever it is bound. With `enabled=flag` the finding is `certain`; without it the
    scaler is always on, the test is only pointless, and the finding is `possible`.

    It stays silent where the name may be None (`GradScaler() if amp else None`, a parameter), and
    for `scaler is not None`.

    ## Why it breaks
    A GradScaler has no `__bool__`, so `GradScaler(enabled=False)` is True. The branch for full
    precision never runs: with `use_amp=False` the code still opens autocast, casts its inputs, or
    looks at a scale that is not there.

    ## Example
    ```python
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    if scaler:
        x = x.half()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda", enabled=use_amp)
    if scaler.is_enabled():
        x = x.half()
    ```

    ## Fix safety
    Unsafe: with a disabled scaler the other branch runs, for the first time perhaps.

    ## How to silence
    `# precision-lint: ignore[MP114] reason` or `# noqa: MP114` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: gradient scaling (`GradScaler.is_enabled`).
    """

    code = "MP114"
    name = "scaler-truthiness"
    severity = Severity.INFO
    applicability = Applicability.UNSAFE
    triggers = calls(
        "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler"
    )

    def check(self, call: ast.Call, at: Context) -> Iterator[Finding]:
        scaler = Scaler.made(call, at)
        if scaler is None or not scaler.only:
            return
        confidence = Confidence.CERTAIN if scaler.may_be_off else Confidence.POSSIBLE
        for node, function in scaler.truths():
            here = at.inside(function)
            around = here.parents.get(id(node))
            if isinstance(around, ast.BoolOp) and any(
                here.text(part).startswith(f"{scaler.text}.is_enabled(") for part in around.values
            ):
                continue  # the next operand asks what is meant
            statement = here.statement(node)
            fix = None
            edits = here.edit.append(statement, {node: ".is_enabled()"}) if statement else None
            if edits is not None:
                why = "the other branch runs where the scaler is disabled"
                fix = Fix("ask whether the scaler is enabled", Applicability.UNSAFE, edits, why)
            yield here.finding(
                node,
                f"{scaler.text} is always true, also where it is disabled",
                confidence,
                evidence=(here.note(call, "it is made here"),),
                fix=fix,
            )
