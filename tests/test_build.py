"""The wheel: pure Python, or compiled where that is asked for."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parent.parent
CORE = {"domains/values.py", "dataflow/interpreter.py", "hazards/guards.py", "syntax/program.py"}


@pytest.fixture
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_of_the_wheel", ROOT / "setup.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "value, command, compiles",
    [
        (None, "bdist_wheel", False),
        ("", "bdist_wheel", False),
        ("0", "bdist_wheel", False),
        ("1", "bdist_wheel", True),
        ("1", "editable_wheel", False),
        ("1", "develop", False),
    ],
)
def test_a_wheel_is_compiled_where_that_is_asked_for(
    build: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    value: str | None,
    command: str,
    compiles: bool,
) -> None:
    monkeypatch.delenv("PRECISION_LINT_MYPYC", raising=False)
    if value is not None:
        monkeypatch.setenv("PRECISION_LINT_MYPYC", value)
    monkeypatch.setattr(sys, "argv", ["setup.py", command])
    assert build.asked() is compiles


def test_archives_of_the_same_files_are_the_same(build: ModuleType, tmp_path: Path) -> None:
    made = []
    for number in (1, 2):
        folder = tmp_path / str(number)
        (folder / "inner").mkdir(parents=True)
        for name in ("b.py", "inner/a.py")[:: 1 if number == 1 else -1]:
            (folder / name).write_text(f"# {name}\n")
            os.utime(folder / name, (number * 10**9, number * 10**9))
        archive = tmp_path / f"{number}.tar.gz"
        with tarfile.open(archive, "w:gz") as tar:
            tar.add(folder, "package-1.0")
        build.without_times(archive, 1_700_000_000)
        made.append(archive.read_bytes())
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "1.tar.gz") as tar:
        assert tar.extractfile("package-1.0/inner/a.py").read() == b"# inner/a.py\n"  # type: ignore


def test_asking_what_a_build_needs_compiles_nothing(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "egg_info"])
    assert build.extensions(str(tmp_path)) == [] and not list(tmp_path.iterdir())


def test_a_build_without_the_compiler_says_so(
    build: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["setup.py", "bdist_wheel"])
    monkeypatch.setitem(sys.modules, "mypyc.build", None)
    with pytest.raises(SystemExit, match="mypy"):
        build.extensions(str(tmp_path))


def test_mypyc_takes_the_core_as_it_is(tmp_path: Path) -> None:
    """Translated to C, outside of the source; only ``scripts/check_compiled.py`` compiles that."""
    pytest.importorskip("mypyc.build")
    code = f"import setup; print(*[one.name for one in setup.extensions({str(tmp_path)!r})])"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    names = set(done.stdout.splitlines()[-1].split())
    for path in CORE:
        assert f"precision_lint.{path[:-3].replace('/', '.')}" in names
    assert list(tmp_path.rglob("*.c")) and not list((ROOT / "precision_lint").rglob("*.c"))
