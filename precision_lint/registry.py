"""Finds the rules by package name, validates them, and never names one."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING

from precision_lint.api import Applicability, Rule, Severity

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

PACKAGE = "precision_lint.rules"
GROUP = "precision_lint.rules"
"""Group of the entry points by which other distributions name a package of rules."""
OTHERS = "789"
"""First digits of the codes that are left to rules of other distributions."""
SECTIONS = (
    "What it flags",
    "Why it breaks",
    "Example",
    "Fix safety",
    "How to silence",
    "Sources",
)
ENGINE_CODES = {
    "MP001": "unreadable-file",
    "MP002": "syntax-error",
    "MP003": "rule-crash",
    "MP004": "unused-suppression",
    "MP005": "misstated-fact",
}
"""Codes of the engine's own diagnostics; rules start at MP101."""


class InvalidRule(Exception):
    """A rule that breaks the contract; the text is one line ``file:line: what; what to do``."""


@dataclass(frozen=True)
class Doc:
    """A rule's documentation: its summary line and its sections, in fixed order."""

    summary: str
    sections: dict[str, str]


@dataclass(frozen=True)
class Entry:
    """What a run asks of a rule before it finds something; ``stamp`` changes with its module."""

    code: str
    name: str
    aliases: Sequence[str]
    preview: bool
    listens: Sequence[str]
    stamp: str

    @classmethod
    def of(cls, rule: type[Rule]) -> Entry:
        module = Path(str(sys.modules[rule.__module__].__file__))
        return cls(
            rule.code, rule.name, rule.aliases, rule.preview, rule.listens, _stamp(module)
        )  # fmt: skip


def document(rule: type[Rule]) -> Doc:
    """Split a rule's docstring into its summary and its sections."""
    import inspect  # late: only who loads rules needs it

    text = inspect.cleandoc(rule.__doc__ or "")
    head, *rest = re.split(r"^## +(.+)$", text, flags=re.MULTILINE)
    titles, bodies = rest[::2], rest[1::2]
    sections = {t.strip(): b.strip() for t, b in zip(titles, bodies, strict=True)}
    return Doc(head.strip(), sections)


def _where(rule: type[Rule]) -> str:
    import inspect

    try:
        return f"{inspect.getsourcefile(rule)}:{inspect.getsourcelines(rule)[1]}"
    except (OSError, TypeError):
        return rule.__qualname__


def validate(rule: type[Rule], module: ModuleType) -> None:
    """Refuse a malformed rule with one line that names its place."""

    def refuse(what: str) -> None:
        raise InvalidRule(f"{_where(rule)}: {what}")

    for attribute in ("code", "name", "severity", "applicability", "listens"):
        if not hasattr(rule, attribute):
            refuse(f"rule {rule.__name__} has no {attribute}; set it on the class")
    if not re.fullmatch(r"MP[1-9]\d{2}", str(rule.code)):
        refuse(f"code is {rule.code!r}; write MP and three digits from MP101 on")
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", str(rule.name)):
        refuse(f"name is {rule.name!r}; write the hazard in kebab-case")
    stem = module.__name__.rpartition(".")[2]
    expected = f"{rule.code.lower()}_{rule.name.replace('-', '_')}"
    if stem != expected:
        refuse(f"module is named {stem}; rename it to {expected}")
    for what in _mistyped(rule):
        refuse(what)
    doc = document(rule)
    if not doc.summary:
        refuse("docstring has no summary line; say what is flagged in its first line")
    if tuple(doc.sections) != SECTIONS:
        refuse(f"docstring sections are {', '.join(doc.sections)}; write {', '.join(SECTIONS)}")


def _mistyped(rule: type[Rule]) -> Iterator[str]:
    """Attributes of a rule that are not of the kind they have to be."""
    if not isinstance(rule.severity, Severity):
        yield f"severity is {rule.severity!r}; write a Severity"
    if rule.applicability is not None and not isinstance(rule.applicability, Applicability):
        yield f"applicability is {rule.applicability!r}; write an Applicability or None"
    if not rule.listens or not all(isinstance(kind, str) for kind in rule.listens):
        yield f"listens is {rule.listens!r}; name the kinds of events it puts into words"
    if rule.check is Rule.check:
        yield "check is not defined; define it to yield findings"


def _module(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except SyntaxError as error:
        where, what = f"{error.filename}:{error.lineno}", error.msg
    except Exception as error:
        import traceback

        path = _origin(name)
        frames = traceback.extract_tb(error.__traceback__)
        where = next((f"{path}:{f.lineno}" for f in frames[::-1] if f.filename == path), path)
        what = " ".join(f"{type(error).__name__}: {error}".split())
    raise InvalidRule(f"{where}: cannot be imported ({what}); repair the module")


def _origin(name: str) -> str:
    """The file of a module, or its name where that cannot be told."""
    try:
        spec = importlib.util.find_spec(name)
    except Exception:  # what finds it imports the packages around it
        spec = None
    return str(spec.origin if spec else name)


def load(
    package: str = PACKAGE, taken: Mapping[str, type[Rule]] = MappingProxyType({})
) -> dict[str, type[Rule]]:
    """All rules of a package by code, in order of code; ``taken`` are those of other packages."""
    import pkgutil

    try:
        root = importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise InvalidRule(f"{package} cannot be imported ({error}); install the project") from None
    found: dict[str, type[Rule]] = {}
    for info in pkgutil.iter_modules(root.__path__):
        module = _module(f"{package}.{info.name}")
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, type)
            and issubclass(value, Rule)
            and value.__module__ == module.__name__
        ]
        if len(own) != 1:
            raise InvalidRule(f"{module.__file__}:1: has {len(own)} rules; write one a module")
        rule = own[0]
        validate(rule, module)
        for other in (*taken.values(), *found.values()):
            names = {other.name, *other.aliases}
            if rule.code == other.code or not names.isdisjoint({rule.name, *rule.aliases}):
                raise InvalidRule(
                    f"{_where(rule)}: code or name is taken by {_where(other)}; take another"
                )
        found[rule.code] = rule
    return dict(sorted(found.items()))


def _external(entry: EntryPoint, taken: Mapping[str, type[Rule]]) -> dict[str, type[Rule]]:
    """The rules of a package that another distribution names."""
    by = f" of {entry.dist.name} {entry.dist.version}" if entry.dist else ""
    rules_by = f'entry point "{entry.name}"{by}'
    remedy = "repair or uninstall that"
    try:
        package = entry.load()
    except (Exception, SystemExit) as error:
        what = " ".join(f"{type(error).__name__}: {error}".split())
        what = f"{entry.value} cannot be imported ({what})"
        raise InvalidRule(f"{rules_by}: {what}; {remedy}") from None
    if not (isinstance(package, ModuleType) and hasattr(package, "__path__")):
        raise InvalidRule(f"{rules_by}: {entry.value} is no package of rules; {remedy}")
    found = load(package.__name__, taken)
    for code, rule in found.items():
        if code[2] not in OTHERS:
            what = f"code is {code}; those below MP{OTHERS[0]}00 ship with precision-lint"
            raise InvalidRule(f"{_where(rule)}: {what}, take another")
    return found


@functools.cache
def rules() -> dict[str, type[Rule]]:
    """The rules that ship and those of other installed distributions, by code."""
    from importlib.metadata import entry_points

    found = load()
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        found |= _external(entry, found)
    return dict(sorted(found.items()))


def ships(rule: type[Rule]) -> bool:
    """Whether a rule comes with precision-lint itself."""
    return rule.__module__.startswith(f"{PACKAGE}.")


@functools.cache
def entries() -> dict[str, Entry]:
    """What there is to know of the rules, by code, without importing them again for it.

    It is remembered beside the bytecode of their package, and as long as that would be valid.
    """
    if _others():
        return {code: Entry.of(rule) for code, rule in rules().items()}
    package = importlib.import_module(PACKAGE)
    file = _catalogue(package)
    stamps = sorted(_stamp(Path(entry.path)) for entry in os.scandir(next(iter(package.__path__)))
                    if entry.name.endswith(".py"))  # fmt: skip
    stamps += [_stamp(Path(str(sys.modules[Rule.__module__].__file__))), _stamp(Path(__file__))]
    found = _remembered(file, stamps)
    if found is None:
        found = [Entry.of(rule) for rule in rules().values()]
        _remember(file, {"stamps": stamps, "rules": [astuple(entry) for entry in found]})
    return {entry.code: entry for entry in found}


def _stamp(path: Path) -> str:
    status = path.stat()
    return f"{path.name} {status.st_size} {status.st_mtime_ns}"


def _catalogue(package: ModuleType) -> Path | None:
    """Where the entries of a package of rules are remembered; None: nowhere."""
    try:
        cached = importlib.util.cache_from_source(str(package.__file__))
    except NotImplementedError:
        return None
    return Path(cached).with_name("catalogue.json")


def _remembered(file: Path | None, stamps: list[str]) -> list[Entry] | None:
    try:
        known = json.loads(file.read_bytes()) if file else {}
        return [Entry(*one) for one in known["rules"]] if known["stamps"] == stamps else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _remember(file: Path | None, known: Mapping[str, object]) -> None:
    if file is None or sys.dont_write_bytecode:
        return
    mine = file.with_name(f"{file.name}.{os.getpid()}")
    try:
        mine.write_text(json.dumps(known), "utf8")
        mine.replace(file)
    except OSError:  # a directory that others own: the next run imports the rules again
        return


def _others() -> bool:
    """Whether another distribution brings rules, as its entry points say.

    Reading these takes a tenth of the time that the import of ``importlib.metadata`` takes.
    """
    section = f"[{GROUP}]".encode()
    if any(hasattr(f, "find_distributions") and f is not PathFinder for f in sys.meta_path):
        return True  # distributions that are in no directory of the path
    for place in sys.path:
        try:
            with os.scandir(place or ".") as listing:
                found = [e.path for e in listing if e.name.endswith((".dist-info", ".egg-info"))]
        except NotADirectoryError:  # an archive, which may hold distributions
            return True
        except OSError:
            continue
        for path in found:
            try:
                if section in Path(path, "entry_points.txt").read_bytes():
                    return True
            except OSError:
                continue
    return False


@functools.cache
def names() -> dict[str, str]:
    """Rule and engine codes by name; a rule has its aliases besides."""
    engine = {name: code for code, name in ENGINE_CODES.items()}
    return engine | {
        name: code for code, rule in entries().items() for name in (rule.name, *rule.aliases)
    }


def previews() -> frozenset[str]:
    """Codes of the rules that are on in preview only."""
    return frozenset(code for code, rule in entries().items() if rule.preview)


def listened() -> tuple[str, ...]:
    """The kinds of events that rules listen to."""
    return tuple(sorted({kind for rule in entries().values() for kind in rule.listens}))


def only_previews(selector: str) -> bool:
    """Whether all codes that a selector names are in preview."""
    return previews().issuperset(known(selector))


def known(selector: str) -> list[str]:
    """Codes that a selector names: a code, a prefix such as ``MP3``, a name, or ``ALL``."""
    codes = [*ENGINE_CODES, *entries()]
    if selector == "ALL":
        return codes
    if selector in names():
        return [names()[selector]]
    return [code for code in codes if code.startswith(selector)] if selector[:2] == "MP" else []
