"""What the analysis knows at a line, as text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from precision_lint.api import Diagnostic
from precision_lint.display import printable

WIDTH = 40
"""Columns of an expression at most."""


class Expression(Protocol):
    """What is known of one expression, in words."""

    @property
    def text(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def dtypes(self) -> Mapping[str, str]: ...
    @property
    def range(self) -> str: ...
    @property
    def assumptions(self) -> Sequence[str]: ...


class Noted(Protocol):
    """A hazard, in words."""

    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def modes(self) -> Sequence[str]: ...
    @property
    def confidence(self) -> str: ...
    @property
    def assumptions(self) -> Sequence[str]: ...


class Around(Protocol):
    """Autocast's state, in words."""

    @property
    def state(self) -> str: ...
    @property
    def dtypes(self) -> Mapping[str, str]: ...


class Description(Protocol):
    """What is known at a line, in words."""

    @property
    def function(self) -> str: ...
    @property
    def autocast(self) -> Around: ...
    @property
    def in_force(self) -> Mapping[str, str]: ...
    @property
    def expressions(self) -> Sequence[Expression]: ...
    @property
    def events(self) -> Sequence[Noted]: ...
    @property
    def stated(self) -> Sequence[str]: ...


def render(place: str, known: Description, findings: Iterable[Diagnostic]) -> str:
    """The lines to print for a place ``file:row``."""
    where = f"{known.function}()" if known.function else "the module's own code"
    lines = [
        f"{printable(place)} in {where}",
        f"  autocast: {by_mode(known.autocast.dtypes, 'off')}",
    ]
    lines += [f"  mode in force: {mode} ({why})" for mode, why in known.in_force.items()]
    lines += [f"  stated: {fact}" for fact in known.stated]
    width = min(WIDTH, max((len(e.text) for e in known.expressions), default=0))
    for expression in known.expressions:
        text = expression.text
        text = text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."
        lines.append(f"  {text:{width}}  {said(expression)}")
        lines += _if(expression.assumptions, width + 4)
    for event in known.events:
        sure = event.confidence or "no finding"
        lines.append(f"  candidate {event.kind} ({sure}) at {event.text}")
        lines.append(f"    modes: {', '.join(map(mode_words, event.modes))}")
        lines += _if(event.assumptions, 4)
    for finding in findings:
        lines.append(f"  {finding.code} ({finding.confidence.value}): {printable(finding.message)}")
    return "\n".join(lines)


def said(expression: Expression) -> str:
    """What is known of an expression, on one line."""
    parts = [expression.kind, by_mode(expression.dtypes)]
    half = any("float16" in dtype for dtype in expression.dtypes.values())
    rounding = " before rounding" if half else ""
    one = "" if expression.range[:1] in ("[", "(") else "equal to "
    parts.append(expression.range and f"{one or 'in '}{expression.range}{rounding}")
    return ", ".join(part for part in parts if part)


def by_mode(dtypes: Mapping[str, str], nothing: str = "") -> str:
    """Dtypes by mode; modes with the same one stand together."""
    groups: dict[str, list[str]] = {}
    for mode, dtype in dtypes.items():
        groups.setdefault(dtype or nothing, []).append(mode_words(mode))
    if len(groups) < 2:
        return next(iter(groups), nothing)
    return "; ".join(f"{dtype} ({', '.join(modes)})" for dtype, modes in groups.items() if dtype)


def mode_words(mode: str) -> str:
    """A mode as people read it."""
    return "as written" if mode == "code" else mode


def _if(assumptions: Sequence[str], indent: int) -> list[str]:
    return [f"{'':{indent}}if {'; '.join(assumptions)}"] if assumptions else []
