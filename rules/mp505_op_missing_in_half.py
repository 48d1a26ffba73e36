from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Forgotten,
    Gaps,
    Half,
    Kernels,
    Provenance,
    Region,
    Rule,
    Severity,
    calls,
    operators,
)

DISTANCES = ("torch.cdist", "torch.nn.functional.pdist")
"""Reported with their own numbers elsewhere."""
PAIRS = frozenset({"svd", "qr", "eig", "eigh", "slogdet", "lstsq", "lu", "lu_factor", "inv_ex"})
PLAIN = frozenset({"inverse", "det", "logdet", "slogdet"})
"""Methods of a tensor that take no argument."""

NAMES = frozenset(Kernels.names()) - {*DISTANCES}
OTHERS_HAVE = frozenset({"quantile", "nanquantile", "inverse", "angle", "lu", "qr", "solve"})
"""Methods that objects other than tensors have as well."""
COMPLEX = frozenset({"complex", "polar", "view_as_complex"})
"""What makes complex tensors of real ones, of half ones as well."""
OF_COMPLEX = re.compile(r"(^|\.)(angle|i(r?fft[2n]?)|hfft[2n]?|istft)$")
"""What is called on complex tensors as a rule."""
HALF = re.compile(r"torch\.(b?float16|half)\b")


class OpMissingInHalf(Rule):
    """Operation without a kernel for half tensors: linalg, fft, quantile, ctc_loss, histc.

    ## What it flags
    `torch.linalg.*` (inv, det, svd, eigh, qr, cholesky, solve, lstsq, pinv, ...) and their old
    names, `torch.fft.*`, `stft`, `quantile`, `histc`, `polar`, `complex`, `view_as_complex`,
    `ctc_loss`, `torch.special.*`, where the operand is half: cast to it, or the output of a layer
    or a product under autocast or in a half model. Which dtype is missing on which device is read
    off torch by a script, not typed in.

    It stays silent where the operand is float32, where the device's autocast casts it up (CPU's
    does so for most of linalg and fft, CUDA's only for `ctc_loss`), and for operations that exist
    (`norm`, `cov`, `matrix_power`; `stft` with a float32 window, which promotes). A gap that only
    the CPU has is possible, and so is an operand of which only the caller knows the dtype, or of
    what is called on complex tensors as a rule (`irfft`, `ifft`, `angle`). `fft` of
    float16 is a warning: CUDA has it for sizes that are powers of two. It is likely in a module of
    a project that runs whole models under autocast. In a project that makes models half and never
    autocasts, the inputs of a `forward` are likely half.

    Possible is also what depends on more than the operation: `interpolate(antialias=True)`,
    `bincount` with weights, `histogram` and torchvision's `nms` on the CPU, operations that older
    releases of torch lack (`topk`, `sigmoid`, `clamp` and 20 others of float16 on the CPU in 1.13,
    `tril` of bfloat16 on CUDA up to 2.0) unless the project asks for 2.4, `init.orthogonal_`, which
    runs a QR decomposition, what an extension or a custom function runs
    (`DeformAttnFunction.apply`, `_C.forward`), under autocast too. A complex tensor made of float16
    (`complex(x, y)`, `view_as_complex`) next to transforms and products is a warning as well.

    Likely is the one tensor that `forward` of an `autograd.Function` hands to a kernel as it came,
    beside two or more that it casts to the dtype of another, if `backward` has a gradient for it;
    and a cast to half on every device (`x.to(self.device).half()`) in a class that makes its
    model half behind a question for the device only.

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
    greater, only powers of 2 signal length"); the dtypes that its own operator tests declare.
    """

    code = "MP505"
    name = "op-missing-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(
        ast.Call,
        pattern=calls(*(n for n in Kernels.names() if n not in DISTANCES), *Gaps.NAMES).pattern
        + r"|\.half\(|\b(?:_C|_ext|ext|ext_module|MSDA|\w+_(?:cuda|ext|cpp|gpu|C))\.\w+\("
        r"|\bcuda_\w+\.(?:for|back)ward\(|_cuda_\w+\.(?:for|back)ward\("
        r"|=[ \t]*\w+\.(?:type_as\(|to\(\s*\w+\.dtype\s*\))",
    )

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if not _listed(node, at):
            yield from self._forgotten(node, at)
            yield from self._unasked(node, at)
            yield from self._under_circumstances(node, at)
            return
        name, operands = _called(node, at)
        region = at.region(node)
        device = region.device or "cuda"
        if not operands or (region.on and Kernels.casts_up(name, device)):
            return
        judged = [(o, _half(o, region, at)) for o in operands]
        halves = [(o, half) for o, half in judged if half is not None]
        if not halves:
            return
        if name.endswith(".stft") and _windowed(node, region, at):
            return  # promoted
        operand, half = max(halves, key=lambda pair: pair[1].confidence.rank)
        absent = half.dtypes & Kernels.absent(name, device)
        confidence, severity = half.confidence, Severity.ERROR
        if confidence is Confidence.POSSIBLE and at.plausible and _brought_up(node, at):
            confidence = Confidence.LIKELY
        short = name.removeprefix("torch.").removeprefix("Tensor.")
        if confidence is Confidence.LIKELY and OF_COMPLEX.search(short):
            confidence = Confidence.POSSIBLE
        if absent:
            dtype = "float16" if "float16" in absent else "bfloat16"
            harm = f"{short} has no kernel for {dtype}: this raises"
        elif short.startswith("fft."):
            if _power_of_two(node, at):
                return
            dtype, severity = "float16", Severity.WARNING
            inside = at.plausible and at.function.cls is not None and at.function.cls.is_module
            if inside and at.project.ambient is not None:
                confidence = Care.offered(at)  # a transform between a model's layers
            confidence = min(confidence, Confidence.LIKELY, key=lambda c: c.rank)
            harm = f"{short} of float16 raises unless the size is a power of two, and on the CPU"
        elif short in COMPLEX and at.mentions(r"istft|\bi?r?fftn?2?\b|einsum|matmul|bmm|@"):
            dtype, severity = "float16", Severity.WARNING
            confidence = min(confidence, Confidence.LIKELY, key=lambda c: c.rank)
            harm = f"{short} of float16 gives complex32, which transforms and products refuse"
        elif half.dtypes & Kernels.absent(name, "cpu") and not region.on:
            dtype, severity, confidence = half.dtype, Severity.WARNING, Confidence.POSSIBLE
            harm = f"{short} has no kernel for {dtype} on the CPU: this raises there"
        else:
            return
        evidence = [*half.evidence]
        made = Provenance.computed(operand, at)
        if made is not None and made is not operand and half.confidence is not Confidence.CERTAIN:
            evidence.append(at.note(made, "the operand comes out of this layer or product"))
        yield at.finding(
            node,
            harm,
            confidence,
            severity=severity,
            evidence=dict.fromkeys(evidence),
            fix=self._fix(node, [o for o, _ in halves], operand, region, at),
        )

    def _forgotten(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """Casts of all tensors that a kernel is given but one."""
        found = Forgotten.of(node, at)
        if found is None:
            return
        edits = at.edit.insert_after(
            found.last, f"{found.name} = {found.name}.type_as({found.dtype})"
        )
        title = f"cast {found.name} as well"
        yield at.finding(
            node,
            f"{found.name} is not cast to the dtype of {found.dtype}, as the other operands are: a "
            "kernel takes one dtype",
            Confidence.LIKELY,
            evidence=(at.note(found.call, "all of them go in here"),),
            fix=Fix(title, Applicability.SAFE, edits) if edits and not found.optional else None,
        )

    def _unasked(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A cast to half on every device, next to one that the CPU is spared."""
        other = Gaps.unasked(node, at)
        if other is None:
            return
        yield at.finding(
            node,
            "this casts to half on every device, and the class spares the CPU elsewhere: there the "
            "model is float32 and takes no half input",
            Confidence.LIKELY,
            evidence=(at.note(other, "here the device is asked first"),),
        )

    def _under_circumstances(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A kernel that a release, an option or an extension may lack."""
        found = Gaps.of(node, at) or Gaps.extension(node, at)
        if found is None:
            return
        harm, operand = found
        text = " ".join(at.text(operand).split())[:40]
        yield at.finding(
            node,
            f"{harm}: where {text} is half this raises",
            Confidence.POSSIBLE,
            severity=Severity.WARNING,
            evidence=at.settings[:1],
        )

    def _fix(
        self,
        node: ast.Call,
        operands: list[ast.expr],
        main: ast.expr,
        region: Region,
        at: Context,
    ) -> Fix | None:
        statement = at.statement(node)
        if statement is None:
            return None
        edits = dict.fromkeys(operands, ".float()")
        whole = _real_part(node, at)
        pure = not region.on and at.project.autocast is None
        name = at.text(main)
        if pure and whole is not None and at.reaches_layer(whole) and re.match(r"[\w.]+$", name):
            edits[whole] = f".to({name}.dtype)"
        made = at.edit.append(statement, edits)
        return Fix("run it in float32", Applicability.SAFE, made) if made is not None else None


def _listed(node: ast.Call, at: Context) -> bool:
    """Whether torch's tables name what is called."""
    qualified = at.qualify(node.func)
    if qualified is None and isinstance(node.func, ast.Attribute):
        qualified = f"Tensor.{node.func.attr}"
    return qualified in NAMES


def _called(node: ast.Call, at: Context) -> tuple[str, list[ast.expr]]:
    """Qualified name of what is called, and the operands that may be tensors of floats."""
    qualified = at.qualify(node.func)
    given = [a for a in node.args if not isinstance(a, ast.Starred)]
    given += [k.value for k in node.keywords if k.arg in ("window", "input", "A", "B", "other")]
    if qualified is not None:
        return qualified, given
    func = node.func
    if isinstance(func, ast.Attribute) and func.attr in PLAIN and (given or node.keywords):
        return "", []  # the inverse of something else, such as a normalisation
    if isinstance(func, ast.Attribute) and at.text(func.value) != "self":
        return f"Tensor.{func.attr}", [func.value, *given]
    return "", []


def _windowed(node: ast.Call, region: Region, at: Context) -> bool:
    """Whether a transform multiplies by a window that is float32, and so is what it transforms."""
    window = next((k.value for k in node.keywords if k.arg == "window"), None)
    if window is None:
        return False
    value = at.value(window)
    kept = "buffer" in value.tags and at.half_models is None
    return kept or at.half(value, region) is None


def _half(node: ast.expr, region: Region, at: Context) -> Half | None:
    """Why an operand is believed to be half."""
    value = at.value(node)
    if not value.maybe_tensor:
        return None
    half = at.half(value, region)
    if half is None or not value.variable or half.told:
        return half
    if value.wide and at.half_models is None:
        return None
    if Provenance.computed(node, at) is not None and at.plausible and not Care.in_test(at):
        return half
    if _asked(node, at):
        return Half(half.dtypes, Confidence.LIKELY, half.evidence, half.outside)
    named = at.mentions(HALF.pattern)  # half values come here, the code says
    if named and Care.expects_half(at):
        return half
    if _entered(node, at) and Care.expects_half(at):
        return half
    weight = "parameter" in value.tags and at.function.name == "forward"
    if weight and at.project.half is not None:
        return half
    shared = isinstance(parent := at.parents.get(id(node)), ast.Attribute) and (
        parent.attr in OTHERS_HAVE
    )
    if shared and not value.is_tensor and value.dtype not in at.analysis.tensors:
        return None  # nothing says that it is a tensor at all
    return Half(half.dtypes, Confidence.POSSIBLE, half.evidence, half.outside)


def _entered(node: ast.expr, at: Context) -> bool:
    """Whether an operand is an input of a module, in a project that makes models half."""
    if at.half_models is None or at.project.autocast is not None or not at.plausible:
        return False
    forward = at.function.cls is not None and at.function.name == "forward"
    names = {p.arg for p in at.function.parameters()}
    return forward and any(
        isinstance(origin, ast.Name) and origin.id in names and Care.is_activation(origin.id)
        for origin in Provenance.of(node, at)
    )


def _brought_up(node: ast.Call, at: Context) -> bool:
    """Whether the result is cast to float32 at once, which tells that its operand is not."""
    method = at.parents.get(id(node))
    call = at.parents.get(id(method)) if isinstance(method, ast.Attribute) else None
    if not isinstance(call, ast.Call) or call.func is not method:
        return False
    to = any(at.qualify(a) in ("torch.float32", "torch.float") for a in call.args[:1])
    return at.is_upcast(call) or (at.text(method).endswith(".to") and to)


def _asked(node: ast.expr, at: Context) -> bool:
    """Whether the code asks if what an operand is computed from is half, and casts that only."""
    asked = {
        at.text(test.left.value)
        for test in at.function.nodes
        if isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Attribute)
        and test.left.attr == "dtype"
        and any(HALF.search(at.text(side)) for side in test.comparators)
    }
    return any(
        isinstance(origin, (ast.Name, ast.Attribute)) and at.text(origin) in asked
        for origin in Provenance.of(node, at)
    )


def _power_of_two(node: ast.Call, at: Context) -> bool:
    """Whether the size of a transform is given, and is one that CUDA has in float16."""
    sizes = [k.value for k in node.keywords if k.arg in ("n", "s")] + node.args[1:2]
    if len(sizes) != 1:
        return False
    value = at.value(sizes[0])
    numbers = [v.const for v in (value.items if value.kind == "tuple" else (value,))]
    return bool(numbers) and all(isinstance(n, int) and n > 0 and n & (n - 1) == 0 for n in numbers)


def _real_part(node: ast.Call, at: Context) -> ast.expr | None:
    """The expression around a call that is one tensor of real numbers."""
    last = at.text(node.func).rpartition(".")[2]
    if last in PAIRS:
        return None
    if not at.value(node).dtype.startswith("complex"):
        return node
    parent = at.parents.get(id(node))
    if isinstance(parent, ast.Attribute):
        if parent.attr in ("real", "imag"):
            return parent
        call = at.parents.get(id(parent))
        if parent.attr == "abs" and isinstance(call, ast.Call):
            return call
    return None
