"""Proves the rules by executing their fixtures: ``precision-lint verify``.

For every rule, the original texts of its fixtures must fail in half precision as their proofs
declare, and the texts that the real fixer makes of them must not.  What that means is in
`precision_lint.harness.cases`; `precision_lint.harness.worker` executes it.
"""

from __future__ import annotations

import json
import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from precision_lint import registry, source
from precision_lint.api import Applicability, Rule
from precision_lint.harness import expectations, worker
from precision_lint.harness.cases import Level
from precision_lint.harness.collect import InvalidProof, Proof, proof
from precision_lint.harness.policy import UnsupportedTorch, require_torch

Cell = dict[str, Any]
"""`precision_lint.harness.judge.Cell` as JSON."""
ORDER = ("failed", "proven", "shown", "unchanged", "harmless", "skipped")
"""Verdicts, the one that tells most of a group of cells first."""
WORDS = {"harmless": "not a hazard here", "skipped": "not executed", "failed": "FAILED"}


@dataclass
class Result:
    """What the cases of one rule came to; ``errors`` says what is wrong beside the cells."""

    rule: type[Rule]
    cells: dict[str, list[Cell]] = field(default_factory=dict)
    errors: list[str] = field(default_factory=list)

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


def prove(
    proofs: Iterable[Proof], *, keyword: str = "", device: str = "cpu", jobs: int = 1
) -> Iterator[Result]:
    """Execute the cases of each rule whose title contains ``keyword``, in order.

    ``device``: ``cpu``, or ``cuda`` for the GPU's own kernels and policy.  ``jobs``: how many child
    processes run at a time.
    """
    require_torch()
    with ThreadPoolExecutor(max(1, jobs)) as pool:
        try:
            # texts are made in this thread: ast.parse of CPython 3.11 fails when threads share it
            prepared = ((one, _prepared(one, keyword)) for one in proofs)
            yield from pool.map(
                lambda job: _prove(job[0], job[1][0], job[1][1], keyword, device), prepared
            )
        finally:
            pool.shutdown(cancel_futures=True)


def texts(rule: type[Rule], path: Path, level: Level) -> tuple[str, str | None]:
    """A fixture module's text, and what the fixer makes of it with this rule.

    Other rules whose findings the module expects beside it fix theirs: a sum of two terms is not
    cured by one.  The second is None for the level ``none``.  Raises `InvalidProof` if the fixer
    fails.
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
    fixed = expectations.fixed(original, expectations.linter(rules, path), levels)
    if fixed.failure is not None:
        raise InvalidProof(f"{path}: the fixer failed: {fixed.failure.message}")
    crash = next((d for d in fixed.remaining if d.internal), None)
    if crash is not None:
        raise InvalidProof(f"{path}:{crash.start.row}: {crash.message}")
    return original.text, fixed.source.text


Pairs = dict[int, tuple[str, str | None]]
"""Original and fixed text by the index of the case."""


def _prepared(proof: Proof, keyword: str) -> tuple[Pairs, list[str]]:
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
    return {
        i: fixed[key] for i, c in chosen.items() if (key := (c.module, c.level)) in fixed
    }, errors


def _prove(proof: Proof, pairs: Pairs, errors: list[str], keyword: str, device: str) -> Result:
    result = Result(proof.rule, errors=errors)
    if proof.folder is not None:
        for index, answer in worker.run(worker.Job(proof.folder, pairs, device)):
            title = proof.cases[index].title
            if isinstance(answer, str):
                result.errors.append(f"{title}: {answer}")
            else:
                result.cells[title] = answer
    if not keyword:
        result.errors += _missing(proof, result)
    return result


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
    for golden in sorted(proof.folder.glob("*.unsafe.golden.py")):
        module = golden.name.replace(".unsafe.golden", "")
        if ("unsafe", module) not in proven:
            errors.append(
                f"{module}: has an unsafe fix that no case proves; write a Case of that level"
            )
    return errors


def main(
    select: Sequence[str] = (),
    keyword: str = "",
    exitfirst: bool = False,
    jobs: int | None = None,
    device: str = "cpu",
    output_format: str = "text",
) -> int:
    """Prove the selected rules (default: all) and print the table; returns the exit status.

    0: everything is proven.  1: something is not.  2: wrong arguments, or no such device.
    """
    try:
        require_torch()
        rules = _selected(select)
    except (UnsupportedTorch, registry.InvalidRule, _Usage) as error:
        return _usage(str(error))
    if device not in ("cpu", "cuda"):
        return _usage(f"--device {device}: unknown; choose cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        return _usage("--device cuda: torch finds no CUDA device here; leave the option out")
    proofs = [proof(rule, expectations.home()) for rule in rules]
    if keyword and not any(keyword in case.title for one in proofs for case in one.cases):
        return _usage(f"-k {keyword}: matches no case of the selected rules")
    where = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    results = []
    count = jobs or os.cpu_count() or 1
    for result in prove(proofs, keyword=keyword, device=device, jobs=count):
        results.append(result)
        if exitfirst and result.failures:
            break
    text = _as_json(results, where) if output_format == "json" else _as_table(results, where)
    sys.stdout.write(text)
    return 1 if any(result.failures for result in results) else 0


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


def _policy(name: str, where: str) -> str:
    return f"{name} (emulated)" if name == "cuda" and where == "cpu" else name


def _as_table(results: Sequence[Result], where: str) -> str:
    """The table, and below it one line for each thing that is not proven."""
    head = ("rule", "policy", "dtype", "forward", "backward")
    rows = [
        (
            f"{result.rule.code} {result.rule.name}",
            _policy(policy, where),
            dtype,
            *(WORDS.get(v := phases.get(phase, "-"), v) for phase in ("forward", "backward")),
        )
        for result in results
        for policy, dtype, phases in result.summary()
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *rows]]
    lines += [""] + [f"{result.rule.code} {line}" for result in results for line in result.failures]
    cases = sum(len(result.cells) for result in results)
    failed = sum(len(result.failures) for result in results)
    count = f"rules: {len(results)}, cases: {cases}, on {where}, torch {torch.__version__}"
    lines.append(f"{count}: {f'{failed} not proven' if failed else 'all proven'}")
    return "\n".join(lines) + "\n"


def _as_json(results: Sequence[Result], where: str) -> str:
    return (
        json.dumps(
            {
                "torch": torch.__version__,
                "device": where,
                "rules": [
                    {
                        "code": result.rule.code,
                        "name": result.rule.name,
                        "proven": not result.failures,
                        "errors": result.errors,
                        "cases": [
                            {"case": title, "cells": cells} for title, cells in result.cells.items()
                        ],
                    }
                    for result in results
                ],
            },
            indent=2,
        )
        + "\n"
    )
