"""The files of a project as one: what a name of another file is, and who calls a function."""

from __future__ import annotations

import ast
import sys
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from precision_lint import notebook
from precision_lint.api import Evidence, Position
from precision_lint.semantics.index import Index, build
from precision_lint.semantics.module import Module
from precision_lint.semantics.regions import INHERITED, Region
from precision_lint.semantics.summary import Span

Key = tuple[str, str]
"""File (relative to the project's root, with slashes) and qualified name in it."""

DEPTH = 8
"""Imports of imports that are followed."""
LOADED = 96
"""Syntax trees of other files that are held at a time."""
STARRED = 64
"""Files that are looked through for a name that ``import *`` may have brought."""
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
    opened: bool = True
    """Whether a region makes it so, rather than a training step that has opened none yet."""


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
    variables: frozenset[str]


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
    bases: dict[Key, tuple[Key, ...]] = field(default_factory=dict)
    """Classes of the project that a class is derived from."""
    drivers: dict[Key, int] = field(default_factory=dict)
    """Functions that backward passes and regions are run from, which lie in no region themselves;
    with the row up to which what they call does not either."""
    wide: tuple[str, Span] | None = None
    """A place, outside of tests, whose backward pass is to run in float32."""

    def __post_init__(self) -> None:
        self._modules: dict[str, list[str]] | None = None
        self._nearest: dict[str, dict[str, str]] = {}
        self._homes: dict[tuple[str, str], str | None] = {}
        self._resolved: dict[tuple[str, str], Key | None] = {}
        self._parsed: dict[str, Index | None] = {}
        self._loaded: dict[str, Module | None] = {}
        self._kept: dict[str, Module] = {}
        """Modules that will be opened again, with interpretations of their functions."""
        self._keeps = False

    def __getstate__(self) -> dict[str, object]:
        return {
            **self.__dict__, "_modules": None, "_nearest": {}, "_homes": {}, "_resolved": {},
            "_parsed": {}, "_loaded": {}, "_kept": {},
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
            index = self._index(file)
            self._loaded[file] = None if index is None else self._opened(file, index)
        return self._loaded[file]

    def _opened(self, file: str, index: Index) -> Module:
        if not self._keeps:
            return Module(index, file, self)
        if file in self._kept:
            self._kept[file].open(index)
        else:
            self._kept[file] = Module(index, file, self, {})
        return self._kept[file]

    def kept_wide(self, message: str) -> Evidence | None:
        """Where code is kept in float32 whose backward pass has products."""
        return _note(message, self.shown(self.wide[0]), self.wide[1]) if self.wide else None

    def forget(self, keep: bool = False) -> None:
        """Drop what was concluded for one file, so that the next is judged as if it were the first.

        How far names and calls are followed depends on where the following began.  ``keep``:
        from now on interpretations are kept, and used where they still hold.
        """
        self._keeps = keep
        for module in self._loaded.values():
            if module is not None:
                module.close()
        self._loaded.clear()
        self._resolved.clear()

    def _index(self, file: str) -> Index | None:
        if file not in self._parsed:
            if len(self._parsed) >= LOADED:
                oldest = next(iter(self._parsed))
                del self._parsed[oldest]
                self._kept.pop(oldest, None)
            self._parsed[file] = None
            try:
                path = Path(self.root, file)
                if path.stat().st_size <= BYTES:
                    tree = ast.parse(notebook.python(file, path.read_bytes()))
                    self._parsed[file] = build(tree, (ast.With, ast.AsyncWith))
            except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
                pass
        self._parsed[file] = self._parsed.pop(file)  # the last used is dropped last
        return self._parsed[file]

    def method(self, cls: Key, name: str, depth: int = DEPTH) -> Key | None:
        """Where a method of a class is defined, in it or in a base."""
        key = cls[0], f"{cls[1]}.{name}"
        names = self.names.get(cls[0])
        if names is not None and key[1] in names.functions:
            return key
        for base in self.bases.get(cls, ()) if depth else ():
            found = self.method(base, name, depth - 1)
            if found is not None:
                return found
        return None

    def region(self, caller: Caller, called: str) -> Region:
        """The region in which a call in another file enters the function ``called``."""
        flow = caller.flow
        if flow.state == "inherited":
            return INHERITED
        opened = (
            f"{_spelled(flow.dtype)}autocast region opened here"
            if flow.state == "on"
            else "autocast is switched off here"
            if flow.opened
            else "a training step calls this before it opens autocast"
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
        home = importer.rpartition("/")[0]
        if path.partition("/")[0] in sys.stdlib_module_names:
            # only a script's own directory comes before the standard library
            beside = f"{home}/" if home else ""
            return None if f"{beside}__init__.py" in self.files else self._file(beside + path)
        if path not in self._nearest:
            self._nearest[path] = self._by_directory(path)
        parts = home.split("/") if home else []
        for depth in range(len(parts), -1, -1):
            file = self._nearest[path].get("/".join(parts[:depth]))
            if file is not None and file != importer:
                return file
        return None

    def _by_directory(self, path: str) -> dict[str, str]:
        """Of the files whose path ends so, the shortest below each directory."""
        if self._modules is None:
            self._modules = {}
            for file in sorted(self.files, key=lambda file: (len(file), file)):
                last = _stem(file).rpartition("/")[2]
                self._modules.setdefault(last, []).append(file)
        found: dict[str, str] = {}
        for file in self._modules.get(path.rpartition("/")[2], ()):
            if f"/{_stem(file)}".endswith("/" + path):
                directory = file
                while directory:
                    directory = directory.rpartition("/")[0]
                    found.setdefault(directory, file)
        return found

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
        if first in names.classes | names.functions:
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
        """Where a name is defined that ``import *`` brought into a file."""
        first, _, rest = name.partition(".")
        files = {file: None}
        queue = deque(files)
        while queue and len(files) <= STARRED:
            at = queue.popleft()
            names = self.names.get(at)
            for star in names.stars if names else ():
                source = self.module(star, at)
                exported = self.names.get(source) if source else None
                if source is None or exported is None or source in files:
                    continue
                if first in exported.classes | exported.functions | exported.variables:
                    return source, name
                home = exported.imports.get(first)
                if home is not None and depth > 0:
                    found = self.resolve(f"{home}.{rest}" if rest else home, source, depth - 1)
                    if found is not None:
                        return found
                files[source] = None
                queue.append(source)
        return None


def _stem(file: str) -> str:
    return file.removesuffix("/__init__.py").removesuffix(".py")


def _spelled(dtype: str) -> str:
    return f"{dtype} " if dtype in ("float16", "bfloat16") else ""


def _note(message: str, filename: str, span: Span) -> Evidence:
    row, column, end_row, end_column = span
    return Evidence(message, Position(row, column + 1), Position(end_row, end_column + 1), filename)
