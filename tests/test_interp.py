"""What the analysis says of dtypes, compared with what torch computes when the code runs.

Autocast for CUDA runs on CPU tensors, with CUDA's lists (``harness.policy``).
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from precision_lint.harness.policy import cuda_policy
from precision_lint.semantics.values import Value
from tests import analysis

# expressions of two 4 x 4 tensors, for every pair of dtypes

MIXED = """
a + b; a - b; a * b; a / b; a ** 2; a ** b; 2 ** a; 1 - a; a // b; a % b; -a; abs(a); a @ b; a > b
~(a > b); (a > b) * a; (a > b).float() * a; a.numel() * a
a.sum(); a.sum(1); a.mean(); a.mean(1); a.max(); a.max(1).values; a.max(1)[0]; a.amax(1); a.min()
a.prod(); a.norm(); a.norm(dim=1); a.std(); a.var(); a.cumsum(0); a.cumprod(0); a.logsumexp(1)
a.median(); a.argmax(); a.sum(dtype=torch.float32); a.cumsum(0, dtype=torch.float32)
a.exp(); a.log(); a.log2(); a.log10(); a.log1p(); a.expm1(); a.sqrt(); a.rsqrt(); a.square()
a.pow(2); a.reciprocal(); a.sigmoid(); a.tanh(); a.relu(); a.abs(); a.neg(); a.sin(); a.cos()
a.erf(); a.clamp(min=0.1); a.clamp(0.1, 0.9); a.clip(0, 1); a.softmax(-1); a.log_softmax(-1)
a.round(); a.floor(); a.ceil(); a.sign(); a.nan_to_num(); torch.exp(a); torch.log(a); torch.abs(a)
torch.sigmoid(a); torch.softmax(a, -1); torch.sum(a); torch.clamp(a, min=0.1); torch.rsqrt(a)
torch.matmul(a, b); torch.mm(a, b); torch.bmm(a[None], b[None]); torch.mv(a, b[0]); torch.erf(a)
torch.dot(a[0], b[0]); torch.cdist(a, b); torch.addmm(a, a, b)
torch.baddbmm(a[None], a[None], b[None])
torch.cat([a, b]); torch.stack([a, b]); torch.where(a > 0, a, b); torch.maximum(a, b)
torch.minimum(a, b); torch.atan2(a, b); torch.lerp(a, b, 0.5); torch.hypot(a, b); torch.pow(a, 2)
torch.ones_like(a); torch.zeros_like(a, dtype=torch.float32); torch.full_like(a, 2.0)
torch.rand_like(a); torch.mul(a, 0.5); torch.true_divide(a, b); torch.nansum(a); torch.std(a)
F.softmax(a, dim=-1); F.log_softmax(a, dim=-1); F.softplus(a); F.logsigmoid(a); F.relu(a)
F.gelu(a); F.silu(a); F.elu(a); F.leaky_relu(a); F.normalize(a, dim=-1); F.linear(a, b); F.mish(a)
F.layer_norm(a, (4,)); F.group_norm(a[None], 2); F.rms_norm(a, (4,)); F.dropout(a, 0.1)
F.huber_loss(a, b); F.conv2d(a[None, None], b[None, None]); F.max_pool2d(a[None], 2)
F.avg_pool2d(a[None], 2); F.adaptive_avg_pool2d(a[None], 1); F.pad(a, (1, 1)); F.hardsigmoid(a)
F.interpolate(a[None, None], scale_factor=2.0, mode="bilinear"); F.hardtanh(a)
F.scaled_dot_product_attention(a[None], b[None], b[None]); F.one_hot(a.argmax(1), 4)
F.one_hot(a.argmax(1), 4).float() @ b; F.nll_loss(a, a.argmax(1)); F.prelu(a, b[0, :1])
F.batch_norm(a, None, None, training=True); F.softmin(a, dim=1); F.gumbel_softmax(a, dim=-1)
a.float(); a.half(); a.bfloat16(); a.double(); a.to(torch.float16); a.to(b.dtype); a.to(b)
a.type_as(b); a.long(); a.int(); a.bool(); a.to(torch.float64) * b; a.float() * b; a.clone()
a.detach(); a.t(); a.T; a.view(-1); a.reshape(2, 8); a.transpose(0, 1); a.flatten(); a[0]; a[0, 0]
a.mean() * b; a.sum() * b; b * a.max(); b / a.sum(); a.masked_fill(a > 0, 0.0); a.topk(2)[0]
a.gather(1, a.argmax(1, keepdim=True)); a.sort()[0]; a.chunk(2)[0]; a.unbind(0)[0]; a.tril()
a.expand(2, 4, 4); a.unsqueeze(0); a.repeat(2, 1); a.new_zeros(3); a.new_ones(4) * b; a.diag()
a.where(a > 0, b); a.add(b); a.mul(b); a.div(b); a.matmul(b); a.index_select(0, a.argmax(1))
a.masked_select(a > 0); a.nonzero(); a.any(); a.isnan(); torch.isfinite(a); torch.triu(a)
torch.logical_and(a > 0, b > 0); torch.count_nonzero(a); torch.bucketize(a, a[0])
torch.flip(a, [0]); torch.searchsorted(a[0], b[0]); torch.broadcast_to(a, (2, 4, 4))
torch.chunk(a, 2)[0]
torch.zeros(4); torch.ones(4) * a; torch.zeros(1) + a; torch.tensor(1.0) * a; torch.tensor(2)
torch.tensor([1.0]) * a; torch.tensor([1, 2]); torch.tensor([1.5]); torch.arange(4)
torch.arange(4.0); torch.arange(0, 1, 0.25); torch.arange(4) * a; torch.arange(4) / 4
torch.eye(4) @ a; torch.eye(4, dtype=a.dtype) @ a; torch.full((4,), 1.0); torch.full((4,), 1)
torch.linspace(0, 1, 4) * a; torch.rand(4); torch.randn(4, dtype=a.dtype); torch.hann_window(4) * a
torch.randint(0, 4, (4,)); torch.zeros(4, dtype=torch.long); torch.full((4,), 1e-6) + a
torch.zeros(4, dtype=torch.float64) + a; torch.as_tensor([1.0]); torch.empty(4, dtype=torch.bool)
torch.linalg.norm(a); torch.linalg.inv(a.float()); torch.linalg.vector_norm(a); torch.diff(a)
torch.special.expit(a); torch.special.log1p(a); torch.quantile(a.float(), 0.5); torch.roll(a, 1)
"""
# operations whose second operand's dtype the analysis does not follow

SAME = """
torch.addcmul(a, a, b); torch.addcdiv(a, a, b); torch.kron(a, b); torch.logaddexp(a, b)
F.cosine_similarity(a, b); F.mse_loss(a, b); F.l1_loss(a, b); F.smooth_l1_loss(a, b)
F.binary_cross_entropy_with_logits(a, b); F.kl_div(a, b, reduction="sum"); F.pairwise_distance(a, b)
F.triplet_margin_loss(a, b, b)
"""
NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.int64: "int",
    torch.int32: "int",
    torch.bool: "bool",
}
REGIONS = {
    "off": "torch.autocast('cuda', enabled=False)",
    "cuda": "torch.autocast('cuda', dtype=torch.float16)",
    "cpu": "torch.autocast('cpu', dtype=torch.bfloat16)",
}
LOW = {"off": "float16", "cuda": "float16", "cpu": "bfloat16"}


def expressions(table: str) -> list[str]:
    parts = (part.strip() for line in table.splitlines() for part in line.split(";"))
    return [part for part in parts if part]


@contextlib.contextmanager
def region(name: str) -> Iterator[None]:
    """The region, with CUDA's lists where it is CUDA's."""
    if name == "off":
        yield
    elif name == "cpu":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield
    else:
        with cuda_policy(), torch.autocast("cpu", dtype=torch.float16):
            yield


def executed(name: str, table: list[str], first: str, second: str) -> dict[str, str]:
    """Result dtypes; expressions that raise in these dtypes are left out."""
    torch.manual_seed(0)
    a = (torch.rand(4, 4) * 0.5 + 0.2 + torch.eye(4)).to(getattr(torch, first))
    b = (torch.rand(4, 4) * 0.5 + 0.2).to(getattr(torch, second))
    found = {}
    with region(name):
        for expression in table:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                result = eval(expression, {"torch": torch, "F": F, "a": a, "b": b})
                found[expression] = NAMES[result.dtype]
    return found


def analysed(table: list[str], *heads: str, inside: str | None = None) -> dict[str, Value]:
    """Abstract values of the same expressions, as statements of one function."""
    lines = [f"r{i} = {expression}" for i, expression in enumerate(table)]
    if inside is not None:
        lines = [f"with {inside}:", *(f"    {line}" for line in lines)]
    made = analysis.module("def f(a, b):\n" + "".join(f"    {x}\n" for x in [*heads, *lines]))
    run = made.analysis(made.index.functions[0])
    assigned = [n.value for n in ast.walk(made.index.tree) if isinstance(n, ast.Assign)]
    return {e: run.values[id(n)] for e, n in zip(table, assigned[-len(table) :], strict=True)}


PAIRS = [
    *((r, LOW[r], LOW[r]) for r in REGIONS),
    *((r, "float32", "float32") for r in REGIONS),
    *((r, LOW[r], "float32") for r in REGIONS),
    *((r, "float32", LOW[r]) for r in REGIONS),
]


@pytest.mark.parametrize(("name", "first", "second"), PAIRS)
def test_dtypes_are_those_that_torch_computes(name: str, first: str, second: str) -> None:
    table = expressions(MIXED + SAME if first == second else MIXED)
    assert len(set(table)) == len(table)
    wanted = executed(name, table, first, second)
    assert len(wanted) > 0.9 * len(table)
    heads = f"a = a.to(torch.{first})", f"b = b.to(torch.{second})"
    found = analysed(table, *heads, inside=REGIONS[name])
    assert {e: found[e].dtype for e in wanted} == wanted


# a sum of everything has no dimensions: it promotes nothing, so it makes nothing wide either
ZERO_DIMENSIONS = {"a.sum() * b", "b / a.sum()"}


def test_wide_is_what_cuda_autocast_widens() -> None:
    """Of operands with an open dtype: half outside of autocast, float32 inside, is ``wide``."""
    table = expressions(MIXED + SAME)
    outside = executed("off", table, "float16", "float16")
    inside = executed("cuda", table, "float16", "float16")
    found = analysed(table)
    both = outside.keys() & inside.keys() - ZERO_DIMENSIONS
    wanted = {
        e: (outside[e], inside[e]) == ("float16", "float32") for e in both if found[e].variable
    }
    assert {True, False} == set(wanted.values()) and len(wanted) > 100
    assert {e: found[e].wide for e in wanted} == wanted


def test_a_concrete_dtype_without_a_region_holds_with_and_without_autocast() -> None:
    table = expressions(MIXED + SAME)
    runs = [executed(r, table, d, d) for r in ("off", "cuda") for d in ("float16", "float32")]
    found = analysed(table)
    fixed = {e: found[e].dtype for e in table if found[e].dtype and not found[e].variable}
    assert len(fixed) > 30
    for run in runs:
        assert {e: run[e] for e in fixed if e in run} == {e: fixed[e] for e in fixed if e in run}


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
    "values, indices = x.half().max(dim=1)\nreturn indices": "int",
    "values, indices = x.half().topk(2)\nreturn values": "float16",
    "dtype = torch.bfloat16\nreturn x.to(dtype)": "bfloat16",
    "dtype = y.half().dtype\nreturn torch.zeros(3, dtype=dtype)": "float16",
    "return x.to(device=y.device, dtype=torch.float16)": "float16",
    "return torch.where(x > 0, x.half(), 0.0)": "float16",
    "rows = [row.half() for row in x]\nreturn torch.stack(rows)": "float16",
    "def inner():\n    return x.half()\nreturn x.float()": "float32",
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
