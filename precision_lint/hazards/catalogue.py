"""All hazards that are looked for; importing a module registers what it looks for."""

from __future__ import annotations

from precision_lint.hazards import guards, overflow

__all__ = ["guards", "overflow"]
