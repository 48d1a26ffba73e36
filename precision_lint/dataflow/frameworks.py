"""Models that training frameworks run: Accelerate, Fabric, Lightning and the Trainer of ``transformers``.

Sources: ``accelerate.Accelerator.prepare_model`` and ``lightning.fabric`` open autocast around the
model's forward and give back float32; Lightning's ``Trainer`` opens it around the steps of a module.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from copy import copy
from typing import Final

from precision_lint.dataflow import building, objects, regions, training
from precision_lint.dataflow.around import CONSTRUCTED
from precision_lint.dataflow.calls import CALLEES
from precision_lint.dataflow.containers import child
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.parameters import unseen
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    NONE,
    REGIONAL,
    Closure,
    Instance,
    RegionValue,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    class_of,
)
from precision_lint.project import spellings
from precision_lint.torchmodel import foreign

Arguments = list[Value]
Keywords = Mapping[str, Value]

SETTINGS: Final = ("mixed_precision", "precision", "fp16", "bf16")
ASKED: Final = (0, dtypes.FLOAT16, dtypes.BFLOAT16, 0, 0)
"""The region of a framework that is set up elsewhere."""
BY_NAME: Final = {"float16": dtypes.FLOAT16, "bfloat16": dtypes.BFLOAT16}
PREPARES: Final = frozenset({
    "prepare", "prepare_model", "prepare_optimizer", "setup", "setup_module", "setup_optimizers",
})  # fmt: skip
STEPS: Final = {
    "fit": ("training_step", "validation_step"),
    "validate": ("validation_step",),
    "test": ("test_step",),
    "predict": ("predict_step",),
}
"""Methods of Lightning's ``Trainer``, and those of a module that each runs."""


def called(
    it: Interpreter,
    owner: Unknown,
    name: str,
    arguments: Arguments,
    keywords: Keywords,
    made: Value,
    node: ast.AST,
) -> Value:
    """A method of an unknown object, which may be a framework's that wraps or runs models.

    made: what it gives as far as is known without.
    """
    cls = class_of(owner.symbol)
    if name in PREPARES and cls in foreign.ACCELERATORS:
        region = _region(it, cls, owner, node)
        return made if region is None else _prepared(it, arguments, region, made)
    if name == "unwrap_model" and cls in foreign.ACCELERATORS and arguments:
        return arguments[0]  # still called in the region, by default
    if name in STEPS and cls in foreign.TRAINERS:
        models = (one for one in (*arguments, *keywords.values()) if isinstance(one, Instance))
        region = _region(it, cls, owner, node)
        if region is not None:
            for model in models:
                _run(it, model, STEPS[name], region, node)
    return made


def trained(it: Interpreter, trainer: Instance, node: ast.AST) -> None:
    """The loss of a subclass of the Trainer of ``transformers``, which runs it as its arguments say."""
    given = trainer.attributes.get("args")
    if isinstance(given, Unknown):
        region = _region(it, class_of(given.symbol), given, node)
        if region is not None:
            _run(it, trainer, ("compute_loss",), region, node)


def region(it: Interpreter, owner: Unknown, node: ast.AST) -> RegionValue:
    """The region of ``accelerator.autocast()``."""
    return _region(it, class_of(owner.symbol), owner, node) or _as_set_up(it, node)


def _as_set_up(it: Interpreter, node: ast.AST) -> RegionValue:
    return RegionValue(ASKED, "", assume.LIBRARY, node=node, home=it.module)


def _region(it: Interpreter, cls: str, owner: Unknown, node: ast.AST) -> RegionValue | None:
    """What a framework runs models in; None: as far as is known, in no region."""
    attributes = owner.symbol.attributes
    given = {name: attributes[name] for name in SETTINGS if name in attributes}
    said = [_said(cls, name, value) for name, value in given.items()]
    if None in said or (not said and cls.endswith(".Accelerator")):
        return _as_set_up(it, node)
    for dtype in said:
        if dtype:
            vector = dtypes.everywhere(dtype)
            return RegionValue(vector, "", assume.LIBRARY, node=node, home=it.module)
    return None


def _said(cls: str, name: str, value: Value) -> int | None:
    """The dtype of autocast that a setting asks for; 0: none, None: it is decided elsewhere."""
    if not isinstance(value, Scalar) or value.value is None or value.assumptions:
        return None
    said = spellings.judge((cls.rpartition(".")[2], name), value.value, code=True)
    if said is None or said.kind != "autocast" or len(said.dtypes) != 1:
        return 0
    return BY_NAME[next(iter(said.dtypes))]


def _prepared(it: Interpreter, given: Arguments, region: RegionValue, made: Value) -> Value:
    """What ``prepare(model, optimizer)`` gives back: its arguments in their order, models in a region."""
    scales = region.dtypes[dtypes.AMP16] == dtypes.FLOAT16
    if scales and isinstance(made, Unknown):
        made.symbol.attributes[training.PREPARED] = NONE
    parts: Arguments = []
    for at, one in enumerate(given):
        if isinstance(one, Instance) and objects.is_module(it, one.cls):
            parts.append(_in_region(one, region))
        elif scales and isinstance(one, Special) and one.kind == "optimizer":
            parts.append(training.prepared(one))
        else:
            parts.append(made if len(given) == 1 else child(it, made, at))
    return parts[0] if len(parts) == 1 else Sequence(tuple(parts), None, "tuple")


def optimizers_of_module(it: Interpreter) -> Unknown:
    """``self.optimizers()`` of a module of Lightning: its own, which divide gradients in float16."""
    made = it.unknown("optimizers", dtypes.V_ANY, assume.LIBRARY)
    made.symbol.attributes[training.PREPARED] = NONE
    return made


def _in_region(value: Instance, region: RegionValue | None) -> Instance:
    return Instance(
        value.cls,
        value.attributes,
        value.root,
        value.path,
        value.arguments,
        None,
        value.also,
        region,
    )


def _run(
    it: Interpreter, model: Instance, names: tuple[str, ...], region: RegionValue, node: ast.AST
) -> None:
    """A trainer runs methods of a model on data, inside of a region."""
    for name in names:
        method = objects.find_method(it, model.cls, name)
        if method is None:
            continue
        driver, it.driver = it.driver, True
        parameters = [*method.parameters][1:]
        given = [unseen(it, method, one, None) for one in parameters]
        it.driver = driver
        inside(it, region, Closure(method, model), given, {}, node)


def inside(
    it: Interpreter,
    region: RegionValue,
    callee: Value,
    arguments: Arguments,
    keywords: Keywords,
    node: ast.AST,
) -> Value:
    """What a call gives that a framework makes inside of a region."""
    before, it.region = it.region, regions.entered(it, region)._replace(mark=0)
    of_module, it.of_module = it.of_module, True
    result = it.call(callee, arguments, dict(keywords), node)
    it.region, it.of_module = before, of_module
    return result


def _given_back(value: Value, region: dtypes.Dtypes) -> Value:
    """What Accelerate and Fabric make of a model's result: half precision becomes float32."""
    if isinstance(value, Tensor):
        raised = dtypes.raised(value.dtypes, region)
        return value.but(dtypes=raised, flags=value.flags & ~REGIONAL)
    if isinstance(value, Sequence) and value.items is not None:
        items = tuple([_given_back(one, region) for one in value.items])
        return Sequence(items, value.element, value.kind)
    if isinstance(value, Table):
        return Table({k: _given_back(one, region) for k, one in value.items.items()}, value.element)
    return value


def call_model(
    it: Interpreter,
    callee: Instance,
    arguments: Arguments,
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """Calling an object, which a framework may have prepared."""
    if callee.region is None:
        return building.call_instance(it, callee, arguments, keywords, node)
    region = copy(callee.region)
    region.cache = False  # it ends with the call, and so does what it keeps
    model = _in_region(callee, None)
    return _given_back(inside(it, region, model, arguments, keywords, node), region.dtypes)


CALLEES[Instance] = call_model


def trainer(it: Interpreter, name: str, keywords: dict[str, Value], node: ast.AST) -> None:
    """``Trainer(model=..., args=TrainingArguments(fp16=True))`` calls the model in a region."""
    model, args = keywords.get("model"), keywords.get("args")
    if name in foreign.HUGGING_FACE and isinstance(model, Instance) and isinstance(args, Unknown):
        region = _region(it, name, args, node)
        if region is not None:
            _run(it, model, ("forward",), region, node)


CONSTRUCTED.append(trainer)
