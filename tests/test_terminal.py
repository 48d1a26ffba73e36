"""What people get at a terminal: laid out documentation, bars, completion; pipes get none of it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from precision_lint import cli, registry
from tests import projects

PLAIN = {name: value for name, value in os.environ.items() if name not in ("CI", "NO_COLOR")} | {
    "TERM": "xterm-256color",
    "COLUMNS": "80",
}
EAGER = (
    "from precision_lint import cli, progress; progress.AFTER = progress.EVERY = 0.0; import sys"
)


def at_terminal(*words: str, cwd: Path | None = None, **variables: str) -> str:
    """What a command writes to a terminal."""
    pty = pytest.importorskip("pty")
    control, terminal = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=cwd,
        env=PLAIN | variables,
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
    )
    os.close(terminal)
    written = b""
    while True:
        try:
            data = os.read(control, 65536)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        written += data
    os.close(control)
    assert process.wait() == 0, written.decode()
    return written.decode()


def in_pipe(*words: str, cwd: Path | None = None, **variables: str) -> str:
    """What a command writes to a pipe, standard error included."""
    run = subprocess.run(
        [sys.executable, *words],
        cwd=cwd,
        env=PLAIN | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=True,
    )
    return run.stdout.decode()


EXPLAIN = ("-m", "precision_lint", "explain", "MP102")


def test_explain_is_laid_out_on_a_terminal() -> None:
    shown = at_terminal(*EXPLAIN)
    assert "Why it breaks" in shown and "## " not in shown and "\x1b[" in shown
    assert "\x1b[36m" in shown and "`" not in shown
    assert max(len(line) for line in at_terminal(*EXPLAIN, NO_COLOR="1").splitlines()) <= 100


def test_colours_are_switched_off_and_on() -> None:
    assert "[36m" not in at_terminal(*EXPLAIN, NO_COLOR="1")
    assert "\x1b[" in in_pipe(*EXPLAIN, FORCE_COLOR="1")


def test_explain_is_markdown_in_a_pipe() -> None:
    plain = in_pipe(*EXPLAIN)
    assert plain.startswith("# clip-before-unscale (MP102)\n") and "\x1b" not in plain
    assert plain == in_pipe(*EXPLAIN, "--output-format", "markdown", FORCE_COLOR="1")
    assert "## Why it breaks" in at_terminal(*EXPLAIN, "--output-format", "markdown")


TEXT = "import torch\n\n\ndef f(x):\n    return torch.log(x.half().sigmoid() + 1e-8)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    projects.write(tmp_path, {f"m{number}.py": TEXT for number in range(7)})
    return tmp_path


def run(*options: str) -> tuple[str, ...]:
    return ("-c", f"{EAGER}; sys.exit(cli.main(['check', '--exit-zero', *{options!r}]))")


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_bar_over_a_long_run(project: Path, jobs: str) -> None:
    projects.write(project, {f"n{number}.py": TEXT for number in range(63)})  # enough for two
    shown = at_terminal(*run("--no-cache", "-j", jobs, "--output-format", "concise"), cwd=project)
    bar, end, report = shown.rpartition("\x1b[2K")
    for part in ("Interpreting", "Judging", "70/70"):
        assert part in bar, part
    assert end and report.count("MP301") == 70 and "Judging" not in report


def test_a_short_run_shows_no_bar(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("import torch\n")
    words = ("-m", "precision_lint", "check", "--isolated", "--no-cache")
    shown = at_terminal(*words, cwd=tmp_path)
    assert shown.splitlines() == ["All checks passed!"]


def test_no_bar_where_nobody_looks(project: Path) -> None:
    words = run("--no-cache", "-j", "1", "--statistics")
    for plain in (
        in_pipe(*words, cwd=project),
        in_pipe(*words, cwd=project, FORCE_COLOR="1"),
        at_terminal(*words, cwd=project, CI="true"),
        at_terminal(*words, cwd=project, TERM="dumb"),
        at_terminal(*run("--no-cache", "-j", "1", "--statistics", "-q"), cwd=project),
    ):
        assert "\x1b" not in plain and "Judging" not in plain
        assert plain.splitlines()[1].startswith("7  MP301  [*]  eps-before-log")


def test_the_last_line_has_files_lines_and_time(project: Path) -> None:
    last = in_pipe(*run("--no-cache", "--statistics"), cwd=project).splitlines()[-1]
    assert last.startswith("Linted 7 files, 35 lines in ") and last.endswith(" s.")


def commands(group: click.Group = cli.cli) -> Iterator[tuple[str, click.Command]]:
    """Every command by its words."""
    for name, command in group.commands.items():
        yield name, command
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", found) for inner, found in commands(command))


@pytest.mark.parametrize(("words", "command"), [("", cli.cli), *commands()])
def test_help_fits_a_terminal(words: str, command: click.Command) -> None:
    context = click.Context(command, info_name=f"precision-lint {words}", terminal_width=80)
    text = command.get_help(context)
    assert max(map(len, text.splitlines())) <= 80
    for option in command.params:
        assert not isinstance(option, click.Option) or all(flag in text for flag in option.opts)


def test_options_are_listed_by_what_they_are_about() -> None:
    context = click.Context(cli.cli.commands["check"], info_name="check")
    _, _, other = context.get_help().partition("\nOther:\n")
    (line,) = other.splitlines()
    assert "--help" in line.split()


def completed(*words: str) -> list[str]:
    """What completes the last of the words, ``file`` for what the shell knows better."""
    *before, incomplete = words
    shell = ShellComplete(cli.cli, {}, "precision-lint", "_PRECISION_LINT_COMPLETE")
    found = shell.get_completions(before, incomplete)
    return [item.value if item.type == "plain" else item.type for item in found]


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["exp"], ["file", "explain", "explain-at"]),
        (["--sel"], ["--select"]),
        (["--vers"], ["--version"]),
        (["src/"], ["file"]),
        (["src/", "--fi"], ["--fix"]),
        (["check", "--confidence", "l"], ["likely"]),
        (["--output-format", "ht"], ["html"]),
        (["explain", "MP10"], [code for code in registry.rules() if code.startswith("MP10")]),
        (["explain", "mp301"], ["MP301"]),
        (["explain", "eps-before"], ["eps-before-log"]),
        (["--ignore", "MP1,eins"], ["MP1,einsum-under-autocast"]),
        (["verify", "--select", "MP30"], [c for c in registry.rules() if c.startswith("MP30")]),
        (["baseline", "create", "--select", "MP401"], ["MP401"]),
        (["rules", "--output-format", "j"], ["json"]),
    ],
)
def test_words_are_completed(words: list[str], wanted: list[str]) -> None:
    assert completed(*words) == wanted


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_shells_get_a_script(shell: str) -> None:
    main = "import sys; from precision_lint.cli import main; sys.exit(main())"
    script = in_pipe("-c", main, _PRECISION_LINT_COMPLETE=f"{shell}_source")
    assert f"_PRECISION_LINT_COMPLETE={shell}_complete" in script
