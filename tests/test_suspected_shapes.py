"""What numeric rules suspect of code that shows no sign of half, and what rules it out."""

from __future__ import annotations

import textwrap

import pytest

from precision_lint import dispatch, registry
from precision_lint.project.amp import Project
from precision_lint.source import Source

RULES = registry.rules()
HEAD = """\
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

class Net(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.softmax = nn.Softmax(dim=-1)
        self.cosine = nn.CosineSimilarity(dim=-1)
        self.tight = nn.CosineSimilarity(dim=-1, eps=1e-4)
        self.scale = nn.Parameter(torch.ones([]))
        self.eps = config.get("eps", 1e-8)
        self.wide = config.get("eps", 1e-3)
        self.ctc = nn.CTCLoss()

    def forward(self, x, y, mask, ids, boxes):
"""
ALONE = Project()
TRAINED = Project().with_file(
    "train.py", b"import torch\nwith torch.autocast('cuda', dtype=torch.float16):\n    model(x)\n"
)
MIXED = Project().with_file(
    "run.py",
    b"import torch\nmodel.to(torch.bfloat16)\n"
    b"with torch.autocast('cuda', dtype=torch.float16):\n    model(x)\n",
)


def judged(code: str, text: str, project: Project) -> list[str]:
    """The confidence of each finding of one rule in a text."""
    found = dispatch.lint(Source("a.py", text), [RULES[code]], project)
    assert not any(d.internal for d in found), [d.message for d in found]
    return [d.confidence.value for d in found]


def method(body: str) -> str:
    return HEAD + textwrap.indent(body, " " * 8) + "\n"


SUSPECTED = [
    ("MP209", "logits = self.layer(x)\nreturn F.cross_entropy(logits, ids)"),
    ("MP209", "logits = self.layer(x)\nreturn logits, y"),
    ("MP209", "lm_logits = y.logits\nreturn (lm_logits, y)"),
    ("MP209", "scores = torch.sigmoid(self.layer(x))\nreturn torch.topk(scores, 2)"),
    ("MP209", "p = F.softmax(self.layer(x), -1)\nq = p * y\nreturn q.argsort(-1)"),
    ("MP209", "return self.ctc(self.layer(x).log_softmax(-1), y, ids, mask)"),
    ("MP209", "return F.mse_loss(self.layer(x), y, reduction='sum')"),
    ("MP301", "return torch.log(torch.sigmoid(x) + self.eps)"),
    ("MP301", "p = x.sigmoid()\nreturn torch.where(y == 1, p, 1 - p).log()"),
    ("MP305", "s = self.layer(x).relu()\ns /= s.amax(-1, keepdim=True) + 1e-10\nreturn s"),
    ("MP305", "w = F.relu(x)\nreturn w.div_(w.amax(1, keepdim=True).add_(1e-9))"),
    ("MP307", "return self.cosine(x, y)"),
    ("MP310", "w = x @ y\nreturn w * mask - 1e10 * (1 - mask)"),
    ("MP310", "w = x @ y\nreturn w.masked_fill(mask, np.finfo(np.float32).min)"),
    ("MP310", "m = mask[:, None].to(x.dtype)\nreturn (1.0 - m) * -100000.0"),
    ("MP404", "positions = torch.arange(y, dtype=x.dtype)\nreturn x + positions"),
    ("MP404", "return x + ids.to(x.dtype) * y"),
    ("MP504", "return torch.cdist(self.layer(x), y)"),
    ("MP601", "return torch.square(F.relu(self.layer(x)))"),
    ("MP601", "g = [p.grad for p in y]\nreturn torch.stack([torch.norm(v) for v in g]).norm()"),
    ("MP601", "return x.norm(dim=-1) * y.norm(dim=-1)"),
    ("MP602", "return self.layer(x).abs().sum()"),
    ("MP602", "return x.sum(dim=(2, 3)) / y"),
    ("MP603", "t = self.layer(x)\nreturn torch.exp(t[..., 2:4]) * 32"),
    ("MP603", "return torch.log(1 + torch.exp(self.layer(x)))"),
    ("MP603", "return self.scale.exp() * x"),
    ("MP604", "v = self.layer(x).var(dim=2) + 1e-5\nreturn v.sqrt()"),
    ("MP606", "return self.softmax(x @ y)"),
    ("MP606", "return nn.Softmax(dim=-1)(self.layer(x)) @ y"),
    ("MP606", "w = (x @ y).softmax(-1).type_as(x)\nreturn w @ x"),
    ("MP606", "return F.log_softmax(self.layer(x), dim=-1)"),
    ("MP607", "return (boxes[:, 2] - boxes[:, 0]) * (boxes[:, 3] - boxes[:, 1])"),
    ("MP607", "return torch.prod(boxes[:, 2:] - boxes[:, :2], 1)"),
]


@pytest.mark.parametrize(("code", "body"), SUSPECTED, ids=range(len(SUSPECTED)))
def test_a_pattern_alone_is_possible(code: str, body: str) -> None:
    found = judged(code, method(body), ALONE)
    assert found and set(found) == {"possible"}


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("MP209", "logits = self.layer(x)\nreturn F.cross_entropy(logits.float(), ids)"),
        ("MP209", "logits = self.layer(x).float()\nreturn logits, y"),
        ("MP209", "scores = torch.sigmoid(self.layer(x).float())\nreturn torch.topk(scores, 2)"),
        ("MP209", "return F.mse_loss(self.layer(x), y)"),  # a float32 target brings it up
        ("MP301", "return torch.log(torch.sigmoid(x) + self.wide)"),
        ("MP305", "s = x.float().relu()\ns /= s.amax(-1, keepdim=True) + 1e-10\nreturn s"),
        ("MP305", "s = x.relu()\ns /= s.amax(-1, keepdim=True) + 1e-3\nreturn s"),
        ("MP307", "return self.tight(x, y)"),
        ("MP307", "return self.cosine(x.float(), y.float())"),
        ("MP310", "return (1.0 - mask) * -10000.0"),
        ("MP310", "return (x @ y).masked_fill(mask, np.finfo(np.float16).min)"),
        ("MP404", "return torch.arange(64, dtype=x.dtype) * y"),
        ("MP404", "grid = torch.arange(y, dtype=x.dtype)\nreturn x + grid"),
        ("MP504", "return torch.cdist(self.layer(x).float(), y.float())"),
        ("MP601", "return torch.norm(x.grad, dtype=torch.float32)"),
        ("MP601", "return x.norm(dim=-1)"),
        ("MP601", "return torch.square(torch.tanh(x))"),
        ("MP602", "return x[..., :0].sum()"),
        ("MP602", "return x.sum(dtype=torch.float32)"),
        ("MP603", "return torch.exp(x - x.amax(-1, keepdim=True))"),
        ("MP604", "return torch.tanh(x).var(dim=2)"),
        ("MP606", "return torch.softmax(x @ y, -1, dtype=torch.float32)"),
        ("MP606", "return self.softmax((x @ y).float())"),
        ("MP607", "b = torch.sigmoid(boxes)\nreturn torch.prod(b[:, 2:] - b[:, :2], 1)"),
        ("MP607", "return torch.prod(boxes[:, 1:] - boxes[:, :3], 1)"),
    ],
)
def test_what_is_ruled_out_is_not_suspected(code: str, body: str) -> None:
    assert judged(code, method(body), ALONE) == []


@pytest.mark.parametrize(
    ("code", "body"),
    [
        ("MP301", "return torch.log(torch.sigmoid(self.layer(x)) + self.eps)"),
        ("MP305", "s = self.layer(x).relu()\ns /= s.amax(-1, keepdim=True) + 1e-10\nreturn s"),
        ("MP310", "w = x @ y\nreturn w.masked_fill(mask, np.finfo(np.float32).min)"),
        ("MP301", "p = self.layer(x).sigmoid()\nreturn torch.where(y == 1, p, 1 - p).log()"),
    ],
)
def test_what_autocast_leaves_in_half_is_likely(code: str, body: str) -> None:
    assert set(judged(code, method(body), TRAINED)) == {"likely"}


def test_an_entropy_of_one_statement_is_no_logarithm_by_another_name() -> None:
    text = HEAD + textwrap.indent("return entropy(torch.sigmoid(self.layer(x)))\n\n", " " * 8)
    text += "def entropy(p):\n    return -(p * torch.log(p + 1e-12)).sum(-1)\n"
    assert judged("MP301", text, TRAINED) == ["likely"]


def test_a_loss_of_an_extension_is_suspected_inside_a_region_too() -> None:
    text = (
        "import torch, k2\ndef compute_loss(graph, model, x):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n        out = model(x)\n"
        "        return k2.ctc_loss(decoding_graph=3, dense_fsa_vec=k2.DenseFsaVec(out))\n"
    )
    assert judged("MP209", text, ALONE) == ["possible"]
    assert judged("MP209", text.replace("k2.DenseFsaVec(out)", "out.float()"), ALONE) == []


def test_models_in_bfloat16_beside_float16_leave_float16_possible() -> None:
    body = method("return F.normalize(self.layer(x), dim=-1)")
    assert judged("MP307", body, MIXED) == ["possible"]
    only = Project().with_file("run.py", b"import torch\nmodel.to(torch.bfloat16)\n")
    assert judged("MP307", body, only) == []


@pytest.mark.parametrize(
    ("flag", "expected"), [("fp16", ["possible"]), ("verbose", [])], ids=["half", "no-half"]
)
def test_an_optimizer_in_a_script_that_offers_float16(flag: str, expected: list[str]) -> None:
    text = (
        "import torch\ndef main(args, net):\n"
        f"    if args.{flag}:\n        print(1)\n"
        "    utils.save_on_master(net)\n"
        "    return torch.optim.AdamW(groups(net), lr=args.lr)\n"
    )
    assert judged("MP312", text, ALONE) == expected
    kept = text.replace("groups(net)", "master_params(net)")
    assert judged("MP312", kept, ALONE) == []


def test_a_criterion_in_a_file_that_offers_half() -> None:
    text = (
        "import torch\nclass Agent:\n    def build(self):\n"
        "        self.fp16 = True\n        return torch.nn.CrossEntropyLoss(reduction='none')\n"
    )
    assert judged("MP209", text, ALONE) == ["possible"]
    assert judged("MP209", text.replace("fp16", "ready"), ALONE) == []
