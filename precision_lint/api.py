"""All that a rule may import.

A rule is one module in ``rules/``.  It declares what it looks at (``triggers``), judges a
candidate with what the analysis knows about it (``check``, on the ``ast`` node or on an event of
the analysis), and answers with findings.  A finding may carry a fix, which is a set of text edits
made through LibCST slices (``Context.edit``), so every byte outside an edit stays as it is.

The types in this module know nothing about files, configuration or reports; those rooms know
these types.
"""

from __future__ import annotations

import ast
import enum
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from precision_lint.semantics.amp_arguments import BadArguments
    from precision_lint.semantics.angles import Angle
    from precision_lint.semantics.apart import Apart
    from precision_lint.semantics.apex import Apex
    from precision_lint.semantics.blanket import Blanket
    from precision_lint.semantics.care import Care
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.contractions import Reach
    from precision_lint.semantics.created import Created
    from precision_lint.semantics.doubts import Doubt
    from precision_lint.semantics.events import Promotion
    from precision_lint.semantics.extremes import Extreme
    from precision_lint.semantics.fed import Fed
    from precision_lint.semantics.forced import Forced
    from precision_lint.semantics.frameworks import Framework
    from precision_lint.semantics.gaps import Gaps
    from precision_lint.semantics.guards import Guard
    from precision_lint.semantics.half_trained import HalfTrained
    from precision_lint.semantics.halfcasts import HalfCast
    from precision_lint.semantics.halved import Halved
    from precision_lint.semantics.halves import Half
    from precision_lint.semantics.hardcoded import Hardcoded
    from precision_lint.semantics.helpers import Helper
    from precision_lint.semantics.kernels import Kernels
    from precision_lint.semantics.late_scale import LateScale
    from precision_lint.semantics.leaving import Leaving
    from precision_lint.semantics.left_half import LeftHalf
    from precision_lint.semantics.logits import LogOdds
    from precision_lint.semantics.lowered import Lowered
    from precision_lint.semantics.meeting import Meeting
    from precision_lint.semantics.moments import HandNorm, Mean, Power
    from precision_lint.semantics.noise import Noise
    from precision_lint.semantics.operands import Forgotten
    from precision_lint.semantics.outgrown import Outgrown
    from precision_lint.semantics.provenance import Provenance
    from precision_lint.semantics.quotients import Quotient, Upcast
    from precision_lint.semantics.region_end import RegionEnd
    from precision_lint.semantics.regions import Region
    from precision_lint.semantics.remedies import Remedy
    from precision_lint.semantics.scaler_life import ScalerLife
    from precision_lint.semantics.scalers import Scaler
    from precision_lint.semantics.sinks import Sink
    from precision_lint.semantics.unlike import Unlike
    from precision_lint.semantics.values import Value
    from precision_lint.semantics.violations import Violation
    from precision_lint.semantics.wide_backward import WideBackward
    from precision_lint.semantics.widening import Widening

__all__ = [
    "Angle",
    "Apart",
    "Apex",
    "Applicability",
    "BadArguments",
    "Blanket",
    "Care",
    "Confidence",
    "Context",
    "Created",
    "Diagnostic",
    "Doubt",
    "Edit",
    "Evidence",
    "Extreme",
    "Fed",
    "Finding",
    "Fix",
    "Forced",
    "Forgotten",
    "Framework",
    "Gaps",
    "Guard",
    "Half",
    "HalfCast",
    "HalfTrained",
    "Halved",
    "HandNorm",
    "Hardcoded",
    "Helper",
    "Kernels",
    "LateScale",
    "Leaving",
    "LeftHalf",
    "LogOdds",
    "Lowered",
    "Mean",
    "Meeting",
    "Noise",
    "Outgrown",
    "Position",
    "Power",
    "Promotion",
    "Provenance",
    "Quotient",
    "Reach",
    "Region",
    "RegionEnd",
    "Remedy",
    "Rule",
    "Scaler",
    "ScalerLife",
    "Severity",
    "Silenced",
    "Sink",
    "Triggers",
    "Unlike",
    "Upcast",
    "Value",
    "Violation",
    "WideBackward",
    "Widening",
    "calls",
    "events",
    "operators",
]


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

    ``POSSIBLE``: the pattern alone; not shown by default.
    ``LIKELY``: the project runs half precision and the code is plausibly under it.
    ``CERTAIN``: dtype and state are proven from the code.
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

    ``filename`` is None for the file of the finding itself.
    """

    message: str
    start: Position | None = None
    end: Position | None = None
    filename: str | None = None


@dataclass(frozen=True)
class Finding:
    """What a rule reports: a range of the file it looked at, and why."""

    message: str
    start: Position
    end: Position
    confidence: Confidence
    severity: Severity
    evidence: tuple[Evidence, ...] = ()
    fix: Fix | None = None


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


@dataclass(frozen=True)
class Silenced:
    """A diagnostic that is not reported: by a comment, or because a baseline holds it.

    ``reason`` is what the comment gives as such, and may be empty.
    """

    diagnostic: Diagnostic
    baseline: bool
    reason: str = ""


@dataclass(frozen=True)
class Triggers:
    """What a rule looks at.

    ``pattern`` is a regular expression on bytes: a file that it does not match is never parsed for
    this rule.  ``calls`` are qualified names of callables (``torch.log``) or tensor methods
    (``Tensor.log``); ``nodes`` are ``ast`` node or operator types (``ast.MatMult``); ``events``
    are kinds of events that the analysis emits (``semantics.events``).
    """

    pattern: str
    calls: frozenset[str] = frozenset()
    nodes: frozenset[type[ast.AST]] = frozenset()
    events: frozenset[str] = frozenset()

    def __or__(self, other: Triggers) -> Triggers:
        return Triggers(
            f"{self.pattern}|{other.pattern}",
            self.calls | other.calls,
            self.nodes | other.nodes,
            self.events | other.events,
        )


def calls(*names: str) -> Triggers:
    """Calls of these callables; ``Tensor.log`` is any method call ``x.log(...)``."""
    words = sorted({name.rpartition(".")[2] for name in names})
    return Triggers(r"\b(?:" + "|".join(map(re.escape, words)) + r")\b", calls=frozenset(names))


def operators(*nodes: type[ast.AST], pattern: str) -> Triggers:
    """Nodes or binary operators of these ``ast`` types in files that match ``pattern``."""
    return Triggers(pattern, nodes=frozenset(nodes))


def events(*kinds: str, pattern: str) -> Triggers:
    """Events that the analysis emits, in files that match ``pattern``."""
    return Triggers(pattern, events=frozenset(kinds))


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
    triggers: ClassVar[Triggers]
    since: ClassVar[str] = "0.1.0"
    preview: ClassVar[bool] = False
    """Whether it runs with ``--preview`` only: on real code, over 15 % of its alarms are wrong."""
    aliases: ClassVar[tuple[str, ...]] = ()
    """Other names, which select and silence it too."""

    def check(self, node: Any, at: Context) -> Iterator[Finding]:
        """Yield findings for one candidate: an ``ast`` node, or an event of the analysis."""
        raise NotImplementedError


_ANALYSIS = {
    "Angle": "angles",
    "Apart": "apart",
    "BadArguments": "amp_arguments",
    "Blanket": "blanket",
    "Care": "care",
    "Context": "context",
    "Created": "created",
    "Extreme": "extremes",
    "Fed": "fed",
    "Forced": "forced",
    "Forgotten": "operands",
    "Gaps": "gaps",
    "Doubt": "doubts",
    "Guard": "guards",
    "Half": "halves",
    "LateScale": "late_scale",
    "Leaving": "leaving",
    "LeftHalf": "left_half",
    "Lowered": "lowered",
    "Halved": "halved",
    "Hardcoded": "hardcoded",
    "Helper": "helpers",
    "Kernels": "kernels",
    "HalfCast": "halfcasts",
    "LogOdds": "logits",
    "Apex": "apex",
    "Framework": "frameworks",
    "HalfTrained": "half_trained",
    "ScalerLife": "scaler_life",
    "Meeting": "meeting",
    "HandNorm": "moments",
    "Mean": "moments",
    "Noise": "noise",
    "Power": "moments",
    "Outgrown": "outgrown",
    "Promotion": "events",
    "Provenance": "provenance",
    "Quotient": "quotients",
    "Reach": "contractions",
    "Region": "regions",
    "Remedy": "remedies",
    "Scaler": "scalers",
    "RegionEnd": "region_end",
    "Sink": "sinks",
    "Unlike": "unlike",
    "WideBackward": "wide_backward",
    "Widening": "widening",
    "Upcast": "quotients",
    "Value": "values",
    "Violation": "violations",
}


def __getattr__(name: str) -> Any:
    if name in _ANALYSIS:  # imported late: the analysis imports this module
        return getattr(import_module(f"precision_lint.semantics.{_ANALYSIS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
