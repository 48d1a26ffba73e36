"""Names of this file that hold modules which are made half, parameters and all."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.semantics.care import Care
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Function

MODULES = re.compile(
    r"(?<![a-z])(\w*model|\w*net|\w*encoder|\w*decoder|module|student|teacher|backbone|policy|actor|"
    r"critic|generator|discriminator|unet|vae|ema|transformer|llm|lm)(?![a-z])"
)
_NAMED = {
    "torch.float16": "float16", "torch.half": "float16", "torch.bfloat16": "bfloat16",
}  # fmt: skip
_WEIGHTED = re.compile(r"^isinstance\(.*\b(Linear|Conv[123]d)\b")
COPIES = frozenset({"copy.deepcopy", "copy.copy"})


class Halved:
    """Modules whose parameters the code itself makes float16 or bfloat16."""

    @staticmethod
    def names(function: Function, at: Context) -> dict[str, ast.Call]:
        """Names of a function, and the casts that make what they hold half."""
        there, found = at.inside(function), {}
        for node in function.nodes:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
                owner = _cast(node.value, there)  # in place, so it is a module
                name = dotted(owner) if owner is not None else None
                if name is not None:
                    found[name] = node.value
            elif isinstance(node, ast.Assign) and len(node.targets) == 1:
                name = dotted(node.targets[0])
                call = _chained(node.value, there)
                if name is None or call is None:
                    continue
                owner = _cast(call, there)
                made = isinstance(owner, ast.Call) and _is_class(owner)
                if made or MODULES.search(name.lower()) or _constructed(owner, function):
                    found[name] = call
        return found

    @staticmethod
    def dtype(node: ast.expr, at: Context) -> str | None:
        """The half dtype that an expression names, by itself or as a parameter's default."""
        if isinstance(node, ast.Name) and node.id not in at.function.assigned:
            node = at.function.defaults().get(node.id, node)
        return _NAMED.get(at.qualify(node) or "")

    @staticmethod
    def by_kind(at: Context) -> ast.Call | None:
        """The cast in a function of this file that makes weights half by the kind of layer, where
        it leaves out norms and embeddings, which stay float32 then."""
        for function in at.module.index.functions:
            for node in function.fact(_by_kind):
                for part in (inner for statement in node.body for inner in ast.walk(statement)):
                    if isinstance(part, ast.Assign) and isinstance(part.value, ast.Call):
                        target = dotted(part.targets[0]) or ""
                        if target.endswith(".data") and _cast(part.value, at.inside(function)):
                            return part.value
        return None

    @staticmethod
    def left_out(call: ast.Call, at: Context) -> tuple[ast.Call, str] | None:
        """The cast of other layers by kind, and what is wrong with a norm or embedding that stays
        float32 beside them."""
        cls, func = at.function.cls, at.text(call.func)
        if cls is None or not call.args or at.region(call).on:
            return None
        if func.count(".") == 1 and func.startswith("self."):
            made = str(at.module.attribute(cls, func[5:]).const)
            if not made.endswith(".Embedding") or Care.of(at) is not None:
                return None
            harm = (
                f"what {func} gives stays float32, and the layers behind it are half: this raises"
            )
        else:
            derived = any(base.endswith(("LayerNorm", "GroupNorm")) for base in cls.bases)
            own = len(call.args) > 2 and at.text(call.args[2]) == "self.weight"
            if not derived or not own or not at.value(call.args[0]).variable:
                return None
            harm = f"{at.text(call.args[0])} is half, and self.weight float32: this raises on CUDA"
        cast = Halved.by_kind(at)
        return (cast, harm) if cast is not None else None

    @staticmethod
    def copied(function: Function, at: Context) -> dict[str, tuple[ast.Call, str]]:
        """Names that hold a copy of another name's module: the call, and that name."""
        there, found = at.inside(function), {}
        for node in function.nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                name, call = dotted(node.targets[0]), node.value
                while (
                    isinstance(call, ast.Call)
                    and isinstance(call.func, ast.Attribute)
                    and call.func.attr in ("eval", "requires_grad_", "cuda")
                ):
                    call = call.func.value
                if name and isinstance(call, ast.Call) and there.qualify(call.func) in COPIES:
                    source = dotted(call.args[0]) if call.args else None
                    if source is not None:
                        found[name] = (call, source)
        return found


def _by_kind(function: Function) -> list[ast.If]:
    """Tests for kinds of layers with weights in a function that leaves out norms and embeddings."""
    tests = [
        node
        for node in function.nodes
        if isinstance(node, ast.If) and _WEIGHTED.search(ast.unparse(node.test))
    ]
    left_out = tests and not re.search("Norm|Embedding", ast.unparse(function.node))
    return tests if left_out else []


def _cast(call: ast.Call, at: Context) -> ast.expr | None:
    """What a call such as ``x.half()`` or ``x.to(torch.bfloat16)`` casts."""
    if not isinstance(call.func, ast.Attribute):
        return None
    name = call.func.attr
    if name in ("half", "bfloat16") and not call.args and not call.keywords:
        return call.func.value
    given = [*call.args, *(k.value for k in call.keywords)]
    if name == "to" and any(Halved.dtype(g, at) for g in given):
        return call.func.value
    return None


def _chained(node: ast.expr, at: Context) -> ast.Call | None:
    """The cast in a chain of calls such as ``x.half().eval().cuda()``."""
    while isinstance(node, ast.Call):
        if _cast(node, at) is not None:
            return node
        if not isinstance(node.func, ast.Attribute):
            return None
        node = node.func.value
    return None


def _is_class(call: ast.Call) -> bool:
    name = (dotted(call.func) or "").rpartition(".")[2]
    return name[:1].isupper() or name in ("from_pretrained", "deepcopy")


def _constructed(owner: ast.expr | None, function: Function) -> bool:
    """Whether a name was bound to an object of a class in the same function."""
    if not isinstance(owner, ast.Name):
        return False
    return any(
        isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == owner.id for t in node.targets)
        and isinstance(node.value, ast.Call)
        and _is_class(node.value)
        for node in function.nodes
    )
