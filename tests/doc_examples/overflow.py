"""Examples of values that leave the range of half (MP6xx)."""

from __future__ import annotations

import torch

from .example import Example, infinite, off

EXAMPLES: dict[str, Example] = {
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
        lambda: {"outputs": torch.tensor([[1.0, 1.0, 11.0, 12.0]])},
        fails=infinite("area"),
    ),
    "MP608": Example(
        lambda: {"logits": torch.zeros(65536)},
        fails=infinite("noise"),
    ),
    "MP609": Example(dict, fails=lambda names: bool((names["alphas_bar"][:3] == 1).any())),
}
