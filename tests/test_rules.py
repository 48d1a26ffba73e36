"""One generic body for all rules: what each rule and each of its fixtures must hold."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from precision_lint import registry
from precision_lint.api import Applicability, Diagnostic, Rule
from precision_lint.harness.expectations import (
    SAFE,
    UNSAFE,
    Fixture,
    Lint,
    fixtures,
    folders,
    home,
    linter,
    shown,
)
from precision_lint.source import Source

from . import fixtures_support as support
from . import linting

RULES = registry.rules()
FIXTURES = {f"{f.rule}/{f.path.stem}": f for f in fixtures(home())}
CHANGELOG = Path(__file__).parent.parent / "CHANGELOG.md"
CODE = re.compile(r"\bMP\d{3}\b")

each_fixture = pytest.mark.parametrize("name", sorted(FIXTURES))
each_rule = pytest.mark.parametrize("code", sorted(RULES))


def stem(rule: type[Rule]) -> str:
    return rule.__module__.rpartition(".")[2]


@cache
def linted(name: str) -> tuple[Fixture, Source, Lint, list[Diagnostic]]:
    """A fixture, its text, how to lint it again, and all its diagnostics."""
    fixture = FIXTURES[name]
    lint = linting.linter(fixture.path)
    made = support.load(fixture)
    return fixture, made, lint, lint(made)


def own(code: str) -> list[str]:
    """The fixtures in a rule's own folder."""
    return [name for name, fixture in FIXTURES.items() if fixture.rule == stem(RULES[code])]


def none(complaints: Iterable[str]) -> None:
    lines = list(complaints)
    assert not lines, "\n" + "\n".join(lines)


@each_fixture
def test_findings_are_the_expected_ones(name: str) -> None:
    _, made, _, found = linted(name)
    none(support.unmet_expectations(made.text, found))


@each_fixture
def test_findings_are_well_formed(name: str) -> None:
    _, made, _, found = linted(name)
    none(support.malformed(made, found))


@each_fixture
def test_messages_have_the_house_style(name: str) -> None:
    _, made, _, found = linted(name)
    none(support.bad_style(made, found))


@each_fixture
def test_linting_again_finds_the_same(name: str) -> None:
    fixture, made, _, found = linted(name)
    assert linter(RULES.values(), fixture.path)(made) == found


@each_fixture
def test_fixes_touch_only_lines_that_their_finding_names(name: str) -> None:
    _, made, _, found = linted(name)
    none(support.strays(made, found))


@each_fixture
def test_fixing_changes_only_lines_that_a_check_names(name: str) -> None:
    """No fix makes a finding that is then fixed too."""
    fixture, made, _, found = linted(name)
    for golden in (fixture.golden, fixture.unsafe_golden):
        if golden.exists():
            none(support.unnamed(made, golden.read_text("utf-8"), shown(found)))


@each_fixture
def test_each_fix_alone_cures_and_does_no_harm(name: str) -> None:
    _, made, lint, _ = linted(name)
    none(support.side_effects(made, lint))


WITHHELD = 0.09
"""Share of the fixtures' fixes that the fixer refuses, because they would cure nothing or bring
another finding.  Mend the fixes and lower it."""


def test_few_fixes_are_withheld() -> None:
    counts = [support.fixes_of(linted(name)[1], linted(name)[2]) for name in FIXTURES]
    offered, refused = (sum(column) for column in zip(*counts, strict=True))
    assert offered > 400
    assert refused <= WITHHELD * offered, (refused, offered)


@each_fixture
@pytest.mark.parametrize("levels", [SAFE, UNSAFE], ids=["safe", "unsafe"])
def test_all_fixes_together_converge(name: str, levels: frozenset[Applicability]) -> None:
    _, made, lint, _ = linted(name)
    none(support.unstable(made, lint, levels))


@each_fixture
def test_goldens_are_what_the_fixer_makes(name: str) -> None:
    fixture, made, lint, _ = linted(name)
    none(support.wrong_goldens(fixture, made, lint))


@each_rule
@pytest.mark.parametrize("variant", sorted(support.VARIANTS))
def test_variants_have_the_same_findings_and_fixes(code: str, variant: str) -> None:
    """Of the rule's fixture with the most fixes, or the longest."""
    fixtures = [linted(name) for name in own(code)]
    _, made, lint, _ = max(
        fixtures, key=lambda one: (sum(d.fix is not None for d in one[3]), len(one[1].text))
    )
    none(support.differs_in_variant(made, lint, variant))


@each_rule
def test_rule_declares_what_its_fixes_promise(code: str) -> None:
    found = [d for name in own(code) for d in shown(linted(name)[3])]
    none(support.wrong_promise(RULES[code], found))


@each_rule
def test_rule_has_positive_and_negative_examples(code: str) -> None:
    none(support.few_examples(code, [linted(name)[1].text for name in own(code)]))


@each_rule
def test_docs_name_only_codes_that_exist_and_their_own(code: str) -> None:
    named = set(CODE.findall(RULES[code].__doc__ or ""))
    assert code in named
    assert named <= {*RULES, *registry.ENGINE_CODES}


def test_every_rule_has_its_folder_and_every_folder_its_rule() -> None:
    names = [folder.name for folder in folders(home())]
    none(support.unequal("rules/", map(stem, RULES.values()), "fixtures/", names))


def test_every_golden_has_its_fixture() -> None:
    expected = {path for f in FIXTURES.values() for path in (f.golden, f.unsafe_golden)}
    found = {path for folder in folders(home()) for path in folder.glob("*.golden.py")}
    assert found <= expected, sorted(map(str, found - expected))


def test_changelog_names_every_code() -> None:
    codes = CODE.findall(CHANGELOG.read_text(encoding="utf-8"))
    none(support.unequal("CHANGELOG.md", codes, "the tool", [*RULES, *registry.ENGINE_CODES]))
