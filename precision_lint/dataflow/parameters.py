"""What a function's parameters are when nothing is known of its callers."""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow.declared import (
    NUMBERS,
    TENSOR_CLASSES,
    as_annotated,
    is_none,
    jaxtyped,
    last,
    parsed,
)
from precision_lint.dataflow.filling import leave_open
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.layer_objects import has_no_weights
from precision_lint.dataflow.objects import (
    FUNCTIONS,
    ancestry,
    class_constant,
    find_method,
    is_a,
    is_module,
    was_cast,
    weights_of,
)
from precision_lint.dataflow.only_class import given_class, only_class, only_model
from precision_lint.dataflow.regions import casts_to
from precision_lint.dataflow.tensors import dtype_of
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    EMPTY,
    Array,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Reference,
    Root,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.syntax.imports import is_test
from precision_lint.syntax.program import Class, Function

CONTAINERS: Final = frozenset(
    {"list", "tuple", "set", "Sequence", "Iterable", "List", "Tuple", "Set"}
)
MAPPINGS: Final = frozenset({"dict", "Dict", "Mapping", "MutableMapping", "OrderedDict"})


APART: Final = (
    "torch.utils.data.Dataset", "torch.utils.data.IterableDataset", "torch.utils.data.dataset.Dataset",
    "torch.optim.Optimizer", "torch.optim.optimizer.Optimizer",
)  # fmt: skip
"""Classes whose methods run outside of regions, on what is float32 there: data, parameters and gradients."""


def is_outside(it: Interpreter, function: Function) -> bool:
    """Whether autocast never reaches a function: tests, data sets, optimizers, constructors of modules, and
    backward, which has left the region."""
    known = function.facts.get("outside")
    if known is None:
        cls = function.cls
        known = is_test(function.module.path)
        if cls is not None and not known:
            made = function.name == "__init__" and is_module(it, cls)
            known = (
                made
                or is_a(it, cls, *APART)
                or (
                    function.name == "backward"
                    and is_a(it, cls, *FUNCTIONS)
                    and not returns_to_region(it, function)
                )
            )
        function.facts["outside"] = known
    return bool(known)


RETURNS: Final = frozenset({"custom_bwd", "amp_bwd"})


def returns_to_region(it: Interpreter, backward: Function) -> bool:
    """Whether a decorator runs ``backward`` in the state that ``forward`` ran in, which is no region where
    ``custom_fwd`` casts the operands: ``custom_bwd``, or a function of the project that applies it."""
    forward = backward.cls.methods.get("forward") if backward.cls is not None else None
    for node in getattr(forward.node, "decorator_list", ()) if forward is not None else ():
        if casts_to(it.evaluate_in(backward.module, node)) is not None:
            return False
    for node in getattr(backward.node, "decorator_list", ()):
        named = node.func if isinstance(node, ast.Call) else node
        if last(named) in RETURNS:
            return True
        if _applies(it, it.evaluate_in(backward.module, named), 2):
            return True
    return False


def _applies(it: Interpreter, decorator: Value, depth: int) -> bool:
    """Whether a decorator is ``custom_bwd``, or a function of the project that calls it, directly or not."""
    if isinstance(decorator, Special) and decorator.kind == "partial":
        return _applies(it, decorator.fields["of"], depth)
    if isinstance(decorator, Special) and decorator.kind == "either":
        return any(_applies(it, one, depth) for one in decorator.fields["options"])
    if isinstance(decorator, Reference):
        return decorator.name.rpartition(".")[2] in RETURNS
    if not isinstance(decorator, Closure) or not depth:
        return False
    function = decorator.function
    calls = [one.func for one in ast.walk(function.node) if isinstance(one, ast.Call)]
    return any(last(one) in RETURNS for one in calls) or any(
        _applies(it, it.evaluate_in(function.module, one), depth - 1)
        for one in calls
        if isinstance(one, ast.Name)
    )


def unseen(
    it: Interpreter, function: Function, argument: ast.arg, default: ast.expr | None
) -> Value:
    """What a parameter is if no call of its function is known."""
    vector, assumptions = (
        (dtypes.BATCHES, assume.BATCH) if it.driver else (dtypes.INPUTS, assume.INPUT)
    )
    if argument.annotation is not None:
        annotated = _annotated(it, argument.annotation, argument.arg, vector, assumptions)
        if annotated is not None:
            return _with_default(it, function, annotated, default)
    if default is not None:
        value = it.evaluate_in(function.module, default)
        if isinstance(value, Scalar) and value.kind != "none":
            return _defaulted(value)
        named = isinstance(value, (DtypeValue, Reference))
        if named and dtype_of(it, value) not in (None, dtypes.V_ANY):
            return _some_dtype(it, argument.arg, value)
        absent = isinstance(value, Tensor) and value.flags & EMPTY
        if not absent and not isinstance(value, (Scalar, Reference)):
            return value
    cls = given_class(function, argument.arg) or only_class(it, function, argument.arg)
    if cls is not None and not is_module(it, cls):
        return unseen_object(it, cls)
    model = cls or only_model(
        it, function, argument.arg, lambda one: not has_no_weights(it, unseen_object(it, one), True)
    )
    if model is not None:
        return _unseen_model(it, function, argument.arg, model)
    return it.unknown(argument.arg, vector, assumptions)


def _some_dtype(it: Interpreter, label: str, default: Value | None = None) -> DtypeValue:
    """A dtype that the caller chooses; its default says how the code is usually run."""
    usual = dtype_of(it, default)
    if usual is not None and usual in (dtypes.V_FLOAT16, dtypes.V_BFLOAT16):
        return DtypeValue(usual, None, it.module, assume.DEFAULT)
    number = Symbol(label, dtypes.V_ANY, 0).number
    return DtypeValue(dtypes.everywhere(dtypes.symbol(number)), None, it.module)


def _defaulted(value: Scalar) -> Scalar:
    """A parameter's default, which is assumed."""
    return Scalar(
        value.value, value.kind, value.lo, value.hi, assume.DEFAULT, value.node, value.home,
        value.op, value.operands,
    )  # fmt: skip


def _with_default(
    it: Interpreter, function: Function, value: Value, default: ast.expr | None
) -> Value:
    if default is not None and is_none(default):
        _may_be_none(value)
    if isinstance(value, Scalar) and default is not None:
        given = it.evaluate_in(function.module, default)
        if isinstance(given, Scalar) and given.kind != "none":
            return _defaulted(given)
    if isinstance(value, DtypeValue) and default is not None:
        return _some_dtype(it, "dtype", it.evaluate_in(function.module, default))
    return value


def _annotated(
    it: Interpreter, node: ast.expr, label: str, vector: dtypes.Dtypes, assumptions: int
) -> Value | None:
    """What an annotation says; None: nothing."""
    written = parsed(node)
    if written is None:
        return None
    node = written
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return _one_or_none(it, [node.left, node.right], label, vector, assumptions)
    name = last(node)
    if isinstance(node, ast.Subscript):
        return _subscripted(it, node, name, label, vector, assumptions)
    return _by_name(it, node, name, label, vector, assumptions)


def _one_or_none(
    it: Interpreter, options: list[ast.expr], label: str, vector: dtypes.Dtypes, assumptions: int
) -> Value | None:
    """What a choice of annotations says, of which one is not ``None``."""
    parts = [one for one in options if not is_none(one)]
    if len(parts) != 1:
        return None
    value = _annotated(it, parts[0], label, vector, assumptions)
    return _may_be_none(value) if len(options) > 1 else value


def _may_be_none(value: Value | None) -> Value | None:
    """A scaler, or another object of a kind, that a caller may leave out."""
    if isinstance(value, Special):
        value.fields["optional"] = True
    return value


def _by_name(
    it: Interpreter,
    node: ast.expr,
    name: str,
    label: str,
    vector: dtypes.Dtypes,
    assumptions: int,
) -> Value | None:
    """What the name of a type says."""
    if name in NUMBERS:
        return Scalar(None, NUMBERS[name])
    if name in ("Tensor", "FloatTensor"):
        unknown = it.unknown(label, vector, assumptions)
        unknown.symbol.uses |= Symbol.TENSOR
        return unknown
    if name in TENSOR_CLASSES:
        return Tensor(dtypes.everywhere(TENSOR_CLASSES[name]), "input", (), None, it.module)
    if name == "ndarray":
        return Array(dtypes.V_ANY, "input")
    if name == "dtype":
        return _some_dtype(it, label)
    if name == "GradScaler":
        return Special("scaler", None, it.module, assume.FLAG, label=label)
    if name in ("Optimizer", "Adam", "AdamW", "SGD"):
        return Special("optimizer", None, it.module, label=label)
    if name in CONTAINERS | MAPPINGS:
        return it.unknown(label, vector, assumptions)
    return _of_class(it, node)


def _subscripted(
    it: Interpreter,
    node: ast.Subscript,
    name: str,
    label: str,
    vector: dtypes.Dtypes,
    assumptions: int,
) -> Value | None:
    inside: Any = node.slice
    if name == "Optional":
        return _may_be_none(_annotated(it, inside, label, vector, assumptions))
    if name == "Union" and isinstance(inside, ast.Tuple):
        return _one_or_none(it, inside.elts, label, vector, assumptions)
    said = jaxtyped(it, it.module, node)
    if said:
        return as_annotated(it, it.module, it.unknown(label, vector, assumptions), node)
    if name in CONTAINERS:
        parts = inside.elts if isinstance(inside, ast.Tuple) else [inside]
        plain = [p for p in parts if not (isinstance(p, ast.Constant) and p.value is Ellipsis)]
        made = [_annotated(it, part, label, vector, assumptions) for part in plain]
        known = [m if m is not None else it.unknown(label, vector, assumptions) for m in made]
        if name in ("tuple", "Tuple") and len(plain) == len(parts):
            return Sequence(tuple(known), None, "tuple")
        return Sequence(None, known[0] if known else None, "list")
    if name in MAPPINGS and isinstance(inside, ast.Tuple) and len(inside.elts) == 2:
        return Table({}, _annotated(it, inside.elts[1], label, vector, assumptions))
    return None


def _of_class(it: Interpreter, node: ast.expr) -> Value | None:
    """An object of a class of the project, built somewhere else."""
    value = it.evaluate_in(it.module, node)
    if isinstance(value, ClassValue):
        return unseen_object(it, value.cls)
    return None


def unseen_object(it: Interpreter, cls: Class) -> Instance:
    """An object of a class, of which nobody saw how it was built."""
    known = cls.facts.get("unseen")
    if known is None:
        known = cls.facts["unseen"] = Instance(cls, {}, Root(dtypes.FOLLOWS))
        it.program.built.append(cls)
        initialise(it, known)
    return known


def _unseen_model(it: Interpreter, function: Function, name: str, cls: Class) -> Instance:
    """A model that a function is given: each parameter is another one."""
    like = unseen_object(it, cls)
    roots: dict[Any, Root] = cls.facts.setdefault("roots", {})
    root = roots.setdefault((function, name), Root(dtypes.FOLLOWS))
    root.guessed = True
    return Instance(cls, like.attributes, root)


def initialise(it: Interpreter, made: Instance) -> None:
    """Run ``__init__`` of an object with unknown arguments; declared fields may have their defaults."""
    cls = made.cls
    assert isinstance(cls, Class)
    for base in ancestry(it, cls):
        for name, said in base.annotations.items() if isinstance(base, Class) else ():
            kind, usual = NUMBERS.get(last(said)), class_constant(it, cls, name)
            if isinstance(usual, Scalar) and usual.kind != "none":
                made.attributes[name] = _defaulted(usual)
            elif dtype_of(it, usual) in (dtypes.V_FLOAT16, dtypes.V_BFLOAT16):
                made.attributes[name] = _some_dtype(it, name, usual)
            elif kind is not None and usual is None:
                made.attributes[name] = Scalar(None, kind)
    init = find_method(it, made.cls, "__init__")
    if init is None:
        return
    weights = it.weights
    it.run(init, made, None, {}, init.node)
    if is_module(it, cls):
        leave_open(cls, ancestry(it, cls), made.attributes)
    it.weights = weights
    _given_as_built(it, cls, made)


def _given_as_built(it: Interpreter, cls: Class, made: Instance) -> None:
    """Attributes of which nothing is known: the model that the file casts and gives objects of this class."""
    built: dict[Any, Instance] = cls.facts.get("built", {})
    for name, value in made.attributes.items() if built else ():
        held = [each.attributes.get(name) for each in built.values()]
        known = [one for one in held if isinstance(one, Instance) and was_cast(it, one)]
        alike = {(one.cls, weights_of(it, one)[0]) for one in known}
        if isinstance(value, Unknown) and len(known) == len(held) and len(alike) == 1:
            made.attributes[name] = known[0]
