"""What the fractions of a soft target are for: the display fix of MP408, executed."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch

from precision_lint import registry
from precision_lint.api import Applicability
from precision_lint.harness.expectations import fixtures, home, linter

from . import fixtures_support as support

FIXTURES = {
    fixture.path.stem: fixture
    for fixture in fixtures(home())
    if fixture.rule == "mp408_integer_cast_of_soft_target"
}


def loaded(text: str) -> ModuleType:
    module = ModuleType("fixture")
    exec(compile(text, "fixture.py", "exec"), module.__dict__)
    return module


def both(stem: str) -> tuple[ModuleType, ModuleType]:
    """A fixture, and what its fixes make of it."""
    fixture = FIXTURES[stem]
    made = support.load(fixture)
    text = made.text
    found = linter(registry.rules().values(), fixture.path)(made)
    fixes = [d.fix for d in found if d.code == "MP408" and d.fix is not None]
    assert fixes
    assert {fix.applicability for fix in fixes} == {Applicability.DISPLAY}
    for edit in sorted((e for fix in fixes for e in fix.edits), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return loaded(made.text), loaded(text)


def test_a_bin_is_lost_from_the_focal_loss() -> None:
    original, fixed = both("detection_loss")
    logits = torch.linspace(-1, 1, 8).repeat(1, 1)
    whole, soft = torch.tensor([3.0]), torch.tensor([3.9])
    assert original.DetectionLoss()(logits, soft) == original.DetectionLoss()(logits, whole)
    below, above = (-logits.log_softmax(-1)[0, bin] for bin in (3, 4))
    assert fixed.DetectionLoss()(logits, whole) == pytest.approx(float(below))
    mixed = 0.1 * below + 0.9 * above
    assert fixed.DetectionLoss()(logits, soft).item() == pytest.approx(float(mixed), rel=1e-5)


def test_a_regression_learns_whole_numbers() -> None:
    original, fixed = both("detection_loss")
    pred, target = torch.tensor([2.75]), torch.tensor([2.75])
    assert original.offset_loss(pred, target) > 0.2
    assert fixed.offset_loss(pred, target) == 0


def test_weights_between_bins_are_zero_or_one() -> None:
    original, fixed = both("depth_bins")
    target = torch.tensor([1.25])
    assert original.soft_bins(target, 3).tolist() == [[0, 1, 0, 0]]
    assert fixed.soft_bins(target, 3).tolist() == [[0, 0.75, 0.25, 0]]
