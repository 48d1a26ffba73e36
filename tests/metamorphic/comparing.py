"""Findings of a fixture before and after a rewriting."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from precision_lint.api import Confidence, Diagnostic
from precision_lint.harness import expectations
from precision_lint.source import Source
from tests import linting
from tests.metamorphic.rewritings import rewritten

BY_NAME = frozenset({"MP501", "MP607", "MP407", "MP408"})
"""Rules about things that nothing but a name tells apart: cameras, boxes, averages, classes."""
SIGNIFICANT = Confidence.LIKELY


def _verdicts(found: list[Diagnostic], renaming: bool) -> Counter[str]:
    return Counter(
        d.code
        for d in found
        if d.confidence.rank >= SIGNIFICANT.rank and not (renaming and d.code in BY_NAME)
    )


def differences(path: Path, name: str) -> tuple[int, list[str]] | None:
    """How many verdicts a fixture has, and which are lost (``-``) or new (``+``) after a rewriting."""
    texts = rewritten(path.read_text(), name)
    if texts is None:
        return None
    renaming = "renamed" in name
    lint = linting.linter(path)
    before, after = (_verdicts(lint(Source(str(path), text)), renaming) for text in texts)
    lost = [f"-{code}" for code in (before - after).elements()]
    return before.total(), lost + [f"+{code}" for code in (after - before).elements()]


def fixtures() -> Iterator[Path]:
    for one in expectations.fixtures(expectations.home()):
        yield one.path
