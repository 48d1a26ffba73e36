"""SARIF 2.1.0, with what silenced findings are and what a baseline says of the others.

The rules that found something carry their documentation, results their evidence (as related
locations and as a code flow that ends at the finding), fixes, and a fingerprint that does not
depend on rows.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import precision_lint
from precision_lint import catalogue, fingerprint
from precision_lint.api import Diagnostic, Edit, Evidence, Fix, Position, Severity, Silenced
from precision_lint.report import Aside, files
from precision_lint.source import Source

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
ROOT = "%SRCROOT%"
"""What relative addresses are relative to: the working directory."""
FINGERPRINT = "expressionHash/v1"
MOST = 1024
"""Characters of a rule's description that GitHub takes."""

Sources = Mapping[str, Source]
Object = dict[str, Any]

_LEVELS = {Severity.ERROR: "error", Severity.WARNING: "warning", Severity.INFO: "note"}


def render(diagnostics: Sequence[Diagnostic], sources: Sources, *, aside: Aside) -> str:
    """One run; results in order, the silenced ones after the others."""
    silenced = {id(s.diagnostic): s for s in aside.silenced}
    every = [*diagnostics, *(s.diagnostic for s in aside.silenced)]
    # numbered together, so that silencing the first of two does not rename the second
    ordered = sorted(every, key=lambda d: (d.filename, d.start, d.code, d.end))
    numbered = fingerprint.numbered(ordered, (fingerprint.of(d, sources) for d in ordered))
    keys = {id(diagnostic): key for diagnostic, key in numbered}
    codes = sorted({diagnostic.code for diagnostic in every})
    results = []
    for diagnostic in every:
        key = keys[id(diagnostic)]
        result = _result(diagnostic, sources, codes.index(diagnostic.code), key)
        if silent := silenced.get(id(diagnostic)):
            result["suppressions"] = [_suppression(silent)]
        if aside.compared and not (silent and not silent.baseline):  # a comment's is not compared
            result["baselineState"] = "unchanged" if silent else "new"
        results.append(result)
    run = {
        "tool": {"driver": _driver(codes)},
        "invocations": [{"executionSuccessful": not any(d.internal for d in diagnostics)}],
        "originalUriBaseIds": {ROOT: {"uri": f"{Path.cwd().as_uri().rstrip('/')}/"}},
        "columnKind": "unicodeCodePoints",
        "results": results,
    }
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _driver(codes: Iterable[str]) -> Object:
    return {
        "name": "precision-lint",
        "version": precision_lint.__version__,
        "semanticVersion": precision_lint.__version__,
        "rules": [_rule(catalogue.described(code)) for code in codes],
    }


def _rule(rule: Mapping[str, Any]) -> Object:
    documentation = catalogue.explanation(dict(rule))
    sections = rule.get("sections", {})
    group = catalogue.GROUPS.get(rule["code"][:3], "")
    tags = ["pytorch", "mixed-precision", re.sub(r"\W+", "-", group.lower()).strip("-")]
    preview = bool(rule.get("preview"))
    return {
        "id": rule["code"],
        "name": rule["name"],
        "shortDescription": {"text": rule["summary"]},
        "fullDescription": {"text": _short(sections.get("What it flags", rule["summary"]))},
        "help": {"text": documentation, "markdown": documentation},
        "defaultConfiguration": {
            "enabled": not preview,
            "level": _LEVELS[Severity(rule["severity"])],
        },
        "properties": {"tags": [tag for tag in (*tags, preview and "preview") if tag]},
    } | ({"helpUri": address} if (address := catalogue.page(rule["code"])) else {})


def _short(text: str) -> str:
    """The beginning of a text, up to the end of a sentence, that GitHub takes."""
    text = " ".join(text.split())
    if len(text) <= MOST:
        return text
    end = max(text.rfind(". ", 0, MOST), text.rfind("; ", 0, MOST))
    return f"{text[:end]}." if end > 0 else f"{text[: MOST - 3]}..."


def _result(diagnostic: Diagnostic, sources: Sources, index: int, key: str) -> Object:
    source = sources.get(diagnostic.filename)
    result: Object = {
        "ruleId": diagnostic.code,
        "ruleIndex": index,
        "level": _LEVELS[diagnostic.severity],
        "message": {"text": diagnostic.message},
        "locations": [_location(diagnostic.filename, diagnostic.start, diagnostic.end, sources)],
        "partialFingerprints": {FINGERPRINT: key},
        "properties": {"confidence": diagnostic.confidence.value},
    }
    assumed = [Evidence(f"assumed: {text}") for text in diagnostic.assumptions]
    if links := (*diagnostic.evidence, *assumed):
        related = [_link(link, diagnostic, sources) for link in links]
        result["relatedLocations"] = [{"id": n} | place for n, place in enumerate(related, 1)]
    if diagnostic.evidence:
        places = related[: len(diagnostic.evidence)]
        found = result["locations"][0] | {"message": {"text": diagnostic.message}}
        flow = [{"location": place} for place in (*places, found)]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if diagnostic.fix and diagnostic.fix.edits and source:
        result["fixes"] = [_fix(diagnostic.fix, diagnostic.filename, source)]
    return result


def _link(link: Evidence, diagnostic: Diagnostic, sources: Sources) -> Object:
    """A place of the evidence; a fact without a place is one about the finding's own."""
    if link.start or link.filename:
        name, start, end = link.filename or diagnostic.filename, link.start, link.end
    else:
        name, start, end = diagnostic.filename, diagnostic.start, diagnostic.end
    return _location(name, start, end, sources) | {"message": {"text": link.message}}


def _location(
    filename: str, start: Position | None, end: Position | None, sources: Sources
) -> Object:
    place: Object = {"artifactLocation": _artifact(filename)}
    found: Object = {"physicalLocation": place}
    source = sources.get(filename)
    if start:
        place["region"] = _region(start, end, source)
        if source and end and start < end and end.row <= len(source.lines):
            text = source.shown[source.index(start) : source.index(end)]
            place["region"]["snippet"] = {"text": text}
        cell, inner = files.spot(filename, start, sources)
        if cell:
            name = f"{cell[1:]}:{inner.row}:{inner.column}"
            whole = f"{files.relative(filename, Path.cwd())}:{name}"
            found["logicalLocations"] = [{"name": name, "fullyQualifiedName": whole}]
    return found


def _region(start: Position, end: Position | None, source: Source | None) -> Object:
    """A range of the file's own text, which of a notebook is JSON."""
    if source:
        start, end = source.physical(start), end and source.physical(end)
    region = {"startLine": start.row, "startColumn": start.column}
    if end and end >= start:
        region |= {"endLine": end.row, "endColumn": end.column}
    return region


def _artifact(filename: str) -> Object:
    path = files.relative(filename, Path.cwd())
    if Path(path).is_absolute():
        return {"uri": Path(path).as_uri()}
    return {"uri": quote(os.fsencode(path)), "uriBaseId": ROOT}


def _fix(fix: Fix, filename: str, source: Source) -> Object:
    change = {
        "artifactLocation": _artifact(filename),
        "replacements": [_replacement(edit, source) for edit in sorted(fix.edits)],
    }
    return {
        "description": {"text": files.promise(fix)},
        "artifactChanges": [change],
        "properties": {"applicability": fix.applicability.value},
    }


def _replacement(edit: Edit, source: Source) -> Object:
    start, end, text = edit.start, edit.end, edit.text
    if source.notebook:
        start, end, text = source.notebook.splice(edit)
    region = _region(source.file.position(start), source.file.position(end), None)
    return {"deletedRegion": region, "insertedContent": {"text": text}}


def _suppression(silent: Silenced) -> Object:
    kind = {"kind": "external" if silent.baseline else "inSource", "status": "accepted"}
    return kind | ({"justification": silent.reason} if silent.reason else {})
