"""What the analysis says of dtypes, compared with what torch computes when the code runs.

Autocast for CUDA runs on CPU tensors, with CUDA's lists (``harness.policy``).
"""

from __future__ import annotations

import ast
import contextlib
import warnings
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
~(a > b); (a > b) * a; (a > b).float() * a; 1 / (1 + a); a.numel() * a
a.sum(); a.sum(1); a.mean(); a.mean(1); a.max(); a.max(1).values; a.max(1)[0]; a.amax(1); a.min()
a.prod(); a.norm(); a.norm(dim=1); a.std(); a.var(); a.cumsum(0); a.cumprod(0); a.logsumexp(1)
a.median(); a.argmax(); a.sum(dtype=torch.float32); a.cumsum(0, dtype=torch.float32)
a.exp(); a.log(); a.log2(); a.log10(); a.log1p(); a.expm1(); a.sqrt(); a.rsqrt(); a.square()
a.pow(2); a.reciprocal(); a.sigmoid(); a.tanh(); a.relu(); a.abs(); a.neg(); a.sin(); a.cos()
a.erf(); a.clamp(min=0.1); a.clamp(0.1, 0.9); a.clip(0, 1); a.softmax(-1); a.log_softmax(-1)
a.round(); a.floor(); a.ceil(); a.sign(); a.nan_to_num(); torch.exp(a); torch.log(a); torch.abs(a)
torch.sigmoid(a); torch.softmax(a, -1); torch.sum(a); torch.clamp(a, min=0.1); torch.rsqrt(a)
torch.matmul(a, b); torch.mm(a, b); torch.bmm(a[None], b[None]); torch.mv(a, b[0]); torch.erf(a)
torch.dot(a[0], b[0]); torch.cdist(a, b); torch.addmm(a, a, b); torch.baddbmm(a[None], a[None], b[None])
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
torch.logical_and(a > 0, b > 0); torch.count_nonzero(a); torch.bucketize(a, a[0]); torch.flip(a, [0])
torch.searchsorted(a[0], b[0]); torch.broadcast_to(a, (2, 4, 4)); torch.chunk(a, 2)[0]
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
F.binary_cross_entropy_with_logits(a, b); F.kl_div(a, b); F.pairwise_distance(a, b)
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


@pytest.fixture(scope="module", autouse=True)
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(target size|reduction: 'mean').*")
        yield


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


def test_wide_is_what_cuda_autocast_widens() -> None:
    """Of operands with an open dtype: half outside of autocast, float32 inside, is ``wide``."""
    table = expressions(MIXED + SAME)
    outside = executed("off", table, "float16", "float16")
    inside = executed("cuda", table, "float16", "float16")
    found = analysed(table)
    wanted = {
        e: outside[e] == "float16" and inside[e] == "float32" for e in outside.keys() & inside
    }
    open_ones = [e for e in wanted if found[e].variable and e not in NOT_WIDENED]
    assert len(open_ones) > 100
    assert {e: found[e].wide for e in open_ones} == {e: wanted[e] for e in open_ones}


NOT_WIDENED = {"a.sum() * b", "b / a.sum()"}
