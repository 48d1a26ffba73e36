"""What the examples of the rules' documentation are executed with: one entry a rule.

An example is a hazard and its cure.  Both run with the same names, inside an autocast region where
the entry says so; ``fails`` looks at the names afterwards and says whether the harm is there.
"""

from __future__ import annotations

from . import dtypes, overflow, ranges, regions, scaler
from .example import HALF, Example, Names, finite

EXAMPLES: dict[str, Example] = {
    **scaler.EXAMPLES,
    **regions.EXAMPLES,
    **ranges.EXAMPLES,
    **dtypes.EXAMPLES,
    **overflow.EXAMPLES,
}

__all__ = ["EXAMPLES", "HALF", "Example", "Names", "finite"]
