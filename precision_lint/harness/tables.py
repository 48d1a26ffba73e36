"""What proofs of rules came to, as text, JSON and JUnit."""

from __future__ import annotations

import datetime
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING
from xml.etree import ElementTree as xml

import torch

if TYPE_CHECKING:
    from precision_lint.harness.verify import Result

WORDS = {"harmless": "not a hazard here", "skipped": "not executed", "failed": "FAILED"}


def policy_words(name: str, where: str) -> str:
    """``cuda (emulated)`` where CUDA's policy runs on a CPU."""
    return f"{name} (emulated)" if name == "cuda" and where == "cpu" else name


def verdict_words(verdict: str) -> str:
    """A verdict as the table shows it."""
    return WORDS.get(verdict, verdict)


def conclusion(results: Sequence[Result]) -> str:
    """What is not proven; else what the rules came to, each by the verdict that tells most."""
    failed = sum(len(result.failures) for result in results)
    if failed:
        return f"{failed} not proven"
    found = Counter(_most(result) for result in results)
    if not found.keys() - {"proven"}:
        return "all proven"
    parts = [f"{found[one]} {words}" for one, words in MOST.items() if found[one]]
    return f"all as declared ({', '.join(parts)})"


MOST = {
    "proven": "proven",
    "shown": "shown without a fix",
    "harmless": "no hazard here",
    "skipped": "not executed",
}
"""What is said of a rule, by the one of its verdicts that tells most."""


def _most(result: Result) -> str:
    verdicts = {cell["verdict"] for cells in result.cells.values() for cell in cells}
    return next((one for one in MOST if one in verdicts), "skipped")


def environment(where: str) -> dict[str, str | None]:
    """What a result depends on: date, torch, and of a GPU its name, CUDA and driver."""
    found: dict[str, str | None] = {
        "date": datetime.date.today().isoformat(),
        "torch": torch.__version__,
        "device": where,
    }
    if where != "cpu":
        found |= {"cuda": torch.version.cuda, "driver": _driver()}
    return found


def _driver() -> str | None:
    """The version of NVIDIA's driver, None where nothing tells."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return run.stdout.strip().splitlines()[0] if run.stdout.strip() else None


def as_text(results: Sequence[Result], where: str, interrupted: bool = False) -> str:
    """The table, and below it one line for each thing that is not proven."""
    head = ("rule", "policy", "dtype", "forward", "backward")
    rows = [
        (
            f"{result.rule.code} {result.rule.name}",
            policy_words(policy, where),
            dtype,
            *(verdict_words(phases.get(phase, "-")) for phase in ("forward", "backward")),
        )
        for result in results
        for policy, dtype, phases in result.summary()
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(map(str.ljust, row, widths)).rstrip() for row in [head, *rows]]
    lines += [""] + [f"{result.rule.code} {line}" for result in results for line in result.failures]
    cases = sum(len(result.cells) for result in results)
    told = environment(where)
    gpu = f", CUDA {told['cuda']}, driver {told['driver']}" if "cuda" in told else ""
    count = f"rules: {len(results)}, cases: {cases}, on {where}, torch {torch.__version__}{gpu}"
    count += f", {told['date']}" if gpu else ""
    lines.append(f"{count}: {conclusion(results)}{', interrupted' if interrupted else ''}")
    return "\n".join(lines) + "\n"


def as_json(results: Sequence[Result], where: str, interrupted: bool = False) -> str:
    """Every cell of every case, in JSON."""
    return (
        json.dumps(
            {
                **environment(where),
                "interrupted": interrupted,
                "rules": [
                    {
                        "code": result.rule.code,
                        "name": result.rule.name,
                        "proven": not result.failures and not result.stopped,
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


def as_junit(results: Sequence[Result], where: str, interrupted: bool = False) -> str:
    """A suite for each rule, a test for each condition and phase of each case."""
    root = xml.Element("testsuites", name="precision-lint verify")
    for result in results:
        suite = xml.SubElement(root, "testsuite", name=f"{result.rule.code} {result.rule.name}")
        for error in result.errors:
            case = xml.SubElement(suite, "testcase", classname=result.rule.code, name="proof")
            xml.SubElement(case, "error", message=error)
        for title, cells in result.cells.items():
            for cell in cells:
                condition = f"{policy_words(cell['policy'], where)} {cell['dtype']} {cell['phase']}"
                case = xml.SubElement(
                    suite,
                    "testcase",
                    classname=f"{result.rule.code}.{title}",
                    name=condition.removeprefix("- "),
                )
                words = "; ".join(cell["reasons"])
                if cell["verdict"] == "failed":
                    xml.SubElement(case, "failure", message=words)
                elif cell["verdict"] == "skipped":
                    xml.SubElement(case, "skipped", message=words)
        if result.stopped or interrupted:
            xml.SubElement(suite, "system-err").text = "interrupted"
    return junit_text(root)


def junit_text(root: xml.Element) -> str:
    """A tree of test suites, counted, as text."""
    for suite in root:
        cases = suite.findall("testcase")
        counts = {kind: sum(c.find(kind) is not None for c in cases) for kind in KINDS}
        suite.set("tests", str(len(cases)))
        for kind, name in KINDS.items():
            suite.set(name, str(counts[kind]))
    for element in root.iter():
        element.attrib.update({name: _printable(value) for name, value in element.items()})
        element.text = element.text and _printable(element.text)
    xml.indent(root)
    return xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _printable(text: str) -> str:
    """XML has no way to write most control characters."""
    return CONTROL.sub("?", text)


CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
KINDS = {"failure": "failures", "error": "errors", "skipped": "skipped"}
FORMATS: Mapping[str, Callable[[Sequence[Result], str, bool], str]] = MappingProxyType(
    {"text": as_text, "json": as_json, "junit": as_junit}
)
