"""One file to lint: what a run asks of it, and what it came to."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from precision_lint import registry
from precision_lint.api import Confidence, Diagnostic, Severity, Silenced
from precision_lint.project import files
from precision_lint.project.contents import TENSORS, Contents
from precision_lint.source import may_hold_tensors

if TYPE_CHECKING:
    from precision_lint.baseline import Counts
    from precision_lint.source import Source

Cut = tuple[str, str, int]
"""A bound that was reached (``Program.count``), the function's qualified name, and how often."""
Assumed = tuple[str, str, bool]
"""A mode that is in force, the place that shows it, and whether an option or a condition decides there."""
Before = Callable[[Path], "Counts"]
"""What there was in a file, by its absolute path, before a branch changed it."""


class Mode(enum.Enum):
    """What to do about findings that have a fix."""

    CHECK = "check"
    FIX = "fix"
    DIFF = "diff"


@dataclass(frozen=True)
class Job:
    """One file to analyse, small enough to be sent to another process."""

    path: Path
    name: str
    root: Path
    codes: frozenset[str]
    confidence: Confidence
    fail_on: Severity
    unsafe_fixes: bool
    mode: Mode
    held: Counts | None = None
    """What a baseline holds of the file; None: there is no baseline."""
    stated: tuple[str, ...] | None = None
    """The precision modes that the user states; None: nothing is stated."""
    device: tuple[str, ...] | None = None
    """The devices that the user states; None: nothing is stated."""


@dataclass
class Outcome:
    """What one file came to."""

    diagnostics: list[Diagnostic] = field(default_factory=list)
    text: Source | None = None
    hidden: dict[str, int] = field(default_factory=dict)
    """Findings below the confidence threshold, by confidence."""
    silenced: tuple[Silenced, ...] = ()
    gone: Counts = field(default_factory=dict)
    fixed: tuple[Diagnostic, ...] = ()
    diff: bytes = b""
    fresh: str | None = None
    """What was found, to be remembered."""
    notes: tuple[str, ...] = ()
    """What else there is to be said of the file."""
    cut: tuple[Cut, ...] = ()
    """What a bound of the analysis cut off."""
    more: dict[str, int] = field(default_factory=dict)
    """Findings that would be shown as well if a mode were stated, by mode."""
    modes: tuple[Assumed, ...] = ()
    """In the first of a run: the modes that the code shows to be in force."""


def job_of(file: files.File, mode: Mode, before: Before | None = None) -> Job:
    """What a run asks of a file."""
    settings = file.settings
    held: Counts | None = None
    if settings.baseline or before is not None:
        from precision_lint import baseline  # late: few runs have one

        held = baseline.held(settings.baseline, file.path) if settings.baseline else None
        held = baseline.most(held or {}, before(file.path)) if before is not None else held
    return Job(
        file.path,
        file.name,
        file.root,
        settings.codes_for(file.path),
        settings.confidence,
        settings.fail_on,
        settings.unsafe_fixes,
        mode,
        held,
        settings.modes_for(file.path),
        settings.devices_for(file.path),
    )


def is_relevant(data: bytes, codes: Collection[str]) -> bool:
    """Whether any rule could find anything in these bytes."""
    return _asks_for_any(codes) and may_hold_tensors(data)


def holds(job: Job, found: Contents | None) -> bool:
    """Whether any rule could find anything in a file with these contents."""
    tensors = found is not None and bool(found.flags & TENSORS)
    return tensors and _asks_for_any(job.codes)


def _asks_for_any(codes: Collection[str]) -> bool:
    """Whether a rule is among some codes, or what is wrong with stated facts (MP005)."""
    return "MP005" in codes or not registry.entries().keys().isdisjoint(codes)
