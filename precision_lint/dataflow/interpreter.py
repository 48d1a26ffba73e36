"""The state of the abstract interpreter, and how it looks up what a node means.

Handlers of expressions and statements live in the other modules of this package; they register
themselves here, so that these modules import each other in one direction only.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from precision_lint.dataflow.graph import floats_behind
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import (
    NULL,
    facts,
    is_new,
    join,
    join_modes,
    perhaps_cast,
    unknown,
    widened,
)
from precision_lint.domains.values import (
    INF,
    DtypeValue,
    Reference,
    RegionValue,
    Root,
    Scalar,
    Special,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.events import Event, Link, Place, Sign, Variant, differing
from precision_lint.events import Function as Named
from precision_lint.syntax.program import Class, Function, Module, every, spelled

Environment = dict[Any, Value]
Expression = Callable[["Interpreter", Any], Value]
Statement = Callable[["Interpreter", Any], bool]

EXPRESSIONS: Final[dict[type, Expression]] = {}
STATEMENTS: Final[dict[type, Statement]] = {}
OPERATIONS: Final[dict[str, Callable[..., Any]]] = {}
"""What other modules do for the interpreter: ``call``, ``run``, ``load``."""
TOLD: Final = "told"
"""What names of facts begin with that functions and those that they call tell each other."""
ROUNDS: Final = 8
"""Iterations of a loop after which what still changes is unknown."""


class Budget(Exception):
    """A function needs more steps than it may take."""


class Region(NamedTuple):
    """Autocast's state: by mode the dtypes that it casts to (0: off).

    sites: the places that opened it, innermost first.  assumptions: what it rests on.
    explicit: opened by code, not assumed at the entry.  loop: number of loops around where it opened.
    """

    dtypes: Dtypes
    device: str
    assumptions: int
    sites: tuple[Place, ...] = ()
    explicit: bool = False
    cache: bool = True
    loop: int = -1
    outer: Region | None = None
    """The state around it."""
    disabled: bool = False
    """``enabled=False`` inside a region that is on."""
    guessed: bool = False
    """The device is only known at run time."""
    mark: int = 0
    """Flags of what is computed inside (``IN_FLOAT16``, ``IN_BFLOAT16``)."""
    holds: tuple[tuple[Value, bool], ...] = ()
    """Flags that are known wherever it is on, and their truth."""


Halved = tuple[Sign, Any, frozenset[Named]]
"""Where a model is cast, that model, and the classes that it was made of."""


class Asked(NamedTuple):
    """A test of a branch, without ``not``; its tree as text, the names in it, and its outcome.

    value: what it came to, in a function or a module.
    """

    test: ast.expr
    key: str
    names: frozenset[str]
    holds: bool
    value: Value | None = None
    scope: Any = None


class Decision(NamedTuple):
    """What decided the dtype of a join: the test, and the tensor in either arm."""

    asked: Asked
    first: Tensor
    second: Tensor


Read = tuple[Value, ast.Attribute, "Function | None"]
"""Of what an attribute was read last, where and in which function."""


class Call(NamedTuple):
    """A link of the chain of calls that led here."""

    place: Place
    function: Function | None
    outer: Call | None


class Loop:
    """States that leave a loop's body early."""

    __slots__ = ("breaks", "continues")

    def __init__(self) -> None:
        self.breaks: list[Environment] = []
        self.continues: list[Environment] = []


class Nest(NamedTuple):
    """A loop that the interpreter is in, here or in a function that led here; what it goes over."""

    node: ast.AST
    home: Module
    function: Function | None
    source: Value | None


class Frame(NamedTuple):
    """What a call saves of its caller's state."""

    module: Module
    function: Function | None
    variables: Environment
    outer: Environment | None
    region: Region
    returned: list[tuple[Value, Any, int]]
    """What the returns give, and the casts of modules there."""
    yielded: list[tuple[Value, Region]]
    loop: Loop | None
    depth: int
    no_grad: bool
    driver: bool
    trace: list[Any]
    missing: bool
    live: int


class Interpreter:
    """Interprets functions abstractly; one for all files of a run."""

    guessed = 0
    """The assumption that what is interpreted is a method of the model that is called."""
    unseen_calls = 0
    """How often something was called that nobody saw."""

    def __init__(self, program: Any) -> None:
        self.program = program
        self.module: Module = Module("", ast.Module([], []))
        self.function: Function | None = None
        self.variables: Environment = {}
        self.outer: Environment | None = None
        self.region = OUTSIDE
        self.returned: list[tuple[Value, Any, int]] = []
        self.yielded: list[tuple[Value, Region]] = []
        self.loop: Loop | None = None
        self.depth = self.loops = 0  # loops around, in this function and in all that led here
        self.nest: list[Nest] = []  # the latter, but for those over a few known items
        self.no_grad = False
        self.backward: Class | None = None
        """The ``autograd.Function`` whose backward is being interpreted."""
        self.caught = self.compatible = self.wanted = 0
        """Blocks around: whose errors are expected, that ask for a version of torch, that have to fail."""
        self.unpacked = False  # whether the call at hand has keywords that are not known
        self.branches: list[Asked] = []
        """Tests of the branches around, outermost first, with the outcome that leads here."""
        self.past: list[Asked] = []  # the same of those that only this outcome leads past
        self.tested: Value | None = None  # the value of the test that was asked last
        self.choices: dict[Any, dict[Any, Any]] = {}  # what its branches left, by test
        self.notes: dict[Any, Any] = {}  # what hazards remember of what came before
        self.quiet: dict[Any, Any] = {}  # models that were called without gradient, by region
        self.driver = False  # whether float arguments of this function are data, not activations
        self.trace: list[Any] = []
        """What was done to gradients, optimizers and scalers (``typestate``)."""
        self.missing = False  # whether a name was asked for that has no value yet
        self.live = dtypes.ALL_MODES  # modes in which this path can be taken
        self.statement_value: ast.AST | None = None
        """The expression whose value the statement at hand drops."""
        self.calls: Call | None = None
        self.active: list[Any] = []
        """Contexts that are being interpreted, outermost first."""
        self.weights: dict[tuple[Root, tuple[str, ...]], Any] = {}
        """Casts of modules in the course of this analysis (``objects.Cast``)."""
        self.clock = self.began = self.number = 0
        """Time, which casts move on; when this analysis (a function, a top level) began; its number."""
        self.root = ("", "")
        self.script = self.of_module = False
        self.steps = self.limit = 0
        self.events: dict[tuple[Any, ...], Event] = {}
        self.kinds: set[str] = set()  # of those that were reported
        self.signs: set[Sign] = set()
        self.pending: list[tuple[Variant, list[Symbol], int]] = []
        self.halved: list[Halved] = []
        self.stored: dict[tuple[str, int, str], dict[Any, Value]] = {}
        """Attributes of objects that methods store, by the variable that holds the value."""
        self.changes: dict[int, int] = {}  # how often an object's attributes changed, by their id
        self.kin: list[tuple[Symbol, Any]] = []  # see ``linked``
        self.reads: dict[int, Read] = {}  # see ``bound_methods``
        self.leaves: list[Tensor] = []
        """Parameters of the function at hand that a call gave a tensor."""
        self.emitted: list[Variant] = []
        self.at_call: list[Any] = []
        """What was reported in the function at hand, and in what it calls; and what of its callers."""
        self.building: list[Root] = []  # objects whose ``__init__`` is being interpreted

    # state

    def save(self) -> Frame:
        return Frame(
            self.module, self.function, self.variables, self.outer, self.region, self.returned,
            self.yielded, self.loop, self.depth, self.no_grad, self.driver, self.trace,
            self.missing, self.live,
        )  # fmt: skip

    def restore(self, frame: Frame) -> None:
        (
            self.module, self.function, self.variables, self.outer, self.region, self.returned,
            self.yielded, self.loop, self.depth, self.no_grad, self.driver, self.trace,
            self.missing, self.live,
        ) = frame  # fmt: skip

    def linked(self, symbol: Symbol, name: Any, value: Unknown) -> Unknown:
        """Keep what refers back to the unknown object that it is of, until ``unlink``."""
        symbol.attributes[name] = value
        self.kin.append((symbol, name))
        return value

    def unlink(self) -> None:
        for symbol, name in self.kin:
            symbol.attributes.pop(name, None)
            if name is None:
                symbol.tensor = None
        self.kin.clear()

    # nodes

    def expr(self, node: ast.AST) -> Value:
        """The abstract value of an expression."""
        handler = EXPRESSIONS.get(node.__class__)
        return handler(self, node) if handler is not None else unknown()

    def block(self, body: Iterable[ast.stmt]) -> bool:
        """Interpret statements; True: no path reaches the end."""
        before, ended = len(self.past), False
        for statement in body:
            handler = STATEMENTS.get(statement.__class__)
            if handler is not None and handler(self, statement):
                ended = True
                break
        del self.past[before:]
        return ended

    def call(
        self, callee: Value, arguments: list[Value], keywords: dict[str, Value], node: ast.AST
    ) -> Value:
        """What calling a value gives."""
        return OPERATIONS["call"](self, callee, arguments, keywords, node)  # type: ignore[no-any-return]

    def run(
        self,
        function: Function,
        owner: Value | None,
        arguments: list[Value] | None,
        keywords: dict[str, Value],
        node: ast.AST,
        outer: Environment | None = None,
        trains: bool = False,
    ) -> Value:
        """What a function of the project gives; arguments None: nothing is known of them.

        trains: it comes to code that trains, by what it calls.
        """
        return OPERATIONS["run"](self, function, owner, arguments, keywords, node, outer, trains)  # type: ignore[no-any-return]

    def evaluate_in(self, module: Module, node: ast.expr) -> Value:
        """An expression among the global names of a file."""
        if node.__class__ is ast.Constant:
            here, self.module = self.module, module
            value = self.expr(node)
            self.module = here
            return value
        frame = self.save()
        self.module, self.function, self.variables, self.outer = module, None, {}, None
        self.region, self.loop, self.trace = OUTSIDE, None, []
        try:
            return self.expr(node)
        finally:
            self.restore(frame)

    def place(self, node: ast.AST, home: Module | None = None) -> Place:
        """Where a node stands."""
        path = (home or self.module).path
        located: Any = node
        try:
            return Place(
                path, located.lineno, located.col_offset, located.end_lineno, located.end_col_offset
            )
        except AttributeError:
            pass
        row: int = getattr(node, "lineno", 1)
        column: int = getattr(node, "col_offset", 0)
        end_row = getattr(node, "end_lineno", None) or row
        end_column = getattr(node, "end_col_offset", None) or column
        return Place(path, row, column, end_row, end_column)

    def step(self) -> None:
        """Count a call against the budget of the function that is analysed."""
        self.steps += 1
        if self.steps > self.limit:
            raise Budget

    def narrow(self, test: ast.expr, holds: bool, stated: bool = False) -> None:
        """Learn from a branch's test; the variables become the branch's own.

        stated: the program ends here if it does not come out so.
        """
        self.variables = dict(self.variables)
        OPERATIONS["narrow"](self, test, holds, stated)

    def either(self, a: Value, a_live: int, b: Value, b_live: int) -> Value:
        """One of two values, each in the modes in which its branch can be taken."""
        return join_modes(a, b, a_live, b_live)

    # unknown objects

    def unknown(self, label: str, vector: Dtypes, assumptions: int = 0) -> Unknown:
        """A new unknown object; ``vector``: its dtypes if it turns out to be a tensor of floats."""
        return Unknown(Symbol(label, vector, assumptions))

    # events

    def emit(
        self,
        kind: str,
        node: ast.AST,
        modes: int,
        assumptions: int,
        links: tuple[Link, ...] = (),
        about: Value | None = None,
        proof: int = Symbol.FLOAT,
        **data: Any,
    ) -> None:
        """Report a hazard at a node, in some modes.

        about: the tensor that it concerns; what that is made of has to be a tensor of floats.
        proof: uses of an unknown object of which one shows that it is.
        """
        modes &= self.live
        if modes:
            self.emit_at(kind, self.place(node), modes, assumptions, links, about, proof, **data)

    def emit_at(
        self,
        kind: str,
        place: Place,
        modes: int,
        assumptions: int,
        links: tuple[Link, ...] = (),
        about: Value | None = None,
        proof: int = Symbol.FLOAT,
        **data: Any,
    ) -> None:
        """The same at a place, for what is known only once a function was read to its end."""
        if self.wanted:
            return
        assumptions |= self.guessed
        if assumptions & assume.ENTRY and self.function is not None and self.function.begins:
            modes &= ~dtypes.AMP_MODES  # nobody opens a region around it
            if not modes:
                return
        function = self.function.qualname if self.function is not None else ""
        key = (kind, place, data.get("key"))
        event = self.events.get(key)
        if event is None:
            event = self.events[key] = Event(kind, place, function, data)
            self.kinds.add(kind)
        elif len(event.variants) >= 24:
            return
        calls: list[Place] = []
        call = self.calls
        while call is not None and len(calls) < 8:
            calls.append(call.place)
            call = call.outer
        own = differing(data, event.facts, modes)
        for known in event.variants:
            if (
                known.modes == modes
                and known.assumptions == assumptions
                and known.root == self.root
                and known.facts == own
            ):
                self.emitted.append(known)
                return
        variant = Variant(
            modes, assumptions, self.root, self.script, tuple(calls), self.region.sites, links,
            facts=own, of_module=self.of_module,
        )  # fmt: skip
        event.variants.append(variant)
        self.emitted.append(variant)
        symbols = [one.symbol for one in floats_behind(about) if one.symbol is not None]
        if symbols:
            self.pending.append((variant, symbols, proof))

    def emit_at_call(self, kind: str, modes: int, assumptions: int, **data: Any) -> None:
        """Report a hazard where the function at hand is given what makes it one."""
        if self.calls is not None and modes & self.live:
            self.at_call.append((kind, modes & self.live, assumptions, data))
            self.report_at_call(self.at_call[-1], self.calls)

    def report_at_call(self, hazard: Any, call: Call) -> None:
        """Report at a call what the function that is called reports of it."""
        kind, modes, assumptions, data = hazard
        function, self.function = self.function, call.function
        self.emit_at(kind, call.place, modes, assumptions, **data)
        self.function = function

    def emit_variant(
        self, kind: str, node: ast.AST, variant: Variant, about: Value | None = None, **data: Any
    ) -> None:
        """Report a hazard at a node in the way of another one."""
        live, self.live = self.live, dtypes.ALL_MODES
        self.emit(kind, node, variant.modes, variant.assumptions, variant.links, about, **data)
        self.live = live

    def outside(self, applied: Any) -> int:
        """The assumption that an operation, which autocast would run in float32, is outside of it."""
        listed = applied.operation.policy.get("cuda", "").startswith("fp32")
        return 0 if self.region.explicit or not listed else assume.OUTSIDE

    def retract(self, kind: str, value: Tensor, key: Any = None) -> None:
        """Withdraw a hazard at the operation that made a value: a more specific one says it.

        In a function that others call as well, it stays for these.
        """
        if kind in self.kinds and value.node is not None and value.home is not None:
            self.retract_at(kind, value.node, value.home, key)

    def retract_at(
        self, kind: str, node: ast.AST, home: Module | None = None, key: Any = None
    ) -> None:
        """The same at a node."""
        where = kind, self.place(node, home), key
        event = self.events.get(where)
        if event is not None:
            event.variants = [one for one in event.variants if one.root != self.root]
            if not event.variants:
                del self.events[where]

    def bounded(self, value: Tensor) -> None:
        """Note that the gradient of a logarithm is multiplied by what it is taken of."""
        if value.node is None or value.home is None:
            return
        key = ("log-guard", self.place(value.node, value.home), None)
        event = self.events.get(key)
        if event is not None and event.facts.get("fate") == "gradient":
            del self.events[key]

    def settle(self) -> None:
        """At the end of an analysis: what was never used as a tensor of floats is assumed to be.

        No mode casts what is used as complex.
        """
        for variant, symbols, proof in self.pending:
            if any(one.uses & Symbol.COMPLEX for one in symbols):
                variant.modes = 0
            if not all(one.proven(proof) for one in symbols):
                variant.assumptions |= assume.KIND
        self.pending.clear()

    def sign(
        self,
        mode: int,
        text: str,
        node: ast.AST,
        home: Module | None = None,
        inside: bool = False,
        flag: bool = False,
        bound: bool = False,
        closed: bool = False,
        classes: frozenset[Named] = frozenset(),
    ) -> Sign:
        """Note a place that shows in which mode code is run, as ``Sign`` says."""
        place, flag = self.place(node, home), flag or bool(self.branches)
        around = self.function.qualname if self.function is not None else ""
        made = Sign(
            mode, text, place, self.script, inside, flag, bound, None, around, closed, classes
        )
        self.signs.add(made)
        return made


OUTSIDE: Final = Region(dtypes.V_OFF, "cuda", 0)
NOTHING: Final[Mapping[Any, Mapping[Any, Value]]] = {}


def merge(
    a: Environment,
    b: Environment,
    a_live: int = dtypes.ALL_MODES,
    b_live: int = dtypes.ALL_MODES,
    asked: Asked | None = None,
    function: Function | None = None,
    stored: Mapping[Any, Mapping[Any, Value]] = NOTHING,
) -> Environment:
    """The variables after a branch that may have gone either way, each way in some modes.

    asked: the branch's test, which holds for ``a``; function: that in which it is asked.  stored: by
    variables that are attributes, what is known of the others of their objects.
    """
    if a is b:
        return a
    merged: Environment = {}
    apart = a_live != b_live
    for name, value in a.items():
        other = b.get(name)
        if other is None:
            _one_sided(merged, name, value, stored)
        elif other is value:
            merged[name] = value
        elif apart:
            merged[name] = join_modes(value, other, a_live, b_live)
        else:
            joined = merged[name] = join(value, other)
            if asked and joined.__class__ is Tensor and value.__class__ is other.__class__:
                merged[name] = _decided(joined, value, other, asked)
            elif asked:
                _chosen(joined, value, other, asked, function)
    for name, value in b.items():
        if name not in a:
            _one_sided(merged, name, value, stored)
    return merged


def _chosen(joined: Value, a: Value, b: Value, asked: Asked, function: Function | None) -> None:
    """Note the test that decides between two dtypes, regions or functions."""
    if isinstance(joined, DtypeValue) and joined not in (a, b):
        joined.asked = joined.asked or asked.test
        joined.dtypes = dtypes.set_by_mode(joined.dtypes)
    elif isinstance(joined, RegionValue) and function:
        switched_by(joined, a, b, (function, asked))
    elif isinstance(joined, Special) and joined.fields.get("options") == (a, b):
        joined.fields["asked"] = function, asked
    elif isinstance(joined, Special) and joined.kind == "scope" and joined not in (a, b):
        scoped_by(joined, a, asked)


def scoped_by(made: Special, first: Value, asked: Asked) -> None:
    """Note the test that decides whether something opens a region, or is ``nullcontext``."""
    opens = not (isinstance(first, Reference) and first.name == NULL)
    made.fields["asked"] = asked._replace(holds=asked.holds is opens)


def switched_by(made: Any, a: Value, b: Value, asked: tuple[Function | None, Asked]) -> None:
    """Note the test that decides whether a region is on: one of the values is off, or opens none."""
    first, second = [isinstance(x, RegionValue) and x.dtypes != dtypes.V_OFF for x in (a, b)]
    if first is not second and made is not a and made is not b:
        function, test = asked
        made.asked = function, test if first else test._replace(holds=not test.holds)


def _one_sided(
    merged: Environment, name: Any, value: Value, stored: Mapping[Any, Mapping[Any, Value]]
) -> None:
    """A variable that one arm alone sets: who reads it came there, unless it was there before.

    An attribute of an unknown object is what it was in the other arm.
    """
    others = stored.get(name) if name.__class__ is tuple else None
    if name.__class__ is not tuple or (others is not None and is_new(others, name[-1])):
        merged[name] = value
    elif not isinstance(value, Scalar):
        merged[name] = perhaps_cast(value)
    elif others is not None and isinstance(before := others.get(name[-1]), Scalar):
        merged[name] = join(before, value)


def _decided(joined: Any, a: Any, b: Any, asked: Asked) -> Value:
    """A join of two tensors, with the test that decides which of their dtypes it has."""
    if a.dtypes == b.dtypes or joined.op != "join":
        return joined  # type: ignore[no-any-return]
    names = asked.names
    for one in (a, b):
        if one.op == "join" and one.data is not None:
            names = names | one.data.asked.names
    return joined.but(data=Decision(asked._replace(names=names), a, b))  # type: ignore[no-any-return]


def changed(before: Environment, after: Environment) -> list[Any]:
    """Names of variables whose facts differ, of those that had a value before."""
    found = []
    for name, value in after.items():
        old = before.get(name)
        if old is not None and old is not value and facts(old) != facts(value):
            found.append(name)
    return found


def widen(before: Environment, after: Environment, names: Iterable[Any]) -> Environment:
    """The variables of the next iteration, with bounds that still move let go."""
    result = dict(after)
    for name in names:
        result[name] = widened(before[name], after[name])
    return result


def asked_by(test: ast.expr, holds: bool = True) -> Asked:
    """A test and its outcome; names of attributes are their last part."""
    while isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        test, holds = test.operand, not holds
    known: tuple[str, frozenset[str]] | None = getattr(test, "asked", None)
    if known is None:
        nodes = list(every(test))
        owners = {id(one.value) for one in nodes if isinstance(one, ast.Attribute)}
        names = frozenset(
            one.attr if isinstance(one, ast.Attribute) else one.id
            for one in nodes
            if isinstance(one, (ast.Attribute, ast.Name)) and id(one) not in owners
        )
        known = test.asked = spelled(test), names  # type: ignore[attr-defined]
    return Asked(test, *known, holds)


def supposed(it: Interpreter) -> Dtypes:
    """The dtype of a float of which nothing is known: that of what comes in."""
    if dtypes.regions_on(it.region.dtypes) & dtypes.AMP_MODES:
        return dtypes.INPUTS
    return dtypes.HANDED_IN if it.region.disabled else dtypes.BATCHES


def tensor_of(it: Interpreter, value: Value, node: ast.AST | None = None) -> Tensor | None:
    """A value as a tensor, where it may be one; an unknown object becomes one."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, Unknown):
        symbol = value.symbol
        if symbol.tensor is None:
            vector, assumptions = symbol.vector, symbol.assumptions
            if vector == dtypes.V_ANY:
                vector, assumptions = supposed(it), assumptions | assume.INPUT
            code = dtypes.symbol(symbol.number) if vector[0] == dtypes.ANY else vector[0]
            made: tuple[str, tuple[Any, ...]] = "input", ()
            lo, hi = -INF, INF
            if symbol.compared is not None:
                name, *sides = symbol.compared
                made = (
                    name,
                    tuple([tensor_of(it, x) if isinstance(x, Unknown) else x for x in sides]),
                )
                lo, hi = 0.0, 1.0
            it.kin.append((symbol, None))  # its tensor refers back
            symbol.tensor = Tensor(
                (code, *vector[1:]),
                *made,
                node,
                it.module,
                lo,
                hi,
                assumptions,
                flags=symbol.flags,
                symbol=symbol,
            )
        return symbol.tensor
    if isinstance(value, Scalar) and value.is_number:
        dtype = dtypes.V_INTEGER if value.kind == "int" else dtypes.V_FLOAT32
        return Tensor(
            dtype,
            "number",
            (value,),
            node,
            it.module,
            value.lo,
            value.hi,
            value.assumptions,
            rank=0,
        )
    return None


__all__ = [
    "EXPRESSIONS",
    "OUTSIDE",
    "ROUNDS",
    "STATEMENTS",
    "Asked",
    "Budget",
    "Call",
    "Class",
    "Decision",
    "Environment",
    "Frame",
    "Interpreter",
    "Loop",
    "Nest",
    "Region",
    "asked_by",
    "changed",
    "merge",
    "switched_by",
    "tensor_of",
    "widen",
]
