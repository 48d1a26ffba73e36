"""Names that ``from library import *`` binds, and those that are bound so by custom."""

from __future__ import annotations

from typing import Final

from precision_lint.torchmodel import creation, layers, operations, optimizers

CLASSES: Final = frozenset({
    "torch.nn.Module", "torch.nn.Parameter", "torch.nn.Buffer", "torch.Tensor", "torch.optim.Optimizer",
})  # fmt: skip
CUSTOMARY: Final = {
    "torch": "torch", "nn": "torch.nn", "F": "torch.nn.functional", "optim": "torch.optim",
    "Tensor": "torch.Tensor", "np": "numpy", "math": "math",
}  # fmt: skip
"""What these names mean where a file has them from ``from .imports import *`` of a file not at hand."""


def exported(qualified: str) -> bool:
    """Whether ``from torch... import *`` binds a name, given with its module (``torch.nn.Linear``)."""
    home, _, name = qualified.rpartition(".")
    return (
        qualified in CLASSES
        or operations.of_function(qualified) is not None
        or creation.of_function(qualified) is not None
        or (home == "torch.nn" and layers.layer(name) is not None)
        or (home == "torch.optim" and optimizers.optimizer(name) is not None)
    )
