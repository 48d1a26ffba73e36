"""``torch.autograd.Function``: its forward where it is applied, and its backward outside of the region."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow import objects
from precision_lint.dataflow.calls import entry
from precision_lint.dataflow.interpreter import OUTSIDE, Interpreter
from precision_lint.dataflow.parameters import returns_to_region
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    Instance,
    Root,
    Sequence,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.syntax.program import Class, Function, dotted

LEFT: Final = OUTSIDE._replace(explicit=True)
"""The region of a backward pass: none, whatever region its forward ran in."""


def apply(
    it: Interpreter, cls: Class, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """``MyFunction.apply(...)``: what its ``forward`` gives; its ``backward`` runs as well."""
    forward = objects.find_method(it, cls, "forward")
    backward = objects.find_method(it, cls, "backward")
    if forward is None:
        return unknown()
    context = Instance(cls, {}, Root(dtypes.V_ANY, node, it.module))
    setup = objects.find_method(it, cls, "setup_context")
    if setup is None:
        result = it.run(forward, None, [context, *arguments], keywords, node)
    else:
        result = it.run(forward, None, arguments, keywords, node)
        it.run(setup, None, [context, Sequence(tuple(arguments), None, "tuple"), result], {}, node)
    if backward is not None:
        _go_back(it, backward, context, result, node)
    return result


def _weights(forward: Function) -> set[str]:
    """Arguments that are used as weights: matrices that ``t()`` transposes, what ``linear`` multiplies by."""
    found = set()
    for node in ast.walk(forward.node):
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func) or ""
        if called.endswith(".t") and not node.args:
            found.add(called[:-2])
        elif called.rpartition(".")[2] == "linear" and len(node.args) > 1:
            found.add(dotted(node.args[1]) or "")
    return found


def applied_elsewhere(it: Interpreter, forward: Function) -> None:
    """A function that another file applies: to weights, and to what may be float32."""
    cls = forward.cls
    if cls is None or forward.name != "forward" or not objects.is_a(it, cls, *objects.FUNCTIONS):
        return
    needed = forward.parameters[1 : len(forward.parameters) - len(forward.node.args.defaults)]
    weights = _weights(forward)
    kinds = (dtypes.BATCHES, assume.CALL), (dtypes.FOLLOWS, assume.WEIGHTS)
    given: list[Value] = []
    for one in needed:
        vector, assumptions = kinds[one.arg in weights]
        given.append(Tensor(vector, "input", (), one, it.module, assumptions=assumptions))
    called, outside = it.program.called, it.region
    it.program.called = set(called)  # it may be applied to anything else as well
    it.region = entry(it)
    apply(it, cls, given, {}, forward.node)
    it.program.called, it.region = called, outside


def _go_back(
    it: Interpreter, backward: Function, context: Instance, result: Value, node: ast.AST
) -> None:
    """Run ``backward`` with gradients of the results' dtypes, where autocast is off as a rule."""
    outputs = (
        result.items if isinstance(result, Sequence) and result.items is not None else (result,)
    )
    gradients = [_gradient(one) for one in outputs]
    before = it.region
    if not returns_to_region(it, backward):
        it.region = LEFT._replace(sites=before.sites)
    saved, it.backward = it.backward, backward.cls
    try:
        it.run(backward, None, [context, *gradients], {}, node)
    finally:
        it.region, it.backward = before, saved


def _gradient(value: Value) -> Value:
    if isinstance(value, Tensor):
        return value.but(op="input", operands=(), lo=-float("inf"), hi=float("inf"), symbol=None)
    return value if isinstance(value, Unknown) else unknown()
