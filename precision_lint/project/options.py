"""Settings that Python offers: command line options, parameters, fields, with their defaults."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import NamedTuple

from precision_lint.project.literals import Names, dotted, literal, path, string, text
from precision_lint.project.spellings import OPEN, Said, is_setting, judge, normal, offered

_ADDERS = {"add_argument", "add_option", "add_arg", "add", "option", "Option", "Argument"}
_ABSL = {"DEFINE_bool", "DEFINE_boolean", "DEFINE_string", "DEFINE_enum", "DEFINE_integer"}
_FIELDS = {"field", "Field", "Option"}


class Found(NamedTuple):
    """What an expression says, at which node, and how to tell a reader."""

    said: Said
    node: ast.AST
    spelling: str


def option(node: ast.Call) -> Iterator[Found]:
    """A command line option: argparse, click, typer, absl."""
    last = dotted(node.func)[-1]
    absl = last in _ABSL
    if not absl and last not in _ADDERS:
        return
    names = [n for n in map(string, node.args[: 1 if absl else None]) if n]
    name = max((n for n in names if absl or n.startswith("--")), key=len, default="")
    *outer, key = normal(name.lstrip("-").partition("/")[0]).split(".")
    if not key:
        return
    keywords = {k.arg: k.value for k in node.keywords}
    default = keywords.get("default") or (node.args[1] if absl and len(node.args) > 1 else None)
    shown = f"option `{name}`"
    if default is not None and is_setting(key):
        said = judge((*(outer or ["args"]), key), literal(default))
        if said is not None:
            kept = said if literal(default) is not OPEN else said._replace(strength="flag")
            yield Found(kept, node, f"{shown}, default {text(default)}")
    choices = keywords.get("choices") or keywords.get("type") or ast.Constant(None)
    for element in ast.walk(choices) if is_setting(key) else ():
        said = judge(("args", key), literal(element)) if isinstance(element, ast.Constant) else None
        if said is not None:
            yield Found(said._replace(strength="flag"), node, shown)
    weak = offered(key)
    if weak is not None:
        yield Found(weak, node, shown)


def signature(node: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Found]:
    """Defaults of a function's parameters."""
    plain = [*node.args.posonlyargs, *node.args.args]
    first = len(plain) - len(node.args.defaults)
    pairs = [
        *zip(plain[first:], node.args.defaults, strict=True),
        *zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True),
    ]
    for parameter, default in pairs:
        if default is not None and parameter.arg != "half":  # of anything
            for found in _default(parameter.arg, default, parameter, f"{node.name}()"):
                yield found._replace(said=found.said._replace(strength="flag"))


def fields(node: ast.ClassDef) -> Iterator[Found]:
    """Defaults of a dataclass or a model of settings."""
    for statement in node.body:
        if not isinstance(statement, ast.AnnAssign) or statement.value is None:
            continue
        value, name = statement.value, path(statement.target)
        if isinstance(value, ast.Call) and dotted(value.func)[-1] in _FIELDS:
            given = [k.value for k in value.keywords if k.arg == "default"] + value.args[:1]
            value = given[0] if given else ast.Constant(None)
        if name:
            yield from _default(name[-1], value, statement, node.name)


def _default(name: str, value: ast.expr, node: ast.AST, owner: str) -> Iterator[Found]:
    key = normal(name)
    if not is_setting(key):
        return
    shown = f"`{name}={text(value)}` of {owner}"
    if key.endswith("dtype"):
        found = Names().dtypes(value) if string(value) is None else None
        for dtype in found or ():
            said = judge((key,), dtype)
            if said is not None:
                yield Found(said._replace(strength="flag"), node, shown)
        return
    default = literal(value)
    said = judge(("trainer", name), default, code=True) if default is not OPEN else None
    if said is not None:
        yield Found(said, node, shown)
    elif default is False or default in ("no", "none", "fp32"):
        weak = offered(key)
        if weak is not None:
            yield Found(weak, node, shown)
