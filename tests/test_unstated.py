"""What shows where nobody states a mode: measured on code that nobody had tuned to.

Each case is shown once the user states the mode, and is ``possible`` before, or shown at once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from precision_lint import runner
from precision_lint.api import Confidence
from precision_lint.config import Overrides, Resolver
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import AMP16
from precision_lint.events import Event, Place, Sign, Variant
from precision_lint.precision.confidence import Callers, judge
from precision_lint.precision.modes import Force, Strength

from . import projects

AMP, HALF = "amp-float16", "float16"
TRAIN = """\
import torch
import net


def train(model, loader, optimizer, scaler):
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(x).mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
"""It trains models of ``net``, which it imports, and names none."""
GIVEN = TRAIN.replace("import net\n", "")
"""It trains models of which it knows nothing."""
HALVED = """\
import torch
import net


def finetune(model, loader, optimizer):
    model = model.half()
    for x in loader:
        model(x.half()).mean().backward()
        optimizer.step()
"""
"""It trains what it casts."""
HANDS_ON = """\
import torch
import net


def steps(model, loader, optimizer):
    for x in loader:
        model(x.half()).mean().backward()
        optimizer.step()


def finetune(model, loader, optimizer):
    steps(torch.nn.DataParallel(model).half(), loader, optimizer)
"""
"""It casts what another function trains."""
LOADED = """\
import torch
import net


def load(model, path):
    model.load_state_dict(torch.load(path))
    return model.half()
"""
"""It casts one model, and trains nothing."""
BUILT = """\
import torch
import net


def load(path, half):
    model = net.Net()
    {0}
    return model
"""
"""It builds a model, and casts it always or by an option."""
BUILT_IN_HALF, BUILT_IN_EITHER = (
    BUILT.format("model.half()"),
    BUILT.format("model = model.half() if half else model"),
)
SAVED_ONLY = BUILT.format("torch.save(model.half().state_dict(), path)").replace(
    "return model", "return path"
)
ROUNDED = BUILT.format("model = model.half().float()")
RESTORED = BUILT.format("model.half()\n    model.proj.float()")
"""It makes a model half for a file alone, or for its rounding, or a part of it."""
HOLDER = """\
import torch
from torch import nn
import net


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList([nn.Linear(4, 4), net.Net()])


model = Holder().half()
"""
"""It builds a model of which another is part."""
RUNNER = """\
from lightning import Fabric
import net


def main(model, half):
    fabric = Fabric(precision={0})
    return fabric.setup(model)
"""
"""It runs models of ``net`` in half, always or by an option."""
ALWAYS, OPTION = RUNNER.format('"16-true"'), RUNNER.format('"16-true" if half else "32-true"')
NET = """\
import torch
from torch import nn
import torch.nn.functional as F


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 64)
        self.table = torch.zeros(4, 64)

    def {method}(self, x):
        y = self.proj(x)
        return {result}
"""
GUARDED = "torch.log(y.sigmoid() + 1e-8)"
DIVIDED = "y / (y.abs().amin() + 1e-8)"
SCORES = "((y @ y.mT) * 0.125).softmax(-1)"
BOXES = "(y[:, 2] - y[:, 0]) * (y[:, 3] - y[:, 1])"
WRITTEN = "torch.zeros(9, 64, device=x.device).index_add(0, x.long()[:, 0], y)"
RAISES = "F.binary_cross_entropy(y.sigmoid(), x)"


@pytest.mark.parametrize(
    ("files", "mode", "code", "shown"),
    [
        ({"net.py": ("forward", GUARDED), "train.py": TRAIN}, AMP, "MP301", True),
        ({"net.py": ("embed", GUARDED), "train.py": TRAIN}, AMP, "MP301", False),
        ({"net.py": ("embed", RAISES), "train.py": TRAIN}, AMP, "MP206", True),
        ({"net.py": ("forward", WRITTEN), "train.py": TRAIN}, AMP, "MP503", True),
        ({"net.py": ("forward", DIVIDED), "train.py": TRAIN}, AMP, "MP305", False),
        ({"net.py": ("forward", DIVIDED, TRAIN)}, AMP, "MP305", True),
        ({"net.py": ("forward", SCORES), "train.py": TRAIN}, "", "MP208", False),
        ({"net.py": ("forward", SCORES, TRAIN)}, AMP, "MP208", True),
        ({"net.py": ("forward", BOXES), "train.py": GIVEN}, "", "MP607", False),
        ({"net.py": ("forward", GUARDED), "train.py": HALVED}, HALF, "MP301", True),
        ({"net.py": ("forward", GUARDED), "train.py": HANDS_ON}, HALF, "MP301", True),
        ({"net.py": ("forward", GUARDED), "train.py": ALWAYS}, HALF, "MP301", True),
        ({"net.py": ("forward", GUARDED), "train.py": OPTION}, HALF, "MP301", False),
        ({"net.py": ("forward", GUARDED), "train.py": LOADED}, HALF, "MP301", False),
        ({"net.py": ("forward", GUARDED, LOADED)}, HALF, "MP301", False),
        ({"net.py": ("embed", GUARDED), "build.py": BUILT_IN_HALF}, HALF, "MP301", True),
        ({"net.py": ("embed", GUARDED), "build.py": HOLDER}, HALF, "MP301", True),
        ({"net.py": ("embed", GUARDED), "build.py": SAVED_ONLY}, HALF, "MP301", False),
        ({"net.py": ("embed", GUARDED), "build.py": ROUNDED}, HALF, "MP301", False),
        ({"net.py": ("embed", GUARDED), "build.py": RESTORED}, HALF, "MP301", False),
        ({"net.py": ("embed", GUARDED, BUILT_IN_HALF.replace("net.", ""))}, HALF, "MP301", True),
        ({"net.py": ("forward", GUARDED), "build.py": BUILT_IN_EITHER}, HALF, "MP301", False),
        ({"net.py": ("forward", SCORES), "build.py": BUILT_IN_HALF}, HALF, "MP208", False),
    ],
    ids=[
        "a model of another file",
        "a method that nothing is seen to call",
        "which raises there",
        "a write into another dtype",
        "a kind that is wrong as a rule",
        "where the file shows the mode",
        "large values",
        "large values of the model that the file runs in a region",
        "large values of a model that is handed on",
        "half weights that are trained",
        "half weights that a helper trains",
        "half weights of a runner",
        "half weights by an option",
        "half weights of a model that is loaded",
        "half weights of a model that is loaded in the file",
        "half weights of a model that is built",
        "half weights of a part of a model that is built",
        "half weights of a model that is saved",
        "half weights of a model that is cast back",
        "half weights of a model of which a part is cast back",
        "half weights of a model that is built in the file",
        "half weights of a model that is built and cast by an option",
        "large values of a model that is built",
    ],
)
def test_what_shows_where_nothing_is_stated(
    tmp_path: Path, files: dict[str, str | tuple[str, ...]], mode: str, code: str, shown: bool
) -> None:
    texts = {}
    for name, of in files.items():
        if isinstance(of, tuple):
            more = "".join(of[2:]).replace("import net\n", "")
            of = NET.format(method=of[0], result=of[1]) + f"\n\n{more}"
        texts[name] = of
    projects.write(tmp_path, texts)
    assert (code in codes(tmp_path)) is shown
    assert code in codes(tmp_path, confidence=Confidence.POSSIBLE)
    assert not mode or code in codes(tmp_path, precision=(mode,))


SAVED = """\
import torch
from torch import nn


class Dense(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.t(), x.t() @ gradient


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 8))

    def forward(self, x):
        return Dense.apply(x, self.weight)
"""


def test_operands_of_a_backward_by_hand_are_no_plain_mismatch(tmp_path: Path) -> None:
    projects.write(tmp_path, {"net.py": SAVED, "train.py": TRAIN})
    assert codes(tmp_path) == {"MP207"}


FUNCTION = "def f(x, w):\n    {0}\n"
DEFAULT = FUNCTION.replace("w)", "w, dtype=torch.float16)")
CHOSEN = (
    "net = nn.Linear(4, 4)\n    if x.is_cuda:\n        net = net.half()\n"
    "    return net(torch.zeros(2, 4))"
)


@pytest.mark.parametrize(
    ("where", "what", "code", "shown"),
    [
        (
            FUNCTION,
            "net = nn.Linear(4, 4).half()\n    return net(torch.zeros(2, 4))",
            "MP401",
            True,
        ),
        (FUNCTION, CHOSEN, "MP401", False),
        (FUNCTION, "x = x.half()\n    return x.exp()", "MP603", True),
        (DEFAULT, "return torch.log(x.to(dtype).sigmoid() + 1e-8)", "MP301", True),
        (DEFAULT, "return nn.Linear(4, 4).to(dtype)(torch.zeros(2, 4))", "MP401", True),
    ],
    ids=[
        "nothing assumed",
        "a dtype on one way",
        "large values",
        "a default",
        "a default, of a kind that is wrong as a rule",
    ],
)
def test_what_shows_as_written(
    tmp_path: Path, where: str, what: str, code: str, shown: bool
) -> None:
    text = f"import torch\nfrom torch import nn\n\n\n{where.format(what)}"
    projects.write(tmp_path, {"code.py": text})
    assert (code in codes(tmp_path)) is shown, codes(tmp_path, confidence=Confidence.POSSIBLE)
    assert code in codes(tmp_path, confidence=Confidence.POSSIBLE)


@pytest.mark.parametrize(
    ("assumed", "confidence"),
    [
        (assume.FLAG, Confidence.LIKELY),
        (assume.FLAG | assume.OUTSIDE, Confidence.LIKELY),
        (assume.FLAG | assume.DEFAULT, Confidence.LIKELY),  # what is written runs so by itself
        (assume.FLAG | assume.NETWORK, Confidence.POSSIBLE),
    ],
)
def test_two_guesses_are_too_many_as_written(assumed: int, confidence: Confidence) -> None:
    root, place = ("loss.py", "loss"), Place("loss.py", 6, 11, 6, 30)
    event = Event("half-softmax", place, "loss", {}, [Variant(1, assumed, root)])
    for force, expected in ((Force(), confidence), (Force(stated=True), Confidence.LIKELY)):
        verdict = judge(event, force, Callers())
        assert verdict is not None and verdict.confidence is expected


LEFT = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(64, 64)

    def forward(self, x):
        y = self.proj(x)
        with torch.autocast("cuda", enabled=False):
            return y @ y.mT
"""
"""It leaves a region that is not in its file."""


def test_a_region_that_is_off_is_no_region_in_sight(tmp_path: Path) -> None:
    projects.write(tmp_path, {"net.py": LEFT, "train.py": TRAIN})
    assert codes(tmp_path, select=["MP203"]) == set()
    assert codes(tmp_path, (AMP,), select=["MP203"]) == {"MP203"}
    projects.write(tmp_path, {"net.py": LEFT + TRAIN.replace("import net\n", "")})
    assert codes(tmp_path, select=["MP203"]) == {"MP203"}


@pytest.mark.parametrize(
    ("written", "confidence"), [(False, Confidence.POSSIBLE), (True, Confidence.LIKELY)]
)
def test_operands_of_two_dtypes_need_more_than_a_region_in_sight(
    written: bool, confidence: Confidence
) -> None:
    place = Place("net.py", 6, 11, 6, 30)
    variant = Variant(1, assume.FLAG, ("net.py", "mix"), regions=(place,))
    facts = {"writes": written, "backward": None}
    event = Event("dtype-mismatch", place, "mix", facts, [variant])
    for force, expected in ((Force(), confidence), (Force(stated=True), Confidence.LIKELY)):
        verdict = judge(event, force, Callers())
        assert verdict is not None and verdict.confidence is expected


@pytest.mark.parametrize(
    ("kind", "method", "confidence"),
    [
        ("distance-in-region", "forward", Confidence.LIKELY),
        ("distance-in-region", "match", Confidence.POSSIBLE),
        ("geometry-product", "match", Confidence.POSSIBLE),
        ("large-contraction", "match", Confidence.LIKELY),
    ],
)
def test_methods_that_nothing_calls_are_no_part_of_a_region(
    kind: str, method: str, confidence: Confidence
) -> None:
    sign = Sign(AMP16, "a region is opened", Place("train.py", 6, 11, 6, 30))
    force = Force({AMP16: (Strength.IMPORTER, sign)})
    variant = Variant(1 << AMP16, 0, ("net.py", f"Net.{method}"), of_module=True)
    place = Place("net.py", 6, 11, 6, 30)
    verdict = judge(Event(kind, place, f"Net.{method}", {}, [variant]), force, Callers())
    assert verdict is not None and verdict.confidence is confidence


def test_what_may_be_a_model_s_meets_float32_behind_a_region(tmp_path: Path) -> None:
    text = """\
import torch


def aligned(poses, rotation):
    return torch.einsum("i j, ... j k -> ... i k", rotation, poses)


def evaluate(model, views):
    with torch.autocast("cuda", dtype=torch.float16):
        poses = model(views)
    return aligned(poses, torch.eye(3))
"""
    projects.write(tmp_path, {"evaluate.py": text})
    assert "MP502" not in codes(tmp_path)
    assert "MP502" in codes(tmp_path, confidence=Confidence.POSSIBLE)
    assert "MP502" in codes(tmp_path, precision=(AMP,))


TRIED = """\
import numpy as np
import torch


def test_sum():
    weights = torch.from_numpy(np.linspace(0.0, 1.0, 8))
    assert (weights * torch.ones(8).half()).dtype is torch.float64


class TestRegion:
    def test_product(self):
        with torch.cuda.amp.autocast():
            y = torch.ones(8, 8) @ torch.ones(8, 8)
        assert torch.log(y.sigmoid() + 1e-8).dtype is torch.float32
"""
"""It asserts that NumPy's float64 wins, and uses an old name."""


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("tests/test_sum.py", {"MP212"}),
        ("tests/sums.py", {"MP212"}),
        ("sums.py", {"MP212", "MP402"}),
    ],
)
def test_what_a_test_tries_is_possible(tmp_path: Path, name: str, shown: set[str]) -> None:
    projects.write(tmp_path, {"requirements.txt": "torch>=2.4\n", name: TRIED})
    assert codes(tmp_path) == shown
    assert "MP402" in codes(tmp_path, confidence=Confidence.POSSIBLE)
    assert codes(tmp_path, (AMP,)) == shown


@pytest.mark.parametrize(
    ("name", "function", "shown"),
    [
        ("tests/test_layer.py", "test_layer", set()),
        ("tests/test_layer.py", "run", {"MP505"}),
        ("run.py", "test_layer", {"MP505"}),
    ],
)
def test_where_a_test_runs_a_layer_says_nothing_of_the_project(
    tmp_path: Path, name: str, function: str, shown: set[str]
) -> None:
    layer = (
        "import torch\nfrom torch import nn\n\n\nclass Layer(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.conv = nn.Conv2d(3, 3, 3)\n\n"
        "    def forward(self, x):\n        return self.conv(x)\n"
    )
    called = (
        "import torch\nfrom layer import Layer\n\n\ndef {}():\n"
        "    x = torch.rand(1, 3, 8, 8, device='cpu')\n    net = Layer()\n"
        "    return net(x.to(net.conv.weight.dtype))\n"
    )
    files = {"pyproject.toml": "", "layer.py": layer, name: called.format(function)}
    projects.write(tmp_path, files)
    assert codes(tmp_path, ("float16",), torch_version="1.13") == shown


@pytest.mark.parametrize("name", ["test", "test_step", "latest_sum"])
def test_what_evaluates_is_no_test(tmp_path: Path, name: str) -> None:
    text = TRIED.replace("test_sum()", f"{name}(model, loader)").replace("TestRegion", "Region")
    projects.write(tmp_path, {"pyproject.toml": "", "test_net.py": text})
    assert "MP402" in codes(tmp_path)


def codes(root: Path, precision: tuple[str, ...] = (), **options: Any) -> set[str]:
    stated = Overrides(no_cache=True, precision=precision or None, **options)
    return {one.code for one in runner.check([root], Resolver(stated, isolated=True)).diagnostics}


def test_which_classes_are_cast_is_kept_in_the_cache(tmp_path: Path) -> None:
    net = NET.format(method="embed", result=GUARDED)
    projects.write(tmp_path, {"net.py": net, "build.py": BUILT_IN_HALF, "pyproject.toml": ""})
    for code, count in (("MP302", 0), ("MP301", 1)):
        resolver = Resolver(Overrides(select=(code,)), isolated=True)
        assert len(runner.check([tmp_path], resolver).diagnostics) == count


def test_classes_that_are_no_longer_cast_are_judged_anew(tmp_path: Path) -> None:
    net = NET.format(method="embed", result=GUARDED)
    net += "\n\nclass Other(nn.Module):\n    pass\n\n\nclass Derived(Net):\n    pass\n"
    build = "import torch\nimport net\n\nother = net.Other().half()\nmodel = {}\n"
    casts = (("net.Net().half()", 1), ("net.Net()", 0), ("net.Derived().half()", 1))
    for cast, count in casts:
        files = {"net.py": net, "build.py": build.format(cast), "pyproject.toml": ""}
        projects.write(tmp_path, files)
        found = runner.check([tmp_path], Resolver(Overrides(), isolated=True)).diagnostics
        assert len(found) == count
