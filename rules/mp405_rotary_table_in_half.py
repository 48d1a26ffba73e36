from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class RotaryTableInHalf(Rule):
    """Angles of a rotary or sinusoidal embedding that are multiplied out in half precision.

    ## What it flags
    Positions times inverse frequencies whose product goes into `cos` and `sin`, where the product
    is half:

    - `inv_freq.float() @ positions.float()`, `einsum`, `matmul` in code that runs under autocast,
      which casts both operands down again. Only `enabled=False` helps;
    - positions created in, or cast to, the dtype of the activations (`torch.arange(n,
      dtype=x.dtype)`);
    - a buffer of frequencies used as it is in a project that makes whole models half, because
      `model.half()` rounds the buffer, and so does FSDP's mixed precision (possible where nothing
      says that models are half);
    - exponents of frequencies that a table's function makes in the dtype its caller gives
      (possible).

    It stays silent where the region is off, where the product is elementwise and its operands are
    float32 (`outer` and `*` are on no list), where cosine and sine are cast last, and where both
    operands are created on the CPU. A table that is filled when the module is made, before anything
    rounds the buffer, and anew only for what is longer, is `possible`.

    ## Why it breaks
    Float16 has 11 bits and bfloat16 8, so positions above 2048 or 256 are no longer distinct, and
    the angle of a large position is off by more than a turn. With everything in half the cosine of
    positions below 8192 is off by up to 2.0, with only `inv_freq` in half by 1.2 (float16) or 2.0
    (bfloat16). With the table in float32 and the cast last it is 2.4e-4 or 2.0e-3. Short contexts
    look fine.

    ## Example
    ```python
    freqs = torch.einsum("i,j->ij", t, self.inv_freq)
    cos, sin = freqs.cos(), freqs.sin()
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=t.device.type, enabled=False):
        freqs = torch.einsum("i,j->ij", t.float(), self.inv_freq.float())
    cos, sin = freqs.cos(), freqs.sin()
    ```

    ## Fix safety
    Safe: float32 results stay the same to the bit. Where positions follow the dtype of a tensor,
    the fix makes them float32 and casts cosine and sine to that dtype. There is none where the code
    names float16 or bfloat16 itself, which rounds a float32 run as well, and none for a buffer that
    `model.half()` has rounded, which no cast brings back: compute the frequencies anew in float32,
    or keep the buffer out of the cast.

    ## How to silence
    `# precision-lint: ignore[MP405] reason` or `# noqa: MP405` on the line.

    ## Sources
    Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021). PyTorch,
    Automatic Mixed Precision: CUDA ops that autocast to float16.
    """

    code = "MP405"
    name = "rotary-table-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("rotary-angle",)
    supersedes = ("MP202", "MP404")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        fix = None
        if facts["listed"]:
            harm = "autocast casts positions and frequencies down, float32 or not"
            device = None
            if not facts["operands"] and facts["anchor"] is not None:
                device = f"{at.text(facts['anchor'])}.device.type"
            edits = at.without_autocast(event.place, facts["operands"], device, "angles")
            fix = at.fix("multiply in float32 outside of autocast", edits)
        elif facts["rounded"] is not None:
            harm = f"{at.quoted(facts['rounded'], 'this')} rounds positions or frequencies"
        else:
            harm = "the frequencies are rounded with the model"
        related = []
        if facts["turn"] is not None and facts["turn"].row != event.place.row:
            related.append(Link("cosine and sine of the angles", facts["turn"]))
        if facts["rounded"] is not None and facts["rounded"].row != event.place.row:
            related.append(Link("rounded to half here", facts["rounded"]))
        yield Finding(
            f"angles in {facts['half']}: {harm}; the cosine is off by up to 2.0 "
            f"from position {2048 if facts['half'] == 'float16' else 256} on",
            fix=fix,
            related=tuple(related),
        )
