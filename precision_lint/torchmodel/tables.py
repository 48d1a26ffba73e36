"""Reading the tables: JSON files of this package, each once."""

from __future__ import annotations

import functools
import json
import pkgutil
from typing import Any, Final

INF: Final = float("inf")


@functools.cache
def table(name: str) -> dict[str, Any]:
    """The content of a file of this package."""
    data = pkgutil.get_data(__package__, f"{name}.json")
    assert data is not None
    content: dict[str, Any] = json.loads(data)
    return content


def bounds(pair: list[float | None] | None) -> tuple[float, float]:
    """A range as a table has it: null is infinity."""
    if pair is None:
        return -INF, INF
    lo, hi = pair
    return (-INF if lo is None else lo), (INF if hi is None else hi)


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())
