"""Which files a run looks at: the paths of the command line, excludes, .gitignore, projects."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from precision_lint import patterns
from precision_lint.notebook import SUFFIX as NOTEBOOK
from precision_lint.patterns import Patterns

if TYPE_CHECKING:
    from precision_lint.config import Settings

SUFFIXES = (".py", ".pyi", NOTEBOOK)
CONFIGS = (".yaml", ".yml", ".toml", ".json")
MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", "precision-lint.toml", ".git")
PAPERS = ("requirements.txt", "environment.yml", "environment.yaml", "LICENSE", "README.md")
"""What lies at the top of a project that was copied without its ``.git``, and further below too."""


@dataclass(frozen=True)
class File:
    """One file to lint."""

    where: str
    """Its absolute path."""
    name: str
    """As the user wrote it, for display."""
    settings: Settings
    root: Path
    """Root of the project the file belongs to."""

    @functools.cached_property
    def path(self) -> Path:
        return Path(self.where)


@dataclass
class Found:
    """What the command line's paths come to."""

    files: list[File] = field(default_factory=list)
    """In order of their names, each file on disk once."""
    errors: list[str] = field(default_factory=list)
    """One line for each path that is missing or cannot be read."""
    warnings: list[str] = field(default_factory=list)


class _Entry(NamedTuple):
    path: str
    shown: str
    real: str
    is_link: bool


def absolute(path: Path) -> Path:
    """The path from the root, without ``..``; symbolic links stay where that allows it."""
    whole = Path.cwd() / path
    return whole.resolve() if ".." in whole.parts else whole


def _has(directory: str, names: Iterable[str]) -> bool:
    return any(os.path.exists(f"{directory}{os.sep}{name}") for name in names)


def _is_part(directory: str) -> bool:
    """Whether a ``setup.py`` alone marks a directory that belongs to a package: it builds a part of that, or is
    one of its modules."""
    others = [marker for marker in MARKERS if marker != "setup.py"]
    package = (directory, os.path.dirname(directory))
    return not _has(directory, others) and any(_has(one, ("__init__.py",)) for one in package)


class _Projects:
    """Roots of projects; each directory is looked at once.

    folders: directories that an editor has open.
    """

    def __init__(self, folders: Collection[Path] = ()) -> None:
        self._folders = {str(folder) for folder in folders}
        self._marked: dict[str, bool] = {}
        self._likely: dict[str, bool] = {}
        self._around: dict[str, str | None] = {}

    def marked(self, directory: str) -> bool:
        """Whether a file in a directory marks the root of a project."""
        found = self._marked.get(directory)
        if found is None:
            found = _has(directory, MARKERS) and not _is_part(directory)
            self._marked[directory] = found
        return found

    def around(self, path: str) -> str | None:
        """The project around an absolute path, if there is a sign of one."""
        if path not in self._around:
            self._around[path] = self._find(path)
        return self._around[path]

    def _find(self, path: str) -> str | None:
        around = list(_upwards(path))
        sign = next((directory for directory in around if self.marked(directory)), None)
        sign = sign or next((directory for directory in around if directory in self._folders), None)
        return sign or next((d for d in reversed(around) if self._is_likely(d)), None)

    def _is_likely(self, directory: str) -> bool:
        found = self._likely.get(directory)
        if found is None:
            own = directory not in self._shared and os.path.dirname(directory) != directory
            found = own and (directory == self._here or _has(directory, PAPERS))
            found = self._likely[directory] = found and not _holds_repositories(directory)
        return found

    @functools.cached_property
    def _here(self) -> str:
        return str(Path.cwd())

    @functools.cached_property
    def _shared(self) -> set[str]:
        """Directories of more than one project, such as that of a user."""
        home, temporary = Path("~").expanduser(), Path(tempfile.gettempdir())
        shared = {home, temporary, home.resolve(), temporary.resolve(), Path(home.anchor)}
        return {str(path) for path in (*shared, *home.parents, *home.resolve().parents)}


def _upwards(path: str) -> Iterator[str]:
    """A path and its parents."""
    yield path
    while (parent := os.path.dirname(path)) != path:
        path = parent
        yield path


def _holds_repositories(directory: str) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(os.path.exists(f"{entry.path}{os.sep}.git") for entry in entries)
    except OSError:
        return True


def project_root(path: Path, folders: Collection[Path] = ()) -> Path:
    """Root of the project that an absolute path belongs to.

    The nearest directory, from the path itself upwards, that has one of ``MARKERS`` (a ``setup.py`` in a
    package marks nothing); without one,
    the nearest of ``folders``, which an editor has open; without those, the outermost that has one
    of ``PAPERS`` or is the working directory, though neither a home directory or what holds it,
    nor that of temporary files, nor one that holds repositories; else the path itself.
    """
    return Path(_Projects(folders).around(str(path)) or path)


def _gitignore(directory: str) -> Patterns | None:
    try:
        with open(f"{directory}{os.sep}.gitignore", encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    if patterns.invalid(*lines):  # git passes over a line that it cannot understand
        lines = [line for line in lines if not patterns.invalid(line)]
    return Patterns(Path(directory), tuple(lines))


def _outer_gitignores(top: str) -> list[Patterns]:
    """Those of the repository above ``top``, outermost first, less those that hide ``top``."""
    above = list(_upwards(top))[::-1]
    root = next((i for i in reversed(range(len(above))) if _has(above[i], (".git",))), None)
    found = [_gitignore(directory) for directory in above[root:-1]] if root is not None else []
    return [spec for spec in found if spec and not spec.verdict(top, True)]


def _ignored(path: str, is_dir: bool, git: list[Patterns]) -> bool:
    verdicts = (spec.verdict(path, is_dir) for spec in reversed(git))  # the innermost decides
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.is_dir()
    except OSError:  # a link to itself: a file that cannot be read
        return True


def _walk(
    top: str,
    shown: str,
    resolver: Callable[[Path], Settings],
    errors: list[str],
    suffixes: tuple[str, ...] = SUFFIXES,
) -> Iterator[_Entry]:
    """Files with one of the suffixes below the absolute directory ``top``.

    A symbolic link to a file counts; one to a directory is not followed, as in git, so that no
    loop and no foreign tree is walked.
    """
    start = "" if shown == "." else f"{shown.rstrip(os.sep)}{os.sep}"
    stack = [(top, start, os.path.realpath(top), _outer_gitignores(top))]
    excludes: dict[int, tuple[Settings, list[Patterns]]] = {}
    while stack:
        directory, shown, real, git = stack.pop()
        try:
            with os.scandir(directory) as listing:
                entries = list(listing)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            name = shown.rstrip(os.sep) or "."
            errors.append(f"{name}: {what}; make the directory readable or exclude it")
            continue
        settings = resolver(Path(directory))
        if id(settings) not in excludes:
            within = [spec.within(Path(top)) for spec in settings.exclusions]
            excludes[id(settings)] = settings, within
        hides = excludes[id(settings)][1]
        if settings.respect_gitignore and any(entry.name == ".gitignore" for entry in entries):
            own = _gitignore(directory)
            git = [*git, own] if own else git
        for entry in entries:
            name = entry.name
            is_dir = entry.is_dir(follow_symlinks=False)
            if not is_dir and not (name.endswith(suffixes) and _is_file(entry)):
                continue
            path = entry.path
            if any(spec.hides(path, name, is_dir) for spec in hides):
                continue
            if settings.respect_gitignore and git and _ignored(path, is_dir, git):
                continue
            inner = f"{real}{os.sep}{name}"
            if is_dir:
                stack.append((path, f"{shown}{name}{os.sep}", inner, git))
            elif entry.is_symlink():
                yield _Entry(path, f"{shown}{name}", os.path.realpath(path), True)
            else:
                yield _Entry(path, f"{shown}{name}", inner, False)


def names(root: Path, settings: Settings, suffixes: tuple[str, ...] = SUFFIXES) -> list[str]:
    """Every file of a project with one of the suffixes: its path below the root, with ``/``.

    Of a root that is a file, its own name.
    """
    if not root.is_dir():
        return [root.name]
    found = [e.shown for e in _walk(str(root), ".", lambda _: settings, [], suffixes)]
    return [name.replace(os.sep, "/") for name in found] if os.sep != "/" else found


def excluded(path: Path, settings: Settings) -> bool:
    """Whether ``exclude`` or ``extend-exclude`` hides a file or directory that was named."""
    return any(spec.verdict(path) for spec in settings.exclusions)


def discover(paths: Iterable[Path], resolver: Callable[[Path], Settings]) -> Found:
    """The files that the command line's paths name, with their settings.

    A file that is named is linted whatever its suffix and even if it is excluded, unless
    ``force_exclude`` is set; a directory that is named is walked even if it is excluded.
    """
    found = Found()
    entries: list[tuple[_Entry, Path]] = []
    for shown in paths:
        path = absolute(shown)
        try:
            is_dir, exists = path.is_dir(), path.exists() or path.is_symlink()
        except OSError as error:
            found.errors.append(f"{shown}: cannot be read ({error.strerror}); check the path")
            continue
        if not exists:
            found.errors.append(f"{shown}: no such file or directory; check the path")
            continue
        settings = resolver(path if is_dir else path.parent)
        if settings.force_exclude and excluded(path, settings):
            continue
        if is_dir:
            walked = _walk(str(path), str(shown), resolver, found.errors)
            inside = [(entry, path) for entry in walked]
            entries += inside
            if not inside:
                found.warnings.append(f"{shown}: no Python files; name a directory that has some")
        else:
            entry = _Entry(str(path), str(shown), os.path.realpath(path), path.is_symlink())
            entries.append((entry, path))
    entries.sort(key=lambda item: (item[0].is_link, item[0].shown))
    projects = _Projects()

    @functools.cache
    def about(directory: str, top: Path) -> tuple[Settings, Path]:
        root = Path(projects.around(directory) or top)
        if root.is_relative_to(top) and not projects.marked(str(root)):
            root = top
        return resolver(Path(directory)), root

    once: dict[str, File] = {}
    for entry, top in entries:
        if entry.real not in once:
            settings, root = about(os.path.dirname(entry.path), top)
            once[entry.real] = File(entry.path, entry.shown, settings, root)
    found.files = sorted(once.values(), key=lambda file: file.name)
    return found
