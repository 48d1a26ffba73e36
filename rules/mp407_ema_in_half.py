from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Evidence,
    Finding,
    Fix,
    Halved,
    Rule,
    Severity,
    calls,
    operators,
)

KEPT = re.compile(
    r"(?<![a-z])(ema\w*|\w*average\w*|avg|shadow\w*|target\w*|teacher\w*|slow\w*|cent(er|re)s?|"
    r"proto\w*|running\w*|kept|swa|key\w*|mean|memory|bank|moving\w*)(?![a-z])"
)
"""Names of what keeps an average."""
SLOWEST = {"float16": 0.99, "bfloat16": 0.9}
"""From which decay on updates get lost."""


@dataclass(frozen=True, eq=False)
class _Average:
    """``kept = decay * kept + (1 - decay) * new``, however it is spelt."""

    node: ast.expr | ast.stmt
    kept: ast.expr
    new: ast.expr
    decay: ast.expr | None
    lerp: bool = False


class EmaInHalf(Rule):
    """Exponential moving average that is kept in half precision, where it stops moving.

    ## What it flags
    `kept.mul_(decay).add_(new, alpha=1 - decay)`, `kept.copy_(decay * kept + (1 - decay) * new)`,
    `kept.lerp_(new, 1 - decay)` and `kept = m * kept + (1 - m) * new` where what is kept is half: a
    tensor that is cast to it, or the parameters of a module that is a copy of one that the file
    makes half; also in the branch of a condition that has found what is kept to be half.

    It stays silent on a copy in float32 (`copy.deepcopy(model).float()`), on models that are only
    run under autocast, whose weights are float32, and on fast averages (decay below 0.9, or 0.99
    where only float16 is in question). In a project with half models elsewhere it is possible.

    ## Why it breaks
    A step of the average is `(1 - decay) * (new - kept)`; below half a unit of the last place it is
    rounded away. From 0 towards a weight of 1, 5,000 steps with a decay of 0.9999 end at 0.25 in
    float16 and at 0.031 in bfloat16 (float32: 0.39, and it goes on); with 0.999 at 0.73 and 0.50.
    From 1 to 1.1 nothing moves at all. As a half number 0.9999 itself is 1.0.

    ## Example
    ```python
    model = Net().to(torch.bfloat16)
    ema = copy.deepcopy(model)
    for batch in loader:
        train_step(model, batch)
        for kept, new in zip(ema.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(new.data, alpha=0.001)
    ```
    Use instead:
    ```python
    model = Net().to(torch.bfloat16)
    ema = copy.deepcopy(model).float()
    for batch in loader:
        train_step(model, batch)
        for kept, new in zip(ema.parameters(), model.parameters()):
            kept.data.mul_(0.999).add_(new.data, alpha=0.001)
    ```

    ## Fix safety
    Safe where the dtype of the model is a parameter: `.float()` on a copy of a float32 model does
    nothing. It is only shown where the code names a half dtype, so that there is no float32 run,
    and there is none for tensors that the code casts itself, and for buffers. The copy takes twice
    the memory; cast it where it is evaluated.

    ## How to silence
    `# precision-lint: ignore[MP407] reason` or `# noqa: MP407` on the line.

    ## Sources
    IEEE 754 binary16; PyTorch, `torch.optim.swa_utils.AveragedModel`.
    """

    code = "MP407"
    name = "ema-in-half"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls("Tensor.lerp_", "Tensor.add_", "Tensor.copy_") | operators(
        ast.Assign, ast.AugAssign, pattern=r"\b1(?:\.0*)?[ \t]*-[ \t]*[\w.]+"
    )

    def check(self, node: ast.Call | ast.stmt, at: Context) -> Iterator[Finding]:
        average = _average(node, at)
        if average is None or _is_optimizer(at) or Care.in_test(at):
            return
        judged = _judge(average, at)
        if judged is None:
            return
        dtype, confidence, evidence, cast, copy = judged
        decay = at.value(average.decay).const if average.decay is not None else None
        if isinstance(decay, float) and 0.0 < decay < SLOWEST[dtype]:
            return
        fix = _in_float32(average, copy, cast, at) if copy is not None else None
        kept = " ".join(at.text(average.kept).split())[:40]
        stuck = "0.25" if dtype == "float16" else "0.031"
        yield at.finding(
            average.node,
            f"moving average {kept} in {dtype} stops moving: with a decay of 0.9999 at {stuck} of "
            "the way",
            confidence,
            evidence=evidence,
            fix=fix,
        )


def _in_float32(
    average: _Average, copy: ast.Call, cast: ast.Call | None, at: Context
) -> Fix | None:
    """The copy that is averaged in float32."""
    home = next((f for f in at.module.index.functions if copy in f.nodes), at.module.index.top)
    statement = at.inside(home).statement(copy)
    edits = at.edit.append(statement, {copy: ".float()"}) if statement is not None else None
    if edits is None:
        return None
    if average.lerp:
        here = at.statement(average.node)
        text = at.text(average.kept)
        more = at.edit.append(here, {average.new: f".to({text}.dtype)"}) if here else None
        if more is None:
            return None
        edits = (*edits, *more)
    title = "keep the average in float32"
    given = [*cast.args, *(k.value for k in cast.keywords)] if cast is not None else []
    if any(isinstance(g, ast.Name) for g in given):
        return Fix(title, Applicability.SAFE, edits)
    reason = "the code makes the model half in every run, whose average becomes another one"
    return Fix(title, Applicability.DISPLAY, edits, reason)


def _judge(
    average: _Average, at: Context
) -> tuple[str, Confidence, list[Evidence], ast.Call | None, ast.Call | None] | None:
    """Dtype of what is kept, how sure, why, the cast of the model, and the copy of it."""
    value = at.value(average.kept)
    half = at.half(value, at.region(average.kept))
    if value.dtype in ("float16", "bfloat16") and half is not None:
        return half.dtype, half.confidence, list(half.evidence), None, None
    if value.dtype in ("float32", "float64"):
        return None
    if isinstance(average.node, ast.Assign) and at.value(average.new).dtype == "float32":
        return None  # and so is the sum, which takes its place
    root = _root(average.kept, at)
    if root is not None and _in_full(root, at):
        return None
    if root is not None:
        found = _halved(root, at)
        if found is not None:
            cast, copy = found
            dtype = _dtype(cast, at)
            notes = [at.note(cast, f"the model is made {dtype} here")]
            if copy is not None:
                notes.append(at.note(copy, "and copied"))
            return dtype, Confidence.LIKELY, notes, cast, copy
    named = KEPT.search(at.text(average.kept).lower()) or (root and KEPT.search(root.lower()))
    if at.half_models is None or half is None or not named:
        return None
    if root is None and "buffer" not in value.tags:
        return None
    return half.dtype, Confidence.POSSIBLE, [at.half_models], None, None


def _in_full(root: str, at: Context) -> bool:
    """Whether what a module was bound to is cast to float32."""
    sources = list(at.function.assigned.get(root, []))
    if root.startswith("self.") and at.function.cls is not None:
        stored = at.module.stores(at.function.cls).get(root[5:])
        sources += [stored[0]] if stored is not None else []
    return any(re.search(r"\.float\(\)|float32", ast.unparse(source)) for source in sources)


def _dtype(cast: ast.Call, at: Context) -> str:
    """The dtype of a cast, float16 where only its default is in sight."""
    home = next((f for f in at.module.index.functions if cast in f.nodes), at.function)
    given = [*cast.args, *(k.value for k in cast.keywords)]
    named = [d for g in given if (d := Halved.dtype(g, at.inside(home))) is not None]
    name = cast.func.attr if isinstance(cast.func, ast.Attribute) else ""
    return "bfloat16" if "bfloat16" in (*named, name) else "float16"


def _halved(root: str, at: Context) -> tuple[ast.Call, ast.Call | None] | None:
    """Where a module is made half, and the copy of it that ``root`` names."""
    own = Halved.names(at.function, at)
    if root in own:
        return own[root], None
    copies = Halved.copied(at.function, at)
    if root in copies and copies[root][1] in own:
        return own[copies[root][1]], copies[root][0]
    cls = at.function.cls
    init = cls.methods.get("__init__") if cls is not None else None
    if cls is None or init is None or not root.startswith("self."):
        return None
    inside = Halved.names(init, at)
    if root in inside:
        return inside[root], None
    copies = Halved.copied(init, at)
    if root not in copies:
        return None
    copy, source = copies[root]
    places = [p.arg for p in init.parameters()][1:]
    for call, caller in at.module.index.calls.get(cls.name, []):
        given = dict(zip(places, call.args, strict=False)) | {k.arg: k.value for k in call.keywords}
        passed = given.get(source)
        made = Halved.names(caller, at)
        if passed is not None and at.text(passed) in made:
            return made[at.text(passed)], copy
    return None


def _root(kept: ast.expr, at: Context) -> str | None:
    """The module whose parameters a loop goes over: ``ema`` in ``zip(ema.parameters(), ...)``."""
    node = kept
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    for loop in at.ancestors(kept):
        if not isinstance(loop, ast.For):
            continue
        targets = loop.target.elts if isinstance(loop.target, ast.Tuple) else [loop.target]
        names = [[p.id for p in ast.walk(t) if isinstance(p, ast.Name)] for t in targets]
        sources = loop.iter.args if isinstance(loop.iter, ast.Call) and loop.iter.args else []
        for group, source in zip(names, sources, strict=False):
            if node.id in group:
                return _owner(source, at)
        if any(node.id in group for group in names):
            return _owner(loop.iter, at)
    return None


def _owner(source: ast.expr, at: Context) -> str | None:
    """``x`` in ``x.parameters()`` or ``x.state_dict().values()``."""
    node = source
    while isinstance(node, (ast.Call, ast.Attribute)):
        if isinstance(node, ast.Call):
            node = node.func
        elif node.attr in ("parameters", "named_parameters", "buffers", "state_dict", "values",
                           "items"):  # fmt: skip
            node = node.value
        else:
            break
    return (
        at.text(node)
        if node is not source and isinstance(node, (ast.Name, ast.Attribute))
        else None
    )


def _is_optimizer(at: Context) -> bool:
    cls = at.function.cls
    return cls is not None and any("Optim" in base for base in cls.bases)


def _average(node: ast.Call | ast.stmt, at: Context) -> _Average | None:
    if isinstance(node, ast.AugAssign):
        return _in_two_steps(node, at)
    if isinstance(node, ast.Assign):
        target = node.targets[0]
        if len(node.targets) != 1 or not isinstance(
            target, (ast.Name, ast.Attribute, ast.Subscript)
        ):
            return None
        return _weighted(node, target, node.value, at)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or not node.args:
        return None
    owner, name = node.func.value, node.func.attr
    if name == "copy_":
        return _weighted(node, owner, node.args[0], at)
    if name == "lerp_":
        weight = node.args[1] if len(node.args) > 1 else _keyword(node, "weight")
        if weight is None:
            return None
        share = at.value(weight).const
        if isinstance(share, float) and share > 1 - SLOWEST["bfloat16"]:
            return None
        return _Average(node, owner, node.args[0], _complement(weight), True)
    inner = owner
    if not isinstance(inner, ast.Call) or not isinstance(inner.func, ast.Attribute):
        return None
    if inner.func.attr != "mul_" or not inner.args:
        return None
    new = node.args[0]
    alpha = _keyword(node, "alpha")
    factor = alpha if alpha is not None else _other_factor(new, inner.args[0])
    if factor is None or not _complements(inner.args[0], factor, at):
        return None
    return _Average(node, inner.func.value, new, inner.args[0])


def _weighted(
    node: ast.Call | ast.stmt, target: ast.expr, value: ast.expr, at: Context
) -> _Average | None:
    """``decay * kept + (1 - decay) * new``, in a branch of a conditional expression too"""
    if isinstance(value, ast.IfExp):
        return _weighted(node, target, value.body, at) or _weighted(node, target, value.orelse, at)
    if not isinstance(value, ast.BinOp) or not isinstance(value.op, ast.Add):
        return None
    sides = (value.left, value.right)
    if not all(isinstance(s, ast.BinOp) and isinstance(s.op, ast.Mult) for s in sides):
        return None
    texts = {ast.unparse(target).removesuffix(".data"), *_elements(target, at)}
    for mine, other in (sides, sides[::-1]):
        assert isinstance(mine, ast.BinOp)
        assert isinstance(other, ast.BinOp)
        for kept, decay in ((mine.left, mine.right), (mine.right, mine.left)):
            if ast.unparse(kept).removesuffix(".data").removesuffix(".detach()") not in texts:
                continue
            for new, rest in ((other.left, other.right), (other.right, other.left)):
                if _complements(decay, rest, at):
                    return _Average(node, kept, new, decay)
    return None


def _elements(target: ast.expr, at: Context) -> Iterator[str]:
    """What a loop calls the element that is replaced: ``for i, kept in enumerate(averages)``."""
    if not isinstance(target, ast.Subscript) or not isinstance(target.slice, ast.Name):
        return
    listed = f"enumerate({ast.unparse(target.value)}"
    for loop in at.ancestors(target):
        if isinstance(loop, ast.For) and listed in ast.unparse(loop.iter):
            pairs = [p for p in ast.walk(loop.target) if isinstance(p, ast.Tuple)]
            for pair in pairs:
                match pair.elts:
                    case [ast.Name(id=place), ast.Name(id=name)] if place == target.slice.id:
                        yield name


def _in_two_steps(node: ast.AugAssign, at: Context) -> _Average | None:
    """``kept *= decay`` and then ``kept += (1 - decay) * new``"""
    if not isinstance(node.op, ast.Add) or not isinstance(node.value, ast.BinOp):
        return None
    parent = at.parents.get(id(node))
    for body in (getattr(parent, "body", []), getattr(parent, "orelse", [])):
        if node not in body or body.index(node) == 0:
            continue
        before = body[body.index(node) - 1]
        if not isinstance(before, ast.AugAssign) or not isinstance(before.op, ast.Mult):
            return None
        if ast.unparse(before.target) != ast.unparse(node.target):
            return None
        if _other_factor(node.value, before.value) is None:
            return None
        return _Average(node, node.target, node.value, before.value)
    return None


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((k.value for k in call.keywords if k.arg == name), None)


def _complement(weight: ast.expr) -> ast.expr | None:
    """``decay`` of ``1 - decay``"""
    if isinstance(weight, ast.BinOp) and isinstance(weight.op, ast.Sub):
        if isinstance(weight.left, ast.Constant) and weight.left.value in (1, 1.0):
            return weight.right
    return None


def _complements(decay: ast.expr, factor: ast.expr, at: Context) -> bool:
    """Whether two factors add up to 1."""
    for a, b in ((decay, factor), (factor, decay)):
        rest = _complement(b)
        if rest is not None and ast.unparse(rest) == ast.unparse(a):
            return True
    first, second = at.value(decay).const, at.value(factor).const
    both = isinstance(first, float) and isinstance(second, float)
    return both and abs(first + second - 1.0) < 1e-9


def _other_factor(product: ast.expr, decay: ast.expr) -> ast.expr | None:
    """The factor ``1 - decay`` of a product."""
    if not isinstance(product, ast.BinOp) or not isinstance(product.op, ast.Mult):
        return None
    for side in (product.left, product.right):
        rest = _complement(side)
        if rest is not None and ast.unparse(rest) == ast.unparse(decay):
            return side
    return None
