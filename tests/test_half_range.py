"""How sure the rules on the range of half are of shapes of code."""

from __future__ import annotations

import textwrap

import pytest

from precision_lint import dispatch, registry
from precision_lint.project.amp import Project
from precision_lint.source import Source

RULES = [rule for code, rule in registry.rules().items() if "MP601" <= code <= "MP609"]
HEAD = """\
import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(4, 4)
        self.norm = nn.LayerNorm(4)

    def forward(self, x):
{body}
"""
LINKED = """
def step(x):
    net = Net()
    with torch.autocast("cuda", dtype=torch.float16):
        return net(x)
"""
ELSEWHERE = """
def step(net, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return net(x)
"""


def judged(body: str, tail: str) -> list[str]:
    """``code confidence`` of every finding in a module's ``forward``."""
    text = HEAD.format(body=textwrap.indent(body, " " * 8)) + tail
    project = Project().with_file("a.py", text.encode())
    found = dispatch.lint(Source("a.py", text), RULES, project)
    assert not any(d.internal for d in found), [d.message for d in found]
    return [f"{d.code} {d.confidence.value}" for d in found]


SHAPES = {
    "h = self.proj(x)\nreturn (h * h).mean()": "MP601",
    "h = self.proj(x)\nreturn torch.exp2(h).mean()": "MP603",
    "h = self.proj(x)\nreturn h * torch.rsqrt((h * h).mean(-1, keepdim=True) + 1e-5)": "MP604",
    "h = self.proj(x)\nreturn (h - h.mean(-1)) / torch.sqrt(h.var(-1) + 1e-5)": "MP604",
    "h = self.proj(x)\nreturn (h * h).mean(-1) - h.mean(-1) ** 2": "MP605",
    "w, h = (self.proj(x) * 32).chunk(2, -1)\nreturn (w * h).mean()": "MP607",
    "h = self.proj(x)\nreturn h - torch.log(torch.rand_like(h))": "MP608",
}


@pytest.mark.parametrize(("body", "code"), SHAPES.items())
def test_shown_under_a_region_in_sight(body: str, code: str) -> None:
    assert judged(body, LINKED) in ([f"{code} likely"], [f"{code} certain"])


@pytest.mark.parametrize(("body", "code"), SHAPES.items())
def test_possible_where_only_the_project_runs_half(body: str, code: str) -> None:
    assert judged(body, ELSEWHERE) == [f"{code} possible"]


@pytest.mark.parametrize("body", SHAPES)
def test_silent_behind_an_upcast(body: str) -> None:
    assert judged(body.replace("self.proj(x)", "self.proj(x).float()"), LINKED) == []


@pytest.mark.parametrize(
    "body",
    [
        "h = self.norm(self.proj(x)).half()\nreturn (h * h).mean()",
        "h = F.gelu(self.norm(self.proj(x))).half()\nreturn (h * h).mean()",
        "h = self.proj(x).tanh() * 2\nreturn (h * h).mean()",
        "h = self.proj(x)\nreturn (h**2).mean() + h.exp().mean() + h.pow(2).sum()",
        "h = self.proj(x)\nreturn h.sum() + h.softmax(-1).mean() + F.log_softmax(h, -1).mean()",
        "h = self.proj(x)\nreturn h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-5)",
        "w, h = self.proj(x).sigmoid().chunk(2, -1)\nreturn (w * h).mean()",
        "h = self.proj(x)\nreturn torch.exp2(-h.abs())",
        "h = self.proj(x)\nreturn h - torch.log(torch.rand(h.shape))",
        "h = self.proj(x)\nh = h - h.amax(-1, keepdim=True)\nreturn torch.exp2(h)",
    ],
)
def test_silent_where_it_is_bounded_or_float32(body: str) -> None:
    assert judged(body, LINKED) == []
