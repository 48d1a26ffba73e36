"""Safe fixes on drawn inputs, before and after: that the comparison passes, and that it can fail.

Every case of a proof is drawn here.  The slices of findings, which take minutes, are a few here; all are
compared by ``make differential``.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from precision_lint import lint_source
from precision_lint.harness import users
from precision_lint.harness.collect import proof
from precision_lint.registry import rules
from tests.test_scripts import script

differential = script("differential")
EXAMPLES = 5
ALL = [
    c for c, rule in sorted(rules().items()) if any(x.level == "safe" for x in proof(rule).cases)
]
RAISING = {"MP210": 10, "MP212": 2}
"""Cases whose hazard is that the code raises in any dtype, so that nothing can be compared."""
SPOILED = {"MP201": "mask_pooling.py", "MP305": "pooling.py", "MP501": "projection.py"}
FILES = {
    "MP102": "optimizers.py",
    "MP301": "supcon.py",
    "MP304": "half_norm.py",
    "MP305": "features.py",
}
CLAMPED = "import torch\ndef isolated({name}):\n    return {name}.sigmoid().clamp(min=1e-6).log()\n"


def files(code: str, name: str) -> Path:
    folder = proof(rules()[code]).folder
    assert folder is not None
    return folder / name


@pytest.mark.parametrize("code", ALL)
def test_every_case_agrees_before_and_after(code: str) -> None:
    found = differential.cases(code, EXAMPLES - 1)
    assert found.fixes == found.compared + RAISING.get(code, 0)
    assert not found.differ, "\n".join(found.differ)
    assert not found.single


@pytest.mark.parametrize("code", FILES)
def test_before_and_after_agree(code: str) -> None:
    bound = differential.bounds()[code]
    found = differential.rule(code, bound, EXAMPLES, [files(code, FILES[code])])
    assert found.compared and found.drawn
    assert not found.differ and not found.infinite


@pytest.mark.parametrize("code", SPOILED)
def test_a_golden_that_lints_clean_and_computes_wrong_differs(code: str) -> None:
    path = files(code, SPOILED[code])
    before = path.read_text("utf-8")
    fixed = path.with_suffix(".golden.py").read_text("utf-8")
    wrong = "".join(
        line if line in before else line.replace(".float()", ".float().mul(1.0001)")
        for line in fixed.splitlines(keepends=True)
    )
    assert wrong != fixed
    assert not lint_source(wrong, filename=path, select=code, isolated=True)
    case = next(one for one in proof(rules()[code]).cases if one.module == path.name)
    for text, differs in ((fixed, False), (wrong, True)):
        count = differential.Count(code)
        differential.of_case(case, (before, text), path, EXAMPLES, count)
        assert bool(count.differ) == differs, count.differ


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
    found = differential.rule("MP305", 0.0, EXAMPLES, [files("MP305", FILES["MP305"])])
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
    found = differential.rule("MP301", 0.0, EXAMPLES, [files("MP301", "guard_spellings.py")])
    assert any("is inf" in line for line in found.infinite)
