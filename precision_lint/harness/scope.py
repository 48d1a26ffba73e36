"""What the names of a module stand for when a part of it is to run alone.

A name is an import of a library that may be run, a constant, a function that needs nothing but
these, an attribute of the class that ``__init__`` makes from constants, or nothing of the kind; the
slice then makes an input of it.
"""

from __future__ import annotations

import ast
import builtins
import functools
import importlib.util
from collections.abc import Iterable
from dataclasses import dataclass, field

LIBRARIES = frozenset(
    {"torch", "math", "numpy", "sys", "functools", "itertools", "operator", "typing",
     "collections", "einops", "dataclasses", "contextlib", "random", "time"}
)  # fmt: skip
"""Libraries that a slice may import; a call of any other is replaced by its result."""
APART = (
    "torch.load", "torch.save", "torch.distributed", "torch.hub", "torch.utils", "torch.jit",
    "torch.compile", "torch.multiprocessing", "numpy.load", "numpy.save",
)  # fmt: skip
"""Parts of them that read files or start processes; a call is replaced by its result."""
REGIONS = ("autocast", "no_grad", "enable_grad", "inference_mode", "set_grad_enabled")
"""Last words of the context managers and decorators that a slice keeps."""
DEPTH = 6
"""Functions deep that a slice takes along."""
WIDTH = 8
"""What stands for a size that ``__init__`` gets from its caller."""


def last_word(node: ast.expr) -> str:
    """``autocast`` for ``torch.cuda.amp.autocast(...)``."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def is_region(node: ast.expr) -> bool:
    """Whether a context manager or decorator sets autocast or gradients."""
    return last_word(node) in REGIONS


def dotted(node: ast.expr) -> str:
    """``a.b.c`` for a chain of names and attributes, else nothing."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        head = dotted(node.value)
        return f"{head}.{node.attr}" if head else ""
    return ""


def stored(node: ast.AST) -> set[str]:
    """Names that a node binds, those of functions inside it left out."""
    found: set[str] = set()
    stack: list[ast.AST] = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(one.name)
            if one is not node:
                continue
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
        if isinstance(one, (ast.comprehension, ast.Lambda)) and one is not node:
            continue
        stack.extend(ast.iter_child_nodes(one))
    return found


def replaced(target: ast.expr) -> list[ast.Name]:
    """Names that an assignment's target replaces, rather than changes in place."""
    if isinstance(target, ast.Name):
        return [target]
    if isinstance(target, ast.Starred):
        return replaced(target.value)
    if isinstance(target, (ast.Tuple, ast.List)):
        return [name for one in target.elts for name in replaced(one)]
    return []


def called(decorator: ast.expr) -> ast.expr:
    """``torch.no_grad()`` for ``torch.no_grad``."""
    if isinstance(decorator, ast.Call):
        return decorator
    return ast.copy_location(ast.Call(decorator, [], []), decorator)


@dataclass
class Carried:
    """Module-level statements that a slice takes along, by the name they define."""

    imports: dict[str, ast.stmt] = field(default_factory=dict)
    constants: dict[str, ast.stmt] = field(default_factory=dict)
    functions: dict[str, ast.stmt] = field(default_factory=dict)

    def update(self, other: Carried) -> None:
        self.imports |= other.imports
        self.constants |= other.constants
        self.functions |= other.functions

    def statements(self, order: dict[str, int]) -> list[ast.stmt]:
        """Imports, constants and functions, each in the order of the module."""
        return [
            statement
            for group in (self.imports, self.constants, self.functions)
            for _, statement in sorted(group.items(), key=lambda item: order.get(item[0], 0))
        ]


class Scope:
    """The names of one module."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.order: dict[str, int] = {}
        self._imports: dict[str, tuple[str, ast.stmt]] = {}
        self._constants: dict[str, ast.stmt] = {}
        self._functions: dict[str, ast.FunctionDef] = {}
        self.classes: dict[str, ast.ClassDef] = {}
        self._carried: dict[str, Carried | None] = {}
        for node in ast.walk(tree):  # torch is often imported inside functions
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._note_import(node)
        for row, statement in enumerate(tree.body):
            self._note(statement, row)

    def _note_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.ImportFrom) and node.level:
            return
        for alias in node.names:
            only: ast.stmt
            if isinstance(node, ast.Import):
                local = alias.asname or alias.name.partition(".")[0]
                home, only = alias.name if alias.asname else local, ast.Import([alias])
            else:
                local, home = alias.asname or alias.name, f"{node.module}.{alias.name}"
                only = ast.ImportFrom(node.module, [alias], 0)
            if _at_hand(home.partition(".")[0]) and alias.name != "*":
                self._imports.setdefault(local, (home, only))

    def _note(self, statement: ast.stmt, row: int) -> None:
        if isinstance(statement, ast.FunctionDef):
            self._functions[statement.name] = statement
            self.order[statement.name] = row
        elif isinstance(statement, ast.ClassDef):
            self.classes[statement.name] = statement
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name):
                    self._constants[target.id] = statement
                    self.order[target.id] = row

    def qualified(self, node: ast.expr) -> str:
        """``torch.nn.functional.relu`` for ``F.relu``; nothing for what is not imported."""
        path = dotted(node)
        head, _, rest = path.partition(".")
        if head not in self._imports:
            return ""
        home = self._imports[head][0]
        return f"{home}.{rest}" if rest else home

    def runs(self, node: ast.expr) -> bool:
        """Whether a callee belongs to a library that a slice may run."""
        name = self.qualified(node)
        return bool(name) and not name.startswith(APART)

    def carried(self, name: str, depth: int = DEPTH) -> Carried | None:
        """What a slice that mentions a module-level name has to take along; None: it cannot."""
        if name in self._imports:
            return Carried(imports={name: self._imports[name][1]})
        if name not in self._carried:
            self._carried[name] = None  # a cycle cannot be carried; replaced below if there is none
            self._carried[name] = self._find(name, depth)
        return self._carried[name]

    def _find(self, name: str, depth: int) -> Carried | None:
        if not depth:
            return None
        if name in self._constants:
            statement = self._constants[name]
            value = getattr(statement, "value", None)
            if any(isinstance(n, ast.Call) and not self.runs(n.func) for n in ast.walk(statement)):
                return None
            found = self._needs(value, set(), depth) if value is not None else None
            if value is None or found is None:
                return None
            assign = ast.Assign([ast.Name(name, ast.Store())], value, lineno=1)
            found.constants[name] = assign
            return found
        if name in self._functions:
            return self._function(self._functions[name], depth)
        return None

    def _function(self, node: ast.FunctionDef, depth: int) -> Carried | None:
        kept = [one for one in node.decorator_list if is_region(one)]
        plain = ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": kept})
        ast.copy_location(plain, node)
        self._carried[node.name] = Carried()  # it may call itself
        found = self._needs(plain, _bound(node), depth)
        if found is None:
            return None
        found.functions[node.name] = plain
        return found

    def _needs(self, node: ast.AST, bound: set[str], depth: int) -> Carried | None:
        total = Carried()
        for name in loaded(node) - bound:
            if hasattr(builtins, name) and name not in self._functions:
                continue
            found = self.carried(name, depth - 1)
            if found is None:
                return None
            total.update(found)
        return total

    # attributes

    def _lineage(self, cls: ast.ClassDef, depth: int = 4) -> Iterable[ast.ClassDef]:
        yield cls
        for base in cls.bases if depth else ():
            parent = self.classes.get(dotted(base))
            if parent is not None and parent is not cls:
                yield from self._lineage(parent, depth - 1)

    def attribute(self, cls: ast.ClassDef, name: str) -> ast.expr | None:
        """What ``self.name`` is, from constants and the defaults of ``__init__``'s parameters."""
        made = self._made(cls, name)
        if made is None:
            return None
        value = _Defaults(made[1]).visit(clone(made[0]))
        return value if _is_literal(value) else None

    def layer(self, cls: ast.ClassDef, name: str) -> ast.expr | None:
        """How ``self.name`` is built if it is a layer of torch; unknown sizes become `WIDTH`."""
        made = self._made(cls, name)
        if made is None or not isinstance(made[0], ast.Call):
            return None
        value = _Defaults(made[1], WIDTH).visit(clone(made[0]))
        for call in (n for n in ast.walk(value) if isinstance(n, ast.Call)):
            if not self.qualified(call.func).startswith("torch.nn."):
                return None
        free = [n for n in loaded(value) if n not in self._imports]
        return None if free else value

    def stays_wide(self, cls: ast.ClassDef, name: str) -> bool:
        """Whether ``self.name`` is a tensor that ``half()`` leaves, no parameter or buffer."""
        made = [
            node.value
            for node in ast.walk(cls)
            if isinstance(node, ast.Assign)
            and any(dotted(target) == f"self.{name}" for target in node.targets)
        ]
        calls = [self.qualified(_first(node).func) for node in made if isinstance(node, ast.Call)]
        return any(one.startswith("torch.") and "nn." not in one for one in calls)

    def _made(self, cls: ast.ClassDef, name: str) -> tuple[ast.expr, ast.FunctionDef | None] | None:
        """The expression that an attribute is bound to, and the ``__init__`` it is in."""
        for one in self._lineage(cls):
            for statement in one.body:
                if isinstance(statement, ast.FunctionDef) and statement.name == "__init__":
                    found = [
                        n.value
                        for n in ast.walk(statement)
                        if isinstance(n, (ast.Assign, ast.AnnAssign)) and n.value is not None
                        for target in (n.targets if isinstance(n, ast.Assign) else [n.target])
                        if dotted(target) == f"self.{name}"
                    ]
                    if len(found) == 1:
                        return found[0], statement
                if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value:
                    if name in stored(statement):
                        return statement.value, None
        return None

    def imports_of(self, node: ast.AST) -> dict[str, ast.stmt]:
        """Import statements for the imported names in a node."""
        return {n: self._imports[n][1] for n in loaded(node) if n in self._imports}


def loaded(node: ast.AST) -> set[str]:
    """Names that a node reads, annotations left out."""
    found: set[str] = set()
    stack: list[ast.AST] = [node]
    while stack:
        one = stack.pop()
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load):
            found.add(one.id)
        for name, value in ast.iter_fields(one):
            if name in ("annotation", "returns", "type_params"):
                continue
            items = value if isinstance(value, list) else [value]
            stack.extend(item for item in items if isinstance(item, ast.AST))
    return found


@functools.cache
def _at_hand(library: str) -> bool:
    """Whether a slice may import a library, and can."""
    return library in LIBRARIES and importlib.util.find_spec(library) is not None


def _first(node: ast.Call) -> ast.Call:
    """``torch.eye(3)`` of ``torch.eye(3).flip(0)``."""
    while isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Call):
        node = node.func.value
    return node


def _bound(node: ast.FunctionDef) -> set[str]:
    """Every name that a function, or what is inside it, binds."""
    names = {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)}
    names |= {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store)
    }
    names |= {one.name for one in ast.walk(node) if isinstance(one, ast.FunctionDef)}
    return names | {
        one.name for one in ast.walk(node) if isinstance(one, ast.ExceptHandler) if one.name
    }


def clone(node: ast.AST) -> ast.AST:
    """A copy of a tree whose nodes know what they are copies of (``origin``)."""
    fields = {
        name: [clone(item) if isinstance(item, ast.AST) else item for item in value]
        if isinstance(value, list)
        else clone(value)
        if isinstance(value, ast.AST)
        else value
        for name, value in ast.iter_fields(node)
    }
    copy = type(node)(**fields)
    ast.copy_location(copy, node)
    copy.origin = getattr(node, "origin", node)  # type: ignore[attr-defined]
    return copy


class _Defaults(ast.NodeTransformer):
    """Parameters replaced by their defaults, those without one by a size."""

    def __init__(self, init: ast.FunctionDef | None, size: int | None = None) -> None:
        self.values: dict[str, ast.expr] = {}
        if init is None:
            return
        a = init.args
        names = [one.arg for one in (*a.posonlyargs, *a.args)]
        if size is not None:
            self.values |= {n: ast.Constant(size) for n in (*names, *(o.arg for o in a.kwonlyargs))}
        self.values |= dict(zip(names[len(names) - len(a.defaults) :], a.defaults, strict=True))
        self.values |= {
            o.arg: d for o, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d is not None
        }

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return self.values.get(node.id, node)


def _is_literal(node: ast.expr) -> bool:
    return all(
        isinstance(
            n,
            ast.Constant | ast.UnaryOp | ast.BinOp | ast.Tuple | ast.List | ast.operator
            | ast.unaryop | ast.expr_context,
        )
        for n in ast.walk(node)
    ) and not (isinstance(node, ast.Constant) and node.value is None)  # fmt: skip
