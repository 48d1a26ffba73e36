"""Where the value of a local name goes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.semantics.names import dotted
from precision_lint.semantics.ops import FUNCTIONS, JOINING, SHAPES

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

REDUCED = frozenset({"log", "log2", "log10", "mean", "sum"})
"""Operations behind which a wider dtype is a loss's own business."""
PRODUCTS = frozenset({"matmul", "bmm", "mm", "mv", "baddbmm", "einsum", "linear"})
PRODUCERS = frozenset({"sigmoid", "softmax", "tanh", "relu", "exp", "hardsigmoid", "abs", "square"})
ELEMENTWISE = PRODUCERS | REDUCED | frozenset({
    "amax", "prod", "clamp", "clip", "pow", "sqrt", "mul", "add", "sub", "neg", "item",
    "log1p", "gather", "max", "min", "detach", "argmax", "size", "float", "any", "all", "isnan",
    "maximum", "minimum", "where", "full_like", "zeros_like", "ones_like", "clamp_min", "view",
    "reshape", "squeeze", "unsqueeze", "mul_", "masked_fill", "numel", "flatten", "append",
})  # fmt: skip
"""Operations that accept any floating dtype and pass it on."""
PASSING = (
    ELEMENTWISE - REDUCED - {"float", "item", "size", "argmax", "isnan", "any", "all", "append"}
)
"""Those behind which a tensor is still an activation of its own dtype."""


HOMES = frozenset({"F", "nnf", "functional", "torch", "linalg", "fft"})
"""What modules of torch are called, for where an import does not tell."""


def operation(node: ast.expr, at: Context) -> tuple[str, ast.expr] | None:
    """Name and first operand of a call of a torch function or tensor method."""
    if not isinstance(node, ast.Call):
        return None
    qualified = at.qualify(node.func)
    if qualified is not None:
        if qualified.startswith("torch.") and node.args:
            return qualified.rpartition(".")[2], node.args[0]
        return None
    if not isinstance(node.func, ast.Attribute) or getattr(node.func.value, "id", "") == "self":
        return None
    name, owner = node.func.attr, node.func.value
    if (dotted(owner) or "").rpartition(".")[2] in HOMES:
        return (name, node.args[0]) if node.args else None
    return (name, owner) if name not in FUNCTIONS else None


def definition(name: str, use: ast.expr, at: Context) -> ast.expr | None:
    """What a local name was last bound to before ``use`` in source order."""
    earlier = [
        source
        for source in at.function.assigned.get(name, [])
        if (source.end_lineno, source.end_col_offset) < (use.lineno, use.col_offset)
    ]
    return max(earlier, key=lambda s: (s.lineno, s.col_offset)) if earlier else None


def bound_before(name: str, node: ast.expr, at: Context) -> bool:
    """Whether a name already has its value where ``node`` is evaluated."""
    sources = _sources(name, at)
    head = name.partition(".")[0]
    if not sources and head in at.function.looped:
        return at.function.looped[head].lineno < node.lineno
    if not sources:
        return head == "self" or head in {p.arg for p in at.function.parameters()}
    return all(_place(source) < _place(node) for source in sources)


def same_at(name: str, made: ast.expr, use: ast.expr, at: Context) -> bool:
    """Whether a name stands for the same value at ``made`` and where ``use`` reads it."""
    sources = _sources(name, at)
    if any(
        _place(made) < _place(s) < _place(use)
        and (s.end_lineno, s.end_col_offset) < (use.lineno, use.col_offset)
        for s in sources
    ):
        return False
    if any(_place(s) < _place(made) for s in sources):
        return True
    head = name.partition(".")[0]
    bound = at.function.looped.get(head)
    if bound is not None:
        return bound.lineno < made.lineno
    return head == "self" or head in {p.arg for p in at.function.parameters()}


def _sources(name: str, at: Context) -> list[ast.expr]:
    """What is assigned to a name, or to what it is an attribute of."""
    assigned = at.function.assigned
    return assigned.get(name, []) + assigned.get(name.partition(".")[0], [])


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def reaches_layer(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether a value goes on into a layer or a product, its dtype as it is.

    A cast ends the way, and so do a return, a reduction to a loss and what is not followed.
    """
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.BinOp(op=ast.MatMult()):
                return True
            case ast.BinOp() | ast.UnaryOp() | ast.Tuple() | ast.List() | ast.Starred():
                pass
            case ast.keyword() | ast.IfExp():
                pass
            case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt) if elt is inner:
                pass
            case ast.Subscript(value=value):
                if value is not inner:
                    return False
            case ast.Attribute(attr=attr):
                if attr not in PASSING | PRODUCTS and attr not in SHAPES | {"to"}:
                    return False
            case ast.Call(func=func):
                name = str(at.qualify(func) or getattr(func, "attr", getattr(func, "id", "")))
                last = name.rpartition(".")[2]
                if last in PRODUCTS:
                    return True
                if last == "to" and func is inner:
                    if not only_moves(parent, at):
                        return False
                elif last == "append" and isinstance(func, ast.Attribute) and depth > 0:
                    return isinstance(func.value, ast.Name) and _any_use(
                        func.value.id, None, at, depth
                    )
                elif last not in PASSING and last not in SHAPES and last not in JOINING:
                    return func is not inner and _is_layer(func, at)
            case ast.Assign(targets=[ast.Name(id=name)], value=source) if depth > 0:
                return _any_use(name, source, at, depth)
            case ast.Return() if depth > 1:
                return any(
                    reaches_layer(call, at.inside(caller), depth - 2)
                    for call, caller in at.module.call_sites(at.function)
                )
            case _:
                return False
        inner = parent
    return False


def _any_use(name: str, source: ast.expr | None, at: Context, depth: int) -> bool:
    """Whether any use of a name (while it is bound to ``source``) reaches a layer."""
    return any(
        reaches_layer(use, at, depth - 1)
        for use in at.uses(name)
        if isinstance(use.ctx, ast.Load)
        and not isinstance(at.parents.get(id(use)), ast.Attribute if source is None else ())
        and (source is None or definition(name, use, at) is source)
    )


def _is_layer(func: ast.expr, at: Context) -> bool:
    """Whether ``self.x(...)`` is a layer; a module defined here that casts to a dtype is not."""
    path = dotted(func) or ""
    cls = at.function.cls
    if not path.startswith("self.") or path.count(".") > 1 or cls is None:
        return False  # a method of a module may do anything
    if at.module.index.method(cls, path[5:]):
        return False
    called = None
    stored = at.module.stores(cls).get(path[5:])
    if stored is not None and isinstance(stored[0], ast.Call):
        made = at.module.index.classes.get(dotted(stored[0].func) or "")
        called = made.methods.get("forward") if made is not None else None
    if called is None:
        return True
    return not any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and (
            node.func.attr in ("float", "type_as")
            or (node.func.attr == "to" and "dtype" in ast.unparse(node))
        )
        for node in ast.walk(called.node)
    )


def only_moves(call: ast.Call, at: Context) -> bool:
    """Whether ``x.to(...)`` names a device and no dtype."""
    given = [*call.args, *(k.value for k in call.keywords)]
    if any(k.arg == "dtype" for k in call.keywords):
        return False
    return all(
        (isinstance(a, ast.Attribute) and a.attr == "device")
        or isinstance(a, ast.Constant)
        or (isinstance(a, ast.Name) and "device" in a.id)
        for a in given
    )


def stays_elementwise(name: str, at: Context, seen: set[str], reduced: bool = False) -> bool:
    """Whether every use of a name allows a wider dtype: none reaches a layer or a product.

    ``reduced``: the name already holds a loss term, which may be returned or passed on.
    """
    seen.add(name)
    for use in at.uses(name):
        if isinstance(use.ctx, ast.Store):
            continue
        if not _allows_wider(use, at, seen, reduced):
            return False
    return True


def _allows_wider(use: ast.Name, at: Context, seen: set[str], reduced: bool) -> bool:
    node: ast.AST = use
    for parent in at.ancestors(use):
        match parent:
            case ast.Subscript(value=value) if value is not node:
                return True  # it only selects
            case ast.BinOp(op=ast.MatMult()):
                return False
            case ast.BinOp():
                # next to a logarithm of the same value the term is float32 in any case
                reduced = reduced or _takes_log(parent, use.id, at)
            case ast.UnaryOp() | ast.Subscript() | ast.Tuple() | ast.List():
                pass
            case ast.Compare():
                return True
            case ast.Attribute(attr=attr):
                if attr in ("shape", "device", "dtype", "ndim"):
                    return True
                if attr not in ELEMENTWISE:
                    return reduced and attr not in PRODUCTS
                reduced = reduced or attr in REDUCED
            case ast.Call(func=func):
                if func is not node:
                    name = at.qualify(func) or getattr(func, "attr", "")
                    last = str(name).rpartition(".")[2]
                    if last not in ELEMENTWISE:
                        return reduced and last not in PRODUCTS
                    reduced = reduced or last in REDUCED
            case ast.keyword():
                pass
            case (
                ast.Assign(targets=[ast.Name(id=other)]) | ast.AugAssign(target=ast.Name(id=other))
            ):
                return other in seen or stays_elementwise(other, at, seen, reduced)
            case ast.Assign() | ast.AugAssign():
                return reduced  # an entry of a dict of losses
            case ast.Return():
                return reduced
            case ast.Expr():
                return reduced  # appended to a list of losses, or logged
            case _:
                return False
        node = parent
    return False


def products_reached(name: str, at: Context, seen: set[str]) -> Iterator[ast.Call | ast.BinOp]:
    """Matrix products that a name's value meets, as far as local names carry it."""
    seen.add(name)
    for use in at.uses(name):
        if isinstance(use.ctx, ast.Store):
            continue
        for parent in at.ancestors(use):
            match parent:
                case ast.BinOp(op=ast.MatMult()):
                    yield parent
                case ast.Call(func=func):
                    called = str(at.qualify(func) or getattr(func, "attr", ""))
                    if called.rpartition(".")[2] in PRODUCTS:
                        yield parent
                case ast.Assign(targets=[ast.Name(id=other)]) if other not in seen:
                    yield from products_reached(other, at, seen)
                case ast.stmt():
                    break


def _takes_log(node: ast.expr, name: str, at: Context) -> bool:
    """Whether a logarithm of an expression with ``name`` is part of ``node``."""
    for part in ast.walk(node):
        found = operation(part, at) if isinstance(part, ast.Call) else None
        if found is not None and found[0] in ("log", "log2", "log10"):
            if any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(found[1])):
                return True
    return False
