"""Modules that are built, cast and called in many ways: what the analysis is sure of, held against torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint import runner
from precision_lint.api import Confidence
from precision_lint.config import Overrides, Resolver
from tests import programs

SEEDS = range(200)
MISMATCHES = ("MP401", "MP402", "MP407", "MP502", "MP503")


def raises(text: str) -> bool:
    """Whether a program ends with an error about dtypes."""
    try:
        exec(compile(text, "program.py", "exec"), {"__name__": "program"})
    except RuntimeError as error:
        assert "type" in str(error), error
        return True
    return False


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[bool, list[str]]]:
    """By program: whether it raises, and what is found in it that is so as written."""
    root = tmp_path_factory.mktemp("programs")
    texts = {f"program{seed}.py": programs.Maker(seed).text() for seed in SEEDS}
    for name, text in texts.items():
        (root / name).write_text(text)
    stated = Overrides(no_cache=True, select=MISMATCHES, confidence=Confidence.LIKELY)
    result = runner.check([root], Resolver(stated, isolated=True))
    found: dict[str, list[str]] = {name: [] for name in texts}
    for one in result.diagnostics:
        if one.confidence is Confidence.CERTAIN:
            found[Path(one.filename).name].append(f"{one.start.row} {one.code}")
    return {name: (raises(text), found[name]) for name, text in texts.items()}


def test_what_is_sure_to_raise_raises(outcomes: dict[str, tuple[bool, list[str]]]) -> None:
    alarms = {
        name: found
        for name, (failed, found) in outcomes.items()
        if not failed and any(one.endswith("MP502") for one in found)
    }
    assert alarms == {}


def test_what_raises_is_found(outcomes: dict[str, tuple[bool, list[str]]]) -> None:
    failed = [name for name, (failed, _) in outcomes.items() if failed]
    missed = [name for name in failed if not outcomes[name][1]]
    assert len(failed) > len(outcomes) / 3
    assert len(missed) <= len(failed) / 20, missed
