"""``--since``: only what a branch adds.

The state where the branch left its base is laid out in a temporary directory and linted under the
present settings; what it has already, by content, counts as held by a baseline.  So a finding is
new that a change elsewhere brings about, and code that only moved is not.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from precision_lint import fingerprint, runner
from precision_lint.baseline import Counts
from precision_lint.cache import DIRECTORY
from precision_lint.config import ConfigError, Resolver, Settings
from precision_lint.jobs import Mode
from precision_lint.patterns import Patterns
from precision_lint.project import files
from precision_lint.runner import Result

_BATCH = 500
"""Files that one command of git is asked for."""
_NEEDED = tuple(
    name.encode() for name in (*files.SUFFIXES, *files.CONFIGS, *files.MARKERS, ".gitignore")
)
"""How the names end of files that the analysis reads."""
_KNOWN = {
    "not a git repository": ("{} is in no git repository", "leave --since out there"),
    "must be run in a work tree": ("{} is in no work tree of git", "lint a checkout instead"),
    "dubious ownership": (
        "git does not trust {}, which another user owns",
        "run `git config --global --add safe.directory {}`",
    ),
}
"""What git says of a directory, and how that is told; ``{}``: the directory."""


def check(
    paths: Sequence[Path],
    resolver: Resolver,
    ref: str,
    *,
    mode: Mode = Mode.CHECK,
    workers: int | None = None,
) -> Result:
    """Lint as ``runner.check`` does, less what was there where ``HEAD`` left ``ref``.

    The work tree is that of the first path.  The base is linted only where something is found, so a
    clean branch costs one run.  Raises ConfigError where git does not know the commit, or is not
    there.
    """
    first = files.absolute(paths[0])
    home = next(place for place in (first, *first.parents) if place.is_dir())
    repository = Repository(home, ref)
    whole = runner.check(paths, resolver, workers=workers)
    found = [Path(name) for name in dict.fromkeys(d.filename for d in whole.diagnostics)]
    if not found:
        return whole
    counts = repository.counts([files.absolute(path) for path in found], resolver, workers)
    result = runner.check(
        found, resolver, mode=mode, workers=workers, before=lambda path: counts.get(path, {})
    )
    result.files, result.lines, result.hidden = whole.files, whole.lines, whole.hidden
    result.torch = whole.torch
    result.errors, result.warnings, result.gone = whole.errors, whole.warnings, {}
    result.cut = whole.cut
    result.silenced += [s for s in whole.silenced if Path(s.diagnostic.filename) not in found]
    result.sources = whole.sources | result.sources
    result.seconds += whole.seconds
    return result


class Repository:
    """A work tree of git, and the commit in which its branch left ``ref``."""

    def __init__(self, directory: Path, ref: str) -> None:
        self._directory = directory
        self._ref = ref
        self.top = Path(self._git("rev-parse", "--show-toplevel").decode().rstrip("\n"))
        self._directory = self.top  # names in git's answers are relative to it
        base = self._run("merge-base", "--end-of-options", ref, "HEAD")
        if base.returncode:
            raise self._without_base(bool(base.stderr))
        self.base = base.stdout.decode().strip()

    def _run(self, *args: str, **variables: str) -> subprocess.CompletedProcess[bytes]:
        command = ["git", "-C", str(self._directory), *args]
        try:
            return subprocess.run(
                command, capture_output=True, env=os.environ | {"LC_ALL": "C"} | variables
            )
        except OSError as error:
            what = f"--since needs git, which cannot be run ({error.strerror})"
            raise ConfigError(f"{what}; install it") from None

    def _git(self, *args: str, **variables: str) -> bytes:
        done = self._run(*args, **variables)
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            what = said[0].removeprefix("fatal: ") if said else f"git {args[0]} failed"
            known = next((one for mark, one in _KNOWN.items() if mark in what), None)
            told = known or (what, "correct that, or leave --since out")
            raise self._mistake(*(text.replace("{}", str(self._directory)) for text in told))
        return done.stdout

    def _without_base(self, unknown: bool) -> ConfigError:
        """Why there is no base; ``unknown``: whether git knows no commit of that name."""
        if self._run("rev-parse", "--quiet", "--verify", "HEAD").returncode:
            return self._mistake("HEAD has no commit yet", "commit, or leave --since out")
        what = "git knows no such commit" if unknown else "it and HEAD have no commit in common"
        if self._run("rev-parse", "--is-shallow-repository").stdout.strip() == b"true":
            how = "run `git fetch --unshallow`, or set fetch-depth: 0 in CI"
            return self._mistake(f"{what}, and the clone is shallow", how)
        return self._mistake(
            what, "name a commit, and in CI fetch the whole history (fetch-depth: 0)"
        )

    def _mistake(self, what: str, hint: str) -> ConfigError:
        return ConfigError(f"--since {self._ref}: {what}; {hint}")

    def renamed(self) -> dict[Path, Path]:
        """Former absolute paths of the files that were renamed since the base."""
        fields = self._git(
            "diff", "--find-renames", "--diff-filter=R", "--name-status", "-z", self.base
        ).split(b"\0")
        pairs = zip(fields[1::3], fields[2::3], strict=False)
        return {self.top / os.fsdecode(new): self.top / os.fsdecode(old) for old, new in pairs}

    def counts(
        self, paths: Iterable[Path], resolver: Resolver, workers: int | None
    ) -> dict[Path, Counts]:
        """What each file had in the base."""
        former = self.renamed()
        with tempfile.TemporaryDirectory(prefix="precision-lint-") as name:
            # a resolved name, for the files' names are compared with it
            tree = Path(name).resolve() / self.top.name
            self._lay_out(tree)
            real = {Path(os.path.realpath(path.parent), path.name): path for path in paths}
            inside = {
                tree / former.get(path, path).relative_to(self.top): shown
                for path, shown in real.items()
                if path.is_relative_to(self.top)
            }
            present = [path for path in inside if path.is_file()]
            settings = _moved(resolver, tree, self.top)
            result = runner.check(present, settings, workers=workers)
        found: dict[Path, Counter[str]] = {path: Counter() for path in inside.values()}
        for diagnostic in result.found:
            source = result.sources.get(diagnostic.filename)
            if source:
                found[inside[Path(diagnostic.filename)]][fingerprint.key(diagnostic, source)] += 1
        return dict(found)

    def _lay_out(self, tree: Path) -> None:
        """Write the base's files below a directory, as a checkout would."""
        (tree / ".git").mkdir(parents=True)  # so that it is the root of a project
        index = str(tree / ".git" / "index")
        self._git("read-tree", self.base, GIT_INDEX_FILE=index)
        listed = self._git("ls-tree", "-r", "-z", "--name-only", "--full-tree", self.base)
        names = [os.fsdecode(name) for name in listed.split(b"\0") if name.endswith(_NEEDED)]
        for batch in (names[i : i + _BATCH] for i in range(0, len(names), _BATCH)):
            options = ("--force", f"--prefix={tree}{os.sep}", "--")
            variables = {"GIT_INDEX_FILE": index, "GIT_LFS_SKIP_SMUDGE": "1"}
            self._git("checkout-index", *options, *batch, **variables)


def _moved(resolver: Resolver, tree: Path, top: Path) -> Callable[[Path], Settings]:
    """The settings of the present directories for those of a copy."""

    def moved(patterns: Patterns) -> Patterns:
        if not patterns.base.is_relative_to(top):
            return patterns
        return Patterns(tree / patterns.base.relative_to(top), patterns.globs)

    @functools.cache
    def settings(directory: Path) -> Settings:
        inside = directory.is_relative_to(tree)
        present = top / directory.relative_to(tree) if inside else directory
        found = resolver(present)
        ignores = found.per_file_ignores
        return replace(
            found,
            exclude=moved(found.exclude),
            extend_exclude=tuple(moved(patterns) for patterns in found.extend_exclude),
            per_file_ignores=tuple(
                (moved(patterns), negated, codes) for patterns, negated, codes in ignores
            ),
            cache_dir=found.cache_dir or files.project_root(present) / DIRECTORY,
            baseline=None,
            force_exclude=False,
        )

    return settings
