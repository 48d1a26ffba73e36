"""Which ``with`` statements are around a row."""

from __future__ import annotations

import ast
from bisect import bisect_right
from functools import cached_property


class Withs:
    """The ``with`` statements of one function, to be asked which are around a row."""

    def __init__(self, statements: list[ast.With | ast.AsyncWith]) -> None:
        self.statements = statements

    @cached_property
    def _nesting(self) -> tuple[list[int], list[int]]:
        """First row of each statement, and the place of the one around it; -1: none."""
        self.statements.sort(key=lambda s: (s.lineno, s.col_offset))
        outer: list[int] = []
        stack: list[int] = []
        for place, statement in enumerate(self.statements):
            while stack and (self.statements[stack[-1]].end_lineno or 0) < statement.lineno:
                stack.pop()
            outer.append(stack[-1] if stack else -1)
            stack.append(place)
        return [statement.body[0].lineno for statement in self.statements], outer

    def around(self, row: int) -> list[ast.With | ast.AsyncWith]:
        """Statements whose body holds a row, outermost first."""
        rows, outer = self._nesting
        place = bisect_right(rows, row) - 1
        found = []
        while place >= 0:
            statement = self.statements[place]
            if statement.body[0].lineno <= row <= (statement.end_lineno or 0):
                found.append(statement)
            place = outer[place]
        return found[::-1]
