"""Bodies of training steps with the calls of their own file put in place."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.harness.scope import clone, dotted, last_word
from precision_lint.harness.slicing import FunctionNode

Block = list[ast.stmt]


def origin(node: ast.AST) -> ast.AST:
    found: ast.AST = getattr(node, "origin", node)
    return found


def every(body: Block) -> Iterator[ast.stmt]:
    for one in body:
        for node in ast.walk(one):
            if isinstance(node, ast.stmt):
                yield node


def calls(node: ast.AST, *names: str) -> list[ast.Call]:
    """Calls of methods of these names in a node."""
    return [
        one
        for one in ast.walk(node)
        if isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in names
    ]


class InPlace:
    """Bodies with the calls of functions of the same file put in place, where these are
    statements."""

    def __init__(
        self,
        methods: dict[tuple[str, ...], tuple[FunctionNode, ast.ClassDef | None]],
        cls: ast.ClassDef | None,
    ) -> None:
        self.methods, self.cls = methods, cls

    def block(self, body: Block, depth: int) -> Block:
        found: Block = []
        for one in body:
            inner = self._called(one) if depth else None
            if inner is not None and protocol(inner.body):
                found += self._given(one, inner, self.block(inner.body, depth - 1))
                continue
            copy: ast.stmt = clone(one)  # type: ignore[assignment]
            if isinstance(copy, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            if depth and isinstance(copy, ast.If):
                found += self._defined(copy)
            for name in ("body", "orelse", "finalbody"):
                if isinstance(getattr(one, name, None), list):
                    setattr(copy, name, self.block(getattr(one, name), depth))
            found.append(copy)
        return found

    def _defined(self, statement: ast.If) -> Block:
        """Methods that a condition calls without arguments, as functions."""
        found: Block = []
        for call in ast.walk(statement.test):
            method = self._method(call) if isinstance(call, ast.Call) and not call.args else None
            if method is not None and dotted(call.func).startswith("self."):  # type: ignore[attr-defined]
                function: ast.FunctionDef = clone(method)  # type: ignore[assignment]
                function.args.args, function.decorator_list = [], []
                found.append(function)
                call.func = ast.Name(function.name, ast.Load())  # type: ignore[attr-defined]
        return found

    def _called(self, statement: ast.stmt) -> ast.FunctionDef | None:
        value = getattr(statement, "value", None)
        if not isinstance(statement, (ast.Expr, ast.Assign)) or not isinstance(value, ast.Call):
            return None
        return self._method(value)

    def _method(self, call: ast.Call) -> ast.FunctionDef | None:
        """The function of the file that a call is of."""
        path = dotted(call.func)
        if path.startswith("self.") and self.cls is not None and path.count(".") == 1:
            found = [
                f
                for p, (f, cls) in self.methods.items()
                if cls is self.cls and p[-1:] == (path[5:],)
            ]
        else:
            found = [self.methods[(path,)][0]] if (path,) in self.methods else []
        return found[0] if found and isinstance(found[0], ast.FunctionDef) else None

    @staticmethod
    def _given(statement: ast.stmt, function: ast.FunctionDef, body: Block) -> Block:
        """The body of a call with its arguments for the parameters."""
        call = statement.value  # type: ignore[attr-defined]
        names = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
        names = names[1:] if dotted(call.func).startswith("self.") else names
        given = dict(zip(names, call.args, strict=False))
        given |= {one.arg: one.value for one in call.keywords if one.arg}
        head = [assign(name, clone(value)) for name, value in given.items() if not dotted(value)]
        same = {name: dotted(value) for name, value in given.items() if dotted(value)}
        if body and isinstance(last := body[-1], ast.Return):
            value = last.value or ast.Constant(None)
            end: ast.stmt = ast.Expr(value)
            if isinstance(statement, ast.Assign):
                end = ast.Assign([clone(one) for one in statement.targets], value, lineno=0)  # type: ignore[misc]
            body = [*body[:-1], copied(end, last)]
        mark = copied(ast.Pass(), statement)  # what a call meets is what its first line meets
        mark.acts = any(map(acts, body))  # type: ignore[attr-defined]
        head = [mark, *head]
        renamed = Renamed(same)
        return [*head, *(renamed.visit(one) for one in body)]


def protocol(body: Block) -> bool:
    """Whether statements act on a scaler, an optimizer or gradients."""
    return any(
        (isinstance(node, ast.Attribute) and node.attr in ("backward", "unscale_", "grad"))
        or (isinstance(node, (ast.Name, ast.Attribute)) and "clip_grad" in last_word(node))
        or (isinstance(node, ast.Call) and last_word(node) in ("step", "update", "zero_grad"))
        for one in body
        for node in ast.walk(one)
    )


def acts(statement: ast.stmt) -> bool:
    """Whether a statement makes or changes gradients, rather than to read them."""
    names = ("backward", "step", "update", "unscale_", "zero_grad", "scale")
    head = statement.test if isinstance(statement, ast.If) else statement
    return getattr(statement, "acts", False) or bool(calls(head, *names))


def copied(node: ast.stmt, original: ast.AST) -> ast.stmt:
    node.origin = origin(original)  # type: ignore[attr-defined]
    return ast.copy_location(node, original)


def assign(name: str, value: ast.AST) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value, lineno=0)  # type: ignore[arg-type]


class Renamed(ast.NodeTransformer):
    """Chains of names and attributes by other names."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self._other(node)

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        found = self._other(node)
        return self.generic_visit(node) if found is node else found  # type: ignore[return-value]

    def _other(self, node: ast.Name | ast.Attribute) -> ast.expr:
        name = self.names.get(dotted(node))
        if name is None:
            return node
        other = ast.parse(name, mode="eval").body
        if isinstance(other, (ast.Name, ast.Attribute)):
            other.ctx = node.ctx
        other.origin = origin(node)  # type: ignore[attr-defined]
        return ast.copy_location(other, node)
