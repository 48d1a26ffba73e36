from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class UpcastWithoutDisablingAutocast(Rule):
    """Operands upcast for a product that autocast casts down again.

    ## What it flags
    `@`, `matmul`, `bmm`, `einsum`, `F.linear`, `F.conv2d`, `scaled_dot_product_attention` and the
    rest of autocast's lower-precision list, on operands that were cast to float32 for it
    (`.float()`, `.to(torch.float32)`, at the call or where the name was bound), while autocast is
    on: in the function itself, or around a call that leads to it, in this file or another. One
    upcast operand beside another float32 one counts where the region is in the same function;
    elsewhere that is only `possible`, and so is a function that no region is known to reach.

    It stays silent where the product stands under `autocast(enabled=False)`, for float64 operands,
    for a layer that is called (`self.gate(x.float())`, where the cast may only meet the weights),
    for integers made float, and where a more specific rule speaks: MP201 for sums over pixels or
    tokens, MP501 for geometry. Tables of rotary angles are left out too, and so is code beside
    the region of its own class or function.

    ## Why it breaks
    `.float()` makes a float32 tensor, and the next line's `matmul` is on the list of operations
    that autocast runs in half: it casts the operands down again before it runs. The cast costs
    memory and changes nothing. Measured: 65,536 products of values up to 4 are the same inf, and a
    projection is off by the same 1.7 pixels, with and without `.float()`. Half-precision values
    that were rounded once stay rounded either way; what the upcast was meant to save is the sum.

    ## Example
    ```python
    scores = torch.matmul(query.float(), key.float().transpose(-1, -2))
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=query.device.type, enabled=False):
        scores = torch.matmul(query.float(), key.float().transpose(-1, -2))
    ```

    ## Fix safety
    Safe: in float32 the region does nothing. Both halves are needed, because
    `autocast(enabled=False)` alone does not cast operands up (MP203). Inside the surrounding region
    the result is float32 then; operations on its list take it as it is.

    ## How to silence
    `# precision-lint: ignore[MP202] reason` or `# noqa: MP202` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16; Autocast op eligibility.
    """

    code = "MP202"
    name = "upcast-without-disabling-autocast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("upcast-in-vain",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        edits = at.without_autocast(event.place, facts["operands"], None, "product")
        yield Finding(
            f"autocast casts the operands of `{facts['operation']}` down again, so `.float()` does nothing",
            fix=at.fix("leave autocast for the product", edits),
        )
