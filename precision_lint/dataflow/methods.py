"""Attributes and methods of values: tensors, arrays, strings, containers, unknown objects."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from precision_lint.dataflow import (
    around,
    arrays,
    bound_methods,
    building,
    casts,
    declared,
    devices,
    frameworks,
    frozen,
    functions,
    listed,
    objects,
    records,
    regions,
    settings,
    special_methods,
    training,
)
from precision_lint.dataflow.calls import CALLEES
from precision_lint.dataflow.containers import child, rebind, size_of
from precision_lint.dataflow.creation import create, limit_of, sampled
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.protocol import note
from precision_lint.dataflow.several import call_either, each, perhaps_made
from precision_lint.dataflow.tensors import CAST, HAZARDS, Applied, cast, looked_at, operate
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import V_FLOAT32, Dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    BROUGHT,
    DETACHED,
    EMPTY,
    GRADIENT,
    INF,
    NONE,
    PARAMETER,
    Array,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    ModuleValue,
    Reference,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
    begun,
    class_of,
    counts,
    text,
    truth,
)
from precision_lint.torchmodel import creation, foreign, operations

Arguments = list[Value]
Keywords = dict[str, Value]
CASTS: Final[dict[str, Dtypes]] = {
    "float": dtypes.V_FLOAT32, "half": dtypes.V_FLOAT16, "bfloat16": dtypes.V_BFLOAT16,
    "double": dtypes.V_FLOAT64, "bool": dtypes.V_BOOLEAN, "cfloat": dtypes.V_COMPLEX,
    "cdouble": dtypes.V_COMPLEX,
    **dict.fromkeys(("int", "long", "short", "byte", "char"), dtypes.V_INTEGER),
}  # fmt: skip
KEEPS: Final = frozenset({
    "cuda", "cpu", "contiguous", "pin_memory", "requires_grad_", "share_memory_", "retain_grad",
    "xpu", "mps", "npu", "resolve_conj", "register_hook",
})  # fmt: skip
"""Methods that give the tensor itself, or a copy on another device."""
PARTS: Final = {"real": "real", "imag": "imag"}
VIEWS_AS_ATTRIBUTES = {"T": "t", "mT": "transpose", "H": "t", "mH": "transpose", **PARTS}
NUMBERS: Final = frozenset({
    "dim", "ndimension", "numel", "nelement", "element_size", "stride", "storage_offset",
    "get_device", "data_ptr", "__len__",
})  # fmt: skip
BOOLEANS = frozenset({"is_floating_point", "is_complex", "is_contiguous", "is_signed", "equal"})
SHARED: Final = frozenset({
    "sum", "mean", "max", "min", "std", "var", "reshape", "transpose", "copy", "clip", "dot",
    "round", "all", "any", "argmax", "argmin", "flatten", "squeeze", "repeat", "sort", "take",
    "prod", "cumsum", "cumprod", "split", "item", "tolist", "view", "index", "count", "fill", "put",
    "ravel", "nonzero", "conj", "diagonal", "trace", "add", "apply", "swapaxes", "argsort",
    "searchsorted", "abs", "sub", "mul", "div", "pow", "add_", "log", "size", "type", "map",
    "update", "insert", "sign", "where", "filter", "unique", "median", "mode", "quantile", "corr",
    "floor", "ceil", "expand", "select", "unbind", "values", "t", "sample", "diff",
})  # fmt: skip
"""Methods that arrays, data frames and other objects have as well."""


# attributes


def attribute(it: Interpreter, value: Value, name: str, node: ast.AST) -> Value:
    """``value.name``"""
    handler = ATTRIBUTES.get(value.__class__)
    return handler(it, value, name, node) if handler is not None else unknown()


def _of_tensor(it: Interpreter, value: Tensor, name: str, node: ast.AST) -> Value:
    if name == "dtype":
        return DtypeValue(value.dtypes, node, it.module, source=value)
    if name == "shape":
        return Special("shape", node, it.module, of=value)
    if name == "device":
        return Special("device", node, it.module, of=value)
    if name == "data":
        return value.but(flags=value.flags | DETACHED)
    if name == "grad":
        return Tensor(
            value.dtypes, "grad", (value,), node, it.module, flags=GRADIENT | DETACHED,
            assumptions=value.assumptions,
        )  # fmt: skip
    if name in VIEWS_AS_ATTRIBUTES:
        op = operations.operation(VIEWS_AS_ATTRIBUTES[name])
        return operate(it, op, [value], {}, node) if op is not None else value
    if name == "ndim":
        return Scalar(value.rank if value.rank >= 0 else None, "int", 0)
    if name in ("requires_grad", "is_cuda", "is_leaf"):
        return Scalar(None, "bool")
    if name in ("values", "indices") and value.op in ("max", "min", "sort", "topk", "median"):
        return value if name == "values" else value.but(dtypes=dtypes.V_INTEGER)
    return bound_methods.bound(it, value, name, node)


def _of_instance(it: Interpreter, value: Instance, name: str, node: ast.AST) -> Value:
    found = _attribute_of(it, value, name, node)
    said = declared.of_attribute(it, value, name)
    return found if said is None else declared.as_annotated(it, said[0], found, said[1])


def _attribute_of(it: Interpreter, value: Instance, name: str, node: ast.AST) -> Value:
    found = objects.load(it, value, name, node)
    if found is not None:
        return found
    if isinstance(value.items, Table) and name in value.items.items:
        return objects.held(it, value, name, value.items.items[name])
    if name == "dtype":
        return DtypeValue(objects.weights_of(it, value)[0], node, it.module)
    if name == "device":
        return Special("device", node, it.module, of=value)
    if name == "param_groups" and objects.is_a(it, value.cls, *training.OPTIMIZER):
        return training.groups(it, node)
    known = value.attributes.get(("unknown", name))
    if known is None:
        assumed = assume.INPUT if objects.is_module(it, value.cls) else assume.BATCH
        known = it.unknown(name, dtypes.BATCHES, assumed)
        value.attributes[("unknown", name)] = known
    return bound_methods.read(it, known, value, node)


def _of_unknown(it: Interpreter, value: Unknown, name: str, node: ast.AST) -> Value:
    if (stored := it.variables.get(("of", value.symbol.number, name))) is not None:
        return stored
    if name == "dtype":
        made = tensor_of(it, value, node)
        assert made is not None
        return DtypeValue(made.dtypes, node, it.module, source=made)
    if name == "shape":
        value.symbol.uses |= Symbol.SHAPED
        return Special("shape", node, it.module, of=value)
    if name == "device":
        return Special("device", node, it.module, of=value)
    if name in ("grad", "mT", "mH") and (made := tensor_of(it, value, node)) is not None:
        return _of_tensor(it, made, name, node)
    value.symbol.uses |= Symbol.COMPLEX if name in PARTS else 0
    if name in ("T", "data", "real", "H"):
        return value
    if name == "ndim":
        return Scalar(None, "int", 0)
    if name in foreign.SCHEDULES:
        made_by, known = foreign.SCHEDULES[name], assume.LIBRARY
        return Tensor(V_FLOAT32, made_by, (), node, it.module, 0.0, 1.0, known, DETACHED)
    found = child(it, value, name)
    counts([found] if name in ("size", "itemsize", "nbytes") else ())  # of tensors, a method
    return bound_methods.read(it, found, value, node)


def _of_reference(it: Interpreter, value: Reference, name: str, node: ast.AST) -> Value:
    return it.program.member(f"{value.name}.{name}", node, it.module)  # type: ignore[no-any-return]


def _of_special(it: Interpreter, value: Special, name: str, node: ast.AST) -> Value:
    if value.kind == "either":
        return each(it, value, lambda one: attribute(it, one, name, node), node)
    if name in value.fields:
        found = value.fields[name]
        if isinstance(found, Value):
            return found
    if value.kind == "scaler" and name == "_per_optimizer_states":
        note(it, "state-read", node)
    if value.kind == "scheduler" and name == "optimizer":
        return value.fields["optimizer"]  # type: ignore[no-any-return]
    if value.kind == "optimizer" and name == "param_groups":
        return Special("groups", node, it.module, owner=value)
    if value.kind == "finfo":
        return limit_of(it, value, name, node)
    if value.kind == "device" and name == "type":
        return Scalar(value.fields.get("type"), "str", op="device", operands=(value,))
    if value.kind == "shape":
        return Scalar(None, "int", 0)
    return bound_methods.bound(it, value, name, node)


def _of_class(it: Interpreter, value: ClassValue, name: str, node: ast.AST) -> Value:
    cls = value.cls
    if name == "apply" and objects.is_a(it, cls, *building.FUNCTION):
        return Special("function", node, it.module, cls=cls)
    method = objects.find_method(it, cls, name)
    if method is not None:
        return Closure(method, value if method.kind == "class" else None)
    constant = objects.class_constant(it, cls, name)
    if constant is not None:
        return constant
    for inner in cls.inner:
        if inner.name == name:
            return ClassValue(inner)
    if name in ("from_pretrained", "from_config", "load_from_checkpoint"):
        return Special("factory", node, it.module, cls=cls, name=name)
    return unknown()


def _of_file(it: Interpreter, value: ModuleValue, name: str, node: ast.AST) -> Value:
    return it.program.of_file(it, value.module, name)  # type: ignore[no-any-return]


def _of_array(it: Interpreter, value: Array, name: str, node: ast.AST) -> Value:
    if name == "dtype":
        return DtypeValue(value.dtypes, node, it.module)
    if name == "shape":
        return Special("shape", node, it.module, of=value)
    if name == "T":
        return value
    return bound_methods.bound(it, value, name, node)


def _bound(it: Interpreter, value: Value, name: str, node: ast.AST) -> Value:
    """A method that is not called at once, or an entry of a dict that has them as attributes."""
    if isinstance(value, Table) and name in value.items and not hasattr(dict, name):
        return value.items[name]
    if isinstance(value, Sequence) and name in ("values", "indices", "U", "S", "sign", "Q", "R"):
        items = value.items or ()
        fields = {"values": 0, "indices": 1, "U": 0, "S": 1, "sign": 0, "Q": 0, "R": 1}
        if fields[name] < len(items):
            return items[fields[name]]
    return bound_methods.bound(it, value, name, node)


ATTRIBUTES: Final[dict[type, Callable[[Interpreter, Any, str, ast.AST], Value]]] = {
    Tensor: _of_tensor,
    Instance: _of_instance,
    Unknown: _of_unknown,
    Reference: _of_reference,
    Special: _of_special,
    ClassValue: _of_class,
    ModuleValue: _of_file,
    Array: _of_array,
    Sequence: _bound,
    Table: _bound,
    Scalar: _bound,
    Closure: _bound,
}


# methods


REPEATED: Final[list[Callable[[Interpreter, Value, ast.AST, str], None]]] = []
"""What to look for where the backward of an ``autograd.Function`` calls a method (``hazards``)."""


def call_method(
    it: Interpreter,
    value: Value,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    """``value.name(...)``"""
    for look in REPEATED if it.backward is not None else ():
        look(it, value, node, name)
    handler = METHODS.get(value.__class__)
    if handler is not None:
        return handler(it, value, name, arguments, keywords, node)
    if name == "__get__" and isinstance(value, Closure) and arguments:
        return Closure(value.function, arguments[0], value.outer, value.bare)
    return it.call(attribute(it, value, name, node), arguments, keywords, node)


def tensor_method(
    it: Interpreter,
    value: Tensor,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    """A method of a tensor."""
    if name == "requires_grad_":
        return _tracked(it, value, arguments, node)
    if name in KEEPS:
        return devices.moved(value, name)
    if name in ("to", "type", "type_as") or (name in CASTS and not arguments):
        return _cast(it, value, name, arguments, keywords, node)
    if name in DRAWS:
        return _drawn(it, value, name, arguments, node)
    if name in ("detach", "detach_"):
        looked_at(it, "detach", value, node)
        return value.but(flags=value.flags | DETACHED)
    if name in ("clone", "copy_") or name.startswith("new_"):
        return _copied(it, value, name, arguments, keywords, node)
    answer = _answer(it, value, name, [*arguments, *keywords.values()], node)
    if answer is not None:
        return answer
    operation = operations.of_method(name)
    if operation is None:
        return it.unknown(name, dtypes.V_ANY, assume.CALL)
    inplace = name.endswith("_") and not name.endswith("__")
    given = [value, *arguments]
    if name == "where":  # the condition comes first
        given = [*arguments[:1], value, *arguments[1:]]
    result = operate(it, operation, given, keywords, node, inplace)
    if inplace and isinstance(node.func, ast.Attribute):
        rebind(it, node.func.value, result)
    return result


def _tracked(it: Interpreter, value: Tensor, arguments: Arguments, node: ast.Call) -> Tensor:
    """``x.requires_grad_()``: gradients come to it from here on."""
    if arguments and truth(arguments[0]) is False:
        return value
    result = value.but(flags=value.flags & ~DETACHED)
    if isinstance(node.func, ast.Attribute):
        rebind(it, node.func.value, result)
    return result


def _cast(
    it: Interpreter,
    value: Tensor,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    if name == "to":
        vector = building.asked_dtype(it, arguments, keywords)
        device = devices.asked([*arguments, *keywords.values()])
        if vector is None:
            unclear = any(
                isinstance(one, Unknown) and not one.symbol.uses & Symbol.DEVICE
                for one in arguments
            )
            moved = value.but(flags=value.flags | BROUGHT) if unclear else value
            return devices.on(moved, device)
        explicit, source = _names_dtype(arguments, keywords), _source(arguments, keywords)
        chosen = building.chosen([*arguments, *keywords.values()])
        return devices.on(cast(it, value, vector, node, explicit, source, chosen), device)
    if name == "type_as":
        other = tensor_of(it, arguments[0]) if arguments else None
        return cast(it, value, other.dtypes, node, False, other) if other is not None else value
    if name == "type":
        return _typed(it, value, arguments, keywords, node)
    return cast(it, value, CASTS[name], node)


DRAWS: Final = {"uniform_": (0.0, 1.0), "normal_": (-INF, INF), "bernoulli_": (0.0, 1.0),
         "exponential_": (0.0, INF), "random_": (-INF, INF), "fill_": (-INF, INF), "zero_": (0, 0)}  # fmt: skip
"""Methods that overwrite a tensor, and the range of what they write."""


def _drawn(
    it: Interpreter, value: Tensor, name: str, arguments: Arguments, node: ast.Call
) -> Value:
    lo, hi = DRAWS[name]
    op = {"uniform_": "uniform", "zero_": "zeros"}.get(name, name[:-1])
    operation = operations.operation(name[:-1]) if name in ("fill_", "zero_") else None
    first = arguments[0] if arguments else None
    if operation is not None and isinstance(first, Scalar):
        return operate(it, operation, [value, *arguments], {}, node, True)
    if operation is not None and name == "zero_":
        operate(it, operation, [value], {}, node, True)  # for those who look for it
    made = Tensor(
        value.dtypes,
        op,
        (),
        node,
        it.module,
        lo,
        hi,
        value.assumptions,
        rank=value.rank,
        data="follows",
    )
    if isinstance(node.func, ast.Attribute):
        rebind(it, node.func.value, made)
    return made


def _source(arguments: Arguments, keywords: Keywords) -> Tensor | None:
    """The tensor whose dtype ``to`` is given."""
    for given in (*arguments, *keywords.values()):
        if isinstance(given, DtypeValue) and given.source is not None:
            return given.source
        if isinstance(given, Tensor):
            return given
        if isinstance(given, Unknown) and given.symbol.uses & (Symbol.TENSOR | Symbol.SHAPED):
            return given.symbol.tensor
    return None


def _names_dtype(arguments: Arguments, keywords: Keywords) -> bool:
    """Whether ``to`` is given a dtype that the code names, not one of another tensor."""
    given = [*arguments, *keywords.values()]
    return any(isinstance(v, DtypeValue) and v.node is None for v in given) or any(
        isinstance(v, DtypeValue) and _is_plain(v) for v in given
    )


def _is_plain(value: DtypeValue) -> bool:
    node = value.node
    return (
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.attr != "dtype"
    )


def _typed(
    it: Interpreter, value: Tensor, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if not arguments and not keywords:
        return Scalar(None, "str")
    if arguments and text(arguments[0]) is not None:
        keywords = {"dtype": arguments[0]}
    vector = building.asked_dtype(it, arguments, keywords)
    return cast(it, value, dtypes.V_ANY if vector is None else vector, node)


def _copied(
    it: Interpreter,
    value: Tensor,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    if name == "clone":
        flags = value.flags & ~PARAMETER  # it is cast with no module
        return value.but(op="clone", operands=(value,), node=node, home=it.module, flags=flags)
    if name == "copy_":
        source = tensor_of(it, arguments[0]) if arguments else None
        if source is None:
            return value
        result = cast(it, source, value.dtypes, node, False)
        if isinstance(node.func, ast.Attribute):
            rebind(it, node.func.value, result)
        return result
    made = creation.creation(name)
    if made is None:
        return value
    return create(it, made, [value, *arguments], keywords, node)


def _answer(
    it: Interpreter, value: Tensor, name: str, arguments: Arguments, node: ast.AST
) -> Value | None:
    """A method that does not give a tensor; None: it is another one."""
    if name == "item":
        applied = Applied(CAST, [value], node, False)
        applied.result = value
        for look in HAZARDS.get("item", ()):
            look(it, applied)
        kind, bounds = dtypes.kind(value.dtypes), (value.lo, value.hi)
        return Scalar(None, kind, *bounds, value.assumptions, node, it.module, "item", (value,))
    if name == "tolist":
        return Sequence(None, Scalar(None, "number", value.lo, value.hi), "list")
    if name == "size":
        if arguments:
            return size_of(value, arguments[0])
        return Special("shape", node, it.module, of=value)
    if name in NUMBERS:
        known = 0 if value.flags & EMPTY and name in ("numel", "nelement", "__len__") else None
        return Scalar(known, "int", 0, INF, op=name, operands=(value,))
    if name in BOOLEANS:
        known = dtypes.are_floats(value.dtypes) if name == "is_floating_point" else None
        return Scalar(known, "bool", op=name, operands=(value,))
    if name in ("numpy", "__array__"):
        applied = Applied(CAST, [value], node, False)
        applied.result = value
        for look in HAZARDS.get("numpy", ()):
            look(it, applied)
        return Array(value.dtypes, "numpy", (value,), node, it.module, value.lo, value.hi)
    if name == "backward":
        return training.backward(it, value, node)
    if name == "view" and len(arguments) == 1:
        return _bits(it, value, arguments[0], node)
    return None


def _bits(it: Interpreter, value: Tensor, asked: Value, node: ast.AST) -> Value | None:
    """``x.view(dtype)``: the same bits as numbers of another dtype; None: it asks for a shape."""
    vector = building.asked_dtype(it, [asked], {}) if not isinstance(asked, Tensor) else None
    if vector is None or isinstance(asked, Unknown):
        return None
    return Tensor(vector, "bits", (value,), node, it.module, rank=value.rank)


def _instance_method(
    it: Interpreter,
    value: Instance,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    if name == "save_for_backward":
        objects.store(it, value, "saved_tensors", Sequence(tuple(arguments), None, "tuple"))
        return NONE
    found = objects.load(it, value, name, node)
    if found is not None:
        return building.call_held(it, value, found, arguments, keywords, node)
    if name == "manual_backward" and arguments:
        training.framework_backward(it, value, arguments[0], node)
        return NONE
    if name == "optimizers" and objects.is_a(it, value.cls, *foreign.LIGHTNING):
        return frameworks.optimizers_of_module(it)
    if name in ("train", "evaluate") and objects.is_a(it, value.cls, *foreign.HUGGING_FACE):
        frameworks.trained(it, value, node)
    if name == "clip_gradients" and arguments:
        return training.clip(it, name, arguments, node)  # Lightning's: by hand it does not unscale
    if name == "_replace" and records.is_named_tuple(it, value):
        return records.replaced(it, value, keywords, node)
    if objects.is_module(it, value.cls):
        answer = building.module_method(it, value, name, arguments, keywords, node)
        if answer is not None:
            return answer
        return building.foreign(it, value, name, arguments, node)
    return it.call(_of_instance(it, value, name, node), arguments, keywords, node)


def _unknown_method(
    it: Interpreter,
    value: Unknown,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    """A method of an object of an unknown kind: a tensor's, if only tensors have it."""
    symbol = value.symbol
    symbol.uses |= Symbol.METHODS
    if name in KEEPS or name in ("eval", "train", "requires_grad_", "clone"):
        if name == "requires_grad_":
            frozen.freeze(symbol.attributes, arguments)
        elif name in ("clone", "contiguous"):
            symbol.uses |= Symbol.TENSOR
        elif name in ("eval", "train") and symbol.node is not None:
            casts.show_cast(it, symbol.vector, symbol.node, bool(class_of(symbol)))
        return devices.moved(value, name)
    if name in building.CASTS or name in ("to", "type"):
        vector = building.CASTS.get(name) or building.asked_dtype(it, arguments, keywords)
        if name == "type" and (arguments or keywords):
            vector = vector or dtypes.V_ANY
        if vector is None:
            return value
        rests = building.chosen([*arguments, *keywords.values()])
        source = _source(arguments, keywords)
        return building.cast_unknown(it, value, vector, node, source, rests)
    known = _known_protocol(it, value, name, arguments, node)
    if known is not None:
        return known
    operation = operations.of_method(name)
    framework = class_of(symbol) in foreign.ACCELERATORS  # accelerator.gather(scores)
    tensors = operation is not None and operation.takes(len(arguments)) and not framework
    if tensors or name in SHAPES or name.startswith("new_") or name == "fill_":
        return _as_tensor(it, value, name, arguments, keywords, node)
    if (name == "scale" and not keywords) or (
        name == "update" and training.updates(it, value, node)
    ):
        return training.of_unknown(it, value, name, arguments, node)
    given = training.given(arguments, keywords)
    if name == "step" and keywords.keys() <= {"closure"} and training.steps(it, value, given, node):
        return training.of_unknown(it, value, name, given, node)
    around.of_import(it, value, name, arguments, node)
    made = building.call_unknown(it, _method_of(it, value, name), arguments, keywords, node)
    made = frameworks.called(it, value, name, arguments, keywords, made, node)
    return settings.of_parser(value, name, made, arguments, keywords)


SHAPES: Final = frozenset({
    "size", "numel", "dim", "item", "tolist", "numpy", "type_as", "long", "int", "bool", "astype",
})  # fmt: skip
"""Methods of tensors and arrays that compute nothing."""


def _as_tensor(
    it: Interpreter,
    value: Unknown,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    """A method that only tensors and arrays have."""
    symbol = value.symbol
    if name == "astype":  # no tensor has it
        symbol.uses |= Symbol.ARRAY
        return _array_method(it, Array(dtypes.V_ANY, "input"), name, arguments, keywords, node)
    made = tensor_of(it, value, node)
    assert made is not None
    uses = symbol.uses
    if uses & Symbol.ARRAY:
        return Array(dtypes.V_ANY, name, (value,), node, it.module)
    result = tensor_method(it, made, name, arguments, keywords, node)
    if name in SHARED:
        symbol.uses = uses
    else:
        symbol.uses |= Symbol.TENSOR
    return result


def _known_protocol(
    it: Interpreter, value: Unknown, name: str, arguments: Arguments, node: ast.Call
) -> Value | None:
    """A method of models, optimizers, scalers and frameworks; None: it is none."""
    symbol = value.symbol
    stepped = symbol.attributes.get(("protocol", False))
    if name == "state_dict" and isinstance(stepped, Special):
        return Special("state", node, it.module, of=stepped)
    if name in ("parameters", "named_parameters"):
        if ("cast of", "") in symbol.attributes and symbol.node is not None:  # it is a model
            casts.show_cast(it, symbol.vector, symbol.node, bool(class_of(symbol)))
        return Special("parameters", node, it.module, owner=value, named=name.startswith("named"))
    if name in ("children", "modules", "named_children", "named_modules") and not arguments:
        return _method_of(it, value, name)
    if name == "backward" and arguments and not symbol.uses & Symbol.TENSOR:
        training.backward_with(it, value, arguments[0], node)
        return NONE
    if name == "backward":
        return training.backward(it, value, node)
    if name == "manual_backward" and arguments:
        training.framework_backward(it, value, arguments[0], node)
        return NONE
    if name == "autocast" and not symbol.uses & Symbol.TENSOR:
        return frameworks.region(it, value, node)
    if name in ("unscale_gradients", "clip_grad_norm_", "clip_grad_value_", "clip_gradients"):
        explicit = name == "unscale_gradients"
        note(it, "framework-unscale" if explicit else "framework-clip", node, value)
        return NONE
    if name in ("unscale_", "zero_grad", "get_scale"):
        return training.of_unknown(it, value, name, arguments, node)
    return None


def _method_of(it: Interpreter, value: Unknown, name: str) -> Unknown:
    found = child(it, value, name)
    if isinstance(found, Unknown):
        return found
    return it.unknown(name, dtypes.V_ANY, assume.CALL)  # named like a keyword of its class


def _special_method(
    it: Interpreter,
    value: Special,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    if value.kind == "scaler":
        return training.scaler_method(it, value, name, training.given(arguments, keywords), node)
    if value.kind == "optimizer":
        return training.optimizer_method(it, value, name, arguments, node)
    if value.kind == "scaled" and name == "backward":
        return training.backward(it, value, node)
    if value.kind == "stack" and name in ("enter_context", "enter_async_context") and arguments:
        regions.enter_context(it, value, arguments[0], node)
        return special_methods.entered(it, arguments[0], node)
    if value.kind == "shape" and name == "numel":
        return Scalar(None, "int", 0)
    if value.kind == "distribution" and name in ("sample", "rsample"):
        return sampled(it, value, bool(arguments or keywords), node)
    if value.kind == "either":
        given = (arguments, keywords, node)
        return each(it, value, lambda one: call_method(it, one, name, *given), node)
    found = _of_special(it, value, name, node)
    if isinstance(found, Special) and found.kind == "method":
        return it.unknown(name, dtypes.V_ANY, assume.CALL)
    return it.call(found, arguments, keywords, node)


def _array_method(
    it: Interpreter,
    value: Array,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    if name in ("astype", "view"):
        from precision_lint.dataflow.tensors import dtype_of

        vector = dtype_of(it, arguments[0] if arguments else keywords.get("dtype"))
        return Array(
            vector or dtypes.V_ANY, "astype", (value,), node, it.module, value.lo, value.hi
        )
    if name in ("item", "tolist"):
        return Scalar(None, "number", value.lo, value.hi)
    kept = name in ("reshape", "copy", "transpose", "flatten", "ravel", "squeeze", "max", "min")
    lo, hi = (value.lo, value.hi) if kept else (-INF, INF)
    vector = arrays.of_method(it, name, value, arguments, keywords)
    return Array(vector, name, (value,), node, it.module, lo, hi)


def _scalar_method(
    it: Interpreter,
    value: Scalar,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.Call,
) -> Value:
    if value.kind == "str":
        if name in ("split", "rsplit", "splitlines"):
            return Sequence(None, Scalar(None, "str"), "list")
        if name in ("startswith", "endswith", "isdigit"):
            return Scalar(None, "bool")
        return begun(value, "{") if name == "format" else Scalar(None, "str")
    return unknown()


METHODS: Final[dict[type, Callable[..., Value]]] = {
    Tensor: tensor_method,
    Instance: _instance_method,
    Unknown: _unknown_method,
    Special: _special_method,
    Sequence: listed.of_sequence,
    Table: listed.of_table,
    Array: _array_method,
    Scalar: _scalar_method,
}


def call_special(
    it: Interpreter, callee: Special, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """Calling a bound method, a partial function, an autograd function."""
    kind = callee.kind
    if kind == "method" and isinstance(node, ast.Call):
        return call_method(
            it, callee.fields["of"], callee.fields["name"], arguments, keywords, node
        )
    if kind == "partial":
        given = {**callee.fields["keywords"], **keywords}
        return it.call(callee.fields["of"], [*callee.fields["arguments"], *arguments], given, node)
    if kind == "either":
        return call_either(it, callee, arguments, keywords, node)
    if kind == "function":
        return functions.apply(it, callee.fields["cls"], arguments, keywords, node)
    if kind in ("no-grad", "null"):
        return arguments[0] if arguments else callee
    if kind == "factory":
        return around.load(it, callee.fields["cls"], callee.fields["name"], keywords, node)
    if kind == "scope":
        return perhaps_made(it, callee, arguments, keywords, node)
    return unknown()


CALLEES[Special] = call_special
