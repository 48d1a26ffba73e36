"""Training loops: scalers and optimizers that do not fit the precision, checkpoints, regions around steps."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, TypeGuard

from precision_lint.dataflow.around import CONSTRUCTED
from precision_lint.dataflow.building import MADE_LIKE
from precision_lint.dataflow.casts import parts_of, with_parts
from precision_lint.dataflow.frozen import is_frozen
from precision_lint.dataflow.graph import factor, peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.layer_objects import has_no_weights
from precision_lint.dataflow.libraries import SHARDED
from precision_lint.dataflow.objects import assumed_of_weights, find_method, was_cast, weights_of
from precision_lint.dataflow.operators import TESTED, owners_of
from precision_lint.dataflow.protocol import FINISHED, HANDED_OVER, RETURNED, SAVED, Step
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.dataflow.training import (
    GUESSED,
    HANDLED,
    OPTIMIZERS_MADE,
    STATE_LOADED,
    replaces,
)
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import ALL_MODES, BFLOAT16, CODE, FLOAT16, OTHER
from precision_lint.domains.joining import any_of
from precision_lint.domains.values import (
    BUFFER,
    DETACHED,
    GRADIENT,
    PARAMETER,
    Instance,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    number,
    text,
)
from precision_lint.events import Place
from precision_lint.syntax.program import Module, dotted, every
from precision_lint.torchmodel import optimizers
from precision_lint.typestate.traces import once

VANISHES: Final = 2.98e-8
"""Up to here an epsilon is 0 in float16."""
COARSE: Final = {FLOAT16: 2e-4, BFLOAT16: 2e-3}
"""Learning rates up to which updates of weights near 1 are rounded away."""


# dtypes of what is trained


def trained_dtype(it: Interpreter, parameters: Value | None) -> tuple[int, int, Place | None]:
    """The half dtype of what an optimizer trains, as written; the assumptions; where it was cast."""
    for vector, place, assumptions in _trained(it, parameters):
        code = vector[CODE]
        half = code & (FLOAT16 | BFLOAT16)
        if half and not code & OTHER:
            return half, assumptions if code == half else assumptions | assume.BRANCH, place
    return 0, 0, None


def _trained(
    it: Interpreter, value: Value | None, depth: int = 4
) -> Iterator[tuple[dtypes.Dtypes, Place | None, int]]:
    """The dtypes of the parameters in what an optimizer is given: modules' parameters, lists, groups.

    With each where it was cast, and what it rests on.
    """
    for owner in owners_of(value) if value is not None else ():
        if not is_frozen(owner):
            yield from _weights_in(it, owner)
    if isinstance(value, Tensor) and value.flags & PARAMETER:
        holders = owners_of(value.data) if isinstance(value.data, Special) else []
        if not any(map(is_frozen, holders)):
            for owner in holders:  # whose layers may have been made half one by one
                yield from _weights_in(it, owner)
            yield value.dtypes, None, value.assumptions
    elif isinstance(value, Sequence) and depth:
        for item in value.items if value.items is not None else (value.element,):
            yield from _trained(it, item, depth - 1)
    elif isinstance(value, Table) and depth:
        yield from _trained(it, value.items.get("params"), depth - 1)


def _weights_in(it: Interpreter, owner: Value) -> Iterator[tuple[dtypes.Dtypes, Place | None, int]]:
    """The dtype of an object's weights, of parameters of its own, or that in which all of its layers were made
    one by one."""
    whole = _weights(it, owner)
    yield whole
    if not isinstance(owner, Instance) or was_cast(it, owner) is not None:
        return
    for value in owner.attributes.values():
        if isinstance(value, Tensor) and value.flags & (PARAMETER | BUFFER | DETACHED) == PARAMETER:
            yield value.dtypes, None, value.assumptions
    parts = [one for one in with_parts(owner) or () if not parts_of(one, one.attributes)]
    layers = [one for one in parts if not has_no_weights(it, one, cast=True)]
    made = {weights_of(it, one)[0] for one in layers}
    if len(made) == 1 and all(was_cast(it, one) is None for one in layers):
        yield (made.pop(), *whole[1:])


def _weights(it: Interpreter, owner: Value) -> tuple[dtypes.Dtypes, Place | None, int]:
    if isinstance(owner, Instance):
        vector, place = weights_of(it, owner)
        made = owner.root.node
        if place is None and made is not None and owner.root.home is not None:
            place = it.place(made, owner.root.home)
        return vector, place, assumed_of_weights(it, owner)
    if isinstance(owner, Unknown) and owner.symbol.node is not None:
        symbol = owner.symbol
        return symbol.vector, it.place(owner.symbol.node, symbol.home), 0
    return dtypes.V_ANY, None, 0


def optimizer_made(it: Interpreter, made: Special) -> None:
    """An optimizer of half parameters: its epsilon is 0, or its updates are rounded away."""
    known = optimizers.optimizer(made["name"])
    half, assumptions, place = trained_dtype(it, made["parameters"])
    if not half or known is None or made.node is None:
        return
    given = {
        **dict(zip(known.parameters[1:], made["arguments"][1:], strict=False)),
        **made["keywords"],
    }
    if half & FLOAT16 and known.has_eps:
        epsilon = number(given.get("eps")) if "eps" in given else float(str(known.defaults["eps"]))
        if epsilon is not None and epsilon <= VANISHES:
            it.emit(
                "optimizer-epsilon", made.node, ALL_MODES, assumptions, name=made["name"],
                epsilon=epsilon, default="eps" not in given, cast=place,
            )  # fmt: skip
            return
    rate = number(given.get("lr")) if "lr" in given else None
    dtype = FLOAT16 if half & FLOAT16 else BFLOAT16
    if rate is None or 0 < rate <= COARSE[dtype]:
        it.emit(
            "half-parameters", made.node, ALL_MODES, assumptions, dtype=dtypes.NAMES[dtype],
            rate=rate, cast=place,
        )  # fmt: skip


OPTIMIZERS_MADE.append(optimizer_made)


@hazard("add", "sub")
def moved_by_hand(it: Interpreter, applied: Applied) -> None:
    """``weight.add_(gradient, alpha=-rate)`` of a half weight."""
    weight, step = peel(applied.tensor(0)), applied.tensor(1)
    if not applied.inplace or not isinstance(weight, Tensor) or step is None:
        return
    code = weight.dtypes[CODE]
    known = code in COARSE and weight.flags & (PARAMETER | BUFFER | GRADIENT) == PARAMETER
    if not known or not step.flags & GRADIENT:
        return
    scaled = factor(peel(step))
    moved = peel(scaled[0] if scaled else step)
    if not isinstance(moved, Tensor) or moved.op in ("add", "sub"):
        return  # with what was lost before, or with a momentum
    rate = number(applied["alpha"]) if applied["alpha"] is not None else scaled and scaled[1]
    if rate is None or abs(rate) <= COARSE[code]:
        it.emit(
            "half-parameters", applied.node, ALL_MODES, weight.assumptions | step.assumptions,
            dtype=dtypes.NAMES[code], rate=rate and abs(rate), cast=None,
        )  # fmt: skip


def wrapped(it: Interpreter, node: ast.AST, given: list[Value]) -> None:
    """``optimizer = FP16_Optimizer(optimizer)``: what nobody has seen may keep float32 parameters."""
    found = [one for one in given if isinstance(one, Special) and one.kind == "optimizer"]
    if not found or not _replaces(it, node):
        return
    for one in found:
        found += [other for other in one.fields.get("others", {}).values() if other not in found]
        place = it.place(one.node, one.home) if one.node is not None else None
        for kind in ("optimizer-epsilon", "half-parameters"):
            event = it.events.get((kind, place, None)) if place is not None else None
            if event is not None:
                event.variants[:] = [
                    replace(v, assumptions=v.assumptions | assume.WRAPPED) for v in event.variants
                ]


def _replaces(it: Interpreter, call: ast.AST) -> bool:
    """Whether the result of a call takes the place of one of its arguments."""
    body = it.function.node if it.function is not None else it.module.tree
    return isinstance(call, ast.Call) and any(replaces(one, call) for one in ast.walk(body))


HANDED_OVER.append(wrapped)


def scaler_steps(it: Interpreter, scaler: Special | None, optimizer: Value, node: ast.AST) -> None:
    """A scaler that unscales float16 gradients."""
    if (
        scaler is None
        or not isinstance(optimizer, Special)
        or scaler.fields.get("enabled") is False
    ):
        return
    half, assumptions, place = trained_dtype(it, optimizer.fields.get("parameters"))
    if half & FLOAT16:
        it.emit_at(
            "half-parameters-scaled",
            place or it.place(node),
            ALL_MODES,
            assumptions | scaler.assumptions,
            optimizer=it.place(optimizer.node, optimizer.home)
            if optimizer.node is not None
            else None,
            step=it.place(node),
        )


HANDLED.append(scaler_steps)
OTHERWISE: Final = frozenset({"peft_config", "deepspeed", "fsdp"})
"""Settings of a trainer by which others than a scaler see to the gradients, or others are trained."""
PACKED: Final = frozenset({"quantization_config", "load_in_8bit", "load_in_4bit"})
"""Keywords by which a model is loaded in fewer bits: its own weights are not trained."""


def trainer_made(it: Interpreter, name: str, keywords: Mapping[str, Value], node: ast.AST) -> None:
    """``Trainer(model=model, args=TrainingArguments(fp16=True))`` of a float16 model: it scales losses."""
    model, settings = keywords.get("model"), keywords.get("args")
    if not name.endswith("Trainer") or model is None:
        return
    if not isinstance(settings, (Unknown, Instance)):
        return
    known: Mapping[Any, Value] = (
        settings.attributes if isinstance(settings, Instance) else settings.symbol.attributes
    )
    switch = known.get("fp16")
    named = {key for key in OTHERWISE if text(known.get(key)) or key in keywords}
    off = isinstance(switch, Scalar) and (switch.value is False or switch.kind == "none")
    if named or switch is None or off:
        return
    loaded = model.root.node if isinstance(model, Instance) else None
    packed = any(one.arg in PACKED for one in getattr(loaded, "keywords", ()))
    given = (
        [k.value for k in node.keywords if k.arg == "model"] if isinstance(node, ast.Call) else []
    )
    if packed or not given or _changed(it, node, given):  # type: ignore[arg-type]
        return
    vector, place, assumptions = _weights(it, model)
    code = vector[CODE]
    if code & FLOAT16 and not code & OTHER and place is not None:
        certain = code == FLOAT16 and isinstance(switch, Scalar) and switch.value is True
        assumptions |= assume.LIBRARY | (0 if certain else assume.BRANCH)
        _report_scaled(it, place, node, assumptions)


CONSTRUCTED.append(trainer_made)
MADE_LIKE.append(trainer_made)


LEAVES_ALONE: Final = frozenset({
    "parameters", "named_parameters", "train", "eval", "to", "cuda", "half", "numel", "size", "state_dict",
    "gradient_checkpointing_enable", "resize_token_embeddings", "print_trainable_parameters", "compile",
    "save_pretrained", "get_input_embeddings", "num_parameters", "tie_weights", "modules", "generate",
})  # fmt: skip
"""Methods of a model behind which the same of its parameters are trained, in the dtype that they had."""


def _changed(it: Interpreter, call: ast.Call, given: list[ast.expr]) -> bool:
    """Whether the function does more with models than to hand them to a call.

    What that is may freeze them, add other parameters or cast those that are trained.
    """
    meant = {ast.dump(one) for one in given if isinstance(one, (ast.Name, ast.Attribute))}
    body = it.function.node if it.function is not None else it.module.tree
    for one in ast.walk(body):
        if isinstance(one, ast.Attribute) and isinstance(one.ctx, ast.Store):
            if one.attr in ("requires_grad", "data"):
                return True
        if not isinstance(one, ast.Call) or one is call:
            continue
        method = one.func if isinstance(one.func, ast.Attribute) else None
        if method is not None and ast.dump(method.value) in meant:
            if method.attr not in LEAVES_ALONE:
                return True
        elif any(ast.dump(part) in meant for part in (*one.args, *(k.value for k in one.keywords))):
            return True
    return False


def _owners_of_items(value: Value | None) -> list[Value]:
    """Whose the parameters in a list are that were picked out of a module's."""
    item = any_of(value) if isinstance(value, Sequence) else None
    return (
        owners_of(item.data) if isinstance(item, Tensor) and isinstance(item.data, Special) else []
    )


def prepared(it: Interpreter, node: ast.AST, given: list[Value]) -> None:
    """``accelerator.prepare(optimizer)`` of float16 parameters, where the accelerator scales losses."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    owner = it.expr(node.func.value) if node.func.attr == "prepare" else None
    if not isinstance(owner, Unknown):
        return
    if text(owner.symbol.attributes.get("mixed_precision")) != "fp16":
        return
    steps = [one for one in given if isinstance(one, Special) and one.kind == "optimizer"]
    for one in steps:
        given_to = one.fields.get("parameters")
        half, assumptions, place = trained_dtype(it, given_to)
        picked = _owners_of_items(given_to)
        place = place or next((_weights(it, owner)[1] for owner in picked), None)
        trained = {id(owner) for owner in (*owners_of(given_to), *picked)}
        models = [  # not the batches, of which a function asks the length, or shows the progress
            at
            for at, model in zip(node.args, given, strict=False)
            if isinstance(model, Instance) or id(model) in trained
        ]
        if half & FLOAT16 and place is not None and not _changed(it, node, models):
            _report_scaled(it, place, node, assumptions | assume.LIBRARY)


HANDED_OVER.append(prepared)


def _report_scaled(it: Interpreter, place: Place, node: ast.AST, assumptions: int) -> None:
    it.emit_at(
        "half-parameters-scaled", place, ALL_MODES, assumptions, optimizer=None, step=it.place(node)
    )


# scalers


def scaler_truth(it: Interpreter, value: Value, node: ast.AST) -> None:
    """``if scaler:`` is true whether or not the scaler is enabled."""
    if isinstance(value, Special) and value.kind == "scaler" and "of" not in value.fields:
        if value.fields.get("optional") or _may_be_none(it, value):
            return
        pointless = value.fields.get("enabled") is True
        assumptions = assume.MAGNITUDE if pointless else value.assumptions & ~assume.FLAG
        it.emit("scaler-truth", node, ALL_MODES, assumptions)


def _may_be_none(it: Interpreter, scaler: Special) -> bool:
    """Whether a function on the way here has it as a parameter that is None by default, as others leave it."""
    optional, call = scaler.fields.get("optional in", ()), it.calls
    if it.function in optional:
        return True
    while call is not None and call.function not in optional:
        call = call.outer
    return call is not None


TESTED.append(scaler_truth)


# checkpoints


def saved(it: Interpreter, values: list[Value], node: ast.AST) -> None:
    """A checkpoint with the optimizer's state and without the scaler's."""
    states = [one for value in values for one in _states(value)]
    state = next((one for one in states if _state_of(one, "optimizer")), None)
    if state is None or any(_state_of(one, "scaler") for one in states):
        return
    first = it.notes.setdefault(REPORTED, {}).get(state.node, node)
    if any(_open(value) for value in values) or first is not node:
        return
    scaler = next((one for one in _in_reach(it) if one.fields.get("enabled") is not False), None)
    if scaler is None and state.fields["of"].node is not None:
        pending = it.notes.setdefault((PENDING, state.fields["of"].node), {})
        pending.setdefault(state.node, (it.place(node), it.function, state))
    if scaler is not None and any(value is state for value in values):
        lone = it.notes.setdefault((LONE, scaler.node), [])
        if None in lone:
            return
        lone.append(it.place(node))
    if scaler is not None:
        it.notes[REPORTED][state.node] = node
        made = it.place(scaler.node, scaler.home) if scaler.node is not None else None
        it.emit(
            "scaler-not-saved", node, ALL_MODES, scaler.assumptions & ~assume.FLAG, scaler=made,
            state=it.place(state.node or node, state.home), how="saved",
        )  # fmt: skip


REPORTED, LONE, PENDING = "states", "lone states", "states of optimizers that others step"
SAVED.append(saved)


def saved_by_others(it: Interpreter, trace: list[Step]) -> None:
    """The same where who saves the optimizer's state has no scaler, and who steps it has one."""
    steps = [*once(trace, set())]
    kept = {id(one.objects[0]) for one in steps if one.kind == "state_dict"}
    for step in steps:
        if step.kind != "step" or len(step.objects) < 2:
            continue
        scaler, optimizer = step.objects[:2]
        if not isinstance(optimizer, Special) or not _is_scaler(scaler) or id(scaler) in kept:
            continue
        if scaler.fields.get("enabled") is False or scaler.fields.get("held"):
            continue
        function = it.function
        pending = it.notes.get((PENDING, optimizer.node), {})
        for place, where, state in pending.values():
            it.function = where
            it.emit_at(
                "scaler-not-saved", place, ALL_MODES, scaler.assumptions & ~assume.FLAG,
                scaler=it.place(scaler.node, scaler.home) if scaler.node is not None else None,
                state=it.place(state.node, state.home), how="elsewhere",
            )  # fmt: skip
        it.function = function


FINISHED.append(saved_by_others)


def saved_alone(it: Interpreter, values: list[Value], node: ast.AST) -> None:
    """The scaler's state in a file of its own makes up for optimizers' in theirs."""
    for value in values:
        if isinstance(value, Special) and value.kind == "state" and _state_of(value, "scaler"):
            lone = it.notes.setdefault((LONE, value.fields["of"].node), [])
            for place in filter(None, lone):
                it.events.pop(("scaler-not-saved", place, None), None)
            lone.append(None)


SAVED.append(saved_alone)


def _state_of(state: Special, kind: str) -> bool:
    owner = state.fields.get("of")
    return isinstance(owner, Special) and owner.kind == kind and GUESSED not in owner.fields


def _open(value: Value) -> bool:
    """Whether a dict may hold more than is known, or says that it holds something of the scaler."""
    if not isinstance(value, Table):
        return False
    if value.element is not None:
        return True
    return any(
        (isinstance(item, Scalar) and item.op == "scale")
        or (isinstance(key, str) and any(word in key.lower() for word in ("scaler", "amp")))
        for key, item in value.items.items()
    )


def handed_on(it: Interpreter, node: ast.AST, given: list[Value]) -> None:
    """A dict of states that is handed to a function."""
    saved(it, [one for one in given if isinstance(one, Table)], node)


HANDED_OVER.append(handed_on)


def state_given(it: Interpreter, value: Value, node: ast.AST) -> None:
    """What a ``state_dict`` gives of an object that owns a scaler."""
    function = it.function
    if function is None or function.cls is None or function.name != "state_dict":
        return
    named = {one.value for one in ast.walk(function.cls.node) if isinstance(one, ast.Constant)}
    owner = it.variables.get(function.parameters[0].arg) if function.parameters else None
    if not isinstance(owner, Instance) or isinstance(owner.cls, str):
        return
    if find_method(it, owner.cls, "state_dict") is not function:
        return  # a derived class adds to it
    held = owner.attributes
    if not any(name in named and _is_scaler(one) for name, one in held.items()):
        saved(it, [value], node)  # and nothing is told the scaler's name


def _is_scaler(value: Value | None) -> TypeGuard[Special]:
    return isinstance(value, Special) and value.kind == "scaler"


RETURNED.append(state_given)


# what is read back

WRITTEN, READ = "written", "read"


def state_read(it: Interpreter, owner: Special, node: ast.AST) -> None:
    """``scaler.load_state_dict(state["scaler"])`` of a key that the file does not write."""
    given = node.args[0] if isinstance(node, ast.Call) and node.args else None
    key = given.slice.value if _constant_item(given) else None  # type: ignore[union-attr]
    if isinstance(key, str):
        it.notes.setdefault((it.module.path, READ), []).append((key, node, it.module))
        _compare(it)


def _constant_item(node: ast.AST | None) -> bool:
    return isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)


def state_written(it: Interpreter, values: list[Value], node: ast.AST) -> None:
    """Note under which keys the states of scalers are saved."""
    for value in values:
        for key, item in value.items.items() if isinstance(value, Table) else ():
            if isinstance(item, Special) and item.kind == "state" and _state_of(item, "scaler"):
                it.notes.setdefault((it.module.path, WRITTEN), set()).add(key)
                _compare(it)


SAVED.append(state_written)
STATE_LOADED.append(state_read)


def _compare(it: Interpreter) -> None:
    """Report keys that are read and not written; one that is both makes up for the others."""
    written = it.notes.get((it.module.path, WRITTEN), set())
    read = it.notes.get((it.module.path, READ), [])
    if written and not any(key in written for key, _, _ in read):
        for _, node, home in read:
            it.emit_at(
                "scaler-not-saved", it.place(node, home), ALL_MODES, assume.LIBRARY, scaler=None,
                state=None, how="unread",
            )  # fmt: skip
    elif written:
        for _, node, _ in read:
            it.events.pop(("scaler-not-saved", it.place(node), None), None)


def _states(value: Any, depth: int = 4) -> Iterator[Special]:
    """State dicts in what is saved."""
    if isinstance(value, Special) and value.kind == "state":
        yield value
    elif isinstance(value, Table) and depth:
        for item in value.items.values():
            yield from _states(item, depth - 1)
    elif isinstance(value, Sequence) and depth:
        for item in value.items or ():
            yield from _states(item, depth - 1)


def _in_reach(it: Interpreter) -> Iterator[Special]:
    """Scalers that are held by the variables and the object at hand."""
    held = list(it.variables.items())
    for value in list(it.variables.values()):
        held += list(value.attributes.items()) if isinstance(value, Instance) else []
    for name, value in held:
        if isinstance(value, Special) and value.kind == "scaler" and _is_used(it.module, name):
            yield value


def _is_used(module: Module, name: Any) -> bool:
    """Whether something scales in a file, or a scaler of a name is handed to what may."""
    if any("scale" in names for names in module.methods_called().values()):
        return True
    handed: set[str] | None = module.facts.get("handed")
    if handed is None:
        calls = [one for one in every(module.tree) if isinstance(one, ast.Call)]
        given = [value for one in calls for value in (*one.args, *(k.value for k in one.keywords))]
        handed = {(dotted(value) or "").rpartition(".")[2] for value in given}
        module.facts["handed"] = handed
    return name in handed


# gradients of several ranks


def half_reduction(
    it: Interpreter, parameters: dtypes.Dtypes, reduced: Value | None, node: ast.AST
) -> None:
    """FSDP with parameters in half, whose gradients are summed over the ranks in that dtype."""
    dtype = parameters[CODE]
    absent = reduced is None or (isinstance(reduced, Scalar) and reduced.kind == "none")
    if absent and dtype in (FLOAT16, BFLOAT16) and not it.unpacked and not it.caught:
        it.emit("half-reduction", node, ALL_MODES, assume.LIBRARY, half=dtypes.NAMES[dtype])


SHARDED.append(half_reduction)
