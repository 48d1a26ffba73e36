"""Expressions with everything that cannot run alone replaced by an input."""

from __future__ import annotations

import ast
import builtins
import functools
import re
from dataclasses import dataclass, field
from typing import Any

from precision_lint.harness.scope import Carried, Scope, clone, dotted, is_region

SAFE_BUILTINS = frozenset(dir(builtins)) - {
    "breakpoint", "compile", "delattr", "eval", "exec", "exit", "help", "quit", "__import__",
}  # fmt: skip


class WouldLose(Exception):
    """Replacing this expression would take the flagged one with it."""


@dataclass
class Free:
    """An input of a slice.

    ``name``: its parameter.  ``stands_for``: the text it replaces.  ``node``: a place in the
    original code where the analysis knows its value.  ``layer``: how the layer is built that it is.
    """

    name: str
    stands_for: str
    node: ast.expr | None = None
    layer: str | None = None
    annotation: str = ""
    wide: bool = False
    """It stays float32 in a half model: a tensor that the module does not know of."""


@functools.cache
def tensor_attributes() -> frozenset[str]:
    """Attributes and methods of tensors, lists, dicts and strings: what runs on local values."""
    import torch

    return frozenset(n for t in (torch.Tensor, list, dict, str, tuple) for n in dir(t))


@dataclass
class Needs:
    """What the statements of a slice ask for."""

    names: set[str] = field(default_factory=set)
    """Local names."""
    carried: Carried = field(default_factory=Carried)
    free: dict[str, Free] = field(default_factory=dict)


class Cutter(ast.NodeTransformer):
    """Copies expressions of one function, makes what cannot run an input, and notes the rest.

    ``kept``: expressions that must survive; ``layers``: attributes of ``self`` that are called.
    """

    def __init__(
        self,
        scope: Scope,
        cls: ast.ClassDef | None,
        locals_: set[str],
        layers: frozenset[str] = frozenset(),
    ) -> None:
        self.scope = scope
        self.cls = cls
        self.locals = locals_
        self.layers = layers
        self.kept: ast.AST | None = None
        self.needs = Needs()
        self._bound: list[set[str]] = []
        self._texts: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def expression(self, node: ast.expr, kept: ast.AST | None = None) -> ast.expr:
        """A copy of an expression that can run alone; raises `WouldLose`."""
        self.kept = kept
        self._bound = []
        try:
            copy: ast.expr = self.visit(clone(node))
            return copy
        finally:
            self.kept = None

    def forget(self) -> None:
        """Drop what is known of an expression that was given up."""
        self.needs = Needs()
        self._texts.clear()
        self._counts.clear()

    def take_back(self, free: dict[str, Free]) -> None:
        """Return to the inputs that there were before what was cut last."""
        self.needs.free = free
        self._texts = {text: name for text, name in self._texts.items() if name in free}

    def statement(self, node: ast.stmt) -> ast.stmt:
        """The same of a whole statement."""
        self.kept = None
        self._bound = []
        copy: ast.stmt = self.visit(clone(node))
        return copy

    # names

    def _is_bound(self, name: str) -> bool:
        return any(name in names for names in self._bound)

    def visit_Name(self, node: ast.Name) -> ast.expr:
        if not isinstance(node.ctx, ast.Load) or self._is_bound(node.id):
            return node
        if node.id in self.locals:
            self.needs.names.add(node.id)
            self.needs.free.setdefault(node.id, Free(node.id, node.id, _origin(node)))
            return node
        carried = self.scope.carried(node.id)
        if carried is not None:
            self.needs.carried.update(carried)
            return node
        if node.id in SAFE_BUILTINS:
            return node
        return self._cut(node, node.id)

    # what cannot run

    def _cut(self, node: ast.expr, hint: str) -> ast.expr:
        origin = _origin(node)
        if self.kept is not None and any(n is self.kept for n in ast.walk(origin)):
            raise WouldLose
        text = ast.unparse(origin)
        if text not in self._texts:
            name = self._fresh(re.sub(r"\W+", "_", hint).strip("_") or "value")
            self._texts[text] = name
            self.needs.free[name] = Free(name, text, origin)
        name = self._texts[text]
        return ast.copy_location(ast.Name(name, ast.Load()), node)

    def _fresh(self, base: str) -> str:
        taken = self.locals | set(self.needs.free)
        count = self._counts.get(base, 0) + 1
        while (name := base if count == 1 else f"{base}_{count}") in taken:
            count += 1
        self._counts[base] = count
        return name

    def visit_Call(self, node: ast.Call) -> ast.expr:
        func = node.func
        if isinstance(func, ast.Name):
            known = func.id not in self.locals and not self._is_bound(func.id)
            runs = known and (
                self.scope.runs(func)
                if self.scope.qualified(func)
                else self.scope.carried(func.id) is not None or func.id in SAFE_BUILTINS
            )
            if not runs and not self._is_bound(func.id):
                return self._cut(node, f"{func.id}_result")
        elif isinstance(func, ast.Attribute):
            layer = self._layer(func)
            if layer is not None:
                node.func = layer
                node.args = [self.visit(one) for one in node.args]
                node.keywords = [self.visit(one) for one in node.keywords]
                return node
            if self.scope.qualified(func):
                if not self.scope.runs(func):
                    return self._cut(node, f"{func.attr}_result")
            elif dotted(func).startswith("self.") or func.attr not in tensor_attributes():
                if not (dotted(func).count(".") > 1 and func.attr in tensor_attributes()):
                    return self._cut(node, f"{func.attr}_result")
            elif _is_super(func.value):
                return self._cut(node, f"super_{func.attr}")
        else:
            return self._cut(node, "call_result")
        return self.generic_visit(node)  # type: ignore[return-value]

    def _layer(self, func: ast.Attribute) -> ast.expr | None:
        """The input that stands for a layer of ``self`` which has to run."""
        if self.cls is None or dotted(func) != f"self.{func.attr}" or func.attr not in self.layers:
            return None
        built = self.scope.layer(self.cls, func.attr)
        if built is None:
            return None
        self.needs.carried.imports |= self.scope.imports_of(built)
        name = f"self_{func.attr}"
        self.needs.free[name] = Free(
            name, f"self.{func.attr}", _origin(func), layer=ast.unparse(built)
        )
        return ast.copy_location(ast.Name(name, ast.Load()), func)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        if self.scope.qualified(node):
            head = dotted(node).partition(".")[0]
            found = self.scope.carried(head)
            if found is not None and not self._is_bound(head):
                self.needs.carried.update(found)
                return node
        if dotted(node) == f"self.{node.attr}":
            value = self.scope.attribute(self.cls, node.attr) if self.cls is not None else None
            if value is not None and isinstance(node.ctx, ast.Load):
                return ast.copy_location(value, node)
            cut = self._cut(node, f"self_{node.attr}")
            if self.cls is not None and isinstance(cut, ast.Name):
                self.needs.free[cut.id].wide = self.scope.stays_wide(self.cls, node.attr)
            return cut
        if node.attr not in tensor_attributes():
            return self._cut(node, dotted(node).replace(".", "_") or node.attr)
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        key = node.slice
        path = dotted(node.value)
        if isinstance(key, ast.Constant) and isinstance(key.value, str) and path:
            return self._cut(node, f"{path}_{key.value}".replace("self.", ""))
        return self.generic_visit(node)  # type: ignore[return-value]

    def visit_Await(self, node: ast.Await) -> ast.expr:
        return self._cut(node, "awaited")

    def visit_Yield(self, node: ast.Yield) -> ast.expr:
        return self._cut(node, "received")

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.expr:
        return self._cut(node, "received")

    # names that expressions bind

    def _inside(self, node: ast.AST, names: set[str]) -> ast.AST:
        self._bound.append(names)
        try:
            return self.generic_visit(node)
        finally:
            self._bound.pop()

    def _comprehension(self, node: ast.AST) -> ast.AST:
        names = {
            one.id
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        return self._inside(node, names)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        return self._inside(
            node, {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}
        )

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = [one for one in node.decorator_list if is_region(one)]
        names = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
        names |= {
            one.id
            for one in ast.walk(node)
            if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
        }
        for argument in ast.walk(node.args):
            if isinstance(argument, ast.arg):
                argument.annotation = None
        node.returns = None
        return self._inside(node, names | {node.name})

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        assert node.value is not None
        plain = ast.Assign([node.target], node.value, lineno=node.lineno)
        found: ast.AST = self.visit(ast.copy_location(plain, node))
        return found


def _origin(node: ast.AST) -> ast.expr:
    origin: Any = getattr(node, "origin", node)
    return origin  # type: ignore[no-any-return]


def _is_super(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) == "super"
