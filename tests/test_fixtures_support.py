"""Every generic assertion about rules can fail: a tiny private rule, sabotaged in each way."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Evidence,
    Fix,
    Position,
    Rule,
    Severity,
)
from precision_lint.harness.expectations import (
    SAFE,
    BadExpectation,
    Expectation,
    Fixture,
    Lint,
    Negative,
    expectations,
    fixed,
    fixtures,
    negatives,
)
from precision_lint.source import Source

from . import fixtures_support as support

TEXT = '''\
"""A fixture."""


def f(x):
    if x:
        a = spam(x)  # expect: MP901 certain error
    b = spam(
        x,  # the operand
    )
    return eggs(x)  # ok: MP901 eggs are no spam
'''
ONE = TEXT.replace("    b = spam(\n        x,  # the operand\n    )\n", "")


@dataclass(frozen=True)
class Spam:
    """Flags calls of spam() and renames them to ham(); each field is a way to do it wrong."""

    code: str = "MP901"
    message: str = "spam overflows in float16"
    evidence: tuple[Evidence, ...] = ()
    confidence: Confidence = Confidence.CERTAIN
    severity: Severity = Severity.ERROR
    applicability: Applicability | None = Applicability.SAFE
    title: str = "call ham"
    reason: str | None = None
    pattern: str = r"\bspam\("
    end: Callable[[Source, int, int], Position] = lambda made, start, end: made.position(end)
    edits: Callable[[Source, int, int], tuple[Edit, ...]] = lambda made, start, end: (
        Edit(start, end, "ham("),
    )

    def __call__(self, made: Source) -> list[Diagnostic]:
        return [self.diagnostic(made, *m.span()) for m in re.finditer(self.pattern, made.text)]

    def diagnostic(self, made: Source, start: int, end: int) -> Diagnostic:
        fix = None
        if self.applicability:
            edits = self.edits(made, start, end)
            fix = Fix(self.title, self.applicability, edits, self.reason)
        return Diagnostic(
            self.code,
            "spam-overflow",
            self.message,
            made.filename,
            made.position(start),
            self.end(made, start, end),
            self.severity,
            self.confidence,
            self.evidence,
            fix,
        )


MADE = support.source(ONE)


def complaint(lines: Iterable[str], *words: str) -> None:
    """Exactly one complaint, with these words."""
    (line,) = lines
    for word in words:
        assert word in line


def test_sound_rule_has_no_complaint(tmp_path: Path) -> None:
    lint = Spam()
    found = lint(MADE)
    assert len(found) == 1
    fixture = Fixture(tmp_path / "f.py")
    fixture.path.write_text(ONE)
    fixture.golden.write_text(ONE.replace("spam(", "ham("))
    for lines in (
        support.unmet_expectations(ONE, found),
        support.malformed(MADE, found),
        support.bad_style(MADE, found),
        support.strays(MADE, found),
        support.side_effects(MADE, lint),
        support.unstable(MADE, lint, SAFE),
        support.wrong_goldens(fixture, MADE, lint),
        *(support.differs_in_variant(MADE, lint, name) for name in support.VARIANTS),
    ):
        assert [*lines] == []


# Expectations


def test_comments_are_read() -> None:
    text = (
        's = "# expect: MP901"\nx = 1  # why  # expect: MP901; MP902 likely\n# ok: MP903 a word\n'
    )
    assert expectations(text) == [
        Expectation(2, "MP901"),
        Expectation(2, "MP902", Confidence.LIKELY),
    ]
    assert expectations("x = 1  # expect: MP901 error certain # why\n") == [
        Expectation(1, "MP901", Confidence.CERTAIN, Severity.ERROR)
    ]
    assert negatives(text) == [Negative(3, "MP903", "a word")]


@pytest.mark.parametrize(
    "comment",
    [
        "# expect:",
        "# expect: certain",
        "# expect: MP901;",
        "# expect: MP901 sure",
        "# expect: MP901 likely certain",
        "# expect: MP901, MP902",
        "# ok: MP901",
        "# ok: because",
    ],
)
def test_bad_comment_is_refused_with_its_row(comment: str) -> None:
    text = f"\nx = 1  {comment}\n"
    with pytest.raises(BadExpectation, match=r"^row 2: .+; |^row 2: .+ write "):
        expectations(text)
        negatives(text)


def test_goldens_and_proofs_are_no_fixtures(tmp_path: Path) -> None:
    folder = tmp_path / "mp901_spam_overflow"
    folder.mkdir()
    for name in ("a.py", "a.golden.py", "a.unsafe.golden.py", "proof.py", "__init__.py", "a.txt"):
        (folder / name).touch()
    (tmp_path / "__pycache__").mkdir()
    (found,) = fixtures(tmp_path)
    assert found.path == folder / "a.py"
    assert found.golden.name == "a.golden.py"
    assert found.unsafe_golden.name == "a.unsafe.golden.py"


def test_missed_alarm() -> None:
    complaint(support.unmet_expectations(ONE, []), "row 6", "missed alarm", "MP901 certain error")


@pytest.mark.parametrize(
    "lint",
    [Spam(confidence=Confidence.LIKELY), Spam(severity=Severity.INFO), Spam(code="MP902")],
    ids=["confidence", "severity", "code"],
)
def test_alarm_of_another_kind_is_missed_and_false(lint: Lint) -> None:
    missed, false = support.unmet_expectations(ONE, lint(MADE))
    assert "missed alarm" in missed
    assert "false alarm" in false


def test_two_alarms_need_two_expectations() -> None:
    complaint(support.unmet_expectations(ONE, Spam()(MADE) * 2), "false alarm")


def test_false_alarm_on_a_negative_line_quotes_its_reason() -> None:
    lines = support.unmet_expectations(ONE, Spam(pattern=r"\b(?:spam|eggs)\(")(MADE))
    complaint(lines, "row 7", "false alarm", "eggs are no spam")


def test_false_alarm_on_an_unmarked_line() -> None:
    complaint(support.unmet_expectations(TEXT, Spam()(support.source(TEXT))), "row 7", "false")


def test_possible_alarms_need_no_expectation_but_meet_one() -> None:
    possible = Spam(confidence=Confidence.POSSIBLE)
    assert [*support.unmet_expectations("spam(1)\n", possible(support.source("spam(1)\n")))] == []
    text = "spam(1)  # expect: MP901 possible\n"
    assert [*support.unmet_expectations(text, possible(support.source(text)))] == []
    complaint(support.unmet_expectations(text, []), "missed alarm")


# Form


@pytest.mark.parametrize("place", [Position(99, 1), Position(6, 99), Position(1, 1)])
def test_range_outside_of_the_text(place: Position) -> None:
    lint = Spam(end=lambda made, start, end: place)
    complaint(support.malformed(MADE, lint(MADE)), "range")


def test_evidence_outside_of_the_text() -> None:
    lint = Spam(evidence=(Evidence("here", Position(99, 1)),))
    complaint(support.malformed(MADE, lint(MADE)), "range")
    elsewhere = Spam(evidence=(Evidence("there", Position(99, 1), filename="other.py"),))
    assert [*support.malformed(MADE, elsewhere(MADE))] == []


@pytest.mark.parametrize(
    ("lint", "what"),
    [
        (Spam(edits=lambda m, s, e: (Edit(s, e, "x("), Edit(s + 1, e, "y("))), "overlap"),
        (Spam(edits=lambda m, s, e: (Edit(s, 9999, ""),)), "not in the text"),
        (Spam(edits=lambda m, s, e: (Edit(s, e, m.text[s:e]),)), "changes nothing"),
        (Spam(edits=lambda m, s, e: ()), "changes nothing"),
        (Spam(reason="why not"), "reason"),
        (Spam(applicability=Applicability.UNSAFE), "reason"),
        (Spam(applicability=Applicability.DISPLAY), "reason"),
    ],
)
def test_malformed_fix(lint: Lint, what: str) -> None:
    complaint(support.malformed(MADE, lint(MADE)), what)


@pytest.mark.parametrize(
    ("lint", "what"),
    [
        (Spam(message="Spam overflows"), "capital"),
        (Spam(message="spam overflows."), "full stop"),
        (Spam(message="spam\noverflows"), "one line"),
        (Spam(message=""), "one line"),
        (Spam(evidence=(Evidence("Here it is"),)), "capital"),
        (Spam(title="Call ham"), "capital"),
        (Spam(title="call ham."), "full stop"),
        (Spam(applicability=Applicability.UNSAFE, reason="It is ham."), "capital"),
    ],
)
def test_message_against_the_house_style(lint: Lint, what: str) -> None:
    lines = [*support.bad_style(MADE, lint(MADE))]
    assert any(what in line for line in lines)


@pytest.mark.parametrize(
    "message", ["GradScaler overflows", "`Spam` is", "MP901 is", "K.T is half"]
)
def test_names_of_the_code_may_start_a_message(message: str) -> None:
    made = support.source(f"K = 1\n{ONE}")
    assert [*support.bad_style(made, Spam(message=message)(made))] == []


# Fixes


def at_line(row: int, text: str) -> Callable[[Source, int, int], tuple[Edit, ...]]:
    """The right edit, and another that inserts at the start of a row."""

    def edits(made: Source, start: int, end: int) -> tuple[Edit, ...]:
        place = made.lines[row - 1]
        return (Edit(place, place, text), Edit(start, end, "ham("))

    return edits


def test_fix_that_touches_another_line() -> None:
    lint = Spam(edits=at_line(2, "x = 1"))
    complaint(support.strays(MADE, lint(MADE)), "rows [2]")
    named = replace(lint, evidence=(Evidence("here", Position(2, 1)),))
    assert [*support.strays(MADE, named(MADE))] == []
    elsewhere = replace(lint, evidence=(Evidence("there", Position(2, 1), filename="b.py"),))
    complaint(support.strays(MADE, elsewhere(MADE)), "rows [2]")


def test_whole_new_lines_touch_none() -> None:
    assert [*support.strays(MADE, Spam(edits=at_line(2, "import ham\n"))(MADE))] == []
    end = MADE.lines[1] - 1
    before = Spam(edits=lambda m, s, e: (Edit(end, end, "\nimport ham"), Edit(s, e, "ham(")))
    assert [*support.strays(MADE, before(MADE))] == []


def test_deleted_line_is_touched_and_the_next_is_not() -> None:
    first, second = MADE.lines[3:5]
    lint = Spam(edits=lambda m, s, e: (Edit(first, second, ""),))
    complaint(support.strays(MADE, lint(MADE)), "rows [4]")


def test_fix_that_deletes_a_comment() -> None:
    lint = Spam(edits=lambda m, s, e: (Edit(s, m.text.index("\n", s), "ham(x)"),))
    complaint(support.side_effects(MADE, lint), "got lost", "expect: MP901")
    lines = [*support.unstable(MADE, lint, SAFE)]
    assert any("got lost" in line for line in lines)


def test_fix_that_breaks_the_syntax() -> None:
    lint = Spam(edits=lambda m, s, e: (Edit(s, e, "ham(("),))
    complaint(support.side_effects(MADE, lint), "does not parse")


def test_fix_that_does_not_cure() -> None:
    lint = Spam(edits=lambda m, s, e: (Edit(s, s, "1 + "),))
    assert support.fixes_of(MADE, lint) == (1, 1)  # offered, and refused by the fixer


def test_fix_that_introduces_another_finding() -> None:
    ham = Spam(code="MP902", pattern=r"\bham\(", applicability=None)
    same_place = support.fixes_of(MADE, lambda made: Spam()(made) + ham(made))
    assert same_place == (1, 0)  # the operation comes as far as its next trouble
    start = Spam(code="MP902", pattern=r"\A(?=[\s\S]*\bham\()", applicability=None)
    assert support.fixes_of(MADE, lambda made: Spam()(made) + start(made)) == (1, 1)


def test_fix_that_never_ends() -> None:
    lint = Spam(edits=lambda m, s, e: (Edit(s, s, "1 + "),))
    assert support.fixes_of(MADE, lint) == (1, 1)


def test_fixer_that_stops_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a rule's fault, but the body would notice."""
    honest = fixed
    calls_left = itertools.chain([True], itertools.repeat(False))

    def lazy(made: Source, lint: Lint, levels: frozenset[Applicability]) -> object:
        result = honest(made, lint, levels)
        if next(calls_left):
            text = result.source.text.replace("ham(", "spam(")
            return replace(result, source=replace(result.source, text=text))
        return result

    monkeypatch.setattr(support, "fixed", lazy)
    lines = [*support.unstable(MADE, Spam(), SAFE)]
    assert any("second run" in line for line in lines)
    assert any("remaining" in line for line in lines)


# Goldens


def test_goldens(tmp_path: Path) -> None:
    fixture = Fixture(tmp_path / "f.py")
    complaint(support.wrong_goldens(fixture, MADE, Spam()), "f.golden.py is missing")
    fixture.golden.write_text(ONE)
    complaint(support.wrong_goldens(fixture, MADE, Spam()), "f.golden.py differs")
    complaint(support.wrong_goldens(fixture, MADE, Spam(applicability=None)), "delete it")
    fixture.golden.unlink()
    unsafe = Spam(applicability=Applicability.UNSAFE, reason="it is ham")
    complaint(support.wrong_goldens(fixture, MADE, unsafe), "f.unsafe.golden.py is missing")
    fixture.unsafe_golden.write_text(ONE.replace("spam(", "ham("))
    assert [*support.wrong_goldens(fixture, MADE, unsafe)] == []


# Promises and examples


def declared(level: Applicability | None) -> type[Rule]:
    return type(
        "SpamOverflow",
        (Rule,),
        {"code": "MP901", "applicability": level, "listens": ("spam",)},
    )


LEVELS = [None, Applicability.DISPLAY, Applicability.UNSAFE, Applicability.SAFE]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("actual", LEVELS)
def test_declared_applicability_is_the_strongest_one(
    level: Applicability | None, actual: Applicability | None
) -> None:
    found = Spam(applicability=None)(MADE) + Spam(applicability=actual)(MADE)
    lines = [*support.wrong_promise(declared(level), found)]
    assert bool(lines) == (level is not actual)


def test_findings_of_other_rules_keep_no_promise() -> None:
    found = Spam(code="MP902")(MADE)
    complaint(support.wrong_promise(declared(Applicability.SAFE), found), "no fix")


def test_rule_with_few_examples() -> None:
    complaint(support.few_examples("MP901", [TEXT, "x  # expect: MP901\n"]), "1 lines '# ok")
    complaint(support.few_examples("MP901", [TEXT, "x  # ok: MP901 why\n"]), "1 lines '# expect")
    assert [*support.few_examples("MP901", [TEXT, TEXT])] == []


def test_names_that_only_one_place_has() -> None:
    assert [*support.unequal("a", ["x", "y"], "b", ["y", "z"])] == [
        "a has x, b has not",
        "b has z, a has not",
    ]


# Variants


@pytest.mark.parametrize("name", sorted(support.VARIANTS))
def test_variants_differ_from_the_text_and_mean_the_same(name: str) -> None:
    text = ONE.replace('"""A fixture."""', '"""A\n    fixture."""')
    variant = support.VARIANTS[name](text)
    assert variant != text
    assert "\n    fixture" in variant.replace("\r\n", "\n")
    assert "spam(x)" in variant
    compile(variant.removeprefix("\ufeff"), "f.py", "exec")


def test_rule_that_is_blind_in_a_variant() -> None:
    assert support.differs_in_variant(MADE, Spam(pattern=r"(?<=        a = )spam\("), "tabs")
    lines = [*support.differs_in_variant(MADE, Spam(pattern=r"    a = spam\("), "tabs")]
    assert any("findings differ with tabs" in line for line in lines)
    lines = [*support.differs_in_variant(MADE, Spam(pattern=r"(?<=:\n        a = )spam\("), "crlf")]
    assert any("findings differ with crlf" in line for line in lines)


def test_fix_that_depends_on_the_newline() -> None:
    lint = Spam(edits=lambda m, s, e: (Edit(s, e, "ham(" if "\r" in m.text else "ham( "),))
    complaint(support.differs_in_variant(MADE, lint, "crlf"), "fixed text differs with crlf")


def test_fix_that_writes_its_own_indentation() -> None:
    lint = Spam(edits=at_line(5, "    ham = 1\n"))
    complaint(support.differs_in_variant(MADE, lint, "tabs"), "fixed text differs with tabs")
