"""All hazards that are looked for; importing a module registers what it looks for."""

from __future__ import annotations

from precision_lint.hazards import (
    averages,
    contractions,
    counting,
    extensions,
    geometry,
    gradients,
    guards,
    kernels,
    loops,
    masks,
    mismatch,
    noise,
    operations,
    overflow,
    positions,
    regions,
    schedules,
    softmax,
    training,
    upcasts,
)
from precision_lint.typestate import lifetimes, reports

__all__ = [
    "averages",
    "contractions",
    "counting",
    "extensions",
    "geometry",
    "gradients",
    "guards",
    "kernels",
    "lifetimes",
    "loops",
    "masks",
    "mismatch",
    "noise",
    "operations",
    "overflow",
    "positions",
    "regions",
    "reports",
    "schedules",
    "softmax",
    "training",
    "upcasts",
]
