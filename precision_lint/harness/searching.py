"""One finding in the child: its slices under its conditions, to a verdict."""

from __future__ import annotations

import itertools
import time
from typing import Any

from precision_lint.harness import trial
from precision_lint.harness.execute import Fault
from precision_lint.harness.hunt import GLANCE_SECONDS, VALUE_SECONDS, Hunt, Job, NothingRuns
from precision_lint.harness.sandbox import Refused
from precision_lint.harness.trial import Argument, Condition, Program, Witness

Answer = dict[str, Any]


ROUNDS = ((GLANCE_SECONDS, (1.0,)), (VALUE_SECONDS, (1.0,)), (GLANCE_SECONDS, (1024.0, 65536.0)))
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
    tries = 0
    reason = "no inputs were found on which half precision fails and float32 does not"
    isolated = False
    uncured: Witness | None = None
    for index, variant in enumerate(job["variants"]):
        try:
            plan = Job(**variant, claims=job["claims"])
            hunt = Hunt(plan, seconds - (time.monotonic() - started))
            for (patience, scales), written in itertools.product(ROUNDS, job["conditions"]):
                if time.monotonic() > hunt.deadline:
                    break
                condition = Condition(**written)
                try:
                    witness = hunt.run(condition, patience, scales)
                except Fault as fault:
                    reason = str(fault)
                    continue
                isolated = True
                if witness is not None:
                    return _proven(witness, index, tries + hunt.tries, started)
            tries += hunt.tries
            uncured = uncured or hunt.uncured
        except NothingRuns as error:
            if not isolated:
                reason = f"no inputs were found with which it runs: {error}"
        except Refused as refused:
            return _verdict("not isolated", f"{refused}, which is refused", tries, started)
        except SystemExit:
            return _verdict("not isolated", "it ends the interpreter", tries, started)
        except Exception as error:  # what the slice does when it is defined
            what = f"{type(error).__name__}: {error}".splitlines()[0]
            if not isolated:
                reason = f"the slice cannot be defined: {what[:160]}"
    if uncured is not None:
        where = uncured.condition.words
        reason = f"it fails ({where}: {uncured.before}), but after the fix it does so as well"
    return _verdict("not reproduced" if isolated else "not isolated", reason, tries, started)


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
        },
        "words": condition.words,
        "phase": witness.phase,
        "kind": witness.kind,
        "before": witness.before,
        "after": witness.after,
        "cured_by": witness.cured_by,
        "scale": witness.scale,
        "note": witness.note,
    }  # fmt: skip
