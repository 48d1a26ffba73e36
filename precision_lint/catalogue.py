"""The rules as data and as text: ``precision-lint rules`` and ``explain``, and rules/README.md."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib import metadata
from typing import Any

from precision_lint import registry
from precision_lint.api import Cost

ENGINE_DOCS = {
    "MP001": ("error", None, "A file cannot be read or decoded, so nothing in it was checked."),
    "MP002": (
        "error",
        None,
        "A file that names torch is not valid Python: nothing in it was checked.",
    ),
    "MP003": ("error", None, "A rule or the analysis failed; the other rules and files went on."),
    "MP004": ("warning", "safe", "A comment silences a rule that finds nothing there."),
    "MP005": (
        "warning",
        "safe",
        "A comment states a fact that cannot be read, contradicts the code or adds nothing.",
    ),
}
"""Severity, fix and summary of the engine's own codes."""
GROUPS = {
    "MP0": "The tool itself",
    "MP1": "GradScaler protocol",
    "MP2": "Autocast regions",
    "MP3": "Epsilons and constants",
    "MP4": "Dtypes of created and stored values",
    "MP5": "Operands that do not fit together, operations that half lacks",
    "MP6": "Values that leave the range of half",
    **{f"MP{digit}": "Rules of other packages" for digit in registry.OTHERS},
}
"""What the rules of a prefix are about."""


def cost(code: str) -> int:
    """The place of a code among those of findings, the dearest first; what could not be checked is first."""
    if code in ENGINE_DOCS:
        return -1 if ENGINE_DOCS[code][0] == "error" else Cost.STYLE.rank
    rule = registry.rules().get(code)
    return rule.cost.rank if rule is not None else Cost.SILENT.rank


@functools.cache
def page(code: str) -> str | None:
    """The address of a rule's page: below the documentation of the distribution that it is of.

    None where that names none in its metadata (``[project.urls]``, ``Documentation``).
    """
    name = "precision-lint"
    rule = registry.rules().get(code)
    if rule is not None and not registry.ships(rule):
        entries = metadata.entry_points(group=registry.GROUP)
        home = rule.__module__.rpartition(".")[0]
        name = next((e.dist.name for e in entries if e.dist and e.value == home), "")
    try:
        given = metadata.metadata(name).get_all("Project-URL") if name else None
    except metadata.PackageNotFoundError:
        return None
    urls = [entry.partition(",") for entry in given or ()]
    found = (url.strip() for label, _, url in urls if label.strip().lower() == "documentation")
    return next((f"{url.rstrip('/')}/rules/{code.lower()}/" for url in found), None)


def described(code: str) -> dict[str, Any]:
    """Everything that is said of a rule, or of a code of the engine."""
    if code in registry.ENGINE_CODES:
        severity, fix, what = ENGINE_DOCS[code]
        name = registry.ENGINE_CODES[code]
        return {"code": code, "name": name, "summary": what, "severity": severity, "fix": fix}
    rule = registry.rules()[code]
    doc = registry.document(rule)
    return {
        "code": code,
        "name": rule.name,
        "aliases": list(rule.aliases),
        "summary": doc.summary,
        "severity": rule.severity.value,
        "fix": rule.applicability and rule.applicability.value,
        "preview": rule.preview,
        "since": rule.since,
        "sections": doc.sections,
    }


def text(codes: Iterable[str]) -> str:
    """One line a rule: code, name, severity, and the promise of the fix."""
    rules = [described(code) for code in codes]
    width = max(len(rule["name"]) for rule in rules)
    lines = []
    for rule in rules:
        fix = f"{rule['fix']} fix" if rule.get("fix") else ""
        preview = "preview" if rule.get("preview") else ""
        line = f"{rule['code']}  {rule['name']:{width}}  {rule['severity']:7}  {fix:11}  {preview}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def markdown(codes: Iterable[str]) -> str:
    """A table for every group of rules."""
    rules = [described(code) for code in codes]
    parts = ["# Rules"]
    for prefix, title in GROUPS.items():
        rows = [
            f"| {rule['code']} | {rule['name']} | {rule['summary']} | {rule['severity']} "
            f"| {rule.get('fix') or 'none'}{', preview' if rule.get('preview') else ''} |"
            for rule in rules
            if rule["code"].startswith(prefix)
        ]
        if rows:
            head = ["| Code | Name | Finds | Severity | Fix |", "| --- | --- | --- | --- | --- |"]
            parts.append("\n".join([f"## {prefix}: {title}", "", *head, *rows]))
    return "\n\n".join(parts)


def explanation(rule: dict[str, Any]) -> str:
    """A rule's documentation."""
    facts = f"Severity: {rule['severity']}. Fix: {rule.get('fix') or 'none'}."
    if rule.get("preview"):
        facts += " Preview: on with --preview only."
    sections = rule.get("sections", {}).items()
    parts = [f"# {rule['name']} ({rule['code']})", facts, rule["summary"]]
    return "\n\n".join([*parts, *(f"## {title}\n\n{body}" for title, body in sections)])
