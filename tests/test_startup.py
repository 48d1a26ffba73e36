"""What a short run imports: imports take longer than what such a run does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

LIBRARIES = {
    "torch", "numpy", "libcst", "rich", "pygls", "yaml", "pathspec", "packaging", "sqlite3",
    "importlib.metadata", "multiprocessing", "concurrent.futures", "asyncio", "difflib",
}  # fmt: skip
ROOMS = {"engine", "judging", "dataflow", "hazards", "typestate", "torchmodel", "rules", "harness"}
CODE = (
    "import sys\n"
    "from precision_lint.cli import main\n"
    "code = main(sys.argv[1:])\n"
    "print(*sys.modules, file=sys.stderr)\n"
    "sys.exit(code)\n"
)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A directory without Python files."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


def imported(here: Path, *args: str, code: int = 0) -> set[str]:
    """The modules that a process has at the end of a run, when another run was before it."""
    env = {**os.environ, "PYTHONPYCACHEPREFIX": str(here.parent / "bytecode")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)  # the entries of rules are kept beside bytecode
    for _ in range(2):
        run = subprocess.run(
            [sys.executable, "-c", CODE, *args], cwd=here, env=env, capture_output=True, text=True
        )
        assert run.returncode == code, run.stderr
    return set(run.stderr.splitlines()[-1].split())


def rooms(modules: set[str]) -> set[str]:
    """The rooms of the package that modules lie in; ``rules.``: single rules."""
    names = {name.removeprefix("precision_lint.") for name in modules if "precision_lint." in name}
    return {name.partition(".")[0] for name in names if name != "rules"}


@pytest.mark.parametrize("args", [["--version"], ["--help"], ["check", "--help"]])
def test_a_word_of_the_tool_itself_needs_next_to_nothing(here: Path, args: list[str]) -> None:
    modules = imported(here, *args)
    assert LIBRARIES & modules == set()
    assert (ROOMS | {"runner", "config"}) & rooms(modules) == set()


@pytest.mark.parametrize("text", [None, "print('no tensors')\n"])
def test_a_run_with_nothing_to_judge_needs_no_engine(here: Path, text: str | None) -> None:
    if text:
        (here / "plain.py").write_text(text)
    modules = imported(here, "check", "--isolated", "--select", "MP3", ".")
    assert LIBRARIES & modules == set()
    assert ROOMS & rooms(modules) == set()


HEAVY = LIBRARIES - {"sqlite3"}


@pytest.mark.parametrize("paths", [["."], ["a.py", "b.py"]])
def test_what_has_not_changed_is_not_judged_again(here: Path, paths: list[str]) -> None:
    (here / "setup.cfg").touch()
    for name in "abc":
        text = f"import torch\n\ndef {name}(x):\n    return torch.log(x.half().sigmoid() + 1e-8)\n"
        (here / f"{name}.py").write_text(text)
    modules = imported(here, "check", "--isolated", *paths, code=1)
    assert HEAVY & modules == set()
    assert ROOMS & rooms(modules) == set()
