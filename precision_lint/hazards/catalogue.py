"""All hazards that are looked for; importing a module registers what it looks for."""

from __future__ import annotations

from precision_lint.hazards import contractions, counting, geometry, guards, masks, overflow, positions, regions

__all__ = ["contractions", "counting", "geometry", "guards", "masks", "overflow", "positions", "regions"]
