"""What LibCST makes of the lines of one statement, with white space and comments as they were.

An indented statement parses behind ``if 1:``.  Nothing here knows its file: a result depends on
the lines and on the changes alone, and is kept by these, for of a file that is edited most
statements are changed again as they were.  LibCST is imported with the first change, and code that
nests too deeply for it raises RecursionError.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from precision_lint.api import Edit

if TYPE_CHECKING:
    import libcst as cst

Place = tuple[int, int, int, int]
"""First and last row and column of an expression, as LibCST counts them in a slice."""
Change = Callable[[Any], Any]
"""What a LibCST node becomes; equal ones do the same, so that their results can be kept."""
_IF = "if 1:\n"


def indented(text: str) -> bool:
    """Whether the first of some lines is indented."""
    return text[:1] in (" ", "\t")


@functools.lru_cache(maxsize=128)
def _parsed(text: str) -> tuple[cst.Module, dict[Place, cst.BaseExpression]] | None:
    """The LibCST module of some lines, which is never changed, and its expressions by place.

    None: they do not parse by themselves (an ``elif``, say).
    """
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider

    code = (_IF if indented(text) else "") + _with_plain_newlines(text)
    try:
        wrapper = MetadataWrapper(cst.parse_module(code), unsafe_skip_copy=True)
        places = wrapper.resolve(PositionProvider)
    except cst.ParserSyntaxError:
        return None
    nodes: dict[Place, cst.BaseExpression] = {}
    for node, place in places.items():
        if isinstance(node, cst.BaseExpression):
            key = (place.start.line, place.start.column, place.end.line, place.end.column)
            nodes.setdefault(key, node)
    return wrapper.module, nodes


@functools.lru_cache(maxsize=512)
def edit(text: str, changes: tuple[tuple[Place, Change], ...]) -> Edit | None:
    """The edit of some lines that changes expressions of them; None: it cannot be made."""
    import libcst as cst

    parsed = _parsed(text)
    if parsed is None or any(place not in parsed[1] for place, _ in changes):
        return None
    module, nodes = parsed
    if len(changes) == 1:
        place, change = changes[0]
        spliced = _spliced(text, module, place, nodes[place], change)
        if spliced is not None:
            return _smallest(text, spliced)
    table = {id(nodes[place]): change for place, change in changes}

    class Changed(cst.CSTTransformer):
        def on_leave(self, original_node: Any, updated_node: Any) -> Any:
            change = table.get(id(original_node))
            return change(updated_node) if change else updated_node

    return _difference(text, module.visit(Changed()).code)


def _spliced(text: str, module: cst.Module, place: Place, old: Any, change: Change) -> str | None:
    """Some lines with one expression changed, without visiting all of them.

    None: what stands there is not the code of the expression alone, for its white space depends on
    the lines around it.
    """
    plain = _with_plain_newlines(text)
    first = 1 + indented(text)
    if isinstance(change, Suffix) and not old.lpar and _is_tight(old):
        end = _offset(plain, place[2] - first, place[3])
        return plain[:end] + change.text + plain[end:]
    written = module.code_for_node(old)
    start = _offset(plain, place[0] - first, place[1])
    start -= sum(len(module.code_for_node(one)) for one in old.lpar)
    if start < 0 or "\n" in written or not plain.startswith(written, start):
        return None
    return plain[:start] + module.code_for_node(change(old)) + plain[start + len(written) :]


def _offset(text: str, line: int, column: int) -> int:
    """Where a column of a line is; both count from 0."""
    start = 0
    for _ in range(line):
        start = text.index("\n", start) + 1
    return start + column


def _difference(text: str, code: str) -> Edit:
    """The smallest edit that turns some lines into the code of their LibCST module."""
    if indented(text):
        code = code[len(_IF) :]
    if not _with_plain_newlines(text).endswith("\n") and code.endswith("\n"):
        code = code[:-1]
    return _smallest(text, code)


def _smallest(text: str, code: str) -> Edit:
    """The smallest edit that turns some lines into others with plain newlines."""
    plain = _with_plain_newlines(text)
    head = _common_prefix(plain, code)
    tail = _common_prefix(plain[head:][::-1], code[head:][::-1])
    start, end = head, len(plain) - tail
    if "\r" in text:  # offsets were counted with one character per line end
        start, end = _raw_offset(text, start), _raw_offset(text, end)
    return Edit(start, end, code[head : len(code) - tail])


def _with_plain_newlines(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n")


@functools.lru_cache(maxsize=512)
def under_autocast_off(
    text: str,
    call: Place,
    operands: tuple[tuple[Place, bool], ...],
    header: str,
    name: str | None,
    unit: str,
) -> Edit | None:
    """What ``Editor.without_autocast`` makes of the lines of a statement."""
    import libcst as cst

    parsed = _parsed(text)
    places = (call, *(place for place, _ in operands))
    if parsed is None or any(place not in parsed[1] for place in places):
        return None
    module, nodes = parsed
    call_node = nodes[call]
    upcasts = {
        id(nodes[place]): method(".float()") if cast else Suffix(".float()")
        for place, cast in operands
    }
    moved: list[cst.BaseExpression] = []

    class Changed(cst.CSTTransformer):
        def on_leave(self, original_node: Any, updated_node: Any) -> Any:
            if upcast := upcasts.get(id(original_node)):
                return upcast(updated_node)
            if original_node is call_node and name is not None:
                moved.append(updated_node)
                return cst.Name(name)
            return updated_node

    changed = module.visit(Changed())
    outer: Any = changed.body[0]
    block: Any = outer.body.body if indented(text) else changed.body
    manager = cst.ensure_type(cst.parse_statement(f"{header}\n    pass\n"), cst.With)
    line = block[0]
    if name is None:
        body = [line]
    else:
        # parentheses that the call had around itself stay in the statement it came from
        several = "\n" in _with_plain_newlines(text)
        value = moved[0] if several else moved[0].with_changes(lpar=[], rpar=[])
        body = [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], value)])]
    wrapped = manager.with_changes(body=cst.IndentedBlock(body, indent=unit))
    lines = [wrapped] if name is None else [wrapped, line]
    if indented(text):
        inner = outer.body.with_changes(body=lines)
        changed = changed.with_changes(body=[outer.with_changes(body=inner)])
    else:
        changed = changed.with_changes(body=lines)
    return _difference(text, changed.code)


@dataclass(frozen=True)
class Suffix:
    """A change that puts ``.method(arguments)`` behind an expression, in parentheses if needed."""

    text: str

    def __call__(self, node: Any) -> Any:
        import libcst as cst

        if not _is_tight(node) and not node.lpar:
            node = node.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        call = cst.ensure_type(cst.parse_expression(f"x{self.text}"), cst.Call)
        method = cst.ensure_type(call.func, cst.Attribute)
        return call.with_changes(func=method.with_changes(value=node))


def _is_tight(node: Any) -> bool:
    """Whether a dot behind an expression takes all of it."""
    import libcst as cst

    return isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.List, cst.Dict))


@functools.lru_cache(maxsize=128)
def template(text: str) -> Change:
    """A change that puts an expression where ``_`` is in another one."""

    def change(node: Any) -> Any:
        import libcst as cst

        class Fill(cst.CSTTransformer):
            def leave_Name(self, original_node: Any, updated_node: Any) -> Any:
                return node if updated_node.value == "_" else updated_node

        return cst.parse_expression(text).visit(Fill())

    return change


@functools.lru_cache(maxsize=128)
def other(text: str) -> Change:
    """A change that puts another expression there."""

    def change(node: Any) -> Any:
        import libcst as cst

        new: Any
        try:
            new = cst.parse_expression(text)
        except cst.ParserSyntaxError:  # lines that only parentheses hold together
            new = cst.parse_expression(f"({text})")
        return new.with_changes(lpar=node.lpar, rpar=node.rpar) if node.lpar else new

    return change


@functools.lru_cache(maxsize=128)
def method(text: str) -> Change:
    """A change that puts another method call, or none, in the place of the one it ends in."""
    return lambda node: Suffix(text)(node.func.value) if text else node.func.value


@functools.lru_cache(maxsize=128)
def keyword(name: str, value: str) -> Change:
    """A change that adds ``name=value`` as the last argument of a call."""

    def change(node: cst.Call) -> cst.Call:
        import libcst as cst

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

    return change


@functools.lru_cache(maxsize=128)
def entry(key: str, value: str) -> Change:
    """A change that adds ``"key": value`` as the last entry of a dict."""

    def change(node: cst.Dict) -> cst.Dict:
        import libcst as cst

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

    return change


def _last_line(before: Any, after: Any) -> Any:
    return getattr(before, "last_line", after.last_line)


def _common_prefix(a: str, b: str) -> int:
    same, end = 0, min(len(a), len(b))
    while same < end:
        middle = (same + end + 1) // 2
        if a[same:middle] == b[same:middle]:
            same = middle
        else:
            end = middle - 1
    return same


def _raw_offset(raw: str, count: int) -> int:
    """Offset into raw text of the ``count``-th character when line ends count as one."""
    at = 0
    for _ in range(count):
        at += 2 if raw.startswith("\r\n", at) else 1
    return at
