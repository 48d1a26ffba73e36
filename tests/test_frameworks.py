"""Models that frameworks run: Accelerate, Fabric, Lightning and the Trainer of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint import lint_paths
from precision_lint.api import Diagnostic

MODEL = """\
import torch
from torch import nn


class Pooling(nn.Module):
    def __init__(self, channels=128, regions=32):
        super().__init__()
        self.to_mask = nn.Conv2d(channels, regions, 1)

    def forward(self, features):
        masks = torch.relu(self.to_mask(features))
        return torch.einsum("brhw,bchw->brc", masks, features)
"""
LIT = """\
import lightning as L
import torch

from model import Pooling


class Lit(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = Pooling()

    def training_step(self, batch, batch_idx):
        features, target = batch
        return torch.nn.functional.mse_loss(self.net(features), target)
"""
ACCELERATE = """\
import torch
from accelerate import Accelerator

from model import Pooling


def main(loader):
    accelerator = Accelerator({said})
    model = Pooling()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for features, target in loader:
        loss = torch.nn.functional.mse_loss(model(features), target)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
"""
FABRIC = """\
import lightning as L
import torch

from model import Pooling


def main(loader):
    fabric = L.Fabric({said})
    model = fabric.setup_module(Pooling())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=1e-3))
    for features, target in loader:
        fabric.backward(torch.nn.functional.mse_loss(model(features), target))
        optimizer.step()
        optimizer.zero_grad()
"""
LIGHTNING = """\
import lightning as L

from lit import Lit


def main(data):
    L.Trainer(max_epochs=10, {said}).fit(Lit(), data)
"""
TRANSFORMERS = """\
from transformers import Trainer, TrainingArguments

from model import Pooling


def main(data):
    args = TrainingArguments("out", {said})
    trainer = Trainer(model=Pooling(), args=args, train_dataset=data)
    trainer.train()
"""
MIXED = [
    (ACCELERATE, 'mixed_precision="fp16"'),
    (FABRIC, 'precision="16-mixed"'),
    (LIGHTNING, 'precision="16-mixed"'),
    (LIGHTNING, "precision=16"),
    (TRANSFORMERS, "fp16=True"),
]
FULL = [
    (ACCELERATE, 'mixed_precision="no"'),
    (ACCELERATE, 'mixed_precision="bf16"'),
    (FABRIC, 'precision="32-true"'),
    (LIGHTNING, 'precision="32"'),
    (LIGHTNING, ""),
    (TRANSFORMERS, "bf16=True"),
    (TRANSFORMERS, "fp16=False"),
]


def found(folder: Path, train: str) -> list[Diagnostic]:
    for name, text in (("model", MODEL), ("lit", LIT), ("train", train)):
        (folder / f"{name}.py").write_text(text)
    return lint_paths(folder, isolated=True)


@pytest.mark.parametrize(("train", "said"), MIXED)
def test_models_of_other_files_run_in_the_region(tmp_path: Path, train: str, said: str) -> None:
    assert [one.code for one in found(tmp_path, train.format(said=said))] == ["MP201"]


@pytest.mark.parametrize(("train", "said"), FULL)
def test_other_settings_open_no_region_of_float16(tmp_path: Path, train: str, said: str) -> None:
    assert found(tmp_path, train.format(said=said)) == []


def test_settings_that_a_framework_reads_are_for_the_models_that_it_runs(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text("mixed_precision: fp16\nnum_processes: 1\n")
    masked = "masks.masked_fill(masks < 0, -1e9).softmax(-1)"
    fill = MODEL.replace('torch.einsum("brhw,bchw->brc", masks, features)', masked)
    (tmp_path / "model.py").write_text(fill)
    (tmp_path / "train.py").write_text(ACCELERATE.format(said=""))
    [one] = lint_paths(tmp_path, isolated=True)
    assert (one.code, one.start.row) == ("MP310", 12)


GIVES = """\
import torch
from accelerate import Accelerator
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        y = self.layer(x)
        return {"out": y, "all": [y]}


def run(x, index):
    net = Net()
    with torch.autocast("cuda", dtype=torch.float16):
        y = %s(x)%s
    table = torch.zeros(4, 4)
    table[index] = y
    return table
"""
PREPARED = 'Accelerator(mixed_precision="fp16").prepare(net)'


@pytest.mark.parametrize("entry", ['["out"]', '["all"][0]'])
def test_results_of_prepared_models_are_float32(tmp_path: Path, entry: str) -> None:
    """``convert_outputs_to_fp32`` of accelerate."""
    path = tmp_path / "run.py"
    path.write_text(GIVES % (PREPARED, entry))
    assert lint_paths(path, isolated=True, confidence="possible") == []
    path.write_text(GIVES % ("net", entry))
    [one] = lint_paths(path, isolated=True, confidence="possible")
    assert one.code == "MP503"
