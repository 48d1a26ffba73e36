from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class UnscaledBackward(Rule):
    """Backward of a loss that was not scaled, before a step that divides by the scale.

    ## What it flags
    `loss.backward()` on a path to `scaler.step(optimizer)` or `scaler.unscale_(optimizer)`:
    alone, or as one of several losses of which another is scaled (a gradient penalty, an
    auxiliary loss).

    A step of a scaler that scales nothing in its function, beside another scaler that does.

    The same with a framework: `loss.backward()` before the step of an optimizer that Accelerate or
    Fabric prepared for float16 (`prepare`, `setup`), of one of Lightning's (`self.optimizers()`), or
    in a `training_step` of a subclass of the `Trainer` of transformers, which steps once that returns.

    It stays silent where the optimizer of that loss steps by itself, where the gradients are
    set to zero before the step, where a framework runs the backward, for a scaler that is off,
    and where the loss may have been scaled somewhere else. Where another path scales the loss
    and both share the step (`if use_amp:` around the backward alone), it rests on the branch
    that is taken.

    ## Why it breaks
    `scaler.step` divides gradients by the scale. Nothing was multiplied, so they become 65536 times
    too small and training stands still. If no loss was ever scaled, the scaler has no scale yet and
    raises an `AssertionError` at the first step. Accelerate 1.15 was run with a loss that it scales
    and a second one behind it that it does not: of the second, 1/65536 arrives.

    ## Example
    ```python
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix safety
    Safe: a disabled scaler's `scale` returns the loss itself. There is no fix for the step of a scaler
    that scales nothing: which of the two is meant, only the author knows.

    ## How to silence
    `# precision-lint: ignore[MP105] reason` or `# noqa: MP105` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: working with multiple models, losses, and
    optimizers; gradient penalty.
    """

    code = "MP105"
    name = "unscaled-backward"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("unscaled-backward",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        if event.facts["step"] == event.place and not event.facts["framework"]:
            yield Finding(
                "this scaler has scaled no loss: it divides the gradients by a scale that they do not carry"
            )
            return
        if event.facts["framework"]:
            yield Finding(
                "the loss is not scaled: the optimizer is a framework's, which divides gradients by the loss "
                "scale in float16 (65536 at first); leave the backward to the framework",
                related=self._steps(event),
            )
            return
        beside = ", while another loss of the same step is" if event.facts["beside"] else ""
        yield Finding(
            f"the loss is not scaled{beside}: the optimizer divides these gradients by the loss scale "
            "(65536 at first)",
            fix=_scaled(event, at),
            related=self._steps(event),
        )

    @staticmethod
    def _steps(event: Event) -> tuple[Link, ...]:
        """Where the gradients are divided; a trainer steps out of sight."""
        place = event.facts["step"]
        out_of_sight = place == event.place
        return () if out_of_sight else (Link("its gradients are divided by the scale here", place),)


def _scaled(event: Event, at: Context) -> Fix | None:
    """Scale the loss whose backward it is."""
    steps = event.facts["steps"]
    loss = at.receiver(event.place)
    if not steps or loss is None or steps[0][0].path != at.path:
        return None
    if not at.is_known(steps[0][1], event.place):
        return None
    name = at.text(steps[0][1])
    return at.fix(f"scale the loss with {name}", at.rewrite({loss: f"{name}.scale(_)"}))
