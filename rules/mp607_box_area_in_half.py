from __future__ import annotations

from collections.abc import Iterator

from precision_lint.api import Applicability, Context, Event, Finding, Rule, Severity


class BoxAreaInHalf(Rule):
    """Width times height of boxes in pixels, in float16.

    ## What it flags
    `w * h`, `(x2 - x1) * (y2 - y1)`, `(b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])` and `wh[..., 0] *
    wh[..., 1]` of float16 boxes, and `(left + right) * (top + bottom)` of distances to their sides
    that were multiplied by a number such as a stride. It is `likely` where the function works in
    pixels (strides, anchors, image sizes, literal factors), otherwise `possible`. Where it works in
    pixels, so is a call of a function of the project that computes the IoU of its arguments without
    an upcast; `possible` where no known layer made the boxes. So is `torch.prod(b[:, 2:] - b[:,
    :2], 1)`, which CUDA autocast runs in float32, also of corners that were split off (`(low_right
    - top_left).clamp(0).prod(2)`), and `sizes["height"] * sizes["width"]` of entries that are used
    as tensors.

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

    code = "MP607"
    name = "box-area-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    listens = ("box-area",)
    supersedes = ("MP601",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        yield Finding(
            "an area in pixels exceeds 65504 in float16, from 256 x 256 on",
            fix=at.fix("upcast the sides", at.upcast(event.facts["upcast"])),
        )
