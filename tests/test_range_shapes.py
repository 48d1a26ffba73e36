"""How sure MP201, MP301 and MP501 are of shapes of code, in a project that trains in float16."""

from __future__ import annotations

import textwrap

import pytest

from precision_lint import dispatch, registry
from precision_lint.project.amp import Project
from precision_lint.source import Source

RULES = [registry.rules()[code] for code in ("MP201", "MP301", "MP501")]
HEAD = """\
import sys
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F
from einops import rearrange
EPS = np.finfo(np.float32).eps
"""
TAIL = """
def step(loss, x):
    with torch.autocast("cuda", dtype=torch.float16):
        return loss(x)
"""
METHOD = """
class Loss(nn.Module):
    def forward(self, {parameters}):
{body}
"""


def judged(parameters: str, body: str) -> list[str]:
    """``code confidence`` of every finding in a module's ``forward``."""
    method = METHOD.format(parameters=parameters, body=textwrap.indent(body, " " * 8))
    text = HEAD + method + TAIL
    project = Project().with_file("a.py", text.encode())
    found = dispatch.lint(Source("a.py", text), RULES, project)
    assert not any(d.internal for d in found), [d.message for d in found]
    return [f"{d.code} {d.confidence.value}" for d in found]


@pytest.mark.parametrize(
    "body",
    [
        "return torch.where(x > 1e-9, x, 1e-9).log()",
        "return torch.log(x / x.sum() + 1e-8)",  # a 0-d sum does not widen x
        "return x.masked_fill(x == 0, 1e-12).log()",
        "return torch.log(torch.fmax(x, torch.full_like(x, 1e-8)))",
        "return torch.log(torch.clip(x, min=1e-8))",
        "x = x.abs()\nx += 1e-10\nreturn x.log2()",
        "return torch.log(x + np.finfo(np.float64).tiny)",
        "return torch.log(x + np.finfo('float64').eps)",
        "return torch.log(x + sys.float_info.epsilon)",
        "y = torch.log(x.abs() + EPS)\nreturn y",
        "p = x.sigmoid()\nreturn torch.log(p)",
        "p = torch.sigmoid(x)\nreturn p[..., 0].log()",
    ],
)
def test_a_vanishing_or_missing_guard_is_likely(body: str) -> None:
    assert judged("x", body) == ["MP301 likely"]


@pytest.mark.parametrize(
    "body",
    [
        "return torch.log(x / x.sum(-1, keepdim=True) + 1e-8)",  # sum is float32 under autocast
        "p = x.softmax(dim=-1)\nreturn torch.log(p)",
        "return torch.log((gt_boxes[:, 2] + 1e-9) / 8)",  # annotations are float32
        "return torch.log(x.clamp(min=1e-5))",  # no gradient below, hardly a value just above
        "return torch.log((x > 0).float() + 1e-45)",  # subnormal in float32 too
    ],
)
def test_what_only_some_runs_would_break_is_possible(body: str) -> None:
    assert judged("x, gt_boxes", body) == ["MP301 possible"]


@pytest.mark.parametrize(
    "body",
    [
        "return torch.log(x.detach() + 1e-6)",
        "with torch.no_grad():\n    y = x.sigmoid()\nreturn torch.log(y + 1e-6)",
        "a, b = (x + 1e-6).log(), x\nedges = a[1:] - a[:-1]\nreturn (edges.abs() > 1) * b",
        "return torch.floor(torch.log2(x.sqrt() / 224 + 1e-6))",
        "return torch.log(x.float().sigmoid())",
        "return torch.log(1 - x.double().sigmoid())",
        "return torch.log(x)",
        "return torch.log(1 - x)",
    ],
)
def test_logarithms_without_gradient_or_probability_are_right(body: str) -> None:
    assert judged("x", body) == []


@pytest.mark.parametrize(
    "body",
    [
        "k = F.elu(k) + 1\nreturn k.transpose(-2, -1) @ v",
        "k = F.relu(k).mT\nreturn torch.matmul(k, v)",
        "k = torch.relu(k)\nreturn k.permute(0, 2, 1) @ v",
        "k = rearrange(torch.relu(k), 'b n d -> b d n')\nreturn k @ v",
        "k = self.phi(k) * mask\nreturn torch.einsum('bnhd,bnhe->bhde', k, v)",
        "k = k.softmax(dim=-1)\nreturn torch.einsum('bnd,bne->bde', k, v)",
        "x = v.view(b, c, -1)\nreturn torch.bmm(x, x.transpose(1, 2)) / n",
        "m = mask.sigmoid().flatten(2)\nreturn torch.einsum('bkn,bcn->bkc', m, v.flatten(2))",
        "s = torch.stft(v, 512, return_complex=True).abs() ** 2\nreturn torch.matmul(k, s)",
        "s = torch.view_as_real(self.stft(v)).pow(2).sum(-1)\nreturn k @ s",
    ],
)
def test_a_large_sum_is_likely(body: str) -> None:
    assert judged("k, v, mask, b, c, n", body) == ["MP201 likely"]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # weights that add up to 1: no overflow, but small ones lose their digits
        ("k = k.softmax(dim=1)\nreturn torch.einsum('bnd,bne->bde', k, v)", ["MP201 possible"]),
        ("return torch.matmul(q, k.transpose(-2, -1)) / self.scale", ["MP201 possible"]),
        # the same sum, scaled in time
        ("return torch.matmul(q / self.scale, k.transpose(-2, -1))", []),
        ("n = v.size(1)\nk = F.relu(k)\nv = v / n\nreturn torch.einsum('bnd,bne->bde', k, v)", []),
        ("w = self.softmax(k.flatten(2))\nreturn torch.bmm(w, v.flatten(2).mT)", []),
        ("s = torch.stft(v, 512, return_complex=True).abs()\nreturn k @ s", []),
        # samples of a window, not tokens of a sequence
        ("w = F.relu(left)\nreturn w.transpose(-1, -2) @ right", ["MP201 possible"]),
    ],
)
def test_a_sum_that_stays_small_is_possible_or_right(body: str, expected: list[str]) -> None:
    assert judged("q, k, v, left, right", body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return points @ R.transpose(1, 2)", ["MP501 likely"]),
        ("return torch.matmul(proj_mat, points)", ["MP501 likely"]),
        ("return torch.matmul(inv_K[:, :3, :3], pix_coords)", ["MP501 likely"]),
        ("return grad_2d.t().matmul(input_2d)", []),
        ("return torch.matmul(R, weight)", []),
        (
            "up = torch.tensor(np.linalg.pinv(table))\n"
            "def one(row):\n    return up @ row\nreturn torch.stack([one(r) for r in points])",
            ["MP501 likely"],
        ),
        (
            "up = torch.tensor(np.linalg.pinv(table)).to(dtype=points.dtype)\n"
            "def one(row):\n    return up @ row\nreturn torch.stack([one(r) for r in points])",
            [],
        ),
    ],
)
def test_geometry_and_constant_matrices(body: str, expected: list[str]) -> None:
    parameters = "points, R, proj_mat, inv_K, pix_coords, grad_2d, input_2d, weight, table"
    assert judged(parameters, body) == expected
