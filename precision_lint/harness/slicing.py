"""A finding as a small module: the flagged expression as a function of its free tensors.

Backwards from the statement of the finding, the slice takes the local definitions that it needs,
the autocast regions around it, and of the module the constants and functions that these use.
Everything else (parameters, attributes, results of calls that cannot run alone) becomes an input.
The text that the fix leaves is sliced at the same place.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from precision_lint.harness.cutting import Cutter, Free, WouldLose
from precision_lint.harness.scope import (
    Scope,
    called,
    dotted,
    is_region,
    last_word,
    loaded,
    replaced,
    stored,
)

NAME = "isolated"
"""What the function of a slice is called."""
FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.Module
Step = tuple[str, int | None]
"""One step down a tree: a field, and an index where it is a list."""


class CannotIsolate(Exception):
    """Why a finding cannot be run alone, in a few words."""


@dataclass(frozen=True)
class Place:
    """A finding in a tree: the function around it, its statement, and the way to the expression
    that is observed; an empty way observes the whole statement."""

    function: tuple[str, ...]
    statement: int
    key: str
    way: tuple[Step, ...] = ()
    layers: frozenset[str] = frozenset()
    turns: bool = False
    """Loops on the way are run, all turns of them."""


@dataclass(frozen=True)
class Slice:
    """A module that defines `NAME`, and its inputs in the order of the parameters."""

    text: str
    inputs: tuple[Free, ...]
    function: ast.FunctionDef


def functions(
    tree: ast.Module,
) -> Iterator[tuple[tuple[str, ...], FunctionNode, ast.ClassDef | None]]:
    """Every function with its path of names, and the class that its ``self`` is of."""
    yield (), tree, None
    seen: dict[tuple[str, ...], int] = {}
    stack: list[tuple[ast.AST, tuple[str, ...], ast.ClassDef | None]] = [(tree, (), None)]
    while stack:
        node, path, cls = stack.pop(0)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.ClassDef):
                stack.append((child, (*path, child.name), child))
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
                here = (*path, child.name)
                count = seen[here] = seen.get(here, 0) + 1
                here = here if count == 1 else (*path, f"{child.name}#{count}")
                yield here, child, cls
                stack.append((child, here, cls))
            else:
                stack.append((child, path, cls))


def statements(function: FunctionNode) -> list[ast.stmt]:
    """The statements of a function in the order of the text, those of inner functions left out."""
    found: list[ast.stmt] = []
    for statement in function.body:
        _collect(statement, found)
    return found


def _collect(statement: ast.stmt, found: list[ast.stmt]) -> None:
    found.append(statement)
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return
    for block in blocks(statement):
        for inner in block:
            _collect(inner, found)


def blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """The bodies of a compound statement."""
    found = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    found += [handler.body for handler in getattr(statement, "handlers", [])]
    return [block for block in found if isinstance(block, list) and block]


def _key(statement: ast.stmt) -> str:
    """What is the same of a statement before and after a fix."""
    targets: Sequence[ast.expr] = ()
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, (ast.AugAssign, ast.AnnAssign, ast.For)):
        targets = [statement.target]
    elif isinstance(statement, ast.Expr):
        targets = [statement.value.func] if isinstance(statement.value, ast.Call) else ()
    return " ".join([type(statement).__name__, *map(ast.unparse, targets)])


def value_of(statement: ast.stmt) -> ast.expr:
    """The expression that a statement computes."""
    for name in ("value", "test", "iter", "exc"):
        found = getattr(statement, name, None)
        if isinstance(found, ast.expr):
            return found
    raise CannotIsolate(f"the statement ({type(statement).__name__.lower()}) computes no value")


def locate(tree: ast.Module, flagged: ast.AST) -> Place:
    """Where an expression or a statement of a tree is, and which layer it calls."""
    best: Place | None = None
    for path, function, _ in functions(tree):
        for number, statement in enumerate(statements(function)):
            heads = _heads(statement)
            if statement is flagged or any(
                node is flagged for head in heads for node in ast.walk(head)
            ):
                best = Place(path, number, _key(statement))
    if best is None:
        raise CannotIsolate("it is in no statement of a function (a default or a decorator)")
    layers = set()
    if isinstance(flagged, ast.Call) and isinstance(flagged.func, ast.Attribute):
        if dotted(flagged.func) == f"self.{flagged.func.attr}":
            layers = {flagged.func.attr}
    return Place(best.function, best.statement, best.key, (), frozenset(layers))


def _heads(statement: ast.stmt) -> list[ast.AST]:
    """A statement without the statements inside it."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return []
    inner = {id(one) for block in blocks(statement) for one in block}
    handlers = {id(one) for one in getattr(statement, "handlers", [])}
    return [n for n in ast.iter_child_nodes(statement) if id(n) not in inner | handlers]


def follow(place: Place, before: ast.Module, after: ast.Module) -> Place:
    """The same place in the tree that a fix left."""
    old, new = _function(before, place.function)[0], _function(after, place.function)[0]
    keys = [[_key(one) for one in statements(function)] for function in (old, new)]
    matcher = difflib.SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    for block in matcher.get_matching_blocks():
        if block.a <= place.statement < block.a + block.size:
            return replace(place, statement=block.b + place.statement - block.a)
    raise CannotIsolate("the fix replaces the statement")


def place_of(path: tuple[str, ...], number: int, statement: ast.stmt) -> Place:
    """The place of a whole statement."""
    return Place(path, number, _key(statement))


def statement_at(tree: ast.Module, place: Place) -> ast.stmt:
    """The statement at a place."""
    return statements(_function(tree, place.function)[0])[place.statement]


def onward(tree: ast.Module, place: Place, whole: bool = False) -> Place:
    """Where a function returns what a place contributes to; raises `CannotIsolate`.

    What is flagged may only be the cause: a guard that is too small, a mask, a region.
    ``whole``: with the loops and the layers on the way, which is more than may run.
    """
    taken = statements(_function(tree, place.function)[0])[place.statement :]
    later = taken[1:]
    returns = [one for one in later if isinstance(one, ast.Return) and one.value is not None]
    values = [one for one in later if isinstance(one, (ast.Assign, ast.AugAssign))]
    target = (returns[:1] or values[-1:] or [None])[0]
    if target is None:
        raise CannotIsolate("nothing is computed from it in its function")
    number = place.statement + 1 + next(i for i, one in enumerate(later) if one is target)
    layers = {
        node.func.attr
        for one in (taken[: number - place.statement + 1] if whole else [target])
        for node in ast.walk(one)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and dotted(node.func) == f"self.{node.func.attr}"
    }
    return Place(place.function, number, _key(target), (), place.layers | layers, whole)


def _function(tree: ast.Module, path: tuple[str, ...]) -> tuple[FunctionNode, ast.ClassDef | None]:
    for found, function, cls in functions(tree):
        if found == path:
            return function, cls
    raise CannotIsolate("the fix removes the function")


def cut(
    tree: ast.Module,
    place: Place,
    flagged: ast.expr | None = None,
    branches: bool = False,
    narrow: bool = False,
) -> tuple[Slice, Place]:
    """The slice at a place, and the place with the way to what it observes.

    ``flagged`` must be part of it, or with ``narrow`` all of it.  Without it, the place says what
    is observed.  ``branches``: enter an earlier ``if`` that redefines a name,
    rather than pass it.  Raises `CannotIsolate`.
    """
    function, cls = _function(tree, place.function)
    return _Slicer(Scope(tree), function, cls, place, branches).run(flagged, narrow)


class _Slicer:
    def __init__(
        self,
        scope: Scope,
        function: FunctionNode,
        cls: ast.ClassDef | None,
        place: Place,
        branches: bool,
    ) -> None:
        self.scope, self.function, self.place, self.branches = scope, function, place, branches
        self.arguments: list[ast.arg] = []
        locals_ = {n for one in function.body for n in stored(one)}
        if isinstance(function, ast.Module):
            locals_ -= set(scope.classes)
        else:
            a = function.args
            self.arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs]
            self.arguments += [one for one in (a.vararg, a.kwarg) if one is not None]
            locals_ |= {one.arg for one in self.arguments}
        self.cutter = Cutter(scope, cls, locals_, place.layers)
        self._inputs: set[str] = set()

    @property
    def needed(self) -> set[str]:
        """Local names that what was taken so far asks for."""
        return self.cutter.needs.names

    def run(self, flagged: ast.expr | None, narrow: bool) -> tuple[Slice, Place]:
        target = statements(self.function)[self.place.statement]
        observed, way = self._observe(
            value_of(target), flagged, isinstance(target, ast.Expr), narrow
        )
        chain = _chain(self.function.body, target)
        body: list[ast.stmt] = [ast.Return(observed)]
        for block, inner in reversed(chain):
            here = next(i for i, one in enumerate(block) if one is inner)
            if inner is not target:
                body = self._around(inner, body)
            body = self._earlier(block[:here]) + body
        for decorator in getattr(self.function, "decorator_list", []):
            if is_region(decorator):
                body = self._region([ast.withitem(called(decorator))], body)
        return self._assemble(body), replace(self.place, way=way)

    def _observe(
        self, value: ast.expr, flagged: ast.expr | None, discarded: bool, narrow: bool
    ) -> tuple[ast.expr, tuple[Step, ...]]:
        """The widest part of a statement's value that runs and has the flagged expression."""
        way: list[Step] = []
        if flagged is None:
            for field, index in self.place.way:
                found = getattr(value, field, None)
                value = found[index] if isinstance(found, list) and index is not None else found  # type: ignore[assignment]
                if not isinstance(value, ast.expr):
                    raise CannotIsolate("the fix replaces the expression")
            return self.cutter.expression(value), self.place.way
        if discarded and value is not flagged:  # ``losses.append(...)``: what matters is passed
            value = self._down(value, flagged, way)
        while narrow and value is not flagged:
            value = self._down(value, flagged, way)
        while True:
            try:
                return self.cutter.expression(value, flagged), tuple(way)
            except WouldLose:
                self.cutter.forget()
            if value is flagged:
                raise CannotIsolate(
                    f"it calls {ast.unparse(getattr(flagged, 'func', flagged))[:60]}, which cannot "
                    "run alone"
                )
            value = self._down(value, flagged, way)

    @staticmethod
    def _down(value: ast.expr, flagged: ast.expr, way: list[Step]) -> ast.expr:
        stack: list[tuple[ast.AST, tuple[Step, ...]]] = [(value, ())]
        while stack:
            node, path = stack.pop(0)
            if node is not value and isinstance(node, ast.expr):
                if any(one is flagged for one in ast.walk(node)):
                    way += path
                    return node
                continue
            for field, found in ast.iter_fields(node):
                items = enumerate(found) if isinstance(found, list) else [(None, found)]
                stack += [
                    (item, (*path, (field, index)))
                    for index, item in items
                    if isinstance(item, ast.AST)
                ]
        raise CannotIsolate("it is part of no expression that runs")

    # statements around and before

    def _around(self, statement: ast.stmt, body: list[ast.stmt]) -> list[ast.stmt]:
        """What a compound statement means for the part of it that was taken."""
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            return self._region([i for i in statement.items if is_region(i.context_expr)], body)
        if isinstance(statement, (ast.For, ast.AsyncFor)):
            return self._first_turn(statement) + body
        return body

    def _region(self, items: list[ast.withitem], body: list[ast.stmt]) -> list[ast.stmt]:
        if not items:
            return body
        kept = [ast.withitem(self.cutter.expression(item.context_expr)) for item in items]
        return [ast.With(kept, body)]

    def _first_turn(self, loop: ast.For | ast.AsyncFor) -> list[ast.stmt]:
        """Loop variables that count get their first value; others stay inputs."""
        target, count = loop.target, loop.iter
        if isinstance(count, ast.Call) and last_word(count) == "enumerate":
            if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
                target, first = target.elts[0], ast.Constant(0)
            else:
                return []
        elif isinstance(count, ast.Call) and last_word(count) == "range":
            first = ast.Constant(0)
            if len(count.args) > 1:
                first = self.cutter.expression(count.args[0])  # type: ignore[assignment]
        else:
            return []
        if not isinstance(target, ast.Name) or target.id not in self.needed:
            return []
        self.needed.discard(target.id)
        return [ast.Assign([ast.Name(target.id, ast.Store())], first, lineno=0)]

    def _earlier(self, before: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The part of earlier statements that what was taken needs."""
        body: list[ast.stmt] = []
        for index in range(len(before) - 1, -1, -1):
            body = self._one(before[index], before[:index]) + body
        return body

    def _one(self, statement: ast.stmt, before: Sequence[ast.stmt]) -> list[ast.stmt]:
        hits = stored(statement) & self.needed
        if isinstance(statement, (ast.With, ast.AsyncWith)):
            inner = self._earlier(statement.body)
            items = [i for i in statement.items if is_region(i.context_expr)]
            return self._region(items, inner) if inner else []
        if isinstance(statement, ast.If):
            return self._branch(statement, hits, before)
        if isinstance(statement, ast.Try):
            return self._earlier(statement.body)
        if isinstance(statement, ast.For) and self.place.turns and hits:
            return [self._loop(statement)]
        if isinstance(statement, ast.Assert):
            return self._guard(statement, statement.test)
        if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            return self._assignment(statement, hits)
        if isinstance(statement, ast.FunctionDef) and hits:
            self.needed.difference_update(hits)
            return [self.cutter.statement(statement)]
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            func = statement.value.func
            changes = isinstance(func, ast.Attribute) and (
                (func.attr.endswith("_") and not func.attr.startswith("_"))
                or func.attr in ("append", "extend", "insert")
            )
            if changes and dotted(func).partition(".")[0] in self.needed:
                return [self.cutter.statement(statement)]
        return []

    def _loop(self, loop: ast.For) -> ast.stmt:
        """All turns; what only one turn knows is none of the slice's inputs."""
        inner = stored(loop) - self.needed
        copy = self.cutter.statement(loop)
        self.needed.difference_update(inner)
        return copy

    def _guard(self, statement: ast.stmt, test: ast.expr) -> list[ast.stmt]:
        """A condition on what is needed, which the shapes then meet."""
        names = loaded(test) & self.cutter.locals
        if not names or not names <= self.needed:
            return []
        return [self.cutter.statement(statement)]

    def _branch(
        self, statement: ast.If, hits: set[str], before: Sequence[ast.stmt]
    ) -> list[ast.stmt]:
        if len(statement.body) == 1 and isinstance(statement.body[0], ast.Raise):
            return self._guard(statement, statement.test) if not statement.orelse else []
        if not hits:
            return []
        elsewhere = {one.arg for one in self.arguments}.union(*map(stored, before), set())
        if not self.branches and hits <= elsewhere:
            return []
        one, other = statement.body, statement.orelse
        taken = max((one, other), key=lambda b: len(set().union(*map(stored, b), set()) & hits))
        return self._earlier(taken)

    def _assignment(
        self, statement: ast.Assign | ast.AnnAssign | ast.AugAssign, hits: set[str]
    ) -> list[ast.stmt]:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        inside = {dotted(t.value) for t in targets if isinstance(t, ast.Subscript)} & self.needed
        if statement.value is None or not hits | inside:
            return []
        free = dict(self.cutter.needs.free)
        needed = set(self.needed)
        kept = isinstance(statement, ast.AugAssign)
        kills = set() if kept else {n.id for t in targets for n in replaced(t)}
        for name in kills:  # an input by this name is what is read here, not later
            self.cutter.needs.free.pop(name, None)
        copy = self.cutter.statement(statement)
        value = copy.value  # type: ignore[attr-defined]
        made = self.cutter.needs.free.keys() - free.keys()
        if isinstance(value, ast.Name) and value.id in made and value.id not in self.cutter.locals:
            # all of it is replaced: the name itself is the better input
            origin = self.cutter.needs.free[value.id].node
            stands_for = self.cutter.needs.free[value.id].stands_for
            self.cutter.take_back(free)
            self.needed.clear()
            self.needed.update(needed)
            single = len(targets) == 1 and isinstance(targets[0], ast.Name)
            for name in hits:
                node = origin if single else free[name].node if name in free else None
                self.cutter.needs.free[name] = Free(name, f"{name} = {stands_for}", node)
                self.cutter.locals.add(name)
                self._fixed_free(name)
            return []
        self.needed.difference_update(kills - loaded(value))
        return [copy]

    def _fixed_free(self, name: str) -> None:
        """A name that stays an input: earlier definitions of it do not count."""
        self.needed.discard(name)
        self._inputs.add(name)

    # the module

    def _assemble(self, body: list[ast.stmt]) -> Slice:
        needs = self.cutter.needs
        head: list[ast.stmt] = []
        defaults = self._constant_defaults()
        mentioned = {n for one in body for n in loaded(one)}
        for name in sorted(self.needed & mentioned):
            if name in defaults:
                head.append(ast.Assign([ast.Name(name, ast.Store())], defaults[name], lineno=0))
        taken = {n.targets[0].id for n in head}  # type: ignore[attr-defined]
        wanted = (self.needed | self._inputs | set(needs.free)) & mentioned - taken
        internal = (set().union(*map(stored, body), set())) - self.needed - self._inputs
        inputs = [needs.free[n] for n in needs.free if n in wanted and n not in internal]
        annotations = {
            one.arg: ast.unparse(one.annotation) for one in self.arguments if one.annotation
        }
        for one in inputs:
            one.annotation = annotations.get(one.name, "")
        function = ast.parse(f"def {NAME}(): ...").body[0]  # with the fields of this Python
        assert isinstance(function, ast.FunctionDef)
        function.args.args = [ast.arg(one.name) for one in inputs]
        function.body = [*head, *body]
        module = ast.Module([*needs.carried.statements(self.scope.order), function], [])
        ast.fix_missing_locations(module)
        return Slice(ast.unparse(module) + "\n", tuple(inputs), function)

    def _constant_defaults(self) -> dict[str, ast.expr]:
        if isinstance(self.function, ast.Module):
            return {}
        a = self.function.args
        positional = [*a.posonlyargs, *a.args]
        pairs = list(zip(positional[len(positional) - len(a.defaults) :], a.defaults, strict=True))
        pairs += [(p, d) for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d]
        return {
            p.arg: d
            for p, d in pairs
            if all(isinstance(n, (ast.Constant, ast.UnaryOp, ast.USub)) for n in ast.walk(d))
            and not (isinstance(d, ast.Constant) and d.value is None)
        }


def _chain(body: list[ast.stmt], target: ast.stmt) -> list[tuple[list[ast.stmt], ast.stmt]]:
    """Blocks from the outermost to the one that holds a statement, with the statement of each that
    leads there."""
    for statement in body:
        if statement is target:
            return [(body, statement)]
        for block in (
            [] if isinstance(statement, ast.FunctionDef | ast.ClassDef) else blocks(statement)
        ):
            found = _chain(block, target)
            if found:
                return [(body, statement), *found]
    return []
