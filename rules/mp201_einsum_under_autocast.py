from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class EinsumUnderAutocast(Rule):
    """Matrix product or einsum that sums over a large dimension in float16 and overflows.

    ## What it flags
    `einsum`, `@`, `matmul`, `bmm` and `baddbmm` under float16 autocast that sum unnormalised values
    over one of these:

    - a spatial dimension (`bnhw,bchw->bnc`, or a flattened `h * w`);
    - all tokens of a linear attention, whose keys went through relu, elu + 1 or a named feature map;
    - the bins of a power spectrum, as before a mel filterbank.

    `.float()` on the operands does not help: autocast casts them down again.

    It stays silent for a sum over a head or channel dimension, for weights that come from a softmax
    over the summed dimension or are divided by their sum, area or number, for bfloat16, and where
    autocast is switched off.

    It is only `possible` in these cases:

    - The terms may have either sign and are not squares. They cancel, so the sum grows slowly.
    - Both operands are at most 1. The sum then needs 65,504 terms.
    - One operand is a parameter or a buffer, whose size is fixed, a filter of a functional convolution
      (`F.conv1d(x, basis)`), or a modulated weight (`weight * style`).
    - Nothing shows that the tokens are those of an attention.
    - The weights are a softmax over all tokens. They cannot overflow, but lose digits.
    - The operands are attention scores that are scaled after the product.
    - The operands are float32, or a power spectrum, in a project that makes models half and never uses
      autocast.

    ## Why it breaks
    float16 ends at 65504. The GPU accumulates the products in float32 and rounds once at the end, so
    the error is small until the sum itself is out of range. Then it is inf, and the next layer turns
    inf into nan. For example, 16,224 mask pixels times features up to 16.7 make 270,000. The product
    of two values uniform in 0 to 1 sums to more than 65504 from about 262,000 terms on. The power
    spectrum of a tone of amplitude 1 peaks at 65,536 in a Hann window of 1,024 samples, and at 262,144
    in one of 2,048.

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
    Safe: in float32 the region and the casts do nothing (float64 operands are cast to float32). Both
    are needed: without the cast, half operands stay half, and without the region, autocast casts them
    down again. The result stays float32, because casting it back would bring the inf back. Operations
    in the surrounding region accept it. The fix is unsafe in a half model without autocast if the
    result goes into another product: the other operand would have to be float32 as well.

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
            "operand": "an operand of squares or sums can exceed 65504 when autocast casts it to float16",
        }.get(facts["reason"], "a sum over many positions can exceed 65504 in float16")
        edits = at.without_autocast(event.place, facts["operands"], None, "product")
        if not facts["region"]:
            edits = at.upcast(facts["operands"])
        yield Finding(
            f"`{facts['operation']}`: {what}",
            fix=at.fix("compute the product in float32, outside of autocast", edits),
        )
