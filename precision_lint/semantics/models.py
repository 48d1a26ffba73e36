"""Objects whose weights code makes half: what holds them, and what calling them gives.

A tensor is not called, so what has a half dtype and is called is a model with such weights: that
is told by use, not by names.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.semantics import ops
from precision_lint.semantics.names import dotted
from precision_lint.semantics.values import Value

if TYPE_CHECKING:
    from precision_lint.semantics.index import Class
    from precision_lint.semantics.module import Module

HALF = ("float16", "bfloat16")
KEEPING = frozenset({"eval", "train", "requires_grad_", "share_memory", "to_empty"})
"""Methods of modules, and of no tensor but ``requires_grad_``, that return the module."""
CASTING = frozenset({"to", "half", "bfloat16", "float", "double", "type"})
MOVING = KEEPING | CASTING | {"cuda", "cpu", "xpu", "npu"}
"""Methods of modules that change it in place and return it."""
WRAPPERS = frozenset({
    "torch.compile", "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel",
    "torch.nn.parallel.DataParallel", "torch.jit.script", "copy.deepcopy", "copy.copy",
})  # fmt: skip
"""Functions whose result runs the module that they are given."""
LOADED_AS = ("torch_dtype", "dtype")
"""Keywords that name the dtype of what a function loads or makes."""
_SEVERAL = re.compile(r"[Pp]ipeline|[Pp]rocessor")
"""Makers of what is no model itself: calling it gives images or text, on the CPU."""
CALLED = "()"
"""How the dtype variable of what calling a parameter gives ends: ``~net()``."""
OF_REGION = frozenset({"amp", "not-float16", "not-bfloat16"})
"""Tags of what a model gave in a region."""
_OTHERS = frozenset({
    "config", "cfg", "hparams", "args", "device", "dtype", "shape", "training", "name",
})  # fmt: skip
"""Attributes of models that are neither models nor tensors."""
_GIVES = re.compile(r"^(?:encode|decode|forward)(?:_|$)|^get_\w+_features$")
"""Methods of models that compute what the model computes."""
_WORDS = {"float16": "float16", "half": "float16", "fp16": "float16", "bfloat16": "bfloat16"}
_DTYPES = {name: ops.CASTS[name] for name in ("half", "bfloat16", "float", "double")}


@dataclass(frozen=True)
class Instance:
    """What an object is one of: a class of the project, and the module that it is in."""

    cls: Class
    module: Module


def weights(value: Value) -> str:
    """The half dtype that a value's weights have if it is called, in one of its branches at least;
    empty: none that is known."""
    if value.kind not in ("tensor", "callable", "dtype"):
        return ""
    return next((part for part in value.dtype.lstrip("~").split("|") if part in HALF), "")


def holds_half(value: Value) -> bool:
    """Whether a value, if it is called, has half weights."""
    return value.kind != "dtype" and weights(value) != ""


def spelled(given: Value) -> Value:
    """A dtype that is given as a text."""
    dtype = _WORDS.get(str(given.const)) if given.kind == "text" else None
    return Value("dtype", dtype) if dtype else given


def loads(call: ast.Call) -> bool:
    """Whether a call that is told a dtype may give a model."""
    return _SEVERAL.search(dotted(call.func) or "") is None


def moved(owner: Value, method: str, given: Iterable[Value]) -> Value | None:
    """What a method of ``MOVING`` makes of an instance of a module or a half model; None: it is
    asked of something else."""
    if method not in MOVING:
        return None
    if method in ("eval", "train") and owner.variable and owner.dtype[1:].isidentifier():
        return owner  # what a function is given, with its mode set
    if owner.kind == "tensor":
        if "model" in owner.tags and method not in CASTING:
            return owner
        return owner if method in KEEPING and holds_half(owner) else None
    if owner.kind != "callable":
        return None
    if method in _DTYPES:
        return owner.but(dtype=_DTYPES[method] if _DTYPES[method] in HALF else "")
    for value in given:
        if value.kind == "dtype":
            return owner.but(dtype=weights(value))
    return owner


def in_place(call: ast.expr) -> str | None:
    """The name that ``model.half()`` or ``model.to(dtype).eval()``, as a statement, casts."""
    cast = False
    while isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute):
        if call.func.attr not in MOVING:
            return None
        cast = cast or call.func.attr in CASTING
        call = call.func.value
    return dotted(call) if cast else None


def part(owner: Value, name: str) -> Value | None:
    """What an attribute of a model with half weights is, a parameter or a model as well; None: it
    is none, or the owner may be a tensor."""
    model = owner.kind == "callable" and not isinstance(owner.const, Instance)
    if not (model or "model" in owner.tags) or not holds_half(owner) or name in _OTHERS:
        return None
    if name in ("weight", "bias"):
        return Value("tensor", weights(owner), tags=frozenset({"float"}))
    return Value("callable", weights(owner), tags=frozenset({"instance"}))


def may_make_half(call: ast.Call) -> bool:
    """Whether a call casts, or names the dtype of what it makes."""
    cast = isinstance(call.func, ast.Attribute) and call.func.attr in CASTING
    return cast or any(keyword.arg in LOADED_AS for keyword in call.keywords)


def output(callee: Value) -> Value:
    """What a half model gives: its dtype, in a tensor or in an object that holds some."""
    return Value("unknown", weights(callee), tags=frozenset({"output", "float"}))


def result_of(callee: Value) -> Value | None:
    """What calling a value gives, by its dtype alone; None: nothing is known of it."""
    if holds_half(callee):
        return output(callee)
    if callee.kind == "unknown" and callee.dtype[1:].isidentifier():
        return Value("unknown", f"{callee.dtype}{CALLED}")
    return None


def computes(owner: Value, method: str, arguments: Iterable[Value]) -> bool:
    """Whether a method of a half model gives what is computed by it: by its name, or because it is
    given a tensor of its dtype."""
    if any(argument.kind == "text" for argument in arguments):
        return False
    return _GIVES.search(method) is not None or any(
        argument.maybe_tensor and weights(owner) in re.split(r"[~|+]", argument.dtype)
        for argument in arguments
    )
