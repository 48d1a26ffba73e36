"""Which dtype an operation runs in under autocast, from the tables in ``torchfacts``."""

from __future__ import annotations

import functools
import json
from importlib import resources

COMPOSITE = {
    # composites of listed operations; each was executed under CUDA's policy
    "lower": {"mul_mat", "multi_head_attention_forward", "outer_product"},
    "fp32": {
        "cosine_similarity", "cross_entropy", "ctc_loss", "gaussian_nll_loss", "interpolate",
        "kl_div", "linalg.norm", "linalg.vector_norm", "linalg.matrix_norm", "logsigmoid_loss",
        "multilabel_soft_margin_loss", "nll_loss", "norm", "normalize", "outer", "softmin",
        "square", "triplet_margin_with_distance_loss", "upsample", "local_response_norm",
        "pairwise_distance", "gumbel_softmax",
    },
}  # fmt: skip
"""Operations that are not listed themselves but consist of listed ones (CUDA)."""


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
                table[name.partition(".")[0].removeprefix("linalg_")] = policy
                table[name.partition(".")[0].replace("linalg_", "linalg.")] = policy
        tables[device] = table
    for policy in ("lower", "fp32"):
        for name in COMPOSITE[policy]:
            tables["cuda"].setdefault(name, policy)
    return tables


def policy(op: str, device: str) -> str | None:
    """``lower``, ``fp32``, ``promote`` or ``banned`` for an operation by its bare name.

    An unknown device is taken for CUDA's policy, which every accelerator's list resembles.
    """
    return _tables()["cpu" if device == "cpu" else "cuda"].get(op)
