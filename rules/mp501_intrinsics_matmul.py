from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity

PLAIN = (
    "constant matrix", "a matrix of large numbers", "a covariance", "a correlation", "a power of a matrix",
)  # fmt: skip
"""Reasons that are no geometry."""


class IntrinsicsMatmul(Rule):
    """Camera, pose or rotation matrix multiplied in half precision, which moves pixels.

    ## What it flags
    `@`, `matmul`, `bmm` and `einsum` of geometry (intrinsics, extrinsics, poses, rotations,
    homographies, homogeneous coordinates, results that go through a perspective divide) that runs
    in half: under autocast, where it is silent, or with half points, where it may raise. Geometry
    is recognised by its use and its origin together with its names. Matrices computed once in
    numpy (registered filter banks and regressors, a pseudo-inverse) and matrices that are written with
    numbers of 256 or more count as well, and so do
    `affine_grid` and, under autocast, `cov`, `corrcoef` and `matrix_power`, which multiply.

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
    listens = ("geometry-product",)
    supersedes = ("MP201", "MP202")

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        if facts["reason"] in PLAIN:
            what = facts["reason"]
            harm = "may run in half: three decimal digits are left, and sums above 65504 are inf"
        elif facts["region"]:
            what = f"geometry ({facts['reason']})"
            harm = (
                "runs in half under autocast: pixels move by up to 1.7 (float16), 13.4 (bfloat16)"
            )
        else:
            what = f"geometry ({facts['reason']})"
            harm = "may run in half: pixels move by up to 1.7 (float16), 13.4 (bfloat16)"
            if facts["raises"]:
                harm = "mixes half and float32: it raises, and geometry needs float32"
        device = None
        if not facts["operands"] and facts["anchor"] is not None:
            device = f"{at.text(facts['anchor'])}.device.type"
        edits = at.without_autocast(event.place, facts["operands"], device, "product")
        yield Finding(
            f"{what} in {facts['operation']} {harm}",
            fix=at.fix("compute the geometry in float32, outside autocast", edits),
        )
