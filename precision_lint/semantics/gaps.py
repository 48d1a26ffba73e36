"""Kernels for half tensors that depend on more than the operation: on an option, on the release of
torch, on an extension."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.semantics.care import INTEGERS, Care
from precision_lint.semantics.flow import only_moves
from precision_lint.semantics.provenance import Provenance

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

COMPLETE = (2, 4)
"""A project that asks for this release of torch is not told of kernels that older ones lack."""
MASKING = frozenset({"tril", "triu"})
"""CUDA has these for bfloat16 from torch 2.1 on (pytorch/pytorch#101932)."""
SELECTING = MASKING | {"topk", "bernoulli"}
"""Operations that code calls on results of models, on the CPU as well."""
EARLY = SELECTING | frozenset({
    "sqrt", "rsqrt", "clamp", "clip", "clamp_", "sigmoid", "sigmoid_", "exp", "log", "softmax",
    "log_softmax", "cumsum", "kthvalue", "median", "tanh", "prod", "addmm", "bmm", "mm", "matmul",
    "layer_norm", "conv2d",
})  # fmt: skip
"""Operations that raise for float16 on the CPU in torch 1.13, and do not in 2.13 (measured)."""
INITS = frozenset({"torch.nn.init.orthogonal_", "torch.nn.init.orthogonal"})
"""Initialisations that decompose what they draw, in the dtype of the parameter."""
_IMAGES = re.compile(r"sample|decoded|image|img|pixel|frame|recon|render|pred|output|rgb")
"""Words of what a model has drawn."""
_DEVICE = re.compile(r"\bcpu\b|cuda|device|is_available|mps")
_HALVING = re.compile(r"half|fp16|float16|dtype|precision")
"""Words of conditions that ask on which device, or in which dtype, a model runs."""
_EXTENSION = re.compile(
    r"^(?:(?:_C|_ext|ext|ext_module|MSDA|\w+_(?:cuda|ext|cpp|C))\.\w+"
    r"|(?:\w+_)?cuda_\w+\.(?:forward|backward))$"
)
"""Functions of compiled extensions, by the names of these."""
_FUNCTION = re.compile(r"^[A-Z]\w*(?:Function|Func|Fn|Op|Autograd|Attn\w*)$")
_BUILTIN = re.compile(r"^(torch|super|self|cls|nn|F|np|numpy|math|ctx|tf|jax)\b|^torch\.cuda\b")


class Gaps:
    """What has no kernel for half tensors under some circumstances, and under which."""

    NAMES = frozenset(
        (
            "torch.nn.functional.interpolate",
            *(f"Tensor.{name}" for name in sorted(EARLY)),
            *(f"torch.{name}" for name in sorted(EARLY - {"sigmoid_", "clamp_", "layer_norm"})),
            "torch.bincount",
            "torch.histogram",
            "Tensor.apply",
            *INITS,
            "torchvision.ops.nms",
            "torchvision.ops.batched_nms",
        )
    )

    @staticmethod
    def of(call: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
        """Why an operation may lack a half kernel, and the operand that may be half."""
        qualified = at.qualify(call.func)
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "apply" and not (qualified or "").startswith("torch."):
            qualified = None  # a function that another file of the project defines
        if (qualified or f"Tensor.{method}") not in Gaps.NAMES or Care.in_test(at):
            return None
        if method not in EARLY and method != "apply" and at.region(call).on:
            return None
        if qualified == "torch.nn.functional.interpolate":
            return _smoothed(call, at)
        if qualified is not None and qualified.startswith("torchvision.ops."):
            operand = call.args[0] if call.args else None
            if operand is None or not _open(operand, at):
                return None
            return f"{qualified} has no kernel for half on the CPU", operand
        if qualified in ("torch.bincount", "torch.histogram"):
            given = [k.value for k in call.keywords if k.arg == "weights"] or call.args[1:2]
            operand = call.args[0] if qualified.endswith("histogram") else next(iter(given), None)
            if operand is None or not _open(operand, at):
                return None
            return f"{qualified} has no kernel for half on the CPU", operand
        if method == "apply":
            return _applied(call, at)
        if qualified in INITS:
            return _decomposed(call, at)
        return _early(call, at)

    @staticmethod
    def extension(call: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
        """A tensor that a compiled extension is given, whose kernels may know float32 alone."""
        path = at.text(call.func)
        if not _EXTENSION.match(path) or _BUILTIN.match(path):
            return None
        if at.qualify(call.func) not in (None, path):  # ``import correlation_cuda`` is one
            return None
        owner = path.partition(".")[0]
        if owner in at.function.assigned or owner in {p.arg for p in at.function.parameters()}:
            return None
        if at.mentions(r"\.float\(|custom_fwd|float32|autocast|\.half\(|dtype"):
            return None
        operand = next((a for a in call.args if _open(a, at)), None)
        return None if operand is None else (f"{path} may have no kernel for half", operand)

    @staticmethod
    def unasked(call: ast.Call, at: Context) -> ast.Call | None:
        """The cast of the same class that is made on a device alone, where this one always is."""
        func, cls = call.func, at.function.cls
        if not isinstance(func, ast.Attribute) or func.attr != "half" or call.args or cls is None:
            return None
        if ".cuda(" in at.text(func.value) or _asks(call, at):
            return None
        if any(isinstance(node, ast.If) and _either(node.test, at) for node in at.function.nodes):
            return None  # this function knows of it
        for other, function in at.module.index.calls.get("half", ()):
            if other is call or function.cls is not cls or other.args:
                continue
            if _asks(other, at.inside(function), _DEVICE):
                return other
        return None


def _asks(call: ast.Call, at: Context, words: re.Pattern[str] | None = None) -> bool:
    """Whether a condition around a call asks for the device (or also for the dtype)."""
    for parent in at.ancestors(call):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        if isinstance(parent, (ast.If, ast.IfExp)):
            asked = at.text(parent.test)
            if words.search(asked) if words is not None else _either(parent.test, at):
                return True
    return False


def _either(test: ast.expr, at: Context) -> bool:
    asked = at.text(test)
    return _DEVICE.search(asked) is not None or _HALVING.search(asked) is not None


def _smoothed(call: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
    """``F.interpolate(x, antialias=True)``"""
    given = {k.arg: k.value for k in call.keywords}
    flag, operand = given.get("antialias"), call.args[0] if call.args else given.get("input")
    if flag is None or at.value(flag).const is False or operand is None or not _open(operand, at):
        return None
    return "interpolate with antialias has no kernel for half on the CPU", operand


def _applied(call: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
    """``DeformAttnFunction.apply(value, ...)`` of a function that runs an extension."""
    assert isinstance(call.func, ast.Attribute)
    owner = call.func.value
    name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
    if not _FUNCTION.match(name) or at.mentions(r"\.float\(|float32|autocast|\.half\("):
        return None
    made = at.module.index.classes.get(name)
    if made is not None:
        forward = made.methods.get("forward")
        text = ast.unparse(made.node)
        if forward is None or "custom_fwd" in text or ".float(" in text:
            return None
        calls = (ast.unparse(n.func) for n in ast.walk(forward.node) if isinstance(n, ast.Call))
        if not any(_EXTENSION.match(c) and not _BUILTIN.match(c) for c in calls):
            return None
    operand = next((a for a in call.args if _open(a, at)), None)
    return None if operand is None else (f"{name} may have no kernel for half", operand)


def _early(call: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
    """An operation on the CPU that older releases lack for float16."""
    found = at.operation(call)
    if found is None or at.project.has_torch(*COMPLETE):
        return None
    name, operand = found
    if name not in SELECTING and not at.mentions(
        r"cpu|state_dict|ckpt|checkpoint|float16|half|numpy\(|fromarray|to_pil"
    ):
        return None  # cheaper than to interpret the function
    value = at.value(operand)
    if (
        at.region(call).on
        or value.kind not in ("tensor", "unknown", "object")
        or (value.dtype and not value.may_be_half)
    ):
        return None
    harm = (
        f"{name} is missing for half in older releases of torch (bfloat16 on CUDA up to 2.0)"
        if name in MASKING
        else f"{name} of float16 has no kernel on the CPU in older releases of torch (1.13)"
    )
    proven = value.dtype == "float16"
    selects = name in SELECTING and value.variable and (value.is_tensor or name == "topk")
    brought = value.kind != "object" and _on_cpu(operand, at)
    open_ = proven or selects or brought or _drawn(call, name, at)
    return (harm, operand) if open_ else None


def _decomposed(call: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
    """``init.orthogonal_(weight)``"""
    if not call.args or at.mentions(r"\.float\(|float32"):
        return None
    return "the QR decomposition in orthogonal_ has no kernel for half", call.args[0]


def _drawn(call: ast.Call, name: str, at: Context) -> bool:
    """Whether images are bounded on their way to numpy: ``clamp((decoded + 1) / 2, 0, 1)``."""
    words = " ".join(at.text(part) for part in (call.func, *call.args[:1])).lower()
    if name not in ("clamp", "clip", "clamp_") or _IMAGES.search(words) is None:
        return False
    return at.mentions(r"\.numpy\(|fromarray|to_pil") and not at.mentions(
        r"\.float\(|torch\.float32"
    )


def _on_cpu(operand: ast.expr, at: Context) -> bool:
    """Whether a tensor was brought to the CPU in its dtype, or is an entry of a checkpoint."""
    for origin in Provenance.of(operand, at):
        if isinstance(origin, ast.Subscript) and isinstance(origin.value, ast.Name):
            if re.fullmatch(r"state_dict|checkpoint|ckpt|\w*_sd", origin.value.id):
                return not at.mentions(r"\.float\(\)")
        if not isinstance(origin, ast.Call) or not isinstance(origin.func, ast.Attribute):
            continue
        name, given = origin.func.attr, [at.text(a) for a in origin.args]
        if name == "float" or (name == "to" and not only_moves(origin, at)):
            return False
        if name == "cpu" or (name == "to" and given[:1] in (['"cpu"'], ["'cpu'"])):
            return not at.qualify(origin.func)
    return False


def _open(node: ast.expr, at: Context) -> bool:
    """Whether an operand may be half, as far as is known."""
    value = at.value(node)
    if value.dtype in ("float16", "bfloat16", "low"):
        return True
    if not value.variable or not value.maybe_tensor or "cast" in value.tags:
        return False
    return value.is_tensor or INTEGERS.search(at.text(node).lower()) is None
