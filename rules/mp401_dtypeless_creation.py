from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.api import (
    Apart,
    Applicability,
    Care,
    Confidence,
    Context,
    Created,
    Evidence,
    Finding,
    Fix,
    Rule,
    Severity,
    Sink,
    Widening,
    events,
    operators,
)

if TYPE_CHECKING:
    from precision_lint.api import Promotion

CREATIONS = frozenset({
    "zeros", "ones", "full", "empty", "rand", "randn", "linspace", "logspace", "arange", "eye",
    "tensor", "as_tensor", "from_numpy", "normal", "Tensor",
})  # fmt: skip
WEIGHTED = ("Linear", "Conv1d", "Conv2d", "Conv3d", "LayerNorm")
"""Modules whose ``weight`` has the dtype that their input has to have."""
JOINS = ("cat", "concat", "concatenate", "stack", "where")
SEQUENCES = ("linspace", "logspace", "arange")
WIDENED = (
    r"alpha|sigma|snr|softplus|cumsum|\bexp\(|softmax|rsqrt|\bsqrt\(|\bvar\(|\.std\(|normalize|"
    r"norm\(|self\.\w*(?:scale|gamma|gain|lambda|temperature|gate)"
)
"""What a file has to say before products in it are looked at."""
INTEGERS = re.compile(
    r"(?<![a-z])(ids?|idx|index|indices|labels?|steps?|len|lengths?|counts?|mask\w*)(?![a-z])"
)
"""Words of names whose tensors hold integers or flags."""


class DtypelessCreation(Rule):
    """Tensor created without dtype that widens a half tensor to float32.

    ## What it flags
    `torch.zeros`, `ones`, `full`, `rand`, `randn`, `eye`, `linspace`, `arange` of floats,
    `tensor([...])` of floats, `torch.Tensor` and `from_numpy` without `dtype=`, where the tensor

    - is combined by arithmetic, `cat`, `stack` or `where` with a tensor that may be half,
    - goes on into a layer, by way of names, helpers and returns,
    - meets a half operand in a matrix product, in a function that follows a dtype elsewhere,
    - gives a distribution its dtype, or a loss the weights of its classes,
    - is a parameter on the device of another module's weights, but not in their dtype.

    Also flagged are an object of the project that follows the device of another and leaves its
    dtype to a float32 default, weights that are replaced by their product with an own parameter,
    and numpy's float64 in a product with float32.

    Only possible: activations that a scale of a module's own (`x * self.gamma`) or a norm by hand
    widens under autocast, samples weighted by values of a noise schedule
    (`alpha * x + sigma * noise`), a product with what autocast made float32 (`x * softplus(dt)`) on
    its way out, `cat` with a tensor that another object keeps (`embedding.vec`), offsets that are
    added to places at which features are sampled, and buffers that a method makes anew where the
    project makes no models half.

    It stays silent for 0-d tensors and Python numbers (they do not promote), for integer tensors,
    `*_like` and `new_*`, for an explicit dtype or a later `.to(x.dtype)`, for tensors that are
    only indexed, compared or logged, in functions that solve or decompose (which need float32),
    and for layers that the code keeps in float32.

    Likely needs a project with half models (and, where it trains under autocast as well, a module
    that follows a dtype and is no loss), or code that follows a dtype where nothing speaks of
    autocast; in tests, for positions and coordinates, and for layers that are not known it is only
    possible. So is what meets an operand of which nothing says that it is a tensor (`image -
    torch.as_tensor(mean)`), goes into a whole model on a device (`unet(torch.randn(shape,
    device=device))`), or is kept in a plain attribute, unless the project has half models.

    ## Why it breaks
    The default dtype is float32 whatever the model's is, and a float32 tensor with dimensions
    promotes a half one: `cat`, `stack`, `where`, `+` and `*` of the two are float32. Nothing is
    said until the result meets the next half layer, which raises `mat1 and mat2 must have the
    same dtype, but got Float and Half`. Under autocast that layer casts it down again, so there it
    costs memory only, and this rule is silent. It is silent too where the widened tensor is cast
    next, or ends in a loss: there float32 is what one wants; and for float64 from NumPy (MP402).

    ## Example
    ```python
    ones = torch.ones(batch, count, 1, device=points.device)
    homogeneous = torch.cat([points, ones], dim=-1)
    ```
    Use instead:
    ```python
    ones = torch.ones(batch, count, 1, device=points.device, dtype=points.dtype)
    homogeneous = torch.cat([points, ones], dim=-1)
    ```

    ## Fix safety
    Safe: with a float32 neighbour the dtype is what it was. `linspace` and `arange` are
    computed in float32 and cast at the end, because their steps lose bits in half. The fix is
    unsafe where the neighbour's name says that it may hold integers, whose dtype must not be
    followed, and for parameters, which lose small updates in half.

    ## How to silence
    `# precision-lint: ignore[MP401] reason` or `# noqa: MP401` on the line.

    ## Sources
    PyTorch, Tensor Attributes: type promotion (dimensions, zero-dimensional tensors, numbers).
    """

    code = "MP401"
    name = "dtypeless-creation"
    severity = Severity.INFO
    applicability = Applicability.SAFE
    triggers = events(
        "creation-promotes",
        pattern=r"\b(?:zeros|ones|full|empty|rand|randn|linspace|logspace|arange|eye|tensor|"
        r"as_tensor|from_numpy|normal|Tensor)\s*\(",
    )
    triggers |= operators(ast.Call, pattern=r"\bdevice\s*=\s*[\w.]+\.device\b")
    triggers |= operators(ast.Assign, pattern=r"\.(?:weight|bias)\.data\s*=")
    triggers |= operators(ast.Mult, ast.Add, ast.Sub, pattern=WIDENED)
    triggers |= operators(ast.Call, pattern=r"\b(?:cat|concat|concatenate)\s*\(")

    def check(
        self, found: Promotion | ast.Call | ast.Assign | ast.BinOp, at: Context
    ) -> Iterator[Finding]:
        joins = isinstance(found, ast.Call) and at.qualify(found.func) in Widening.JOINS
        if isinstance(found, ast.BinOp) or (joins and isinstance(found, ast.Call)):
            harm = Widening.of(found, at)
            if harm is not None:
                yield at.finding(found, harm, Confidence.POSSIBLE, evidence=at.settings[:1])
        elif isinstance(found, ast.Assign):
            yield from self._merged(found, at)
        elif not isinstance(found, ast.Call):
            yield from self._promoted(found, at)
        elif not any(keyword.arg in ("dtype", "out", None) for keyword in found.keywords):
            home = at.qualify(found.func) or ""
            buffer = Created.replaced(found, at)
            if buffer is not None:
                harm = f"{buffer} is a buffer, half in a half model, and is float32 from here on"
                sure = Care.offered(at, half=True)
                yield at.finding(found, harm, sure, evidence=_reasons(at))
            elif not home.startswith("torch.") or home.rpartition(".")[2] not in CREATIONS:
                yield from self._constructed(found, at)
            elif not any(event.made is found for event in at.analysis.events):
                yield from self._created(found, at)

    def _created(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A creation that promotes nothing where it is, but goes on in its dtype."""
        name = at.text(node.func).rpartition(".")[2]
        value = at.value(node)
        wide = value.dtype if value.dtype in ("float32", "float64") else ""
        if name == "from_numpy" and not wide and Created.numpy_default(node, at):
            wide = "float64"
        data = name in Created.OF_DATA and value.dtype not in ("int", "bool")
        if not value.is_tensor or not (wide or data):
            return
        parameter = Created.parameter(node, at)
        if parameter is not None:
            yield from self._stored(node, parameter, at)
            return
        best: tuple[Confidence, Sink, str] | None = None
        for sink in Sink.of(node, at):
            judged = _judge(node, wide, sink, at)
            if judged is not None and (best is None or judged[0].rank > best[0].rank):
                best = (judged[0], sink, judged[1])
        if best is None:
            yield from _loose(node, wide, at)
            return
        confidence, sink, harm = best
        evidence = [sink.at.note(sink.node, "it goes in here"), *_reasons(at)]
        yield at.finding(
            node,
            f"{at.text(node.func)} without dtype is {wide or 'float32'} {harm}",
            confidence,
            evidence=dict.fromkeys(evidence),
            fix=self._follow(node, sink, at),
        )

    def _stored(self, node: ast.Call, parameter: ast.Call, at: Context) -> Iterator[Finding]:
        """A parameter on the device of another module's weights, in the default dtype."""
        holder = Apart.weight_of_device(node, at)
        if holder is None or at.project.half is None or Apart.cast_when_used(parameter, at):
            return
        text = at.text(holder)
        care = Care.of_class(at)
        statement = at.statement(node)
        edits = (
            at.edit.add_keyword(statement, node, "dtype", f"{text}.dtype") if statement else None
        )
        reason = "a parameter that is trained in half loses small updates"
        title = f"create it with the dtype of {text}"
        evidence = [at.note(holder, "the weights whose device it follows"), at.project.half]
        if care is not None:
            evidence.insert(1, at.note(care, "the class follows the dtype of its activations"))
        yield at.finding(
            node,
            f"{at.text(node.func)} follows the device of {text} but not its dtype: "
            "a float32 parameter beside weights that may be half",
            Confidence.POSSIBLE if care is None else Confidence.LIKELY,
            evidence=evidence,
            fix=Fix(title, Applicability.UNSAFE, edits, reason) if edits else None,
        )

    def _merged(self, node: ast.Assign, at: Context) -> Iterator[Finding]:
        """Weights of another layer that are replaced by what an own parameter makes of them."""
        target = node.targets[0]
        text = at.text(target)
        if not re.search(r"\w\.(weight|bias)\.data$", text) or at.project.half is None:
            return
        origins = Sink.origins(node.value, at, 0)
        texts = [at.text(origin) for origin in origins]
        entries = [
            o for o in origins
            if isinstance(o, ast.Subscript) and re.match(r"self\.\w+$", at.text(o.value))
        ]  # fmt: skip
        computed = any(
            isinstance(o, ast.BinOp)
            or (isinstance(o, ast.Call) and (at.operation(o) or ("",))[0] in ("mul", "add", "div"))
            for o in origins
        )
        cast = any(
            isinstance(part, ast.Attribute)
            and part.attr in ("to", "type_as", "dtype", "float", "half", "type")
            for part in ast.walk(node.value)
        ) or any(re.search(r"\.(to|type_as|type)\($|dtype", at.text(o.func))
                 for o in origins if isinstance(o, ast.Call))  # fmt: skip
        if not (entries and computed and text in texts) or cast or text in at.text(entries[0]):
            return
        yield at.finding(
            node.value,
            f"{text} gets the dtype of {at.text(entries[0])} where that is wider: half weights "
            "become float32 without a word",
            Confidence.LIKELY,
            evidence=[at.note(entries[0], "its dtype is its own"), at.project.half],
        )

    def _constructed(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """An object of the project that follows a device and leaves its dtype to a default."""
        device = Created.device_owner(node)
        if device is None or not isinstance(node.func, ast.Name):
            return
        cls = at.module.index.classes.get(node.func.id)
        made = cls.methods.get("__init__") if cls else at.module.index.function_named(node.func.id)
        if made is None or made is at.function:
            return
        default = made.defaults().get("dtype")
        if default is None or at.qualify(default) not in ("torch.float32", "torch.float"):
            return
        names = [p.arg for p in made.parameters()]
        if len(node.args) >= names.index("dtype") or INTEGERS.search(at.text(device).lower()):
            return
        own = cls is not None and at.function.cls is cls and at.text(device) == "self"
        confidence = Confidence.LIKELY if own else Confidence.POSSIBLE
        yield at.finding(
            node,
            f"{at.text(node.func)}() follows the device of {at.text(device)} but not its dtype: "
            "it is float32 whatever the other has",
            confidence,
            evidence=[at.note(default, "the dtype by default"), *_reasons(at)],
        )

    def _follow(self, node: ast.Call, sink: Sink, at: Context) -> Fix | None:
        """Creation in the dtype of what it meets."""
        source = _source(node, sink, at)
        statement = at.statement(node)
        name = at.text(node.func).rpartition(".")[2]
        if source is None or statement is None or name in SEQUENCES:
            return None  # positions are better cast behind their sines
        counts = INTEGERS.search(source.rpartition(".")[2].lower()) is not None
        edits = (
            at.edit.append(statement, {node: f".to({source}.dtype)"})
            if name in ("from_numpy", "Tensor")
            else at.edit.add_keyword(statement, node, "dtype", f"{source}.dtype")
        )
        if edits is None:
            return None
        return Fix(
            f"create it with the dtype of {source}",
            Applicability.UNSAFE if counts else Applicability.SAFE,
            edits,
            f"{source} may hold integers" if counts else None,
        )

    def _promoted(self, event: Promotion, at: Context) -> Iterator[Finding]:
        if not _is_tensor(event, at):
            created = list(self._created(event.made, at))
            if created:
                yield from created
                return
        region = event.region
        half = at.half(event.value, region)
        if half is None or Created.one_element(event.made, at):
            return
        if at.value(event.made).dtype == "float64":
            return  # reported as such (MP402)
        confidence = half.confidence
        if region.on and confidence is not Confidence.POSSIBLE:
            confidence = Confidence.POSSIBLE  # the next listed operation casts it down again
        elif not _proven(event, at) and not Care.expects_half(at):
            confidence = Confidence.POSSIBLE
        if not _matters(event, at):
            confidence = Confidence.POSSIBLE
        name = at.text(event.made.func)
        evidence = [at.note(event.use, "it is combined with a half tensor here"), *half.evidence]
        if at.project.half is not None and not _proven(event, at):
            evidence.append(at.project.half)
        wide = at.value(event.made).dtype
        yield at.finding(
            event.made,
            f"{name} without dtype is {wide} and promotes {at.text(event.other)} from {half.dtype}",
            confidence,
            evidence=dict.fromkeys(evidence),
            fix=self._fix(event, at),
        )

    def _fix(self, event: Promotion, at: Context) -> Fix | None:
        neighbour = _neighbour(event, at) if _is_tensor(event, at) else None
        statement = at.statement(event.made)
        if neighbour is None or statement is None:
            return None
        last = event.made.func
        kind = last.attr if isinstance(last, ast.Attribute) else ""
        counts = INTEGERS.search(neighbour.rpartition(".")[2].lower()) is not None
        if kind in SEQUENCES or kind == "from_numpy":
            edits = at.edit.append(statement, {event.made: f".to({neighbour}.dtype)"})
        else:
            edits = at.edit.add_keyword(statement, event.made, "dtype", f"{neighbour}.dtype")
        if edits is None:
            return None
        return Fix(
            f"create it with the dtype of {neighbour}",
            Applicability.UNSAFE if counts else Applicability.SAFE,
            edits,
            f"{neighbour} may hold integers" if counts else None,
        )


def _loose(node: ast.Call, wide: str, at: Context) -> Iterator[Finding]:
    """A creation that meets what may be half, without a proof that this is a tensor."""
    met = Created.loose(node, at) or Created.sampled(node, at)
    if met is None or met.at.region(met.use).on or wide == "float64":
        return
    likely = met.stored and bool(wide) and at.half_models is not None and met.at.plausible
    likely = likely and Care.expects_half(met.at) and met.at.reaches_layer(met.use)
    text = " ".join(met.at.text(met.other).split())[:40]
    yield at.finding(
        node,
        f"{at.text(node.func)} without dtype is {wide or 'float32, or what its data are,'} and "
        f"meets {text}, which may be half",
        Confidence.LIKELY if likely else Confidence.POSSIBLE,
        evidence=dict.fromkeys([met.at.note(met.use, "it goes in here"), *_reasons(at)]),
    )


def _matters(event: Promotion, at: Context) -> bool:
    """Whether the widened tensor is one, holds no counts, and goes on into the model."""
    words = at.text(event.other).lower()
    value = event.value
    if not _is_tensor(event, at):
        return False
    whole = INTEGERS.search(words) or INTEGERS.search(value.dtype)
    if whole and not ("mask" in whole[0] and Care.is_additive(words, at)):
        return False
    if _proven(event, at):
        return True
    if Care.solves(at):
        return False  # which needs float32
    if at.reaches_layer(event.use):
        return True
    owner = Created.device_owner(event.made)
    inside = at.function.cls is not None and at.plausible  # a plain function ends in its result
    if owner is None or not inside or at.value(owner).dtype != value.dtype:
        return False
    if Apart.feeds_kernel(event.use, at):
        return False
    operation = at.operation(event.use)
    joins = operation is not None and operation[0] in JOINS
    met = event.other
    while isinstance(met, ast.Subscript):
        met = met.value
    if joins and at.text(owner) == at.text(met):
        return Care.is_activation(words.replace("mask", "")) and not Apart.cast_next(event.use, at)
    return Care.of(at) is not None


def _is_tensor(event: Promotion, at: Context) -> bool:
    """Whether the widened operand is used as a tensor, and is no number of the configuration."""
    return event.value.is_tensor or event.value.dtype in at.analysis.tensors


def _proven(event: Promotion, at: Context) -> bool:
    return event.value.dtype in ("float16", "bfloat16")


def _neighbour(event: Promotion, at: Context) -> str | None:
    """A tensor in scope before the creation whose dtype is that of the promoted operand."""
    names = []
    for keyword in event.made.keywords:
        if keyword.arg == "device" and isinstance(keyword.value, ast.Attribute):
            names.append(keyword.value.value)
    node = event.other
    while isinstance(node, ast.Subscript):
        node = node.value
    names.append(node)
    for candidate in names:
        if not isinstance(candidate, (ast.Name, ast.Attribute)):
            continue
        text = at.text(candidate)
        if candidate is node or at.value(candidate).dtype == event.value.dtype:
            if at.same_at(text, event.made, event.use):
                return text
    variable = event.value.dtype[1:]
    if event.value.variable and variable in {p.arg for p in at.function.parameters()}:
        if at.same_at(variable, event.made, event.use):
            return variable
    return None


def _judge(node: ast.Call, wide: str, sink: Sink, at: Context) -> tuple[Confidence, str] | None:
    """How sure it is that a float32 tensor harms where it goes in, and how it does."""
    region = sink.at.region(sink.node)
    if not wide and sink.kind != "samples":
        return None
    if at.value(node).ndim == 0 and sink.kind != "samples":
        return None
    likely = Confidence.LIKELY if Care.expects_half(at) else Confidence.POSSIBLE
    if sink.kind == "loss":
        if region.on or sink.is_cast:
            return None
        likely = Confidence.POSSIBLE if sink.is_held else Care.offered(at, half=True)
        return likely, "as the weight of a loss: half predictions raise"
    if sink.kind == "samples":
        owner = Created.device_owner(node)
        if owner is None or not at.plausible:
            return None
        if not Apart.sampled_like(node, owner, at):
            likely = Confidence.POSSIBLE
        return likely, f"and so are the samples of the distribution: they promote {at.text(owner)}"
    if wide == "float64" and sink.kind == "product":
        other = _other(sink)
        if other is not None and sink.at.value(other).dtype == "float32":
            text = sink.at.text(other)
            return Confidence.LIKELY, f"and meets {text}, which is float32, in a matrix product"
    if region.on or not sink.at.plausible or Created.only_prepares(at):
        return None
    if sink.kind == "product":
        other = _other(sink)
        if other is None or Care.of(at) is None:
            return None  # the product itself is reported (MP502)
        half = sink.at.half(sink.at.value(other), region)
        if half is None:
            return None
        text = sink.at.text(other)
        return min(likely, half.confidence, key=lambda c: c.rank), (
            f"and meets {text} in a matrix product, which does not promote: this raises in half"
        )
    func = sink.node.func if isinstance(sink.node, ast.Call) else None
    if func is None or Care.keeps_float32(sink.at.text(func).removeprefix("self."), sink.at):
        return None
    confidence = likely if sink.kind == "layer" else Confidence.POSSIBLE
    return confidence, f"and goes into {sink.at.text(func)}: with half weights this raises"


def _other(sink: Sink) -> ast.expr | None:
    """The operand that a tensor meets in a product of two."""
    _, operands = sink.at.product(sink.node)
    others = [o for o in operands if o is not sink.operand]
    return others[0] if len(operands) == 2 and len(others) == 1 else None


def _reasons(at: Context) -> list[Evidence]:
    """Why the tensors around may be half."""
    care = Care.of(at)
    found = [at.note(care, "this function follows a dtype")] if care is not None else []
    return found + ([at.project.half] if at.project.half is not None else [])


def _source(node: ast.Call, sink: Sink, at: Context) -> str | None:
    """A name in scope at the creation that has the dtype of what it meets."""
    owner = Created.device_owner(node)
    cls = at.function.cls
    if sink.kind == "layer" and cls is not None and isinstance(sink.node, ast.Call):
        layer = sink.at.text(sink.node.func)
        made = at.module.attribute(cls, layer[5:]).const
        if sink.at.function.cls is cls and isinstance(made, str) and made.endswith(WEIGHTED):
            return f"{layer}.weight"
    if isinstance(owner, (ast.Name, ast.Attribute)) and at.text(owner) != "self":
        return at.text(owner)
    return None
