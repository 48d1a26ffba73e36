"""Proves the rules by executing their fixtures: ``precision-lint verify``.

For every rule, the original texts of its fixtures must fail in half precision as their proofs
declare, and the texts that the real fixer makes of them must not.  What that means is in
`precision_lint.harness.cases`; `precision_lint.harness.worker` executes it.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from precision_lint import fixer, progress, registry, source
from precision_lint.api import Applicability, Rule
from precision_lint.harness import expectations, page, probes, sweep, tables, worker
from precision_lint.harness.cases import Level
from precision_lint.harness.children import Children, Stopped
from precision_lint.harness.collect import InvalidProof, Proof, proof
from precision_lint.harness.policy import UnsupportedTorch, require_torch

Cell = dict[str, Any]
"""`precision_lint.harness.judge.Cell` as JSON."""
BATCH = 8
"""So many rules at most share a child."""
ORDER = ("failed", "proven", "shown", "unchanged", "harmless", "skipped")
"""Verdicts, the one that tells most of a group of cells first."""


@dataclass
class Result:
    """What the cases of one rule came to; ``errors`` says what is wrong beside the cells."""

    rule: type[Rule]
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)
    stopped: bool = False
    """Whether the run ended before all of its cases were executed."""

    @property
    def failures(self) -> list[str]:
        """One line for each thing that is not proven, with the conditions that share it."""
        where: dict[tuple[str, str, str], list[str]] = defaultdict(list)
        for title, cells in self.cells.items():
            for cell in cells:
                condition = f"{cell['policy']}/{cell['dtype']}".removeprefix("-/")
                for reason in cell["reasons"] if cell["verdict"] == "failed" else ():
                    where[title, cell["phase"], reason].append(condition)
        return self.errors + [
            f"{title}: {', '.join(conditions)} {phase}: {reason}"
            for (title, phase, reason), conditions in where.items()
        ]

    def summary(self) -> list[tuple[str, str, dict[str, str]]]:
        """Verdict by phase, for each policy and dtype: the one that tells most of all cases."""
        grouped: dict[tuple[str, str], dict[str, set[str]]] = defaultdict(lambda: defaultdict(set))
        for cell in (cell for cells in self.cells.values() for cell in cells):
            grouped[cell["policy"], cell["dtype"]][cell["phase"]].add(cell["verdict"])
        return [
            (policy, dtype, {phase: min(found, key=ORDER.index) for phase, found in phases.items()})
            for (policy, dtype), phases in grouped.items()
        ]


Done = Callable[[str], None]
"""Hears of each case that was executed."""


def prove(
    proofs: Iterable[Proof],
    *,
    keyword: str = "",
    device: str = "cpu",
    jobs: int = 1,
    children: Children | None = None,
    done: Done = lambda case: None,
    batch: int = BATCH,
) -> Generator[Result, None, None]:
    """Execute the cases of each rule whose title contains ``keyword``, in order.

    ``device``: ``cpu``, or ``cuda`` for the GPU's own kernels and policy.  ``jobs``: how many child
    processes run at a time; ``batch``: how many rules at most share one.  When ``children`` are
    stopped, rules that were begun come out as far as they are.
    """
    require_torch()
    children = children or Children()
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        futures: list[Future[list[Result]]] = []
        try:
            if device != "cpu" or sys.platform != "linux":  # elsewhere forks of torch are not safe
                batch = 1
            for some in _batches(list(proofs), batch, jobs):
                # texts are made in this thread: ast.parse of 3.11 fails when threads share it
                prepared = [(one, *_prepared(one, keyword)) for one in some]
                futures.append(pool.submit(_prove, prepared, keyword, device, children, done))
            for future in futures:
                yield from future.result()
        except KeyboardInterrupt:
            children.stop()
            pool.shutdown(cancel_futures=True)
            ended = (f.result() for f in futures if f.done() and not f.cancelled())
            yield from itertools.chain.from_iterable(ended)
            raise
        except BaseException:
            children.stop()
            raise
        finally:
            pool.shutdown(cancel_futures=True)


def texts(rule: type[Rule], path: Path, level: Level) -> tuple[str, str | None]:
    """A fixture module's text, and what the fixer makes of it with this rule.

    Other rules whose findings the module expects beside it fix theirs: a sum of two terms is not
    cured by one.  An unsafe fix may be one of a possible finding.  The second is None for the level
    ``none``.  Raises `InvalidProof` if the fixer fails.
    """
    original = source.read(path)
    if isinstance(original, source.Failure):
        raise InvalidProof(f"{path}: {original.message}")
    if level == "none":
        return original.text, None
    levels = expectations.SAFE if level == "safe" else expectations.UNSAFE
    known = registry.rules()
    beside = {e.code for e in expectations.expectations(original.text)} & known.keys()
    rules = [rule, *(known[code] for code in sorted(beside - {rule.code}))]
    lint = expectations.linter(rules, path)
    whole = level != "safe"  # as with ``--unsafe-fixes --confidence possible``
    fixed = (
        fixer.fix(original, lint, levels) if whole else expectations.fixed(original, lint, levels)
    )
    if fixed.failure is not None:
        raise InvalidProof(f"{path}: the fixer failed: {fixed.failure.message}")
    crash = next((d for d in fixed.remaining if d.internal), None)
    if crash is not None:
        raise InvalidProof(f"{path}:{crash.start.row}: {crash.message}")
    return original.text, fixed.source.text


def mistaken(rule: type[Rule], path: Path) -> list[str]:
    """Where a rule does not find what its fixture module expects, or reports what it does not."""
    original = source.read(path)
    if isinstance(original, source.Failure):
        return [f"{path}: {original.message}"]
    all_rules = list(registry.rules().values())  # another one may supersede it
    found = [d for d in expectations.linter(all_rules, path)(original) if d.code == rule.code]
    lost, left = expectations.unmet(original.text, found)
    lines = [f"{one.row}: the rule does not find {one}" for one in lost if one.code == rule.code]
    lines += [f"{one.start.row}: a false alarm: {one.message}" for one in expectations.shown(left)]
    return [f"{path.name}:{line}" for line in lines]


def _prepared(proof: Proof, keyword: str) -> tuple[worker.Texts, list[str]]:
    """Texts of the chosen cases, and why some could not be made."""
    errors = [proof.error] if proof.error else []
    if proof.folder is None:
        return {}, errors
    chosen = {i: case for i, case in enumerate(proof.cases) if keyword in case.title}
    fixed: dict[tuple[str, Level], tuple[str, str | None]] = {}
    for module, level in dict.fromkeys((case.module, case.level) for case in chosen.values()):
        try:
            fixed[module, level] = texts(proof.rule, proof.folder / module, level)
        except InvalidProof as error:
            errors.append(str(error))
    executed = {proof.folder / module for module, _ in fixed}
    # what no case executes has expectations, too
    for path in sorted(executed) if keyword else expectations.modules(proof.folder):
        errors += [line for line in mistaken(proof.rule, path) if line not in errors]
    return {
        i: fixed[key] for i, c in chosen.items() if (key := (c.module, c.level)) in fixed
    }, errors


def _batches(proofs: list[Proof], batch: int, jobs: int) -> Iterator[list[Proof]]:
    """Proofs that one child executes: several, since each child imports torch first."""
    size = max(1, min(batch, len(proofs) // max(1, jobs)))
    for start in range(0, len(proofs), size):
        yield proofs[start : start + size]


def _prove(
    prepared: Sequence[tuple[Proof, worker.Texts, list[str]]],
    keyword: str,
    device: str,
    children: Children,
    done: Done,
) -> list[Result]:
    """What becomes of some proofs, as far as ``children`` come before they are stopped."""
    results = [Result(proof.rule, errors=errors) for proof, _, errors in prepared]
    left = [set(pairs) if proof.folder is not None else set() for proof, pairs, _ in prepared]
    jobs = [worker.Job(proof.folder or Path(), pairs, device) for proof, pairs, _ in prepared]
    with contextlib.suppress(Stopped):
        for number, index, answer in worker.run(jobs, children):
            proof, result = prepared[number][0], results[number]
            title = proof.cases[index].title
            if isinstance(answer, str):
                result.errors.append(f"{title}: {answer}")
            else:
                result.cells[title] = answer
            left[number].discard(index)
            done(f"{proof.rule.code} {title}")
    for (proof, _, _), result, rest in zip(prepared, results, left, strict=True):
        result.stopped = bool(rest)
        if not (keyword or rest):
            result.errors += _missing(proof, result)
    return results


def _missing(proof: Proof, result: Result) -> list[str]:
    """A rule that ships a fix needs a proof of it: a hazard that shows, and is cured."""
    level = proof.rule.applicability
    if level not in (Applicability.SAFE, Applicability.UNSAFE):
        return []
    if proof.error is not None:
        return []
    if proof.folder is None:
        return [f"ships a {level.value} fix and has no proof.py; write one"]
    proven = {
        (case.level, case.module)
        for case in proof.cases
        for cell in result.cells.get(case.title, [])
        if cell["verdict"] == "proven"
    }
    errors = []
    if all(proved != level.value for proved, _ in proven):
        errors.append(
            f"ships a {level.value} fix, and no case proves one; write a Case of that level"
        )
    return errors


def main(
    select: Sequence[str] = (),
    keyword: str = "",
    exitfirst: bool = False,
    jobs: int | None = None,
    device: str = "cpu",
    output_format: str = "text",
    report: Path | None = None,
) -> int:
    """Prove the selected rules (default: all) and print the table; returns the exit status.

    0: everything is proven.  1: something is not, or a GPU casts otherwise than the emulation.
    2: wrong arguments, or no such device.  130: interrupted; what is known by then is printed.
    """
    try:
        require_torch()
        rules = _selected(select)
        if report is not None:
            page.require()
    except (UnsupportedTorch, registry.InvalidRule, page.Missing, _Usage) as error:
        return _usage(str(error))
    if device not in ("cpu", "cuda"):
        return _usage(f"--device {device}: unknown; choose cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        return _usage("--device cuda: torch finds no CUDA device here; leave the option out")
    proofs = [proof(rule) for rule in rules]
    chosen = [case for one in proofs for case in one.cases if keyword in case.title]
    if keyword and not chosen:
        return _usage(f"-k {keyword}: matches no case of the selected rules")
    jobs = jobs or os.cpu_count() or 1
    where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    differing = probes.disagreements(device) if device == "cuda" else []
    for line in differing:
        sys.stderr.write(f"the emulated policy differs: {line}\n")
    results: list[Result] = []
    interrupted = False
    with progress.bar(len(chosen)) as tick:
        batch = 1 if exitfirst else BATCH
        proving = prove(proofs, keyword=keyword, device=device, jobs=jobs, done=tick, batch=batch)
        try:
            for result in proving:
                results.append(result)
                if exitfirst and result.failures:
                    break
        except KeyboardInterrupt:
            interrupted = True
        finally:
            proving.close()
    sys.stdout.write(tables.FORMATS[output_format](results, where, interrupted))
    if report is not None:
        sweeps = {} if interrupted else _sweeps(proofs, jobs)
        report.write_text(page.of_rules(results, where, sweeps), encoding="utf-8")
    if interrupted:
        sys.stderr.write("precision-lint verify: interrupted; this is what was proven by then\n")
        return 130
    return 1 if differing or any(result.failures for result in results) else 0


def _sweeps(proofs: Sequence[Proof], jobs: int) -> dict[str, sweep.Sweep]:
    """For each rule a case with a fix at inputs of every magnitude, by code."""
    todo = []
    for one in proofs:
        if one.folder is None:
            continue
        for index in sweep.chosen(one.cases):
            case = one.cases[index]
            original, fixed = texts(one.rule, one.folder / case.module, case.level)
            if fixed is not None and fixed != original:
                todo.append((one.rule.code, one.folder, index, original, fixed))
                break
    with progress.bar(len(todo), "plots") as tick, ThreadPoolExecutor(max(1, jobs)) as pool:

        def run(job: tuple[str, Path, int, str, str]) -> sweep.Sweep | None:
            code, folder, index, original, fixed = job
            found = sweep.run(folder, index, original, fixed)
            tick(code)
            return found

        answers = list(pool.map(run, todo))
    return {job[0]: found for job, found in zip(todo, answers, strict=True) if found is not None}


class _Usage(Exception):
    pass


def _usage(message: str) -> int:
    sys.stderr.write(f"precision-lint verify: {message}\n")
    return 2


def _selected(select: Sequence[str]) -> list[type[Rule]]:
    rules = registry.rules()
    codes: set[str] = set()
    for selector in select:
        found = [code for code in registry.known(selector) if code in rules]
        if not found:
            raise _Usage(f"--select {selector}: names no rule; see precision-lint rules")
        codes.update(found)
    return [rule for code, rule in rules.items() if not select or code in codes]
