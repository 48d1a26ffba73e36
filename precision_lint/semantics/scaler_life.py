"""How long a GradScaler lives: what makes it anew, and what leaves its state behind."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Evidence
from precision_lint.semantics.care import Care
from precision_lint.semantics.index import Function, Index
from precision_lint.semantics.names import dotted
from precision_lint.semantics.ownership import makes_optimizer

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.scalers import Scaler

Loop = ast.For | ast.AsyncFor | ast.While
ROUND = re.compile(r"epoch|(train|training|run)_?(step|iter|iteration|batch)|one_(batch|step)")
"""Names of functions that are called again and again for one model."""
SAVES = re.compile(r"^_?save|checkpoint$|^checkpoint|_save$", re.IGNORECASE)
_KEEPS = re.compile(r"scal\w*[^\n]*state_dict|state_dict[^\n]*scal", re.IGNORECASE)
"""Lines that save or load the state of a scaler."""
KEPT = re.compile(r"scal|amp", re.IGNORECASE)


class ScalerLife:
    """Where a scaler, or what it has learnt, does not last as long as its optimizer."""

    PLAIN = frozenset({"object", "ABC", "abc.ABC", "torch.nn.Module"})

    @staticmethod
    def alone(at: Context) -> bool:
        """Whether the project holds all bases of a class, none of which saves a scaler."""
        todo = [(base, at.module) for base in at.function.cls.bases] if at.function.cls else []
        seen: set[str] = set()
        while todo:
            name, module = todo.pop()
            found = module.base(name)
            if name in ScalerLife.PLAIN or name in seen:
                continue
            seen.add(name)
            if found is None or _KEEPS.search(ast.unparse(found[0].node)):
                return False
            todo += [(base, found[1]) for base in found[0].bases]
        return True

    @staticmethod
    def anew(scaler: Scaler, at: Context) -> tuple[Confidence, tuple[Evidence, ...]] | None:
        """Whether a scaler is made in every round of a training, whose optimizer is older."""
        statement = at.statement(scaler.call)
        stepped = {ast.unparse(call.args[0]) for call, _ in scaler.calls("step") if call.args}
        if statement is None or not stepped or "." in scaler.text:
            return None
        around = list(at.ancestors(statement))
        again = at.function.assigned.get(scaler.text, [])
        if len({id(value) for value in again}) > 1:
            return None  # one of them is a reset on purpose
        if any(isinstance(a, ast.If) and "None" in ast.unparse(a.test) for a in around):
            return None
        if scaler.call in _returned(scaler, at.function):
            return None
        loops = [a for a in around if isinstance(a, Loop)]
        if loops:
            if _makes(loops[-1], stepped):
                return None
            return Confidence.LIKELY, (at.note(_head(loops[0]), "in every round of this loop"),)
        parameters = {p.arg for p in at.function.parameters()}
        if isinstance(at.function.node, ast.Module) or _makes(at.function.node, stepped):
            return None
        if not all(re.split(r"[.\[]", name)[0] in parameters for name in stepped):
            return None
        for call, caller in at.module.call_sites(at.function):
            inside = at.inside(caller)
            around = [a for a in inside.ancestors(call) if isinstance(a, Loop)]
            given = {ast.unparse(a) for a in (*call.args, *(k.value for k in call.keywords))}
            if around and not _makes(around[-1], given):
                return Confidence.LIKELY, (at.note(call, "it runs in every round of a loop"),)
        if any(isinstance(node, Loop) for node in at.function.nodes):
            return (Confidence.POSSIBLE, ()) if ROUND.search(at.function.name) else None
        owned = all(name.startswith("self.") for name in stepped)  # one step of a training
        trained = owned and not (Care.in_test(at) or Care.in_benchmark(at))
        return Confidence.LIKELY if trained else Confidence.POSSIBLE, ()

    @staticmethod
    def unread(at: Context) -> ast.Call | None:
        """Where a file that saves a scaler's state reads the optimizer's back, and not that."""
        calls = at.module.index.calls
        saved = [
            dotted(call.func) or ast.unparse(call.func) for call, _ in calls.get("state_dict", [])
        ]
        loads = [(c, ast.unparse(c.func).lower()) for c, _ in calls.get("load_state_dict", [])]
        if not any("scaler" in text.lower() for text in saved):
            return None
        optimizers = [c for c, text in loads if "opt" in text and "scal" not in text]
        if not optimizers or any("scal" in text or "amp" in text for _, text in loads):
            return None
        generic = any(not re.search(r"model|net|opt|sched|ema|module", text) for _, text in loads)
        return None if generic else min(optimizers, key=lambda c: c.lineno)

    @staticmethod
    def left_out(scaler: Scaler, at: Context) -> Iterator[tuple[ast.Call, Context]]:
        """Calls of functions named for saving that get the optimizer, and no scaler."""
        stepped = {ast.unparse(call.args[0]) for call, _ in scaler.calls("step") if call.args}
        for function in scaler.scope:
            for node in function.nodes:
                if not isinstance(node, ast.Call):
                    continue
                name = (dotted(node.func) or "").rpartition(".")[2]
                given = [*node.args, *(k.value for k in node.keywords)]
                texts = [ast.unparse(argument) for argument in given]
                if SAVES.search(name) and stepped & set(texts):
                    if not any(KEPT.search(text) for text in texts):
                        yield node, at.inside(function)

    @staticmethod
    def keeps_states(call: ast.Call, at: Context) -> ast.expr | None:
        """Where a function of the project that is called saves, with its module's other functions,
        the states of what it is given, and nothing there knows of a scaler."""
        found = at.module.callee(call.func, at.function)
        if found is None:
            return None
        target, module = found
        index = module.index
        functions = (target.node, *_called(target, index))
        if KEPT.search("".join(ast.unparse(function) for function in functions)):
            return None
        parts = [n for function in functions for n in ast.walk(function)]
        calls = [n for n in parts if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute)]
        saves = any(index.names.qualify(c.func) == "torch.save" for c in calls)
        states = [c for c in calls if c.func.attr == "state_dict"]  # type: ignore[attr-defined]
        return states[0] if saves and states else None


def _called(function: Function, index: Index) -> list[ast.AST]:
    """The functions of the same module that a function calls by their names."""
    names = {
        n.func.id
        for n in function.nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    }
    return [f.node for f in index.functions if f.cls is None and f.name in names]


def _makes(node: ast.AST, names: set[str]) -> bool:
    """Whether an optimizer of one of these names, or of any, is made in a block."""
    for part in ast.walk(node):
        if isinstance(part, ast.Assign):
            if makes_optimizer(part.value):
                return True
            targets = [t for target in part.targets for t in ast.walk(target)]
            if any(isinstance(t, ast.expr) and dotted(t) in names for t in targets):
                return True
        elif isinstance(part, (ast.For, ast.AsyncFor)):
            if any(isinstance(t, ast.expr) and dotted(t) in names for t in ast.walk(part.target)):
                return True
    return False


def _returned(scaler: Scaler, function: Function) -> set[ast.Call]:
    """The scaler's call if its function returns it, so that it may live on."""
    for node in function.nodes:
        if isinstance(node, ast.Return) and node.value is not None:
            if any(
                dotted(n) == scaler.text for n in ast.walk(node.value) if isinstance(n, ast.Name)
            ):
                return {scaler.call}
    return set()


def _head(loop: Loop) -> ast.expr:
    return loop.test if isinstance(loop, ast.While) else loop.iter
