"""Edits that repair a broken protocol other than by unscaling first (``semantics.repair``)."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from precision_lint.api import Edit
from precision_lint.semantics import repair
from precision_lint.semantics.bindings import own_nodes
from precision_lint.semantics.names import dotted
from precision_lint.semantics.violations import Violation

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

Edits = tuple[Edit, ...]


class Remedy:
    """The repairs of one violation; None: there is no honest one, or it is in a helper."""

    def __init__(self, violation: Violation, at: Context) -> None:
        self.violation = violation
        self.at = at
        self.scaler = violation.scaler

    @property
    def confirmed(self) -> bool:
        """Whether this file shows that the scaler is made, and made to work."""
        return self.at.module.typestate.active(self.at.function, self.scaler)

    @property
    def steps(self) -> list[ast.Call]:
        """Steps of the scaler in this function."""
        return self.calls("step")

    def calls(self, method: str) -> list[ast.Call]:
        """Calls of a method of the scaler in this function, in source order."""
        found = [
            node
            for node in own_nodes(self.at.function)
            if isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr == method
            and dotted(node.func.value) == self.scaler
        ]
        return sorted(found, key=_place)

    def step_through_scaler(self) -> Edits | None:
        """``scaler.step(optimizer)`` for ``optimizer.step()``, and an update if none follows."""
        node = self.violation.node
        statement = self.at.statement(node)
        if self.violation.helper is not None or statement is None or not _bare(node):
            return None
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        owner = self.at.text(node.func.value)
        edits = self.at.edit.rewrite(statement, {node: f"{self.scaler}.step({owner})"})
        if edits is not None and not self.violation.updates:
            added = self.at.edit.insert_after(statement, f"{self.scaler}.update()")
            edits = None if added is None else (*edits, *added)
        return self._checked(edits)

    def drop(self) -> Edits | None:
        """The statement of the flagged call deleted."""
        node = self.violation.node
        if self.violation.helper is not None or not isinstance(node, ast.Call):
            return None
        return self._checked(repair.remove(node, self.at))

    def scale_loss(self) -> Edits | None:
        """``scaler.scale(loss).backward()`` for ``loss.backward()``."""
        node = self.violation.node
        statement = self.at.statement(node)
        if self.violation.helper is not None or statement is None or not _bare(node):
            return None
        assert isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        loss = node.func.value
        if not self.at.bound_before(self.scaler, node):
            return None
        edits = self.at.edit.rewrite(statement, {loss: f"{self.scaler}.scale(_)"})
        return self._checked(edits)

    def add_update(self) -> Edits | None:
        """An update behind the last step of the block that the flagged step is in; one that stands
        elsewhere is deleted."""
        if self.violation.helper is not None:
            return None
        last = self._last_step(self.violation.node)
        edits = self.at.edit.insert_after(last, f"{self.scaler}.update()") if last else None
        for call in self.calls("update"):
            gone = repair.remove(call, self.at)
            edits = None if edits is None or gone is None else (*edits, *gone)
        return self._checked(edits)

    def move_update(self) -> Edits | None:
        """The flagged update moved behind the last step, or deleted where one follows already."""
        node = self.violation.node
        if self.violation.helper is not None or not isinstance(node, ast.Call):
            return None
        later = self.violation.later
        target = later if isinstance(later, ast.Call) and later in self.steps else None
        target = target or (self.steps[0] if len(self.steps) == 1 else None)
        last = self._last_step(target) if target is not None else None
        gone = repair.remove(node, self.at)
        if last is None or gone is None:
            return None
        block = repair.siblings(last, self.at.parents.get(id(last)))
        behind = block[block.index(last) + 1 :]
        follows = [u for u in self.calls("update") if self.at.statement(u) in behind]
        if follows and follows[0] is not node:
            return self._checked(gone)
        if follows:  # it is where it belongs
            return None
        added = self.at.edit.insert_after(last, f"{self.scaler}.update()")
        return None if added is None else self._checked((*gone, *added))

    def unscale_too(self) -> tuple[Edits, list[ast.Call]] | None:
        """``unscale_`` of the forgotten optimizer in front of the clip, and later ones deleted."""
        violation, node = self.violation, self.violation.node
        statement = self.at.statement(node)
        if violation.helper is not None and violation.helper.name == "":
            return None
        if statement is None or not self.at.bound_before(violation.optimizer, node):
            return None
        edits = self.at.edit.insert_before(
            statement, f"{self.scaler}.unscale_({violation.optimizer})"
        )
        same = [c for c in violation.unscales if _argument(c) == violation.optimizer]
        for call in same:
            gone = repair.remove(call, self.at)
            edits = None if gone is None or edits is None else (*edits, *gone)
        checked = self._checked(edits)
        return None if checked is None else (checked, same)

    def zero_after_step(self) -> Edits | None:
        """``zero_grad`` moved behind the step (and its update) of the same block."""
        node, later = self.violation.node, self.violation.later
        statement = self.at.statement(node)
        step = self.at.statement(later) if later is not None else None
        if self.violation.helper is not None or statement is None or step is None:
            return None
        block = repair.siblings(step, self.at.parents.get(id(step)))
        if not any(s is statement for s in block) or not isinstance(node, ast.Call):
            return None
        last = self._last_step(later) if later is not None else None
        updates = [self.at.statement(u) for u in self.calls("update")]
        behind = [s for s in block if s in updates and last is not None and s.lineno > last.lineno]
        gone = repair.remove(node, self.at)
        after = behind[0] if behind else last
        added = self.at.edit.insert_after(after, self.at.text(node)) if after is not None else None
        return None if gone is None or added is None else self._checked((*gone, *added))

    def _last_step(self, node: ast.expr) -> ast.stmt | None:
        """The last statement with a step of the scaler in the block of one."""
        statement = self.at.statement(node)
        if statement is None:
            return None
        block = repair.siblings(statement, self.at.parents.get(id(statement)))
        steps = [self.at.statement(call) for call in self.steps]
        inside = [s for s in block if any(s is step for step in steps)]
        return inside[-1] if inside else None

    def _checked(self, edits: Edits | None) -> Edits | None:
        if edits is None or not repair.keeps_protocol(edits, self.violation, self.at):
            return None
        return edits


def _bare(node: ast.expr) -> bool:
    """Whether a call is a method of some object, without arguments."""
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and not node.args
        and not node.keywords
    )


def _argument(call: ast.Call) -> str:
    return ast.unparse(call.args[0]) if call.args else ""


def _place(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset
