from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Apart,
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Meeting,
    Provenance,
    Rule,
    Severity,
    Sink,
    calls,
    operators,
)

DOUBLES = frozenset({
    "zeros", "ones", "eye", "identity", "linspace", "logspace", "geomspace", "hanning", "hamming",
    "blackman", "bartlett", "kaiser", "random.rand", "random.randn", "random.random",
    "random.uniform", "random.normal", "random.standard_normal", "loadtxt", "genfromtxt",
})  # fmt: skip
"""Functions of numpy that make float64 unless they are told another dtype."""


class Float64FromNumpy(Rule):
    """float64 data of NumPy that promote float32 or half tensors.

    ## What it flags
    `torch.from_numpy(a)`, `torch.tensor(a)` and `torch.as_tensor(a)` of arrays that NumPy makes in
    float64 (`np.linspace`, `np.hanning`, `np.random.normal`, `np.eye`, ...), held in a buffer, an
    attribute or a local name, or returned by a function, where they are added to, multiplied or
    joined with activations, or with a tensor of a lower dtype; and where they weigh the classes of
    a loss, which takes no other dtype than that of its predictions.

    It stays silent on arrays with a dtype of their own or an `astype`, on tensors that are cast
    (`.float()`, `.to(x.dtype)`, `dtype=`), where the result is cast at once, and on arrays whose
    dtype is not known. Products with float32 and dtypes beside a half model are MP401's.

    ## Why it breaks
    float64 wins every promotion, so activations are float64 from there on: 4 to 8 times the memory
    of half, and on most GPUs a 32nd or 64th of the speed. Autocast casts float32 only, so the next
    layer raises `mat1 and mat2 must have the same dtype, but got Double and Half` (or `and
    BFloat16`), in a region as well as in a half model.

    ## Example
    ```python
    window = torch.from_numpy(np.hanning(x.shape[1]))
    y = x * window
    ```
    Use instead:
    ```python
    window = torch.from_numpy(np.hanning(x.shape[1])).to(x.dtype)
    y = x * window
    ```

    ## Fix safety
    Unsafe: in a float32 run the result was float64 and comes down to float32, about seven digits.

    ## How to silence
    `# precision-lint: ignore[MP402] reason` or `# noqa: MP402` on the line.

    ## Sources
    NumPy, data types (float64 by default); PyTorch, `torch.from_numpy`; Automatic Mixed Precision
    (float64 is not eligible for autocast).
    """

    code = "MP402"
    name = "float64-from-numpy"
    severity = Severity.WARNING
    applicability = Applicability.UNSAFE
    triggers = calls("torch.from_numpy", "torch.tensor", "torch.as_tensor") | operators(
        ast.Add, ast.Sub, ast.Mult, ast.Div, pattern=r"[-+*/] *[\w.]+\("
    )

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.BinOp):
            yield from self._returned(node, at)
            return
        if any(k.arg in ("dtype", None) for k in node.keywords) or not node.args:
            return
        source = _double(node.args[0], at)
        if source is None and at.value(node.args[0]).kind == "array":
            source = node.args[0] if at.value(node).dtype == "float64" else None
        if source is None or at.value(node).ndim == 0:
            return
        loss = next((sink for sink in Sink.of(node, at) if sink.kind == "loss"), None)
        if loss is not None and at.value(node).dtype == "float64":
            yield at.finding(
                node,
                "float64 from NumPy weighs a loss, which takes the dtype of its predictions only: "
                "this raises",
                Confidence.LIKELY if at.project.evidence else Confidence.POSSIBLE,
                evidence=[
                    at.note(source, "NumPy makes float64 here"),
                    loss.at.note(loss.node, "it goes in here"),
                ],
                fix=_lowered(node, None, node, at),
            )
            return
        met = Meeting.of(node, at, _activation)
        stored = None
        if met is None:
            stored = _attribute(node, at)
            met = Meeting.of_attribute(stored, at, _activation) if stored is not None else None
        if met is None:
            return
        use, other, there = met.use, met.other, met.at
        value = there.value(other)
        half = there.half(value, there.region(use))
        confidence = Confidence.POSSIBLE
        if value.dtype in ("float16", "bfloat16") and half is not None:
            confidence = half.confidence
        elif at.project.evidence and there.plausible and not Care.in_test(at):
            confidence = Confidence.LIKELY
        text = " ".join(there.text(other).split())[:50]
        evidence = [at.note(source, "NumPy makes float64 here")]
        evidence.append(there.note(use, f"{text} becomes float64 here"))
        evidence += at.project.evidence[:1]
        yield at.finding(
            node,
            f"float64 from NumPy promotes {text}; autocast does not cast it down, so that the next "
            "layer raises",
            confidence,
            evidence=dict.fromkeys(evidence),
            fix=_lowered(node, None if stored else other, use, at),
        )

    def _returned(self, node: ast.BinOp, at: Context) -> Iterator[Finding]:
        """float64 that a function of the project returns, which NumPy made there."""
        for side, other in ((node.left, node.right), (node.right, node.left)):
            if not isinstance(side, ast.Call) or at.qualify(other) is not None:
                continue
            if at.module.callee(side.func, at.function) is None:
                continue
            value, met = at.value(side), at.value(other)
            if value.dtype != "float64" or "numpy" not in value.tags or not value.is_tensor:
                continue
            half = at.half(met, at.region(node))
            if half is None or not at.is_tensor(other) or Apart.cast_next(node, at):
                continue
            yield at.finding(
                node,
                f"{at.text(side.func)}() gives float64 from NumPy, which promotes "
                f"{at.text(other)}; autocast does not cast it down, so that the next layer raises",
                half.confidence if at.plausible else Confidence.POSSIBLE,
                evidence=half.evidence,
            )
            return


def _lowered(node: ast.Call, other: ast.expr | None, use: ast.expr, at: Context) -> Fix | None:
    """The tensor in the dtype of what it meets, or in float32."""
    statement = at.statement(node)
    spelling, imports = at.torch()
    if statement is None or imports:
        return None
    dtype = f"{spelling}.float32"
    if isinstance(other, ast.Name) and at.same_at(other.id, node, use):
        dtype = f"{other.id}.dtype"
    if at.text(node.func).endswith("from_numpy"):
        suffix = ".float()" if dtype.endswith("float32") else f".to({dtype})"
        edits = at.edit.append(statement, {node: suffix})
    else:
        edits = at.edit.add_keyword(statement, node, "dtype", dtype)
    if edits is None:
        return None
    reason = "the result comes down from float64 in a float32 run"
    return Fix("bring it down from float64", Applicability.UNSAFE, edits, reason)


def _double(array: ast.expr, at: Context) -> ast.expr | None:
    """The call of NumPy that makes an array float64; None: it is of another or unknown dtype."""
    found = None
    for origin in Sink.origins(array, at, 0):
        for part in ast.walk(origin):
            if isinstance(part, ast.keyword) and part.arg == "dtype":
                return None
            if isinstance(part, ast.Attribute) and part.attr in ("astype", "float32", "float16"):
                return None
        if isinstance(origin, ast.Call):
            home = at.qualify(origin.func) or ""
            if home.startswith("numpy.") and home[6:] in DOUBLES:
                if len(origin.args) > 1 and home[6:] in ("zeros", "ones"):
                    return None  # the second argument is a dtype
                found = found or origin
            elif home == "numpy.array" and _floats(origin):
                found = found or origin
    return found


def _floats(call: ast.Call) -> bool:
    """Whether an array is made of float literals."""
    return any(
        isinstance(part, ast.Constant) and isinstance(part.value, float)
        for argument in call.args[:1]
        for part in ast.walk(argument)
    )


def _attribute(node: ast.Call, at: Context) -> str | None:
    """The attribute of ``self`` that a tensor is stored in, as a buffer or plainly."""
    for parent in at.ancestors(node):
        if isinstance(parent, ast.Call):
            name = at.text(parent.func)
            if name == "self.register_buffer" and parent.args[1:2] == [node]:
                first = parent.args[0]
                named = isinstance(first, ast.Constant) and isinstance(first.value, str)
                return str(ast.literal_eval(first)) if named else None
            return None
        if isinstance(parent, ast.Assign) and len(parent.targets) == 1:
            text = at.text(parent.targets[0])
            plain = text.startswith("self.") and text.count(".") == 1 and "[" not in text
            return text[5:] if plain else None
        if isinstance(parent, ast.stmt):
            return None
    return None


def _activation(node: ast.expr, at: Context) -> bool:
    """Whether an operand is a tensor of a lower dtype, or an input or result of a model."""
    value = at.value(node)
    if value.dtype in ("float32", "float16", "bfloat16", "low"):
        return value.is_tensor
    if not value.variable or not value.maybe_tensor:
        return False
    if Provenance.computed(node, at) is not None:
        return True
    root = node
    while isinstance(root, (ast.Subscript, ast.Attribute)):
        root = root.value
    inputs = {p.arg for p in at.function.parameters()} if at.function.name == "forward" else set()
    return isinstance(root, ast.Name) and root.id in inputs and Care.is_activation(root.id)
