"""After any edit a kept edition of a file says what a fresh look at the text says."""

from __future__ import annotations

import ast
import pickle
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_lint import changes, dispatch, registry, runner
from precision_lint.config import Overrides, Resolver
from precision_lint.project import hints
from precision_lint.project.amp import Project, Survey, statements
from precision_lint.project.buffers import Buffer
from precision_lint.semantics.edition import Edition
from precision_lint.semantics.index import build
from precision_lint.semantics.interp import Interpreter
from precision_lint.semantics.program import Program
from precision_lint.source import Failure, Source, parse
from tests import analysis

FIXTURES = Path(__file__).parent.parent / "fixtures"
TEXTS = (
    "mp502_matmul_dtype_mismatch/by_kind.py",
    "mp502_matmul_dtype_mismatch/apart.py",
    "mp101_unscaled_gradient_check/accumulation.py",
    "mp209_loss_in_half/behind.py",
    "mp203_autocast_disabled_without_upcast/attention.py",
    "mp310_mask_fill_overflow/attention.py",
    "mp401_dtypeless_creation/beside_weights.py",
    "mp503_index_assign_mismatch/expert_dispatch.py",
)
LINES = (
    "", "# a comment", "    # deeper", "x = 1; y = 2", "@decorated", "    value = x.half()",
    "        value = value.float() @ value", '"""', "    '''text", "x = (", ")", "else:", "\\",
    "import torch as t", "from torch import nn", "class Other(nn.Module):",
    "def other(x, scaler):", "    return torch.log(x + 1e-8)", "SCALE = 65504.0",
    "    with torch.autocast('cuda'):", "if True:", "\ttabbed = 1", "f'{x!r}'", "ä = 'ß'", "\f",
)  # fmt: skip
"""What is typed: much of it is wrong where it comes to stand."""


def edits(text: str, seed: int, count: int) -> Iterator[str]:
    """A text after one edit, after two, and so on; some are taken back, so that it stays code."""
    dice, whole = random.Random(seed), text
    for _ in range(count):
        lines = text.split("\n")
        row = dice.randrange(len(lines))
        match dice.randrange(8):
            case 0 | 1:
                lines.insert(row, dice.choice(LINES))
            case 2:
                del lines[row]
            case 3:
                lines.insert(row, lines[dice.randrange(len(lines))])
            case 4:
                place = dice.randrange(len(lines[row]) + 1)
                lines[row] = lines[row][:place] + dice.choice("ab1_ .(\"'#:") + lines[row][place:]
            case 5:
                end = row + dice.randrange(1, 8)
                lines[row:end] = [line[1:] for line in lines[row:end]]
            case 6:
                text = whole  # taken back
                lines = text.split("\n")
            case _:
                start = next((r for r in range(row, 0, -1) if lines[r][:4] == "def "), 0)
                lines.insert(start, f"def added_{row}(x):\n    return x.float()\n\n")
        text = "\n".join(lines)
        try:
            ast.parse(text)
        except SyntaxError:
            yield text
            text = whole
        whole = text if dice.random() < 0.8 else whole
        yield text


@pytest.mark.parametrize("name", TEXTS)
def test_trees_and_indexes_are_those_of_a_fresh_parse(name: str) -> None:
    edition, nodes = Edition(), {ast.With, ast.Call, ast.Return, ast.MatMult}
    for text in edits((FIXTURES / name).read_text("utf8"), len(name), 60):
        kept, fresh = edition.parse(Source(name, text)), parse(Source(name, text))
        if isinstance(fresh, Failure) or isinstance(kept, Failure):
            assert kept == fresh
            continue
        assert ast.dump(kept, include_attributes=True) == ast.dump(fresh, include_attributes=True)
        one, other = edition.index(kept, nodes), build(fresh, nodes)
        assert one.names.__dict__ == other.names.__dict__
        assert one.instances == other.instances
        assert [f.qualname for f in one.functions] == [f.qualname for f in other.functions]
        assert list(one.classes) == list(other.classes)
        for found, expected in ((one.calls, other.calls), (one.candidates, other.candidates)):
            assert {k: [_place(*e) for e in v] for k, v in found.items()} == {
                k: [_place(*e) for e in v] for k, v in expected.items()
            }


def _place(node: object, function: object) -> tuple[object, ...]:
    home = getattr(function, "node", None)
    return (
        getattr(node, "lineno", 0), getattr(node, "col_offset", 0), type(node),
        getattr(function, "qualname", ""), getattr(home, "lineno", 0),
    )  # fmt: skip


def test_unchanged_statements_keep_their_trees() -> None:
    text = "import torch\n\ndef a(x):\n    return x\n\ndef b(x):\n    return x.half()\n"
    edition = Edition()
    first = edition.parse(Source("a.py", text))
    second = edition.parse(Source("a.py", text.replace("return x\n", "y = x\n    return y\n")))
    assert isinstance(first, ast.Module)
    assert isinstance(second, ast.Module)
    assert first.body[0] is second.body[0]
    assert first.body[1] is not second.body[1]
    assert first.body[2] is second.body[2]
    assert second.body[2].lineno == 7
    edited = f"x = 1\n{text.replace('half', 'float')}".replace(
        "return x\n", "y = x\n    return y\n"
    )
    third = edition.parse(Source("a.py", edited))  # at both ends
    assert isinstance(third, ast.Module)
    assert third.body[2] is second.body[1]
    assert third.body[2].lineno == 4
    assert third.body[3] is not second.body[2]


@pytest.mark.parametrize("name", TEXTS)
def test_findings_are_those_of_a_fresh_lint(name: str) -> None:
    rules, project = list(registry.rules().values()), Project()
    edition, seen = Edition(), 0
    with runner.collector_off(), runner.deep_recursion():
        for text in edits((FIXTURES / name).read_text("utf8"), len(name) + 1, 12):
            source = Source(name, text)
            found = dispatch.lint(source, rules, project, edition=edition)
            forget_edits()
            assert found == dispatch.lint(source, rules, project)
            seen += len(found)
    assert seen


def forget_edits() -> None:
    """Have the edits of fixes made anew."""
    for kept in (changes._parsed, changes.edit, changes.under_autocast_off):
        kept.cache_clear()


LIB = """\
import torch
from torch import nn
from main import Net

class Block(nn.Module):
    def __init__(self, width, eps=1e-8):
        super().__init__()
        self.norm, self.eps = nn.LayerNorm(width), eps
        self.table = torch.arange(width) / width

    def forward(self, x):
        return scaled(self.norm(x), self.eps)

    def wide(self, x):
        return x.float()

def scaled(x, eps):
    return x / (x.norm() + eps)

def narrow(x):
    return x.half()

def run(x):
    model = Net(4).half()
    return model(narrow(x))
"""
MAIN = """\
import torch
from torch import nn
from lib import Block, narrow, scaled

LOG = torch.get_logger()
SMALL = 1e-12

class Net(Block):
    def __init__(self, width):
        super().__init__(width)
        self.inner = Block(width, SMALL)
        self.embed = nn.Embedding(8, width)

    def forward(self, x):
        y = self.inner(x)
        z = self.wide(y) @ narrow(x)
        return torch.log(self.mixed(z, y) + SMALL)

    def mixed(self, a, b):
        with torch.autocast("cuda"):
            c = torch.cdist(a, b)
        return c @ self.embed(b) + LOG

def loss(x, y):
    with torch.autocast("cuda", dtype=torch.float16):
        net = Net(4)
        given = net(x)
    return torch.sum(scaled(given, 1e-8) * y) / torch.sqrt(given.half())

def last(x, mask):
    return (narrow(x) + torch.zeros(3)).masked_fill(mask, -1e9).softmax(-1)
"""


def known(root: Path) -> tuple[Project, Program]:
    """What is known around the file ``main.py`` of a project."""
    (root / "lib.py").write_text(LIB)
    (root / "main.py").write_text(MAIN)
    settings = Resolver(Overrides(no_cache=True), None)(root)
    survey, program = runner.known_of(root, settings, [], 1)
    assert program is not None
    return survey.around(root / "main.py"), program


@pytest.mark.parametrize("seed", range(4))
def test_findings_of_a_project_are_those_of_a_fresh_lint(seed: int, tmp_path: Path) -> None:
    rules, (project, program) = list(registry.rules().values()), known(tmp_path)
    edition, seen = Edition(), 0
    with runner.collector_off(), runner.deep_recursion():
        for text in edits(MAIN, seed, 14):
            source = Source(str(tmp_path / "main.py"), text)
            found = dispatch.lint(source, rules, project, program, "main.py", edition)
            forget_edits()
            fresh: Program = pickle.loads(pickle.dumps(program))
            assert found == dispatch.lint(source, rules, project, fresh, "main.py")
            seen += len(found)
    assert seen


def test_what_an_edit_leaves_alone_stays_interpreted(tmp_path: Path) -> None:
    rules, (project, program) = list(registry.rules().values()), known(tmp_path)
    edition = Edition()

    def interpreted(text: str) -> dict[str, Interpreter]:
        source = Source(str(tmp_path / "main.py"), text)
        found = dispatch.lint(source, rules, project, program, "main.py", edition)
        fresh: Program = pickle.loads(pickle.dumps(program))
        assert found == dispatch.lint(source, rules, project, fresh, "main.py")
        others = program._kept["lib.py"]._kept
        assert others
        every = {**edition._kept, **others}
        return {function.qualname: one for function, one in every.items()}

    def changed(text: str) -> set[str]:
        before, after = interpreted(MAIN), interpreted(text)
        return {name for name in before if after.get(name) is not before[name]}

    assert {"Net.mixed", "loss", "last", "Block.forward", "run"} <= set(interpreted(MAIN))
    assert changed("# a row\n" + MAIN) == set()
    assert changed(MAIN.replace("SMALL = 1e-12", "\n\nSMALL = 1e-12")) == set()
    assert changed("import os\n" + MAIN) == set()
    assert "Net.mixed" not in changed(
        MAIN.replace("def last", "def other(x):\n    return\n\ndef last")
    )
    assert changed(MAIN.replace("(mask, -1e9)", "(mask, -1e4)")) == {"last"}
    assert changed(MAIN.replace("1e-12", "1e-2")) >= {"Net.forward"}
    assert changed(MAIN.replace("narrow, scaled", "narrow, narrow as scaled")) >= {"loss"}


def test_places_in_values_stay_apart() -> None:
    """Rows count from where a function begins, but not those of the module."""
    text = "\n\nLEFT = make()\n\n\ndef use(x):\n\n\n{}\n    return {} @ right\n"
    for name, call in (("left", "    left, right = two(), one()"), ("LEFT", "right = make()")):
        row = call if name == "left" else f"    {call}"
        module = analysis.module(text.format(row, name))
        values = module.analysis(analysis.function(module, "use")).env
        left = values.get(name) or module.constant(name)
        assert left is not None
        assert left.dtype != values["right"].dtype


def test_what_a_text_says_moves_with_its_rows() -> None:
    dice, moved, path = random.Random(1), 0, Path("/project/run.py")
    text = (
        "import torch\n\n\ndef train(model, x):\n    count = 1\n    region = torch.autocast(\n"
        "        'cuda',\n        dtype=torch.float16,\n    )\n    with region:\n"
        "        total = model(x)\n    count += 1\n    return total.half()\n"
    )
    buffer = Buffer.of(Survey(path.parent), path, text.encode(), None)
    for _ in range(300):
        lines = text.split("\n")
        row = dice.randrange(len(lines))
        if dice.random() < 0.6:
            lines.insert(row, dice.choice(("", "# a row", "    other = 1", "model.half()", "(")))
        else:
            del lines[row]
        data = "\n".join(lines).encode()
        spoken = hints.spoken(data)
        same = list(spoken.values()) == list(buffer.spoken.values())
        found = buffer.moved(data, spoken) if same else None
        moved += found is not None
        try:
            ast.parse(data)
        except SyntaxError:
            continue
        assert found is None or found == statements("run.py", data)
        fresh = Survey(path.parent).with_file(path, str(path), data)
        assert Buffer.of(Survey(path.parent), path, data, buffer).survey == fresh
        if len(lines) < 40:
            text, buffer = data.decode(), Buffer.of(Survey(path.parent), path, data, buffer)
    assert moved > 50


def test_interpretations_are_kept_until_an_answer_is_another() -> None:
    text = (
        "import torch\n\nEPS = 1e-8\n\ndef outer(x):\n    return torch.log(inner(x) + EPS)\n\n"
        "def inner(x):\n    return x.half()\n"
    )
    rules, edition = list(registry.rules().values()), Edition()

    def outer(changed: str) -> object:
        source = Source("a.py", changed)
        found = dispatch.lint(source, rules, Project(), edition=edition)
        assert found == dispatch.lint(source, rules, Project())
        return next(kept for function, kept in edition._kept.items() if function.name == "outer")

    first = outer(text)
    assert outer(text + "\ndef third(x):\n    return x\n") is first
    assert outer(text.replace("1e-8", "1e-2")) is not first
    assert outer(text) is not first


def test_a_new_circle_of_calls_is_judged_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "import torch\n\ndef outer(x):\n    return torch.log(inner(x) + 1e-8)\n\n"
        "def inner(x):\n    return x.half()\n"
    )
    rules, edition = list(registry.rules().values()), Edition()
    dispatch.lint(Source("a.py", text), rules, Project(), edition=edition)
    judged, calls = dispatch._judged, 0

    def counted(*given: object) -> object:
        nonlocal calls
        calls += 1
        return judged(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(dispatch, "_judged", counted)
    circle = Source("a.py", text.replace("x.half()", "outer(x.half())"))
    found = dispatch.lint(circle, rules, Project(), edition=edition)
    assert calls == 2
    assert found == dispatch.lint(circle, rules, Project())
