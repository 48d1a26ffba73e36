from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class LossInHalf(Rule):
    """Loss taken behind the autocast region, of half outputs that nobody cast up.

    ## What it flags
    `F.cross_entropy`, `F.nll_loss`, `nn.CrossEntropyLoss` and their like outside of autocast, on
    scores that a region in the same function has left in half; regression losses, binary cross
    entropy and `kl_div` where the target comes out of a region in half too, as that of a teacher
    network; and `mse_loss` of two tensors that the code itself makes float16, region or not.

    Where no autocast region is known it is `possible`: a cross entropy or a summed loss of scores that
    nothing upcasts, losses of extensions (CTC, transducers) and of a detector's heads, logits that
    a module returns as they are, scores of a sigmoid or softmax that are ranked (`topk`, `sort`,
    `argsort`), and an `nn.CrossEntropyLoss` made in a file that offers float16 (likely where the
    same class makes its model half and casts no scores up).

    It stays silent for losses inside the region, which autocast runs in float32, for scores with
    `.float()`, and for a float32 target, which brings an elementwise loss up by promotion. It is
    `possible` for a loss of which only the name is known (`criterion(...)`), for two outputs of one
    call, and in an evaluation, unless it is a sum.

    ## Why it breaks
    Behind the region torch takes the loss in the dtype that it finds. In float16 the mean squared
    error of 300 and 0 is inf, and so is a cross entropy of 1.6 summed over 41,000 tokens. A scalar
    half loss times the scale is float32, but the gradient that flows back into it is the scale
    itself, and 65536 is inf in float16: a GradScaler skips steps until it has come down to 32768.
    In bfloat16 the loss has 2 to 3 digits.

    ## Example
    ```python
    with torch.autocast("cuda"):
        logits = model(images)
    loss = F.cross_entropy(logits, labels)
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        logits = model(images)
    loss = F.cross_entropy(logits.float(), labels)
    ```
    or take the loss inside the region.

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing.

    ## How to silence
    `# precision-lint: ignore[MP209] reason` or `# noqa: MP209` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float32; "the forward pass(es),
    including the loss computation(s)".
    """

    code = "MP209"
    name = "loss-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("half-loss",)
    supersedes = ("MP606",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related: tuple[Link, ...] = ()
        if facts["made"] is not None:
            where = " in the region" if facts["behind"] else ""
            related = (Link(f"made half{where} here", facts["made"]),)
        what = "after the autocast region computes in half"
        if not facts["behind"]:
            what = "squares in float16, where a difference of 256 gives inf"
        yield Finding(
            f"{facts['operation']} {what}",
            fix=at.fix("upcast the prediction", at.upcast(facts["upcast"])),
            related=related,
        )
