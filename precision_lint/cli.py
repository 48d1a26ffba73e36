"""The command line: ``precision-lint [check] PATHS``, ``verify``, ``explain`` and ``rules``.

Results go to standard output; notices, and the summary where the output is for machines, go to
standard error.  Exit codes: 0 clean, 1 findings that fail the run, 2 wrong usage, a path that
cannot be read, or a failure of the tool itself; 130 when interrupted.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.shell_completion import CompletionItem

import precision_lint
from precision_lint import adopt, init
from precision_lint.lsp.command import command as lsp
from precision_lint.report import FORMATS, MACHINE, Aside
from precision_lint.shell import Sectioned
from precision_lint.shell import cache_options as _cache_options
from precision_lint.shell import color as _color
from precision_lint.shell import complete_files as _complete_files
from precision_lint.shell import complete_rules as _complete_rules
from precision_lint.shell import echo as _echo
from precision_lint.shell import echo_markdown as _echo_markdown
from precision_lint.shell import existing as _existing
from precision_lint.shell import list_option as _list_option
from precision_lint.shell import paths as _paths
from precision_lint.shell import resolver as _resolver
from precision_lint.shell import run_options as _run_options
from precision_lint.shell import stated_options as _stated_options
from precision_lint.shell import tell as _tell

if TYPE_CHECKING:
    from precision_lint.config import Resolver, Settings
    from precision_lint.jobs import Mode
    from precision_lint.runner import Result

F = TypeVar("F", bound=Callable[..., Any])


class Commands(click.Group):
    """Commands of which ``check`` need not be written: ``precision-lint src/``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        completing = ctx.resilient_parsing and not args  # the first word is being written
        known = {*self.commands, *ctx.help_option_names, "--version"}
        if not completing and not (args and args[0] in known):
            if args and args[0][:1] != "-" and not ctx.resilient_parsing:
                self._refuse_misspelt(ctx, args[0])
            args = ["check", *args]
        return super().parse_args(ctx, args)

    def _refuse_misspelt(self, ctx: click.Context, word: str) -> None:
        """Take no first word for a path that is none and looks like a command."""
        import difflib

        close = difflib.get_close_matches(word, list(self.commands), n=1)
        if close and not os.path.lexists(word):
            raise click.UsageError(f'no command or path "{word}"; did you mean "{close[0]}"?', ctx)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        check = self.commands["check"]
        found = super().shell_complete(ctx, incomplete)
        found += check.shell_complete(click.Context(check, ctx, "check"), incomplete)
        if incomplete[:1] != "-":  # first: the script for bash forgets what comes before it
            found.insert(0, CompletionItem(incomplete, type="file"))
        return found

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_usage(ctx.command_path, "[check] [OPTIONS] [PATHS]...")
        formatter.write_usage(ctx.command_path, "COMMAND [OPTIONS] [ARGS]...", "       ")


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(precision_lint.__version__, message="%(prog)s %(version)s")
def cli() -> None:
    """Find what would break in float16, bfloat16 or under autocast in PyTorch code, fix it, and
    prove finding and fix by running both.

    \b
    precision-lint src/              short for: precision-lint check src/
    precision-lint src/ --fix        apply the safe fixes
    precision-lint explain MP301     why a rule is there, and what its fix does
    precision-lint check --help      every option
    """


class Check(Sectioned):
    """A command whose ``--add-noqa`` takes its reason after a ``=`` only, never the next word."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, [f"{a}=" if a == "--add-noqa" else a for a in args])


def _reports(
    _: click.Context, __: click.Parameter, values: Sequence[str]
) -> list[tuple[str, Path]]:
    pairs = [value.partition("=") for value in values]
    for value, (name, _equals, file) in zip(values, pairs, strict=True):
        if name not in FORMATS or not file:
            formats = ", ".join(FORMATS)
            raise click.BadParameter(f'"{value}" is no report; write FORMAT=FILE with {formats}')
    return [(name, _no_code(Path(file))) for name, _equals, file in pairs]


def _no_code(path: Path) -> Path:
    """Refuse to write a report over code."""
    if path.suffix in (".py", ".pyi", ".ipynb") and path.exists():
        raise click.BadParameter(f"{path} holds code; name another file for the report")
    return path


def _report_file(_: click.Context, __: click.Parameter, path: Path | None) -> Path | None:
    return None if path is None else _no_code(path)


@cli.command(cls=Check)
@click.argument("paths", nargs=-1, metavar="[PATHS]...", shell_complete=_complete_files)
@click.option("--fix", is_flag=True, help="Apply safe fixes and write the files.")
@click.option(
    "--unsafe-fixes/--no-unsafe-fixes",
    default=None,
    help="With --fix or --diff: apply unsafe fixes too.",
)
@click.option("--diff", is_flag=True, help="Show what --fix would change; write nothing.")
@click.option(
    "--add-noqa",
    metavar="[REASON]",
    help="Silence what is found by comments; write the reason after a =.",
)
@click.option(
    "--since",
    metavar="REF",
    help="Report only what was added since the branch left REF (git).",
)
@click.option(
    "--fail-on",
    type=click.Choice(["info", "warning", "error"]),
    help="Least severity that fails the run; by default warning.",
)
@click.option(
    "--output-format",
    type=click.Choice(list(FORMATS)),
    metavar="FORMAT",
    help=f"One of {', '.join(FORMATS)}; by default text.",
)
@click.option(
    "-o", "--output-file", type=Path, metavar="FILE", callback=_report_file,
    help="Write the report there instead.",
)  # fmt: skip
@click.option(
    "--report",
    "reports",
    multiple=True,
    callback=_reports,
    metavar="FORMAT=FILE",
    help="Write another report; can be repeated.",
)
@click.option("--statistics", is_flag=True, help="Show counts a code instead of findings.")
@click.option("-q", "--quiet", is_flag=True, help="Show findings and errors only.")
@click.option("--exit-zero", is_flag=True, help="Exit with 0 even when there are findings.")
@click.option("--stdin-filename", type=Path, metavar="FILE", help="Name of the text read from -.")
@click.option(
    "--executor",
    type=click.Choice(["processes", "dask"]),
    default="processes",
    help="Who works: processes of this machine, or the workers of --scheduler.",
)
@click.option("--scheduler", metavar="ADDRESS", help="With --executor dask: tcp://HOST:PORT.")
@click.option("--show-files", is_flag=True, help="List the files that would be linted.")
@click.option("--show-settings", is_flag=True, help="Show the settings that hold for PATHS.")
@_run_options
def check(
    paths: tuple[str, ...],
    fix: bool,
    diff: bool,
    add_noqa: str | None,
    since: str | None,
    output_file: Path | None,
    reports: list[tuple[str, Path]],
    statistics: bool,
    quiet: bool,
    exit_zero: bool,
    stdin_filename: Path | None,
    executor: str,
    scheduler: str | None,
    show_files: bool,
    show_settings: bool,
    config: Path | None,
    isolated: bool,
    **options: Any,
) -> int:
    """Lint files and directories; the default command.

    PATHS are files and directories, by default the working directory; - reads standard input, and
    with --fix writes the fixed text to standard output.
    """
    from precision_lint import progress
    from precision_lint.jobs import Mode

    stdin = "-" in paths or (stdin_filename is not None and not paths)
    _sensible(stdin, paths, stdin_filename, since, add_noqa, fix or diff)
    writes = fix or add_noqa is not None
    named = _existing(paths) if writes and not stdin else _paths(paths)
    resolver = _resolver(options, config, isolated)
    settings = resolver(Path.cwd())
    if show_files or show_settings:
        from precision_lint import show

        return (show.files if show_files else show.settings)(named, resolver)
    for selector in _without_effect(settings):
        _tell(f"{selector}: is in preview, so this selects nothing; add --preview")
    mode = Mode.DIFF if diff else Mode.FIX if fix else Mode.CHECK
    if stdin:
        result = _of_stdin(stdin_filename, resolver, mode)
    else:
        with progress.shown(not quiet), _workers(executor, scheduler, named, settings) as workers:
            result = _of_files(named, resolver, since, mode, workers)
    for line in result.errors if quiet else [*result.errors, *result.warnings]:
        _tell(line)
    if add_noqa is not None:
        from precision_lint import silence

        return silence.main(result, add_noqa)
    if stdin and mode is Mode.FIX:
        _echo(result.stdin, sys.stdout, newline=False)
    _show(result, mode, settings.output_format, output_file, statistics, quiet, stdin)
    for name, file in reports:
        _write(file, _rendered(result, name))
    failed = result.diff or result.unread if mode is Mode.DIFF else result.failing
    return 2 if result.errors or result.internal else int(bool(failed) and not exit_zero)


@contextmanager
def _workers(
    executor: str, scheduler: str | None, named: Sequence[Path], settings: Settings
) -> Iterator[int | None]:
    """How many workers there are; None: one a core."""
    if (executor == "dask") != (scheduler is not None):
        raise click.UsageError("--executor dask and --scheduler ADDRESS go together; give both")
    if scheduler is None:
        yield settings.jobs
        return
    from precision_lint import hosts

    with hosts.dask(scheduler, named) as workers:
        yield workers


def _sensible(
    stdin: bool,
    paths: tuple[str, ...],
    stdin_filename: Path | None,
    since: str | None,
    add_noqa: str | None,
    fixing: bool,
) -> None:
    """Refuse options that do not go together."""
    if stdin and len(paths) > 1:
        raise click.UsageError("- stands alone; lint files in another run")
    if stdin_filename and not stdin:
        raise click.UsageError("--stdin-filename names the text read from -; give - as the path")
    if stdin and (since is not None or add_noqa is not None):
        raise click.UsageError("--since and --add-noqa need files; name them instead of -")
    if add_noqa is not None and fixing:
        raise click.UsageError("--add-noqa silences what --fix would repair; run --fix before it")


def _of_stdin(name: Path | None, resolver: Resolver, mode: Mode) -> Result:
    from precision_lint import runner

    if sys.stdin is None:
        raise click.UsageError("standard input is closed; name a file")
    return runner.check_stdin(sys.stdin.buffer.read(), name, resolver, mode=mode)


def _of_files(
    named: list[Path], resolver: Resolver, since: str | None, mode: Mode, jobs: int | None
) -> Result:
    from precision_lint import runner

    if since is None:
        return runner.check(named, resolver, mode=mode, workers=jobs)
    from precision_lint import branch

    return branch.check(named, resolver, since, mode=mode, workers=jobs)


def _without_effect(settings: Settings) -> list[str]:
    """Selectors that name only rules in preview, which are off."""
    from precision_lint import registry

    chosen = (*(settings.select or ()), *settings.extend_select)
    return [s for s in chosen if not settings.preview and registry.only_previews(s)]


def _rendered(result: Result, output_format: str, color: bool = False) -> str:
    aside = Aside(result.silenced, result.compared)
    render = FORMATS[output_format]
    return render(result.diagnostics, result.sources, color=color, aside=aside)


def _write(file: Path, text: str) -> None:
    text = f"{text}\n" if text else ""
    file.write_text(text, encoding="utf8", errors="backslashreplace", newline="\n")


def _show(
    result: Result,
    mode: Mode,
    output_format: str,
    output_file: Path | None,
    statistics: bool,
    quiet: bool,
    stdin: bool,
) -> None:
    """Report, statistics or diff, and the summary."""
    from precision_lint import summary
    from precision_lint.jobs import Mode

    diagnostics = result.diagnostics
    human = output_format not in MACHINE
    report_to, notes_to = sys.stdout, sys.stdout if human else sys.stderr
    if stdin and mode is Mode.FIX:
        report_to = notes_to = sys.stderr  # standard output is the fixed text
    if mode is Mode.DIFF:
        notes_to = sys.stderr
        _show_diff(result)
    elif statistics:
        table = summary.table(diagnostics, human)
        if output_file:
            _write(output_file, table)
        elif table:
            _echo(table, report_to)
    elif output_file:
        _write(output_file, _rendered(result, output_format))
        notes_to = sys.stdout
    elif text := _rendered(result, output_format, _color(report_to)):
        _echo(text, report_to)
        if output_format == "text" and not quiet:
            _echo("", report_to)
    if not quiet:
        marked = output_format == "concise" or (statistics and human)
        for line in summary.summary(result, mode, statistics, output_format == "text", marked):
            _echo(line, notes_to)


def _show_diff(result: Result) -> None:
    if result.diff:
        _echo(result.diff, sys.stdout, newline=False)
    if result.unread:
        _echo(FORMATS["concise"](result.unread, {}, color=_color(sys.stderr)), sys.stderr)


def _format_option(*more: str) -> Callable[[F], F]:
    return click.option(
        "--output-format",
        type=click.Choice(["text", "json", *more]),
        default="text",
        help="By default text.",
    )


@cli.command()
@click.argument("rule", metavar="CODE|NAME", shell_complete=_complete_rules)
@_format_option("markdown")
def explain(rule: str, output_format: str) -> int:
    """Explain a rule: what breaks, why, and what the fix promises."""
    from precision_lint import catalogue, registry
    from precision_lint.config import close

    codes = registry.known(rule) or registry.known(rule.upper())
    if len(codes) != 1:
        words = [*registry.names(), *registry.names().values()]
        hint = close(rule, words, "`precision-lint rules` lists codes and names")
        raise click.UsageError(f'unknown rule "{rule}"; {hint}')
    described = catalogue.described(codes[0])
    if output_format == "json":
        _echo(json.dumps(described, indent=2), sys.stdout)
    else:
        show = _echo if output_format == "markdown" else _echo_markdown
        show(catalogue.explanation(described), sys.stdout)
    return 0


def _place(_: click.Context, __: click.Parameter, value: str) -> tuple[Path, int, int | None]:
    match = re.fullmatch(r"(.+?)(?::cell (\d+))?:(\d+)(?::\d+)?", value, re.DOTALL)
    if match is None or not int(match[3]):
        raise click.BadParameter(f'"{value}" is not a place; write FILE:LINE')
    return Path(match[1]), int(match[3]), int(match[2]) if match[2] else None


@cli.command("explain-at")
@click.argument("place", metavar="FILE:LINE", callback=_place)
@_format_option()
@_stated_options
@click.option("--config", type=Path, metavar="FILE", help="The one configuration file to use.")
@click.option("--isolated", is_flag=True, help="Ignore configuration files.")
@_cache_options
def explain_at(
    place: tuple[Path, int, int | None],
    output_format: str,
    config: Path | None,
    isolated: bool,
    **options: Any,
) -> int:
    """Show what the analysis knows at a line, and why.

    That is dtypes, ranges, the autocast state, and findings of every confidence.  A line of a
    notebook is FILE:cell 3:LINE, as reports write it.
    """
    import dataclasses

    from precision_lint import inspection
    from precision_lint.source import Failure

    [path] = _existing([str(place[0])], "check the path")
    if path.is_dir():
        raise click.UsageError(f"{path}: is a directory; name a file in it")
    answer = inspection.explain_at(*place, _resolver(options, config, isolated))
    if isinstance(answer, Failure):
        _tell(FORMATS["concise"]([answer.diagnostic()], {}, color=False))
        return 2
    description, findings = answer
    if output_format == "json":
        said = {**dataclasses.asdict(description), "findings": [
            {"code": d.code, "message": d.message, "confidence": d.confidence.value}
            for d in findings
        ]}  # fmt: skip
        _echo(json.dumps(said, indent=2), sys.stdout)
    else:
        from precision_lint.report.place import render

        shown = f"{place[0]}:cell {place[2]}" if place[2] else f"{place[0]}"
        _echo(render(f"{shown}:{place[1]}", description, findings), sys.stdout)
    return 0


@cli.command()
@_format_option("markdown")
def rules(output_format: str) -> int:
    """List the rules: code, name, severity and promise of the fix."""
    from precision_lint import catalogue, registry

    codes = registry.known("ALL")
    if output_format == "json":
        _echo(json.dumps([catalogue.described(code) for code in codes], indent=2), sys.stdout)
    else:
        render = catalogue.markdown if output_format == "markdown" else catalogue.text
        _echo(render(codes), sys.stdout)
    return 0


@cli.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...", shell_complete=_complete_files)
@click.option("--config", type=Path, metavar="FILE", help="The one configuration file to use.")
@click.option("--isolated", is_flag=True, help="Ignore configuration files.")
@_cache_options
def clean(paths: tuple[str, ...], config: Path | None, isolated: bool, **options: Any) -> int:
    """Remove the caches of the projects that PATHS lie in.

    Nothing else in their directories is touched.
    """
    from precision_lint import cache
    from precision_lint.project import files

    resolver = _resolver(options, config, isolated)
    roots = {files.project_root(files.absolute(path)) for path in _paths(paths)}
    for directory in sorted({found for root in roots if (found := resolver(root).cache(root))}):
        what = "removed" if cache.clean(directory) else "nothing to remove"
        _echo(f"{directory}: {what}", sys.stdout)
    return 0


cli.add_command(adopt.commands)
cli.add_command(init.command)
cli.add_command(lsp)


@cli.command()
@click.argument("paths", nargs=-1, metavar="[PATHS]...", shell_complete=_complete_files)
@_list_option("--select", "Codes, prefixes or names of the rules to prove; by default all.")
@click.option("-k", "keyword", default="", metavar="TEXT", help="Only what has this in its title.")
@click.option("-x", "--exitfirst", is_flag=True, help="Stop at the first failure.")
@click.option("-j", "--jobs", type=click.IntRange(1), help="Processes; by default one a core.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@_format_option("junit")
@click.option("--report", type=Path, metavar="FILE", help="Write an HTML page with plots, too.")
@click.option(
    "--emit-test",
    type=Path,
    metavar="DIR",
    help="With PATHS: write a pytest file for each proven finding.",
)
@click.option("--config", type=Path, metavar="FILE", help="The one configuration file to use.")
@click.option("--isolated", is_flag=True, help="Ignore configuration files.")
@_cache_options
def verify(
    paths: tuple[str, ...],
    select: tuple[str, ...],
    keyword: str,
    exitfirst: bool,
    jobs: int | None,
    device: str,
    output_format: str,
    report: Path | None,
    emit_test: Path | None,
    config: Path | None,
    isolated: bool,
    **options: Any,
) -> int:
    """Prove rules, or the findings in PATHS, by running the code.

    Without PATHS, each fixture runs as it is and as fixed, in float16 and bfloat16, forward and
    backward: the hazard must show before the fix and be gone after it.

    With PATHS, it searches for inputs on which the flagged code fails in half precision but not in
    float32, and runs the fixed code on the same inputs. It executes parts of that code, in child
    processes. Exit code 1: a finding is proven.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        _tell("verify needs torch; pip install 'precision-lint[verify]'")
        return 2
    if emit_test and not paths:
        raise click.UsageError("--emit-test is for findings in your code; name paths")
    if not paths:
        from precision_lint.harness import verify as harness

        return harness.main(select, keyword, exitfirst, jobs, device, output_format, report)
    if device != "cpu":
        raise click.UsageError("--device cuda is for the rules; leave it out, or the paths")
    from precision_lint import inspection
    from precision_lint.harness import users

    resolver = _resolver({**options, "select": select, "jobs": jobs}, config, isolated)
    resolver(Path.cwd())  # mistakes in selectors are told first
    files = inspection.examine([Path(path) for path in paths], resolver)
    return users.main(files, keyword, exitfirst, jobs, output_format, report, emit_test)


def _mistakes() -> tuple[type[Exception], ...]:
    from precision_lint.config import ConfigError
    from precision_lint.registry import InvalidRule

    return click.ClickException, ConfigError, InvalidRule


def main(args: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; every mistake of use is one line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # no name and no source may break the report
            stream.reconfigure(errors="backslashreplace")
    try:
        code = cli.main(args, prog_name="precision-lint", standalone_mode=False)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "precision-lint"
        _tell(f"{error.format_message()} (see `{command} --help`)")
        return 2
    except _mistakes() as error:
        _tell(str(error))
        return 2
    except click.Abort:
        _tell("interrupted")
        return 130
    except OSError as error:  # a full disk, a working directory that is gone
        where = f"{error.filename}: " if error.filename else ""
        if isinstance(error, FileNotFoundError) and not where:
            where = "working directory: "  # the one call that fails without a name
        what = (error.strerror or str(error)).lower()
        _tell(f"{where}{what}; correct that and run again")
        return 2
    except Exception as error:  # an uncaught one would exit with 1, which means findings
        import traceback

        frame = traceback.extract_tb(error.__traceback__)[-1]
        what = " ".join(f"{type(error).__name__}: {error}".split())
        _tell(f"{frame.filename}:{frame.lineno}: {what}; report it as a bug")
        return 2
    return int(code or 0)
