"""One finding in the child: its slices under its conditions, to a verdict."""

from __future__ import annotations

import contextlib
import time
from typing import Any

import torch

from precision_lint.harness import magnitudes, trial
from precision_lint.harness.execute import Fault
from precision_lint.harness.hunt import GLANCE_SECONDS, VALUE_SECONDS, Hunt, Job, NothingRuns
from precision_lint.harness.sandbox import Refused
from precision_lint.harness.trial import Argument, Condition, Program, Witness

Answer = dict[str, Any]


ROUNDS = ((GLANCE_SECONDS, (1.0,)), (GLANCE_SECONDS, (1024.0,)), (VALUE_SECONDS, (1.0,)))
"""Time for each condition, and loss scales of the backward pass: what fails without a loss scale
says more than what a GradScaler would avoid by lowering its own."""


def warm_up() -> None:
    """Load what torch loads late, before the child gives up its rights."""
    program = Program("def isolated(x):\n    return x.sum().log()\n", "warm_up")
    argument = Argument("x", "torch.ones(2, dtype=torch.float64)")
    for policy in ("cuda", "cpu"):
        condition = Condition(policy, "float16", "float32", True)
        with trial.under(condition):
            for backward in (False, True):
                program.call([argument], condition, backward=backward)


def search(job: dict[str, Any], seconds: float) -> Answer:
    """The verdict on one finding: ``proven``, ``not reproduced`` or ``not isolated``."""
    started = time.monotonic()
    state = _Search(job, started + seconds)
    try:
        found = state.run()
        if found is not None:
            return _proven(*found, state.tries, started) | {"sweep": state.sweep(*found)}
    except Refused as refused:
        return _verdict("not isolated", f"{refused}, which is refused", state.tries, started)
    except SystemExit:
        return _verdict("not isolated", "it ends the interpreter", state.tries, started)
    outcome = "not reproduced" if state.isolated else "not isolated"
    return _verdict(outcome, state.reason(), state.tries, started)


def called(job: dict[str, Any]) -> Answer:
    """Whether a function of the user's shows the failure of a witness; ``reason``: why not."""
    arguments = tuple(Argument(**one) for one in job["inputs"])
    condition = Condition(**job["condition"])
    try:
        program = Program(job["called"], "imported")
    except (Exception, SystemExit, Refused) as error:
        what = f"{type(error).__name__}: {error}".splitlines()[0]
        return {"reason": f"importing it does not work here ({what[:160]})"}
    try:
        with trial.under(condition):
            return {"reason": _shows(program, arguments, condition, job)}
    except (Fault, SystemExit, Refused) as error:
        return {"reason": str(error)}


def _shows(
    program: Program, arguments: tuple[Argument, ...], condition: Condition, job: dict[str, Any]
) -> str:
    outcome = program.call(arguments, condition, "float32")
    if outcome.raised is None and all(t.dtype == torch.bool for t in outcome.outputs.values()):
        return "called whole, it returns no numbers"
    seen = trial.full(program, arguments, condition, job["phase"] == "backward")
    if seen is None:
        raised = outcome.raised
        if raised is not None and job["kind"] == "raises":
            return ""
        return (
            f"called whole, it raises {raised[:160]}"
            if raised
            else "called whole, it is not finite"
        )
    if job["phase"] == "backward":
        shows = trial.backward_failure(program, arguments, condition, seen, (job["scale"],))
        return "" if shows else "called whole, its gradients are right on these inputs"
    if job["kind"] == "widened":
        wide = trial.widened(program, arguments, condition)
        return "" if wide else "called whole, it is not widened on these inputs"
    failure = trial.forward_failure(program, arguments, condition, seen)
    return "" if failure else "called whole, it is right on these inputs"


class _Search:
    """All slices of a finding: each is glanced at before any is searched long."""

    def __init__(self, job: dict[str, Any], deadline: float) -> None:
        self.job = job
        self.deadline = deadline
        self.hunts: dict[int, Hunt] = {}
        self.isolated = False
        self.why = "no inputs were found on which half precision fails and float32 does not"
        self.not_defined = ""

    @property
    def tries(self) -> int:
        return sum(hunt.tries for hunt in self.hunts.values())

    def reason(self) -> str:
        hunt = next((h for h in self.hunts.values() if h.uncured is not None), None)
        if hunt is not None and hunt.uncured is not None:
            where = hunt.uncured.condition.words
            after = "it does so as well"
            if hunt.differs:
                after = "it runs, with other values than in float32"
            return f"it fails ({where}: {hunt.uncured.before}), but after the fix {after}"
        return self.why if self.isolated else self.not_defined or self.why

    def run(self) -> tuple[Witness, int] | None:
        for index, variant in enumerate(self.job["variants"]):
            try:
                plan = Job(**variant, claims=self.job["claims"])
                self.hunts[index] = Hunt(plan, self.deadline)
            except Exception as error:  # what the slice does when it is defined
                what = f"{type(error).__name__}: {error}".splitlines()[0]
                self.not_defined = f"the slice cannot be defined: {what[:160]}"
        if (raises := self._raises()) is not None:
            return raises
        alive = dict(self.hunts)
        for patience, scales in ROUNDS:
            for index, hunt in list(alive.items()):
                for written in self.job["conditions"]:
                    if time.monotonic() > self.deadline:
                        return self._shown()
                    try:
                        witness = hunt.run(Condition(**written), patience, scales)
                    except Fault as fault:
                        self.why = str(fault)
                        continue
                    except NothingRuns as error:
                        self.not_defined = f"no inputs were found with which it runs: {error}"
                        del alive[index]
                        break
                    self.isolated = True
                    if witness is not None:
                        return witness, index
            if (shown := self._shown()) is not None:
                return shown
        return None

    def _raises(self) -> tuple[Witness, int] | None:
        """What raises at once; else a slow condition may take the time of the one that does."""
        if not any(one.startswith("raises") for one in self.job["claims"]):
            return None
        for index, hunt in self.hunts.items():
            for written in self.job["conditions"]:
                with contextlib.suppress(Fault):
                    witness = hunt.first(Condition(**written))
                    if witness is not None:
                        return witness, index
        return None

    def sweep(self, witness: Witness, index: int) -> dict[str, Any] | None:
        """The witness's error against the magnitude of its inputs, if that is to be drawn."""
        if not self.job["sweep"] or witness.phase != "forward" or witness.drew:
            return None
        if witness.kind not in ("inf", "nan", "error", "absolute"):
            return None
        hunt, variant = self.hunts[index], self.job["variants"][index]
        bounds = {one["name"]: (one["lo"], one["hi"]) for one in variant["inputs"]}
        texts = {"before": hunt.program}
        if witness.cured_by is not None:
            texts["after"] = hunt.fixed[witness.cured_by]
        return magnitudes.sweep(texts, witness, bounds)

    def _shown(self) -> tuple[Witness, int] | None:
        """A failure that no fix cures, of a finding that need not be cured."""
        if self.job["cure"]:
            return None
        failing = ((h.uncured, index) for index, h in self.hunts.items() if h.uncured is not None)
        return next(failing, None)


def _verdict(verdict: str, reason: str, tries: int, started: float) -> Answer:
    return {
        "verdict": verdict,
        "reason": reason,
        "tries": tries,
        "seconds": round(time.monotonic() - started, 2),
    }


def _proven(witness: Witness, variant: int, tries: int, started: float) -> Answer:
    condition = witness.condition
    inputs = [{"name": one.name, "text": one.text, "wide": one.wide} for one in witness.arguments]
    return _verdict("proven", "", tries, started) | {
        "variant": variant,
        "inputs": inputs,
        "condition": {
            "policy": condition.policy, "dtype": condition.dtype, "inputs": condition.inputs,
            "region": condition.region, "amp": condition.amp,
            "step": condition.step,
        },
        "words": condition.words,
        "phase": witness.phase,
        "kind": witness.kind,
        "before": witness.before,
        "after": witness.after,
        "cured_by": witness.cured_by,
        "scale": witness.scale,
        "drew": witness.drew,
        "floor": witness.floor,
        "note": witness.note,
    }  # fmt: skip
