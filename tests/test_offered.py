"""Findings that need no more than a project which runs half precision: likely where one says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint.api import Confidence
from tests import projects

FIXTURES = Path(__file__).parent.parent / "fixtures"
HALF = """\
import torch
from transformers import AutoModel

model = AutoModel.from_pretrained("net", torch_dtype=torch.float16)
"""
MIXED = """\
from accelerate import Accelerator

accelerator = Accelerator(mixed_precision="fp16")
"""
TRAINED = """\
from torch import nn


class Hook(Base):
    def __init__(self):
        self.scaler = torch.amp.GradScaler("cuda")

    def after_step(self, loss):
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def confidence(code: str, row: int, texts: dict[str, str], name: str = "net.py") -> Confidence:
    """How sure the only finding of a rule on a row is."""
    projects.write(Path.cwd(), texts)
    found = projects.check(Path(name), confidence=Confidence.POSSIBLE).diagnostics
    there = [d for d in found if d.code == code and d.start.row == row]
    (one,) = {d.confidence for d in there}
    told = {link.filename for d in there for link in d.evidence}
    around = {"infer.py", "train.py"} & texts.keys()
    assert one is Confidence.POSSIBLE or not around or told & around  # why is named
    return one


@pytest.mark.parametrize(
    ("code", "row", "fixture", "mixed"),
    [
        ("MP311", 16, "mp311_mask_minimum_added/narrowed", True),
        ("MP401", 19, "mp401_dtypeless_creation/replaced", False),
        ("MP404", 7, "mp404_integers_in_half/any_tensor", True),
        ("MP404", 13, "mp404_integers_in_half/labels", True),
        ("MP502", 23, "mp502_matmul_dtype_mismatch/unknown_dtypes", False),
        ("MP502", 43, "mp502_matmul_dtype_mismatch/unknown_dtypes", False),
        ("MP502", 11, "mp502_matmul_dtype_mismatch/unlike", True),
    ],
)
def test_a_project_that_runs_half_makes_a_pattern_likely(
    code: str, row: int, fixture: str, mixed: bool
) -> None:
    text = (FIXTURES / f"{fixture}.py").read_text("utf8")
    alone = confidence(code, row, {"net.py": text})
    in_half = confidence(code, row, {"net.py": text, "infer.py": HALF})
    Path("infer.py").unlink()
    under_autocast = confidence(code, row, {"net.py": text, "train.py": MIXED})
    assert (alone, in_half) == (Confidence.POSSIBLE, Confidence.LIKELY)
    assert under_autocast is (Confidence.LIKELY if mixed else Confidence.POSSIBLE)


TYPED = """\
import torch
import torch.nn.functional as F
from torch import nn


class Typed(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(2, 4, 4))

    def forward(self, x, kinds):
        out = x.new_empty(x.size(0), 4)
        for i in range(2):
            chosen = kinds == i
            out[chosen] = F.linear(x[chosen], self.weight[i])
        return out
"""
CRITERION = """\
import torch
from torch import nn

from boxes import overlap


class Criterion(nn.Module):
    def forward(self, outputs, targets, rows):
        logits = outputs["pred_logits"]
        target_boxes = torch.cat([t["boxes"] for t in targets])
        quality = torch.diag(overlap(outputs["pred_boxes"][rows], target_boxes)[0])
        wanted = torch.zeros(logits.shape, dtype=logits.dtype, device=logits.device)
        places = [row for row in rows]
        wanted[places] = quality
        return wanted
"""
BOXES = """\
import torch


def overlap(a, b):
    return torch.min(a[:, None, 2:], b[:, 2:]).prod(-1), None
"""
PROBABILITIES = """\
import torch.nn.functional as F
from torch import nn


class Focal(nn.Module):
    def forward(self, probabilities, labels):
        return F.binary_cross_entropy(probabilities, labels)
"""
SPECTRUM = """\
import torch
from torch import nn


class Mixer(nn.Module):
    def forward(self, features):
        return torch.fft.rfft(features, dim=-1)
"""


WAVE = """\
import torch
from torch import nn


class Wave(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(8, 16)

    def forward(self, x):
        real, imaginary = self.proj(x).chunk(2, -1)
        return torch.istft(torch.complex(real, imaginary), 14)
"""


@pytest.mark.parametrize(
    ("code", "row", "text"),
    [
        ("MP505", 12, WAVE),
        ("MP503", 15, TYPED),
        ("MP503", 14, CRITERION),
        ("MP505", 7, SPECTRUM),
    ],
)
def test_autocast_around_a_module_makes_a_pattern_likely(code: str, row: int, text: str) -> None:
    files = {"net.py": text, "boxes.py": BOXES}
    projects.write(Path.cwd(), files)
    shown = projects.check(Path("net.py"), confidence=Confidence.LIKELY).diagnostics
    assert not [d for d in shown if d.code == code]
    assert confidence(code, row, {**files, "train.py": MIXED}) is Confidence.LIKELY


def test_bce_names_where_the_project_runs_under_autocast() -> None:
    projects.write(Path.cwd(), {"net.py": PROBABILITIES, "train.py": MIXED})
    (one,) = projects.check(Path("net.py"), confidence=Confidence.POSSIBLE).diagnostics
    assert [link.filename for link in one.evidence] == ["train.py"]


def test_an_input_of_training_alone_is_not_likely() -> None:
    text = """\
import torch
from torch import nn


class Encoding(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)

    def forward(self, size, mode):
        if mode == "train":
            rows = torch.arange(size, dtype=torch.float32)
            return self.proj(torch.stack([rows.sin(), rows.cos()]))
"""
    always = text.replace('if mode == "train"', 'if mode == "infer"')
    around = {"infer.py": HALF, "train.py": MIXED}
    assert confidence("MP502", 13, {"net.py": always, **around}) is Confidence.LIKELY
    assert confidence("MP502", 13, {"net.py": text, **around}) is Confidence.POSSIBLE
    upcast = always.replace("rows.cos()])", "rows.cos()]).float()")
    assert confidence("MP502", 13, {"net.py": upcast, **around}) is Confidence.POSSIBLE
    criterion = always.replace("Encoding", "EncodingLoss")
    assert confidence("MP502", 13, {"net.py": criterion, **around}) is Confidence.POSSIBLE


def test_levels_of_apex_that_are_chosen_at_run_time_offer_half_models() -> None:
    text = """\
from torch import nn


class Cosine(nn.Module):
    def forward(self, x):
        return x / (x.norm(dim=-1, keepdim=True) + 1e-13)
"""
    apex = """\
from apex import amp


def wrap(model, optimizer, level):
    return amp.initialize(model, optimizer, opt_level={})
"""
    chosen = {"net.py": text, "train.py": apex.format("level")}
    assert confidence("MP307", 6, chosen) is Confidence.LIKELY
    first = {"net.py": text, "train.py": apex.format('"O1"')}
    assert confidence("MP307", 6, first) is Confidence.POSSIBLE


@pytest.mark.parametrize(
    ("base", "expected"),
    [
        ("class Base:\n    pass\n", Confidence.LIKELY),
        ("from elsewhere import Base\n", Confidence.POSSIBLE),
        (
            "class Base:\n    def save(self):\n        return self.scaler.state_dict()\n",
            Confidence.POSSIBLE,
        ),
    ],
)
def test_whether_a_base_may_save_the_scaler(base: str, expected: Confidence) -> None:
    files = {"hook.py": f"import torch\nfrom base import Base\n{TRAINED}", "base.py": base}
    assert confidence("MP113", 12, files, "hook.py") is expected


def test_the_scaler_of_a_region_in_bfloat16() -> None:
    text = """\
import torch


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    settings = {{"device_type": "cuda", "dtype": torch.{}}}
    for batch in loader:
        with torch.autocast(**settings):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


NAMES = ["float16", "bfloat16"]
"""
    brain = {"net.py": text.format("bfloat16")}
    assert confidence("MP112", 5, brain) is Confidence.LIKELY
    projects.write(Path.cwd(), {"net.py": text.format("float16")})
    shown = projects.check(Path("net.py"), confidence=Confidence.LIKELY).diagnostics
    assert not [d for d in shown if d.code == "MP112"]


def test_the_criterion_of_a_class_that_makes_its_model_half() -> None:
    text = """\
from torch import nn


class Agent:
    def __init__(self, model, fp16=False):
        self.model = model
        if fp16:
            self.model = self.model.half()

    def build_criterion(self):
        return nn.CrossEntropyLoss(reduction="none")

    def scores(self, batch):
        return self.model(batch)
"""
    assert confidence("MP209", 11, {"net.py": text}) is Confidence.LIKELY
    upcast = text.replace("self.model(batch)", "self.model(batch).float()")
    assert confidence("MP209", 11, {"net.py": upcast}) is Confidence.POSSIBLE


FRONT = """\
import torch


def corners(box):
    x, y, w, h = box.split([1, 1, 1, 1], dim=-1)
    signs = torch.FloatTensor([0.5, -0.5]).to(box.device)
    signs = signs * w
    return signs


def widths(box):
    return corners(box)
"""


def test_a_test_that_passes_float32_says_nothing_of_other_calls() -> None:
    call = "import torch\nfrom boxes import {0}\n\n{0}(torch.zeros(2, 4))\n".format
    for function in ("corners", "widths"):
        files = {"boxes.py": FRONT, "tests/test_boxes.py": call(function)}
        assert confidence("MP403", 6, files, "boxes.py")
    Path("tests/test_boxes.py").unlink()
    projects.write(Path.cwd(), {"boxes.py": FRONT, "main.py": call("widths")})
    found = projects.check(Path("boxes.py"), confidence=Confidence.POSSIBLE).diagnostics
    assert not [d for d in found if d.code == "MP403"]


SOURCE = """\
import torch
from torch import nn


class Sines(nn.Module):
    def forward(self, pitch):
        return pitch * torch.rand(1, 1, 3).to(pitch.device), pitch > 0


class Source(nn.Module):
    def __init__(self):
        super().__init__()
        self.sines = Sines()
        self.first = nn.Linear(3, 3)
        self.merge = nn.Linear(3, 1)

    def forward(self, pitch):
        waves, voiced = self.sines(pitch)
        {before}
        merged = self.merge(waves)
        {behind}
        return merged, voiced
"""


@pytest.mark.parametrize(
    ("before", "behind", "reported"),
    [
        ("pass", "pass", True),
        ("pass", "waves = merged.relu()", True),
        ("waves = pitch.relu()", "pass", False),
    ],
)
def test_what_a_module_without_weights_made_goes_in(
    before: str, behind: str, reported: bool
) -> None:
    text = SOURCE.format(before=before, behind=behind)
    projects.write(Path.cwd(), {"net.py": text, "infer.py": HALF})
    shown = projects.check(Path("net.py")).diagnostics
    assert [d.start.row for d in shown if d.code == "MP502"] == ([20] if reported else [])


def test_a_test_means_what_it_does() -> None:
    text = (FIXTURES / "mp404_integers_in_half/any_tensor.py").read_text("utf8")
    files = {"tests/test_net.py": text, "net.py": text, "infer.py": HALF}
    assert confidence("MP404", 7, files, "tests/test_net.py") is Confidence.POSSIBLE
    assert confidence("MP404", 7, files) is Confidence.LIKELY


def test_a_base_whose_own_base_is_elsewhere_may_save_the_scaler() -> None:
    files = {
        "hook.py": f"import torch\nfrom base import Base\n{TRAINED}",
        "base.py": "from elsewhere import Other\n\n\nclass Base(Other):\n    pass\n",
        "train.py": MIXED,
    }
    assert confidence("MP113", 12, files, "hook.py") is Confidence.POSSIBLE


@pytest.mark.parametrize(
    ("dtype", "expected"), [("bfloat16", Confidence.LIKELY), ("float32", Confidence.POSSIBLE)]
)
def test_the_scaler_of_a_region_whose_arguments_a_function_makes(
    dtype: str, expected: Confidence
) -> None:
    text = f"""\
import torch


def arguments():
    return {{"device_type": "cuda", "dtype": torch.{dtype}}}


def train(model, loader, optimizer):
    scaler = torch.amp.GradScaler("cuda")
    for batch in loader:
        with torch.autocast(**arguments()):
            loss = model(batch)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()


NAMES = ["bfloat16"]
"""
    assert confidence("MP112", 9, {"net.py": text}) is expected


@pytest.mark.parametrize(
    ("run", "expected"),
    [("block(y)", Confidence.LIKELY), ("block.new_empty(2)", Confidence.POSSIBLE)],
)
def test_what_a_backward_runs_again(run: str, expected: Confidence) -> None:
    text = f"""\
import torch


class Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, block):
        ctx.block = block
        return block(x)

    @staticmethod
    def backward(ctx, y):
        block = ctx.block
        again = {run}
        return again, None
"""
    assert confidence("MP207", 13, {"net.py": text, "train.py": MIXED}) is expected


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('logits = outputs["pred_logits"]', "logits = outputs"),
        ("target", "given"),
    ],
)
def test_a_buffer_that_no_target_is_written_into(old: str, new: str) -> None:
    text = CRITERION.replace(old, new)
    assert text != CRITERION
    files = {"net.py": text, "boxes.py": BOXES, "train.py": MIXED}
    projects.write(Path.cwd(), files)
    shown = projects.check(Path("net.py")).diagnostics
    assert not [d for d in shown if d.code == "MP503"]


@pytest.mark.parametrize(
    ("target", "expected"),
    [("self.table.weight", Confidence.LIKELY), ("self.weight", Confidence.POSSIBLE)],
)
def test_whose_weight_is_made_of_what_is_given(target: str, expected: Confidence) -> None:
    text = f"""\
import torch


class Prompt(torch.nn.Module):
    def start(self, weights):
        {target} = torch.nn.Parameter(weights)
"""
    assert confidence("MP110", 6, {"net.py": text, "infer.py": HALF}) is expected
