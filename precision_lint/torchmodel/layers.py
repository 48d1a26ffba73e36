"""Layers, losses and containers of ``torch.nn``."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

CONTAINERS = frozenset({"Sequential", "ModuleList", "ModuleDict", "ParameterList", "ParameterDict"})
RECURRENT = frozenset({"LSTM", "GRU", "RNN", "LSTMCell", "GRUCell", "RNNCell"})
ATTENTION = frozenset({
    "MultiheadAttention", "Transformer", "TransformerEncoder", "TransformerDecoder",
    "TransformerEncoderLayer", "TransformerDecoderLayer",
})  # fmt: skip
OUTPUTS = {"LSTM": 2, "GRU": 2, "RNN": 2, "LSTMCell": 2, "MultiheadAttention": 2}
OPERATIONS: dict[str, str] = {
    "Linear": "linear", "LazyLinear": "linear", "NonDynamicallyQuantizableLinear": "linear",
    "Bilinear": "bilinear", "PReLU": "prelu", "Embedding": "embedding", "EmbeddingBag": "embedding_bag",
    **{f"{lazy}Conv{kind}{n}d": f"conv{kind.lower().replace('t', '_t', 1)}{n}d"
       for lazy in ("", "Lazy") for kind in ("", "Transpose") for n in (1, 2, 3)},
    "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm",
    "LocalResponseNorm": "local_response_norm", "CrossMapLRN2d": "local_response_norm",
    "CrossEntropyLoss": "cross_entropy", "MSELoss": "mse_loss", "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "KLDivLoss": "kl_div",
    "NLLLoss": "nll_loss", "BCELoss": "binary_cross_entropy", "PoissonNLLLoss": "poisson_nll_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "CTCLoss": "ctc_loss",
    "GaussianNLLLoss": "gaussian_nll_loss", "CosineEmbeddingLoss": "cosine_embedding_loss",
    "MarginRankingLoss": "margin_ranking_loss", "TripletMarginLoss": "triplet_margin_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss", "SoftMarginLoss": "soft_margin_loss",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "MultiLabelMarginLoss": "multilabel_margin_loss", "MultiMarginLoss": "multi_margin_loss",
    "TripletMarginWithDistanceLoss": "triplet_margin_with_distance_loss",
    "CosineSimilarity": "cosine_similarity", "PairwiseDistance": "pairwise_distance",
    "Softmax": "softmax", "Softmax2d": "softmax", "Softmin": "softmin", "LogSoftmax": "log_softmax",
    "Softplus": "softplus", "LogSigmoid": "logsigmoid", "Sigmoid": "sigmoid", "Tanh": "tanh",
    "ReLU": "relu", "ReLU6": "relu6", "GELU": "gelu", "SiLU": "silu", "Mish": "mish", "ELU": "elu",
    "CELU": "celu", "SELU": "selu", "LeakyReLU": "leaky_relu", "RReLU": "rrelu",
    "Hardtanh": "hardtanh", "Hardswish": "hardswish", "Hardsigmoid": "hardsigmoid",
    "Hardshrink": "hardshrink", "Softshrink": "softshrink", "Softsign": "softsign",
    "Tanhshrink": "tanhshrink", "Threshold": "threshold", "GLU": "glu", "Identity": "identity",
    "Flatten": "flatten", "Unflatten": "unflatten", "Upsample": "interpolate",
    "UpsamplingNearest2d": "interpolate", "UpsamplingBilinear2d": "interpolate",
    "PixelShuffle": "pixel_shuffle", "PixelUnshuffle": "pixel_unshuffle", "Fold": "fold",
    "Unfold": "unfold", "ChannelShuffle": "channel_shuffle",
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"), "dropout"),
    **dict.fromkeys(("AlphaDropout", "FeatureAlphaDropout"), "alpha_dropout"),
    **{f"{lazy}BatchNorm{n}d": "batch_norm" for lazy in ("", "Lazy") for n in (1, 2, 3)},
    **{f"{lazy}InstanceNorm{n}d": "instance_norm" for lazy in ("", "Lazy") for n in (1, 2, 3)},
    "SyncBatchNorm": "batch_norm",
    **{f"{pool}Pool{n}d": f"{pool.lower()}_pool{n}d" for pool in ("Max", "Avg") for n in (1, 2, 3)},
    **{f"Adaptive{pool}Pool{n}d": f"adaptive_{pool.lower()}_pool{n}d"
       for pool in ("Max", "Avg") for n in (1, 2, 3)},
    **{f"LPPool{n}d": f"lp_pool{n}d" for n in (1, 2, 3)},
    **{f"{kind}Pad{n}d": "pad" for kind in ("Reflection", "Replication", "Zero", "Constant", "Circular")
       for n in (1, 2, 3)},
    **dict.fromkeys(RECURRENT, "recurrent"),
    **dict.fromkeys(ATTENTION, "attention"),
}  # fmt: skip
"""The operation that a layer is."""


@dataclass(frozen=True, slots=True)
class Layer:
    """One class of ``torch.nn``.

    operation: what calling it applies; empty for containers.  parameters, defaults: of its constructor.
    weights, buffers: attributes that exist by default.  outputs: how many things calling it gives.
    """

    name: str
    operation: str
    parameters: tuple[str, ...]
    defaults: Mapping[str, object]
    weights: tuple[str, ...]
    buffers: tuple[str, ...]
    outputs: int
    container: bool


@functools.cache
def _rows() -> dict[str, dict[str, Any]]:
    text = resources.files(__package__).joinpath("layers.json").read_text("utf8")
    return json.loads(text)  # type: ignore[no-any-return]


@functools.lru_cache(maxsize=512)
def layer(name: str) -> Layer | None:
    """A layer by the name of its class."""
    row = _rows().get(name)
    if row is None:
        return None
    return Layer(
        name,
        OPERATIONS.get(name, ""),
        tuple(row["parameters"]),
        row["defaults"],
        tuple(row["weights"]),
        tuple(row["buffers"]),
        OUTPUTS.get(name, 1),
        name in CONTAINERS,
    )


def of_class(qualified: str) -> Layer | None:
    """A layer by its dotted name."""
    return layer(qualified.rpartition(".")[2]) if qualified.startswith("torch.nn.") else None
