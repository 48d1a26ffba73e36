from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class BackwardUnderAutocast(Rule):
    """Backward pass inside the autocast region, which torch's documentation advises against.

    ## What it flags
    `loss.backward()` and `scaler.scale(loss).backward()` inside a `with autocast`, or in a
    function that it decorates. Shown as info: it does not fail a run.

    What the project keeps in float32, and what this could harm, is named: a region with
    `enabled=False`, or an `autograd.Function` whose `backward` multiplies without `custom_bwd`.
    It is only `possible` where the statement holds the forward pass as well, in tests and
    benchmarks, which may mean it, and, where nothing is kept in float32, in a region that a caller
    or a decorator opens. It stays silent where a
    loop is between the region and the backward pass, which is a matter of MP205 if weights change
    there.

    ## Why it breaks
    Autograd multiplies in the state of autocast in which `backward` is called, on every device.
    Products that ran in half have half gradients anyway: those are the same to the bit. What was
    kept in float32 comes down to half in the backward pass: products inside
    `autocast(enabled=False)`, the backward of a custom `autograd.Function`, and of `cdist`,
    `linalg.solve` and `linalg.inv`. For `x @ w` of 64 by 64 normal numbers the gradients are off by
    2.6e-3 of the largest (bfloat16) or 3.3e-4 (float16) instead of 1e-7; in float16, those above
    65504 are inf and those below 3e-8 are 0.

    ## Example
    ```python
    with torch.autocast("cuda"):
        features = model(images)
        with torch.autocast("cuda", enabled=False):
            wide = features.float()
            loss = criterion(wide.T @ wide, labels)
        scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        features = model(images)
        with torch.autocast("cuda", enabled=False):
            wide = features.float()
            loss = criterion(wide.T @ wide, labels)
    scaler.scale(loss).backward()
    ```

    ## Fix safety
    Safe: what is moved behind the region, backward pass, step, update and their logs, computes
    nothing else. No fix where other statements follow in the region, or strings of several lines.

    ## How to silence
    `# precision-lint: ignore[MP211] reason` or `# noqa: MP211` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: "Backward passes under autocast are not recommended".
    """

    code = "MP211"
    name = "backward-under-autocast"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    listens = ("backward-in-region",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        message = "the backward pass runs inside the autocast region, which PyTorch advises against"
        if facts["kept"]:
            message += "; products that were kept in float32 run in half there"
        edits = at.end_region(event.place) if facts["here"] else None
        yield Finding(
            message,
            fix=at.fix("end the region before the backward pass", edits),
            related=(Link("the region opens here", facts["region"]),),
        )
