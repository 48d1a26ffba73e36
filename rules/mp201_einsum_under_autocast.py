from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class EinsumUnderAutocast(Rule):
    """Contraction over a large dimension that autocast runs in float16, where the sum overflows.

    ## What it flags
    `einsum`, `@`, `matmul`, `bmm` and `baddbmm` that run in float16 autocast and sum over a spatial
    dimension (`bnhw,bchw->bnc`, a flattened `h * w`) or over all tokens of a linear attention
    (its keys went through relu, elu + 1 or a named feature map), with operands that are not
    normalised; and those that take a power spectrum to float16, as before a mel filterbank.
    `.float()` on the operands does not silence it: autocast casts them down again.

    It stays silent for contractions over a head or channel dimension, for weights from a softmax
    over what is summed or divided by their sum, area or number, for bfloat16, and where autocast
    is switched off.

    It is only `possible` where the terms may have either sign and are not squares (they cancel, so
    that the sum grows with the root of their number), and where both operands are at most 1 (the
    sum then needs 65,504 terms). It is so, too, for a functional convolution with a filter
    (`F.conv1d(x, basis)`) or with modulated weights (`weight * style`), for a parameter or buffer as
    one operand, whose size is fixed, for tokens of which nothing says attention, for softmax weights
    over all tokens, which cannot overflow but lose digits, for attention scores that are scaled
    after the product, and for float32 operands and power spectra in a project that makes models half
    but never autocasts.

    ## Why it breaks
    float16 ends at 65504. The products are accumulated in float32 and rounded once at the end, so
    the error is small until the sum itself is out of range: 16,224 mask pixels times features up
    to 16.7 make 270,000, which is inf, and the next layer turns inf into nan. Values uniform in
    0 to 4 overflow from about 65,536 terms on. The power spectrum of a tone of amplitude 1 peaks at
    65,536 in a Hann window of 1,024 samples, at 262,144 in one of 2,048.

    ## Example
    ```python
    pooled = torch.einsum("bnhw,bchw->bnc", masks, features)
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=features.device.type, enabled=False):
        pooled = torch.einsum("bnhw,bchw->bnc", masks.float(), features.float())
    ```

    ## Fix safety
    Safe: in float32 the region and the casts do nothing (float64 operands come down to
    float32). Both are needed: disabling autocast alone does not upcast half operands, and
    casting alone is undone by autocast. The result stays in float32, because casting it back
    would bring the inf back; operations of the surrounding region take it as it is. In a half
    model without autocast, where that result goes on into another product, the fix is unsafe:
    the other operand has to come up as well.

    ## How to silence
    `# precision-lint: ignore[MP201] reason` or `# noqa: MP201` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16 (`einsum`, `matmul`,
    `bmm`, `baddbmm`); Autocast op eligibility.
    """

    code = "MP201"
    name = "einsum-under-autocast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("large-contraction",)
    supersedes = ("MP304",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        what = {
            "operand": "an operand of squares or sums exceeds 65504 when autocast casts it to float16",
        }.get(facts["reason"], "a sum over many positions exceeds 65504 in float16")
        edits = at.without_autocast(event.place, facts["operands"], None, "product")
        if not facts["region"]:
            edits = at.upcast(facts["operands"])
        yield Finding(
            f"{facts['operation']}: {what}",
            fix=at.fix("compute the product in float32, outside of autocast", edits),
        )
