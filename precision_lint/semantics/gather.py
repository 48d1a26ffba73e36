"""A project's files to its linked program: read, summarised (or known from the cache), linked."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from precision_lint import notebook, pool, progress
from precision_lint.cache import Cache, digest
from precision_lint.semantics.link import link
from precision_lint.semantics.program import Program
from precision_lint.semantics.summary import Summary, summarise
from precision_lint.source import may_hold_tensors

POOL_FROM = 200
"""Files to summarise from which on processes pay for their start."""
LARGEST = 5_000_000
"""Bytes; a larger file is data, not code."""
ROUNDS = 4


def gather(root: Path, files: Iterable[Path], cache: Cache, workers: int) -> Program:
    """The program of a project.

    Summarised are the files that mention torch and, because they may pass on names or hold
    constants, those that these import.  Unreadable ones count as empty.
    """
    paths = {name: path for path in files if (name := _relative(path, root))}
    contents = {name: _read(path) for name, path in paths.items()}
    keys = {name: digest(b"summary", data) for name, data in contents.items()}
    whole = digest(
        b"program", str(root).encode("utf8", "surrogateescape"),
        *(name.encode("utf8", "surrogateescape") + keys[name] for name in sorted(keys)),
    )  # fmt: skip
    known = cache.get([whole]).get(whole)
    if isinstance(known, Program):
        return known
    program = Program(str(root), frozenset(paths))
    summaries: dict[str, Summary] = {}
    wanted = [name for name, data in contents.items() if may_hold_tensors(data)]
    for _ in range(ROUNDS):
        some = {name: contents[name] for name in wanted}
        summaries.update(_summaries(some, keys, cache, workers))
        wanted = sorted(_imported(program, summaries, wanted) - summaries.keys())
        if not wanted:
            break
    with _seldom_collected():
        linked = link(str(root), paths, summaries)
    cache.put({whole: linked})
    return linked


@contextmanager
def _seldom_collected() -> Iterator[None]:
    # trees are many young objects: collecting while they grow takes half of the time
    thresholds = gc.get_threshold()
    gc.set_threshold(100_000, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)


def _relative(path: Path, root: Path) -> str:
    try:
        return path.relative_to(root).as_posix()
    except ValueError:
        return ""


def _read(path: Path) -> bytes:
    try:
        if not path.is_file() or path.stat().st_size > LARGEST:
            return b""
        return path.read_bytes()
    except OSError:
        return b""


def _imported(
    program: Program, summaries: Mapping[str, Summary], importers: Sequence[str]
) -> set[str]:
    """Files of the project that summarised files import names from."""
    found = set()
    for importer in importers:
        summary = summaries[importer]
        for home in {h for _, h in summary.imports}.union(summary.stars):
            for name in (home, home.rpartition(".")[0]):
                file = program.module(name, importer) if name.strip(".") else None
                if file is not None:
                    found.add(file)
                    break
    return found


def _summarise_all(items: Sequence[bytes], _: Any) -> list[Summary]:
    found = []
    with _seldom_collected():
        for data in items:
            found.append(summarise(data))
            progress.step()
    return found


def _summaries(
    contents: Mapping[str, bytes], keys: Mapping[str, bytes], cache: Cache, workers: int
) -> dict[str, Summary]:
    known = cache.get(keys[name] for name in contents)
    found = {
        name: summary for name in contents if isinstance(summary := known.get(keys[name]), Summary)
    }
    missing = [name for name in contents if name not in found]
    items = [notebook.python(name, contents[name]) for name in missing]
    progress.begin("Reading the project", len(items))
    if workers > 1 and len(items) > POOL_FROM:
        made = pool.run(_summarise_all, items, None, lost=lambda _: Summary(), workers=workers)
    else:
        made = _summarise_all(items, None)
    cache.put({keys[name]: summary for name, summary in zip(missing, made, strict=True)})
    found.update(zip(missing, made, strict=True))
    return found
