"""What a rule can ask about a candidate."""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

from precision_lint.api import Confidence, Edit, Evidence, Finding, Fix, Position, Rule, Severity
from precision_lint.project.amp import Project
from precision_lint.semantics import flow, given, handed, products, repair
from precision_lint.semantics.halves import Halves
from precision_lint.semantics.idle import is_idle, is_spared
from precision_lint.semantics.index import Function
from precision_lint.semantics.interp import Interpreter
from precision_lint.semantics.module import Module
from precision_lint.semantics.names import dotted
from precision_lint.semantics.regions import Region
from precision_lint.semantics.values import INF, UNKNOWN, Value
from precision_lint.semantics.violations import Violation
from precision_lint.slices import Editor
from precision_lint.source import Source

EXAMPLES = frozenset({"example", "examples", "tutorial", "tutorials", "docs"})
"""Directories whose files are run by themselves."""
BUILTINS = frozenset(dir(builtins))


class Context(Halves):
    """The analysis as seen from one candidate in one function of one file."""

    def __init__(
        self,
        rule: type[Rule],
        source: Source,
        module: Module,
        project: Project,
        function: Function,
        editor: Editor,
    ) -> None:
        self.rule = rule
        self.source = source
        self.module = module
        self.project = project
        self.function = function
        self.edit = editor

    def inside(self, function: Function) -> Context:
        """The same from another function of this module."""
        return self.of(self.module, function)

    def of(self, module: Module, function: Function) -> Context:
        """The same from a function of any module, for what needs no text of it."""
        return Context(self.rule, self.source, module, self.project, function, self.edit)

    # knowledge

    def least(self, value: Value) -> float:
        """Lower bound of a value, for a parameter also by what is passed in this module."""
        if value.lo > -INF or not value.variable:
            return value.lo
        passed = self.module.arguments(self.function, value.dtype[1:])
        return min((one.value.lo for one in passed), default=value.lo)

    @cached_property
    def analysis(self) -> Interpreter:
        return self.module.analysis(self.function)

    def value(self, node: ast.expr) -> Value:
        """Abstract value of an expression of this function."""
        return self.analysis.values.get(id(node), UNKNOWN)

    @property
    def changes_region(self) -> bool:
        """Whether the autocast state may change inside this function."""
        return self.module.changes_region(self.function)

    def region(self, node: ast.expr) -> Region:
        """Autocast state under which a call or operator runs."""
        entered = self.module.entry_region(self.function)
        if not self.changes_region:
            return entered  # what its values are does not matter
        return self.analysis.regions.get(id(node), entered)

    def qualify(self, node: ast.expr) -> str | None:
        return self.module.qualify(node)

    def is_plain(self, call: ast.expr | ast.stmt) -> bool:
        """Whether a call is of one of Python's own functions, or of a base's constructor."""
        match call:
            case ast.Call(func=ast.Attribute(attr="__init__")):
                return True
            case ast.Call(func=ast.Name(id=name)):
                return name in BUILTINS and name not in self.module.index.names.bound
        return False

    @cached_property
    def without_gradient(self) -> bool:
        """Whether this function never has a backward pass."""
        return self.module.ungraded(self.function)

    def operation(self, node: ast.expr) -> tuple[str, ast.expr] | None:
        """Name and first operand of a call of a torch function or tensor method."""
        return flow.operation(node, self)

    def products_reached(self, node: ast.expr) -> list[ast.Call | ast.BinOp]:
        """Matrix products that the value of the statement around ``node`` goes into."""
        statement = self.statement(node)
        found: list[ast.Call | ast.BinOp] = [
            n
            for n in self.ancestors(node)
            if isinstance(n, ast.BinOp) and isinstance(n.op, ast.MatMult)
        ]
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            found += flow.products_reached(statement.targets[0].id, self, set())
        return found

    def definition(self, name: str, use: ast.expr) -> ast.expr | None:
        """What a local name was last bound to before ``use`` in source order."""
        return flow.definition(name, use, self)

    def reaches_layer(self, node: ast.expr) -> bool:
        """Whether a value goes on into a layer or a product in this function, uncast."""
        return flow.reaches_layer(node, self)

    def is_tensor(self, node: ast.expr) -> bool:
        """Whether an expression is a tensor, or is used as one somewhere in this function."""
        value = self.value(node)
        return value.is_tensor or value.dtype in self.analysis.tensors

    def stays_elementwise(self, name: str) -> bool:
        """Whether every use of a local name ends in a reduction, none in a layer or product."""
        return flow.stays_elementwise(name, self, set())

    def believes(self, evidence: Evidence) -> bool:
        """Whether what the project does elsewhere says something of this file: an example, which
        is run by itself, is not told by other directories."""
        # one may be shown from the root, the other from where the tool runs
        here, there = (
            Path(self.source.filename).absolute(),
            Path(evidence.filename or "").absolute(),
        )
        below_root = Path(self.module.path or self.source.filename).parts[:-1]
        return not EXAMPLES & set(below_root) or here.parent == there.parent

    def from_layer(self, value: Value) -> bool:
        """Whether callers hand a layer's output down to what a value is made of."""
        return handed.is_activation(value, self)

    def module_dtypes(self, node: ast.expr) -> set[str]:
        """The half dtypes that a module may have been given, here or where a caller has it from."""
        return given.weights(self.module, self.function, self.value(node))

    # products

    def product(self, node: ast.Call | ast.BinOp) -> tuple[str, list[ast.expr]]:
        """Name and operands of a matrix product or contraction."""
        return products.product(node, self)

    def geometry(self, node: ast.expr, operands: Sequence[ast.expr]) -> str | None:
        """Why a product is believed to be geometry, or None."""
        return products.geometry(node, operands, self)

    @staticmethod
    def is_upcast(node: ast.expr) -> bool:
        """Whether an expression is ``x.float()``."""
        return products.is_upcast(node)

    # places

    def span(self, node: ast.expr | ast.stmt) -> tuple[Position, Position]:
        start = self.source.position(self.source.offset(node.lineno, node.col_offset))
        end = self.source.position(
            self.source.offset(node.end_lineno or node.lineno, node.end_col_offset or 0)
        )
        return start, end

    def note(self, node: ast.expr | ast.stmt, message: str) -> Evidence:
        """A link of the evidence chain at a place in this file."""
        return Evidence(message, *self.span(node))

    def mentions(self, pattern: str) -> bool:
        """Whether a regular expression matches somewhere in this function's text."""
        known = self.function.mentions
        if pattern not in known:
            node, start, end = self.function.node, 0, len(self.source.text)
            if not isinstance(node, ast.Module):
                start, end = self.edit.offset(node), self.edit.end(node)
            found = re.compile(pattern).search(self.source.text[start:end]) is not None
            if not self.module.holds(self.function):
                return found  # a place of another file, in the text of this one
            known[pattern] = found
        return known[pattern]

    def text(self, node: ast.expr) -> str:
        """Source text of an expression."""
        function = self.function
        known = function.texts if id(node) in function.parents else self.module.texts
        if node not in known:
            known[node] = self.source.text[self.edit.offset(node) : self.edit.end(node)]
        return known[node]

    @property
    def parents(self) -> dict[int, ast.AST]:
        """Parent of every node of this function, by id."""
        return self.function.parents

    def uses(self, name: str) -> list[ast.Name]:
        """Every place of this function, and of those inside it, that mentions a local name."""
        return self.function.names.get(name, [])

    def ancestors(self, node: ast.AST) -> Iterable[ast.AST]:
        """Nodes around ``node``, innermost first, up to the function."""
        parent = self.parents.get(id(node))
        while parent is not None:
            yield parent
            parent = self.parents.get(id(parent))

    def statement(self, node: ast.AST) -> ast.stmt | None:
        """The innermost statement around a node."""
        if isinstance(node, ast.stmt):
            return node
        return next((n for n in self.ancestors(node) if isinstance(n, ast.stmt)), None)

    def after(self, statement: ast.stmt) -> list[ast.stmt]:
        """The statements that follow one in its block."""
        block = repair.siblings(statement, self.parents.get(id(statement)))
        return block[next(i for i, s in enumerate(block) if s is statement) + 1 :]

    def without_autocast(
        self,
        node: ast.Call | ast.BinOp,
        operands: Sequence[ast.expr],
        name: str,
        inputs: Sequence[ast.expr] = (),
    ) -> tuple[Edit, ...] | None:
        """Edits that run a product on its operands' float32 outside of autocast.

        ``name`` is bound to the product where its statement does more than reshape it.
        ``inputs``: all operands, of operations that ``product`` does not know.
        """
        statement = self.statement(node)
        device = self.device(inputs or self.product(node)[1], self.region(node))
        addend = products.addend(node, self)
        if addend is not None and addend not in operands:
            operands = (*operands, addend)  # has to be of their dtype
        if statement is None or device is None:
            return None
        spelling, imports = self.torch()
        header = f"with {spelling}.autocast(device_type={device}, enabled=False):"
        whole = products.only_reshapes(getattr(statement, "value", None), node)
        bound = None if whole else self.fresh(name)
        edits = self.edit.without_autocast(statement, node, operands, header, bound)
        return None if edits is None else (*imports, *edits)

    def around(self, node: ast.expr, message: str) -> tuple[Evidence, ...]:
        """A note on the statement around a node, if that starts on a row of its own."""
        statement = self.statement(node)
        if statement is None or statement.lineno == node.lineno:
            return ()
        return (self.note(statement, message),)

    def bound_before(self, name: str, node: ast.expr) -> bool:
        """Whether a name already has its value where ``node`` is evaluated."""
        return flow.bound_before(name, node, self)

    def same_at(self, name: str, made: ast.expr, use: ast.expr) -> bool:
        """Whether a name stands for the same value at ``made`` and where ``use`` reads it."""
        return flow.same_at(name, made, use, self)

    # fixes

    def unscale_first(
        self, violation: Violation
    ) -> tuple[tuple[Edit, ...], tuple[ast.stmt, ...]] | None:
        """Edits that unscale before a read, and the later ``unscale_`` statements they remove."""
        return repair.unscale_first(violation, self)

    def remove(self, call: ast.Call) -> tuple[Edit, ...] | None:
        """Edits that delete the statement a call stands in."""
        return repair.remove(call, self)

    def move_into_step_branch(self, violation: Violation) -> tuple[Edit, ...] | None:
        """Edits that move an ``unscale_`` to the top of the branch that steps."""
        return repair.move_into_step_branch(violation, self)

    def append(self, suffixes: Mapping[ast.expr, str]) -> tuple[Edit, ...] | None:
        """Edits that put method calls such as ``.float()`` behind expressions of any statements."""
        by_statement: dict[int, tuple[ast.stmt, dict[ast.expr, str]]] = {}
        for node, text in suffixes.items():
            statement = self.statement(node)
            if statement is None:
                return None
            by_statement.setdefault(id(statement), (statement, {}))[1][node] = text
        edits: list[Edit] = []
        for statement, texts in by_statement.values():
            added = self.edit.append(statement, texts)
            if added is None:
                return None
            edits += added
        return tuple(edits)

    def torch(self) -> tuple[str, tuple[Edit, ...]]:
        """How this module spells ``torch``, and the edits that import it if it does not yet."""
        spelling = self.module.index.names.spelling("torch")
        return (spelling, ()) if spelling else ("torch", self.edit.import_line("import torch"))

    def device(self, operands: Iterable[ast.expr], region: Region) -> str | None:
        """Source text of the device type of the first operand that has a name."""
        for operand in operands:
            node = operand
            while isinstance(node, (ast.Call, ast.Subscript)) or (
                isinstance(node, ast.Attribute) and node.attr in ("T", "mT", "data")
            ):
                if isinstance(node, ast.Call):
                    if not isinstance(node.func, ast.Attribute) or self.qualify(node.func):
                        break
                    node = node.func.value
                else:
                    node = node.value
            name = dotted(node)
            if name is not None and self.value(node).kind != "callable":
                return f"{name}.device.type"
        return f'"{region.device}"' if region.device else None

    def fresh(self, name: str) -> str:
        """``name``, or ``name_2`` and so on if this function uses it already."""
        used = self.module.names_in(self.function)
        candidate, count = name, 2
        while candidate in used:
            candidate, count = f"{name}_{count}", count + 1
        return candidate

    def finding(
        self,
        node: ast.expr | ast.stmt,
        message: str,
        confidence: Confidence,
        *,
        severity: Severity | None = None,
        evidence: Iterable[Evidence] = (),
        fix: Fix | None = None,
    ) -> Finding:
        start, end = self.span(node)
        if confidence is Confidence.LIKELY and (is_idle(node, self) or is_spared(node, self)):
            confidence = Confidence.POSSIBLE
        return Finding(
            message, start, end, confidence, severity or self.rule.severity, tuple(evidence), fix
        )
