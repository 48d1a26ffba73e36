"""One pass over a module's ``ast``: names, classes, functions, calls, and rule candidates."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property

from precision_lint.semantics.facts import Text
from precision_lint.semantics.names import Names, dotted

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
MODULE_BASES = ("Module", "LightningModule", "Model", "Loss", "Criterion", "Head", "Layer", "Block")
"""Last words of base classes by which a class is believed to be a ``torch.nn.Module``."""

HANDS_BACK = frozenset({
    "to", "cuda", "cpu", "eval", "train", "half", "float", "bfloat16", "double", "requires_grad_",
})  # fmt: skip
"""Methods of modules that give the module."""
OF_CONTAINERS = frozenset(name for kind in (dict, list, set, str) for name in dir(kind))
"""Names of methods that built-in types have as well."""
WRAPS = frozenset({
    "DataParallel", "DistributedDataParallel", "DDP", "FSDP", "FullyShardedDataParallel", "compile",
    "script", "convert_sync_batchnorm",
})  # fmt: skip
"""Calls that give a module which runs their first argument."""
CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict"})
"""Modules that hold others."""


@dataclass(eq=False)
class Class(Text):
    """A class of the module; ``bases`` are qualified or local names."""

    node: ast.ClassDef
    bases: tuple[str, ...]
    methods: dict[str, Function] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.node.name

    def close(self) -> None:
        """Break the circles with its methods, so that both are freed without a collection."""
        self.methods.clear()
        self._facts.clear()

    @cached_property
    def members(self) -> frozenset[int]:
        """The statements of its body, by id."""
        return frozenset(map(id, self.node.body))

    @property
    def is_module(self) -> bool:
        """Whether it is, or plausibly is, a ``torch.nn.Module``."""
        return "forward" in self.methods or any(
            base.rpartition(".")[2].endswith(MODULE_BASES) for base in self.bases
        )


@dataclass(eq=False)
class Function(Text):
    """A function or method, or the module's own body (``node`` is then the ``ast.Module``)."""

    node: FunctionNode | ast.Module
    cls: Class | None
    parent: Function | None

    @property
    def name(self) -> str:
        return self.node.name if not isinstance(self.node, ast.Module) else "<module>"

    @property
    def qualname(self) -> str:
        return f"{self.cls.name}.{self.name}" if self.cls else self.name

    @property
    def is_method(self) -> bool:
        return self.cls is not None and id(self.node) in self.cls.members

    @property
    def row(self) -> int:
        """The row that it begins in; 0 for the module's own body."""
        row: int = getattr(self.node, "lineno", 0)
        return row

    @property
    def length(self) -> int:
        """Rows."""
        return (getattr(self.node, "end_lineno", None) or 0) - self.row

    def given_by(self, call: ast.expr) -> str:
        """The dtype variable of what a call in it gives: the same wherever the function stands."""
        of_module = "" if self.row else "."
        return f"~call{of_module}{call.lineno - self.row}:{call.col_offset}"

    @property
    def is_static(self) -> bool:
        return self._decorated_with("staticmethod")

    @property
    def is_classmethod(self) -> bool:
        return self._decorated_with("classmethod")

    def _decorated_with(self, name: str) -> bool:
        return not isinstance(self.node, ast.Module) and any(
            isinstance(d, ast.Name) and d.id == name for d in self.node.decorator_list
        )

    @cached_property
    def mentions(self) -> dict[str, bool]:
        """By regular expression whether its text has it."""
        return {}

    @cached_property
    def texts(self) -> dict[ast.expr, str]:
        """How expressions of it are written."""
        return {}

    @cached_property
    def is_generator(self) -> bool:
        return any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in walk_function(self))

    @property
    def nodes(self) -> list[ast.AST]:
        """Every node of its own body in the order of the text, outer ones first."""
        return self._walked[0]

    @property
    def parents(self) -> dict[int, ast.AST]:
        """Parent of every node of its own body, by id."""
        return self._walked[1]

    @cached_property
    def _walked(self) -> tuple[list[ast.AST], dict[int, ast.AST]]:
        found: list[ast.AST] = []
        parents: dict[int, ast.AST] = {id(statement): self.node for statement in self.node.body}
        stack: list[ast.AST] = list(reversed(self.node.body))
        while stack:
            node = stack.pop()
            found.append(node)
            kind = type(node)
            if kind is ast.Name or kind is ast.Constant:
                continue
            children = _children(node)
            for child in children:
                parents[id(child)] = node
            if kind not in _SCOPES:
                stack += reversed(children)
        return found, parents

    @cached_property
    def assigned(self) -> dict[str, list[ast.expr]]:
        """What its own body assigns to each dotted name, in the order of the text.

        A name that gets a part of a value, or what a manager gives, is listed with the whole, but
        with its own part of a tuple that is written out.
        """
        found: dict[str, list[ast.expr]] = {}
        for node in self.nodes:
            match node:
                case ast.Assign(targets=targets, value=value):
                    _bind(targets, value, found)
                case (
                    ast.AnnAssign(target=target, value=ast.expr() as value)
                    | ast.AugAssign(target=target, value=value)
                    | ast.NamedExpr(target=target, value=value)
                    | ast.withitem(optional_vars=ast.expr() as target, context_expr=value)
                ):
                    _bind([target], value, found)
        return found

    @cached_property
    def looped(self) -> dict[str, ast.Name]:
        """Where loops of its own body bind a name first."""
        found: dict[str, ast.Name] = {}
        for node in self.nodes:
            if isinstance(node, (ast.For, ast.AsyncFor, ast.comprehension)):
                for part in ast.walk(node.target):
                    if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                        found.setdefault(part.id, part)
        return found

    @cached_property
    def names(self) -> dict[str, list[ast.Name]]:
        """Where it, or a function inside it, mentions each name."""
        found: dict[str, list[ast.Name]] = {}
        for node in ast.walk(self.node):
            if isinstance(node, ast.Name):
                found.setdefault(node.id, []).append(node)
        return found

    def parameters(self) -> list[ast.arg]:
        if isinstance(self.node, ast.Module):
            return []
        a = self.node.args
        rest = [x for x in (a.vararg, a.kwarg) if x is not None]
        return [*a.posonlyargs, *a.args, *a.kwonlyargs, *rest]

    def has_parameter(self, name: str) -> bool:
        return any(parameter.arg == name for parameter in self.parameters())

    def defaults(self) -> dict[str, ast.expr]:
        if isinstance(self.node, ast.Module):
            return {}
        a = self.node.args
        positional = [*a.posonlyargs, *a.args]
        found = {
            p.arg: d
            for p, d in zip(
                positional[len(positional) - len(a.defaults) :], a.defaults, strict=True
            )
        }
        found |= {p.arg: d for p, d in zip(a.kwonlyargs, a.kw_defaults, strict=True) if d}
        return found


@dataclass(eq=False)
class Index:
    """Everything found in one pass.

    ``calls``: every call by the last component of its callee, with the function around it.
    ``candidates``: nodes whose type a rule asked for (``ast.MatMult`` gives the BinOp).
    """

    tree: ast.Module
    names: Names
    top: Function
    functions: list[Function]
    classes: dict[str, Class]
    calls: dict[str, list[tuple[ast.Call, Function]]]
    candidates: dict[type[ast.AST], list[tuple[ast.AST, Function]]]
    instances: dict[str, set[str]]
    """Last components of the names that ``x = ClassName(...)`` binds, by class name."""
    aliases: list[ast.Assign] = field(default_factory=list)
    """Assignments at module level that may give an imported thing another name."""

    def add(self, part: Index) -> None:
        """Take over what was found in other statements of the module."""
        self.names.bound |= part.names.bound
        self.names.stars += part.names.stars
        self.functions += part.functions
        for name, cls in part.classes.items():
            self.classes.setdefault(name, cls)
        for last, calls in part.calls.items():
            self.calls.setdefault(last, []).extend(calls)
        for kind, found in part.candidates.items():
            self.candidates.setdefault(kind, []).extend(found)
        for name, bound in part.instances.items():
            self.instances.setdefault(name, set()).update(bound)
        self.aliases += part.aliases

    def resolve_aliases(self) -> None:
        """Let names that are bound to imported things stand for these."""
        for assign in self.aliases:
            target = assign.targets[0]
            if len(assign.targets) == 1 and isinstance(target, ast.Name):
                self.names.add_alias(target.id, assign.value)

    def function_named(self, name: str, around: Function | None = None) -> Function | None:
        """The function or method that ``name`` or ``self.name`` calls inside ``around``."""
        if name.startswith("self."):
            if around is None or around.cls is None:
                return None
            return self.method(around.cls, name[5:])
        return self._plain.get(name)

    def owns(self, function: Function, call: ast.Call) -> bool:
        """Whether what a method is called of is, by its name, an object of the method's class."""
        owner = getattr(call.func, "value", None)
        if isinstance(owner, ast.Call):
            return dotted(owner.func) == "super"
        last = (dotted(owner) or "").rpartition(".")[2] if isinstance(owner, ast.expr) else ""
        made = self.instances.get(function.cls.name, ()) if function.cls else ()
        return last in ("self", "cls") or last in made

    def runs_own(self, function: Function, call: ast.Call, caller: Function) -> bool:
        """Whether a call of ``self.f`` runs the ``f`` of its own class, which is another's."""
        cls = caller.cls
        if cls is None or function.cls is None or cls is function.cls:
            return False
        derived = cls.name in function.cls.bases
        own = dotted(call.func) == f"self.{function.name}" and function.name in cls.methods
        return own and not derived

    @cached_property
    def contained(self) -> dict[str, set[str]]:
        """Names by which modules inside of containers are called, by class name: the container's,
        and those of loops over it."""
        held: dict[str, set[str]] = {}
        if not CONTAINERS & self.calls.keys():
            return held
        for call, _ in self.calls.get("append", ()):
            if call.args and isinstance(call.func, ast.Attribute):
                self._put(call.func.value, call.args[0], held)
        makers = {id(f): f for name in CONTAINERS for _, f in self.calls.get(name, ())}.values()
        for function in makers:
            for node in function.nodes:
                if isinstance(node, ast.Return) and node.value is not None:
                    self._put(ast.Name(function.name), node.value, held)
                elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    for target in node.targets if _made(node.value) in CONTAINERS else ():
                        self._put(target, node.value, held)
        for function in {id(c): f for name in held for c, f in self.calls.get(name, ())}.values():
            for node in function.nodes:
                if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
                    for target in node.targets:
                        self._put(target, node.value.func, held)
        for function in self.functions if held else ():
            for node in function.nodes:
                if isinstance(node, (ast.For, ast.comprehension)):
                    for item in ast.walk(node.target):
                        if isinstance(item, ast.Name):
                            self._put(item, node.iter, held)
        found: dict[str, set[str]] = {}
        for name, classes in held.items():
            for cls in classes:
                found.setdefault(cls, set()).add(name)
        return found

    def _put(self, target: ast.expr, value: ast.expr, held: dict[str, set[str]]) -> None:
        """Note the classes of what a value is made of, or of the containers that it names."""
        name = (dotted(target) or "").rpartition(".")[2]
        for part in ast.walk(value):
            if not isinstance(part, (ast.Name, ast.Attribute)):
                continue
            last = part.attr if isinstance(part, ast.Attribute) else part.id
            classes = {last} if last in self.classes else held.get(last, set())
            if name and classes and last != name:
                held.setdefault(name, set()).update(classes)

    @cached_property
    def _plain(self) -> dict[str, Function]:
        """Functions outside of classes by name, the first found of several."""
        return {f.name: f for f in reversed(self.functions) if f.cls is None}

    def method(self, cls: Class, name: str, depth: int = 4) -> Function | None:
        """A method of a class or of its bases in this module."""
        if name in cls.methods:
            return cls.methods[name]
        for base in cls.bases:
            parent = self.classes.get(base)
            if parent is not None and parent is not cls and depth:
                found = self.method(parent, name, depth - 1)
                if found:
                    return found
        return None


def _made(call: ast.Call) -> str:
    """Last name of what is constructed, behind ``.to(device)`` and its like and behind wrappers."""
    while True:
        func = call.func
        if isinstance(func, ast.Attribute) and func.attr in HANDS_BACK:
            if isinstance(func.value, ast.Call):
                call = func.value
                continue
        last = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
        inner = call.args[0] if call.args else None
        if last not in WRAPS or not isinstance(inner, ast.Call):
            return last
        call = inner


def build(tree: ast.Module, nodes: Collection[type[ast.AST]]) -> Index:
    """Walk a module once; ``nodes`` are the types that rules want to see."""
    index = Index(tree, Names(), Function(tree, None, None), [], {}, {}, {}, {})
    collect(tree, index, nodes)
    index.resolve_aliases()
    return index


def collect(start: ast.AST, index: Index, nodes: Collection[type[ast.AST]]) -> None:
    """Note in an index what a module, or a statement of it, holds; its last statement first."""
    names, top = index.names, index.top
    wanted = frozenset(nodes)
    # children first in a stack of (node, function, class) keeps this pass free of recursion
    stack: list[tuple[ast.AST, Function, Class | None]] = [(start, top, None)]
    push = stack.append
    while stack:
        node, function, cls = stack.pop()
        kind = type(node)
        if kind is ast.Call:
            callee = node.func  # type: ignore[attr-defined]
            last = (
                callee.attr
                if type(callee) is ast.Attribute
                else callee.id
                if type(callee) is ast.Name
                else ""
            )
            index.calls.setdefault(last, []).append((node, function))  # type: ignore[arg-type]
        elif kind is ast.BinOp:
            operator = type(node.op)  # type: ignore[attr-defined]
            if operator in wanted:
                index.candidates.setdefault(operator, []).append((node, function))
        elif kind is ast.Import or kind is ast.ImportFrom:
            names.add_import(node)  # type: ignore[arg-type]
            continue
        elif kind is ast.ClassDef:
            bases = tuple(b for b in map(_base, node.bases) if b)  # type: ignore[attr-defined]
            cls = Class(node, bases)  # type: ignore[arg-type]
            index.classes.setdefault(cls.name, cls)
        elif kind is ast.FunctionDef or kind is ast.AsyncFunctionDef:
            # a closure inside a method still sees the class through self
            inner = Function(node, cls or function.cls, function)  # type: ignore[arg-type]
            if cls is not None:
                cls.methods.setdefault(inner.name, inner)
            index.functions.append(inner)
            if kind in wanted:
                index.candidates.setdefault(kind, []).append((node, function))
            for decorator in node.decorator_list:  # type: ignore[attr-defined]
                push((decorator, function, None))
            push((node.args, function, None))  # type: ignore[attr-defined]
            for statement in node.body:  # type: ignore[attr-defined]
                push((statement, inner, None))
            continue
        elif kind is ast.Assign:
            value = node.value  # type: ignore[attr-defined]
            if type(value) is ast.Call:
                made = _made(value)
                for target in node.targets:  # type: ignore[attr-defined]
                    bound = (dotted(target) or "").rpartition(".")[2]
                    if bound:
                        index.instances.setdefault(made, set()).add(bound)
            elif type(value) is ast.Tuple and type(node.targets[0]) is ast.Tuple:  # type: ignore[attr-defined]
                for place, item in zip(node.targets[0].elts, value.elts, strict=False):  # type: ignore[attr-defined]
                    bound = (dotted(place) or "").rpartition(".")[2]
                    if bound and type(item) is ast.Call:
                        made = _made(item)
                        index.instances.setdefault(made, set()).add(bound)
            elif function is top and cls is None:
                index.aliases.append(node)  # type: ignore[arg-type]
        if kind in wanted and not issubclass(kind, ast.operator):
            index.candidates.setdefault(kind, []).append((node, function))
        inside = cls if kind is ast.ClassDef else None
        for name in _fields(kind):
            value = getattr(node, name, None)
            if type(value) is list:
                for item in value:
                    if isinstance(item, ast.AST) and type(item) not in _LEAVES:
                        push((item, function, inside))
            elif isinstance(value, ast.AST) and type(value) not in _LEAVES:
                push((value, function, inside))


_LEAVES = frozenset({ast.Load, ast.Store, ast.Del, ast.Constant, ast.Name})
_SCOPES = frozenset({ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda})


_PLAIN = frozenset({"ctx", "op", "ops", "id", "attr", "arg", "type_comment"})
_FIELDS: dict[type[ast.AST], tuple[str, ...]] = {}
"""The fields of types of nodes that may hold others, but for what kind of node it is."""


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    known = _FIELDS.get(kind)
    if known is None:
        known = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _PLAIN)
    return known


def _children(node: ast.AST) -> list[ast.AST]:
    """The nodes right below one, without those that only say what kind of node it is."""
    found: list[ast.AST] = []
    for name in _fields(type(node)):
        value = getattr(node, name, None)
        if type(value) is list:
            found += [item for item in value if isinstance(item, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


def _bind(targets: Iterable[ast.expr], value: ast.expr, found: dict[str, list[ast.expr]]) -> None:
    for target in targets:
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            if len(parts) == len(target.elts):
                for inner, part in zip(target.elts, parts, strict=True):
                    _bind([inner], part, found)
            else:
                _bind(target.elts, value, found)
        elif isinstance(target, ast.Starred):
            _bind([target.value], value, found)
        elif (name := dotted(target)) is not None:
            found.setdefault(name, []).append(value)


def _base(node: ast.expr) -> str | None:
    return dotted(node.value if isinstance(node, ast.Subscript) else node)


def walk_function(function: Function) -> Iterator[ast.AST]:
    """Every node of a function's own body, nested functions and classes left out."""
    return iter(function.nodes)
