"""All hazards that are looked for; importing a module registers what it looks for."""

from __future__ import annotations

from precision_lint.hazards import contractions, guards, masks, operations, overflow, regions

__all__ = ["contractions", "guards", "masks", "operations", "overflow", "regions"]
