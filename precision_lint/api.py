"""All that a rule may import.

A rule is one module in ``rules/``.  It names the kinds of events that it listens to (``listens``): hazards
that the analysis found (``precision_lint.events``), or operations (``operation:log``: every logarithm of
a tensor, however it is spelt).  ``check`` puts one event into words and offers a fix, which is a set of
text edits that ``Context`` makes; every byte outside an edit stays as it is.  What the finding rests on,
and how sure it is, follows from the event: no rule writes a confidence.

The types in this module know nothing about files, configuration or reports; those rooms know
these types.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from precision_lint.events import Event, Link, Place

if TYPE_CHECKING:
    from precision_lint.context import Context

__all__ = [
    "Applicability",
    "Confidence",
    "Context",
    "Cost",
    "Diagnostic",
    "Edit",
    "Edits",
    "Event",
    "Evidence",
    "Finding",
    "Fix",
    "Link",
    "Place",
    "Position",
    "Rule",
    "Severity",
    "Silenced",
]


class Cost(enum.Enum):
    """What a hazard costs who does not know of it, dearest first."""

    SILENT = "wrong in silence"
    """A wrong result, or a training that fails or learns nothing, without a word."""
    RAISES = "raises"
    """An exception, which says where it comes from."""
    STYLE = "style"
    """Nothing yet."""

    @property
    def rank(self) -> int:
        return list(Cost).index(self)


class Severity(enum.Enum):
    """How bad a finding is; ``--fail-on`` names the least severity that fails a run."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"

    @property
    def rank(self) -> int:
        return ("info", "warning", "error").index(self.value)


class Confidence(enum.Enum):
    """How sure the analysis is.

    ``POSSIBLE``: the hazard is there if assumptions hold that are often wrong; not shown by default.
    ``LIKELY``: it rests on assumptions that are mostly right.
    ``CERTAIN``: it follows from the code alone.
    """

    POSSIBLE = "possible"
    LIKELY = "likely"
    CERTAIN = "certain"

    @property
    def rank(self) -> int:
        return ("possible", "likely", "certain").index(self.value)


class Applicability(enum.Enum):
    """What a fix promises.

    ``SAFE``: float32 results stay the same; ``--fix`` applies it.
    ``UNSAFE``: changes float32 results within a stated bound, or needs a judgement;
    ``--unsafe-fixes`` applies it too.
    ``DISPLAY``: shown, never applied.
    """

    SAFE = "safe"
    UNSAFE = "unsafe"
    DISPLAY = "display"


@dataclass(frozen=True, order=True)
class Position:
    """A place in a text: ``row`` and ``column`` count from 1, columns in characters."""

    row: int
    column: int


@dataclass(frozen=True, order=True)
class Edit:
    """Replace the characters ``start:end`` (offsets into ``Source.text``) by ``text``."""

    start: int
    end: int
    text: str


Edits = tuple[Edit, ...]


@dataclass(frozen=True)
class Fix:
    """A set of edits that belong together; ``title`` is a verb phrase for the user.

    ``reason`` says why a fix is unsafe or display only; a safe fix has none.
    """

    title: str
    applicability: Applicability
    edits: tuple[Edit, ...]
    reason: str | None = None


@dataclass(frozen=True)
class Evidence:
    """One link of the chain that made the tool believe a finding.

    ``filename`` is None for the file of the finding itself.  ``cause``: whether the finding stands there, and
    only there, in a run over both files.
    """

    message: str
    start: Position | None = None
    end: Position | None = None
    filename: str | None = None
    cause: bool = False


@dataclass(frozen=True)
class Finding:
    """What a rule says of an event.

    place: where the finding stands, the event's place if None.  related: other places that it names.
    severity: the rule's if None.
    """

    message: str
    place: Place | None = None
    fix: Fix | None = None
    related: tuple[Link, ...] = ()
    severity: Severity | None = None


@dataclass(frozen=True)
class Diagnostic:
    """A finding as every report receives it."""

    code: str
    name: str
    message: str
    filename: str
    start: Position
    end: Position
    severity: Severity
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()
    fix: Fix | None = None
    url: str | None = None
    internal: bool = field(default=False, compare=False)
    """True for the tool's own failure (a rule that crashed), which exits with 2."""
    modes: tuple[str, ...] = field(default=(), compare=False)
    """The precision modes in which it is found, as ``precision`` names them; ``code``: as it is written."""
    assumptions: tuple[str, ...] = field(default=(), compare=False)
    """What it assumes, the least sure first."""


@dataclass(frozen=True)
class Silenced:
    """A diagnostic that is not reported: by a comment, or because a baseline holds it.

    ``reason`` is what the comment gives as such, and may be empty.
    """

    diagnostic: Diagnostic
    baseline: bool
    reason: str = ""


class Rule:
    """Base of every rule; its docstring is its documentation.

    The docstring's first line says what is flagged.  Sections follow in fixed order: ``## What it
    flags``, ``## Why it breaks``, ``## Example``, ``## Fix safety``, ``## How to silence``,
    ``## Sources``.
    """

    code: ClassVar[str]
    """``MP`` and three digits."""
    name: ClassVar[str]
    """Kebab-case name of the hazard."""
    severity: ClassVar[Severity]
    applicability: ClassVar[Applicability | None]
    """The strongest promise any fix of this rule makes; None: it never fixes."""
    listens: ClassVar[tuple[str, ...]]
    """Kinds of events, or operations: ``operation:log``, and ``half:log``, ``float16:log`` or
    ``bfloat16:log`` for those that compute in such a dtype."""
    supersedes: ClassVar[tuple[str, ...]] = ()
    """Codes of rules whose findings this one's replace where both speak of one defect."""
    since: ClassVar[str] = "0.1.0"
    preview: ClassVar[bool] = False
    """Whether it runs with ``--preview`` only: on real code, over 15 % of its alarms are wrong."""
    cost: ClassVar[Cost] = Cost.SILENT
    """What it costs who does not know of it: reports show the dearest first."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names, which select and silence it too."""

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        """Say what is wrong; nothing if the rule has nothing to say of this event."""
        raise NotImplementedError


def __getattr__(name: str) -> type:
    if name == "Context":  # imported late: it imports this module
        from precision_lint.context import Context

        return Context
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
