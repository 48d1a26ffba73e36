"""Models that are cast to float16 and trained with a GradScaler."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Edit
from precision_lint.semantics import repair
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.ownership import makes_optimizer, owners

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.scalers import Scaler

BACK = re.compile(
    r"\.data\s*=\s*\w+(\.data)?\.(float\(|to\(torch\.float)|cast_training_params|master_param"
)
"""Parameters that are cast back to float32 one by one, or have float32 copies."""


KEEPING = frozenset({
    "DataParallel", "DistributedDataParallel", "DDP", "compile", "cuda", "to", "train", "eval",
    "convert_sync_batchnorm", "requires_grad_", "script",
})  # fmt: skip


@dataclass(frozen=True, eq=False)
class HalfCast:
    """A cast to float16 of a model that an optimizer trains.

    node: the cast; name: the optimizer's; optimizer: where it is made; step: where the scaler uses
    it; handed: only that both are handed to one function is known.
    """

    node: ast.Call
    function: Function
    name: str
    optimizer: ast.expr
    step: ast.Call | None
    handed: bool
    confidence: Confidence

    @classmethod
    def trained(cls, scaler: Scaler, at: Context) -> Iterator[HalfCast]:
        """Casts of models whose optimizer a scaler unscales or steps."""
        if BACK.search(at.source.text):
            return
        used = _used(scaler, at)
        for function in scaler.scope:
            casts = dict(_casts(function, at))
            if not casts:
                continue
            made = _made(scaler.scope, at)
            for name, roots in owners(function, at.module.typestate).items():
                if name not in used or name not in made:
                    continue
                step, handed, place = used[name]
                for root in sorted(roots):
                    cast = next((c for m, c in casts.items() if _part(root, m)), None)
                    if cast is None or (place is function and step.lineno < cast.lineno):
                        continue
                    around = list(_around(cast, function))
                    if any(isinstance(a, ast.If) and _leaves(a) for a in around):
                        continue
                    home = set(_around(scaler.call, function))  # one condition for both
                    inner = any(isinstance(a, (ast.If, ast.IfExp)) for a in around if a not in home)
                    handed = handed or any(isinstance(a, ast.If) for a in around)
                    sure = Confidence.POSSIBLE if inner else Confidence.CERTAIN
                    yield cls(
                        cast, function, name, made[name], None if handed else step, handed, sure
                    )
                    break

    def removed(self, at: Context) -> tuple[Edit, ...] | None:
        """Edits that leave out the cast."""
        statement, node = at.statement(self.node), self.node
        assert isinstance(node.func, ast.Attribute)
        if statement is None or (
            node.func.attr != "half" and len(node.args) + len(node.keywords) > 1
        ):
            return None
        if isinstance(statement, ast.Expr) and statement.value is node:
            return repair.remove(node, at)
        return at.edit.rewrite(statement, {node: at.text(node.func.value)})


def _casts(function: Function, at: Context) -> Iterator[tuple[str, ast.Call]]:
    """Modules that a function casts to float16 and leaves so, by source text."""
    found: dict[str, ast.Call] = {}
    for node in function.nodes:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target = dotted(node.targets[0])
            cast = _in_chain(node.value, at)
            if target is not None and cast is not None:
                found[target] = cast
            elif target in found and not _keeps(node.value):
                del found[target]  # adapters, say, which are float32
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            call = node.value
            owner = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
            if owner is None:
                continue
            if _is_half(call, at):
                found[owner] = call
            elif call.func.attr in ("float", "bfloat16", "double"):  # type: ignore[attr-defined]
                found = {m: c for m, c in found.items() if not _part(m, owner)}
    yield from found.items()


def _leaves(branch: ast.If) -> bool:
    """Whether a branch ends the function: what follows does not see what it did."""
    ends = [block[-1] for block in (branch.body, branch.orelse) if block]
    return any(isinstance(end, (ast.Return, ast.Raise)) for end in ends)


def _keeps(node: ast.expr) -> bool:
    """Whether a call wraps or moves a model and leaves its parameters what they are."""
    last = (dotted(node.func) or "").rpartition(".")[2] if isinstance(node, ast.Call) else ""
    return last in KEEPING


def _in_chain(node: ast.expr, at: Context) -> ast.Call | None:
    """The last cast in ``Net().cuda().half()``, if it is to float16."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if _is_half(node, at):
            return node
        if node.func.attr in ("float", "bfloat16", "double"):
            return None
        node = node.func.value
    return None


def _is_half(call: ast.Call, at: Context) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return False
    given = [*call.args, *(k.value for k in call.keywords)]
    if call.func.attr == "half":
        return not given
    names = {at.qualify(value) for value in given}
    return call.func.attr == "to" and bool(names & {"torch.float16", "torch.half"})


def _used(scaler: Scaler, at: Context) -> dict[str, tuple[ast.Call, bool, Function]]:
    """Optimizers that the scaler unscales or steps, or is handed to a function together with."""
    found: dict[str, tuple[ast.Call, bool, Function]] = {}
    for method in ("step", "unscale_"):
        for call, function in scaler.calls(method):
            if call.args:
                found[ast.unparse(call.args[0])] = (call, False, function)
    for function in scaler.scope:
        for node in function.nodes:
            if isinstance(node, ast.Call):
                texts = [ast.unparse(a) for a in (*node.args, *(k.value for k in node.keywords))]
                if scaler.text in texts:
                    for text in texts:
                        found.setdefault(text, (node, True, function))
    return found


def _made(scope: tuple[Function, ...], at: Context) -> dict[str, ast.expr]:
    """Where optimizers are made."""
    found: dict[str, ast.expr] = {}
    for function in scope:
        for node in function.nodes:
            if isinstance(node, ast.Assign) and makes_optimizer(node.value):
                for target in node.targets:
                    found.setdefault(dotted(target) or "", node.value)
    return found


def _around(node: ast.AST, function: Function) -> Iterator[ast.AST]:
    parent = function.parents.get(id(node))
    while parent is not None:
        yield parent
        parent = function.parents.get(id(parent))


def _part(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(f"{outer}.")
