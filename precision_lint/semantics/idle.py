"""Branches that do not run in half: under a flag that no construction sets, or behind a test that
sends half elsewhere."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Class, Function

_HALF = re.compile(r"(?:dtype|\.type\(\)).*\W(?:float16|half|\w*HalfTensor)\b")
SITES = 8
"""Constructions that are looked at; where there are more, the flag counts as set."""


def is_idle(node: ast.AST, at: Context) -> bool:
    """Whether a node stands under ``if self.flag``, which is off wherever the class is made."""
    inner = node
    for parent in at.ancestors(node):
        if isinstance(parent, ast.If) and any(inner is statement for statement in parent.body):
            if any(_is_off(test, at) for test in _conjuncts(parent.test)):
                return True
        inner = parent
    return False


def is_spared(node: ast.AST, at: Context) -> bool:
    """Whether a node stands where a test has sent half elsewhere: behind the ``else`` of
    ``if dtype == torch.float16``."""
    inner = node
    for parent in at.ancestors(node):
        if isinstance(parent, (ast.If, ast.IfExp)) and isinstance(parent.test, ast.Compare):
            behind = parent.orelse if isinstance(parent.orelse, list) else [parent.orelse]
            equal = isinstance(parent.test.ops[0], (ast.Eq, ast.Is, ast.In))
            if equal and inner in behind and _HALF.search(at.text(parent.test)):
                return True
        inner = parent
    return False


def _conjuncts(test: ast.expr) -> list[ast.expr]:
    match test:
        case ast.BoolOp(op=ast.And(), values=values):
            return values
    return [test]


def _is_off(test: ast.expr, at: Context) -> bool:
    cls = at.function.cls
    if cls is None or not isinstance(test, ast.Attribute) or dotted(test) != f"self.{test.attr}":
        return False
    value, init = at.module.stores(cls).get(test.attr, (None, None))
    if init is None or not isinstance(value, ast.Name):
        return False
    default = init.defaults().get(value.id)
    if not isinstance(default, ast.Constant) or default.value not in (False, None):
        return False
    stores = [
        part
        for part in ast.walk(cls.node)
        if isinstance(part, ast.Attribute)
        and part.attr == test.attr
        and isinstance(part.ctx, ast.Store)
    ]
    if len(stores) != 1:
        return False  # a method may switch it on
    made = list(_made(init, cls, at))
    names = [p.arg for p in init.parameters()][1:]
    return 0 < len(made) <= SITES and not any(_may_pass(call, value.id, names) for call in made)


def _made(init: Function, cls: Class, at: Context) -> Iterator[ast.Call | None]:
    """Calls that construct the class, or one derived from it; None: one that is not found."""
    classes = at.module.index.classes.values()
    derived = {other.name for other in classes if cls.name in other.bases}
    for name in (cls.name, *sorted(derived)):
        yield from (call for call, _ in at.module.index.calls.get(name, ()))
    for call, caller in at.module.call_sites(init):
        if isinstance(call.func, ast.Attribute) and caller.cls and caller.cls.name in derived:
            yield call
    for site in at.module.foreign_sites(init)[: SITES + 1]:
        other = at.module.program.load(site.file) if at.module.program is not None else None
        found = other.site(site.function, site.span) if other is not None else None
        yield found[0] if found is not None else None


def _may_pass(call: ast.Call | None, name: str, names: list[str]) -> bool:
    if call is None or any(isinstance(argument, ast.Starred) for argument in call.args):
        return True
    if name in names and names.index(name) < len(call.args):
        return True
    return any(keyword.arg in (name, None) for keyword in call.keywords)
