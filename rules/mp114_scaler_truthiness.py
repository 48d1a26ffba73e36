from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


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
    listens = ("scaler-truth",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        name = at.text(event.place)
        yield Finding(
            f"{name} is always true, even when the scaler is disabled",
            fix=at.fix(
                f"ask {name}.is_enabled()",
                at.rewrite({event.place: "_.is_enabled()"}),
                "a disabled scaler takes the other branch then",
            ),
        )
