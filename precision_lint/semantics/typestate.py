"""What one module's functions do to gradients and scalers, and where they break the protocol."""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from precision_lint.semantics import effects as fx
from precision_lint.semantics.bindings import makes_scaler, names_scaler, own_nodes
from precision_lint.semantics.conditions import Condition, condition, substituted
from precision_lint.semantics.effects import (
    Effects,
    Step,
    Steps,
    called_once,
    flat,
    leading,
    weights,
)
from precision_lint.semantics.events import CLIP_SCALED, PLAIN_BACKWARD, READ_SCALED, UPDATE
from precision_lint.semantics.frameworks import (
    AFTER_BACKWARD,
    Wrapped,
    after_backward,
    objects,
    wrappers,
)
from precision_lint.semantics.index import Class, Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.outline import Outline
from precision_lint.semantics.ownership import owners
from precision_lint.semantics.paths import State, taking
from precision_lint.semantics.scaler import Helper, Protocol, Violation

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module

LIGHTNING = ("LightningModule", "LightningLite", "Callback", "LightningFlow")


KNOWN_BASES = ("Module", "object", "ABC", "Protocol")


class Typestate:
    """Lazily computed effects and violations of one module."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._effects: dict[int, Effects | None] = {}
        self._runs: list[tuple[Function, Protocol]] | None = None
        self._found: list[tuple[Violation, Function]] | None = None
        self._properties: dict[tuple[int, str], str | None] = {}
        self._instances: dict[str, Class | None] = {}
        for name, bound in module.index.instances.items():
            cls = module.index.classes.get(name)
            for last in bound:
                # a name bound to instances of two classes is neither's
                known = self._instances.get(last, cls)
                self._instances[last] = cls if known is cls else None

    # effects

    def effects(self, function: Function) -> Effects | None:
        """What a function does; None where it calls itself."""
        key = id(function)
        if key not in self._effects:
            self._effects[key] = None  # recursion ends here
            with contextlib.suppress(RecursionError):  # an expression that nests too deeply
                self._effects[key] = Outline(function, self).effects()
        return self._effects[key]

    def resolve(self, call: ast.Call, function: Function) -> tuple[Effects, str | None] | None:
        """What a call of this or another file's function does, and its ``self``."""
        found = self._callee(call, function)
        if found is not None:
            callee, receiver = found
            effects = self.effects(callee) if callee is not function else None
            return None if effects is None else (effects, receiver)
        foreign = self.module.foreign_effects(call, function)
        if foreign is None:
            return None
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        receiver = "self" if _is_super(owner) else self.text(owner) if owner is not None else None
        return foreign, receiver

    def is_grad_scaler(self, call: ast.Call, function: Function) -> bool:
        """Whether a method that is called belongs to a project's own kind of GradScaler."""
        found = self._callee(call, function)
        foreign = self.module.callee(call.func, function) if found is None else None
        callee = found[0] if found is not None else foreign[0] if foreign is not None else None
        cls = callee.cls if callee is not None else None
        return cls is not None and any(n.endswith("GradScaler") for n in (cls.name, *cls.bases))

    def _callee(self, call: ast.Call, function: Function) -> tuple[Function, str | None] | None:
        index, callee = self.module.index, call.func
        if isinstance(callee, ast.Attribute) and _is_super(callee.value):
            for base in function.cls.bases if function.cls else ():
                parent = index.classes.get(base)
                method = index.method(parent, callee.attr) if parent is not None else None
                if method is not None:
                    return method, "self"
            return None
        path = dotted(callee)
        if path is None:
            return None
        owner, _, last = path.rpartition(".")
        if not owner:
            nested = [f for f in index.functions if f.name == path and not f.is_method]
            inner = [f for f in nested if f.parent is function or f.parent is function.parent]
            plain = [f for f in nested if f.cls is None]
            if inner or plain:
                return (inner or plain)[0], None
            cls = self._class_of(path, function)
            method = index.method(cls, "__call__") if cls is not None else None
            return None if method is None else (method, path)
        if owner == "self" and function.cls is not None:
            method = index.method(function.cls, last)
            if method is not None:
                return method, "self"
        cls = self._class_of(owner, function)
        if cls is not None:
            method = index.method(cls, last)
            if method is not None:
                return method, owner
        cls = self._class_of(path, function)
        method = index.method(cls, "__call__") if cls is not None else None
        return None if method is None else (method, path)

    def _class_of(self, path: str, function: Function) -> Class | None:
        """The class of this module whose instance a name is."""
        for parameter in function.parameters():
            if parameter.arg == path and parameter.annotation is not None:
                note = parameter.annotation
                name = note.value if isinstance(note, ast.Constant) else dotted(note)
                return self.module.index.classes.get(str(name))
        return self._instances.get(path.rpartition(".")[2])

    def property_of(self, cls: Class, name: str) -> str | None:
        """``self.b`` where ``a`` is a property that returns it."""
        key = (id(cls), name)
        if key not in self._properties:
            self._properties[key] = None
            method = self.module.index.method(cls, name)
            if method is not None and not isinstance(method.node, ast.Module):
                body = [s for s in method.node.body if not _is_docstring(s)]
                marked = any(dotted(d) == "property" for d in method.node.decorator_list)
                if marked and len(body) == 1 and isinstance(body[0], ast.Return) and body[0].value:
                    self._properties[key] = dotted(body[0].value)
        return self._properties[key]

    def is_lightning(self, function: Function, owner: ast.expr | None) -> bool:
        """Whether ``self.clip_gradients`` is the framework's."""
        if owner is None or dotted(owner) != "self" or function.cls is None:
            return False
        return any(base.endswith(LIGHTNING) for base in function.cls.bases)

    @staticmethod
    def text(node: ast.expr) -> str:
        """Source text of an expression."""
        return dotted(node) or ast.unparse(node)

    # scalers

    def scalers(self, function: Function) -> set[str]:
        """Source texts of what a function, or what it calls, uses as a GradScaler."""
        effects = self.effects(function)
        if not effects:
            return set()
        sure = {s.names[0] for s in flat(effects.steps) if s.kind in (fx.BACKWARD, fx.UNSCALE)}
        named = {s.names[0] for s in flat(effects.steps) if s.kind == fx.STEP}
        found = sure - {""} | {name for name in named if names_scaler(name)}
        known = self.module.names_in(function) | {p.arg for p in function.parameters()} | {"self"}
        return {name for name in found if _head(name) in known}

    def made(self, function: Function, scaler: str) -> list[ast.expr]:
        """Expressions that make a scaler, as far as its function, class or module tells."""
        made = [
            node.value
            for node in own_nodes(function)
            if isinstance(node, ast.Assign) and any(dotted(t) == scaler for t in node.targets)
        ]
        if not made and scaler.startswith("self.") and function.cls is not None:
            stored = self.module.stores(function.cls).get(scaler[5:])
            made = [stored[0]] if stored else []
        if not made and scaler not in {p.arg for p in function.parameters()}:
            made = [
                node.value
                for node in self.module.index.tree.body
                if isinstance(node, ast.Assign) and any(dotted(t) == scaler for t in node.targets)
            ]
        return made

    def active(self, function: Function, scaler: str) -> bool:
        """Whether a scaler is made within sight, and nothing there may disable it."""
        made = self.made(function, scaler)
        return bool(made) and all(makes_scaler(m) and _enabled(m) in ("", "True") for m in made)

    def _setting(self, function: Function, scaler: str) -> tuple[Condition | None, list[State]]:
        """When a scaler is active, and the states that a function may start in."""
        made = self.made(function, scaler)
        if len(made) != 1:
            off = bool(made) and all(_enabled(m) == "False" for m in made)
            return (condition("False") if off else None), [State()]
        value = made[0]
        if isinstance(value, ast.IfExp):
            test = condition(self._stored(ast.unparse(value.test), function))
            kinds = [makes_scaler(value.body), makes_scaler(value.orelse)]
            if kinds in ([True, False], [False, True]):
                state, found = State(), []
                for truth in (True, False):
                    taken = state.taking(test, truth)
                    if taken is not None:
                        fact = (scaler, truth == kinds[0])
                        found.append(replace(taken, facts=taken.facts | {fact}))
                return None, found
        text = _enabled(value)
        if not text:
            return None, [State()]
        test = condition(self._stored(text, function))
        effects = self.effects(function)
        if effects and test.keys & weights(effects.steps).keys():
            return test, [*taking([State()], test, True), *taking([State()], test, False)]
        return test, [State()]

    def _stored(self, text: str, function: Function) -> str:
        """An expression of ``__init__`` in terms of the attributes that hold its names."""
        if function.cls is None or function.name == "__init__":
            return text
        names: dict[str, str] = {}
        for attribute, (value, init) in self.module.stores(function.cls).items():
            if isinstance(value, ast.Name) and init is not None:
                names.setdefault(value.id, f"self.{attribute}")
        return substituted(text, tuple(sorted(names.items())))

    # violations

    def protocol(self, function: Function, scaler: str) -> list[Violation]:
        """Violations in one function, for one scaler."""
        return [v for v, f in self.violations() if f is function and v.scaler == scaler]

    def violations(self) -> list[tuple[Violation, Function]]:
        """Every broken step of the protocol in this module, each reported at one place."""
        if self._found is None:
            self._found = []
            runs = self._all()
            for function, run in runs:
                for violation in run.violations:
                    kept = self._kept(violation, run, runs)
                    if kept is not None:
                        self._found.append((self._placed(kept, run), function))
            self._found += self._hooks([run for run in runs if not isinstance(run[1], Wrapped)])
            for function in self.module.index.functions:
                if function.name == AFTER_BACKWARD and (effects := self.effects(function)):
                    found = after_backward(function, effects.steps)
                    self._found += [(violation, function) for violation in found]
            self._found += self._never_updated(runs)
        return self._found

    def _all(self) -> list[tuple[Function, Protocol]]:
        if self._runs is None:
            self._runs = []
            known = objects(self.module.index)
            for function in self._functions():
                for scaler in sorted(self.scalers(function)) if self._drives() else ():
                    effects = self.effects(function)
                    if effects and not called_once(effects.steps):
                        enabled, entry = self._setting(function, scaler)
                        made = owners(function, self)
                        run = Protocol(effects, scaler, enabled, entry, made).run()
                        self._runs.append((function, run))
                effects = self.effects(function)
                if effects is None:
                    continue
                for wrapper in sorted(wrappers(effects.steps, known)):
                    run = Wrapped(effects, wrapper, None, [State()]).run()
                    self._runs.append((function, run))
        return self._runs

    def _functions(self) -> Iterator[Function]:
        index = self.module.index
        if self._drives() or self._leaves():
            yield from (index.top, *index.functions)

    def _drives(self) -> bool:
        """Whether this module calls methods of a scaler."""
        calls = self.module.index.calls
        steps = (call for call, _ in calls.get("step", []))
        return bool({"unscale_", "scale"} & calls.keys()) or any(call.args for call in steps)

    def _leaves(self) -> bool:
        """Whether this module leaves the scaling to a framework."""
        calls = self.module.index.calls
        passes = (call for call, _ in calls.get("backward", []))
        known = {"scale_loss", "manual_backward"}
        return bool(known & calls.keys()) or any(call.args for call in passes)

    @staticmethod
    def _kept(
        violation: Violation, run: Protocol, runs: list[tuple[Function, Protocol]]
    ) -> Violation | None:
        """A violation unless another function reports it, or knows better."""
        inner = violation.inner
        if inner is None:
            return violation
        others = [other for _, other in runs if other is not run]
        if violation.origin is None and violation.first is None:  # its backward is in a caller
            if any(inner.place in other.good for other in others):
                return None
            for other in others:
                if inner.place in other.bad and not violation.depth:
                    return replace(violation, caller=other.bad[inner.place][1])
        if inner.filename is not None:  # both ends in one call: the other file reports it
            first = violation.backward or violation.first
            if violation.kind == PLAIN_BACKWARD:
                first = violation.later
            if first is violation.node:
                return None
        origin = violation.origin.place if violation.origin is not None else None
        for other in others:
            for same in other.violations:
                if same.inner is None or same.inner.place != inner.place:
                    continue
                if same.kind != violation.kind or same.depth >= violation.depth:
                    continue
                if same.origin is None and same.first is None:
                    if any(inner.place in third.good for _, third in runs if third is not other):
                        continue  # dropped there
                    return None
                if (same.origin.place if same.origin is not None else None) == origin:
                    return None
        return violation

    def _placed(self, violation: Violation, run: Protocol) -> Violation:
        """A violation with its place in the innermost helper that knows the scaler itself.

        Such a helper has only one caller; one that is handed gradients is right where it stands,
        and so is one that only reads them.
        """
        inner = violation.inner
        if inner is None or violation.helper is None or violation.kind == READ_SCALED:
            return violation
        around = next((a for s, a in leading(run.effects.steps, lambda s: s is inner)), ())
        calls = [s for s in around if s.kind == fx.INLINE]
        within = None
        for call, inside in zip(calls, [*calls[1:], inner], strict=True):
            if inside.node is None or not self._shares(call, run.scaler):
                break
            within = inside.node
        return violation if within is None else replace(violation, within=within)

    def _shares(self, call: Step, scaler: str) -> bool:
        """Whether a function that is called here only has the scaler of its caller."""
        node = call.node
        name = dotted(node.func) if isinstance(node, ast.Call) else None
        if name is None or not isinstance(node, ast.Call):
            return False
        owner, _, last = name.rpartition(".")
        if len(self.module.index.calls.get(last, [])) != 1:
            return False
        if owner == "self":
            return scaler.startswith("self.")
        given = [*node.args, *(k.value for k in node.keywords)]
        index = self.module.index
        nested = any(
            f.name == last and f.cls is None and f.parent not in (None, index.top)
            for f in index.functions
        )
        return not owner and (any(dotted(g) == scaler for g in given) or nested)

    def _never_updated(
        self, runs: list[tuple[Function, Protocol]]
    ) -> Iterator[tuple[Violation, Function]]:
        """Scalers of a class that step in its methods and are updated nowhere in this module."""
        updates = [call for call, _ in self.module.index.calls.get("update", [])]
        if any(not (call.args or call.keywords) for call in updates):
            return
        if any(violation.kind == UPDATE for violation, _ in self._found or ()):
            return
        for function, run in runs:
            kinds = {s.kind for s in flat(run.effects.steps)}
            mine = [
                s
                for s in fx.sources(run.effects.steps)
                if s.kind == fx.STEP and s.names[0] == run.scaler and s.names[1][:5] == "self."
            ]
            if not mine or fx.BACKWARD not in kinds or kinds & {fx.TAKEN, fx.PERHAPS}:
                continue  # a wrapper, whose user updates
            cls = function.cls
            if cls is None or not all(b.rpartition(".")[2] in KNOWN_BASES for b in cls.bases):
                continue  # a parent's method may update it
            if self.active(function, run.scaler):
                last = mine[-1]
                assert last.node is not None
                yield (
                    Violation(
                        UPDATE, last.node, run.scaler, last.names[1], None, None, (), (), None,
                        False, inner=last, how="never",
                    ),
                    function,
                )  # fmt: skip

    def _hooks(self, runs: list[tuple[Function, Protocol]]) -> list[tuple[Violation, Function]]:
        """Hooks that clip every backward's gradient, where backwards are scaled."""
        found: list[tuple[Violation, Function]] = []
        if not runs:
            return found
        for function in (self.module.index.top, *self.module.index.functions):
            effects = self.effects(function)
            near = [r for f, r in runs if f.cls is function.cls or function.cls is None]
            if not effects or not near:
                continue
            for node, inner, helper in _hooked(effects.steps):
                violation = Violation(
                    CLIP_SCALED, node, near[0].scaler, "", None, None, (), (), helper, False,
                    inner=inner,
                )  # fmt: skip
                found.append((violation, function))
        return found


def _enabled(node: ast.expr) -> str:
    """Text of a new scaler's ``enabled``."""
    if not isinstance(node, ast.Call):
        return ""
    return next((ast.unparse(k.value) for k in node.keywords if k.arg == "enabled"), "")


def _head(text: str) -> str:
    return text.partition(".")[0].partition("[")[0]


def _is_super(node: ast.expr | None) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "super"


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _hooked(steps: Steps) -> Iterator[tuple[ast.expr, Step, Helper | None]]:
    """Hooks that a function registers itself, or through a function of another file."""
    for step in steps:
        if step.kind == fx.HOOK and step.node is not None:
            yield step.node, step, None
        elif step.kind == fx.INLINE and step.node is not None:
            # what calls a function that calls it is that function's affair
            hook = next((s for s in fx.sources(step.blocks[0]) if s.kind == fx.HOOK), None)
            if hook is not None and hook.filename is not None:
                yield step.node, hook, Helper(step.names[0], hook.filename)
        else:
            for block in step.blocks:
                yield from _hooked(block)
