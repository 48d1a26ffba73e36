from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    BadArguments,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Severity,
    calls,
    operators,
)

REGIONS = frozenset({"torch.autocast", "torch.amp.autocast", "torch.cuda.amp.autocast"})
HALVES = frozenset({"torch.bfloat16", "torch.float16", "torch.half"})


class AutocastBadArguments(Rule):
    """Arguments of autocast or GradScaler that raise, or that mean something else in silence.

    ## What it flags
    - A keyword that the callable does not have: `torch.cuda.amp.autocast(device_type="cuda")`,
      `autocast("cuda", enable=False)`, `torch.amp.GradScaler(device_type="cuda")`.
    - A missing device type (also where `**settings` of the function would have to bring it, and
      none of its calls does), a `torch.device` or a dtype in its place, or one that torch does not
      know (`"gpu"`).
    - A flag where the dtype stands (`autocast("cuda", False)`), a dtype as text.
    - What is taken for another parameter without an error:
      `torch.cuda.amp.autocast(torch.bfloat16)` runs in float16, `torch.cuda.amp.GradScaler(False)`
      has the initial scale 0, after which parameters are nan, `torch.cuda.amp.GradScaler(use_amp)`
      the scale 1, and `torch.amp.GradScaler(False)` is on.
    - `autocast("cuda", torch.float32)`, which runs the listed operations in float32, so that
      nothing is mixed any more; as a warning, not inside of another region, and only `possible` in
      a function that does not train.
    - A region without `dtype` that is entered because of a name for one (`enabled=dtype is not
      None`), where that name may be bfloat16: the region is float16 all the same.

    - `autocast` as a decorator or manager without a call of it, and `with autocast(...) and
      torch.no_grad():`, which enters the second only.
    - A name that the oldest torch of the project's metadata does not have (`torch.amp.GradScaler`
      before 2.3), unless the file asks for the version.
    - `possible` only: the text of a whole device (`str(x.device)`) or a `device` of unknown kind as
      the device type, of a wrapper too (`MyAutocast(device_type=self.device)`); a region that a
      default of the code switches on (`enabled=getattr(args, "amp", True)`); a literal half dtype
      in a function that has a `self.dtype`.

    It stays silent for `"cuda:0"`, which works, for `*args`, for `**options` unless a dict in the
    same function has a wrong key, for a name that is imported from two places where they differ,
    and in a `try` that catches the error.

    ## Why it breaks
    `torch.autocast(device_type, dtype, enabled)` and `torch.cuda.amp.autocast(enabled, dtype)` take
    their parameters in another order, and so do the two GradScalers. Some mixtures raise a
    TypeError or a ValueError where the region is entered; the others train in another precision
    than the code says.

    ## Example
    ```python
    scaler = torch.cuda.amp.GradScaler(use_amp)
    ```
    Use instead:
    ```python
    scaler = torch.cuda.amp.GradScaler(enabled=use_amp)
    ```

    ## Fix safety
    Safe where the argument says what is meant: it gets its name, or its right spelling. Where the
    device is missing, `"cuda"` is a guess, and the fix unsafe. float32 in a region and a dtype that
    is not passed on have no fix.

    ## How to silence
    `# precision-lint: ignore[MP210] reason` or `# noqa: MP210` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: `torch.autocast`, `torch.amp.GradScaler`; executed
    with torch 2.13.
    """

    code = "MP210"
    name = "autocast-bad-arguments"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = calls(
        "torch.autocast",
        "torch.amp.autocast",
        "torch.cuda.amp.autocast",
        "torch.cpu.amp.autocast",
        "torch.amp.GradScaler",
        "torch.cuda.amp.GradScaler",
        "torch.cpu.amp.GradScaler",
    ) | operators(ast.With, ast.FunctionDef, ast.Dict, ast.keyword, pattern=r"[aA]utocast")

    def check(
        self, node: ast.Call | ast.With | ast.FunctionDef | ast.Dict | ast.keyword, at: Context
    ) -> Iterator[Finding]:
        if isinstance(node, ast.keyword):
            call = BadArguments.wrapped(node, at)
            if call is not None:
                yield at.finding(
                    node.value,
                    f"{at.text(call.func)} gets a device as its device type: autocast takes the "
                    "type as text",
                    Confidence.POSSIBLE,
                )
            return
        if isinstance(node, ast.Dict):
            yield from _on_by_default(node, at)
            return
        if isinstance(node, ast.FunctionDef):
            yield from _uncalled(node.decorator_list, at)
            return
        if isinstance(node, ast.With):
            for item in node.items:
                if isinstance(item.context_expr, ast.Call):
                    yield from _left_out(item.context_expr, node, at)
            yield from _uncalled([item.context_expr for item in node.items], at)
            return
        yield from _chosen(node, at)
        if any(isinstance(p, ast.Try) and p.handlers for p in at.ancestors(node)):
            return
        problem = BadArguments.of(node, at)
        if problem is None:
            return
        fix = None
        if problem.edits is not None:
            level = Applicability.UNSAFE if problem.guess else Applicability.SAFE
            fix = Fix("say what is meant", level, problem.edits, problem.guess)
        yield at.finding(
            node,
            problem.message,
            problem.confidence,
            severity=problem.severity,
            evidence=at.why(at.region(node)) if problem.severity is Severity.WARNING else (),
            fix=fix,
        )


def _uncalled(managers: list[ast.expr], at: Context) -> Iterator[Finding]:
    """Autocast itself where a region is meant: a decorator or a manager without parentheses."""
    for manager in managers:
        message = BadArguments.uncalled(manager, at)
        if message is not None:
            yield at.finding(manager, message, Confidence.CERTAIN)


def _chosen(node: ast.Call, at: Context) -> Iterator[Finding]:
    """Regions that a default switches on, or whose dtype is not the one that the class has."""
    if not (at.qualify(node.func) or "").endswith("autocast"):
        return
    yield from _on_by_default(node, at)
    dtype = next((k.value for k in node.keywords if k.arg == "dtype"), None)
    if dtype is None or at.qualify(dtype) not in HALVES:
        return
    own = next((n for n in at.function.nodes if _is_own_dtype(n)), None)
    if isinstance(own, ast.expr):
        yield at.finding(
            node,
            f"the region runs in {at.text(dtype)}, whatever {ast.unparse(own)} is",
            Confidence.POSSIBLE,
            severity=Severity.WARNING,
            evidence=(at.note(own, "the function has a dtype of its own"),),
        )


def _on_by_default(node: ast.Call | ast.Dict, at: Context) -> Iterator[Finding]:
    default = BadArguments.default_on(node, at)
    if default is not None:
        yield at.finding(
            node,
            f"mixed precision is on unless somebody says otherwise: {ast.unparse(default)}",
            Confidence.POSSIBLE,
            severity=Severity.INFO,
        )


def _is_own_dtype(node: ast.AST) -> bool:
    """Whether a node is a dtype that options or the object hold: ``self.dtype``."""
    return (
        isinstance(node, ast.Attribute)
        and re.fullmatch(r"\w*dtype|precision", node.attr) is not None
        and isinstance(node.value, ast.Name)
        and node.value.id in ("self", "args", "cfg", "config", "opt", "hparams", "params")
    )


def _left_out(region: ast.Call, entered: ast.With, at: Context) -> Iterator[Finding]:
    """A region without a dtype that is entered because a name for one says so."""
    if len(region.args) > 1 or any(
        k.arg not in ("device_type", "enabled") for k in region.keywords
    ):
        return
    callee, tests = region.func, [k.value for k in region.keywords if k.arg == "enabled"]
    if isinstance(callee, ast.Name) and at.qualify(callee) not in REGIONS:
        chosen = at.definition(callee.id, callee)
        if not isinstance(chosen, ast.IfExp):
            return
        callee = chosen.body
        tests.append(chosen.test)
    if at.qualify(callee) not in REGIONS or "cpu" in at.text(region):
        return
    tests += [
        around.test
        for around in at.ancestors(entered)
        if isinstance(around, ast.If) and entered.lineno <= (around.body[-1].end_lineno or 0)
    ]
    if any("16" in at.text(test) or "half" in at.text(test) for test in tests):
        return  # it says which dtype this is
    asked = {n.id for test in tests for n in ast.walk(test) if isinstance(n, ast.Name)}
    for name in sorted(asked):
        made = [
            value for value in at.function.assigned.get(name, []) if at.qualify(value) in HALVES
        ]
        brain = next((v for v in made if at.qualify(v) == "torch.bfloat16"), None)
        if brain is None or not any(_about(name, test) for test in tests):
            continue
        yield at.finding(
            region,
            f"{name} may be bfloat16, and is not passed on: the region runs in float16",
            Confidence.LIKELY,
            severity=Severity.WARNING,
            evidence=(at.note(brain, f"{name} is bfloat16 here"),),
        )
        return
    named = [n for n in sorted(asked) if "dtype" in n and any(_about(n, test) for test in tests)]
    for name in named[:1]:
        yield at.finding(
            region,
            f"{name} is asked for and not passed on: the region runs in float16 whatever it is",
            Confidence.POSSIBLE,
            severity=Severity.WARNING,
        )


def _about(name: str, test: ast.expr) -> bool:
    """Whether a condition asks if there is a dtype at all, or if it is not float32."""
    return any(
        isinstance(part, ast.Compare)
        and isinstance(part.ops[0], (ast.IsNot, ast.NotEq))
        and getattr(part.left, "id", None) == name
        for part in ast.walk(test)
    )
