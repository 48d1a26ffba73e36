"""Bytes to text and back, and places in a text.

A file that cannot be read, decoded or parsed is a value, ``Failure``, never an exception: the
other files of a run go on.
"""

from __future__ import annotations

import ast
import re
import stat
import tokenize
import warnings
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from precision_lint import notebook, registry
from precision_lint.api import Confidence, Diagnostic, Edit, Position, Severity
from precision_lint.notebook import Notebook

__all__ = ["Failure", "Source", "decode", "load", "parse", "read"]

_BOM = b"\xef\xbb\xbf"
_NEWLINE = re.compile(r"\r\n?|\n")
_START = Position(1, 1)
_RECODE = "save the file as UTF-8 or name its encoding in the first line"
_USERS = re.compile(
    rb"^[ \t]*(?:from|import)[ \t]+(?:accelerate|deepspeed|diffusers|einops|fastai|lightning|mmcv"
    rb"|mmengine|peft|timm|transformers|trl)\b",
    re.MULTILINE,
)
"""Imports by which a file may handle tensors that never says torch."""
_OTHERS = re.compile(
    rb"^[ \t]*(?:from|import)[ \t]+(?:[\w.]*\.)?(?:chainer|flax|jax|keras|megengine|mindspore|mlx"
    rb"|mxnet|oneflow|paddle|tensorflow|tinygrad)\b",
    re.MULTILINE,
)
"""Imports of other frameworks, or of a project's part for one, whose tensors have methods of the same names."""
_METHODS = re.compile(
    rb"\.(?:backward|clamp(?:_(?:min|max))?_?|detach|masked_fill_?|permute|requires_grad_|unscale_"
    rb"|unsqueeze_?|zero_grad)\("
)
"""Methods that tensors, models, optimizers and scalers have: who is handed one need not name torch."""
_BYTES_LINE = re.compile(rb"[^\r\n]*(?:\r\n?|\n)|[^\r\n]+")


@dataclass(frozen=True)
class Failure:
    """Why a file could not be read (``MP001``) or parsed (``MP002``)."""

    filename: str
    code: str
    message: str
    position: Position = _START

    def diagnostic(self) -> Diagnostic:
        return Diagnostic(
            code=self.code,
            name=registry.ENGINE_CODES[self.code],
            message=self.message,
            filename=self.filename,
            start=self.position,
            end=self.position,
            severity=Severity.ERROR,
            confidence=Confidence.CERTAIN,
        )


@dataclass(frozen=True)
class Source:
    """One file's text, with every newline as the file has it and without its byte order mark.

    A line ends at ``\\n``, ``\\r\\n`` or a lone ``\\r``, as Python's tokenizer has it; a form feed,
    a vertical tab or U+2028 doesn't end one.
    """

    filename: str
    text: str
    encoding: str = "utf-8"
    bom: bool = False
    notebook: Notebook | None = None
    """Where the text comes from, if it is that of a notebook's cells."""

    @cached_property
    def lines(self) -> list[int]:
        """Offset of the first character of each line; never empty."""
        return [0, *(match.end() for match in _NEWLINE.finditer(self.text))]

    @cached_property
    def _is_ascii(self) -> bool:
        return self.text.isascii()

    @cached_property
    def newline(self) -> str:
        """The newline that most lines end with; ``\\n`` on a tie or without any."""
        text = self.text
        pairs = text.count("\r\n")
        counts = {
            "\n": text.count("\n") - pairs,
            "\r\n": pairs,
            "\r": text.count("\r") - pairs,
        }
        return max(counts, key=lambda newline: counts[newline])

    def position(self, offset: int) -> Position:
        """Row and column of the character at ``offset``, ``0 <= offset <= len(text)``."""
        row = bisect_right(self.lines, offset)
        return Position(row, offset - self.lines[row - 1] + 1)

    def index(self, position: Position) -> int:
        """Offset of the character at ``position``; the inverse of ``position()``."""
        return self.lines[position.row - 1] + position.column - 1

    def offset(self, row: int, utf8_column: int) -> int:
        """Offset of the character at an ``ast`` node's ``lineno`` and ``col_offset``.

        ``row`` counts from 1, ``utf8_column`` counts UTF-8 bytes from 0.  Before Python 3.12, nodes
        inside an f-string of several lines carry wrong places; those are clamped to the text.
        """
        if row > len(self.lines):
            return len(self.text)
        start = self.lines[row - 1]
        if self._is_ascii:
            return min(start + utf8_column, len(self.text))
        head = self.text[start : start + utf8_column]
        if not head.isascii():
            head = head.encode()[:utf8_column].decode(errors="ignore")
        return start + len(head)

    def encode(self, text: str | None = None) -> bytes:
        """The bytes of ``text``, by default all of it, in the file's encoding with its mark.

        Raises UnicodeEncodeError for a character that the encoding lacks; ``fixer.fix`` never
        returns such a text.
        """
        if text is None:
            text = self.notebook.raw if self.notebook else self.text
        data = text.encode(self.encoding)
        return _BOM + data if self.bom else data

    @property
    def shown(self) -> str:
        """The text for people, in which a notebook's magics are as they were written."""
        return self.notebook.shown if self.notebook else self.text

    def in_cell(self, position: Position) -> tuple[int | None, Position]:
        """The number of the notebook's cell at a place, from 1, and the place in that cell.

        In other files, and behind the end of the text: None, and the place as it is.
        """
        inside = position.row <= len(self.lines)
        cell = self.notebook.cell(self.index(position)) if self.notebook and inside else None
        if cell is None:
            return None, position
        first = self.position(cell.start).row
        return cell.number, Position(position.row - first + 1, position.column)

    @cached_property
    def file(self) -> Source:
        """The file's own text, which for a notebook is JSON."""
        return Source(self.filename, self.notebook.raw) if self.notebook else self

    def physical(self, position: Position) -> Position:
        """A place of the text as a place in the file."""
        if self.notebook is None or position.row > len(self.lines):
            return position
        return self.file.position(self.notebook.offset(self.index(position)))

    def refuses(self, edits: Iterable[Edit]) -> str:
        """Why edits cannot be made in this file; empty if they can."""
        return self.notebook.refuses(edits) if self.notebook else ""

    def edited(self, edits: Iterable[Edit]) -> Source:
        """The file after edits, which do not overlap and which it does not refuse."""
        if self.notebook is not None:
            edited = self.notebook.edited(edits)
            return replace(self, text=edited.text, notebook=edited)
        parts, at = [], 0
        for edit in sorted(edits):
            parts += [self.text[at : edit.start], edit.text]
            at = edit.end
        return replace(self, text="".join([*parts, self.text[at:]]))


def may_hold_tensors(data: bytes) -> bool:
    """Whether a file can be about torch: it names it, imports what is made of it, or calls its methods."""
    if b"torch" in data:
        return True
    return bool((_USERS.search(data) or _METHODS.search(data)) and not _OTHERS.search(data))


def load(path: Path | str, filename: str | None = None) -> bytes | Failure:
    """The bytes of a regular file; ``filename`` is its name for display."""
    path = Path(path)
    filename = str(path) if filename is None else filename
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            return Failure(filename, "MP001", "is a directory; name a file")
        if not stat.S_ISREG(mode):  # a pipe would block the run
            return Failure(filename, "MP001", "is not a regular file; exclude it")
        return path.read_bytes()
    except FileNotFoundError:
        if path.is_symlink():
            target = path.readlink()
            return Failure(
                filename, "MP001", f"broken symbolic link to {target}; repair or remove the link"
            )
        return Failure(filename, "MP001", "no such file; check the path")
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        what = getattr(error, "strerror", None) or str(error)
        return Failure(filename, "MP001", f"cannot be read: {what.lower()}; repair or exclude it")


def decode(data: bytes, filename: str) -> Source | Failure:
    """Decode a file as Python does: byte order mark, PEP 263 coding line, else UTF-8.

    Of a notebook, which its name tells, the text is the Python of its cells.
    """
    if filename.endswith(notebook.SUFFIX):
        return _notebook(data, filename)
    bom = data.startswith(_BOM)
    body = data[len(_BOM) :] if bom else data
    lines = (match.group() for match in _BYTES_LINE.finditer(data))
    encoding = "utf-8"
    try:
        try:
            declared = tokenize.detect_encoding(lines.__next__)[0]
        except SyntaxError as error:
            body.decode()  # bytes that are not UTF-8 are the likelier mistake
            what = "the byte order mark says utf-8, the coding line does not" if bom else str(error)
            return Failure(filename, "MP001", f"{what}; {_RECODE}")
        encoding = "utf-8" if bom else declared
        if "#".encode(encoding) == b"#":
            return Source(filename, body.decode(encoding), encoding, bom)
    except UnicodeDecodeError as error:
        offset = len(data) - len(body) + error.start
        position = _end(filename, body[: error.start], encoding)
        what = f"byte 0x{data[offset]:02x} at offset {offset} (line {position.row})"
        return Failure(filename, "MP001", f"{what} is not {encoding}; {_RECODE}", position)
    except (LookupError, UnicodeError):  # rot13, undefined and their like
        pass
    return Failure(filename, "MP001", f"{encoding} cannot hold Python source; {_RECODE}")


def _end(filename: str, head: bytes, encoding: str) -> Position:
    """Where the first bytes of a file end, which its encoding may not hold either."""
    try:
        text = head.decode(encoding, "replace")
    except UnicodeError:  # idna replaces nothing
        text = head.decode("latin-1")
    return Source(filename, text).position(len(text))


def _notebook(data: bytes, filename: str) -> Source | Failure:
    bom = data.startswith(_BOM)
    try:
        found = notebook.read(data.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        what = f"byte 0x{data[error.start]:02x} at offset {error.start} is not utf-8"
        return Failure(filename, "MP001", f"{what}; save the notebook as UTF-8")
    except notebook.Unreadable as error:
        return Failure(filename, "MP001", str(error), error.position)
    return Source(filename, found.text, bom=bom, notebook=found)


def read(path: Path | str, filename: str | None = None) -> Source | Failure:
    """Load and decode a file."""
    data = load(path, filename)
    if isinstance(data, Failure):
        return data
    return decode(data, str(path) if filename is None else filename)


def parse(source: Source) -> ast.Module | Failure:
    """The syntax tree of a file; never raises and never warns."""
    nul = source.text.find("\0")
    if nul >= 0:
        return Failure(
            source.filename,
            "MP002",
            "a NUL character is not Python; remove it or exclude the file",
            source.position(nul),
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes are another linter's business
            return ast.parse(source.text, source.filename)
    except SyntaxError as error:
        what = " ".join(str(error.msg).split()).rstrip(".?")
        return Failure(
            source.filename,
            "MP002",
            f"{what}; fix the syntax or exclude the file",
            _place(source, error),
        )
    except (RecursionError, MemoryError):
        what = "the code is nested too deeply to be parsed; simplify it or exclude the file"
    except ValueError as error:
        what = f"{error}; fix the syntax or exclude the file"
    return Failure(source.filename, "MP002", what)


def _place(source: Source, error: SyntaxError) -> Position:
    """Where Python puts a syntax error, which may be a row or a column past the end."""
    row = min(max(error.lineno or 1, 1), len(source.lines))
    ends = [*source.lines[1:], len(source.text) + 1]
    width = ends[row - 1] - source.lines[row - 1]
    return Position(row, min(max(error.offset or 1, 1), max(width, 1)))
