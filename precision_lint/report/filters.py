"""What hides findings on a page by rule, confidence and mode: check boxes and a style sheet, no scripts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from precision_lint.api import Confidence, Diagnostic

LEAST = 2
"""Choices from which on there is something to choose."""


def _name(text: str) -> str:
    return "".join(c if c.isalnum() or c == "-" else "_" for c in text)


def _choices(found: Sequence[Diagnostic]) -> dict[str, list[str]]:
    """By what is chosen, the values that there are, where there are several."""
    judged = [one for one in found if not one.code.startswith("MP0")]
    levels = {one.confidence.value for one in judged}
    table: dict[str, list[str]] = {
        "Rule": sorted({one.code for one in found}),
        "Confidence": [one.value for one in reversed(Confidence) if one.value in levels],
        "Mode": sorted({mode for one in judged for mode in one.modes}),
    }
    return {what: values for what, values in table.items() if len(values) >= LEAST}


def _box(what: str, value: str) -> str:
    return f"show-{what.lower()}-{_name(value)}"


def controls(found: Sequence[Diagnostic]) -> str:
    """A row of check boxes for each choice."""
    rows = []
    for what, values in _choices(found).items():
        boxes = "".join(
            f'<label for="{_box(what, value)}"><input type="checkbox" checked="" '
            f'id="{_box(what, value)}">{escape("as written" if value == "code" else value)}</label>'
            for value in values
        )
        rows.append(f'<div class="filters"><b>{what}</b>{boxes}</div>')
    return "\n".join(rows)


def classes(one: Diagnostic) -> str:
    """The classes by which a finding is hidden."""
    names = [f"rule-{_name(one.code)}"]
    if not one.code.startswith("MP0"):
        names.append(f"confidence-{one.confidence.value}")
    if one.modes:
        names.append(_modes(one.modes))
    return " ".join(names)


def _modes(modes: Iterable[str]) -> str:
    return f"mode-{_name('_'.join(sorted(modes)))}"


def style(found: Sequence[Diagnostic]) -> str:
    """Hides what no box that is ticked shows."""
    choices = _choices(found)
    rules = [
        (f"{what.lower()}-{_name(value)}", [_box(what, value)])
        for what, values in choices.items()
        if what != "Mode"
        for value in values
    ]
    if "Mode" in choices:
        sets = {tuple(sorted(one.modes)) for one in found if one.modes}
        rules += [(_modes(one), [_box("Mode", mode) for mode in one]) for one in sorted(sets)]
    return "".join(
        f"body{''.join(f':has(#{box}:not(:checked))' for box in boxes)} .{name} {{ display: none; }}\n"
        for name, boxes in rules
    )
