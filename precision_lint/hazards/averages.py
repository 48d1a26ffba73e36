"""Averages and totals that are kept in half, where small steps are rounded away."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.bindings import STORED
from precision_lint.dataflow.graph import behind, is_op, peel, same
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import BFLOAT16, FLOAT16, FLOATS, LOW, MODES, OTHER
from precision_lint.domains.values import (
    BUFFER,
    DETACHED,
    GRADIENT,
    OPTIONAL,
    Array,
    DtypeValue,
    Instance,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
    number,
    text,
)
from precision_lint.hazards.places import made_at, names_in, on_cpu
from precision_lint.hazards.rounding import EXACT
from precision_lint.syntax.program import Function, Module, bindings, every

SLOWEST: Final = {FLOAT16: 0.99, BFLOAT16: 0.95}
"""From which share of what is kept on an average of 0 stops short of 1 by more than 1 %: 0.95 of 1 in float16,
0.98 in bfloat16, measured."""
LOOSE: Final = frozenset({"cast", "view", "detach", "clone", "index", "element", "join"})

POSITIONS: Final = frozenset({"nonzero", "argwhere", "randperm", "arange", "argsort"})
"""What gives each position once."""

ARITHMETIC: Final = frozenset(
    {"input", "element", "index", "join", "cast", "add", "sub", "rsub", "mul", "div", "pow", "neg",
     "exp", "clamp", "maximum", "minimum", "max", "min", "full", "tensor"}
)  # fmt: skip
"""What a decay that changes with the steps is computed by."""


class Blend(NamedTuple):
    """``share * kept + (1 - share) * new``."""

    kept: Tensor
    new: Tensor
    share: Any


def complement(a: Any, b: Any) -> bool:
    """Whether two factors add up to 1."""
    first, second = number(a), number(b)
    if first is not None and second is not None:
        return abs(first + second - 1) < 1e-9
    for one, other in ((a, b), (b, a)):
        one = peel(one)
        parts: Any = getattr(one, "operands", ())
        if getattr(one, "op", "") == "sub" and len(parts) > 1 and number(parts[0]) == 1:
            if same(parts[1], other) or _is_symbol(parts[1], other):
                return True
    return False


def _is_symbol(a: Any, b: Any) -> bool:
    """Whether two values are one unknown object."""
    symbols = [
        one.symbol if isinstance(one, (Unknown, Tensor)) else None for one in (peel(a), peel(b))
    ]
    return symbols[0] is not None and symbols[0] is symbols[1]


def blends(value: Any) -> list[Blend]:
    """A value as a blend of two tensors, in both directions."""
    value = peel(value)
    if not isinstance(value, Tensor):
        return []
    if value.op == "join":
        return [blend for one in value.operands for blend in blends(one)]
    if value.op == "cast":
        return blends(value.operands[0])
    if value.op == "lerp" and len(value.operands) > 2:
        kept, new = peel(value.operands[0]), peel(value.operands[1])
        weight = number(value.operands[2])
        share = Scalar(1 - weight, "float") if weight is not None else None
        both = isinstance(kept, Tensor) and isinstance(new, Tensor)
        return [Blend(kept, new, share)] if both else []
    if value.op not in ("add", "sub") or len(value.operands) < 2:
        return []
    steps = _steps(value)
    if steps or value.op == "sub":
        return steps
    first, second = _terms(value.operands[0]), _terms(value.operands[1])
    if len(value.operands) > 2 and value.operands[2] is not None:
        second = [(peel(value.operands[1]), value.operands[2])]
    found = []
    for kept, share in first:
        for new, rest in second:
            if isinstance(kept, Tensor) and isinstance(new, Tensor) and complement(share, rest):
                found += [Blend(kept, new, share), Blend(new, kept, rest)]
    return found


def _steps(value: Tensor) -> list[Blend]:
    """``kept - (1 - share) * (kept - new)`` and ``kept + (1 - share) * (new - kept)``."""
    kept, way = peel(value.operands[0]), _terms(value.operands[1])
    if len(value.operands) > 2 and value.operands[2] is not None:
        way = [(peel(value.operands[1]), value.operands[2])]
    found = []
    for difference, part in way:
        if not is_op(difference, "sub") or not isinstance(kept, Tensor):
            continue
        ends = [peel(one) for one in difference.operands[:2]]
        old, new = ends if value.op == "sub" else ends[::-1]
        known, inner = number(part), peel(part)
        share: Any = Scalar(1 - known, "float") if known is not None else None
        if share is None and getattr(inner, "op", "") == "sub" and number(inner.operands[0]) == 1:
            share = inner.operands[1]
        if share is not None and isinstance(new, Tensor) and (old is kept or same(old, kept)):
            found.append(Blend(kept, new, share))
    return found


def _terms(value: Any) -> list[tuple[Any, Any]]:
    """A product as a tensor and its factor, in both orders."""
    value = peel(value)
    if not isinstance(value, Tensor) or value.op != "mul" or len(value.operands) < 2:
        return []
    a, b = (peel(one) for one in value.operands[:2])
    return [(a, b), (b, a)]


def _slow_modes(blend: Blend, modes: int) -> int:
    """Mask of the modes in which the share of what is kept loses steps."""
    share = number(blend.share)
    if share is None:
        return modes
    found = 0
    for mode in range(len(MODES)):
        one = blend.kept.dtypes[mode]
        if one & OTHER or not modes >> mode & 1:
            continue
        if any(one & dtype and share >= least for dtype, least in SLOWEST.items()) and share < 1:
            found |= 1 << mode
    return found


def _before(kept: Tensor) -> Tensor:
    """What is kept as it was before it is scaled."""
    while kept.op in ("mul", "cast") and isinstance(first := peel(kept.operands[0]), Tensor):
        kept = first
    return kept


def _report(it: Interpreter, blend: Blend, node: ast.AST, inplace: bool) -> None:
    kept, new = blend.kept, blend.new
    if (kept.flags | new.flags) & GRADIENT:
        return  # what optimizers keep
    if not all(one.op in ARITHMETIC for one in behind(blend.share)):
        return  # a gate or a mask
    if _made_of(new, _before(kept)):
        return  # a tensor with itself, in another order
    modes = dtypes.modes_of(kept.dtypes, LOW)
    if not inplace:
        modes &= ~dtypes.modes_of(new.dtypes, dtypes.WIDE) | dtypes.modes_of(new.dtypes, LOW)
    modes = _slow_modes(blend, modes)
    if modes:
        low = 0
        for mode in range(len(MODES)):
            low |= kept.dtypes[mode] & LOW if modes >> mode & 1 else 0
        it.emit(
            "slow-average",
            node,
            modes,
            kept.assumptions | (assume.MAGNITUDE if number(blend.share) is None else 0),
            half="float16" if low & FLOAT16 else "bfloat16",
            decay=number(blend.share),
            kept=made_at(it, kept),
        )


@hazard("add", "sub", "lerp")
def updated(it: Interpreter, applied: Applied) -> None:
    """``kept.mul_(decay).add_(new, alpha=1 - decay)`` and ``kept.lerp_(new, 1 - decay)``."""
    if not applied.inplace:
        return
    found = blends(applied.result)
    if found and not _is_fresh(it, applied):
        kept = applied.tensor(0)
        assert kept is not None
        _report(it, Blend(kept, found[0].new, found[0].share), applied.node, True)


def _is_fresh(it: Interpreter, applied: Applied) -> bool:
    """Whether what is updated was computed for that, so that nothing keeps it: ``a.mul(b).add_(c)``."""
    made = [*behind(applied.values[0], 12)] if not it.nest else []
    if any(one.op in CREATED or one.op == "one_hot" for one in made):
        # made in this call, and updated once, unless a module keeps it
        return not any(one.flags & BUFFER for one in made)
    function = applied.node.func if isinstance(applied.node, ast.Call) else None
    node = function.value if isinstance(function, ast.Attribute) else None
    value: Any = applied.tensor(0)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if not node.func.attr.endswith("_"):
            return getattr(value, "op", "") in ("mul", "add", "sub", "div", "neg")
        node, value = node.func.value, (peel(value).operands or (None,))[0]
    return False


@hazard("cast")
def copied(it: Interpreter, applied: Applied) -> None:
    """``kept.copy_(decay * kept + (1 - decay) * new)``"""
    function = getattr(applied.node, "func", None)
    if not isinstance(function, ast.Attribute) or function.attr != "copy_":
        return
    target = it.expr(function.value)
    for blend in blends(applied.tensor(0)):
        if _holds(target, blend.kept):
            _report(
                it, Blend(applied.result.but(op="kept"), blend.new, blend.share), applied.node, True
            )
            return


def _holds(target: Any, value: Tensor) -> bool:
    """Whether a value is what a place holds, or was made of it by casts."""
    if isinstance(target, Unknown):
        return any(one.symbol is target.symbol for one in behind(value, 6))
    target = peel(target)
    if not isinstance(target, Tensor):
        return False
    pieces = [one for one in behind(target, 4) if one is target or target.op in LOOSE]
    if target.op == "weight":
        return any(one.op == "weight" and one.data is target.data for one in behind(value, 6))
    return any(one is piece or same(one, piece) for one in behind(value, 6) for piece in pieces)


def stored(it: Interpreter, target: ast.expr, value: Value, node: ast.AST) -> None:
    """``kept[i] = decay * kept[i] + (1 - decay) * new``; of a variable in a loop, where the decay is known."""
    variable = target.id if isinstance(target, ast.Name) else ""
    if not isinstance(target, (ast.Subscript, ast.Attribute)) and not (variable and it.nest):
        return
    for blend in blends(value):
        if variable:
            kept = peel(it.variables.get(variable)) is _before(blend.kept)
            kept = kept and number(blend.share) is not None
        else:
            kept = _is_kept(it, target, blend.kept)
        if kept and not _by_position(it, target, blend.share):
            _report(it, blend, node, False)


def _by_position(it: Interpreter, target: ast.expr, share: Any) -> bool:
    """Whether each position has a share of its own: a seam between two pieces, not an average."""
    if not isinstance(target, ast.Subscript):
        return False
    names = {one.id for one in ast.walk(target.slice) if isinstance(one, ast.Name)}
    places = [value for name in names if (value := it.variables.get(name)) is not None]
    return any(_made_of(share, place) for place in places)


def _made_of(value: Any, part: Value, depth: int = 4) -> bool:
    """Whether a value is another one, or computed of it."""
    value = peel(value)
    if value is part or not depth:
        return value is part
    return any(_made_of(one, part, depth - 1) for one in getattr(value, "operands", ()))


def _is_kept(it: Interpreter, target: ast.expr, kept: Tensor) -> bool:
    """Whether a tensor is, or comes from, what it is stored in."""
    if _holds(it.expr(target), kept):
        return True
    holder = it.expr(target.value) if isinstance(target, ast.Subscript) else None
    if isinstance(holder, Unknown):
        parts = {
            id(one.symbol) for one in holder.symbol.attributes.values() if isinstance(one, Unknown)
        }
        return any(id(one.symbol) in parts for one in behind(kept, 6) if one.symbol is not None)
    return isinstance(holder, Tensor) and any(one is peel(holder) for one in behind(kept, 6))


STORED.append(stored)


# totals


MANY: Final = 256
"""So many rounds of a loop may lose terms."""
CREATED: Final = frozenset(
    {"zeros", "zeros_like", "new_zeros", "full", "new_full", "full_like", "empty", "uniform"}
)


def rounds(
    it: Interpreter,
    total: Any = None,
    holder: Any = None,
    target: ast.expr | None = None,
    term: Tensor | None = None,
) -> int | None:
    """What has to be assumed for a loop around to have many rounds; None: they have few.

    total: what is added to, which begins before the loop.  term: what is added.  holder: the object that
    holds it.  target: where it is kept; a dict that each round makes anew begins with it, and so does an
    entry under a name of its own.
    """
    began = [*_beginnings(total), *([holder.root] if isinstance(holder, Instance) else [])]
    kept = target.value if isinstance(target, ast.Subscript) else None
    if kept is not None:  # ``kept.get(name, 0.0)``
        began = [one for one in began if getattr(one.node, "lineno", 0) != kept.lineno]
    function = it.function
    inside = [one for one in began if function and _within(one, function.node, it.module)]
    once = [one for one in inside if function and _begun_once(function, one, target)]
    began = [one for one in began if one not in once]
    own = (
        function is None
        or len(inside) > (0 if isinstance(target, ast.Name) else len(once))
        or _is_copy(total, function, it.module)
    )
    keeps = term is not None and not it.no_grad and _has_gradient(term)
    found = [
        _needed(loop.source, keeps and not _goes_backward(it, loop.node))
        for loop in it.nest
        if (loop.function is function or not (own or isinstance(kept, ast.Name)))
        and not any(_within(one, loop.node, loop.home) for one in began)
        and not _begins_entry(loop.node, target)
    ]
    return min((one for one in found if one is not None), default=None)


def _is_copy(total: Any, function: Function, home: Module) -> bool:
    """Whether a total is a tensor of a function's own, cast from what it began as elsewhere."""
    cast = isinstance(total, Tensor) and total.op == "cast"
    return cast and _within(total, function.node, home)


def _has_gradient(term: Tensor) -> bool:
    """Whether a term may have a gradient: adding it keeps all that it was computed of."""
    return not term.flags & (DETACHED | GRADIENT) and bool(dtypes.modes_of(term.dtypes, FLOATS))


def _goes_backward(it: Interpreter, loop: ast.AST) -> bool:
    """Whether each round of a loop is a step of training, which lets go of what it kept."""
    return _trained(it.trace) or any(
        isinstance(one, ast.Attribute) and one.attr == "backward" for one in ast.walk(loop)
    )


def _trained(trace: list[Any]) -> bool:
    return any("backward" in one.kind or any(map(_trained, one.blocks)) for one in trace)


def _begun_once(function: Function, one: Any, target: ast.expr | None) -> bool:
    """Whether a total begins where it is found missing: ``if self.total is None: self.total = ...``"""
    name = getattr(target, "attr", None) or getattr(target, "id", None)
    row = getattr(one.node, "lineno", 0)
    return name is not None and any(
        name in names and first <= row <= last for names, first, last in _where_missing(function)
    )


def _where_missing(function: Function) -> list[tuple[tuple[str, str], int, int]]:
    """What a function's branches ask to be None, and from which to which row they act on it."""
    known: list[tuple[tuple[str, str], int, int]] | None = function.facts.get("missing")
    if known is None:
        known = function.facts["missing"] = [
            (
                (getattr(node.test.left, "attr", ""), getattr(node.test.left, "id", "")),
                node.body[0].lineno,
                node.body[-1].end_lineno or 0,
            )
            for node in every(function.node)
            if isinstance(node, ast.If)
            and isinstance(node.test, ast.Compare)
            and isinstance(node.test.ops[0], ast.Is)
        ]
    return known


def _begins_entry(loop: Any, target: ast.expr | None) -> bool:
    """Whether each round of a loop has a dict of its own, or another entry of it."""
    if not isinstance(target, ast.Subscript):
        return False
    entry = names_in(target.slice, ast.Load) & names_in(getattr(loop, "target", loop), ast.Store)
    kept = target.value.id if isinstance(target.value, ast.Name) else ""
    return bool(entry) or kept in names_in(loop, ast.Store)


def _within(value: Any, outer: Any, home: Any) -> bool:
    """Whether a value is made inside of a loop or function of a file."""
    row, last = getattr(value.node, "lineno", 0), getattr(outer, "end_lineno", 0)
    return value.home is home and outer.lineno < row <= last


TENSORS: Final = Symbol.TENSOR | Symbol.ARRAY | Symbol.SHAPED


def _needed(source: Any, kept: bool) -> int | None:
    """What has to be assumed for a loop to have many rounds: terms that keep their graphs are few."""
    needed = _rounds_of(source, kept)
    return needed | assume.SIZE if needed is not None and kept else needed


def _rounds_of(source: Any, kept: bool = False) -> int | None:
    """kept: each term keeps what its gradient needs, so that a list of unknown length is a short one."""
    if isinstance(source, (Tensor, Array)):
        return 0
    if isinstance(source, Sequence) and isinstance(source.element, Tensor):
        return _pieces_of(source.element)
    if isinstance(source, Sequence) and isinstance(source.element, Unknown):
        symbol = source.element.symbol
        whole = symbol.owner if symbol.label == "*" else None  # ``list(batches)``
        return _rounds_of(Unknown(whole), kept) if whole is not None else None
    if isinstance(source, Unknown):
        element = source.symbol.attributes.get("*")
        called = isinstance(element, Unknown) and element.symbol.uses & Symbol.CALLED
        return None if called or (kept and not source.symbol.uses & TENSORS) else 0
    if not isinstance(source, Special):
        return None
    if source.kind == "range":
        bound = source.fields.get("bound")
        if isinstance(bound, Scalar) and (bound.hi <= MANY or bound.lo > EXACT[FLOAT16]):
            return None if bound.hi <= MANY else 0
        sizes = list(_sizes(bound))
        if any(len(one) == 1 and _rounds_of(peel(one[0]), kept) is None for one in sizes):
            return None  # of ``len(losses)``
        return 0 if sizes else assume.SIZE
    if source.kind == "enumerate":
        return _rounds_of(source.fields["of"], kept)
    if source.kind == "zip":
        found = [_rounds_of(part, kept) for part in source.fields["of"]]
        return None if None in found else max((one or 0 for one in found), default=0)
    return None


def _pieces_of(piece: Tensor) -> int | None:
    """The same of the parts of a tensor: ``x.unbind(0)``, ``x.split(1)``, ``x.chunk(500)``."""
    name, told = (
        piece.data if isinstance(piece.data, tuple) and len(piece.data) == 2 else ("", None)
    )
    size = number(told)
    if name == "unbind":
        return 0
    if name == "split":
        return 0 if size == 1 else assume.SIZE
    return 0 if name == "chunk" and size is not None and size > MANY else None


def _sizes(value: Any) -> Iterator[tuple[Any, ...]]:
    """What a number is the length, or some size, of, or computed of it."""
    if isinstance(value, Scalar) and value.op in ("size", "numel", "len"):
        yield value.operands
    elif isinstance(value, Scalar):
        for one in value.operands:
            yield from _sizes(one)


def summed(it: Interpreter, target: ast.expr, value: Value, node: ast.AST) -> None:
    """``total = total + term`` and ``total += term`` in a loop, also where an object holds the total."""
    if (
        it.nest and isinstance(value, Tensor) and value.op == "join"
    ):  # ``x if total is None else total + x``
        sums = [one for one in map(peel, value.operands) if getattr(one, "op", "") == "add"]
        value = sums[0] if len(sums) == 1 else value
    if not it.nest or not isinstance(value, Tensor) or value.op != "add":
        return
    if len(value.operands) < 2:
        return
    sides = [peel(one) for one in value.operands[:2]]
    if isinstance(target, ast.Subscript):  # of a dict: placed() sees to tensors
        before = next((one for one in sides if number(one) == 0), None)
    else:
        name = target.id if isinstance(target, ast.Name) else ""
        before = it.variables.get(name) if name else it.expr(target)
    old = peel(before)
    first = next((i for i, one in enumerate(sides) if one is old), None)
    if first is not None and before is not None:
        _added(it, node, target, value, old, sides[1 - first])


def _added(
    it: Interpreter, node: ast.AST, target: ast.expr, value: Tensor, total: Any, term: Any
) -> None:
    """A term that is added to a total in a loop."""
    counted = isinstance(term, Scalar) and term.op in ("size", "numel", "len")
    if counted:
        term = None  # so many samples or tokens
    elif not isinstance(term, Tensor) or _depends(term, total) or _moves(it, target, node):
        return
    missing = _starts_missing(it, total, target)
    if not missing and not _starts_empty(total):
        return
    holder: Any = None
    if isinstance(target, (ast.Attribute, ast.Subscript)):
        part = target.value
        holder = it.expr(part.value if isinstance(part, ast.Attribute) else part)
    needed = rounds(it, total, holder, target, term)
    low = dtypes.modes_of(value.dtypes, LOW)
    modes = dtypes.modes_of(term.dtypes, LOW) if term is not None else 0
    modes = low & (modes | dtypes.surely(value.dtypes, LOW))
    if not modes or needed is None:
        return
    if term is None:
        _report_total(it, node, modes, _rests_on(total) | needed, target, value, None)
    elif _is_number(total) and not (missing and isinstance(node, ast.AugAssign)):
        _report_total(it, node, modes, term.assumptions | needed, target, value, term, True)
    elif bindings(node) and not _are_whole(term):
        _report_total(it, node, modes, term.assumptions | needed, target, value, term)
    else:  # what is added takes its dtype
        _report_total(it, node, modes, _rests_on(total) | needed, target, value, None)


def _are_whole(term: Tensor) -> bool:
    """Whether a term holds integers, or what is true, so that no float is promoted by it."""
    return dtypes.surely(term.dtypes, dtypes.INTEGER | dtypes.BOOLEAN) == dtypes.ALL_MODES


@hazard("add")
def added_in_place(it: Interpreter, applied: Applied) -> None:
    """``total.add_(term)`` in a loop."""
    function = getattr(applied.node, "func", None)
    if not applied.inplace or not isinstance(function, ast.Attribute) or not it.nest:
        return
    total, term = peel(applied.tensor(0)), peel(applied.tensor(1))
    if isinstance(total, Tensor) and (total.op != "mul" and len(applied.values) < 3):
        _added(it, applied.node, function.value, applied.result, total, term)


def _depends(term: Tensor, total: Any) -> bool:
    """Whether a term is computed of the total's numbers: a state that moves, not a sum."""
    pending, seen = [peel(term)], set[int]()
    while pending and len(seen) < 40:
        one = pending.pop()
        if one is total:
            return True
        if isinstance(one, Tensor) and id(one) not in seen and one.op not in CREATED:
            seen.add(id(one))
            pending += [peel(part) for part in one.operands]
    return False


def _moves(it: Interpreter, target: ast.expr, node: ast.AST) -> bool:
    """Whether a loop calls something with the total, for a term or for another value of its name: a state."""
    loop, function = it.nest[-1], it.function
    if not isinstance(target, ast.Name) or function is None:
        return False
    around = loop.node if loop.function is function else function.node
    names = names_in(node, ast.Load)
    sums = [value for one, value in bindings(node) if one is target]  # torch.add(total, term)
    made = [node] + [
        value
        for one in ast.walk(around)
        for bound, value in bindings(one)
        if names & names_in(bound, ast.Store)
    ]
    return any(
        target.id in names_in(given, ast.Load)
        for value in made
        for one in ast.walk(value)
        if isinstance(one, ast.Call) and one not in sums
        for given in (*one.args, *(keyword.value for keyword in one.keywords))
    )


def _is_number(total: Any) -> bool:
    """Whether a total starts as a Python number."""
    return (
        not any(_is_empty(one) for one in behind(total, 12)) if isinstance(total, Tensor) else True
    )


def _starts_empty(total: Any) -> bool:
    """Whether a total starts as a number, or as zeros."""
    return next(_beginnings(total), None) is not None


def _starts_missing(it: Interpreter, total: Any, target: ast.expr | None) -> bool:
    """Whether a total is None until a round of the loop at hand gives it its first term."""
    if not isinstance(target, ast.Name) or not isinstance(total, Tensor) or not it.nest:
        return False
    loop = it.nest[-1]
    if isinstance(loop.source, Special) and loop.source.kind == "range":
        return False  # the blocks of a model, as a rule
    made = total.operands if total.op == "join" else (total,)
    return bool(total.flags & OPTIONAL) and any(
        isinstance(one, Tensor) and _within(one, loop.node, loop.home) for one in made
    )


def _is_empty(value: Tensor) -> bool:
    """Whether a tensor is made to be added to."""
    return value.op in CREATED or (
        value.op in ("tensor", "as_tensor") and value.lo == value.hi == 0
    )


def _beginnings(total: Any) -> Iterator[Scalar | Tensor]:
    """The numbers and zeros that a total starts as."""
    pending, seen = [total], set[int]()
    while pending and len(seen) < 12:
        one = peel(pending.pop())
        if isinstance(one, Scalar):
            yield one
        if not isinstance(one, Tensor) or id(one) in seen:
            continue
        seen.add(id(one))
        if _is_empty(one):
            yield one
        elif one.op in ("join", "add", "cast", "index_put"):
            pending += one.operands[:8]


def _report_total(
    it: Interpreter,
    node: ast.AST,
    modes: int,
    assumptions: int,
    target: ast.expr,
    total: Any,
    term: Any,
    plain: bool = False,
) -> None:
    """plain: the total starts as a number, so that it takes the dtype of its terms."""
    low = 0
    for mode in range(len(MODES)):
        low |= total.dtypes[mode] & LOW if modes >> mode & 1 else 0
    source = _written_term(node) if plain else None
    it.emit(
        "half-total",
        node,
        modes,
        assumptions,
        about=term if isinstance(term, Tensor) else None,
        half="float16" if low & FLOAT16 else "bfloat16",
        total=it.place(target),
        term=it.place(source) if source is not None else None,
    )


def _written_term(node: ast.AST) -> ast.expr | None:
    if isinstance(node, ast.AugAssign):
        return node.value
    value = getattr(node, "value", None)
    return value.right if isinstance(value, ast.BinOp) else None


def placed(it: Interpreter, target: ast.expr, value: Value, node: ast.AST) -> None:
    """``buffer[place] += term`` in a loop, into a buffer that is made half."""
    if not isinstance(target, ast.Subscript) or not it.depth:
        return
    if not isinstance(value, (Tensor, Array)) or value.op != "add" or len(value.operands) < 2:
        return
    buffer = peel(it.expr(target.value))
    first = peel(value.operands[0])
    if not isinstance(buffer, (Tensor, Array)) or getattr(first, "op", "") != "index":
        return
    if not _starts_empty(buffer) and not isinstance(buffer, Array) and not buffer.flags & BUFFER:
        return
    if peel(first.operands[0]) is not buffer and not same(first.operands[0], buffer):
        return
    loop = it.nest[-1] if it.nest and it.nest[-1].function is it.function else None
    name = target.value.id if isinstance(target.value, ast.Name) else ""
    if loop is not None and name in names_in(loop.node, ast.Store):
        return  # each round has one of its own
    if all(_moves_on(one.node, target.slice) for one in it.nest if one.function is it.function):
        return
    modes = dtypes.modes_of(buffer.dtypes, LOW)
    taken = loop is not None and _is_taken(loop.node, target.slice)
    if modes & 1:
        _report_total(it, node, modes, assume.SIZE if taken else 0, target.value, buffer, None)


def _is_taken(loop: ast.AST, index: ast.expr) -> bool:
    """Whether an index, or its first part, is what each round is given, as the window that it sees: how often
    a place comes again is not known."""
    while isinstance(index, (ast.Subscript, ast.Tuple)):
        index = index.value if isinstance(index, ast.Subscript) else index.elts[0]
    return isinstance(index, ast.Name) and index.id in names_in(loop, ast.Store)


def _moves_on(loop: ast.AST, index: ast.expr) -> bool:
    """Whether a slice begins elsewhere in each round, so that few rounds come to the same place."""
    inner = [one for one in ast.walk(loop) if isinstance(one, ast.For) and one is not loop]
    bound = names_in(loop, ast.Store).difference(*[names_in(one, ast.Store) for one in inner])
    return any(
        isinstance(one, ast.Slice)
        and one.lower is not None
        and names_in(one.lower, ast.Load) & bound
        for one in ast.walk(index)
    )


STORED.extend([summed, placed])


def _distinct(index: Value | None) -> bool:
    """Whether positions hardly repeat, as those do where a mask is true: few terms share a place."""
    while isinstance(index, Tensor) and index.op in LOOSE | {"unbind"} and index.operands:
        index = index.operands[0]
    return isinstance(index, Tensor) and (
        index.op in POSITIONS or (index.op == "where" and len(index.operands) == 1)
    )


def _as_many(total: Tensor, applied: Applied) -> bool:
    """Whether what is added has the total's own shape: a place gets one term in the mean."""
    source = applied["source"] or applied["src"] or applied["values"]
    begins = total.op in ("zeros_like", "zeros", "new_zeros") and total.operands
    made = total.operands[0] if begins else None
    sizes = made.items[-1] if isinstance(made, Sequence) and made.items else made
    of = sizes.fields.get("of") if isinstance(sizes, Special) else sizes
    return _is_symbol(of, source) or (isinstance(of, Tensor) and same(of, source))


def _adds(it: Interpreter, applied: Applied, total: Tensor) -> int | None:
    """What it takes to say that terms are added one by one in half: assumptions; None: they are not.

    CUDA's kernels do, but for ``index_put_``, which sorts them; the CPU's do not, but for ``index_put_``
    and ``index_add_`` (measured on an H200, torch 2.11, and on the CPU, torch 2.13).
    """
    where = on_cpu(it, total)
    if applied.name == "index_put":
        flag = applied["accumulate"]
        return where if isinstance(flag, Scalar) and flag.value is True else None
    if applied.name == "index_add":
        return 0
    if applied.name == "scatter_reduce" and text(applied["reduce"]) not in ("sum", "mean"):
        return None
    return None if where == 0 else assume.SIZE


@hazard("index_add", "index_put", "scatter_add", "scatter_reduce")
def added_by_index(it: Interpreter, applied: Applied) -> None:
    """``counts.index_add_(0, index, ones)`` into half."""
    if not applied.inplace or not isinstance(applied.node, ast.Call):
        return
    total = peel(applied.tensor(0))
    if (
        not isinstance(total, Tensor)
        or (added := _adds(it, applied, total)) is None
        or not _starts_empty(total)
        or (it.depth and rounds(it, total) is None)
        or _distinct(applied["index"])
        or _as_many(total, applied)
    ):
        return
    modes = dtypes.modes_of(total.dtypes, LOW)
    function = applied.node.func
    target = function.value if isinstance(function, ast.Attribute) else applied.node
    source = applied["source"] or applied["src"] or applied["values"]
    if not is_op(source, "ones", "ones_like", "new_ones"):  # what is counted is meant to be many
        added |= assume.SIZE
    if modes:
        _report_total(it, applied.node, modes, _rests_on(total) | added, target, total, None)


def _rests_on(total: Tensor) -> int:
    """The assumptions behind a total, and behind what it took its dtype of."""
    assumptions = total.assumptions
    for one in _beginnings(total):
        for part in one.operands:
            if isinstance(part, DtypeValue) and part.source is not None:
                assumptions |= part.source.assumptions
    return assumptions
