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
    "mixed-operands": "{operation} gets half operands beside float32 ones: a compiled kernel takes one dtype",
    "forgotten-operand": "{operand} goes to {operation} as it came, the others cast to one dtype",
}
"""What is said of events that are not about a missing kernel."""


def _on(device: str) -> str:
    return "the CPU" if device == "cpu" else device.upper()


class OpMissingInHalf(Rule):
    """Operation without a kernel for half tensors: linalg, fft, quantile, ctc_loss, histc.

    ## What it flags
    `torch.linalg.*` (inv, det, svd, eigh, qr, cholesky, solve, lstsq, pinv, ...) and their old
    names, `torch.fft.*`, `stft`, `quantile`, `histc`, `polar`, `complex`, `view_as_complex`,
    `ctc_loss`, `torch.special.*`, where the operand is half: cast to it, or the output of a layer
    or a product under autocast or in a half model. Which dtype is missing on which device is read
    off torch by a script, not typed in.

    A gap of the CPU counts where the code puts a tensor there (`x.cpu()`, `x.device.type == "cpu"`), or
    where `device` in the configuration names the CPU. So do kernels that came late: the CPU has `exp`,
    `sigmoid` and 73 more of float16 from torch 2.1 on, `matmul`, `conv2d`, `topk` and 64 more from 2.2 on,
    `layer_norm` from 2.3 on, `cross_entropy` from 2.4 on, and CUDA has `tril` of bfloat16 from 2.1 on.
    These are shown where the least torch is older, by `torch-version` or the project's metadata; then
    in files that cast something up because it is on the CPU as well. A tensor that is made float16 on a
    device which the code itself lets be the CPU (`"cuda" if torch.cuda.is_available() else "cpu"`),
    without a question for it, is a warning unless the least torch is 2.2.

    It stays silent where the operand is float32, where the device's autocast casts it up (CPU's
    does so for most of linalg and fft, CUDA's only for `ctc_loss`), and for operations that exist
    (`norm`, `cov`, `matrix_power`; `stft` with a float32 window, which promotes). A gap that only
    the CPU has is possible, and so is an operand of which only the caller knows the dtype, or of
    what is called on complex tensors as a rule (`irfft`, `ifft`, `angle`). `fft` of
    float16 is a warning: CUDA has it for sizes that are powers of two. It is likely in a module of
    a project that runs whole models under autocast. In a project that makes models half and never
    autocasts, the inputs of a `forward` are likely half.

    It also flags operands of a compiled extension, or of an `autograd.Function` that runs one, of which
    autocast makes some half and leaves others in float32 (a projection beside a `softmax`, weights apart),
    and the one tensor that `forward` of an `autograd.Function` hands to a kernel as it came, beside two
    or more that it casts to the dtype of another, if `backward` has a gradient for it.

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
    Safe: `.float()` on a float32 operand does nothing. The result stays in float32; where it goes
    on into a layer of a half model, the fix casts it back.

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
        harm = f"{name} has no kernel for {facts['dtype']}: this raises"
        if facts["release"]:
            harm = f"{_on(facts['device'])} has {name} of {facts['dtype']} from torch {facts['release']} on"
            harm += ": this raises before that"
        elif facts["device"] != "cuda":
            harm = f"{_on(facts['device'])} has no {name} of {facts['dtype']}: this raises"
        if some:
            harm = f"{name} of float16 raises unless the size is a power of two, and on the CPU"
        elif name in ("complex", "view_as_complex", "polar"):
            harm = f"{name} of float16 gives complex32, which transforms and products refuse"
        wide = at.upcast
        if name in SAME:
            wide = partial(at.compute_wide, event)
        yield Finding(
            harm,
            fix=at.fix(f"upcast the operands of {name}", wide(facts["operands"])),
            severity=Severity.WARNING if some else None,
        )
