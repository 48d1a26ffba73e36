"""Which parameters an optimizer was made of: the modules whose ``parameters()`` it was given."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from precision_lint.semantics.conditions import substituted
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module
    from precision_lint.semantics.typestate import Typestate

Roots = frozenset[str]
"""Source texts of modules, ``@`` and an optimizer's text for its own ``param_groups``."""
OPTIMIZERS = frozenset({
    "SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD",
    "Rprop", "LBFGS", "SparseAdam", "Adafactor", "Lion", "Lamb", "LAMB", "Muon", "AdamW8bit",
})  # fmt: skip
SITES = 8
"""Calls of a function that are looked at."""
JOINS = frozenset({"list", "tuple", "chain", "iter", "sorted", "from_iterable", "dict"})


def makes_optimizer(node: ast.expr | None) -> bool:
    """Whether an expression makes an optimizer of torch's kind."""
    if not isinstance(node, ast.Call):
        return False
    path = dotted(node.func) or ""
    return path.rpartition(".")[2] in OPTIMIZERS


def roots(node: ast.expr, named: Mapping[str, ast.expr], depth: int = 6) -> Roots | None:
    """The modules whose parameters an expression holds; None: not known."""
    if depth <= 0:
        return None
    match node:
        case ast.Call(func=ast.Attribute(value=owner, attr="parameters" | "named_parameters")):
            path = dotted(owner)
            return None if path is None else frozenset({path})
        case ast.Call(func=ast.Name(id="filter"), args=[_, inner]):
            return roots(inner, named, depth - 1)
        case ast.Call(func=func, args=args) if (dotted(func) or "").rpartition(".")[2] in JOINS:
            return _all(args, named, depth)
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            return _all([left, right], named, depth)
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return _all(parts, named, depth)
        case ast.Starred(value=inner):
            return roots(inner, named, depth - 1)
        case ast.Dict(keys=keys, values=values):
            given = [
                value
                for key, value in zip(keys, values, strict=True)
                if isinstance(key, ast.Constant) and key.value == "params"
            ]
            return _all(given, named, depth) if given else None
        case ast.ListComp(generators=[first, *_]) | ast.GeneratorExp(generators=[first, *_]):
            source = first.iter
            if isinstance(source, ast.Attribute) and source.attr == "param_groups":
                path = dotted(source.value)
                return None if path is None else frozenset({f"@{path}"})
            return roots(source, named, depth - 1)
        case ast.Subscript(value=ast.Subscript(value=ast.Attribute(value=owner, attr=attr))):
            path = dotted(owner) if attr == "param_groups" else None
            return None if path is None else frozenset({f"@{path}"})
        case ast.Name(id=name) if name in named:
            return roots(named[name], named, depth - 1)
        case _:
            return None


def _all(parts: Iterable[ast.expr], named: Mapping[str, ast.expr], depth: int) -> Roots | None:
    found: Roots = frozenset()
    for part in parts:
        one = roots(part, named, depth - 1)
        if one is None:
            return None
        found |= one
    return found or None


def bound_once(function: Function) -> dict[str, ast.expr]:
    """Local names that are assigned once, with what they are assigned."""
    found: dict[str, ast.expr] = {}
    count: dict[str, int] = {}
    for node in function.nodes:
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            count[node.id] = count.get(node.id, 0) + 1
        elif isinstance(node, ast.Assign) and len(node.targets) == 1:
            if isinstance(node.targets[0], ast.Name):
                found[node.targets[0].id] = node.value
    return {name: value for name, value in found.items() if count.get(name) == 1}


def attributes(function: Function) -> tuple[tuple[str, str], ...]:
    """Local names of a method that it stores: ``(("net", "self.net"),)``."""
    found: dict[str, str] = {}
    for node in function.nodes:
        if not isinstance(node, ast.Assign):
            continue
        pairs = [(target, node.value) for target in node.targets]
        for target, value in list(pairs):
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs += zip(target.elts, value.elts, strict=False)
        for target, value in pairs:
            path = dotted(target)
            if path is not None and path.startswith("self.") and isinstance(value, ast.Name):
                found.setdefault(value.id, path)
    return tuple(sorted(found.items()))


def clipped(call: ast.Call, function: Function) -> str:
    """Text of what a clip is given, names that are bound once written out."""
    if not call.args:
        return ""
    node, named = call.args[0], bound_once(function)
    while isinstance(node, ast.Name) and node.id in named:
        node = named.pop(node.id)
    return "" if isinstance(node, ast.Starred) else ast.unparse(node)


def owners(function: Function, state: Typestate) -> dict[str, Roots]:
    """Optimizers that a function knows, by source text, each with its modules: those made in its
    reach, and those that the calls of it in this module hand it."""
    sites = state.module.index.calls.get(function.name, [])
    given: list[dict[str, Roots]] = []
    if function.cls is None and function.parameters():
        for call, caller in sites[:SITES]:
            if caller is not function and dotted(call.func) == function.name:
                given.append(_handed(call, function, _made(caller, state)))
    agreed = (
        {o: r for o, r in given[0].items() if all(g.get(o) == r for g in given)} if given else {}
    )
    return agreed | _made(function, state)


def _handed(call: ast.Call, function: Function, made: Mapping[str, Roots]) -> dict[str, Roots]:
    """Optimizers among a call's arguments whose modules are arguments too, by parameter."""
    names = {
        ast.unparse(argument): parameter.arg
        for parameter, argument in zip(function.parameters(), call.args, strict=False)
    }
    names |= {ast.unparse(k.value): k.arg for k in call.keywords if k.arg}
    found: dict[str, Roots] = {}
    for optimizer, modules in made.items():
        if optimizer not in names:
            continue
        renamed = set()
        for module in modules:
            outer = next((n for n in names if _within(module, n)), None)
            if outer is not None:
                renamed.add(names[outer] + module[len(outer) :])
        if len(renamed) == len(modules):
            found[names[optimizer]] = frozenset(renamed)
    return found


def _made(function: Function, state: Typestate) -> dict[str, Roots]:
    found: dict[str, Roots] = {}
    unknown: set[str] = set()

    def note(text: str, made: Roots | None) -> None:
        if made is None or found.setdefault(text, made) != made:
            unknown.add(text)

    index = state.module.index
    scopes = [index.top, function]
    if function.cls is not None:
        scopes += [m for m in function.cls.methods.values() if m is not function]
    if not OPTIMIZERS & index.calls.keys():
        return {}
    for scope in scopes:
        named: dict[str, ast.expr] | None = None
        for node in scope.nodes:
            if not isinstance(node, ast.Assign) or not makes_optimizer(node.value):
                continue
            named = bound_once(scope) if named is None else named
            call = node.value
            assert isinstance(call, ast.Call)
            given = call.args[0] if call.args else None
            given = given or next((k.value for k in call.keywords if k.arg == "params"), None)
            made = roots(given, named) if given is not None else None
            if made is not None and scope is not function and scope is not index.top:
                stored = attributes(scope)
                made = frozenset(
                    text if text[:1] == "@" else substituted(text, stored) for text in made
                )
            for target in node.targets:
                text = dotted(target)
                if text is not None and (scope is function or scope is index.top or "." in text):
                    note(text, made)
    return {text: made for text, made in found.items() if text not in unknown}


def holds_optimizers(container: str, function: Function, module: Module) -> bool:
    """Whether a container is filled with optimizers, or is called so."""
    if re.search(r"opt(?!ion)", container.rpartition(".")[2], re.IGNORECASE):
        return True
    scopes = [module.index.top, function]
    if function.cls is not None:
        scopes += function.cls.methods.values()
    return any(
        isinstance(node, ast.Assign)
        and any(dotted(target) == container for target in node.targets)
        and any(
            makes_optimizer(part) for part in ast.walk(node.value) if isinstance(part, ast.expr)
        )
        for scope in scopes
        for node in scope.nodes
    )


def covers(module: str, made: Roots | None) -> bool:
    """Whether all that an optimizer was made of belongs to a module, or to its ``parameters()``."""
    module = module.removesuffix(".parameters()")
    return bool(made) and all(r == module or r.startswith(f"{module}.") for r in made or ())


def _within(one: str, other: str) -> bool:
    return one == other or one.startswith(f"{other}.")


def owned(
    clipped: str, known: Mapping[str, Roots], used: Iterable[str], unscaled: frozenset[str]
) -> list[str]:
    """Optimizers that a scaler steps, not yet unscaled, and whose parameters a clip takes in."""
    try:
        given = roots(ast.parse(clipped, mode="eval").body, {})
    except SyntaxError:
        return []
    found = []
    for root in sorted(given or ()):
        if root.startswith("@"):
            if root[1:] in used and root[1:] not in unscaled:
                found.append(root[1:])
            continue
        taken = {o: made for o, made in known.items() if o in used}
        done = [m for o, made in taken.items() if o in unscaled for m in made]
        if any(_within(root, m) for m in done):
            continue
        found += [
            o
            for o, made in taken.items()
            if o not in unscaled
            and any(
                (_within(root, m) or _within(m, root)) and not any(_within(m, d) for d in done)
                for m in made
            )
        ]
    return list(dict.fromkeys(found))
