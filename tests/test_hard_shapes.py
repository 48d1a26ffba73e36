"""Shapes of code that once misled the analysis or made a fix impossible."""

from __future__ import annotations

import pytest

from precision_lint import dispatch, registry, runner
from precision_lint.api import Confidence
from precision_lint.project.amp import Project
from precision_lint.source import Source

RULES = list(registry.rules().values())


def codes(text: str) -> list[str]:
    found = dispatch.lint(Source("a.py", "import torch\n" + text), RULES, Project())
    assert not any(d.internal for d in found), [d.message for d in found]
    return [d.code for d in found if d.confidence is not Confidence.POSSIBLE]


LOOP = """
def train(model, optimizer, scaler, loader, last):
    for i, x in enumerate(loader):
{body}
"""


def loop(*lines: str) -> str:
    return LOOP.format(body="\n".join(f"        {line}" for line in lines))


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(
            (
                "scaler.scale(model(x)).backward()",
                "if (i + 1) % 2 == 0 or last:",
                "    scaler.unscale_(optimizer)",
                "if (i + 1) % 2 == 0 or last:",
                "    scaler.step(optimizer); scaler.update()",
            ),
            id="one-condition-of-two-parts",
        ),
        pytest.param(
            (
                "done = False",
                "scaler.scale(model(x)).backward()",
                "if last:",
                "    scaler.unscale_(optimizer)",
                "    done = True",
                "if not done:",
                "    scaler.unscale_(optimizer)",
                "scaler.step(optimizer)",
                "scaler.update()",
            ),
            id="a-flag-that-remembers",
        ),
        pytest.param(
            (
                "if i:",
                "    print(model.weight.grad.norm())",
                "optimizer.zero_grad()",
                "scaler.scale(model(x)).backward()",
                "scaler.step(optimizer)",
                "scaler.update()",
            ),
            id="a-read-before-the-backward",
        ),
    ],
)
def test_sound_protocols_are_silent(lines: tuple[str, ...]) -> None:
    assert codes(loop(*lines)) == []


def test_the_protocol_still_sees_what_the_flag_does_not_cover() -> None:
    text = loop(
        "scaler.scale(model(x)).backward()",
        "if last:",
        "    scaler.unscale_(optimizer)",
        "scaler.unscale_(optimizer)",
        "scaler.step(optimizer)",
        "scaler.update()",
    )
    assert codes(text) == ["MP103"]


def test_bfloat16_regions_are_no_float16_evidence() -> None:
    text = """
def loss(p):
    return -torch.log(p.sigmoid() + 1e-8).mean()


def step(model, x):
    with torch.autocast("cuda", dtype=torch.{dtype}):
        return loss(model(x))
"""
    assert codes(text.format(dtype="bfloat16")) == []
    assert codes(text.format(dtype="float16")) == ["MP301"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(a, c):\n    a = a.half()\n    if c:\n        return 1\n"
        "    elif torch.cdist(a, a).max() > 1:\n        return 2\n",
        "def f(a, b):\n    a = a.half()\n    return [torch.cdist(a, *i) for i in b]\n",
        "def f(a):\n    a = a.half()\n    return torch.cdist(a, "
        + "(" * 150 + "a" + ")" * 150 + ")\n",
        "def f(*xs):\n    with torch.autocast('cuda'):\n        return torch.einsum(*xs)\n",
    ],
    ids=["elif", "starred", "deep", "no-operands"],
)  # fmt: skip
def test_what_cannot_be_cut_out_is_reported_without_a_crash(text: str) -> None:
    codes(text)


def test_many_conditions_do_not_multiply_paths_for_ever() -> None:
    lines = ["scaler.scale(model(x)).backward()"]
    for n in range(40):
        lines += [f"if last[{n}]:", "    print(model.weight.grad.norm())"]
    lines += ["scaler.step(optimizer)", "scaler.update()"]
    assert codes(loop(*lines)) == ["MP101"]


def test_a_product_that_depends_on_its_statement_is_not_moved() -> None:
    text = (
        "def f(g, b, K):\n    with torch.autocast('cuda', dtype=torch.float16):\n"
        "        y = (n := g()) + n @ K\n        return y\n"
    )
    found = dispatch.lint(Source("a.py", "import torch\n" + text), RULES, Project())
    assert [d.code for d in found] == ["MP501"]
    assert found[0].fix is None


def test_a_long_chain_of_elif_is_followed() -> None:
    lines = ["def f(x, k):", "    if k == 0:", "        y = x"]
    for n in range(1, 1500):
        lines += [f"    elif k == {n}:", f"        y = x.half() * {n}"]
    lines += ["    else:", "        y = x.half()", "    return (y.sigmoid().half() + 1e-8).log()"]
    with runner.deep_recursion():
        assert codes("\n".join(lines)) == ["MP301"]


@pytest.mark.parametrize(
    "made",
    ["Net()", "Net().cuda()", "Net().to(device).eval()", "torch.compile(Net())",
     "torch.nn.DataParallel(Net()).cuda()"],
)  # fmt: skip
def test_a_model_is_its_class_whatever_it_is_wrapped_in(made: str) -> None:
    text = f"""
class Net(torch.nn.Module):
    def forward(self, x, y):
        return torch.nn.functional.binary_cross_entropy(x.sigmoid(), y)

def train(loader, device):
    net = {made}
    for x, y in loader:
        with torch.autocast("cuda", dtype=torch.float16):
            net(x, y).backward
"""
    assert codes(text) == ["MP206"]
