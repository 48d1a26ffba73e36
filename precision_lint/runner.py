"""Files to diagnostics: discovery, prefilter, analysis, suppressions, thresholds, fixes.

What is looked at how closely:

- A file that no selected rule's trigger matches is not analysed.
- It is parsed, so that a syntax error is reported, if it contains ``torch``; parsing everything
  else would cost a run on a mixed tree more than all rules together.
- It is decoded if it holds bytes beyond ASCII, and searched for suppressions that suppress nothing
  if it seems to hold one.

Facts about a project are gathered once for each project root, from all of its files, so that a run
on one file (or on one batch of pre-commit's) judges as a run on everything does.
"""

from __future__ import annotations

import enum
import functools
import gc
import os
import re
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_lint import baseline, dispatch, notebook, pool, progress, registry, source, suppress
from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Position,
    Rule,
    Severity,
    Silenced,
)
from precision_lint.baseline import Counts
from precision_lint.cache import DIRECTORY, Cache
from precision_lint.config import ALWAYS, CRASH, Resolver, Settings
from precision_lint.project import configs, files, requirements
from precision_lint.project.amp import Survey
from precision_lint.semantics.edition import Edition
from precision_lint.semantics.gather import gather
from precision_lint.semantics.program import Program
from precision_lint.source import Failure, Source, may_hold_tensors

POOL_FROM = 64
"""Files to analyse from which on processes pay for their start."""
COLLECT_EVERY = 256
"""Files after which memory is collected."""
FRAMES = 6000
"""How deep the analysis may recurse; Python 3.10 needs half a stack of 8 MB for it."""
SUPPRESSION = re.compile(
    rb"precision-lint\s*:|noqa\s*:[^\r\n]*(?:MP\d|[a-z\d]-[a-z])", re.IGNORECASE
)


_judged = 0

Known = tuple[Survey, Program | None]
"""What is known of a project: where it runs half precision, and its linked files."""
Before = Callable[[Path], Counts]
"""What there was in a file, by its absolute path, before a branch changed it."""


class Mode(enum.Enum):
    """What to do about findings that have a fix."""

    CHECK = "check"
    FIX = "fix"
    DIFF = "diff"


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


@dataclass(frozen=True)
class Job:
    """One file to analyse, small enough to be sent to another process."""

    path: Path
    name: str
    root: Path
    codes: frozenset[str]
    confidence: Confidence
    fail_on: Severity
    unsafe_fixes: bool
    mode: Mode
    held: Counts | None = None
    """What a baseline holds of the file; None: there is no baseline."""


@dataclass
class Outcome:
    """What one file came to."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    text: Source | None = None
    hidden: int = 0
    silenced: tuple[Silenced, ...] = ()
    gone: Counts = field(default_factory=dict)
    fixed: tuple[Diagnostic, ...] = ()
    diff: bytes = b""


@functools.cache
def _rules(codes: frozenset[str]) -> tuple[type[Rule], ...]:
    return tuple(rule for code, rule in registry.rules().items() if code in codes)


def is_relevant(data: bytes, codes: frozenset[str]) -> bool:
    rules = _rules(codes)
    return bool(rules) and dispatch.relevant(data, rules)


def _deserves_a_look(name: str, data: bytes) -> bool:
    """Whether the bytes of a file, of a notebook its JSON, may lead to a diagnostic."""
    if may_hold_tensors(data) or SUPPRESSION.search(data) is not None:
        return True
    return not name.endswith(notebook.SUFFIX) and (b"\0" in data or not data.isascii())


def _crash(name: str, error: BaseException) -> Diagnostic:
    """The internal diagnostic for a file on which the analysis itself failed."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    what = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")
    return Diagnostic(
        code=CRASH,
        name=registry.ENGINE_CODES[CRASH],
        message=f"the analysis failed with {what}{place}; report it, or exclude the file",
        filename=name,
        start=Position(1, 1),
        end=Position(1, 1),
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        internal=True,
    )


@contextmanager
def collector_off() -> Iterator[None]:
    # a tree is many young objects and no garbage: collecting while it grows only costs
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _collect_now_and_then() -> None:
    """Free what earlier files left; what is still there now is not looked at again."""
    global _judged
    _judged += 1
    if _judged % COLLECT_EVERY == 0:
        gc.collect()
        gc.freeze()


@contextmanager
def deep_recursion() -> Iterator[None]:
    # a sum of 600 terms is a tree 600 levels deep, and a level takes several frames
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(max(limit, FRAMES))
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)


def diagnose(text: Source, job: Job, known: Known, edition: Edition | None = None) -> Outcome:
    """What to show of one text, what is silenced, and how much the threshold hides.

    ``edition`` is what is kept of the file's last text.
    """
    parsed = may_hold_tensors(text.text.encode("utf8", "surrogatepass")) or "\0" in text.text
    survey, program = known
    path = program.relative(job.path) if program else ""
    around = survey.around(job.path, text.text)
    rules = _rules(job.codes)
    found = dispatch.lint(text, rules, around, program, path, edition) if parsed else []
    judged = suppress.apply(text, [d for d in found if d.code in job.codes], job.codes)
    kept = [*judged.kept, *(d for d in judged.unused if d.code in job.codes)]
    shown = [d for d in kept if d.confidence.rank >= job.confidence.rank]
    new, held = baseline.part(text, shown, job.held or {})
    silenced = [Silenced(d, True) for d in held] + [
        Silenced(d, False, reason)
        for d, reason in judged.suppressed
        if d.confidence.rank >= job.confidence.rank
    ]
    gone: Counts = {}
    if job.held and ALWAYS.isdisjoint(d.code for d in kept):
        gone = baseline.gone(text, kept, job.held, job.codes)
    return Outcome(new, text, len(kept) - len(shown), tuple(silenced), gone)


def _analyse(job: Job, data: bytes, known: Known) -> Outcome:
    text = source.decode(data, job.name)
    if isinstance(text, Failure):
        return Outcome([text.diagnostic()] if text.code in job.codes else [])
    last = Outcome()

    def lint(current: Source) -> list[Diagnostic]:
        nonlocal last
        last = diagnose(current, job, known)
        return last.diagnostics

    if job.mode is Mode.CHECK:
        return diagnose(text, job, known)
    from precision_lint import fixer  # imported late: a run that only checks does not need it

    levels = {Applicability.SAFE} | ({Applicability.UNSAFE} if job.unsafe_fixes else set())
    fixed = fixer.fix(text, lint, levels)
    diff = fixer.diff(text, fixed.source) if job.mode is Mode.DIFF else b""
    return replace(
        last, diagnostics=fixed.remaining, text=fixed.source, fixed=fixed.applied, diff=diff
    )


def _judge(job: Job, data: bytes, known: Known) -> Outcome:
    """One file from its bytes to its outcome; a failure of the analysis is a diagnostic."""
    try:
        with collector_off(), deep_recursion():
            return _analyse(job, data, known)
    except Exception as error:
        return Outcome([_crash(job.name, error)])


def _run(jobs: Sequence[Job], projects: Mapping[Path, Known]) -> list[Outcome]:
    """Read, judge and, in ``Mode.FIX``, write each file."""
    frozen = gc.get_freeze_count()
    with collector_off():
        outcomes = []
        for job in jobs:
            outcomes.append(_run_one(job, projects))
            progress.step()
    if not frozen:
        gc.unfreeze()
    return outcomes


def _run_one(job: Job, projects: Mapping[Path, Known]) -> Outcome:
    _collect_now_and_then()
    data = source.load(job.path, job.name)
    if isinstance(data, Failure):
        return Outcome([data.diagnostic()] if data.code in job.codes else [])
    known = projects.get(job.root, (Survey(job.root), None))
    outcome = _judge(job, data, known)
    if job.mode is Mode.FIX and outcome.fixed and outcome.text:
        from precision_lint import fixer

        failure = fixer.write(job.path, data, outcome.text)
        if failure:  # nothing was fixed, so everything is still to be said
            outcome = _judge(replace(job, mode=Mode.CHECK), data, known)
            outcome.diagnostics.append(failure.diagnostic())
    if not (outcome.diagnostics or outcome.silenced):
        outcome.text = None  # nobody will show it: don't send it between processes
    return outcome


def _died(job: Job) -> Outcome:
    return Outcome([_crash(job.name, ChildProcessError("its process ended without an answer"))])


def known_of(root: Path, settings: Settings, named: Iterable[Path], workers: int) -> Known:
    """Read a project: all of its Python and configuration files, and what else was named."""
    members = members_of(root, settings, named)
    code = [path for path in members if path.suffix not in configs.SUFFIXES]
    with closing(cache_of(root, settings)) as cache:
        return survey_of(root, settings, members, cache), gather(root, code, cache, workers)


def cache_of(root: Path, settings: Settings) -> Cache:
    """What was computed of a project's files before; to be closed."""
    directory = settings.cache_dir or (root if root.is_dir() else root.parent) / DIRECTORY
    return Cache(None if settings.no_cache else directory)


def members_of(root: Path, settings: Settings, named: Iterable[Path] = ()) -> list[Path]:
    """The Python and configuration files of a project, and what else was named."""
    return sorted({*named, *files.below(root, settings, (*files.SUFFIXES, *configs.SUFFIXES))})


def survey_of(root: Path, settings: Settings, members: Iterable[Path], cache: Cache) -> Survey:
    """What these files of a project say of where it runs half precision."""
    survey = Survey.scan(root, members, cache)
    if settings.torch_version is not None:
        least = requirements.parse(settings.torch_version)
        survey = replace(survey, torch=least, pinned=None)
    return survey


def job_of(file: files.File, mode: Mode, before: Before | None = None) -> Job:
    settings = file.settings
    held = baseline.held(settings.baseline, file.path) if settings.baseline else None
    if before is not None:
        held = baseline.most(held or {}, before(file.path))
    return Job(
        file.path,
        file.name,
        file.root,
        settings.codes_for(file.path),
        settings.confidence,
        settings.fail_on,
        settings.unsafe_fixes,
        mode,
        held,
    )


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
    jobs: list[Job] = []
    roots: dict[Path, Settings] = {}
    for file in found.files:
        job = job_of(file, mode, before)
        data = source.load(file.path, file.name)
        if isinstance(data, Failure):
            jobs.append(job)
            continue
        result.lines += data.count(b"\n") + (not data.endswith(b"\n") and data != b"")
        result.compared |= job.held is not None
        if _deserves_a_look(file.name, data) or job.held:
            jobs.append(job)
            if file.root not in roots and is_relevant(notebook.python(file.name, data), job.codes):
                roots[file.root] = resolver(file.root)
    workers = workers or cores()
    projects = {}
    for root, settings in roots.items():
        named = {file.path for file in found.files if file.root == root}
        projects[root] = known_of(root, settings, named, workers)
    progress.begin("Linting", len(jobs))
    if workers > 1 and len(jobs) > POOL_FROM:
        outcomes = pool.run(_run, jobs, projects, lost=_died, workers=workers)
    else:
        outcomes = _run(jobs, projects)
    for job, outcome in zip(jobs, outcomes, strict=True):
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
    started = time.perf_counter()
    path = files.absolute(name or Path("-"))
    settings = resolver(path.parent)
    if settings.force_exclude and files.excluded(path, settings):
        return _finish(Result(stdin=data), started)
    root = files.project_root(path)
    job = job_of(files.File(path, str(name or "-"), settings, root), mode)
    known: Known = Survey(root), None
    code = notebook.python(job.name, data)
    if is_relevant(code, job.codes):
        survey, program = known if alone else known_of(root, settings, [path], cores())
        known = survey.with_file(path, job.name, code), program
    outcome = _judge(job, data, known)
    result = Result(files=1, lines=data.count(b"\n"), stdin=data, compared=job.held is not None)
    if mode is Mode.FIX and outcome.fixed and outcome.text:
        result.stdin = outcome.text.encode()
    _add(result, job, outcome)
    return _finish(result, started)
