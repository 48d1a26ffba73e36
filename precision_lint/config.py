"""``[tool.precision-lint]`` and precision-lint.toml become frozen ``Settings``.

The nearest ancestor directory of a file that configures the tool decides for that file: its
``precision-lint.toml``, else its ``.precision-lint.toml``, else its ``pyproject.toml`` if that has
our table.  Nothing is merged between directories unless a file says so (``extend``); the command
line overrides what was found.
"""

from __future__ import annotations

import functools
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from precision_lint import registry
from precision_lint.api import Confidence, Severity
from precision_lint.cache import DIRECTORY
from precision_lint.patterns import Patterns, invalid
from precision_lint.precision.modes import MODES
from precision_lint.report import FORMATS

NAMES = ("precision-lint.toml", ".precision-lint.toml", "pyproject.toml")
FULL = len("MP301")
ALWAYS = frozenset(registry.ENGINE_CODES) - {"MP004", "MP005"}
"""Codes that ``select`` need not name: a file that could not be linted is never passed over."""
CRASH = "MP003"
"""The one code that nothing turns off."""
DEFAULT_EXCLUDE = (
    ".bzr",
    ".direnv",
    ".eggs",
    ".git",
    ".git-rewrite",
    ".hg",
    ".ipynb_checkpoints",
    ".mypy_cache",
    ".nox",
    DIRECTORY,
    ".pants.d",
    ".pyenv",
    ".pytest_cache",
    ".pytype",
    ".ruff_cache",
    ".svn",
    ".tox",
    ".venv",
    ".vscode",
    "__pycache__",
    "__pypackages__",
    "_build",
    "buck-out",
    "build",
    "dist",
    "node_modules",
    "site-packages",
    "venv",
)


class ConfigError(Exception):
    """A mistake in a configuration; the text is one line ``where: what; what to do``."""


def close(word: str, known: Iterable[str], otherwise: str) -> str:
    """What to do about an unknown word: take the closest known one, or ``otherwise``.

    A number is no spelling: another rule's code is not what was meant.
    """
    import difflib  # imported late: only a mistake needs it

    if re.fullmatch(r"MP\d{3}", word):
        return otherwise
    match = difflib.get_close_matches(word, list(known), n=1)
    return f'did you mean "{match[0]}"?' if match else otherwise


@dataclass(frozen=True)
class Place:
    """A configuration file, for messages that name the row of a mistake."""

    file: Path
    text: str = ""

    def of(self, key: str, word: str = "") -> str:
        """``file:row`` of a key of our table, or of a quoted word behind it.

        Only ``file`` where the text does not show it.
        """
        ours = self.text.find("precision-lint") if self.file.name == "pyproject.toml" else 0
        name = rf"[\"']?{re.escape(key)}[\"']?\s*"
        spelled = re.compile(rf"^\s*{name}[.=]|[\[.{{,]\s*{name}[\].=]", re.MULTILINE)
        found = spelled.search(self.text, max(ours, 0))
        if found is None:
            return str(self.file)
        inside = re.compile(rf"[\"']{re.escape(word)}[\"']").search(self.text, found.end() - 1)
        at = inside.end() if word and inside else found.end()
        return f"{self.file}:{self.text.count(chr(10), 0, at) + 1}"


@dataclass(frozen=True)
class Override:
    """What is stated for the files that patterns match; None: nothing of that kind."""

    patterns: Patterns
    precision: tuple[str, ...] | None = None
    device: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Settings:
    """How one file is linted.

    ``select``, ``extend_select`` and ``ignore`` hold selectors: a code, a prefix such as ``MP3``,
    a rule's name, or ``ALL``.  The longer prefix wins; at equal length ``ignore`` wins.  ``base``
    holds the codes that an outer layer (the file, under the command line) has decided, which count
    where ``select`` is None.
    """

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    base: frozenset[str] = field(default_factory=lambda: frozenset(registry.known("ALL")))
    confidence: Confidence = Confidence.LIKELY
    fail_on: Severity = Severity.WARNING
    exclude: Patterns = field(default_factory=lambda: Patterns(Path.cwd(), DEFAULT_EXCLUDE))
    extend_exclude: tuple[Patterns, ...] = ()
    force_exclude: bool = False
    respect_gitignore: bool = True
    per_file_ignores: tuple[tuple[Patterns, bool, frozenset[str]], ...] = ()
    """Patterns, whether they are negated (``!pattern``), and the codes ignored where they hold."""
    preview: bool = False
    """Whether rules in preview are on, where the selectors name them."""
    unsafe_fixes: bool = False
    output_format: str = "text"
    jobs: int | None = None
    """Worker processes at most; None: one a core."""
    cache_dir: Path | None = None
    """Where to remember what files say to each other; None: in the project's root."""
    no_cache: bool = False
    baseline: Path | None = None
    """The file that lists findings which are put off."""
    file: Path | None = None
    """The configuration file that these settings come from; None: there is none."""
    emptied_by: str = ""
    """``file:row`` that turned the last rule off, if none is on."""
    torch_version: str | None = None
    """The least torch that the code has to run on; None: as the project's metadata say."""
    precision: tuple[str, ...] | None = None
    """The precision modes that the code is run in; none of them: float32 only; None: not stated."""
    stated_by: str = ""
    """The option by which ``precision`` is stated; empty: none, but ``file``."""
    device: tuple[str, ...] | None = None
    """The devices that the code has to run on, first the one it runs on mostly; None: not stated."""
    overrides: tuple[Override, ...] = ()
    """What is stated for some files; the last that matches and speaks of it counts."""

    @functools.cached_property
    def selected(self) -> frozenset[str]:
        """The codes that the selectors name, those in preview among them."""

        def depth(selector: str) -> int:
            if selector == "ALL":
                return 0
            return len(selector) if selector.startswith("MP") else FULL

        codes = set(self.base if self.select is None else ALWAYS)
        chosen = (*(self.select or ()), *self.extend_select)
        for level in range(FULL + 1):
            codes.update(*(registry.known(s) for s in chosen if depth(s) == level))
            codes.difference_update(*(registry.known(s) for s in self.ignore if depth(s) == level))
        return frozenset(codes | {CRASH})

    @property
    def without_rules(self) -> bool:
        """Whether the selectors leave no rule on."""
        return self.selected <= ALWAYS

    @functools.cached_property
    def codes(self) -> frozenset[str]:
        """The codes that are on."""
        return self.selected if self.preview else self.selected - registry.previews()

    def codes_for(self, path: Path) -> frozenset[str]:
        """The codes that are on in the file at this absolute path."""
        codes = self.codes
        for patterns, negated, ignored in self.per_file_ignores:
            if (patterns.verdict(path) is True) is not negated:
                codes -= ignored - {CRASH}
        return codes

    def cache(self, root: Path) -> Path | None:
        """The directory of the cache of a project, given its root; None: there is to be none."""
        if self.no_cache:
            return None
        return self.cache_dir or (root if root.is_dir() else root.parent) / DIRECTORY

    def modes_for(self, path: Path) -> tuple[str, ...] | None:
        """The modes stated for the file at this absolute path; None: none are stated."""
        said = (one.precision for one in self._overriding(path) if one.precision is not None)
        return next(said, self.precision)

    def devices_for(self, path: Path) -> tuple[str, ...] | None:
        """The devices stated for the file at this absolute path; None: none are stated."""
        said = (one.device for one in self._overriding(path) if one.device is not None)
        return next(said, self.device)

    def _overriding(self, path: Path) -> Iterator[Override]:
        """The overrides of a file, the last first."""
        return (o for o in reversed(self.overrides) if o.patterns.verdict(path) is True)

    @property
    def exclusions(self) -> tuple[Patterns, ...]:
        """Patterns of the files and directories to skip."""
        return (self.exclude, *self.extend_exclude)


def _selectors(selectors: Iterable[str], where: str | Place, key: str = "") -> tuple[str, ...]:
    for selector in selectors:
        if not registry.known(selector):
            where = where.of(key, selector) if isinstance(where, Place) else where
            words = ["ALL", *registry.ENGINE_CODES, *registry.rules(), *registry.names()]
            hint = close(selector, words, "`precision-lint rules` lists codes and names")
            raise ConfigError(f'{where}: unknown rule "{selector}"; {hint}')
    return tuple(selectors)


def _patterns(base: Path, globs: Iterable[str], where: str | Place, key: str = "") -> Patterns:
    patterns = Patterns(base, tuple(globs))
    for glob in patterns.globs:
        if why := invalid(glob):
            where = where.of(key, glob) if isinstance(where, Place) else where
            raise ConfigError(f"{where}: {why}; write the pattern as in .gitignore")
    return patterns


@dataclass(frozen=True)
class Overrides:
    """What the command line says; None or empty where it says nothing."""

    select: tuple[str, ...] | None = None
    extend_select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()
    confidence: Confidence | None = None
    fail_on: Severity | None = None
    exclude: tuple[str, ...] | None = None
    extend_exclude: tuple[str, ...] = ()
    force_exclude: bool | None = None
    respect_gitignore: bool | None = None
    preview: bool | None = None
    unsafe_fixes: bool | None = None
    output_format: str | None = None
    jobs: int | None = None
    cache_dir: Path | None = None
    no_cache: bool | None = None
    baseline: Path | None = None
    precision: tuple[str, ...] | None = None
    device: tuple[str, ...] | None = None
    torch_version: str | None = None

    def apply(self, settings: Settings) -> Settings:
        """These settings with what the command line says on top."""
        names = (
            "confidence", "fail_on", "force_exclude", "respect_gitignore", "unsafe_fixes",
            "output_format", "jobs", "no_cache", "preview",
        )  # fmt: skip
        said = {name: getattr(self, name) for name in names}
        values: dict[str, Any] = {name: value for name, value in said.items() if value is not None}
        here = Path.cwd()
        for name in ("cache_dir", "baseline"):
            if (path := getattr(self, name)) is not None:
                values[name] = here / path
        if "cache_dir" in values:  # the user's own link may be followed
            values["cache_dir"] = values["cache_dir"].resolve()
        values |= self._stated(settings)
        if self.exclude is not None:
            values["exclude"] = _patterns(here, self.exclude, "--exclude")
        if self.extend_exclude:
            extra = _patterns(here, self.extend_exclude, "--extend-exclude")
            values["extend_exclude"] = (*settings.extend_exclude, extra)
        if self.select is not None or self.extend_select or self.ignore:
            values["base"] = settings.selected
            values["select"] = self.select and _selectors(self.select, "--select")
            values["extend_select"] = _selectors(self.extend_select, "--extend-select")
            values["ignore"] = _selectors(self.ignore, "--ignore")
            if not settings.without_rules:
                values["emptied_by"] = ""  # options are meant
        return replace(settings, **values)

    def _stated(self, settings: Settings) -> dict[str, Any]:
        """What is said of how the code is run; it holds for all files."""
        values: dict[str, Any] = {}
        overrides = settings.overrides
        if self.precision is not None:
            values["precision"] = named("--precision", self.precision, _modes, REFERENCE_AND_MODES)
            values["stated_by"] = "--precision"
            overrides = tuple(replace(one, precision=None) for one in overrides)
        if self.device is not None:
            values["device"] = named("--device", self.device, _devices, DEVICES)
            overrides = tuple(replace(one, device=None) for one in overrides)
        if self.torch_version is not None:
            try:
                values["torch_version"] = _version(self.torch_version)
            except ValueError:
                what = (
                    f'--torch-version: "{self.torch_version}" is no version; write one such as 2.4'
                )
                raise ConfigError(what) from None
        return values | {"overrides": overrides} if values else values


def _strings(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise ValueError
    return tuple(value)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _positive(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str) or not value or "\0" in value:
        raise ValueError
    return value


def _version(value: Any) -> str:
    if not isinstance(value, str) or not re.fullmatch(VERSION, value):
        raise ValueError
    return value.removeprefix(">=").strip()


def _format(value: Any) -> str:
    if not isinstance(value, str) or value not in FORMATS:
        raise ValueError
    return value


def _ignores(value: Any) -> dict[str, tuple[str, ...]]:
    if not isinstance(value, dict):
        raise ValueError
    return {pattern: _strings(selectors) for pattern, selectors in value.items()}


def _one_of(words: Iterable[str]) -> str:
    return "one of " + ", ".join(f'"{word}"' for word in words)


VERSION = r"(>= *)?\d+(\.\d+){1,2}"
"""What ``torch-version`` may be."""
DEVICES = ("cuda", "cpu", "mps", "xpu")
"""What ``device`` may name."""
REFERENCE_AND_MODES = ("float32", *MODES)
"""What ``precision`` may name; float32 is always looked at and states nothing more."""


def _modes(value: Any) -> tuple[str, ...]:
    """The modes besides float32, each once, in the order of the table."""
    names = set(_strings(value))
    if not names.issubset(REFERENCE_AND_MODES):
        raise ValueError
    return tuple(name for name in MODES if name in names)


def _devices(value: Any) -> tuple[str, ...]:
    """One device, or several in the order in which they are named, each once."""
    names = tuple(dict.fromkeys([value] if isinstance(value, str) else _strings(value)))
    if not names or not set(names).issubset(DEVICES):
        raise ValueError
    return names


def named(
    option: str,
    names: Iterable[str],
    convert: Callable[[Any], tuple[str, ...]],
    known: Sequence[str],
) -> tuple[str, ...]:
    """What an option names; raises ConfigError for a name that is not known."""
    names = list(names)
    try:
        return convert(names)
    except ValueError:
        wrong = next((name for name in names if name not in known), "")
        hint = close(wrong, known, f"write {_one_of(known)}")
        what = option.removeprefix("--").replace("precision", "mode")
        raise ConfigError(f'{option}: unknown {what} "{wrong}"; {hint}') from None


def _overrides(value: Any) -> tuple[tuple[tuple[str, ...], Any, Any], ...]:
    """Tables with a path, or several, and the modes or the devices of the files there."""
    if not isinstance(value, list):
        raise ValueError
    found = []
    for table in value:
        if not isinstance(table, dict) or "path" not in table or len(table) < 2:
            raise ValueError
        if not table.keys() <= {"path", "precision", "device"}:
            raise ValueError
        path = table["path"]
        paths = _strings([path] if isinstance(path, str) else path)
        modes = _modes(table["precision"]) if "precision" in table else None
        devices = _devices(table["device"]) if "device" in table else None
        found.append((paths, modes, devices))
    return tuple(found)


KEYS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "select": ("a list of strings", _strings),
    "extend-select": ("a list of strings", _strings),
    "ignore": ("a list of strings", _strings),
    "confidence": (_one_of(level.value for level in Confidence), Confidence),
    "fail-on": (_one_of(level.value for level in Severity), Severity),
    "exclude": ("a list of strings", _strings),
    "extend-exclude": ("a list of strings", _strings),
    "force-exclude": ("true or false", _boolean),
    "respect-gitignore": ("true or false", _boolean),
    "per-file-ignores": ("a table from patterns to lists of strings", _ignores),
    "preview": ("true or false", _boolean),
    "unsafe-fixes": ("true or false", _boolean),
    "output-format": (_one_of(FORMATS), _format),
    "jobs": ("a positive integer", _positive),
    "cache-dir": ("a path", _path),
    "torch-version": ('a version such as "2.4"', _version),
    "precision": (f"a list of modes, each {_one_of(REFERENCE_AND_MODES)}", _modes),
    "device": (f"one or a list of {', '.join(DEVICES)}", _devices),
    "overrides": (
        "tables with the keys path (a pattern or a list of them) and precision (a list of modes, "
        f"each {_one_of(REFERENCE_AND_MODES)}), device (one or a list of {', '.join(DEVICES)}) or both",
        _overrides,
    ),
    "baseline": ("a path", _path),
    "extend": ("a path", _path),
}
"""Every key with what its value must be, and the function that checks it."""


def from_table(table: Any, place: Place, base: Path, extended: tuple[Path, ...] = ()) -> Settings:
    """Settings from the TOML table of a file, whose patterns and paths are relative to ``base``.

    ``extended`` are the files that led here by ``extend``.
    """
    if not isinstance(table, dict):
        where = place.of("precision-lint")
        raise ConfigError(f"{where}: precision-lint is not a table; write [tool.precision-lint]")
    values = _values(table, place)
    for key in ("select", "extend_select", "ignore"):
        _selectors(values.get(key, ()), place, key.replace("_", "-"))
    for key in ("cache_dir", "baseline"):
        if key in values:
            values[key] = base / values[key]
    parent = None
    if "extend" in values:
        parent = _extended(values.pop("extend"), place, base, extended)
    if parent is None or "exclude" in values or parent.exclude.globs == DEFAULT_EXCLUDE:
        globs = values.get("exclude", DEFAULT_EXCLUDE)
        values["exclude"] = _patterns(base, globs, place, "exclude")
    extra = _patterns(base, values.get("extend_exclude", ()), place, "extend-exclude")
    values["extend_exclude"] = (*(parent.extend_exclude if parent else ()), extra)
    ignores = []
    for glob, named in values.get("per_file_ignores", {}).items():
        key, negated = "per-file-ignores", glob.startswith("!")
        codes = (registry.known(selector) for selector in _selectors(named, place, key))
        patterns = _patterns(base, [glob[negated:]], place, key)
        ignores.append((patterns, negated, frozenset[str]().union(*codes)))
    if "per_file_ignores" in values or parent is None:
        values["per_file_ignores"] = tuple(ignores)
    if "overrides" in values:
        values["overrides"] = tuple(
            Override(_patterns(base, globs, place, "overrides"), modes, devices)
            for globs, modes, devices in values["overrides"]
        )
    values["file"] = place.file
    emptying = "select" if values.get("select") == () else "ignore"
    if emptying in values and not (parent and parent.without_rules):
        values["emptied_by"] = place.of(emptying)
    if parent is None:
        return Settings(**values)
    nothing = {"select": None, "extend_select": (), "ignore": (), "base": parent.selected}
    return replace(parent, **nothing | values)


def _values(table: dict[str, Any], place: Place) -> dict[str, Any]:
    """The values of a table by the names of settings, each converted to what it must be."""
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key not in KEYS:
            hint = close(key, KEYS, f"the keys are {', '.join(KEYS)}")
            raise ConfigError(f'{place.of(key)}: unknown key "{key}"; {hint}')
        expected, convert = KEYS[key]
        try:
            values[key.replace("-", "_")] = convert(value)
        except ValueError:
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            what = f'"{key}" is {shown}; write {expected}'
            raise ConfigError(f"{place.of(key)}: {what}") from None
    return values


def _extended(value: str, place: Place, base: Path, extended: tuple[Path, ...]) -> Settings:
    """Settings of the file that another one extends.

    What is relative in it is so to its own directory, or to ``base`` if that lies elsewhere.
    """
    file = place.file
    target = (file.parent / Path(value).expanduser()).resolve()
    chain = (*extended, file.resolve())
    if target in chain:
        raise ConfigError(f'{place.of("extend")}: "extend" leads back to {target}; remove it')
    try:
        own = target.parent if base.is_relative_to(target.parent) else base
        found = load(target, own, chain)
    except ConfigError as error:
        raise ConfigError(f"{error} (extended by {file})") from None
    if found is None:
        raise ConfigError(
            f"{place.of('extend')}: {target} has no [tool.precision-lint]; add the table"
        )
    return found


def _parse(file: Path, data: bytes) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        row = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{file}:{row}:1: is not UTF-8; save it as UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        what, _, place = str(error).partition(" (at ")
        at = re.search(r"line (\d+), column (\d+)", place)
        where = ":".join(at.groups()) if at else str(data.count(b"\n") + 1) + ":1"
        problem = what[:1].lower() + what[1:]
        raise ConfigError(f"{file}:{where}: {problem}; correct the TOML") from None
    except RecursionError:
        raise ConfigError(f"{file}: is nested too deeply; correct the TOML") from None


def load(file: Path, base: Path, extended: tuple[Path, ...] = ()) -> Settings | None:
    """Settings of one file; None if it is a pyproject.toml without our table.

    Patterns in the file are relative to the absolute directory ``base``; ``extended`` are the
    files that led here by ``extend``.
    """
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        what = getattr(error, "strerror", None) or error
        raise ConfigError(f"{file}: cannot be read ({what}); check the path") from None
    if file.name != "pyproject.toml":
        return from_table(_parse(file, data), Place(file, data.decode()), base, extended)
    # a pyproject that never names the tool costs no parse, and its mistakes are not ours
    tool = _parse(file, data).get("tool") if b"precision-lint" in data else None
    if b"[tool.precision_lint]" in data:
        row = data.count(b"\n", 0, data.index(b"[tool.precision_lint]")) + 1
        what = "[tool.precision_lint] is not read; write [tool.precision-lint]"
        raise ConfigError(f"{file}:{row}: {what}")
    if not isinstance(tool, dict) or "precision-lint" not in tool:
        return None
    return from_table(tool["precision-lint"], Place(file, data.decode()), base, extended)


class Resolver:
    """Which settings hold in a directory: the nearest configuration under the command line's.

    ``config`` is the one file to use for every directory (its patterns are relative to the working
    directory); ``isolated`` ignores every configuration file.
    """

    def __init__(
        self, overrides: Overrides | None = None, config: Path | None = None, isolated: bool = False
    ) -> None:
        self._overrides = overrides or Overrides()
        self._cache: dict[Path, Settings] = {}
        self._search = config is None and not isolated
        found = Settings() if config is None else load(config, Path.cwd())
        if found is None:
            raise ConfigError(f"{config}: has no [tool.precision-lint]; add the table")
        self._default = self._overrides.apply(found)

    def __call__(self, directory: Path) -> Settings:
        """The settings in this absolute directory."""
        if not self._search:
            return self._default
        if directory not in self._cache:
            self._cache[directory] = self._nearest(directory)
        return self._cache[directory]

    def _nearest(self, directory: Path) -> Settings:
        for name in NAMES:
            file = f"{directory}{os.sep}{name}"
            if os.path.isfile(file) and (found := load(Path(file), directory)) is not None:
                return self._overrides.apply(found)
        return self._default if directory.parent == directory else self(directory.parent)
