"""What is known of files: their facts, from the cache or by interpreting them, put together."""

from __future__ import annotations

import gc
import json
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from precision_lint import engine, pool, progress
from precision_lint.cache import Cache, digest
from precision_lint.config import Settings
from precision_lint.engine import Engine, Facts, Together, Told, deep_recursion
from precision_lint.events import Sign
from precision_lint.project import suggested as suggestions
from precision_lint.project.code import Code, Imports, encoded
from precision_lint.project.contents import TENSORS, Index

POOL_FROM = 64
"""Files to work on from which on processes pay for their start."""
COLLECT_EVERY = 480
"""Files after which all memory is searched; most of what a file leaves goes without that."""
IMPORTERS = 64
"""Files that are interpreted besides those that were named, because they import them."""
IMPORTING_LINES = 16_000
"""Lines of such files: what is named is to be judged within seconds."""
NO_ANSWER = "its process ended without an answer"

_worked = 0


def reason(error: BaseException) -> str:
    """An error in one line, with the place that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ") + place


@contextmanager
def collector_off() -> Iterator[None]:
    # a tree is many young objects and no garbage: collecting while it grows only costs
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def collect_now_and_then() -> None:
    """Free what earlier files left."""
    global _worked
    _worked += 1
    if _worked % COLLECT_EVERY == 0:
        gc.collect()


_engines: dict[Path, Engine] = {}
"""In a worker, or for the length of a run: what interprets the files of each project."""


def _interpret(items: Sequence[tuple[Path, str]], projects: Mapping[Path, Code]) -> list[Facts]:
    """The facts of some files, each named by its project's root and its name there."""
    found = []
    with collector_off(), deep_recursion():
        for root, name in items:
            collect_now_and_then()
            found.append(_facts_of(projects[root], root, name))
            progress.step()
    return found


def _facts_of(code: Code, root: Path, name: str) -> Facts:
    engine = _engines.get(root)
    if engine is None or engine.code is not code:
        engine = _engines[root] = Engine(code)
    try:
        return engine.facts(name)
    except Exception as error:
        _engines.pop(root, None)  # what it was about to do is in no good state
        return Facts(failure=reason(error))


def _lost(item: tuple[Path, str]) -> Facts:
    return Facts(failure=reason(ChildProcessError(NO_ANSWER)))


def interpreted(
    wanted: Mapping[Path, Sequence[str]],
    projects: Mapping[Path, Code],
    caches: Mapping[Path, Cache],
    workers: int = 1,
) -> dict[Path, dict[str, Told]]:
    """What is known of some files of each project, from them and from files that import them."""
    imports = {root: Imports(projects[root], caches[root]) for root in wanted}
    users = {root: imports[root].importers(names) for root, names in wanted.items()}
    first = {root: _within(projects[root], found) for root, found in users.items()}
    every = {root: list(dict.fromkeys([*names, *first[root]])) for root, names in wanted.items()}
    facts = _facts(every, projects, caches, imports, workers)
    told: dict[Path, dict[str, Told]] = {}
    for root, found in facts.items():
        suggested = suggestions.signs(projects[root], caches[root])
        known = imports[root]
        whole = Together(
            found, known.reach_of_users, suggested, known.imported, known.near, known.below
        )
        told[root] = {name: whole.told(name) for name in wanted[root]}
        for name in wanted[root][:1]:
            more = len(users[root]) - len(first[root])
            cut = (("importers", "", more),) if more else ()
            told[root][name] = replace(told[root][name], cut=told[root][name].cut + cut)
    return told


def _within(code: Code, importers: Sequence[str]) -> list[str]:
    """The first importers, as far as the bounds allow."""
    found: list[str] = []
    lines = 0
    for name in importers[:IMPORTERS]:
        lines += code.contents(name).lines
        if lines > IMPORTING_LINES and found:
            break
        found.append(name)
    return found


def shown(root: Path, code: Code, cache: Cache, workers: int = 1) -> list[Sign]:
    """The places of a project that show modes: in its code, its configuration files, its options."""
    from precision_lint.project import options  # late: its patterns take long to compile

    names = [name for name in sorted(code.names) if code.contents(name).flags & TENSORS]
    imports = {root: Imports(code, cache)}
    found = _facts({root: names}, {root: code}, {root: cache}, imports, workers)[root]
    signs = {sign for facts in found.values() for sign in facts.signs}
    signs.update(suggestions.signs(code, cache), options.signs(code))
    return sorted(signs, key=lambda one: (one.place, one.mode, one.flag, one.text))


def _facts(
    wanted: Mapping[Path, Sequence[str]],
    projects: Mapping[Path, Code],
    caches: Mapping[Path, Cache],
    imports: Mapping[Path, Imports],
    workers: int,
) -> dict[Path, dict[str, Facts]]:
    """The facts of some files of each project, from the cache or by interpreting them."""
    facts: dict[Path, dict[str, Facts]] = {}
    known: dict[Path, _Known] = {}
    items: list[tuple[Path, str]] = []
    for root, names in wanted.items():
        known[root] = _Known(root, projects[root], imports[root], caches[root])
        facts[root] = known[root].get(names)
        items += [(root, name) for name in names if name not in facts[root]]
    progress.begin("Interpreting", len(items))
    if workers > 1 and len(items) > POOL_FROM:
        lines = [projects[root].contents(name).lines for root, name in items]
        answers = pool.run(_interpret, items, projects, lost=_lost, workers=workers, weights=lines)
    else:
        answers = _interpret(items, projects)
        for one in _engines.values():
            one.program.release()
        _engines.clear()
    new: dict[Path, dict[str, Facts]] = {root: {} for root in wanted}
    for (root, name), found in zip(items, answers, strict=True):
        facts[root][name] = found
        if not found.failure:
            new[root][name] = found
    for root in wanted:
        known[root].put(new[root])
    return facts


class _Known:
    """The facts of a project's files that are kept, each as long as what it rests on is the same."""

    def __init__(self, root: Path, code: Code, imports: Imports, cache: Cache) -> None:
        self._code = code
        self._imports = imports
        self._cache = cache
        self._key = digest(b"rests", encoded(str(root)))
        self._signs: dict[str, bytes] = {}
        self._rests: dict[str, list[str]] = {}

    def get(self, names: Iterable[str]) -> dict[str, Facts]:
        """Those that hold of some files."""
        self._rests = _rests(self._cache.get([self._key]).get(self._key))
        wanted = [name for name in names if name in self._rests]
        self._imports.read(sorted({one for name in wanted for one in self._rests[name]}))
        keys = {name: self._facts_key(name) for name in wanted}
        before = self._cache.get(keys.values())
        found = {name: Facts.decode(before[key]) for name, key in keys.items() if key in before}
        return {name: facts for name, facts in found.items() if facts is not None}

    def put(self, facts: Mapping[str, Facts]) -> None:
        """Keep those of some files."""
        if not facts or not self._cache.remembers:
            return
        used = sorted({one for found in facts.values() for one in found.rests})
        stale = {one for one in used if self._code.changed(one)}
        facts = {name: found for name, found in facts.items() if stale.isdisjoint(found.rests)}
        self._imports.read(used)
        self._rests.update({name: sorted(found.rests) for name, found in facts.items()})
        numbers = {name: i for i, name in enumerate(sorted(set().union(*self._rests.values())))}
        rests = {name: [numbers[one] for one in found] for name, found in self._rests.items()}
        values = {self._facts_key(name): found.encode() for name, found in facts.items()}
        values[self._key] = json.dumps({"names": list(numbers), "rests": rests})
        self._cache.put(values)

    def _facts_key(self, name: str) -> bytes:
        kinds = " ".join(engine.listened()).encode()
        rests = (self._sign(one) for one in self._rests[name])
        stated = repr((self._code.devices(name), self._code.torch[0])).encode()
        return digest(b"facts", kinds, stated, encoded(name), b"".join(rests))

    def _sign(self, name: str) -> bytes:
        if name not in self._signs:
            self._signs[name] = self._imports.sign(name)
        return self._signs[name]


def _rests(text: str | None) -> dict[str, list[str]]:
    """The files that the facts of each file rest on; empty for what is no such text."""
    try:
        kept = json.loads(text or "")
        names = [str(name) for name in kept["names"]]
        return {name: [names[one] for one in found] for name, found in kept["rests"].items()}
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return {}


def project(root: Path, settings: Settings, named: Iterable[Path], cache: Cache) -> Code:
    """A project, of whose files that did not change the contents are known."""
    index = Index(root if root.is_dir() else root.parent)
    index.load(cache)
    return Code.of(root, settings, named, index)


def cache_of(root: Path, settings: Settings) -> Cache:
    """What was computed of a project's files before; to be closed."""
    return Cache(settings.cache(root))


def alone_known(code: Code, root: Path, name: str, cache: Cache) -> Told:
    """What is known of one file of a project, with what it imports."""
    return interpreted({root: [name]}, {root: code}, {root: cache})[root][name]
