"""Layers, losses and containers of ``torch.nn``."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from precision_lint.torchmodel.tables import table


@dataclass(frozen=True, slots=True)
class Layer:
    """One class of ``torch.nn``.

    operation: what calling it applies; ``recurrent`` or ``attention`` where that is no single operation,
    empty for containers.  parameters: positional ones of its constructor.  defaults: of all of them, as
    far as they are plain.  weights, buffers: attributes that exist by default.  outputs: how many things
    calling it gives.
    """

    name: str
    operation: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, object]
    weights: tuple[str, ...]
    buffers: tuple[str, ...]
    outputs: int
    container: bool


@functools.lru_cache(maxsize=512)
def layer(name: str) -> Layer | None:
    """A layer by the name of its class."""
    row = table("layers").get(name)
    if row is None:
        return None
    return Layer(
        name,
        row["operation"],
        tuple(row["parameters"]),
        row["defaults"],
        tuple(row["weights"]),
        tuple(row["buffers"]),
        row.get("outputs", 1),
        row.get("container", False),
    )


@functools.lru_cache(maxsize=1)
def own() -> frozenset[str]:
    """Attributes of layers that are weights or buffers."""
    rows = table("layers").values()
    return frozenset(name for row in rows for name in (*row["weights"], *row["buffers"]))


def of_class(qualified: str) -> Layer | None:
    """A layer by its dotted name: ``torch.nn.Linear``, ``torch.nn.modules.linear.Linear``."""
    return layer(qualified.rpartition(".")[2]) if qualified.startswith("torch.nn.") else None


def names() -> tuple[str, ...]:
    """All classes."""
    return tuple(table("layers"))
