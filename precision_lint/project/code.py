"""The Python files of a project for the interpreter: their trees, and what each of them imports."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from precision_lint import source
from precision_lint.cache import Cache, digest
from precision_lint.project import configs, files, requirements
from precision_lint.project.requirements import Release
from precision_lint.source import Failure, Source
from precision_lint.syntax.imports import Layout

TYPE_CHECKING = False
if TYPE_CHECKING:
    from precision_lint.config import Settings


_HALF = re.compile(rb"autocast|float16|half|GradScaler")
Releases = tuple[Release | None, Release | None]
Statement = tuple[int, str, list[str]]
"""An import: dots in front, the module, and the names that are taken from it."""


class Code:
    """The files of a project by their names: paths relative to its root, with ``/``.

    texts: what stands in place of what is on disk.  torch: the least release that must work, and
    the newest that is pinned; None: it is not known.  settings: configuration files.
    """

    def __init__(
        self,
        root: Path,
        names: Collection[str],
        torch: Releases = (None, None),
        texts: Mapping[str, Source] | None = None,
        settings: Collection[str] = (),
    ) -> None:
        self.root = root
        self.settings = tuple(settings)
        self.texts = dict(texts or {})
        self.layout = Layout({*names, *self.texts})
        self.torch = torch

    @classmethod
    def of(cls, root: Path, settings: Settings, named: Iterable[Path] = ()) -> Code:
        """The project below a root, which may be a file, and what else was named."""
        home = root if root.is_dir() else root.parent
        members = {*named, *files.below(root, settings, (*files.SUFFIXES, *configs.SUFFIXES))}
        names = {path.relative_to(home).as_posix() for path in members if path.is_relative_to(home)}
        said = sorted(name for name in names if configs.is_config(name))
        return cls(home, names.difference(said), releases(root, settings), None, said)

    @classmethod
    def alone(cls, path: Path, settings: Settings) -> Code:
        """One file of which nothing around is known."""
        return cls(path.parent, {path.name}, releases(None, settings))

    def name(self, path: Path) -> str:
        """The name of a file by its absolute path."""
        return path.relative_to(self.root).as_posix()

    def path(self, name: str) -> Path:
        return self.root / name

    def shown(self, name: str) -> str:
        """A file as a report names it: relative to where the tool runs, if it can be."""
        path = self.path(name)
        try:
            return str(path.relative_to(Path.cwd()))
        except ValueError:
            return str(path)

    def with_text(self, name: str, text: Source) -> Code:
        """This project with another text of one file."""
        texts = {**self.texts, name: text}
        return Code(self.root, self.layout.paths, self.torch, texts, self.settings)

    def tree(self, name: str) -> ast.Module | None:
        """The syntax tree of a file; None where it cannot be read or does not parse."""
        try:
            text = self.texts.get(name) or source.read(self.path(name), name)
            tree = text if isinstance(text, Failure) else source.parse(text)
        except Exception:  # a defect of the reader: it is told where that file itself is judged
            return None
        return None if isinstance(tree, Failure) else tree

    def data(self, name: str) -> bytes:
        """The bytes of a file; empty where it cannot be read."""
        text = self.texts.get(name)
        if text is not None:
            return text.text.encode("utf8", "surrogatepass")
        data = source.load(self.path(name), name)
        return b"" if isinstance(data, Failure) else data


def releases(root: Path | None, settings: Settings) -> Releases:
    """The least release of torch that a project's settings or metadata allow, and the newest that
    it pins exactly."""
    if settings.torch_version is not None:
        return requirements.parse(settings.torch_version), None
    if root is None:
        return None, None
    return requirements.minimum(root), requirements.newest(root)


class Imports:
    """What files import, directly and through others, and digests of all of that."""

    def __init__(self, code: Code, cache: Cache) -> None:
        self._code = code
        self._cache = cache
        self._found: dict[str, tuple[str, ...]] = {}
        self._contents: dict[str, bytes] = {}
        self._digests: dict[str, bytes] = {}
        self._layout = digest(*map(_encoded, sorted(code.layout.paths)))
        self._tensors: dict[str, bool] = {}
        """Files with tensors: whether they say something of half precision."""

    def of(self, name: str) -> tuple[str, ...]:
        """The files of the project that one names in its imports."""
        if name not in self._found:
            self._read([name])
        return self._found[name]

    def importers(self, names: Collection[str], limit: int) -> list[str]:
        """Files with tensors that import one of some, directly or not; ``limit`` of them.

        Those that say something of half precision come first, then the nearest.
        """
        everything = sorted(self._code.layout.paths)
        self._read([name for name in everything if name not in self._found])
        users: dict[str, list[str]] = {}
        for name in everything:
            for other in self._found[name]:
                users.setdefault(other, []).append(name)
        found: list[str] = []
        seen, pending = set(names), list(names)
        while pending:
            pending = sorted({one for name in pending for one in users.get(name, ())} - seen)
            seen.update(pending)
            found += [name for name in pending if name in self._tensors]
        found.sort(key=lambda name: not self._tensors[name])
        return found[:limit]

    def reach(self, name: str) -> set[str]:
        """A file, and what it imports, directly or not."""
        found, pending = {name}, [name]
        while pending:
            for other in self.of(pending.pop()):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def digest(self, name: str) -> bytes:
        """A digest of a file and of all that it imports, directly or not."""
        if name not in self._digests:
            self._visit(name)
        return self._digests[name]

    def _read(self, names: Sequence[str]) -> None:
        """Find out what some files import; of known contents the cache remembers it."""
        keys: dict[str, bytes] = {}
        for name in names:
            data = self._code.data(name)
            contents = self._contents[name] = digest(data)
            if source.may_hold_tensors(data):
                self._tensors[name] = _HALF.search(data) is not None
            if b"import" in data:
                keys[name] = digest(b"imports", self._layout, _encoded(name), contents)
            else:
                self._found[name] = ()
        before = self._cache.get(keys.values())
        rest = []
        for name, key in keys.items():
            found = _names(before.get(key))
            if found is None or not self._code.layout.paths.issuperset(found):
                rest.append(name)
            else:
                self._found[name] = found
        new: dict[bytes, str] = {}
        for name, statements in self._statements(rest):
            found = self._found[name] = tuple(sorted(set(self._resolved(name, statements))))
            new[keys[name]] = json.dumps(found)
        self._cache.put(new)

    def _statements(self, names: Sequence[str]) -> Iterator[tuple[str, list[Statement]]]:
        """The imports of files as they are written."""
        keys = {
            name: digest(b"statements", _encoded(name.rpartition(".")[2]), self._contents[name])
            for name in names
        }
        before = self._cache.get(keys.values())
        new: dict[bytes, str] = {}
        for name, key in keys.items():
            known = _decoded(before.get(key))
            if known is None:
                tree = self._code.tree(name)
                known = list(_imports(tree)) if tree is not None else []
                new[key] = json.dumps(known)
            yield name, known
        self._cache.put(new)

    def _resolved(self, name: str, statements: Iterable[Statement]) -> Iterator[str]:
        layout = self._code.layout
        for level, module, names in statements:
            parts = module.split(".") if module else []
            dotted = [".".join(parts[: i + 1]) for i in range(len(parts))]
            dotted += [f"{module}.{one}" if module else one for one in names]
            for one in [*dotted, ""] if level else dotted:
                found = layout.find(one, name, level)
                if found is not None and found != name:
                    yield found

    def _visit(self, start: str) -> None:
        """Digests of what a file reaches: files that import each other share one (Tarjan)."""
        number: dict[str, int] = {}
        low: dict[str, int] = {}
        open_: list[str] = []
        inside: set[str] = set()
        work: list[tuple[str, Iterator[str]]] = []

        def enter(name: str) -> None:
            number[name] = low[name] = len(number)
            open_.append(name)
            inside.add(name)
            work.append((name, iter(self.of(name))))

        enter(start)
        while work:
            name, rest = work[-1]
            following = next((one for one in rest if one not in self._digests), None)
            if following is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[name])
                if low[name] == number[name]:
                    group = open_[open_.index(name) :]
                    del open_[len(open_) - len(group) :]
                    inside.difference_update(group)
                    self._together(group)
            elif following not in number:
                enter(following)
            elif following in inside:
                low[name] = min(low[name], number[following])

    def _together(self, group: list[str]) -> None:
        members = set(group)
        parts = [_encoded(one) + b"\0" + self._contents[one] for one in sorted(group)]
        outer = {other for one in group for other in self.of(one)} - members
        parts += [self._digests[one] for one in sorted(outer)]
        whole = digest(*parts)
        for one in group:
            self._digests[one] = digest(_encoded(one), whole)


def _encoded(name: str) -> bytes:
    return name.encode("utf8", "surrogateescape")


def _names(text: str | None) -> tuple[str, ...] | None:
    try:
        found = tuple(json.loads(text or ""))
    except (ValueError, TypeError):
        return None
    return found if all(isinstance(name, str) for name in found) else None


def _decoded(text: str | None) -> list[Statement] | None:
    try:
        return [(level, module, names) for level, module, names in json.loads(text or "")]
    except (ValueError, TypeError):
        return None


def _imports(tree: ast.Module) -> Iterator[Statement]:
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.ImportFrom):
            yield node.level, node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield 0, alias.name, []
        for block in BLOCKS:  # statements hold statements; expressions hold none
            pending += getattr(node, block, ())


BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
