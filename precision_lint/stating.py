"""Modes that are written into a TOML file: everything else in it stays as it is, byte for byte.

No library writes here: the few lines are put in where they may belong, and what comes out is parsed.
It must say what the file said before and the modes, and nothing else; the first place where that holds
is taken.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Modes = Mapping[str, Sequence[str]]
"""Modes, each with the places that show it."""
TABLE = "tool.precision-lint"
PLACES = 3
"""Places of a mode that a comment names; of more it gives the number."""
_HEADER = re.compile(
    r"^[ \t]*\[[ \t]*tool[ \t]*\.[ \t]*[\"']?precision-lint[\"']?[ \t]*\][^\r\n]*(?:\r?\n|\Z)",
    re.MULTILINE,
)
_ANY_HEADER = re.compile(r"^[ \t]*\[", re.MULTILINE)
_KEY = re.compile(
    r"^[ \t]*(?:[\w\"'-]+[ \t]*\.[ \t]*)*[\"']?precision[\"']?[ \t]*=[ \t]*(?=\[)", re.MULTILINE
)


@dataclass(frozen=True)
class Said:
    """Modes to state.

    precision: of the project.  overrides: by patterns of files, of some.
    """

    precision: Modes
    overrides: Mapping[str, Modes] = field(default_factory=dict)


def written(text: str, said: Said, ours: bool, newline: str = "\n") -> str | None:
    """The text of a TOML file with modes stated in it; None where no place for them is found.

    ours: whether all of the file is about the tool, as precision-lint.toml.
    """
    try:
        before = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    wanted = _wanted(before, said, ours)
    for new in _candidates(text, said, ours, newline):
        try:
            if tomllib.loads(new) == wanted:
                return new
        except tomllib.TOMLDecodeError:
            continue
    return None


def _wanted(before: dict[str, Any], said: Said, ours: bool) -> dict[str, Any] | None:
    wanted = copy.deepcopy(before)
    table: Any = wanted
    for key in () if ours else ("tool", "precision-lint"):
        table = table.setdefault(key, {})
        if not isinstance(table, dict):
            return None
    table["precision"] = list(said.precision)
    for pattern, modes in said.overrides.items():
        table.setdefault("overrides", []).append({"path": pattern, "precision": list(modes)})
    return wanted


def _candidates(text: str, said: Said, ours: bool, newline: str) -> Iterator[str]:
    array = newline.join(_array(said.precision))
    overrides = "".join(_tables(said.overrides, ours, newline))
    gap = newline if text and not text.endswith("\n") else ""
    for found in _KEY.finditer(text):
        end = _end(text, found.end())
        yield f"{text[: found.end()]}{array.partition('= ')[2]}{text[end:]}{gap}{overrides}"
    for found in _HEADER.finditer(text):
        missing = "" if found[0].endswith("\n") else newline
        head = f"{text[: found.end()]}{missing}{array}{newline}"
        yield f"{head}{text[found.end() :]}{gap}{overrides}"
    if not ours:
        parted = newline if text.strip() else ""
        yield f"{text}{gap}{parted}[{TABLE}]{newline}{array}{newline}{overrides}"
        return
    table = _ANY_HEADER.search(text)
    at = table.start() if table else len(text)
    parted = newline if table else ""
    missing = gap if not table else ""
    after = f"{text[at:]}{gap if table else ''}{overrides}"
    yield f"{text[:at]}{missing}{array}{newline}{parted}{after}"


def _array(modes: Modes) -> Iterator[str]:
    if not modes:
        yield "precision = []"
        return
    yield "precision = ["
    for mode, places in modes.items():
        shown = ", ".join(places[:PLACES])
        more = len(places) - PLACES
        comment = f"  # {shown}{f' and {more:,} more' if more > 0 else ''}" if places else ""
        yield f'    "{mode}",{comment}'
    yield "]"


def _tables(overrides: Mapping[str, Modes], ours: bool, newline: str) -> Iterator[str]:
    for pattern, modes in overrides.items():
        head = "[[overrides]]" if ours else f"[[{TABLE}.overrides]]"
        path = f"path = {json.dumps(pattern, ensure_ascii=False)}"
        yield newline.join(["", head, path, *_array(modes), ""])


def _end(text: str, start: int) -> int:
    """Where the array ends that begins at ``start``; the end of the text if it does not."""
    depth = 0
    for found in re.compile(r"#[^\r\n]*|\"(?:\\.|[^\"\\\r\n])*\"|'[^'\r\n]*'|[\[\]]").finditer(
        text, start
    ):
        depth += {"[": 1, "]": -1}.get(found[0], 0)
        if not depth:
            return found.end()
    return len(text)


__all__ = ["Said", "written"]
