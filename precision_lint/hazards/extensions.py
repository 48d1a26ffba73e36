"""Kernels of extensions: they take their operands in one dtype, and autocast knows nothing of them."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import Final

from precision_lint.dataflow import around, building, functions, methods, objects
from precision_lint.dataflow.building import FUNCTION
from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import AMP16, AMPBF, FLOAT32, HALF16, LOW
from precision_lint.domains.values import (
    PARAMETER,
    Closure,
    DtypeValue,
    Instance,
    Sequence,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Place
from precision_lint.hazards import origins
from precision_lint.hazards.places import function_places, made_at
from precision_lint.syntax.program import Function
from precision_lint.torchmodel import layers
from precision_lint.torchmodel.operations import operation


def kernel(it: Interpreter, name: str, arguments: list[Value], node: ast.AST) -> None:
    """A call of something outside of the project that is given tensors."""
    if len(arguments) < 2 or it.caught:
        return
    forward = _forward(it)
    if forward is not None:
        _forgotten(it, forward, name, arguments, node)
        _beside_buffer(it, name, arguments, node)
    elif not _is_function(name):
        return
    _mixed(it, name, arguments, node)


def _beside_buffer(it: Interpreter, name: str, arguments: list[Value], node: ast.AST) -> None:
    """A buffer that is float32 because nothing else was said, beside operands of a half model."""
    tensors = [made for one in arguments if (made := tensor_of(it, one)) is not None]
    low = next((one for one in tensors if _is_low(one.dtypes[HALF16])), None)
    for number, wide in enumerate(tensors):
        if low is None or wide.dtypes != dtypes.V_FLOAT32 or wide.rank == 0:
            continue
        came = origins.origin(wide, HALF16)
        if came.kind == origins.CREATED or origins.is_legacy(came.value):
            it.emit(
                "wide-buffer",
                node,
                dtypes.HALF_MODES,
                low.assumptions | assume.LIBRARY,
                about=low,
                key=number,
                origin=came.kind,
                origin_at=made_at(it, came.value),
                origin_name=came.value.op,
                operation=_short(name, node),
            )


def _is_function(name: str) -> bool:
    """Whether it is the ``apply`` of something: of an ``autograd.Function`` that lies elsewhere."""
    return name.rpartition(".")[2] == "apply"


def _forward(it: Interpreter) -> Function | None:
    """The function at hand, if it is the ``forward`` of an ``autograd.Function``."""
    function = it.function
    if function is None or function.cls is None or function.name != "forward":
        return None
    return function if objects.is_a(it, function.cls, *FUNCTION) else None


def _mixed(it: Interpreter, name: str, arguments: list[Value], node: ast.AST) -> None:
    """Operands of which autocast makes some half and leaves others in float32."""
    tensors = [one for one in arguments if isinstance(one, Tensor)]
    wide = [one for one in tensors if _is_raised(one)]
    if not wide:
        return
    modes = 0
    low: list[Tensor] = []
    for mode in (AMP16, AMPBF):
        found = [one for one in tensors if _is_low(one.dtypes[mode])]
        if found:
            modes |= 1 << mode
            low = found
    if not low:
        return
    given = _handed(it, [*low, wide[0]])
    places = tuple(_places(it, arguments, low, node)) if not given else ()
    it.emit_at(
        "mixed-operands",
        given or it.place(node),
        modes & it.live,
        low[0].assumptions | wide[0].assumptions | assume.LIBRARY,
        about=low[0],
        operation=_short(name, node),
        operands=places,
    )


def _short(name: str, node: ast.AST) -> str:
    """The name of a kernel as a message says it."""
    if _is_function(name) and isinstance(node, ast.Call):
        return ast.unparse(node.func)
    return name.rpartition(".")[2]


def _is_low(dtype: int) -> bool:
    return bool(dtype & LOW) and not dtype & ~LOW


def _is_raised(value: Tensor) -> bool:
    """Whether autocast computes it in float32 where a half model has it in half; no weight."""
    if value.flags & PARAMETER or value.op == "weight":
        return False
    vector = value.dtypes
    return vector[AMP16] == vector[AMPBF] == FLOAT32 and _is_low(vector[HALF16])


def _handed(it: Interpreter, operands: Iterable[Tensor]) -> Place | None:
    """The call that gave a custom function's ``forward`` these operands, as they reach the kernel."""
    if it.calls is None or _forward(it) is None or it.calls.function is None:
        return None
    given = {id(value) for value in it.variables.values() if value.__class__ is Tensor}
    arguments = _parameters(it)
    known = {id(one) for name, one in arguments.items() if id(one) in given}
    return it.calls.place if all(id(one) in known for one in operands) else None


def _parameters(it: Interpreter) -> dict[str, Value]:
    """What the parameters of the function at hand stand for now."""
    function = it.function
    names = [one.arg for one in function.parameters[1:]] if function is not None else []
    return {name: it.variables[name] for name in names if name in it.variables}


def _places(
    it: Interpreter, arguments: list[Value], operands: list[Tensor], node: ast.AST
) -> Iterator[Place]:
    written = node.args if isinstance(node, ast.Call) and not it.unpacked else []
    for value, one in zip(arguments, written, strict=False):
        if any(value is operand for operand in operands):
            yield it.place(one)


def _forgotten(
    it: Interpreter, forward: Function, name: str, arguments: list[Value], node: ast.AST
) -> None:
    """One operand stays as it came, where the others are cast to the dtype of one of them."""
    casts = [made for one in arguments if (made := _cast_to(one)) is not None]
    if len(casts) < 2:
        return
    target = _origin(casts[0][1])
    if any(_origin(source) is not target for _, source in casts[1:]):
        return
    handed = {id(one) for one in arguments}
    learned = _learned(it, forward)
    rest = {
        parameter: value
        for parameter, value in _parameters(it).items()
        if parameter in learned and id(value) in handed and _cast_to(value) is None
    }
    left = [parameter for parameter, value in rest.items() if _origin(value) is not target]
    if len(left) == 1 and len(rest) == 2:
        it.emit(
            "forgotten-operand",
            casts[-1][0].node or node,
            dtypes.ALL_MODES,
            assume.LIBRARY,
            operation=name.rpartition(".")[2],
            operand=left[0],
        )


def _origin(value: Value) -> object:
    """A tensor by what it is, wherever it was passed; an unknown object by its symbol."""
    found = peel(value)
    if isinstance(found, Tensor) and found.op == "cast" and _cast_to(found) is None:
        return found
    if isinstance(found, Unknown):
        return found.symbol
    if isinstance(found, Tensor) and found.symbol is not None and found.op == "input":
        return found.symbol
    return found


def _cast_to(value: Value) -> tuple[Tensor, Tensor] | None:
    """A tensor that takes the dtype of another one, and the first of those whose dtype it is."""
    made = peel(value.symbol.tensor if isinstance(value, Unknown) else value)
    if not isinstance(made, Tensor) or made.op != "cast" or len(made.operands) < 2:
        return None
    followed = made.operands[1]
    source = followed.source if isinstance(followed, DtypeValue) else None
    if source is None:
        return None
    further = _cast_to(source)
    return made, further[1] if further is not None else source


def _learned(it: Interpreter, forward: Function) -> frozenset[str]:
    """Parameters of ``forward`` for which ``backward`` gives a gradient: they are of floats."""
    assert forward.cls is not None
    backward = objects.find_method(it, forward.cls, "backward")
    if backward is None:
        return frozenset()
    names = [one.arg for one in forward.parameters[1:]]
    found: set[str] = set()
    for node in ast.walk(backward.node):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            for name, one in zip(names, node.value.elts, strict=False):
                if not (isinstance(one, ast.Constant) and one.value is None):
                    found.add(name)
    return frozenset(found)


around.EXTERNAL.append(kernel)


# functions whose backward runs their forward again


RUNS: Final = "runs"


def run_again(it: Interpreter, callee: Value, node: ast.AST, method: str = "") -> None:
    """What ``forward`` ran in a region, and ``backward`` runs again outside of it.

    callee: the owner, where it is a method.
    """
    identity = _identity(callee, method)
    if identity is None or _is_launch(it, node):
        return
    forward = _forward(it)
    on = dtypes.regions_on(it.region.dtypes)
    if forward is not None and on:
        it.notes.setdefault((RUNS, forward.cls), {})[identity] = on, it.region.assumptions
    cls = it.backward
    if cls is None or it.region._replace(sites=()) != functions.LEFT:
        return
    known = it.notes.get((RUNS, cls), {}).get(identity)
    places = function_places(it, cls)
    if known is not None and places is not None:
        modes, assumptions = known
        it.emit_at(
            "run-again", places[0], modes, assumptions | assume.NETWORK, methods=places[1:],
            again=it.place(node),
        )  # fmt: skip


def _is_launch(it: Interpreter, node: ast.AST) -> bool:
    """``kernel[grid](...)`` launches a kernel, which no region reaches; a list of models has one index."""
    launched = getattr(node, "func", None)
    grid = it.expr(launched.slice) if isinstance(launched, ast.Subscript) else None
    return isinstance(grid, Closure) or (isinstance(grid, Sequence) and grid.kind == "tuple")


def _identity(callee: Value, method: str) -> tuple[str, int] | None:
    """An object that runs as a model, by the outermost that is known; other methods do not."""
    if isinstance(callee, Instance):
        return None if _is_alike(callee) else ("object", id(callee.root))
    if not isinstance(callee, Unknown):
        return None
    symbol = callee.symbol
    name = method or (symbol.label if symbol.owner is not None else "")
    if name.isidentifier() and name not in ("forward", "__call__"):
        return None
    while symbol.owner is not None:
        symbol = symbol.owner
    return "unknown", symbol.number


def _is_alike(owner: Instance) -> bool:
    """Whether a layer does the same inside and outside of regions: it has no weights, and no policy."""
    known = layers.layer(owner.cls) if isinstance(owner.cls, str) else None
    if known is None or known.weights or known.container:
        return False
    applied = operation(known.operation)
    return applied is not None and not applied.policy


def model_called(it: Interpreter, callee: Value, given: list[Value], node: ast.AST) -> None:
    """What is called there may run again."""
    run_again(it, callee, node)


building.CALLED.append(model_called)
methods.REPEATED.append(run_again)
