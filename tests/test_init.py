"""`precision-lint init`: what it finds, what it writes and what it leaves as it is."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import tomli

from precision_lint import cli, init
from precision_lint.stating import Said, written

TRAIN = """\
import torch
from net import Net


def train(model, batches):
    for batch in batches:
        with torch.autocast("cuda", dtype=torch.float16):
            loss = model(batch).mean()
        loss.backward()
"""
OPTION = """\
import argparse

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--half", action="store_true")
args = parser.parse_args()
model = torch.nn.Linear(4, 4)
if args.half:
    model.half()
"""
NET = "import torch\n\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x.log()\n"
BFLOAT16 = """\
import torch


def export(model, x):
    with torch.autocast("cuda", dtype=torch.bfloat16):
        return model(x)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("pyproject.toml").write_bytes(b'[project]\r\nname = "x"  # kept\r\n')
    Path("train.py").write_text(TRAIN)
    Path("net.py").write_text(NET)
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.main(["init", "-n", *args])
    said = capsys.readouterr()
    return code, said.out, said.err


def table(file: str = "pyproject.toml") -> dict[str, object]:
    whole = tomli.loads(Path(file).read_bytes().decode())
    found = whole["tool"]["precision-lint"] if file == "pyproject.toml" else whole
    assert isinstance(found, dict)
    return found


TRAINER = """\
import lightning as L

from options import options

trainer = L.Trainer(
    max_epochs=3,
    precision="16-mixed" if options.half else "bf16-mixed" if options.bf16 else 32,
)
"""


@pytest.mark.usefixtures("here")
def test_each_value_that_a_setting_may_have_is_shown_where_it_is_written(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Path("train.py").write_text(TRAINER)
    _, out, _ = run(capsys, "--check")
    line = 'precision="16-mixed" if options.half else "bf16-mixed" if options.bf16 else 32,'
    assert out.splitlines() == [
        f"train.py:7: {mode} is suggested and not stated: {line}"
        for mode in ("amp-float16", "amp-bfloat16")
    ]


@pytest.mark.usefixtures("here")
def test_what_is_proved_is_shown_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    line = 'train.py:7: with torch.autocast("cuda", dtype=torch.float16):  -> amp-float16'
    assert code == 0 and f"The code proves:\n  {line}\n" in out
    assert 'Wrote precision = ["amp-float16"] into pyproject.toml.' in out
    assert Path("pyproject.toml").read_bytes() == (
        b'[project]\r\nname = "x"  # kept\r\n\r\n[tool.precision-lint]\r\n'
        b'precision = [\r\n    "amp-float16",  # train.py:7\r\n]\r\n'
    )
    assert cli.main(["init", "-n", "--check"]) == 0
    assert capsys.readouterr() == ("Every mode that the code shows is stated.\n", "")


@pytest.mark.usefixtures("here")
def test_options_and_conditions_suggest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cli.py").write_text(OPTION)
    _, out, _ = run(capsys)
    assert "suggests:\n  cli.py:6: parser.add_argument" in out
    assert "  cli.py:10: model.half()  -> float16" in out
    assert table()["precision"] == ["amp-float16", "float16"]


@pytest.mark.usefixtures("here")
def test_what_is_suggested_can_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    Path("cli.py").write_text(OPTION)
    assert "cli.py" not in run(capsys, "--no-suggested")[1]
    assert table()["precision"] == ["amp-float16"]
    assert run(capsys, "--check", "--no-suggested")[0] == 0
    code, out, err = run(capsys, "--check")
    assert code == 1 and "precision-lint init" in err
    assert out == (
        'cli.py:6: float16 is suggested and not stated: parser.add_argument("--half", '
        'action="store_true") (and 1 more)\n'
    )


@pytest.mark.parametrize(
    ("option", "modes"),
    [
        ('"--precision", default="bf16"', ["amp-bfloat16"]),
        ('"--mixed-precision", choices=["no", "fp16", "bf16"]', ["amp-float16", "amp-bfloat16"]),
        ('"--fp16", action="store_true"', ["float16"]),
        ('"--fp16", action="store_true")\nimport accelerate\nprint(', ["amp-float16"]),
        ('"--no-amp", action="store_true"', ["amp-float16"]),
        ('"--dtype", default="float32"', []),
        ('"--samples", type=int', []),
        ('"--alpha", default="half"', []),
    ],
)
def test_options_of_the_command_line(
    here: Path, capsys: pytest.CaptureFixture[str], option: str, modes: list[str]
) -> None:
    Path("train.py").write_text(
        f"import argparse\nP = argparse.ArgumentParser()\nP.add_argument({option})\n"
    )
    run(capsys)
    text = Path("pyproject.toml").read_text()
    assert (table()["precision"] if "tool" in text else []) == modes


@pytest.mark.usefixtures("here")
def test_settings_suggest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").unlink()
    Path("accelerate.yaml").write_text("mixed_precision: bf16\n")
    _, out, _ = run(capsys)
    assert "suggests:\n  accelerate.yaml:1: mixed_precision: bf16  -> amp-bfloat16" in out
    assert table()["precision"] == ["amp-bfloat16"]


@pytest.mark.usefixtures("here")
def test_tests_say_nothing_of_the_rest(capsys: pytest.CaptureFixture[str]) -> None:
    Path("tests").mkdir()
    Path("tests/test_net.py").write_text(BFLOAT16)
    _, out, _ = run(capsys)
    assert "Tests show, which says nothing of the rest:\n  tests/test_net.py:5:" in out
    assert table()["precision"] == ["amp-float16"]
    assert run(capsys, "--check")[0] == 0


@pytest.mark.usefixtures("here")
def test_code_that_outgrows_what_is_stated(capsys: pytest.CaptureFixture[str]) -> None:
    run(capsys)
    Path("export.py").write_text(BFLOAT16)
    code, out, _ = run(capsys, "--check")
    assert code == 1
    assert out.splitlines() == [
        "export.py:5: amp-bfloat16 is proved and not stated: "
        'with torch.autocast("cuda", dtype=torch.bfloat16):'
    ]
    assert b"bfloat16" not in Path("pyproject.toml").read_bytes()


@pytest.mark.usefixtures("here")
def test_what_is_stated_and_not_shown_is_no_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with Path("pyproject.toml").open("a") as file:
        file.write('[tool.precision-lint]\nprecision = ["amp-float16", "bfloat16"]\n')
    code, out, _ = run(capsys, "--check")
    assert (code, out) == (
        0,
        "pyproject.toml: bfloat16 is stated, and nothing shows it.\n"
        "Every mode that the code shows is stated.\n",
    )


@pytest.mark.usefixtures("here")
def test_nothing_stated_fails_the_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--check")[0] == 1
    Path("train.py").unlink()
    code, out, _ = run(capsys, "--check")
    assert (code, out) == (0, "The code shows no mode, and none is stated.\n")


@pytest.mark.usefixtures("here")
def test_no_signs(capsys: pytest.CaptureFixture[str]) -> None:
    Path("train.py").unlink()
    before = Path("pyproject.toml").read_bytes()
    code, out, _ = run(capsys)
    assert code == 0 and "precision-lint init --precision amp-float16" in out
    assert Path("pyproject.toml").read_bytes() == before
    assert run(capsys, "--precision", "float16,amp-bfloat16")[0] == 0
    assert table()["precision"] == ["amp-bfloat16", "float16"]


@pytest.mark.usefixtures("here")
def test_float32_only(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, "--precision", "float32")[0] == 0
    assert table()["precision"] == []
    assert run(capsys, "--precision", "flaot32")[0] == 2


@pytest.mark.usefixtures("here")
def test_without_a_pyproject(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").unlink()
    Path(".git").mkdir()
    _, out, _ = run(capsys)
    assert "into precision-lint.toml" in out
    assert Path("precision-lint.toml").read_bytes() == (
        b'precision = [\n    "amp-float16",  # train.py:7\n]\n'
    )
    assert sorted(path.name for path in Path().iterdir()) == [
        ".git", "net.py", "precision-lint.toml", "train.py",
    ]  # fmt: skip


@pytest.mark.usefixtures("here")
def test_a_stated_precision_is_kept(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[tool.precision-lint]\nprecision = [  # ours\n  "float16",\n]\nselect = ["ALL"]\n'
    Path("pyproject.toml").write_text(text)
    code, _, err = run(capsys)
    assert code == 2 and "--yes" in err and len(err.splitlines()) == 1
    assert Path("pyproject.toml").read_text() == text
    monkeypatch.setattr(init, "_asks", lambda: True)
    monkeypatch.setattr("click.confirm", lambda *_, **__: False)
    assert run(capsys)[0] == 2
    assert Path("pyproject.toml").read_text() == text
    monkeypatch.setattr("click.confirm", lambda *_, **__: True)
    assert run(capsys)[0] == 0
    assert table() == {"precision": ["amp-float16"], "select": ["ALL"]}
    assert "states that already" in run(capsys)[1]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("option", ["--yes", "--force"])
def test_replacing_without_a_question(capsys: pytest.CaptureFixture[str], option: str) -> None:
    Path("precision-lint.toml").write_text(
        'precision = ["float16"]\n[[overrides]]\npath = "a"\nprecision = []\n'
    )
    assert run(capsys, option)[0] == 0
    assert Path("precision-lint.toml").read_text() == (
        'precision = [\n    "amp-float16",  # train.py:7\n]\n[[overrides]]\npath = "a"\nprecision = []\n'
    )


@pytest.mark.skipif(os.name != "posix", reason="permissions")
@pytest.mark.usefixtures("here")
def test_a_file_that_is_read_only(capsys: pytest.CaptureFixture[str]) -> None:
    Path("pyproject.toml").chmod(stat.S_IREAD)
    before = Path("pyproject.toml").read_bytes()
    code, _, err = run(capsys)
    assert code == 2 and "pyproject.toml: is read-only" in err
    assert Path("pyproject.toml").read_bytes() == before


@pytest.mark.usefixtures("here")
def test_a_directory_that_runs_otherwise(capsys: pytest.CaptureFixture[str]) -> None:
    Path("export").mkdir()
    Path("export/run.py").write_text(BFLOAT16)
    _, out, _ = run(capsys)
    assert "Wrote amp-float16, amp-bfloat16 for export/** there." in out
    assert table() == {
        "precision": ["amp-float16"],
        "overrides": [{"path": "export/**", "precision": ["amp-float16", "amp-bfloat16"]}],
    }
    assert run(capsys, "--check")[0] == 0
    Path("export.py").write_text(BFLOAT16)
    assert run(capsys, "--check")[0] == 1


@pytest.mark.usefixtures("here")
def test_a_directory_that_imports_the_rest_is_no_part(capsys: pytest.CaptureFixture[str]) -> None:
    Path("export").mkdir()
    Path("export/run.py").write_text(f"from net import Net\n{BFLOAT16}")
    run(capsys)
    assert table() == {"precision": ["amp-float16", "amp-bfloat16"]}


@pytest.mark.usefixtures("here")
def test_a_notebook_names_its_cell(capsys: pytest.CaptureFixture[str]) -> None:
    import json

    cells: list[dict[str, object]] = [
        {
            "cell_type": "code",
            "metadata": {},
            "outputs": [],
            "execution_count": None,
            "source": text,
        }
        for text in ("import torch\n", BFLOAT16)
    ]
    notebook = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    Path("a.ipynb").write_text(json.dumps(notebook))
    assert "a.ipynb:cell 2:5: with torch.autocast" in run(capsys)[1]


SAID = Said({"float16": ["a.py:1"]}, {"x/**": {"bfloat16": []}})
ARRAY = 'precision = [\n    "float16",  # a.py:1\n]\n'
OVERRIDE = 'path = "x/**"\nprecision = [\n    "bfloat16",\n]\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"[tool.precision-lint]\n{ARRAY}\n[[tool.precision-lint.overrides]]\n{OVERRIDE}"),
        (
            "a = 1",
            f"a = 1\n\n[tool.precision-lint]\n{ARRAY}\n[[tool.precision-lint.overrides]]\n{OVERRIDE}",
        ),
        (
            '[tool.precision-lint]  # ours\nselect = ["ALL"]\n\n[tool.x]\na = 1',
            f'[tool.precision-lint]  # ours\n{ARRAY}select = ["ALL"]\n\n[tool.x]\na = 1\n'
            f"\n[[tool.precision-lint.overrides]]\n{OVERRIDE}",
        ),
        (
            '[x]\nprecision = ["]", 1]\ns = """\n[tool.precision-lint]\n"""\n[ tool . "precision-lint" ]\n',
            '[x]\nprecision = ["]", 1]\ns = """\n[tool.precision-lint]\n"""\n[ tool . "precision-lint" ]\n'
            f"{ARRAY}\n[[tool.precision-lint.overrides]]\n{OVERRIDE}",
        ),
        (
            'tool.precision-lint.precision = [ # ]\n "]"] # end\n',
            f"tool.precision-lint.{ARRAY.rstrip()} # end\n\n[[tool.precision-lint.overrides]]\n{OVERRIDE}",
        ),
        ("tool = { precision-lint = {} }\n", None),
        ("a = ", None),
    ],
)
def test_only_what_is_said_changes(before: str, after: str | None) -> None:
    assert written(before, SAID, ours=False) == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", f"{ARRAY}\n[[overrides]]\n{OVERRIDE}"),
        ("# ours\nselect = []", f"# ours\nselect = []\n{ARRAY}\n[[overrides]]\n{OVERRIDE}"),
        (
            '# ours\n[per-file-ignores]\n"a" = []\n',
            f'# ours\n{ARRAY}\n[per-file-ignores]\n"a" = []\n\n[[overrides]]\n{OVERRIDE}',
        ),
    ],
)
def test_a_file_of_its_own(before: str, after: str) -> None:
    assert written(before, SAID, ours=True) == after
