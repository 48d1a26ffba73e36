"""Development scripts: scaffolding a rule, blessing goldens."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from precision_lint import registry
from precision_lint.api import (
    Applicability,
    Context,
    Edit,
    Event,
    Finding,
    Fix,
    Rule,
    Severity,
)
from precision_lint.harness.expectations import expectations, fixtures, negatives

ROOT = Path(__file__).parent.parent
STEM = "mp910_spam_overflow"
HEAD = b"import torch\r\n\r\n"
FIRES = """
from precision_lint import registry
from precision_lint.harness.expectations import fixtures, linter
from precision_lint.source import read
from pathlib import Path
rules = registry.load('rules').values()
for one in fixtures(Path('fixtures')):
    for found in linter(rules, one.path)(read(one.path)):
        print(f'{one.path.name}:{found.start.row} {found.code}')
"""


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)  # dataclasses look there
    spec.loader.exec_module(module)
    return module


def run(monkeypatch: pytest.MonkeyPatch, name: str, *arguments: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
    script(name).main()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty project."""
    for folder in ("rules", "fixtures"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").touch()
    return tmp_path


def test_new_rule_writes_one_module_and_one_folder(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {*root.rglob("*.py")}
    run(monkeypatch, "new_rule", "MP910", "spam-overflow", "--root", root)
    written = {*root.rglob("*.py")} - before
    folder = root / "fixtures" / STEM
    assert written == {root / "rules" / f"{STEM}.py"} | {
        folder / name for name in ("hazard.py", "negatives.py", "proof.py")
    }
    assert set(capsys.readouterr().out.split()) == set(map(str, written))
    texts = [fixture.path.read_text() for fixture in fixtures(root / "fixtures")]
    assert [e.code for text in texts for e in expectations(text)] == ["MP910"]
    assert [n.code for text in texts for n in negatives(text)] == ["MP910"]


def test_new_rule_is_valid_and_clean(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run(monkeypatch, "new_rule", "MP910", "spam-overflow", "--root", root)
    code = "from precision_lint import registry; print(*registry.load('rules'))"
    loaded = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert loaded.stdout.split() == ["MP910"]
    fired = subprocess.run(
        [sys.executable, "-c", FIRES], cwd=root, capture_output=True, text=True, check=True
    )
    assert fired.stdout.split() == ["hazard.py:7", "MP910"]
    for command in (["check"], ["format", "--check"]):
        ruff = [
            sys.executable,
            "-m",
            "ruff",
            *command,
            "--no-cache",
            "--isolated",
            "--line-length=100",
        ]
        options = ["--config", "lint.isort.known-first-party=['precision_lint']", "."]
        clean = subprocess.run([*ruff, *options], cwd=root, capture_output=True, text=True)
        assert clean.returncode == 0, clean.stdout


@pytest.mark.parametrize(
    ("code", "name", "what"),
    [
        ("MP910", "ham-overflow", "exists"),
        ("MP911", "spam-overflow", "exists"),
        ("MP001", "ham-overflow", "code is"),
        ("E501", "ham-overflow", "code is"),
        ("MP911", "Ham-Overflow", "name is"),
        ("MP911", "ham", "name is"),
        ("MP911", "", "name is"),
    ],
)
def test_new_rule_refuses(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    code: str,
    name: str,
    what: str,
) -> None:
    run(monkeypatch, "new_rule", "MP910", "spam-overflow", "--root", root)
    before = {path: path.read_text() for path in root.rglob("*.py")}
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "new_rule", code, name, "--root", root)
    assert end.value.code == 2
    assert what in capsys.readouterr().err.splitlines()[-1]
    assert {path: path.read_text() for path in root.rglob("*.py")} == before


class SpamOverflow(Rule):
    """A private rule that renames torch.exp to torch.exp2."""

    code, name = "MP910", "spam-overflow"
    severity, applicability = Severity.ERROR, Applicability.SAFE
    listens = ("operation:exp",)

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        start = at.source.offset(event.place.row, event.place.column) + len("torch.")
        fix = Fix("call exp2", Applicability.SAFE, (Edit(start, start + len("exp"), "exp2"),))
        yield Finding("spam", fix=fix)


@pytest.fixture
def blessed(root: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of fixtures, and a registry with the private rule alone."""
    monkeypatch.setattr(registry, "rules", lambda: {"MP910": SpamOverflow})
    folder = root / "fixtures" / STEM
    folder.mkdir()
    (folder / "hazard.py").write_bytes(HEAD + b"torch.exp(torch.ones(1))  # expect: MP910\r\n")
    (folder / "fine.py").write_text("import torch\n\ntorch.log(torch.ones(1))  # ok: MP910 eggs\n")
    return folder


def test_bless_writes_goldens_once(
    blessed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (blessed / "fine.golden.py").write_text("stale\n")
    run(monkeypatch, "bless", "--root", blessed.parent)
    printed = capsys.readouterr().out
    golden = blessed / "hazard.golden.py"
    assert golden.read_bytes() == HEAD + b"torch.exp2(torch.ones(1))  # expect: MP910\r\n"
    assert not (blessed / "fine.golden.py").exists()
    assert "+torch.exp2(torch.ones(1))" in printed
    assert "-stale" in printed
    assert printed.endswith("2 goldens changed\n")
    run(monkeypatch, "bless", "--root", blessed.parent)
    assert capsys.readouterr().out == "0 goldens changed\n"


def test_bless_of_one_folder_leaves_the_others(
    blessed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    other = blessed.parent / "mp911_ham_overflow"
    other.mkdir()
    run(monkeypatch, "bless", other.name, "--root", blessed.parent)
    assert not (blessed / "hazard.golden.py").exists()
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, "bless", "no_such_folder", "--root", blessed.parent)
    assert end.value.code == 2
    assert "no_such_folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("expected", "printed", "agree"),
    [
        ("a\nb", "a\nb", True),
        ("a\nb", "a\nc", False),
        ("a", "a\nb", False),
        ("a\n...\nd", "a\nb\nc\nd", True),
        ("a\n...\nd", "a\nd", True),
        ("a\n...\nd", "a\nb\nc", False),
        ("begins ...", "begins so", True),
        ("begins ...", "does not", False),
    ],
)
def test_what_the_page_of_modes_shows_is_what_is_printed(
    expected: str, printed: str, agree: bool
) -> None:
    assert script("modes_page").agrees(expected.split("\n"), printed.split("\n")) is agree
