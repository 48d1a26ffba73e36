"""What the analysis knows at a line, for people who want to know why it says what it says."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from precision_lint.api import Evidence, Position
from precision_lint.semantics.context import Context
from precision_lint.semantics.index import Function, walk_function
from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import CONCRETE, INF, Value

KINDS = {"unknown": "object", "other": "object", "array": "NumPy array", "finfo": "torch.finfo"}
REGIONAL = (ast.Call, ast.BinOp)
"""Nodes whose autocast state the analysis notes."""
_CALL = re.compile(r"\bcall(\.?)(\d+)(?=:)")


@dataclass(frozen=True)
class Expression:
    """What is known of one expression: ``dtype`` and ``range`` in words, empty if nothing is."""

    text: str
    start: Position
    kind: str
    dtype: str
    range: str
    half: str
    """The confidence with which it may be float16 or bfloat16 here; empty if it is not."""
    why: tuple[Evidence, ...]


@dataclass(frozen=True)
class Description:
    """What is known at a line of a function."""

    function: str
    autocast: str
    why: tuple[Evidence, ...]
    plausible: bool
    """Whether the function is believed to run under autocast or in a half model."""
    expressions: tuple[Expression, ...]


def describe(at: Context, row: int) -> Description:
    """What the analysis of the function of ``at`` knows at a row of its file."""
    nodes = _on_row(at.function, row)
    regions = [at.region(node) for node in nodes if isinstance(node, REGIONAL)]
    inside = at.module.lexical(at.function, ast.Pass(lineno=row))
    region = regions[0] if regions else inside or at.module.entry_region(at.function)
    seen: dict[str, Expression] = {}
    for node in nodes:
        value = at.analysis.values.get(id(node))
        if value is None or isinstance(getattr(node, "operand", node), ast.Constant):
            continue
        text = " ".join(at.text(node).split())
        here = at.region(node) if isinstance(node, REGIONAL) else region
        half = at.half(value, here) if value.maybe_tensor else None
        expression = Expression(
            text,
            at.span(node)[0],
            KINDS.get(value.kind, value.kind),
            _dtype(value, here, at.function),
            _range(value),
            half.confidence.value if half else "",
            half.evidence if half else (),
        )
        if expression.dtype or expression.range or value.kind not in ("unknown", "other"):
            seen.setdefault(text, expression)
    name = at.function.qualname if not isinstance(at.function.node, ast.Module) else ""
    return Description(name, _state(region), at.why(region), at.plausible, tuple(seen.values()))


def _on_row(function: Function, row: int) -> list[ast.expr]:
    """Expressions that start on a row, outermost first; else the innermost one around it."""
    nodes = [
        node
        for node in walk_function(function)
        if isinstance(node, ast.expr) and node.lineno <= row <= (node.end_lineno or 0)
    ]
    return [node for node in nodes if node.lineno == row] or nodes[-1:]


def _state(region: Region) -> str:
    if region.state == "off":
        return "off"
    dtype = "" if region.dtype == "low" else f", {region.dtype}"
    device = f" on {region.device}" if region.device else ""
    if region.state == "on":
        return f"on{dtype}{device}"
    return f"on for some callers{dtype}{device}" if region.known else "as the caller has it"


def _dtype(value: Value, region: Region, function: Function) -> str:
    """A dtype in words."""
    dtype = value.dtype
    # of calls in a function its variables count rows from where that begins
    words = _CALL.sub(lambda c: f"call{int(c[2]) + (0 if c[1] else function.row)}", dtype)
    if dtype == "low":
        words = "autocast's dtype"
    elif dtype == "~autocast":
        words = "autocast's dtype, where autocast is on"
    elif dtype.startswith("~call.") and ":" not in dtype:
        words = f"that of {dtype[6:]}"
    elif dtype.startswith("~call"):
        words = f"that of the result of the call on row {words[5:].partition(':')[0]}"
    elif dtype.startswith("~"):
        words = f"that of {words[1:]}"
    if value.wide and dtype not in CONCRETE and not region.on:
        return f"float32 under autocast, else {words}"
    return words


def _range(value: Value) -> str:
    if value.kind not in ("tensor", "number", "unknown"):
        return ""
    if value.const is not None and value.lo == value.hi:
        return str(value.const)
    if value.lo == -INF and value.hi == INF:
        return ""
    left = "(-inf" if value.lo == -INF else f"[{value.lo:g}"
    right = "inf)" if value.hi == INF else f"{value.hi:g}]"
    return f"{left}, {right}"
