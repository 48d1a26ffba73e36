"""Comments that silence findings, and those that silence nothing.

- ``# noqa`` silences every finding of its line, ``# noqa: MP301, E501`` those named; codes of other
  tools are left alone.
- ``# precision-lint: ignore[MP301, cdist-in-half] reason`` does too; alone on its line, it stands
  for the statement that follows.
- ``# precision-lint: ignore-file`` and ``ignore-file[MP301]`` hold for the whole file.

A comment's line is the first line of a finding, its last line, or the last line of its statement.
Failures to read or parse a file, and of a rule, cannot be silenced.
"""

from __future__ import annotations

import difflib
import itertools
import re
import sys
import tokenize
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from precision_lint import registry
from precision_lint.api import Applicability, Confidence, Diagnostic, Edit, Fix, Severity
from precision_lint.source import Source

__all__ = ["Suppressed", "above", "apply", "comment", "comments"]

UNUSED = "MP004"
ALWAYS_SHOWN = frozenset({"MP001", "MP002", "MP003"})
DIRECTIVES = ("ignore", "ignore-file", "assume")
FORMS = "`# precision-lint: ignore[CODE] reason` or `# precision-lint: ignore-file[CODE]`"

_NAMES_OURS = re.compile(r"noqa\s*:[^\r\n]*(?:MP\d|[a-z0-9]-[a-z])", re.IGNORECASE)
_NOQA = re.compile(r"#\s*noqa(?![\w-])(?P<colon>\s*:\s*)?", re.IGNORECASE)
_OWN = re.compile(
    r"#\s*precision-lint\s*:(?!\s*assume(?![\w-]))\s*"
    r"(?:(?P<kind>ignore-file(?![\w-])|ignore(?=\s*\[))\s*(?:\[(?P<codes>[^\]#]*)\])?)?"
)
_CODE = re.compile(r"(?!(?:FP|BF|TF)\d)[A-Z]+\d+(?![\w-])")  # FP16 begins a reason
_WORD = re.compile(r"[\w-]+")
_GAP = re.compile(r"\s*,\s*|\s+")
_WHITE = frozenset(
    {tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER, tokenize.ENCODING}
)


@dataclass
class Suppressed:
    """What suppressions made of a file's diagnostics.

    ``suppressed`` pairs a diagnostic with the reason that its comment gives, which may be empty.
    ``unused`` are the warnings (``MP004``) about suppressions that silence nothing.
    """

    kept: list[Diagnostic] = field(default_factory=list)
    suppressed: list[tuple[Diagnostic, str]] = field(default_factory=list)
    unused: list[Diagnostic] = field(default_factory=list)


@dataclass(frozen=True)
class _Comment:
    """A comment from its ``#`` to the end of its line; ``alone``: no code stands before it."""

    row: int
    start: int
    text: str
    alone: bool

    @property
    def end(self) -> int:
        return self.start + len(self.text)


@dataclass(frozen=True)
class _Layout:
    """Comments and statements of a file; a statement is its first and last row."""

    comments: list[_Comment]
    statements: list[tuple[int, int]]

    @cached_property
    def alone(self) -> set[int]:
        return {comment.row for comment in self.comments if comment.alone}

    def statement(self, row: int) -> tuple[int, int]:
        """Rows of the statement around a row; the row itself where there is none."""
        at = bisect_right(self.statements, (row, sys.maxsize)) - 1
        if at >= 0 and self.statements[at][1] >= row:
            return self.statements[at]
        return row, row

    def below(self, row: int) -> range:
        """Rows of the statement below a comment, or of the line below it inside a statement."""
        while row in self.alone:
            row += 1
        first, last = self.statement(row)
        return range(row, last + 1 if first == row else row + 1)


@dataclass
class _Item:
    """One entry of a list; ``code`` is None if it is another tool's or unknown."""

    text: str
    start: int
    code: str | None
    unknown: bool = False
    used: bool = False


@dataclass
class _Directive:
    """One suppression; all places are offsets into its comment, from ``#`` to the next ``#``.

    It holds for all codes if ``items`` is empty.
    """

    comment: _Comment
    start: int
    end: int
    reason: str
    reason_start: int
    items: list[_Item]
    own: bool = True
    whole_file: bool = False
    understood: bool = True
    word: str = ""
    """What stands in place of a directive's name."""

    def silences(self, code: str) -> bool:
        """Whether it holds for a code; marks what made it hold as used."""
        matching = [item for item in self.items if item.code == code]
        for item in matching:
            item.used = True
        return self.understood and (bool(matching) or not self.items)


def apply(
    source: Source, diagnostics: Sequence[Diagnostic], selected: Collection[str]
) -> Suppressed:
    """Part the diagnostics of a file by its suppressions, and judge those.

    ``diagnostics`` must be of every confidence, for a suppression of a finding that is not shown is
    of use too.  A suppression of a rule that is not ``selected`` is never unused, nor is any in a
    file in which a rule or the parser failed.
    """
    result = Suppressed()
    layout = _layout(source) if _mentions(source.text, bool(diagnostics)) else None
    if layout is None:
        result.kept.extend(diagnostics)
        return result
    directives = [d for comment in layout.comments for d in _directives(comment)]
    everywhere = [d for d in directives if d.whole_file]
    by_row: dict[int, list[_Directive]] = {}
    above: dict[int, list[_Directive]] = {}
    for directive in directives:
        if not directive.whole_file:
            row = directive.comment.row
            by_row.setdefault(row, []).append(directive)
            if directive.own and directive.comment.alone:
                for below in layout.below(row):
                    above.setdefault(below, []).append(directive)

    def silenced(diagnostic: Diagnostic) -> bool:
        if diagnostic.code in ALWAYS_SHOWN:
            return False
        first, last = diagnostic.start.row, diagnostic.end.row
        near = [
            d
            for row in sorted({first, last, layout.statement(first)[1]})
            for d in by_row.get(row, ())
        ]
        holding = [
            d for d in [*near, *above.get(first, ()), *everywhere] if d.silences(diagnostic.code)
        ]
        if holding:
            reason = next((d.reason for d in holding if d.reason), "")
            result.suppressed.append((diagnostic, reason))
        return bool(holding)

    result.kept.extend(d for d in diagnostics if not silenced(d))
    judged = {*selected, *ALWAYS_SHOWN} - {UNUSED}
    if not ALWAYS_SHOWN.isdisjoint(d.code for d in diagnostics):
        judged = set()  # what was to be silenced may be among what was not found
    for directive in directives:
        reports = _reports(source, directive, judged)
        result.unused.extend(report for report in reports if not silenced(report))
    return result


def comment(codes: Collection[str], reason: str = "") -> str:
    """The comment that silences codes; raises ValueError for a reason that no comment can hold."""
    text = " ".join([f"# precision-lint: ignore[{', '.join(sorted(codes))}]", *reason.split()])
    if len(list(_directives(_Comment(1, 0, text, True)))) != 1 or not text.isprintable():
        raise ValueError(reason)
    return text


def comments(source: Source, diagnostics: Sequence[Diagnostic], reason: str = "") -> list[Edit]:
    """Insertions of comments that silence diagnostics, each on a line of its own.

    They stand above the statements, whose lines stay as they are.  Nothing is inserted for what
    cannot be silenced, for unused suppressions, and in a file that cannot be divided into tokens.
    """
    layout = _layout(source)
    by_row: dict[int, set[str]] = {}
    for diagnostic in diagnostics if layout else ():
        if layout and diagnostic.code not in {*ALWAYS_SHOWN, UNUSED}:
            first, _ = layout.statement(diagnostic.start.row)
            by_row.setdefault(first, set()).add(diagnostic.code)
    return [_inserted(source, row, comment(codes, reason)) for row, codes in sorted(by_row.items())]


def above(source: Source, row: int, text: str) -> Edit | None:
    """The insertion of a comment above the statement around a row; None where there are no tokens."""
    layout = _layout(source)
    return _inserted(source, layout.statement(row)[0], text) if layout else None


def _inserted(source: Source, row: int, text: str) -> Edit:
    start = source.lines[row - 1]
    line = source.text[start:]
    indent = line[: len(line) - len(line.lstrip(" \t\f"))]
    return Edit(start, start, f"{indent}{text}{source.newline}")


def _mentions(text: str, diagnostics: bool) -> bool:
    """Whether it may pay to look for comments: dividing a text into tokens costs as parsing it."""
    if "precision-lint" in text:
        return True
    return "noqa" in text.lower() and (diagnostics or _NAMES_OURS.search(text) is not None)


def _layout(source: Source) -> _Layout | None:
    """Where comments and statements are; None if the file cannot be divided into tokens."""
    comments: list[_Comment] = []
    statements: list[tuple[int, int]] = []
    bounds = itertools.pairwise([*source.lines, len(source.text)])
    lines = (source.text[start:end].rstrip("\r\n") + "\n" for start, end in bounds)
    first = None
    try:
        for token in tokenize.generate_tokens(lambda: next(lines, "")):
            row, column = token.start
            if token.type == tokenize.COMMENT:
                start = source.lines[row - 1] + column
                alone = not source.text[start - column : start].strip()
                comments.append(_Comment(row, start, token.string, alone))
            elif token.type == tokenize.NEWLINE:
                statements.append((row if first is None else first, row))
                first = None
            elif token.type not in _WHITE and first is None:
                first = row
    except (tokenize.TokenError, SyntaxError, ValueError, SystemError):
        return None  # SystemError: a NUL character, from Python 3.12 on
    return _Layout(comments, statements)


def _directives(comment: _Comment) -> Iterator[_Directive]:
    """The suppressions in a comment; each begins at a ``#`` and ends before the next one."""
    for mark in re.finditer(r"(?<![`'\"])#", comment.text):  # a quoted one is only spoken of
        if match := _OWN.match(comment.text, mark.start()):
            yield _own(comment, match)
        elif (match := _NOQA.match(comment.text, mark.start())) and (
            directive := _noqa(comment, match)
        ):
            yield directive


def _own(comment: _Comment, match: re.Match[str]) -> _Directive:
    items = []
    for word in re.finditer(r"[^\s,]+", match["codes"] or ""):
        code = _named(word[0])
        items.append(_Item(word[0], match.start("codes") + word.start(), code, code is None))
    other = None if match["kind"] else _WORD.match(comment.text, match.end())
    bare = match["codes"] is None and not comment.text.startswith("[", match.end())
    return replace(
        _directive(comment, match.start(), match.end(), items),
        whole_file=match["kind"] == "ignore-file",
        understood=bool(items) or (match["kind"] == "ignore-file" and bare),
        word=other[0] if other and other[0] not in DIRECTIVES else "",
    )


def _noqa(comment: _Comment, match: re.Match[str]) -> _Directive | None:
    items: list[_Item] = []
    end = at = match.end()
    while match["colon"] and (word := _WORD.match(comment.text, at)):
        code = _named(word[0])
        if code is None and not _CODE.fullmatch(word[0]):
            break
        items.append(_Item(word[0], at, code, code is None and bool(re.match(r"MP\d", word[0]))))
        end = at = word.end()
        if gap := _GAP.match(comment.text, at):
            at = gap.end()
    if match["colon"] and not items:
        return None  # words alone name nothing, and tools differ on what they mean
    return replace(_directive(comment, match.start(), end, items), own=False)


def _named(word: str) -> str | None:
    """The rule's code that a word names, in capitals or not; None if it is no rule of ours."""
    names = registry.names()
    return word.upper() if word.upper() in names.values() else names.get(word)


def _directive(comment: _Comment, start: int, list_end: int, items: list[_Item]) -> _Directive:
    stop = comment.text.find("#", list_end)
    text = comment.text[: None if stop < 0 else stop].rstrip()
    reason = text[list_end:].lstrip(" \t:,;-\u2013\u2014")
    end = len(text)
    return _Directive(comment, start, end, reason, end - len(reason), items)


def _reports(source: Source, directive: _Directive, judged: Collection[str]) -> list[Diagnostic]:
    """Warnings about one suppression: not understood, unknown codes, codes without a finding."""

    def report(start: int, end: int, message: str, fix: Fix | None = None) -> Diagnostic:
        return Diagnostic(
            code=UNUSED,
            name=registry.ENGINE_CODES[UNUSED],
            message=message,
            filename=source.filename,
            start=source.position(directive.comment.start + start),
            end=source.position(directive.comment.start + end),
            severity=Severity.WARNING,
            confidence=Confidence.CERTAIN,
            fix=fix,
        )

    if not directive.understood:
        return [report(directive.start, directive.end, _misunderstood(directive.word))]
    reports = []
    for item in directive.items:
        if item.unknown:
            names = registry.names()
            close = difflib.get_close_matches(item.text, names, 1)
            hint = f"did you mean {close[0]}?" if close else "`precision-lint rules` lists all"
            if any(code.startswith(item.text) for code in names.values()):
                hint = "name each rule"
            message = f"suppression of {item.text}, which is no rule; {hint}"
            reports.append(report(item.start, item.start + len(item.text), message))
    dead = [item for item in directive.items if item.code in judged and not item.used]
    if dead:
        listed = ", ".join(item.text for item in dead)
        message = f"suppression of {listed} silences nothing here; remove it"
        fix = _removal(source, directive, dead)
        reports.append(report(directive.start, directive.end, message, fix))
    return reports


def _misunderstood(word: str) -> str:
    """What is wrong with a comment of ours that says nothing; ``word``: its misspelt directive."""
    if not word:
        return f"suppression names no code; write {FORMS}"
    close = difflib.get_close_matches(word.lower(), DIRECTIVES, 1)
    hint = f"did you mean `{close[0]}`?" if close else f"write {FORMS}"
    return f"`{word}` is no directive; {hint}"


def _removal(source: Source, directive: _Directive, dead: Collection[_Item]) -> Fix | None:
    """Take entries out of a suppression, or all of it; words of the author stay in a comment."""
    comment, items, text = directive.comment, directive.items, directive.comment.text
    kept = [item.text for item in items if item not in dead]
    following = text.find("#", directive.end)
    start, end, new = directive.start, len(text), ""
    if kept:
        start, end = items[0].start, items[-1].start + len(items[-1].text)
        new = ", ".join(kept)
    elif directive.reason:
        end, new = directive.reason_start, "# "
        if any(_directives(_Comment(0, 0, new + directive.reason, True))):
            return None
    elif following >= 0:
        end = following
    elif start:
        start = len(text[:start].rstrip())
    else:
        first, *rest = source.lines[comment.row - 1 : comment.row + 1]
        before = source.text[first : comment.start]
        start -= len(before) - len(before.rstrip())
        if comment.alone:
            end = (rest[0] if rest else len(source.text)) - comment.start
    edit = Edit(comment.start + start, comment.start + end, new)
    listed = ", ".join(item.text for item in dead)
    return Fix(f"remove the suppression of {listed}", Applicability.SAFE, (edit,))
