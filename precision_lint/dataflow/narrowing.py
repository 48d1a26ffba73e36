"""What a test says where it holds: modes in which that can be, dtypes, bounds, kinds, autocast's state.

The arm of a branch is for the modes in which its test can hold.  An assertion, ``torch._check`` and a
branch that raises *state* a fact: it takes the place of what was assumed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Final

from precision_lint.dataflow import devices
from precision_lint.dataflow.arrays import told
from precision_lint.dataflow.choices import recall
from precision_lint.dataflow.containers import child
from precision_lint.dataflow.declared import TENSOR_CLASSES
from precision_lint.dataflow.guards import asked_of_autocast, elementwise, measured, target_of
from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter, tensor_of
from precision_lint.dataflow.stated import ABOUT_SIZE, copied, keep, with_bounds
from precision_lint.dataflow.tensors import dtype_of
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.values import (
    INF,
    NONE,
    ON_CPU,
    ON_OTHER,
    Array,
    DtypeValue,
    Reference,
    RegionValue,
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
)
from precision_lint.torchmodel import layers

FLIP: Final[dict[type, type]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE, ast.NotEq: ast.NotEq,
}  # fmt: skip
NEGATED: Final[dict[type, type]] = {
    ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt, ast.Eq: ast.NotEq,
}  # fmt: skip
WHOLE: Final = dtypes.INTEGER | dtypes.BOOLEAN | dtypes.COMPLEX
NUMBERS: Final = ("builtins.int", "builtins.float", "builtins.str", "builtins.bool")
AUTOCAST: Final = ("torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast")
"""Classes of context managers that switch autocast on."""


def narrow(it: Interpreter, test: ast.expr, holds: bool, stated: bool = False) -> None:
    """Learn that a test holds, or does not; ``stated``: the program ends here otherwise."""
    kind = test.__class__
    if kind is ast.Compare:
        _comparisons(it, test, holds, stated)  # type: ignore[arg-type]
    elif kind is ast.Call:
        _call(it, test, holds, stated)  # type: ignore[arg-type]
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is holds:
            for part in test.values:
                narrow(it, part, holds, stated)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        narrow(it, test.operand, not holds, stated)
    elif isinstance(test, ast.Name):
        _of_name(it, test.id, holds, stated)
    elif isinstance(test, ast.Attribute) and test.attr == "is_floating_point":
        if isinstance(test.value, ast.Attribute) and test.value.attr == "dtype":
            _floating(it, test.value.value, holds)


HELD: Final = "held"
LASTING: Final = frozenset({"dtype", "device", "is_cuda", "is_floating_point", "type"})
"""Attributes of a tensor that stay as long as it does."""


def is_test(node: ast.expr) -> bool:
    """Whether an expression asks something that is true or false."""
    if isinstance(node, ast.BoolOp):
        return all(map(is_test, node.values))
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not) and is_test(node.operand)
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return name == "isinstance" or str(name).startswith("is_")
    return isinstance(node, ast.Compare)


def held_test(it: Interpreter, value: Value, test: ast.expr) -> Value:
    """The truth of a test of tensors, which a name is to hold, with what it was asked of."""
    if isinstance(value, Scalar) and (value.value is not None or value.op not in ("", "join")):
        return value
    if not isinstance(value, Scalar) and not isinstance(test, ast.BoolOp):
        return value  # a mask
    for one in ast.walk(test):
        if isinstance(one, ast.Attribute) and one.attr not in LASTING:
            if not isinstance(_peek(it, one), (DtypeValue, Reference)):
                return value  # it may be another one by then
        elif isinstance(one, (ast.Subscript, ast.NamedExpr, ast.Lambda)):
            return value
    found = _asked_of(it, test)
    if not any(isinstance(one, (Tensor, Unknown)) for one in found):
        return value
    return Scalar(None, "bool", node=test, home=it.module, op=HELD, operands=found)


def _asked_of(it: Interpreter, test: ast.expr) -> tuple[Value, ...]:
    """What the names in a test stand for here."""
    names = [one.id for one in ast.walk(test) if isinstance(one, ast.Name)]
    return tuple([it.variables[name] for name in names if name in it.variables])


def _of_name(it: Interpreter, name: str, holds: bool, stated: bool) -> None:
    """A name that holds the truth of a test: the test, of objects that are still the same."""
    value = it.variables.get(name)
    if not isinstance(value, Scalar) or value.op != HELD or value.home is not it.module:
        return
    test: ast.expr = value.node  # type: ignore[assignment]
    now = _asked_of(it, test)
    if len(now) == len(value.operands) and all(map(operator.is_, now, value.operands)):
        narrow(it, test, holds, stated)


EQUAL: Final[dict[type, bool]] = {
    ast.Eq: True, ast.Is: True, ast.In: True, ast.NotEq: False, ast.IsNot: False, ast.NotIn: False,
}  # fmt: skip


SAME: Final = frozenset({ast.Eq, ast.NotEq, ast.Is, ast.IsNot})
"""Comparisons of two values; ``in`` says something of what one holds."""


def _comparisons(it: Interpreter, test: ast.Compare, holds: bool, stated: bool) -> None:
    if len(test.ops) == 1:
        _comparison(it, test.left, test.ops[0], test.comparators[0], holds, stated)
    elif holds:
        sides = pairwise([test.left, *test.comparators])
        for (left, right), op in zip(sides, test.ops, strict=True):
            _comparison(it, left, op, right, holds, stated)


def _comparison(
    it: Interpreter, left: ast.expr, op: ast.cmpop, right: ast.expr, holds: bool, stated: bool
) -> None:
    kind = op.__class__
    equal = EQUAL.get(kind)
    if (kind is ast.Is or kind is ast.IsNot) and _is_none(right):
        if equal is holds and isinstance(left, ast.Name):
            it.variables[left.id] = NONE
        return
    first, second = _peek(it, left), _peek(it, right)
    if equal is not None:
        turned = isinstance(second, DtypeValue) and second.source is not None
        if isinstance(first, DtypeValue) and (first.source is not None or not turned):
            _dtype_is(it, left, first, second, equal is holds, stated)
            return
        wanted = _wanted(it, second) if isinstance(first, Scalar) and equal is holds else None
        if wanted is not None:  # no flag or text, though its default is
            one_kind = not (wanted[0] & dtypes.LOW and wanted[0] & ~dtypes.LOW)
            keep(it, left, DtypeValue(wanted if one_kind else dtypes.V_ANY, None, it.module))
            return
        if isinstance(second, DtypeValue) and (kind is ast.Eq or kind is ast.NotEq):
            _dtype_is(it, right, second, first, equal is holds, stated)
            return
        for side, one, other in ((left, first, second), (right, second, first)):
            _is_other(it, side, one, other, equal is holds, kind in SAME)
    way = kind if holds else NEGATED.get(kind)
    if way in FLIP:
        _bound(it, left, way, second, stated)
        _bound(it, right, FLIP[way], first, stated)


def _is_other(
    it: Interpreter, side: ast.expr, one: Value | None, other: Value | None, equal: bool, same: bool
) -> None:
    """One side of a comparison is, or is not, the other one; same: not just one of several."""
    if isinstance(one, Scalar) and one.op == "device":
        _device_is(it, side, other, equal)
    elif isinstance(one, Unknown) and equal and same:
        if text(other) is not None:
            keep(it, side, Scalar(text(other), "str"))
    elif isinstance(one, Scalar) and one.assumptions & assume.DEFAULT:
        _word_is(it, side, one, other, equal)


def _word_is(
    it: Interpreter, side: ast.expr, word: Scalar, other: Value | None, equal: bool
) -> None:
    """What holds against a default, which then is not what was given."""
    options = other.items if isinstance(other, Sequence) else (other,)
    named = [text(one) for one in options or ()]
    if word.kind != "str" or word.value is None or not named or None in named:
        return
    if (word.value in named) is not equal:
        given = named[0] if equal and len(named) == 1 else None
        keep(it, side, Scalar(given, "str"))


def _peek(it: Interpreter, node: ast.expr) -> Value | None:
    """The value of an expression that does nothing; None: it calls something."""
    if isinstance(
        node, (ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.UnaryOp)
    ):
        return it.expr(node)
    if isinstance(node, ast.Call) and asked_of_autocast(it, node) == "dtype":
        return it.expr(node)
    if isinstance(node, ast.Subscript) and isinstance(_peek(it, node.value), (Sequence, Table)):
        return it.expr(node)
    return None


def scalers(it: Interpreter, test: ast.expr, holds: bool) -> Iterator[tuple[Special, bool]]:
    """Scalers that are there, or are None, where a test holds or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from scalers(it, test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        for part in test.values if isinstance(test.op, ast.And) is holds else ():
            yield from scalers(it, part, holds)
    else:
        there = holds
        if isinstance(test, ast.Compare) and _is_none(test.comparators[0]):
            there = isinstance(test.ops[0], ast.IsNot) is holds
            test = test.left
        value = _peek(it, test) if isinstance(test, (ast.Name, ast.Attribute)) else None
        if isinstance(value, Special) and value.kind == "scaler":
            yield value, there


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


# dtypes


def _wanted(it: Interpreter, value: Value | None) -> Dtypes | None:
    """The dtypes that a test names."""
    if isinstance(value, Sequence) and value.items is not None:
        found: Dtypes | None = None
        for item in value.items:
            one = _wanted(it, item)
            if one is None:
                return None
            found = one if found is None else dtypes.join(found, one)
        return found
    if isinstance(value, (DtypeValue, Reference)):
        vector = dtype_of(it, value)
        if vector is not None and not all(x & dtypes.OTHER for x in vector):
            return vector
    return None


def _dtype_is(
    it: Interpreter,
    node: ast.expr,
    value: DtypeValue,
    other: Value | None,
    holds: bool,
    stated: bool,
) -> None:
    """``x.dtype == torch.float16``: the modes in which this can be, and the dtype there."""
    wanted = _wanted(it, other)
    if wanted is None:
        return
    source = value.source
    assumed = stated and holds and source is not None and bool(source.assumptions)
    kept = []
    live = it.live
    for mode, (has, asks) in enumerate(zip(value.dtypes, wanted, strict=True)):
        if asks & dtypes.OTHER:
            kept.append(has)
            continue
        left = has & asks & dtypes.ANY if holds else has & ~asks & dtypes.ANY
        if has & dtypes.OTHER and left & dtypes.LOW and left & ~dtypes.LOW:
            left = has  # one of several dtypes: half as little as before
        if not left and assumed:
            left = asks  # what was assumed is not so
        if not left:
            live &= ~(1 << mode)
        kept.append((left or has) if has <= dtypes.ANY or holds else has)
    it.live = live
    unknown = wanted[dtypes.CODE] & dtypes.OTHER
    if unknown and tuple(kept) == value.dtypes:
        return  # nothing is learned, not even that it is a tensor of floats
    if isinstance(node, ast.Attribute) and node.attr == "dtype":
        _tensor_is(it, node.value, tuple(kept), stated and holds)
    elif isinstance(node, ast.Name):
        it.variables[node.id] = DtypeValue(tuple(kept), value.node, value.home)


def _tensor_is(it: Interpreter, owner: ast.expr, vector: Dtypes, stated: bool) -> None:
    if not isinstance(owner, (ast.Name, ast.Attribute)):
        return
    known: Value | None = it.expr(owner)
    if isinstance(known, Unknown):
        known = known.symbol.tensor
    if isinstance(known, Tensor):
        mask = ABOUT_SIZE if stated else -1
        made = copied(known, dtypes=vector, symbol=None, assumptions=known.assumptions & mask)
        keep(it, owner, made)


def _device_is(it: Interpreter, node: ast.expr, other: Value | None, holds: bool) -> None:
    """``x.device.type == "cpu"``"""
    names = other.items if isinstance(other, Sequence) and other.items is not None else (other,)
    found = {devices.named(one) for one in names}
    if len(found) != 1 or not isinstance(node, ast.Attribute):
        return
    [device] = found
    if not holds:  # what is not on CUDA may be on the CPU or elsewhere
        device = ON_OTHER if device == ON_CPU else 0
    owner = node.value
    target = owner.value if isinstance(owner, ast.Attribute) else None
    known = it.expr(target) if isinstance(target, (ast.Name, ast.Attribute)) else None
    if isinstance(known, Unknown) and not known.symbol.uses & Symbol.CALLED:
        known = tensor_of(it, known)
    if isinstance(known, Tensor) and device:
        assert target is not None
        keep(it, target, devices.on(known, device))
    elif holds and text(other):
        keep(it, owner, Special("device", node, it.module, type=text(other)))


def _floating(it: Interpreter, node: ast.expr, holds: bool) -> None:
    """``x.is_floating_point()``"""
    target = target_of(it, node)
    known = it.expr(target) if target is not None else None
    if target is None or not isinstance(known, (Tensor, Unknown)):
        return
    tensor = tensor_of(it, known)
    assert tensor is not None
    if holds:
        if tensor.symbol is not None:
            keep(it, target, copied(tensor, symbol=None, assumptions=tensor.assumptions))
        return
    vector = tuple([one & WHOLE or dtypes.INTEGER for one in tensor.dtypes])
    keep(it, target, copied(tensor, dtypes=vector, symbol=None))


# bounds


def _bound(it: Interpreter, node: ast.expr, kind: type, limit: Value | None, stated: bool) -> None:
    """``x < limit`` for a number, and for the least or the largest element of a tensor."""
    constant = number(limit)
    if constant is None or (kind is ast.NotEq and constant):
        return
    found = measured(it, node)
    if found is None:
        return
    target, absolute, which = found
    if which == "min" and kind not in (ast.Gt, ast.GtE):
        return
    if which == "max" and kind not in (ast.Lt, ast.LtE):
        return
    if not which:
        known = it.expr(target)
        if not isinstance(known, Scalar) and not (stated and isinstance(known, (Tensor, Unknown))):
            return
    _elements(it, target, absolute, kind, constant)


def _elements(
    it: Interpreter, target: ast.expr, absolute: bool, kind: type, constant: float
) -> None:
    """All of a value is on one side of a constant."""
    lo, hi = -INF, INF
    apart = kind is ast.NotEq or kind in (ast.Lt, ast.Gt)
    nonzero = constant == 0 and apart
    if kind in (ast.Gt, ast.GtE):
        lo = constant
    elif kind in (ast.Lt, ast.LtE):
        hi = constant
    if absolute:
        nonzero |= lo > 0
        lo = -hi
    if nonzero or (lo, hi) != (-INF, INF):
        outcome = with_bounds(it, it.expr(target), lo, hi, nonzero)
        keep(it, target, outcome.value)


# calls


def _call(it: Interpreter, node: ast.Call, holds: bool, stated: bool) -> None:
    """``torch.is_autocast_enabled()``, ``isinstance(x, torch.Tensor)``, ``(x > 0).all()``."""
    function = node.func
    if isinstance(function, ast.Name) and function.id in ("isinstance", "hasattr"):
        _no_tensor(it, function.id, node, holds)
    if isinstance(function, ast.Name) and function.id == "isinstance" and len(node.args) == 2:
        _kind(it, node.args[0], node.args[1], holds, stated)
        return
    if _asks_for_tensor(it, node) and isinstance(node.args[0], ast.Name) and holds:
        _asked(it, it.variables.get(node.args[0].id), Symbol.ASKED)
        return
    if asked_of_autocast(it, node) == "enabled":
        _autocast(it, holds, stated)
        return
    for left, kind, right in elementwise(it, node, holds):
        kind = kind if holds else NEGATED.get(kind, kind)
        for side, other, way in ((left, right, kind), (right, left, FLIP.get(kind))):
            constant = number(_peek(it, other))
            target = measured(it, side)
            if constant is not None and target is not None and not target[2] and way in FLIP:
                _elements(it, target[0], target[1], way, constant)
    name = function.attr if isinstance(function, ast.Attribute) else ""
    if name == "is_floating_point":
        for one in _subject(it, function, node):
            _floating(it, one, holds)


def _no_tensor(it: Interpreter, name: str, node: ast.Call, holds: bool) -> None:
    """What lacks an attribute that every tensor has, or is no ``torch.Tensor``, is taken for an array."""
    target = node.args[0] if len(node.args) == 2 else None
    if not isinstance(target, ast.Name) or holds:
        return
    value = it.variables.get(target.id)
    if not isinstance(value, Tensor) and not (isinstance(value, Unknown) and name == "hasattr"):
        return
    if told(name, it.expr(node.args[1]), True):
        it.variables[target.id] = Array(dtypes.V_ANY, "input", (value,))


def _subject(it: Interpreter, function: ast.expr, node: ast.Call) -> Iterator[ast.expr]:
    """What a function of torch, or a method, is applied to."""
    if isinstance(_peek(it, function), Reference):
        yield from node.args[:1]
    elif isinstance(function, ast.Attribute):
        yield function.value


def _kind(it: Interpreter, node: ast.expr, cls: ast.expr, holds: bool, stated: bool) -> None:
    if not isinstance(node, ast.Name):
        return
    value = it.variables.get(node.id)
    wanted = it.expr(cls)
    name = wanted.name if isinstance(wanted, Reference) else ""
    classes = wanted.items or () if isinstance(wanted, Sequence) else (wanted,)
    if any(
        isinstance(one, Reference) and one.name.rpartition(".")[2] in CONTAINERS for one in classes
    ):
        _asked(it, value, Symbol.MEMBER)
    if isinstance(value, RegionValue) and (name in AUTOCAST or name == "contextlib.nullcontext"):
        on = holds is (name in AUTOCAST)
        it.variables[node.id] = _entered(value) if on else Special("null", node, it.module)
    elif name.startswith("torch.") and name.rpartition(".")[2] in TENSOR_CLASSES:
        dtype = TENSOR_CLASSES[name.rpartition(".")[2]]
        attribute = ast.copy_location(ast.Attribute(node, "dtype", ast.Load()), node)
        tensor = tensor_of(it, value) if isinstance(value, Unknown) else None
        known = it.expr(attribute) if tensor is None else DtypeValue(tensor.dtypes, source=tensor)
        if isinstance(known, DtypeValue):
            other = DtypeValue(dtypes.everywhere(dtype))
            _dtype_is(it, attribute, known, other, holds, stated)
    elif holds and name == "numpy.ndarray" and isinstance(value, (Tensor, Unknown)):
        it.variables[node.id] = Array(dtypes.V_ANY, "input", (value,))
    elif holds and isinstance(value, Unknown):
        _is_layer(it, value, classes)
        if name in ("torch.Tensor", "torch.FloatTensor"):
            value.symbol.uses |= Symbol.TENSOR
            _asked(it, value, Symbol.ASKED)
        elif name in NUMBERS:
            it.variables[node.id] = Scalar(None, name.rpartition(".")[2])


def _is_layer(it: Interpreter, value: Unknown, classes: Iterable[Value]) -> None:
    """What is one of some layers of torch has weights, which are tensors of floats."""
    for one in classes:
        name = one.name if isinstance(one, Reference) else ""
        layer = layers.layer(name.rpartition(".")[2]) if name.startswith("torch.nn.") else None
        for part in layer.weights if layer is not None else ():
            weight = child(it, value, part)
            if isinstance(weight, Unknown):
                weight.symbol.uses |= Symbol.TENSOR | Symbol.FLOAT


CONTAINERS: Final = frozenset({
    "list", "tuple", "dict", "set", "Mapping", "MutableMapping", "Sequence", "Iterable", "UserDict",
})  # fmt: skip
MEANT: Final[list[Callable[[Interpreter, Unknown], None]]] = []
"""What to look for in what may be a tensor or hold some (``hazards``)."""


def _asked(it: Interpreter, value: Value | None, use: int) -> None:
    """Note what the code asks an unknown object to be."""
    if isinstance(value, Unknown) and not value.symbol.uses & use:
        value.symbol.uses |= use
        for look in MEANT if use == Symbol.MEMBER else ():
            look(it, value)


def _asks_for_tensor(it: Interpreter, node: ast.Call) -> bool:
    """``torch.is_tensor(x)``, ``hasattr(x, "half")``"""
    function = node.func
    if isinstance(function, ast.Name) and function.id == "hasattr" and len(node.args) == 2:
        return getattr(node.args[1], "value", None) in ("half", "bfloat16", "to")
    value = it.expr(function) if isinstance(function, ast.Attribute) and node.args else None
    return isinstance(value, Reference) and value.name == "torch.is_tensor"


def _entered(value: RegionValue) -> RegionValue:
    """A context manager that is known to be autocast's."""
    return RegionValue(
        value.dtypes, value.device, value.assumptions & ~assume.FLAG, value.cache, value.node,
        value.home, value.switch,
    )  # fmt: skip


# autocast


def _autocast(it: Interpreter, holds: bool, stated: bool) -> None:
    """Autocast is on, or off, from here on: what a script runs outside of regions is never on."""
    region = it.region
    on, code = dtypes.regions_on(region.dtypes), 1 << dtypes.CODE
    if region.explicit or (holds and not on and not region.assumptions):
        now = region.dtypes[dtypes.CODE]
        doubt = code if region.assumptions or not now or now & dtypes.MAYBE else 0
        it.live &= on if holds else dtypes.ALL_MODES & ~on | doubt
        return
    known = region.assumptions & ~assume.ENTRY
    if holds:
        it.live &= on | code
        vector = (dtypes.LOW | dtypes.MAYBE, *region.dtypes[1:])
        it.region = region._replace(dtypes=vector, assumptions=known | assume.BRANCH)
        return
    if not stated:
        it.live &= dtypes.ALL_MODES & ~on | code
    it.region = region._replace(dtypes=dtypes.V_OFF, assumptions=known, explicit=stated)


def branch(it: Interpreter, test: ast.expr, holds: bool, stated: bool = False) -> None:
    """Learn what the arm of a branch, or an assertion, says."""
    recall(it, test, holds)
    narrow(it, test, holds, stated)


OPERATIONS["narrow"] = branch
