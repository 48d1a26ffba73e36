"""Names in a function's code: what they are bound to, and which stand for a scaler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable

from precision_lint.semantics.conditions import mentions
from precision_lint.semantics.effects import DRIVING, Effects, flat
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted

OWN_STEP = re.compile(r"(first|second)_step|step_and_\w+|step_with_\w+|_step$")
"""Steps of an optimizer that does more than one thing in them, or takes two for one update."""


def names_scaler(text: str) -> bool:
    """Whether a name is a GradScaler's by its spelling."""
    last = re.split(r"[.\[]", text.lower())
    return any("scaler" in part for part in last[-2:]) and "standard" not in text.lower()


def makes_scaler(node: ast.expr | None) -> bool:
    """Whether an expression makes a GradScaler."""
    return isinstance(node, ast.Call) and (dotted(node.func) or "").endswith("GradScaler")


def is_place(node: ast.expr) -> bool:
    """Whether an expression names an object: a chain of names, attributes and items."""
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        node = node.value
    return isinstance(node, ast.Name)


def exits(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and dotted(node.func) in ("sys.exit", "exit", "os._exit")


def catches(handler: ast.ExceptHandler) -> bool:
    """Whether a handler takes the RuntimeError of a second ``unscale_``."""
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(
        kind is None or dotted(kind) in ("RuntimeError", "Exception", "BaseException")
        for kind in kinds
    )


def catches_all(case: ast.match_case) -> bool:
    pattern = case.pattern
    return isinstance(pattern, ast.MatchAs) and pattern.pattern is None and case.guard is None


def rows(target: ast.expr, iterable: ast.expr) -> list[dict[str, ast.expr]]:
    """What the targets of a loop over a short literal stand for in each iteration."""
    names = target.elts if isinstance(target, ast.Tuple) else [target]
    if not all(isinstance(n, ast.Name) for n in names):
        return []
    items: list[list[ast.expr]] = []
    if isinstance(iterable, (ast.Tuple, ast.List)):
        for item in iterable.elts:
            parts = item.elts if isinstance(item, ast.Tuple) and len(names) > 1 else [item]
            items.append(list(parts))
    elif isinstance(iterable, ast.Call) and dotted(iterable.func) == "zip":
        columns = [a.elts for a in iterable.args if isinstance(a, (ast.Tuple, ast.List))]
        if len(columns) == len(iterable.args):
            items = [list(row) for row in zip(*columns, strict=False)]
    if not 0 < len(items) <= 4 or any(len(row) != len(names) for row in items):
        return []
    if not all(is_place(v) or isinstance(v, ast.Constant) for row in items for v in row):
        return []
    return [
        {n.id: v for n, v in zip(names, row, strict=True) if isinstance(n, ast.Name)}
        for row in items
    ]


def held_by(iterable: ast.expr) -> ast.expr | None:
    """The container whose items a loop takes one after the other."""
    while isinstance(iterable, ast.Call):
        last = (dotted(iterable.func) or "").rpartition(".")[2]
        if last in ("values", "items") and isinstance(iterable.func, ast.Attribute):
            iterable = iterable.func.value
        elif last in ("enumerate", "list", "tuple", "reversed") and len(iterable.args) == 1:
            iterable = iterable.args[0]
        else:
            return None
    return iterable if is_place(iterable) else None


def counter(node: ast.stmt) -> str | None:
    """The name that a loop counts its iterations with."""
    if not isinstance(node, (ast.For, ast.AsyncFor)) or not isinstance(node.iter, ast.Call):
        return None
    target = node.target
    last = (dotted(node.iter.func) or "").rpartition(".")[2]
    if last == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    elif last not in ("range", "trange") or len(node.iter.args) > 2:
        return None
    return target.id if isinstance(target, ast.Name) else None


def targets(node: ast.AST) -> Iterable[ast.expr]:
    """Names and attributes that a loop binds anywhere inside."""
    for part in ast.walk(node):
        if isinstance(part, (ast.Name, ast.Attribute)) and isinstance(part.ctx, ast.Store):
            if dotted(part):
                yield part


def own_nodes(function: Function) -> Iterable[ast.AST]:
    """Nodes of a function's own body, nested functions and classes left out."""
    stack: list[ast.AST] = list(reversed(function.node.body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def stored(function: Function) -> set[str]:
    return {
        node.id
        for node in own_nodes(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }


def aliases(function: Function) -> dict[str, str]:
    """Locals that are bound once, to an attribute of ``self`` or the scaler of another object."""
    if isinstance(function.node, ast.Module):
        return {}
    bound: dict[str, list[ast.expr | None]] = {p.arg: [None] for p in function.parameters()}
    for node in own_nodes(function):
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
            if isinstance(target, ast.Name):
                bound.setdefault(target.id, []).append(value)
                continue
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                if len(target.elts) == len(value.elts):
                    for item, part in zip(target.elts, value.elts, strict=True):
                        if isinstance(item, ast.Name):
                            bound.setdefault(item.id, []).append(part)
                    continue
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, []).append(None)
    found = {}
    for name, values in bound.items():
        # a plain assignment was seen twice: with its value, and as a name that is stored
        known = [v for v in values if v is not None]
        if len(known) == 1 and len(values) == 2 and isinstance(known[0], ast.Attribute):
            path = dotted(known[0])
            if path is not None and (path.startswith("self.") or "scaler" in path):
                found[name] = path
    return found


MULTIPLIES = frozenset({"mul_", "div_", "mul", "div", "_foreach_mul_", "_foreach_div_"})


def divisors(function: Function) -> set[int]:
    """Calls of ``get_scale`` whose result goes into arithmetic, by their own name or another's."""
    names: set[str] = set()
    direct: set[int] = set()
    calls: list[tuple[str, ast.Call]] = []
    for node in own_nodes(function):
        if isinstance(node, (ast.BinOp, ast.AugAssign)):
            sides = [node.left, node.right] if isinstance(node, ast.BinOp) else [node.value]
            for part in (n for side in sides for n in ast.walk(side)):
                names |= (
                    {dotted(part) or ""} if isinstance(part, (ast.Name, ast.Attribute)) else set()
                )
                direct |= {id(part)} if isinstance(part, ast.Call) else set()
        elif isinstance(node, ast.Call):
            last = (dotted(node.func) or "").rpartition(".")[2]
            given = [*node.args, *(keyword.value for keyword in node.keywords)]
            if last in MULTIPLIES or "clip" in last:  # a helper that is told the scale uses it
                for part in (n for a in given for n in ast.walk(a)):
                    names |= {part.id} if isinstance(part, ast.Name) else set()
                    direct |= {id(part)} if isinstance(part, ast.Call) else set()
        elif isinstance(node, ast.Assign):
            for part in ast.walk(node.value):
                if isinstance(part, ast.Call):
                    calls += [(dotted(t) or "", part) for t in node.targets]
    return direct | {id(call) for name, call in calls if name in names}


SCALES = re.compile(r"scal|accelerator|fabric|engine|deepspeed|booster|amp\b", re.IGNORECASE)
"""Texts that may stand for a scaled loss, or for a framework that scales it."""


def tainted(function: Function) -> frozenset[str]:
    """Names that may hold a scaled loss."""
    sources: list[tuple[str, ast.expr]] = []
    for node in function.nodes:
        if isinstance(node, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and node.value is not None:
            places = node.targets if isinstance(node, ast.Assign) else [node.target]
            sources += [(dotted(n) or "", node.value) for p in places for n in targets(p)]
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            sources += [(dotted(n) or "", node.iter) for n in targets(node.target)]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            sources += [(dotted(n) or "", node.context_expr) for n in targets(node.optional_vars)]
    found: set[str] = set()
    texts = [(name, ast.unparse(value)) for name, value in sources]
    while True:
        more = {
            name for name, text in texts
            if SCALES.search(text) or any(mentions(text, other) for other in found)
        } - found  # fmt: skip
        if not more:
            return frozenset(found)
        found |= more


def plainness(call: ast.Call, owner: ast.expr, function: Function) -> str:
    """How sure it is that a loss whose ``backward`` runs was not scaled."""
    text = ast.unparse(owner)
    given = call.args and owner not in call.args  # a framework's loss
    if given or SCALES.search(text) or any(mentions(text, n) for n in tainted(function)):
        return ""
    path = dotted(owner)
    if path is None:
        return "plain"
    head = path.partition(".")[0]
    if head in stored(function):
        return "plain"
    return "given" if head in {p.arg for p in function.parameters()} else ""


STEPS = re.compile(
    r"backward|optimizer_?step|step_?optimizer|optimi[sz]e|apply_grad", re.IGNORECASE
)
STEPS_ITSELF = re.compile(r"(^|_)(step|update)(_|$)|train")
"""Names of functions nobody has seen that may run a backward, a step or an update."""


def may_step(name: str, own: bool) -> bool:
    """Whether a function nobody has seen may run a backward, step or update; ``own``: it is the
    caller's, or a plain function."""
    return bool(STEPS.search(name) or (own and STEPS_ITSELF.search(name)))


def drives(effects: Effects) -> bool:
    """Whether a method of a wrapper runs a scaler that it holds."""
    return any(s.kind in DRIVING and names_scaler(s.names[0]) for s in flat(effects.steps))
