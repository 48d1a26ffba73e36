"""What every rule and every fixture must hold, as functions from facts to complaints.

A complaint is one line; no complaints is a pass.  The functions know no rule: they take the text
of a fixture and a function ``lint`` from a source to all diagnostics, of every confidence.
"""

from __future__ import annotations

import ast
import difflib
import io
import re
import tokenize
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from precision_lint import fixer
from precision_lint.api import Applicability, Diagnostic, Position, Rule
from precision_lint.harness.expectations import (
    UNSAFE,
    Fixture,
    Lint,
    comments,
    expectations,
    fixed,
    goldens,
    negatives,
    shown,
    unmet,
)
from precision_lint.source import Source, decode

STRENGTH = (None, Applicability.DISPLAY, Applicability.UNSAFE, Applicability.SAFE)


def source(text: str | bytes, filename: str = "fixture.py") -> Source:
    made = decode(text.encode() if isinstance(text, str) else text, filename)
    assert isinstance(made, Source), made
    return made


def load(fixture: Fixture) -> Source:
    return source(fixture.path.read_bytes(), str(fixture.path))


def describe(diagnostic: Diagnostic) -> str:
    d = diagnostic
    return f"row {d.start.row}: {d.code} {d.confidence.value} {d.severity.value}: {d.message}"


def unmet_expectations(text: str, diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Missed alarms and false alarms: expectations and diagnostics pair up one to one."""
    missed, left = unmet(text, diagnostics)
    for want in missed:
        yield f"row {want.row}: missed alarm: {want} is expected"
    for d in shown(left):
        reason = next((n.reason for n in negatives(text) if (n.row, n.code) == _at(d)), "")
        yield f"{describe(d)} is a false alarm" + (f" ({reason})" if reason else "")


def _at(d: Diagnostic) -> tuple[int, str]:
    return d.start.row, d.code


def malformed(made: Source, diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Ranges outside the text, edits that overlap or do nothing, promises without a reason."""
    for d in diagnostics:
        places = [(d.start, d.end)]
        places += [
            (link.start, link.end or link.start)
            for link in d.evidence
            if link.start and link.filename in (None, made.filename)
        ]
        for start, end in places:
            if not _inside(made, start) or not _inside(made, end) or end < start:
                yield f"{describe(d)}: the range {start} to {end} is not in the text"
        if d.fix is None:
            continue
        edits = sorted(d.fix.edits)
        ends = [0, *(edit.end for edit in edits)]
        if any(edit.start < end for edit, end in zip(edits, ends, strict=False)):
            yield f"{describe(d)}: edits overlap"
        if any(not 0 <= edit.start <= edit.end <= len(made.text) for edit in edits):
            yield f"{describe(d)}: an edit is not in the text"
        shows_only = d.fix.applicability is Applicability.DISPLAY and not edits
        if not shows_only and all(made.text[e.start : e.end] == e.text for e in edits):
            yield f"{describe(d)}: the fix changes nothing"
        if (d.fix.applicability is Applicability.SAFE) is bool(d.fix.reason):
            yield f"{describe(d)}: a fix that is not safe, and only such a fix, needs a reason"


def _inside(made: Source, position: Position) -> bool:
    if not 1 <= position.row <= len(made.lines):
        return False
    ends = [*made.lines[1:], len(made.text) + 1]
    return 1 <= position.column <= ends[position.row - 1] - made.lines[position.row - 1] + 1


def bad_style(made: Source, diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Messages start in lower case or with a name of the code, on one line, without a full stop."""
    for d in diagnostics:
        texts = [d.message, *(link.message for link in d.evidence)]
        texts += [text for text in (d.fix and d.fix.title, d.fix and d.fix.reason) if text]
        for text in texts:
            word = re.match(r"\w*", text)
            capital = word is not None and re.fullmatch(r"[A-Z][a-z]+|A|I", word[0])
            if capital and word and not re.search(rf"\b{word[0]}\b", made.text):
                yield f"{text!r} starts with a capital"
            if not text.strip() or text != text.strip() or "\n" in text:
                yield f"{text!r} is not one line without blanks around it"
            if text.endswith(".") and not text.endswith("..."):
                yield f"{text!r} ends with a full stop"


def rows_touched(made: Source, diagnostic: Diagnostic) -> set[int]:
    """Rows that a fix changes or deletes; whole new lines touch none."""
    rows: set[int] = set()
    for edit in diagnostic.fix.edits if diagnostic.fix else ():
        start, end = made.position(edit.start), made.position(edit.end)
        before, after = made.text[: edit.start][-1:], made.text[edit.end :][:1]
        whole = (before in ("", "\n", "\r") and edit.text.endswith(("\n", "\r"))) or (
            after in ("", "\n", "\r") and edit.text.startswith(("\n", "\r"))
        )
        if edit.start == edit.end and whole:
            continue
        last = end.row - (end.column == 1 and end.row > start.row)
        rows |= set(range(start.row, last + 1))
    return rows


def strays(made: Source, diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Fixes that touch a line which neither the finding nor its evidence names."""
    for d in diagnostics:
        named = set(range(d.start.row, d.end.row + 1))
        for link in d.evidence:
            if link.start and link.filename in (None, made.filename):
                named |= set(range(link.start.row, (link.end or link.start).row + 1))
        if stray := sorted(rows_touched(made, d) - named):
            yield f"{describe(d)}: the fix touches rows {stray}, which it does not name"


def unnamed(made: Source, text: str, diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """Rows that all fixes together change, and that no finding of the first look names."""
    named: set[int] = set()
    for d in diagnostics:
        if d.fix is not None and d.fix.edits:
            named |= rows_touched(made, d) | set(range(d.start.row, d.end.row + 1))
            for link in d.evidence:
                if link.start and link.filename in (None, made.filename):
                    named |= set(range(link.start.row, (link.end or link.start).row + 1))
    before, after = made.text.splitlines(), text.splitlines()
    for what, first, last, _, _ in difflib.SequenceMatcher(
        None, before, after, False
    ).get_opcodes():
        if what in ("replace", "delete") and (rows := set(range(first + 1, last + 1)) - named):
            yield f"fixing changes rows {sorted(rows)}, which no finding names"


def apply(made: Source, diagnostic: Diagnostic) -> Source:
    """A source with the fix of one diagnostic applied, and nothing else."""
    text = made.text
    for edit in sorted(diagnostic.fix.edits if diagnostic.fix else (), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    return replace(made, text=text)


def lost_comments(before: str, after: str) -> Iterator[str]:
    """Comments that a fix deleted."""
    kept = Counter(comment for _, comment in comments(after))
    for comment, count in (Counter(comment for _, comment in comments(before)) - kept).items():
        yield f"{count} of the comment {comment!r} got lost"


def does_not_parse(text: str) -> Iterator[str]:
    try:
        ast.parse(text)
    except SyntaxError as error:
        yield f"the fixed text does not parse: row {error.lineno}: {error.msg}"


def side_effects(made: Source, lint: Lint) -> Iterator[str]:
    """Each fix alone cures its finding, keeps comments, and brings no finding of another code."""
    before = shown(lint(made))
    counts = Counter(d.code for d in before)
    for d in before:
        if d.fix is None or not d.fix.edits or d.fix.applicability is Applicability.DISPLAY:
            continue
        after = apply(made, d)
        broken = [*does_not_parse(after.text)] or [*lost_comments(made.text, after.text)]
        yield from (f"{describe(d)}: {what}" for what in broken)
        if broken:
            continue
        now = Counter(x.code for x in shown(lint(after)) if x.code == d.code or x.start != d.start)
        if now - (counts - Counter([d.code])) and not withheld(made, lint, d):
            yield f"{describe(d)}: the fix does not cure it, or brings another finding"


def withheld(made: Source, lint: Lint, d: Diagnostic, everything: bool = False) -> bool:
    """Whether the fixer refuses a fix, though it is the only one; of ``everything``, or what shows."""

    def alone(text: Source) -> list[Diagnostic]:
        found = lint(text) if everything else shown(lint(text))
        return [x if x == d else replace(x, fix=None) for x in found] if text == made else found

    assert d.fix is not None
    return d not in fixer.fix(made, alone, [d.fix.applicability]).applied


def fixes_of(made: Source, lint: Lint) -> tuple[int, int]:
    """How many fixes are offered by default, and how many of them the fixer refuses."""
    offered = [d for d in shown(lint(made)) if d.fix and d.fix.edits]
    offered = [d for d in offered if d.fix and d.fix.applicability is not Applicability.DISPLAY]
    return len(offered), sum(withheld(made, lint, d) for d in offered)


def unstable(made: Source, lint: Lint, levels: Collection[Applicability]) -> Iterator[str]:
    """All fixes together succeed, parse, keep comments, cure, and a second run changes nothing."""
    once = fixed(made, lint, levels)
    if once.failure is not None:
        yield f"the fixer gave up: {once.failure.message}"
        return
    rest = shown(lint(once.source))
    if not once.applied:
        if once.source != made:
            yield "the text changed, but no fix was applied"
        return
    yield from does_not_parse(once.source.text)
    yield from lost_comments(made.text, once.source.text)
    twice = fixed(once.source, lint, levels)
    if twice.applied or twice.source != once.source:
        yield "a second run fixes again: " + "; ".join(map(describe, twice.applied))
    before = Counter(d.code for d in shown(lint(made)))
    next_ = {d.start.column for d in once.applied}  # the operation, which comes as far as that now
    left = Counter(d.code for d in rest if d.start.column not in next_)
    for code in sorted(left - before):
        yield f"the fixes together introduce {code}"
    if [*map(describe, once.remaining)] != [*map(describe, rest)]:
        yield "what the fixer calls remaining is not what the fixed text has"


def wrong_goldens(fixture: Fixture, made: Source, lint: Lint) -> Iterator[str]:
    """A golden is the fixer's real text, and exists if, and only if, a fix was applied."""
    for path, data in goldens(fixture, made, lint).items():
        if data is None and path.exists():
            yield f"{path.name} has no fix to show; delete it"
        elif data is not None and not path.exists():
            yield f"{path.name} is missing; run make bless"
        elif data is not None and path.read_bytes() != data:
            yield f"{path.name} differs from the fixed text; look, then run make bless"


def wrong_promise(rule: type[Rule], diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """The strongest fix among a rule's findings is the one that the rule declares."""
    actual = {d.fix.applicability if d.fix else None for d in diagnostics if d.code == rule.code}
    strongest = max(actual, key=STRENGTH.index, default=None)
    if strongest is not rule.applicability:
        names = [level.value if level else "no fix" for level in (rule.applicability, strongest)]
        yield f"{rule.code} declares {names[0]}, its fixtures show {names[1]}"


def few_examples(code: str, texts: Iterable[str], least: int = 2) -> Iterator[str]:
    """A rule's own fixtures show the hazard, and its traps, at least twice each."""
    texts = list(texts)
    positive = sum(e.code == code for text in texts for e in expectations(text))
    negative = sum(n.code == code for text in texts for n in negatives(text))
    for count, mark in ((positive, "expect"), (negative, "ok")):
        if count < least:
            yield f"{code} has {count} lines '# {mark}: {code}'; write at least {least}"


def unequal(one: str, left: Iterable[str], other: str, right: Iterable[str]) -> Iterator[str]:
    """Complaints about names that only one of two places has."""
    left, right = set(left), set(right)
    yield from (f"{one} has {name}, {other} has not" for name in sorted(left - right))
    yield from (f"{other} has {name}, {one} has not" for name in sorted(right - left))


def tabbed(text: str) -> str:
    """The text with every four leading blanks of a code line as one tab."""
    inside: set[int] = set()  # rows that start inside a string
    for token in tokenize.generate_tokens(io.StringIO(text, newline="").readline):
        if token.type not in (tokenize.NEWLINE, tokenize.NL):
            inside |= set(range(token.start[0] + 1, token.end[0] + 1))
    lines = text.splitlines(keepends=True)
    for row, line in enumerate(lines, start=1):
        if row not in inside:
            blanks = len(line) - len(line.lstrip(" "))
            lines[row - 1] = "\t" * (blanks // 4) + line[blanks - blanks % 4 :]
    return "".join(lines)


def crlf(text: str) -> str:
    return text.replace("\n", "\r\n")


def bom(text: str) -> str:
    return "\ufeff" + text


def unterminated(text: str) -> str:
    return text.rstrip("\n")


VARIANTS: dict[str, Callable[[str], str]] = {
    "crlf": crlf,
    "bom": bom,
    "no-final-newline": unterminated,
    "tabs": tabbed,
}


def differs_in_variant(made: Source, lint: Lint, name: str) -> Iterator[str]:
    """The same code in another guise has the same findings and, modulo that guise, the same fix."""
    vary = VARIANTS[name]
    variant = source(vary(made.text).encode(), made.filename)

    def bare(d: Diagnostic) -> tuple[object, ...]:
        if name == "tabs":  # columns move
            return (d.start.row, d.code, d.confidence, d.severity, d.message)
        return (replace(d, fix=None), d.fix and (d.fix.title, d.fix.applicability))

    here, there = [*map(bare, lint(made))], [*map(bare, lint(variant))]
    if here != there:
        yield f"findings differ with {name}: {here} != {there}"
    if variant.encode() != vary(made.text).encode():
        yield f"the bytes differ with {name}"
    before, after = fixed(made, lint, UNSAFE), fixed(variant, lint, UNSAFE)
    if after.source.encode() != vary(before.source.text).encode():
        yield f"the fixed text differs with {name}"
