"""What the analysis says along the control flow, of constants, attributes and creations."""

from __future__ import annotations

import ast
import contextlib

import pytest
import torch

from tests import analysis

# dtypes along the control flow

FLOWS = {
    "x = x.half()\nreturn x": "float16",
    "x = x.float()\nx += torch.ones(3, dtype=torch.float64)\nreturn x": "float32",
    "x = x.half()\nx *= y.float()\nreturn x": "float16",
    "if x.dtype == torch.float16:\n    return x": "float16",
    "if x.dtype != torch.bfloat16:\n    pass\nelse:\n    return x": "bfloat16",
    "if x.dtype in (torch.float16, torch.bfloat16):\n    x = x.float()\nreturn x": "float32",
    "if not x.dtype == torch.float32:\n    x = x.float()\nreturn x": "float32",
    "assert x.dtype is torch.float64\nreturn x": "float64",
    "if y.sum() > 0:\n    x = x.half()\nelse:\n    x = y.half()\nreturn x": "float16",
    "try:\n    x = x.half()\nfinally:\n    y = x.float()\nreturn y": "float32",
    "match y:\n    case None:\n        raise ValueError\nx = x.half()\nreturn x": "float16",
    "for _ in y:\n    x = x.float()\nelse:\n    x = x.half()\nreturn x": "float16",
    "x, y = x.half(), y.float()\nreturn x": "float16",
    "(x, y), z = (x.half(), y.float()), 3\nreturn y": "float32",
    "pair = x.half(), y.float()\nreturn pair[1]": "float32",
    "a, b = map(lambda t: t.half(), (x, y))\nreturn b": "float16",
    "out = {k: v.float() for k, v in x.items()}\nreturn out['a']": "float32",
    "values, indices = x.half().max(dim=1)\nreturn indices": "int",
    "values, indices = x.half().topk(2)\nreturn values": "float16",
    "dtype = torch.bfloat16\nreturn x.to(dtype)": "bfloat16",
    "dtype = y.half().dtype\nreturn torch.zeros(3, dtype=dtype)": "float16",
    "return x.to(device=y.device, dtype=torch.float16)": "float16",
    "return torch.where(x > 0, x.half(), 0.0)": "float16",
    "rows = [row.half() for row in x]\nreturn torch.stack(rows)": "float16",
    "def inner():\n    return x.half()\nreturn x.float()": "float32",
    # containers
    "out = {'a': x.half(), 'b': y.float()}\nreturn out['b']": "float32",
    "out = {}\nout['a'] = x.half()\nreturn out['a']": "float16",
    "out = dict(a=x.half())\nreturn out.get('a')": "float16",
    "out = {'a': x.float()}\nif y:\n    out['a'] = x.double().float()\nreturn out['a']": "float32",
    "a, b = (t.float() for t in (x, y))\nreturn b": "float32",
    "a, b = [t * 2 for t in (x.half(), y.float())]\nreturn b": "float32",
    "for i, t in enumerate([x.half(), y.half()]):\n    pass\nreturn t": "float16",
    "for t, u in zip([x.half()], [y.float()]):\n    pass\nreturn u": "float32",
    "for i in range(3):\n    pass\nreturn x.half() * (0.5 * i)": "float16",
    "for k, t in {'a': x.half()}.items():\n    pass\nreturn t": "float16",
    "rows = [x.half()] + [y.half()]\nreturn torch.cat(rows)": "float16",
    "rows = [x.half()] * 3\nreturn torch.stack(rows)": "float16",
    "parts = x.half().chunk(3)\nreturn parts[1]": "float16",
    "q, k, v = x.half().split(4, dim=-1)\nreturn k": "float16",
    "b, *rest = x.shape\nreturn y.half() * rest[0]": "float16",
    # layers held in containers
    "net = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid())\n"
    "with torch.autocast('cuda'):\n    return net(x)": "float16",
    "net = nn.Sequential(nn.Sigmoid(), nn.Softmax(-1))\n"
    "with torch.autocast('cuda'):\n    return net(x)": "float32",
    "layers = nn.ModuleList([nn.Softmax(-1), nn.Softmax(-1)])\n"
    "with torch.autocast('cuda'):\n    for layer in layers:\n        x = layer(x.half())\n"
    "return x": "~float32|x",
    # dtypes as values
    "return x.to(torch.promote_types(x.dtype, torch.float32))": "float32",
    "dtype = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype\n"
    "return x.to(dtype)": "float32",
    "return torch.zeros(3, dtype=torch.get_default_dtype())": "float32",
    "x = x.float() if x.dtype in {torch.float16, torch.bfloat16} else x\nreturn x": "float32",
    "half = x.dtype in (torch.float16, torch.bfloat16)\nif half:\n    x = x.float()\n"
    "return x": "float32",
    "dtype = x.dtype\nif dtype == torch.float16 or dtype == torch.bfloat16:\n    x = x.float()\n"
    "return x": "float32",
    "if x.dtype == torch.float16:\n    x = x.float()\nelif x.dtype == torch.bfloat16:\n"
    "    x = x.float()\nreturn x": "float32",
    "if x.dtype == torch.float16:\n    return y\nif x.dtype == torch.bfloat16:\n    return y\n"
    "return x": "float32",
    "if x.dtype not in (torch.float16, torch.bfloat16):\n    raise ValueError\n"
    "x = x.float()\nreturn x": "float32",
    # behind a test that both arms outlive, as before
    "if x.dtype in (torch.float16, torch.bfloat16):\n    y = y.to(x.dtype)\nreturn x": "~x",
    "if x.w.dtype in (torch.float16, torch.bfloat16):\n    y = 1\nreturn x.w": "~x.w",
    "if x.dtype == torch.float16:\n    y = 1\nelif x.dtype == torch.bfloat16:\n    y = 2\n"
    "return x": "~x",
    "if x.w.dtype == torch.float16:\n    x = y.half()\nelse:\n    x = x.half()\n"
    "return x": "float16",
    # in place, the dtype stays
    "x = x.half()\nx.add_(torch.ones(3))\nreturn x": "float16",
    "x = x.half()\ny = x.mul_(torch.ones(3))\nreturn y": "float16",
    "x = x.half()\nx **= 2\nreturn x": "float16",
    "with torch.autocast('cuda'):\n    x = x.half()\n    x **= 2\nreturn x": "float16",
    "out = torch.zeros(3)\ntorch.exp(x.half(), out=out)\nreturn out": "float32",
    "with torch.autocast('cuda'):\n    y = 1 / x.half()\nreturn y": "float32",
}


@pytest.mark.parametrize("body", FLOWS)
def test_dtype_along_the_control_flow(body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    assert analysis.returned(f"def f(x, y):\n{lines}").dtype == FLOWS[body]


OPEN = [
    "return x",
    "if y:\n    x = x.float()\nreturn x",
    "for _ in y:\n    x = x.float()\nreturn x",
    "while y:\n    x = x.float()\nreturn x",
    "try:\n    x = x.float()\nexcept ValueError:\n    pass\nreturn x",
    "match y:\n    case 1:\n        x = x.float()\nreturn x",
    "x = x.float() if y else x\nreturn x",
    "torch = y\nreturn torch.zeros(3)",
    "return helper(x.float())",
    "if x.dtype in (torch.float16, y.dtype):\n    return x",
    "for _ in y:\n    if y.sum() > 0:\n        x = x.float()\n        break\nreturn x",
    "half = x.dtype == torch.float16\nx = y\nif not half:\n    return x",
    "x += torch.ones(3)\nreturn x",
    "dtype = x.dtype\nx = y\nif dtype == torch.float32:\n    return x",
    "if x.is_floating_point():\n    return x",
    "for layer in self.layers:\n    x = layer(x.float())\nreturn x",
    "x = x.float() if x.dtype == torch.float16 else x\nreturn x",
    "return x if x.dtype == torch.float16 else y.half().float()",
]


@pytest.mark.parametrize("body", OPEN)
def test_what_one_path_casts_stays_open(body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    value = analysis.returned(f"def f(x, y):\n{lines}")
    assert value.may_be_half or value.dtype == ""


HOLDER = """
EPS = 1e-8
TWICE = 2 * EPS

class Loss(nn.Module):
    gamma = 2.0

    def __init__(self, eps=1e-6, weight=None):
        super().__init__()
        self.eps = eps
        self.weight = weight
        self.count = 3
        self.scale = nn.Parameter(torch.ones(3))
        self.grid = torch.linspace(0, 1, 5)
        self.register_buffer("anchors", torch.zeros(4))
        self.project = nn.Linear(3, 3)

    def forward(self, x, tau=0.07):
        return {expression}


class Child(Loss):
    pass
"""


@pytest.mark.parametrize(
    ("expression", "const"),
    [
        ("EPS", 1e-8),
        ("TWICE", 2e-8),
        ("EPS / 2", 5e-9),
        ("-EPS", -1e-8),
        ("EPS ** 0.5", 1e-4),
        ("self.eps", 1e-6),
        ("self.gamma", 2.0),
        ("self.count", 3),
        ("tau", 0.07),
        ("float(EPS)", 1e-8),
        ("self.weight", None),
        ("self.missing", None),
    ],
)
def test_constants(expression: str, const: float | None) -> None:
    made = analysis.module(HOLDER.format(expression=expression))
    forward = analysis.function(made, "Loss.forward")
    (answer,) = (n.value for n in ast.walk(forward.node) if isinstance(n, ast.Return))
    assert answer is not None
    assert made.analysis(forward).values[id(answer)].const == const


@pytest.mark.parametrize(
    ("name", "dtype", "tags"),
    [
        ("anchors", "~buffer.anchors", {"buffer", "float"}),
        ("scale", "~parameter.scale", {"parameter", "float"}),
        ("grid", "float32", {"plain"}),
        ("weight", "~self.weight", set()),
    ],
)
def test_attributes(name: str, dtype: str, tags: set[str]) -> None:
    made = analysis.module(HOLDER.format(expression="x"))
    for cls in ("Loss", "Child"):
        value = made.attribute(made.index.classes[cls], name)
        assert value.dtype == dtype and value.tags == tags


def test_module_attribute_is_called_as_its_kind() -> None:
    text = "with torch.autocast('cuda'):\n            y = self.project(x)\n        return y"
    made = analysis.module(HOLDER.format(expression="x").replace("return x", text))
    run = made.analysis(analysis.function(made, "Loss.forward"))
    assert run.values[id(analysis.call_of(made, "project"))].dtype == "float16"


# tensors created without a dtype


@pytest.mark.parametrize(
    ("expression", "promotes"),
    [
        ("torch.ones(3) * x", True),
        ("x + torch.zeros(3)", True),
        ("x.mul(torch.rand(3))", True),
        ("torch.cat([x, torch.zeros(3)])", True),
        ("torch.stack((torch.zeros(3), x))", True),
        ("torch.where(x > 0, x, torch.zeros(3))", True),
        ("torch.tensor([1.0, 2.0]) * x", True),
        ("torch.arange(0.0, 4.0) * x", True),
        ("torch.linspace(0, 1, 3).view(-1, 1) + x", True),
        ("torch.ones(3).sqrt() * x", True),
        ("torch.ones(3, dtype=x.dtype) * x", False),
        ("torch.ones(3, dtype=torch.float32) * x", False),
        ("torch.ones(3).to(x.dtype) * x", False),
        ("torch.ones_like(x) * x", False),
        ("x.new_ones(3) * x", False),
        ("torch.tensor(1.0) * x", False),
        ("torch.tensor([1, 2]) * x", False),
        ("torch.arange(4) * x", False),
        ("torch.full((3,), 1) * x", False),
        ("torch.ones(3) * torch.zeros(3)", False),
        ("torch.ones(3) * 2.0", False),
        ("torch.ones(3) @ x", False),
    ],
)
def test_created_tensors_that_promote(expression: str, promotes: bool) -> None:
    x = torch.ones(3, dtype=torch.float16)
    names = {"torch": torch, "x": x}
    with contextlib.suppress(RuntimeError):  # shapes and products that do not fit
        widened = eval(expression, names).dtype is torch.float32
        assert widened == (promotes or "x" not in expression or "float32" in expression)
    made = analysis.module(f"def f(x):\n    return {expression}\n")
    events = made.analysis(made.index.functions[0]).events
    assert [ast.unparse(e.other) for e in events] == (["x"] if promotes else [])


def test_a_test_of_autocast_decides_the_region() -> None:
    made = analysis.module(
        "def f(x):\n"
        "    if torch.is_autocast_enabled():\n"
        "        return torch.exp(x)\n"
        "    return torch.log(x)\n"
    )
    run = made.analysis(made.index.functions[0])
    states = {n: run.regions[id(analysis.call_of(made, n))].state for n in ("exp", "log")}
    assert states == {"exp": "on", "log": "off"}
