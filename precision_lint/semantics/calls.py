"""Calls of a function: torch operations, modules, numpy, and what is not followed."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

from precision_lint.semantics import ops
from precision_lint.semantics.expressions import Expressions, key_of, rank
from precision_lint.semantics.names import dotted
from precision_lint.semantics.policy import policy
from precision_lint.semantics.shapes import (
    SPATIAL,
    created_rank,
    literal_dtype,
    moved_tags,
    rearranged_tags,
)
from precision_lint.semantics.values import CONCRETE, INF, UNKNOWN, Value, is_float, number, promote

FUNCTIONAL = ("torch.", "torch.nn.functional.", "torch.linalg.", "torch.Tensor.", "torch.fft.")

_KEEPS_SHAPE = re.compile(r"act|drop|norm|kernel|feature_map|func|gate|relu")
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

_NAMED = {"softmax": "normalized", "normalize": "unit", "log_softmax": "unit"}
_TO_SCALAR = frozenset({"sum", "mean", "max", "min", "norm", "prod", "std", "var"})


class Calls(Expressions):
    """Evaluates calls."""

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
                if name.endswith("_"):
                    self.changed(node.func.value)
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
        for keyword in node.keywords:
            dtype = self.values[id(keyword.value)] if keyword.arg == "dtype" else UNKNOWN
            if dtype.kind == "dtype" and dtype.dtype in CONCRETE:
                return Value("tensor", dtype.dtype, tags=frozenset({"cast"}))
        tags = frozenset({"amp"}) if self.region.on and _MODEL.search(name) else frozenset()
        if node.args and _KEEPS_SHAPE.search(name):
            tags |= self.values[id(node.args[0])].tags & SPATIAL
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
                    tags |= rearranged_tags(arguments[1].const)
                return arguments[0].but(ndim=None, const=None, tags=tags)
            if name == "einsum":
                return (
                    self.listed("einsum", arguments[0], arguments[1:-1]) if arguments else UNKNOWN
                )
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
        text = " ".join(dotted(a) or "" for a in [*node.args, *(k.value for k in node.keywords)])
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
        if kind == "same":
            name = callee.const.rpartition(".")[2].lower()
            lo, hi = ops.bounds(name, first, {})
            return first.but(kind="tensor", lo=lo, hi=hi, made=None)
        result = self.listed("linear" if kind == "lower" else "layer_norm", first, [])
        if self.region.state == "inherited" and kind == "lower":
            result = result.but(dtype=place if first.dtype != "float64" else "float64")
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
        self.tensors.add(first.dtype)
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
            return first.but(kind="tensor", dtype=ops.CASTS[name], wide=False, made=None, tags=tags)
        if name in ("to", "type", "type_as", "astype"):
            return self.cast(first, rest, keywords, name)
        if name in ops.INTEGRAL:
            return Value("tensor", "int")
        if name in ops.BOOLEAN:
            return Value("tensor", "bool", 0.0, 1.0)
        if name in ("item", "tolist", "numpy"):
            return Value("number") if name == "item" else Value("array", first.dtype)
        if name in ("size", "dim", "ndimension", "numel"):
            whole = name == "size" and not rest and "dim" not in keywords
            return Value("other") if whole else Value("number")
        if name in ops.SHAPES:
            keep = first.tags | ({"pair"} if name in ("sort", "topk", "kthvalue") else set())
            lo, hi = (
                (min(first.lo, 0.0), max(first.hi, 0.0))
                if name in ("tril", "triu", "diag")
                else (first.lo, first.hi)
            )
            return first.but(ndim=None, const=None, lo=lo, hi=hi, tags=moved_tags(name, node, keep))
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
        return self.computed(name, first, rest, keywords, receiver)

    def computed(
        self,
        name: str,
        first: Value,
        rest: list[Value],
        keywords: dict[str, Value],
        receiver: ast.expr | None,
    ) -> Value:
        """Result of an elementwise operation or a reduction of one tensor."""
        result = self.listed(name, first, [])
        tags = result.tags
        asked = keywords.get("dtype")
        if asked is not None and asked.kind == "dtype":
            result = result.but(dtype=asked.dtype, wide=False)
            tags |= {"cast"}
        lo, hi = ops.bounds(name.rstrip("_"), first, _limits(name, rest, keywords))
        if name in _NAMED:
            tags |= {_NAMED[name]}
        if name == "sum" or (name in ("clamp", "clamp_min") and "sum" in first.tags):
            tags |= {"sum"}
        if name in ("max", "amax") and receiver is not None:
            tags |= {f"max-of:{key_of(receiver)}", "pair"}
        if name == "exp" and "max-zero" in first.tags:
            tags |= {"one-inside"}
        ndim = None
        if name in _ELEMENTWISE:
            tags |= first.tags & SPATIAL
            ndim = first.ndim
        elif name in _TO_SCALAR and not rest and not {"dim", "axis", "keepdim"} & keywords.keys():
            ndim = 0
        follows = name in _ELEMENTWISE | ops.REDUCTIONS and result.dtype == first.dtype
        made = first.made if follows else None
        return result.but(lo=lo, hi=hi, ndim=ndim, tags=tags, made=made)

    def cast(self, first: Value, rest: list[Value], keywords: dict[str, Value], name: str) -> Value:
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
            unknown = first.dtype == "float32" or any(v.dtype.startswith("~call") for v in rest)
            return first.but(made=None, dtype="~cast" if unknown else first.dtype)
        return first

    def creation(
        self, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        asked = keywords.get("dtype")
        lo, hi = {"zeros": (0.0, 0.0), "ones": (1.0, 1.0), "eye": (0.0, 1.0), "rand": (0.0, 1.0)
                  }.get(name, (-INF, INF))  # fmt: skip
        ndim = created_rank(name, node, arguments)
        if "out" in keywords:
            return keywords["out"].but(lo=lo, hi=hi, made=None)
        if asked is not None:
            dtype = asked.dtype if asked.kind == "dtype" else "~dtype"
            return Value("tensor", dtype or "~dtype", lo, hi, ndim)
        first = arguments[0] if arguments else UNKNOWN
        if name in ("tensor", "as_tensor", "from_numpy"):
            if first.kind == "array":
                return Value("tensor", first.dtype, ndim=ndim, made=node, tags=first.tags)
            dtype = literal_dtype(node.args[0], first) if node.args else ""
            if not dtype:
                place = first.dtype if first.variable and name == "as_tensor" else ""
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
            "tensor", dtype, min(a.lo, b.lo), max(a.hi, b.hi), rank(a, b), None,
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
        if name.rstrip("_") in ("div", "divide", "true_divide", "atan2") and dtype in (
            "int",
            "bool",
        ):
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
        return Value("tensor", dtype, lo, hi, rank(a, b), None, wide, tags=self.widened(a, b))


def _float(dtype: str, node: ast.Call) -> ast.Call | None:
    return node if is_float(dtype) else None


def _limits(name: str, rest: list[Value], keywords: dict[str, Value]) -> dict[str, Value]:
    """``min`` and ``max`` of a clamp, wherever they are passed."""
    limits = {"min": keywords.get("min", UNKNOWN), "max": keywords.get("max", UNKNOWN)}
    order = ("max",) if name == "clamp_max" else ("min", "max")
    limits.update(zip(order, rest, strict=False))
    return limits
