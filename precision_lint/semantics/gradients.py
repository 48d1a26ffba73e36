"""Which expressions hold gradients, and which read, clip or scrub their values.

``held`` gives the names that hold gradients: the parameter they came in by, or ``""`` where they
are gradients for sure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping, Sequence

from precision_lint.semantics.names import dotted

CLIP_NAME = re.compile(
    r"^_?(dispatch_)?(adaptive_)?clip_(grad|all_grad|master_grad)|^_?grad(ient)?s?_clip"
)
EXACT_CLIPS = frozenset({
    "clip_grad_norm_", "clip_grad_value_", "clip_grad_norm", "clip_grad_value",
    "clip_grads_with_norm_", "dispatch_clip_grad", "adaptive_clip_grad",
})  # fmt: skip
"""Functions of libraries that clip and do nothing else."""
SELF_UNSCALING = (
    "accelerator", "fabric", "engine", "strategy", "deepspeed", "plugin", "booster",
)  # fmt: skip
"""Receivers whose clip method takes care of the scaler itself."""
READS_NAME = re.compile(
    r"^_?(check|get|compute|calc\w*|log|monitor|total|global|has|any|detect|validate|verify)\w*"
    r"_?grad(s|ient|ients)?(_|$)(?!clip|fn|scaler|accum|checkpoint|enabled|sync)"
    r"|^_?grad(s|ient|ients)?_(norm|stats|statistics|is_finite|are_finite|has_nan|check|hist)\w*$"
)
EXACT_READS = frozenset({"get_total_norm"})
NOT_READ = re.compile(
    r"zero_grad|no_grad|grad_enabled|requires_grad|enable_grad|clip|^get_global_grad_norm$"
)
"""Among them DeepSpeed's, which has divided the norm by the loss scale."""
INSPECTS = re.compile(
    r"norm|nan|finite|inf(?!o|er)|max|mean|std|hist|stat|check|valid|log|print|plot|monitor|anomal"
)
"""Parts of names of functions that look at the values of what they are given."""

READ_METHODS = frozenset({
    "norm", "isnan", "isinf", "isfinite", "max", "min", "amax", "amin", "mean", "std", "var", "sum",
    "item", "any", "all", "pow", "square", "numpy", "tolist", "median", "histc", "abs", "gt", "lt",
    "quantile", "nonzero", "count_nonzero", "dot", "ge", "le", "aminmax",
})  # fmt: skip
THROUGH = frozenset({
    "detach", "clone", "float", "double", "cpu", "flatten", "view", "reshape", "data", "to",
    "contiguous", "ravel", "coalesce", "_values", "values", "items", "half", "bfloat16", "cuda",
    "squeeze", "unsqueeze", "copy",
})  # fmt: skip
JOINS = frozenset({
    "cat", "concat", "stack", "list", "tuple", "parameters_to_vector", "zip", "enumerate", "filter",
    "reversed", "hstack", "_to_copy", "iter", "sorted", "set", "flatten",
})  # fmt: skip
READ_CALLS = (
    READ_METHODS
    - {"to", "all", "any", "max", "min", "sum"}
    | frozenset({
        "vector_norm", "get_total_norm", "print", "add_histogram", "add_scalar", "histogram",
        "hist", "debug", "info", "warning", "error", "Histogram", "str", "log10", "log", "allclose",
        "_foreach_norm", "write", "max", "min", "sum", "any", "all", "float", "repr",
        "matrix_norm", "linalg_norm", "logsumexp", "equal",
    })
)  # fmt: skip
CLAMPS = frozenset({"clamp", "clamp_", "clip", "clip_", "clamp_max_", "clamp_min_", "clamp_tensor",
                    "_foreach_clamp_max_", "_foreach_clamp_min_"})  # fmt: skip
SCRUBS = frozenset({"nan_to_num", "nan_to_num_"})

RANDOM = frozenset({"randn_like", "rand_like", "randn", "rand", "normal"})

Held = Mapping[str, str]


def unscales(last: str, path: str, handed: Sequence[ast.expr]) -> bool:
    """Whether a clip is a framework's, or one of the project that is handed the framework."""
    if any(word in path for word in SELF_UNSCALING):
        return True
    names = {(dotted(a) or "").lower().rpartition(".")[2] for a in handed}
    return last not in EXACT_CLIPS and not names.isdisjoint(SELF_UNSCALING)


def gradient_of(node: ast.expr, held: Held) -> str | None:
    """Where a gradient comes from that an expression passes on unchanged; None: it is none."""
    while True:
        if isinstance(node, ast.Name):
            return held.get(node.id)
        if isinstance(node, ast.Attribute):
            if node.attr == "grad" and not isinstance(node.ctx, ast.Store):
                return None if dotted(node) == "torch.autograd.grad" else ""
            if node.attr not in THROUGH:
                return held.get(dotted(node) or "")
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr not in THROUGH:
                return None
            node = node.func.value
        elif isinstance(node, (ast.Subscript, ast.Starred, ast.NamedExpr)):
            node = node.value
        else:
            return None


def carries(node: ast.expr, held: Held) -> str | None:
    """Where the gradients of an expression come from: one, a list, or a tensor made of them."""
    found = gradient_of(node, held)
    if found is not None:
        return found
    parts: list[ast.expr] = []
    if isinstance(node, (ast.ListComp, ast.GeneratorExp, ast.SetComp)):
        inner = dict(held)
        within(node.generators, inner)
        return carries(node.elt, inner)
    if isinstance(node, ast.DictComp):
        inner = dict(held)
        within(node.generators, inner)
        return carries(node.value, inner)
    if isinstance(node, (ast.List, ast.Tuple, ast.Set)):
        parts = node.elts
    elif isinstance(node, ast.Dict):
        parts = node.values
    elif isinstance(node, ast.IfExp):
        parts = [node.body, node.orelse]
    elif isinstance(node, ast.Call) and _last(node.func) in JOINS:
        parts = node.args
    return next((c for c in (carries(part, held) for part in parts) if c is not None), None)


def within(generators: list[ast.comprehension], held: dict[str, str]) -> None:
    """Note the names that a comprehension binds to gradients."""
    for generator in generators:
        bind(generator.target, carries(generator.iter, held), held)


def bind(target: ast.expr, origin: str | None, held: dict[str, str]) -> None:
    """Note that a target holds gradients from ``origin``, or (None) no longer does."""
    if isinstance(target, (ast.Tuple, ast.List)):
        for item in target.elts:
            bind(item, origin, held)
        return
    if isinstance(target, ast.Starred):
        target = target.value
    name = dotted(target.value if isinstance(target, ast.Subscript) else target)
    if name is None:
        return
    if origin is not None:
        held[name] = origin
    elif not isinstance(target, ast.Subscript):
        held.pop(name, None)


def read(node: ast.AST, held: Held) -> str | None:
    """Where the gradients come from whose values an operation reads, or to which it adds what has
    no scale; None: it does neither."""
    found = shifted(node, held)
    if found is not None:
        return found
    if isinstance(node, ast.Call):
        last = _last(node.func)
        if isinstance(node.func, ast.Attribute) and last in READ_METHODS:
            found = carries(node.func.value, held)
            if found is not None:
                return found
        given = [*node.args, *(k.value for k in node.keywords)]
        if last in READ_CALLS:
            return next((c for c in (carries(a, held) for a in given) if c is not None), None)
    elif isinstance(node, ast.Compare):
        if not all(isinstance(o, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for o in node.ops):
            for part in (node.left, *node.comparators):
                found = gradient_of(part, held)
                if found is not None:
                    return found
    elif isinstance(node, ast.FormattedValue):
        return gradient_of(node.value, held)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow):
        return gradient_of(node.left, held)
    return None


def shifted(node: ast.AST, held: Held) -> str | None:
    """Where the gradients come from to which something is added that no loss scale multiplies:
    random numbers, or what is made of the parameter itself (weight decay, an L1 term)."""
    match node:
        case ast.Call(func=ast.Attribute(value=whose, attr="add_" | "sub_"), args=[given, *_]):
            pass
        case ast.AugAssign(target=whose, op=ast.Add() | ast.Sub(), value=given):
            pass
        case ast.Assign(
            targets=[ast.Attribute(attr="grad")],
            value=ast.BinOp(left=whose, op=ast.Add() | ast.Sub(), right=given),
        ):
            pass
        case _:
            return None
    stored = isinstance(whose, ast.Attribute) and whose.attr == "grad"
    if not stored and gradient_of(whose, held) is None:
        return None
    owner = ast.unparse(whose).partition(".grad")[0]
    foreign = False
    parts = [given]
    while parts:
        part = parts.pop()
        if isinstance(part, ast.Call) and _last(part.func) in RANDOM:
            foreign = True  # its arguments give a shape
            continue
        if gradient_of(part, held) is not None:  # what is added carries the scale
            return None
        if isinstance(part, (ast.Name, ast.Attribute)):
            foreign |= ast.unparse(part) in (owner, f"{owner}.data")
        parts += [child for child in ast.iter_child_nodes(part) if isinstance(child, ast.expr)]
    return (gradient_of(whose, held) or "") if foreign else None


def _given(node: ast.Call, held: Held) -> str | None:
    if isinstance(node.func, ast.Attribute):
        found = gradient_of(node.func.value, held)
        if found is not None:
            return found
    return next((c for c in (carries(a, held) for a in node.args) if c is not None), None)


def clamped(node: ast.Call, held: Held) -> str | None:
    """Where the gradients come from that a call clips by value."""
    return _given(node, held) if _last(node.func) in CLAMPS else None


def scrubbed(node: ast.Call, held: Held) -> str | None:
    """Where the gradients come from whose infinities a call replaces."""
    last = _last(node.func)
    fills = last in ("masked_fill", "masked_fill_") and bool(node.args) and _finds(node.args[0])
    return _given(node, held) if last in SCRUBS or fills else None


def masks(node: ast.Subscript, held: Held) -> bool:
    """Whether a target is the infinite or undefined items of a gradient: ``g[isnan(g)]``."""
    return gradient_of(node.value, held) == "" and _finds(node.slice)


def cleared(loop: ast.For | ast.AsyncFor) -> tuple[ast.expr, ast.expr] | None:
    """Whose gradients a loop clears, all of them and without doing anything else, and where.

    The module or optimizer whose parameters it runs through, else what it runs through.
    """
    body, source = loop.body, loop.iter
    if len(body) == 1 and isinstance(body[0], ast.For):
        inner = cleared(body[0])
        groups = isinstance(source, ast.Attribute) and source.attr == "param_groups"
        if inner is None or not groups or not isinstance(loop.target, ast.Name):
            return None
        given = inner[0].value if isinstance(inner[0], ast.Subscript) else inner[0]
        assert isinstance(source, ast.Attribute)
        mine = isinstance(given, ast.Name) and given.id == loop.target.id
        return (source.value, inner[1]) if mine else None
    target = loop.target.elts[-1] if isinstance(loop.target, ast.Tuple) else loop.target
    if not isinstance(target, ast.Name):
        return None
    if isinstance(source, ast.Call) and isinstance(source.func, ast.Attribute):
        if source.func.attr not in ("parameters", "named_parameters"):
            return None
        source = source.func.value
    elif not isinstance(source, (ast.Name, ast.Attribute, ast.Subscript)):
        return None
    place = _clears(body, target.id)
    return (source, place) if place is not None else None


def _clears(body: list[ast.stmt], name: str) -> ast.expr | None:
    """Where statements clear one parameter's gradient; None where they do anything else."""
    found: ast.expr | None = None
    for statement in body:
        match statement:
            case ast.If(test=ast.Compare(left=ast.Attribute(attr="grad")), body=then, orelse=[]):
                if len(then) == 1 and isinstance(then[0], ast.Continue):
                    continue
                place = _clears(then, name)
            case ast.Assign(targets=[ast.Attribute(value=ast.Name(id=n), attr="grad") as place]):
                made = statement.value
                empty = isinstance(made, ast.Constant) and made.value is None
                zeros = isinstance(made, ast.Call) and _last(made.func) == "zeros_like"
                if n != name or not (empty or zeros):
                    return None
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=owner, attr=attr)) as place):
                if not ast.unparse(owner).startswith(f"{name}.grad"):
                    return None
                if attr in ("detach_", "requires_grad_"):
                    continue
                if attr != "zero_":
                    return None
            case _:
                return None
        if place is None:
            return None
        found = found or place
    return found


def _finds(node: ast.expr) -> bool:
    """Whether an expression finds what is not finite."""
    calls = (n for n in ast.walk(node) if isinstance(n, ast.Call))
    return any(_last(call.func) in ("isnan", "isinf", "isfinite") for call in calls)


def _last(callee: ast.expr) -> str:
    if isinstance(callee, ast.Attribute):
        return callee.attr
    return callee.id if isinstance(callee, ast.Name) else ""
