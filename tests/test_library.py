"""precision-lint as a library and as a plug-in of pytest."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli

import precision_lint
from precision_lint import Confidence, ConfigError, fix_source, lint_paths, lint_source
from tests import projects

ROOT = Path(__file__).parent.parent
LOSS = """\
import torch


@torch.autocast("cuda", dtype=torch.float16)
def loss(logits):
    return -torch.log(logits.sigmoid() + 1e-8).mean()
"""
OTHER = "import torch\n\n\ndef loss(x):\n    return -(x.sigmoid() + 1e-8).log().mean()\n"
TRAIN = """
    import torch
    from loss import loss

    def step(model, x):
        with torch.autocast("cuda", dtype=torch.float16):
            return loss(model(x).half())
"""


def codes(found: list[precision_lint.Diagnostic]) -> list[str]:
    return [one.code for one in found]


def test_a_text_by_itself() -> None:
    [found] = lint_source(LOSS)
    assert (found.code, found.start.row, found.filename) == ("MP301", 6, "-")
    assert found.confidence is Confidence.LIKELY and found.fix is not None
    assert lint_source(LOSS, ignore=["MP301"]) == lint_source(LOSS, select=["MP1"]) == []
    assert codes(lint_source("import torch\n)(")) == ["MP002"]


def test_a_text_by_itself_knows_of_nothing_around_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    projects.write(tmp_path, {"train.py": TRAIN, "precision-lint.toml": 'ignore = ["ALL"]\n'})
    monkeypatch.chdir(tmp_path)
    assert codes(lint_source(LOSS)) == ["MP301"]
    assert codes(lint_source(LOSS, config="precision-lint.toml")) == []
    assert lint_source(OTHER) == []


def test_a_text_as_a_file_of_a_project(tmp_path: Path) -> None:
    projects.write(tmp_path, {"train.py": TRAIN, "pyproject.toml": ""})
    [found] = lint_source(OTHER, tmp_path / "loss.py")
    assert "train.py" in str(found.evidence)
    (tmp_path / "precision-lint.toml").write_text('ignore = ["MP301"]\n')
    assert lint_source(OTHER, tmp_path / "loss.py") == []
    assert codes(lint_source(OTHER, tmp_path / "loss.py", isolated=True)) == ["MP301"]
    assert not (tmp_path / "loss.py").exists()


def test_fixes_of_a_text() -> None:
    done = fix_source(LOSS)
    assert "torch.log(logits.float().sigmoid() + 1e-8)" in done.text
    assert codes([*done.fixed]) == ["MP301"] and not done.remaining
    assert fix_source(done.text) == precision_lint.FixedSource(done.text, (), ())
    broken = fix_source("import torch\n)(")
    assert broken.text == "import torch\n)(" and codes([*broken.remaining]) == ["MP002"]


@pytest.mark.parametrize(
    "head", ["# coding: latin-1\r\n# \xe9\r\n", "# \u20ac\U0001f600\n", "\n\r"]
)
def test_a_text_keeps_its_characters_and_newlines(head: str) -> None:
    text = fix_source(f"{head}{LOSS}").text
    assert text.startswith(head) and ".float().sigmoid()" in text


def test_unsafe_fixes_of_a_text() -> None:
    [found] = lint_source(OTHER, confidence="possible")  # its fix is unsafe for that alone
    assert found.confidence is Confidence.POSSIBLE
    assert fix_source(OTHER, confidence="possible").text == OTHER
    done = fix_source(OTHER, confidence=Confidence.POSSIBLE, unsafe_fixes=True)
    assert "x.float().sigmoid()" in done.text and not done.remaining


def test_files(tmp_path: Path) -> None:
    projects.write(tmp_path, {"train.py": TRAIN, "loss.py": OTHER, "pyproject.toml": ""})
    [found] = lint_paths([tmp_path])
    assert found.filename == str(tmp_path / "loss.py")
    assert [found] == lint_paths([str(tmp_path / "loss.py")], jobs=2)
    assert [found] == lint_paths(str(tmp_path / "loss.py"), select="MP201, MP301")
    assert lint_paths(tmp_path, ignore="MP301") == lint_paths([tmp_path / "train.py"]) == []


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="filename is 5; write the path of a file"):
        lint_source("import torch", filename=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r'unknown rule "MP999"; '):
        lint_source(LOSS, select=["MP999"])
    with pytest.raises(ConfigError, match=r"no-such\.py: no such file"):
        lint_paths([tmp_path / "no-such.py"])
    with pytest.raises(ConfigError, match='confidence is "sure"; write one of possible, likely'):
        lint_source(LOSS, confidence="sure")
    with pytest.raises(TypeError, match="selct"):
        lint_source(LOSS, selct=["ALL"])  # type: ignore[call-arg]
    with pytest.raises(UnicodeEncodeError):
        lint_source(f"# coding: latin-1\n# \u20ac\n{LOSS}")
    with pytest.raises(AttributeError, match="no_such_name"):
        precision_lint.no_such_name  # noqa: B018


def test_importing_the_package_imports_nothing_of_it(tmp_path: Path) -> None:
    code = (
        "import sys, precision_lint\n"
        "assert not [m for m in sys.modules if m.startswith('precision_lint.')]\n"
        "assert set(precision_lint.__all__) <= set(dir(precision_lint))\n"
        "for name in precision_lint.__all__: getattr(precision_lint, name)\n"
        "assert not {'torch', 'libcst', 'rich', 'click.testing'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


# pytest --precision-lint


def pytested(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run pytest on a directory with the plug-in, whether or not it is installed."""
    command = [sys.executable, "-m", "pytest", "-p", "precision_lint.pytest_plugin", "-rA"]
    return subprocess.run(
        [*command, "--strict-markers", "-Werror", *options],
        cwd=root,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "NO_COLOR": "1"},
    )


@pytest.fixture
def project(tmp_path: Path) -> Path:
    files = {"train.py": TRAIN, "loss.py": OTHER, "test_one.py": "def test(): pass\n"}
    projects.write(tmp_path, files | {"pyproject.toml": "", "old/gone.py": LOSS})
    return tmp_path


def test_a_test_for_each_file(project: Path) -> None:
    run = pytested(project, "--precision-lint", "--ignore=old")
    assert run.returncode == 1 and "1 failed, 3 passed" in run.stdout, run.stdout
    assert "FAILED loss.py::precision-lint" in run.stdout
    assert "loss.py:5:13: error[MP301] eps-before-log" in run.stdout


def test_beside_a_plug_in_that_wraps_every_item(project: Path) -> None:
    options = ("-p", "pytest_asyncio.plugin", "-p", "pytest_lsp", "-Wdefault", "-o", "addopts=")
    run = pytested(project, "--precision-lint", "--ignore=old", *options)
    assert run.returncode == 1 and "1 failed, 3 passed" in run.stdout, run.stdout


def test_it_is_off_unless_asked_for(project: Path) -> None:
    run = pytested(project)
    assert run.returncode == 0 and "1 passed" in run.stdout, run.stdout


def test_the_configuration_holds_in_pytest(project: Path) -> None:
    config = project / "precision-lint.toml"
    config.write_text('extend-exclude = ["old"]\nignore = ["MP301"]\n')
    run = pytested(project, "--precision-lint", "-m", "precision_lint")
    assert run.returncode == 0 and "4 passed, 1 deselected" in run.stdout, run.stdout
    config.write_text("selekt = []\n")
    run = pytested(project, "--precision-lint", "loss.py")
    assert "selekt" in run.stdout and "Traceback" not in run.stdout, run.stdout


def test_pytest_finds_the_plug_in() -> None:
    project = tomli.loads((ROOT / "pyproject.toml").read_text("utf8"))["project"]
    assert project["entry-points"]["pytest11"] == {"precision_lint": "precision_lint.pytest_plugin"}


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("select", [3, True, [3], [None], b"MP301", object(), [[]], ["MP999"]]),
        ("ignore", [3, None, [3], b"MP301", [[]], "MP999"]),
        ("confidence", [3, [], {}, "sure", b"likely"]),
        ("preview", ["no", 1, []]),
        ("unsafe_fixes", ["no", 0, []]),
        ("isolated", ["no", 1, []]),
        ("config", [3, [], b"x", "nowhere.toml", "x\0y"]),
        ("precision", [3, [3], "half", ["float64"], b"float16"]),
        ("device", [3, [3], "gpu", [[]]]),
        ("torch_version", [[], "new"]),
    ],
)
def test_values_that_an_option_cannot_have(option: str, values: list[Any]) -> None:
    for value in values:
        for judge in (lint_source, fix_source):
            with pytest.raises(ConfigError):
                judge("import torch\n", "a.py", **{option: value})
        with pytest.raises(ConfigError):
            lint_paths(Path(__file__), **{option: value})


def test_how_the_code_is_run_is_stated() -> None:
    text = "import torch\ndef entropy(p):\n    return torch.log(p.sigmoid() + 1e-8).mean()\n"
    assert codes(lint_source(text, precision="float16")) == ["MP301"]
    assert lint_source(text, precision=["bfloat16"]) == lint_source(text, precision=[]) == []


@pytest.mark.parametrize("jobs", [0, -1, True, None, "2", [2]])
def test_jobs_are_a_positive_integer(jobs: Any) -> None:
    with pytest.raises(ConfigError, match="write a positive integer"):
        lint_paths(Path(__file__), jobs=jobs)
