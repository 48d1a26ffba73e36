"""Examples of what a dtype cannot hold, and of dtypes that do not fit (MP4xx, MP5xx)."""

from __future__ import annotations

import torch

from .example import HALF, NET, Example, Names, infinite, linear, off, wave


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


def cosines(names: Names) -> torch.Tensor:
    return torch.outer(names["t"].double(), names["self"].inv_freq.double()).cos()


def jump(model: torch.nn.Module, weight: float) -> None:
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(weight)


def between(names: Names) -> torch.Tensor:
    """The focal loss of a distance of 3.9: nine tenths of bin 4 and one of bin 3."""
    bins: torch.Tensor = -names["pred"].double().log_softmax(dim=-1)
    return 0.1 * bins[:, 3] + 0.9 * bins[:, 4]


def stuck(names: Names) -> bool:
    """Whether weights of 1 are what they were after 100 steps."""
    model, optimizer = names["model"], names["optimizer"]
    weight = model.head.weight
    for _ in range(100):
        optimizer.zero_grad()
        model(names["x"].to(weight.dtype)).sub(names["y"]).square().mean().backward()
        optimizer.step()
    moved = (weight.detach() - 1).abs().max().item()
    assert moved == 0 or moved > 5e-3, moved
    return bool(moved == 0)


EXAMPLES: dict[str, Example] = {
    "MP401": Example(
        lambda: {"points": torch.rand(2, 5, 3), "batch": 2, "count": 5},
        before="points = points.half()",
        fails=lambda names: names["homogeneous"].dtype is not HALF,
    ),
    "MP402": Example(
        lambda: {"x": wave(2, 16)},
        fails=lambda names: names["y"].dtype is torch.float64,
    ),
    "MP403": Example(
        lambda: {
            "x": wave(2, 3, 4),
            "mask": torch.tensor([[1, 1, 0], [1, 0, 0]], dtype=torch.bool),
        },
        layers="""\
            self.inner = nn.Linear(4, 4)
            self.outer = nn.Linear(4, 4)
            self.half()
        """,
        before="x = x.half()",
        raises="must have the same dtype",
    ),
    "MP404": Example(
        lambda: {"x": torch.zeros(2, 4096, dtype=HALF), "lengths": torch.tensor([3001, 4096])},
        fails=lambda names: names["mask"].sum(dim=1).tolist() != names["lengths"].tolist(),
    ),
    "MP405": Example(
        lambda: {"t": torch.arange(8192.0)},
        layers='self.register_buffer("inv_freq", 10000.0 ** -(torch.arange(0, 8, 2) / 8))',
        fails=off("cos", cosines, by=1.0),
        region=HALF,
    ),
    "MP406": Example(
        lambda: {"model": linear(scale=0.0, bias=1.0), "loader": [torch.ones(2, 4)] * 3000},
        fails=off("total", lambda names: torch.tensor(3000.0), by=500),
        region=HALF,
    ),
    "MP407": Example(
        lambda: {"loader": range(5000), "train_step": lambda model, _: jump(model, 1.0)},
        prelude=NET,
        fails=lambda names: names["ema"].head.weight.max().item() < 0.9,
    ),
    "MP408": Example(
        lambda: {"pred": wave(3, 8), "target_ltrb": torch.full((3,), 3.9)},
        prelude="""\
            def distribution_focal_loss(pred, target):
                left = target.long()
                below = F.cross_entropy(pred, left, reduction="none")
                above = F.cross_entropy(pred, left + 1, reduction="none")
                return below * (left + 1 - target) + above * (target - left)
        """,
        fails=off("loss", between, by=0.5),
    ),
    "MP409": Example(
        lambda: {"x": wave(8, 4), "y": wave(8, 1), "criterion": torch.nn.MSELoss()},
        prelude=NET.replace(
            "Linear(4, 1)", "Linear(4, 1)\n        nn.init.ones_(self.head.weight)"
        ),
        fails=stuck,
    ),
    "MP501": Example(
        lambda: {"points": points(), "intrinsics": INTRINSICS}, fails=projected, region=HALF
    ),
    "MP502": Example(
        lambda: {"x": torch.rand(2, 3, 3), "size": 3},
        before="x = x.half()",
        raises="expected scalar type Half but found Float",
    ),
    "MP503": Example(
        lambda: {
            "mask": torch.tensor([[True, True, False], [True, False, False]]),
            "tokens": wave(3, 8),
            "width": 8,
        },
        layers="self.proj = nn.Linear(8, 8)",
        raises="Index put requires the source and destination dtypes match",
        region=HALF,
    ),
    "MP504": Example(
        lambda: {"a": torch.rand(3, 4), "b": torch.rand(5, 4)},
        raises="not implemented for 'Half'",
    ),
    "MP505": Example(
        lambda: {"x": wave(64, 4)},
        raises="Low precision dtypes not supported",
        region=HALF,
    ),
    "MP506": Example(
        lambda: {"model": linear().requires_grad_(False), "x": wave(2, 4), "found": []},
        raises="unsupported ScalarType BFloat16",
    ),
    "MP507": Example(
        lambda: {
            "boxes": torch.tensor([[0.0, 0.0, 300.0, 300.0], [8.0, 8.0, 24.0, 24.0]]).half(),
        },
        fails=infinite("area"),
    ),
}
