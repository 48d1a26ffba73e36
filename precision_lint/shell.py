"""What the commands share: options, the settings that they come to, and output."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

import click
from click.shell_completion import CompletionItem

from precision_lint.display import printable

if TYPE_CHECKING:
    from precision_lint.config import Resolver

F = TypeVar("F", bound=Callable[..., Any])

LINE = 100
"""Characters of a line of prose at most."""


SECTIONS = {
    "Fixes": ("fix", "unsafe_fixes", "diff", "add_noqa"),
    "Rules": (
        "select", "extend_select", "ignore", "preview", "confidence", "precision",
        "device", "torch_version",
    ),
    "Files": (
        "exclude", "extend_exclude", "force_exclude", "respect_gitignore", "stdin_filename",
        "show_files",
    ),
    "What counts": ("since", "baseline", "fail_on", "exit_zero"),
    "Reports": ("output_format", "output_file", "reports", "statistics", "quiet"),
    "Configuration and speed": (
        "config", "isolated", "show_settings", "jobs", "executor", "scheduler", "cache_dir", "no_cache",
    ),
}  # fmt: skip
"""Headings of a long help text, and the options below each."""


class Sectioned(click.Command):
    """A command whose help lists its options by what they are about."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        options = [p for p in self.get_params(ctx) if isinstance(p, click.Option)]
        records = {option.name: option.get_help_record(ctx) for option in options}
        sections = {
            title: [records.pop(name, None) for name in names] for title, names in SECTIONS.items()
        }
        for title, found in {**sections, "Other": list(records.values())}.items():
            if rows := [record for record in found if record is not None]:
                with formatter.section(title):
                    formatter.write_dl(rows, col_max=26)


def split(_: click.Context, __: click.Parameter, values: Sequence[str]) -> tuple[str, ...]:
    parts = tuple(part.strip() for value in values for part in value.split(",") if part.strip())
    if values and not parts:  # a script's empty variable must not mean everything
        raise click.BadParameter("names nothing; leave it out or fill it in")
    return parts


def complete_rules(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Codes and names that go on as what was typed behind the last comma does."""
    from precision_lint import registry

    before, comma, word = incomplete.rpartition(",")
    pairs = [(code, name) for name, code in registry.names().items()]
    words = [*pairs, *((name, code) for code, name in pairs)]
    return [
        CompletionItem(f"{before}{comma}{found}", help=beside)
        for found, beside in words
        if found.startswith((word, word.upper()))
    ]


def complete_files(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Leaves it to the shell."""
    return [CompletionItem(incomplete, type="file")]


def list_option(name: str, what: str, metavar: str = "CODES") -> Callable[[F], F]:
    complete = complete_rules if metavar == "CODES" else None
    return click.option(
        name, multiple=True, callback=split, metavar=metavar, help=what, shell_complete=complete
    )


def cache_options(command: F) -> F:
    directory = click.option(
        "--cache-dir",
        type=Path,
        metavar="DIR",
        envvar="PRECISION_LINT_CACHE_DIR",
        help="Where a project's summaries are kept; by default .precision_lint_cache in its root.",
    )
    nothing = click.option(
        "-n",
        "--no-cache",
        is_flag=True,
        default=None,
        envvar="PRECISION_LINT_NO_CACHE",
        help="Read the whole project anew, and keep nothing.",
    )
    return directory(nothing(command))


def stated_options(command: F) -> F:
    """``--precision``, ``--device``, ``--torch-version``: how the user says the code is run."""
    said = (
        "How the code is run: amp-float16, amp-bfloat16, float16, bfloat16; float32 alone for "
        "none of them. By default what the code shows."
    )
    devices = "Where: cuda, cpu, mps, xpu, the usual one first. By default what the code shows."
    version = click.option(
        "--torch-version",
        metavar="VERSION",
        help="Least torch that it runs on, as 2.4. By default what its metadata say.",
    )
    command = list_option("--device", devices, "DEVICES")(version(command))
    return list_option("--precision", said, "MODES")(command)


def run_options(command: F) -> F:
    """Options of every command that lints: what is looked for, and where."""
    options = (
        list_option("--select", "Codes, prefixes (MP3), names or ALL to turn on; by default ALL."),
        list_option("--extend-select", "Like --select, on top of what is on."),
        list_option("--ignore", "Codes, prefixes or names to turn off."),
        click.option(
            "--preview/--no-preview",
            default=None,
            help="Turn on rules in preview, which are wrong more often.",
        ),
        click.option(
            "--confidence",
            type=click.Choice(["possible", "likely", "certain"]),
            help="Least confidence shown; by default likely.",
        ),
        stated_options,
        list_option("--exclude", "Patterns of paths to skip, instead of the usual ones.", "GLOBS"),
        list_option("--extend-exclude", "Patterns of paths to skip as well.", "GLOBS"),
        click.option(
            "--force-exclude/--no-force-exclude",
            default=None,
            help="Skip excluded paths even when they are named.",
        ),
        click.option(
            "--respect-gitignore/--no-respect-gitignore",
            default=None,
            help="Skip what git ignores; on by default.",
        ),
        click.option(
            "--config", type=Path, metavar="FILE", help="The one configuration file to use."
        ),
        click.option("--isolated", is_flag=True, help="Ignore configuration files."),
        click.option(
            "--baseline",
            type=Path,
            metavar="FILE",
            help="Findings that are put off: `precision-lint baseline --help`.",
        ),
        click.option(
            "-j", "--jobs", type=click.IntRange(1), help="Processes; by default one a core."
        ),
        cache_options,
    )
    for option in reversed(options):
        command = option(command)
    return command


def resolver(options: dict[str, Any], config: Path | None, isolated: bool) -> Resolver:
    """The settings that the options of ``run_options`` come to."""
    if config and isolated:
        raise click.UsageError("--config and --isolated exclude each other; give one of them")
    from precision_lint.api import Confidence, Severity
    from precision_lint.config import Overrides, Resolver

    for name, kind in (("confidence", Confidence), ("fail_on", Severity)):
        options[name] = options.get(name) and kind(options[name])
    for name in ("select", "exclude", "precision", "device"):
        options[name] = options.get(name) or None
    return Resolver(Overrides(**options), config, isolated)


def paths(named: Sequence[str]) -> list[Path]:
    """The paths to lint, by default the working directory."""
    if "" in named:  # pathlib takes it for the working directory
        raise click.UsageError("a path is empty; name a file or a directory")
    return [Path(path) for path in named or (".",)]


def existing(named: Sequence[str], said: str = "nothing was written, check the path") -> list[Path]:
    """The paths of a run that does not start before all of them are there; ``said`` if one is not."""
    found = paths(named)
    for path in found:
        if not os.path.lexists(path):
            raise click.UsageError(f"{path}: no such file or directory; {said}")
    return found


def color(stream: TextIO | None) -> bool:
    """Whether to colour what goes to a stream."""
    if stream is None or os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def echo_markdown(text: str, stream: TextIO | None) -> None:
    """Print Markdown: laid out on a terminal, as it is in a pipe."""
    if stream is None or not (stream.isatty() or color(stream)):
        echo(text, stream)
        return
    from rich.console import Console
    from rich.markdown import Markdown
    from rich.theme import Theme

    console = Console(
        file=io.StringIO(),
        width=min(shutil.get_terminal_size().columns, LINE),
        force_terminal=True,
        no_color=not color(stream),
        theme=Theme({"markdown.code": "cyan", "markdown.h2": "bold"}),  # no background
    )
    console.print(Markdown(text, code_theme="ansi_dark"))
    assert isinstance(console.file, io.StringIO)
    echo(console.file.getvalue(), stream, newline=False)


def tell(text: str) -> None:
    """A line for people on standard error, whatever names it holds."""
    echo(printable(text), sys.stderr)


def echo(text: str | bytes, stream: TextIO | None, newline: bool = True) -> None:
    """Print; a reader that leaves early is no error."""
    if stream is None:  # closed by who started us
        return
    try:
        click.echo(text, file=stream, nl=newline, color=True)
    except OSError as error:
        # what is left in the buffer would fail again when the interpreter ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        if not isinstance(error, BrokenPipeError):  # the reader, such as head, has seen enough
            raise
