"""Conditions of branches in a canonical form, and what a path knows of them.

``x is not None`` and ``x`` are one fact, ``a != b`` denies ``a == b``, ``(i + 1) % 2 == 0`` and
``i % 2 == 1`` are the same iteration, and a name that equals one constant equals no other.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

Facts = frozenset[tuple[str, bool]]


@dataclass(frozen=True)
class Condition:
    """A test: an atom (``key`` is its canonical text), a constant, or ``and``/``or`` of parts.

    ``truth``: whether the test holds where the atom (or the combination) does.
    """

    kind: str
    truth: bool
    key: str = ""
    parts: tuple[Condition, ...] = ()

    @functools.cached_property
    def keys(self) -> frozenset[str]:
        """Every atom's text."""
        inner = (part.keys for part in self.parts)
        return frozenset({self.text}).union(*inner)

    @functools.cached_property
    def text(self) -> str:
        """What a fact calls it, its ``truth`` aside."""
        if self.kind in ("and", "or"):
            return f" {self.kind} ".join(f"({part.spelt})" for part in self.parts)
        return self.key

    @property
    def spelt(self) -> str:
        """Source text that reads back as this condition."""
        if self.kind == "constant":
            return str(self.truth)
        return self.text if self.truth else f"not ({self.text})"

    def negated(self) -> Condition:
        return Condition(self.kind, not self.truth, self.key, self.parts)


@functools.lru_cache(maxsize=4096)
def condition(text: str) -> Condition:
    """The canonical form of a test's source text."""
    try:
        return _condition(ast.parse(text, mode="eval").body)
    except (SyntaxError, RecursionError):
        return Condition("atom", True, text)


def _condition(test: ast.expr) -> Condition:
    match test:
        case ast.Constant(value=value):
            return Condition("constant", bool(value))
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return _condition(operand).negated()
        case ast.NamedExpr(target=target):
            return Condition("atom", True, target.id)
        case ast.Call(func=ast.Name(id="bool"), args=[inner], keywords=[]):
            return _condition(inner)
        case ast.BoolOp(op=op, values=parts):
            kind = "and" if isinstance(op, ast.And) else "or"
            return Condition(kind, True, "", tuple(map(_condition, parts)))
        case ast.BinOp(op=ast.Mod()):
            return _remainder(test, 0).negated()
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return _comparison(left, op, right)
        case _:
            return Condition("atom", True, ast.unparse(test))


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr) -> Condition:
    if isinstance(op, (ast.Is, ast.Eq, ast.IsNot, ast.NotEq)):
        same = isinstance(op, (ast.Is, ast.Eq))
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
            return Condition("constant", (left.value == right.value) == same)
        if isinstance(left, ast.Constant):
            left, right = right, left
        if isinstance(right, ast.Constant) and (right.value is None or right.value is False):
            found = _condition(left).negated()
        elif isinstance(right, ast.Constant) and right.value is True:
            found = _condition(left)
        elif isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
            found = _remainder(left, right)
        elif isinstance(right, ast.Constant):
            found = Condition("atom", True, f"{ast.unparse(left)} == {right.value!r}")
        else:
            one, other = sorted((ast.unparse(left), ast.unparse(right)))
            found = Condition("atom", True, f"{one} == {other}")
        return found if same else found.negated()
    if isinstance(op, (ast.In, ast.NotIn)):
        key = f"{ast.unparse(left)} in {ast.unparse(right)}"
        return Condition("atom", isinstance(op, ast.In), key)
    if isinstance(op, (ast.Gt, ast.LtE)):
        left, right = right, left
    # a < b, or its denial
    key = f"{ast.unparse(left)} < {ast.unparse(right)}"
    return Condition("atom", isinstance(op, (ast.Lt, ast.Gt)), key)


def _remainder(test: ast.BinOp, right: ast.expr | int) -> Condition:
    """``(x + a) % n == b``, written as ``(x + c) % n == 0``."""
    counter, shift = _shifted(test.left)
    modulus = ast.unparse(test.right)
    if isinstance(right, int):
        base, offset = "", right
    else:
        node, offset = _shifted(right)
        base = "" if node is None else ast.unparse(node)
    if base == modulus:  # x % n == n - 1
        base = ""
    if counter is None or base:
        text = right if isinstance(right, int) else ast.unparse(right)
        return Condition("atom", True, f"{ast.unparse(test)} == {text}")
    shift -= offset
    if isinstance(test.right, ast.Constant) and type(test.right.value) is int and test.right.value:
        shift %= test.right.value
        if test.right.value == 2 and shift == 1:  # odd is not even
            return Condition("atom", False, f"({ast.unparse(counter)} + 0) % 2 == 0")
    return Condition("atom", True, f"({ast.unparse(counter)} + {shift}) % {modulus} == 0")


def _shifted(node: ast.expr) -> tuple[ast.expr | None, int]:
    """``x`` and ``c`` of ``x + c``; None for a constant alone."""
    match node:
        case ast.Constant(value=int(value)):
            return None, value
        case ast.BinOp(left=left, op=ast.Add(), right=ast.Constant(value=int(value))):
            return left, value
        case ast.BinOp(left=ast.Constant(value=int(value)), op=ast.Add(), right=right):
            return right, value
        case ast.BinOp(left=left, op=ast.Sub(), right=ast.Constant(value=int(value))):
            return left, -value
        case ast.BinOp(
            left=left, op=ast.Sub(), right=ast.UnaryOp(ast.USub(), ast.Constant(value=int(value)))
        ):
            return left, value
    return node, 0


def assume(facts: Facts, test: Condition, truth: bool) -> Facts | None:
    """Facts with a condition taken as true or false; None if it contradicts them."""
    found = _assume(facts, test, truth)
    if found is None or found is facts:
        return found
    for key, holds in found:  # what was known of several together
        if key[:1] == "(" and (") and (" in key or ") or (" in key):
            known = condition(key)
            if known.parts and _assume(found - {(key, holds)}, known, holds) is None:
                return None
    return found


def _assume(facts: Facts, test: Condition, truth: bool) -> Facts | None:
    truth = truth == test.truth
    if test.kind == "constant":
        return facts if truth else None
    if test.kind == "atom":
        return _remember(facts, test.key, truth)
    if (test.text, not truth) in facts:
        return None
    if (test.kind == "and") == truth:  # every part is decided
        result: Facts | None = facts
        for part in test.parts:
            result = None if result is None else _assume(result, part, truth)
        return result
    # one part decides; if every part is known the other way this path can't be
    undecided = [p for p in test.parts if _assume(facts, p, truth) is not None]
    if not undecided:
        return None
    if len(undecided) == 1:
        return _assume(facts, undecided[0], truth)
    return _remember(facts, test.text, truth)


def _remember(facts: Facts, key: str, truth: bool) -> Facts | None:
    if (key, truth) in facts:
        return facts
    if (key, not truth) in facts:
        return None
    if truth and " == " in key:
        left, _, right = key.rpartition(" == ")
        for other, holds in facts:
            if (
                holds
                and other.startswith(f"{left} == ")
                and _literal(right, other[len(left) + 4 :])
            ):
                return None
    return facts | {(key, truth)}


def _literal(one: str, other: str) -> bool:
    """Whether two different texts are both literals."""
    return one != other and all(t[:1] in "'\"-0123456789" for t in (one, other))


def advanced(facts: Facts, counter: str) -> Facts:
    """Facts after a counter went up by one: those of its remainders are shifted."""
    found = set()
    for key, holds in facts:
        if not mentions(key, counter):
            found.add((key, holds))
            continue
        part = _REMAINDER.fullmatch(key)
        if part is not None and part["counter"] == counter and not mentions(part["n"], counter):
            shifted = condition(f"({counter} - {1 - int(part['c'])}) % {part['n']} == 0")
            found.add((shifted.key, holds == shifted.truth))
    return frozenset(found)


_REMAINDER = re.compile(r"\((?P<counter>.+) \+ (?P<c>-?\d+)\) % (?P<n>.+) == 0")


def forgotten(facts: Facts, name: str) -> Facts:
    """Facts without those about a name that was just bound."""
    return frozenset(f for f in facts if not mentions(f[0], name))


@functools.lru_cache(maxsize=8192)
def mentions(text: str, name: str) -> bool:
    """Whether an expression's text contains a name, or an attribute of it."""
    return name in text and bool(re.search(rf"(?<![\w.]){re.escape(name)}(?!\w)", text))


class _Substitution(ast.NodeTransformer):
    def __init__(self, names: Mapping[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        text = self.names.get(node.id)
        return node if text is None else ast.parse(text, mode="eval").body


@functools.lru_cache(maxsize=8192)
def substituted(text: str, names: tuple[tuple[str, str], ...]) -> str:
    """An expression's text with names replaced by other expressions."""
    if not any(name in text for name, _ in names):
        return text
    try:
        tree = ast.parse(text, mode="eval")
        return ast.unparse(_Substitution(dict(names)).visit(tree).body)
    except (SyntaxError, RecursionError):
        return text
