"""Precision modes that are in force for a file: stated by the user, proved by code, or suggested."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precision_lint.domains.dtypes import AMP16, AMPBF, CODE, HALF16, HALFBF
from precision_lint.events import Sign


class Strength(enum.IntEnum):
    """Why a mode is believed to be in force, weakest first."""

    PROJECT = 1
    """Something elsewhere in the project runs so."""
    IMPORTER = 2
    """A file that imports this one runs so."""
    FILE = 3
    """The file itself runs so."""
    STATED = 4
    """The user says so."""


@dataclass(frozen=True)
class Force:
    """The modes in force for one file, each with its strength and the place that shows it.

    stated: whether the user says so, and no other mode is to be looked at.
    """

    modes: Mapping[int, tuple[Strength, Sign | None]] = field(default_factory=dict)
    stated: bool = False

    def of(self, mode: int) -> Strength | None:
        """How strongly a mode is in force; None: it is not."""
        found = self.modes.get(mode)
        return found[0] if found is not None else None

    def under(self, stated: Iterable[str] | None) -> Force:
        """What is in force where the user states modes; None: nothing is stated."""
        if stated is None:
            return self
        modes = (MODES[name] for name in stated)
        signs = {mode: self.modes[mode][1] if mode in self.modes else None for mode in modes}
        return Force({mode: (Strength.STATED, sign) for mode, sign in signs.items()}, stated=True)


MODES = {
    "amp-float16": AMP16,
    "amp-bfloat16": AMPBF,
    "float16": HALF16,
    "bfloat16": HALFBF,
}
"""Modes by the names that users give them."""


def force(
    path: str,
    signs: Iterable[Sign],
    importers: Iterable[str] = (),
) -> Force:
    """What the code shows to be in force for a file.

    importers: files that import it, directly or not.
    """
    found: dict[int, tuple[Strength, Sign | None]] = {}
    around = frozenset(importers)
    for sign in signs:
        if sign.place.path == path:
            strength = Strength.FILE
        elif sign.script:
            continue
        elif not sign.inside and (sign.place.path in around or not around):
            # a file that nothing imports is handed to what runs, by name or from outside
            strength = Strength.IMPORTER
        else:
            strength = Strength.PROJECT
        known = found.get(sign.mode)
        if known is None or known[0] < strength:
            found[sign.mode] = (strength, sign)
    return Force(found)


__all__ = ["CODE", "MODES", "Force", "Sign", "Strength", "force"]
