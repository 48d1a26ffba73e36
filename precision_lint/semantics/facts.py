"""What the text of a function or class says, found out once."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, TypeVar

Fact = TypeVar("Fact")
Self = TypeVar("Self", bound="Text")


class Text:
    """A function or class; what its text alone says is found out once."""

    @cached_property
    def _facts(self) -> dict[Callable[..., Any], Any]:
        return {}

    def fact(self: Self, find: Callable[[Self], Fact]) -> Fact:
        """What a function finds in it that looks at nothing else, and changes nothing of it."""
        if find not in self._facts:
            self._facts[find] = find(self)
        found: Fact = self._facts[find]
        return found
