"""CUDA's autocast policy on CPU tensors, forward and backward, with real autograd.

`cuda_policy` replaces the kernels of CPU autocast by kernels that make the casts of CUDA's lists
and then call the operator itself, so ``torch.autocast("cpu", ...)`` behaves as
``torch.autocast("cuda", ...)`` does on a GPU.  `precision_lint.harness.redirect` makes code
written for ``cuda`` run on it.

The lists are those of the installed torch: its header ``ATen/autocast_mode.h`` states them per
operator overload.  Where a torch comes without headers, ``precision_lint/torchmodel`` stands in.

What this cannot show: a tensor that lives on the CPU beside CUDA tensors takes no part in CUDA's
autocast, but here every tensor does; and kernels that exist only on a GPU.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.resources
import inspect
import json
import re
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

MINIMUM_TORCH = (2, 4)
BANNED = (
    "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast; "
    "use binary_cross_entropy_with_logits or BCEWithLogitsLoss"
)
_MACROS = {
    "AT_FORALL_LOWER_PRECISION_FP": "lower",
    "AT_FORALL_FP32": "fp32",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "fp32_set_opt_dtype",
    "AT_FORALL_PROMOTE": "promote",
}
_OUTSIDE_THE_HEADER = {
    "cudnn_convolution": "lower",
    "cudnn_convolution_transpose": "lower",
    "binary_cross_entropy": "banned",
    "norm.Scalar": "norm",
    "norm.ScalarOpt_dim": "norm",
}
"""Registered next to the header's lists, in ``aten/src/ATen/autocast_mode.cpp``."""
_COMPOSED = {"trace": "fp32"}
"""What a GPU computes by operations that are listed, and a CPU does not (measured on an H200)."""


class UnsupportedTorch(Exception):
    """The installed torch cannot run the harness; the text says which one can."""


def require_torch() -> None:
    """Refuse a torch that is too old."""
    found = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if found is None or (int(found[1]), int(found[2])) < MINIMUM_TORCH:
        raise UnsupportedTorch(
            f"torch {torch.__version__} is too old to execute proofs; install torch>="
            + ".".join(map(str, MINIMUM_TORCH))
        )


def header() -> Path:
    """Where torch keeps the header that states its autocast lists."""
    return Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"


def cuda_lists(path: Path | None = None) -> dict[str, str]:
    """CUDA's autocast policy by operator overload (``pow.Tensor_Scalar``).

    Policies: ``lower`` (to autocast's dtype), ``fp32``, ``fp32_set_opt_dtype`` (passes
    ``dtype=torch.float32`` unless the caller passes a dtype), ``norm`` (the same for ``norm``,
    through another overload), ``promote`` (to the widest) and ``banned`` (raises).
    """
    path = path or header()
    if path.is_file():
        return _from_header(path.read_text(encoding="utf-8"))
    facts = json.loads(
        (importlib.resources.files("precision_lint.torchmodel") / "autocast.json").read_text(
            "utf-8"
        )
    )
    warnings.warn(
        f"{path} is missing; using CUDA's autocast lists of torch {facts['torch']}", stacklevel=2
    )
    return _from_facts(facts["autocast"]["cuda"])


def _from_header(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for macro, policy in _MACROS.items():
        body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)*.*\n)", text)
        for arguments in re.findall(r"_\(([^()]*)\)", body[1] if body else ""):
            found[".".join(part.strip() for part in arguments.split(","))] = policy
    return found | _OUTSIDE_THE_HEADER


def _from_facts(lists: dict[str, list[str]]) -> dict[str, str]:
    """Plain names to overloads, with the help of the kernels that torch registers for CUDA."""
    by_name = {name: policy for policy, names in lists.items() for name in names}
    registered = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    overloads = [name.removeprefix("aten::") for name in registered]
    found = {n: by_name[base] for n in overloads if (base := n.partition(".")[0]) in by_name}
    return found | {
        name: _OUTSIDE_THE_HEADER[name] for name in found if name in _OUTSIDE_THE_HEADER
    }


def _eligible(value: object) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.is_floating_point()
        and value.dtype != torch.float64
    )


class _WeightCache:
    """Casts of float32 leaf parameters, kept until the outermost region ends.

    What CUDA's autocast does, stale casts included: parameters that change inside a region keep
    their old cast.  A cast made under ``no_grad`` is not reused where gradients are recorded.
    """

    def __init__(self) -> None:
        self._casts: dict[tuple[int, bool], tuple[torch.Tensor, torch.Tensor]] = {}

    def clear(self) -> None:
        self._casts.clear()

    def cast(self, value: Any, dtype: torch.dtype) -> Any:
        """``value`` with every eligible tensor in ``dtype``; lists are walked."""
        if isinstance(value, (list, tuple)) and any(isinstance(e, torch.Tensor) for e in value):
            return [self.cast(element, dtype) for element in value]
        if not _eligible(value) or value.dtype == dtype:
            return value
        cacheable = (
            torch.is_autocast_cache_enabled()
            and dtype == torch.get_autocast_dtype("cpu")
            and value.dtype == torch.float32
            and value.requires_grad
            and value.is_leaf
            and not value._is_view()
        )
        if not cacheable:
            return value.to(dtype)
        key = (id(value), torch.is_grad_enabled())
        if key not in self._casts:
            self._casts[key] = (value, value.to(dtype))  # the tensor itself keeps its id taken
        return self._casts[key][1]


def _tensors(values: Iterable[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            yield from _tensors(value)


def _widest(arguments: Iterable[Any], low: torch.dtype) -> torch.dtype:
    """What operands are cast to, in their order: the first of float32 decides."""
    for tensor in _tensors(arguments):
        if not _eligible(tensor):
            continue
        if tensor.dtype == torch.float32:
            return torch.float32
        if tensor.dtype != low:
            raise RuntimeError("Unexpected floating ScalarType in at::autocast::prioritize")
    return low


def _kernel(op: Any, policy: str, cache: _WeightCache) -> Callable[..., Any]:
    """The autocast kernel of one operator overload."""
    names = [argument.name for argument in op._schema.arguments]

    def call(dtype: torch.dtype, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return op(
            *(cache.cast(value, dtype) for value in args),
            **{name: cache.cast(value, dtype) for name, value in kwargs.items()},
        )

    def set_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        if _eligible(args[0]) and given.get("dtype") is None:
            given["dtype"] = torch.float32
            return op(given.pop(names[0]), **given)
        return op(*args, **kwargs)

    def norm(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = dict(zip(names, args, strict=False)) | kwargs
        tensor = given["self"]
        dtype = torch.float32 if _eligible(tensor) else tensor.dtype
        if "dim" not in names:
            return torch.ops.aten.norm.ScalarOpt_dtype(tensor, given.get("p", 2), dtype=dtype)
        return torch.ops.aten.norm.ScalarOpt_dim_dtype(
            tensor, given["p"], given["dim"], given.get("keepdim", False), dtype=dtype
        )

    @functools.wraps(call)
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableAutocast():
            low = torch.get_autocast_dtype("cpu")
            if policy == "banned":
                raise RuntimeError(BANNED)
            if policy == "fp32_set_opt_dtype":
                return set_dtype(args, kwargs)
            if policy == "norm":
                return norm(args, kwargs)
            if policy == "promote":
                return call(_widest((*args, *kwargs.values()), low), args, kwargs)
            return call(low if policy == "lower" else torch.float32, args, kwargs)

    return kernel


_depth = 0


@contextlib.contextmanager
def cuda_policy() -> Iterator[None]:
    """Run ``torch.autocast("cpu", ...)`` with CUDA's lists; for the whole process, may nest.

    Leaving the outermost one restores CPU autocast, also after an exception.
    """
    global _depth
    require_torch()
    if _depth:
        _depth += 1
        try:
            yield
        finally:
            _depth -= 1
        return
    cache, clear = _WeightCache(), torch.clear_autocast_cache
    library = torch.library.Library("aten", "IMPL", "AutocastCPU")  # type: ignore[no-untyped-call]

    def clear_both() -> None:
        cache.clear()
        clear()

    try:
        _register(library, cache)
        torch.clear_autocast_cache = clear_both  # autocast calls it on leaving a region
        _depth = 1
        yield
    finally:
        _depth = 0
        torch.clear_autocast_cache = clear
        library._destroy()  # type: ignore[no-untyped-call]


def _register(library: torch.library.Library, cache: _WeightCache) -> None:
    impl: Any = library.impl
    override: dict[str, Any] = {}
    if "allow_override" in inspect.signature(impl).parameters:
        override["allow_override"] = True
    lists = cuda_lists() | _COMPOSED
    cpu = torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCPU")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns that a kernel is overridden
        for name, policy in lists.items():
            base, _, overload = name.partition(".")
            packet = getattr(torch.ops.aten, base, None)
            op = getattr(packet, overload or "default", None)
            if op is not None:  # CUDA's own operators are absent from some builds
                impl(name, _kernel(op, policy, cache), "AutocastCPU", **override)
        for qualified in cpu:
            name = qualified.removeprefix("aten::")
            if name not in lists:  # CPU autocast casts it, CUDA's does not
                impl(name, torch.library.fallthrough_kernel, "AutocastCPU", **override)
