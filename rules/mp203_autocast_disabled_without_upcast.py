from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class AutocastDisabledWithoutUpcast(Rule):
    """autocast(enabled=False) around a product whose operands are half all the same.

    ## What it flags
    `@`, `matmul`, `bmm`, `einsum`, `F.linear`, convolutions, attention and layers with weights
    under `autocast(enabled=False)`, on tensors that the region around it has made half (the output
    of a layer, a product), or that the caller hands over from one, without `.float()`. Functions of
    the same file that hand their arguments to layers count as layers, and `autocast(dtype=
    torch.float32)` as switched off, which it is.

    A call of something unknown in a `with` that switches autocast off and in which nothing is cast
    up is `possible`.

    It stays silent for tensors that are float32 for certain:

    - operands that are upcast;
    - results of softmax, norms and sums, which autocast runs in float32;
    - parameters;
    - arguments of a function under `custom_fwd(cast_inputs=torch.float32)`, which casts them.

    It is only `possible` for arguments of a function, except in these cases:

    - A call in the project passes a half tensor.
    - The project trains under autocast, and a method switches autocast off for some of its statements
      and casts nothing there.

    ## Why it breaks
    Switching autocast off stops further casts; it does not undo those that were made. A tensor that
    left a layer in float16 is float16 inside the inner region too, so the product runs in half and
    overflows as before: 65,536 products of values up to 4 are inf with and without the inner
    region. Where the other operand is a float32 weight, it raises `mat1 and mat2 must have the
    same dtype`.

    ## Example
    ```python
    hidden = self.proj(x)
    with torch.autocast(device_type=x.device.type, enabled=False):
        scores = torch.matmul(hidden, hidden.transpose(-1, -2))
    ```
    Use instead:
    ```python
    hidden = self.proj(x)
    with torch.autocast(device_type=x.device.type, enabled=False):
        scores = torch.matmul(hidden.float(), hidden.float().transpose(-1, -2))
    ```

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing. The result becomes float32, which the
    surrounding region takes as it is.

    ## How to silence
    `# precision-lint: ignore[MP203] reason` or `# noqa: MP203` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: `autocast(enabled=False)` in enabled regions, "inputs from
    the surrounding region should be cast to float32 before use".
    """

    code = "MP203"
    name = "autocast-disabled-without-upcast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("left-half",)
    supersedes = ("MP502",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        yield Finding(
            f"`{facts['operation']}` of half tensors: leaving autocast does not bring them up to float32",
            fix=at.fix("upcast the operands", at.upcast(facts["operands"])),
        )
