"""What a text that is being edited says of half precision, read anew only where it may be new."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from precision_lint.project import hints
from precision_lint.project.amp import Survey, statements
from precision_lint.project.spellings import Statement

_NAME = re.compile(rb"[^\W\d]\w*")
_USED = re.compile(rb"[^\W\d]\w*(?=\s*[.(])")
"""A name that is called, or whose attribute is used, as a module's is."""
_MAKES = re.compile(rb"[A-Z]\w*\s*\(|[{*]|\b(?:dict|global|import)\b")
"""What may give a name the object of a class, a table, or another home."""
_ANYWHERE = frozenset({b"torch", b"self", *(word.encode() for word in keyword.kwlist)})
"""Words that rows share whatever they do."""
_STRUCTURE = re.compile(
    rb"\b(?:class|def|lambda|if|elif|else|try|except|finally)\b|import\s*\*"
    rb"|\"\"\"|'''|\\$|\r|\f|backward|zero_grad|[Oo]ptimizer",
    re.MULTILINE,
)
"""What tells of other rows than its own."""


@dataclass(frozen=True)
class Buffer:
    """A text, and what all files of a project say with it in place of the saved one."""

    data: bytes
    spoken: dict[int, bytes]
    """Lines that may say something, by their number from 0."""
    said: Sequence[Statement] | None
    """What it says; None: it was not asked."""
    survey: Survey

    @classmethod
    def of(cls, others: Survey, path: Path, data: bytes, last: Buffer | None) -> Buffer:
        """The text ``data`` of a file beside what the others say, and its last text.

        It is not read again before one of the lines changes that may say something: reading a file
        for that costs as much as linting it.
        """
        spoken, said = hints.spoken(data), None
        if last is not None and list(last.spoken.values()) == list(spoken.values()):
            if last.spoken == spoken:
                return replace(last, data=data)
            said = last.moved(data, spoken)

        def read(filename: str, data: bytes) -> list[Statement]:
            nonlocal said
            said = statements(filename, data) if said is None else said
            return list(said)

        survey = others.with_file(path, str(path), data, read)
        return cls(data, spoken, said, survey)

    def moved(self, data: bytes, spoken: dict[int, bytes]) -> list[Statement] | None:
        """What was said, by the rows of a text in which other rows came or went.

        None: what came or went may be of consequence.
        """
        before, after = self.data.split(b"\n"), data.split(b"\n")
        shifts: list[tuple[int, int | None]] = []
        """From which row on they move by how many; None: they changed."""
        start, begin = 0, 0
        for end, stop in zip([*self.spoken, len(before)], [*spoken, len(after)], strict=True):
            old, new = before[start:end], after[begin:stop]
            shifts.append((start, begin - start))
            if old != new:
                head = _alike(old, new)
                tail = _alike(old[head:][::-1], new[head:][::-1])
                changed = [*old[head : len(old) - tail], *new[head : len(new) - tail]]
                if not self._is_apart(before[: start + head], changed):
                    return None
                shifts += [(start + head, None), (end - tail, stop - end)]
            start, begin = end, stop
        said = []
        for one in self.said if self.said is not None else ():
            shift = next(by for first, by in reversed(shifts) if first < one.row)
            if shift is None:
                return None
            said.append(replace(one, row=one.row + shift))
        return None if self.said is None else said

    def _is_apart(self, above: list[bytes], changed: list[bytes]) -> bool:
        """Whether rows have nothing to do with lines that may say something."""
        code = b"\n".join(line for line in changed if not line.lstrip().startswith(b"#"))
        outer = next((i for i in reversed(range(len(above))) if above[i][:1].isalpha()), 0)
        if _depth(b"\n".join(above[outer:])) or _depth(code):
            return False  # rows of a statement of several
        names = set(_NAME.findall(b"\n".join(self.spoken.values()))) - _ANYWHERE
        used = _NAME if _MAKES.search(code) else _USED
        return not _STRUCTURE.search(code) and names.isdisjoint(used.findall(code))


def _alike(one: list[bytes], other: list[bytes]) -> int:
    """How many rows two texts begin with alike."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def _depth(code: bytes) -> int:
    """How many brackets are open at the end of some code, if strings and comments close theirs."""
    return sum(code.count(bracket) for bracket in (b"(", b"[", b"{")) - sum(
        code.count(bracket) for bracket in (b")", b"]", b"}")
    )
