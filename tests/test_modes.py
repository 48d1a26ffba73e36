"""Precision modes that the user states: what is shown under each, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precision_lint import cli, lint_paths, lint_source, runner
from precision_lint.config import ConfigError, Overrides, Place, Resolver, from_table
from precision_lint.domains import dtypes
from tests import projects

MODEL = """\
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return torch.log(self.layer(x).sigmoid() + 1e-8)
"""
PROVED = """\
import torch


def loss(x):
    return torch.log(x.half().sigmoid() + 1e-8)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(MODEL)
    Path("proved.py").write_text(PROVED)
    Path("teacher").mkdir()
    Path("teacher/net.py").write_text(MODEL)
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    cli.main(["check", "-n", "--output-format", "json", "--select", "MP301", *args])
    found = json.loads(capsys.readouterr().out)
    found = found["findings"] if isinstance(found, dict) else found
    return sorted(Path(one["filename"]).as_posix() for one in found)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("amp-float16", ["model.py", "proved.py", "teacher/net.py"]),
        ("float16,amp-bfloat16", ["model.py", "proved.py", "teacher/net.py"]),
        ("amp-bfloat16", ["proved.py"]),  # 1e-8 is no problem of bfloat16
        ("float32", ["proved.py"]),  # what the code itself shows stays
    ],
)
def test_stated_modes_are_the_ones_that_count(
    capsys: pytest.CaptureFixture[str], stated: str, expected: list[str]
) -> None:
    assert shown(capsys, "--precision", stated, ".") == expected
    assert shown(capsys, "--precision", stated, "--confidence", "possible", ".") == expected


@pytest.mark.usefixtures("here")
def test_nothing_stated_shows_what_is_proved_and_hides_the_rest(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert shown(capsys, ".") == ["proved.py"]
    assert len(shown(capsys, "--confidence", "possible", ".")) == 3


@pytest.mark.usefixtures("here")
def test_the_cache_keeps_modes_apart(capsys: pytest.CaptureFixture[str]) -> None:
    def run(*args: str) -> int:
        cli.main(["check", "--output-format", "json", "--select", "MP301", *args, "."])
        said = json.loads(capsys.readouterr().out)
        return len(said["findings"] if isinstance(said, dict) else said)

    for _ in range(2):
        counts = [run(), run("--precision", "float32"), run("--precision", "float16")]
        assert counts == [1, 1, 3]


@pytest.mark.usefixtures("here")
def test_modes_of_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    Path("precision-lint.toml").write_text(
        'precision = []\n[[overrides]]\npath = "teacher/**"\nprecision = ["float16"]\n'
    )
    assert shown(capsys, ".") == ["proved.py", "teacher/net.py"]
    assert shown(capsys, "--precision", "float32", ".") == ["proved.py"]
    cli.main(["check", "--show-settings", "teacher/net.py", "model.py"])
    said = capsys.readouterr().out
    assert 'precision = ["float16"]' in said and "precision = []" in said


def test_the_last_override_counts(tmp_path: Path) -> None:
    table = {
        "precision": ["float32", "bfloat16", "amp-float16"],
        "overrides": [
            {"path": ["a/**", "b/**"], "precision": ["float16"]},
            {"path": "b/c/**", "precision": []},
        ],
    }
    found = from_table(table, Place(tmp_path / "precision-lint.toml"), tmp_path)
    assert found.modes_for(tmp_path / "x.py") == ("amp-float16", "bfloat16")
    assert found.modes_for(tmp_path / "a" / "x.py") == ("float16",)
    assert found.modes_for(tmp_path / "b" / "c" / "x.py") == ()


@pytest.mark.parametrize(
    "table",
    [
        {"precision": "float16"},
        {"precision": ["fp16"]},
        {"overrides": {"path": "a", "precision": []}},
        {"overrides": [{"path": "a"}]},
        {"overrides": [{"path": 3, "precision": []}]},
        {"overrides": [{"path": "a", "precision": ["half"]}]},
    ],
)
def test_mistakes_say_what_to_write(tmp_path: Path, table: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="float32"):
        from_table(table, Place(tmp_path / "precision-lint.toml"), tmp_path)


@pytest.mark.usefixtures("here")
def test_mistakes_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match='did you mean "float16"'):
        Resolver(Overrides(precision=("flaot16",)))
    assert cli.main(["check", "--precision", "flaot16", "."]) == 2
    assert "--precision" in capsys.readouterr().err


def test_a_loss_of_half_weights_is_behind_no_region(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.py").write_text(
        MODEL.replace(
            "return torch.log(self.layer(x).sigmoid() + 1e-8)",
            "return nn.functional.cross_entropy(self.layer(x), x.argmax(-1))",
        )
    )
    args = ["check", "-n", "--output-format", "json", "--precision", "float16,bfloat16", "."]
    cli.main(args)
    assert "MP209" not in capsys.readouterr().out


@pytest.mark.usefixtures("here")
def test_explain_at_goes_by_stated_modes(capsys: pytest.CaptureFixture[str]) -> None:
    def said(*args: str) -> str:
        assert cli.main(["explain-at", "-n", "model.py:11", *args]) == 0
        return capsys.readouterr().out

    assert "MP301 (likely)" not in said()
    assert "MP301 (likely)" in said("--precision", "float16")
    assert "MP301" not in said("--precision", "float32")
    Path("precision-lint.toml").write_text('precision = ["amp-float16"]\n')
    assert "MP301 (likely)" in said()
    assert "in force: amp-float16 (stated)" in said()
    assert "in force: float16 (stated)" in said("--precision", "float16")


OPTION = """\
import torch


def run(model, args):
    with torch.autocast("cuda", dtype=torch.float16, enabled=args.amp):
        loss = model(args.x)
    loss.backward()
"""


def summary(capsys: pytest.CaptureFixture[str], *args: str) -> list[str]:
    cli.main(["check", *args])
    said = capsys.readouterr().out.splitlines()
    return [line for line in said if line.startswith("modes: ")]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("cached", [False, True])
def test_the_summary_names_the_modes_and_what_more_there_would_be(
    capsys: pytest.CaptureFixture[str], cached: bool
) -> None:
    args = [] if cached else ["-n"]
    for _ in range(2):
        (line,) = summary(capsys, *args, ".")
        more = "2 more if amp-float16 were run: --precision amp-float16"
        assert line == f"modes: none shown by the code; {more}"
        for stated in ("amp-float16", "float16"):
            both = shown(capsys, "--precision", stated, ".")
            assert len(both) - len(shown(capsys, ".")) == 2
        assert summary(capsys, *args, "--precision", "float16,bfloat16", ".") == [
            "modes: float16 (stated by --precision), bfloat16 (stated by --precision)"
        ]


@pytest.mark.usefixtures("here")
def test_the_summary_names_the_place_that_shows_a_mode(capsys: pytest.CaptureFixture[str]) -> None:
    Path("run.py").write_text(OPTION)
    (line,) = summary(capsys, "-n", ".")
    assert line == "modes: amp-float16 (run.py:5, depends on an option)"
    Path("run.py").write_text(OPTION.replace(", enabled=args.amp", ""))
    (line,) = summary(capsys, "-n", ".")
    assert line == "modes: amp-float16 (run.py:5)"
    # the model is not handed to what runs any more
    Path("use.py").write_text("import torch\nimport model")
    (line,) = summary(capsys, "-n", ".")
    more = "1 more if amp-float16 were run everywhere: --precision amp-float16"
    assert line == f"modes: amp-float16 (run.py:5); {more}"
    (line,) = summary(capsys, "-n", "run.py")
    assert line == "modes: amp-float16 (run.py:5)"
    Path("precision-lint.toml").write_text('precision = ["amp-float16"]\n')
    stated = "modes: amp-float16 (stated in precision-lint.toml)"
    assert summary(capsys, "-n", ".") == [stated]
    Path("precision-lint.toml").write_text("precision = []\n")
    assert summary(capsys, "-n", ".") == ["modes: float32 (stated in precision-lint.toml)"]


@pytest.mark.usefixtures("here")
def test_the_summary_says_how_sure_the_hidden_findings_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def last(*args: str) -> str:
        cli.main(["check", "-n", *args, "."])
        return capsys.readouterr().out.splitlines()[-1]

    certain = "--precision", "float16", "--confidence", "certain"
    assert last(*certain) == "2 likely findings not shown; `--confidence likely` shows them."
    Path("run.py").write_text(OPTION)
    both = "2 likely and 1 possible findings not shown; `--confidence possible` shows them."
    assert last("--precision", "amp-float16", "--confidence", "certain") == both


EXP = """\
import torch
from torch import nn


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return self.layer(x).exp(), torch.log1p(torch.exp(self.layer(x)))
"""


@pytest.mark.usefixtures("here")
def test_a_further_mode_is_named_with_those_in_force(capsys: pytest.CaptureFixture[str]) -> None:
    """What --precision names takes the place of what the code shows."""
    Path("run.py").write_text(OPTION)
    Path("exp.py").write_text(EXP)
    both = "if float16 were run as well: --precision amp-float16,float16"
    shown_by = "modes: amp-float16 (run.py:5, depends on an option)"
    assert summary(capsys, "-n", ".") == [f"{shown_by}; 2 more {both}"]
    # with both stated, amp-float16 holds everywhere, too
    Path("use.py").write_text("import torch\nimport model")
    assert summary(capsys, "-n", ".") == [f"{shown_by}; at least 3 more {both}"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    "args", [["--output-format", "concise"], ["--output-format", "json"], ["-q"]]
)
def test_only_the_full_text_speaks_of_modes(
    capfd: pytest.CaptureFixture[str], args: list[str]
) -> None:
    cli.main(["check", "-n", *args, "."])
    said = capfd.readouterr()
    assert "modes: " not in said.out + said.err


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("change", "args", "more"),
    [
        ("", ["--confidence", "possible"], 0),  # all of them are shown
        ("", ["--confidence", "certain"], 0),  # a stated mode proves nothing
        ("  # noqa: MP301", [], 1),
        ("", ["--ignore", "MP301"], 0),
        ("", ["--baseline", "held.json"], 0),
    ],
)
def test_what_would_not_be_shown_does_not_count(
    capsys: pytest.CaptureFixture[str], change: str, args: list[str], more: int
) -> None:
    Path("proved.py").unlink()
    text = Path("model.py").read_text()
    Path("model.py").write_text(text.rstrip("\n") + change + "\n")
    if "--baseline" in args:
        cli.main(["baseline", "create", "-n", "--precision", "float16", "--baseline", "held.json"])
    capsys.readouterr()
    lines = summary(capsys, "-n", *args, ".")
    shown = f"modes: none shown by the code; {more} more if amp-float16 were run"
    assert [line.partition(":")[0] + ":" + line.split(":")[1] for line in lines] == (
        [shown] if more else []
    )


@pytest.mark.usefixtures("here")
def test_statistics_go_by_mode(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["check", "-n", "--statistics", "--precision", "amp-float16,float16", "."])
    said = capsys.readouterr().out.splitlines()
    assert said[:4] == [
        "as written:",
        "1  MP301  [*]  eps-before-log",
        "amp-float16, float16:",
        "2  MP301  [*]  eps-before-log",
    ]
    cli.main(
        ["check", "-n", "--statistics", "--output-format", "json", "--precision", "float16", "."]
    )
    (row,) = json.loads(capsys.readouterr().out)
    assert row["count"] == 3 and row["modes"] == {"as written": 1, "float16": 2}


def test_what_is_wrong_in_silence_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.py").write_text(
        "import torch\n\n\ndef f(x, w):\n"
        "    a = torch.matmul(x.half(), torch.ones(3, 3))\n"
        "    b = torch.matmul(x.half(), torch.ones(4, 4))\n"
        "    return a, b, torch.log(x.half().sigmoid() + 1e-8)\n"
    )
    cli.main(["check", "-n", "--statistics", "."])
    said = capsys.readouterr().out
    assert said.index("MP301") < said.index("MP502")
    cli.main(["check", "-n", "--output-format", "html", "."])
    page = capsys.readouterr().out
    assert page.index("MP301") < page.index("MP502")
    headings = page[page.index("<h2") :]
    assert headings.index("epsilon 1e-08") < headings.index("#MP502")
    cli.main(["check", "-n", "--output-format", "concise", "."])
    assert capsys.readouterr().out.startswith("a.py:5:")  # as the file has them


ASSUMED = """\
import math

import torch
from heads import swapped


def scores(query, key, width):
    scores = torch.matmul(swapped(query, (1, 0, 2)), swapped(key, (1, 2, 0)))
    scores = scores * math.sqrt(1.0 / width)
    return scores.softmax(-1)
"""


@pytest.mark.parametrize(
    ("options", "expected"),
    [([], set()), (["--precision", "float16"], {"MP208"})],
)
def test_what_a_stated_mode_lets_a_finding_rest_on(
    options: list[str],
    expected: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A helper gives back what it was given."""
    monkeypatch.chdir(tmp_path)
    Path("lookup.py").write_text(ASSUMED)
    cli.main(["check", "-n", "--output-format", "json", *options])
    found = json.loads(capsys.readouterr().out)
    assert {one["code"] for one in found} == expected


CHECKED = """\
import torch


def test_probabilities(logits):
    probabilities = torch.einsum("ij,jk->ik", logits, logits)
    assert torch.allclose(probabilities, torch.tensor([1.0]))
"""
SAMPLED = """\
import numpy as np
import torch
from torch import nn


def sampled(rotation, kernel, grid):
    kernel = kernel / np.linalg.norm(kernel)
    return np.concatenate([rotation(g) @ kernel for g in grid], axis=1)


class Head(nn.Module):
    def __init__(self, features):
        super().__init__()
        self.layer = nn.Linear(features, 1).to(torch.float64)

    def forward(self, x):
        return self.layer(x)
"""


def test_autocast_does_not_reach_the_code_of_tests(here: Path) -> None:
    for name, codes in (("checked.py", ["MP401"]), ("tests/test_checked.py", [])):
        found = lint_source(CHECKED, here / name, precision=["amp-float16"])
        assert [one.code for one in found] == codes, name


def test_numpy_and_layers_of_float64_take_no_part_in_autocast() -> None:
    assert lint_source(SAMPLED, precision=["amp-float16"]) == []
    half = SAMPLED.replace("torch.float64", "torch.float32").replace("x)\n", "x.double())\n")
    assert [one.code for one in lint_source(half, precision=["amp-float16"])] == ["MP502"]


@pytest.mark.parametrize(
    "text",
    [
        """\
import os
import torch


def size_of(folder):
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            size = os.path.getsize(os.path.join(path, name))
            total += size
    return total
""",
        """\
import torch


def position_behind(layers):
    position = 0
    for layer in layers:
        position += layer.size
    return position
""",
    ],
)
def test_sizes_are_no_tensors(text: str) -> None:
    half = ["amp-float16", "float16"]
    assert lint_source(text, precision=half, confidence="possible") == []
    asked = text.replace("os.path.getsize(os", "measured(os").replace("layer.size", "layer.loss")
    asked = asked.replace("def ", "@torch.no_grad()\ndef ")
    found = lint_source(asked, precision=half, confidence="possible")
    assert [one.code for one in found] == ["MP406"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [("cell", []), ("(cell @ cell.mT)", ["MP505"]), ("self.proj(cell)", ["MP505"])],
    ids=["an argument", "a product", "what a layer gives"],
)
def test_a_matrix_that_is_handed_in_is_data(given: str, shown: list[str]) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Box(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.proj = nn.Linear(3, 3)\n\n"
        f"    def forward(self, cell):\n        return torch.linalg.inv({given})\n"
    )
    assert [one.code for one in lint_source(text, precision=["amp-float16"])] == shown
    assert [one.code for one in lint_source(text, precision=["float16"])] == ["MP505"]


def test_a_quotient_by_what_nothing_shows_to_be_of_floats() -> None:
    text = "import torch\n\n\ndef mean(total, count):\n    return total / (count + 1e-9)\n"
    assert lint_source(text, precision=["amp-float16", "float16"]) == []
    floats = text.replace("(count + 1e-9)", "(count.abs().mean() + 1e-9)")
    assert [one.code for one in lint_source(floats, precision=["float16"])] == ["MP305"]


@pytest.mark.parametrize(
    ("modes", "dtype"),
    [
        (["bfloat16"], "bfloat16"),
        (["float16", "bfloat16"], "float16"),
        (["amp-bfloat16", "bfloat16"], "bfloat16"),
    ],
)
def test_a_message_names_the_dtype_of_the_modes_that_count(modes: list[str], dtype: str) -> None:
    text = "import torch\n\n\ndef match(a, b):\n    return torch.cdist(a, b, p=1)\n"
    found = [one for one in lint_source(text, precision=modes) if one.code == "MP504"]
    assert [one.message.partition(" tensors")[0] for one in found] == [f"`cdist` of {dtype}"]


SLICED = """\
import torch


def finish(rewards, start, end):
    kept = torch.zeros(100, dtype=torch.float32)
    part = {index}
    kept[part] = rewards.double()
    return kept
"""


@pytest.mark.parametrize(("index", "expected"), [("slice(start, end)", []), ("start", ["MP503"])])
def test_a_slice_that_is_made_before_it_is_used_casts(index: str, expected: list[str]) -> None:
    found = lint_source(SLICED.format(index=index), confidence="possible")
    assert [one.code for one in found] == expected


ENTERED = """\
import torch


def whitened(x, spread):
    return x @ torch.linalg.inv(spread.float()){step}
"""
STEP = """


def step(x, spread):
    with torch.autocast("cuda", dtype=torch.float16):
        return whitened(x, spread).square()
"""


@pytest.mark.parametrize(("step", "expected"), [("", []), (STEP, ["MP501"])])
def test_an_inverse_counts_where_a_region_is_seen_to_run_it(step: str, expected: list[str]) -> None:
    text = ENTERED.format(step=step)
    found = lint_source(text, precision=["amp-float16"], select=["MP501"])
    assert [one.code for one in found] == expected
    possible = lint_source(text, precision=["amp-float16"], select=["MP501"], confidence="possible")
    assert [one.code for one in possible] == expected


UNKNOWN = """\
import torch


def pixels(batch):
    return {start}.cpu().numpy()
"""


@pytest.mark.parametrize(
    ("start", "mode", "expected"),
    [
        ("batch", "amp-bfloat16", []),
        ("batch", "bfloat16", ["MP506"]),
        ("torch.relu(batch)", "amp-bfloat16", []),
        ("batch.masked_fill(batch[0] > 0, -1e32)", "amp-float16", []),
        ("batch.masked_fill(batch[0] > 0, -1e32)", "float16", ["MP310"]),
    ],
    ids=[
        "of any kind, under autocast",
        "in a half model",
        "a tensor, under autocast",
        "a fill, under autocast",
        "a fill",
    ],
)
def test_what_may_be_a_tensor_and_may_be_half(start: str, mode: str, expected: list[str]) -> None:
    text = UNKNOWN.format(start=start)
    assert [one.code for one in lint_source(text, precision=[mode])] == expected


REGION = """

def evaluate(model, batch):
    with torch.autocast("cuda", dtype=torch.{dtype}):
        return {body}
"""
SCORES = """\
import torch


def scores(queries, keys):
    return (torch.matmul(queries, keys.transpose(1, 2)) / 8).softmax(-1)
"""

NEAR = """\
import torch


def near(a, b):
    return torch.cdist(a, b)
"""
PENALTY = """\
import torch


def penalty(mask):
    return mask.sigmoid() * -1e10
"""
DRIFT = """\
import torch
from torch import nn


class Drift(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x, spread):
        return self.net(x) @ torch.linalg.inv(spread.float())
"""


EVERY = """\
import torch


def epoch(model, task, settings, loader, optimizer):
    config = settings(model)
    scaler = torch.amp.GradScaler("cuda")
    total = 0.0
    for step, (batch, labels) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = task(model(batch), labels) / config.every
        scaler.scale(loss).backward()
        if {asked}:
            scaler.step(optimizer)
            scaler.update()
        total += loss.item() * config.every
    return total
"""


@pytest.mark.parametrize(
    ("asked", "codes"), [("(step + 1) % config.every", []), ("step", ["MP406"])]
)
def test_what_divides_a_count_of_steps_is_a_number(asked: str, codes: list[str]) -> None:
    """A total of Python numbers is no tensor in half."""
    text = EVERY.format(asked=asked)
    found = lint_source(text, precision=["float16"], select=["MP406"], confidence="possible")
    assert [one.code for one in found] == codes


@pytest.mark.parametrize(
    ("text", "code", "dtype"),
    [
        (UNKNOWN.format(start="torch.relu(batch)"), "MP506", "bfloat16"),
        (SCORES, "MP208", "float16"),
        (NEAR, "MP214", "float16"),
        (PENALTY, "MP310", "float16"),
        (DRIFT, "MP501", "float16"),
    ],
    ids=["handed in", "large activations", "distances", "a penalty", "coefficients"],
)
def test_what_counts_where_the_file_itself_opens_a_region(text: str, code: str, dtype: str) -> None:
    mode = "amp-bfloat16" if dtype == "bfloat16" else "amp-float16"
    around = text + REGION.format(dtype=dtype, body="model(batch)")
    for given, expected in ((text, []), (around, [code])):
        assert [one.code for one in lint_source(given, precision=[mode], select=[code])] == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("torch.log(x.sigmoid() + 1e-8)", ["MP301"]),
        ("torch.log(x.var(0) + 1e-5)", []),
        ("torch.zeros(4, 4).scatter_add_(0, at, x)", []),
        ("torch.quantile(x, torch.full((1,), 0.5))", []),
        ("torch.relu(x) / (torch.relu(x).amax(-1, keepdim=True) + 1e-8)", []),
        ("x.clamp(min=1e-12) / x.clamp(min=1e-12).sqrt()", []),
        ("x.masked_fill(at, -1e9)", []),
    ],
    ids=[
        "a probability",
        "another guard",
        "no model's write",
        "no write",
        "a denominator",
        "a limit",
        "a fill",
    ],
)
def test_an_argument_that_is_half_under_autocast(body: str, expected: list[str]) -> None:
    """Read alarms were right where a value is computed or written, hardly where it is data."""
    text = f"import torch\n\n\ndef loss(x, at):\n    return {body}\n"
    assert [one.code for one in lint_source(text, precision=["amp-float16"])] == expected


@pytest.mark.parametrize(
    ("base", "expected"),
    [("torch.relu(self.l(x)).mean(-1, keepdim=True)", ["MP305"]), ("self.l(x).cos()", [])],
    ids=["comes to 0 by its nature", "may come to 0"],
)
def test_a_guard_that_survives_needs_what_brings_it_to_zero(base: str, expected: list[str]) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Gain(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.l = nn.Linear(4, 4)\n\n    def forward(self, x):\n"
        f"        return torch.tanh(self.l(x.flip(0))) / ({base} + 1e-6)\n"
    )
    assert [one.code for one in lint_source(text, precision=["amp-float16"])] == expected


CALLED = {
    "MP301": "return torch.log(model(x) + 1e-8)",
    "MP305": "values = model(x)\n    return (values - values.mean()) / (values.std() + 1e-8)",
    "MP503": "out = torch.zeros(4, 4)\n    out.index_copy_(0, at, model(x))\n    return out",
    "MP506": "return model(x).cpu().numpy()",
    "MP310": "return model(x).masked_fill(at, -1e9)",
}


@pytest.mark.parametrize("code", CALLED)
def test_what_is_called_may_be_no_model(code: str) -> None:
    """What something gives is half where the file opens a region, else it is data as a rule."""
    dtype = "bfloat16" if code == "MP506" else "float16"
    text = f"import torch\n\n\ndef collect(model, x, at):\n    {CALLED[code]}\n"
    around = text + REGION.format(dtype=dtype, body="model(batch)")
    for given, expected in ((text, []), (around, [code])):
        found = lint_source(given, precision=[f"amp-{dtype}"], select=[code])
        assert [one.code for one in found] == expected


@pytest.mark.parametrize(("base", "expected"), [("nn.Module", ["MP202"]), ("object", [])])
def test_an_upcast_in_vain_is_a_models_or_a_regions(base: str, expected: list[str]) -> None:
    text = (
        f"import torch\nfrom torch import nn\n\n\nclass Hessian({base}):\n    def forward(self, x):\n"
        "        y = x.t().float()\n        return torch.matmul(y, y.t())\n"
    )
    run = (
        "\n\ndef train(x):\n    with torch.autocast('cuda'):\n        return Hessian().forward(x)\n"
    )
    for given, wanted in ((text, expected), (text + run, ["MP202"])):
        found = lint_source(given, precision=["amp-float16"], select=["MP202"])
        assert [one.code for one in found] == wanted


@pytest.mark.parametrize(("enabled", "confidence"), [("True", "certain"), ("self.amp", "possible")])
def test_layers_that_run_with_and_without_gradient(enabled: str, confidence: str) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Layers(nn.Module):\n    def __init__(self, amp):\n"
        "        super().__init__()\n        self.amp = amp\n        self.layer = nn.Linear(4, 4)\n\n"
        f"    def forward(self, x):\n        with torch.autocast('cuda', enabled={enabled}):\n"
        "            with torch.no_grad():\n                x = self.layer(x)\n"
        "            return self.layer(x)\n"
    )
    (found,) = lint_source(text, isolated=True, confidence="possible")
    assert (found.code, found.confidence.value) == ("MP213", confidence)


WAYS = """\
import torch


def penalty(x, y, options):
    with torch.autocast("cuda", dtype={}):
        correlations = torch.matmul(x.T, y)
        return correlations.pow_(2).sum()
"""


@pytest.mark.parametrize(
    ("dtype", "confidence"),
    [
        ("torch.float16", "likely"),
        ("torch.float16 if options.half else torch.bfloat16", "possible"),
    ],
)
def test_large_values_on_one_of_several_ways(dtype: str, confidence: str) -> None:
    (found,) = lint_source(WAYS.format(dtype), isolated=True, confidence="possible")
    assert (found.code, found.confidence.value) == ("MP601", confidence)


PARTS = """\
import torch
from torch import nn


class Matcher(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 4)

    def forward(self, x):
        {around}
            return self.encoder(x)

    def match(self, warp, points):
        return torch.cdist(warp, points)
"""


@pytest.mark.parametrize(
    ("around", "expected"),
    [("with torch.autocast('cuda'):", []), ("if True:", [])],
    ids=["a region around a part", "no region"],
)
def test_a_region_around_parts_of_a_module_says_nothing_of_its_other_methods(
    around: str, expected: list[str]
) -> None:
    text = PARTS.format(around=around)
    assert [one.code for one in lint_source(text)] == expected
    outside = "\n\ndef train(x, y):\n    with torch.autocast('cuda'):\n        x @ y\n"
    assert [one.code for one in lint_source(text + outside)] == ["MP214"]


@pytest.mark.parametrize(
    ("base", "write", "expected"),
    [
        ("nn.Module", "out.scatter_add_(0, at, x)", []),
        ("nn.Module", "out[out > 0] = x.sigmoid()", []),
        ("object", "out[out > 0] = x.sigmoid()", []),
        ("nn.Module", "out = torch.lerp(x, out, at)", []),
        ("nn.Module", "out = torch.lerp(x, x.exp(), at)", []),
        ("object", "out = torch.log(x.sigmoid() + 1e-8)", ["MP301"]),
        ("torch.optim.Optimizer", "out = torch.log(x.sigmoid() + 1e-8)", []),
    ],
)
def test_whose_arguments_may_be_half(base: str, write: str, expected: list[str]) -> None:
    """Any probability, but not an optimizer's, and no write."""
    text = (
        f"import torch\nfrom torch import nn\n\n\nclass Lion({base}):\n    def step(self, x, at):\n"
        f"        out = torch.zeros(4, 4)\n        {write}\n        return out\n"
    )
    found = lint_source(text, precision=["amp-float16"])
    assert [one.code for one in found] == expected


def test_an_infinity_that_an_index_writes() -> None:
    """It raises nothing, and a softmax takes it as well as the number."""
    text = (
        "import torch\n\n\ndef mask(x, at):\n    scores = x.sigmoid()\n"
        "    scores[at > 0] = -1e9\n    return scores\n"
    )
    around = text + REGION.format(dtype="float16", body="model(batch)")
    for given, expected in ((text, []), (around, ["MP310"])):
        found = lint_source(given, precision=["amp-float16"], select=["MP310"])
        assert [one.code for one in found] == expected


BUILDS = """\
import importlib
import torch


def build(settings):
    module, name = settings["target"].rsplit(".", 1)
    return getattr(importlib.import_module(module), name)(**settings.get("params", {}))


def load(settings, device):
    return build(settings.model).to(device)CAST.eval()


def sample(settings, x):
    with torch.no_grad():
        return load(settings, "cuda")(x)
"""


@pytest.mark.parametrize("mode", [None, "float16"])
def test_a_model_of_any_class_that_is_cast_says_nothing_of_other_files(
    tmp_path: Path, mode: str | None
) -> None:
    head = "from torch import nn\n\n\nclass Head(nn.Module):\n    def __init__(self):\n"
    (tmp_path / "loss.py").write_text(
        f"import torch\n{head}        super().__init__()\n        self.head = nn.Linear(4, 4)\n\n"
        "    def forward(self, x):\n        return torch.log(self.head(x).relu() + 1e-8)\n"
    )
    (tmp_path / "main.py").write_text(BUILDS.replace("CAST", ".half()"))
    found = lint_paths([tmp_path], precision=[mode]) if mode else lint_paths([tmp_path])
    assert [one.code for one in found] == (["MP301"] if mode else [])


def test_one_model_that_is_loaded_in_half_says_nothing_of_others(tmp_path: Path) -> None:
    (tmp_path / "loss.py").write_text(LOSS)
    text = "import torch\nimport other\n\nmodel = other.AutoModel.{}\n"
    main = tmp_path / "main.py"
    main.write_text(text.format("from_pretrained('m', fp16=True)"))
    assert [one.code for one in lint_paths([tmp_path])] == []


LOSS = """\
import torch
from torch import nn


class Loss(nn.Module):
    def forward(self, x):
        return torch.log(x.sigmoid() + 1e-8)
"""
TEACHER = """\
import torch
import loss


class Distiller:
    def __init__(self, teacher):
        self.teacher = teacher.half()

    def step(self, student, x):
        with torch.no_grad():
            wanted = self.teacher(x)
        return (student(x) - wanted).square().sum().backward()
"""
USED = """\
import torch
import loss


def main(x):
    return loss.Loss().half()(x.half())
"""


@pytest.mark.parametrize(("text", "expected"), [(TEACHER, []), (USED, ["MP301"])])
def test_a_cast_says_nothing_of_other_models(
    tmp_path: Path, text: str, expected: list[str]
) -> None:
    """A teacher that is made half is not the loss of another file, unless it is called from there."""
    (tmp_path / "loss.py").write_text(LOSS)
    (tmp_path / "main.py").write_text(text)
    assert [one.code for one in lint_paths([tmp_path])] == expected


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ("torch.set_default_dtype(torch.float16)", ["MP301"]),
        ("torch.set_default_dtype(torch.half)", ["MP301"]),
        ("torch.set_default_dtype(torch.float64)", []),
        ("torch.set_default_dtype(torch.bfloat16)", []),  # 1e-8 is no problem of bfloat16
        (
            "torch.set_default_dtype(torch.float16 if torch.cuda.is_available() else torch.float32)",
            [],
        ),
    ],
)
def test_a_default_dtype_makes_the_models_of_its_file(start: str, expected: list[str]) -> None:
    text = f"{MODEL}\n\ndef build():\n    {start}\n    return Head()(torch.rand(2, 8))\n"
    assert [one.code for one in lint_source(text)] == expected


BY_HAND = """\
import torch


def check({given}):
    q = torch.load("q.pt")
    scores = torch.matmul(q, q.T)
    assert torch.allclose(scores, torch.softmax(q, dim=-1))
"""


@pytest.mark.parametrize(("given", "expected"), [("", []), ("q", ["MP502"])])
def test_no_region_is_around_what_is_given_nothing(
    tmp_path: Path, given: str, expected: list[str]
) -> None:
    """A check by hand calls; nobody calls it inside of autocast."""
    (tmp_path / "check.py").write_text(BY_HAND.replace("{given}", given))
    stated = Overrides(precision=("amp-float16",), select=("MP502",), no_cache=True)
    result = runner.check([tmp_path], Resolver(stated, isolated=True))
    assert [one.code for one in result.diagnostics] == expected


@pytest.mark.parametrize(
    ("call", "expected"),
    [("Trainer(mixed_precision=True)", ["MP301 likely"]), ("attend(x, mixed_precision=True)", [])],
)
def test_what_is_given_tensors_is_no_trainers_setting(call: str, expected: list[str]) -> None:
    text = (
        "import torch\nfrom library import Trainer, attend\n\n\nclass Net(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.log(x.sigmoid() + 1e-8)\n\n\n"
        "def run(x):\n"
        "    x = torch.relu(x)\n"
        f"    return {call}\n"
    )
    found = lint_source(text, isolated=True)
    assert [f"{one.code} {one.confidence.value}" for one in found] == expected


def test_a_switch_of_the_projects_making_counts_where_its_code_has_such(tmp_path: Path) -> None:
    module = (
        "import lightning\n\n\nclass Net(lightning.LightningModule):\n"
        "    def __init__(self, net):\n        super().__init__()\n"
        "        self.automatic_optimization, self.net = False, net\n\n"
        "    def training_step(self, batch, index):\n        optimizer = self.optimizers()\n"
        "        self.manual_backward(self.net(batch).mean())\n"
        "        self.clip_gradients(optimizer, gradient_clip_val=0.5)\n        optimizer.step()\n"
    )
    files = {"net.py": module, "configs/model.yaml": "kwargs:\n  use_amp: true\n"}
    projects.write(tmp_path, files)
    assert projects.found(projects.check(tmp_path)) == []
    projects.write(tmp_path, {"run.py": "import torch\n\nUSE_AMP = 'use_amp'\n"})
    assert projects.found(projects.check(tmp_path)) == ["net.py:12 MP102"]
    projects.write(tmp_path, {"run.py": "import torch\n", "configs/model.yaml": "fp16: true\n"})
    assert projects.found(projects.check(tmp_path)) == ["net.py:12 MP102"], "frameworks read this"


SEVERAL = """\
import torch
from torch import nn


class Pipe(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 4)

    def forward(self, x, share{default}):
        return [torch.quantile(self.net(x[i]).float().flatten(1), share[i], dim=1) for i in range(4)]
"""


@pytest.mark.parametrize(
    ("default", "expected"), [(": float = 0.9", []), ("", ["MP502"])], ids=["numbers", "tensors"]
)
def test_a_number_that_is_indexed_stands_for_several(default: str, expected: list[str]) -> None:
    text = SEVERAL.format(default=default)
    assert [
        one.code for one in lint_source(text, precision=["float16"], select=["MP502"])
    ] == expected


AVERAGE = """\
import torch


class Average:
    def __init__(self, kept, decay=0.999):
        self.kept = kept
        self.decay = decay

    def update(self, model):
        state = model.{kept}
        for key, value in self.kept.{kept}.items():
            value.mul_(self.decay)
            value += (1 - self.decay) * state[key]
"""


@pytest.mark.parametrize(
    ("kept", "expected"),
    [("state_dict()", []), ("outputs()", ["MP407"])],
    ids=["weights", "others"],
)
def test_what_an_unseen_model_holds_is_float32_under_autocast(
    kept: str, expected: list[str]
) -> None:
    found = lint_source(
        AVERAGE.format(kept=kept),
        precision=["amp-float16"],
        select=["MP407"],
        confidence="possible",
    )
    assert [one.code for one in found] == expected


WHOLE = """\
import torch


def evaluate(model, criterion, loader, device):
    total = 0
    with torch.no_grad():
        with torch.autocast("cuda", enabled=device != torch.device("cpu")):
            for images, labels in loader:
                outputs = model(images)
                total += criterion(outputs, labels)
    return total


def main(model, criterion, loader, device):
    return evaluate(model, criterion, loader, device)
"""


def test_who_calls_what_opens_a_region_is_handed_data() -> None:
    found = lint_source(WHOLE, precision=["amp-float16"], select=["MP406"], confidence="possible")
    assert not found


NAMESAKE = """\
import torch


def evaluate(model, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return model(x)


def fit(loss):
    loss.backward()


def score(probe, x):
    probe.{method}()
    return torch.log(x.sigmoid() + 1e-8)
"""


def test_a_method_of_something_is_no_function_of_the_file_by_its_name() -> None:
    for method in ("other", "evaluate", "fit"):
        text = NAMESAKE.format(method=method)
        found = lint_source(text, precision=["amp-float16"], select=["MP301"])
        assert [one.code for one in found] == ["MP301"], method


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ("with torch.autocast('cuda', enabled=False):\n        return p @ p", "MP203"),
        ("return torch.cdist(p, p)", "MP214"),
    ],
)
def test_plain_functions_need_a_region_even_where_the_mode_is_stated(body: str, code: str) -> None:
    text = f"import torch\n\n\ndef f(a, b):\n    p = a @ b\n    {body}\n"
    region = "\n\ndef train(a, b):\n    with torch.autocast('cuda'):\n        return f(a, b)\n"
    for given, expected in ((text, []), (text + region, [code])):
        assert [
            one.code for one in lint_source(given, precision=["amp-float16"], select=[code])
        ] == expected


@pytest.mark.parametrize(
    ("target", "expected"), [("self.bank", ["MP503"]), ("torch.zeros(8, 4)", [])]
)
def test_what_a_module_keeps_in_a_buffer_may_be_half(target: str, expected: list[str]) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Memory(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n        self.register_buffer('bank', torch.zeros(8, 4))\n\n"
        f"    def forward(self, x, at):\n        bank = {target}\n        bank[at] = x.detach()\n"
        "        return bank\n"
    )
    found = lint_source(text, precision=["amp-float16"], select=["MP503"])
    assert [one.code for one in found] == expected


EVALUATES = """\
import torch
from torch.utils.data import DataLoader, Dataset
from elsewhere import read


class Images(Dataset):
    def __getitem__(self, index):
        return read(index), index


def evaluate(dataset):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten()).half()
    found = []
    for images, labels in DataLoader({dataset}, batch_size=4):
        found.append((net({given}), labels.cpu().numpy()))
    return found
"""


@pytest.mark.parametrize("dataset", ["dataset", "Images()"])
@pytest.mark.parametrize("mode", ["float16", "bfloat16"])
@pytest.mark.parametrize(
    ("given", "codes"),
    [("images.cuda()", ["MP502"]), ("images.half()", [])],
    ids=["as it is", "half"],
)
def test_what_a_loader_gives_follows_no_mode(
    mode: str, given: str, codes: list[str], dataset: str
) -> None:
    text = EVALUATES.format(given=given, dataset=dataset)
    found = lint_source(text, isolated=True, precision=[mode])
    assert [d.code for d in found] == codes
    assert all(d.assumptions == ("the data loader gives float32 tensors",) for d in found)


SCORED = """\
import torch
from torch.utils.data import DataLoader


def score(model, dataset):
    for images, labels in DataLoader(dataset, batch_size=4):
        logits = model(images.to("cuda") / 255)
        yield torch.nn.functional.cross_entropy(logits, labels.to("cuda"))
"""


def test_what_a_model_gives_follows_the_mode_whatever_a_loader_gives() -> None:
    found = lint_source(SCORED, isolated=True, precision=["float16"])
    assert [d.code for d in found] == ["MP606"]


MIXED_UP = """\
import numpy as np
import torch


def mix(first, second, share):
    share = max(0, min(1, share.draw()))
    mixed = np.zeros((64, 64, 3), dtype=np.float32)
    mixed += first.astype(np.float32) * share
    mixed += second.astype(np.float32) * (1.0 - share)
    return mixed
"""


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_arithmetic_of_numbers_beside_an_array_is_a_number(precision: str) -> None:
    assert not lint_source(MIXED_UP, isolated=True, precision=[precision], confidence="possible")


BESIDE = """\
import numpy as np
import torch


def ends(x, step):
    rates = np.linspace(0.1, 1.0, 10)
    return {value}
"""


@pytest.mark.parametrize(
    ("value", "codes"),
    [
        ("torch.log(rates[step] * (1.0 - x) + 1e-8)", ["MP301"]),
        ("torch.nn.Linear(10, 2)(torch.sigmoid(x) * torch.as_tensor(rates))", ["MP402"]),
        ("torch.nn.Linear(10, 2)(torch.sigmoid(x) * rates)", ["MP402"]),
    ],
    ids=["an entry", "a tensor of it", "a tensor beside it"],
)
def test_a_tensor_beside_what_is_numpys_is_a_tensor(value: str, codes: list[str]) -> None:
    found = lint_source(BESIDE.format(value=value), isolated=True, precision=["float16"])
    assert [d.code for d in found] == codes
    if codes == ["MP402"]:
        assert "float64 from NumPy promotes `torch.sigmoid(x)`" in found[0].message


READER = """\
import torch
from {package} import VideoReader


def frames(path, indices):
    reader = VideoReader(path, num_threads=1)
    first = reader[indices[0]].numpy()
    return first, reader.get_batch(indices).numpy()


def scores(path, weight):
    for row in VideoReader(path, num_threads=1):
        yield row["ids"] @ weight.bfloat16()
"""


@pytest.mark.parametrize(("package", "count"), [("decord", 0), ("networks", 2)])
def test_what_reads_data_follows_no_mode(package: str, count: int) -> None:
    found = lint_source(READER.format(package=package), precision=["bfloat16"])
    assert [one.code for one in found] == ["MP506"] * count, "nor is it float32, if it is ids"


def test_two_halves_do_not_meet_where_both_may_be_the_same() -> None:
    half, other = dtypes.FLOAT16, dtypes.BFLOAT16
    assert dtypes.promote_sets(half, other) == dtypes.FLOAT32
    assert dtypes.promote_sets(half | other, half) == half
    assert dtypes.promote_sets(half | other, other) == other
    assert dtypes.promote_sets(half | other, half | dtypes.FLOAT32) == half | dtypes.FLOAT32
