"""Calls: arguments to parameters, summaries of functions by context, and what can be called.

A function is interpreted once for each *context*: the facts of its arguments, the region around the
call, and the dtype of the weights it uses.  The result (a summary) is kept with the function; recursion
is solved by iterating from "never returns".
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any, Final

from precision_lint.dataflow import alike, casts, declared, objects, regions
from precision_lint.dataflow.contexts import Key, Summary
from precision_lint.dataflow.creation import of_array
from precision_lint.dataflow.graph import may_be_number
from precision_lint.dataflow.interpreter import (
    OPERATIONS,
    TOLD,
    Call,
    Environment,
    Interpreter,
    Region,
    supposed,
)
from precision_lint.dataflow.objects import drives
from precision_lint.dataflow.parameters import is_outside, unseen, unseen_object
from precision_lint.dataflow.protocol import Step, hides_steps, note, noted, tells
from precision_lint.dataflow.renaming import renamed
from precision_lint.domains import Spread, dtypes
from precision_lint.domains import assumptions as assume
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import facts, join, join_exits, unknown
from precision_lint.domains.values import (
    BOTTOM,
    NONE,
    Array,
    ClassValue,
    Closure,
    DtypeValue,
    Instance,
    Lazy,
    Reference,
    RegionValue,
    Scalar,
    Sequence,
    Special,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
    are_counts,
)
from precision_lint.syntax.program import Function, every, scan, spelled

CONTEXTS: Final = 12
"""Contexts of one function that are told apart; further calls give something unknown."""
DEPTH: Final = 60
"""Calls inside each other that are followed."""
UNSEEN: Final = "unseen"
"""The context of a call that nobody saw."""
REPEATS: Final = 4
"""Rounds in which a recursive function's result may still change."""

ENTRY: Final = Region((0, dtypes.FLOAT16, dtypes.BFLOAT16, 0, 0), "cuda", assume.ENTRY)
"""The region of a function of a model that nobody was seen to call."""


def run(
    it: Interpreter,
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
    node: ast.AST,
    outer: Environment | None = None,
    trains: bool = False,
) -> Value:
    """Interpret a function in the context of a call, or look up what was found before."""
    _note_gives(it, function, node)
    key_of = Key(it)
    region, driver, me, told = it.region, False, owner, list[tuple[Symbol, Symbol]]()
    unpacked, it.unpacked = it.unpacked and arguments is not None, False
    if arguments is None:
        leads = drives(it, function) or is_outside(it, function)
        driver = trains or leads or regions.opens_below(function)
        region = regions_outside(it) if driver else entry(it)
        me = _object_of(it, function) if owner is None else owner
        key: Any = (UNSEEN, key_of.of(me), id(outer) if outer else 0)
    else:
        arguments = [_supposed(it, x, told) for x in _each(function, owner, arguments, keywords)]
        keywords = {name: _supposed(it, one, told) for name, one in keywords.items()}
        key = (
            key_of.of(owner),
            tuple([key_of.of(a) for a in arguments]),
            tuple([(k, key_of.of(v)) for k, v in keywords.items()]),
            region.dtypes, region.device, region.disabled, region.assumptions, region.holds, it.no_grad,
            id(outer) if outer else 0, it.script, unpacked, it.guessed, it.wanted,
        )  # fmt: skip
    summary = function.contexts.get(key)
    if summary is None:
        if arguments is not None and not _matters(it, function, [*arguments, *keywords.values()]):
            return _given_up(it, function, me, node)
        if _has_enough(function, outer) or len(it.active) >= DEPTH:
            return _as_alike(it, function, me, arguments, keywords, node)
        summary = function.contexts[key] = Summary(key_of, unpacked, outer)
        _keep_alike(it, function, me, arguments, keywords, summary)
        _solve(it, function, me, arguments, keywords, node, outer, region, driver, summary)
    elif summary.running:
        summary.recursive = True
    else:
        _replay(it, summary, key_of, node)
    if arguments is not None:
        _seen_called(it, function)
    _pass_on_uses(summary, key_of, told)
    given = parameters_given(function, owner, arguments, keywords)
    if tells(summary.trace):
        symbols = tuple(zip(summary.symbols, key_of.symbols, strict=False))
        of, within = (Closure(function, me),), (summary.trace,)
        ways = (summary.ways, key_of.ways) if summary.ways != key_of.ways else None
        it.trace.append(
            Step("call", node, it.place(node), of, within, symbols, tuple(given.items()), ways)
        )
    if summary.result is None:
        return BOTTOM if summary.running else unknown()
    values = (*(arguments or ()), *keywords.values())
    opaque = any(isinstance(one, (Unknown, Sequence, Table)) for one in values)
    return _returned(it, summary, key_of, given, function, node, opaque)


def _each(
    function: Function, owner: Value | None, arguments: list[Value], keywords: dict[str, Value]
) -> list[Value]:
    """The arguments, one for each parameter that has to be given where one stands for several."""
    if not isinstance(arguments, Spread):
        return arguments
    bound = owner is not None and function.kind != "static"
    required = function.parameters[
        bound : len(function.parameters) - len(function.node.args.defaults)
    ]
    return arguments.filled(sum(one.arg not in keywords for one in required))


def _has_enough(function: Function, outer: Environment | None) -> bool:
    """Whether no more contexts of a function are told apart: each object is one of its constructor, and
    each thing that a decorator wraps has a wrapper of its own."""
    found = len(function.contexts)
    short = function.name == "__init__" and scan(function).statements <= 2 * SMALL
    if outer is None or found < CONTEXTS:
        return found >= (CONTEXTS * 4 if short else CONTEXTS)
    own = sum(id(outer) in key for key in function.contexts)
    return own >= CONTEXTS or found >= CONTEXTS * 8


def _note_gives(it: Interpreter, function: Function, node: ast.AST) -> None:
    """Keep with a call without arguments what it reads, where it does nothing else: a test of it comes out
    alike until that changes."""
    if not isinstance(node, ast.Call) or node.args or node.keywords:
        return
    known: str | None = function.facts.get("gives")
    if known is None:
        body = [one for one in function.body if not _is_text(one)]
        value = body[0].value if len(body) == 1 and isinstance(body[0], ast.Return) else None
        reads = value is not None and all(isinstance(one, READING) for one in every(value))
        known = function.facts["gives"] = spelled(value) if value is not None and reads else ""
    before = getattr(node, "gives", known)
    node.gives = known if before == known else ""  # type: ignore[attr-defined]
    it.program.asking.append(node)


def _is_text(node: ast.stmt) -> bool:
    """Whether a statement is a docstring, or another constant."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


READING: Final = (ast.Attribute, ast.Name, ast.BoolOp, ast.UnaryOp, ast.Compare, ast.Constant)


def _seen_called(it: Interpreter, function: Function) -> None:
    """Note that a function has a caller; who calls itself has none in that."""
    name = function.module.path, function.qualname
    if not it.script and not it.guessed and it.root[0] != "" and it.root != name:
        it.program.called.add(name)


def _outline(
    it: Interpreter, owner: Value | None, arguments: list[Value], keywords: dict[str, Value]
) -> Any:
    """What a context has in common with others like it."""
    given = tuple([alike.outline(it, one) for one in arguments])
    named = tuple([(name, alike.outline(it, one)) for name, one in keywords.items()])
    region = it.region.dtypes, it.region.device, it.region.disabled
    return alike.outline(it, owner), given, named, region


def _keep_alike(
    it: Interpreter,
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
    summary: Summary,
) -> None:
    """Keep a summary, as long as its file is analysed, for calls that differ in ranges and numbers alone."""
    known: dict[Any, Summary] = function.facts.setdefault("alike", {})
    it.program.touched += (function.contexts, known)
    like = UNSEEN if arguments is None else _outline(it, owner, arguments, keywords)
    known.setdefault(like, summary)


def _as_alike(
    it: Interpreter,
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """The result of a call in one context too many: in kinds and dtypes that of one like it."""
    it.program.count("contexts")
    it.unseen_calls += 1
    if hides_steps(function):
        note(it, "unfollowed-call", node)
    known = function.facts.get("alike")
    if known and arguments is not None:
        values = [*arguments, *keywords.values()]
        summary = known.get(_outline(it, owner, arguments, keywords))
        if summary is None and alike.follow(values):
            summary = known.get(UNSEEN)
        if summary is not None and summary.result is not None and not summary.running:
            behind = 0
            for one in values:
                behind |= getattr(one, "assumptions", 0)
            found = alike.outlined(it, summary.result, node, behind)
            if found is not None:
                return found
    return _given_up(it, function, owner, node)


def _object_of(it: Interpreter, function: Function) -> Value | None:
    """What a method is of if no call of it was seen; None: it is no method."""
    if function.cls is not None and function.kind == "class":
        return ClassValue(function.cls)
    if function.cls is None or function.kind not in ("method", "property"):
        return None
    return unseen_object(it, function.cls) if function.parameters else None


def _pass_on_uses(summary: Summary, key: Key, told: list[tuple[Symbol, Symbol]]) -> None:
    """What a callee uses its unknown arguments as, it uses the caller's objects as."""
    for inner, outer in zip(summary.symbols, key.symbols, strict=False):
        used, known = summary.objects.get(inner), key.objects.get(outer)
        if used is not None and known is not None:
            known.uses |= used.uses & ~(Symbol.ASKED | Symbol.MEMBER | Symbol.ENTRY)
    for first, like in told:
        first.uses |= like.uses


def _supposed(it: Interpreter, value: Value, told: list[tuple[Symbol, Symbol]]) -> Value:
    """An argument of which nothing is known: like one of a caller that nobody saw."""
    kind = value.__class__
    if kind is not Tensor and kind is not Unknown:
        return value
    vector = supposed(it)
    if kind is Tensor:
        return _supposed_floats(value, vector)
    symbol: Symbol = value.symbol  # type: ignore[attr-defined]
    if symbol.tensor is not None or not _is_open(symbol.vector, symbol.assumptions, vector):
        return value
    key = "supposed", vector
    made = symbol.attributes.get(key)
    if not isinstance(made, Unknown):
        own = Symbol(symbol.label, vector, assume.INPUT, symbol.node, symbol.home)
        own.number, own.uses, own.attributes = symbol.number, symbol.uses, symbol.attributes
        made = it.linked(symbol, key, Unknown(own))
    told.append((symbol, made.symbol))
    return made


def _is_open(known: Dtypes, assumptions: int, vector: Dtypes) -> bool:
    """Whether nothing is known of a dtype, or what is to be supposed was assumed of a call."""
    if assumptions & ~(assume.CALL | assume.INPUT | assume.NETWORK):
        return False
    return known[1:] == dtypes.V_ANY[1:] or (
        bool(assumptions & assume.CALL) and known[1:] == vector[1:]
    )


def _supposed_floats(value: Any, vector: Dtypes) -> Value:
    """The same of what was computed from something of which nothing is known."""
    if not _is_open(value.dtypes, value.assumptions, vector) or of_array(value):
        return value  # type: ignore[no-any-return]
    return value.but(  # type: ignore[no-any-return]
        dtypes=(value.dtypes[0], *vector[1:]), assumptions=assume.INPUT
    )


SMALL: Final = 6
"""Statements of a function of another file that is followed whatever it does."""
CARRIERS: Final = (Tensor, Array, DtypeValue, RegionValue, Special, Closure)


def _matters(it: Interpreter, function: Function, given: list[Value]) -> bool:
    """Whether a call may have to do with tensors: it passes some, or the callee mentions torch or NumPy.

    One that passes objects may change them, or hand them to what has to do with tensors.
    """
    if function.module.path == it.root[0] or scan(function).statements <= SMALL:
        return True
    if any(isinstance(value, CARRIERS) for value in given):
        return True
    if any(isinstance(value, Instance) for value in given):
        return scan(function).stores or _reaches_torch(function, set())
    return _mentions_torch(function)


def _mentions_torch(function: Function) -> bool:
    known = function.facts.get("torch")
    if known is None:
        names = scan(function).names
        variables = [function.module.variables.get(name) for name in names]
        known = function.facts["torch"] = not names.isdisjoint(TENSOR_METHODS) or any(
            isinstance(value, Reference) and value.name.startswith(("torch", "numpy"))
            for value in variables
        )
    return bool(known)


def _reaches_torch(function: Function, seen: set[Function]) -> bool:
    """Whether a function mentions torch, or what it calls by name does; of other files, that is open."""
    if _mentions_torch(function):
        return True
    seen.add(function)
    for name in scan(function).names:
        value = function.module.variables.get(name)
        if isinstance(value, (Lazy, ClassValue)):
            return True
        if isinstance(value, Closure) and value.function not in seen:
            if _reaches_torch(value.function, seen):
                return True
    return False


TENSOR_METHODS: Final = frozenset({
    "half", "bfloat16", "softmax", "log_softmax", "sigmoid", "matmul", "bmm", "backward",
    "masked_fill", "unscale_", "zero_grad", "autocast", "clamp", "rsqrt", "type_as", "new_zeros",
    "float16", "einsum", "register_buffer", "float", "to", "grad", "named_parameters", "state_dict",
})  # fmt: skip
"""Names that only code about tensors mentions."""


def entry(it: Interpreter) -> Region:
    """The region around a function that nobody was seen to call, on the device that is stated first."""
    devices = it.program.devices
    return ENTRY._replace(device=devices[0]) if devices else ENTRY


def regions_outside(it: Interpreter) -> Region:
    return Region(dtypes.V_OFF, "cuda", 0)


def _given_up(it: Interpreter, function: Function, owner: Value | None, node: ast.AST) -> Value:
    """The result of a call that is not followed."""
    result: Value = it.unknown(function.name, dtypes.V_ANY, assume.CALL)
    if function.name == "forward" and isinstance(owner, Instance):
        if objects.is_module(it, owner.cls):
            weights, _ = objects.weights_of(it, owner)
            result = OPERATIONS["network"](it, function.name, weights, [], node)
    return _as_declared(it, function, result)


def _as_declared(it: Interpreter, function: Function, value: Value) -> Value:
    """A result in the dtype that the function's annotation states."""
    said = declared.of_function(function).get("return")
    return value if said is None else declared.as_annotated(it, function.module, value, said)


def _replay(it: Interpreter, summary: Summary, key: Key, node: ast.AST) -> None:
    """Repeat what a function did to modules, and what it reported, for another caller."""
    for hazard in summary.at_call:
        it.report_at_call(hazard, Call(it.place(node), it.function, it.calls))
    if summary.emitted:
        for variant in summary.emitted:
            if variant.root != it.root:
                variant.also.add(it.root)
                variant.of_module = variant.of_module or it.of_module
        it.emitted += summary.emitted
    if summary.weights:
        it.weights = {**it.weights, **_cast_again(it, summary, key)}


def _cast_again(it: Interpreter, summary: Summary, key: Key) -> objects.Weights:
    """The casts that a function makes, in its order: of a whole and a part, the later one counts."""
    moved: objects.Weights = {}
    for (root, path), one in sorted(summary.weights.items(), key=lambda entry: entry[1].at):
        it.clock += 1
        at = it.clock if one.at else 0  # what no cast has touched
        moved[objects.other_way(root, path, summary.ways, key.ways)] = one._replace(at=at)
    return moved


def _solve(
    it: Interpreter,
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
    node: ast.AST,
    outer: Environment | None,
    region: Region,
    driver: bool,
    summary: Summary,
) -> None:
    """Interpret a function's body until its result no longer changes."""
    before = it.weights
    it.active.append(function)
    calls = it.calls
    if arguments is not None:
        it.calls = Call(it.place(node), it.function, calls)
    try:
        for _ in range(REPEATS):
            summary.recursive = False
            old = summary.result
            _interpret(it, function, owner, arguments, keywords, outer, region, driver, summary)
            settled = old is not None and summary.result is not None
            if not summary.recursive or (settled and facts(old) == facts(summary.result)):
                break
    finally:
        it.calls = calls
        it.active.pop()
        summary.running = False
        for leaf in summary.leaves:
            _let_go(leaf)
    summary.weights = {k: v for k, v in it.weights.items() if before.get(k) is not v}
    if not it.building:
        objects.note_casts(summary.weights)


def _interpret(
    it: Interpreter,
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
    outer: Environment | None,
    region: Region,
    driver: bool,
    summary: Summary,
) -> None:
    seen = (owner, *(arguments or ()), *keywords.values())
    if it.stored and (outer is not None or any(isinstance(one, Instance) for one in seen)):
        objects.commit(it, it.variables, bool(it.building))  # what was stored so far is seen here
    frame = it.save()
    building = function.name in ("__init__", "__post_init__")
    built = [owner.root] if building and isinstance(owner, Instance) else []
    it.module, it.function, it.outer = function.module, function, outer
    it.region, it.loop, it.depth, it.driver = region, None, 0, driver
    it.returned, it.yielded, it.trace, it.missing = [], [], [], False
    leaves, emitted, at_call = it.leaves, it.emitted, it.at_call
    it.leaves, it.emitted, it.at_call = [], [], []
    start = it.clock = it.clock + 1
    if arguments is None:
        it.no_grad = False
    it.building += built
    stored: Environment = {}
    try:
        known = _told(it) if outer is None else {**_told(it), **_seen_around(function, outer)}
        it.variables = bind(it, function, owner, arguments, keywords, summary.unpacked)
        it.variables = {**known, **it.variables}
        ends = _body(it, function, start)
        stored = objects.commit(it, it.variables, bool(it.building))
        if built:
            objects.remember_casts(it, built[0])
        last = [] if ends else [(unknown() if _is_stub(function) else NONE, it.live)]
        for value, *_ in it.returned:
            casts.handed_out(value)
        result = join_exits([*last, *[(one[0], one[2]) for one in it.returned]], frame.live)
        if function.kind != "lambda" and scan(function).generator:
            result = _generator(it, it.yielded, region)
        elif result is not None and result is not BOTTOM:
            result = _as_declared(it, function, result)
        summary.result = None if result is BOTTOM else result
        summary.trace = it.trace
        summary.leaves = it.leaves
        summary.emitted = list({id(one): one for one in it.emitted}.values())
    finally:
        it.leaves = leaves
        it.emitted = emitted + summary.emitted
        summary.at_call, it.at_call = it.at_call, at_call
        del it.building[len(it.building) - len(built) :]
        told = _told(it)
        it.restore(frame)
        it.variables.update(told)
        on = bool(it.building)  # a constructor's helper may call another one
        it.variables.update({key: one for key, one in stored.items() if on or key in it.variables})


def _body(it: Interpreter, function: Function, start: int) -> bool:
    """Interpret what a function does; True: no path reaches its end."""
    body = function.node
    if isinstance(body, ast.Lambda):
        it.returned.append((it.expr(body.body), it.weights, it.live))
        return True
    regions.decorated(it, body.decorator_list)
    ends = it.block(body.body)
    _nested(it, function, body)
    exits = it.returned if ends else [*it.returned, (NONE, it.weights, it.live)]
    it.weights = objects.weights_at_end(it, [one[:2] for one in exits], start)
    return ends


def _seen_around(function: Function, outer: Environment) -> Environment:
    """The variables of those around that a function reads, and does not set."""
    free: frozenset[str] | None = function.facts.get("free")
    if free is None:
        names = [one for one in every(function.node) if isinstance(one, ast.Name)]
        stored = {one.id for one in names if isinstance(one.ctx, ast.Store)}
        free = function.facts["free"] = frozenset({one.id for one in names} - stored)
    return {name: outer[name] for name in free if name in outer}


def _told(it: Interpreter) -> Environment:
    """The facts at hand that callers and callees learn of each other."""
    return {k: v for k, v in it.variables.items() if k.__class__ is tuple and k[0] == TOLD}


def _is_stub(function: Function) -> bool:
    """Whether a method does nothing, so that classes that inherit it do."""
    return (
        function.cls is not None
        and function.kind != "function"
        and all(
            isinstance(one, ast.Pass)
            or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            for one in function.body
        )
    )


def _generator(it: Interpreter, yielded: list[tuple[Value, Region]], around: Region) -> Value:
    """What a generator function gives: its elements, and the region that it opens around its ``yield``."""
    element: Value | None = None
    for value, _ in yielded:
        element = value if element is None else join(element, value)
    region = regions.at_yields([region for _, region in yielded])
    if region is around:
        region = None  # whoever enters it stays in the region that is there
    return Special("generator", None, it.module, element=element, region=region)


def _nested(it: Interpreter, function: Function, node: ast.AST) -> None:
    """Functions that were defined inside and that nobody called there, which a context's key tells.

    What stands for a function that is decorated runs where that is called.
    """
    trace, it.trace = it.trace, []
    around = it.outer or {}
    for name, value in list(it.variables.items()):
        if around.get(name) is value or not isinstance(value, Closure):
            continue
        if value.outer is not None and value.owner is None:
            inner = value.function
            called = any(id(value.outer) in key for key in inner.contexts)
            wraps = any(isinstance(one, Closure) and one.bare for one in value.outer.values())
            if not called and not wraps and inner.module is it.module and inner.kind != "lambda":
                it.run(inner, None, None, {}, inner.node, value.outer)
    inside, it.trace = it.trace, []
    noted(it, "apart", node, inside)
    it.trace += trace


def _named(
    it: Interpreter,
    function: Function,
    parameter: ast.arg,
    default: ast.expr | None,
    unsaid: bool,
    left: dict[str, Value],
) -> Value:
    """The value of a parameter that no position gives: by its name, or its default.

    unsaid: a caller that nobody saw, or keywords that nobody knows, may give it.
    """
    if parameter.arg in left:
        return passed(it, left.pop(parameter.arg), parameter.arg, default)
    return unseen(it, function, parameter, default) if unsaid else _absent(it, function, default)


def bind(
    it: Interpreter,
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
    unpacked: bool = False,
) -> Environment:
    """The variables at a function's start."""
    unsaid = arguments is None or unpacked
    node = function.node.args
    parameters = function.parameters
    variables: Environment = {}
    start = 0
    if owner is not None and parameters and function.kind != "static":
        variables[parameters[0].arg] = owner
        start = 1
    defaults: list[ast.expr | None] = [None] * (len(parameters) - len(node.defaults))
    defaults += node.defaults
    left = dict(keywords)
    for index in range(start, len(parameters)):
        parameter, default, name = parameters[index], defaults[index], parameters[index].arg
        if arguments is not None and index - start < len(arguments):
            variables[name] = passed(it, arguments[index - start], name, default)
        else:
            variables[name] = _named(it, function, parameter, default, unsaid, left)
    for parameter, default in zip(node.kwonlyargs, node.kw_defaults, strict=True):
        variables[parameter.arg] = _named(it, function, parameter, default, unsaid, left)
    if node.vararg is not None:
        rest = None if arguments is None else tuple(arguments[max(len(parameters) - start, 0) :])
        element = it.unknown(node.vararg.arg, dtypes.INPUTS, assume.INPUT) if rest is None else None
        if element is not None:
            element.symbol.uses |= Symbol.MEMBER
        variables[node.vararg.arg] = Sequence(rest, element, "tuple")
    if node.kwarg is not None:
        element = it.unknown(node.kwarg.arg, dtypes.V_ANY) if unsaid else None
        if element is not None:
            element.symbol.uses |= Symbol.MEMBER
        variables[node.kwarg.arg] = Table(left, element)
    for name, said in declared.of_function(function).items():
        if name != "return":
            variables[name] = declared.as_annotated(it, function.module, variables[name], said)
    return variables


def _absent(it: Interpreter, function: Function, default: ast.expr | None) -> Value:
    """A parameter that a call does not give."""
    return unknown() if default is None else it.evaluate_in(function.module, default)


def passed(it: Interpreter, value: Value, name: str, default: ast.expr | None) -> Value:
    """An argument, as the callee sees it."""
    none = default is not None and declared.is_none(default)
    if none and isinstance(value, Special) and value.kind == "scaler":
        value.fields.setdefault("optional in", set()).add(it.function)
    if not isinstance(value, Tensor):
        return value
    leaf = value.but(op="argument", operands=(value,), data=name)
    it.leaves.append(leaf)
    return leaf


def _let_go(leaf: Tensor) -> None:
    """What is kept speaks of parameters, not of one caller's values, but for what may be a number."""
    if leaf.symbol is None and may_be_number(leaf):
        symbol = Symbol(leaf.data, leaf.dtypes, leaf.assumptions)
        symbol.uses = Symbol.NUMBER if are_counts(leaf) else 0
        leaf.symbol = symbol
    leaf.operands = ()


def parameters_given(
    function: Function,
    owner: Value | None,
    arguments: list[Value] | None,
    keywords: dict[str, Value],
) -> dict[str, Value]:
    """Tensors that a call passes, by parameter."""
    given: dict[str, Value] = {k: v for k, v in keywords.items() if v.__class__ is Tensor}
    if arguments:
        skipped = 1 if owner is not None and function.kind != "static" else 0
        for parameter, value in zip(function.parameters[skipped:], arguments, strict=False):
            if value.__class__ is Tensor:
                given[parameter.arg] = value
    return given


LEVELS: Final = 6
"""Operations between a result and a parameter that a caller can see through."""


def instantiated(value: Any, given: dict[str, Value], depth: int = LEVELS) -> Any:
    """A result with the caller's values in the place of the parameters it is made of."""
    if value.__class__ is not Tensor or not depth:
        return value
    if value.op == "argument" and not value.operands:
        actual = given.get(value.data)
        return value.but(operands=(actual,)) if actual is not None else value
    operands = value.operands
    made = tuple([instantiated(one, given, depth - 1) for one in operands])
    if all(x is y for x, y in zip(made, operands, strict=True)):
        return value
    return value.but(operands=made)


def _returned(
    it: Interpreter,
    summary: Summary,
    key: Key,
    given: dict[str, Value],
    function: Function,
    node: ast.AST,
    opaque: bool,
) -> Value:
    """A summary's result, in terms of the caller's values; ``opaque``: some of them have no terms."""
    result = summary.result
    assert result is not None
    if key.symbols != summary.symbols:
        names = dict(zip(summary.symbols, key.symbols, strict=False))
        result = renamed(result, names)
    if key.ways != summary.ways:
        result = objects.of_caller(result, summary.ways, key.ways)
    return _seen(it, result, given, function, node, opaque)


def _seen(
    it: Interpreter,
    result: Value,
    given: dict[str, Value],
    function: Function,
    node: ast.AST,
    opaque: bool,
) -> Value:
    if isinstance(result, Tensor):
        inner = instantiated(result, given) if given else result
        operands = (inner, Scalar(None, "none")) if opaque else (inner,)  # one for each time
        return result.but(op="call", operands=operands, node=node, home=it.module, data=function)
    if isinstance(result, Sequence) and result.items is not None:
        items = tuple([_seen(it, item, given, function, node, opaque) for item in result.items])
        return Sequence(items, None, result.kind)
    if isinstance(result, Table):
        table = {
            key: _seen(it, item, given, function, node, opaque)
            for key, item in result.items.items()
        }
        return result.__class__(table, result.element)
    return result


# what can be called

Callee = Callable[[Interpreter, Any, list[Value], dict[str, Value], ast.AST], Value]
CALLEES: Final[dict[type, Callee]] = {}


def call(
    it: Interpreter,
    callee: Value,
    arguments: list[Value],
    keywords: dict[str, Value],
    node: ast.AST,
) -> Value:
    """What calling a value gives."""
    handler = CALLEES.get(callee.__class__)
    if handler is None:
        return unknown()
    return handler(it, callee, arguments, keywords, node)


OPERATIONS["call"] = call
CALLEES[Reference] = lambda it, callee, a, k, n: OPERATIONS["library"](it, callee.name, a, k, n)
CALLEES[RegionValue] = lambda it, callee, a, k, n: a[0] if a else unknown()
