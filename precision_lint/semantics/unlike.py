"""Operands that go different ways to one product, so that only some of them are made float32."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics.care import Care
from precision_lint.semantics.names import dotted
from precision_lint.semantics.own_weights import Found, OwnWeights
from precision_lint.semantics.uncast import Uncast

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

_ATTENTION = re.compile(
    r"(?:scaled_dot_product_attention|memory_efficient_attention|flash_attn(?:_\w+)?|sageattn|"
    r"flex_attention|flash_attention(?:_\w+)?|sdpa)$"
)
_NAMED = ("query", "key", "value")
_UP = re.compile(r"\.float\(\)$|\.(?:to|type)\((?:dtype=)?torch\.float(?:32)?\)$")
_DOWN = re.compile(r"\.(?:to|type|type_as|half|bfloat16)\(")
_ROTARY = re.compile(r"rotary|rope|rotate", re.IGNORECASE)
_WIDENS = re.compile(r"\.float\(|torch\.float32|view_as_complex")
_RETURNS = re.compile(r"type_as|\.to\((?!torch\.float)|\.half\(|\.type\(")


class Unlike:
    """Calls and products whose operands were treated unlike each other."""

    @staticmethod
    def of(node: ast.Call | ast.BinOp, at: Context) -> Found | None:
        """Where operands were treated unlike each other, how, in words, and how sure that is."""
        if isinstance(node, ast.Call):
            if (pair := Unlike.attention(node, at)) is not None and not at.region(node).on:
                harm = f"{pair[0]} is made float32 and {pair[1]} is not: attention of half raises"
                return node, harm, Care.offered(at)
        elif (saved := Unlike.saved(node, at)) is not None:
            where, kept, gradient = saved
            harm = (
                f"{kept} is saved in the dtype of the inputs and {gradient} comes in that of the "
                "output, which autocast lowers: their product raises"
            )
            return where, harm, Confidence.POSSIBLE
        found = OwnWeights.of(node, at)
        if found is None and isinstance(node, ast.Call):
            found = Uncast.of(node, at)
        return found

    @staticmethod
    def attention(call: ast.Call, at: Context) -> tuple[str, str] | None:
        """The name that was made float32 before an attention, and the value that was not."""
        if not _ATTENTION.search(dotted(call.func) or ""):
            return None
        named = {k.arg: k.value for k in call.keywords}
        given = [*call.args[:3]] if len(call.args) >= 3 else [named.get(n) for n in _NAMED]
        names = [a.id for a in given if isinstance(a, ast.Name)]
        if len(names) != 3 or len(set(names)) != 3:
            return None
        bound = {name: list(_bindings(name, at)) for name in names}
        value = names[2]
        texts = {name: [at.text(v) for v in values] for name, values in bound.items()}
        for name in names[:2]:
            up = any(_UP.search(text) for text in texts[name])
            up = up or any(_rotated(v, at) for v in bound[name])
            last = texts[name][-1:] if texts[name] else []
            if any(_DOWN.search(text) and not _UP.search(text) for text in last):
                continue  # cast to one dtype at last
            if up and not any(_UP.search(t) or _DOWN.search(t) for t in texts[value]):
                if not at.mentions(rf"\.(?:to\({value}\.dtype|type_as\({value}\))"):
                    return name, value
        return None

    @staticmethod
    def saved(node: ast.BinOp, at: Context) -> tuple[ast.expr, str, str] | None:
        """What a backward saved and multiplies by a gradient that comes in another dtype: where it
        is unpacked, the name of the tensor, and that of the gradient."""
        names = [p.arg for p in at.function.parameters()]
        if at.function.name != "backward" or names[:1] != ["ctx"] or len(names) < 2:
            return None
        first = next((n for n in at.function.nodes if _is_product(n)), None)
        if first is not node:
            return None  # one finding says it for all
        gradients = names[1:]
        casts = "|".join(map(re.escape, gradients))
        if at.mentions(
            rf"\b(?:{casts})\w*\.(?:to|type_as|float|half|type|dtype)\b|custom_fwd|autocast"
        ):
            return None
        cls = at.function.cls
        forward = cls.methods.get("forward") if cls is not None else None
        if forward is None or at.inside(forward).mentions(r"cast_inputs|\.float\("):
            return None
        unpacked = _unpacked(at)
        bases = [_base(side) for side in (node.left, node.right)]
        kept = [b for b in bases if b in unpacked]
        met = [b for b in bases if b in gradients]
        return (unpacked[kept[0]], kept[0], met[0]) if kept and met else None


def _bindings(name: str, at: Context) -> Iterator[ast.expr]:
    """What a name is bound to in a function, in the order of its text."""
    found: list[ast.expr] = []
    for node in at.function.nodes:
        if not isinstance(node, ast.Assign):
            continue
        for target in node.targets:
            if isinstance(target, ast.Name) and target.id == name:
                found.append(node.value)
            elif isinstance(target, ast.Tuple):
                for i, part in enumerate(target.elts):
                    if isinstance(part, ast.Name) and part.id == name:
                        items = node.value.elts if isinstance(node.value, ast.Tuple) else []
                        found.append(items[i] if i < len(items) else node.value)
    return iter(sorted(found, key=lambda v: (v.lineno, v.col_offset)))


def _rotated(value: ast.expr, at: Context) -> bool:
    """Whether a helper of this file rotates in float32 and does not cast back."""
    path = dotted(value.func) if isinstance(value, ast.Call) else None
    if path is None or not _ROTARY.search(path):
        return False
    made = at.module.index.function_named(path) if "." not in path else None
    if made is None:
        return False
    there = at.inside(made)
    return there.mentions(_WIDENS.pattern) and not there.mentions(_RETURNS.pattern)


def _unpacked(at: Context) -> dict[str, ast.expr]:
    """Names that ``ctx.saved_tensors`` is unpacked into."""
    found: dict[str, ast.expr] = {}
    for node in at.function.nodes:
        if isinstance(node, ast.Assign) and dotted(node.value) == "ctx.saved_tensors":
            for target in node.targets:
                for part in ast.walk(target):
                    if isinstance(part, ast.Name):
                        found[part.id] = node.value
    return found


def _base(node: ast.expr) -> str:
    """The name that an operand is a view of: ``X.t()``, ``grad[0]``."""
    while isinstance(node, (ast.Call, ast.Attribute, ast.Subscript)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_product(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)
