from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Apex,
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Framework,
    Remedy,
    Rule,
    Severity,
    Violation,
    calls,
    events,
)

SWITCH = re.compile(
    r"(?i:amp\b|_amp|amp_|scal|fp16|float16|half|mixed|precision|autocast|cuda|device|gpu|cpu)"
)
"""Conditions that choose between scaled and plain gradients."""

TRAINER = re.compile(r"(transformers|trl)\.([\w.]+\.)?\w*Trainer$")
"""Classes whose training loop steps an optimizer that accelerate has prepared."""
ELSEWHERE = r"scaler|scale_loss|accelerator\.backward|deepspeed|apex|automatic_optimization"
"""What a training step has that scales on another path."""
SCALES = re.compile(r"(?<![a-z])scale|scaled|scaler", re.IGNORECASE)
"""What outputs look like that were multiplied by a loss scale."""
SCALED_LOSS = re.compile(r"scaler\w*\.scale\(", re.IGNORECASE)
SCALER = re.compile(r"(^|[._])(grad_?|loss_?|amp_?)?scaler$", re.IGNORECASE)


class UnscaledBackward(Rule):
    """Backward of a loss that was not scaled, before a step that divides by the scale.

    ## What it flags
    `loss.backward()` on a path to `scaler.step(optimizer)` or `scaler.unscale_(optimizer)`: alone,
    or as one of several losses of which another is scaled (a gradient penalty, an auxiliary loss).

    A loss made in float16 autocast that goes back plainly beside one that is scaled, whoever steps
    its optimizer.

    A step of a scaler that scales nothing in its file, beside another scaler that does. A backward
    without `amp.scale_loss` behind apex's `amp.initialize` in one function. A plain backward where
    a framework's optimizer steps (accelerate's `prepare`, Fabric's `setup`, Lightning's
    `self.optimizers()`, `deepspeed.initialize`, mmengine's `optim_wrapper`): `likely` where the
    file or the project names float16, silent where the file names another precision. The same in a
    `training_step` of a subclass of transformers' `Trainer`, instead of
    `self.accelerator.backward(loss)`. A scaler of the code's own whose `step` is given an optimizer
    of accelerate or Fabric, in a file that names float16 for it: the framework scales by itself.

    `torch.autograd.grad` of outputs that nothing has scaled, in a function that divides by
    `scaler.get_scale()`; `possible`: with `create_graph=True` in float16 autocast, in a file that
    scales its losses (a gradient penalty).

    It stays silent where the optimizer of that loss steps by itself, where the gradients are set to
    zero before the step, where a framework runs the backward, for a scaler that is off, and where
    the loss may have been scaled somewhere else. Where another path scales the loss and both share
    the step (`if use_amp:` around the backward alone), the finding is `possible`; `likely` where
    the condition has nothing to do with precision or the device, and the scaler is always on.

    ## Why it breaks
    `scaler.step` divides gradients by the scale. Nothing was multiplied, so they become 65536 times
    too small and training stands still. If no loss was ever scaled, the scaler has no scale yet and
    raises an `AssertionError` at the first step.

    ## Example
    ```python
    loss.backward()
    scaler.step(optimizer)
    scaler.update()
    ```
    Use instead:
    ```python
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    ```

    ## Fix safety
    Safe: a disabled scaler's `scale` returns the loss itself.

    ## How to silence
    `# precision-lint: ignore[MP105] reason` or `# noqa: MP105` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: working with multiple models, losses, and
    optimizers; gradient penalty.
    """

    code = "MP105"
    name = "unscaled-backward"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = events("backward-unscaled", pattern=r"(?i:scaler)|\.unscale_\(") | calls(
        Apex.initialize, "Tensor.step", "Tensor.backward", "torch.autograd.grad"
    )

    def check(self, violation: Violation | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(violation, ast.Call):
            if at.qualify(violation.func) == Apex.initialize:
                yield from _beside_apex(violation, at)
            elif at.qualify(violation.func) == "torch.autograd.grad":
                yield from _penalty(violation, at)
            elif getattr(violation.func, "attr", "") == "backward":
                yield from _past_framework(violation, at)
                yield from _beside_scaled(violation, at)
                yield from _past_trainer(violation, at)
            else:
                yield from _other_scaler(violation, at)
                yield from _second_scaler(violation, at)
            return
        remedy = Remedy(violation, at)
        mixed = violation.how == "mixed"
        evidence = list(violation.traced(at.note, "the backward runs here"))
        if violation.later is not None and violation.later is not violation.node:
            evidence.append(at.note(violation.later, "its gradients are divided by the scale here"))
        confidence = violation.confidence
        if confidence is Confidence.CERTAIN and (mixed or not remedy.confirmed):
            confidence = Confidence.LIKELY  # another optimizer's loss, or a scaler that is off
        elsewise = violation.sometimes_unscaled and violation.under and remedy.confirmed
        if elsewise and not any(SWITCH.search(test) for test in violation.under):
            confidence = Confidence.LIKELY  # the scaler is on where the loss goes back as it is
        fix = None
        edits = remedy.scale_loss()
        if edits is not None:
            fix = Fix(f"scale the loss with {violation.scaler}", Applicability.SAFE, edits)
        beside = ", while another loss of the same step is" if mixed else ""
        yield at.finding(
            violation.place,
            f"the loss is not scaled{beside}: {violation.optimizer} divides these gradients by the "
            "loss scale (65536 at first)",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _beside_apex(call: ast.Call, at: Context) -> Iterator[Finding]:
    for backward in Apex.plain_backwards(call, at):
        yield at.finding(
            backward,
            "the loss is not scaled, although amp.initialize has prepared the optimizer for it: "
            "gradients below 6e-8 become 0",
            Confidence.LIKELY,
            evidence=(at.note(call, "amp is switched on here"),),
        )


def _beside_scaled(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A plain backward of a loss made under autocast, on the path of one that is scaled."""
    assert isinstance(call.func, ast.Attribute)
    root = call.func.value
    while isinstance(root, (ast.Attribute, ast.Subscript, ast.BinOp)):
        root = root.left if isinstance(root, ast.BinOp) else root.value
    if not isinstance(root, ast.Name) or call.args or not at.mentions(r"\.scale\("):
        return
    arms = _arms(call, at)
    scaled = [
        other
        for other, function in at.module.index.calls.get("backward", [])
        if function is at.function and other is not call and _is_scaled(other)
    ]
    beside = next((s for s in scaled if _same_path(arms, _arms(s, at))), None)
    if beside is None or any(
        violation.kind == "backward-unscaled" and violation.node is call
        for violation, _ in at.module.typestate.violations()
    ):
        return  # the scaler's step behind it says more
    made = at.definition(root.id, root)
    region = at.region(made) if made is not None else None
    if region is None or not region.on or region.dtype == "bfloat16":
        return
    yield at.finding(
        call,
        "the loss is not scaled, while another one is: gradients of its float16 operations below "
        "6e-8 become 0",
        Confidence.LIKELY,
        evidence=(*at.why(region), at.note(beside, "this loss is scaled")),
    )


def _past_framework(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A plain backward where a framework's optimizer steps, which expects its own backward."""
    stepped = None if _is_scaled(call) else Framework.bypassed(call, at)
    if stepped is None:
        return
    arms = _arms(call, at)
    for other, function in at.module.index.calls.get("backward", []):
        if function is at.function and (Framework.scales(other, at) or _is_scaled(other)):
            others = _arms(other, at)
            if any(arms[key][1] is not others[key][1] for key in arms.keys() & others.keys()):
                return  # the framework's own on the other path
    settings = at.project.autocast
    known = settings is not None and at.believes(settings) and "float16" in at.project.dtypes
    confidence = Confidence.LIKELY if known else Framework.confidence(at)
    yield at.finding(
        call,
        f"the loss is not scaled, and {at.text(stepped)} is the framework's: with float16 it "
        "raises, or divides these gradients by a scale that they do not have",
        Confidence.POSSIBLE if Care.in_test(at) else confidence,
        evidence=(at.note(stepped, "the framework's optimizer steps here"),),
    )


def _past_trainer(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A plain backward in transformers' loop, whose optimizer accelerate has prepared."""
    cls = at.function.cls
    if cls is None or at.function.name != "training_step" or call.args or _is_scaled(call):
        return
    local = [at.module.index.classes[base] for base in cls.bases if base in at.module.index.classes]
    bases = [at.qualify(base) or "" for known in (cls, *local) for base in known.node.bases]
    if not any(map(TRAINER.match, bases)) or at.mentions(ELSEWHERE):
        return
    yield at.finding(
        call,
        "the loss is not scaled, and the Trainer's optimizer is accelerate's: with fp16 it raises, "
        "or divides these gradients by a scale that they do not have; self.accelerator.backward "
        "scales",
        Framework.confidence(at),
    )


def _second_scaler(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A scaler that steps an optimizer which a framework scales for."""
    assert isinstance(call.func, ast.Attribute)
    owner = at.text(call.func.value)
    if owner.rpartition(".")[0] not in ("", "self") or not SCALER.search(owner):
        return  # the framework's own, ``accelerator.scaler``
    if Framework.confidence(at) is Confidence.LIKELY and Framework.steps_prepared(call, at):
        yield at.finding(
            call,
            f"{at.text(call.args[0])} is the framework's, which scales float16 losses by itself: "
            f"gradients scaled with {owner} are divided by another scale as well",
            Confidence.LIKELY,
        )


def _penalty(call: ast.Call, at: Context) -> Iterator[Finding]:
    """Gradients of outputs that were not scaled, in code that scales its losses."""
    divided = at.mentions(r"\.get_scale\(")
    keywords = {k.arg: k.value for k in call.keywords}
    outputs = keywords.get("outputs") or (call.args[0] if call.args else None)
    if outputs is None or not (divided or "create_graph" in keywords):
        return
    seeds = keywords.get("grad_outputs") or (call.args[2] if len(call.args) > 2 else None)
    made = [outputs, *([seeds] if seeds is not None else [])]
    for name in [part.id for node in made for part in ast.walk(node) if isinstance(part, ast.Name)]:
        known = at.definition(name, call)
        made += [known] if known is not None else []
        made += [passed.node for passed in at.module.arguments(at.function, name)]
    if any(SCALES.search(ast.unparse(node)) for node in made):
        return
    if divided:
        yield at.finding(
            call,
            "outputs that were not scaled are differentiated, and their gradients divided by the "
            "loss scale: they become 65536 times too small",
            Confidence.LIKELY,
        )
        return
    regions = [at.region(node) for node in (call, *made)]
    region = next((r for r in regions if r.on), None)
    if region is None or region.dtype == "bfloat16" or not SCALED_LOSS.search(at.source.text):
        return
    yield at.finding(
        call,
        "outputs are differentiated without a scale, while losses are scaled: gradients of float16 "
        "operations below 6e-8 become 0",
        Confidence.POSSIBLE,
        evidence=at.why(region),
    )


def _is_scaled(call: ast.Call) -> bool:
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return isinstance(owner, ast.Call) and getattr(owner.func, "attr", "") == "scale"


def _arms(node: ast.expr, at: Context) -> dict[int, tuple[ast.If, list[ast.stmt]]]:
    """The branches of conditions around a node."""
    found: dict[int, tuple[ast.If, list[ast.stmt]]] = {}
    inner: ast.AST = node
    for parent in at.ancestors(node):
        if isinstance(parent, ast.If):
            arm = parent.orelse if any(inner is s for s in parent.orelse) else parent.body
            found[id(parent)] = (parent, arm)
        inner = parent
    return found


def _same_path(
    plain: dict[int, tuple[ast.If, list[ast.stmt]]],
    scaled: dict[int, tuple[ast.If, list[ast.stmt]]],
) -> bool:
    """Whether no condition on mixed precision parts two nodes."""
    if any(plain[key][1] is not scaled[key][1] for key in plain.keys() & scaled.keys()):
        return False
    ends = (ast.Return, ast.Continue, ast.Break, ast.Raise)
    if any(isinstance(scaled[key][1][-1], ends) for key in scaled.keys() - plain.keys()):
        return False
    return not any(
        SWITCH.search(ast.unparse(plain[key][0].test)) for key in plain.keys() - scaled.keys()
    )


def _other_scaler(call: ast.Call, at: Context) -> Iterator[Finding]:
    """A scaler that steps and has scaled nothing, beside one that has."""
    if not isinstance(call.func, ast.Attribute) or len(call.args) != 1:
        return
    owner = ast.unparse(call.func.value)
    index = at.module.index
    scaling = {
        ast.unparse(c.func.value): c
        for c, function in index.calls.get("scale", [])
        if isinstance(c.func, ast.Attribute) and function is at.function and c.args
    }
    made = {
        ast.unparse(target)
        for function in (index.top, *index.functions)
        for node in function.nodes
        if isinstance(node, ast.Assign) and ast.unparse(node.value).split("(")[0].endswith("Scaler")
        for target in node.targets
    }
    if owner not in made or not scaling.keys() & made or owner in scaling:
        return
    used = rf"{owner.replace('.', '[.]')}\.(scale|load|unscale_)\w*\("
    shared = "." in owner and (f"{owner}.scale(" in at.source.text or f"{owner}," in at.source.text)
    if shared or at.mentions(rf"{used}|[(,]\s*{re.escape(owner)}\s*[,)]"):
        return
    other = next(iter(scaling))
    yield at.finding(
        call,
        f"{owner} has scaled nothing, so that it has nothing to divide by: the loss was scaled "
        f"with {other}",
        Confidence.LIKELY,
        evidence=(at.note(scaling[other], "the loss is scaled here"),),
    )
