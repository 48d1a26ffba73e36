"""Run unmodified mixed-precision code under a chosen dtype, loss scale and device.

Inside `redirected`, code written for CUDA (``torch.autocast("cuda")``, ``torch.cuda.amp``,
``.cuda()``, ``.to("cuda")``, ``device="cuda"``, ``GradScaler("cuda")``) runs on the CPU, autocast
regions that name no dtype and GradScalers that name no ``init_scale`` take the values under test,
and the same text can be run with both switched off, as the reference.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from precision_lint.harness.policy import require_torch

_CUDA = re.compile(r"cuda(:\d+)?$")


_signature = functools.cache(inspect.signature)


@dataclass
class Redirection:
    """What the code under test did: the dtypes of the autocast regions it switched on."""

    regions: set[torch.dtype] = field(default_factory=set)


def _to_cpu(value: Any) -> Any:
    """``"cuda"`` and ``torch.device("cuda")`` become the CPU, everything else stays."""
    if isinstance(value, str) and _CUDA.match(value):
        return "cpu"
    if isinstance(value, torch.device) and value.type == "cuda":
        return torch.device("cpu")
    return value


class _OnCpu(TorchFunctionMode):
    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        redirected = {name: _to_cpu(value) for name, value in (kwargs or {}).items()}
        return func(*map(_to_cpu, args), **redirected)


class _Patches:
    """Attributes replaced for a while."""

    def __init__(self) -> None:
        self._saved: list[tuple[Any, str, Any]] = []

    def set(self, owner: Any, name: str, value: Any) -> None:
        self._saved.append((owner, name, getattr(owner, name)))
        setattr(owner, name, value)

    def restore(self) -> None:
        while self._saved:
            setattr(*self._saved.pop())


@contextlib.contextmanager
def redirected(
    dtype: torch.dtype,
    *,
    device: str = "cpu",
    loss_scale: float | None = None,
    amp: bool = True,
) -> Iterator[Redirection]:
    """Run the code in the body under test conditions; see the module.

    ``dtype``: what a region that names none gets.  ``device``: ``"cpu"`` redirects ``cuda`` to it,
    ``"cuda"`` leaves it.  ``loss_scale``: ``init_scale`` of GradScalers that name none.
    ``amp``: False switches every region and every GradScaler off.  May nest; an exception leaves
    nothing behind.
    """
    require_torch()
    on_cpu = device == "cpu"
    place: Callable[[Any], Any] = _to_cpu if on_cpu else lambda value: value
    redirection, patches = Redirection(), _Patches()
    default = torch.get_autocast_dtype(device)
    mode = _OnCpu() if on_cpu else contextlib.nullcontext()
    try:
        _patch_autocast(patches, redirection, place, amp)
        _patch_scalers(patches, place, loss_scale, amp)
        if on_cpu:
            _patch_queries(patches)
        torch.set_autocast_dtype(device, dtype)
        with mode:
            yield redirection
    finally:
        patches.restore()
        torch.set_autocast_dtype(device, default)


def _patch_autocast(
    patches: _Patches, redirection: Redirection, place: Callable[[Any], Any], amp: bool
) -> None:
    autocast = torch.amp.autocast_mode.autocast
    plain = autocast.__init__
    signature = _signature(plain)

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        given = bound.arguments
        asked = given.get("enabled", True)
        moved = given["device_type"] != (target := place(given["device_type"]))
        given["device_type"] = target
        if not amp:
            given["enabled"] = False
        with warnings.catch_warnings():
            if moved:  # CPU autocast refuses float32 with a warning, CUDA's accepts it
                warnings.simplefilter("ignore")
            plain(*bound.args, **bound.kwargs)
        if amp and moved and asked and self.fast_dtype == torch.float32:
            self._enabled = True
        if self._enabled:
            if isinstance(
                self.fast_dtype, torch.dtype
            ):  # some releases take others, and raise later
                redirection.regions.add(self.fast_dtype)

    patches.set(autocast, "__init__", init)


def _patch_scalers(
    patches: _Patches, place: Callable[[Any], Any], loss_scale: float | None, amp: bool
) -> None:
    scalers: tuple[Any, ...] = (
        torch.amp.GradScaler,
        torch.cuda.amp.GradScaler,
        torch.cpu.amp.grad_scaler.GradScaler,
    )
    for scaler in scalers:
        plain = scaler.__init__
        patches.set(scaler, "__init__", _scaler_init(plain, place, loss_scale, amp))


def _scaler_init(
    plain: Callable[..., None], place: Callable[[Any], Any], loss_scale: float | None, amp: bool
) -> Callable[..., None]:
    signature = _signature(plain)

    @functools.wraps(plain)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        bound = signature.bind(self, *args, **kwargs)
        if loss_scale is not None:
            bound.arguments.setdefault("init_scale", loss_scale)
        if "device" in signature.parameters:
            bound.arguments["device"] = place(bound.arguments.get("device", "cuda"))
        if not amp:
            bound.arguments["enabled"] = False
        plain(*bound.args, **bound.kwargs)

    return init


def _patch_queries(patches: _Patches) -> None:
    """What code asks torch about CUDA and about autocast."""
    enabled, get_dtype = torch.is_autocast_enabled, torch.get_autocast_dtype
    patches.set(torch, "is_autocast_enabled", lambda device="cuda": enabled(_to_cpu(device)))
    patches.set(torch, "get_autocast_dtype", lambda device: get_dtype(_to_cpu(device)))
    patches.set(torch, "get_autocast_gpu_dtype", lambda: get_dtype("cpu"))
    patches.set(torch.cuda, "is_available", lambda: True)
    patches.set(torch.backends.cuda, "is_built", lambda: False)  # else optimizers ask the driver
    if hasattr(torch, "accelerator"):  # since 2.6; newer optimizers ask this one
        patches.set(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    for name in ("custom_fwd", "custom_bwd"):
        plain = getattr(torch.amp, name)
        legacy = getattr(torch.cuda.amp, name)
        patches.set(torch.amp, name, _decorator(plain))
        patches.set(torch.cuda.amp, name, _decorator(plain) if legacy is not plain else legacy)


def _decorator(plain: Callable[..., Any]) -> Callable[..., Any]:
    def decorate(fwd: Any = None, *, device_type: str = "cuda", **keywords: Any) -> Any:
        def apply(function: Any) -> Any:
            return plain(function, device_type=_to_cpu(device_type), **keywords)

        return apply if fwd is None else apply(fwd)

    return decorate
