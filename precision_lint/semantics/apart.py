"""Operands whose dtypes are settled at different places: by a device, an adapter, a branch."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from precision_lint.semantics.sinks import Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

VIEWS = frozenset({
    "view", "reshape", "permute", "transpose", "expand", "unsqueeze", "squeeze", "t", "contiguous",
    "repeat", "flatten", "detach",
})  # fmt: skip
ATTENTION = re.compile(r"q|k|v|query|key|value|attn|scores?|weights?|probs?")
"""Names of the operands of attention, which come out of one layer as a rule."""
WRAPPED = re.compile(
    r"^(self\.(base_?layer|base|original\w*|orig\w*|wrapped\w*)|super\(\)\.forward)$"
)
ATTRIBUTE = re.compile(r"^self\.\w+$")
CASTS = frozenset({"to", "type", "type_as", "float", "double"})


class Apart:
    """Reasons why two operands may differ in dtype although nothing in sight casts either."""

    @staticmethod
    def moved_by_hand(node: ast.expr, at: Context) -> ast.expr | None:
        """``self.x.to(device)`` behind an operand: what is not moved with its module is not cast.

        A parameter, or a buffer that ``__init__`` registers, is cast with the module all the same.
        """
        while True:
            if isinstance(node, ast.Name):
                source = at.definition(node.id, node)
                if source is None:
                    return None
                node = source
            elif isinstance(node, ast.Subscript):
                node = node.value
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name, owner = node.func.attr, node.func.value
                if name in ("to", "cuda") and ATTRIBUTE.match(at.text(owner)):
                    tags = at.value(owner).tags
                    moves = name == "cuda" or (len(node.args) == 1 and _is_device(node.args[0]))
                    known = tags & {"buffer", "parameter"}
                    return node if moves and not node.keywords and not known else None
                if name not in VIEWS:
                    return None
                node = owner
            elif isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
                node = node.value
            else:
                return None

    @staticmethod
    def wrapped_input(weight: ast.expr, given: ast.expr, at: Context) -> ast.Call | None:
        """The call of a wrapped layer with the input that also meets an adapter's weights, uncast.

        The adapter's weights are entries of a dict of the class, the input is a parameter.
        """
        entries = [
            o for o in Sink.origins(weight, at, 0)
            if isinstance(o, ast.Subscript) and ATTRIBUTE.match(at.text(o.value))
        ]  # fmt: skip
        origins = [*Sink.origins(weight, at, 0), *Sink.origins(given, at, 0)]
        if any(isinstance(o, ast.Call) and Apart.asks_dtype(o.func) for o in origins):
            return None
        names = {o.id for o in Sink.origins(given, at, 0) if isinstance(o, ast.Name)}
        inputs = names & {p.arg for p in at.function.parameters()}
        if not entries or len(inputs) != 1 or not at.plausible:
            return None
        if any(isinstance(part, ast.MatMult) for part in ast.walk(given)):
            return None  # the first product of the chain is reported
        if _meets_entry(given, at):
            return None  # which promoted it to their dtype
        (name,) = inputs
        if any(_cast_of(part, name) for part in ast.walk(at.function.node)):
            return None
        for part in ast.walk(at.function.node):
            if isinstance(part, ast.Call) and any(
                isinstance(a, ast.Name) and a.id == name for a in part.args
            ):
                if WRAPPED.search(at.text(part.func)):
                    return part
        return None

    @staticmethod
    def from_two_parameters(operands: Sequence[ast.expr], at: Context) -> bool:
        """Whether two operands come from two parameters of a function that belongs to no class."""
        if at.function.cls is not None:
            return False
        parameters = {p.arg for p in at.function.parameters()}
        found = [
            {o.id for o in Sink.origins(operand, at, 0) if isinstance(o, ast.Name)} & parameters
            for operand in operands
        ]
        cast = any(
            isinstance(part, ast.Attribute) and part.attr in ("dtype", "type_as", "float", "to")
            for part in ast.walk(at.function.node)
        )
        return (
            all(found)
            and not found[0] & found[1]
            and not cast
            and not any(ATTENTION.match(name) for names in found for name in names)
        )

    @staticmethod
    def by_test(node: ast.AST, at: Context) -> bool:
        """Whether a node stands where a test has found that two dtypes differ."""
        inner = node
        for around in at.ancestors(node):
            if isinstance(around, (ast.If, ast.IfExp)) and inner is not around.test:
                arm = around.body if isinstance(around.body, list) else [around.body]
                match around.test:
                    case ast.Compare(
                        left=ast.Attribute(attr="dtype"),
                        ops=[op],
                        comparators=[ast.Attribute(attr="dtype")],
                    ) if isinstance(op, ast.Eq if inner not in arm else ast.NotEq):
                        return True
            inner = around
        return False

    @staticmethod
    def in_other_branch(a: ast.expr, b: ast.expr, at: Context) -> bool:
        """Whether two assigned values are in the two branches of one ``if``."""
        first, second = at.statement(a), at.statement(b)
        if first is None or second is None:
            return False
        parent = at.parents.get(id(first))
        if not isinstance(parent, ast.If) or parent is not at.parents.get(id(second)):
            return False
        return any(s is first for s in parent.body) != any(s is second for s in parent.body)

    @staticmethod
    def read_before(name: ast.Name, use: ast.Name, at: Context) -> bool:
        """Whether ``use`` passes the same name to a call earlier in the source."""
        call = at.parents.get(id(use))
        return (
            isinstance(call, ast.Call)
            and call.end_lineno is not None
            and use in call.args
            and (call.end_lineno, call.col_offset) < (name.lineno, 0)
        )

    @staticmethod
    def weight_of_device(node: ast.Call, at: Context) -> ast.expr | None:
        """The weights of a module whose device a creation follows, perhaps by way of a name."""
        given = next((k.value for k in node.keywords if k.arg == "device"), None)
        if isinstance(given, ast.Name):
            given = at.definition(given.id, node)
        if not isinstance(given, ast.Attribute) or given.attr != "device":
            return None
        owner = given.value
        text = at.text(owner)
        return owner if "parameters()" in text or re.search(r"\.(weight|bias)\b", text) else None

    @staticmethod
    def cast_when_used(parameter: ast.Call, at: Context) -> bool:
        """Whether the class casts a parameter, or what meets it, where it is used."""
        parent = at.parents.get(id(parameter))
        target = parent.targets[0] if isinstance(parent, ast.Assign) else None
        cls = at.function.cls
        if target is None or cls is None:
            return True
        name = at.text(target.value if isinstance(target, ast.Subscript) else target)
        return any(
            isinstance(part, ast.Attribute)
            and part.attr in ("dtype", "to", "type_as", "float")
            and at.text(part.value).startswith(name)
            for part in ast.walk(cls.node)
        )

    @staticmethod
    def given_matrix(half: ast.expr, wide: ast.expr, at: Context) -> bool:
        """Whether an operand is the matrix that a helper is given for what it casts up itself,
        which had better be float32 as well; the operands of attention go together."""
        parameters = {p.arg for p in at.function.parameters()}
        if not isinstance(half, ast.Name) or half.id not in parameters:
            return False
        given = half.id not in at.function.assigned or at.mentions(rf"\bif {half.id} is None:")
        made = at.definition(wide.id, wide) if isinstance(wide, ast.Name) else None
        sides = [made.left, made.right] if isinstance(made, ast.BinOp) else []
        return (
            given
            and at.function.name != "forward"
            and any("cast" in at.value(node).tags for node in (wide, *sides))
            and ATTENTION.fullmatch(half.id.lower()) is None
        )

    @staticmethod
    def feeds_kernel(use: ast.expr, at: Context) -> bool:
        """Whether the name that a joined tensor is bound to goes into a custom function's
        ``apply``, whose kernel may want float32."""
        statement = at.statement(use)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        return isinstance(target, ast.Name) and any(
            isinstance(call.func, ast.Attribute)
            and call.func.attr == "apply"
            and at.text(call.func.value)[:1].isupper()
            for read in at.uses(target.id)
            if isinstance(call := at.parents.get(id(read)), ast.Call) and read in call.args
        )

    @staticmethod
    def cast_next(use: ast.expr, at: Context) -> bool:
        """Whether the name that a joined tensor is bound to is first read to be cast."""
        statement = at.statement(use)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        if not isinstance(target, ast.Name):
            return False
        reads = [
            node
            for node in ast.walk(at.function.node)
            if isinstance(node, ast.Name) and node.id == target.id
            and isinstance(node.ctx, ast.Load) and node.lineno > (use.end_lineno or 0)
        ]  # fmt: skip
        if not reads:
            return False
        first = at.parents.get(id(min(reads, key=lambda node: (node.lineno, node.col_offset))))
        return isinstance(first, ast.Attribute) and first.attr in (
            "float",
            "to",
            "type",
            "type_as",
            "double",
        )

    @staticmethod
    def sampled_like(node: ast.expr, owner: ast.expr, at: Context) -> bool:
        """Whether what the statement of ``node`` binds is called with the shape of a tensor."""
        statement = at.statement(node)
        if not isinstance(statement, ast.Assign):
            return False
        sampler, name = at.text(statement.targets[0]), at.text(owner)
        return any(
            isinstance(part, ast.Call)
            and at.text(part.func).startswith(sampler)
            and any(at.text(given) in (f"{name}.shape", f"{name}.size()") for given in part.args)
            for part in ast.walk(at.function.node)
        )

    @staticmethod
    def asks_dtype(node: ast.expr) -> bool:
        """Whether an expression gives its result a dtype by name or after another tensor."""
        return any(
            (isinstance(part, ast.keyword) and part.arg == "dtype")
            or (isinstance(part, ast.Attribute) and part.attr in ("dtype", "type_as", "to", "type"))
            for part in ast.walk(node)
        )


def _meets_entry(node: ast.expr, at: Context, depth: int = 3) -> bool:
    """Whether a value was multiplied with an entry of a dict of the class, an adapter's tensor."""
    if isinstance(node, ast.Name) and depth:
        sources = at.function.assigned.get(node.id, [])
        return any(_meets_entry(source, at, depth - 1) for source in sources)
    called = node.func if isinstance(node, ast.Call) else None
    entries = [node.left, node.right] if isinstance(node, ast.BinOp) else []
    if isinstance(node, ast.Call):
        entries = [*node.args]
    return any(
        _meets_entry(part, at, depth)
        or (isinstance(part, ast.Subscript) and ATTRIBUTE.match(at.text(part.value)) is not None)
        for part in entries
        if part is not called
    )


def _is_device(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "device"
    return isinstance(node, ast.Name) and "device" in node.id


def _cast_of(part: ast.AST, name: str) -> bool:
    """Whether a node casts what a name holds, or hands it to a helper that does."""
    if not isinstance(part, ast.Call):
        return False
    func = part.func
    if isinstance(func, ast.Attribute) and func.attr in ("to", "type", "type_as", "float"):
        return isinstance(func.value, ast.Name) and func.value.id == name
    called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    return "cast" in called and any(isinstance(a, ast.Name) and a.id == name for a in part.args)
