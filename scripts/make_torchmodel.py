"""Regenerate the tables in ``precision_lint/torchmodel`` out of the installed torch.

    python scripts/make_torchmodel.py [--check]

Operations: names and signatures are those of the installed torch; the dtypes of results, which operands
must agree, what autocast does and which kernels are missing are found by calling every operation with
samples (torch's own test suite has most of them), in several dtypes and under both autocast policies.
"""

from __future__ import annotations

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
    r"t:(mkldnn|cudnn|miopen|native|quantize|quantized|sparse|fused|choose|fake|empty_quantized)_\w+": "kernels of backends",
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

OVERLOADS = {"scatter": "src", "masked_fill": "Scalar", "where": "self", "index_fill": "int_Scalar"}
"""Which overload gives the names of the parameters, where it is not the one with most of them."""
HIDDEN = frozenset({
    "out", "generator", "layout", "device", "pin_memory", "memory_format", "names", "_stacklevel",
    "async_", "implicit",
})  # fmt: skip
"""Parameters that the tables leave out."""
STATED_PARAMETERS = {
    "einsum": ("equation", "operands"), "lu": ("input", "pivot", "get_infos"),
    "unique": ("input", "sorted", "return_inverse", "return_counts", "dim"),
    "unique_consecutive": ("input", "return_inverse", "return_counts", "dim"),
    "meshgrid": ("tensors", "indexing"), "block_diag": ("tensors",), "cartesian_prod": ("tensors",),
    "broadcast_tensors": ("tensors",), "chain_matmul": ("matrices",), "to": ("input", "dtype"),
    "atleast_1d": ("input",), "atleast_2d": ("input",), "atleast_3d": ("input",),
    "type": ("input", "dtype"), "split": ("input", "split_size_or_sections", "dim"),
    "max": ("input", "dim", "keepdim"), "min": ("input", "dim", "keepdim"),
    "softmax": ("input", "dim", "dtype"), "log_softmax": ("input", "dim", "dtype"),
    "softmin": ("input", "dim", "dtype"), "logsigmoid": ("input",), "view": ("input", "size"),
}  # fmt: skip
VARIADIC = {
    "einsum": 1, "block_diag": 0, "cartesian_prod": 0, "broadcast_tensors": 0, "meshgrid": 0,
    "chain_matmul": 0, "view": 1, "reshape": 1, "permute": 1, "expand": 1, "repeat": 1, "tile": 1,
    "flip": 1, "sum_to_size": 1, "atleast_1d": 0, "atleast_2d": 0, "atleast_3d": 0,
}  # fmt: skip
"""Parameters that take all arguments from there on, besides a sequence."""
