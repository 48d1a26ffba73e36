from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class DowncastAfterUpcast(Rule):
    """Sum, area or squared distance that is computed in float32 and brought back to float16.

    ## What it flags
    `.half()`, `.to(torch.float16)`, `.to(x.dtype)` and `.type_as(x)` directly on a result that
    grows beyond its operands: sums over large dimensions, losses with `reduction="sum"`, areas of
    boxes, squares, powers and their sums, exponentials, distances, where the operands were upcast
    on purpose, or autocast ran the operation in float32.

    It stays silent where only bfloat16 is in question, which has float32's range; where the result
    is provably below 65504, normalised, or an average (`mean`, `softmax`, `sum(...) / n`); on sums
    of weights, on those of masks, and of the probabilities of a sigmoid, unless they count over two
    dimensions or more, as pixels of an area; and on exponentials of what is below 0.

    ## Why it breaks
    The upcast prevented an overflow that the downcast brings about: from 65520 on a float16 number
    is inf. An area of 300 x 300 pixels is 90,000, so is the square of a difference of 300, and so
    is the sum of 256 x 256 activations of 1.4.

    ## Example
    ```python
    sides = boxes[:, 2:] - boxes[:, :2]
    area = (sides[:, 0].float() * sides[:, 1].float()).to(boxes.dtype)
    ```
    Use instead:
    ```python
    sides = boxes[:, 2:] - boxes[:, :2]
    area = sides[:, 0].float() * sides[:, 1].float()
    ```

    ## Fix safety
    Safe within a function: in a float32 run the cast that goes away does nothing. Unsafe where the
    function returns the result, whose dtype changes in half precision, and where the code names
    float16 itself, which rounds a float32 run as well: divide or normalise before the cast.

    ## How to silence
    `# precision-lint: ignore[MP507] reason` or `# noqa: MP507` on the line.

    ## Sources
    IEEE 754 binary16 (largest number 65504); PyTorch, `torch.finfo`.
    """

    code = "MP507"
    name = "downcast-after-upcast"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    listens = ("narrowing-cast",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related: tuple[Link, ...] = ()
        if facts["made"] is not None:
            related = (Link("computed in float32 here", facts["made"]),)
        yield Finding(
            f"the result of `{facts['operation']}` is cast to float16, but can exceed 65504",
            fix=at.fix("keep float32", at.drop_call(event.place), _reason(event, at)),
            related=related,
        )


def _reason(event: Event, at: Context) -> str | None:
    """Why the fix is not safe; None: it is."""
    if event.facts["named"]:
        return "the code names float16, so a run in float32 is rounded here as well"
    if at.is_returned(event.place):
        return "the function returns float32 then"
    return None
