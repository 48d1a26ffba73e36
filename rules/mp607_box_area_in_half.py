from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Doubt,
    Finding,
    Helper,
    Outgrown,
    Provenance,
    Rule,
    Severity,
    Upcast,
    operators,
)

WIDTH = re.compile(r"(^|_)(w|width|widths|ws)\d?$|^[bgpta]w\d?$|^w_\w+$")
HEIGHT = re.compile(r"(^|_)(h|height|heights|hs)\d?$|^[bgpta]h\d?$|^h_\w+$")
RIGHT = re.compile(r"x_?(2|max|b|right)|right|x2|xmax")
BOTTOM = re.compile(r"y_?(2|max|b|bottom)|bottom|y2|ymax")
BOXES = re.compile(r"box|wh|size|whs|rois?|anchors?|proposals?", re.I)
PIXELS = re.compile(
    r"stride|im(g|age)_?(size|shape|w|h|width|height)|imgsz|pixel|anchor|\* ?\d{2,}|orig_?size"
    r"|target_sizes|scale_fct|input_size|\bim(g|age)?s?\.(shape|size)\b"
)
PIXELS_OF = "pixels of an image in float16: 300 x 300 are 90000, and float16 ends at 65504"
AREA = "area of boxes in float16: 300 x 300 pixels are 90000, and float16 ends at 65504"
OVERLAP = re.compile(r"(^|_)[a-z]{0,3}ious?(_|$)|overlaps?$")
BOXED = re.compile(r"iou|overlap|box|(^|_)inter(section)?(_|$)|area|nms")
"""Names of functions that measure boxes."""
UNIT = re.compile(r"normali[sz]ed|relative")
SIZED = frozenset({"view", "reshape", "expand", "zeros", "ones", "empty", "arange", "repeat"})
STEPS = frozenset({"clamp", "clamp_min", "clip", "relu", "float", "to", "squeeze", "unsqueeze"})


class BoxAreaInHalf(Rule):
    """Width times height of boxes in pixels, in float16.

    ## What it flags
    `w * h`, `(x2 - x1) * (y2 - y1)`, `(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])` and
    `wh[..., 0] * wh[..., 1]` of float16 boxes. It is `likely` where the function works in pixels
    (strides, anchors, image sizes, literal factors), otherwise `possible`. Where it works in
    pixels, so is a call of a function of the project that computes the IoU of its arguments
    without an upcast; `possible` where no layer in sight made the boxes. So is
    `torch.prod(b[:, 2:] - b[:, :2], 1)`, which CUDA autocast runs in float32, also of corners that
    were split off (`(low_right - top_left).clamp(0).prod(2)`), and `sizes["height"] *
    sizes["width"]` of entries that are used as tensors.

    It stays silent for normalised boxes (a sigmoid, a clamp, bounds that are known), for
    `.float()`, for bfloat16, and for sizes that are Python numbers.

    ## Why it breaks
    A box of 300 x 300 pixels has the area 90,000, and float16 ends at 65504: the area is inf, the
    union is inf, and the IoU is 0 or nan, for the largest objects in the image only. Behind 512
    pixels coordinates are multiples of 0.5, so that corners taken from centres and sizes are off,
    and the overlap of small boxes exceeds their union. Autocast does not help: it lists neither
    `mul` nor `sub`, and outputs of layers are half inside a region.

    ## Example
    ```python
    stride = 32
    boxes = stride * outputs.half()
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = w * h
    ```
    Use instead:
    ```python
    stride = 32
    boxes = stride * outputs.half()
    w, h = boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1]
    area = w.float() * h.float()
    ```

    ## Fix safety
    Safe where the area ends in a loss or a metric such as an IoU: `.float()` on float32 does
    nothing. Elsewhere unsafe: the area stays in float32, because half does not hold it.

    ## How to silence
    `# precision-lint: ignore[MP607] reason` or `# noqa: MP607` on the line; or normalise the boxes.

    ## Sources
    PyTorch, `torch.finfo`; torchvision, `torchvision.ops.box_area`, which upcasts for this reason.
    """

    code, name = "MP607", "box-area-in-half"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    triggers = operators(ast.Mult, pattern=r"\*") | operators(
        ast.Call, pattern=r"iou|overlaps|prod\(|\bmul(tiply)?\("
    )

    def check(self, node: ast.BinOp | ast.Call, at: Context) -> Iterator[Finding]:
        pair = _factors(node, at)
        if isinstance(node, ast.Call) and pair is None:
            sides_of = _is_prod(node, at)
            if sides_of is not None:
                yield from self._prod(node, sides_of, at)
            else:
                yield from self._overlap(node, at)
            return
        if pair is None or {_side(side, at) for side in pair} != {"w", "h"}:
            return
        half = at.float16(at.value(node), at.region(node))
        if half is None or not at.value(node).maybe_tensor:
            return
        tensors = [at.is_tensor(side) for side in pair]
        if not all(tensors) and not _columns(pair) and not (_keyed(pair) and at.is_tensor(node)):
            return
        if _is_size(node, at):
            return
        if any(Outgrown.bounded(side, at, 255.0) for side in pair):
            return
        confidence = Outgrown.reaching(half, pair[0], at)
        if not all(tensors) or not at.mentions(PIXELS.pattern) or at.mentions(UNIT.pattern):
            confidence = Confidence.POSSIBLE
        yield at.finding(
            node,
            PIXELS_OF if _keyed(pair) and not _columns(pair) else AREA,
            confidence,
            evidence=half.evidence,
            fix=Upcast.of([*pair], node, at, fits=False),
        )

    def _prod(self, node: ast.Call, sides: ast.BinOp, at: Context) -> Iterator[Finding]:
        """The product over both sides of each box, whose dtype no region of a caller is known."""
        half = at.float16(at.value(sides), at.region(node))
        if half is None or Outgrown.bounded(sides, at, 255.0) or at.region(node).on:
            return
        confidence = Outgrown.reaching(half, sides, at)
        if at.project.autocast is not None or not at.mentions(PIXELS.pattern):
            confidence = Confidence.POSSIBLE  # prod is float32 in a CUDA region
        apart = at.statement(sides) is not at.statement(node)
        yield at.finding(
            node,
            AREA,
            confidence,
            evidence=(*half.evidence, *([at.note(sides, "made of this")] if apart else ())),
            fix=Upcast.of([sides], node, at, fits=False),
        )

    def _overlap(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A function of the project that computes the IoU of what it is given, as it is."""
        if (
            not OVERLAP.search(_last(node.func).lower())
            or not at.plausible
            or not at.mentions(PIXELS.pattern)
        ):
            return
        helper = Helper.of(node, at)
        if helper is None or at.mentions(UNIT.pattern) or not _divides(helper):
            return
        inside = at.region(node).on
        judged = [
            (box, half, half.confidence if inside else Doubt.strict(half, at.value(box), box, at))
            for box in dict.fromkeys(helper.given.values())
            if (half := at.float16(at.value(box), at.region(node))) is not None
            and BOXES.search(at.text(box).lower())
            and max(-at.value(box).lo, at.value(box).hi) > 255.0
        ]
        if not judged:
            return
        made = {b for b, _, _ in judged if Provenance.computed(b, at) or "pred" in at.text(b)}
        box, half, confidence = max(judged, key=lambda found: (found[2].rank, found[0] in made))
        if box not in made:
            confidence = Confidence.POSSIBLE  # anchors and ground truth are float32 as a rule
        yield at.finding(
            node,
            "IoU of boxes in float16: beyond 512 pixels coordinates are multiples of 0.5, and an "
            "area of 300 x 300 is inf",
            min(confidence, Confidence.LIKELY, key=lambda c: c.rank),
            severity=Severity.WARNING,
            evidence=half.evidence,
            fix=Upcast.of([box for box, *_ in judged], node, at, fits=False),
        )


def _divides(helper: Helper) -> bool:
    """Whether a function divides in the dtype of what it is given."""
    nodes = helper.function.nodes
    upcasts = any(
        isinstance(node, ast.Attribute) and node.attr in ("float", "float32", "double", "dtype")
        for node in nodes
    )
    return not upcasts and any(
        isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) for node in nodes
    )


def _factors(node: ast.expr, at: Context) -> tuple[ast.expr, ast.expr] | None:
    """The factors of ``a * b``, ``torch.mul(a, b)`` or ``a.mul(b)``."""
    if isinstance(node, ast.BinOp):
        return node.left, node.right
    if not isinstance(node, ast.Call) or _last(node.func) not in ("mul", "multiply"):
        return None
    operation = at.operation(node)
    if operation is None:
        return None
    second = node.args[-1:]
    return (operation[1], second[0]) if second and second[0] is not operation[1] else None


def _last(func: ast.expr) -> str:
    """The last part of the name of what is called."""
    return getattr(func, "attr", "") or getattr(func, "id", "")


def _columns(sides: tuple[ast.expr, ast.expr]) -> bool:
    """Whether both sides are made of columns, ``b[:, 2]``, which only arrays have."""
    return all(
        any(
            isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Tuple)
            for part in ast.walk(side)
        )
        for side in sides
    )


def _keyed(sides: tuple[ast.expr, ast.expr]) -> bool:
    """Whether both sides are entries of dicts, of which no analysis knows what they are."""
    return all(isinstance(side, (ast.Subscript, ast.Call)) for side in sides)


def _is_prod(node: ast.Call, at: Context) -> ast.BinOp | None:
    """The sides of boxes in ``prod(b[:, 2:] - b[:, :2], 1)``."""
    operation = at.operation(node) if _last(node.func) == "prod" else None
    if operation is None:
        return None
    sides = _unwrapped(operation[1], at)
    if not isinstance(sides, ast.BinOp) or not isinstance(sides.op, ast.Sub):
        return None
    ends = [_last_slice(side) for side in (sides.left, sides.right)]
    if ends == [(2, None), (None, 2)] or ends == [(2, 4), (None, 2)]:
        return sides
    owner = getattr(at.function.node, "name", "")
    return sides if BOXED.search(owner.lower()) and len(node.args) + len(node.keywords) else None


def _unwrapped(node: ast.expr, at: Context) -> ast.expr | None:
    """What is clamped or named, as it was written: ``(right - left).clamp(0)``."""
    for _ in range(4):
        operation = at.operation(node) if isinstance(node, ast.Call) else None
        if isinstance(node, ast.Name):
            source = at.definition(node.id, node)
            if source is None:
                return None
            node = source
        elif operation is not None and operation[0].rstrip("_") in STEPS - {"float", "to"}:
            node = operation[1]
        else:
            break
    return node


def _last_slice(node: ast.expr) -> tuple[object, object] | None:
    """The numbers of the slice that ends an index, as in ``b[:, 2:]``."""
    if not isinstance(node, ast.Subscript):
        return None
    index = node.slice.elts[-1] if isinstance(node.slice, ast.Tuple) else node.slice
    if not isinstance(index, ast.Slice):
        return None
    lower, upper = (getattr(end, "value", None) for end in (index.lower, index.upper))
    return lower or None, upper


def _is_size(node: ast.expr, at: Context) -> bool:
    """Whether a product is a size in a call, such as that of a view."""
    parent = at.parents.get(id(node))
    if isinstance(parent, (ast.BinOp, ast.Tuple, ast.List)):
        parent = at.parents.get(id(parent))
    operation = at.operation(parent) if isinstance(parent, ast.Call) else None
    return operation is not None and operation[0] in SIZED


def _side(node: ast.expr, at: Context, depth: int = 3) -> str:
    """``w`` or ``h``: which side of a box a value is, by its name or what it is made from."""
    operation = at.operation(node)
    if operation is not None and operation[0] in STEPS:
        return _side(operation[1], at, depth)
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            found = _named(name.lower())
            if found or not depth or not isinstance(node, ast.Name):
                return found
            source = at.definition(name, node)
            return _side(source, at, depth - 1) if source is not None else ""
        case ast.Subscript(slice=ast.Constant(value=str(name))):  # sizes["height"]
            return _named(name.lower())
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
            return _named(name.lower())
        case ast.Subscript(value=inner, slice=index):
            place = _last_index(index)
            words = at.text(inner).lower()
            if not BOXES.search(words):
                return ""
            sides = (0, 1) if "wh" in words.rpartition(".")[2] else (2, 3)
            return "wh"[sides.index(place)] if place in sides else ""
        case ast.BinOp(left=left, op=ast.Sub(), right=right):
            return _difference(left, right, at)
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant()):
            return _side(left, at, depth)
    return ""


def _named(name: str) -> str:
    if WIDTH.search(name):
        return "w"
    return "h" if HEIGHT.search(name) else ""


def _difference(left: ast.expr, right: ast.expr, at: Context) -> str:
    if isinstance(left, ast.Subscript) and isinstance(right, ast.Subscript):
        match _last_index(left.slice), _last_index(right.slice):
            case (2, 0):
                return "w"
            case (3, 1):
                return "h"
        return ""
    words = at.text(left).lower()
    if RIGHT.search(words):
        return "w"
    return "h" if BOTTOM.search(words) else ""


def _last_index(index: ast.expr) -> int:
    """The number that ends an index (-1: none), as in ``[..., 2]`` and ``[:, 2:3]``."""
    if isinstance(index, ast.Tuple) and index.elts:
        index = index.elts[-1]
    if isinstance(index, ast.Slice) and index.lower is not None:
        index = index.lower
    if isinstance(index, ast.Constant) and isinstance(index.value, int):
        return index.value
    return -1
