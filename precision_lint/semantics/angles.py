"""Angles of rotary and sinusoidal embeddings: positions times frequencies, then cosine."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics.provenance import Provenance

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

FREQUENCIES = re.compile(
    r"(?<![a-z])(inv_?)?freq(s|uenc(y|ies))?(?![a-z])|theta|omega|div_?term|timescale|"
    r"(?<!\d)10_?000(?!\d)|rope_base"
)
TURNS = frozenset({"cos", "sin", "polar"})


@dataclass(frozen=True, eq=False)
class Angle:
    """The product that makes the angles of an embedding.

    ``listed``: autocast runs it in its own dtype.  ``turns``: the calls of ``cos``, ``sin`` and
    ``polar`` in the same function that its values go into.
    """

    product: ast.Call | ast.BinOp
    operands: tuple[ast.expr, ast.expr]
    frequencies: ast.expr
    listed: bool
    turns: tuple[ast.Call, ...]

    @classmethod
    def of(cls, call: ast.Call, at: Context) -> Angle | None:
        """The angles that a call of ``cos`` or ``polar`` turns into an embedding."""
        found = _made(call, at)
        if found is None:
            return None
        product, operands, frequencies, listed = found
        turns = []
        for node in at.function.nodes:
            if isinstance(node, ast.Call) and _last(node, at) in TURNS:
                other = _made(node, at)
                if other is not None and other[0] is product:
                    turns.append(node)
        return cls(product, operands, frequencies, listed, tuple(turns))

    @staticmethod
    def uses(positions: ast.expr, at: Context) -> bool:
        """Whether an expression makes the positions, or frequencies, of some angles."""
        for node in at.function.nodes:
            if isinstance(node, ast.Call) and _last(node, at) in TURNS:
                found = _made(node, at)
                if found is not None and any(
                    origin is positions
                    for operand in found[1]
                    for origin in Provenance.of(operand, at)
                ):
                    return True
        return False


def _last(call: ast.Call, at: Context) -> str:
    found = at.operation(call)
    return found[0] if found is not None else ""


def _made(
    call: ast.Call, at: Context
) -> tuple[ast.Call | ast.BinOp, tuple[ast.expr, ast.expr], ast.expr, bool] | None:
    """Product, operands, frequencies of an angle, and whether autocast lists the product."""
    turned = at.operation(call)
    if turned is None:
        return None
    angle = turned[1]
    if turned[0] == "polar":
        given = [a for a in call.args if a is not angle]
        given += [k.value for k in call.keywords if k.arg == "angle"]
        if not given:
            return None
        angle = given[0]
    for node in Provenance.of(angle, at, casts=True):
        operands, listed = _operands(node, at)
        if len(operands) != 2 or not isinstance(node, (ast.Call, ast.BinOp)):
            continue
        named = [o for o in operands if FREQUENCIES.search(_text(o, at)) and not _number(o, at)]
        if named and not any(_number(o, at) for o in operands):
            return node, (operands[0], operands[1]), named[-1], listed
    return None


def _operands(node: ast.expr, at: Context) -> tuple[list[ast.expr], bool]:
    if isinstance(node, ast.BinOp):
        both = isinstance(node.op, (ast.Mult, ast.MatMult))
        return ([node.left, node.right] if both else []), isinstance(node.op, ast.MatMult)
    if not isinstance(node, ast.Call):
        return [], False
    operands = at.product(node)[1]
    if operands:
        return operands, True
    found = at.operation(node)
    if found is None or found[0] not in ("outer", "ger", "mul"):
        return [], False
    return [found[1], *(a for a in node.args if a is not found[1])][:2], False


def _text(node: ast.expr, at: Context) -> str:
    """The words of an expression, and of what a local name in it was computed from."""
    texts = [at.text(node)]
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            made = at.definition(part.id, part)
            if made is not None:
                texts.append(at.text(made))
    return " ".join(texts).lower()


def _number(node: ast.expr, at: Context) -> bool:
    value = at.value(node)
    return value.kind == "number" or (isinstance(node, ast.Attribute) and node.attr == "pi")
