"""Files, classes and functions of a project, as they are written."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Any, Final, TypeVar

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
KINDS: Final = {
    "staticmethod": "static",
    "classmethod": "class",
    "property": "property",
    "cached_property": "property",
    "functools.cached_property": "property",
}


TRAINING: Final = frozenset({"backward", "manual_backward", "training_step"})
"""Methods that code calls, or a framework asks for, where a model is trained."""


Anything = TypeVar("Anything")


def referred_to_weakly(cls: Anything) -> Anything:
    """A class that stays one of Python's where this package is compiled, whose own know no such references."""
    return cls


@referred_to_weakly
class Module:
    """One Python file.

    path: its path relative to the project.  package: the dotted name of the package it lies in, as
    relative imports count it.  variables: its global names, filled by the interpreter.
    """

    __slots__ = (
        "__weakref__",
        "classes",
        "definitions",
        "executed",
        "facts",
        "functions",
        "layer_calls",
        "name",
        "package",
        "path",
        "tree",
        "variables",
    )

    def __init__(self, path: str, tree: ast.Module, name: str = "", package: str = "") -> None:
        self.path = path
        self.tree = tree
        self.name = name
        self.package = package
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        self.definitions: dict[ast.AST, Function | Class] = {}
        """Functions and classes by their node."""
        self.variables: dict[str, Any] = {}
        self.layer_calls: set[ast.AST] = set()
        """Calls of layers (``self.norm(x)``), which are written as methods are."""
        self.executed = False
        self.facts: dict[str, Any] = {}
        self._collect(tree.body)

    def release(self) -> None:
        """Take apart what refers back to the file, so that its tree goes without a garbage collector."""
        for function in self.all_functions():
            function.contexts, function.facts = {}, {}
        for one in (*self.classes, *self.definitions.values()):
            if isinstance(one, Class):
                one.release()
        self.tree = ast.Module([], [])
        self.functions, self.classes = [], []
        self.definitions, self.variables, self.facts = {}, {}, {}
        self.layer_calls = set()

    def methods_called(self) -> dict[str, set[str]]:
        """What is asked of each dotted name anywhere in the file."""
        known: dict[str, set[str]] | None = self.facts.get("methods")
        if known is None:
            known = self.facts["methods"] = {}
            for node in every(self.tree):
                if node.__class__ is ast.Attribute and (owner := dotted(node.value)) is not None:
                    known.setdefault(owner, set()).add(node.attr)
        return known

    def trains(self) -> bool:
        """Whether code of the file steps backward, or is the training step of a framework."""
        known: bool | None = self.facts.get("trains")
        if known is None:
            known = self.facts["trains"] = any(
                node.attr in TRAINING
                if isinstance(node, ast.Attribute)
                else isinstance(node, FunctionNode) and node.name == "training_step"
                for node in every(self.tree)
            )
        return known

    def _collect(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, FunctionNode):
                self.functions.append(self.function(node, node.name))
            elif isinstance(node, ast.ClassDef):
                self.classes.append(self.cls(node, node.name))
            elif isinstance(node, (ast.If, ast.Try, ast.With)):
                for block in blocks(node):
                    self._collect(block)

    def function(
        self, node: FunctionNode | ast.Lambda, qualname: str, around: Function | None = None
    ) -> Function:
        """The function that a node defines, which is no method; ``around``: that in which it stands."""
        known = self.definitions.get(node)
        if not isinstance(known, Function):
            known = self.definitions[node] = Function(node, self, None, qualname, around)
        return known

    def cls(self, node: ast.ClassDef, qualname: str) -> Class:
        """The class that a node defines."""
        known = self.definitions.get(node)
        if not isinstance(known, Class):
            known = self.definitions[node] = Class(node, self, qualname)
        return known

    def all_classes(self) -> Iterator[Class]:
        """Classes, and those inside of them, in the order of the text."""
        pending = list(reversed(self.classes))
        while pending:
            cls = pending.pop()
            yield cls
            pending += reversed(cls.inner)

    def all_functions(self) -> Iterator[Function]:
        """Functions and methods, in the order of the text."""
        yield from self.functions
        for cls in self.classes:
            yield from cls.all_methods()


class Class:
    """A class definition; ``bases`` are resolved by the interpreter.

    annotations: of attributes that its body declares.
    """

    __slots__ = (
        "annotations", "constants", "facts", "inner", "methods", "module", "name", "node",
        "qualname", "setters",
    )  # fmt: skip

    def __init__(self, node: ast.ClassDef, module: Module, qualname: str) -> None:
        self.node = node
        self.name = node.name
        self.qualname = qualname
        self.module = module
        self.methods: dict[str, Function] = {}
        self.setters: dict[str, Function] = {}
        self.constants: dict[str, ast.expr] = {}
        self.annotations: dict[str, ast.expr] = {}
        self.inner: list[Class] = []
        self.facts: dict[str, Any] = {}
        self._collect(node.body)

    def _collect(self, body: list[ast.stmt]) -> None:
        for node in body:
            if isinstance(node, FunctionNode):
                function = Function(node, self.module, self, f"{self.qualname}.{node.name}")
                if node.name not in self.methods or not _is_setter(node):
                    self.methods[node.name] = function
                elif not _deletes(node):
                    self.setters[node.name] = function
            elif isinstance(node, ast.Assign):
                for target in node.targets:
                    self._bind(target, node.value)
            elif isinstance(node, ast.AnnAssign):
                self._declare(node)
            elif isinstance(node, ast.ClassDef):
                self.inner.append(Class(node, self.module, f"{self.qualname}.{node.name}"))
            elif isinstance(node, (ast.If, ast.Try)):
                for block in blocks(node):
                    self._collect(block)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self.constants[target.id] = value
        elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            if len(target.elts) == len(value.elts):
                for one, its in zip(target.elts, value.elts, strict=True):
                    self._bind(one, its)

    def _declare(self, node: ast.AnnAssign) -> None:
        if isinstance(node.target, ast.Name):
            self.annotations[node.target.id] = node.annotation
            if node.value is not None:
                self.constants[node.target.id] = node.value

    def release(self) -> None:
        """Take apart what refers back to the class."""
        for cls in self.inner:
            cls.release()
        self.methods, self.setters, self.inner, self.facts = {}, {}, [], {}

    def all_methods(self) -> Iterator[Function]:
        yield from self.methods.values()
        yield from self.setters.values()
        for cls in self.inner:
            yield from cls.all_methods()


class Function:
    """A function or method definition, or a lambda; ``cls``: the class in whose code it stands.

    kind: ``function``, ``method``, ``static``, ``class``, ``property`` or ``lambda``.
    """

    __slots__ = (
        "around", "cls", "contexts", "facts", "kind", "module", "name", "node", "parameters", "qualname",
    )  # fmt: skip

    def __init__(
        self,
        node: FunctionNode | ast.Lambda,
        module: Module,
        cls: Class | None,
        qualname: str,
        around: Function | None = None,
    ) -> None:
        self.node = node
        self.module = module
        self.cls: Class | None = around.cls if around is not None else cls
        self.around = around
        self.qualname = qualname
        self.name = qualname.rpartition(".")[2]
        self.kind = _kind(node, cls)
        self.parameters: list[ast.arg] = [*node.args.posonlyargs, *node.args.args]
        """Positional parameters, the object of a method among them."""
        self.contexts: dict[Any, Any] = {}
        self.facts: dict[str, Any] = {}

    @property
    def body(self) -> list[ast.stmt]:
        node = self.node
        return node.body if isinstance(node, FunctionNode) else []

    @property
    def outermost(self) -> Function:
        """The function that is in no other one, and in which this one stands: mostly itself."""
        return self if self.around is None else self.around.outermost

    @property
    def is_kernel(self) -> bool:
        """Whether it is compiled for a device, and its numbers are no tensors of torch."""
        known: bool | None = self.facts.get("kernel")
        if known is None:
            made = getattr(self.node, "decorator_list", ())
            names = [dotted(one.func if isinstance(one, ast.Call) else one) for one in made]
            known = self.facts["kernel"] = not KERNELS.isdisjoint(filter(None, names))
        return known

    @property
    def begins(self) -> bool:
        """Whether it is at the top of a file and given nothing: a program, or a check by hand; or in one."""
        if self.around is not None:
            return self.around.begins
        given = self.node.args
        takes = self.parameters or given.kwonlyargs or given.vararg or given.kwarg
        return self.qualname == self.name and not takes and self.kind != "lambda"


KERNELS: Final = frozenset({
    "triton.jit", "triton.autotune", "triton.heuristics", "tilelang.jit", "cute.kernel", "cute.jit",
    "pl.kernel", "pallas.kernel", "wp.kernel", "ti.kernel", "cuda.jit", "numba.cuda.jit",
})  # fmt: skip
"""Decorators of functions that are written in another language's words."""


def _kind(node: FunctionNode | ast.Lambda, cls: Class | None) -> str:
    if isinstance(node, ast.Lambda):
        return "lambda"
    for decorator in node.decorator_list:
        found = KINDS.get(dotted(decorator) or "")
        if found is not None and (cls is not None or found == "static"):
            return found
        if cls is not None and (dotted(decorator) or "").endswith(".setter"):
            return "method"
    return "method" if cls is not None else "function"


def _is_setter(node: FunctionNode) -> bool:
    return any((dotted(d) or "").endswith((".setter", ".deleter")) for d in node.decorator_list)


def _deletes(node: FunctionNode) -> bool:
    return any((dotted(d) or "").endswith(".deleter") for d in node.decorator_list)


def spelled(node: object) -> str:
    """A tree as text, the same for the same code: what ``ast.dump`` gives, without a cycle to collect."""
    if isinstance(node, ast.AST):
        fields = [(name, getattr(node, name, None)) for name in node._fields if name != "ctx"]
        inside = ", ".join([f"{name}={spelled(value)}" for name, value in fields])
        return f"{node.__class__.__name__}({inside})"
    if isinstance(node, list):
        return f"[{', '.join(map(spelled, node))}]"
    return repr(node)


def dotted(node: ast.AST) -> str | None:
    """``a.b.c`` of nested attributes of a name."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(parts)])


def bindings(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """The targets of an assignment with what each is given: ``x = y``, ``x: T = y``, ``(x := y)``."""
    if isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
        return [(node.target, node.value)] if node.value is not None else []
    found: list[tuple[ast.expr, ast.expr]] = []
    for target in node.targets if isinstance(node, ast.Assign) else ():
        found += _paired(target, node.value)  # type: ignore[attr-defined]
    return found


def _paired(target: ast.expr, value: ast.expr) -> list[tuple[ast.expr, ast.expr]]:
    """A target with its value, each by itself in ``x, y = 1, 2``."""
    kinds = (ast.Tuple, ast.List)
    if not isinstance(target, kinds) or not isinstance(value, kinds):
        return [(target, value)]
    parts = [*target.elts, *value.elts]
    if len(target.elts) != len(value.elts) or any(isinstance(one, ast.Starred) for one in parts):
        return [(target, value)]
    return list(zip(target.elts, value.elts, strict=True))


def blocks(node: ast.stmt) -> Iterator[list[ast.stmt]]:
    """The blocks of a compound statement."""
    for name in ("body", "orelse", "finalbody"):
        block = getattr(node, name, None)
        if block:
            yield block
    for handler in getattr(node, "handlers", ()):
        yield handler.body
    for case in getattr(node, "cases", ()):
        yield case.body


class Scan:
    """What a function's code mentions, from one walk over it.

    names: names and attributes.  plain: names alone.  generator: it has a ``yield`` of its own.  stored,
    asked: attributes of its first parameter that it assigns, and that it reads.  filled: those that it adds
    items to.  stores: it assigns attributes of anything.  statements: how many.
    """

    __slots__ = ("asked", "filled", "generator", "names", "plain", "statements", "stored", "stores")

    def __init__(self, function: Function) -> None:
        self.names: set[str] = set()
        self.plain: set[str] = set()
        self.stored: set[str] = set()
        self.asked: set[str] = set()
        self.filled: set[str] = set()
        self.generator = self.stores = False
        self.statements = 0
        parameters = function.parameters
        me = parameters[0].arg if parameters else ""
        pending: list[Any] = list(function.body)
        inside: list[Any] = []
        """What functions and classes inside of this one are made of."""
        own = True
        while pending or inside:
            if not pending:
                pending, inside, own = inside, [], False
            node = pending.pop()
            kind = node.__class__
            if kind is ast.Name:
                self.names.add(node.id)
                self.plain.add(node.id)
                continue
            if kind is ast.Attribute:
                self._attribute(node, me)
            elif kind is ast.Subscript and node.ctx.__class__ is ast.Store:
                self._item(node, me)
            elif own and (kind is ast.Yield or kind is ast.YieldFrom):
                self.generator = True
            elif isinstance(node, ast.stmt):
                self.statements += 1
            _below(node, inside if own and kind in _INNER else pending)

    def _attribute(self, node: ast.Attribute, me: str) -> None:
        self.names.add(node.attr)
        mine = node.value.__class__ is ast.Name and node.value.id == me
        stores = node.ctx.__class__ is ast.Store
        self.stores |= stores
        if mine:
            (self.stored if stores else self.asked).add(node.attr)
        elif node.attr in FILLING:
            self._item(node, me)

    def _item(self, node: ast.Attribute | ast.Subscript, me: str) -> None:
        """``self.table[key] = value``, ``self.found.append(value)``"""
        of = node.value
        if of.__class__ is ast.Attribute and getattr(of.value, "id", None) == me:
            self.filled.add(of.attr)


FILLING: Final = frozenset({"append", "extend", "insert", "add", "update", "setdefault"})
"""Methods of lists, sets and dicts that add items."""


def every(node: ast.AST) -> Iterator[Any]:
    """A node and the statements and expressions below it, in no order."""
    pending: list[Any] = [node]
    while pending:
        node = pending.pop()
        yield node
        _below(node, pending)


def _below(node: Any, found: list[Any]) -> None:
    """Add the statements and expressions that a node holds."""
    kind = node.__class__
    parts = PARTS.get(kind)
    if parts is None:
        parts = PARTS[kind] = tuple(name for name in kind._fields if name not in NAMELESS)
    for name in parts:
        part = getattr(node, name, None)
        if part.__class__ is list:
            found.extend([one for one in part if isinstance(one, ast.AST)])
        elif isinstance(part, ast.AST):
            found.append(part)


NAMELESS: Final = frozenset({
    "arg", "asname", "attr", "conversion", "ctx", "id", "is_async", "kind", "level", "module", "name",
    "names", "op", "ops", "simple", "type_comment",
})  # fmt: skip
"""Fields of nodes that hold no expression and no statement."""
PARTS: Final[dict[type, tuple[str, ...]]] = {ast.Constant: ()}
"""The other fields of each type of node."""
_INNER: Final = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda})


def scan(function: Function) -> Scan:
    """What a function's code mentions."""
    known = function.facts.get("scan")
    if known is None:
        known = function.facts["scan"] = Scan(function)
    return known


def annotation(text: str) -> ast.expr | None:
    """The expression that an annotation has as a text; None where it is none.  Warns of nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
