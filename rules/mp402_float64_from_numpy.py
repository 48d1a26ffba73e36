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
    Provenance,
    Rule,
    Severity,
    Sink,
    calls,
)

DOUBLES = frozenset({
    "zeros", "ones", "eye", "identity", "linspace", "logspace", "geomspace", "hanning", "hamming",
    "blackman", "bartlett", "kaiser", "random.rand", "random.randn", "random.random",
    "random.uniform", "random.normal", "random.standard_normal", "loadtxt", "genfromtxt",
})  # fmt: skip
"""Functions of numpy that make float64 unless they are told another dtype."""
FOLLOWS = frozenset({
    "to", "cuda", "cpu", "view", "reshape", "unsqueeze", "expand", "expand_as", "repeat",
    "contiguous", "clone", "squeeze", "flatten", "transpose", "permute", "t", "detach", "T",
})  # fmt: skip
JOINS = frozenset({"cat", "stack", "where", "add", "sub", "mul", "div"})
ELEMENTWISE = (ast.Add, ast.Sub, ast.Mult, ast.Div)


class Float64FromNumpy(Rule):
    """float64 data of NumPy that promote float32 or half tensors.

    ## What it flags
    `torch.from_numpy(a)`, `torch.tensor(a)` and `torch.as_tensor(a)` of arrays that NumPy makes in
    float64 (`np.linspace`, `np.hanning`, `np.random.normal`, `np.eye`, ...), held in a buffer, an
    attribute or a local name, where they are added to, multiplied or joined with activations, or
    with a tensor of a lower dtype.

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
    triggers = calls("torch.from_numpy", "torch.tensor", "torch.as_tensor")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        if any(k.arg in ("dtype", None) for k in node.keywords) or not node.args:
            return
        source = _double(node.args[0], at)
        if source is None or at.value(node).ndim == 0:
            return
        met = _meeting(node, at, set())
        stored = None
        if met is None:
            stored = _attribute(node, at)
            met = _meeting_of(stored, at) if stored is not None else None
        if met is None:
            return
        use, other, there = met
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


def _meeting(
    node: ast.expr, at: Context, seen: set[int]
) -> tuple[ast.expr, ast.expr, Context] | None:
    """The operation in which a tensor promotes another one, that one, and where."""
    if id(node) in seen or len(seen) > 40:
        return None
    seen.add(id(node))
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.BinOp(left=left, right=right, op=op):
                if not isinstance(op, ELEMENTWISE):
                    return None
                other = right if left is inner else left
                if _activation(other, at):
                    return None if _cast(parent, at) else (parent, other, at)
            case ast.Attribute(attr=attr):
                if attr not in FOLLOWS | JOINS:
                    return None
            case ast.Subscript(value=value) if value is inner:
                pass
            case ast.Call(func=func):
                last = at.text(func).rpartition(".")[2]
                if last in JOINS:
                    given = [*parent.args, func]
                    parts = [p for g in given for p in getattr(g, "elts", [g]) if p is not inner]
                    others = [p for p in parts if _activation(p, at)]
                    if others and not _cast(parent, at):
                        return parent, others[0], at
                    return None
                dtype = at.value(parent).dtype
                if last not in FOLLOWS or (last == "to" and dtype not in ("", "float64")):
                    return None
            case ast.List() | ast.Tuple():
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=source):
                for use in at.uses(name):
                    if isinstance(use.ctx, ast.Load) and at.definition(name, use) is source:
                        found = _meeting(use, at, seen)
                        if found is not None:
                            return found
                return None
            case _:
                return None
        inner = parent
    return None


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


def _meeting_of(name: str, at: Context) -> tuple[ast.expr, ast.expr, Context] | None:
    """The first such operation in the methods of the class."""
    cls = at.function.cls
    for method in cls.methods.values() if cls is not None else ():
        there = at.inside(method)
        for node in method.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                if node.attr == name and at.text(node.value) == "self":
                    found = _meeting(node, there, set())
                    if found is not None:
                        return found
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


def _cast(use: ast.expr, at: Context) -> bool:
    """Whether the result is cast at once."""
    parent = at.parents.get(id(use))
    casts = ("float", "to", "type_as", "half", "bfloat16")
    return (isinstance(parent, ast.Attribute) and parent.attr in casts) or Apart.cast_next(use, at)
