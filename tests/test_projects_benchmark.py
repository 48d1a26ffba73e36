"""The benchmark of small projects: its data, and how findings are judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.projects import __main__ as projects
from precision_lint import registry

ALL = projects.load()


def finding(code: str, row: int, confidence: str = "likely", file: str = "") -> dict[str, Any]:
    place = {"row": row, "column": 1}
    return {
        "code": code,
        "confidence": confidence,
        "filename": file or ALL[0].file,
        "location": place,
        "end_location": place,
    }


def test_every_row_has_bugs_and_a_trap() -> None:
    codes = set(registry.rules())
    assert {p.code for p in ALL if p.kind == "positive"} == codes
    assert {p.code for p in ALL if p.kind == "negative"} == codes
    assert {p.set for p in ALL} == set(projects.SETS)
    assert len({p.id for p in ALL}) == len(ALL)


@pytest.mark.parametrize("project", ALL, ids=lambda p: str(p.id))
def test_labels_name_rows_of_the_project(project: projects.Project) -> None:
    first, last = project.lines
    rows = project.files[project.file].splitlines()[first - 1 : last]
    assert "".join(rows).strip()
    assert bool(project.accepts) is (project.kind == "positive") and project.note
    for path, text in project.files.items():
        if path.endswith(".py"):
            compile(text, path, "exec")
        elif path.endswith(".json"):
            json.loads(text)


def test_verdicts() -> None:
    bug = next(p for p in ALL if p.kind == "positive")
    trap = next(p for p in ALL if p.kind == "negative")
    code, row, other = min(bug.accepts), bug.lines[0], "MP999"
    near = [finding(code, row - projects.NEAR, "possible", bug.file)]
    assert projects.verdict(bug, near) == "possible"
    assert projects.verdict(bug, [*near, finding(code, row, "certain", bug.file)]) == "default"
    assert projects.verdict(bug, [finding(other, row, file=bug.file)]) == "none"
    assert projects.verdict(bug, [finding(code, bug.lines[1] + 2, file=bug.file)]) == "none"
    assert projects.verdict(bug, [finding(code, row, file=f"other_{bug.file}")]) == "none"
    assert projects.verdict(trap, [finding(other, trap.lines[0], file=trap.file)]) == "default"


def test_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "results.json"
    assert projects.main(["--only", "MP101-1", "--misses", "--output", str(output)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "development  bugs           1 by default, 1 with possible, of 1",
        "development  same-function  1 by default, 1 with possible, of 1",
    ]
    figures = json.loads(output.read_text("utf8"))["figures"]
    assert figures["development"]["bugs"] == {"n": 1, "default": 1, "possible": 1}
