from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from precision_lint.api import Applicability, Context, Cost, Event, Finding, Rule, Severity

SAME = frozenset({
    "quantile", "nanquantile", "linalg.det", "det", "logdet", "linalg.inv", "inverse", "linalg.pinv",
    "pinverse", "linalg.cholesky", "cholesky", "linalg.solve", "linalg.matrix_exp", "matrix_exp",
    "cholesky_inverse", "linalg.svdvals", "linalg.eigvalsh", "cdist", "renorm", "histc",
})  # fmt: skip
"""Operations that give one tensor of their operand's dtype."""


SAID = {
    "half-anywhere": "this is float16 on the CPU, too, which has few kernels for it before torch 2.2",
    "mixed-operands": "`{operation}` gets half operands beside float32 ones: a compiled kernel takes one dtype",
    "forgotten-operand": "`{operand}` goes to `{operation}` as it came, the others cast to one dtype",
}
"""What is said of events that are not about a missing kernel."""


def _on(device: str) -> str:
    return "the CPU" if device == "cpu" else device.upper()


class OpMissingInHalf(Rule):
    """Operation without a kernel for half tensors: linalg, fft, quantile, ctc_loss, histc.

    ## What it flags
    `torch.linalg.*` (inv, det, svd, eigh, qr, cholesky, solve, lstsq, pinv, ...) and their old
    names, `torch.fft.*`, `stft`, `quantile`, `histc`, `polar`, `complex`, `view_as_complex`,
    `ctc_loss`, `torch.special.*`, where the operand is half: it is cast to half, or it is the
    output of a layer or a product under autocast or in a half model. The tables that say which dtype is
    missing on which device are generated from torch.

    A kernel that is missing on the CPU counts where the code puts a tensor there (`x.cpu()`,
    `x.device.type == "cpu"`), or where `device` in the configuration names the CPU.

    Some kernels came late. On the CPU, float16 has `exp`, `sigmoid` and 73 more from torch 2.1 on,
    `matmul`, `conv2d`, `topk` and 64 more from 2.2 on, `layer_norm` from 2.3 on, and `cross_entropy` from
    2.4 on; on CUDA, bfloat16 has `tril` from 2.1 on. These are flagged where the project allows an older
    torch (`torch-version`, or its metadata), and in files that cast something up because it is on the
    CPU. Code that may run on the CPU (`"cuda" if torch.cuda.is_available() else "cpu"`) and makes a
    float16 tensor there without a check gets a warning, unless the project requires torch 2.2.

    It stays silent in these cases:

    - The operand is float32.
    - The device's autocast casts it up. CPU autocast does so for most of linalg and fft, CUDA autocast
      only for `ctc_loss`.
    - The kernel exists (`norm`, `cov`, `matrix_power`; `stft` with a float32 window, which promotes).

    How sure it is, and how bad:

    - A kernel that only the CPU lacks is `possible`. So is an operand whose dtype only the caller knows,
      and an operation that is mostly called on complex tensors (`irfft`, `ifft`, `angle`).
    - `fft` of float16 is a warning, because CUDA has it for sizes that are powers of two.
    - It is `likely` in a module of a project that runs whole models under autocast. In a project that
      makes models half and never uses autocast, the inputs of a `forward` are likely half.

    It also flags operands of a compiled extension, or of an `autograd.Function` that runs one, if
    autocast makes some of them half and leaves others float32 (a projection next to a `softmax`). And it
    flags a tensor that `forward` of an `autograd.Function` hands to a kernel in its own dtype, while it
    casts two or more others to one dtype, if `backward` returns a gradient for that tensor.

    A complex tensor made of float16 (`complex(x, y)`, `view_as_complex`) next to transforms and
    products is a warning as well.

    ## Why it breaks
    The call raises: `linalg.inv: Low precision dtypes not supported. Got Half`, `"linalg_svd_cpu"
    not implemented for 'Half'`, `quantile() input tensor must be either float or double dtype`,
    `Unsupported dtype BFloat16`. CUDA's autocast does not help: these operations are on none of its
    lists, and the matrix products before them give half.

    ## Example
    ```python
    covariance = x.T @ x / len(x)
    whitening = torch.linalg.inv(covariance)
    ```
    Use instead:
    ```python
    covariance = x.T @ x / len(x)
    whitening = torch.linalg.inv(covariance.float())
    ```

    ## Fix safety
    Safe: `.float()` on a float32 operand does nothing. The result stays float32. Where it goes into a
    layer of a half model, the fix casts it back.

    ## How to silence
    `# precision-lint: ignore[MP505] reason` or `# noqa: MP505` on the line.

    ## Sources
    PyTorch, `torch.linalg` and `torch.fft` ("torch.half on CUDA with GPU architecture SM53 or
    greater, only powers of 2 signal length"); the dtypes that the operator tests of releases 1.13 to
    2.13 declare, which come with its wheels.
    """

    code = "MP505"
    name = "op-missing-in-half"
    severity = Severity.ERROR
    cost = Cost.RAISES
    applicability = Applicability.SAFE
    listens = (
        "missing-kernel",
        "missing-decomposition",
        "missing-kernel-elsewhere",
        "mixed-operands",
        "forgotten-operand",
        "half-anywhere",
    )

    def check(self, event: Event, at: Context) -> Iterator[Finding]:
        facts = event.facts
        said = SAID.get(event.kind)
        if said is not None:
            operands = facts.get("operands", ())
            yield Finding(
                said.format(**facts),
                fix=at.fix("upcast the operands", at.upcast(operands)) if operands else None,
                severity=Severity.WARNING if event.kind == "half-anywhere" else None,
            )
            return
        name = facts["operation"]
        known = (
            event.kind != "missing-kernel-elsewhere" or name.startswith("fft.") or name == "stft"
        )
        if name in ("cdist", "pdist") or not known:
            return
        some = name.startswith("fft.") and facts["dtype"] == "float16"
        harm = f"`{name}` has no kernel for {facts['dtype']}: this raises"
        if facts["release"]:
            harm = f"{_on(facts['device'])} has `{name}` of {facts['dtype']} from torch {facts['release']} on"
            harm += ": this raises before that"
        elif facts["device"] != "cuda":
            harm = f"{_on(facts['device'])} has no `{name}` of {facts['dtype']}: this raises"
        if some:
            harm = f"`{name}` of float16 raises unless the size is a power of two, and on the CPU"
        elif name in ("complex", "view_as_complex", "polar"):
            harm = f"`{name}` of float16 gives complex32, which transforms and products refuse"
        wide = at.upcast
        if name in SAME:
            wide = partial(at.compute_wide, event)
        yield Finding(
            harm,
            fix=at.fix(f"upcast the operands of {name}", wide(facts["operands"])),
            severity=Severity.WARNING if some else None,
        )
