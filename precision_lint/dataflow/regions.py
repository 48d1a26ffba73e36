"""Autocast regions: context managers and decorators, and the state inside them."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import Any, Final

from precision_lint.dataflow.choices import around, computed, holds_inside
from precision_lint.dataflow.interpreter import Interpreter, Region, tensor_of
from precision_lint.dataflow.objects import of_autograd, of_own_parts, runs_models
from precision_lint.dataflow.protocol import note
from precision_lint.dataflow.tensors import dtype_of
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import (
    IN_BFLOAT16,
    IN_FLOAT16,
    REGIONAL,
    Closure,
    DtypeValue,
    Reference,
    RegionValue,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Unknown,
    Value,
    text,
    truth,
)
from precision_lint.syntax.program import Function, Module, scan

LEGACY: Final = {
    "torch.cuda.amp.autocast": "cuda",
    "torch.cuda.amp.autocast_mode.autocast": "cuda",
    "torch.cuda.amp.autocast_mode.autocast.__init__": "cuda",
    "torch.cpu.amp.autocast": "cpu",
    "torch.cpu.amp.autocast_mode.autocast": "cpu",
}
"""Spellings that fix the device: ``autocast(enabled, dtype, cache_enabled)``."""
CURRENT: Final = frozenset({
    "torch.autocast", "torch.amp.autocast", "torch.amp.autocast_mode.autocast",
    "torch.autocast_mode.autocast", "transformers.utils.generic.maybe_autocast",
})  # fmt: skip
"""``autocast(device_type, dtype, enabled, cache_enabled)``."""
NO_GRAD: Final = frozenset({"torch.no_grad", "torch.inference_mode", "torch.autograd.no_grad"})
DEFAULTS: Final = {"cpu": dtypes.BFLOAT16}
"""What autocast casts to where no dtype is given; float16 elsewhere."""
OFF_IN_HALF: Final = (dtypes.HALF16, dtypes.HALFBF)


BOUND: Final[
    list[Callable[[Interpreter, str, list[Value], Mapping[str, Value], ast.AST], None]]
] = []
"""What to look for in the arguments of a region that is opened elsewhere (``hazards``)."""
MADE: Final[
    list[Callable[[Interpreter, str, list[Value], Mapping[str, Value], ast.AST], None]]
] = []
"""What to look for where a region is made (``hazards``)."""


def is_autocast(name: str) -> bool:
    return name in LEGACY or name in CURRENT


def make_region(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: Mapping[str, Value],
    node: ast.AST,
) -> RegionValue:
    """A context manager of autocast, from the arguments of its constructor."""
    order: tuple[str, ...]
    if name in LEGACY:
        order = ("enabled", "dtype", "cache_enabled")
    else:
        order = ("device_type", "dtype", "enabled", "cache_enabled")
    for look in MADE:
        look(it, name, arguments, keywords, node)
    given = {**dict(zip(order, arguments, strict=False)), **keywords}
    device = LEGACY.get(name) or _device(given.get("device_type"))
    assumptions = 0
    vector = dtype_of(it, given["dtype"]) if "dtype" in given else None
    if vector is None and not device:
        vector = (dtypes.LOW, dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.LOW, dtypes.LOW)
    elif vector is None:
        vector = dtypes.everywhere(DEFAULTS.get(device, dtypes.FLOAT16))
    elif vector[0] & dtypes.OTHER:
        assumptions |= assume.BRANCH
        vector = (dtypes.LOW, dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.LOW, dtypes.LOW)
    elif _is_union(vector):
        vector = _by_mode(vector)
        assumptions |= assume.BRANCH
    unseen = it.unpacked and "enabled" not in given  # ``**settings``
    enabled = None if unseen else _enabled(given.get("enabled"))
    if enabled is False:
        vector = dtypes.V_OFF
    elif enabled is None:
        assumptions |= assume.FLAG
        vector = tuple([0 if i in OFF_IN_HALF else x for i, x in enumerate(vector)])
    cached = given.get("cache_enabled")
    cache = not (isinstance(cached, Scalar) and cached.value is False)
    switch = given.get("enabled")
    made = RegionValue(vector, device, assumptions, cache, node, it.module, switch)
    if enabled is None:
        made.asked = _asked(it, order, switch, node)
    return made


def _asked(it: Interpreter, order: tuple[str, ...], switch: Value | None, node: ast.AST) -> Any:
    """The test that is written for ``enabled``."""
    at = order.index("enabled")
    given = [k.value for k in getattr(node, "keywords", ()) if k.arg == "enabled"]
    given += getattr(node, "args", [])[at : at + 1]
    return (it.function, around(it, given[0], switch)) if given else None


def _is_union(vector: dtypes.Dtypes) -> bool:
    return bin(vector[0]).count("1") > 1


def _by_mode(vector: dtypes.Dtypes) -> dtypes.Dtypes:
    """In a mode that names a dtype, a choice of dtypes is that one."""
    wanted = {dtypes.AMP16: dtypes.FLOAT16, dtypes.AMPBF: dtypes.BFLOAT16}
    return tuple([wanted[i] if i in wanted and x & wanted[i] else x for i, x in enumerate(vector)])


def _device(value: Value | None) -> str:
    name = text(value)
    if name is not None:
        return name.partition(":")[0]
    if isinstance(value, Special) and value.kind == "device":
        return str(value.fields.get("type") or "")
    return ""


def _enabled(value: Value | None) -> bool | None:
    """Whether a region is on; None: a flag decides."""
    if value is None:
        return True
    if isinstance(value, Scalar) and value.value is not None and not value.assumptions:
        return bool(value.value)
    return None


MODE_OF: Final = ((dtypes.FLOAT16, dtypes.AMP16), (dtypes.BFLOAT16, dtypes.AMPBF))


def entered(it: Interpreter, value: RegionValue, closed: bool = False) -> Region:
    """The state inside a region; closed: as far as is known, all that it calls is followed."""
    before = it.region
    for dtype, mode in MODE_OF:
        if value.dtypes[dtypes.CODE] & dtype and value.node is not None:
            said = f"autocast to {dtypes.NAMES[dtype]} here"
            flag = bool(value.assumptions & (assume.FLAG | assume.BRANCH))
            inside, bound = of_own_parts(it), not runs_models(it)
            if flag and of_autograd(it):
                continue  # its backward enters again what its forward had around it
            it.sign(mode, said, value.node, value.home, inside, flag, bound, closed=closed)
    place = it.place(value.node, value.home) if value.node is not None else None
    sites = ((place,) if place is not None else ()) + before.sites
    other_device = (
        value.device and before.device and {value.device, before.device} == {"cpu", "cuda"}
    )
    if other_device and before.explicit and before.dtypes != dtypes.V_OFF and not before.guessed:
        return before._replace(outer=before)  # the outer region's operations do not notice
    off = value.dtypes == dtypes.V_OFF
    return Region(
        value.dtypes,
        value.device or before.device or "cuda",
        value.assumptions,
        sites[:6],
        True,
        value.cache,
        it.loops,
        before,
        off and before.dtypes != dtypes.V_OFF,
        not value.device and (before.guessed or not before.explicit),
        _mark(value),
        holds_inside(it, value.asked[1] if value.asked is not None else None),
    )


def _mark(value: RegionValue) -> int:
    """What is noted of values that a region computes."""
    asked = value.dtypes[dtypes.CODE] & ~dtypes.MAYBE
    if asked == dtypes.BFLOAT16:
        return IN_BFLOAT16
    if asked != dtypes.FLOAT16:
        return 0
    return IN_FLOAT16 if value.device or _names_dtype(value.node) else 0


def _names_dtype(node: ast.AST | None) -> bool:
    """Whether a region is given its dtype: the default depends on the device."""
    return isinstance(node, ast.Call) and (
        len(node.args) > 1 or any(k.arg == "dtype" for k in node.keywords)
    )


def enter(it: Interpreter, value: Value, node: ast.AST) -> Callable[[], None] | None:
    """Enter a context manager; what to do when it is left."""
    if isinstance(value, Sequence) and value.items:
        leaving = [leave for v in value.items if (leave := enter(it, v, node)) is not None]
        return lambda: _leave_all(leaving)
    if isinstance(value, RegionValue):
        return _enter_region(it, value, node)
    if isinstance(value, Special):
        if value.kind == "no-grad":
            return _without_gradient(it)
        if value.kind == "stack":
            return lambda: _leave_all(value.fields["leaving"])
        if value.kind == "generator" and value.fields.get("region") is not None:
            before, it.region = it.region, _handed_over(it, value.fields["region"], node)
            return lambda: setattr(it, "region", before)
    if isinstance(value, Reference):
        for named in NAMED:
            named(it, value.name, node)
    return None


def _handed_over(it: Interpreter, region: Region, node: ast.AST) -> Region:
    """The region that a generator function opens, as its caller opens it."""
    if region.sites == it.region.sites:
        return region  # one of another device, which changes nothing
    sites = (it.place(node), *region.sites)
    return region._replace(sites=sites[:6], loop=it.loops, outer=it.region)


def _leave_all(leaving: list[Callable[[], None]]) -> None:
    while leaving:
        leaving.pop()()


def stack(it: Interpreter, node: ast.AST) -> Special:
    """An ``ExitStack``: what is entered through it is left with it."""
    return Special("stack", node, it.module, leaving=[], branches=len(it.branches))


def enter_context(it: Interpreter, stack: Special, value: Value, node: ast.AST) -> None:
    """``stack.enter_context(value)``, which a branch may leave out."""
    if isinstance(value, RegionValue) and len(it.branches) > stack.fields["branches"]:
        value = _perhaps(value)
    leave = enter(it, value, node)
    if leave is not None:
        stack.fields["leaving"].append(leave)


def _perhaps(value: RegionValue) -> RegionValue:
    vector = tuple([0 if i in OFF_IN_HALF else x for i, x in enumerate(value.dtypes)])
    return RegionValue(
        vector, value.device, value.assumptions | assume.FLAG, value.cache, value.node, value.home
    )


def _enter_region(it: Interpreter, value: RegionValue, node: ast.AST) -> Callable[[], None]:
    before, variables = it.region, dict(it.variables) if value.asked is not None else {}
    for look in ENTERED:
        look(it, value, before, node)
    it.region, calls = entered(it, value, True), it.unseen_calls
    note(it, "enter", node, value)

    def leave() -> None:
        it.region = before
        if it.unseen_calls > calls:
            entered(it, value)  # it shows the mode of whatever that was
        if value.asked is not None:
            computed(it, value, variables)
        note(it, "leave", node, value)
        if not before.sites:
            empty(it)

    return leave


def _without_gradient(it: Interpreter) -> Callable[[], None]:
    before, it.no_grad = it.no_grad, True
    return lambda: setattr(it, "no_grad", before)


DROPPED: Final[list[Callable[[Interpreter, ast.AST], None]]] = []
"""What to look for where an expression gives up a region (``hazards``)."""
NAMED: Final[list[Callable[[Interpreter, str, ast.AST], None]]] = []
"""What to look for at a decorator, by its dotted name (``hazards``)."""
EMPTIED: Final[list[Callable[[Interpreter], None]]] = []
"""What to do where autocast's cache is emptied (``hazards``)."""
ENTERED: Final[list[Callable[[Interpreter, RegionValue, Region, ast.AST], None]]] = []
"""What to look for where a region is entered (``hazards``)."""


def empty(it: Interpreter) -> None:
    """Autocast's cache is emptied."""
    for look in EMPTIED:
        look(it)


def drop(it: Interpreter, node: ast.AST) -> None:
    """Note that an expression gives up a region without entering it."""
    for look in DROPPED:
        look(it, node)


def opens(function: Function) -> bool:
    """Whether a function switches autocast on by itself, so that its callers do not."""
    known = function.facts.get("opens")
    if known is None:
        named = speaks(function)
        calls = [*getattr(function.node, "decorator_list", ()), *function.body] if named else []
        known = function.facts["opens"] = any(
            _switches_on(node, function.module) for call in calls for node in ast.walk(call)
        )
    return bool(known)


def opens_below(function: Function) -> bool:
    """The same, also of who calls a function of its file, or a method of its object, that does; a model's
    ``forward`` may have a part that opens a region of its own, inside of the one that training is in."""
    known = function.facts.get("opens below")
    if known is None:
        function.facts["opens below"] = False  # those that call each other
        used, methods = scan(function), function.cls.methods if function.cls is not None else {}
        others = [one for name, one in methods.items() if name in used.asked]
        others += [one for one in function.module.functions if one.name in used.plain]
        below = function.name != "forward" and any(_is_region(f) or opens_below(f) for f in others)
        known = below or opens(function)
        function.facts["opens below"] = known
    return bool(known)


def _is_region(function: Function) -> bool:
    """Whether a decorator makes a function a region."""
    decorators = getattr(function.node, "decorator_list", ())
    return any(_switches_on(one, function.module) for one in decorators)


def speaks(function: Function) -> bool:
    """Whether a function names autocast."""
    return not _spellings(function.module).isdisjoint(scan(function).names)


def _spellings(module: Module) -> set[str]:
    """Names of autocast in a file."""
    known = module.facts.get("autocast")
    if known is None:
        known = module.facts["autocast"] = {"autocast"} | {
            name
            for name, value in module.variables.items()
            if isinstance(value, Reference) and is_autocast(value.name)
        }
    return known


def _switches_on(node: ast.AST, module: Module) -> bool:
    if not isinstance(node, ast.Call) or not _names_autocast(node.func, module):
        return False
    return not any(_says_off(keyword, module) for keyword in node.keywords)


def _says_off(keyword: ast.keyword, module: Module) -> bool:
    """Whether a keyword is ``enabled=False``, or a table of the file that says so."""
    value, node = None, keyword.value
    if isinstance(node, ast.Name):
        value = module.variables.get(node.id)
    if keyword.arg is None:
        value = value.items.get("enabled") if isinstance(value, Table) else None
    elif keyword.arg != "enabled":
        return False
    elif isinstance(node, ast.Constant):
        return not node.value
    return truth(value) is False


def _names_autocast(node: ast.expr, module: Module) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "autocast"
    value = module.variables.get(node.id) if isinstance(node, ast.Name) else None
    return isinstance(value, Reference) and is_autocast(value.name)


def at_yields(regions: list[Region]) -> Region | None:
    """The region that is around what a generator function hands over to, perhaps: a branch may leave it out."""
    opened = [one for one in regions if one.explicit and one.dtypes != dtypes.V_OFF] or regions
    if len({one.dtypes for one in regions}) < 2:
        return opened[0] if opened else None
    kept = dtypes.perhaps(opened[0].dtypes)
    return opened[0]._replace(dtypes=kept, assumptions=opened[0].assumptions | assume.FLAG)


def decorated(it: Interpreter, decorators: list[ast.expr]) -> bool:
    """Enter what the decorators of the function at hand enter; True: its region is its own."""
    own = False
    for node in reversed(decorators):
        target = node.func if isinstance(node, ast.Call) else node
        value = it.expr(target)
        name = value.name if isinstance(value, Reference) else ""
        for look in NAMED:
            look(it, name, node)
        makes = isinstance(value, Closure) and node is not target and speaks(value.function)
        region = it.expr(node) if makes or (is_autocast(name) and node is not target) else None
        if is_autocast(name) or isinstance(region, RegionValue):
            if not isinstance(region, RegionValue):
                region = make_region(it, name, [], {}, node)
            for enters in ENTERED:
                enters(it, region, it.region, node)
            it.region = entered(it, region)
            own = True
        elif name in NO_GRAD:
            it.no_grad = True
        else:
            wanted = casts_to(it.expr(node) if isinstance(value, Reference) else value)
            if isinstance(wanted, (DtypeValue, Reference)):
                _cast_in(it, wanted)
                it.region = it.region._replace(dtypes=dtypes.V_OFF, explicit=True)
                own = True
    return own


def casts_to(decorator: Value) -> Value | None:
    """The dtype that ``custom_fwd(cast_inputs=...)`` casts to, as a decorator or under a name."""
    if not isinstance(decorator, Special) or decorator.kind != "partial":
        return None
    of = decorator.fields["of"]
    if not isinstance(of, Reference) or of.name.rpartition(".")[2] != "custom_fwd":
        return None
    wanted: Value | None = decorator.fields["keywords"].get("cast_inputs")
    return None if isinstance(wanted, Scalar) and wanted.kind == "none" else wanted


def _cast_in(it: Interpreter, wanted: Value) -> None:
    """``custom_fwd(cast_inputs=torch.float32)``: in a region it casts the arguments."""
    to = dtype_of(it, wanted)
    if to is None or it.region.dtypes == dtypes.V_OFF:
        return
    given = it.function.parameters[1:] if it.function is not None else ()
    for name in [parameter.arg for parameter in given]:
        value = it.variables.get(name)
        if isinstance(value, (Tensor, Unknown)):
            tensor = tensor_of(it, value)
            if tensor is not None:
                vector = dtypes.cast_in(tensor.dtypes, it.region.dtypes, to)
                flags = tensor.flags & ~REGIONAL
                it.variables[name] = tensor.but(
                    dtypes=vector, op="cast", operands=(tensor,), data="explicit", flags=flags
                )
