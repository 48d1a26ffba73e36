"""Optimizers, scalers and gradients: what is done to them is recorded in the trace."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Final

from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.protocol import note
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    DETACHED,
    INF,
    MULTIPLIED,
    NONE,
    SOME_RANK,
    Closure,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
    class_of,
)
from precision_lint.syntax.program import bindings, dotted
from precision_lint.torchmodel import foreign
from precision_lint.torchmodel.creation import creation

SCALERS: Final = frozenset({
    "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler",
    "torch.amp.grad_scaler.GradScaler", "torch.cuda.amp.grad_scaler.GradScaler",
    "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler",
    "torch.npu.amp.GradScaler",
})  # fmt: skip


OPTIMIZERS_MADE: Final[list[Callable[[Interpreter, Special], None]]] = []
HANDLED: Final[list[Callable[[Interpreter, Special, Value, ast.AST], None]]] = []
"""What to look for where an optimizer is made, and where it steps (``hazards``)."""
SCALERS_MADE: list[
    Callable[[Interpreter, str, list[Value], Mapping[str, Value], ast.AST], None]
] = []
SCALED: Final[list[Callable[[Interpreter, Value, ast.AST, Special], None]]] = []
"""What to look for where a scaler is made, and where it scales a loss (``hazards``)."""
SCALES: Final[list[Callable[[Interpreter, Special, Value, ast.AST], None]]] = []
"""The same, with the scaler."""
BACKWARD: Final[list[Callable[[Interpreter, Value, ast.AST], None]]] = []
OWN_BACKWARD: Final[list[Callable[[Interpreter, Value, ast.AST], None]]] = []
"""What looks at backward passes that no framework runs, which scales losses itself."""
STATE_LOADED: Final[list[Callable[[Interpreter, Special, ast.AST], None]]] = []
"""What to look for where a scaler gets its state back."""
STEPPED: Final[list[Callable[[Interpreter, Special, ast.AST], None]]] = []
"""What to look for at a backward pass, and where an optimizer moves the weights."""


def make_scaler(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """``GradScaler(...)``; ``enabled`` is its truth, None where a flag decides."""
    order: tuple[str, ...] = (
        "init_scale",
        "growth_factor",
        "backoff_factor",
        "growth_interval",
        "enabled",
    )
    if name.startswith("torch.amp"):
        order = ("device", *order)
    for look in SCALERS_MADE:
        look(it, name, arguments, keywords, node)
    given = {**dict(zip(order, arguments, strict=False)), **keywords}
    value = given.get("enabled")
    enabled: bool | None = True
    if value is not None:
        known = isinstance(value, Scalar) and value.value is not None and not value.assumptions
        enabled = bool(value.value) if known and isinstance(value, Scalar) else None
    scaler = Special(
        "scaler", node, it.module, 0 if enabled else assume.FLAG, enabled=enabled, test=value,
        name=name, given=given,
    )  # fmt: skip
    note(it, "new-scaler", node, scaler)
    if enabled is not False:
        flag = enabled is None
        it.sign(dtypes.AMP16, "a GradScaler is made here", node, flag=flag, bound=True)
    return scaler


def make_optimizer(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """``torch.optim.AdamW(parameters, ...)``"""
    parameters = arguments[0] if arguments else keywords.get("params", unknown())
    made = Special(
        "optimizer", node, it.module, name=name.rpartition(".")[2], parameters=parameters,
        keywords=keywords, arguments=arguments,
    )  # fmt: skip
    note(it, "new-optimizer", node, made)
    for look in OPTIMIZERS_MADE:
        look(it, made)
    return made


OPTIMIZER: Final = ("torch.optim.Optimizer", "torch.optim.optimizer.Optimizer")


def groups(it: Interpreter, node: ast.AST) -> Special:
    """The groups of a class of optimizers: parameters, and numbers by name."""
    return Special("groups", node, it.module, owner=it.unknown("parameters", dtypes.FOLLOWS))


def given(arguments: list[Value], keywords: Mapping[str, Value]) -> list[Value]:
    """What ``step`` is given: an optimizer, or a closure by name as well."""
    return [*arguments, keywords["closure"]] if "closure" in keywords else arguments


def scaler_method(
    it: Interpreter, owner: Special, name: str, arguments: list[Value], node: ast.AST
) -> Value:
    """A method of a GradScaler."""
    first = arguments[0] if arguments else None
    if name == "scale" and isinstance(first, Sequence):
        return _each_scaled(it, owner, first, node)
    if name == "scale" and first is not None:
        note(it, "scale", node, owner, first)
        for look in SCALED:
            look(it, first, node, owner)
        for found in SCALES:
            found(it, owner, first, node)
        loss = tensor_of(it, first) if isinstance(first, Unknown) else first
        if isinstance(loss, Tensor):
            first = loss
            return Tensor(
                first.dtypes, "scaled", (first, owner), node, it.module,
                assumptions=first.assumptions, rank=first.rank, flags=MULTIPLIED,
            )  # fmt: skip
        return Special("scaled", node, it.module, of=first, scaler=owner)
    if name in ("unscale_", "step", "update"):
        return _handles(it, owner, name, arguments, node)
    if name in ("get_scale", "_get_scale_async"):
        return Scalar(None, "float", 0, op="scale", operands=(owner,))
    if name == "is_enabled":
        return Scalar(None, "bool", op="enabled", operands=(owner,))
    if name in ("state_dict", "load_state_dict"):
        note(it, name, node, owner)
        for read in STATE_LOADED if name == "load_state_dict" else ():
            read(it, owner, node)
        return Special("state", node, it.module, of=owner)
    return unknown()


def _each_scaled(it: Interpreter, owner: Special, losses: Sequence, node: ast.AST) -> Value:
    """``scaler.scale([loss, other])``"""
    parts = losses.items if losses.items is not None else (losses.element or unknown(),)
    scaled = [scaler_method(it, owner, "scale", [one], node) for one in parts]
    if losses.items is not None:
        return Sequence(tuple(scaled), None, losses.kind)
    return Sequence(None, scaled[0], losses.kind)


def _handles(
    it: Interpreter, owner: Special, name: str, arguments: list[Value], node: ast.AST
) -> Value:
    """A scaler unscales or steps an optimizer, or ends the iteration."""
    first = arguments[0] if arguments else None
    note(it, {"unscale_": "unscale"}.get(name, name), node, owner, *arguments)
    if first is not None and name != "update":
        if isinstance(first, Unknown):
            seen = Special("optimizer", node, it.module, assume.FLAG, of=first)
            known = first.symbol.attributes.setdefault(("protocol", False), seen)
            if isinstance(known, Special):
                known.fields.pop(GUESSED, None)
        for handled in HANDLED:
            handled(it, owner, first, node)
    for moved in STEPPED if name == "step" else ():
        moved(it, owner, node)
    return NONE if name != "step" else unknown()


def optimizer_method(
    it: Interpreter, owner: Special, name: str, arguments: list[Value], node: ast.AST
) -> Value:
    """A method of an optimizer."""
    if name == "step":
        if arguments and isinstance(arguments[0], Closure):
            it.call(arguments[0], [], {}, node)
        note(it, owner.fields.get("steps", "plain-step"), node, owner, *arguments)
        for moved in STEPPED if not arguments else ():
            moved(it, owner, node)
        return unknown()
    if name == "zero_grad":
        owner.fields.pop(GUESSED, None)
        note(it, "zero", node, owner)
        return NONE
    if name in ("state_dict", "load_state_dict"):
        note(it, name, node, owner)
        return Special("state", node, it.module, of=owner)
    return unknown()


def of_unknown(
    it: Interpreter, value: Unknown, name: str, arguments: list[Value], node: ast.AST
) -> Value:
    """A method that only scalers or optimizers have, of an object that nobody saw."""
    scaler = name in ("unscale_", "scale", "update", "get_scale") or (
        name == "step" and len(arguments) > 0 and not isinstance(arguments[0], Closure)
    )
    known = value.symbol.attributes.get(("protocol", scaler))
    if known is None:
        behind = assume.FLAG | (assume.WRAPPED if is_marked(value.symbol, WRAPS) else 0)
        known = Special("scaler" if scaler else "optimizer", node, it.module, behind, of=value)
        if not scaler and is_marked(value.symbol, PREPARED):
            known.fields["steps"] = "prepared-step"
        if name == "step" and not scaler:
            known.fields[GUESSED] = True
        value.symbol.attributes[("protocol", scaler)] = known
    assert isinstance(known, Special)
    if scaler:
        return scaler_method(it, known, name, arguments, node)
    return optimizer_method(it, known, name, arguments, node)


GUESSED: Final = "guessed"
"""The field of an optimizer of which only ``step()`` was seen, as a scheduler has it."""
WRAPS: Final = "wraps", ""
SCALED_GRADIENT: Final = "scaled-gradient"
"""The operation that gives what ``torch.autograd.grad`` makes of a scaled loss."""
GRADIENT_OF: Final = "gradient of", ""
"""What ``torch.autograd.grad`` was given to go back from, and the weights of it."""
PREPARED: Final = "prepared", ""
"""What a framework made that scales losses: its optimizers divide by the scale as they step."""


def replaces(node: ast.AST, call: ast.Call) -> bool:
    """Whether what a call gives takes the place of one of its arguments: ``a, b = place(a, b)``."""
    named = [getattr(one, "elts", (one,)) for one, value in bindings(node) if value is call]
    targets = {dotted(one) for group in named for one in group} - {None}
    given = [*call.args, *(one.value for one in call.keywords)]
    return any(dotted(one) in targets for one in given)


def wraps(node: ast.Assign | ast.AnnAssign | ast.NamedExpr, result: Value) -> None:
    """What a call gives in the place of what it got may wrap it: ``model, opt = prepare(model, opt)``."""
    if not isinstance(result, (Unknown, Sequence)) or not isinstance(node.value, ast.Call):
        return
    if replaces(node, node.value):
        parts = result.items or (result.element,) if isinstance(result, Sequence) else (result,)
        for part in parts:
            if isinstance(part, Unknown):
                part.symbol.attributes[WRAPS] = NONE


def is_marked(symbol: Symbol | None, mark: tuple[str, str]) -> bool:
    """Whether an unknown object, or one that holds it, is marked."""
    while symbol is not None:
        if mark in symbol.attributes:
            return True
        symbol = symbol.owner
    return False


def prepared(optimizer: Special) -> Special:
    """What a framework gives in the place of an optimizer: its steps divide gradients by the loss scale."""
    optimizer.fields["steps"] = "bypassing-step"
    fields = {**optimizer.fields, "steps": "prepared-step"}
    return Special("optimizer", optimizer.node, optimizer.home, optimizer.assumptions, **fields)


def updates(it: Interpreter, value: Unknown, node: ast.Call) -> bool:
    """Whether ``x.update()`` is a scaler's: bars of progress, dicts and averages have one as well."""
    if ("protocol", True) in value.symbol.attributes:
        return True
    receiver = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
    asked = it.module.methods_called().get(receiver or "", set())
    return not asked.isdisjoint(SCALES_ONLY) or ("step" in asked and not node.args)


def steps(it: Interpreter, value: Unknown, arguments: list[Value], node: ast.Call) -> bool:
    """Whether ``x.step(y)`` is an optimizer's or a scaler's: schedulers get what was measured."""
    given = arguments[0] if arguments else None
    if given is None or isinstance(given, Closure):
        return True
    known = isinstance(given, Special) and given.kind == "optimizer"
    others = [one for one in arguments[1:] if not isinstance(one, Closure)]
    if not known and (others or not isinstance(given, Unknown)):
        return False
    if ("protocol", True) in value.symbol.attributes:
        return True
    receiver = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
    return bool(it.module.methods_called().get(receiver or "", set()) & OF_SCALERS)


SCALES_ONLY: Final = frozenset({"scale", "unscale_", "get_scale"})
OF_SCALERS: Final = SCALES_ONLY | {"update"}


def backward(it: Interpreter, loss: Value, node: ast.AST) -> Value:
    """``loss.backward()``"""
    note(it, "backward", node, loss)
    for look in (*BACKWARD, *OWN_BACKWARD):
        look(it, loss, node)
    return NONE


def differentiated(
    it: Interpreter, name: str, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
) -> Value:
    """``torch.autograd.grad(outputs, inputs)`` and ``torch.autograd.backward(losses)``"""
    note(it, "autograd", node, *arguments)
    if name.endswith(".backward") and arguments:
        return backward(it, arguments[0], node)
    given = {**dict(zip(("outputs", "inputs"), arguments, strict=False)), **keywords}
    inputs, outputs = given.get("inputs", unknown()), given.get("outputs")
    if isinstance(outputs, Tensor) and outputs.op == "scaled":
        return _scaled_gradient(it, outputs, inputs, node)
    parts = (inputs.items or ()) if isinstance(inputs, Sequence) else (inputs,)
    tensors = [one for one in parts if isinstance(one, Tensor)]
    order = ("outputs", "inputs", "grad_outputs")
    weights = {**dict(zip(order, arguments, strict=False)), **keywords}.get("grad_outputs")
    of = Special("differentiated", node, it.module, outputs=outputs, weights=weights)
    if tensors and len(tensors) == len(parts):
        made = {"op": "gradient", "operands": (), "data": of, "node": node, "lo": -INF, "hi": INF}
        return Sequence(tuple([one.but(**made) for one in tensors]), None)
    found = it.unknown("gradient", dtypes.V_ANY, assume.CALL)
    found.symbol.flags |= 0 if "create_graph" in keywords else DETACHED
    found.symbol.attributes[GRADIENT_OF] = of
    return Sequence(None, found, "tuple")


def _scaled_gradient(it: Interpreter, loss: Tensor, inputs: Value, node: ast.AST) -> Sequence:
    """``torch.autograd.grad(scaler.scale(loss), inputs)``: multiplied by the loss scale."""
    vector = inputs.dtypes if isinstance(inputs, Tensor) else dtypes.V_ANY
    made = Tensor(vector, SCALED_GRADIENT, (loss,), node, it.module, assumptions=loss.assumptions)
    alone = isinstance(inputs, (Tensor, Unknown))
    return Sequence((made,), None, "tuple") if alone else Sequence(None, made, "tuple")


def _is_gradient(loss: Value) -> bool:
    """Whether a tensor is no loss: it is more than one number, or nothing computed it (``randn_like(y)``)."""
    if not isinstance(loss, Tensor):
        return False
    made = creation(loss.op)
    filled = made is not None and made.kind != "data"
    return filled or loss.rank > 0 or loss.rank == SOME_RANK or loss.op == "index_put"


def backward_with(it: Interpreter, owner: Unknown, loss: Value, node: ast.Call) -> None:
    """``accelerator.backward(loss)``, or ``y.backward(gradient)`` of a tensor.

    What a call gave is a tensor or an object of the code's own, unless it is asked for what frameworks do.
    """
    options = {one.arg for one in node.keywords}
    alone = len(node.args) == 1 and options <= OPTIONS
    if (alone and not _is_made(owner.symbol)) or _is_framework(it, owner, node):
        framework_backward(it, owner, loss, node)
    elif alone:
        backward(it, owner, node)


OPTIONS: Final = frozenset({"model", "retain_graph", "create_graph", "inputs"})
"""What frameworks' ``backward`` takes besides the loss."""


def _is_made(symbol: Symbol | None) -> bool:
    """Whether an unknown object, or what holds it, was given by a call."""
    while symbol is not None:
        if symbol.assumptions & (assume.CALL | assume.NETWORK):
            return True
        symbol = symbol.owner
    return False


def _is_framework(it: Interpreter, owner: Unknown, node: ast.Call) -> bool:
    """Whether an object is a framework's, by its class or by what else it is asked for."""
    if class_of(owner.symbol) in foreign.ACCELERATORS:
        return True
    receiver = dotted(node.func.value) if isinstance(node.func, ast.Attribute) else None
    if "." in (receiver or ""):
        return not it.module.methods_called().get(receiver or "", set()).isdisjoint(OF_FRAMEWORKS)
    own = it.function.node if it.function is not None else it.module.tree
    return any(
        isinstance(one, ast.Attribute)
        and one.attr in OF_FRAMEWORKS
        and dotted(one.value) == receiver
        for one in ast.walk(own)
    )


OF_FRAMEWORKS: Final = frozenset({
    "accumulate", "autocast", "clip_grad_norm_", "clip_grad_value_", "clip_gradients", "gather",
    "is_main_process", "no_sync", "prepare", "setup", "step", "sync_gradients", "unscale_gradients",
    "unwrap_model", "wait_for_everyone",
})  # fmt: skip
"""What only the objects of Accelerate, Fabric and DeepSpeed are asked for, of those with ``backward(loss)``."""


def framework_backward(it: Interpreter, owner: Value, loss: Value, node: ast.AST) -> None:
    """``accelerator.backward(loss)``; what is no one number is the gradient of a tensor: ``y.backward(g)``."""
    if _is_gradient(loss):
        backward(it, owner, node)
        return
    note(it, "framework-backward", node, owner, loss)
    for look in BACKWARD:
        look(it, loss, node)


def clip(it: Interpreter, name: str, arguments: list[Value], node: ast.AST) -> Value:
    """``clip_grad_norm_(parameters, ...)`` and its kin."""
    note(it, "clip", node, *arguments)
    if "norm" in name:
        return Tensor(
            dtypes.V_FLOAT32, "norm", (), node, it.module, 0.0, flags=0, rank=0, data="gradient"
        )
    return NONE
