"""What is said at the cursor: the findings there with their rules, and what the analysis knows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from precision_lint import registry
from precision_lint.api import Diagnostic, Evidence, Position
from precision_lint.observing import Description, Expression
from precision_lint.report.files import promise
from precision_lint.report.place import by_mode, said

SECTIONS = ("Why it breaks", "Fix safety")
"""Of a rule's documentation; the rest is a link away."""


def markdown(known: Description | None, findings: Sequence[Diagnostic], at: Position) -> str:
    """The text for a place; empty where there is nothing to say."""
    parts = [_finding(finding) for finding in findings]
    if known is not None:
        parts += _knowledge(known, at)
    return "\n\n---\n\n".join(parts)


def _finding(found: Diagnostic) -> str:
    rule = registry.rules().get(found.code)
    doc = registry.document(rule) if rule else None
    lines = [f"**{found.code}** {found.name} ({found.confidence.value}): {found.message}"]
    lines += [f"- {link.message}{_where(link)}" for link in found.evidence]
    lines += [f"- assumed: {text}" for text in found.assumptions]
    if found.fix:
        lines.append(f"\nFix: {promise(found.fix)}")
    if doc:
        lines.append(f"\n{doc.summary}")
        lines += [f"\n{doc.sections[title]}" for title in SECTIONS]
    return "\n".join(lines)


def _where(link: Evidence) -> str:
    if link.start is None:
        return f" ({link.filename})" if link.filename else ""
    return f" ({link.filename}:{link.start.row})" if link.filename else f" (line {link.start.row})"


def _knowledge(known: Description, at: Position) -> list[str]:
    """What is known of the expression at a place, and the autocast state there."""
    expression = _innermost(known.expressions, at)
    if expression is None:
        return []
    lines = [f"`{expression.text}`: {said(expression)}"]
    lines += [f"- if {one}" for one in expression.assumptions]
    lines += [f"- stated: {one}" for one in known.stated]
    lines.append(f"\nautocast: {by_mode(known.autocast.dtypes, 'off')}")
    return ["\n".join(lines)]


def _innermost(expressions: Iterable[Expression], at: Position) -> Expression | None:
    """The shortest expression whose text lies around a place of its row."""
    around = [
        one
        for one in expressions
        if one.start.row == at.row
        and one.start.column <= at.column <= one.start.column + len(one.text)
    ]
    return min(around, key=lambda one: len(one.text), default=None)
