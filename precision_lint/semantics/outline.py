"""From a function's code to its steps: what it does to gradients, optimizers and scalers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from precision_lint.semantics import effects as fx
from precision_lint.semantics.bindings import (
    OWN_STEP,
    aliases,
    catches,
    catches_all,
    counter,
    divisors,
    drives,
    exits,
    held_by,
    is_place,
    makes_scaler,
    may_step,
    names_scaler,
    own_nodes,
    plainness,
    rows,
    stored,
    targets,
)
from precision_lint.semantics.conditions import substituted
from precision_lint.semantics.effects import Effects, Step, Steps
from precision_lint.semantics.frameworks import MANUAL, scaled_within
from precision_lint.semantics.gradients import (
    CLIP_NAME,
    EXACT_CLIPS,
    EXACT_READS,
    INSPECTS,
    NOT_READ,
    READS_NAME,
    bind,
    carries,
    clamped,
    cleared,
    masks,
    read,
    scrubbed,
    unscales,
    within,
)
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.ownership import clipped, holds_optimizers
from precision_lint.semantics.unseen import (
    ABOUT,
    HANDS_BACK,
    INSPECTING,
    KNOWN_HOMES,
    METHODS,
    WORTH,
)

if TYPE_CHECKING:
    from precision_lint.semantics.typestate import Typestate

Bound = dict[str, str]


class Outline:
    """Steps of one function; ``state`` gives the effects of what it calls."""

    def __init__(self, function: Function, state: Typestate) -> None:
        self.function = function
        self.state = state
        self.module = state.module
        self.held: Bound = {}
        self.items: dict[str, str] = {}
        """Targets of loops, each with the container that its loop runs through."""
        self.aliases = aliases(function)
        self.scalers = self._scalers()
        self.divisors = divisors(function)
        parameters = [p.arg for p in function.parameters()]
        for name in parameters:
            if name != "self" and (INSPECTING.search(function.name) or INSPECTING.search(name)):
                self.held[name] = name

    def effects(self) -> Effects:
        function = self.function
        steps = fx.pruned(self.block(function.node.body))
        events = [s for s in fx.flat(steps) if s.kind not in _QUIET]
        if not events or len(events) > fx.LIMIT:
            steps = ()
        names = [p.arg for p in function.parameters()]
        method = function.is_method and names[:1] in (["self"], ["cls"])
        defaults = tuple(
            (name, ast.unparse(value))
            for name, value in function.defaults().items()
            if isinstance(value, ast.Constant)
        )
        local = tuple(sorted(stored(function))) if steps else ()
        return Effects(function.name, tuple(names[method:]), defaults, local, method, steps)

    # statements

    def block(self, body: Iterable[ast.stmt]) -> Steps:
        return tuple(step for statement in body for step in self.statement(statement))

    def statement(self, node: ast.stmt) -> Steps:
        match node:
            case ast.If(test=test, body=body, orelse=orelse):
                before = dict(self.held)
                head = self.expression(test)
                then = self.block(body)
                after, self.held = self.held, before
                other = self.block(orelse)
                self.held = {**self.held, **after}
                return (*head, *self.branch(test, then, other))
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                head = self.expression(iterable)
                clearing = cleared(node)
                if clearing is not None:
                    whose, where = clearing
                    return (*head, self.at(where, fx.ZERO, self.text(whose), "*"))
                bind(target, carries(iterable, self.held), self.held)
                return (*head, *self.loop(node, target, iterable))
            case ast.While(test=test, body=body, orelse=orelse):
                head = self.expression(test)
                inner, other = (*self.block(body), *self.expression(test)), self.block(orelse)
                if not inner and not other:
                    return head
                names = (self.text(test), *self.changed(node))
                return (*head, Step(fx.LOOP, names, (inner, other)))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                head = tuple(s for item in items for s in self.expression(item.context_expr))
                steps = self.block(body)
                callees = [i.context_expr for i in items if isinstance(i.context_expr, ast.Call)]
                if any((dotted(c.func) or "").endswith("suppress") for c in callees):
                    return (*head, Step(fx.TRY, (fx.attempted(steps),), (steps, (), ())))
                return (*head, *scaled_within(items, steps))
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                inner = self.block(body)
                caught = fx.attempted(inner) if any(map(catches, handlers)) else ""
                blocks = [(*inner, *self.block(orelse)), self.block(final)]
                blocks += [self.block(handler.body) for handler in handlers]
                return (Step(fx.TRY, (caught,), tuple(blocks)),)
            case ast.Match(subject=subject, cases=cases):
                head = self.expression(subject)
                blocks = [self.block(case.body) for case in cases]
                if not any(catches_all(case) for case in cases):
                    blocks.append(())
                return (*head, Step(fx.MATCH, (), tuple(blocks)))
            case ast.Return(value=value):
                return (*(self.expression(value) if value else ()), Step(fx.RETURN))
            case ast.Raise():
                return (Step(fx.RAISE),)
            case ast.Continue():
                return (Step(fx.CONTINUE),)
            case ast.Break():
                return (Step(fx.BREAK),)
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                return ()
            case ast.Assign(targets=targets, value=value):
                return (*self.assign(targets, value), *self.reads(node, value))
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                return self.assign([target], value)
            case ast.AugAssign(target=target, value=value):
                steps = (*self.expression(value), *self.reads(node, target))
                origin = carries(value, self.held)
                if origin is not None:
                    bind(target, origin, self.held)
                one = isinstance(value, ast.Constant) and value.value == 1
                up = one and isinstance(node.op, ast.Add)
                return (*steps, *self.bound(target, "+1" if up else ""))
            case ast.Assert(test=test):
                return (*self.expression(test), *self.branch(test, (), (Step(fx.RAISE),)))
            case ast.Expr(value=value) if exits(value):
                return (*self.expression(value), Step(fx.RETURN))
            case _:
                children = ast.iter_child_nodes(node)
                return tuple(
                    s for c in children if isinstance(c, ast.expr) for s in self.expression(c)
                )

    def branch(self, test: ast.expr, then: Steps, other: Steps) -> Steps:
        return (Step(fx.IF, (self.text(test),), (then, other)),) if then or other else ()

    def loop(self, node: ast.For | ast.AsyncFor, target: ast.expr, iterable: ast.expr) -> Steps:
        container = held_by(iterable)
        item = target.elts[-1] if isinstance(target, ast.Tuple) and target.elts else target
        if container is not None and isinstance(item, ast.Name):
            self.items[item.id] = self.text(container)
        body, orelse = self.block(node.body), self.block(node.orelse)
        if not body and not orelse:
            return ()
        table = rows(target, iterable)
        if not table:
            return (Step(fx.LOOP, ("", *self.changed(node)), (body, orelse)),)
        rounds = [fx.renamed(body, {k: self.text(v) for k, v in row.items()}) for row in table]
        return (Step(fx.UNROLLED, (), (orelse, *rounds)),)

    def changed(self, node: ast.stmt) -> tuple[str, ...]:
        """Names that one more iteration binds anew; ``+i`` counts up."""
        found = []
        for body in (node.target, *node.body) if isinstance(node, (ast.For, ast.AsyncFor)) else ():
            found += [self.text(t) for t in targets(body)]
        counts = counter(node)
        if counts is None or found.count(counts) != 1:
            return tuple(sorted(set(found)))
        return tuple(sorted({*found, f"+{counts}"} - {counts}))

    def assign(self, targets: list[ast.expr], value: ast.expr) -> Steps:
        if isinstance(value, ast.IfExp):
            head = self.expression(value.test)
            then, other = self.assign(targets, value.body), self.assign(targets, value.orelse)
            bind(targets[0], carries(value, self.held), self.held)
            return (*head, *self.branch(value.test, then, other))
        steps = self.expression(value)
        if isinstance(targets[0], ast.Subscript) and masks(targets[0], self.held):
            return (*steps, self.at(targets[0], fx.SCRUB, "", ""))
        scaled = self.scaled_by(value)
        truth = ""
        if isinstance(value, ast.Constant) and (value.value is None or type(value.value) is bool):
            truth = str(bool(value.value))
        elif makes_scaler(value):
            truth = "new"
        elif isinstance(value, (ast.Compare, ast.BoolOp)) or (
            isinstance(value, ast.UnaryOp) and isinstance(value.op, ast.Not)
        ):
            truth = self.text(value)
        for target in targets:
            if isinstance(target, (ast.Tuple, ast.List)) and isinstance(value, ast.Tuple):
                if len(target.elts) == len(value.elts):
                    for item, part in zip(target.elts, value.elts, strict=True):
                        bind(item, carries(part, self.held), self.held)
                        steps += self.bound(item, "")
                    continue
            bind(target, carries(value, self.held), self.held)
            steps += self.bound(target, truth)
            if scaled is not None and isinstance(target, (ast.Name, ast.Attribute)):
                steps += (Step(fx.SCALED, (self.text(target), scaled)),)
        return steps

    def bound(self, target: ast.expr, truth: str) -> Steps:
        if isinstance(target, (ast.Tuple, ast.List)):
            return tuple(s for item in target.elts for s in self.bound(item, ""))
        if isinstance(target, (ast.Name, ast.Attribute)) and dotted(target):
            if isinstance(target, ast.Name) and target.id in self.aliases:
                return ()
            return (Step(fx.BIND, (self.text(target), truth)),)
        return ()

    # expressions, in order of evaluation

    def expression(self, node: ast.expr, reading: bool = True) -> Steps:
        match node:
            case ast.Lambda():
                return ()
            case ast.IfExp(test=test, body=body, orelse=orelse):
                then, other = self.expression(body, reading), self.expression(orelse, reading)
                return (*self.expression(test, reading), *self.branch(test, then, other))
            case ast.BoolOp(op=op, values=[first, *rest]):
                steps = self.expression(first, reading)
                if not rest:
                    return steps
                remaining = rest[0] if len(rest) == 1 else ast.BoolOp(op, rest)
                after = self.expression(remaining, reading)
                if not after:
                    return steps
                if isinstance(op, ast.And):
                    return (*steps, *self.branch(first, after, ()))
                return (*steps, *self.branch(first, (), after))
            case ast.ListComp() | ast.SetComp() | ast.GeneratorExp() | ast.DictComp():
                outside, self.held = self.held, dict(self.held)
                steps = ()
                for generator in node.generators:
                    steps += self.expression(generator.iter, reading)
                    within([generator], self.held)
                    for test in generator.ifs:
                        steps += self.expression(test, reading)
                parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
                for part in parts:
                    steps += self.expression(part, reading)
                if reading:
                    steps += self.reads(node, node)
                self.held = outside
                return steps
            case ast.NamedExpr(target=target, value=value):
                steps = self.expression(value, reading)
                bind(target, carries(value, self.held), self.held)
                return (*steps, *self.bound(target, ""))
        origin = read(node, self.held) if reading else None
        inner = reading and origin is None
        steps = ()
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.keyword):
                child = child.value
            if isinstance(child, ast.expr):
                steps += self.expression(child, inner)
        if isinstance(node, ast.BinOp):  # g.norm() / scaler.get_scale() knows what it does
            steps = tuple(sorted(steps, key=lambda s: s.kind != fx.KNOWN))
        if isinstance(node, ast.Call):
            done = self.call(node, origin is not None)
            if any(s.kind in (fx.CLIP, fx.SCRUB) for s in done):  # what it computes for itself
                steps = tuple(s for s in steps if s.kind != fx.READ)
            steps += done
        if origin is not None:
            steps += (self.at(node, fx.READ, origin, ""),)
        return steps

    def reads(self, node: ast.AST, place: ast.expr) -> Steps:
        origin = read(node, self.held)
        return () if origin is None else (self.at(place, fx.READ, origin, ""),)

    def at(self, node: ast.expr, kind: str, *names: str) -> Step:
        return Step(kind, names, (), node, node.lineno, node.col_offset)

    def text(self, node: ast.expr) -> str:
        """Source text, with local aliases of attributes and properties written out."""
        text = self.state.text(node)
        if self.aliases:
            text = substituted(text, tuple(sorted(self.aliases.items())))
        if text.startswith("self.") and self.function.cls is not None:
            head, _, rest = text[5:].partition(".")
            real = self.state.property_of(self.function.cls, head)
            if real is not None:
                return f"{real}.{rest}" if rest else real
        return text

    def _scalers(self) -> set[str]:
        """Texts of what this function plainly uses as a GradScaler."""
        found = set()
        for node in own_nodes(self.function):
            if isinstance(node, ast.Assign) and makes_scaler(node.value):
                found |= {self.text(t) for t in node.targets if dotted(t)}
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner, last = node.func.value, node.func.attr
            if last == "backward":
                scaler = self.scaled_by(owner)
                found |= {scaler} if scaler is not None else set()
            elif last in ("unscale_", "scale", "step", "update") and is_place(owner):
                text = self.text(owner)
                used = bool(node.args) or last == "update"
                if last == "unscale_" or (used and names_scaler(text)):
                    found.add(text)
        found |= {p.arg for p in self.function.parameters() if names_scaler(p.arg)}
        return found

    def scaled_by(self, node: ast.expr) -> str | None:
        """The scaler of ``scaler.scale(loss)``."""
        if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
            node = node.elts[0]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr == "scale" and node.args and is_place(node.func.value):
                return self.text(node.func.value)
        return None

    # calls

    def call(self, node: ast.Call, is_read: bool) -> Steps:
        callee = node.func
        last = callee.attr if isinstance(callee, ast.Attribute) else getattr(callee, "id", "")
        owner = callee.value if isinstance(callee, ast.Attribute) else None
        resolved = self.state.resolve(node, self.function)
        if resolved is not None and (resolved[0] or last not in METHODS):
            own = owner is not None and last in METHODS and names_scaler(self.text(owner))
            if not own or drives(resolved[0]):
                return self.inlined(node, *resolved)
            if not self.state.is_grad_scaler(node, self.function):  # its protocol is its own
                return (*self.inlined(node, *resolved), self.at(node, fx.PERHAPS))
        if last == "manual_backward":
            return (self.at(node, fx.PERHAPS), self.at(node, fx.BACKWARD, "", MANUAL, ""))
        if last == "backward" and owner is not None:
            if dotted(callee) == "torch.autograd.backward" and node.args:
                owner = node.args[0]
            scaler = self.scaled_by(owner)
            if scaler is not None:
                return (self.at(node, fx.BACKWARD, scaler),)
            plain = plainness(node, owner, self.function)
            return (self.at(node, fx.BACKWARD, "", self.text(owner), plain),)
        if owner is not None and is_place(owner):
            found = self.method(node, last, self.text(owner))
            if found is not None:
                return found
        if last in ("append", "extend", "add") and owner is not None and node.args:
            origin = carries(node.args[0], self.held)
            if origin is not None:
                bind(owner, origin, self.held)
            return ()
        if last == "register_hook" and node.args and self.clips(node.args[0]):
            return (self.at(node, fx.HOOK),)
        return self.helper(node, last, owner, is_read)

    def method(self, node: ast.Call, last: str, owner: str) -> Steps | None:
        """Steps of a method of a scaler or an optimizer."""
        first = self.text(node.args[0]) if node.args else ""
        if last == "unscale_gradients":
            return (self.at(node, fx.SELF_CLIP),)
        if last == "unscale_":
            return (self.at(node, fx.UNSCALE, owner, first),)
        if last == "zero_grad":
            return (self.at(node, fx.ZERO, owner),)
        if last == "step" and node.args and "sched" not in owner.lower():
            return (self.at(node, fx.STEP, owner, first),)
        if last == "update" and (owner in self.scalers or not (node.args or node.keywords)):
            return (self.at(node, fx.UPDATE, owner),)
        if owner in self.scalers:
            if last in ("get_scale", "_get_scale_async"):
                return (self.at(node, fx.KNOWN, owner),) if id(node) in self.divisors else ()
            return ()
        own = OWN_STEP.fullmatch(last) and "opt" in owner.lower()
        if own or (last == "step" and not node.args and "sched" not in owner.lower()):
            container = self.items.get(owner)
            item = container is not None and holds_optimizers(container, self.function, self.module)
            return (self.at(node, fx.PLAIN_STEP, owner, *("*" if item else "")),)
        return None

    def clips(self, callback: ast.expr) -> bool:
        """Whether a hook clips the gradient it is given."""
        body: ast.AST = callback
        path = dotted(callback)
        if path is not None:
            found = self.module.index.function_named(path, self.function)
            if found is None:
                return False
            body = found.node
        calls = (n for n in ast.walk(body) if isinstance(n, ast.Call))
        return any(re.search(r"clamp|clip", dotted(n.func) or "") for n in calls)

    def inlined(self, node: ast.Call, effects: Effects, receiver: str | None) -> Steps:
        """What a called function does, in this function's terms."""
        if not effects:
            return ()
        carried: Bound = {}
        given = [*zip(effects.parameters, node.args, strict=False)]
        given += [(k.arg, k.value) for k in node.keywords if k.arg]
        for name, argument in given:
            origin = carries(argument, self.held)
            if origin is not None:
                carried[name] = origin
        arguments = [self.text(a) for a in node.args if not isinstance(a, ast.Starred)]
        keywords = {k.arg: self.text(k.value) for k in node.keywords if k.arg}
        place = self.at(node, fx.INLINE)
        return (effects.called(arguments, keywords, receiver, carried, place),)

    def helper(self, node: ast.Call, last: str, owner: ast.expr | None, is_read: bool) -> Steps:
        """Steps of a function whose code isn't at hand."""
        guess = self.guess(node, last, owner, is_read)
        qualified = self.module.index.names.qualify(node.func)
        if qualified is not None and qualified.partition(".")[0] not in KNOWN_HOMES:
            texts = [self.text(a) for a in node.args if not isinstance(a, ast.Starred)]
            texts += [f"{k.arg}={self.text(k.value)}" for k in node.keywords if k.arg]
            if ABOUT.search(last) and any(WORTH.search(t) for t in texts):
                place = self.at(node, fx.CALL, qualified, *texts)
                return (Step(place.kind, place.names, (guess,), node, place.row, place.column),)
        return guess

    def guess(self, node: ast.Call, last: str, owner: ast.expr | None, is_read: bool) -> Steps:
        """What a function does whose code isn't at hand, by its name and arguments."""
        path = (dotted(owner) or "").lower() if owner is not None else ""
        handed = [*node.args, *(k.value for k in node.keywords)]
        taken = [self.text(a) for a in handed if self.scalers and dotted(a)]
        taken = [text for text in taken if text in self.scalers]
        if last[:1].isupper() or last in HANDS_BACK or last.endswith("state_dict"):
            taken = []
        origin = clamped(node, self.held)
        if origin is not None:
            return (self.at(node, fx.CLIP, origin, ""),)
        origin = scrubbed(node, self.held)
        if origin is not None:
            return (self.at(node, fx.SCRUB, origin, ""),)
        if CLIP_NAME.search(last):
            if unscales(last, path, handed) or self.state.is_lightning(self.function, owner):
                return (self.at(node, fx.SELF_CLIP),)
            if any("master_params" in ast.unparse(a) for a in handed):  # apex unscales by itself
                return ()
            if taken:
                return tuple(self.at(node, fx.TAKEN, name) for name in taken)
            given = clipped(node, self.function)
            return (self.at(node, fx.CLIP, "", "" if last in EXACT_CLIPS else "guess", given),)
        if taken:
            return tuple(self.at(node, fx.TAKEN, name) for name in taken)
        if is_read:
            return ()
        if last in EXACT_READS or (READS_NAME.search(last) and not NOT_READ.search(last)):
            return (self.at(node, fx.READ, "", "" if last in EXACT_READS else "guess"),)
        if INSPECTS.search(last):
            carried = [carries(a, self.held) for a in node.args]
            found = next((c for c in carried if c is not None), None)
            if found is not None:
                return (self.at(node, fx.READ, found, "guess"),)
        own = owner is None or path == "self" or isinstance(owner, ast.Call)
        return (self.at(node, fx.PERHAPS),) if may_step(last, own) else ()


_QUIET = fx.CONTROL | fx.LEAVING | {fx.BIND, fx.INLINE}
