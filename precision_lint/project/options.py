"""Modes that a project's command lines offer: ``--fp16``, ``--precision`` with its choices."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.events import Place, Sign
from precision_lint.project import hints, spellings
from precision_lint.project.code import Code
from precision_lint.project.spellings import F16, Said
from precision_lint.project.suggested import MODES

CALLS = frozenset({"add_argument", "option", "Option", "add_option"})
"""Functions that declare an option, of argparse, click, typer and optparse."""


AUTOCAST = (
    b"autocast", b"GradScaler", b"lightning", b"transformers", b"accelerate", b"deepspeed", b"apex",
)  # fmt: skip
"""What code that has autocast, or a framework that opens it, has a word of."""


def signs(code: Code) -> Iterator[Sign]:
    """The options of a project's Python files that would run it in half precision.

    Where nothing in the project has autocast, an option such as ``--fp16`` casts weights and inputs.
    """
    found = list(_offered(code))
    casts = bool(found) and not any(
        word in code.data(name) for name in code.names for word in AUTOCAST
    )
    for mode, text, place, plain in found:
        kept = HALF_OF.get(mode, mode) if casts and plain else mode
        yield Sign(kept, text, place, script=True, flag=True)


HALF_OF = {MODES["autocast", narrow]: MODES["half", narrow] for narrow in (True, False)}


def _offered(code: Code) -> Iterator[tuple[int, str, Place, bool]]:
    """Modes, words and places of options, and whether the option's name alone says the mode."""
    for name in sorted(code.names):
        data = code.data(name)
        if b"--" not in data or not (hints.says("autocast", data) or hints.says("half", data)):
            continue
        tree = code.tree(name)
        for node in ast.walk(tree) if tree is not None else ():
            if isinstance(node, ast.Call) and _called(node) in CALLS:
                yield from _signs(name, node)


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _signs(name: str, call: ast.Call) -> Iterator[tuple[int, str, Place, bool]]:
    for node, key in _names(call):
        place = Place(name, node.lineno, node.col_offset, node.end_lineno or 0, 0)
        said = {one for one in _said(key.lstrip("-"), call) if one is not None}
        modes = {MODES[one.kind, dtype == F16] for one in said for dtype in one.dtypes}
        plain = "16" in key
        for mode in sorted(modes):
            yield mode, f"the command line offers {key}", place, plain


def _names(call: ast.Call) -> Iterator[tuple[ast.Constant, str]]:
    for node in call.args:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value.startswith("--"):
                yield node, node.value


def _said(name: str, call: ast.Call) -> Iterator[Said | None]:
    """What an option says by its values, or by its name where it is a switch."""
    key = spellings.normal(name.partition("/")[0])
    given = {one.arg: one.value for one in call.keywords}
    values = [given[one] for one in ("default", "choices", "const", "type") if one in given]
    found = [n.value for one in values for n in ast.walk(one) if isinstance(n, ast.Constant)]
    texts = {one for one in found if isinstance(one, str)}
    if texts or "choices" in given:
        for text in sorted(texts):
            yield spellings.judge((key,), text, code=True)
    else:
        yield spellings.offered(key)


__all__ = ["signs"]
