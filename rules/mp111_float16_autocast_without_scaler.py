from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Rule, Severity


class Float16AutocastWithoutScaler(Rule):
    """Training under float16 autocast without a GradScaler: small gradients become zero.

    ## What it flags
    `loss.backward()` and an `optimizer.step()` in one function, where the loss comes from a float16
    autocast region of that function (CUDA's default, or `dtype=torch.float16`) and the module
    mentions neither a scaler nor a loss scale nor a framework that brings one.

    `GradScaler(enabled=False).scale(loss).backward()` of such a loss: the scaler is off.

    The region may be in a function of the file that computes the loss. Where another function of
    the file scales losses, the finding is `possible`.

    It stays silent for bfloat16, for a device that is only known at run time unless the dtype is
    given, and for losses that are multiplied by hand. Without an `optimizer.step()` (gradients of
    an input, say) the finding is `possible`, and so it is in tests and benchmarks.

    ## Why it breaks
    float16 ends at 6e-8, and gradients of activations are often smaller: they are divided by the
    number of elements of a mean. In a measured network with a mean over 65536 elements 46.9 % of
    the weight gradients were zero, 24.1 % with a scale. Nothing raises; the model trains worse, or
    its first layers do not train.

    ## Example
    ```python
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix safety
    Unsafe: a scaler skips steps whose gradients overflow, the first ones for certain. It is offered
    where one loop of the function holds the only backward and the only step, with `unscale_` before
    a clip. Checkpoints should hold the scaler's state from then on.

    ## How to silence
    `# precision-lint: ignore[MP111] reason` or `# noqa: MP111` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: gradient scaling; the numbers are measured.
    """

    code = "MP111"
    name = "float16-autocast-without-scaler"
    severity = Severity.WARNING
    applicability = Applicability.UNSAFE
    listens = ("unscaled-loss",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        message = "the loss of a float16 region is not scaled: gradients below 6e-8 become 0"
        if event.facts["off"]:
            message = "the scaler of a float16 loss is off: gradients below 6e-8 become 0"
        yield Finding(message, fix=_scaled(event, at))


def _scaled(event: Event, at: Context) -> Fix | None:
    """Make a scaler in front of the loop, scale the loss, step and update with it."""
    step = event.facts["step"]
    loop = at.loop(event.place)
    if event.facts["off"] or step is None or loop is None or not at.together(event.place, step):
        return None
    loss, optimizer = at.receiver(event.place), at.receiver(step)
    if loss is None or optimizer is None or not at.is_name(optimizer) or at.loop(step) != loop:
        return None
    scaler, name = at.unused("scaler", event.place), at.text(optimizer)
    torch, imports = at.torch()
    parts = [
        at.insert_before(loop, f'{scaler} = {torch}.amp.GradScaler("cuda")'),
        at.replace({loss: f"{scaler}.scale({at.text(loss)})", step: f"{scaler}.step({name})"}),
        *(at.insert_before(clip, f"{scaler}.unscale_({name})") for clip in event.facts["clips"]),
        at.insert_after(step, f"{scaler}.update()"),
    ]
    edits = None if None in parts else (*imports, *(e for part in parts for e in part or ()))
    reason = "the scale has to be kept from one call of this function to the next, and saved"
    return at.fix("scale the loss", edits, reason)
