"""Calls of functions outside of the project: torch, NumPy, Python's own."""

from __future__ import annotations

import ast
import math
from collections.abc import Callable

from precision_lint.dataflow import (
    around,
    arrays,
    building,
    casts,
    iterators,
    objects,
    regions,
    settings,
    training,
)
from precision_lint.dataflow.containers import elements, written
from precision_lint.dataflow.creation import create, holds_floats, is_beside, used_as_device
from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter, tensor_of
from precision_lint.dataflow.operators import absolute, binary, of_module, owners_of, rounded_number
from precision_lint.dataflow.protocol import handed, note
from precision_lint.dataflow.records import hide, load_made_up, store_named
from precision_lint.dataflow.several import each_of_list
from precision_lint.dataflow.tensors import cast, dtype_of, operate
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import join_all, unknown, widened
from precision_lint.domains.values import (
    DETACHED,
    INF,
    KEPT,
    NONE,
    ON_DEVICE,
    PARAMETER,
    Array,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Reference,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    counts,
    number,
    text,
)
from precision_lint.torchmodel import creation, foreign, operations

Arguments = list[Value]
Keywords = dict[str, Value]
Handler = Callable[[Interpreter, str, Arguments, Keywords, ast.AST], Value]
COPY = "copy.deepcopy"
SAME = frozenset({
    "torch.compile", "torch.jit.script", "torch.jit.trace", "torch.nn.DataParallel",
    "torch.nn.parallel.DistributedDataParallel", "torch.clone", "torch.nn.parallel.DataParallel",
    "copy.copy", COPY, "torch.nn.SyncBatchNorm.convert_sync_batchnorm", "torch.nn.utils.weight_norm",
    "torch.nn.utils.spectral_norm", "torch.nn.utils.parametrizations.weight_norm", "torch.jit.ignore",
    "torch.nn.utils.parametrizations.spectral_norm", "torch._dynamo.optimize", "typing.cast",
    "torch.nn.utils.prune.remove", "functools.wraps", "torch.jit.unused", "builtins.staticmethod",
})  # fmt: skip
"""Functions that give back their (first) argument, as far as dtypes go."""
EAGER = frozenset({
    "torch.jit.is_scripting", "torch.jit.is_tracing", "torch.onnx.is_in_onnx_export",
    "torch.compiler.is_exporting", "torch.overrides.has_torch_function",
    "torch.overrides.has_torch_function_unary", "torch.overrides.has_torch_function_variadic",
})  # fmt: skip
"""Functions that are false where code runs as it is written: neither scripted nor exported."""
CHECKPOINT = frozenset({
    "torch.utils.checkpoint.checkpoint", "torch.utils.checkpoint.checkpoint_sequential",
})  # fmt: skip
CONSTANTS = {
    "math.pi": math.pi, "math.e": math.e, "math.inf": INF, "numpy.pi": math.pi, "numpy.e": math.e,
    "numpy.inf": INF, "torch.pi": math.pi, "torch.inf": INF, "torch.e": math.e, "math.tau": math.tau,
    "sys.float_info.epsilon": 2.0**-52, "sys.float_info.min": 2.2250738585072014e-308,
    "sys.float_info.max": 1.7976931348623157e308, "sys.maxsize": 2**63 - 1,
}  # fmt: skip
"""Numbers by their dotted name."""


def constant(it: Interpreter, name: str, node: ast.AST) -> Value | None:
    """A member of a library that is a number or a dtype."""
    found = CONSTANTS.get(name)
    if found is not None:
        return Scalar(
            found, "int" if isinstance(found, int) else "float", node=node, home=it.module
        )
    home, _, last = name.rpartition(".")
    if home in ("torch", "numpy"):
        from precision_lint.dataflow.tensors import KEYS

        if last in KEYS and (home == "torch" or last not in ("float", "int", "bool", "long")):
            return DtypeValue(dtypes.everywhere(KEYS[last]), node, it.module)
    if name in ("numpy.nan", "math.nan", "torch.nan"):
        return Scalar(None, "float")
    return None


def library(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """What calling something outside of the project gives, by its dotted name."""
    root = name.partition(".")[0]
    if regions.is_autocast(name):
        for look in ASKED:
            look(it, name, node)
        return regions.make_region(it, name, arguments, keywords, node)
    handler = ROOTS.get(root)
    if name in SAME and arguments:
        return objects.copied(it, arguments[0], node) if name == COPY else arguments[0]
    if name.rpartition(".")[2] == "FullyShardedDataParallel":
        return _sharded(it, arguments, keywords, node)
    if handler is not None:
        return handler(it, name, arguments, keywords, node)
    made = around.call(it, name, arguments, keywords, node)
    if root in foreign.PLAIN:
        counts([made])
    return made


def _sharded(it: Interpreter, arguments: Arguments, keywords: Keywords, node: ast.AST) -> Value:
    """A model whose parameters and buffers are cast as ``mixed_precision`` says."""
    given = keywords.get("mixed_precision")
    if isinstance(given, Special) and given.kind == "mixed-precision":
        casts.show_cast(it, given.fields["dtypes"], node)
    elif isinstance(given, Scalar) and given.value is True:  # fairscale
        casts.show_cast(it, dtypes.V_FLOAT16, node)
    return arguments[0] if arguments else unknown()


SHARDED: list[Callable[[Interpreter, dtypes.Dtypes, Value | None, ast.AST], None]] = []
"""What to look for where FSDP is told its dtypes: of parameters, and of what is reduced (``hazards``)."""


def _mixed_precision(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``MixedPrecision(param_dtype=...)``"""
    given = {**dict(zip(("param_dtype", "reduce_dtype"), arguments, strict=False)), **keywords}
    asked = dtype_of(it, given.get("param_dtype"))
    if asked is None:
        return unknown()
    for look in SHARDED:
        look(it, asked, given.get("reduce_dtype"), node)
    return Special("mixed-precision", node, it.module, dtypes=asked)


# torch


CHECKS = frozenset({
    "torch._check", "torch._check_value", "torch._check_type", "torch._check_not_implemented",
    "torch._check_index", "torch._assert", "torch._check_tensor_all", "torch._assert_async",
})  # fmt: skip
"""Functions that raise unless their first argument holds."""
ASKED: list[Callable[[Interpreter, str, ast.AST], None]] = []
"""What to look for where a function of torch is called, by its dotted name (``hazards``)."""


def _torch(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if name.startswith("torch._"):
        return _private(it, name, arguments, node)
    for look in ASKED:
        look(it, name, node)
    known = TORCH.get(name)
    if known is not None:
        return known(it, name, arguments, keywords, node)
    if name in training.SCALERS:
        return training.make_scaler(it, name, arguments, keywords, node)
    operation = operations.of_function(name)
    if operation is not None:
        inplace = name.endswith("_") and not name.endswith("__")
        result = operate(it, operation, arguments, keywords, node, inplace)
        return written(it, result, node, inplace)
    made = creation.of_function(name)
    if made is not None:
        return create(it, made, arguments, keywords, node)
    if name.startswith("torch.nn."):
        found = _torch_nn(it, name, arguments, keywords, node)
        if found is not None:
            return found
    if name.startswith(MAKERS) and name.rpartition(".")[2][:1].isupper():
        return _torch_object(it, name, arguments, keywords, node)
    if name in CHECKPOINT and arguments:
        return it.call(arguments[0], arguments[1:], {}, node)
    handed(it, node, Reference(name), [*arguments, *keywords.values()])
    return it.unknown(name.rpartition(".")[2], dtypes.V_ANY, assume.CALL)


SCALED = frozenset({
    "Normal", "Uniform", "Gumbel", "Laplace", "LogNormal", "HalfNormal", "Cauchy", "Exponential",
    "Beta", "Gamma",
})  # fmt: skip
"""Distributions whose samples have the dtype of their parameters."""


def _private(it: Interpreter, name: str, arguments: Arguments, node: ast.AST) -> Value:
    """``torch._check(test)``, and what is nobody's business."""
    each_of_list(it, name, arguments, node)
    if name in CHECKS and isinstance(node, ast.Call) and node.args:
        it.narrow(node.args[0], True, True)
    return unknown()


def _torch_nn(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value | None:
    layer = building.call_class_of_layer(it, name, arguments, keywords, node)
    if layer is not None:
        return layer
    if ".init." in name:
        return arguments[0] if arguments else unknown()
    if ".utils." in name and "clip_grad" in name:
        return training.clip(it, name, arguments or list(keywords.values()), node)
    if name.endswith(".utils.get_total_norm"):
        note(it, "read", node, *arguments)
        return Scalar(None, "float", 0)
    return None


MAKERS = ("torch.optim.", "torch.distributions.")
"""Packages whose classes make objects with a protocol."""


def _torch_object(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if name.startswith("torch.distributions."):
        if name.rpartition(".")[2] in SCALED:
            return Special("distribution", node, it.module, of=[*arguments, *keywords.values()][:2])
        handed(it, node, Reference(name), [*arguments, *keywords.values()])
        return it.unknown(name.rpartition(".")[2], dtypes.V_ANY, assume.CALL)
    if ".lr_scheduler" in name:
        given = keywords.get("optimizer", arguments[0] if arguments else unknown())
        # its steps change no parameter
        return Special("scheduler", node, it.module, optimizer=given)
    if ".swa_utils" in name:
        return it.unknown(name.rpartition(".")[2], dtypes.V_ANY, assume.CALL)
    return training.make_optimizer(it, name, arguments, keywords, node)


def _emptied(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    regions.empty(it)
    return NONE


def _finfo(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    value = arguments[0] if arguments else next(iter(keywords.values()), None)
    if isinstance(value, DtypeValue) and name == "torch.finfo":
        holds_floats(value.source)
    vector = dtype_of(it, value) if value is not None else it.program.default_dtype
    return Special("finfo", node, it.module, dtypes=vector or dtypes.V_ANY)


def _is_floating_point(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    value = arguments[0] if arguments else None
    known = dtypes.are_floats(value.dtypes) if isinstance(value, Tensor) else None
    return Scalar(known, "bool", op="is_floating_point", operands=tuple(arguments[:1]))


TRAINED = 4.0
"""How many times as large as it starts, and as one, a parameter is assumed to become."""


def _parameter(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """A parameter; training takes it away from what it starts from, to either side of zero.

    It moves with its module, wherever it was made.
    """
    value = arguments[0] if arguments else keywords.get("data", unknown())
    made = tensor_of(it, value)
    if made is None:
        return Tensor(it.program.default_dtype, "parameter", (), node, it.module, flags=PARAMETER)
    asked = arguments[1] if len(arguments) > 1 else keywords.get("requires_grad")
    fixed = isinstance(asked, Scalar) and asked.value is False
    most = TRAINED * max(abs(made.lo), abs(made.hi), 1.0)
    lo, hi = (made.lo, made.hi) if fixed else (-most, most)
    flags = PARAMETER | (KEPT if is_beside(made) else 0) | (DETACHED if fixed else 0)
    return made.but(
        op="parameter", operands=(made,), node=node, home=it.module, symbol=None, lo=lo, hi=hi,
        flags=made.flags & ~(DETACHED | ON_DEVICE) | flags,
    )  # fmt: skip


def _no_grad(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if arguments and isinstance(arguments[0], Closure):
        return arguments[0]
    return Special("no-grad", node, it.module)


def _device(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    named = text(arguments[0]) if arguments else None
    kind = named.partition(":")[0] if named is not None else None
    first = used_as_device(arguments[0] if arguments else keywords.get("type"))
    return Special("device", node, it.module, type=kind, named=first)


def _default_dtype(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if name.endswith("get_default_dtype"):
        return DtypeValue(it.program.default_dtype, node, it.module)
    vector = dtype_of(it, arguments[0]) if arguments else None
    if vector is None or vector[0] & dtypes.OTHER:
        it.program.default_dtype = dtypes.join(dtypes.V_FLOAT32, dtypes.V_FLOAT64)
        return NONE
    # a setting that may name half is hardly ever set to it
    default = it.program.default_dtype = tuple([one & ~dtypes.LOW or one for one in vector])
    casts.show_cast(it, default, node, True)
    return NONE


def _autocast_dtype(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    region = it.region
    vector = tuple([x & dtypes.ANY or dtypes.FLOAT16 for x in region.dtypes])
    if not region.explicit:
        vector = (dtypes.LOW, *vector[1:])  # whoever calls decides
    return DtypeValue(vector, node, it.module)


def _several(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``meshgrid`` and ``broadcast_tensors``: as many tensors as arguments."""
    given = arguments
    if len(given) == 1 and isinstance(given[0], Sequence) and given[0].items is not None:
        given = list(given[0].items)
    found = [tensor_of(it, value) for value in given]
    items: list[Value] = [
        one.but(op="view", operands=(one,), node=node, home=it.module, rank=-1, data=name)
        if one
        else unknown()
        for one in found
    ]
    return Sequence(tuple(items), None, "tuple")


def _promoted(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    found = [dtype_of(it, value) for value in arguments]
    vectors = [v for v in found if v is not None]
    if not vectors:
        return unknown()
    vector = vectors[0]
    for other in vectors[1:]:
        vector = dtypes.promote(vector, other)
    return DtypeValue(vector, node, it.module)


def _eager(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    return Scalar(False, "bool", node=node, home=it.module)


SPARSE = {
    "torch.sparse_coo_tensor": 1, "torch.sparse.FloatTensor": 1, "torch.cuda.sparse.FloatTensor": 1,
    "torch.sparse_csr_tensor": 2, "torch.sparse_csc_tensor": 2, "torch.sparse_bsr_tensor": 2,
    "torch.sparse_compressed_tensor": 2,
}  # fmt: skip
"""Functions that make a sparse tensor, and which of their arguments are its values."""


def _sparse(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``torch.sparse_coo_tensor(indices, values)`` has the dtype of its values."""
    at = SPARSE[name]
    given = arguments[at] if len(arguments) > at else keywords.get("values")
    values = tensor_of(it, given) if given is not None else None
    if values is None:
        return it.unknown(name.rpartition(".")[2], dtypes.V_ANY, assume.CALL)
    made = values.but(op="view", operands=(values,), node=node, home=it.module, rank=2, symbol=None)
    asked = dtype_of(it, keywords["dtype"]) if "dtype" in keywords else None
    return cast(it, made, asked, node) if asked is not None else made


def _positions(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``torch.where(condition)``: where it holds, as integers for each dimension."""
    operation = operations.of_function(name)
    if operation is None or len(arguments) + len(keywords) > 1:
        return operate(it, operation, arguments, keywords, node) if operation else unknown()
    found = Tensor(dtypes.V_INTEGER, "nonzero", tuple(arguments), node, it.module, rank=1)
    return Sequence(None, found, "tuple")


def _decorates(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``custom_bwd(device_type="cuda")`` waits for the function; with one, it gives that function."""
    if arguments:
        return arguments[0]
    if set(keywords) <= {"device_type"}:
        return Reference(name)
    return Special("partial", node, it.module, of=Reference(name), arguments=[], keywords=keywords)


def _count(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    return Scalar(None, "int", 0, INF, node=node, home=it.module)


COUNTS = (
    "torch.distributed.get_world_size", "torch.distributed.get_rank", "torch.cuda.device_count",
    "torch.cuda.current_device", "torch.get_num_threads", "torch.cuda.memory_allocated",
    "torch.cuda.max_memory_allocated", "torch.cuda.memory_reserved", "torch.cuda.max_memory_reserved",
)  # fmt: skip
"""Functions that give an integer."""
DECORATORS = [
    f"torch.{home}.{name}"
    for home in ("amp", "amp.autocast_mode", "cuda.amp", "cuda.amp.autocast_mode")
    for name in ("custom_fwd", "custom_bwd")
]
TORCH: dict[str, Handler] = {
    **dict.fromkeys(COUNTS, _count),
    **dict.fromkeys(DECORATORS, _decorates),
    "torch.where": _positions,
    "torch.clear_autocast_cache": _emptied,
    **dict.fromkeys(
        (
            "torch.distributed.fsdp.MixedPrecision",
            "torch.distributed.fsdp.fully_sharded_data_parallel.MixedPrecision",
            "torch.distributed.fsdp.MixedPrecisionPolicy",
            "torch.distributed._composable.fsdp.MixedPrecisionPolicy",
        ),
        _mixed_precision,
    ),
    **dict.fromkeys(("torch.finfo", "torch.iinfo"), _finfo),
    "torch.is_tensor": arrays.is_tensor,
    "torch.is_floating_point": _is_floating_point,
    **dict.fromkeys(foreign.PADDED, around.padded),
    "torch.nn.Parameter": _parameter,
    "torch.nn.parameter.Parameter": _parameter,
    "torch.nn.Buffer": _parameter,
    "torch.no_grad": _no_grad,
    "torch.inference_mode": _no_grad,
    "torch.autograd.no_grad": _no_grad,
    "torch.device": _device,
    "torch.set_default_dtype": _default_dtype,
    "torch.get_default_dtype": _default_dtype,
    "torch.get_autocast_gpu_dtype": _autocast_dtype,
    "torch.get_autocast_dtype": _autocast_dtype,
    "torch.autograd.grad": training.differentiated,
    "torch.autograd.backward": training.differentiated,
    "torch.meshgrid": _several,
    "torch.broadcast_tensors": _several,
    "torch.promote_types": _promoted,
    "torch.result_type": _promoted,
    **dict.fromkeys(EAGER, _eager),
    **dict.fromkeys(SPARSE, _sparse),
}


# Python


WHOLE = frozenset({"ceil", "floor", "trunc", "gcd", "lcm", "comb", "perm", "isqrt", "factorial"})
"""Functions of ``math`` that give integers."""


def _math(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    last = name.rpartition(".")[2]
    values = [number(value) for value in arguments]
    function = getattr(math, last, None)
    assumptions = 0
    for value in arguments:
        if isinstance(value, Scalar):
            assumptions |= value.assumptions
    if function is not None and values and None not in values:
        try:
            found = function(*values)
        except (ValueError, TypeError, ArithmeticError):
            return Scalar(None, "float")
        kind = "int" if isinstance(found, int) else "float"
        return Scalar(found, kind, assumptions=assumptions, node=node, home=it.module)
    lo = 0.0 if last in ("sqrt", "exp", "fabs", "hypot") else -INF
    return Scalar(
        None, "int" if last in WHOLE else "float", lo, INF, assumptions, node, it.module,
        f"math.{last}", tuple(arguments),
    )  # fmt: skip


def _builtin(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    handler = BUILTINS.get(name.partition(".")[2])
    return handler(it, name, arguments, keywords, node) if handler is not None else unknown()


def _range(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    counts(arguments)
    ends = [v if isinstance(v, Scalar) else Scalar(None, "int") for v in arguments]
    if not ends:
        return Special("range", node, it.module, lo=0, hi=INF)
    first, last = (Scalar(0, "int"), ends[0]) if len(ends) == 1 else (ends[0], ends[1])
    if len(ends) > 2 and ends[2].lo < 0:
        first, last = last, first
    hi = max(last.hi - 1, 0) if len(ends) == 1 else last.hi
    one_way = len(ends) < 3 or ends[2].lo >= 0 or ends[2].hi < 0
    entered = one_way and first.hi < last.lo
    return Special("range", node, it.module, lo=first.lo, hi=hi, bound=last, entered=entered)


def _zipped(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if name.endswith("enumerate"):
        return Special("enumerate", node, it.module, of=arguments[0] if arguments else unknown())
    return Special("zip", node, it.module, of=arguments)


def _converted(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """``int(x)``, ``float(x)``, ``str(x)``, ``bool(x)``"""
    kind = name.rpartition(".")[2]
    first = arguments[0] if arguments else None
    if isinstance(first, Scalar) and first.value is not None and kind != "str":
        try:
            value = {"int": int, "float": float, "bool": bool}[kind](first.value)
        except (ValueError, TypeError, OverflowError):
            return Scalar(None, kind)
        return Scalar(value, kind, -INF, INF, first.assumptions, first.node, first.home)
    if isinstance(first, (Scalar, Tensor)) and kind in ("int", "float"):
        return Scalar(
            None, kind, first.lo, first.hi, first.assumptions, node, it.module, "item", (first,)
        )
    if isinstance(first, Unknown) and kind in ("int", "float"):
        return Scalar(None, kind, op="item", operands=(first,))
    if kind == "str" and isinstance(first, Special) and first.kind == "device":
        return Scalar(None, kind, node=node, home=it.module, op="str", operands=(first,))
    return Scalar(None, kind)


def _length(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    first = arguments[0] if arguments else None
    if isinstance(first, Sequence) and first.items is not None:
        return Scalar(len(first.items), "int")
    operands = (first,) if first is not None else ()
    return Scalar(None, "int", 0, INF, op="size", operands=operands)


def _extreme(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    values = arguments
    if len(values) == 1:
        inner = elements(it, values[0], node)
        values = inner if isinstance(inner, list) else [inner]
    numbers = [v for v in values if isinstance(v, Scalar)]
    if numbers and len(numbers) == len(values):
        least = name.endswith("min")
        choose = min if least else max
        known = [v.value for v in numbers]
        assumptions = 0
        for one in numbers:
            assumptions |= one.assumptions
        if all(isinstance(v, (int, float)) for v in known):
            return Scalar(choose(known), numbers[0].kind, assumptions=assumptions)
        lo, hi = choose(v.lo for v in numbers), choose(v.hi for v in numbers)
        kind = numbers[0].kind if len({v.kind for v in numbers}) == 1 else "number"
        op = name.rpartition(".")[2]
        return Scalar(None, kind, lo, hi, assumptions, node, it.module, op, tuple(numbers[:4]))
    return join_all(list(values))


def _sum(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    inner = elements(it, arguments[0], node) if arguments else unknown()
    if not isinstance(inner, list):
        many = isinstance(inner, Tensor)  # bounds that move with one more have no end
        return widened(inner, binary(it, "add", inner, inner, node)) if many else inner
    total: Value | None = None
    for item in inner:
        total = item if total is None else binary(it, "add", total, item, node)
    return total if total is not None else Scalar(0, "int")


def _listed(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    kind = name.rpartition(".")[2]
    if not arguments:
        return Sequence((), None, kind)
    if owners_of(arguments[0]):
        return arguments[0]
    inner = elements(it, arguments[0], node)
    if isinstance(inner, list):
        items = inner[::-1] if kind == "reversed" else inner
        return Sequence(tuple(items), None, kind)
    return Sequence(None, inner, kind)


def _dict(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    first = arguments[0] if arguments else None
    if isinstance(first, Table):
        return Table({**first.items, **keywords}, first.element)
    items = dict(keywords)
    if isinstance(first, Sequence) and first.items is not None:
        for pair in first.items:
            if isinstance(pair, Sequence) and pair.items and isinstance(pair.items[0], Scalar):
                items[pair.items[0].value] = pair.items[1]
        return Table(items, None)
    each = first.element if isinstance(first, Sequence) else None
    if isinstance(each, Sequence) and each.items is not None and len(each.items) == 2:
        return Table(items, each.items[1])
    return Table(items, unknown() if first is not None or it.unpacked else None)


def _collections(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """Containers of ``collections`` that are dicts and lists in all that matters here."""
    kind = name.rpartition(".")[2]
    if kind == "OrderedDict":
        return _dict(it, name, arguments, keywords, node)
    if kind == "defaultdict":
        made = arguments[0] if arguments else None
        if isinstance(made, Reference) and made.name in ("builtins.float", "builtins.int"):
            return Table({}, Scalar(0, made.name.rpartition(".")[2], node=node, home=it.module))
        return Table({}, it.call(made, [], {}, node) if made is not None else None)
    if kind == "deque":
        return _listed(it, "builtins.list", arguments, keywords, node)
    return around.call(it, name, arguments, keywords, node)


def _mapped(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if len(arguments) < 2:
        return unknown()
    inner = elements(it, arguments[1], node)
    if isinstance(inner, list) and len(inner) <= 8:
        found = [it.call(arguments[0], [item], {}, node) for item in inner]
        return Sequence(tuple(found), None, "list")
    one = join_all(list(inner)) if isinstance(inner, list) else inner
    return Sequence(None, it.call(arguments[0], [one], {}, node), "list")


def _attribute_of(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    from precision_lint.dataflow.methods import attribute

    named = text(arguments[1]) if len(arguments) > 1 else None
    if "setattr" in name:
        if isinstance(arguments[0], Instance) and len(arguments) > 2:
            keeps = hide if "__" in name else store_named
            keeps(it, arguments[0], arguments[1], arguments[2])
        return NONE
    if named is None:
        owner = arguments[0] if len(arguments) > 1 else None
        if not isinstance(owner, Instance):
            return unknown()
        return load_made_up(it, owner, arguments[1]) or unknown()
    found = attribute(it, arguments[0], named, node)
    return settings.or_default(found, arguments[2]) if len(arguments) > 2 else found


FUNCTIONS = (Closure, ClassValue)
OTHERS = (Tensor, Array, Scalar, Sequence, Table, DtypeValue)


def _callable(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """Whether something may be called, or is a function."""
    first = arguments[0] if arguments else None
    known = True if isinstance(first, FUNCTIONS) else False if isinstance(first, OTHERS) else None
    return Scalar(known, "bool")


def _rounded(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    operation = operations.operation(name.rpartition(".")[2])
    first = arguments[0] if arguments else unknown()
    if isinstance(first, Tensor) and operation is not None:
        return operate(it, operation, arguments, keywords, node)
    if not isinstance(first, Scalar) or not first.is_number:
        return first
    if name.endswith("abs"):
        return absolute(first)
    return rounded_number(first, arguments[1] if len(arguments) > 1 else keywords.get("ndigits"))


def _joined(found: Value | list[Value]) -> Value:
    return join_all(list(found) if isinstance(found, list) else [found])


BUILTINS: dict[str, Handler] = {
    "range": _range,
    **dict.fromkeys(("isinstance", "hasattr"), arrays.is_instance),
    "type": arrays.class_of,
    **dict.fromkeys(("zip", "enumerate"), _zipped),
    **dict.fromkeys(("int", "float", "str", "bool"), _converted),
    "len": _length,
    "slice": lambda it, n, a, k, node: Special("slice", node, it.module, key=None),
    **dict.fromkeys(("max", "min"), _extreme),
    "sum": _sum,
    **dict.fromkeys(("list", "tuple", "set", "sorted", "reversed", "iter", "frozenset"), _listed),
    "next": lambda it, n, a, k, node: _joined(elements(it, a[0], node)) if a else unknown(),
    "dict": _dict,
    "map": _mapped,
    "filter": lambda it, n, a, k, node: (
        Sequence(None, _joined(elements(it, a[1], node)), "list") if len(a) > 1 else unknown()
    ),
    **dict.fromkeys(("getattr", "setattr", "object.__setattr__"), _attribute_of),
    **dict.fromkeys(("issubclass", "any", "all"), lambda *of: Scalar(None, "bool")),
    "callable": _callable,
    "vars": lambda it, n, a, k, node: settings.as_table(a[0]) if a else unknown(),
    **dict.fromkeys(("abs", "round"), _rounded),
    "pow": lambda it, n, a, k, node: binary(it, "pow", a[0], a[1], node) if a[1:] else unknown(),
}


def _functools(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if name == "functools.partial" and arguments:
        of, rest = arguments[0], arguments[1:]
        if isinstance(of, Reference) and regions.is_autocast(of.name):
            for look in regions.BOUND:
                look(it, of.name, rest, keywords, node)
        return Special("partial", node, it.module, of=of, arguments=rest, keywords=keywords)
    if name == "functools.reduce" and len(arguments) > 1:
        inner = elements(it, arguments[1], node)
        one = join_all(list(inner)) if isinstance(inner, list) else inner
        return widened(one, it.call(arguments[0], [one, one], {}, node))
    return arguments[0] if arguments else unknown()


def _contextlib(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    if name.endswith("nullcontext"):
        return Special("null", node, it.module)
    return regions.stack(it, node) if name.endswith("ExitStack") else unknown()


def _inspect(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    asks = name in ("inspect.isfunction", "inspect.isroutine", "inspect.ismethod")
    return (_callable if asks else around.call)(it, name, arguments, keywords, node)


ROOTS: dict[str, Handler] = {
    "torch": _torch,
    "numpy": arrays.call,
    "math": _math,
    "builtins": _builtin,
    "functools": _functools,
    "collections": _collections,
    "contextlib": _contextlib,
    "dataclasses": settings.of_dataclass,
    "itertools": iterators.call,
    "inspect": _inspect,
    "operator": of_module,
    "einops": around.einops,
    "einops_exts": around.einops,
}
OPERATIONS["library"] = library
__all__ = ["cast", "constant", "library"]
