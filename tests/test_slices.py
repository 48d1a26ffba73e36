"""Edits through LibCST: what the new text parses to, and that nothing else in it changes."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections.abc import Callable

import pytest

from precision_lint import fixer
from precision_lint.api import (
    Applicability,
    Confidence,
    Diagnostic,
    Edit,
    Fix,
    Position,
    Severity,
)
from precision_lint.slices import Editor, indent_unit
from precision_lint.source import Failure, Source, decode

HEADER = "with torch.autocast(device_type=x.device.type, enabled=False):"
Edits = tuple[Edit, ...]


class File:
    """A text, its tree and its editor."""

    def __init__(self, text: str) -> None:
        source = decode(text.encode(), "a.py")
        assert isinstance(source, Source)
        self.source = source
        self.text = text
        self.tree = ast.parse(text)
        self.edit = Editor(source, self.tree)

    def find(self, wanted: Callable[[ast.expr], bool]) -> ast.expr:
        found = [n for n in ast.walk(self.tree) if isinstance(n, ast.expr) and wanted(n)]
        return min(found, key=lambda n: (n.lineno, n.col_offset, -(n.end_col_offset or 0)))

    def expression(self, code: str) -> ast.expr:
        """The first expression whose source is ``code``."""
        kind = type(ast.parse(f"({code})", mode="eval").body)
        return self.find(lambda n: type(n) is kind and ast.get_source_segment(self.text, n) == code)

    def call(self, name: str) -> ast.Call:
        found = self.find(lambda n: isinstance(n, ast.Call) and ast.unparse(n.func) == name)
        assert isinstance(found, ast.Call)
        return found

    def statement(self, node: ast.AST) -> ast.stmt:
        """The innermost statement around a node."""
        around = [
            s for s in ast.walk(self.tree)
            if isinstance(s, ast.stmt) and any(n is node for n in ast.walk(s))
        ]  # fmt: skip
        return around[-1]

    def applied(self, edits: Edits | None) -> str:
        """The text with the edits, as the fixer makes it."""
        assert edits is not None
        start = Position(1, 1)
        fix = Fix("edit", Applicability.SAFE, edits)
        found = Diagnostic(
            "MP900", "edited", "", "a.py", start, start,
            Severity.ERROR, Confidence.CERTAIN, fix=fix,
        )  # fmt: skip
        fixed = fixer.fix(
            self.source, lambda s: [found] if s.text == self.text else [], {Applicability.SAFE}
        )
        assert not isinstance(fixed.failure, Failure) and fixed.applied
        return fixed.source.text


def comments(text: str) -> list[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return [t.string for t in tokens if t.type == tokenize.COMMENT]


def inside(body: str) -> str:
    return "async def fn(x):\n" + textwrap.indent(body, "    ") + "\n"


# a method call behind an expression

TIGHT = [
    "x", "x.y", "x.T", "f(x)", "x[0]", "x[..., 1:2]", "[x, 1]", "{'k': x}", "x.y.z[1](2)[3]",
    "x.float()", "f(\n    x,  # c\n    1,\n)",
]  # fmt: skip
LOOSE = [
    "x + 1", "x @ w", "x ** 2", "-x", "not x", "~x", "x and w", "x or w", "x < w", "x < w < 3",
    "x if w else 1", "lambda z: z", "1", "1.5", "1e-3", "1j", "'s'", "f'{x}'", "'a' 'b'", "...",
    "None", "await x", "[z for z in x]", "{z for z in x}", "{z: 1 for z in x}", "{x, 1}",
    "x\n    + 1", "'''a\nb'''", "n := x",
]  # fmt: skip
CONTEXTS = [
    "r = ({})", "r = f({})", "r = a @ ({})", "r = ({}) ** 2", "r = -({})", "r = f(k=({}))",
    "r = f(*({}), 2)", "r = g[({})]", "r = [({}), 1]", "r = not ({})", "r = ({}) if c else d",
    "r = c if ({}) else d", "return ({})", "if ({}):\n    pass", "for i in ({}):\n    pass",
    "r: int = ({})", "r += ({})", "assert ({})", "({})", "r = lambda: ({})",
    "r = [i for i in ({})]", "del g[({})]", "with f({}) as q:\n    pass",
    "r = a; s = f({}); t = b  # c", "r = ({}) + \\\n    1", "@f({})\ndef h(): pass",
    "print(({}), end='')", "r = 'é\U0001f600' + ({})",
]  # fmt: skip


@pytest.mark.parametrize("expression", [*TIGHT, *LOOSE])
def test_append_means_what_parentheses_would_mean(expression: str) -> None:
    first, *more = expression.split("\n")
    code = "\n".join([first, *(f"    {line}" for line in more)])
    done = 0
    for context in CONTEXTS:
        text = inside(context.format(expression))
        wanted = inside(context.format(f"({expression}).float()"))
        try:
            file, expected = File(text), ast.dump(ast.parse(wanted))
        except SyntaxError:
            continue  # such as an `await` in a default
        node = file.expression(code)
        made = file.applied(file.edit.append(file.statement(node), {node: ".float()"}))
        assert ast.dump(ast.parse(made)) == expected, context
        assert comments(made) == comments(text), context
        done += 1
    assert done > 20


@pytest.mark.parametrize(
    ("before", "expression", "after"),
    [
        ("r = a + x", "x", "r = a + x.float()"),
        ("r = a ** -x", "-x", "r = a ** (-x).float()"),
        ("r = (x)", "x", "r = (x).float()"),
        ("r = (x + 1)", "x + 1", "r = (x + 1).float()"),
        ("r = ((x + 1))", "x + 1", "r = ((x + 1)).float()"),
        ("r = x + y @ z", "x + y @ z", "r = (x + y @ z).float()"),
        ("r = f( x )  # c", "x", "r = f( x.float() )  # c"),
        ("r = (a  # c\n     + x)", "a", "r = (a.float()  # c\n     + x)"),
        ("if c: r = x;", "x", "if c: r = x.float();"),
        ("r = f'{x!r:>{w}}'", "x", "r = f'{x.float()!r:>{w}}'"),
        ("r = x", "x", "r = x.float()"),
    ],
)
@pytest.mark.parametrize("end", ["\n", "\r\n", ""])
def test_append_writes(before: str, expression: str, after: str, end: str) -> None:
    newline = end or "\n"
    file = File(before.replace("\n", newline) + end)
    node = file.expression(expression)
    made = file.applied(file.edit.append(file.statement(node), {node: ".float()"}))
    assert made == after.replace("\n", newline) + end


def test_append_at_several_places_of_one_statement() -> None:
    file = File("r = f(a, b + c, k=d.e)  # keep\n")
    nodes = [file.expression(code) for code in ("a", "b + c", "d.e")]
    edits = file.edit.append(file.tree.body[0], dict.fromkeys(nodes, ".float()"))
    assert file.applied(edits) == "r = f(a.float(), (b + c).float(), k=d.e.float())  # keep\n"


def test_append_inside_of_what_is_appended_to() -> None:
    file = File("r = f(a + b)\n")
    nodes = [file.expression(code) for code in ("f(a + b)", "a")]
    edits = file.edit.append(file.tree.body[0], dict.fromkeys(nodes, ".float()"))
    assert file.applied(edits) == "r = f(a.float() + b).float()\n"


def test_the_edit_stays_on_the_statement() -> None:
    text = (
        "# a\nq = x\n\n\nclass C:\n\tdef f(self):\n\t\tr = (\n\t\t\tx  # c\n\t\t)\n\t\treturn x\n"
    )
    file = File(text)
    statement = next(s for s in ast.walk(file.tree) if ast.unparse(s) == "r = x")
    assert isinstance(statement, ast.Assign)
    edits = file.edit.append(statement, {statement.value: ".to(x.dtype)"})
    assert edits is not None
    (edit,) = edits
    first, last = file.source.lines[6], file.source.lines[9]
    assert first <= edit.start <= edit.end <= last
    assert file.applied((edit,)) == text.replace("\t\t)\n", "\t\t).to(x.dtype)\n")


# a keyword as the last argument of a call

KEYWORDS = [
    ("f()", "f(dtype=x.dtype)"),
    ("f(3)", "f(3, dtype=x.dtype)"),
    ("f(3,)", "f(3, dtype=x.dtype,)"),
    ("f(3, 4)", "f(3, 4, dtype=x.dtype)"),
    ("f(3 , 4 ,)", "f(3 , 4 , dtype=x.dtype ,)"),
    ("f(*s)", "f(*s, dtype=x.dtype)"),
    ("f(3, **kw)", "f(3, **kw, dtype=x.dtype)"),
    ("f((3, 4), device=d).to(e)", "f((3, 4), device=d, dtype=x.dtype).to(e)"),
    ("f(\n    3\n)", "f(\n    3,\n    dtype=x.dtype\n)"),
    ("f(\n    3,\n)", "f(\n    3,\n    dtype=x.dtype,\n)"),
    ("f(\n    3,\n    4,\n)", "f(\n    3,\n    4,\n    dtype=x.dtype,\n)"),
    ("f(\n    3,\n    4\n)", "f(\n    3,\n    4,\n    dtype=x.dtype\n)"),
    ("f(\n    3, 4,\n)", "f(\n    3, 4, dtype=x.dtype,\n)"),
    ("f(3,\n  4)", "f(3,\n  4, dtype=x.dtype)"),
    ("f(3,\n  4,)", "f(3,\n  4,\n  dtype=x.dtype,)"),
    ("f(3,  # a\n  4)", "f(3,  # a\n  4, dtype=x.dtype)"),
    ("f(3, \\\n  4)", "f(3, \\\n  4, dtype=x.dtype)"),
    ("f(  # open\n    3)", "f(  # open\n    3, dtype=x.dtype)"),
    ("f(\n    3,\n    # last\n)", "f(\n    3,\n    dtype=x.dtype,\n    # last\n)"),
    ("f(\n    3  # a\n)", "f(\n    3,\n    dtype=x.dtype  # a\n)"),
    ("f((3,\n   4),\n  device=d)", "f((3,\n   4),\n  device=d, dtype=x.dtype)"),
]
LAYOUTS = [
    "f( 3 )",
    "f(\n)",
    "f(  # open\n)",
    "f(\n    # nothing\n)",
    "f(\n    3,  # a\n)",
    "f(\n    3,  # a\n    4,  # b\n)",
    "f(\n    3,  # a\n    4  # b\n)",
    "f(  # open\n    3,  # a\n    4,  # b\n)",
    "f(3,  # a\n  4  # b\n  )",
    "f(\n    3,\n\n    4,\n)",
    "f(g(3), h=lambda y: y)",
]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("before", "after"), KEYWORDS)
def test_add_keyword_writes(before: str, after: str, newline: str) -> None:
    file = File(inside(f"r = {before}").replace("\n", newline))
    call = file.call("f")
    edits = file.edit.add_keyword(file.statement(call), call, "dtype", "x.dtype")
    assert file.applied(edits) == inside(f"r = {after}").replace("\n", newline)


@pytest.mark.parametrize("layout", [*LAYOUTS, *(before for before, _ in KEYWORDS)])
def test_add_keyword_adds_nothing_else(layout: str) -> None:
    file = File(inside(f"r = {layout}  # end"))
    call = file.call("f")
    edits = file.edit.add_keyword(file.statement(call), call, "dtype", "x.dtype")
    made = file.applied(edits)
    call.keywords.append(ast.keyword("dtype", ast.parse("x.dtype", mode="eval").body))
    assert ast.dump(ast.parse(made)) == ast.dump(file.tree)
    assert comments(made) == comments(file.text)


# a product outside of autocast

E = "einsum('ij,jk', a, b)"
F = "einsum('ij,jk', a.float(), b.float())"
WHOLE = [
    (f"y = {E}", f"    y = {F}"),
    (f"y = {E}  # c", f"    y = {F}  # c"),
    (f"y: T = {E}", f"    y: T = {F}"),
    (f"y += {E}", f"    y += {F}"),
    (f"return {E}", f"    return {F}"),
    (f"y = (\n    {E}  # c\n)", f"    y = (\n        {F}  # c\n    )"),
    (f"y = z = {E}", f"    y = z = {F}"),
    (
        "y = einsum(\n    'ij',\n    a,  # l\n    b + 1,\n)",
        "    y = einsum(\n        'ij',\n        a.float(),  # l\n        (b + 1).float(),\n    )",
    ),
]
HOISTED = [
    (f"y = g({E})", F, "y = g(c)"),
    (f"return {E} + 1  # c", F, "return c + 1  # c"),
    (f"y[0], z = {E}, 1", F, "y[0], z = c, 1"),
    (f"y = g(\n    {E},  # c\n    2,\n)", F, "y = g(\n    c,  # c\n    2,\n)"),
    (f"y = g(k={E}).h({E})", F, f"y = g(k=c).h({E})"),
    (f"y = 2 * {E}.sum()", F, "y = 2 * c.sum()"),
    (f"y = f'{{{E}}}'".replace("'ij,jk'", '"i"'), F.replace("'ij,jk'", '"i"'), "y = f'{c}'"),
]
REFUSED = [
    f"z = 1; y = {E}", f"if z: y = {E}", f"y = {E} if z else 0", f"y = z and {E}",
    f"y = [{E} for a in x]", f"y = lambda: {E}", f"y = await g({E})", f"y = yield {E}",
    f"y = (n := {E})", f"while {E}:\n    pass", f"for i in {E}:\n    pass", f"if {E}:\n    pass",
    f"assert {E}", f"raise g({E})", f"with {E}:\n    pass",
]  # fmt: skip


def outside_autocast(file: File, name: str | None) -> Edits | None:
    call = file.call("einsum")
    return file.edit.without_autocast(file.statement(call), call, call.args[1:], HEADER, name)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("before", "after"), WHOLE)
def test_whole_statements_go_under_a_with(before: str, after: str, newline: str) -> None:
    around = "# above\n{}\n# below\nz = 1"
    file = File(inside(around.format(before)).replace("\n", newline))
    wanted = inside(around.format(f"{HEADER}\n{after}")).replace("\n", newline)
    assert file.applied(outside_autocast(file, None)) == wanted


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(("before", "product", "after"), HOISTED)
def test_products_inside_of_statements_move_in_front(
    before: str, product: str, after: str, newline: str
) -> None:
    file = File(inside(before).replace("\n", newline))
    wanted = inside(f"{HEADER}\n    c = {product}\n{after}").replace("\n", newline)
    assert file.applied(outside_autocast(file, "c")) == wanted


@pytest.mark.parametrize("statement", REFUSED)
def test_statements_that_cannot_be_split_are_refused(statement: str) -> None:
    assert outside_autocast(File(inside(statement)), "c") is None


@pytest.mark.parametrize("unit", ["\t", "  ", "   ", "    "])
def test_new_blocks_use_the_indentation_of_the_file(unit: str) -> None:
    file = File(f"def f(a, b):\n{unit}if a:\n{unit * 2}return g({E})\n")
    made = file.applied(outside_autocast(file, "c"))
    assert made.splitlines()[2:] == [
        f"{unit * 2}{HEADER}",
        f"{unit * 3}c = {F}",
        f"{unit * 2}return g(c)",
    ]


@pytest.mark.parametrize("unit", ["\t", "  "])
def test_new_blocks_at_top_level_too(unit: str) -> None:
    file = File(f"y = g({E})\nif y:\n{unit}pass\n")
    made = file.applied(outside_autocast(file, "c"))
    assert made.splitlines()[:3] == [HEADER, f"{unit}c = {F}", "y = g(c)"]


def test_a_last_line_without_newline_stays_without() -> None:
    file = File(f"def f():\n    return {E}")
    assert file.applied(outside_autocast(file, None)) == (
        f"def f():\n    {HEADER}\n        return {F}"
    )


@pytest.mark.parametrize(
    ("text", "unit"),
    [
        ("x = 1\n", "    "),
        ("if x:\n  y\n", "  "),
        ("if x:  # c\n\ty\n", "\t"),
        ("def f(\n        a,\n):\n   return a\n", "   "),
        ("if x:\r\n  y\r\n", "  "),
        ("# if x:\n#  y\nif x:\n    y\n", "    "),
    ],
)
def test_indent_unit(text: str, unit: str) -> None:
    assert indent_unit(text) == unit


# statements

BLOCK = """
import torch

@decorated
def f(x):
    # about the first
    one(x)  # first
    if x:
        two(x)
    three(x); four(x)
    five(
        x,
    )  # fifth
    if x: six(x)
    seven(x)"""


def at(file: File, name: str) -> tuple[ast.stmt, list[ast.stmt]]:
    """The statement that calls ``name``, and its block."""
    statement = file.statement(file.call(name))
    for parent in ast.walk(file.tree):
        block = getattr(parent, "body", None)
        if isinstance(block, list) and any(s is statement for s in block):
            return statement, block
    raise AssertionError(name)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("one", "    one(x)  # first\n", "    # first\n"),
        ("two", "two(x)", "pass"),
        ("three", None, None),
        ("four", None, None),
        ("five", "    five(\n        x,\n    )  # fifth\n", "    # fifth\n"),
        ("six", None, None),
        ("seven", "\n    seven(x)", ""),
    ],
)
def test_remove(name: str, old: str | None, new: str | None, newline: str) -> None:
    file = File(BLOCK.replace("\n", newline))
    edits = file.edit.remove(*at(file, name))
    if old is None or new is None:
        assert edits is None
    else:
        made = file.applied(edits)
        assert made.replace("\r\n", "\n").rstrip("\r") == BLOCK.replace(old, new)
        assert comments(made) == comments(BLOCK)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "new"),
    [
        ("one", "    new()\n    more()\n    one(x)"),
        ("two", "        new()\n        more()\n        two(x)"),
        ("three", "    new()\n    more()\n    three(x)"),
        ("four", None),
        ("five", "    new()\n    more()\n    five("),
        ("six", None),
        ("seven", "    new()\n    more()\n    seven(x)"),
    ],
)
def test_insert_before(name: str, new: str | None, newline: str) -> None:
    file = File(BLOCK.replace("\n", newline))
    edits = file.edit.insert_before(at(file, name)[0], "new()", "more()")
    if new is None:
        assert edits is None
    else:
        old = new.rpartition("\n")[2]
        assert file.applied(edits) == BLOCK.replace(old, new).replace("\n", newline)


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize(
    ("name", "old"),
    [
        ("one", "    one(x)  # first"),
        ("two", "        two(x)"),
        ("three", None),
        ("four", None),
        ("five", "    five(\n        x,\n    )  # fifth"),
        ("six", None),
        ("seven", "    seven(x)"),
    ],
)
def test_insert_after(name: str, old: str | None, newline: str) -> None:
    file = File(BLOCK.replace("\n", newline))
    edits = file.edit.insert_after(at(file, name)[0], "new()")
    if old is None:
        assert edits is None
    else:
        indent = old[: len(old) - len(old.lstrip())]
        wanted = BLOCK.replace(old, f"{old}\n{indent}new()")
        assert file.applied(edits) == wanted.replace("\n", newline)


def test_insert_before_goes_above_decorators() -> None:
    file = File(BLOCK)
    (definition,) = (s for s in file.tree.body if isinstance(s, ast.FunctionDef))
    made = file.applied(file.edit.insert_before(definition, "new()"))
    assert made == BLOCK.replace("@decorated", "new()\n@decorated")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import os\nx = 1\n", "import torch\nimport os\nx = 1\n"),
        ('"""Doc."""\nfrom a import b\n', '"""Doc."""\nimport torch\nfrom a import b\n'),
        (
            "from __future__ import annotations\n\nimport os\n",
            "from __future__ import annotations\n\nimport torch\nimport os\n",
        ),
        ("# c\r\nimport os\r\n", "# c\r\nimport torch\r\nimport os\r\n"),
        (
            "x = 1\nfrom a import (\n    b,\n)\n",
            "x = 1\nimport torch\nfrom a import (\n    b,\n)\n",
        ),
    ],
)
def test_import_line(before: str, after: str) -> None:
    file = File(before)
    assert file.applied(file.edit.import_line("import torch")) == after


def test_import_line_without_any_import() -> None:
    assert File("x = 1\n").edit.import_line("import torch") == ()


@pytest.mark.parametrize(
    ("text", "place", "new", "expected"),
    [
        ("y = f(a, dtype=b.dtype)  # kept\n", "b.dtype", "c", "y = f(a, dtype=c)  # kept\n"),
        ("y = f(b.dtype)\n", "b.dtype", "c\n.dtype", "y = f((c\n.dtype))\n"),
    ],
)
def test_replace_puts_another_expression_in_place(
    text: str, place: str, new: str, expected: str
) -> None:
    file = File(text)
    edits = file.edit.replace(file.tree.body[0], {file.expression(place): new})
    assert file.applied(edits) == expected


@pytest.mark.parametrize(
    ("text", "place", "suffix", "expected"),
    [
        ("y = (a > 0).float()\n", "(a > 0).float()", ".half()", "y = (a > 0).half()\n"),
        ("y = x.sum().to(d)\n", "x.sum().to(d)", "", "y = x.sum()\n"),
    ],
)
def test_exchange_puts_another_method_in_place(
    text: str, place: str, suffix: str, expected: str
) -> None:
    file = File(text)
    edits = file.edit.exchange(file.tree.body[0], {file.expression(place): suffix})
    assert file.applied(edits) == expected
