"""What the interpreter knows inside of one file, for who asks for more than findings."""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from precision_lint.api import Position
from precision_lint.dataflow.interpreter import Interpreter, Region
from precision_lint.dataflow.program import Program
from precision_lint.dataflow.stated import EVENT, is_stated
from precision_lint.dataflow.tensors import FOLLOWING
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.joining import join_modes
from precision_lint.domains.values import (
    Array,
    DtypeValue,
    Instance,
    Scalar,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.engine import Told, merged
from precision_lint.events import Event, Place, Sign
from precision_lint.precision.confidence import judge
from precision_lint.project.code import Code
from precision_lint.source import Source
from precision_lint.syntax.program import dotted
from precision_lint.syntax.stated import read

Key = tuple[type, int, int, int, int]
INF = math.inf
WRITTEN = dtypes.MODES[dtypes.CODE]


@dataclass(frozen=True)
class Known:
    """What is known of a value as the code is written, in plain words and numbers.

    kind: ``tensor``, ``number``, ``text``, ``dtype``, ``unknown`` and so on.  dtype: of a tensor or
    a number, empty if it is not one for sure.
    """

    kind: str = "unknown"
    dtype: str = ""
    lo: float = -INF
    hi: float = INF
    ndim: int | None = None


@dataclass(frozen=True)
class Around:
    """Autocast's state: ``on``, ``off`` or ``open`` (it depends on who calls), in some modes.

    dtypes: by mode what it casts to, empty where it is off.
    """

    state: str = "open"
    dtypes: dict[str, str] = field(default_factory=dict)
    device: str = ""
    opened: tuple[Place, ...] = ()


@dataclass(frozen=True)
class Expression:
    """What is known of one expression: its dtype by mode, its range, and what that rests on."""

    text: str
    start: Position
    kind: str
    dtypes: dict[str, str]
    range: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Noted:
    """A hazard at a line, whether or not a rule says it.

    confidence: empty where no finding.
    """

    kind: str
    text: str
    modes: tuple[str, ...]
    confidence: str
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class Description:
    """What is known at a line of a file."""

    function: str
    autocast: Around
    in_force: dict[str, str]
    """By mode, what shows that the file is run in it."""
    expressions: tuple[Expression, ...]
    events: tuple[Noted, ...]
    stated: tuple[str, ...] = ()
    """What comments state at the line, and of the names in it."""
    assumed: tuple[str, ...] = ()
    """Names in the line of which the dtype is assumed, where a hazard of the line rests on that."""


class _Seen:
    """What an expression was seen to give, in all contexts together."""

    __slots__ = ("live", "regions", "value")

    def __init__(self) -> None:
        self.value: Value | None = None
        self.live = 0
        self.regions: list[Region] = []


class _Observer(Interpreter):
    """An interpreter that remembers what the expressions of one file give."""

    def __init__(self, program: Program, path: str, called: frozenset[tuple[str, str]]) -> None:
        super().__init__(program)
        self._path = path
        self._called = called
        self.seen: dict[Key, _Seen] = {}
        self.first: dict[Key, _Seen] = {}
        """The same in what a function calls that has callers itself: they may come to it in the same context,
        which is interpreted once."""

    def expr(self, node: ast.AST) -> Value:
        value = super().expr(node)
        if self.module.path == self._path:
            called = self.root in self._called
            key = _key(node) if not called or self.calls is not None else None
            if key is not None:
                kept = self.first if called else self.seen
                self._note(kept.setdefault(key, _Seen()), value)
        return value

    def _note(self, seen: _Seen, value: Value) -> None:
        if seen.value is None:
            seen.value = value
        elif seen.value is not value:
            seen.value = join_modes(seen.value, value, seen.live, self.live)
        seen.live |= self.live
        if self.region not in seen.regions:
            seen.regions.append(self.region)


class Observation:
    """What was seen in one file, in the contexts of files that came to it.

    callers: of those that call it and brought no event, how many are followed as well.
    """

    def __init__(self, code: Code, name: str, told: Told, callers: int | None = 0) -> None:
        program = Program(code.layout, code.tree)
        others = dict(islice(told.callers.items(), callers))
        called = told.called.all.union(*others.values())
        observer = program.interpreter = _Observer(program, name, called)
        for root in (*(told.roots or (name,)), *others):
            program.analyse(root)
        self._seen = {**observer.first, **observer.seen}

    def value(self, node: ast.AST) -> Known:
        """What is known of an expression of the file."""
        seen = self._seen.get(_key(node) or (ast.AST, 0, 0, 0, 0))
        return _known(seen.value) if seen is not None and seen.value is not None else Known()

    def around(self, nodes: Iterable[ast.AST]) -> Around:
        """Autocast's state at the first of some nodes of which it is known."""
        for node in nodes:
            seen = self._seen.get(_key(node) or (ast.AST, 0, 0, 0, 0))
            if seen is not None and seen.regions:
                return _around(seen.regions)
        return Around()

    def is_stated(self, node: ast.expr) -> bool:
        """Whether something may be stated of an expression."""
        seen = self._seen.get(_key(node) or (ast.AST, 0, 0, 0, 0))
        value = seen.value if seen is not None else None
        return isinstance(value, Instance) or (value is not None and is_stated(value))

    def follows(self, node: ast.expr) -> bool:
        """Whether an expression is a tensor that is assumed to have a model's dtype."""
        seen = self._seen.get(_key(node) or (ast.AST, 0, 0, 0, 0))
        value = seen.value if seen is not None else None
        if isinstance(value, Unknown):
            value = value.symbol.tensor
        return isinstance(value, Tensor) and bool(value.assumptions & FOLLOWING)

    def expression(self, node: ast.expr, text: str, start: Position) -> Expression | None:
        """The same of an expression in words; None where nothing is known."""
        seen = self._seen.get(_key(node) or (ast.AST, 0, 0, 0, 0))
        if (
            seen is None
            or seen.value is None
            or isinstance(getattr(node, "operand", node), ast.Constant)
        ):
            return None
        value, known = seen.value, _known(seen.value)
        by_mode = _dtypes(value)
        if known.kind == "unknown" and not any(by_mode.values()):
            return None
        return Expression(
            text,
            start,
            known.kind,
            by_mode,
            _range(value),
            assume.names(getattr(value, "assumptions", 0)),
        )


def describe(
    text: Source,
    tree: ast.Module,
    code: Code,
    name: str,
    told: Told,
    row: int,
    callers: int | None = None,
) -> Description:
    """What is known at a row of a file; callers: as of an observation, None: all."""
    observation = Observation(code, name, told, callers)
    nodes = _on_row(tree, row)
    found: dict[str, Expression] = {}
    for node in nodes:
        start = text.offset(node.lineno, node.col_offset)
        end = text.offset(node.end_lineno or 0, node.end_col_offset or 0)
        words = " ".join(text.text[start:end].split())
        one = observation.expression(node, words, text.position(start))
        if one is not None:
            found.setdefault(words, one)
    in_force = {
        dtypes.MODES[mode]: _shown_by(sign, code) if sign is not None else "stated"
        for mode, (_, sign) in sorted(told.force.modes.items())
    }
    every = [one for one in merged(told.events) if one.kind != EVENT]
    events = [e for e in every if e.place.row <= row <= e.place.end_row]
    return Description(
        _function(tree, row),
        observation.around(nodes),
        in_force,
        tuple(found.values()),
        tuple(_noted(one, text, told) for one in events if one.place.row == row)
        or tuple(_noted(one, text, told) for one in events),
        tuple(_stated(tree, text, observation, nodes, row)),
        _assumed(observation, nodes) if any(_follows(one, told) for one in events) else (),
    )


def _shown_by(sign: Sign, code: Code) -> str:
    """What shows a mode, and where."""
    path = sign.place.path
    row = "" if path.endswith(".ipynb") else f":{sign.place.row}"
    return f"{sign.text.removesuffix(' here')}, {code.shown(path)}{row}"


def _stated(
    tree: ast.Module, text: Source, observation: Observation, nodes: list[ast.expr], row: int
) -> Iterator[str]:
    """The facts that comments state at a row, or of the names in it."""
    facts, _ = read(tree, text.text)
    names = {dotted(node) for node in nodes if facts and observation.is_stated(node)}
    for fact in facts:
        inside = fact.holds <= row and _function(tree, fact.holds) == _function(tree, row)
        if fact.place.row == row or (inside and fact.name in names):
            yield f"{fact.text} (line {fact.place.row})"


def _assumed(observation: Observation, nodes: list[ast.expr]) -> tuple[str, ...]:
    names = [dotted(node) for node in nodes if observation.follows(node)]
    return tuple(dict.fromkeys(name for name in names if name is not None))


def _follows(event: Event, told: Told) -> bool:
    """Whether a hazard rests on the dtype of what comes in."""
    verdict = judge(event, told.force, told.called)
    return verdict is not None and bool(verdict.variant.assumptions & FOLLOWING)


def _noted(event: Event, text: Source, told: Told) -> Noted:
    verdict = judge(event, told.force, told.called)
    variant = verdict.variant if verdict is not None else event.variants[0]
    modes = [name for i, name in enumerate(dtypes.MODES) if event.modes >> i & 1]
    place = event.place
    start = text.offset(place.row, place.column)
    end = text.offset(place.end_row, place.end_column)
    return Noted(
        event.kind,
        " ".join(text.text[start:end].split()),
        tuple(modes),
        verdict.confidence.value if verdict is not None else "",
        assume.names(variant.assumptions),
    )


def _key(node: ast.AST) -> Key | None:
    row: int | None = getattr(node, "lineno", None)
    if row is None:
        return None
    end_row: int = getattr(node, "end_lineno", None) or row
    column: int = getattr(node, "col_offset", 0)
    end_column: int = getattr(node, "end_col_offset", None) or column
    return node.__class__, row, column, end_row, end_column


def _on_row(tree: ast.Module, row: int) -> list[ast.expr]:
    """Expressions that start on a row, outermost first; else the innermost one around it."""
    nodes = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.expr) and node.lineno <= row <= (node.end_lineno or 0)
    ]
    return [node for node in nodes if node.lineno == row] or nodes[-1:]


def _function(tree: ast.Module, row: int) -> str:
    """The qualified name of the function around a row; empty outside of functions."""
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= row <= (node.end_lineno or 0)
    ]
    inside.sort(key=lambda node: node.lineno)
    while inside and isinstance(inside[-1], ast.ClassDef):
        inside.pop()
    return ".".join(node.name for node in inside)


def enclosing(tree: ast.Module, row: int) -> ast.AST:
    """The innermost function around a row, or the module."""
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        and node.lineno <= row <= (node.end_lineno or 0)
    ]
    return max(inside, key=lambda node: node.lineno, default=tree)


# words


def _known(value: Value) -> Known:
    vector = _vector(value)
    dtype = dtypes.describe(vector[dtypes.CODE] & dtypes.ANY) if vector is not None else ""
    dtype = "" if dtype == "unknown" or " or " in dtype else dtype
    if isinstance(value, Tensor):
        rank = value.rank if value.rank >= 0 else None
        return Known("tensor", dtype, value.lo, value.hi, rank)
    if isinstance(value, Array):
        return Known("NumPy array", dtype, value.lo, value.hi)
    if isinstance(value, Scalar):
        if value.is_number:
            return Known("number", value.kind, value.lo, value.hi)
        return Known({"str": "text", "bool": "bool", "none": "None"}.get(value.kind, value.kind))
    if isinstance(value, DtypeValue):
        return Known("dtype", dtype)
    if isinstance(value, Unknown) and value.symbol.tensor is not None:
        return _known(value.symbol.tensor)
    return Known("object" if isinstance(value, Instance) else "unknown")


def _vector(value: Value) -> dtypes.Dtypes | None:
    if isinstance(value, Unknown) and value.symbol.tensor is not None:
        return value.symbol.tensor.dtypes
    found: Any = getattr(value, "dtypes", None)
    return found if isinstance(found, tuple) else None


def _dtypes(value: Value) -> dict[str, str]:
    vector = _vector(value)
    if vector is None:
        return {}
    return {
        mode: dtypes.describe(one & dtypes.ANY)
        for mode, one in zip(dtypes.MODES, vector, strict=True)
    }


def _range(value: Value) -> str:
    if isinstance(value, Unknown) and value.symbol.tensor is not None:
        value = value.symbol.tensor
    lo, hi = getattr(value, "lo", -INF), getattr(value, "hi", INF)
    if lo == -INF and hi == INF:
        return ""
    if lo == hi:
        return f"{lo:g}"
    left = "(-inf" if lo == -INF else f"[{lo:g}"
    return f"{left}, inf)" if hi == INF else f"{left}, {hi:g}]"


def _around(regions: list[Region]) -> Around:
    found: dict[str, str] = {}
    open_ = False
    for number, mode in enumerate(dtypes.MODES):
        sets = [region.dtypes[number] for region in regions]
        whole = 0
        for one in sets:
            whole |= one & ~dtypes.MAYBE
        perhaps = any(one & dtypes.MAYBE or not one for one in sets)
        words = dtypes.describe(whole) if whole else ""
        found[mode] = f"{words}, or off" if words and perhaps else words
        open_ |= bool(words and perhaps)
    explicit = all(region.explicit for region in regions)
    written = found[WRITTEN]
    state = "on" if written and not written.endswith("or off") else "off"
    if open_ or (not written and not explicit):
        state = "open"
    sites = tuple(dict.fromkeys(site for region in regions for site in region.sites[:1]))
    device = regions[0].device if any(found.values()) else ""
    return Around(state, found, device, sites)
