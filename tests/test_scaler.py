"""GradScaler protocol: what the analysis reports, and what a real GradScaler does.

Each loop is analysed and executed, on the CPU, for every combination of two flags.  Execution is
the judge: ``unscale_`` raises, or the gradients that a check or a clip sees are the scaled ones.
"""

from __future__ import annotations

import itertools
import textwrap
from typing import Any

import pytest
import torch
from precision_lint.semantics.events import CLIP_SCALED, READ_SCALED, UNSCALED_TWICE
from precision_lint.semantics.scaler import Violation

from tests import analysis
from tests.scaler_loops import (
    BACKWARD,
    BAD,
    CLIP,
    GOOD,
    HEAD,
    MICRO,
    READ,
    SOMETIMES,
    STEP,
    UNSCALE,
    under,
)


def text(loop: str) -> str:
    return HEAD + textwrap.indent(loop, "        ")


def violations(loop: str) -> list[tuple[Violation, str]]:
    """What the analysis reports, with the flagged line."""
    made = analysis.module(text(loop))
    train = analysis.function(made, "train")
    lines = (analysis.HEAD + text(loop)).splitlines()
    found = [v for v, function in made.typestate.violations() if function is train]
    return [(v, lines[v.node.lineno - 1].strip()) for v in found]


class Toy(torch.nn.Module):
    """Two parameters whose gradient is the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))
        self.v = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return (self.w + self.v).sum() * batch


def happens(loop: str, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """What goes wrong when the loop runs; gradients are 1, or 1024 while they are scaled."""
    kinds: set[str] = set()
    isfinite = torch.isfinite

    def scaled(gradient: torch.Tensor | None) -> bool:
        return gradient is not None and bool((gradient.abs() > 256).any())

    def read(gradient: torch.Tensor) -> torch.Tensor:
        if scaled(gradient):
            kinds.add(READ_SCALED)
        return isfinite(gradient)

    def clip(parameters: Any, max_norm: float) -> float:
        if any(scaled(p.grad) for p in parameters):
            kinds.add(CLIP_SCALED)
        return max_norm

    monkeypatch.setattr(torch, "isfinite", read)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    namespace: dict[str, Any] = {}
    exec(compile(analysis.HEAD + text(loop), "loop", "exec"), namespace)
    for flag, odd in itertools.product((True, False), repeat=2):
        model = Toy()
        halves = [[model.w, model.v], [torch.nn.Parameter(torch.ones(1))]]
        if "other" in loop:
            halves = [[model.w], [model.v]]
        optimizer, other = (torch.optim.SGD(half, lr=0.0) for half in halves)
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        batches = [torch.tensor(1.0)] * 4
        try:
            namespace["train"](model, batches, optimizer, other, scaler, flag, odd)
        except RuntimeError as error:
            assert "unscale_()" in str(error)
            kinds.add(UNSCALED_TWICE)
    return kinds


@pytest.mark.parametrize("name", GOOD)
def test_sound_loops_are_silent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [(v.kind, line) for v, line in violations(GOOD[name])] == []
    if "get_scale" not in GOOD[name]:
        assert happens(GOOD[name], monkeypatch) == set()


@pytest.mark.parametrize("name", BAD)
def test_broken_loops_are_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, kind, fragment = BAD[name]
    ((violation, line),) = violations(loop)
    assert violation.kind == kind and fragment in line
    assert happens(loop, monkeypatch) == {kind}


@pytest.mark.parametrize("name", SOMETIMES)
def test_paths_that_differ_are_told_apart(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ((violation, _),) = violations(SOMETIMES[name])
    assert violation.kind == CLIP_SCALED and violation.sometimes_unscaled
    assert happens(SOMETIMES[name], monkeypatch) == {CLIP_SCALED}


# what a violation carries


def test_a_read_names_its_backward_and_what_follows() -> None:
    loop = BACKWARD + READ + under(MICRO, UNSCALE, CLIP, STEP)
    ((found, _),) = violations(loop)
    assert found.backward is not None and found.backward.lineno == found.node.lineno - 1
    assert [call.lineno - found.node.lineno for call in found.unscales] == [2]
    assert [call.lineno - found.node.lineno for call in found.steps] == [4]
    assert (found.scaler, found.helper, found.sometimes_unscaled) == ("scaler", None, False)


def test_a_double_unscale_names_optimizer_and_first_call() -> None:
    ((found, _),) = violations(BACKWARD + UNSCALE + READ + UNSCALE + STEP)
    assert found.optimizer == "optimizer" and not found.after_step
    assert found.first is not None and found.first.lineno == found.node.lineno - 2
    ((found, _),) = violations(BACKWARD + "scaler.step(optimizer)\n" + UNSCALE)
    assert found.after_step


def test_a_violation_in_a_helper_names_the_helper() -> None:
    ((found, line),) = violations(BACKWARD + "clip(model)\n" + STEP)
    assert found.helper is not None and found.helper.name == "clip"
    assert line == "clip(model)"


CLASS = """
class Trainer:
    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer
        self.scaler = torch.amp.GradScaler("cuda"{arguments})

    def clip(self):
        {owner}clip_grad_norm_(self.model.parameters(), 1.0)

    def step(self, loss):
        self.scaler.scale(loss).backward()
        self.clip()
        self.scaler.step(self.optimizer)
        self.scaler.update()
"""


@pytest.mark.parametrize(
    ("arguments", "owner", "kinds"),
    [
        ("", "nn.utils.", [CLIP_SCALED]),
        (", enabled=True", "nn.utils.", [CLIP_SCALED]),
        (", enabled=False", "nn.utils.", []),
        ("", "self.accelerator.", []),
        ("", "self.fabric.", []),
    ],
)
def test_scaler_of_a_class(arguments: str, owner: str, kinds: list[str]) -> None:
    made = analysis.module(CLASS.format(arguments=arguments, owner=owner))
    step = analysis.function(made, "Trainer.step")
    assert made.typestate.scalers(step) == {"self.scaler"}
    assert [v.kind for v in made.protocol(step, "self.scaler")] == kinds


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("scaler.unscale_(optimizer)", {"scaler"}),
        ("self.amp.unscale_(optimizer)", {"self.amp"}),
        ("grad_scaler.scale(loss).backward()", {"grad_scaler"}),
        ("scaler.step(optimizer)", {"scaler"}),
        ("optimizer.step()", set()),
        ("scheduler.step(loss)", set()),
        ("standard_scaler.scale()", set()),
        ("x.scale(2)", set()),
        ("loss.backward()", set()),
    ],
)
def test_what_is_taken_for_a_scaler(statement: str, found: set[str]) -> None:
    made = analysis.module(f"def f(optimizer, loss):\n    {statement}\n")
    assert made.typestate.scalers(made.index.functions[0]) == found
