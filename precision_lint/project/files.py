"""Which files a run looks at: the paths of the command line, excludes, .gitignore, projects."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from precision_lint import patterns
from precision_lint.notebook import SUFFIX as NOTEBOOK
from precision_lint.patterns import Patterns

if TYPE_CHECKING:
    from precision_lint.config import Settings

SUFFIXES = (".py", ".pyi", NOTEBOOK)
MARKERS = ("pyproject.toml", "setup.py", "setup.cfg", "precision-lint.toml", ".git")
PAPERS = ("requirements.txt", "environment.yml", "environment.yaml", "LICENSE", "README.md")
"""What lies at the top of a project that was copied without its ``.git``, and further below too."""


@dataclass(frozen=True)
class File:
    """One file to lint."""

    path: Path
    """Absolute."""
    name: str
    """As the user wrote it, for display."""
    settings: Settings
    root: Path
    """Root of the project the file belongs to."""


@dataclass
class Found:
    """What the command line's paths come to."""

    files: list[File] = field(default_factory=list)
    """In order of their names, each file on disk once."""
    errors: list[str] = field(default_factory=list)
    """One line for each path that is missing or cannot be read."""
    warnings: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Entry:
    path: Path
    shown: Path
    real: str
    is_link: bool


def absolute(path: Path) -> Path:
    """The path from the root, without ``..``; symbolic links stay where that allows it."""
    whole = Path.cwd() / path
    return whole.resolve() if ".." in whole.parts else whole


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # its directory may not be searched
        return False


def _has(directory: Path, names: Iterable[str]) -> bool:
    return any(_exists(directory / name) for name in names)


def _around(path: Path, folders: Collection[Path] = ()) -> Path | None:
    """The project around an absolute path, if there is a sign of one."""
    around = (path, *path.parents)
    sign = next((directory for directory in around if _has(directory, MARKERS)), None)
    sign = sign or next((directory for directory in around if directory in folders), None)
    if sign is not None:
        return sign
    home, temporary = Path("~").expanduser(), Path(tempfile.gettempdir())
    shared = {home, temporary, home.resolve(), temporary.resolve(), Path(path.anchor)}
    shared |= {*home.parents, *home.resolve().parents}
    here = Path.cwd()
    likely = [d for d in around if d not in shared and (d == here or _has(d, PAPERS))]
    return next((d for d in reversed(likely) if not _holds_repositories(d)), None)


def _holds_repositories(directory: Path) -> bool:
    try:
        with os.scandir(directory) as entries:
            return any(_exists(Path(entry.path) / ".git") for entry in entries)
    except OSError:
        return True


def project_root(path: Path, folders: Collection[Path] = ()) -> Path:
    """Root of the project that an absolute path belongs to.

    The nearest directory, from the path itself upwards, that has one of ``MARKERS``; without one,
    the nearest of ``folders``, which an editor has open; without those, the outermost that has one
    of ``PAPERS`` or is the working directory, though neither a home directory or what holds it,
    nor that of temporary files, nor one that holds repositories; else the path itself.
    """
    return _around(path, folders) or path


def _gitignore(directory: Path) -> Patterns | None:
    try:
        lines = (directory / ".gitignore").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    if patterns.invalid(*lines):  # git passes over a line that it cannot understand
        lines = [line for line in lines if not patterns.invalid(line)]
    return Patterns(directory, tuple(lines))


def _outer_gitignores(top: Path) -> list[Patterns]:
    """Those of the repository above ``top``, outermost first, less those that hide ``top``."""
    above = [*reversed(top.parents), top]
    root = next((i for i in reversed(range(len(above))) if _exists(above[i] / ".git")), None)
    found = [_gitignore(directory) for directory in above[root:-1]] if root is not None else []
    return [spec for spec in found if spec and not spec.verdict(top, True)]


def _ignored(path: Path, is_dir: bool, git: list[Patterns]) -> bool:
    verdicts = (spec.verdict(path, is_dir) for spec in reversed(git))  # the innermost decides
    return next((verdict for verdict in verdicts if verdict is not None), False)


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return not entry.is_dir()
    except OSError:  # a link to itself: a file that cannot be read
        return True


def _walk(
    top: Path,
    shown: Path,
    resolver: Callable[[Path], Settings],
    errors: list[str],
    suffixes: tuple[str, ...] = SUFFIXES,
) -> Iterator[_Entry]:
    """Files with one of the suffixes below the absolute directory ``top``.

    A symbolic link to a file counts; one to a directory is not followed, as in git, so that no
    loop and no foreign tree is walked.
    """
    stack = [(top, shown, str(top.resolve()), _outer_gitignores(top))]
    while stack:
        directory, shown, real, git = stack.pop()
        try:
            with os.scandir(directory) as listing:
                entries = list(listing)
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
            errors.append(f"{shown}: {what}; make the directory readable or exclude it")
            continue
        settings = resolver(directory)
        excludes = [spec.within(top) for spec in settings.exclusions]
        if settings.respect_gitignore and (own := _gitignore(directory)):
            git = [*git, own]
        for entry in entries:
            is_dir = entry.is_dir(follow_symlinks=False)
            if not is_dir and not (entry.name.endswith(suffixes) and _is_file(entry)):
                continue
            path = directory / entry.name
            if any(spec.verdict(path, is_dir) for spec in excludes):
                continue
            if settings.respect_gitignore and _ignored(path, is_dir, git):
                continue
            inner = f"{real}{os.sep}{entry.name}"
            if is_dir:
                stack.append((path, shown / entry.name, inner, git))
            elif entry.is_symlink():
                yield _Entry(path, shown / entry.name, os.path.realpath(path), True)
            else:
                yield _Entry(path, shown / entry.name, inner, False)


def below(root: Path, settings: Settings, suffixes: tuple[str, ...] = SUFFIXES) -> list[Path]:
    """Every file of a project with one of the suffixes, in order; ``root`` may be a file."""
    if not root.is_dir():
        return [root]
    return sorted(entry.path for entry in _walk(root, root, lambda _: settings, [], suffixes))


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
            inside = [(entry, path) for entry in _walk(path, shown, resolver, found.errors)]
            entries += inside
            if not inside:
                found.warnings.append(f"{shown}: no Python files; name a directory that has some")
        else:
            entry = _Entry(path, shown, os.path.realpath(path), path.is_symlink())
            entries.append((entry, path))
    entries.sort(key=lambda item: (item[0].is_link, str(item[0].shown)))
    once: dict[str, File] = {}

    @functools.cache
    def root_of(directory: Path, top: Path) -> Path:
        root = _around(directory) or top
        return top if root.is_relative_to(top) and not _has(root, MARKERS) else root

    for entry, top in entries:
        if entry.real not in once:
            directory = entry.path.parent
            root = root_of(directory, top)
            once[entry.real] = File(entry.path, str(entry.shown), resolver(directory), root)
    found.files = sorted(once.values(), key=lambda file: file.name)
    return found
