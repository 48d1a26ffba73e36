"""Autocast regions that do not do what they are meant to: wrong arguments, wrong device, losses left out."""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from precision_lint.dataflow.building import CALLED
from precision_lint.dataflow.devices import asks_for_cpu
from precision_lint.dataflow.graph import behind, may_be_number, peel
from precision_lint.dataflow.guards import called
from precision_lint.dataflow.interpreter import TOLD, Asked, Interpreter, Region
from precision_lint.dataflow.libraries import ASKED
from precision_lint.dataflow.objects import ancestry, is_module, runs_models
from precision_lint.dataflow.regions import (
    DROPPED,
    EMPTIED,
    ENTERED,
    LEGACY,
    MADE,
    NAMED,
    is_autocast,
)
from precision_lint.dataflow.tensors import Applied, dtype_of, hazard
from precision_lint.dataflow.training import SCALED, SCALED_GRADIENT, SCALERS_MADE
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import ALL_MODES, LOW
from precision_lint.domains.values import (
    MULTIPLIED,
    REGIONAL,
    DtypeValue,
    Instance,
    RegionValue,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
    text,
)
from precision_lint.events import Place
from precision_lint.hazards.magnitudes import half_modes, magnitude, unbounded
from precision_lint.hazards.places import made_at, operand_node, upcast_places
from precision_lint.syntax.program import Function, Module, dotted, every, scan
from precision_lint.torchmodel import amp

LOSSES: Final = (
    "cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss",
    "binary_cross_entropy_with_logits", "kl_div",
    "nll_loss", "gaussian_nll_loss", "cosine_embedding_loss", "triplet_margin_loss", "poisson_nll_loss",
    "margin_ranking_loss", "ctc_loss", "soft_margin_loss", "hinge_embedding_loss",
)  # fmt: skip

CLASSES: Final = frozenset({"cross_entropy", "nll_loss"})
"""Losses whose target may be the numbers of classes."""

# losses and distances


@hazard("binary_cross_entropy")
def banned_operation(it: Interpreter, applied: Applied) -> None:
    """An operation that autocast refuses."""
    if applied.policy != "banned":
        return
    value = applied.tensor(0)
    inner = peel(value)
    nodes = [operand_node(applied.node, it.module, index) for index in (0, 1)]
    logits = None
    if isinstance(inner, Tensor) and inner.op == "sigmoid" and inner.node is nodes[0]:
        logits = operand_node(inner.node, it.module, 0)
    it.emit(
        "banned-operation",
        applied.node,
        dtypes.regions_on(it.region.dtypes),
        it.region.assumptions,
        operation=applied.name,
        logits=it.place(logits) if logits is not None else None,
        operands=tuple(it.place(node) for node in nodes if node is not None),
        function=applied.node not in it.module.layer_calls,
    )


@hazard(*LOSSES)
def loss_in_half(it: Interpreter, applied: Applied) -> None:
    """A loss of what a region made half, behind the region."""
    value = applied.tensor(0)
    if value is None or not value.flags & REGIONAL or value.op == "cast":
        return
    if applied.operation.missing.get("cuda"):
        return  # it raises
    if applied.name == "nll_loss" and all(one.op != "log_softmax" for one in behind(value, 8)):
        return  # a region gives log probabilities in float32, whoever took them
    vector = applied.seen.get(0, value.dtypes)
    if applied.name not in CLASSES and 1 in applied.seen:
        vector = dtypes.promote(vector, applied.seen[1])
    modes = 0 if it.no_grad else dtypes.modes_of(vector, LOW)
    if not modes & 1 << dtypes.CODE:
        modes &= ~dtypes.HALF_MODES  # half weights made it half, not a region
    if not modes:
        return
    node = operand_node(applied.node, it.module, 0)
    target = applied.tensor(1)
    places = [it.place(node)] if node is not None else []
    classes = applied.name in CLASSES
    if target is not None and not classes and dtypes.modes_of(target.dtypes, LOW):
        other = operand_node(applied.node, it.module, 1)
        places += [it.place(other)] if other is not None else []
    it.retract_at("half-softmax", applied.node)
    it.emit(
        "half-loss",
        applied.node,
        modes,
        value.assumptions,
        about=value,
        operation=applied.name,
        upcast=tuple(places),
        made=made_at(it, value),
        behind=True,
    )


@hazard("mse_loss")
def squares_in_half(it: Interpreter, applied: Applied) -> None:
    """A mean of squares of two tensors that the code makes half: from differences of 256 on it is inf."""
    pair = [one for index in (0, 1) if (one := applied.tensor(index)) is not None]
    if len(pair) < 2 or text(applied["reduction"]) == "sum":
        return  # a sum is reported as one
    modes = half_modes(applied.result.dtypes) & 1 << dtypes.CODE
    needed = unbounded(max(magnitude(one) for one in pair), 128.0)
    if not modes or needed is None:
        return
    nodes = [operand_node(applied.node, it.module, index) for index in (0, 1)]
    it.emit(
        "half-loss",
        applied.node,
        modes,
        pair[0].assumptions | pair[1].assumptions | needed,
        about=pair[0],
        operation=applied.name,
        upcast=tuple(it.place(node) for node in nodes if node is not None),
        made=made_at(it, pair[0]),
        behind=False,
    )


@hazard("cdist", "pdist")
def distance_in_region(it: Interpreter, applied: Applied) -> None:
    """A distance that only autocast keeps from raising."""
    if not applied.policy:
        return
    modes = 0
    found: Tensor | None = None
    places = []
    for index in applied.operation.operands:
        value = applied.tensor(index)
        if value is None:
            continue
        low = dtypes.modes_of(value.dtypes, LOW) & dtypes.regions_on(it.region.dtypes)
        node = operand_node(applied.node, it.module, index)
        if low and node is not None:
            modes |= low
            found = found or value
            places.append(it.place(node))
    if found is not None:
        it.emit(
            "distance-in-region",
            applied.node,
            modes,
            found.assumptions | it.region.assumptions,
            about=found,
            operation=applied.name,
            upcast=tuple(places),
        )


# arguments


def region_arguments(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: Mapping[str, Value],
    node: ast.AST,
) -> None:
    """Arguments of ``autocast`` that raise, or switch off what is meant."""
    order = amp.LEGACY_AUTOCAST if name in LEGACY else amp.AUTOCAST
    found = _unknown_keyword(keywords, order, name)
    given = {**dict(zip(order, arguments, strict=False)), **keywords}
    positions = {order[i]: i for i in range(min(len(arguments), len(order)))}
    device, enabled = given.get("device_type"), given.get("enabled")
    if found is None and name not in LEGACY:
        found = _wrong_device(it, device, positions)
    if found is None:
        found = _wrong_dtype(given.get("dtype"), positions)
    if found is None and enabled is not None:
        if isinstance(enabled, DtypeValue):
            found = ("a dtype where `enabled` is expected", ("name", 0, "dtype"))
        elif text(enabled) is not None:
            what = "a text where `enabled` is expected, which is always true"
            found = (what, ("callee", "torch.autocast"))
    if found is not None:
        _report(it, node, *found, _rest(device) | _rest(enabled))
    elif name not in LEGACY and (late := _too_new(it, given, positions, node)) is not None:
        what, repair, release, raises = late
        _report(it, node, what, repair, _before(it, release), raises, made=made_at(it, device))
    elif (decided := _decided_by_dtype(it, name, given, node)) is not None:
        what = f"no dtype, where {decided} decides whether it is on and may be bfloat16"
        _report(it, node, what, None, assume.BRANCH, False)
    elif _lowers_nothing(it, given):
        what = "dtype float32: autocast then casts nothing down"
        runs = _runs_a_model(it) and _written_here(it, given["dtype"])
        meant = assume.FLAG | (0 if runs else assume.OUTSIDE)
        _report(it, node, what, None, meant, False, ALL_MODES & ~dtypes.HALF_MODES)


def _runs_a_model(it: Interpreter) -> bool:
    """Whether a region is around a model: in code that trains, or calls what it is given.

    Others bring a few operations up, inside of another region.
    """
    if it.function is None:
        return it.module.trains()
    function = it.function.outermost
    if _is_step(it, function):
        return False
    if runs_models(it):
        return True
    if function.cls is not None and is_module(it, function.cls):
        return False
    given = [one.arg for one in function.parameters]
    called = [one.func for one in every(function.node) if isinstance(one, ast.Call)]
    methods = function.cls.methods.values() if function.cls is not None else ()
    held = {name for method in methods for name in scan(method).stored}
    return any(isinstance(one, ast.Name) and one.id in given for one in called) or any(
        isinstance(one, ast.Attribute) and one.attr in held and [dotted(one.value)] == given[:1]
        for one in called
    )


def _is_step(it: Interpreter, function: Function) -> bool:
    """Whether a function is a step that a trainer calls in a region of its own."""
    if function.cls is None or function.name not in STEPS:
        return False
    bases = [one.rpartition(".")[2] for one in ancestry(it, function.cls) if isinstance(one, str)]
    return any(base.endswith(TRAINERS) for base in bases)


STEPS: Final = frozenset({
    "training_step", "validation_step", "test_step", "predict_step", "compute_loss", "prediction_step",
})  # fmt: skip
TRAINERS: Final = ("LightningModule", "Trainer")
"""Ends of the names of classes whose steps run in a region."""


def _written_here(it: Interpreter, dtype: Value) -> bool:
    """Whether a dtype is that of the code at hand in all its uses: no option, and no tensor's or caller's."""
    if not isinstance(dtype, DtypeValue) or dtype.source is not None or dtype.assumptions:
        return False
    around = it.function.node if it.function is not None and dtype.node is not None else None
    if around is None or dtype.home is not it.module:
        return True
    above: list[ast.expr] = getattr(around, "decorator_list", [])
    first, last = min([one.lineno for one in (*above, around)]), around.end_lineno or around.lineno
    return first <= getattr(dtype.node, "lineno", first) <= last


def _rest(value: Value | None) -> int:
    return value.assumptions if isinstance(value, (Scalar, Tensor)) else 0


Repair = tuple[Any, ...] | None
"""What mends the arguments: a method of `CallEdits` and what it takes."""


def _report(
    it: Interpreter,
    node: ast.AST,
    what: str,
    repair: Repair,
    assumptions: int,
    raises: bool = True,
    modes: int = ALL_MODES,
    made: Place | None = None,
) -> None:
    if not it.caught:
        old = it.events.get(("deprecated-amp", it.place(node), None))
        if old is not None:
            old.facts["device"] = None  # the arguments are mended first
        it.emit(
            "amp-arguments", node, modes, assumptions, what=what, raises=raises, repair=repair, made=made,
            cause=None if repair else made, key=what,
        )  # fmt: skip


def _unknown_keyword(
    keywords: Mapping[str, Value], order: tuple[str, ...], name: str
) -> tuple[str, Repair] | None:
    for keyword in keywords:
        if keyword not in order:
            meant = difflib.get_close_matches(keyword, order, 1, 0.6)
            repair: Repair = ("rename", keyword, meant[0]) if meant else None
            if name in LEGACY and keyword == "device_type":
                repair = ("callee", "torch.autocast")
            return f"{keyword!r}, which is no argument of {name}", repair
    return None


def _wrong_device(
    it: Interpreter, device: Value | None, positions: Mapping[str, int]
) -> tuple[str, Repair] | None:
    at = positions.get("device_type", "device_type")
    if device is None:
        return None if it.unpacked else ("no device_type, which has no default", ("first", None))
    if isinstance(device, Scalar) and device.kind in ("bool", "int", "float"):
        repair: Repair = ("first", "enabled") if device.kind == "bool" and at == 0 else None
        return "a flag or a number where device_type is expected", repair
    if isinstance(device, DtypeValue):
        return "a dtype where device_type is expected", ("first", "dtype") if at == 0 else None
    if isinstance(device, Special) and device.kind == "device" and _is_device(device):
        return "a device where its type, a text, is expected", ("append", at, ".type")
    named = text(device)
    if named is not None and named.partition(":")[0] not in amp.DEVICES:
        repair = ("put", at, '"cuda"') if named == "gpu" else None
        return f"{named!r}, which is no type of device", repair
    return None


def _decided_by_dtype(
    it: Interpreter, name: str, given: Mapping[str, Value], node: ast.AST
) -> str | None:
    """The name of a dtype that decides whether a float16 region is opened, and may be bfloat16."""
    cuda = LEGACY.get(name) == "cuda" or text(given.get("device_type")) == "cuda"
    if not cuda or "dtype" in given or it.unpacked:
        return None
    tests = [one.test for one in it.branches[-2:] if one.holds]
    tests += [k.value for k in getattr(node, "keywords", ()) if k.arg == "enabled"]
    for test in tests:
        if isinstance(test, ast.Compare) and isinstance(test.ops[0], (ast.IsNot, ast.NotEq)):
            test = test.left
        value = it.expr(test) if isinstance(test, (ast.Name, ast.Attribute)) else None
        if isinstance(value, DtypeValue):
            dtype = value.dtypes[dtypes.CODE]
            if dtype & dtypes.BFLOAT16 and dtype <= dtypes.ANY and not dtype & dtypes.OTHER:
                return ast.unparse(test)
    return None


Late = tuple[str, Repair, tuple[int, int], bool]
"""What a release of torch brought, how to do without, the release, and whether older ones raise."""


def _too_new(
    it: Interpreter, given: Mapping[str, Value], positions: Mapping[str, int], node: ast.AST
) -> Late | None:
    """Arguments that older releases of torch do not take, where these have to work."""
    device = given.get("device_type")
    at = positions.get("device_type", "device_type")
    named = text(device)
    kind = named.partition(":")[0] if named is not None else ""
    found: Late | None = None
    if isinstance(device, Scalar) and device.op == "str" and device.operands:
        repair = _of_type(node)
        what = "a device with its index, such as 'cuda:0', which autocast takes from torch 2.4 on"
        found = what, repair, amp.INDEXED_SINCE, True
    elif named is not None and kind != named:
        what = f"{named!r}, a device with its index, which autocast takes from torch 2.4 on"
        found = what, ("put", at, f'"{kind}"'), amp.INDEXED_SINCE, True
    elif kind in amp.DEVICE_SINCE:
        since = amp.DEVICE_SINCE[kind]
        what = f"{named!r}, which autocast takes from torch {since[0]}.{since[1]} on"
        found = what, None, since, True
    elif kind == "cpu" and dtype_of(it, given.get("dtype")) == dtypes.V_FLOAT16:
        what = "float16 on the CPU, with which autocast switches itself off before torch 2.2"
        found = what, None, amp.FLOAT16_ON_CPU_SINCE, False
    if found is None or _is_new(it, found[2]):
        return None
    # a device as text is a slip; the others are meant, and right where torch is new enough
    return found if named is None or it.program.torch is not None else None


def _of_type(node: ast.AST) -> Repair:
    """``str(x.device)`` as ``x.device.type``."""
    call = node if isinstance(node, ast.Call) else None
    for written in [*call.args[:1], *(k.value for k in call.keywords)] if call is not None else ():
        if isinstance(written, ast.Call) and len(written.args) == 1 and not written.keywords:
            first = call is not None and written in call.args[:1]
            what = f"{ast.unparse(written.args[0])}.type"
            return ("put", 0 if first else "device_type", what)
    return None


def _is_new(it: Interpreter, release: tuple[int, ...]) -> bool:
    """Whether every torch that has to work has what a release brought, or the code asks which it is."""
    least = it.program.torch
    return bool(it.compatible) or (least is not None and least >= release)


def _before(it: Interpreter, release: tuple[int, ...]) -> int:
    """The assumption that a torch before a release is used."""
    return 0 if it.program.torch is not None else assume.OLDER


def _is_device(value: Special) -> bool:
    """Whether it is a device for certain, not an option of that name."""
    owner = value.fields.get("of")
    return not isinstance(owner, Unknown) or bool(owner.symbol.uses & Symbol.TENSOR)


def _wrong_dtype(dtype: Value | None, positions: Mapping[str, int]) -> tuple[str, Repair] | None:
    at = positions.get("dtype", "dtype")
    if isinstance(dtype, Scalar) and dtype.kind == "bool":
        repair: Repair = ("name", at, "enabled") if isinstance(at, int) else None
        return "a flag where a dtype is expected", repair
    named = text(dtype)
    if named is not None:
        repair = ("put", at, f"torch.{named}") if named in ("float16", "bfloat16") else None
        return f"the text {named!r} where a dtype is expected", repair
    return None


def _lowers_nothing(it: Interpreter, given: Mapping[str, Value]) -> bool:
    dtype, enabled = given.get("dtype"), given.get("enabled")
    if isinstance(enabled, Scalar) and enabled.value is False:
        return False
    if it.region.explicit and it.region.dtypes != dtypes.V_OFF:
        return False  # brings a part of a region up
    return dtype is not None and dtype_of(it, dtype) == dtypes.V_FLOAT32


def scaler_arguments(
    it: Interpreter,
    name: str,
    arguments: list[Value],
    keywords: Mapping[str, Value],
    node: ast.AST,
) -> None:
    """Arguments of ``GradScaler`` that raise, or set another thing."""
    current = name.startswith("torch.amp")
    order = amp.SCALER if current else amp.SCALER[1:]
    found = _unknown_keyword(keywords, order, name)
    first = arguments[0] if arguments else None
    if found is None and isinstance(first, Scalar):
        flag = first.kind == "bool"
        if current and first.kind in ("bool", "int", "float"):
            repair = ("name", 0, "enabled" if flag else "init_scale")
            found = ("a flag or a number where the device is expected", repair)
        elif not current and flag:
            found = ("a flag where init_scale is expected", ("name", 0, "enabled"))
        elif not current and first.kind == "str":
            found = ("a text where init_scale is expected", ("drop", 0))
    if found is not None:
        _report(it, node, *found, _rest(first))


def joined(it: Interpreter, node: ast.AST) -> None:
    """``with autocast(...) and no_grad():`` one of the two is never entered."""
    if not it.caught:
        what = "a region that is joined by a word instead of a comma: it is not entered"
        _report(it, node, what, None, 0)


DROPPED.append(joined)


def not_called(it: Interpreter, name: str, node: ast.AST) -> None:
    """``with autocast:`` and ``@autocast``: the class, not one of its regions."""
    if not it.caught:
        it.emit(
            "amp-arguments",
            node,
            ALL_MODES,
            0,
            what="no call: the class itself",
            raises=True,
            repair=None,
        )


MADE.append(region_arguments)
SCALERS_MADE.append(scaler_arguments)


# devices


def device_mismatch(it: Interpreter, value: RegionValue, before: Region, node: ast.AST) -> None:
    """``autocast("cpu", enabled=False)`` inside a CUDA region: nothing is switched off."""
    if value.dtypes != dtypes.V_OFF:
        return
    if before.dtypes == dtypes.V_OFF or before.guessed or value.device in ("", before.device):
        _both_left(it, value, before)
        return
    if any(asks_for_cpu(one.test) for one in it.branches):
        return  # each device has a region of its own
    modes, assumptions = dtypes.regions_on(before.dtypes), before.assumptions & ~assume.ENTRY
    if not before.explicit:  # float16 around the function is hardly the CPU's
        if value.device != "cpu" or it.branches:
            return
        modes, assumptions = modes & 1 << dtypes.AMP16, before.assumptions
    it.emit(
        "device-mismatch",
        value.node or node,
        modes,
        assumptions,
        inner=value.device,
        outer=before.device,
        opened=before.sites[0] if before.sites else None,
        key=value.device,
    )


def _both_left(it: Interpreter, value: RegionValue, before: Region) -> None:
    """The region of the right device is left as well: both were meant."""
    outer = before.outer
    if outer is None:
        return
    if not outer.explicit and before.sites and value.device in ("", outer.device):
        it.events.pop(("device-mismatch", before.sites[0], before.device), None)
    if outer.explicit and outer.sites == before.sites and value.device:
        for key, event in list(it.events.items()):
            if (
                key[0] == "device-mismatch"
                and before.sites
                and event.facts["opened"] == before.sites[0]
            ):
                del it.events[key]


ENTERED.append(device_mismatch)


# deprecated names


def deprecated(it: Interpreter, name: str, node: ast.AST) -> None:
    """A name of torch.cuda.amp that torch.amp replaces."""
    found = amp.DEPRECATED.get(name)
    if found is not None and not it.compatible:
        it.emit(
            "deprecated-amp", node, ALL_MODES, 0, name=name, replacement=found[0], since=found[1],
            device=found[2],
        )  # fmt: skip


ASKED.append(deprecated)
NAMED.append(deprecated)


def uncalled(it: Interpreter, name: str, node: ast.AST) -> None:
    """A decorator or context manager that is autocast's class."""
    if is_autocast(name) and not isinstance(node, ast.Call):
        not_called(it, name, node)


NAMED.append(uncalled)


def too_new(it: Interpreter, name: str, node: ast.AST) -> None:
    """A name that torch has from a release on, where older ones have to work."""
    release = amp.SINCE.get(name)
    if release is None or it.program.torch is None or it.caught or _is_new(it, release):
        return
    if not _imported_with_care(it.module):
        what = f"{name}, which torch has from {release[0]}.{release[1]} on"
        it.emit("amp-arguments", node, ALL_MODES, 0, what=what, raises=True, repair=None)


def _imported_with_care(module: Module) -> bool:
    """Whether a file tries imports, or asks for names of torch, before it uses them."""
    known = module.facts.get("careful")
    if known is None:
        known = module.facts["careful"] = any(
            (isinstance(node, ast.Try) and any(_is_import(one) for one in node.body))
            or (isinstance(node, ast.Name) and node.id in ("hasattr", "getattr"))
            for node in ast.walk(module.tree)
        )
    return bool(known)


def _is_import(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Import, ast.ImportFrom))


ASKED.append(too_new)


# the device that is asked for


def asks_other_device(it: Interpreter, name: str, node: ast.AST) -> None:
    """The dtype of the CPU's autocast, where only CUDA's was asked whether it is on."""
    if name not in ("torch.get_autocast_cpu_dtype", "torch.get_autocast_dtype"):
        return
    if name.endswith("get_autocast_dtype"):
        first = node.args[0] if isinstance(node, ast.Call) and node.args else None
        if not isinstance(first, ast.Constant) or first.value != "cpu":
            return
    for around in it.branches:
        test = around.test
        if around.holds and isinstance(test, ast.Call) and not test.args and not test.keywords:
            if called(it, test) == "torch.is_autocast_enabled":
                it.emit("asks-other-device", test, ALL_MODES, 0, asked=it.place(node))
                return


ASKED.append(asks_other_device)


# the cache of casts


FIRST_WITH: Final = "run with gradient"
"""Marks among the variables, as that depends on the branches that were taken, what a region ran so first."""
YES: Final = Scalar(True)


def cached_cast(it: Interpreter, callee: Value, given: list[Value], node: ast.AST) -> None:
    """A model that is run without gradient and with it in one region: its casts are kept without one."""
    region = it.region
    on = dtypes.regions_on(region.dtypes)
    if not on or not region.cache or not region.sites:
        return
    key = _identity(it, callee)
    if key is None or not (it.unpacked or _may_be_batch(given)):
        return
    slot = (region.sites[0], key)
    way = (*it.branches, *it.past)
    if it.no_grad:
        if (TOLD, FIRST_WITH, slot) in it.variables:
            it.quiet[slot] = None
        elif not any(map(_evaluates, way)) and not _is_part_of_run(it, slot):
            it.quiet.setdefault(slot, (node, it.module, way))
        return
    it.variables[(TOLD, FIRST_WITH, slot)] = YES
    known = it.quiet.get(slot)
    if known is None or (known[1] is it.module and _are_arms(known[2], way)):
        return
    del it.quiet[slot]
    if known[1] is it.module and not any(map(_is_model, given)):
        it.emit("cached-cast", known[0], on, region.assumptions, again=it.place(node))


def _is_part_of_run(it: Interpreter, slot: tuple[Any, Any]) -> bool:
    """Whether a part belongs to what was run with gradient before in this region, and now without."""
    site, key = slot
    if key[0] != "object":
        return False
    wholes = ((site, (*key[:2], key[2][:length])) for length in range(len(key[2])))
    return any(one in it.quiet and it.quiet[one] is None for one in wholes)


def _evaluates(asked: Asked) -> bool:
    """Whether a test leads here in evaluation only: ``if not self.training``."""
    return (
        isinstance(asked.test, ast.Attribute) and asked.test.attr == "training" and not asked.holds
    )


def _are_arms(one: Iterable[Asked], other: Iterable[Asked]) -> bool:
    """Whether two places are not both run: a test that leads to one leads past the other."""
    return any(a.test is b.test and a.holds is not b.holds for a in one for b in other)


def _is_model(value: Value) -> bool:
    """Whether what is given this is no model itself: it gets one, to do something to it."""
    called = isinstance(value, Unknown) and value.symbol.uses & Symbol.CALLED
    return isinstance(value, Instance) or bool(called)


def _may_be_batch(given: list[Value]) -> bool:
    """Whether a model may be given this: neither nothing nor a text first, as logs are."""
    scalar = given[0] if given and isinstance(given[0], Scalar) else None
    return bool(given) and (scalar is None or scalar.kind != "str")


def _identity(it: Interpreter, callee: Value) -> Any:
    """What is called; an unknown part of an object is one part of that object."""
    if isinstance(callee, Instance) and callee.cls not in ("Dropout", "ReLU"):
        return ("object", id(callee.root), callee.path)
    if not isinstance(callee, Unknown):
        return None
    first = it.function.parameters[:1] if it.function is not None else ()
    owner = it.variables.get(first[0].arg) if first else None
    whose = (id(owner.root), owner.path) if isinstance(owner, Instance) else None
    return ("unknown", callee.symbol.number, whose)


def closed(it: Interpreter) -> None:
    """Behind the outermost region nothing is cached any more."""
    it.quiet.clear()
    for name in [
        one for one in it.variables if one.__class__ is tuple and one[:2] == (TOLD, FIRST_WITH)
    ]:
        del it.variables[name]


CALLED.append(cached_cast)
EMPTIED.append(closed)


# losses that are scaled in half


GIVEN: Final = frozenset({"input", "element", "output"})
KEEPING: Final = frozenset(
    {"abs", "add", "div", "join", "mean", "mul", "neg", "stack", "sub", "sum"}
)
"""Operations that give a loss where losses go in."""


def _as_given(value: Value) -> bool:
    """Whether all that is half in a loss is what unknown calls gave, or may be a number beside that."""
    if not isinstance(value, Tensor) or not half_modes(value.dtypes) or may_be_number(value):
        return True
    if value.op in KEEPING:
        parts = [peel(one) for one in value.operands]
        losses = [one for one in parts if isinstance(one, Tensor) and one.rank == 0]
        if value.op == "join" and losses:  # a model that gives its loss, and else what it predicts
            parts = losses
        return all(map(_as_given, parts))
    return value.op in GIVEN


def scaled_in_half(it: Interpreter, loss: Value, node: ast.AST, scaler: Special) -> None:
    """``scaler.scale(loss)`` of a float16 loss: 65536 is infinite there."""
    value = peel(loss)
    if not isinstance(value, Tensor):
        return
    modes = half_modes(value.dtypes)
    if _as_given(value):
        return  # what an unknown model gives may be a loss in float32
    single = value.rank == 0  # it is promoted; the scale settles at 32768
    operand = operand_node(node, it.module, 0) if isinstance(node, ast.Call) else None
    if isinstance(node, ast.Call) and node.args:
        operand = node.args[0]
    named = it.variables.get(getattr(operand, "id", ""))
    fallback = (it.place(operand),) if operand is not None else ()
    if isinstance(named, Sequence) or isinstance(operand, (ast.List, ast.Tuple, ast.ListComp)):
        fallback = ()  # each of its items is to be cast
    it.emit(
        "half-scaled-loss",
        node,
        modes,
        value.assumptions | (assume.MAGNITUDE if single else 0),
        about=value,
        whole=single,
        upcast=upcast_places(it, value, operand) if single else fallback,
    )


SCALED.append(scaled_in_half)


@hazard("item", "detach", "format")
def scaled_loss_read(it: Interpreter, applied: Applied) -> None:
    """A loss that is logged after it was scaled."""
    value = applied.tensor(0)
    if it.function is not None and "get_scale" in scan(it.function).names:
        return  # the function divides by the scale
    if value is None or (value.op == "join" and not value.flags & MULTIPLIED):
        return
    for one in behind(value, 6):
        if one.op == SCALED_GRADIENT:
            return  # no loss: who reads the gradient is told where
        if one.op == "scaled":
            it.emit(
                "scaled-loss-read",
                applied.node,
                ALL_MODES,
                one.assumptions,
                scaled=made_at(it, one),
            )
            return
