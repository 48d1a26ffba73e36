"""Abstract interpretation of one function: dtype, range and autocast state of every expression.

Forward, flow-sensitive, with a join where branches meet and two passes over a loop's body.
Nothing of the code is executed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from precision_lint.semantics.calls import Calls
from precision_lint.semantics.events import Promotion
from precision_lint.semantics.expressions import Env
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import Region, region_of
from precision_lint.semantics.values import INF, UNKNOWN, Value, join

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module


class Interpreter(Calls):
    """Runs one function; afterwards ``values``, ``regions`` and ``events`` hold what is known."""

    def __init__(self, function: Function, module: Module) -> None:
        self.function = function
        self.module = module
        self.names = module.index.names
        self.values: dict[int, Value] = {}
        self.regions: dict[int, Region] = {}
        self.events: list[Promotion] = []
        self.tensors: set[str] = set()
        """dtype variables of values that are used as tensors."""
        self.assigned: dict[str, list[ast.expr]] = {}
        self.env: Env = {}
        self.region = module.entry_region(function)
        self._seen: set[int] = set()
        self.bound: dict[str, int] = {}
        """Row of the first loop that binds a name."""

    def run(self) -> None:
        defaults = self.function.defaults()
        for parameter in self.function.parameters():
            name = parameter.arg
            value = Value("unknown", f"~{name}")
            default = defaults.get(name)
            if default is not None:
                given = self.module.constant_of(default)
                if given.kind == "number" and not isinstance(given.const, bool):
                    value = given.but(tags=given.tags | {"default"})
            annotation = dotted(parameter.annotation) if parameter.annotation else None
            if annotation in ("int", "float", "bool", "str") and value.kind == "unknown":
                value = Value("number" if annotation != "str" else "text")
            self.env[name] = value
        self.env.pop("self", None)
        self.block(self.function.node.body)

    # statements

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Run statements; True if control cannot leave at the end of the block."""
        return any(self.statement(statement) for statement in body)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr(value=value):
                self.eval(value)
            case ast.Assign(targets=targets, value=value):
                result = self.eval(value)
                for target in targets:
                    self.assign(target, result, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, self.eval(value), value)
            case ast.AugAssign(target=target, op=op, value=value):
                left, right = self.eval(target), self.eval(value)
                result = self.binary(node, op, target, left, value, right)
                if left.is_tensor and left.dtype:
                    result = result.but(dtype=left.dtype)
                self.assign(target, result, value)
            case ast.Return(value=value):
                if value is not None:
                    self.eval(value)
                return True
            case ast.Raise():
                return True
            case ast.Continue() | ast.Break():
                return True
            case ast.If(test=test, body=body, orelse=orelse):
                return self.branch(test, body, orelse)
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                item = self.eval(iterable)
                self.loop(node.body, node.orelse, lambda: self.assign_item(target, item))
            case ast.While(test=test):
                self.loop(node.body, node.orelse, lambda: self.eval(test))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                outer = self.region
                for manager in items:
                    self.eval(manager.context_expr)
                    opened = region_of(manager.context_expr, self.names, self.region)
                    if opened is not None:
                        self.region = opened
                    if manager.optional_vars is not None:
                        self.assign(manager.optional_vars, UNKNOWN, manager.context_expr)
                ended = self.block(body)
                self.region = outer
                return ended
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                before = dict(self.env)
                ended = self.block(body) or self.block(orelse)
                after = self.env
                for handler in handlers:
                    self.env = _merge(before, after)
                    if not self.block(handler.body):
                        after = self.env if ended else _merge(after, self.env)
                        ended = False
                self.env = after
                return self.block(final) or ended
            case ast.Match(subject=subject, cases=cases):
                self.eval(subject)
                self.fork([(lambda c=c: self.block(c.body)) for c in cases] + [lambda: False])
            case ast.Assert(test=test):
                self.eval(test)
                self.refine(test, True)
            case ast.Delete() | ast.Pass() | ast.Global() | ast.Nonlocal():
                pass
            case _:
                pass
        return False

    def branch(self, test: ast.expr, body: list[ast.stmt], orelse: list[ast.stmt]) -> bool:
        self.eval(test)

        def then() -> bool:
            self.refine(test, True)
            return self.block(body)

        def otherwise() -> bool:
            self.refine(test, False)
            return self.block(orelse)

        return self.fork([then, otherwise])

    def fork(self, paths: Iterable[Callable[[], bool]]) -> bool:
        before, live = self.env, []
        for path in paths:
            self.env = dict(before)
            if not path():
                live.append(self.env)
        self.env = before
        if not live:
            return True
        merged = live[0]
        for env in live[1:]:
            merged = _merge(merged, env)
        self.env = merged
        return False

    def loop(
        self, body: list[ast.stmt], orelse: list[ast.stmt], head: Callable[[], object]
    ) -> None:
        before = dict(self.env)
        for _ in range(2):
            head()
            self.block(body)
            self.env = _merge(before, self.env)
        self.block(orelse)

    def refine(self, test: ast.expr, truth: bool) -> None:
        """Take over what a test on ``x.dtype`` says in the branch where it is ``truth``."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.refine(operand, not truth)
            case ast.BoolOp(op=op, values=parts):
                if isinstance(op, ast.And) == truth:
                    for part in parts:
                        self.refine(part, truth)
            case ast.Compare(
                left=ast.Attribute(value=owner, attr="dtype"), ops=[op], comparators=[right]
            ):
                given = self.eval(right)
                many = given.items if given.kind == "tuple" else (given,)
                named = {v.dtype if v.kind == "dtype" else None for v in many}
                inside = isinstance(op, (ast.In, ast.Eq, ast.Is)) == truth
                if (
                    not named
                    or None in named
                    or not isinstance(op, (ast.In, ast.NotIn, ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
                ):
                    return
                key = dotted(owner)
                if key is None:
                    return
                value = self.read(key)
                if inside and len(named) == 1:
                    (only,) = named
                    self.env[key] = value.but(kind="tensor", dtype=only or "", wide=False)
                elif (inside and not named & {"float16", "bfloat16"}) or (
                    not inside and named >= {"float16", "bfloat16"}
                ):
                    self.env[key] = value.but(dtype="float32")
                elif not inside and "float16" in named:
                    self.env[key] = value.but(tags=value.tags | {"not-float16"})
            case _:
                pass

    def assign(self, target: ast.expr, value: Value, source: ast.expr) -> None:
        match target:
            case ast.Name() | ast.Attribute():
                key = dotted(target)
                if key is not None:
                    self.env[key] = value.but(node=value.node or source)
                    self.assigned.setdefault(key, []).append(source)
                    for stale in [k for k in self.env if k.startswith(f"{key}.")]:
                        del self.env[stale]
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for place, item in enumerate(targets):
                    if value.kind == "other":  # a shape
                        self.assign(item, Value("number"), source)
                    elif isinstance(item, ast.Starred):
                        self.assign(item.value, UNKNOWN, source)
                    elif len(value.items) == len(targets):
                        self.assign(item, value.items[place], source)
                    elif value.is_tensor and "pair" in value.tags:
                        part = value if place == 0 else Value("tensor", "int")
                        self.assign(item, part.but(tags=part.tags - {"pair"}), source)
                    else:
                        key = dotted(item) if not isinstance(item, (ast.Tuple, ast.List)) else None
                        whole = value if value.maybe_tensor else UNKNOWN
                        part = whole.but(
                            lo=-INF,
                            hi=INF,
                            made=None,
                            dtype=whole.dtype or (key and f"~{key}") or "",
                        )
                        self.assign(item, part, source)
            case ast.Starred(value=inner):
                self.assign(inner, UNKNOWN, source)
            case ast.Subscript(value=inner):
                self.eval(target)
                self.changed(inner)
            case _:
                self.eval(target)

    def assign_item(self, target: ast.expr, iterable: Value) -> None:
        if isinstance(target, ast.Name):
            item = iterable.items[0] if iterable.items else Value("unknown", f"~{target.id}")
            if iterable.is_tensor:
                item = iterable.but(ndim=0 if iterable.ndim == 1 else None)
            for other in iterable.items[1:]:
                item = join(item, other)
            self.env[target.id] = item
            self.bound.setdefault(target.id, target.lineno)
        else:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    self.env[node.id] = Value("unknown", f"~{node.id}")
                    self.bound.setdefault(node.id, node.lineno)

    def read(self, key: str) -> Value:
        """The value of a dotted name."""
        value = self.env.get(key)
        if value is not None:
            return value
        head, _, rest = key.partition(".")
        if head == "self" and rest and "." not in rest and self.function.cls is not None:
            return self.module.attribute(self.function.cls, rest)
        if not rest and head not in self.env:
            return self.module.constant(head) or Value("unknown", f"~{head}")
        return Value("unknown", f"~{key}")


def _merge(a: Env, b: Env) -> Env:
    merged = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        merged[key] = join(x, y) if x is not None and y is not None else (x or y or UNKNOWN)
    return merged
