"""Files to findings: interpreted, judged by what is known of them, silenced, fixed.

Every file is interpreted with what it imports; then each is judged by what is known of it from all
files of the run.  What either gave for the same contents is taken from the cache.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from precision_lint import (
    assumed,
    baseline,
    engine,
    gathering,
    notebook,
    plain,
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
    Evidence,
    Position,
    Rule,
    Severity,
    Silenced,
)
from precision_lint.baseline import Counts
from precision_lint.cache import Cache, digest
from precision_lint.config import ALWAYS, CRASH, Settings
from precision_lint.engine import Engine, Told, deep_recursion
from precision_lint.events import Place, Sign
from precision_lint.jobs import Assumed, Job, Mode, Outcome, holds, is_relevant
from precision_lint.precision.modes import MODES, Strength
from precision_lint.project.code import Code
from precision_lint.project.contents import SILENCES, Contents
from precision_lint.source import Failure, Source, may_hold_tensors


@functools.cache
def _rules(codes: frozenset[str]) -> tuple[type[Rule], ...]:
    return tuple(rule for code, rule in registry.rules().items() if code in codes)


def crash(name: str, error: BaseException) -> Diagnostic:
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


def diagnose(
    text: Source, job: Job, found: Sequence[Diagnostic], further: Sequence[Diagnostic] = ()
) -> Outcome:
    """What to show of what was found in a text, what is silenced, how much the threshold hides.

    further: what would be found as well in the modes that it names.
    """
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
    more = _more(text, job, shown, further) if further else {}
    hidden = Counter(d.confidence.value for d in kept if d.confidence.rank < job.confidence.rank)
    return Outcome(new, text, dict(hidden), tuple(silenced), gone, more=more)


def _more(
    text: Source, job: Job, shown: Sequence[Diagnostic], further: Sequence[Diagnostic]
) -> dict[str, int]:
    """How many findings more would be shown if a mode were stated, by mode."""
    if job.confidence is Confidence.CERTAIN:
        return {}
    now = {(one.code, one.start, one.end) for one in shown}
    counts: dict[str, int] = {}
    for mode in MODES:
        ones = [d for d in further if mode in d.modes and (d.code, d.start, d.end) not in now]
        kept = suppress.apply(text, [d for d in ones if d.code in job.codes], job.codes).kept
        if job.held:
            together, _ = baseline.part(text, sorted([*shown, *kept], key=_order), job.held)
            count = len(together) - len(baseline.part(text, shown, job.held)[0])
        else:
            count = len(kept)
        if count > 0:
            counts[mode] = count
    return counts


def _order(one: Diagnostic) -> tuple[Position, Position, str]:
    return one.start, one.end, one.code


def located(found: Iterable[Diagnostic], code: Code) -> list[Diagnostic]:
    """Findings with the files in their evidence named for a report."""
    return [
        replace(one, evidence=tuple(_located(link, code) for link in one.evidence))
        if any(link.filename for link in one.evidence)
        else one
        for one in found
    ]


def _located(link: Evidence, code: Code) -> Evidence:
    return replace(link, filename=code.shown(link.filename)) if link.filename else link


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

    def find(self, text: Source, further: list[Diagnostic] | None = None) -> list[Diagnostic]:
        """What rules find in the text that was interpreted, of any confidence.

        further: takes what there would be if modes were stated.
        """
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
        return engine.lint(text, self.code, name, self.known, _rules(self.job.codes), further)

    def find_again(self, text: Source) -> list[Diagnostic]:
        """What they find in another text of the file, which is interpreted anew."""
        if self.known is None:
            return self.find(text)
        name = self.code.name(self.job.path)
        fresh = Engine(self.code.with_text(name, text))
        known, differ = engine.again_with_callers(fresh, name, self.known)
        return [*replace(self, known=known).find(text), *self._of_callers(differ - self.differed)]

    @functools.cached_property
    def differed(self) -> frozenset[Place]:
        """Where operands of other files differ in dtype as the file stands."""
        assert self.known is not None
        name = self.code.name(self.job.path)
        return engine.again_with_callers(Engine(self.code), name, self.known)[1]

    def _of_callers(self, places: Iterable[Place]) -> Iterator[Diagnostic]:
        """Findings that stand for what a text does to other files, so that no fix may bring them."""
        for place in sorted(places):
            what = f"operands of other dtypes in {self.code.shown(place.path)}, line {place.row}"
            yield replace(_failed(self.job.name, what), message=what)  # never deselected

    def outcome(
        self, text: Source, found: Sequence[Diagnostic], further: Sequence[Diagnostic] = ()
    ) -> Outcome:
        """What to do about findings in a text."""
        return diagnose(text, self.job, located(found, self.code), further)


def _analyse(task: Task, data: bytes, code: Code) -> Outcome:
    job = task.job
    text = source.decode(data, job.name)
    if isinstance(text, Failure):
        return Outcome([text.diagnostic()] if text.code in job.codes else [])
    judge = Judge(job, code, task.known)
    fresh: str | None = None
    further: list[Diagnostic] = []
    before = plain.decode(task.before, job.name) if task.before is not None else None
    if before is not None:
        found, further = before
    else:
        found = judge.find(text, further)
        if task.known is not None and not any(one.internal for one in found):
            fresh = plain.encode(found, further)
    if job.mode is Mode.CHECK:
        return replace(judge.outcome(text, found, further), fresh=fresh)
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
        return Outcome([crash(task.job.name, error)])


def _run(tasks: Sequence[Task], projects: Mapping[Path, Code]) -> list[Outcome]:
    """Read, judge and, in ``Mode.FIX``, write each file."""
    outcomes = []
    with gathering.collector_off():
        for task in tasks:
            outcomes.append(_run_one(task, projects))
            progress.step()
    return outcomes


def _run_one(task: Task, projects: Mapping[Path, Code]) -> Outcome:
    job = task.job
    if task.known is not None and task.before is None:
        gathering.collect_now_and_then()
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
    return Outcome([crash(task.job.name, ChildProcessError(gathering.NO_ANSWER))])


@functools.cache
def _stamps(codes: frozenset[str]) -> bytes:
    """What changes with the rules, some of which may be of other distributions."""
    return "\n".join(e.stamp for e in registry.entries().values() if e.code in codes).encode()


def _key(job: Job, code: Code, known: Told, data: bytes) -> bytes:
    about = repr((code.name(job.path), code.torch, sorted(job.codes), job.stated)).encode()
    return digest(b"findings", about, _stamps(job.codes), data, *known.key)


def outcomes(
    jobs: Sequence[Job],
    looked: Sequence[Contents | None],
    projects: Mapping[Path, Code],
    caches: Mapping[Path, Cache],
    workers: int,
) -> list[Outcome]:
    """What each file came to.

    looked: what is in the files, None where one cannot be read.  projects, caches: of the files
    that are to be interpreted, by their roots.
    """
    relevant = {job.path for job, found in zip(jobs, looked, strict=True) if holds(job, found)}
    wanted = {
        root: [code.name(job.path) for job in jobs if job.root == root and job.path in relevant]
        for root, code in projects.items()
    }
    told = gathering.interpreted(wanted, projects, caches, workers)
    keys: dict[Path, bytes] = {}
    for job, found in zip(jobs, looked, strict=True):
        if job.path in relevant and found is not None:
            code = projects[job.root]
            known = told[job.root][code.name(job.path)]
            keys[job.path] = _key(job, code, known, found.key.encode())
    before: dict[bytes, str] = {}
    for root, cache in caches.items():
        before |= cache.get(keys[job.path] for job in jobs if job.root == root and job.path in keys)
    made = [Outcome() for _ in jobs]
    todo: dict[int, Task] = {}
    for number, (job, found) in enumerate(zip(jobs, looked, strict=True)):
        about = told[job.root][projects[job.root].name(job.path)] if job.path in keys else None
        task = Task(job, about, before.get(keys.get(job.path, b"")))
        if task.before != "[]" or job.held or found is None or found.flags & SILENCES:
            todo[number] = task
        elif about is not None:
            made[number].cut = about.cut
    done = _done(list(todo.values()), projects, workers)
    for number, outcome in zip(todo, done, strict=True):
        made[number] = outcome
    made[0].modes = _assumed((job for job in jobs if job.path in keys), told, projects)
    for root, cache in caches.items():
        cache.put({
            keys[job.path]: one.fresh
            for job, one in zip(jobs, made, strict=True)
            if job.root == root and job.path in keys and one.fresh is not None
            and not projects[root].changed(projects[root].name(job.path))
        })  # fmt: skip
    return made


def _assumed(jobs: Iterable[Job], told: Mapping[Path, Mapping[str, Told]],
             projects: Mapping[Path, Code]) -> tuple[Assumed, ...]:  # fmt: skip
    """The modes that are in force in some files, each with the place that shows it best."""
    best: dict[int, tuple[tuple[object, ...], Sign, Code]] = {}
    for job in jobs:
        code = projects[job.root]
        known = told[job.root][code.name(job.path)]
        for mode, (strength, sign) in known.force.modes.items() if job.stated is None else ():
            if sign is None or strength < Strength.IMPORTER:
                continue
            rank = (sign.flag, -strength, sign.place)
            if mode not in best or rank < best[mode][0]:
                best[mode] = rank, sign, code
    found: list[Assumed] = []
    for name, mode in MODES.items():
        if mode in best:
            _, sign, code = best[mode]
            row = "" if sign.place.path.endswith(notebook.SUFFIX) else f":{sign.place.row}"
            found.append((name, f"{code.shown(sign.place.path)}{row}", sign.flag))
    return tuple(found)


def _lines(task: Task, projects: Mapping[Path, Code]) -> int:
    code = projects[task.job.root]
    return code.contents(code.name(task.job.path)).lines


def _done(tasks: list[Task], projects: Mapping[Path, Code], workers: int) -> list[Outcome]:
    progress.begin("Judging", len(tasks))
    new = sum(task.known is not None and task.before is None for task in tasks)
    if workers > 1 and new > gathering.POOL_FROM:
        weights = [_lines(t, projects) if t.known else 1 for t in tasks]
        return pool.run(_run, tasks, projects, lost=_died, workers=workers, weights=weights)
    return _run(tasks, projects)


def alone(data: bytes, job: Job, settings: Settings, isolated: bool = False) -> Outcome:
    """What one text came to, which stands in place of a file.

    isolated: whether no other file is looked at.
    """
    text = source.decode(data, job.name)
    task, code = Task(job), Code.alone(job.path, settings)
    with closing(Cache(None) if isolated else gathering.cache_of(job.root, settings)) as cache:
        if is_relevant(notebook.python(job.name, data), job.codes) and isinstance(text, Source):
            if not isolated:
                code = gathering.project(job.root, settings, (), cache)
            name = code.name(job.path)
            code = code.with_text(name, text)
            known = gathering.alone_known(code, job.root, name, cache)
            task = Task(job, known)
            outcome = _judge(task, data, code)
            outcome.modes = _assumed([job], {job.root: {name: known}}, {job.root: code})
            return outcome
    return _judge(task, data, code)
