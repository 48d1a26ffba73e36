from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class IntegerCastOfSoftTarget(Rule):
    """Target of a regression or an interpolation that is cut off to an integer first.

    ## What it flags
    `.long()` or `.int()` on a target that is then interpolated between its two neighbours (the
    distribution focal loss: `target - target.long()`, `left + 1 - target`), in the same function or
    in the one it is passed to, or that goes into a regression loss (`mse_loss`, `smooth_l1_loss`,
    `l1_loss`, `huber_loss`, `kl_div`, or `(prediction - target).abs()` of a target that was resized
    or multiplied by a fraction), or a blend of labels (mixup, smoothing) or a probability that
    goes into a binary cross entropy.

    It stays silent where the cast makes an index or a class while the target itself stays as it is,
    as `left = target.long()` does, on targets that are integers already, on sums, which count, and
    on names of labels, classes, ids and masks.

    ## Why it breaks
    The fractions are lost. With whole targets the weights of the two bins are always 1 and 0, so
    the loss of a distance of 3.9 is that of 3.0, and up to a bin of the box is never learned. Such
    a cast often comes from repairing an error of dtypes in mixed precision (`expected scalar type
    Long`), in the wrong place.

    ## Example
    ```python
    loss = distribution_focal_loss(pred, target_ltrb.long())
    ```
    Use instead:
    ```python
    loss = distribution_focal_loss(pred, target_ltrb.float())
    ```

    ## Fix safety
    Display: the loss is another one afterwards, in float32 as well, which is the point.

    ## How to silence
    `# precision-lint: ignore[MP408] reason` or `# noqa: MP408` on the line.

    ## Sources
    Li et al., Generalized Focal Loss: Learning Qualified and Distributed Bounding Boxes (2020).
    """

    code = "MP408"
    name = "integer-cast-of-soft-target"
    severity = Severity.ERROR
    applicability = Applicability.DISPLAY
    listens = ("cut-target",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        receiver = at.quoted(facts["receiver"], "a target")
        edits = (
            at.replace({event.place: f"{at.owner(facts['receiver'])}.float()"})
            if facts["receiver"] is not None
            else None
        )
        fix = None
        if edits is not None:
            fix = at.shown(
                "keep the fractions", "the loss becomes another one, in float32 as well", edits
            )
        yield Finding(
            f"{receiver} loses its fractions: {facts['harm']}",
            fix=fix,
            related=(Link("this is where they count", facts["use"]),),
        )
