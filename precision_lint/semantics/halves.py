"""Whether a value is half precision, how sure that is, and from where."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Evidence
from precision_lint.semantics import given
from precision_lint.semantics.care import CHOOSES, is_test
from precision_lint.semantics.entries import FOREIGN_CALLS
from precision_lint.semantics.half_run import HalfRun
from precision_lint.semantics.models import HALF
from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import CONCRETE, WIDE, Value

if TYPE_CHECKING:
    from precision_lint.project.amp import Project
    from precision_lint.semantics.entries import Entries, Passed
    from precision_lint.semantics.index import Function
    from precision_lint.semantics.module import Module


@dataclass(frozen=True)
class Half:
    """Why a value is, or may be, half precision: which dtypes, how sure, and from where."""

    dtypes: frozenset[str]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    outside: bool = False
    """Whether the value is half where no autocast region is around the operation."""

    @property
    def told(self) -> bool:
        """Whether the code shows it, by a cast or by what is passed, outside of any region."""
        return self.outside and self.confidence is not Confidence.POSSIBLE

    @property
    def dtype(self) -> str:
        """One dtype for a message: float16 where it is possible, because it is the stricter."""
        return "float16" if "float16" in self.dtypes else "bfloat16"


UNASKED = Half(frozenset(), Confidence.POSSIBLE, ())
"""The calls in the module do not tell."""


class Halves:
    """What of the analysis makes a value half; `Context` completes it."""

    module: Module
    project: Project
    function: Function

    @property
    def half_models(self) -> Evidence | None:
        """Where the project makes models half, rather than single tensors."""
        return None if self.project.half_strength == "local" else self.project.half

    @property
    def settings(self) -> tuple[Evidence, ...]:
        """Where the project runs half precision, other than in single tensors."""
        return tuple(e for e in (self.project.mixed, self.half_models) if e is not None)

    @cached_property
    def plausible(self) -> bool:
        """Whether this function plausibly runs under autocast or inside a half model."""
        return self.module.plausible(self.function)

    def believes(self, evidence: Evidence) -> bool:
        """Whether what the project does elsewhere says something of this file."""
        raise NotImplementedError

    def mentions(self, pattern: str) -> bool:
        """Whether a regular expression matches somewhere in this function's text."""
        raise NotImplementedError

    def note(self, node: ast.expr | ast.stmt, message: str) -> Evidence:
        """A link of the evidence chain at a place in this file."""
        raise NotImplementedError

    def half(self, value: Value, region: Region) -> Half | None:
        """Whether a value may be float16 or bfloat16 where it is used; None: it is not."""
        dtype = value.dtype
        if dtype in ("float16", "bfloat16"):
            if "output" in value.tags and not region.on:  # unless the model upcasts it itself
                told = (self.project.half,) if self.project.half is not None else ()
                return Half(frozenset({dtype}), Confidence.LIKELY, told, True)
            explicit = value.kind == "tensor" and "float" not in value.tags
            sure = region.sure or region.state != "on" or explicit
            confidence = Confidence.CERTAIN if sure else Confidence.LIKELY
            return Half(frozenset({dtype}), confidence, self.why(region), not region.on)
        if dtype == "low":
            dtypes = self._region_dtypes(region)
            return Half(dtypes, Confidence.LIKELY, self.why(region), not region.on)
        if not value.variable or not value.maybe_tensor:
            return None
        if region.state == "inherited" and not region.known:
            run = HalfRun.made(self.module, self.function, value)
            dtypes = frozenset({run.dtype} if run is not None else ()) - _excluded(value)
            if run is not None and dtypes:
                message = f"{self.function.qualname}() runs with half weights from here"
                return Half(
                    dtypes, Confidence.LIKELY, (self._noted(run.call, run.module, message),), True
                )
        if dtype.startswith("~parameter.") and (region.on or self.half_models is None):
            return None  # parameters stay float32 under autocast
        if "amp" in value.tags and not region.on:
            left = self._region_dtypes(region) - _excluded(value)
            return Half(left, Confidence.LIKELY, (), True) if left else None
        chosen = frozenset({_half_choice(dtype)} - {""}) - _excluded(value)
        if chosen and not region.on and not self.mentions(CHOOSES.pattern):
            return Half(chosen, Confidence.LIKELY, self.why(region), True)
        passed = self._given(value, region)
        if passed is not UNASKED:
            return passed
        if self._is_given_wide(dtype[1:], mixed=True):
            value = value.but(wide=True)
        confidence = Confidence.POSSIBLE
        if dtype == "~cast":  # to a dtype that is not known: as likely a wide one
            return Half(self._region_dtypes(region), confidence, self.why(region))
        dtypes = self.project.dtypes or frozenset({"float16", "bfloat16"})
        evidence: tuple[Evidence, ...] = self.why(region)
        if region.on and not value.wide:
            confidence = Confidence.LIKELY
            dtypes = self._region_dtypes(region)
        elif value.wide and region.on:
            return None
        elif region.state == "inherited" and self.plausible:
            if value.wide:
                dtypes = self.project.half_dtypes or dtypes
                if self.half_models is not None:
                    evidence = (self.half_models,)
                    if self.believes(self.half_models):
                        confidence = Confidence.LIKELY
            elif region.known:
                confidence, dtypes = Confidence.LIKELY, self._region_dtypes(region)
            elif self.settings and not (dtype == "~autocast" and self.project.mixed is None):
                evidence = self.settings[:1]
                if self.believes(evidence[0]):
                    confidence = Confidence.LIKELY
            else:
                evidence = self.project.evidence[:1]
        elif region.state == "inherited" and not self.plausible:
            evidence = self.project.evidence[:1]
        dtypes -= _excluded(value)
        return Half(dtypes, confidence, evidence) if dtypes else None

    def float16(self, value: Value, region: Region) -> Half | None:
        """The same for harm that only float16 does, ``possible`` where evidence is all that lacks.

        A project that runs float16 somewhere and makes models bfloat16 may make them float16, and
        who uses a module may make its parameters half.
        """
        half = self.half(value, region)
        if half is not None and "float16" in half.dtypes:
            return half
        if region.on or region.known or not value.variable or not value.maybe_tensor:
            return None
        if half is not None and half.outside:
            return None
        if "float16" in _excluded(value) or "float16" not in (self.project.dtypes or {"float16"}):
            return None
        unknown = half is not None or value.dtype.startswith("~parameter.")
        evidence = half.evidence if half is not None else self.project.evidence[:1]
        return Half(frozenset({"float16"}), Confidence.POSSIBLE, evidence) if unknown else None

    def _given(self, value: Value, region: Region) -> Half | None:
        """What the calls of this function in this module say of a parameter's dtype."""
        if self._is_given_wide(value.dtype[1:]):
            return None  # promoted by what is float32, or an item of it
        passed = list(given.passed(self.module, self.function, value.dtype))
        for one in passed:
            dtype, amp = _half_choice(one.value.dtype), "amp" in one.value.tags
            if dtype or amp:
                dtypes = self._region_dtypes(region) if amp else frozenset({dtype})
                if amp and (region.on or one.inside):
                    continue  # it came out of the region that the call is in
                dtypes -= _excluded(value) | _excluded(one.value)
                message = f"{self.function.qualname}() is given half tensors here"
                note = self._noted(one.call, one.module, message)
                return Half(dtypes, Confidence.LIKELY, (note,), True) if dtypes else None
        told = [one for one in passed if self._tells(one)]
        if told and all(one.value.dtype in WIDE for one in told):
            return None
        return UNASKED

    def passed_below(self, value: Value, limit: float) -> bool:
        """Whether every call in the project passes a magnitude below a limit for a parameter."""
        passed = [p.value for p in self.module.arguments(self.function, value.dtype[1:])]
        return bool(passed) and all(max(-one.lo, one.hi) < limit for one in passed)

    def _is_given_wide(self, names: str, mixed: bool = False) -> bool:
        """Whether all calls pass float32 for one of these; ``mixed``: under autocast, at least."""
        for name in names.split("+"):
            every = self.module.arguments(self.function, name.partition("[")[0])
            passed = [one.value for one in every if self._tells(one)]
            amp = mixed and len(passed) < FOREIGN_CALLS  # of more, not all are known
            if passed and all(v.dtype in WIDE or (amp and v.wide) for v in passed):
                return True
        return False

    def _tells(self, passed: Passed) -> bool:
        """Whether a call says that nothing else is passed: that of a test elsewhere does not."""
        first = passed
        while first.behind is not None:
            first = first.behind
        return first.module is self.module or not is_test(first.module.path)

    def _noted(self, call: ast.Call, module: Entries, message: str) -> Evidence:
        """A note on a call, in this file or in another."""
        return self.note(call, message) if module is self.module else module.note(call, message)

    def _region_dtypes(self, region: Region) -> frozenset[str]:
        if region.dtype in ("float16", "bfloat16"):
            return frozenset({region.dtype})
        return self.project.dtypes or frozenset({"float16", "bfloat16"})

    def why(self, region: Region) -> tuple[Evidence, ...]:
        """The chain from a region (and the call that leads into it) to here."""
        if region.node is None:
            return self._led_to(region)
        name = {"float16": "float16 ", "bfloat16": "bfloat16 "}.get(region.dtype, "")
        chain = [self.note(region.node, f"{name}autocast region opened here")]
        if region.called is not None:
            chain.append(self.note(region.called, f"{self.function.qualname}() is reached from it"))
        return tuple(chain)

    def _led_to(self, region: Region) -> tuple[Evidence, ...]:
        chain = region.foreign
        if chain and region.called is not None:
            chain += (self.note(region.called, f"{self.function.qualname}() is reached from it"),)
        return chain


def _half_choice(dtype: str) -> str:
    """The half one of the known dtypes that a value has on one path or another; empty: none."""
    choices = dtype.lstrip("~").split("|")
    return next((c for c in choices if c in HALF), "") if set(choices) <= set(CONCRETE) else ""


def _excluded(value: Value) -> frozenset[str]:
    """Half dtypes that a test around this place, or a choice between known ones, rules out."""
    known = value.dtype.lstrip("~").split("|")
    chosen = all(dtype in CONCRETE for dtype in known)
    return frozenset(
        d for d in ("float16", "bfloat16")
        if f"not-{d}" in value.tags or (chosen and d not in known)
    )  # fmt: skip
