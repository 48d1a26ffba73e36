"""Findings of the last text that parsed, in a text that does not: a bracket that is still open."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from precision_lint.api import Diagnostic, Evidence, Position
from precision_lint.source import Source


def moved(found: Sequence[Diagnostic], before: Source, now: Source) -> Iterator[Diagnostic]:
    """Findings where they are after an edit, without fixes; those in edited lines are left out."""
    old, new = _rows(before), _rows(now)
    head = _common(old, new)
    tail = _common(old[head:][::-1], new[head:][::-1])
    last, shift = len(old) - tail, len(new) - len(old)

    def place(position: Position | None) -> Position | None:
        if position is None or position.row <= head:
            return position
        return replace(position, row=position.row + shift) if position.row > last else None

    for one in found:
        start, end = place(one.start), place(one.end)
        if start is not None and end is not None:
            links = (_moved(link, place(link.start), place(link.end)) if _is_here(link) else link
                     for link in one.evidence)  # fmt: skip
            kept = tuple(link for link in links if link is not None)
            yield replace(one, start=start, end=end, fix=None, evidence=kept)


def _rows(source: Source) -> list[str]:
    ends = [*source.lines[1:], len(source.text)]
    return [source.text[start:end] for start, end in zip(source.lines, ends, strict=True)]


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """How many items two sequences begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (a, b) in pairs if a != b), min(len(one), len(other)))


def _is_here(link: Evidence) -> bool:
    return not link.filename and link.start is not None and link.end is not None


def _moved(link: Evidence, start: Position | None, end: Position | None) -> Evidence | None:
    return replace(link, start=start, end=end) if start is not None and end is not None else None
