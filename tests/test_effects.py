"""Summaries of what functions do to gradients, in one file and across files; conditions."""

from __future__ import annotations

import ast
import json
import textwrap

import pytest

from precision_lint.semantics.conditions import assume, condition, substituted
from precision_lint.semantics.effects import CALL, CLIP, READ, RETURN, UNSCALE, Effects, flat
from precision_lint.semantics.events import (
    BYPASSED,
    CLIP_SCALED,
    READ_SCALED,
    UNSCALED_TWICE,
    UPDATE,
)
from precision_lint.semantics.index import Function
from precision_lint.semantics.module import Module
from precision_lint.semantics.scaler import Violation
from tests import analysis

UTILITIES = """
def clip(net, limit=None):
    if limit is not None:
        torch.nn.utils.clip_grad_norm_(net.parameters(), limit)

def unscale_and_clip(net, amp, opt):
    amp.unscale_(opt)
    clip(net, 1.0)

def bad(tensors_checked):
    return any(not torch.isfinite(t).all() for t in tensors_checked)

def finish(amp, opt):
    amp.step(opt)
    amp.update()

def clip_by_hook(net, limit):
    for p in net.parameters():
        p.register_hook(lambda g: torch.clamp(g, -limit, limit))

def plain(opt, clear=False):
    if clear:
        opt.zero_grad()
    opt.step()

def double(x):
    return x * 2
"""
LOOP = """
from torch.nn.utils import clip_grad_norm_
from project import utils

def train(model, loader, optimizer, scaler):
    for batch in loader:
        scaler.scale(model(batch)).backward()
"""
STEP = "scaler.step(optimizer)\nscaler.update()\n"


def summaries(text: str) -> dict[str, Effects]:
    made = analysis.module(text)
    found = {f.name: made.typestate.effects(f) for f in made.index.functions}
    return {name: effects for name, effects in found.items() if effects is not None}


def lines(made: Module, text: str) -> list[tuple[str, str]]:
    """What is reported: kind, and the flagged line."""
    rows = (analysis.HEAD + text).splitlines()
    return [(v.kind, rows[v.node.lineno - 1].strip()) for v, _ in made.typestate.violations()]


# summaries


def test_a_summary_holds_the_events_and_nothing_else() -> None:
    found = summaries(UTILITIES)
    assert found["unscale_and_clip"].steps[0].kind == UNSCALE
    assert CLIP in {s.kind for s in flat(found["unscale_and_clip"].steps)}
    assert [s.kind for s in found["bad"].steps] == [READ, RETURN]
    assert found["unscale_and_clip"].parameters == ("net", "amp", "opt")
    assert not found["double"]


def test_a_summary_survives_json() -> None:
    for effects in summaries(UTILITIES).values():
        data = json.loads(json.dumps(effects.data()))
        again = Effects.of(data, "utils.py")
        assert again.data() == [*effects.data()[:5], again.data()[5]]
        kinds = [(s.kind, s.names, s.row) for s in flat(effects.steps)]
        assert [(s.kind, s.names, s.row) for s in flat(again.steps)] == kinds
        assert {s.filename for s in flat(again.steps)} <= {"utils.py"}


def test_recursion_ends() -> None:
    found = summaries(
        "def a(m, n):\n    b(m, n)\n    m.grad.norm()\ndef b(m, n):\n    a(m, n - 1)\n"
    )
    assert READ in {s.kind for s in flat(found["a"].steps)}


def test_calls_of_a_third_file_are_linked() -> None:
    caller = "from project.utils import clip\ndef both(model):\n    clip(model, limit=1.0)\n"
    effects = summaries(caller)["both"]
    assert [s.names[0] for s in flat(effects.steps) if s.kind == CALL] == ["project.utils.clip"]
    known = {f"project.utils.{name}": e for name, e in summaries(UTILITIES).items()}
    linked = effects.linked(known.get)
    assert CALL not in {s.kind for s in flat(linked.steps)}
    assert CLIP in {s.kind for s in flat(linked.steps)}
    assert effects.linked(lambda name: None).data() == effects.data()


@pytest.mark.parametrize(
    ("body", "kinds"),
    [
        ("utils.clip(model, 1.0)\n" + STEP, [CLIP_SCALED]),
        ("utils.clip(model)\n" + STEP, []),
        ("utils.unscale_and_clip(model, scaler, optimizer)\n" + STEP, []),
        ("scaler.unscale_(optimizer)\nutils.clip(model, 1.0)\n" + STEP, []),
        (
            "scaler.unscale_(optimizer)\nutils.unscale_and_clip(model, scaler, opt=optimizer)\n"
            + STEP,
            [UNSCALED_TWICE],
        ),
        ("utils.bad([p.grad for p in model.parameters()])\n" + STEP, [READ_SCALED]),
        ("utils.bad([batch])\n" + STEP, []),
        ("scaler.unscale_(optimizer)\nutils.finish(scaler, optimizer)\n", []),
        ("utils.clip_by_hook(model, 1.0)\n" + STEP, [CLIP_SCALED]),
        ("utils.plain(optimizer)\n", [BYPASSED]),
        ("utils.plain(optimizer, clear=True)\n", []),
        ("utils.finish(scaler, optimizer)\nutils.finish(scaler, other)\n", [UPDATE]),
        ("utils.unknown(model, scaler)\nclip_grad_norm_(model.parameters(), 1)\n" + STEP, []),
    ],
)
def test_helpers_of_another_file(
    body: str, kinds: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    known = {
        name: Effects.of(effects.data(), "project/utils.py")
        for name, effects in summaries(UTILITIES).items()
    }

    def foreign(module: Module, call: ast.Call, caller: Function) -> Effects | None:
        name = module.index.names.qualify(call.func) or ""
        return known.get(name.removeprefix("project.utils."))

    monkeypatch.setattr(Module, "foreign_effects", foreign)
    text = LOOP + textwrap.indent(body, " " * 8)
    found: list[Violation] = [v for v, _ in analysis.module(text).typestate.violations()]
    assert [v.kind for v in found] == kinds
    for violation in found:
        assert violation.helper is not None and violation.helper.filename == "project/utils.py"


def test_a_hook_is_reported_once() -> None:
    text = """
class Trainer:
    def fit(self, loader):
        self.prepare()
        for batch in loader:
            self.scaler.scale(self.model(batch)).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()

    def prepare(self):
        for p in self.model.parameters():
            p.register_hook(lambda g: torch.clamp(g, -1, 1))

def main(trainer: Trainer, loader):
    trainer.fit(loader)
"""
    ((kind, line),) = lines(analysis.module(text), text)
    assert kind == CLIP_SCALED and line.startswith("p.register_hook")


# classes

SCALER = """
class Scaler:
    def __init__(self):
        self._scaler = torch.cuda.amp.GradScaler()

    @property
    def amp(self):
        return self._scaler

    def __call__(self, loss, optimizer, clip_grad=None, parameters=None, update=True):
        self.amp.scale(loss).backward()
        if update:
            {first}
            if clip_grad is not None:
                torch.nn.utils.clip_grad_norm_(parameters, clip_grad)
            self._scaler.step(optimizer)
            self.amp.update()

    def backward(self, loss):
        self._scaler.scale(loss).backward()

    def step(self, optimizer):
        self.amp.step(optimizer)
        self.amp.update()
"""
UNSCALE_FIRST = "self._scaler.unscale_(optimizer)"
CALLER = """
class Base:
    def clip(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)

class Trainer(Base):
    def __init__(self, use_amp):
        self.use_amp = use_amp
        self.scaler = {made}

    def clip(self):
        if self.use_amp:
            {clip}
        super().clip()

    def run(self, loader):
        scaler = self.scaler
        for batch in loader:
            {backward}
            {before}
            {step}
"""
AMP = 'torch.amp.GradScaler("cuda", enabled=use_amp)'
RIGHT = {
    "made": AMP,
    "clip": "self.scaler.unscale_(self.optimizer)",
    "backward": "scaler.scale(self.model(batch)).backward()",
    "before": "self.clip()",
    "step": "scaler.step(self.optimizer); scaler.update()",
}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"clip": "pass"}, [(CLIP_SCALED, "self.clip()")]),
        ({"before": "super().clip()"}, [(CLIP_SCALED, "super().clip()")]),
        ({"before": "self.clip(); self.clip()"}, [(UNSCALED_TWICE, "self.clip(); self.clip()")]),
        ({"made": 'torch.amp.GradScaler("cuda", enabled=False)', "clip": "pass"}, []),
        ({"made": "Scaler()", "backward": "scaler.backward(self.model(batch))", "clip": "pass",
          "step": "scaler.step(self.optimizer)"}, [(CLIP_SCALED, "self.clip()")]),
    ],
)  # fmt: skip
def test_methods_bases_and_wrappers(changes: dict[str, str], found: list[tuple[str, str]]) -> None:
    text = SCALER.format(first=UNSCALE_FIRST) + CALLER.format(**{**RIGHT, **changes})
    assert lines(analysis.module(text), text) == found


def test_a_wrapper_that_clips_first_is_flagged_inside_only() -> None:
    use = "def train(loss, optimizer, model):\n    s = Scaler()\n"
    use += "    s(loss, optimizer, clip_grad=1.0, parameters=model.parameters())\n"
    right, wrong = SCALER.format(first=UNSCALE_FIRST) + use, SCALER.format(first="pass") + use
    assert lines(analysis.module(right), right) == []
    clip = "torch.nn.utils.clip_grad_norm_(parameters, clip_grad)"
    assert lines(analysis.module(wrong), wrong) == [(CLIP_SCALED, clip)]


def test_a_clip_whose_callers_unscale_is_silent() -> None:
    text = """
class Trainer:
    def optimize(self):
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def run(self, batch):
        self.scaler.scale(self.model(batch)).backward()
        {first}
        self.optimize()
"""
    right, wrong = (
        text.format(first=first) for first in ("self.scaler.unscale_(self.optimizer)", "pass")
    )
    assert lines(analysis.module(right), right) == []
    made = analysis.module(wrong)
    ((violation, function),) = made.typestate.violations()
    assert (violation.kind, function.name) == (CLIP_SCALED, "optimize")
    assert violation.caller is not None and violation.caller.lineno > violation.node.lineno


def test_deep_nests_end_without_a_verdict() -> None:
    text, depth = "def f(model, scaler, optimizer, loader):\n", 14
    for i in range(depth):
        text += "    " * (i + 1) + f"for i{i} in loader:\n"
    inner = "    " * (depth + 1)
    text += f"{inner}scaler.scale(model(i0)).backward()\n{inner}if i1: scaler.unscale_(optimizer)\n"
    for i in range(depth, 1, -1):
        text += "    " * i + f"if i{i - 1}: scaler.step(optimizer)\n"
    assert lines(analysis.module(text), text) == []


# conditions


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("x is not None", "x", True),
        ("x is None", "x", False),
        ("not x", "x", False),
        ("a != b", "b == a", False),
        ("a > b", "b < a", True),
        ("a >= b", "a < b", False),
        ("k in d", "k not in d", False),
        ("i % 2 == 1", "(i + 1) % 2 == 0", True),
        ("i % 2", "i % 2 == 0", False),
        ("i % n == n - 1", "(i + 1) % n == 0", True),
        ("(i - 1) % 4 == 2", "(i + 1) % 4 == 0", True),
        ("flag == True", "bool(flag)", True),
    ],
)
def test_conditions_that_mean_the_same(one: str, other: str, same: bool) -> None:
    first, second = condition(one), condition(other)
    assert first.key == second.key and (first.truth == second.truth) is same


@pytest.mark.parametrize(
    ("known", "test", "possible"),
    [
        ("a and b", "a", (True, False)),
        ("not (a or b)", "b", (False, True)),
        ("mode == 'x'", "mode == 'y'", (False, True)),
        ("mode == 'x'", "mode == y", (True, True)),
        ("a or b", "c", (True, True)),
    ],
)
def test_what_follows_from_a_condition(known: str, test: str, possible: tuple[bool, bool]) -> None:
    facts = assume(frozenset(), condition(known), True)
    assert facts is not None
    assert tuple(assume(facts, condition(test), t) is not None for t in (True, False)) == possible


def test_names_are_replaced_by_expressions() -> None:
    assert substituted("limit is not None", (("limit", "args.clip"),)) == "args.clip is not None"
    assert substituted("a.limit == 'limit'", (("limit", "1"),)) == "a.limit == 'limit'"
