"""What the examples of the rules' documentation are executed with: one entry a rule.

An example is a hazard and its cure.  Both run with the same names, inside an autocast region where
the entry says so; ``fails`` looks at the names afterwards and says whether the harm is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Names = dict[str, Any]
HALF, SINGLE = torch.float16, torch.float32


@dataclass(frozen=True)
class Example:
    """How the two blocks of a rule's example run.

    names: the names that they use, made anew for each.  fails: whether the harm shows in the
    names afterwards.  raises: a part of the message, where the harm is an exception.  region: the
    dtype of the autocast region around them.
    """

    names: Callable[[], Names]
    fails: Callable[[Names], bool] | None = None
    raises: str = ""
    region: torch.dtype | None = None


def region(dtype: torch.dtype | None) -> contextlib.AbstractContextManager[Any]:
    return torch.autocast("cuda", dtype=dtype) if dtype else contextlib.nullcontext()


def infinite(name: str) -> Callable[[Names], bool]:
    return lambda names: not bool(torch.isfinite(names[name]).all())


def off(name: str, wanted: Callable[[Names], torch.Tensor], by: float) -> Callable[[Names], bool]:
    """Whether a result is farther than ``by`` from what float64 gives."""
    return lambda names: (names[name].double() - wanted(names)).abs().max().item() > by


def training(size: float = 2.0**16, **more: Any) -> Names:
    """A linear model, its loss and optimizer, and a GradScaler of a given loss scale."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    x = torch.arange(8.0).view(2, 4) / 8
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    return {
        "model": model,
        "loss": model(x).square().mean(),
        "optimizer": optimizer,
        "scaler": torch.amp.GradScaler("cpu", init_scale=size),
        "before": [p.detach().clone() for p in model.parameters()],
        **more,
    }


def moved(names: Names) -> float:
    pairs = zip(names["model"].parameters(), names["before"], strict=True)
    return float(max((p.detach() - b).abs().max() for p, b in pairs))


def frozen(names: Names) -> bool:
    return moved(names) < 1e-3


def accumulation() -> Names:
    names = training()
    batches = [torch.full((2, 4), 0.1 * i) for i in range(1, 5)]
    return {**names, "loader": batches, "loss": lambda x: names["model"](x).square().mean()}


def points() -> torch.Tensor:
    grid = torch.cartesian_prod(torch.linspace(-1, 1, 9), torch.linspace(-1, 1, 9))
    return torch.cat([grid, torch.full((81, 1), 2.2)], dim=-1)


INTRINSICS = torch.tensor([[1500.0, 0.0, 960.0], [0.0, 1500.0, 540.0], [0.0, 0.0, 1.0]])


def projected(names: Names) -> bool:
    """Whether pixels are off by more than half of one."""
    exact = names["points"].double() @ INTRINSICS.double().T
    uvw = names["uvw"].double()
    pixels = uvw[..., :2] / uvw[..., 2:] - exact[..., :2] / exact[..., 2:]
    return bool(pixels.abs().max() > 0.5)


EXAMPLES: dict[str, Example] = {
    "MP101": Example(training, fails=lambda names: names["norm"].item() > 1e3),
    "MP102": Example(training, fails=frozen),
    "MP103": Example(accumulation, raises="unscale_() has already been called"),
    "MP201": Example(
        lambda: {"masks": torch.ones(1, 2, 96, 96), "features": torch.full((1, 4, 96, 96), 8.0)},
        fails=infinite("pooled"),
        region=HALF,
    ),
    "MP214": Example(
        lambda: {"pred_boxes": torch.rand(3, 4).half(), "target_boxes": torch.rand(5, 4).half()},
        raises="not implemented for 'Half'",
    ),
    "MP301": Example(
        lambda: {"logits": torch.linspace(-20, 20, 15).half()}, fails=infinite("loss")
    ),
    "MP401": Example(
        lambda: {"points": torch.rand(2, 5, 3).half(), "batch": 2, "count": 5},
        fails=lambda names: names["homogeneous"].dtype is not HALF,
    ),
    "MP501": Example(
        lambda: {"points": points(), "intrinsics": INTRINSICS}, fails=projected, region=HALF
    ),
    "MP502": Example(
        lambda: {"x": torch.rand(2, 3, 3).half(), "size": 3},
        raises="expected scalar type Half but found Float",
    ),
    "MP504": Example(
        lambda: {"a": torch.rand(3, 4), "b": torch.rand(5, 4)},
        raises="not implemented for 'Half'",
    ),
    "MP601": Example(lambda: {"prediction": torch.zeros(4)}, fails=infinite("loss")),
    "MP602": Example(lambda: {"logits": torch.full((300, 300), 6.0)}, fails=infinite("area")),
    "MP603": Example(lambda: {"logits": torch.full((4,), 12.0)}, fails=infinite("weights")),
    "MP604": Example(
        lambda: {"hidden": torch.full((2, 4), 300.0)},
        fails=lambda names: names["y"].abs().max().item() < 0.5,
    ),
    "MP605": Example(
        lambda: {"samples": torch.linspace(-2.0, 2.0, 16)},
        fails=lambda names: abs(names["variance"].item() - 1.5) > 0.5,
    ),
    "MP606": Example(
        lambda: {"scores": 8 * torch.sin(0.7 * torch.arange(1.0, 9.0))},
        fails=off("logp", lambda n: n["logits"].double().log_softmax(-1), by=5e-3),
    ),
    "MP607": Example(
        lambda: {"outputs": torch.tensor([1.0, 1.0, 11.0, 12.0]), "stride": 32},
        fails=infinite("area"),
    ),
    "MP608": Example(
        lambda: {"logits": torch.zeros(65536)},
        fails=infinite("noise"),
    ),
    "MP609": Example(dict, fails=lambda names: bool((names["alphas_bar"][:3] == 1).any())),
}
