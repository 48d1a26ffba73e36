"""When a value that may be half by the project is float32 all the same, by what the code says."""

from __future__ import annotations

import ast
import functools
import re
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics import handed
from precision_lint.semantics.flow import PRODUCERS
from precision_lint.semantics.guards import made
from precision_lint.semantics.ops import VIEWS
from precision_lint.semantics.provenance import Provenance

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.halves import Half
    from precision_lint.semantics.values import Value

DATA = re.compile(
    r"(^|_)(gts?|targets?|labels?|truths?|priors?|sigmas?|noise_levels?|timesteps?"
    r"|imgs?|images?|rgb|wavs?|waveforms?|audio|signal)$|^gt_"
)
"""Names of what a data loader or a sampler brings in float32, not a layer in half."""
SOFT = re.compile(r"(^|_)(soft|attn|attention|align(ment)?)s?(_|$)")
"""Names of what a softmax made, which is float32 under CUDA's autocast."""
FILTERS = re.compile(r"mel|f(ilter)?_?banks?\b|\bfilters?\b", re.IGNORECASE)
"""Names of the filters that turn a spectrum into features."""
ACTIVATIONS = PRODUCERS - {"abs", "square"}
TRAINS = re.compile(r"\bloss\w*\.backward\(")
HALF = re.compile(r"autocast|half|float16|fp16|bf16|GradScaler|scaler|amp\b|precision", re.I)


class Doubt:
    """Reasons to believe less in a half value than `Context.half` does."""

    @staticmethod
    def lowered(half: Half, value: Value, operand: ast.expr, at: Context) -> Confidence:
        """Confidence, lowered where the value is half only in a way the code does not suggest."""
        if half.confidence is Confidence.CERTAIN or half.outside:
            return half.confidence
        if value.wide and at.project.autocast is not None and not at.project.half_instead:
            return Confidence.POSSIBLE  # float32 under autocast, by which this project trains
        if _trains_in_float32(at.source.text):
            return Confidence.POSSIBLE  # a script with a training loop of its own, in float32
        if value.variable and at.project.autocast is not None and is_named(SOFT, operand, at):
            return Confidence.POSSIBLE
        source = made(operand, at) or at.definition(getattr(operand, "id", ""), operand)
        source = source if source is not None else operand
        if not at.region(operand).known and FILTERS.search(at.text(source)):
            return Confidence.POSSIBLE  # features, which are made before a region as a rule
        if isinstance(source, ast.Attribute) and source.attr == "probs":
            return Confidence.POSSIBLE  # a distribution's, whose softmax autocast makes float32
        data = value.variable and (is_named(DATA, operand, at) or _meets_data(value, operand, at))
        return Confidence.POSSIBLE if data else half.confidence

    @staticmethod
    def strict(half: Half, value: Value, operand: ast.expr, at: Context) -> Confidence:
        """The same where the pattern is common in code that is right in float32.

        Lowered too: what came in as an argument or an attribute, what two arguments promote to
        (one of them may be float32), metrics, which have no gradient, and functions of no class
        in which nothing makes an activation, such as geometry.
        """
        confidence = Doubt.lowered(half, value, operand, at)
        if confidence is Confidence.CERTAIN or half.outside:
            return confidence
        if not at.without_gradient and handed.is_activation(value, at):
            return confidence
        if value.promoted and not is_product(operand, at):
            return Confidence.POSSIBLE
        if value.dtype.startswith(("~self.", "~buffer.", "~parameter.")):
            return Confidence.POSSIBLE
        if at.without_gradient or not at.is_tensor(operand) or not is_computed(operand, at):
            return Confidence.POSSIBLE
        if at.function.cls is None and not at.region(operand).on:
            operation = at.operation(made(operand, at) or operand)
            made_here = operation is not None and operation[0] in ACTIVATIONS
            if not made_here and not is_fed(operand, at):
                return Confidence.POSSIBLE
        return confidence


def _meets_data(value: Value, operand: ast.expr, at: Context) -> bool:
    """Whether a value was promoted by float32 data, or comes of a function that is given such."""
    dtypes = [value.dtype]
    if value.dtype.startswith("~") and "+" not in value.dtype:
        passed = at.module.arguments(at.function, value.dtype[1:])
        dtypes += [one.value.dtype for one in passed if one.value.maybe_tensor]
        dtypes = dtypes[1:] or dtypes
    if all("+" in d and any(DATA.search(p) for p in d[1:].split("+")) for d in dtypes):
        return True
    source = operand
    if isinstance(operand, ast.Name):
        source = at.definition(operand.id, operand) or operand
    while isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        if not isinstance(source.func.value, ast.Call):
            break
        source = source.func.value  # f(x, target).clamp(0)
    return (
        isinstance(source, ast.Call)
        and at.value(source).dtype.startswith("~call")
        and len(source.args) > 1
        and any(isinstance(a, ast.Name) and is_named(DATA, a, at) for a in source.args)
    )


@functools.lru_cache(maxsize=8)
def _trains_in_float32(text: str) -> bool:
    return TRAINS.search(text) is not None and HALF.search(text) is None


def is_named(names: re.Pattern[str], node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether the name behind an operand, or of what it is made from, is one of ``names``."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner)) if at.qualify(node.func) is None:
            return is_named(names, inner, at, depth)
        case ast.Subscript(value=inner) | ast.BinOp(left=inner):
            return is_named(names, inner, at, depth)
        case ast.Call(args=[inner, *_]) if at.operation(node) is not None:
            return is_named(names, inner, at, depth)
        case ast.Attribute(attr=name):
            return names.search(name) is not None
        case ast.Name(id=name):
            source = at.definition(name, node) if depth else None
            return names.search(name) is not None or (
                source is not None and is_named(names, source, at, depth - 1)
            )
    return False


def is_product(node: ast.expr, at: Context, depth: int = 4) -> bool:
    """Whether a value is a layer's output or a matrix product, reshaped at most: of one dtype,
    and half under autocast, whatever goes in."""
    match node:
        case ast.Subscript(value=inner):
            return is_product(inner, at, depth)
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return source is not None and is_product(source, at, depth - 1)
        case ast.Call() if (found := at.operation(node)) is not None and found[0] in VIEWS:
            return is_product(found[1], at, depth)
    return Provenance.is_layer(node, at)


def is_fed(node: ast.expr, at: Context) -> bool:
    """Whether a module of this file passes a layer's output as what ``node`` is made of."""
    places = [parameter.arg for parameter in at.function.parameters()]
    names = {part.id for one in Provenance.of(node, at) for part in [one]
             if isinstance(part, ast.Name)}  # fmt: skip
    for call, caller in at.module.call_sites(at.function):
        if caller.cls is None or not caller.cls.is_module:
            continue
        there = at.inside(caller)
        given = dict(zip(places, call.args, strict=False))
        given |= {k.arg: k.value for k in call.keywords if k.arg is not None}
        if any(Provenance.computed(given[n], there) is not None for n in names & given.keys()):
            return True
    return False


def is_computed(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether a value is made by an operation of this function, rather than handed in."""
    match node:
        case ast.BinOp():
            return True
        case ast.Subscript(value=inner) | ast.UnaryOp(operand=inner):
            return is_computed(inner, at, depth)
        case ast.Call(func=func):
            qualified = at.qualify(func)
            if qualified is None and isinstance(func, ast.Attribute):
                return True  # a method of a tensor, or a layer
            if qualified is not None and qualified.startswith("torch."):
                return True
            value = at.value(node)  # a function of the project, or one that is not known
            return value.is_tensor and not value.dtype.startswith("~call")
        case ast.Name(id=name) if depth:
            source = at.definition(name, node)
            return source is not None and is_computed(source, at, depth - 1)
    return False
