"""Output formats: each turns diagnostics, and the sources they lie in, into one text.

A format is a function ``(diagnostics, sources, *, color) -> str`` without a final newline, found
by name in ``FORMATS``.  ``sources`` maps a diagnostic's filename to its text and may lack files
that vanished since.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from precision_lint.api import Diagnostic

if TYPE_CHECKING:
    from precision_lint.source import Source

__all__ = ["FORMATS", "Format"]

Format = Callable[..., str]
"""``(Sequence[Diagnostic], Mapping[str, Source], *, color: bool) -> str``"""


def _late(module: str, function: str) -> Format:
    def render(
        diagnostics: Sequence[Diagnostic], sources: Mapping[str, Source], *, color: bool = False
    ) -> str:
        room = importlib.import_module(f"{__name__}.{module}")
        return str(getattr(room, function)(diagnostics, sources, color=color))

    return render


FORMATS: dict[str, Format] = {
    "text": _late("text", "full"),
    "concise": _late("text", "concise"),
    "json": _late("json", "render"),
}
"""Formats by the name that ``--output-format`` takes; a format's module is imported when used."""
