"""Safe fixes on drawn inputs, before and after: that the comparison passes, and that it can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from precision_lint.harness import users
from precision_lint.harness.collect import proof
from precision_lint.registry import rules
from tests.test_scripts import script

differential = script("differential")
EXAMPLES = 5
FILES = {
    "MP102": "optimizers.py",
    "MP301": "supcon.py",
    "MP304": "half_norm.py",
    "MP305": "features.py",
}
CLAMPED = "import torch\ndef isolated({name}):\n    return {name}.sigmoid().clamp(min=1e-6).log()\n"


def files(code: str) -> list[Path]:
    folder = proof(rules()[code]).folder
    assert folder is not None
    return [folder / FILES[code]]


@pytest.mark.parametrize("code", FILES)
def test_before_and_after_agree(code: str) -> None:
    bound = differential.bounds()[code]
    found = differential.rule(code, bound, EXAMPLES, files(code))
    assert found.compared and found.drawn
    assert not found.differ and not found.infinite


def test_a_wrong_fix_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    """It computes something else by a little, in values or in gradients alone."""
    plans = users.plans

    def sabotaged(*arguments: object) -> object:
        found = plans(*arguments)  # type: ignore[arg-type]
        for one in found:
            one.variants = [
                replace(
                    each, fixed=[text.replace("return ", "return 1.0001 * ") for text in each.fixed]
                )
                for each in one.variants
            ]
        return found

    monkeypatch.setattr(users, "plans", sabotaged)
    found = differential.rule("MP305", 0.0, EXAMPLES, files("MP305"))
    assert found.differ and "is off by" in found.differ[0]


def test_gradients_of_fixed_code_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clamp that is fine forward keeps an infinite gradient."""
    plans = users.plans

    def sabotaged(*arguments: object) -> object:
        found = plans(*arguments)  # type: ignore[arg-type]
        for one in found:
            one.variants = [
                replace(each, original=text, fixed=[text])
                for each in one.variants[:1]
                if len(each.inputs) == 1
                for text in [CLAMPED.format(name=each.inputs[0]["name"])]
            ]
        return found

    monkeypatch.setattr(users, "plans", sabotaged)
    folder = proof(rules()["MP301"]).folder
    assert folder is not None
    found = differential.rule("MP301", 0.0, EXAMPLES, [folder / "guard_spellings.py"])
    assert any("is inf" in line for line in found.infinite)
