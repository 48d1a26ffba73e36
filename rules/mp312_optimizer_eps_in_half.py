from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Context, Event, Finding, Link, Rule, Severity


class OptimizerEpsInHalf(Rule):
    """Adam and its relatives on float16 parameters: their epsilon is 0.

    ## What it flags
    `torch.optim.Adam`, `AdamW`, `NAdam`, `RAdam`, `Adamax`, `RMSprop` and `Adagrad` with an
    epsilon of at most 2.98e-8, which includes the default of each, on the parameters of a model
    that the same function, or the same class, makes float16: `model.half()`,
    `.to(torch.float16)`, `from_pretrained(..., torch_dtype=torch.float16)`. As `likely` also on
    those of a model that a function gives back in float16, and on tensors cut out of one.

    It stays silent for bfloat16, whose range holds 1e-8, for a model that goes back to float32,
    where adapters or master copies are trained instead, and for a larger epsilon. A cast under a
    condition, and one in another method, are `likely`; a literal cast in the same function is `certain`. In a
    file that offers float16 it is `possible`.

    ## Why it breaks
    An optimizer keeps its moments in the dtype of the parameters. The second moment of a gradient
    of 1e-4 is 1e-11 after the first step, which is 0 in float16, and so is the epsilon of 1e-8
    that should guard the division: the first step is inf, or nan where the gradient is 0 as well.
    With `fused=True` the step is finite and up to 34 times too long. The root cause is the half
    parameters, not the epsilon: eps=1e-4 hides the infinity and makes small gradients ten times
    too weak.

    ## Example
    ```python
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ```
    Use instead:
    ```python
    model = nn.Linear(4, 4)  # float32 parameters, run under autocast
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ```

    ## Fix safety
    There is no fix: what cures it is float32 parameters with autocast and a GradScaler, which
    changes more than this line.

    ## How to silence
    `# precision-lint: ignore[MP312] reason` or `# noqa: MP312` on the line.

    ## Sources
    PyTorch, `torch.optim.Adam` (`eps=1e-8`); Automatic Mixed Precision examples (parameters stay
    float32). Mixed Precision Training, arXiv:1710.03740, section 3.1 (master weights).
    """

    code = "MP312"
    name = "optimizer-eps-in-half"
    severity = Severity.ERROR
    applicability = None
    listens = ("optimizer-epsilon",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        given = "default epsilon" if facts["default"] else "epsilon"
        yield Finding(
            f"{facts['name']} on float16 parameters: its {given} {facts['epsilon']:g} is 0 there, so the "
            "first step is inf or nan; the parameters should be float32",
            related=()
            if facts["cast"] is None
            else (Link("they are made float16 here", facts["cast"]),),
        )
