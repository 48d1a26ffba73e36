"""Where tensors are, as far as the code says: on the CPU, or on another device.

Nothing is assumed of the device of what comes in.  ``x.cpu()``, ``x.to("cuda")`` and a test such as
``x.device.type == "cpu"`` say it; what is computed of a tensor is where the tensor is.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from typing import Final

from precision_lint.domains.values import (
    ON_CPU,
    ON_DEVICE,
    ON_OTHER,
    Scalar,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
    text,
)
from precision_lint.syntax.program import Module

METHODS: Final = {"cpu": ON_CPU, **dict.fromkeys(("cuda", "xpu", "mps", "npu"), ON_OTHER)}
"""Methods that put a tensor on a device."""


def named(value: Value | None) -> int:
    """What a device, or its name, says; 0: nothing is known of it."""
    if isinstance(value, Special) and value.kind == "device":
        of = value.fields.get("of")
        if isinstance(of, Tensor):
            return of.flags & ON_DEVICE
        return named(value.fields.get("named"))
    if isinstance(value, Scalar) and value.op == "join":
        found = [named(one) for one in value.operands]
        both = found[0] | found[1]
        return both if all(found) else both and both | ON_OTHER
    return _of_type(text(value))


def _of_type(name: object) -> int:
    if not isinstance(name, str):
        return 0
    return ON_CPU if name.partition(":")[0] == "cpu" else ON_OTHER


def type_of(value: Scalar) -> int:
    """Where the type of a device says that a tensor is: ``x.device.type``, ``"cpu"``."""
    return named(value.operands[0]) if value.op == "device" and value.operands else named(value)


def asked(values: Iterable[Value]) -> int | None:
    """The device among the arguments of ``to``; 0: one that is not known, None: there is none."""
    for value in values:
        if isinstance(value, Tensor):
            return value.flags & ON_DEVICE
        if isinstance(value, Special) and value.kind == "device":
            return named(value)
        if isinstance(value, Scalar) and value.kind == "str":
            return named(value)
        if isinstance(value, Unknown):
            return 0
    return None


def on(value: Tensor, device: int | None) -> Tensor:
    """A tensor on a device; None: where it was."""
    if device is None or value.flags & ON_DEVICE == device:
        return value
    return value.but(flags=value.flags & ~ON_DEVICE | device)


def moved(value: Value, method: str) -> Value:
    """``x.cpu()``, ``x.cuda()``: the value itself where it is not known to be a tensor."""
    device = METHODS.get(method)
    if isinstance(value, Unknown):
        symbol = value.symbol
        if device is None or symbol.tensor is None or not symbol.proven(Symbol.TENSOR):
            return value
        value = symbol.tensor
    return on(value, device) if isinstance(value, Tensor) else value


def of_all(tensors: Iterable[Tensor]) -> int:
    """Where an operation runs: those without dimensions may be elsewhere."""
    found = 0
    for one in tensors:
        if one.rank != 0:
            found |= one.flags & ON_DEVICE
    return found


def upcasts_on_cpu(module: Module) -> bool:
    """Whether a file casts something up because it is on the CPU: half tensors come to it there."""
    known = module.facts.get("upcasts on cpu")
    if known is None:
        known = module.facts["upcasts on cpu"] = any(
            isinstance(node, (ast.If, ast.IfExp)) and asks_for_cpu(node.test) and _upcasts(node)
            for node in ast.walk(module.tree)
        )
    return bool(known)


def asks_for_cpu(test: ast.expr) -> bool:
    """``x.device.type == "cpu"``"""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.Eq, ast.In)):
            sides = [one for side in (node.left, *node.comparators) for one in ast.walk(side)]
            named = any(isinstance(one, ast.Constant) and one.value == "cpu" for one in sides)
            if named and any(
                isinstance(one, ast.Attribute) and one.attr == "type" for one in sides
            ):
                return True
    return False


def _upcasts(node: ast.If | ast.IfExp) -> bool:
    body = node.body if isinstance(node, ast.If) else [node.body]
    return any(
        isinstance(one, ast.Attribute) and one.attr in ("float", "float32")
        for part in body
        for one in ast.walk(part)
    )
