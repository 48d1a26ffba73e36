"""The files of a project as one: what a name of another file is, and who calls a function."""

from __future__ import annotations

import ast
import posixpath
from dataclasses import dataclass, field
from pathlib import Path

from precision_lint.api import Evidence, Position
from precision_lint.semantics.index import build
from precision_lint.semantics.module import Module
from precision_lint.semantics.regions import INHERITED, Region
from precision_lint.semantics.summary import Span

Key = tuple[str, str]
"""File (relative to the project's root, with slashes) and qualified name in it."""

DEPTH = 8
"""Imports of imports that are followed."""
LOADED = 64
"""Modules of other files that are held at a time."""
BYTES = 1_000_000
"""Size of the largest file that is read for another's sake."""


@dataclass(frozen=True)
class Flow:
    """An autocast state in which a function is entered, and the places that make it so."""

    state: str
    dtype: str = "low"
    device: str = ""
    file: str = ""
    """Where the region is opened."""
    span: Span = (0, 0, 0, 0)
    via: tuple[tuple[str, Span, str], ...] = ()
    """Calls through which it came: file, place, and the function that is called there."""


@dataclass(frozen=True)
class Caller:
    """A call in another file that leads to a function."""

    file: str
    function: str
    span: Span
    flow: Flow


@dataclass
class Names:
    """What a file's names stand for, for those who import from it."""

    imports: dict[str, str]
    stars: tuple[str, ...]
    functions: frozenset[str]
    classes: frozenset[str]


@dataclass
class Program:
    """The linked project, small enough to be sent to other processes.

    files: its Python files; names: of those that were summarised; callers: call sites in other
    files by function, the ones inside regions first.
    """

    root: str = ""
    files: frozenset[str] = frozenset()
    names: dict[str, Names] = field(default_factory=dict)
    callers: dict[Key, tuple[Caller, ...]] = field(default_factory=dict)
    objects: dict[str, dict[tuple[str, str], Key]] = field(default_factory=dict)
    """By file: what the call of an object such as ``self.head`` in a function runs."""

    def __post_init__(self) -> None:
        self._modules: dict[str, list[str]] | None = None
        self._homes: dict[tuple[str, str], str | None] = {}
        self._resolved: dict[tuple[str, str], Key | None] = {}
        self._loaded: dict[str, Module | None] = {}

    def __getstate__(self) -> dict[str, object]:
        return {
            **self.__dict__, "_modules": None, "_homes": {}, "_resolved": {}, "_loaded": {}
        }  # fmt: skip

    def relative(self, path: Path) -> str:
        """The name of a file in this program; empty if it lies outside the project."""
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            return ""

    def shown(self, file: str) -> str:
        """A file's name as a reader of a report wants it: from where the tool runs."""
        path = Path(self.root, file)
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)

    def load(self, file: str) -> Module | None:
        """The module of a file, read when first asked for; None if it cannot be."""
        if file not in self._loaded:
            if len(self._loaded) >= LOADED:
                self._loaded.clear()
            self._loaded[file] = None
            try:
                path = Path(self.root, file)
                if path.stat().st_size <= BYTES:
                    tree = ast.parse(path.read_bytes())
                    index = build(tree, (ast.With, ast.AsyncWith))
                    self._loaded[file] = Module(index, file, self)
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                pass
        return self._loaded[file]

    def region(self, caller: Caller, called: str) -> Region:
        """The region in which a call in another file enters the function ``called``."""
        flow = caller.flow
        if flow.state == "inherited":
            return INHERITED
        opened = (
            f"{_spelled(flow.dtype)}autocast region opened here"
            if flow.state == "on"
            else "autocast is switched off here"
        )
        chain = [_note(opened, self.shown(flow.file), flow.span)]
        for file, span, name in flow.via:
            chain.append(_note(f"{name}() is called here", self.shown(file), span))
        chain.append(_note(f"{called}() is reached from it", self.shown(caller.file), caller.span))
        return Region(flow.state, flow.dtype, flow.device, foreign=tuple(chain))

    def module(self, name: str, importer: str) -> str | None:
        """The file that ``import name`` in the file ``importer`` means, if it is in the project.

        An absolute name may start at the root, at ``src/``, or beside the importer: the file whose
        path ends with it and that shares most directories with the importer is taken.
        """
        if name.startswith("."):
            level = len(name) - len(name.lstrip("."))
            home = importer.split("/")[:-1]
            if level - 1 > len(home):
                return None
            parts = [*home[: len(home) - level + 1], *filter(None, name.lstrip(".").split("."))]
            return self._file("/".join(parts))
        memo = name, importer.rpartition("/")[0]
        if memo not in self._homes:
            self._homes[memo] = self._absolute(name.replace(".", "/"), importer)
        return self._homes[memo]

    def _absolute(self, path: str, importer: str) -> str | None:
        if self._modules is None:
            self._modules = {}
            for file in self.files:
                stem = file.removesuffix("/__init__.py").removesuffix(".py")
                self._modules.setdefault(stem.rpartition("/")[2], []).append(file)
        best, score = None, (-1, 0)
        for file in self._modules.get(path.rpartition("/")[2], ()):
            stem = file.removesuffix("/__init__.py").removesuffix(".py")
            if stem != path and not stem.endswith("/" + path):
                continue
            shared = len(posixpath.commonprefix([file.split("/"), importer.split("/")]))
            if (shared, -len(file)) > score:
                best, score = file, (shared, -len(file))
        return best

    def _file(self, stem: str) -> str | None:
        candidates = (f"{stem}.py", f"{stem}/__init__.py" if stem else "__init__.py")
        return next((file for file in candidates if file in self.files), None)

    def resolve(self, qualified: str, importer: str, depth: int = DEPTH) -> Key | None:
        """File and name of what a qualified name means in the file ``importer``.

        Names that a package's ``__init__`` passes on are followed to where they are defined.
        """
        if depth <= 0:
            return None
        memo = qualified, importer
        if memo not in self._resolved:
            self._resolved[memo] = None  # a cycle of imports ends here
            self._resolved[memo] = self._resolve(qualified, importer, depth)
        return self._resolved[memo]

    def _resolve(self, qualified: str, importer: str, depth: int) -> Key | None:
        if qualified.startswith("*."):
            return self._starred(qualified[2:], importer, depth)
        head, rest = qualified, ""
        while True:
            file = self.module(head, importer) if head.strip(".") else None
            if head and not head.strip(".") and rest:
                file = self.module(head, importer)
            if file is not None and rest:
                return self.defined(rest, file, depth - 1)
            dots = len(head) - len(head.lstrip("."))
            parent, dot, last = head.rpartition(".")
            if not dot or len(parent) < dots:
                if not dots or len(head) <= dots:
                    return None
                parent, last = head[:dots], head[dots:]
            head, rest = parent, f"{last}.{rest}" if rest else last

    def defined(self, name: str, file: str, depth: int = DEPTH) -> Key | None:
        """Where a name of a file is defined."""
        names = self.names.get(file)
        if names is None:
            return file, name  # not summarised: whoever asks will read it
        first, _, rest = name.partition(".")
        if first in names.classes or first in names.functions:
            return file, name
        home = names.imports.get(first)
        if home is not None:
            return self.resolve(f"{home}.{rest}" if rest else home, file, depth)
        if file.endswith("__init__.py") and rest:
            inner = self.module(f".{first}", file)
            if inner is not None:
                return self.defined(rest, inner, depth)
        found = self._starred(name, file, depth)
        return found or (file, name)

    def _starred(self, name: str, file: str, depth: int) -> Key | None:
        names = self.names.get(file)
        for star in names.stars if names and depth > 0 else ():
            source = self.module(star, file)
            exported = self.names.get(source) if source else None
            if source is None or exported is None or source == file:
                continue
            first = name.partition(".")[0]
            if first in exported.classes or first in exported.functions:
                return source, name
            if first in exported.imports or exported.stars:
                found = self.defined(name, source, depth - 1)
                if found is not None and found != (source, name):
                    return found
        return None


def _spelled(dtype: str) -> str:
    return f"{dtype} " if dtype in ("float16", "bfloat16") else ""


def _note(message: str, filename: str, span: Span) -> Evidence:
    row, column, end_row, end_column = span
    return Evidence(message, Position(row, column + 1), Position(end_row, end_column + 1), filename)
