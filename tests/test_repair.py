"""Where an unscale may be put in: only where the optimizer is the one that steps later."""

from __future__ import annotations

import textwrap

import pytest

from precision_lint import dispatch, registry
from precision_lint.project.amp import Project
from precision_lint.source import Source, decode

TRAIN = """\
import torch


def train(self, model, loader, optimizers, optimizer, scaler, get):
    {first}
    for batch in loader:
        loss = model(batch)
        scaler.scale(loss).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
{step}
        scaler.update()
"""


@pytest.mark.parametrize(
    ("first", "step", "inserted"),
    [
        ("pass", "scaler.step(optimizer)", "scaler.unscale_(optimizer)"),
        ("pass", "scaler.step(self.optimizer)", "scaler.unscale_(self.optimizer)"),
        (
            "opt = torch.optim.SGD(model.parameters(), 1)",
            "scaler.step(opt)",
            "scaler.unscale_(opt)",
        ),
        ("pass", "for opt in optimizers:\n    scaler.step(opt)", None),
        (
            "for opt in optimizers:\n        opt.zero_grad()",
            "for opt in optimizers:\n    scaler.step(opt)",
            None,
        ),
        ("pass", "opt = optimizers[0]\nscaler.step(opt)", None),
        ("pass", "[scaler.step(opt) for opt in optimizers]", None),
        ("pass", "scaler.step(get(batch))", None),
        ("if model:\n        opt = optimizers[0]", "scaler.step(opt)", None),
    ],
)
def test_the_optimizer_of_an_inserted_unscale(first: str, step: str, inserted: str | None) -> None:
    text = TRAIN.format(first=first, step=textwrap.indent(step, " " * 8))
    source = decode(text.encode(), "train.py")
    assert isinstance(source, Source)
    found = dispatch.lint(source, [registry.rules()["MP102"]], Project())
    edits = [edit.text.strip() for d in found if d.fix for edit in d.fix.edits]
    assert edits == ([inserted] if inserted else [])
