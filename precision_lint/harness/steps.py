"""A finding in a training step as a small module: the user's lines around a small model.

Of the function that does the backward, the step keeps what acts on the scaler, the optimizers and
the gradients, with the calls of its own file put in place.  Models, losses and batches have
stand-ins.  It returns the norm of the gradients that the flagged line meets, and how far the
parameters moved; without a scaler these are the true ones.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping

from precision_lint.harness.cutting import Cutter, Free
from precision_lint.harness.inplace import (
    Block,
    InPlace,
    Renamed,
    acts,
    assign,
    calls,
    every,
    origin,
    protocol,
)
from precision_lint.harness.scope import Scope, dotted, is_region, last_word, stored
from precision_lint.harness.slicing import CannotIsolate, FunctionNode, Slice, functions
from precision_lint.harness.standins import OVERFLOW, TEXT, TURNS, Roles, guess, scaled

DEPTH = 3
"""Calls deep that are put in place."""
COLLECTING = ("append", "extend", "add")
LOOKS = 3
"""What a turn needs of the one before is only known after the first look at it."""
NORM, MOVED = "norm of the gradients there", "movement of the parameters"
"""What a step returns."""


def arms(tree: ast.Module, flagged: ast.stmt) -> dict[str, int]:
    """By its condition, which way of an ``if`` a statement is in: 0, or 1 for ``else``."""
    return {
        ast.unparse(one.test): way
        for one in ast.walk(tree)
        if isinstance(one, ast.If)
        for way, body in enumerate((one.body, one.orelse))
        if any(inner is flagged for inner in every(body))
    }


def step(
    tree: ast.Module,
    flagged: ast.stmt | None,
    home: tuple[str, ...],
    overflow: bool = False,
    taken: Mapping[str, int] | None = None,
) -> Slice:
    """The training step that a statement is in; raises `CannotIsolate`.

    ``flagged``: before it the norm of the gradients is noted, unless it changes them itself.
    ``home``: the path of the function around it.  ``overflow``: a gradient is infinite once, and
    nothing is returned but that the step runs.  ``taken``: the ways that the step takes where a
    condition cannot run and what is flagged is gone (`arms`).
    """
    scope = Scope(tree)
    methods = {path: (function, cls) for path, function, cls in functions(tree)}
    found = []
    for path, (function, cls) in methods.items():
        body = InPlace(methods, cls).block(function.body, DEPTH)
        has = path == home or any(origin(one) is flagged for one in every(body))
        does = [
            bool([c for one in body for c in calls(one, name)]) for name in ("backward", "step")
        ]
        if has and any(does):
            found.append((not does[0], path != home, len(body), path, body, cls, function))
    if not found:
        raise CannotIsolate("no function of the file does the backward or the step around it")
    elsewhere, *_, body, cls, function = min(found, key=lambda one: one[:4])
    if elsewhere:  # its callers, which are not in the file, do the backward
        scaler = next(iter(Roles(scope, body).scalers), "")
        line = f"{scaler and f'{scaler}.scale'}(_objective(_models)).backward()"
        body = [*ast.parse(line).body, *body]
    builder = _Builder(scope, cls, function, body, flagged, taken or {})
    found_step = builder.build(overflow)
    if flagged is not None and not builder.met:
        raise CannotIsolate("what is flagged is no line of the step")
    return found_step


class _Cutter(Cutter):
    """Keeps what acts on stand-ins, and on the variables of loops over them."""

    held: frozenset[str] = frozenset()

    def keeps(self, node: ast.expr) -> bool:
        """Whether a chain begins with one of these."""
        while isinstance(node, (ast.Attribute, ast.Subscript, ast.Call)):
            node = node.func if isinstance(node, ast.Call) else node.value
        return isinstance(node, ast.Name) and (node.id in self.held or self._is_bound(node.id))

    def visit_Call(self, node: ast.Call) -> ast.expr:
        if self.keeps(node.func) and (isinstance(node.func, ast.Attribute) or not node.args):
            return self.generic_visit(node)  # type: ignore[return-value]
        return super().visit_Call(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self.keeps(node):
            return self.generic_visit(node)  # type: ignore[return-value]
        return super().visit_Attribute(node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        if self.keeps(node):
            return self.generic_visit(node)  # type: ignore[return-value]
        return super().visit_Subscript(node)


class _Builder:
    """One step, backwards from its end."""

    def __init__(
        self,
        scope: Scope,
        cls: ast.ClassDef | None,
        function: FunctionNode,
        body: Block,
        flagged: ast.stmt | None,
        taken: Mapping[str, int],
    ) -> None:
        self.scope, self.flagged, self.taken = scope, flagged, taken
        self.roles = Roles(scope, body)
        if not self.roles.scalers or not self.roles.optimizers:
            raise CannotIsolate("the step around it has no GradScaler and optimizer of its own")
        self.models = self.roles.all_models
        self.counters = _counters(body, self.roles)
        names = Renamed({**self.counters, **self.roles.names})
        self.body: Block = [names.visit(one) for one in body]
        self.defaults = _defaults(function)
        for text, name in self.counters.items():
            value = scope.attribute(cls, text[5:]) if cls is not None else None
            if value is not None:
                self.defaults[name] = value
        held = {*self.roles.names.values(), *self.models}
        self.cutter = _Cutter(scope, cls, self._written | _parameters(function) | held)
        self.cutter.held = frozenset(held | _turning(self.body))
        self.turned = self.met = False
        self.counts: set[str] = set()

    def build(self, overflow: bool) -> Slice:
        body: Block = []
        for _ in range(LOOKS):
            self.turned = False
            body = self._block(self.body)
        if not self.turned:
            if not any(calls(one, "zero_grad") for one in body):  # what calls the step clears them
                cleared = [f"{name}.zero_grad()" for name in self.roles.optimizers.values()]
                body = [*ast.parse("\n".join(cleared)).body, *body]
            body = [self._loop(ast.Name("turn", ast.Store()), body)]
        return self._assembled(body, overflow)

    def _block(self, body: Block) -> Block:
        found: Block = []
        for one in reversed(body):
            made = self._one(one)
            self.met |= bool(made) and origin(one) is self.flagged and not isinstance(one, ast.With)
            if made and origin(one) is self.flagged and not acts(one):
                made = [*ast.parse(f"_norms.append(_norm({self._met(one)}))").body, *made]
            found = made + found
        return found

    def _met(self, statement: ast.stmt) -> str:
        """The models whose gradients a statement names; else all."""
        read = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name)}
        found = [one for one in self.models if one in read]
        return f"[{', '.join(found)}]" if found else "_models"

    def _one(self, statement: ast.stmt) -> Block:
        if isinstance(statement, (ast.For, ast.AsyncFor, ast.While)):
            return self._turns(statement)
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            inner = self._block(statement.body)
            contexts = [(one, one.context_expr) for one in statement.items]
            items = [
                one for one, what in contexts if is_region(what) and last_word(what) != "autocast"
            ]
            if not inner or not items:
                return inner
            kept = [ast.withitem(self.cutter.expression(one.context_expr)) for one in items]
            return [ast.With(kept, inner)]
        if isinstance(statement, ast.If):
            flagged: Block = [ast.Pass()] if origin(statement) is self.flagged else []
            return self._branch(statement) or flagged
        if isinstance(statement, ast.Try):
            return self._block(statement.body)
        if isinstance(statement, (ast.Continue, ast.Break)):
            return [statement]
        if isinstance(statement, ast.Pass):
            return [statement] if origin(statement) is self.flagged else []
        if isinstance(statement, ast.FunctionDef):
            return [self.cutter.statement(statement)]
        if isinstance(statement, (ast.Return, ast.Raise)):
            return [ast.Break()] if statement not in self.body else []
        return self._simple(statement)

    def _simple(self, statement: ast.stmt) -> Block:
        losses = set(self.roles.losses.values())
        hits = stored(statement)
        if hits & losses and isinstance(statement, ast.Assign):
            reads = {n.id for n in ast.walk(statement.value) if isinstance(n, ast.Name)}
            if not hits <= reads:
                return ast.parse(f"{min(hits & losses)} = {self._objective(statement.value)}").body
        if hits & {*self.roles.scalers.values(), *self.roles.optimizers.values(), *self.models}:
            return []  # it is built before the loop
        own = origin(statement) is self.flagged
        kinds = (ast.Expr, ast.Assign, ast.AugAssign, ast.AnnAssign)
        wanted = own or protocol([statement]) or hits & self.cutter.needs.names
        if not isinstance(statement, kinds) or not (wanted or self._collects(statement)):
            return []
        value = statement.value
        if isinstance(value, ast.Call) and last_word(value) in COLLECTING and value.args:
            if not self.cutter.keeps(value.func):  # what is collected there is nobody's
                statement = ast.copy_location(ast.Expr(value.args[0]), statement)
        before = dict(self.cutter.needs.free)
        if isinstance(statement, ast.AugAssign):
            self.cutter.needs.names |= hits
            before |= {name: Free(name, name) for name in hits}
        copy = self.cutter.statement(statement)
        if isinstance(copy, ast.Expr) and isinstance(copy.value, ast.Name):
            self.cutter.take_back(before)
            return [ast.Pass()] if own else []
        return [*(line for call in calls(copy, "backward") for line in self._loss(call)), copy]

    def _collects(self, statement: ast.stmt) -> bool:
        """Whether a statement appends to what is needed."""
        value = getattr(statement, "value", None)
        if not isinstance(value, ast.Call) or last_word(value) not in COLLECTING:
            return False
        return dotted(value.func).partition(".")[0] in self.cutter.needs.names

    def _objective(self, value: ast.expr) -> str:
        """A loss of the models that a value is made of; of all where it names none."""
        names: set[str] = set()
        reached = {n.id for n in ast.walk(value) if isinstance(n, ast.Name)}
        while not reached <= names:
            names |= reached
            reached = {
                n.id
                for one in every(self.body)
                if isinstance(one, ast.Assign) and stored(one) & names
                for n in ast.walk(one.value)
                if isinstance(n, ast.Name)
            }
        of = [one for one in self.models if one in names and len(self.roles.losses) > 1]
        return f"_objective([{', '.join(of)}])" if of else "_objective(_models)"

    def _loss(self, call: ast.Call) -> Block:
        """What has to stand before a backward whose loss is made nowhere."""
        given = scaled(call)
        if isinstance(given, ast.Name):
            made = given.id in self._written
            return [] if made else ast.parse(f"{given.id} = _objective(_models)").body
        outer = call.func.value  # type: ignore[attr-defined]
        if isinstance(outer, ast.Call) and outer.args:
            outer.args[0] = ast.parse(self._objective(given), mode="eval").body
        return []

    def _turns(self, loop: ast.For | ast.AsyncFor | ast.While) -> Block:
        inner = self._block(loop.body)
        if not inner:
            return []
        if any(calls(one, "backward") for one in inner):
            if self.turned:
                return [*self._first(loop), *inner]
            self.turned = True
            target = ast.Name("turn", ast.Store())
            if isinstance(loop, ast.For):
                named = loop.target
                counted = isinstance(loop.iter, ast.Call) and last_word(loop.iter)
                if counted == "enumerate" and isinstance(named, ast.Tuple):
                    named = named.elts[0]
                if counted in ("enumerate", "range") and isinstance(named, ast.Name):
                    target = ast.Name(named.id, ast.Store())
            self.counts.add(target.id)
            return [self._loop(target, inner)]
        if isinstance(loop, ast.While):
            return []
        return [ast.For(loop.target, self.cutter.expression(loop.iter), inner, [], lineno=0)]

    @staticmethod
    def _first(loop: ast.For | ast.AsyncFor | ast.While) -> Block:
        """The variable of a loop around the turns, in its first turn."""
        if isinstance(loop, ast.For) and isinstance(loop.target, ast.Name):
            return [assign(loop.target.id, ast.Constant(0))]
        return []

    @staticmethod
    def _loop(target: ast.Name, body: Block) -> ast.stmt:
        turns = ast.parse(f"range({TURNS})", mode="eval").body
        return ast.For(target, turns, body, [], lineno=0)

    def _branch(self, statement: ast.If) -> Block:
        """Both ways where the condition can run, else the one that has what is flagged, or acts."""
        free, names = dict(self.cutter.needs.free), set(self.cutter.needs.names)
        ways = [self._block(way) for way in (statement.body, statement.orelse)]
        if not any(ways):
            return []
        test = self.cutter.expression(statement.test)
        read = {n.id for n in ast.walk(test) if isinstance(n, ast.Name)}
        known = read & (self.cutter.held | self._written | self.counts | self.defaults.keys())
        unknown = (read & self.cutter.needs.free.keys()) - known
        counted = any(isinstance(one, ast.Mod) for one in ast.walk(test))
        if isinstance(test, ast.Constant):
            return ways[0] if test.value else ways[1]
        if counted or (known and not unknown):
            return [ast.If(test, ways[0] or [ast.Pass()], ways[1])]
        self.cutter.take_back(free)
        self.cutter.needs.names.clear()
        self.cutter.needs.names.update(names)
        return self._block(self._chosen(statement))

    @property
    def _written(self) -> set[str]:
        """Names that the body binds."""
        return {name for one in self.body for name in stored(one)}

    def _chosen(self, statement: ast.If) -> Block:
        ways = [statement.body, statement.orelse]
        for way in ways:
            if any(origin(one) is self.flagged for one in every(way)):
                return way
        first = origin(statement)
        text = ast.unparse(first.test) if isinstance(first, ast.If) else ""
        if text in self.taken:
            return ways[self.taken[text]]
        scaled = [way for way in ways if any(calls(one, "scale", "unscale_") for one in way)]
        leaves = (ast.Continue, ast.Break, ast.Return, ast.Raise)
        if not scaled and isinstance(statement.body[-1], leaves):
            return []
        return scaled[0] if scaled else statement.body or statement.orelse

    # the module

    def _assembled(self, body: Block, overflow: bool) -> Slice:
        module = ast.parse(TEXT)
        function = module.body.pop()
        assert isinstance(function, ast.FunctionDef)
        answer = self._answer()
        if overflow:
            module.body += ast.parse(OVERFLOW).body
            answer = ast.parse("return torch.zeros(())").body
            body = [*ast.parse("_batches.clear()").body, *body]
        function.body = [*self.roles.built(), *self._constants(body), *body, *answer]
        carried = self.cutter.needs.carried
        imports = ast.parse("import torch\nfrom torch import nn").body
        carried.imports |= dict(zip(("torch", "nn"), imports, strict=True))
        head = carried.statements(self.scope.order)
        whole = ast.Module([*head, *module.body, function], [])
        ast.fix_missing_locations(whole)
        return Slice(ast.unparse(whole) + "\n", (), function)

    @staticmethod
    def _answer() -> Block:
        text = f"return {{{NORM!r}: _norms, {MOVED!r}: " + (
            "torch.cat([(w - s).detach() for w, s in zip(_weights(_models), _start)])}"
        )
        return ast.parse(text).body

    def _constants(self, body: Block) -> Block:
        """Values for what the step takes from elsewhere."""
        held = {*self.roles.names.values(), *self.models, "_models", "_norms", "_start"}
        bound = {n.id for one in body for n in ast.walk(one) if _stores(n)}  # type: ignore[attr-defined]
        read = {n.id for one in body for n in ast.walk(one) if _loads(n)}  # type: ignore[attr-defined]
        counters = set(self.counters.values())
        found: Block = []
        for name in sorted((self.cutter.needs.free.keys() & read) - held - (bound - counters)):
            value: ast.expr = self.defaults.get(name) or guess(name, body)
            found.append(assign(name, value))
        return found


def _counters(body: Block, roles: Roles) -> dict[str, str]:
    """Attributes of ``self`` that a step changes, as local names."""
    return {
        text: text.replace(".", "_")
        for one in every(body)
        if isinstance(one, (ast.Assign, ast.AugAssign))
        for target in (one.targets if isinstance(one, ast.Assign) else [one.target])
        if (text := dotted(target)).startswith("self.") and text not in roles.names
    }


def _parameters(function: FunctionNode) -> set[str]:
    if isinstance(function, ast.Module):
        return set()
    a = function.args
    return {one.arg for one in (*a.posonlyargs, *a.args, *a.kwonlyargs)}


def _defaults(function: FunctionNode) -> dict[str, ast.expr]:
    """Defaults of parameters that are written out."""
    if isinstance(function, ast.Module):
        return {}
    a = function.args
    positional = [*a.posonlyargs, *a.args]
    pairs = [
        *zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True),
        *zip(a.kwonlyargs, a.kw_defaults, strict=True),
    ]
    return {
        one.arg: value
        for one, value in pairs
        if isinstance(value, ast.Constant) and value.value is not None
    }


def _turning(body: Block) -> set[str]:
    """Variables of loops and comprehensions, and functions."""
    inner = {one.name for one in every(body) if isinstance(one, ast.FunctionDef)}
    return inner | {
        name
        for one in body
        for node in ast.walk(one)
        if isinstance(node, (ast.For, ast.comprehension))
        for name in stored(node.target)
    }


def _stores(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)


def _loads(node: ast.AST) -> bool:
    return isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
