"""Expressions of a function: what operators, names and subscripts make of their operands."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_lint.semantics import ops
from precision_lint.semantics.events import Promotion
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import DTYPES, Region
from precision_lint.semantics.shapes import SPATIAL, is_size
from precision_lint.semantics.values import (
    CONCRETE,
    INF,
    UNKNOWN,
    Value,
    join,
    number,
    promote,
)

if TYPE_CHECKING:
    from precision_lint.semantics.index import Function
    from precision_lint.semantics.module import Module

FINFO = {
    "float16": {"eps": 2.0**-10, "tiny": 2.0**-14, "min": -65504.0, "max": 65504.0},
    "bfloat16": {"eps": 2.0**-7, "tiny": 2.0**-126, "min": -3.39e38, "max": 3.39e38},
    "float32": {"eps": 2.0**-23, "tiny": 2.0**-126, "min": -3.4028e38, "max": 3.4028e38},
    "float64": {"eps": 2.0**-52, "tiny": 2.0**-1022, "min": -1.797e308, "max": 1.797e308},
}

Env = dict[str, Value]


class Expressions:
    """Evaluates expressions in an environment; `Calls` and `Interpreter` complete it."""

    function: Function
    module: Module
    values: dict[int, Value]
    regions: dict[int, Region]
    events: list[Promotion]
    env: Env
    region: Region
    _seen: set[int]
    tensors: set[str]

    def read(self, key: str) -> Value:
        """The value of a dotted name."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value, source: ast.expr) -> None:
        """Bind a target."""
        raise NotImplementedError

    def assign_item(self, target: ast.expr, iterable: Value) -> None:
        """Bind a loop's target."""
        raise NotImplementedError

    def changed(self, target: ast.expr) -> None:
        """Forget the bounds of a name whose elements an operation in place has changed."""
        key = dotted(target)
        if key is not None and key in self.env:
            self.env[key] = self.env[key].but(lo=-INF, hi=INF, const=None)

    def call(self, node: ast.Call) -> Value:
        """Result of a call."""
        raise NotImplementedError

    def listed(self, op: str, first: Value, others: Sequence[Value]) -> Value:
        """Result of an operation by autocast's lists."""
        raise NotImplementedError

    def eval(self, node: ast.expr) -> Value:
        value = self._eval(node)
        known = self.values.get(id(node))
        if known is None or known.dtype not in CONCRETE:
            # what the first pass over a loop's body proves is true of its first iteration
            self.values[id(node)] = value
        return value

    def _eval(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool()):
                return Value("number", "bool", 0.0, 1.0, const=node.value)
            case ast.Constant(value=int() | float() as value):
                return number(value)
            case ast.Constant(value=str() as text):
                return Value("text", const=text)
            case ast.Constant():
                return Value("none")
            case ast.Name(id=name):
                return self.read(name)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                self.regions[id(node)] = self.region
                return self.call(node)
            case ast.BinOp(left=left, op=op, right=right):
                self.regions[id(node)] = self.region
                return self.binary(node, op, left, self.eval(left), right, self.eval(right))
            case ast.UnaryOp(op=op, operand=operand):
                inner = self.eval(operand)
                if isinstance(op, ast.USub):
                    const = -inner.const if isinstance(inner.const, (int, float)) else None
                    return inner.but(lo=-inner.hi, hi=-inner.lo, const=const, tags=frozenset())
                return Value("tensor", "bool") if isinstance(op, ast.Not) else inner
            case ast.Subscript(value=owner, slice=index):
                return self.subscript(owner, index)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.eval(test)
                return join(self.eval(body), self.eval(orelse))
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return Value("tuple", items=tuple(self.eval(item) for item in items))
            case (
                ast.ListComp(elt=elt, generators=generators)
                | ast.GeneratorExp(elt=elt, generators=generators)
            ):
                saved = dict(self.env)
                for generator in generators:
                    self.assign_item(generator.target, self.eval(generator.iter))
                    for condition in generator.ifs:
                        self.eval(condition)
                item = self.eval(elt)
                self.env = saved
                return Value("tuple", items=(item,), tags=frozenset({"comprehension"}))
            case ast.NamedExpr(target=target, value=value):
                result = self.eval(value)
                self.assign(target, result, value)
                return result
            case ast.Compare(left=left, comparators=rights):
                for part in (left, *rights):
                    self.eval(part)
                return Value("tensor", "bool", 0.0, 1.0)
            case ast.BoolOp(values=parts):
                result = self.eval(parts[0])
                for part in parts[1:]:
                    result = join(result, self.eval(part))
                return result
            case ast.Starred(value=inner):
                self.eval(inner)
                return UNKNOWN
            case ast.Lambda():
                return UNKNOWN
            case _:
                for child in ast.iter_child_nodes(node):
                    if isinstance(child, ast.expr):
                        self.eval(child)
                return UNKNOWN

    def qualify(self, node: ast.expr) -> str | None:
        """The qualified name, unless a local variable shadows the import."""
        path = dotted(node)
        if path is None or path.partition(".")[0] in self.env:
            return None
        return self.module.index.names.qualify(node)

    def attribute(self, node: ast.Attribute) -> Value:
        qualified = self.qualify(node)
        if qualified is not None:
            if qualified in DTYPES:
                return Value("dtype", DTYPES[qualified])
            if qualified in ("numpy.pi", "math.pi", "torch.pi"):
                return number(3.141592653589793)
            if qualified.startswith(("numpy.", "torch.")):
                return Value("callable", const=qualified)
        key = dotted(node)
        if key is not None and (key in self.env or key.partition(".")[0] == "self"):
            known = self.read(key)
            if known.kind != "unknown" or key in self.env:
                return known
        owner = self.eval(node.value)
        if node.attr == "dtype":
            self.tensors.add(owner.dtype)
            name = dotted(node.value)
            return Value("dtype", owner.dtype or (f"~{name}" if name else ""))
        if owner.kind == "finfo":
            exact = FINFO.get(owner.dtype, {}).get(node.attr.replace("smallest_normal", "tiny"))
            return (
                number(exact) if exact is not None else Value("number", tags=frozenset({"finfo"}))
            )
        if node.attr in ("shape", "device", "layout", "is_cuda", "requires_grad", "ndim"):
            self.tensors.add(owner.dtype)
            return Value("number" if node.attr == "ndim" else "other")
        if owner.is_tensor and node.attr in ops.SHAPES | {"values"}:
            return owner
        return Value("unknown", f"~{key}" if key else "")

    def subscript(self, owner: ast.expr, index: ast.expr) -> Value:
        value, place = self.eval(owner), self.eval(index)
        if value.kind == "array":
            return value
        if value.kind == "other":  # a shape
            return Value("number")
        if value.kind == "tuple":
            if isinstance(place.const, int) and -len(value.items) <= place.const < len(value.items):
                return value.items[place.const]
            return UNKNOWN
        if place.kind == "text":
            name = dotted(owner)
            return Value("unknown", f"~{name or 'item'}[{place.const}]")
        if value.maybe_tensor:
            picked = value.ndim == 1 and place.kind == "number"
            return value.but(
                ndim=0 if picked else None, const=None, tags=value.tags - {"pair", "one-inside"}
            )
        return UNKNOWN

    def binary(
        self,
        node: ast.expr | ast.stmt,
        op: ast.operator,
        left: ast.expr,
        a: Value,
        right: ast.expr,
        b: Value,
    ) -> Value:
        a, b = (Value("number") if v.kind == "other" else v for v in (a, b))
        if a.kind == "number" and b.kind == "number":
            return _fold(op, a, b)
        if isinstance(op, ast.MatMult):
            return self.listed("matmul", a, [b])
        if not (a.maybe_tensor or b.maybe_tensor) or "text" in (a.kind, b.kind):
            return UNKNOWN
        if isinstance(node, ast.expr):
            self.mix(node, left, a, right, b)
        dtype = promote(a, b)
        if isinstance(op, (ast.Div, ast.Pow)) and dtype in ("int", "bool"):
            dtype = "float32"
        kind = "tensor" if "tensor" in (a.kind, b.kind) else "unknown"
        wide = (a.wide or b.wide) and dtype not in CONCRETE
        made = a.made if b.kind == "number" or a.made is b.made else None
        made = b.made if a.kind == "number" else made
        tags: frozenset[str] = self.widened(a, b)
        lo, hi = -INF, INF
        match op:
            case ast.Add():
                lo, hi = a.lo + b.lo, a.hi + b.hi
            case ast.Sub():
                lo, hi = a.lo - b.hi, a.hi - b.lo
                if f"max-of:{key_of(left)}" in b.tags:
                    hi, tags = 0.0, tags | {"max-zero"}
            case ast.Mult():
                same = ast.dump(left) == ast.dump(right)
                lo, hi = ops.times(a, b)
                if same:
                    lo = max(lo, 0.0)
                if b.kind == "number" and b.lo > 0:
                    tags |= a.tags & {"max-zero"}
                tags |= (a.tags | b.tags) & {"normalized"}
            case ast.Div():
                lo, hi = ops.over(a, b)
                if b.kind == "number" and b.lo > 0:
                    tags |= a.tags & {"max-zero"}
                tags |= a.tags & {"normalized"}
                if "sum" in b.tags or is_size(right):
                    tags |= {"normalized"}
            case ast.Pow():
                if b.const == 2 or a.lo >= 0:
                    lo = 0.0
                    hi = 1.0 if a.lo >= 0 and a.hi <= 1 and b.lo > 0 else INF
                return self.listed("pow", a, [b]).but(
                    lo=lo, hi=hi, kind=kind, made=made, ndim=rank(a, b)
                )
            case ast.FloorDiv() | ast.Mod():
                if dtype == "int":
                    lo, hi = -INF, INF
            case _:
                dtype = dtype if dtype in ("int", "bool") else a.dtype
        if lo != lo or hi != hi:  # inf - inf
            lo, hi = -INF, INF
        tags |= (a.tags | b.tags) & ({"not-float16", "float", "amp"} | SPATIAL)
        return Value(kind, dtype, lo, hi, rank(a, b), None, wide, made, tags=tags)

    def mix(self, use: ast.expr, left: ast.expr, a: Value, right: ast.expr, b: Value) -> None:
        """Emit an event where a created float32 tensor widens one that may be half."""
        for value, other, node in ((a, b, right), (b, a, left)):
            before = narrow(other)
            if (
                value.made is not None
                and value.ndim != 0
                and value.dtype in ("float32", "float64")
                and other.maybe_tensor
                and before
                and other.made is None
            ):
                other = other.but(dtype=before)
                if id(value.made) not in self._seen:
                    self._seen.add(id(value.made))
                    self.events.append(Promotion(value.made, use, node, other, self.region))

    @staticmethod
    def widened(a: Value, b: Value) -> frozenset[str]:
        """Tag that keeps the half dtype a tensor had before a created one widened it."""
        for value, other in ((a, b), (b, a)):
            if value.made is not None and value.ndim != 0 and narrow(other):
                return frozenset({f"widened:{narrow(other)}"})
        return frozenset()


def narrow(value: Value) -> str:
    """The dtype, possibly half, that a tensor has, or had before a created one widened it."""
    if value.may_be_half:
        return value.dtype
    return next((t[8:] for t in value.tags if t.startswith("widened:")), "")


def key_of(node: ast.expr) -> str:
    return dotted(node) or ast.dump(node)


def rank(a: Value, b: Value) -> int | None:
    if a.kind == "number":
        return b.ndim
    if b.kind == "number":
        return a.ndim
    return 0 if a.ndim == 0 and b.ndim == 0 else a.ndim if b.ndim == 0 else None


def _fold(op: ast.operator, a: Value, b: Value) -> Value:
    if a.const is None or b.const is None:
        return Value("number", tags=(a.tags | b.tags) & {"finfo"})
    x, y = a.const, b.const
    try:
        match op:
            case ast.Add():
                return number(x + y)
            case ast.Sub():
                return number(x - y)
            case ast.Mult():
                return number(x * y)
            case ast.Div():
                return number(x / y)
            case ast.Pow() if abs(y) < 400:
                return number(x**y)
    except (ArithmeticError, TypeError, ValueError):
        pass
    return Value("number")
