"""Sequences, tables and tensors by index: iteration, subscripts, and what is assigned to."""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow import arrays, casts, objects, records, special_methods
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.ranges import after_store
from precision_lint.dataflow.tensors import HAZARDS, Applied, dtype_of
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import any_of, join, unknown
from precision_lint.domains.values import (
    DETACHED,
    EMPTY,
    INF,
    NONZERO,
    PARAMETER,
    UNKNOWN_RANK,
    Array,
    Batch,
    ClassValue,
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
    number,
    text,
    truth,
)
from precision_lint.torchmodel import layers
from precision_lint.torchmodel.operations import Operation

INDEX: Final = Operation(
    "index", ("input", "indices"), result="first", policy={}, missing={}, view=True
)
STORE: Final = Operation(
    "index_put", ("input", "indices", "values"), (0, 2), result="first", policy={}, missing={}
)


# iteration


def elements(it: Interpreter, value: Value, node: ast.AST) -> Value | list[Value]:
    """What iterating gives: the items, or one value that stands for all."""
    if isinstance(value, Sequence):
        if value.items is not None:
            return list(value.items)
        return value.element if value.element is not None else unknown()
    if isinstance(value, Tensor):
        rank = value.rank - 1 if value.rank > 0 else UNKNOWN_RANK
        return value.but(op="element", operands=(value,), node=node, home=it.module, rank=rank)
    if isinstance(value, Table):
        return _items(it, value, "keys")
    if isinstance(value, Instance) and value.items is not None:
        return _parts(it, value)
    if isinstance(value, Special):
        return _special_elements(it, value, node)
    if isinstance(value, Unknown):
        return child(it, value, "*")
    if isinstance(value, Array):
        return Array(value.dtypes, "element", (value,), node, it.module, value.lo, value.hi)
    if isinstance(value, Scalar):  # one that stands for several, as ``group["betas"]``
        return Scalar(None, value.kind)
    found = special_methods.called(it, value, "__iter__", [], node)
    return elements(it, found, node) if isinstance(found, (Special, Sequence)) else unknown()


def is_entered(value: Value) -> bool:
    """Whether a loop over something is sure to have an item: so many of ``range``, layers in a list."""
    if isinstance(value, Instance):
        return isinstance(value.items, Sequence)
    if not isinstance(value, Special):
        return False
    if value.kind == "range":
        return bool(value.fields.get("entered"))
    return value.kind == "enumerate" and is_entered(value.fields["of"])


def element_of(it: Interpreter, value: Value, node: ast.AST) -> Value | None:
    """One value that stands for all items of a sequence or tensor; None: there is none."""
    if isinstance(value, Sequence):
        return any_of(value)
    found = elements(it, value, node) if isinstance(value, (Tensor, Unknown)) else None
    return found if isinstance(found, Value) else None


def _parts(it: Interpreter, value: Instance) -> Value | list[Value]:
    """The modules in a ModuleList, Sequential or ModuleDict."""
    items = value.items
    if isinstance(items, Sequence):
        if items.items is not None:
            return [objects.held(it, value, str(i), v) for i, v in enumerate(items.items)]
        return _some_item(it, value, items.element)
    return Scalar(None, "str")


def _special_elements(it: Interpreter, value: Special, node: ast.AST) -> Value | list[Value]:
    fields = value.fields
    if value.kind == "range":
        return Scalar(None, "int", fields["lo"], fields["hi"])
    if value.kind == "shape":
        return size_of(fields["of"], None)
    if value.kind == "enumerate":
        inner = elements(it, fields["of"], node)
        if isinstance(inner, list):
            return [Sequence((Scalar(i, "int"), v), None) for i, v in enumerate(inner)]
        return Sequence((Scalar(None, "int", 0), inner), None)
    if value.kind == "zip":
        parts = [elements(it, part, node) for part in fields["of"]]
        lists = [part for part in parts if isinstance(part, list)]
        if lists:
            length = min(len(part) for part in lists)
            return [
                Sequence(tuple([p[i] if isinstance(p, list) else p for p in parts]), None)
                for i in range(length)
            ]
        return Sequence(tuple([p for p in parts if isinstance(p, Value)]), None)
    if value.kind == "generator":
        return fields["element"] if fields["element"] is not None else unknown()
    if value.kind == "parameters":
        return _parameter(it, value, node)
    if value.kind == "groups":
        return value
    if value.kind == "items":
        return _items(it, fields["of"], fields["what"])
    return child(it, unknown(), "*")


def _parameter(it: Interpreter, value: Special, node: ast.AST) -> Value:
    """One of the parameters of a module."""
    owner = value.fields["owner"]
    vector, assumptions = dtypes.V_ANY, 0
    if isinstance(owner, Instance):
        vector = _within(it, owner)
        assumptions = objects.assumed_of_weights(it, owner)
    elif isinstance(owner, Unknown) and owner.symbol.node is not None:
        vector = owner.symbol.vector
    elif isinstance(owner, Unknown):
        vector, assumptions = dtypes.FOLLOWS, assume.WEIGHTS
    weight = Tensor(
        vector, "weight", (), node, it.module, assumptions=assumptions, flags=PARAMETER, data=value
    )
    return Sequence((Scalar(None, "str"), weight), None) if value.fields.get("named") else weight


def _within(it: Interpreter, owner: Instance, depth: int = 3) -> dtypes.Dtypes:
    """The dtypes of an object's weights, and of those of its parts, which may be cast by themselves."""
    vector, _ = objects.weights_of(it, owner)
    for name, value in owner.attributes.items() if depth else ():
        if isinstance(name, str) and isinstance(value, Instance):
            inner = _within(it, objects.part(owner, name, value), depth - 1)
            vector = dtypes.join(vector, inner)
    return vector


def _items(it: Interpreter, value: Value, what: str) -> Value | list[Value]:
    """``keys()``, ``values()`` or ``items()`` of a dict."""
    if isinstance(value, Instance) and isinstance(value.items, Table):
        parts = {k: objects.held(it, value, str(k), v) for k, v in value.items.items.items()}
        element = value.items.element
        if element is not None or not parts:
            element = _some_item(it, value, element)
        value = Table(parts, element)
    if not isinstance(value, Table):
        inner = child(it, value, "*") if isinstance(value, Unknown) else unknown()
        return Sequence((unknown(), inner), None) if what == "items" else inner
    found: list[Value] = []
    for key, item in value.items.items():
        name = Scalar(key, "str" if isinstance(key, str) else "int")
        pair = Sequence((name, item), None)
        found.append(pair if what == "items" else item if what == "values" else name)
    if value.element is None:
        return found
    rest: Value = value.element
    for item in value.items.values():
        rest = join(rest, item)
    if what == "keys":
        return Scalar(None, "str") if all(isinstance(k, str) for k in value.items) else unknown()
    return Sequence((unknown(), rest), None) if what == "items" else rest


def child(it: Interpreter, value: Value, name: Any) -> Value:
    """An attribute or item of an unknown object: unknown as well, and always the same one."""
    if not isinstance(value, Unknown):
        return unknown()
    symbol = value.symbol
    known = symbol.attributes.get(name)
    if known is None:
        held = name == "state_dict" or name in layers.own()
        own = symbol.vector == dtypes.INPUTS and held
        vector = dtypes.BATCHES if own else symbol.vector  # weights are float32 under autocast
        made = it.unknown(str(name), vector, symbol.assumptions)
        made.symbol.owner = symbol
        made.symbol.flags = symbol.flags
        kept = (
            Symbol.ARRAY
            | Symbol.ENTRY
            | (Symbol.MEMBER if name == "*" or isinstance(name, int) else 0)
        )
        made.symbol.uses = symbol.uses & kept
        if ("cast of", "") in symbol.attributes:
            made.symbol.node, made.symbol.home = symbol.node, symbol.home
            if name == "*":
                made.symbol.uses |= Symbol.REAL  # a tensor of floats, if it is one
        known = it.linked(symbol, name, made)
    return known


# subscripts


def chosen(table: Table, default: Value | None, node: ast.expr) -> Value:
    """One of several entries, which a key decides on; the default: what there is for other keys."""
    if table.element is not None:
        return table.element
    entries = [*table.items.values(), *([default] if default is not None else [])]
    found: Value | None = None
    for one in entries:
        found = one if found is None else join(found, one)
    if isinstance(found, DtypeValue) and not any(found is one for one in entries):
        vector = dtypes.set_by_mode(found.dtypes)
        found = DtypeValue(vector, found.node, found.home, found.assumptions)
        found.asked = node
    return found if found is not None else unknown()


def subscript(it: Interpreter, value: Value, index: Value, node: ast.Subscript) -> Value:
    """``value[index]``"""
    arrays.used_as_index(it, index)
    if isinstance(value, Tensor):
        return _indexed(it, value, index, node)
    if isinstance(value, Sequence):
        return _item(value, index, node)
    if isinstance(value, Table):
        return _entry(it, value, index, node)
    if isinstance(value, Instance) and value.items is not None:
        return _module_item(it, value, index, node)
    if isinstance(value, Array):
        return Array(value.dtypes, "index", (value,), node, it.module, value.lo, value.hi)
    if isinstance(value, Special):
        return _special_item(it, value, index, node)
    if isinstance(value, Unknown):
        return _unknown_item(it, value, index, node)
    if isinstance(value, Scalar) and (value.kind == "str" or value.is_number):
        # a number stands for several
        return Scalar(None, value.kind, assumptions=value.assumptions)
    found = special_methods.called(it, value, "__getitem__", [index], node)
    return found if found is not None else unknown()


def _entry(it: Interpreter, value: Table, index: Value, node: ast.expr) -> Value:
    key = index.value if isinstance(index, Scalar) else None
    if key is not None and key in value.items:
        found = value.items[key]
        return found if _is_usual(it, index, found) else chosen(value, None, node)
    if key is not None and isinstance(value.element, Unknown):
        one = child(it, value.element, ("entry", key))  # unlike those of other keys
        if isinstance(one, Unknown):
            one.symbol.uses |= value.element.symbol.uses & Symbol.TENSOR
        return one
    if key is not None:
        return value.element if value.element is not None else unknown()
    return chosen(value, None, node)


def _is_usual(it: Interpreter, key: Value, found: Value) -> bool:
    """Whether what a key says may be taken for what there is: of a default, half but no other dtype."""
    if not getattr(key, "assumptions", 0) & assume.DEFAULT:
        return True
    vector = dtype_of(it, found) if isinstance(found, (DtypeValue, Reference)) else None
    return vector is None or bool(vector[dtypes.CODE] & dtypes.LOW)


def _special_item(it: Interpreter, value: Special, index: Value, node: ast.Subscript) -> Value:
    if value.kind == "shape":
        if isinstance(node.slice, ast.Slice):
            return _sizes(value, node.slice)
        return size_of(value.fields["of"], index)
    if value.kind == "groups":
        if text(index) != "params":
            named = isinstance(index, Scalar) and index.kind == "str"
            return Scalar(None, "float", node=node, home=it.module) if named else value
        return Special("parameters", node, it.module, owner=value.fields["owner"], named=False)
    return _parameter(it, value, node) if value.kind == "parameters" else unknown()


def _sizes(shape: Special, part: ast.Slice) -> Value:
    """Part of a shape: the sizes, where it is known which ones."""
    of = shape.fields["of"]
    lower = 0 if part.lower is None else _constant(part.lower)
    upper = _constant(part.upper)
    if part.step is None and lower is not None:
        if part.upper is None and lower < 0:
            upper = 0
        elif part.lower is None and upper is not None and upper < 0:
            return shape  # the same sizes from the front
        if upper is not None and 0 <= upper - lower <= 8 and lower * upper >= 0:
            sizes = [size_of(of, Scalar(i, "int")) for i in range(lower, upper)]
            return Sequence(tuple(sizes), None, "tuple")
    return Sequence(None, Scalar(None, "int", 0), "tuple")


def _unknown_item(it: Interpreter, value: Unknown, index: Value, node: ast.Subscript) -> Value:
    array = value.symbol.uses & Symbol.ARRAY
    if ("cast of", "") in value.symbol.attributes or (_has_dimensions(node) and not array):
        made = tensor_of(it, value, node)
        value.symbol.uses |= Symbol.TENSOR
        return unknown() if made is None else _indexed(it, made, index, node)
    if not isinstance(index, Scalar) or index.value is None:
        return child(it, value, "[]")
    found = child(it, value, index.value)
    if index.kind == "str" and isinstance(found, Unknown):
        found.symbol.uses |= Symbol.ENTRY
    return found


def size_of(tensor: Value, index: Value | None) -> Scalar:
    """A size of a tensor: at least 0, and equal where it is asked for again."""
    known = 0 if isinstance(tensor, Tensor) and tensor.flags & EMPTY else None
    return Scalar(known, "int", 0, INF, op="size", operands=(tensor, index or Scalar(None, "none")))


def _item(value: Sequence, index: Value, node: ast.Subscript) -> Value:
    if isinstance(node.slice, ast.Slice):
        if value.items is None:
            return value
        lower, upper = node.slice.lower, node.slice.upper
        ends = [_constant(lower), _constant(upper)]
        if node.slice.step is None and ((lower is None) == (ends[0] is None)):
            if (upper is None) == (ends[1] is None):
                return Sequence(value.items[ends[0] : ends[1]], None, value.kind)
        return Sequence(None, any_of(value), value.kind)
    position = number(index)
    if value.items is not None and position is not None and position == int(position):
        if -len(value.items) <= position < len(value.items):
            return value.items[int(position)]
        return unknown()
    if value.ends is not None and position is not None and 0 <= position < len(value.ends[0]):
        return value.ends[0][int(position)]
    found = any_of(value)
    if isinstance(found, Tensor) and position is not None and position == int(position):
        return _piece(found, int(position))
    return found if found is not None else unknown()


def _constant(node: ast.expr | None) -> int | None:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _constant(node.operand)
        return -inner if inner is not None else None
    if isinstance(node, ast.Constant) and isinstance(node.value, int):
        return node.value
    return None


def _module_item(it: Interpreter, value: Instance, index: Value, node: ast.Subscript) -> Value:
    items = value.items
    if isinstance(items, Table):
        key = text(index)
        if key is not None and key in items.items:
            return objects.held(it, value, key, items.items[key])
        found = items.element
        for item in items.items.values():
            found = item if found is None else join(found, item)
        return _some_item(it, value, found)
    assert items is not None
    if isinstance(node.slice, ast.Slice):
        parts = _parts(it, value)
        items = Sequence(tuple(parts), None) if isinstance(parts, list) else items
        some: Any = _item(items, index, node)
        return Instance(value.cls, {}, value.root, (*value.path, "[:]"), items=some)
    position = number(index)
    if (
        items.items is not None
        and position is not None
        and -len(items.items) <= position < len(items.items)
    ):
        place = int(position) % len(items.items)
        return objects.held(it, value, str(place), items.items[place])
    return _some_item(it, value, any_of(items))


def _some_item(it: Interpreter, owner: Instance, element: Value | None) -> Value:
    """What stands for the items of a container; None: none is known."""
    if element is not None and not isinstance(element, Unknown):
        return objects.held(it, owner, "*", element)
    if owner.cls not in ("ParameterDict", "ParameterList"):
        return element if element is not None else unknown()
    made = Tensor(dtypes.V_FLOAT32, "parameter", (), None, it.module, flags=PARAMETER)
    return objects.held(it, owner, "*", made)


def _has_dimensions(node: ast.Subscript) -> bool:
    """Whether a subscript is of several dimensions: only tensors and arrays have them."""
    return isinstance(node.slice, ast.Tuple) and any(
        isinstance(part, ast.Slice)
        or (isinstance(part, ast.Constant) and part.value in (None, ...))
        for part in node.slice.elts
    )


def _is_integer(index: Value) -> bool:
    """Whether an index takes one entry of a dimension: a number, or a tensor of one."""
    if isinstance(index, Tensor):
        return index.rank == 0 and index.dtypes == dtypes.V_INTEGER
    return isinstance(index, Scalar) and index.kind in ("int", "number")


def _indexed(it: Interpreter, value: Tensor, index: Value, node: ast.Subscript) -> Value:
    """Part of a tensor: the same dtype and bounds, perhaps fewer dimensions."""
    parts = index.items if isinstance(index, Sequence) and index.items is not None else (index,)
    for one in parts:
        if isinstance(one, Unknown):
            one.symbol.uses |= Symbol.INTEGER
    rank = value.rank
    integers = sum(_is_integer(part) for part in parts)
    if rank == 1 and isinstance(index, Unknown):
        rank = 0  # a step of a schedule; where it is one for each sample, the entries are reshaped
    elif rank > 0:
        plain = all(_is_integer(part) or isinstance(part, (Scalar, Special)) for part in parts)
        added = sum(isinstance(part, Scalar) and part.kind == "none" for part in parts)
        rank = max(rank - integers + added, 0) if plain else UNKNOWN_RANK
    elif integers or rank == 0:
        rank = UNKNOWN_RANK
    result = value.but(
        op="index",
        operands=(value, index),
        node=node,
        home=it.module,
        rank=rank,
        data=index_key(node.slice),
        symbol=None,
    )
    applied = Applied(INDEX, [value, index], node, False)
    applied.result = result
    for look in HAZARDS.get("index", ()):
        look(it, applied)
    return result


def index_key(node: ast.expr) -> tuple[Any, ...] | None:
    """A subscript of constants, slices, ``...`` and ``None`` as data; None: something else."""
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    found: list[Any] = []
    for part in parts:
        if isinstance(part, ast.Slice):
            ends = (_constant(part.lower), _constant(part.upper), _constant(part.step))
            given = (part.lower, part.upper, part.step)
            if any((e is None) != (g is None) for e, g in zip(ends, given, strict=True)):
                return None
            found.append(("slice", *ends))
        elif isinstance(part, ast.Constant) and (part.value is None or part.value is Ellipsis):
            found.append("..." if part.value is Ellipsis else "new")
        else:
            constant = _constant(part)
            if constant is None:
                return None
            found.append(constant)
    return tuple(found)


# assignment


def assign(it: Interpreter, target: ast.expr, value: Value, node: ast.AST) -> None:
    """Give a target a value."""
    kind = target.__class__
    if kind is ast.Name:
        it.variables[target.id] = value  # type: ignore[attr-defined]
    elif kind is ast.Attribute:
        _assign_attribute(it, target, value, node)  # type: ignore[arg-type]
    elif kind in (ast.Tuple, ast.List):
        _unpack(it, target.elts, value, node)  # type: ignore[attr-defined]
    elif kind is ast.Subscript:
        _assign_item(it, target, value, node)  # type: ignore[arg-type]
    elif kind is ast.Starred:
        inner = any_of(value) if isinstance(value, Sequence) else None
        assign(it, target.value, Sequence(None, inner, "list"), node)  # type: ignore[attr-defined]


def written(it: Interpreter, result: Value, node: ast.AST, inplace: bool) -> Value:
    """The result of a function, which is also what it was given to write to: ``out=y``, ``torch.relu_(x)``."""
    if isinstance(node, ast.Call) and isinstance(result, Tensor):
        named = {one.arg: one.value for one in node.keywords}
        asked = named.get("inplace")
        inplace |= isinstance(asked, ast.Constant) and asked.value is True
        target = named.get("out", node.args[0] if inplace and node.args else None)
        if target is not None:
            rebind(it, target, result)
    return result


def rebind(it: Interpreter, target: ast.AST, value: Value) -> None:
    """Give the place that an expression names another value, after a change in place.

    What changes in place gives back what it changed: ``x.mul_(2).add_(y)`` changes ``x`` twice.
    """
    while isinstance(target, ast.Call) and getattr(target.func, "attr", "").endswith("_"):
        target = target.func.value  # type: ignore[attr-defined]
    if isinstance(target, ast.IfExp):  # one of two lists: either may have grown
        rebind(it, target.body, value)
        rebind(it, target.orelse, value)
        return
    if isinstance(target, ast.Name):
        if target.id in it.variables or isinstance(value, Table):  # a table of the whole file
            it.variables[target.id] = value
    elif isinstance(target, ast.Attribute):
        owner = it.expr(target.value)
        if isinstance(owner, Instance):
            objects.store(it, owner, target.attr, objects.as_before(it.expr(target), value))
        elif isinstance(owner, ClassValue):
            objects.store_in_class(it, owner.cls, target.attr, value)
    elif isinstance(target, ast.Subscript) and isinstance(value, (Sequence, Table)):
        if isinstance(it.expr(target.value), (Sequence, Table)):
            _assign_item(it, target, value, target)  # ``lists[key].append(item)``


SELVES = frozenset({
    "half", "bfloat16", "float", "double", "to", "cuda", "cpu", "eval", "train", "requires_grad_",
})  # fmt: skip
"""Methods that give back the module that they changed."""


def begins(node: ast.AST) -> ast.AST:
    """What ``model.cuda().half()`` changes."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in SELVES
    ):
        node = node.func.value
    return node


STORES: Final[list[Any]] = []
"""Functions that look at an assignment to an attribute: (interpreter, owner, target, value, node)."""


def _assign_attribute(it: Interpreter, target: ast.Attribute, value: Value, node: ast.AST) -> None:
    owner = it.expr(target.value)
    for look in STORES:
        look(it, owner, target, value, node)
    if isinstance(owner, Tensor) and target.attr == "data":
        _assign_data(it, target, owner, value, node)
    elif isinstance(owner, Tensor) and target.attr == "requires_grad" and truth(value) is not False:
        rebind(it, target.value, owner.but(flags=owner.flags & ~DETACHED))
    elif isinstance(owner, Instance):
        method = special_methods.setter(it, owner.cls, target.attr)
        if method is None:
            objects.store(it, owner, target.attr, value)
        else:
            it.run(method, owner, [value], {}, node)
    elif isinstance(owner, Unknown):
        it.variables[("of", owner.symbol.number, target.attr)] = value
        if it.script and it.function is None:  # settings of the whole file
            owner.symbol.attributes[target.attr] = value
    elif isinstance(owner, ClassValue):
        objects.store_in_class(it, owner.cls, target.attr, value)
    elif isinstance(owner, Batch):
        rebind(it, target.value, Batch({**owner.items, target.attr: value}, owner.element))
    elif isinstance(owner, Special):
        owner.fields[target.attr] = value


def _assign_data(
    it: Interpreter, target: ast.Attribute, owner: Tensor, value: Value, node: ast.AST
) -> None:
    """``parameter.data = value``: what a cast makes of it, a layer's weights are."""
    if isinstance(value, Tensor):  # it is cast with its module as before
        value = value.but(flags=value.flags | owner.flags & PARAMETER)
    rebind(it, target.value, value)
    if not isinstance(value, Tensor):
        return
    explicit = value.data == "explicit"
    layer = it.expr(target.value.value) if isinstance(target.value, ast.Attribute) else None
    if isinstance(layer, Instance) and isinstance(layer.cls, str) and owner.flags & PARAMETER:
        if explicit:
            casts.cast_module(it, layer, value.dtypes, node)
        else:  # what it was before a cast
            it.weights = {k: v for k, v in it.weights.items() if k != (layer.root, layer.path)}
    whole = owner.data["owner"] if isinstance(owner.data, Special) else None
    if whole is not None and explicit:
        casts.show_cast(it, value.dtypes, node)
    if isinstance(target.value, ast.Name) and whole is None and explicit:
        whole = next((one for one in it.variables.values() if _has(one, owner)), None)
    if isinstance(whole, Instance):
        casts.cast_some(it, whole, value.dtypes)


def _has(value: Value, parameter: Tensor) -> bool:
    """Whether an object is the one of which a variable holds a parameter (``getattr(layer, name)``)."""
    return isinstance(value, Instance) and any(
        isinstance(one, Tensor) and one.node is parameter.node and one.flags & PARAMETER
        for one in value.attributes.values()
    )


def _unpack(it: Interpreter, targets: list[ast.expr], value: Value, node: ast.AST) -> None:
    starred = [i for i, t in enumerate(targets) if isinstance(t, ast.Starred)]
    found = elements(it, value, node)
    if isinstance(value, Unknown):
        for i, target in enumerate(targets):
            assign(it, target, child(it, value, i), node)
        return
    if isinstance(value, Special) and value.kind == "shape":
        for i, target in enumerate(targets):
            assign(it, target, size_of(value.fields["of"], Scalar(i, "int")), node)
        return
    if isinstance(value, Table) and not value.items and value.element is not None:
        found = value.element  # no keys are known, and names for them make no sense: it is a tuple
    found = _filled(value, targets) or found
    if isinstance(found, list):
        parts = _matched(targets, starred, found)
        if parts is not None:
            for target, item in zip(targets, parts, strict=True):
                inner = target.value if isinstance(target, ast.Starred) else target
                assign(it, inner, item, node)
            return
        joined: Value | None = None
        for item in found:
            joined = item if joined is None else join(joined, item)
        found = joined if joined is not None else unknown()
    for i, target in enumerate(targets):
        assign(it, target, _one_of(it, value, found, i), node)


def _one_of(it: Interpreter, whole: Value, item: Value, number: int) -> Value:
    """The part with a number, where one value stands for all."""
    if isinstance(item, Tensor):
        if isinstance(whole, Tensor):
            return item.but(op="unbind", operands=(whole,), data=number)
        return _piece(item, number)
    # unknown objects need not be one
    return child(it, item, number) if isinstance(item, Unknown) else item


def _filled(value: Value, targets: list[ast.expr]) -> list[Value] | None:
    """The items of a sequence with one part of unknown length, as many as there are targets."""
    if not isinstance(value, Sequence) or value.ends is None:
        return None
    before, middle, behind = value.ends
    missing = len(targets) - len(before) - len(behind)
    if missing < 0 or any(isinstance(target, ast.Starred) for target in targets):
        return None
    return [*before, *[middle] * missing, *behind]


def _piece(element: Tensor, position: int) -> Tensor:
    """One of several tensors of which all that is known is the same: not the same tensor."""
    made = element.operands[0] if element.operands else None
    whole = made.operands[0] if isinstance(made, Tensor) and made.op == "unbind" else element
    return element.but(op="unbind", operands=(whole,), data=position)


def _matched(targets: list[ast.expr], starred: list[int], found: list[Value]) -> list[Value] | None:
    """What each target takes of known items; None: their number does not fit."""
    if not starred and len(found) == len(targets):
        return found
    if len(starred) != 1 or len(found) < len(targets) - 1:
        return None
    start = starred[0]
    behind = len(targets) - start - 1
    middle = Sequence(tuple(found[start : len(found) - behind]), None, "list")
    return [*found[:start], middle, *(found[len(found) - behind :] if behind else [])]


def _assign_item(it: Interpreter, target: ast.Subscript, value: Value, node: ast.AST) -> None:
    index = it.expr(target.slice)
    if isinstance(target.value, ast.Attribute) and target.value.attr == "__dict__":
        if isinstance(whole := it.expr(target.value.value), Instance):
            records.hide(it, whole, index, value)
        return
    owner = it.expr(target.value)
    if isinstance(owner, Unknown) and _is_tensor(owner, index, value, target):
        owner = tensor_of(it, owner, target) or owner
    if isinstance(owner, Tensor):
        _store_elements(it, owner, index, value, target, node)
    elif isinstance(owner, Table):
        rebind(it, target.value, _with_entry(owner, index, value))
    elif isinstance(owner, Array):
        lo, hi = after_store((owner.lo, owner.hi), value)
        made = Array(owner.dtypes, owner.op, owner.operands, owner.node, owner.home, lo, hi)
        rebind(it, target.value, made)
    elif isinstance(owner, Instance) and owner.items is not None:
        put(owner, index, value)
    elif isinstance(owner, Instance):
        special_methods.called(it, owner, "__setitem__", [index, value], node)
    elif isinstance(owner, Sequence):
        rebind(it, target.value, _with_item(owner, index, value))
    elif isinstance(owner, Unknown) and isinstance(index, Scalar) and index.value is not None:
        owner.symbol.attributes[index.value] = value


def _with_entry(owner: Table, index: Value, value: Value) -> Table:
    if isinstance(index, Scalar) and index.value is not None:
        return owner.__class__({**owner.items, index.value: value}, owner.element)
    element = value if owner.element is None else join(owner.element, value)
    items = owner.items
    if isinstance(owner, Batch):  # any of them may be it
        items = {name: join(one, value) for name, one in items.items()}
    return owner.__class__(items, element)


def put(owner: Instance, index: Value, value: Value) -> None:
    """``container[index] = value``: one of the values that its items may have."""
    items = owner.items
    if isinstance(items, Sequence):
        owner.items = _with_item(items, index, value)
    elif isinstance(items, Table):
        key = text(index)
        if key is not None:
            old = items.items.get(key)
            owner.items = Table(
                {**items.items, key: value if old is None else join(old, value)}, items.element
            )
        else:
            element = value if items.element is None else join(items.element, value)
            owner.items = Table(items.items, element)


MEASURED: Final = Symbol.TENSOR | Symbol.FLOAT


def _is_tensor(owner: Unknown, index: Value, value: Value, target: ast.Subscript) -> bool:
    """Whether an unknown object that is written into is a tensor, by its other uses, the index, or the number.

    A number goes into no model; what a model gives is no array.
    """
    symbol = owner.symbol
    if symbol.uses & Symbol.ARRAY:
        return False
    if symbol.uses & Symbol.TENSOR or isinstance(index, Tensor) or _has_dimensions(target):
        return True
    cast = ("cast of", "") in symbol.attributes
    number_written = isinstance(value, Scalar) and value.is_number
    return number_written and isinstance(index, Unknown) and (cast or symbol.proven(MEASURED))


def _with_item(owner: Sequence, index: Value, value: Value) -> Sequence:
    position = number(index)
    if (
        owner.items is not None
        and position is not None
        and -len(owner.items) <= position < len(owner.items)
    ):
        items = list(owner.items)
        items[int(position)] = value
        return Sequence(tuple(items), None, owner.kind)
    old = any_of(owner)
    return Sequence(None, value if old is None else join(old, value), owner.kind)


def _store_elements(
    it: Interpreter,
    owner: Tensor,
    index: Value,
    value: Value,
    target: ast.Subscript,
    node: ast.AST,
) -> None:
    """``tensor[index] = value``: in place, in the tensor's dtype."""
    if isinstance(value, Unknown):
        made = tensor_of(it, value)
        value = made if made is not None else value
    applied = Applied(STORE, [owner, index, value], node, True)
    lo, hi = after_store((owner.lo, owner.hi), value)
    assumptions = owner.assumptions
    if isinstance(value, Scalar) and value.kind == "float" and owner.symbol is not None:
        owner.symbol.uses |= Symbol.REAL
    if isinstance(value, (Tensor, Scalar)):
        assumptions |= value.assumptions & ~assume.DEFAULT
    applied.result = owner.but(
        op="index_put",
        operands=(owner, index, value),
        node=node,
        home=it.module,
        lo=lo,
        hi=hi,
        assumptions=assumptions,
        flags=owner.flags & ~NONZERO,
        data=index_key(target.slice),
    )
    applied.seen = {0: owner.dtypes}
    if isinstance(value, Tensor):
        applied.seen[2] = value.dtypes
    for look in (*HAZARDS.get("index_put", ()), *HAZARDS.get("*", ())):
        look(it, applied)
    rebind(it, target.value, applied.result)
