"""Rules of other distributions, found by an entry point: installed, executed, and refused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from precision_lint import registry

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "examples" / "rule-package"
RULE = "precision_lint_rays/rules/mp901_transmittance_in_half.py"
CODE = "import torch\n\n\ndef light(clear):\n    return torch.cumprod(clear.half(), 0)\n"


def run(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command line with what is installed in a directory."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=target,
        env=os.environ | {"PYTHONPATH": str(target), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
    )


def lint(target: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(target, "-m", "precision_lint", *words)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example as pip installs it, into a directory."""
    folder = tmp_path_factory.mktemp("rules")
    shutil.copytree(EXAMPLE, folder / "source")
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--quiet")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *options)
    subprocess.run([*pip, "--target", folder / "target", folder / "source"], check=True)
    (folder / "target" / "light.py").write_text(CODE)
    return folder / "target"


@pytest.fixture
def target(built: Path, tmp_path: Path) -> Path:
    """A copy of it to spoil."""
    return Path(shutil.copytree(built, tmp_path / "target"))


def test_it_is_a_rule_like_any_other(built: Path) -> None:
    found = lint(built, "light.py", "--isolated", "--no-cache", "--output-format", "concise")
    assert found.returncode == 1, found.stderr
    assert found.stdout.startswith("light.py:5:12: MP901 [*] running product in float16")
    assert lint(built, "light.py", "--ignore", "transmittance-in-half").returncode == 0
    assert "MP901  transmittance-in-half" in lint(built, "rules", "--output-format", "text").stdout
    assert (
        "| MP901 | transmittance-in-half |"
        in lint(built, "rules", "--output-format", "markdown").stdout
    )
    assert lint(built, "explain", "MP901").stdout.startswith("# transmittance-in-half (MP901)")


def test_its_tests_run_in_place() -> None:
    """Without an installation, as somebody who copies the folder begins."""
    options = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".", "-c", os.devnull)
    found = run(EXAMPLE, *options, "-p", "no:xdist", "tests")
    assert found.returncode == 0, found.stdout
    assert "2 passed" in found.stdout


def test_its_proof_is_executed(built: Path) -> None:
    proven = lint(built, "verify", "--select", "MP901", "-j", "1")
    assert proven.returncode == 0, proven.stdout
    assert "rules: 1, cases: 2" in proven.stdout and "all proven" in proven.stdout


def test_a_fix_without_a_proof_fails(target: Path) -> None:
    next(target.glob("*/fixtures/mp901*/proof.py")).unlink()
    refused = lint(target, "verify", "--select", "MP901", "-j", "1")
    assert refused.returncode == 1
    assert "MP901 ships a safe fix and has no proof.py; write one" in refused.stdout


def test_the_marks_in_its_fixtures_hold(built: Path) -> None:
    words = ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", str(EXAMPLE / "pyproject.toml"))
    tested = run(built, *words, str(EXAMPLE / "tests"))
    assert tested.returncode == 0 and "2 passed" in tested.stdout, tested.stdout


def test_a_package_that_cannot_be_used_ends_the_run_with_one_line(target: Path) -> None:
    (target / "precision_lint_rays" / "__init__.py").write_text("1 / 0\n")
    refused = lint(target, "light.py", "--isolated", "--no-cache")
    assert refused.returncode == 2 and not refused.stdout
    [line] = refused.stderr.splitlines()
    assert line.startswith('entry point "rays" of precision-lint-rays 1.0: ')
    assert line.endswith("(ZeroDivisionError: division by zero); repair or uninstall that")


@pytest.fixture
def refusal(target: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], str]]:
    """Says why the rules that are installed in ``target`` are refused."""

    def why() -> str:
        with pytest.raises(registry.InvalidRule) as caught:
            registry.rules.__wrapped__()
        line = str(caught.value)
        assert "\n" not in line and "; " in line and "precision_lint_rays" in line
        return line

    monkeypatch.syspath_prepend(target)
    yield why
    for name in [name for name in sys.modules if name.startswith("precision_lint_rays")]:
        del sys.modules[name]


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ('"MP901", "transmittance-in-half"', '"MP301", "transmittance-in-half"', "is taken by"),
        ('"transmittance-in-half"', '"eps-before-log"', "is taken by"),
        ('"MP901"', '"MP650"', "code is MP650; those below MP700 ship with precision-lint"),
        ("severity, applicability", "severe, applicability", "has no severity"),
    ],
)
def test_a_rule_that_clashes(
    target: Path, refusal: Callable[[], str], old: str, new: str, what: str
) -> None:
    path = target / RULE
    path.write_text(path.read_text().replace(old, new))
    code, name = ("MP901", "transmittance-in-half")
    if "MP" in new:
        code = new[1:6]
    if "eps" in new:
        name = "eps-before-log"
    path.rename(path.with_name(f"{code.lower()}_{name.replace('-', '_')}.py"))
    assert what in refusal()


@pytest.mark.parametrize(
    ("file", "text", "what"),
    [
        ("rules/__init__.py", "import no_such_module", "No module named 'no_such_module'"),
        ("rules/__init__.py", "1 / 0", "ZeroDivisionError"),
        ("rules/__init__.py", "def (", "SyntaxError"),
        ("rules/__init__.py", "raise SystemExit(0)", "SystemExit"),
        ("rules/mp901_transmittance_in_half.py", "1 / 0", "ZeroDivisionError"),
        ("rules/mp901_transmittance_in_half.py", "x = 1", "has 0 rules; write one a module"),
    ],
)
def test_a_package_that_cannot_be_imported(
    target: Path, refusal: Callable[[], str], file: str, text: str, what: str
) -> None:
    (target / "precision_lint_rays" / file).write_text(f"{text}\n")
    assert what in refusal()


@pytest.mark.parametrize(
    "value", [f"precision_lint_rays{rest}" for rest in (".gone", "", ":__doc__")]
)
def test_an_entry_point_to_nothing(target: Path, refusal: Callable[[], str], value: str) -> None:
    entry = next(target.glob("*.dist-info/entry_points.txt"))
    entry.write_text(f"[precision_lint.rules]\nrays = {value}\n")
    if value == "precision_lint_rays":  # its modules are packages, which hold no rule
        assert "has 0 rules" in refusal()
    else:
        assert refusal().startswith('entry point "rays" of precision-lint-rays 1.0: ')
