"""What objects of a class hold in their attributes."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_lint.semantics import models, stores
from precision_lint.semantics.entries import FOREIGN_CALLS, Entries
from precision_lint.semantics.index import Class, Function, walk_function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.values import UNKNOWN, Value

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module


class Attributes(Entries):
    """What ``self.x`` is, by the class alone; `Module` completes it."""

    _attributes: dict[tuple[int, str], Value]
    _held: dict[tuple[int, str], Value | None]

    def constant_of(self, node: ast.expr) -> Value:
        """Value of an expression outside of any function."""
        raise NotImplementedError

    def base(self, name: str) -> tuple[Class, Module] | None:
        """The class of the project that a name means, and its module."""
        raise NotImplementedError

    def stores(self, cls: Class) -> dict[str, tuple[ast.expr, Function | None]]:
        """First value stored to each ``self.x`` in ``__init__`` or the class body."""
        return cls.fact(stores.of_class)

    def attribute(self, cls: Class, name: str, depth: int = 4) -> Value:
        """What ``self.name`` holds, as far as ``__init__`` and the class body tell."""
        key = (id(cls), name)
        if key in self._attributes:
            return self._attributes[key]
        open_value = Value("unknown", f"~self.{name}")
        self._attributes[key] = open_value
        handed = self._handed(cls, name)
        if handed is not None:
            self._attributes[key] = handed
            return handed
        stored = self.stores(cls).get(name)
        if stored is None:
            for base in cls.bases if depth else ():
                parent = self.base(base)
                if parent is not None and parent[0] is not cls:
                    value = parent[1].attribute(parent[0], name, depth - 1)
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
            value = self.constant_of(default) if default is not None else UNKNOWN
            if value.kind == "dtype":
                return value.but(tags=value.tags | {"default"})
            if value.kind == "number" and not isinstance(value.const, bool):
                return self._chosen(value.but(tags=value.tags | {"default"}), init, node.id)
            return Value("unknown", variable)
        if isinstance(node, ast.Call):
            last = (dotted(node.func) or "").rpartition(".")[2]
            if last in ("register_buffer", "Buffer", "register_parameter", "Parameter"):
                tag = "buffer" if last in ("register_buffer", "Buffer") else "parameter"
                return Value("tensor", f"~{tag}.{name}", tags=frozenset({tag, "float"}), node=node)
        value = self.constant_of(node)
        if value.kind == "number":
            return value
        if value.kind == "callable":
            return value
        if value.kind == "tensor" and value.dtype == "float32":
            return value.but(made=None, node=node, tags=value.tags | {"plain"})
        return Value("unknown", variable)

    def held(self, cls: Class, name: str) -> Value | None:
        """The half model that ``__init__`` makes, or is given by every call, for ``self.name``."""
        key = (id(cls), name)
        if key not in self._held:
            self._held[key] = None  # recursion ends here
            self._held[key] = self._half_model(cls, name)
        return self._held[key]

    def _half_model(self, cls: Class, name: str) -> Value | None:
        stored, init = self.stores(cls).get(name, (None, None))
        if stored is None or init is None:
            return None
        given = stored.id if isinstance(stored, ast.Name) else ""
        if given and init.has_parameter(given):
            values = [passed.value for passed in self.arguments(init, given)]
            if len({models.weights(v) for v in values}) == 1 and models.holds_half(values[0]):
                return values[0]
        if not any(
            isinstance(n, ast.Call) and models.may_make_half(n) for n in walk_function(init)
        ):
            return None
        value = self.analysis(init).env.get(f"self.{name}", UNKNOWN)
        return value if models.holds_half(value) else None

    def _handed(self, cls: Class, name: str) -> Value | None:
        """A float32 tensor that a method of the object gives ``__init__``, alone or in a tuple."""
        init = cls.methods.get("__init__")
        if init is None:
            return None
        for method, call, place in init.fact(_from_methods).get(f"self.{name}", ()):
            if method not in cls.methods:
                continue
            value = self.analysis(init).values.get(id(call), UNKNOWN)
            if place is not None:
                value = value.items[place] if place < len(value.items) else UNKNOWN
            if value.kind == "tensor" and value.dtype == "float32":
                return value.but(made=None, node=call, tags=value.tags | {"plain"})
        return None

    def _chosen(self, default: Value, init: Function, name: str) -> Value:
        """A number that ``__init__`` stores: the smallest that is passed, else its default."""
        numbers = [
            passed.value
            for passed in self.arguments(init, name)
            if passed.value.kind == "number" and isinstance(passed.value.const, (int, float))
        ]
        sites = len(self.call_sites(init)) + len(self.foreign_sites(init)[:FOREIGN_CALLS])
        if not numbers or len(numbers) < sites:
            numbers.append(default)
        return min(numbers, key=lambda value: value.lo)


def _from_methods(init: Function) -> dict[str, list[tuple[str, ast.Call, int | None]]]:
    """What a function binds to what a call of a method of ``self`` gives: the method, the call, and
    the place in a tuple that it gives."""
    found: dict[str, list[tuple[str, ast.Call, int | None]]] = {}
    for node in init.nodes:
        if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Call):
            continue
        owner, _, method = (dotted(node.value.func) or "").rpartition(".")
        for target in node.targets if owner == "self" else ():
            several = isinstance(target, ast.Tuple)
            bound: dict[str, int | None] = {}
            for place, part in enumerate(
                target.elts if isinstance(target, ast.Tuple) else [target]
            ):
                bound.setdefault(dotted(part) or "", place if several else None)
            for name, at in bound.items():
                found.setdefault(name, []).append((method, node.value, at))
    return found
