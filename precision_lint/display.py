"""Text that others chose, such as the names of files, made fit for terminals and logs.

A name may hold newlines and escape sequences: printed as they are they could draw what they like,
and a CI system would take a line that begins with ``::`` for a command.
"""

from __future__ import annotations

import os
import re
import unicodedata

_UNPRINTABLE = ("Cc", "Cf", "Cs", "Zl", "Zp")


def printable(text: str) -> str:
    """One line, without control characters, direction marks and surrogates."""
    if text.isascii() and text.isprintable():
        return text
    return "".join("\ufffd" if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def quoted(name: str) -> str:
    """A path as git writes it: in quotes, with escapes, where it holds what is not plain ASCII."""
    data = os.fsencode(name)
    escaped = re.sub(rb'[\x00-\x1f"\\\x7f-\xff]', lambda m: b"\\%03o" % m[0][0], data)
    return f'"{escaped.decode("ascii")}"' if escaped != data else name
