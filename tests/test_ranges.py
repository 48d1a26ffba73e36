"""Ranges that the analysis claims: how tight they are, and that no computed element leaves them."""

from __future__ import annotations

import math
import textwrap
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests import analysis

INF = math.inf

CLAIMS: list[tuple[str, float, float]] = [
    ("torch.sigmoid(x)", 0, 1),
    ("x.sigmoid()", 0, 1),
    ("F.hardsigmoid(x)", 0, 1),
    ("x.softmax(-1)", 0, 1),
    ("F.softmin(x, -1)", 0, 1),
    ("F.gumbel_softmax(x, dim=-1)", 0, 1),
    ("1 - torch.sigmoid(x)", 0, 1),
    ("-x.sigmoid()", -1, 0),
    ("0.5 * x.tanh() + 0.5", 0, 1),
    ("F.log_softmax(x, -1)", -INF, 0),
    ("F.logsigmoid(x)", -INF, 0),
    ("x.relu()", 0, INF),
    ("F.relu6(x)", 0, 6),
    ("F.elu(x)", -1, INF),
    ("F.softplus(x)", 0, INF),
    ("x.exp()", 0, INF),
    ("(-x.abs()).exp()", 0, 1),
    ("x.sigmoid().exp()", 1, math.e),
    ("x - x.max()", -INF, 0),
    ("x - x.amax(-1, keepdim=True)", -INF, 0),
    ("x - x.max(dim=-1, keepdim=True).values", -INF, 0),
    ("(x - x.max()).exp()", 0, 1),
    ("((x - x.max()) / 0.07).exp()", 0, 1),
    ("(x - x.max()).exp().sum()", 1, INF),
    ("(x - x.max(dim=-1, keepdim=True).values).exp().sum(-1)", 1, INF),
    ("((x - x.max(dim=-1, keepdim=True).values).exp() * (y > 0)).sum(-1)", 0, INF),
    ("x.clamp(min=1e-3)", 1e-3, INF),
    ("x.clamp(max=2.0)", -INF, 2),
    ("x.clamp(0, 1)", 0, 1),
    ("torch.clamp(x, max=0.5, min=0.1)", 0.1, 0.5),
    ("x.clamp_min(0.1)", 0.1, INF),
    ("x.clamp_max(0.1)", -INF, 0.1),
    ("x.sigmoid().clamp(min=0.1, max=0.9)", 0.1, 0.9),
    ("x.sigmoid().clamp(min=-1)", 0, 1),
    ("x.clamp(min=y)", -INF, INF),
    ("x.abs()", 0, INF),
    ("abs(x)", 0, INF),
    ("x.tanh().abs()", 0, 1),
    ("(x.sigmoid() - 3).abs()", 2, 3),
    ("x.square()", 0, INF),
    ("x * x", 0, INF),
    ("x ** 2", 0, INF),
    ("x.sigmoid() ** 2", 0, 1),
    ("x.tanh()", -1, 1),
    ("x.sin()", -1, 1),
    ("F.normalize(x, dim=-1)", -1, 1),
    ("F.cosine_similarity(x, y)", -1, 1),
    ("x.norm()", 0, INF),
    ("x.var()", 0, INF),
    ("x.std() + 1e-6", 1e-6, INF),
    ("x.abs().sqrt()", 0, INF),
    ("x.abs().sum()", 0, INF),
    ("(-x.abs()).sum()", -INF, 0),
    ("x.abs().prod()", 0, INF),
    ("x.abs().cumsum(0)", 0, INF),
    ("x.abs().log1p()", 0, INF),
    ("x.sigmoid().mean()", 0, 1),
    ("x.sigmoid().max()", 0, 1),
    ("x.sigmoid() * y.sigmoid()", 0, 1),
    ("x.tanh() * y.tanh()", -1, 1),
    ("x.sigmoid() + y.tanh()", -1, 2),
    ("x.sigmoid() - y.sigmoid()", -1, 1),
    ("x.sigmoid().sub(y.sigmoid())", -1, 1),
    ("x.sigmoid().add(1).mul(2)", 2, 4),
    ("x.sigmoid() / (y.sigmoid() + 1)", 0, 1),
    ("1 / (1 + x.exp())", 0, 1),
    ("x / (y.abs() + 1)", -INF, INF),
    ("x.exp() / x.exp().sum()", 0, 1),
    ("x.abs() / x.abs().sum(-1, keepdim=True)", 0, 1),
    ("x.abs() / (x.abs().max() + 1e-6)", 0, 1),
    ("x / x.norm()", -1, 1),
    ("x / x.norm(p=2, dim=-1, keepdim=True).clamp(min=1e-6)", -1, 1),
    ("x / x.norm(p=0.5)", -INF, INF),
    ("x - x.logsumexp(-1, keepdim=True)", -INF, 0),
    ("x - x.min()", 0, INF),
    ("x - x.sum()", -INF, INF),
    ("F.dropout(x, 0.1) - F.dropout(x, 0.1).max()", -INF, INF),
    ("(x - x.max()).exp().sum(-1)", 0, INF),
    ("(x - x.amax(0)).exp().sum(1)", 0, INF),
    ("(x - x.amax(1, keepdim=True)).exp().T.sum(1)", 0, INF),
    ("(x - x.amax(1, keepdim=True)).exp()[:, :2].sum(1)", 0, INF),
    ("F.softplus(x.clamp(max=0))", 0, math.log(2)),
    ("x.clamp(2, 1)", 1, 1),
    ("x.clamp(y, torch.ones_like(x))", -INF, 1),
    ("x.sigmoid().prod()", 0, 1),
    ("F.dropout(x.sigmoid(), 0.5)", 0, 2),
    ("F.dropout(x.sigmoid(), training=False)", 0, 1),
    ("F.elu(x, alpha=3.0)", -3, INF),
    ("F.pad(x.sigmoid(), (1, 1), value=-2.0)", -2, 1),
    ("F.interpolate(x.sigmoid()[None], size=9, mode='linear')", 0, 1),
    ("F.interpolate(x.sigmoid()[None, None], size=9, mode='bicubic')", -INF, INF),
    ("x.tanh() ** 2", 0, 1),
    ("x.tanh().square()", 0, 1),
    ("x.sigmoid() * (1 - x.sigmoid())", 0, 1),
    ("x.clamp(-2, 2) ** 3", -8, 8),
    ("x.norm() + 1", 1, INF),
    ("x.max(dim=1)[1]", -INF, INF),
    ("nn.Sequential(nn.ReLU(), nn.Sigmoid())(x)", 0.5, 1),
    ("nn.Dropout(0.5)(x.sigmoid())", 0, 2),
    ("{'p': x.sigmoid()}['p']", 0, 1),
    ("F.threshold(x.relu(), 0.5, -1.0)", -1, INF),
    ("torch.maximum(x, y.sigmoid())", 0, INF),
    ("torch.minimum(x.sigmoid(), y)", -INF, 1),
    ("torch.where(x > 0, x.sigmoid(), y.tanh())", -1, 1),
    ("x.sigmoid().where(x > 0, y.tanh())", -1, 1),
    ("torch.cat([x.sigmoid(), y.tanh()])", -1, 1),
    ("torch.stack([x.sigmoid(), y.relu()])", 0, INF),
    ("torch.stack([x.sigmoid() for _ in range(3)])", 0, 1),
    ("torch.cdist(x, y)", 0, INF),
    ("F.pad(x.sigmoid() + 1, (1, 1))", 0, 2),
    ("F.avg_pool2d(x.sigmoid()[None], 2)", 0, 1),
    ("(x.sigmoid() + 1).tril()", 0, 2),
    ("(x.sigmoid() + 1).view(-1)", 1, 2),
    ("x.sigmoid()[0, 1:]", 0, 1),
    ("x.sigmoid().topk(2)[0]", 0, 1),
    ("x.sigmoid().gather(1, y.argsort(1))", 0, 1),
    ("x.sigmoid().repeat(2, 1).flatten()", 0, 1),
    ("x.sigmoid().double().detach()", 0, 1),
    ("torch.zeros(3)", 0, 0),
    ("torch.full((3,), 0.25)", 0.25, 0.25),
    ("torch.eye(3)", 0, 1),
    ("torch.rand(3)", 0, 1),
    ("torch.ones_like(x) - x.sigmoid()", 0, 1),
    ("torch.full_like(x, 2.0)", 2, 2),
    ("x.new_ones(3)", 1, 1),
    ("x.new_full((3,), 0.5)", 0.5, 0.5),
    ("F.one_hot(x.argmax(-1), 8)", 0, 1),
    ("x.isnan()", 0, 1),
    ("(x > 0).float()", 0, 1),
    ("x.sigmoid().masked_fill(x > 0, 5.0)", 0, 5),
    ("x.sigmoid().scatter(0, torch.zeros(1, 4).long(), 5.0)", -INF, INF),
    ("x.logsumexp(-1)", -INF, INF),
    ("x.cumsum(0)", -INF, INF),
    ("max(0.5, 0.25)", 0.5, 0.5),
    ("torch.finfo(torch.float16).eps", 2**-10, 2**-10),
]
FLOWS: list[tuple[str, float, float]] = [
    ("p = x.sigmoid()\np -= 2\nreturn p", -2, -1),
    ("p = x.sigmoid()\np = p.add(-1)\nreturn p", -1, 0),
    ("p = x.sigmoid()\np, q = p * 2, p - 1\nreturn q", -1, 0),
    ("p = [x.sigmoid(), y.tanh()]\nreturn p[1]", -1, 1),
    ("if x.sum() > 0:\n    p = x.sigmoid()\nelse:\n    p = y.tanh()\nreturn p", -1, 1),
    ("p = y.tanh()\nif x.sum() > 0:\n    p = x.sigmoid()\nreturn p", -1, 1),
    (
        "p = y.tanh()\nif x.sum() > 0:\n    return p.abs()\nelse:\n    p = x.sigmoid()\nreturn p",
        0,
        1,
    ),
    ("p = x.sigmoid()\ntry:\n    p = y.tanh()\nexcept ValueError:\n    pass\nreturn p", -1, 1),
    ("p = x.sigmoid()\nwhile p.sum() > 1:\n    p = p * 0.5\nreturn p", 0, 1),
    ("p = x.sigmoid()\nfor row in y:\n    p = row.tanh()\nreturn p", -1, 1),
    ("for p in (x.sigmoid(), y.tanh()):\n    pass\nreturn p", -1, 1),
    ("p = x.sigmoid() if x.sum() > 0 else y.tanh()\nreturn p", -1, 1),
    ("with torch.no_grad():\n    p = x.sigmoid()\nreturn p", 0, 1),
    ("if (p := x.sigmoid()).sum() > 0:\n    pass\nreturn p", 0, 1),
    ("m = x.max()\nx = x - m\nreturn x.exp()", 0, 1),
    ("eps = 1e-8\nreturn x.sigmoid() + eps", 1e-8, 1 + 1e-8),
    # aliases
    ("p = x.sigmoid()\nq = p\nq -= 3\nreturn p", -INF, INF),
    ("p = x.sigmoid()\nq = p[0]\nq -= 3\nreturn p", -INF, INF),
    ("p = x.sigmoid()\nq = p.view(-1)\nq.mul_(3)\nreturn p", -INF, INF),
    ("p = x.sigmoid()\nq = p if x.sum() > 0 else x\nq -= 3\nreturn p", -INF, INF),
    ("p = x.sigmoid()\np[0] = 3\nreturn p", -INF, INF),
    ("p = x.sigmoid()\nq = [p, x]\nq[0] -= 3\nreturn p", -INF, INF),
    ("p = x.sigmoid()\nq = p.clone()\nq -= 3\nreturn p", 0, 1),
    ("p = x.sigmoid()\nq = p\nq = q - 3\nreturn p", 0, 1),
    ("p = x.sigmoid()\ntorch.tanh(y, out=p)\nreturn p", -1, 1),
    ("p = x.sigmoid()\nF.elu(p, inplace=True)\nreturn p", 0, 1),
    ("p = x.clone()\np.clamp_(min=1e-6)\nreturn p", 1e-6, INF),
    ("p = x.clone()\np.zero_()\nreturn p", 0, 0),
    # loops
    ("p = x.sigmoid()\nfor _ in range(3):\n    p = p + 1\nreturn p", 0, INF),
    ("p = x.sigmoid()\nfor _ in range(3):\n    p = p - 1\nreturn p", -INF, 1),
    ("p = x.sigmoid()\nq = p\nfor _ in range(4):\n    q = p\n    p = p + 1\nreturn q", 0, INF),
    (
        "p = x.sigmoid()\nfor _ in range(3):\n    for _ in range(3):\n        p = p * 2\nreturn p",
        0,
        INF,
    ),
    (
        "p = x.sigmoid()\nfor _ in range(3):\n    if x.sum() > 0:\n        p = y.tanh()\n"
        "        break\n    p = p.abs()\nreturn p",
        -1,
        INF,
    ),
    # what was said of a name that has changed since
    ("m = x.max()\nx = x * 2 + 1\nreturn x - m", -INF, INF),
    ("m = x.max()\nx.add_(1)\nreturn x - m", -INF, INF),
    ("m = x.amax(-1, keepdim=True)\nif y.sum() > 0:\n    x = y\nreturn x - m", -INF, INF),
    (
        "m = x.amax(-1, keepdim=True)\nfor _ in range(3):\n    if y.sum() > 0:\n        x = x + 1\n"
        "        break\nreturn x - m",
        -INF,
        INF,
    ),
    ("if y.sum() > 0:\n    x = y * 2\nm = x.max()\nreturn x - m", -INF, 0),
    ("total = x.abs().sum()\ny = x.abs()\nreturn x.abs() / total", 0, 1),
]
BODIES = [*((f"return {e}", lo, hi) for e, lo, hi in CLAIMS), *FLOWS]


def text(body: str) -> str:
    return "def f(x, y):\n" + textwrap.indent(body, "    ") + "\n"


each = pytest.mark.parametrize(("body", "lo", "hi"), BODIES, ids=[body for body, _, _ in BODIES])


@each
def test_claimed_range(body: str, lo: float, hi: float) -> None:
    value = analysis.returned(text(body))
    assert (value.lo, value.hi) == (lo, hi)


def compiled() -> list[tuple[str, float, float, Any]]:
    made = []
    for body, lo, hi in BODIES:
        namespace: dict[str, Any] = {}
        exec(analysis.HEAD + text(body), namespace)
        made.append((body, lo, hi, namespace["f"]))
    return made


FUNCTIONS = compiled()
numbers = st.floats(-30, 30, allow_nan=False).filter(lambda n: n == 0 or abs(n) > 1e-100)
"""None whose square is 0, though it is not: a norm of those is no norm."""


@settings(max_examples=25, deadline=None, database=None)
@given(st.lists(numbers, min_size=16, max_size=16), st.lists(numbers, min_size=16, max_size=16))
def test_no_element_leaves_the_range(first: list[float], second: list[float]) -> None:
    """In float64, up to its rounding."""
    x, y = (torch.tensor(n, dtype=torch.float64).view(4, 4) for n in (first, second))
    outside = []
    for body, lo, hi, function in FUNCTIONS:
        result = torch.as_tensor(function(x.clone(), y.clone())).double()
        slack = 1e-9 * max(1.0, result.abs().nan_to_num().max().item())
        if bool((result < lo - slack).any()) or bool((result > hi + slack).any()):
            outside.append(body)
    assert outside == []
