"""What the analysis knows at a line, as text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from precision_lint.api import Diagnostic, Evidence


class Expression(Protocol):
    """What is known of one expression, in words."""

    @property
    def text(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def dtype(self) -> str: ...
    @property
    def range(self) -> str: ...
    @property
    def half(self) -> str: ...
    @property
    def why(self) -> Sequence[Evidence]: ...


class Description(Protocol):
    """What is known at a line, in words."""

    @property
    def function(self) -> str: ...
    @property
    def autocast(self) -> str: ...
    @property
    def why(self) -> Sequence[Evidence]: ...
    @property
    def plausible(self) -> bool: ...
    @property
    def expressions(self) -> Sequence[Expression]: ...


def render(place: str, known: Description, findings: Iterable[Diagnostic]) -> str:
    """The lines to print for a place ``file:row``."""
    where = f"{known.function}()" if known.function else "the module's own code"
    lines = [f"{place} in {where}", f"  autocast: {known.autocast}", *_links(known.why, place)]
    if known.autocast.startswith("as ") and not known.plausible:
        lines.append("  nothing shows that this function runs under autocast or in a half model")
    width = min(40, max((len(e.text) for e in known.expressions), default=0))
    for expression in known.expressions:
        parts = [expression.kind, expression.dtype, expression.range and f"in {expression.range}"]
        said = ", ".join(part for part in parts if part)
        text = expression.text
        text = text if len(text) <= 40 else f"{text[:37]}..."
        lines.append(f"  {text:{width}}  {said}")
        if expression.half:
            lines.append(f"  {'':{width}}  half: {expression.half}")
            if tuple(expression.why) != tuple(known.why):
                lines += _links(expression.why, place, "  ")
    for finding in findings:
        lines.append(f"  {finding.code} ({finding.confidence.value}): {finding.message}")
    return "\n".join(lines)


def _links(chain: Sequence[Evidence], place: str, indent: str = "") -> list[str]:
    file = place.rpartition(":")[0]
    return [
        f"{indent}    {link.message}"
        + (f" ({link.filename or file}:{link.start.row})" if link.start else "")
        for link in chain
    ]
