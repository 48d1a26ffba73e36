"""Every mark in the fixtures holds: what is expected is found, and nothing else."""

from pathlib import Path

import pytest

from precision_lint import lint_paths
from precision_lint.harness.expectations import expectations, fixtures

HOME = Path(__file__).parent.parent / "precision_lint_rays" / "fixtures"


@pytest.mark.parametrize("fixture", fixtures(HOME), ids=lambda fixture: fixture.path.stem)
def test_marks(fixture):
    found = lint_paths([fixture.path], select=["MP901"], confidence="possible", isolated=True)
    wanted = expectations(fixture.path.read_text())
    assert [(one.start.row, one.code) for one in found] == [(one.row, one.code) for one in wanted]
