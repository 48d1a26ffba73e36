"""Verdicts on users' findings as text, JSON and JUnit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any
from xml.etree import ElementTree as xml

import torch

from precision_lint.display import printable
from precision_lint.harness.tables import junit_text
from precision_lint.harness.witnesses import Verdict

WORDS = {"not isolated": "cannot be isolated"}


def outcome(one: Verdict) -> str:
    """A verdict in words."""
    return WORDS.get(one.outcome, one.outcome)


def without_fix(one: Verdict) -> str:
    """Why a proven finding has nothing to compare with."""
    fix = one.finding.fix
    if fix is None:
        return "no fix is offered"
    if not one.plan.cure:
        return f"the fix is only shown ({fix.reason})" if fix.reason else "the fix is only shown"
    return "the fix cannot be followed to here"


def counts(verdicts: Sequence[Verdict]) -> Counter[str]:
    """How many of each outcome."""
    return Counter(outcome(one) for one in verdicts)


def summary(verdicts: Sequence[Verdict]) -> str:
    """One line for a run."""
    if not verdicts:
        return "no findings"
    parts = [
        f"{number} {words}" for words, number in sorted(counts(verdicts).items(), reverse=True)
    ]
    return f"findings: {len(verdicts)}, on cpu, torch {torch.__version__}: {', '.join(parts)}"


def assignment(one: dict[str, Any], condition: dict[str, Any]) -> str:
    """An input as a line of Python."""
    text = one["text"].replace("LOW", f"torch.{condition['dtype']}")
    if one["text"].startswith("nn."):
        cast = condition["inputs"] == "low"
        return f"{one['name']} = {text}" + (f".to(torch.{condition['dtype']})" if cast else "")
    if "torch.float64" not in one["text"]:
        return f"{one['name']} = {text}"
    low = condition["inputs"] == "low" and not one["wide"]
    dtype = condition["dtype"] if low else "float32"
    if text.startswith("torch.full("):
        return f"{one['name']} = {text.replace('torch.float64', f'torch.{dtype}')}"
    body = text if text.startswith(("torch.", "(")) and " * torch.eye" not in text else f"({text})"
    return f"{one['name']} = {body}.to(torch.{dtype})"


def inputs(one: Verdict) -> str:
    """The inputs of a witness, to be pasted."""
    lines = []
    for each in one.answer["inputs"]:
        stands_for = one.plan.stands_for.get(each["name"], each["name"])
        note = f"  # {' '.join(stands_for.split())[:60]}" if stands_for != each["name"] else ""
        lines.append(assignment(each, one.answer["condition"]) + note)
    return "\n".join(lines)


def as_text(verdicts: Sequence[Verdict], interrupted: bool = False) -> str:
    """Each finding with its verdict and witness."""
    lines = []
    for one in verdicts:
        finding = one.finding
        lines.append(f"{one.place}: {finding.code} {finding.name}: {outcome(one)}")
        if one.outcome != "proven":
            lines += [f"  {one.reason}", ""]
            continue
        answer = one.answer
        lines.append(f"  {answer['words']}")
        lines += [f"    {line}" for line in inputs(one).splitlines()]
        lines.append(f"  before: {answer['before']}")
        if one.fix is not None:
            lines.append(f"  after:  {answer['after']} ({one.fix})")
        else:
            lines.append(f"  after:  {without_fix(one)}")
        if answer["note"]:
            lines.append(f"  but:    {answer['note']}")
        lines.append("")
    if interrupted and not verdicts:
        return "nothing was judged yet, interrupted\n"
    lines.append(summary(verdicts) + (", interrupted" if interrupted else ""))
    return "\n".join(map(printable, lines)) + "\n"


def as_json(verdicts: Sequence[Verdict], interrupted: bool = False) -> str:
    """Everything that is known of each finding."""
    return (
        json.dumps(
            {
                "torch": torch.__version__,
                "interrupted": interrupted,
                "summary": counts(verdicts),
                "findings": [_entry(one) for one in verdicts],
            },
            indent=2,
        )
        + "\n"
    )


def _entry(one: Verdict) -> dict[str, Any]:
    finding = one.finding
    entry: dict[str, Any] = {
        "code": finding.code,
        "name": finding.name,
        "message": finding.message,
        "filename": finding.filename,
        "location": {"row": finding.start.row, "column": finding.start.column},
        "verdict": outcome(one),
        "reason": one.reason,
    }
    if one.outcome != "proven":
        return entry
    answer = one.answer
    return entry | {
        "condition": answer["condition"],
        "phase": answer["phase"],
        "kind": answer["kind"],
        "loss_scale": answer["scale"],
        "inputs": inputs(one).splitlines(),
        "before": answer["before"],
        "after": answer["after"],
        "note": answer["note"],
        "fix": one.fix,
        "original": one.variant.original,
        "fixed": one.fixed,
    }


def as_junit(verdicts: Sequence[Verdict], interrupted: bool = False) -> str:
    """A test for each finding: proven ones fail, those that cannot be isolated are skipped."""
    root = xml.Element("testsuites", name="precision-lint verify")
    suite = xml.SubElement(root, "testsuite", name="findings")
    for one in verdicts:
        name = f"{one.place} {one.finding.code}"
        case = xml.SubElement(suite, "testcase", classname=one.finding.code, name=name)
        if one.outcome == "proven":
            words = f"{one.finding.message}: {one.answer['before']} ({one.answer['words']})"
            xml.SubElement(case, "failure", message=words).text = inputs(one)
        elif one.outcome == "not isolated":
            xml.SubElement(case, "skipped", message=one.reason)
    if interrupted:
        xml.SubElement(suite, "system-err").text = "interrupted"
    return junit_text(root)


FORMATS: Mapping[str, Callable[[Sequence[Verdict], bool], str]] = MappingProxyType(
    {"text": as_text, "json": as_json, "junit": as_junit}
)
