"""Code actions: one fix, all safe fixes, and comments that state a fact or silence a finding."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lsprotocol import types

from precision_lint import suppress
from precision_lint.api import Applicability, Diagnostic
from precision_lint.lsp import convert
from precision_lint.lsp.session import Found

FIX_ALL = f"{types.CodeActionKind.SourceFixAll.value}.{convert.NAME}"
USUAL = "float32"
"""What is offered to be stated."""
KINDS: list[types.CodeActionKind | str] = [types.CodeActionKind.QuickFix, FIX_ALL]


def wanted(
    kind: types.CodeActionKind | str, only: Sequence[types.CodeActionKind | str] | None
) -> bool:
    """Whether a client that asks for some kinds wants this one; a kind includes those below it."""
    name = _name(kind)
    return only is None or any(f"{name}.".startswith(f"{_name(one)}.") for one in only)


def _name(kind: types.CodeActionKind | str) -> str:
    return kind.value if isinstance(kind, types.CodeActionKind) else kind


class Maker:
    """Makes actions for one document."""

    def __init__(
        self,
        uri: str,
        version: int | None,
        found: Found,
        encoding: convert.Encoding,
        versioned: bool,
    ) -> None:
        self._uri, self._version, self._found = uri, version, found
        self._encoding, self._versioned = encoding, versioned

    def within(self, range_: types.Range) -> list[Diagnostic]:
        """The findings that meet a range."""
        start = convert.place(self._found.source, range_.start, self._encoding)
        end = convert.place(self._found.source, range_.end, self._encoding)
        return [d for d in self._found.diagnostics if d.start <= end and start <= d.end]

    def quick(
        self,
        within: types.Range,
        reported: Sequence[types.Diagnostic],
        assumed: Mapping[int, Sequence[str]],
    ) -> Iterator[types.CodeAction]:
        """Fixes of the findings that meet a range, then comments for them.

        assumed: names by the row of a finding that rests on their dtype.
        """
        here = self.within(within)
        for finding in here:
            if (action := self._fix(finding, reported)) is not None:
                yield action
        for finding in here:
            for name in assumed.get(finding.start.row, ()):
                if (action := self._fact(finding, name, reported)) is not None:
                    yield action
        for finding in here:
            changes = suppress.comments(self._found.source, [finding])
            if changes:
                edits = convert.edits(self._found.source, changes, self._encoding)
                title = f"Suppress {finding.code} here"
                yield self._action(title, finding, reported, edits)

    def _fact(
        self, finding: Diagnostic, name: str, reported: Sequence[types.Diagnostic]
    ) -> types.CodeAction | None:
        text = f"# precision-lint: assume {name} {USUAL}"
        edit = suppress.above(self._found.source, finding.start.row, text)
        if edit is None:
            return None
        edits = convert.edits(self._found.source, [edit], self._encoding)
        return self._action(f"Assume that {name} is {USUAL}", finding, reported, edits)

    def _fix(
        self, finding: Diagnostic, reported: Sequence[types.Diagnostic]
    ) -> types.CodeAction | None:
        fix = finding.fix
        if fix is None or fix.applicability is Applicability.DISPLAY:
            return None
        safe = fix.applicability is Applicability.SAFE
        promise = "safe fix" if safe else f"unsafe fix{f': {fix.reason}' if fix.reason else ''}"
        edits = convert.edits(self._found.source, fix.edits, self._encoding)
        title = f"{finding.code}: {fix.title} ({promise})"
        return self._action(title, finding, reported, edits, preferred=safe)

    def _action(
        self,
        title: str,
        finding: Diagnostic,
        reported: Sequence[types.Diagnostic],
        edits: list[types.TextEdit],
        preferred: bool = False,
    ) -> types.CodeAction:
        start = convert.position(self._found.source, finding.start, self._encoding)
        solved = [one for one in reported if one.code == finding.code and one.range.start == start]
        return types.CodeAction(
            title,
            types.CodeActionKind.QuickFix,
            diagnostics=solved,
            is_preferred=preferred or None,
            edit=self.edit(edits),
        )

    @property
    def has_safe_fixes(self) -> bool:
        return any(
            d.fix is not None and d.fix.applicability is Applicability.SAFE
            for d in self._found.diagnostics
        )

    def fix_all(self, after: str | None = None) -> types.CodeAction:
        """Apply all safe fixes; without the text ``after`` them the client asks for it later."""
        edit = None
        if after is not None:
            source = self._found.source
            edit = self.edit(convert.differences(source, after, self._encoding))
        data = {"uri": self._uri, "version": self._version}
        title = "Fix all that precision-lint can fix safely"
        return types.CodeAction(title, FIX_ALL, edit=edit, data=data if edit is None else None)

    def edit(self, edits: list[types.TextEdit]) -> types.WorkspaceEdit:
        if not self._versioned:
            return types.WorkspaceEdit(changes={self._uri: edits})
        document = types.OptionalVersionedTextDocumentIdentifier(self._uri, self._version)
        return types.WorkspaceEdit(document_changes=[types.TextDocumentEdit(document, list(edits))])
