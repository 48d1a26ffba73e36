"""Reading, decoding, parsing, and places in a text."""

from __future__ import annotations

import ast
import encodings
import os
import pkgutil
import sys
import warnings
from encodings import aliases
from pathlib import Path

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from precision_lint.api import Confidence, Position, Severity
from precision_lint.source import Failure, Source, decode, load, may_hold_tensors, parse, read
from precision_lint.syntax.imports import Statement, statements


def decoded(data: bytes) -> Source:
    source = decode(data, "a.py")
    assert isinstance(source, Source), source
    return source


def failed(result: object) -> Failure:
    assert isinstance(result, Failure), result
    assert "\n" not in result.message
    assert "; " in result.message, "a message says what to do"
    return result


# Encodings


@pytest.mark.parametrize(
    ("data", "encoding", "bom", "text"),
    [
        (b"", "utf-8", False, ""),
        (b"\xef\xbb\xbf", "utf-8", True, ""),
        ("x = 'é'\r\n".encode(), "utf-8", False, "x = 'é'\r\n"),
        (b"\xef\xbb\xbfx = 1", "utf-8", True, "x = 1"),
        (b"\xef\xbb\xbf# coding: utf-8\nx = 1", "utf-8", True, "# coding: utf-8\nx = 1"),
        (b"# coding: latin-1\n# \xe9\n", "iso-8859-1", False, "# coding: latin-1\n# é\n"),
        (b"#!/bin/x\n# coding=cp1252\n'\x80'", "cp1252", False, "#!/bin/x\n# coding=cp1252\n'€'"),
        (b"# a\r# vim: fileencoding=cp1252\r'\x80'", "cp1252", False, None),
        # the third line declares nothing, and neither does code, whichever newline ends a line
        (b"#\n#\n# coding: latin-1\n", "utf-8", False, "#\n#\n# coding: latin-1\n"),
        (b"#\r#\r# coding: latin-1\r", "utf-8", False, "#\r#\r# coding: latin-1\r"),
        (b"x\rcoding = 'latin-1'\r", "utf-8", False, "x\rcoding = 'latin-1'\r"),
    ],
)
def test_decode_finds_encoding_and_goes_back(
    data: bytes, encoding: str, bom: bool, text: str | None
) -> None:
    source = decoded(data)
    assert (source.encoding, source.bom) == (encoding, bom)
    assert text is None or source.text == text
    assert source.encode() == data


@given(st.binary(max_size=60), st.sampled_from([b"", b"\xef\xbb\xbf", b"# coding: latin-1\n"]))
def test_decode_never_raises_and_round_trips(body: bytes, head: bytes) -> None:
    result = decode(head + body, "a.py")
    if isinstance(result, Source):
        assert result.encode() == head + body
    else:
        assert result.code == "MP001"


def test_undecodable_byte_is_named_with_its_place() -> None:
    failure = failed(decode("a = 1\r\nb = 'é".encode() + b"\xff'\n", "a.py"))
    assert (failure.code, failure.position) == ("MP001", Position(2, 7))
    assert "byte 0xff at offset 14 (line 2) is not utf-8" in failure.message


def test_undecodable_byte_after_a_mark_counts_the_mark() -> None:
    failure = failed(decode(b"\xef\xbb\xbfa\xff", "a.py"))
    assert failure.position == Position(1, 2)
    assert "offset 4 (line 1)" in failure.message


def test_undecodable_byte_in_a_declared_encoding() -> None:
    failure = failed(decode(b"# coding: ascii\n#\xe9\n", "a.py"))
    assert failure.position == Position(2, 2)
    assert "byte 0xe9 at offset 17 (line 2) is not ascii" in failure.message


def test_utf16_is_not_python() -> None:
    failure = failed(decode("x = 1\n".encode("utf-16"), "a.py"))
    assert failure.position == Position(1, 1)
    assert "0xff at offset 0" in failure.message or "0xfe at offset 0" in failure.message


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"# coding: klingon\n", "unknown encoding: klingon"),
        (b"\xef\xbb\xbf# coding: latin-1\n", "the byte order mark says utf-8"),
        (b"# coding: rot13\n", "rot13 cannot hold Python source"),
        (b"# coding: undefined\n", "undefined cannot hold Python source"),
        (b"# coding: utf-16\n#", "utf-16 cannot hold Python source"),
    ],
)
def test_unusable_encoding(data: bytes, message: str) -> None:
    failure = failed(decode(data, "a.py"))
    assert failure.code == "MP001"
    assert message in failure.message


def codecs() -> list[str]:
    """Every name by which this Python knows an encoding."""
    modules = {module.name for module in pkgutil.iter_modules(encodings.__path__)}
    return sorted({*aliases.aliases, *aliases.aliases.values(), *modules})


@pytest.mark.parametrize("codec", codecs())
def test_every_codec(codec: str) -> None:
    line = f"# coding: {codec}\n".encode()
    for body in (b"", b"x = 1\n", "# \u00e9\n".encode(), b"# \xe9\n", b"\x81\0\xff", b"\\N{x}"):
        for data in (line + body, b"\xef\xbb\xbf" + line + body, b"\r" + line + body):
            result = decode(data, "a.py")
            if isinstance(result, Source):
                parse(result)
            else:
                failed(result)


def test_encode_takes_another_text() -> None:
    source = decoded(b"\xef\xbb\xbfx")
    assert source.encode("é") == b"\xef\xbb\xbf\xc3\xa9"
    with pytest.raises(UnicodeEncodeError):
        decoded(b"# coding: latin-1\n").encode("\u2264")


# Places


@pytest.mark.parametrize(
    ("text", "newline"),
    [
        ("", "\n"),
        ("x", "\n"),
        ("x\ny\r\n", "\n"),
        ("x\r\ny\n\r\n", "\r\n"),
        ("x\ry\r\n\r", "\r"),
    ],
)
def test_dominant_newline(text: str, newline: str) -> None:
    assert Source("a.py", text).newline == newline


def test_lines_end_only_where_python_ends_them() -> None:
    text = "a\nb\r\nc\rd\x0ce\x0bf\u2028g\x85h\x1ci"
    assert Source("a.py", text).lines == [0, 2, 5, 7]


def test_positions() -> None:
    source = Source("a.py", "a\r\né𝄞b\n")
    assert source.position(0) == Position(1, 1)
    assert source.position(2) == Position(1, 3), "between the two characters of a newline"
    assert source.position(5) == Position(2, 3)
    assert source.position(7) == Position(3, 1)
    assert source.offset(2, 0) == 3
    assert source.offset(2, 2) == 4
    assert source.offset(2, 6) == 5
    assert source.offset(9, 4) == len(source.text)


@given(st.text("ab\r\n\té𝄞\x0c", max_size=30))
def test_index_is_the_inverse_of_position(text: str) -> None:
    source = Source("a.py", text)
    assert [source.index(source.position(i)) for i in range(len(text) + 1)] == [
        *range(len(text) + 1)
    ]


NEWLINES = st.sampled_from(["\n", "\r\n", "\r"])
STRING = st.text("aé𝄞\u2028\x85\x0b\x0c\x1c \t", max_size=6)


@st.composite
def expressions(draw: st.DrawFn, depth: int = 2) -> str:
    gap = st.sampled_from(["", " ", "\t", "\x0c", "  "])
    if depth == 0:
        kind = draw(st.sampled_from("nst"))
        if kind == "n":
            return draw(st.sampled_from(["x", "naïve", "ℵ", "變數", "1", "1.5e-8"]))
        if kind == "s":
            return repr(draw(STRING)) if draw(st.booleans()) else f'"{draw(STRING)}"'
        return f'"""{draw(STRING)}{draw(NEWLINES)}{draw(STRING)}"""'
    left, right = draw(expressions(depth=depth - 1)), draw(expressions(depth=depth - 1))
    a, b = draw(gap), draw(gap)
    shape = draw(st.sampled_from(["+", "(", "[", "f", "."]))
    if shape == "+":
        return f"{left}{a}+{b}{right}"
    if shape == "(":
        return f"({a}{draw(NEWLINES)}{left} # é{draw(NEWLINES)}*{right}{b})"
    if shape == "[":
        return f"[{left},{a}{draw(NEWLINES)}{b}{right}]"
    if shape == "f":
        return f"ƒ({left},{a}k={right})"
    return f"({left}).é{a}"


@st.composite
def modules(draw: st.DrawFn) -> str:
    parts = []
    for _ in range(draw(st.integers(1, 4))):
        lead = draw(st.sampled_from(["", "\x0c", "# é\u2028", "if x:{n}\t", "if x:{n}    "]))
        newline = draw(NEWLINES)
        if lead.startswith("#"):
            lead += newline
        statement = draw(st.sampled_from(["", "y = ", "é = 1; ", "return_ = \\{n}"]))
        parts.append((lead + statement).replace("{n}", newline) + draw(expressions()) + newline)
    text = "".join(parts)
    return text.rstrip("\r\n") if draw(st.booleans()) else text


@settings(suppress_health_check=[HealthCheck.filter_too_much], deadline=None)
@given(modules())
def test_offsets_slice_out_what_ast_says(text: str) -> None:
    source = decoded(text.encode())
    assert source.text == text
    tree = parse(source)
    assume(isinstance(tree, ast.Module))
    assert isinstance(tree, ast.Module)
    for node in ast.walk(tree):
        if not isinstance(node, (ast.expr, ast.stmt, ast.keyword)):
            continue
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = source.offset(node.lineno, node.col_offset)
        end = source.offset(node.end_lineno, node.end_col_offset)
        assert text[start:end] == ast.get_source_segment(text, node)
        assert source.index(source.position(start)) == start
        assert source.position(start).row == node.lineno


def test_every_place_of_ast_in_an_f_string_is_in_the_text() -> None:
    source = Source("a.py", 'é = f"""{a\n+ b:{w}}\né{c!r}\n"""\n')
    tree = parse(source)
    assert isinstance(tree, ast.Module)
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            start = source.offset(node.lineno, node.col_offset)
            assert 0 <= start <= len(source.text)
            if sys.version_info >= (3, 12):
                end = source.offset(node.end_lineno or 0, node.end_col_offset or 0)
                assert source.text[start:end] == ast.get_source_segment(source.text, node)


# Syntax


@pytest.mark.parametrize("text", ["", "\r\n", "# only a comment", "x = 1\r\ry = 2", "\x0cx\n"])
def test_valid_sources(text: str) -> None:
    assert isinstance(parse(Source("a.py", text)), ast.Module)


@pytest.mark.parametrize(
    ("text", "row", "column", "message"),
    [
        ("x = 1\nprint 'a'\n", 2, 1, "Missing parentheses in call to 'print'"),
        ("é = (1 +* 2)\n", 1, 9, "invalid syntax"),
        ("x = 1\r\ny = (\r\n", 2, 5, "'(' was never closed"),
        ("x = '''a\n", 1, 5, "unterminated triple-quoted string literal"),
        ("if x:\ny = 1\n", 2, 1, "expected an indented block"),
        ("a = 1\rb = \0\r", 2, 5, "a NUL character is not Python"),
        ("\ufeffx = 1\n", 1, 1, "invalid non-printable character U+FEFF"),
        ("x = '\ud800'", 1, 1, "surrogates not allowed"),
    ],
)
def test_syntax_errors(text: str, row: int, column: int, message: str) -> None:
    failure = failed(parse(Source("old.py", text)))
    assert (failure.filename, failure.code) == ("old.py", "MP002")
    assert failure.position == Position(row, column)
    assert message in failure.message
    assert failure.message.endswith("exclude the file")


@given(st.text("if x:()[]'\"\n\r\t\\ é\x0c=", max_size=40))
def test_parse_never_raises_and_points_into_the_text(text: str) -> None:
    source = Source("a.py", text)
    result = parse(source)
    if isinstance(result, Failure):
        assert 0 <= source.index(result.position) <= len(text)
        assert source.position(source.index(result.position)) == result.position


@pytest.mark.parametrize(
    "text",
    ["(" * 1000 + "a" + ")" * 1000, "-" * 100_000 + "a", "a" + "+a" * 20_000, "a" + ".b" * 20_000],
    ids=["parentheses", "signs", "sum", "attributes"],
)
def test_deep_nesting_does_not_raise(text: str) -> None:
    result = parse(Source("deep.py", text))
    if text[0] != "a" or sys.version_info < (3, 12):  # how deep a chain may be varies since then
        assert failed(result).code == "MP002"


@pytest.mark.parametrize("error", [RecursionError(), MemoryError()])
def test_too_deep_for_the_parser(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*arguments: object) -> ast.Module:
        raise error

    monkeypatch.setattr(ast, "parse", refuse)
    failure = failed(parse(Source("deep.py", "a")))
    assert "nested too deeply" in failure.message


@pytest.mark.parametrize("text", ["(" * 50 + "a" + ")" * 50, "a" + "+a" * 500, "a" + ".b" * 500])
def test_nesting_that_python_takes(text: str) -> None:
    assert isinstance(parse(Source("deep.py", text)), ast.Module)


def test_invalid_escape_is_silent() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(parse(Source("a.py", "x = '\\d'\ny = x is 'a'\n")), ast.Module)


def test_failure_is_a_diagnostic() -> None:
    diagnostic = Failure("a.py", "MP002", "no; do", Position(3, 4)).diagnostic()
    assert (diagnostic.code, diagnostic.name) == ("MP002", "syntax-error")
    assert diagnostic.start == diagnostic.end == Position(3, 4)
    assert (diagnostic.severity, diagnostic.confidence) == (Severity.ERROR, Confidence.CERTAIN)
    assert not diagnostic.internal


# Files


def test_read(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_bytes(b"\xef\xbb\xbfx = 1\r\n")
    assert read(path) == Source(str(path), "x = 1\r\n", "utf-8", True)
    assert read(path, "a.py") == Source("a.py", "x = 1\r\n", "utf-8", True)
    assert load(path) == b"\xef\xbb\xbfx = 1\r\n"


def test_unreadable_paths(tmp_path: Path) -> None:
    (tmp_path / "broken.py").symlink_to(tmp_path / "gone")
    (tmp_path / "loop.py").symlink_to(tmp_path / "loop.py")
    os.mkfifo(tmp_path / "pipe.py")
    (tmp_path / "bad.py").write_bytes(b"\xff")
    expected = {
        "missing.py": "no such file",
        "broken.py": f"broken symbolic link to {tmp_path / 'gone'}",
        "loop.py": "too many levels of symbolic links",
        "pipe.py": "is not a regular file",
        ".": "is a directory",
        "a\0.py": "null",
        "bad.py": "byte 0xff at offset 0",
    }
    for name, message in expected.items():
        failure = failed(read(tmp_path / name, name))
        assert (failure.code, failure.filename) == ("MP001", name)
        assert message in failure.message


def test_permission_denied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.py"
    path.write_text("x")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)  # root may read everything
    failure = failed(read(path))
    assert failure.code == "MP001"
    assert "cannot be read: permission denied" in failure.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import torch\n", True),
        ("from accelerate import Accelerator\n", True),
        ("if True:\n    import lightning as L\n", True),
        ("from transformers import TFAutoModel\nimport tensorflow as tf\n", False),
        ("import numpy as np\n# accelerate\n", False),
        ("from accelerated import x\n", False),
        ("def bounded(x):\n    return x.clamp(min=1e-8).log()\n", True),
        ("import jax\n\n\ndef cut(x):\n    return x.detach().clamp(0)\n", False),
        ("import paddle.nn as nn\n\n\ndef cut(x):\n    return x.unsqueeze(0)\n", False),
        ("from acme.mindspore import ops\n\n\ndef cut(x):\n    return x.unsqueeze(0)\n", False),
        ("from ..jax.nets import Net\n\n\ndef cut(x):\n    return x.detach()\n", False),
        ("from acme.ajax import page\n\n\ndef cut(x):\n    return x.detach()\n", True),
    ],
)
def test_which_files_are_judged(text: str, expected: bool) -> None:
    assert may_hold_tensors(text.encode()) is expected


IMPORTS = """\
import os, sys as s; import json
if True: from a.b import (
    c as d,  # from x import y
    e,
)
text = '''
import nothing
from nowhere import more
'''
other = "it's\\
import no"; from . import f
def g():
    yield from imports
    try:
        from ..h import *
    except ImportError as error:
        raise ValueError("import k") from error
    from .\\
        l import m
"""


def _by_tree(text: str) -> list[Statement]:
    found: list[Statement] = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom):
            found.append((node.level, node.module or "", [one.name for one in node.names]))
        elif isinstance(node, ast.Import):
            found += [(0, one.name, []) for one in node.names]
    return sorted(found)


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_imports_are_found_without_a_tree(newline: str) -> None:
    text = IMPORTS.replace("\n", newline)
    assert sorted(statements(text)) == _by_tree(IMPORTS)
    assert len(_by_tree(IMPORTS)) == 7


def test_imports_of_real_files_are_those_of_their_trees() -> None:
    """Of the modules of Python's own library."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path in sorted(Path(os.__file__).parent.glob("*.py")):
            found = read(path)
            if isinstance(found, Source) and isinstance(parse(found), ast.Module):
                assert sorted(statements(found.text)) == _by_tree(found.text), path
