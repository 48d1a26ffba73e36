"""What a rule may ask of a file: whether a name means the same somewhere else."""

from __future__ import annotations

import ast

import pytest

from precision_lint.context import Context
from precision_lint.events import Place
from precision_lint.source import Source

TEXT = """\
shared = make()


class Runner:
    def __init__(self):
        self.scaler = make()

    def backward(self, loss):
        self.scaler.scale(loss)

    def step(self, optimizer):
        here(1)

    def other(this, self):
        here(2)


def train(scaler):
    def inner():
        here(3)

    scaler.update()
    shared.update()
    here(4)


def alone(self):
    here(5)
"""


def place(text: str) -> Place:
    """Where a text stands first."""
    (node,) = [
        one
        for one in ast.walk(ast.parse(TEXT))
        if isinstance(one, ast.expr) and ast.get_source_segment(TEXT, one) == text
    ][:1]
    assert node.end_lineno is not None and node.end_col_offset is not None
    ends = node.end_lineno, node.end_col_offset
    return Place("a.py", node.lineno, node.col_offset, *ends)


@pytest.mark.parametrize(
    ("name", "there", "known"),
    [
        ("scaler", "here(4)", True),
        ("scaler", "here(3)", True),  # a function inside sees it
        ("scaler", "here(5)", False),
        ("shared", "here(1)", True),  # a name of the file
        ("self.scaler", "here(1)", True),  # another method of the same object
        ("self.scaler", "here(2)", False),  # there, it is another parameter
        ("self.scaler", "here(5)", False),
        ("make()", "here(4)", False),  # no name
    ],
)
def test_where_a_name_means_the_same(name: str, there: str, known: bool) -> None:
    at = Context(Source("a.py", TEXT), ast.parse(TEXT), "a.py")
    assert at.is_known(place(name), place(there)) is known


def test_a_message_quotes_short_code_and_marks_what_it_cuts() -> None:
    text = "f(some_rather_long_name, another_rather_long_name)\ng(x)\n"
    at = Context(Source("a.py", text), ast.parse(text), "a.py")
    cut = at.quoted(Place("a.py", 1, 0, 1, 50), "nothing")
    assert cut == "`f(some_rather_long_name, another_rather…`" and len(cut) == 42
    assert at.quoted(Place("a.py", 2, 0, 2, 4), "nothing") == "`g(x)`"
    assert at.quoted(Place("b.py", 2, 0, 2, 4), "another file") == "another file"
    assert at.quoted(None, "nothing") == "nothing"
