from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Link, Rule, Severity


class LogOneMinusSigmoid(Rule):
    """Logarithm of one minus a sigmoid that rounds to 1 in half, bfloat16 included.

    ## What it flags
    `torch.log(1 - torch.sigmoid(x))`, the same with an epsilon of at most 1.53e-5 or a clamp, as
    in focal losses and matching costs, and `torch.log1p(-torch.sigmoid(x))`, where the sigmoid may
    be float16 or bfloat16.

    It stays silent where the sigmoid is float32 (`torch.sigmoid(x.float())`), where the logits are
    clamped below 6.24. Softmax, exp and other producers are MP301's.

    ## Why it breaks
    Next to 1, float16 has steps of `2**-11` and bfloat16 of `2**-8`. A sigmoid is 1 in float16 from
    logits of 8.32 on and in bfloat16 from 6.24 on, and one minus it is 0. In float16 an epsilon up
    to 2.98e-8 is 0 too, so the logarithm is -inf. In bfloat16 `log(0 + 1e-8)` is finite and
    wrong: at x = 9 it is -18.4 instead of -9.0, off by 9.4, and its gradient with respect to x
    is 0. The examples that are wrong with confidence, which a focal loss is about, teach nothing.

    ## Example
    ```python
    p = torch.sigmoid(logits)
    loss = -torch.log(1 - p + 1e-8)
    ```
    Use instead:
    ```python
    p = torch.sigmoid(logits.float())
    loss = -torch.log(1 - p + 1e-8)
    ```

    ## Fix safety
    Safe: only `.float()` on the argument of the sigmoid is inserted, so float32 results are the
    same to the bit (float64 values come down to float32). `F.logsigmoid(-logits.float())` is
    better still, because float32's sigmoid is 1 from logits of 17 on, but it drops the epsilon.
    Where the analysis does not find the sigmoid, the fix is only shown.

    ## How to silence
    `# precision-lint: ignore[MP302] reason` or `# noqa: MP302` on the line.

    ## Sources
    PyTorch, `torch.nn.functional.logsigmoid`; Automatic Mixed Precision, CUDA op-specific behavior
    (`sigmoid` is not listed and stays half under autocast).
    """

    code = "MP302"
    name = "log-one-minus-sigmoid"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("log-complement",)
    supersedes = ("MP301",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        least = "8.3 in float16, 6.3 in bfloat16"
        related: tuple[Link, ...] = ()
        if facts["base_at"] is not None:
            related = (Link("the probability is made here", facts["base_at"]),)
        yield Finding(
            f"one minus a {facts['probability']} is 0 from logits of {least} on, and its "
            "logarithm -inf or wrong",
            fix=at.fix("upcast the argument of the probability", at.upcast(at.at_origin(event))),
            related=related,
        )
