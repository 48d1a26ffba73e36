"""How wrong a witness is at inputs of every magnitude, before and after the fix: data for a plot."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from precision_lint.harness import trial
from precision_lint.harness.execute import Fault, Outcome, Width
from precision_lint.harness.judge import compare
from precision_lint.harness.sweep import BROKEN, DTYPES, STEPS
from precision_lint.harness.trial import Argument, Condition, Program, Witness

Bounds = Mapping[str, tuple[float, float]]
"""By input, the least and largest value that the code allows."""


def sweep(texts: Mapping[str, Program], witness: Witness, bounds: Bounds) -> dict[str, Any]:
    """The fields of a ``sweep.Sweep``: the inputs of a witness times powers of two.

    texts: the original as ``before``, and what cures it as ``after``.
    """
    errors: dict[str, dict[str, list[float | str | None]]] = {
        dtype: {text: [] for text in ("before", "after")} for dtype in DTYPES
    }
    with trial.under(witness.condition):
        for step in STEPS:
            arguments = [_scaled(one, step, bounds) for one in witness.arguments]
            exact = _call(texts["before"], arguments, witness.condition, "float64")
            for dtype, found in errors.items():
                for text, column in found.items():
                    column.append(
                        _error(texts.get(text), arguments, witness.condition, dtype, exact)
                    )
    policy = witness.condition.policy if witness.condition.amp else "eager"
    return {
        "case": "",
        "policy": policy,
        "axis": "factor of the inputs",
        "steps": STEPS,
        "errors": errors,
    }


def _scaled(one: Argument, step: float, bounds: Bounds) -> Argument:
    """An input times a factor, within its bounds; what is no tensor of floats stays."""
    if "torch.float64" not in one.text or one.text.startswith("nn."):
        return one
    low, high = bounds.get(one.name, (-math.inf, math.inf))
    limits = {"min": low, "max": high}
    given = [f"{name}={value!r}" for name, value in limits.items() if math.isfinite(value)]
    text = f"(torch.as_tensor({one.text}) * {step})"
    return replace(one, text=f"{text}.clamp({', '.join(given)})" if given else text)


def _call(
    program: Program, arguments: Sequence[Argument], condition: Condition, width: Width
) -> Outcome | None:
    try:
        found = program.call(arguments, condition, width)
    except Fault:
        return None
    return None if found.raised is not None else found


def _error(
    program: Program | None,
    arguments: Sequence[Argument],
    condition: Condition,
    dtype: str,
    exact: Outcome | None,
) -> float | str | None:
    """The largest relative error of the outputs; None where there is nothing to compare with."""
    if program is None or exact is None:
        return None
    if not all(bool(torch.isfinite(one).all()) for one in exact.outputs.values()):
        return None
    if dtype == "float32":
        found = _call(program, arguments, condition, "float32")
    else:
        found = _call(program, arguments, replace(condition, dtype=dtype), "half")  # type: ignore[arg-type]
    if found is None or found.outputs.keys() != exact.outputs.keys():
        return BROKEN
    worst = 0.0
    for name, value in exact.outputs.items():
        measure = compare(found.outputs[name], value, None)
        if measure.inf or measure.nan:
            return BROKEN
        worst = max(worst, measure.error)
    return worst if math.isfinite(worst) else BROKEN
