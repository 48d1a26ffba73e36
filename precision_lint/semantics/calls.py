"""Calls of a function: torch operations, modules, numpy, and what is not followed."""

from __future__ import annotations

import ast
import math
import re
from typing import TYPE_CHECKING

from precision_lint.semantics import arrays, bounds, creation, models, ops
from precision_lint.semantics.names import dotted
from precision_lint.semantics.operations import Operations
from precision_lint.semantics.shapes import SPATIAL, rearranged_tags
from precision_lint.semantics.tags import of_dims, of_elements
from precision_lint.semantics.values import (
    CONCRETE,
    INF,
    UNKNOWN,
    Value,
    joined,
    number,
    promote,
)

if TYPE_CHECKING:
    from precision_lint.semantics.index import Class
    from precision_lint.semantics.module import Module

FUNCTIONAL = ("torch.", "torch.nn.functional.", "torch.linalg.", "torch.Tensor.", "torch.fft.")

_KEEPS_SHAPE = re.compile(r"act|drop|norm|kernel|feature_map|func|gate|relu")
_MODEL = re.compile(r"model|net|head|encoder|decoder|backbone|forward|layer|block|unet|student")
_METHODS = ops.ELEMENTWISE | ops.FLOATING | ops.BOOLEAN | ops.INTEGRAL | frozenset({
    "to", "type_as", "type", "masked_fill", "masked_fill_", "where", "max", "min", "item", "pow",
    "softmax", "sigmoid_", "exp_", "relu_", "abs_", "numpy", "tolist", "cumsum", "cumprod", "size",
    "dim", "add_", "sub_", "mul_", "div_", "clamp_", "clamp_min_", "numel", "topk", "kthvalue",
    "is_floating_point", "addcmul", "addcdiv", "lerp", "dist", "square_", "sqrt_", "log_", "neg_",
})  # fmt: skip
_IN_PLACE = ops.KNOWN | ops.PAIRWISE | {"zero", "fill", "copy", "masked_fill"}
_NUMBERS = {
    "float": "float", "int": "int", "len": "int", "round": "", "bool": "bool", "isinstance": "bool",
    "hasattr": "bool", "id": "int", "ord": "int", "callable": "bool",
}  # fmt: skip
"""Builtins that answer with a number."""


class Calls(Operations):
    """Evaluates calls."""

    def call(self, node: ast.Call) -> Value:
        result = self.called(node)
        if result.dtype.startswith("~call") and (dotted(node.func) or "").startswith("self."):
            self.of_layers.add(result.dtype)
        return result

    def called(self, node: ast.Call) -> Value:
        """Result of a call by what is called."""
        arguments = [self.eval(argument) for argument in node.args]
        keywords = {k.arg: self.eval(k.value) for k in node.keywords if k.arg}
        for keyword in node.keywords:
            if keyword.arg is None:
                self.eval(keyword.value)
        qualified = self.qualify(node.func)
        if qualified is not None:
            made = self.instance(node.func)
            if made is not None:
                return made
            return self.function_call(node, qualified, arguments, keywords)
        if isinstance(node.func, ast.Attribute):
            owner = self.eval(node.func.value)
            if isinstance(node.func.value, ast.Attribute):
                owner = self.held(owner, node.func.value) or owner
            name = node.func.attr
            given = (*arguments, *keywords.values())
            changed = models.moved(owner, name, given)
            if changed is not None:
                return changed
            if owner.kind == "callable" and isinstance(owner.const, str):
                return self.function_call(node, f"{owner.const}.{name}", arguments, keywords)
            known = self.read(dotted(node.func) or "") if dotted(node.func) else UNKNOWN
            known = self.held(known, node.func) or known
            if models.holds_half(known):
                return self.of_model(known, node, arguments, keywords)
            if isinstance(known.const, models.Instance):
                return self.of_instance(known, node, arguments, keywords)
            if known.kind == "callable":
                return self.module_call(known, node, arguments)
            inner = models.part(owner, name) if name.startswith("get_") and not given else None
            if inner is not None:
                return inner
            if self.computes(owner, name, node, given):
                return models.output(owner)
            if owner.kind == "array":
                return owner.but(dtype=arrays.named(node)) if name == "astype" else owner
            if owner.kind == "tuple" and name == "append" and arguments:
                self.append(node.func.value, owner, arguments[0])
                return UNKNOWN
            if owner.kind == "dict" and name in ("get", "pop", "setdefault", "values", "items"):
                return self.entries(owner, name, arguments)
            if self.own_method(node.func):
                return self.followed(node, arguments, keywords)
            if owner.maybe_tensor and self.is_method(owner, name):
                if name in ("split", "T") and any(a.kind == "text" for a in arguments):
                    return UNKNOWN
                return self.operation(name, node, [owner, *arguments], keywords, node.func.value)
            return self.followed(node, arguments, keywords)
        callee = self.eval(node.func)
        made = self.instance(node.func)
        if made is not None:
            return made
        if models.holds_half(callee):
            return self.of_model(callee, node, arguments, keywords)
        if callee.kind == "callable":
            if isinstance(callee.const, models.Instance):
                return self.of_instance(callee, node, arguments, keywords)
            if isinstance(callee.const, str) and "instance" not in callee.tags:
                return self.function_call(node, callee.const, arguments, keywords)
            return self.module_call(callee, node, arguments)
        if isinstance(node.func, ast.Name):
            if callee.dtype == f"~{node.func.id}" and self.function.has_parameter(node.func.id):
                return self.of_parameter(callee, node, arguments, keywords)
            found = self.builtin(node.func.id, node, arguments, keywords)
            if found is not None:
                return found
        return self.followed(node, arguments, keywords)

    def append(self, target: ast.expr, owner: Value, item: Value) -> None:
        """``target.append(item)``, after which no item has a place of its own."""
        key = dotted(target)
        if key is not None and key in self.env and ("empty" in owner.tags or owner.items):
            items = (joined((*owner.items, item)),)
            self.env[key] = owner.but(items=items, tags=frozenset({"comprehension"}), const=None)

    def builtin(
        self, name: str, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value | None:
        """Result of a builtin function; None: it is none that is known."""
        first = arguments[0] if arguments else UNKNOWN
        if name in _NUMBERS:
            if isinstance(first.const, (int, float)):
                if name == "float":
                    return number(float(first.const))
                if name in ("int", "round") and abs(first.const) < INF:
                    return number(int(first.const) if name == "int" else round(first.const))
            lo = 0.0 if name == "len" else -INF
            return Value("number", _NUMBERS[name], lo, tags=first.tags & {"finfo", "default"})
        match name:
            case "abs" if arguments:
                if first.kind == "number":
                    lo, hi = bounds.of("abs", first, {})
                    return first.but(lo=lo, hi=hi, const=None)
                return self.operation("abs", node, arguments, keywords, node.args[0])
            case "max" | "min" if all(a.kind == "number" for a in arguments) and arguments:
                choose = max if name == "max" else min
                return Value(
                    "number",
                    joined(arguments).dtype,
                    lo=choose(a.lo for a in arguments),
                    hi=choose(a.hi for a in arguments),
                )
            case "sum" if first.items:
                return joined(first.items).but(lo=-INF, hi=INF, tags=frozenset(), const=None)
            case "getattr" if len(arguments) > 2:
                return arguments[2]
            case "range":
                lo = 0.0 if len(arguments) == 1 else first.lo if len(arguments) == 2 else -INF
                return _many(Value("number", "int", lo))
            case "enumerate" if arguments:
                pair = Value("tuple", items=(Value("number", "int"), self.item_of(first)))
                return _many(pair)
            case "zip":
                return _many(Value("tuple", items=tuple(self.item_of(a) for a in arguments)))
            case "list" | "tuple" | "set" | "frozenset" if first.kind == "tuple":
                return first
            case "reversed" | "sorted" if first.kind == "tuple":
                return _many(joined(first.items)) if first.items else first
            case "dict" if not node.args and all(k.arg for k in node.keywords):
                return Value("dict", const=tuple(keywords), items=tuple(keywords.values()))
        return None

    @staticmethod
    def item_of(iterable: Value) -> Value:
        """What every item of an iterable is."""
        if iterable.is_tensor:
            return iterable.but(
                ndim=0 if iterable.ndim == 1 else None, const=None,
                tags=iterable.tags - of_elements(iterable.tags) - of_dims(iterable.tags),
            )  # fmt: skip
        if iterable.kind == "tuple" and iterable.items:
            return joined(iterable.items)
        if iterable.kind == "callable" and iterable.items and isinstance(iterable.const, str):
            if iterable.const.endswith(".Sequential"):
                return joined(iterable.items)
            if iterable.const.endswith(".ModuleList") and iterable.items[0].kind == "tuple":
                return joined(iterable.items[0].items)
        if iterable.kind == "array":
            return iterable
        if iterable.kind == "dict":
            return Value("text")
        return UNKNOWN

    @staticmethod
    def entries(owner: Value, name: str, arguments: list[Value]) -> Value:
        """Result of a method of a dict."""
        known = isinstance(owner.const, tuple) and len(owner.const) == len(owner.items)
        if not known or not owner.items:
            return UNKNOWN
        if name == "values":
            return _many(joined(owner.items))
        if name == "items":
            return _many(Value("tuple", items=(Value("text"), joined(owner.items))))
        key = arguments[0].const if arguments else None
        return owner.items[owner.const.index(key)] if key in owner.const else UNKNOWN

    def followed(self, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]) -> Value:
        """Result of a call of a function of the project, or of one that is not known."""
        opaque = self.opaque(node)
        found: Value | None = self.ask(
            "follow", node, self.function, arguments, keywords, self.region
        )
        return _told(found, opaque)

    def of_model(
        self, callee: Value, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """Result of calling a model with half weights, by its own code where that is known."""
        if self.region.on:
            return self.opaque(node)
        found: Value | None = self.ask(
            "follow_object", callee.const, node, self.function, arguments, keywords, self.region
        )
        output = models.output(callee)
        if found is None or not found.dtype:
            return output
        if found.variable:  # in terms of its layers, which are half
            return output.but(lo=found.lo, hi=found.hi, tags=output.tags | found.tags)
        return found

    def of_instance(
        self, callee: Value, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """Result of calling an instance of a module of the project."""
        found: Value | None = self.ask(
            "follow_object", callee.const, node, self.function, arguments, keywords, self.region
        )
        open_value = Value("unknown", self.function.given_by(node))
        known = found is not None and not found.variable  # else it depends on weights
        return _told(found if known else None, open_value)

    def instance(self, func: ast.expr) -> Value | None:
        """The object that a call of a module's class of the project makes; None: it is none."""
        name = dotted(func) or ""
        last = name.rpartition(".")[2]
        if not last[:1].isupper() or name.partition(".")[0] in self.env:
            return None
        found: tuple[Class, Module] | None = self.ask("base", name)
        if found is None or not found[0].is_module:
            return None
        return Value("callable", const=models.Instance(*found), tags=frozenset({"instance"}))

    def of_parameter(
        self, callee: Value, node: ast.Call, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        """Result of calling a parameter, in terms of what is passed for it."""
        result = self.followed(node, arguments, keywords)
        called = models.result_of(callee)
        if called is None or self.region.on or not result.dtype.startswith("~call"):
            return result
        return result.but(dtype=called.dtype)

    def held(self, known: Value, node: ast.Attribute) -> Value | None:
        """The half model that ``self.name`` is, if it is one."""
        cls = self.function.cls
        if cls is None or dotted(node) != f"self.{node.attr}" or models.holds_half(known):
            return None
        if known.kind not in ("unknown", "tensor", "callable") or f"self.{node.attr}" in self.env:
            return None
        if node.attr in cls.methods:
            return None
        held: Value | None = self.ask("held", cls, node.attr)
        return held

    def computes(self, owner: Value, name: str, node: ast.Call, given: tuple[Value, ...]) -> bool:
        """Whether a method is one of a half model that computes, rather than a tensor's."""
        if self.region.on or not models.holds_half(owner):
            return False
        if name in ops.KNOWN or self.is_method(UNKNOWN, name):
            return False
        if models.computes(owner, name, given):
            return True
        gives: bool = self.ask("gives_layers", node.func, self.function)
        return gives

    def opaque(self, node: ast.Call) -> Value:
        """Result of a call that is not followed; out of a model in a region it is likely half."""
        name = (dotted(node.func) or "").rpartition(".")[2].lower()
        for keyword in node.keywords:
            named = keyword.arg in models.LOADED_AS and models.loads(node)
            dtype = self.values[id(keyword.value)] if named else UNKNOWN
            if keyword.arg == "torch_dtype":
                dtype = models.spelled(dtype)
            if dtype.kind == "dtype" and dtype.dtype in CONCRETE:
                loaded = {"cast", "model"} if keyword.arg == "torch_dtype" else {"cast"}
                return Value("tensor", dtype.dtype, tags=frozenset(loaded))
        tags: frozenset[str] = frozenset()
        if self.region.on and _MODEL.search(name):
            other = {"float16": "not-bfloat16", "bfloat16": "not-float16"}.get(self.region.dtype)
            tags = frozenset({"amp"} if other is None else {"amp", other})
        if node.args and _KEEPS_SHAPE.search(name):
            tags |= self.values[id(node.args[0])].tags & SPATIAL
        plain = isinstance(node.func, ast.Name) or self.module.qualify(node.func)
        if plain and node.args and not _MODEL.search(name):
            first = self.values[id(node.args[0])]
            if first.is_tensor and first.dtype in ("float32", "float64"):
                return Value(tags=tags)  # nothing says that a function narrows its argument
        return Value("unknown", self.function.given_by(node), tags=tags)

    def own_method(self, func: ast.Attribute) -> bool:
        """Whether a method is one that the class of this function defines, whatever its name."""
        cls = self.function.cls
        if cls is None or not isinstance(func.value, ast.Name) or func.value.id != "self":
            return False
        defines: bool = self.ask("defines", cls, func.attr)
        return defines

    @staticmethod
    def is_method(owner: Value, name: str) -> bool:
        if owner.is_tensor or name in ops.FUNCTIONS:
            return owner.is_tensor
        return (
            name in ops.SHAPES
            or name in ops.CASTS
            or name in ops.MATMULS
            or name in creation.NEW
            or name in ops.REDUCTIONS
            or name in ops.PAIRWISE
            or name in _METHODS
            or (name.endswith("_") and name[:-1] in _IN_PLACE)
        )

    def function_call(
        self, node: ast.Call, qualified: str, arguments: list[Value], keywords: dict[str, Value]
    ) -> Value:
        if qualified in ("torch.finfo", "numpy.finfo"):
            of = arguments[0] if arguments else Value("dtype", "float32")
            named = str(of.const).rpartition(".")[2] if qualified[0] == "n" else ""
            return Value("finfo", named if named in CONCRETE else of.dtype)
        if qualified in ("torch.device", "torch.Generator"):
            return Value("other")
        if qualified in _ANNOTATIONS and len(arguments) == 2:
            return arguments[1]
        if qualified in _DTYPE_QUERIES:
            return _dtype_query(qualified, arguments)
        if qualified in ("torch.nn.Parameter", "torch.nn.Buffer") and arguments:
            return arguments[0].but(kind="tensor", made=None, store=frozenset())
        if qualified in models.WRAPPERS and arguments and models.holds_half(arguments[0]):
            return arguments[0]
        if qualified.startswith("torch.nn.") and qualified.count(".") == 2:
            tags = frozenset({"instance", "keywords"} if node.keywords else {"instance"})
            return Value("callable", const=qualified, items=tuple(arguments), tags=tags)
        if qualified.startswith("torch.") and qualified.endswith("Tensor"):
            legacy = creation.LEGACY.get(qualified.rpartition(".")[2])
            if legacy is not None:
                return Value("tensor", legacy, tags=frozenset({"cast"}))
        if qualified.startswith("einops."):
            name = qualified.rpartition(".")[2]
            if arguments and name in ("rearrange", "repeat"):
                tags = arguments[0].tags - SPATIAL
                if len(arguments) > 1 and isinstance(arguments[1].const, str):
                    tags |= rearranged_tags(arguments[1].const)
                return arguments[0].but(ndim=None, const=None, tags=tags)
            if name == "einsum" and arguments:
                return self.einsum(arguments[-1], arguments[:-1])
        for prefix in FUNCTIONAL:
            if qualified.startswith(prefix):
                name = qualified[len(prefix) :]
                if "." not in name:
                    if prefix in ("torch.linalg.", "torch.fft."):
                        name = qualified.removeprefix("torch.")
                    first = node.args[0] if node.args else None
                    return self.operation(name, node, arguments, keywords, first)
        if qualified.startswith("numpy."):
            return arrays.call(qualified[6:], node, arguments, keywords)
        if qualified.startswith("math."):
            return _math(qualified[5:], arguments)
        local = self.ask("own_class", qualified)
        if local is not None:
            return Value("callable", const=local)
        return self.followed(node, arguments, keywords)

    def module_call(self, callee: Value, node: ast.Call, arguments: list[Value]) -> Value:
        """Result of calling an ``nn.Module`` instance, or of making one."""
        place = self.function.given_by(node)
        if not isinstance(callee.const, str):
            return Value("unknown", place)
        name = callee.const.rpartition(".")[2]
        first = arguments[0] if arguments else UNKNOWN
        if name == "Sequential" and "keywords" not in callee.tags:
            result = first
            for layer in callee.items:
                if layer.kind != "callable":
                    return Value("unknown", place)
                result = self.module_call(layer, node, [result])
            return result
        if name in ("Embedding", "EmbeddingBag"):
            of = self.function.qualname  # other methods see the variable too
            return Value("tensor", f"~parameter.{of}.{place[1:]}", tags=frozenset({"float"}))
        op = ops.MODULES.get(name)
        if op is None:
            return Value("unknown", place)
        if op == "recurrent":
            result = self.listed(op, first, [])
        elif op in ops.SHAPES:
            result = self.moved(op, node, first).but(made=None)
        else:
            names = bounds.ARGUMENTS.get(op, ())
            given = dict(zip(names, callee.items, strict=False))
            if "keywords" in callee.tags:
                given = dict.fromkeys(names, UNKNOWN)
            count = ops.SEVERAL_OPERANDS.get(op, 1)
            second = op in ops.OF_SECOND and len(arguments) > 1
            operands = arguments[1:2] if second else arguments[:count]
            result = self.computed(op, node, first, [], given, None)
            whole = self.listed(op, operands[0] if operands else UNKNOWN, operands[1:])
            result = result.but(dtype=whole.dtype, wide=whole.wide, made=None, ndim=None)
        if self.region.state == "inherited" and op in _PARAMETRIC:
            result = result.but(dtype=place if first.dtype != "float64" else "float64")
        return result.but(kind="tensor") if result.kind == "unknown" else result


_PARAMETRIC = frozenset(
    {"recurrent", "prelu", *(op for op in ops.MODULES.values() if op in ops.MATMULS)}
)
"""Modules whose parameters' dtype is that of the result, unless autocast sets it."""
_ANNOTATIONS = frozenset({"torch.jit.annotate", "typing.cast"})
"""Functions that tell a checker the type of their second argument, and return it."""
_DTYPE_QUERIES = {
    "torch.promote_types", "torch.result_type", "torch.get_default_dtype",
    "torch.get_autocast_dtype", "torch.get_autocast_gpu_dtype", "torch.get_autocast_cpu_dtype",
}  # fmt: skip


def _told(found: Value | None, opaque: Value) -> Value:
    """What a call gives by what it runs, or what is known of any call where that tells nothing."""
    if found is None:
        return opaque
    if found.kind in ("unknown", "callable") and found.dtype not in models.HALF:
        return opaque.but(tags=opaque.tags | (found.tags & models.OF_REGION))
    if found.dtype == opaque.dtype:
        return found.but(tags=found.tags | opaque.tags)
    return found


def _dtype_query(qualified: str, arguments: list[Value]) -> Value:
    if "autocast" in qualified:
        return Value("dtype", "low")
    if qualified == "torch.get_default_dtype" or len(arguments) != 2:
        return Value("dtype", "float32" if qualified == "torch.get_default_dtype" else "")
    a, b = arguments
    if qualified == "torch.promote_types":
        a, b = Value("tensor", a.dtype), Value("tensor", b.dtype)
    return Value("dtype", promote(a, b))


def _math(name: str, arguments: list[Value]) -> Value:
    given = [a.const for a in arguments]
    if given and all(isinstance(c, (int, float)) for c in given):
        try:
            return number(getattr(math, name)(*given))
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            pass
    integral = name in ("ceil", "floor", "gcd", "comb", "prod", "factorial", "isqrt", "trunc")
    lo = 0.0 if name in ("sqrt", "exp", "fabs", "hypot") else -INF
    return Value("number", "int" if integral else "float", lo)


def _many(item: Value) -> Value:
    """A sequence of any length, of which every item is like ``item``."""
    return Value("tuple", items=(item,), tags=frozenset({"comprehension"}))
