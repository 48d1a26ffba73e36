from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Blanket,
    Care,
    Confidence,
    Context,
    Fed,
    Finding,
    Fix,
    Forced,
    Half,
    Hardcoded,
    Meeting,
    Rule,
    Severity,
    Sink,
    calls,
    operators,
)

CREATED = (
    "zeros", "ones", "full", "eye", "tensor", "arange", "linspace", "rand", "randn", "as_tensor",
    "empty",
)  # fmt: skip

RANGES = ("arange", "linspace")


class HardcodedDtype(Rule):
    """float32 named in a forward pass where the dtype of the activations is meant.

    ## What it flags
    In `forward`, of a model that the project runs in half: masks and one-hot vectors made float32
    (`mask.float()`), constants with `dtype=torch.float32` and `torch.FloatTensor(...)` that are
    multiplied with, added to or joined with the output of a layer and go on into the next layer.

    Where the widened result is returned or goes elsewhere it is only possible. The same in other
    functions, with tensors that they are given, positions and counts included: likely where the
    project runs the module in half models, otherwise possible.

    A buffer that `torch.FloatTensor(n, m)` makes for a kernel of an extension, which takes it for
    the dtype of its inputs (possible for coordinates where models are trained under autocast, which
    leaves those in float32). A module that its owner's `forward` casts (`self.gate =
    self.gate.float()`; only possible in files that don't speak of DeepSpeed or FSDP). A helper that
    casts every tensor in nested containers to half, integers too. A parameter `dtype` that is
    float64 by default where it is float32 in other functions of the file.

    Only possible: float32 that a whole model is given (`model(torch.from_numpy(a).float())`),
    activations that a `forward` makes float32 and neither casts back nor returns as logits, and
    grids of a helper that takes a device and no dtype. The float32 target of a
    `binary_cross_entropy` is likely where the project runs half precision, a loop that makes each
    entry of a batch half where models are half.

    float16 is flagged too where it is named for others: a model that is made `.half()` whatever
    `dtype` its class was given, inputs that are always made half where the model is so on a
    condition, and normal noise that is drawn in half and cast up, whose 11 (bfloat16: 8) bits stay.
    So are a cast under a flag for float16 where the one for bfloat16 beside it is not asked,
    activations that `if x.dtype == torch.float32` makes float16, and, where the project runs half
    precision, noise drawn in the dtype of a tensor that is made float32 next.

    The rule stays silent where the numbers themselves need float32 (activations that are upcast,
    losses, buffers), where a test of the dtype has chosen float32, where the result is cast at
    once or only ranked (`topk`, of which the indices are kept), under autocast, which casts the
    next layer's input down again, and in projects that show no half models. A float32
    tensor that goes into a layer or a product directly is MP502's.

    ## Why it breaks
    A float32 tensor with dimensions promotes half activations, and the next layer raises `mat1 and
    mat2 must have the same dtype, but got Float and Half`. In float32 and under autocast the code
    works. A kernel raises, or reads bytes of float32 as halves. A module that is cast in `forward`
    gets new parameters each time that something has made it half again (ZeRO and FSDP hold views of
    the old ones). Whole numbers above 2048 are not exact in float16.

    ## Example
    ```python
    hidden = self.inner(x)
    hidden = hidden * mask.float()[..., None]
    return self.outer(hidden)
    ```
    Use instead:
    ```python
    hidden = self.inner(x)
    hidden = hidden * mask.to(hidden.dtype)[..., None]
    return self.outer(hidden)
    ```

    ## Fix safety
    Safe: in a float32 model the dtype is what it was. Zeros and ones are exact in half; a constant
    is rounded as every weight of the model is. Only the dtype of a mask, one-hot vector or constant
    in `forward` is fixed; a position or a count may need float32 until its last step.

    ## How to silence
    `# precision-lint: ignore[MP403] reason` or `# noqa: MP403` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion.
    """

    code = "MP403"
    name = "hardcoded-dtype"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    triggers = calls(
        "Tensor.float",
        "Tensor.to",
        "Tensor.type",
        "Tensor.half",
        "torch.softmax",
        "torch.nn.functional.softmax",
        "torch.normal",
        "torch.randn_like",
        *Hardcoded.LEGACY,
        *(f"torch.{name}" for name in CREATED),
    ) | operators(ast.arguments, pattern=r"torch\.(?:float64|double)")

    def check(self, node: ast.Call | ast.arguments, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.arguments):
            yield from _default(node, at)
            return
        name = Blanket.module(node, at)
        if name is not None:
            yield at.finding(
                node,
                f"{name} is cast in each forward pass: what shards half parameters (ZeRO, FSDP) "
                "goes on with the old ones",
                Confidence.LIKELY if Blanket.sharded(at) else Confidence.POSSIBLE,
            )
            return
        each = Blanket.each(node, at)
        name = Blanket.any_tensor(node, at) or each
        if name is not None:
            sure = at.project.evidence if each is None else at.half_models
            yield at.finding(
                node,
                f"every tensor in {name} is cast, ids and labels too: from 2048 (float16) or 256 "
                "(bfloat16) on they collide",
                Confidence.LIKELY if sure else Confidence.POSSIBLE,
                evidence=at.project.evidence[:1],
            )
            return
        forced = Forced.of(node, at) or Forced.drawn(node, at)
        if forced is not None:
            yield at.finding(forced.node, forced.harm, forced.confidence, evidence=forced.evidence)
            return
        if Care.chosen_by_dtype(node, at):
            return
        met = Hardcoded.meeting(node, at)
        if met is None:
            yield from _beside(node, at)
            return
        half = at.half(at.value(met.other), at.region(met.use)) if met is not None else None
        if half is None:
            return
        reaches = at.reaches_layer(met.use)
        text = " ".join(at.text(met.other).split())[:40]
        yield at.finding(
            node,
            f"float32 is named here and promotes {text}, which is {half.dtype} in a half model",
            half.confidence if reaches else Confidence.POSSIBLE,
            evidence=dict.fromkeys((*half.evidence, at.note(met.use, "both meet here"))),
            fix=self._fix(node, met, at),
        )

    def _fix(self, node: ast.Call, met: Meeting, at: Context) -> Fix | None:
        statement = at.statement(node)
        other = met.other
        while isinstance(other, ast.Subscript):
            other = other.value
        if statement is None or not isinstance(other, ast.Name):
            return None
        if not at.same_at(other.id, node, met.use):
            return None
        dtype = f"{other.id}.dtype"
        given = next((k.value for k in node.keywords if k.arg == "dtype"), None)
        if at.qualify(node.func) in Hardcoded.LEGACY:
            edits = at.edit.append(statement, {node: f".to({dtype})"})
        elif given is not None:
            edits = at.edit.replace(statement, {given: dtype})
        elif isinstance(node.func, ast.Attribute):
            edits = at.edit.exchange(statement, {node: f".to({dtype})"})
        else:
            return None
        if edits is None:
            return None
        return Fix(f"follow the dtype of {other.id}", Applicability.SAFE, edits)


def _beside(node: ast.Call, at: Context) -> Iterator[Finding]:
    """float32 that widens what the function is given."""
    met = Hardcoded.beside(node, at)
    if met is None:
        yield from _filled(node, at)
        yield from _handed(node, at)
        return
    value = at.value(met.other)
    half = at.half(value, at.region(met.use))
    if (half is None and value.dtype) or value.dtype == "~autocast":
        return  # in a half model it is float32 as well
    half = half or Half(frozenset({"float16"}), Confidence.POSSIBLE, ())
    passed_on = any(sink.kind == "module" for sink in Sink.of(met.use, at))
    inside = at.function.cls is not None and not at.text(node.func).endswith(RANGES)
    averaged = any(
        isinstance(a, ast.Attribute) and a.attr in ("sum", "mean") for a in at.ancestors(node)
    )
    if averaged and not (isinstance(met.use, ast.BinOp) and isinstance(met.use.op, ast.Div)):
        inside = False  # a share that goes into a loss, not a count to divide by
    expected = Care.expects_half(at) and (inside or passed_on) and at.is_tensor(met.other)
    text = " ".join(at.text(met.other).split())[:40]
    yield at.finding(
        node,
        f"float32 is named here and promotes {text}, which may be {half.dtype}",
        half.confidence if expected else Confidence.POSSIBLE,
        evidence=dict.fromkeys((*half.evidence, at.note(met.use, "both meet here"))),
    )


def _handed(node: ast.Call, at: Context) -> Iterator[Finding]:
    """float32 that a whole model is given, or that a forward pass leaves behind."""
    region = at.region(node)
    if region.on or at.value(node).ndim == 0:
        return
    if Hardcoded.named(node, at):
        call = Fed.to_model(node, at)
        if call is not None and not Care.in_test(at):
            named = next((k.value for k in node.keywords if k.arg == "dtype"), node)
            yield at.finding(
                named,
                f"float32 is named here and goes into {at.text(call.func)}, whose weights may be "
                "half",
                Confidence.POSSIBLE,  # as often what is kept in float32 on purpose
                evidence=(at.note(call, "it goes in here"), *at.settings[:1]),
            )
            return
    forced = Forced.target(node, at) or Forced.grid(node, at)
    if forced is not None:
        yield at.finding(forced.node, forced.harm, forced.confidence, evidence=at.settings[:1])
        return
    left = Hardcoded.left_wide(node, at)
    if left is not None:
        yield at.finding(
            node,
            f"{' '.join(at.text(left).split())[:40]} is made float32 here and not cast back: what "
            "it meets in a half model is promoted",
            Confidence.POSSIBLE,
            evidence=at.settings[:1],
        )


def _filled(node: ast.Call, at: Context) -> Iterator[Finding]:
    """A float32 buffer that a kernel of an extension fills from a tensor of any dtype."""
    kernel = Hardcoded.kernel(node, at)
    if kernel is None:
        return
    call, tensor = kernel
    believed = any(at.believes(evidence) for evidence in at.settings)
    if Hardcoded.coordinates(tensor, at) and (at.half_models is None or at.project.autocast):
        believed = False  # autocast leaves coordinates in float32, which come out of no layer
    yield at.finding(
        node,
        f"the buffer is float32 and {tensor}, from which the kernel fills it, may be half",
        Confidence.LIKELY if believed else Confidence.POSSIBLE,
        evidence=(at.note(call, "both go into the kernel here"), *at.settings[:1]),
    )


def _default(node: ast.arguments, at: Context) -> Iterator[Finding]:
    """A ``dtype`` that is float64 by default, where those of its neighbours are float32."""
    names = [*node.posonlyargs, *node.args][-len(node.defaults) :] if node.defaults else []
    pairs = [*zip(names, node.defaults, strict=True)]
    pairs += [(p, d) for p, d in zip(node.kwonlyargs, node.kw_defaults, strict=True) if d]
    for parameter, default in pairs:
        if parameter.arg != "dtype" or at.qualify(default) not in ("torch.float64", "torch.double"):
            continue
        others = [
            other
            for function in at.module.index.functions
            if (other := function.defaults().get("dtype")) is not None
        ]
        narrow = [o for o in others if at.qualify(o) in ("torch.float32", "torch.float")]
        wide = [o for o in others if at.qualify(o) in ("torch.float64", "torch.double")]
        if len(narrow) < 2 or len(wide) > 1:
            continue
        yield at.finding(
            default,
            f"dtype is float64 by default here and float32 in {len(narrow)} other functions of the "
            "file: their results do not go together in a product",
            Confidence.LIKELY,
            evidence=(at.note(narrow[0], "the default is float32 here"),),
        )
