from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Fix, Link, Rule, Severity


class MaskFillOverflow(Rule):
    """Constant beyond the range of half, filled into a tensor that may be half.

    ## What it flags
    A finite constant beyond 65504 (such as -1e9, -1e30, `torch.finfo(torch.float32).min`) in
    `masked_fill`, `full_like`, `new_full`, `full(dtype=...)`, `fill_`, `index_fill`, `scatter` and
    `F.pad` (error: they raise), in `torch.where`, `x[mask] = -1e9` and `(1 - mask) * -1e9` and
    `torch.tensor(-1e9, dtype=...)` (warning: they write -inf), where the tensor may be float16. In
    bfloat16 only constants beyond 3.39e38 are harmful, and `finfo(torch.float32).min` is one.

    It stays silent where the tensor is float32 (upcast, a softmax or sum inside a CUDA autocast
    region, numpy), where a test has ruled float16 out, for -1e4, for -inf, for
    `torch.finfo(x.dtype).min`, and for indices (an integer tensor less an offset).

    A product is half under autocast (`q @ k.transpose(-2, -1)`), so attention scores count
    there.

    ## Why it breaks
    `masked_fill(mask, -1e9)` on float16 raises "value cannot be converted to type c10::Half
    without overflow", on every device and under autocast. `torch.where`, indexed assignment and
    arithmetic round the constant to -inf without a word: a row that is masked as a whole gives nan
    in softmax, and so does the sum of two masks of different signs.

    ## Example
    ```python
    scores = (q @ k.transpose(-2, -1)).half()
    scores = scores.masked_fill(mask, -1e9)
    ```
    Use instead:
    ```python
    scores = (q @ k.transpose(-2, -1)).half()
    scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    ```

    ## Fix safety
    Unsafe: the smallest number of the tensor's own dtype replaces the constant, so in float32 the
    masked entries change from -1e9 to -3.4e38. Behind a softmax that gives the same weights, but
    other code may compare with -1e9. There is no fix where no name holds the tensor, and none for
    a mask that is multiplied or made to be added: score plus minimum would be -inf again; use one
    `masked_fill` on the scores.

    ## How to silence
    `# precision-lint: ignore[MP310] reason` or `# noqa: MP310` on the line.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision, CUDA op-specific behavior (`matmul` and
    `linear` give half, `masked_fill` and `where` are not listed).
    """

    code = "MP310"
    name = "mask-fill-overflow"
    severity = Severity.ERROR
    applicability = Applicability.UNSAFE
    listens = ("fill-overflow",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        value = f"{facts['value']:g}" if facts["value"] is not None else "float32's limit"
        dtype = "bfloat16" if facts["bfloat16"] else "float16"
        what = "raises in" if facts["raises"] else "is infinite in"
        yield Finding(
            f"`{facts['operation']}` with {value} {what} {dtype}",
            fix=_fix(event, at),
            severity=Severity.ERROR if facts["raises"] else Severity.WARNING,
            related=()
            if facts["within"] is None
            else (Link("it is filled in here", facts["within"]),),
        )


def _fix(event: Event, at: Context) -> Fix | None:
    """The minimum of the tensor's own dtype in the place of the number."""
    facts = event.facts
    if facts["fill"] is None or facts["tensor"] is None or not at.is_name(facts["tensor"]):
        return None
    torch, imports = at.torch()
    limit = "max" if facts["value"] is not None and facts["value"] > 0 else "min"
    edits = at.replace({facts["fill"]: f"{torch}.finfo({at.text(facts['tensor'])}.dtype).{limit}"})
    if edits is None:
        return None
    reason = "masked values change in float32; a softmax of them does not"
    return at.fix("fill with the extreme of the tensor's own dtype", (*imports, *edits), reason)
