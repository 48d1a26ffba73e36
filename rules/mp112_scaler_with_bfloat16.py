from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class ScalerWithBfloat16(Rule):
    """GradScaler that is active while autocast runs in bfloat16, which needs no scale.

    ## What it flags
    A GradScaler that scales losses in code whose every autocast region is bfloat16, unless
    `enabled` is False or says something about a dtype.

    A scaler that is on whichever of float16 and bfloat16 a setting chooses for autocast in the same
    function or class (`torch.bfloat16 if config.precision == "bf16" else torch.float16`).

    A scaler whose `enabled`, or the condition under which it is made, holds for bfloat16
    (`dtype in ("fp16", "bf16")`, `dtype != torch.float32`, `args.fp16 or args.bf16`), and one that
    is handed on for bfloat16.

    `enabled=(dtype == torch.float16)` is the right form and silent, as is a scaler that is made
    under such a condition. Regions of which the dtype is not known, or of which one is float16
    whatever the settings, are silent as well, and so is a choice by what the device supports.

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
    listens = ("bfloat16-scaler",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        edits = at.set_keyword(event.place, "enabled", "False")
        reason = "a disabled scaler does not skip steps whose gradients are inf or nan"
        fix = at.fix("disable the scaler", edits, reason) if facts["taken"] is None else None
        message = "the loss is scaled although autocast runs in bfloat16, which needs no scale"
        if facts["taken"] == "chosen":
            message = (
                f"this scaler is on where {at.text(facts['scaled'])} chooses bfloat16 for autocast, "
                "which needs no scale"
            )
        elif facts["taken"]:
            message = "this scaler is handed over for bfloat16, which needs no scale"
        elif facts["taken"] is False:
            message = (
                f"the test {at.text(facts['scaled'])} leaves the scaler on for bfloat16, which "
                "needs no scale"
            )
        yield Finding(message, fix=fix, related=(Link("it says so here", facts["scaled"]),))
