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


class ScalerWithBfloat16(Rule):
    """GradScaler that is active while autocast runs in bfloat16, which needs no scale.

    ## What it flags
    A GradScaler that scales losses in code whose every autocast region is bfloat16 for certain,
    unless `enabled` is False or says something about a dtype.

    `enabled=(dtype == torch.float16)` is the right form and silent. Regions of which the dtype is
    not known, or of which one is float16, are silent as well.

    ## Why it breaks
    bfloat16 has the range of float32: gradients do not underflow, so the scale protects nothing. It
    costs a check of all gradients in each step, and since nothing overflows it keeps doubling, from
    65536 on, until a scaled gradient overflows in float32 (for a gradient of 1 after 112 doublings,
    one in 2000 steps by default). From then on it throws a step away each time. Steps with real
    infinities are skipped without a word, where one would want to see them. Lightning raises here.

    ## Example
    ```python
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    ```

    ## Fix safety
    Unsafe: a disabled scaler no longer skips steps whose gradients are inf or nan.

    ## How to silence
    `# precision-lint: ignore[MP112] reason` or `# noqa: MP112` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: gradient scaling; the numbers are measured.
    """

    code = "MP112"
    name = "scaler-with-bfloat16"
    severity = Severity.WARNING
    applicability = Applicability.UNSAFE
    triggers = calls(
        "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler"
    )

    def check(self, call: ast.Call, at: Context) -> Iterator[Finding]:
        scaler = Scaler.made(call, at)
        if scaler is None or scaler.off:
            return
        enabled = ast.unparse(scaler.enabled) if scaler.enabled is not None else ""
        if any(word in enabled for word in ("16", "dtype", "half", "precision")):
            return
        regions = scaler.regions(at)
        if not regions or {dtype for _, dtype in regions} != {"bfloat16"}:
            return
        scaled = next(scaler.calls("scale"), None)
        statement = at.statement(call)
        if scaled is None or statement is None:
            return
        fix = None
        if scaler.enabled is not None:
            edits = at.edit.rewrite(statement, {scaler.enabled: "False"})
        else:
            edits = at.edit.add_keyword(statement, call, "enabled", "False")
        if edits is not None:
            why = "a disabled scaler does not skip steps whose gradients are inf or nan"
            fix = Fix("disable the scaler", Applicability.UNSAFE, edits, why)
        yield at.finding(
            call,
            "the loss is scaled although autocast runs in bfloat16, which needs no scale",
            Confidence.CERTAIN if not enabled else Confidence.LIKELY,
            evidence=(
                at.note(regions[0][0], "bfloat16 autocast region opened here"),
                at.note(scaled[0], "the loss is scaled here"),
            ),
            fix=fix,
        )
