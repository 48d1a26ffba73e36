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
            said = last.moved(data)

        def read(filename: str, data: bytes) -> list[Statement]:
            nonlocal said
            said = statements(filename, data) if said is None else said
            return list(said)

        survey = others.with_file(path, str(path), data, read)
        return cls(data, spoken, said, survey)

    def moved(self, data: bytes) -> list[Statement] | None:
        """What was said, by the rows of a text in which other rows came or went.

        None: what came or went may be of consequence.
        """
        before, after = self.data.split(b"\n"), data.split(b"\n")
        most = min(len(before), len(after))
        head = next((i for i in range(most) if before[i] != after[i]), most)
        tail = next((i for i in range(most - head) if before[-1 - i] != after[-1 - i]), most - head)
        rows = len(after) - len(before)
        changed = [*before[head : len(before) - tail], *after[head : len(after) - tail]]
        code = b"\n".join(line for line in changed if not line.lstrip().startswith(b"#"))
        outer = next((i for i in reversed(range(head)) if before[i][:1].isalpha()), 0)
        if _depth(b"\n".join(before[outer:head])) or _depth(code):
            return None  # rows of a statement of several
        names = set(_NAME.findall(b"\n".join(self.spoken.values()))) - _ANYWHERE
        if self.said is None or _STRUCTURE.search(code) or names & set(_NAME.findall(code)):
            return None
        if any(head < one.row <= len(before) - tail for one in self.said):
            return None
        return [one if one.row <= head else replace(one, row=one.row + rows) for one in self.said]


def _depth(code: bytes) -> int:
    """How many brackets are open at the end of some code, if strings and comments close theirs."""
    return sum(code.count(bracket) for bracket in (b"(", b"[", b"{")) - sum(
        code.count(bracket) for bracket in (b")", b"]", b"}")
    )
