"""Abstract values: what is known of one Python object in every precision mode.

Tensors, NumPy arrays, Python scalars and unknown objects are kinds of their own.  Values are immutable
and compare by identity; what an operation was made of stays reachable through ``operands`` (a value
graph), so that definitions and idioms are found however they are spelt.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from precision_lint.domains.assumptions import NETWORK
from precision_lint.domains.dtypes import V_ANY, Dtypes

if TYPE_CHECKING:
    from precision_lint.syntax.program import Class, Function, Module

INF: Final = float("inf")
LARGEST: Final = 1 << 1023

PARAMETER: Final = 1 << 0
"""A parameter or buffer: it follows the dtype of its module."""
GRADIENT: Final = 1 << 1
"""What ``.grad`` gives."""
DETACHED: Final = 1 << 2
"""No gradient passes."""
BUFFER: Final = 1 << 3
"""A parameter that is not trained."""
LEARNED: Final = 1 << 4
"""An output of a layer with weights, or of a model."""
REGIONAL: Final = 1 << 5
"""Made half by an autocast region."""
IN_FLOAT16: Final = 1 << 6
IN_BFLOAT16: Final = 1 << 7
"""Computed, by whatever it was made of, in a region that says float16, or bfloat16."""
STATED_DTYPE: Final = 1 << 8
STATED_BOUNDS: Final = 1 << 9
"""The user says so, and it holds in every mode."""
NONZERO: Final = 1 << 10
"""It is not 0, as far as its dtype can tell."""
ON_CPU: Final = 1 << 11
ON_OTHER: Final = 1 << 12
"""On the CPU, or on another device, as far as the code says; both where branches differ."""
ON_DEVICE: Final = ON_CPU | ON_OTHER
KEPT: Final = 1 << 16
"""A parameter that was made beside weights which had been cast before: it keeps its own dtype."""
EMPTY: Final = 1 << 13
"""Each of its sizes is 0: it stands for a cache that there is not."""
OPTIONAL: Final = 1 << 14
"""There may be None instead."""
MULTIPLIED: Final = 1 << 15
"""A loss that a scaler multiplied, on one of its ways at least."""
BROUGHT: Final = 1 << 17
"""Brought to a dtype, or moved to a device: nothing shows which of them."""
SHARED: Final = DETACHED | STATED_DTYPE | STATED_BOUNDS | NONZERO | EMPTY
"""Flags that both operands must have for a result to have them."""

UNKNOWN_RANK: Final = -2
SOME_RANK: Final = -1
"""Ranks that are not known, or known not to be 0."""


class Value:
    """Base of all abstract values."""

    __slots__ = ()


class Symbol:
    """An unknown object with an identity: an argument, an attribute of one, what a call gave.

    ``uses`` collects, over a whole function, what the code takes it for.
    """

    __slots__ = (
        "assumptions",
        "attributes",
        "compared",
        "flags",
        "home",
        "label",
        "node",
        "number",
        "owner",
        "tensor",
        "uses",
        "vector",
    )

    TENSOR: Final = 1 << 0
    FLOAT: Final = 1 << 1
    ARRAY: Final = 1 << 2
    INTEGER: Final = 1 << 3
    CALLED: Final = 1 << 4
    NUMBER: Final = 1 << 5
    REAL: Final = 1 << 6
    SHAPED: Final = 1 << 7
    ASKED: Final = 1 << 8
    MEMBER: Final = 1 << 9
    ENTRY: Final = 1 << 10
    COMPLEX: Final = 1 << 11
    DEVICE: Final = 1 << 12
    METHODS: Final = 1 << 13
    """It was asked whether it is a tensor; it is one of all arguments (``*args``), or may hold several;
    it was found under a name in what may be a dict, which holds sizes and indices as well; tensors are
    made there; its methods are called, so that it is no number."""
    count: ClassVar[int] = 0

    def __init__(
        self,
        label: str,
        vector: Dtypes,
        assumptions: int,
        node: ast.AST | None = None,
        home: Module | None = None,
    ) -> None:
        Symbol.count += 1
        self.number = Symbol.count
        self.label = label
        self.vector = vector
        self.assumptions = assumptions
        self.attributes: dict[Any, Value] = {}
        self.tensor: Tensor | None = None
        self.uses = 0
        self.flags = 0
        self.node = node
        self.home = home
        self.owner: Symbol | None = None
        """What it is an attribute or item of."""
        self.compared: tuple[str, Value, Value] | None = None
        """The comparison that it is the outcome of, and its sides."""

    def proven(self, use: int) -> bool:
        """Whether it is a tensor: used as one (``use``: of those uses), or given by a model.

        An attribute of what is called itself, of a model or layer, is any object.
        """
        if self.uses & (use | Symbol.ENTRY):
            return bool(self.uses & use)
        return bool(self.assumptions & NETWORK) and not (
            self.owner is not None and self.owner.uses & Symbol.CALLED
        )


class Unknown(Value):
    """An object of an unknown kind."""

    __slots__ = ("symbol",)

    def __init__(self, symbol: Symbol) -> None:
        self.symbol = symbol


class Tensor(Value):
    """A torch tensor.

    lo, hi: bounds of its elements in exact arithmetic.  reach: a magnitude that some element is known
    to have.  op, operands: what made it.  node, home: where, and in which file.  rank: number of
    dimensions.  symbol: the argument it is, where its kind was not proven.  data: what the operation
    adds (an equation, a dimension, a constant).
    """

    __slots__ = (
        "assumptions",
        "data",
        "dtypes",
        "flags",
        "hi",
        "home",
        "lo",
        "node",
        "op",
        "operands",
        "rank",
        "reach",
        "symbol",
    )

    def __init__(
        self,
        dtypes: Dtypes,
        op: str,
        operands: tuple[Any, ...] = (),
        node: ast.AST | None = None,
        home: Module | None = None,
        lo: float = -INF,
        hi: float = INF,
        assumptions: int = 0,
        flags: int = 0,
        rank: int = UNKNOWN_RANK,
        reach: float = 0.0,
        symbol: Symbol | None = None,
        data: Any = None,
    ) -> None:
        self.dtypes = dtypes
        self.op = op
        self.operands = operands
        self.node = node
        self.home = home
        self.lo = lo
        self.hi = hi
        self.assumptions = assumptions
        self.flags = flags
        self.rank = rank
        self.reach = reach
        self.symbol = symbol
        self.data = data

    def but(self, **changes: Any) -> Tensor:
        """A copy with other fields."""
        made = Tensor(
            self.dtypes, self.op, self.operands, self.node, self.home, self.lo, self.hi,
            self.assumptions, self.flags, self.rank, self.reach, self.symbol, self.data,
        )  # fmt: skip
        for name, value in changes.items():
            setattr(made, name, value)
        return made


class Array(Value):
    """A NumPy array."""

    __slots__ = ("dtypes", "hi", "home", "lo", "node", "op", "operands")

    def __init__(
        self,
        dtypes: Dtypes,
        op: str,
        operands: tuple[Any, ...] = (),
        node: ast.AST | None = None,
        home: Module | None = None,
        lo: float = -INF,
        hi: float = INF,
    ) -> None:
        self.dtypes = dtypes
        self.op = op
        self.operands = operands
        self.node = node
        self.home = home
        self.lo = lo
        self.hi = hi


class Scalar(Value):
    """A Python number, string, bool or None; ``value`` is None where it isn't known (see ``kind``).

    kind: ``int``, ``float``, ``number``, ``bool``, ``str``, ``none`` or ``bytes``.  op, operands: what
    made it where that matters (``finfo.min``, ``size``, ``item``).
    """

    __slots__ = ("assumptions", "hi", "home", "kind", "lo", "node", "op", "operands", "value")

    def __init__(
        self,
        value: Any = None,
        kind: str = "number",
        lo: float = -INF,
        hi: float = INF,
        assumptions: int = 0,
        node: ast.AST | None = None,
        home: Module | None = None,
        op: str = "",
        operands: tuple[Any, ...] = (),
    ) -> None:
        if value is not None and kind in ("int", "float", "number"):
            if value.__class__ is int and not -LARGEST < value < LARGEST:
                value = None  # more than bounds can say
            else:
                lo = hi = value
        self.value = value
        self.kind = kind
        self.lo = lo
        self.hi = hi
        self.assumptions = assumptions
        self.node = node
        self.home = home
        self.op = op
        self.operands = operands

    @property
    def is_number(self) -> bool:
        return self.kind in ("int", "float", "number")


NONE: Final = Scalar(None, "none")


class DtypeValue(Value):
    """A ``torch.dtype`` (or NumPy's), written at ``node``; ``source``: the tensor whose dtype it is.

    asked: the test that decides which of several it is, where that is known.
    """

    __slots__ = ("asked", "assumptions", "dtypes", "home", "node", "source")

    def __init__(
        self,
        dtypes: Dtypes,
        node: ast.AST | None = None,
        home: Module | None = None,
        assumptions: int = 0,
        source: Tensor | None = None,
    ) -> None:
        self.assumptions = assumptions
        self.dtypes = dtypes
        self.node = node
        self.home = home
        self.source = source
        self.asked: ast.expr | None = None


class Sequence(Value):
    """A tuple, list or set: its items, or one value that stands for all of them.

    ends: where one part of unknown length was unpacked, the items before it, what stands for its own,
    and those behind it.
    """

    __slots__ = ("element", "ends", "items", "kind")

    def __init__(
        self,
        items: tuple[Value, ...] | None = None,
        element: Value | None = None,
        kind: str = "tuple",
        ends: tuple[list[Value], Value, list[Value]] | None = None,
    ) -> None:
        self.items = items
        self.element = element
        self.kind = kind
        self.ends = ends


class Table(Value):
    """A dict: values by constant key, and one value that stands for all others."""

    __slots__ = ("element", "items")

    def __init__(self, items: Mapping[Any, Value], element: Value | None = None) -> None:
        self.items = items
        self.element = element


class Batch(Table):
    """What a processor of ``transformers`` gives: a dict whose items are attributes as well."""

    __slots__ = ()


class Reference(Value):
    """Something outside of the project, by its dotted name: ``torch.nn.functional.relu``."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name


class Closure(Value):
    """A function of the project, bound to ``owner`` where it is a method.

    outer: the variables around a nested function.  bare: without its decorators.  optional: it may be
    None instead.
    """

    __slots__ = ("bare", "function", "optional", "outer", "owner")

    def __init__(
        self,
        function: Function,
        owner: Value | None = None,
        outer: dict[Any, Value] | None = None,
        bare: bool = False,
        optional: bool = False,
    ) -> None:
        self.function = function
        self.owner = owner
        self.outer = outer
        self.bare = bare
        self.optional = optional


class ClassValue(Value):
    """A class of the project."""

    __slots__ = ("cls",)

    def __init__(self, cls: Class) -> None:
        self.cls = cls


class ModuleValue(Value):
    """A Python file of the project."""

    __slots__ = ("module",)

    def __init__(self, module: Module) -> None:
        self.module = module


class Lazy(Value):
    """A name that is imported from a file of the project, looked up when it is used."""

    __slots__ = ("name", "path")

    def __init__(self, path: str, name: str | None) -> None:
        self.path = path
        self.name = name


class Root:
    """An allocation site: where an object (with all its parts) was built.

    number: of the analysis in whose course it was built; 0: nobody saw that; ``objects.PART``: with
    what holds it.  kept: an attribute or a global name holds it, so that other functions see it.
    casts: by path, as it was when it was kept.  born: when it was built, in the time of casts.
    moved: unknown objects that it was moved to: a device, a dtype or a tensor.  guessed: its
    class is supposed, as the only one that fits.  alone: no code casts it, no module holds it, and what
    nobody has seen is not handed it.  out: it was called, or a function gave it back.
    """

    __slots__ = (
        "alone",
        "born",
        "casts",
        "guessed",
        "home",
        "kept",
        "made",
        "moved",
        "node",
        "number",
        "out",
    )

    def __init__(
        self,
        made: Dtypes,
        node: ast.AST | None = None,
        home: Module | None = None,
        number: int = 0,
        born: int = 0,
    ) -> None:
        self.born = born
        self.made = made
        self.node = node
        self.home = home
        self.number = number
        self.kept = self.guessed = self.out = False
        self.moved: tuple[Symbol, ...] = ()
        self.casts: dict[tuple[str, ...], Any] = {}


ITEMS: Final = "[]"
"""Where the attributes of a container hold its items."""


class Instance(Value):
    """An object of a class of the project, or a layer of torch.

    cls: the class, or the name of a layer of ``torch.nn``.  attributes: shared by all objects that are
    built with the same arguments.  root, path: the allocation site and the way from it to this part;
    the dtype of weights is kept for these (``dataflow.objects``).  also: further ways, from where it was
    built itself, and from what holds that.  arguments: a layer's, by name.  items: what a container of
    modules or parameters holds, shared like its attributes.  region: what a framework calls it in.
    """

    __slots__ = ("also", "arguments", "attributes", "cls", "path", "region", "root")

    def __init__(
        self,
        cls: Class | str,
        attributes: dict[Any, Value],
        root: Root,
        path: tuple[str, ...] = (),
        arguments: Mapping[str, Value] | None = None,
        items: Sequence | Table | None = None,
        also: tuple[tuple[Root, tuple[str, ...]], ...] = (),
        region: RegionValue | None = None,
    ) -> None:
        self.cls = cls
        self.attributes = attributes
        self.root = root
        self.path = path
        self.arguments = arguments or {}
        if items is not None:
            attributes[ITEMS] = items
        self.also = also
        self.region = region

    @property
    def guessed(self) -> bool:
        """Whether its class is supposed."""
        return self.root.guessed or any(root.guessed for root, _ in self.also)

    @property
    def items(self) -> Sequence | Table | None:
        found: Any = self.attributes.get(ITEMS)
        return found  # type: ignore[no-any-return]

    @items.setter
    def items(self, items: Sequence | Table) -> None:
        self.attributes[ITEMS] = items


class RegionValue(Value):
    """A context manager of autocast that has not been entered.

    dtypes: what it casts to by mode (``OFF``: switched off; ``MAYBE``: perhaps off).  switch: what decides
    whether it is on.
    """

    __slots__ = ("asked", "assumptions", "cache", "device", "dtypes", "home", "node", "switch")

    def __init__(
        self,
        dtypes: Dtypes,
        device: str,
        assumptions: int,
        cache: bool = True,
        node: ast.AST | None = None,
        home: Module | None = None,
        switch: Value | None = None,
    ) -> None:
        self.dtypes = dtypes
        self.device = device
        self.assumptions = assumptions
        self.cache = cache
        self.node = node
        self.home = home
        self.switch = switch
        self.asked: Any = None
        """The function, and the test in it, that decides whether it is on."""


class Special(Value):
    """An object with a protocol that the analysis knows, by ``kind``.

    Kinds: ``scaler``, ``optimizer``, ``parameters``, ``finfo``, ``shape``, ``method``, ``range``, ``zip``,
    ``device``, ``no-grad``, ``null`` (``nullcontext``), ``scope`` (what makes a context manager, or
    ``nullcontext``), ``manager``, ``partial``, ``super``, ``generator``, ``either`` (one of several functions).
    """

    __slots__ = ("assumptions", "fields", "home", "kind", "node")

    def __init__(
        self,
        kind: str,
        node: ast.AST | None = None,
        home: Module | None = None,
        assumptions: int = 0,
        **fields: Any,
    ) -> None:
        self.kind = kind
        self.node = node
        self.home = home
        self.assumptions = assumptions
        self.fields = fields

    def __getitem__(self, name: str) -> Any:
        return self.fields[name]


def number(value: Value | None) -> float | None:
    """The number that a scalar, or a 0-d tensor, is known to be."""
    if value.__class__ is Scalar:
        scalar: Any = value
        if scalar.value.__class__ in (int, float):
            return scalar.value
    elif isinstance(value, Tensor) and value.lo == value.hi and abs(value.lo) < INF:
        return value.lo
    return None


def text(value: Value | None) -> str | None:
    """The string that a value is known to be."""
    if isinstance(value, Scalar) and value.kind == "str":
        return value.value if isinstance(value.value, str) else None
    return None


def begun(value: Value | None, until: str = "") -> Scalar:
    """A string of which only the beginning is known: that of another one, up to a mark in it."""
    start = text(value)
    if start is None and isinstance(value, Scalar) and value.op == "format":
        start = text(value.operands[0])
    if start is None:
        return Scalar(None, "str")
    start = start.partition(until)[0] if until else start
    return Scalar(None, "str", op="format", operands=(Scalar(start, "str"),))


def counts(values: Iterable[Value]) -> None:
    """Note that unknown objects are numbers: sizes, widths of layers, ends of ranges, and what these are
    computed from."""
    for value in values:
        symbol = value.symbol if isinstance(value, (Unknown, Tensor)) else None
        if isinstance(value, Tensor) and symbol is None and value.op in ARITHMETIC:
            counts([one for one in value.operands if one is not None])
        if symbol is not None and not symbol.uses & Symbol.TENSOR:
            symbol.uses |= Symbol.NUMBER


def are_counts(value: Value) -> bool:
    """Whether something is computed of numbers alone, as other uses of them show: ``width // heads``."""
    if isinstance(value, Scalar):
        return value.is_number
    symbol = value.symbol if isinstance(value, (Unknown, Tensor)) else None
    if symbol is not None:
        return symbol.uses & (Symbol.NUMBER | Symbol.TENSOR) == Symbol.NUMBER
    parts = value.operands if isinstance(value, Tensor) and value.op in ARITHMETIC else ()
    return bool(parts) and all(one is not None and are_counts(one) for one in parts)


ARITHMETIC: Final = frozenset({
    "add", "sub", "mul", "div", "floor_divide", "remainder", "pow", "neg", "argument", "call",
})  # fmt: skip
"""What numbers of Python's are computed by as well, and handed on."""


def truth(value: Value | None) -> bool | None:
    """Whether a value is true, where that is known without assuming a default."""
    if isinstance(value, Scalar) and not value.assumptions:
        if value.kind == "none":
            return False
        if value.value is not None:
            return bool(value.value)
    if isinstance(value, (Instance, Closure, ClassValue, DtypeValue)):
        return True
    return None


def unknown_tensor(op: str, node: ast.AST | None, home: Module | None, assumptions: int) -> Tensor:
    """A tensor of which nothing is known."""
    return Tensor(V_ANY, op, (), node, home, assumptions=assumptions)


BOTTOM: Final = Special("bottom")
"""No value: the result of a call that does not return, or of which nothing is known yet."""


CLASS: Final = ("class of", "")
"""Where the attributes of an unknown object hold the class of another library that it is of."""


def class_of(symbol: Symbol | None) -> str:
    """The class that an unknown model was loaded by, also if it was cast since."""
    while symbol is not None:
        cls, cast = symbol.attributes.get(CLASS), symbol.attributes.get(("cast of", ""))
        if isinstance(cls, Reference):
            return cls.name
        symbol = cast.symbol if isinstance(cast, Unknown) else None
    return ""
