"""Gradients that training frameworks scale and divide: Accelerate, Fabric, Lightning."""

from __future__ import annotations

from collections.abc import Iterable

from precision_lint.dataflow.objects import is_a
from precision_lint.dataflow.protocol import Step
from precision_lint.domains.values import Special, Value
from precision_lint.torchmodel import foreign
from precision_lint.typestate.machine import ACTIONS, Machine
from precision_lint.typestate.states import UNSCALED, State, in_order


def backward(machine: Machine, step: Step, states: list[State]) -> Iterable[State]:
    """``accelerator.backward(loss)``: in float16 the gradients are scaled."""
    own = machine.scaler_of(step.objects[-1] if step.objects else None)
    return [
        s._replace(
            scaled=step.place, framework=own is None, waiting=True, zeroed=None, updated=None,
            optimizers=(), looked=False, lost=False, clean=(), level=len(machine.frames),
            by_framework=None, early=None,
        )
        for s in states
    ]  # fmt: skip


def unscale(machine: Machine, step: Step, states: list[State]) -> Iterable[State]:
    """``accelerator.unscale_gradients()``, and clips that begin with it."""
    owner = machine.key(step.objects[0])
    again = [s for s in states if s.by_framework and s.by_framework[0] == owner]
    if again and again[0].by_framework is not None:
        machine.report(
            "double-unscale", again[0].by_framework[1],
            [s._replace(framework=True) for s in again],
            done=UNSCALED, alone=False, another=any(s.looked for s in again),
        )  # fmt: skip
    explicit = step.kind == "framework-unscale"
    return [
        s._replace(
            scaled=None if s.framework else s.scaled,
            by_framework=(owner, step.place) if explicit else s.by_framework,
            looked=s.looked and not explicit,
        )
        for s in states
    ]


def step(machine: Machine, step: Step, states: list[State]) -> Iterable[State]:
    """A step of an optimizer that a framework prepared: it divides the gradients by the loss scale."""
    plain = [s for s in states if s.plain is not None]
    if plain and len(plain) == len(states) and _is_optimizer(machine, step.objects[0]):
        beside = any(s.scaled is not None for s in plain)
        machine.report(
            "unscaled-backward",
            plain[0].plain or step.place,
            [s._replace(framework=True) for s in plain],
            step=step.place,
            beside=beside,
        )
    return machine.plain_step(step, states)


def _is_optimizer(machine: Machine, value: Value | None) -> bool:
    """Whether what steps was made as an optimizer, or clears gradients: schedulers step as well."""
    if not isinstance(value, Special) or "of" not in value.fields:
        return isinstance(value, Special)
    within = ("?", value["of"].symbol.number)  # by its name in the function where it steps
    return machine.key(value) in machine.cleared or within in machine.cleared


def bypassing_step(machine: Machine, step: Step, states: list[State]) -> Iterable[State]:
    """A step of the optimizer that a framework was given, not of the one that it gave back."""
    scaled = [s for s in states if s.scaled is not None and s.framework]
    if scaled and len(scaled) == len(states):
        machine.report("plain-step", step.place, scaled, done=None, given=len(step.objects) > 1)
    return machine.plain_step(step, states)


def left_to_trainer(machine: Machine) -> None:
    """``training_step`` of a subclass of the Trainer of ``transformers``, which steps once it returns."""
    function = machine.function
    if function is None or function.name != "training_step" or function.cls is None:
        return
    ends = machine.ends.next | machine.ends.returns
    plain = [s for s in in_order(ends) if s.plain is not None and s.scaled is None]
    if len(plain) == len(ends) and is_a(machine.it, function.cls, *foreign.HUGGING_FACE):
        for state in plain[:1]:
            place = state.plain
            assert place is not None
            some = [state._replace(framework=True)]
            machine.report("unscaled-backward", place, some, step=place, beside=False)


ACTIONS.update({
    "framework-backward": backward,
    "framework-unscale": unscale,
    "framework-clip": unscale,
    "prepared-step": step,
    "bypassing-step": bypassing_step,
})  # fmt: skip
