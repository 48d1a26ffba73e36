"""Spellings of the rules on epsilons and constants, one line each."""

from __future__ import annotations

import pytest

from precision_lint import dispatch, registry
from precision_lint.api import Evidence
from precision_lint.project.amp import Project
from precision_lint.source import Source

AUTOCAST = Project(
    autocast=Evidence("the project uses mixed precision", filename="train.py"),
    dtypes=frozenset({"float16"}),
    autocast_rank=(0, 0, 0),
)
BRAIN = Project(
    autocast=Evidence("the project uses mixed precision", filename="train.py"),
    dtypes=frozenset({"bfloat16"}),
    autocast_rank=(0, 0, 2),
)
HALF = Project(
    half=Evidence("the project uses half precision", filename="serve.py"),
    dtypes=frozenset({"float16"}),
    half_dtypes=frozenset({"float16"}),
    half_rank=(0, 0, 0),
)


def judged(code: str, body: str, project: Project = AUTOCAST, arguments: str = "x, y") -> list[str]:
    """Confidences of one rule's findings in the ``forward`` of a module."""
    lines = "".join(f"        {line}\n" for line in body.splitlines())
    text = (
        "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
        f"class Head(nn.Module):\n    def forward(self, {arguments}):\n{lines}"
    )
    rule = registry.rules()[code]
    found = dispatch.lint(Source("a.py", text), [rule], project)
    assert not any(d.internal for d in found), [d.message for d in found]
    return [d.confidence.value for d in found]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("p = torch.sigmoid(x)\nreturn (1 - p[..., 0]).log()", ["likely"]),
        ("return torch.log1p(-x.sigmoid())", ["likely"]),
        ("return torch.log(1 - x.float().sigmoid())", []),
        ("return torch.log(1 - x.tanh())", []),
    ],
)
@pytest.mark.parametrize("project", [AUTOCAST, BRAIN, HALF], ids=["autocast", "brain", "half"])
def test_complements_of_sigmoids(body: str, expected: list[str], project: Project) -> None:
    assert judged("MP302", body, project) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return x / (x.relu().amax(-1, keepdim=True) + 1e-8)", ["likely"]),
        ("return x.div(x.std(-1, keepdim=True) + 1e-8)", ["likely"]),
        ("return (x.mean(-1) + 1e-8).reciprocal()", ["likely"]),
        ("return x / (x.std(-1, keepdim=True) + 1e-6)", ["possible"]),  # vanish together
        ("return x / (x.sum(-1, keepdim=True) + 1e-8)", ["possible"]),  # float32 under autocast
        ("return x / (y + 1e-8)", ["possible"]),  # handed in
        ("return x / (x.relu().mean(-1) + y.relu().mean(-1) + 1e-8)", ["possible"]),
        ("return x / (x.std(-1, keepdim=True) + 1e-3)", []),
        ("return x / (x.shape[0] + 1e-8)", []),
        ("return torch.log(x / (x.relu().mean(-1) + 1e-8))", []),  # MP301
        ("return x / (x.norm(dim=-1, keepdim=True) + 1e-8)", []),
    ],
)
def test_denominators(body: str, expected: list[str]) -> None:
    assert judged("MP305", body) == expected
    assert judged("MP305", body, BRAIN) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("s = x @ y.mT\nreturn s.masked_fill(mask, -1e9)", ["likely"]),
        ("s = torch.bmm(x, y.mT) / 8\nreturn torch.where(mask, s, -1e30)", ["likely"]),
        ("s = x @ y.mT\ns[mask] = -1e9\nreturn s", ["likely"]),
        ("attn = x\nreturn F.pad(attn.logits, (0, 1), value=-1e9)", ["possible"]),
        ("return x.masked_fill(mask, -1e9)", ["possible"]),
        ("return x @ y.mT + (1 - mask) * -1e9", ["possible"]),
        ("return (x @ y.mT).clamp(min=-1e9)", ["possible"]),
        ("return (x @ y.mT).softmax(-1).masked_fill(mask, 1e9)", ["possible"]),
        ("s = (x @ y.mT).float()\nreturn s.masked_fill(mask, -1e9)", []),
        ("return (x @ y.mT).masked_fill(mask, -1e4)", []),
        ("return x.long().masked_fill(mask, 100000)", []),
    ],
)
def test_fills(body: str, expected: list[str]) -> None:
    assert judged("MP310", body, arguments="x, y, mask") == expected
    assert judged("MP310", body, BRAIN, arguments="x, y, mask") == []
