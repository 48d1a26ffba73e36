"""What is known of single lines of tensor code (dtype, range, rank), held against what torch gives."""

from __future__ import annotations

import ast
import math
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
from tests import lines

NAMES = {torch.bool: "bool", torch.int64: "int"} | {
    dtype: str(dtype).removeprefix("torch.")
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
}


@dataclass(frozen=True)
class Line:
    """The last assignment to ``y`` in a function: its text, what torch gives, what is known of it."""

    where: str
    given: torch.Tensor
    known: Known


def given(function: object) -> torch.Tensor | None:
    """What a line gives; None: it raises, or gives no tensor."""
    torch.manual_seed(0)
    try:
        result = function()  # type: ignore[operator]
    except (RuntimeError, NotImplementedError):
        return None
    return result if isinstance(result, torch.Tensor) else None


def observed(path: Path) -> Iterator[Line]:
    """Each line of a program that runs."""
    text = path.read_text()
    settings = Resolver(Overrides(no_cache=True), isolated=True)(path.parent)
    code = Code.of(path.parent, settings, [path])
    name = code.name(path)
    with closing(cache_of(path.parent, settings)) as cache, deep_recursion():
        known = interpreted({path.parent: [name]}, {path.parent: code}, {path.parent: cache})
        seen = Observation(code, name, known[path.parent][name])
    scope: dict[str, object] = {}
    exec(compile(text.removesuffix("main()\n"), path.name, "exec"), scope)
    main = text[text.rindex("    x = ") : text.rindex("    line0(")]
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name.startswith("line"):
            call = f"{main}    return {node.name}(x, w)\n"
            exec(compile("def run():\n" + call, path.name, "exec"), scope)
            result = given(scope["run"])
            returned = node.body[-1]
            if result is not None and isinstance(returned, ast.Return) and returned.value:
                where = f"{path.stem}: {ast.unparse(node.body[0])}"
                yield Line(where, result, seen.value(returned.value))


OPEN = "torch.is_autocast_enabled()"
"""What CUDA's state depends on, in regions for the CPU."""
PROGRAMS = dict(lines.programs())


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_known_of_a_line_is_so(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(PROGRAMS[name])
    found = list(observed(path))
    assert len(found) > 80
    unknown = [one.where for one in found if not one.known.dtype]
    assert [where for where in unknown if OPEN not in where] == []
    assert [one for one in found if one.known.dtype not in ("", NAMES[one.given.dtype])] == []
    assert [one for one in found if one.known.ndim not in (None, one.given.dim())] == []
    assert [one for one in found if not _within(one)] == []


def _within(line: Line) -> bool:
    """Whether the values are within the bounds that are known, up to rounding."""
    values = line.given.detach().double()
    lo, hi = float(values.min()), float(values.max())
    room = 0.02 * max(abs(lo), abs(hi)) + 1e-3
    return math.isnan(lo) or (line.known.lo - room <= lo and hi <= line.known.hi + room)
