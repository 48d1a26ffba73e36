"""Choosing, applying and writing fixes."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_lint.api import Applicability, Confidence, Diagnostic, Edit, Fix, Position, Severity
from precision_lint.fixer import ROUNDS, Fixed, diff, fix, write
from precision_lint.source import Failure, Source, decode

SAFE, UNSAFE, DISPLAY = Applicability.SAFE, Applicability.UNSAFE, Applicability.DISPLAY
Lint = Callable[[Source], list[Diagnostic]]


def finding(
    source: Source,
    start: int,
    end: int,
    *edits: tuple[int, int, str],
    code: str = "MP301",
    level: Applicability | None = SAFE,
) -> Diagnostic:
    return Diagnostic(
        code=code,
        name="eps-before-log",
        message="m",
        filename=source.filename,
        start=source.position(start),
        end=source.position(end),
        severity=Severity.ERROR,
        confidence=Confidence.CERTAIN,
        fix=Fix("do it", level, tuple(Edit(*edit) for edit in edits)) if level else None,
    )


def rewriting(pattern: str, replacement: str, code: str = "MP301") -> Lint:
    """A rule that flags each match and replaces it."""

    def lint(source: Source) -> list[Diagnostic]:
        return [
            finding(
                source, m.start(), m.end(), (m.start(), m.end(), m.expand(replacement)), code=code
            )
            for m in re.finditer(pattern, source.text)
        ]

    return lint


def together(*lints: Lint) -> Lint:
    return lambda source: [d for lint in lints for d in lint(source)]


def once(*findings: Diagnostic) -> Lint:
    """Reports on the first text only."""
    texts: set[str] = set()

    def lint(source: Source) -> list[Diagnostic]:
        texts.add(source.text)
        return list(findings) if len(texts) == 1 else []

    return lint


def test_nothing_to_fix() -> None:
    source = Source("a.py", "x = (\n")  # not even parsed
    unfixable = finding(source, 0, 1, level=None)
    result = fix(source, lambda _: [unfixable], {SAFE})
    assert result == Fixed(source, (), [unfixable])
    assert result.source is source


def test_only_the_levels_asked_for() -> None:
    source = Source("a.py", "a\nb\nc\n")
    findings = [
        finding(source, 0, 1, (0, 1, "A"), level=SAFE),
        finding(source, 2, 3, (2, 3, "B"), level=UNSAFE),
        finding(source, 4, 5, (4, 5, "C"), level=DISPLAY),
    ]
    for levels, text in [
        (set(), "a\nb\nc\n"),
        ({SAFE}, "A\nb\nc\n"),
        ({SAFE, UNSAFE}, "A\nB\nc\n"),
        ({UNSAFE, DISPLAY}, "a\nB\nc\n"),
    ]:
        assert fix(source, once(*findings), levels).source.text == text


def test_all_edits_of_a_fix_and_findings_that_are_left() -> None:
    source = Source("a.py", "y = log(x)\n")
    wrap = finding(source, 4, 10, (4, 4, "f("), (10, 10, ", k)"))

    def lint(source: Source) -> list[Diagnostic]:
        left = finding(source, 4, 6, level=None, code="MP401")
        return [left] if "f(" in source.text else [wrap, left]

    result = fix(source, lint, {SAFE})
    assert result.source.text == "y = f(log(x), k)\n"
    assert result.applied == (wrap,)
    assert [d.code for d in result.remaining] == ["MP401"]
    assert result.failure is None


def test_overlapping_fixes_take_turns_from_the_top() -> None:
    rounds: list[str] = []
    one, two = rewriting("aa", "b", "MP302"), rewriting("a+", "c", "MP301")

    def lint(source: Source) -> list[Diagnostic]:
        rounds.append(source.text)
        return together(one, two)(source)

    result = fix(Source("a.py", "aaa, aa"), lint, {SAFE})
    assert list(dict.fromkeys(rounds)) == ["aaa, aa", "ba, b", "bc, b"]
    assert result.source.text == "bc, b"
    assert [d.code for d in result.applied] == ["MP302", "MP302", "MP301"]


def test_order_of_diagnostics_does_not_matter() -> None:
    source = Source("a.py", "aaa\n")
    findings = [
        finding(source, 0, 2, (0, 2, "b"), code="MP302"),
        finding(source, 1, 3, (1, 3, "c"), code="MP301"),
        finding(source, 0, 3, (0, 3, "d"), code="MP301"),
    ]
    texts = {
        fix(source, once(*order), {SAFE}).source.text for order in itertools.permutations(findings)
    }
    assert texts == {"ba\n"}


def test_nested_finding_waits_although_its_edits_are_apart() -> None:
    text = "outer(inner(x))"
    rounds = []

    def lint(source: Source) -> list[Diagnostic]:
        rounds.append(source.text)
        found = []
        if source.text.startswith("outer("):
            end = len(source.text)
            found.append(finding(source, 0, end, (0, 0, "("), (end, end, ").float()")))
        if "float" not in source.text:  # cured by the outer fix
            at = source.text.index("inner")
            found.append(finding(source, at, at + 8, (at, at, "("), (at + 8, at + 8, ").half()")))
        return found

    result = fix(Source("a.py", text), lint, {SAFE})
    assert result.source.text == "(outer(inner(x))).float()"
    assert len(result.applied) == 1
    assert len(set(rounds)) == 2


def test_identical_edits_are_applied_once() -> None:
    source = Source("a.py", "x = 1\ny = a\nz = b\n")
    top = (0, 0, "import torch\n")
    first = finding(source, 10, 11, top, (10, 11, "torch.a"))
    second = finding(source, 16, 17, top, (16, 17, "torch.b"))
    same = finding(source, 10, 11, top, (10, 11, "torch.a"), code="MP401")
    result = fix(source, once(first, second, same), {SAFE})
    assert result.source.text == "import torch\nx = 1\ny = torch.a\nz = torch.b\n"
    assert result.applied == (first, same, second)


def test_different_insertions_at_one_place_take_turns() -> None:
    source = Source("a.py", "x = 1\ny = a\nz = b\n")
    first = finding(source, 6, 7, (0, 0, "import a\n"))
    second = finding(source, 12, 13, (0, 0, "import b\n"))
    result = fix(source, once(first, second), {SAFE})
    assert result.source.text == "import a\nx = 1\ny = a\nz = b\n"
    assert result.applied == (first,)


def test_touching_edits_are_no_conflict() -> None:
    source = Source("a.py", "[1,2]\n")
    first = finding(source, 1, 2, (1, 2, "10"))
    comma = finding(source, 2, 3, (2, 3, " , "))
    second = finding(source, 3, 4, (3, 3, "-"))
    result = fix(source, once(second, comma, first), {SAFE})
    assert result.source.text == "[10 , -2]\n"
    assert result.applied == (first, comma, second)
    early = finding(source, 3, 4, (0, 0, "# note\n"), (3, 4, "20"))
    assert fix(source, once(early, comma), {SAFE}).source.text == "# note\n[1 , 20]\n"


# Fixes that must not be applied


def test_fix_that_breaks_the_syntax_is_withdrawn_and_the_rest_applied() -> None:
    good = rewriting("old", "new", "MP301")
    bad = rewriting("keep", "(", "MP401")
    result = fix(Source("a.py", "old\nkeep = 1\nold\nkeep\n"), together(bad, good), {SAFE})
    assert result.source.text == "new\nkeep = 1\nnew\nkeep\n"
    assert [d.code for d in result.applied] == ["MP301", "MP301"]
    left = [d for d in result.remaining if not d.internal]
    assert [(d.code, d.start.row) for d in left] == [("MP401", 2), ("MP401", 4)]
    assert all(d.fix and d.fix.applicability is DISPLAY and d.fix.reason for d in left)
    internal = [d for d in result.remaining if d.internal]
    assert [(d.code, d.name, d.start) for d in internal] == [
        ("MP003", "rule-crash", Position(2, 1)),
        ("MP003", "rule-crash", Position(4, 1)),
    ]
    assert "MP401 at line 2 breaks the syntax; the fix was left out" in internal[0].message


def test_broken_fix_does_not_stand_in_the_way_of_another() -> None:
    lint = together(rewriting("old", ")", "MP301"), rewriting("old", "new", "MP401"))
    result = fix(Source("a.py", "old\n"), lint, {SAFE})
    assert result.source.text == "new\n"
    assert [d.code for d in result.remaining] == []


def test_fixes_that_only_together_break_the_syntax_take_turns() -> None:
    source = Source("a.py", "f(a=1, b=2)\n")
    first = finding(source, 2, 3, (2, 3, "c"))
    second = finding(source, 7, 8, (7, 8, "c"))
    result = fix(source, once(first, second), {SAFE})
    assert result.source.text == "f(c=1, b=2)\n"
    assert result.applied == (first,)
    assert result.remaining == []


def test_fix_that_parses_and_does_not_compile_is_withdrawn() -> None:
    source = Source("a.py", "from __future__ import annotations\nx = y\n")
    result = fix(source, lambda s: [finding(s, 35, 36, (0, 0, "import torch\n"))], {SAFE})
    assert result.source == source
    assert [d.code for d in result.remaining] == ["MP301", "MP003"]


def test_text_that_did_not_compile_before_is_still_fixed() -> None:
    result = fix(Source("a.py", "return old\n"), rewriting("old", "new"), {SAFE})
    assert result.source.text == "return new\n"


@pytest.mark.parametrize(
    "edits",
    [[(0, 9, "b")], [(-1, 1, "b")], [(1, 0, "b")], [(0, 2, "b"), (1, 2, "c")], [],
     [(1, 1, "b"), (1, 1, "c")]],
)  # fmt: skip
def test_malformed_edits_are_a_bug_of_the_rule(edits: list[tuple[int, int, str]]) -> None:
    source = Source("a.py", "aa\n")
    result = fix(source, lambda s: [finding(s, 0, 2, *edits)], {SAFE})
    assert result.source == source
    assert [(d.code, d.internal) for d in result.remaining] == [("MP301", False), ("MP003", True)]


def test_fix_that_the_encoding_cannot_hold_is_shown_only() -> None:
    source = decode(b"# coding: latin-1\n# \xe9\nold = 'x'\n", "a.py")
    assert isinstance(source, Source)
    lint = together(rewriting("old", "n\u00e9w"), rewriting("'x'", "'\u2264'", "MP401"))
    result = fix(source, lint, {SAFE})
    assert result.source.encode() == b"# coding: latin-1\n# \xe9\nn\xe9w = 'x'\n"
    (left,) = result.remaining
    assert left.fix is not None
    assert left.fix.applicability is DISPLAY
    assert left.fix.reason == "the file's encoding iso-8859-1 has no '\u2264'"


def test_text_that_does_not_parse_is_left_alone() -> None:
    source = Source("a.py", "old = (\n")
    result = fix(source, rewriting("old", "new"), {SAFE})
    assert result.source == source
    assert result.failure is not None
    assert result.failure.code == "MP002"


# Convergence


def test_fix_that_does_not_cure_is_withheld() -> None:
    lint = together(rewriting("wrong", "wrong ", "MP101"), rewriting("old", "new", "MP301"))
    result = fix(Source("a.py", "old\nwrong\n"), lint, {SAFE})
    assert result.source.text == "new\nwrong\n"
    [left] = result.remaining
    assert left.fix is not None
    assert left.fix.applicability is DISPLAY
    assert left.fix.reason == "the finding would stay, or another take its place"


def test_fix_that_brings_another_finding_elsewhere_is_withheld() -> None:
    lint = together(
        rewriting("a", "a.float()", "MP301"), rewriting(r"(?<=float\(\) )@", "", "MP502")
    )
    result = fix(Source("a.py", "a @ w\n"), lint, {SAFE})
    assert result.source.text == "a @ w\n"
    assert [d.code for d in result.remaining] == ["MP301"]


def test_rules_that_undo_each_other_are_left_out_and_the_rest_applied() -> None:
    lint = together(
        rewriting("ping", "pong", "MP101"),
        rewriting("pong", "ping", "MP102"),
        rewriting("old", "new", "MP301"),
    )
    result = fix(Source("a.py", "old\nping\n"), lint, {SAFE})
    assert result.source.text == "new\nping\n"
    assert [d.code for d in result.applied] == ["MP301"]
    left, internal = result.remaining
    assert left.code == "MP101"
    assert left.fix is not None
    assert left.fix.applicability is DISPLAY
    assert internal.internal
    assert "MP101, MP102 at line 2 does not come to an end" in internal.message


def test_rule_that_grows_the_text_for_ever_is_left_out() -> None:
    count = 0

    def lint(source: Source) -> list[Diagnostic]:
        nonlocal count
        count += 1
        return together(rewriting(r"\Z", "#", "MP101"), rewriting("old", "new", "MP301"))(source)

    result = fix(Source("a.py", "old\n"), lint, {SAFE})
    assert result.source.text == "new\n"
    assert count <= ROUNDS + 3
    assert [d.code for d in result.remaining] == ["MP101"]


def test_fix_that_changes_nothing_is_a_cycle() -> None:
    result = fix(Source("a.py", "a\n"), rewriting("a", "a"), {SAFE})
    assert result.applied == ()
    assert [d.code for d in result.remaining] == ["MP301"]


def test_deeply_nested_findings_converge() -> None:
    depth = 40
    text = "f(" * depth + "x" + ")" * depth

    def lint(source: Source) -> list[Diagnostic]:
        size = len(source.text)
        return [
            finding(source, i, size - j, (i, i + 1, "g"))
            for j, i in enumerate(m.start() for m in re.finditer("[fg]", source.text))
            if source.text[i] == "f"
        ]

    result = fix(Source("a.py", text), lint, {SAFE})
    assert result.source.text == text.replace("f", "g")
    assert len(result.applied) == depth
    assert result.remaining == []


# Newlines


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_newline_of_an_edit_becomes_that_of_its_place(newline: str) -> None:
    text = f"a = 1{newline}b = 2{newline}"
    source = Source("a.py", text)
    at = text.index("b")
    add = finding(source, at, at + 1, (at, at, "c = 3\nd = 4\n"))
    assert fix(source, once(add), {SAFE}).source.text == (
        f"a = 1{newline}c = 3{newline}d = 4{newline}b = 2{newline}"
    )


def test_newline_in_a_mixed_file_and_on_a_last_line_without_one() -> None:
    source = Source("a.py", "a\r\nb\nc\rd\r\ne")
    edits = [(0, 1, "1\n1"), (3, 4, "2\n2"), (5, 6, "3\n3"), (10, 11, "4\n4\r\n4")]
    assert source.text[10] == "e"
    result = fix(source, once(finding(source, 0, 11, *edits)), {SAFE})
    assert result.source.text == "1\r\n1\r\n2\n2\n3\r3\rd\r\n4\r\n4\r\n4"


@st.composite
def fixes(draw: st.DrawFn) -> tuple[Source, list[Diagnostic]]:
    values = draw(st.lists(st.sampled_from(["1", "22", "333"]), min_size=1, max_size=8))
    newline = draw(st.sampled_from(["\n", "\r\n", "\r"]))
    text = f"# é{newline}[" + f",{newline}".join(values) + "]"
    places = [m.span() for m in re.finditer(r"\d+", text)]
    source = Source("a.py", text)
    findings = []
    for i in range(draw(st.integers(1, 6))):
        own = draw(st.lists(st.sampled_from(places), min_size=1, max_size=3, unique=True))
        edits = tuple((a, b, draw(st.sampled_from(["4", "(55\n)", "666"]))) for a, b in own)
        findings.append(finding(source, *own[0], *edits, code=f"MP30{i}"))
    return source, findings


def ranges(source: Source, diagnostic: Diagnostic) -> list[tuple[int, int] | tuple[int, int, str]]:
    assert diagnostic.fix is not None
    span = source.index(diagnostic.start), source.index(diagnostic.end)
    return [span, *((e.start, e.end, e.text) for e in diagnostic.fix.edits)]


@given(fixes())
def test_edits_whole_or_not_at_all_and_nothing_beside_them(
    case: tuple[Source, list[Diagnostic]],
) -> None:
    source, findings = case
    result = fix(source, once(*findings), {SAFE})
    edits = {e for d in result.applied if d.fix for e in d.fix.edits}
    text = source.text
    for edit in sorted(edits, reverse=True):
        new = edit.text.replace("\n", source.newline)
        text = text[: edit.start] + new + text[edit.end :]
    assert result.source.text == text
    assert result.applied
    for left in set(findings) - set(result.applied):
        assert any(
            a[0] < b[1] and b[0] < a[1]
            for other in result.applied
            for a in ranges(source, left)
            for b in ranges(source, other)
            if a != b or len(a) == 2
        ), "left out without a conflict"


# Writing


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "src" / "a.py"
    path.parent.mkdir()
    path.write_bytes(b"\xef\xbb\xbfold = 1\r\n")
    yield path
    assert [p.name for p in path.parent.iterdir()] == ["a.py"], "a temporary file was left behind"


def fixed(path: Path, new: str = "new") -> tuple[bytes, Source]:
    data = path.read_bytes()
    source = decode(data, "a.py")
    assert isinstance(source, Source)
    return data, fix(source, rewriting("old", new), {SAFE}).source


def test_write_keeps_bytes_and_permissions(file: Path) -> None:
    file.chmod(0o751)
    before = file.stat()
    assert write(file, *fixed(file)) is None
    assert file.read_bytes() == b"\xef\xbb\xbfnew = 1\r\n"
    after = file.stat()
    assert after.st_mode == before.st_mode
    assert (after.st_uid, after.st_gid) == (before.st_uid, before.st_gid)
    assert after.st_ino != before.st_ino, "replaced, not overwritten"


def test_write_follows_a_symbolic_link(file: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.py"
    link.symlink_to(Path("src") / "a.py")
    assert write(link, *fixed(link)) is None
    assert link.is_symlink()
    assert file.read_bytes() == b"\xef\xbb\xbfnew = 1\r\n"


def test_write_refuses_a_file_that_changed(file: Path) -> None:
    original, source = fixed(file)
    file.write_bytes(b"somebody's work\n")
    assert write(file, original, source) == Failure(
        "a.py", "MP001", "changed while it was being fixed; run again"
    )
    assert file.read_bytes() == b"somebody's work\n"


def test_write_refuses_a_file_that_is_gone(file: Path) -> None:
    original, source = fixed(file)
    moved = file.rename(file.parent.parent / "b.py")
    failure = write(file, original, source)
    moved.rename(file)
    assert failure is not None
    assert "no such file" in failure.message


def test_write_refuses_a_read_only_file(file: Path) -> None:
    file.chmod(0o444)
    failure = write(file, *fixed(file))
    assert failure is not None
    assert failure.message == "is read-only; make it writable to have it fixed"
    assert file.read_bytes() == b"\xef\xbb\xbfold = 1\r\n"


def test_write_into_a_read_only_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original, source = fixed(file)
    if os.geteuid():
        file.parent.chmod(0o555)
    else:  # root may write everywhere

        def refuse(**options: object) -> tuple[int, str]:
            raise PermissionError(13, "Permission denied")

        monkeypatch.setattr(tempfile, "mkstemp", refuse)
    failure = write(file, original, source)
    file.parent.chmod(0o755)
    assert failure is not None
    assert failure.code == "MP001"
    assert f"cannot be replaced in {file.parent}: permission denied; " in failure.message
    assert file.read_bytes() == original


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_write_leaves_nothing_behind_when_it_fails(
    file: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    original, source = fixed(file)

    def refuse(descriptor: int) -> None:
        raise error

    monkeypatch.setattr(os, "fsync", refuse)
    if isinstance(error, OSError):
        failure = write(file, original, source)
        assert failure is not None
        assert "no space left on device" in failure.message
    else:
        with pytest.raises(KeyboardInterrupt):
            write(file, original, source)
    assert file.read_bytes() == original


def test_write_refuses_bytes_that_would_not_come_back(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"# coding: utf-7\nold = '+AGE-'\n")  # `a` would be written without escape
    original, source = fixed(path)
    failure = write(path, original, source)
    assert failure is not None
    assert failure.message == "cannot be written back in utf-7; save the file as UTF-8"
    assert path.read_bytes() == original


def test_write_refuses_a_text_that_would_be_read_differently(file: Path) -> None:
    original = file.read_bytes()
    for text in ["# coding: latin-1\n# é\n", "\ud800"]:
        failure = write(file, original, Source("a.py", text))
        assert failure is not None
        assert "cannot be written back" in failure.message
    assert file.read_bytes() == original


# Differences


def test_diff_of_nothing() -> None:
    source = Source("a.py", "x\n")
    assert diff(source, source) == b""


def test_diff_text() -> None:
    assert diff(Source("./src/a.py", "a\x0cb\n1"), Source("./src/a.py", "a\x0cb\n2\n")) == (
        b"--- a/src/a.py\n+++ b/src/a.py\n@@ -1,2 +1,2 @@\n a\x0cb\n-1\n"
        b"\\ No newline at end of file\n+2\n"
    )


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a\nb", "a\nc"),
        ("a\nb", "a\nb\n"),
        ("a\r\nb\r\n", "a\r\nc\r\n"),
        ("a\rb\r", "a\rc\r"),
        ("", "a"),
        ("a\u2028b\x0c\nc\n", "a\u2028b\x0c\nd\n"),
    ],
)
def test_git_applies_the_diff(tmp_path: Path, before: str, after: str) -> None:
    path = tmp_path / "a b.py"
    path.write_bytes(before.encode())
    patch = diff(Source("a b.py", before), Source("a b.py", after))
    command = ["git", "-c", "core.autocrlf=false", "apply", "--whitespace=nowarn", "-"]
    subprocess.run(command, input=patch, cwd=tmp_path, check=True)
    assert path.read_bytes() == after.encode()


@pytest.mark.parametrize("tool", ["git apply", "patch -p1"])
@pytest.mark.parametrize(
    "name",
    ["a b.py", "new\nline.py", "tab\t.py", 'quo"te.py', "back\\slash.py", "\xe9.py", "\udcff.py"],
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1"])
@pytest.mark.skipif(os.name == "nt", reason="no such names on Windows")
def test_tools_apply_the_diff_of_any_name_and_encoding(
    tmp_path: Path, tool: str, name: str, encoding: str
) -> None:
    before = Source(name, "# \xe9\nx = 1\n", encoding, bom=encoding == "utf-8")
    after = replace(before, text="# \xe9\nx = 2\n")
    path = tmp_path / name
    path.write_bytes(before.encode())
    subprocess.run(tool.split(), input=diff(before, after), cwd=tmp_path, check=True)
    assert path.read_bytes() == after.encode()
