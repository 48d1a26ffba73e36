"""How the two blocks of an example are executed, and what shows that they fail."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Names = dict[str, Any]
Check = Callable[[Names], bool]
HALF = torch.float16
MODULE = """\
import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


{prelude}


class Module(nn.Module):
    def __init__(self):
        super().__init__()
{layers}

    def forward(self, {names}):
{body}
        return locals()
"""
NET = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(x)
"""


@dataclass(frozen=True)
class Example:
    """What stands around the two blocks of a rule's example.

    names: the arguments that they use, made anew for each.  fails: whether the harm shows in the
    names afterwards.  raises: a part of the message, where the harm is an exception.  harmless: why
    the installed torch shows no harm at all.  region: the dtype of the autocast region around them.
    before: code in front of both, in the same function and region.  after: code behind them,
    outside of the region.  layers: the body of the module's constructor.  prelude: classes and
    functions of the file.  release: the least torch of the project around it.  deprecated: whether
    torch's warnings of old names are part of the example; otherwise they are errors.
    """

    names: Callable[[], Names]
    fails: Check | None = None
    raises: str = ""
    harmless: str = ""
    region: torch.dtype | None = None
    before: str = ""
    after: str = ""
    layers: str = ""
    prelude: str = ""
    release: tuple[int, ...] | None = None
    deprecated: bool = False

    def module(self, block: str) -> str:
        """The file that is linted and executed."""
        body = f"{textwrap.dedent(self.before)}\n{block}\n"
        if self.region:
            opened = f"with torch.autocast('cuda', dtype={self.region}):\n"
            body = opened + textwrap.indent(body, "    ")
        body += textwrap.dedent(self.after)
        return MODULE.format(
            prelude=textwrap.dedent(self.prelude),
            layers=textwrap.indent(textwrap.dedent(self.layers), " " * 8),
            names=", ".join(self.arguments(block, self.names())),
            body=textwrap.indent(body, " " * 8),
        )

    def arguments(self, block: str, names: Names) -> Names:
        """Those of the names that the code mentions."""
        words = set(re.findall(r"\w+", f"{self.before} {block} {self.after}"))
        return {name: value for name, value in names.items() if name in words}


def wave(*shape: int, step: float = 0.7) -> torch.Tensor:
    """Values from -1 to 1 that look arbitrary, in closed form."""
    count = torch.Size(shape).numel()
    return torch.sin(step * torch.arange(1, count + 1).float() ** 1.1).view(shape)


def infinite(name: str) -> Check:
    return lambda names: not bool(torch.isfinite(names[name]).all())


def off(name: str, wanted: Callable[[Names], torch.Tensor], by: float) -> Check:
    """Whether a result is farther than ``by`` from what it should be; it must not come near."""

    def check(names: Names) -> bool:
        distance: float = (names[name].double() - wanted(names)).abs().max().item()
        assert distance > by or distance < by / 10, distance
        return distance > by

    return check


def broken_gradient(name: str) -> Check:
    return lambda names: not bool(torch.isfinite(names[name].grad).all())


def linear(
    inputs: int = 4, outputs: int = 1, bias: float = 0.0, scale: float = 0.5
) -> torch.nn.Linear:
    """A layer whose weights are no matter of chance."""
    layer = torch.nn.Linear(inputs, outputs)
    with torch.no_grad():
        layer.weight.copy_(scale * wave(outputs, inputs))
        layer.bias.fill_(bias)
    return layer


def copies(module: torch.nn.Module) -> list[torch.Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def training(**more: Any) -> Names:
    """A linear model, its loss and optimizer, and a GradScaler."""
    model = linear()
    x = torch.arange(8.0).view(2, 4) / 8
    return {
        "model": model,
        "x": x,
        "loss": model(x).square().mean(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "scaler": torch.amp.GradScaler("cpu"),
        "model at first": copies(model),
        **more,
    }


def moved(names: Names, name: str = "model") -> float:
    """How far a model is from where it began."""
    pairs = zip(names[name].parameters(), names[f"{name} at first"], strict=True)
    return torch.stack([(p.detach() - b).abs().max() for p, b in pairs]).max().item()


def frozen(names: Names) -> bool:
    return moved(names) < 1e-3


def finite(names: Names) -> bool:
    """Whether all tensors, parameters and gradients are."""
    tensors = [value for value in names.values() if isinstance(value, torch.Tensor)]
    for value in names.values():
        if isinstance(value, torch.nn.Module):
            tensors += value.parameters()
    tensors += [t.grad for t in tensors if t.is_leaf and t.grad is not None]
    return all(bool(torch.isfinite(t).all()) for t in tensors)
