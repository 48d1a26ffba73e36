"""A project's files for the interpreter: loading, global names, imports, and what is analysed."""

from __future__ import annotations

import ast
import builtins
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final
from weakref import WeakValueDictionary

from precision_lint.dataflow import (  # noqa: F401  (handlers register themselves)
    casts,
    checkpoints,
    decorators,
    expressions,
    functions,
    guessed,
    libraries,
    loading,
    methods,
    narrowing,
    processors,
    stated,
    statements,
)
from precision_lint.dataflow.interpreter import OUTSIDE, Budget, Environment, Interpreter
from precision_lint.dataflow.objects import commit, inherited, keep, serves_models
from precision_lint.dataflow.parameters import unseen_object
from precision_lint.dataflow.protocol import FINISHED, tells
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    ClassValue,
    Closure,
    Lazy,
    ModuleValue,
    Reference,
    Scalar,
    Special,
    Unknown,
    Value,
)
from precision_lint.events import Event
from precision_lint.syntax.imports import Layout, is_test
from precision_lint.syntax.program import Class, Function, Module, blocks, every
from precision_lint.torchmodel import exports

STEPS: Final = 40_000
"""Calls that the analysis of one function may interpret."""
KEPT: Final = 48
"""Files that are kept, besides those that others refer to."""
STARS: Final = 16
"""Files that one takes all names from, above which none is searched: it gathers a whole package."""
MOST: Final = 600
"""Files that are kept even where all refer to each other."""
BUILTINS: Final = frozenset(dir(builtins))
CANONICAL: Final = {"torch.nn.functional": "F"}


class Program:
    """The files of a project.

    read: gives the syntax tree of a file by its path, or None.
    """

    def __init__(self, layout: Layout, read: Callable[[str], ast.Module | None]) -> None:
        import precision_lint.hazards.catalogue  # noqa: F401  (late: hazards look at dataflow)

        self.layout = layout
        self.imports: dict[str, set[str]] = {}
        """Files of the project that each file imports."""
        self.used: dict[str, set[str]] = {}
        """Files of which each file's names meant something, in what was interpreted so far."""
        self.read = read
        self.modules: OrderedDict[str, Module] = OrderedDict()
        self.alive: WeakValueDictionary[str, Module] = WeakValueDictionary()
        """Files that are loaded, those among them that only others still refer to."""
        self.trees: dict[str, ast.Module] = {}
        """Of files that are about to be loaded again."""
        self.called: set[tuple[str, str]] = set()
        self.wanted: dict[str, list[tuple[str, int]]] = {}
        """Operations that are events of their own: their kinds, and the dtypes that these ask for."""
        self.default_dtype: Dtypes = dtypes.V_FLOAT32
        self.devices: tuple[str, ...] = ()
        """The devices that are stated for the file at hand, the usual one first."""
        self.torch: tuple[int, ...] | None = None
        """The least release of torch that the code has to run on."""
        self.limits: Counter[tuple[str, str, str]] = Counter()
        """How often a bound was reached: which one, and the file and function it was met for."""
        self.parted: dict[Any, list[Callable[[], None]]] = {}
        """Functions whose protocol was followed by itself, for the file at hand: what is reported then."""
        self.long: set[Any] = set()
        """Functions of which there is too much to follow in one."""
        self.interpreter = Interpreter(self)
        self.touched: list[dict[Any, Any]] = []
        """Summaries of functions that the analysis of the file at hand made."""
        self.asking: list[Any] = []
        """Calls of which it knows what they read (``calls``)."""
        self.built: list[Class] = []
        """Classes of which it built objects."""
        self.decorated: dict[Function, Value | None] = {}
        """What decorators made of functions; None: the functions themselves."""
        self.analyses = 0

    def count(self, what: str) -> None:
        """Note that a bound was reached."""
        path, function = self.interpreter.root
        self.limits[what, path, function] += 1

    def load(self, path: str) -> Module | None:
        """A file, with its global names."""
        module = self.modules.get(path) or self.alive.get(path)
        if module is not None:
            self._keep(module)
            return module
        tree = self.trees.pop(path, None) or self.read(path)
        if tree is None:
            return None
        module = Module(path, tree, self.layout.name_of(path), self.layout.package_of(path))
        self.alive[path] = module
        self._keep(module)
        self._execute(module)
        return module

    def _keep(self, module: Module) -> None:
        """Keep a file as the one that was asked for last."""
        self.modules[module.path] = module
        self.modules.move_to_end(module.path)

    def evict(self) -> None:
        """Let go of the files that were asked for longest ago and that no other one refers to.

        What was found out about unknown objects goes, too, which may be those of files that stay.
        """
        self.interpreter.unlink()
        held = set().union(*[self.used.get(home, ()) for home in self.modules])
        free = [path for path in self.modules if path not in held]
        for path in free[: max(len(free) - KEPT, 0)]:
            self.alive.pop(path, None)
            self.modules.pop(path).release()
        while len(self.modules) > MOST:
            self.modules.popitem(last=False)

    def release(self) -> None:
        """Let go of all files."""
        for module in list(self.alive.values()):
            module.release()
        self.modules.clear()

    def drop(self, path: str) -> Module | None:
        """Load a file anew when it is asked for next."""
        module = self.modules.pop(path, None) or self.alive.get(path)
        self.alive.pop(path, None)
        return module

    def start_anew(self, path: str) -> None:
        """Interpret a file's top level again when it is asked for next."""
        module = self.drop(path)
        if module is not None:
            self.trees[path] = module.tree

    def _execute(self, module: Module) -> None:
        """Interpret a file's top level, without what only runs as a script."""
        it = self.interpreter
        frame = it.save()
        script, of_module, root, calls = it.script, it.of_module, it.root, it.calls
        steps, limit = it.steps, it.limit
        it.module, it.function, it.outer = module, None, None
        it.variables = module.variables
        it.region, it.loop, it.depth, it.driver = OUTSIDE, None, 0, True
        it.returned, it.yielded, it.trace, it.no_grad = [], [], [], False
        it.live, it.calls = dtypes.ALL_MODES, None
        it.steps, it.limit, it.root = 0, STEPS, (module.path, "")
        it.script, it.of_module = True, False
        signs = set(it.signs)
        around = it.weights, it.number, it.began, it.kin, it.halved
        it.weights, it.number, it.began, it.kin, it.halved = {}, self._begin(), it.clock, [], []
        inside = it.branches, it.caught, it.compatible, it.wanted, it.loops, it.nest
        it.branches, it.caught, it.compatible, it.wanted, it.loops, it.nest = [], 0, 0, 0, 0, []
        try:
            body = [node for node in module.tree.body if not _is_main(node)]
            it.block(body)
            commit(it, it.variables, True)
            module.variables = it.variables
            module.executed = True
            module.facts["trace"] = it.trace
        except (Budget, RecursionError):
            self.count("steps")
        finally:
            for value in it.variables.values():
                keep(it, value)
            casts.settle(it)
            module.facts["signs"] = it.signs - signs
            it.weights, it.number, it.began, it.kin, it.halved = around
            it.branches, it.caught, it.compatible, it.wanted, it.loops, it.nest = inside
            it.restore(frame)
            it.script, it.of_module, it.root, it.calls = script, of_module, root, calls
            it.steps, it.limit = steps, limit

    # names

    def global_of(self, it: Interpreter, module: Module, name: str) -> Value | None:
        """The value of a global or builtin name; None: there is none."""
        value = module.variables.get(name)
        if value.__class__ is Lazy:
            value = module.variables[name] = self.resolved(it, value, module.path)
        if value is not None:
            rebound = (
                isinstance(value, Scalar) and value.value is not None and name in _rebound(module)
            )
            return Scalar(None, value.kind) if rebound else value
        if not module.executed and name in module.facts.get("defined", ()):
            return None
        if "stars" in module.facts and (value := self._starred(it, module, name)) is not None:
            return value
        if name in BUILTINS:
            return Reference(f"builtins.{name}")
        for cls in module.classes:
            if cls.name == name:
                return ClassValue(cls)
        for function in module.functions:
            if function.name == name:
                return Closure(function)
        return None

    def _starred(self, it: Interpreter, module: Module, name: str) -> Value | None:
        """What a name means that a file has from ``from other import *``, if from any."""
        stars, known = module.facts["stars"], module.facts.setdefault("starred", {})
        if name.startswith("_") or name in known:
            return known.get(name)  # type: ignore[no-any-return]
        known[name] = None  # two files may import all of each other
        found: Value | None = None
        for star in reversed(stars if len(stars) <= STARS else ()):
            if isinstance(star, Lazy):
                found = self.resolved(it, Lazy(star.path, name), module.path)
                if found.__class__ is Unknown or _is_builtin(found):
                    found = None
            elif exports.exported(f"{star.name}.{name}"):
                found = self.member(f"{star.name}.{name}", module.tree, module)
            if found is not None:
                break
        else:
            if name in exports.CUSTOMARY:
                found = Reference(exports.CUSTOMARY[name])
        known[name] = found
        return found

    def resolved(self, it: Interpreter, lazy: Lazy, home: str) -> Value:
        """What a name of the file ``home`` means that is imported from a file of the project."""
        self.used.setdefault(home, set()).add(lazy.path)
        module = self.load(lazy.path)
        if module is None:
            return unknown()
        if lazy.name is None:
            return ModuleValue(module)
        found = self.global_of(it, module, lazy.name)
        return found if found is not None else unknown()

    def of_file(self, it: Interpreter, module: Module, name: str) -> Value:
        """What a name of a file means, as in ``module.name``: one of its own, or a file of the package."""
        found = self.global_of(it, module, name)
        if found is None and module.path.endswith("__init__.py"):
            below = self.layout.find(name, module.path, 1)
            found = self.resolved(it, Lazy(below, None), it.module.path) if below else None
        return found if found is not None else unknown()

    def member(self, name: str, node: ast.AST, home: Module) -> Value:
        """A member of a library."""
        found = libraries.constant(self.interpreter, name, node)
        return found if found is not None else Reference(name)

    def imported(self, it: Interpreter, node: ast.Import | ast.ImportFrom) -> None:
        """Bind the names of an import statement."""
        path = it.module.path
        used = self.imports.setdefault(path, set())
        for alias in node.names:
            bound = alias.asname or alias.name
            if alias.name == "*" and isinstance(node, ast.ImportFrom):
                star = self._star(path, node)
                it.module.facts.setdefault("stars", []).append(star)
                used.update((star.path,) if isinstance(star, Lazy) else ())
            elif isinstance(node, ast.ImportFrom):
                it.variables[bound] = self._member_of(
                    it, node.module or "", alias.name, path, node.level, node
                )
            elif alias.asname:
                found = self.layout.find(alias.name, path)
                it.variables[bound] = Lazy(found, None) if found else Reference(alias.name)
            else:
                top = alias.name.partition(".")[0]
                found = self.layout.find(top, path)
                it.variables[top] = Lazy(found, None) if found else Reference(top)
                deepest = self.layout.find(alias.name, path)
                used.update((deepest,) if deepest is not None else ())
            value = it.variables.get(bound)
            if value.__class__ is Lazy:
                used.add(value.path)

    def _star(self, path: str, node: ast.ImportFrom) -> Lazy | Reference:
        """Where ``from module import *`` takes names from."""
        module = node.module or ""
        found = self.layout.find(module, path, node.level)
        return Lazy(found, None) if found is not None else Reference("." * node.level + module)

    def _member_of(
        self, it: Interpreter, module: str, name: str, path: str, level: int, node: ast.AST
    ) -> Value:
        below = f"{module}.{name}" if module else name
        inside = self.layout.find(module, path, level) if module or level else None
        deeper = self.layout.find(below, path, level)
        if deeper is not None and (inside is None or inside.endswith("__init__.py")):
            return Lazy(deeper, None)
        if inside is not None:
            return Lazy(inside, name)
        if level:
            return unknown()
        return self.member(below, node, it.module)

    # analysis

    def analyse(self, path: str) -> list[Event]:
        """Interpret everything in a file that no caller was seen of; all events so far."""
        module = self.load(path)
        if module is not None:
            unreached = module.facts.get("unreached", ())
            for function in _callers_first(module):
                if (path, function.qualname) not in self.called and function.node not in unreached:
                    self._root(function)
            for cls in module.all_classes():
                for method in inherited(self.interpreter, cls):
                    self._root(method, cls)
            self._top_level(module)
            self._main(module)
            self._forget()
        return list(self.interpreter.events.values())

    def _forget(self) -> None:
        """Drop what depends on the file that was analysed, so that each is judged by itself."""
        for contexts in self.touched:
            contexts.clear()
        for cls in self.built:
            cls.facts.pop("built", None)
            cls.facts.pop("given", None)
            cls.facts.pop("unseen", None)
            cls.facts.pop("roots", None)
        for call in self.asking:
            call.__dict__.pop("gives", None)
        self.asking.clear()
        self.touched.clear()
        self.built.clear()
        self.decorated.clear()
        it = self.interpreter
        it.stored.clear()
        it.changes.clear()
        it.reads.clear()
        it.quiet.clear()
        it.notes = {key: value for key, value in it.notes.items() if not _of_function(key)}

    def rests(self, path: str) -> set[str]:
        """A file, and those whose contents may have changed what was found in it."""
        found, pending = {path}, [path]
        while pending:
            for other in self.used.get(pending.pop(), ()):
                if other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def importers(self, path: str) -> set[str]:
        """The files, among those that were loaded, that import one, directly or not."""
        found: set[str] = set()
        pending = [path]
        while pending:
            one = pending.pop()
            for other, used in self.imports.items():
                if one in used and other not in found:
                    found.add(other)
                    pending.append(other)
        return found

    def _top_level(self, module: Module) -> None:
        """What a file does when it is imported or run, as a whole."""
        it = self.interpreter
        trace = module.facts.get("trace", [])
        it.root, it.script, it.module = (module.path, ""), True, module
        it.of_module = False
        if tells(trace):
            for look in FINISHED:
                look(it, trace)

    def _root(self, function: Function, heir: Class | None = None) -> None:
        """Interpret a function that no caller was seen of; a method as that of a class that inherits it."""
        it = self.interpreter
        cls = heir or function.cls
        it.root = (function.module.path, function.qualname)
        it.script = is_test((heir or function).module.path) or _tries(function)
        called = set(self.called) if heir is not None else self.called

        def work() -> None:
            it.of_module = cls is not None and serves_models(it, cls)
            me = unseen_object(it, heir) if heir is not None else None
            it.run(function, me, None, {}, function.node, trains=heir is not None)
            functions.applied_elsewhere(it, function)

        self._guarded(lambda: _whole(it, work))
        self.called = called  # an heir's own methods may be called from elsewhere, too

    def _main(self, module: Module) -> None:
        """Code that runs as a script: under ``if __name__ == "__main__"``, and the top level."""
        it = self.interpreter
        for node in module.tree.body:
            if not _is_main(node):
                continue
            frame = it.save()
            it.module, it.function, it.outer = module, None, None
            it.variables = dict(module.variables)
            it.region, it.loop, it.depth, it.driver = OUTSIDE, None, 0, True
            it.returned, it.yielded, it.trace, it.no_grad = [], [], [], False
            it.root, it.script, it.of_module = (module.path, ""), True, False
            body = next(blocks(node))
            self._guarded(lambda body=body: _whole(it, lambda: it.block(body)))  # type: ignore[misc]
            it.restore(frame)

    def _begin(self) -> int:
        """The number of an analysis that begins."""
        self.analyses += 1
        return self.analyses

    def _guarded(self, work: Callable[[], Any]) -> None:
        """Do some work within the budget of one function."""
        it = self.interpreter
        it.steps, it.limit, it.loops, it.nest = 0, STEPS, 0, []
        it.branches.clear()
        it.past.clear()
        it.choices.clear()
        it.caught = it.compatible = it.wanted = 0  # a budget may have ended inside of them
        it.backward, it.unpacked, it.tested = None, False, None
        it.live, it.calls = dtypes.ALL_MODES, None
        it.active.clear()
        it.stored.clear()
        it.weights = {}
        it.number, it.began = self._begin(), it.clock
        it.trace = []
        frame = it.save()
        try:
            work()
        except (Budget, RecursionError):
            self.count("steps")
        casts.settle(it)
        it.settle()
        it.restore(frame)


def _callers_first(module: Module) -> Iterator[Function]:
    """Functions and methods; of classes the last first, since it builds and calls those above it."""
    yield from module.functions
    for cls in reversed(module.classes):
        yield from cls.all_methods()


def _tries(function: Function) -> bool:
    """Whether a function tries out others on what it makes itself, by pytest's custom."""
    node = function.node
    needed = len(function.parameters) - len(node.args.defaults)
    return function.cls is None and function.name.lstrip("_").startswith("test") and not needed


def _whole(it: Interpreter, work: Callable[[], Any]) -> None:
    """Analyse something from its beginning to its end."""
    work()
    trace = it.trace
    if tells(trace):
        for look in FINISHED:
            look(it, trace)


def _of_function(key: Any) -> bool:
    """Whether something is remembered of a function or a place in one, which are gone with their file."""
    return isinstance(key, tuple) and any(isinstance(one, Function | ast.AST) for one in key)


def _is_main(node: ast.stmt) -> bool:
    """``if __name__ == "__main__":``"""
    if not isinstance(node, ast.If) or not isinstance(node.test, ast.Compare):
        return False
    sides = [node.test.left, *node.test.comparators]
    return any(isinstance(side, ast.Name) and side.id == "__name__" for side in sides)


def _rebound(module: Module) -> set[str]:
    """The global names that functions of a file assign."""
    names: set[str] | None = module.facts.get("rebound")
    if names is None:
        declared = [one.names for one in every(module.tree) if isinstance(one, ast.Global)]
        names = module.facts["rebound"] = set().union(*declared)
    return names


def _is_builtin(value: Value) -> bool:
    return isinstance(value, Reference) and value.name.startswith("builtins.")


__all__ = ["Environment", "Program", "Special"]
