"""The plainest loop with autocast and a scaler has nothing to show."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint.api import Confidence
from tests import projects
from tests.projects import found

LOOP = """\
import torch
import torch.nn as nn
import torch.nn.functional as F
from tqdm import tqdm


def overlap(probability, target):
    both = 2 * (probability * target).sum()
    return 1 - (both + 1e-6) / (probability.sum() + target.sum() + 1e-6)


def train(model, loader, optimizer, device, amp):
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    criterion = nn.CrossEntropyLoss() if model.classes > 1 else nn.BCEWithLogitsLoss()
    with tqdm(total=len(loader)) as bar:
        for images, masks in loader:
            with torch.autocast({device}, enabled=amp):
                logits = model(images)
                loss = criterion(logits, masks.float())
                loss = loss + overlap(torch.sigmoid(logits).float(), masks.float())
            optimizer.zero_grad()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            bar.update(images.shape[0])


def main(model, loader, optimizer):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train(model, loader, optimizer, device, True)
"""


@pytest.mark.parametrize(
    "device", ["device.type", "device.type if device.type != 'mps' else 'cpu'", "str(device)"]
)
def test_the_plainest_loop_is_clean(tmp_path: Path, device: str) -> None:
    projects.write(tmp_path, {"train.py": LOOP.replace("{device}", device)})
    assert found(projects.check(tmp_path)) == []


def test_a_scaler_that_is_updated_twice_is_found(tmp_path: Path) -> None:
    text = LOOP.replace("{device}", "'cuda'").replace(
        "bar.update(images.shape[0])", "scaler.update()"
    )
    projects.write(tmp_path, {"train.py": text})
    assert found(projects.check(tmp_path)) == ["train.py:25 MP106"]


PENALTY = """\
import torch
from torch import nn


class Orthogonal(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        total = 0
        for name, p in self.model.named_parameters():
            gram = p @ p.T if "first" in name else p.T @ p
            total += torch.norm(gram - torch.eye(*gram.size(), out=torch.empty_like(gram)), p="fro")
        return self.model(x) + total
"""


def test_a_product_of_any_parameter_is_followed(tmp_path: Path) -> None:
    projects.write(tmp_path, {"penalty.py": PENALTY})
    result = projects.check(tmp_path, confidence=Confidence.POSSIBLE)
    assert not any(one.internal for one in result.diagnostics)
