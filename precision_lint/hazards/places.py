"""Where the operands of an operation are written, for fixes and messages."""

from __future__ import annotations

import ast
from typing import Any, Final

from precision_lint.dataflow.graph import alternatives, peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.domains import assumptions as assume
from precision_lint.domains.values import ON_CPU, ON_DEVICE, ModuleValue, Reference, Tensor
from precision_lint.events import Place
from precision_lint.syntax.program import Class, Module, bindings, every


def on_cpu(it: Interpreter, value: Tensor) -> int | None:
    """What it takes to say that this runs on the CPU: assumptions; None: it runs elsewhere."""
    if it.region.explicit:
        return 0 if it.region.device == "cpu" else None
    found = value.flags & ON_DEVICE
    if not found and it.program.devices:
        return 0 if "cpu" in it.program.devices else None
    if not found:
        return assume.ON_CPU
    return 0 if found & ON_CPU else None


def is_function(node: ast.Call, home: Module) -> bool:
    """Whether a call is of a function (``torch.log(x)``), not of a method (``x.log()``)."""
    target: ast.AST = node.func
    if not isinstance(target, ast.Attribute) or node in home.layer_calls:
        return True
    while isinstance(target, ast.Attribute):
        target = target.value
    if not isinstance(target, ast.Name):
        return False
    value = home.variables.get(target.id)
    return isinstance(value, (Reference, ModuleValue)) or value.__class__.__name__ == "Lazy"


def operand_node(
    node: ast.AST | None, home: Module | None, index: int, name: str = ""
) -> ast.expr | None:
    """The expression of an operand: by its position, or by the name of its parameter."""
    if home is None:
        return None
    if isinstance(node, ast.BinOp):
        return (node.left, node.right)[index] if index < 2 else None
    if isinstance(node, ast.UnaryOp):
        return node.operand if index == 0 else None
    if isinstance(node, ast.AugAssign):
        return node.value if index == 1 else None
    if isinstance(node, ast.Subscript):
        return node.value if index == 0 else None
    if not isinstance(node, ast.Call):
        return None
    for keyword in node.keywords:
        if name and keyword.arg == name:
            return keyword.value
    if not is_function(node, home):
        return _of_method(node, index)
    return _argument(node, index)


def _of_method(node: ast.Call, index: int) -> ast.expr | None:
    """An operand of a method: the first one is the object, the second one of ``x.where(condition, other)``."""
    if not isinstance(node.func, ast.Attribute):
        return _argument(node, index - 1) if index else None
    place = 1 if node.func.attr == "where" else 0
    return node.func.value if index == place else _argument(node, index - (index > place))


def _argument(node: ast.Call, index: int) -> ast.expr | None:
    given = node.args[index] if index < len(node.args) else None
    return None if isinstance(given, ast.Starred) else given


def operand_place(it: Interpreter, value: Any, index: int, name: str = "") -> Place | None:
    """Where the operand of the operation that made a value is written."""
    value = peel(value)
    if not isinstance(value, Tensor):
        return None
    node = operand_node(value.node, value.home, index, name)
    return it.place(node, value.home) if node is not None else None


VIEWS: Final = frozenset({
    "transpose", "permute", "unsqueeze", "squeeze", "swapaxes", "t", "expand", "view", "reshape",
    "inverse", "pinverse",
})  # fmt: skip
ATTRIBUTES: Final = frozenset({"T", "mT", "H", "mH"})
INVERSES: Final = frozenset({"inverse", "pinverse", "inv", "pinv"})


def root_node(node: ast.expr, home: Module) -> ast.expr | None:
    """An operand below its views and inverses, where an upcast belongs; None: it has one."""
    while True:
        if isinstance(node, ast.Attribute) and node.attr in ATTRIBUTES:
            node = node.value
            continue
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(node, ast.Call) or not isinstance(function, ast.Attribute):
            return node
        if is_function(node, home):
            if function.attr not in INVERSES or not node.args:
                return node
            node = node.args[0]
        elif function.attr in VIEWS:
            node = function.value
        else:
            return None if function.attr == "float" and not node.args else node


def roots(it: Interpreter, value: Tensor, indices: range) -> tuple[Place, ...]:
    """Where the operands of a product that need an upcast are written."""
    found = []
    for index in indices:
        node = operand_node(value.node, value.home, index)
        if node is None or value.home is None:
            continue
        root = root_node(node, value.home)
        if root is not None:
            found.append(it.place(root, value.home))
    return tuple(found)


def anchor(it: Interpreter, value: Tensor, index: int) -> Place | None:
    """Where the tensor is written that an operand is made of by views and casts."""
    node: ast.AST | None = operand_node(value.node, value.home, index)
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if value.home is None or is_function(node, value.home):
            return None
        node = node.func.value
    return it.place(node, value.home) if node is not None else None


def made_at(it: Interpreter, value: Any) -> Place | None:
    """Where a value was made."""
    value = peel(value)
    node = getattr(value, "node", None)
    return it.place(node, value.home) if node is not None and value.home is not None else None


SQUASHING: Final = frozenset({
    "sigmoid", "softmax", "exp", "tanh", "erf", "erfc", "special.expit", "special.erfc", "normal_cdf",
    "cumprod", "prod", "reciprocal", "exp2", "expm1", "sparsemax", "logsigmoid", "softplus", "pow",
    "square", "mean", "mul", "div", "norm", "linalg.norm", "linalg.vector_norm",
})  # fmt: skip
"""Operations whose result leaves the range of half: they have to run in float32 themselves."""
SQUARES: Final = frozenset({"mul", "pow", "square"})


def upcast_places(
    it: Interpreter, value: Any, fallback: ast.AST | None = None
) -> tuple[Place, ...]:
    """Where ``.float()`` has to go so that a value is right in float32: at the operands of every
    operation that may have squashed it, or at ``fallback`` where there is another or none in sight."""
    found: list[Place] = []
    for one in alternatives(value):
        places = _operands_of(it, one) if isinstance(one, Tensor) else ()
        if not places:
            return (it.place(fallback),) if fallback is not None else ()
        found += [place for place in places if place not in found]
    return tuple(found)


LIKE: Final = frozenset({"full_like", "new_full", "new_tensor"})
"""What makes a tensor of a constant, in the dtype of another one."""


def like_places(it: Interpreter, limit: Any) -> tuple[Place, ...]:
    """What a limit has its dtype from, which is upcast with what it limits."""
    limit = peel(limit)
    if not isinstance(limit, Tensor) or limit.op not in LIKE:
        return ()
    like = operand_node(limit.node, limit.home, 0)
    return (it.place(like),) if like is not None and limit.home is it.module else ()


def _operands_of(it: Interpreter, value: Tensor) -> tuple[Place, ...]:
    """Where the operands of what squashed a value are written; none: nothing in this file did."""
    if value.home is not it.module:
        return ()
    indices = [i for i, one in enumerate(value.operands[:2]) if isinstance(one, Tensor)]
    nodes = [operand_node(value.node, value.home, i) for i in indices]
    if value.op in ("sub", "rsub") and len(indices) == 1:  # 1 - p
        return upcast_places(it, value.operands[indices[0]], nodes[0])
    if value.op == "add" and len(indices) == 2:
        parts = [peel(value.operands[i]) for i in indices]
        if all(isinstance(one, Tensor) and one.op in SQUARES for one in parts):
            return tuple(
                p for one, n in zip(parts, nodes, strict=True) for p in upcast_places(it, one, n)
            )
    if value.op in SQUASHING:
        given = nodes if value.op == "mul" else nodes[:1]
        return tuple(it.place(node) for node in given if node is not None)
    return ()


def function_places(it: Interpreter, cls: Class) -> tuple[Place, Place | None, Place | None] | None:
    """Where an ``autograd.Function`` of this file stands, and where its methods begin."""
    if cls.module is not it.module:
        return None
    methods = [cls.methods.get(name) for name in ("forward", "backward")]
    spans = [Place(it.module.path, m.node.lineno, m.node.col_offset, m.node.lineno, m.node.col_offset)
             if m is not None and not isinstance(m.node, ast.Lambda) else None for m in methods]  # fmt: skip
    node = cls.node
    end = node.col_offset + len("class ") + len(node.name)
    return Place(it.module.path, node.lineno, node.col_offset, node.lineno, end), spans[0], spans[1]


def is_given(it: Interpreter, node: ast.AST | None, value: Any) -> bool:
    """Whether an operand is a parameter of the function at hand, and its value comes from a caller."""
    function = it.function
    if it.calls is None or function is None or not isinstance(node, ast.Name):
        return False
    named = function.node.args
    if node.id not in {one.arg for one in (*named.posonlyargs, *named.args, *named.kwonlyargs)}:
        return False
    made, body = made_at(it, value), it.place(function.node)
    within = made is not None and made.path == body.path and body.row <= made.row <= body.end_row
    return made is not None and not within


def in_sight(it: Interpreter, value: Any) -> bool:
    """Whether a value was made in the function at hand, where names are the same."""
    node = getattr(value, "node", None)
    body = it.function.node if it.function is not None else None
    if node is None or body is None or value.home is not it.module:
        return False
    return bool(body.lineno <= node.lineno <= (body.end_lineno or 0))


def names_in(node: ast.AST, context: type) -> set[str]:
    """The names that a node reads (``ast.Load``) or gives values (``ast.Store``)."""
    return {
        one.id
        for one in ast.walk(node)
        if isinstance(one, ast.Name) and isinstance(one.ctx, context)
    }


def is_only_in(it: Interpreter, made: ast.AST | None, node: ast.AST) -> bool:
    """Whether what an expression makes is used in another one alone: inside of it, or by a name read once."""
    inside = list(every(node))
    if any(one is made for one in inside):
        return True
    around = it.function.node if it.function is not None else it.module.tree
    nodes = list(every(around))
    names = (target for one in nodes for target, value in bindings(one) if value is made)
    for target in names:
        name = getattr(target, "id", None)
        uses = [
            n
            for n in nodes
            if isinstance(n, ast.Name) and n.id == name and n.ctx.__class__ is ast.Load
        ]
        return len(uses) == 1 and uses[0] in inside
    return False
