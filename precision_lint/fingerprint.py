"""What a finding is known by when its line moves: its rule and the expression it lies on.

An expression is normalised first, so that white space, comments, line breaks, quotes and trailing
commas, which a formatter changes, do not make another finding of it.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from precision_lint.api import Diagnostic
from precision_lint.source import Source

DIGITS = 16
"""Hexadecimal digits kept of a digest."""

_TOKEN = re.compile(
    r"(?P<string>(?:[A-Za-z]{0,2})(?:'''(?s:\\.|.)*?'''|\"\"\"(?s:\\.|.)*?\"\"\""
    r"|'(?:\\.|[^'\\\r\n])*'|\"(?:\\.|[^\"\\\r\n])*\"))"
    r"|(?P<gap>(?:[ \t\f\r\n]|\\\r?\n|#[^\r\n]*)+)"
    r"|(?P<word>\w+)"
    r"|(?P<other>.)",
    re.DOTALL,
)


def normalised(text: str) -> str:
    """An expression without what a formatter decides.

    >>> normalised("torch.log(\\n    p + 1e-8,  # why\\n)")
    'torch.log(p+1e-8)'
    """
    parts: list[str] = []
    gap = False
    for token in _TOKEN.finditer(text):
        piece = token.group()
        if token.lastgroup == "gap":
            gap = True
            continue
        if token.lastgroup == "string":
            piece = _quoted(piece)
        if piece in ")]}" and parts[-1:] == [","]:
            parts.pop()
        if gap and parts and _word(parts[-1][-1]) and _word(piece[0]):
            parts.append(" ")
        parts.append(piece)
        gap = False
    return "".join(parts)


def _word(character: str) -> bool:
    return character.isalnum() or character == "_"


def _quoted(string: str) -> str:
    body = string.lstrip("rRbBuUfFtT")
    if body.startswith("'") and not body.startswith("'''") and not set('"\\') & set(body):
        return f'{string[: -len(body)]}"{body[1:-1]}"'
    return string


def expression(diagnostic: Diagnostic, source: Source) -> str:
    """The text that a diagnostic lies on; that of its line where it has no extent."""
    start, end = diagnostic.start, diagnostic.end
    if end.row > len(source.lines):  # the file became shorter
        return ""
    text = source.text[source.index(start) : source.index(end)]
    if not text.strip():
        after = source.lines[start.row] if start.row < len(source.lines) else len(source.text)
        text = source.text[source.lines[start.row - 1] : after]
    return text


def key(diagnostic: Diagnostic, source: Source) -> str:
    """The rule and a digest of the normalised expression; equal findings of a file share it."""
    text = expression(diagnostic, source)
    what = (normalised(text) or text.strip()).encode("utf8", "surrogatepass")
    return f"{diagnostic.code}:{hashlib.sha256(what).hexdigest()[:DIGITS]}"


def of(diagnostic: Diagnostic, sources: Mapping[str, Source]) -> str:
    """The key of a diagnostic; that of its message where the source vanished."""
    source = sources.get(diagnostic.filename)
    return key(diagnostic, source) if source else f"{diagnostic.code}:{diagnostic.message}"


def numbered(
    diagnostics: Iterable[Diagnostic], keys: Iterable[str]
) -> Iterator[tuple[Diagnostic, str]]:
    """Each diagnostic with its key made unique: the second of a file with one key ends in ``:2``.

    Diagnostics have to come in the order of their places.
    """
    seen: Counter[tuple[str, str]] = Counter()
    for diagnostic, name in zip(diagnostics, keys, strict=True):
        seen[diagnostic.filename, name] += 1
        yield diagnostic, f"{name}:{seen[diagnostic.filename, name]}"
