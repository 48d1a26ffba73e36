"""Weights of a module that follow no dtype, where others of it, or their inputs, do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics.care import Care
from precision_lint.semantics.halved import Halved
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Class, Function

Found = tuple[ast.expr, str, Confidence]
"""Where operands differ, how, in words, and how sure that is."""

_WEIGHTED = re.compile(r"functional\.(?:linear|conv[123]d|conv_transpose[123]d)$")
_LAYERS = re.compile(r"nn\.(?:Linear|Bilinear|Conv[123]d|ConvTranspose[123]d)$")
_OWN = re.compile(r"^self\.\w+$")
_CAST = re.compile(r"\.(?:to|type)\([^()]*dtype|\.type_as\(|\.to\(\w+\)|dtype\s*=")
_FOLLOWED = re.compile(r"self\.\w+\.(?:to\(\s*(?:dtype\s*=\s*)?[\w.]+\.dtype|type_as\()")
"""A weight of its own that a module casts to the dtype of what comes in."""
_FOLLOWED_WEIGHT = re.compile(
    r"self\.\w*(?:weight|bias|kernel|filter)\w*\.(?:to\(\s*(?:dtype\s*=\s*)?[\w.]+\.dtype|type_as\()"
)
_DEQUANTIZED = re.compile(r"dequant|decompress|unpack|\bcast|dtype", re.IGNORECASE)
_UP = re.compile(r"\.float\(\)|\.to\((?:dtype\s*=\s*)?torch\.float(?:32)?\)")
_DOWN = re.compile(r"\.(?:to|type|type_as|half|bfloat16)\(")
_ON_HALF = re.compile(r"half|fp16|dtype|autocast|bf16")
_HEAD = re.compile(
    r"(?:^|_)(?:\w*head|classifier|score|regressor|reward|value|proj\w*|fc\d*|linear\d*)$"
)
_PRETRAINED = re.compile(r"\.(?:from_pretrained|from_config)$")


class OwnWeights:
    """Products and layers whose operands a module holds itself."""

    @staticmethod
    def of(node: ast.Call | ast.BinOp, at: Context) -> Found | None:
        """What is known of the operands of a product or layer; None: nothing."""
        if Care.in_test(at):
            return None
        if isinstance(node, ast.Call):
            found = _bias(node, at) or _made_here(node, at) or _beside(node, at)
            found = found or _head(node, at) or _norm(node, at) or _from_half(node, at)
            if found is not None:
                return found
        return _raw(node, at) or _before_upcast(node, at)


def _bias(call: ast.Call, at: Context) -> Found | None:
    """``F.linear(x.to(w.dtype), w, self.bias)``, and weights that are moved but not cast."""
    path = dotted(call.func) or ""
    if not path.endswith("_conv_forward") and not _WEIGHTED.search(at.qualify(call.func) or ""):
        return None
    named = {k.arg: k.value for k in call.keywords}
    given = [*call.args[:3], *(named[n] for n in ("input", "weight", "bias") if n in named)]
    if len(given) < 3 or at.region(call).on:
        return None
    x, weight, bias = given[:3]
    text = _bound(weight, at)
    own = _bound(bias, at)
    if text is not None and re.search(r"self\.weight\b[^)]*\bdevice\b", text):
        if "dtype" not in text and not at.mentions(r"\bdtype\b"):
            name = at.text(weight)
            harm = f"{name} is moved to the device of its input and not cast to its dtype"
            return call, f"{harm}: layers do not promote", Confidence.POSSIBLE
    if own is None or not re.fullmatch(r"self\.\w*bias", own) or text is None:
        return None
    if _FOLLOWED.search(text):
        harm = f"{at.text(weight)} has the dtype of the input and {own} its own: this raises"
        return call, harm, Confidence.LIKELY
    if re.search(r"\.(?:to|type_as)\(", at.text(x)) and _DEQUANTIZED.search(text):
        harm = f"the input is cast to the dtype of {at.text(weight)} and {own} is not: this raises"
        return call, harm, Care.offered(at, half=True)
    return None


def _bound(node: ast.expr, at: Context) -> str | None:
    """The text of what an operand is: of its only binding, if it is a name."""
    if isinstance(node, ast.Name):
        values = {id(v): v for v in at.function.assigned.get(node.id, [])}
        return ast.unparse(next(iter(values.values()))) if len(values) == 1 else None
    return at.text(node)


def _made_here(call: ast.Call, at: Context) -> Found | None:
    """A layer that is made here in the default dtype, and given what was cast to another."""
    if not isinstance(call.func, ast.Name) or not call.args or at.region(call).on:
        return None
    given = call.args[0]
    if not isinstance(given, ast.Name):
        return None
    name = call.func.id
    made = at.function.assigned.get(name, [])
    if not made or not all(_makes_layer(value, at) for value in made):
        return None
    if at.mentions(rf"\b{name}\.(?:half|bfloat16)\(|\b{name}\b[^\n]*dtype"):
        return None
    source = at.definition(given.id, given)
    if not isinstance(source, ast.Call) or not isinstance(source.func, ast.Attribute):
        return None
    cast = [*source.args, *(k.value for k in source.keywords)]
    half = source.func.attr in ("half", "bfloat16") and not cast
    if source.func.attr == "to":
        half = any(Halved.dtype(g, at) is not None for g in cast)
        spelled = " ".join(at.text(g) for g in cast)
        follows = "dtype" in spelled and "float32" not in spelled
    else:
        follows = False
    if not (half or follows):
        return None
    harm = f"{given.id} is cast and {name}, which is made here, is float32: this raises in half"
    return call, harm, Confidence.LIKELY if half else Care.offered(at, half=True)


def _makes_layer(value: ast.expr, at: Context) -> bool:
    """Whether an expression makes a layer with weights in the default dtype."""
    while (
        isinstance(value, ast.Call)
        and isinstance(value.func, ast.Attribute)
        and isinstance(value.func.value, ast.Call)
        and value.func.attr in ("to", "cuda", "eval", "requires_grad_")
    ):
        if any(Halved.dtype(g, at) or "dtype" in at.text(g) for g in value.args):
            return False
        if any(k.arg == "dtype" for k in value.keywords):
            return False
        value = value.func.value
    if not isinstance(value, ast.Call):
        return False
    if any(k.arg == "dtype" for k in value.keywords):
        return False
    if _LAYERS.search(at.qualify(value.func) or ""):
        return True
    path = dotted(value.func) or ""
    cls = at.function.cls
    if path.startswith("self.") and cls is not None:
        made = cls.methods.get(path[5:])
    else:
        made = at.module.index.function_named(path) if "." not in path else None
    if made is None or made.length > 40:
        return False
    there = at.inside(made)
    if there.mentions(r"dtype|half\("):
        return False
    layers = {
        target.id
        for node in made.nodes
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _LAYERS.search(there.qualify(node.value.func) or "")
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    returned = [n.value for n in made.nodes if isinstance(n, ast.Return)]
    return bool(returned) and all(isinstance(r, ast.Name) and r.id in layers for r in returned)


def _beside(call: ast.Call, at: Context) -> Found | None:
    """The one layer of a constructor that is not given the dtype that its siblings get."""
    if at.function.name != "__init__" or not _LAYERS.search(at.qualify(call.func) or ""):
        return None
    if _has_dtype(call) or not isinstance(at.statement(call), ast.Assign):
        return None
    if at.mentions(r"self\.(?:to|half|type)\("):
        return None
    layers = at.function.fact(_layers)
    with_dtype = [x for x in layers if _has_dtype(x) or _cast_behind(x, at)]
    if len(with_dtype) < 2 or len(layers) - len(with_dtype) > len(with_dtype):
        return None
    around = [a for a in at.ancestors(call) if isinstance(a, ast.Call)]
    if _cast_behind(call, at) or any(_has_dtype(a) for a in around):
        return None
    name = at.text(call.func)
    harm = f"this {name} is not given the dtype that {len(with_dtype)} others here get"
    return call, f"{harm}: it is float32 beside half layers", Confidence.LIKELY


def _cast_behind(call: ast.Call, at: Context) -> bool:
    """Whether a chain of methods behind a call, or a later row, casts what it makes."""
    for parent in at.ancestors(call):
        if isinstance(parent, ast.Call) and isinstance(parent.func, ast.Attribute):
            given = [*parent.args, *(k.value for k in parent.keywords)]
            if parent.func.attr == "half" or (
                parent.func.attr == "to" and any("dtype" in at.text(g) for g in given)
            ):
                return True
        if isinstance(parent, ast.Assign):
            target = dotted(parent.targets[0])
            named = re.escape(target or "")
            return target is not None and at.mentions(rf"{named}\.(?:half\(|to\([^\n]*dtype)")
    return False


def _has_dtype(call: ast.Call) -> bool:
    return any(
        k.arg == "dtype"
        or (k.arg is None and re.search(r"factory|dd\b|kw|device_dtype", ast.unparse(k.value)))
        for k in call.keywords
    )


def _layers(function: Function) -> list[ast.Call]:
    """Calls that make layers with weights, by the last word of their names."""
    return [
        node
        for node in function.nodes
        if isinstance(node, ast.Call)
        and re.search(r"(?:^|\.)(?:Linear|Conv[123]d)$", dotted(node.func) or "")
    ]


def _head(call: ast.Call, at: Context) -> Found | None:
    """A head of its own on a pre-trained model, whose dtype is that of its checkpoint."""
    cls, statement = at.function.cls, at.statement(call)
    if cls is None or not cls.is_module or at.function.name != "__init__":
        return None
    if not isinstance(statement, ast.Assign) or statement.value is not call:
        return None
    target = dotted(statement.targets[0]) or ""
    if not _OWN.match(target) or not _HEAD.search(target[5:]) or at.project.half is None:
        return None
    path = dotted(call.func) or ""
    known = _LAYERS.search(at.qualify(call.func) or "") or re.search(r"head|mlp", path.lower())
    if not known or _has_dtype(call) or not at.function.fact(_loads):
        return None
    if cls.fact(_speaks_of_dtype):
        return None
    harm = (
        f"{target} is float32 and the model that is loaded here has the dtype of its checkpoint: "
        "a head of half states raises"
    )
    return call, harm, Care.offered(at, half=True)


def _loads(function: Function) -> bool:
    """Whether a function keeps a pre-trained model in an attribute."""
    return any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _PRETRAINED.search(dotted(node.value.func) or "") is not None
        and (dotted(node.targets[0]) or "").startswith("self.")
        and not re.search(r"[Tt]oken|[Pp]rocessor|[Cc]onfig\b", ast.unparse(node.value.func))
        for node in function.nodes
    )


def _speaks_of_dtype(cls: Class) -> bool:
    text = ast.unparse(cls.node)
    return re.search(r"dtype|\.float\(|\.half\(|autocast|type_as", text) is not None


def _norm(call: ast.Call, at: Context) -> Found | None:
    """``super().forward(x.float())`` of a norm, whose own weights ``model.half()`` makes half."""
    func, cls = call.func, at.function.cls
    if not isinstance(func, ast.Attribute) or func.attr != "forward" or cls is None:
        return None
    if not isinstance(func.value, ast.Call) or dotted(func.value.func) != "super":
        return None
    if not any(base.endswith(("LayerNorm", "GroupNorm")) for base in cls.bases):
        return None
    given = at.text(call.args[0]) if len(call.args) == 1 else ""
    if not re.search(r"\.float\(\)$|\.(?:to|type)\((?:dtype=)?torch\.float(?:32)?\)$", given):
        return None
    if at.region(call).on or Halved.by_kind(at) is not None or at.mentions(r"autocast"):
        return None
    harm = (
        f"{given} is float32, and the weights of {cls.name} are half in a half model: this raises"
    )
    return call, harm, Confidence.POSSIBLE


def _from_half(call: ast.Call, at: Context) -> Found | None:
    """The output of a model that the constructor makes half, in a layer that it does not."""
    cls = at.function.cls
    given = call.args[0] if call.args else None
    path = dotted(call.func) or ""
    if cls is None or not isinstance(given, ast.Name) or not _OWN.match(path):
        return None
    if not cls.is_module and at.function.name != "forward":
        return None
    halves = cls.fact(_halved)
    if not halves or path[5:] in halves or path[5:] in cls.methods or at.region(call).on:
        return None
    if re.search(rf"self\.{path[5:]}(?:\.\w+)?\.(?:half|to)\([^)]*(?:half|float16)|\.half\(\)\s*$",
                 ast.unparse(cls.node)):  # fmt: skip
        return None
    source = at.definition(given.id, given)
    if source is None or at.mentions(rf"\b{given.id}\.(?:to|float|type)\("):
        return None
    while isinstance(source, (ast.Subscript, ast.Attribute)):
        source = source.value
    called = dotted(source.func) if isinstance(source, ast.Call) else None
    owner = (called or "")[5:].partition(".")[0]
    if called is None or not called.startswith("self.") or owner not in halves:
        return None
    harm = f"self.{owner} is made half in the constructor and {path} is not: this raises"
    sure = Confidence.POSSIBLE if at.project.autocast is not None else Confidence.LIKELY
    return call, harm, sure


def _halved(cls: Class) -> frozenset[str]:
    """Attributes that hold a model which the constructor makes half."""
    init = cls.methods.get("__init__")
    names: set[str] = set()
    found: set[str] = set()
    for node in init.nodes if init is not None else ():
        if not isinstance(node, ast.Assign) or len(node.targets) != 1:
            continue
        target, value = ast.unparse(node.targets[0]), ast.unparse(node.value)
        half = isinstance(node.value, ast.Call) and _makes_half(node.value)
        half = half or (isinstance(node.value, ast.Name) and node.value.id in names)
        if isinstance(node.value, ast.Name) and not half:
            continue
        if half and isinstance(node.targets[0], ast.Name):
            names.add(target)
        attribute = re.fullmatch(r"self\.(?:__dict__\[['\"])?(\w+)(?:['\"]\])?", target)
        if half and attribute is not None and re.search(r"[A-Z]\w*|model|encoder", value):
            found.add(attribute[1])
    return frozenset(found)


def _makes_half(call: ast.Call) -> bool:
    """Whether a chain of calls casts to half last."""
    node: ast.expr = call
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        given = [*node.args, *(k.value for k in node.keywords)]
        if node.func.attr in ("half", "bfloat16") and not given:
            return True
        if node.func.attr == "to" and any(
            dotted(g) in ("torch.float16", "torch.half", "torch.bfloat16") for g in given
        ):
            return True
        if node.func.attr in ("float", "double"):
            return False
        node = node.func.value
    return False


def _raw(node: ast.Call | ast.BinOp, at: Context) -> Found | None:
    """A parameter of its own in a product as it is, in a file that casts such to ``x.dtype``."""
    cls = at.function.cls
    if cls is None or not cls.is_module:
        return None
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, ast.MatMult):
            return None
        operands = [node.left, node.right]
    else:
        operands = [a for a in node.args if not isinstance(a, ast.Constant)]
    own = [o for o in operands if _OWN.match(at.text(o))]
    if len(own) != 1 or len(operands) != 2 or at.region(node).on:
        return None
    count = _followed(at)
    if count < 2 or not _is_parameter(at.text(own[0])[5:], at):
        return None
    if isinstance(node, ast.Call) and not _multiplies(node, own[0], at):
        return None
    other = next(o for o in operands if o is not own[0])
    value = at.value(other)
    if value.dtype in ("float32", "float64") or _UP.search(at.text(other)):
        return None
    name = at.text(own[0])
    harm = (
        f"{name} goes into a product as it is, where {count} others of this file are cast to the "
    )
    return node, f"{harm}dtype of what comes in: half activations raise", Confidence.LIKELY


def _followed(at: Context) -> int:
    """How many weights of their own the modules of a file cast to the dtype of what comes in."""
    known = at.module.memo
    if _followed not in known:
        halved = ".half()" in at.source.text  # its weights may be cast for themselves
        known[_followed] = 0 if halved else len(_FOLLOWED_WEIGHT.findall(at.source.text))
    count: int = known[_followed]
    return count


def _is_parameter(name: str, at: Context) -> bool:
    cls = at.function.cls
    stored = at.module.stores(cls).get(name) if cls is not None else None
    return stored is not None and "Parameter(" in ast.unparse(stored[0])


def _multiplies(call: ast.Call, own: ast.expr, at: Context) -> bool:
    """Whether a call is a product, or one of a method that multiplies its parameters."""
    qualified = at.qualify(call.func) or ""
    if qualified.startswith("torch."):
        return bool(at.product(call)[1]) or _WEIGHTED.search(qualified) is not None
    path, cls = dotted(call.func) or "", at.function.cls
    made = cls.methods.get(path[5:]) if cls is not None and path.startswith("self.") else None
    if made is None or made.length > 12 or own not in call.args:
        return False
    names = [p.arg for p in made.parameters() if p.arg != "self"]
    place = call.args.index(own)
    if place >= len(names):
        return False
    there = at.inside(made)
    return any(
        isinstance(node, ast.Call)
        and (there.qualify(node.func) or "").startswith("torch.")
        and len(there.product(node)[1]) == 2
        and any(isinstance(a, ast.Name) and a.id == names[place] for a in node.args)
        for node in made.nodes
    )


def _before_upcast(node: ast.Call | ast.BinOp, at: Context) -> Found | None:
    """A product of what was made before an upcast on a condition with what was made behind it."""
    if isinstance(node, ast.BinOp):
        if not isinstance(node.op, ast.MatMult):
            return None
        operands = [node.left, node.right]
    else:
        operands = list(node.args)
    names = [o.id for o in operands if isinstance(o, ast.Name)]
    if len(names) != 2 or not at.mentions(_UP.pattern):
        return None
    if isinstance(node, ast.Call) and len(at.product(node)[1]) != 2:
        return None
    for upcast, widened in _upcasts(at):
        if upcast.lineno > node.lineno or any(parent is upcast for parent in at.ancestors(node)):
            continue
        end = upcast.end_lineno or upcast.lineno
        behind = [n for n in names if _derived(n, widened, (end + 1, node.lineno), at)]
        before = [n for n in names if _derived(n, widened, (0, upcast.lineno), at)]
        if len(behind) == 1 and len(before) == 1 and not at.region(node).on:
            harm = (
                f"{behind[0]} is made of what was upcast, and {before[0]} of the same before that: "
                "products do not promote, this raises in half"
            )
            return node, harm, Care.offered(at, half=True)
    return None


def _upcasts(at: Context) -> Iterator[tuple[ast.If, set[str]]]:
    """Branches on half that make names float32, without another branch."""
    for node in at.function.nodes:
        if not isinstance(node, ast.If) or node.orelse or not _ON_HALF.search(at.text(node.test)):
            continue
        widened: set[str] = set()
        for statement in node.body:
            if isinstance(statement, ast.Assign) and _UP.search(at.text(statement.value)):
                bound = [n for t in statement.targets for n in ast.walk(t)]
                widened |= {n.id for n in bound if isinstance(n, ast.Name)}
        if widened:
            yield node, widened


def _derived(name: str, widened: set[str], rows: tuple[int, int], at: Context) -> bool:
    """Whether every binding of a name before a row is made of widened ones, between two rows."""
    values = [v for v in at.function.assigned.get(name, []) if v.lineno < rows[1]]
    first = at.function.assigned.get(name, [])[:1]
    if not values or first[0].lineno < rows[0] or name in widened:
        return False
    return all(
        {n.id for n in ast.walk(value) if isinstance(n, ast.Name)} & widened
        and _DOWN.search(at.text(value)) is None
        for value in values
    )
