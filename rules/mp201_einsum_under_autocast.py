from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    LateScale,
    Leaving,
    Reach,
    Rule,
    Severity,
    calls,
    operators,
)

FILTERS = re.compile(
    r"kernel|filter|window|basis|gauss|sobel|blur|wavelet|laplac|\bdct|stft|fourier|fir\b|lowpass"
)
"""Names of fixed weights of signal processing."""


class EinsumUnderAutocast(Rule):
    """Contraction over a large dimension that autocast runs in float16, where the sum overflows.

    ## What it flags
    `einsum`, `@`, `matmul`, `bmm` and `baddbmm` that run in float16 autocast and sum over a spatial
    dimension (`bnhw,bchw->bnc`, a flattened `h * w`) or over all tokens of a linear attention
    (its keys went through relu, elu + 1 or a named feature map), with operands that are not
    normalised; and those that take a power spectrum to float16, as before a mel filterbank.
    `.float()` on the operands does not silence it: autocast casts them down again.

    It stays silent for contractions over a head or channel dimension, for weights from a softmax
    over what is summed or divided by their sum, area or number, for bfloat16, and where autocast
    is switched off.

    It is only `possible` for a functional convolution with a filter (`F.conv1d(x, basis)`) or with
    modulated weights (`weight * style`), for a parameter or buffer as one operand, whose size is
    fixed, for tokens of which nothing says attention, for softmax weights over all tokens, which
    cannot overflow but lose digits, for attention scores that are scaled after the product, and
    for float32 operands and power spectra in a project that makes models half but never autocasts.

    ## Why it breaks
    float16 ends at 65504. The products are accumulated in float32 and rounded once at the end, so
    the error is small until the sum itself is out of range: 16,224 mask pixels times features up
    to 16.7 make 270,000, which is inf, and the next layer turns inf into nan. Values uniform in
    0 to 4 overflow from about 65,536 terms on. The power spectrum of a tone of amplitude 1 peaks at
    65,536 in a Hann window of 1,024 samples, at 262,144 in one of 2,048.

    ## Example
    ```python
    pooled = torch.einsum("bnhw,bchw->bnc", masks, features)
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=features.device.type, enabled=False):
        pooled = torch.einsum("bnhw,bchw->bnc", masks.float(), features.float())
    ```

    ## Fix safety
    Safe: in float32 the region and the casts do nothing (float64 operands come down to
    float32). Both are needed: disabling autocast alone does not upcast half operands, and
    casting alone is undone by autocast. The result stays in float32, because casting it back
    would bring the inf back; operations of the surrounding region take it as it is. In a half
    model without autocast, where that result goes on into another product, the fix is unsafe:
    the other operand has to come up as well.

    ## How to silence
    `# precision-lint: ignore[MP201] reason` or `# noqa: MP201` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float16 (`einsum`, `matmul`,
    `bmm`, `baddbmm`); Autocast op eligibility.
    """

    code = "MP201"
    name = "einsum-under-autocast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.einsum",
        "torch.matmul",
        "torch.bmm",
        "torch.baddbmm",
        "torch.mm",
        "einops.einsum",
        "Tensor.matmul",
        "Tensor.bmm",
        "Tensor.mm",
        "torch.nn.functional.conv1d",
        "torch.nn.functional.conv2d",
        "torch.nn.functional.conv3d",
        "torch.nn.functional.conv_transpose1d",
        "torch.nn.functional.conv_transpose2d",
        "torch.conv1d",
        "torch.conv2d",
    ) | operators(ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]")

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.Call) and ".conv" in (at.qualify(node.func) or ""):
            yield from _filtered(node, at)
            return
        name, operands = at.product(node)
        if not operands:
            return
        region = at.region(node)
        values = [at.value(operand) for operand in operands]
        if region.state == "off" or any(v.dtype in ("float64", "int", "bool") for v in values):
            return
        reach = Reach.of(name, node, operands, at)
        if reach is None or Leaving.missed(node, at):
            return
        if reach.harm == "scores" and LateScale.of(node, at) is not None:
            return  # MP208 says more of it
        confidence, evidence, dtypes = _state(at, node, operands)
        if "float16" not in dtypes:
            return
        confidence = min(confidence, reach.most, key=lambda c: c.rank)
        stays = reach.harm == "sum" and reach.most is not Confidence.CERTAIN
        if not region.on and stays and all(v.dtype == "float32" for v in values):
            confidence = Confidence.POSSIBLE
        if not region.on and all(v.dtype == "~cast" for v in values):
            confidence = Confidence.POSSIBLE
        wide = reach.harm == "operand" or any(v.dtype == "float32" for v in values)
        likely = confidence is Confidence.LIKELY and not region.on
        if likely and wide and at.project.autocast not in evidence:
            confidence = Confidence.POSSIBLE  # half models leave float32 as it is
        no_op = [o for o in operands if at.is_upcast(o)]
        extra = [at.note(o, "this upcast is undone by autocast") for o in no_op if region.on]
        yield at.finding(
            node,
            _says(name, reach),
            confidence,
            evidence=[*evidence, *extra, *at.around(node, "this statement leaves autocast")],
            fix=self._fix(node, operands, at) if reach.harm != "scores" else None,
        )

    def _fix(
        self, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr], at: Context
    ) -> Fix | None:
        upcast = [o for o in operands if not at.is_upcast(o)]
        edits = at.without_autocast(node, upcast, "contracted")
        if edits is None:
            return None
        title = "contract in float32, outside autocast"
        # products that get the same fix take the float32 result as it is
        others = [
            p
            for p in at.products_reached(node)
            if Reach.of(at.product(p)[0], p, at.product(p)[1], at) is None
        ]
        if others and not at.region(node).on and at.project.half is not None:
            why = "in a half model its float32 result meets another product"
            return Fix(title, Applicability.UNSAFE, edits, why)
        return Fix(title, Applicability.SAFE, edits)


def _filtered(node: ast.Call, at: Context) -> Iterator[Finding]:
    """A convolution with a filter, or with weights that are made for each sample."""
    named = {k.arg: k.value for k in node.keywords}
    weight = node.args[1] if len(node.args) > 1 else named.get("weight")
    if weight is None or at.region(node).state == "off":
        return
    name = weight
    while isinstance(name, ast.Call) and isinstance(name.func, ast.Attribute):
        name = name.func.value  # views and casts
    while isinstance(name, ast.Subscript):
        name = name.value
    text = getattr(name, "attr", getattr(name, "id", ""))
    made = [
        part.value
        for part in at.function.nodes
        if isinstance(part, ast.Assign)
        and part.lineno < node.lineno
        and getattr(part.targets[0], "id", None) == text
    ]
    modulated = any(
        isinstance(value, ast.BinOp) and isinstance(value.op, (ast.Mult, ast.Div)) for value in made
    )
    if not FILTERS.search(text.lower()) and not modulated:
        return
    known = at.project.autocast
    yield at.finding(
        node,
        f"autocast takes {at.text(node.func)} and {text}, which no training keeps in range, to "
        "float16",
        Confidence.POSSIBLE,
        evidence=() if known is None else (known,),
    )


def _says(name: str, reach: Reach) -> str:
    """What goes wrong, for a reader."""
    match reach.harm:
        case "operand":
            return f"{name} takes {reach.what} to float16: an element above 65504 is inf"
        case "weights":
            return (
                f"{name} takes softmax weights over {reach.what} to float16: below 6.1e-05, as "
                "from 16,384 tokens on, they lose digits, and below 3e-08 they are 0"
            )
        case "scores":
            return f"{name} sums over {reach.what} in float16: scores above 65504 are inf"
    return f"{name} sums over {reach.what} in float16: a sum above 65504 is inf"


def _state(
    at: Context, node: ast.Call | ast.BinOp, operands: Sequence[ast.expr]
) -> tuple[Confidence, tuple[Evidence, ...], frozenset[str]]:
    """How sure it is that a contraction runs in half, why, and in which dtypes."""
    region = at.region(node)
    if region.on:
        dtypes = frozenset({region.dtype}) if region.dtype != "low" else at.project.dtypes
        sure = Confidence.CERTAIN if region.sure and region.called is None else Confidence.LIKELY
        return sure, at.why(region), dtypes or frozenset({"float16"})
    halves = [h for h in (at.half(at.value(o), region) for o in operands) if h is not None]
    proven = [h for h in halves if h.confidence is Confidence.CERTAIN]
    if proven:
        return proven[0].confidence, proven[0].evidence, proven[0].dtypes
    if at.plausible and at.project.ambient is not None and at.believes(at.project.ambient):
        return Confidence.LIKELY, (at.project.ambient,), at.project.dtypes
    if halves:
        best = max(halves, key=lambda h: h.confidence.rank)
        return best.confidence, best.evidence, best.dtypes
    return Confidence.POSSIBLE, (), at.project.dtypes or frozenset({"float16"})
