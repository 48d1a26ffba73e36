"""What code makes half, by how it is used: modules, their outputs, and where these go."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from precision_lint.api import Confidence
from precision_lint.project.code import statements
from precision_lint.semantics.arrays import OPEN
from tests import projects
from tests.analysis import returned
from tests.projects import found

HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def said(text: str) -> set[tuple[str, str]]:
    """Kind and strength of what a file says."""
    return {(s.kind, s.strength) for s in statements(ast.parse(HEAD + text))}


@pytest.mark.parametrize(
    "text",
    [
        "def load():\n    m = build()\n    m.eval()\n    return m.half()\n",
        "def run(p, x):\n    e = torch.jit.load(p).cuda().half().eval()\n    return e(x)\n",
        "def run(p, x):\n    f = make(p)\n    f = f.half()\n    return f(x)\n",
        "def run(a, b):\n    for part in (a, b):\n        part.half()\n",
        "def save(q):\n    torch.save(q.half(), 'q.pt')\n    q.load_state_dict({})\n",
    ],
)
def test_what_is_used_as_a_module_is_one(text: str) -> None:
    assert said(text) == {("half", "on")}


@pytest.mark.parametrize(
    "text",
    [
        "def pack(x):\n    return x.half()\n",
        "def pack(x):\n    y = x.half()\n    return y + 1\n\n\ndef run(y):\n    return y.eval()\n",
    ],
)
def test_what_is_used_as_a_tensor_is_one(text: str) -> None:
    assert said(text) == {("half", "local")}


def test_an_entry_of_a_table_of_dtypes_is_an_offer() -> None:
    table = "KINDS = {'wide': torch.float32, 'small': torch.float16}\n"
    assert said(f"{table}dt = KINDS[name]\n") == {("half", "flag")}
    assert said(f"{table}build(8).to('cuda', KINDS[name]).eval()\n") == {("half", "on")}
    assert said("KINDS = {'wide': torch.float32}\ndt = KINDS[name]\n") == set()


def test_a_switch_that_makes_a_model_half_is_none_for_autocast() -> None:
    load = "def load(net, fp16=True):\n    return net.half() if fp16 else net\n"
    assert said(load) == {("half", "flag")}
    region = "with torch.autocast('cuda', enabled=amp):\n    pass\n"
    assert ("autocast", "flag") in said(load + region)


RATIO = "1.0 / (y + 1e-8)"


@pytest.mark.parametrize(
    "lines",
    [
        ["net = build().half()", "y = net(x)"],
        ["net = build()", "net.cuda().half()", "y = net(x)"],
        ["net = nn.Sequential(nn.Linear(4, 4)).half()", "y = net(x)"],
        ["net = Pretrained.load(name, torch_dtype=torch.float16)", "y = net(x).logits.relu()"],
        ["net = Pretrained.load(name, torch_dtype='float16').eval()", "y = net.get_body()(x)"],
        ["net = torch.compile(build().half())", "y, _ = net(x)"],
        ["d = torch.float32 if wide else torch.float16", "net = build().to(d)", "y = net(x)"],
        ["net, y = build().half(), []", "for x in xs:", "    y.append(net(x))", "y = torch.cat(y)"],
    ],
)  # fmt: skip
def test_what_a_half_module_gives_is_half(tmp_path: Path, lines: list[str]) -> None:
    body = "".join(f"    {line}\n" for line in [*lines, f"return {RATIO}"])
    projects.write(tmp_path, {"run.py": f"{HEAD}\n\ndef run(build, x, xs, wide, name):\n{body}"})
    assert found(projects.check(tmp_path)) == [f"run.py:{len(lines) + 7} MP305"]


@pytest.mark.parametrize(
    "lines",
    [
        ["net = build().half()", "net.float()", "y = net(x)"],
        ["net = build().half()", "y = net(x).float()"],
        ["net = build().half().float()", "y = net(x)"],
        ["net = build().half()", "y = net.config.scale"],
    ],
)
def test_what_went_back_is_not(tmp_path: Path, lines: list[str]) -> None:
    body = "".join(f"    {line}\n" for line in [*lines, f"return {RATIO}"])
    projects.write(tmp_path, {"run.py": f"{HEAD}\n\ndef run(build, x):\n{body}"})
    assert found(projects.check(tmp_path)) == []


LOSS = """\
import torch


def distance(a, b, eps=1e-8):
    gap = a - b
    return torch.sqrt((gap * gap).mean(-1) + eps)


def pair_loss(a, b, same):
    return (same * distance(a, b)).mean()
"""
NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return self.fc(x){cast}
"""
TRAIN = """\
import torch
from loss import pair_loss
from net import Net


def train(batches, scaler):
    net = Net().cuda()
    for x, y, same in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = pair_loss(net(x), net(y), same)
        scaler.scale(loss).backward()
"""


@pytest.mark.parametrize(("cast", "expected"), [("", ["loss.py:6 MP306"]), (".float()", [])])
def test_outputs_are_followed_through_callers(
    tmp_path: Path, cast: str, expected: list[str]
) -> None:
    texts = {"loss.py": LOSS, "net.py": NET.format(cast=cast), "train.py": TRAIN}
    projects.write(tmp_path, texts)
    assert found(projects.check(tmp_path)) == expected


@pytest.mark.parametrize(
    ("forward", "expected"),
    [("self.fc(x)", ["run.py:18 MP502"]), ("self.fc(x.to(self.fc.weight.dtype))", [])],
)
def test_float32_into_a_half_module(tmp_path: Path, forward: str, expected: list[str]) -> None:
    text = f"""\
{HEAD}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        return {forward}


def run(x):
    net = Net().half()
    with torch.no_grad():
        return net(x.float())
"""
    projects.write(tmp_path, {"run.py": text})
    assert found(projects.check(tmp_path)) == expected


@pytest.mark.parametrize(
    ("expression", "dtype"),
    [
        ("np.sin(np.arange(8))", "float64"),
        ("np.arange(n)", OPEN),
        ("np.arange(n) / (n / 4)", "float64"),
        ("np.arange(8) * 2", "int"),
        ("np.arange(8) * 0.5", "float64"),
        ("np.bincount(y) / len(y)", "float64"),
        ("np.load(path)", ""),
        ("np.sqrt(np.load(path))", ""),
        ("np.zeros(4).astype(np.float32)", "float32"),
        ("np.zeros(4, dtype=np.float32) * 2.0", "float32"),
        ("np.concatenate([np.zeros(4), np.ones(4)])", "float64"),
    ],
)
def test_dtypes_of_arrays(expression: str, dtype: str) -> None:
    text = f"import numpy as np\nimport torch\n\n\ndef f(n, y, path):\n    return {expression}\n"
    value = returned(text)
    assert (value.kind, value.dtype) == ("array", dtype)


def test_weights_of_a_loss_in_float64(tmp_path: Path) -> None:
    text = f"""\
import numpy as np
{HEAD}

def train(net, x, y, counts):
    share = np.bincount(counts) / len(counts)
    weight = torch.as_tensor(1 / np.sqrt(share)){{cast}}
    with torch.autocast("cuda", dtype=torch.float16):
        return F.cross_entropy(net(x), y, weight=weight)
"""
    for cast, expected in (("", ["run.py:9 MP402"]), (".float()", [])):
        projects.write(tmp_path / f"p{len(cast)}", {"run.py": text.format(cast=cast)})
        assert found(projects.check(tmp_path / f"p{len(cast)}")) == expected


@pytest.mark.parametrize(("lowest", "expected"), [("torch.finfo(dtype).min", 1), ("-1e4", 0)])
def test_masks_that_a_helper_makes(tmp_path: Path, lowest: str, expected: int) -> None:
    text = f"""\
{HEAD}

def to_bias(keep, dtype):
    return (1.0 - keep.to(dtype)) * {lowest}


class Attention(nn.Module):
    def forward(self, q, k, keep, near):
        with torch.autocast("cuda", dtype=torch.float16):
            scores = q @ k.transpose(-2, -1)
            scores = scores + to_bias(keep, scores.dtype) + to_bias(near, scores.dtype)
            return scores.softmax(-1)
"""
    projects.write(tmp_path, {"run.py": text})
    codes = [d.code for d in projects.check(tmp_path, confidence=Confidence.LIKELY).diagnostics]
    assert codes.count("MP311") == expected


@pytest.mark.parametrize(("half", "expected"), [("net.half()", ["run.py:15 MP502"]), ("pass", [])])
def test_a_module_that_one_branch_of_a_helper_makes_half(
    tmp_path: Path, half: str, expected: list[str]
) -> None:
    text = f"""\
{HEAD}

def restore(net, small=True):
    net = net.cuda().eval()
    if small:
        {half}
    return net


def run(x):
    net = restore(nn.Sequential(nn.Linear(8, 8)))
    return net(x.float())
"""
    projects.write(tmp_path, {"run.py": text})
    assert found(projects.check(tmp_path)) == expected


def test_a_parameter_of_a_half_model_is_half(tmp_path: Path) -> None:
    text = f"""\
{HEAD}

def tune(load, name):
    net = load(name, torch_dtype=torch.float16).to("cuda").eval()
    table = net.get_table()
    first = nn.Parameter(table.weight[:8].detach().clone())
    return torch.optim.Adam([first], lr=1e-3)
"""
    projects.write(tmp_path, {"run.py": text})
    assert found(projects.check(tmp_path)) == ["run.py:10 MP312"]
