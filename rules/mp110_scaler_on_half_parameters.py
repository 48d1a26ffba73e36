from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    HalfCast,
    HalfTrained,
    LeftHalf,
    Rule,
    Scaler,
    Severity,
    calls,
    operators,
)

LOADS = re.compile(r"\.from_pretrained$|^clip\.load$|(?:^|[._])load_model$")
METHODS = ("half", "to", "add_adapter")


class ScalerOnHalfParameters(Rule):
    """GradScaler that steps an optimizer of float16 parameters, which raises.

    ## What it flags
    `model.half()` or `model.to(torch.float16)` where an optimizer is made of that model's (or a
    submodule's) parameters and a GradScaler of the same function or class unscales or steps it.

    `model.half()` in an evaluation that is given the model, which a caller goes on to train: the
    cast is in place, and nothing in the evaluation takes it back. `model.add_adapter(...)` after
    the model was cast to a dtype that may be float16, where an optimizer gets its parameters: the
    adapters follow that dtype.

    A model that is loaded (`from_pretrained(..., torch_dtype=torch.float16)`) or cast in float16
    and trained in the same function by what scales losses: a `Trainer` with `fp16=True`, an
    `Accelerator(mixed_precision="fp16")`, a GradScaler. With adapters put on afterwards, or a flag
    instead of a literal, it is `possible`; a branch that chooses float16 is reported where it does.
    Possible is a model that is made half and given to an optimizer as well, whoever scales.

    Adapter layers that a loop over the modules casts to half, and the weight of a layer that is
    made of what a function is given, in a project with half models.

    It stays silent for models that no optimizer trains (a frozen encoder, a copy for inference),
    for casts after the training, for bfloat16, where parameters are cast back to float32, and for a
    scaler that is off. A cast under a condition is `possible`.

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
    applicability = Applicability.UNSAFE
    triggers = calls(
        "torch.amp.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cpu.amp.GradScaler",
        "Tensor.half",
        "Tensor.to",
        "Tensor.add_adapter",
        "torch.nn.Parameter",
    ) | operators(ast.Assign, pattern=r"from_pretrained|clip\.load|torch_dtype")

    def check(self, call: ast.Call | ast.Assign, at: Context) -> Iterator[Finding]:
        if isinstance(call, ast.Assign):
            text = at.text(call.value)
            if not re.search(r"from_pretrained|clip\.load|torch_dtype", text):
                return
            for part in ast.walk(call.value):
                if isinstance(part, ast.Call) and LOADS.search(at.text(part.func)):
                    yield from _trained(part, at)
            return
        if isinstance(call.func, ast.Attribute) and call.func.attr in METHODS:
            left = list(_left(call, call.func.attr, at))
            yield from left or _trained(call, at)
            return
        if at.qualify(call.func) == "torch.nn.Parameter":
            yield from _given(call, at)
            return
        scaler = Scaler.made(call, at)
        if scaler is None or scaler.off:
            return
        regions = scaler.regions(at)
        for cast in HalfCast.trained(scaler, at):
            here = at.inside(cast.function)
            confidence = cast.confidence
            if confidence is Confidence.CERTAIN and (scaler.may_be_off or cast.handed):
                confidence = Confidence.LIKELY
            evidence = [here.note(cast.optimizer, f"{cast.name} is made of its parameters here")]
            if cast.step is not None:
                evidence.append(at.note(cast.step, "the scaler unscales its gradients here"))
            fix = None
            edits = cast.removed(here) if regions else None
            if edits is not None:
                why = "what hands half tensors to the model has to change as well"
                fix = Fix("keep the parameters in float32", Applicability.UNSAFE, edits, why)
            yield here.finding(
                cast.node,
                f"{cast.name} trains float16 parameters with a GradScaler: this raises ValueError "
                "(attempting to unscale FP16 gradients)",
                confidence,
                evidence=evidence,
                fix=fix,
            )


def _left(call: ast.Call, method: str, at: Context) -> Iterator[Finding]:
    """Models that are float16 when they are trained, without a look at the scaler."""
    if method == "add_adapter":
        found = LeftHalf.adapted(call, at)
        message = (
            "{0} may be float16, and so are the adapters that are trained: unscaling their "
            "gradients raises ValueError"
        )
    else:
        found = LeftHalf.lent(call, at)
        message = (
            "{0} stays float16 after this function: the cast is in place, and the caller trains it"
        )
    if found is not None:
        yield at.finding(
            call, message.format(found.model), found.confidence, evidence=found.evidence
        )


def _trained(call: ast.Call, at: Context) -> Iterator[Finding]:
    """Models that a framework trains with a scaler of its own."""
    found = HalfTrained.of(call, at)
    if found is not None:
        yield at.finding(
            found.node,
            f"{found.model} is float16 and trained with a loss scale: unscaling its gradients "
            "raises ValueError",
            found.confidence,
            evidence=found.evidence,
        )
        return
    kind = HalfTrained.adapter(call, at)
    if kind is not None:
        yield at.finding(
            call,
            f"layers that are trained ({kind}) are cast to half: small updates are rounded away, "
            "and float16 gradients cannot be unscaled",
            Confidence.LIKELY,
        )


def _given(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A trained weight of the dtype of what a function is given, which may be a half model's."""
    statement, known = at.statement(call), at.project.half or at.project.autocast
    given = call.args[0] if call.args else None
    if known is None or not isinstance(given, ast.Name) or not isinstance(statement, ast.Assign):
        return
    target = statement.targets[0]
    inner = isinstance(target, ast.Attribute) and isinstance(target.value, ast.Attribute)
    frozen = any(k.arg == "requires_grad" for k in call.keywords) or len(call.args) > 1
    if (
        given.id in {p.arg for p in at.function.parameters()}
        and isinstance(target, ast.Attribute)
        and target.attr == "weight"
        and not frozen
        and not at.function.assigned.get(given.id)
    ):
        yield at.finding(
            call,
            f"a trained weight takes the dtype of {given.id}: of a float16 model it is float16, "
            "and its gradients cannot be unscaled",
            Care.offered(at, half=True) if inner else Confidence.POSSIBLE,
            evidence=(known,),
        )
