"""Modules that code makes half, their parts, and what comes out of them.

A value that was cast, or loaded in a half dtype, has a tag for each half dtype that it may have.
On a tensor the tag says nothing more than its dtype; what is called later is a module, whatever
its name, and gives half tensors.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

from precision_lint.semantics import ops
from precision_lint.semantics.names import dotted
from precision_lint.semantics.values import OF_MODULES, UNKNOWN, Value

_CASTS = frozenset({"to", "type", *ops.CASTS})
_MOVES = frozenset({
    "cuda", "cpu", "eval", "train", "requires_grad_", "share_memory", "compile", "to", "type",
})  # fmt: skip
"""Methods of modules that give the module itself."""
_WRAPPERS = frozenset({
    "torch.compile", "torch.jit.script", "torch.jit.trace", "copy.deepcopy", "copy.copy",
    "torch.nn.DataParallel", "torch.nn.parallel.DistributedDataParallel",
})  # fmt: skip
_OTHERS = frozenset({
    "config", "cfg", "hparams", "args", "device", "dtype", "shape", "training", "name", "generate",
    "tokenizer", "state_dict", "parameters", "named_parameters", "buffers", "numel", "size", "dim",
})  # fmt: skip
"""Attributes of modules that are neither modules nor tensors."""
_WORDS = {"float16": "float16", "half": "float16", "fp16": "float16", "bfloat16": "bfloat16"}
OUTPUT = frozenset({"amp", "not-float16", "not-bfloat16"})
"""Tags of what came out of a model."""


def marked(value: Value) -> Value:
    """A value that was cast, with a tag for each half dtype that the cast may give it."""
    tags = value.tags - OF_MODULES.keys()
    choices = value.dtype.lstrip("~").split("|")
    return value.but(tags=tags | {tag for tag, dtype in OF_MODULES.items() if dtype in choices})


def output(module: Value, result: Value) -> Value:
    """``result`` as what a call of ``module`` gives; it is half unless its dtype is known."""
    made = module.tags & OF_MODULES.keys()
    if made and result.kind in ("tuple", "dict"):
        return result.but(items=tuple(output(module, item) for item in result.items))
    if not made or not result.maybe_tensor or not (result.variable or not result.dtype):
        return result
    dtypes = {OF_MODULES[tag] for tag in made}
    other = {f"not-{half}" for half in OF_MODULES.values() if half not in dtypes}
    return result.but(tags=result.tags | {"amp"} | other)


def part(owner: Value, name: str, result: Value, node: ast.expr) -> Value:
    """``result`` as an attribute of ``owner``: a part of a module, or of its output.

    ``node``: what a dtype without a name is named after.
    """
    if owner.tags & (OF_MODULES.keys() | OUTPUT) and not result.dtype:
        result = result.but(dtype=f"~call{node.lineno}:{node.col_offset}")
    if name in _OTHERS or result.kind != "unknown":
        return result
    if owner.tags & OF_MODULES.keys():
        inner = result.but(tags=result.tags | owner.tags & OF_MODULES.keys())
        return output(inner, inner)
    return result.but(tags=result.tags | owner.tags & OUTPUT) if owner.kind == "unknown" else result


def of_call(
    node: ast.Call,
    qualified: str | None,
    callee: Value,
    owner: Value,
    arguments: Sequence[Value],
    keywords: Mapping[str, Value],
    result: Value,
) -> Value:
    """``result`` of a call, with what the call does to a module, or has a module do.

    callee, owner: what is called, and the object whose method that is.
    """
    loaded = _loaded(keywords.get("torch_dtype", UNKNOWN))
    if loaded:
        return result.but(tags=result.tags | loaded)
    if result.kind == "tensor" and "cast" in result.tags:
        result = marked(result)
    if qualified is not None:
        wraps = arguments and qualified in _WRAPPERS
        return like(arguments[0], result) if wraps else result
    if callee.tags & OF_MODULES.keys():
        return output(callee, result)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
    if owner.kind == "callable" and name in _CASTS | _MOVES:
        given = [v.dtype for v in (*arguments, *keywords.values()) if v.kind == "dtype"]
        dtype = ops.CASTS.get(name) or next(iter(given), "")
        return like(marked(Value(dtype=dtype)), owner) if dtype else owner
    if owner.tags & OF_MODULES.keys():
        if name in _MOVES and "cast" not in result.tags:
            return owner
        if result.kind == "unknown" and name not in ops.CASTS:
            return part(owner, name, result, node)
    return result


def _loaded(given: Value) -> frozenset[str]:
    """The tags of a model that is loaded in a dtype."""
    if given.kind == "dtype":
        return marked(Value(dtype=given.dtype)).tags
    named = _WORDS.get(str(given.const)) if given.kind == "text" else None
    return marked(Value(dtype=named)).tags if named else frozenset()


def base(node: ast.expr) -> str | None:
    """The name in a statement such as ``model.half().eval()``, which changes it in place."""
    cast = False
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr not in _CASTS | _MOVES:
            return None
        cast = cast or node.func.attr in _CASTS
        node = node.func.value
    return dotted(node) if cast else None


def like(module: Value, result: Value) -> Value:
    """``result`` with the half dtypes that ``module`` may have."""
    return result.but(tags=result.tags - OF_MODULES.keys() | module.tags & OF_MODULES.keys())
