"""A closer look at files than a run takes: what is known at a row, and what `verify` executes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from precision_lint import dispatch, source
from precision_lint.api import Applicability, Confidence, Diagnostic, Evidence
from precision_lint.config import ConfigError, Resolver
from precision_lint.project import files
from precision_lint.runner import (
    Job,
    Known,
    Mode,
    collector_off,
    cores,
    deep_recursion,
    diagnose,
    is_relevant,
    job_of,
    known_of,
)
from precision_lint.semantics.context import Context
from precision_lint.semantics.describe import Description
from precision_lint.source import Failure, Source


def explain_at(
    shown: Path, row: int, cell: int | None, resolver: Resolver
) -> tuple[Description, list[Diagnostic]] | Failure:
    """What the analysis knows at a row of a file, and every finding there of any confidence.

    The row of a notebook is one of its cell by this number.
    """
    path = files.absolute(shown)
    settings = resolver(path.parent)
    text = source.read(path, str(shown))
    if isinstance(text, Failure):
        return text
    row = _row(text, row, cell)
    root = files.project_root(path)
    known = known_of(root, settings, [path], cores())
    survey, program = known
    project = survey.around(path, text.text)
    with collector_off(), deep_recursion():
        description = dispatch.describe(
            text, row, project, program, program.relative(path) if program else ""
        )
        if isinstance(description, Failure):
            return description
        job = job_of(files.File(path, str(shown), settings, root), Mode.CHECK)
        found = diagnose(text, replace(job, confidence=Confidence.POSSIBLE, held=None), known)
    return (
        _in_cells(text, description) if text.notebook else description,
        [d for d in found.diagnostics if d.start.row <= row <= d.end.row],
    )


def _row(text: Source, row: int, cell: int | None) -> int:
    """The row of the text that a row of a file, or of a notebook's cell, is."""
    cells = text.notebook.cells if text.notebook else ()
    first, last, what = 1, len(text.text.splitlines()), "the file"
    if text.notebook or cell is not None:
        found = next((one for one in cells if one.number == cell), None)
        if found is None:
            numbers = ", ".join(str(one.number) for one in cells) or "none"
            hint = f"the Python cells are {numbers}; write {text.filename}:cell N:LINE"
            raise ConfigError(f"{text.filename}: no cell {cell or 'is named'}; {hint}")
        first, what = text.position(found.start).row, f"cell {cell}"
        last = text.position(found.end).row - first + 1
    if row > max(last, 1):
        raise ConfigError(f"{text.filename}:{row}: {what} has {last} lines; name one of them")
    return first + row - 1


def _in_cells(text: Source, known: Description) -> Description:
    """What is known, with the places of the evidence as those in cells."""

    def placed(link: Evidence) -> Evidence:
        if link.start is None or link.filename not in (None, text.filename):
            return link
        cell, start = text.in_cell(link.start)
        return Evidence(link.message, start, None, f"{text.filename}:cell {cell}")

    expressions = tuple(replace(one, why=tuple(map(placed, one.why))) for one in known.expressions)
    return replace(known, why=tuple(map(placed, known.why)), expressions=expressions)


@dataclass(frozen=True)
class Examined:
    """A file with findings, for who wants to know more of them than a report does.

    ``at``: the analysis at a row.  ``fixed``: the text with every fix that is applied.
    """

    source: Source
    diagnostics: list[Diagnostic]
    at: Callable[[int], Context]
    fixed: Callable[[], str]


def examine(paths: Iterable[Path], resolver: Resolver) -> Iterator[Examined | str]:
    """The files with findings among what the paths name; a line for each that cannot be read."""
    found = files.discover(paths, resolver)
    yield from found.errors
    projects: dict[Path, Known] = {}
    for file in found.files:
        job = job_of(file, Mode.CHECK)
        text = source.read(file.path, file.name)
        if isinstance(text, Failure):
            yield f"{file.name}: {text.message}"
            continue
        if not is_relevant(text.text.encode("utf8", "surrogatepass"), job.codes):
            continue
        if file.root not in projects:
            named = {one.path for one in found.files if one.root == file.root}
            projects[file.root] = known_of(file.root, resolver(file.root), named, cores())
        survey, program = known = projects[file.root]
        with deep_recursion():
            diagnostics = diagnose(text, job, known).diagnostics
            relative = program.relative(file.path) if program else ""
            at = dispatch.contexts(text, survey.around(file.path, text.text), program, relative)
            if isinstance(at, Failure):
                yield f"{file.name}:{at.position.row}: {at.message}"
            elif diagnostics:
                yield Examined(text, diagnostics, at, functools.partial(_fixed, text, job, known))


def _fixed(text: Source, job: Job, known: Known) -> str:
    from precision_lint import fixer

    levels = {Applicability.SAFE, Applicability.UNSAFE}
    with deep_recursion():
        return fixer.fix(
            text, lambda one: diagnose(one, job, known).diagnostics, levels
        ).source.text
