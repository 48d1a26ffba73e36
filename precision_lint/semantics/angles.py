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
_TURNED = r"\b(cos|polar)\(|[Rr]o(pe|tary)"
_SERIES = re.compile(r"(\*\*|\bpow\(|\bexp2?\().*\b(arange|linspace)\(", re.DOTALL)
TURNS = frozenset({"cos", "sin", "polar"})
RANGES = frozenset({"arange", "linspace"})


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
        return cls(product, operands, frequencies, listed, tuple(_turns(product, at)))

    @classmethod
    def handed_on(cls, product: ast.Call | ast.BinOp, at: Context) -> Angle | None:
        """The angles that a function returns, so that another takes their cosine.

        Only those whose frequencies are a power of a range, such as ``theta ** (-arange / dim)``.
        """
        operands, listed = _operands(product, at)
        if len(operands) != 2 or not at.inside(at.module.index.top).mentions(_TURNED):
            return None
        powers = [o for o in operands if not _number(o, at) and _is_series(o, at)]
        if len(powers) != 1 or not _returned(product, at) or _turns(product, at):
            return None
        return cls(product, (operands[0], operands[1]), powers[0], listed, ())

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


def _turns(product: ast.expr, at: Context) -> list[ast.Call]:
    """The calls in a function that take cosine or sine of a product."""
    turns = []
    for node in at.function.nodes:
        if isinstance(node, ast.Call) and _last(node, at) in TURNS:
            found = _made(node, at)
            if found is not None and found[0] is product:
                turns.append(node)
    return turns


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


def _text(node: ast.expr, at: Context, depth: int = 3) -> str:
    """The words of an expression, and of what the tensors in it were computed from."""
    texts = [at.text(node).lower()]
    for part in ast.walk(node) if depth else ():
        if isinstance(part, ast.Name) and at.value(part).kind != "number":
            made = at.definition(part.id, part)
            if made is not None:
                texts.append(_text(made, at, depth - 1))
    return " ".join(texts)


def _is_series(node: ast.expr, at: Context) -> bool:
    """Whether a value is a power of a range: computed here, or stored by the class."""
    for origin in Provenance.of(node, at, casts=True):
        if isinstance(origin, (ast.BinOp, ast.Call)) and _is_power(origin, at):
            return any(
                isinstance(part, ast.Call) and _last(part, at) in RANGES
                for part in Provenance.of(_exponent(origin), at, casts=True)
            )
        if isinstance(origin, ast.Attribute) and at.function.cls is not None:
            stored = at.module.stores(at.function.cls).get(origin.attr)
            if stored is not None and stored[1] is not None:
                inside = at.inside(stored[1])
                return _SERIES.search(_text(_registered(stored[0]), inside)) is not None
    return False


def _is_power(node: ast.BinOp | ast.Call, at: Context) -> bool:
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.Pow)
    return _last(node, at) in ("pow", "exp", "exp2")


def _exponent(power: ast.BinOp | ast.Call) -> ast.expr:
    if isinstance(power, ast.BinOp):
        return power.right
    return power.args[-1] if power.args else power.func


def _registered(node: ast.expr) -> ast.expr:
    """What ``register_buffer`` is given."""
    return node.args[1] if isinstance(node, ast.Call) and len(node.args) > 1 else node


def _returned(node: ast.expr, at: Context) -> bool:
    return any(
        origin is node
        for statement in at.function.nodes
        if isinstance(statement, ast.Return) and statement.value is not None
        for origin in Provenance.of(statement.value, at, casts=True)
    )


def _number(node: ast.expr, at: Context) -> bool:
    value = at.value(node)
    return value.kind == "number" or (isinstance(node, ast.Attribute) and node.attr == "pi")
