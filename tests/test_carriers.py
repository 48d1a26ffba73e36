"""Dtypes and bounds of tensors behind objects, containers, closures and decorators, held against torch."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from precision_lint.config import Overrides, Resolver
from precision_lint.engine import deep_recursion
from precision_lint.gathering import cache_of, interpreted
from precision_lint.observing import Known, Observation
from precision_lint.project.code import Code
from tests import carriers

NAMES = {torch.bool: "bool", torch.int64: "int"} | {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}
INEXACT = 34
"""At most so many assignments of which no dtype is known, or several: ``global``, tables of the file, and
objects that hold one tensor after the other."""


@dataclass(frozen=True)
class Assigned:
    """An assignment of a tensor: what is known of it, and what torch gave each time."""

    where: str
    known: Known
    given: tuple[torch.Tensor, ...]


class Recorded(ast.NodeTransformer):
    """Calls ``seen(line, value)`` behind each assignment to one name."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST | list[ast.stmt]:
        if len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return node
        value = ast.Name(node.targets[0].id, ast.Load())
        call = ast.Call(ast.Name("seen", ast.Load()), [ast.Constant(node.lineno), value], [])
        return [node, ast.copy_location(ast.Expr(call), node)]


def run(text: str) -> dict[int, list[torch.Tensor]]:
    """The tensors that each assignment of a program made, by its line."""
    found: dict[int, list[torch.Tensor]] = defaultdict(list)

    def seen(line: int, value: object) -> None:
        if isinstance(value, torch.Tensor):
            found[line].append(value.detach().clone())

    tree = ast.fix_missing_locations(Recorded().visit(ast.parse(text)))
    scope: dict[str, object] = {"seen": seen, "__name__": "program"}
    exec(compile(tree, "program.py", "exec", dont_inherit=True), scope)
    scope["main"]()  # type: ignore[operator]
    return found


def observed(path: Path) -> Iterator[Assigned]:
    text = path.read_text()
    settings = Resolver(Overrides(no_cache=True), isolated=True)(path.parent)
    code = Code.of(path.parent, settings, [path])
    name = code.name(path)
    with closing(cache_of(path.parent, settings)) as cache, deep_recursion():
        known = interpreted({path.parent: [name]}, {path.parent: code}, {path.parent: cache})
        seen = Observation(code, name, known[path.parent][name])
    given, head = run(text), carriers.HEAD.count("\n")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Assign) and node.lineno in given and node.lineno > head:
            where = f"{path.name}:{node.lineno} {ast.unparse(node)}"
            yield Assigned(where, seen.value(node.value), tuple(given[node.lineno]))


@pytest.fixture(scope="module")
def assigned(tmp_path_factory: pytest.TempPathFactory) -> list[Assigned]:
    found: list[Assigned] = []
    for number, text in enumerate(carriers.programs()):
        path = tmp_path_factory.mktemp("carriers") / f"program{number}.py"
        path.write_text(text)
        found += observed(path)
    return found


def test_what_is_known_of_dtypes_is_so(assigned: list[Assigned]) -> None:
    assert len(assigned) > 250
    known = [one for one in assigned if one.known.dtype]
    assert [one.where for one in known if not names(one.given) <= options(one.known)] == []


def test_most_dtypes_are_known(assigned: list[Assigned]) -> None:
    exact = [one.where for one in assigned if options(one.known) == names(one.given)]
    assert len(assigned) - len(exact) <= INEXACT


def test_what_is_known_of_bounds_is_so(assigned: list[Assigned]) -> None:
    assert [one.where for one in assigned if not all(within(one.known, v) for v in one.given)] == []


def options(known: Known) -> set[str]:
    return set(known.dtype.split(" or ")) if known.dtype else set()


def names(given: tuple[torch.Tensor, ...]) -> set[str]:
    return {NAMES[value.dtype] for value in given}


def within(known: Known, value: torch.Tensor) -> bool:
    """Whether the values of a tensor are within the bounds that are known."""
    values = value.double()
    return known.lo <= float(values.min()) + 1e-3 and float(values.max()) <= known.hi + 1e-3
