"""Precision modes that are in force for a file: stated by the user, proved by code, or suggested."""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from precision_lint.domains.dtypes import AMP16, AMPBF, CODE, HALF16, HALFBF
from precision_lint.events import Function, Sign


class Strength(enum.IntEnum):
    """Why a mode is believed to be in force, weakest first."""

    PROJECT = 1
    """Something elsewhere in the project runs so."""
    PARTS = 2
    """A module of the file opens a region around parts of itself, or casts them."""
    CALLER = 3
    """A file that imports this one runs what it calls so."""
    IMPORTER = 4
    """A file that imports this one runs so, or a setting says that the project is trained so."""
    HANDED = 5
    """Something in the project runs so, and this file is imported by none: what is in it is handed to
    what runs, by name or from outside."""
    FILE = 6
    """The file itself runs so."""
    STATED = 7
    """The user says so."""


@dataclass(frozen=True)
class Force:
    """The modes in force for one file, each with its strength and the place that shows it.

    stated: whether the user says so, and no other mode is to be looked at.  shown: how strongly the
    code shows each mode, whatever the user says.  made: classes of the file that the code builds and casts,
    each with the mode.
    """

    modes: Mapping[int, tuple[Strength, Sign | None]] = field(default_factory=dict)
    stated: bool = False
    shown: Mapping[int, Strength] = field(default_factory=dict)
    made: frozenset[tuple[int, Function]] = frozenset()

    def of(self, mode: int) -> Strength | None:
        """How strongly a mode is in force; None: it is not."""
        found = self.modes.get(mode)
        return found[0] if found is not None else None

    def by_code(self, mode: int) -> Strength:
        """How strongly the code shows a mode."""
        found = self.shown.get(mode) if self.stated else self.of(mode)
        return found or Strength.PROJECT

    def under(self, stated: Iterable[str] | None) -> Force:
        """What is in force where the user states modes; None: nothing is stated."""
        if stated is None:
            return self
        modes = (MODES[name] for name in stated)
        signs = {mode: self.modes[mode][1] if mode in self.modes else None for mode in modes}
        found = {mode: (Strength.STATED, sign) for mode, sign in signs.items()}
        shown = {mode: strength for mode, (strength, _) in self.modes.items()}
        return Force(found, stated=True, shown=shown, made=self.made)

    def with_those_of(self, here: Force) -> Force:
        """What is in force where other files show this, and the file itself what ``here`` says."""
        modes = dict(self.modes)
        for mode, found in here.modes.items():
            if mode not in modes or _rank(mode, found) >= _rank(mode, modes[mode]):
                modes[mode] = found
        return Force(modes, made=self.made | here.made)


def _rank(mode: int, found: tuple[Strength, Sign | None]) -> tuple[bool, Strength]:
    """What shows a mode best: of half modes, what is run so whatever an option says."""
    strength, sign = found
    chosen = is_optional(mode, sign)
    return strength >= Strength.IMPORTER and not chosen, strength


def is_optional(mode: int, sign: Sign | None) -> bool:
    """Whether weights are half only where an option or a condition says so."""
    return sign is not None and sign.flag and mode in (HALF16, HALFBF)


def outermost(function: Function) -> Function:
    """The function or class at a module's level that holds a function."""
    return function[0], function[1].partition(".")[0]


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
    imported: bool = False,
    near: frozenset[str] = frozenset(),
) -> Force:
    """What the code shows to be in force for a file.

    importers: files that import it, directly or not, as far as they show something.  imported: whether
    any file does.  near: files that name it in their imports, or its package: others make other models half.
    """
    found: dict[int, tuple[Strength, Sign | None]] = {}
    made = set[tuple[int, Function]]()
    around = frozenset(importers)
    for sign in signs:
        if sign.place.path != path and sign.script:
            continue
        if not sign.flag:
            made.update((sign.mode, one) for one in sign.classes if one[0] == path)
        shown = _strength(path, sign, around, imported, near), sign
        known = found.get(sign.mode)
        if known is None or _rank(sign.mode, known) < _rank(sign.mode, shown):
            found[sign.mode] = shown
    return Force(found, made=frozenset(made))


def _strength(
    path: str, sign: Sign, importers: frozenset[str], imported: bool, near: frozenset[str]
) -> Strength:
    if sign.place.path == path:
        return Strength.PARTS if sign.inside else Strength.FILE
    imports = sign.place.path in importers
    if sign.inside or (sign.setting is not None and not path.startswith(sign.setting)):
        return Strength.PROJECT
    if sign.bound or sign.closed:
        return Strength.CALLER if imports else Strength.PROJECT
    if not imported:
        return Strength.HANDED
    if sign.mode in (HALF16, HALFBF) and sign.setting is None and sign.place.path not in near:
        return Strength.CALLER if imports else Strength.PROJECT
    return Strength.IMPORTER if imports or sign.setting is not None else Strength.PROJECT


__all__ = ["CODE", "MODES", "Force", "Sign", "Strength", "force"]
