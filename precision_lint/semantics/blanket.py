"""Casts that take no account of what they cast: a module in its forward pass, any tensor at all."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.semantics.care import Care
from precision_lint.semantics.names import dotted
from precision_lint.semantics.sinks import Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

LOOKED_AT = re.compile(
    r"is_floating_point|\.is_complex|FloatTensor|\.dtype\s*(==|in|!=|is)|\.dtype\b.*\bin\b|"
    r"torch\.(float|float32|int64|long)\b.*(==|\bin\b)|\bis_float|floating"
)
"""A helper that asks what kind of tensor it has."""
_HALVES = ("torch.float16", "torch.half", "torch.bfloat16")
_BATCH = re.compile(r"batch|input|sample|data|example|feature|target|kwargs|feed|encod")
"""Words of what holds the tensors of one step."""
_LABELS = re.compile(r"^(?:\w*targets?|\w*labels?|gts?|annot\w*|gt_\w+)$")
"""Names of what a batch is compared with: boxes, classes and identities in one tensor."""
_SHARDS = re.compile(r"deepspeed|fsdp|fully_?shard|fairscale", re.IGNORECASE)
_DTYPE = re.compile(r"(^|_)d?type(_|$)|precision")
"""Words of parameters that hold a dtype."""


class Blanket:
    """Casts whose operand is not the tensor of floats that they are meant for."""

    @staticmethod
    def module(call: ast.Call, at: Context) -> str | None:
        """The module that a forward pass replaces: ``self.gate = self.gate.float()``."""
        statement, func = at.statement(call), call.func
        cls = at.function.cls
        if not isinstance(func, ast.Attribute) or cls is None or not cls.is_module:
            return None
        if at.function.name != "forward" or not isinstance(statement, ast.Assign):
            return None
        path = dotted(func.value)
        if statement.value is not call or [dotted(t) for t in statement.targets] != [path]:
            return None
        if path is None or not path.startswith("self.") or path.count(".") != 1:
            return None
        if func.attr == "to" and all(_names_device(g) for g in call.args) and not call.keywords:
            return None  # a move
        called = at.mentions(rf"{re.escape(path)}\(")
        weights = at.mentions(rf"{re.escape(path)}\.(weight|bias|parameters)\b")
        return path if called and (weights or Sink.layer(func.value, at) is not None) else None

    @staticmethod
    def sharded(at: Context) -> bool:
        """Whether the file speaks of what holds views of a module's parameters."""
        return _SHARDS.search(f"{at.source.filename}\n{at.source.text}") is not None

    @staticmethod
    def any_tensor(call: ast.Call, at: Context) -> str | None:
        """The parameter whose tensors a helper casts in all containers, integers with the rest."""
        func, names = call.func, [p.arg for p in at.function.parameters()]
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            return None
        name = func.value.id
        if name not in names or not isinstance(at.statement(call), ast.Return):
            return None
        if not _to_float(call, names, at) or at.mentions(LOOKED_AT.pattern):
            return None
        recursive = any(
            isinstance(node, ast.Call)
            and (dotted(node.func) or "").rpartition(".")[2] == at.function.name
            for node in at.function.nodes
        )
        asked = any(
            isinstance(a, ast.If)
            and re.search(r"Tensor\b|is_tensor|'half'|\"half\"", at.text(a.test))
            for a in at.ancestors(call)
        )
        containers = at.mentions(r"\b(dict|Mapping)\b|\.items\(")
        return name if recursive and asked and containers else None

    @staticmethod
    def each(call: ast.Call, at: Context) -> str | None:
        """The batch of which a loop or comprehension makes each entry half, ids with the rest."""
        func = call.func
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            return None
        given = [*call.args, *(k.value for k in call.keywords)]
        half = func.attr in ("half", "bfloat16") and not given
        half |= func.attr == "to" and any(at.qualify(g) in _HALVES for g in given)
        if not half or at.mentions(LOOKED_AT.pattern):
            return None
        for parent in at.ancestors(call):
            for source, target in _rounds(parent):
                names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
                owner = re.sub(r"\.(?:items|values)\(\)$", "", at.text(source))
                entries = owner != at.text(source) and _BATCH.search(owner.lower())
                if func.value.id in names and entries:
                    return owner
        return None

    @staticmethod
    def labels(call: ast.Call, at: Context) -> str | None:
        """The labels of a batch that are cast to the dtype of the images, which may be float16."""
        func, cls = call.func, at.function.cls
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            return None
        name, statement = func.value.id, at.statement(call)
        if not _LABELS.match(name) or not isinstance(statement, ast.Assign):
            return None
        if func.attr != "to" or len(call.args) != 1 or call.keywords or Care.in_test(at):
            return None
        given = dotted(call.args[0]) or ""
        if given.startswith("self.") and cls is not None:
            stored = at.module.stores(cls).get(given[5:])
            made = [stored[0]] if stored is not None else []
        else:
            made = at.function.assigned.get(given, [])
        half = any(re.search(r"torch\.(?:float16|half)\b", ast.unparse(value)) for value in made)
        known = at.value(func.value)
        return name if half and (known.variable or not known.dtype) else None

    @staticmethod
    def blind(call: ast.Call, at: Context) -> str | None:
        """The tensor that a helper makes half because it is one, whatever it holds:
        ``map(lambda t: t.half() if torch.is_tensor(t) else t, args)``."""
        func = call.func
        if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
            return None
        given = [*call.args, *(k.value for k in call.keywords)]
        half = func.attr in ("half", "bfloat16") and not given
        half |= func.attr == "to" and any(at.qualify(g) in _HALVES for g in given)
        if not half or at.mentions(LOOKED_AT.pattern):
            return None
        name = func.value.id
        asks = re.compile(rf"(?:isinstance\(\s*{name},[^)]*Tensor|is_tensor\(\s*{name}\s*\))")
        bound = asked = False
        for part in ast.walk(at.function.node):
            if isinstance(part, ast.Lambda):
                target: list[ast.AST] = [*part.args.args]
                tests = [n.test for n in ast.walk(part.body) if isinstance(n, ast.IfExp)]
            elif isinstance(part, (ast.For, ast.ListComp, ast.GeneratorExp, ast.DictComp)):
                target = [t for _, bind in _rounds(part) for t in ast.walk(bind)]
                tests = [n.test for n in ast.walk(part) if isinstance(n, (ast.IfExp, ast.If))]
            else:
                continue
            named = {getattr(t, "arg", getattr(t, "id", "")) for t in target}
            if name in named and any(inner is call for inner in ast.walk(part)):
                bound = True
                asked |= any(asks.search(at.text(test)) for test in tests)
        return name if bound and asked and Blanket.each(call, at) is None else None


def _rounds(node: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """What a loop or comprehension goes over, and what it binds."""
    if isinstance(node, ast.For):
        return [(node.iter, node.target)]
    if isinstance(node, (ast.DictComp, ast.ListComp, ast.GeneratorExp)):
        return [(g.iter, g.target) for g in node.generators if not g.ifs]
    return []


def _names_device(node: ast.expr) -> bool:
    """Whether an expression is a device by its name: ``self.first_device``, ``x.device``."""
    return (dotted(node) or "").rpartition(".")[2].lower().endswith(("device", "gpu"))


def _to_float(call: ast.Call, names: list[str], at: Context) -> bool:
    """Whether a cast is to a half dtype, or to one that the caller gives."""
    assert isinstance(call.func, ast.Attribute)
    given = [*call.args, *(k.value for k in call.keywords)]
    if call.func.attr == "half":
        return not given
    if call.func.attr != "to" or len(given) != 1:
        return False
    if at.qualify(given[0]) in ("torch.float16", "torch.half", "torch.bfloat16"):
        return True
    return (
        isinstance(given[0], ast.Name)
        and given[0].id in names
        and _DTYPE.search(given[0].id) is not None
    )
