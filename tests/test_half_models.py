"""Models that code makes half: what they give, and what that is passed on to."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint.api import Confidence
from tests import projects

NET = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 8)

    def forward(self, x):
        return self.head(x)
"""
POWERS = """\
import torch


def energy(frames):
    return (frames * frames).sum()
"""
LIMITED = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.tanh(x)
"""
UPCAST = NET.replace("return self.head(x)", "return self.head(x).float()")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def places(texts: dict[str, str], code: str = "MP601") -> list[str]:
    """Findings of one rule that are shown by default, by file and row."""
    projects.write(Path.cwd(), texts)
    shown = projects.check(Path(), confidence=Confidence.LIKELY).diagnostics
    return [f"{d.filename}:{d.start.row}" for d in shown if d.code == code]


def script(body: str, imports: str = "") -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    head = "import torch\nfrom net import Net\nfrom powers import energy\n"
    return f"{head}{imports}\n\ndef main(frames):\n{lines}"


HALVES = {
    "chained": "net = Net().cuda().half().eval()\nenergy(net(frames))",
    "cast and rebound": "net = Net()\nnet = net.to(torch.float16)\nenergy(net(frames))",
    "in place": "net = Net()\nnet.cuda().half()\nenergy(net(frames))",
    "in place, device and dtype": "net = Net()\nnet.to('cuda', torch.float16)\nenergy(net(frames))",
    "in one branch": "net = Net()\nif frames.is_cuda:\n    net.half()\nenergy(net(frames))",
    "dtype chosen": (
        "kind = torch.half if frames.is_cuda else torch.float\n"
        "net = Net()\nnet.to(kind)\nenergy(net(frames))"
    ),
    "wrapped": "net = torch.compile(Net().half())\nenergy(net(frames))",
    "entry of an output": "net = Net().half()\nenergy(net(frames)['frames'])",
    "attribute of an output": "net = Net().half()\nenergy(net(frames).frames)",
}
WIDE = {
    "never made half": "net = Net()\nenergy(net(frames))",
    "brought back": "net = Net().half()\nnet.float()\nenergy(net(frames))",
    "upcast output": "net = Net().half()\nenergy(net(frames).float())",
    "only a method of its own": "net = Net().half()\nenergy(net.prepare(frames))",
}


@pytest.mark.parametrize("body", HALVES.values(), ids=HALVES.keys())
def test_what_a_half_model_gives_is_half_in_other_files(body: str) -> None:
    texts = {"net.py": NET, "powers.py": POWERS, "run.py": script(body)}
    assert places(texts) == ["powers.py:5"]


@pytest.mark.parametrize("body", WIDE.values(), ids=WIDE.keys())
def test_what_it_does_not_compute_is_not(body: str) -> None:
    texts = {"net.py": NET, "powers.py": POWERS, "run.py": script(body)}
    assert places(texts) == []


@pytest.mark.parametrize("net", [LIMITED, UPCAST])
def test_a_model_that_bounds_or_upcasts_its_output_is_believed(net: str) -> None:
    body = "net = Net().half()\nenergy(net(frames))"
    assert places({"net.py": net, "powers.py": POWERS, "run.py": script(body)}) == []


def test_models_are_followed_through_parameters_and_attributes() -> None:
    body = "    def __call__(self, x):\n        return energy(self.net(x))\n"
    held = (
        "import torch\nfrom powers import energy\n\n\nclass Runner:\n"
        "    def __init__(self, net, steps):\n        self.net, self.steps = net, steps\n\n" + body
    )
    made = "runner = Runner(Net().half(), 3)\nrunner(frames)"
    texts = {"net.py": NET, "powers.py": POWERS, "held.py": held}
    texts["run.py"] = script(made, "from held import Runner")
    assert places(texts) == ["powers.py:5"]
    passed = script("score(Net().half(), frames)") + (
        "\n\ndef score(model, frames):\n    return energy(model(frames))\n"
    )
    Path("held.py").unlink()
    assert places({"net.py": NET, "powers.py": POWERS, "run.py": passed}) == ["powers.py:5"]


@pytest.mark.parametrize(
    ("given", "expected"), [("x.float()", []), ("self.head(x)", ["task.py:10"])]
)
def test_what_a_static_method_is_given(given: str, expected: list[str]) -> None:
    task = (
        "import torch\nfrom torch import nn\n\n\nclass Task(nn.Module):\n"
        "    head = nn.Linear(3, 3)\n\n    @staticmethod\n    def entropy(p):\n"
        "        return torch.log(p + 1e-10).mean()\n\n"
        "    def forward(self, x):\n"
        "        with torch.autocast('cuda', dtype=torch.float16):\n"
        f"            return Task.entropy({given})\n"
    )
    assert places({"task.py": task}, "MP301") == expected


@pytest.mark.parametrize(("dtype", "expected"), [("float16", ["powers.py:5"]), ("float32", [])])
def test_an_object_that_loads_its_model_in_half(dtype: str, expected: list[str]) -> None:
    held = (
        "import torch\nfrom transformers import AutoModel\nfrom powers import energy\n\n\n"
        "class Runner:\n    def __init__(self, name):\n"
        f"        self.net = AutoModel.from_pretrained(name, torch_dtype=torch.{dtype})\n\n"
        "    def __call__(self, x):\n        return energy(self.net(x).states)\n"
    )
    assert places({"powers.py": POWERS, "held.py": held}) == expected


@pytest.mark.parametrize(("other", "expected"), [("net(noise)", ["sums.py:5"]), ("noise", [])])
def test_what_two_half_parameters_promote_to(other: str, expected: list[str]) -> None:
    sums = "import torch\n\n\ndef energy(a, b):\n    return ((a + b) * (a + b)).sum()\n"
    body = f"net = Net().half()\nnoise = torch.randn(8, 3)\nenergy(net(frames), {other})"
    run = script(body).replace("from powers", "from sums")
    assert places({"net.py": NET, "sums.py": sums, "run.py": run}) == expected


@pytest.mark.parametrize(
    ("given", "expected"),
    [("self(batch)", ["spread.py:5"]), ("self.head(batch)", ["spread.py:5"]), ("batch", [])],
)
def test_what_a_layer_gives_is_half_where_a_trainer_runs_half(
    given: str, expected: list[str]
) -> None:
    spread = (
        "import torch\n\n\ndef spread(z):\n    return (z / torch.sqrt(z.var(dim=0) + 1e-9)).sum()\n"
    )
    task = (
        "import lightning\nfrom torch import nn\nfrom spread import spread\n\n\n"
        "class Task(lightning.LightningModule):\n    def __init__(self):\n"
        "        super().__init__()\n        self.head = nn.Linear(3, 3)\n\n"
        "    def forward(self, x):\n        return self.head(x)\n\n"
        f"    def training_step(self, batch, index):\n        return spread({given})\n"
    )
    run = "import lightning\nfrom task import Task\nlightning.Trainer(precision=16).fit(Task())\n"
    assert places({"spread.py": spread, "task.py": task, "run.py": run}, "MP306") == expected


def test_methods_of_a_half_model_run_with_half_weights() -> None:
    squared = NET.replace("return self.head(x)", "y = self.head(x)\n        return (y * y).sum()")
    body = "net = Net().half()\nnet(frames)"
    assert places({"net.py": squared, "powers.py": POWERS, "run.py": script(body)}) == ["net.py:12"]
    body = "net = Net()\nnet(frames)"
    assert places({"net.py": squared, "powers.py": POWERS, "run.py": script(body)}) == []


def test_parts_of_a_half_model_run_with_half_weights() -> None:
    whole = """\
import torch
from torch import nn


class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.query = nn.Linear(8, 8)

    def forward(self, x):
        y = self.query(x)
        return y * y


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()

    def forward(self, x):
        return self.part(x).mean()
"""
    made = {"run.py": script("net = Net().half()\nnet(frames)"), "powers.py": POWERS}
    assert places({"net.py": whole, **made}) == ["net.py:12"]


def test_loaded_in_half() -> None:
    body = """\
net = AutoModel.from_pretrained("name", {keyword}=torch.bfloat16)
return net(**frames).logits.softmax(-1).cpu().numpy()"""
    for keyword, expected in (("torch_dtype", ["run.py:8"]), ("dtype", ["run.py:8"])):
        text = script(body.format(keyword=keyword), "from transformers import AutoModel")
        texts = {"net.py": NET, "powers.py": POWERS, "run.py": text}
        assert places(texts, "MP506") == expected
    piped = script(
        'reader = TextPipeline.from_pretrained("name", torch_dtype=torch.bfloat16)\n'
        "return reader(frames).cpu().numpy()",
        "from library import TextPipeline",
    )
    assert places({"net.py": NET, "powers.py": POWERS, "run.py": piped}, "MP506") == []
