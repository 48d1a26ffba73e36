"""Comments that state facts: what is wrong with those that cannot be read, or add nothing."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from precision_lint import registry, source
from precision_lint.api import Applicability, Confidence, Diagnostic, Edit, Fix, Severity
from precision_lint.events import Event
from precision_lint.source import Source
from precision_lint.syntax import stated
from precision_lint.syntax.stated import Mistake, Range, Stated, read, speaks

CODE = "MP005"
SAID = {
    stated.UNREADABLE: "{kind} is no dtype; write float16, bfloat16, float32, float64, int or bool",
    stated.REFUTED: "the code says otherwise: {name} is {proved} here",
    stated.NAMELESS: "nothing is called {root} here",
    stated.UNFIT: "{name} is nothing that has {what}",
    stated.KNOWN: "the code shows it already; remove it",
    "": "the analysis does not come here, so that it adds nothing; remove it",
}
"""What is said of a fact, by what came of it."""
IDLE = (stated.KNOWN, "")


def diagnostics(
    text: Source, tree: ast.Module, events: Iterable[Event], path: str
) -> list[Diagnostic]:
    """What is wrong with the facts that a file's comments state (``MP005``).

    events: what the analysis found, in any file; path: the file's name in them.
    """
    facts, mistakes = read(tree, text.text)
    if not facts and not mistakes:
        return []
    outcomes: dict[tuple[int, int], dict[str, str]] = {}
    for event in events:
        if event.kind == stated.EVENT and event.place.path == path:
            place = event.place.row, event.place.column
            said = outcomes.setdefault(place, {})
            said[event.facts["key"]] = event.facts["proved"]
    found = [_mistaken(text, one) for one in mistakes]
    for fact in facts:
        said = outcomes.get((fact.place.row, fact.place.column), {})
        found += _of_fact(text, fact, said)
    return sorted(found, key=lambda one: one.start)


def unread(text: Source, idle: bool) -> list[Diagnostic]:
    """The same for a file that is not analysed; ``idle``: whether that is because nothing could be found."""
    if not speaks(text.text):
        return []
    tree = source.parse(text)
    if not isinstance(tree, ast.Module):
        return []
    if idle:
        return diagnostics(text, tree, (), text.filename)
    return [_mistaken(text, one) for one in read(tree, text.text)[1]]


def _of_fact(text: Source, fact: Stated, said: dict[str, str]) -> Iterator[Diagnostic]:
    order = (stated.UNREADABLE, stated.REFUTED, stated.NEW, *SAID)
    worst = next((one for one in order if one in said), "")
    if worst == stated.NEW:
        return
    message = SAID[worst].format(
        kind=fact.kind,
        name=fact.name,
        root=fact.name.partition(".")[0],
        proved=said.get(worst, ""),
        what="a dtype" if fact.kind else "bounds",
    )
    fix = _removal(text, fact) if worst in IDLE else None
    yield _diagnostic(text, fact.place, f"assumption `{fact.text}`: {message}", fix)


def _mistaken(text: Source, mistake: Mistake) -> Diagnostic:
    return _diagnostic(text, mistake.place, f"assumption {mistake.text}")


def _diagnostic(text: Source, place: Range, message: str, fix: Fix | None = None) -> Diagnostic:
    return Diagnostic(
        code=CODE,
        name=registry.ENGINE_CODES[CODE],
        message=message,
        filename=text.filename,
        start=text.position(text.offset(place.row, place.column)),
        end=text.position(text.offset(place.row, place.end_column)),
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        fix=fix,
    )


def _removal(text: Source, fact: Stated) -> Fix | None:
    """Take a fact out of its comment, or all of a comment that holds nothing else."""
    row = fact.place.row
    first = text.lines[row - 1]
    behind = text.lines[row] if row < len(text.lines) else len(text.text)
    start = text.offset(row, fact.place.column)
    end = text.offset(row, fact.place.end_column)
    mark = text.text.rindex("#", first, start)
    rest = text.text[end:behind]
    if rest.lstrip().startswith(","):
        end = text.text.index(",", end) + 1
        end += len(text.text[end:behind]) - len(text.text[end:behind].lstrip(" \t"))
    elif "," in text.text[mark:start]:
        start = text.text.rindex(",", mark, start)
    elif rest.strip():
        return None  # words of the author follow
    else:
        code = text.text[first:mark].rstrip()
        start, end = (first, behind) if not code else (first + len(code), end)
    edit = Edit(start, end, "")
    return Fix(f"remove the assumption {fact.text}", Applicability.SAFE, (edit,))


__all__ = ["diagnostics", "speaks", "unread"]
