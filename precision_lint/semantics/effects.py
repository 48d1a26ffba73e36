"""What a function does to gradients, optimizers and scalers: its code with all else left out.

A ``Step`` is one such event, or a branch, loop or call around events.  Names in it are source
texts in terms of the function's parameters, ``self`` and globals, so that a caller puts its own
arguments in their place (``Effects.called``), in this file or in another one.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from precision_lint.semantics.conditions import condition, mentions, substituted

BACKWARD = "backward"
"""names: the scaler that scaled the loss, or ``""``, the loss's text, and ``"plain"`` where it is
surely not scaled, ``"given"`` where it is a parameter."""
SCALED = "scaled"
"""names: a name that now holds ``scaler.scale(loss)``, the scaler."""
UNSCALE, STEP, UPDATE = "unscale", "step", "update"
"""names: the scaler, the optimizer."""
PLAIN_STEP, ZERO = "plain-step", "zero"
"""names: the optimizer (or the model), and ``*``: what is known of it does not depend on its name
(an item of a container of optimizers, parameters whose gradients a loop clears)."""
READ, CLIP, SCRUB = "read", "clip", "scrub"
"""names: the parameter whose argument has to carry gradients (``""``: it reads ``.grad``), and
``"guess"`` where only the callee's name says so."""
SELF_CLIP = "self-clip"
"""A framework's own clip, which unscales before."""
PERHAPS = "perhaps"
"""A call that nobody has seen, of a name that says it may run a backward, step or update."""
HOOK = "hook"
"""A hook on a parameter's gradient that clips it: it sees every backward's."""
KNOWN = "scale-known"
"""names: the scaler whose scale the code divides by."""
TAKEN = "taken"
"""names: a scaler that is handed to a function nobody has seen."""
BIND = "bind"
"""names: what is bound, and its truth: one of ``TRUTHS`` (``new``: a scaler) or a test."""
IF, LOOP, UNROLLED, TRY, MATCH = "if", "loop", "unrolled", "try", "match"
RETURN, RAISE, CONTINUE, BREAK = "return", "raise", "continue", "break"
CALL = "call"
"""A call of a function of another file that isn't known yet.  names: its qualified name, then its
arguments (``k=v`` with a keyword); block: what its name suggests."""
INLINE = "inline"
"""The block is what a called function does; names: its name."""

CONTROL = frozenset({IF, LOOP, UNROLLED, TRY, MATCH})
LEAVING = frozenset({RETURN, RAISE, CONTINUE, BREAK})
DRIVING = frozenset({BACKWARD, STEP, UPDATE})
"""Events by which a wrapper drives a scaler of its own."""
TELLING = frozenset({
    BACKWARD, UNSCALE, STEP, UPDATE, READ, CLIP, SCALED, TAKEN, PLAIN_STEP, ZERO, SCRUB,
})  # fmt: skip
"""Events that change, or depend on, the state of a scaler."""
TRUTHS = ("", "True", "False", "new", "+1")
"""What a binding says other than by a test; ``+1``: it counts up."""
LIMIT = 400
"""Steps of one function; a longer one is not followed."""


@dataclass(frozen=True, eq=False)
class Step:
    """One event, or a structure of them; ``filename`` is None for the file at hand."""

    kind: str
    names: tuple[str, ...] = ()
    blocks: tuple[Steps, ...] = ()
    node: ast.expr | None = None
    row: int = 0
    column: int = 0
    filename: str | None = None

    @property
    def place(self) -> tuple[str | None, int, int, str]:
        """What identifies an event, however often it was inlined."""
        return self.filename, self.row, self.column, self.kind


Steps = tuple[Step, ...]


@dataclass(frozen=True, eq=False)
class Effects:
    """Summary of one function; ``method``: its ``self`` is the object it is called on."""

    name: str
    parameters: tuple[str, ...]
    defaults: tuple[tuple[str, str], ...]
    local: tuple[str, ...]
    method: bool
    steps: Steps

    def __bool__(self) -> bool:
        return bool(self.steps)

    def data(self) -> list[Any]:
        """The summary in lists and strings, as JSON takes them."""
        return [
            self.name, list(self.parameters), [list(d) for d in self.defaults], list(self.local),
            self.method, [_data(step) for step in self.steps],
        ]  # fmt: skip

    @classmethod
    def of(cls, data: list[Any], filename: str) -> Effects:
        """A summary from its ``data``, of a function in ``filename``."""
        name, parameters, defaults, local, method, steps = data
        return cls(
            name,
            tuple(parameters),
            tuple((p, d) for p, d in defaults),
            tuple(local),
            method,
            tuple(_step(step, filename) for step in steps),
        )

    def linked(self, lookup: Callable[[str], Effects | None]) -> Effects:
        """The summary with calls of other files' functions put in, as far as ``lookup`` knows."""
        return replace(self, steps=_linked(self.steps, lookup))

    def called(
        self,
        arguments: list[str],
        keywords: Mapping[str, str],
        receiver: str | None,
        carried: Mapping[str, str],
        place: Step,
    ) -> Step:
        """The call as one step of the caller.

        arguments, keywords: source texts; receiver: what ``self`` is; carried: parameters whose
        argument carries gradients, each with the caller's parameter that it comes from or ``""``.
        """
        names = dict(self.defaults)
        names |= dict(zip(self.parameters, arguments, strict=False))
        names |= {k: v for k, v in keywords.items() if k in self.parameters}
        for name in self.local:
            names[name] = f"{name}__{self.name}"
        for name in self.parameters:
            names.setdefault(name, f"{name}__{self.name}")
        if receiver is not None:
            names["self"] = receiver
        steps = _bound(self.steps, tuple(sorted(names.items())), carried)
        return replace(place, kind=INLINE, names=(self.name,), blocks=(steps,))


def _data(step: Step) -> list[Any]:
    blocks = [[_data(inner) for inner in block] for block in step.blocks]
    place = [step.row, step.column, *([step.filename] if step.filename else [])]
    return [step.kind, list(step.names), blocks, *place]


def _step(data: list[Any], filename: str) -> Step:
    kind, names, blocks, row, column, *given = data
    home = str(given[0]) if given else filename
    inner = tuple(tuple(_step(step, home) for step in block) for block in blocks)
    return Step(kind, tuple(names), inner, None, row, column, home)


def _linked(steps: Steps, lookup: Callable[[str], Effects | None], depth: int = 3) -> Steps:
    found = []
    for step in steps:
        if step.kind == CALL:
            effects = lookup(step.names[0]) if depth else None
            if effects is None:
                found.append(step)
                continue
            plain = [n for n in step.names[1:] if not _keyword(n)]
            named = dict(n.split("=", 1) for n in step.names[1:] if _keyword(n))
            inner = replace(effects, steps=_linked(effects.steps, lookup, depth - 1))
            found.append(inner.called(plain, named, None, {}, step))
        elif step.blocks:
            blocks = tuple(_linked(block, lookup, depth) for block in step.blocks)
            found.append(replace(step, blocks=blocks))
        else:
            found.append(step)
    return tuple(found)


def _keyword(text: str) -> bool:
    head, equal, rest = text.partition("=")
    return bool(equal) and head.isidentifier() and not rest.startswith("=")


def _bound(steps: Steps, names: tuple[tuple[str, str], ...], carried: Mapping[str, str]) -> Steps:
    found = []
    for step in steps:
        if step.kind in (READ, CLIP, SCRUB) and step.names[0]:
            if step.names[0] not in carried:
                continue
            step = replace(step, names=(carried[step.names[0]], *step.names[1:]))
            found.append(step)
            continue
        blocks = tuple(_bound(block, names, carried) for block in step.blocks)
        fixed = step.kind in (INLINE, TRY, READ, CLIP, SCRUB)
        put = _substituted if step.kind == CALL else substituted
        texts = step.names if fixed else tuple(put(n, names) for n in step.names)
        if step.kind == CLIP and len(texts) > 2:
            texts = (*texts[:2], substituted(texts[2], names))
        found.append(replace(step, names=texts, blocks=blocks))
    return tuple(found)


def _substituted(text: str, names: tuple[tuple[str, str], ...]) -> str:
    if _keyword(text):
        head, _, rest = text.partition("=")
        return f"{head}={substituted(rest, names)}"
    return substituted(text, names)


def renamed(steps: Steps, names: Mapping[str, str]) -> Steps:
    """Steps with names replaced by other expressions."""
    return _bound(steps, tuple(sorted(names.items())), _Everything())


class _Everything(dict[str, str]):
    """Parameters stay what they are."""

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> str:
        return key


def flat(steps: Steps) -> Iterator[Step]:
    """Every step, those inside of structures and calls too."""
    for step in steps:
        yield step
        for block in step.blocks:
            yield from flat(block)


def pruned(steps: Steps) -> Steps:
    """Steps without bindings nobody asks about and structures that hold no event."""
    while True:
        texts = {text for step in flat(steps) for text in _asked(step)}
        kept = _pruned(steps, texts)
        if sum(1 for _ in flat(kept)) == sum(1 for _ in flat(steps)):
            return kept
        steps = kept


def _asked(step: Step) -> tuple[str, ...]:
    """Texts whose meaning a binding of their names would change."""
    if step.kind == BIND:
        return step.names[1:]
    return step.names[:1] if step.kind == LOOP else step.names


def _pruned(steps: Steps, texts: set[str]) -> Steps:
    found: list[Step] = []
    for step in steps:
        if step.kind == BIND and not any(mentions(t, step.names[0]) for t in texts if t):
            continue
        if step.blocks:
            step = replace(step, blocks=tuple(_pruned(block, texts) for block in step.blocks))
            inside = [s for block in step.blocks for s in flat(block)]
            if step.kind in (LOOP, UNROLLED, INLINE):
                if not any(_matters(s) for s in inside):
                    continue
                if step.kind == LOOP:
                    test, *names = step.names
                    watched = [n for n in names if any(mentions(t, n.lstrip("+")) for t in texts)]
                    step = replace(step, names=(test, *watched))
            elif step.kind != CALL and not inside:
                continue
        found.append(step)
        if step.kind in LEAVING:
            break
    return tuple(found)


def _matters(step: Step) -> bool:
    return step.kind not in LEAVING and step.kind not in CONTROL and step.kind != INLINE


def weights(steps: Steps) -> dict[str, int]:
    """By condition that decides something, how many branches with events it guards."""
    found: dict[str, int] = {}
    for step in flat(steps):
        if step.kind == IF:
            kinds = {s.kind for block in step.blocks for s in flat(block)}
            if kinds & TELLING or kinds & {CONTINUE, BREAK, RETURN}:
                for key in condition(step.names[0]).keys:
                    found[key] = found.get(key, 0) + bool(kinds & TELLING)
    for step in flat(steps):  # what a name stands for that decides
        if step.kind == BIND and step.names[0] in found:
            for key in condition(step.names[1]).keys if step.names[1] not in TRUTHS else ():
                found.setdefault(key, 1)
    return found


def leading(
    steps: Steps, wanted: Callable[[Step], bool]
) -> Iterator[tuple[Step, tuple[Step, ...]]]:
    """Steps of some kind, each with the structures around it, outermost first."""
    for step in steps:
        if wanted(step):
            yield step, ()
        for block in step.blocks:
            for found, around in leading(block, wanted):
                yield found, (step, *around)


def called_once(steps: Steps) -> bool:
    """Whether all events are in one call, of a function that loops over them itself."""
    found = [s for s in sources(steps) if any(e.kind in TELLING for e in flat((s,)))]
    if len(found) != 1 or found[0].kind != INLINE:
        return False
    loops = [s for s in flat(found[0].blocks[0]) if s.kind == LOOP]
    return any(e.kind in TELLING for loop in loops for e in flat(loop.blocks[0]))


def sources(steps: Steps) -> Iterator[Step]:
    """Events and calls of the function itself, in branches and loops too."""
    for step in steps:
        if step.kind in CONTROL:
            for block in step.blocks:
                yield from sources(block)
        else:
            yield step


def attempted(steps: Steps) -> str:
    """``caught`` if a block tries to unscale; not so for a whole iteration in a ``try``."""
    events = {s.kind for s in flat(steps)} - CONTROL - LEAVING
    tries = events <= {UNSCALE, CLIP, READ, INLINE, BIND}
    return "caught" if UNSCALE in events and tries else ""
