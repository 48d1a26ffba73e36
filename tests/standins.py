"""Rules that find words, so that what happens around the rules is tested apart from them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import pytest

from precision_lint import engine, registry
from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Fix,
    Rule,
    Severity,
)
from precision_lint.source import Failure, Source, parse

SAFE, UNSAFE = Applicability.SAFE, Applicability.UNSAFE


class Word(Rule):
    """A word that is hazardous.

    ## What it flags
    The word.
    """

    word: str
    better: str | None = None
    confidence = Confidence.CERTAIN
    listens = ("word",)
    applicability: ClassVar[Applicability | None] = SAFE

    def check(self, node: Any, at: Any) -> Iterator[Any]:
        yield from ()


class BadWord(Word):
    """A bad word."""

    code, name, severity = "MP911", "bad-word", Severity.ERROR
    word, better = "BAD", "GOOD"


class OddWord(Word):
    """An odd word."""

    code, name, severity = "MP912", "odd-word", Severity.WARNING
    word, better, applicability = "ODD", "EVEN", UNSAFE
    confidence = Confidence.LIKELY


class MehWord(Word):
    """A word of no consequence."""

    code, name, severity = "MP921", "meh-word", Severity.INFO
    word, applicability = "MEH", None


class MaybeWord(Word):
    """A word that may be bad."""

    code, name, severity = "MP922", "maybe-word", Severity.ERROR
    word, applicability = "MAYBE", None
    confidence = Confidence.POSSIBLE


RULES: dict[str, type[Word]] = {rule.code: rule for rule in (BadWord, OddWord, MehWord, MaybeWord)}


def lint(
    source: Source,
    code: Any,
    name: str,
    known: Any,
    rules: Sequence[type[Word]],
    further: Any = None,
) -> list[Diagnostic]:
    """In place of ``engine.lint``: words are findings, CRASH is a bug, DIE kills the process."""
    tree = parse(source)
    if isinstance(tree, Failure):
        return [tree.diagnostic()]
    if "CRASH" in source.text:
        raise KeyError("CRASH")
    if "DIE" in source.text:
        os._exit(9)
    return [
        _diagnostic(rule, source, match)
        for rule in rules
        for match in re.finditer(rf"\b{rule.word}\b", source.text)
    ]


def _diagnostic(rule: type[Word], source: Source, match: re.Match[str]) -> Diagnostic:
    start, end = match.span()
    edits = (Edit(start, end, rule.better),) if rule.better else ()
    fix = rule.applicability and Fix(f"write {rule.better}", rule.applicability, edits)
    return Diagnostic(
        rule.code,
        rule.name,
        f"{rule.word} is hazardous",
        source.filename,
        source.position(start),
        source.position(end),
        rule.severity,
        rule.confidence,
        fix=fix,
    )


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let these rules be all that there are."""
    names = {rule.name: code for code, rule in RULES.items()}
    own = {name: code for code, name in registry.ENGINE_CODES.items()}

    def entries() -> dict[str, registry.Entry]:
        return {code: registry.Entry.of(rule) for code, rule in RULES.items()}

    monkeypatch.setattr(registry, "rules", lambda: RULES)
    monkeypatch.setattr(registry, "entries", entries)
    monkeypatch.setattr(registry, "names", lambda: own | names)
    monkeypatch.setattr(engine, "lint", lint)
