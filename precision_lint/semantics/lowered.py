"""Operations that autocast runs in its lower dtype, and casts to float32 in front of them."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from precision_lint.api import Edit
from precision_lint.semantics import ops
from precision_lint.semantics.policy import policy
from precision_lint.semantics.sinks import Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.values import Value

_OPERANDS: dict[str, tuple[str, ...]] = {
    "matmul": ("input", "other"),
    "mm": ("input", "mat2"),
    "bmm": ("input", "mat2"),
    "mv": ("input", "vec"),
    "addmm": ("input", "mat1", "mat2"),
    "addbmm": ("input", "batch1", "batch2"),
    "baddbmm": ("input", "batch1", "batch2"),
    "linear": ("input", "weight", "bias"),
    "bilinear": ("input1", "input2", "weight", "bias"),
    "scaled_dot_product_attention": ("query", "key", "value"),
    "einsum": (),
    "chain_matmul": (),
} | {
    f"conv{kind}{dims}d": ("input", "weight", "bias")
    for kind in ("", "_transpose")
    for dims in (1, 2, 3)
}
"""The tensors of each operation by parameter; none: all arguments are."""
_METHODS = frozenset({"matmul", "mm", "bmm", "mv", "addmm", "baddbmm"})
FUNCTIONS = frozenset({
    *(f"torch.{name}" for name in ("matmul", "mm", "bmm", "mv", "addmm", "addbmm", "baddbmm")),
    *(f"torch.{name}" for name in ("einsum", "chain_matmul", "conv1d", "conv2d", "conv3d")),
    *(
        f"torch.nn.functional.{name}"
        for name in _OPERANDS
        if name.startswith("conv") or name in ("linear", "bilinear", "scaled_dot_product_attention")
    ),
    "einops.einsum",
    *(f"Tensor.{name}" for name in _METHODS),
})  # fmt: skip
_DEPTH = 5


@dataclass(frozen=True)
class Lowered:
    """An operation of autocast's lower-precision list, with the tensors that it casts.

    ``layer``: a module with weights; its operand is what it is called with.
    """

    name: str
    node: ast.Call | ast.BinOp
    operands: tuple[ast.expr, ...]
    layer: bool = False
    functions: ClassVar[frozenset[str]] = FUNCTIONS
    """Every spelling of the functions and methods, for triggers."""

    @classmethod
    def of(cls, node: ast.expr, at: Context) -> Lowered | None:
        """The operation that an expression is; None: it is another one, or not understood."""
        if isinstance(node, ast.BinOp):
            if not isinstance(node.op, ast.MatMult) or _numpy((node.left, node.right), at):
                return None
            return cls("@", node, (node.left, node.right))
        if not isinstance(node, ast.Call):
            return None
        qualified = at.qualify(node.func)
        if qualified in FUNCTIONS:
            name = qualified.rpartition(".")[2]
            return cls(name, node, _arguments(name, node, qualified))
        if qualified is None and isinstance(node.func, ast.Attribute):
            name, owner = node.func.attr, node.func.value
            if name in _METHODS and at.value(owner).maybe_tensor:
                operands = (owner, *node.args[: len(_OPERANDS[name]) - 1])
                return None if _numpy(operands, at) else cls(name, node, operands)
        layer = Sink.layer(node.func, at) if qualified is None and node.args else None
        if layer in ops.MATMULS and policy(layer or "", "cuda") == "lower":
            return cls(at.text(node.func), node, (node.args[0],), layer=True)
        return None

    @staticmethod
    def upcast(node: ast.expr, at: Context) -> ast.expr | None:
        """The cast to float32 that an operand went through last, behind names and views."""
        return _upcast(node, at, _DEPTH) if at.value(node).dtype == "float32" else None

    @staticmethod
    def left_by_caller(at: Context) -> bool:
        """Whether some call of this function stands where autocast is switched off."""
        return any(
            region is not None and region.state == "off"
            for region in (
                at.module.lexical(caller, call)
                for call, caller in at.module.call_sites(at.function)
            )
        )

    def without_autocast(
        self, operands: Sequence[ast.expr], name: str, at: Context
    ) -> tuple[Edit, ...] | None:
        """Edits that run it on float32 outside of autocast; ``operands`` are cast up there."""
        return at.without_autocast(self.node, operands, name, self.operands)


def _arguments(name: str, node: ast.Call, qualified: str) -> tuple[ast.expr, ...]:
    if any(isinstance(argument, ast.Starred) for argument in node.args):
        return ()
    if name == "einsum":
        given = node.args[:-1] if qualified.startswith("einops") else node.args[1:]
        if len(given) == 1 and isinstance(given[0], (ast.List, ast.Tuple)):
            return tuple(given[0].elts)
        return tuple(given)
    if name == "chain_matmul":
        return tuple(node.args)
    places = _OPERANDS[name]
    keywords = {k.arg: k.value for k in node.keywords}
    found = [*node.args[: len(places)], *(keywords[p] for p in places if p in keywords)]
    return tuple(o for o in found if not isinstance(o, ast.Constant))


def _numpy(operands: Sequence[ast.expr], at: Context) -> bool:
    return any(at.value(operand).kind in ("array", "number") for operand in operands)


def _upcast(node: ast.expr, at: Context, depth: int) -> ast.expr | None:
    if depth == 0:
        return None
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if at.qualify(node.func) is None:
            if attr in ("float", "to", "type"):
                return node if _casts(node, attr, at.value(owner), at) else None
            return _upcast(owner, at, depth - 1) if attr in ops.SHAPES else None
        case ast.Call(args=[first, *_]) if (at.qualify(node.func) or "").startswith("torch."):
            last = (at.qualify(node.func) or "").rpartition(".")[2]
            passes = last in ops.SHAPES or last == "normalize"
            return _upcast(first, at, depth - 1) if passes else None
        case ast.Subscript(value=owner):
            return _upcast(owner, at, depth - 1)
        case ast.Attribute(value=owner, attr="T" | "mT" | "H" | "mH"):
            return _upcast(owner, at, depth - 1)
        case ast.UnaryOp(operand=owner):
            return _upcast(owner, at, depth - 1)
        case ast.BinOp(left=left, right=right) if not isinstance(node.op, ast.MatMult):
            return _upcast(left, at, depth - 1) or _upcast(right, at, depth - 1)
        case ast.Name(id=name):
            source = at.definition(name, node)
            return None if source is None else _bound(source, name, at, depth - 1)
    return None


def _casts(node: ast.Call, attr: str, value: Value, at: Context) -> bool:
    """Whether a cast brings a tensor that may be half up to float32, not integers."""
    if value.dtype in ("int", "bool", "float64") or value.kind == "array":
        return False
    if attr == "float":
        return not node.args
    given = [*node.args, *(k.value for k in node.keywords if k.arg == "dtype")]
    return any(at.qualify(a) in ("torch.float32", "torch.float") for a in given)


def _bound(source: ast.expr, name: str, at: Context, depth: int) -> ast.expr | None:
    if not isinstance(source, ast.Tuple):
        return _upcast(source, at, depth)
    found = [_upcast(item, at, depth) for item in source.elts]
    return found[0] if all(found) else None
