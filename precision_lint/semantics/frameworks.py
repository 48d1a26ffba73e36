"""Losses that a framework scales: accelerate, Fabric, Lightning, DeepSpeed, apex.

Their optimizers unscale when they step, or their own clip does; in between gradients carry the
scale in float16, as behind ``scaler.scale(loss).backward()``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics import effects as fx
from precision_lint.semantics.effects import Step, Steps, flat
from precision_lint.semantics.events import CLIP_SCALED, READ_SCALED
from precision_lint.semantics.index import Function, Index
from precision_lint.semantics.names import dotted
from precision_lint.semantics.paths import State
from precision_lint.semantics.scaler import Protocol
from precision_lint.semantics.violations import Violation

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.module import Module

WRAPPED = "wrapped"
"""``Violation.how`` of gradients that a framework has scaled."""
MANUAL = "self.manual_backward"
APEX = "amp.scale_loss"
OWNER = re.compile(r"(^|\.)_?(accelerator|fabric|lite|booster|(model_?)?engine|\w*deepspeed\w*)$")
"""Objects whose ``backward(loss)`` scales a loss."""
MAKERS = frozenset({"Accelerator", "Fabric", "LightningLite", "Booster"})
"""Classes of such objects."""
WRAPPER = re.compile(r"(^|\.)_?optim_wrappers?$")
"""mmengine's optimizers, whose ``backward`` and ``update_params`` scale a loss."""
OPTIMIZERS, DEEPSPEED = "self.optimizers", "deepspeed.initialize"
PREPARES = ("prepare", "prepare_optimizer", "setup", "setup_optimizers", "optimizers", "initialize")
"""Methods that give a framework's optimizers."""
AFTER_BACKWARD = "on_after_backward"
"""Lightning's hook between the backward pass and the unscaling."""
FLOAT16 = re.compile(
    r"mixed_precision\s*[=,:][^\n]*[\"']fp16|precision\s*=\s*[\"']?16(?!\w)|[\"']16-mixed"
    r"|\bfp16[\"']?\s*[=:]\s*(True|\{)|[\"']fp16[\"']|scale_loss"
)
"""Text that says that a framework may run in float16."""
NOT_FLOAT16 = re.compile(
    r"mixed_precision\s*=\s*[\"'](no|bf16|fp8)|precision\s*=\s*[\"']?(bf16|32|64)"
)
"""Text that says that it runs in something else."""


class Framework:
    """What a rule asks of gradients that a framework has scaled."""

    triggers = (
        r"scale_loss|manual_backward|on_after_backward|autograd\.backward"
        r"|\.backward\("  # of whichever owner: to name them here costs more than to look
    )

    @staticmethod
    def scaled(violation: Violation) -> bool:
        """Whether a framework, not a scaler of the code's own, has scaled the gradients."""
        return violation.how == WRAPPED

    @staticmethod
    def confidence(at: Context) -> Confidence:
        """``likely`` where the file names float16 for the framework, which else scales nothing."""
        named = FLOAT16.search(at.source.text) is not None
        return Confidence.LIKELY if named else Confidence.POSSIBLE

    @staticmethod
    def bypassed(backward: ast.Call, at: Context) -> ast.expr | None:
        """The framework's optimizer that steps after a plain ``loss.backward()``; None: there is
        none.

        Such an optimizer comes from ``prepare`` or ``setup`` in this file, from Lightning's
        ``self.optimizers()``, from ``deepspeed.initialize``, or is called ``optim_wrapper``.
        """
        if not isinstance(backward.func, ast.Attribute) or Framework.scales(backward, at):
            return None
        own = dotted(backward.func.value)
        if Framework.spared(at) or (own and _prepared(own, at.function, at.module)):
            return None  # an engine's own, whatever it is called
        for call, function in at.module.index.calls.get("step", ()):
            if function is not at.function or not isinstance(call.func, ast.Attribute):
                continue
            stepped = call.func.value
            if isinstance(stepped, ast.Subscript):
                stepped = stepped.value
            text = dotted(stepped.func if isinstance(stepped, ast.Call) else stepped) or ""
            known = WRAPPER.search(text) is not None or text == OPTIMIZERS
            if "sched" not in text and (known or _prepared(text, at.function, at.module)):
                return stepped
        return None

    @staticmethod
    def steps_prepared(step: ast.Call, at: Context) -> bool:
        """Whether ``scaler.step(optimizer)`` is given an optimizer that a framework has made."""
        text = dotted(step.args[0]) if len(step.args) == 1 else None
        return text is not None and _prepared(text, at.function, at.module)

    @staticmethod
    def unwrapped(step: ast.Call, at: Context) -> ast.Call | None:
        """Where a framework was given the optimizer that steps here, and gave another in return.

        None where the name stands for the framework's, or the file names another precision.
        """
        text = dotted(step.func.value) if isinstance(step.func, ast.Attribute) else None
        if text is None or step.args or "sched" in text or Framework.spared(at):
            return None
        known = objects(at.module.index)
        stores = [
            part.lineno
            for part in at.function.nodes
            if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store)
            if dotted(part) == text
        ]
        for name in PREPARES:
            for call, where in at.module.index.calls.get(name, ()):
                given = {dotted(argument) for argument in call.args}
                if where is at.function and text in given and _prepares(call, known):
                    results = {
                        b for value, bound in _bindings(where) if value is call for b in bound
                    }
                    late = max(stores, default=0) > call.lineno or call.lineno > step.lineno
                    return None if late or text in results else call
        return None

    @staticmethod
    def spared(at: Context) -> bool:
        """Whether the file names another precision than float16 for the framework."""
        text = at.source.text
        return NOT_FLOAT16.search(text) is not None and FLOAT16.search(text) is None

    @staticmethod
    def scales(backward: ast.Call, at: Context) -> bool:
        """Whether a backward pass is one that an object of a framework runs."""
        owner = dotted(backward.func.value) if isinstance(backward.func, ast.Attribute) else None
        text = owner or ""
        known = is_object(text, objects(at.module.index)) or WRAPPER.search(text) is not None
        return known or text in ("self", "amp")


def objects(index: Index) -> frozenset[str]:
    """Names of a module's objects that scale losses, by what makes or annotates them.

    ``self`` is among them where a class is LightningLite's.
    """
    found = {name for maker in MAKERS for name in index.instances.get(maker, ())}
    if any(home.rpartition(".")[2] in MAKERS for home in index.names.bound.values()):
        for function in index.functions:
            for parameter in function.parameters():
                kind = ast.unparse(parameter.annotation) if parameter.annotation else ""
                if kind.strip("'\"").rpartition(".")[2] in MAKERS:
                    found.add(parameter.arg)
        bases = (base for cls in index.classes.values() for base in cls.bases)
        if any(base.rpartition(".")[2] == "LightningLite" for base in bases):
            found.add("self")
    return frozenset(found)


def is_object(text: str, known: frozenset[str]) -> bool:
    """Whether a name or attribute is an object whose ``backward(loss)`` scales."""
    return OWNER.search(text) is not None or text.rpartition(".")[2] in known


def _prepared(text: str, function: Function, module: Module, depth: int = 2) -> bool:
    """Whether a name or attribute is what a framework made of an optimizer, here, in a caller that
    hands it on, or in a function that returns it."""
    known = objects(module.index)
    for name in PREPARES if text else ():
        for call, where in module.index.calls.get(name, ()):
            if not _prepares(call, known) or (where is not function and text[:5] != "self."):
                continue
            if any(text in bound for value, bound in _bindings(where) if value is call):
                return True
    if not depth:
        return False
    if text in {p.arg for p in function.parameters()}:
        for passed in module.arguments(function, text):
            given = dotted(passed.node) or ""
            if _prepared(given, passed.caller, passed.module, depth - 1):
                return True
    for value, bound in _bindings(function):
        found = module.callee(value.func, function) if text in bound else None
        if found is None:
            continue
        helper, home = found
        inner = objects(home.index)
        calls = (c for name in PREPARES for c, f in home.index.calls.get(name, ()) if f is helper)
        if any(_prepares(call, inner) for call in calls):
            return True
    return False


def _prepares(call: ast.Call, known: frozenset[str]) -> bool:
    owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
    if owner is None:
        return False
    return is_object(owner, known) or dotted(call.func) in (OPTIMIZERS, DEEPSPEED)


def _bindings(function: Function) -> Iterator[tuple[ast.Call, set[str | None]]]:
    """Calls whose result a function binds, each with the names and attributes."""
    for node in function.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            parts = [part for target in node.targets for part in ast.walk(target)]
            yield node.value, {dotted(p) for p in parts if isinstance(p, (ast.Name, ast.Attribute))}


class Wrapped(Protocol):
    """Runs one function for the scaler inside of a framework's object; only looks are reported."""

    def run(self) -> Wrapped:
        super().run()
        looks = (v for v in self.violations if v.kind in (CLIP_SCALED, READ_SCALED))
        self.violations = [replace(v, how=WRAPPED) for v in looks]
        return self

    def backward(self, step: Step, state: State) -> State:
        if step.names[0] == "" and step.names[1:2] == (self.scaler,):
            step = replace(step, names=(self.scaler,))
        return super().backward(step, state)

    def bypass(self, step: Step, state: State) -> State:
        """The optimizer's own step, which the framework has wrapped: it unscales."""
        return State(touched=True, facts=state.facts)

    def event(self, step: Step, state: State) -> list[State]:
        if step.kind == fx.UNSCALE:  # a scaler of the code's own, beside a framework that has none
            return [replace(state, scaled=None, unsure=True)]
        return super().event(step, state)

    def plain_backward(self, step: Step, state: State, text: str) -> State:
        return state if state.scaled else replace(state, plain=True)


def wrappers(steps: Steps, known: frozenset[str]) -> set[str]:
    """Texts of the frameworks' objects that run a backward among some steps.

    ``known``: the module's ``objects``.
    """
    found = set()
    for step in flat(steps):
        if step.kind == fx.BACKWARD and not step.names[0]:
            text = step.names[1] if len(step.names) > 1 else ""
            if text == MANUAL or is_object(text, known):
                found.add(text)
        elif step.kind == fx.SCALED and step.names[1] == APEX:
            found.add(APEX)
    return found


def scaled_within(items: list[ast.withitem], body: Steps) -> Steps:
    """Steps of a ``with`` block; behind one of ``amp.scale_loss`` gradients are unscaled."""
    for item in items:
        call, target = item.context_expr, item.optional_vars
        if not isinstance(call, ast.Call) or not isinstance(target, ast.Name):
            continue
        if (dotted(call.func) or "").rpartition(".")[2] != "scale_loss":
            continue
        place = Step(fx.SCALED, (target.id, APEX), (), call, call.lineno, call.col_offset)
        delayed = any(
            k.arg == "delay_unscale" and isinstance(k.value, ast.Constant) and k.value.value
            for k in call.keywords
        )
        return (place, *body) if delayed else (place, *body, replace(place, kind=fx.SELF_CLIP))
    return body


def after_backward(function: Function, steps: Steps) -> Iterator[Violation]:
    """The first look of each kind at gradients in Lightning's hook, which still carry the scale."""
    seen: set[str] = set()
    for step in fx.sources(steps) if function.name == AFTER_BACKWARD else ():
        inner = next((s for s in flat((step,)) if s.kind in (fx.READ, fx.CLIP)), None)
        if inner is None or step.node is None or inner.names[0]:
            continue
        if inner.kind not in seen:
            seen.add(inner.kind)
            kind = READ_SCALED if inner.kind == fx.READ else CLIP_SCALED
            yield Violation(
                kind, step.node, AFTER_BACKWARD, "", None, None, (), (), None, False,
                inner=step, how=WRAPPED,
            )  # fmt: skip
