"""Python text in the few colours of a page."""

from __future__ import annotations

import functools
import re

Line = list[tuple[str, str]]
"""Parts of a line: a class of the style sheet, or nothing, and the text."""


@functools.lru_cache(64)
def highlighted(text: str, rows: int) -> list[Line]:
    """The lines of a text, each in parts; plain where it is not what the lexer takes it for."""
    from pygments.lexers.python import PythonLexer  # type: ignore[import-untyped]

    lines: list[Line] = [[]]
    for token, part in PythonLexer(stripnl=False, ensurenl=False).get_tokens(text):
        kind = _kind(str(token))
        for number, piece in enumerate(re.split(r"\r\n?|\n", part)):
            if number:
                lines.append([])
            if piece:
                lines[-1].append((kind, piece))
    plain = re.split(r"\r\n?|\n", text)
    same = ["".join(piece for _, piece in line) for line in lines[:rows]] == plain[:rows]
    return lines if same else [[("", line)] for line in plain]


def _kind(token: str) -> str:
    for kind, names in KINDS.items():
        if token.startswith(names):
            return kind
    return ""


KINDS = {
    "c": ("Token.Comment",),
    "s": ("Token.Literal.String",),
    "n": ("Token.Literal.Number",),
    "k": ("Token.Keyword", "Token.Operator.Word"),
    "d": ("Token.Name.Function", "Token.Name.Class", "Token.Name.Decorator"),
}
