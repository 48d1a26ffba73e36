"""Abstract interpretation of one function: dtype, range and autocast state of every expression.

Forward, flow-sensitive, with a join where branches meet and two passes over a loop's body.
Nothing of the code is executed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from precision_lint.semantics import ops
from precision_lint.semantics.events import Promotion
from precision_lint.semantics.names import dotted
from precision_lint.semantics.policy import policy
from precision_lint.semantics.regions import DTYPES, Region, region_of
from precision_lint.semantics.values import (
    INF,
    UNKNOWN,
    Value,
    is_float,
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
CONCRETE = ("float16", "bfloat16", "float32", "float64")
SPATIAL = frozenset({"spatial-last", "spatial-mid"})
FUNCTIONAL = ("torch.", "torch.nn.functional.", "torch.linalg.", "torch.Tensor.", "torch.fft.")
NUMPY_WIDE = ("float64", "double")

Env = dict[str, Value]


class Interpreter:
    """Runs one function; afterwards ``values``, ``regions`` and ``events`` hold what is known."""

    def __init__(self, function: Function, module: Module) -> None:
        self.function = function
        self.module = module
        self.names = module.index.names
        self.values: dict[int, Value] = {}
        self.regions: dict[int, Region] = {}
        self.events: list[Promotion] = []
        self.floating: set[str] = set()
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
        for statement in body:
            if self.statement(statement):
                return True
        return False

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
                for item in items:
                    self.eval(item.context_expr)
                    opened = region_of(item.context_expr, self.names, self.region)
                    if opened is not None:
                        self.region = opened
                    if item.optional_vars is not None:
                        self.assign(item.optional_vars, UNKNOWN, item.context_expr)
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
                many = right.elts if isinstance(right, (ast.Tuple, ast.List, ast.Set)) else [right]
                named = {DTYPES.get(self.names.qualify(item) or "") for item in many}
                inside = isinstance(op, (ast.In, ast.Eq, ast.Is)) == truth
                if None in named or not isinstance(
                    op, (ast.In, ast.NotIn, ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
                ):
                    return
                key = dotted(owner)
                if key is None:
                    return
                value = self.read(key)
                if inside and len(named) == 1:
                    (only,) = named
                    self.env[key] = value.but(kind="tensor", dtype=only or "", wide=False)
                elif inside and not named & {"float16", "bfloat16"}:
                    self.env[key] = value.but(dtype="float32")
                elif not inside and named >= {"float16", "bfloat16"}:
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
                    if isinstance(item, ast.Starred):
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
                            lo=-INF, hi=INF, made=None, dtype=whole.dtype or (key and f"~{key}") or ""
                        )
                        self.assign(item, part, source)
            case ast.Starred(value=inner):
                self.assign(inner, UNKNOWN, source)
            case _:
                self.eval(target)

    def assign_item(self, target: ast.expr, iterable: Value) -> None:
        if isinstance(target, ast.Name):
            item = iterable.items[0] if iterable.items else Value("unknown", f"~{target.id}")
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

    # expressions

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
                value = self.eval(operand)
                if isinstance(op, ast.USub):
                    const = -value.const if isinstance(value.const, (int, float)) else None
                    return value.but(lo=-value.hi, hi=-value.lo, const=const, tags=frozenset())
                return Value("tensor", "bool") if isinstance(op, ast.Not) else value
            case ast.Subscript(value=owner, slice=index):
                return self.subscript(owner, index)
            case ast.IfExp(test=test, body=body, orelse=orelse):
                self.eval(test)
                return join(self.eval(body), self.eval(orelse))
            case ast.Tuple(elts=items) | ast.List(elts=items):
                return Value("tuple", items=tuple(self.eval(item) for item in items))
            case ast.ListComp(elt=elt, generators=generators) | ast.GeneratorExp(
                elt=elt, generators=generators
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
        return self.names.qualify(node)

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
            name = dotted(node.value)
            return Value("dtype", owner.dtype or (f"~{name}" if name else ""))
        if owner.kind == "finfo":
            exact = FINFO.get(owner.dtype, {}).get(node.attr.replace("smallest_normal", "tiny"))
            return number(exact) if exact is not None else Value("number", tags=frozenset({"finfo"}))
        if node.attr in ("shape", "device", "layout", "is_cuda", "requires_grad"):
            return Value("other")
        if owner.is_tensor and node.attr in ops.SHAPES | {"values"}:
            return owner
        return Value("unknown", f"~{key}" if key else "")

    def subscript(self, owner: ast.expr, index: ast.expr) -> Value:
        value, place = self.eval(owner), self.eval(index)
        if value.kind == "array":
            return value
        if value.kind == "tuple":
            if isinstance(place.const, int) and -len(value.items) <= place.const < len(value.items):
                return value.items[place.const]
            return UNKNOWN
        if place.kind == "text":
            name = dotted(owner)
            return Value("unknown", f"~{name or 'item'}[{place.const}]")
        if value.maybe_tensor:
            return value.but(ndim=None, const=None, tags=value.tags - {"pair", "one-inside"})
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
                if f"max-of:{_key(left)}" in b.tags:
                    hi, tags = 0.0, tags | {"max-zero"}
            case ast.Mult():
                same = ast.dump(left) == ast.dump(right)
                lo, hi = ops.times(a, b)
                if same:
                    lo = max(lo, 0.0)
                if b.kind == "number" and b.lo > 0:
                    tags |= a.tags & {"max-zero"}
            case ast.Div():
                lo, hi = ops.over(a, b)
                if b.kind == "number" and b.lo > 0:
                    tags |= a.tags & {"max-zero"}
                if "sum" in b.tags or _is_size(right):
                    tags |= {"normalized"}
            case ast.Pow():
                if b.const == 2 or a.lo >= 0:
                    lo = 0.0
                    hi = 1.0 if 0 <= a.lo and a.hi <= 1 and b.lo > 0 else INF
                return self.listed("pow", a, [b]).but(lo=lo, hi=hi, kind=kind, made=made)
            case ast.FloorDiv() | ast.Mod():
                if dtype == "int":
                    lo, hi = -INF, INF
            case _:
                dtype = dtype if dtype in ("int", "bool") else a.dtype
        if lo != lo or hi != hi:  # inf - inf
            lo, hi = -INF, INF
        tags |= (a.tags | b.tags) & ({"not-float16", "float", "amp"} | SPATIAL)
        return Value(kind, dtype, lo, hi, _rank(a, b), None, wide, made, tags=tags)

    def mix(self, use: ast.expr, left: ast.expr, a: Value, right: ast.expr, b: Value) -> None:
        """Emit an event where a created float32 tensor widens one that may be half."""
        for value, other, node in ((a, b, right), (b, a, left)):
            narrow = _narrow(other)
            if (
                value.made is not None
                and value.ndim != 0
                and value.dtype in ("float32", "float64")
                and other.maybe_tensor
                and narrow
                and other.made is None
            ):
                other = other.but(dtype=narrow)
                if id(value.made) not in self._seen:
                    self._seen.add(id(value.made))
                    self.events.append(Promotion(value.made, use, node, other, self.region))

    @staticmethod
    def widened(a: Value, b: Value) -> frozenset[str]:
        """Tag that keeps the half dtype a tensor had before a created one widened it."""
        for value, other in ((a, b), (b, a)):
            if value.made is not None and value.ndim != 0 and _narrow(other):
                return frozenset({f"widened:{_narrow(other)}"})
        return frozenset()

    # calls

    def call(self, node: ast.Call) -> Value:
        arguments = [self.eval(argument) for argument in node.args]
        keywords = {k.arg: self.eval(k.value) for k in node.keywords if k.arg}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.eval(keyword.value)
        qualified = self.qualify(node.func)
        if qualified is not None:
            return self.function_call(node, qualified, arguments, keywords)
        if isinstance(node.func, ast.Attribute):
            owner = self.eval(node.func.value)
            name = node.func.attr
            if owner.kind == "callable" and isinstance(owner.const, str):
                return self.function_call(node, f"{owner.const}.{name}", arguments, keywords)
            known = self.read(dotted(node.func) or "") if dotted(node.func) else UNKNOWN
            if known.kind == "callable":
                return self.module_call(known, node, arguments)
            if owner.kind == "array":
                text = " ".join(dotted(a) or "" for a in node.args)
                return owner.but(dtype="float32") if "float32" in text else owner
            if owner.maybe_tensor and self.is_method(owner, name):
                return self.operation(name, node, [owner, *arguments], keywords, node.func.value)
            return self.opaque(node)
        callee = self.eval(node.func)
        if callee.kind == "callable":
            return self.module_call(callee, node, arguments)
        if isinstance(node.func, ast.Name):
            match node.func.id:
                case "float" | "int" | "len" | "round":
                    const = arguments[0].const if arguments else None
                    return number(const) if isinstance(const, (int, float)) else Value("number")
                case "abs" if arguments:
                    return self.operation("abs", node, arguments, keywords, node.args[0])
                case "max" | "min" if all(a.kind == "number" for a in arguments) and arguments:
                    choose = max if node.func.id == "max" else min
                    return Value(
                        "number",
                        lo=choose(a.lo for a in arguments),
                        hi=choose(a.hi for a in arguments),
                    )
                case "sum" if arguments and arguments[0].items:
                    return arguments[0].items[0].but(lo=-INF, hi=INF, tags=frozenset())
                case "getattr" if len(arguments) > 2:
                    return arguments[2]
        return self.opaque(node)

    def opaque(self, node: ast.Call) -> Value:
        """Result of a call that is not followed; out of a model in a region it is likely half."""
        name = (dotted(node.func) or "").rpartition(".")[2].lower()
        tags = frozenset({"amp"}) if self.region.on and _MODEL.search(name) else frozenset()
        return Value("unknown", f"~call{node.lineno}:{node.col_offset}", tags=tags)

    @staticmethod
    def is_method(owner: Value, name: str) -> bool:
        if owner.is_tensor:
            return True
        return (
            name in ops.SHAPES
            or name in ops.CASTS
            or name in ops.MATMULS
            or name in ops.NEW
            or name in ops.REDUCTIONS
            or name in ops.PAIRWISE
            or name in _METHODS
        )

    def function_call(
        self, node: ast.Call, qualified: str, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if qualified in ("torch.finfo", "numpy.finfo"):
            return Value("finfo", arguments[0].dtype if arguments else "")
        if qualified.startswith("torch.nn.") and qualified.count(".") == 2:
            return Value("callable", const=qualified)
        if qualified.startswith("einops."):
            name = qualified.rpartition(".")[2]
            if arguments and name in ("rearrange", "repeat"):
                tags = arguments[0].tags - SPATIAL
                if len(arguments) > 1 and isinstance(arguments[1].const, str):
                    tags |= _rearranged(arguments[1].const)
                return arguments[0].but(ndim=None, const=None, tags=tags)
            if name == "einsum":
                return self.listed("einsum", arguments[0], arguments[1:-1]) if arguments else UNKNOWN
        for prefix in FUNCTIONAL:
            if qualified.startswith(prefix):
                name = qualified[len(prefix) :]
                if "." not in name:
                    if prefix == "torch.linalg." and name.endswith("norm"):
                        name = "linalg.norm"
                    first = node.args[0] if node.args else None
                    return self.operation(name, node, arguments, keywords, first)
        if qualified.startswith("numpy."):
            return self.numpy_call(qualified[6:], node, arguments, keywords)
        if qualified.startswith("math.") and arguments:
            return Value("number")
        local = self.module.index.classes.get(qualified)
        if local is not None:
            return Value("callable", const=local)
        return Value("unknown", f"~call{node.lineno}:{node.col_offset}")

    def numpy_call(
        self, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        text = " ".join(
            dotted(a) or "" for a in [*node.args, *(k.value for k in node.keywords)]
        )
        dtype = "float32" if "float32" in text else "float64" if "float64" in text else ""
        if not dtype and name in ("zeros", "ones", "eye", "identity", "linspace", "hanning"):
            dtype = "float64"
        return Value("array", dtype, tags=frozenset({"numpy"}))

    def module_call(self, callee: Value, node: ast.Call, arguments: list[Value]) -> Value:
        """Result of calling an ``nn.Module`` instance, or of making one."""
        place = f"~call{node.lineno}:{node.col_offset}"
        if not isinstance(callee.const, str):
            return Value("unknown", place)
        kind = ops.MODULES.get(callee.const.rpartition(".")[2])
        if kind is None:
            return Value("unknown", place)
        first = arguments[0] if arguments else UNKNOWN
        if first.variable:
            self.floating.add(first.dtype)
        if kind == "same":
            name = callee.const.rpartition(".")[2].lower()
            lo, hi = ops.bounds(name, first, {})
            return first.but(kind="tensor", lo=lo, hi=hi, made=None)
        result = self.listed("linear" if kind == "lower" else "layer_norm", first, [])
        if self.region.state == "inherited" and kind == "lower":
            result = result.but(dtype=place if not first.dtype == "float64" else "float64")
        return result

    def listed(self, op: str, first: Value, others: Sequence[Value]) -> Value:
        """Result of an operation that autocast lists as lower or float32, or any other."""
        operands = [first, *others]
        tensors = [v for v in operands if v.maybe_tensor]
        kind = "tensor"
        dtype = tensors[0].dtype if tensors else ""
        for value in tensors[1:]:
            dtype = promote(Value("tensor", dtype), value)
        rule = policy(op, self.region.device)
        tags = frozenset({"float"}) | (first.tags & {"not-float16", "amp"})
        for value in tensors:
            if value.variable and op in _FLOAT_ONLY:
                self.floating.add(value.dtype)
        if self.region.on and rule is not None and dtype != "float64":
            if rule == "lower":
                return Value(kind, self.region.dtype, tags=tags)
            if rule == "fp32":
                return Value(kind, "float32", tags=tags)
        if rule == "lower" and self.region.state == "inherited" and dtype == "float32":
            # float32 outside, autocast's dtype inside: whatever the caller's region says
            return Value(kind, "~autocast", tags=tags)
        wide = any(v.wide for v in tensors) and rule != "lower"
        if rule == "fp32" and self.region.state == "inherited":
            wide = True
        if op in _FLOAT_ONLY and dtype in ("int", "bool"):
            dtype = "float32"
        wide = wide and dtype not in CONCRETE
        return Value(kind, dtype, wide=wide, tags=tags)

    def operation(
        self,
        name: str,
        node: ast.Call,
        arguments: list[Value],
        keywords: dict[str, Value],
        receiver: ast.expr | None,
    ) -> Value:
        """Result of torch operation ``name`` on ``arguments`` (receiver of a method first)."""
        first = arguments[0] if arguments else keywords.get("input", UNKNOWN)
        rest = arguments[1:]
        asked = keywords.get("dtype")
        if name in ops.CREATION:
            return self.creation(name, node, arguments, keywords)
        if name in ops.LIKE or name in ops.NEW:
            dtype = asked.dtype if asked is not None and asked.kind == "dtype" else first.dtype
            fixed = {"zeros": (0.0, 0.0), "ones": (1.0, 1.0), "rand": (0.0, 1.0)}
            stem = name.removeprefix("new_").removesuffix("_like")
            lo, hi = fixed.get(stem, (-INF, INF))
            if stem == "full" and rest and rest[-1].kind == "number":
                lo, hi = rest[-1].lo, rest[-1].hi
            return Value("tensor", dtype, lo, hi)
        if name in ops.CASTS:
            tags = first.tags - {"amp"} | {"cast"}
            return first.but(
                kind="tensor", dtype=ops.CASTS[name], wide=False, made=None, tags=tags
            )
        if name in ("to", "type", "type_as", "astype"):
            return self.cast(first, rest, keywords, name)
        if name in ops.INTEGRAL:
            return Value("tensor", "int")
        if name in ops.BOOLEAN:
            return Value("tensor", "bool", 0.0, 1.0)
        if name in ("item", "tolist", "numpy"):
            return Value("number") if name == "item" else Value("array", first.dtype)
        if name == "size":
            return Value("other")
        if name in ops.SHAPES:
            keep = first.tags | ({"pair"} if name in ("sort", "topk", "kthvalue") else set())
            lo, hi = (min(first.lo, 0.0), max(first.hi, 0.0)) if name in ("tril", "triu", "diag") \
                else (first.lo, first.hi)
            return first.but(
                ndim=None, const=None, lo=lo, hi=hi, tags=_moved(name, node, keep)
            )
        if name in ("where", "masked_fill", "masked_fill_", "masked_scatter"):
            return self.choice(name, node, arguments)
        if name in ops.JOINING:
            return self.joined(node, first)
        if name in ("stop_gradient", "dropout", "pad"):
            return first.but(lo=min(first.lo, 0.0), hi=max(first.hi, 0.0), made=None)
        if name == "einsum":
            operands = rest[0].items if rest and rest[0].kind == "tuple" else tuple(rest)
            return self.listed("einsum", operands[0] if operands else UNKNOWN, operands[1:])
        if name in ops.MATMULS:
            return self.listed(name, first, rest)
        if name in ops.PAIRWISE and rest:
            return self.pairwise(name, node, first, rest[0], receiver)
        if name in ("max", "min") and rest and rest[0].maybe_tensor and rest[0].kind == "tensor":
            return self.pairwise(f"{name}imum", node, first, rest[0], receiver)
        if name == "one_hot":
            return Value("tensor", "int", 0.0, 1.0, tags=frozenset({"normalized"}))
        result = self.listed(name, first, [])
        if asked is not None and asked.kind == "dtype":
            result = result.but(dtype=asked.dtype, wide=False, tags=result.tags | {"cast"})
        named = {"min": keywords.get("min", rest[0] if rest else UNKNOWN),
                 "max": keywords.get("max", rest[1] if len(rest) > 1 else UNKNOWN)}  # fmt: skip
        if name == "clamp_min":
            named = {"min": rest[0] if rest else keywords.get("min", UNKNOWN)}
        elif name == "clamp_max":
            named = {"max": rest[0] if rest else keywords.get("max", UNKNOWN)}
        lo, hi = ops.bounds(name.rstrip("_"), first, named)
        tags = result.tags
        if name in ("softmax", "normalize", "log_softmax"):
            tags |= {"normalized" if name == "softmax" else "unit"}
        if name == "sum" or name in ("clamp", "clamp_min") and "sum" in first.tags:
            tags |= {"sum"}
        if name in _ELEMENTWISE:
            tags |= first.tags & SPATIAL
        if name in ("max", "amax") and receiver is not None:
            tags |= {f"max-of:{_key(receiver)}", "pair"}
        if name == "exp" and "max-zero" in first.tags:
            tags |= {"one-inside"}
        elif name in ("dropout",):
            tags |= first.tags
        ndim = None
        if name in ("sum", "mean", "max", "min", "norm", "prod", "std", "var") and not rest and not (
            {"dim", "axis", "keepdim"} & keywords.keys()
        ):
            ndim = 0
        elif name in ops.bounds.__name__ or name in _ELEMENTWISE:
            ndim = first.ndim
        made = first.made if name in _ELEMENTWISE | ops.REDUCTIONS and result.dtype == first.dtype else None
        kind = "tensor" if first.maybe_tensor or first.kind == "tensor" else "unknown"
        return result.but(kind=kind, lo=lo, hi=hi, ndim=ndim, tags=tags, made=made)

    def cast(
        self, first: Value, rest: list[Value], keywords: dict[str, Value], name: str
    ) -> Value:
        for value in (*keywords.values(), *rest):
            if value.kind == "dtype":
                tags = first.tags - {"amp"} | {"cast"}
                return first.but(
                    kind="tensor", dtype=value.dtype or "~cast", wide=False, made=None, tags=tags
                )
        if name == "type_as" and rest:
            tags = first.tags | {"cast"}
            return first.but(
                kind="tensor", dtype=rest[0].dtype, wide=rest[0].wide, made=None, tags=tags
            )
        if name == "type" and rest and isinstance(rest[0].const, str):
            known = {"torch.FloatTensor": "float32", "torch.HalfTensor": "float16"}
            return first.but(kind="tensor", dtype=known.get(rest[0].const, "~cast"), made=None)
        if name == "to" and len(rest) == 1 and rest[0].kind == "tensor":
            return first.but(kind="tensor", dtype=rest[0].dtype, wide=rest[0].wide, made=None)
        if name == "to" and (
            any(v.kind == "unknown" and "dtype" in v.dtype for v in rest) or "dtype" in keywords
        ):
            return first.but(kind="tensor", dtype="~cast", wide=False, made=None)
        if name == "to" and any(v.kind == "unknown" and "device" not in v.dtype for v in rest):
            # .to(other) follows another tensor, or a device of another name: either keeps it open
            return first.but(made=None, dtype="~cast" if first.dtype == "float32" else first.dtype)
        return first

    def creation(
        self, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        asked = keywords.get("dtype")
        lo, hi = {"zeros": (0.0, 0.0), "ones": (1.0, 1.0), "eye": (0.0, 1.0), "rand": (0.0, 1.0)
                  }.get(name, (-INF, INF))  # fmt: skip
        ndim = _created_rank(name, node, arguments)
        if asked is not None:
            dtype = asked.dtype if asked.kind == "dtype" else "~dtype"
            return Value("tensor", dtype or "~dtype", lo, hi, ndim)
        first = arguments[0] if arguments else UNKNOWN
        if name in ("tensor", "as_tensor", "from_numpy"):
            if first.kind == "array":
                return Value("tensor", first.dtype, ndim=ndim, made=node, tags=first.tags)
            dtype = _literal_dtype(node.args[0], first) if node.args else ""
            if not dtype:
                place = first.dtype if first.variable and name == "as_tensor" else "~data"
                return Value("tensor", place, ndim=ndim)
            return Value("tensor", dtype, first.lo, first.hi, ndim, made=_float(dtype, node))
        if name == "full":
            fill = arguments[1] if len(arguments) > 1 else keywords.get("fill_value", UNKNOWN)
            dtype = "float32"
            if fill.kind == "number":
                dtype = (
                    "bool" if isinstance(fill.const, bool) else
                    "int" if isinstance(fill.const, int) else "float32"
                )  # fmt: skip
            return Value("tensor", dtype, fill.lo, fill.hi, ndim, made=_float(dtype, node))
        if name == "arange":
            floats = any(a.kind == "number" and isinstance(a.const, float) for a in arguments)
            return Value("tensor", "float32" if floats else "int", made=node if floats else None)
        return Value("tensor", "float32", lo, hi, ndim, made=node)

    def choice(self, name: str, node: ast.Call, arguments: list[Value]) -> Value:
        if name != "where":
            return arguments[0].but(lo=-INF, hi=INF, tags=arguments[0].tags & {"float"})
        if len(arguments) < 3:
            return Value("tensor", "int")
        if not node.args or len(node.args) < 2:
            return UNKNOWN
        method = len(node.args) == 2  # x.where(condition, other)
        a, b = (arguments[0], arguments[2]) if method else (arguments[1], arguments[2])
        left = node.func.value if method and isinstance(node.func, ast.Attribute) else node.args[-2]
        self.mix(node, left, a, node.args[-1], b)
        dtype = promote(a, b)
        return Value(
            "tensor", dtype, min(a.lo, b.lo), max(a.hi, b.hi), _rank(a, b), None,
            (a.wide or b.wide) and dtype not in CONCRETE, tags=self.widened(a, b),
        )  # fmt: skip

    def joined(self, node: ast.Call, first: Value) -> Value:
        if not first.items or not node.args:
            return first.but(kind="tensor") if first.maybe_tensor else UNKNOWN
        result = first.items[0]
        parts = node.args[0].elts if isinstance(node.args[0], (ast.List, ast.Tuple)) else []
        tags: set[str] = set()
        if len(parts) == len(first.items):
            for i, a in enumerate(first.items):
                for j in range(i + 1, len(first.items)):
                    self.mix(node, parts[i], a, parts[j], first.items[j])
                if a.lo == a.hi == 1.0:
                    tags.add("homogeneous")
        for item in first.items[1:]:
            tags |= self.widened(result, item)
            ranks = (result.but(ndim=None), item.but(ndim=None))  # every part has a rank here
            result = Value(
                "tensor", promote(*ranks), min(result.lo, item.lo), max(result.hi, item.hi),
                wide=result.wide or item.wide,
            )  # fmt: skip
        return result.but(kind="tensor", tags=frozenset(tags), made=None)

    def pairwise(
        self, name: str, node: ast.Call, a: Value, b: Value, receiver: ast.expr | None
    ) -> Value:
        second = node.args[-1] if node.args else None
        if receiver is not None and second is not None:
            self.mix(node, receiver, a, second, b)
        dtype = promote(a, b)
        if name.rstrip("_") in ("div", "divide", "true_divide", "atan2") and dtype in ("int", "bool"):
            dtype = "float32"
        if name.endswith("_"):
            dtype = a.dtype
        lo, hi = -INF, INF
        match name.rstrip("_"):
            case "add":
                lo, hi = a.lo + b.lo, a.hi + b.hi
            case "sub" | "subtract":
                lo, hi = a.lo - b.hi, a.hi - b.lo
            case "mul" | "multiply":
                lo, hi = ops.times(a, b)
            case "div" | "divide":
                lo, hi = ops.over(a, b)
            case "maximum" | "fmax":
                lo, hi = max(a.lo, b.lo), max(a.hi, b.hi)
            case "minimum" | "fmin":
                lo, hi = min(a.lo, b.lo), min(a.hi, b.hi)
        if lo != lo or hi != hi:
            lo, hi = -INF, INF
        wide = (a.wide or b.wide) and dtype not in CONCRETE
        return Value("tensor", dtype, lo, hi, _rank(a, b), None, wide, tags=self.widened(a, b))


_MODEL = re.compile(r"model|net|head|encoder|decoder|backbone|forward|layer|block|unet|student")
_ELEMENTWISE = frozenset({
    "sigmoid", "tanh", "relu", "exp", "log", "abs", "neg", "sqrt", "rsqrt", "square", "clamp",
    "clamp_min", "clamp_max", "clip", "gelu", "silu", "softplus", "logsigmoid", "sin", "cos",
    "round", "floor", "ceil", "log1p", "expm1", "log2", "log10", "reciprocal", "nan_to_num",
})  # fmt: skip
_FLOAT_ONLY = _ELEMENTWISE - {"relu", "abs", "neg", "clamp", "clamp_min", "clamp_max", "clip",
                              "round", "floor", "ceil", "square"} | {
    "softmax", "log_softmax", "linear", "layer_norm", "normalize", "norm", "cdist", "mean", "std",
    "var", "logsumexp", "cross_entropy", "einsum",
}  # fmt: skip
_METHODS = _ELEMENTWISE | _FLOAT_ONLY | ops.BOOLEAN | ops.INTEGRAL | frozenset({
    "to", "type_as", "type", "masked_fill", "masked_fill_", "where", "max", "min", "item", "pow",
    "softmax", "sigmoid_", "exp_", "relu_", "abs_", "numpy", "tolist", "cumsum", "cumprod", "size",
    "dim",
})  # fmt: skip


def _merge(a: Env, b: Env) -> Env:
    merged = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        merged[key] = join(x, y) if x is not None and y is not None else (x or y or UNKNOWN)
    return merged


def _key(node: ast.expr) -> str:
    return dotted(node) or ast.dump(node)


def _rank(a: Value, b: Value) -> int | None:
    if a.kind == "number":
        return b.ndim
    if b.kind == "number":
        return a.ndim
    return 0 if a.ndim == 0 and b.ndim == 0 else a.ndim if b.ndim == 0 else None


def _float(dtype: str, node: ast.Call) -> ast.Call | None:
    return node if is_float(dtype) else None


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


def _created_rank(name: str, node: ast.Call, arguments: list[Value]) -> int | None:
    if name in ("tensor", "as_tensor"):
        if not node.args:
            return None
        data = node.args[0]
        if isinstance(data, (ast.List, ast.Tuple)):
            return 1 + max(
                (1 for item in data.elts if isinstance(item, (ast.List, ast.Tuple))), default=0
            )
        return 0 if arguments[0].kind == "number" else None
    if name == "eye":
        return 2
    if name in ("linspace", "logspace", "arange"):
        return 1
    if not node.args:
        return None
    shape = node.args[0]
    if isinstance(shape, (ast.Tuple, ast.List)):
        return len(shape.elts) if not any(isinstance(e, ast.Starred) for e in shape.elts) else None
    if name == "full" or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    if isinstance(shape, (ast.Name, ast.Attribute, ast.Call, ast.Subscript)) and len(node.args) == 1:
        return None
    return len(node.args)


def _literal_dtype(node: ast.expr, value: Value) -> str:
    """dtype that ``torch.tensor`` infers from a literal, or ``""``."""
    if value.kind == "number":
        if isinstance(value.const, bool):
            return "bool"
        return "int" if isinstance(value.const, int) else "float32" if value.const is not None else ""
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        kinds = {_literal_dtype(item, v) for item, v in zip(node.elts, value.items, strict=False)}
        if "float32" in kinds:
            return "float32"
        return "int" if kinds == {"int"} else ""
    return ""


def _narrow(value: Value) -> str:
    """The dtype, possibly half, that a tensor has, or had before a created one widened it."""
    if value.may_be_half:
        return value.dtype
    return next((t[8:] for t in value.tags if t.startswith("widened:")), "")


def _moved(name: str, node: ast.Call, tags: frozenset[str]) -> frozenset[str]:
    """Tags behind a shape operation.

    ``spatial-last`` and ``spatial-mid``: the last dimension, or the one before, is a flattened
    ``h * w``.
    """
    numbers = [a.value if isinstance(a, ast.Constant) else
               -a.operand.value if isinstance(a, ast.UnaryOp) and isinstance(a.operand, ast.Constant)
               else None for a in node.args]  # fmt: skip
    keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
    kept = tags - SPATIAL
    if name == "flatten":
        if not isinstance(node.func, ast.Attribute) or numbers[:1] == [None]:
            numbers = numbers[1:]
        first = numbers[0] if numbers else keywords.get("start_dim")
        last = numbers[1] if len(numbers) > 1 else keywords.get("end_dim", -1)
        if first in (2, -2) and last == -1:
            return kept | {"spatial-last"}
        return kept | {"spatial-mid"} if (first, last) == (1, 2) else kept
    if name in ("view", "reshape"):
        sizes: list[ast.expr] = []
        for argument in node.args:
            sizes += argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]
        places = [i - len(sizes) for i, size in enumerate(sizes) if _is_area(size)]
        if -1 in places:
            return kept | {"spatial-last"}
        return kept | {"spatial-mid"} if -2 in places else kept
    turned = name in ("mT", "T", "t", "adjoint")
    if name in ("transpose", "swapaxes", "swapdims"):
        pair = sorted(n for n in numbers if isinstance(n, int))
        turned = pair in ([1, 2], [-2, -1])
    if name == "permute":
        turned = numbers[-3:] == [0, 2, 1]
    if turned:
        swap = {"spatial-last": "spatial-mid", "spatial-mid": "spatial-last"}
        return kept | {swap[tag] for tag in tags & SPATIAL}
    return kept if name in ("permute", "movedim", "unfold", "fold") else tags


def _is_area(size: ast.expr) -> bool:
    """Whether a size is a product of names such as ``h * w``."""
    if not isinstance(size, ast.BinOp) or not isinstance(size.op, ast.Mult):
        return False
    names = [n.id.lower() for n in ast.walk(size) if isinstance(n, ast.Name)]
    return len(names) > 1 and all(re.match(r"(h|w|height|width|d|t)(_|\d|$)", n) for n in names)


def _is_size(node: ast.expr) -> bool:
    """Whether a divisor counts elements: ``h * w``, ``x.numel()``, ``x.shape[1]``, ``len(x)``."""
    if isinstance(node, ast.Call):
        name = dotted(node.func) or ""
        return name == "len" or name.endswith((".numel", ".size"))
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return _is_area(node)


def _rearranged(pattern: str) -> frozenset[str]:
    """Spatial tags of an einops pattern such as ``b c h w -> b (h w) c``."""
    words = re.findall(r"\([^)]*\)|\S+", pattern.rpartition("->")[2])
    spatial = [bool(re.fullmatch(r"\((h|x|t|z|ph|nh|height) .*\)", w)) for w in words]
    if spatial[-1:] == [True]:
        return frozenset({"spatial-last"})
    return frozenset({"spatial-mid"}) if spatial[-2:-1] == [True] else frozenset()
