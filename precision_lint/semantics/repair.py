"""Where ``scaler.unscale_(optimizer)`` has to go, and which later one it replaces."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_lint.api import Edit
from precision_lint.semantics.index import build
from precision_lint.semantics.names import dotted
from precision_lint.slices import BLOCKS

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.violations import Violation

Edits = tuple[Edit, ...]
BINDING = (ast.stmt, ast.comprehension, ast.NamedExpr)
"""What binds a name, or holds what does."""


def unscale_first(violation: Violation, at: Context) -> tuple[Edits, tuple[ast.stmt, ...]] | None:
    """Edits that unscale before a read, and the later ``unscale_`` statements that they remove.

    The call goes in front of the read, inside the branch that steps; where only the scaled
    ``backward`` is in a branch of its own (``if use_amp:``), it goes behind that.  None: steps
    happen less often than reads (gradient accumulation), or in another function.
    """
    if not violation.steps:
        return None
    step = violation.steps[0]
    optimizers = list(dict.fromkeys(ast.unparse(s.args[0]) for s in violation.steps if s.args))
    if not optimizers:
        return None
    if not all(_same_there(s.args[0], violation.node, at) for s in violation.steps if s.args):
        return None
    lines = [f"{violation.scaler}.unscale_({optimizer})" for optimizer in optimizers]
    step_path, read_path = _path(step, at), _path(violation.node, at)
    common = _common(step_path, read_path)
    if common is None:
        return None
    block, step_at, read_at = common
    anchor = block[read_at]
    guard = _guard(block[step_at], step, at)
    edits: Edits | None
    if guard is None:  # the step is straight below: it runs whenever the read does
        edits = at.edit.insert_before(anchor, *lines)
    else:
        backward = violation.backward
        place = _within(block, backward, at) if backward is not None else None
        inner = at.statement(backward) if backward is not None else None
        if inner is not None and place is not None and place is not inner:
            if isinstance(place, ast.If) and inner in place.body and not _counts(guard.test):
                edits = at.edit.insert_after(inner, *lines)
            else:
                return None
        elif backward is not None and place is None and not _counts(guard.test):
            edits = at.edit.insert_before(
                anchor,
                f"if {ast.unparse(guard.test)}:",
                *(f"{at.edit.unit}{line}" for line in lines),
            )
        else:
            return None
    if edits is None:
        return None
    removed: list[ast.stmt] = []
    for call in violation.unscales:
        if call.args and ast.unparse(call.args[0]) in optimizers:
            statement = _removable(call, at)
            gone = remove(call, at)
            if gone is None or statement is None:
                return None
            edits += gone
            removed.append(statement)
    return (edits, tuple(removed)) if keeps_protocol(edits, violation, at) else None


def _same_there(optimizer: ast.expr, place: ast.AST, at: Context) -> bool:
    """Whether an optimizer's name stands for the same object in front of the read at ``place``.

    It does for arguments and attributes, for what is assigned before in a block around the place,
    and for the target of a loop around it.
    """
    name = dotted(optimizer)
    if name is None:
        return False  # a call may give another object the next time
    head = name.partition(".")[0]
    around = [place, *at.ancestors(place)]
    row = getattr(place, "lineno", 0)
    for use in at.uses(head):
        if isinstance(use.ctx, ast.Load):
            continue
        binding = next((n for n in at.ancestors(use) if isinstance(n, BINDING)), None)
        if isinstance(binding, (ast.For, ast.AsyncFor)) and binding in around:
            continue
        if not isinstance(binding, (ast.Assign, ast.AnnAssign)) or use.lineno >= row:
            return False
        if at.parents.get(id(binding)) not in around and not isinstance(
            at.function.node, ast.Module
        ):
            return False
    return True


def remove(call: ast.Call, at: Context) -> Edits | None:
    """Edits that delete the statement a call stands in."""
    statement = _removable(call, at)
    if statement is None:
        return None
    return at.edit.remove(statement, siblings(statement, at.parents.get(id(statement))))


def _removable(call: ast.Call, at: Context) -> ast.stmt | None:
    """The statement a call stands in, or the ``if`` around it that guards nothing else."""
    statement = at.statement(call)
    if not isinstance(statement, ast.Expr) or statement.value is not call:
        return None
    parent = at.parents.get(id(statement))
    if isinstance(parent, ast.If) and parent.body == [statement] and not parent.orelse:
        lines = at.source.text[at.edit.offset(parent) : at.edit.end(parent)]
        if "#" not in lines and not at.source.text.startswith("elif", at.edit.offset(parent)):
            return parent
    return statement


def move_into_step_branch(violation: Violation, at: Context) -> Edits | None:
    """Edits that move an ``unscale_`` of every micro-step to the top of the branch that steps."""
    call = violation.node
    if not isinstance(call, ast.Call) or not violation.steps:
        return None
    step_path, call_path = _path(violation.steps[0], at), _path(call, at)
    common = _common(step_path, call_path)
    if common is None:
        return None
    block, step_at, call_at = common
    lines = [ast.unparse(call)]
    holder = block[call_at]
    if isinstance(holder, ast.If) and at.statement(call) in holder.body:
        lines = [f"if {ast.unparse(holder.test)}:", f"{at.edit.unit}{lines[0]}"]
    elif holder is not at.statement(call):
        return None
    between = block[call_at + 1 : step_at]
    leaving = [s for s in between if isinstance(s, ast.If) and _leaves(s) and _counts(s.test)]
    gone = remove(call, at)
    branch = block[step_at]
    added: Edits | None = ()
    if any(u is not call for u in violation.unscales):
        pass  # the branch unscales already
    elif leaving:
        added = at.edit.insert_after(leaving[-1], *lines)
    elif isinstance(branch, ast.If):
        added = at.edit.insert_before(branch.body[0], *lines)
    else:
        return None
    if gone is None or added is None:
        return None
    edits = (*gone, *added)
    return edits if keeps_protocol(edits, violation, at) else None


def _leaves(statement: ast.If) -> bool:
    """Whether a branch ends its iteration or its function."""
    return isinstance(statement.body[-1], (ast.Continue, ast.Return)) and not statement.orelse


def keeps_protocol(edits: Edits, violation: Violation, at: Context) -> bool:
    """Whether the edited function breaks the protocol at fewer places than before."""
    text = at.source.text
    for edit in sorted(set(edits), reverse=True):
        text = text[: edit.start] + edit.text + text[edit.end :]
    try:
        tree = ast.parse(text)
    except SyntaxError:
        return False
    index = build(tree, (ast.With, ast.AsyncWith))
    module = type(at.module)(index, at.module.path, at.module.program)
    name, scaler = at.function.qualname, violation.scaler
    before = at.module.protocol(at.function, scaler)
    same = [f for f in [index.top, *index.functions] if f.qualname == name]
    position = [f for f in [at.module.index.top, *at.module.index.functions] if f.qualname == name]
    place = next(i for i, f in enumerate(position) if f is at.function)
    after = module.protocol(same[place], scaler)
    was = [v.kind for v in before if not v.sometimes_unscaled]
    now = [v.kind for v in after if not v.sometimes_unscaled]
    return len(now) < len(was) and set(now) <= set(was)


Path = list[tuple[list[ast.stmt], int]]


def _path(node: ast.AST, at: Context) -> Path:
    """Blocks around a node, outermost first, with the index of the statement that holds it."""
    path: Path = []
    inner = at.statement(node)
    for parent in at.ancestors(inner) if inner is not None else ():
        if not hasattr(parent, "body"):
            continue
        for name in BLOCKS:
            block = getattr(parent, name, None)
            if isinstance(block, list) and any(item is inner for item in block):
                path.append((block, next(i for i, s in enumerate(block) if s is inner)))
        if isinstance(parent, (ast.stmt, ast.ExceptHandler)):
            inner = parent  # type: ignore[assignment]
    return path[::-1]


def _common(a: Path, b: Path) -> tuple[list[ast.stmt], int, int] | None:
    """The innermost block that two paths share."""
    shared = None
    for (block, i), (other, j) in zip(a, b, strict=False):
        if block is not other:
            break
        shared = (block, i, j)
    return shared


def _guard(statement: ast.stmt, step: ast.Call, at: Context) -> ast.If | None:
    """The first ``if`` between a statement of a block and the step inside of it."""
    if at.statement(step) is statement:
        return None
    for node in [*reversed(list(at.ancestors(step)))]:
        if isinstance(node, ast.If) and node.lineno >= statement.lineno:
            return node
    return None


def _within(block: list[ast.stmt], node: ast.AST, at: Context) -> ast.stmt | None:
    """The statement of a block that holds a node."""
    around = {id(n) for n in at.ancestors(node)} | {id(at.statement(node))}
    return next((s for s in block if id(s) in around), None)


def _counts(test: ast.expr) -> bool:
    """Whether a condition counts iterations, as gradient accumulation does."""
    return any(
        (isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mod))
        or (
            isinstance(n, ast.Compare)
            and any(isinstance(o, (ast.Gt, ast.GtE, ast.Eq)) for o in n.ops)
        )
        or ("step" in (dotted(n) or "").lower() and isinstance(n, (ast.Name, ast.Attribute)))
        or ("sync" in (dotted(n) or "").lower() and isinstance(n, (ast.Name, ast.Attribute)))
        for n in ast.walk(test)
        if isinstance(n, ast.expr)
    )


def siblings(node: ast.stmt, parent: ast.AST | None) -> list[ast.stmt]:
    for name in BLOCKS:
        block = getattr(parent, name, None)
        if isinstance(block, list) and any(item is node for item in block):
            return block
    return [node]
