"""What operations do to a dtype: tables by the bare names of torch's functions and methods."""

from __future__ import annotations

SHAPES = frozenset({
    "view", "reshape", "permute", "transpose", "flatten", "unflatten", "squeeze", "unsqueeze",
    "expand", "expand_as", "view_as", "reshape_as", "contiguous", "clone", "detach", "detach_",
    "t", "swapaxes", "swapdims", "movedim", "moveaxis", "chunk", "split", "tensor_split", "unbind",
    "narrow", "ravel", "squeeze_", "unsqueeze_", "flipud", "fliplr", "as_strided",
    "select", "index_select", "gather", "take", "take_along_dim", "masked_select", "repeat",
    "repeat_interleave", "tile", "roll", "flip", "rot90", "cuda", "cpu", "requires_grad_",
    "broadcast_to", "diagonal", "diag", "tril", "triu", "pin_memory", "data", "rearrange",
    "unfold", "fold", "pixel_shuffle", "pixel_unshuffle", "max_pool1d", "max_pool2d", "max_pool3d",
    "unique", "adjoint", "mT", "T", "H", "mH", "diag_embed", "diagflat", "hsplit", "vsplit",
    "dsplit", "split_with_sizes", "atleast_1d", "atleast_2d", "atleast_3d", "conj", "resolve_conj",
    "unsafe_chunk", "unique_consecutive", "msort", "channel_shuffle", "native_channel_shuffle",
})  # fmt: skip
"""Operations whose elements are elements of the first operand (zeros aside for tril, triu)."""
VIEWS = SHAPES - {
    "clone", "index_select", "gather", "take", "take_along_dim", "masked_select", "repeat",
    "repeat_interleave", "tile", "roll", "flip", "rot90", "tril", "triu", "fold", "unique",
    "max_pool1d", "max_pool2d", "max_pool3d", "flipud", "fliplr", "diag_embed", "diagflat",
    "pin_memory", "unique_consecutive", "msort",
}  # fmt: skip
"""Those whose result may share memory with the operand."""
SEVERAL = frozenset({
    "chunk", "split", "tensor_split", "unbind", "hsplit", "vsplit", "dsplit", "split_with_sizes",
    "unsafe_chunk",
})  # fmt: skip
"""Those that give a tuple of tensors."""

INTEGRAL = frozenset({
    "argmax", "argmin", "argsort", "long", "int", "short", "char", "byte", "nonzero", "bincount",
    "count_nonzero", "searchsorted", "bucketize", "randint", "randperm", "tril_indices",
    "triu_indices", "multinomial", "argwhere", "one_hot",
})  # fmt: skip
BOOLEAN = frozenset({
    "isnan", "isinf", "isfinite", "isclose", "eq", "ne", "lt", "le", "gt", "ge", "logical_and",
    "logical_or", "logical_not", "logical_xor", "any", "all", "bool", "isin", "allclose", "equal",
    "isposinf", "isneginf", "isreal", "signbit", "greater", "greater_equal", "less", "less_equal",
    "not_equal",
})  # fmt: skip
INTEGERS = ("int", "bool")
QUERIES = {
    "item": "", "numel": "int", "nelement": "int", "dim": "int", "ndimension": "int",
    "element_size": "int", "stride": "", "storage_offset": "int", "get_device": "int",
    "is_floating_point": "bool", "is_complex": "bool", "is_contiguous": "bool", "data_ptr": "int",
    "is_tensor": "bool", "is_signed": "bool", "is_autocast_enabled": "bool",
    "is_grad_enabled": "bool", "is_storage": "bool", "nbytes": "int", "is_same_size": "bool",
}  # fmt: skip
"""Operations that answer with a Python number, and its kind where it is always the same."""

PAIRS = {
    **dict.fromkeys(("sort", "topk", "kthvalue", "mode", "cummax", "cummin"), "ri"),
    **dict.fromkeys(("std_mean", "var_mean", "slogdet", "qr", "eig", "lu_factor", "frexp"), "rr"),
    **dict.fromkeys(("svd", "svd_lowrank", "pca_lowrank"), "rrr"),
    "linalg.svd": "rrr", "linalg.qr": "rr", "linalg.eigh": "rr", "linalg.eig": "cc",
    "linalg.slogdet": "rr", "linalg.lstsq": "rriu", "linalg.lu": "rrr", "linalg.inv_ex": "ri",
    "linalg.cholesky_ex": "ri", "aminmax": "rr",
}  # fmt: skip
"""Operations that give several tensors: real ones of the operand's dtype, complex, integral."""
FIELDS = {
    "ri": ("values", "indices"),
    "svd": ("U", "S", "V"), "linalg.svd": ("U", "S", "Vh"), "linalg.qr": ("Q", "R"),
    "qr": ("Q", "R"),
    "linalg.eigh": ("eigenvalues", "eigenvectors"), "linalg.eig": ("eigenvalues", "eigenvectors"),
    "linalg.slogdet": ("sign", "logabsdet"), "slogdet": ("sign", "logabsdet"),
    "aminmax": ("min", "max"), "frexp": ("mantissa", "exponent"),
    "linalg.lstsq": ("solution", "residuals", "rank", "singular_values"),
}  # fmt: skip
REDUCED = {"max", "min", "median", "nanmedian"}
"""Operations that give values and indices when they are told a dimension."""

CASTS = {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16",
    "cfloat": "complex64", "cdouble": "complex128", "chalf": "complex32",
}  # fmt: skip

PAIRWISE = frozenset({
    "add", "sub", "subtract", "mul", "multiply", "div", "divide", "true_divide", "floor_divide",
    "fmod", "remainder", "maximum", "minimum", "fmax", "fmin", "hypot", "atan2", "arctan2",
    "copysign", "logaddexp", "logaddexp2", "xlogy", "rsub", "nextafter",
    "bitwise_and", "bitwise_or", "bitwise_xor", "pow",
})  # fmt: skip
JOINING = frozenset({
    "cat", "concat", "concatenate", "stack", "hstack", "vstack", "dstack", "row_stack",
    "column_stack", "block_diag", "cartesian_prod",
})  # fmt: skip
REDUCTIONS = frozenset({"sum", "mean", "amax", "amin", "prod", "nansum", "logsumexp", "median"})
MATMULS = frozenset({
    "matmul", "mm", "bmm", "baddbmm", "addmm", "einsum", "mv", "addbmm", "chain_matmul",
    "multi_dot", "linalg.multi_dot", "linear", "bilinear", "tensordot", "dot", "vdot", "inner",
    "addmv", "addr", "linalg.vecdot", "linalg.matmul", "scaled_dot_product_attention", "conv1d",
    "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "prelu",
})  # fmt: skip
"""Operations on several tensors that have to be of one dtype outside of autocast."""

SEVERAL_OPERANDS = {
    "outer": 2, "ger": 2, "kron": 2, "cross": 2, "linalg.cross": 2, "dist": 2, "cdist": 2,
    "addcmul": 3, "addcdiv": 3, "lerp": 2, "heaviside": 2, "mse_loss": 2, "l1_loss": 2,
    "smooth_l1_loss": 2, "kl_div": 2, "cosine_similarity": 2, "pairwise_distance": 2,
    "binary_cross_entropy": 2, "cosine_embedding_loss": 2, "margin_ranking_loss": 3,
    "triplet_margin_loss": 3, "triplet_margin_with_distance_loss": 3, "poisson_nll_loss": 2,
    "gaussian_nll_loss": 3, "multilabel_soft_margin_loss": 2, "grid_sample": 2, "polar": 2,
    "complex": 2, "cross_entropy": 2, "linalg.solve": 2, "linalg.lstsq": 2, "ldexp": 2,
    "linalg.solve_triangular": 2,
}  # fmt: skip
"""Operations whose first operands promote each other, and how many they are."""
OF_SECOND = frozenset({"binary_cross_entropy_with_logits", "embedding", "embedding_bag"})
"""Operations whose result has the dtype of the second operand."""

FLOATING = frozenset({
    "sigmoid", "tanh", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh", "acosh", "atanh", "erf",
    "erfc", "erfinv", "reciprocal", "softmax", "log_softmax", "linear", "layer_norm", "normalize",
    "norm", "cdist", "mean", "std", "var", "logsumexp", "cross_entropy", "einsum", "div",
    "true_divide", "divide", "atan2", "arctan2", "logit", "expit", "sinc", "lgamma", "digamma",
    "i0", "xlogy", "gammaln", "angle", "deg2rad", "rad2deg", "nanmean", "poly_gamma",
    "logcumsumexp", "copysign", "entr", "logaddexp",
})  # fmt: skip
"""Operations that make a float out of integers."""
SUMMING = frozenset({"sum", "nansum", "cumsum", "prod", "cumprod", "trace"})
"""Operations that make 64-bit integers out of booleans."""

TO_COMPLEX = frozenset({
    "fft.fft", "fft.fft2", "fft.fftn", "fft.ifft", "fft.ifft2", "fft.ifftn", "fft.rfft",
    "fft.rfft2", "fft.rfftn", "fft.ihfft", "fft.ihfft2", "fft.ihfftn", "view_as_complex", "polar",
    "complex", "stft", "linalg.eigvals",
})  # fmt: skip
TO_REAL = frozenset({
    "fft.irfft", "fft.irfft2", "fft.irfftn", "fft.hfft", "fft.hfft2", "fft.hfftn", "view_as_real",
    "istft", "abs", "absolute", "real", "imag", "angle", "isreal", "linalg.svdvals",
    "linalg.eigvalsh",
})  # fmt: skip

ELEMENTWISE = frozenset({
    "sigmoid", "tanh", "relu", "exp", "log", "abs", "neg", "sqrt", "rsqrt", "square", "clamp",
    "clamp_min", "clamp_max", "clip", "gelu", "silu", "softplus", "logsigmoid", "sin", "cos",
    "round", "floor", "ceil", "log1p", "expm1", "log2", "log10", "reciprocal", "nan_to_num",
    "tan", "asin", "acos", "atan", "sinh", "cosh", "erf", "erfc", "exp2", "absolute", "negative",
    "sign", "trunc", "frac", "elu", "leaky_relu", "hardtanh", "hardsigmoid", "mish", "relu6",
})  # fmt: skip

MODULES = {
    **dict.fromkeys(("Linear", "LazyLinear"), "linear"),
    "Bilinear": "bilinear", "PReLU": "prelu",
    **{f"{lazy}Conv{kind}{n}d": f"conv{kind.lower().replace('t', '_t', 1)}{n}d"
       for lazy in ("", "Lazy") for kind in ("", "Transpose") for n in (1, 2, 3)},
    **dict.fromkeys(("GRU", "LSTM", "RNN", "MultiheadAttention", "GRUCell", "LSTMCell", "RNNCell",
                     "TransformerEncoder", "TransformerEncoderLayer"), "recurrent"),
    "LayerNorm": "layer_norm", "GroupNorm": "group_norm", "RMSNorm": "rms_norm",
    "LocalResponseNorm": "local_response_norm",
    "CrossEntropyLoss": "cross_entropy", "MSELoss": "mse_loss", "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss", "HuberLoss": "huber_loss", "KLDivLoss": "kl_div",
    "NLLLoss": "nll_loss", "BCELoss": "binary_cross_entropy", "PoissonNLLLoss": "poisson_nll_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits", "CTCLoss": "ctc_loss",
    "GaussianNLLLoss": "gaussian_nll_loss", "CosineEmbeddingLoss": "cosine_embedding_loss",
    "MarginRankingLoss": "margin_ranking_loss", "TripletMarginLoss": "triplet_margin_loss",
    "HingeEmbeddingLoss": "hinge_embedding_loss", "SoftMarginLoss": "soft_margin_loss",
    "MultiLabelSoftMarginLoss": "multilabel_soft_margin_loss",
    "CosineSimilarity": "cosine_similarity", "PairwiseDistance": "pairwise_distance",
    "Softmax": "softmax", "Softmax2d": "softmax", "Softmin": "softmin",
    "LogSoftmax": "log_softmax", "Softplus": "softplus", "LogSigmoid": "logsigmoid",
    "Sigmoid": "sigmoid", "Tanh": "tanh", "ReLU": "relu", "ReLU6": "relu6", "GELU": "gelu",
    "SiLU": "silu", "Mish": "mish", "ELU": "elu", "CELU": "celu", "SELU": "selu",
    "LeakyReLU": "leaky_relu", "RReLU": "rrelu", "Hardtanh": "hardtanh", "Hardswish": "hardswish",
    "Hardsigmoid": "hardsigmoid", "Softsign": "softsign", "Tanhshrink": "tanhshrink",
    "Threshold": "threshold", "GLU": "glu", "Identity": "identity", "Flatten": "flatten",
    "Unflatten": "unflatten", "Upsample": "interpolate", "UpsamplingNearest2d": "interpolate",
    "UpsamplingBilinear2d": "interpolate", "PixelShuffle": "pixel_shuffle",
    "PixelUnshuffle": "pixel_unshuffle", "Fold": "fold", "Unfold": "unfold",
    **dict.fromkeys(("Dropout", "Dropout1d", "Dropout2d", "Dropout3d"), "dropout"),
    **dict.fromkeys(("AlphaDropout", "FeatureAlphaDropout"), "alpha_dropout"),
    **{f"{norm}{n}d": "batch_norm" for norm in ("BatchNorm", "InstanceNorm", "LazyBatchNorm")
       for n in (1, 2, 3)},
    "SyncBatchNorm": "batch_norm",
    **{f"{pool}Pool{n}d": f"{pool.lower()}_pool{n}d" for pool in ("Max", "Avg") for n in (1, 2, 3)},
    **{f"Adaptive{pool}Pool{n}d": f"adaptive_{pool.lower()}_pool{n}d"
       for pool in ("Max", "Avg") for n in (1, 2, 3)},
    **{f"ReflectionPad{n}d": f"reflection_pad{n}d" for n in (1, 2, 3)},
    **{f"ReplicationPad{n}d": f"replication_pad{n}d" for n in (1, 2, 3)},
    **{f"{kind}Pad{n}d": "constant_pad" for kind in ("Zero", "Constant") for n in (1, 2, 3)},
}  # fmt: skip
"""``torch.nn`` modules by the operation that they are; of the parameters' dtype if it is lower."""

KNOWN = frozenset({
    "absolute", "adaptive_avg_pool1d", "addcmul", "affine_grid", "alpha_dropout", "batch_norm",
    "bernoulli", "bitwise_not", "celu", "cholesky", "clamp", "clamp_max", "clamp_min", "clip",
    "combinations", "constant_pad", "corrcoef", "cov", "cross_entropy", "ctc_loss", "cumprod",
    "cumsum", "cumulative_trapezoid", "det", "diff", "dropout", "dropout1d", "dropout2d",
    "dropout3d", "elu", "expit", "fake_quantize_per_tensor_affine", "feature_alpha_dropout",
    "fft.fftshift", "fft.ifftshift", "float_power", "fractional_max_pool2d", "glu", "gradient",
    "group_norm", "gumbel_softmax", "hardshrink", "hardswish", "hardtanh",
    "hinge_embedding_loss", "histc", "huber_loss", "i0e", "i1", "identity", "imag", "index_add",
    "index_copy", "index_fill", "index_put", "index_reduce", "instance_norm", "interpolate",
    "inverse", "isreal", "istft", "layer_norm", "leaky_relu", "linalg.cholesky", "linalg.cond",
    "linalg.det", "linalg.diagonal", "linalg.eigvalsh", "linalg.inv", "linalg.matrix_exp",
    "linalg.matrix_norm", "linalg.matrix_power", "linalg.matrix_rank", "linalg.norm",
    "linalg.pinv", "linalg.svdvals", "linalg.vector_norm", "local_response_norm",
    "logcumsumexp", "logdet", "logit", "logsigmoid", "lp_pool1d", "lp_pool2d", "lstsq",
    "matrix_exp", "matrix_power", "max_unpool2d", "msort", "multi_head_attention_forward",
    "multi_margin_loss", "multilabel_margin_loss", "mvlgamma", "nan_to_num", "nanquantile",
    "nll_loss", "normalize", "nuclear_norm", "pad", "pdist", "pinverse", "poisson", "polygamma",
    "positive", "put", "quantile", "real", "reciprocal", "recurrent", "reflection_pad1d",
    "relu", "renorm", "rms_norm", "rrelu", "scatter", "scatter_add", "scatter_reduce", "selu",
    "sgn", "sinc", "slogdet", "soft_margin_loss", "softmax", "softmin", "softplus",
    "softshrink", "square", "tanhshrink", "threshold", "trace", "trapezoid", "trapz",
    "upsample", "vander",
})  # fmt: skip
KNOWN |= (
    FLOATING | SUMMING | ELEMENTWISE | REDUCTIONS | TO_COMPLEX | TO_REAL | REDUCED | OF_SECOND
    | PAIRS.keys() | SEVERAL_OPERANDS.keys() | set(MODULES.values())
)  # fmt: skip
"""Operations that keep the dtype, unless another table says more; others are not known."""
PURE = (KNOWN | SHAPES | CASTS.keys() | PAIRWISE) - {
    "alpha_dropout", "bernoulli", "dropout", "dropout1d", "dropout2d", "dropout3d",
    "feature_alpha_dropout", "gumbel_softmax", "poisson", "rrelu", "normal",
}  # fmt: skip
"""Operations that give the same for the same operands."""
FUNCTIONS = frozenset({
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_avg_pool3d", "adaptive_max_pool1d",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "affine_grid", "alpha_dropout", "arange",
    "as_tensor", "atleast_1d", "atleast_2d", "atleast_3d", "avg_pool1d", "avg_pool2d", "avg_pool3d",
    "batch_norm", "bilinear", "binary_cross_entropy", "binary_cross_entropy_with_logits",
    "block_diag", "broadcast_tensors", "bucketize", "cartesian_prod", "cat", "cdist", "celu",
    "chain_matmul", "channel_shuffle", "column_stack", "combinations", "complex",
    "concat", "concatenate", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
    "conv_transpose3d", "cosine_embedding_loss", "cosine_similarity", "cross_entropy", "ctc_loss",
    "cumulative_trapezoid", "dropout", "dropout1d", "dropout2d", "dropout3d", "dstack", "einsum",
    "elu", "embedding", "embedding_bag", "empty", "empty_like", "entr", "expit", "eye",
    "fake_quantize_per_tensor_affine", "feature_alpha_dropout", "fill", "fold",
    "fractional_max_pool2d", "from_numpy", "full", "full_like", "gammaln", "gaussian_nll_loss",
    "gelu", "glu", "gradient", "grid_sample", "group_norm", "gumbel_softmax", "hardsigmoid",
    "hardswish", "hardtanh", "hinge_embedding_loss", "hstack", "huber_loss", "i0e", "i1",
    "instance_norm", "interpolate", "isin", "kl_div", "l1_loss", "layer_norm", "leaky_relu",
    "linear", "linspace", "local_response_norm", "logsigmoid", "logspace", "lp_pool1d", "lp_pool2d",
    "lu_factor", "margin_ranking_loss", "matrix_norm", "max_pool1d", "max_pool2d", "max_pool3d",
    "max_unpool2d", "meshgrid", "mish", "mse_loss", "multi_dot", "multi_head_attention_forward",
    "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss",
    "native_channel_shuffle", "nll_loss", "normal", "normalize", "nuclear_norm", "one_hot", "ones",
    "ones_like", "pad", "pairwise_distance", "pca_lowrank", "pdist", "pixel_shuffle",
    "pixel_unshuffle", "poisson", "poisson_nll_loss", "polar", "rand", "rand_like", "randint",
    "randn", "randn_like", "randperm", "range", "relu6", "rms_norm", "row_stack", "rrelu", "rsub",
    "scaled_dot_product_attention", "searchsorted", "selu", "silu", "smooth_l1_loss",
    "soft_margin_loss", "softmin", "softplus", "softshrink", "softsign", "stack", "std_mean",
    "svd_lowrank", "tanhshrink", "tensor", "tensordot", "threshold", "trapezoid", "trapz",
    "tril_indices", "triplet_margin_loss", "triplet_margin_with_distance_loss", "triu_indices",
    "upsample", "vander", "var_mean", "vector_norm", "view_as_complex", "view_as_real", "vstack",
    "zeros", "zeros_like",
})  # fmt: skip
"""Those that tensors don't have as methods: what is called so on an object is its own."""
