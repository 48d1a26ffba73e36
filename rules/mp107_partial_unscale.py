from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Confidence,
    Context,
    Finding,
    Fix,
    Remedy,
    Rule,
    Severity,
    Violation,
    calls,
    events,
    operators,
)

SCALE = re.compile(r"scal", re.IGNORECASE)


class PartialUnscale(Rule):
    """Clip over parameters of an optimizer that was not unscaled, while another one was.

    ## What it flags
    With several optimizers and one scaler: `clip_grad_norm_` or `clip_grad_value_` of parameters
    whose optimizer was not unscaled since the backward, while `scaler.unscale_` of another one ran.
    Which parameters an optimizer holds is read from where it is made (`SGD(net.parameters())`, in
    this function, this class or this module) or from its `param_groups`.

    An `unscale_` of one optimizer and a clip behind it, where the scaler then steps only another
    one that nothing unscaled, all in one block: the wrong optimizer is named.

    Scaling by hand that divides the gradient of one element of a list of parameters
    (`masters[0].grad.mul_(1 / scale)`), outside of a loop over them.

    Where that is not known it stays silent. Clips before any `unscale_` are another rule's.

    ## Why it breaks
    `unscale_` divides the gradients of one optimizer only. The others still carry the scale: a
    `max_norm` of 1.0 acts on them as 1.5e-5, so with SGD they stand still (loss 3.55 where it
    should be 0.01). Where one norm is taken over both, it is 65536 times too large, and the
    gradients that were unscaled vanish as well. Nothing raises.

    ## Example
    ```python
    scaler.unscale_(encoder_optimizer)
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    ```
    Use instead:
    ```python
    scaler.unscale_(encoder_optimizer)
    torch.nn.utils.clip_grad_norm_(encoder.parameters(), 1.0)
    scaler.unscale_(decoder_optimizer)
    torch.nn.utils.clip_grad_norm_(decoder.parameters(), 1.0)
    ```

    ## Fix safety
    Safe: without a scale (a disabled scaler) `unscale_` does nothing.

    ## How to silence
    `# precision-lint: ignore[MP107] reason` or `# noqa: MP107` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision examples: gradient clipping; working with multiple models,
    losses, and optimizers.
    """

    code = "MP107"
    name = "partial-unscale"
    severity = Severity.ERROR
    applicability = Applicability.SAFE
    triggers = (
        events("partly-unscaled-clip", pattern=r"\.unscale_\(")
        | calls("Tensor.mul_", "Tensor.div_", "Tensor.copy_", "Tensor.unscale_")
        | operators(ast.AugAssign, ast.Assign, pattern=r"\]\.grad(\.data)? *[*/]?= ")
    )

    def check(
        self, violation: Violation | ast.Call | ast.AugAssign | ast.Assign, at: Context
    ) -> Iterator[Finding]:
        if not isinstance(violation, Violation):
            func = violation.func if isinstance(violation, ast.Call) else None
            if isinstance(violation, ast.Call) and getattr(func, "attr", "") == "unscale_":
                yield from _mistaken(violation, at)
            else:
                yield from _single(violation, at)
            return
        evidence = []
        if violation.backward is not None:
            evidence.append(at.note(violation.backward, "the loss is scaled here"))
        evidence += violation.traced(at.note, "they are clipped here")
        fix = None
        repaired = Remedy(violation, at).unscale_too()
        if repaired is not None:
            edits, removed = repaired
            evidence += [at.note(call, "it is unscaled only here") for call in removed]
            title = f"unscale {violation.optimizer} before the clip"
            fix = Fix(title, Applicability.SAFE, edits)
        done = " and ".join(violation.unscaled) or "the other optimizer"
        yield at.finding(
            violation.place,
            f"gradients of {violation.optimizer} are clipped while still multiplied by the loss "
            f"scale: only {done} was unscaled",
            violation.confidence,
            evidence=evidence,
            fix=fix,
        )


def _mistaken(call: ast.Call, at: Context) -> Iterator[Finding]:
    """An optimizer that is unscaled before a clip, while the scaler steps another one behind it."""
    statement = at.statement(call)
    if statement is None or len(call.args) != 1 or not isinstance(call.func, ast.Attribute):
        return
    scaler, optimizer = ast.unparse(call.func.value), ast.unparse(call.args[0])
    clip: ast.Call | None = None
    stepped: ast.Call | None = None
    for later in at.after(statement):
        for node in ast.walk(later):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            last, owner = node.func.attr, ast.unparse(node.func.value)
            if last.startswith("clip_grad") and stepped is None:
                clip = clip or node
            elif optimizer in map(ast.unparse, (*node.args, *(k.value for k in node.keywords))):
                return  # it is stepped, or handed to what may step it
            elif owner == scaler and last == "step" and node.args and isinstance(later, ast.Expr):
                stepped = stepped or node
            elif owner == scaler and last == "update":
                if clip is not None and stepped is not None:
                    yield at.finding(
                        call,
                        f"{optimizer} is unscaled, and {at.text(stepped.args[0])} is what steps: "
                        "its gradients are clipped while still multiplied by the loss scale",
                        Confidence.LIKELY,
                        evidence=(at.note(clip, "they are clipped here"),),
                    )
                return
            elif last in ("unscale_", "backward") or (owner == optimizer and last == "step"):
                return


def _single(node: ast.Call | ast.AugAssign | ast.Assign, at: Context) -> Iterator[Finding]:
    """Division by hand of one parameter's gradient, of a list of them."""
    match node:
        case ast.Call(func=ast.Attribute(value=gradient), args=[factor, *_]):
            pass
        case ast.AugAssign(target=gradient, op=ast.Mult() | ast.Div(), value=factor):
            pass
        case ast.Assign(targets=[gradient], value=ast.BinOp(op=ast.Mult() | ast.Div()) as factor):
            pass
        case _:
            return
    if isinstance(gradient, ast.Attribute) and gradient.attr == "data":
        gradient = gradient.value
    if not isinstance(gradient, ast.Attribute) or gradient.attr != "grad":
        return
    owner = gradient.value
    one = isinstance(owner, ast.Subscript) and isinstance(owner.slice, (ast.Constant, ast.UnaryOp))
    if not one and not (isinstance(owner, ast.Call) and getattr(owner.func, "id", "") == "next"):
        return
    if not SCALE.search(ast.unparse(factor)):
        return
    all_of = at.text(owner.value if isinstance(owner, ast.Subscript) else owner)
    yield at.finding(
        node,
        f"only one gradient of {all_of} is divided by the loss scale: the step takes the others "
        "multiplied by it",
        Confidence.LIKELY,
    )
