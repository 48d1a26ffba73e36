"""Damaged files, odd codecs, notebooks and configurations: nothing crashes, good files keep findings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from precision_lint import cli

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def fuzz() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fuzz", ROOT / "scripts" / "fuzz.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_some_seconds_of_it_find_nothing(
    fuzz: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fuzz.main(["--seconds", "5"]) == 0
    said = capsys.readouterr().out.splitlines()[-1]
    assert all(f"{kind}: " in said and f"{kind}: 0 " not in said for kind in fuzz.KINDS)


def test_a_tool_that_crashes_is_noticed(
    fuzz: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def crash(arguments: list[str]) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "main", crash)
    assert fuzz.main(["--seconds", "0.1", "--keep", str(tmp_path / "kept")]) == 1
    assert list((tmp_path / "kept").iterdir())


@pytest.mark.filterwarnings("ignore::SyntaxWarning", "ignore::DeprecationWarning")
def test_no_codec_costs_another_file_its_finding(fuzz: ModuleType, tmp_path: Path) -> None:
    """Each codec that Python knows as a coding line, of a text in it and of one that is not."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "good.py").write_text(fuzz.GOOD)
    wrong = []
    for codec in fuzz.CODECS:
        text = f"# coding: {codec}\nimport torch\ny = '\xe9'\n"
        for used in (codec, "utf-8"):
            try:
                data = text.encode(used, "replace")
            except Exception:  # of no text, or of no characters
                continue
            (tmp_path / "odd.py").write_bytes(data)
            code, out, err = fuzz.run(tmp_path, "--output-format", "concise", ".")
            if code not in (0, 1, 2) or "good.py:5" not in out or "MP003" in out:
                wrong.append((codec, used, code, out, err))
    assert wrong == []
