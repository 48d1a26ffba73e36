"""What one module's code says beyond a single function: constants, attributes, callers."""

from __future__ import annotations

import ast
import contextlib

from precision_lint.semantics.index import Class, Function, Index
from precision_lint.semantics.interp import Interpreter
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import (
    INHERITED,
    Region,
    decorated,
    region_of,
)
from precision_lint.semantics.scaler import Protocol, Violation
from precision_lint.semantics.values import UNKNOWN, Value

SETUP = frozenset({
    "__init__", "__post_init__", "reset_parameters", "_reset_parameters", "init_weights",
    "_init_weights", "extra_repr", "__repr__", "__str__", "__len__", "__getitem__", "state_dict",
    "load_state_dict", "from_pretrained", "configure_optimizers", "build", "from_config",
})  # fmt: skip
"""Methods that don't run under autocast or in a half model."""
OFFLINE = ("convert", "export", "onnx", "plot", "draw", "visual", "save_", "load_", "collate",
           "download", "parse_args", "preprocess", "print_", "test_")  # fmt: skip
PREPARING = (
    "init",
    "reset",
    "build",
    "setup",
    "create",
    "resize",
    "from_",
    "load",
    "save",
    "register",
)
"""How names of methods start that run before training, on float32 parameters."""
NUMERIC = ("loss", "criterion", "matcher", "cost", "softmax", "attention", "entropy", "similarity")
"""Parts of names of functions and classes that compute on a model's output."""


class Module:
    """Lazily computed facts of one module."""

    def __init__(self, index: Index) -> None:
        self.index = index
        self._analyses: dict[int, Interpreter] = {}
        self._regions: dict[int, Region] = {}
        self._plausible: dict[int, bool] = {}
        self._constants: dict[str, Value] = {}
        self._attributes: dict[tuple[int, str], Value] = {}
        self._stores: dict[int, dict[str, tuple[ast.expr, Function | None]]] = {}
        self._arguments: dict[tuple[int, str], list[tuple[Value, ast.Call]]] = {}
        self._names: dict[int, frozenset[str]] = {}
        self._protocols: dict[tuple[int, str], list[Violation]] = {}
        self._literals = {
            target.id: statement.value
            for statement in index.tree.body
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None
            for target in (
                statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            )
            if isinstance(target, ast.Name)
        }
        self._withs = [
            (node, function)
            for kind in (ast.With, ast.AsyncWith)
            for node, function in index.candidates.get(kind, [])
        ]

    # one function

    def analysis(self, function: Function) -> Interpreter:
        """The interpreted function; empty if its expressions nest too deeply to follow."""
        done = self._analyses.get(id(function))
        if done is None:
            done = Interpreter(function, self)
            self._analyses[id(function)] = done
            try:
                done.run()
            except RecursionError:
                done.values.clear()
                done.events.clear()
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
        key = (id(function), scaler)
        if key not in self._protocols:
            self._protocols[key] = []
            with contextlib.suppress(RecursionError):
                self._protocols[key] = Protocol(function, self, scaler).run()
        return self._protocols[key]

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
        self._constants[name] = value
        return value

    def constant_of(self, node: ast.expr) -> Value:
        """Value of an expression outside of any function."""
        try:
            return Interpreter(self.index.top, self).eval(node)
        except RecursionError:
            return UNKNOWN

    def stores(self, cls: Class) -> dict[str, tuple[ast.expr, Function | None]]:
        """First value stored to each ``self.x`` in ``__init__`` or the class body."""
        found = self._stores.get(id(cls))
        if found is not None:
            return found
        found = {}
        for statement in cls.node.body:
            if isinstance(statement, (ast.Assign, ast.AnnAssign)) and statement.value is not None:
                targets = (
                    statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                )
                for target in targets:
                    if isinstance(target, ast.Name):
                        found[target.id] = (statement.value, None)
        init = cls.methods.get("__init__")
        for node in ast.walk(init.node) if init else ():
            if isinstance(node, (ast.Assign, ast.AnnAssign)) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if (
                        isinstance(target, ast.Attribute)
                        and isinstance(target.value, ast.Name)
                        and target.value.id == "self"
                    ):
                        found.setdefault(target.attr, (node.value, init))
            elif (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("register_buffer", "register_parameter")
                and len(node.args) > 1
                and isinstance(node.args[0], ast.Constant)
                and isinstance(node.args[0].value, str)
            ):
                found.setdefault(node.args[0].value, (node, init))
        self._stores[id(cls)] = found
        return found

    def attribute(self, cls: Class, name: str, depth: int = 4) -> Value:
        """What ``self.name`` holds, as far as ``__init__`` and the class body tell."""
        key = (id(cls), name)
        if key in self._attributes:
            return self._attributes[key]
        open_value = Value("unknown", f"~self.{name}")
        self._attributes[key] = open_value
        stored = self.stores(cls).get(name)
        if stored is None:
            for base in cls.bases:
                parent = self.index.classes.get(base)
                if parent is not None and parent is not cls and depth:
                    value = self.attribute(parent, name, depth - 1)
                    self._attributes[key] = value
                    return value
            return open_value
        node, init = stored
        value = self._stored(name, node, init)
        self._attributes[key] = value
        return value

    def _stored(self, name: str, node: ast.expr, init: Function | None) -> Value:
        variable = f"~self.{name}"
        if isinstance(node, ast.Name) and init is not None:
            default = init.defaults().get(node.id)
            if default is not None:
                value = self.constant_of(default)
                if value.kind == "dtype" or (
                    value.kind == "number" and not isinstance(value.const, bool)
                ):
                    return value.but(tags=value.tags | {"default"})
            return Value("unknown", variable)
        if isinstance(node, ast.Call):
            last = (dotted(node.func) or "").rpartition(".")[2]
            if last in ("register_buffer", "register_parameter", "Parameter"):
                tag = "buffer" if last == "register_buffer" else "parameter"
                return Value("tensor", f"~{tag}.{name}", tags=frozenset({tag, "float"}), node=node)
        value = self.constant_of(node)
        if value.kind == "number":
            return value
        if value.kind == "callable":
            return value
        if value.kind == "tensor" and value.dtype == "float32":
            return value.but(made=None, node=node, tags=value.tags | {"plain"})
        return Value("unknown", variable)

    # autocast state at a function's entry

    def lexical(self, function: Function, node: ast.AST) -> Region | None:
        """The innermost region around a node inside its own function, None if there is none."""
        inside: Region | None = None
        for statement, owner in self._withs:
            if owner is not function or not isinstance(statement, (ast.With, ast.AsyncWith)):
                continue
            first, last = statement.body[0].lineno, statement.end_lineno or 0
            if first <= node.lineno <= last:  # type: ignore[attr-defined]
                for item in statement.items:
                    opened = region_of(item.context_expr, self.index.names, inside or INHERITED)
                    inside = opened or inside
        return inside

    def call_sites(self, function: Function) -> list[tuple[ast.Call, Function]]:
        """Calls in this module that plausibly reach a function."""
        calls, sites = self.index.calls, []
        for call, caller in calls.get(function.name, []):
            if function.is_method == isinstance(call.func, ast.Attribute):
                sites.append((call, caller))
        if function.is_method and function.name in ("forward", "__call__") and function.cls:
            for name in self.index.instances.get(function.cls.name, ()):
                sites += calls.get(name, [])
        return [(call, caller) for call, caller in sites if caller is not function]

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
        if opened is not None:
            return opened
        regions = []
        for call, caller in self.call_sites(function):
            region = self.lexical(caller, call)
            if region is None:
                if isinstance(caller.node, ast.Module):
                    continue  # a script's own trial call says nothing about training
                region = self.entry_region(caller)
            regions.append((region, call))
        if regions and all(region.state == "off" for region, _ in regions):
            return regions[0][0]
        on = [(region, call) for region, call in regions if region.on]
        if not on:
            return INHERITED
        first, call = on[0]
        agreed = all(r.dtype == first.dtype and r.device == first.device for r, _ in on)
        state = "on" if len(on) == len(regions) else "inherited"
        dtype = first.dtype if agreed else "low"
        return Region(state, dtype, first.device, False, first.node, first.called or call)

    def arguments(self, function: Function, name: str) -> list[tuple[Value, ast.Call]]:
        """What the calls in this module pass for a parameter."""
        key = (id(function), name)
        if key not in self._arguments:
            self._arguments[key] = []  # recursion ends here
            found = []
            parameters = [p.arg for p in function.parameters()]
            if function.is_method:
                parameters = parameters[1:]
            place = parameters.index(name) if name in parameters else -1
            for call, caller in self.call_sites(function):
                given = next((k.value for k in call.keywords if k.arg == name), None)
                if given is None and 0 <= place < len(call.args):
                    given = call.args[place]
                if given is not None and not isinstance(given, ast.Starred):
                    value = self.analysis(caller).values.get(id(given))
                    if value is not None:
                        found.append((value, call))
            self._arguments[key] = found
        return self._arguments[key]

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
        if self.entry_region(function).node is not None:
            return True
        if cls is not None and (cls.is_module or any(w in cls.name.lower() for w in NUMERIC)):
            return True
        if any(word in name for word in NUMERIC):
            return True
        if function.parent is not None and self.plausible(function.parent, depth):
            return True
        return depth > 0 and any(
            self.plausible(caller, depth - 1) or self.lexical(caller, call) is not None
            for call, caller in self.call_sites(function)
        )
