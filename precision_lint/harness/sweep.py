"""How wrong a fixture is at inputs of every magnitude, before and after its fix: data for a plot.

The inputs of one case are multiplied by powers of two (training: its loss scale is set to them) and
each text is executed in float16, bfloat16 and float32.  Users see where the hazard begins, and that
the fix moves it out of the picture.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from precision_lint.harness.children import Children, Conversation, TooSlow

SECONDS = 60
"""Time for one case."""
STEPS = tuple(2.0**exponent for exponent in range(-8, 9))
"""Factors of the inputs."""
SCALES = tuple(2.0**exponent for exponent in range(0, 25, 2))
"""Loss scales of a training."""
BROKEN = "broken"
"""Stands for an exception, an infinity or a NaN."""
DTYPES = ("float16", "bfloat16", "float32")


@dataclass(frozen=True)
class Sweep:
    """``errors``: by dtype and text (``before``, ``after``), a relative error for each of
    ``steps``, or `BROKEN`; None where there is no reference."""

    case: str
    policy: str
    axis: str
    steps: Sequence[float]
    errors: dict[str, dict[str, list[float | str | None]]]


def run(
    folder: Path, index: int, original: str, fixed: str, children: Children | None = None
) -> Sweep | None:
    """The sweep of one case of a folder, in a child; None where the child fails."""
    payload = {"folder": str(folder), "case": index, "original": original, "fixed": fixed}
    child = Conversation(children or Children(), __name__, SECONDS)
    with contextlib.suppress(TooSlow):
        for message in child.ask(payload):
            return Sweep(**message)
    return None


def main() -> int:
    """Execute the case on standard input and print its sweep."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    job = json.load(sys.stdin)

    import torch

    from precision_lint.harness.collect import load_cases

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    folder = Path(job["folder"])
    case = load_cases(folder)[job["case"]]
    print(
        json.dumps(_sweep(case, folder / case.module, job["original"], job["fixed"])), file=answers
    )
    answers.flush()
    return 0


def _sweep(case: Any, path: Path, original: str, fixed: str) -> dict[str, Any]:
    training = case.regime == "training"
    policy = "eager" if case.regime == "eager" else "cuda"
    steps = SCALES if training else STEPS
    texts = {"before": original, "after": fixed}
    errors = {
        dtype: {
            name: [
                _error(case, path, text, (original, fixed), policy, dtype, step) for step in steps
            ]
            for name, text in texts.items()
        }
        for dtype in DTYPES
    }
    return {
        "case": case.title,
        "policy": policy,
        "axis": "initial loss scale" if training else "factor of the inputs",
        "steps": steps,
        "errors": errors,
    }


def _error(
    case: Any,
    path: Path,
    text: str,
    texts: tuple[str, str],
    policy: Any,
    dtype: str,
    step: float,
) -> float | str | None:
    import torch

    from precision_lint.harness.execute import Fault, Run, execute
    from precision_lint.harness.judge import compare, reference

    training = case.regime == "training"
    base = Run(policy, getattr(torch, dtype), "float32" if dtype == "float32" else "half")
    forward = replace(case, backward=False, before=dict.fromkeys(case.before), level="none")
    if training:
        run = replace(base, scale=step)
    else:
        run, forward = base, replace(forward, inputs=lambda: _scaled(case.inputs(), step))
    try:
        exact = reference(forward, path, texts, run)
        found = execute(forward, text, path, run)
    except Fault:
        return None
    if found.raised is not None or found.outputs.keys() != exact.outputs.keys():
        return BROKEN
    worst = 0.0
    for name, value in exact.outputs.items():
        measure = compare(found.outputs[name], value, None)
        if not bool(torch.isfinite(value).all()):
            return None
        if measure.inf or measure.nan:
            return BROKEN
        worst = max(worst, measure.error)
    return worst if math.isfinite(worst) else BROKEN


def _scaled(value: Any, factor: float) -> Any:
    import torch

    from precision_lint.harness.cases import Input

    if isinstance(value, torch.Tensor):
        return value * factor if value.is_floating_point() else value
    if isinstance(value, Input):
        return replace(value, value=_scaled(value.value, factor))
    if isinstance(value, (tuple, list)) and not hasattr(value, "_fields"):
        return type(value)(_scaled(item, factor) for item in value)
    if isinstance(value, dict):
        return {key: _scaled(item, factor) for key, item in value.items()}
    return value


def chosen(cases: Sequence[Any]) -> Iterator[int]:
    """Cases worth a plot, the best first: those whose output fails, with a fix."""
    from precision_lint.harness.cases import as_tuple

    def fails(case: Any) -> bool:
        failures = [f for expected in case.before.values() for f in as_tuple(expected)]
        return any(f.phase == "forward" and f.kind != "raises" for f in failures)

    able = [i for i, case in enumerate(cases) if case.level != "none" and case.hazardous]
    yield from sorted(able, key=lambda i: not fails(cases[i]))


if __name__ == "__main__":
    sys.exit(main())
