from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from typing import TypeGuard

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Rule,
    Scaler,
    Severity,
    calls,
    operators,
)

SHARDED = "torch.distributed.fsdp.sharded_grad_scaler.ShardedGradScaler"
NAMED = re.compile(r"(amp_|pure_)?(bf16|bfloat16)(-mixed)?", re.IGNORECASE)
"""Values of options that choose bfloat16."""
BRAIN = re.compile(r"bfloat16|bf16", re.IGNORECASE)
FLOAT16 = re.compile(r"autocast\([^()]*(?<!b)float16")
"""A region in float16, whatever the flag is called that enters it."""
WORDS = ("16", "dtype", "half", "precision")


class ScalerWithBfloat16(Rule):
    """GradScaler that is active while autocast runs in bfloat16, which needs no scale.

    ## What it flags
    A GradScaler that scales losses in code whose every autocast region is bfloat16 for certain,
    unless `enabled` is False or says something about a dtype.

    A scaler that is on whatever the dtype is, beside an autocast region whose dtype the same
    function chooses between bfloat16 and others. The scaler may be inside an object of another
    class (`loss_scaler = NativeScaler()`).

    A scaler whose `enabled`, or the condition under which it is made, holds for bfloat16 (`dtype in
    ("fp16", "bf16")`, `dtype != torch.float32`, `use_fp16 or use_bf16`). One that is on without a
    condition in a file that names bfloat16 elsewhere is `possible`, likely where the function that
    makes it, or one that it calls, names `torch.bfloat16` and no float16. FSDP's
    `ShardedGradScaler` counts as well.

    `enabled=(dtype == torch.float16)` is the right form and silent, as is a scaler that is made
    under such a condition. Regions of which the dtype is not known, or of which one is float16, are
    silent as well, and so is a choice by what the device supports.

    ## Why it breaks
    bfloat16 has the range of float32: gradients do not underflow, so the scale protects nothing. It
    costs a check of all gradients in each step, and since nothing overflows it keeps doubling, from
    65536 on, until a scaled gradient overflows in float32 (for a gradient of 1 after 112 doublings,
    one in 2000 steps by default). From then on it throws a step away each time. Steps with real
    infinities are skipped without a word, where one would want to see them. Lightning raises here.

    ## Example
    ```python
    scaler = torch.amp.GradScaler("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    ```
    Use instead:
    ```python
    scaler = torch.amp.GradScaler("cuda", enabled=False)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = model(x).mean()
    scaler.scale(loss).backward()
    ```

    ## Fix safety
    Unsafe: a disabled scaler no longer skips steps whose gradients are inf or nan.

    ## How to silence
    `# precision-lint: ignore[MP112] reason` or `# noqa: MP112` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision package: gradient scaling; the numbers are measured.
    """

    code = "MP112"
    name = "scaler-with-bfloat16"
    severity = Severity.WARNING
    applicability = Applicability.UNSAFE
    triggers = calls(
        "torch.amp.GradScaler", "torch.cuda.amp.GradScaler", "torch.cpu.amp.GradScaler", SHARDED
    ) | operators(ast.Assign, pattern=r"Scaler")

    def check(self, node: ast.Call | ast.Assign, at: Context) -> Iterator[Finding]:
        if isinstance(node, ast.Assign):
            yield from _chosen(node, at)
            return
        call = node
        taker = _handed_over(call, at)
        if taker is not None:
            yield at.finding(
                call,
                f"{at.text(taker.func)} is given a scaler for bfloat16, which needs no scale",
                Confidence.LIKELY,
                evidence=(at.note(taker, "the precision is chosen here"),),
            )
            return
        scaler = Scaler.made(call, at)
        enabled = ast.unparse(scaler.enabled) if scaler is not None and scaler.enabled else ""
        if scaler is None or not scaler.off:
            test = _takes_bfloat16(_switches(call, at))
            if test is not None and not FLOAT16.search(at.source.text):
                yield at.finding(
                    call,
                    f"the loss is scaled where {at.text(test)} holds for bfloat16, which needs no "
                    "scale",
                    Confidence.LIKELY,
                )
                return
        around = at.parents.get(id(call))
        if isinstance(around, ast.IfExp) and around.body is call and not call.keywords:
            yield from _perhaps(call, set(), at)
            return
        if scaler is None or scaler.off:
            return
        if _names_dtype(enabled):
            return
        regions = scaler.regions(at)
        scaled = next(scaler.calls("scale"), None)
        statement = at.statement(call)
        if not regions or {dtype for _, dtype in regions} != {"bfloat16"}:
            chosen = list(_chosen(statement, at)) if isinstance(statement, ast.Assign) else []
            if statement is not None and not chosen:
                yield from _perhaps(call, {dtype for _, dtype in regions}, at)
            return
        if scaled is None or statement is None:
            return
        fix = None
        if scaler.enabled is not None:
            edits = at.edit.rewrite(statement, {scaler.enabled: "False"})
        else:
            edits = at.edit.add_keyword(statement, call, "enabled", "False")
        if edits is not None:
            why = "a disabled scaler does not skip steps whose gradients are inf or nan"
            fix = Fix("disable the scaler", Applicability.UNSAFE, edits, why)
        yield at.finding(
            call,
            "the loss is scaled although autocast runs in bfloat16, which needs no scale",
            Confidence.CERTAIN if not enabled else Confidence.LIKELY,
            evidence=(
                at.note(regions[0][0], "bfloat16 autocast region opened here"),
                at.note(scaled[0], "the loss is scaled here"),
            ),
            fix=fix,
        )


def _handed_over(call: ast.Call, at: Context) -> ast.Call | None:
    """A call that is given a new scaler together with the name of bfloat16."""
    off = any(k.arg == "enabled" and at.text(k.value) != "True" for k in call.keywords)
    places: list[ast.expr] = [call]
    statement = at.statement(call)
    if isinstance(statement, ast.Assign) and statement.value is call:
        target = statement.targets[0]
        places = list(at.uses(target.id)) if isinstance(target, ast.Name) else []
    for place in places if not off else ():
        taker = at.parents.get(id(place))
        taker = at.parents.get(id(taker)) if isinstance(taker, ast.keyword) else taker
        if not isinstance(taker, ast.Call) or taker.func is place:
            continue
        given = [*taker.args, *(k.value for k in taker.keywords)]
        if any(_names_brain(part) for part in given):
            return taker
    return None


def _chosen(made: ast.Assign, at: Context) -> Iterator[Finding]:
    """A scaler that is on for each of the dtypes that its function chooses from."""
    call = made.value
    if not isinstance(call, ast.Call) or "Scaler" not in at.text(call.func):
        return
    scaler = Scaler.made(call, at)
    direct = at.text(call.func).rpartition(".")[2] == "GradScaler"
    given = " ".join(at.text(part) for part in (*call.args, *(k.value for k in call.keywords)))
    tests = [n.test for n in at.ancestors(made) if isinstance(n, (ast.If, ast.IfExp))]
    if _names_dtype(given) or any(_names_dtype(_spelled(test, at)) for test in tests):
        return
    if scaler is None or scaler.off or (direct and not any(True for _ in scaler.calls("scale"))):
        return
    chosen = next(((r, n) for r, n, d in Scaler.choices(at) if {"bfloat16", "float16"} <= d), None)
    if (
        chosen is None
        or at.mentions(r"is_bf16_supported")
        or not (direct or Scaler.wrapped(call, at))
    ):
        return
    region, name = chosen
    fix = None
    if direct and scaler.enabled is None and at.bound_before(at.text(name), call):
        torch, imports = at.torch()
        edits = at.edit.add_keyword(made, call, "enabled", f"{at.text(name)} == {torch}.float16")
        if edits is not None:
            why = "a disabled scaler does not skip steps whose gradients are inf or nan"
            fix = Fix("scale in float16 only", Applicability.UNSAFE, (*imports, *edits), why)
    yield at.finding(
        call,
        f"the loss is scaled whatever {at.text(name)} is, also in bfloat16, which needs no scale",
        Confidence.LIKELY,
        evidence=(at.note(region, "bfloat16 or float16 autocast region opened here"),),
        fix=fix,
    )


def _switches(call: ast.Call, at: Context) -> list[ast.expr]:
    """The conditions under which a scaler is made, and is on."""
    tests = [k.value for k in call.keywords if k.arg == "enabled"]
    inner: ast.AST = call
    for around in at.ancestors(call):
        if isinstance(around, (ast.If, ast.IfExp)):
            body = around.body if isinstance(around.body, list) else [around.body]
            tests += [around.test] if inner in body else []
        inner = around
    return tests


def _takes_bfloat16(tests: Iterable[ast.expr]) -> ast.expr | None:
    """The one of several conditions that holds for bfloat16 too, unless another rules it out."""
    told = [test for test in tests if _names_dtype(ast.unparse(test))]
    return told[0] if told and all(map(_holds_for_bfloat16, told)) else None


def _holds_for_bfloat16(test: ast.expr) -> bool:
    match test:
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(map(_holds_for_bfloat16, parts))
        case ast.BoolOp(op=ast.And(), values=parts):
            return _takes_bfloat16(parts) is not None
        case ast.Compare(left=left, ops=[ast.Eq() | ast.Is()], comparators=[right]):
            return any(BRAIN.search(ast.unparse(side)) for side in (left, right))
        case ast.Compare(
            ops=[ast.In()], comparators=[ast.Tuple() | ast.List() | ast.Set() as many]
        ):
            return any(BRAIN.search(ast.unparse(part)) for part in many.elts)
        case ast.Compare(ops=[ast.NotEq() | ast.IsNot()], comparators=[right]):
            return bool(re.search(r"float32|fp32|['\"]32|\bfloat\b|^32$", ast.unparse(right)))
        case ast.Name() | ast.Attribute():
            return bool(re.fullmatch(r"(.*[._])?(use_)?(bf16|bfloat16)", ast.unparse(test)))
    return False


def _perhaps(call: ast.Call, dtypes: set[str], at: Context) -> Iterator[Finding]:
    """A scaler that is on whatever runs, in a file that knows bfloat16 elsewhere."""
    if dtypes == {"float16"}:
        return
    asked = [a.test for a in at.ancestors(call) if isinstance(a, (ast.If, ast.IfExp))]
    narrow = [test for test in asked if not isinstance(test, ast.Compare)]
    switches = [*asked, *(k.value for k in call.keywords if k.arg == "enabled")]
    names = [n.id for test in switches for n in ast.walk(test) if isinstance(n, ast.Name)]
    if any(_names_dtype(at.text(v)) for name in names for v in at.function.assigned.get(name, [])):
        return
    if any(_names_dtype(at.text(test)) for test in asked if test not in narrow):
        return
    if any(re.search("16|half|dtype", at.text(test)) for test in narrow) or at.mentions(
        r"is_bf16_supported"
    ):
        return
    brain = next((n for n in ast.walk(at.module.index.tree) if _names_brain(n)), None)
    if brain is None:
        return
    yield at.finding(
        call,
        "the scaler is on whatever the dtype is; the file knows bfloat16, which needs no scale",
        Confidence.LIKELY if _names_bfloat16(at) else Confidence.POSSIBLE,
        evidence=(at.note(brain, "bfloat16 may be chosen here"),),
    )


def _names_bfloat16(at: Context) -> bool:
    """Whether a function, or one that it calls by name, names bfloat16 and no float16."""
    calls = [node.func for node in at.function.nodes if isinstance(node, ast.Call)]
    names = sorted({func.id for func in calls if isinstance(func, ast.Name)})
    called = [f for f in map(at.module.index.function_named, names) if f is not None]
    places = [at, *(at.inside(function) for function in called)]
    if any(place.mentions(r"torch\.(?:float16|half)\b") for place in places):
        return False
    return any(place.mentions(r"torch\.bfloat16\b") for place in places)


def _names_brain(node: ast.AST) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and NAMED.fullmatch(node.value) is not None
    return isinstance(node, ast.Attribute) and node.attr in ("bfloat16", "bf16")


def _spelled(test: ast.expr, at: Context) -> str:
    """A condition, or what the name that it is was bound to."""
    made = at.definition(test.id, test) if isinstance(test, ast.Name) else None
    return at.text(made if made is not None else test)


def _names_dtype(text: str) -> bool:
    """Whether a condition says something about a dtype."""
    return any(word in text for word in WORDS)
