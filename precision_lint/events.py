"""Kinds of hazard that the analysis reports, as plain data.

An event says where something goes wrong, in which precision modes, and what that rests on.  It holds
positions and numbers only, so that it can be kept after the syntax trees are gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple


class Place(NamedTuple):
    """A range of a file: rows from 1, columns in UTF-8 bytes from 0, as ``ast`` counts them."""

    path: str
    row: int
    column: int
    end_row: int
    end_column: int


class Link(NamedTuple):
    """A place that explains an event: where a dtype comes from, or a region opens.

    cause: whether the event is reported there where that file is linted as well.
    """

    text: str
    place: Place
    cause: bool = False


Function = tuple[str, str]
"""A function by its file and its qualified name."""


@dataclass(frozen=True)
class Sign:
    """A place that shows in which mode code is run: a region, a cast, a scaler, a setting.

    mode: index into ``domains.dtypes.MODES``.  script: it is in a test, or runs only as a script.
    inside: a module opens a region around parts of itself, or casts them, which says nothing of other
    files.  flag: an option or a condition decides whether it is run so.  bound: it is about what the
    code around calls, not about other models and losses of the project: one model that is cast, or a
    region in code that does not train or evaluate.
    setting: the folder whose code a setting of a trainer is about; None: it is no setting.
    around: the function that the place is in, by its qualified name.  closed: a region in which all that is
    called was followed, so that nothing of other files runs in it but what that calls.  classes: those
    that a model which is cast is made of.
    """

    mode: int
    text: str
    place: Place
    script: bool = False
    inside: bool = False
    flag: bool = False
    bound: bool = False
    setting: str | None = None
    around: str = ""
    closed: bool = False
    classes: frozenset[Function] = frozenset()


@dataclass(slots=True, eq=False)
class Variant:
    """One way in which an event comes about.

    modes: mask over ``domains.dtypes.MODES``.  assumptions: bits of ``domains.assumptions``.
    root: the function (path, qualified name) from which the analysis came here; also: others from which
    it comes here in the same way.  script: the root is a test, or code under
    ``if __name__ == "__main__"``.  of_module: the root is called where a model is run: a method of an
    ``nn.Module`` or of an ``autograd.Function``.  calls: call sites on the way, outermost last.  facts:
    those of the event that are others in this way.
    """

    modes: int
    assumptions: int
    root: tuple[str, str]
    script: bool = False
    calls: tuple[Place, ...] = ()
    regions: tuple[Place, ...] = ()
    links: tuple[Link, ...] = ()
    also: set[tuple[str, str]] = field(default_factory=set)
    facts: dict[str, Any] = field(default_factory=dict)
    of_module: bool = False


@dataclass(slots=True, eq=False)
class Event:
    """A hazard at a place.

    kind: names the hazard.  function: qualified name.  facts: what a rule says of it, by name:
    numbers, texts, places and tuples of these.
    """

    kind: str
    place: Place
    function: str
    facts: dict[str, Any]
    variants: list[Variant] = field(default_factory=list)

    @property
    def modes(self) -> int:
        found = 0
        for variant in self.variants:
            found |= variant.modes
        return found

    @property
    def path(self) -> str:
        """The file that is to be mended: that of its place, or that in which what is wrong was made."""
        made: Place | None = self.facts.get(MADE_ELSEWHERE.get(self.kind, ""))
        return self.place.path if made is None else made.path


MADE_ELSEWHERE: Final = {"widened": "origin_at", "amp-arguments": "cause"}
"""By kind of event: the fact that says where that was made which is wrong wherever it is used."""
AS_WRITTEN: Final = 1
"""The mode in which the code runs as it is, in a mask of modes."""
MESSAGE: Final = frozenset({
    "bfloat16", "narrow", "narrow_dtype", "other", "other_dtype", "wide", "wide_dtype",
})  # fmt: skip


def differing(facts: Mapping[str, Any], known: Mapping[str, Any], modes: int) -> dict[str, Any]:
    """What another way, in some modes, says otherwise of an event than is known of it.

    That matters where the cure depends on the origin of a value (``at_origin``), which a caller may show,
    and where two dtypes meet: in the code as written of whatever origin, in another mode at least in words,
    and all of it where the sides have changed places.
    """
    sides = facts.get("narrow") != known.get("narrow")  # the other one is the narrow side
    whole = "at_origin" in facts or ("wide_dtype" in facts and (modes & AS_WRITTEN or sides))
    told = facts if whole else MESSAGE & facts.keys()
    return {name: facts[name] for name in told if facts[name] != known.get(name)}
