"""``precision-lint init``: which modes a project's code shows, and their place in the configuration."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from precision_lint import shell
from precision_lint.display import printable

if TYPE_CHECKING:
    from precision_lint.config import Resolver
    from precision_lint.evidence import Evidence, Shown
    from precision_lint.stating import Said

LISTED = 10
"""Places of one mode that are listed."""
WIDTH = 88
"""Characters of a line of code that are shown."""
NOTHING = (
    "Nothing here shows in which mode the code is run. If it is run in half precision, say so:\n"
    "  precision-lint init --precision amp-float16    autocast in float16 (or amp-bfloat16)\n"
    "  precision-lint init --precision float16        weights and inputs in float16 (or bfloat16)\n"
    "  precision-lint init --precision float32        in full precision only"
)


@click.command("init")
@click.argument("path", default=".", type=Path, shell_complete=shell.complete_files)
@click.option(
    "--check",
    "checks",
    is_flag=True,
    help="Write nothing; exit with 1 when the code shows a mode that the configuration lacks.",
)
@click.option(
    "--suggested/--no-suggested",
    default=True,
    help="Count what options, conditions and settings suggest, not only what the code proves.",
)
@shell.list_option("--precision", "State these modes instead of those that are shown.", "MODES")
@click.option(
    "-y", "--yes", "--force", "yes", is_flag=True, help="Replace what is stated without asking."
)
@click.option("--config", type=Path, metavar="FILE", help="The configuration file to write.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes; by default one a core.")
@shell.cache_options
def command(
    path: Path,
    checks: bool,
    suggested: bool,
    precision: tuple[str, ...],
    yes: bool,
    config: Path | None,
    jobs: int | None,
    **options: Any,
) -> int:
    """State the precision modes that a project runs in.

    Reads the project that PATH lies in, shows the places that prove or suggest a mode, and writes
    `precision` into its configuration with those places as comments: into the table
    [tool.precision-lint] of pyproject.toml, or into precision-lint.toml where there is none.
    Look it over: what is stated there is what check goes by.
    """
    from precision_lint import evidence, progress
    from precision_lint.config import REFERENCE_AND_MODES, _modes, named

    [path] = shell.existing([str(path)])
    given = named("--precision", precision, _modes, REFERENCE_AND_MODES) if precision else None
    resolver = shell.resolver(options, config, False)
    with progress.shown():
        found = evidence.collect(path, resolver, suggested, jobs)
    if checks:
        return _check(found, resolver)
    _print(found)
    said = evidence.proposed(found, given)
    if said is None:
        shell.echo(NOTHING, sys.stdout)
        return 0
    return _write(found, said, resolver, config, yes)


def _place(one: Shown) -> str:
    return printable(f"{one.shown}:{one.row}: {_cut(one.text)}")


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else f"{text[: WIDTH - 3]}..."


def _print(found: Evidence) -> None:
    """The places, by how they show a mode, and by mode."""
    from precision_lint.evidence import OFFERED, PROVED, TESTED

    heads = {
        PROVED: "The code proves:",
        OFFERED: "An option, a condition or a setting suggests:",
        TESTED: "Tests show, which says nothing of the rest:",
    }
    for how, head in heads.items():
        groups = found.by_mode(how)
        if groups:
            shell.echo("\n".join([head, *_listed(groups.values()), ""]), sys.stdout)


def _listed(groups: Iterable[Sequence[Shown]]) -> Iterator[str]:
    for places in groups:
        yield from (f"  {_place(one)}  -> {one.mode}" for one in places[:LISTED])
        if len(places) > LISTED:
            yield f"  and {len(places) - LISTED:,} more  -> {places[0].mode}"


def _check(found: Evidence, resolver: Resolver) -> int:
    """What the code shows that is not stated, a line a mode; what is stated and not shown."""
    from precision_lint.evidence import PROVED

    missing: dict[str, list[Shown]] = {}
    for one in found.counted:
        if one.mode not in (resolver(one.path.parent).modes_for(one.path) or ()):
            missing.setdefault(one.mode, []).append(one)
    for mode, places in missing.items():
        one = places[0]
        how = "proved" if one.how == PROVED else "suggested"
        more = f" (and {len(places) - 1:,} more)" if len(places) > 1 else ""
        line = f"{one.shown}:{one.row}: {mode} is {how} and not stated: {_cut(one.text)}{more}"
        shell.echo(printable(line), sys.stdout)
    settings = resolver(found.home)
    file = _shown(settings.file) if settings.file else ""
    stated = {
        *(settings.precision or ()),
        *(m for o in settings.overrides for m in o.precision or ()),
    }
    for mode in sorted(stated.difference(one.mode for one in found.shown)):
        shell.echo(f"{file}: {mode} is stated, and nothing shows it.", sys.stdout)
    if missing:
        shell.tell("state it with `precision-lint init`, or write it into `precision`")
        return 1
    said = (
        "Every mode that the code shows is stated."
        if stated
        else "The code shows no mode, and none is stated."
    )
    shell.echo(said, sys.stdout)
    return 0


def _shown(file: Path) -> str:
    return printable(os.path.relpath(file))


def _write(found: Evidence, said: Said, resolver: Resolver, config: Path | None, yes: bool) -> int:
    """State the modes in the file that decides for the project."""
    from precision_lint import stating

    file = config or _target(found, resolver)
    settings = resolver(found.home)
    modes = f"precision = {_array(said.precision)}"
    if settings.precision is not None and settings.file is not None:
        where = _shown(settings.file)
        if settings.precision == tuple(said.precision):
            shell.echo(f"{where} states that already: {modes}", sys.stdout)
            return 0
        now = _array(settings.precision)
        if not yes and not _agreed(f"{where} states {now}; replace it by {modes}?"):
            return 2
    elif any(one.precision is not None for one in settings.overrides):
        said = stating.Said(said.precision)  # the user has said already which part is another
    failure = _put(file, said)
    if failure:
        shell.tell(failure)
        return 2
    shell.echo(f"Wrote {modes} into {_shown(file)}.", sys.stdout)
    for pattern, other in said.overrides.items():
        shell.echo(f"Wrote {', '.join(other)} for {printable(pattern)} there.", sys.stdout)
    shell.echo(
        "Remove the modes that are never run; `precision-lint` checks for the others.", sys.stdout
    )
    return 0


def _array(modes: Iterable[str]) -> str:
    quoted = (f'"{mode}"' for mode in modes)
    return f"[{', '.join(quoted)}]"


def _asks() -> bool:
    """Whether somebody can answer."""
    return sys.stdin is not None and sys.stdin.isatty()


def _agreed(question: str) -> bool:
    if not _asks():
        shell.tell(f"{question} Give --yes for that; nothing was written")
        return False
    if click.confirm(question, err=True):
        return True
    shell.tell("nothing was written")
    return False


def _target(found: Evidence, resolver: Resolver) -> Path:
    """The file to state modes in: the one that decides for the project, or that of its root."""
    from precision_lint.config import NAMES

    file = resolver(found.home).file
    if file is not None and file.is_relative_to(found.home):
        return file
    own, _, shared = NAMES
    return found.home / (shared if (found.home / shared).is_file() else own)


def _put(file: Path, said: Said) -> str:
    """Write the file; why not, if it cannot be."""
    from precision_lint import fixer, source, stating

    shown, ours = _shown(file), file.name != "pyproject.toml"
    if target := fixer.elsewhere(file, file.parent):
        return f"{shown}: is a link to {target}; give --config {target}"
    old = source.Source(shown, "")
    data = b""
    if file.exists():
        loaded = source.load(file, shown)
        decoded = loaded if isinstance(loaded, source.Failure) else source.decode(loaded, shown)
        if isinstance(loaded, source.Failure) or isinstance(decoded, source.Failure):
            return f"{shown}: cannot be read; save it as UTF-8"
        data, old = loaded, decoded
    text = stating.written(old.text, said, ours, old.newline)
    if text is None:
        return f"{shown}: no place found for precision = {_array(said.precision)}; write it by hand"
    if not file.exists():
        temporary = file.with_name(f".{file.name}-{os.getpid()}")
        temporary.write_bytes(text.encode())
        temporary.replace(file)
        return ""
    failure = fixer.write(file, data, replace(old, text=text))
    return f"{shown}: {failure.message}" if failure else ""
