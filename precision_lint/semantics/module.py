"""What one module's code says beyond a single function: constants, attributes, callers."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from precision_lint.api import Evidence, Position
from precision_lint.semantics import models, returns
from precision_lint.semantics.attributes import Attributes
from precision_lint.semantics.effects import Effects
from precision_lint.semantics.entries import Passed, qualname
from precision_lint.semantics.index import Class, Function, Index
from precision_lint.semantics.interp import Interpreter
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import INHERITED, Region
from precision_lint.semantics.scaler import Violation
from precision_lint.semantics.typestate import Typestate
from precision_lint.semantics.values import UNKNOWN, Value
from precision_lint.semantics.withs import Withs

if TYPE_CHECKING:
    from precision_lint.semantics.half_run import HalfRun
    from precision_lint.semantics.program import Program

LIBRARIES = ("torch.", "numpy.", "math.", "einops.")
"""Homes of names that need not be looked for in the project."""


_PLACED = re.compile(r"~call\.\d+:\d+")
"""The dtype variable of what a call outside of functions gives."""


class Again(BaseException):
    """Something looked at an interpretation while it was found out whether that still holds."""


class Module(Attributes):
    """Lazily computed facts of one module.

    ``path`` is its file in ``program``; without a program nothing of other files is known.
    ``kept`` are interpretations of its functions from earlier, to be used where they still hold;
    new ones are added.
    """

    def __init__(
        self,
        index: Index,
        path: str = "",
        program: Program | None = None,
        kept: dict[Function, Interpreter] | None = None,
    ) -> None:
        self.path = path
        self.program = program
        self._kept = kept
        self.open(index)

    def open(self, index: Index) -> None:
        """Begin anew with an index, as the object that kept interpretations refer to."""
        self.index = index
        self._checked: dict[int, Interpreter] = {}
        """Those of which is being found out whether they still hold."""
        self._analyses: dict[int, Interpreter] = {}
        self._regions: dict[int, Region] = {}
        self._plausible: dict[int, bool] = {}
        self._constants: dict[str, Value] = {}
        self._attributes: dict[tuple[int, str], Value] = {}
        self._sites: dict[int, list[tuple[ast.Call, Function]]] = {}
        self.half_runs: dict[int, HalfRun | None] = {}
        self._held: dict[tuple[int, str], Value | None] = {}
        self._arguments: dict[tuple[int, str], list[Passed]] = {}
        self._qualnames: dict[str, Function] = {}
        self._names: dict[int, frozenset[str]] = {}
        self.layers: dict[tuple[int, str], str | None] = {}
        """By class and ``self.x``: the operation that calling it is."""
        self.memo: dict[Callable[..., Any], Any] = {}
        """What was found out about the module as a whole, by what found it."""
        self._qualified: dict[ast.expr, str | None] = {}
        self.texts: dict[ast.expr, str] = {}
        """How expressions outside of functions, or of other files, are written."""
        self.typestate = Typestate(self)
        self._foreign_effects: dict[int, Effects | None] = {}
        self._literals = {
            target.id: statement.value
            for statement in index.tree.body
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None
            for target in (
                statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            )
            if isinstance(target, ast.Name)
        }
        self._with: dict[int, tuple[Withs, list[ast.Call]]] = {}
        self._opened: dict[tuple[int, Region | None], Region | None] = {}
        self._assigned: dict[int, dict[str, list[ast.expr]]] = {}
        self._withs = [
            (node, function)
            for kind in (ast.With, ast.AsyncWith)
            for node, function in index.candidates.get(kind, [])
        ]

    def close(self) -> None:
        """Break the circles of what was concluded, so that it is freed without a collection."""
        path, program, kept = self.path, self.program, self._kept
        self.__dict__.clear()
        self.path, self.program, self._kept = path, program, kept

    def holds(self, function: Function) -> bool:
        """Whether a function is one of this module."""
        while function.parent is not None:
            function = function.parent
        return function is self.index.top

    def own_class(self, name: str) -> Class | None:
        """The class of this module that has a name."""
        return self.index.classes.get(name)

    def defines(self, cls: Class, name: str) -> bool:
        """Whether a class, or a base of it in this module, has a method of a name."""
        return self.index.method(cls, name) is not None

    def qualify(self, node: ast.expr) -> str | None:
        """What an expression names, by the imports of the module."""
        known = self._qualified
        if node not in known:
            known[node] = self.index.names.qualify(node)
        return known[node]

    # one function

    @cached_property
    def _changing(self) -> frozenset[int]:
        bound = self.index.names.bound.items()
        asked = {local for local, home in bound if home.endswith("is_autocast_enabled")}
        asked |= {"is_autocast_enabled", "enter_context"}
        found = {id(f) for last in asked for _, f in self.index.calls.get(last, ())}
        for node, function in self._withs:
            if id(function) not in found:
                items: list[ast.withitem] = getattr(node, "items", [])
                if any(self.opened(i.context_expr, function, INHERITED) for i in items):
                    found.add(id(function))
        return frozenset(found)

    def changes_region(self, function: Function) -> bool:
        """Whether the autocast state may change inside a function."""
        return id(function) in self._changing

    def analysis(self, function: Function) -> Interpreter:
        """The interpreted function; empty if its expressions nest too deeply to follow."""
        done = self._analyses.get(id(function))
        if done is not None:
            if done is self._checked.get(id(function)):
                raise Again
            done.exposed = done.exposed or not done.done
            return done
        kept = self._kept.pop(function, None) if self._kept else None
        if kept is not None:
            self._analyses[id(function)] = self._checked[id(function)] = kept
            holds = kept.still_holds(self)
            del self._checked[id(function)]
            if holds:
                return self._keep(kept)
        done = Interpreter(function, self)
        self._analyses[id(function)] = done
        try:
            done.run()
        except RecursionError:
            done.values.clear()
            done.events.clear()
            return done
        return self._keep(done)

    def _keep(self, done: Interpreter) -> Interpreter:
        if self._kept is not None and not done.exposed:
            self._kept[done.function] = done
        return done

    def names_in(self, function: Function) -> frozenset[str]:
        """Every name that a function mentions."""
        if id(function) not in self._names:
            self._names[id(function)] = frozenset(
                node.id for node in ast.walk(function.node) if isinstance(node, ast.Name)
            )
        return self._names[id(function)]

    def protocol(self, function: Function, scaler: str) -> list[Violation]:
        """Violations of the GradScaler protocol in a function, for one scaler."""
        return self.typestate.protocol(function, scaler)

    def foreign_effects(self, call: ast.Call, caller: Function) -> Effects | None:
        """What a function of another file does that a call reaches; None: it is not known."""
        found = self.callee(call.func, caller)
        if found is None or found[1] is self:
            return None
        target, module = found
        if id(target) not in self._foreign_effects:
            effects = module.typestate.effects(target)
            assert self.program is not None
            shown = self.program.shown(module.path)
            known = None if effects is None else Effects.of(effects.data(), shown)
            self._foreign_effects[id(target)] = known
        return self._foreign_effects[id(target)]

    # constants and attributes

    def constant(self, name: str) -> Value | None:
        """A module-level ``NAME = literal``."""
        if name in self._constants:
            return self._constants[name]
        node = self._literals.get(name)
        if node is None:
            return None
        self._constants[name] = UNKNOWN  # a cycle ends here
        value = self.constant_of(node)
        if _PLACED.fullmatch(value.dtype):
            value = value.but(dtype=f"~call.{name}")  # the same wherever it stands
        self._constants[name] = value
        return value

    def imported(self, key: str) -> Value | None:
        """A number that another file of the project, or a class, gives a name."""
        head, _, rest = key.partition(".")
        home = self.index.names.bound.get(head)
        if home is not None:
            found = self.foreign(f"{home}.{rest}" if rest else home)
            module, name = found or (None, "")
        elif rest or self.index.names.stars:
            found = None if rest else self.foreign(f"*.{head}")
            module, name = found or (self, key)
        else:
            return None
        if module is None:
            return None
        owner, _, attribute = name.rpartition(".")
        cls = module.index.classes.get(owner) if owner else None
        if owner and cls is None:
            return None
        value = module.attribute(cls, attribute) if cls else module.constant(name)
        return value if value is not None and value.kind in ("number", "dtype", "tuple") else None

    def constant_of(self, node: ast.expr) -> Value:
        """Value of an expression outside of any function."""
        try:
            return Interpreter(self.index.top, self).eval(node)
        except RecursionError:
            return UNKNOWN

    def follow(
        self,
        node: ast.Call,
        function: Function,
        arguments: Sequence[Value],
        keywords: Mapping[str, Value],
        region: Region,
        objects: bool = False,
    ) -> Value | None:
        """What a call of a function of this project gives; None: nothing is known of it.

        ``objects``: calls of objects, such as ``self.head(x)``, are followed too.
        """
        found = self.callee(node.func, function, objects)
        if found is None:
            run = None if objects else self._object(node.func, function)
            if run is None:
                return None
            return returns.of_object(*run, node, function, arguments, keywords, region)
        target, module = found
        own = isinstance(node.func, ast.Attribute) and dotted(node.func.value) == "self"
        if own and self._overridden(target):
            return None
        bound = own or (objects and target.name in ("forward", "__call__"))
        return returns.result(
            target, module, node, function, arguments, keywords, region, own, bound
        )

    def follow_object(
        self,
        made: object,
        node: ast.Call,
        function: Function,
        arguments: Sequence[Value],
        keywords: Mapping[str, Value],
        region: Region,
    ) -> Value | None:
        """What a call of an object gives, ``made`` being what it is an instance of, if known."""
        found = None
        if isinstance(made, models.Instance):
            found = made.module.method(made.cls, "forward")
        if found is None:
            return self.follow(node, function, arguments, keywords, region, objects=True)
        return returns.result(*found, node, function, arguments, keywords, region, False, True)

    def gives_layers(self, func: ast.expr, function: Function) -> bool:
        """Whether a call is of a method of this project that gives what a layer of it gives."""
        found = self.callee(func, function)
        if found is None or found[0].length > returns.LONGEST:
            return False
        method = found[1].analysis(found[0])
        return method.returned is not None and method.returned.dtype in method.of_layers

    def _overridden(self, method: Function) -> bool:
        """Whether a class of this module that is derived from the method's has its own."""
        owner = method.cls.name if method.cls else ""
        return any(
            owner in cls.bases and method.name in cls.methods for cls in self.index.classes.values()
        )

    # other files

    def callee(
        self, node: ast.expr, function: Function, objects: bool = True
    ) -> tuple[Function, Module] | None:
        """The function of the project that an expression names, with its module.

        ``objects``: calls of objects, such as ``self.head(x)``, count too.
        """
        head = (dotted(node) or "").partition(".")[0]
        if isinstance(node, ast.Name):
            local = self.index.function_named(node.id)
            if local is not None and not self._is_local(head, function):
                return local, self
        elif isinstance(node, ast.Attribute) and dotted(node) == f"self.{node.attr}":
            method = self.method(function.cls, node.attr) if function.cls else None
            return method or (self._object(node, function) if objects else None)
        qualified = self.index.names.qualify(node)
        if qualified is None and isinstance(node, ast.Name) and self.index.names.stars:
            qualified = f"*.{node.id}"
        home = self.foreign(qualified, "functions") if qualified else None
        if home is not None and not self._is_local(head, function):
            found = home[0].function(home[1])
            return None if found is None else (found, home[0])
        return self._object(node, function) if objects else None

    def _is_local(self, name: str, function: Function) -> bool:
        """Whether a name is a parameter or variable of a function, or of one around it."""
        scope: Function | None = function
        while scope is not None and scope.parent is not None:
            is_self = scope.is_method and scope.parameters()[:1]
            if name in self._assigned_in(scope) or any(
                parameter.arg == name for parameter in scope.parameters()[bool(is_self) :]
            ):
                return True
            scope = scope.parent
        return False

    def _object(self, node: ast.expr, function: Function) -> tuple[Function, Module] | None:
        """What calling an object runs, by what the project stores there."""
        text = dotted(node)
        if self.program is None or text is None:
            return None
        key = self.program.objects.get(self.path, {}).get((qualname(function), text))
        if key is None:
            return None
        module = self if key[0] == self.path else self.program.load(key[0])
        found = module.function(key[1]) if module is not None else None
        return None if module is None or found is None else (found, module)

    def foreign(self, qualified: str, kind: str = "") -> tuple[Module, str] | None:
        """The module of another file, and the name in it, that a qualified name means.

        ``kind``: what it has to be there (``functions``, ``classes``).
        """
        if self.program is None or qualified.startswith(LIBRARIES):
            return None
        key = self.program.resolve(qualified, self.path)
        if key is None or key[0] == self.path:
            return None
        names = self.program.names.get(key[0])
        if kind and names is not None and key[1] not in getattr(names, kind):
            return None  # known without reading the file
        module = self.program.load(key[0])
        return None if module is None else (module, key[1])

    def function(self, name: str) -> Function | None:
        """The function of a qualified name in this module."""
        if not self._qualnames:
            self._qualnames = {qualname(f): f for f in reversed(self.index.functions)}
        return self._qualnames.get(name)

    def base(self, name: str) -> tuple[Class, Module] | None:
        """The class that a base's name means, in this module or another of the project."""
        local = self.index.classes.get(name)
        if local is not None:
            return local, self
        head, _, rest = name.partition(".")
        home = self.index.names.bound.get(head)
        found = self.foreign(f"{home}.{rest}" if rest else home, "classes") if home else None
        cls = found[0].index.classes.get(found[1]) if found else None
        return None if found is None or cls is None else (cls, found[0])

    def method(self, cls: Class, name: str, depth: int = 6) -> tuple[Function, Module] | None:
        """A method of a class or of its bases in the project."""
        if name in cls.methods:
            return cls.methods[name], self
        for base in cls.bases if depth else ():
            parent = self.index.classes.get(base)
            if parent is not None and parent is not cls:
                found = self.method(parent, name, depth - 1)
                if found:
                    return found
        key = self.program.method((self.path, cls.name), name) if self.program else None
        if key is None or key[0] == self.path or self.program is None:
            return None
        module = self.program.load(key[0])
        method = module.function(key[1]) if module is not None else None
        return None if module is None or method is None else (method, module)

    def note(self, node: ast.expr | ast.stmt, message: str) -> Evidence:
        """A link of the evidence chain at a place in this module, for a finding in another."""
        start = Position(node.lineno, node.col_offset + 1)
        end = Position(node.end_lineno or node.lineno, (node.end_col_offset or 0) + 1)
        shown = self.program.shown(self.path) if self.program else None
        return Evidence(message, start, end, shown)
