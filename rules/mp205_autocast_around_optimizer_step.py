from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Evidence,
    Finding,
    Fix,
    Region,
    RegionEnd,
    Rule,
    Severity,
    calls,
)

OPTIMIZER = re.compile(r"optim|(^|_)opts?(_|$|\d)|(^|_)(sgd|adamw?)(_|$)|scaler")
FEEDS = re.compile(
    r"range|enumerate|zip|tqdm|trange|loader|iter|len|batch|dataset|progress|items|slice|track"
)
"""Calls that feed a loop and compute nothing."""
DEPTH = 3
With = ast.With | ast.AsyncWith
Loop = ast.For | ast.AsyncFor | ast.While


class AutocastAroundOptimizerStep(Rule):
    """A whole training loop inside one autocast region, which never sees the weights change.

    ## What it flags
    `optimizer.step()` or `scaler.step(optimizer)` in a loop with a backward pass, where one
    `with autocast` is around the loop: in the same function, or around a call that leads there.

    It stays silent where the region is opened anew in every iteration, for loops without a step
    (evaluation, inference), for `cache_enabled=False`, where `torch.clear_autocast_cache()` is
    called, and for a loop over several optimizers within one training step.

    ## Why it breaks
    Autocast casts each weight once and keeps the cast until the outermost region ends. The
    optimizer changes the float32 weight; the cast in the cache stays as it was, so every later
    forward pass runs on the weights of the first iteration. Nothing raises. Measured on a linear
    regression of 60 steps: the loss that is logged stays at 4.6488, the loss of the real weights
    goes to 71, because every step repeats the first gradient, and 0.024 with the region inside
    the loop. `bfloat16` and the CPU do the same.

    ## Example
    ```python
    with torch.autocast("cuda"):
        for images, labels in loader:
            optimizer.zero_grad()
            scaler.scale(criterion(model(images), labels)).backward()
            scaler.step(optimizer)
            scaler.update()
    ```
    Use instead:
    ```python
    for images, labels in loader:
        optimizer.zero_grad()
        with torch.autocast("cuda"):
            loss = criterion(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    ```

    ## Fix safety
    Safe where the loop is all that the region holds: the two headers change places, and the
    statements of the body run under the same autocast state as before, apart from a backward pass
    and steps at its end, which need none and are taken out of the region. Where the region holds
    more, moving it is for a person, and `cache_enabled=False`, which casts every weight at each
    use, is shown and not applied.

    ## How to silence
    `# precision-lint: ignore[MP205] reason` or `# noqa: MP205` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: `torch.autocast(cache_enabled)`; "autocast should wrap only
    the forward pass(es) of your network".
    """

    code = "MP205"
    name = "autocast-around-optimizer-step"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls("Tensor.step")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        found = _around(node, at, [], False, DEPTH) if _steps(node, at) else None
        if found is None or found.keeps_no_cache():
            return
        message = (
            "one autocast region around the training loop keeps the casts of the first iteration: "
            "the steps change weights that no forward pass sees"
        )
        sure = Confidence.CERTAIN if found.region.sure else Confidence.LIKELY
        if found.at.function is not at.function or found.statement is None:
            yield at.finding(node, message, sure, evidence=found.evidence)
            return
        first = next(n for n in at.function.nodes if _steps(n, at) and found.holds(n))
        if first is node:  # one report for a region
            evidence = [*found.evidence, at.note(node, "the weights change here")]
            yield at.finding(found.manager, message, sure, evidence=evidence, fix=found.fix())


@dataclass(frozen=True)
class Around:
    """A region that is around a loop.

    ``statement`` is None where a decorator or another file opens it; ``at`` looks from the function
    that it is in.
    """

    manager: ast.expr
    statement: With | None
    loops: list[Loop]
    region: Region
    at: Context

    @property
    def evidence(self) -> list[Evidence]:
        if self.statement is None:
            return [*self.at.why(self.region)]
        heads = [loop.test if isinstance(loop, ast.While) else loop.iter for loop in self.loops]
        return [
            self.at.note(self.manager, "the region is opened once, here"),
            *(self.at.note(head, "it is around this loop") for head in heads),
            *(self.at.note(part, "this may stand behind the region") for part in self.behind),
        ]

    def holds(self, node: ast.AST) -> bool:
        return self.statement in set(self.at.ancestors(node))

    def keeps_no_cache(self) -> bool:
        """Whether casts are not cached, or the cache is emptied."""
        given = self.manager.keywords if isinstance(self.manager, ast.Call) else []
        off = any(
            k.arg == "cache_enabled"
            and isinstance(k.value, ast.Constant)
            and k.value.value is False
            for k in given
        )
        return off or self.at.mentions(r"clear_autocast_cache|set_autocast_cache_enabled")

    def fix(self) -> Fix | None:
        edits = self._swapped()
        if edits is not None:
            return Fix("open the region in every iteration", Applicability.SAFE, edits)
        statement, call = self.statement, self.manager
        qualified = self.at.qualify(call.func) if isinstance(call, ast.Call) else None
        if statement is None or not isinstance(call, ast.Call) or qualified is None:
            return None
        shown = self.at.edit.add_keyword(statement, call, "cache_enabled", "False")
        if shown is None or not qualified.startswith("torch."):
            return None
        return Fix(
            "keep no casts, or move the region around the forward pass alone",
            Applicability.DISPLAY,
            shown,
            "the region holds more than the loop; without the cache every use casts the weights",
        )

    def _swapped(self) -> tuple[Edit, ...] | None:
        """Edits that put the region's header behind those of the loops, bodies as they are."""
        statement = self.statement
        if not isinstance(statement, ast.With) or len(statement.items) != 1:
            return None
        if statement.items[0].optional_vars is not None:
            return None
        outer: list[ast.stmt] = [statement, *reversed(self.loops)]
        for around, inner in pairwise(outer):
            if getattr(around, "body", None) != [inner]:
                return None
        if any(loop.orelse or not _feeds(loop) for loop in self.loops):
            return None
        headers = [self._header(part) for part in outer]
        places = [place for place in headers if place is not None]
        if len(places) != len(headers):
            return None
        text = self.at.source.text
        moved = [*places[1:], places[0]]
        edits = [
            Edit(start, end, text[a:b]) for (start, end), (a, b) in zip(places, moved, strict=True)
        ]
        if self.behind:
            indent = self.at.edit.indentation(self.loops[0])
            edits += RegionEnd.outdented(self.behind, indent, self.at) or ()
        return tuple(edits)

    @property
    def behind(self) -> list[ast.stmt]:
        """What of an iteration may stand behind the region."""
        return RegionEnd.behind(self.loops[0].body) if self.loops else []

    def _header(self, node: ast.stmt) -> tuple[int, int] | None:
        """Where the one line of a compound statement's header is, comment and all."""
        body: list[ast.stmt] = getattr(node, "body", [])
        start = self.at.edit.offset(node)
        lines = self.at.source.lines
        end = lines[node.lineno] if node.lineno < len(lines) else len(self.at.source.text)
        text = self.at.source.text[start:end].rstrip("\r\n")
        first = min([body[0].lineno, *(d.lineno for d in getattr(body[0], "decorator_list", []))])
        code = text.partition("#")[0].rstrip()
        if first == node.lineno or not code.endswith(":"):
            return None
        return start, start + len(text)


def _around(
    node: ast.AST, at: Context, loops: list[Loop], trains: bool, depth: int
) -> Around | None:
    """The outermost region around a loop around a step, in this function or in its callers.

    ``loops``: those found so far, in functions that are called; ``trains``: whether a backward pass
    is in one of those functions.
    """
    own: list[Loop] = []
    found: Around | None = None
    for parent in at.ancestors(node):
        if isinstance(parent, Loop) and (trains or _trains(parent)):
            own.append(parent)
        elif isinstance(parent, With) and (loops or own):
            for item in parent.items:
                region = at.module.opened(item.context_expr, at.function, Region())
                if region is not None and region.on:
                    found = Around(item.context_expr, parent, [*own], region, at)
    if found is not None:
        return found
    entry = at.module.entry_region(at.function)
    every = [*loops, *own]
    if every and entry.on and entry.state == "on" and entry.called is None:
        return Around(entry.node or ast.Constant(None), None, every, entry, at)
    trains = trains or _trains(at.function.node)
    for call, caller in at.module.call_sites(at.function) if depth else ():
        found = _around(call, at.inside(caller), every, trains, depth - 1)
        if found is not None:
            return found
    return None


def _trains(node: ast.AST) -> bool:
    """Whether a loop or a function has a backward pass."""
    return any(
        isinstance(part, ast.Call)
        and isinstance(part.func, ast.Attribute)
        and part.func.attr.endswith("backward")
        for part in ast.walk(node)
    )


def _steps(node: ast.AST, at: Context) -> bool:
    """Whether a call is the step of an optimizer, by way of a scaler or not."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr != "step":
        return False
    owner = node.func.value
    name = at.text(owner).rpartition(".")[2].lower()
    if OPTIMIZER.search(name) and "sched" not in name:
        return True
    made = at.definition(owner.id, owner) if isinstance(owner, ast.Name) else None
    return isinstance(made, ast.Call) and (at.qualify(made.func) or "").startswith("torch.optim.")


def _feeds(loop: Loop) -> bool:
    """Whether what a loop runs over computes nothing that the region could touch."""
    head = loop.test if isinstance(loop, ast.While) else loop.iter
    for part in ast.walk(head):
        if isinstance(part, ast.Call):
            func = part.func
            name = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
            if not FEEDS.search(name.lower()):
                return False
    return True
