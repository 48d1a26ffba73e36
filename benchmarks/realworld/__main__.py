"""Score a linter on mixed-precision bugs that were really fixed.

python -m benchmarks.realworld --mirrors DIR
python -m benchmarks.realworld --mirrors DIR --set held-out
python -m benchmarks.realworld --clone --linter torchfix --scope file --output torchfix.json
python -m benchmarks.realworld --mirrors DIR --rules fitting.json -- my-linter --json
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.realworld.cases import KINDS, SETS, Entry, categories, load
from benchmarks.realworld.linters import LINTERS, Failed, Finding, Linter, command, located
from benchmarks.realworld.score import FLAGS, Alarms, Verdict, alarms, judged, report, summary
from benchmarks.realworld.trees import Tree, Trees, Unavailable

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "precision-lint-realworld")


@dataclass(frozen=True)
class Outcome:
    """What came of one tree; without a source there is neither a tree nor a verdict."""

    tree: Tree | None
    verdicts: tuple[Verdict, ...]
    alarms: Alarms | None
    problems: tuple[str, ...]


@dataclass(frozen=True)
class Runner:
    """One linter over trees; ``scope`` is "tree" or, for the labelled files only, "file"."""

    linter: Linter
    fitting: Mapping[str, frozenset[str]]
    trees: Trees
    scope: str
    timeout: float

    def outcome(self, entries: Sequence[Entry]) -> Outcome:
        """Lint what the entries share of a tree, and judge them; a failed run flags nothing."""
        repo, commit = entries[0].repo, entries[0].commit
        try:
            tree = self.trees.get(repo, commit)
        except Unavailable as error:
            return Outcome(None, (), None, (str(error),))
        where = f"{repo}@{commit[:12]}"
        here = [one for one in entries if (tree.path / one.file).is_file()]
        problems = [
            f"{where}: {one.file} of {one.id} is not there; repair the mirror or the entry"
            for one in entries
            if one not in here
        ]
        paths, lines = self._targets(tree, here, entries[0].within)
        findings: list[Finding] = []
        said = None
        try:
            if paths:
                findings, code = self.linter.run(tree.path, paths, self.timeout)
                said = alarms(findings, tree, self.fitting, lines)
                note = f", exit code {code}" if code else ""
                print(f"{where}: {len(findings)} findings{note}", file=sys.stderr, flush=True)
        except Failed as error:
            problems.append(f"{where}: {error}")
        verdicts = (judged(one, findings, tree, self.fitting) for one in here)
        return Outcome(tree, tuple(one for one in verdicts if one), said, tuple(problems))

    def _targets(
        self, tree: Tree, entries: Sequence[Entry], within: str | None
    ) -> tuple[list[str], int]:
        """What to lint, relative to the tree, and its lines of Python."""
        if self.scope == "tree" and not (within or self.linter.lists):
            return ["."], tree.lines
        if self.scope == "file":
            found = [tree.path / name for name in sorted({one.file for one in entries})]
        else:
            found = sorted((tree.path / (within or ".")).rglob("*.py"))
        lines = sum(one.read_bytes().count(b"\n") for one in found)
        if self.scope == "file" or self.linter.lists:
            return [one.relative_to(tree.path).as_posix() for one in found], lines
        return [within or "."], lines


def selected(only: str | None, of: str | None) -> list[list[Entry]]:
    """The entries by what is linted: of a set, and ``only`` a repository's part, or an id."""
    trees: dict[tuple[str, str, str], list[Entry]] = {}
    for kind in KINDS:
        for entry in load(kind):
            named = only is None or only in entry.repo or only == entry.id
            if entry.lines and named and of in (None, entry.set):
                key = (entry.repo, entry.commit, entry.within or "")
                trees.setdefault(key, []).append(entry)
    return [trees[key] for key in sorted(trees)]


def newest(outcomes: Sequence[Outcome]) -> list[Alarms]:
    """The alarms in the tree of each repository that was committed last, or its largest part."""
    heads: dict[str, tuple[int, int, Alarms]] = {}
    for one in outcomes:
        if one.tree and one.alarms:
            head = (one.tree.committed, one.alarms.lines, one.alarms)
            heads[one.tree.repo] = max(head, heads.get(one.tree.repo, head), key=lambda h: h[:2])
    return [said for *_, said in heads.values()]


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.realworld",
        description="Score a linter on mixed-precision bugs that were really fixed.",
        usage="%(prog)s [options] [-- COMMAND ...]",
    )
    add = parser.add_argument
    add("--mirrors", type=Path, metavar="DIR", help="git repositories in DIR/<owner>+<name>/")
    add(
        "--clone", nargs="?", const="https://github.com", metavar="URL",
        help="clone what no mirror has, from URL/<owner>/<name>, by default from GitHub",
    )  # fmt: skip
    add(
        "--work", type=Path, default=CACHE, metavar="DIR", help="for trees and clones (%(default)s)"
    )
    add("--linter", choices=LINTERS, default="precision-lint", help="default: %(default)s")
    add("--executable", metavar="PATH", help="the linter's, if it is not on PATH")
    add("--config", metavar="PATH", help="rules for semgrep, which brings none")
    add("--rules", type=Path, metavar="FILE", help="JSON: by category, COMMAND's fitting rules")
    add("--scope", choices=("tree", "file"), default="tree", help="file: labelled files only")
    add("--set", choices=SETS, help="default: all")
    add("--only", metavar="REPO|ID", help="a part of a repository's name, or an entry's id")
    add("--jobs", type=int, default=os.cpu_count() or 1, metavar="N", help="trees at a time")
    add("--timeout", type=float, default=600, metavar="SECONDS", help="for one tree")
    add("--output", type=Path, metavar="FILE", help="write figures and verdicts as JSON")
    add("command", nargs="*", help="a linter that prints JSON; the paths are appended")
    return parser


def chosen(options: argparse.Namespace) -> tuple[Linter, dict[str, frozenset[str]]]:
    """The linter to run, and its rules by category."""
    if options.command:
        rules = json.loads(options.rules.read_text()) if options.rules else {}
        return command(options.command), {
            name: frozenset(rules.get(name, ())) for name in categories()
        }
    linter = LINTERS[options.linter]
    if options.executable:
        linter = dataclasses.replace(linter, executable=(located(options.executable),))
    if options.config:
        rules = ("--config", located(options.config))
        linter = dataclasses.replace(linter, options=(*linter.options, *rules))
    return linter, linter.fitting()


def results(
    linter: Linter, version: str, scope: str, outcomes: Sequence[Outcome]
) -> dict[str, Any]:
    """What ``--output`` writes: figures, then what they are made of."""
    verdicts = [verdict for one in outcomes for verdict in one.verdicts]
    heads = newest(outcomes)
    return {
        "linter": linter.name,
        "version": version,
        "scope": scope,
        "date": datetime.date.today().isoformat(),
        "problems": [problem for one in outcomes for problem in one.problems],
        "figures": summary(verdicts, heads),
        "sets": {
            name: summary(
                [one for one in verdicts if one.set == name],
                newest([one for one in outcomes if name in {said.set for said in one.verdicts}]),
            )
            for name in SETS
            if name in {one.set for one in verdicts}
        },
        "alarms": [dataclasses.asdict(one) for one in heads],
        "verdicts": [
            {key: getattr(one, key) for key in ("id", *FLAGS, "rules")} for one in verdicts
        ],
    }


def written(found: Mapping[str, Any]) -> str:
    """JSON with one line for each alarm and verdict."""
    rows = {key: found[key] for key in ("alarms", "verdicts")}
    text = json.dumps({**found, **{key: [] for key in rows}}, indent=1)
    for key, values in rows.items():
        lines = ",\n".join(f"  {json.dumps(value)}" for value in values)
        text = text.replace(f'"{key}": []', f'"{key}": [\n{lines}\n ]')
    return f"{text}\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 if every tree was judged, 1 if not, 2 if there was nothing to run."""
    parser = arguments()
    options = parser.parse_args(argv)
    try:
        linter, fitting = chosen(options)
        version = linter.version()
    except (Failed, OSError, ValueError) as error:
        parser.error(str(error))
    groups = selected(options.only, options.set)
    if not groups:
        of = f" in the set {options.set}" if options.set else ""
        parser.error(f"nothing matches --only {options.only}{of}; give a part of a name, or an id")
    trees = Trees(options.work, options.mirrors, options.clone)
    runner = Runner(linter, fitting, trees, options.scope, options.timeout)
    with ThreadPoolExecutor(options.jobs) as pool:
        outcomes = list(pool.map(runner.outcome, groups))
    found = results(linter, version, options.scope, outcomes)
    print(f"{linter.name} ({version}), {len(groups)} trees, scope {options.scope}")
    print(report(found["figures"], found["sets"]))
    for problem in found["problems"]:
        print(f"problem: {problem}", file=sys.stderr)
    if options.output:
        options.output.write_text(written(found))
    return 1 if found["problems"] else 0


if __name__ == "__main__":
    sys.exit(main())
