"""A few mutants of each kind, as ``python -m tests.mutations`` makes them of all rules."""

from __future__ import annotations

import pytest

from precision_lint.harness.cases import Failure
from tests import mutations
from tests.mutations import Verdict


@pytest.mark.parametrize("code", ["MP304", "MP503"])
def test_mutants_are_killed(code: str) -> None:
    verdicts = mutations.judged(code, limit=2)
    assert {one.kind for one in verdicts} >= {"fix", "proof"}  # a short rule has nothing to weaken
    assert mutations.lacking(verdicts) == []
    assert all(one.complaint or mutations.reason(one) for one in verdicts)


def test_fixes_are_sabotaged() -> None:
    original = "y = log(x)\nz = y\n"
    fixed = "y = log(x.float())\nz = y.clamp(min=1e-4)\n"
    texts = dict(mutations.sabotaged(original, fixed))
    assert "y = log(x.half())\nz = y.clamp(min=1e-4)\n" in texts
    assert "y = log(x.float())\nz = y.clamp(min=1e-08)\n" in texts
    assert "y = log(x.float())\nz = y\n" in texts
    assert texts[f"{original}\n# no fix\n"] == "the fix does nothing"


def test_declarations_are_loosened() -> None:
    declared = [other for other, _ in mutations.looser((Failure.error(above=0.5), Failure.INF))]
    assert Failure.error(above=5e5) in declared and None in declared
    assert Failure.INF not in declared


def test_a_survivor_needs_a_reason() -> None:
    told = Verdict("MP204", "rule", "without 'torch.cpu.amp.autocast'", "")
    untold = Verdict("MP204", "fix", "the fix does nothing", "")
    assert told.words.startswith("another spelling") and untold.words == "without a reason"
    assert mutations.lacking([told, untold]) == [
        "MP204: no mutant of the kind rule is killed; write a case",
        "MP204: no mutant of the kind fix is killed; write a case",
    ]
