"""What makes two findings the same."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from precision_lint import fingerprint
from precision_lint.api import Confidence, Diagnostic, Position, Severity
from precision_lint.source import Source


def key(text: str, start: str, end: str = "", code: str = "MP301") -> str:
    """The key of what lies from ``start`` to the end of ``end`` in a text."""
    source = Source("a.py", text)
    first = text.index(start)
    last = text.index(end or start, first) + len(end or start)
    places = source.position(first), source.position(last)
    found = Diagnostic(code, "n", "m", "a.py", *places, Severity.ERROR, Confidence.LIKELY)
    return fingerprint.key(found, source)


LOG = "torch.log(p + 1e-8)"


@pytest.mark.parametrize(
    "text",
    [
        f"x = 1\n\n\nloss = {LOG}\n",
        f"if a:\n    loss = {LOG}  # why\n",
        "loss = torch.log(\n    p + 1e-8,  # why\n)\n",
        "loss = torch.log(p+1e-8)\r\n",
        "loss = torch.log( \\\n  p + 1e-8 )\n",
    ],
)
def test_place_and_layout_do_not_count(text: str) -> None:
    assert key(text, "torch", ")") == key(LOG, "torch", ")")


@pytest.mark.parametrize("text", ["torch.log(p + 1e-7)", "torch.log(q + 1e-8)", "torch.log (p)"])
def test_another_expression_is_another_finding(text: str) -> None:
    assert key(text, text) != key(LOG, LOG)


def test_another_rule_is_another_finding() -> None:
    assert key(LOG, LOG) != key(LOG, LOG, code="MP302")


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x['a']", 'x["a"]', True),
        ("x['a b']", 'x["a  b"]', False),
        ("x['#a']", "x['#b']", False),
        ("x['''a\nb''']", "x['''a\n b''']", False),
        ("f(x, )", "f(x)", True),
        ("not x", "notx", False),
        ("a if b else c", "a  if b\n else c", True),
        ("rb'a'", 'rb"a"', True),
        ("'it\"s'", '"it\'s"', False),
        ("x  # ä\n+ 1", "x + 1", True),
    ],
)
def test_what_a_formatter_changes(one: str, other: str, same: bool) -> None:
    assert (fingerprint.normalised(one) == fingerprint.normalised(other)) is same


PLAIN = 'f(not a, b if c else "d e", x[1:2], *y, z=(-1, r"#")) @ w.T'
TOKENS = ["f", "(", "not", "a", ",", "b", "if", "c", "else", "'d e'", ",", "x", "[", "1", ":", "2",
          "]", ",", "*", "y", ",", "z", "=", "(", "-", "1", ",", "r'#'", ",", ")", ",", ")", "@",
          "w", ".", "T"]  # fmt: skip


@given(st.lists(st.sampled_from(["", " ", "\t", "\n ", "  # (\n", "\\\n"]), min_size=len(TOKENS)))
def test_normal_form_is_the_same_code(gaps: list[str]) -> None:
    text = TOKENS[0]
    for before, token, gap in zip(TOKENS, TOKENS[1:], gaps, strict=False):
        text += (gap or " " if before[-1].isalnum() and token[0].isalnum() else gap) + token
    normal = fingerprint.normalised(text)
    assert normal == fingerprint.normalised(PLAIN) == fingerprint.normalised(normal)
    assert ast.dump(ast.parse(normal)) == ast.dump(ast.parse(PLAIN))


def test_without_extent_the_line_counts() -> None:
    source = Source("a.py", "x = 1\ny = (\n")
    at = Position(2, 5)
    found = Diagnostic("MP004", "n", "m", "a.py", at, at, Severity.ERROR, Confidence.LIKELY)
    assert fingerprint.expression(found, source) == "y = (\n"
    assert fingerprint.expression(found, Source("a.py", "x")) == ""


def test_equal_findings_are_numbered() -> None:
    source = Source("a.py", "log(x)\nlog(x)\n")
    found = [
        Diagnostic("MP301", "n", "m", name, Position(row, 1), Position(row, 7), *sure)
        for name in ("a.py", "b.py")
        for row in (1, 2)
        for sure in [(Severity.ERROR, Confidence.LIKELY)]
    ]
    keys = [fingerprint.of(d, {"a.py": source, "b.py": source}) for d in found]
    numbered = [name for _, name in fingerprint.numbered(found, keys)]
    assert len(set(keys)) == 1
    assert numbered == [f"{keys[0]}:{n}" for n in (1, 2, 1, 2)]
