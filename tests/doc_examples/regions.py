"""Examples of autocast regions (MP2xx)."""

from __future__ import annotations

import torch

from .example import (
    HALF,
    Example,
    Names,
    copies,
    frozen,
    infinite,
    linear,
    training,
    wave,
)


def descriptors() -> Names:
    """Queries and keys whose dot products are around 86,000."""
    return {"query": 30 + wave(4, 96), "key": 30 + wave(6, 96, step=1.3)}


def attended() -> Names:
    """Queries around 25, keys from 20 to 30: scores up to 96,000 before they are scaled."""
    keys = 20 + 2 * torch.arange(6.0)[:, None] + 0.5 * wave(6, 128, step=1.3)
    return {"query": 25 + wave(1, 6, 128), "key": keys[None], "width": 128}


def regression() -> Names:
    """Sixty steps of a linear regression that has a solution."""
    model, x = linear(6, 2), 2 * wave(32, 6)
    return {
        "model": model,
        "loader": [(x, x @ wave(6, 2, step=1.3))] * 60,
        "criterion": torch.nn.MSELoss(),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.1),
        "scaler": torch.amp.GradScaler("cpu", init_scale=1024.0),
    }


def diverged(names: Names) -> bool:
    """Whether the loss of the weights has grown instead of gone to 0."""
    x, y = names["loader"][0]
    loss: float = names["model"](x).sub(y).square().mean().item()
    assert loss > 100 or loss < 0.1, loss
    return loss > 100


def correlated() -> Names:
    return {
        "model": linear(4, 4),
        "images": wave(6, 4) / 1000,
        "labels": 10 + wave(4, 4, step=1.3),
        "criterion": torch.nn.MSELoss(),
        "scaler": torch.amp.GradScaler("cpu"),
    }


def classifier() -> Names:
    names = training()
    model = linear(8, 5)
    return {
        "model": model,
        "model at first": copies(model),
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.5),
        "scaler": names["scaler"],
        "images": wave(16, 8),
        "labels": torch.arange(16) % 5,
    }


EXAMPLES: dict[str, Example] = {
    "MP201": Example(
        lambda: {"masks": torch.ones(1, 2, 96, 96), "features": torch.full((1, 4, 96, 96), 8.0)},
        fails=infinite("pooled"),
        region=HALF,
    ),
    "MP202": Example(descriptors, fails=infinite("scores"), region=HALF),
    "MP203": Example(
        lambda: {"x": 40 + wave(4, 256)},
        layers="self.proj = nn.Linear(256, 256)",
        fails=infinite("scores"),
        region=HALF,
    ),
    "MP204": Example(
        lambda: {"query": 30 + wave(4, 96), "key": 30 + wave(96, 6, step=1.3)},
        fails=infinite("scores"),
    ),
    "MP205": Example(regression, fails=diverged),
    "MP206": Example(
        lambda: {"logits": 4 * wave(4, 1), "target": torch.tensor([[0.0], [1.0], [1.0], [0.0]])},
        raises="are unsafe to autocast",
        region=HALF,
    ),
    "MP207": Example(
        lambda: {"x": wave(8, 6), "weight": wave(3, 6, step=1.3).requires_grad_()},
        after="""\
            with torch.autocast("cuda"):
                y = Linear.apply(x, weight)
            y.sum().backward()
        """,
        raises="to have the same dtype",
    ),
    "MP208": Example(attended, fails=infinite("weights"), region=HALF),
    "MP209": Example(
        classifier,
        after="""\
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        """,
        fails=frozen,
    ),
    "MP210": Example(
        dict,
        fails=lambda names: names["scaler"].get_scale() != 2.0**16,
        deprecated=True,
    ),
    "MP211": Example(
        correlated,
        after="gradient = model.weight.grad",
        fails=infinite("gradient"),
    ),
    "MP212": Example(
        lambda: {"model": linear(), "batch": torch.rand(2, 4)},
        raises="is deprecated",
        release=(2, 4),
    ),
    "MP213": Example(
        lambda: {"model": linear(), "earlier": wave(2, 4), "frame": wave(2, 4, step=1.3)},
        after="out.sum().backward()",
        harmless="torch before 2.10 left the weights without gradients",
        release=(2, 4),
    ),
    "MP214": Example(
        lambda: {"pred_boxes": torch.rand(3, 4).half(), "target_boxes": torch.rand(5, 4).half()},
        raises="not implemented for 'Half'",
    ),
}
