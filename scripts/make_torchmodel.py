"""Regenerate the tables in ``precision_lint/torchmodel`` out of the installed torch.

    python scripts/make_torchmodel.py [--check]

Operations: names and signatures are those of the installed torch; the dtypes of results, which operands
must agree, what autocast does and which kernels are missing are found by calling every operation with
samples (torch's own test suite has most of them), in several dtypes and under both autocast policies.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import inspect
import json
import re
import sys
import unittest
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch.overrides import TorchFunctionMode

FOLDER = Path(__file__).parent.parent / "precision_lint" / "torchmodel"

# names

HOMES: dict[str, Any] = {
    "t": torch, "n": F, "l": torch.linalg, "f": torch.fft, "s": torch.special, "m": torch.Tensor,
}  # fmt: skip
"""Where operations live, by a letter."""
PREFIX = {"t": "", "n": "", "l": "linalg.", "f": "fft.", "s": "special.", "m": ""}
"""What their names begin with."""
EXCLUDED = {
    r"\w:(get|set|is|init|import|parse|use|are|autocast|sym|profiler|fbgemm|q|has)_(?!close)\w+": "questions, settings, internals",
    r"t:(mkldnn|cudnn|miopen|native|quantize|quantized|sparse|fused|choose|fake)_\w+|t:empty_quantized": "kernels of backends",
    r"\w:(?!index)\w+_copy|m:\w*_?indices|t:\w*batch_norm_\w+|\w:as_strided_scatter|\w:slice_inverse": "for tracers",
    r"t:(compile|cond|while_loop|vmap|load|save|seed|initial_seed|manual_seed|fork|wait|typename)": "no operation",
    r"t:(compiled_with_cxx11_abi|clear_autocast_cache|prepare_multiprocessing_environment)": "no operation",
    r"t:(classproperty|can_cast|promote_types|result_type|broadcast_shapes|unify_type_list)": "no operation",
    r"t:(merge_type_from_type_comment|thread_safe_generator|hash_tensor|numel|to_dlpack)": "no operation",
    r"[tm]:(eig|lstsq|matrix_rank|solve|symeig)": "removed from torch: they raise",
    r"n:(Optional|assert_int_or_pair|boolean_dispatch|handle_torch_function)": "no operation",
    r"\w:(dsmm|hsmm|hspmm|smm|spmm|saddmm|sspaddmm|coalesce|values|sparse_\w+|to_(sparse|dense|mkldnn|padded)\w*)": "sparse tensors",
    r"\w:(int_repr|dequantize|qscheme)": "quantised tensors",
    r"t:(gru|lstm|rnn_tanh|rnn_relu)(_cell)?": "what recurrent layers call",
    r"n:\w+_with_indices|t:max_pool1d_with_indices|n:native_channel_shuffle": "what others call",
    r"t:(constant_pad_nd|convolution|feature_dropout|frobenius_norm|grid_sampler\w*|affine_grid_generator)": "what others call",
    r"\w:(unsafe_\w+|norm_except_dim|segment_reduce|binomial)": "what others call",
    r"n:scaled_(grouped_)?mm|n:grouped_mm": "float8",
}
"""Public names that the tables leave out, as patterns of ``home:name``, with the reason."""
ALIASES = {
    "absolute": "abs", "arccos": "acos", "arccosh": "acosh", "arcsin": "asin", "arcsinh": "asinh",
    "arctan": "atan", "arctan2": "atan2", "arctanh": "atanh", "clip": "clamp", "concat": "cat",
    "concatenate": "cat", "divide": "div", "true_divide": "div", "multiply": "mul",
    "subtract": "sub", "negative": "neg", "fix": "trunc", "ger": "outer", "greater": "gt",
    "greater_equal": "ge", "less": "lt", "less_equal": "le", "not_equal": "ne",
    "moveaxis": "movedim", "row_stack": "vstack", "swapaxes": "transpose",
    "swapdims": "transpose", "trapz": "trapezoid", "conj_physical": "conj",
    "det": "linalg.det", "inverse": "linalg.inv", "matrix_exp": "linalg.matrix_exp",
    "matrix_power": "linalg.matrix_power", "orgqr": "linalg.householder_product",
    "pinverse": "linalg.pinv", "slogdet": "linalg.slogdet", "cholesky": "linalg.cholesky",
    "qr": "linalg.qr", "linalg.matmul": "matmul", "linalg.diagonal": "diagonal",
    "special.digamma": "digamma", "special.psi": "digamma", "special.erf": "erf",
    "special.erfc": "erfc", "special.erfinv": "erfinv", "special.exp2": "exp2",
    "special.expit": "sigmoid", "special.expm1": "expm1", "special.gammainc": "igamma",
    "special.gammaincc": "igammac", "special.gammaln": "lgamma", "special.i0": "i0",
    "special.log1p": "log1p", "special.log_softmax": "log_softmax", "special.logit": "logit",
    "special.logsumexp": "logsumexp", "special.multigammaln": "mvlgamma",
    "special.polygamma": "polygamma", "special.round": "round", "special.sinc": "sinc",
    "special.softmax": "softmax", "special.xlogy": "xlogy", "upsample": "interpolate",
    "upsample_bilinear": "interpolate", "upsample_nearest": "interpolate",
    "split_with_sizes": "split", "linalg.cross": "cross",
}  # fmt: skip
"""Other names of the same operation."""

CREATION = frozenset({
    "arange", "as_tensor", "asarray", "bartlett_window", "blackman_window", "empty", "empty_like",
    "empty_permuted", "empty_strided", "eye", "fft.fftfreq", "fft.rfftfreq", "from_dlpack",
    "from_file", "from_numpy", "frombuffer", "full", "full_like", "hamming_window", "hann_window",
    "kaiser_window", "linspace", "logspace", "new", "new_empty", "new_empty_strided", "new_full",
    "new_ones", "new_tensor", "new_zeros", "normal", "ones", "ones_like", "rand", "rand_like",
    "randint", "randint_like", "randn", "randn_like", "randperm", "range", "scalar_tensor",
    "tensor", "tril_indices", "triu_indices", "zeros", "zeros_like",
})  # fmt: skip
"""Functions that make tensors."""
HANDLING = frozenset({
    "as_subclass", "backward", "bfloat16", "cdouble", "cfloat", "chalf", "const_data_ptr", "cpu",
    "cuda", "data_ptr", "dense_dim", "dim", "dim_order", "double", "element_size", "float", "half",
    "index", "ipu", "item", "module_load", "mtia", "ndimension", "nelement", "numel", "numpy",
    "pin_memory", "record_stream", "register_hook", "register_post_accumulate_grad_hook",
    "reinforce", "resize", "resize_as", "retain_grad", "size", "storage", "storage_offset",
    "storage_type", "stride", "to", "tolist", "type", "type_as", "untyped_storage", "xpu",
    "hash_tensor",
})  # fmt: skip
"""Methods of tensors that are no operations (``tensors.json``)."""
OVERLOADS = {"scatter": "src", "masked_fill": "Scalar", "where": "self", "index_fill": "int_Scalar"}
"""Which overload gives the names of the parameters, where it is not the one with most of them."""
HIDDEN = frozenset({
    "out", "generator", "layout", "device", "pin_memory", "memory_format", "names", "_stacklevel",
    "async_", "implicit", "out_dtype",
})  # fmt: skip
"""Parameters that the tables leave out."""
STATED_PARAMETERS = {
    "einsum": ("equation", "operands"), "lu": ("input", "pivot", "get_infos"),
    "unique": ("input", "sorted", "return_inverse", "return_counts", "dim"),
    "unique_consecutive": ("input", "return_inverse", "return_counts", "dim"),
    "meshgrid": ("tensors", "indexing"), "block_diag": ("tensors",), "cartesian_prod": ("tensors",),
    "broadcast_tensors": ("tensors",), "chain_matmul": ("matrices",), "view": ("input", "size"),
    "atleast_1d": ("input",), "atleast_2d": ("input",), "atleast_3d": ("input",),
    "split": ("input", "split_size_or_sections", "dim"), "sort": ("input", "dim", "descending", "stable"),
    "softmax": ("input", "dim", "dtype"), "log_softmax": ("input", "dim", "dtype"),
    "softmin": ("input", "dim", "dtype"), "logsigmoid": ("input",),
    "tensor_split": ("input", "indices_or_sections", "dim"), "hsplit": ("input", "indices_or_sections"),
    "vsplit": ("input", "indices_or_sections"), "dsplit": ("input", "indices_or_sections"),
    "linalg.matrix_rank": ("input", "tol", "hermitian", "atol", "rtol"),
    "isin": ("elements", "test_elements", "assume_unique", "invert"),
    **dict.fromkeys(("bool", "byte", "char", "int", "long", "short"), ("input",)),
    **{f"adaptive_max_pool{n}d": ("input", "output_size", "return_indices") for n in (1, 2, 3)},
    **{f"max_pool{n}d": ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode",
                         "return_indices") for n in (1, 2, 3)},
    **{f"fractional_max_pool{n}d": ("input", "kernel_size", "output_size", "output_ratio",
                                    "return_indices", "_random_samples") for n in (2, 3)},
}  # fmt: skip
VARIADIC = {
    "einsum": 1, "block_diag": 0, "cartesian_prod": 0, "broadcast_tensors": 0, "meshgrid": 0,
    "chain_matmul": 0, "view": 1, "reshape": 1, "permute": 1, "expand": 1, "repeat": 1, "tile": 1,
    "flip": 1, "sum_to_size": 1,
}  # fmt: skip
"""Parameters that take all arguments from there on, besides a sequence."""
RECEIVER = {"where": 1, "polygamma": 1}
"""Parameters that are the receiver of the method form, if not the first."""
VARIANTS = ("t:embedding", "t:embedding_bag", "t:batch_norm", "t:instance_norm", "m:unfold")
"""Functions with the name of another one, and other parameters."""


@dataclass
class Known:
    """One operation: where it is, and how it is called."""

    name: str
    function: Callable[..., Any]
    parameters: tuple[str, ...]
    homes: set[str] = field(default_factory=set)
    spellings: dict[str, set[str]] = field(default_factory=dict)
    variadic: int = -1


def public(letter: str) -> dict[str, Callable[..., Any]]:
    """Public functions of a home, less those that the tables leave out; in-place forms as plain ones."""
    found = {}
    for name in dir(HOMES[letter]):
        value = getattr(HOMES[letter], name, None)
        if name[0] == "_" or name[-1] == "_" or not callable(value) or isinstance(value, type):
            continue
        if not any(re.fullmatch(pattern, f"{letter}:{name}") for pattern in EXCLUDED):
            found[name] = value
    return found


def parameters_of(letter: str, name: str, function: Callable[..., Any]) -> tuple[str, ...]:
    """Names of the parameters: the positional ones, then those by keyword only."""
    if PREFIX[letter] + name in STATED_PARAMETERS:
        return STATED_PARAMETERS[PREFIX[letter] + name]
    with contextlib.suppress(ValueError, TypeError):
        given = inspect.signature(function).parameters.values()
        if not any(p.kind == p.VAR_POSITIONAL for p in given):
            return _plain(p.name for p in given)
    home = PREFIX[letter].replace(".", "_")
    found = []
    for schema in torch._C._jit_get_schemas_for_operator(f"aten::{home}{name}"):
        types = [str(a.type) for a in schema.arguments]
        hidden = any(a.is_out for a in schema.arguments) or "out_dtype" in str(schema)
        if not hidden and "Dimname" not in str(schema) and any("Tensor" in t for t in types):
            found.append(schema)
    if not found:
        return ()
    best = max(
        found,
        key=lambda s: (
            s.overload_name == OVERLOADS.get(name),
            sum(not a.kwarg_only for a in s.arguments),
            str(s.arguments[0].type) == "Tensor",
        ),
    )
    names = [a.name for a in best.arguments if not a.kwarg_only]
    return _plain([*names, *(a.name for s in [best, *found] for a in s.arguments)])


def _plain(names: Iterable[str]) -> tuple[str, ...]:
    unique = dict.fromkeys("input" if name == "self" else name for name in names)
    return tuple(name for name in unique if name not in HIDDEN)


def catalogue() -> dict[str, Known]:
    """All operations by canonical name."""
    found: dict[str, Known] = {}
    for letter in "ntlfsm":
        for name, function in public(letter).items():
            full = PREFIX[letter] + name
            if f"{letter}:{name}" in VARIANTS:
                full = f"{'torch' if letter == 't' else 'Tensor'}.{name}"
            elif full in CREATION or full in HANDLING:
                continue
            canonical = ALIASES.get(full, full)
            if full == canonical and full not in found:
                parameters = parameters_of(letter, name, function)
                found[full] = Known(full, function, parameters, variadic=VARIADIC.get(full, -1))
    for letter in "ntlfsm":
        for name in public(letter):
            full = PREFIX[letter] + name
            known = found.get(ALIASES.get(full, full))
            if known is not None and f"{letter}:{name}" not in VARIANTS:
                known.spellings.setdefault(full, set()).add(letter)
                known.homes.add(letter)
    return found


# samples

Slot = tuple[int, int]
"""A tensor among the arguments: the number of its parameter, and its place in a list (else 0)."""
LOW = (torch.float16, torch.bfloat16)
SAMPLES = 12
TRIED = 400


@dataclass
class Sample:
    """A call, and where its tensors of one dtype (float32 if there are any) are."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    places: list[Any] = field(default_factory=list)
    slots: dict[Slot, torch.Tensor] = field(default_factory=dict)

    def arguments(self, dtypes: Mapping[Slot, torch.dtype]) -> tuple[list[Any], dict[str, Any]]:
        """The arguments with tensors cast."""
        args, kwargs = list(self.args), dict(self.kwargs)
        for (parameter, item), dtype in dtypes.items():
            place = self.places[parameter]
            if isinstance(place, str):
                kwargs[place] = _replaced(kwargs[place], item, dtype)
            elif isinstance(args[place], torch.Tensor) and item:
                args[place + item] = args[place + item].to(dtype)
            else:
                args[place] = _replaced(args[place], item, dtype)
        return args, kwargs

    def call(self, dtypes: Mapping[Slot, torch.dtype], **more: Any) -> Any:
        """The result with tensors cast; raises what the operation raises."""
        args, kwargs = self.arguments(dtypes)
        torch.manual_seed(0)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.function(*args, **{**kwargs, **more})

    def outcome(self, dtypes: Mapping[Slot, torch.dtype], **more: Any) -> tuple[str, ...] | None:
        """The dtypes of the results; None: it raises."""
        try:
            return tuple(described(self.call(dtypes, **more)))
        except Exception:  # of many types: no kernel, a check of its own, a library's refusal
            return None

    def uniform(self, to: torch.dtype, **more: Any) -> tuple[str, ...] | None:
        return self.outcome(dict.fromkeys(self.slots, to), **more)


def _replaced(value: Any, item: int, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype)
    parts = list(value)
    parts[item] = parts[item].to(dtype)
    return tuple(parts) if isinstance(value, tuple) else parts


def described(value: Any) -> Iterator[str]:
    """Dtypes of tensors in a result; ``number`` and ``none`` for what is no tensor."""
    if isinstance(value, torch.Tensor):
        yield str(value.dtype).removeprefix("torch.")
    elif isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for part in value:
            yield from described(part)
    else:
        yield "none" if value is None else "number"


class Recorder(TorchFunctionMode):
    """Keeps the first call of one operation."""

    def __init__(self, names: set[str]) -> None:
        super().__init__()
        self.names = names
        self.call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.call is None and getattr(func, "__name__", "") in self.names:
            self.call = func, tuple(args), dict(kwargs or {})
        return func(*args, **(kwargs or {}))


def suite() -> list[Any]:
    """The operators of torch's test suite, as it describes them for a recent CUDA device."""
    stub: Any = ModuleType("expecttest")  # a dependency of its test cases, which are not run
    stub.TestCase = unittest.TestCase
    sys.modules.setdefault("expecttest", stub)
    from torch.testing._internal import common_cuda

    for name in list(vars(common_cuda)):
        if name.startswith("SM") and name.endswith("OrLater"):
            setattr(common_cuda, name, True)
    from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


def entries(known: Mapping[str, Known]) -> dict[str, list[Any]]:
    """Entries of the suite by operation."""
    found: dict[str, list[Any]] = {}
    for entry in suite():
        name = entry.name.removeprefix("nn.functional.")
        if entry.name == "unfold":
            name = "Tensor.unfold"
        name = ALIASES.get(name, name)
        if name in known:
            found.setdefault(name, []).append(entry)
    return found


def recorded(known: Known, entry: Any, dtype: torch.dtype = torch.float32) -> Iterator[Sample]:
    """Calls of an operation that torch's suite makes."""
    names = {part for full in (known.name, *known.spellings) for part in _function_names(full)}
    own = {id(getattr(HOMES[letter], full.rpartition(".")[2], None))
           for full, letters in known.spellings.items() for letter in letters}  # fmt: skip
    torch.manual_seed(0)
    for given in entry.sample_inputs("cpu", dtype):
        sample: Sample | None = Sample(entry.op, (given.input, *given.args), dict(given.kwargs))
        if id(entry.op) not in own:
            with contextlib.suppress(Exception), Recorder(names) as recorder:
                entry.op(*sample.args, **sample.kwargs)
            sample = None if recorder.call is None else Sample(*recorder.call)
        if sample is not None and bind(known, sample, dtype):
            yield sample


def _function_names(full: str) -> set[str]:
    return {full.rpartition(".")[2], full.replace(".", "_"), full.removeprefix("Tensor.")}


def bind(known: Known, sample: Sample, dtype: torch.dtype = torch.float32) -> bool:
    """Assign the arguments of a call to parameters; False: there is one for which there is none."""
    order = list(range(len(known.parameters)))
    if type(sample.function).__name__ in ("method_descriptor", "wrapper_descriptor"):
        first = RECEIVER.get(known.name, 0)
        order = [first, *(i for i in order if i != first)]
    kinds = (dtype, torch.float32, torch.complex64) if dtype.is_floating_point else (dtype,)
    places: dict[int, int | str] = {}
    for number, value in enumerate(sample.args):
        spread = 0 <= known.variadic <= number and not isinstance(value, (list, tuple))
        if not spread and number >= len(order):
            return False
        parameter = known.variadic if spread else order[number]
        places.setdefault(parameter, number)
        _fill(sample.slots, parameter, value, number - known.variadic if spread else 0, kinds)
    for name, value in sample.kwargs.items():
        plain = {"self": "input"}.get(name, name)
        if plain in known.parameters:
            places[known.parameters.index(plain)] = name
            _fill(sample.slots, known.parameters.index(plain), value, 0, kinds)
        elif isinstance(value, torch.Tensor):
            return False
    sample.places = [places.get(i, "") for i in range(len(known.parameters))]
    return True


def _fill(
    slots: dict[Slot, torch.Tensor], parameter: int, value: Any, item: int, kinds: Any
) -> None:
    parts = value if isinstance(value, (list, tuple)) else [None] * item + [value]
    for i, part in enumerate(parts):
        if isinstance(part, torch.Tensor) and part.dtype in kinds:
            slots[parameter, i] = part


def chosen(known: Known, listed: Iterable[Any]) -> tuple[list[Sample], torch.dtype]:
    """Some samples that run, those with most tensors first, and the dtype of their tensors."""
    given = list(listed)
    for dtype in (torch.float32, torch.complex64, torch.int64):
        found: dict[tuple[Any, ...], list[Sample]] = {}
        made = OWN.get(known.name)
        sources = [_made(known, made)] if made is not None and dtype == torch.float32 else []
        sources += [recorded(known, entry, dtype) for entry in given if dtype in entry.dtypes]
        for sample in (s for source in sources for s in _some(source)):
            given_dtype = any(
                isinstance(v, torch.dtype) for v in (*sample.args, *sample.kwargs.values())
            )
            empty = any(t.numel() == 0 for t in sample.slots.values())
            if not sample.slots or empty or given_dtype:
                continue
            key = tuple(sorted((p, i, t.dim() > 0) for (p, i), t in sample.slots.items()))
            group = found.setdefault(key, [])
            if len(group) < 4 and sample.uniform(dtype) is not None:
                group.append(sample)
        order = sorted(found, key=lambda key: (-sum(d for _, _, d in key), key))
        picked = [sample for key in order for sample in found[key][:2]]
        picked += [sample for key in order for sample in found[key][2:]]
        if picked:
            return picked[:SAMPLES], dtype
    return [], torch.float32


def _some(source: Iterator[Sample]) -> Iterator[Sample]:
    yield from (sample for _, sample in zip(range(TRIED), source, strict=False))


def _made(known: Known, make: Callable[[], tuple[Any, ...]]) -> Iterator[Sample]:
    torch.manual_seed(0)
    sample = Sample(known.function, make(), {})
    if bind(known, sample):
        yield sample


def _r(*shape: int) -> torch.Tensor:
    return torch.rand(*shape) + 0.1


OWN: dict[str, Callable[[], tuple[Any, ...]]] = {
    "adjoint": lambda: (_r(3, 4),),
    "affine_grid": lambda: (_r(2, 2, 3), [2, 1, 4, 4]),
    "bincount": lambda: (torch.tensor([0, 1, 1]), _r(3)),
    "chain_matmul": lambda: (_r(3, 4), _r(4, 5), _r(5, 2)),
    "conv_tbc": lambda: (_r(5, 2, 3), _r(3, 3, 4), _r(4)),
    "detach": lambda: (_r(3),),
    "dropout1d": lambda: (_r(2, 3, 4),),
    "fold": lambda: (_r(1, 12, 12), (4, 5), (2, 2)),
    "gumbel_softmax": lambda: (_r(3, 4),),
    "linalg.matrix_exp": lambda: (_r(4, 4),),
    "linalg.matrix_power": lambda: (_r(4, 4), 3),
    "lobpcg": lambda: (torch.diag(torch.arange(1.0, 10.0)), 2),
    "lp_pool1d": lambda: (_r(2, 3, 8), 2, 2),
    "lp_pool2d": lambda: (_r(2, 3, 8, 8), 2, 2),
    "lp_pool3d": lambda: (_r(2, 3, 8, 8, 8), 2, 2),
    "nuclear_norm": lambda: (_r(3, 4),),
    "pca_lowrank": lambda: (_r(5, 4), 2),
    "poisson": lambda: (_r(3, 4),),
    "svd_lowrank": lambda: (_r(5, 4), 2, 2, _r(5, 4)),
    "torch.batch_norm": lambda: (
        _r(4, 3), _r(3), _r(3), _r(3), _r(3), True, 0.1, 1e-5, False),
    "torch.embedding": lambda: (_r(5, 4), torch.tensor([0, 1])),
    "torch.embedding_bag": lambda: (_r(5, 4), torch.tensor([0, 1]), torch.tensor([0])),
    "torch.instance_norm": lambda: (
        _r(2, 3, 4), _r(3), _r(3), _r(3), _r(3), True, 0.1, 1e-5, False),
    "vander": lambda: (_r(3),),
}  # fmt: skip
"""Arguments for operations that the suite lacks."""


# dtypes

UNIFORM = (
    torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.bool, torch.complex64,
)  # fmt: skip
LISTS = frozenset({
    "chunk", "split", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit", "meshgrid",
    "broadcast_tensors", "atleast_1d", "atleast_2d", "atleast_3d", "gradient", "nonzero", "where",
    "unravel_index", "histogramdd",
})  # fmt: skip
"""Operations that give as many tensors as they are told, all of one dtype."""
WHOLE = frozenset({"atleast_1d", "atleast_2d", "atleast_3d", "nonzero", "where", "histogramdd"})
"""Those of them that give a single tensor, or something else, for what they are mostly given."""
NOT_LISTED = frozenset(
    {"atleast_1d", "atleast_2d", "atleast_3d", "einsum", "gradient", "histogramdd"}
)
"""Operations that take a list of tensors elsewhere, or seldom."""
SOMETIMES = frozenset({"max", "min", "median", "nanmedian", "unique", "unique_consecutive"})
"""Operations that give several tensors only where they are told a dimension, or to."""


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def rule_of(seen: Mapping[torch.dtype, str | None]) -> str:
    """How the dtype of a result follows from that of the operands, all being of one dtype."""
    plain = seen.get(torch.float32)
    whole, truth, low = seen[torch.int64], seen[torch.bool], [seen[d] for d in LOW]
    if plain is None:  # an operation on integers or complex numbers
        if seen[torch.complex64] is not None:
            return "real" if seen[torch.complex64] == "float32" else "keeps"
        return "keeps" if seen[torch.int32] == "int32" or truth == "bool" else "int"
    if plain in ("number", "none", "bool"):
        return plain
    if plain.startswith(("int", "uint")):
        return "int"
    if plain.startswith("complex"):
        return "complex"
    if any(got not in (None, name_of(d)) for got, d in zip(low, LOW, strict=True)):
        return "unknown"
    if seen[torch.complex64] == "float32":
        return "real"
    if whole == "float32":
        return "floating"
    return "int_like" if truth == whole == "int64" else "keeps"


@dataclass
class Mixture:
    """What happens where one parameter is narrower, or wider, than all others."""

    alone: list[str | None] = field(default_factory=list)
    rest: list[str | None] = field(default_factory=list)


def mixtures(samples: Iterable[Sample], dtype: torch.dtype) -> dict[int, Mixture]:
    """By parameter: the first result where it alone is narrow, and where all others are.

    ``lo``, ``hi``, ``raises``: the narrower dtype, the wider one, or that the operation refuses.
    """
    found: dict[int, Mixture] = {}
    for sample in samples:
        pair = _pair(sample, dtype)
        parts = _parts(sample)
        if pair is None or len(parts) < 2:
            continue
        for part, slots in parts.items():
            mixture = found.setdefault(part, Mixture())
            for inside, outside, results in (
                (pair[0], pair[1], mixture.alone), (pair[1], pair[0], mixture.rest),
            ):  # fmt: skip
                given = {s: inside if s in slots else outside for s in sample.slots}
                outcome = sample.outcome(given)
                names = {name_of(pair[0]): "lo", name_of(pair[1]): "hi"}
                results.append("raises" if outcome is None else names.get(outcome[0], outcome[0]))
    return found


def _parts(sample: Sample) -> dict[int, set[Slot]]:
    """Tensors with dimensions by parameter; of a single list by its first item and the others."""
    if any(t.dim() == 0 for t in sample.slots.values()):
        return {}
    parts: dict[int, set[Slot]] = {}
    for slot in sample.slots:
        parts.setdefault(slot[0], set()).add(slot)
    if len(parts) == 1 and len(sample.slots) > 1:
        ((parameter, slots),) = parts.items()
        first = min(slots)
        return {parameter: {first}, -1: slots - {first}}
    return parts


def _pair(sample: Sample, dtype: torch.dtype) -> tuple[torch.dtype, torch.dtype] | None:
    """A narrower and a wider dtype in which a sample runs."""
    pairs = [(d, torch.float32) for d in LOW] + [(torch.float32, torch.float64)]
    if dtype == torch.int64:
        pairs = [(torch.int32, torch.int64)]
    for pair in pairs:
        if all(sample.uniform(d) is not None for d in pair):
            return pair
    return None


@dataclass
class Facts:
    """What is known of one operation."""

    known: Known
    samples: list[Sample]
    dtype: torch.dtype
    result: str = "unknown"
    operands: tuple[int, ...] = ()
    strict: tuple[int, ...] = ()
    wide: tuple[int, ...] = ()
    outputs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    policy: dict[str, str] = field(default_factory=dict)
    missing: dict[str, list[str]] = field(default_factory=dict)
    flags: set[str] = field(default_factory=set)


STRICT = {
    "layer_norm": (0, 2, 3), "group_norm": (0, 2, 3), "cross_entropy": (0, 2), "meshgrid": (0,),
    **{f"conv{t}{n}d": (0, 1, 2) for t in ("", "_transpose") for n in (1, 2, 3)},
    "scaled_dot_product_attention": (0, 1, 2), "conv_tbc": (0, 1),
    "linear_cross_entropy": (0, 1, 3), "einsum": (1,),
}  # fmt: skip
"""What must agree where samples disagree, or where kernels of CUDA ask for more than those of the CPU."""
WIDE = {
    "batch_norm": (3, 4), "instance_norm": (3, 4), "torch.batch_norm": (1, 2),
    "torch.instance_norm": (1, 2), "scaled_dot_product_attention": (3,),
}  # fmt: skip
"""Operands that may be wider than the first one, and not narrower."""
OPERANDS = {
    "batch_norm": (0, 3, 4), "instance_norm": (0, 3, 4), "torch.batch_norm": (0, 1, 2),
    "torch.instance_norm": (0, 1, 2), "istft": (0,), "polygamma": (1,),
    "huber_loss": (0, 1), "soft_margin_loss": (0, 1), "hinge_embedding_loss": (0,), "max": (0, 1),
    "min": (0, 1), "scaled_dot_product_attention": (0, 1, 2), "solve_triangular": (0, 1),
    "binary_cross_entropy_with_logits": (0, 1), "index_fill": (0,), "masked_fill": (0,),
    "pow": (0, 1), "clamp": (0, 1, 2), "linalg.pinv": (0,), "linalg.matrix_rank": (0,),
}  # fmt: skip
"""Operands where the samples do not tell them."""


RESULTS = {
    **dict.fromkeys(
        ("index_add", "index_reduce", "scatter", "scatter_reduce", "put", "masked_scatter",
         "batch_norm", "instance_norm", "torch.batch_norm", "torch.instance_norm"), "first"
    ),
    "istft": "real",
}  # fmt: skip
"""Results of operations that write into a copy of their first operand, and others stated."""
REDUCTIONS = re.compile(
    r"(arg)?(max|min)|amax|amin|aminmax|all|any|sum|nansum|mean|nanmean|prod|(nan)?median|mode|kthvalue"
    r"|(std|var)(_mean)?|cum(sum|prod|max|min)|log(cum)?sumexp|(nan)?quantile|norm|nuclear_norm|dist"
    r"|linalg\.(vector_|matrix_)?norm|count_nonzero|trace|trapezoid|cumulative_trapezoid|sum_to_size"
    r"|\w+_loss|binary_cross_entropy(_with_logits)?|cross_entropy|linear_cross_entropy|kl_div"
)
"""Operations that combine many elements of one tensor."""


def measured(known: Known, listed: Iterable[Any]) -> Facts:
    """The dtype rules of an operation, by calling it."""
    samples, dtype = chosen(known, listed)
    facts = Facts(known, samples, dtype)
    if not samples:
        return facts
    several = [s for s in samples if len(s.uniform(dtype) or ()) > 1]
    if known.name in LISTS or (len(several) < len(samples) and known.name not in SOMETIMES):
        several = []
    first = rule_of({d: _seen(samples, d, 0) for d in UNIFORM})
    found = mixtures(samples, dtype)
    listing = {p for p, item in (slot for s in samples for slot in s.slots) if item}
    facts.operands, facts.strict = _operands(known, samples, found)
    facts.result = RESULTS.get(known.name) or _mixed(first, facts.operands, found)
    facts.wide = WIDE.get(known.name, ())
    if several:
        count = max(len(s.uniform(dtype) or ()) for s in several)
        full = [s for s in several if len(s.uniform(dtype) or ()) == count]
        rules = [rule_of({d: _seen(full, d, i) for d in UNIFORM}) for i in range(count)]
        facts.outputs = tuple("first" if rule == "keeps" else rule for rule in rules)
        made = full[0].call({})
        facts.fields = tuple(getattr(type(made), "__match_args__", getattr(made, "_fields", ())))
    if first in ("keeps", "real", "second") and dtype == torch.float32:
        if all(_seen(samples, d, 0) is None for d in (torch.int64, torch.int32, torch.bool)):
            facts.flags.add("i")
    if known.name in LISTS - WHOLE:
        facts.flags.add("p")
    if listing & {*facts.operands[:1]} and known.name not in NOT_LISTED:
        facts.flags.add("l")
    if "dtype" in known.parameters:
        if (samples[0].uniform(dtype, dtype=torch.float64) or ("",))[0] == "float64":
            facts.flags.add("d")
    return facts


def _seen(samples: Iterable[Sample], dtype: torch.dtype, number: int) -> str | None:
    for sample in samples:
        outcome = sample.uniform(dtype)
        if outcome is not None and len(outcome) > number:
            return outcome[number]
    return None


def _operands(
    known: Known, samples: Iterable[Sample], found: Mapping[int, Mixture]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The parameters whose dtypes matter, and those that must agree."""
    present = sorted({slot[0] for sample in samples for slot in sample.slots})
    matter, strict = [], []
    for parameter in present:
        mixture = found.get(parameter)
        if mixture is None:
            matter += [parameter] if not found else []
            continue
        both = [*zip(mixture.alone, mixture.rest, strict=True)]
        if any(pair != ("hi", "lo") for pair in both):
            matter.append(parameter)
        if 2 * sum("raises" in pair for pair in both) > len(both):
            strict.append(parameter)
    if not matter:
        matter = present[:1]
    operands = OPERANDS.get(known.name, tuple(matter))
    strict = [p for p in strict if p in operands and p not in WIDE.get(known.name, ())]
    if len(strict) == 1 and -1 not in found:
        strict = []
    return operands, STRICT.get(known.name, tuple(strict))


def _mixed(rule: str, operands: tuple[int, ...], found: Mapping[int, Mixture]) -> str:
    """The rule, told apart by what mixed operands give."""
    if rule != "keeps":
        return rule
    outcomes = {p: Counter(zip(m.alone, m.rest, strict=True)) for p, m in found.items()}
    leads = [
        p for p in operands if p in outcomes and outcomes[p].most_common(1)[0][0] == ("lo", "hi")
    ]
    if leads:
        return "first" if operands.index(leads[0]) == 0 else "second"
    several = len(operands) > 1 or -1 in found
    return "promoted" if several else "first"


# autocast

POLICIES = {
    "lower": "lower", "fp32": "fp32", "fp32_set_opt_dtype": "fp32_dtype", "promote": "widest",
    "banned": "banned",
}  # fmt: skip
UNLISTED = frozenset({"linalg.matrix_exp"})
"""Operations made of listed ones that give back the dtype of their operand (if of 2 x 2 or more)."""
SPELT = {"grid_sampler": "grid_sample"}
"""Names of operators that are not those of the functions."""


def stated_policies(known: Mapping[str, Known], lists: Mapping[str, Any]) -> dict[str, str]:
    """The policy of every operation that is on a device's lists itself."""
    found: dict[str, str] = {}
    for key, policy in POLICIES.items():
        for operator in lists.get(key, ()):
            name = SPELT.get(operator, operator)
            for home in ("linalg", "fft", "special"):
                name = name.replace(f"{home}_", f"{home}.", 1) if name.startswith(home) else name
            name = ALIASES.get(name, name)
            if name in known:
                found[name] = policy
    return found


def region_policy(facts: Facts, low: torch.dtype) -> str:
    """What autocast, which is on, makes of an operation, as its results tell; "": nothing."""
    if facts.known.name in UNLISTED:
        return ""
    found = {(_outcome(s, torch.float32), _outcome(s, low)) for s in facts.samples[:6]}
    if any("banned" in pair for pair in found):
        return "banned"
    if any(wide == name_of(low) for wide, _ in found):
        return "lower"
    return "fp32" if ("float32", "float32") in found else ""


def _outcome(sample: Sample, dtype: torch.dtype) -> str:
    try:
        return next(described(sample.call(dict.fromkeys(sample.slots, dtype))), "")
    except Exception as error:
        return "banned" if "unsafe to autocast" in str(error) else "raises"


def add_policies(every: Mapping[str, Facts], lists: Mapping[str, Any]) -> None:
    """Autocast's policies by device: as listed, else as measured."""
    from precision_lint.harness.policy import cuda_policy

    known = {name: facts.known for name, facts in every.items()}
    regions: list[tuple[str, torch.dtype, Any]] = [
        ("cuda", torch.float16, cuda_policy()), ("cpu", torch.bfloat16, contextlib.nullcontext()),
    ]  # fmt: skip
    for device, low, emulated in regions:
        stated = stated_policies(known, lists[device])
        with emulated, torch.autocast("cpu", dtype=low):
            for name, facts in every.items():
                plain = name.removeprefix("torch.")
                found = stated.get(plain) or region_policy(facts, low)
                off = facts.result in (
                    "first",
                    "promoted",
                    "floating",
                    "real",
                    "second",
                    "int_like",
                )
                if device == "cuda":
                    found = SEEN_ON_CUDA.get(plain, found)
                if found and (off or plain in stated):
                    facts.policy[device] = found


# kernels, and what an operation is like


def add_missing(every: Mapping[str, Facts], listed: Mapping[str, list[Any]]) -> None:
    """The dtypes for which an operation has no kernel.

    Of the CPU, by calling it; of CUDA, what the suite declares, less what exists on the CPU although
    the suite denies it (operations made of others).
    """
    for name, facts in every.items():
        given = listed.get(name, [])
        if not facts.samples or facts.dtype != torch.float32 or not facts.operands:
            continue
        for dtype in LOW:
            runs = any(s.uniform(dtype) is not None for s in facts.samples)
            declared = any(dtype in entry.dtypes for entry in given)
            if not runs and not declared:
                facts.missing.setdefault("cpu", []).append(name_of(dtype))
            on_gpu = any(dtype in entry.dtypesIfCUDA for entry in given) if given else runs
            on_gpu = on_gpu or name in ON_CUDA
            if not on_gpu and (declared or not runs):
                facts.missing.setdefault("cuda", []).append(name_of(dtype))


SEEN_ON_CUDA = {"trace": "fp32"}
"""What autocast makes of operations that a GPU computes by others (scripts/check_cuda.py, an H200)."""
ON_CUDA = frozenset({"lp_pool3d"})
"""Operations that no entry of the suite describes, and that have kernels on CUDA."""
NO_VIEWS = frozenset({"interpolate", "nan_to_num"})
MIXING = frozenset({
    "argsort", "atleast_1d", "atleast_2d", "broadcast_tensors", "broadcast_to", "expand", "ormqr",
    "adaptive_max_pool3d", "combinations", "cartesian_prod", "bucketize",
})  # fmt: skip
"""Operations that are not elementwise, though the samples do not tell."""


def add_flags(facts: Facts) -> None:
    """Whether the elements of a result are elements of the operand, or follow from one each."""
    if REDUCTIONS.fullmatch(facts.known.name):
        facts.flags.add("r")
    if facts.dtype != torch.float32:
        return
    parts = [s for s in facts.samples if any(t.dim() for t in s.slots.values())] or facts.samples
    name = facts.known.name
    if name not in NO_VIEWS and facts.operands[:1] == (0,) and parts:
        told = [moves(s) for s in parts]
        if False not in told and True in told:
            facts.flags.add("v")
    if parts and not facts.flags & {"r"} and name not in MIXING and not facts.outputs:
        if name == "prelu" or all(elementwise(s, slot) for s in parts for slot in s.slots):
            facts.flags.add("e")


def _first(sample: Sample) -> tuple[Slot, torch.Tensor]:
    return min(sample.slots.items(), key=lambda item: item[0])


def _given(sample: Sample, slot: Slot, value: torch.Tensor) -> Any:
    """The first tensor of the result for another operand; None: there is none."""
    changed = Sample(sample.function, sample.args, sample.kwargs, sample.places, dict(sample.slots))
    place = sample.places[slot[0]]
    if isinstance(place, str):
        changed.kwargs = {**sample.kwargs, place: _put(sample.kwargs[place], slot[1], value)}
    else:
        args = list(sample.args)
        if isinstance(args[place], torch.Tensor) and slot[1]:
            place, slot = place + slot[1], (slot[0], 0)
        args[place] = _put(args[place], slot[1], value)
        changed.args = tuple(args)
    try:
        result = changed.call({})
    except Exception:
        return None
    while isinstance(result, (tuple, list)) and result:
        result = result[0]
    return result if isinstance(result, torch.Tensor) else None


def _put(value: Any, item: int, tensor: torch.Tensor) -> Any:
    if isinstance(value, torch.Tensor):
        return tensor
    parts = list(value)
    parts[item] = tensor
    return tuple(parts) if isinstance(value, tuple) else parts


def moves(sample: Sample) -> bool | None:
    """Whether every element of the result is one of the first operand; None: it has none."""
    slot, tensor = _first(sample)
    torch.manual_seed(1)
    for shift in (-0.5, 3.0):
        value = torch.rand(tensor.shape) + shift
        result = _given(sample, slot, value)
        if result is not None and not result.numel():
            return None
        if result is None or result.dtype != torch.float32:
            return False
        if not torch.isin(result, value).all():
            return False
    return True


def elementwise(sample: Sample, slot: Slot) -> bool:
    """Whether a change of one element of an operand changes what stands at its place only."""
    tensor = sample.slots[slot]
    base = _given(sample, slot, tensor)
    if base is None or not tensor.numel():
        return False
    try:
        shape = torch.broadcast_shapes(base.shape, tensor.shape)
    except RuntimeError:
        return False
    if shape != base.shape:
        return False
    for place in {0, tensor.numel() - 1, tensor.numel() // 2}:
        value = tensor.detach().clone().contiguous()
        value.view(-1)[place] += 0.25
        mark = torch.zeros(tensor.shape, dtype=torch.bool).contiguous()
        mark.view(-1)[place] = True
        result = _given(sample, slot, value)
        if result is None or result.shape != base.shape:
            return False
        same = (result == base) | ((result != result) & (base != base))
        if not (same | mark.expand(base.shape)).all():
            return False
    return True


# tables

BITS = {"float16": 4, "bfloat16": 8}
LETTERS = {"lower": "L", "fp32": "F", "fp32_dtype": "D", "widest": "W", "banned": "B"}


def row(facts: Facts) -> dict[str, Any]:
    """An operation as the table has it: only what differs from the usual."""
    known = facts.known
    fields: dict[str, Any] = {"p": " ".join(known.parameters), "at": "".join(sorted(known.homes))}
    if facts.operands != (0,):
        fields["o"] = facts.operands
    if facts.result != "first":
        fields["r"] = facts.result
    for key, values in (
        ("s", facts.strict),
        ("w", facts.wide),
        ("m", facts.outputs),
        ("n", facts.fields),
    ):
        if values:
            fields[key] = values if key in "sw" else " ".join(map(str, values))
    policy = "".join(LETTERS.get(facts.policy.get(device, ""), "-") for device in ("cuda", "cpu"))
    if policy != "--":
        fields["a"] = policy
    absent = [sum(BITS[d] for d in facts.missing.get(device, ())) for device in ("cuda", "cpu")]
    if any(absent):
        fields["k"] = absent
    if facts.flags:
        fields["f"] = "".join(sorted(facts.flags))
    if known.variadic >= 0:
        fields["v"] = known.variadic
    if known.name in RECEIVER:
        fields["x"] = RECEIVER[known.name]
    return fields


PSEUDO: dict[str, dict[str, Any]] = {
    "identity": {"p": "input", "f": "ev"},
    "copy": {"p": "input src non_blocking", "f": "e"},
    "zero": {"p": "input", "f": "e"},
    "fill_diagonal": {"p": "input fill_value wrap"},
    **{name: {"p": f"input {more}", "f": "i"} for name, more in (
        ("cauchy", "median sigma"), ("exponential", "lambd"), ("geometric", "p"),
        ("log_normal", "mean std"), ("normal", "mean std"), ("random", "from to"),
        ("uniform", "from to"))},
}  # fmt: skip
"""What layers or methods do in place only (``zero_``), as operations."""


def operations() -> dict[str, Any]:
    """The table of operations."""
    known = catalogue()
    listed = entries(known)
    every = {name: measured(one, listed.get(name, [])) for name, one in known.items()}
    lists = json.loads((FOLDER / "autocast.json").read_text(encoding="utf-8"))["autocast"]
    add_policies(every, lists)
    add_missing(every, listed)
    for facts in every.values():
        add_flags(facts)
    aliases = {
        full: [name, "".join(sorted(letters))]
        for name, one in known.items()
        for full, letters in one.spellings.items()
        if full != name
    }
    for one in known.values():
        one.homes = one.spellings.get(one.name) or {"m" if one.name.startswith("Tensor.") else "t"}
    rows = {name: row(facts) for name, facts in every.items()}
    rows.update(
        {name: {"at": "" if name == "identity" else "m", **one} for name, one in PSEUDO.items()}
    )
    return {
        "torch": torch.__version__.partition("+")[0],
        "operations": dict(sorted(rows.items())),
        "aliases": dict(sorted(aliases.items())),
    }


def lines(content: Mapping[str, Any]) -> str:
    """A dict as JSON with one key a line."""
    rows = (f"{json.dumps(k)}:{json.dumps(v, separators=(',', ':'))}" for k, v in content.items())
    return "{\n" + ",\n".join(rows) + "\n}\n"


def dumped(content: Mapping[str, Any]) -> str:
    """JSON with one entry a line, so that changes can be read."""
    parts = []
    for key, value in content.items():
        if isinstance(value, dict):
            parts.append(f"{json.dumps(key)}:" + lines(value).rstrip())
        else:
            parts.append(f"{json.dumps(key)}:{json.dumps(value)}")
    return "{" + ",\n".join(parts) + "}\n"


# layers and optimizers

CONTAINERS = frozenset({
    "Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict", "Container",
})  # fmt: skip
LAYERS = {
    **dict.fromkeys(("LSTM", "GRU", "RNN", "RNNBase", "LSTMCell", "GRUCell", "RNNCell", "RNNCellBase"),
                    "recurrent"),
    **dict.fromkeys(("MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
                     "TransformerEncoderLayer", "TransformerDecoderLayer"), "attention"),
    **{f"{lazy}InstanceNorm{n}d": "instance_norm" for lazy in ("", "Lazy") for n in (1, 2, 3)},
    "Identity": "identity", "ReLU6": "relu6", "Softmax2d": "softmax",
    "CrossMapLRN2d": "local_response_norm",
    **dict.fromkeys(("AdaptiveLogSoftmaxWithLoss", "DataParallel", *CONTAINERS), ""),
}  # fmt: skip
"""Layers whose operation their source does not tell."""
ARGUMENTS: dict[str, dict[str, Any]] = {
    "AdaptiveLogSoftmaxWithLoss": {"n_classes": 10, "cutoffs": [3, 6]},
    "MultiheadAttention": {"embed_dim": 4, "num_heads": 2},
    **{name: {"nhead": 2} for name in ("TransformerEncoderLayer", "TransformerDecoderLayer")},
    "Transformer": {"d_model": 4, "nhead": 2, "dim_feedforward": 4},
    "TransformerEncoder": {"encoder_layer": torch.nn.TransformerEncoderLayer(4, 2)},
    "TransformerDecoder": {"decoder_layer": torch.nn.TransformerDecoderLayer(4, 2)},
    "RNNBase": {"mode": "LSTM"}, "DataParallel": {"module": torch.nn.Linear(4, 4)},
    "FractionalMaxPool2d": {"output_size": 2}, "FractionalMaxPool3d": {"output_size": 2},
    "Unflatten": {"unflattened_size": (2, 2)},
}  # fmt: skip
"""Arguments of constructors for which 4 won't do."""
OUTPUTS = {
    "LSTM": 2, "GRU": 2, "RNN": 2, "LSTMCell": 2, "MultiheadAttention": 2,
    "AdaptiveLogSoftmaxWithLoss": 2,
}  # fmt: skip
SAYS = re.compile(r"\b(?:F|torch)\.(\w+)\(|\binput\.(\w+)\(")


def constructor(cls: type) -> dict[str, Any]:
    """Names of a constructor's positional parameters, and plain defaults of all."""
    recurrent = issubclass(cls, torch.nn.RNNBase) and cls is not torch.nn.RNNBase
    home: Any = torch.nn.RNNBase if recurrent else cls
    given = list(inspect.signature(home.__init__).parameters.values())[2 if recurrent else 1 :]
    plain = (bool, int, float, str, type(None))
    defaults = {}
    for parameter in given:
        value = parameter.default
        if isinstance(value, (tuple, list)) and all(isinstance(v, plain) for v in value):
            value = list(value)
        if parameter.default is not parameter.empty and isinstance(value, (*plain, list)):
            defaults[parameter.name] = value
    names = [p.name for p in given if p.kind == p.POSITIONAL_OR_KEYWORD]
    return {"parameters": names, "defaults": defaults}


def layer_row(name: str, cls: Any) -> dict[str, Any]:
    """A class of ``torch.nn``."""
    made = constructor(cls)
    needed = [p for p in made["parameters"] if p not in made["defaults"]]
    weights: list[str] = []
    buffers: list[str] = []
    with contextlib.suppress(TypeError):
        module = cls(**{**dict.fromkeys(needed, 4), **ARGUMENTS.get(name, {})})
        weights = [n for n, p in module._parameters.items() if p is not None]
        buffers = [n for n, b in module._buffers.items() if b is not None]
    found = LAYERS.get(name)
    if found is None:
        source = inspect.getsource(cls.forward)
        if "self._conv_forward" in source:
            source = inspect.getsource(cls._conv_forward)
        match = SAYS.search(source)
        found = (match[1] or match[2]) if match else ""
    extra = {"outputs": OUTPUTS[name]} if name in OUTPUTS else {}
    extra |= {"container": True} if name in CONTAINERS else {}
    return {"operation": found, **made, "weights": weights, "buffers": buffers, **extra}


def layers() -> dict[str, Any]:
    """The table of ``torch.nn``."""
    classes = {
        name: cls
        for name, cls in sorted(vars(torch.nn).items())
        if isinstance(cls, type) and issubclass(cls, torch.nn.Module) and cls is not torch.nn.Module
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # lazy and deprecated ones
        return {name: layer_row(name, cls) for name, cls in classes.items()}


def optimizers() -> dict[str, Any]:
    """The table of ``torch.optim``."""
    return {
        name: constructor(cls)
        for name, cls in sorted(vars(torch.optim).items())
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer)
        and cls is not torch.optim.Optimizer
    }  # fmt: skip


# NumPy

ARRAY_FUNCTIONS = ["abs", "absolute", "all", "allclose", "amax", "amin", "angle", "any", "append", "apply_along_axis", "arange", "argmax", "argmin", "argsort", "argwhere", "around", "array", "array_equal", "array_split", "asanyarray", "asarray", "ascontiguousarray", "asfortranarray", "atleast_1d", "atleast_2d", "atleast_3d", "average", "bartlett", "bincount", "blackman", "block", "broadcast_to", "clip", "column_stack", "concatenate", "convolve", "copy", "corrcoef", "correlate", "count_nonzero", "cov", "cross", "cumprod", "cumsum", "deg2rad", "delete", "diag", "diagflat", "diagonal", "diff", "digitize", "dot", "dsplit", "dstack", "einsum", "empty", "empty_like", "expand_dims", "eye", "fft.fft", "fft.fft2", "fft.fftfreq", "fft.fftn", "fft.fftshift", "fft.ifft", "fft.ifftshift", "fft.irfft", "fft.rfft", "fft.rfftfreq", "flatnonzero", "flip", "fliplr", "flipud", "full", "full_like", "geomspace", "gradient", "hamming", "hanning", "histogram", "hsplit", "hstack", "identity", "imag", "indices", "inner", "insert", "interp", "isclose", "isin", "isreal", "kaiser", "kron", "lexsort", "linalg.cholesky", "linalg.det", "linalg.eig", "linalg.eigh", "linalg.eigvals", "linalg.eigvalsh", "linalg.inv", "linalg.lstsq", "linalg.matrix_power", "linalg.matrix_rank", "linalg.norm", "linalg.pinv", "linalg.qr", "linalg.slogdet", "linalg.solve", "linalg.svd", "linspace", "logspace", "matmul", "max", "mean", "median", "meshgrid", "min", "moveaxis", "nan_to_num", "nanargmax", "nanargmin", "nanmax", "nanmean", "nanmedian", "nanmin", "nanpercentile", "nanprod", "nanquantile", "nanstd", "nansum", "nanvar", "ndim", "nonzero", "ones", "ones_like", "outer", "pad", "partition", "percentile", "prod", "ptp", "put_along_axis", "quantile", "rad2deg", "random.beta", "random.binomial", "random.choice", "random.exponential", "random.gamma", "random.laplace", "random.lognormal", "random.multivariate_normal", "random.normal", "random.permutation", "random.poisson", "random.rand", "random.randint", "random.randn", "random.random", "random.random_sample", "random.sample", "random.standard_normal", "random.triangular", "random.uniform", "ravel", "real", "repeat", "reshape", "resize", "roll", "rollaxis", "rot90", "round", "searchsorted", "select", "sign", "sinc", "sort", "split", "squeeze", "stack", "std", "sum", "swapaxes", "take", "take_along_axis", "tensordot", "tile", "trace", "transpose", "trapezoid", "tri", "tril", "tril_indices", "triu", "triu_indices", "unique", "unravel_index", "vander", "var", "vdot", "vsplit", "vstack", "where", "zeros", "zeros_like"]  # fmt: skip
"""Functions of NumPy besides its ufuncs."""
NUMBERS: dict[str, tuple[Any, ...]] = {
    "arange": (3,), "bartlett": (4,), "blackman": (4,), "empty": (2,), "eye": (2,), "zeros": (2,),
    "fft.fftfreq": (4,), "fft.rfftfreq": (4,), "full": (2, 1.5), "geomspace": (1, 2, 3),
    "hamming": (4,), "hanning": (4,), "identity": (2,), "indices": ((2, 2),), "kaiser": (4, 1),
    "linspace": (0, 1, 3), "logspace": (0, 1, 3), "ones": (2,), "random.beta": (1, 1, 3),
    "random.binomial": (3, 0.5, 3), "random.exponential": (1, 3), "random.gamma": (1, 1, 3),
    "random.laplace": (0, 1, 3), "random.lognormal": (0, 1, 3), "random.normal": (0, 1, 3),
    "random.multivariate_normal": ([0, 0], [[1, 0], [0, 1]]), "random.poisson": (1, 3),
    "random.rand": (3,), "random.randint": (0, 3, 3), "random.randn": (3,), "random.random": (3,),
    "random.random_sample": (3,), "random.sample": (3,), "random.standard_normal": (3,),
    "random.triangular": (0, 1, 2, 3), "random.uniform": (0, 1, 3), "tri": (3,),
    "tril_indices": (3,), "triu_indices": (3,), "unravel_index": ([1, 2], (2, 2)),
}  # fmt: skip
"""Arguments of functions that make arrays out of numbers."""


STATED_ARRAYS = {
    **dict.fromkeys(("quantile", "nanquantile"), "floating"), "full": "unknown", "arange": "unknown",
    **dict.fromkeys(("where", "vander", "dsplit", "clip", "conj", "conjugate", "cross", "select",
                     "subtract", "square", "take_along_axis", "bitwise_and", "bitwise_or",
                     "bitwise_xor"), "keeps"),
    **dict.fromkeys(("random.choice", "random.permutation", "append"), "unknown"),
}  # fmt: skip
"""Functions that the arguments above do not show."""


def array_rule(name: str, numpy: Any) -> str:
    """How the dtype of a function's result follows from that of its arrays.

    ``float64``, ``int``, ``bool``, ``complex``: always.  ``floating``: float64 for integers, floats as they
    are.  ``keeps``: as the arrays promote.  ``int_like``: integers for booleans.  ``unknown``.
    """
    function = functools.reduce(getattr, name.split("."), numpy)
    if name in NUMBERS:
        return str(_kind(function(*NUMBERS[name])))
    seen = {}
    for dtype in ("float32", "float64", "int64", "bool"):
        matrix = (numpy.array([[3, 1], [1, 2]]) > (1 if dtype == "bool" else -9)).astype(dtype)
        matrix = matrix if dtype == "bool" else numpy.array([[3, 1], [1, 2]], dtype)
        seen[dtype] = _kind(_applied(function, matrix, numpy))
    if seen["float32"] == "float32" and seen["float64"] == "float64":
        if seen["int64"] == "float64":
            return "floating"
        return "int_like" if seen["bool"] == "int" else "keeps"
    kinds = {kind for kind in seen.values() if kind}
    return kinds.pop() if len(kinds) == 1 else "unknown"


def _applied(function: Any, matrix: Any, numpy: Any) -> Any:
    row, ones = matrix[0], numpy.ones(2, dtype="int64")
    for arguments in (
        (matrix,), (row,), (matrix, matrix), (row, row), ([matrix, matrix],), (matrix, 1),
        (matrix, (2, 2)), (row, 0, 1), (matrix, 0, 1), (matrix, row, row), (row, row, row),
        (matrix > 0, matrix, matrix), ("ij->j", matrix), (ones, row), (matrix, 0, row),
        ([matrix > 0], [matrix]), (1, matrix),
    ):  # fmt: skip
        try:
            found = function(*arguments)
        except Exception:  # of many types
            continue
        if found is not None:
            return found
    return None


def _kind(value: Any) -> str | None:
    while isinstance(value, (tuple, list)) and value:
        value = value[0]
    if isinstance(value, bool):
        return "bool"
    dtype = str(getattr(value, "dtype", ""))
    if dtype.startswith(("int", "uint")) or isinstance(value, int):
        return "int"
    return "complex" if dtype.startswith("complex") else dtype or None


def arrays() -> dict[str, str]:
    """The table of NumPy's functions."""
    import numpy

    ufuncs = [name for name in dir(numpy) if isinstance(getattr(numpy, name), numpy.ufunc)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = {name: array_rule(name, numpy) for name in sorted({*ARRAY_FUNCTIONS, *ufuncs})}
    return {**found, **STATED_ARRAYS}


# torch.amp

AMP = (
    "torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast", "torch.cpu.amp.autocast",
    "torch.GradScaler", "torch.amp.GradScaler", "torch.cuda.amp.GradScaler",
    "torch.cpu.amp.GradScaler", "torch.amp.custom_fwd", "torch.amp.custom_bwd",
    "torch.cuda.amp.custom_fwd", "torch.cuda.amp.custom_bwd", "torch.amp.is_autocast_available",
    *(f"torch.amp.GradScaler.{name}" for name in ("scale", "step", "update", "unscale_")),
)  # fmt: skip
DEVICES = ("cpu", "cuda", "xpu", "mps", "hpu", "mtia", "maia", "xla", "ipu", "privateuseone")


def amp() -> dict[str, Any]:
    """Signatures of what mixed precision is made of, and the dtype of each device's autocast."""
    names = {}
    for name in AMP:
        function = functools.reduce(getattr, name.split(".")[1:], torch)
        given = [p for p in inspect.signature(function).parameters.values() if p.name != "self"]
        shown = {
            p.name: name_of(p.default) if isinstance(p.default, torch.dtype) else p.default
            for p in given
            if p.default is not p.empty and p.kind is not p.VAR_POSITIONAL
        }
        plain = [p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        names[name] = {
            "parameters": [p.name for p in plain if p.kind is not p.KEYWORD_ONLY],
            "keywords": [p.name for p in plain if p.kind is p.KEYWORD_ONLY],
            "defaults": shown,
        }
    lowest = {device: name_of(torch.get_autocast_dtype(device)) for device in DEVICES}
    return {"names": names, "dtypes": lowest}


def tables() -> dict[str, str]:
    """What the files hold, by name."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            "operations.json": dumped(operations()),
            "layers.json": lines(layers()),
            "optimizers.json": lines(optimizers()),
            "arrays.json": json.dumps(arrays(), indent=1) + "\n",
            "amp.json": dumped(amp()),
        }


def main() -> int:
    parser = argparse.ArgumentParser(description="Regenerate the tables about torch.")
    parser.add_argument("--check", action="store_true", help="compare with the files only")
    check = parser.parse_args().check
    for name, text in tables().items():
        target = FOLDER / name
        if not check:
            target.write_text(text, encoding="utf-8")
        elif target.read_text(encoding="utf-8") != text:
            print(
                f"{target}: differs from torch {torch.__version__}; run scripts/make_torchmodel.py"
            )
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
