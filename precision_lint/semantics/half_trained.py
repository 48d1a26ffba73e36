"""Models that are loaded or cast in float16 and handed to a framework that scales losses."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Evidence
from precision_lint.semantics.halfcasts import BACK
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

HALF = frozenset({"torch.float16", "torch.half"})
ARGUMENTS = re.compile(r"(Arguments|Config|Args)$")
TRAINER = re.compile(r"Trainer$")
ADAPTED = re.compile(r"get_peft_model|PeftModel|add_adapter|prepare_model_for|inject_adapter")
"""Calls that put adapters on a model: newer releases keep those in float32."""
LOADS_HALF = frozenset({"clip.load"})
"""Functions of libraries whose models are float16 on CUDA."""
ADAPTER = re.compile(r"lora|tuner|adapter|prompt|prefix", re.IGNORECASE)


@dataclass(frozen=True)
class HalfTrained:
    """``model`` is float16 where a framework's scaler unscales its gradients."""

    model: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    node: ast.expr
    """What makes it so: the call, or the dtype that one branch chooses for it."""

    @classmethod
    def of(cls, call: ast.Call, at: Context) -> HalfTrained | None:
        """What a call that makes a model float16 leads to, in its own function."""
        if not _to_half(call, at) or BACK.search(at.source.text):
            return None
        model = _bound(call, at)
        if model is None:
            return None
        name = re.escape(model)
        if at.mentions(
            rf"\b{name}\.(float\(|to\([^)]*float32|requires_grad_\(False|eval\(\)\s*$)"
            rf"|freeze\w*\({name}"
        ):
            return None
        found = next(_scaled(call, model, at), None)
        if found is None:
            return None
        sure, evidence = found
        adapted = [
            node
            for node in at.function.nodes
            if isinstance(node, ast.Call) and ADAPTED.search(dotted(node.func) or "")
        ]
        chosen = _chosen(call, at)
        around = any(isinstance(a, (ast.If, ast.IfExp)) for a in at.ancestors(call))
        if chosen is not None or around or any(node.lineno > call.lineno for node in adapted):
            sure = Confidence.POSSIBLE
        return cls(model, sure, evidence, call if chosen is None else chosen)

    @staticmethod
    def adapter(call: ast.Call, at: Context) -> str | None:
        """The kind of adapter layers that a loop over a model's modules casts to half."""
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        if not isinstance(owner, ast.Name) or not _names_half(call, at):
            return None
        for around in at.ancestors(call):
            if not isinstance(around, ast.If) or call not in {
                n for s in around.body for n in ast.walk(s)
            }:
                continue
            for test in ast.walk(around.test):
                if isinstance(test, ast.Call) and dotted(test.func) == "isinstance":
                    of, kinds = ast.unparse(test.args[0]), ast.unparse(test.args[-1])
                    if of == owner.id and ADAPTER.search(kinds):
                        return kinds
        return None


def _names_half(call: ast.Call, at: Context) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr in ("half", "bfloat16"):
        return not call.args
    given = [*call.args, *(k.value for k in call.keywords)]
    return any(at.qualify(value) in {*HALF, "torch.bfloat16"} for value in given)


def _to_half(call: ast.Call, at: Context) -> bool:
    """Whether a call makes a float16 model: loads one, or casts it."""
    if not isinstance(call.func, ast.Attribute):
        return False
    if call.func.attr == "half":
        return not call.args
    if at.qualify(call.func) in LOADS_HALF:
        on_cpu = "cpu" in ast.unparse(call)
        return not on_cpu and not at.mentions(r"(?i:float\(\)|fp32|float32|convert_model)")
    if call.func.attr == "to":
        given = [*call.args, *(k.value for k in call.keywords)]
    else:
        given = [k.value for k in call.keywords if k.arg in ("torch_dtype", "dtype")]
    return any(_is_float16(value, at) for value in given)


def _is_float16(node: ast.expr, at: Context) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "float16"
    if isinstance(node, ast.Name) and at.qualify(node) is None:
        if not at.mentions(r"float16|half"):
            return False
        made = at.function.assigned.get(node.id, [])
        return any(at.qualify(value) in HALF for value in made)
    return at.qualify(node) in HALF


def _chosen(call: ast.Call, at: Context) -> ast.expr | None:
    """The float16 that one of several branches binds the dtype of a call to."""
    for given in [*call.args, *(k.value for k in call.keywords)]:
        made = at.function.assigned.get(given.id, []) if isinstance(given, ast.Name) else []
        half = [value for value in made if at.qualify(value) in HALF]
        if half and len(half) < len(made):
            return half[0]
    return None


def _bound(call: ast.Call, at: Context) -> str | None:
    """The name of the model: what the statement assigns, or what it casts in place."""
    statement = at.statement(call)
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        part: ast.expr = statement.value
        while isinstance(part, ast.Call) and part is not call:
            func = part.func
            if not isinstance(func, ast.Attribute) or func.attr in ("float", "bfloat16"):
                return None
            part = func.value
        target = statement.targets[0]
        target = target.elts[0] if isinstance(target, ast.Tuple) else target
        return dotted(target) if part is call else None
    if isinstance(statement, ast.Expr) and statement.value is call:
        return dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
    return None


def _scaled(
    cast: ast.Call, model: str, at: Context
) -> Iterator[tuple[Confidence, tuple[Evidence, ...]]]:
    """Where a float16 framework, or a scaler, trains a model of this function."""
    calls = [node for node in at.function.nodes if isinstance(node, ast.Call)]
    places = [*calls, *(c for c, _ in at.module.index.calls.get("Accelerator", []))]
    for node in calls:
        name = (dotted(node.func) or "").rpartition(".")[2]
        given = {dotted(a) for a in (*node.args, *(k.value for k in node.keywords))}
        if TRAINER.search(name) and model in given:
            for made in calls:
                sure = _switched_on(made, "fp16", (True,), ARGUMENTS)
                if sure is not None:
                    yield (
                        sure,
                        (at.note(made, "float16 with a scale"), at.note(node, "trained here")),
                    )
            yield Confidence.POSSIBLE, (at.note(node, "trained here, with a scale if it says so"),)
        trained = re.search(rf"\b{re.escape(model)}\.(named_)?parameters\(", at.text(node))
        if name != "prepare" and (trained is None or "opt" not in name.lower() + _target(node, at)):
            continue
        if name == "prepare" and model not in given:
            continue
        for made in places if name == "prepare" else ():
            sure = _switched_on(made, "mixed_precision", ("fp16",), re.compile(r"Accelerator$"))
            if sure is not None and at.mentions(rf"\b{re.escape(model)}\.(named_)?parameters\("):
                yield sure, (at.note(node, "trained with a scale of accelerate's"),)
        loaded = getattr(cast.func, "attr", "") not in ("half", "to")  # else found by its cast
        if name != "prepare" and not loaded and "GradScaler" not in at.source.text:
            yield Confidence.POSSIBLE, (at.note(node, "an optimizer gets its parameters"),)
        for made in calls if name != "prepare" and loaded else ():
            if (dotted(made.func) or "").endswith("GradScaler") and not made.keywords:
                yield (
                    Confidence.LIKELY,
                    (
                        at.note(node, "an optimizer gets its parameters"),
                        at.note(made, "the scaler"),
                    ),
                )


def _target(node: ast.Call, at: Context) -> str:
    statement = at.statement(node)
    if isinstance(statement, ast.Assign) and statement.value is node:
        return ast.unparse(statement.targets[0]).lower()
    return ""


def _switched_on(
    call: ast.Call, keyword: str, values: tuple[object, ...], callee: re.Pattern[str]
) -> Confidence | None:
    """How sure it is that a call switches float16 on; None: it does not."""
    if not callee.search(dotted(call.func) or ""):
        return None
    given = next((k.value for k in call.keywords if k.arg == keyword), None)
    if given is None:
        return None
    if isinstance(given, ast.Constant):
        return Confidence.LIKELY if given.value in values else None
    return Confidence.POSSIBLE
