"""Findings as small modules: what a slice takes along, what becomes an input, and why not."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from precision_lint.harness import slicing
from tests.witnessing import REGION, plan, plans, write

pytest.importorskip("torch")


def original(directory: Path, text: str, *select: str) -> str:
    """The slice of the only finding, without its imports."""
    text = plan(directory, text, *(select or ("MP301",))).variants[0].original
    return "\n".join(row for row in text.splitlines() if row and "import" not in row)


def inputs(directory: Path, text: str, *select: str) -> dict[str, dict[str, Any]]:
    """Hypotheses of the only finding, by name."""
    found = plan(directory, text, *(select or ("MP301",))).variants[0].inputs
    return {one["name"]: one for one in found}


def test_definitions_are_taken_and_the_rest_is_left(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(x, y, unused):\n"
        "    other = y * 2\n"
        "    p = torch.sigmoid(x)\n"
        "    print(other)\n"
        "    return -torch.log(p + 1e-8).mean()\n"
    )
    assert original(tmp_path, text) == (
        "def isolated(x):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        p = torch.sigmoid(x)\n"
        "        return -torch.log(p + 1e-08).mean()"
    )


def test_the_fixed_text_is_cut_at_the_same_place(tmp_path: Path) -> None:
    text = REGION + (
        "def pool(masks, features):\n"
        "    pooled = torch.einsum('bnhw,bchw->bnc', masks.sigmoid(), features)\n"
        "    return pooled\n"
    )
    [variant, *_] = plan(tmp_path, text, "MP201").variants
    [fixed] = variant.fixed
    assert "enabled=False" in fixed and "features.float()" in fixed
    assert fixed.count("return") == 1 and "features.float()" not in variant.original


def test_helpers_constants_and_attributes_come_along(tmp_path: Path) -> None:
    text = (
        "EPS = 1e-8\n"
        "SCALE = 2.0 * EPS\n"
        "def squash(x):\n"
        "    return x.sigmoid() * (1 - SCALE)\n"
        "class Loss(nn.Module):\n"
        "    def __init__(self, weight=0.5):\n"
        "        super().__init__()\n"
        "        self.weight = weight\n"
        "    " + REGION + "    def forward(self, x):\n"
        "        return self.weight * torch.log(squash(x) + EPS)\n"
    )
    assert original(tmp_path, text) == (
        "EPS = 1e-08\n"
        "SCALE = 2.0 * EPS\n"
        "def squash(x):\n"
        "    return x.sigmoid() * (1 - SCALE)\n"
        "def isolated(x):\n"
        "    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        return 0.5 * torch.log(squash(x) + EPS)"
    )


def test_what_cannot_run_becomes_an_input(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(model, batch, outputs):\n"
        "    features, scores = model(batch['image'])\n"
        "    p = torch.sigmoid(outputs.logits + scores) * batch['mask']\n"
        "    return torch.log(p + 1e-8)\n"
    )
    assert set(inputs(tmp_path, text)) == {"outputs_logits", "scores", "batch_mask"}


def test_the_observed_part_shrinks_to_what_runs(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(tracker, x):\n    tracker.update(torch.log(x.sigmoid() + 1e-8).mean())\n"
    )
    assert original(tmp_path, text).endswith("return torch.log(x.sigmoid() + 1e-08).mean()")


def test_loops_and_branches_are_entered_once(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(x, flag, scale=3.0):\n"
        "    if flag:\n"
        "        x = x * scale\n"
        "    total = 0\n"
        "    for level in range(2):\n"
        "        p = torch.sigmoid(x[level])\n"
        "        total = total - torch.log(p + 1e-8).mean()\n"
        "    return total\n"
    )
    found = plan(tmp_path, text, "MP301")
    first, second, third, whole = (variant.original for variant in found.variants)
    assert "level = 0" in first and "scale" not in first
    assert "x = x * scale" in second and "scale = 3.0" in second
    assert "return torch.log(p + 1e-08)\n" in third, "the flagged expression alone"
    assert "for" not in first + second and "if" not in first + second
    assert "for level in range(2):" in whole and "return total" in whole, "all turns"
    assert "def isolated(x)" in whole, "what one turn makes is no input"


def test_an_input_is_known_where_it_enters(tmp_path: Path) -> None:
    """The first sum is float32; what the function gets is not."""
    text = (
        "def shift(x):\n"
        "    x = x.half()\n"
        "    x = x + torch.linspace(0.0, 1.0, steps=x.shape[1], device=x.device)\n"
        "    decay = torch.arange(0.0, float(x.shape[1]), device=x.device)\n"
        "    return (x * decay) @ torch.eye(3, dtype=torch.float16)\n"
    )
    for one in plans(write(tmp_path, text), "MP401"):
        for variant in one.variants:
            assert [(each["name"], each["wide"]) for each in variant.inputs] == [("x", False)]


LATER = {
    "optimizer": (
        "def steps(x):\n"
        "    net = nn.Linear(4, 4).train().half()\n"
        "    return torch.optim.RMSprop(net.parameters(), lr=1e-4)\n"
    ),
    "scaler": "def scaler():\n    return torch.amp.GradScaler(1024.0)\n",
}


@pytest.mark.parametrize("name", LATER)
def test_what_acts_later_is_told_apart(name: str, tmp_path: Path) -> None:
    [found] = plans(write(tmp_path, LATER[name]), "MP312", "MP210")
    assert "later steps" in found.later


def test_an_expression_shows_its_hazard_now(tmp_path: Path) -> None:
    text = REGION + "def loss(x):\n    return torch.log(x.sigmoid() + 1e-8)\n"
    assert plan(tmp_path, text, "MP301").later == ""


def test_a_guard_constrains_the_shapes(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(x):\n    assert x.shape[-1] == 5\n    return torch.log(x.sigmoid() + 1e-8)\n"
    )
    assert "assert x.shape[-1] == 5" in original(tmp_path, text)
    assert 5 in plan(tmp_path, text, "MP301").variants[0].sizes


def test_a_layer_that_is_flagged_is_built(tmp_path: Path) -> None:
    text = (
        "class Block(nn.Module):\n"
        "    def __init__(self, dim=6):\n"
        "        super().__init__()\n"
        "        self.proj = nn.Linear(dim, dim)\n"
        "    def forward(self, x):\n"
        "        table = torch.arange(6, dtype=torch.float32, device=x.device)\n"
        "        return x + self.proj(table)\n"
        "def serve(x):\n"
        "    return Block().half()(x.half())\n"
    )
    found = inputs(tmp_path, text, "MP502")
    assert found["self_proj"]["layer"] == "nn.Linear(6, 6)"
    assert found["self_proj"]["kinds"] == ["layer"]


def test_hypotheses_follow_use_and_documentation(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(points, weights, labels, heads: int, eps_scale):\n"
        '    """points: (B, N, 3) in metres."""\n'
        "    b, n, c = weights.shape\n"
        "    w = weights.view(b, heads, -1)\n"
        "    picked = points.sigmoid().gather(-1, labels)\n"
        "    return torch.log(picked + 1e-8).sum() * w[:, :, 0].sum()\n"
    )
    found = inputs(tmp_path, text)
    assert found["points"]["shape"] == ["B", "N", 3]
    assert found["weights"]["ranks"][0] == 3
    assert found["labels"]["kinds"][0] == "index"
    assert found["heads"]["kinds"] == ["int"]


def test_bounds_come_from_the_analysis(tmp_path: Path) -> None:
    text = REGION + (
        "def loss(model, x):\n    p = model(x).clamp(0, 1)\n    return torch.log(p + 1e-8)\n"
    )
    [found] = inputs(tmp_path, text).values()
    assert (found["lo"], found["hi"]) == (float("-inf"), float("inf")), "the clamp is in the slice"
    assert "clamp(0, 1)" in original(tmp_path, text)


def test_einsum_equations_give_ranks(tmp_path: Path) -> None:
    text = REGION + ("def pool(a, b):\n    return torch.einsum('bnhw,bchw->bnc', a, b)\n")
    found = inputs(tmp_path, text, "MP201")
    assert found["a"]["shape"] == list("bnhw") and found["b"]["shape"] == list("bchw")


def test_every_fixture_is_planned(tmp_path: Path) -> None:
    """Whatever code there is: a plan or a reason, and slices that parse."""
    from precision_lint.harness import expectations

    modules = [one.path for one in expectations.fixtures(expectations.home())]
    for path in modules[::7]:
        copied = tmp_path / f"{path.parent.name}_{path.name}"
        copied.write_bytes(path.read_bytes())
        for found in plans(copied):
            assert found.reason or found.variants
            for variant in found.variants:
                for text in (variant.original, *variant.fixed):
                    ast.parse(text)


def test_an_attribute_that_is_stored_twice(tmp_path: Path) -> None:
    """What one store gave up is asked for anew by the next."""
    text = """\
import torch
from torch import nn

class Masker(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.filler = nn.Parameter(torch.empty(width))

    def forward(self, frames, hidden):
        frames[hidden.long() > 0] = self.filler
        frames[:, 0] = self.filler
        return torch.log(frames.half().sigmoid() + 1e-8)
"""
    found = plan(tmp_path, text, "MP301")
    assert found.variants
    assert "torch.log" in found.variants[0].original


def test_conditions_follow_the_region(tmp_path: Path) -> None:
    body = "def loss(x):\n    return torch.log(x.sigmoid() + 1e-8)\n"
    found = plan(tmp_path, REGION + body, "MP301").conditions
    assert {(one["dtype"], one["region"], one["amp"]) for one in found} == {
        ("float16", True, True),
        ("float16", False, False),
    }
    cpu = REGION.replace("cuda", "cpu")
    assert {one["policy"] for one in plan(tmp_path, cpu + body, "MP301").conditions} == {"cpu"}
    half = body.replace("x.sigmoid()", "x.half().sigmoid()")
    assert plan(tmp_path, half, "MP301").conditions[0] == {
        "policy": "cuda",
        "dtype": "float16",
        "inputs": "low",
        "region": False,
        "amp": True,
    }


def test_claims_are_what_proofs_declare(tmp_path: Path) -> None:
    path = write(tmp_path, REGION + "def loss(x):\n    return torch.log(x.sigmoid() + 1e-8)\n")
    [found] = plans(path, "MP301")
    assert "nonfinite" in found.claims and "gradient nonfinite" in found.claims
    assert "raises" not in found.claims


def test_onward_is_what_a_function_makes_of_a_place() -> None:
    tree = ast.parse(
        "def loss(x):\n"
        "    p = x.sigmoid().clamp(1e-6)\n"
        "    if x.ndim:\n"
        "        y = p.log()\n"
        "    return y.mean()\n"
        "def last(x):\n"
        "    return x\n"
    )
    guard = next(node for node in ast.walk(tree) if isinstance(node, ast.Call))
    place = slicing.locate(tree, guard)
    assert slicing.onward(tree, place).key == "Return"
    one, _ = slicing.cut(tree, slicing.onward(tree, place), branches=True)
    assert "clamp(1e-06)" in one.text and "return y.mean()" in one.text
    returned = tree.body[1].body[0].value  # type: ignore[attr-defined]
    with pytest.raises(slicing.CannotIsolate, match="nothing is computed from it"):
        slicing.onward(tree, slicing.locate(tree, returned))
