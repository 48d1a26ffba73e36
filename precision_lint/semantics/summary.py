"""What other files need to know of one: its names, its functions, and the calls they make.

A summary depends on the file's bytes alone, so that it can be cached by them; whoever links
summaries (`semantics.link`) knows the paths.  An origin says where the value of an expression
comes from, as nested tuples: ``("name", "pkg.mod.f")`` an imported name, ``("here", "f")`` one of
this file, ``("parameter", "x")``, ``("self",)``, ``("super",)``, ``("attribute", origin, "x")``,
``("call", origin)``, ``("declared", class)`` an instance of the class or of one derived from it,
``("item", origin, 0)``, ``("tuple", origins)``, ``("any", origins)``.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from precision_lint.semantics import openings
from precision_lint.semantics.entries import qualname
from precision_lint.semantics.index import HANDS_BACK, WRAPS, Class, Function, Index, build
from precision_lint.semantics.module import Module
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import Region
from precision_lint.semantics.wide_backward import WideBackward

Origin = tuple[Any, ...]
Span = tuple[int, int, int, int]
"""Row, column, end row, end column of a node as `ast` counts them."""

NODES = (ast.With, ast.AsyncWith, ast.Assign, ast.AnnAssign, ast.Return, ast.For)
FOREIGN = ("torch.", "numpy.", "math.", "typing.", "collections.", "os.", "einops.", "logging.")
"""Libraries whose functions lead nowhere in the project."""
RETURNS_SELF = HANDS_BACK | {
    "compile", "to_empty", "type", "values", "items", "children", "named_children",
}  # fmt: skip
"""Methods of modules, and of their containers, that give what they are called on."""
WRAPPERS = WRAPS | {
    "ModuleList", "ModuleDict", "Sequential", "prepare", "setup", "convert_model", "enumerate",
    "reversed", "list", "tuple", "vmap",
}  # fmt: skip
"""Calls whose result is, or contains, their arguments."""
ADDERS = ("append", "extend", "insert", "add_module", "register_module")
"""Methods that put their last argument into what they are called on."""
CALLERS = ("checkpoint", "checkpoint_sequential", "_gradient_checkpointing_func", "map")
"""Calls that call their first argument."""
DEPTH = 5
SOURCES = 12
"""Assignments to one name that are looked at."""


@dataclass(frozen=True)
class Lexical:
    """The autocast region that a file's own text puts around a place."""

    state: str
    dtype: str
    device: str
    span: Span


@dataclass(frozen=True)
class Call:
    """A call that may lead to a function of the project."""

    callee: Origin
    span: Span
    region: Lexical | None
    text: str = ""
    """The callee as it is written, if it is a dotted name."""
    arguments: tuple[tuple[int | str, Origin], ...] = ()
    managers: tuple[Origin, ...] = ()
    """What the context managers around it, innermost first, are calls of, where the file opens no
    region."""


@dataclass(frozen=True)
class FunctionFacts:
    """One function: what it calls and returns, by its qualified name in the file."""

    name: str
    row: int
    owner: str
    """The class whose ``self`` it sees; empty for none."""
    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, Origin], ...]
    """What parameters are where no call says more: by their defaults and annotations."""
    is_property: bool
    region: Lexical | None
    """What its decorators open."""
    calls: tuple[Call, ...]
    returns: tuple[Origin, ...]
    trains: bool = False
    """Whether it calls ``.backward()`` of a tensor."""
    opens: int = 0
    """Row of the first ``with`` that switches autocast on; 0: there is none."""
    gives: Lexical | None = None
    """The region that its result opens, or what it yields in."""


@dataclass(frozen=True)
class ClassFacts:
    """One class: its bases, methods, and where its attributes come from."""

    name: str
    bases: tuple[Origin, ...]
    methods: tuple[str, ...]
    attributes: tuple[tuple[str, Origin, str], ...]
    """Name, origin, and the method in which it is stored, for each place that stores it."""


@dataclass(frozen=True)
class Summary:
    """What other files need to know of one."""

    imports: tuple[tuple[str, str], ...] = ()
    """Local name and what it stands for; relative imports keep their dots."""
    stars: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    """Variables of the module."""
    variables: tuple[tuple[str, Origin], ...] = ()
    """Those that may hold a class or function of the project."""
    functions: tuple[FunctionFacts, ...] = ()
    classes: tuple[ClassFacts, ...] = ()
    wide: Span | None = None
    """The first place whose backward pass is to run in float32."""


def summarise(data: bytes) -> Summary:
    """The summary of a file's bytes; an empty one if they are not Python, or nest too deeply."""
    try:
        return _Summariser(build(ast.parse(data), NODES)).summary()
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return Summary()


def span(node: ast.expr | ast.stmt) -> Span:
    return node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


class _Summariser:
    def __init__(self, index: Index) -> None:
        self.index = index
        self.module = Module(index)
        self.functions = {
            f.name for f in index.functions if f.parent is index.top and f.cls is None
        }
        self.bound: dict[int, dict[str, list[tuple[ast.expr, int | None]]]] = {}
        self.locals: dict[tuple[int, str], Origin | None] = {}
        self.nested: dict[tuple[int, str], Function] = {}
        for function in index.functions:
            self.nested.setdefault((id(function.parent), function.name), function)
        for kind in (ast.Assign, ast.AnnAssign):
            for node, function in index.candidates.get(kind, []):
                for target, value, place in _pairs(node):
                    if isinstance(target, ast.Name):
                        self._bind(function, target.id, value, place)
        for node, function in index.candidates.get(ast.For, []):
            assert isinstance(node, ast.For)
            for name, iterable in _items(node.target, node.iter):
                self._bind(function, name, iterable, None)
        for node, function in (
            *index.candidates.get(ast.With, []), *index.candidates.get(ast.AsyncWith, [])
        ):  # fmt: skip
            assert isinstance(node, (ast.With, ast.AsyncWith))
            for item in node.items:
                if isinstance(item.optional_vars, ast.Name):
                    self._bind(function, item.optional_vars.id, item.context_expr, None)
        self.added: dict[int, list[tuple[str, ast.expr]]] = {}
        for last in ADDERS:
            for call, function in index.calls.get(last, ()):
                owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else ""
                if not owner or not call.args:
                    continue
                if last in ("add_module", "register_module") and len(call.args) == 2:
                    key = call.args[0]
                    if isinstance(key, ast.Constant) and isinstance(key.value, str):
                        owner = f"{owner}.{key.value}"
                if owner.startswith("self.") and owner.count(".") == 1:
                    self.added.setdefault(id(function), []).append((owner[5:], call.args[-1]))
                elif "." not in owner and owner in self.bound.get(id(function), {}):
                    self._bind(function, owner, call.args[-1], None)

    def _bind(self, function: Function, name: str, value: ast.expr, place: int | None) -> None:
        names = self.bound.setdefault(id(function), {})
        names.setdefault(name, []).append((value, place))

    def summary(self) -> Summary:
        index = self.index
        calls: dict[int, list[Call]] = {}
        for last, sites in index.calls.items():
            for call, function in sites:
                if last in CALLERS and call.args:
                    self._note(calls, call, call.args[0], function, call.args[1:])
                self._note(calls, call, call.func, function, call.args)
        returns: dict[int, list[Origin]] = {}
        for node, function in index.candidates.get(ast.Return, []):
            assert isinstance(node, ast.Return)
            origin = self.origin(node.value, function) if node.value is not None else None
            if origin is not None and _instance(origin):
                returns.setdefault(id(function), []).append(origin)
        trains = {
            id(function)
            for call, function in index.calls.get("backward", ())
            if isinstance(call.func, ast.Attribute) and not call.args
        }
        opens, gives = openings.rows(index, self.module), openings.given(index, self.module)
        functions = []
        for function in (index.top, *index.functions):
            decorated = self.module.decorated(function)
            functions.append(
                FunctionFacts(
                    qualname(function),
                    getattr(function.node, "lineno", 1),
                    function.cls.name if function.cls else "",
                    tuple(p.arg for p in function.parameters()),
                    tuple(self._defaults(function)),
                    any(
                        (dotted(d) or "").rpartition(".")[2] in ("property", "cached_property")
                        for d in getattr(function.node, "decorator_list", ())
                    ),
                    _lexical(decorated),
                    tuple(sorted(calls.get(id(function), ()), key=lambda call: call.span)),
                    tuple(dict.fromkeys(returns.get(id(function), ()))),
                    id(function) in trains,
                    opens.get(id(function), 0),
                    _lexical(gives.get(id(function))),
                )
            )
        variables = [
            (name, origin)
            for name in self.bound.get(id(index.top), {})
            if (origin := self._local(name, index.top, DEPTH)) is not None and _instance(origin)
        ]
        return Summary(
            tuple(index.names.bound.items()),
            tuple(index.names.stars),
            tuple(self.bound.get(id(index.top), ())),
            tuple(variables),
            tuple(functions),
            tuple(self._class(cls) for cls in index.classes.values()),
            span(wide) if (wide := WideBackward.within(index)) is not None else None,
        )

    def _defaults(self, function: Function) -> Iterator[tuple[str, Origin]]:
        defaults = function.defaults()
        for parameter in function.parameters():
            default = defaults.get(parameter.arg)
            scope = function.parent or function
            found = self.origin(default, scope) if default is not None else None
            annotation = _class_of(parameter.annotation) if found is None else None
            if annotation is not None:
                kind = self.origin(annotation, scope)
                found = ("declared", kind) if kind is not None else None
            if found is not None and _instance(found):
                yield parameter.arg, found

    def _class(self, cls: Class) -> ClassFacts:
        attributes: dict[tuple[str, Origin, str], None] = {}
        for function in cls.methods.values():
            for name, value in self.added.get(id(function), ()):
                if (origin := self.origin(value, function)) is not None:
                    attributes[name, origin, function.name] = None
            for kind in (ast.Assign, ast.AnnAssign):
                for node, owner in self._stores.get(id(function), {}).get(kind, ()):
                    for target, value, place in _pairs(node):
                        path = dotted(target)
                        if path is None or not path.startswith("self.") or path.count(".") != 1:
                            continue
                        origin = self.origin(value, owner)
                        if origin is None:
                            continue
                        if place is not None:
                            origin = ("item", origin, place)
                        attributes[path[5:], origin, function.name] = None
        bases = tuple(
            origin
            for base in cls.node.bases
            if (origin := self.origin(base, self.index.top)) is not None
        )
        return ClassFacts(cls.name, bases, tuple(cls.methods), tuple(attributes))

    @property
    def _stores(self) -> dict[int, dict[type[ast.AST], list[tuple[ast.AST, Function]]]]:
        if not hasattr(self, "_by_function"):
            found: dict[int, dict[type[ast.AST], list[tuple[ast.AST, Function]]]] = {}
            for kind in (ast.Assign, ast.AnnAssign):
                for node, function in self.index.candidates.get(kind, []):
                    inner = found.setdefault(id(function), {})
                    inner.setdefault(kind, []).append((node, function))
            self._by_function = found
        return self._by_function

    def _note(
        self,
        calls: dict[int, list[Call]],
        call: ast.Call,
        callee: ast.expr,
        function: Function,
        given: Iterable[ast.expr],
    ) -> None:
        origin = self.origin(callee, function)
        if origin is None:
            return
        arguments: list[tuple[int | str, Origin]] = []
        for place, argument in enumerate(given):
            if isinstance(argument, ast.Starred):
                break
            if (found := self.origin(argument, function)) is not None and _instance(found):
                arguments.append((place, found))
        for keyword in call.keywords:
            if keyword.arg and (found := self.origin(keyword.value, function)) is not None:
                if _instance(found):
                    arguments.append((keyword.arg, found))
        region = _lexical(self.module.lexical(function, call))
        entered = self.module.managers_around(function, call) if region is None else ()
        around = tuple(o for e in entered if (o := self.origin(e, function)) is not None)
        calls.setdefault(id(function), []).append(
            Call(origin, span(call), region, dotted(callee) or "", tuple(arguments), around)
        )

    # origins

    def origin(self, node: ast.expr, function: Function, depth: int = DEPTH) -> Origin | None:
        """Where the value of an expression comes from; None: nowhere that matters."""
        if depth <= 0:
            return None
        match node:
            case ast.Name(id=name):
                return self._name(name, function, depth)
            case ast.Attribute(value=value, attr=attr):
                owner = self.origin(value, function, depth)
                if owner is None:
                    return None
                if owner[0] == "name":
                    return _pruned(("name", f"{owner[1]}.{attr}"))
                return ("attribute", owner, attr)
            case ast.Call(func=func, args=args):
                return self._called(func, args, function, depth - 1)
            case ast.Tuple(elts=parts) | ast.List(elts=parts) if len(parts) <= 8:
                items = tuple(self.origin(part, function, depth - 1) or () for part in parts)
                if not any(items):
                    return None
                return ("tuple", items)
            case ast.Dict(values=parts) if len(parts) <= 16:
                return _any(self.origin(part, function, depth - 1) for part in parts)
            case ast.Subscript(value=value):
                return self.origin(value, function, depth - 1)
            case ast.IfExp(body=body, orelse=orelse):
                return _any(self.origin(part, function, depth - 1) for part in (body, orelse))
            case ast.BoolOp(values=parts):
                return _any(self.origin(part, function, depth - 1) for part in parts)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                return self.origin(element, function, depth - 1)
            case ast.Await(value=value) | ast.NamedExpr(value=value) | ast.Starred(value=value):
                return self.origin(value, function, depth - 1)
            case _:
                return None

    def _called(
        self, func: ast.expr, args: list[ast.expr], function: Function, depth: int
    ) -> Origin | None:
        last = (dotted(func) or "").rpartition(".")[2]
        if isinstance(func, ast.Attribute):
            last = func.attr
            if last in RETURNS_SELF and not self.index.names.qualify(func):
                return self.origin(func.value, function, depth)
        if last == "super":
            return ("super",)
        if last == "partial":
            return self.origin(args[0], function, depth) if args else None
        if last in WRAPPERS:
            found = tuple(self.origin(argument, function, depth) or () for argument in args)
            if last == "prepare" and len(found) > 1:
                return ("tuple", found)
            return _any(part or None for part in found)
        callee = self.origin(func, function, depth)
        return None if callee is None else ("call", callee)

    def _name(self, name: str, function: Function, depth: int) -> Origin | None:
        scope: Function | None = function
        while scope is not None:
            if name in self.bound.get(id(scope), {}):
                found = self._local(name, scope, depth)
                if scope is function and any(p.arg == name for p in scope.parameters()):
                    return _any((found, ("parameter", name)))  # model = DDP(model)
                if found is not None or scope is not self.index.top:
                    return found  # else perhaps what stands for an import that failed
            parameters = scope.parameters()
            if any(p.arg == name for p in parameters):
                if scope.cls is not None and scope.is_method and parameters[0].arg == name:
                    return ("self",)
                return ("parameter", name) if scope is function else None
            scope = scope.parent
        home = self.index.names.bound.get(name)
        own = name in self.functions or name in self.index.classes
        if home is not None or own:
            imported = _pruned(("name", home)) if home is not None else None
            return _any((imported, ("here", name) if own else None))
        inner = self.nested.get((id(function), name))
        if inner is not None:
            return ("here", qualname(inner))
        if not self.index.names.stars or hasattr(builtins, name):
            return None
        return ("name", f"*.{name}")

    def _local(self, name: str, scope: Function, depth: int) -> Origin | None:
        key = id(scope), name
        if key in self.locals:
            return self.locals[key]
        self.locals[key] = None  # x = f(x) ends here
        sources = self.bound[id(scope)][name]
        found: list[Origin | None] = []
        for value, place in sources[:SOURCES]:
            part = self.origin(value, scope, depth - 1)
            if part is not None and place is not None:
                part = ("item", part, place)
            found.append(part)
        origin = _any(found)
        if origin is None and depth < DEPTH:
            del self.locals[key]  # asked with more depth, there may be an answer
        else:
            self.locals[key] = origin
        return origin


def _pairs(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr, int | None]]:
    """Targets of an assignment, each with its value, or the value and its place in it."""
    if isinstance(node, ast.AnnAssign):
        if node.value is not None:
            yield node.target, node.value, None
        return
    assert isinstance(node, ast.Assign)
    for target in node.targets:
        if not isinstance(target, (ast.Tuple, ast.List)):
            yield target, node.value, None
            continue
        parts = node.value.elts if isinstance(node.value, (ast.Tuple, ast.List)) else None
        for place, item in enumerate(target.elts):
            if isinstance(item, ast.Starred):
                break
            if parts is not None and len(parts) == len(target.elts):
                yield item, parts[place], None
            else:
                yield item, node.value, place


def _items(target: ast.expr, iterable: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Names that a loop binds, each with what its values are items of."""
    if isinstance(target, ast.Name):
        yield target.id, iterable
    if not isinstance(target, ast.Tuple) or not isinstance(iterable, ast.Call) or not target.elts:
        return
    last = (dotted(iterable.func) or "").rpartition(".")[2]
    if last == "enumerate" and iterable.args:
        yield from _items(target.elts[-1], iterable.args[0])
    elif last in ("items", "named_children") and isinstance(target.elts[-1], ast.Name):
        yield target.elts[-1].id, iterable
    elif last == "zip":
        for part, argument in zip(target.elts, iterable.args, strict=False):
            yield from _items(part, argument)


def _pruned(origin: Origin) -> Origin | None:
    return None if origin[1].startswith(FOREIGN) else origin


def _instance(origin: Origin) -> bool:
    """Whether an origin may lead to a class or function of the project."""
    return origin[0] != "attribute" or _instance(origin[1])


def _any(origins: Iterable[Origin | None]) -> Origin | None:
    found = tuple(dict.fromkeys(origin for origin in origins if origin))
    if not found:
        return None
    return found[0] if len(found) == 1 else ("any", found)


def _lexical(region: Region | None) -> Lexical | None:
    if region is None or region.node is None:
        return None
    return Lexical(region.state, region.dtype, region.device, span(region.node))


def _class_of(annotation: ast.expr | None) -> ast.expr | None:
    """The class that an annotation names: ``C``, ``"C"``, ``Optional[C]``, ``C | None``."""
    match annotation:
        case ast.Name() | ast.Attribute():
            return annotation
        case ast.Constant(value=str(text)) if text.replace(".", "").isidentifier():
            return ast.parse(text, mode="eval").body
        case ast.Subscript(value=ast.Name(id="Optional") | ast.Attribute(attr="Optional")):
            return _class_of(annotation.slice)
        case ast.BinOp(op=ast.BitOr(), left=left, right=ast.Constant(value=None)):
            return _class_of(left)
    return None
