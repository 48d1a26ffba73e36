"""How the functions of a module are entered: autocast regions, callers, what these pass."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from precision_lint.api import Evidence
from precision_lint.semantics.index import OF_CONTAINERS, Class, Function, Index, walk_function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import (
    INHERITED,
    NO_GRAD,
    OUTSIDE,
    Region,
    applied,
    decorated,
    region_of,
    without_gradient,
)
from precision_lint.semantics.values import Value
from precision_lint.semantics.withs import Withs

if TYPE_CHECKING:
    from precision_lint.semantics.half_run import HalfRun
    from precision_lint.semantics.interp import Interpreter
    from precision_lint.semantics.module import Module
    from precision_lint.semantics.program import Caller, Program

SETUP = frozenset({
    "__init__", "__post_init__", "reset_parameters", "_reset_parameters", "init_weights",
    "_init_weights", "extra_repr", "__repr__", "__str__", "__len__", "__getitem__", "state_dict",
    "load_state_dict", "from_pretrained", "configure_optimizers", "build", "from_config",
})  # fmt: skip
"""Methods that don't run under autocast or in a half model."""
OFFLINE = ("convert", "export", "onnx", "plot", "draw", "visual", "save_", "load_", "collate",
           "download", "parse_args", "preprocess", "print_", "test_")  # fmt: skip
PREPARING = ("init", "reset", "build", "setup", "create", "resize", "from_", "load", "save",
             "register")  # fmt: skip
"""How names of methods start that run before training, on float32 parameters."""
MANAGERS = 8
"""Assignments of a name that are looked at for a context manager."""
FOREIGN_CALLS = 4
"""Calls in other files whose arguments are evaluated."""
NUMERIC = ("loss", "criterion", "matcher", "cost", "softmax", "attention", "entropy", "similarity")
"""Parts of names of functions and classes that compute on a model's output."""
_NO_WITHS = Withs([])


@dataclass(frozen=True)
class Passed:
    """What a call in ``caller`` passes for a parameter; ``module`` is the one that it is in."""

    value: Value
    node: ast.expr
    call: ast.Call
    caller: Function
    module: Module
    inside: bool = False
    """Whether the call stands in an autocast region of its own function."""
    behind: Passed | None = None
    """What ``caller`` was given, if that is what it hands on."""


class Entries:
    """How functions are entered; `Module` completes it."""

    index: Index
    path: str
    program: Program | None
    _regions: dict[int, Region]
    _plausible: dict[int, bool]
    _arguments: dict[tuple[int, str], list[Passed]]
    _withs: list[tuple[ast.AST, Function]]
    _with: dict[int, tuple[Withs, list[ast.Call]]]
    _opened: dict[tuple[int, Region | None], Region | None]
    _assigned: dict[int, dict[str, list[ast.expr]]]
    _sites: dict[int, list[tuple[ast.Call, Function]]]
    half_runs: dict[int, HalfRun | None]

    def analysis(self, function: Function) -> Interpreter:
        """The interpreted function."""
        raise NotImplementedError

    def stores(self, cls: Class) -> dict[str, tuple[ast.expr, Function | None]]:
        """What is stored to each attribute of a class."""
        raise NotImplementedError

    def callee(
        self, node: ast.expr, function: Function, objects: bool = True
    ) -> tuple[Function, Module] | None:
        """The function of the project that an expression names, with its module."""
        raise NotImplementedError

    def function(self, name: str) -> Function | None:
        """The function of a qualified name in this module."""
        raise NotImplementedError

    def note(self, node: ast.expr | ast.stmt, message: str) -> Evidence:
        """A link of the evidence chain at a place in this module, for a finding in another."""
        raise NotImplementedError

    # regions inside a function

    def lexical(self, function: Function, node: ast.AST) -> Region | None:
        """The innermost region around a node inside its own function, None if there is none."""
        inside: Region | None = None
        row: int = node.lineno  # type: ignore[attr-defined]
        withs, entered = self._scopes(function)
        for statement in withs.around(row):
            for item in statement.items:
                inside = self._opened_by(item.context_expr, function, inside)
            first = statement.body[0].lineno
            for call in entered:
                if first <= call.lineno < row:
                    inside = self._opened_by(call.args[0], function, inside)
        return inside

    def managers_around(self, function: Function, node: ast.expr) -> Iterator[ast.expr]:
        """What the context managers around a node are calls of, innermost first."""
        for statement in reversed(self._scopes(function)[0].around(node.lineno)):
            for item in reversed(statement.items):
                if isinstance(item.context_expr, ast.Call):
                    yield item.context_expr.func

    def _scopes(self, function: Function) -> tuple[Withs, list[ast.Call]]:
        """The ``with`` statements of a function, and its calls of ``enter_context``."""
        if not self._with:
            for node, owner in self._withs:
                if isinstance(node, (ast.With, ast.AsyncWith)):
                    self._with.setdefault(id(owner), (Withs([]), []))[0].statements.append(node)
            for call, owner in self.index.calls.get("enter_context", ()):
                if call.args and id(owner) in self._with:
                    self._with[id(owner)][1].append(call)
        return self._with.get(id(function)) or (_NO_WITHS, [])

    def _opened_by(
        self, node: ast.expr, function: Function, around: Region | None
    ) -> Region | None:
        """The region inside of a context manager."""
        key = id(node), around
        if key not in self._opened:
            self._opened[key] = self.opened(node, function, around or INHERITED) or around
        return self._opened[key]

    def opened(
        self, node: ast.expr, function: Function, around: Region, depth: int = 4
    ) -> Region | None:
        """The region that a context manager opens; None: it leaves autocast alone.

        Followed are names and attributes that hold one, and functions of this project that return
        or open one.
        """
        region = region_of(node, self.index.names, around)
        if region is not None and self._handled_off(node, function):
            return Region("off", "float32", region.device, node=node)
        if region is not None and (region.dtype != "low" or region.state == "off"):
            return region
        if depth > 0:
            for definition, owner, module in self._managers(node, function):
                found = module.opened(definition, owner, around, depth - 1)
                if found is not None:
                    return replace(found, node=node, sure=False)
        return region

    def _handled_off(self, node: ast.expr, function: Function) -> bool:
        """Whether Accelerate's ``autocast(autocast_handler=...)`` is given one that is disabled."""
        keywords = node.keywords if isinstance(node, ast.Call) else []
        given = next((k.value for k in keywords if k.arg == "autocast_handler"), None)
        if given is None:
            return False
        made = self._bound(given.id, function) if isinstance(given, ast.Name) else []
        return any(
            isinstance(value, ast.Call)
            and any(k.arg == "enabled" and _is_false(k.value) for k in value.keywords)
            for value in (given, *(value for value, _ in made))
        )

    def _managers(
        self, node: ast.expr, function: Function
    ) -> Iterator[tuple[ast.expr, Function, Entries]]:
        """Expressions that a context manager expression stands for, with where they are."""
        if isinstance(node, ast.IfExp):
            yield node.body, function, self
            yield node.orelse, function, self
        elif isinstance(node, ast.Name):
            for value, owner in self._bound(node.id, function):
                yield value, owner, self
        elif isinstance(node, ast.Attribute):
            if dotted(node) == f"self.{node.attr}" and function.cls is not None:
                stored = self.stores(function.cls).get(node.attr)
                if stored is not None:
                    yield stored[0], stored[1] or self.index.top, self
        elif isinstance(node, ast.Call):
            for value, owner, module in self._managers(node.func, function):
                if isinstance(value, ast.Call):
                    made = applied(value, node, module.index.names)
                    if made is not None:
                        yield made, owner, module
            found = self.callee(node.func, function)
            if found is not None:
                target, module = found
                for inner in walk_function(target):
                    if isinstance(inner, ast.Return) and inner.value is not None:
                        yield inner.value, target, module
                    elif isinstance(inner, (ast.With, ast.AsyncWith)) and any(
                        isinstance(part, ast.Yield) for part in ast.walk(inner)
                    ):
                        for item in inner.items:
                            yield item.context_expr, target, module

    def _bound(self, name: str, function: Function) -> Iterator[tuple[ast.expr, Function]]:
        """What a function, or one around it, or the module binds a name to by assignment."""
        scope: Function | None = function
        while scope is not None:
            values = self._assigned_in(scope).get(name)
            if values:
                yield from ((value, scope) for value in values[:MANAGERS])
                return
            scope = scope.parent

    def _assigned_in(self, function: Function) -> dict[str, list[ast.expr]]:
        """What a function assigns to each name."""
        if id(function) not in self._assigned:
            found = self._assigned[id(function)] = {}
            for node in walk_function(function):
                if not isinstance(node, ast.Assign):
                    continue
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        found.setdefault(target.id, []).append(node.value)
        return self._assigned[id(function)]

    def decorated(self, function: Function) -> Region | None:
        """The region that a function's decorators open around its body."""
        if isinstance(function.node, ast.Module):
            return None
        return decorated(function.node, self.index.names)

    # callers

    def call_sites(self, function: Function) -> list[tuple[ast.Call, Function]]:
        """Calls in this module that plausibly reach a function."""
        if id(function) not in self._sites:
            self._sites[id(function)] = self._call_sites(function)
        return self._sites[id(function)]

    def _call_sites(self, function: Function) -> list[tuple[ast.Call, Function]]:
        calls, sites = self.index.calls, []
        if function.name == "__init__" and function.cls is not None:
            derived = self._constructed.get(function.cls.name, [])
            return [
                s for s in (*derived, *calls.get(function.cls.name, [])) if s[1] is not function
            ]
        for call, caller in calls.get(function.name, []):
            if function.is_method == isinstance(call.func, ast.Attribute):
                if self.index.runs_own(function, call, caller):
                    continue
                if function.name not in OF_CONTAINERS or self.index.owns(function, call):
                    sites.append((call, caller))
        if function.is_method and function.name in ("forward", "__call__") and function.cls:
            for name in sorted(self.index.instances.get(function.cls.name, ())):
                sites += calls.get(name, [])
        return [(call, caller) for call, caller in sites if caller is not function]

    @cached_property
    def _constructed(self) -> dict[str, list[tuple[ast.Call, Function]]]:
        """By class: calls of ``super().__init__`` and the like in the classes derived from it."""
        found: dict[str, list[tuple[ast.Call, Function]]] = {}
        for call, caller in self.index.calls.get("__init__", []):
            for base in caller.cls.bases if caller.cls is not None else ():
                found.setdefault(base.rpartition(".")[2], []).append((call, caller))
        return found

    def _container_sites(self, function: Function) -> Iterator[tuple[ast.Call, Function]]:
        """Calls of a container, or of its items, that run a module inside of it."""
        if function.name == "forward" and function.cls is not None:
            for name in sorted(self.index.contained.get(function.cls.name, ())):
                for call, caller in self.index.calls.get(name, ()):
                    if caller is not function and caller.name not in SETUP:
                        yield call, caller

    def foreign_sites(self, function: Function) -> tuple[Caller, ...]:
        """Calls in other files that lead to a function."""
        if self.program is None:
            return ()
        return self.program.callers.get((self.path, qualname(function)), ())

    def entry_region(self, function: Function) -> Region:
        """The autocast state in which a function's body starts."""
        known = self._regions.get(id(function))
        if known is not None:
            return known
        self._regions[id(function)] = INHERITED  # recursion ends here
        region = self._entry_region(function)
        self._regions[id(function)] = region
        return region

    def _entry_region(self, function: Function) -> Region:
        if isinstance(function.node, ast.Module):
            return Region("off", "float32")
        opened = decorated(function.node, self.index.names)
        if opened is None:
            return self._called_in(function)
        # what switches another device's off leaves the callers' region on
        around = self._called_in(function) if opened.state == "off" and opened.device else opened
        return around if around.on and around.device not in ("", opened.device) else opened

    def _called_in(self, function: Function) -> Region:
        """The autocast state in which a function is called, as far as all its calls agree."""
        regions: list[tuple[Region, ast.Call | None]] = []
        for call, caller in (*self.call_sites(function), *self._container_sites(function)):
            region = self.lexical(caller, call)
            if region is None:
                if isinstance(caller.node, ast.Module):
                    continue  # a script's own trial call says nothing about training
                region = OUTSIDE if self._drives(caller, call) else self.entry_region(caller)
            regions.append((region, call))
        for site in self.foreign_sites(function):
            assert self.program is not None
            regions.append((self.program.region(site, function.qualname), None))
        if regions and all(region.state == "off" for region, _ in regions):
            return regions[0][0]
        on = [(region, call) for region, call in regions if region.on]
        if not on:
            return INHERITED
        first, site_call = on[0]
        agreed = all(r.dtype == first.dtype and r.device == first.device for r, _ in on)
        return replace(
            first,
            state="on" if len(on) == len(regions) else "inherited",
            dtype=first.dtype if agreed else "low",
            sure=False,
            called=first.called or site_call,
        )

    def _drives(self, caller: Function, call: ast.Call) -> bool:
        """Whether a call is made before a function opens autocast, from which training is run."""
        drivers = self.program.drivers if self.program is not None else {}
        return call.lineno < drivers.get((self.path, qualname(caller)), 0)

    def arguments(self, function: Function, name: str) -> list[Passed]:
        """What the calls in this project pass for a parameter."""
        key = (id(function), name)
        if key not in self._arguments:
            self._arguments[key] = []  # recursion ends here
            found = []
            for call, caller in self.call_sites(function):
                found += self._passed(function, name, call, caller)
            for site in self.foreign_sites(function)[:FOREIGN_CALLS]:
                assert self.program is not None
                other = self.program.load(site.file)
                where = other.site(site.function, site.span) if other else None
                if other is not None and where is not None:
                    found += other._passed(function, name, *where)
            self._arguments[key] = found
        return self._arguments[key]

    def _passed(
        self, function: Function, name: str, call: ast.Call, caller: Function
    ) -> list[Passed]:
        """What a call in this module passes for a parameter of ``function``, if anything."""
        parameters = [p.arg for p in function.parameters()]
        if function.is_method and not function.is_static:
            parameters = parameters[1:]
        place = parameters.index(name) if name in parameters else -1
        given = next((k.value for k in call.keywords if k.arg == name), None)
        if given is None and 0 <= place < len(call.args):
            given = call.args[place]
        if given is None or isinstance(given, ast.Starred):
            return []
        value = self.analysis(caller).values.get(id(given))
        if value is None:
            return []
        region = self.lexical(caller, call)
        inside = region is not None and region.on
        return [Passed(value, given, call, caller, self, inside)]  # type: ignore[arg-type]

    def site(self, function: str, span: tuple[int, ...]) -> tuple[ast.Call, Function] | None:
        """The call at a place, and the function it is in."""
        caller = self.index.top if function == "<module>" else self.function(function)
        if caller is None:
            return None
        for node in walk_function(caller):
            if (
                isinstance(node, ast.Call)
                and (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset) == span
            ):
                return node, caller
        return None

    def ungraded(self, function: Function, depth: int = 2) -> bool:
        """Whether a function, or every call of it in the project, has no backward pass."""
        if without_gradient(function.node, self.index.names):
            return True
        if depth == 0 or function.name in ("forward", "__call__"):
            return False
        sites: list[tuple[Entries, ast.Call, Function]] = [
            (self, call, caller) for call, caller in self.call_sites(function)
        ]
        for site in self.foreign_sites(function)[: FOREIGN_CALLS + 1]:
            other = self.program.load(site.file) if self.program is not None else None
            found = other.site(site.function, site.span) if other is not None else None
            if other is None or found is None or len(sites) > FOREIGN_CALLS:
                return False
            sites.append((other, *found))
        return bool(sites) and all(
            module.in_no_grad(call, caller) or module.ungraded(caller, depth - 1)
            for module, call, caller in sites
        )

    def in_no_grad(self, call: ast.Call, function: Function) -> bool:
        """Whether a call stands in a ``with torch.no_grad()`` of its function."""
        return any(
            isinstance(item.context_expr, ast.Call)
            and self.index.names.qualify(item.context_expr.func) in NO_GRAD
            for statement in self._scopes(function)[0].around(call.lineno)
            for item in statement.items
        )

    def plausible(self, function: Function, depth: int = 5) -> bool:
        """Whether a function plausibly runs under autocast or inside a half model."""
        known = self._plausible.get(id(function))
        if known is not None:
            return known
        self._plausible[id(function)] = False
        answer = self._is_plausible(function, depth)
        self._plausible[id(function)] = answer
        return answer

    def _is_plausible(self, function: Function, depth: int) -> bool:
        name = function.name.lower()
        if isinstance(function.node, ast.Module) or function.name in SETUP:
            return False
        if any(word in name for word in OFFLINE) or name.lstrip("_").startswith(PREPARING):
            return False
        cls = function.cls
        if cls is not None and any(
            word in cls.name
            for word in (
                "Dataset",
                "DataModule",
                "Scheduler",
                "Tokenizer",
                "Test",
                "Processor",
                "Sampler",
                "Config",
            )
        ):
            return False
        if self.entry_region(function).known:
            return True
        sites = self.call_sites(function)
        if sites and all(caller.name in SETUP for _, caller in sites):
            if name not in ("forward", "__call__") and not self.foreign_sites(function):
                return False  # a helper of __init__
        if cls is not None and (cls.is_module or any(w in cls.name.lower() for w in NUMERIC)):
            return True
        if any(word in name for word in NUMERIC):
            return True
        if function.parent is not None and self.plausible(function.parent, depth):
            return True
        if depth > 0 and any(
            self.plausible(caller, depth - 1) or self.lexical(caller, call) is not None
            for call, caller in sites
        ):
            return True
        for site in self.foreign_sites(function)[:FOREIGN_CALLS] if depth > 0 else ():
            assert self.program is not None
            other = self.program.load(site.file)
            caller = other.function(site.function) if other else None
            if other is not None and caller is not None and other.plausible(caller, depth - 2):
                return True
        return False


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def qualname(function: Function) -> str:
    """A name for a function that no other of its file has, unless the code defines it twice."""
    return function.fact(_qualname)


def _qualname(function: Function) -> str:
    parts = []
    inner: Function | None = function
    while inner is not None and not isinstance(inner.node, ast.Module):
        parts.append(inner.qualname if inner.is_method else inner.name)
        inner = inner.parent
    return ".".join(reversed(parts)) or "<module>"
