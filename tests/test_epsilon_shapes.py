"""Spellings of the rules on epsilons and constants, one line each."""

from __future__ import annotations

from pathlib import Path

import pytest

from precision_lint import dispatch, registry
from precision_lint.api import Evidence
from precision_lint.project.amp import Project
from precision_lint.source import Source

from . import projects

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
        ("return x.div(x.relu().mean(-1, keepdim=True) + 1e-8)", ["likely"]),
        ("return (x.sigmoid().mean(-1) + 1e-8).reciprocal()", ["likely"]),
        ("return x.div(x.std(-1, keepdim=True) + 1e-8)", ["possible"]),  # of data, as a rule
        ("return (x.mean(-1) + 1e-8).reciprocal()", ["possible"]),
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


@pytest.mark.parametrize(
    ("body", "autocast", "half"),
    [
        ("return torch.log(torch.sigmoid(x))", ["likely"], ["likely"]),
        ("return x.sigmoid().log()", ["likely"], ["likely"]),
        ("return F.softmax(x, dim=-1).log()", ["possible"], ["likely"]),
        ("return torch.log(x.exp().sum(-1))", ["possible"], ["likely"]),
        ("return torch.log((x - x.amax(-1, keepdim=True)).exp().sum(-1))", [], []),
        ("return torch.log(torch.sigmoid(x.float()))", [], []),
        ("p = torch.sigmoid(x)\nreturn torch.log(p)", [], []),  # MP301
        ("return torch.log(torch.sigmoid(x) + 1e-8)", [], []),  # MP301
    ],
)
def test_logarithms_in_two_steps(body: str, autocast: list[str], half: list[str]) -> None:
    assert judged("MP303", body) == autocast
    assert judged("MP303", body, HALF) == half
    assert judged("MP303", body, BRAIN) == []
    if half and "sum" not in body:
        assert judged("MP301", body) == []


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return (x.sigmoid() + 1e-8).float().log()", ["likely"]),
        ("return (x * x).float().sum(-1)", ["likely"]),
        ("return (x * x).to(torch.float32).sum(-1)", ["likely"]),
        ("return x.pow(2).float().sum(-1)", ["possible"]),  # pow is float32 under autocast
        ("return (x * y).float().sum(-1)", []),
        ("return (x.tanh() * x.tanh()).float()", []),
        ("return (x * x).to(x.device)", []),
    ],
)
def test_late_upcasts(body: str, expected: list[str]) -> None:
    assert judged("MP304", body) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("return torch.sqrt(x * x + 1e-9)", ["likely"]),
        ("return (x.var(-1) + 1e-8) ** -0.5", ["likely"]),
        ("return (x.var(-1) + 1e-8).pow(-0.5)", ["likely"]),
        ("return torch.rsqrt(x.var(-1) + 1e-6)", ["possible"]),  # survives
        ("return torch.sqrt(x.pow(2).sum(-1) + 1e-12)", ["possible"]),
        ("return torch.sqrt(x * x + 1e-6)", []),
        ("return torch.sqrt(x.float() * x.float() + 1e-9)", []),
    ],
)
def test_roots(body: str, expected: list[str]) -> None:
    assert judged("MP306", body) == expected


@pytest.mark.parametrize(
    ("body", "autocast", "half"),
    [
        ("return F.normalize(x, dim=-1)", ["possible"], ["possible"]),
        ("return F.normalize(x.relu(), dim=-1)", ["possible"], ["likely"]),
        ("return F.cosine_similarity(x, y.relu())", ["possible"], ["likely"]),
        ("n = x.norm(dim=-1, keepdim=True)\nreturn x / (n + 1e-8)", ["possible"], ["likely"]),
        ("return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-10)", ["possible"], ["likely"]),
        ("return F.normalize(x, dim=-1, eps=1e-5)", [], []),
        ("return x / x.norm(dim=-1, keepdim=True)", [], []),
    ],
)
def test_zero_vectors(body: str, autocast: list[str], half: list[str]) -> None:
    assert judged("MP307", body) == autocast
    assert judged("MP307", body, HALF) == half
    assert judged("MP305", body) == []


@pytest.mark.parametrize(
    ("body", "code", "project", "expected"),
    [
        ("return x.sigmoid().clamp(1e-4, 1 - 1e-4)", "MP308", AUTOCAST, ["likely"]),
        ("return x.sigmoid().clamp(1e-3, 1 - 1e-3)", "MP308", AUTOCAST, []),
        ("return x.sigmoid().clamp(1e-3, 1 - 1e-3)", "MP308", BRAIN, ["likely"]),
        ("return torch.clamp_min(x.relu(), 1e-9)", "MP308", AUTOCAST, ["likely"]),
        ("return torch.clamp_min(x.relu(), 1e-9)", "MP308", BRAIN, []),
        ("return torch.log(x.sigmoid().clamp(min=1e-9))", "MP308", AUTOCAST, []),  # MP301
        ("return y / x.relu().clamp(min=1e-9)", "MP308", AUTOCAST, []),  # MP305
        ("return x.clamp(min=1e-9)", "MP308", AUTOCAST, ["possible"]),
        ("p = x.sigmoid()\nreturn torch.logit(p, 1e-3)", "MP309", BRAIN, ["likely"]),
        ("p = x.sigmoid()\nreturn torch.logit(p, 1e-3)", "MP309", AUTOCAST, []),
        (
            "p = x.sigmoid()\nreturn torch.log((p + 1e-6) / (1 - p + 1e-6))",
            "MP309", AUTOCAST, ["likely"],
        ),
        (
            "p = x.sigmoid()\nreturn torch.log((p + 1e-6) / (1 - p + 1e-6))",
            "MP301", AUTOCAST, [],
        ),
    ],
)  # fmt: skip
def test_limits_near_0_and_1(body: str, code: str, project: Project, expected: list[str]) -> None:
    assert judged(code, body, project) == expected


def test_epsilons_of_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head = """\
        import torch
        from torch import nn
        from limits import EPS, FILL


        class Head(nn.Module):
            def forward(self, x, y, mask):
                level = torch.relu(x).mean(-1)
                a = y / (level + EPS)
                b = torch.rsqrt(level + EPS)
                c = torch.clamp(torch.sigmoid(x), EPS, 1 - EPS)
                return a, b, c, (x @ y.mT).masked_fill(mask, FILL)
        """
    train = """\
        import torch


        def step(head, x, y, mask):
            with torch.autocast("cuda", dtype=torch.float16):
                return head(x, y, mask)
        """
    texts = {"head.py": head, "train.py": train, "limits.py": "EPS = 1e-8\nFILL = -1e9\n"}
    projects.write(tmp_path, texts)
    assert projects.found(projects.check(tmp_path)) == [
        "head.py:9 MP305",
        "head.py:10 MP306",
        "head.py:11 MP308",
        "head.py:12 MP310",
    ]
    (tmp_path / "limits.py").write_text("EPS = 1e-3\nFILL = -1e4\n")
    assert projects.found(projects.check(tmp_path)) == []


@pytest.mark.parametrize(
    ("low", "body", "half", "brain"),
    [
        ("torch.finfo(torch.float16).min", "return x + a * low + b * low", ["likely"], []),
        ("-65504.0", "return x + (a * low + b * low)", ["likely"], []),
        ("torch.finfo(x.dtype).min", "return x + a * low + b * low", ["likely"], ["likely"]),
        (
            "torch.finfo(x.dtype).min",
            "return x + a.triu(1) * low + b * low",
            ["possible"] * 2,
            None,
        ),
        ("torch.finfo(x.dtype).min", "return x + torch.minimum(a * low, b * low)", [], []),
        ("-1e4", "return x + a * low + b * low", [], []),
        ("float('-inf')", "return x.masked_fill(m, float('-inf')).softmax(-1)", ["possible"], None),
    ],
)
def test_minima_that_are_added(
    low: str, body: str, half: list[str], brain: list[str] | None
) -> None:
    masks = "a = m.to(x.dtype)\nb = n.to(x.dtype)\n"
    text = f"low = {low}\n{masks}{body}"
    assert judged("MP311", text, HALF, "x, m, n")[-1:] == half[-1:]
    if brain is not None:
        assert judged("MP311", text, BRAIN, "x, m, n")[-1:] == brain
