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
    Rule,
    Severity,
    calls,
    operators,
)

AXES = frozenset("hwxyzt")
"""Letters that equations use for space and time."""


class EinsumUnderAutocast(Rule):
    """Contraction over a large dimension that autocast runs in float16, where the sum overflows.

    ## What it flags
    `einsum`, `@`, `matmul`, `bmm` and `baddbmm` that run in float16 autocast and sum over a spatial
    dimension (`bnhw,bchw->bnc`, a flattened `h * w`) or over all tokens of a linear attention,
    with operands that are not normalised. `.float()` on the operands does not silence it: autocast
    casts them down again.

    It stays silent for contractions over a head or channel dimension, for weights from a softmax
    or divided by their sum or area, for bfloat16, and where autocast is switched off.

    ## Why it breaks
    float16 ends at 65504. The products are accumulated in float32 and rounded once at the end, so
    the error is small until the sum itself is out of range: 16,224 mask pixels times features up
    to 16.7 make 270,000, which is inf, and the next layer turns inf into nan. Values uniform in
    0 to 4 overflow from about 65,536 terms on.

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
    ) | operators(ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]")

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        name, operands = at.product(node)
        if not operands:
            return
        region = at.region(node)
        values = [at.value(operand) for operand in operands]
        if region.state == "off" or any(v.dtype in ("float64", "int", "bool") for v in values):
            return
        reach = _reach(name, node, operands, at)
        if reach is None:
            return
        what, sure = reach
        confidence, evidence, dtypes = _state(at, node, operands)
        if "float16" not in dtypes:
            return
        if not sure:
            confidence = min(confidence, Confidence.LIKELY, key=lambda c: c.rank)
        if not region.on and not sure and all(v.dtype == "float32" for v in values):
            confidence = Confidence.POSSIBLE
        if not region.on and all(v.dtype == "~cast" for v in values):
            confidence = Confidence.POSSIBLE
        no_op = [o for o in operands if at.is_upcast(o)]
        extra = [at.note(o, "this upcast is undone by autocast") for o in no_op if region.on]
        yield at.finding(
            node,
            f"{name} sums over {what} in float16: a sum above 65504 is inf",
            confidence,
            evidence=[*evidence, *extra, *at.around(node, "this statement leaves autocast")],
            fix=self._fix(node, operands, at),
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
            if _reach(at.product(p)[0], p, at.product(p)[1], at) is None
        ]
        if others and not at.region(node).on and at.project.half is not None:
            why = "in a half model its float32 result meets another product"
            return Fix(title, Applicability.UNSAFE, edits, why)
        return Fix(title, Applicability.SAFE, edits)


def _reach(
    name: str,
    node: ast.Call | ast.BinOp,
    operands: Sequence[ast.expr],
    at: Context,
    depth: int = 1,
) -> tuple[str, bool] | None:
    """What large dimension is summed over, and whether that is sure; None: not a large one."""
    if any(at.value(o).tags & {"normalized", "unit"} for o in operands):
        return None
    if name == "einsum" and isinstance(node, ast.Call):
        if not node.args:
            return None
        place = 0 if at.qualify(node.func) == "torch.einsum" else -1
        equation = at.value(node.args[place]).const
        if not isinstance(equation, str):
            return None
        found = _spatial(equation)
        if found is None and _positive(operands, at) and _tokens(equation):
            return "all tokens", False
        return found or _earlier(operands, at, depth)
    if len(operands) != 2:
        return None
    left, right = (at.value(operand) for operand in operands)
    if "spatial-last" in left.tags or "spatial-mid" in right.tags:
        return "a flattened spatial dimension", True
    if _swapped(operands[0], at) and not _swapped(operands[1], at):
        if _positive(operands, at):
            return "all tokens", False
    return _earlier(operands, at, depth)


def _earlier(operands: Sequence[ast.expr], at: Context, depth: int) -> tuple[str, bool] | None:
    """Whether an operand is itself such a sum, which outgrew half before it came here."""
    for operand in operands if depth else ():
        if isinstance(operand, ast.Name):
            sources = at.analysis.assigned.get(operand.id, [])
            for source in sources[:1]:
                if len({id(s) for s in sources}) == 1 and isinstance(source, (ast.Call, ast.BinOp)):
                    name, inner = at.product(source)
                    if _reach(name, source, inner, at, depth - 1) is not None:
                        return f"what `{operand.id}` summed before", False
    return None


def _positive(operands: Sequence[ast.expr], at: Context) -> bool:
    """Whether no operand's terms can cancel: one is a gate or a positive feature map."""
    return any(at.value(o).is_tensor and at.value(o).lo >= 0 for o in operands)


def _tokens(equation: str) -> bool:
    """Whether an equation sums over one index that names tokens or positions."""
    if "->" not in equation:
        return False
    inputs, output = equation.split("->")
    terms = [_indices(term) for term in inputs.split(",")]
    if len(terms) != 2:
        return False
    shared = set(terms[0]) & set(terms[1]) - set(_indices(output))
    return len(shared) == 1 and shared <= {"n", "l", "s", "t", "p", "m", "seq", "tokens"}


def _spatial(equation: str) -> tuple[str, bool] | None:
    """The spatial indices that an einsum equation contracts, at least two of them."""
    if "->" not in equation:
        return None
    inputs, output = equation.split("->")
    terms = [_indices(term) for term in inputs.split(",")]
    if len(terms) < 2:
        return None
    shared = set(terms[0]).intersection(*terms[1:]) - set(_indices(output))
    axes = sorted(axis for axis in shared if axis in AXES or axis in ("height", "width"))
    pairs = {"hw", "xy", "thw", "xyz", "hwt", "hwz", "heightwidth", "yz", "tw", "ht"}
    return (" and ".join(axes), True) if "".join(axes) in pairs or len(axes) > 2 else None


def _indices(term: str) -> list[str]:
    """Index names of one term: letters, or words in einops' spaced form."""
    words = term.split()
    if len(words) > 1:
        return words
    return list(term.strip().replace(".", ""))


def _swapped(node: ast.expr, at: Context) -> bool:
    """Whether an operand is written with its last two dimensions swapped."""
    if isinstance(node, ast.Attribute):
        return node.attr == "mT"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("transpose", "swapaxes", "swapdims"):
            places = sorted(
                at.value(a).const for a in node.args if isinstance(at.value(a).const, int)
            )
            return places in ([-2, -1], [1, 2], [2, 3])
        if node.func.attr in ("float", "contiguous", "half", "to", "clone"):
            return _swapped(node.func.value, at)
    return False


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
    if at.plausible and at.project.autocast is not None:
        return Confidence.LIKELY, (at.project.autocast,), at.project.dtypes
    if halves:
        best = max(halves, key=lambda h: h.confidence.rank)
        return best.confidence, best.evidence, best.dtypes
    return Confidence.POSSIBLE, (), at.project.dtypes or frozenset({"float16"})
