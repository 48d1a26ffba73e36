"""JUnit's XML, in which a finding is a test that failed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree as XML

from precision_lint.api import Diagnostic, Severity
from precision_lint.display import printable
from precision_lint.report import files
from precision_lint.source import Source

TOOL = "precision-lint"
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def render(diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source]) -> str:
    """A suite for each file; what is for information only counts as skipped.

    Without diagnostics it is one test that passed, for a report without tests is an error to some
    readers.
    """
    base = files.top("CI_PROJECT_DIR")
    root = XML.Element("testsuites", name=TOOL)
    for filename, group in groupby(diagnostics, key=lambda d: d.filename):
        found = list(group)
        failures = sum(d.severity is not Severity.INFO for d in found)
        suite = XML.SubElement(
            root,
            "testsuite",
            name=_text(files.relative(filename, base)),
            tests=str(len(found)),
            failures=str(failures),
            errors="0",
            skipped=str(len(found) - failures),
        )
        for diagnostic in found:
            _case(suite, diagnostic, base, sources)
    if not diagnostics:
        suite = XML.SubElement(
            root, "testsuite", name=TOOL, tests="1", failures="0", errors="0", skipped="0"
        )
        XML.SubElement(suite, "testcase", classname=TOOL, name="no findings")
    XML.indent(root)
    head = '<?xml version="1.0" encoding="UTF-8"?>'
    return f"{head}\n{XML.tostring(root, encoding='unicode')}"


def _case(
    suite: XML.Element, diagnostic: Diagnostic, base: Path, sources: Mapping[str, Source]
) -> None:
    path = files.relative(diagnostic.filename, base)
    cell, start = files.spot(diagnostic.filename, diagnostic.start, sources)
    where = f"{cell}:{start.row}:{start.column}".lstrip(":")
    case = XML.SubElement(
        suite,
        "testcase",
        classname=_text(path),
        name=f"{diagnostic.code} {diagnostic.name} {where}",
    )
    message = _text(diagnostic.message)
    if diagnostic.severity is Severity.INFO:
        XML.SubElement(case, "skipped", message=message)
        return
    failure = XML.SubElement(case, "failure", message=message, type=diagnostic.severity.value)
    place = f"{path}{cell}:{start.row}:{start.column}: {diagnostic.message}"
    failure.text = "\n".join(map(_text, [place, *files.notes(diagnostic, base, sources)]))


def _text(text: str) -> str:
    """A printable line without the characters that XML cannot hold."""
    return _NOT_XML.sub("\ufffd", printable(text))
