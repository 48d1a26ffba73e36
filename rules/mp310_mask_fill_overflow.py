from __future__ import annotations

import ast
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Evidence,
    Extreme,
    Finding,
    Fix,
    Half,
    Helper,
    Provenance,
    Rule,
    Severity,
    Value,
    operators,
)

LARGEST = {"float16": 65504.0, "bfloat16": 3.3895313892515355e38}
FILLS = {
    "masked_fill": 2, "masked_fill_": 2, "index_fill": 3, "index_fill_": 3, "fill_": 1,
    "full_like": 1, "new_full": 2, "scatter": 3, "scatter_": 3, "fill_diagonal_": 1,
}  # fmt: skip
"""Operations that raise, and at which operand they take the constant."""
SCALED = "a product of values that are not small"
LIMITS = frozenset({"clamp", "clamp_", "clamp_min", "clamp_max", "clip"})
MASK = re.compile(r"mask|(^|_)pad(ding)?(_|$)|keep|valid|causal|visible", re.I)
ACTIVATION = re.compile(
    r"score|logit|att(n|ention)|energ|simil|affinit|weight|dots?$|sim$|(^|_)qk|hidden|feat|emb|"
    r"prob|alpha|memory|output",
    re.I,
)
"""Names of what a layer or a product makes, which is half under autocast too."""
BIG = re.compile(r"inf|min|max|neg|big|large|huge|fill|const|value", re.I)

ARITHMETIC = (ast.Add, ast.Sub, ast.FloorDiv, ast.Mod)
"""What is done with indices."""

PRODUCTS = frozenset({"matmul", "bmm", "mm", "baddbmm", "einsum", "linear"})
SAME = frozenset({
    "view", "reshape", "permute", "transpose", "flatten", "unflatten", "squeeze", "unsqueeze",
    "masked_fill", "masked_fill_", "contiguous", "clone", "detach", "gather", "repeat", "expand",
    "div", "mul",
})  # fmt: skip
"""Operations that keep the dtype of a product."""


class MaskFillOverflow(Rule):
    """Constant beyond the range of half, filled into a tensor that may be half.

    ## What it flags
    A finite constant beyond 65504 (such as -1e9, -1e30, `torch.finfo(torch.float32).min`) in
    `masked_fill`, `full_like`, `new_full`, `full(dtype=...)`, `fill_`, `index_fill`, `scatter` and
    `F.pad` (error: they raise), in `torch.where`, `x[mask] = -1e9` and `(1 - mask) * -1e9`
    (warning: they write -inf), where the tensor may be float16. In bfloat16 only constants beyond
    3.39e38 are harmful, and `finfo(torch.float32).min` is one.

    It stays silent where the tensor is float32 for certain (upcast, a softmax or sum inside a
    CUDA autocast region, numpy), where a test has ruled float16 out, for -1e4, for -inf, for
    `torch.finfo(x.dtype).min`, for indices (an integer tensor less an offset), and for bfloat16
    projects.

    The extreme of the dtype of one tensor (`torch.finfo(x.dtype).min`) that is filled into what a
    layer or a product makes is `possible`: under autocast that is half where `x` is float32.

    A product is half under autocast (`q @ k.transpose(-2, -1)`), so attention scores are `likely`
    in a project with float16. An argument or attribute whose name does not say that a layer made
    it is `possible` there, and so are a mask that nothing casts to half, and `clamp`, which raises
    on the CPU only.

    ## Why it breaks
    `masked_fill(mask, -1e9)` on float16 raises "value cannot be converted to type c10::Half
    without overflow", on every device and under autocast. `torch.where`, indexed assignment and
    arithmetic round the constant to -inf without a word: a row that is masked as a whole gives nan
    in softmax, and so does the sum of two masks of different signs.

    ## Example
    ```python
    scores = (q @ k.transpose(-2, -1)).half()
    scores = scores.masked_fill(mask, -1e9)
    ```
    Use instead:
    ```python
    scores = (q @ k.transpose(-2, -1)).half()
    scores = scores.masked_fill(mask, torch.finfo(scores.dtype).min)
    ```

    ## Fix safety
    Unsafe: the smallest number of the tensor's own dtype replaces the constant, so in float32 the
    masked entries change from -1e9 to -3.4e38. Behind a softmax that gives the same weights, but
    other code may compare with -1e9. There is no fix where no name holds the tensor, and none for
    a mask that is multiplied or made to be added: score plus minimum would be -inf again; use one
    `masked_fill` on the scores.

    ## How to silence
    `# precision-lint: ignore[MP310] reason` or `# noqa: MP310` on the line.

    ## Sources
    PyTorch, `torch.finfo`; Automatic Mixed Precision, CUDA op-specific behavior (`matmul` and
    `linear` give half, `masked_fill` and `where` are not listed).
    """

    code, name = "MP310", "mask-fill-overflow"
    severity, applicability = Severity.ERROR, Applicability.UNSAFE
    triggers = operators(
        ast.Call, ast.Mult, ast.Assign,
        pattern=r"[eE]\+?\d|\d{6}|finfo|INF|NEG|MIN|BIG|LARGE|fill|where|full|clamp|scatter|pad\(",
    )  # fmt: skip

    def check(self, node: ast.expr | ast.Assign, at: Context) -> Iterator[Finding]:
        for place in _places(node, at):
            number = _constant(place.constant, at)
            if number is None:
                yield from _of_another(node, place, at)
                continue
            if abs(number) <= LARGEST["float16"]:
                continue
            value = at.value(place.tensor)
            if _counted(place.tensor, value, at):
                continue
            written = node.targets[0] if isinstance(node, ast.Assign) else node
            half = at.half(value, at.region(written))
            harmed = frozenset(d for d, largest in LARGEST.items() if abs(number) > largest)
            if half is None or not half.dtypes & harmed:
                continue
            dtype = "float16" if "float16" in half.dtypes else "bfloat16"
            what = "raises" if place.raises else f"writes {'-' if number < 0 else ''}inf"
            evidence = [*half.evidence]
            if not isinstance(place.constant, (ast.Constant, ast.UnaryOp)):
                evidence.append(at.note(place.constant, f"this is {number:g}"))
            if place.within is not None:
                evidence.append(place.within)
            yield at.finding(
                node,
                f"{number:g} is beyond the range of {dtype}, which ends at {LARGEST[dtype]:.4g}: "
                f"{place.name} {what}",
                _confidence(half, value, place, at),
                severity=Severity.ERROR if place.raises else Severity.WARNING,
                evidence=evidence,
                fix=_fix(place, number, value, at),
            )


def _of_another(node: ast.expr | ast.Assign, place: Place, at: Context) -> Iterator[Finding]:
    """The extreme of one tensor's dtype, filled into what a layer or product makes of it."""
    other = None if place.added else Extreme.of(place.constant, at)
    if other is None or at.text(other) == at.text(place.tensor):
        return
    value, asked = at.value(place.tensor), at.value(other)
    made = Provenance.computed(place.tensor, at) is not None or _is_product(place.tensor, at)
    if not (made or value.dtype.startswith("~call")) or not asked.variable:
        return
    if value.dtype in (asked.dtype, "float32", "float64"):
        return
    if Provenance.computed(other, at) is not None:
        return  # half as well
    half = at.half(value, at.region(node.targets[0] if isinstance(node, ast.Assign) else node))
    if half is None:
        return
    text = at.text(place.tensor)
    yield at.finding(
        node,
        f"{at.text(other)} may be float32 where {text} is {half.dtype}, as under autocast: the "
        f"extreme of its dtype is beyond {half.dtype}",
        Confidence.POSSIBLE,
        evidence=half.evidence,
    )


@dataclass(frozen=True)
class Place:
    """A constant that is written into a tensor.

    ``raises``: the operation refuses it; ``added``: the result is a mask to be added to scores;
    ``within``: where a function of the project does it.
    """

    name: str
    tensor: ast.expr
    constant: ast.expr
    raises: bool = True
    added: bool = False
    within: Evidence | None = None


def _places(node: ast.expr | ast.Assign, at: Context) -> Iterator[Place]:
    match node:
        case ast.Assign(targets=[ast.Subscript(value=owner)], value=value):
            if _may_be_big(value) or (
                isinstance(value, (ast.Name, ast.Call)) and at.mentions(Extreme.CALLS)
            ):
                yield Place("indexed assignment", owner, value, raises=False)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            for tensor, constant in ((left, right), (right, left)):
                if not _may_be_big(constant) or _may_be_big(tensor):
                    continue
                if _is_mask(tensor, at):
                    yield Place("the product", tensor, constant, raises=False, added=True)
                elif at.is_tensor(tensor) and not isinstance(tensor, ast.BinOp):
                    yield Place(SCALED, tensor, constant, raises=False, added=True)
        case ast.Call(func=func, args=arguments, keywords=keywords):
            qualified = at.qualify(func)
            if qualified is None or not qualified.startswith("torch."):
                helped = list(_helped(node, at))
                yield from helped
                if helped or qualified is not None:
                    return
            operands = list(arguments)
            if qualified is None and isinstance(func, ast.Attribute):
                operands.insert(0, func.value)
            if any(isinstance(operand, ast.Starred) for operand in operands):
                return
            name = str(qualified or getattr(func, "attr", "")).rpartition(".")[2]
            named = {k.arg: k.value for k in keywords}
            yield from _filled(node, name, operands, named, qualified is None)


def _filled(
    node: ast.Call, name: str, operands: list[ast.expr], named: dict[str | None, ast.expr],
    method: bool,
) -> Iterator[Place]:  # fmt: skip
    if name in FILLS:
        given = named.get("value") or named.get("fill_value")
        if given is None and len(operands) > FILLS[name]:
            given = operands[FILLS[name]]
        if operands and given is not None:
            # what is made to be added has no tensor to be filled
            yield (
                Place(name, node, given, added=True)
                if name == "new_full"
                else Place(name, operands[0], given)
            )
    elif name == "full" and "dtype" in named:
        given = named.get("fill_value") or (operands[1] if len(operands) > 1 else None)
        if given is not None:
            yield Place(name, node, given, added=True)
    elif name == "pad" and operands:
        given = named.get("value") or (operands[3] if len(operands) > 3 else None)
        if given is not None:
            yield Place(name, operands[0], given)
    elif name == "where" and len(operands) == 3:
        first, second = (operands[0], operands[2]) if method else operands[1:]
        for tensor, constant in ((first, second), (second, first)):
            if not isinstance(tensor, (ast.Constant, ast.UnaryOp)):
                yield Place(name, tensor, constant, raises=False)
    elif name in LIMITS and operands:
        limits = [named.get("min"), named.get("max"), *operands[1:3]]
        for limit in limits:
            if limit is not None:
                yield Place("clamp on the CPU", operands[0], limit)


def _helped(call: ast.Call, at: Context) -> Iterator[Place]:
    """What a function of the project fills into one argument, where another is the constant."""
    given = (*call.args, *(k.value for k in call.keywords))
    big = [a for a in given if _may_be_big(a)]
    helper = Helper.of(call, at) if big else None
    if helper is None or all(abs(_constant(a, at) or 0.0) <= LARGEST["float16"] for a in big):
        return
    for node in helper.function.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        filled, name = node.args, node.func.attr
        pairs: list[tuple[ast.expr, ast.expr]] = []
        if name in FILLS and len(filled) == FILLS[name]:
            pairs = [(node.func.value, filled[-1])]
        elif name == "where" and len(filled) == 3:
            pairs = [(filled[1], filled[2]), (filled[2], filled[1])]
        for tensor, constant in pairs:
            owner, number = helper.passed(tensor), helper.passed(constant)
            if owner is not None and number is not None:
                note = helper.note(node, f"{name} by {helper.function.name}()")
                spelled = f"{at.text(call.func)}()"
                yield Place(spelled, owner, number, raises=name != "where", within=note)


def _counted(node: ast.expr, value: Value, at: Context, depth: int = 4) -> bool:
    """Whether a value is an integer tensor, moved by what nothing says to be a float."""
    if isinstance(node, ast.Name) and depth:
        source = at.definition(node.id, node)
        return source is not None and _counted(source, at.value(source), at, depth - 1)
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ARITHMETIC):
        return False
    if not value.variable and value.dtype != "":
        return False
    sides = (node.left, node.right)
    whole = [s for s in sides if at.value(s).dtype == "int" and at.value(s).is_tensor]
    others = [s for s in sides if s not in whole]
    return bool(whole) and not any(ACTIVATION.search(at.text(other)) for other in others)


def _may_be_big(node: ast.expr) -> bool:
    """Whether an expression looks like a constant, before any analysis."""
    match node:
        case ast.Constant(value=int() | float() as number):
            return abs(number) > LARGEST["float16"]
        case ast.UnaryOp(operand=inner):
            return _may_be_big(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return BIG.search(name) is not None
        case ast.BinOp(op=ast.Pow()):
            return True
        case ast.Call(func=ast.Name(id="float")):
            return False  # float("-inf")
    return False


def _constant(node: ast.expr, at: Context) -> float | None:
    """The finite number that is filled in; a tensor without dimensions counts."""
    if isinstance(node, ast.Constant):
        number = node.value if isinstance(node.value, (int, float)) else math.nan
        return number if math.isfinite(number) else None
    value = at.value(node)
    if value.kind == "number" and isinstance(value.const, (int, float)):
        number = float(value.const)
    elif value.is_tensor and value.ndim == 0 and value.lo == value.hi:
        number = value.lo
    else:
        return _machine(node, at)
    return number if math.isfinite(number) else None


def _machine(node: ast.expr, at: Context) -> float | None:
    """``numpy.finfo(numpy.float32).min`` and its like, which no value of the analysis holds."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _machine(node.operand, at)
        return None if inner is None else -inner
    if isinstance(node, ast.Name):
        source = at.definition(node.id, node)
        return _machine(source, at) if isinstance(source, (ast.Attribute, ast.UnaryOp)) else None
    if not isinstance(node, ast.Attribute) or node.attr not in ("min", "max"):
        return None
    owner = node.value
    if at.qualify(owner) == "sys.float_info":
        return sys.float_info.max if node.attr == "max" else None
    if not isinstance(owner, ast.Call) or at.qualify(owner.func) != "numpy.finfo":
        return None
    named = at.text(owner.args[0]).rpartition(".")[2].strip("'\"") if owner.args else ""
    largest = {"float32": 3.4028234663852886e38, "float64": sys.float_info.max}.get(
        "float64" if named in ("float", "double") else named
    )
    return None if largest is None else largest if node.attr == "max" else -largest


def _is_mask(node: ast.expr, at: Context) -> bool:
    """Whether a factor is a mask: between 0 and 1, or named so."""
    value = at.value(node)
    if not value.maybe_tensor or value.dtype in ("bool", "int"):
        return False
    match node:
        case ast.BinOp(left=ast.Constant(value=1 | 1.0), op=ast.Sub()):
            return True  # what is kept is 1
    if (value.lo, value.hi) == (0.0, 1.0):
        return True
    return any(
        isinstance(part, (ast.Name, ast.Attribute))
        and MASK.search(part.id if isinstance(part, ast.Name) else part.attr)
        for part in ast.walk(node)
    )


def _confidence(half: Half, value: Value, place: Place, at: Context) -> Confidence:
    if half.confidence is Confidence.CERTAIN:
        return half.confidence
    if place.name.startswith("clamp") or place.name == SCALED:
        return Confidence.POSSIBLE
    if half.outside or half.confidence is Confidence.POSSIBLE:
        return half.confidence
    if place.name == "the product" and _follows_layer(place.tensor, at):
        return half.confidence
    if place.name == "the product" and value.variable and not _follows(place.tensor, value):
        return Confidence.POSSIBLE  # nothing says that a mask is half
    if value.wide and at.project.autocast is not None:
        return Confidence.POSSIBLE
    if at.half_models is not None and at.project.autocast is None:
        return half.confidence
    if _is_product(place.tensor, at):
        return half.confidence  # half under autocast, whatever goes in
    if value.promoted or value.dtype.startswith(("~self.", "~buffer.", "~parameter.")):
        return Confidence.POSSIBLE
    if value.variable and _handed_in(place.tensor, at):
        return Confidence.POSSIBLE
    return half.confidence


def _follows(node: ast.expr, value: Value) -> bool:
    """Whether a value has the dtype of something else than the names it is made of."""
    names = {ast.unparse(n) for n in ast.walk(node) if isinstance(n, (ast.Name, ast.Attribute))}
    parts = re.split(r"[|+]", value.dtype[1:])
    return names.isdisjoint(parts) and not value.dtype.startswith("~call")


def _follows_layer(node: ast.expr, at: Context) -> bool:
    """Whether a mask is cast to the dtype of what comes out of a layer, which autocast makes half:
    ``mask.to(scores.dtype)``."""
    for part in ast.walk(node):
        if not isinstance(part, ast.Call) or not isinstance(part.func, ast.Attribute):
            continue
        for given in (*part.args, *(k.value for k in part.keywords)):
            match part.func.attr, given:
                case ("type_as", other) | ("to", ast.Attribute(attr="dtype", value=other)):
                    if Provenance.computed(other, at) is not None:
                        return True
    return False


def _is_product(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether a value is a matrix product, scaled, reshaped or masked at most."""
    match node:
        case ast.BinOp(op=ast.MatMult()):
            return True
        case ast.BinOp(left=left, op=ast.Mult() | ast.Div(), right=right):
            return any(
                _is_product(one, at, depth) and not at.value(other).is_tensor
                for one, other in ((left, right), (right, left))
            )
        case ast.BinOp(left=left, right=right):
            return _is_product(left, at, depth) and _is_product(right, at, depth)
        case (
            ast.Subscript(value=inner)
            | ast.UnaryOp(operand=inner)
            | ast.Attribute(value=inner, attr="data")
        ):
            return _is_product(inner, at, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return source is not None and _is_product(source, at, depth - 1)
        case ast.Call():
            operation = at.operation(node)
            if operation is None or operation[0] in PRODUCTS:
                return operation is not None
            return operation[0] in SAME and _is_product(operation[1], at, depth)
    return False


def _handed_in(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether a value is an argument under a name that does not say that a layer made it."""
    match node:
        case (
            ast.Subscript(value=inner)
            | ast.UnaryOp(operand=inner)
            | ast.Attribute(value=inner, attr="data")
        ):
            return _handed_in(inner, at, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            if source is not None:
                return _handed_in(source, at, depth - 1)
            return not (ACTIVATION.search(name) and not MASK.search(name))
        case ast.Attribute():
            return True
        case ast.BinOp(left=left, op=op, right=right):
            return not isinstance(op, ast.MatMult) and all(
                isinstance(side, ast.Constant) or _handed_in(side, at, depth)
                for side in (left, right)
            )
        case ast.Call():
            operation = at.operation(node)
            dtype = at.value(node).dtype
            if operation is None or dtype.startswith("~call"):
                return False
            return at.value(operation[1]).dtype == dtype and _handed_in(operation[1], at, depth)
    return False


def _fix(place: Place, number: float, value: Value, at: Context) -> Fix | None:
    tensor = place.tensor
    statement = at.statement(place.constant)
    if place.added or statement is None or not isinstance(tensor, (ast.Name, ast.Attribute)):
        return None
    if place.name.startswith("clamp"):
        return None
    spelling, imports = at.torch()
    end = "min" if number < 0 else "max"
    text = f"{spelling}.finfo({at.text(tensor)}.dtype).{end}"
    edits = at.edit.replace(statement, {place.constant: text})
    if edits is None:
        return None
    extreme = "smallest" if number < 0 else "largest"
    filled = "-3.4e38" if number < 0 else "3.4e38"
    return Fix(
        f"fill in the {extreme} number of the tensor's dtype",
        Applicability.UNSAFE,
        (*imports, *edits),
        f"in float32 the filled entries change from {number:g} to {filled}",
    )
