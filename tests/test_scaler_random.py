"""Random training loops: what the analysis says of them, and what a real GradScaler does.

Branches depend on the iteration's number and on flags, and each loop runs for every value of the
flags.  What is reported has to happen in some run; what happens has to be reported, by one report
at least for each kind, unless an earlier break of the protocol hides it.
"""

from __future__ import annotations

import itertools
import random
import textwrap
from typing import Any

import pytest
import torch

from precision_lint.domains import assumptions as assume
from tests import analysis
from tests.analysis import CLIP_SCALED, READ_SCALED, UNSCALED_TWICE

HELPERS = """
from torch.nn.utils import clip_grad_norm_

def unscale(s, o):
    s.unscale_(o)

def clip(net, limit=1.0):
    clip_grad_norm_(net.parameters(), limit)

def finish(s, o, really=True):
    if really:
        s.step(o)
        s.update()
    o.zero_grad()

def back(loss, s=None):
    if s is not None:
        s.scale(loss).backward()
    else:
        loss.backward()

class Finite:
    def __call__(self, parameters):
        return all(torch.isfinite(p.grad).all() for p in parameters)

finite = Finite()

def train(model, loader, optimizer, scaler, flag, odd):
    for i, batch in enumerate(loader):
"""
TESTS = ("flag", "odd", "not flag", "flag and odd", "flag or odd", "i % 2 == 0", "i % 2 == 1",
         "(i + 1) % 2 == 0", "(i + 1) % 2", "i % 2 != 0")  # fmt: skip
BACKWARD = ("scaler.scale(model(batch)).backward()", "back(model(batch), scaler)",
            "back(model(batch), s=scaler)")  # fmt: skip
PLAIN = ("model(batch).backward()", "back(model(batch))")
UNSCALE = ("scaler.unscale_(optimizer)", "unscale(scaler, o=optimizer)",
           "scaler.unscale_(optimizer) if flag else None")  # fmt: skip
LOOK = (
    "clip_grad_norm_(model.parameters(), 1.0)",
    "clip(model)",
    "flag and clip(net=model)",
    "[torch.isfinite(g) for g in [p.grad for p in model.parameters()]]",
    "all(torch.isfinite(p.grad).all() for p in model.parameters())",
    "finite(model.parameters())",
)
FINISH = ("scaler.step(optimizer); scaler.update(); optimizer.zero_grad()",
          "finish(scaler, optimizer)", "finish(scaler, optimizer, really=True)")  # fmt: skip


def under(pick: random.Random, lines: list[str]) -> list[str]:
    """Statements as they are, or in a branch, a loop or a ``try``."""
    inner = [f"    {line}" for line in lines]
    shape = pick.random()
    if shape < 0.35:
        return [f"if {pick.choice(TESTS)}:", *inner]
    if shape < 0.42:
        return ["try:", *inner, "finally:", "    pass"]
    if shape < 0.47:
        return ["for _ in range(2):", *inner]
    if shape < 0.55:
        return [f"if {pick.choice(TESTS)}:", "    pass", "else:", *inner]
    if shape < 0.60:
        return [f"if {pick.choice(TESTS)}:", "    continue", *lines]
    return lines


def loop(seed: int) -> str:
    """A training step whose parts are guarded, doubled, left out or moved at random."""
    pick = random.Random(seed)
    scaled = pick.choice(BACKWARD)
    lines = [scaled]
    if pick.random() < 0.2:
        lines = [f"if {pick.choice(TESTS)}:", f"    {scaled}", "else:", f"    {pick.choice(PLAIN)}"]
    middle = [pick.choice(UNSCALE), pick.choice(LOOK)]
    if pick.random() < 0.3:
        middle.append(pick.choice(LOOK))
    if pick.random() < 0.15:
        middle.append(pick.choice(UNSCALE))
    if pick.random() < 0.4:
        pick.shuffle(middle)
    parts = [under(pick, [part]) for part in middle]
    if pick.random() < 0.3:
        parts = [under(pick, [line for part in parts for line in part])]
    end = [pick.choice(FINISH)]
    if pick.random() < 0.4:  # accumulation
        end = [*(line for part in parts for line in part), *end] if pick.random() < 0.6 else end
        test = pick.choice(TESTS[5:])
        lines += [] if len(end) > 1 else [line for part in parts for line in part]
        lines += [f"if {test}:", *(f"    {line}" for line in end)]
    else:
        lines += [*(line for part in parts for line in part), *end]
    return "\n".join(lines)


class Model(torch.nn.Module):
    """One parameter whose gradient is 1, or the loss scale."""

    def __init__(self) -> None:
        super().__init__()
        self.w = torch.nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return self.w.sum() * batch


SCALE = 4.0**10
JUDGED = {READ_SCALED, CLIP_SCALED, UNSCALED_TWICE}
"""What these runs show; ``tests/test_scaler_protocol.py`` has loops for the rest."""


def happens(text: str, monkeypatch: pytest.MonkeyPatch) -> tuple[set[str], bool]:
    """What goes wrong in some run, and whether every run ends without an exception."""
    kinds: set[str] = set()
    isfinite = torch.isfinite

    def scaled(gradient: torch.Tensor | None) -> bool:
        return gradient is not None and bool((gradient.abs() > 1024).any())

    def read(gradient: torch.Tensor | None) -> torch.Tensor:
        if gradient is None:
            return torch.tensor(True)
        if scaled(gradient):
            kinds.add(READ_SCALED)
        return isfinite(gradient)

    def clip(parameters: Any, max_norm: float) -> None:
        if any(scaled(p.grad) for p in parameters):
            kinds.add(CLIP_SCALED)

    monkeypatch.setattr(torch, "isfinite", read)
    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", clip)
    namespace: dict[str, Any] = {}
    exec(compile(analysis.HEAD + text, "loop", "exec"), namespace)
    whole = True
    for flag, odd in itertools.product((True, False), repeat=2):
        model = Model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
        scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
        scaler.scale(torch.zeros(1))  # its scale exists from here on
        try:
            namespace["train"](model, [torch.tensor(1.0)] * 6, optimizer, scaler, flag, odd)
        except RuntimeError as error:
            whole = False
            if "unscale_()" in str(error):
                kinds.add(UNSCALED_TWICE)
        except (AssertionError, ValueError):  # a step without any gradient
            whole = False
    return kinds, whole


def test_analysis_and_execution_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """No report without harm where a run ends whole, but for two in a hundred; every second
    ``unscale_`` on every path is reported."""
    false, missed, judged = [], [], 0
    for seed in range(240):
        text = HELPERS + textwrap.indent(loop(seed), " " * 8)
        found = [event for event, _ in analysis.events(text) if event.kind in JUDGED]
        said = {
            event.kind
            for event in found
            if not any(variant.assumptions & assume.BRANCH for variant in event.variants)
        }
        real, whole = happens(text, monkeypatch)
        judged += bool(found)
        if whole and said - real:
            false.append(f"{seed}: {sorted(said - real)}\n{loop(seed)}")
        if UNSCALED_TWICE in real and UNSCALED_TWICE not in {event.kind for event in found}:
            missed.append(f"{seed}\n{loop(seed)}")
    assert judged > 60
    assert len(false) <= 5, "\n\n".join(false)
    assert len(missed) <= 30, "\n\n".join(missed)
