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
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from precision_lint import cache, notebook, plain, registry, source
from precision_lint.api import Confidence, Diagnostic, Severity, Silenced
from precision_lint.cache import Cache
from precision_lint.config import ALWAYS, Resolver, Settings
from precision_lint.jobs import Before, Cut, Job, Mode, Outcome, holds, job_of
from precision_lint.project import files
from precision_lint.project.code import Code, encoded
from precision_lint.project.contents import LOOK, TENSORS, Contents, Index
from precision_lint.source import Source

if TYPE_CHECKING:
    from precision_lint.baseline import Counts


@dataclass
class Result:
    """What a run came to; a report needs ``diagnostics`` and ``sources`` only."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    """Findings that remain, sorted by file, row, column and code."""
    repeated: list[Diagnostic] = field(default_factory=list)
    """Findings that stand where another file makes what is wrong as well, and are not shown."""
    sources: dict[str, Source] = field(default_factory=dict)
    """Text of each file that has diagnostics, as it is after fixes."""
    files: int = 0
    lines: int = 0
    torch: bool = False
    """Whether any file holds tensors, as far as its imports tell."""
    seconds: float = 0.0
    errors: list[str] = field(default_factory=list)
    """One line for each path that is missing or cannot be read."""
    warnings: list[str] = field(default_factory=list)
    hidden: dict[str, int] = field(default_factory=dict)
    """Findings below the confidence threshold, by confidence."""
    silenced: list[Silenced] = field(default_factory=list)
    """Findings that a comment or a baseline holds back, sorted as the others are."""
    compared: bool = False
    """Whether there was a baseline for any file."""
    gone: dict[str, Counts] = field(default_factory=dict)
    """What the baseline holds of a file and is not there any more, by the file's name."""
    cut: dict[str, tuple[Cut, ...]] = field(default_factory=dict)
    """What a bound of the analysis cut off, by the file's name."""
    modes: dict[str, tuple[str, bool]] = field(default_factory=dict)
    """Modes that the code shows: the place, and whether an option or a condition decides there."""
    stated: dict[str, str] = field(default_factory=dict)
    """Modes that the user states, and where; float32 where none is."""
    more: dict[str, int] = field(default_factory=dict)
    """Findings that would be shown as well if one more mode were stated, by mode."""
    fail_on: dict[str, Severity] = field(default_factory=dict)
    """The least severity that fails the run, by the file's name."""
    failing: int = 0
    """Diagnostics at or above the severity that fails the run."""
    fixed: list[Diagnostic] = field(default_factory=list)
    """Findings whose fix was applied, or would be in ``Mode.DIFF``."""
    diff: bytes = b""
    stdin: bytes = b""
    """The text from standard input after fixes, in its own encoding."""

    @property
    def found(self) -> list[Diagnostic]:
        """Findings as each file by itself has them."""
        return [*self.diagnostics, *self.repeated]

    @property
    def internal(self) -> bool:
        """Whether the tool itself failed on a file."""
        return any(diagnostic.internal for diagnostic in self.diagnostics)

    @property
    def unread(self) -> list[Diagnostic]:
        """Why files, or rules on files, were not checked."""
        return [diagnostic for diagnostic in self.diagnostics if diagnostic.code in ALWAYS]


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
    for level, count in outcome.hidden.items():
        result.hidden[level] = result.hidden.get(level, 0) + count
    result.warnings += outcome.notes
    if outcome.cut:
        result.cut[job.name] = outcome.cut
    for mode, count in outcome.more.items():
        result.more[mode] = result.more.get(mode, 0) + count
    for mode, place, flag in outcome.modes:
        result.modes[mode] = place, flag
    result.fail_on[job.name] = job.fail_on
    result.fixed += outcome.fixed
    result.diff += outcome.diff


def _state(result: Result, settings: Settings, job: Job) -> None:
    """Note which modes are stated for a file."""
    for mode in (job.stated or ("float32",)) if job.stated is not None else ():
        where = settings.stated_by or (os.path.relpath(settings.file) if settings.file else "")
        result.stated.setdefault(mode, where)


def _without_rules(settings: Iterable[Settings]) -> list[str]:
    """Where a configuration leaves no rule on, each place once."""
    distinct = {id(one): one for one in settings}.values()
    places = dict.fromkeys(one.emptied_by for one in distinct if one.without_rules)
    what = 'no rule is on, so nothing is checked; select some, or "ALL"'
    return [f"{place}: {what}" for place in places if place]


def _order(diagnostic: Diagnostic) -> tuple[Any, ...]:
    d = diagnostic
    return d.filename, d.start, d.code, d.end, d.message


def _once(result: Result) -> None:
    """Set findings aside that another file of the run has at what causes them."""
    if not any(e.cause for d in result.diagnostics for e in d.evidence):
        return
    told = [*result.diagnostics, *result.fixed, *(one.diagnostic for one in result.silenced)]
    known = {(d.code, files.absolute(Path(d.filename)), d.start) for d in told}
    kept: list[Diagnostic] = []
    for d in result.diagnostics:
        causes = ((e.filename, e.start) for e in d.evidence if e.cause and e.filename is not None)
        again = any((d.code, files.absolute(Path(f)), start) in known for f, start in causes)
        (result.repeated if again else kept).append(d)
    result.diagnostics = kept


def _finish(result: Result, started: float) -> Result:
    _once(result)
    result.failing = sum(
        d.severity.rank >= result.fail_on[d.filename].rank for d in result.diagnostics
    )
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
    result.warnings += _without_rules(file.settings for file in found.files)
    jobs: list[Job] = []
    looked: list[Contents | None] = []
    with closing(_Known(resolver)) as known:
        for file in found.files:
            contents = known.index(file.root).of(file.where)
            result.lines += contents.lines if contents else 0
            result.torch |= contents is None or bool(contents.flags & TENSORS)
            look = contents is None or bool(contents.flags & LOOK)
            if look or file.settings.baseline or before is not None:
                job = job_of(file, mode, before)
                result.compared |= job.held is not None
                if contents is not None and contents.flags & TENSORS:
                    _state(result, file.settings, job)
                if look or job.held:
                    jobs.append(job)
                    looked.append(contents)
        if jobs:
            for job, outcome in zip(jobs, known.outcomes(jobs, looked, workers), strict=True):
                _add(result, job, outcome)
    return _finish(result, started)


class _Known:
    """What earlier runs have kept of the projects that files lie in."""

    def __init__(self, resolver: Callable[[Path], Settings]) -> None:
        self._resolver = resolver
        self._caches: dict[Path, Cache] = {}
        self._indexes: dict[Path, Index] = {}

    def index(self, root: Path) -> Index:
        """The contents of a project's files."""
        if root not in self._indexes:
            cache = self._caches[root] = Cache(self._resolver(root).cache(root))
            index = self._indexes[root] = Index(root if root.is_dir() else root.parent)
            index.load(cache)
        return self._indexes[root]

    def outcomes(
        self, jobs: Sequence[Job], looked: Sequence[Contents | None], workers: int | None
    ) -> list[Outcome]:
        """What each file came to; as it was in the last run if nothing at all has changed."""
        named: dict[Path, list[Path]] = {}
        for job, found in zip(jobs, looked, strict=True):
            if holds(job, found):
                named.setdefault(job.root, []).append(job.path)
        projects = {
            root: Code.of(root, self._resolver(root), paths, self._indexes[root])
            for root, paths in named.items()
        }
        key = self._key(jobs, looked, projects)
        first = next((self._caches[root] for root in projects), None)
        made = self._remembered(jobs, first.get([key]).get(key)) if first and key else None
        for root in projects:
            self._indexes[root].save(self._caches[root])
        if made is None:
            from precision_lint import judging  # late: most runs of a hook find nothing to judge

            caches = {root: self._caches[root] for root in projects}
            made = judging.outcomes(jobs, looked, projects, caches, workers or cores())
            sound = not any(d.internal for one in made for d in one.diagnostics)
            if first and key and sound and not _changed(jobs, projects):
                first.put({key: plain.encode_outcomes(made)})
        return made

    def _key(
        self,
        jobs: Sequence[Job],
        looked: Sequence[Contents | None],
        projects: Mapping[Path, Code],
    ) -> bytes:
        """A digest of all that a run's outcomes follow from; empty where that is not known."""
        if any(job.mode is not Mode.CHECK for job in jobs) or None in looked:
            return b""
        asked: dict[tuple[frozenset[str], Confidence, tuple[object, ...]], int] = {}
        lines = []
        for job, found in zip(jobs, looked, strict=True):
            about = (job.codes, job.confidence, (job.stated, job.device))
            number = asked.setdefault(about, len(asked))
            held = sorted(job.held.items()) if job.held is not None else None
            lines.append(f"{job.path} {number} {found and found.key} {held}")
        said = [[sorted(codes), level.value, stated] for codes, level, stated in asked]
        stamps = [entry.stamp for entry in registry.entries().values()]
        states = [(str(root), code.state) for root, code in projects.items()]
        versions = [self._resolver(root).torch_version for root in projects]
        rest = repr((Path.cwd(), said, stamps, states, versions))
        return cache.digest(b"run", encoded("\n".join(lines)), encoded(rest))

    def _remembered(self, jobs: Sequence[Job], text: str | None) -> list[Outcome] | None:
        names = [job.name for job in jobs]
        made = plain.decode_outcomes(text, names) if text is not None else None
        for job, outcome in zip(jobs, made or (), strict=False):
            if outcome.diagnostics or outcome.silenced:
                text_now = source.read(job.path, job.name)
                outcome.text = text_now if isinstance(text_now, Source) else None
        return made

    def close(self) -> None:
        for one in self._caches.values():
            one.close()


def _changed(jobs: Sequence[Job], projects: Mapping[Path, Code]) -> bool:
    """Whether a file is another one than when the run began."""
    known = [(projects[job.root], job.path) for job in jobs if job.root in projects]
    return any(code.changed(code.name(path)) for code, path in known)


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
    job = job_of(files.File(str(path), str(name or "-"), settings, root), mode)
    outcome = judging.alone(data, job, settings, alone)
    result = Result(files=1, lines=data.count(b"\n"), torch=True, stdin=data)
    result.compared = job.held is not None
    result.warnings += _without_rules([settings])
    _state(result, settings, job)
    if mode is Mode.FIX and outcome.fixed and outcome.text:
        result.stdin = outcome.text.encode()
    _add(result, job, outcome)
    return _finish(result, started)
