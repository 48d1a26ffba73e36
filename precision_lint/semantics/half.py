"""What is concluded of a value that may be half."""

from __future__ import annotations

from dataclasses import dataclass

from precision_lint.api import Confidence, Evidence
from precision_lint.semantics.values import CONCRETE, Value


@dataclass(frozen=True)
class Half:
    """Why a value is, or may be, half precision: which dtypes, how sure, and from where."""

    dtypes: frozenset[str]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    outside: bool = False
    """Whether the value is half where no autocast region is around the operation."""

    @property
    def dtype(self) -> str:
        """One dtype for a message: float16 where it is possible, because it is the stricter."""
        return "float16" if "float16" in self.dtypes else "bfloat16"


UNASKED = Half(frozenset(), Confidence.POSSIBLE, ())
"""The calls in the module do not tell."""


def excluded(value: Value) -> frozenset[str]:
    """Half dtypes that a test around this place, or a choice between known ones, rules out."""
    known = value.dtype.lstrip("~").split("|")
    chosen = all(dtype in CONCRETE for dtype in known)
    return frozenset(
        d for d in ("float16", "bfloat16")
        if f"not-{d}" in value.tags or (chosen and d not in known)
    )  # fmt: skip
