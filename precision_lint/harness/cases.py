"""How a fixture says the way it is executed: the contract of ``fixtures/mpNNN_slug/proof.py``.

A fixture folder holds runnable modules (plain torch code), their goldens, and ``proof.py`` with
``CASES: tuple[Case, ...]``.  A `Case` names a module and what to call in it, the inputs, and the
failure that the *original* text shows in each condition.  Everything else follows: the *fixed*
text (produced by the real fixer, never written by hand) must not fail, forward and backward, at
every loss scale, and in float32 both texts must agree to the bit.

The same text is executed several times, each time from a fresh module and a fresh seed:

=============  ====================================  =======================================
run            inputs                                autocast regions and GradScaler
=============  ====================================  =======================================
reference      float64, quantised as in the regime;  off
               training: float32
float32        float32                               off
``eager``      low (float16 / bfloat16)              as written
``autocast``   float32                               as written, and a region around the call
``training``   float32                               as written
=============  ====================================  =======================================

*Low* is the dtype under test.  A region that names no dtype gets the low dtype, a GradScaler that
names no ``init_scale`` gets the loss scale under test, and every loss scale is tried.  Code written
for ``cuda`` runs unmodified on a CPU (``precision_lint.harness.redirect``).  The reference is the
original; where float64 makes it raise (it makes float32 tensors of its own), the fixed text, and
then float32.

Conditions.  ``before``, ``skip`` and ``tolerance`` are keyed by condition: a dtype ("float16"), or
a policy and a dtype ("cpu/float16"), which wins over the plain dtype.  Policies: ``eager`` for the
regime eager; ``cpu`` (CPU autocast's own lists) and ``cuda`` (CUDA's lists; emulated where there is
no GPU) for the other two.  Every condition needs an entry in ``before`` or a reason in ``skip``;
None in ``before`` means *not a hazard here*, and the original must then really be fine.

    CASES = (
        Case(
            module="focal.py",
            entry="focal_loss",
            inputs=lambda: (torch.linspace(-20.0, 20.0, 15, dtype=torch.float64),),
            before={"float16": (Failure.INF, Failure.GRADIENT_OVERFLOW), "bfloat16": None},
        ),
        Case(
            module="trainer.py",
            entry=lambda module: lambda: train(module),
            regime="training",
            before={"float16": Failure.error(above=0.9), "bfloat16": Failure.error(above=0.9)},
        ),
    )
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import PurePath
from types import MappingProxyType, ModuleType
from typing import Any, ClassVar, Literal, get_args

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

Dtype = Literal["float16", "bfloat16"]
Policy = Literal["eager", "cpu", "cuda"]
Regime = Literal["eager", "autocast", "training"]
Level = Literal["safe", "unsafe", "none"]
Phase = Literal["forward", "backward"]

DTYPES: tuple[Dtype, ...] = get_args(Dtype)
POLICIES: Mapping[Regime, tuple[Policy, ...]] = MappingProxyType(
    {"eager": ("eager",), "autocast": ("cpu", "cuda"), "training": ("cpu", "cuda")}
)
TOLERANCE: Mapping[Dtype, float] = MappingProxyType({"float16": 5e-3, "bfloat16": 4e-2})
"""Relative, about five times the rounding unit of the dtype."""
SCALES = (1.0, 1024.0, 65536.0)


class InvalidCase(Exception):
    """A case that breaks the contract; the text says what is wrong and what to write."""


@dataclass(frozen=True)
class Failure:
    """One way to fail; use the constants and the two constructors, not the fields.

    Errors are measured per output (or gradient) tensor as ``max|value - reference|`` divided by
    ``max|reference|``, or undivided where the case has a ``unit`` or the reference is all zero.
    """

    kind: Literal["raises", "inf", "nan", "error", "vanished", "promoted"]
    phase: Phase = "forward"
    text: str = ""
    above: float = 0.0

    INF: ClassVar[Failure]
    """An output has an infinity where the reference is finite."""
    NAN: ClassVar[Failure]
    """An output has a NaN where the reference is finite."""
    VANISHED: ClassVar[Failure]
    """An output is below a hundredth of its reference (largest magnitudes compared): values that
    underflowed, parameters that do not move, training that is frozen."""
    PROMOTED: ClassVar[Failure]
    """An output of half inputs is wider than the dtype under test."""
    GRADIENT_OVERFLOW: ClassVar[Failure]
    """A gradient has an infinity or a NaN where the reference is finite."""
    GRADIENT_VANISHED: ClassVar[Failure]
    """A gradient element is 0, or missing, where reference times loss scale is a normal number."""

    @staticmethod
    def raises(text: str) -> Failure:
        """Forward, backward or the training loop raises an exception whose message has ``text``."""
        return Failure("raises", text=text)

    @staticmethod
    def error(above: float) -> Failure:
        """An output is finite, and off by more than ``above`` (see the class)."""
        return Failure("error", above=above)

    @staticmethod
    def gradient_error(above: float) -> Failure:
        """A gradient is finite, and off by more than ``above`` (relative)."""
        return Failure("error", phase="backward", above=above)

    def __post_init__(self) -> None:
        if (self.kind == "raises") != bool(self.text):
            raise InvalidCase("Failure.raises needs a part of the message, the others none")
        if (self.kind == "error") != (self.above > 0):
            raise InvalidCase("Failure.error needs above > 0, the others none")

    def __str__(self) -> str:
        if self.kind == "raises":
            return f"raises {self.text!r}"
        name = f"error > {self.above:g}" if self.kind == "error" else self.kind
        if self.phase == "backward":
            return "gradient " + {"inf": "overflow"}.get(self.kind, name)
        return name


Failure.INF = Failure("inf")
Failure.NAN = Failure("nan")
Failure.VANISHED = Failure("vanished")
Failure.PROMOTED = Failure("promoted")
Failure.GRADIENT_OVERFLOW = Failure("inf", "backward")
Failure.GRADIENT_VANISHED = Failure("vanished", "backward")


@dataclass(frozen=True)
class Input:
    """An input that does not follow its regime; made by `full`, `low` and `constant`."""

    value: torch.Tensor
    dtype: Literal["regime", "float32", "low"] = "regime"
    gradient: bool = True


def full(value: torch.Tensor) -> Input:
    """Stays float32 in every regime (camera intrinsics beside half features); no gradient."""
    return Input(value, "float32", False)


def low(value: torch.Tensor) -> Input:
    """Arrives in the dtype under test even in the regime autocast (the output of an earlier
    half layer)."""
    return Input(value, "low")


def constant(value: torch.Tensor) -> Input:
    """Follows the regime, and gets no gradient (targets, masks, tensors written in place)."""
    return Input(value, gradient=False)


def _no_inputs() -> tuple[Any, ...]:
    return ()


Expected = Failure | tuple[Failure, ...] | None


@dataclass(frozen=True)
class Case:
    """One execution of one fixture module.

    module
        File name in the fixture's folder, such as ``"focal.py"``.
    entry
        What is called with the inputs: the name of a function, or of an ``nn.Module`` class that
        needs no arguments; or a function that receives the imported fixture module and returns the
        callable.  A returned ``nn.Module`` (or bound method of one) gets its parameters in the
        dtype of the regime, and their gradients are judged as well.  The callable returns a tensor,
        a number, or a tuple, list or dict of them.  In the regime training it runs the whole loop
        and returns what the proof compares with the float32 run: gradient norms, final loss, how
        far the parameters moved, how many steps were skipped.  Raising is an outcome as well.
    inputs
        Builds the positional inputs (a tuple) or keyword inputs (a dict): float64 tensors in
        closed form, no random numbers.  Floating tensors are cast as in the table above; integers,
        booleans and everything that is no tensor stay; tuples, lists and dicts are walked.
    regime
        ``eager``: the code runs on half inputs without autocast.  ``autocast``: float32 inputs;
        the call is made inside ``torch.autocast``, also where the fixture opens a region itself.
        ``training``: the entry trains.
    before
        Per condition the failure of the original, all of several, or None: not a hazard here.
        A failure counts as shown when it shows at one of the loss scales.
    skip
        Per condition the reason why it is not executed ("the region names float16").
    level
        The fix that cures it: ``safe``, ``unsafe``, or ``none``: a finding without a fix, or code
        that is rightly left alone; then only the original is executed.
    tolerance
        Per condition the error allowed to the fixed text, default `TOLERANCE`; in ``unit`` if set.
    gradient_tolerance
        The same for gradients, always relative; default four times `TOLERANCE`.
    unit
        Unit of absolute errors ("px"); None: errors are relative.
    scales
        Loss scales for backward, or initial scales of the GradScaler in training.  A scale at which
        the true gradient itself leaves the range of a half input is passed over.
    backward
        False: only forward is proven (and say why in a comment).  Ignored in training.
    float32_tolerance, float32_reason
        Relative difference allowed between original and fixed text in float32, and why it is not
        zero ("sums in another order").  Only a safe fix is held to it.
    torch_version
        The releases of torch that show the failures (``"<2.15"``); under others the case is not
        executed.  Empty: all.
    name
        A few words that tell cases of one entry apart in reports.
    on_gpu
        Fields that are others on a real GPU, whole: ``{"scales": (1.0,)}``.  With ``{"skip": {...},
        "before": {}}`` a case is not executed there.
    """

    module: str
    entry: str | Callable[[ModuleType], Callable[..., Any]]
    inputs: Callable[[], tuple[Any, ...] | dict[str, Any]] = _no_inputs
    _: KW_ONLY
    before: Mapping[str, Expected]
    regime: Regime = "eager"
    skip: Mapping[str, str] = field(default_factory=dict)
    level: Level = "safe"
    tolerance: Mapping[str, float] = field(default_factory=dict)
    gradient_tolerance: Mapping[str, float] = field(default_factory=dict)
    unit: str | None = None
    scales: tuple[float, ...] = SCALES
    backward: bool = True
    float32_tolerance: float = 0.0
    float32_reason: str = ""
    torch_version: str = ""
    name: str = ""
    on_gpu: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._check_module()
        if self.regime not in get_args(Regime):
            raise InvalidCase(f"regime {self.regime!r}; write one of {', '.join(get_args(Regime))}")
        if self.level not in get_args(Level):
            raise InvalidCase(f"level {self.level!r}; write one of {', '.join(get_args(Level))}")
        for table in ("before", "skip", "tolerance", "gradient_tolerance"):
            self._check_keys(table)
        for policy, dtype in self.every_condition():
            absent = self._at(self.before, policy, dtype, _ABSENT) is _ABSENT
            if absent and not self.skipped(policy, dtype):
                raise InvalidCase(
                    f"before says nothing about {policy}/{dtype}; write a failure, None for "
                    "'not a hazard here', or a reason in skip"
                )
        for condition, expected in self.before.items():
            for failure in as_tuple(expected):
                self._check_failure(condition, failure)
        if not self.scales or min(self.scales) <= 0:
            raise InvalidCase("scales are positive numbers, at least one")
        try:
            SpecifierSet(self.torch_version)
        except InvalidSpecifier:
            what = f"torch_version {self.torch_version!r} is no range"
            raise InvalidCase(f'{what}; write one such as "<2.15"') from None
        if (self.float32_tolerance > 0) != bool(self.float32_reason):
            raise InvalidCase("float32_tolerance and float32_reason go together; give both or none")
        if self.level == "safe" and not self.hazardous:
            raise InvalidCase("no condition fails, so there is nothing to cure; write level='none'")

    def _check_module(self) -> None:
        path = PurePath(self.module)
        if path.name != self.module or path.suffix != ".py" or self.module.endswith(".golden.py"):
            raise InvalidCase(f"module {self.module!r} is not the name of a fixture module")
        if not callable(self.entry) and not (
            isinstance(self.entry, str) and self.entry.isidentifier()
        ):
            raise InvalidCase(f"entry {self.entry!r} is neither a name nor a function")
        if not callable(self.inputs):
            raise InvalidCase("inputs is not a function; write inputs=lambda: (...)")

    def _check_keys(self, table: str) -> None:
        allowed = {f"{policy}/{dtype}" for policy, dtype in self.every_condition()} | set(DTYPES)
        for key, value in getattr(self, table).items():
            if key not in allowed:
                raise InvalidCase(
                    f"{table} has the condition {key!r}; write one of {', '.join(sorted(allowed))}"
                )
            if "tolerance" in table and not value > 0:
                raise InvalidCase(f"{table} of {key} is not a positive number")
            if table == "skip" and not value:
                raise InvalidCase(f"skip of {key} has no reason; write why it is not executed")

    def _check_failure(self, condition: str, failure: object) -> None:
        if not isinstance(failure, Failure):
            raise InvalidCase(f"before of {condition} is {failure!r}; write Failure.… or None")
        if failure.phase == "backward" and (self.regime == "training" or not self.backward):
            raise InvalidCase(f"before of {condition} expects a {failure}, but nothing is backward")
        if failure.kind == "promoted" and self.regime != "eager":
            raise InvalidCase("Failure.PROMOTED needs half inputs; write regime='eager'")

    def on(self, device: str) -> Case:
        """The case as a device runs it, ``cpu`` or ``cuda``."""
        return self if device == "cpu" else replace(self, on_gpu={}, **self.on_gpu)

    def every_condition(self) -> list[tuple[Policy, Dtype]]:
        """All policies and dtypes of the regime, skipped ones included."""
        return [(policy, dtype) for policy in POLICIES[self.regime] for dtype in DTYPES]

    @staticmethod
    def _at(table: Mapping[str, Any], policy: str, dtype: str, default: Any) -> Any:
        return table.get(f"{policy}/{dtype}", table.get(dtype, default))

    def skipped(self, policy: Policy, dtype: Dtype) -> str | None:
        """Why a condition is not executed, or None; a failure declared for exactly this condition
        wins over a reason for the whole dtype."""
        if Version(torch.__version__).base_version not in SpecifierSet(self.torch_version):
            return f"it holds for torch {self.torch_version}"
        if f"{policy}/{dtype}" in self.before:
            return None
        reason: str = self._at(self.skip, policy, dtype, "")
        return reason or None

    def expected(self, policy: Policy, dtype: Dtype) -> tuple[Failure, ...]:
        """The failures of the original in one condition; empty: not a hazard here."""
        return as_tuple(self._at(self.before, policy, dtype, None))

    def tolerances(self, policy: Policy, dtype: Dtype) -> tuple[float, float]:
        """The errors allowed to outputs and to gradients."""
        forward = float(self._at(self.tolerance, policy, dtype, TOLERANCE[dtype]))
        backward = self._at(self.gradient_tolerance, policy, dtype, 4 * TOLERANCE[dtype])
        return forward, float(backward)

    @property
    def hazardous(self) -> bool:
        """Whether any condition fails before the fix."""
        return any(as_tuple(expected) for expected in self.before.values())

    @property
    def title(self) -> str:
        """What reports call the case: module, entry and, where given, its name."""
        entry = self.entry if isinstance(self.entry, str) else ""
        return ":".join(part for part in (self.module, entry, self.name) if part)


_ABSENT = object()


def as_tuple(expected: Expected) -> tuple[Failure, ...]:
    """One failure, several or None, as a tuple."""
    if expected is None:
        return ()
    return expected if isinstance(expected, tuple) else (expected,)
