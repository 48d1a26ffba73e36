"""Which methods of a class give its attributes their values, or containers their items."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from precision_lint.domains.values import Scalar, Sequence, Table, Value
from precision_lint.syntax.program import Class, Function, scan


def late_stores(cls: Class, line: Iterable[Class | str]) -> dict[str, list[Function]]:
    """Methods other than ``__init__`` by the attributes of ``self`` that they assign, or fill (``x[]``).

    line: the class and its bases, nearest first.
    """
    known: dict[str, list[Function]] | None = cls.facts.get("late")
    if known is None:
        known = cls.facts["late"] = {}
        for base in line:
            for method in base.methods.values() if isinstance(base, Class) else ():
                for name in _assigned(method):
                    known.setdefault(name, []).append(method)
    return known


CASTING: Final = frozenset({"half", "float", "bfloat16", "to", "type", "apply"})


def leave_open(cls: Class, line: Iterable[Class | str], attributes: dict[Any, Value]) -> None:
    """Once a model is built: flags and counts that its other methods store may be others when it runs."""
    for name, methods in late_stores(cls, line).items():
        value = attributes.get(name)
        if not isinstance(value, Scalar) or value.kind not in ("bool", "int"):
            continue
        casts = any(not CASTING.isdisjoint(scan(one).names) for one in methods)
        if value.kind == "int" or not casts:  # a flag may say how the model was cast
            attributes[name] = Scalar(None, value.kind)


def _assigned(method: Function) -> Iterator[str]:
    if method.name != "__init__" and method.parameters:
        yield from scan(method).stored
        yield from (f"{name}[]" for name in scan(method).filled)


def is_empty(value: Value | None) -> bool:
    """Whether a container waits for its items."""
    if isinstance(value, Table):
        return not value.items and value.element is None
    return isinstance(value, Sequence) and value.items == ()


def waits(value: Value) -> bool:
    """Whether other methods give an attribute its value, or its items."""
    return is_empty(value) or (isinstance(value, Scalar) and value.kind == "none")
