"""The class of a parameter: what the file gives it, or the only one that fits what is done with it."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.declared import last
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.objects import ancestry, find_method, is_module
from precision_lint.dataflow.regions import speaks
from precision_lint.domains.values import Instance, Value
from precision_lint.syntax.program import Class, Function, Module, every, scan

USUAL: Final = frozenset({
    "step", "backward", "update", "scale", "zero_grad", "state_dict", "load_state_dict", "forward",
    "train", "eval", "to", "cuda", "cpu", "parameters", "named_parameters", "modules", "device", "dtype",
    "get", "items", "keys", "values", "append", "config", "name", "shape", "encode", "decode", "sample",
    "generate", "fit", "predict", "close", "write", "read", "log", "save", "load", "reset", "add",
})  # fmt: skip
"""Names that objects of many classes have."""


def only_class(it: Interpreter, function: Function, name: str) -> Class | None:
    """The one class of the file that has all that is asked of a parameter, by names of its own."""
    if function.cls is not None and name in ("self", "cls"):
        return None
    classes = function.module.classes
    anywhere = function.module.methods_called().get(name, set())
    found = [cls for cls in classes if _has(it, cls, anywhere)] if len(anywhere) > 1 else []
    if not found and classes:
        others = [cls for cls in classes if cls is not function.cls]
        here = _uses(function.facts, function.node, "").asked.get(name, set())
        kept = _used(function, name)[1] - OF_MODULES
        found = [one for one in others if _has(it, one, kept if is_module(it, one) else here)]
    return found[0] if len(found) == 1 else None


def note_given(
    it: Interpreter, cls: Class, init: Function, arguments: list[Value], keywords: dict[str, Value]
) -> None:
    """Note of which classes objects are that a class is built with, such as its settings."""
    given: dict[str, set[Class]] = cls.facts.setdefault("given", {})
    names = [one.arg for one in init.parameters[1:]]
    for name, value in (*zip(names, arguments, strict=False), *keywords.items()):
        if isinstance(value, Instance) and isinstance(value.cls, Class):
            if not is_module(it, value.cls):
                given.setdefault(name, set()).add(value.cls)


def given_class(function: Function, name: str) -> Class | None:
    """The class of what the file gives a constructor, wherever it calls that."""
    known = function.cls.facts.get("given", {}) if function.cls is not None else {}
    classes = known.get(name, ()) if function.name == "__init__" else ()
    return next(iter(classes)) if len(classes) == 1 else None


def _has(it: Interpreter, cls: Class, asked: set[str]) -> bool:
    """Whether a class has all that is asked, among it a method of its own, or several parts of a model."""
    own = asked - USUAL
    named = not own.isdisjoint(cls.methods) or (len(own) > 1 and is_module(it, cls))
    return named and asked <= _members(it, cls)


def _members(it: Interpreter, cls: Class) -> set[str]:
    """The methods and attributes of a class."""
    own: set[str] | None = cls.facts.get("members")
    if own is None:
        bases = [base for base in ancestry(it, cls) if isinstance(base, Class)]
        own = cls.facts["members"] = {
            name
            for base in bases
            for name in (
                *base.methods,
                *base.constants,
                *(s for m in base.methods.values() for s in scan(m).stored),
            )
        }
    return own


OF_MODULES: Final = frozenset({
    "half", "bfloat16", "float", "double", "to", "type", "cuda", "cpu", "eval", "train", "training",
    "parameters", "named_parameters", "buffers", "named_buffers", "modules", "named_modules", "children",
    "state_dict", "load_state_dict", "requires_grad_", "zero_grad", "apply", "forward", "compile",
})  # fmt: skip
"""Attributes that every module has."""


def only_model(
    it: Interpreter, function: Function, name: str, has_weights: Callable[[Class], bool]
) -> Class | None:
    """The one model of the file, if what is done with a parameter is done with models, and it can be
    called so; losses have no weights."""
    if function.cls is not None and name in ("self", "cls"):
        return None
    models = _models(it, function.module)
    calls, asked = _used(function, name) if models else ([], set())
    runs, users = _in_region(function, calls), [function]
    for call, helper, parameter in _handed(function, name) if models else ():
        inner = _used(helper, parameter)
        users.append(helper)
        calls, asked = calls + inner[0], asked | inner[1]
        runs |= _in_region(helper, inner[0]) or (bool(inner[0]) and _in_region(function, [call]))
    if not calls or not (asked & OF_MODULES or (runs and _is_alone(function, name))):
        return None
    others = [one for one in models if one[0] is not function.cls]
    found = [one for one in others if has_weights(one[0])]
    if len(found) != 1:
        return None
    cls, forward = found[0]
    other = any(_is_made(user, cls) for user in users) or _wraps(it, cls)
    known = asked - OF_MODULES <= _members(it, cls)
    fits = known and all(_accepts(forward, call) for call in calls)
    return cls if fits and not other else None


def _is_alone(function: Function, name: str) -> bool:
    """Whether no other parameter is called: a loss, a transform or a second model may be what fits."""
    others = (one.arg for one in function.parameters if one.arg != name)
    return not any(_used(function, one)[0] for one in others)


def _in_region(function: Function, calls: list[ast.Call]) -> bool:
    """Whether a call stands in a region of autocast: what runs in one is a model."""
    inside: set[ast.AST] | None = function.facts.get("inside regions")
    decorators = getattr(function.node, "decorator_list", ())
    if any(_opens(function, one) for one in decorators):
        return bool(calls)
    if inside is None:
        regions = [
            one
            for one in every(function.node)
            if isinstance(one, ast.With) and any(_opens(function, each) for each in _entered(one))
        ]
        inside = function.facts["inside regions"] = {x for one in regions for x in every(one)}
    return not inside.isdisjoint(calls)


def _entered(node: ast.With) -> Iterator[ast.expr]:
    """What a ``with`` enters, also by the stack that it holds: ``stack.enter_context(manager)``."""
    yield from (item.context_expr for item in node.items)
    for one in node.body:
        call = one.value if isinstance(one, ast.Expr) else None
        if isinstance(call, ast.Call) and last(call.func) == "enter_context":
            yield from call.args


def _opens(function: Function, entered: ast.expr) -> bool:
    """Whether an expression is a region: of autocast, of a function that names it, or of a variable."""
    home, named = function.module, function.facts.get("regions by name")
    if named is None:
        named = function.facts["regions by name"] = {
            target.id
            for one in (*every(function.node), *home.tree.body)
            if isinstance(one, ast.Assign) and _makes_region(home, one.value)
            for target in one.targets
            if isinstance(target, ast.Name)
        }
    return _makes_region(home, entered) or (isinstance(entered, ast.Name) and entered.id in named)


def _makes_region(home: Module, node: ast.expr) -> bool:
    """Whether an expression calls autocast, or a function of its file that names it, on one way at least."""
    if isinstance(node, ast.IfExp):
        return _makes_region(home, node.body) or _makes_region(home, node.orelse)
    known: set[str] | None = home.facts.get("makers of regions")
    if known is None:
        own = {one.name for one in home.functions if speaks(one)}
        known = home.facts["makers of regions"] = own | {"autocast"}
    return isinstance(node, ast.Call) and last(node.func) in known


def _handed(function: Function, name: str) -> Iterator[tuple[ast.Call, Function, str]]:
    """Calls of functions of the file that a parameter is handed to, with the parameter that it is there."""
    known = {one.name: one for one in function.module.functions if one is not function}
    for node in every(function.node):
        other = known.get(last(node.func)) if isinstance(node, ast.Call) else None
        if other is None or not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        for given, parameter in zip(node.args, other.parameters, strict=False):
            if isinstance(given, ast.Name) and given.id == name:
                yield node, other, parameter.arg


def _is_made(function: Function, cls: Class) -> bool:
    """Whether a function makes an object of a class itself: what it is given is another one."""
    return cls.name in scan(function).names


def _wraps(it: Interpreter, cls: Class) -> bool:
    """Whether a class calls what it is made with: a wrapper around models."""
    init = find_method(it, cls, "__init__")
    return init is not None and any(_used(init, one.arg)[0] for one in init.parameters[1:])


def _models(it: Interpreter, module: Module) -> list[tuple[Class, Function]]:
    """The modules of a file that no other one of its modules holds, with what calls them."""
    known: list[tuple[Class, Function]] | None = module.facts.get("models")
    if known is None:
        named = {
            cls: {
                one.id for part in cls.node.body for one in every(part) if isinstance(one, ast.Name)
            }
            for cls in module.classes
            if is_module(it, cls)
        }
        known = module.facts["models"] = [
            (cls, forward)
            for cls in named
            if not any(cls.name in names for other, names in named.items() if other is not cls)
            and (forward := find_method(it, cls, "forward")) is not None
        ]
    return known


class Uses(NamedTuple):
    """Calls of names, what is asked of them, and the attributes that they are kept in."""

    calls: dict[str, list[ast.Call]]
    asked: dict[str, set[str]]
    stored: dict[str, set[str]]


def _used(function: Function, name: str) -> tuple[list[ast.Call], set[str]]:
    """Calls of a parameter and what is asked of it, in its function or behind the attribute that
    ``__init__`` keeps it in."""
    own = _uses(function.facts, function.node, "")
    calls, asked = list(own.calls.get(name, ())), set(own.asked.get(name, ()))
    if function.cls is not None and function.name == "__init__":
        kept = _uses(function.cls.facts, function.cls.node, "self")
        for attribute in own.stored.get(name, ()):
            calls += kept.calls.get(attribute, ())
            asked |= kept.asked.get(attribute, set())
    return calls, asked


def _uses(facts: dict[str, Any], inside: ast.AST, owner: str) -> Uses:
    """The uses of all names in a function or, of an ``owner``'s attributes, in a class."""
    known: Uses | None = facts.get("uses")
    if known is not None:
        return known
    known = facts["uses"] = Uses(defaultdict(list), defaultdict(set), defaultdict(set))
    same: dict[str, str] = {}
    for node in every(inside):
        if isinstance(node, ast.Call) and (name := _named(node.func, owner)):
            known.calls[name].append(node)
        elif isinstance(node, ast.Attribute) and (name := _named(node.value, owner)):
            known.asked[name].add(node.attr)
        elif isinstance(node, ast.Assign):
            for one, value in _pairs(node):
                known.stored[_root(value)].add(one.attr)
            target = node.targets[0]
            if isinstance(target, ast.Name) and (name := _same_module(node.value)) != target.id:
                same[target.id] = name
    for name, of in same.items() if not owner else ():
        known.calls[of] += known.calls.get(name, [])
        known.asked[of] |= known.asked.get(name, set())
    return known


def _same_module(node: ast.expr) -> str:
    """The name in ``name.half().eval()``, which is the same module; empty: it is something else."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in OF_MODULES:
            return ""
        node = node.func.value
    return node.id if isinstance(node, ast.Name) else ""


def _named(node: ast.expr, owner: str) -> str:
    """A name, or that of an ``owner``'s attribute; empty: it is something else."""
    if not owner:
        return node.id if isinstance(node, ast.Name) else ""
    mine = isinstance(node, ast.Attribute) and _root(node.value) == owner
    return node.attr if mine and isinstance(node, ast.Attribute) else ""


def _pairs(node: ast.Assign) -> Iterator[tuple[ast.Attribute, ast.expr]]:
    """Attributes and what is assigned to them."""
    for target in node.targets:
        several = isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple)
        targets = target.elts if isinstance(target, ast.Tuple) and several else [target]
        values = node.value.elts if isinstance(node.value, ast.Tuple) and several else [node.value]
        for one, value in zip(targets, values, strict=False):
            if isinstance(one, ast.Attribute):
                yield one, value


def _root(node: ast.expr) -> str:
    """The name in ``name.half().eval()``."""
    while isinstance(node, (ast.Call, ast.Attribute)):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _accepts(method: Function, call: ast.Call) -> bool:
    """Whether a method can be called so."""
    given = method.node.args
    names = [one.arg for one in method.parameters[1:]]
    keywords = {one.arg for one in call.keywords}
    if None in keywords or any(isinstance(one, ast.Starred) for one in call.args):
        return True
    needed = names[: len(names) - len(given.defaults)]
    count = len(call.args)
    known = {*names[count:], *(one.arg for one in given.kwonlyargs)}
    fits = given.vararg is not None or count <= len(names)
    return fits and set(needed[count:]) <= keywords and (bool(given.kwarg) or keywords <= known)
