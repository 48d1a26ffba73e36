"""Jupyter notebooks: the Python of their cells as one text, and edits of it back into the JSON.

A notebook's text is its Python cells in order, each followed by a newline, so that a later cell
sees what an earlier one defines.  What IPython adds to Python (``%magic``, ``!command``,
``name?``) is replaced by a name and a comment of the same length.  Edits are spliced into the
string literals of the JSON, so that every byte outside of them stays as it is.
"""

from __future__ import annotations

import ast
import json
import re
import warnings
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import islice
from typing import Any

from precision_lint.api import Edit, Position

__all__ = ["SUFFIX", "Cell", "Notebook", "Unreadable", "python", "read"]

SUFFIX = ".ipynb"
_PYTHON_MAGICS = frozenset({"capture", "debug", "ipytest", "prun", "time", "timeit"})
"""Cell magics whose cell runs as Python in the notebook's own namespace."""
_CELL_MAGIC = re.compile(r"(?:[ \t]*(?:#[^\n]*)?\n)*[ \t]*(?P<line>%%(?P<name>\w*)[^\n]*\n?)")
_LINE_MAGIC = re.compile(r"[ \t]*(?P<body>[%!?,;/](?:\\\n|[^\n])*)")
_REST = re.compile(r"(?:\\\n|[^\n])*")
_TOKEN = re.compile(
    r"(?P<string>[A-Za-z]{0,2}(?:'''(?s:\\.|.)*?'''|\"\"\"(?s:\\.|.)*?\"\"\")"
    r"|[A-Za-z]{0,2}(?:'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"))"
    r"|(?P<comment>#[^\n]*)"
    r"|(?P<joined>\\\n)"
    r"|(?P<newline>\n)"
    r"|(?P<open>[(\[{])"
    r"|(?P<close>[)\]}])"
    r"|(?P<help>\?{1,2}[ \t]*;?[ \t]*(?=\n|\Z|\#))"
    r"|(?P<assign>(?<![=!<>:])=[ \t]*(?=[!%]))"
    r"|(?P<other>.)",
    re.DOTALL,
)
_LITERAL = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[0-9a-fA-F]{4}|\\.|.", re.DOTALL
)
"""What stands for one character in a string of JSON."""
_WHITE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder()


class Unreadable(Exception):
    """Why a file is no notebook that can be read; ``position`` is a place in the JSON."""

    def __init__(self, message: str, row: int = 1, column: int = 1) -> None:
        super().__init__(message)
        self.position = Position(row, column)


@dataclass(frozen=True)
class Cell:
    """A Python cell: its number among all cells, from 1, and its place in the notebook's text."""

    number: int
    start: int
    end: int
    first: int
    """Where code starts: behind a cell magic."""
    hidden: tuple[tuple[int, int], ...]
    """Ranges of what is no Python."""


@dataclass(frozen=True)
class Notebook:
    """A notebook's JSON, and its Python; ``shown`` is ``text`` as it stands in the cells."""

    raw: str
    text: str
    shown: str
    cells: tuple[Cell, ...]

    @cached_property
    def _starts(self) -> list[int]:
        return [cell.start for cell in self.cells]

    def cell(self, offset: int) -> Cell | None:
        """The cell around an offset of the text; None where there is no cell."""
        return self.cells[max(bisect_right(self._starts, offset) - 1, 0)] if self.cells else None

    @cached_property
    def _literals(self) -> dict[int, _Literals]:
        return dict(_located(self.raw))

    def offset(self, offset: int) -> int:
        """The offset in the JSON of the character at an offset of the text."""
        cell = self.cell(offset)
        if cell is None or cell.number not in self._literals:
            return 0
        return self._literals[cell.number].at(offset - cell.start, self.raw)

    def refuses(self, edits: Iterable[Edit]) -> str:
        """Why edits cannot be made; empty if they can."""
        for edit in edits:
            placed = self._placed(edit)
            if placed is None:
                return "it would reach across cells"
            cell, inner = placed
            if any(a < inner.end and inner.start < b for a, b in cell.hidden):
                return "it would change a magic"
        return ""

    def edited(self, edits: Iterable[Edit]) -> Notebook:
        """The notebook after edits of its text, none of which ``refuses`` objects to."""
        raw = self.raw
        ascii_only = self._ascii
        changed: set[int] = set()
        for edit in sorted(edits, reverse=True):
            placed = self._placed(edit)
            if placed is not None:
                start, end, text = self._spliced(*placed, ascii_only)
                raw = raw[:start] + text + raw[end:]
                changed.add(placed[0].number)
        for number, literals in reversed(_located(raw).items()):
            if number in changed and self._literals[number].by_line:
                raw = literals.by_lines(raw, self._literals[number], ascii_only)
        return read(raw)

    def splice(self, edit: Edit) -> tuple[int, int, str]:
        """Start, end and text of the edit of the JSON that makes an edit of the text."""
        placed = self._placed(edit)
        return self._spliced(*placed, self._ascii) if placed else (0, 0, "")

    @cached_property
    def _ascii(self) -> bool:
        """Whether the file writes escapes for all characters beyond ASCII."""
        return self.raw.isascii() and re.search(r"\\u(?!00[0-7])", self.raw) is not None

    def _spliced(self, cell: Cell, edit: Edit, ascii_only: bool) -> tuple[int, int, str]:
        return self._literals[cell.number].splice(edit, cell.start, self.raw, ascii_only)

    def _placed(self, edit: Edit) -> tuple[Cell, Edit] | None:
        """The cell of an edit, and the edit within the cell's bounds."""
        cell = self.cell(edit.start)
        if cell is None or edit.start > cell.end:
            return None
        if edit.start < cell.first:
            if edit.start != edit.end:
                return None
            return cell, replace(edit, start=cell.first, end=cell.first)
        if edit.end == cell.end + 1:  # a last line with the newline that is not in its cell
            text = edit.text.removesuffix("\n")
            start = edit.start
            if text == edit.text and start > cell.first and self.text[start - 1] == "\n":
                start -= 1
            return cell, Edit(start, cell.end, text)
        return (cell, edit) if edit.end <= cell.end else None


@dataclass(frozen=True)
class _Literals:
    """The strings that a cell's source is written as; offsets into the JSON."""

    start: int
    end: int
    strings: tuple[tuple[int, int, str], ...]
    """Where the characters of each start and end, and what it means."""
    is_list: bool

    @property
    def by_line(self) -> bool:
        """Whether each string is a line, as nbformat writes a list."""
        texts = [text for _, _, text in self.strings]
        return self.is_list and texts == _lines("".join(texts))

    def at(self, offset: int, raw: str, last: bool = False) -> int:
        """Where an offset of the cell is; where two strings meet, in the second unless ``last``."""
        for start, end, text in self.strings:
            if offset < len(text) or (offset == len(text) and (last or end == self.strings[-1][1])):
                for literal in islice(_LITERAL.finditer(raw, start, end), offset):
                    start = literal.end()
                return start
            offset -= len(text)
        return self.end

    def splice(self, edit: Edit, base: int, raw: str, ascii_only: bool) -> tuple[int, int, str]:
        """The edit of the JSON that makes an edit of a cell that starts at ``base``."""
        text = _quoted(edit.text, ascii_only)
        if not self.strings:  # an empty list
            return self.start + 1, self.end - 1, f'"{text}"'
        lines = [_quoted(line, ascii_only) for line in _lines(edit.text)] or [""]
        whole = edit.end > edit.start and edit.text.endswith("\n")
        start = self.at(edit.start - base, raw)
        end = self.at(edit.end - base, raw, last=whole) if edit.end > edit.start else start
        if edit.text.endswith("\n") and not whole:
            lines.append("")
        joint = f'"{self.joint(raw)}"' if self.is_list else ""
        return start, end, joint.join(lines)

    def joint(self, raw: str) -> str:
        """What stands between two strings of the list."""
        if len(self.strings) > 1:
            return raw[self.strings[0][1] + 1 : self.strings[1][0] - 1]
        return "," + (raw[self.start + 1 : self.strings[0][0] - 1] if self.strings else "")

    def by_lines(self, raw: str, before: _Literals, ascii_only: bool) -> str:
        """The JSON with a string for each line, where splicing left a string that is none."""
        texts = [text for _, _, text in self.strings]
        lines = _lines("".join(texts))
        if texts == lines or not self.strings:
            return raw
        joint = f'"{self.joint(raw)}"'
        kept = {text: raw[start:end] for start, end, text in self.strings}
        body = joint.join(kept.get(line, _quoted(line, ascii_only)) for line in lines)
        return raw[: self.strings[0][0]] + body + raw[self.strings[-1][1] :]


def read(raw: str) -> Notebook:
    """A notebook from its JSON; raises Unreadable, of one line.

    Cells of other languages, and those that a cell magic hands to something else, are left out.
    """
    found = _parsed(raw)
    cells, parts, shown, at = [], [], [], 0
    for number, cell in enumerate(found, 1):
        source = _source(cell)
        masked = None if source is None else _masked(source)
        if source is None or masked is None:
            continue
        text, hidden = masked
        first = 0
        if hidden and (match := _CELL_MAGIC.match(source)):
            first = match.end()
        moved = tuple((at + start, at + end) for start, end in hidden)
        cells.append(Cell(number, at, at + len(source), at + first, moved))
        parts.append(f"{text}\n")
        shown.append(f"{source}\n")
        at += len(source) + 1
    return Notebook(raw, "".join(parts), "".join(shown), tuple(cells))


def python(name: str, data: bytes) -> bytes:
    """The Python of a file by this name: of a notebook its cells', of any other file all of it."""
    if not name.endswith(SUFFIX):
        return data
    try:
        return read(data.decode("utf-8-sig")).text.encode("utf8", "surrogatepass")
    except (UnicodeDecodeError, Unreadable):
        return b""


def _parsed(raw: str) -> list[Any]:
    """The cells of a Python notebook, of any type; none of another language's."""
    if not raw.strip():
        return []
    try:
        table = json.loads(raw)
    except json.JSONDecodeError as error:
        what = f"is not JSON ({error.msg[:1].lower()}{error.msg[1:]}); repair or exclude it"
        raise Unreadable(what, error.lineno, error.colno) from None
    except RecursionError:
        raise Unreadable("is nested too deeply; exclude it") from None
    except ValueError:  # Python refuses integers of more than 4,300 digits
        raise Unreadable("holds a number of too many digits; repair or exclude it") from None
    cells = table.get("cells") if isinstance(table, dict) else None
    if not isinstance(cells, list):
        if isinstance(table, dict) and "worksheets" in table:
            hint = "convert it with `jupyter nbconvert --to notebook`"
            raise Unreadable(f"is a notebook of format {table.get('nbformat', 3)}; {hint}")
        raise Unreadable("has no cells, so it is no notebook; repair or exclude it")
    metadata = table.get("metadata")
    language = "python"
    for key, name in (("kernelspec", "language"), ("language_info", "name")):
        inner = metadata.get(key) if isinstance(metadata, dict) else None
        said = inner.get(name) if isinstance(inner, dict) else None
        language = said if isinstance(said, str) and said else language
    return cells if language.lower() in ("python", "ipython") else []


def _source(cell: Any) -> str | None:
    """The text of a code cell; None if it is none, or of another language."""
    if not isinstance(cell, dict) or cell.get("cell_type") != "code":
        return None
    metadata = cell.get("metadata")
    editor = metadata.get("vscode") if isinstance(metadata, dict) else None
    if isinstance(editor, dict) and editor.get("languageId", "python") != "python":
        return None
    source = cell.get("source", "")
    if isinstance(source, list) and all(isinstance(line, str) for line in source):
        return "".join(source)
    return source if isinstance(source, str) else None


def _masked(cell: str) -> tuple[str, list[tuple[int, int]]] | None:
    """A cell as Python, and the ranges that are replaced; None if it is no Python."""
    hidden: list[tuple[int, int]] = []
    if magic := _CELL_MAGIC.match(cell):
        if magic["name"] not in _PYTHON_MAGICS:
            return None
        start = magic.start("line")
        hidden.append((start, start + len(magic["line"].rstrip("\n"))))
    if hidden or not _is_python(cell):
        body = hidden[0][1] if hidden else 0
        hidden += [(body + start, body + end) for start, end in _magics(cell[body:])]
    text = cell
    for start, end in hidden:
        text = text[:start] + _comment(text[start:end]) + text[end:]
    foreign = cell.lstrip().startswith("%") and not _CELL_MAGIC.match(cell)
    if foreign and not _is_python(text):  # Databricks' %sql, %md and their like
        return None
    return text, hidden


def _is_python(text: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def _magics(text: str) -> Iterator[tuple[int, int]]:
    """Ranges of a text that are IPython's: whole lines, or the right side of an assignment."""
    at = start = depth = 0
    while at < len(text):
        if at == start and not depth and (magic := _LINE_MAGIC.match(text, at)):
            yield magic.span("body")
            at = magic.end()
            continue
        token = _TOKEN.match(text, at)
        assert token is not None  # any character is a token
        at, kind = token.end(), token.lastgroup
        depth = max(depth + (kind == "open") - (kind == "close"), 0)
        if kind == "newline" and not depth:
            start = at
        elif kind == "assign" and not depth:
            rest = _REST.match(text, at)
            end = rest.end() if rest else at
            yield at, end
            at = end
        elif kind == "help" and not depth:
            indent = _WHITE.match(text, start)
            yield (indent.end() if indent else start), at


def _comment(magic: str) -> str:
    """A name and a comment of the length of what IPython alone understands."""
    first, *rest = magic.split("\n")
    lines = [f"_#{first[2:]}"[: len(first)], *(f"#{line[1:]}" if line else "" for line in rest)]
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    return re.findall(r"[^\n]*\n|[^\n]+", text)


def _quoted(text: str, ascii_only: bool) -> str:
    return json.dumps(text, ensure_ascii=ascii_only)[1:-1]


def _located(raw: str) -> dict[int, _Literals]:
    """Where the sources of the cells stand in valid JSON, by the number of the cell."""
    found: dict[int, _Literals] = {}
    start = _white(raw, 0)
    for key, at, _ in _members(raw, start) if raw[start : start + 1] == "{" else ():
        if key != "cells" or raw[at] != "[":
            continue
        found.clear()  # of equal keys the last counts
        for number, (cell, _) in enumerate(_items(raw, at), 1):
            for name, place, end in _members(raw, cell) if raw[cell] == "{" else ():
                if name == "source":
                    found[number] = _literals(raw, place, end)
    return found


def _literals(raw: str, start: int, end: int) -> _Literals:
    is_list = raw[start] == "["
    places = _items(raw, start) if is_list else [(start, end)]
    strings = tuple(
        (first + 1, last - 1, _DECODER.raw_decode(raw, first)[0])
        for first, last in places
        if raw[first] == '"'
    )
    return _Literals(start, end, strings, is_list)


def _white(raw: str, at: int) -> int:
    match = _WHITE.match(raw, at)
    return match.end() if match else at


def _members(raw: str, at: int) -> Iterator[tuple[str, int, int]]:
    """Keys of the object at an offset, and where their values start and end."""
    at = _white(raw, at + 1)
    while raw[at] != "}":
        key, at = _DECODER.raw_decode(raw, at)
        start = _white(raw, _white(raw, at) + 1)
        end = _DECODER.raw_decode(raw, start)[1]
        yield key, start, end
        at = _white(raw, end)
        at = _white(raw, at + 1) if raw[at] == "," else at


def _items(raw: str, at: int) -> Iterator[tuple[int, int]]:
    """Where the values of the list at an offset start and end."""
    at = _white(raw, at + 1)
    while raw[at] != "]":
        end = _DECODER.raw_decode(raw, at)[1]
        yield at, end
        at = _white(raw, end)
        at = _white(raw, at + 1) if raw[at] == "," else at
