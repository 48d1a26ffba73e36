"""Facts that comments state: ``# precision-lint: assume x float32, 0 <= x <= 1``.

Each becomes a statement of its own kind in the syntax tree, where it begins to hold:

- a comment on a line of its own holds from the statement below it on;
- one at the end of a line holds from that statement on, or behind it for a name that it assigns (a call
  may do so, too: ``self.register_buffer``);
- one in the head of a ``def``, a loop, a ``with`` or a branch holds in its body.  One above a ``def``
  does so for the names of its parameters.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from precision_lint.syntax.program import FunctionNode, dotted

INF: Final = float("inf")
FORM: Final = "`assume x float32`, `assume 0 <= x <= 1`, `assume |x| <= 10` or `assume x != 0`"

NEW, KNOWN, REFUTED, NAMELESS, UNFIT, UNREADABLE = (
    "new", "known", "refuted", "nameless", "unfit", "unreadable",
)  # fmt: skip
"""What comes of a fact: it adds something, adds nothing, contradicts what is proved, speaks of a name that
has no value, or of a value that has no dtype or no bounds, or is no known dtype."""
EVENT: Final = "stated"
"""The kind of events that tell it."""

MARK: Final = re.compile(r"#\s*precision-lint\s*:\s*assume(?![\w-])")
"""How a comment begins that states facts."""
_NUMBER: Final = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
_NAME: Final = r"[^\W\d]\w*(?:\s*\.\s*[^\W\d]\w*)*"
_KIND: Final = re.compile(rf"(?P<name>{_NAME})\s+(?:torch\.)?(?P<kind>[A-Za-z]\w*)")
_BOUND: Final = re.compile(
    rf"(?:(?P<first>{_NUMBER})\s*(?P<before>[<>]=?|!=)\s*)?"
    rf"(?P<bar>\|\s*)?(?P<name>{_NAME})(?(bar)\s*\|)"
    rf"(?:\s*(?P<behind>[<>]=?|!=)\s*(?P<second>{_NUMBER}))?"
)
_FLIPPED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<=", "!=": "!="}


class Range(NamedTuple):
    """A part of a file: rows from 1, columns in UTF-8 bytes from 0."""

    row: int
    column: int
    end_column: int


@dataclass(frozen=True)
class Mistake:
    """Why a comment, or a part of it, states nothing."""

    place: Range
    text: str


class Stated(ast.stmt):
    """One fact, as a statement.

    name: of what it speaks.  target: the same as an expression.  kind: the word for a dtype, or empty.
    lo, hi: bounds.  nonzero: it is not 0.  text: as it is written.  holds: the row from which it does.
    """

    _fields = ()

    def __init__(
        self,
        name: str,
        place: Range,
        text: str,
        kind: str = "",
        lo: float = -INF,
        hi: float = INF,
        nonzero: bool = False,
    ) -> None:
        super().__init__()
        self.name = name
        self.place = place
        self.text = text
        self.kind = kind
        self.lo = lo
        self.hi = hi
        self.nonzero = nonzero
        self.holds = place.row
        self.target = ast.parse(name, mode="eval").body
        self.lineno = self.end_lineno = place.row
        self.col_offset, self.end_col_offset = place.column, place.end_column
        for node in ast.walk(self.target):
            ast.copy_location(node, self)


class _Comment(NamedTuple):
    row: int
    column: int
    text: str
    alone: bool


def speaks(text: str) -> bool:
    """Whether a text may state a fact; dividing it into tokens costs as much as parsing it."""
    return "precision-lint" in text and MARK.search(text) is not None


def insert(tree: ast.Module, text: str) -> None:
    """Put the facts that comments state into a tree, as statements."""
    if speaks(text):
        _Inserter(tree).run(text)


def read(tree: ast.Module, text: str) -> tuple[list[Stated], list[Mistake]]:
    """The facts that comments state, and the mistakes in these comments."""
    if not speaks(text):
        return [], []
    return _Inserter(tree).found(text)


class _Span(NamedTuple):
    """A statement: its first row, the last one of its head, and where it stands."""

    row: int
    end: int
    block: list[ast.stmt]
    at: int

    @property
    def node(self) -> ast.stmt:
        return self.block[self.at]


class _Inserter:
    """Finds where the facts of one tree hold."""

    def __init__(self, tree: ast.Module) -> None:
        self._spans = sorted(_spans(tree), key=lambda one: one.row)
        self._added: list[tuple[list[ast.stmt], int, Stated]] = []

    def run(self, text: str) -> None:
        self.found(text)
        for block, index, fact in sorted(self._added, key=lambda one: -one[1]):
            block.insert(index, fact)

    def found(self, text: str) -> tuple[list[Stated], list[Mistake]]:
        facts: list[Stated] = []
        mistakes: list[Mistake] = []
        for comment in _comments(text):
            for fact in _facts(comment):
                if isinstance(fact, Mistake):
                    mistakes.append(fact)
                elif self._place(comment, fact):
                    facts.append(fact)
                else:
                    mistakes.append(Mistake(fact.place, "stands before no statement"))
        self._added.reverse()  # of those at one place, the last is inserted first
        return facts, mistakes

    def _place(self, comment: _Comment, fact: Stated) -> bool:
        span = self._around(comment.row)
        if span is not None:
            self._add(span, fact)
            return True
        span = next((one for one in self._spans if one.row > comment.row), None)
        if span is None:
            return False
        node = span.node
        if isinstance(node, FunctionNode) and fact.name.partition(".")[0] in _parameters(node):
            self._into(node.body, fact)
        else:
            fact.holds = span.row
            self._added.append((span.block, span.at, fact))
        return True

    def _around(self, row: int) -> _Span | None:
        """The last statement whose head, or all of it, is on a row."""
        found = None
        for one in self._spans:
            if one.row > row:
                break
            if one.end >= row:
                found = one
        return found

    def _add(self, span: _Span, fact: Stated) -> None:
        node = span.node
        body = getattr(node, "body", None)
        if isinstance(body, list):
            self._into(body, fact)
        else:
            behind = fact.name in _bound(node)
            fact.holds = span.end + 1 if behind else span.row
            self._added.append((span.block, span.at + behind, fact))
            if isinstance(node, ast.Expr):  # a call may give the name another value
                self._added.append((span.block, span.at + 1, fact))

    def _into(self, body: list[ast.stmt], fact: Stated) -> None:
        first = body[0]
        has_docstring = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        fact.holds = _first_row(first)
        self._added.append((body, int(has_docstring), fact))


def _spans(tree: ast.Module) -> Iterator[_Span]:
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop()
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            block = getattr(node, name, None)
            if not isinstance(block, list):
                continue
            pending += block
            for index, one in enumerate(block):
                if isinstance(one, ast.stmt):
                    yield _Span(_first_row(one), _last_row(one), block, index)


def _first_row(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])


def _last_row(node: ast.stmt) -> int:
    """The last row of a statement, of a compound one the last row of its head."""
    if isinstance(node, ast.Match):
        return node.subject.end_lineno or node.lineno
    body = getattr(node, "body", None)
    if isinstance(body, list):
        return max(node.lineno, _first_row(body[0]) - 1)
    return node.end_lineno or node.lineno


def _parameters(node: FunctionNode) -> set[str]:
    given = node.args
    every = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
    return {one.arg for one in every if one is not None}


def _bound(node: ast.stmt) -> set[str]:
    """The names, dotted ones too, that a simple statement assigns."""
    return {
        name
        for one in ast.walk(node)
        if isinstance(getattr(one, "ctx", None), ast.Store) and (name := dotted(one)) is not None
    }


def _comments(text: str) -> Iterator[_Comment]:
    """The comments that state facts, each up to the next ``#`` in it."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    lines = text.split("\n")
    try:
        for token in tokenize.generate_tokens(io.StringIO(text, newline="\n").readline):
            if token.type != tokenize.COMMENT:
                continue
            row, column = token.start
            line = lines[row - 1]
            for match in MARK.finditer(token.string):
                if token.string[: match.start()].endswith(("`", "'", '"')):
                    continue  # a quoted one is only spoken of
                end = token.string.find("#", match.end())
                said = token.string[match.start() : end if end >= 0 else None].rstrip()
                before = line[: column + match.start()]
                alone = not line[:column].strip()
                yield _Comment(row, len(before.encode("utf8", "surrogatepass")), said, alone)
    except (tokenize.TokenError, SyntaxError, ValueError):
        return


def _facts(comment: _Comment) -> Iterator[Stated | Mistake]:
    text = comment.text
    match = MARK.match(text)
    assert match is not None
    start = match.end()
    for part in text[start:].split(","):
        said = part.strip()
        column = comment.column + len(text[: start + len(part) - len(part.lstrip())].encode())
        place = Range(comment.row, column, column + len(said.encode("utf8", "surrogatepass")))
        yield _fact(said, place)
        start += len(part) + 1


def _fact(said: str, place: Range) -> Stated | Mistake:
    if match := _KIND.fullmatch(said):
        return _made(match["name"], place, said, kind=match["kind"])
    match = _BOUND.fullmatch(said)
    if match is None or not (match["before"] or match["behind"]):
        what = f"cannot read {said!r}" if said else "states no fact"
        return Mistake(place, f"{what}; write {FORM}")
    lo, hi, nonzero = -INF, INF, False
    for sign, number in (
        (_FLIPPED.get(match["before"] or ""), match["first"]),
        (match["behind"], match["second"]),
    ):
        if not sign:
            continue
        value = float(number)
        if sign == "!=" and (value or match["bar"]):
            return Mistake(place, f"cannot read {said!r}; only `x != 0` says what a value is not")
        nonzero |= sign == "!=" or (not value and sign in ("<", ">"))
        lo, hi = (max(lo, value), hi) if sign in (">", ">=") else (lo, hi)
        hi = min(hi, value) if sign in ("<", "<=") else hi
    if match["bar"]:
        if lo != -INF:
            return Mistake(place, f"cannot read {said!r}; write an upper bound, `|x| <= 10`")
        lo = -hi
    if lo > hi:
        return Mistake(place, f"{said!r} holds for no number; write the bounds in order")
    return _made(match["name"], place, said, lo=lo, hi=hi, nonzero=nonzero)


def _made(name: str, place: Range, said: str, **fact: Any) -> Stated | Mistake:
    name = "".join(name.split())
    try:
        return Stated(name, place, said, **fact)
    except SyntaxError:  # a keyword
        return Mistake(place, f"cannot read {said!r}; write {FORM}")


__all__ = ["FORM", "MARK", "Mistake", "Range", "Stated", "insert", "read", "speaks"]
