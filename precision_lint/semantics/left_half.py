"""Models that are still float16 when they are trained: a caller's, and those with adapters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Evidence
from precision_lint.semantics.halfcasts import BACK
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import DTYPES

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.module import Module

TRAINS = re.compile(r"(^|_)(train|fit|optimi[sz]e)(_|$)")
"""Names of functions that train what they are given."""
_SITES = 6
"""Callers that are looked at."""


@dataclass(frozen=True)
class LeftHalf:
    """``node`` leaves ``model`` in float16 for the training that ``evidence`` shows."""

    node: ast.Call
    model: str
    confidence: Confidence
    evidence: tuple[Evidence, ...]

    @classmethod
    def lent(cls, call: ast.Call, at: Context) -> LeftHalf | None:
        """A model that an evaluation is given, casts in place and hands back in float16."""
        name = _halved(call, at)
        if name is None or name not in {p.arg for p in at.function.parameters()}:
            return None
        evaluates = rf"\b{name}\.(eval\(\)|train\(False\))"
        wide = r"to\([^)]*(float32|float\b|dtype)"
        restores = rf"\b{name}\.(float\(|bfloat16\(|double\(|{wide})|return\s+{name}\b"
        copies = rf"\b{name}\s*=(?!=)(?!\s*{name}\.(half|eval|to)\()"
        if not at.mentions(evaluates) or at.mentions(restores) or at.mentions(copies):
            return None
        trained = next(_training(name, at), None)
        if trained is None:
            return None
        conditional = any(isinstance(a, (ast.If, ast.IfExp, ast.Try)) for a in at.ancestors(call))
        sure = Confidence.POSSIBLE if conditional else Confidence.LIKELY
        return cls(call, name, sure, (trained,))

    @classmethod
    def adapted(cls, call: ast.Call, at: Context) -> LeftHalf | None:
        """A model that may be float16 when adapters, which follow its dtype, are put on it."""
        name = dotted(call.func.value) if isinstance(call.func, ast.Attribute) else None
        if name is None or BACK.search(at.source.text) or "upcast" in at.source.text:
            return None
        cast = None
        for node in at.function.nodes:
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                if dotted(node.func.value) == name and node.lineno < call.lineno:
                    cast = node if _may_be_float16(node, at) else cast
                    if node.func.attr == "float":
                        cast = None
        trained = _stepped(name, at)
        if cast is None or trained is None:
            return None
        return cls(
            call,
            name,
            Confidence.LIKELY,
            (at.note(cast, f"{name} may be cast to float16 here"), trained),
        )


def _halved(call: ast.Call, at: Context) -> str | None:
    """The name of what a statement casts to float16 in place."""
    statement, func = at.statement(call), call.func
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Name):
        return None
    name = func.value.id
    match statement:
        case ast.Expr(value=value) if value is call:
            pass
        case ast.Assign(targets=[ast.Name(id=target)], value=value) if value is call:
            if target != name:
                return None
        case _:
            return None
    given = [*call.args, *(k.value for k in call.keywords)]
    if func.attr == "half":
        return None if given else name
    named = {at.qualify(value) for value in given}
    return name if named & {"torch.float16", "torch.half"} else None


def _training(name: str, at: Context) -> Iterator[Evidence]:
    """Where callers train the model that they pass for a parameter."""
    module = at.module
    sites: list[tuple[ast.Call, Function, Module]] = [
        (call, caller, module) for call, caller in module.call_sites(at.function)
    ]
    for site in module.foreign_sites(at.function)[:_SITES]:
        other = module.program.load(site.file) if module.program is not None else None
        where = other.site(site.function, site.span) if other is not None else None
        if other is not None and where is not None:
            sites.append((*where, other))
    parameters = [p.arg for p in at.function.parameters()]
    for call, caller, home in sites[:_SITES]:
        given = _given(call, name, parameters, at.function.is_method)
        if given is None:
            continue
        for node in caller.nodes:
            if isinstance(node, ast.Call) and _trains(node, given):
                message = f"the model that {at.function.name}() is given is trained here"
                yield at.note(node, message) if home is module else home.note(node, message)


def _given(call: ast.Call, name: str, parameters: list[str], method: bool) -> str | None:
    """What a call passes for a parameter, as a name."""
    place = parameters.index(name) - method
    given = next((k.value for k in call.keywords if k.arg == name), None)
    if given is None and 0 <= place < len(call.args):
        given = call.args[place]
    return dotted(given) if given is not None else None


def _trains(call: ast.Call, model: str) -> bool:
    """Whether a call trains a model: a function named so gets it, or it is set to do so."""
    texts = {dotted(a) for a in (*call.args, *(k.value for k in call.keywords))}
    if isinstance(call.func, ast.Attribute) and dotted(call.func.value) == model:
        return call.func.attr == "train" and not call.args and not call.keywords
    last = (dotted(call.func) or "").rpartition(".")[2]
    return model in texts and TRAINS.search(last) is not None


def _may_be_float16(call: ast.Call, at: Context) -> bool:
    """Whether a model is cast to a dtype that is float16, or one that is chosen from several."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in ("to", "half"):
        return False
    if call.func.attr == "half":
        return not call.args
    given = [*call.args, *(k.value for k in call.keywords)]
    dtypes = {DTYPES.get(at.qualify(value) or "") for value in given}
    for value in given:
        if isinstance(value, ast.Name):
            dtypes |= {
                DTYPES.get(at.qualify(source) or "")
                for source in at.function.assigned.get(value.id, [])
            }
    return "float16" in dtypes


def _stepped(model: str, at: Context) -> Evidence | None:
    """Where a scaler unscales the gradients of an optimizer of a model's parameters."""
    if not at.mentions(rf"\b{re.escape(model)}\.(named_)?parameters\("):
        return None
    for node in at.function.nodes:
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = (dotted(node.func.value) or "").lower()
            if node.func.attr == "clip_grad_norm_" and owner in ("accelerator", "fabric"):
                return at.note(node, "float16 gradients cannot be unscaled here")
            if node.func.attr == "unscale_" and "scaler" in owner:
                return at.note(node, "float16 gradients cannot be unscaled here")
    return None
