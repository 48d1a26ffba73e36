"""Patterns in the notation of .gitignore, for files to skip and rules to ignore."""

from __future__ import annotations

import functools
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec


@functools.cache
def _compile(globs: tuple[str, ...]) -> GitIgnoreSpec:
    from pathspec import GitIgnoreSpec  # imported late: plain names need no regular expressions

    return GitIgnoreSpec.from_lines(globs)


def invalid(*globs: str) -> str | None:
    """Why patterns do not compile; None if they do."""
    try:
        _compile(globs)
    except (ValueError, re.error) as error:
        return f"invalid pattern ({error})"
    return None


@dataclass(frozen=True)
class Patterns:
    """Patterns that are relative to the absolute directory ``base``."""

    base: Path
    globs: tuple[str, ...]

    @functools.cached_property
    def _names(self) -> frozenset[str] | None:
        plain = re.fullmatch(r"[\w.\-]*", "".join(self.globs))
        return frozenset(self.globs) if plain else None

    def hides(self, path: str, name: str, is_dir: bool) -> bool:
        """Whether the patterns match what a directory holds that none of them matches."""
        if self._names is not None:
            return name in self._names
        return self.verdict(path, is_dir) is True

    def verdict(self, path: Path | str, is_dir: bool = False) -> bool | None:
        """What the patterns say of an absolute path: True matched, False re-included, None silent.

        A path below a matched directory is matched.  Of a path outside ``base``, every part counts.
        """
        start, name = str(self.base).rstrip(os.sep) + os.sep, str(path) + os.sep
        name = name[len(start) :] if name.startswith(start) else name.lstrip(os.sep)
        name = name.replace(os.sep, "/").rstrip("/")
        if self._names is not None:
            return None if self._names.isdisjoint(name.split("/")) else True
        return _compile(self.globs).check_file(name + "/" if is_dir else name).include

    def within(self, top: Path) -> Patterns:
        """The patterns for a walk that starts at ``top``, a directory the user named.

        They are relative to ``top`` where they lie elsewhere, or where they would hide ``top``.
        """
        if self.base.is_relative_to(top):
            return self
        elsewhere = not top.is_relative_to(self.base)
        return Patterns(top, self.globs) if elsewhere or self.verdict(top, True) else self
