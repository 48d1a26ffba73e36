"""Findings that rest on several files of a project."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint import cli, lint_paths, runner
from precision_lint.api import Confidence
from precision_lint.config import Overrides, Resolver
from precision_lint.dataflow.program import STARS
from precision_lint.domains import assumptions as assume
from precision_lint.engine import Engine, merged
from precision_lint.events import Event, Place, Variant
from precision_lint.jobs import Mode
from precision_lint.precision.confidence import Callers, judge
from precision_lint.precision.modes import Force, Strength
from precision_lint.project.code import Code
from precision_lint.source import Source, decode
from tests import projects
from tests.projects import found
from tests.test_branch import commit, git

LOSS = (
    "import torch\n\n\ndef loss(x):\n    p = x.sigmoid()\n    return torch.log(p + 1e-8).mean()\n"
)
STEP = (
    "def step(model, x):\n    with torch.autocast('cuda', dtype=torch.float16):\n        {call}\n"
)
FLAGGED = ["loss.py:6 MP301"]
MODULE = (
    "import torch\n\n\nclass Loss(torch.nn.Module):\n    def forward(self, x):\n"
    "        return torch.log(x.sigmoid() + 1e-8).mean()\n"
)
TRAINED = "self.step(nn.Linear(2, 2).half()).backward()"
SHAPES = {
    "from the module": ("from loss import loss\n", "loss(model(x).half())"),
    "the module": ("import loss\n", "loss.loss(model(x).half())"),
    "by another name": ("from loss import loss as f\n", "f(model(x).half())"),
    "where it is used": ("", "from loss import loss; loss(model(x).half())"),
    "through a third file": ("from third import loss\n", "loss(model(x).half())"),
}


def check(root: Path, *names: str, confidence: Confidence = Confidence.LIKELY) -> list[str]:
    paths = [root / name for name in names] if names else [root]
    return found(projects.check(*paths, confidence=confidence))


@pytest.mark.parametrize(("imports", "call"), SHAPES.values(), ids=SHAPES)
def test_a_region_of_another_file(tmp_path: Path, imports: str, call: str) -> None:
    files = {"loss.py": LOSS, "third.py": "import torch\nfrom loss import loss\n"}
    train = f"import torch\n{imports}\n\n{STEP.format(call=call)}"
    projects.write(tmp_path, {**files, "train.py": train})
    assert check(tmp_path) == FLAGGED
    assert check(tmp_path, "loss.py") == FLAGGED, "alone it is judged as among the others"
    projects.write(tmp_path, {**files, "train.py": train.replace(".half()", ".float()")})
    assert check(tmp_path) == []


NET = (
    "import torch\n\n\nclass Net(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.head = torch.nn.Linear(8, 2)\n\n    def forward(self, x):\n        return self.head(x)\n"
)
WARM = (
    "import torch\nfrom net import Net\n\n\ndef {name}(device):\n    model = Net().to(device).eval()\n"
    "    model.half()\n    return model(torch.zeros({given}))\n"
)


def test_the_file_that_makes_the_wrong_input(tmp_path: Path) -> None:
    """It is said where the tensor is made, of each file that does."""
    given = "1, 8, device=device"
    files = {f"{name}.py": WARM.format(name=name, given=given) for name in ("detect", "export")}
    projects.write(tmp_path, {"net.py": NET, **files})
    assert check(tmp_path) == ["detect.py:8 MP401", "export.py:8 MP401"]
    assert check(tmp_path, "detect.py") == ["detect.py:8 MP401"], "alone it is judged as well"
    assert check(tmp_path, "net.py") == ["net.py:10 MP401"], (
        "where the files that do are not looked at"
    )
    right = "1, 8, device=device, dtype=next(model.parameters()).dtype"
    projects.write(tmp_path, {name: text.replace(given, right) for name, text in files.items()})
    assert check(tmp_path) == []


STARRED = {
    "a file": ("from loss import *\n", {}),
    "a file that has them so itself": ("from all import *\n", {"all.py": "from loss import *\n"}),
    "one of two": (
        "from loss import *\nfrom other import *\n",
        {"other.py": "def rest(x): return x\n"},
    ),
    "two that import all of each other": (
        "from all import *\n",
        {"all.py": "from both import *\n", "both.py": "from all import *\nfrom loss import *\n"},
    ),
}


@pytest.mark.parametrize(("line", "more"), STARRED.values(), ids=STARRED)
def test_all_names_of_a_file(tmp_path: Path, line: str, more: dict[str, str]) -> None:
    train = f"import torch\n{line}\n\n{STEP.format(call='loss(model(x).half())')}"
    projects.write(tmp_path, {"loss.py": LOSS, "train.py": train, **more})
    assert check(tmp_path) == FLAGGED
    shadowed = train.replace("\n\n", "\n\ndef loss(x):\n    return x.float()\n\n\n", 1)
    projects.write(tmp_path, {"train.py": shadowed})
    assert check(tmp_path) == [], "the file's own function comes first"


def test_a_file_that_gathers_a_whole_package_is_not_searched(tmp_path: Path) -> None:
    """What it lacks would load each of its files."""
    for count, expected in ((STARS - 1, FLAGGED), (STARS, [])):
        others = {f"one{i}.py": "x = 1\n" for i in range(count)}
        gathered = "".join(f"from {name[:-3]} import *\n" for name in ("loss.py", *others))
        train = f"import torch\nfrom all import loss\n\n{STEP.format(call='loss(model(x).half())')}"
        texts = {"loss.py": LOSS, "all.py": gathered, "train.py": train, **others}
        projects.write(tmp_path, texts)
        assert check(tmp_path) == expected


@pytest.mark.parametrize(
    "imports",
    [
        "from torch.nn import *\nfrom torch import *",
        "from .imports import *",
        "from fastai.basics import *",
    ],
)
def test_all_names_of_a_library(tmp_path: Path, imports: str) -> None:
    made = "Linear" if "torch.nn" in imports else "nn.Linear"
    log = "log" if "torch.nn" in imports else "torch.log"
    code = f"{imports}\n\nmodel = {made}(2, 2).half()\n\n\ndef loss(x):\n"
    projects.write(tmp_path, {"a.py": f"{code}    return {log}(model(x).sigmoid() + 1e-8)\n"})
    expected = f"a.py:{code.count(chr(10)) + 1} MP301"
    assert expected in check(tmp_path, confidence=Confidence.POSSIBLE)


@pytest.mark.parametrize("line", ["from .loss import loss", "from pkg.loss import loss"])
def test_packages(tmp_path: Path, line: str) -> None:
    train = f"import torch\n{line}\n\n\n{STEP.format(call='loss(model(x).half())')}"
    texts = {"pkg/__init__.py": "", "pkg/loss.py": LOSS, "pkg/train.py": train}
    projects.write(tmp_path, texts)
    assert check(tmp_path) == FLAGGED


def test_a_script_calls_what_it_imports(tmp_path: Path) -> None:
    call = "    with torch.autocast('cuda'):\n        loss(torch.randn(3, device='cuda').half())\n"
    script = f"import torch\nfrom loss import loss\n\nif __name__ == '__main__':\n{call}"
    projects.write(tmp_path, {"loss.py": LOSS, "run.py": script})
    assert check(tmp_path) == FLAGGED


def test_a_program_runs_what_it_imports(tmp_path: Path) -> None:
    """Only in a file that others import is what stands under its guard a demonstration."""
    script = (
        "from transformers import Trainer, TrainingArguments\nfrom loss import Loss\n\n"
        "if __name__ == '__main__':\n    args = TrainingArguments('out', fp16=True)\n"
        "    Trainer(Loss(), args).train()\n"
    )
    projects.write(tmp_path, {"loss.py": MODULE, "run.py": script})
    assert check(tmp_path) == FLAGGED
    projects.write(tmp_path, {"other.py": "import torch\nimport run\n"})
    assert check(tmp_path) == []


def test_gradients_are_read_in_a_file_that_never_says_torch(tmp_path: Path) -> None:
    report = (
        "def report(module, name):\n    found = {}\n"
        "    for key, weight in module.named_parameters():\n"
        "        if not weight.requires_grad:\n            continue\n"
        "        found[name + key] = weight.norm().item()\n"
        "        if weight.grad is not None:\n"
        "            found[key] = weight.grad.norm(2).item()\n    return found\n"
    )
    train = (
        "import torch\nfrom report import report\n\n\n"
        "def step(model, optimizer, scaler, loss):\n    scaler.scale(loss).backward()\n"
        "    found = report(model, 'train/')\n    scaler.step(optimizer)\n    scaler.update()\n"
        "    return found\n"
    )
    projects.write(tmp_path, {"report.py": report, "train.py": train})
    assert check(tmp_path) == ["train.py:7 MP101"]


NOISE = (
    "import torch\n\n\ndef noise(shape, device):\n    return torch.randn(shape, device=device{dtype})\n"
    "\n\nSCALE = torch.tensor([0.5, 0.25]){cast}\n"
)
SAMPLE = (
    "import torch\nfrom noise import SCALE, noise\n\n\ndef sample(device):\n"
    "    net = torch.nn.Linear(2, 2).to(device).half()\n    x = {made}\n    return net(x)\n"
)


@pytest.mark.parametrize(
    ("made", "row"), [("noise((1, 2), device)", 5), ("SCALE.to(device)", 8)], ids=["given", "kept"]
)
def test_the_file_whose_tensor_is_the_wrong_input(tmp_path: Path, made: str, row: int) -> None:
    """It is said where a function that has returned made the tensor, or the top level of a file."""
    files = {"noise.py": NOISE.format(dtype="", cast=""), "sample.py": SAMPLE.format(made=made)}
    projects.write(tmp_path, files)
    assert check(tmp_path) == [f"noise.py:{row} MP401"]
    assert check(tmp_path, "noise.py") == [f"noise.py:{row} MP401"], "alone it is judged as well"
    (one,) = projects.check(tmp_path).diagnostics
    ends = [(e.message, e.filename, e.start.row) for e in one.evidence if e.filename and e.start]
    assert ("it goes in here", str(tmp_path / "sample.py"), 8) in ends
    assert check(tmp_path, "sample.py") == ["sample.py:8 MP401"], "where its file is not looked at"
    right = NOISE.format(dtype=", dtype=torch.float16", cast=".half()")
    projects.write(tmp_path, {**files, "noise.py": right})
    assert check(tmp_path) == []


TABLE = "import numpy as np\nimport torch\n\n\ndef table():\n    return {made}\n"
WIDENED = (
    "import torch\nfrom table import table\n\n\nclass Net(torch.nn.Module):\n"
    "    def __init__(self):\n        super().__init__()\n"
    "        self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)\n\n"
    "    def forward(self, x):\n        x = self.a(x)\n        return {used}\n\n\n"
    "def run(x):\n    return Net().half()(x.half())\n"
)


@pytest.mark.parametrize(
    ("made", "used", "code"),
    [
        ("torch.full((8,), 0.5)", "self.b(table() * x)", "MP401"),
        ("torch.full((8,), 0.5, dtype=torch.float32)", "table() * x, self.b(x)", "MP403"),
        ("torch.from_numpy(np.linspace(0, 1, 8))", "self.b(table() * x)", "MP402"),
    ],
)
def test_the_file_whose_tensor_widens_another(
    tmp_path: Path, made: str, used: str, code: str
) -> None:
    """The finding stands where the tensor is made, once, and links to each of the places that it widens."""
    widening = {"table.py": TABLE.format(made=made), "net.py": WIDENED.format(used=used)}
    projects.write(tmp_path, widening)
    assert check(tmp_path) == [f"table.py:6 {code}"]
    assert check(tmp_path, "table.py") == [f"table.py:6 {code}"]
    assert check(tmp_path, "net.py") == [f"net.py:12 {code}"], "where its file is not looked at"
    (one,) = projects.check(tmp_path).diagnostics
    assert "promotes a tensor in `net.py`" in one.message
    assert (str(tmp_path / "net.py"), 12) in [
        (link.filename, link.start.row) for link in one.evidence if link.start is not None
    ]


@pytest.fixture
def widening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with one finding in ``table.py``, which is at ``net.py`` where that is not looked at."""
    made, used = "torch.from_numpy(np.linspace(0, 1, 8))", "self.b(table() * x)"
    root = tmp_path / "project"
    projects.write(root, {"table.py": TABLE.format(made=made), "net.py": WIDENED.format(used=used)})
    monkeypatch.chdir(root)
    return root


def test_both_ends_are_kept_in_the_cache(widening: Path) -> None:
    for _ in range(2):
        result = projects.check(widening, cache_dir=widening / "cache")
        assert found(result) == ["table.py:6 MP402"]
    alone = projects.check(widening / "net.py", cache_dir=widening / "cache")
    assert found(alone) == ["net.py:12 MP402"]


@pytest.mark.parametrize("name", ["table.py", "net.py"])
def test_a_baseline_holds_both_ends(widening: Path, name: str) -> None:
    assert cli.main(["check", "--isolated", "-n", name]) == 1
    assert cli.main(["baseline", "create", "."]) == 0
    assert cli.main(["check", "-n", "--baseline", "precision-lint-baseline.json", name]) == 0


@pytest.mark.parametrize("name", ["table.py", "net.py"])
def test_comments_silence_both_ends(widening: Path, name: str) -> None:
    assert cli.main(["check", "-n", name]) == 1
    assert cli.main(["check", "-n", "--add-noqa=meant", "."]) == 0
    assert cli.main(["check", "-n", name]) == 0 == cli.main(["check", "-n", "."])


def test_a_cause_that_is_silenced_fails_no_run(widening: Path) -> None:
    text = (widening / "table.py").read_text().rstrip()
    (widening / "table.py").write_text(f"{text}  # precision-lint: ignore[MP402] meant\n")
    assert cli.main(["check", "-n", "."]) == 0
    assert cli.main(["check", "-n", "net.py"]) == 1, "the comment is not looked at"


def test_a_cause_that_is_mended_leaves_no_other_end(
    widening: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["check", "-n", "--fix", "--unsafe-fixes", "."]) == 0
    assert "(1 fixed, 0 remaining)" in capsys.readouterr().out
    assert ".float()" in (widening / "table.py").read_text()


def test_a_branch_brings_neither_end(widening: Path) -> None:
    git("init", "-q")
    commit()
    git("switch", "-qc", "topic")
    text = (widening / "net.py").read_text()
    (widening / "net.py").write_text(text + "\n\nmore = 1\n")
    commit()
    assert cli.main(["check", "-n", "--since", "main"]) == 0


@pytest.mark.parametrize("order", [("a", "b"), ("b", "a")])
def test_two_files_that_make_what_one_operation_widens(
    tmp_path: Path, order: tuple[str, str]
) -> None:
    """What stands in a file is what that file makes, whichever way to the operation is the surest."""
    meet = "def meet(x, table):\n    return x * table\n"
    made = "import torch\n\n{above}TABLE = torch.full((8,), 0.5)\n"
    run = (
        "import torch\nfrom a import TABLE as a\nfrom b import TABLE as b\nfrom meet import meet\n\n\n"
        "def run(x, low=torch.float16):\n"
        f"    return meet(x.to(low), {order[0]}), meet(x.half(), {order[1]})\n"
    )
    files = {"a.py": made.format(above=""), "b.py": made.format(above="\n\n"), "meet.py": meet}
    projects.write(tmp_path, {**files, "run.py": run})
    rows = {"a": 3, "b": 5}
    (one,) = projects.check(tmp_path).diagnostics
    place = Path(one.filename).name, one.start.row, one.start.column
    assert place == (f"{order[0]}.py", rows[order[0]], len("TABLE = ") + 1)


def test_a_device_that_another_file_names(tmp_path: Path) -> None:
    """One finding where the text is made, not one at each region that it is given to."""
    named = "import torch\n\n\ndef settings(device):\n    return {made}, torch.float16\n"
    use = (
        "import torch\nfrom named import settings\n\n\ndef {name}(net, x):\n"
        "    kind, dtype = settings(x.device)\n    with torch.autocast(kind, dtype=dtype):\n"
        "        return net(x)\n"
    )
    users = {f"{name}.py": use.format(name=name) for name in ("encode", "decode")}
    projects.write(tmp_path, {**users, "named.py": named.format(made="str(device)")})
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires = torch>=2.1\n")
    assert check(tmp_path) == ["named.py:5 MP210"]
    assert check(tmp_path, "encode.py") == ["encode.py:7 MP210"]
    projects.write(tmp_path, {"named.py": named.format(made="device.type")})
    assert check(tmp_path) == []


def test_a_constant_that_autocast_alone_does_not_take(tmp_path: Path) -> None:
    """The call can be mended, and the text is right elsewhere: it is reported at the call."""
    constant = "import torch\n\nDEVICE = 'cuda:0'\n"
    run = (
        "import torch\nfrom constant import DEVICE\n\n\ndef run(net, x):\n"
        "    with torch.autocast(DEVICE, dtype=torch.float16):\n        return net(x.to(DEVICE))\n"
    )
    projects.write(tmp_path, {"constant.py": constant, "run.py": run})
    (tmp_path / "setup.cfg").write_text("[options]\ninstall_requires = torch>=2.1\n")
    assert check(tmp_path) == ["run.py:6 MP210"], "the call can be mended, the text is right"


def test_half_weights_are_about_files_that_are_named(tmp_path: Path) -> None:
    """Who casts a model that it loads says nothing of the models that a file which it imports imports."""
    net = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.fc = nn.Linear(8, 8)\n\n"
        "    def forward(self, x):\n        pad = torch.zeros(1, 8, device=x.device)\n"
        "        return self.fc(torch.cat([pad, self.fc(x)]))\n"
    )
    between = "from net import Net\n\n\ndef build():\n    return Net\n"
    runs = (
        "import torch\n{imported}\n\n\ndef evaluate(model, loader):\n    model = model.half().eval()\n"
        "    for x in loader:\n        print(model(x.half()).shape)\n"
    )
    near, far = runs.format(imported="import net"), runs.format(imported="import between")
    projects.write(tmp_path, {"net.py": net, "between.py": between, "runs.py": near})
    assert check(tmp_path) == ["net.py:11 MP401"]
    projects.write(tmp_path, {"runs.py": far})
    assert check(tmp_path) == []
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["net.py:11 MP401"]


def test_what_an_unknown_model_gives_in_a_file_without_a_region(tmp_path: Path) -> None:
    """Where another file opens the region, and nobody states the mode, that it is half is only possible."""
    root = (
        "import torch\nfrom torch import nn\n\n\nclass Root(nn.Module):\n    def forward(self, net, x):\n"
        "        return torch.sqrt(net(x).clamp(min=1e-8)).mean()\n"
    )
    train = (
        "import torch\nfrom root import Root\n\n\ndef train(model, loader, optimizer, scaler):\n"
        "    for x in loader:\n        with torch.autocast('cuda', dtype=torch.float16):\n"
        "            loss = model(x).mean()\n        scaler.scale(loss).backward()\n"
        "        scaler.step(optimizer)\n        scaler.update()\n"
    )
    projects.write(tmp_path, {"root.py": root, "train.py": train})
    assert check(tmp_path) == []
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["root.py:7 MP306"]
    stated = Overrides(no_cache=True, precision=("amp-float16",))
    result = runner.check([tmp_path], Resolver(stated, isolated=True))
    assert found(result) == ["root.py:7 MP306"]


def test_what_is_used_as_complex_is_cast_by_no_mode(tmp_path: Path) -> None:
    text = "import torch\n\n\ndef whiten(c):\n    return torch.linalg.inv(c), c{part}.sum(-1)\n"
    projects.write(tmp_path, {"whiten.py": text.format(part="")})
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["whiten.py:5 MP505"]
    projects.write(tmp_path, {"whiten.py": text.format(part=".real")})
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == []


def test_what_is_loaded_is_data(tmp_path: Path) -> None:
    """It has the dtype of data in a file: float32, or that of the model that it is given to."""
    grid = (
        "import torch\nfrom torch import nn\n\n\nclass Grid(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.encode = nn.Linear(9, 32)\n\n"
        "    def forward(self, points, where):\n        rows = self.encode(points)\n"
        "        grid = torch.zeros(512, 32, dtype=torch.float32)\n"
        "        grid[where.long()] = rows\n        return grid\n"
    )
    run = (
        "import sys\nimport torch\nfrom grid import Grid\n\nhalf = '--half' in sys.argv\n"
        "net = Grid().cuda()\nif half:\n    net = net.half()\n"
        "for frame in torch.load('frames.pt'):\n    points = frame['points'].cuda()\n"
        "    if half:\n        points = points.half()\n    net(points, frame['where'].cuda())\n"
    )
    projects.write(tmp_path, {"grid.py": grid, "run.py": run})
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["grid.py:13 MP503"]


def test_arrays_that_another_file_keeps(tmp_path: Path) -> None:
    """Its constructor says nothing of torch, and what the arrays are filled with nothing of their dtype."""
    kept = (
        "import numpy as np\nimport torch\n\n\nclass Replay:\n"
        "    def __init__(self, capacity, size):\n"
        "        self.seen, self.next = np.zeros((capacity, size){dtype}), np.zeros(capacity)\n"
        "        self.number, self.rng = 0, np.random.default_rng(0)\n"
        "        self.filled = 0\n        self.full = False\n        self.capacity = capacity\n"
        "        self.size = size\n        self.seed = 0\n\n"
        "    def add(self, seen, following):\n        i = self.number\n"
        "        self.seen[i], self.next[i] = seen, following\n        self.number = i + 1\n\n"
        "    def sample(self, count):\n        rows = self.rng.integers(0, self.number, count)\n"
        "        return {{'seen': torch.from_numpy(self.seen[rows]).cuda()}}\n"
    )
    learn = (
        "import torch\nfrom torch import nn\nfrom kept import Replay\n\n\nclass Agent:\n"
        "    def __init__(self, size):\n        self.net = nn.Sequential(nn.Linear(size, 8), nn.ReLU())\n"
        "        self.replay = Replay(1000, size)\n\n"
        "    def learn(self):\n        batch = self.replay.sample(32)\n"
        "        with torch.autocast('cuda', dtype=torch.float16):\n"
        "            return self.net(batch['seen']).mean()\n"
    )
    projects.write(tmp_path, {"kept.py": kept.format(dtype=""), "learn.py": learn})
    assert check(tmp_path) == ["learn.py:14 MP402"]
    narrow = kept.format(dtype=", dtype=np.float32")
    projects.write(tmp_path, {"kept.py": narrow, "learn.py": learn})
    assert check(tmp_path) == []


def test_a_scaler_that_another_file_makes(tmp_path: Path) -> None:
    made = (
        "import torch\n\n\ndef prepare(model):\n"
        "    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)\n"
        "    return optimizer, torch.amp.GradScaler('cuda')\n"
    )
    train = (
        "import torch\nfrom made import prepare\n\n\ndef main(model, batches):\n"
        "    optimizer, scaler = prepare(model)\n    for x in batches:\n"
        "        with torch.autocast('cuda', dtype=torch.bfloat16):\n"
        "            loss = model(x).square().mean()\n        scaler.scale(loss).backward()\n"
        "        scaler.step(optimizer)\n        scaler.update()\n        optimizer.zero_grad()\n"
    )
    projects.write(tmp_path, {"made.py": made, "train.py": train})
    assert check(tmp_path) == ["made.py:6 MP112"]
    projects.write(tmp_path, {"train.py": train.replace("bfloat16", "float16")})
    assert "made.py:6 MP112" not in check(tmp_path)


def test_another_project_says_nothing(tmp_path: Path) -> None:
    train = f"import torch\nfrom loss import loss\n\n\n{STEP.format(call='loss(model(x).half())')}"
    projects.write(tmp_path / "a", {"loss.py": LOSS})
    projects.write(tmp_path / "b", {"loss.py": LOSS, "train.py": train})
    assert check(tmp_path / "a") == []
    assert check(tmp_path) == FLAGGED
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == FLAGGED * 2


def test_evidence_names_files_as_a_report_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = f"import torch\nfrom loss import loss\n\n\n{STEP.format(call='loss(model(x).half())')}"
    projects.write(tmp_path / "p", {"loss.py": LOSS, "train.py": train})
    monkeypatch.chdir(tmp_path)
    (one,) = projects.check(Path("p")).diagnostics
    assert one.filename == str(Path("p/loss.py"))
    assert {link.filename for link in one.evidence} == {None, str(Path("p/train.py"))}
    monkeypatch.chdir(tmp_path / "p")
    (one,) = projects.check(Path("loss.py")).diagnostics
    assert {link.filename for link in one.evidence} == {None, "train.py"}


def test_standard_input_stands_for_its_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = f"import torch\nfrom loss import loss\n\n\n{STEP.format(call='loss(model(x).half())')}"
    projects.write(tmp_path, {"loss.py": "", "train.py": train})
    monkeypatch.chdir(tmp_path)
    resolver = Resolver(Overrides(no_cache=True), isolated=True)
    assert found(runner.check_stdin(LOSS.encode(), Path("loss.py"), resolver)) == FLAGGED
    assert found(runner.check_stdin(LOSS.encode(), Path("other.py"), resolver)) == []


def test_a_fix_is_judged_again_from_all_callers(tmp_path: Path) -> None:
    train = f"import torch\nfrom loss import loss\n\n\n{STEP.format(call='loss(model(x).half())')}"
    projects.write(tmp_path, {"loss.py": LOSS, "train.py": train})
    resolver = Resolver(Overrides(no_cache=True), isolated=True)
    result = runner.check([tmp_path], resolver, mode=Mode.FIX, workers=1)
    assert [one.code for one in result.fixed] == ["MP301"]
    assert result.diagnostics == []
    assert (tmp_path / "loss.py").read_text() == LOSS.replace("x.sigmoid", "x.float().sigmoid")
    assert check(tmp_path) == []


def test_files_that_import_each_other(tmp_path: Path) -> None:
    train = f"import torch\nfrom loss import loss\n\n\n{STEP.format(call='loss(model(x).half())')}"
    projects.write(tmp_path, {"loss.py": f"from train import step\n{LOSS}", "train.py": train})
    assert check(tmp_path) == ["loss.py:7 MP301"]


def test_a_file_on_which_the_interpreter_fails_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.write(tmp_path, {"loss.py": LOSS, "other.py": "import torch\n"})
    real = Engine.facts

    def facts(engine: Engine, name: str) -> object:
        if name == "other.py":
            raise KeyError("lost")
        return real(engine, name)

    monkeypatch.setattr(Engine, "facts", facts)
    result = projects.check(tmp_path, confidence=Confidence.POSSIBLE)
    assert found(result) == [*FLAGGED, "other.py:1 MP003"]
    assert "KeyError: 'lost'" in result.diagnostics[1].message
    assert result.internal


def test_settings_of_a_trainer_are_told(tmp_path: Path) -> None:
    settings = "trainer:\n  precision: 16-mixed\n"
    projects.write(tmp_path, {"loss.py": LOSS, "conf/train.yaml": settings})
    for _ in range(2):
        result = projects.check(
            tmp_path, confidence=Confidence.POSSIBLE, cache_dir=tmp_path / "cache"
        )
        (one,) = result.diagnostics
        (said,) = [link for link in one.evidence if link.filename]
        assert said.message.startswith("the project's settings say Lightning config: trainer.pre")
        assert said.start is not None and said.start.row == 2


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("conf/train.yaml", ["app/other.py", "loss.py", "other.py"]),
        ("app/conf/train.yaml", ["app/other.py", "loss.py"]),
        ("empty/train.yaml", ["app/other.py", "loss.py", "other.py"]),
        ("tools/conf/train.yaml", []),
    ],
)
def test_settings_are_for_the_code_around_them_and_what_it_imports(
    tmp_path: Path, settings: str, expected: list[str]
) -> None:
    files = {
        "loss.py": MODULE,
        "other.py": MODULE,
        "app/train.py": "import torch\nfrom loss import Loss\n",
        "app/other.py": MODULE,
        "tools/look.py": "import torch\n",
        settings: "trainer:\n  precision: 16-true\n",
    }
    projects.write(tmp_path, files)
    result = projects.check(tmp_path)
    assert [str(Path(d.filename).relative_to(tmp_path)) for d in result.diagnostics] == expected


@pytest.mark.parametrize(
    ("owner", "made", "expected"),
    [
        ("nn.Module", "super().half()", []),
        ("nn.Module", "nn.Linear(2, 2).half()", []),  # a part of it, which says nothing of others
        ("nn.Module", "self.part.half()", []),
        ("Builder", "nn.Linear(2, 2).half()", []),  # what calls it is in sight, or outside
        ("Builder", TRAINED, []),  # it is called with other losses
    ],
)
def test_what_a_module_makes_half_of_itself_runs_nothing_else(
    tmp_path: Path, owner: str, made: str, expected: list[str]
) -> None:
    base = f"from torch import nn\nfrom loss import Loss\nfrom x import Builder\n\n\nclass Base({owner}):\n"
    body = f"    def half(self):\n        return {made}\n"
    projects.write(tmp_path, {"loss.py": MODULE, "base.py": base + body})
    assert check(tmp_path) == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ("", []),
        ("load(torch.float16)", []),
        ("load(torch.float16)(1).backward()", []),
        ("Loss()(load(torch.float16)(1)).backward()", FLAGGED),
    ],
)
def test_a_model_of_another_library_runs_what_is_called_with_its_output(
    tmp_path: Path, call: str, expected: list[str]
) -> None:
    loads = "import torch\nfrom transformers import AutoModel\nfrom loss import Loss\n\n\n"
    loads += "def load(dtype: torch.dtype = torch.float16):\n"
    loads += '    return AutoModel.from_pretrained("x", torch_dtype=dtype)\n'
    calls = f"\n\ndef main():\n    return {call}\n" if call else ""
    projects.write(tmp_path, {"loss.py": MODULE, "loads.py": loads + calls})
    assert check(tmp_path) == expected


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        ('Fabric(precision="16-true")', FLAGGED),
        ('AutoModel.from_config(None, torch_dtype="float16")', []),
    ],
    ids=["a runner of the project's models", "a model of the library"],
)
def test_a_runner_in_half_runs_the_models_of_the_project(
    tmp_path: Path, made: str, expected: list[str]
) -> None:
    runs = "import torch\nfrom lightning import Fabric\nfrom transformers import AutoModel\nimport loss\n\n\n"
    runs += f"def main():\n    fabric = {made}\n    return fabric\n"
    projects.write(tmp_path, {"loss.py": MODULE, "runs.py": runs})
    assert check(tmp_path) == expected


BASE = """\
import torch


class Recipe:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def step(self, batch):
        loss = self.loss(self.model(batch.float()).float())
        loss.backward()
        self.optimizer.step()
"""
HEIR = """\
import torch
from base import Recipe


class Logged(Recipe):
    def loss(self, x):
        return torch.log(x.sigmoid() + 1e-8).mean()
"""


def test_an_inherited_method_is_one_caller_of_many(tmp_path: Path) -> None:
    projects.write(tmp_path, {"base.py": BASE, "heir.py": HEIR})
    stated = Overrides(no_cache=True, precision=("float16",))
    result = runner.check([tmp_path], Resolver(stated, isolated=True))
    assert found(result) == ["heir.py:7 MP301"], "another caller may hand it half"


TRAINS = (
    "import torch\n{imports}\n\n\ndef run(model, x):\n"
    "    with torch.autocast('cuda', dtype=torch.float16):\n        y = model(x)\n    y.backward()\n"
)
SHARED = (
    f"{LOSS}\n\ndef report(x):\n    return loss(x)\n\n\n"
    "class Loss(torch.nn.Module):\n    def forward(self, x):\n        return loss(x)\n"
)
SCALES = (
    "import torch\n{imports}\n\n\ndef step(x, optimizer):\n    scaler = torch.amp.GradScaler()\n"
    "    scaler.scale(x).backward()\n    scaler.step(optimizer)\n    scaler.update()\n"
)
RUNS = TRAINS.replace("    y.backward()\n", "    return y\n")


@pytest.mark.parametrize(
    ("loss", "code", "expected"),
    [
        (MODULE, TRAINS, FLAGGED),  # a module is run by what trains
        (MODULE, RUNS, []),  # by other code, what it calls
        (LOSS, TRAINS, []),  # a function that nobody calls
        (SHARED, TRAINS, FLAGGED),  # one that a module calls as well as another function
        (MODULE, SCALES, []),  # a scaler runs nothing
    ],
    ids=["a module", "of code that does not train", "a function", "a shared function", "a scaler"],
)
def test_what_trains_runs_modules_that_it_imports(
    tmp_path: Path, loss: str, code: str, expected: list[str]
) -> None:
    projects.write(tmp_path, {"loss.py": loss, "run.py": code.format(imports="import loss")})
    assert check(tmp_path) == expected


EXPORTS = """import torch
import loss


class Whole(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x):
        return self.model(x)


def export(model, x):
    whole = {made}{ready}
    whole = whole.half()
    {run}
"""


@pytest.mark.parametrize(
    ("made", "ready", "run", "expected"),
    [
        ("Whole(model)", ".eval()", "return whole(x)", []),
        ("model", ".eval()", "return [whole(one) for one in x]", []),
        ("model", ".eval()", "for one in x: whole(one)", FLAGGED),
        ("model", "", "for one in x: whole(one)", []),
    ],
    ids=["built here", "exported here", "evaluated here", "handed on"],
)
def test_a_model_that_is_cast_says_nothing_of_other_modules(
    tmp_path: Path, made: str, ready: str, run: str, expected: list[str]
) -> None:
    text = EXPORTS.format(made=made, ready=ready, run=run)
    projects.write(tmp_path, {"loss.py": MODULE, "export.py": text})
    assert check(tmp_path) == expected


@pytest.mark.parametrize(("name", "expected"), [("run.py", ["run.py:12 MP202"]), ("gap.py", [])])
def test_an_upcast_speaks_of_a_region_around_it_beside_one_only(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    run = TRAINS.format(imports="")
    gap = "\n\ndef gap(a, b):\n    return (a.float() @ b.float()).sum()\n"
    texts = {"run.py": run, "gap.py": "import torch\n"}
    texts[name] += gap
    projects.write(tmp_path, texts)
    assert [one for one in check(tmp_path) if "MP202" in one] == expected


@pytest.mark.parametrize(("name", "expected"), [("main.py", FLAGGED), ("test_main.py", [])])
def test_a_program_that_imports_both_hands_one_to_the_other(
    tmp_path: Path, name: str, expected: list[str]
) -> None:
    use = "import torch\nimport loss\n"
    files = {"loss.py": MODULE, "run.py": TRAINS.format(imports=""), "use.py": use}
    projects.write(tmp_path, {**files, name: "import torch\nimport use\nimport run\n"})
    assert check(tmp_path) == expected
    assert check(tmp_path, "loss.py") == expected


@pytest.mark.parametrize(
    ("name", "expected"), [("engine.py", FLAGGED), ("tests/engine.py", []), ("test_engine.py", [])]
)
def test_tests_say_nothing_of_the_rest(tmp_path: Path, name: str, expected: list[str]) -> None:
    projects.write(
        tmp_path, {"loss.py": MODULE, name: TRAINS.format(imports="from loss import Loss")}
    )
    assert check(tmp_path) == expected


@pytest.mark.parametrize(
    ("settings", "expected"),
    [("pkg/conf/train.yaml", True), ("conf/train.yaml", True), ("other/conf/train.yaml", False)],
)
def test_settings_in_a_package_are_about_that_package(
    tmp_path: Path, settings: str, expected: bool
) -> None:
    files = {
        "pkg/__init__.py": "from . import loss\n",
        "pkg/loss.py": MODULE,
        "other/__init__.py": "",
    }
    projects.write(tmp_path, {**files, settings: "trainer:\n  precision: 16-mixed\n"})
    assert check(tmp_path) == (FLAGGED if expected else [])


def test_what_is_imported_on_the_way_is_no_part_of_a_module() -> None:
    """The top level of a file is no method of a module, whichever function asks for it first."""
    top = "import torch\nx = torch.log(torch.randn(3).half().relu() + 1e-8)\n"
    late = MODULE.replace("        return", "        from top import x as y\n        return y *")
    texts = {"loss.py": late, "top.py": top}
    sources = {name: decode(text.encode(), name) for name, text in texts.items()}
    assert all(isinstance(one, Source) for one in sources.values())
    facts = Engine(Code(Path(), set(texts), (None, None), sources)).facts("loss.py")  # type: ignore[arg-type]
    events = {path: merged([text]) for path, text in facts.events.items()}
    roots = {v.root: v.of_module for found in events.values() for e in found for v in e.variants}
    assert roots == {("loss.py", "Loss.forward"): True, ("top.py", ""): False}


@pytest.mark.parametrize("kind", ["norm-by-hand", "half-scaled-loss"])
def test_losses_and_terms_that_a_function_is_given_are_float32_under_autocast(kind: str) -> None:
    place, root = Place("loss.py", 6, 11, 6, 30), ("loss.py", "loss")
    here = Force({1: (Strength.FILE, None), 3: (Strength.FILE, None)})
    stated = here.under(("amp-float16", "float16"))
    for mode, sure in ((1, Confidence.POSSIBLE), (3, Confidence.LIKELY)):
        variant = Variant(1 << mode, assume.INPUT, root, of_module=True)
        verdict = judge(Event(kind, place, "loss", {}, [variant]), stated, Callers())
        assert verdict is not None
        assert verdict.confidence is sure, mode


def test_who_does_not_come_to_a_function_says_nothing_of_it() -> None:
    """What calls ``train`` and is not followed as far as ``loss`` takes nothing back that ``train`` shows."""
    train, loss = ("train.py", "train"), ("loss.py", "loss")
    place = Place("loss.py", 6, 11, 6, 30)
    event = Event("log-guard", place, "loss", {}, [Variant(1 << 3, 0, train)])
    near, far = frozenset({loss}), frozenset({train})
    stated = Force({}).under(("float16",))
    assert judge(event, stated, Callers((near, far))) is not None
    assert judge(event, stated, Callers((near | far,))) is None


FORWARD = """
import torch
from torch import nn


class Weighted(nn.Module):
    def forward(self, x):
        return {result}
"""
RUNS = """
import net
import torch


def train(name, loader):
    model = getattr(net, name)().cuda()
    scaler = torch.amp.GradScaler()
    for batch in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch)
        scaler.scale(loss).backward()
"""
LARGE = "((x @ x.transpose(-2, -1)) * 0.125).softmax(-1)"
SMALL = "torch.log(x.sigmoid() + 1e-8)"


def test_large_values_are_believed_where_they_are_seen_to_run_in_half(tmp_path: Path) -> None:
    """Elsewhere only what needs no large values shows by default."""
    projects.write(tmp_path, {"net.py": FORWARD.format(result=LARGE), "train.py": RUNS})
    assert check(tmp_path) == []
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["net.py:8 MP208"]
    here = f"{FORWARD.format(result=LARGE)}\n\nmodel = Weighted().half()\n"
    projects.write(tmp_path, {"net.py": here})
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["net.py:8 MP208"]
    projects.write(tmp_path, {"net.py": FORWARD.format(result=SMALL)})
    assert check(tmp_path) == ["net.py:8 MP301"]


def test_large_values_of_a_module_that_is_handed_on_are_a_guess_too_many(tmp_path: Path) -> None:
    """Nothing imports the module, and something trains a model that it is given."""
    handed = RUNS.replace("import net\n", "").replace("getattr(net, name)()", "name()")
    projects.write(tmp_path, {"net.py": FORWARD.format(result=LARGE), "train.py": handed})
    assert check(tmp_path) == []
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == ["net.py:8 MP208"]
    projects.write(tmp_path, {"net.py": FORWARD.format(result=SMALL)})
    assert check(tmp_path) == ["net.py:8 MP301"]


def test_tests_do_not_run_as_the_code_beside_them(tmp_path: Path) -> None:
    net = FORWARD.format(result=SMALL)
    projects.write(tmp_path, {"tests/test_net.py": net, "net.py": net, "train.py": RUNS})
    assert check(tmp_path) == ["net.py:8 MP301"]


def test_a_method_that_is_named_like_a_keyword_of_its_class(tmp_path: Path) -> None:
    made = "from other import Table\n\nimport torch\n\n\ndef run():\n    table = Table(width=3)\n"
    projects.write(tmp_path, {"a.py": f"{made}    return table.width() + torch.ones(3)\n"})
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == []


KERNEL = """\
import torch


def spread(metric):
    steps = torch.arange(3).float()
    return metric @ steps
"""
DOUBLE = """\
import torch

from kernel import spread


def main():
    return spread(torch.eye(3, dtype=torch.float64))
"""


def test_a_message_names_the_dtypes_of_the_way_that_counts(tmp_path: Path) -> None:
    """Of a caller that is sure, not those of the first that was looked at."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "run.py").write_text(DOUBLE)
    (found,) = lint_paths([tmp_path], select=["MP502"])
    assert found.message.startswith("`steps` is float32 and `metric` is float64")


def test_a_message_names_the_other_half(tmp_path: Path) -> None:
    """Of two half types both are named, also where the mode is bfloat16."""
    text = (
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.head = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        return self.head(x.half())\n"
    )
    (tmp_path / "net.py").write_text(text)
    (found,) = lint_paths([tmp_path], select=["MP502"], precision=["bfloat16"])
    assert found.message.startswith("`x.half()` is float16 and the weight is bfloat16")


@pytest.mark.parametrize(
    ("imports", "call", "reached"),
    [
        ("import shapes.parts", "shapes.parts", "parts.py"),
        ("import shapes.parts as p", "p", "parts.py"),
        ("from shapes import parts", "parts", "parts.py"),
        ("import shapes.inner.deep", "shapes.inner.deep", "deep.py"),
    ],
)
def test_a_file_is_reached_through_its_package(
    tmp_path: Path, imports: str, call: str, reached: str
) -> None:
    (tmp_path / "shapes/inner").mkdir(parents=True)
    for package in ("shapes", "shapes/inner"):
        (tmp_path / package / "__init__.py").write_text("")
    for name in ("shapes/parts.py", "shapes/inner/deep.py"):
        (tmp_path / name).write_text(KERNEL)
    text = DOUBLE.replace("from kernel import spread", imports)
    (tmp_path / "run.py").write_text(text.replace("return spread", f"return {call}.spread"))
    found = lint_paths([tmp_path], select=["MP502"])
    assert [Path(one.filename).name for one in found] == [reached]


def test_no_safe_fix_makes_a_caller_in_another_file_raise(tmp_path: Path) -> None:
    gate = (
        "import torch\n\n\ndef gate(h):\n    g = torch.sigmoid(h)\n"
        "    return g, -(g * torch.log(g + 1e-8)).mean()\n"
    )
    net = (
        "import torch\nfrom torch import nn\n\nfrom gating import gate\n\n\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        g, entropy = gate(self.a(x))\n"
        "        return {used}, entropy\n\n\n"
        "def main(x):\n    return Net().half()(x.half())\n"
    )
    (tmp_path / "gating.py").write_text(gate)
    (tmp_path / "net.py").write_text(net.replace("{used}", "self.b(g)"))
    stated = Overrides(no_cache=True, select=("MP301",))
    result = runner.check([tmp_path], Resolver(stated, isolated=True), mode=Mode.FIX)
    assert [one.code for one in result.diagnostics] == ["MP301"]
    assert (tmp_path / "gating.py").read_text() == gate
    (tmp_path / "net.py").write_text(net.replace("{used}", "self.b(g.half())"))
    runner.check([tmp_path], Resolver(stated, isolated=True), mode=Mode.FIX)
    assert (tmp_path / "gating.py").read_text() != gate


LOOP = """\
import torch
from torch import nn


def train(loader{parameter}):
    {model}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cuda")
    for x, y in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype=torch.float16):
            loss = nn.functional.mse_loss(model(x).float(), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
"""
ENCODER = """\
import torch
from torch import nn


class Encoder(nn.Module):
    def forward(self, x):
        steps = torch.arange(x.shape[1], device=x.device, dtype=torch.float32)
        rates = 1.0 / 10000 ** (torch.arange(8, device=x.device) / 8)
        return torch.einsum("n,d->nd", steps, rates).sin()
"""


def test_a_region_around_what_is_known_is_around_nothing_else(tmp_path: Path) -> None:
    known = LOOP.format(parameter="", model="model = nn.Linear(4, 4)")
    projects.write(tmp_path, {"train.py": known, "other.py": ENCODER})
    assert check(tmp_path) == []
    handed = LOOP.format(parameter=", build", model="model = build(loader)")
    projects.write(tmp_path, {"train.py": handed, "other.py": ENCODER})
    assert check(tmp_path) == ["other.py:9 MP405"]
    helper = known.replace("model(x).float()", "run(model, x, loader).float()")
    unseen = "\n\ndef run(model, x, loader):\n    return loader.hook(model(x))\n"
    projects.write(tmp_path, {"train.py": helper + unseen})
    assert check(tmp_path) == ["other.py:9 MP405"], "a helper calls what nobody saw"


HOOK = (
    "import pytorch_lightning as pl\n\n\nclass Watch(pl.Callback):\n"
    "    def {name}(self, trainer, module):\n"
    "        module.log('n', sum(p.grad.norm() for p in module.parameters()))\n"
)
FIT = (
    "import pytorch_lightning as pl\nfrom hooks import Watch\n\n\ndef run(module, loader):\n"
    "    pl.Trainer(precision={precision}, callbacks=[Watch()]).fit(module, loader)\n"
)


def test_a_framework_calls_hooks_of_other_files(tmp_path: Path) -> None:
    """Gradients are scaled between Lightning's backward and its own unscaling, in float16 alone."""
    hooks = HOOK.format(name="on_after_backward")
    projects.write(tmp_path, {"hooks.py": hooks, "fit.py": FIT.format(precision="'16-mixed'")})
    assert set(check(tmp_path)) == {"hooks.py:6 MP101"}
    projects.write(tmp_path, {"fit.py": FIT.format(precision="'bf16-mixed'")})
    assert check(tmp_path) == []
    later = HOOK.format(name="on_before_zero_grad")
    projects.write(tmp_path, {"hooks.py": later, "fit.py": FIT.format(precision="'16-mixed'")})
    assert check(tmp_path) == []


OWN_LOSS = (
    "from transformers import Trainer\nfrom loss import loss\n\n\nclass Own(Trainer):\n"
    "    def compute_loss(self, model, inputs, return_outputs=False):\n"
    "        return loss(model(**inputs).logits)\n"
)
TRAINED_BY = (
    "from torch import nn\nfrom transformers import TrainingArguments\nfrom own import Own\n\n\n"
    "def main(data, model):\n    args = TrainingArguments('out', {setting})\n"
    "    Own(model=model, args=args, train_dataset=data).{method}()\n"
)


def test_the_trainer_of_transformers_runs_a_loss(tmp_path: Path) -> None:
    """``compute_loss`` runs in the region that the arguments ask for, wherever its parts are."""
    files = {"loss.py": LOSS, "own.py": OWN_LOSS}
    main = TRAINED_BY.format(setting="fp16=True", method="train")
    projects.write(tmp_path, {**files, "main.py": main})
    assert check(tmp_path) == FLAGGED
    for setting, method in (("fp16=False", "train"), ("fp16=True", "push_to_hub")):
        main = TRAINED_BY.format(setting=setting, method=method)
        projects.write(tmp_path, {**files, "main.py": main})
        assert check(tmp_path) == [], (setting, method)


LISTENER = """\
import torch
from torch import nn


class Listener(nn.Module):
    def __init__(self, extractor, encoder):
        super().__init__()
        self.extractor = extractor
        self.encoder = encoder

    def forward(self, sound):
        made = self.extractor(sound, sampling_rate=16000, return_tensors="pt")
        return self.encoder(made.input_features)
"""
LISTENS = """\
import torch
import listener


def evaluate(model, loader):
    model = model.half().eval()
    for x in loader:
        print(model(x.half()).shape)
"""


def test_guesses_of_several_things_are_too_many(tmp_path: Path) -> None:
    """What a library gives and what weights are, where only another file shows that some model is half."""
    projects.write(tmp_path, {"listener.py": LISTENER, "run.py": LISTENS})
    flagged = ["listener.py:13 MP502"]
    assert check(tmp_path) == []
    assert check(tmp_path, confidence=Confidence.POSSIBLE) == flagged
    stated = Overrides(no_cache=True, precision=("float16",))
    assert found(runner.check([tmp_path], Resolver(stated, isolated=True))) == flagged


ARCH = (
    "import torch\n\n\nclass Arch(torch.nn.Module):\n    def __init__(self, on):\n        super().__init__()\n"
    "        self.scaler = torch.amp.GradScaler('cuda') if on else None\n"
    "        self.net = torch.nn.Linear(8, 8)\n\n"
    "    def learn(self, x):\n        loss = self.net(x).mean()\n        if {scales}:\n"
    "            self.scaler.scale(loss).backward()\n        else:\n            loss.backward()\n"
)
LEARN = (
    "import torch\nfrom arch import Arch\n\n\ndef train(model, loader):\n"
    "    scaler, optimizer = model.scaler, torch.optim.AdamW(model.parameters())\n"
    "    for x in loader:\n        optimizer.zero_grad()\n        model.learn(x)\n"
    "        if {steps}:\n            scaler.step(optimizer)\n            scaler.update()\n"
    "        else:\n            optimizer.step()\n\n\n"
    "def main(on, loader):\n    train(Arch(on), loader)\n"
)


@pytest.mark.parametrize("steps", ["scaler is not None", "scaler", "not scaler is None"])
@pytest.mark.parametrize(
    "scales", ["self.scaler is not None", "self.scaler", "self.scaler and self.training"]
)
def test_a_scaler_that_may_be_none(tmp_path: Path, scales: str, steps: str) -> None:
    """On a way on which it is None nothing is divided by its scale, by whatever name it is asked."""
    files = {"arch.py": ARCH.format(scales=scales), "learn.py": LEARN.format(steps=steps)}
    projects.write(tmp_path, files)
    assert check(tmp_path) == (["arch.py:15 MP105"] if "training" in scales else [])
