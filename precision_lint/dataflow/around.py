"""Calls of functions of libraries around torch: einops, frameworks, what makes pretrained models."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from typing import Final

from precision_lint.dataflow import casts, objects, records
from precision_lint.dataflow.containers import elements
from precision_lint.dataflow.interpreter import Interpreter, tensor_of
from precision_lint.dataflow.parameters import unseen_object
from precision_lint.dataflow.protocol import handed
from precision_lint.dataflow.tensors import dtype_of, looked_at, operate
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import any_of, join_all, unknown
from precision_lint.domains.values import (
    CLASS,
    Instance,
    Reference,
    Scalar,
    Sequence,
    Symbol,
    Table,
    Tensor,
    Unknown,
    Value,
    text,
)
from precision_lint.events import Function as Names
from precision_lint.project import spellings
from precision_lint.syntax.program import Class
from precision_lint.torchmodel import foreign, operations

Arguments = list[Value]
Keywords = dict[str, Value]


def einops(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    last = name.rpartition(".")[2]
    first = arguments[0] if arguments else unknown()
    if last == "einsum" and arguments:
        operation = operations.operation("einsum")
        equation = [v for v in arguments if text(v) is not None]
        tensors = [v for v in arguments if text(v) is None]
        if operation is not None:
            return operate(it, operation, [*equation, *tensors], {}, node)
    if last in foreign.VIEWS:
        return _moved(it, any_of(first) if isinstance(first, Sequence) else first, node)
    if last in foreign.VIEWS_OF_MANY and last == "unpack":
        return Sequence(None, _moved(it, first, node), "list")
    if last in foreign.VIEWS_OF_MANY:
        parts = elements(it, first, node)
        if isinstance(parts, list):
            return Sequence(tuple([_moved(it, one, node) for one in parts]), None, "list")
        return Sequence(None, _moved(it, parts, node), "list")
    if last == "pack":
        packed = _moved(it, any_of(first) if isinstance(first, Sequence) else first, node)
        return Sequence((packed, unknown()), None)
    if last == "reduce" and len(arguments) > 2:
        operation = operations.operation(text(arguments[2]) or "mean")
        if operation is not None:
            return operate(it, operation, [first, Sequence((), None)], {}, node)
    return it.unknown(last, dtypes.V_ANY, assume.CALL)


def padded(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """Sequences of different lengths in one tensor, or packed: all numbers as they were."""
    first = next(iter((*arguments, *keywords.values())), unknown())
    if name.endswith(".pad_packed_sequence"):
        lengths = Tensor(dtypes.V_INTEGER, "processed", (), node, it.module)
        return Sequence((_moved(it, first, node), lengths), None)
    if name.endswith(".pack_padded_sequence"):
        return _moved(it, first, node)
    parts = elements(it, first, node)
    whole: Value | None = join_all([*parts]) if isinstance(parts, list) else parts
    if isinstance(whole, Unknown):  # data, as a rule, that is collated, if nothing casts it
        whole = whole.symbol.tensor if ("cast of", "") in whole.symbol.attributes else None
    return _moved(it, whole, node)


def _moved(it: Interpreter, value: Value | None, node: ast.AST) -> Value:
    """A tensor whose numbers einops put into another shape."""
    made = tensor_of(it, value) if value is not None else None
    if made is None:
        return it.unknown("einops", dtypes.V_ANY, assume.CALL)
    return made.but(op="view", operands=(made,), node=node, home=it.module, rank=-1, symbol=None)


MODE_OF_SETTING: Final = {
    ("autocast", "float16"): dtypes.AMP16,
    ("autocast", "bfloat16"): dtypes.AMPBF,
    ("half", "float16"): dtypes.HALF16,
    ("half", "bfloat16"): dtypes.HALFBF,
}


LOADING: Final = frozenset({"from_pretrained", "from_config", "from_single_file"})
"""Methods that make one model."""


def _settings(
    it: Interpreter, callee: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> None:
    """Keywords that tell a framework in which precision to run (``precision="16-mixed"``)."""
    if any(isinstance(one, Tensor) for one in arguments):
        return  # it computes something itself
    for keyword, value in keywords.items():
        alternatives = list(_alternatives(value))
        for one in alternatives:
            said = spellings.judge((callee, keyword), one.value, code=True)
            if said is None or said.strength != "on":
                continue
            for dtype in said.dtypes:
                mode = MODE_OF_SETTING[(said.kind, dtype)]
                words, at = f"{callee}({keyword}={one.value!r}) runs it so", _written(node, keyword)
                flag = len(alternatives) > 1
                made = said.kind == "half" and spellings.names_dtype(keyword)
                it.sign(mode, words, at, flag=flag, bound=made or callee in LOADING)


def _written(node: ast.AST, keyword: str) -> ast.AST:
    """Where a call writes a keyword; the call, where it does not itself."""
    given = node.keywords if isinstance(node, ast.Call) else ()
    return next((one.value for one in given if one.arg == keyword), node)


def _alternatives(value: Value) -> Iterator[Scalar]:
    """The known values that a setting may have."""
    if isinstance(value, Scalar) and value.op == "join":
        for one in value.operands:
            yield from _alternatives(one)
    elif isinstance(value, Scalar) and value.value is not None and not value.assumptions:
        yield value


EXTERNAL: Final[list[Callable[[Interpreter, str, Arguments, ast.AST], None]]] = []
"""What to look for where something of another library is called, by its dotted name (``hazards``)."""


def of_import(
    it: Interpreter, value: Unknown, name: str, arguments: Arguments, node: ast.Call
) -> None:
    """A method of an unknown object that is a name of the file: of what is imported, mostly."""
    owner = node.func.value if isinstance(node.func, ast.Attribute) else None
    if not isinstance(owner, ast.Name) or owner.id in it.variables:
        return
    if it.module.variables.get(owner.id) is value:
        for look in EXTERNAL:
            look(it, name, arguments, node)


CONSTRUCTED: Final[list[Callable[[Interpreter, str, Keywords, ast.AST], None]]] = []
"""What to look for where an object of another library is made, by its dotted name (``hazards``)."""


def _made(it: Interpreter, path: str, arguments: Arguments, keywords: Keywords) -> Value:
    """An object of a library's class has what it is given, by keyword or in a dict, as attributes."""
    name = path.rpartition(".")[2]
    reads = path.partition(".")[0] in foreign.READERS
    made = it.unknown(name, dtypes.LOADED if reads else dtypes.V_ANY, assume.CALL)
    if not name[:1].isupper():
        return made
    whole = arguments[0] if arguments else None
    entries = whole.items if isinstance(whole, Table) else {}
    for keyword, value in (*entries.items(), *keywords.items()):
        if isinstance(value, (Scalar, Table, Unknown)):
            made.symbol.attributes[keyword] = value
    return made


def _to_picture(it: Interpreter, last: str, arguments: Arguments, node: ast.AST) -> None:
    """``to_pil_image(x)``, which makes an array of a tensor if no mode is given."""
    alone = last == "to_pil_image" and isinstance(node, ast.Call) and len(node.args) == 1
    made = tensor_of(it, arguments[0]) if arguments and alone else None
    if made is not None:
        looked_at(it, "numpy", made, node)


def _applied(it: Interpreter, arguments: Arguments) -> Value:
    """What an ``autograd.Function`` of a library gives: a tensor of a dtype that it was given."""
    given = [one for one in arguments if isinstance(one, Tensor)]
    if not given:
        return it.unknown("apply", dtypes.V_ANY, assume.CALL)
    vector = functools.reduce(dtypes.join, [one.dtypes for one in given])
    made = it.unknown("apply", vector, given[0].assumptions | assume.LIBRARY)
    made.symbol.uses |= Symbol.TENSOR | Symbol.REAL
    return made


def _loaded_in(
    it: Interpreter, keywords: Keywords, node: ast.AST, classes: frozenset[Names] = frozenset()
) -> Dtypes | None:
    """The dtype in which a model is asked to be loaded; None: none that is known."""
    asked = keywords.get("torch_dtype", keywords.get("dtype"))
    vector = dtype_of(it, asked) if asked is not None else None
    if vector is None or vector[dtypes.CODE] & dtypes.OTHER:
        return None
    if not getattr(asked, "assumptions", 0):  # else a default decides, as far as is known
        casts.show_cast(it, vector, node, known=True, classes=classes)
    return vector


def load(it: Interpreter, cls: Class, name: str, keywords: Keywords, node: ast.AST) -> Value:
    """``Net.from_pretrained(path, torch_dtype=torch.float16)``, which a class has from a library's."""
    if name not in LOADING or not objects.is_module(it, cls):
        return unknown()
    like = unseen_object(it, cls)
    vector = _loaded_in(it, keywords, node, casts.classes_of(it, like))
    if vector is None:
        return unknown()
    return Instance(cls, like.attributes, objects.new_root(vector, node, it))


def _shown(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value | None:
    """What a bar shows the progress over: ``tqdm(batches, desc="...")``; None: it is moved by hand."""
    if name in foreign.RANGES:
        return it.call(Reference("builtins.range"), arguments, {}, node)
    if name not in foreign.BARS:
        return None
    given = [one for one in arguments if not (isinstance(one, Scalar) and one.kind == "bool")]
    named = (
        keywords[name] for name in ("iterable", "sequence", "gen", "tasks") if name in keywords
    )
    return next(iter(given), None) or next(named, None)


def call(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """A function or class of another library: what a bar goes over, or what ``_object`` makes."""
    shown = _shown(it, name, arguments, keywords, node)
    return shown or _object(it, name, arguments, keywords, node)


def _object(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    """What a library gives: an unknown object, perhaps a model with a dtype."""
    known = foreign.FUNCTIONS.get(name)
    if known is not None:
        return operate(it, known, arguments, keywords, node)
    if name in records.MAKERS:
        return records.made(it, name, arguments, keywords, node)
    if name.endswith(".apply") and name.split(".")[-2][:1].isupper():
        return _applied(it, arguments)
    handed(it, node, Reference(name), [*arguments, *keywords.values()])
    for look in EXTERNAL:
        look(it, name, arguments, node)
    last = name.rpartition(".")[2]
    if name.startswith("torchvision."):
        if last == "ToPILImage":
            return Reference("torchvision.transforms.functional.to_pil_image")
        _to_picture(it, last, arguments, node)
    _settings(it, last, arguments, keywords, node)
    if last in LOADING:
        vector = _loaded_in(it, keywords, node)
        if vector is not None:
            return Instance(name.rpartition(".")[0], {}, objects.new_root(vector, node, it))
    for found in CONSTRUCTED:
        found(it, name, keywords, node)
    result = _made(it, name, arguments, keywords)
    if isinstance(result, Unknown):
        loaded = last in ("from_pretrained", "from_config")
        cls = name.rpartition(".")[0] if loaded else name
        result.symbol.attributes[CLASS] = Reference(cls)
        if name.partition(".")[0] in foreign.ARRAYS:
            result.symbol.uses |= Symbol.ARRAY
    return result
