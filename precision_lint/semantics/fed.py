"""What is handed to layers and whole models without a cast to their dtype."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.semantics import models, ops
from precision_lint.semantics.care import Care
from precision_lint.semantics.flow import only_moves
from precision_lint.semantics.names import dotted
from precision_lint.semantics.provenance import Provenance
from precision_lint.semantics.sinks import Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Class, Function

MODEL = re.compile(
    r"(?:^|[._])(?:model|net|network|module|pipe(?:line)?|unet|vae|encoder|decoder|backbone|policy"
    r"|generator|actor|critic|transformer)(?:\.(?:encode|decode|forward|generate|predict))?$"
)
"""What is called where a whole model runs."""
MAKES_FLOAT32 = (
    r"\bfloat32\b|\bfloat\(|softmax|normalize|FloatTensor|linalg|numpy|\bfft\b|istft|"
    r"[*+-] *self\.\w+(?![\w(.])"
)
"""What a function's text has to say before a float32 value is looked for in it."""
_ENTRY = re.compile(r"conv_?1|conv_in|patch|stem|proj|input|embed|image|pixel|audio|first|in_layer")
"""Words of layers that see a model's input first."""
_PART = re.compile(r"^self\.\w*(?:rnn|gru|lstm|cell|proj\w*|mlp|head|fc\d*|linear\d*)$")
"""Attributes of a module that have weights, by their names."""
_KEPT = ops.SHAPES | frozenset({
    "to", "cuda", "div_", "sub_", "mul_", "div", "sub", "mul", "sin", "cos", "exp", "clamp", "add",
})  # fmt: skip
"""Operations that keep float32."""
_GENERATES = re.compile(
    r"torch\.(?:cuda\.)?(?:FloatTensor|Tensor|rand|randn|zeros|ones|linspace|eye)\("
)
_REGISTERED = re.compile(r"self\.register_(?:buffer|parameter)\(.*")
"""Statements that make what is cast with a module."""
_FOLLOWS = re.compile(r"dtype|type_as|\.half\(|nn\.(?:Linear|Conv|LSTM|GRU|Parameter|Embedding)")
"""What the text of a class says that follows a dtype, or has weights of its own."""
_CASTS = frozenset({"dtype", "to", "type", "type_as", "half", "bfloat16"})
_BIAS = re.compile(r"bias|mask|pos(?:ition)?|alibi|rel", re.IGNORECASE)
_ENCODES = re.compile(
    r"(?:^|[._])(?:ae|vae|autoencoder|first_stage_model|\w*encoder|clip|vision_tower|model|net|unet|"
    r"controlnet|transformer|dit|backbone)(?:\.(?:encode|forward|encode_image|get_image_features))?$"
)
"""What is called where a frozen or trained model takes an entry of a batch."""
_ENTRIES = re.compile(
    r"^(?:batch|data|inputs?|samples?|examples?|items?|encod\w+)"
    r"(?:\[[\"'](?P<key>\w+)[\"']\]|\.(?P<name>\w+))$"
)
_FLOATS = re.compile(r"image|pixel|audio|wav|feat|mel|latent|video|frame|embed|noise|speech|rgb")
"""Words of entries that hold floats."""
_DTYPED = r"\w*dtype\b|\.half\(|mixed_precision|b?float16"
_OUTSIDE = re.compile(r"\w*(?:extractor|processor)\(|from_numpy\(|torch\.(?:as_)?tensor\(|Tensor\(")
"""Makers of float32 tensors out of what is no tensor."""
_SINES = re.compile(
    r"(?:^|[._])(?:time\w*|sin\w*|pos\w*|fourier\w*)_?(?:emb(?:edding)?s?|encoding|proj)(?:_\w+)?$"
)
"""Functions that make sines and cosines of times or positions."""
_WEIGHTED = re.compile(r"embed|mlp|proj|fc|linear")
"""Words of layers that take such."""
_RESCALES = (".scale_model_input", ".precondition_inputs")
"""Methods of schedulers that scale a sample and keep its dtype."""
_LOADED = re.compile(r"(?:^|[._])(?:\w*processor|feature_extractor|move_to_\w+|to_device|to_cuda)$")
"""Calls that give inputs in float32, or move them as they are."""


class Fed:
    """Tensors that meet weights of which nothing says that they have the same dtype."""

    MODEL = MODEL

    @staticmethod
    def unfit(call: ast.Call, at: Context) -> str | None:
        """What is wrong with the input of a layer or model, in words; None: nothing is known."""
        name = " ".join(at.text(call.func).split())
        source = Fed.generated(call, at)
        if source is not None:
            return f"{source} has no weights and makes float32, which goes into {name}"
        if Fed.adapter(call, at) is not None:
            return f"the input of {name} has the dtype of the wrapped layer"
        back = Fed.brought_back(call, at)
        if back is not None:
            return f"float32 comes back here, on the device of {back} alone"
        entry = Fed.entry(call, at)
        if entry is not None:
            return f"{entry} is not cast to the dtype of {name}"
        table = Fed.embedded(call, at)
        if table is not None:
            return f"{table} makes sines of positions or times, float32 as a rule, for {name}"
        given = Fed.moved(call, at)
        if given is not None:
            return f"{' '.join(at.text(given).split())[:50]} is moved to a device and not cast"
        first = Fed.enters(call, at)
        if first is not None:
            return f"{first} is not cast, while this function follows the dtype of its activations"
        return None

    @staticmethod
    def into_half(call: ast.Call, at: Context) -> str | None:
        """What is wrong with float32 that goes into a model which the code made half; None: it is
        not so, or the model may cast it itself."""
        if not call.args or isinstance(call.func, ast.Attribute):
            return None
        given = at.value(call.args[0])
        if not given.is_tensor or given.dtype not in ("float32", "float64") or given.ndim == 0:
            return None
        if not models.holds_half(at.value(call.func)):
            return None
        run = at.module.callee(call.func, at.function)
        inside = run[0].nodes if run is not None else []
        casts = any(isinstance(n, ast.Attribute) and n.attr in _CASTS for n in inside)
        if casts:
            return None
        return f"{at.text(call.args[0])} is {given.dtype}, and {at.text(call.func)} was made half"

    @staticmethod
    def may_be_wide(node: ast.expr, at: Context) -> bool:
        """Whether the text of a function, or of one that it calls, makes anything float32."""
        if at.mentions(MAKES_FLOAT32) or "self" in at.text(node):
            return True
        named = at.module.index.function_named
        called = at.function.fact(_called)
        functions = (named(n) or named(f"self.{n}", at.function) for n in sorted(called))
        return any(f is not None and at.inside(f).mentions(MAKES_FLOAT32) for f in functions)

    @staticmethod
    def to_model(node: ast.expr, at: Context) -> ast.Call | None:
        """The call of a whole model that a tensor goes into in this function, uncast."""
        return next(_models(node, at, set()), None)

    @staticmethod
    def moved(call: ast.Call, at: Context) -> ast.expr | None:
        """An argument of a whole model that is moved to a device and not cast.

        Not where the function casts anything itself.
        """
        if at.qualify(call.func) is not None or not MODEL.search(at.text(call.func).lower()):
            return None
        if at.mentions(r"autocast|\.half\(|\.type\(") or Care.in_test(at):
            return None
        if at.project.half is None and at.project.autocast is not None:
            return None  # which casts the inputs of every layer
        for given in [*call.args, *(k.value for k in call.keywords)]:
            node = given.value if isinstance(given, ast.Starred) else given
            name = re.escape(at.text(node)) if isinstance(node, ast.Name) else ".*"
            if at.mentions(rf"(?<!\w){name}\b[^\n]*dtype"):
                continue
            for origin in Provenance.of(node, at):
                if _moves(origin, at) and Care.is_activation(at.text(given)):
                    return given
        return None

    @staticmethod
    def entry(call: ast.Call, at: Context) -> str | None:
        """An entry of a batch that a whole model is given as it is, in code that knows half."""
        if not call.args or not _ENCODES.search(" ".join(at.text(call.func).lower().split())):
            return None
        if at.qualify(call.func) is not None or Care.in_test(at):
            return None
        if at.half_models is None and not at.mentions(_DTYPED):
            return None
        for given in call.args[:1]:
            for origin in (given, *Provenance.of(given, at)):
                found = _ENTRIES.match(at.text(origin))
                word = (found["key"] or found["name"]).lower() if found is not None else ""
                whole = at.text(given)
                if _FLOATS.search(word) and not re.search(r"dtype|\.half\(|mask|ids", whole):
                    return " ".join(at.text(origin).split())
        return None

    @staticmethod
    def embedded(call: ast.Call, at: Context) -> str | None:
        """The function that makes an embedding of positions or times for a layer, uncast."""
        func = at.text(call.func)
        given = call.args[0] if call.args else None
        if not re.fullmatch(r"self\.\w+", func) or not _WEIGHTED.search(func.lower()):
            return None
        if given is None or Care.in_test(at):
            return None
        made = [given]
        if isinstance(given, ast.Name):
            made = at.function.assigned.get(given.id, [])
        for value in made:
            if not isinstance(value, ast.Call):
                return None  # something else, or a cast of it
        paths = {dotted(value.func) or "" for value in made if isinstance(value, ast.Call)}
        if len(paths) != 1 or not _SINES.search(path := paths.pop()):
            return None
        name = re.escape(given.id) if isinstance(given, ast.Name) else re.escape(path)
        if at.mentions(rf"(?<!\w){name}\b[^\n]*(?:dtype|type_as|\.half\(|\.to\()"):
            return None
        home = at.module.index.function_named(path)
        follows = home is not None and at.inside(home).mentions(r"\.dtype|type_as|\.half\(")
        return None if follows else path

    @staticmethod
    def brought_back(call: ast.Call, at: Context) -> str | None:
        """The tensor whose device, but not dtype, is followed by what comes back from numpy or a
        processor, and is returned."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr != "to" or len(call.args) != 1:
            return None
        place = call.args[0]
        if not isinstance(place, ast.Attribute) or place.attr != "device" or call.keywords:
            return None
        if not isinstance(at.statement(call), ast.Return) or at.mentions(r"dtype|\.half\(|type_as"):
            return None
        owner = place.value
        names = {p.arg for p in at.function.parameters()} - {"self"}
        if not isinstance(owner, ast.Name) or owner.id not in names or Care.in_test(at):
            return None
        if not at.mentions(rf"\b{re.escape(owner.id)}\b[^\n]*\.(?:numpy|tolist|cpu)\("):
            return None  # given in half, float32 and NumPy's own on the way
        texts = [at.text(func.value), *(at.text(o) for o in Provenance.of(func.value, at))]
        if not any(_OUTSIDE.search(text) for text in texts):
            return None
        given = func.value
        word = given.attr if isinstance(given, ast.Attribute) else (dotted(given) or "")
        return owner.id if Care.is_activation(word) else None

    @staticmethod
    def enters(call: ast.Call, at: Context) -> str | None:
        """The parameter that goes into a model's first layer as it is, in a function that casts
        other tensors to the dtype of its activations."""
        name = call.args[0].id if call.args and isinstance(call.args[0], ast.Name) else ""
        func, cls = at.text(call.func), at.function.cls
        if cls is None or not cls.is_module or at.function.name != "forward":
            return None
        if name not in {p.arg for p in at.function.parameters()} or not func.startswith("self."):
            return None
        if not _ENTRY.search(func[5:].lower()) or Sink.layer(call.func, at) not in ops.MATMULS:
            return None
        if at.definition(name, call.args[0]) is not None or not at.mentions(r"\.dtype\b"):
            return None
        if at.mentions(rf"\b{re.escape(name)}\.(?:to|type|float|half)\(|{re.escape(func)}\.weight"):
            return None
        return name

    @staticmethod
    def generated(call: ast.Call, at: Context) -> str | None:
        """The module of this file, without weights, whose float32 goes into a layer uncast."""
        cls = at.function.cls
        given = call.args[0] if call.args else None
        if cls is None or not isinstance(given, ast.Name) or Care.in_test(at):
            return None
        if Sink.layer(call.func, at) not in ops.MATMULS or at.mentions(r"\.type_as\(|dtype"):
            return None
        before = [
            node
            for node in at.function.nodes
            if isinstance(node, ast.Assign)
            and node.lineno < call.lineno
            and any(
                isinstance(n, ast.Name) and n.id == given.id
                for target in node.targets
                for n in ast.walk(target)
            )
        ]
        value = max(before, key=lambda node: node.lineno).value if before else None
        path = (dotted(value.func) or "") if isinstance(value, ast.Call) else ""
        if not re.fullmatch(r"self\.\w+", path):
            return None
        stored = at.module.stores(cls).get(path[5:])
        made = stored[0] if stored is not None else None
        named = dotted(made.func) if isinstance(made, ast.Call) else None
        source = at.module.index.classes.get(named or "")
        made_float32 = source is not None and source.is_module and source.fact(_generates)
        return path if made_float32 else None

    @staticmethod
    def biased(operands: list[ast.expr], at: Context) -> tuple[ast.expr, ast.expr] | None:
        """Weights of an attention that a bias or mask of its own dtype was added to, in a product
        with the values; and that bias."""
        if at.mentions(r"\.type_as\(|\.to\([^)]*dtype|\.float\(|float32"):
            return None
        weights, values = operands[:1], operands[1:]
        if len(values) != 1 or at.value(values[0]).dtype in ("float32", "float64"):
            return None
        parts = list(Provenance.of(weights[0], at))
        if not any(_is_softmax(part, at) for part in parts):
            return None
        for part in parts:
            if isinstance(part, ast.BinOp) and isinstance(part.op, (ast.Add, ast.Sub)):
                for side in (part.left, part.right):
                    value = at.value(side)
                    open_ = value.dtype == "" or value.variable
                    if open_ and _BIAS.search(at.text(side)) and value.kind != "number":
                        if not isinstance(side, ast.BinOp):
                            return weights[0], side
        return None

    @staticmethod
    def adapter(call: ast.Call, at: Context) -> ast.Call | None:
        """The call of a wrapped layer whose input also meets an adapter's first layer, uncast."""
        func = at.text(call.func)
        if not re.search(r"lora_?A\b|adapter_down|down_adapter|lora_down", func):
            return None
        names = {
            origin.id
            for given in call.args[:1]
            for origin in Sink.origins(given, at, 0)
            if isinstance(origin, ast.Name)
        } & {p.arg for p in at.function.parameters()}
        if not names or at.mentions(r"\.to\(|\.type\(|type_as|dtype|autocast"):
            return None
        for part in at.function.nodes:
            if isinstance(part, ast.Call) and part is not call:
                wrapped = re.search(r"base_layer|orig|super\(\)|F\.linear|\.linear$|_layer$|\.org",
                                    at.text(part.func))  # fmt: skip
                if wrapped and any(isinstance(a, ast.Name) and a.id in names for a in part.args):
                    return part
        return None


def _generates(cls: Class) -> bool:
    """Whether a class makes tensors without a dtype, follows none and has no weights."""
    text = _REGISTERED.sub("", ast.unparse(cls.node))
    return _GENERATES.search(text) is not None and _FOLLOWS.search(text) is None


def _models(node: ast.expr, at: Context, seen: set[int]) -> Iterator[ast.Call]:
    """Calls of whole models that a value goes into, by way of names and operations in between."""
    if id(node) in seen or len(seen) > 40:
        return
    seen.add(id(node))
    inner: ast.AST = node
    for parent in at.ancestors(node):
        match parent:
            case ast.BinOp() | ast.UnaryOp() | ast.Subscript() | ast.keyword() | ast.Starred():
                if isinstance(parent, ast.Subscript) and parent.value is not inner:
                    return
            case ast.Attribute(attr=attr):
                if attr not in _KEPT:
                    return
            case ast.Call(func=func):
                if func is inner:
                    if isinstance(func, ast.Attribute) and func.attr == "to":
                        if not only_moves(parent, at):
                            return
                else:
                    qualified = at.qualify(func)
                    path = at.text(func).lower()
                    own = at.function.cls is not None and at.function.cls.is_module
                    part = own and _PART.search(path) is not None
                    beside = any(
                        isinstance(a, (ast.Name, ast.Attribute))
                        and a is not inner
                        and MODEL.search(at.text(a).lower())
                        for a in parent.args
                    ) and not hasattr(builtins, path)
                    if qualified is None and (MODEL.search(path) or part or beside):
                        yield parent
                        return
                    last = (qualified or "").rpartition(".")[2]
                    if last not in _KEPT | ops.JOINING and not path.endswith(_RESCALES):
                        return
            case ast.List() | ast.Tuple():
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=source):
                for use in at.uses(name):
                    if isinstance(use.ctx, ast.Load) and at.definition(name, use) is source:
                        yield from _models(use, at, seen)
                return
            case _:
                return
        inner = parent


def _moves(node: ast.expr, at: Context) -> bool:
    """Whether an expression moves a tensor to a device as it is, or is a processor's output."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Attribute) and at.qualify(node.func) is None:
        if node.func.attr == "cuda":
            return True
        if node.func.attr == "to":
            return only_moves(node, at)
    return _LOADED.search(at.text(node.func)) is not None


def _called(function: Function) -> set[str]:
    """Functions and methods of the same object that a function calls, by their names."""
    return {
        (dotted(part.func) or "").removeprefix("self.")
        for part in function.nodes
        if isinstance(part, ast.Call)
    }


def _is_softmax(node: ast.expr, at: Context) -> bool:
    found = at.operation(node)
    return found is not None and found[0] == "softmax"
