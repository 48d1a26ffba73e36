"""``explain-at``: what is shown of a line, and what is said of lines that are none."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from precision_lint import cli
from precision_lint.api import Position
from precision_lint.observing import Around, Description, Expression, Noted
from precision_lint.report.place import render
from tests import projects

MODEL = """\
import torch
from torch import nn
EPS = 1e-12


class Net(nn.Module):
    @torch.no_grad()
    def forward(self, x, weight=None):
        p = torch.sigmoid(x)
        q = torch.log(
            p + EPS
        )
        y = p
        with torch.autocast("cuda", enabled=False):
            z = x.float()
            a = z
        b = q.float() @ x
        return (
            q,
            # of what comes
            a,
        )


SCALE = torch.tensor(2.0)
"""
TRAIN = """\
import torch
from pkg.model import Net


def train(stem, x):
    net = Net()
    with torch.autocast("cuda", dtype=torch.float16):
        return net(stem(x))
"""


class Run:
    def __init__(self, capfd: pytest.CaptureFixture[str], patch: pytest.MonkeyPatch) -> None:
        self.capfd = capfd
        self.patch = patch
        self.out = self.err = ""

    def __call__(self, *args: str) -> int:
        code = cli.main(["explain-at", *args])
        self.out, self.err = self.capfd.readouterr()
        return code

    def json(self, place: str) -> dict[str, Any]:
        assert self(place, "--output-format", "json") == 0
        found: dict[str, Any] = json.loads(self.out)
        return found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PRECISION_LINT_NO_CACHE", "1")
    projects.write(tmp_path, {"pkg/model.py": MODEL, "train.py": TRAIN})
    return Run(capfd, monkeypatch)


def row(text: str) -> int:
    """The row of the model's line that starts so."""
    (found,) = (n for n, line in enumerate(MODEL.splitlines(), 1) if line.strip().startswith(text))
    return found


def lines(run: Run, text: str) -> list[str]:
    assert run(f"pkg/model.py:{row(text)}") == 0
    return run.out.splitlines()


def test_a_line_of_a_region_in_another_file(run: Run) -> None:
    assert lines(run, "p = ") == [
        "pkg/model.py:9 in Net.forward()",
        "  autocast: float16",
        "  mode in force: amp-float16 (autocast to float16, train.py:7)",
        "  torch.sigmoid(x)  tensor, float16, in [0, 1] before rounding",
        "                    if the object that is called here is a model and returns tensors of its dtype",
        "  x                 tensor, float16",
    ]


def test_callers_that_bring_no_hazard_are_followed(run: Run, tmp_path: Path) -> None:
    """What another file calls is known from there, and not as if nobody called it."""
    caller = """\
    import torch
    from pkg.double import double

    def run(x):
        with torch.autocast("cuda"):
            return double(x.{cast}())
    """
    double = "def double(p):\n    q = p * 2\n    return q\n"
    half, wide = (textwrap.dedent(caller.format(cast=cast)) for cast in ("half", "float"))
    projects.write(tmp_path, {"pkg/double.py": "import torch\n" + double, "a.py": half})
    assert run("pkg/double.py:3") == 0
    assert run.out.splitlines()[1:] == [
        "  autocast: float16",
        "  mode in force: amp-float16 (autocast to float16, a.py:5)",
        "  p * 2  tensor, float16",
        "  p      tensor, float16",
    ]
    projects.write(tmp_path, {"b.py": wide})
    assert run("pkg/double.py:3") == 0
    assert "  p      tensor, float32 or float16" in run.out.splitlines()


def test_what_one_caller_after_another_comes_to_is_known(run: Run, tmp_path: Path) -> None:
    """The body of what several call is interpreted once; who came first may be called itself."""
    text = """\
    import torch

    class Reducer:
        def share(self, losses, count):
            return torch.sum(losses.relu()) / count

        def elements(self, losses, count=1):
            return self.share(losses, count)

        def pairs(self, *given, **named):
            return self.elements(*given, **named)
    """
    projects.write(tmp_path, {"pkg/reducer.py": textwrap.dedent(text)})
    assert run("pkg/reducer.py:5", "--precision", "float16") == 0
    assert any(line.startswith("  losses.relu() ") for line in run.out.splitlines())


def test_events_are_told_with_their_modes_and_assumptions(run: Run) -> None:
    said = lines(run, "q = ")
    at = said.index("  candidate log-guard (likely) at torch.log( p + EPS )")
    assert said[at + 1 :][:2] == [
        "    modes: as written, amp-float16, amp-bfloat16, float16, bfloat16",
        "    if the object that is called here is a model and returns tensors of its dtype",
    ]


def test_facts_are_told_where_they_are_stated_and_where_they_hold(run: Run) -> None:
    text = MODEL.replace(
        "        p = torch", "        # precision-lint: assume x float32, x >= 0\n        p = torch"
    )
    Path("pkg/model.py").write_text(text, "utf8")
    facts = ["  stated: x float32 (line 9)", "  stated: x >= 0 (line 9)"]
    for row, shown in ((9, facts), (10, facts), (14, []), (18, facts)):
        assert run(f"pkg/model.py:{row}") == 0
        lines = run.out.splitlines()
        assert [line for line in lines if line.startswith("  stated:")] == shown, row
    assert "  x                 tensor, float32, in [0, inf)" in run_lines(run, 10)
    known = run.json("pkg/model.py:10")
    assert known["stated"] == ["x float32 (line 9)", "x >= 0 (line 9)"]
    assert known["assumed"] == []


def run_lines(run: Run, row: int) -> list[str]:
    assert run(f"pkg/model.py:{row}") == 0
    return run.out.splitlines()


def test_names_are_told_of_which_the_dtype_is_assumed(run: Run) -> None:
    assert run.json(f"pkg/model.py:{row('q = ')}")["assumed"] == []
    assert run.json(f"pkg/model.py:{row('p + EPS')}")["assumed"] == ["p"]


def test_findings_of_the_line_are_told_on_each_of_its_rows(run: Run) -> None:
    for text in ("q = ", "p + EPS"):
        (finding,) = (line for line in lines(run, text) if "MP301" in line)
        assert finding.startswith("  MP301 (likely): epsilon 1e-12 before log")
        assert "  candidate log-guard (likely) at torch.log( p + EPS )" in run.out


def test_a_row_inside_of_an_expression_shows_it(run: Run) -> None:
    assert run("pkg/model.py:12") == 0  # the closing parenthesis of torch.log
    assert "  torch.log( p + EPS )  tensor, float32" in run.out


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("import torch", "off"),
        ("def forward", "float16"),
        ("y = p", "float16"),
        ("with torch", "float16"),
        ("z = ", "off"),
        ("a = z", "off"),
        ("return (", "float16"),
        ("SCALE", "off"),
    ],
)
def test_state_of_a_line(run: Run, text: str, state: str) -> None:
    assert lines(run, text)[1] == f"  autocast: {state}"


def test_ranges_and_constants(run: Run) -> None:
    said = {e["text"]: e for e in run.json(f"pkg/model.py:{row('p + EPS')}")["expressions"]}
    assert said["p + EPS"]["range"] == "[1e-12, 1]"
    assert said["EPS"]["range"] == "1e-12"
    assert said["p"]["dtypes"]["float16"] == "float16"
    assert said["p"]["dtypes"]["amp-bfloat16"] == "float16"  # the region says so


@pytest.mark.parametrize(
    ("drawn", "range_"),
    [
        ("randint(0, n, (4,))", "[0, inf)"),
        ("randint(9, (4,))", "[0, 8]"),
        ("randint(2, 9, (4,))", "[2, 8]"),
        ("randint(2, 9, size=(4,))", "[2, 8]"),
    ],
)
def test_random_integers_are_below_their_bound(run: Run, drawn: str, range_: str) -> None:
    Path("drawn.py").write_text(f"import torch\n\n\ndef f(x, n):\n    return torch.{drawn}\n")
    (said,) = [e for e in run.json("drawn.py:5")["expressions"] if e["text"].startswith("torch.")]
    assert said["range"] == range_


def test_bounds_that_cross_divide(run: Run) -> None:
    """Where nothing can be drawn, the analysis goes on."""
    Path("drawn.py").write_text(
        "import torch\n\n\ndef f(x):\n    return x / torch.randint(5, 1, (1,)).item()\n"
    )
    assert run("drawn.py:5") == 0


def test_json(run: Run) -> None:
    said = run.json(f"pkg/model.py:{row('q = ')}")
    assert list(said) == [
        "function", "autocast", "in_force", "expressions", "events", "stated", "assumed", "findings",
    ]  # fmt: skip
    assert said["function"] == "Net.forward"
    assert said["autocast"]["state"] == "on"
    assert said["autocast"]["device"] == "cuda"
    assert [event["kind"] for event in said["events"]] == ["log-guard"]
    assert [finding["code"] for finding in said["findings"]] == ["MP301"]
    assert said["expressions"][-1]["start"] == {"row": row("q = "), "column": 13}


def test_possible_findings_are_told(run: Run) -> None:
    Path("alone.py").write_text(
        "import torch\ndef f(x):\n    return torch.log(torch.sigmoid(x) + 1e-12)\n"
    )
    Path("train.py").unlink()
    assert run("alone.py:3") == 0
    assert "  MP301 (possible): epsilon 1e-12" in run.out
    assert "in force" not in run.out


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("pkg/model.py", '"pkg/model.py" is not a place; write FILE:LINE'),
        ("pkg/model.py:0", '"pkg/model.py:0" is not a place; write FILE:LINE'),
        ("pkg/model.py:x", '"pkg/model.py:x" is not a place; write FILE:LINE'),
        ("pkg/model.py:-1", '"pkg/model.py:-1" is not a place; write FILE:LINE'),
        (":3", '":3" is not a place; write FILE:LINE'),
        ("pkg/model.py:26", "pkg/model.py:26: the file has 25 lines; name one of them"),
        ("none.py:1", "none.py: no such file or directory; check the path (see"),
        ("pkg:1", "pkg: is a directory; name a file in it (see"),
        ("syntax.py:1", "syntax.py:2:7: MP002 invalid syntax; fix the syntax or exclude the file"),
        ("bytes.py:1", "bytes.py:1:1: MP001 "),
    ],
)
def test_wrong_places_are_one_line(run: Run, place: str, message: str) -> None:
    Path("syntax.py").write_text("import torch\ndef f(:\n")
    Path("bytes.py").write_bytes(b"\xff\n")
    assert run(place) == 2
    assert run.err.startswith(message) or message in run.err
    assert (run.err.count("\n"), run.out) == (1, "")


@pytest.mark.parametrize("text", ["", "\n", "x = 1", "# a comment\n", "'''\ntext\n'''\n"])
def test_files_that_say_nothing(run: Run, text: str) -> None:
    Path("plain.py").write_text(text)
    assert run("plain.py:1") == 0
    assert run.out.startswith("plain.py:1 in the module's own code\n  autocast: off\n")


def test_columns_are_passed_over(run: Run) -> None:
    assert run("pkg/model.py:9:13") == 0
    assert run.out.startswith("pkg/model.py:9 in Net.forward()\n")


def test_tabs_and_wide_characters(run: Run) -> None:
    text = "import torch\ndef f(W):\n\treturn torch.exp(W)\t+\ttorch.sigmoid( W )\n"
    Path("wide.py").write_text(text.replace("W", "\u91cd\u307f"), "utf8")
    said = {e["text"]: e["start"] for e in run.json("wide.py:3")["expressions"]}
    assert "torch.exp(\u91cd\u307f) + torch.sigmoid( \u91cd\u307f )" in said
    assert said["torch.sigmoid( \u91cd\u307f )"] == {"row": 3, "column": 25}


def test_the_cache_is_left_alone_on_demand(run: Run, tmp_path: Path) -> None:
    run("pkg/model.py:9", "--no-cache")
    run("pkg/model.py:9")
    assert not (tmp_path / ".precision_lint_cache").exists()
    run.patch.delenv("PRECISION_LINT_NO_CACHE")
    run("pkg/model.py:9", "--cache-dir", "kept")
    assert (tmp_path / "kept").is_dir()
    assert not (tmp_path / ".precision_lint_cache").exists()
    run("pkg/model.py:9")
    assert (tmp_path / ".precision_lint_cache").is_dir()


def test_comprehensions_and_lambdas(run: Run) -> None:
    Path("inner.py").write_text(
        "import torch\ndef f(xs):\n    return [torch.exp(x) for x in xs], lambda y: torch.log(y)\n"
    )
    assert "torch.exp(x)" in {e["text"] for e in run.json("inner.py:3")["expressions"]}


def test_the_innermost_function_is_meant(run: Run) -> None:
    Path("nested.py").write_text(
        "import torch\ndef outer(x):\n    def inner(y):\n        return torch.exp(y)\n"
        "    return inner(x)\n"
    )
    assert run.json("nested.py:4")["function"] == "outer.inner"
    assert run.json("nested.py:5")["function"] == "outer"


# as text


def test_rendering() -> None:
    half = {"code": "unknown", "float16": "float16", "bfloat16": "bfloat16"}
    known = Description(
        "f", Around("open", {"code": "", "amp-float16": "float16"}), {"float16": "made half"},
        (
            Expression("x" * 50, Position(1, 1), "tensor", half, "[0, 1]", ("a", "b")),
            Expression("y", Position(1, 9), "number", {}, "2", ()),
        ),
        (Noted("late-cast", "x", ("float16", "bfloat16"), "", ("a",)),),
    )  # fmt: skip
    assert render("a.py:1", known, ()).splitlines() == [
        "a.py:1 in f()",
        "  autocast: off (as written); float16 (amp-float16)",
        "  mode in force: float16 (made half)",
        f"  {'x' * 37}...  tensor, unknown (as written); float16 (float16); bfloat16 (bfloat16), "
        "in [0, 1] before rounding",
        f"  {'':40}  if a; b",
        f"  y{'':39}  number, equal to 2",
        "  candidate late-cast (no finding) at x",
        "    modes: float16, bfloat16",
        "    if a",
    ]
