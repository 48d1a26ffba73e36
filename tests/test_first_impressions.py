"""Code that people tried first, and that once was judged or fixed wrong."""

from __future__ import annotations

from precision_lint import fix_source, lint_source

BCE = """
import torch


def bce(p, y, eps=1e-8):
    return -(y * torch.log(p + eps) + (1 - y) * torch.log(1 - p + eps)).mean()


def step(model, x, y, scaler):
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(x)
        loss = bce(out.sigmoid(), y)
    scaler.scale(loss).backward()
"""
OPTIMIZERS = """
import torch


def train(models, loader):
    optimizers = {name: torch.optim.AdamW(m.parameters()) for name, m in models.items()}
    scaler = torch.amp.GradScaler("cuda")
    for x in loader:
        for opt in optimizers.values():
            opt.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = sum(m(x).mean() for m in models.values())
        scaler.scale(loss).backward()
        for opt in optimizers.values():
            scaler.unscale_(opt)
        for name, m in models.items():
            torch.nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        for opt in optimizers.values():
            scaler.step(opt)
        scaler.update()
"""
SMOKE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x):
        return self.inner(x)


if __name__ == "__main__":
    net = Net().cuda()
    with torch.autocast("cuda"):
        y = net(torch.randn(2, 4).cuda())
        y.sum().backward()
    print(y.shape)
"""


def test_a_probability_is_upcast_where_a_caller_makes_it() -> None:
    """An upcast in front of the guard would leave the gradient nan."""
    fixed = fix_source(BCE)
    assert "bce(out.float().sigmoid(), y)" in fixed.text
    assert "torch.log(p + eps)" in fixed.text and not lint_source(fixed.text)


def test_optimizers_of_a_dict_are_unscaled_in_a_loop_of_their_own() -> None:
    assert lint_source(OPTIMIZERS) == []


def test_the_unscale_of_that_loop_is_needed() -> None:
    [found] = lint_source(OPTIMIZERS.replace("scaler.unscale_(opt)", "opt.state"))
    assert found.code == "MP102"


def test_the_smoke_test_of_a_model_is_no_training() -> None:
    assert lint_source(SMOKE) == []


REGION = """
import torch


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with torch.autocast("cuda"):
        for x, y in loader:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
"""
OTHER = """
import torch


def train(model, optimizer, loader):
    for x, w in loader:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = (model(x) @ w).square().mean()
            loss.backward()
"""


def test_a_finding_names_each_place_once() -> None:
    found = {}
    for text in (REGION, OTHER):
        for one in lint_source(text, isolated=True, select=["MP205", "MP211"]):
            links = [(link.message, link.start and link.start.row) for link in one.evidence]
            found[one.code] = one.start.row, links
    assert found == {
        "MP205": (7, [("the weights change here", 12)]),
        "MP211": (9, [("the region opens here", 7)]),
    }
