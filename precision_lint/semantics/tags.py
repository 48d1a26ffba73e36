"""Tags of values: what is known beyond dtype and range, and what an operation leaves of it.

``max-of:DIM|MARK``: the largest elements along DIM of the value that MARK stands for; ``ge:MARK``,
``ge-abs:MARK``, ``le:MARK``: no element of that value is above (in magnitude), or below.
``max-zero:DIM``: the largest element along DIM is 0; ``one-inside:DIM``: it is 1.
"""

from __future__ import annotations

import ast

from precision_lint.semantics.shapes import SPATIAL

OF_MODELS = frozenset({"amp", "output"})
"""What comes out of a model in a region, or out of one with half weights."""
KEPT = frozenset({"not-float16", "not-bfloat16", "float"}) | OF_MODELS | SPATIAL
"""Tags that survive an elementwise operation."""
OF_DTYPE = KEPT | {"cast", "buffer", "parameter", "plain"}
OF_VALUE = frozenset({"normalized", "unit", "sum", "homogeneous"})


def has_relations(tags: frozenset[str]) -> bool:
    """Whether some tag relates this value to that of an expression."""
    return any("@" in tag for tag in tags)


def of_name(tags: frozenset[str]) -> frozenset[str]:
    return frozenset(tag for tag in tags if tag.startswith("widened:"))


def of_elements(tags: frozenset[str]) -> frozenset[str]:
    """Tags that relate every element to those of another value."""
    return frozenset(tag for tag in tags if "@" in tag)


def of_dims(tags: frozenset[str]) -> frozenset[str]:
    """Tags that say something of every slice along a dimension."""
    return frozenset(tag for tag in tags if tag.startswith(("max-zero", "one-inside")))


def relative(tags: frozenset[str]) -> frozenset[str]:
    """Tags that a positive factor leaves as they are."""
    return frozenset(tag for tag in tags if tag.startswith("max-zero"))


def only_adds_dimensions(index: ast.expr) -> bool:
    """Whether a subscript such as ``[:, None]`` keeps every element."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    return all(
        (isinstance(part, ast.Slice) and part.lower is part.upper is part.step is None)
        or (isinstance(part, ast.Constant) and part.value in (None, ...))
        for part in parts
    )
