"""Matrix products and contractions: their operands, and whether they are geometry."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from precision_lint.semantics.contractions import power_spectrum
from precision_lint.semantics.ops import SHAPES

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

PRODUCTS = frozenset({"matmul", "bmm", "mm", "mv", "baddbmm", "einsum"})

STRONG = re.compile(
    r"^(intrinsics?|extrinsics?|intrins?|extrins?|c2ws?|w2cs?|cam2\w+|\w+2cam|lidar2\w+|img2\w+|"
    r"ego2\w+|\w+2ego|world2\w+|\w+2world|camera2\w+|\w+2camera|sensor2\w+|homograph(y|ies)|calib|"
    r"calibration|viewmats?|K|Ks|kmat|kinv|invk|rotmats?|inv_?Ks?|Ks?_?inv|cam(era)?_mat(rix)?|mvps?)$"
)
"""Words of names that only geometry uses."""
WEAK = re.compile(
    r"^(poses?|rots?|rotations?|bones?|offsets?|origins?|directions?|centred|centered|corners?|"
    r"camera|cams?|cameras|points?|pts|xyz|homo|homogeneous|proj|projection|rays?|verts?|vertices|"
    r"joints?|3d|2d|uvs?|frustum|translation|trans|keypoints?|kps|transforms?|"
    r"proj(ection)?_mat(s|rix|rices)?|pix(els?)?_coords)$|^R$"
)
"""Words that geometry shares with other fields; two operands have to agree."""
VAGUE = frozenset({"points", "point", "trans", "proj", "2d", "3d", "R", "uv", "UV"})
"""Those of them that say nothing beside another of their kind."""


CAMERA = frozenset({"K", "Ks"})
"""Intrinsics, where that is the whole name."""
KEYED = frozenset({"Q", "V", "q", "v", "Qs", "Vs", "dQ", "dV", "query", "value"})
"""Names beside which ``K`` is the keys of attention."""
KERNELS = re.compile(r"length_?scale|covariance|cholesky|kalman|gram\b|noisy")
"""Names beside which ``K`` is the matrix of a kernel, or a gain."""
TENSORS = frozenset({
    "torch.Tensor", "torch.FloatTensor", "torch.tensor", "torch.as_tensor", "torch.from_numpy",
})  # fmt: skip
ATTENTION = frozenset({"q", "k", "v", "query", "key", "value", "random", "hash", "half", "rope"})
"""Words that say a rotation is none of space, unless the name is ``K`` alone."""


def product(node: ast.Call | ast.BinOp, at: Context) -> tuple[str, list[ast.expr]]:
    """Name and operands of a product; no operands: it is called in a way that is not understood."""
    if isinstance(node, ast.BinOp):
        return "@", [node.left, node.right]
    qualified = at.qualify(node.func)
    if qualified is None:
        if isinstance(node.func, ast.Attribute) and node.args and node.func.attr in PRODUCTS:
            return node.func.attr, [node.func.value, node.args[0]]
        return "", []
    name = qualified.rpartition(".")[2]
    if name not in PRODUCTS:
        return "", []
    if name == "einsum":
        operands = node.args[1:] if qualified == "torch.einsum" else node.args[:-1]
        if len(operands) == 1 and isinstance(operands[0], (ast.List, ast.Tuple)):
            return name, list(operands[0].elts)
        return name, list(operands)
    return name, list(node.args[1:3] if name == "baddbmm" else node.args[:2])


def addend(node: ast.Call | ast.BinOp, at: Context) -> ast.expr | None:
    """What ``torch.baddbmm`` adds the product to, unless it is known to be float32."""
    if not isinstance(node, ast.Call) or product(node, at)[0] != "baddbmm":
        return None
    given = [*node.args[:1], *(k.value for k in node.keywords if k.arg == "input")]
    return given[0] if given and at.value(given[0]).dtype not in ("float32", "float64") else None


def geometry(
    node: ast.expr, operands: Sequence[ast.expr], at: Context, depth: int = 2
) -> str | None:
    """Why a product is believed to be geometry, or None."""
    strong, weak = [], []
    for operand in operands:
        origin = _origin(operand, at)
        if isinstance(origin, (ast.Call, ast.BinOp)) and depth:
            _, inner = product(origin, at)
            if inner and geometry(origin, inner, at, depth - 1) is not None:
                strong.append(f"{at.text(operand)[:40]}, a product of geometry")
                continue
        constant = _constant_matrix(operand, at)
        if constant and (at.region(node).on or at.project.autocast):
            if not any(power_spectrum(o, at) for o in operands):  # whose range is what breaks
                strong.append(constant)
            continue
        names = _names(operand)
        words = _words(names)
        hits = [w for w in words if STRONG.match(w) and (w not in CAMERA or _camera(names, at))]
        if ATTENTION.intersection(words):
            continue  # rotated queries and keys, random rotations of a hash
        if hits:
            strong.append(hits[-1])
        elif [w for w in words if WEAK.match(w) or WEAK.match(w.lower())]:
            weak.append(next(w for w in words if WEAK.match(w) or WEAK.match(w.lower())))
        if "homogeneous" in at.value(operand).tags:
            weak.append("homogeneous coordinate")
    if strong:
        return strong[0]
    if len(weak) >= 2 and any(w not in VAGUE for w in weak):
        return " and ".join(dict.fromkeys(weak))
    if "R" in weak and len(set(weak)) > 1:
        return " and ".join(dict.fromkeys(weak))
    if weak and _perspective(node, at):
        return f"{weak[0]}, then divided by depth"
    return None


def _constant_matrix(node: ast.expr, at: Context) -> str | None:
    """What an operand is if it holds numbers computed once, such as a filter bank."""
    value = at.value(node)
    if "buffer" in value.tags and isinstance(value.node, ast.Call):
        text = ast.unparse(value.node)
        if re.search(r"mel|filter_?bank|dct|dft", text):
            return "a registered filter bank"
        if re.search(r"from_numpy|np\.", text):
            return "a registered constant matrix"
    return "a constant matrix computed in numpy" if _from_numpy(node, at) else None


def _from_numpy(node: ast.expr, at: Context) -> bool:
    """Whether a name, perhaps of the function around, was bound to a matrix made in numpy."""
    if not isinstance(node, ast.Name):
        return False
    function, seen = at.function, at
    source = at.definition(node.id, node)
    while source is None and function.parent is not None:
        if node.id in {p.arg for p in function.parameters()}:
            return False
        function = function.parent
        seen = at.inside(function)
        sources = seen.function.assigned.get(node.id, [])
        source = sources[0] if len({id(s) for s in sources}) == 1 else None
    while (
        isinstance(source, ast.Call)
        and isinstance(source.func, ast.Attribute)
        and source.func.attr in ("float", "cuda", "cpu", "to", "contiguous", "t", "transpose")
        and seen.qualify(source.func) is None
    ):
        if any("dtype" in ast.unparse(a) for a in [*source.args, *source.keywords]):
            return False
        source = source.func.value
    if not isinstance(source, ast.Call) or not source.args:
        return False
    if seen.qualify(source.func) not in TENSORS or any(k.arg == "dtype" for k in source.keywords):
        return False
    return any(
        (seen.qualify(part.func) or "").startswith("numpy.linalg.")
        for part in ast.walk(source.args[0])
        if isinstance(part, ast.Call)
    )


def _keys(at: Context) -> bool:
    """Whether ``K`` stands for attention's keys beside queries or values, or for a kernel."""
    names = at.module.names_in(at.function)
    return any(name.rstrip("_") in KEYED for name in names) or any(
        KERNELS.search(name.lower()) for name in names
    )


def _camera(names: Iterable[str], at: Context) -> bool:
    """Whether a ``K`` is a camera's: ``K_A`` may be anything where nothing else is of space."""
    if _keys(at) or not CAMERA.isdisjoint(names):
        return not _keys(at)
    words = {word for word in _words(sorted(at.module.names_in(at.function))) if len(word) > 1}
    return any(STRONG.match(w) or WEAK.match(w) or WEAK.match(w.lower()) for w in words - CAMERA)


def _origin(node: ast.expr, at: Context) -> ast.expr | None:
    """What the name under an operand's views was bound to, if it was bound once."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
            return node
        if isinstance(node, (ast.Subscript, ast.Attribute)):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return None
    sources = at.function.assigned.get(node.id, [])
    return sources[0] if len({id(source) for source in sources}) == 1 else None


def _names(node: ast.expr) -> list[str]:
    """The names in an operand, calls' functions and keywords left out."""
    found: list[str] = []
    stack: list[ast.expr] = [node]
    while stack:
        part = stack.pop()
        if isinstance(part, ast.Name):
            found.append(part.id)
        elif isinstance(part, ast.Attribute):
            found.append(part.attr)
            if not isinstance(part.value, ast.Name) or part.value.id != "self":
                stack.append(part.value)
        elif isinstance(part, ast.Subscript):
            stack.append(part.value)
            if isinstance(part.slice, ast.Constant) and isinstance(part.slice.value, str):
                found.append(part.slice.value)
        elif isinstance(part, ast.Call):
            if isinstance(part.func, ast.Attribute):
                receiver = part.func.value
                if part.func.attr in ("inverse", "inv") and part.args:
                    stack.append(part.args[0])
                elif not (isinstance(receiver, ast.Name) and receiver.id in ("torch", "self", "F")):
                    stack.append(receiver)
        elif isinstance(part, ast.BinOp) and not isinstance(part.op, ast.MatMult):
            stack += [part.left, part.right]
    return found


def _words(names: Iterable[str]) -> list[str]:
    """The names, and the words that they consist of."""
    words: list[str] = []
    for name in names:
        words.append(name)
        words += re.findall(r"\d+[a-z]|[A-Z]?[a-z]+\d*|[A-Z]+(?![a-z])|\d+", name.replace("_", " "))
        words += name.split("_")
    return [word for word in words if word]


def _perspective(node: ast.expr, at: Context) -> bool:
    """Whether the product is divided by its own last component."""
    parent = at.parents.get(id(node))
    while isinstance(parent, (ast.Subscript, ast.Attribute, ast.Call)):
        parent = at.parents.get(id(parent))
    if not isinstance(parent, ast.Assign) or not isinstance(parent.targets[0], ast.Name):
        return False
    name = parent.targets[0].id
    for part in ast.walk(at.function.node):
        if isinstance(part, ast.BinOp) and isinstance(part.op, ast.Div):
            if _subscripted(part.left) == name and _subscripted(part.right) == name:
                return True
    return False


def _subscripted(node: ast.expr) -> str | None:
    """The name that an expression only indexes or guards."""
    while True:
        match node:
            case ast.Subscript(value=ast.Name(id=name)):
                return name
            case ast.Subscript(value=value) | ast.Attribute(value=value):
                node = value
            case ast.BinOp(left=left, op=ast.Add()):
                node = left
            case ast.Call(func=ast.Attribute(value=value)):
                node = value
            case _:
                return None


def only_reshapes(value: ast.expr | None, call: ast.expr) -> bool:
    """Whether ``value`` is the call itself, or only indexes and reshapes its result."""
    while value is not None and value is not call:
        if isinstance(value, ast.Subscript) or (
            isinstance(value, ast.Attribute) and value.attr in SHAPES
        ):
            value = value.value
        elif (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in SHAPES
        ):
            value = value.func.value
        else:
            return False
    return value is call


def is_upcast(node: ast.expr) -> bool:
    """Whether an expression is ``x.float()``."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "float"
    )
