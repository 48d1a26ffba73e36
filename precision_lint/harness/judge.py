"""Compares outcomes: does the original fail as declared, is the fixed text cured, and does float32
stay the same?
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from precision_lint.harness.cases import POLICIES, Case, Dtype, Failure, Phase, Policy, as_tuple
from precision_lint.harness.execute import Fault, Outcome, Run, Width, execute

Verdict = Literal["proven", "harmless", "shown", "unchanged", "skipped", "failed"]
"""``proven``: fails before, is cured after.  ``harmless``: fine before and after.  ``shown``: fails
before, and there is no fix.  ``unchanged``: float32 results agree.  ``skipped``: not executed."""

VANISHED = 0.01
"""Part of the reference's magnitude below which an output counts as vanished."""
ROUNDING = 1e-9
"""Part of the largest gradient below which a float64 gradient counts as zero."""


@dataclass
class Cell:
    """The verdict on one case, in one condition and phase; ``reasons`` says why it failed."""

    policy: Policy | Literal["-"]
    dtype: Dtype | Literal["float32"]
    phase: Phase
    verdict: Verdict
    reasons: list[str] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    """What the original showed, in words with numbers."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Measure:
    """How the tensors of one phase differ from their reference, the worst of each."""

    inf: bool = False
    nan: bool = False
    error: float = 0.0
    vanished: bool = False
    promoted: bool = False
    missing: str = ""

    def has(self, failure: Failure) -> bool:
        if failure.kind == "error":
            return not (self.inf or self.nan) and self.error > failure.above
        if failure.kind == "inf" and failure.phase == "backward":
            return self.inf or self.nan
        return bool(getattr(self, failure.kind))

    def words(self, unit: str | None) -> str:
        named = [n for n in ("inf", "nan", "vanished", "promoted") if getattr(self, n)]
        off = f"{self.error:.3g} {unit}" if unit else f"error {self.error:.3g}"
        return " and ".join([*named, self.missing, off] if self.missing else [*named, off])


@dataclass
class Observation:
    """One run against its reference; ``backward`` is None where there was none to judge."""

    raised: str | None
    raised_in: Phase
    forward: Measure
    backward: Measure | None

    def has(self, failure: Failure) -> bool:
        if failure.kind == "raises":
            return self.raised is not None and failure.text in self.raised
        measure = self.forward if failure.phase == "forward" else self.backward
        return self.raised is None and measure is not None and measure.has(failure)

    def words(self, phase: Phase, unit: str | None) -> str:
        if self.raised is not None:
            return f"raises {first_line(self.raised)}"
        if phase == "forward":
            return self.forward.words(unit)
        return "gradient " + self.backward.words(None) if self.backward else "no gradient to judge"


def first_line(text: str) -> str:
    return text.strip().splitlines()[0][:200] if text.strip() else text


def _magnitude(tensor: torch.Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def compare(value: torch.Tensor, reference: torch.Tensor, unit: str | None) -> Measure:
    value, reference = value.detach().double().cpu(), reference.detach().double().cpu()
    if value.shape != reference.shape:
        shapes = f"{tuple(value.shape)} instead of {tuple(reference.shape)}"
        return Measure(error=math.inf, missing=f"shape {shapes}")
    expected = torch.isfinite(reference)
    both = expected & torch.isfinite(value)
    same = torch.where(expected, True, value.nan_to_num(7.0) == reference.nan_to_num(7.0))
    found = Measure(
        inf=bool((torch.isinf(value) & expected).any()),
        nan=bool((torch.isnan(value) & expected).any()),
    )
    difference = _magnitude((value - reference)[both])
    size = _magnitude(reference[expected])
    found.error = difference if unit is not None or size == 0 else difference / size
    if not bool(same.all()):
        found.error, found.missing = math.inf, "finite where the reference is not"
    found.vanished = size > 0 and bool(both.all()) and _magnitude(value[both]) < VANISHED * size
    return found


def _worst(measures: Iterable[Measure]) -> Measure:
    worst = Measure()
    for measure in measures:
        worst.inf |= measure.inf
        worst.nan |= measure.nan
        worst.vanished |= measure.vanished
        worst.promoted |= measure.promoted
        worst.error = max(worst.error, measure.error)
        worst.missing = worst.missing or measure.missing
    return worst


def _observe(case: Case, run: Run, found: Outcome, reference: Outcome) -> Observation:
    forward, backward = Measure(), None
    if found.raised is None:
        forward = _worst(
            compare(found.outputs[name], reference.outputs[name], case.unit)
            for name in reference.outputs
            if name in found.outputs
        )
        if set(found.outputs) != set(reference.outputs):
            names = ", ".join(sorted(set(found.outputs) ^ set(reference.outputs)))
            forward.error, forward.missing = math.inf, f"only one run returns {names}"
        if case.regime == "eager":
            forward.promoted = any(
                tensor.is_floating_point() and tensor.dtype.itemsize > run.low.itemsize
                for tensor in found.outputs.values()
            )
        if case.backward and case.regime != "training" and not out_of_range(run, found, reference):
            backward = _worst(
                compare_gradient(run, name, found, reference) for name in found.gradients
            )
    return Observation(found.raised, found.raised_in, forward, backward)


def out_of_range(run: Run, found: Outcome, reference: Outcome) -> bool:
    """Whether even exact gradients leave the range of the half tensors they are kept in."""
    limit = torch.finfo(run.low).max
    largest = [
        _magnitude(g) for n in found.half_gradients if (g := reference.gradients.get(n)) is not None
    ]
    return found.scale_too_large or any(size * run.scale > limit for size in largest)


def compare_gradient(run: Run, name: str, found: Outcome, reference: Outcome) -> Measure:
    value, exact = found.gradients[name], reference.gradients.get(name)
    if exact is None:
        return Measure()
    missing = value is None
    value = torch.zeros_like(exact) if value is None else value
    measure = compare(value, exact, None)
    largest = max(_magnitude(g) for g in reference.gradients.values() if g is not None)
    if _magnitude(exact) < ROUNDING * largest:  # zero but for rounding: no size to compare with
        measure.error, measure.vanished = compare(value, exact, "").error / largest, False
        return measure
    size = exact.abs().cpu() * run.scale
    normal = torch.isfinite(size) & (size >= torch.finfo(run.low).tiny)
    measure.vanished = bool((normal & (value.cpu() == 0)).any())
    if missing and bool(normal.any()):
        measure.missing = f"no gradient of {name}"
    return measure


def _problems(
    case: Case, seen: Observation, policy: Policy, dtype: Dtype
) -> dict[Phase, list[str]]:
    """What is wrong with a run that should be fine."""
    forward_limit, backward_limit = case.tolerances(policy, dtype)
    declared = {
        failure
        for expected in case.before.values()
        for failure in as_tuple(expected)
        if failure.kind in ("vanished", "promoted")
    }
    if seen.raised is not None:
        return {"forward": [f"raises {first_line(seen.raised)}"], "backward": []}
    found: dict[Phase, list[str]] = {"forward": [], "backward": []}
    measures: dict[Phase, tuple[Measure | None, float, str | None]] = {
        "forward": (seen.forward, forward_limit, case.unit),
        "backward": (seen.backward, backward_limit, None),
    }
    for phase, (measure, limit, unit) in measures.items():
        if measure is None:
            continue
        bad = measure.inf or measure.nan or measure.error > limit
        bad |= any(measure.has(f) for f in declared if f.phase == phase)
        if bad:
            found[phase].append(f"{seen.words(phase, unit)} (allowed {limit:g})")
    return found


def prove(case: Case, path: Path, original: str, fixed: str | None, device: str) -> list[Cell]:
    """All cells of one case.  ``fixed`` is None where the case wants no fix."""
    case = case.on(device)
    cells: list[Cell] = []
    for policy, dtype in case.every_condition():
        if device != "cpu" and policy == "cpu":
            continue
        reason = case.skipped(policy, dtype)
        if reason is not None:
            cells.append(Cell(policy, dtype, "forward", "skipped", [reason]))
            continue
        run = Run(policy, getattr(torch, dtype), device=device)
        cells += _condition(case, path, original, fixed, run, dtype)
    if case.level == "safe" and fixed is not None:
        cells += _unchanged(case, path, original, fixed, device)
    return cells


def _phases(case: Case) -> tuple[Phase, ...]:
    both = case.backward and case.regime != "training"
    return ("forward", "backward") if both else ("forward",)


def reference(case: Case, path: Path, texts: Iterable[str | None], run: Run) -> Outcome:
    """The outcome without autocast and GradScaler, on the inputs of ``run``.

    Of the original in float64; where it raises even so (it holds float32 tensors of its own), of
    the fixed text, and then of both in float32.  Training is compared with float32 alone.
    """
    widths: tuple[Width, ...] = (
        ("float32",) if case.regime == "training" else ("float64", "float32")
    )
    raised = ""
    for width in widths:
        for text in texts:
            if text is None:
                continue
            outcome = execute(case, text, path, replace(run, width=width, scale=1.0))
            if outcome.raised is None:
                found = [gradient is not None for gradient in outcome.gradients.values()]
                if _phases(case)[-1] == "backward" and not any(found):
                    raise Fault("no input or parameter gets a gradient; write backward=False")
                return outcome
            raised = raised or f"{width} raises {first_line(outcome.raised)}"
    raise Fault(f"there is no reference: without autocast {raised}")


def _condition(
    case: Case, path: Path, original: str, fixed: str | None, base: Run, dtype: Dtype
) -> list[Cell]:
    exact = reference(case, path, (original, fixed), base)
    forward_only = case.regime != "training" and not case.backward
    runs = [base] if forward_only else [replace(base, scale=scale) for scale in case.scales]

    def observe(text: str | None) -> list[tuple[Run, Observation]]:
        return [
            (run, _observe(case, run, execute(case, text, path, run), exact))
            for run in runs
            if text is not None
        ]

    before, after = observe(original), observe(fixed)
    cells = []
    for phase in _phases(case):
        cell = _cell(case, base.policy, dtype, phase, before, after)
        if fixed == original and case.expected(base.policy, dtype):
            cell.verdict = "failed"
            cell.reasons = [f"the fixer leaves {case.module} as it is"]
        cells.append(cell)
    return cells


def _cell(
    case: Case,
    policy: Policy,
    dtype: Dtype,
    phase: Phase,
    before: list[tuple[Run, Observation]],
    after: list[tuple[Run, Observation]],
) -> Cell:
    """The verdict on one phase of one condition; ``after`` is empty where there is no fix."""

    def trouble(seen: list[tuple[Run, Observation]]) -> list[str]:
        """Each problem once, with the first loss scale at which it shows."""
        found: dict[str, float] = {}
        for run, observation in seen:
            for words in _problems(case, observation, policy, dtype)[phase]:
                found.setdefault(words, run.scale)
        return [f"{words}, loss scale {scale:g}" for words, scale in found.items()]

    expected = case.expected(policy, dtype)
    wanted = [failure for failure in expected if failure.phase == phase]
    reasons = []
    for failure in wanted:
        if not any(seen.has(failure) for _, seen in before):
            words = "; ".join(dict.fromkeys(seen.words(phase, case.unit) for _, seen in before))
            reasons.append(f"expected {failure}, the original shows {words}")
    shown = trouble(before)
    if not expected:
        reasons += [f"declared harmless, the original shows {words}" for words in shown]
    reasons += [f"after the fix {words}" for words in trouble(after)]
    judged = [seen for _, seen in after or ([] if expected else before)]
    if phase == "backward" and judged and all(s.backward is None and not s.raised for s in judged):
        reasons.append("at every loss scale even exact gradients overflow; write smaller scales")
    raises = any(seen.raised is not None for _, seen in before)
    fails = bool(wanted) or (bool(expected) and (bool(shown) or raises))
    verdict: Verdict = "harmless"
    if reasons:
        verdict = "failed"
    elif fails:
        verdict = "proven" if after else "shown"
    return Cell(policy, dtype, phase, verdict, reasons, shown)


def _unchanged(case: Case, path: Path, original: str, fixed: str, device: str) -> list[Cell]:
    """Original and fixed text in float32: equal to the bit, or within the declared rounding."""
    run = Run(POLICIES[case.regime][0], torch.float32, "float32", device=device)
    before, after = (execute(case, text, path, run) for text in (original, fixed))
    cells = []
    for phase in _phases(case):
        reasons, of = [], "" if phase == "forward" else "the gradient of "
        if before.raised is None and after.raised is not None:
            reasons = [f"after the fix float32 raises {first_line(after.raised)}"]
        elif before.raised is None:
            first: Any = before.outputs if phase == "forward" else before.gradients
            second: Any = after.outputs if phase == "forward" else after.gradients
            reasons = [
                f"the fix changes {of}{name} in float32"
                for name in sorted(first | second)
                if not _same(first.get(name), second.get(name), case.float32_tolerance)
            ]
        cells.append(Cell("-", "float32", phase, "failed" if reasons else "unchanged", reasons))
    return cells


def _same(first: torch.Tensor | None, second: torch.Tensor | None, tolerance: float) -> bool:
    if first is None or second is None:
        return first is second
    if first.dtype != second.dtype or first.shape != second.shape:
        return False
    if tolerance:
        measure = compare(second, first, None)
        return not (measure.inf or measure.nan or measure.missing) and measure.error <= tolerance
    return torch.allclose(first, second, rtol=0.0, atol=0.0, equal_nan=True)
