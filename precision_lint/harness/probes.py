"""Is CUDA's policy as it is emulated?  Operations whose result dtypes tell, and the comparison.

`FACTS` was measured with CUDA's own kernels registered on fake tensors; `disagreements` compares
the emulation with a GPU, operation by operation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F

from precision_lint.harness.policy import cuda_policy

Tensor = torch.Tensor
Op = Callable[[Tensor, Tensor], Any]
HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
OPERANDS = ((HALF, HALF), (SINGLE, SINGLE), (HALF, SINGLE))


def matrix(dtype: torch.dtype) -> Tensor:
    """A well-conditioned 4 x 4 matrix with entries in (0, 1)."""
    steps = torch.arange(16, dtype=DOUBLE).reshape(4, 4)
    return (0.2 + 0.1 * torch.sin(steps) + 0.6 * torch.eye(4, dtype=DOUBLE)).to(dtype)


FACTS: Mapping[str, Mapping[str, Op]] = MappingProxyType(
    {
        "half half half": {
            "einsum": lambda a, b: torch.einsum("ij,jk->ik", a, b),
            "matmul": lambda a, b: a @ b,
            "addmm": lambda a, b: torch.addmm(a, a, b),
            "bmm": lambda a, b: torch.bmm(a[None], b[None]),
            "baddbmm": lambda a, b: torch.baddbmm(a[None], a[None], b[None]),
            "linear": lambda a, b: F.linear(a, b),
            "conv2d": lambda a, b: F.conv2d(a[None, None], b[None, None]),
            "conv_transpose2d": lambda a, b: F.conv_transpose2d(a[None, None], b[None, None]),
            "mv": lambda a, b: a.mv(b[0]),
            "matrix_power": lambda a, b: torch.linalg.matrix_power(a, 2),
            "prelu": lambda a, b: F.prelu(a, b[0, :1]),
            "attention": lambda a, b: F.scaled_dot_product_attention(a[None], b[None], b[None]),
            "affine_grid": lambda a, b: F.affine_grid(a[None, :2, :3], [1, 1, 4, 4], False),
            "cov": lambda a, b: torch.cov(a),
        },
        "float32 float32 float32": {
            "exp": lambda a, b: a.exp(),
            "log": lambda a, b: a.log(),
            "log1p": lambda a, b: a.log1p(),
            "pow": lambda a, b: a**2,
            "square": lambda a, b: a.square(),
            "reciprocal": lambda a, b: 1 / a,
            "rsqrt": lambda a, b: a.rsqrt(),
            "softmax": lambda a, b: a.softmax(-1),
            "log_softmax": lambda a, b: a.log_softmax(-1),
            "softplus": lambda a, b: F.softplus(a),
            "sum": lambda a, b: a.sum(),
            "sum_dim": lambda a, b: a.sum(1),
            "cumsum": lambda a, b: a.cumsum(0),
            "cumprod": lambda a, b: a.cumprod(0),
            "prod": lambda a, b: a.prod(),
            "logsumexp": lambda a, b: a.logsumexp(-1),
            "norm": lambda a, b: a.norm(),
            "norm_dim": lambda a, b: a.norm(dim=1),
            "linalg_norm": lambda a, b: torch.linalg.norm(a, dim=-1),
            "matrix_norm": lambda a, b: torch.linalg.matrix_norm(a),
            "normalize": lambda a, b: F.normalize(a, dim=-1),
            "cosine_similarity": lambda a, b: F.cosine_similarity(a, b),
            "cdist": lambda a, b: torch.cdist(a, b),
            "cdist_p1": lambda a, b: torch.cdist(a, b, p=1.0),
            "pdist": lambda a, b: F.pdist(a),
            "layer_norm": lambda a, b: F.layer_norm(a, (4,)),
            "group_norm": lambda a, b: F.group_norm(a[None], 2),
            "rms_norm": lambda a, b: F.rms_norm(a, (4,)),
            "cross_entropy": lambda a, b: F.cross_entropy(a, torch.arange(4)),
            "nll_loss": lambda a, b: F.nll_loss(a, torch.arange(4)),
            "mse_loss": lambda a, b: F.mse_loss(a, b),
            "l1_loss": lambda a, b: F.l1_loss(a, b),
            "kl_div": lambda a, b: F.kl_div(a, b, reduction="sum"),
            "bce_with_logits": lambda a, b: F.binary_cross_entropy_with_logits(a, b),
            "trace": lambda a, b: a.trace(),
            "interpolate": lambda a, b: F.interpolate(
                a[None, None], scale_factor=2, mode="bilinear"
            ),
        },
        "half float32 float32": {
            "cat": lambda a, b: torch.cat([a, b]),
            "stack": lambda a, b: torch.stack([a, b]),
            "addcmul": lambda a, b: torch.addcmul(a, a, b),
            "addcdiv": lambda a, b: torch.addcdiv(a, a, b),
            "atan2": lambda a, b: torch.atan2(a, b),
            "dot": lambda a, b: torch.dot(a[0], b[0]),
            "tensordot": lambda a, b: torch.tensordot(a, b, 1),
            "bilinear": lambda a, b: F.bilinear(a, b, b[None]),
            "scatter_add": lambda a, b: a.scatter_add(0, torch.zeros(1, 4, dtype=torch.long), b),
            "index_put": lambda a, b: a.index_put((torch.zeros(1, dtype=torch.long),), b[:1]),
            "mul": lambda a, b: a * b,
            "add": lambda a, b: a + b,
            "div": lambda a, b: a / b,
            "where": lambda a, b: torch.where(a > 0, a, b),
        },
        "half float32 half": {
            "mean": lambda a, b: a.mean(),
            "var": lambda a, b: a.var(),
            "sigmoid": lambda a, b: a.sigmoid(),
            "logsigmoid": lambda a, b: F.logsigmoid(a),
            "tanh": lambda a, b: a.tanh(),
            "sqrt": lambda a, b: a.sqrt(),
            "exp2": lambda a, b: a.exp2(),
            "clamp": lambda a, b: a.clamp(min=1e-6),
            "masked_fill": lambda a, b: a.masked_fill(b > 0, 0.0),
            "batch_norm": lambda a, b: F.batch_norm(a, None, None, training=True),
            "avg_pool2d": lambda a, b: F.avg_pool2d(a[None], 2),
        },
    }
)
"""Result dtypes for operands (half, half), (float32, float32) and (half, float32)."""


def answers(device: str) -> dict[str, list[str]]:
    """By operation the result dtypes in a float16 region, or what it raises."""

    def answer(op: Op, first: torch.dtype, second: torch.dtype) -> str:
        try:
            return str(op(matrix(first).to(device), matrix(second).to(device)).dtype)[6:]
        except RuntimeError as error:
            return f"raises {type(error).__name__}"

    with torch.device(device), torch.autocast(device, dtype=HALF):
        return {
            name: [answer(op, *pair) for pair in OPERANDS]
            for ops in FACTS.values()
            for name, op in ops.items()
        }


def disagreements(device: str) -> list[str]:
    """One line for each operation that the emulation casts otherwise than this device."""
    with cuda_policy():
        emulated = answers("cpu")
    return [
        f"{name}: {', '.join(real)} on {device}, {', '.join(emulated[name])} emulated"
        for name, real in answers(device).items()
        if real != emulated[name]
    ]
