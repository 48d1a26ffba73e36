"""What torch.amp has: arguments, devices, and the names that were replaced."""

from __future__ import annotations

from typing import Final

from precision_lint.torchmodel.tables import table

AUTOCAST: Final = ("device_type", "dtype", "enabled", "cache_enabled")
LEGACY_AUTOCAST: Final = ("enabled", "dtype", "cache_enabled")
SCALER: Final = (
    "device",
    "init_scale",
    "growth_factor",
    "backoff_factor",
    "growth_interval",
    "enabled",
)
DEVICES: Final = frozenset({
    "cuda", "cpu", "xpu", "mps", "hpu", "npu", "mtia", "maia", "xla", "ipu", "privateuseone",
    "meta", "mlu", "musa",
})  # fmt: skip
"""Types of devices that autocast takes; the last ones come with extensions."""
DEVICE_SINCE: Final[dict[str, tuple[int, int]]] = {
    "hpu": (2, 0), "ipu": (2, 1), "xla": (2, 1), "privateuseone": (2, 1), "mps": (2, 5),
}  # fmt: skip
"""The release from which autocast takes a type of device; before, it raises.  cuda, cpu and xpu were there
in 1.13.  From ``torch/amp/autocast_mode.py`` of the releases 1.13 to 2.6."""
INDEXED_SINCE: Final = (2, 4)
"""The release from which autocast takes a device with its index (``cuda:0``); before, it raises."""
FLOAT16_ON_CPU_SINCE: Final = (2, 2)
"""The release from which the CPU's autocast takes float16; before, it warns and switches itself off."""
SINCE: Final[dict[str, tuple[int, int]]] = {
    "torch.GradScaler": (2, 3),
    "torch.amp.GradScaler": (2, 3),
    "torch.cpu.amp.GradScaler": (2, 3),
    "torch.amp.custom_fwd": (2, 4),
    "torch.amp.custom_bwd": (2, 4),
    "torch.amp.is_autocast_available": (2, 4),
    "torch.get_autocast_dtype": (2, 4),
    "torch.set_autocast_dtype": (2, 4),
}
"""The release that brought a name; the others were there in 1.13."""
DEPRECATED: Final[dict[str, tuple[str, tuple[int, int], str]]] = {
    "torch.cuda.amp.autocast": ("torch.amp.autocast", (2, 4), "cuda"),
    "torch.cuda.amp.autocast_mode.autocast": ("torch.amp.autocast", (2, 4), "cuda"),
    "torch.cpu.amp.autocast": ("torch.amp.autocast", (2, 4), "cpu"),
    "torch.cuda.amp.GradScaler": ("torch.amp.GradScaler", (2, 4), "cuda"),
    "torch.cuda.amp.grad_scaler.GradScaler": ("torch.amp.GradScaler", (2, 4), "cuda"),
    "torch.cpu.amp.GradScaler": ("torch.amp.GradScaler", (2, 4), "cpu"),
    "torch.cuda.amp.custom_fwd": ("torch.amp.custom_fwd", (2, 4), "cuda"),
    "torch.cuda.amp.custom_bwd": ("torch.amp.custom_bwd", (2, 4), "cuda"),
    "torch.get_autocast_gpu_dtype": ("torch.get_autocast_dtype", (2, 4), "cuda"),
    "torch.get_autocast_cpu_dtype": ("torch.get_autocast_dtype", (2, 4), "cpu"),
    "torch.is_autocast_cpu_enabled": ("torch.is_autocast_enabled", (2, 4), "cpu"),
    "torch.set_autocast_gpu_dtype": ("torch.set_autocast_dtype", (2, 4), "cuda"),
}
"""Names with what replaces them, the version from which they warn, and the device they stand for."""


def exists(name: str) -> bool:
    """Whether torch has a name of torch.amp."""
    return name in table("amp")["names"]
