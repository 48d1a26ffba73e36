"""Activations that a wider operand promotes, by the shape of the code alone."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.semantics.apart import Apart
from precision_lint.semantics.care import Care
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

_CAST = re.compile(r"\.(?:to|type|type_as|half|bfloat16|float)\(|astype")
_NORMALISES = r"rsqrt|\.sqrt\(|\bsqrt\(|\bvar\(|\.std\(|normalize\(|(?<!self)\.norm\(|var_mean"
_SCALE = re.compile(r"scale|gamma|gain|alpha|layer_?scale|lambda|temperature|gate|(?<![a-z])ls\d?$")
"""Words of parameters that activations are multiplied by."""
_RETURNS_CAST = r"return [^\n]*\.(?:to|type|type_as|half)\("
_SCHEDULE = re.compile(
    r"(?<![a-z])(?:\w*alphas?(?:_\w+)?|\w*sigmas?(?:_\w+)?|\w*snr\w*|\w*cumprod\w*|\w*coefs?\w*|"
    r"c_(?:skip|out|in)|_?extract(?:_into_tensor)?)(?![a-z])"
)
"""Words of the values of a noise schedule."""
_SAMPLE = re.compile(
    r"^(?:self\.\w+\()?(?:x|z|x_?0|x_?t|x_?1|x_?start|\w*noise|noised?\w*|\w*samples?|\w*latents?|"
    r"img|images?|model_output|eps|epsilon|velocity|v|pred\w*|denoised|original\w*)\)?$"
)
_FLOAT32 = frozenset({
    "softplus", "exp", "log", "log1p", "expm1", "pow", "cumsum", "cumprod", "softmax",
    "log_softmax", "logsigmoid", "rsqrt", "reciprocal",
})  # fmt: skip
"""Operations whose results are float32 under autocast."""
_STORED = re.compile(
    r"vec|emb|feat|hidden|state|latent|cond|cache|past|prompt|memory|prefix|context|^k$|^v$|keys?|values?"
)
"""Words of tensors of floats that an object keeps."""
_OTHERS = frozenset({"self", "cls", "torch", "np", "math", "F", "args", "cfg", "config", "opt"})
_JOINS = ("torch.cat", "torch.concat", "torch.concatenate")


class Widening:
    """Arithmetic and joins in which one side has a dtype of its own."""

    JOINS = _JOINS

    @staticmethod
    def of(node: ast.BinOp | ast.Call, at: Context) -> str | None:
        """What widens the other operand, in words."""
        if isinstance(node, ast.Call):
            return _joined(node, at)
        statement = at.statement(node)
        if not isinstance(statement, (ast.Return, ast.Assign)) or statement.value is None:
            return None
        if not isinstance(node.op, ast.Mult):
            return _scheduled(node, statement.value, at)
        return _gain(node, statement, at) or _stepped(node, statement, at)


def _gain(node: ast.BinOp, statement: ast.Return | ast.Assign, at: Context) -> str | None:
    """``return (x - mean) * (var + eps).rsqrt() * self.g``, a norm by hand."""
    cls = at.function.cls
    if cls is None or not cls.is_module or at.function.name.startswith("__init"):
        return None
    for side, other in ((node.right, node.left), (node.left, node.right)):
        path = dotted(_viewed(side)) or ""
        if not re.fullmatch(r"self\.\w+", path) or isinstance(other, ast.Constant):
            continue
        if (dotted(_viewed(other)) or "").startswith("self."):
            continue  # weights of its own, which autocast leaves in float32 as well
        rooted = at.mentions(_NORMALISES)
        if not rooted and not (_SCALE.search(path) and at.function.name.startswith("forward")):
            continue
        stored = at.module.stores(cls).get(path[5:])
        if stored is None or "Parameter(" not in ast.unparse(stored[0]):
            continue
        if _CAST.search(ast.unparse(statement)) or at.mentions(_RETURNS_CAST) or Care.in_test(at):
            return None
        also = " and the root promote" if rooted else " promotes"
        return f"{path}, which autocast leaves in float32,{also} what goes on"
    return None


def _scheduled(node: ast.BinOp, whole: ast.expr, at: Context) -> str | None:
    """``alpha * x_start + sigma * noise``, of values that a schedule gives for the time."""
    sides = (node.left, node.right)
    if not any(isinstance(side, ast.BinOp) for side in sides):
        return None
    found = [_weighted(side, at) for side in sides]
    plain = [_SAMPLE.match(at.text(side).lower()) is not None for side in sides]
    if (
        not any(found)
        or not all(f or p for f, p in zip(found, plain, strict=True))
        or _CAST.search(ast.unparse(whole))
    ):
        return None
    factor = next(f for f in found if f is not None)
    if Apart.cast_next(node, at) or at.function.name == "<module>" or Care.in_test(at):
        return None
    names = {n.id for f in found if f is not None for n in ast.walk(f) if isinstance(n, ast.Name)}
    for name in sorted(names - {p.arg for p in at.function.parameters()}):
        for value in at.function.assigned.get(name, []):
            text = ast.unparse(value)
            if _CAST.search(text) or re.search(r"\.item\(|\bfloat\(|math\.|\bdtype\b", text):
                return None
    if isinstance(factor, ast.Name) and not at.function.assigned.get(factor.id):
        return None  # a number as likely as a tensor
    if at.value(factor).dtype in ("float16", "bfloat16") or at.value(factor).kind == "number":
        return None
    text = " ".join(at.text(factor).split())[:40]
    return f"{text} has the dtype of its schedule, float32 as a rule, and promotes half samples"


def _weighted(node: ast.expr, at: Context) -> ast.expr | None:
    """The value of a schedule that a product weights a sample by."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return None
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if _SAMPLE.match(at.text(other).lower()) and _SCHEDULE.search(at.text(side)[:60].lower()):
            return side
    return None


def _stepped(node: ast.BinOp, statement: ast.Return | ast.Assign, at: Context) -> str | None:
    """``x = x * rearrange(softplus(dt), ...)``, and then ``kernel(x)``."""
    if statement.value is not node or Care.in_test(at):
        return None
    names = {p.arg for p in at.function.parameters()}
    for side, other in ((node.left, node.right), (node.right, node.left)):
        if not isinstance(side, ast.Name) or side.id not in names or not _widened(other, at):
            continue
        if at.mentions(rf"\b{side.id}\b[^\n]*(?:\.to\(|type_as|\.half\()|autocast"):
            return None
        if isinstance(statement, ast.Assign):
            target = statement.targets[0]
            if not isinstance(target, ast.Name) or target.id != side.id:
                return None
            if not _handed_on(target.id, statement, at):
                return None
        elif not at.function.name.startswith("forward") or not Care.is_activation(side.id):
            return None
        text = " ".join(at.text(other).split())[:40]
        return f"{text} is float32 under autocast, and promotes {side.id} on its way out"
    return None


def _widened(node: ast.expr, at: Context) -> bool:
    """Whether an operation that autocast runs in float32 gave a value, by its text and bindings."""
    values = [node]
    for part in ast.walk(node):
        if isinstance(part, ast.Name):
            values += at.function.assigned.get(part.id, [])
    return any(
        isinstance(part, ast.Call)
        and str(dotted(part.func) or getattr(part.func, "attr", "")).rpartition(".")[2] in _FLOAT32
        for value in values
        for part in ast.walk(value)
    )


def _handed_on(name: str, statement: ast.stmt, at: Context) -> bool:
    """Whether a name goes into a call of the project after a statement, as it is."""
    for use in at.uses(name):
        call = at.parents.get(id(use))
        call = at.parents.get(id(call)) if isinstance(call, ast.keyword) else call
        if isinstance(call, ast.Call) and use is not call.func and use.lineno > statement.lineno:
            qualified = at.qualify(call.func) or ""
            if not qualified.startswith("torch.") and (dotted(call.func) or "") != "rearrange":
                return True
    return False


def _joined(call: ast.Call, at: Context) -> str | None:
    """``torch.cat([tensor[:i], embedding.vec, tensor[i:]])``"""
    parts = (
        call.args[0].elts if call.args and isinstance(call.args[0], (ast.List, ast.Tuple)) else []
    )
    if len(parts) < 2 or Care.in_test(at):
        return None
    kept = [(part, _kept(part, at)) for part in parts]
    foreign = [(part, text) for part, text in kept if text is not None]
    if not foreign or len(foreign) == len(parts):
        return None
    if at.mentions(r"dtype|type_as|\.half\(|\.float\(|autocast"):
        return None
    return f"{foreign[0][1]} has a dtype of its own: where that is wider, what is joined is too"


def _kept(node: ast.expr, at: Context) -> str | None:
    """The tensor of another object that an expression is, or is a slice of."""
    node = _viewed(node)
    if isinstance(node, ast.Name):
        values = at.function.assigned.get(node.id, [])
        # a loop binds the same expression once for each round that is looked at
        node = _viewed(values[0]) if len({id(value) for value in values}) == 1 else node
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
        kept = re.search(r"past|cache|memory|state", node.value.id)
        return at.text(node) if kept and node.value.id not in _OTHERS else None
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        if node.value.id not in _OTHERS and _STORED.search(node.attr.lower()):
            return at.text(node) if at.qualify(node) is None else None
    return None


def _viewed(node: ast.expr) -> ast.expr:
    """What an expression is a slice or a view of."""
    while True:
        if isinstance(node, ast.Subscript) and not isinstance(node.slice, ast.Constant):
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in ("view", "reshape", "unsqueeze", "expand"):
                return node
            node = node.func.value
        else:
            return node
