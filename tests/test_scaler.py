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

from precision_lint.domains import assumptions as assume
from precision_lint.events import Event
from tests import analysis
from tests.analysis import CLIP_SCALED, READ_SCALED, UNSCALED_TWICE
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


def violations(loop: str) -> list[tuple[Event, str]]:
    """What the analysis reports, with the flagged line."""
    return analysis.events(text(loop))


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


WRONG = {
    "unscale in try": "an exception that is expected",
    "unscaled in even steps, stepped in odd ones": "the scaler forgets nothing between iterations",
    "second unscale_ is tried": "an exception that is expected",
    "update in finally": "paths into finally",
}
"""Sound loops that are reported, and what the analysis does not know."""
MISSED = {
    "read without a graph": "gradients of autograd.grad",
    "scaled by name on a flag, clipped": "which path a value came by",
    "clipped in the other micro-step": "numbers are not reasoned about",
}
"""Broken loops that are not reported."""


@pytest.mark.parametrize("name", GOOD)
def test_sound_loops_are_silent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = [(event.kind, line) for event, line in violations(GOOD[name])]
    assert bool(found) == (name in WRONG), found
    if "get_scale" not in GOOD[name]:
        assert happens(GOOD[name], monkeypatch) == set()


@pytest.mark.parametrize("name", BAD)
def test_broken_loops_are_reported(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loop, kind, fragment = BAD[name]
    assert happens(loop, monkeypatch) == {kind}
    if name not in MISSED:
        ((event, line),) = violations(loop)
        assert event.kind == kind and fragment in line


@pytest.mark.parametrize("name", SOMETIMES)
def test_paths_that_may_have_unscaled_are_left_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert violations(SOMETIMES[name]) == []
    assert happens(SOMETIMES[name], monkeypatch) == {CLIP_SCALED}


def test_a_read_names_its_backward_and_what_follows() -> None:
    loop = BACKWARD + READ + under(MICRO, UNSCALE, CLIP, STEP)
    ((found, _),) = violations(loop)
    row = found.place.row
    assert found.facts["backward"].row == row - 1
    assert [place.row - row for place in found.facts["unscales"]] == [2]
    assert [places[0].row - row for places in found.facts["steps"]] == [4]


def test_a_block_that_is_repeated_is_found_each_time() -> None:
    block = BACKWARD + CLIP + STEP
    assert len(violations(block * 110)) == 110


def wide(flags: int, body: str) -> str:
    """Nested loops with tests that all come twice, around steps of the protocol."""
    tests = "".join(
        under(f"if options.f{i}", "optimizer.zero_grad()\n") + f"log(options.f{i})\n"
        for i in range(flags)
    )
    block = tests + tests + body
    for depth in range(3):
        block = under(f"for n{depth} in loader", block)
    return block


@pytest.mark.parametrize("flags", [12, 60])
def test_a_long_loop_with_many_conditions_is_followed(flags: int) -> None:
    bad = wide(flags, BACKWARD + CLIP + STEP)
    assert CLIP_SCALED in {event.kind for event, _ in violations(bad)}
    assert violations(wide(flags, BACKWARD + UNSCALE + CLIP + STEP)) == []


ASKED = "".join(under(f"if options.f{i}", "optimizer.zero_grad()\n") for i in range(5))
OPTIONAL = (
    under("if scaler is not None", BACKWARD)
    + under("else", "model(batch).backward()\n")
    + under("if scaler is not None", UNSCALE, CLIP, STEP)
    + under("else", CLIP, "optimizer.step()\n")
)


def test_conditions_that_are_not_asked_again_are_forgotten_first() -> None:
    """The branch without a scaler clips what nothing has scaled, whatever was asked before the loop."""
    body = ASKED * 2 + under("for batch in loader", OPTIONAL)
    head = "from torch.nn.utils import clip_grad_norm_\n"
    whole = head + under("def train(model, loader, optimizer, scaler, options)", body)
    assert analysis.events(whole) == []


SCALING = "".join(under(f"if options.f{i}", "scaler.scale(model(batch))\n") for i in range(6))


def test_conditions_that_decide_no_step_are_forgotten_before_others() -> None:
    """Whether there is a scaler is known among many conditions on what is cleared, which are asked again."""
    assert violations(under("for batch in loader", ASKED, OPTIONAL, ASKED)) == []


def test_a_clip_on_a_path_that_may_not_be_is_possible() -> None:
    """With all conditions forgotten, the clip of one branch follows the backward of the other."""
    loop = under("for batch in loader", SCALING, OPTIONAL, SCALING)
    found = [event for event, _ in violations(loop)]
    clips = [event for event in found if event.kind == CLIP_SCALED]
    assert clips
    assert all(v.assumptions & assume.PATHS for event in clips for v in event.variants)


BASE = """\
import torch
from torch import nn

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cuda")

    def unscaled(self):
        self.scaler.unscale_(self.optimizer)
        return self.optimizer

    def updated(self):
        self.scaler.update()
        return self.scaler

    def optimize(self):
        for _ in range(2):
            self.optimizer.zero_grad()
            self.scaler.scale(self.loss()).backward()
            self.unscaled()
            nn.utils.clip_grad_norm_(self.parameters(), 1.0)
            self.scaler.step(self.optimizer)
            self.updated()
"""
HEIR = """
class Net{0}(Base):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.optimizer = torch.optim.SGD(self.parameters(), lr=0.1)

    def loss(self):
        return self.layer(self.batch).mean()
"""


@pytest.mark.parametrize("method", ["unscaled", "updated"])
def test_a_call_that_a_bound_leaves_out_may_do_each_step(method: str) -> None:
    """Its method has more objects than it is followed for."""
    heirs = range(20)
    others = under("def others()", *(f"Net{i}().{method}()\n" for i in heirs))
    run = under("def run()", "Net0().optimize()\n")
    assert not analysis.events(BASE + "".join(HEIR.format(i) for i in heirs) + others + run)


DROPPED = """\
class Trainer:
    def __init__(self, options, model, loader):
        self.options, self.model, self.loader = options, model, loader
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.scaler = torch.amp.GradScaler("cuda")

    def train(self):
        drop = False
        for batch in self.loader:
            for j in range(self.options.parts):
                loss = self.model(batch[j])
                if loss is None:
                    continue
                if torch.isnan(loss).any():
                    drop = True
                    continue
                self.scaler.scale(loss).backward()
            if drop:
                self.optimizer.zero_grad()
                drop = False
                continue
            if self.options.clip:
                self.scaler.unscale_(self.optimizer)
            self.scaler.step(self.optimizer)
            self.scaler.update()
"""


def test_a_step_that_is_dropped() -> None:
    """What is set to zero then is not what the next step uses: its own parts come before it."""
    assert not analysis.events(analysis.HEAD + DROPPED)
    goes_on = DROPPED.replace("drop = False\n                continue\n", "drop = False\n")
    kinds = [event.kind for event, _ in analysis.events(analysis.HEAD + goes_on)]
    assert kinds == ["zeroed-gradients"]
