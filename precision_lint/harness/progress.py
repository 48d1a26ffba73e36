"""A bar on a terminal, and nothing anywhere else."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def bar(total: int, what: str = "cases") -> Iterator[Callable[[str], None]]:
    """Call what is given with a label after each of ``total`` steps, from any thread.

    The bar is on standard error, has the remaining time, and is gone at the end.  In a pipe, in CI
    and without rich there is none.
    """
    tty = sys.stderr is not None and sys.stderr.isatty()
    if not tty or os.environ.get("CI") or os.environ.get("TERM") == "dumb":
        yield lambda label: None
        return
    try:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
        )
    except ImportError:
        yield lambda label: None
        return
    with Progress(
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(what),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=Console(stderr=True),
        transient=True,
    ) as progress:
        task = progress.add_task("", total=total)
        yield lambda label: progress.update(task, advance=1, description=label[:60])
