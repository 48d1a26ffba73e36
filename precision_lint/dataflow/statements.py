"""Transfer functions of statements: assignments, branches, loops to a fixpoint, early exits."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable
from typing import Any, Final

from precision_lint.dataflow import narrowing, special_methods
from precision_lint.dataflow.bindings import STORED, bind
from precision_lint.dataflow.choices import around, left
from precision_lint.dataflow.containers import assign, elements, is_entered
from precision_lint.dataflow.declared import NUMBERS, as_annotated, last, states
from precision_lint.dataflow.interpreter import (
    ROUNDS,
    STATEMENTS,
    Environment,
    Interpreter,
    Loop,
    Nest,
    Statement,
    asked_by,
    changed,
    merge,
    widen,
)
from precision_lint.dataflow.objects import merge_weights
from precision_lint.dataflow.operators import BINARY, asked, binary, is_equal
from precision_lint.dataflow.protocol import RETURNED, Step, note, noted, stored
from precision_lint.dataflow.regions import enter
from precision_lint.domains.joining import facts, join, unknown
from precision_lint.domains.values import (
    NONE,
    ClassValue,
    Closure,
    Reference,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.syntax.program import dotted, every
from precision_lint.torchmodel import amp

UNROLL: Final = 8
"""Items of a sequence that a loop is interpreted for one by one."""


def statement(*kinds: type) -> Callable[[Statement], Statement]:
    """Register the handler of statements of these types."""

    def register(handler: Statement) -> Statement:
        for kind in kinds:
            STATEMENTS[kind] = handler
        return handler

    return register


@statement(ast.Expr)
def _expr(it: Interpreter, node: ast.Expr) -> bool:
    if node.value.__class__ is not ast.Constant:
        it.statement_value = node.value
        it.expr(node.value)
    return False


@statement(ast.Assign)
def _assign(it: Interpreter, node: ast.Assign) -> bool:
    bind(it, node, it.expr(node.value))
    return False


@statement(ast.AnnAssign)
def _annotated(it: Interpreter, node: ast.AnnAssign) -> bool:
    if node.value is not None:
        value = it.expr(node.value)
        said = states(node.annotation)
        if said is None and isinstance(value, Unknown) and last(node.annotation) in NUMBERS:
            said = node.annotation
        if said is not None:
            value = as_annotated(it, it.module, value, said)
        bind(it, node, value)
    return False


@statement(ast.AugAssign)
def _augmented(it: Interpreter, node: ast.AugAssign) -> bool:
    old = it.expr(node.target)
    value = it.expr(node.value)
    inplace = node.op.__class__ is not ast.MatMult  # tensors have no `__imatmul__`
    result = binary(it, BINARY[node.op.__class__], old, value, node, inplace)
    for look in STORED:
        look(it, node.target, result, node)
    assign(it, node.target, result, node)
    stored(it, node.target, result)
    return False


# branches


@statement(ast.If)
def _if(it: Interpreter, node: ast.If) -> bool:
    known = condition(it, node.test)
    if known is not None:
        return it.block(node.body if known else node.orelse)
    before, trace, live, weights = it.variables, it.trace, it.live, it.weights
    region = it.region
    version = _asks_version(node.test)
    it.compatible += version
    ways = [_where(it, node.test, holds) for holds in (True, False)]
    it.narrow(node.test, True, _raises(node.orelse))
    it.trace = ways[0]
    asked_here = around(it, node.test, it.tested)
    it.branches.append(asked_here)
    first_ends = it.block(node.body)
    first, first_trace, first_live, first_weights = it.variables, it.trace, it.live, it.weights
    first_region = it.region
    it.variables, it.live, it.weights, it.region = before, live, weights, region
    it.narrow(node.test, False, _raises(node.body))
    it.trace = ways[1]
    it.branches[-1] = asked_here._replace(holds=not asked_here.holds)
    second_ends = it.block(node.orelse)
    it.branches.pop()
    second_trace = it.trace
    it.trace = trace
    it.compatible -= version
    noted(it, "if", node, first_trace, second_trace)
    if first_ends:
        it.past.append(asked_here._replace(holds=not asked_here.holds))
        return second_ends
    if second_ends:
        it.past.append(asked_here)
        it.variables, it.live, it.weights = first, first_live, first_weights
        it.region = first_region
    else:
        ends = (one for one in (first_region, it.region) if one.sites != region.sites)
        it.region = next(ends, region)  # entered through an ``ExitStack``
        second = it.variables
        it.variables = merge(first, second, first_live, it.live, asked_here, it.function, it.stored)
        left(it, asked_here, first, second)
        it.weights = merge_weights(first_weights, it.weights)
        it.live |= first_live
    return False


def _where(it: Interpreter, test: ast.expr, holds: bool) -> list[Any]:
    """The trace of the way that a test goes: which scalers are there."""
    return [
        Step("present" if there else "absent", test, it.place(test), (scaler,))
        for scaler, there in narrowing.scalers(it, test, holds)
    ]


def _raises(body: list[ast.stmt]) -> bool:
    return bool(body) and body[-1].__class__ is ast.Raise


def _asks_version(test: ast.expr) -> bool:
    """Whether a test asks which names a library has."""
    known = getattr(test, "asks_version", None)
    if known is None:
        known = test.asks_version = _mentions_version(test)  # type: ignore[attr-defined]
    return bool(known)


def _mentions_version(test: ast.expr) -> bool:
    return any(
        (isinstance(one, ast.Name) and one.id == "hasattr")
        or (isinstance(one, ast.Attribute) and one.attr == "__version__")
        for one in every(test)
    )


def condition(it: Interpreter, test: ast.expr) -> bool | None:
    """Whether a test holds, where that is known."""
    kind = test.__class__
    if kind is ast.UnaryOp and isinstance(test.op, ast.Not):  # type: ignore[attr-defined]
        known = condition(it, test.operand)  # type: ignore[attr-defined]
        return None if known is None else not known
    if kind is ast.BoolOp:
        parts = [condition(it, part) for part in test.values]  # type: ignore[attr-defined]
        if isinstance(test.op, ast.And):  # type: ignore[attr-defined]
            it.tested = None
            return False if False in parts else None if None in parts else True
        it.tested = None
        return True if True in parts else None if None in parts else False
    value = it.tested = it.expr(test)
    return asked(it, value, test)


@statement(ast.Match)
def _match(it: Interpreter, node: ast.Match) -> bool:
    subject = it.expr(node.subject)
    before, trace = it.variables, it.trace
    ends: list[Environment] = []
    traces: list[list[Any]] = []
    total = False
    for case in node.cases:
        fits = _fits(it, subject, case.pattern)
        if fits is False:
            continue
        it.variables = dict(before)
        it.trace = []
        for name in ast.walk(case.pattern):
            bound = getattr(name, "name", None)
            if isinstance(name, (ast.MatchAs, ast.MatchStar)) and bound:
                it.variables[bound] = subject if name is case.pattern else unknown()
        if case.guard is not None:
            it.expr(case.guard)
        if not it.block(case.body):
            ends.append(it.variables)
        traces.append(it.trace)
        if case.guard is None and fits:
            total = True
            break
    if not total:
        ends.append(before)
        traces.append([])
    it.trace = trace
    noted(it, "match", node, *traces)
    return _continue_with(it, ends)


def _fits(it: Interpreter, subject: Value, pattern: ast.pattern) -> bool | None:
    """Whether a value fits a pattern, where that is known."""
    if isinstance(pattern, ast.MatchAs):
        return True if pattern.pattern is None else _fits(it, subject, pattern.pattern)
    if isinstance(pattern, ast.MatchOr):
        found = [_fits(it, subject, one) for one in pattern.patterns]
        return True if True in found else None if None in found else False
    return (
        is_equal(subject, it.expr(pattern.value)) if isinstance(pattern, ast.MatchValue) else None
    )


def _continue_with(it: Interpreter, ends: list[Environment]) -> bool:
    """Go on with the join of several states; True: there are none."""
    if not ends:
        return True
    state = ends[0]
    for other in ends[1:]:
        state = merge(state, other, stored=it.stored)
    it.variables = state
    return False


@statement(ast.Try, *([ast.TryStar] if hasattr(ast, "TryStar") else []))
def _try(it: Interpreter, node: ast.Try) -> bool:
    before, trace = dict(it.variables), it.trace
    it.trace = []
    expected = any(_catches(handler, "TypeError") for handler in node.handlers)
    it.caught += expected
    ended = it.block(node.body)
    it.caught -= expected
    body_trace, after = it.trace, it.variables
    anywhere = merge(before, after, stored=it.stored)
    if not ended:
        it.trace = body_trace
        ended = it.block(node.orelse)
        after = it.variables
    ends = [] if ended else [after]
    handlers: list[list[Any]] = []
    older_only = _imports_what_exists(it, node.body)
    if older_only and it.function is None:
        unreached = it.module.facts.setdefault("unreached", set())
        unreached.update(one for handler in node.handlers for one in ast.walk(handler))
    for handler in node.handlers if not older_only else ():
        it.variables = dict(anywhere)
        it.trace = []
        if handler.name:
            it.variables[handler.name] = unknown()
        older = _catches(handler, "ImportError") or _catches(handler, "AttributeError")
        it.compatible += older
        if not it.block(handler.body):
            ends.append(it.variables)
        it.compatible -= older
        handlers.append(it.trace)
    it.trace = []
    leaves = _continue_with(it, ends)
    if leaves:
        it.variables = anywhere
    leaves = it.block(node.finalbody) or leaves
    final = it.trace
    it.trace = trace
    noted(it, "try", node, body_trace, final, *handlers)
    return leaves


def _imports_what_exists(it: Interpreter, body: list[ast.stmt]) -> bool:
    """Whether a ``try`` begins with names that torch has now; its handlers are for older versions."""
    first = body[0]
    if isinstance(first, ast.Assign):
        taken = [one.value for one in body if isinstance(one, ast.Assign) and dotted(one.value)]
        values = [it.expr(one) for one in taken] if len(taken) == len(body) else []
        names = [one.name if isinstance(one, Reference) else "" for one in values]
        return bool(names) and all(map(amp.exists, names))
    if not isinstance(first, ast.ImportFrom) or first.level:
        return False
    return all(amp.exists(f"{first.module}.{alias.name}") for alias in first.names)


def _catches(handler: ast.ExceptHandler, error: str) -> bool:
    """Whether a handler catches an error, by its name."""
    kind = handler.type
    kinds = kind.elts if isinstance(kind, ast.Tuple) else [kind]
    names = {getattr(one, "id", getattr(one, "attr", "")) for one in kinds if one is not None}
    return kind is None or not names.isdisjoint({error, "Exception", "ModuleNotFoundError"})


# loops


def loop(
    it: Interpreter,
    node: ast.For | ast.AsyncFor | ast.While,
    bind: Callable[[], None],
    endless: bool = False,
    element: Value | None = None,
    source: Value | None = None,
    entered: bool = False,
) -> bool:
    """Interpret a loop's body until its facts no longer change.

    bind: gives the target its value.  endless: only ``break`` leaves it (``while True``).
    element: what stands for each item.  entered: there is at least one.
    """
    entry = it.variables
    trace, outer_loop = it.trace, it.loop
    outer_missing, it.missing = it.missing, False
    it.depth += 1
    it.loops += 1
    it.nest.append(Nest(node, it.module, it.function, source))
    for number in range(ROUNDS):
        cast = _weights(it)
        it.variables = dict(entry)
        it.loop = Loop()
        it.trace = []
        bind()
        states = [] if it.block(node.body) else [it.variables]
        states += it.loop.continues
        after = entry
        for state in states:
            after = merge(after, state, stored=it.stored)
        moved = changed(entry, after)
        if not moved and not (number == 0 and (it.missing or _weights(it) != cast)):
            break
        it.missing = False
        if number == ROUNDS - 2:
            after = {**after, **{name: _top(after[name]) for name in moved}}
        entry = widen(entry, after, moved) if number else after
    body_trace, breaks = it.trace, it.loop.breaks if it.loop else []
    it.trace = trace
    it.depth -= 1
    it.loops -= 1
    it.nest.pop()
    it.missing = outer_missing
    if entered and states and not moved:
        after = functools.reduce(merge, states)
    it.variables = dict(after)
    it.loop = outer_loop
    or_else: list[Any] = []
    leaves = False
    if node.orelse:
        it.trace = or_else
        leaves = it.block(node.orelse)
        it.trace = trace
    noted(it, "loop", node, body_trace, or_else, objects=_parts(element))
    ends = ([] if leaves or endless else [it.variables]) + breaks
    if endless and not breaks:
        return False if it.yielded else not breaks
    return _continue_with(it, ends)


def _weights(it: Interpreter) -> dict[Any, Any]:
    """The dtypes of the weights that were cast: what a loop's body casts, its next iteration meets."""
    return {key: entry[0] for key, entry in it.weights.items()}


def _parts(element: Value | None) -> tuple[Value, ...]:
    """What a loop binds anew in each iteration."""
    if isinstance(element, Sequence) and element.items is not None:
        return tuple(part for item in element.items for part in _parts(item))
    return () if element is None else (element,)


def _top(value: Value) -> Value:
    """What a variable is that does not settle."""
    if isinstance(value, Tensor):
        return value.but(lo=-float("inf"), hi=float("inf"), op="join", operands=(), data=None)
    if isinstance(value, Scalar):
        return Scalar(None, value.kind)
    return value if isinstance(value, Closure) else unknown()


@statement(ast.For, ast.AsyncFor)
def _for(it: Interpreter, node: ast.For) -> bool:
    source = it.expr(node.iter)
    found = elements(it, source, node.iter)
    joined: Value | None = None
    if isinstance(found, list):
        if len(found) <= UNROLL and not _uniform(found):
            return _unrolled(it, node, found)
        for item in found:
            joined = item if joined is None else join(joined, item)
        if joined is None:
            return it.block(node.orelse) if node.orelse else False
        found = joined
    element = found
    bind = functools.partial(assign, it, node.target, element, node)
    entered = joined is not None or is_entered(source)
    return loop(it, node, bind, element=element, source=source, entered=entered)


def _uniform(items: list[Value]) -> bool:
    """Whether one value may stand for all items without losing anything."""
    if any(isinstance(item, Special) for item in items):
        return False
    return len(items) > 1 and len({facts(item) for item in items}) == 1


def _unrolled(it: Interpreter, node: ast.For, items: list[Value]) -> bool:
    """A loop over a few known items, one after another."""
    trace, outer = it.trace, it.loop
    rounds: list[list[Any]] = []
    breaks: list[Environment] = []
    it.depth += 1
    it.loops += 1
    left = False
    for item in items:
        it.loop = Loop()
        it.trace = []
        assign(it, node.target, item, node)
        ended = it.block(node.body)
        rounds.append(it.trace)
        breaks += it.loop.breaks
        if _continue_with(it, ([] if ended else [it.variables]) + it.loop.continues):
            left = True
            break
    it.depth -= 1
    it.loops -= 1
    it.trace, it.loop = trace, outer
    or_else: list[Any] = []
    if not left and node.orelse:
        it.trace = or_else
        left = it.block(node.orelse)
        it.trace = trace
    noted(it, "unrolled", node, or_else, *rounds)
    return _continue_with(it, ([] if left else [it.variables]) + breaks)


@statement(ast.While)
def _while(it: Interpreter, node: ast.While) -> bool:
    test = node.test
    endless = isinstance(test, ast.Constant) and bool(test.value)

    def bind() -> None:
        if not endless:
            it.expr(test)

    return loop(it, node, bind, endless)


@statement(ast.Break)
def _break(it: Interpreter, node: ast.Break) -> bool:
    note(it, "break", node)
    if it.loop is not None:
        it.loop.breaks.append(it.variables)
    return True


@statement(ast.Continue)
def _continue(it: Interpreter, node: ast.Continue) -> bool:
    note(it, "continue", node)
    if it.loop is not None:
        it.loop.continues.append(it.variables)
    return True


# leaving


@statement(ast.Return)
def _return(it: Interpreter, node: ast.Return) -> bool:
    if node.value is not None:
        value = it.expr(node.value)
        it.returned.append((value, it.weights, it.live))
        if isinstance(value, (Table, Special)):
            for look in RETURNED:
                look(it, value, node)
    else:
        it.returned.append((NONE, it.weights, it.live))
    note(it, "return", node)
    return True


@statement(ast.Raise)
def _raise(it: Interpreter, node: ast.Raise) -> bool:
    if node.exc is not None:
        it.expr(node.exc)
    note(it, "raise", node)
    return True


@statement(ast.Assert)
def _assert(it: Interpreter, node: ast.Assert) -> bool:
    it.expr(node.test)
    it.narrow(node.test, True, True)
    it.past.append(asked_by(node.test))
    noted(it, "assert", node)
    return False


@statement(ast.Delete)
def _delete(it: Interpreter, node: ast.Delete) -> bool:
    for target in node.targets:
        if isinstance(target, ast.Name):
            it.variables.pop(target.id, None)
    return False


# definitions


@statement(ast.FunctionDef, ast.AsyncFunctionDef)
def _function(it: Interpreter, node: ast.FunctionDef) -> bool:
    prefix = f"{it.function.qualname}." if it.function is not None else ""
    function = it.module.function(node, prefix + node.name, it.function)
    outer = None
    if it.function is not None:
        outer = it.variables if it.outer is None else {**it.outer, **it.variables}
    it.variables[node.name] = Closure(function, None, outer)
    return False


@statement(ast.Nonlocal, ast.Global)
def _shared(it: Interpreter, node: ast.Nonlocal) -> bool:
    """Numbers that a function counts outside of it: each call finds what the one before it left."""
    for name in node.names:
        value = it.expr(ast.copy_location(ast.Name(name, ast.Load()), node))
        if isinstance(value, Scalar):
            it.variables[name] = _top(value)
    return False


@statement(ast.ClassDef)
def _class(it: Interpreter, node: ast.ClassDef) -> bool:
    prefix = f"{it.function.qualname}." if it.function is not None else ""
    cls = it.module.cls(node, prefix + node.name)
    it.variables[node.name] = ClassValue(cls)
    return False


@statement(ast.Import, ast.ImportFrom)
def _import(it: Interpreter, node: ast.Import) -> bool:
    it.program.imported(it, node)
    return False


@statement(ast.With, ast.AsyncWith)
def _with(it: Interpreter, node: ast.With) -> bool:
    wanted = any(_wants_error(it, item.context_expr) for item in node.items)
    it.wanted += wanted
    leaving: list[Callable[[], None]] = []
    trace = it.trace
    it.trace = []
    for item in node.items:
        value = it.expr(item.context_expr)
        if item.optional_vars is not None:
            given = special_methods.entered(it, value, item.context_expr)
            assign(it, item.optional_vars, given, node)
        leave = enter(it, value, item.context_expr)
        if leave is not None:
            leaving.append(leave)
    ended = it.block(node.body)
    for leave in reversed(leaving):
        leave()
    inner = it.trace
    it.trace = trace
    it.wanted -= wanted
    if wanted:
        return False  # nor does it do what it would have done to scalers
    noted(it, "with", node, inner)
    return ended


def _wants_error(it: Interpreter, node: ast.expr) -> bool:
    """``pytest.raises(ValueError)``, ``self.assertRaises(ValueError)``"""
    function: Any = getattr(node, "func", None)
    name = getattr(function, "attr", "") or getattr(function, "id", "")
    if name == "raises":  # pytest's, or that of another library
        return isinstance(it.expr(function), Reference)
    return name.startswith(("assertRaises", "assert_raises"))  # unittest's, NumPy's
