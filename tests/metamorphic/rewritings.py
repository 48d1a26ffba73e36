"""Rewritings of a module, each of which leaves what it computes as it is.

A rewriting takes a syntax tree and gives a new one, or None where it has nothing to do.  All of them
work on ``ast``: layout and comments are not what is under test, but for ``comments``.
"""

from __future__ import annotations

import ast
import copy
import itertools
from collections.abc import Callable, Iterator

Rewriting = Callable[[ast.Module], ast.Module | None]
Function = ast.FunctionDef | ast.AsyncFunctionDef
WORDS = "autocast float16 bfloat16 half GradScaler unscale_ fp16 bf16 mixed precision amp .half()"
"""What a comment may say without changing anything."""
METHODS = frozenset({
    "log", "exp", "sqrt", "sum", "mean", "softmax", "log_softmax", "sigmoid", "tanh", "abs", "clamp",
    "matmul", "bmm", "square", "pow", "cumsum", "cumprod", "var", "std", "log2", "log1p", "rsqrt",
    "transpose", "unsqueeze", "squeeze", "flatten", "masked_fill", "relu", "amax", "amin", "einsum",
})  # fmt: skip
"""Operations that are methods and functions with the same arguments."""
FUNCTIONS = METHODS - {"einsum"}


def _functions(tree: ast.AST) -> Iterator[Function]:
    return (n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef))


# names


class _Renamed(ast.NodeTransformer):
    """Gives names of functions other ones, in one scope."""

    def __init__(self, names: dict[str, str]) -> None:
        self.names = names

    def visit_Name(self, node: ast.Name) -> ast.AST:
        node.id = self.names.get(node.id, node.id)
        return node

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.arg = self.names.get(node.arg, node.arg)
        return self.generic_visit(node)


def renamed_locals(tree: ast.Module) -> ast.Module | None:
    """Local variables and parameters are called ``v0``, ``v1``, …; ``self`` and what is passed by
    keyword keep their names."""
    passed = {k.arg for n in ast.walk(tree) if isinstance(n, ast.Call) for k in n.keywords}
    kept = {n.arg for n in ast.walk(tree) if isinstance(n, ast.keyword)} | {"self", "cls"}
    kept |= {
        name for n in ast.walk(tree) if isinstance(n, ast.Global | ast.Nonlocal) for name in n.names
    }
    kept |= _bound_outside(tree) | {one for one in passed if one}
    changed = False
    for function in _outermost(tree):
        names: dict[str, str] = {}
        for node in ast.walk(function):
            bound = None
            if isinstance(node, ast.arg):
                bound = node.arg
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                bound = node.id
            if bound is not None and bound not in kept and not bound.startswith("__"):
                names.setdefault(bound, f"v{len(names)}")
        inner = {n.name for n in ast.walk(function) if isinstance(n, Function | ast.ClassDef)}
        inner |= {h.name for h in ast.walk(function) if isinstance(h, ast.ExceptHandler) and h.name}
        names = {old: new for old, new in names.items() if old not in inner}
        if names:
            changed = True
            for part in [function.args, *function.body]:
                _Renamed(names).visit(part)
    return tree if changed else None


def _outermost(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods that are in no other function."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function):
            yield node
        elif isinstance(node, ast.ClassDef | ast.If | ast.Try | ast.With):
            yield from _outermost(node)


def _bound_outside(tree: ast.Module) -> set[str]:
    """Names of the module: what functions see of it must stay."""
    found = set()
    for node in tree.body:
        for one in ast.walk(node):
            if isinstance(one, ast.alias):
                found.add((one.asname or one.name).partition(".")[0])
        if not isinstance(node, Function | ast.ClassDef):
            found |= {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
        else:
            found.add(node.name)
    return found


def renamed_definitions(tree: ast.Module) -> ast.Module | None:
    """Functions and classes of the module are called ``f0``, ``C1``, …, wherever they are used."""
    names: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, Function):
            names[node.name] = f"f{len(names)}"
        elif isinstance(node, ast.ClassDef):
            names[node.name] = f"C{len(names)}"
    kept = {"main", *(name for name in names if name.lstrip("_").startswith("test"))}
    # and what is a text, or a variable of some function as well
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and isinstance(one.value, str):
            kept.add(one.value)
        elif isinstance(one, ast.arg):
            kept.add(one.arg)
        elif isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            kept.add(one.id)
    names = {old: new for old, new in names.items() if old not in kept}
    for one in ast.walk(tree):
        if isinstance(one, ast.Name):
            one.id = names.get(one.id, one.id)
    for definition in tree.body:
        if isinstance(definition, Function | ast.ClassDef):
            definition.name = names.get(definition.name, definition.name)
    return tree if names else None


# spellings


class _AsFunctions(ast.NodeTransformer):
    """``x.op()`` as ``torch.op(x)``."""

    def __init__(self, modules: set[str]) -> None:
        self.modules = modules
        self.changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if not isinstance(function, ast.Attribute) or function.attr not in FUNCTIONS:
            return node
        root: ast.AST = function.value
        while isinstance(root, ast.Attribute):
            root = root.value
        if isinstance(root, ast.Name) and root.id in self.modules | {"self"}:
            return node
        self.changed = True
        target = ast.Attribute(ast.Name("torch", ast.Load()), function.attr, ast.Load())
        return ast.Call(target, [function.value, *node.args], node.keywords)


class _AsMethods(ast.NodeTransformer):
    """``torch.op(x)`` as ``x.op()``, for names and calls."""

    changed = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            if function.value.id == "torch" and function.attr in FUNCTIONS and node.args:
                first = node.args[0]
                if isinstance(first, ast.Name | ast.Call | ast.Attribute | ast.BinOp):
                    self.changed = True
                    method = ast.Attribute(first, function.attr, ast.Load())
                    return ast.Call(method, node.args[1:], node.keywords)
        return node


class _ByAlias(ast.NodeTransformer):
    """``torch.op`` as a name that is imported from torch."""

    def __init__(self) -> None:
        self.used: set[str] = set()

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "torch" and node.attr in METHODS:
            self.used.add(node.attr)
            return ast.Name(f"t_{node.attr}", node.ctx)
        return node


def _imports_torch(tree: ast.Module) -> bool:
    return any(
        isinstance(n, ast.Import) and any(a.name == "torch" and not a.asname for a in n.names)
        for n in tree.body
    )


def as_functions(tree: ast.Module) -> ast.Module | None:
    """``x.op()`` becomes ``torch.op(x)``."""
    rewriter = _AsFunctions(_bound_outside(tree))
    return (
        rewriter.visit(tree)
        if _imports_torch(tree) and rewriter.visit(tree) and rewriter.changed
        else None
    )


def as_methods(tree: ast.Module) -> ast.Module | None:
    """``torch.op(x)`` becomes ``x.op()``."""
    rewriter = _AsMethods()
    made = rewriter.visit(tree)
    return made if rewriter.changed else None


def by_alias(tree: ast.Module) -> ast.Module | None:
    """``torch.op`` becomes a name that is imported from torch."""
    rewriter = _ByAlias()
    made: ast.Module = rewriter.visit(tree)
    if not rewriter.used:
        return None
    names = [ast.alias(name, f"t_{name}") for name in sorted(rewriter.used)]
    place = next(i for i, n in enumerate(made.body) if isinstance(n, ast.Import))
    made.body.insert(place + 1, ast.ImportFrom("torch", names, 0))
    return made


# statements


def _blocks(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    for node in ast.walk(tree):
        for name in ("body", "orelse", "finalbody"):
            block = getattr(node, name, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def hoisted(tree: ast.Module) -> ast.Module | None:
    """The first argument of a call gets a name of its own in front, where it is a call itself."""
    count = 0
    for function in _functions(tree):
        for block in list(_blocks(function)):
            for statement in list(block):
                if not isinstance(statement, ast.Assign | ast.Return):
                    continue
                call = statement.value
                if not isinstance(call, ast.Call) or not call.args or not _plain(call.func):
                    continue
                inner = call.args[0]
                if isinstance(inner, ast.Call):
                    name = f"hoisted_{count}"
                    count += 1
                    call.args[0] = ast.Name(name, ast.Load())
                    made = ast.Assign([ast.Name(name, ast.Store())], inner)
                    block.insert(block.index(statement), made)
    return tree if count else None


def callees_kept(tree: ast.Module) -> ast.Module | None:
    """What a statement calls gets a name of its own in front: ``step = optimizer.step``, ``step()``."""
    count = 0
    for function in _functions(tree):
        for block in list(_blocks(function)):
            for statement in list(block):
                if not isinstance(statement, ast.Assign | ast.Return | ast.Expr):
                    continue
                call = statement.value
                if not isinstance(call, ast.Call) or not _plain(call.func):
                    continue
                if isinstance(call.func, ast.Name) and call.func.id == "super":
                    continue
                name = f"callee_{count}"
                count += 1
                made = ast.Assign([ast.Name(name, ast.Store())], call.func)
                call.func = ast.Name(name, ast.Load())
                block.insert(block.index(statement), made)
    return tree if count else None


def _plain(node: ast.expr) -> bool:
    """Whether nothing is computed before the arguments."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return isinstance(node, ast.Name)


def inlined(tree: ast.Module) -> ast.Module | None:
    """A name that is assigned once, right in front of the only statement that uses it, once, is gone."""
    changed = False
    for function in _functions(tree):
        names = [n for n in ast.walk(function) if isinstance(n, ast.Name)]
        for block in list(_blocks(function)):
            for first, second in list(itertools.pairwise(block)):
                if not isinstance(first, ast.Assign) or not isinstance(first.targets[0], ast.Name):
                    continue
                if not isinstance(second, ast.Return) or len(first.targets) > 1:
                    continue
                uses = [
                    n for n in names if n.id == first.targets[0].id and n is not first.targets[0]
                ]
                inside = [n for n in ast.walk(second) if n in uses]
                if len(uses) == 1 and len(inside) == 1 and isinstance(first.value, ast.Call):
                    _Replaced(inside[0], first.value).visit(second)
                    block.remove(first)
                    changed = True
                    break
    return tree if changed else None


class _Replaced(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def swapped_arms(tree: ast.Module) -> ast.Module | None:
    """``if a: x else: y`` becomes ``if not a: y else: x``."""
    changed = False
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and node.orelse:
            node.test = ast.UnaryOp(ast.Not(), node.test)
            node.body, node.orelse = node.orelse, node.body
            changed = True
    return tree if changed else None


def in_helpers(tree: ast.Module) -> ast.Module | None:
    """The body of each function of the module moves into another one, which it calls."""
    made = []
    for place, node in enumerate(list(tree.body)):
        if not isinstance(node, ast.FunctionDef) or node.decorator_list or node.name == "main":
            continue
        arguments = node.args
        if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or arguments.posonlyargs:
            continue
        if any(isinstance(one, ast.Yield | ast.YieldFrom) for one in ast.walk(node)):
            continue
        inner = copy.deepcopy(node)
        inner.name = f"inner_{node.name}"
        inner.args.defaults = []
        given: list[ast.expr] = [ast.Name(one.arg, ast.Load()) for one in arguments.args]
        node.body = [ast.Return(ast.Call(ast.Name(inner.name, ast.Load()), given, []))]
        made.append((place, inner))
    for place, inner in reversed(made):
        tree.body.insert(place, inner)
    return tree if made else None


def in_methods(tree: ast.Module) -> ast.Module | None:
    """The body of each ``forward`` moves into another method."""
    changed = False
    for cls in [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef)]:
        for node in list(cls.body):
            if not isinstance(node, ast.FunctionDef) or node.name != "forward":
                continue
            arguments = node.args
            if arguments.vararg or arguments.kwarg or arguments.kwonlyargs or node.decorator_list:
                continue
            inner = copy.deepcopy(node)
            inner.name, inner.args.defaults = "computed", []
            own = arguments.args[0].arg
            given: list[ast.expr] = [ast.Name(one.arg, ast.Load()) for one in arguments.args[1:]]
            target = ast.Attribute(ast.Name(own, ast.Load()), "computed", ast.Load())
            node.body = [ast.Return(ast.Call(target, given, []))]
            cls.body.insert(cls.body.index(node), inner)
            changed = True
    return tree if changed else None


class _Looked(ast.NodeTransformer):
    """Takes floats out of functions, and looks them up in a dict of the module."""

    def __init__(self) -> None:
        self.numbers: list[ast.Constant] = []

    def visit_arguments(self, node: ast.arguments) -> ast.AST:
        return node

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        if not isinstance(node.value, float):
            return node
        self.numbers.append(node)
        key = ast.Constant(f"value_{len(self.numbers) - 1}")
        return ast.Subscript(ast.Name("SETTINGS0", ast.Load()), key, ast.Load())


def looked_up(tree: ast.Module) -> ast.Module | None:
    """Floats in functions are entries of a dict of the module."""
    looked = _Looked()
    for function in _outermost(tree):
        function.body = [looked.visit(one) for one in function.body]
    keys: list[ast.expr | None] = [
        ast.Constant(f"value_{number}") for number in range(len(looked.numbers))
    ]
    table = ast.Dict(keys, list(looked.numbers))
    tree.body.insert(_after_imports(tree), ast.Assign([ast.Name("SETTINGS0", ast.Store())], table))
    return tree if looked.numbers else None


def sums_written_out(tree: ast.Module) -> ast.Module | None:
    """``x += y`` becomes ``x = x + y``."""
    changed = False
    for function in _functions(tree):
        for block in list(_blocks(function)):
            for at, one in enumerate(block):
                if isinstance(one, ast.AugAssign) and isinstance(one.target, ast.Name):
                    whole = ast.BinOp(ast.Name(one.target.id, ast.Load()), one.op, one.value)
                    block[at] = ast.Assign([one.target], whole)
                    changed = True
    return tree if changed else None


class _Opened(ast.NodeTransformer):
    """Takes what some functions give out of a dict."""

    def __init__(self, names: set[str]) -> None:
        self.names = names

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in self.names:
            return ast.Subscript(node, ast.Constant("given"), ast.Load())
        return node


def given_in_dicts(tree: ast.Module) -> ast.Module | None:
    """Functions of the module that are only called give their result in a dict."""
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    uses = [n for n in ast.walk(tree) if isinstance(n, ast.Name | ast.arg)]
    found: dict[str, list[ast.Return]] = {}
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or function.decorator_list:
            continue
        inside = [n for n in ast.walk(function) if n is not function]
        if any(isinstance(n, ast.Yield | ast.FunctionDef | ast.Lambda) for n in inside):
            continue
        returns = [n for n in inside if isinstance(n, ast.Return)]
        own = [n for n in uses if getattr(n, "id", getattr(n, "arg", "")) == function.name]
        if own and all(id(n) in called for n in own) and isinstance(function.body[-1], ast.Return):
            if all(one.value is not None for one in returns):
                found[function.name] = returns
    _Opened(set(found)).visit(tree)
    for one in [one for returns in found.values() for one in returns]:
        assert one.value is not None
        one.value = ast.Dict([ast.Constant("given")], [one.value])
    return tree if found else None


def regions_kept(tree: ast.Module) -> ast.Module | None:
    """What a ``with`` enters first gets a name of its own in front."""
    count = 0
    for function in _functions(tree):
        for block in list(_blocks(function)):
            for statement in list(block):
                if not isinstance(statement, ast.With):
                    continue
                item = statement.items[0]
                if isinstance(item.context_expr, ast.Call):
                    name = f"context_{count}"
                    count += 1
                    made = ast.Assign([ast.Name(name, ast.Store())], item.context_expr)
                    item.context_expr = ast.Name(name, ast.Load())
                    block.insert(block.index(statement), made)
    return tree if count else None


def regions_in_functions(tree: ast.Module) -> ast.Module | None:
    """Regions with constant arguments are opened by context managers of the module."""
    made: list[ast.stmt] = []
    for function in _functions(tree):
        for node in ast.walk(function):
            for item in node.items if isinstance(node, ast.With) else ():
                if item.optional_vars is None and _is_constant_region(item.context_expr):
                    name = f"region_{len(made)}"
                    opened = ast.unparse(item.context_expr)
                    head = f"@contextlib.contextmanager\ndef {name}():"
                    made += ast.parse(f"{head}\n    with {opened}:\n        yield").body
                    item.context_expr = ast.Call(ast.Name(name, ast.Load()), [], [])
    start = _after_imports(tree)
    tree.body[start:start] = [*ast.parse("import contextlib").body, *made]
    return tree if made else None


def _after_imports(tree: ast.Module) -> int:
    imports = [i for i, one in enumerate(tree.body) if isinstance(one, ast.Import | ast.ImportFrom)]
    return imports[-1] + 1 if imports else 0


def _is_constant_region(node: ast.expr) -> bool:
    """Whether an expression is a call of an attribute ``autocast`` with constants and names of torch."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    given = [*node.args, *(keyword.value for keyword in node.keywords)]
    return node.func.attr == "autocast" and all(
        isinstance(one, ast.Constant) or ast.unparse(one).startswith("torch.") for one in given
    )


def decorated(tree: ast.Module) -> ast.Module | None:
    """A region that is all of a function's body becomes a decorator, where its arguments are constants."""
    changed = False
    for function in _functions(tree):
        body = function.body[1:] if ast.get_docstring(function) else function.body
        if len(body) != 1 or not isinstance(body[0], ast.With) or len(body[0].items) != 1:
            continue
        item = body[0].items[0]
        call = item.context_expr
        if not isinstance(call, ast.Call) or "autocast" not in ast.unparse(call.func):
            continue
        given = [*call.args, *(k.value for k in call.keywords)]
        if not all(
            isinstance(one, ast.Constant) or ast.unparse(one).startswith("torch.") for one in given
        ):
            continue
        if item.optional_vars is None and not function.decorator_list:
            function.decorator_list.append(call)
            function.body = body[0].body
            changed = True
    return tree if changed else None


def commented(text: str) -> str:
    """A comment full of the field's words in front of every definition."""
    lines = []
    for line in text.split("\n"):
        if line.lstrip().startswith(("def ", "class ")):
            lines.append(f"{line[: len(line) - len(line.lstrip())]}# {WORDS}")
        lines.append(line)
    return "\n".join(lines)


# assignments


Made = Callable[[ast.Name, ast.expr, int], list[ast.stmt] | None]
"""What stands in the place of an assignment, the number of which is given, to one name."""


def _assignments(tree: ast.Module, make: Made) -> ast.Module | None:
    """Assignments to one local name are replaced: of what is called, computed, or part of something."""
    number = 0
    for function in _functions(tree):
        shared = {
            name
            for one in ast.walk(function)
            if isinstance(one, ast.Global | ast.Nonlocal)
            for name in one.names
        }
        for block in _blocks(function):
            for at, node in reversed(list(enumerate(block))):
                if not isinstance(node, ast.Assign) or len(node.targets) != 1:
                    continue
                target, kinds = (
                    node.targets[0],
                    ast.Call | ast.BinOp | ast.Attribute | ast.Subscript,
                )
                if not isinstance(target, ast.Name) or target.id in shared:
                    continue
                made = make(target, node.value, number) if isinstance(node.value, kinds) else None
                if made is not None:
                    block[at : at + 1] = made
                    number += 1
    return tree if number else None


def by_walrus(tree: ast.Module) -> ast.Module | None:
    """``x = f(y)`` as ``(x := f(y))``."""

    def made(target: ast.Name, value: ast.expr, number: int) -> list[ast.stmt]:
        return [ast.Expr(ast.NamedExpr(target, value))]

    return _assignments(tree, made)


def in_tuples(tree: ast.Module) -> ast.Module | None:
    """``x = f(y)`` as ``x, other = (f(y), None)``."""

    def made(target: ast.Name, value: ast.expr, number: int) -> list[ast.stmt]:
        other = ast.Name(f"other_{number}", ast.Store())
        pair = ast.Tuple([value, ast.Constant(None)], ast.Load())
        return [ast.Assign([ast.Tuple([target, other], ast.Store())], pair)]

    return _assignments(tree, made)


def in_dicts(tree: ast.Module) -> ast.Module | None:
    """``x = f(y)`` as ``box = {"value": f(y)}``, then ``x = box["value"]``."""

    def made(target: ast.Name, value: ast.expr, number: int) -> list[ast.stmt]:
        box = f"box_{number}"
        key = ast.Constant("value")
        item = ast.Subscript(ast.Name(box, ast.Load()), key, ast.Load())
        whole = ast.Assign([ast.Name(box, ast.Store())], ast.Dict([key], [value]))
        return [whole, ast.Assign([target], item)]

    return _assignments(tree, made)


def by_lambda(tree: ast.Module) -> ast.Module | None:
    """``x = f(y)`` as ``thunk = lambda: f(y)``, then ``x = thunk()``."""

    def made(target: ast.Name, value: ast.expr, number: int) -> list[ast.stmt] | None:
        inside = list(ast.walk(value))
        if any(isinstance(one, ast.Await | ast.NamedExpr | ast.Yield) for one in inside):
            return None
        if {target.id, "super"} & {one.id for one in inside if isinstance(one, ast.Name)}:
            return None
        thunk = f"thunk_{number}"
        given = ast.arguments([], [], None, [], [], None, [])
        whole = ast.Assign([ast.Name(thunk, ast.Store())], ast.Lambda(given, value))
        return [whole, ast.Assign([target], ast.Call(ast.Name(thunk, ast.Load()), [], []))]

    return _assignments(tree, made)


def logged(tree: ast.Module) -> ast.Module | None:
    """A line for a log behind each assignment, region and loop."""
    changed = False
    for function in _functions(tree):
        for block in _blocks(function):
            for at, node in reversed(list(enumerate(block))):
                if isinstance(node, ast.Assign | ast.With | ast.For):
                    block[at + 1 : at + 1] = ast.parse("log_of_lines.debug('here')").body
                    changed = True
    lines = ("import logging", "log_of_lines = logging.getLogger(__name__)")
    return _importing(tree, *lines) if changed else None


def annotated(tree: ast.Module) -> ast.Module | None:
    """``x = f(y)`` as ``x: object = f(y)``."""

    def made(target: ast.Name, value: ast.expr, number: int) -> list[ast.stmt]:
        return [ast.AnnAssign(target, ast.Name("object", ast.Load()), value, 1)]

    return _assignments(tree, made)


# loops


def with_bars(tree: ast.Module) -> ast.Module | None:
    """``for x in xs`` as ``for x in tqdm(xs)``."""
    loops = [n for f in _functions(tree) for n in ast.walk(f) if isinstance(n, ast.For)]
    for loop in {id(one): one for one in loops}.values():
        loop.iter = ast.Call(ast.Name("tqdm", ast.Load()), [loop.iter], [])
    return _importing(tree, "from tqdm import tqdm") if loops else None


def _importing(tree: ast.Module, *lines: str) -> ast.Module:
    """A module with more lines behind its imports."""
    imports = (ast.Import, ast.ImportFrom)
    last = max((at for at, one in enumerate(tree.body) if isinstance(one, imports)), default=-1)
    doc = 1 if ast.get_docstring(tree) is not None else 0
    at = max(last + 1, doc)
    tree.body[at:at] = ast.parse("\n".join(lines)).body
    return tree


# functions


def in_closures(tree: ast.Module) -> ast.Module | None:
    """The body of a function becomes a function inside of it, which is called at once."""
    changed = False
    for function in _outermost(tree):
        doc = function.body[:1] if ast.get_docstring(function) is not None else []
        body = function.body[len(doc) :]
        if not body or isinstance(function, ast.AsyncFunctionDef) or function.name.startswith("__"):
            continue
        inside = [one for statement in body for one in ast.walk(statement)]
        names = [one for one in inside if isinstance(one, ast.Name)]
        stored = {one.id for one in names if not isinstance(one.ctx, ast.Load)}
        given = {one.arg for one in ast.walk(function.args) if isinstance(one, ast.arg)}
        own = ast.Yield | ast.YieldFrom | ast.Global | ast.Nonlocal
        if given & stored or any(isinstance(one, own) for one in inside):
            continue
        if any(one.id == "super" for one in names):
            continue
        inner = ast.parse("def closure_of_all():\n    pass").body[0]
        assert isinstance(inner, ast.FunctionDef)
        inner.body = body
        called = ast.parse("closure_of_all()", mode="eval").body
        function.body = [*doc, inner, ast.Return(called)]
        changed = True
    return tree if changed else None


PASSING = """\
import functools
def passing(function):
    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        return function(*args, **kwargs)
    return wrapper
"""


def passing_decorators(tree: ast.Module) -> ast.Module | None:
    """Functions and methods get a decorator that calls them as they are called."""
    parts = [tree.body, *[one.body for one in tree.body if isinstance(one, ast.ClassDef)]]
    wrapped = [
        one
        for body in parts
        for one in body
        if isinstance(one, ast.FunctionDef) and not one.decorator_list
        if not one.name.startswith(("__", "test")) and one.name != "main"
    ]
    for one in wrapped:
        one.decorator_list = [ast.Name("passing", ast.Load())]
    return _importing(tree, PASSING) if wrapped else None


REWRITINGS: dict[str, Rewriting] = {
    "locals renamed": renamed_locals,
    "definitions renamed": renamed_definitions,
    "methods as functions": as_functions,
    "functions as methods": as_methods,
    "functions by alias": by_alias,
    "arguments hoisted": hoisted,
    "callees kept": callees_kept,
    "names inlined": inlined,
    "arms swapped": swapped_arms,
    "code in helpers": in_helpers,
    "code in methods": in_methods,
    "numbers looked up": looked_up,
    "sums written out": sums_written_out,
    "results in dicts": given_in_dicts,
    "regions kept": regions_kept,
    "regions in functions": regions_in_functions,
    "regions as decorators": decorated,
    "values by walrus": by_walrus,
    "values in tuples": in_tuples,
    "values in dicts": in_dicts,
    "values by lambdas": by_lambda,
    "lines logged": logged,
    "assignments annotated": annotated,
    "loops with bars": with_bars,
    "bodies in closures": in_closures,
    "passing decorators": passing_decorators,
}


def rewritten(text: str, name: str) -> tuple[str, str] | None:
    """A text in the layout of ``ast.unparse``, and rewritten; None: there is nothing to rewrite."""
    plain = ast.unparse(ast.parse(text)) + "\n"
    if name == "comments added":
        return plain, commented(plain)
    made = REWRITINGS[name](ast.parse(plain))
    if made is None:
        return None
    changed = ast.unparse(ast.fix_missing_locations(made)) + "\n"
    compile(changed, "rewritten.py", "exec")
    return (plain, changed) if changed != plain else None


NAMES = (*REWRITINGS, "comments added")
