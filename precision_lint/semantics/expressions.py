"""Expressions of a function: what operators, names and subscripts make of their operands."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from precision_lint.semantics import arrays, bounds, models, ops
from precision_lint.semantics.creation import LEGACY
from precision_lint.semantics.events import Promotion
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import DTYPES, Region
from precision_lint.semantics.scalars import FINFO, fold, sequence
from precision_lint.semantics.shapes import is_size
from precision_lint.semantics.tags import (
    KEPT,
    OF_DTYPE,
    OF_VALUE,
    has_relations,
    of_dims,
    of_elements,
    of_name,
    only_adds_dimensions,
    relative,
)
from precision_lint.semantics.values import (
    CONCRETE,
    INF,
    NEVER_HALF,
    UNKNOWN,
    Value,
    join,
    joined,
    number,
    promote,
    real_of,
    widens,
)

if TYPE_CHECKING:
    from precision_lint.semantics.index import Function
    from precision_lint.semantics.module import Module

_SHORT = 8
"""Items up to which a comprehension is evaluated for each."""

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
    of_layers: set[str]
    versions: dict[str, int]
    """How often a dotted name was bound or changed so far."""

    def ask(self, question: str, *about: Any) -> Any:
        """An answer of the module."""
        raise NotImplementedError

    def read(self, key: str) -> Value:
        """The value of a dotted name."""
        raise NotImplementedError

    def assign(self, target: ast.expr, value: Value, source: ast.expr) -> None:
        """Bind a target."""
        raise NotImplementedError

    def assign_item(self, target: ast.expr, iterable: Value) -> None:
        """Bind a loop's target."""
        raise NotImplementedError

    def refine(self, test: ast.expr, truth: bool) -> None:
        """Take over what a test says where it is ``truth``."""
        raise NotImplementedError

    def changed(self, target: ast.expr, result: Value | None = None) -> None:
        """Forget the bounds of every name whose elements an operation in place has changed.

        ``result``: what the operation makes of all elements of the target itself.
        """
        owner = target
        while isinstance(owner, (ast.Subscript, ast.Starred)):
            owner = owner.value
        key = dotted(owner)
        value = self.env.get(key) if key is not None else None
        value = value if value is not None else self.values.get(id(owner), UNKNOWN)
        store = value.store.union(*(item.store for item in value.items))
        for name, other in self.env.items():
            if name == key or not store.isdisjoint(other.store):
                self.versions[name] = self.versions.get(name, 0) + 1
                self.env[name] = other.but(
                    lo=-INF, hi=INF, const=None, tags=other.tags & OF_DTYPE | of_name(other.tags)
                )
        if key in self.env and result is not None and owner is target:
            tags = self.env[key].tags | result.tags & OF_VALUE
            self.env[key] = self.env[key].but(lo=result.lo, hi=result.hi, tags=tags)

    def mark(self, node: ast.expr) -> str:
        """A name for the value that an expression has now, for tags that relate two values."""
        parts = list(ast.walk(node))
        for part in parts:
            if isinstance(part, ast.Call):
                name = dotted(part.func) or str(getattr(part.func, "attr", ""))
                if name.rpartition(".")[2] not in ops.PURE:
                    return f"{id(node)}@"  # another evaluation may give another value
        names = {dotted(part) for part in parts if isinstance(part, (ast.Name, ast.Attribute))}
        numbers = (self.versions.get(name, 0) for name in sorted(filter(None, names)))
        return f"{dotted(node) or ast.dump(node)}@{'.'.join(map(str, numbers))}"

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
            self.values[id(node)] = value
        elif value.lo < known.lo or value.hi > known.hi:
            # what the first pass over a loop's body proves is true of its first iteration,
            # but the bounds have to hold in every one
            lo, hi = min(known.lo, value.lo), max(known.hi, value.hi)
            self.values[id(node)] = known.but(lo=lo, hi=hi)
        return value

    def _eval(self, node: ast.expr) -> Value:
        match node:
            case ast.Constant(value=bool()):
                return Value("number", "bool", 0.0, 1.0, const=node.value)
            case ast.Constant(value=int() | float() as value):
                return number(value)
            case ast.Constant(value=complex()):
                return Value("number", "complex")
            case ast.Constant(value=str() as text):
                return Value("text", const=text)
            case ast.Constant():
                return Value("none")
            case ast.Name(id=name):
                return self.read(name)
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call(
                func=ast.Name(id="map"), args=[ast.Lambda(args=given, body=body), source]
            ) if len(given.args) == 1 and "map" not in self.env:
                target = ast.copy_location(ast.Name(given.args[0].arg, ast.Store()), given.args[0])
                return self.comprehension(body, [ast.comprehension(target, source, [], 0)])
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
                    dtype = "int" if inner.kind == "number" and inner.dtype == "bool" else None
                    return inner.but(
                        lo=-inner.hi, hi=-inner.lo, const=const, dtype=dtype or inner.dtype,
                        tags=inner.tags & KEPT, store=frozenset(),
                    )  # fmt: skip
                if isinstance(op, ast.Not):
                    return Value("number", "bool", 0.0, 1.0)
                if isinstance(op, ast.Invert) and inner.dtype != "bool":
                    return inner.but(
                        lo=-INF, hi=INF, const=None, tags=frozenset(), store=frozenset()
                    )
                return inner.but(store=frozenset())
            case ast.Subscript(value=owner, slice=index):
                return self.subscript(owner, index)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.eval(test)
                before = dict(self.env)
                self.refine(test, True)
                first = self.eval(body)
                self.env = before
                before = dict(before)
                self.refine(test, False)
                second = self.eval(orelse)
                self.env = before
                return join(first, second)
            case ast.Dict(keys=keys, values=parts):
                names = tuple(k.value if isinstance(k, ast.Constant) else None for k in keys)
                for key in keys:
                    if key is not None:
                        self.eval(key)
                items = tuple(self.eval(part) for part in parts)
                if None in names:
                    return Value("dict", tags=frozenset({"open"}))
                return Value("dict", const=names, items=items)
            case ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                tags = frozenset[str]() if items else frozenset({"empty"})
                return Value("tuple", items=tuple(self.eval(item) for item in items), tags=tags)
            case (
                ast.ListComp(elt=elt, generators=generators)
                | ast.GeneratorExp(elt=elt, generators=generators)
            ):
                return self.comprehension(elt, generators)
            case ast.DictComp(key=key, value=value, generators=generators):
                made = self.comprehension(value, generators)
                self.eval(key)
                wide = made.items and all(i.is_tensor and i.dtype == "float32" for i in made.items)
                return Value("unknown", "float32") if wide else UNKNOWN  # as what it holds
            case ast.NamedExpr(target=target, value=value):
                result = self.eval(value)
                self.assign(target, result, value)
                return result
            case ast.Compare(left=left, comparators=rights):
                sides = [self.eval(part) for part in (left, *rights)]
                kind = "tensor" if any(v.maybe_tensor for v in sides) else "number"
                return Value(kind, "bool", 0.0, 1.0, rank(*sides[:2]))
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

    def comprehension(self, elt: ast.expr, generators: Sequence[ast.comprehension]) -> Value:
        """The items of a comprehension: each one over a short literal, else one for all."""
        saved = dict(self.env)
        items: list[Value] = []
        for generator in generators:
            iterable = self.eval(generator.iter)
            parts = iterable.items if iterable.kind == "tuple" else ()
            if "comprehension" not in iterable.tags and len(generators) == 1 < len(parts) <= _SHORT:
                recorded, self.values = self.values, {}
                for part in () if generator.ifs else parts:
                    self.assign_item(generator.target, Value("tuple", items=(part,)))
                    items.append(self.eval(elt))
                self.values = recorded
            self.assign_item(generator.target, iterable)
            for condition in generator.ifs:
                self.eval(condition)
        item = self.eval(elt)
        self.env = saved
        if items:
            return Value("tuple", items=tuple(items))
        return Value("tuple", items=(item,), tags=frozenset({"comprehension"}))

    def qualify(self, node: ast.expr) -> str | None:
        """The qualified name, unless a local variable shadows the import."""
        path = dotted(node)
        if path is None or path.partition(".")[0] in self.env:
            return None
        return self.module.qualify(node)

    def attribute(self, node: ast.Attribute) -> Value:
        qualified = self.qualify(node)
        if qualified is not None:
            if qualified in DTYPES:
                return Value("dtype", DTYPES[qualified])
            if qualified in ("numpy.pi", "math.pi", "torch.pi"):
                return number(3.141592653589793)
            if qualified.startswith(("numpy.", "torch.")):
                if qualified.startswith("torch.") and qualified.endswith("Tensor"):
                    legacy = LEGACY.get(qualified.rpartition(".")[2])
                    return Value("callable", legacy or "", const=qualified)
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
        if owner.kind == "dtype" and node.attr in ("itemsize", "is_floating_point"):
            return Value("number", "int" if node.attr == "itemsize" else "bool", 0.0)
        if owner.kind == "finfo":
            exact = FINFO.get(owner.dtype, {}).get(node.attr.replace("smallest_normal", "tiny"))
            return (
                number(exact) if exact is not None else Value("number", tags=frozenset({"finfo"}))
            )
        if node.attr in ("shape", "device", "layout", "is_cuda", "requires_grad", "ndim"):
            self.tensors.add(owner.dtype)
            if node.attr == "ndim":
                return Value("number", "int", 0.0)
            return Value("other")
        if owner.kind in ("tuple", "dict") and isinstance(owner.const, tuple):
            if node.attr in owner.const and owner.kind == "tuple":
                return owner.items[owner.const.index(node.attr)]
            return UNKNOWN
        if owner.is_tensor and node.attr in ("real", "imag"):
            return owner.but(dtype=real_of(owner.dtype), lo=-INF, hi=INF, tags=owner.tags & KEPT)
        if owner.is_tensor and (node.attr in ops.SHAPES or node.attr == "values"):
            if node.attr not in ("data", "values"):
                return owner.but(tags=owner.tags - of_dims(owner.tags) - of_elements(owner.tags))
            return owner
        if "output" in owner.tags and owner.kind == "unknown":
            return owner.but(const=None) if "loss" not in node.attr else UNKNOWN
        part = models.part(owner, node.attr)
        if part is not None:
            return part
        free = key and key.partition(".")[0] not in self.env
        found: Value | None = self.ask("imported", key) if free else None
        return found or Value("unknown", f"~{key}" if key else "")

    def subscript(self, owner: ast.expr, index: ast.expr) -> Value:
        value, place = self.eval(owner), self.eval(index)
        if value.kind == "array":
            return value
        if value.kind == "other":  # a shape
            return value if isinstance(index, ast.Slice) else Value("number", "int", 0.0)
        if value.kind == "tuple":
            if "comprehension" in value.tags and value.items:
                return value if isinstance(index, ast.Slice) else value.items[0]
            if isinstance(index, ast.Slice):
                items = (joined(value.items),) if value.items else ()
                return Value("tuple", items=items, tags=frozenset({"comprehension"}))
            if isinstance(place.const, int) and -len(value.items) <= place.const < len(value.items):
                return value.items[place.const]
            return joined(value.items) if value.items and place.const is None else UNKNOWN
        if value.kind == "dict" and isinstance(value.const, tuple):
            whole = len(value.items) == len(value.const)
            if place.const is not None and place.const in value.const and whole:
                return value.items[value.const.index(place.const)]
            if place.const is None and _alike(value.items):
                return joined(value.items)
        if place.kind == "text" and (value.kind, value.dtype) == ("unknown", "float32"):
            return value  # of a dict whose entries are all float32
        if place.kind == "text" and "output" in value.tags:
            return value.but(const=None)
        if place.kind == "text" or value.kind == "dict":
            name = dotted(owner)
            return Value("unknown", f"~{name or 'item'}[{place.const}]")
        if value.maybe_tensor:
            picked = value.ndim == 1 and place.kind == "number"
            if isinstance(index, ast.Tuple) and all(v.kind == "number" for v in place.items):
                value = value.but(tags=value.tags | {"picked"})
            whole = only_adds_dimensions(index)
            tags = value.tags if whole else value.tags - of_elements(value.tags)
            return value.but(
                ndim=0 if picked else None, const=None, tags=tags - {"pair"} - of_dims(tags)
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
            return fold(op, a, b)
        if "array" in (a.kind, b.kind) and "tensor" not in (a.kind, b.kind):
            return arrays.binary(op, a, b)
        if isinstance(op, ast.MatMult):
            return self.listed("matmul", a, [b])
        if not (a.maybe_tensor or b.maybe_tensor) or "text" in (a.kind, b.kind):
            return sequence(op, a, b)
        if isinstance(node, ast.expr):
            self.mix(node, left, a, right, b)
        dtype = promote(a, b)
        kind = "tensor" if "tensor" in (a.kind, b.kind) else "unknown"
        wide = widens(a, b)
        made = a.made if b.kind == "number" or a.made is b.made else None
        made = b.made if a.kind == "number" else made
        tags: frozenset[str] = self.widened(a, b)
        lo, hi = -INF, INF
        match op:
            case ast.Add():
                lo, hi = bounds.plus(a, b)
                for value, other in ((a, b), (b, a)):
                    if other.kind == "number" and other.lo >= 0:
                        tags |= {tag for tag in value.tags if tag.startswith("ge")}
            case ast.Sub():
                lo, hi = bounds.minus(a, b)
                if has_relations(b.tags):
                    mark = self.mark(left)
                    if f"ge:{mark}" in b.tags:
                        hi = min(hi, 0.0)
                    tags |= {
                        f"max-zero:{tag[7 : -len(mark) - 1]}"
                        for tag in b.tags
                        if tag.startswith("max-of:") and tag.endswith(f"|{mark}")
                    }
                if has_relations(a.tags) and f"le:{self.mark(right)}" in a.tags:
                    hi = min(hi, 0.0)
                if has_relations(b.tags) and f"le:{self.mark(left)}" in b.tags:
                    lo = max(lo, 0.0)
            case ast.Mult():
                lo, hi = bounds.times(a, b)
                if ast.dump(left) == ast.dump(right):
                    lo, hi = bounds.power(a, number(2))
                if b.kind == "number" and b.lo > 0:
                    tags |= relative(a.tags)
                tags |= (a.tags | b.tags) & {"normalized"}
            case ast.Div():
                lo, hi = bounds.over(a, b)
                if dtype in ops.INTEGERS:
                    dtype = "float32"
                if b.kind == "number" and b.lo > 0:
                    tags |= relative(a.tags)
                tags |= a.tags & {"normalized"}
                if "sum" in b.tags or is_size(right):
                    tags |= {"normalized"}
                if has_relations(b.tags):
                    mark = self.mark(left)
                    if f"ge-abs:{mark}" in b.tags or (f"ge:{mark}" in b.tags and a.lo >= 0):
                        lo, hi = max(lo, -1.0), min(hi, 1.0)
                if a.kind == "number":  # a number over a tensor is a product with the reciprocal
                    inverse = self.listed("reciprocal", b, [])
                    dtype, wide = inverse.dtype, inverse.wide
                    kind, tags = inverse.kind, tags | inverse.tags
            case ast.Pow():
                lo, hi = bounds.power(a, b)
                if a.kind == "number" and a.lo >= 0:
                    lo = max(lo, 0.0)
                return self.listed("pow", a, [b]).but(
                    lo=lo, hi=hi, kind=kind, made=made, ndim=rank(a, b)
                )
            case ast.Mod():
                if b.kind == "number" and b.lo > 0:
                    lo, hi = 0.0, b.hi
            case ast.FloorDiv():
                lo = 0.0 if a.lo >= 0 and b.lo >= 0 else -INF
            case ast.BitAnd() | ast.BitOr() | ast.BitXor():
                lo, hi = (0.0, 1.0) if dtype == "bool" else (-INF, INF)
            case _:
                dtype = dtype if dtype in ops.INTEGERS else a.dtype
        wide = wide and dtype not in NEVER_HALF and dtype not in CONCRETE
        tags |= (a.tags | b.tags) & KEPT
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


def _alike(items: Sequence[Value]) -> bool:
    """Whether whichever entry of a table is taken, it is a dtype."""
    return bool(items) and all(item.kind == "dtype" for item in items)


def narrow(value: Value) -> str:
    """The dtype, possibly half, that a tensor has, or had before a created one widened it."""
    if value.may_be_half:
        return value.dtype
    return next((t[8:] for t in value.tags if t.startswith("widened:")), "")


def rank(a: Value, b: Value) -> int | None:
    if a.kind == "number":
        return b.ndim
    if b.kind == "number":
        return a.ndim
    return 0 if a.ndim == 0 and b.ndim == 0 else a.ndim if b.ndim == 0 else None
