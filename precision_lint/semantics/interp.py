"""Abstract interpretation of one function: dtype, range and autocast state of every expression.

Forward, flow-sensitive, with a join where branches meet and two passes over a loop's body, whose
bounds are widened in between.
Nothing of the code is executed.
"""

from __future__ import annotations

import ast
import functools
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from precision_lint.semantics import models
from precision_lint.semantics.calls import Calls
from precision_lint.semantics.events import Promotion
from precision_lint.semantics.expressions import Env
from precision_lint.semantics.index import Function
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import INF, NEVER_HALF, UNKNOWN, Value, join, widen

if TYPE_CHECKING:
    from precision_lint.semantics.module import Module


Path = tuple[Env, Region, dict[str, int]]
"""What is known where a branch ends: names, the region, names' versions."""

NESTED = 5
"""Loops in each other that are interpreted twice."""


class Interpreter(Calls):
    """Runs one function; afterwards ``values``, ``regions`` and ``events`` hold what is known."""

    def __init__(self, function: Function, module: Module) -> None:
        self.function = function
        self.module = module
        self.asked: list[tuple[str, tuple[Any, ...], Any]] = []
        """What it asked its module beside the function's own text, and the answers."""
        self.exposed = False
        """Whether something looked at it before it was done."""
        self.done = False
        self.values: dict[int, Value] = {}
        self.regions: dict[int, Region] = {}
        self.events: list[Promotion] = []
        self.tensors: set[str] = set()
        """dtype variables of values that are used as tensors."""
        self.of_layers: set[str] = set()
        """dtype variables of what layers of ``self`` give."""
        self.returned: Value | None = None
        """What it returns on all paths together; None: nothing, or not known yet."""
        self.env: Env = {}
        self.region = self.ask("entry_region", function)
        self._seen: set[int] = set()
        self._tests: dict[int, list[tuple[str, int]]] = {}
        """Names with their versions that a test bound to a name speaks of."""
        self._exits: list[list[tuple[Env, dict[str, int]]]] = []
        """Where ``break`` and ``continue`` leave the loops around."""
        self.versions: dict[str, int] = {}

    def ask(self, question: str, *about: Any) -> Any:
        """An answer of the module, by the name of a method."""
        answer = getattr(self.module, question)(*about)
        self.asked.append((question, about, answer))
        return answer

    def still_holds(self, module: Module) -> bool:
        """Whether a module answers as the one did that was asked, to the same in the same order."""
        self.module = module
        try:
            for question, about, answer in self.asked:
                again = getattr(module, question)(*about)
                if again is not answer and again != answer:
                    return False
        except RecursionError:
            return False
        return True

    def run(self) -> None:
        defaults = self.function.defaults()
        for parameter in self.function.parameters():
            name = parameter.arg
            value = Value("unknown", f"~{name}")
            default = defaults.get(name)
            if default is not None:
                given: Value = self.ask("constant_of", default)
                if given.kind == "number" and not isinstance(given.const, bool):
                    value = given.but(tags=given.tags | {"default"})
            annotation = dotted(parameter.annotation) if parameter.annotation else None
            if annotation in ("int", "float", "bool", "str") and value.kind == "unknown":
                value = Value("number", annotation) if annotation != "str" else Value("text")
            self.env[name] = value.but(store=frozenset({id(parameter)}))
        self.env.pop("self", None)
        self.block(self.function.node.body)
        self.done = True

    # statements

    def block(self, body: Sequence[ast.stmt]) -> bool:
        """Run statements; True if control cannot leave at the end of the block."""
        return any(self.statement(statement) for statement in body)

    def statement(self, node: ast.stmt) -> bool:
        match node:
            case ast.Expr(value=value):
                result = self.eval(value)
                name = models.in_place(value)
                if name is not None and result.kind in ("tensor", "callable"):
                    half = models.holds_half(result)
                    known = self.read(name)
                    if half or models.holds_half(known):
                        cast = result if half else known.but(dtype="")
                        self.env[name] = cast.but(node=value)
                if isinstance(value, ast.Call) and _enters(value):
                    opened = self.ask("opened", value.args[0], self.function, self.region)
                    self.region = opened or self.region
            case ast.Assign(targets=targets, value=value):
                result = self.eval(value)
                for target in targets:
                    self.assign(target, result, value)
            case ast.AnnAssign(target=target, value=value) if value is not None:
                self.assign(target, self.eval(value), value)
            case ast.AugAssign(target=target, op=op, value=value):
                left, right = self.eval(target), self.eval(value)
                result = self.binary(node, op, target, left, value, right)
                if left.maybe_tensor:
                    if left.is_tensor and left.dtype:
                        result = result.but(dtype=left.dtype, wide=left.wide)
                    elif left.variable and result.dtype != left.dtype:
                        # a tensor keeps its dtype, a number does not
                        result = result.but(dtype=join(left, result.but(kind=left.kind)).dtype)
                    self.changed(target)
                    result = result.but(store=left.store)
                self.assign(target, result, value)
            case ast.Return(value=value):
                if value is not None:
                    given = self.eval(value)
                    self.returned = given if self.returned is None else join(self.returned, given)
                return True
            case ast.Raise():
                return True
            case ast.Continue() | ast.Break():
                if self._exits:
                    self._exits[-1].append((dict(self.env), self.versions))
                return True
            case ast.If():
                return self.branch(node)
            case ast.For(target=target, iter=iterable) | ast.AsyncFor(target=target, iter=iterable):
                item = self.eval(iterable)
                self.loop(node.body, node.orelse, lambda: self.assign_item(target, item))
            case ast.While(test=test):
                self.loop(node.body, node.orelse, lambda: self.eval(test))
            case ast.With(items=items, body=body) | ast.AsyncWith(items=items, body=body):
                outer = self.region
                for manager in items:
                    self.eval(manager.context_expr)
                    opened = self.ask("opened", manager.context_expr, self.function, self.region)
                    if opened is not None:
                        self.region = opened
                    if manager.optional_vars is not None:
                        self.assign(manager.optional_vars, UNKNOWN, manager.context_expr)
                ended = self.block(body)
                self.region = outer
                return ended
            case ast.Try(body=body, handlers=handlers, orelse=orelse, finalbody=final):
                before = dict(self.env)
                ended = self.block(body) or self.block(orelse)
                after = self.env
                for handler in handlers:
                    self.env = _merge(before, after)
                    if not self.block(handler.body):
                        after = self.env if ended else _merge(after, self.env)
                        ended = False
                self.env = after
                return self.block(final) or ended
            case ast.Match(subject=subject, cases=cases):
                self.eval(subject)
                for case in cases:
                    if case.guard is not None:
                        self.eval(case.guard)
                self.fork([*(case.body for case in cases), ()])
            case ast.Assert(test=test):
                self.eval(test)
                self.refine(test, True)
            case ast.Delete() | ast.Pass() | ast.Global() | ast.Nonlocal():
                pass
            case _:
                pass
        return False

    def branch(self, node: ast.If) -> bool:
        """An ``if`` and its ``elif``, one after the other: 1,000 take no 1,000 frames."""
        before, around, versions = self.env, self.region, self.versions
        paths: list[Path] = []
        rest: Sequence[ast.stmt] = [node]
        refined: set[str] = set()
        arms = 1
        while len(rest) == 1 and isinstance(rest[0], ast.If):
            test, body, rest = rest[0].test, rest[0].body, rest[0].orelse
            self.eval(test)
            held, counted = self.env, self.versions
            self.env, self.versions = dict(held), dict(counted)
            self.refine(test, True)
            refined |= _changed(held, self.env)
            if not self.block(body):
                paths.append((self.env, self.region, self.versions))
            self.env, self.region, self.versions = dict(held), around, dict(counted)
            self.refine(test, False)
            refined |= _changed(held, self.env)
            arms += 1
        if not self.block(rest):
            paths.append((self.env, self.region, self.versions))
        self.env, self.region, self.versions = before, around, versions
        ends = self.join(paths)
        if len(paths) == arms:  # no arm has left: what the tests said holds no longer
            for key in refined:
                owners = itertools.accumulate(key.split("."), "{}.{}".format)
                if all(of.get(o, 0) == versions.get(o, 0) for o in owners for _, _, of in paths):
                    self.env.pop(key, None)
                    self.env |= {key: before[key]} if key in before else {}
        return ends

    def fork(self, bodies: Iterable[Sequence[ast.stmt]]) -> bool:
        before, around, versions = self.env, self.region, self.versions
        paths: list[Path] = []
        for body in bodies:
            self.env, self.region, self.versions = dict(before), around, dict(versions)
            if not self.block(body):
                paths.append((self.env, self.region, self.versions))
        self.env, self.region, self.versions = before, around, versions
        return self.join(paths)

    def join(self, paths: Sequence[Path]) -> bool:
        """Go on where paths meet; True if none of them gets there."""
        if not paths:
            return True
        self.env = functools.reduce(_merge, (env for env, _, _ in paths))
        if all(region == paths[0][1] for _, region, _ in paths):
            self.region = paths[0][1]
        self.versions = functools.reduce(_latest, (versions for _, _, versions in paths))
        return False

    def loop(
        self, body: list[ast.stmt], orelse: list[ast.stmt], head: Callable[[], object]
    ) -> None:
        """Two passes; bounds that the first one moves are given up before the second.

        Loops in ``NESTED`` loops get one: each level would double the time.
        """
        before = dict(self.env)
        entered = before
        for _ in range(2 if len(self._exits) < NESTED else 1):
            self._exits.append([])
            head()
            ended = self.block(body)
            left = self._exits.pop()
            merged = before if ended else _merge(before, self.env)
            for env, versions in left:
                merged = _merge(merged, env)
                self.versions = _latest(self.versions, versions)
            # the second pass may still move what depends on another name's bounds
            entered = {k: widen(entered.get(k, v), v) for k, v in merged.items()}
            self.env = dict(entered)
        self.block(orelse)

    def refine(self, test: ast.expr, truth: bool) -> None:
        """Take over what a test on ``x.dtype`` says in the branch where it is ``truth``."""
        match test:
            case ast.UnaryOp(op=ast.Not(), operand=operand):
                self.refine(operand, not truth)
            case ast.BoolOp(op=op, values=parts):
                if isinstance(op, ast.And) == truth:
                    for part in parts:
                        self.refine(part, truth)
            case ast.Name(id=name):
                meant = self._meaning(name)
                if meant is not None and not isinstance(meant, ast.Name):
                    self.refine(meant, truth)
            case ast.Compare(left=left, ops=[op], comparators=[right]):
                if isinstance(left, ast.Name):
                    left = self._meaning(left.id) or left
                if isinstance(left, ast.Attribute) and left.attr == "dtype":
                    self._refine_dtype(left.value, op, self.eval(right), truth)
            case ast.Attribute(
                value=ast.Attribute(value=owner, attr="dtype"), attr="is_floating_point"
            ):
                self._refine_floating(owner, truth)
            case ast.Call(func=func, args=args):
                called = self.qualify(func)
                if called == "torch.is_floating_point" and args:
                    self._refine_floating(args[0], truth)
                elif isinstance(func, ast.Attribute) and func.attr == "is_floating_point":
                    self._refine_floating(func.value, truth)
                elif called == "torch.is_autocast_enabled" and self.region.state == "inherited":
                    self.region = Region("on") if truth else Region("off", "float32")
            case _:
                pass

    def _meaning(self, name: str) -> ast.expr | None:
        """The expression that a name is bound to, while it still says what it said then."""
        node = self.env[name].node if name in self.env else None
        tested = self._tests.get(id(node))
        if tested is None or any(self.versions.get(n, 0) != v for n, v in tested):
            return None
        return node

    def _refine_floating(self, owner: ast.expr, truth: bool) -> None:
        key = dotted(owner)
        if key is not None and not truth:
            self.env[key] = self.read(key).but(kind="tensor", dtype="", wide=False)

    def _refine_dtype(self, owner: ast.expr, op: ast.cmpop, given: Value, truth: bool) -> None:
        """Take over how ``owner.dtype`` compares to ``given``, a dtype or several."""
        key = dotted(owner)
        many = given.items if given.kind == "tuple" else (given,)
        named = {v.dtype if v.kind == "dtype" else None for v in many}
        known = isinstance(op, (ast.In, ast.NotIn, ast.Eq, ast.NotEq, ast.Is, ast.IsNot))
        if key is None or not named or None in named or not known:
            return
        value = self.read(key)
        if isinstance(op, (ast.In, ast.Eq, ast.Is)) == truth:
            if len(named) == 1:
                (only,) = named
                self.env[key] = value.but(kind="tensor", dtype=only or "", wide=False)
            elif all(dtype in NEVER_HALF for dtype in named):
                dtype = "float32" if named & {"float32", "float64"} else ""
                self.env[key] = value.but(kind="tensor", dtype=dtype, wide=False)
            return
        tags = value.tags | {f"not-{d}" for d in named if d in ("float16", "bfloat16")}
        if tags >= {"not-float16", "not-bfloat16"} and value.may_be_half:
            value = value.but(dtype="float32", wide=False)
        self.env[key] = value.but(tags=tags)

    def assign(self, target: ast.expr, value: Value, source: ast.expr) -> None:
        match target:
            case ast.Name() | ast.Attribute():
                key = dotted(target)
                if key is not None:
                    store = value.store or frozenset({id(source)})
                    self.env[key] = value.but(node=value.node or source, store=store)
                    self.versions[key] = self.versions.get(key, 0) + 1
                    if value.dtype == "bool" or value.kind == "dtype":
                        self._tests[id(source)] = [
                            (name, self.versions.get(name, 0))
                            for part in ast.walk(source)
                            if isinstance(part, (ast.Name, ast.Attribute))
                            and (name := dotted(part)) is not None
                        ]
                    for stale in [k for k in self.env if k.startswith(f"{key}.")]:
                        del self.env[stale]
            case ast.Tuple(elts=targets) | ast.List(elts=targets):
                for place, item in enumerate(targets):
                    if value.kind == "other":  # a shape
                        size = Value("number", "int", 0.0)
                        self.assign(item, value if isinstance(item, ast.Starred) else size, source)
                    elif isinstance(item, ast.Starred):
                        self.assign(item.value, UNKNOWN, source)
                    elif value.kind == "tuple" and "comprehension" in value.tags and value.items:
                        self.assign(item, value.items[0], source)
                    elif len(value.items) == len(targets):
                        self.assign(item, value.items[place], source)
                    elif value.is_tensor and "pair" in value.tags:
                        part = value if place == 0 else Value("tensor", "int")
                        self.assign(item, part.but(tags=part.tags - {"pair"}), source)
                    else:
                        key = dotted(item) if not isinstance(item, (ast.Tuple, ast.List)) else None
                        whole = value if value.maybe_tensor else UNKNOWN
                        part = whole.but(
                            lo=-INF,
                            hi=INF,
                            made=None,
                            dtype=whole.dtype or (key and f"~{key}") or "",
                        )
                        self.assign(item, part, source)
            case ast.Starred(value=inner):
                self.assign(inner, UNKNOWN if value.kind != "other" else value, source)
            case ast.Subscript(value=inner, slice=place):
                self.regions[id(target)] = self.region
                self.eval(target)
                self._store(inner, self.eval(place), value)
            case _:
                self.eval(target)

    def _store(self, owner: ast.expr, place: Value, value: Value) -> None:
        """``owner[place] = value``: an entry of a dict, or a change of a tensor."""
        key = dotted(owner)
        known = self.env.get(key or "", UNKNOWN)
        if key is None or known.kind != "dict":
            self.changed(owner)
            return
        names = known.const if isinstance(known.const, tuple) else None
        if names is None or place.const is None or len(names) != len(known.items):
            self.env[key] = Value("dict", tags=frozenset({"open"}), store=known.store)
            return
        entries = dict(zip(names, known.items, strict=True)) | {place.const: value}
        self.env[key] = known.but(const=tuple(entries), items=tuple(entries.values()))

    def assign_item(self, target: ast.expr, iterable: Value) -> None:
        self._bind(target, self.item_of(iterable))

    def _bind(self, target: ast.expr, item: Value) -> None:
        """Bind a loop's target to an item."""
        if isinstance(target, ast.Name):
            if item.kind == "unknown" and not item.dtype:
                item = Value("unknown", f"~{target.id}", tags=item.tags)
            self.env[target.id] = item
            self.versions[target.id] = self.versions.get(target.id, 0) + 1
        elif isinstance(target, (ast.Tuple, ast.List)):
            whole = item.kind == "tuple" and len(item.items) == len(target.elts)
            for place, part in enumerate(target.elts):
                fits = whole and not isinstance(part, ast.Starred)
                self._bind(part, item.items[place] if fits else UNKNOWN)
        elif isinstance(target, ast.Starred):
            self._bind(target.value, UNKNOWN)

    def read(self, key: str) -> Value:
        """The value of a dotted name."""
        value = self.env.get(key)
        if value is not None:
            return value
        head, _, rest = key.partition(".")
        if head == "self" and rest and "." not in rest and self.function.cls is not None:
            attribute: Value = self.ask("attribute", self.function.cls, rest)
            return attribute
        if head not in self.env:
            found: Value | None = self.ask("constant", head) if not rest else None
            found = found or self.ask("imported", key)
            if found is not None:
                return found
        return Value("unknown", f"~{key}")


def _latest(a: dict[str, int], b: dict[str, int]) -> dict[str, int]:
    """Versions behind two paths: what one of them has changed has changed."""
    return {key: max(a.get(key, 0), b.get(key, 0)) for key in a.keys() | b.keys()}


def _merge(a: Env, b: Env) -> Env:
    merged = {}
    for key in a.keys() | b.keys():
        x, y = a.get(key), b.get(key)
        merged[key] = join(x, y) if x is not None and y is not None else (x or y or UNKNOWN)
    return merged


def _changed(before: Env, after: Env) -> set[str]:
    return {key for key, value in after.items() if before.get(key) is not value}


def _enters(call: ast.Call) -> bool:
    """``stack.enter_context(manager)``"""
    return (
        isinstance(call.func, ast.Attribute)
        and call.func.attr == "enter_context"
        and (len(call.args) == 1)
    )
