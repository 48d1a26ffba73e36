"""What a value was computed by, looking back along local names."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.semantics import ops
from precision_lint.semantics.names import dotted
from precision_lint.semantics.sinks import NORMS, Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

_THROUGH = (
    ops.SHAPES | ops.ELEMENTWISE | ops.PAIRWISE | ops.JOINING | ops.REDUCTIONS
    | {"to", "type_as", "masked_fill", "dropout", "clamp", "relu", "gelu", "silu", "data", "where",
       "softmax", "log_softmax", "cumsum", "norm", "normalize", "add_", "mul_", "pad", "topk",
       "sort", "max", "min", "index_add", "index_add_", "lerp"}
)  # fmt: skip
"""Operations behind which a value is still one of what went in."""
_TARGETS = re.compile(r"(^|_)(gts?|targets?|labels?|truths?)(_|$)")
_LIMIT = 60


class Provenance:
    """Where the elements of a value come from."""

    @staticmethod
    def of(node: ast.expr, at: Context, casts: bool = False) -> Iterator[ast.expr]:
        """An expression, and those that its elements come from, each once.

        ``casts``: also past a cast to float32, which makes what was before a thing of the past.
        """
        return _back(node, at, set(), casts)

    @staticmethod
    def computed(node: ast.expr, at: Context) -> ast.expr | None:
        """The layer or matrix product that a value comes out of, whose dtype autocast sets."""
        return next((e for e in Provenance.of(node, at) if Provenance.is_layer(e, at)), None)

    @staticmethod
    def of_targets(node: ast.expr, at: Context, depth: int = 4) -> bool:
        """Whether a value is computed with ground truth, which loaders give in float32."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                if _TARGETS.search(part.id):
                    return True
                source = at.definition(part.id, part) if depth else None
                if source is not None and Provenance.of_targets(source, at, depth - 1):
                    return True
        return False

    @staticmethod
    def is_layer(node: ast.expr, at: Context) -> bool:
        """Whether an expression calls a layer, an attribute that is a module, or is a product."""
        if isinstance(node, ast.BinOp):
            return isinstance(node.op, ast.MatMult) and _lowers(node, at)
        if not isinstance(node, ast.Call):
            return False
        called = (at.qualify(node.func) or "").rpartition(".")[2]
        if at.product(node)[1] or called in ops.MATMULS:
            return _lowers(node, at)
        func = node.func
        while isinstance(func, ast.Subscript):
            func = func.value
        path, cls = dotted(func) or "", at.function.cls
        if cls is None or not cls.is_module or not path.startswith("self."):
            return False
        op = Sink.layer(node.func, at)
        if op is not None:
            return op not in NORMS  # which give float32 under autocast
        name = path[5:]
        if "." in name or at.module.index.method(cls, name) or _weightless(node, at):
            return False
        value = at.module.attribute(cls, name)
        if value.kind == "callable" and isinstance(value.const, str):
            op = ops.MODULES.get(value.const.rpartition(".")[2])
            return value.const.endswith("ModuleList") or op in ops.MATMULS
        stored = at.module.stores(cls).get(name)
        if stored is None or not isinstance(stored[0], ast.Call):
            return False
        given = node.args or any(k.arg not in ("device", "dtype") for k in node.keywords)
        partial = (dotted(stored[0].func) or "").rpartition(".")[2] == "partial"
        return bool(given) and not partial  # which may make windows: self.window(device=x.device)


def _weightless(call: ast.Call, at: Context) -> bool:
    """Whether a call runs a module of the project that only computes: no layer, no product."""
    cls, path = at.function.cls, dotted(call.func) or ""
    if cls is None or not path.startswith("self.") or path.count(".") != 1:
        return False
    stored = at.module.stores(cls).get(path[5:])
    made = dotted(stored[0].func) if stored and isinstance(stored[0], ast.Call) else None
    found = at.module.base(made) if made is not None else None
    forward = found[0].methods.get("forward") if found is not None else None
    return forward is not None and not any(
        (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (isinstance(node, ast.Call) and _may_lower(ast.unparse(node.func)))
        for node in forward.nodes
    )


def _may_lower(called: str) -> bool:
    """Whether a call may be of a layer, of a function of the project, or of a product."""
    name = called.rpartition(".")[2]
    known = name in ops.KNOWN | _THROUGH or called.startswith(("torch.", "math."))
    return name in ops.MATMULS or called.startswith("self.") or not known


def _lowers(product: ast.expr, at: Context) -> bool:
    """Whether a product of any two tensors is believed to run under autocast, if anything does."""
    region = at.region(product)
    return region.on or (region.state == "inherited" and (region.known or _is_forward(at)))


def _is_forward(at: Context) -> bool:
    return at.function.cls is not None and at.function.name in ("forward", "__call__")


def _back(node: ast.expr, at: Context, seen: set[int], casts: bool = False) -> Iterator[ast.expr]:
    if id(node) in seen or len(seen) > _LIMIT:
        return
    seen.add(id(node))
    yield node
    if isinstance(node, ast.Call) and at.value(node).dtype in ("float32", "float64") and not casts:
        return
    match node:
        case ast.Name(id=name):
            source = at.definition(name, node)
            if source is not None:
                yield from _back(source, at, seen, casts)
        case ast.BinOp(left=left, right=right):
            yield from _back(left, at, seen, casts)
            yield from _back(right, at, seen, casts)
        case ast.UnaryOp(operand=inner) | ast.Subscript(value=inner) | ast.Starred(value=inner):
            yield from _back(inner, at, seen, casts)
        case ast.IfExp(body=body, orelse=orelse):
            yield from _back(body, at, seen, casts)
            yield from _back(orelse, at, seen, casts)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _back(part, at, seen, casts)
        case ast.ListComp(elt=elt) | ast.GeneratorExp(elt=elt):
            yield from _back(elt, at, seen, casts)
        case ast.Attribute(value=inner, attr=attr) if attr in ops.SHAPES:
            yield from _back(inner, at, seen, casts)
        case ast.Call():
            found = at.operation(node)
            if at.product(node)[1]:
                for part in at.product(node)[1]:
                    yield from _back(part, at, seen, casts)
            elif found is not None and (found[0] in _THROUGH or found[0] in ops.CASTS):
                yield from _back(found[1], at, seen, casts)
                if found[0] in ops.PAIRWISE or found[0] == "where":
                    for part in node.args:
                        yield from _back(part, at, seen, casts)
            elif _weightless(node, at):
                for part in node.args:
                    yield from _back(part, at, seen, casts)
        case _:
            pass
