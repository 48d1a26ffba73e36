"""What a rule reports in a file that trains is only possible in tests and benchmarks."""

from __future__ import annotations

import pytest

from precision_lint import dispatch, registry
from precision_lint.project.amp import Project
from precision_lint.source import Source

SCALED = """\
import torch
import torch.nn.functional as F


def train(model, optimizer, batches):
    scaler = torch.amp.GradScaler("cuda")
    for x, y in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
        {line}
        scaler.step(optimizer)
        scaler.update()
"""
UNSCALED = """\
import torch
import torch.nn.functional as F


def train(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = F.mse_loss(model(x), y)
{indent}        loss.backward()
        optimizer.step()
"""
CLIPPED = SCALED.format(line="torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)")
READ = SCALED.format(line="norm = model.weight.grad.norm()")
CORRELATED = """\


def correlate(x):
    with torch.autocast("cuda", enabled=False):
        return x.float().t() @ x.float()
"""
PLACES = ("train.py", "tests/train.py", "benchmarks/train.py")


@pytest.mark.parametrize(
    ("code", "text", "expected"),
    [
        ("MP101", READ, ("certain", "possible", "certain")),
        ("MP102", CLIPPED, ("certain", "possible", "certain")),
        ("MP111", UNSCALED.format(indent=""), ("certain", "possible", "possible")),
        ("MP211", UNSCALED.format(indent="    ") + CORRELATED, ("certain", "possible", "possible")),
    ],
)
def test_what_only_training_suffers_from(code: str, text: str, expected: tuple[str, ...]) -> None:
    found = []
    for place in PLACES:
        (one,) = dispatch.lint(Source(place, text), [registry.rules()[code]], Project())
        found.append(one.confidence.value)
    assert tuple(found) == expected
