"""Code that is kept in float32 under autocast, and whose backward pass has products of its own."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.api import Evidence
from precision_lint.semantics.index import Class, Index
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import INHERITED, region_of

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

PRODUCTS = re.compile(r"matmul|^(?:mm|bmm|mv|dot|addmm|baddbmm|einsum|linear)$|^conv\d?d?")
"""Last parts of the names of what autocast runs in half."""
TESTS = re.compile(r"(?:^|/)(?:tests?|benchmarks?)/|(?:^|/)test_[^/]*$")


class WideBackward:
    """Regions that are switched off, and functions whose ``backward`` follows its caller's region.

    Autograd's own formulas multiply in the state of autocast in which ``backward()`` is called.
    """

    @staticmethod
    def within(index: Index) -> ast.expr | ast.stmt | None:
        """The first such place of a file."""
        places: list[ast.expr | ast.stmt] = [
            call
            for call, _ in index.calls.get("autocast", ())
            if (region := region_of(call, index.names, INHERITED)) and region.state == "off"
        ]
        places += [cls.node for cls in index.classes.values() if _multiplies_back(cls)]
        return min(places, key=lambda node: node.lineno, default=None)

    @staticmethod
    def anywhere(at: Context) -> Evidence | None:
        """Such a place in this file, else in the project."""
        message = "its backward pass is to run in float32"
        own = WideBackward.within(at.module.index)
        if own is not None:
            return at.note(own, message)
        return at.module.program.kept_wide(message) if at.module.program is not None else None


def _multiplies_back(cls: Class) -> bool:
    """Whether a class is an ``autograd.Function`` that multiplies in any region's dtype."""
    backward = cls.methods.get("backward")
    if backward is None or not any(b.rpartition(".")[2] == "Function" for b in cls.bases):
        return False
    decorators = getattr(backward.node, "decorator_list", [])
    if any("custom_bwd" in ast.unparse(decorator) for decorator in decorators):
        return False
    return any(
        (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult))
        or (
            isinstance(node, ast.Call)
            and PRODUCTS.search((dotted(node.func) or "").rpartition(".")[2]) is not None
        )
        for node in backward.nodes
    )
