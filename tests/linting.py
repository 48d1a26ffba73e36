"""How fixtures are linted: no text twice."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from precision_lint import registry
from precision_lint.api import Diagnostic
from precision_lint.harness import expectations
from precision_lint.harness.expectations import Lint
from precision_lint.source import Source

RULES = registry.rules()


def remembering(lint: Lint) -> Lint:
    """The same, which lints no text twice."""
    known: dict[Source, list[Diagnostic]] = {}

    def remembered(made: Source) -> list[Diagnostic]:
        if made not in known:
            known[made] = lint(made)
        return known[made]

    return remembered


@cache
def linter(path: Path) -> Lint:
    """A function from any text of a fixture to what all rules find in it, of every confidence."""
    return remembering(expectations.linter(RULES.values(), path))
