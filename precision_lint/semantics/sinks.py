"""Where a tensor goes in the dtype it was made in: layers, products, losses."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from precision_lint.semantics import ops
from precision_lint.semantics.flow import PASSING, only_moves
from precision_lint.semantics.index import walk_function
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Function
    from precision_lint.semantics.values import Value

NORMS = frozenset({"layer_norm", "group_norm", "rms_norm"})
"""Operations that take no input of another dtype than their weight."""
_PASSES = (
    PASSING | ops.SHAPES | ops.JOINING | ops.ELEMENTWISE | ops.PAIRWISE | ops.VIEWS
) - {"size", "append", "item", "argmax", "detach_"} | {
    "meshgrid", "normal_", "uniform_", "fill_", "zero_", "clamp_", "masked_fill_", "view_as",
    "sum", "mean", "cumsum", "softmax", "pad", "broadcast_tensors", "where", "outer", "norm", "div",
}  # fmt: skip
"""Operations whose result has the dtype of a float32 operand with dimensions."""
_WEIGHTED = frozenset({
    "CrossEntropyLoss", "NLLLoss", "BCEWithLogitsLoss", "BCELoss", "MultiMarginLoss",
    "cross_entropy", "nll_loss", "binary_cross_entropy_with_logits", "binary_cross_entropy",
})  # fmt: skip
_DEPTH = 10
"""Names, calls and returns that are followed one after another."""
_LIMIT = 120
"""Those that are followed from one place in all."""


@dataclass(frozen=True)
class Sink:
    """An operation that a tensor enters unchanged in dtype.

    ``kind``: ``layer``, whose weights it meets; ``module``, an attribute that is called and of
    which nothing is known; ``product``, where it meets another operand; ``loss``, as the weight of
    the classes; ``samples``, a distribution's.  ``operand`` holds the tensor, ``at`` looks from
    the function that the operation is in.
    """

    kind: Literal["layer", "module", "product", "loss", "samples"]
    node: ast.Call | ast.BinOp
    operand: ast.expr
    at: Context

    @property
    def is_held(self) -> bool:
        """Whether a module makes this one for itself, so that both are cast at once."""
        function = self.at.function
        return function.name == "__init__" and function.cls is not None and function.cls.is_module

    @property
    def is_cast(self) -> bool:
        """Whether a loss is made half where it is made, or is given predictions cast up."""
        at, calls = self.at, [self.node]
        for parent in at.ancestors(self.node):
            if isinstance(parent, ast.Attribute) and parent.attr in ("half", "bfloat16"):
                return True
            if isinstance(parent, ast.stmt):
                target = parent.targets[0] if isinstance(parent, ast.Assign) else None
                uses = at.uses(target.id) if isinstance(target, ast.Name) else []
                around = (at.parents.get(id(use)) for use in uses)
                calls += [call for call in around if isinstance(call, ast.Call)]
                break
        return any(isinstance(c, ast.Call) and any(map(at.is_upcast, c.args[:1])) for c in calls)

    @staticmethod
    def origins(node: ast.expr, at: Context, depth: int = 3) -> list[ast.expr]:
        """Expressions that a value is computed from, by way of local names and helpers."""
        found: list[ast.expr] = []
        _origins(node, at, depth, found, set())
        return found

    @classmethod
    def of(cls, node: ast.expr, at: Context) -> list[Sink]:
        """Every sink of an expression, as far as names, helpers and returns carry it."""
        return list(_sinks(node, at, _DEPTH, set()))

    @staticmethod
    def layer(func: ast.expr, at: Context) -> str | None:
        """The operation by which a called module first meets its weights; None: not known."""
        path = dotted(func) or ""
        if not path.startswith("self.") or at.function.cls is None:
            return _layer(func, at)
        known, key = at.module.layers, (id(at.function.cls), path)
        if key not in known:
            known[key] = _layer(func, at)
        return known[key]


def _layer(func: ast.expr, at: Context) -> str | None:
    found = _weighted(_callee(func, at))
    return found if found is not None else _stored(func, at)


def _callee(func: ast.expr, at: Context) -> Value:
    """What is called: for ``self.x``, what ``__init__`` stores there."""
    path = dotted(func) or ""
    if path.startswith("self.") and path.count(".") == 1 and at.function.cls is not None:
        return at.module.attribute(at.function.cls, path[5:])
    return at.value(func)


def _stored(func: ast.expr, at: Context) -> str | None:
    """``linear`` where some branch of ``__init__`` stores layers with weights in ``self.x``."""
    path, cls = dotted(func) or "", at.function.cls
    init = cls.methods.get("__init__") if cls is not None else None
    if init is None or not path.startswith("self.") or path.count(".") > 1:
        return None
    for made in init.fact(_assignments).get(path, ()):
        while (
            isinstance(made, ast.Call)
            and isinstance(made.func, ast.Attribute)
            and isinstance(made.func.value, ast.Call)
        ):
            made = made.func.value  # nn.Conv2d(...).requires_grad_(False)
        layers = (
            made.args
            if isinstance(made, ast.Call) and _called(made.func, at) == ("Sequential")
            else [made]
        )
        for item in layers:
            called = at.qualify(item.func) if isinstance(item, ast.Call) else None
            if called is not None and called.startswith("torch.nn."):
                op = ops.MODULES.get(called.rpartition(".")[2])
                if op in ops.MATMULS:
                    return op
                if op is None:
                    break
    return None


def _assignments(function: Function) -> dict[str, list[ast.expr]]:
    """What is assigned to each dotted name in a function or inside it, from the outside in."""
    found: dict[str, list[ast.expr]] = {}
    for node in ast.walk(function.node):
        if isinstance(node, ast.Assign):
            for path in dict.fromkeys(filter(None, map(dotted, node.targets))):
                found.setdefault(path, []).append(node.value)
    return found


def _weighted(value: Value) -> str | None:
    if value.kind != "callable" or not isinstance(value.const, str):
        return None
    if "instance" not in value.tags:
        return None
    name = value.const.rpartition(".")[2]
    if name == "Sequential":
        for item in value.items:
            op = _operation(item)
            if op in ops.MATMULS or op in NORMS or op == "recurrent":
                return op
            if op is None:
                return None
        return None
    op = _operation(value)
    return op if op in ops.MATMULS or op in NORMS or op == "recurrent" else None


def _operation(value: Value) -> str | None:
    if value.kind != "callable" or not isinstance(value.const, str):
        return None
    return ops.MODULES.get(value.const.rpartition(".")[2])


def _sinks(
    node: ast.expr, at: Context, depth: int, seen: set[int], place: int | None = None
) -> Iterator[Sink]:
    """``place``: the value is that item of the tuple that ``node`` is."""
    if id(node) in seen or len(seen) > _LIMIT:
        return
    seen.add(id(node))
    inner: ast.expr = node
    for parent in at.ancestors(node):
        match parent:
            case ast.BinOp(op=ast.MatMult()):
                yield Sink("product", parent, inner, at)
                return
            case ast.BinOp() | ast.UnaryOp() | ast.Starred() | ast.NamedExpr():
                pass
            case ast.Tuple() | ast.List():
                place = next(i for i, item in enumerate(parent.elts) if item is inner)
            case ast.keyword(arg=arg):
                call = at.parents.get(id(parent))
                if isinstance(call, ast.Call):
                    yield from _passed(call, arg, inner, at, depth, seen)
                return
            case ast.IfExp(test=test):
                if test is inner:
                    return
            case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt):
                if elt is not inner:
                    return
            case ast.Subscript(value=value, slice=index):
                if value is not inner:
                    return
                if place is not None and isinstance(index, ast.Constant) and index.value != place:
                    return
                place = None
            case ast.Attribute(attr=attr):
                if attr not in _PASSES | ops.MATMULS | {"to"}:
                    return
            case ast.Call(func=func):
                if func is not inner:
                    yield from _argument(parent, inner, at, depth, seen)
                name = _called(func, at)
                if name in ops.MATMULS:
                    if func is inner and isinstance(func, ast.Attribute):
                        yield Sink("product", parent, func.value, at)
                    return
                if name == "to" and not only_moves(parent, at):
                    return
                if name == "append" and depth and isinstance(func, ast.Attribute):
                    if func is not inner and isinstance(func.value, ast.Name):
                        yield from _uses(func.value.id, None, at, depth, seen)
                    return
                if name not in _PASSES and name != "to" and not _keeps(func, at):
                    return
                if name in ops.JOINING or name == "where":
                    place = None
            case ast.Assign(targets=[target], value=source) if depth:
                yield from _bound(target, source, place, at, depth, seen)
                return
            case ast.AnnAssign(target=target, value=source) if depth and source is not None:
                yield from _bound(target, source, place, at, depth, seen)
                return
            case ast.Return() if depth:
                for call, caller in at.module.call_sites(at.function):
                    yield from _sinks(call, at.inside(caller), depth - 1, seen, place)
                return
            case _:
                return
        if not isinstance(parent, ast.expr):
            return
        inner = parent


def _called(func: ast.expr, at: Context) -> str:
    name = at.qualify(func) or getattr(func, "attr", getattr(func, "id", ""))
    return str(name).rpartition(".")[2]


def _keeps(func: ast.expr, at: Context) -> bool:
    """Whether a called module has no weights: an activation, a dropout, a pooling."""
    op = _operation(_callee(func, at))
    return op is not None and op not in ops.MATMULS | NORMS | {"recurrent", "batch_norm"}


def _argument(
    call: ast.Call, operand: ast.expr, at: Context, depth: int, seen: set[int]
) -> Iterator[Sink]:
    """What a call makes of a positional argument, which ``_sinks`` does not pass on."""
    qualified = at.qualify(call.func) or ""
    name = _called(call.func, at)
    if name in ops.MATMULS:
        yield Sink("product", call, operand, at)
    elif qualified.startswith("torch.distributions."):
        yield Sink("samples", call, operand, at)
    elif qualified.startswith("torch.nn.") and name in _WEIGHTED and "functional" not in qualified:
        if call.args[:1] == [operand]:  # the first parameter of the class is the weight
            yield Sink("loss", call, operand, at)
    elif Sink.layer(call.func, at) is not None and call.args[:1] == [operand]:
        yield Sink("layer", call, operand, at)
    elif (dotted(call.func) or "").startswith("self.") and _unknown_module(call.func, at):
        if call.args[:1] == [operand]:
            yield Sink("module", call, operand, at)
    elif depth > 1:
        target = _local(call.func, at)
        if target is not None and operand in call.args:
            names = [p.arg for p in target.parameters()]
            if names[:1] in (["self"], ["cls"]):
                names = names[1:]
            number = call.args.index(operand)
            if number < len(names):
                yield from _uses(names[number], None, at.inside(target), depth - 1, seen)


def _passed(
    call: ast.Call, arg: str | None, operand: ast.expr, at: Context, depth: int, seen: set[int]
) -> Iterator[Sink]:
    """What a call makes of a keyword argument."""
    qualified = at.qualify(call.func) or ""
    name = qualified.rpartition(".")[2]
    if arg in ("weight", "pos_weight") and name in _WEIGHTED and qualified.startswith("torch."):
        yield Sink("loss", call, operand, at)
    elif qualified.startswith("torch.distributions."):
        yield Sink("samples", call, operand, at)
    elif depth > 1:
        target = _local(call.func, at)
        if target is not None and arg in {p.arg for p in target.parameters()}:
            yield from _uses(arg or "", None, at.inside(target), depth - 1, seen)


def _local(func: ast.expr, at: Context) -> Function | None:
    """The function or method of this module that a call runs."""
    path = dotted(func) or ""
    if "." in path and not path.startswith("self."):
        return None
    return at.module.index.function_named(path, at.function)


def _unknown_module(func: ast.expr, at: Context) -> bool:
    """Whether an attribute that is called is a module of the project or from outside."""
    cls = at.function.cls
    name = (dotted(func) or "")[5:]
    if cls is None or not cls.is_module or "." in name or at.module.index.method(cls, name):
        return False
    value = _callee(func, at)
    return not (value.kind == "callable" and isinstance(value.const, str))


def _bound(
    target: ast.expr, source: ast.expr, place: int | None, at: Context, depth: int, seen: set[int]
) -> Iterator[Sink]:
    """Sinks of what an assignment binds."""
    if isinstance(target, ast.Name):
        yield from _uses(target.id, source, at, depth, seen, place)
    elif isinstance(target, (ast.Tuple, ast.List)):
        for number, item in enumerate(target.elts):
            if isinstance(item, ast.Name) and place in (None, number):
                yield from _uses(item.id, source, at, depth, seen)


def _uses(
    name: str,
    source: ast.expr | None,
    at: Context,
    depth: int,
    seen: set[int],
    place: int | None = None,
) -> Iterator[Sink]:
    """Sinks of the uses of a name while it is bound to ``source`` (None: whatever it is bound to).

    An augmented assignment changes what a name holds, not its dtype.
    """
    kept = [s for s in at.function.assigned.get(name, []) if not _augments(s, at)]
    for use in _loads(name, at):
        if source is not None and _latest(kept, use) is not source:
            continue
        if source is None and _latest(kept, use) is not None and _is_parameter(name, at):
            continue
        yield from _sinks(use, at, depth - 1, seen, place)


def _augments(source: ast.expr, at: Context) -> bool:
    return isinstance(at.parents.get(id(source)), ast.AugAssign)


def _is_parameter(name: str, at: Context) -> bool:
    return name in {p.arg for p in at.function.parameters()}


def _latest(sources: list[ast.expr], use: ast.expr) -> ast.expr | None:
    """The last of some assigned values that is complete before ``use`` in source order."""
    earlier = [
        s for s in sources if (s.end_lineno, s.end_col_offset) < (use.lineno, use.col_offset)
    ]
    return max(earlier, key=lambda s: (s.lineno, s.col_offset)) if earlier else None


def _loads(name: str, at: Context) -> list[ast.Name]:
    """Where a function reads a name."""
    return [
        node
        for node in walk_function(at.function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    ]


def _origins(
    node: ast.expr, at: Context, depth: int, found: list[ast.expr], seen: set[int]
) -> None:
    if id(node) in seen or len(found) > _LIMIT:
        return
    seen.add(id(node))
    found.append(node)
    if isinstance(node, ast.Name):
        for source in at.function.assigned.get(node.id, []):
            _origins(source, at, depth, found, seen)
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute):
            _origins(node.func.value, at, depth, found, seen)
        for part in node.args:
            _origins(part, at, depth, found, seen)
        target = _local(node.func, at)
        if target is not None and depth:
            inside = at.inside(target)
            for inner in walk_function(target):
                if isinstance(inner, ast.Return) and inner.value is not None:
                    _origins(inner.value, inside, depth - 1, found, seen)
    elif isinstance(node, ast.Subscript) or (
        isinstance(node, ast.Attribute) and node.attr in ops.SHAPES
    ):
        _origins(node.value, at, depth, found, seen)
    elif not isinstance(node, ast.Attribute):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                _origins(child, at, depth, found, seen)
