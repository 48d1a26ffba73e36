"""Fixtures: where they lie, what they expect, and how the tool lints and fixes them.

An expectation is a comment on the line where a diagnostic starts.

``# expect: MP301`` wants a diagnostic of that code on this line; words after the code narrow it
to a confidence (``certain``, ``likely``, ``possible``) or a severity (``error``, ``warning``,
``info``); a semicolon separates several.  ``# ok: MP301 reason`` marks a line that looks like the
hazard and is none: nothing of that code may be reported there.

Two comments keep the analysis honest about itself.  ``# missed: MP301`` marks a hazard that it does not
find, ``# wrong: MP301 reason`` an alarm that it raises and should not; a test holds that both are still
so, and that they do not become more.

``# modes: float16, amp-float16`` states modes, as a user would; without it nothing is stated.
"""

from __future__ import annotations

import importlib
import io
import re
import tokenize
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from precision_lint import engine, fixer
from precision_lint.api import Applicability, Confidence, Diagnostic, Rule, Severity
from precision_lint.engine import Engine, told
from precision_lint.project.code import Code
from precision_lint.source import Source

SAFE = frozenset({Applicability.SAFE})
UNSAFE = frozenset({Applicability.SAFE, Applicability.UNSAFE})
Lint = Callable[[Source], list[Diagnostic]]

_EXPECT = re.compile(r"#\s*expect:([^#]*)")
_OK = re.compile(r"#\s*ok:([^#]*)")
_MISSED = re.compile(r"#\s*missed:\s*(MP\d{3})")
_WRONG = re.compile(r"#\s*wrong:\s*(MP\d{3})")
_MODES = re.compile(r"^# modes: (.+)$", re.MULTILINE)
_CODE = re.compile(r"MP\d{3}")
_CONFIDENCES = {confidence.value: confidence for confidence in Confidence}
_SEVERITIES = {severity.value: severity for severity in Severity}
_ASIDES = ("__init__.py", "proof.py")


@dataclass(frozen=True)
class Expectation:
    """A diagnostic that must start on this row (from 1); None stands for any."""

    row: int
    code: str
    confidence: Confidence | None = None
    severity: Severity | None = None

    def __str__(self) -> str:
        words = (self.confidence, self.severity)
        return self.code + "".join(f" {word.value}" for word in words if word)


@dataclass(frozen=True)
class Negative:
    """A row (from 1) on which a code must stay silent, and why."""

    row: int
    code: str
    reason: str


class BadExpectation(ValueError):
    """An expectation that cannot be read; the text is one line that names its row."""


def comments(text: str) -> Iterator[tuple[int, str]]:
    """Row and text of every comment token of a module, in order."""
    readline = io.StringIO(text, newline="").readline
    for token in tokenize.generate_tokens(readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.rstrip()


def expectations(text: str) -> list[Expectation]:
    """What a fixture's ``# expect:`` comments ask for, by row.

    Raises ``BadExpectation`` for a comment without a code or with an unknown word.
    """
    return [
        _expectation(row, item)
        for row, comment in comments(text)
        for match in _EXPECT.finditer(comment)
        for item in match[1].split(";")
    ]


def negatives(text: str) -> list[Negative]:
    """The lines that a fixture's ``# ok:`` comments declare free of a hazard.

    Raises ``BadExpectation`` for a comment without a code or without a reason.
    """
    found = []
    for row, comment in comments(text):
        for match in _OK.finditer(comment):
            code, _, reason = match[1].strip().partition(" ")
            if not _CODE.fullmatch(code) or not reason.strip():
                raise BadExpectation(f"row {row}: '# ok:' needs a code and a reason; write both")
            found.append(Negative(row, code, reason.strip()))
    return found


def shortcomings(text: str) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
    """Rows and codes of what the analysis misses, and of alarms that are wrong."""
    found: tuple[set[tuple[int, str]], set[tuple[int, str]]] = (set(), set())
    for row, comment in comments(text):
        for kind, pattern in zip(found, (_MISSED, _WRONG), strict=True):
            kind.update((row, match[1]) for match in pattern.finditer(comment))
    return found


def _expectation(row: int, item: str) -> Expectation:
    code, *words = item.split() or [""]
    if not _CODE.fullmatch(code):
        raise BadExpectation(f"row {row}: '# expect:' has no code in {item!r}; write MP and digits")
    confidence: Confidence | None = None
    severity: Severity | None = None
    for word in words:
        if word in _CONFIDENCES and confidence is None:
            confidence = _CONFIDENCES[word]
        elif word in _SEVERITIES and severity is None:
            severity = _SEVERITIES[word]
        else:
            raise BadExpectation(
                f"row {row}: '# expect:' does not know {word!r}; write one confidence, one severity"
            )
    return Expectation(row, code, confidence, severity)


@dataclass(frozen=True)
class Fixture:
    """A runnable module that shows a hazard or a trap, in the folder of its rule."""

    path: Path

    @property
    def rule(self) -> str:
        """Stem of the rule's module, which is the folder's name."""
        return self.path.parent.name

    @property
    def golden(self) -> Path:
        """Where the text with all safe fixes lies; missing if no safe fix applies."""
        return self.path.with_suffix(".golden.py")

    @property
    def unsafe_golden(self) -> Path:
        """Where the text with the unsafe fixes too lies; missing if no unsafe fix applies."""
        return self.path.with_suffix(".unsafe.golden.py")


def home() -> Path:
    """The folder of the fixtures that ship."""
    return Path(str(importlib.import_module("precision_lint.fixtures").__file__)).parent


def folders(root: Path) -> list[Path]:
    """The folders of fixtures under ``root``, by name."""
    return sorted(path for path in root.iterdir() if path.is_dir() and path.name[:1] not in "_.")


def modules(folder: Path) -> list[Path]:
    """The fixtures of a folder, by name; goldens and proofs are not fixtures."""
    return [
        path
        for path in sorted(folder.glob("*.py"))
        if path.name not in _ASIDES and not path.name.endswith(".golden.py")
    ]


def fixtures(root: Path) -> list[Fixture]:
    """All fixtures under ``root``, by path."""
    return [Fixture(path) for folder in folders(root) for path in modules(folder)]


def stated(path: Path) -> tuple[str, ...] | None:
    """The modes that a fixture states; None: it states none."""
    found = _MODES.search(path.read_text("utf-8"))
    return tuple(found[1].split(", ")) if found else None


def linter(rules: Collection[type[Rule]], path: Path) -> Lint:
    """A function from any text of a fixture to its findings of every confidence.

    A fixture is a project of its own: what other files do is no evidence for it.  Rules in preview
    look at their own fixtures only.
    """
    own = path.parent.name[:5].upper()
    chosen = [rule for rule in rules if not rule.preview or rule.code == own]

    kinds = engine.listened(chosen)
    modes = stated(path) if path.exists() else None

    def lint(text: Source) -> list[Diagnostic]:
        code = Code(path.parent, {path.name}, texts={path.name: text})
        with engine.deep_recursion():
            known = told(path.name, {path.name: Engine(code, kinds).facts(path.name)})
            known = replace(known, stated=modes)
            return engine.lint(text, code, path.name, known, chosen)

    return lint


def shown(diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """What the command line reports, and fixes, by default."""
    return [d for d in diagnostics if d.confidence.rank >= Confidence.LIKELY.rank]


def fixed(source: Source, lint: Lint, levels: Collection[Applicability]) -> fixer.Fixed:
    """The text as ``--fix`` (``SAFE``) or ``--unsafe-fixes`` (``UNSAFE``) leaves it."""
    return fixer.fix(source, lambda text: shown(lint(text)), levels)


def unmet(
    text: str, diagnostics: Iterable[Diagnostic]
) -> tuple[list[Expectation], list[Diagnostic]]:
    """The expectations of a text that nothing meets, and the diagnostics that meet none.

    They pair up one to one.
    """
    left = list(diagnostics)
    missed = []
    # the narrowest first, so that a plain code does not take the diagnostic of another
    wanted = sorted(expectations(text), key=lambda e: (e.confidence is None) + (e.severity is None))
    for want in wanted:
        for d in left:
            if (
                (d.start.row, d.code) == (want.row, want.code)
                and want.confidence in (None, d.confidence)
                and want.severity in (None, d.severity)
            ):
                left.remove(d)
                break
        else:
            missed.append(want)
    wrong = shortcomings(text)[1]
    return missed, [d for d in left if (d.start.row, d.code) not in wrong]


def goldens(fixture: Fixture, source: Source, lint: Lint) -> dict[Path, bytes | None]:
    """What the goldens of a fixture hold by rights; None: there must not be one."""
    safe, unsafe = fixed(source, lint, SAFE), fixed(source, lint, UNSAFE)
    return {
        fixture.golden: safe.source.encode() if safe.applied else None,
        fixture.unsafe_golden: unsafe.source.encode() if unsafe.source != safe.source else None,
    }
