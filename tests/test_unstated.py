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
LOADED = """\
import torch
import net


def load(model, path):
    model.load_state_dict(torch.load(path))
    return model.half()
"""
"""It casts one model, and trains nothing."""
OPTION = HALVED.replace(
    "    model = model.half()", "    if optimizer.fp16:\n        model = model.half()"
)
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
RAISES = "F.binary_cross_entropy(y.sigmoid(), x)"


@pytest.mark.parametrize(
    ("files", "mode", "code", "shown"),
    [
        ({"net.py": ("forward", GUARDED), "train.py": TRAIN}, AMP, "MP301", True),
        ({"net.py": ("embed", GUARDED), "train.py": TRAIN}, AMP, "MP301", False),
        ({"net.py": ("embed", RAISES), "train.py": TRAIN}, AMP, "MP206", True),
        ({"net.py": ("forward", DIVIDED), "train.py": TRAIN}, AMP, "MP305", False),
        ({"net.py": ("forward", DIVIDED, TRAIN)}, AMP, "MP305", True),
        ({"net.py": ("forward", SCORES), "train.py": TRAIN}, "", "MP208", False),
        ({"net.py": ("forward", SCORES, TRAIN)}, AMP, "MP208", False),
        ({"net.py": ("forward", GUARDED), "train.py": HALVED}, HALF, "MP301", True),
        ({"net.py": ("forward", GUARDED), "train.py": OPTION}, HALF, "MP301", False),
        ({"net.py": ("forward", GUARDED), "train.py": LOADED}, HALF, "MP301", False),
        ({"net.py": ("forward", GUARDED, LOADED)}, HALF, "MP301", False),
    ],
    ids=[
        "a model of another file",
        "a method that nothing is seen to call",
        "which raises there",
        "a kind that is wrong as a rule",
        "where the file shows the mode",
        "large values",
        "large values where the file shows the mode",
        "half weights that are trained",
        "half weights by an option",
        "half weights of a model that is loaded",
        "half weights of a model that is loaded in the file",
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
        (DEFAULT, "return nn.Linear(4, 4).to(dtype)(torch.zeros(2, 4))", "MP401", False),
    ],
    ids=[
        "nothing assumed",
        "a dtype on one way",
        "large values",
        "a guess",
        "a guess, wrong as a rule",
    ],
)
def test_what_shows_as_written(
    tmp_path: Path, where: str, what: str, code: str, shown: bool
) -> None:
    text = f"import torch\nfrom torch import nn\n\n\n{where.format(what)}"
    projects.write(tmp_path, {"code.py": text})
    assert (code in codes(tmp_path)) is shown, codes(tmp_path, confidence=Confidence.POSSIBLE)
    assert code in codes(tmp_path, confidence=Confidence.POSSIBLE)


def codes(root: Path, precision: tuple[str, ...] = (), **options: Any) -> set[str]:
    stated = Overrides(no_cache=True, precision=precision or None, **options)
    return {one.code for one in runner.check([root], Resolver(stated, isolated=True)).diagnostics}
