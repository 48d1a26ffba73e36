"""One witness candidate: a slice run in half and in full precision, and what the difference says.

A witness is a set of inputs on which float32 and float64 agree and half precision does not: it
raises, is inf or nan, or is off by more than the dtype's rounding can explain, forward or backward.
Inputs are rounded to the half dtype first where they arrive in it, so their rounding is nobody's
fault.  Where float32 itself is off by a tenth of what half is allowed, nothing is concluded.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.overrides import TorchFunctionMode

from precision_lint.harness.cases import TOLERANCE, Policy
from precision_lint.harness.execute import Fault, Outcome, Run, Width, backpropagate, flatten
from precision_lint.harness.judge import (
    Measure,
    compare,
    compare_gradient,
    first_line,
    out_of_range,
)
from precision_lint.harness.policy import cuda_policy
from precision_lint.harness.redirect import redirected

LOOSE = 4.0
"""Half counts as wrong beyond this many times the error that a proof allows (`TOLERANCE`)."""
SMALLEST_GRADIENT = 1e-9
"""A true gradient below this, times the loss scale, is zero but for rounding."""
EXACT = 256
"""Every half dtype has all integers up to here."""
SMALLEST = 1e-30
"""A reference whose largest element is below this is zero: there is nothing to compare with."""


@dataclass(frozen=True)
class Condition:
    """How a slice is run.

    ``inputs``: what its floating inputs arrive in.  ``region``: an autocast region is around the
    call.  ``amp``: False switches the regions in the code off as well: *outside the region*.
    ``step``: the slice is a training step.
    """

    policy: Policy
    dtype: Literal["float16", "bfloat16"]
    inputs: Literal["low", "float32"]
    region: bool
    amp: bool = True
    step: bool = False

    @property
    def low(self) -> torch.dtype:
        found: torch.dtype = getattr(torch, self.dtype)
        return found

    @property
    def limit(self) -> float:
        """Relative error from which on half counts as wrong."""
        return LOOSE * TOLERANCE[self.dtype]

    @property
    def words(self) -> str:
        if self.step:
            return "the training step around it, with a small model and a loss of its own"
        inputs = f"{self.dtype if self.inputs == 'low' else 'float32'} inputs"
        if not self.amp:
            return f"outside the autocast region, {inputs}"
        if not self.region:
            return f"{inputs}, no autocast around it"
        policy = {"cpu": "CPU autocast", "cuda": "CUDA autocast (emulated)"}[self.policy]
        return f"{policy} in {self.dtype}, {inputs}"


@dataclass(frozen=True)
class Argument:
    """One input: Python text that makes it, and whether it is float32 wherever it is used."""

    name: str
    text: str
    wide: bool = False


@dataclass
class Witness:
    """Inputs that make a slice fail, and what it shows."""

    arguments: Sequence[Argument]
    condition: Condition
    phase: Literal["forward", "backward"]
    kind: str
    before: str
    scale: float = 1.0
    after: str = ""
    drew: bool = False
    """It draws random numbers."""
    floor: float = 0.0
    """What an absolute error has to be above."""
    cured_by: int | None = None
    """Which of the fixed texts cures it."""
    note: str = ""


_HALVES = (torch.float16, torch.bfloat16)
_CASTS = {"half", "bfloat16", "float"}


class _Wide(TorchFunctionMode):
    """Full precision for code that names dtypes itself: casts to half, and in float64 to float32
    as well, go to the dtype of the run."""

    def __init__(self, width: torch.dtype) -> None:
        super().__init__()
        self.width = width
        self.narrow = (*_HALVES, torch.float32) if width == torch.float64 else _HALVES

    def _wider(self, value: Any) -> Any:
        return self.width if isinstance(value, torch.dtype) and value in self.narrow else value

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in _CASTS and args and isinstance(args[0], torch.Tensor) and len(args) == 1:
            if name != "float" or self.width == torch.float64:
                return args[0].to(self.width)
        given = {key: self._wider(value) for key, value in (kwargs or {}).items()}
        return func(*map(self._wider, args), **given)


@contextlib.contextmanager
def wide(width: Width) -> Iterator[None]:
    """Full precision in a reference run; half runs are as written."""
    if width == "half":
        yield
        return
    dtype, default = getattr(torch, width), torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with _Wide(dtype):
            yield
    finally:
        torch.set_default_dtype(default)


DTYPES = re.compile(r"Half|BFloat16|dtype|scalar type|c10::|autocast")
"""What exceptions about dtypes say."""


def claimed(kind: str, phase: str, words: str, claims: Sequence[str]) -> bool:
    """Whether a rule claims this kind of failure; one without claims may show any.

    ``claims``: ``raises`` (alone, and with words of the exception), ``nonfinite``, ``error``,
    ``widened``, those of gradients with ``gradient`` in front, and errors that are not divided by
    the largest value (`allowed`).
    """
    if kind == "absolute":  # judged by what is claimed
        return True
    if kind == "raises":
        declared = any(one.startswith("raises ") and one[7:] in words for one in claims)
        return declared or (("raises" in claims or not claims) and DTYPES.search(words) is not None)
    name = "nonfinite" if kind in ("inf", "nan") else kind
    return not claims or (f"gradient {name}" if phase == "backward" else name) in claims


def allowed(reference: torch.Tensor, claims: Sequence[str]) -> float:
    """The largest error, not divided by anything, that a rule lets this result have; may be inf.

    ``claims``: ``whole above X`` for numbers that count or name things, ``absolute above X`` for
    those without a dimension, such as the angle that a sine is taken of.
    """
    found = math.inf
    for one in claims:
        what, _, floor = one.partition(" above ")
        if what == "absolute" or (what == "whole" and bool((reference == reference.round()).all())):
            found = min(found, float(floor))
    return found


class Program:
    """A slice, compiled; `call` runs it under a condition."""

    def __init__(self, text: str, name: str) -> None:
        self.namespace: dict[str, Any] = {"__name__": name}
        exec(compile(text, f"<{name}>", "exec"), self.namespace)
        self.function: Callable[..., Any] = self.namespace["isolated"]
        code = self.function.__code__
        self.parameters = code.co_varnames[: code.co_argcount]

    def call(
        self,
        arguments: Sequence[Argument],
        condition: Condition,
        width: Width = "half",
        scale: float = 1.0,
        backward: bool = False,
    ) -> Outcome:
        """What it returns, and with ``backward`` the gradients of its inputs."""
        run = Run(condition.policy, condition.low, width, scale)
        amp = condition.amp and width == "half"
        outcome = Outcome()
        with redirected(condition.low, loss_scale=scale, amp=amp) as seen:
            _seed()
            leaves: dict[str, torch.Tensor] = {}
            given = {}
            for one in arguments:
                if one.name not in self.parameters:
                    continue
                given[one.name] = built = build(one, condition, width)
                if isinstance(built, torch.Tensor) and built.is_floating_point() and backward:
                    leaves[one.name] = built.requires_grad_()
            region: Any = contextlib.nullcontext()
            if amp and condition.region:
                region = torch.autocast("cpu", dtype=condition.low)
            _seed()
            start = torch.default_generator.get_state()
            try:
                with region, wide(width), torch.set_grad_enabled(backward):
                    value = self.function(**given)
                outcome.outputs = dict(flatten(value, "output"))
                outcome.drew = not torch.equal(start, torch.default_generator.get_state())
                if leaves:
                    outcome.raised_in = "backward"
                    backpropagate(outcome, leaves, run)
            except Fault:
                raise
            except Exception as error:
                outcome.raised = f"{type(error).__name__}: {error}"
        if amp and seen.regions - {condition.low}:
            raise Fault("the code names another dtype in its autocast region")
        outcome.outputs = {name: tensor.detach() for name, tensor in outcome.outputs.items()}
        return outcome


def _seed() -> None:
    torch.default_generator.manual_seed(0)  # torch.manual_seed takes a trace for CUDA each time


@functools.lru_cache(4096)
def _tensor(text: str) -> torch.Tensor:
    value: torch.Tensor = eval(text, {"torch": torch})
    return value


def build(one: Argument, condition: Condition, width: Width) -> Any:
    """The value of an argument, in the dtype of the run."""
    if one.text.startswith(("torch.", "(")) and "torch." in one.text:
        value: Any = _tensor(one.text).clone()
    else:
        value = eval(one.text, {"torch": torch, "nn": torch.nn, "math": math, "LOW": condition.low})
    low = condition.inputs == "low" and not one.wide
    if isinstance(value, torch.nn.Module):
        value = value.to(condition.low if low else torch.float32)
        return value if width == "half" else value.to(getattr(torch, width))
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return value
    value = value.to(condition.low if low else torch.float32)
    return value if width == "half" else value.to(getattr(torch, width))


@contextlib.contextmanager
def under(condition: Condition) -> Iterator[None]:
    """Autocast's lists of the condition's policy."""
    with contextlib.nullcontext() if condition.policy == "cpu" else cuda_policy():
        yield


@dataclass
class Seen:
    """What full precision says of some inputs."""

    reference: Outcome
    single: Outcome
    exact: bool = True
    """Whether there is a float64 run; without one only an exception counts."""
    backward: bool = False
    drew: bool = False
    """Random numbers differ between dtypes: only what is not finite counts."""
    claims: Sequence[str] = ()
    """Which absolute errors count (`allowed`)."""
    ill: set[str] = field(default_factory=set)
    """Gradients on which float32 and float64 do not agree."""


def full(
    program: Program,
    arguments: Sequence[Argument],
    condition: Condition,
    backward: bool = False,
    claims: Sequence[str] = (),
) -> Seen | None:
    """The reference of some inputs; None where they are of no use as a witness."""
    single = program.call(arguments, condition, "float32", backward=backward)
    if single.raised is not None or not _finite(single.outputs.values()):
        return None
    double = program.call(arguments, condition, "float64", backward=backward)
    if double.raised is not None:  # it makes float32 tensors of its own
        return Seen(single, single, exact=False)
    if single.drew:
        fine = _finite(double.outputs.values()) and not backward
        return Seen(double, single, drew=True) if fine else None
    if not _agree(single.outputs, double.outputs, condition.limit / 10):
        return None
    seen = Seen(double, single, backward=backward, claims=claims)
    for name, gradient in double.gradients.items():
        mine = single.gradients.get(name)
        if gradient is None or mine is None:
            continue
        pair = {name: mine}, {name: gradient}
        if not _finite([mine, gradient]) or not _agree(*pair, condition.limit / 10):
            seen.ill.add(name)
    return seen


def _finite(tensors: Any) -> bool:
    return all(bool(torch.isfinite(t).all()) for t in tensors)


def _agree(single: dict[str, torch.Tensor], double: dict[str, torch.Tensor], limit: float) -> bool:
    if single.keys() != double.keys() or not _finite(double.values()):
        return False
    return all(
        single[name].shape == double[name].shape
        and compare(single[name], double[name], None).error <= limit
        for name in double
        if double[name].numel() and float(double[name].abs().max()) > SMALLEST
    )


def forward_failure(
    program: Program, arguments: Sequence[Argument], condition: Condition, seen: Seen
) -> tuple[str, str] | None:
    """Kind and words of how half fails forward."""
    low = program.call(arguments, condition)
    if low.raised is not None:
        return "raises", f"raises {first_line(low.raised)}"
    if not seen.exact:
        return None
    return _wrong(low, seen, condition)


def _wrong(low: Outcome, seen: Seen, condition: Condition) -> tuple[str, str] | None:
    total = Measure()
    absolute = (0.0, 0.0)
    for name, reference in seen.reference.outputs.items():
        if name not in low.outputs or not reference.numel():
            continue
        if float(reference.abs().max()) <= SMALLEST and _finite([low.outputs[name]]):
            continue
        found = compare(low.outputs[name], reference, None)
        whole = not reference.is_floating_point() and float(reference.abs().max()) > EXACT
        if not seen.drew and whole and found.error:  # an index is right, or it is not
            return "error", f"other integers, off by {100 * found.error:.3g} % of the largest"
        total.inf |= found.inf
        total.nan |= found.nan
        total.error = max(total.error, found.error)
        off = compare(low.outputs[name], reference, "").error
        floor = allowed(reference, seen.claims)
        if math.isfinite(off) and off > floor > 10 * _rounding(seen, name):
            absolute = max(absolute, (off, floor))
    named = _named(low, seen, condition.limit)
    if total.inf or total.nan:
        kind = "inf" if total.inf else "nan"
        return kind, named or f"{kind} where the true value is {_example(low, seen)}"
    if not seen.drew and total.error > condition.limit and math.isfinite(total.error):
        return "error", named or f"off by {100 * total.error:.3g} % of the largest value"
    if absolute[0]:
        return "absolute", f"off by {absolute[0]:.6g}, where at most {absolute[1]:g} is harmless"
    return None


def _named(low: Outcome, seen: Seen, limit: float) -> str:
    """The first wrong value under each name, where a slice gives its results names."""
    found: dict[str, str] = {}
    for name, reference in seen.reference.outputs.items():
        key = re.match(r"output\['(.+?)'\]", name)
        value = low.outputs.get(name)
        if key is None or value is None or key[1] in found:
            continue
        off = compare(value, reference, None)
        if off.inf or off.nan or off.error > limit:
            sizes = [float(one.double().norm()) for one in (value, reference)]
            found[key[1]] = f"{key[1]} is {sizes[0]:.4g}, where the true one is {sizes[1]:.4g}"
    return "; ".join(found.values())


def _rounding(seen: Seen, name: str) -> float:
    """How far float32 itself is from the reference."""
    if name not in seen.single.outputs:
        return math.inf
    return compare(seen.single.outputs[name], seen.reference.outputs[name], "").error


def _example(low: Outcome, seen: Seen) -> str:
    """The largest true value that half does not have."""
    found = [
        _largest(reference, low.outputs[name])
        for name, reference in seen.reference.outputs.items()
        if name in low.outputs and low.outputs[name].shape == reference.shape
    ]
    return f"{max(found, key=abs, default=0.0):.6g}"


def _largest(exact: torch.Tensor, value: torch.Tensor) -> float:
    """The largest exact value where the other is not finite."""
    bad = exact.double()[~torch.isfinite(value.double())].flatten()
    return float(bad[bad.abs().argmax()]) if bad.numel() else 0.0


def backward_failure(
    program: Program,
    arguments: Sequence[Argument],
    condition: Condition,
    seen: Seen,
    scales: Sequence[float],
) -> tuple[str, str, float] | None:
    """Kind and words of how half fails backward, and the loss scale at which it does."""
    for scale in scales:
        run = Run(condition.policy, condition.low, "half", scale)
        low = program.call(arguments, condition, scale=scale, backward=True)
        if low.raised is not None or out_of_range(run, low, seen.reference):
            return None
        for name, value in low.gradients.items():
            exact = seen.reference.gradients.get(name)
            if exact is None or value is None or name in seen.ill:
                continue
            if not exact.numel() or float(exact.abs().max()) * scale < 1e-6:
                continue
            found = compare_gradient(run, name, low, seen.reference)
            if found.inf or found.nan:
                kind = "inf" if found.inf else "nan"
                true = _largest(exact, value)
                if abs(true) * scale < SMALLEST_GRADIENT:  # zero but for rounding
                    continue
                words = f"gradient of {name} is {kind} where the true one is {true:.6g}"
                return kind, f"{words}, loss scale {scale:g}", scale
            if found.error > 4 * condition.limit and not math.isinf(found.error):
                words = f"gradient of {name} is off by {100 * found.error:.3g} %"
                return "error", f"{words}, loss scale {scale:g}", scale
    return None


def widened(program: Program, arguments: Sequence[Argument], condition: Condition) -> str | None:
    """The dtype of an output that half inputs do not have; None: all is half."""
    low = program.call(arguments, condition)
    if low.raised is not None:
        return None
    wide = [t.dtype for t in low.outputs.values() if t.is_floating_point() and t.itemsize > 2]
    return str(wide[0]).removeprefix("torch.") if wide else None


def cure(fixed: Program, witness: Witness, seen: Seen) -> str | None:
    """What the fixed text shows on the inputs of a witness; None: it is not cured."""
    arguments, condition = witness.arguments, witness.condition
    low = fixed.call(arguments, condition)
    if low.raised is not None or low.outputs.keys() != seen.reference.outputs.keys():
        return None
    if witness.kind == "widened":
        return None if widened(fixed, arguments, condition) else f"stays {condition.dtype}"
    reference = seen
    if not seen.exact:  # the fixed text may well run in float64
        double = fixed.call(arguments, condition, "float64")
        if double.raised is None:
            reference = Seen(double, double, claims=seen.claims)
    if not _finite(low.outputs.values()) or _wrong(low, reference, condition):
        return None
    if seen.drew:
        return "is finite"
    worst = max(
        (compare(low.outputs[n], r, None).error for n, r in reference.reference.outputs.items()),
        default=0.0,
    )
    words = f"is right (off by {100 * worst:.2g} %)" if worst else "is exact"
    if not seen.backward:
        return words
    wrong = backward_failure(fixed, arguments, condition, seen, (witness.scale,))
    if witness.phase == "backward":
        return (
            f"gradient is finite and right, loss scale {witness.scale:g}" if wrong is None else None
        )
    if wrong is not None:
        witness.note = f"after the fix the {wrong[1]} still"
    return words
