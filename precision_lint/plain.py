"""Findings as plain data, to be kept: JSON without the name of their file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Evidence,
    Fix,
    Position,
    Severity,
    Silenced,
)
from precision_lint.jobs import Outcome


def encode(found: Iterable[Diagnostic], further: Iterable[Diagnostic] = ()) -> str:
    """Findings as JSON, and those that there would be if modes were stated."""
    here = [_plain_diagnostic(one) for one in found]
    return json.dumps([*here, *({**_plain_diagnostic(one), "then": True} for one in further)])


def _plain_diagnostic(one: Diagnostic) -> dict[str, Any]:
    plain = asdict(one)
    del plain["filename"]
    plain["severity"], plain["confidence"] = one.severity.value, one.confidence.value
    if one.fix is not None:
        plain["fix"]["applicability"] = one.fix.applicability.value
    return plain


def decode(text: str, filename: str) -> tuple[list[Diagnostic], list[Diagnostic]] | None:
    """Both in a file of this name from what ``encode`` wrote; None for anything else."""
    try:
        found = json.loads(text)
        if not isinstance(found, list):
            return None
        parts: tuple[list[Diagnostic], list[Diagnostic]] = [], []
        for one in found:
            parts[one.pop("then", False)].append(_diagnostic(one, filename))
        return parts
    except (ValueError, TypeError, KeyError):
        return None


def _diagnostic(plain: dict[str, Any], filename: str) -> Diagnostic:
    fix = plain["fix"]
    return Diagnostic(
        **{
            **plain,
            "filename": filename,
            "start": Position(**plain["start"]),
            "end": Position(**plain["end"]),
            "severity": Severity(plain["severity"]),
            "confidence": Confidence(plain["confidence"]),
            "evidence": tuple(_evidence(one) for one in plain["evidence"]),
            "fix": fix and _fix(fix),
            "modes": tuple(plain["modes"]),
            "assumptions": tuple(plain["assumptions"]),
        }
    )


def _evidence(plain: dict[str, Any]) -> Evidence:
    start, end = plain["start"], plain["end"]
    return Evidence(
        plain["message"],
        start and Position(**start),
        end and Position(**end),
        plain["filename"],
        plain["cause"],
    )


def _fix(plain: dict[str, Any]) -> Fix:
    return Fix(
        plain["title"],
        Applicability(plain["applicability"]),
        tuple(Edit(**one) for one in plain["edits"]),
        plain["reason"],
    )


def encode_outcomes(outcomes: Sequence[Outcome]) -> str:
    """What files came to, by their number, without those of which there is nothing to say."""
    plain = {
        number: [
            [_plain_diagnostic(d) for d in one.diagnostics],
            [[_plain_diagnostic(s.diagnostic), s.baseline, s.reason] for s in one.silenced],
            one.hidden,
            one.gone,
            one.cut,
            one.more,
            one.modes,
        ]
        for number, one in enumerate(outcomes)
        if one.diagnostics
        or one.silenced
        or one.hidden
        or one.gone
        or one.cut
        or one.more
        or one.modes
    }
    return json.dumps({"files": len(outcomes), "said": plain})


def decode_outcomes(text: str, filenames: Sequence[str]) -> list[Outcome] | None:
    """What ``encode_outcomes`` wrote of files by these names; None for anything else."""
    outcomes = [Outcome() for _ in filenames]
    try:
        whole = json.loads(text)
        if whole["files"] != len(filenames):
            return None
        for key, (found, silenced, hidden, gone, cut, more, modes) in whole["said"].items():
            name = filenames[int(key)]
            outcomes[int(key)] = Outcome(
                [_diagnostic(one, name) for one in found],
                hidden={level: int(count) for level, count in hidden.items()},
                silenced=tuple(
                    Silenced(_diagnostic(one, name), held, reason) for one, held, reason in silenced
                ),
                gone={key: int(count) for key, count in gone.items()},
                cut=tuple((what, function, times) for what, function, times in cut),
                more={mode: int(count) for mode, count in more.items()},
                modes=tuple((mode, place, flag) for mode, place, flag in modes),
            )
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return None
    return outcomes
