"""Which dtype an operation runs in under autocast, from the tables in ``torchfacts``."""

from __future__ import annotations

import functools
import json
from importlib import resources

COMPOSITE = {
    "cuda": {
        "lower": {
            "multi_head_attention_forward", "recurrent", "affine_grid", "cov", "corrcoef",
            "matrix_power", "linalg.matrix_power", "pinverse", "linalg.pinv", "linalg.matmul",
        },
        "fp32": {
            "cross_entropy", "ctc_loss", "gaussian_nll_loss", "interpolate", "linalg.norm",
            "linalg.vector_norm", "linalg.matrix_norm", "local_response_norm", "lp_pool1d",
            "lp_pool2d", "lp_pool3d", "multilabel_soft_margin_loss", "normalize",
            "pairwise_distance", "softmin", "square", "gumbel_softmax", "trapezoid", "trapz",
            "cumulative_trapezoid", "triplet_margin_with_distance_loss", "upsample",
        },
    },
    "cpu": {
        "lower": {
            "multi_head_attention_forward", "recurrent", "affine_grid", "cov", "corrcoef",
            "matrix_power", "linalg.matrix_power", "pinverse", "linalg.pinv", "linalg.matmul",
            "einsum", "inner", "tensordot", "chain_matmul", "multi_dot", "linalg.multi_dot",
            "matrix_exp", "linalg.matrix_exp",
        },
        "fp32": {"cross_entropy", "grid_sample"},
    },
}  # fmt: skip
"""Operations that are not listed themselves but consist of listed ones, by execution."""


@functools.cache
def _tables() -> dict[str, dict[str, str]]:
    text = resources.files("precision_lint.torchfacts").joinpath("autocast.json").read_text("utf8")
    facts = json.loads(text)["autocast"]
    tables: dict[str, dict[str, str]] = {}
    for device in ("cuda", "cpu"):
        table: dict[str, str] = {}
        for policy, key in (
            ("promote", "promote"),
            ("fp32", "fp32"),
            ("fp32", "fp32_set_opt_dtype"),
            ("lower", "lower"),
            ("banned", "banned"),
        ):
            for name in facts[device].get(key, []):
                plain = name.partition(".")[0]
                for home in ("linalg_", "fft_"):
                    if plain.startswith(home):
                        table[plain.replace("_", ".", 1)] = policy
                        plain = plain.removeprefix(home)
                table.setdefault(plain, policy)
        for policy, composites in COMPOSITE[device].items():
            for name in composites:
                table.setdefault(name, policy)
        tables[device] = table
    return tables


def policy(op: str, device: str) -> str | None:
    """``lower``, ``fp32``, ``promote`` or ``banned`` for an operation by its bare name.

    An unknown device is taken for CUDA's policy, which every accelerator's list resembles.
    """
    return _tables()["cpu" if device == "cpu" else "cuda"].get(op)
