"""What a file imports, and which file of a project an import names."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath
from typing import Final

Statement = tuple[int, str, list[str]]
"""An import: dots in front, the module, and the names that are taken from it."""
_TEXTS: Final = re.compile(
    r'"""[^"\\]*(?:(?:\\.|"(?!""))[^"\\]*)*"""'
    r"|'''[^'\\]*(?:(?:\\.|'(?!''))[^'\\]*)*'''"
    r'|"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
    r"|'[^'\\\n]*(?:\\.[^'\\\n]*)*'"
    r"|\#[^\n]*",
    re.DOTALL,
)
"""Strings and comments."""
_IMPORT: Final = re.compile(
    r"(?:from[ \t]*(\.[. \t]*|[ \t])[ \t]*([\w.]*)[ \t]*\bimport\b|import[ \t]+)"
    r"[ \t]*(\([^)]*|[^\n;]*)"
)

_TESTS: Final = frozenset({"test", "tests"})


def is_test(path: str) -> bool:
    """Whether a file is a test, by the customs of pytest and unittest."""
    folders, _, name = path.rpartition("/")
    stem = name.rpartition(".")[0]
    return (
        stem.startswith("test_")
        or stem.endswith("_test")
        or stem == "conftest"
        or not _TESTS.isdisjoint(folders.split("/"))
    )


def statements(text: str) -> Iterator[Statement]:
    """The imports of a file, wherever they stand in it.

    They are found without a tree: of most files of a project only these are asked for, and parsing
    takes 14 times as long.
    """
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _TEXTS.sub("", text).replace("\\\n", " ")
    for found in _IMPORT.finditer(text):
        before = text[text.rfind("\n", 0, found.start()) + 1 : found.start()].strip()
        if before and before[-1] not in ":;":
            continue  # ``yield from``, ``raise ... from``
        dots, module, written = found.groups()
        names = [one.split(None, 1)[0] for one in written.lstrip("(").split(",") if one.strip()]
        if dots is not None:
            yield dots.count("."), module, names
        else:
            yield from ((0, one, []) for one in names)


class Layout:
    """The Python files of a project, by path relative to its root (with ``/``)."""

    def __init__(self, paths: Collection[str]) -> None:
        self.paths = frozenset(paths)
        self._packages = {
            str(PurePosixPath(p).parent) for p in self.paths if p.endswith("/__init__.py")
        }
        if "__init__.py" in self.paths:
            self._packages.add(".")
        self._known: dict[tuple[str, str], tuple[str, ...]] = {}
        self._starts: dict[str, tuple[str, ...]] = {}

    def package_of(self, path: str) -> str:
        """The dotted name of the package that a file lies in, from the outermost package on."""
        parts: list[str] = []
        folder = PurePosixPath(path).parent
        while str(folder) in self._packages and str(folder) != ".":
            parts.append(folder.name)
            folder = folder.parent
        return ".".join(reversed(parts))

    def home_of(self, path: str) -> str:
        """The folder of the outermost package that a file lies in, with ``/``; empty where in none."""
        found, folder = "", PurePosixPath(path).parent
        while str(folder) != ".":
            if str(folder) in self._packages:
                found = f"{folder}/"
            folder = folder.parent
        return found

    def name_of(self, path: str) -> str:
        """The dotted name of a file."""
        package, stem = self.package_of(path), PurePosixPath(path).stem
        if stem == "__init__":
            return package
        return f"{package}.{stem}" if package else stem

    def find(self, dotted: str, path: str, level: int = 0) -> str | None:
        """The file that ``import dotted`` in the file ``path`` names; level: dots in front."""
        key = ("." * level + dotted, path.rpartition("/")[0])
        known = self._known.get(key)
        if known is None:
            known = self._known[key] = self._find(dotted, key[1] or ".", level)
        for found in known:
            if level or found != path:
                return found
        return None

    def _find(self, dotted: str, folder: str, level: int) -> tuple[str, ...]:
        """What an import in a folder may name, nearest first."""
        below = dotted.replace(".", "/")
        if level:
            for _ in range(level - 1):
                folder = folder.rpartition("/")[0] or "."
            homes: tuple[str, ...] = (folder,)
        else:
            homes = self._homes(folder)
        found = (self._at(home, below) for home in homes)
        return tuple(one for one in found if one is not None)

    def _homes(self, folder: str) -> tuple[str, ...]:
        """Directories that an absolute import may start from, nearest first."""
        known = self._starts.get(folder)
        if known is None:
            outside = PurePosixPath(folder)
            while str(outside) in self._packages and str(outside) != ".":
                outside = outside.parent
            above = [] if str(outside) == "." else outside.parents
            known = self._starts[folder] = (*map(str, (outside, *above)), "src")
        return known

    def _at(self, folder: str, below: str) -> str | None:
        start = "" if folder == "." else f"{folder}/"
        base = f"{start}{below}" if below else folder
        for candidate in (f"{base}.py", f"{base}/__init__.py"):
            if candidate in self.paths:
                return candidate
        return None
