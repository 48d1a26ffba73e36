"""Edits through LibCST, on the lines of one statement at a time.

A slice is the source lines of one statement, at any depth (an indented one parses behind
``if 1:``).  It has real LibCST nodes with exact white space and comments; everything outside of
its lines cannot change.  LibCST is imported with the first slice.

Every method returns the edits, or None where the shape of the code does not allow a clean one.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from precision_lint.api import Edit

if TYPE_CHECKING:
    import libcst as cst

    from precision_lint.source import Source

Edits = tuple[Edit, ...]


class Unsliceable(Exception):
    """The lines of a statement do not parse by themselves, or nest too deeply."""


SIMPLE = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Return, ast.Expr)
BLOCKS = ("body", "orelse", "finalbody", "handlers")


class Slice:
    """One statement's lines as a LibCST module."""

    def __init__(self, source: Source, statement: ast.stmt) -> None:
        import libcst as cst

        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        lines = source.lines
        last = statement.end_lineno or statement.lineno
        self.source = source
        self.start = lines[first - 1]
        self.end = lines[last] if last < len(lines) else len(source.text)
        text = source.text[self.start : self.end]
        self.text = text.replace("\r\n", "\n").replace("\r", "\n")
        self.indented = self.text[:1] in " \t"
        self._first = first - (1 if self.indented else 0)
        try:
            self.module, self._nodes = _parsed(("if 1:\n" if self.indented else "") + self.text)
        except (cst.ParserSyntaxError, RecursionError) as error:  # an elif, say
            raise Unsliceable from error

    def node(self, node: ast.expr) -> cst.BaseExpression:
        """The LibCST node of an ``ast`` expression of this statement."""
        start = self.source.position(self.source.offset(node.lineno, node.col_offset))
        end = self.source.position(
            self.source.offset(node.end_lineno or 0, node.end_col_offset or 0)
        )
        offset = self._first - 1
        key = (start.row - offset, start.column - 1, end.row - offset, end.column - 1)
        if key not in self._nodes:
            raise Unsliceable
        return self._nodes[key]

    def edits(self, module: cst.Module) -> Edits:
        """The smallest edit that turns the slice into the code of ``module``."""
        code = module.code
        if self.indented:
            code = code[len("if 1:\n") :]
        raw = self.source.text[self.start : self.end]
        if not self.text.endswith("\n") and code.endswith("\n"):
            code = code[:-1]
        old = raw if "\r" not in raw else self.text
        head = _common_prefix(old, code)
        tail = _common_prefix(old[head:][::-1], code[head:][::-1])
        if old is not raw:  # offsets were counted with one character per line end
            start, end = _raw_offset(raw, head), _raw_offset(raw, len(old) - tail)
        else:
            start, end = head, len(old) - tail
        text = code[head : len(code) - tail]
        return (Edit(self.start + start, self.start + end, text),)


@functools.lru_cache(maxsize=128)
def _parsed(
    text: str,
) -> tuple[cst.Module, dict[tuple[int, int, int, int], cst.BaseExpression]]:
    """The LibCST module of some lines, which is never changed, and its expressions by place.

    Of a file that is edited most statements are sliced again as they were.
    """
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
    nodes: dict[tuple[int, int, int, int], cst.BaseExpression] = {}
    for node, place in wrapper.resolve(PositionProvider).items():
        if isinstance(node, cst.BaseExpression):
            key = (place.start.line, place.start.column, place.end.line, place.end.column)
            nodes.setdefault(key, node)
    return wrapper.module, nodes


def indent_unit(text: str) -> str:
    """What one level of indentation is in a file: a tab or a number of spaces."""
    match = re.search(r"^[^\n#]*:[ \t]*(?:#[^\n]*)?\r?\n([ \t]+)\S", text, re.MULTILINE)
    if match is None:
        return "    "
    return "\t" if match.group(1)[0] == "\t" else " " * min(len(match.group(1)), 4)


class Editor:
    """Makes the edits of fixes in one file."""

    def __init__(self, source: Source, tree: ast.Module) -> None:
        self.source = source
        self.tree = tree
        self.unit = indent_unit(source.text)
        """One level of this file's indentation."""

    # expressions

    def _replace(
        self,
        statement: ast.stmt,
        changes: Mapping[ast.expr, Callable[[Any], Any]],
    ) -> Edits | None:
        import libcst as cst

        try:
            piece = Slice(self.source, statement)
            table = {id(piece.node(node)): change for node, change in changes.items()}
        except Unsliceable:
            return None

        class Change(cst.CSTTransformer):
            def on_leave(self, original_node: Any, updated_node: Any) -> Any:
                change = table.get(id(original_node))
                return change(updated_node) if change else updated_node

        return piece.edits(piece.module.visit(Change()))

    def append(self, statement: ast.stmt, suffixes: Mapping[ast.expr, str]) -> Edits | None:
        """Put a method call such as ``.float()`` behind expressions of one statement."""
        return self._replace(statement, {n: _suffix(text) for n, text in suffixes.items()})

    def rewrite(self, statement: ast.stmt, texts: Mapping[ast.expr, str]) -> Edits | None:
        """Replace expressions of one statement; ``_`` in a text is the expression it replaces."""
        return self._replace(statement, {n: _template(text) for n, text in texts.items()})

    def move(
        self, statement: ast.stmt, call: ast.Call, places: Sequence[ast.expr], text: str
    ) -> Edits | None:
        """Take a method call off its receiver and put it behind expressions inside of that."""
        changes: dict[ast.expr, Callable[[Any], Any]] = dict.fromkeys(places, _suffix(text))
        changes[call] = lambda node: node.func.value
        return self._replace(statement, changes)

    def replace(self, statement: ast.stmt, texts: Mapping[ast.expr, str]) -> Edits | None:
        """Put other expressions in the place of expressions of one statement."""
        import libcst as cst

        def change(text: str) -> Callable[[Any], Any]:
            def replaced(node: Any) -> Any:
                new: Any
                try:
                    new = cst.parse_expression(text)
                except cst.ParserSyntaxError:  # lines that only parentheses hold together
                    new = cst.parse_expression(f"({text})")
                return new.with_changes(lpar=node.lpar, rpar=node.rpar) if node.lpar else new

            return replaced

        return self._replace(statement, {node: change(text) for node, text in texts.items()})

    def exchange(self, statement: ast.stmt, suffixes: Mapping[ast.expr, str]) -> Edits | None:
        """Put another method call, or none, in the place of those that some expressions end in."""

        def to(text: str) -> Callable[[Any], Any]:
            return lambda node: _suffix(text)(node.func.value) if text else node.func.value

        return self._replace(statement, {node: to(text) for node, text in suffixes.items()})

    def add_keyword(
        self, statement: ast.stmt, call: ast.Call, name: str, value: str
    ) -> Edits | None:
        """Add ``name=value`` as the last argument of a call."""
        import libcst as cst

        def change(node: cst.Call) -> cst.Call:
            arguments = list(node.args)
            new = cst.Arg(
                keyword=cst.Name(name),
                value=cst.parse_expression(value),
                equal=cst.AssignEqual(cst.SimpleWhitespace(""), cst.SimpleWhitespace("")),
            )
            if arguments:
                last = arguments[-1]
                trailing = last.comma
                between: Any = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
                if isinstance(trailing, cst.Comma):
                    if len(arguments) > 1:
                        between = arguments[-2].comma
                    elif isinstance(node.whitespace_before_args, cst.ParenthesizedWhitespace):
                        between = cst.Comma(whitespace_after=node.whitespace_before_args)
                    new = new.with_changes(comma=trailing)
                    # a comment behind the trailing comma belongs to the argument before it
                    after = trailing.whitespace_after
                    if isinstance(after, cst.ParenthesizedWhitespace) and after.first_line.comment:
                        plain = after.with_changes(
                            first_line=after.first_line.with_changes(comment=None)
                        )
                        new = new.with_changes(comma=trailing.with_changes(whitespace_after=plain))
                        between = cst.Comma(
                            whitespace_after=after.with_changes(
                                last_line=_last_line(node.whitespace_before_args, after)
                            )
                        )
                elif isinstance(last.whitespace_after_arg, cst.ParenthesizedWhitespace):
                    new = new.with_changes(whitespace_after_arg=last.whitespace_after_arg)
                    last = last.with_changes(whitespace_after_arg=cst.SimpleWhitespace(""))
                    if isinstance(node.whitespace_before_args, cst.ParenthesizedWhitespace):
                        between = cst.Comma(whitespace_after=node.whitespace_before_args)
                arguments[-1] = last.with_changes(comma=between)
            return node.with_changes(args=[*arguments, new])

        return self._replace(statement, {call: change})

    def put(self, node: ast.expr, text: str) -> Edits | None:
        """Other source in the place of an expression; one with comments inside stays."""
        start, end = self.offset(node), self.end(node)
        if "#" in self.source.text[start:end]:
            return None
        return (Edit(start, end, text),)

    def add_entry(
        self, statement: ast.stmt, entries: ast.Dict, key: str, value: str
    ) -> Edits | None:
        """Add ``"key": value`` as the last entry of a dict; None where a comment ends it."""
        import libcst as cst

        def change(node: cst.Dict) -> cst.Dict:
            elements = list(node.elements)
            last = elements[-1]
            new = cst.DictElement(cst.SimpleString(f'"{key}"'), cst.parse_expression(value))
            between: Any = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
            if len(elements) > 1:
                between = elements[-2].comma
            elif isinstance(node.lbrace.whitespace_after, cst.ParenthesizedWhitespace):
                between = cst.Comma(whitespace_after=node.lbrace.whitespace_after)
            elements[-1] = last.with_changes(comma=between)
            return node.with_changes(elements=[*elements, new.with_changes(comma=last.comma)])

        inside = self.source.text[self.offset(entries) : self.end(entries)]
        if "#" in inside or not entries.keys:
            return None
        return self._replace(statement, {entries: change})

    # statements

    def without_autocast(
        self,
        statement: ast.stmt,
        call: ast.expr,
        operands: Sequence[ast.expr],
        header: str,
        name: str | None,
    ) -> Edits | None:
        """Run one call with its operands in float32 under ``header`` (a ``with`` line).

        The whole statement goes under it if ``name`` is None; otherwise the call moves to a
        statement of its own, bound to ``name``, in front.
        """
        import libcst as cst

        if not isinstance(statement, SIMPLE) or not self._alone(statement):
            return None
        try:
            piece = Slice(self.source, statement)
            targets = {id(piece.node(node)) for node in operands}
            call_node = piece.node(call)
        except Unsliceable:
            return None
        upcast = _suffix(".float()")
        moved: list[cst.BaseExpression] = []

        class Change(cst.CSTTransformer):
            def on_leave(self, original_node: Any, updated_node: Any) -> Any:
                if id(original_node) in targets:
                    return upcast(updated_node)
                if original_node is call_node and name is not None:
                    moved.append(updated_node)
                    return cst.Name(name)
                return updated_node

        if name is not None and not _unconditional(statement, call):
            return None
        changed = piece.module.visit(Change())
        outer: Any = changed.body[0]
        block: Any = outer.body.body if piece.indented else changed.body
        template = cst.ensure_type(cst.parse_statement(f"{header}\n    pass\n"), cst.With)
        line = block[0]
        if name is None:
            body = [line]
        else:
            # parentheses that the call had around itself stay in the statement it came from
            value = moved[0].with_changes(lpar=[], rpar=[]) if "\n" not in piece.text else moved[0]
            target = cst.AssignTarget(cst.Name(name))
            body = [cst.SimpleStatementLine([cst.Assign([target], value)])]
        wrapped = template.with_changes(body=cst.IndentedBlock(body, indent=self.unit))
        lines = [wrapped] if name is None else [wrapped, line]
        if piece.indented:
            inner = outer.body.with_changes(body=lines)
            changed = changed.with_changes(body=[outer.with_changes(body=inner)])
        else:
            changed = changed.with_changes(body=lines)
        return piece.edits(changed)

    def _alone(self, statement: ast.stmt) -> bool:
        """Whether a statement has its lines for itself."""
        before = self.source.text[self.source.lines[statement.lineno - 1] : self.offset(statement)]
        rest = self.source.text[self.end(statement) :].split("\n", 1)[0].strip()
        return not before.strip() and (not rest or rest.startswith("#"))

    def offset(self, node: ast.stmt | ast.expr) -> int:
        return self.source.offset(node.lineno, node.col_offset)

    def end(self, node: ast.stmt | ast.expr) -> int:
        return self.source.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def indentation(self, statement: ast.stmt) -> str:
        return self.source.text[self.source.lines[statement.lineno - 1] : self.offset(statement)]

    def insert_before(self, statement: ast.stmt, *lines: str) -> Edits | None:
        """New lines in front of a statement, at its indentation."""
        indent = self.indentation(statement)
        if indent.strip():
            return None
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        place = self.source.lines[first - 1]
        return (Edit(place, place, "".join(f"{indent}{line}\n" for line in lines)),)

    def insert_after(self, statement: ast.stmt, *lines: str) -> Edits | None:
        """New lines behind a statement, at its indentation."""
        indent = self.indentation(statement)
        if indent.strip() or not self._alone(statement):
            return None
        row = statement.end_lineno or statement.lineno
        if row < len(self.source.lines):
            place = self.source.lines[row]
            return (Edit(place, place, "".join(f"{indent}{line}\n" for line in lines)),)
        place = len(self.source.text)
        return (Edit(place, place, "".join(f"\n{indent}{line}" for line in lines)),)

    def remove(self, statement: ast.stmt, siblings: Sequence[ast.stmt]) -> Edits | None:
        """Delete a statement; its comment stays, and an emptied block gets ``pass``."""
        if not self._alone(statement):
            return None
        start, end = self.offset(statement), self.end(statement)
        if len(siblings) == 1:
            return (Edit(start, end, "pass"),)
        row = statement.end_lineno or statement.lineno
        line_end = self.source.lines[row] if row < len(self.source.lines) else None
        rest = self.source.text[end:line_end]
        if rest.strip():  # a comment: keep it, on a line of its own
            return (Edit(start, end + len(rest) - len(rest.lstrip()), ""),)
        first = self.source.lines[statement.lineno - 1]
        if line_end is None:
            return (Edit(max(first - 1, 0), end, ""),)
        return (Edit(first, line_end, ""),)

    def import_line(self, line: str) -> Edits:
        """Add an import in front of the first one of the module (``__future__`` stays first)."""
        for statement in self.tree.body:
            future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
            if isinstance(statement, (ast.Import, ast.ImportFrom)) and not future:
                return self.insert_before(statement, line) or ()
        return ()


def _suffix(text: str) -> Callable[[Any], Any]:
    """A change that puts ``.method(arguments)`` behind an expression, in parentheses if needed."""

    def change(node: Any) -> Any:
        import libcst as cst

        tight = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.List, cst.Dict)
        if not isinstance(node, tight) and not node.lpar:
            node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        template = cst.ensure_type(cst.parse_expression(f"x{text}"), cst.Call)
        method = cst.ensure_type(template.func, cst.Attribute)
        return template.with_changes(func=method.with_changes(value=node))

    return change


def _template(text: str) -> Callable[[Any], Any]:
    """A change that puts an expression where ``_`` is in another one."""

    def change(node: Any) -> Any:
        import libcst as cst

        class Fill(cst.CSTTransformer):
            def leave_Name(self, original_node: Any, updated_node: Any) -> Any:
                return node if updated_node.value == "_" else updated_node

        return cst.parse_expression(text).visit(Fill())

    return change


def _last_line(before: Any, after: Any) -> Any:
    return getattr(before, "last_line", after.last_line)


def _common_prefix(a: str, b: str) -> int:
    n = min(len(a), len(b))
    for i in range(n):
        if a[i] != b[i]:
            return i
    return n


def _raw_offset(raw: str, count: int) -> int:
    """Offset into raw text of the ``count``-th character when line ends count as one."""
    at = 0
    for _ in range(count):
        at += 2 if raw.startswith("\r\n", at) else 1
    return at


def _unconditional(statement: ast.stmt, call: ast.expr) -> bool:
    """Whether a call may run first: exactly once, and nothing it depends on is bound here."""
    if any(isinstance(n, (ast.NamedExpr, ast.Await, ast.Yield)) for n in ast.walk(statement)):
        return False
    path: list[ast.AST] = []

    def find(node: ast.AST) -> bool:
        if node is call:
            return True
        for child in ast.iter_child_nodes(node):
            if find(child):
                path.append(node)
                return True
        return False

    find(statement)
    lazy = (ast.Lambda, ast.IfExp, ast.BoolOp, ast.ListComp, ast.SetComp, ast.DictComp,
            ast.GeneratorExp, ast.NamedExpr, ast.Await, ast.Yield)  # fmt: skip
    return not any(isinstance(node, lazy) for node in path)
