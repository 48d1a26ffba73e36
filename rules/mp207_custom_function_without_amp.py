from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Edit,
    Finding,
    Fix,
    Lowered,
    Rule,
    Severity,
    operators,
)

FUNCTION = ("torch.autograd.Function", "torch.autograd.function.Function")
RUNS = re.compile(r"^(?:ctx\.)?\w+$|\.(?:backward(?:_pass)?|(?:forward|run|recompute)\w*)$")
"""Callees that compute: modules, functions and the methods that run them, no hooks."""
SAVED = "~ctx.saved_tensors"
AWARE = r"custom_[fb]wd|amp_(?:fwd|bwd)|autocast_(?:enabled|dtype)"


OWN = frozenset({
    "torch", "numpy", "math", "warnings", "print", "isinstance", "len", "range", "functools",
    "itertools", "typing", "os", "sys",
})  # fmt: skip
EXTENSION = re.compile(r"_ext|_C\b|_cuda|cuda_|_kernel|forward|_fwd|fwd_|MSDA|kernel|_op\b|ops\.")
"""Names of compiled functions, which know the dtypes that they were compiled for."""


class CustomFunctionWithoutAmp(Rule):
    """autograd.Function with products whose backward does not know of autocast.

    ## What it flags
    A `torch.autograd.Function` that multiplies matrices in `forward`, and in `backward` multiplies
    the incoming gradient with a tensor that `forward` was given, without `custom_fwd` and
    `custom_bwd`.

    A function whose `forward` hands several of its tensors to a compiled extension or a kernel,
    which autocast does not cast for, in a project that uses autocast: `possible`, because the
    kernel may take any dtypes. A `backward` that runs again what `forward` was given to run
    (checkpoints, reversible blocks), and does not restore autocast, is likely in such a project.

    It stays silent for elementwise functions, which promote, where the gradient is cast, brought
    to float32 or multiplied elementwise with a saved tensor first, where `forward` speaks of
    autocast itself or `backward` multiplies in a region of its own, and where the function is
    only applied with autocast switched off. In a project that nowhere uses autocast it is only
    `possible`.

    ## Why it breaks
    Under autocast the product in `forward` runs in half, so the gradient arrives in half; what
    was saved is the float32 weight. The backward pass of a custom function runs without autocast
    if it is started outside of the region, as it should be, and raises `expected m1 and m2 to
    have the same dtype`. torch's own operations record the casts, a custom function does not.
    `custom_bwd` runs `backward` in the autocast state that `custom_fwd` has noted.

    ## Example
    ```python
    class Linear(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x
    ```
    Use instead:
    ```python
    class Linear(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="cuda")
        def forward(ctx, x, weight):
            ctx.save_for_backward(x, weight)
            return x @ weight.t()

        @staticmethod
        @torch.amp.custom_bwd(device_type="cuda")
        def backward(ctx, grad):
            x, weight = ctx.saved_tensors
            return grad @ weight, grad.t() @ x
    ```
    For a function that needs float32, `custom_fwd(device_type="cuda", cast_inputs=torch.float32)`.

    ## Fix safety
    Safe: without autocast both decorators only call the function. They need torch 2.4; a project
    that allows an older one gets `torch.cuda.amp.custom_fwd`, and where it says nothing of its
    torch the fix is unsafe. No fix for a class with `setup_context`, which they do not support.

    ## How to silence
    `# precision-lint: ignore[MP207] reason` or `# noqa: MP207` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: Autocast and Custom Autograd Functions.
    """

    code = "MP207"
    name = "custom-function-without-amp"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = operators(ast.ClassDef, pattern=r"\bFunction\s*\)")

    def check(self, node: ast.ClassDef, at: Context) -> Iterator[Finding]:
        if not any(at.qualify(base) in FUNCTION for base in node.bases):
            return
        cls = at.module.index.classes.get(node.name)
        if cls is None or cls.node is not node:
            return
        forward, backward = cls.methods.get("forward"), cls.methods.get("backward")
        if forward is None or backward is None:
            return
        inside, behind = at.inside(forward), at.inside(backward)
        if inside.mentions(rf"{AWARE}|autocast") or behind.mentions(AWARE):
            return
        if _decorated(forward.node, at):
            return
        returned = [n.value for n in forward.nodes if isinstance(n, ast.Return) and n.value]
        lowered = next((made for r in returned if (made := _lowered(r, inside, 6))), None)
        product = next((n for n in backward.nodes if _mixes(n, inside, behind)), None)
        if _applied_outside(node.name, at):
            return
        known = at.project.autocast
        believed = known is not None and at.believes(known)
        if lowered is None or not isinstance(product, ast.expr):
            handed = next((n for n in backward.nodes if _hands_on(n, inside, behind)), None)
            if lowered is None or handed is None:
                yield from self._foreign(node.name, inside, at)
                yield from self._again(node.name, inside, behind, at)
                return
            yield at.finding(
                lowered,
                f"autocast runs this in half; {node.name}.backward hands a half gradient on with "
                "a float32 tensor that was saved",
                Confidence.POSSIBLE,
                evidence=(at.note(handed, "the gradient meets what was saved"),),
            )
            return
        fix = None if "setup_context" in cls.methods else _fix(forward.node, backward.node, at)
        evidence = [] if known is None else [known]
        evidence.append(at.note(product, "the gradient meets a float32 tensor that was saved"))
        yield at.finding(
            lowered,
            f"autocast runs this in half, so that {node.name}.backward multiplies a half gradient "
            "with a float32 tensor that was saved: it raises",
            Confidence.LIKELY if believed else Confidence.POSSIBLE,
            evidence=evidence,
            fix=fix,
        )

    @staticmethod
    def _foreign(name: str, inside: Context, at: Context) -> Iterator[Finding]:
        """Kernels of extensions, for whose operands autocast does nothing."""
        known = at.project.autocast
        if known is None or inside.mentions(r"\.(float|half|to|type_as|type)\(|dtype"):
            return
        call = next((n for n in inside.function.nodes if _foreign_call(n, inside)), None)
        if call is not None:
            yield at.finding(
                call,
                f"autocast casts nothing for {inside.text(call.func)}: under it some operands of "
                f"{name} come in half, beside float32 ones",
                Confidence.POSSIBLE,
                evidence=(known,),
            )

    @staticmethod
    def _again(name: str, inside: Context, behind: Context, at: Context) -> Iterator[Finding]:
        """A backward that runs again what the forward ran, where autocast has ended."""
        if behind.mentions("autocast"):
            return
        call = _rerun(inside, behind)
        if call is not None:
            known = at.project.autocast
            yield at.finding(
                call,
                f"{name}.backward runs {at.text(call.func)} outside of autocast, which the forward "
                "ran inside: other dtypes than those it has to repeat",
                Care.offered(at) if RUNS.search(at.text(call.func)) else Confidence.POSSIBLE,
                evidence=() if known is None else (known,),
            )


def _rerun(forward: Context, backward: Context) -> ast.Call | None:
    """A call in ``backward`` of a module or function that ``forward`` was given and ran."""
    given = {p.arg for p in forward.function.parameters()[1:]}
    kept: dict[str, str] = {}
    for node in forward.function.nodes:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and node.value.id in given:
                kept[forward.text(target)] = node.value.id
    run = {root for call in _calls(forward) if (root := _start(call.func)) in kept.values()}
    for loop in forward.function.nodes:
        if isinstance(loop, ast.For) and (source := _start(loop.iter)) in kept.values():
            names = {n.id for n in ast.walk(loop.target) if isinstance(n, ast.Name)}
            if any(_start(call.func) in names for call in _calls(forward)):
                run.add(source)
    held = [text for text, source in kept.items() if source in run]
    if not held:
        return None
    aliases: set[str] = set()
    for node in backward.function.nodes:
        if isinstance(node, ast.Assign) and backward.text(node.value) in held:
            aliases |= {t.id for t in node.targets if isinstance(t, ast.Name)}
        elif isinstance(node, ast.For) and any(text in backward.text(node.iter) for text in held):
            aliases |= {n.id for n in ast.walk(node.target) if isinstance(n, ast.Name)}
    for call in _calls(backward):
        text = backward.text(call.func)
        if _start(call.func) in aliases or any(re.match(rf"{t}(\W|$)", text) for t in held):
            return call
    return None


def _calls(at: Context) -> Iterator[ast.Call]:
    return (node for node in at.function.nodes if isinstance(node, ast.Call))


def _start(node: ast.expr) -> str:
    """The name that an expression starts with."""
    while not isinstance(node, ast.Name):
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.Call) and node.args:  # reversed(blocks), zip(blocks, seeds)
            node = node.args[0]
        else:
            return ""
    return node.id


def _foreign_call(node: ast.AST, at: Context) -> TypeGuard[ast.Call]:
    """Whether a call hands two or more tensors of a forward to an extension's function."""
    if not isinstance(node, ast.Call):
        return False
    if isinstance(node.func, ast.Subscript):  # kernel[grid](...) of Triton
        return len(node.args) > 1
    head = (at.qualify(node.func) or "").partition(".")[0]
    name = at.text(node.func)
    if head in OWN or name.startswith(("ctx.", "self.")) or not at.qualify(node.func):
        return False
    given = {p.arg for p in at.function.parameters()[1:]}
    handed = [a.id for a in node.args if isinstance(a, ast.Name) and a.id in given]
    return len(handed) > 1 and EXTENSION.search(name) is not None


def _applied_outside(name: str, at: Context) -> bool:
    """Whether every use of the function in this module stands where autocast is switched off."""
    regions = [
        at.inside(function).region(call)
        for call, function in at.module.index.calls.get("apply", [])
        if isinstance(call.func, ast.Attribute) and at.text(call.func.value).endswith(name)
    ]
    return bool(regions) and all(region.state == "off" for region in regions)


def _decorated(node: ast.AST, at: Context) -> bool:
    """Whether a method has a decorator other than ``staticmethod``."""
    decorators = getattr(node, "decorator_list", [])
    return any(not isinstance(d, ast.Name) or d.id != "staticmethod" for d in decorators)


def _lowered(node: ast.expr, at: Context, depth: int) -> ast.expr | None:
    """The product that makes a result, behind names, views and numbers; a tensor promotes."""
    found = Lowered.of(node, at)
    if found is not None:
        return None if found.layer else node
    match node:
        case ast.Name(id=name) if depth:
            sources = [
                source
                for source in at.function.assigned.get(name, [])
                if not isinstance(at.parents.get(id(source)), ast.AugAssign)  # keeps the dtype
                and source.lineno < node.lineno
            ]
            last = max(sources, key=lambda source: source.lineno, default=None)
            return _lowered(last, at, depth - 1) if last is not None else None
        case ast.Tuple(elts=[first, *_]):
            return _lowered(first, at, depth)
        case ast.IfExp(body=body, orelse=orelse):
            return _lowered(body, at, depth) or _lowered(orelse, at, depth)
        case ast.BinOp(left=left, right=right):
            for side, other in ((left, right), (right, left)):
                if at.value(other).kind == "number":
                    return _lowered(side, at, depth)
        case ast.Call(func=ast.Attribute(value=value, attr=attr)):
            if at.qualify(node.func) is None and attr not in ("float", "to", "type_as", "type"):
                return _lowered(value, at, depth)
    return None


def _mixes(node: ast.AST, forward: Context, backward: Context) -> bool:
    """Whether a product of ``backward`` takes the gradient as it is and an input of ``forward``."""
    found = Lowered.of(node, backward) if isinstance(node, (ast.Call, ast.BinOp)) else None
    if found is None or len(found.operands) < 2 or backward.region(found.node).state != "inherited":
        return False
    gradients = {f"~{p.arg}" for p in backward.function.parameters()[1:]}
    kinds = [backward.value(operand).dtype for operand in found.operands]
    saved = _saved(forward, backward)
    return any(kind in gradients for kind in kinds) and any(
        (name := _root(operand, backward)) in saved and kind in (f"~{name}", SAVED)
        for operand, kind in zip(found.operands, kinds, strict=True)
    )


def _hands_on(node: ast.AST, forward: Context, backward: Context) -> TypeGuard[ast.Call]:
    """Whether a call of ``backward`` gets the gradient as it came and an input that was saved."""
    if not isinstance(node, ast.Call) or backward.region(node).state != "inherited":
        return False
    gradients = {p.arg for p in backward.function.parameters()[1:]}
    names = {a.id for a in node.args if isinstance(a, ast.Name)}
    fresh = {name for name in names & gradients if not backward.function.assigned.get(name)}
    return bool(fresh) and bool(names & _saved(forward, backward))


def _root(node: ast.expr, at: Context) -> str | None:
    """The name under an operand's views."""
    while True:
        if isinstance(node, (ast.Attribute, ast.Subscript)) and at.text(node.value) != "ctx":
            node = node.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        else:
            return at.text(node) if isinstance(node, (ast.Name, ast.Attribute)) else None


def _saved(forward: Context, backward: Context) -> set[str]:
    """Names by which ``backward`` knows the parameters of ``forward``."""
    parameters = {p.arg for p in forward.function.parameters()}
    given: list[ast.expr] = []
    found: set[str] = set()
    for node in forward.function.nodes:
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "save_for_backward":
            given = node.args
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Name):
            target = node.targets[0]
            if isinstance(target, ast.Attribute) and node.value.id in parameters:
                found.add(forward.text(target))
    for node in backward.function.nodes:
        if not isinstance(node, ast.Assign) or "saved_tensors" not in ast.unparse(node.value):
            continue
        target = node.targets[0]
        names = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        for name, source in zip(names, given, strict=False):
            if not (isinstance(name, ast.Name) and isinstance(source, ast.Name)):
                continue
            if source.id in parameters and not forward.function.assigned.get(source.id):
                found.add(name.id)
    return found


def _fix(forward: ast.AST, backward: ast.AST, at: Context) -> Fix | None:
    spelling, imports = at.torch()
    old = at.project.torch is not None and not at.project.has_torch(2, 4)
    home, arguments = ("cuda.amp", "") if old else ("amp", '(device_type="cuda")')
    edits: list[Edit] = [*imports]
    for node, name in ((forward, "custom_fwd"), (backward, "custom_bwd")):
        if not isinstance(node, ast.FunctionDef):
            return None
        indent = at.edit.indentation(node)
        if indent.strip():
            return None
        place = at.source.lines[node.lineno - 1]
        line = f"{indent}@{spelling}.{home}.{name}{arguments}\n"
        edits.append(Edit(place, place, line))
    title = "decorate forward and backward for autocast"
    if at.project.torch is None:
        why = "torch.amp.custom_fwd needs torch 2.4, and the project does not say which it needs"
        return Fix(title, Applicability.UNSAFE, tuple(edits), why)
    return Fix(title, Applicability.SAFE, tuple(edits))
