"""Training steps and the regions around them: casts that are kept, losses without a scale."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any, Final

from precision_lint.dataflow.around import EXTERNAL
from precision_lint.dataflow.building import OBJECTS
from precision_lint.dataflow.graph import behind, peel, same
from precision_lint.dataflow.interpreter import Interpreter, Region
from precision_lint.dataflow.protocol import HANDED_OVER
from precision_lint.dataflow.regions import BOUND, EMPTIED, ENTERED, MADE
from precision_lint.dataflow.training import BACKWARD, OWN_BACKWARD, SCALERS_MADE, SCALES, STEPPED
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import ALL_MODES, CODE
from precision_lint.domains.values import (
    IN_BFLOAT16,
    IN_FLOAT16,
    DtypeValue,
    Instance,
    RegionValue,
    Scalar,
    Special,
    Tensor,
    Unknown,
    Value,
    number,
    text,
)
from precision_lint.events import Place
from precision_lint.syntax.program import Function, dotted, every
from precision_lint.torchmodel.foreign import SCALER_OWNERS

HELD, KEPT, UNSCALED, SCALING, EMPTY = "held", "kept", "unscaled", "scaling", "empty"
SWITCHES: Final = "switches"


def outermost(region: Region) -> Region | None:
    """The region whose end empties autocast's cache."""
    found = None
    one: Region | None = region
    while one is not None and one.explicit:
        found = one
        one = one.outer
    return found


def _node_at(place: Place) -> ast.AST:
    """A node that stands at a place."""
    node = ast.Pass()
    node.lineno, node.col_offset = place.row, place.column
    node.end_lineno, node.end_col_offset = place.end_row, place.end_column
    return node


def _within(it: Interpreter, place: Place) -> bool:
    """Whether a place is in the body of the function at hand."""
    if place.path != it.module.path:
        return False
    if it.function is None:
        return True
    function = it.function.outermost
    body = function.body
    last = getattr(function.node, "end_lineno", None) or place.row
    return bool(body) and body[0].lineno <= place.row <= last


# casts that are kept


def went_back(it: Interpreter, loss: Value, node: ast.AST) -> None:
    """Note in how many loops the last backward pass was."""
    it.notes[HELD] = (it.loops, outermost(it.region))


def stepped(it: Interpreter, owner: Special, node: ast.AST) -> None:
    """An optimizer's step in a loop that one region is around."""
    region = outermost(it.region)
    loops, around = it.notes.get(HELD, (0, None))
    if region is None or around is None or region.sites != around.sites or not region.sites:
        return
    if it.loops <= region.loop or loops <= region.loop or not region.cache:
        return
    if region.sites[-1] in it.notes.get(EMPTY, ()):
        return
    modes = dtypes.regions_on(region.dtypes)
    site = region.sites[-1]
    here = _within(it, site)
    it.emit(
        "stale-casts",
        _node_at(site) if here else node,
        modes,
        region.assumptions,
        region=site,
        step=it.place(node),
        here=here,
    )


def emptied(it: Interpreter) -> None:
    """The cache is emptied: what was said of the regions around does not hold."""
    region = outermost(it.region)
    if region is None or not region.sites:
        return
    site = region.sites[-1]
    it.notes.setdefault(EMPTY, set()).add(site)
    for key in [
        k for k, e in it.events.items() if k[0] == "stale-casts" and e.facts["region"] == site
    ]:
        del it.events[key]


# backward passes under autocast


def left_region(it: Interpreter, value: RegionValue, region: Region, node: ast.AST) -> None:
    """Note that something is kept in float32."""
    if value.dtypes == dtypes.V_OFF and dtypes.regions_on(region.dtypes):
        it.notes[it.module.path, KEPT] = True
        for event in it.events.values():
            if (
                event.kind == "backward-in-region"
                and event.place.path == it.module.path
                and event.facts["decorated"]
            ):
                event.facts["kept"] = True
                for variant in event.variants:
                    variant.assumptions &= ~assume.KIND


def backward_inside(it: Interpreter, loss: Value, node: ast.AST) -> None:
    """``loss.backward()`` in a region."""
    region = it.region
    if (
        not region.explicit
        or region.dtypes == dtypes.V_OFF
        or not region.sites
        or it.loops > region.loop
    ):
        return
    here = _within(it, region.sites[0])
    kept = bool(it.notes.get((it.module.path, KEPT)))
    assumptions = region.assumptions
    if (not here and not (kept and _decorates(it, region.sites[0]))) or _holds_forward(node, loss):
        assumptions |= assume.KIND
    it.emit(
        "backward-in-region",
        node,
        dtypes.regions_on(region.dtypes),
        assumptions,
        region=region.sites[0],
        here=here,
        kept=kept,
        decorated=_decorates(it, region.sites[0]) and not _holds_forward(node, loss),
    )


def _decorates(it: Interpreter, place: Place) -> bool:
    """Whether a region is opened by a decorator of the function at hand."""
    around = it.function.outermost.node if it.function is not None else None
    listed = getattr(around, "decorator_list", [])
    return any(one.lineno == place.row for one in listed)


def _holds_forward(node: ast.AST, loss: Value) -> bool:
    """Whether the loss is computed in the same statement."""
    inner: Any = loss.fields.get("of") if isinstance(loss, Special) else peel(loss)
    if isinstance(inner, Tensor) and inner.op == "scaled":
        inner = peel(inner.operands[0])
    if isinstance(inner, Unknown):
        made = inner.symbol.node
    else:
        made = inner.node if isinstance(inner, Tensor) else None
    if isinstance(made, ast.BinOp) and not any(isinstance(one, ast.Call) for one in ast.walk(made)):
        return False  # divided by the steps of an accumulation
    return made is not None and any(one is made for one in ast.walk(node))


# losses without a scale


def unscaled(it: Interpreter, loss: Value, node: ast.AST) -> None:
    """The backward pass of a loss that was computed in float16."""
    found = _loss(loss)
    if found is None:
        return
    value, off = found
    flags, assumptions = _marks(value)
    if not flags & IN_FLOAT16 or flags & IN_BFLOAT16 or _by_hand(value):
        return
    if not off and (it.module.path, "scaler") in it.notes:
        return
    entries = it.notes.setdefault((UNSCALED, it.function), [])
    entries.append((node, assumptions, off))
    it.emit("unscaled-loss", node, ALL_MODES, assumptions | assume.KIND, off=off, step=None)


def _loss(loss: Value) -> tuple[Value, bool] | None:
    """The loss, and whether a scaler that is off scales it; None: a scaler scales it."""
    if isinstance(loss, Special) and loss.kind == "scaled":
        scaler = loss.fields["scaler"]
        return (loss.fields["of"], True) if scaler.fields.get("enabled") is False else None
    value = peel(loss)
    if isinstance(value, Tensor) and value.op == "scaled":
        scaler = value.operands[1]
        off = isinstance(scaler, Special) and scaler.fields.get("enabled") is False
        return (value.operands[0], True) if off else None
    return loss, False


def _marks(value: Value) -> tuple[int, int]:
    """In which regions a value was computed, and what that rests on."""
    if isinstance(value, Tensor):
        return value.flags, value.assumptions
    if isinstance(value, Unknown):
        return value.symbol.flags, value.symbol.assumptions
    return 0, 0


def _by_hand(value: Value) -> bool:
    """Whether a loss is multiplied by a large number."""
    for one in behind(value, 12):
        if one.op == "mul":
            for part in one.operands[:2]:
                factor = number(part)
                if factor is not None and factor >= 16:
                    return True
                if isinstance(part, Scalar) and factor is None:
                    return True
    return False


def weights_move(it: Interpreter, owner: Special, node: ast.AST) -> None:
    """The gradients of a loss without a scale are used."""
    for back, assumptions, off in it.notes.get((UNSCALED, it.function), ()):
        if (it.module.path, it.function, SCALING) not in it.notes or off:
            it.retract_at("unscaled-loss", back)
            clips = tuple(one.place for one in it.trace if one.kind == "clip")
            it.emit(
                "unscaled-loss", back, ALL_MODES, assumptions, off=off, step=it.place(node),
                clips=clips,
            )  # fmt: skip


def scaled(it: Interpreter, owner: Special, loss: Value, node: ast.AST) -> None:
    """A loss is scaled."""
    if owner.fields.get("enabled") is not False:
        _is_scaled(it)
    _in_bfloat16(it, owner, loss, node)


def stepped_elsewhere(it: Interpreter, node: ast.AST, given: list[Value]) -> None:
    """A loss is handed, with weights or their optimizer, to what is not followed: that trains, and scales."""
    weights = any(
        isinstance(one, Special) and one.kind in ("optimizer", "parameters") for one in given
    )
    if weights and any(_marks(one)[0] & IN_FLOAT16 for one in given):
        _is_scaled(it)


def _is_scaled(it: Interpreter) -> None:
    """A loss of the function is scaled: others of it need not be."""
    it.notes[it.module.path, it.function, SCALING] = True
    for back, _, off in it.notes.get((UNSCALED, it.function), ()):
        if not off:
            it.retract_at("unscaled-loss", back)


def scaler_made(
    it: Interpreter, name: str, arguments: list[Value], keywords: Mapping[str, Value], node: ast.AST
) -> None:
    """A scaler in the file: losses may be scaled elsewhere."""
    enabled = keywords.get("enabled")
    written = next((k.value for k in getattr(node, "keywords", ()) if k.arg == "enabled"), None)
    if (
        written is None
        or not isinstance(written, (ast.Constant, ast.Compare))
        or isinstance(enabled, Scalar)
    ):
        if not (isinstance(enabled, Scalar) and enabled.value is False):
            asked_for(it, written, node)
    if isinstance(enabled, Scalar) and enabled.value is False:
        return
    _left_on(it, written, node)
    it.notes[it.module.path, "scaler"] = True
    for key in [k for k in it.events if k[0] == "unscaled-loss" and k[1].path == it.module.path]:
        if not it.events[key].facts["off"]:
            del it.events[key]


# scalers in bfloat16


def _in_bfloat16(it: Interpreter, owner: Special, loss: Value, node: ast.AST) -> None:
    """A loss of bfloat16 regions alone that is scaled."""
    flags, _ = _marks(loss)
    if flags & (IN_FLOAT16 | IN_BFLOAT16) != IN_BFLOAT16 or owner.node is None:
        return
    enabled = owner.fields.get("enabled", True)
    test = owner.fields.get("test")
    if enabled is False or "given" not in owner.fields:
        return
    switches = it.notes.get((it.module.path, SWITCHES), [])
    assumptions = 0
    if enabled is None:
        if not _of_device(test) and not any(same(test, one) or test is one for one in switches):
            return
        assumptions = assume.FLAG
    it.emit_at(
        "bfloat16-scaler",
        it.place(owner.node, owner.home),
        ALL_MODES,
        assumptions,
        scaled=it.place(node),
        taken=None,
    )


def _of_device(test: Value | None) -> bool:
    """Whether a switch is on wherever there is the device: ``enabled=torch.cuda.is_available()``."""
    return isinstance(test, Unknown) and test.symbol.label == "is_available"


BRAIN: Final = frozenset({"bf16", "bf16-mixed", "bf16-true", "bfloat16", "torch.bfloat16"})
"""How settings spell bfloat16."""


def handed_over(it: Interpreter, node: ast.AST, given: list[Value]) -> None:
    """A scaler that is handed to something together with bfloat16."""
    brain = any(
        text(one) in BRAIN or (isinstance(one, DtypeValue) and one.dtypes == dtypes.V_BFLOAT16)
        for one in given
    )
    for one in given if brain else ():
        if isinstance(one, Special) and one.kind == "scaler" and one.fields.get("enabled") is True:
            if one.node is not None and one.home is it.module:
                it.emit(
                    "bfloat16-scaler",
                    one.node,
                    ALL_MODES,
                    assume.LIBRARY,
                    scaled=it.place(node),
                    taken=True,
                )


HALF: Final = frozenset(
    {"fp16", "float16", "half", "16", "16-mixed", "16-true", "torch.float16", "torch.half"}
)
SINGLE: Final = frozenset(
    {"fp32", "float32", "float", "32", "32-true", "torch.float32", "torch.float"}
)
"""How settings spell float16 and float32."""


def asked_for(it: Interpreter, enabled: ast.expr | None, node: ast.AST) -> None:
    """A scaler that is on where a setting says bfloat16.

    Tests of callers do not count: what a function does is the same whoever calls it.
    """
    answers = [(one, _for_bfloat16(it, one, holds)) for one, holds in _tests(it, enabled)]
    says = next((test for test, answer in answers if answer and _speaks_of(it, test)), None)
    if says is not None and all(answer is not False for _, answer in answers):
        scaled = it.place(says)
        it.emit("bfloat16-scaler", node, ALL_MODES, assume.BRANCH, scaled=scaled, taken=False)


def _tests(it: Interpreter, enabled: ast.expr | None) -> list[tuple[ast.expr, bool]]:
    """The function's tests that lead here, as they were computed, and how they come out."""
    here = set(ast.walk(it.function.node if it.function is not None else it.module.tree))
    tests = [(one.test, one.holds) for one in it.branches if one.test in here]
    tests += [(enabled, True)] if enabled is not None else []
    return [(_computed(it, test), holds) for test, holds in tests]


def _computed(it: Interpreter, test: ast.expr) -> ast.expr:
    """What a variable or attribute was last set to, in the function before it is asked or in its class."""
    name = dotted(test)
    function = it.function
    if name is None or function is None:
        return test
    own = [one for one in _set(function, name) if one.lineno < test.lineno]
    others = function.cls.methods.values() if function.cls is not None and "." in name else ()
    found = own or [one for other in others for one in _set(other, name)]
    values = [one.value for one in found if not isinstance(one.value, ast.Constant)]
    return values[-1] if values else test


def _set(function: Function, name: str) -> list[ast.Assign]:
    """The assignments of a function to a variable or attribute."""
    known: dict[str, list[ast.Assign]] | None = function.facts.get("set")
    if known is None:
        known = function.facts["set"] = {}
        for node in every(function.node):
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                known.setdefault(dotted(node.targets[0]) or "", []).append(node)
        for found in known.values():
            found.sort(key=lambda one: one.lineno)
    return known.get(name, [])


LEFT_ON, CHOSEN = "left on", "chosen"


def _left_on(it: Interpreter, enabled: ast.expr | None, node: ast.AST) -> None:
    """Note a scaler that is made under settings none of which says anything of a dtype."""
    tests = [test for test, _ in _tests(it, enabled)]
    open_ = all(map(_is_setting, tests))
    if it.function is not None and open_ and all(_for_bfloat16(it, t) is None for t in tests):
        it.notes.setdefault((LEFT_ON, _scope(it)), {})[node] = it.module
        _left_on_where_chosen(it)


def _is_setting(test: ast.expr) -> bool:
    """Whether a test asks for a setting, rather than for what was computed of one."""
    if isinstance(test, ast.Compare):
        asked, texts = test.left, test.comparators
        plain = isinstance(asked, ast.Attribute | ast.Name) and len(texts) == 1
        return plain and isinstance(getattr(texts[0], "value", None), str)
    return isinstance(test, ast.Attribute | ast.Constant)


def owned(it: Interpreter, made: Instance, node: ast.AST) -> None:
    """An object that owns a scaler, which nothing that its maker says switches off."""
    scalers = [one for one in made.attributes.values() if isinstance(one, Special)]
    if any(one.kind == "scaler" and one.fields.get("enabled") is True for one in scalers):
        _left_on(it, None, node)


def owned_elsewhere(it: Interpreter, name: str, arguments: list[Value], node: ast.AST) -> None:
    """An object of a library's class that owns a scaler."""
    if name in SCALER_OWNERS:
        _left_on(it, None, node)


def region_chosen(
    it: Interpreter, name: str, arguments: list[Value], keywords: Mapping[str, Value], node: ast.AST
) -> None:
    """Note a setting that decides whether a region is one of float16 or of bfloat16."""
    both = dtypes.FLOAT16 | dtypes.BFLOAT16
    for value in (*arguments, *keywords.values()):
        if isinstance(value, DtypeValue) and value.asked is not None and value.dtypes[CODE] == both:
            if _is_entry(value.asked) or _for_bfloat16(it, value.asked) is not None:
                it.notes[CHOSEN, _scope(it)] = it.place(value.asked, value.home)
                _left_on_where_chosen(it)


def _is_entry(asked: ast.expr) -> bool:
    """Whether a key decides: ``table[key]``, ``table.get(key)``."""
    method = asked.func if isinstance(asked, ast.Call) else None
    return isinstance(asked, ast.Subscript) or getattr(method, "attr", "") == "get"


def _scope(it: Interpreter) -> Function | None:
    """The function at hand, or the first one of its class: what a scaler and a region have in common."""
    function = it.function
    if function is None or function.cls is None:
        return function
    return next(iter(function.cls.methods.values()), function)


def _left_on_where_chosen(it: Interpreter) -> None:
    scope = _scope(it)
    chosen = it.notes.get((CHOSEN, scope))
    for node, home in it.notes.get((LEFT_ON, scope), {}).items() if chosen else ():
        place = it.place(node, home)
        it.emit_at(
            "bfloat16-scaler", place, ALL_MODES, assume.BRANCH, scaled=chosen, taken="chosen"
        )


def _speaks_of(it: Interpreter, test: ast.expr) -> bool:
    """Whether a test names bfloat16, or float32 as all that is left out: not float16 leaves it open."""
    named = {_spelled(it, one) for one in ast.walk(test) if isinstance(one, ast.expr)}
    words = {w for n in ast.walk(test) if isinstance(n, ast.Attribute) for w in n.attr.split("_")}
    return bool(named & (BRAIN | SINGLE) or words & BRAIN)


def _for_bfloat16(it: Interpreter, test: ast.expr, holds: bool = True) -> bool | None:
    """Whether a test comes to ``holds`` where the setting it asks for says bfloat16; None: unknown."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _for_bfloat16(it, test.operand, not holds)
    if isinstance(test, ast.BoolOp):
        answers = {_for_bfloat16(it, one, holds) for one in test.values}
        if isinstance(test.op, ast.Or) is holds:
            return True if True in answers else None if None in answers else False
        return False if False in answers else True if True in answers else None
    answer = None
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        answer = _compared(it, test.ops[0], test.comparators[0])
    elif isinstance(test, ast.Attribute):
        words = set(test.attr.split("_"))
        brain = bool(words & BRAIN)
        answer = brain if brain is not bool(words & HALF) else None  # a name of both tells neither
    return None if answer is None else answer is holds


def _compared(it: Interpreter, operator: ast.cmpop, other: ast.expr) -> bool | None:
    """Whether a comparison with constants holds where the setting says bfloat16; None: unknown."""
    among = getattr(other, "elts", ()) if isinstance(operator, ast.In | ast.NotIn) else (other,)
    spelled = {_spelled(it, one) for one in among}
    if not spelled & (BRAIN | HALF | SINGLE):
        return None
    same = bool(spelled & BRAIN)
    if isinstance(operator, ast.Eq | ast.In | ast.Is):
        return same
    return not same if isinstance(operator, ast.NotEq | ast.NotIn | ast.IsNot) else None


def _spelled(it: Interpreter, node: ast.expr) -> str | None:
    """A constant text, or a dtype as ``torch.float16``."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    value = it.expr(node) if dotted(node) is not None else None
    if not isinstance(value, DtypeValue) or value.source is not None:
        return None
    return f"torch.{dtypes.NAMES.get(value.dtypes[CODE], '')}"


def switched(it: Interpreter, value: RegionValue, region: Region, node: ast.AST) -> None:
    """Note the flags that regions of bfloat16 depend on."""
    if value.switch is not None and value.dtypes[CODE] & dtypes.BFLOAT16:
        it.notes.setdefault((it.module.path, SWITCHES), []).append(value.switch)


BACKWARD.extend([went_back, backward_inside])
OWN_BACKWARD.append(unscaled)
STEPPED.extend([stepped, weights_move])
EMPTIED.append(emptied)
ENTERED.extend([left_region, switched])
HANDED_OVER.extend((handed_over, stepped_elsewhere))
SCALES.append(scaled)
SCALERS_MADE.append(scaler_made)
MADE.append(region_chosen)
BOUND.append(region_chosen)
OBJECTS.append(owned)
EXTERNAL.append(owned_elsewhere)
