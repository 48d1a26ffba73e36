"""What comes from outside of a model, or is cast for itself, and meets the model's weights."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics import ops
from precision_lint.semantics.care import Care
from precision_lint.semantics.flow import only_moves
from precision_lint.semantics.names import dotted
from precision_lint.semantics.sinks import Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Class

_OWN_DTYPE = re.compile(r"\.(?:type|to)\(\s*(?:dtype\s*=\s*)?self\.(?:\w+\.)?dtype\b")
_CAST = r"(?:dtype|\.half\(|\.bfloat16\(|\.type\(|\.type_as\(|\.float\()"
_ENCODES = re.compile(
    r"(?:^|[._])(?:vae|ae|autoencoder|first_stage_model|\w*image_encoder|vision_\w+|clip\w*)"
    r"(?:\.(?:encode|forward|encode_image|get_image_features))?$|"
    r"\.(?:encode_first_stage|encode_image|get_image_features)$"
)
_SCALED = re.compile(
    r"\* *2(?:\.0?)? *- *1|2(?:\.0?)? *\* *[\w.\[\]\"']+ *- *1|/ *127\.5|/ *255|- *mean\b.*/ *std\b"
)
"""Images brought to [-1, 1] or [0, 1]."""
_DECODES = re.compile(r"^(?!self\.)(?:[\w.]+\.)?vae\.decode$")
_EMBEDS = re.compile(r"^(?:\w*prompt_embeds\w*|\w*image_embeds\w*|latents)$")
_PIPES = re.compile(r"(?:^|[._])\w*pipe(?:line)?(?:_\w+)?$")
_FLAG = re.compile(r"\bfp16\b|\bbf16\b|use_half|is_half|\bhalf\b")
_HALVES = frozenset({"torch.float16", "torch.half", "torch.bfloat16"})
_OUTSIDE = re.compile(r"processor|image|pixel|audio|video|mm_|multi_?modal|spectrogram|waveform")
"""Words of functions that handle inputs of floats which no model made."""
_SPEAKS = re.compile(r"torch_dtype|float16|\bhalf\(|load_in_\d|mixed_precision")
_PARTS_CAST = re.compile(
    r"self\.?(\w*)\.(?:(?:half|bfloat16)\(|to\([^)]*(?:dtype|float16))", re.IGNORECASE
)
"""Parts of a module that its class casts; "" is the module itself."""
_RUNS = re.compile(r"^(?:\w*_)?(?:model|net|unet|transformer|generator|policy)$")
_BY_CONFIG = re.compile(r"autocast\([^)\n]*dtype\s*=\s*(?!torch\.)")
"""A region whose dtype is a setting of the run."""
_TABLES = frozenset({"alphas_cumprod", "sigmas", "betas", "alphas"})
_MODEL_CALL = r"\.decode\(|unet\(|transformer\(|\bmodel\("


class Uncast:
    """Inputs of layers and models that are given in a dtype of their own."""

    @staticmethod
    def of(call: ast.Call, at: Context) -> tuple[ast.expr, str, Confidence] | None:
        """What is given or moved uncast, what is wrong with it, in words, and how sure that is."""
        if Care.in_test(at):
            return None
        where: ast.expr = call
        harm = (
            _scaled(call, at) or _left_out(call, at) or _flagged(call, at) or _processed(call, at)
        )
        harm = harm or _table(call, at) or _never(call, at)
        if harm is None and (passed := _piped(call, at)) is not None:
            where, harm = passed
        if at.region(call).on:
            return None
        if harm is None and (harm := _outside(call, at)) is not None:
            return call, harm, Care.offered(at, half=True)
        return (
            (where, f"{harm}: half weights do not take float32", Confidence.POSSIBLE)
            if harm
            else None
        )


def _left_out(call: ast.Call, at: Context) -> str | None:
    """A parameter of ``forward`` that goes into a part of the module as it is, where another one
    is cast to the module's own dtype first."""
    given = call.args[0] if call.args else None
    path, cls = dotted(call.func) or "", at.function.cls
    if cls is None or at.function.name != "forward" or not isinstance(given, ast.Name):
        return None
    if not re.fullmatch(r"self\.\w+", path) or at.module.index.method(cls, path[5:]):
        return None
    if re.search(r"loss|metric", cls.name.lower()) or "loss" in at.source.filename:
        return None
    if given.id not in {p.arg for p in at.function.parameters()} or given.id == "self":
        return None
    if not at.mentions(_OWN_DTYPE.pattern) or not Care.is_activation(given.id):
        return None
    if at.definition(given.id, given) is not None or _is_cast(given.id, at):
        return None
    layer = Sink.layer(call.func, at)
    if layer is not None and layer not in ops.MATMULS:
        return None
    if re.search(r"self\.dtype = torch\.(?:u?int|bool|long)", ast.unparse(cls.node)):
        return None
    made = re.findall(rf"self\.{path[5:]} = ([\w.]+)\(", ast.unparse(cls.node))
    if made and all(name.endswith("Embedding") for name in made):
        return None
    return f"{given.id} is not cast to self.dtype, as other inputs of {path} are"


def _is_cast(name: str, at: Context) -> bool:
    """Whether a row of the function casts a name, or makes it anew in a dtype."""
    return at.mentions(rf"(?<![\w.]){re.escape(name)}\b[^\n]*{_CAST}")


def _bindings(name: str, at: Context) -> list[ast.expr]:
    """What a name is bound to, each expression once."""
    return list({id(v): v for v in at.function.assigned.get(name, [])}.values())


def _scaled(call: ast.Call, at: Context) -> str | None:
    """Images that are brought to a range, and latents that are brought back, for an autoencoder."""
    given = call.args[0] if call.args else None
    path = (dotted(call.func) or "").lower()
    if given is None or at.qualify(call.func) is not None:
        return None
    if _DECODES.search(path):
        texts = _texts(given, at)
        scaled = any("scaling_factor" in text for text in texts)
        names = {n.id for n in ast.walk(given) if isinstance(n, ast.Name)}
        if scaled and not any(re.search(_CAST, text) for text in texts):
            if not any(_is_cast(name, at) for name in names):
                return f"{at.text(given)} is not cast to the dtype of the autoencoder"
        return None
    if not _ENCODES.search(path):
        return None
    texts = _texts(given, at)
    name = given.id if isinstance(given, ast.Name) else None
    if name is None or not any(_SCALED.search(text) for text in texts) or _is_cast(name, at):
        return None
    if any(re.search(_CAST, text) for text in texts):
        return None
    return f"{name} is an image that was scaled, and not cast to the dtype of {path}"


def _texts(node: ast.expr, at: Context) -> list[str]:
    """The text of an expression, and of what its name is bound to."""
    values = _bindings(node.id, at) if isinstance(node, ast.Name) else []
    return [ast.unparse(node), *(ast.unparse(v) for v in values if v.lineno <= node.lineno)]


def _piped(call: ast.Call, at: Context) -> tuple[ast.expr, str] | None:
    """Embeddings or latents that a pipeline is given as they come from elsewhere."""
    path = (dotted(call.func) or "").lower()
    if not _PIPES.search(path) or path.startswith("self.") or at.qualify(call.func) is not None:
        return None
    if not re.search(r"float16|torch_dtype", at.source.text):
        return None
    for keyword in call.keywords:
        value = keyword.value
        if not _EMBEDS.match(keyword.arg or "") or not isinstance(value, ast.Name):
            continue
        made = " ".join(ast.unparse(v) for v in _bindings(value.id, at))
        if _is_cast(value.id, at) or re.search(r"pipe|dtype|encode_prompt", made):
            continue
        if made or value.id in {p.arg for p in at.function.parameters()}:
            return value, f"{value.id} is not cast to the dtype of the pipeline's model"
    return None


def _flagged(call: ast.Call, at: Context) -> str | None:
    """An input that is made half under a flag, and given to a part of a module which nobody casts:
    ``if fp16: speech = speech.half()`` before ``self.encode(speech)``."""
    func, cls = call.func, at.function.cls
    if cls is None or not isinstance(func, ast.Attribute) or func.attr not in ("to", "half"):
        return None
    given = [*call.args, *(k.value for k in call.keywords)]
    half = not given if func.attr == "half" else any(at.qualify(g) in _HALVES for g in given)
    if not half or not isinstance(func.value, ast.Name) or not Care.is_activation(func.value.id):
        return None
    name, statement = func.value.id, at.statement(call)
    if not isinstance(statement, ast.Assign) or [dotted(t) for t in statement.targets] != [name]:
        return None
    around = at.parents.get(id(statement))
    if not isinstance(around, ast.If) or not _FLAG.search(at.text(around.test)):
        return None
    cast = set(_PARTS_CAST.findall(ast.unparse(cls.node)))
    for use in at.uses(name):
        whole = at.parents.get(id(use))
        if isinstance(whole, ast.Call) and use is not whole.func and use.lineno > call.lineno:
            path = dotted(whole.func) or ""
            kind = re.fullmatch(r"self\.\w*(enc|model|net|backbone|proj|embed|conv)\w*", path)
            if kind is not None and not any(c == "" or kind[1] in c for c in cast):
                if not at.region(whole).on:
                    return f"{name} is made half by a flag, and nothing casts what {path} runs"
    return None


def _processed(call: ast.Call, at: Context) -> str | None:
    """Entries of a processor's output, or of a batch with images, on the device of a model."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "to" or call.keywords:
        return None
    if len(call.args) != 1 or not only_moves(call, at):
        return None
    place = dotted(call.args[0]) or ""
    if not re.search(r"(?:^|[._])model\.device$|\.model\.device$", place):
        return None
    if not at.mentions(_OUTSIDE.pattern) or not (
        at.half_models is not None or _SPEAKS.search(at.source.text)
    ):
        return None
    if at.mentions(r"torch_dtype|\.half\(|autocast|bfloat16"):
        return None
    whole = isinstance(func.value, ast.Call)
    if whole and re.search(r"processor\(|extractor\(", at.text(func.value)):
        return f"what the processor makes is float32, and moved to {place} without its dtype"
    if not isinstance(func.value, ast.Name):
        return None
    name = func.value.id
    for parent in at.ancestors(call):
        rounds = []
        if isinstance(parent, ast.For):
            rounds = [(parent.iter, parent.target)]
        elif isinstance(parent, (ast.DictComp, ast.ListComp, ast.GeneratorExp)):
            rounds = [(g.iter, g.target) for g in parent.generators]
        for source, target in rounds:
            names = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
            if name in names and at.text(source).endswith((".items()", ".values()")):
                return f"entries of {at.text(source)} are moved to {place} without its dtype"
    return None


def _table(call: ast.Call, at: Context) -> str | None:
    """The table of a scheduler on a device, that goes on into arithmetic with samples."""
    func = call.func
    if not isinstance(func, ast.Attribute) or func.attr != "to":
        return None
    owner, statement = func.value, at.statement(call)
    if not isinstance(owner, ast.Attribute) or owner.attr not in _TABLES:
        return None
    path = dotted(owner) or ""
    if (
        path.count(".") < 1
        or path == f"self.{owner.attr}"
        or re.search(r"dtype|float", at.text(call))
    ):
        return None
    if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
        return None
    name = statement.targets[0].id
    read = at.mentions(rf"(?<![\w.]){re.escape(name)}\[")
    if not read or not at.mentions(_MODEL_CALL) or _is_cast(name, at):
        return None
    return f"{path} is float32 and follows a device only: what it scales is promoted"


def _never(call: ast.Call, at: Context) -> str | None:
    """The input of a model that its class makes half on conditions, where it casts nothing else."""
    path, cls = dotted(call.func) or "", at.function.cls
    if cls is None or not call.args or not re.fullmatch(r"self\.\w+", path):
        return None
    if path[5:] in cls.methods or at.function.name == "__init__":
        return None
    cast = cls.fact(_halved_on_condition).get(path)
    if cast is None or not isinstance(call.args[0], ast.Name):
        return None
    return f"{call.args[0].id} is never cast, and {path} is half if {cast}"


def _halved_on_condition(cls: Class) -> dict[str, str]:
    """Models that a class makes half under a condition, with that, if nothing else is cast."""
    text = ast.unparse(cls.node)
    if re.search(r"autocast|dtype|\.type\(|bfloat16", text) or ".half()" not in text:
        return {}
    found: dict[str, str] = {}
    for node in ast.walk(cls.node):
        if not isinstance(node, ast.If):
            continue
        for statement in node.body:
            cast = re.fullmatch(
                r"(?:(self\.\w+) = )?(self\.\w+)(?:\.(?:eval|cuda|to)\([^()]*\))*\.half\(\)",
                ast.unparse(statement),
            )
            if cast is not None:
                found[cast[2]] = ast.unparse(node.test)[:40]
    return found if len(found) == text.count(".half()") else {}


def _outside(call: ast.Call, at: Context) -> str | None:
    """A forward pass outside of the region that another method of the class puts around it."""
    last, cls = (dotted(call.func) or "").rpartition(".")[2], at.function.cls
    if cls is None or not _RUNS.search(last) or at.qualify(call.func) is not None:
        return None
    if not _BY_CONFIG.search(at.source.text) or at.mentions("autocast") or last in cls.methods:
        return None
    if at.function.name in ("forward", "__init__"):
        return None
    for method in cls.methods.values():
        there = at.inside(method)
        if method is at.function or not there.mentions(r"autocast\("):
            continue
        for node in method.nodes:
            if isinstance(node, ast.Call) and there.region(node).on:
                if (dotted(node.func) or "").rpartition(".")[2] == last:
                    return (
                        f"{last} runs outside of the autocast region that {method.name} puts "
                        "around it: half weights and float32 heads meet"
                    )
    return None
