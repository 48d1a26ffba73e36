"""Modes that a project's configuration files suggest: trainers' settings in YAML, TOML and JSON."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from precision_lint.cache import Cache, digest
from precision_lint.domains import dtypes
from precision_lint.events import Place, Sign
from precision_lint.project import configs
from precision_lint.project.code import Code
from precision_lint.project.contents import SWITCHES, TENSORS
from precision_lint.project.spellings import F16, Kind, Statement

MAX_DATA = 300
"""So many configuration files of one kind in one directory are data."""
MODES: dict[tuple[Kind, bool], int] = {
    ("autocast", True): dtypes.AMP16,
    ("autocast", False): dtypes.AMPBF,
    ("half", True): dtypes.HALF16,
    ("half", False): dtypes.HALFBF,
}
"""By kind of statement, and whether it is of float16."""


def signs(code: Code, cache: Cache) -> Iterator[Sign]:
    """What the configuration files of a project switch on.

    A switch of the project's making counts only where names of such are in its code.
    """
    crowd = Counter(_kind(name) for name in code.settings)
    contents: dict[str, bytes] = {}
    for name in code.settings:
        if crowd[_kind(name)] <= MAX_DATA and not configs.is_data(name):
            data = code.data(name)
            if len(data) <= configs.MAX_BYTES:
                contents[name] = data
    keys = {name: digest(b"settings", name.encode("utf8", "surrogateescape"), data)
            for name, data in contents.items()}  # fmt: skip
    before, new = cache.get(keys.values()), {}
    homes = _homes(code)
    read = any(code.contents(name).flags & SWITCHES for name in code.names)
    for name, key in keys.items():
        found = _decoded(before.get(key))
        if found is None:
            found = [
                (one.kind, F16 in one.dtypes, one.spelling, one.row, one.coined)
                for one in configs.statements(name, contents[name])
                if _counts(one)
            ]
            new[key] = json.dumps(found)
        home = _home(name, homes, code.layout.home_of(name))
        for kind, narrow, spelling, row, coined in found:
            if coined and not read:
                continue
            text = f"the project's settings say {spelling}"
            yield Sign(MODES[kind, narrow], text, Place(name, row, 0, row, 0), setting=home)
    cache.put(new)


def _homes(code: Code) -> frozenset[PurePosixPath]:
    """The folders with tensors in their files, or in those of folders inside."""
    found = (name for name in code.names if code.contents(name).flags & TENSORS)
    return frozenset(folder for name in found for folder in PurePosixPath(name).parents)


def _home(name: str, homes: Collection[PurePosixPath], package: str) -> str:
    """The folder, with ``/``, whose code a configuration file is for: the nearest around it with tensors,
    inside of the outermost package that it lies in; empty: the whole project."""
    around = PurePosixPath(name).parents
    nearest = next((one for one in around if one in homes or f"{one}/" == package), around[-1])
    return f"{nearest}/" if nearest.name else ""


def _kind(name: str) -> tuple[str, str]:
    path = PurePosixPath(name)
    return str(path.parent), path.suffix


def _counts(one: Statement) -> bool:
    return one.strength == "on" and bool(one.dtypes)


def _decoded(text: str | None) -> list[tuple[Kind, bool, str, int, bool]] | None:
    try:
        found = [
            (kind, narrow, said, row, coined)
            for kind, narrow, said, row, coined in json.loads(text or "")
        ]
    except (ValueError, TypeError):
        return None
    return found if all((kind, narrow) in MODES for kind, narrow, *_ in found) else None
