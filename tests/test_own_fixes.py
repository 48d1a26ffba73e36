"""What the tool's own fixes must never produce: the three repairs that repair nothing.

Upcasting without leaving autocast (MP202), leaving autocast without upcasting (MP203), leaving
the wrong device's autocast (MP204).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from precision_lint.api import Diagnostic
from precision_lint.harness.expectations import fixtures, home
from precision_lint.source import Source

from . import fixtures_support as support
from .linting import linter

SHAM = {"MP202", "MP203", "MP204"}
"""Codes of repairs that change nothing."""
FIXTURES = {f"{f.rule}/{f.path.stem}": f for f in fixtures(home())}
GOLDENS = {
    f"{fixture.rule}/{path.stem}": (fixture, path)
    for fixture in FIXTURES.values()
    for path in (fixture.golden, fixture.unsafe_golden)
    if path.exists()
}


def sham(found: list[Diagnostic]) -> Counter[tuple[str, str]]:
    """Sham repairs in a text, of any confidence, by code and confidence."""
    return Counter((d.code, d.confidence.value) for d in found if d.code in SHAM)


def produced(made: Source, path: Path) -> Iterator[str]:
    """Fixes, each applied alone, after which a text has a sham repair that it had not."""
    lint = linter(path)
    found = lint(made)
    before = sham(found)
    for diagnostic in found:
        if diagnostic.fix is None or not diagnostic.fix.edits:
            continue
        if support.withheld(made, lint, diagnostic, everything=True):
            continue
        after = lint(support.apply(made, diagnostic))
        elsewhere = [d for d in after if d.start != diagnostic.start]  # there it is what comes next
        for key in sham(elsewhere) - before:
            yield f"{support.describe(diagnostic)}: its fix produces {' '.join(key)}"


@pytest.mark.parametrize("name", sorted(FIXTURES))
def test_no_fix_produces_a_sham_repair(name: str) -> None:
    fixture = FIXTURES[name]
    complaints = list(produced(support.load(fixture), fixture.path))
    assert not complaints, "\n" + "\n".join(complaints)


@pytest.mark.parametrize("name", sorted(GOLDENS))
def test_no_golden_has_more_sham_repairs_than_its_fixture(name: str) -> None:
    fixture, golden = GOLDENS[name]
    lint = linter(fixture.path)
    before = sham(lint(support.load(fixture)))
    after = sham(lint(support.source(golden.read_bytes(), str(fixture.path))))
    assert not after - before


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("MP202", "return query.float() @ key.float()"),
        (
            "MP203",
            "with torch.autocast('cuda', enabled=False):\n            return (query @ key) @ key",
        ),
        ("MP204", "with torch.autocast('cpu', enabled=False):\n            return query @ key"),
    ],
)
def test_each_sham_repair_is_seen(code: str, text: str) -> None:
    """The tests above can fail: their lint sees what they look for."""
    made = support.source(
        "import torch\n\n\ndef scores(query, key):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        f"        query = query @ key\n        {text}\n"
    )
    assert code in {d.code for d in linter(Path("scores.py"))(made)}
