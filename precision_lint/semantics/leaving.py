"""Managers that switch autocast off, and those that do so for the wrong device."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics.regions import AUTOCAST, Region

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Function

With = ast.With | ast.AsyncWith


@dataclass(frozen=True)
class Leaving:
    """A ``with`` that switches autocast off for one device inside the region of another.

    ``device`` is the one it names, ``around`` the region that stays on.
    """

    node: ast.Call
    statement: With
    device: str
    around: Region

    @classmethod
    def of(cls, node: ast.expr, at: Context) -> Leaving | None:
        """The mismatch that a manager is; None: it is none, or the devices are not both known."""
        device = off_for(node, at)
        statement = at.statement(node)
        if not device or not isinstance(node, ast.Call) or not isinstance(statement, With):
            return None
        around = at.region(node)
        managers = list(_managers(statement))
        if not around.on or around.device in ("", device) or node not in managers:
            return None
        if any(off_for(m, at) in (around.device, "") for m in managers if m is not node):
            return None
        called = around.called is not None or bool(around.foreign)
        return None if called and not _agreed(around, at) else cls(node, statement, device, around)

    @classmethod
    def decorating(cls, node: ast.expr, at: Context) -> tuple[str, Region, Context] | None:
        """The same of a decorator: its device, the region of the callers, the function."""
        device = off_for(node, at)
        target = _decorated(at).get(id(node))
        if not device or target is None:
            return None
        around = at.module.entry_region(target)
        if not around.on or around.device in ("", device):
            return None
        return device, around, at.inside(target)

    @classmethod
    def missed(cls, node: ast.expr, at: Context) -> bool:
        """Whether an expression is in the body of such a mismatch, which says more."""
        managers = (
            item.context_expr
            for statement in at.ancestors(node)
            for item in (statement.items if isinstance(statement, With) else ())
        )
        decorators = getattr(at.function.node, "decorator_list", ())
        return any(cls.of(manager, at) is not None for manager in managers) or any(
            cls.decorating(decorator, at) is not None for decorator in decorators
        )

    @property
    def here(self) -> bool:
        """Whether the region that stays on is in the same function."""
        return self.around.called is None and not self.around.foreign

    @property
    def named(self) -> ast.expr | None:
        """The literal device type in it; None: its name implies one."""
        return _device_argument(self.node)


def _device_argument(call: ast.Call) -> ast.expr | None:
    """The literal device type that a region names."""
    given = [k.value for k in call.keywords if k.arg == "device_type"] or call.args[:1]
    return next(
        (g for g in given if isinstance(g, ast.Constant) and isinstance(g.value, str)), None
    )


def off_for(node: ast.expr, at: Context) -> str | None:
    """The device for which a manager switches autocast off; ``""``: known at run time only."""
    name = at.qualify(node.func) if isinstance(node, ast.Call) else None
    if not isinstance(node, ast.Call) or name not in AUTOCAST:
        return None
    implied = AUTOCAST[name]
    place = 2 if implied is None else 0
    enabled = [k.value for k in node.keywords if k.arg == "enabled"] or node.args[place : place + 1]
    if not enabled or not isinstance(enabled[0], ast.Constant) or enabled[0].value is not False:
        return None
    if implied is not None:
        return implied
    given = _device_argument(node)
    return str(given.value).partition(":")[0] if isinstance(given, ast.Constant) else ""


def _managers(statement: With) -> Iterator[ast.expr]:
    """Managers of a statement, and of one that its body starts with."""
    for item in statement.items:
        yield item.context_expr
    first = statement.body[0]
    if isinstance(first, With):
        yield from _managers(first)


def _agreed(around: Region, at: Context) -> bool:
    """Whether no call of this function stands in a region for another device."""
    sites = at.module.call_sites(at.function)
    regions = [at.module.lexical(caller, call) for call, caller in sites]
    return around.state == "on" and all(r is None or r.device == around.device for r in regions)


def _decorated(at: Context) -> dict[int, Function]:
    """The function that each decorator of the file stands on."""
    memo = at.module.memo
    if _decorated not in memo:
        memo[_decorated] = {
            id(decorator): function
            for function in at.module.index.functions
            for decorator in getattr(function.node, "decorator_list", ())
        }
    found: dict[int, Function] = memo[_decorated]
    return found
