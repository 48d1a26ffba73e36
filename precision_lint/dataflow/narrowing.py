"""What a branch learns from its test: modes in which it is taken, dtypes, bounds, kinds."""

from __future__ import annotations

import ast
from typing import Any

from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter
from precision_lint.dataflow.tensors import dtype_of
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.values import (
    INF,
    NONE,
    Array,
    DtypeValue,
    Reference,
    Scalar,
    Sequence,
    Symbol,
    Tensor,
    Unknown,
    Value,
    number,
)

FLIP: dict[type, type] = {ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE}
NEGATED: dict[type, type] = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}


def narrow(it: Interpreter, test: ast.expr, holds: bool) -> None:
    """Learn that a test holds, or does not."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        narrow(it, test.operand, not holds)
    elif isinstance(test, ast.BoolOp):
        if isinstance(test.op, ast.And) is holds:
            for part in test.values:
                narrow(it, part, holds)
    elif isinstance(test, ast.Compare) and len(test.ops) == 1:
        _comparison(it, test, test.left, test.ops[0], test.comparators[0], holds)
    elif isinstance(test, ast.Call):
        _call(it, test, holds)


def _comparison(
    it: Interpreter,
    test: ast.Compare,
    left: ast.expr,
    op: ast.cmpop,
    right: ast.expr,
    holds: bool,
) -> None:
    if isinstance(op, (ast.Is, ast.IsNot)) and _is_none(right):
        if isinstance(op, ast.Is) is holds and isinstance(left, ast.Name):
            it.variables[left.id] = NONE
        return
    equal = isinstance(op, (ast.Eq, ast.Is, ast.In))
    if equal or isinstance(op, (ast.NotEq, ast.IsNot, ast.NotIn)):
        first, second = _peek(it, left), _peek(it, right)
        if isinstance(first, DtypeValue):
            _dtype_is(it, left, first, second, equal is holds)
        elif isinstance(second, DtypeValue) and isinstance(op, (ast.Eq, ast.NotEq)):
            _dtype_is(it, right, second, first, equal is holds)
        return
    kind = op.__class__ if holds else NEGATED.get(op.__class__)
    if kind is not None:
        _bound(it, left, kind, _peek(it, right))
        _bound(it, right, FLIP[kind], _peek(it, left))


def _peek(it: Interpreter, node: ast.expr) -> Value | None:
    """The value of an expression that does nothing; None: it calls something."""
    if isinstance(
        node, (ast.Name, ast.Attribute, ast.Constant, ast.Tuple, ast.List, ast.Set, ast.UnaryOp)
    ):
        return it.expr(node)
    return None


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


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
        if vector is not None and not any(x & dtypes.OTHER for x in vector):
            return vector
    return None


def _dtype_is(
    it: Interpreter, node: ast.expr, value: DtypeValue, other: Value | None, holds: bool
) -> None:
    """``x.dtype == torch.float16``: the modes in which this can be, and the dtype there."""
    wanted = _wanted(it, other)
    if wanted is None:
        return
    kept = []
    live = it.live
    for mode, (has, asks) in enumerate(zip(value.dtypes, wanted, strict=True)):
        left = has & asks & dtypes.ANY if holds else has & ~asks & dtypes.ANY
        if not left:
            live &= ~(1 << mode)
        kept.append((left or has) if has <= dtypes.ANY or holds else has)
    it.live = live
    owner = node.value if isinstance(node, ast.Attribute) and node.attr == "dtype" else None
    if isinstance(owner, ast.Name):
        known = it.variables.get(owner.id)
        if isinstance(known, Unknown):
            known = known.symbol.tensor
        if isinstance(known, Tensor):
            it.variables[owner.id] = known.but(
                dtypes=tuple(kept), symbol=None, operands=known.operands or (known,)
            )
    elif isinstance(node, ast.Name):
        it.variables[node.id] = DtypeValue(tuple(kept), value.node, value.home)


def _bound(it: Interpreter, node: ast.expr, kind: type, limit: Value | None) -> None:
    """``x < limit`` for a Python number, and for a tensor in an assertion."""
    constant = number(limit)
    if constant is None or not isinstance(node, ast.Name):
        return
    value: Any = it.variables.get(node.id)
    if not isinstance(value, Scalar) or value.value is not None or not value.is_number:
        return
    lo = max(value.lo, constant) if kind in (ast.Gt, ast.GtE) else value.lo
    hi = min(value.hi, constant) if kind in (ast.Lt, ast.LtE) else value.hi
    if lo <= hi and (lo, hi) != (-INF, INF):
        it.variables[node.id] = Scalar(
            None, value.kind, lo, hi, value.assumptions, value.node, value.home, value.op,
            value.operands,
        )  # fmt: skip


def _call(it: Interpreter, node: ast.Call, holds: bool) -> None:
    """``torch.is_autocast_enabled()``, ``isinstance(x, torch.Tensor)``."""
    function = node.func
    if isinstance(function, ast.Name) and function.id == "isinstance" and len(node.args) == 2:
        if holds:
            _kind(it, node.args[0], node.args[1])
        return
    if isinstance(function, ast.Attribute):
        callee = _peek(it, function)
        name = callee.name if isinstance(callee, Reference) else ""
        if name in ("torch.is_autocast_enabled", "torch.is_autocast_cpu_enabled"):
            on = dtypes.regions_on(it.region.dtypes)
            known = on if it.region.explicit else on | 1
            off = dtypes.ALL_MODES & ~on | 1
            it.live &= known if holds else off


def _kind(it: Interpreter, node: ast.expr, cls: ast.expr) -> None:
    if not isinstance(node, ast.Name):
        return
    value = it.variables.get(node.id)
    wanted = it.expr(cls)
    name = wanted.name if isinstance(wanted, Reference) else ""
    if isinstance(value, Unknown):
        if name in ("torch.Tensor", "torch.FloatTensor"):
            value.symbol.uses |= Symbol.TENSOR
        elif name == "numpy.ndarray":
            it.variables[node.id] = Array(dtypes.V_ANY, "input")
        elif name in ("builtins.int", "builtins.float", "builtins.str", "builtins.bool"):
            it.variables[node.id] = Scalar(None, name.rpartition(".")[2])


OPERATIONS["narrow"] = narrow
