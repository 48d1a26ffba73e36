"""``precision-lint baseline create|update|prune``: putting findings off, and taking them up."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precision_lint import shell
from precision_lint.display import printable

if TYPE_CHECKING:
    from precision_lint.baseline import Baseline
    from precision_lint.runner import Result


@click.group("baseline", no_args_is_help=False)
def commands() -> None:
    """Put off the findings of today: only new ones are reported.

    A baseline is a file that lists findings by rule and expression, with a count for each file:
    code may move without making them new. `baseline = "FILE"` in the configuration, or --baseline
    FILE, makes check use it; without either it is precision-lint-baseline.json here.
    """


def _command(function: Callable[..., int]) -> click.Command:
    run = shell.run_options(function)
    command = commands.command(cls=shell.Sectioned)
    return command(click.argument("paths", nargs=-1, metavar="[PATHS]...")(run))


@_command
def create(**options: Any) -> int:
    """Write a baseline of everything that check reports now."""
    from precision_lint import baseline
    from precision_lint.config import ConfigError

    file, said, result = _run(options, new=True)
    if file.exists():
        raise ConfigError(f"{file}: is there already; `precision-lint baseline update` renews it")
    made = baseline.Baseline()
    _add(made, file, result)
    if not said:
        line = (
            f'put `baseline = "{file.name}"` into the configuration, or give --baseline {file.name}'
        )
        shell.tell(line)
    return _save(made, file, result, "")


@_command
def update(**options: Any) -> int:
    """Put off what is new in PATHS as well, and remove what is gone."""
    return _renew(options, add=True)


@_command
def prune(**options: Any) -> int:
    """Remove what is gone from PATHS; nothing is added."""
    return _renew(options, add=False)


def _renew(options: dict[str, Any], add: bool) -> int:
    from precision_lint import baseline

    file, _, result = _run(options, new=False)
    made = baseline.load(file)
    before = made.total
    for name in [name for name in made.files if not (file.parent / name).is_file()]:
        del made.files[name]
    for filename, gone in result.gone.items():
        counts = made.files[baseline.name(file, Path.cwd() / filename)]
        for key, count in gone.items():
            counts[key] -= count
            if not counts[key]:
                del counts[key]
    left = made.total
    if add:
        _add(made, file, result)
    return _save(made, file, result, f": {made.total - left:,} added, {before - left:,} removed")


def _run(options: dict[str, Any], new: bool) -> tuple[Path, bool, Result]:
    """The baseline's file, whether anybody named it, and what a run finds that it does not hold."""
    from precision_lint import progress, runner
    from precision_lint.baseline import NAME
    from precision_lint.config import Settings

    paths = shell.existing(options.pop("paths"))
    config, isolated = options.pop("config"), options.pop("isolated")
    resolver = shell.resolver(options, config, isolated)
    here = resolver(Path.cwd())
    file = here.baseline or Path.cwd() / NAME

    @functools.cache
    def settings(directory: Path) -> Settings:
        return replace(resolver(directory), baseline=None if new else file)

    with progress.shown():
        result = runner.check(paths, settings, workers=here.jobs)
    for line in (*result.errors, *result.warnings):
        shell.tell(line)
    return file, here.baseline is not None, result


def _add(made: Baseline, file: Path, result: Result) -> None:
    """Hold what a run reports, all but why files could not be linted."""
    from precision_lint import baseline, fingerprint
    from precision_lint.config import ALWAYS

    for diagnostic in result.found:
        source = result.sources.get(diagnostic.filename)
        if source and diagnostic.code not in ALWAYS:
            name = baseline.name(file, Path.cwd() / diagnostic.filename)
            key = fingerprint.key(diagnostic, source)
            made.add(name, key, baseline.shown(diagnostic, source))


def _save(made: Baseline, file: Path, result: Result, difference: str) -> int:
    """Write it, and say what it holds; 2 if something could not be linted."""
    from precision_lint import baseline
    from precision_lint.report import FORMATS

    if result.unread:
        shell.echo(FORMATS["concise"](result.unread, {}), sys.stderr)
    baseline.save(made, file)
    files = sum(bool(counts) for counts in made.files.values())
    held = f"{made.total:,} finding{'s' * (made.total != 1)}"
    shell.echo(
        f"{printable(os.path.relpath(file))} holds {held} of {files:,} file{'s' * (files != 1)}{difference}.",
        sys.stdout,
    )
    return 2 if result.errors or result.unread else 0
