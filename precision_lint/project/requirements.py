"""Which torch a project requires at least, by its own metadata.

The package's metadata speaks first (pyproject.toml, setup.cfg, setup.py), then its pins
(requirements files, conda environments); a script may say it for itself.  Where a source names torch
without a lower bound, every version is meant, and nothing is known; so it is without any source.
"""

from __future__ import annotations

import ast
import contextlib
import itertools
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from precision_lint import source
from precision_lint.source import Failure, Source

Release = tuple[int, ...]
ANY: Release = ()
"""Named without a lower bound."""
MAX_BYTES = 1_000_000
_NAMES = ("torch", "pytorch")
_TORCH = re.compile(r"^\s*(?:pytorch::)?(?:py)?torch(?![\w.-])\s*(?:\[[^\]]*\])?(?P<rest>[^;#]*)")
_CONDA = re.compile(r"^\s*-\s*[\"']?(?P<text>[^\"'#]+)")
_OPTION = re.compile(r"^\s*-")
_EXACT = re.compile(r"\s*\(?\s*={1,3}\s*\d[\d.]*(?:\+\w+)?(?:=[\w.]+)?\s*\)?\s*")


def minimum(specifiers: Iterable[str]) -> Release | None:
    """The least release of torch that specifiers allow; None: it is not known."""
    return min(map(bound, specifiers), default=ANY) or None


def newest(specifiers: Iterable[str]) -> Release | None:
    """The newest release of torch that specifiers pin exactly; None: one of them pins none."""
    pins = [(_EXACT.fullmatch(specifier), bound(specifier)) for specifier in specifiers]
    return max((b for _, b in pins), default=None) if all(exact for exact, _ in pins) else None


def texts(root: Path) -> Iterator[bytes]:
    """The bytes of all files that may say which torch a project directory requires."""
    for path in (
        *(root / name for name in ("pyproject.toml", "setup.cfg", "setup.py")),
        *_files(root),
    ):
        with contextlib.suppress(OSError):
            yield path.read_bytes()


def specifiers(root: Path) -> list[str]:
    """What follows torch's name in the first of a project directory's sources that names it."""
    return list(_package(root)) or list(_pins(root))


def of_script(text: str) -> Iterator[str]:
    """The same in the metadata that a script carries in its comments.

    Source: https://packaging.python.org/en/latest/specifications/inline-script-metadata/
    """
    lines = text.splitlines()
    start = lines.index("# /// script") + 1 if "# /// script" in lines else len(lines)
    block = list(
        itertools.takewhile(lambda line: line == "#" or line.startswith("# "), lines[start:])
    )
    if "# ///" in block:
        end = len(block) - block[::-1].index("# ///") - 1
        yield from _of(_list(_toml("\n".join(line[2:] for line in block[:end])), "dependencies"))


def parse(text: str) -> Release | None:
    """The release that a version such as ``2.4`` or ``2.4.1+cu121`` names; None: it is none."""
    from packaging.version import Version

    try:
        return Version(text).release
    except ValueError:  # no version, or a number of thousands of digits
        return None


def bound(specifier: str) -> Release:
    """The lower bound of what follows a requirement's name; poetry's and conda's forms count."""
    from packaging.specifiers import InvalidSpecifier, SpecifierSet

    text = specifier.strip().strip("()").strip()
    if text.startswith("@") or text in ("", "*"):
        return ANY
    # ^2.1 and ~2.1 of poetry, =2.1 of conda: at least that
    text = re.sub(r"(?<![<>=!~^])[\^]|(?<![<>=!~^])~(?!=)", ">=", text)
    text = re.sub(r"(?<![<>=!~])=(?!=)(\d[\d.]*)(=[\w.]+|\*)?", r"==\1", text)
    if text[:1].isdigit():
        text = f"=={text}"
    try:
        parts = list(SpecifierSet(text.partition("|")[0].strip()))
    except InvalidSpecifier:
        return ANY
    lower = [
        parse(part.version.removesuffix(".*"))
        for part in parts
        if part.operator in (">=", "==", "~=", ">", "===")
    ]
    return max((release for release in lower if release), default=ANY)


def _text(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > MAX_BYTES:
            return ""
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _of(lines: Iterable[Any]) -> Iterator[str]:
    """Torch's specifiers of the requirement lines that are of torch."""
    for line in lines:
        match = _TORCH.match(line) if isinstance(line, str) else None
        if match is not None:
            yield match["rest"]


def _package(root: Path) -> Iterator[str]:
    readers: tuple[tuple[str, Callable[[str], Iterator[str]]], ...] = (
        ("pyproject.toml", _pyproject),
        ("setup.cfg", _setup_cfg),
        ("setup.py", _setup_py),
    )
    for name, reader in readers:
        text = _text(root / name)
        found = list(reader(text)) if "torch" in text else []
        if found:
            yield from found
            return


def _toml(text: str) -> dict[str, Any]:
    """A TOML document; empty where it is none."""
    import sys

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def _pyproject(text: str) -> Iterator[str]:
    table = _toml(text)
    project = _table(table, "project")
    poetry = _table(_table(table, "tool"), "poetry")
    yield from _of(_list(project, "dependencies"))
    for extra in _table(project, "optional-dependencies").values():
        yield from _of(extra if isinstance(extra, list) else ())
    for group in _table(table, "dependency-groups").values():
        yield from _of(group if isinstance(group, list) else ())
    for name in _NAMES:
        given = _table(poetry, "dependencies").get(name)
        given = given.get("version", "") if isinstance(given, dict) else given
        if isinstance(given, str):
            yield given


def _table(table: Any, key: str) -> dict[str, Any]:
    found = table.get(key) if isinstance(table, dict) else None
    return found if isinstance(found, dict) else {}


def _list(table: dict[str, Any], key: str) -> list[Any]:
    found = table.get(key)
    return found if isinstance(found, list) else []


def _setup_cfg(text: str) -> Iterator[str]:
    import configparser

    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return
    for section, key in (("options", "install_requires"), ("metadata", "requires_dist")):
        yield from _of(parser.get(section, key, fallback="").splitlines())
    if parser.has_section("options.extras_require"):
        for _, value in parser.items("options.extras_require"):
            yield from _of(value.splitlines())


def _setup_py(text: str) -> Iterator[str]:
    """Every string of setup.py that is a requirement: lists of them have many shapes."""
    tree = source.parse(Source("setup.py", text))
    if isinstance(tree, Failure):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            match = _TORCH.match(node.value)
            if match and (match["rest"].strip() == "" or re.match(r"\s*[<>=!~]", match["rest"])):
                yield match["rest"]


def _pins(root: Path) -> Iterator[str]:
    for path in _files(root):
        text = _text(path)
        if "torch" not in text:
            continue
        if path.suffix == ".txt":
            yield from _of(line for line in text.splitlines() if not _OPTION.match(line))
            continue
        for line in text.splitlines():
            match = _CONDA.match(line)
            if match:
                yield from _of([match["text"]])


def _files(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    try:
        found = [
            *root.glob("*requirements*.txt"),
            *root.glob("requirements/*.txt"),
            *root.glob("environment*.y*ml"),
        ]
    except OSError:
        return []
    return sorted(found)
