"""Transfer functions of expressions."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from precision_lint.dataflow import bound_methods, methods, regions
from precision_lint.dataflow.bindings import bind
from precision_lint.dataflow.choices import around
from precision_lint.dataflow.containers import assign, elements, index_key, subscript
from precision_lint.dataflow.interpreter import (
    EXPRESSIONS,
    Environment,
    Expression,
    Interpreter,
    merge,
    scoped_by,
    switched_by,
)
from precision_lint.dataflow.objects import find_method, is_module, merge_weights, next_method
from precision_lint.dataflow.operators import BINARY, asked, binary, compare, negate, owners_of
from precision_lint.dataflow.protocol import noted
from precision_lint.dataflow.tensors import looked_at
from precision_lint.domains import Spread, dtypes
from precision_lint.domains.joining import any_of, join, join_all, unknown
from precision_lint.domains.values import (
    NONE,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Lazy,
    RegionValue,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Value,
)


def expression(*kinds: type) -> Callable[[Expression], Expression]:
    """Register the handler of expressions of these types."""

    def register(handler: Expression) -> Expression:
        for kind in kinds:
            EXPRESSIONS[kind] = handler
        return handler

    return register


KINDS: Final[dict[type, str]] = {
    int: "int",
    float: "float",
    bool: "bool",
    str: "str",
    bytes: "bytes",
}


@expression(ast.Constant)
def _constant(it: Interpreter, node: ast.Constant) -> Value:
    value = node.value
    if value is None:
        return NONE
    if value is Ellipsis:
        return Special("slice", node, it.module, key=("...",))
    kind = KINDS.get(value.__class__)
    if kind is None:
        return Scalar(None, "complex") if isinstance(value, complex) else unknown()
    return Scalar(value, kind, node=node, home=it.module)


@expression(ast.Name)
def _name(it: Interpreter, node: ast.Name) -> Value:
    name = node.id
    value = it.variables.get(name)
    if value is None and it.outer is not None:
        value = it.outer.get(name)
    if value is not None:
        if value.__class__ is Lazy:
            value = it.variables[name] = it.program.resolved(it, value, it.module.path)
        return value
    value = it.program.global_of(it, it.module, name)
    if value is not None:
        return value  # type: ignore[no-any-return]
    it.missing = True
    return unknown()


@expression(ast.Attribute)
def _attribute(it: Interpreter, node: ast.Attribute) -> Value:
    return methods.attribute(it, it.expr(node.value), node.attr, node)


@expression(ast.Subscript)
def _subscript(it: Interpreter, node: ast.Subscript) -> Value:
    value = it.expr(node.value)
    index = it.expr(node.slice)
    return subscript(it, value, index, node)


@expression(ast.Slice)
def _slice(it: Interpreter, node: ast.Slice) -> Value:
    for part in (node.lower, node.upper, node.step):
        if part is not None:
            it.expr(part)
    return Special("slice", node, it.module, key=index_key(node))


@expression(ast.BinOp)
def _binary(it: Interpreter, node: ast.BinOp) -> Value:
    left = it.expr(node.left)
    right = it.expr(node.right)
    return binary(it, BINARY[node.op.__class__], left, right, node)


@expression(ast.UnaryOp)
def _unary(it: Interpreter, node: ast.UnaryOp) -> Value:
    value = it.expr(node.operand)
    if isinstance(node.op, ast.USub):
        return negate(it, value, node)
    if isinstance(node.op, ast.Not):
        known = asked(it, value, node.operand)
        negated = None if known is None else not known
        return Scalar(negated, "bool", node=node, home=it.module, op="not", operands=(value,))
    if isinstance(node.op, ast.Invert):
        return negate(it, value, node, "bitwise_not")
    return value


@expression(ast.Compare)
def _compare(it: Interpreter, node: ast.Compare) -> Value:
    left = it.expr(node.left)
    result: Value | None = None
    for op, comparator in zip(node.ops, node.comparators, strict=True):
        right = it.expr(comparator)
        found = compare(it, op, left, right, node)
        result = found if result is None else Scalar(None, "bool")
        left = right
    return result if result is not None else unknown()


def _is_manager(value: Value) -> bool:
    """Whether a value is a context manager of torch, which is true."""
    return isinstance(value, RegionValue) or (
        isinstance(value, Special) and value.kind == "no-grad"
    )


@expression(ast.BoolOp)
def _bool(it: Interpreter, node: ast.BoolOp) -> Value:
    found: Value | None = None
    trace = it.trace
    for number, part in enumerate(node.values):
        if number:
            it.trace = []
        value = it.expr(part)
        if number:
            inner, it.trace = it.trace, trace
            noted(it, "and" if isinstance(node.op, ast.And) else "or", node, inner)
        known = True if _is_manager(value) else asked(it, value, part)
        if known is not None and isinstance(value, RegionValue) and isinstance(node.op, ast.And):
            if number < len(node.values) - 1:
                regions.drop(it, part)
        if known is (not isinstance(node.op, ast.And)):
            if _is_manager(value):
                _not_entered(it, node.values[number + 1 :])
            return value if found is None else join(found, value)
        if known is None or number == len(node.values) - 1:
            found = value if found is None else join(found, value)
    if isinstance(found, Scalar) and found.op == "enabled":
        for part in node.values:
            it.retract_at("scaler-truth", part)  # the next operand asks what is meant
    return found if found is not None else unknown()


def _not_entered(it: Interpreter, others: list[ast.expr]) -> None:
    """Regions behind a word that the first one decides."""
    for other in others:
        if isinstance(it.expr(other), RegionValue):
            regions.drop(it, other)


def _arm(it: Interpreter, node: ast.IfExp, arm: ast.expr) -> tuple[Value, Environment]:
    """What one arm of a conditional expression comes to, and the variables that it changes."""
    it.variables = dict(it.variables)
    it.narrow(node.test, arm is node.body)
    before = dict(it.variables)
    value = it.expr(arm)
    return value, {k: v for k, v in it.variables.items() if before.get(k) is not v}


@expression(ast.IfExp)
def _if(it: Interpreter, node: ast.IfExp) -> Value:
    test = it.expr(node.test)
    known = asked(it, test, node.test)
    if known is not None:
        return it.expr(node.body if known else node.orelse)
    trace, variables, live, region = it.trace, it.variables, it.live, it.region
    weights = it.weights
    it.trace = []
    asked_here = around(it, node.test, test)
    it.branches.append(asked_here)
    body, one = _arm(it, node, node.body)
    first, it.trace = it.trace, []
    body_live, body_weights = it.live, it.weights
    it.variables, it.live, it.region, it.weights = variables, live, region, weights
    it.branches[-1] = asked_here._replace(holds=not asked_here.holds)
    other, another = _arm(it, node, node.orelse)
    it.branches.pop()
    second, it.trace = it.trace, trace
    other_live = it.live
    it.variables, it.live, it.region = variables, live, region
    if one or another:
        now = {name: variables[name] for name in (*one, *another) if name in variables}
        one, another = {**now, **one}, {**now, **another}
        it.variables = {**variables, **merge(one, another, body_live, other_live, stored=it.stored)}
    it.weights = merge_weights(body_weights, it.weights)
    noted(it, "if", node, first, second)
    made = it.either(body, body_live, other, other_live)
    if isinstance(made, Special) and made.kind == "scope":
        scoped_by(made, body, asked_here)
    elif isinstance(made, RegionValue):
        switched_by(made, body, other, (it.function, asked_here))
    elif isinstance(made, DtypeValue) and made is not body and made is not other:
        made.asked = made.asked or node.test
        made.dtypes = dtypes.set_by_mode(made.dtypes)
    return made


def _several(it: Interpreter, nodes: list[ast.expr], kind: str) -> Value:
    if len(nodes) > 0 and all(isinstance(node, ast.Starred) for node in nodes):
        parts = [it.expr(node.value) for node in nodes]  # type: ignore[attr-defined]
        if all(owners_of(part) for part in parts):
            owners = [one for part in parts for one in owners_of(part)]
            return Special(
                "parameters", nodes[0], it.module, owner=owners[0], named=False, owners=owners
            )
    items: list[Value] = []
    for number, node in enumerate(nodes):
        if node.__class__ is ast.Starred:
            inner = elements(it, it.expr(node.value), node)
            if isinstance(inner, list):
                items += inner
                continue
            rest = [it.expr(n) for n in nodes[number + 1 :] if n.__class__ is not ast.Starred]
            element: Value = inner
            for item in (*items, *rest):
                element = join(element, item)
            whole = len(rest) == len(nodes) - number - 1
            return Sequence(None, element, kind, (items, inner, rest) if whole else None)
        items.append(it.expr(node))
    return Sequence(tuple(items), None, kind)


@expression(ast.Tuple)
def _tuple(it: Interpreter, node: ast.Tuple) -> Value:
    return _several(it, node.elts, "tuple")


@expression(ast.List)
def _list(it: Interpreter, node: ast.List) -> Value:
    return _several(it, node.elts, "list")


@expression(ast.Set)
def _set(it: Interpreter, node: ast.Set) -> Value:
    return _several(it, node.elts, "set")


@expression(ast.Dict)
def _dict(it: Interpreter, node: ast.Dict) -> Value:
    items: dict[Any, Value] = {}
    element: Value | None = None
    for key, value in zip(node.keys, node.values, strict=True):
        found = it.expr(value)
        if key is None:
            if isinstance(found, Table):
                items.update(found.items)
                element = found.element if element is None else element
            else:
                element = unknown()
            continue
        name = it.expr(key)
        if isinstance(name, Scalar) and name.value is not None:
            items[name.value] = found
        else:
            element = found if element is None else join(element, found)
    return Table(items, element)


@expression(ast.ListComp, ast.SetComp, ast.GeneratorExp)
def _comprehension(it: Interpreter, node: ast.ListComp) -> Value:
    found = _generated(it, node.generators, [node.elt], node)
    if isinstance(found, list):
        return Sequence(tuple([values[0] for values in found]), None, "list")
    return Sequence(None, found[0], "list")


@expression(ast.DictComp)
def _dict_comprehension(it: Interpreter, node: ast.DictComp) -> Value:
    found = _generated(it, node.generators, [node.key, node.value], node)
    if isinstance(found, list):
        keys = [key.value if isinstance(key, Scalar) else None for key, _ in found]
        if None not in keys:
            return Table({k: v for k, (_, v) in zip(keys, found, strict=True)}, None)
        element: Value | None = None
        for _, value in found:
            element = value if element is None else join(element, value)
        return Table({}, element)
    return Table({}, found[1])


def _generated(
    it: Interpreter, generators: list[ast.comprehension], parts: list[ast.expr], node: ast.AST
) -> list[tuple[Value, ...]] | tuple[Value, ...]:
    """What a comprehension gives: for a few known items one by one, else one for all."""
    outside: Environment = dict(it.variables)
    trace, live, region = it.trace, it.live, it.region
    it.trace = []
    it.depth += 1
    it.loops += 1
    first = generators[0]
    element: Value | None = None
    source = elements(it, it.expr(first.iter), first.iter)
    result: list[tuple[Value, ...]] | tuple[Value, ...]
    if isinstance(source, list) and len(source) <= 8 and len(generators) < 3 and not first.ifs:
        result = []
        for item in source:
            assign(it, first.target, item, node)
            result.append(_of_each(it, generators[1:], parts, node))
        if result and len(generators) > 1:
            result = tuple([join_all(list(column)) for column in zip(*result, strict=True)])
    else:
        element = _joined(source)
        assign(it, first.target, element, node)
        _test(it, first)
        result = _of_each(it, generators[1:], parts, node)
    it.depth -= 1
    it.loops -= 1
    inner_trace, it.trace = it.trace, trace
    noted(it, "loop", node, inner_trace, objects=() if element is None else (element,))
    it.variables, it.live, it.region = outside, live, region
    return result


def _of_each(
    it: Interpreter, generators: list[ast.comprehension], parts: list[ast.expr], node: ast.AST
) -> tuple[Value, ...]:
    """What a comprehension gives for one item of its first loop, in one item of the others."""
    for generator in generators:
        assign(
            it,
            generator.target,
            _joined(elements(it, it.expr(generator.iter), generator.iter)),
            node,
        )
        _test(it, generator)
    return tuple([it.expr(part) for part in parts])


def _test(it: Interpreter, generator: ast.comprehension) -> None:
    for test in generator.ifs:
        it.expr(test)
        it.narrow(test, True)


def _joined(values: Value | list[Value]) -> Value:
    if not isinstance(values, list):
        return values
    found = any_of(Sequence(tuple(values), None))
    return found if found is not None else unknown()


@expression(ast.Lambda)
def _lambda(it: Interpreter, node: ast.Lambda) -> Value:
    prefix = f"{it.function.qualname}." if it.function is not None else ""
    function = it.module.function(node, prefix + "<lambda>", it.function)
    outer = it.variables if it.outer is None else {**it.outer, **it.variables}
    return Closure(function, None, outer)


@expression(ast.JoinedStr)
def _text(it: Interpreter, node: ast.JoinedStr) -> Value:
    for part in node.values:
        if isinstance(part, ast.FormattedValue):
            value = it.expr(part.value)
            if isinstance(value, Tensor):
                looked_at(it, "format", value, part.value)
    first = node.values[0] if node.values else None
    start = it.expr(first) if isinstance(first, ast.Constant) else Scalar("", "str")
    return Scalar(None, "str", op="format", operands=(start,))


@expression(ast.NamedExpr)
def _named(it: Interpreter, node: ast.NamedExpr) -> Value:
    return bind(it, node, it.expr(node.value))


@expression(ast.Await)
def _await(it: Interpreter, node: ast.Await) -> Value:
    return it.expr(node.value)


@expression(ast.Starred)
def _starred(it: Interpreter, node: ast.Starred) -> Value:
    return it.expr(node.value)


@expression(ast.Yield)
def _yield(it: Interpreter, node: ast.Yield) -> Value:
    value = it.expr(node.value) if node.value is not None else NONE
    it.yielded.append((value, it.region))
    return unknown()


@expression(ast.YieldFrom)
def _yield_from(it: Interpreter, node: ast.YieldFrom) -> Value:
    inner = elements(it, it.expr(node.value), node)
    it.yielded.append((_joined(inner), it.region))
    return unknown()


@expression(ast.Call)
def _call(it: Interpreter, node: ast.Call) -> Value:
    it.step()
    function = node.func
    owner: Value | None = None
    name = ""
    if function.__class__ is ast.Attribute:
        inner = function.value
        name = function.attr
        if inner.__class__ is ast.Call and _is_super(inner):
            return _super(it, inner, name, node)
        owner = it.expr(inner)
    arguments, keywords = _arguments(it, node)
    if owner is not None:
        result = methods.call_method(it, owner, name, arguments, keywords, node)
    else:
        unpacked = it.unpacked
        callee = it.expr(function)
        it.unpacked = unpacked
        kept = bound_methods.called(it, callee, node)
        if kept is None:
            result = it.call(callee, arguments, keywords, node)
        else:
            if it.statement_value is node:
                it.statement_value = kept.node
            result = methods.call_method(it, kept.owner, kept.name, arguments, keywords, kept.node)
    it.unpacked = False
    return result


def _arguments(it: Interpreter, node: ast.Call) -> tuple[list[Value], dict[str, Value]]:
    arguments: list[Value] = []
    for argument in node.args:
        if argument.__class__ is ast.Starred:
            inner = elements(it, it.expr(argument.value), argument)
            if isinstance(inner, list):
                arguments += inner
            else:
                arguments = Spread((*arguments, inner))
                arguments.at = len(arguments) - 1
        else:
            arguments.append(it.expr(argument))
    keywords: dict[str, Value] = {}
    unpacked = False
    for keyword in node.keywords:
        value = it.expr(keyword.value)
        if keyword.arg is not None:
            keywords[keyword.arg] = value
        elif isinstance(value, Table):
            keywords.update({k: v for k, v in value.items.items() if isinstance(k, str)})
            unpacked |= value.element is not None
        else:
            unpacked = True
    it.unpacked = unpacked
    return arguments, keywords


def _is_super(node: ast.Call) -> bool:
    return isinstance(node.func, ast.Name) and node.func.id == "super"


def _super(it: Interpreter, inner: ast.Call, name: str, node: ast.Call) -> Value:
    """``super().name(...)``"""
    arguments, keywords = _arguments(it, node)
    function = it.function
    if function is None or function.cls is None or not function.parameters:
        return unknown()
    owner = it.variables.get(function.parameters[0].arg)
    cls = owner.cls if isinstance(owner, (Instance, ClassValue)) else None
    if cls is None or isinstance(cls, str):
        return unknown()
    method = next_method(it, cls, function.cls, name)
    if method is None and name == "__call__":  # the module's own, which calls this
        method = find_method(it, cls, "forward")
    if method is not None:
        return it.run(method, owner, arguments, keywords, node)
    if isinstance(owner, Instance) and is_module(it, cls):
        return _of_library(it, owner, name, arguments, keywords, node)
    return unknown()


def _of_library(
    it: Interpreter,
    owner: Instance,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.Call,
) -> Value:
    """A method of the class of torch that an object's class derives from."""
    from precision_lint.dataflow.building import module_method
    from precision_lint.dataflow.layer_objects import as_layer, init_layer

    layer = as_layer(it, owner) if name in ("forward", "__call__") else None
    if layer is not None:
        return it.call(layer, arguments, keywords, node)
    if name == "__init__":
        init_layer(it, owner, arguments, keywords, node)
    answer = module_method(it, owner, name, arguments, keywords, node)
    return answer if answer is not None else unknown()
