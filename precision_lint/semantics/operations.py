"""Operations of torch: dtype, range and relations of their results."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from precision_lint.semantics import bounds, creation, ops
from precision_lint.semantics.expressions import Expressions, rank
from precision_lint.semantics.policy import policy
from precision_lint.semantics.shapes import SPATIAL, moved_tags
from precision_lint.semantics.tags import KEPT, OF_MODELS, of_dims, of_elements
from precision_lint.semantics.values import (
    CONCRETE,
    INF,
    NEVER_HALF,
    UNKNOWN,
    Value,
    complex_of,
    promote,
    real_of,
    widens,
)

_NAMED = {"softmax": "normalized", "normalize": "unit", "log_softmax": "unit"}
_TO_SCALAR = frozenset({"sum", "mean", "max", "min", "norm", "prod", "std", "var", "amax", "amin",
                        "median", "nansum", "nanmean", "dist", "trace"})  # fmt: skip
_SAME_PLACE = frozenset({
    "unsqueeze", "squeeze", "view", "reshape", "expand", "expand_as", "detach", "contiguous",
    "clone", "data", "cuda", "cpu", "requires_grad_", "flatten", "broadcast_to", "unflatten",
    "pin_memory", "detach_", "unsqueeze_", "squeeze_",
})  # fmt: skip
"""Operations that keep every element, and next to which it is."""
_SAME_SHAPE = frozenset({"detach", "contiguous", "clone", "data", "cuda", "cpu", "requires_grad_"})
_FILLS = {"zero": (0.0, 0.0), "uniform": (0.0, 1.0), "bernoulli": (0.0, 1.0)}
_PASSED = frozenset({
    "dropout", "dropout1d", "dropout2d", "dropout3d", "pad", "constant_pad", "identity",
    "nan_to_num", "positive",
})  # fmt: skip
"""Operations that leave most elements as they are."""
_OPERANDS = ("other", "target", "x2", "tensor1", "tensor2", "end", "vec2", "mat2", "weight", "grid")
"""Keywords by which operations take their further operands."""


class Operations(Expressions):
    """Evaluates operations on tensors."""

    def listed(self, op: str, first: Value, others: Sequence[Value]) -> Value:
        """Result of an operation that autocast lists as lower or float32, or any other."""
        operands = [first, *others]
        tensors = [v for v in operands if v.maybe_tensor]
        whole = tensors[0] if tensors else UNKNOWN
        for value in tensors[1:]:
            whole = Value("tensor", promote(whole, value), ndim=rank(whole, value))
        dtype = whole.dtype
        if dtype in ops.INTEGERS:
            for value in operands:
                dtype = promote(Value("tensor", dtype), value) if value.kind == "number" else dtype
        rule = policy(op, self.region.device)
        tags = frozenset({"float"}) | (
            first.tags & {"not-float16", "not-bfloat16", "amp", "output"}
        )
        if dtype in ops.INTEGERS:
            if op in ops.FLOATING:
                dtype = "float32"
            elif op in ops.SUMMING:
                dtype = "int"
        elif self.region.on and dtype != "float64" and not dtype.startswith("complex"):
            if rule == "lower":
                return Value("tensor", self.region.dtype, tags=tags)
            if rule == "fp32":
                return Value("tensor", "float32", tags=tags)
        if rule == "lower" and self.region.state == "inherited" and dtype == "float32":
            # float32 outside, autocast's dtype inside: whatever the caller's region says
            return Value("tensor", "~autocast", tags=tags)
        wide = any(v.wide and (v.ndim != 0 or len(tensors) == 1) for v in tensors)
        wide = wide and rule != "lower"
        if rule == "fp32" and self.region.state == "inherited":
            wide = True
        wide = wide and dtype not in CONCRETE and dtype not in NEVER_HALF
        return Value("tensor", dtype, wide=wide, tags=tags)

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
        if name.endswith("_") and name not in ops.SHAPES:
            return self.in_place(name[:-1], node, arguments, keywords, receiver)
        out = keywords.get("out", UNKNOWN)
        if out.maybe_tensor and out is not UNKNOWN:
            given = {k: v for k, v in keywords.items() if k != "out"}
            result = self.operation(name, node, arguments, given, receiver)
            target = next(k.value for k in node.keywords if k.arg == "out")
            self.changed(target, result)
            return result.but(dtype=out.dtype, wide=out.wide, made=None, store=out.store)
        self.tensors.add(first.dtype)
        rest = arguments[1:]
        if name in creation.CREATION:
            return creation.create(name, node, arguments, keywords)
        if name in creation.LIKE or name in creation.NEW:
            return creation.alike(name, first, rest, keywords)
        if name in ops.CASTS:
            return first.but(
                kind="tensor", dtype=ops.CASTS[name], wide=False, made=None,
                tags=first.tags - OF_MODELS | {"cast"},
            )  # fmt: skip
        if name == "type" and not arguments[1:] and not keywords:
            return Value("dtype", first.dtype)  # its name, as a string
        if name in ("to", "type", "type_as", "astype"):
            return self.cast(first, rest, keywords, name)
        if name in ops.INTEGRAL:
            unit = name == "one_hot"
            tags = frozenset({"normalized"} if unit else ())
            return Value("tensor", "int", 0.0 if unit else -INF, 1.0 if unit else INF, tags=tags)
        if name in ops.BOOLEAN:
            return Value("tensor", "bool", 0.0, 1.0)
        if name in ops.QUERIES:
            return Value("number", ops.QUERIES[name])
        if name in ("size", "tolist", "numpy"):
            if name == "size":
                whole = not rest and "dim" not in keywords
                return Value("other") if whole else Value("number", "int", 0.0)
            return Value("array", first.dtype)
        bits = keywords.get("dtype", rest[0] if rest else UNKNOWN)
        if name == "view" and bits.kind == "dtype":  # the same bits, other numbers
            return Value("tensor", bits.dtype or "~cast", tags=frozenset({"cast"}))
        if name in ops.SHAPES:
            return self.moved(name, node, first)
        if name in ("where", "masked_fill", "masked_scatter"):
            return self.choice(name, node, arguments)
        if name in ("broadcast_tensors", "meshgrid", "align_tensors"):
            tensors = first.items if first.kind == "tuple" else tuple(arguments)
            return Value("tuple", items=tuple(v.but(kind="tensor", ndim=None) for v in tensors))
        if name in ops.JOINING:
            if name in ("block_diag", "cartesian_prod"):
                first = Value("tuple", items=tuple(arguments))
            return self.joined(node, first)
        if name == "stop_gradient":
            return first.but(made=None)
        if name == "einsum":
            operands = rest[0].items if rest and rest[0].kind == "tuple" else tuple(rest)
            return self.einsum(first, operands)
        if name in ("multi_dot", "linalg.multi_dot") and first.items:
            return self.listed(name, first.items[0], first.items[1:])
        if name in ops.MATMULS:
            return self.listed(name, first, rest)
        if name in ("max", "min") and rest and rest[0].kind == "tensor":
            name = f"{name}imum"
        if name in ops.PAIRWISE and (rest or "other" in keywords):
            second = rest[0] if rest else keywords["other"]
            return self.pairwise(name, node, first, second, keywords, receiver)
        if name not in ops.KNOWN:
            return Value("unknown", self.function.given_by(node))
        result = self.computed(name, node, first, rest, keywords, receiver)
        if receiver is not None and keywords.get("inplace", UNKNOWN).const is True:
            self.changed(receiver, result)
        return result

    def in_place(
        self,
        name: str,
        node: ast.Call,
        arguments: list[Value],
        keywords: dict[str, Value],
        receiver: ast.expr | None,
    ) -> Value:
        """Result of ``name_``: the operand itself, changed, of the dtype that it had."""
        first = arguments[0] if arguments else UNKNOWN
        if name in ("fill", "zero", "copy", "uniform", "bernoulli"):
            by = arguments[1] if len(arguments) > 1 else UNKNOWN
            lo, hi = (by.lo, by.hi) if name in ("fill", "copy") else _FILLS[name]
            if name in ("uniform", "bernoulli") and (len(arguments) > 1 or keywords):
                lo, hi = -INF, INF
            result = Value("tensor", lo=lo, hi=hi)
        elif name in ops.PAIRWISE and len(arguments) > 1:
            result = self.pairwise(name, node, first, arguments[1], keywords, None)
        elif name in ops.KNOWN or name == "masked_fill":
            result = self.operation(name, node, arguments, keywords, None)
        else:
            result = UNKNOWN
        if receiver is not None:
            self.changed(receiver, result)
        return first.but(
            lo=result.lo, hi=result.hi, const=None, made=None,
            tags=first.tags & KEPT | result.tags & {"normalized", "unit", "sum"},
        )  # fmt: skip

    def moved(self, name: str, node: ast.Call, first: Value) -> Value:
        """Result of an operation whose elements are those of its operand."""
        tags = first.tags
        if name not in _SAME_PLACE:
            tags -= of_elements(tags)
        if name not in _SAME_SHAPE:
            tags -= of_dims(tags)
        lo, hi = first.lo, first.hi
        if name in ("tril", "triu", "diag", "diag_embed", "diagflat", "unfold", "fold"):
            lo, hi = bounds.of(name, first, {})
        result = first.but(
            ndim=None, const=None, lo=lo, hi=hi, tags=moved_tags(name, node, tags),
            store=first.store if name in ops.VIEWS else frozenset(),
        )  # fmt: skip
        if name in ops.SEVERAL:
            return Value("tuple", items=(result,), tags=frozenset({"comprehension"}))
        if name == "unique" and (len(node.args) > 1 or len(node.keywords) > 1 or any(
            k.arg and k.arg.startswith("return_") for k in node.keywords
        )):  # fmt: skip
            return Value("tuple", items=(result, Value("tensor", "int"), Value("tensor", "int")))
        if name.startswith("max_pool"):
            if any(k.arg == "return_indices" for k in node.keywords):
                return Value("tuple", items=(result, Value("tensor", "int")))
            whole = self.listed(name, first, [])
            return result.but(kind="tensor", dtype=whole.dtype, wide=whole.wide)
        return result

    def einsum(self, equation: Value, operands: Sequence[Value]) -> Value:
        """A contraction; CPU's autocast sees the matrix products that it is made of, if any."""
        if not operands:
            return UNKNOWN
        if self.region.device == "cpu" and isinstance(equation.const, str):
            inputs, _, output = equation.const.replace(" ", "").partition("->")
            if not any(inputs.count(c) > 1 and c not in output for c in inputs if c.isalpha()):
                return self.listed("mul", operands[0], operands[1:])
        return self.listed("einsum", operands[0], operands[1:])

    def computed(
        self,
        name: str,
        node: ast.Call,
        first: Value,
        rest: list[Value],
        keywords: dict[str, Value],
        receiver: ast.expr | None,
    ) -> Value:
        """Result of an elementwise operation, a reduction, a loss or a decomposition."""
        names = bounds.ARGUMENTS.get(name, ())
        given = {key: v for key, v in zip(names, rest, strict=False) if key}
        given |= {key: v for key, v in keywords.items() if key in names}
        op = _by_mode(name, given)
        count = ops.SEVERAL_OPERANDS.get(name, 1)
        others = [*rest[: count - 1], *(keywords[k] for k in _OPERANDS if k in keywords)]
        if name in ops.OF_SECOND and others[:1] + rest:
            result = self.listed(op, (rest[:1] + others)[0], [])
        else:
            limits = [v for v in given.values() if v.is_tensor and name in ("clamp", "clip")]
            result = self.listed(op, first, limits or others[: count - 1])
        tags, dtype = result.tags, result.dtype
        if name in ops.TO_COMPLEX and not dtype.startswith("complex"):
            dtype = complex_of(dtype)
        elif name in ops.TO_REAL:
            dtype = real_of("complex64" if self._is_complex(receiver, first) else dtype)
        elif name == "float_power":
            dtype = "float64"
        if dtype != result.dtype:
            result = result.but(dtype=dtype, wide=False)
        asked = keywords.get("dtype") or next((v for v in rest if v.kind == "dtype"), UNKNOWN)
        if asked.kind == "dtype":
            result = result.but(dtype=asked.dtype or "~cast", wide=False)
            tags |= {"cast"}
        lo, hi = bounds.of(name, first, given)
        if name in _PASSED:
            tags |= first.tags & (KEPT | {"normalized", "unit", "cast"})
        if name in _NAMED:
            tags |= {_NAMED[name]}
        if name == "sum" or (name in ("clamp", "clamp_min") and "sum" in first.tags):
            tags |= {"sum"}
        if receiver is not None:
            tags |= self.relations(name, node, first, receiver)
            if name == "sum" and first.lo >= 0 and _covers(first.tags, _dim(node, receiver)):
                lo = 1.0
        if name in ("clamp", "clamp_min") and not given.keys() - {"min"}:
            tags |= frozenset(tag for tag in first.tags if tag.startswith("ge"))
        if name == "exp":
            tags |= {f"one-inside{tag[8:]}" for tag in first.tags if tag.startswith("max-zero")}
        ndim = None
        reduced = not rest and not {"dim", "axis", "keepdim"} & keywords.keys()
        if name in ops.ELEMENTWISE:
            tags |= first.tags & SPATIAL
            ndim = first.ndim
        elif name in _TO_SCALAR and reduced:
            ndim = 0
        follows = name in ops.ELEMENTWISE | ops.REDUCTIONS and result.dtype == first.dtype
        made = first.made if follows else None
        result = result.but(lo=lo, hi=hi, ndim=ndim, tags=tags, made=made)
        return self._several(name, result, rest, keywords)

    def _is_complex(self, operand: ast.expr | None, value: Value) -> bool:
        """Whether a name of unknown dtype is elsewhere in the function taken apart as complex."""
        if not isinstance(operand, ast.Name) or not value.variable:
            return False
        for use in self.function.names.get(operand.id, ()):
            parent = self.function.parents.get(id(use))
            if isinstance(parent, ast.Attribute) and parent.attr in ("imag", "angle"):
                return True
            if isinstance(parent, ast.Call) and parent.args[:1] == [use]:
                called = self.module.qualify(parent.func)
                if called in ("torch.angle", "torch.view_as_real", "torch.imag"):
                    return True
        return False

    @staticmethod
    def _several(name: str, result: Value, rest: list[Value], keywords: dict[str, Value]) -> Value:
        """A tuple where the operation gives several tensors."""
        parts = ops.PAIRS.get(name)
        if name in ops.REDUCED and (rest or {"dim", "axis"} & keywords.keys()):
            if rest and rest[0].kind == "unknown" and not {"dim", "axis"} & keywords.keys():
                return result.but(tags=result.tags | {"pair"})  # a dimension, or a tensor
            parts = "ri"
        if parts is None:
            return result
        made = {
            "r": result,
            "i": Value("tensor", "int"),
            "c": result.but(dtype=complex_of(result.dtype), wide=False, lo=-INF, hi=INF),
            "u": UNKNOWN,
        }
        if name == "frexp":
            parts = "ri"
        return Value(
            "tuple",
            const=ops.FIELDS.get(name, ops.FIELDS["ri"] if parts == "ri" else None),
            items=tuple(made[part] for part in parts),
        )

    def relations(
        self, name: str, node: ast.Call, first: Value, receiver: ast.expr
    ) -> frozenset[str]:
        """Tags that relate the result to every element of the operand."""
        if name in ("max", "amax"):
            mark = self.mark(receiver)
            return frozenset({f"max-of:{_dim(node, receiver)}|{mark}", f"ge:{mark}"})
        if name == "logsumexp" or (name == "sum" and first.lo >= 0):
            return frozenset({f"ge:{self.mark(receiver)}"})
        if name in ("min", "amin"):
            return frozenset({f"le:{self.mark(receiver)}"})
        if name in ("norm", "linalg.norm", "linalg.vector_norm"):
            orders = [self.values[id(k.value)] for k in node.keywords if k.arg in ("p", "ord")]
            orders += [self.values[id(a)] for a in node.args if a is not receiver][:1]
            if all(order.const in (1, 2, INF, "fro") for order in orders):
                mark = self.mark(receiver)
                return frozenset({f"ge:{mark}", f"ge-abs:{mark}"})
        return frozenset()

    def cast(self, first: Value, rest: list[Value], keywords: dict[str, Value], name: str) -> Value:
        for value in (*keywords.values(), *rest):
            if value.kind == "dtype":
                return _cast(first, value.dtype or "~cast", first.tags - OF_MODELS | {"cast"})
            if value.kind == "callable" and value.dtype:  # torch.FloatTensor
                return _cast(first, value.dtype, first.tags - OF_MODELS | {"cast"})
        if name == "type_as" and rest:
            return _cast(first, rest[0].dtype, first.tags | {"cast"}, rest[0].wide)
        if name == "type" and rest and isinstance(rest[0].const, str):
            known = creation.LEGACY.get(rest[0].const.rpartition(".")[2], "~cast")
            return _cast(first, known, first.tags)
        if name == "to" and rest and rest[0].kind == "tensor":
            return _cast(first, rest[0].dtype, first.tags, rest[0].wide)
        if name in ("to", "type") and (
            any(v.kind == "unknown" and "dtype" in v.dtype for v in rest) or "dtype" in keywords
        ):
            return first.but(kind="tensor", dtype="~cast", wide=False, made=None)
        if name == "to" and any(v.kind == "unknown" and "device" not in v.dtype for v in rest):
            # .to(other) follows another tensor, or a device of another name: either keeps it open
            if first.dtype in ops.INTEGERS:
                return first.but(made=None, dtype="")
            unknown = first.dtype == "float32" or any(v.dtype.startswith("~call") for v in rest)
            return first.but(made=None, dtype="~cast" if unknown else first.dtype)
        return first

    def choice(self, name: str, node: ast.Call, arguments: list[Value]) -> Value:
        if name != "where":
            first = arguments[0]
            fill = arguments[2] if len(arguments) > 2 and name == "masked_fill" else UNKNOWN
            for keyword in node.keywords:
                if keyword.arg == "value":
                    fill = self.values[id(keyword.value)]
            lo, hi = bounds.of("masked_fill", first, {"value": fill})
            return first.but(lo=lo, hi=hi, const=None, tags=first.tags & KEPT, store=frozenset())
        if len(arguments) < 3:
            index = Value("tensor", "int")
            return Value("tuple", items=(index,), tags=frozenset({"comprehension"}))
        if not node.args or len(node.args) < 2:
            return UNKNOWN
        method = len(node.args) == 2  # x.where(condition, other)
        a, b = (arguments[0], arguments[2]) if method else (arguments[1], arguments[2])
        left = node.func.value if method and isinstance(node.func, ast.Attribute) else node.args[-2]
        self.mix(node, left, a, node.args[-1], b)
        dtype = promote(a, b)
        if a.kind == b.kind == "number":
            kinds = {a.dtype, b.dtype}
            dtype = "float32" if "float" in kinds else "int" if kinds == {"int"} else ""
        return Value(
            "tensor", dtype, min(a.lo, b.lo), max(a.hi, b.hi), rank(a, b), None,
            widens(a, b) and dtype not in CONCRETE, tags=self.widened(a, b),
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
        return result.but(
            kind="tensor", tags=frozenset(tags), made=None, ndim=None, const=None,
            wide=result.wide and result.dtype not in CONCRETE, store=frozenset(),
        )  # fmt: skip

    def pairwise(
        self,
        name: str,
        node: ast.Call,
        a: Value,
        b: Value,
        keywords: dict[str, Value],
        receiver: ast.expr | None,
    ) -> Value:
        second = node.args[-1] if node.args else None
        if receiver is not None and second is not None:
            self.mix(node, receiver, a, second, b)
        dtype = promote(a, b)
        if name in ops.FLOATING and dtype in ops.INTEGERS and "rounding_mode" not in keywords:
            dtype = "float32"
        lo, hi = -INF, INF
        match name:
            case "add" if "alpha" not in keywords:
                lo, hi = bounds.plus(a, b)
            case "sub" | "subtract" if "alpha" not in keywords:
                lo, hi = bounds.minus(a, b)
            case "mul" | "multiply":
                lo, hi = bounds.times(a, b)
            case "div" | "divide" | "true_divide" if "rounding_mode" not in keywords:
                lo, hi = bounds.over(a, b)
            case "pow":
                lo, hi = bounds.power(a, b)
            case "maximum" | "fmax":
                lo, hi = max(a.lo, b.lo), max(a.hi, b.hi)
            case "minimum" | "fmin":
                lo, hi = min(a.lo, b.lo), min(a.hi, b.hi)
            case "hypot":
                lo = 0.0
        if policy(name, self.region.device) is not None:
            return self.listed(name, a, [b]).but(lo=lo, hi=hi, ndim=rank(a, b))
        wide = widens(a, b) and dtype not in CONCRETE and dtype not in NEVER_HALF
        return Value("tensor", dtype, lo, hi, rank(a, b), None, wide, tags=self.widened(a, b))


def _cast(first: Value, dtype: str, tags: frozenset[str], wide: bool = False) -> Value:
    lo, hi = first.lo, first.hi
    if dtype == "int":
        lo, hi = lo - 1, hi + 1  # towards zero
    elif dtype == "bool":
        lo, hi = 0.0, 1.0
    return first.but(
        kind="tensor", dtype=dtype, wide=wide, made=None, tags=tags, lo=lo, hi=hi, const=None
    )


def _by_mode(name: str, given: dict[str, Value]) -> str:
    """The listed operation that an operation with a mode consists of."""
    mode = given.get("mode", UNKNOWN).const
    if name == "pad" and mode in ("reflect", "replicate"):
        return "reflection_pad2d" if mode == "reflect" else "replication_pad2d"
    if name in ("interpolate", "upsample") and mode == "area":
        return "adaptive_avg_pool2d"
    return name


def _dim(node: ast.Call, receiver: ast.expr) -> str:
    """The dimension that a reduction is told, as it is written; ``all`` if none."""
    for keyword in node.keywords:
        if keyword.arg in ("dim", "axis"):
            return ast.unparse(keyword.value)
    given = [argument for argument in node.args if argument is not receiver]
    return ast.unparse(given[0]) if given else "all"


def _covers(tags: frozenset[str], dim: str) -> bool:
    """Whether a sum over ``dim`` takes in an element that is known to be 1."""
    return f"one-inside:{dim}" in tags or (
        dim == "all" and any(tag.startswith("one-inside") for tag in tags)
    )
