from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Half,
    Provenance,
    Region,
    Rule,
    Severity,
    Value,
    calls,
    operators,
)

SOURCES = {
    "index_add": (2, "source"), "index_copy": (2, "source"), "index_reduce": (2, "source"),
    "scatter": (2, "src"), "scatter_add": (2, "src"), "scatter_reduce": (2, "src"),
    "masked_scatter": (1, "source"), "index_put": (1, "values"), "put": (1, "source"),
    "lerp": (0, "end"),
}  # fmt: skip
"""Where methods that demand one dtype take the tensor that they write."""
PROMOTED = frozenset({"index_put", "scatter_add", "index_copy"})
"""Out-of-place ones that some device's autocast promotes."""
INDEX = re.compile(
    r"(?<![a-z])(\w*mask\w*|\w*idx|\w*inds?|ids?|indices|\w*index(es)?|alive|active|hits?|sel|keep|valid\w*|selected|select|"
    r"nonzero|positions?|order|perm|fg|bg|pos|neg)(?![a-z])"
)
"""Names of tensors that pick elements, where the analysis knows no more."""
SEVERAL = re.compile(r"mask|indices|inds$|indexes|idxs|ids$|index_\w+|selected")
"""Names that pick more than one, whatever binds them."""
KEYS = re.compile(r"\.(?:items|keys|named_\w+)\(\)$|^range\(")
"""Loops that bind texts and numbers."""
MAKES = re.compile(r"(?:^|\.)(?:dict|list|OrderedDict|defaultdict|Counter|state_dict)$")
"""Calls that give dicts and lists."""
CASTS = frozenset({"to", "type", "type_as", "half", "bfloat16"})
"""Methods that choose a dtype."""
PRODUCTS = frozenset({"linear", "matmul", "bmm", "mm", "einsum", "conv1d", "conv2d", "conv3d"})
WHOLE = re.compile(
    r"(?<![a-z])(\w*mask\w*|labels?|\w*_?ids?|idxs?|ind(ex|ices)|lengths?|counts?|classes|tokens?)"
    r"(?![a-z])"
)
"""Names of tensors that hold integers or flags."""


class IndexAssignMismatch(Rule):
    """Indexed write of a half tensor into a float32 one, or the reverse, which raises.

    ## What it flags
    `buffer[index] = x` with a tensor, a mask or a list as the index, `index_add_`, `index_copy_`,
    `index_reduce_`, `index_put_`, `put_`, `scatter_` and its variants, `masked_scatter` and `lerp`,
    where one side is float32 (created without dtype, made by `.float()`) and the other half: the
    output of a layer under autocast or of a half model, a tensor cast to half. Under autocast a
    parameter stays in float32 and is stored into half features (`x[mask] = self.mask_token`).

    It stays silent on slices and plain integers as the index, which cast; on Python numbers; on
    tensors without dimensions behind a mask, which are converted as well; on `buffer[index] += x`,
    which adds in the buffer's dtype; and where both sides are known to agree (`zeros_like(x)`,
    `dtype=x.dtype`). Two tensors of which nothing says that they have one dtype are only
    `possible`; likely under autocast are a write of what was computed with a buffer, which stays in
    float32, of a product into a tensor made like its input, and of what was computed with ground
    truth into one made like a prediction.

    ## Why it breaks
    These kernels do not promote: `Index put requires the source and destination dtypes match, got
    Float for the destination and Half for the source`, `index_add_(): self (Float) and source
    (Half) must have the same scalar type`, `scatter(): Expected self.dtype to be equal to
    src.dtype`. Autocast does not help: on CUDA it promotes `index_put` and `scatter_add` out of
    place only, not the forms that write. The float32 run has one dtype and works.

    A slice of the same buffer takes any dtype without a word, and a value above 65504 is inf there.

    ## Example
    ```python
    padded = torch.zeros(mask.shape + (width,), device=mask.device)
    padded[mask] = self.proj(tokens)
    ```
    Use instead:
    ```python
    padded = torch.zeros(mask.shape + (width,), device=mask.device)
    padded[mask] = self.proj(tokens).to(padded.dtype)
    ```

    ## Fix safety
    Safe: the cast does nothing where both are float32, and gradients pass it.

    ## How to silence
    `# precision-lint: ignore[MP503] reason` or `# noqa: MP503` on the line.

    ## Sources
    PyTorch, `Tensor.index_put_`, `Tensor.index_add_`, `Tensor.scatter_`; Automatic Mixed Precision,
    CUDA ops that promote to the widest input type.
    """

    code = "MP503"
    name = "index-assign-mismatch"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(ast.Assign, pattern=r"\][ \t]*=(?:[^=]|$)") | calls(
        *(f"Tensor.{name}{end}" for name in SOURCES for end in ("", "_")),
        *(f"torch.{name}" for name in SOURCES),
    )

    def check(self, node: ast.Assign | ast.Call, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.Assign):
            if isinstance(node.value, ast.Constant):
                return  # a number takes the dtype of the buffer
            for target in node.targets:
                if isinstance(target, ast.Subscript) and not _is_container(target.value, at):
                    named = _picks(target.slice, at)
                    if named is not None:
                        masked = _is_mask(target.slice, at)
                        yield from self._judged(
                            target, "an indexed assignment", target.value, node.value, masked,
                            named, at,
                        )  # fmt: skip
            return
        written = _written(node, at)
        if written is not None:
            name, owner, source = written
            yield from self._judged(node, name, owner, source, False, False, at)

    def _judged(
        self,
        node: ast.expr,
        name: str,
        owner: ast.expr,
        source: ast.expr,
        masked: bool,
        named: bool,
        at: Context,
    ) -> Iterator[Finding]:
        into, given = at.value(owner), at.value(source)
        if not (into.maybe_tensor and given.maybe_tensor):
            return
        if masked and given.ndim == 0:
            return
        region = at.region(source) if isinstance(source, (ast.Call, ast.BinOp)) else at.region(node)
        if isinstance(node, ast.Call):
            region = at.region(node)
            if region.on and name in PROMOTED:
                return
        found = _mismatch((owner, into), (source, given), region, at)
        if found is None:
            return
        half, confidence, low, wide = found
        if named and confidence is Confidence.CERTAIN:
            confidence = Confidence.LIKELY
        statement = at.statement(node)
        buffer = at.text(owner)
        fix = None
        others = isinstance(statement, ast.Assign) and len(statement.targets) > 1
        if statement is not None and not others and re.fullmatch(r"[\w.]+", buffer):
            edits = at.edit.append(statement, {source: f".to({buffer}.dtype)"})
            if edits is not None:
                title = f"cast to the dtype of {buffer}"
                fix = Fix(title, Applicability.SAFE, edits)
        evidence = [*half.evidence]
        if at.project.half is not None and at.project.half not in evidence and not region.on:
            evidence.append(at.project.half)
        for value, operand in ((into, owner), (given, source)):
            if operand is wide and (value.made or value.node) is not None:
                made = value.made or value.node
                if made is not None and made.lineno != node.lineno:
                    evidence.append(at.note(made, "the float32 side is made here"))
        known = at.value(wide).dtype in ("float32", "float64")
        stays = "is" if known else "may stay" if confidence is Confidence.POSSIBLE else "stays"
        yield at.finding(
            node,
            f"{_short(low, at)} may be {half.dtype} and {_short(wide, at)} {stays} float32: "
            f"{name} does not cast, this raises",
            confidence,
            evidence=dict.fromkeys(evidence),
            fix=fix,
        )


def _short(node: ast.expr, at: Context) -> str:
    text = " ".join(at.text(node).split())
    return text if len(text) <= 40 else text[:37] + "..."


def _mismatch(
    into: tuple[ast.expr, Value], given: tuple[ast.expr, Value], region: Region, at: Context
) -> tuple[Half, Confidence, ast.expr, ast.expr] | None:
    """How sure it is that one side is half and the other float32, and which is which."""
    for (low_node, low), (wide_node, wide) in ((given, into), (into, given)):
        if wide.dtype not in ("float32", "float64") or not wide.is_tensor:
            continue
        half = at.half(low, region) or _unknown(low_node, low, at)
        if half is None or low.dtype == wide.dtype or "autocast" in low.dtype:
            continue
        confidence = half.confidence
        if low.dtype not in ("float16", "bfloat16", "low") and not half.told:
            computed = (Provenance.computed(low_node, at) or _listed(low_node, at)) is not None
            if low_node is given[0] and not computed and _whole(low_node, wide_node, at):
                continue  # data of any dtype that the caller has
            believed = _believed(low_node, wide_node, computed and low_node is given[0], at)
            if low_node is given[0] and not computed:
                believed = False
            if not believed or "+" in low.dtype:  # one of two terms may be float32
                confidence = Confidence.POSSIBLE
        return half, confidence, low_node, wide_node
    return _apart_under_autocast(into, given, region, at) or _open(into, given, region, at)


def _apart_under_autocast(
    into: tuple[ast.expr, Value], given: tuple[ast.expr, Value], region: Region, at: Context
) -> tuple[Half, Confidence, ast.expr, ast.expr] | None:
    """A buffer that autocast leaves in float32, and what a layer makes in autocast's dtype."""
    (buffer, held), (source, value) = into, given
    used = region.on or (region.state == "inherited" and at.project.mixed is not None)
    if not used or not at.plausible or value.wide or held.dtype == value.dtype:
        return None
    prototype = _prototype(buffer, at)
    stored = bool(held.tags & {"buffer", "parameter"})
    shown = stored or (prototype is not None and at.value(prototype).wide)
    if not shown and (prototype is None or not isinstance(prototype, ast.Name)):
        return None
    if Provenance.computed(source, at) is None or Provenance.computed(buffer, at) is not None:
        return None
    if _promoted(source, held, at):
        return None
    product = (at.operation(source) or ("",))[0] in PRODUCTS
    # of a product half under autocast, though its weights are not
    half = at.half(value, region) or (at.half(held, region) if product else None)
    if half is None:
        return None
    shown = shown or (product and at.project.mixed is not None)
    return half, half.confidence if shown else Confidence.POSSIBLE, source, buffer


def _promoted(source: ast.expr, held: Value, at: Context) -> bool:
    """Whether a value was made by arithmetic with what is as wide as a buffer: with its rows."""
    for origin in Provenance.of(source, at):
        if Provenance.is_layer(origin, at):
            return False
        if isinstance(origin, ast.Call) and (at.operation(origin) or ("",))[0] in CASTS:
            return False
        terms = at.value(origin).dtype.removeprefix("~").split("+")
        if any({*term.split("|")} <= {held.dtype.removeprefix("~"), "float32"} for term in terms):
            return True
    return False


def _open(
    into: tuple[ast.expr, Value], given: tuple[ast.expr, Value], region: Region, at: Context
) -> tuple[Half, Confidence, ast.expr, ast.expr] | None:
    """Two tensors of which nothing says that they have one dtype."""
    (buffer, held), (source, value) = into, given
    if held.dtype == value.dtype != "" or "cast" in value.tags or Care.in_test(at):
        return None
    if not (held.variable or held.dtype == "") or not (value.variable or value.dtype == ""):
        return None
    state = isinstance(buffer, ast.Attribute) or "buffer" in held.tags or "parameter" in value.tags
    module = isinstance(source, ast.Call) and at.qualify(source.func) is None
    if not (state or module) and (_whole(source, buffer, at) or not _tensors(into, given, at)):
        return None
    half = at.half(value, region) or at.half(held, region) or _unknown(source, value, at)
    if half is None and held.dtype == value.dtype == "" and _restored(buffer, source, at):
        half = Half(frozenset({"float16", "bfloat16"}), Confidence.POSSIBLE, at.settings[:1])
    if half is None:
        return None
    kept = ("buffer.", "parameter.")
    stays = {v for v in _variables(value) if v.startswith(kept)} - _variables(held)
    mixed = region.on or (region.state == "inherited" and at.project.mixed is not None)
    if stays and mixed and at.plausible and Provenance.computed(buffer, at) is not None:
        return half, half.confidence, buffer, source  # autocast leaves what is held in float32
    if "parameter" in value.tags:
        return half, Confidence.POSSIBLE, buffer, source
    predicted = "[" in held.dtype  # made like an entry of a model's outputs
    low = at.half(held, region) if predicted and _filled_from(buffer, at) else None
    if low is not None and Provenance.of_targets(source, at) and at.plausible:
        return low, low.confidence, buffer, source  # data promotes it to float32
    return half, Confidence.POSSIBLE, source, buffer


def _variables(value: Value) -> set[str]:
    """The names of the dtypes that a value's dtype is promoted from."""
    return set(re.split(r"[+|]", value.dtype.removeprefix("~")))


def _tensors(into: tuple[ast.expr, Value], given: tuple[ast.expr, Value], at: Context) -> bool:
    """Whether both sides are used as tensors in this function, at least."""
    (buffer, held), (source, value) = into, given
    parent = at.parents.get(id(buffer))
    if held.ndim == 0 or (isinstance(parent, ast.Attribute) and parent.attr.startswith("lerp")):
        return False  # an optimizer's state follows its parameters
    if isinstance(parent, ast.Subscript):
        if not (at.is_tensor(buffer) or _is_mask(parent.slice, at) or _is_list(parent.slice, at)):
            return False
        if _filled_from(buffer, at):
            return True
    else:
        return True  # a method that only tensors have
    return at.is_tensor(source) or (value.kind == "unknown" and not isinstance(source, ast.Name))


def _filled_from(buffer: ast.expr, at: Context) -> bool:
    """Whether a buffer was made in the dtype of one tensor, to be filled from several."""
    made = at.definition(buffer.id, buffer) if isinstance(buffer, ast.Name) else None
    if not isinstance(made, ast.Call):
        return False
    given = [k.value for k in made.keywords if k.arg == "dtype"]
    return any(isinstance(dtype, ast.Attribute) and dtype.attr == "dtype" for dtype in given)


def _is_list(index: ast.expr, at: Context) -> bool:
    """Whether a name is bound to a list that is written out, which indexes tensors only."""
    if not isinstance(index, ast.Name):
        return False
    lists = (ast.ListComp, ast.BinOp)
    made = [m for m in at.function.assigned.get(index.id, ()) if isinstance(m, lists)]
    return any(
        isinstance(m, ast.ListComp)
        or (isinstance(m.op, ast.Add) and isinstance(m.right, (ast.ListComp, ast.List)))
        for m in made
    )


def _whole(source: ast.expr, buffer: ast.expr, at: Context) -> bool:
    """Whether names say that integers or flags are written."""
    if isinstance(source, ast.BinOp) and isinstance(source.op, ast.Div):
        return False
    texts = (re.sub(r"\[[^\]]*\]|\(.*\)", "", at.text(side).lower()) for side in (source, buffer))
    return any(WHOLE.search(text) for text in texts)


def _unknown(node: ast.expr, value: Value, at: Context) -> Half | None:
    """A result of a call of which nothing is known: it may be half."""
    if value.kind != "unknown" or value.dtype or not isinstance(node, ast.Call):
        return None
    if at.qualify(node.func) is not None or Care.in_test(at):
        return None
    return Half(frozenset({"float16", "bfloat16"}), Confidence.POSSIBLE, at.settings[:1])


def _restored(buffer: ast.expr, source: ast.expr, at: Context) -> bool:
    """Whether rows of a layer's weights are set to what was kept, in a project that halves models:
    ``layer.weight[index] = original[index]``."""
    kept = source.value if isinstance(source, ast.Subscript) else source
    weights = re.search(r"(?:\.weight|_?weights|embeddings?)(?:\.data)?$", at.text(buffer))
    named = isinstance(kept, (ast.Name, ast.Attribute)) and at.text(kept) != at.text(buffer)
    return weights is not None and named and at.settings != ()


def _listed(node: ast.expr, at: Context) -> ast.expr | None:
    """A call of one of the modules that a loop goes over: ``for expert in self.experts``."""
    for origin in Provenance.of(node, at):
        if not isinstance(origin, ast.Call) or not isinstance(origin.func, ast.Name):
            continue
        for parent in at.ancestors(origin):
            if isinstance(parent, ast.For) and "self." in at.text(parent.iter):
                names = {n.id for n in ast.walk(parent.target) if isinstance(n, ast.Name)}
                if origin.func.id in names:
                    return origin
    return None


def _prototype(node: ast.expr, at: Context) -> ast.expr | None:
    """The tensor whose dtype a buffer was created in."""
    for origin in Provenance.of(node, at):
        found = at.operation(origin)
        if found is not None and re.search(r"_like$|^new_\w+$|^clone$", found[0]):
            return found[1]
    return None


def _believed(low_node: ast.expr, wide_node: ast.expr, source: bool, at: Context) -> bool:
    """Whether a dtype that is open is half as soon as anything is."""
    if not at.plausible or Care.in_test(at):
        return False
    if source:  # out of a layer, into a float32 buffer that is made here
        return at.value(wide_node).made is not None
    if at.project.half is None or not Care.half_models(at):
        return False  # under autocast the buffer's own input may be float32 as well
    explicit = any(
        at.value(o).made is not None or "cast" in at.value(o).tags
        for o in Provenance.of(wide_node, at)
        if at.value(o).dtype == "float32"
    )
    return explicit and Care.is_activation(at.text(low_node)) and _follows(low_node, at)


def _follows(node: ast.expr, at: Context) -> bool:
    """Whether a buffer was made in the dtype of a tensor: ``zeros_like(x)``, ``dtype=x.dtype``."""
    return any(
        (
            isinstance(origin, ast.Call)
            and re.search(r"_like$|\bnew_\w+$|\bclone$", at.text(origin.func))
        )
        or re.search(r"\bdtype=[\w.]+\.dtype", at.text(origin))
        for origin in Provenance.of(node, at)
    )


def _written(node: ast.Call, at: Context) -> tuple[str, ast.expr, ast.expr] | None:
    """Name, destination and source of a method that writes at indices."""
    found = at.operation(node)
    if found is None:
        return None
    name, owner = found
    place, keyword = SOURCES[name.removesuffix("_")]
    if owner is not getattr(node.func, "value", None):
        place += 1
    given = {k.arg: k.value for k in node.keywords}
    source = node.args[place] if len(node.args) > place else given.get(keyword)
    if source is None or isinstance(source, ast.Starred):
        return None
    return name, owner, source


def _picks(index: ast.expr, at: Context) -> bool | None:
    """Whether an index picks elements by a tensor, a mask or a list; True: its name alone says so.

    None: it is a slice, an integer, or not known.
    """
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    named = False
    for part in parts:
        if isinstance(part, (ast.Constant, ast.JoinedStr)) or _is_key(part, at):
            continue
        value = at.value(part)
        if isinstance(part, ast.List) and part.elts:
            return False
        if value.is_tensor and value.ndim != 0 and value.dtype in ("int", "bool"):
            return False
        named = named or _is_list(part, at)
        flags = isinstance(part, (ast.Compare, ast.UnaryOp)) and value.kind == "unknown"
        named = named or (flags and _compares(part, at))
        open_ = value.kind == "unknown" or (value.is_tensor and value.variable and value.ndim != 0)
        if open_ and isinstance(part, (ast.Name, ast.Attribute, ast.Subscript)):
            text = at.text(part).lower()
            looped = isinstance(part, ast.Name) and part.id in at.function.looped
            # a loop over integers binds one, a loop over lists of masks does not
            one = looped and (SEVERAL.search(text) is None or _counted(part, at))
            named = named or (INDEX.search(text) is not None and not one)
    return True if named else None


def _is_container(owner: ast.expr, at: Context) -> bool:
    """Whether a name is bound to dicts and lists only."""
    made = at.function.assigned.get(owner.id, []) if isinstance(owner, ast.Name) else []
    return bool(made) and all(
        isinstance(source, (ast.Dict, ast.DictComp, ast.List, ast.ListComp))
        or (isinstance(source, ast.Call) and MAKES.search(at.text(source.func)) is not None)
        for source in made
    )


def _is_key(part: ast.expr, at: Context) -> bool:
    """Whether a name is bound to texts or to what a loop over a dict or numbers gives, and sounds
    like no index."""
    if not isinstance(part, ast.Name) or INDEX.search(part.id.lower()) is not None:
        return False
    made = at.function.assigned.get(part.id, [])
    if any(not isinstance(source, (ast.JoinedStr, ast.Constant)) for source in made):
        return False
    loops = [
        parent.iter
        for parent in at.ancestors(part)
        if isinstance(parent, ast.For)
        and any(isinstance(n, ast.Name) and n.id == part.id for n in ast.walk(parent.target))
    ]
    if not made and not loops:
        return False
    return all(KEYS.search(at.text(source)) is not None for source in loops)


def _counted(part: ast.expr, at: Context) -> bool:
    """Whether a loop over numbers binds a name: ``for index_a in range(n)``."""
    name = at.text(part)
    return any(
        isinstance(parent, ast.For)
        and any(isinstance(n, ast.Name) and n.id == name for n in ast.walk(parent.target))
        and re.match(r"(?:range|enumerate)\(", at.text(parent.iter))
        for parent in at.ancestors(part)
    )


def _compares(part: ast.expr, at: Context) -> bool:
    """``ids == pad``, ``~mask``"""
    if isinstance(part, ast.UnaryOp):
        return isinstance(part.op, ast.Invert)
    return INDEX.search(at.text(part).lower()) is not None


def _is_mask(index: ast.expr, at: Context) -> bool:
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    if any(isinstance(p, ast.Compare) for p in parts):
        return True
    return any(at.value(p).dtype == "bool" or "mask" in at.text(p).lower() for p in parts)
