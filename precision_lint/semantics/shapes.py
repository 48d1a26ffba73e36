"""Ranks, flattened spatial dimensions and literal dtypes, read off the code of a call."""

from __future__ import annotations

import ast
import re

from precision_lint.semantics.names import dotted
from precision_lint.semantics.values import Value

SPATIAL = frozenset({"spatial-last", "spatial-mid"})
"""Tags: the last dimension, or the one before it, is a flattened ``h * w``."""


def _integer(node: ast.expr) -> int | None:
    """The integer that a literal, possibly negative, stands for."""
    match node:
        case ast.Constant(value=int() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() as value)):
            return -value
    return None


def moved_tags(name: str, node: ast.Call, tags: frozenset[str]) -> frozenset[str]:
    """Tags behind a shape operation.

    ``spatial-last`` and ``spatial-mid``: the last dimension, or the one before, is a flattened
    ``h * w``.
    """
    numbers = [_integer(argument) for argument in node.args]
    keywords = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
    kept = tags - SPATIAL
    if name == "flatten":
        if not isinstance(node.func, ast.Attribute) or numbers[:1] == [None]:
            numbers = numbers[1:]
        first = numbers[0] if numbers else keywords.get("start_dim")
        last = numbers[1] if len(numbers) > 1 else keywords.get("end_dim", -1)
        if first in (2, -2) and last == -1:
            return kept | {"spatial-last"}
        return kept | {"spatial-mid"} if (first, last) == (1, 2) else kept
    if name in ("view", "reshape"):
        sizes: list[ast.expr] = []
        for argument in node.args:
            sizes += argument.elts if isinstance(argument, (ast.Tuple, ast.List)) else [argument]
        places = [i - len(sizes) for i, size in enumerate(sizes) if _is_area(size)]
        if len(sizes) == 3 and _integer(sizes[-1]) == -1 and _is_channels(sizes[1]):
            return kept | {"spatial-last"}
        if -1 in places:
            return kept | {"spatial-last"}
        return kept | {"spatial-mid"} if -2 in places else kept
    turned = name in ("mT", "T", "t", "adjoint")
    if name in ("transpose", "swapaxes", "swapdims"):
        pair = sorted(n for n in numbers if isinstance(n, int))
        turned = pair in ([1, 2], [-2, -1])
    if name == "permute":
        turned = numbers[-3:] == [0, 2, 1]
    if turned:
        swap = {"spatial-last": "spatial-mid", "spatial-mid": "spatial-last"}
        return kept | {swap[tag] for tag in tags & SPATIAL}
    moves = ("permute", "movedim", "unfold", "fold", "transpose", "swapaxes", "swapdims")
    return kept if name in moves else tags


def _is_area(size: ast.expr) -> bool:
    """Whether a size is a product of names such as ``h * w``."""
    if not isinstance(size, ast.BinOp) or not isinstance(size.op, ast.Mult):
        return False
    names = [n.id.lower() for n in ast.walk(size) if isinstance(n, ast.Name)]
    return len(names) > 1 and all(re.match(r"(h|w|height|width|d|t)(_|\d|$)", n) for n in names)


def _is_channels(size: ast.expr) -> bool:
    """Whether a size is the number of channels, so that what follows is the positions."""
    match size:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return (
                re.fullmatch(r"c|ch|nc|(in_|num_|n_)?channels?|channel_num", name.lower())
                is not None
            )
        case ast.Subscript(value=ast.Attribute(attr="shape"), slice=ast.Constant(value=1)):
            return True
        case ast.Call(func=ast.Attribute(attr="size"), args=[ast.Constant(value=1)]):
            return True
    return False


def is_size(node: ast.expr) -> bool:
    """Whether a divisor counts elements: ``h * w``, ``x.numel()``, ``x.shape[1]``, ``len(x)``."""
    if isinstance(node, ast.Call):
        name = dotted(node.func) or ""
        return name == "len" or name.endswith((".numel", ".size"))
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    return _is_area(node)


_SPATIAL = re.compile(r"\((h|x|t|z|ph|nh|height) (?!(d|c|e|k|v|dim\w*|\w+_dim)\)).*\)")
"""Rows and columns as one dimension, not heads and the width of each."""


def rearranged_tags(pattern: str) -> frozenset[str]:
    """Spatial tags of an einops pattern such as ``b c h w -> b (h w) c``."""
    words = re.findall(r"\([^)]*\)|\S+", pattern.rpartition("->")[2])
    spatial = [bool(_SPATIAL.fullmatch(w)) for w in words]
    if spatial[-1:] == [True]:
        return frozenset({"spatial-last"})
    return frozenset({"spatial-mid"}) if spatial[-2:-1] == [True] else frozenset()


def created_rank(name: str, node: ast.Call, arguments: list[Value]) -> int | None:
    if name in ("empty_strided", "empty_permuted", "from_numpy", "normal"):
        return None
    if name in ("tensor", "as_tensor", "asarray"):
        if not node.args:
            return None
        data = node.args[0]
        if isinstance(data, (ast.List, ast.Tuple)):
            return 1 + max(
                (1 for item in data.elts if isinstance(item, (ast.List, ast.Tuple))), default=0
            )
        return 0 if arguments[0].kind == "number" else None
    if name == "eye":
        return 2
    if name in ("linspace", "logspace", "arange", "range") or name.endswith(("_window", "freq")):
        return 1
    if not node.args:
        return None
    shape = node.args[0]
    if isinstance(shape, (ast.Tuple, ast.List)):
        return len(shape.elts) if not any(isinstance(e, ast.Starred) for e in shape.elts) else None
    if name == "full" or any(isinstance(a, ast.Starred) for a in node.args):
        return None
    if (
        isinstance(shape, (ast.Name, ast.Attribute, ast.Call, ast.Subscript))
        and len(node.args) == 1
    ):
        return None
    return len(node.args)


def literal_dtype(node: ast.expr, value: Value) -> str:
    """dtype that ``torch.tensor`` infers from a literal, or ``""``."""
    if value.kind == "number":
        if "default" in value.tags and value.dtype == "int":
            return ""  # another call may give a float
        return {"float": "float32", "complex": "complex64"}.get(value.dtype, value.dtype)
    if isinstance(node, (ast.List, ast.Tuple)) and node.elts:
        kinds = {literal_dtype(item, v) for item, v in zip(node.elts, value.items, strict=False)}
        for dtype in ("complex64", "float32"):
            if dtype in kinds:
                return dtype
        return {"int": "int", "bool int": "int", "bool": "bool"}.get(" ".join(sorted(kinds)), "")
    return ""
