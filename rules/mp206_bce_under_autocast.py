from __future__ import annotations

import ast
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Rule,
    Severity,
    operators,
)

FUNCTION = "torch.nn.functional.binary_cross_entropy"
CLASS = "torch.nn.BCELoss"
SIGMOIDS = frozenset({"torch.sigmoid", "torch.nn.functional.sigmoid", "torch.special.expit"})

NAMED = "what the callee's name stands for elsewhere in this file, BCELoss,"
"""A call of a name that this file binds to a BCELoss in another function."""


class BceUnderAutocast(Rule):
    """binary_cross_entropy or BCELoss in a CUDA autocast region, where torch refuses to run it.

    ## What it flags
    `F.binary_cross_entropy(...)` and calls of an `nn.BCELoss` under autocast for CUDA or a device
    that is only known at run time.

    A call of a name (`criterion`, `self.losses["gan"]`) that another function of the file binds to
    an `nn.BCELoss` counts; it is `possible` where the name is bound to others too.

    It stays silent under `autocast(enabled=False)`, for a region on the CPU, whose autocast runs
    the loss in float32, and for the forms with logits. A function that no region is known to
    reach is only `possible`, because the loss may be taken after the region.

    ## Why it breaks
    A probability that was rounded to 0 or 1 in half has an infinite logarithm, so torch raises
    `binary_cross_entropy and torch.nn.BCELoss are unsafe to autocast`. `.float()` on the operands
    does not help: the check is on the region. `binary_cross_entropy_with_logits` is fine.

    ## Example
    ```python
    loss = F.binary_cross_entropy(torch.sigmoid(logits), target)
    ```
    Use instead:
    ```python
    loss = F.binary_cross_entropy_with_logits(logits, target)
    ```

    ## Fix safety
    Where a sigmoid is all that makes the argument, and nothing else uses it, the fix takes its
    logits. That is unsafe: float32 results change in the last digits, and where the sigmoid
    saturates (beyond 16.6 in float32) the plain form stops at its clamp of 100 with a gradient of
    0, and the new one goes on. Everywhere else the loss is taken in float32 under
    `autocast(enabled=False)`, which is safe. The upcast goes on what a sigmoid in sight is taken
    of: one that ran in half is 1 from logits of 8.3 on, where the gradient of the loss is infinite.

    ## How to silence
    `# precision-lint: ignore[MP206] reason` or `# noqa: MP206` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: "Prefer binary_cross_entropy_with_logits over
    binary_cross_entropy".
    """

    code = "MP206"
    name = "bce-under-autocast"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(ast.Call, pattern=r"\bBCELoss\b|\bbinary_cross_entropy\b")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        what = _loss(node, at)
        if what is None or len(node.args) + len(node.keywords) < 2:
            return
        region = at.region(node)
        if region.state == "off" or (region.state == "on" and not region.on):
            return
        if region.device == "cpu":
            return
        if what == NAMED:
            confidence = _named(node, at) if region.known else Confidence.POSSIBLE
        elif region.on and region.called is None and not region.foreign and region.sure:
            confidence = Confidence.CERTAIN
        elif region.known:
            confidence = Confidence.LIKELY
        else:
            confidence = Confidence.POSSIBLE
        fix = self._with_logits(node, at) or self._outside(node, at)
        evidence = [*at.why(region)]
        if not region.known and at.project.ambient is not None:
            evidence.append(at.project.ambient)
        producer = _producer(node, at)
        if producer is not None and producer is not _input(node):
            evidence.append(at.note(producer, "the sigmoid is taken here"))
        yield at.finding(
            node,
            f"{what} raises under CUDA autocast, whatever the dtype of its operands",
            confidence,
            evidence=[*evidence, *at.around(node, "this statement leaves autocast")],
            fix=fix,
        )

    @staticmethod
    def _with_logits(node: ast.Call, at: Context) -> Fix | None:
        """The form with logits, where the sigmoid is the only thing between them and the loss."""
        given, sigmoid = _input(node), _producer(node, at)
        edits = _renamed(node, at)
        logits = _logits(sigmoid, at) if sigmoid is not None else None
        if sigmoid is None or logits is None or edits is None or given is None:
            return None
        taken = at.edit.put(given, at.text(logits))
        if taken is None:
            return None
        edits += taken
        if sigmoid is not given:
            assert isinstance(given, ast.Name)
            statement = at.statement(sigmoid)
            names = {n.id for n in ast.walk(logits) if isinstance(n, ast.Name)}
            kept = all(at.same_at(name, sigmoid, node) for name in names)
            if statement is None or not kept or not _pure(logits):
                return None
            gone = at.edit.remove(statement, _siblings(statement, at))
            if gone is None:
                return None
            edits += gone
        return Fix(
            "take the loss of the logits",
            Applicability.UNSAFE,
            edits,
            "float32 results change in the last digits, and beyond 16.6, where the sigmoid is 1",
        )

    @staticmethod
    def _outside(node: ast.Call, at: Context) -> Fix | None:
        inputs = [o for o in (_input(node), _argument(node, 1, "target")) if o is not None]
        bare = [o for o in inputs if at.value(o).dtype not in ("float32", "float64")]
        # a sigmoid that is 1 in half has an infinite gradient: upcast what it is taken of
        early: tuple[Edit, ...] = ()
        for place, operand in enumerate(bare):
            logits = _logits(operand, at)
            if logits is not None:
                bare[place] = logits
        sigmoid = _producer(node, at)
        logits = _logits(sigmoid, at) if sigmoid is not None else None
        made = at.statement(sigmoid) if sigmoid is not None else None
        if logits is not None and made is not None and made is not at.statement(node):
            added = at.edit.append(made, {logits: ".float()"})
            if added is not None:
                early, bare = added, [o for o in bare if o is not _input(node)]
        edits = at.without_autocast(node, bare, "bce", inputs)
        title = "take the loss in float32, outside autocast"
        return Fix(title, Applicability.SAFE, early + edits) if edits is not None else None


def _loss(node: ast.Call, at: Context) -> str | None:
    """What a call is called if it takes the loss of probabilities."""
    if at.qualify(node.func) == FUNCTION:
        return "binary_cross_entropy"
    made = at.value(node.func)
    func, cls = node.func, at.function.cls
    if isinstance(func, ast.Attribute) and cls is not None and at.text(func.value) == "self":
        made = at.module.attribute(cls, func.attr)
    if made.kind == "callable" and made.const == CLASS and "instance" in made.tags:
        return "BCELoss"
    return NAMED if made.const is None and _made(node, at) else None


def _made(node: ast.Call, at: Context) -> list[bool]:
    """For each value that this file gives a name like the callee's, whether it is a BCELoss."""
    func = node.func.value if isinstance(node.func, ast.Subscript) else node.func
    last = getattr(func, "attr", getattr(func, "id", ""))
    found: list[bool] = []
    for function in (at.module.index.top, *at.module.index.functions) if "BCE" not in last else ():
        for part in function.nodes:
            if isinstance(part, ast.Assign) and not isinstance(part.value, ast.Name):
                names = {getattr(t, "attr", getattr(t, "id", "")) for t in part.targets}
                if last in names:
                    chain = [n for n in ast.walk(part.value) if isinstance(n, ast.Call)]
                    one = isinstance(part.value, ast.Call)
                    found.append(any(at.qualify(n.func) == CLASS for n in chain))
                    found += [] if one else [False]
    return found if any(found) else []


def _named(node: ast.Call, at: Context) -> Confidence:
    return Confidence.LIKELY if all(_made(node, at)) else Confidence.POSSIBLE


def _argument(node: ast.Call, place: int, name: str) -> ast.expr | None:
    named = next((k.value for k in node.keywords if k.arg == name), None)
    if named is not None or len(node.args) <= place:
        return named
    return node.args[place]


def _input(node: ast.Call) -> ast.expr | None:
    return _argument(node, 0, "input")


def _producer(node: ast.Call, at: Context) -> ast.expr | None:
    """The sigmoid that makes the probabilities of this loss and of nothing else."""
    given = _input(node)
    if isinstance(given, ast.Name):
        loads = [use for use in at.uses(given.id) if isinstance(use.ctx, ast.Load)]
        sources = at.function.assigned.get(given.id, [])
        if len(loads) != 1 or len({id(source) for source in sources}) != 1:
            return None
        statement = at.statement(sources[0])
        alone = (
            isinstance(statement, ast.Assign)
            and statement.value is sources[0]
            and len(statement.targets) == 1
            and isinstance(statement.targets[0], ast.Name)
        )
        given = sources[0] if alone else None
    return given if given is not None and _logits(given, at) is not None else None


def _logits(node: ast.expr, at: Context) -> ast.expr | None:
    """The operand of a sigmoid."""
    if not isinstance(node, ast.Call) or node.keywords:
        return None
    qualified = at.qualify(node.func)
    if qualified in SIGMOIDS and len(node.args) == 1:
        return node.args[0]
    if qualified is None and isinstance(node.func, ast.Attribute) and not node.args:
        return node.func.value if node.func.attr == "sigmoid" else None
    return None


def _renamed(node: ast.Call, at: Context) -> tuple[Edit, ...] | None:
    """Edits that call the form with logits instead; a loss made elsewhere stays what it is."""
    callee = node.func
    if isinstance(callee, ast.Call) and at.qualify(callee.func) == CLASS:
        callee, new = callee.func, "BCEWithLogitsLoss"
    elif at.qualify(callee) == FUNCTION:
        new = "binary_cross_entropy_with_logits"
    else:
        return None
    if not isinstance(callee, ast.Attribute):
        return None  # imported by name
    return at.edit.put(callee, f"{at.text(callee.value)}.{new}")


def _pure(node: ast.expr) -> bool:
    """Whether an expression may be evaluated later without a difference."""
    return all(isinstance(n, (ast.Name, ast.Attribute, ast.expr_context)) for n in ast.walk(node))


def _siblings(statement: ast.stmt, at: Context) -> list[ast.stmt]:
    parent = at.parents.get(id(statement))
    blocks = [getattr(parent, name, None) for name in ("body", "orelse", "finalbody")]
    return next((b for b in blocks if isinstance(b, list) and statement in b), [statement])
