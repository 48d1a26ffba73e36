"""Models that frameworks run: Accelerate, Fabric, Lightning and the Trainer of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint import lint_paths
from precision_lint.api import Diagnostic
from precision_lint.torchmodel import foreign

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


WAYS = {
    "a part of a module": """
class Outer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Accelerator(mixed_precision="fp16").prepare(Pooling())

    def forward(self, x):
        return self.inner(x)
""",
    "prepared in a branch": """
def main(x, fast):
    model = Pooling()
    if fast:
        model = Accelerator(mixed_precision="fp16").prepare(model)
    return model(x)
""",
    "prepared in the other branch": """
def main(x, slow):
    model = Pooling()
    if slow:
        model = model.eval()
    else:
        model = Accelerator(mixed_precision="fp16").prepare(model)
    return model(x)
""",
    "unwrapped": """
def main(x):
    accelerator = Accelerator(mixed_precision="fp16")
    model = accelerator.prepare(Pooling())
    return accelerator.unwrap_model(model)(x)
""",
    "copied": """
def main(x):
    return copy.deepcopy(Accelerator(mixed_precision="fp16").prepare(Pooling()))(x)
""",
    "the region by itself": """
def main(x):
    accelerator = Accelerator(mixed_precision="fp16")
    with accelerator.autocast():
        return Pooling()(x)
""",
    "a helper that is given both": """
def call(model, x):
    return model(x)


def main(x):
    model = Pooling()
    return call(model, x), call(Accelerator(mixed_precision="fp16").prepare(model), x)
""",
}


@pytest.mark.parametrize("way", WAYS)
def test_prepared_models_are_followed(tmp_path: Path, way: str) -> None:
    head = "import copy\n\nfrom accelerate import Accelerator\nfrom torch import nn\n\n"
    text = f"{head}from model import Pooling\n\n{WAYS[way]}"
    assert [one.code for one in found(tmp_path, text)] == ["MP201"]
    assert found(tmp_path, text.replace('"fp16"', '"no"')) == []


BY_ANOTHER_METHOD = """\
from accelerate import Accelerator

from model import Pooling


class Runner:
    def __init__(self):
        self.model = Pooling()

    def setup(self):
        self.model = Accelerator(mixed_precision="fp16").prepare(self.model)

    def run(self, x):
        return self.model(x)


def main(x):
    runner = Runner()
    runner.setup()
    return runner.run(x)
"""


def test_a_method_may_prepare_what_another_one_built(tmp_path: Path) -> None:
    """What an attribute keeps may be cast out of sight, so that large values are only possible."""
    assert found(tmp_path, BY_ANOTHER_METHOD) == []
    [one] = lint_paths(tmp_path, isolated=True, confidence="possible")
    assert one.code == "MP201"
    found(tmp_path, BY_ANOTHER_METHOD.replace('"fp16"', '"no"'))
    assert lint_paths(tmp_path, isolated=True, confidence="possible") == []


@pytest.mark.parametrize("step", ["validate", "test", "predict"])
def test_each_method_of_a_trainer_runs_its_step(tmp_path: Path, step: str) -> None:
    name = {"validate": "validation_step"}.get(step, f"{step}_step")
    train = LIGHTNING.format(said='precision="16-mixed"').replace(".fit(", f".{step}(")
    assert found(tmp_path, train) == []
    (tmp_path / "lit.py").write_text(LIT.replace("training_step", name))
    assert [one.code for one in lint_paths(tmp_path, isolated=True)] == ["MP201"]


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


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformers.PreTrainedModel", True),
        ("transformers.models.llama.modeling_llama.LlamaForCausalLM", True),
        ("transformers.BertModel", True),
        ("lightning.LightningModule", True),
        ("transformers.BertTokenizer", False),
        ("django.db.models.Model", False),
        ("library.LlamaForCausalLM", False),
    ],
)
def test_classes_of_libraries_that_are_modules(name: str, expected: bool) -> None:
    assert foreign.is_network(name) is expected


BACKWARD = """\
import torch


def difference(trainer, weight, loss):
    out = trainer.out
    given = {}
    {}.backward(given)
    return weight.grad.norm()
"""


@pytest.mark.parametrize(
    ("given", "owner", "codes"),
    [
        ("loss", "trainer", ["MP101"]),
        ("torch.as_tensor(loss)", "trainer", ["MP101"]),
        ("torch.randn_like(out)", "out", []),
        ("torch.ones(3, device=loss.device)", "out", []),
    ],
)
def test_what_nothing_computed_is_no_loss(
    tmp_path: Path, given: str, owner: str, codes: list[str]
) -> None:
    path = tmp_path / "a.py"
    path.write_text(BACKWARD.format(given, owner))
    said = lint_paths(path, isolated=True, precision=["amp-float16"])
    assert [one.code for one in said] == codes
