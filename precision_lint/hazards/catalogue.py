"""All hazards that are looked for; importing a module registers what it looks for."""

from __future__ import annotations

from precision_lint.hazards import averages, contractions, counting, geometry, guards, masks, overflow, positions, regions, training

__all__ = ["averages", "contractions", "counting", "geometry", "guards", "masks", "overflow", "positions", "regions", "training"]
