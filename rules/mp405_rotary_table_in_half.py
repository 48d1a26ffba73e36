from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Angle,
    Applicability,
    Care,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Half,
    Provenance,
    Rule,
    Severity,
    calls,
    operators,
)

RANGES = ("torch.arange", "torch.linspace")
TABLE = re.compile(r"freq|band|sin|cos|pos|rope|rotary|timestep|fourier|slope")
"""Words of functions that make tables of angles."""
PRODUCTS = frozenset({"einsum", "outer", "matmul"})
CREATED = frozenset({"torch.arange", "torch.linspace", "torch.tensor"})
MOVED = re.compile(r"device|\.to\(|\.cuda\(|type_as|_like\(|\bself\.")
"""What takes a tensor to where the model is."""
SHARDED = re.compile(r"fsdp|fully_?shard|\bMixedPrecision\b", re.I)
"""Words of settings that cast modules rather than open a region."""


class RotaryTableInHalf(Rule):
    """Angles of a rotary or sinusoidal embedding that are multiplied out in half precision.

    ## What it flags
    Positions times inverse frequencies whose product goes into `cos` and `sin`, where the product
    is half:

    - `inv_freq.float() @ positions.float()`, `einsum`, `matmul` in code that runs under autocast,
      which casts both operands down again. Only `enabled=False` helps;
    - positions created in, or cast to, the dtype of the activations (`torch.arange(n,
      dtype=x.dtype)`);
    - a buffer of frequencies used as it is in a project that makes whole models half, because
      `model.half()` rounds the buffer, and so does FSDP's mixed precision (possible where nothing
      says that models are half);
    - exponents of frequencies that a table's function makes in the dtype its caller gives
      (possible).

    It stays silent where the region is off, where the product is elementwise and its operands are
    float32 (`outer` and `*` are on no list), where cosine and sine are cast last, and where both
    operands are created on the CPU. A table that is filled when the module is made, before anything
    rounds the buffer, and anew only for what is longer, is `possible`.

    ## Why it breaks
    Float16 has 11 bits and bfloat16 8, so positions above 2048 or 256 are no longer distinct, and
    the angle of a large position is off by more than a turn. With everything in half the cosine of
    positions below 8192 is off by up to 2.0, with only `inv_freq` in half by 1.2 (float16) or 2.0
    (bfloat16). With the table in float32 and the cast last it is 2.4e-4 or 2.0e-3. Short contexts
    look fine.

    ## Example
    ```python
    freqs = torch.einsum("i,j->ij", t, self.inv_freq)
    cos, sin = freqs.cos(), freqs.sin()
    ```
    Use instead:
    ```python
    with torch.autocast(device_type=t.device.type, enabled=False):
        freqs = torch.einsum("i,j->ij", t.float(), self.inv_freq.float())
    cos, sin = freqs.cos(), freqs.sin()
    ```

    ## Fix safety
    Safe: float32 results stay the same to the bit. Where positions follow the dtype of a tensor,
    the fix makes them float32 and casts cosine and sine to that dtype. There is none where the code
    names float16 or bfloat16 itself, which rounds a float32 run as well, and none for a buffer that
    `model.half()` has rounded, which no cast brings back: compute the frequencies anew in float32,
    or keep the buffer out of the cast.

    ## How to silence
    `# precision-lint: ignore[MP405] reason` or `# noqa: MP405` on the line.

    ## Sources
    Su et al., RoFormer: Enhanced Transformer with Rotary Position Embedding (2021). PyTorch,
    Automatic Mixed Precision: CUDA ops that autocast to float16.
    """

    code = "MP405"
    name = "rotary-table-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.cos", "Tensor.cos", "torch.polar", "torch.einsum", "torch.outer", "torch.matmul",
        "torch.arange", "torch.linspace",
    ) | operators(ast.MatMult, ast.Mult, pattern="arange|linspace")  # fmt: skip

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.Call) and at.qualify(node.func) in RANGES:
            yield from _frequencies(node, at)
            return
        if isinstance(node, ast.BinOp) or at.text(node.func).rpartition(".")[2] in PRODUCTS:
            angle = Angle.handed_on(node, at)
            if angle is None:
                return
        else:
            angle = Angle.of(node, at)
            if angle is None or _first(angle, at) is not node:
                return
        region = at.region(angle.product)
        half = at.half(at.value(angle.product), region)
        if half is None:
            return
        if half.confidence is not Confidence.CERTAIN and region.device != "cpu":
            if _on_cpu(angle, at):
                return
        lowered = angle.listed and region.state != "off" and _casts_down(angle, at)
        fix = None
        confidence = half.confidence
        if lowered and not region.on and _sharded(at):
            if "buffer" not in at.value(angle.frequencies).tags:
                return
            harm = f"FSDP casts {at.text(angle.frequencies)} with the parameters"
        elif lowered and (region.on or _under_autocast(at)):
            harm = "autocast casts positions and frequencies down, float32 or not"
            upcast = [o for o in angle.operands if not at.is_upcast(o)]
            edits = at.without_autocast(angle.product, upcast, "angles")
            if edits is not None:
                title = "multiply in float32 outside of autocast"
                fix = Fix(title, Applicability.SAFE, edits)
        elif region.on and not angle.listed and _rounded(angle, at) is None:
            return
        else:
            judged = self._low(angle, half, at)
            if judged is None:
                return
            confidence, harm, fix = judged
        evidence = [*half.evidence]
        evidence += [
            at.note(turn, "cosine and sine of the angles")
            for turn in angle.turns
            if turn.lineno != angle.product.lineno
        ]
        operand = _rounded(angle, at)
        if operand is not None and operand.lineno != angle.product.lineno:
            evidence.append(at.note(operand, "rounded to half here"))
        evidence += at.around(angle.product, "the statement that is moved")
        yield at.finding(
            angle.product,
            f"angles in {half.dtype}: {harm}; the cosine is off by up to 2.0 "
            f"from position {2048 if half.dtype == 'float16' else 256} on",
            confidence,
            evidence=dict.fromkeys(evidence),
            fix=fix,
        )

    def _low(
        self, angle: Angle, half: Half, at: Context
    ) -> tuple[Confidence, str, Fix | None] | None:
        """The verdict on operands that are half themselves."""
        rounded = _rounded(angle, at)
        value = at.value(angle.product)
        proven = value.dtype in ("float16", "bfloat16", "low")
        if rounded is None:
            buffers = [o for o in angle.operands if "buffer" in at.value(o).tags]
            if not proven and not buffers:
                return None
            own = {at.value(o).dtype for o in buffers}
            cast = [o for o in angle.operands if "cast" in at.value(o).tags]
            if any(at.value(o).dtype not in own for o in cast) and not proven:
                return None  # the author has seen to it
            name = at.text(buffers[0]) if buffers else at.text(angle.frequencies)
            moved = _counts(angle, at) and _of_module(angle, at)
            sure = half.confidence if proven or moved else Confidence.POSSIBLE
            if not proven and (at.half_models is None or _at_construction(at)):
                sure = Confidence.POSSIBLE  # a table made before is rounded only where it grows
            return sure, f"{name} is rounded with the model", None
        model = at.half_models is not None and not Care.in_test(at)
        likely = proven or (model and _counts(angle, at))
        sure = half.confidence if likely else Confidence.POSSIBLE
        text = " ".join(at.text(rounded).split())
        return sure, f"{text[:60]} rounds positions or frequencies", self._widened(angle, at)

    def _widened(self, angle: Angle, at: Context) -> Fix | None:
        """Everything in float32, and the cast behind cosine and sine."""
        points = [p for o in angle.operands if (p := _cast_point(o, at)) is not None]
        dtypes = {_dtype_text(p, at) for p in points}
        dtype = dtypes.pop() if len(dtypes) == 1 else None
        if dtype is None or not dtype.endswith(".dtype"):
            return None  # a dtype that is named rounds a float32 run as well
        edits: list[Edit] = []
        spelling, imports = at.torch()
        if imports:
            return None
        statements: dict[int, tuple[ast.stmt, dict[ast.expr, str]]] = {}
        for point in points:
            keyword = next((k.value for k in point.keywords if k.arg == "dtype"), None)
            statement = at.statement(point)
            if statement is None:
                return None
            texts = statements.setdefault(id(statement), (statement, {}))[1]
            if keyword is not None:
                texts[keyword] = f"{spelling}.float32"
            elif isinstance(point.func, ast.Attribute):
                owner = at.text(point.func.value)
                tight = isinstance(point.func.value, (ast.Name, ast.Attribute, ast.Call))
                texts[point] = f"{owner}.float()" if tight else f"({owner}).float()"
        for turn in angle.turns:
            statement = at.statement(turn)
            if statement is None or id(statement) in statements:
                return None
        for statement, texts in statements.values():
            made = at.edit.replace(statement, texts)
            if made is None:
                return None
            edits += made
        turned: dict[int, tuple[ast.stmt, dict[ast.expr, str]]] = {}
        for turn in angle.turns:
            statement = at.statement(turn)
            found = at.operation(turn)
            if statement is None or (found is not None and found[0] == "polar"):
                continue  # complex
            turned.setdefault(id(statement), (statement, {}))[1][turn] = f".to({dtype})"
        for statement, suffixes in turned.values():
            made = at.edit.append(statement, suffixes)
            if made is None:
                return None
            edits += made
        title = "compute the angles in float32 and cast cosine and sine"
        return Fix(title, Applicability.SAFE, tuple(edits))


def _frequencies(node: ast.Call, at: Context) -> Iterator[Finding]:
    """Exponents of frequencies in a dtype that the caller gives."""
    dtype = next((k.value for k in node.keywords if k.arg == "dtype"), None)
    if dtype is None or at.region(node).on or not TABLE.search(at.function.qualname.lower()):
        return
    text, names = at.text(dtype), {p.arg for p in at.function.parameters()}
    open_ = (isinstance(dtype, ast.Name) and dtype.id in names) or text.endswith(".dtype")
    value = at.value(node)
    if not open_ or value.dtype in ("float32", "float64", "int") or Angle.uses(node, at):
        return
    for parent in at.ancestors(node):
        if isinstance(parent, ast.stmt):
            return
        exponent = isinstance(parent, ast.BinOp) and isinstance(parent.op, ast.Pow)
        exponent |= isinstance(parent, ast.Call) and at.text(parent.func).endswith("exp")
        if exponent or at.qualify(node.func) == "torch.linspace":
            yield at.finding(
                node,
                f"frequencies in {text}: rounded to half, the angles made of them are off by more "
                "than a turn at large positions",
                Confidence.POSSIBLE,
                evidence=at.settings[:1],
            )
            return


def _first(angle: Angle, at: Context) -> ast.Call | None:
    """The first of an angle's turns that this rule looks at."""
    for turn in angle.turns:
        found = at.operation(turn)
        if found is not None and found[0] in ("cos", "polar"):
            return turn
    return None


def _on_cpu(angle: Angle, at: Context) -> bool:
    """Whether both operands are created here, on the CPU, where CUDA's autocast does not act."""
    for operand in angle.operands:
        origins = list(Provenance.of(operand, at, casts=True))
        made = [o for o in origins if (at.qualify(getattr(o, "func", o)) or "") in CREATED]
        if not made or any(MOVED.search(at.text(origin)) for origin in origins):
            return False
    return True


def _at_construction(at: Context) -> bool:
    """Whether a method fills its tables when the module is made, and anew only if they end."""
    cls, name = at.function.cls, at.function.name
    init = at.module.index.method(cls, "__init__") if cls is not None else None
    around = [init] if init is not None else []
    if cls is not None:  # which hands on to the class above
        classes = [at.module.index.classes.get(base) for base in cls.bases]
        around += [c.methods["__init__"] for c in classes if c and "__init__" in c.methods]
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == name
        and at.text(node.func.value) == "self"
        for function in around
        for node in function.nodes
    )


def _under_autocast(at: Context) -> bool:
    return at.project.ambient is not None and at.plausible and not Care.in_test(at)


def _sharded(at: Context) -> bool:
    """Whether the mixed precision of the project is FSDP's, which casts parameters and buffers."""
    ambient = at.project.ambient
    return ambient is not None and SHARDED.search(ambient.message) is not None


def _casts_down(angle: Angle, at: Context) -> bool:
    """Whether both operands of a listed product are of a dtype that autocast casts down."""
    dtypes = [at.value(operand).dtype for operand in angle.operands]
    return "float64" not in dtypes and any(
        dtype == "float32" or dtype.startswith(("~buffer.", "~parameter.")) for dtype in dtypes
    )


def _counts(angle: Angle, at: Context) -> bool:
    """Whether the frequencies are multiplied by positions, rather than by a time from 0 to 1."""
    other = next(o for o in angle.operands if o is not angle.frequencies)
    if at.value(other).dtype == "int":
        return True
    texts = [at.text(origin) for origin in Provenance.of(other, at, casts=True)]
    return re.search(r"pos(ition)?_?ids|position|arange|seq|\bt\b", " ".join(texts)) is not None


def _of_module(angle: Angle, at: Context) -> bool:
    """Whether a module multiplies its inverse frequencies, which are cast with it."""
    texts = " ".join(at.text(o) for o in angle.operands)
    module = at.function.cls is not None and at.plausible and not Care.in_test(at)
    kept = "keep_in_fp32" in at.source.text  # a list of modules that stay float32
    return "inv_freq" in texts and module and not kept


def _rounded(angle: Angle, at: Context) -> ast.Call | None:
    """Where an operand is created in, or cast to, a dtype that may be half."""
    for operand in angle.operands:
        point = _cast_point(operand, at)
        if point is not None:
            return point
    return None


def _cast_point(operand: ast.expr, at: Context) -> ast.Call | None:
    for origin in Provenance.of(operand, at):
        if isinstance(origin, ast.Call) and _dtype_text(origin, at) is not None:
            return origin
    return None


def _dtype_text(call: ast.Call, at: Context) -> str | None:
    """The dtype that a call gives its result, as an expression, if that may be half."""
    given = [k.value for k in call.keywords if k.arg == "dtype"]
    name = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if name in ("half", "bfloat16") and not call.args:
        return f"{at.torch()[0]}.{'float16' if name == 'half' else name}"
    if name == "type_as" and len(call.args) == 1 and isinstance(call.args[0], ast.Name):
        return f"{at.text(call.args[0])}.dtype"
    if name == "to":
        given += call.args
    for node in given:
        text = at.text(node)
        dtype = at.value(node).dtype if at.value(node).kind == "dtype" else ""
        follows = text.endswith(".dtype") and dtype.startswith("~")
        if dtype in ("float16", "bfloat16") or (follows and not dtype.startswith("~buffer")):
            return text
    return None
