"""How far a long run is: a bar on a terminal, and nothing anywhere else.

Stages tell with ``begin`` and ``step`` what they do, whoever listens: ``shown`` does, and draws on
standard error.  A bar is gone at the end.  In a pipe, in CI and without rich there is none.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

AFTER = 1.0
"""Seconds that a run may take before it shows a bar."""
EVERY = 0.1
"""Seconds between two drawings."""


def _terminal() -> bool:
    tty = sys.stderr is not None and sys.stderr.isatty()
    dull = os.environ.get("CI") or os.environ.get("TERM") == "dumb"
    return tty and not dull and importlib.util.find_spec("rich") is not None


def _columns(what: str, alone: bool) -> Progress:
    """A bar with its count and the time that is left; ``alone``: drawn by this thread only."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    label = TextColumn("{task.description}")
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn(what), TimeRemainingColumn())
    return Progress(
        *((label, *columns) if alone else (*columns, label)),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=not alone,
        redirect_stdout=False,
        redirect_stderr=False,
    )


@contextlib.contextmanager
def bar(total: int, what: str = "cases") -> Iterator[Callable[[str], None]]:
    """Call what is given with a label after each of ``total`` steps, from any thread."""
    if not _terminal():
        yield lambda label: None
        return
    with _columns(what, alone=False) as progress:
        task = progress.add_task("", total=total)
        yield lambda label: progress.update(task, advance=1, description=label[:60])


class _Stages:
    """Draws the stage that a run is in, from ``AFTER`` seconds on."""

    def __init__(self) -> None:
        self.started = time.monotonic()
        self.drawn = 0.0
        self.what, self.total, self.done = "", 0, 0
        self.progress: Progress | None = None

    def draw(self, now: float) -> None:
        self.drawn = now
        if self.progress is None:  # no thread of its own: workers are forked while it is shown
            self.progress = _columns("files", alone=True)
            self.progress.add_task(self.what, total=self.total)
            self.progress.start()
        task = self.progress.tasks[0]
        if task.description != self.what:
            self.progress.reset(task.id, description=self.what, total=self.total)
        self.progress.update(task.id, completed=min(self.done, self.total))
        self.progress.refresh()

    def tell(self) -> None:
        now = time.monotonic()
        if now - self.started > AFTER and now - self.drawn > EVERY:
            self.draw(now)


_stages: _Stages | None = None


@contextlib.contextmanager
def shown(wanted: bool = True) -> Iterator[None]:
    """Show the stages of what runs inside, if that is wanted and there is a terminal."""
    global _stages
    if not wanted or not _terminal():
        yield
        return
    _stages = _Stages()
    try:
        yield
    finally:
        if _stages.progress is not None:
            _stages.progress.stop()
        _stages = None


def hide() -> None:
    """Draw nothing in this process, which is a copy of the one that does."""
    global _stages
    _stages = None


def begin(what: str, total: int) -> None:
    """A stage begins that goes through so many files."""
    if _stages is not None:
        _stages.what, _stages.total, _stages.done = what, total, 0
        _stages.tell()


def step() -> None:
    """One file of the stage is done."""
    if _stages is not None:
        _stages.done += 1
        _stages.tell()
