"""What a program's settings are until somebody gives others: options of a command line, fields of classes."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow import declared, objects, records
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains import Spread
from precision_lint.domains import assumptions as assume
from precision_lint.domains.joining import join, unknown
from precision_lint.domains.values import (
    Instance,
    Reference,
    Scalar,
    Sequence,
    Table,
    Unknown,
    Value,
    text,
)
from precision_lint.syntax.program import Class

OPTION: Final = "option"
"""What a parser's options are kept under, beside their names."""
GROUPS: Final = frozenset({"add_argument_group", "add_mutually_exclusive_group"})
"""Methods of a parser that give a part of it."""
DICTS: Final = ("builtins.dict", "collections.OrderedDict", "collections.UserDict")


def usual(value: Value | None, kinds: tuple[str, ...] = ("float",)) -> Value | None:
    """A default of one of these kinds, which is assumed; None: it is no such."""
    if not isinstance(value, Scalar) or value.kind not in kinds or value.value is None:
        return None
    return _assumed(value)


def _assumed(value: Scalar) -> Scalar:
    assumed = value.assumptions | assume.DEFAULT
    return Scalar(value.value, value.kind, value.lo, value.hi, assumed, value.node, value.home)


def of_parser(
    parser: Unknown, name: str, made: Value, arguments: list[Value], keywords: dict[str, Value]
) -> Value:
    """What a method of a command line's parser gives; of another unknown object: what was made of it."""
    options = parser.symbol.attributes
    if name in GROUPS:
        return parser
    if name == "add_argument":
        words = [one for one in (text(keywords.get("dest")), *map(text, arguments)) if one]
        words.sort(key=_is_short)
        default = usual(keywords.get("default"), ("float", "str"))
        if words and default is not None:
            options[OPTION, words[0].lstrip("-").replace("-", "_")] = default
    elif name in ("parse_args", "parse_known_args") and isinstance(made, Unknown):
        for key in [one for one in options if one.__class__ is tuple and one[0] == OPTION]:
            made.symbol.attributes[key[1]] = options[key]
        return made if name == "parse_args" else Sequence((made, unknown()), None)
    return made


def _is_short(option: str) -> bool:
    """Whether it is ``-e``, which stands for ``--eps``."""
    return option[:1] == "-" and option[:2] != "--"


def or_default(found: Value, default: Value) -> Value:
    """What ``getattr`` finds, or its default where nobody knows what there is."""
    kept = usual(default) if isinstance(found, Unknown) else None
    return kept or join(found, default)


def of_dataclass(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """``field``, ``asdict`` and ``replace``."""
    if name == "dataclasses.asdict" and arguments:
        return as_table(arguments[0])
    if name == "dataclasses.replace" and arguments and isinstance(arguments[0], Instance):
        return records.replaced(it, arguments[0], keywords, node)
    if name != "dataclasses.field":
        return unknown()
    made = keywords.get("default_factory")
    return it.call(made, [], {}, node) if made is not None else keywords.get("default", unknown())


def as_table(value: Value) -> Value:
    """``vars(x)``, ``asdict(x)``: attributes by name."""
    if not isinstance(value, Instance):
        return value
    return Table({k: v for k, v in value.attributes.items() if isinstance(k, str)}, unknown())


def filled(
    it: Interpreter,
    cls: Class,
    result: Instance,
    arguments: list[Value],
    keywords: dict[str, Value],
) -> None:
    """What an object without an ``__init__`` holds: a dict's items, a dataclass's or named tuple's fields."""
    if objects.is_a(it, cls, *DICTS):
        items = it.call(Reference(DICTS[0]), arguments, keywords, cls.node)
        if isinstance(items, Table):
            result.items = items
    line = [c for c in reversed(objects.ancestry(it, cls)) if isinstance(c, Class)]
    more = it.unpacked  # keywords that nobody knows may give any field
    said = {
        statement.target.id: (base.module, statement.annotation)
        for base in line
        for statement in base.node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    names = next((c.facts[records.ITEMS] for c in line if records.ITEMS in c.facts), list(said))
    if isinstance(arguments, Spread):
        constants = (objects.class_constant(it, cls, one) for one in names if one not in keywords)
        arguments = arguments.filled(sum(one is None for one in constants))
    given = {**dict(zip(names, arguments, strict=False)), **keywords}
    result.attributes.update({name: given[name] for name in names if name in given})
    if not objects.is_module(it, cls) and any(
        isinstance(c, str) for c in objects.ancestry(it, cls)
    ):
        for name, held in keywords.items():  # of a library's class, it keeps what that one keeps
            if isinstance(held, (Scalar, Table, Unknown)):
                result.attributes.setdefault(name, held)
    for name, (module, annotation) in said.items():
        value = given.get(name) or objects.class_constant(it, cls, name)
        if name not in given and isinstance(value, Scalar) and (value.is_number or more):
            value = _assumed(value) if value.kind != "none" else unknown()
        value = declared.as_annotated(it, module, value or unknown(), annotation)
        if name in given or not isinstance(value, Unknown):
            result.attributes[name] = value
    records.fill(it, result, names)
