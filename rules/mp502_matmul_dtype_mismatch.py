from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Apart,
    Applicability,
    Care,
    Confidence,
    Context,
    Created,
    Fed,
    Finding,
    Fix,
    Halved,
    Hardcoded,
    Rule,
    Severity,
    Sink,
    Unlike,
    operators,
)

OPERANDS: dict[str, tuple[tuple[int, str], tuple[int, str]]] = {
    **dict.fromkeys(
        ("linear", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d",
         "conv_transpose3d"),
        ((0, "input"), (1, "weight")),
    ),
    "layer_norm": ((0, "input"), (2, "weight")),
    "group_norm": ((0, "input"), (2, "weight")),
    "grid_sample": ((0, "input"), (1, "grid")),
    "scaled_dot_product_attention": ((0, "query"), (1, "key")),
    "sparse.mm": ((0, "input"), (1, "other")),
}  # fmt: skip
"""Functions whose operands have to agree in dtype outside autocast, and which these are."""
CONSTANTS = re.compile(r"^self\.(?!weight$|bias$)\w+$")


class MatmulDtypeMismatch(Rule):
    """Matrix product or layer with half and float32 operands, which raises outside autocast.

    ## What it flags
    `@`, `matmul`, `bmm`, `mm`, `einsum`, `linear`, `conv*`, `grid_sample`, attention and norms
    with a weight outside autocast, where one operand is half and the other float32: created without
    dtype (`torch.eye(n)`), made float32 (`one_hot(...).float()`), held as a plain float32 attribute
    that `model.half()` does not convert, or moved by hand (`self.x.to(device)`), because what is
    not moved with its module is not cast with it either. Likewise

    - a float32 tensor that goes into a layer whose weights may be half (`self.fc(x.float())`), or
      into a model that the code makes half,
    - an input that a wrapped layer takes in its own dtype and that meets an adapter's weights,
    - what a norm's own class or an embedding meets where the file makes only other layers half,
    - an operand that one branch creates in `x.dtype` and the other in float32,
    - what a module without weights makes of float32 noise or tables, in a layer.

    Only possible: attention weights that a bias of its own dtype was added to, an adapter's input
    that the wrapped layer takes too, inputs that are moved to a device and not cast, entries of a
    batch that a whole model is given, what comes back from numpy or a processor on a device alone,
    an input of a first layer where the function follows the dtype of its activations, the matrix
    that a helper is given for what it casts up, and saved inputs that a `backward` multiplies by a
    gradient as it comes. So are

    - images scaled to [-1, 1] and latents that an autoencoder is given uncast, a pipeline's
      embeddings, entries of a processor moved to a model's device, tables of a scheduler,
    - a parameter of `forward` that goes into a part uncast, where others are cast to `self.dtype`,
    - inputs that one flag makes half, or a model, where nothing casts the other of the two,
    - a norm that calls `super().forward(x.float())`.

    Likely where the project runs half models, else possible: a forward pass outside of the region
    that another method puts around it, a product of what was upcast on a condition with what was
    made before that, an own head on a pre-trained model, and queries or keys that are made float32
    before an attention whose values are not (there mixed precision is enough).

    Likely by themselves, because the file says both: `F.linear(x, self.weight.to(x.dtype),
    self.bias)`; a parameter in a product as it is, where other weights of the file are cast to
    `x.dtype`; the one layer of a constructor that does not get the dtype of the others; the output
    of a model that the constructor makes half in a layer that it does not.

    It stays silent inside autocast, which casts both operands down, where either dtype is open, for
    norms without weights, for layers that the code keeps in float32, and for an einsum that sums
    over nothing, which promotes. A tensor created without dtype in a function that follows a dtype
    elsewhere is MP401's. Products of geometry are MP501's, because they have to go up instead.
    Operands of which nothing says that they share a dtype (two parameters of a function, the
    features and the grid of `grid_sample`) are only possible, and so is everything here in a
    project that trains under autocast, unless it has half models too and the module follows a dtype
    somewhere, or creates the float32 tensor itself: only then is the code meant to run outside of
    the region. A layer that is given `x.float()` where autocast is off is `possible` too.

    ## Why it breaks
    Matrix products do not promote: `expected m1 and m2 to have the same dtype, but got: c10::Half
    != float`. The code works in float32 and under autocast, and fails in the first evaluation or
    export of a half model.

    ## Example
    ```python
    rotation = torch.eye(size, device=x.device)
    y = torch.bmm(x, rotation.expand(len(x), -1, -1))
    ```
    Use instead:
    ```python
    rotation = torch.eye(size, device=x.device, dtype=x.dtype)
    y = torch.bmm(x, rotation.expand(len(x), -1, -1))
    ```

    ## Fix safety
    Safe: with a float32 operand the added dtype or cast changes nothing. There is no fix for a
    norm, whose weight may be absent, or for a layer inside a container.

    ## How to silence
    `# precision-lint: ignore[MP502] reason` or `# noqa: MP502` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (matrix products are not elementwise).
    """

    code = "MP502"
    name = "matmul-dtype-mismatch"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(
        ast.MatMult, pattern=r"[\w\])][ \t]*@[ \t]*(?:[\w(\\#]|$)|^[ \t]*@[ \t]"
    ) | (
        operators(
            ast.Call,
            pattern=r"\b(?:matmul|bmm|mm|mv|einsum|baddbmm|linear|bilinear|conv[123]d|layer_norm|"
            r"_conv_forward|group_norm|grid_sample|scaled_dot_product_attention|memory_efficient_attention|flash_attn"
            r"(?:_func)?)\b|batch\[|"
            r"\bfloat32\b|\.float\(\)|\.half\(\)|no_grad|\.(?:to|cuda)\(|lora_?A|lora_down|adapter_down",
        )
    )

    def check(self, node: ast.Call | ast.BinOp, at: Context) -> Iterator[Finding]:
        if at.is_plain(node) or Apart.by_test(node, at):
            return
        pairs = list(_pairs(node, at))
        for half, wide in pairs:
            yield from self._other_branch(node, wide, half, at)
            finding = self._judged(node, half, wide, at)
            if finding is not None:
                yield finding
                return
        if isinstance(node, ast.Call):
            yield from self._left_out(node, at)
            yield from list(self._entered(node, at)) or self._handed(node, at)
        if pairs:
            yield from self._apart(node, pairs[0], at)
        unlike = Unlike.of(node, at)
        if unlike is not None:
            where, harm, confidence = unlike
            told = (at.half_models,) if at.half_models is not None else at.settings[:1]
            yield at.finding(where, harm, confidence, evidence=told)

    def _judged(
        self, node: ast.Call | ast.BinOp, half_node: ast.expr, wide_node: ast.expr, at: Context
    ) -> Finding | None:
        """A finding if ``half_node`` may be half and ``wide_node`` is float32."""
        region = at.region(node)
        half_value, wide = at.value(half_node), at.value(wide_node)
        if region.on or "autocast" in half_value.dtype:
            return None  # half only inside a region
        if region.state == "off" and region.node and not half_value.variable:
            return None  # autocast was left without an upcast (MP203)
        moved = None
        if wide.dtype != "float32" or not wide.is_tensor:
            moved = Apart.moved_by_hand(wide_node, at)
            if moved is None or not half_value.variable or half_value.dtype == wide.dtype:
                return None
        if any(tag.startswith("widened") for tag in wide.tags):
            return None  # the creation is reported (MP401)
        if "_norm" in _kind(node, at) and half_value.variable and Halved.by_kind(at) is not None:
            return None  # float32, like the weight of the norm
        half = at.half(half_value, region)
        if half is None or any(Care.keeps_float32(name, at) for name in _attributes(half_node)):
            return None
        if half_value.variable and any(_widens(o, at) for o in Sink.origins(half_node, at, 0)):
            return None  # both sides were made float32
        confidence = half.confidence
        care = Care.of(at)
        if half_value.dtype not in ("float16", "bfloat16") and not half.told:
            if wide.made is not None and care is not None and at.statement(wide.made):
                return None  # the creation is reported (MP401)
            stored = half_value.tags & {"buffer", "parameter"}
            explicit = any(_widens(o, at) for o in Sink.origins(wide_node, at, 0)) or bool(
                wide.made or moved or stored or wide.tags & {"cast", "plain"}
            )
            named = at.text(half_node) if "parameter" not in half_value.tags else ""
            constant = CONSTANTS.match(named) and not stored
            constant = constant or Apart.given_matrix(half_node, wide_node, at)
            meant = explicit and not constant and Care.is_activation(named)
            if not meant or not Care.expects_half(at):
                asked = any(_asked_for(o, at) for o in Sink.origins(wide_node, at, 0))
                confidence = half.confidence if asked else Confidence.POSSIBLE
        elif at.project.autocast is not None and region.state == "inherited":
            confidence = Confidence.LIKELY
        origin = moved or wide.made or wide.node
        evidence = [*half.evidence]
        if at.project.half is not None and at.project.half not in evidence:
            evidence.append(at.project.half)
        if origin is not None:
            made = "moved by hand" if moved is not None else "made"
            evidence.append(at.note(origin, f"the float32 operand is {made} here"))
        return at.finding(
            node,
            f"{at.text(half_node)} may be {half.dtype} and {at.text(wide_node)} is float32: "
            f"{_kind(node, at)} do not promote, this raises",
            confidence,
            evidence=evidence,
            fix=self._fix(node, half_node, wide_node, at),
        )

    def _other_branch(
        self, node: ast.Call | ast.BinOp, operand: ast.expr, other: ast.expr, at: Context
    ) -> Iterator[Finding]:
        """Where one branch binds an operand in the dtype of a tensor, and the other in its own."""
        if not isinstance(operand, ast.Name) or at.region(node).on:
            return
        sources = at.function.assigned.get(operand.id, [])
        if len(sources) < 2 or any(
            Apart.read_before(operand, use, at) for use in at.uses(operand.id)
        ):
            return  # reported at the first product
        for follows in sources:
            for apart in sources:
                if not (Apart.in_other_branch(follows, apart, at) and Apart.asks_dtype(follows)):
                    continue
                value = at.value(apart)
                solved = (at.qualify(getattr(apart, "func", apart)) or "").startswith(
                    "torch.linalg"
                )
                if Apart.asks_dtype(apart) or not (solved or value.dtype == "float32"):
                    continue
                evidence = [
                    at.note(follows, "the other branch follows a dtype"),
                    at.note(node, "both go into this product"),
                ]
                if at.project.half is not None:
                    evidence.append(at.project.half)
                yield at.finding(
                    apart,
                    f"{operand.id} is float32 here and of the dtype of its inputs in the other "
                    f"branch: its product with {at.text(other)} raises in half",
                    Confidence.POSSIBLE if at.project.half is None else Confidence.LIKELY,
                    evidence=evidence,
                )
                return

    def _apart(
        self, node: ast.Call | ast.BinOp, operands: tuple[ast.expr, ast.expr], at: Context
    ) -> Iterator[Finding]:
        """Two operands whose dtypes have nothing to do with each other."""
        if at.region(node).on:
            return
        values = [at.value(operand) for operand in operands]
        if any(v.dtype and not v.variable for v in values):
            return
        evidence = [at.project.half] if at.project.half is not None else []
        for weight, given in (operands, operands[::-1]):
            wrapped = Apart.wrapped_input(weight, given, at)
            if wrapped is not None:
                evidence.insert(0, at.note(wrapped, "its dtype is that of the wrapped layer"))
                yield at.finding(
                    node,
                    f"{at.text(given)} has the dtype of the wrapped layer and {at.text(weight)} "
                    "that of the adapter: matrix products do not promote, this raises",
                    Confidence.LIKELY if at.project.half is not None else Confidence.POSSIBLE,
                    evidence=evidence,
                )
                return
        if values[0].dtype == values[1].dtype:
            return
        biased = Fed.biased(list(operands), at) if at.region(node).state != "off" else None
        if biased is not None:
            weights, bias = biased
            yield at.finding(
                node,
                f"{at.text(weights)} has the wider dtype of {at.text(bias)}, that was added: where "
                f"that is float32 and {at.text(operands[1])} half, this raises",
                Confidence.POSSIBLE,
                evidence=[at.note(bias, "added here"), *evidence],
            )
            return
        if _kind(node, at).endswith("grid_sample") or Apart.from_two_parameters(operands, at):
            yield at.finding(
                node,
                f"nothing makes {at.text(operands[0])} and {at.text(operands[1])} have one dtype, "
                f"and {_kind(node, at)} do not promote",
                Confidence.POSSIBLE,
                evidence=evidence,
            )

    def _left_out(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A norm or an embedding that stays float32, where other layers are made half by kind."""
        found = Halved.left_out(node, at)
        if found is not None:
            note = at.note(found[0], "layers are made half here, norms and embeddings are not")
            yield at.finding(node, found[1], Confidence.LIKELY, evidence=(note,))

    def _entered(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A float32 tensor that goes into a layer, whose weights may be half."""
        if not node.args or not isinstance(node.func, ast.Attribute):
            return
        if not at.plausible and not at.function.name.startswith("forward"):
            return
        if not Fed.may_be_wide(node.args[0], at):
            return  # cheaper than to interpret the function
        op = Sink.layer(node.func, at)
        if op is None or op == "rms_norm" or at.region(node).on:
            return  # RMSNorm promotes
        given = at.value(node.args[0])
        if given.wide and "normalized" in given.tags and op.startswith(("linear", "conv")):
            yield at.finding(
                node,
                f"under autocast {at.text(node.args[0])} is float32: outside of the region the "
                f"half weights of {at.text(node.func)} do not take it",
                Confidence.POSSIBLE,
            )
        if given.dtype != "float32" or not given.is_tensor or given.made is not None:
            return
        if any(tag.startswith("widened") for tag in given.tags) or _kept(node.func, at):
            return
        origins = Sink.origins(node.args[0], at)
        if any(Created.by_default(origin, at) for origin in origins):
            return  # the creation is reported (MP401)
        if Hardcoded.widened(node.args[0], at):
            return  # where float32 is named (MP403)
        layer = at.text(node.func)
        evidence = []
        source = given.node if given.node is not None else node.args[0]
        if source is not node.args[0]:
            evidence.append(at.note(source, "the float32 tensor is made here"))
        care = Care.of(at)
        if care is not None:
            evidence.append(at.note(care, "this function follows a dtype"))
        if at.project.half is not None:
            evidence.append(at.project.half)
        region = at.region(node)
        left = region.state == "off" and region.node is not None and _widens(node.args[0], at)
        weights = "the scale of" if "norm" in str(op) else "weights of"
        sure = Confidence.LIKELY if Care.expects_half(at) else Care.created_wide(origins, node, at)
        yield at.finding(
            node,
            f"{at.text(node.args[0])} is float32 and {weights} {layer} may be half: this raises",
            Confidence.POSSIBLE if left else sure,
            evidence=evidence,
            fix=_cast_input(node, layer, at),
        )

    def _handed(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """Inputs of which nothing says that they have the dtype of the weights they meet."""
        if at.region(node).on:
            return
        made = Fed.into_half(node, at)
        harm = made or Fed.unfit(node, at)
        if harm is None:
            return
        generated = " has no weights and makes " in harm
        sure = Care.offered(at, half=True) if generated else Confidence.POSSIBLE
        yield at.finding(
            node,
            f"{harm}: half weights do not take float32",
            Confidence.LIKELY if made is not None else sure,
            evidence=[at.project.half] if at.project.half is not None else [],
        )

    def _fix(self, node: ast.expr, half: ast.expr, wide: ast.expr, at: Context) -> Fix | None:
        if isinstance(node, ast.Call) and "norm" in (at.qualify(node.func) or ""):
            return None  # weight and bias may be None
        explicit = {"float16": ".half()", "bfloat16": ".bfloat16()"}.get(at.value(half).dtype)
        here = at.statement(node)
        if explicit is not None and at.value(wide).made is None and here is not None:
            edits = at.edit.append(here, {wide: explicit})
            title = f"cast {at.text(wide)} to {at.value(half).dtype}"
            if edits is None:
                return None
            return Fix(title, Applicability.UNSAFE, edits, "its own float32 use gets lost")
        follow = half
        while isinstance(follow, (ast.Subscript, ast.Call)):
            if isinstance(follow, ast.Call):
                if not isinstance(follow.func, ast.Attribute) or at.qualify(follow.func):
                    return None
                follow = follow.func.value
            else:
                follow = follow.value
        if not isinstance(follow, (ast.Name, ast.Attribute)):
            return None
        name = at.text(follow)
        if at.value(follow).dtype != at.value(half).dtype:
            return None
        made = at.value(wide).made
        statement = at.statement(made) if made is not None else None
        if made is not None and statement is not None and at.bound_before(name, made):
            edits = at.edit.add_keyword(statement, made, "dtype", f"{name}.dtype")
            title = f"create it with the dtype of {name}"
        else:
            here = at.statement(node)
            if here is None:
                return None
            edits = at.edit.append(here, {wide: f".to({name}.dtype)"})
            title = f"cast {at.text(wide)} to the dtype of {name}"
        return None if edits is None else Fix(title, Applicability.SAFE, edits)


def _pairs(node: ast.Call | ast.BinOp, at: Context) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Operands of an operation that does not promote, either way round."""
    operands: list[ast.expr] = []
    sampled = False
    if isinstance(node, ast.Call):
        home = at.qualify(node.func) or ""
        last = "sparse.mm" if home == "torch.sparse.mm" else home.rpartition(".")[2]
        places = OPERANDS.get(last)
        if places is not None and home.startswith("torch."):
            sampled = home.endswith("grid_sample")
            named = {k.arg: k.value for k in node.keywords}
            found = [node.args[i] if i < len(node.args) else named.get(name) for i, name in places]
            operands = [operand for operand in found if operand is not None]
    if not operands:
        name, operands = at.product(node)
        if name == "einsum" and isinstance(node, ast.Call) and not _contracts(node, at):
            return  # a broadcast product, which promotes
        if len(operands) != 2 or at.geometry(node, operands) is not None:
            return
    if len(operands) == 2 and not any(isinstance(o, ast.Starred) for o in operands):
        yield operands[0], operands[1]
        if not sampled:  # a grid is float32 sooner than the features
            yield operands[1], operands[0]


def _attributes(node: ast.expr) -> list[str]:
    """Attributes of ``self`` in an expression."""
    return [
        part.attr
        for part in ast.walk(node)
        if isinstance(part, ast.Attribute)
        and isinstance(part.value, ast.Name)
        and part.value.id == "self"
    ]


def _contracts(node: ast.Call, at: Context) -> bool:
    """Whether an einsum sums over a dimension, as far as its equation is known."""
    equations = [v.const for v in map(at.value, node.args) if isinstance(v.const, str)]
    if not equations or "->" not in equations[0]:
        return True
    inputs, _, output = equations[0].partition("->")
    return any(c.isalpha() and c not in output for c in inputs)


def _kind(node: ast.Call | ast.BinOp, at: Context) -> str:
    """What an operation is called in a message."""
    if isinstance(node, ast.BinOp):
        return "matrix products"
    name = (at.qualify(node.func) or "").rpartition(".")[2]
    return f"operands of {name}" if name in OPERANDS else "matrix products"


def _widens(node: ast.expr, at: Context) -> bool:
    """Whether an expression makes a tensor float32 in so many words."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "float" and not node.args:
        return True
    given = [*node.args, *(k.value for k in node.keywords)]
    return any(at.qualify(g) in ("torch.float32", "torch.float") for g in given)


def _asked_for(node: ast.expr, at: Context) -> bool:
    """Whether an expression is a softmax asked for in float32, which it is in a region anyway."""
    return (
        isinstance(node, ast.Call)
        and at.text(node.func).rpartition(".")[2] == "softmax"
        and any(at.qualify(k.value) == "torch.float32" for k in node.keywords if k.arg == "dtype")
        and not Care.in_test(at)
    )


def _kept(func: ast.expr, at: Context) -> bool:
    """Whether a layer stays float32 in a half model, or has no weights."""
    name, cls = at.text(func).removeprefix("self."), at.function.cls
    stored = at.module.stores(cls).get(name) if cls is not None else None
    if stored is not None and re.search(r"affine=False", ast.unparse(stored[0])):
        return True
    return Care.keeps_float32(name, at)


def _cast_input(node: ast.Call, layer: str, at: Context) -> Fix | None:
    """The input cast to the dtype of the layer's weight."""
    statement = at.statement(node)
    made = at.module.attribute(at.function.cls, layer[5:]).const if at.function.cls else None
    if statement is None or not isinstance(made, str):
        return None
    if made.rpartition(".")[2] in ("Sequential", "GRU", "LSTM", "RNN", "MultiheadAttention"):
        return None
    edits = at.edit.append(statement, {node.args[0]: f".to({layer}.weight.dtype)"})
    title = f"cast to the dtype of {layer}.weight"
    return Fix(title, Applicability.SAFE, edits) if edits is not None else None
