from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Leaving,
    Rule,
    Severity,
    calls,
    operators,
)

CASTS = frozenset({"to", "type_as", "type"})
INVERSES = frozenset({"torch.inverse", "torch.pinverse", "torch.linalg.inv", "torch.linalg.pinv"})


class IntrinsicsMatmul(Rule):
    """Camera, pose or rotation matrix multiplied in half precision, which moves pixels.

    ## What it flags
    `@`, `matmul`, `bmm` and `einsum` of geometry (intrinsics, extrinsics, poses, rotations,
    homographies, homogeneous coordinates, results that go through a perspective divide) that runs
    in half: under autocast, where it is silent, or with half points, where it may raise. Geometry
    is recognised by its use and its origin together with its names. Matrices computed once in
    numpy (registered filter banks and regressors, a pseudo-inverse) count as well.

    It stays silent for float64 operands, for upcast operands with autocast switched off, for the
    elementwise form `fx * x / z + cx`, and where MP201 reports a power spectrum. Constant matrices
    of a class without `forward` are only `possible`: such classes prepare data.

    ## Why it breaks
    Pixel coordinates of a 2,000 pixel wide image need 11 bits before the point; float16 has 11
    bits in all, bfloat16 has 8. With a focal length of 1,500 the projection is off by up to 1.7
    pixels in float16 and 13.4 pixels in bfloat16, without any error. Casting the matrix down to
    the points (`K.to(points.dtype)`) trades the crash `expected m1 and m2 to have the same dtype`
    for the same 13 pixels: geometry goes up to float32. `.float()` on the operands alone does
    nothing inside autocast, which casts them down again.

    ## Example
    ```python
    uvw = torch.matmul(points, intrinsics.transpose(-1, -2))
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=points.device.type, enabled=False):
        uvw = torch.matmul(points.float(), intrinsics.float().transpose(-1, -2))
    ```

    ## Fix safety
    Safe: in float32 the region and the casts do nothing (float64 operands come down to
    float32). The result stays in float32. Points that were stored in half before they came here
    keep the error of that (0.7 pixels in float16, 5.9 in bfloat16): upcast them at their origin
    too. In a half model without autocast, where that result goes on into another product, the
    fix is unsafe: the other operand has to come up as well.

    ## How to silence
    `# precision-lint: ignore[MP501] reason` or `# noqa: MP501` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16; Autocast op eligibility.
    """

    code = "MP501"
    name = "intrinsics-matmul"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.matmul",
        "torch.bmm",
        "torch.mm",
        "torch.einsum",
        "torch.baddbmm",
        "einops.einsum",
        "Tensor.matmul",
        "Tensor.bmm",
        "Tensor.mm",
    ) | operators(ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]")

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        name, operands = at.product(node)
        if len(operands) < 2:
            return
        values = [at.value(operand) for operand in operands]
        if any(v.dtype in ("float64", "int") or v.kind == "array" for v in values):
            return
        if any("unit" in v.tags for v in values):
            return  # directions: an error of 5e-4 of a unit vector
        reason = at.geometry(node, operands)
        if reason is None or Leaving.missed(node, at):
            return
        region = at.region(node)
        judged = _state(at, node, operands)
        if judged is None:
            return
        confidence, evidence, raises = judged
        same = values[0].dtype == values[1].dtype and "cast" in values[0].tags | values[1].tags
        proven = any(v.dtype in ("float16", "bfloat16") for v in values)
        if (
            not region.on
            and not proven
            and (same or any(_cast_down(operand) for operand in operands))
        ):
            confidence = Confidence.POSSIBLE
        computed = reason.endswith(("filter bank", "constant matrix", "computed in numpy"))
        if reason.endswith("filter bank") and not region.on:
            confidence = Confidence.POSSIBLE  # features, which need no more than three digits
        if computed:
            harm = "may run in half: three decimal digits are left, and sums above 65504 are inf"
        elif region.on:
            harm = (
                "runs in half under autocast: pixels move by up to 1.7 (float16), 13.4 (bfloat16)"
            )
        elif raises:
            harm = "mixes half and float32: it raises, and geometry needs float32"
        else:
            harm = "may run in half: pixels move by up to 1.7 (float16), 13.4 (bfloat16)"
        what = reason if computed else f"geometry ({reason})"
        yield at.finding(
            node,
            f"{what} in {name} {harm}",
            confidence,
            evidence=[*evidence, *at.around(node, "this statement leaves autocast")],
            fix=self._fix(node, operands, at),
        )

    def _fix(
        self, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr], at: Context
    ) -> Fix | None:
        upcast = [r for r in (_root(o, at) for o in operands) if not at.is_upcast(r)]
        edits = at.without_autocast(node, upcast, "product")
        if edits is None:
            return None
        title = "compute the geometry in float32, outside autocast"
        # products that get the same fix take the float32 result as it is
        others = [p for p in at.products_reached(node) if at.geometry(p, at.product(p)[1]) is None]
        if others and not at.region(node).on and at.project.half is not None:
            why = "in a half model its float32 result meets another product"
            return Fix(title, Applicability.UNSAFE, edits, why)
        return Fix(title, Applicability.SAFE, edits)


def _state(
    at: Context, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr]
) -> tuple[Confidence, tuple[Evidence, ...], bool] | None:
    """How sure it is that the product runs in half, why, and whether it raises; None: it isn't."""
    region = at.region(node)
    if region.on:
        sure = Confidence.CERTAIN if region.sure and region.called is None else Confidence.LIKELY
        return sure, at.why(region), False
    values = [at.value(operand) for operand in operands]
    halves = [h for h in (at.half(v, region) for v in values) if h is not None]
    proven = [v for v in values if v.dtype in ("float16", "bfloat16")]
    wide = [v for v in values if v.dtype == "float32"]
    if region.state == "off":
        if proven and halves:
            return halves[0].confidence, halves[0].evidence, bool(wide)
        return None
    if proven:
        return Confidence.CERTAIN, halves[0].evidence if halves else (), bool(wide)
    settings = [e for e in (at.project.ambient, at.half_models) if e is not None]
    if at.plausible and settings and at.believes(settings[0]):
        return Confidence.LIKELY, tuple(settings[:1]), False
    if not halves:
        return None
    return Confidence.POSSIBLE, halves[0].evidence, bool(wide)


def _cast_down(node: ast.expr) -> bool:
    """Whether an operand is cast to another tensor's dtype at the call or just before."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call) and isinstance(part.func, ast.Attribute):
            if part.func.attr in CASTS and any(
                (isinstance(a, ast.Attribute) and a.attr == "dtype")
                or (isinstance(a, (ast.Name, ast.Attribute)) and part.func.attr == "type_as")
                for a in [*part.args, *(k.value for k in part.keywords)]
            ):
                return True
    return False


def _root(node: ast.expr, at: Context) -> ast.expr:
    """The operand under views and inverses, which have no half kernel: an upcast belongs there."""
    while True:
        if (
            isinstance(node, ast.Call)
            and node.args
            and at.qualify(node.func) in INVERSES
            and not isinstance(node.args[0], ast.Starred)
        ):
            node = node.args[0]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr in ("transpose", "permute", "unsqueeze", "squeeze", "swapaxes", "t",
                                   "expand", "view", "reshape", "inverse", "pinverse")
            and at.qualify(node.func) is None
        ):  # fmt: skip
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "H", "mH"):
            node = node.value
        else:
            return node
