"""Files to diagnostics: discovery, prefilter, analysis, suppressions, thresholds, fixes.

What is looked at how closely:

- A file that cannot hold tensors is not analysed, only searched for what is told below.
- It is parsed, so that a syntax error is reported, if it contains ``torch``; parsing everything
  else would cost a run on a mixed tree more than all rules together.
- It is decoded if it holds bytes beyond ASCII, and searched for suppressions that suppress nothing
  if it seems to hold one.

Every file is interpreted with what it imports; then each is judged by what is known of it from all
files of the run.  What either gave for the same contents is taken from the cache.
"""

from __future__ import annotations

import enum
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_lint import (
    assumed,
    baseline,
    engine,
    gathering,
    notebook,
    pool,
    progress,
    registry,
    source,
    suppress,
)
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
from precision_lint.cache import Cache, digest, stamp
from precision_lint.config import ALWAYS, CRASH, Resolver, Settings
from precision_lint.engine import Engine, Told, deep_recursion
from precision_lint.project import files
from precision_lint.project.code import Code
from precision_lint.source import Failure, Source, may_hold_tensors

SUPPRESSION = re.compile(
    rb"precision-lint\s*:|noqa\s*:[^\r\n]*(?:MP\d|[a-z\d]-[a-z])", re.IGNORECASE
)


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
    cut: dict[str, tuple[engine.Cut, ...]] = field(default_factory=dict)
    """What a bound of the analysis cut off, by the file's name."""
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
    stated: tuple[str, ...] | None = None
    """The precision modes that the user states; None: nothing is stated."""


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
    fresh: str | None = None
    """What was found, to be remembered."""
    notes: tuple[str, ...] = ()
    """What else there is to be said of the file."""
    cut: tuple[engine.Cut, ...] = ()
    """What a bound of the analysis cut off."""


@functools.cache
def _rules(codes: frozenset[str]) -> tuple[type[Rule], ...]:
    return tuple(rule for code, rule in registry.rules().items() if code in codes)


def is_relevant(data: bytes, codes: frozenset[str]) -> bool:
    """Whether any rule could find anything in these bytes."""
    return bool(_rules(codes)) and may_hold_tensors(data)


def _deserves_a_look(name: str, data: bytes) -> bool:
    """Whether the bytes of a file, of a notebook its JSON, may lead to a diagnostic."""
    if may_hold_tensors(data) or SUPPRESSION.search(data) is not None:
        return True
    return not name.endswith(notebook.SUFFIX) and (b"\0" in data or not data.isascii())


def _crash(name: str, error: BaseException) -> Diagnostic:
    """The internal diagnostic for a file on which the analysis itself failed."""
    return _failed(name, gathering.reason(error))


def _failed(name: str, reason: str) -> Diagnostic:
    return Diagnostic(
        code=CRASH,
        name=registry.ENGINE_CODES[CRASH],
        message=f"the analysis failed with {reason}; report it, or exclude the file",
        filename=name,
        start=Position(1, 1),
        end=Position(1, 1),
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        internal=True,
    )


def diagnose(text: Source, job: Job, found: Sequence[Diagnostic]) -> Outcome:
    """What to show of what was found in a text, what is silenced, how much the threshold hides."""
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


@dataclass(frozen=True)
class Task:
    """One file to judge: what is known of it, and what was found in these bytes before."""

    job: Job
    known: Told | None = None
    """None: it cannot hold tensors."""
    before: str | None = None


@dataclass(frozen=True)
class Judge:
    """Finds what is in the texts of one file."""

    job: Job
    code: Code
    known: Told | None

    def __post_init__(self) -> None:
        if self.known is not None and self.known.stated != self.job.stated:
            object.__setattr__(self, "known", replace(self.known, stated=self.job.stated))

    def find(self, text: Source) -> list[Diagnostic]:
        """What rules find in the text that was interpreted, of any confidence."""
        if self.known is None:
            data = text.text.encode("utf8", "surrogatepass")
            parsed = may_hold_tensors(data) or b"\0" in data
            tree = source.parse(text) if parsed else None
            if isinstance(tree, Failure):
                return [tree.diagnostic()]
            return assumed.unread(text, idle=not may_hold_tensors(data))
        name = self.code.name(self.job.path)
        if self.known.failure:
            return [_failed(self.job.name, self.known.failure)]
        return engine.lint(text, self.code, name, self.known, _rules(self.job.codes))

    def find_again(self, text: Source) -> list[Diagnostic]:
        """What they find in another text of the file, which is interpreted anew."""
        if self.known is None:
            return self.find(text)
        name = self.code.name(self.job.path)
        fresh = Engine(self.code.with_text(name, text))
        return replace(self, known=engine.again(fresh, name, self.known)).find(text)

    def outcome(self, text: Source, found: Sequence[Diagnostic]) -> Outcome:
        """What to do about findings in a text."""
        return diagnose(text, self.job, engine.located(found, self.code))


def _analyse(task: Task, data: bytes, code: Code) -> Outcome:
    job = task.job
    text = source.decode(data, job.name)
    if isinstance(text, Failure):
        return Outcome([text.diagnostic()] if text.code in job.codes else [])
    judge = Judge(job, code, task.known)
    fresh: str | None = None
    found = engine.decode(task.before, job.name) if task.before is not None else None
    if found is None:
        found = judge.find(text)
        if task.known is not None and not any(one.internal for one in found):
            fresh = engine.encode(found)
    if job.mode is Mode.CHECK:
        return replace(judge.outcome(text, found), fresh=fresh)
    from precision_lint import fixer  # imported late: a run that only checks does not need it

    first, last = found, Outcome()

    def lint(current: Source) -> list[Diagnostic]:
        nonlocal last
        same = current.text == text.text
        last = judge.outcome(current, first if same else judge.find_again(current))
        return last.diagnostics

    levels = {Applicability.SAFE} | ({Applicability.UNSAFE} if job.unsafe_fixes else set())
    fixed = fixer.fix(text, lint, levels)
    diff = fixer.diff(text, fixed.source) if job.mode is Mode.DIFF else b""
    return replace(
        last,
        diagnostics=fixed.remaining,
        text=fixed.source,
        fixed=fixed.applied,
        diff=diff,
        fresh=fresh,
    )


def _judge(task: Task, data: bytes, code: Code) -> Outcome:
    """One file from its bytes to its outcome; a failure of the analysis is a diagnostic."""
    try:
        with gathering.collector_off(), deep_recursion():
            outcome = _analyse(task, data, code)
            outcome.cut = task.known.cut if task.known else ()
            return outcome
    except Exception as error:
        return Outcome([_crash(task.job.name, error)])


def _run(tasks: Sequence[Task], projects: Mapping[Path, Code]) -> list[Outcome]:
    """Read, judge and, in ``Mode.FIX``, write each file."""
    outcomes = []
    with gathering.collector_off():
        for task in tasks:
            outcomes.append(_run_one(task, projects))
            progress.step()
    return outcomes


def _run_one(task: Task, projects: Mapping[Path, Code]) -> Outcome:
    gathering.collect_now_and_then()
    job = task.job
    data = source.load(job.path, job.name)
    if isinstance(data, Failure):
        return Outcome([data.diagnostic()] if data.code in job.codes else [])
    code = projects.get(job.root) or Code(job.path.parent, (job.path.name,))
    outcome = _judge(task, data, code)
    if job.mode is Mode.FIX and outcome.fixed and outcome.text:
        names, failure = _written(job, data, outcome.text)
        if names:
            outcome.notes = (f"{job.name}: {names} other hard link{'s' * (names > 1)} to it "
                             "had the same text and keep it; copy the fixed file over",)  # fmt: skip
        if failure:  # nothing was fixed, so everything is still to be said
            outcome = _judge(replace(task, job=replace(job, mode=Mode.CHECK)), data, code)
            outcome.diagnostics.append(failure.diagnostic())
    if not (outcome.diagnostics or outcome.silenced):
        outcome.text = None  # nobody will show it: don't send it between processes
    return outcome


def _written(job: Job, data: bytes, text: Source) -> tuple[int, Failure | None]:
    """Write a fixed file: how many hard links keep the old text, and why it was not written."""
    from precision_lint import fixer

    if target := fixer.elsewhere(job.path, job.root):
        what = f"is a link to {target}, outside of the project; name that file to have it fixed"
        return 0, Failure(job.name, "MP001", what)
    names = fixer.other_names(job.path)
    failure = fixer.write(job.path, data, text)
    return 0 if failure else names, failure


def _died(task: Task) -> Outcome:
    return Outcome([_crash(task.job.name, ChildProcessError(gathering.NO_ANSWER))])


@functools.cache
def _stamps(codes: frozenset[str]) -> bytes:
    """What changes with the rules, some of which may be of other distributions."""
    paths = (Path(str(sys.modules[rule.__module__].__file__)) for rule in _rules(codes))
    return b" ".join(stamp(path) for path in paths)


def _key(job: Job, code: Code, known: Told, data: bytes) -> bytes:
    about = repr((code.name(job.path), code.torch, sorted(job.codes), job.stated)).encode()
    return digest(b"findings", about, _stamps(job.codes), data, *known.key)


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
        settings.modes_for(file.path),
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
    result.warnings += outcome.notes
    if outcome.cut:
        result.cut[job.name] = outcome.cut
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
            jobs.append((job, digest(data)))
            if is_relevant(notebook.python(file.name, data), job.codes):
                relevant.add(file.path)
                if file.root not in roots:
                    roots[file.root] = resolver(file.root)
    outcomes = _outcomes(jobs, relevant, roots, workers or cores())
    for (job, _), outcome in zip(jobs, outcomes, strict=True):
        _add(result, job, outcome)
    return _finish(result, started)


def _outcomes(
    jobs: Sequence[tuple[Job, bytes]],
    relevant: set[Path],
    roots: Mapping[Path, Settings],
    workers: int,
) -> list[Outcome]:
    """What each file came to, given with a digest of its bytes."""
    projects: dict[Path, Code] = {}
    wanted: dict[Path, list[str]] = {}
    with ExitStack() as stack:
        caches = {root: gathering.cache_of(root, settings) for root, settings in roots.items()}
        for cache in caches.values():
            stack.enter_context(closing(cache))
        for root, settings in roots.items():
            named = [job.path for job, _ in jobs if job.root == root and job.path in relevant]
            projects[root] = code = Code.of(root, settings, named)
            wanted[root] = [code.name(path) for path in named]
        told = gathering.interpreted(wanted, projects, caches, workers)
        tasks: list[Task] = []
        keys: list[bytes] = []
        for job, contents in jobs:
            task, key = Task(job), b""
            if job.path in relevant:
                code = projects[job.root]
                known = told[job.root][code.name(job.path)]
                key = _key(job, code, known, contents)
                task = Task(job, known, caches[job.root].get([key]).get(key))
            tasks.append(task)
            keys.append(key)
        progress.begin("Judging", len(tasks))
        todo = sum(task.known is not None and task.before is None for task in tasks)
        if workers > 1 and todo > gathering.POOL_FROM:
            outcomes = pool.run(_run, tasks, projects, lost=_died, workers=workers)
        else:
            outcomes = _run(tasks, projects)
        for root, cache in caches.items():
            cache.put({
                key: outcome.fresh
                for task, key, outcome in zip(tasks, keys, outcomes, strict=True)
                if task.job.root == root and key and outcome.fresh is not None
            })  # fmt: skip
    return outcomes


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
    task = Task(job)
    code = Code.alone(path, settings) if alone else Code.of(root, settings)
    text = source.decode(data, job.name)
    if is_relevant(notebook.python(job.name, data), job.codes) and isinstance(text, Source):
        relative = code.name(path)
        code = code.with_text(relative, text)
        with closing(Cache(None) if alone else gathering.cache_of(root, settings)) as cache:
            task = Task(job, gathering.alone_known(code, root, relative, cache))
    outcome = _judge(task, data, code)
    result = Result(files=1, lines=data.count(b"\n"), stdin=data, compared=job.held is not None)
    if mode is Mode.FIX and outcome.fixed and outcome.text:
        result.stdin = outcome.text.encode()
    _add(result, job, outcome)
    return _finish(result, started)
