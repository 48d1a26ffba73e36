"""What the inputs of a slice may be: kinds, ranks and dimensions, from the analysis and from use.

The analysis knows ranges, some dtypes and some ranks.  Use tells more: einsum equations, unpacked
shapes, subscripts, dimensions that are named, docstrings such as ``points: (B, N, 3)``.  What
remains open is tried, the likely first (`precision_lint.harness.hunt`).
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from precision_lint.harness.cutting import Free
from precision_lint.harness.scope import dotted, last_word
from precision_lint.harness.slicing import Slice
from precision_lint.observing import Known

INDEXED = {
    "gather": 1, "index_select": 1, "take_along_dim": 0, "embedding": 0, "one_hot": 0,
    "scatter": 1, "scatter_add": 1, "index_add": 1, "bincount": 0, "cross_entropy": 1,
    "nll_loss": 1,
}  # fmt: skip
"""Functions with an argument that has to be an integer tensor: its place behind the first."""
MASKED = {"masked_fill": 1, "masked_fill_": 1, "masked_select": 1, "where": 0}
"""Functions with an argument that has to be boolean: its place, a method's own tensor is 0."""
LABELS = re.compile(
    r"(^|_)(ids?|idxs?|ind(ex|ices)|labels?|classes|kinds?|rows|cols|columns|route|steps?)$"
)
SMALL = re.compile(r"(^|_)eps(ilon)?$")
SIZES = re.compile(r"(^|_)(shape|sizes?)$")
COUNTS = re.compile(
    r"(^|_)(n|num\w*|count\w*|length|heads?|dim|width|height|bins?|classes|groups)$"
)
SIZING = ("view", "reshape", "expand", "zeros", "ones", "full", "eye", "arange", "new_zeros",
          "new_ones", "unflatten", "repeat", "range", "linspace", "randn", "rand", "split", "chunk",
          "one_hot")  # fmt: skip
"""Functions whose plain arguments are sizes."""
DIMENSIONAL = ("permute", "transpose", "flatten", "unsqueeze", "softmax", "sum", "mean", "size",
               "unflatten", "split", "chunk", "squeeze")  # fmt: skip
"""Functions that name dimensions of their first operand."""
MATRICES = {"bmm": 3, "baddbmm": 3, "mm": 2, "addmm": 2}


@dataclass
class Hypothesis:
    """What an input may be.  ``kinds``: the likely one first.  ``shape``: dimensions of a tensor
    that are known, None for those that are not; ``ranks``: its rank, the likely one first.
    ``lo``, ``hi``: bounds of its values.  ``wide``: it is float32 (or float64) wherever it is used.
    """

    name: str
    stands_for: str
    kinds: list[str]
    ranks: list[int] = field(default_factory=list)
    shape: list[int | str | None] | None = None
    lo: float = -math.inf
    hi: float = math.inf
    wide: bool = False
    layer: str | None = None

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def hypotheses(
    one: Slice, values: dict[str, Known], documentation: str
) -> tuple[list[Hypothesis], list[int]]:
    """A hypothesis for each input, and the sizes that the code mentions."""
    uses = _Uses(one.function, [free.layer for free in one.inputs if free.layer is not None])
    found = [
        _hypothesis(free, values.get(free.name, Known()), uses, documentation)
        for free in one.inputs
    ]
    return found, uses.sizes


def _hypothesis(free: Free, value: Known, uses: _Uses, documentation: str) -> Hypothesis:
    if free.layer is not None:
        return Hypothesis(free.name, free.stands_for, ["layer"], layer=free.layer)
    kinds = _kinds(free, value, uses)
    result = Hypothesis(free.name, free.stands_for, kinds, lo=value.lo, hi=value.hi)
    result.wide = free.wide or (value.dtype in ("float32", "float64") and value.kind == "tensor")
    result.shape = _documented(free.name, documentation) or uses.einsum.get(free.name)
    exact = value.ndim if value.ndim is not None else uses.exact.get(free.name)
    least = uses.least.get(free.name, 0)
    if result.shape is not None and len(result.shape) < least:
        result.shape = None
    usual = [r for r in (2, 3, 1, 4, 0, 5) if r >= least]
    ranks = [exact] if exact is not None else [least] if least > 2 else []
    ranks += [len(result.shape)] if result.shape is not None else []
    result.ranks = list(dict.fromkeys([*ranks, *usual]))
    return result


def _kinds(free: Free, value: Known, uses: _Uses) -> list[str]:
    name = free.name
    annotation = free.annotation.replace("Optional[", "").rstrip("]").partition("|")[0].strip()
    if annotation in ("int", "float", "bool", "str"):
        return {"int": ["int"], "float": ["float"], "bool": ["bool"], "str": ["text"]}[annotation]
    if value.kind == "number":
        return ["int", "float"] if value.dtype == "int" else ["float", "int"]
    if value.kind == "dtype" or re.search(r"(^|_)dtype$", name):
        return ["dtype"]
    if re.search(r"(^|_)device(_type)?$", name):
        return ["device"]
    if value.kind == "text":
        return ["text"]
    if value.kind == "tensor" and value.dtype in ("bool", "int"):
        return ["mask"] if value.dtype == "bool" else ["index", "tensor"]
    return _by_use(name, annotation, value, uses)


def _by_use(name: str, annotation: str, value: Known, uses: _Uses) -> list[str]:
    """What a free name may be by how it is used, annotated and called."""
    if name in uses.masks and value.dtype in (None, "", "unknown"):
        return ["mask", "tensor", "index"]
    if "Tensor" in annotation:
        indexed = name in uses.indices or LABELS.search(name)
        return ["index", "tensor", "mask"] if indexed else ["tensor", "index", "mask"]
    if SMALL.search(name):
        return ["small", "tensor"]
    if SIZES.search(name):
        return ["sizes", "int", "tensor"]
    if name in uses.sizing or (COUNTS.search(name) and value.kind != "tensor"):
        return ["int", "tensor", "float"]
    if name in uses.indices or LABELS.search(name):
        return ["index", "tensor", "int", "mask"]
    return ["tensor", "index", "mask"] + (["float", "int"] if value.kind != "tensor" else [])


def _documented(name: str, text: str) -> list[int | str | None] | None:
    """``(B, N, 3)`` for ``points`` from ``points: (B, N, 3)`` in a docstring or a comment."""
    match = re.search(
        rf"\b{re.escape(name)}\b[^()\n,;]{{0,24}}"
        r"[(\[]((?:[A-Za-z_][\w' ]*|\d+)(?:\s*,\s*[\w' ]+)*),?\s*[)\]]",
        text,
    )
    if match is None or len(match[1]) > 60:
        return None
    parts = [part.strip() for part in match[1].split(",") if part.strip()]
    if any(len(part) > 12 or " " in part for part in parts) or not parts:
        return None
    return [int(p) if p.isdigit() else p for p in parts]


class _Uses(ast.NodeVisitor):
    """How a slice uses its names."""

    def __init__(self, function: ast.FunctionDef, layers: Sequence[str]) -> None:
        self.least: dict[str, int] = {}
        self.exact: dict[str, int] = {}
        self.einsum: dict[str, list[int | str | None]] = {}
        self.indices: set[str] = set()
        self.masks: set[str] = set()
        self.sizing: set[str] = set()
        self.sizes: list[int] = []
        self.visit(function)
        for text in layers:
            self.visit(ast.parse(text))
        self.sizes = sorted({s for s in self.sizes if 2 <= s <= 4096})

    def _at_least(self, node: ast.expr, rank: int) -> None:
        if isinstance(node, ast.Name):
            self.least[node.id] = max(rank, self.least.get(node.id, 0))

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, int) and not isinstance(node.value, bool):
            self.sizes += [node.value, node.value + 1]

    def visit_Assign(self, node: ast.Assign) -> None:
        self._unpacked(node.targets[0], node.value)
        self.generic_visit(node)

    def _unpacked(self, target: ast.expr, value: ast.expr) -> None:
        """``b, n, c = x.shape``."""
        if not isinstance(target, ast.Tuple) or any(
            isinstance(t, ast.Starred) for t in target.elts
        ):
            return
        if isinstance(value, ast.Call) and last_word(value) == "size" and not value.args:
            value = value.func
        if isinstance(value, ast.Attribute) and value.attr in ("shape", "size"):
            if isinstance(value.value, ast.Name):
                self.exact[value.value.id] = len(target.elts)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        taken = [p for p in parts if not _constant(p, None) and not _constant(p, ...)]
        self._at_least(node.value, len(taken))
        for part in parts:
            if isinstance(part, ast.Name):
                self.indices.add(part.id)
        if isinstance(node.value, ast.Attribute) and node.value.attr == "shape":
            for dim in _integers(node.slice):
                self._at_least(node.value.value, dim + 1 if dim >= 0 else -dim)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        if isinstance(node.op, ast.MatMult):
            self._at_least(node.left, 1)
            self._at_least(node.right, 1)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        word = last_word(node)
        method = isinstance(node.func, ast.Attribute) and not _library(node.func)
        operands = [node.func.value, *node.args] if method else node.args  # type: ignore[attr-defined]
        if word == "einsum":
            self._einsum(operands)
        if word in MATRICES:
            names = (one.id for one in operands[:3] if isinstance(one, ast.Name))
            self.exact |= dict.fromkeys(names, MATRICES[word])
        if word in DIMENSIONAL:
            self._dimensional(word, operands, node.keywords)
        if word == "cdist":
            for operand in operands[:2]:
                self._at_least(operand, 2)
        if word in INDEXED:
            self._indexed(operands[INDEXED[word] : INDEXED[word] + 3])
        if word in MASKED and len(operands) > MASKED[word]:
            self.masks.add(_root(operands[MASKED[word]]))
        if word in SIZING:
            for operand in operands[1 if method else 0 :]:
                for name in _plain(operand):
                    self.sizing.add(name)
        self.generic_visit(node)

    def _dimensional(
        self, word: str, operands: list[ast.expr], keywords: list[ast.keyword]
    ) -> None:
        """The dimensions that an operation names are there."""
        dims = [d for a in operands[1:] for d in _integers(a)]
        dims += [d for k in keywords if k.arg in ("dim", "start_dim") for d in _integers(k.value)]
        if dims and operands:
            extra = 0 if word != "unsqueeze" else -1
            if word == "permute":
                extra = len(dims) - 1 - max(dims)
            self._at_least(operands[0], max(d + 1 if d >= 0 else -d for d in dims) + extra)

    def _indexed(self, operands: list[ast.expr]) -> None:
        for operand in operands:
            if isinstance(operand, ast.Name):
                self.indices.add(operand.id)
            elif isinstance(operand, ast.Call):  # labels.unsqueeze(-1)
                self.indices.add(dotted(operand.func).partition(".")[0])

    def _einsum(self, operands: list[ast.expr]) -> None:
        if not operands or not isinstance(operands[0], ast.Constant):
            return
        equation = str(operands[0].value).replace(" ", "").partition("->")[0]
        for letters, operand in zip(equation.split(","), operands[1:], strict=False):
            if isinstance(operand, ast.Name) and "." not in letters:
                self.einsum[operand.id] = list(letters)


def _root(node: ast.expr) -> str:
    """``mask`` of ``~mask[:, None].unsqueeze(1)``."""
    while True:
        if isinstance(node, ast.Subscript):
            node = node.value
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            node = node.operand
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return node.id if isinstance(node, ast.Name) else ""


def _library(func: ast.Attribute) -> bool:
    return dotted(func).partition(".")[0] in ("torch", "F", "nn", "np", "math", "functional")


def _constant(node: ast.expr, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _integers(node: ast.expr) -> Iterator[int]:
    items = node.elts if isinstance(node, (ast.Tuple, ast.List)) else [node]
    for item in items:
        try:
            value = ast.literal_eval(item)
        except ValueError:
            continue
        if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 8:
            yield value


def _plain(node: ast.expr) -> Iterator[str]:
    """Names that are passed as they are, in a tuple or in arithmetic."""
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, (ast.Tuple, ast.List)):
        for item in node.elts:
            yield from _plain(item)
    elif isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        yield from _plain(node.left)
        yield from _plain(node.right)
