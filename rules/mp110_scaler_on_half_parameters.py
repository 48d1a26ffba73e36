from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Cost, Event, Finding, Link, Rule, Severity


class ScalerOnHalfParameters(Rule):
    """GradScaler that steps an optimizer of float16 parameters, which raises.

    ## What it flags
    `model.half()` or `model.to(torch.float16)` where an optimizer is made of that model's (or a
    submodule's) parameters and a GradScaler of the same function or class unscales or steps it, also
    where an evaluation between epochs casts the model. A model that is loaded in float16
    (`from_pretrained(..., torch_dtype=torch.float16)`) and handed to a `Trainer` with `fp16=True`, and
    one that is prepared with its optimizer by `Accelerator(mixed_precision="fp16")`, where the function
    does nothing else with it.

    It stays silent for models that no optimizer trains (a frozen encoder, a copy for
    inference), for casts after the training, for bfloat16, where parameters are cast back to
    float32, and for a scaler that is off.

    ## Why it breaks
    Gradients of float16 parameters are float16, and a scaler refuses to unscale them in place:
    `ValueError: Attempting to unscale FP16 gradients`. Autocast does not want half models: it casts
    in each operation, and the parameters stay float32 so that small updates are not rounded away.

    ## Example
    ```python
    model = Net().half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    ```
    Use instead:
    ```python
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torch.autocast("cuda"):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    ```

    ## Fix safety
    Unsafe: the cast is removed where an autocast region is at hand; code outside of it, that hands
    half tensors to the model, has to be changed by hand.

    ## How to silence
    `# precision-lint: ignore[MP110] reason` or `# noqa: MP110` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: autocasting (do not call `half()` on the model).
    """

    code = "MP110"
    name = "scaler-on-half-parameters"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.UNSAFE
    listens = ("half-parameters-scaled",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        related = [Link("the scaler unscales or steps here", facts["step"])]
        if facts["optimizer"] is not None:
            related.append(Link("the optimizer is made of its parameters here", facts["optimizer"]))
        yield Finding(
            "float16 parameters are trained with a GradScaler: this raises ValueError (attempting to "
            "unscale FP16 gradients)",
            fix=at.fix(
                "keep the parameters in float32",
                at.drop_cast(event.place),
                "what else is made for half parameters has to change with them",
            ),
            related=tuple(related),
        )
