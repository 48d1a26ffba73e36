"""``--add-noqa``: a comment, with a reason, above each statement that has findings."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from precision_lint import fixer, report, shell, suppress
from precision_lint.project import files
from precision_lint.runner import Result
from precision_lint.source import Failure


def main(result: Result, reason: str) -> int:
    """Write the comments for what a run found; 2 if a file could not be written or read."""
    try:
        suppress.comment(["MP101"], reason)
    except ValueError:
        what = f'"{reason}" would not be read as a reason; leave out what else silences'
        raise click.BadParameter(what, param_hint="--add-noqa") from None
    comments = findings = 0
    failures = list(result.unread)
    for name, source in result.sources.items():
        found = [d for d in result.found if d.filename == name]
        edits = suppress.comments(source, found, reason)
        if not edits:
            continue
        path = files.absolute(Path(name))
        if target := fixer.elsewhere(path, files.project_root(path.parent)):
            what = f"is a link to {target}, outside of the project; name that file instead"
            failure: Failure | None = Failure(name, "MP001", what)
        else:
            failure = fixer.write(path, source.encode(), source.edited(edits))
        if failure:
            failures.append(failure.diagnostic())
            continue
        comments += len(edits)
        findings += sum(d.code not in {*suppress.ALWAYS_SHOWN, suppress.UNUSED} for d in found)
    if failures:
        shell.echo(report.FORMATS["concise"](failures, {}), sys.stderr)
    noun = "comment that silences" if comments == 1 else "comments that silence"
    what = "finding" if findings == 1 else "findings"
    shell.echo(f"Added {comments:,} {noun} {findings:,} {what}.", sys.stdout)
    return 2 if failures or result.errors else 0
