"""Score precision-lint on small projects that were written without a look at its rules.

python -m benchmarks.projects
python -m benchmarks.projects --set held-out --jobs 2 --output results.json
python -m benchmarks.projects --only MP301 --misses
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("projects.jsonl")
SETS = ("development", "held-out")
NEAR = 1
"""Rows beside the labelled ones that still count as found."""
COMMAND = (
    *(sys.executable, "-I", "-m", "precision_lint", "check", "--isolated", "--no-cache", "--jobs"),
    *("1", "--preview", "--confidence", "possible", "--output-format", "json", "--exit-zero", "."),
)


@dataclass(frozen=True)
class Project:
    """One project: its files by path, and the place that is labelled in one of them.

    ``accepts`` are the codes that fit a bug's place; at a trap every code is wrong.  ``sure``: half
    precision is on as the project is run by default, or as its documents say.
    """

    id: str
    set: str
    kind: str
    code: str
    accepts: frozenset[str]
    context: str
    file: str
    lines: tuple[int, int]
    sure: bool
    note: str
    files: dict[str, str]

    @property
    def group(self) -> str:
        """The row of the table that the project is counted in."""
        return self.context if self.kind == "positive" else "traps"


def load(path: Path = DATA) -> list[Project]:
    """The projects, in the order of their codes."""
    rows = [json.loads(line) for line in path.read_text("utf8").splitlines()]
    return [
        Project(**{**row, "accepts": frozenset(row["accepts"]), "lines": tuple(row["lines"])})
        for row in rows
    ]


def lint(project: Project) -> list[dict[str, Any]]:
    """All findings in a copy of the project, linted from its own directory."""
    with tempfile.TemporaryDirectory() as name:
        for path, text in project.files.items():
            target = Path(name, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, "utf8")
        done = subprocess.run(COMMAND, cwd=name, capture_output=True, text=True, check=True)
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def verdict(project: Project, findings: Sequence[dict[str, Any]]) -> str:
    """``default``, ``possible`` or ``none``: how sure a fitting finding at the place is."""
    first, last = project.lines
    near = [
        finding
        for finding in findings
        if finding["filename"] == project.file
        and finding["location"]["row"] <= last + NEAR
        and finding["end_location"]["row"] >= first - NEAR
        and (project.kind == "negative" or finding["code"] in project.accepts)
    ]
    if any(finding["confidence"] != "possible" for finding in near):
        return "default"
    return "possible" if near else "none"


def table(verdicts: Sequence[tuple[Project, str]]) -> dict[str, dict[str, dict[str, int]]]:
    """By set and group: how many were flagged by default and with ``possible``, out of how many."""
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for name in SETS:
        groups: dict[str, Counter[str]] = {}
        for project, said in verdicts:
            if project.set == name:
                totals = ("bugs",) if project.kind == "positive" else ()
                for group in (project.group, *totals):
                    count = groups.setdefault(group, Counter())
                    count["n"] += 1
                    count["default"] += said == "default"
                    count["possible"] += said != "none"
        if groups:
            counts[name] = {group: dict(groups[group]) for group in sorted(groups)}
    return counts


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.projects", description=__doc__)
    parser.add_argument("--set", choices=SETS, help="only the projects of one set")
    parser.add_argument("--only", default="", help="only projects whose id starts like this")
    parser.add_argument("--jobs", type=int, default=1, help="projects at a time")
    parser.add_argument("--misses", action="store_true", help="list what is not right by default")
    parser.add_argument("--output", type=Path, help="write the table as JSON")
    options = parser.parse_args(args)
    chosen = [p for p in load() if options.set in (None, p.set) and p.id.startswith(options.only)]
    with ThreadPoolExecutor(options.jobs) as pool:
        verdicts = list(zip(chosen, pool.map(lambda p: verdict(p, lint(p)), chosen), strict=True))
    for project, said in verdicts if options.misses else ():
        if (said == "default") is (project.kind == "negative"):
            print(f"{project.id} ({project.set}, {project.group}): {said}")
    counts = table(verdicts)
    for name, groups in counts.items():
        for group, count in groups.items():
            print(
                f"{name:12} {group:14} {count['default']} by default, {count['possible']} with "
                f"possible, of {count['n']}"
            )
    if options.output:
        date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
        text = json.dumps({"date": date, "figures": counts}, indent=2)
        options.output.write_text(f"{text}\n", "utf8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
