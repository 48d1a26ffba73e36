"""A closer look at files than a run takes: what is known at a row, and what `verify` executes."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from precision_lint import source
from precision_lint.api import Applicability, Confidence, Diagnostic
from precision_lint.config import ConfigError, Resolver
from precision_lint.engine import Told, deep_recursion
from precision_lint.gathering import cache_of, collector_off, interpreted
from precision_lint.jobs import Job, Mode, is_relevant, job_of
from precision_lint.judging import Judge
from precision_lint.observing import Description, Observation, describe
from precision_lint.project import files
from precision_lint.project.code import Code
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
    tree = source.parse(text)
    if isinstance(tree, Failure):
        return tree
    root = files.project_root(path)
    code = Code.of(root, settings, [path])
    name = code.name(path)
    with closing(cache_of(root, settings)) as cache:
        told = interpreted({root: [name]}, {root: code}, {root: cache})[root][name]
    with collector_off(), deep_recursion():
        job = job_of(files.File(str(path), str(shown), settings, root), Mode.CHECK)
        told = replace(told, stated=job.stated)
        description = describe(text, tree, code, name, told, row)
        judge = Judge(replace(job, confidence=Confidence.POSSIBLE, held=None), code, told)
        found = judge.outcome(text, judge.find(text)).diagnostics
    return (
        _in_cells(text, description) if text.notebook else description,
        [d for d in found if d.start.row <= row <= d.end.row],
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
    """What is known, with the places of expressions as those in cells."""
    expressions = tuple(replace(one, start=text.in_cell(one.start)[1]) for one in known.expressions)
    return replace(known, expressions=expressions)


@dataclass(frozen=True)
class Examined:
    """A file with findings, for who wants to know more of them than a report does.

    ``seen``: what the interpreter knows inside.  ``fixed``: the text with every fix that is
    applied.
    """

    source: Source
    tree: ast.Module
    diagnostics: list[Diagnostic]
    seen: Observation
    fixed: Callable[[], str]


def examine(paths: Iterable[Path], resolver: Resolver) -> Iterator[Examined | str]:
    """The files with findings among what the paths name; a line for each that cannot be read."""
    found = files.discover(paths, resolver)
    yield from found.errors
    jobs: list[tuple[Job, Source, ast.Module]] = []
    for file in found.files:
        job = job_of(file, Mode.CHECK)
        text = source.read(file.path, file.name)
        if isinstance(text, Failure):
            yield f"{file.name}: {text.message}"
            continue
        if not is_relevant(text.text.encode("utf8", "surrogatepass"), job.codes):
            continue
        tree = source.parse(text)
        if isinstance(tree, Failure):
            yield f"{file.name}:{tree.position.row}: {tree.message}"
        else:
            jobs.append((job, text, tree))
    projects: dict[Path, tuple[Code, dict[str, Told]]] = {}
    for job, text, tree in jobs:
        if job.root not in projects:
            settings = resolver(job.root)
            named = [one.path for one, _, _ in jobs if one.root == job.root]
            code = Code.of(job.root, settings, named)
            names = [code.name(path) for path in named]
            with closing(cache_of(job.root, settings)) as cache:
                told = interpreted({job.root: names}, {job.root: code}, {job.root: cache})
            projects[job.root] = code, told[job.root]
        code, known = projects[job.root]
        name = code.name(job.path)
        judge = Judge(job, code, known[name])
        with collector_off(), deep_recursion():
            diagnostics = judge.outcome(text, judge.find(text)).diagnostics
            if diagnostics:
                seen = Observation(code, name, known[name])
                yield Examined(
                    text, tree, diagnostics, seen, functools.partial(_fixed, text, judge)
                )


def _fixed(text: Source, judge: Judge) -> str:
    from precision_lint import fixer

    def lint(current: Source) -> list[Diagnostic]:
        same = current.text == text.text
        found = judge.find(current) if same else judge.find_again(current)
        return judge.outcome(current, found).diagnostics

    levels = {Applicability.SAFE, Applicability.UNSAFE}
    with deep_recursion():
        return fixer.fix(text, lint, levels).source.text
