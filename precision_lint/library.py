"""precision-lint from Python: ``lint_source``, ``lint_paths`` and ``fix_source``.

Import them from ``precision_lint``.  They judge as the command line does, and print nothing.
"""

from __future__ import annotations

import io
import tokenize
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from precision_lint import runner
from precision_lint.api import Confidence, Diagnostic
from precision_lint.config import ConfigError, Overrides, Resolver
from precision_lint.jobs import Mode
from precision_lint.source import Failure, decode

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in typing from Python 3.11 on

Name = str | PathLike[str]


class Options(TypedDict, total=False):
    """What to look for, as the options of the same names on the command line say it."""

    select: Sequence[str] | str
    """Codes, prefixes, names or ALL of the rules that are on; in one text, commas part them."""
    ignore: Sequence[str] | str
    confidence: Confidence | str
    """The least confidence of a finding that is returned."""
    preview: bool
    """Whether rules in preview are on."""
    unsafe_fixes: bool
    """Whether `fix_source` applies unsafe fixes, too."""
    config: Name
    """The one configuration file to use."""
    isolated: bool
    """Whether to ignore configuration files."""
    precision: Sequence[str] | str
    """How the code is run: names of modes, such as ``amp-float16``; an empty list: in float32 only."""
    device: Sequence[str] | str
    """Where it is run, such as ``cuda``, the usual device first."""
    torch_version: str
    """The least torch that it runs with."""


@dataclass(frozen=True)
class FixedSource:
    """A text after its fixes.

    ``fixed``: the findings whose fix was applied, each where it was at that moment.  ``remaining``:
    what is found in ``text``.
    """

    text: str
    fixed: tuple[Diagnostic, ...]
    remaining: tuple[Diagnostic, ...]


def lint_source(
    source: str, filename: Name | None = None, **options: Unpack[Options]
) -> list[Diagnostic]:
    """The findings in a text, by row and column.

    With a ``filename``, which need not exist, the text is judged as that file of its project: other
    files are read, and the nearest configuration holds.  Without one the text stands alone: nothing
    else is read, no configuration either, and findings are said to be in ``-``.

    A text that does not parse gives one finding, MP002.  Raises ConfigError for a rule or a
    confidence that is not known, for any other value that an option cannot have, and for a mistake
    in a configuration file, and UnicodeEncodeError
    for a text that the encoding in its first lines does not hold.
    """
    return _judge(source, filename, Mode.CHECK, options).diagnostics


def fix_source(
    source: str, filename: Name | None = None, **options: Unpack[Options]
) -> FixedSource:
    """A text with its safe fixes, and with ``unsafe_fixes=True`` the unsafe ones too.

    No file is written.  For the arguments and what is raised, see `lint_source`; a text that does
    not parse comes back as it is.
    """
    result = _judge(source, filename, Mode.FIX, options)
    fixed = decode(result.stdin, "-")
    text = source if isinstance(fixed, Failure) or not result.fixed else fixed.text
    return FixedSource(text, tuple(result.fixed), tuple(result.diagnostics))


def lint_paths(
    paths: Iterable[Name] | Name, *, jobs: int = 1, **options: Unpack[Options]
) -> list[Diagnostic]:
    """The findings in files and directories, or in one, by file, row and column.

    No source is changed.

    ``jobs``: processes at most; several need ``if __name__ == "__main__":`` around the script.
    A file that cannot be read gives one finding, MP001.  Raises ConfigError as `lint_source` does,
    and for a path that does not exist.
    """
    if not isinstance(jobs, int) or isinstance(jobs, bool) or jobs < 1:
        raise ConfigError(f"jobs is {jobs!r}; write a positive integer")
    given = [paths] if isinstance(paths, (str, PathLike)) else paths
    result = runner.check([Path(path) for path in given], _resolver(**options), workers=jobs)
    if result.errors:
        raise ConfigError("\n".join(result.errors))
    return result.diagnostics


def _resolver(
    select: Sequence[str] | str | None = None,
    ignore: Sequence[str] | str = (),
    confidence: Confidence | str | None = None,
    preview: bool | None = None,
    unsafe_fixes: bool | None = None,
    config: Name | None = None,
    isolated: bool = False,
    precision: Sequence[str] | str | None = None,
    device: Sequence[str] | str | None = None,
    torch_version: str | None = None,
) -> Resolver:
    for name, value in (
        ("preview", preview),
        ("unsafe_fixes", unsafe_fixes),
        ("isolated", isolated),
    ):
        if value is not None and not isinstance(value, bool):
            raise ConfigError(f"{name} is {value!r}; write True or False")
    if config is not None and not isinstance(config, (str, PathLike)):
        raise ConfigError(f"config is {config!r}; write the path of a file")
    overrides = Overrides(
        select=None if select is None else _words("select", select),
        ignore=_words("ignore", ignore),
        confidence=None if confidence is None else _level(confidence),
        preview=preview,
        unsafe_fixes=unsafe_fixes,
        precision=None if precision is None else _words("precision", precision),
        device=None if device is None else _words("device", device),
        torch_version=None if torch_version is None else str(torch_version),
    )
    return Resolver(overrides, None if config is None else Path(config), isolated)


def _words(name: str, given: Sequence[str] | str) -> tuple[str, ...]:
    if not isinstance(given, str):
        if isinstance(given, Iterable) and all(isinstance(word, str) for word in given):
            return tuple(given)
        raise ConfigError(f"{name} is {given!r}; write codes or names, in one text or a list")
    return tuple(word for part in given.split(",") if (word := part.strip()))


def _level(given: Confidence | str) -> Confidence:
    try:
        return Confidence(given)
    except ValueError:
        levels = ", ".join(level.value for level in Confidence)
        raise ConfigError(f'confidence is "{given}"; write one of {levels}') from None


def _judge(source: str, filename: Name | None, mode: Mode, options: Options) -> runner.Result:
    if filename is not None and not isinstance(filename, (str, PathLike)):
        raise ConfigError(f"filename is {filename!r}; write the path of a file")
    if filename is None and "config" not in options:
        options = {**options, "isolated": True}
    path = None if filename is None else Path(filename)
    resolver = _resolver(**options)
    return runner.check_stdin(_encoded(source), path, resolver, mode=mode, alone=path is None)


def _encoded(source: str) -> bytes:
    """The bytes that a file with this text would have."""
    data = source.encode()
    try:
        return source.encode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
    except SyntaxError:  # no such encoding, which linting says
        return data
