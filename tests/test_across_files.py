"""Whole projects: what one file says of another decides about findings."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from precision_lint import runner
from precision_lint.api import Confidence, Diagnostic
from precision_lint.config import Overrides, Resolver
from tests import projects
from tests.projects import found

ROOT = Path(__file__).parent.parent

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        return torch.cdist(x, x)


def pack(x):
    return x.to(torch.float16)
"""
FINDING = "model.py:7 MP214"


def train(manager: str, before: str = "pass", imports: str = "", call: str = "net(x)") -> str:
    return f"""\
import contextlib; from functools import partial
import torch
from model import Net
{imports}


def train(x, amp):
    net = Net()
    {before}
    with {manager}:
        return {call}
"""


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check(texts: dict[str, str], confidence: Confidence = Confidence.LIKELY) -> list[Diagnostic]:
    projects.write(Path.cwd(), texts)
    return projects.check(Path(), confidence=confidence).diagnostics


def places(diagnostics: list[Diagnostic]) -> list[str]:
    return [f"{d.filename}:{d.start.row} {d.code}" for d in diagnostics]


def links(diagnostic: Diagnostic) -> list[tuple[str | None, int, str]]:
    return [(e.filename, e.start.row if e.start else 0, e.message) for e in diagnostic.evidence]


# regions of other files


def test_enabled_decides() -> None:
    for enabled, expected in (("True", [FINDING]), ("False", []), ("amp", [FINDING])):
        manager = f"torch.autocast('cuda', dtype=torch.float16, enabled={enabled})"
        assert places(check({"model.py": MODEL, "train.py": train(manager)})) == expected


def test_enabled_decides_in_the_same_function() -> None:
    for enabled, expected in (("True", ["one.py:4 MP214"]), ("False", [])):
        text = f"""\
import torch
def train(x):
    with torch.autocast("cuda", dtype=torch.float16, enabled={enabled}):
        return torch.cdist(x, x)
def pack(x):
    return x.to(torch.float16)
"""
        assert places(check({"one.py": text})) == expected


def test_moving_the_region_keeps_the_finding_and_names_the_file() -> None:
    helper = "import torch\nfrom model import Net\n\n\ndef run(net, x):\n    return net(x)\n"
    (finding,) = check({
        "model.py": MODEL,
        "helper.py": helper,
        "train.py": train(
            "torch.autocast('cuda', dtype=torch.bfloat16)", imports="from helper import run",
            call="run(net, x)",
        ),
    })  # fmt: skip
    assert places([finding]) == [FINDING]
    assert links(finding) == [
        ("train.py", 10, "bfloat16 autocast region opened here"),
        ("train.py", 11, "run() is called here"),
        ("helper.py", 6, "Net.forward() is reached from it"),
    ]


def test_a_directory_of_its_own_is_named_from_where_the_tool_runs() -> None:
    (finding,) = check({
        "lib/net/model.py": MODEL,
        "tools/train.py": train("torch.autocast('cuda')").replace("from model", "from net.model"),
    })  # fmt: skip
    assert links(finding)[0] == (
        str(Path("tools/train.py")), 10, "float16 autocast region opened here"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("files", "reported"),
    [
        (["torch.autocast('cuda')"], True),
        (["torch.autocast('cuda')", "torch.autocast('cuda', enabled=False)"], True),
        (["torch.autocast('cuda')", "contextlib.suppress(ValueError)"], True),
        (["torch.autocast('cuda', enabled=False)"], False),
        (["torch.autocast('cuda', enabled=False)"] * 2, False),
        (["torch.autocast('cuda', dtype=torch.float32)"], False),
    ],
)
def test_several_callers(files: list[str], reported: bool) -> None:
    texts = {f"train{n}.py": train(manager) for n, manager in enumerate(files)}
    assert bool(check({"model.py": MODEL, **texts})) is reported


@pytest.mark.parametrize(
    ("manager", "before", "imports", "row"),
    [
        ("ctx", "ctx = torch.autocast('cuda') if amp else contextlib.nullcontext()", "", 10),
        ("contextlib.ExitStack() as s", "pass", "", 11),
        ("torch.no_grad(), torch.autocast('cuda')", "pass", "", 10),
        ("cast()", "pass", "def cast():\n    return torch.autocast('cuda')", 11),
        ("cast()", "cast = lambda: torch.autocast('cuda')", "", None),
        ("cast(enabled=amp)", "cast = partial(torch.autocast, 'cuda')", "", 10),
    ],
)  # fmt: skip
def test_managers(manager: str, before: str, imports: str, row: int | None) -> None:
    call = "(s.enter_context(torch.autocast('cuda')), net(x))" if " as s" in manager else "net(x)"
    text = train(manager, before, imports, call)
    if " as s" in manager:
        text = text.replace("return (s.", "s.").replace(", net(x))", "\n        return net(x)")
    findings = check({"model.py": MODEL, "train.py": text})
    assert places(findings) == [FINDING]  # the project uses autocast, whatever is known of it
    opened = "float16 autocast region opened here"
    assert (("train.py", row, opened) in links(findings[0])) is (row is not None)


@pytest.mark.parametrize(("enabled", "reported"), [("True", [FINDING]), ("False", [])])
def test_a_handler_of_accelerate_may_switch_off(enabled: str, reported: list[str]) -> None:
    for handler, before in (
        ("kwargs", f"kwargs = AutocastKwargs(enabled={enabled})"),
        (f"AutocastKwargs(enabled={enabled})", "pass"),
    ):
        text = train(f"accelerator.autocast(autocast_handler={handler})", before)
        assert places(check({"model.py": MODEL, "train.py": text})) == reported


def test_where_every_caller_is_outside_the_project_does_not_matter() -> None:
    off = train("torch.autocast('cuda', enabled=False)")
    texts = {"model.py": MODEL, "one.py": off, "two.py": off}
    texts["amp.py"] = "import torch\n\ndef f(x):\n    with torch.autocast('cuda'):\n        x()\n"
    assert check(texts) == []
    texts["two.py"] = train("contextlib.suppress(ValueError)")
    (finding,) = check(texts)
    assert links(finding)[0][0] == "amp.py"


def test_a_manager_of_another_file() -> None:
    texts = {
        "context.py": """\
import contextlib
import torch

def cast(amp):
    return torch.autocast("cuda", dtype=torch.bfloat16) if amp else contextlib.nullcontext()

@contextlib.contextmanager
def careful():
    with torch.autocast("cuda", enabled=False):
        yield
""",
        "use.py": """\
import torch
from context import careful, cast

def use(x):
    with cast(True):
        return torch.cdist(x, x)

def other(x):
    with careful():
        return torch.cdist(x, x)
""",
    }
    (finding,) = check(texts, Confidence.POSSIBLE)
    assert places([finding]) == ["use.py:6 MP214"]
    assert links(finding)[0][1:] == (5, "bfloat16 autocast region opened here")


def test_a_stored_manager() -> None:
    text = """\
import torch
from model import Net

class Trainer:
    def __init__(self):
        self.net = Net()
        self.context = torch.autocast("cuda")

    def step(self, x):
        with self.context:
            return self.net(x)
"""
    (finding,) = check({"model.py": MODEL, "trainer.py": text})
    assert links(finding)[0] == ("trainer.py", 10, "float16 autocast region opened here")


def test_decorators_of_the_caller() -> None:
    text = train("contextlib.suppress(ValueError)")
    on = text.replace("def train", "@torch.autocast('cuda')\ndef train")
    off = text.replace("def train", "@torch.autocast('cuda', enabled=False)\ndef train")
    assert places(check({"model.py": MODEL, "train.py": on})) == [FINDING]
    assert check({"model.py": MODEL, "train.py": off}) == []


def test_custom_forwards_are_outside() -> None:
    function = """\
import torch

class Function(torch.autograd.Function):
    @staticmethod
    {}
    def forward(ctx, x):
        return torch.cdist(x, x)
"""
    text = train("torch.autocast('cuda')", call="Function.apply(x)").replace("Net", "Function")
    outside = function.format(
        "@torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)"
    )
    inside = {"model.py": function.format("@torch.no_grad()"), "train.py": text}
    assert places(check(inside, Confidence.POSSIBLE)) == [FINDING]
    assert check({"model.py": outside, "train.py": text}, Confidence.POSSIBLE) == []


# values of other files

CONSTANTS = """\
import torch
SMALL = 1e-12
LARGE = 1e-2
class Config:
    small = 1e-12
    large = 1e-2
"""


@pytest.mark.parametrize(
    ("imports", "eps", "reported"),
    [
        ("from constants import SMALL", "SMALL", True),
        ("from constants import LARGE", "LARGE", False),
        ("from constants import SMALL as tiny", "tiny", True),
        ("import constants", "constants.SMALL", True),
        ("import constants", "constants.LARGE", False),
        ("import constants as c", "c.SMALL", True),
        ("from constants import Config", "Config.small", True),
        ("from constants import Config", "Config.large", False),
        ("from constants import *", "SMALL", True),
        ("from constants import *", "LARGE", False),
        ("from pkg import SMALL", "SMALL", True),
        ("import pkg", "pkg.SMALL", True),
        ("from constants import SMALL", "eps", True),
        ("from constants import LARGE", "eps", False),
        ("from constants import MISSING", "MISSING", False),
        ("from constants import SMALL, LARGE", "(SMALL + LARGE)", False),
    ],
)
def test_constants(imports: str, eps: str, reported: bool) -> None:
    default = imports.rpartition(" ")[2] if eps == "eps" else "0"
    text = f"""\
import torch
{imports}

def loss(p, eps={default}):
    terms = torch.log(p + {eps})
    return terms.mean()
"""
    texts = {
        "constants.py": CONSTANTS,
        "pkg/__init__.py": "from .inner import SMALL\n",
        "pkg/inner.py": "SMALL = 1e-12\n",
        "loss.py": text,
        "train.py": "import torch\nautocast = torch.autocast('cuda', dtype=torch.float16)\n",
    }
    assert places(check(texts)) == (["loss.py:5 MP301"] if reported else [])


@pytest.mark.parametrize(
    ("calls", "reported"),
    [
        (["Loss()"], False),
        (["Loss(eps=1e-12)"], True),
        (["Loss(1e-12)"], True),
        (["Loss(eps=SMALL)"], True),
        (["Loss(eps=1e-2)"], False),
        (["Loss(eps=1e-2)", "Loss(eps=1e-12)"], True),
    ],
)
def test_numbers_that_are_passed_to_constructors(calls: list[str], reported: bool) -> None:
    texts = {
        "loss.py": """\
import torch

class Loss(torch.nn.Module):
    def __init__(self, eps=1e-2):
        super().__init__()
        self.eps = eps

    def forward(self, p):
        return torch.log(p + self.eps)
"""
    }
    for n, call in enumerate(calls):
        texts[f"train{n}.py"] = f"""\
import torch
from loss import Loss
SMALL = 1e-12

def train(x):
    criterion = {call}
    with torch.autocast("cuda", dtype=torch.float16):
        criterion(x)
"""
    assert places(check(texts)) == (["loss.py:9 MP301"] if reported else [])


def test_a_default_counts_where_a_call_leaves_it() -> None:
    texts = {
        "loss.py": """\
import torch

class Loss(torch.nn.Module):
    def __init__(self, eps=1e-12):
        super().__init__()
        self.eps = eps

    def forward(self, p):
        return torch.log(p + self.eps)
""",
        "one.py": "import torch\nfrom loss import Loss\ndef f():\n    return Loss(eps=1e-2)\n",
        "amp.py": "import torch\nautocast = torch.autocast('cuda', dtype=torch.float16)\n",
    }
    assert check(texts) == []
    texts["two.py"] = "import torch\nfrom loss import Loss\ndef g():\n    return Loss()\n"
    assert places(check(texts)) == ["loss.py:9 MP301"]


def test_attributes_of_a_base_class() -> None:
    texts = {
        "base.py": """\
import torch

class Base(torch.nn.Module):
    large = 1e-2

    def __init__(self):
        super().__init__()
        self.small = 1e-12
""",
        "loss.py": """\
import torch
from base import Base

class Loss(Base):
    def forward(self, p):
        return torch.log(p + self.small) + torch.log(p + self.large)
""",
        "amp.py": "import torch\nautocast = torch.autocast('cuda', dtype=torch.float16)\n",
    }
    assert places(check(texts)) == ["loss.py:6 MP301"]


@pytest.mark.parametrize(
    ("passed", "reported"),
    [
        (["x.float()"], False),
        (["x.float()", "y.double()"], False),
        (["x.half()"], True),
        (["x.float()", "x.half()"], True),
    ],
)
def test_dtypes_that_are_passed(passed: list[str], reported: bool) -> None:
    texts = {
        f"use{n}.py": f"import torch\nfrom util import loss\ndef f(x, y):\n    loss({value})\n"
        for n, value in enumerate(passed)
    }
    texts["util.py"] = "import torch\ndef loss(p):\n    return torch.log(p + 1e-12)\n"
    texts["amp.py"] = "import torch\nautocast = torch.autocast('cuda', dtype=torch.float16)\n"
    findings = check(texts)
    assert bool(findings) is reported
    if reported:
        half = f"use{len(passed) - 1}.py"
        assert (half, 4, "loss() is given half tensors here") in links(findings[0])


@pytest.mark.parametrize(
    ("passed", "reported"),
    [
        (["a.sum(1)"], False),
        (["a.sum(1)", "a.softmax(1)"], False),
        (["a.sum(1)", "a @ b"], True),
        (["a.sum(1)", "a"], True),
        (["a.sum(1)"] * 4, True),  # no more are looked at
    ],
)
def test_what_autocast_makes_float32_before_it_is_passed(passed: list[str], reported: bool) -> None:
    texts = {
        f"use{n}.py": "import torch\nfrom torch import nn\nfrom util import Loss\n"
        "class Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.loss = Loss()\n    def forward(self, a, b):\n        {value}\n"
        f"        return self.loss({value}, b)\n"
        for n, value in enumerate(passed)
    }
    texts["util.py"] = """\
import torch
from torch import nn
class Loss(nn.Module):
    def forward(self, score, target):
        return -torch.log(torch.sigmoid(score) + 1e-10)
"""
    texts["amp.py"] = "import torch\nscaler = torch.amp.GradScaler()\n"
    assert bool(check(texts)) is reported


def test_a_method_of_its_own_is_no_call_of_anothers() -> None:
    text = """\
import torch
from torch import nn
class Loss(nn.Module):
    def forward(self, score, target):
        return -torch.log(torch.sigmoid(score) + 1e-10)
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.loss = Loss()
    def forward(self, a, b):
        return torch.sum(a * b, dim=1)
    def compute(self, a, b):
        return self.loss(self.forward(a, b), b)
"""
    amp = "import torch\nscaler = torch.amp.GradScaler()\n"
    assert not check({"net.py": text, "amp.py": amp})
    assert check({"net.py": text.replace("torch.sum(a * b, dim=1)", "a @ b"), "amp.py": amp})


@pytest.mark.parametrize(
    ("body", "reported"),
    [
        ("return x", True),
        ("return x.float()", False),
        ("return x.float() if x.dtype == torch.float16 else x", False),
        ("return torch.softmax(x, -1)", False),
        ("return x.clamp(min=0.1)", False),
        (
            "with torch.autocast('cuda', enabled=False):\n        return x.float() @ x.float()",
            False,
        ),
    ],
)
def test_values_that_helpers_return(body: str, reported: bool) -> None:
    texts = {
        "util.py": f"import torch\ndef helper(x):\n    {body}\n",
        "loss.py": """\
import torch
from util import helper

def loss(x):
    return torch.log(helper(x) + 1e-12)
""",
        "train.py": """\
import torch
from loss import loss

def train(x):
    with torch.autocast("cuda", dtype=torch.float16):
        loss(x)
""",
    }
    assert places(check(texts)) == (["loss.py:5 MP301"] if reported else [])


# the same verdict whatever the run

PROJECT = {
    "model.py": MODEL,
    "train.py": train("torch.autocast('cuda')"),
    "util.py": "import torch\nEPS = 1e-12\ndef helper(x):\n    return x\n",
    "loss.py": """\
import torch
from util import *

def loss(x):
    return torch.log(helper(x) + EPS)
""",
    **{
        f"chain{n}.py": f"""\
import torch
from chain{n + 1} import f{n + 1}

def f{n}(x):
    return f{n + 1}(x)

def loss{n}(x):
    return torch.log(f{n}(x) + 1e-12)
"""
        for n in range(8)
    },
    "chain8.py": "import torch\n\ndef f8(x):\n    return x.float()\n",
}


def test_a_batch_of_one_file_judges_as_the_full_run(here: Path) -> None:
    projects.write(here, PROJECT)
    whole = found(projects.check(here))
    single = [one for name in sorted(PROJECT) for one in found(projects.check(here / name))]
    assert whole == single
    assert FINDING in whole and "loss.py:5 MP301" in whole


def test_standard_input_judges_as_the_file(here: Path) -> None:
    projects.write(here, PROJECT)
    resolver = Resolver(Overrides(no_cache=True), isolated=True)
    result = runner.check_stdin(MODEL.encode(), Path("model.py"), resolver)
    assert found(result) == [FINDING]
    (finding,) = result.diagnostics
    assert links(finding)[0][0] == "train.py"
    assert found(runner.check_stdin(MODEL.encode(), None, resolver)) != []


def test_processes_judge_as_one_does(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    projects.write(here, PROJECT)
    alone = projects.check(here).diagnostics
    monkeypatch.setattr(runner, "POOL_FROM", 1)
    assert projects.check(here, workers=2).diagnostics == alone


def test_the_order_of_sets_does_not_matter(here: Path) -> None:
    projects.write(here, PROJECT)
    said = {
        subprocess.run(
            [sys.executable, "-m", "precision_lint", ".", "--output-format", "json", "--no-cache"],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT)},
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1
    assert len(json.loads(said.pop())) >= 2


# the cache


def cached(here: Path) -> list[str]:
    return found(projects.check(here, cache_dir=here / "cache"))


def test_edits_are_seen_through_a_cache(here: Path) -> None:
    manager = "torch.autocast('cuda', dtype=torch.float16)"
    projects.write(here, {"model.py": MODEL, "train.py": train(manager)})
    for enabled in (True, False, True, False):
        text = manager if enabled else manager.replace(")", ", enabled=False)")
        (here / "train.py").write_text(train(text))
        expected = [FINDING] if enabled else []
        assert cached(here) == cached(here) == found(projects.check(here)) == expected
    (here / "train.py").unlink()
    assert cached(here) == []
    (here / "loss.py").write_text(
        "import torch\nfrom util import EPS\ndef loss(p):\n    terms = torch.log(p + EPS)\n"
        "    return terms.mean()\n"
    )
    (here / "amp.py").write_text(
        "import torch\nautocast = torch.autocast('cuda', dtype=torch.float16)\n"
    )
    for eps, reported in (("1e-12", True), ("1e-2", False), ("1e-12", True)):
        (here / "util.py").write_text(f"EPS = {eps}\n")
        assert ("loss.py:4 MP301" in cached(here)) is reported


def test_no_cache_leaves_nothing(here: Path) -> None:
    projects.write(here, PROJECT)
    before = sorted(here.rglob("*"))
    projects.check(here)
    assert sorted(here.rglob("*")) == before


def run(*options: str, **settings: Any) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PRECISION_LINT_")}
    return subprocess.run(
        [sys.executable, "-m", "precision_lint", *options, "."],
        env={**environment, "PYTHONPATH": str(ROOT), **settings},
        capture_output=True,
        text=True,
    )


def test_where_the_cache_is(here: Path) -> None:
    projects.write(here, {"model.py": MODEL, "train.py": train("torch.autocast('cuda')")})
    first = run()
    assert "model.py:7" in first.stdout and first.stderr == ""
    assert (here / ".precision_lint_cache" / "facts.sqlite3").is_file()
    assert run().stdout == first.stdout
    shutil.rmtree(here / ".precision_lint_cache")
    assert run("--cache-dir", "elsewhere/deep").stdout == first.stdout
    assert (here / "elsewhere" / "deep" / "CACHEDIR.TAG").is_file()
    assert run(PRECISION_LINT_CACHE_DIR="by-variable").stdout == first.stdout
    assert (here / "by-variable").is_dir()
    assert run(PRECISION_LINT_NO_CACHE="1").stdout == run("-n").stdout == first.stdout
    assert not (here / ".precision_lint_cache").exists()


def test_python_in_the_cache_is_not_linted(here: Path) -> None:
    projects.write(here, {"model.py": MODEL, "train.py": train("torch.autocast('cuda')")})
    run()
    (here / ".precision_lint_cache" / "model.py").write_text(MODEL)
    assert run().stdout.count("MP214") == 1


@pytest.mark.parametrize("damage", ["a file", "no table", "locked"])
def test_a_cache_that_cannot_be_used_is_not_missed(here: Path, damage: str) -> None:
    projects.write(here, {"model.py": MODEL, "train.py": train("torch.autocast('cuda')")})
    table = None
    if damage == "a file":
        (here / "cache").write_text("in the way")
    else:
        cached(here)
        file = here / "cache" / "facts.sqlite3"
        if damage == "no table":
            file.write_bytes(b"not a table" * 100)
        else:
            table = sqlite3.connect(file)
            table.execute("BEGIN IMMEDIATE")
    assert cached(here) == [FINDING]
    if table is not None:
        table.close()


# files that are odd


def test_links_and_odd_names(here: Path) -> None:
    projects.write(here, {"model.py": MODEL, "train.py": train("torch.autocast('cuda')")})
    (here / "linked.py").symlink_to("train.py")
    (here / "loop").symlink_to(".")
    (here / "dangling.py").symlink_to("nowhere.py")
    assert found(projects.check(here / "model.py")) == [FINDING]
    if os.name != "nt":
        (here / os.fsdecode(b"caf\xe9.py")).write_text(MODEL)
        assert found(projects.check(here / "model.py")) == [FINDING]


def test_files_outside_of_the_root(here: Path) -> None:
    projects.write(here / "one", {"model.py": MODEL})
    projects.write(here / "two", {"train.py": train("torch.autocast('cuda')")})
    result = projects.check(here / "one", here / "two")
    assert found(result) == []  # the two projects know nothing of each other


def test_a_file_without_a_project() -> None:
    Path("alone.py").write_text(
        MODEL.replace("def forward", "@torch.autocast('cuda')\n    def forward")
    )
    result = projects.check(Path("alone.py"))
    assert found(result) == ["alone.py:8 MP214"]


def test_broken_neighbours_do_no_harm(here: Path) -> None:
    projects.write(here, {"model.py": MODEL, "train.py": train("torch.autocast('cuda')")})
    (here / "syntax.py").write_text("import torch\nfrom model import Net\ndef f(:\n")
    (here / "bytes.py").write_bytes(b"import torch\nfrom model import Net\n\xff\n")
    (here / "nul.py").write_bytes(b"import torch\n\0")
    (here / "deep.py").write_text("import torch\nx = " + "-" * 5000 + "1\n")
    codes = found(projects.check(here))
    assert FINDING in codes
    assert {one.rpartition(" ")[2] for one in codes} <= {"MP214", "MP001", "MP002"}


@pytest.mark.parametrize(
    "text",
    [
        "from model import Net\nclass Net(Net):\n    def f(self, x):\n        super().forward(x)\n",
        "from trap import trap\ndef trap(x):\n    return trap(trap(x))\n",
        "from trap import *\nfrom model import *\ndef f(x):\n    return f(Net()(x))\n",
        "import importlib as i\nm = i.import_module('model')\ndef f(x):\n    return m.Net()(x)\n",
        "def f(x):\n    return g(x)\ndef g(x):\n    return f(torch.log(g(x) + 1e-12))\n",
        "def f(x):\n    x = f\n    f = x\n    return x(f)(x)\n",
        "class A:\n    def f(self):\n        self.a = self\n        self.b = self.a.a.b.a()\n"
        "    def __call__(self, x):\n        return self.a.b(x)\n",
    ],
)
def test_traps_end_without_a_crash(text: str) -> None:
    result = check(
        {
            "model.py": MODEL,
            "train.py": train("torch.autocast('cuda')"),
            "trap.py": f"import torch\n{text}",
        },
        Confidence.POSSIBLE,
    )
    assert "MP003" not in {d.code for d in result}
    assert FINDING in places(result)


LOSS = """\
import torch
from torch import nn


class Loss(nn.Module):
    def forward(self, logits):
        return -torch.log(logits.sigmoid() + 1e-8).mean()
"""
REGION = """\
import torch


def train(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x)
"""


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        ({"lib/loss.py": LOSS, "train.py": REGION}, ["loss.py:7 MP301"]),
        ({"examples/loss.py": LOSS, "train.py": REGION}, []),
        ({"examples/loss.py": LOSS, "examples/train.py": REGION}, ["loss.py:7 MP301"]),
    ],
)
def test_an_example_is_not_told_by_other_directories(
    tmp_path: Path, texts: dict[str, str], expected: list[str]
) -> None:
    project = tmp_path / "docs"  # what is above the project's root says nothing
    projects.write(project, texts)
    assert found(projects.check(project)) == expected


def test_a_norm_that_promotes_takes_float32(tmp_path: Path) -> None:
    def text(norm: str) -> str:
        return f"""\
import torch
from torch import nn


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.{norm}(8)

    def forward(self, x):
        return self.norm(x.float()).to(x.dtype)


model = Block().half()
"""

    for norm, expected in (("LayerNorm", ["block.py:11 MP502"]), ("RMSNorm", [])):
        projects.write(tmp_path / norm, {"block.py": text(norm)})
        assert found(projects.check(tmp_path / norm)) == expected


PURE = "import torch\n\n\ndef load(net):\n    return net.half().eval()\n"
UPCAST = """\
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 8)

    def forward(self, x):
        {follows}
        return self.fc(x.float())
"""


@pytest.mark.parametrize(
    ("train", "follows", "name", "reported"),
    [
        ("", "pass", "head.py", True),
        ("scaler = torch.amp.GradScaler()", "pass", "head.py", False),
        ("scaler = torch.amp.GradScaler()", "y = torch.zeros(1, dtype=x.dtype)", "head.py", True),
        ("scaler = torch.amp.GradScaler()", "y = torch.zeros(1, dtype=x.dtype)", "loss.py", False),
    ],
)
def test_who_trains_under_autocast_shows_that_models_are_half(
    train: str, follows: str, name: str, reported: bool
) -> None:
    texts = {
        "load.py": PURE,
        name: UPCAST.format(follows=follows),
        "train.py": f"import torch\n{train}",
    }
    row = UPCAST.format(follows=follows).splitlines().index("        return self.fc(x.float())") + 1
    assert places(check(texts)) == [f"{name}:{row} MP502"] * reported


@pytest.mark.parametrize(
    "annotation", ["Frontend", "Optional[Frontend]", "'Frontend'", "Frontend | None"]
)
def test_an_annotation_names_what_is_called(annotation: str) -> None:
    texts = {
        "front.py": """\
import torch


class Frontend(torch.nn.Module):
    def forward(self, x):
        raise NotImplementedError


class Distances(Frontend):
    def forward(self, x):
        return torch.cdist(x, x)
""",
        "train.py": f"""\
from typing import Optional
import torch
from front import Frontend

scaler = torch.amp.GradScaler()


class Model(torch.nn.Module):
    def __init__(self, front: {annotation}):
        super().__init__()
        self.front = front

    def forward(self, x):
        with torch.autocast("cuda", enabled=False):
            return self.front(x)
""",
    }
    assert not places(check(texts))


def test_a_decorator_that_casts_its_inputs_leaves_autocast() -> None:
    texts = {
        "front.py": """\
import torch
from amp import in_float32


class Mel(torch.nn.Module):
    {decorator}
    def forward(self, x):
        return torch.log10(x.matmul(x).clamp(min=1e-10))
""",
        "amp.py": "import torch\nscaler = torch.amp.GradScaler()\n",
    }
    plain = {**texts, "front.py": texts["front.py"].format(decorator="")}
    cast = {
        **texts,
        "front.py": texts["front.py"].format(decorator="@in_float32(cast_inputs=torch.float32)"),
    }
    assert places(check(plain)) == ["front.py:8 MP301"]
    assert not places(check(cast))


BOX = """\
import torch


def cost(x, y):
    {line}
    return torch.cdist(x, y)
"""


@pytest.mark.parametrize("line", ["", "if x.dtype == torch.float16: x = x + 0"])
def test_cdist_in_a_function_that_looks_at_dtypes(line: str) -> None:
    texts = {
        "box.py": BOX.format(line=line or "pass"),
        "train.py": "import torch\nscaler = torch.amp.GradScaler()\nmodel = make().half()\n",
    }
    (finding,) = check(texts, Confidence.POSSIBLE)
    assert places([finding]) == ["box.py:6 MP214"]
    assert finding.confidence is (Confidence.POSSIBLE if line else Confidence.LIKELY)


@pytest.mark.parametrize("after", ["", ".mean()", ".sum()[0]", " * 2"])
def test_what_follows_a_call_does_not_hide_it(after: str) -> None:
    texts = {
        "net.py": MODEL,
        "train.py": f"""\
import torch
from net import Net


def train(model, loader, scaler, optimizer):
    net = Net()
    for x in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = net(model(x)){after}
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
""",
    }
    (found,) = check(texts)
    assert [message for _, _, message in links(found)][-1].startswith("Net.forward() is reached")


DRIVER = """\
import torch
from model import Net


class Trainer:
    def __init__(self, world_size):
        model = Net()
        if world_size > 1:
            model = torch.nn.parallel.DistributedDataParallel(model)
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), 1e-3)

    def train(self, batches):
        self.model.mark(batches)
        for batch in batches:
            self.step(batch)

    def step(self, batch):
        {before}
        with torch.autocast("cuda", dtype=torch.float16):
            loss = {inside}
        loss.backward()
        self.optimizer.step()
"""
MARKED = """\
import torch
from torch import nn


class Net(nn.Module):
    def mark(self, batches):
        return torch.cdist(batches, batches)

    def forward(self, x):
        return torch.cdist(x, x)
"""


@pytest.mark.parametrize(
    ("before", "inside", "reported"),
    [
        ("x = batch", "self.model(x).mean()", ["model.py:10 MP214"]),
        ("x = self.model(batch)", "x.mean()", []),
        ("x = batch", "self.model.mark(x).mean()", ["model.py:7 MP214", "model.py:10 MP214"]),
    ],
)
def test_what_training_runs_before_it_opens_autocast_is_outside(
    before: str, inside: str, reported: list[str]
) -> None:
    text = DRIVER.format(before=before, inside=inside)
    found = places(check({"model.py": MARKED, "train.py": text}, Confidence.POSSIBLE))
    assert [place for place in found if place.endswith("MP214")] == reported


def test_explanations_of_what_training_runs_outside() -> None:
    text = DRIVER.format(before="x = self.model(batch)", inside="x.mean()")
    program = projects.linked(model=MARKED, train=text)
    (caller,) = projects.callers(program, "model.py", "Net.forward")
    region = program.region(caller, "Net.forward")
    assert region.state == "off"
    assert [e.message for e in region.foreign] == [
        "a training step calls this before it opens autocast",
        "Net.forward() is reached from it",
    ]


@pytest.mark.parametrize(("owner", "reported"), [("layer", False), ("step", True)])
def test_a_region_of_a_layer_says_nothing_of_other_layers(owner: str, reported: bool) -> None:
    region = {
        "layer": "class A(torch.nn.Module):\n    def forward(self, x):\n"
        "        with torch.autocast('cuda'):\n            return x @ x\n",
        "step": "def step(model, x, optimizer):\n    with torch.autocast('cuda'):\n"
        "        model(x)\n    optimizer.step()\n",
    }[owner]
    pose = (
        "import torch\n\n\nclass Camera(torch.nn.Module):\n    def forward(self, x, intrinsics):\n"
        "        return x @ intrinsics\n"
    )
    found = places(check({"region.py": f"import torch\n\n\n{region}", "camera.py": pose}))
    assert found == (["camera.py:6 MP501"] if reported else [])


STEP = """\
import torch


def step(layer, x):
    amp = torch.autocast("cuda")
    with amp:
        loss = layer(x).mean()
        print(loss)
        loss.backward()
"""
WIDE = """\
import torch


@torch.autocast("cuda", enabled=False)
def correlate(x):
    return x.float().t() @ x.float()
"""
LAYER = """\
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        assert x.dtype == torch.float32
        return self.layer(x)
"""


READ = """\
import torch


def train(model, x, optimizer, scaler):
    scaler.scale(model(x).mean()).backward()
    for p in model.parameters():
        print(p.grad.norm())
    scaler.step(optimizer)
    scaler.update()
"""
CLIP = """\
import torch


def train(model, x, optimizer, scaler):
    scaler.scale(model(x).mean()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""


@pytest.mark.parametrize(
    ("text", "finding"),
    [(STEP, "9 MP211"), (LAYER, "12 MP502"), (READ, "7 MP101"), (CLIP, "6 MP102")],
)
def test_what_a_test_does_is_meant(text: str, finding: str) -> None:
    files = {"step.py": text, "tests/test_step.py": text, "wide.py": WIDE}
    assert places(check(files)) == [f"step.py:{finding}"]


GRAM = """\
from torch.autograd import Function


class Gram(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.t() @ x

    @staticmethod
    {decorator}
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return {gradient}
"""
NARROWED = "x @ (grad + grad.t())"


@pytest.mark.parametrize(
    ("files", "victim"),
    [
        ({"wide.py": WIDE}, ("wide.py", 4)),
        ({"tests/wide.py": WIDE}, None),
        ({"wide.py": WIDE.replace("False", "True")}, None),
        ({"gram.py": GRAM.format(decorator="", gradient=NARROWED)}, ("gram.py", 4)),
        ({"gram.py": GRAM.format(decorator="@custom_bwd", gradient=NARROWED)}, None),
        ({"gram.py": GRAM.format(decorator="", gradient="x * grad.sum()")}, None),
    ],
)
def test_a_backward_pass_in_a_region_names_its_victim(
    files: dict[str, str], victim: tuple[str, int] | None
) -> None:
    found = check({"step.py": STEP, **files}, Confidence.POSSIBLE)
    (step,) = (d for d in found if d.code == "MP211")
    assert step.confidence.rank >= Confidence.LIKELY.rank
    assert ("what was kept in float32" in step.message) == (victim is not None)
    named = [
        link[:2] for link in links(step) if link[2] == "its backward pass is to run in float32"
    ]
    assert named == ([victim] if victim is not None else [])


@pytest.mark.parametrize(
    ("made", "reported"),
    [
        ("Net(4)", False),
        ("Net(4, True)", True),
        ("Net(4, cube=cube)", True),
        ("Net(*sizes)", True),
        ("Net(4, **options)", True),
        ("print", True),
    ],
)
def test_branches_that_no_construction_switches_on(made: str, reported: bool) -> None:
    text = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width, cube=False):
        super().__init__()
        self.cube = cube

    def forward(self, x):
        if self.cube and x.ndim == 2:
            return torch.log(x.sigmoid() + 1e-8)
        return x


class Other(nn.Module):
    def __init__(self):
        super().__init__()
"""
    user = f"""\
import torch
from net import Net


def train(x, sizes, options, cube, optimizer):
    net = {made}
    with torch.autocast("cuda"):
        loss = net(x).mean()
    optimizer.step()
"""
    found = places(check({"net.py": text, "train.py": user}))
    assert ("net.py:12 MP301" in found) is reported


def test_a_method_may_switch_a_branch_on() -> None:
    text = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, cube=False):
        super().__init__()
        self.cube = cube

    def enable(self):
        self.cube = True

    def forward(self, x):
        if self.cube:
            return torch.log(x.sigmoid() + 1e-8)
        return x


def train(x):
    net = Net()
    with torch.autocast("cuda"):
        return net(x).mean()
"""
    assert "net.py:15 MP301" in places(check({"net.py": text}))
    assert places(check({"net.py": text.replace("self.cube = True", "pass")})) == []


@pytest.mark.parametrize(
    ("helper", "known"),
    [
        ('    return torch.autocast("cuda", dtype=torch.float16)', True),
        ('    return torch.autocast("cuda", dtype=torch.float16, enabled=False)', False),
        ("    return torch.no_grad()", False),
        ('    return torch.autocast("cuda", dtype=torch.float16)  # nested', True),
        ('    with torch.autocast("cuda", dtype=torch.float16):\n        yield', True),
        ('    torch.autocast("cuda", dtype=torch.float16)\n    yield', False),
    ],
)
def test_the_region_that_a_helper_of_another_file_opens_around_a_third_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, helper: str, known: bool
) -> None:
    decorator = "@contextlib.contextmanager\n" if "yield" in helper else ""
    texts = {
        "helpers.py": f"import contextlib\nimport torch\n\n\n{decorator}def low():\n{helper}\n",
        "core.py": "import torch\n\n\ndef pool(masks, features):\n"
        '    return torch.einsum("bnhw,bchw->bnc", masks.sigmoid(), features)\n',
        "train.py": "import torch\nfrom core import pool\nfrom helpers import low\n\n\n"
        "def go(net, x, features):\n    with low():\n        return pool(net(x), features)\n",
    }
    if "nested" in helper:
        texts["train.py"] = texts["train.py"].replace(
            "        return", "        with open(x): return"
        )
    monkeypatch.chdir(tmp_path)
    projects.write(tmp_path, texts)
    found = projects.check(Path("core.py")).diagnostics
    assert [d.code for d in found] == ["MP201"] * known
    if known:
        assert {link.filename for link in found[0].evidence} == {"helpers.py", "train.py"}
