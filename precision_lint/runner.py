"""Files to diagnostics: discovery, prefilter, analysis, suppressions, thresholds, fixes.

What is looked at how closely:

- A file that cannot hold tensors is not analysed, only searched for what is told below.
- It is parsed, so that a syntax error is reported, if it contains ``torch``; parsing everything
  else would cost a run on a mixed tree more than all rules together.
- It is decoded if it holds bytes beyond ASCII, and searched for suppressions that suppress nothing
  if it seems to hold one.

What is analysed goes to ``judging``, which is imported when there is something to judge.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_lint import cache, notebook, source
from precision_lint.api import Diagnostic, Silenced
from precision_lint.config import ALWAYS, Resolver, Settings
from precision_lint.jobs import Before, Job, Mode, Outcome, is_relevant, job_of
from precision_lint.project import files
from precision_lint.source import Failure, Source, may_hold_tensors

if TYPE_CHECKING:
    from precision_lint.baseline import Counts

SUPPRESSION = re.compile(
    rb"precision-lint\s*:|noqa\s*:[^\r\n]*(?:MP\d|[a-z\d]-[a-z])", re.IGNORECASE
)


@dataclass
class Result:
    """What a run came to; a report needs ``diagnostics`` and ``sources`` only."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    """Findings that remain, sorted by file, row, column and code."""
    sources: dict[str, Source] = field(default_factory=dict)
    """Text of each file that has diagnostics, as it is after fixes."""
    files: int = 0
    lines: int = 0
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    """One line for each path that is missing or cannot be read."""
    warnings: list[str] = field(default_factory=list)
    hidden: int = 0
    """Findings below the confidence threshold."""
    silenced: list[Silenced] = field(default_factory=list)
    """Findings that a comment or a baseline holds back, sorted as the others are."""
    compared: bool = False
    """Whether there was a baseline for any file."""
    gone: dict[str, Counts] = field(default_factory=dict)
    """What the baseline holds of a file and is not there any more, by the file's name."""
    failing: int = 0
    """Diagnostics at or above the severity that fails the run."""
    fixed: list[Diagnostic] = field(default_factory=list)
    """Findings whose fix was applied, or would be in ``Mode.DIFF``."""
    diff: bytes = b""
    stdin: bytes = b""
    """The text from standard input after fixes, in its own encoding."""

    @property
    def internal(self) -> bool:
        """Whether the tool itself failed on a file."""
        return any(diagnostic.internal for diagnostic in self.diagnostics)

    @property
    def unread(self) -> list[Diagnostic]:
        """Why files, or rules on files, were not checked."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.code in ALWAYS]


def _deserves_a_look(name: str, data: bytes) -> bool:
    """Whether the bytes of a file, of a notebook its JSON, may lead to a diagnostic."""
    if may_hold_tensors(data) or SUPPRESSION.search(data) is not None:
        return True
    return not name.endswith(notebook.SUFFIX) and (b"\0" in data or not data.isascii())


def cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _add(result: Result, job: Job, outcome: Outcome) -> None:
    result.diagnostics += outcome.diagnostics
    result.silenced += outcome.silenced
    if (outcome.diagnostics or outcome.silenced) and outcome.text:
        result.sources[job.name] = outcome.text
    for link in (link for d in outcome.diagnostics for link in d.evidence):
        name = link.filename or job.name
        if name.endswith(notebook.SUFFIX) and name not in result.sources:  # to tell its cells
            other = source.read(name)
            if isinstance(other, Source):
                result.sources[name] = other
    if outcome.gone:
        result.gone[job.name] = outcome.gone
    result.hidden += outcome.hidden
    result.failing += sum(d.severity.rank >= job.fail_on.rank for d in outcome.diagnostics)
    result.fixed += outcome.fixed
    result.diff += outcome.diff


def _order(diagnostic: Diagnostic) -> tuple[Any, ...]:
    d = diagnostic
    return d.filename, d.start, d.code, d.end, d.message


def _finish(result: Result, started: float) -> Result:
    result.diagnostics.sort(key=_order)
    result.silenced.sort(key=lambda s: _order(s.diagnostic))
    result.seconds = time.perf_counter() - started
    return result


def check(
    paths: Iterable[Path],
    resolver: Callable[[Path], Settings],
    *,
    mode: Mode = Mode.CHECK,
    workers: int | None = None,
    before: Before | None = None,
) -> Result:
    """Lint what the paths name; in ``Mode.FIX`` write the fixed files.

    ``workers`` is the number of processes at most; None: one a core.  What ``before`` knows of a
    file counts as held by a baseline.  Raises ConfigError for a
    mistake in a configuration file.
    """
    started = time.perf_counter()
    found = files.discover(paths, resolver)
    result = Result(files=len(found.files), errors=found.errors, warnings=found.warnings)
    jobs: list[tuple[Job, bytes]] = []
    roots: dict[Path, Settings] = {}
    relevant: set[Path] = set()
    for file in found.files:
        job = job_of(file, mode, before)
        data = source.load(file.path, file.name)
        if isinstance(data, Failure):
            jobs.append((job, b""))
            continue
        result.lines += data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        result.compared |= job.held is not None
        if _deserves_a_look(file.name, data) or job.held:
            jobs.append((job, cache.digest(data)))
            if is_relevant(notebook.python(file.name, data), job.codes):
                relevant.add(file.path)
                if file.root not in roots:
                    roots[file.root] = resolver(file.root)
    if jobs:
        from precision_lint import judging  # late: most runs of a hook find nothing to judge

        outcomes = judging.outcomes(jobs, relevant, roots, workers or cores())
        for (job, _), outcome in zip(jobs, outcomes, strict=True):
            _add(result, job, outcome)
    return _finish(result, started)


def check_stdin(
    data: bytes,
    name: Path | None,
    resolver: Resolver,
    *,
    mode: Mode = Mode.CHECK,
    alone: bool = False,
) -> Result:
    """Lint one text as if it were the file ``name``; ``Result.stdin`` is the text after fixes.

    ``alone``: whether no other file is looked at.
    """
    from precision_lint import judging

    started = time.perf_counter()
    path = files.absolute(name or Path("-"))
    settings = resolver(path.parent)
    if settings.force_exclude and files.excluded(path, settings):
        return _finish(Result(stdin=data), started)
    root = files.project_root(path)
    job = job_of(files.File(path, str(name or "-"), settings, root), mode)
    outcome = judging.alone(data, job, settings, alone)
    result = Result(files=1, lines=data.count(b"\n"), stdin=data, compared=job.held is not None)
    if mode is Mode.FIX and outcome.fixed and outcome.text:
        result.stdin = outcome.text.encode()
    _add(result, job, outcome)
    return _finish(result, started)
