from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class AutocastAroundOptimizerStep(Rule):
    """A whole training loop inside one autocast region, which never sees the weights change.

    ## What it flags
    `optimizer.step()` or `scaler.step(optimizer)` in a loop with a backward pass, where one
    `with autocast` is around the loop: in the same function, or around a call that leads there.

    It stays silent where the region is opened anew in every iteration, for loops without a step
    (evaluation, inference), for `cache_enabled=False`, where `torch.clear_autocast_cache()` is
    called, and for a loop over several optimizers within one training step.

    ## Why it breaks
    Autocast casts each weight once and keeps the cast until the outermost region ends. The
    optimizer changes the float32 weight; the cast in the cache stays as it was, so every later
    forward pass runs on the weights of the first iteration. Nothing raises. Measured on a linear
    regression of 60 steps: the loss that is logged stays at 4.6488, the loss of the real weights
    goes to 71, because every step repeats the first gradient, and 0.024 with the region inside
    the loop. `bfloat16` and the CPU do the same.

    ## Example
    ```python
    with torch.autocast("cuda"):
        for images, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(images), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
    ```
    Use instead:
    ```python
    for images, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix safety
    Shown, not applied: `cache_enabled=False` keeps no casts, so that the steps are seen, and
    every use of a weight is cast anew. Better open the region inside the loop, around the
    forward pass alone.

    ## How to silence
    `# precision-lint: ignore[MP205] reason` or `# noqa: MP205` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: `torch.autocast(cache_enabled)`; "autocast should wrap only
    the forward pass(es) of your network".
    """

    code = "MP205"
    name = "autocast-around-optimizer-step"
    severity = Severity.ERROR
    applicability = Applicability.DISPLAY
    listens = ("stale-casts",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        yield Finding(
            "the autocast region around the training loop caches the weights that it casts in the first "
            "iteration: later forward passes do not see what the optimizer changes",
            fix=_fix(event, at),
            related=tuple(
                Link(text, place)
                for text, place in (
                    ("the region is opened once, here", facts["region"]),
                    ("the weights change here", facts["step"]),
                )
                if place != event.place
            ),
        )


def _fix(event: Event, at: Context) -> Fix | None:
    """Keep no casts."""
    if not event.facts["here"]:
        return None
    edits = at.add_keyword(event.place, "cache_enabled", "False")
    if edits is None:
        return None
    reason = "every use of a weight casts it again; better move the region around the forward pass"
    return at.shown(
        "keep no casts, or move the region around the forward pass alone", reason, edits
    )
