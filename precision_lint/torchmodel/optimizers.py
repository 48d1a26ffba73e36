"""Optimizers of ``torch.optim``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from precision_lint.torchmodel.tables import table


@dataclass(frozen=True, slots=True)
class Optimizer:
    """One class of ``torch.optim``: its constructor, and whether it divides by something plus ``eps``."""

    name: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, object]
    has_eps: bool


@functools.lru_cache(maxsize=64)
def optimizer(name: str) -> Optimizer | None:
    """An optimizer by the name of its class."""
    row = table("optimizers").get(name)
    if row is None:
        return None
    return Optimizer(name, tuple(row["parameters"]), row["defaults"], "eps" in row["defaults"])


def of_class(qualified: str) -> Optimizer | None:
    """An optimizer by its dotted name: ``torch.optim.Adam``, ``torch.optim.adam.Adam``."""
    if not qualified.startswith("torch.optim."):
        return None
    return optimizer(qualified.rpartition(".")[2])


def names() -> tuple[str, ...]:
    """All classes."""
    return tuple(table("optimizers"))
