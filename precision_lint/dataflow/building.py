"""Objects that are built and called: classes of the project, layers of torch, unknown models."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from precision_lint.dataflow import casts, frozen, objects, records, settings
from precision_lint.dataflow.calls import CALLEES
from precision_lint.dataflow.containers import begins, child, rebind
from precision_lint.dataflow.contexts import Key
from precision_lint.dataflow.filling import CASTING, leave_open
from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter, tensor_of
from precision_lint.dataflow.layer_objects import (
    as_layer,
    has_no_weights,
    hold,
    init_layer,
    make_layer,
)
from precision_lint.dataflow.networks import generated, network
from precision_lint.dataflow.only_class import note_given
from precision_lint.dataflow.parameters import unseen_object
from precision_lint.dataflow.protocol import handed, note
from precision_lint.dataflow.tensors import cast, dtype_of, operate
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import any_of, join, join_all, unknown
from precision_lint.domains.values import (
    BUFFER,
    LEARNED,
    ON_DEVICE,
    PARAMETER,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Reference,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
    class_of,
)
from precision_lint.syntax.program import Class, Function, every, scan
from precision_lint.torchmodel import layers
from precision_lint.torchmodel.foreign import TRANSFORMS
from precision_lint.torchmodel.operations import Operation, operation

FUNCTION: Final = ("torch.autograd.Function", "torch.autograd.function.Function")
SHAPES_OF_CLASS: Final = 8
"""Sets of constructor arguments of one class that are told apart."""
RECURRENT: Final = Operation(
    "recurrent", ("input", "weight", "hx", "cx"), (0, 1, 2, 3), result="promoted", strict=(0, 1, 2, 3),
    policy=dict.fromkeys(("cuda", "cpu", "xpu"), "lower"), missing={},
)  # fmt: skip
"""What RNNs, attention and whole transformers of torch come to.  hx, cx: the state of an RNN, or the key
and the value of attention."""
MODEL: Final = Operation(
    "model", ("input", "weight"), (0, 1), result="promoted", strict=(0, 1),
    policy=dict.fromkeys(("cuda", "cpu", "xpu"), "lower"), missing={},
)  # fmt: skip
"""The first layer of a model that nobody saw."""
ENUMS: Final = ("enum.Enum", "enum.IntEnum", "enum.StrEnum")


OBJECTS: Final[list[Callable[[Interpreter, Instance, ast.AST], None]]] = []
"""What to look for where an object of a class of the project is made (``hazards``)."""


def construct(
    it: Interpreter,
    callee: ClassValue,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """An object of a class of the project."""
    made = _object(it, callee, arguments, keywords, node)
    hold((*arguments, *keywords.values()))
    objects.keep_settings(it, made, keywords)
    _as_base(it, callee.cls, keywords, node)
    for look in OBJECTS if isinstance(made, Instance) else ():
        look(it, made, node)  # type: ignore[arg-type]
    return made


MADE_LIKE: Final[list[Callable[[Interpreter, str, Mapping[str, Value], ast.AST], None]]] = []
"""What to look for where an object is made as a library's class makes it, by that class's dotted name."""


def _as_base(it: Interpreter, cls: Class, keywords: Mapping[str, Value], node: ast.AST) -> None:
    """An object of a class that derives from a library's: that one is given what no ``__init__`` names."""
    init = objects.find_method(it, cls, "__init__")
    if init is not None:
        if not _hands_on_as_given(init):
            return
        named = init.node.args if init.node.args.kwarg is not None else None
        taken = (
            {one.arg for one in (*named.args, *named.kwonlyargs)} if named is not None else keywords
        )
        keywords = {name: value for name, value in keywords.items() if name not in taken}
    for base in objects.ancestry(it, cls) if keywords else ():
        if isinstance(base, str):
            for look in MADE_LIKE:
                look(it, base, keywords, node)


def _hands_on_as_given(init: Function) -> bool:
    """Whether an ``__init__`` hands keywords on as they are, and leaves the model alone: ``**kwargs`` once, and
    besides only ``kwargs.get("tokenizer")``."""
    if "model" in scan(init).names:
        return False
    last = init.node.args.kwarg
    if last is None:
        return True
    uses: int | None = init.facts.get("uses of keywords")
    if uses is None:
        nodes = [*every(init.node)]
        names = sum(isinstance(one, ast.Name) and one.id == last.arg for one in nodes)
        reads = sum(_reads_another(one, last.arg) for one in nodes)
        uses = init.facts["uses of keywords"] = names - reads
    return uses < 2


def _reads_another(node: ast.AST, name: str) -> bool:
    """Whether an expression reads one of the keywords by name, and not the model."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
        owner, key = (node.func.value, node.args[0]) if node.func.attr == "get" else (None, None)
    elif isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        owner, key = node.value, node.slice
    else:
        return False
    named = isinstance(key, ast.Constant) and key.value != "model"
    return named and isinstance(owner, ast.Name) and owner.id == name


def _object(
    it: Interpreter,
    callee: ClassValue,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    cls = callee.cls
    if objects.is_a(it, cls, *ENUMS):
        return unknown()
    made = objects.as_made(it) if objects.is_module(it, cls) else dtypes.V_ANY
    root = objects.new_root(made, node, it)
    key_of = Key(it)
    key: Any = (
        tuple(map(key_of.of, arguments)),
        tuple((k, key_of.of(v)) for k, v in keywords.items()),
        it.unpacked,
    )
    built: dict[Any, Instance] = cls.facts.setdefault("built", {})
    it.program.built.append(cls)
    like = built.get(key)
    if like is not None and any(map(_steps, like.attributes.values())):
        given = (*arguments, *keywords.values())  # what is trained by one is not by the other
        key = (*key, *(one.symbol.number for one in given if isinstance(one, Unknown)))
        like = built.get(key)
    if like is None and len(built) >= SHAPES_OF_CLASS:
        it.program.count("constructors")
        like = unseen_object(it, cls)
    if like is not None:
        objects.cast_alike(it, root, like.root)
        if "dtype" in like.arguments:
            root.made = like.root.made
        return Instance(cls, like.attributes, root, (), like.arguments)
    result = built[key] = Instance(cls, {}, root)
    init = objects.find_method(it, cls, "__init__")
    if init is None:
        settings.filled(it, cls, result, arguments, keywords)
        init_layer(it, result, arguments, keywords, node)
        init, arguments, keywords = objects.find_method(it, cls, "__post_init__"), [], {}
    if init is not None:
        note_given(it, cls, init, arguments, keywords)
        outside = it.region
        if objects.is_module(it, cls):
            it.region = it.region._replace(dtypes=dtypes.V_OFF)
        it.run(init, result, arguments, keywords, node)
        it.region = outside
        if objects.is_module(it, cls):
            leave_open(cls, objects.ancestry(it, cls), result.attributes)
    return result


def _steps(value: Value) -> bool:
    return isinstance(value, Special) and value.kind in ("optimizer", "scaler")


CALLED: Final[list[Callable[[Interpreter, Value, list[Value], ast.AST], None]]] = []
"""What to look for where a model is called, with what it is given (``hazards``)."""


# layers of torch


def call_instance(
    it: Interpreter,
    callee: Instance,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """Calling a module, or an object with ``__call__``."""
    callee.root.out = True
    for look in CALLED:
        look(it, callee, [*arguments, *keywords.values()], node)
    if not (_inside_module(it) or objects.is_own(it, callee)):
        arguments = [_handed_in(it, callee, value) for value in arguments]
        keywords = {name: _handed_in(it, callee, value) for name, value in keywords.items()}
    own = it.variables.get(objects.slot(callee.attributes, "forward"))
    own = own or callee.attributes.get("forward")
    if isinstance(own, Closure):  # what was stored in the place of its method
        return it.call(objects.held(it, callee, "forward", own), arguments, keywords, node)
    if isinstance(callee.cls, str):
        return _call_layer(it, callee, arguments, keywords, node)
    if not it.guessed and callee.guessed and objects.was_cast(it, callee) is False:
        weights, _ = objects.weights_of(it, callee)  # a flag or an argument decides
        _fed(it, weights, arguments, node)
        return network(it, callee.cls.name, weights, [*arguments, *keywords.values()], node)
    for name in ("__call__", "forward"):
        method = objects.find_method(it, callee.cls, name)
        if method is not None:
            return it.run(method, callee, arguments, keywords, node)
    layer = as_layer(it, callee)
    if layer is not None:
        return _call_layer(it, layer, arguments, keywords, node)
    if objects.is_module(it, callee.cls):
        return network(it, callee.cls.name, objects.weights_of(it, callee)[0], arguments, node)
    return it.unknown(callee.cls.name, dtypes.V_ANY, assume.CALL)


def _inside_module(it: Interpreter) -> bool:
    """Whether the function at hand is a method of a module."""
    function = it.function
    return function is not None and function.cls is not None and objects.is_module(it, function.cls)


def _handed_in(it: Interpreter, callee: Instance, value: Value) -> Value:
    """What a model is given from outside: where a mode makes it half, its inputs are half as well."""
    if not isinstance(value, Tensor) or value.dtypes[dtypes.CODE] != dtypes.FLOAT32:
        return value
    weights, _ = objects.weights_of(it, callee)
    cast = value.op == "cast" and value.data == "explicit"
    if weights not in (dtypes.MADE, dtypes.FOLLOWS) or has_no_weights(it, callee, cast):
        return value
    own = tuple(
        dtypes.BATCHES[mode] if one == dtypes.FLOAT32 else one
        for mode, one in enumerate(value.dtypes)
    )
    return value.but(dtypes=(value.dtypes[0], *own[1:]))


TAKE_ANYTHING: Final = frozenset({"Embedding", "EmbeddingBag", "Flatten", "Unflatten", "Identity"})
"""Layers that are given integers as well."""


def _call_layer(
    it: Interpreter,
    callee: Instance,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    it.module.layer_calls.add(node)
    name = str(callee.cls)
    weights, _ = objects.weights_of(it, callee)
    layer = layers.layer(name)
    if layer is None:
        return foreign(it, callee, name, [*arguments, *keywords.values()], node)
    if layer.container:
        return _call_container(it, callee, arguments, node)
    assumptions = objects.assumed_of_weights(it, callee)
    if layer.operation in ("recurrent", "attention"):
        return _call_recurrent(it, layer, weights, assumptions, arguments, keywords, node)
    op = operation(layer.operation)
    if op is None:
        return network(it, name, weights, [*arguments, *keywords.values()], node)
    given = _given(it, callee, layer, op, weights, assumptions, keywords, node)
    _takes_reals(name, arguments)
    result = operate(it, op, arguments[: len(op.parameters)], given, node)
    if isinstance(result, Tensor):
        flags = result.flags | (LEARNED if layer.weights else 0)
        return result.but(flags=flags, data=callee)
    return result


def _given(
    it: Interpreter,
    callee: Instance,
    layer: layers.Layer,
    op: Operation,
    weights: Dtypes,
    assumptions: int,
    keywords: dict[str, Value],
    node: ast.AST,
) -> dict[str, Value]:
    """What a layer's operation is given besides its input: what the layer was built with, and its weights."""
    given = dict(keywords)
    for parameter in op.parameters:
        if parameter in callee.arguments and parameter not in given:
            if parameter not in layer.weights:
                given[parameter] = callee.arguments[parameter]
        elif parameter in layer.defaults and parameter not in given:
            given[parameter] = _constant(layer.defaults[parameter])
    own = objects.is_own(it, callee)
    weights = it.program.default_dtype if own else weights
    for attribute in layer.weights:
        stored = it.variables.get(objects.slot(callee.attributes, attribute)) if own else None
        if stored is not None:
            given[attribute] = tensor_of(it, stored) or stored
        elif attribute in op.parameters and not _without(callee, attribute):
            given[attribute] = Tensor(
                weights, "weight", (), node, it.module, assumptions=assumptions,
                flags=PARAMETER, data=(layer.name, attribute, callee),
            )  # fmt: skip
    return given


def _takes_reals(name: str, arguments: list[Value]) -> None:
    """Note that what a layer is given is a tensor of floats."""
    symbol = getattr(arguments[0], "symbol", None) if arguments else None
    if isinstance(symbol, Symbol) and name not in TAKE_ANYTHING:
        symbol.uses |= Symbol.TENSOR | Symbol.REAL


def _without(callee: Instance, attribute: str) -> bool:
    """Whether a layer was built without a weight or bias."""
    options = [callee.arguments.get(name) for name in (attribute, "affine", "elementwise_affine")]
    return any(isinstance(one, Scalar) and one.value is False for one in options)


def _constant(value: object) -> Value:
    if value is None:
        return Scalar(None, "none")
    if isinstance(value, bool):
        return Scalar(value, "bool")
    if isinstance(value, (int, float)):
        return Scalar(value, "int" if isinstance(value, int) else "float")
    return Scalar(value, "str") if isinstance(value, str) else unknown()


def _call_recurrent(
    it: Interpreter,
    layer: layers.Layer,
    weights: Dtypes,
    assumptions: int,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    first = arguments[0] if arguments else next(iter(keywords.values()), unknown())
    weight = Tensor(
        weights, "weight", (), node, it.module, assumptions=assumptions, flags=PARAMETER,
        data=(layer.name, "weight", None),
    )  # fmt: skip
    result = operate(it, RECURRENT, [first, weight, *_beside(layer, arguments, keywords)], {}, node)
    assert isinstance(result, Tensor)
    result = result.but(flags=result.flags | LEARNED)
    if layer.outputs == 1:
        return result
    if layer.name == "LSTM":
        return Sequence((result, Sequence((result, result), None)), None)
    return Sequence((result,) * layer.outputs, None)


def _beside(layer: layers.Layer, arguments: list[Value], keywords: dict[str, Value]) -> list[Value]:
    """What a layer is given beside its input that has to have the dtype of its weights."""
    if layer.name == "MultiheadAttention":
        return [v for v in (*arguments[1:3], *map(keywords.get, ("key", "value"))) if v is not None]
    if layer.operation != "recurrent":
        return []
    state = arguments[1] if len(arguments) > 1 else keywords.get("hx")
    if isinstance(state, Sequence):
        return list(state.items[:2]) if state.items is not None else []
    return [state] if isinstance(state, Tensor) else []


def _call_container(
    it: Interpreter, callee: Instance, arguments: list[Value], node: ast.AST
) -> Value:
    """``Sequential``: one layer after the other."""
    items = callee.items
    value = arguments[0] if arguments else unknown()
    if callee.cls != "Sequential" or not isinstance(items, Sequence):
        return unknown()
    if items.items is not None:
        for number, item in enumerate(items.items):
            inner = objects.held(it, callee, str(number), item)
            value = it.call(inner, [value], {}, node)
        return value
    element = any_of(items)
    if element is None:
        return value
    inner = objects.held(it, callee, "*", element)
    once = it.call(inner, [value], {}, node)
    return join(once, it.call(inner, [once], {}, node))


# models that nobody saw


FED: Final = ("encode", "decode", "forward")
"""Methods of models that are given activations first."""


def _fed(it: Interpreter, weights: Dtypes, arguments: list[Value], node: ast.AST) -> None:
    """A model of known dtype is given something: its first layer takes that dtype only.

    What is half by assumption follows the model, in whichever half the code makes that.
    """
    first: Any = arguments[0] if arguments else None
    if isinstance(first, Unknown) and ("cast of", "") in first.symbol.attributes:
        first = first.symbol.tensor
    sure = dtypes.single(weights)
    if isinstance(first, Tensor) and sure & (1 << dtypes.CODE | dtypes.HALF_MODES):
        if first.dtypes[dtypes.CODE] & dtypes.OTHER:
            own = [
                w if mode >= dtypes.HALF16 and x & dtypes.LOW else x
                for mode, (x, w) in enumerate(zip(first.dtypes, weights, strict=True))
            ]
            first = first.but(dtypes=tuple(own))
        _meet(it, weights, first, node, 0 if sure & 1 << dtypes.CODE else assume.BRANCH)


def _meet(
    it: Interpreter, weights: Dtypes, given: Tensor, node: ast.AST, assumptions: int = 0
) -> None:
    weight = Tensor(
        weights, "weight", (), node, it.module, assumptions=assumptions, flags=PARAMETER,
        data=("", "weight"),
    )  # fmt: skip
    operate(it, MODEL, [given, weight], {}, node)


def _fed_features(
    it: Interpreter, weights: Dtypes, given: list[Value], node: ast.AST, cls: str
) -> None:
    """A model is given what a processor made."""
    found: Tensor | None = OPERATIONS["features"](given, cls)
    if found is not None:
        known = not weights[dtypes.CODE] & dtypes.OTHER
        _meet(it, weights, found, node, 0 if known else assume.NETWORK | assume.WEIGHTS)


def foreign(
    it: Interpreter, owner: Instance, name: str, arguments: list[Value], node: ast.AST
) -> Value:
    """What a model of another library gives, called itself or by a method."""
    if name.startswith("_"):  # it may use no weight
        return unknown()
    weights = objects.weights_of(it, owner)[0]
    cls = str(owner.cls)
    ids = generated(it, cls, node) if name == "generate" else None
    if ids is not None:
        return ids
    if cls.startswith("diffusers.") and "Pipeline" not in cls and (name == cls or name in FED):
        _fed(it, weights, arguments, node)  # others may cast what they are given
    else:
        _fed_features(it, weights, arguments, node, cls)
    return network(it, name, weights, arguments, node)


def call_held(
    it: Interpreter,
    owner: Instance,
    callee: Value,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """A call of what an object holds: a model that nobody saw is cast with the module that holds it."""
    symbol = callee.symbol if isinstance(callee, Unknown) else None
    if symbol is None or not objects.is_module(it, owner.cls) or not objects.was_cast(it, owner):
        return it.call(callee, arguments, keywords, node)
    if ("cast of", "") in symbol.attributes or symbol.uses & (Symbol.TENSOR | Symbol.ARRAY):
        return it.call(callee, arguments, keywords, node)
    symbol.uses |= Symbol.CALLED
    weights, _ = objects.weights_of(it, owner)
    model = Unknown(Symbol(symbol.label, weights, symbol.assumptions, node, it.module))
    result = it.call(model, arguments, keywords, node)
    if isinstance(result, Unknown):
        result.symbol.assumptions |= assume.NETWORK | objects.assumed_of_weights(it, owner)
    return result


def _transforms(it: Interpreter, symbol: Symbol) -> bool:
    """Whether what is called transforms data: it is torchvision's, or called by such a class."""
    if class_of(symbol).startswith("torchvision.transforms."):
        return True
    cls = it.function.cls if it.function is not None else None
    return cls is not None and objects.is_a(it, cls, *TRANSFORMS)


def _transformed(it: Interpreter, label: str, given: list[Value]) -> Value:
    """Data that was transformed: in the dtype that it had, if that is known."""
    for one in given:
        cast = isinstance(one, Unknown) and ("cast of", "") in one.symbol.attributes
        first = tensor_of(it, one) if cast or isinstance(one, Tensor) else None
        if first is not None:
            made = it.unknown(label, first.dtypes, first.assumptions)
            made.symbol.uses |= Symbol.TENSOR | (Symbol.FLOAT if cast else 0)
            return made
    return it.unknown(label, dtypes.V_FLOAT32, assume.BATCH)


def call_unknown(
    it: Interpreter,
    callee: Unknown,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """Calling an object that nobody saw: a model, if it is given tensors."""
    symbol = callee.symbol
    symbol.uses |= Symbol.CALLED
    it.unseen_calls += 1
    given = [*arguments, *keywords.values()]
    for look in CALLED:
        look(it, callee, given, node)
    handed(it, node, callee, given)
    batch: Value | None = OPERATIONS["processed"](it, symbol.label, keywords, node)
    if batch is None and symbol.label == "generate":
        batch = generated(it, class_of(symbol.owner), node)
    if batch is not None:
        return batch
    # else it is part of what is NumPy's, or reads data
    may_be_model = not symbol.uses & Symbol.ARRAY and symbol.vector != dtypes.LOADED
    if may_be_model and (it.unpacked or any(isinstance(v, (Tensor, Unknown)) for v in given)):
        if _transforms(it, symbol):
            return _transformed(it, symbol.label, given)
        known = symbol.node is not None and not symbol.vector[0] & dtypes.OTHER
        cast = symbol.node is not None and ("cast of", "") in symbol.attributes
        _show_cast_of(it, symbol if cast else symbol.owner)
        weights = symbol.vector if known else dtypes.FOLLOWS
        if cast or (known and symbol.label in FED):
            _fed(it, symbol.vector, arguments, node)
        else:
            _fed_features(it, weights, given, node, class_of(symbol))
        made = network(it, symbol.label, weights, given, node)
        if cast and isinstance(made, Unknown):
            made.symbol.assumptions |= symbol.assumptions & assume.DEFAULT  # of the cast
        return made
    return child(it, callee, "()")


def _show_cast_of(it: Interpreter, symbol: Symbol | None) -> None:
    """What was cast, and is called or has methods that no tensor has, is a model."""
    if symbol is None or symbol.node is None or symbol.uses & Symbol.TENSOR:
        return
    if ("cast of", "") in symbol.attributes and not symbol.vector[0] & dtypes.OTHER:
        casts.show_cast(it, symbol.vector, symbol.node, bool(class_of(symbol)))


def call_class_of_layer(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value | None:
    """``nn.Linear(...)`` by its dotted name; None: it is no layer."""
    layer = layers.of_class(name)
    if layer is not None:
        return make_layer(it, layer, arguments, keywords, node)
    return None


# methods of modules


CASTS: Final = {
    "half": dtypes.V_FLOAT16,
    "bfloat16": dtypes.V_BFLOAT16,
    "float": dtypes.V_FLOAT32,
    "double": dtypes.V_FLOAT64,
}


STAYS = frozenset({
    "cuda", "cpu", "eval", "train", "requires_grad_", "apply", "share_memory", "compile",
})  # fmt: skip
"""Methods of modules that give the module."""


def module_method(
    it: Interpreter,
    owner: Instance,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value | None:
    """A method that every module has; None: another one."""
    if name in CASTS:
        casts.cast_module(it, owner, CASTS[name], node)
        return owner
    if name in ("to", "type", "to_empty", "_apply"):
        return _moved(it, owner, arguments, keywords, node)
    if name in STAYS:
        return _stays(it, owner, name, arguments, node)
    if name in ("parameters", "named_parameters", "buffers", "named_buffers"):
        special = objects.parameters_of(owner, node, it)
        special.fields["named"] = name.startswith("named")
        return special
    if name in ("register_buffer", "register_parameter", "add_module", "register_module"):
        return _register(it, owner, name, arguments, keywords)
    if name in ("append", "extend", "insert", "update") and owner.items is not None:
        return _extended(it, owner, name, arguments)
    if name in ("values", "items", "keys") and isinstance(owner.items, Table):
        return Special("items", node, it.module, of=owner, what=name)
    if name in ("children", "modules", "named_children", "named_modules"):
        return _children(it, owner, name)
    if name == "zero_grad":
        note(it, "zero", node, owner)
        return Scalar(None, "none")
    if name == "state_dict":
        return it.unknown(name, objects.weights_of(it, owner)[0], assume.WEIGHTS)
    if name == "forward" and isinstance(owner.cls, str):
        return it.call(owner, arguments, keywords, node)
    return None


def _stays(
    it: Interpreter, owner: Instance, name: str, arguments: list[Value], node: ast.AST
) -> Value:
    if name == "requires_grad_":
        frozen.freeze(owner.attributes, arguments)
    elif name == "apply" and arguments:  # to each part: what casts the whole casts them all
        _applied(it, owner, arguments[0], node)
    return owner


def _applied(it: Interpreter, owner: Instance, function: Value, node: ast.AST) -> None:
    """``module.apply(function)``"""
    parts = casts.with_parts(owner)
    for part in parts or [owner]:
        it.call(function, [part], {}, node)
    made = isinstance(function, Closure) and not CASTING.isdisjoint(scan(function.function).names)
    if parts is None and made:  # some of its parts, perhaps
        it.clock += 1
        anything = objects.Cast(dtypes.V_ANY, it.clock, None)
        it.weights = {**it.weights, (owner.root, owner.path): anything}


def chosen(values: Iterable[Value]) -> int:
    """What a dtype among the arguments of a call rests on."""
    found = 0
    for value in values:
        found |= value.assumptions if isinstance(value, DtypeValue) else 0
    return found


def _moved(
    it: Interpreter,
    owner: Instance,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Instance:
    """``module.to(...)``"""
    vector = asked_dtype(it, arguments, keywords)
    if vector is not None:
        casts.cast_module(it, owner, vector, node, chosen([*arguments, *keywords.values()]))
    else:
        places = tuple([one.symbol for one in arguments if isinstance(one, Unknown)])
        if objects.was_cast(it, owner) is not None:  # then it is a device
            for symbol in places:
                symbol.uses |= Symbol.DEVICE
        owner.root.moved += places
    return owner


def asked_dtype(
    it: Interpreter, arguments: list[Value], keywords: dict[str, Value]
) -> Dtypes | None:
    """The dtype among the arguments of ``to``; None: only a device."""
    if "dtype" in keywords:
        return dtype_of(it, keywords["dtype"])
    if "other" in keywords:
        arguments = [keywords["other"], *arguments]
    for value in arguments:
        if isinstance(value, Tensor):
            return value.dtypes
        if isinstance(value, Reference) and value.name.startswith("torch."):
            return dtype_of(it, value)
        if isinstance(value, DtypeValue):
            return value.dtypes
        if isinstance(value, Unknown) and value.symbol.uses & (Symbol.TENSOR | Symbol.SHAPED):
            made = tensor_of(it, value)
            return made.dtypes if made is not None else None
    return None


def cast_unknown(
    it: Interpreter,
    value: Unknown,
    vector: Dtypes,
    node: ast.Call,
    source: Tensor | None,
    rests: int,
) -> Value:
    """A tensor or a model that is cast: both are of that dtype from here on.

    rests: the assumptions behind the dtype.
    """
    symbol = value.symbol
    made = Unknown(Symbol(symbol.label, dtypes.run_in(vector), rests, node, it.module))
    made.symbol.uses = symbol.uses
    made.symbol.attributes = {("cast of", ""): value}
    if symbol.uses & Symbol.TENSOR:
        tensor = tensor_of(it, value, node)
        assert tensor is not None
        return cast(it, tensor, vector, node, True, source, rests)
    inner = tensor_of(it, value, node)
    if inner is not None:
        made.symbol.tensor = cast(it, inner, vector, node, True, source, rests)
    changed = begins(node)
    if it.statement_value is not None and begins(it.statement_value) is changed:
        symbol.attributes["cast as", ""] = made
        rebind(it, changed, made)
        for key, one in list(it.variables.items()):
            if isinstance(one, Unknown) and one.symbol.number == symbol.number:
                it.variables[key] = made  # by another name
        casts.show_cast(it, vector, node, bool(class_of(symbol)))
    return made


def _register(
    it: Interpreter,
    owner: Instance,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
) -> Value:
    given = dict(zip(("name", "value"), arguments, strict=False))
    value = given.get("value") or next(
        (keywords[k] for k in ("tensor", "param", "module") if k in keywords), None
    )
    attribute = keywords.get("name", given.get("name"))
    if value is not None:
        if isinstance(value, Tensor):
            flags = PARAMETER | (BUFFER if name == "register_buffer" else 0)
            value = value.but(flags=value.flags & ~ON_DEVICE | flags)  # it moves with its module
        elif isinstance(value, Unknown) and value.symbol.vector == dtypes.INPUTS:
            value.symbol.vector = dtypes.FOLLOWS  # float32 under autocast, whatever activations are
        records.store_named(it, owner, attribute, value)
        if owner.cls == "Sequential":
            _extended(it, owner, "append", [value])
    return Scalar(None, "none")


def _extended(it: Interpreter, owner: Instance, name: str, arguments: list[Value]) -> Value:
    items = owner.items
    value = arguments[-1] if arguments else unknown()
    if not isinstance(items, Sequence):
        more = value.items if isinstance(value, Instance) else value
        if isinstance(items, Table) and isinstance(more, Table):
            owner.items = Table({**items.items, **more.items}, more.element or items.element)
        return owner
    added: list[Value] = [value]
    if name == "extend" and isinstance(value, Sequence):
        added = list(value.items) if value.items is not None else []
        if value.items is None and value.element is not None:
            items = Sequence(None, join_all([any_of(items), value.element]), "list")
    if items.items is not None and len(items.items) < 64 and not it.depth:
        owner.items = Sequence((*items.items, *added), None, "list")
    else:
        owner.items = Sequence(None, join_all([any_of(items), *added]), "list")
    return owner


def _children(it: Interpreter, owner: Instance, name: str) -> Value:
    stored = {
        key[2]: value
        for key, value in it.variables.items()
        if key.__class__ is tuple and key[:2] == ("self", id(owner.attributes))
    }  # by this method, which has not ended
    parts = casts.parts_of(owner, {**owner.attributes, **stored})
    values: list[Value] = [owner, *parts] if name.endswith("modules") else list(parts)
    if name.startswith("named"):
        values = [Sequence((Scalar(None, "str"), part), None) for part in values]
    return Sequence(tuple(values), None, "list") if len(values) < 32 else Sequence(None, values[0])


CALLEES[ClassValue] = construct
CALLEES[Instance] = call_instance
CALLEES[Unknown] = call_unknown
