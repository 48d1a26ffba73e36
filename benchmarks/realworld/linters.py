"""Linters as commands: how each is run, what it prints, which of its rules fit a category."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.realworld.cases import categories

DEFAULT = frozenset({None, "likely", "certain"})
"""Confidences that a linter shows by default; most linters know none."""


class Failed(Exception):
    """A run that gave no findings to judge; the text says in one line why."""


@dataclass(frozen=True)
class Finding:
    """A finding; ``file`` as the linter names it, ``row`` of its start, from 1."""

    file: str
    row: int
    code: str
    name: str = ""
    confidence: str | None = None


@dataclass(frozen=True)
class Linter:
    """A linter and how to run it; the paths to lint are appended to the command.

    ``exits``: exit codes of a run that came to its end, None for any.  ``lists``: it is given
    every file, because it does not search directories.  ``known``: the codes of rules it has.
    """

    name: str
    executable: tuple[str, ...]
    options: tuple[str, ...]
    parse: Callable[[str], Iterable[Finding]]
    exits: Container[int] | None = frozenset({0})
    lists: bool = False
    known: Callable[[Linter], frozenset[str]] | None = None
    version_options: tuple[str, ...] = ("--version",)

    def fitting(self) -> dict[str, frozenset[str]]:
        """By category the codes and names of the rules that fit it and that this linter has."""
        fitting = {name: row.rules.get(self.name, ()) for name, row in categories().items()}
        if self.known:
            known = self.known(self)
            fitting = {
                name: tuple(rule for rule in rules if rule & known)
                for name, rules in fitting.items()
            }
        return {name: frozenset[str]().union(*rules) for name, rules in fitting.items()}

    def version(self) -> str:
        """What the linter says of its version, in one line."""
        output, _, _ = _run([*self.executable, *self.version_options], None, 60)
        return ", ".join(line.strip() for line in output.splitlines() if line.strip())

    def run(self, folder: Path, paths: Sequence[str], timeout: float) -> tuple[list[Finding], int]:
        """Lint paths relative to ``folder``, the working directory: findings and exit code.

        :raises Failed: if the linter cannot be run, ends early or prints what cannot be read
        """
        command = [*self.executable, *self.options, *paths]
        output, complaint, code = _run(command, folder, timeout)
        last = ((complaint or output).strip().splitlines() or ["it said nothing"])[-1]
        if self.exits is not None and code not in self.exits:
            raise Failed(f"{self.name} ended with {code}: {last}")
        try:
            return list(self.parse(output)), code
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise Failed(
                f"output of {self.name} cannot be read ({type(error).__name__}), it ended with "
                f"{code}: {last[:100]}"
            ) from error


def _run(command: Sequence[str], folder: Path | None, timeout: float) -> tuple[str, str, int]:
    """What a command prints, what it complains of, and its exit code.

    :raises Failed: if it cannot be run or takes too long
    """
    try:
        child = subprocess.Popen(
            command, cwd=folder, text=True, encoding="utf-8", errors="replace",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        raise Failed(f"{command[0]} cannot be run ({error.strerror}); install it") from error
    with child:
        try:
            output, complaint = child.communicate(timeout=timeout)
        except BaseException as error:
            _kill(child)
            if isinstance(error, subprocess.TimeoutExpired):
                raise Failed(f"no result after {timeout:g} s; raise --timeout") from error
            raise
    return output, complaint, child.returncode


def _kill(child: subprocess.Popen[str]) -> None:
    """End a child and the processes that it started."""
    with contextlib.suppress(ProcessLookupError):
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()


# Parsers: what a linter printed to findings; its own errors (a file it cannot parse) are none.


def parse_json(text: str) -> Iterator[Finding]:
    """A list, or an object with one under ``findings``; rows as ``location.row`` or ``line``."""
    found = json.loads(text)
    for one in found.get("findings", []) if isinstance(found, dict) else found:
        yield Finding(
            one.get("filename") or one.get("path") or "",
            int((one.get("location") or {}).get("row") or one.get("line") or 0),
            one.get("code") or "",
            one.get("name") or "",
            one.get("confidence"),
        )


def parse_precision_lint(text: str) -> Iterator[Finding]:
    """``--output-format json``, without the tool's own diagnostics MP001 to MP005."""
    return (one for one in parse_json(text) if not one.code.startswith("MP0"))


def parse_ruff(text: str) -> Iterator[Finding]:
    """``--output-format json``; a syntax error has no rule."""
    return (one for one in parse_json(text) if one.code not in ("", "invalid-syntax"))


def parse_torchfix(text: str) -> Iterator[Finding]:
    """Lines ``file:row:column: TOR101 [*] message``, among diffs of what could be fixed."""
    for line in text.splitlines():
        if match := re.match(r"(?P<file>\S.*?):(?P<row>\d+):\d+: (?P<code>TOR\d{3})\b", line):
            yield Finding(match["file"], int(match["row"]), match["code"])


def parse_pylint(text: str) -> Iterator[Finding]:
    """pylint's ``--output-format=json``, after what a plug-in printed on its own."""
    begin = re.search(r"^\[$|^\[\]$", text, re.MULTILINE)
    found, _ = json.JSONDecoder().raw_decode(text, begin.start() if begin else 0)
    for one in found:
        if one["message-id"][0] not in "EF":
            yield Finding(one["path"], one["line"], one["message-id"], one["symbol"])


def parse_semgrep(text: str) -> Iterator[Finding]:
    """``--json``; a rule's id follows the dotted path of the file that it is defined in."""
    for one in json.loads(text)["results"]:
        rule = one["check_id"].rpartition(".")[2]
        yield Finding(one["path"], one["start"]["line"], "", rule)


def _rules(linter: Linter) -> frozenset[str]:
    command = [*linter.executable, "rules", "--output-format", "json"]
    output, complaint, code = _run(command, None, 60)
    if code:
        raise Failed(f"{linter.name} cannot list its rules: {complaint.strip()}")
    return frozenset(rule["code"] for rule in json.loads(output))


DSLINTER = (
    "import", "unnecessary-iteration-pandas", "unnecessary-iteration-tensorflow", "nan-numpy",
    "chain-indexing-pandas", "datatype-pandas", "column-selection-pandas",
    "merge-parameter-pandas", "inplace-pandas", "dataframe-conversion-pandas",
    "scaler-missing-scikitlearn", "hyperparameters-scikitlearn", "hyperparameters-tensorflow",
    "hyperparameters-pytorch", "memory-release-tensorflow", "deterministic-pytorch",
    "randomness-control-numpy", "randomness-control-scikitlearn",
    "randomness-control-tensorflow", "randomness-control-pytorch",
    "randomness-control-dataloader-pytorch", "missing-mask-tensorflow", "missing-mask-pytorch",
    "tensor-array-tensorflow", "forward-pytorch", "gradient-clear-pytorch",
    "pipeline-not-used-scikitlearn", "dependent-threshold-scikitlearn",
    "dependent-threshold-tensorflow", "dependent-threshold-pytorch",
)  # fmt: skip
"""Checks of dslinter 2.0.9."""

LINTERS = {
    linter.name: linter
    for linter in (
        Linter(
            "precision-lint",
            (sys.executable, "-I", "-m", "precision_lint"),  # -I: nothing is imported from a tree
            ("check", "--isolated", "--no-cache", "--no-respect-gitignore",
             "--confidence", "possible", "--output-format", "json", "--exit-zero", "--jobs", "1"),
            parse_precision_lint,
            exits={0, 2},  # 2: a file could not be linted, or a rule crashed
            known=_rules,
        ),
        Linter("torchfix", ("torchfix",), ("--select", "ALL", "--jobs", "1"), parse_torchfix),
        Linter(
            "ruff",
            ("ruff",),
            ("check", "--select", "ALL", "--output-format", "json", "--isolated", "--no-cache",
             "--no-respect-gitignore", "--exit-zero"),
            parse_ruff,
        ),
        Linter(
            "dslinter",
            ("pylint",),
            (f"--rcfile={os.devnull}", "--load-plugins=dslinter", "--disable=all",
             f"--enable={','.join(DSLINTER)}", "--output-format=json", "--jobs=1"),
            parse_pylint,
            exits=range(32),  # bits for the kinds of messages; 32 is a usage error
            lists=True,
        ),
        Linter(
            "semgrep",
            ("semgrep",),
            ("scan", "--json", "--quiet", "--metrics=off", "--disable-version-check",
             "--no-git-ignore", "--jobs", "1"),
            parse_semgrep,
            exits={0, 1},
            version_options=("--version", "--disable-version-check"),
        ),
    )
}  # fmt: skip


def command(words: Sequence[str]) -> Linter:
    """A linter of one's own, which prints JSON as ``parse_json`` reads it."""
    return Linter("command", (located(words[0]),), tuple(words[1:]), parse_json, exits=None)


def located(path: str) -> str:
    """A path that means the same in another working directory; a bare name or URL is kept."""
    return str(Path(path).absolute()) if os.sep in path and Path(path).exists() else path
