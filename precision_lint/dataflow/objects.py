"""Objects of classes: how they are built, their attributes, and the dtype of their weights.

An object is an allocation site (``Root``) and a path of attributes below it.  Casting a module casts
everything below its path; the latest cast of a part or of what holds it counts.
"""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.filling import is_empty, late_stores, waits
from precision_lint.dataflow.graph import behind
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import facts, is_new, join, perhaps_cast, widened
from precision_lint.domains.values import (
    BUFFER,
    EMPTY,
    KEPT,
    MULTIPLIED,
    PARAMETER,
    STATED_DTYPE,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Reference,
    Root,
    Scalar,
    Sequence,
    Special,
    Table,
    Tensor,
    Value,
)
from precision_lint.events import Place
from precision_lint.syntax.program import Class, Function, scan
from precision_lint.torchmodel import layers
from precision_lint.torchmodel.foreign import HUGGING_FACE, is_network

MODULES: Final = ("torch.nn.Module", "torch.nn.modules.module.Module")
"""The base of all modules."""


# classes


def ancestry(it: Interpreter, cls: Class) -> list[Class | str]:
    """A class and its bases, nearest first; those outside of the project by their dotted names."""
    known = cls.facts.get("ancestry")
    if known is not None:
        return known  # type: ignore[no-any-return]
    cls.facts["ancestry"] = [cls]
    found: list[Class | str] = [cls]
    for base in cls.node.bases:
        value = it.evaluate_in(cls.module, base)
        if isinstance(value, ClassValue):
            found += [c for c in ancestry(it, value.cls) if c not in found]
        elif isinstance(value, Reference):
            found.append(value.name)
        elif isinstance(value, Instance) and isinstance(value.cls, str):
            found.append(f"torch.nn.{value.cls}")
    cls.facts["ancestry"] = found
    return found


def is_a(it: Interpreter, cls: Class | str, *names: str) -> bool:
    """Whether a class derives from one of these, by dotted name."""
    if isinstance(cls, str):
        return cls in names
    return any(base in names for base in ancestry(it, cls) if isinstance(base, str))


def is_module(it: Interpreter, cls: Class | str) -> bool:
    """Whether a class is an ``nn.Module``."""
    if isinstance(cls, str):
        return True
    known = cls.facts.get("module")
    if known is None:
        known = cls.facts["module"] = any(
            base.startswith("torch.nn.") or is_network(base)
            for base in ancestry(it, cls)
            if isinstance(base, str)
        )
    return bool(known)


def layer_of(it: Interpreter, cls: Class | str) -> str:
    """The layer of torch that a class is or derives from; empty: there is none."""
    if isinstance(cls, str):
        return cls
    bases = (base for base in ancestry(it, cls) if isinstance(base, str))
    names = (base.rpartition(".")[2] for base in bases if base.startswith("torch.nn."))
    return next((name for name in names if layers.layer(name) is not None), "")


FUNCTIONS: Final = ("torch.autograd.Function", "torch.autograd.function.Function")


def serves_models(it: Interpreter, cls: Class) -> bool:
    """Whether what runs a model calls the methods of a class: a module's, or a function's of autograd."""
    return is_module(it, cls) or is_a(it, cls, *FUNCTIONS)


def find_method(it: Interpreter, cls: Class | str, name: str) -> Function | None:
    """A method of a class or of its bases."""
    if isinstance(cls, str):
        return None
    hidden = False
    for base in ancestry(it, cls):
        if base in MODULES:
            hidden = name in OF_MODULES
        elif isinstance(base, Class) and name in base.methods:
            if not hidden or is_module(it, base):
                return base.methods[name]
    return None


OF_MODULES: Final = frozenset({
    "to", "half", "float", "double", "bfloat16", "type", "train", "eval", "apply", "requires_grad_",
    "state_dict", "load_state_dict", "zero_grad",
})  # fmt: skip
"""Methods of ``nn.Module`` that those of a mixin behind it do not replace."""


def inherited(it: Interpreter, cls: Class) -> list[Function]:
    """Methods of a class's bases that train by what it defines itself, and that nothing in it calls."""
    line = [base for base in ancestry(it, cls) if isinstance(base, Class)]
    methods = {name: one for base in reversed(line) for name, one in base.methods.items()}
    scans = {
        name: scan(one) for name, one in methods.items() if one.kind == "method" and one.parameters
    }
    training = {name for name, one in scans.items() if not one.names.isdisjoint(TRAINS)}
    reached = {name for name in cls.methods if not name.startswith("__")} if training else set()
    found: list[str] = []
    while more := [
        name for name, one in scans.items() if name not in reached and one.asked & reached
    ]:
        reached.update(more)
        found += [name for name in more if name not in cls.methods]
        training.update([name for name in more if scans[name].asked & training])
    called = {name for one in cls.methods.values() for name in scan(one).names}
    called |= {asked for name in found for asked in scans[name].asked - {name}}
    return [methods[name] for name in found if name in training and name not in called]


def next_method(it: Interpreter, cls: Class, after: Class, name: str) -> Function | None:
    """The method that ``super()`` gives in a method of ``after``."""
    line = ancestry(it, cls)
    start = line.index(after) + 1 if after in line else 1
    for base in line[start:]:
        if isinstance(base, Class) and name in base.methods:
            return base.methods[name]
    return None


def class_constant(it: Interpreter, cls: Class, name: str) -> Value | None:
    """The value of a class attribute."""
    for base in ancestry(it, cls):
        if isinstance(base, Class):
            if name in base.facts.get("attributes", ()):
                return base.facts["attributes"][name]  # type: ignore[no-any-return]
            if name in base.constants:
                return it.evaluate_in(base.module, base.constants[name])
    return None


def store_in_class(it: Interpreter, cls: Class, name: str, value: Value) -> None:
    """``cls.name = value``, until the file is done; what it was before is possible as well."""
    line = [one for one in ancestry(it, cls) if isinstance(one, Class)]
    owner = next((one for one in line if name in one.constants), cls)
    old = class_constant(it, cls, name)
    if "attributes" not in owner.facts:
        owner.facts["attributes"] = {}
        it.program.touched.append(owner.facts["attributes"])
    owner.facts["attributes"][name] = value if old is None else join(old, value)


# attributes


def slot(attributes: dict[Any, Value], name: str) -> tuple[str, int, str]:
    """The variable under which a method keeps what it stored in an attribute."""
    return ("self", id(attributes), name)


def store(it: Interpreter, owner: Instance, name: str, value: Value) -> None:
    """``owner.name = value``: certain until the method ends, one possibility for other methods."""
    it.variables[slot(owner.attributes, name)] = value
    it.stored[slot(owner.attributes, name)] = owner.attributes


def commit(it: Interpreter, variables: dict[Any, Value], building: bool) -> dict[Any, Value]:
    """At a method's end: what it stored is visible to all methods.  Gives that.

    building: the object is being built, so that what is stored now replaces what was.
    """
    stored: dict[Any, Value] = {}
    for key in list(variables):
        if key.__class__ is not tuple or key[0] != "self":
            continue
        attributes = it.stored.get(key)
        if attributes is None:
            continue
        name, value = key[2], variables[key]
        stored[key] = value
        keep(it, value)
        if isinstance(value, Tensor) and value.flags & EMPTY:  # a checkpoint may fill it
            value = value.but(flags=value.flags & ~EMPTY)
        old = attributes.get(name)
        if old is None or building:
            new = building or is_new(attributes, name)
            attributes[name] = value if new else perhaps_cast(value)
        elif old is not value:
            joined = widened(old, join(old, value)) if _adds_to(value, old) else join(old, value)
            if facts(joined) != facts(old):
                attributes[name] = joined
                it.changes[id(attributes)] = it.changes.get(id(attributes), 0) + 1
    return stored


def _adds_to(value: Value, old: Value) -> bool:
    """Whether a value is one more step from what the attribute was: its bounds may move on and on."""
    parts = value.operands if isinstance(value, (Tensor, Scalar)) else ()
    return any(one is old or facts(one) == facts(old) for one in parts if isinstance(one, Value))


def load(it: Interpreter, owner: Instance, name: str, node: ast.AST) -> Value | None:
    """An attribute of an object; None: nothing is known of it."""
    value = it.variables.get(slot(owner.attributes, name))
    if value is None:
        value = owner.attributes.get(name)
        if isinstance(value, Tensor) and value.op == "join" and value.flags & MULTIPLIED:
            value = value.but(flags=value.flags & ~MULTIPLIED)  # it may be a new loss by now
    cls = owner.cls
    if value is None or waits(value):
        later = _stored_later(it, owner, name)
        value = later if later is not None else value
    if value is not None:
        return held(it, owner, name, value)
    if isinstance(cls, str):
        return _layer_attribute(it, owner, name, node)
    method = find_method(it, cls, name)
    if method is not None:
        if method.kind == "property":
            return it.run(method, owner, [], {}, node)
        if method.kind == "static":
            return Closure(method)
        return Closure(method, ClassValue(cls) if method.kind == "class" else owner)
    constant = class_constant(it, cls, name)
    if constant is not None and not (isinstance(constant, Scalar) and constant.kind == "none"):
        return constant  # None is what a field holds until it is set
    if name == "dtype" and is_module(it, cls):
        return DtypeValue(weights_of(it, owner)[0], node, it.module)
    return _layer_attribute(it, owner, name, node)


HIDDEN: Final = "hidden"
"""With its name: an attribute that is no part of its model."""


def held(it: Interpreter, owner: Instance, name: str, value: Value) -> Value:
    """What an attribute of an object is, in the dtype of that object's weights; a function that was bound
    to an object built alike, bound to this one."""
    if isinstance(value, Closure) and isinstance(value.owner, Instance):
        if value.owner.attributes is owner.attributes:
            return Closure(value.function, owner, value.outer, value.bare)
    if not is_module(it, owner.cls) or (HIDDEN, name) in owner.attributes:
        return value
    if isinstance(value, Tensor):
        follows = value.flags & PARAMETER and not value.flags & (STATED_DTYPE | KEPT)
        return as_weight(it, owner, value) if follows else value
    if isinstance(value, Instance):
        return part(owner, name, value)
    if isinstance(value, Sequence) and (value.items or value.element is not None):
        kind = value.kind
        if value.items is not None:
            items = tuple([held(it, owner, f"{name}.{i}", v) for i, v in enumerate(value.items)])
            return Sequence(items, None, kind)
        element = value.element
        assert element is not None
        return Sequence(None, held(it, owner, f"{name}.*", element), kind)
    if isinstance(value, Table):
        items_ = {k: held(it, owner, f"{name}.{k}", v) for k, v in value.items.items()}
        return Table(items_, value.element)
    if isinstance(value, Special) and value.kind == "either":
        options = tuple([held(it, owner, name, one) for one in value.fields["options"]])
        return Special("either", options=options)
    return value


def part(owner: Instance, name: str, value: Instance) -> Instance:
    """An object that another one holds: it is cast with it, also where it was built."""
    path = (*owner.path, name)
    between = [
        (root, (*above, name))
        for root, above in owner.also[:6]
        if root.number != PART or root.casts
    ]
    also = (*value.also[:1], (value.root, value.path), *between)
    return Instance(
        value.cls, value.attributes, owner.root, path, value.arguments, value.items, also,
        value.region,
    )  # fmt: skip


def as_weight(it: Interpreter, owner: Instance, value: Tensor) -> Tensor:
    """A parameter or buffer in the dtype of its module's weights."""
    vector, place = weights_of(it, owner)
    made = vector[dtypes.CODE]
    loaded = place is None and bool(made) and not made & ~dtypes.LOW
    if not _is_float(value.dtypes) or (loaded and _stays_wide(value)):
        return value
    cast = tuple(
        [
            w if x & dtypes.FLOATS or x > dtypes.ANY else x
            for w, x in zip(vector, value.dtypes, strict=True)
        ]
    )
    if place is None:  # nobody casts the module: what it was made as
        whole = zip(cast, value.dtypes, vector, strict=True)
        kept = [x if w == dtypes.FLOAT32 and x in NARROW_OR_WIDE else c for c, x, w in whole]
        cast = (*kept[: dtypes.HALF16], *cast[dtypes.HALF16 :])
    assumed = value.assumptions
    assumed |= assumed_of_weights(it, owner)
    return value.but(dtypes=cast, assumptions=assumed) if cast != value.dtypes else value


def _stays_wide(value: Tensor) -> bool:
    """Whether a parameter or buffer is float32 by its own words: what is loaded in half has those in float32,
    and what follows the default dtype in half (measured with transformers 5.24)."""
    return any(
        one.data in ("explicit", "asked") and one.dtypes[dtypes.CODE] == dtypes.FLOAT32
        for one in behind(value, 12)
    )


NARROW_OR_WIDE: Final = (dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.FLOAT64)
"""Dtypes that a parameter has only if the code asks for them."""


def _is_float(vector: Dtypes) -> bool:
    return any(one & dtypes.FLOATS for one in vector)


def _layer_attribute(it: Interpreter, owner: Instance, name: str, node: ast.AST) -> Value | None:
    """An attribute of a layer of torch, or of a class that derives from one."""
    cls = layer_of(it, owner.cls)
    layer = layers.layer(cls)
    if layer is not None and (name in layer.weights or name in layer.buffers):
        vector, _ = weights_of(it, owner)
        assumptions = assumed_of_weights(it, owner)
        return Tensor(
            vector, "weight", (), node, it.module, assumptions=assumptions, flags=PARAMETER,
            data=(cls, name),
        )  # fmt: skip
    if name in owner.arguments:
        return owner.arguments[name]
    return None


def _stored_later(it: Interpreter, owner: Instance, name: str) -> Value | None:
    """An attribute that another method than ``__init__`` stores, or whose items it does."""
    if isinstance(owner.cls, str) or it.building:
        return None
    if owner.root.number == it.number and not owner.root.kept and not it.loops:
        return None  # all that was called of it was followed; in a loop, later rounds may store it
    later = late_stores(owner.cls, ancestry(it, owner.cls))
    filling = later.get(f"{name}[]", []) if is_empty(owner.attributes.get(name)) else []
    if not it.active or any(one in filling for one in it.active):
        filling = []  # what is added there is known
    for method in (*later.get(name, ()), *filling):
        if method.facts.get("storing"):
            continue
        method.facts["storing"] = True
        trace, it.trace = it.trace, []  # it does not run here
        try:
            it.run(method, owner, None, {}, method.node)
        finally:
            method.facts["storing"], it.trace = False, trace
        found = owner.attributes.get(name)
        if found is not None and not is_empty(found):
            return found
    return owner.attributes.get(name)


# weights


class Cast(NamedTuple):
    """A cast of a module: the dtype of weights below a path, and when and where they got it."""

    dtypes: Dtypes
    at: int
    place: Place | None
    assumptions: int = 0


Weights = dict[tuple[Root, tuple[str, ...]], Cast]


HALVES: Final = (dtypes.FLOAT16, dtypes.BFLOAT16)
PART: Final = -1
"""The number of what an ``__init__`` builds, which goes with its object."""


def weights_of(it: Interpreter, owner: Instance) -> tuple[Dtypes, Place | None]:
    """The dtype of an object's weights, and where it was cast last."""
    last = _last_cast(it, owner)
    vector = last.dtypes if last is not None else _as_built(owner)
    if last is None and vector in (dtypes.MADE, dtypes.FOLLOWS) and owner.root in it.building:
        vector = it.program.default_dtype  # who makes it half does so when it is built
    if any(map(_is_loose, owner.path)):
        own = _last_cast(it, owner, loose=True)
        apart = own.dtypes if own is not None else it.program.default_dtype
        vector = dtypes.join(vector, apart)
    return vector, last.place if last is not None else None


def was_cast(it: Interpreter, owner: Instance) -> bool | None:
    """Whether an object was cast to one dtype; False: to one of several.  None: it was not cast."""
    vector, place = weights_of(it, owner)
    one = vector[dtypes.CODE] in (dtypes.FLOAT16, dtypes.BFLOAT16, dtypes.FLOAT32, dtypes.FLOAT64)
    return one if place is not None else None


def assumed_of_weights(it: Interpreter, owner: Instance) -> int:
    """What the dtype of an object's weights rests on."""
    last = _last_cast(it, owner)
    if last is None and owner.root.node is None and owner.root.made is dtypes.FOLLOWS:
        return assume.WEIGHTS
    found = last.assumptions if last is not None else 0
    here = last is not None and last.at > it.began
    whole, *parts = [root for root, _ in ways(owner)]
    out_of_sight = any(
        root.kept and root.number != it.number and root.node is not None
        for root in (whole, *[one for one in parts if one.number != PART])
    )
    if here or not out_of_sight:
        return found
    seen = last is None or last.place is not None
    half = seen and (last.dtypes if last is not None else _as_built(owner))[dtypes.CODE] in HALVES
    return found | (assume.KEPT if half else assume.ELSEWHERE)


Way = tuple[tuple[Root, tuple[str, ...]], ...]
"""Objects that an object is part of, and the paths to it."""


def ways(owner: Instance) -> Way:
    """Where casts of an object are kept: at what holds it, and at where it was built."""
    return ((owner.root, owner.path), *owner.also)


def other_way(
    root: Root, path: tuple[str, ...], known: list[Way], given: list[Way]
) -> tuple[Root, tuple[str, ...]]:
    """A part of an object that a function was called with, where it is called with another one."""
    for before, after in zip(known, given, strict=False):
        for (one, start), (other, new) in zip(before, after, strict=False):
            if one is root and path[: len(start)] == start:
                return other, (*new, *path[len(start) :])
    return root, path


def of_caller(value: Value, known: list[Way], given: list[Way]) -> Value:
    """What a function gives back of the objects that it was called with, where it is called with others."""
    if isinstance(value, Sequence) and value.items is not None:
        return Sequence(
            tuple([of_caller(one, known, given) for one in value.items]), None, value.kind
        )
    if isinstance(value, Table):
        items = {key: of_caller(one, known, given) for key, one in value.items.items()}
        return value.__class__(items, value.element)
    if not isinstance(value, Instance):
        return value
    (root, path), *also = [other_way(one, steps, known, given) for one, steps in ways(value)]
    return Instance(
        value.cls, value.attributes, root, path, value.arguments, None, tuple(also), value.region
    )


OPEN: Final = (dtypes.MADE, dtypes.FOLLOWS, dtypes.V_ANY)
"""Dtypes of what is built without one."""


def _as_built(owner: Instance) -> Dtypes:
    """The dtype of weights that nobody casts."""
    whole = owner.root.made
    made = owner.also[0][0].made if owner.also else whole
    if made in OPEN:  # a model that it is part of may have been loaded in half
        made = next((one.made for one, _ in owner.also if one.made not in OPEN), made)
    if whole is dtypes.FOLLOWS:
        return whole if made in (dtypes.MADE, dtypes.FOLLOWS) else made
    return made if whole is dtypes.MADE and made is not dtypes.FOLLOWS else whole


def _is_loose(step: str) -> bool:
    """Whether a step of a path is into a plain list or dict: what is in it is cast with the whole only if it
    is registered besides."""
    return "." in step


def _last_cast(it: Interpreter, owner: Instance, loose: bool = False) -> Cast | None:
    """The last cast of an object, or of what holds it: here, or by who built and kept it.

    loose: not of what holds the plain list or dict that it is in.
    """
    found: Cast | None = None
    whole = False
    for root, path in ways(owner):
        before = root.casts if root.number != it.number else {}
        if not it.weights and not before:
            continue
        first = max((i + 1 for i, step in enumerate(path) if loose and _is_loose(step)), default=0)
        for length in range(first, len(path) + 1):
            entry = it.weights.get((root, path[:length])) or before.get(path[:length])
            if entry is not None and (found is None or entry.at > found.at):
                found, whole = entry, not length and root is owner.root
    if found is not None and not found.at and _as_built(owner)[0] != dtypes.MADE[0]:
        return None  # a part that was built in half stays so
    parts = owner.root.made is dtypes.FOLLOWS and not whole
    if found is not None and found.at <= it.began and parts:
        # a model that is half as a whole was cast after it was built
        return found._replace(
            dtypes=(*found.dtypes[: dtypes.HALF16], *_as_built(owner)[dtypes.HALF16 :])
        )
    return found


def keep(it: Interpreter, value: Value, depth: int = 3) -> None:
    """An attribute or a global name holds a value: other functions see its weights as they are now."""
    if isinstance(value, Instance):
        _keep_root(it, value.root)
        for root, _ in value.also:
            _keep_root(it, root)
    if not depth:
        return
    for item in _held_in(value):
        if item is not None:
            keep(it, item, depth - 1)


def _held_in(value: Value) -> Iterable[Value | None]:
    if isinstance(value, Instance):
        return (value.items,)
    if isinstance(value, Sequence):
        return value.items or (value.element,)
    if isinstance(value, Table):
        return (*value.items.values(), value.element)
    either = isinstance(value, Special) and value.kind == "either"
    return value.fields["options"] if either else ()  # type: ignore[attr-defined]


def _keep_root(it: Interpreter, root: Root) -> None:
    root.kept = True
    remember_casts(it, root)


def remember_casts(it: Interpreter, root: Root) -> None:
    """What was cast of an object and its parts, for those who see it later."""
    for (one, path), entry in it.weights.items():
        if one is root:
            root.casts[path] = entry


def cast_alike(it: Interpreter, made: Root, like: Root) -> None:
    """An object is built as one was before: what that one cast of itself, this one does.

    When counts: the parts that both share may have been cast before, or after.
    """
    if like.casts:
        it.weights = {**it.weights, **{(made, path): one for path, one in like.casts.items()}}


def copied(it: Interpreter, value: Value, node: ast.AST) -> Value:
    """``copy.deepcopy(model)``: weights of its own, cast as those of the original are now."""
    if not isinstance(value, Instance) or not is_module(it, value.cls):
        return value
    root, now, depth = new_root(_as_built(value), node, it), _last_cast(it, value), len(value.path)
    made = {
        (root, path[depth:]): one
        for (of, path), one in it.weights.items()
        if of is value.root and path[:depth] == value.path
    }
    if now is not None:
        made[root, ()] = now
    it.weights = {**it.weights, **made}
    attributes = dict(value.attributes)
    return Instance(value.cls, attributes, root, (), value.arguments, region=value.region)


def note_casts(casts: Weights) -> None:
    """A function ends that cast something which was kept before: it may have been called, or not."""
    for (root, path), entry in casts.items():
        if root.kept and root.casts.get(path) != entry:
            before = root.casts.get(path)
            vector = before.dtypes if before is not None else root.made
            root.casts[path] = entry._replace(dtypes=dtypes.join(vector, entry.dtypes))


def is_own(it: Interpreter, owner: Instance) -> bool:
    """Whether the function at hand built a layer of torch itself and cast it nowhere: no mode changes that.

    What trains or runs a model builds that as well, and a mode says how it is cast.
    """
    root, function = owner.root, it.function
    if function is None or it.driver or root.made is not dtypes.MADE or root.moved:
        return False
    made: Any = root.node if root.home is it.module else None
    body = function.node
    if not isinstance(made, ast.Call) or not (
        body.lineno <= made.lineno <= (body.end_lineno or 0)
        and all(keyword.arg for keyword in made.keywords)
    ):
        return False
    if not isinstance(owner.cls, str) or _as_built(owner) != dtypes.MADE:
        return False
    return weights_of(it, owner)[1] is None


def of_own_parts(it: Interpreter) -> bool:
    """Whether a module's own code runs: what it casts, or opens a region around, are parts of itself."""
    cls = it.function.cls if it.function is not None else None
    if cls is None or not is_module(it, cls):
        return False
    return find_method(it, cls, "training_step") is None


def of_autograd(it: Interpreter) -> bool:
    """Whether a method of a custom autograd function runs."""
    cls = it.function.cls if it.function is not None else None
    return cls is not None and any(base in FUNCTIONS for base in ancestry(it, cls))


DRIVES: Final = frozenset({
    "backward", "zero_grad", "GradScaler", "manual_backward", "unscale_", "eval",
    "DataLoader", "clip_grad_norm_",
})  # fmt: skip
"""Methods and classes of torch that only code which trains or evaluates a model uses."""
TRAINS: Final = frozenset({"backward", "manual_backward", "zero_grad"})


def drives(it: Interpreter, function: Function) -> bool:
    """Whether a function runs a model, or calls one of its file that does: its float arguments are data."""
    known = function.facts.get("drives")
    if known is None:
        function.facts["drives"] = False  # those that call each other
        used, model = scan(function), function.cls is not None and is_module(it, function.cls)
        others = [] if model else [f for f in function.module.functions if f.name in used.plain]
        direct = not used.names.isdisjoint(TRAINS if model else DRIVES)
        known = function.facts["drives"] = direct or any(drives(it, one) for one in others)
    return bool(known)


def runs_models(it: Interpreter) -> bool:
    """Whether the code at hand trains or evaluates, and so runs models and losses that it is handed."""
    function = it.function
    return it.module.trains() or (function is not None and drives(it, function))


def parameters_of(owner: Value, node: ast.AST, it: Interpreter) -> Special:
    """``module.parameters()``."""
    return Special("parameters", node, it.module, owner=owner)


def as_made(it: Interpreter) -> Dtypes:
    """The dtypes of weights that are made now: the default dtype, half where the model is run in half."""
    default = it.program.default_dtype
    if default == dtypes.V_FLOAT32:
        return dtypes.MADE
    return (*default[: dtypes.HALF16], *dtypes.MADE[dtypes.HALF16 :])


def keep_settings(it: Interpreter, made: Value, keywords: Mapping[str, Value]) -> None:
    """``Trainer(args=...)``: an object of a subclass of the Trainer of ``transformers`` keeps them."""
    if "args" in keywords and isinstance(made, Instance) and is_a(it, made.cls, *HUGGING_FACE):
        made.attributes.setdefault("args", keywords["args"])


def new_root(made: Dtypes, node: ast.AST | None, it: Interpreter) -> Root:
    """An object that is built here."""
    it.clock += 1
    number = PART if it.building else it.number
    return Root(made, node, it.module, number, it.clock)


def merge_weights(a: Weights, b: Weights) -> Weights:
    """The casts of modules after a branch that may have gone either way."""
    if a is b:
        return a
    merged = dict(a)
    for key, entry in b.items():
        other = a.get(key)
        if other is None or other is entry:
            merged[key] = entry if other is not None else _perhaps(entry, key[0])
        else:
            joined = dtypes.join(other.dtypes, entry.dtypes)
            assumptions = other.assumptions | entry.assumptions
            merged[key] = Cast(joined, max(other.at, entry.at), entry.place, assumptions)
    for key, entry in a.items():
        if key not in b:
            merged[key] = _perhaps(entry, key[0])
    return merged


def weights_at_end(it: Interpreter, exits: list[tuple[Value, Weights]], start: int) -> Weights:
    """The casts of modules behind a function that leaves by several returns.

    start: when the function began.  What it built itself is cast as where it is given back.
    """
    if len(exits) < 2:
        return exits[0][1] if exits else it.weights
    merged = exits[0][1]
    for _, weights in exits[1:]:
        merged = merge_weights(merged, weights)
    given = [(one, weights) for value, weights in exits for one in _given_back(value)]
    merged = dict(merged)
    for value, weights in given:
        merged |= {
            key: one for key, one in weights.items() if key[0] is value.root and one.at > start
        }
    for value, _ in given:
        ways = [(one, casts) for one, casts in given if one.cls == value.cls]
        found = value.root.born > start and [_weights_in(it, *way) for way in ways]
        if found and any(one != found[0] for one in found):
            it.clock += 1
            joined = functools.reduce(dtypes.join, found)
            merged[value.root, value.path] = Cast(joined, it.clock, weights_of(it, value)[1])
    return merged


def _given_back(value: Value) -> list[Instance]:
    items = value.items or () if isinstance(value, Sequence) else (value,)
    return [one for one in items if isinstance(one, Instance)]


def _weights_in(it: Interpreter, value: Instance, weights: Weights) -> Dtypes:
    """The dtype of an object's weights after some casts."""
    here, it.weights = it.weights, weights
    found, _ = weights_of(it, value)
    it.weights = here
    return found


def _perhaps(entry: Cast, root: Root) -> Cast:
    """A cast that one of two branches makes."""
    return entry._replace(dtypes=dtypes.join(entry.dtypes, root.made))


def as_before(old: Value, new: Value) -> Value:
    """What was changed in place: a parameter or buffer stays one, and moves with its module.

    Training takes a parameter anywhere that it was thought to go before.
    """
    if not isinstance(old, Tensor) or not isinstance(new, Tensor) or not old.flags & PARAMETER:
        return new
    flags = new.flags | old.flags & (PARAMETER | BUFFER | KEPT)
    if old.flags & BUFFER:
        return new.but(flags=flags)
    return new.but(flags=flags, lo=min(old.lo, new.lo), hi=max(old.hi, new.hi))
