from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Link, Rule, Severity


class LowPrecisionTrainedParameters(Rule):
    """Optimizer on the parameters of a half model, whose small updates are rounded away.

    ## What it flags
    `torch.optim.*` over `model.parameters()` where the code makes the model bfloat16 (or float16
    with SGD; Adam on float16 has a more direct problem with its epsilon) before, and the learning
    rate is at most 2e-3 (2e-4), not known, or the default; and the same written out, as
    `p.add_(p.grad, alpha=-lr)`.

    It stays silent for a learning rate of 0, where the trained parameters are others than the
    model's own (adapters, copies in float32, `requires_grad_(False)`), where the file keeps master
    weights, rounds stochastically or sums up with Kahan's method, and for models under autocast,
    whose parameters are float32.

    ## Why it breaks
    A weight changes only by steps of its last place: near 1 these are 7.8e-3 in bfloat16 and 9.8e-4
    in float16, and what is below half of that is lost. Measured at a weight of 1: SGD with a
    learning rate of 1e-3 and a gradient of 1 never moves in bfloat16 (float32: 0.9 after 100
    steps), nor with 1e-4 in float16; AdamW with 1e-3 never moves in bfloat16, and its weight decay
    is lost altogether. Small weights go on moving, so that the loss falls for a while.

    ## Example
    ```python
    model = Net().to(torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    ```
    Use instead:
    ```python
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    ```

    ## Fix safety
    There is no fix: the parameters stay float32, the forward pass goes under autocast, or another
    optimizer keeps float32 copies; which of them fits depends on the memory.

    ## How to silence
    `# precision-lint: ignore[MP409] reason` or `# noqa: MP409` on the line.

    ## Sources
    Micikevicius et al., Mixed Precision Training (2018), FP32 master copy of weights; Zamirai et
    al., Revisiting BFloat16 Training (2020).
    """

    code = "MP409"
    name = "low-precision-trained-parameters"
    severity = Severity.WARNING
    applicability = None
    listens = ("half-parameters",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        rate = (
            "the default learning rate"
            if facts["rate"] is None
            else f"a learning rate of {facts['rate']:g}"
        )
        least = "0.0039" if facts["dtype"] == "bfloat16" else "0.00049"
        yield Finding(
            f"parameters are trained in {facts['dtype']}: at a weight of 1 updates below {least} are "
            f"rounded away, such as those of {rate}",
            related=()
            if facts["cast"] is None
            else (Link(f"they are made {facts['dtype']} here", facts["cast"]),),
        )
