"""Contractions whose sums outgrow float16: what they sum over, and whether it can be large."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics.names import dotted
from precision_lint.semantics.ops import SHAPES

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

AXES = frozenset("hwxyzt")
"""Letters that equations use for space and time."""
PAIRS = frozenset({"hw", "xy", "thw", "xyz", "hwt", "hwz", "heightwidth", "yz", "tw", "ht"})
TOKENS = frozenset({"n", "l", "s", "t", "p", "m", "seq", "tokens"})
FEATURE_MAP = re.compile(r"feature_?map|phi$|kernel_?(fn|func|function|feature|act)|^elu_|softplus")
"""Names of the positive maps of linear attention."""
ATTENTION = re.compile(
    r"(^|_)(q|k|v|kv|ks|vs|qs|query|queries|keys?|values?|context|ctx|tokens?)(_|\d|$)"
)
SPECTRUM = re.compile(r"stft|spectrogram|(^|\.)i?r?fft\d?$")
SCALE = re.compile(r"scal|sqrt|d_?k|norm_fact|temperature|head_dim|dim_head", re.IGNORECASE)
ROOT = re.compile(r"sqrt|\*\*\s*\(?0?\.5")
PASSED = frozenset({
    "float", "half", "to", "type", "type_as", "contiguous", "clone", "detach", "clamp", "clamp_min",
    "dropout", "masked_fill", "abs", "sqrt", "sum", "view_as_real", "stack", "cat", "unbind",
    "add", "mul", "norm", "pow", "square",
})  # fmt: skip


KEEPS = frozenset({
    "float", "half", "to", "type_as", "contiguous", "clone", "detach", "dropout", "masked_fill",
    "transpose", "swapaxes", "swapdims",
})  # fmt: skip
"""Operations behind which dimensions are as they were, up to a swap of the last two."""


@dataclass(frozen=True)
class Reach:
    """A large dimension that a product sums over.

    ``most``: the confidence that the shape alone allows.  ``harm``: ``sum`` where the sum leaves
    float16's range, ``scores`` where those of an attention do, ``operand`` where an operand does
    so before, ``weights`` where weights that add up to 1 fall below its normal numbers.
    """

    what: str
    most: Confidence
    harm: str = "sum"

    @classmethod
    def of(
        cls, name: str, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr], at: Context
    ) -> Reach | None:
        """What a product sums over that may be too much for float16; None: nothing large."""
        return _reach(name, node, operands, at, 1)


def _reach(
    name: str,
    node: ast.Call | ast.BinOp,
    operands: Sequence[ast.expr],
    at: Context,
    depth: int,
) -> Reach | None:
    values = [at.value(o) for o in operands]
    if any("unit" in v.tags for v in values):
        return None
    if any(power_spectrum(o, at) for o in operands):
        most = Confidence.POSSIBLE if uncalled(at) else Confidence.LIKELY
        return Reach("a power spectrum", most, "operand")
    found = _dimension(name, node, operands, at)
    weights = [i for i, o in enumerate(operands) if _weights(o, at)]
    if found is None:
        earlier = None if weights else _earlier(operands, at, depth)
        return earlier or _scores(name, node, operands, at)
    if any(_per_element(o, at) for o in operands):
        return None
    if found.what == "a flattened spatial dimension" and any(_pooled(o, at) for o in operands):
        return None
    if any(_along(i, name, node, operands, at) is not False for i in weights):
        pooled = found.what == "all tokens"
        return Reach(found.what, Confidence.POSSIBLE, "weights") if pooled else None
    few = found.most is not Confidence.CERTAIN and all(v.lo >= -1 and v.hi <= 1 for v in values)
    if _of_width(node, operands, at):
        return Reach("a head's width, unscaled", Confidence.POSSIBLE, "scores")
    if few or any(_fixed(o, at) or _phase(o, at) for o in operands):
        return Reach(found.what, Confidence.POSSIBLE)
    return found


def _weights(node: ast.expr, at: Context, depth: int = 10) -> bool:
    """Whether the elements of an operand add up to 1: by a softmax, or divided by their sum."""
    if "normalized" in at.value(node).tags:
        return True
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _weights(source, at, depth - 1)
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Div) and _has_sum_of(node.left, node.right, at)
    if not isinstance(node, ast.Call):
        return False
    called = getattr(node.func, "attr", getattr(node.func, "id", ""))
    if called.lower().endswith("softmax") and "log" not in called.lower():
        return True
    inner = at.operation(node)
    return inner is not None and inner[0] in SHAPES | KEEPS and _weights(inner[1], at, depth)


def _has_sum_of(value: ast.expr, divisor: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether a divisor is the sum of a value, perhaps in steps, reshaped and guarded."""
    if isinstance(divisor, ast.Name) and depth:
        source = at.definition(divisor.id, divisor)
        return source is not None and _has_sum_of(value, source, at, depth - 1)
    for part in ast.walk(divisor):
        if isinstance(part, ast.Call):
            summed = at.operation(part)
            while summed is not None and summed[0] == "sum":
                if ast.dump(summed[1]) == ast.dump(value):
                    return True
                summed = at.operation(summed[1]) if isinstance(summed[1], ast.Call) else None
    return False


def _pooled(node: ast.expr, at: Context, depth: int = 6) -> bool:
    """Whether an operand was pooled to a fixed size, so that its positions are few."""
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _pooled(source, at, depth - 1)
    if not isinstance(node, ast.Call):
        return False
    called = (at.qualify(node.func) or "").rpartition(".")[2]
    if re.fullmatch(r"adaptive_(avg|max)_pool\dd", called):
        return True
    inner = at.operation(node)
    if inner is not None and inner[0] in SHAPES | KEEPS:
        return _pooled(inner[1], at, depth)
    path = dotted(node.func) or ""  # a layer of its own, which pads or strides at most
    layer = path.startswith("self.") and len(node.args) == 1 and not node.keywords
    return layer and _pooled(node.args[0], at, depth)


def _along(
    place: int,
    name: str,
    node: ast.Call | ast.BinOp,
    operands: Sequence[ast.expr],
    at: Context,
) -> bool | None:
    """Whether an operand's softmax ran along the dimension that is contracted; None: unknown."""
    dim = _softmax_dim(operands[place], at)
    if dim is None:
        return None
    if name != "einsum":
        return dim == (-1 if place == 0 else -2) if dim < 0 else None
    equation = _equation(node, at)
    if equation is None:
        return None
    inputs, output = equation.split("->")
    terms = inputs.split(",")
    letters = _indices(terms[place]) if place < len(terms) else []
    if ("..." in inputs and dim >= 0) or not -len(letters) <= dim < len(letters):
        return None
    return letters[dim] not in _indices(output)


def _softmax_dim(node: ast.expr, at: Context, depth: int = 4) -> int | None:
    """The dimension of the softmax that made a value, moved by the transposes behind it."""
    match node:
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return _softmax_dim(source, at, depth - 1) if source is not None else None
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div()):
            return _softmax_dim(left, at, depth)
        case ast.Call():
            operation = at.operation(node)
            if operation is None:
                return None
            if operation[0] == "softmax":
                given = [k.value for k in node.keywords if k.arg == "dim"] or [
                    a for a in node.args if a is not operation[1]
                ]
                dim = at.value(given[0]).const if given else None
                return dim if isinstance(dim, int) else None
            inner = _softmax_dim(operation[1], at, depth)
            if inner is not None and _swapped(node, at):
                return {-1: -2, -2: -1}.get(inner)
            return inner if operation[0] in KEEPS else None
    return None


def _dimension(
    name: str, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr], at: Context
) -> Reach | None:
    """The large dimension that a product contracts, by its equation or its operands' shapes."""
    if name == "einsum":
        equation = _equation(node, at)
        if equation is None:
            return None
        spatial = _spatial(equation)
        if spatial is not None:
            return Reach(spatial, Confidence.CERTAIN)
        if _flattened(equation, operands, at):
            return Reach("a flattened spatial dimension", Confidence.CERTAIN)
        if _tokens(equation):
            return _all_tokens(operands, at)
        return None
    if len(operands) != 2:
        return None
    left, right = (at.value(operand) for operand in operands)
    if "spatial-last" in left.tags or "spatial-mid" in right.tags:
        return Reach("a flattened spatial dimension", Confidence.CERTAIN)
    left_swapped, right_swapped = (
        _swapped(o, at) or (name == "bmm" and _swapped(_bound(o, at), at)) for o in operands
    )
    if left_swapped and not right_swapped:
        return _all_tokens(operands, at)
    return None


def _equation(node: ast.Call | ast.BinOp, at: Context) -> str | None:
    """The equation of an einsum, if it is known and names its output."""
    if not isinstance(node, ast.Call) or not node.args:
        return None
    equation = at.value(node.args[0 if at.qualify(node.func) == "torch.einsum" else -1]).const
    return equation if isinstance(equation, str) and "->" in equation else None


def _all_tokens(operands: Sequence[ast.expr], at: Context) -> Reach | None:
    """A sum over tokens, if its terms do not cancel: a gate or a positive map is one factor."""
    if not any(_weights(o, at) for o in operands) and not _positive(operands, at):
        return None
    attends = any(ATTENTION.search(word) for o in operands for word in _names(o))
    return Reach("all tokens", Confidence.LIKELY if attends else Confidence.POSSIBLE)


def _earlier(operands: Sequence[ast.expr], at: Context, depth: int) -> Reach | None:
    """Whether an operand is itself such a sum, which outgrew half before it came here."""
    for operand in operands if depth else ():
        if isinstance(operand, ast.Name):
            sources = at.function.assigned.get(operand.id, [])
            for source in sources[:1]:
                if len({id(s) for s in sources}) == 1 and isinstance(source, (ast.Call, ast.BinOp)):
                    name, inner = at.product(source)
                    found = _reach(name, source, inner, at, depth - 1) if inner else None
                    if found is not None and found.harm == "sum":
                        most = min(found.most, Confidence.LIKELY, key=lambda c: c.rank)
                        return Reach(f"what `{operand.id}` summed before", most)
    return None


def _scores(
    name: str, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr], at: Context
) -> Reach | None:
    """Attention scores that are scaled only after the product."""
    if len(operands) != 2:
        return None
    left, right = (_names(o) for o in operands)
    if not any(re.match(r"q(_|$|\d)|quer", w) for w in left):
        return None
    if not any(re.match(r"k(_|$|\d)|key", w) for w in right):
        return None
    parent = at.parents.get(id(node))
    if isinstance(parent, ast.BinOp) and isinstance(parent.op, (ast.Div, ast.Mult)):
        other = parent.left if parent.right is node else parent.right
        if at.value(other).kind == "number" or SCALE.search(at.text(other)):
            return Reach("a head's width, unscaled", Confidence.POSSIBLE, "scores")
    return None


def _of_width(node: ast.expr, operands: Sequence[ast.expr], at: Context) -> bool:
    """Whether a product, or one of its operands, is divided by the root of the width, as scores."""

    def by_root(quotient: ast.AST | None) -> bool:
        if not isinstance(quotient, ast.BinOp) or not isinstance(quotient.op, ast.Div):
            return False
        divisor = quotient.right
        named = at.definition(divisor.id, node) if isinstance(divisor, ast.Name) else None
        return ROOT.search(at.text(named or divisor)) is not None

    parent = at.parents.get(id(node))
    return by_root(parent if getattr(parent, "left", None) is node else None) or any(
        map(by_root, operands)
    )


def _phase(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether an operand was divided by its own magnitude: a part of a number of modulus 1."""
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _phase(source, at, depth - 1)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    divisor = node.right
    source = at.definition(divisor.id, node) if isinstance(divisor, ast.Name) else divisor
    text = at.text(source) if source is not None else ""
    named = rf"(?<!\w){re.escape(at.text(node.left))}(?!\w)"
    return "sqrt" in text and re.search(named, text) is not None


def _per_element(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether an operand was divided by a count of elements, held in a local name."""
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _per_element(source, at, depth - 1)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        inner = at.operation(node)
        return (
            inner is not None and inner[0] in SHAPES | PASSED and _per_element(inner[1], at, depth)
        )
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Div):
        return False
    divisor = node.right
    source = at.definition(divisor.id, node) if isinstance(divisor, ast.Name) else None
    return (
        source is not None
        and re.search(r"\.shape\b|\.size\(|\.numel\(|\blen\(", at.text(source)) is not None
    )


def _fixed(node: ast.expr, at: Context) -> bool:
    """Whether an operand is a parameter or buffer, so that the size of the sum is fixed."""
    value = at.value(node)
    return "buffer" in value.tags or value.dtype.startswith("~parameter.")


def _positive(operands: Sequence[ast.expr], at: Context) -> bool:
    """Whether an operand has no negative element, by its range or as a positive map's result."""
    return any((at.value(o).is_tensor and at.value(o).lo >= 0) or _mapped(o, at) for o in operands)


def _mapped(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether a feature map of linear attention made a value, apart from masks and reshapes."""
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _mapped(source, at, depth - 1)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        return _mapped(node.left, at, depth) or _mapped(node.right, at, depth)
    if isinstance(node, ast.Call):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if FEATURE_MAP.search(called):
            return True
        inner = at.operation(node)
        return inner is not None and inner[0] in SHAPES | PASSED and _mapped(inner[1], at, depth)
    return False


def power_spectrum(node: ast.expr, at: Context) -> bool:
    """Whether a value is the squared magnitude of a Fourier transform made in this function.

    A tone of amplitude 1 in a Hann window of 2,048 samples reaches 512 squared, four times
    float16's range.
    """
    squared, transformed = _spectrum(node, at, 12)
    return squared and transformed


def uncalled(at: Context) -> bool:
    """Whether the class around has no ``forward``: a tool of the data pipeline, as a rule."""
    cls = at.function.cls
    if cls is None or "forward" in cls.methods:
        return False
    known = [at.module.index.classes.get(base) for base in cls.bases]
    return not any(base is not None and "forward" in base.methods for base in known)


def _spectrum(node: ast.expr, at: Context, depth: int) -> tuple[bool, bool]:
    """Whether a value was squared, and whether it comes out of a Fourier transform."""
    match node:
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return _spectrum(source, at, depth - 1) if source is not None else (False, False)
        case ast.Subscript(value=inner) | ast.Attribute(value=inner, attr="real" | "imag"):
            return _spectrum(inner, at, depth)
        case ast.BinOp(left=left, op=ast.Pow()):
            return True, _spectrum(left, at, depth)[1]
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult() | ast.Sub(), right=right):
            a, b = _spectrum(left, at, depth), _spectrum(right, at, depth)
            itself = isinstance(node.op, ast.Mult) and ast.dump(left) == ast.dump(right)
            return a[0] or b[0] or itself, a[1] or b[1]
        case ast.BinOp(left=left, op=ast.Div()):
            return False, False
        case ast.Call(func=func, args=args):
            called = str(at.qualify(func) or getattr(func, "attr", getattr(func, "id", "")))
            if SPECTRUM.search(called.lower()):
                return False, True
            operation = at.operation(node)
            if operation is None or operation[0] not in SHAPES | PASSED:
                return False, False
            parts = [operation[1]]
            if isinstance(parts[0], (ast.Tuple, ast.List)):
                parts = list(parts[0].elts)
            found = [_spectrum(part, at, depth) for part in parts]
            if operation[0] in ("sqrt", "norm"):
                squared = False
            elif operation[0] == "pow" and args and isinstance(args[-1], ast.Constant):
                squared = args[-1].value != 1 or any(f[0] for f in found)
            else:
                squared = operation[0] in ("pow", "square") or any(f[0] for f in found)
            return squared, any(f[1] for f in found)
    return False, False


def _tokens(equation: str) -> bool:
    """Whether an equation sums over one index that names tokens or positions."""
    inputs, output = equation.split("->")
    terms = [_indices(term) for term in inputs.split(",")]
    if len(terms) != 2:
        return False
    shared = set(terms[0]) & set(terms[1]) - set(_indices(output))
    return len(shared) == 1 and shared <= TOKENS


def _flattened(equation: str, operands: Sequence[ast.expr], at: Context) -> bool:
    """Whether an equation sums over an index that is a flattened ``h * w`` of an operand."""
    inputs, output = equation.split("->")
    kept = _indices(output)
    for term, operand in zip(inputs.split(","), operands, strict=False):
        letters, tags = _indices(term), at.value(operand).tags
        for tag, place in (("spatial-last", -1), ("spatial-mid", -2)):
            if tag in tags and len(letters) >= 2 and letters[place] not in kept:
                return True
    return False


def _spatial(equation: str) -> str | None:
    """The spatial indices that an einsum equation contracts, at least two of them."""
    inputs, output = equation.split("->")
    terms = [_indices(term) for term in inputs.split(",")]
    if len(terms) < 2:
        return None
    shared = set(terms[0]).intersection(*terms[1:]) - set(_indices(output))
    axes = sorted(axis for axis in shared if axis in AXES or axis in ("height", "width"))
    return " and ".join(axes) if "".join(axes) in PAIRS or len(axes) > 2 else None


def _indices(term: str) -> list[str]:
    """Index names of one term: letters, or words in einops' spaced form."""
    words = term.split()
    if len(words) > 1:
        return words
    return list(term.strip().replace(".", ""))


def _swapped(node: ast.expr, at: Context, depth: int = 2, batched: bool = True) -> bool:
    """Whether an operand has its last two dimensions swapped, at the product or where it is made.

    ``batched``: whether dimensions 1 and 2 are the last two, as where one sees no heads.
    """
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _swapped(source, at, depth - 1, False)
    if isinstance(node, ast.Attribute):
        return node.attr == "mT"
    if not isinstance(node, ast.Call):
        return False
    operation = at.operation(node)
    if operation is not None and operation[0] in ("transpose", "swapaxes", "swapdims", "permute"):
        numbers = [at.value(a).const for a in node.args]
        places = [n for n in numbers if isinstance(n, int)]
        if operation[0] == "permute":
            return places in ([0, 2, 1], [0, 1, 3, 2])
        return sorted(places) in ([-2, -1], [2, 3]) or (batched and sorted(places) == [1, 2])
    if operation is not None and operation[0] in ("float", "contiguous", "half", "to", "clone"):
        return _swapped(operation[1], at, depth, batched)
    if at.qualify(node.func) == "einops.rearrange" and len(node.args) > 1:
        pattern = at.value(node.args[1]).const
        if isinstance(pattern, str) and "->" in pattern:
            before, after = (side.split() for side in pattern.split("->"))
            return before[-2:] == after[:-3:-1] and "(" not in pattern
    return False


def _bound(node: ast.expr, at: Context) -> ast.expr:
    """What a name was bound to, or the expression itself."""
    source = at.definition(node.id, node) if isinstance(node, ast.Name) else None
    return source if source is not None else node


def _names(node: ast.expr) -> list[str]:
    """Names that an operand reads, without those of functions."""
    return [n.id.lower() for n in ast.walk(node) if isinstance(n, ast.Name)]
