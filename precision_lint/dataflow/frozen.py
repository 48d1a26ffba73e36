"""Parameters that are frozen: what is trained of an object was added since."""

from __future__ import annotations

from typing import Any, Final

from precision_lint.domains.values import Instance, Scalar, Unknown, Value

FROZEN: Final = "requires_grad_"
"""Where the attributes of an object tell whether all parameters that it had were frozen."""


def freeze(attributes: dict[Any, Value], arguments: list[Value]) -> None:
    """``module.requires_grad_(False)``, and what takes it back."""
    if arguments and isinstance(arguments[0], Scalar) and arguments[0].value is False:
        attributes[FROZEN] = arguments[0]
    else:
        attributes.pop(FROZEN, None)


def is_frozen(owner: Value | None) -> bool:
    """Whether all parameters of an object were frozen: what is trained of it was added since."""
    if isinstance(owner, Instance):
        return FROZEN in owner.attributes
    while isinstance(owner, Unknown):
        if FROZEN in owner.symbol.attributes:
            return True
        owner = owner.symbol.attributes.get(("cast of", ""))
    return False
