"""Output formats: each turns diagnostics, and the sources they lie in, into one text.

A format is a function ``(diagnostics, sources, *, color, aside) -> str`` without a final newline,
found by name in ``FORMATS``.  ``sources`` maps a diagnostic's filename to its text and may lack
files that vanished since; ``aside`` is what was found and is not reported, which most formats pass
over.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision_lint.api import Diagnostic, Silenced

if TYPE_CHECKING:
    from precision_lint.source import Source

__all__ = ["FORMATS", "MACHINE", "Aside", "Format"]

Format = Callable[..., str]
"""``(Sequence[Diagnostic], Mapping[str, Source], *, color: bool, aside: Aside) -> str``"""


@dataclass(frozen=True)
class Aside:
    """What a run found and does not report; ``compared``: whether there was a baseline."""

    silenced: Sequence[Silenced] = ()
    compared: bool = False


def _late(module: str, function: str = "render") -> Format:
    def render(
        diagnostics: Sequence[Diagnostic],
        sources: Mapping[str, Source],
        *,
        color: bool = False,
        aside: Aside = Aside(),
    ) -> str:
        room = importlib.import_module(f"{__name__}.{module}")
        said: dict[str, Any] = {"color": color} if module == "text" else {}
        said |= {"aside": aside} if module == "sarif" else {}
        return str(getattr(room, function)(diagnostics, sources, **said))

    return render


FORMATS: dict[str, Format] = {
    "text": _late("text", "full"),
    "concise": _late("text", "concise"),
    "json": _late("json"),
    "json-lines": _late("json", "lines"),
    "sarif": _late("sarif"),
    "github": _late("github"),
    "gitlab": _late("gitlab"),
    "junit": _late("junit"),
    "markdown": _late("markdown"),
    "html": _late("html"),
}
"""Formats by the name that ``--output-format`` takes; a format's module is imported when used."""
MACHINE = frozenset(FORMATS) - {"text", "concise"}
"""Formats that nothing but the report may be mixed into."""
