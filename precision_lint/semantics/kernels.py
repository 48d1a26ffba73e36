"""Which operations have no kernel for half tensors, from the tables in ``torchfacts``."""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import NamedTuple

from precision_lint.semantics.policy import policy


class _Gap(NamedTuple):
    name: str
    devices: dict[str, frozenset[str]]
    lifted: bool
    """Whether CPU's autocast casts the operands up."""


class Kernels:
    """What torch cannot run in float16 or bfloat16, by device."""

    @staticmethod
    def names() -> tuple[str, ...]:
        """Qualified names of the functions, and of the methods of tensors (``Tensor.det``)."""
        return tuple(_gaps())

    @staticmethod
    def absent(name: str, device: str) -> frozenset[str]:
        """Half dtypes that a device (``cpu``, else as on CUDA) has no kernel for."""
        gap = _gaps().get(name)
        return gap.devices["cpu" if device == "cpu" else "cuda"] if gap else frozenset()

    @staticmethod
    def casts_up(name: str, device: str) -> bool:
        """Whether a device's autocast runs a function in float32, so that no kernel is missing."""
        gap = _gaps().get(name)
        if gap is None:
            return False
        if device == "cpu":
            return gap.lifted
        return policy(gap.name.removeprefix("nn.functional."), device) == "fp32"


@functools.cache
def _gaps() -> dict[str, _Gap]:
    text = resources.files("precision_lint.torchfacts").joinpath("kernels.json").read_text("utf8")
    found: dict[str, _Gap] = {}
    for name, facts in json.loads(text)["missing"].items():
        devices = {device: frozenset(facts[device]) for device in ("cpu", "cuda")}
        gap = _Gap(name, devices, "cpu" in facts["autocast"])
        for spelling in facts["names"]:
            found[spelling if spelling.startswith("Tensor.") else f"torch.{spelling}"] = gap
    return found
