"""Precision modes that the user states: what is shown under each, and where they come from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from precision_lint import cli
from precision_lint.config import ConfigError, Overrides, Place, Resolver, from_table

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
