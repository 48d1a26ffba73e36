"""The Python files of a project for the interpreter: their trees, and what each of them imports."""

from __future__ import annotations

import ast
import functools
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from precision_lint import source
from precision_lint.cache import Cache, digest
from precision_lint.project import configs, files
from precision_lint.project.contents import (
    HALF,
    IMPORTS,
    NOTHING,
    TENSORS,
    Contents,
    Index,
    contents,
)
from precision_lint.source import Failure, Source
from precision_lint.syntax import stated
from precision_lint.syntax.imports import Layout, Statement, is_test, statements

TYPE_CHECKING = False
if TYPE_CHECKING:
    from precision_lint.config import Settings


Release = tuple[int, ...]
Releases = tuple[Release | None, Release | None]


SCRIPT: Final = "# /// script"
"""How a script's own metadata begin."""


def script_releases(text: str = "") -> Releases:
    """The least and the newest release of torch that a script's own metadata say."""
    from precision_lint.project import requirements

    said = list(requirements.of_script(text)) if text else []
    return requirements.minimum(said), requirements.newest(said)


class Code:
    """The files of a project by their names: paths relative to its root, with ``/``.

    texts: what stands in place of what is on disk.  torch: the least release that must work, and
    the newest that is pinned; None: it is not known.  settings: configuration files.  device: the
    devices that are stated for a file, by its absolute path.
    """

    def __init__(
        self,
        root: Path,
        names: Collection[str],
        torch: Releases | Callable[..., Releases] = script_releases,
        texts: Mapping[str, Source] | None = None,
        settings: Collection[str] = (),
        index: Index | None = None,
        device: Callable[[Path], tuple[str, ...] | None] | None = None,
    ) -> None:
        self.root = root
        self._start = _start(root)
        self.settings = tuple(settings)
        self.texts = dict(texts or {})
        self.names = frozenset({*names, *self.texts})
        self.index = index
        self._torch = torch
        self._device = device

    @functools.cached_property
    def layout(self) -> Layout:
        return Layout(self.names)

    @functools.cached_property
    def torch(self) -> Releases:
        return self._torch() if callable(self._torch) else self._torch

    def torch_of(self, name: str) -> Releases:
        """The same for one file, which may be a script that says itself what it requires (PEP 723)."""
        if not callable(self._torch) or SCRIPT.encode() not in self.data(name):
            return self.torch
        text = self.text(name)
        return self._torch(text.text) if isinstance(text, Source) else self.torch

    @classmethod
    def of(
        cls,
        root: Path,
        settings: Settings,
        named: Iterable[Path] = (),
        index: Index | None = None,
    ) -> Code:
        """The project below a root, which may be a file, and what else was named."""
        home = root if root.is_dir() else root.parent
        start = _start(home)
        found = files.names(root, settings, (*files.SUFFIXES, *files.CONFIGS))
        inside = (str(path) for path in named if str(path).startswith(start))
        names = {*found, *(path[len(start) :].replace(os.sep, "/") for path in inside)}
        said = sorted(name for name in names if configs.is_config(name))
        torch = functools.partial(releases, root, settings)
        device = settings.devices_for
        return cls(home, names.difference(said), torch, None, said, index, device)

    @classmethod
    def alone(cls, path: Path, settings: Settings) -> Code:
        """One file of which nothing around is known."""
        torch = functools.partial(releases, None, settings)
        return cls(path.parent, {path.name}, torch, device=settings.devices_for)

    @functools.cached_property
    def state(self) -> bytes:
        """A digest of all that findings in the project's files follow from."""
        from precision_lint.project import requirements

        named = sorted(self.names) + [name for name in self.settings if not configs.is_data(name)]
        keys = (self.contents(name).key for name in named)
        said = requirements.texts(self.root)
        return digest(encoded("\0".join(named)), "".join(keys).encode(), *said)

    def devices(self, name: str) -> tuple[str, ...]:
        """The devices that are stated for a file, the usual one first; none: nothing is stated."""
        return (self._device(self.path(name)) if self._device is not None else None) or ()

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
        return Code(
            self.root, self.names, self._torch, texts, self.settings, self.index, self._device
        )

    def contents(self, name: str) -> Contents:
        """What is in a file; nothing where it cannot be read."""
        if self.index is None or name in self.texts:
            return contents(name, self.data(name))
        below = name.replace("/", os.sep) if os.sep != "/" else name
        return (
            self.index.of(f"{self._start}{below}") or NOTHING
        )  # no Path: each run asks for all files

    def changed(self, name: str) -> bool:
        """Whether a file is another one than when the run began."""
        if self.index is None or name in self.texts:
            return False
        return self.index.changed(f"{self._start}{name.replace('/', os.sep)}")

    def tree(self, name: str) -> ast.Module | None:
        """The syntax tree of a file, with the facts that its comments state; None where there is none."""
        try:
            text = self.text(name)
            tree = text if isinstance(text, Failure) else source.parse(text)
            if isinstance(text, Source) and isinstance(tree, ast.Module):
                stated.insert(tree, text.text)
        except Exception:  # a defect of the reader: it is told where that file itself is judged
            return None
        if isinstance(tree, Failure):
            return None
        return tree

    def text(self, name: str) -> Source | Failure:
        """The text of a file."""
        return self.texts.get(name) or source.read(self.path(name), name)

    def imports(self, name: str) -> list[Statement]:
        """The imports of a file as they are written; none where it cannot be read."""
        try:
            text = self.text(name)
        except Exception:  # as in ``tree``
            return []
        return list(statements(text.text)) if isinstance(text, Source) else []

    def data(self, name: str) -> bytes:
        """The bytes of a file; empty where it cannot be read."""
        text = self.texts.get(name)
        if text is not None:
            return text.text.encode("utf8", "surrogatepass")
        data = source.load(self.path(name), name)
        return b"" if isinstance(data, Failure) else data


def _start(home: Path) -> str:
    """How the path of what lies in a directory begins."""
    return f"{home}{os.sep}".replace(f"{os.sep}{os.sep}", os.sep)


def releases(root: Path | None, settings: Settings, text: str = "") -> Releases:
    """The least release of torch that a project's settings or metadata allow, and the newest that
    it pins exactly.

    text: of a script whose own metadata may say it.
    """
    from precision_lint.project import requirements

    if settings.torch_version is not None:
        return requirements.parse(settings.torch_version), None
    own = list(requirements.of_script(text)) if text else []
    said = own or (requirements.specifiers(root) if root is not None else [])
    return requirements.minimum(said), requirements.newest(said)


class Imports:
    """What files import, directly and through others, and digests of all of that."""

    def __init__(self, code: Code, cache: Cache) -> None:
        self._code = code
        self._cache = cache
        self._names = sorted(code.names)
        self._contents = {name: code.contents(name) for name in self._names}
        self._layout = digest(*map(encoded, self._names)).hex()
        self._key = digest(b"imports", encoded(str(code.root)))
        self._found: dict[str, tuple[str, ...]] = {}

    @functools.cached_property
    def _kept(self) -> dict[int, tuple[str, list[int]]]:
        text = self._cache.get([self._key]).get(self._key)
        return _decoded(text, self._layout, len(self._names))

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names)}

    def read(self, names: Iterable[str]) -> None:
        """Find out what some files import, each named once; of known contents the cache remembers it."""
        new = []
        for name in names:
            if name in self._found or name not in self._contents:
                continue
            contents, number = self._contents[name], self._numbers[name]
            if not contents.flags & IMPORTS:
                self._found[name] = ()
            elif number in self._kept and self._kept[number][0] == contents.key:
                self._found[name] = tuple(self._names[one] for one in self._kept[number][1])
            else:
                new.append(name)
        for name in new:
            self._found[name] = tuple(sorted(set(self._resolved(name, self._code.imports(name)))))
        if new and not self._code.texts and self._cache.remembers:
            self._remember(new)

    def _remember(self, names: Iterable[str]) -> None:
        for name in names:
            found = [self._numbers[one] for one in self._found[name]]
            self._kept[self._numbers[name]] = self._contents[name].key, found
        self._cache.put({self._key: json.dumps({"layout": self._layout, "files": self._kept})})

    def of(self, name: str) -> tuple[str, ...]:
        """The files of the project that one names in its imports."""
        self.read([name])
        return self._found.get(name, ())

    def holds_tensors(self, name: str) -> bool:
        return bool(self._contents[name].flags & TENSORS)

    @functools.cached_property
    def _users(self) -> dict[str, list[str]]:
        """The files that name each in their imports."""
        self.read(self._names)
        users: dict[str, list[str]] = {}
        for name in self._names:
            for other in self._found.get(name, ()):
                users.setdefault(other, []).append(name)
        return users

    def imported(self, name: str) -> bool:
        """Whether a file, besides tests, names one in its imports, or it is a test, run by itself."""
        return is_test(name) or not all(map(is_test, self._users.get(name, ())))

    def reach_of_users(self, name: str) -> set[str]:
        """What a file imports, directly or not, and what programs do that import it."""
        seen = set().union(*self._importing([name]))
        return self.reach(name, *(one for one in seen if self._is_program(one)))

    def _is_program(self, name: str) -> bool:
        """Whether a file is run rather than imported, and is no test."""
        return not (is_test(name) or name.endswith("__init__.py") or self.imported(name))

    def _importing(self, names: Iterable[str]) -> Iterator[list[str]]:
        """Files that import some: those that name them, those that name these, and so on."""
        pending = list(names)
        seen = set(pending)
        while pending:
            users = {one for name in pending for one in self._users.get(name, ())}
            pending = sorted(users - seen)
            seen.update(pending)
            yield pending

    def importers(self, names: Collection[str]) -> list[str]:
        """Files with tensors that import one of some, directly or not, or may run it without.

        Those that say something of half precision come first, then the nearest.
        """
        names = frozenset(names)
        if names.issuperset(self._names):
            return []
        found = [one for step in self._importing(names) for one in step]
        tops = [one for one in (*names, *found) if self._is_program(one)]
        beside = self._beside(tops, names.union(found), not names.isdisjoint(tops))
        found = [one for one in found if self.holds_tensors(one)] + beside
        found.sort(key=lambda name: not self._contents[name].flags & HALF)
        return found

    def _beside(self, tops: Collection[str], seen: Collection[str], handed: bool) -> list[str]:
        """Files that say something of half precision, and to which programs may hand what others hold.

        tops: programs.  handed: to any file of the project.
        """
        reached = self._names if handed else self.reach(*tops)
        return [
            name
            for name in sorted(set(reached).difference(seen))
            if self._contents[name].flags & HALF and self.holds_tensors(name) and not is_test(name)
        ]

    def reach(self, *names: str) -> set[str]:
        """Files, and what they import, directly or not."""
        found, pending = set(names), list(names)
        while pending:
            one = pending.pop()
            known = self._found.get(one)
            new = set(self.of(one) if known is None else known) - found
            found |= new
            pending += new
        return found

    def below(self, folder: str) -> set[str]:
        """The files of a folder (with ``/``), and what they import, directly or not."""
        return self.reach(*(name for name in self._names if name.startswith(folder)))

    def near(self, name: str) -> set[str]:
        """What a file names in its imports, itself or by a package that it names."""
        named = self.of(name)
        packages = (one for one in named if one.endswith("__init__.py"))
        return {*named, *(other for one in packages for other in self.of(one))}

    def sign(self, name: str) -> bytes:
        """A digest of a file, and of which files its imports name."""
        key = self._contents.get(name, NOTHING).key
        return digest(encoded(name), key.encode(), *map(encoded, self.of(name)))

    def _resolved(self, name: str, imports: Iterable[Statement]) -> Iterator[str]:
        layout = self._code.layout
        for level, module, names in imports:
            parts = module.split(".") if module else []
            dotted = [".".join(parts[: i + 1]) for i in range(len(parts))]
            dotted += [f"{module}.{one}" if module else one for one in names]
            for one in [*dotted, ""] if level else dotted:
                found = layout.find(one, name, level)
                if found is not None and found != name:
                    yield found


def encoded(name: str) -> bytes:
    return name.encode("utf8", "surrogateescape")


def _decoded(text: str | None, layout: str, count: int) -> dict[int, tuple[str, list[int]]]:
    """What files import, by their numbers in the order of names; empty for another layout."""
    try:
        known = json.loads(text or "{}")
        if known.get("layout") != layout:
            return {}
        files = {int(number): (key, found) for number, (key, found) in known["files"].items()}
        named = {number for _, found in files.values() for number in found}
        return files if named <= set(range(count)) else {}
    except (ValueError, TypeError, KeyError, AttributeError):
        return {}
