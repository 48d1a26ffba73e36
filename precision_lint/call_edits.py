"""Edits of the arguments of a call, which leave the rest of its text alone."""

from __future__ import annotations

import ast

from precision_lint.api import Edit
from precision_lint.slices import Editor

Edits = tuple[Edit, ...]


class CallEdits:
    """A call whose arguments are to be changed."""

    def __init__(self, editor: Editor, call: ast.Call) -> None:
        self.editor = editor
        self.call = call

    def _start(self, node: ast.expr | ast.keyword) -> int:
        return self.editor.source.offset(node.lineno, node.col_offset)

    def _given(self, argument: int | str) -> ast.expr | None:
        if isinstance(argument, int):
            return self.call.args[argument] if argument < len(self.call.args) else None
        return next((k.value for k in self.call.keywords if k.arg == argument), None)

    @property
    def positional(self) -> int:
        """How many arguments have no name."""
        return len(self.call.args)

    def callee(self, text: str) -> Edits:
        """Call something else."""
        return (Edit(self._start(self.call.func), self.editor.end(self.call.func), text),)

    def first(self, text: str) -> Edits:
        """Put an argument in front of the others."""
        given: list[ast.expr | ast.keyword] = [*self.call.args, *self.call.keywords]
        if not given:
            end = self.editor.end(self.call) - 1
            return (Edit(end, end, text),)
        start = min(map(self._start, given))
        return (Edit(start, start, f"{text}, "),)

    def first_and(self, text: str, named: Edits) -> Edits:
        """Put an argument in front of one that gets its name."""
        if not named:
            return self.first(text)
        [edit] = named
        return (Edit(edit.start, edit.end, f"{text}, {edit.text}"),)

    def name(self, index: int, keyword: str) -> Edits | None:
        """Give a positional argument its name; only the last one can have it."""
        if index != len(self.call.args) - 1:
            return None
        start = self._start(self.call.args[index])
        return (Edit(start, start, f"{keyword}="),)

    def rename(self, old: str, new: str) -> Edits | None:
        """Give a keyword argument another name."""
        found = next((k for k in self.call.keywords if k.arg == old), None)
        if found is None:
            return None
        start = self._start(found)
        return (Edit(start, start + len(old.encode()), new),)

    def append(self, argument: int | str, suffix: str) -> Edits | None:
        """Put an attribute behind an argument that is a name or a call."""
        given = self._given(argument)
        if not isinstance(given, (ast.Name, ast.Attribute, ast.Call)):
            return None
        end = self.editor.end(given)
        return (Edit(end, end, suffix),)

    def put(self, argument: int | str, text: str) -> Edits | None:
        """Put another expression in an argument's place."""
        given = self._given(argument)
        return self.editor.put(given, text) if given is not None else None

    def drop(self, index: int) -> Edits | None:
        """Leave a positional argument out, if another one follows on its line."""
        arguments: list[ast.expr | ast.keyword] = [*self.call.args, *self.call.keywords]
        given = sorted(arguments, key=self._start)
        if index + 1 >= len(given):
            return None
        start, end = self._start(given[index]), self._start(given[index + 1])
        between = self.editor.source.text[start:end]
        return None if "\n" in between else (Edit(start, end, ""),)
