"""Applies fixes to a text until nothing is left to fix, and writes the result atomically.

A fix is applied whole or not at all.  Fixes that touch each other, or whose findings overlap, go in
different rounds: the second is judged anew on the text that the first left.
"""

from __future__ import annotations

import difflib
import io
import itertools
import os
import re
import signal
import stat
import tempfile
import warnings
from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePath

from precision_lint import registry
from precision_lint.api import Applicability, Confidence, Diagnostic, Edit, Position, Severity
from precision_lint.composing import composed
from precision_lint.display import quoted
from precision_lint.notebook import Notebook
from precision_lint.source import Failure, Source, decode, parse

__all__ = ["Fixed", "diff", "fix", "write"]

ROUNDS = 100
"""Rounds after which fixes count as diverging; nested findings take one round a level."""


@dataclass(frozen=True)
class Fixed:
    """What ``fix`` made of a file.

    ``applied`` are the findings whose fixes are in ``source``, each with the place it had when its
    fix was applied.  ``remaining`` are the findings in ``source``, and internal ones (``MP003``)
    for fixes that had to be withdrawn; a finding whose fix cannot be applied here carries it as
    display only.  ``failure`` is set when fixes were offered for a text that does not parse.
    """

    source: Source
    applied: tuple[Diagnostic, ...]
    remaining: list[Diagnostic]
    failure: Failure | None = None


def fix(
    source: Source,
    lint: Callable[[Source], list[Diagnostic]],
    levels: Collection[Applicability],
) -> Fixed:
    """Apply the fixes of ``lint(source)`` that ``levels`` allow, again and again to a fixed point.

    Fixes that break the syntax or that the file's encoding cannot hold are withdrawn, and so are
    those of rules that undo each other's work or never come to an end; the rest is applied.
    ``Applicability.DISPLAY`` is never applied.
    """
    diverging: set[str] = set()
    while True:
        result = _converge(source, lint, set(levels) - {Applicability.DISPLAY}, diverging)
        if isinstance(result, Fixed):
            return result
        diverging |= result


def _converge(
    source: Source,
    lint: Callable[[Source], list[Diagnostic]],
    levels: Collection[Applicability],
    diverging: Collection[str],
) -> Fixed | set[str]:
    """A fixed point reached without the fixes of ``diverging``, or the codes that prevent one."""
    current, grade = source, 0
    harmful: set[tuple[str, Position, str]] = set()
    """Fixes of the text at hand that cure nothing, or make another finding."""
    applied: list[Diagnostic] = []
    history: dict[str, set[str]] = {}  # each text on the way, and the codes applied to it
    while True:
        diagnostics = lint(current)
        offered: list[Diagnostic] = []
        withdrawn: dict[Diagnostic, str] = {}
        for diagnostic in diagnostics:
            if diagnostic.fix is None or diagnostic.fix.applicability not in levels:
                continue
            why = _refused(current, diagnostic, diagnostic.fix.edits, harmful, diverging)
            if why:
                withdrawn[diagnostic] = why
            else:
                offered.append(diagnostic)
        if offered and not grade:
            tree = parse(current)
            if isinstance(tree, Failure):
                return Fixed(current, (), diagnostics, tree)
            grade = _grade(current)
        after, chosen, broken = _round(current, offered, grade)
        if not chosen:
            withdrawn |= dict.fromkeys(broken, "it breaks the syntax here")
            remaining = [_displayed(d, withdrawn[d]) if d in withdrawn else d for d in diagnostics]
            remaining += [_crash(current, [d.code], "breaks the syntax", d) for d in broken]
            if diverging:
                first = next((d for d in diagnostics if d.code in diverging), None)
                remaining.append(_crash(current, diverging, "does not come to an end", first))
            return Fixed(current, tuple(applied), remaining)
        found = _harmful(current, after, diagnostics, chosen, lint, grade)
        if found:
            harmful |= found
            continue
        harmful = set()
        history[current.text] = {d.code for d in chosen}
        if after.text in history:
            texts = list(history)
            return set().union(*(history[text] for text in texts[texts.index(after.text) :]))
        if len(history) == ROUNDS:
            return history[current.text]
        applied += chosen
        current = after


def _refused(
    current: Source,
    diagnostic: Diagnostic,
    edits: Sequence[Edit],
    harmful: Collection[tuple[str, Position, str]],
    diverging: Collection[str],
) -> str:
    """Why a fix must not be applied, or nothing."""
    if _identity(diagnostic) in harmful:
        return "the finding would stay, or another take its place"
    if diagnostic.code in diverging:
        return "fixing it again and again does not come to an end here"
    if lacking := _lacking(current, edits):
        return f"the file's encoding {current.encoding} has no {lacking!r}"
    return current.refuses(edits) or ""


def _identity(diagnostic: Diagnostic) -> tuple[str, Position, str]:
    return diagnostic.code, diagnostic.start, diagnostic.message


def _harmful(
    current: Source,
    after: Source,
    diagnostics: Sequence[Diagnostic],
    chosen: Sequence[Diagnostic],
    lint: Callable[[Source], list[Diagnostic]],
    grade: int,
) -> set[tuple[str, Position, str]]:
    """The fixes of a round that do not take their finding away, or bring another one.

    One look at the text with all of them tells whether there are any; only then each is tried alone.
    """
    before = Counter(d.code for d in diagnostics)
    if not Counter(d.code for d in lint(after)) - (before - Counter(d.code for d in chosen)):
        return set()
    found = set()
    for diagnostic in chosen:
        alone, applied, _ = _round(current, [diagnostic], grade)
        rest = lint(alone) if applied else diagnostics
        left = Counter(
            d.code for d in rest if d.code == diagnostic.code or not _next(d, diagnostic)
        )
        if left - (before - Counter([diagnostic.code])):
            found.add(_identity(diagnostic))
    return found


def _next(finding: Diagnostic, cured: Diagnostic) -> bool:
    """Whether a finding is of the same operation, which now comes as far as that."""
    return finding.start == cured.start and finding.end.row >= cured.start.row


def _round(
    source: Source, offered: Sequence[Diagnostic], grade: int
) -> tuple[Source, list[Diagnostic], list[Diagnostic]]:
    """The text after one round, what was fixed in it, and whose fixes are broken."""
    broken = [d for d in offered if not _sound(_edits(d), len(source.text))]
    while rest := [d for d in offered if d not in broken]:
        chosen = _compatible(source, rest)
        after = _applied(source, chosen)
        if _grade(after) >= grade:
            edits = [edit for diagnostic in chosen for edit in _edits(diagnostic)]
            together = composed(source, after, edits)
            fine = together is after or _grade(together) >= grade
            return together if fine else after, chosen, broken
        culprits = [d for d in chosen if _grade(_applied(source, [d])) < grade]
        if not culprits:  # each is fine, together they are not
            return _applied(source, chosen[:1]), chosen[:1], broken
        broken += culprits
    return source, [], broken


def _edits(diagnostic: Diagnostic) -> tuple[Edit, ...]:
    return diagnostic.fix.edits if diagnostic.fix else ()


def _sound(edits: Sequence[Edit], length: int) -> bool:
    """Whether edits lie in a text of this length and none touches what another replaces."""
    ordered = sorted(set(edits))
    return (
        bool(ordered)
        and all(0 <= edit.start <= edit.end <= length for edit in ordered)
        and all(
            a.end <= b.start and (a.start, a.end) != (b.start, b.end)
            for a, b in itertools.pairwise(ordered)
        )
    )


def _lacking(source: Source, edits: Iterable[Edit]) -> str:
    """The first character of the edits that the file's encoding cannot hold, or nothing."""
    for edit in edits:
        try:
            source.encode(edit.text)
        except UnicodeEncodeError as error:
            return edit.text[error.start]
    return ""


def _grade(source: Source) -> int:
    """0: does not parse; 1: parses; 2: compiles, which ``return`` outside a function does not."""
    tree = parse(source)
    if isinstance(tree, Failure):
        return 0
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(tree, source.filename, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return 1
    return 2


def _compatible(source: Source, diagnostics: Iterable[Diagnostic]) -> list[Diagnostic]:
    """Those that can be fixed in one go, taken from the top of the file to its end.

    An edit that two fixes share, such as an import, is no conflict.
    """
    chosen: list[Diagnostic] = []
    edits: set[Edit] = set()
    insertions: set[int] = set()
    taken: list[tuple[int, int]] = []  # ranges of findings and edits, disjoint and in order
    for diagnostic in sorted(
        diagnostics, key=lambda d: (sorted(_edits(d)), d.start, d.code, d.message)
    ):
        own = set(_edits(diagnostic)) - edits
        if own:
            inserted = {edit.start for edit in own if edit.start == edit.end}
            span = source.index(diagnostic.start), source.index(diagnostic.end)
            ranges = _merged([span, *((edit.start, edit.end) for edit in own)])
            if inserted & insertions or any(_meets(taken, *pair) for pair in ranges):
                continue
            edits |= own
            insertions |= inserted
            for pair in ranges:
                insort(taken, pair)
        chosen.append(diagnostic)
    return chosen


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    merged: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if merged and start <= merged[-1][1]:
            start, end = merged[-1][0], max(end, merged.pop()[1])
        merged.append((start, end))
    return merged


def _meets(taken: Sequence[tuple[int, int]], start: int, end: int) -> bool:
    at = bisect_left(taken, (start, end))
    return (at > 0 and taken[at - 1][1] > start) or (at < len(taken) and taken[at][0] < end)


def _applied(source: Source, diagnostics: Iterable[Diagnostic]) -> Source:
    edits = {edit for diagnostic in diagnostics for edit in _edits(diagnostic)}
    return source.edited(replace(edit, text=_native(source, edit)) for edit in edits)


def _native(source: Source, edit: Edit) -> str:
    """The edit's text with the newline that the line has where it starts."""
    row = source.position(edit.start).row
    end = source.lines[row] if row < len(source.lines) else None
    line = source.text[source.lines[row - 1] : end]
    newline = line[len(line.rstrip("\r\n")) :] or source.newline
    return re.sub(r"(?<!\r)\n", newline, edit.text)


def _displayed(diagnostic: Diagnostic, reason: str) -> Diagnostic:
    """The finding with a fix that is shown and not applied."""
    if diagnostic.fix is None:
        return diagnostic
    shown = replace(diagnostic.fix, applicability=Applicability.DISPLAY, reason=reason)
    return replace(diagnostic, fix=shown)


def _crash(source: Source, codes: Iterable[str], what: str, at: Diagnostic | None) -> Diagnostic:
    start, end = (at.start, at.end) if at else (Position(1, 1), Position(1, 1))
    return Diagnostic(
        code="MP003",
        name=registry.ENGINE_CODES["MP003"],
        message=f"fixing {', '.join(sorted(codes))} at line {start.row} {what}; the fix was left "
        "out, report it as a bug of the rule",
        filename=source.filename,
        start=start,
        end=end,
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        internal=True,
    )


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Holds SIGTERM back, which would leave a temporary file behind."""
    mask = getattr(signal, "pthread_sigmask", None)
    before = mask(signal.SIG_BLOCK, {signal.SIGTERM}) if mask else None
    try:
        yield
    finally:
        if mask:
            mask(signal.SIG_SETMASK, before)


def elsewhere(path: Path, root: Path) -> str:
    """Where a symbolic link leads that leaves the project below ``root``; empty: it does not."""
    if not path.is_symlink():
        return ""
    home = os.path.realpath(root if root.is_dir() else root.parent)
    target = Path(os.path.realpath(path))
    return "" if target.is_relative_to(home) else str(target)


def other_names(path: Path) -> int:
    """How many hard links a file has besides this one, which a fix parts from them."""
    try:
        return path.stat().st_nlink - 1
    except OSError:
        return 0


def _copy_attributes(path: Path, descriptor: int) -> None:
    """Give an open file the extended attributes of another, access lists among them (Linux).

    Raises OSError for one that cannot be kept, but not for those of the system's security modules,
    which label a new file themselves.
    """
    if not hasattr(os, "listxattr"):
        return
    try:
        names = os.listxattr(path)
    except OSError:  # a file system without any
        return
    for name in names:
        try:
            os.setxattr(descriptor, name, os.getxattr(path, name))
        except OSError:
            if not name.startswith(("security.", "trusted.")):
                raise


@_undisturbed()
def write(path: Path | str, original: bytes, fixed: Source) -> Failure | None:
    """Replace the file's content, atomically; ``original`` is what the fix started from.

    A symbolic link stays one, and its target is replaced; permission bits, extended attributes and,
    where possible, the owner are kept.  Other hard links keep the old content.  The file is left as
    it is, and a ``Failure`` says why, when its bytes are no longer ``original`` or cannot be
    replaced.
    """

    def refuse(what: str) -> Failure:
        return Failure(fixed.filename, "MP001", what)

    try:
        data = fixed.encode()
        name = fixed.filename
        faithful = _text(original, name) is not None and _text(data, name) == fixed.text
    except UnicodeEncodeError:
        faithful = False
    if not faithful:
        return refuse(f"cannot be written back in {fixed.encoding}; save the file as UTF-8")
    path = Path(os.path.realpath(path))
    temporary: str | None = None
    try:
        status = path.stat()
        if not (status.st_mode & 0o222 and os.access(path, os.W_OK)):
            return refuse("is read-only; make it writable to have it fixed")
        descriptor, temporary = tempfile.mkstemp(prefix=".precision-lint-", dir=path.parent)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            if hasattr(os, "fchown"):
                with suppress(OSError):
                    os.fchown(descriptor, status.st_uid, status.st_gid)
            Path(temporary).chmod(stat.S_IMODE(status.st_mode))
            _copy_attributes(path, descriptor)
            os.fsync(descriptor)
        if path.read_bytes() != original:
            return refuse("changed while it was being fixed; run again")
        Path(temporary).replace(path)
        temporary = None
    except OSError as error:
        what = (error.strerror or str(error)).lower()
        return refuse(f"cannot be replaced in {path.parent}: {what}; correct that and run again")
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)
    return None


def _text(data: bytes, filename: str) -> str | None:
    """The text of a file, if its encoding gives back the same bytes."""
    source = decode(data, filename)
    return source.text if isinstance(source, Source) and source.encode() == data else None


def diff(before: Source, after: Source) -> bytes:
    """A unified diff that ``git apply`` and ``patch -p1`` take; empty when nothing changed.

    It is in the file's own encoding, as git's is.  That of a notebook is one for each cell that
    changed, of the cell's text, for people to read.
    """
    if before.notebook and after.notebook:
        return b"".join(_cell_diffs(before.filename, before.notebook, after.notebook))
    name = PurePath(before.filename).as_posix().lstrip("/")
    return _unified(before.encode(), after.encode(), _quoted(f"a/{name}"), _quoted(f"b/{name}"))


def _cell_diffs(filename: str, before: Notebook, after: Notebook) -> Iterator[bytes]:
    name = PurePath(filename).as_posix()
    for old, new in zip(before.cells, after.cells, strict=True):
        title = _quoted(f"{name}:cell {old.number}").rstrip(b"\t")
        yield _unified(
            f"{before.shown[old.start : old.end]}\n".encode("utf8", "replace"),
            f"{after.shown[new.start : new.end]}\n".encode("utf8", "replace"),
            title,
            title,
        )


def _unified(before: bytes, after: bytes, old: bytes, new: bytes) -> bytes:
    lines = difflib.diff_bytes(
        difflib.unified_diff,
        io.BytesIO(before).readlines(),
        io.BytesIO(after).readlines(),
        old,
        new,
    )
    return b"".join(
        line if line.endswith(b"\n") else line + b"\n\\ No newline at end of file\n"
        for line in lines
    )


def _quoted(name: str) -> bytes:
    """A path as git writes it, with a tab to end a name with spaces."""
    shown = quoted(name)
    return os.fsencode(f"{shown}\t" if " " in name and shown == name else shown)
