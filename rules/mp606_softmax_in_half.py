from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import cast

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Outgrown,
    Rule,
    Severity,
    operators,
)

TAKES_NO_FLOAT = "the result is float32 then, and a layer in half would not take it"
HALVED = re.compile(r"\bmodel\.(half|bfloat16)\(\)")
"""A file that makes its model half, and calls it outside of modules."""
MODULES = {"Softmax": "softmax", "LogSoftmax": "log_softmax"}
NAMES = frozenset({"softmax", "log_softmax", "cross_entropy", "sigmoid", "logsigmoid"})
HARM = {
    "float16": "log-probabilities near -10 are off by up to 0.005",
    "bfloat16": "log-probabilities near -10 are off by up to 0.04",
}


class SoftmaxInHalf(Rule):
    """Log-probabilities, a cross entropy or scores of half logits outside of autocast.

    ## What it flags
    - `log_softmax` and `cross_entropy` on logits that are half for certain and no region around:
      after `.half()` or `.bfloat16()`, in a function that is given such tensors. They are
      `possible` in other code of models, and so is every `softmax`, `nn.Softmax` included.
    - `sigmoid` of scores that may be half, where another branch of the same `if` takes the softmax
      of the same scores in float32, as a router of experts that offers both.
    - `logsigmoid(chosen - rejected)` of scores that may be half, which is `possible`.

    It stays silent inside autocast for what that runs in float32, for scores that `topk` has chosen
    already, for `dtype=torch.float32` and upcast logits, and where another rule says more: MP209
    for a loss behind its region, MP303 for `log(softmax(x))`. Attention is never more than
    `possible`: the kernel works in float32 inside, and weights of a sum may be rounded.

    ## Why it breaks
    The kernel computes in float32 and rounds the result: measured, log-probabilities between -8
    and -16 are off by up to 0.005 in float16 and 0.038 in bfloat16, so the ratio `exp(new - old)`
    of a policy is off by 4 % before anything was learnt, and a difference of two sequences'
    log-probabilities, as in DPO, by more than its margin. A summed cross entropy is inf above
    65504. Sigmoids above 0.5 are 4.9e-4 apart in float16 and 3.9e-3 in bfloat16: scores tie, the
    order of the indices decides which experts are chosen, and the loss that balances their load
    does not see the difference.

    ## Example
    ```python
    logits = scores.bfloat16()
    logp = F.log_softmax(logits, dim=-1)
    ```
    Use instead:
    ```python
    logits = scores.bfloat16()
    logp = F.log_softmax(logits, dim=-1, dtype=torch.float32)
    ```

    ## Fix safety
    Safe where the result ends in a loss or a metric: with `dtype=torch.float32` a float32 result
    is the same to the bit. Elsewhere unsafe: the next operand in half has to meet float32.

    ## How to silence
    `# precision-lint: ignore[MP606] reason` or `# noqa: MP606` on the line.

    ## Sources
    PyTorch, `torch.nn.functional.log_softmax` (`dtype`: "useful for preventing data type
    overflows"); Automatic Mixed Precision: CUDA ops that autocast to float32.
    """

    code, name = "MP606", "softmax-in-half"
    severity, applicability = Severity.WARNING, Applicability.SAFE
    triggers = operators(ast.Call, pattern=r"[sS]oftmax|cross_entropy|sigmoid")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        operation = _layer(node, at) or at.operation(node)
        if operation is None or operation[0] not in NAMES:
            return
        if operation[0] == "sigmoid":
            yield from self._alternative(node, operation[1], at)
            return
        if operation[0] == "logsigmoid":
            yield from self._margin(node, operation[1], at)
            return
        region = at.region(node)
        if region.on or any(k.arg in ("dtype", None) for k in node.keywords):
            return
        name, operand = operation
        value = at.value(operand)
        half = at.half(value, region)
        if half is None or at.mentions("autocast") or Care.in_test(at):
            return
        if name != "cross_entropy" and len(node.args) > (3 if at.qualify(node.func) else 1):
            return  # a dtype by position
        confidence = Outgrown.confidence(half, operand, at)
        if not at.is_tensor(operand) or name == "softmax" or "amp" in value.tags:
            confidence = Confidence.POSSIBLE
        if _in_log(node, at):
            return  # MP301, MP303
        if at.half_models is None and not half.outside:
            confidence = Confidence.POSSIBLE
        if at.reaches_layer(node):
            confidence = Confidence.POSSIBLE
        plausible = at.plausible or HALVED.search(at.source.text) is not None
        if confidence is Confidence.POSSIBLE and name == "softmax" and not plausible:
            return
        what = "weights of a softmax are rounded to 3 digits" if name == "softmax" else ""
        yield at.finding(
            node,
            f"{name} of {half.dtype} logits: {what or HARM[half.dtype]}",
            confidence,
            evidence=half.evidence,
            fix=_fix(node, name, operand, at),
        )

    def _alternative(self, node: ast.Call, operand: ast.expr, at: Context) -> Iterator[Finding]:
        """A sigmoid where the other branch takes a softmax of the same in float32."""
        value = at.value(operand)
        half = at.half(value, at.region(node))
        if half is None or Care.in_test(at) or _chosen(operand, at):
            return  # ties among those that are chosen already do not matter
        if value.dtype == "~autocast":
            return  # a product of float32 operands
        other = next(_softmaxes_instead(node, operand, at), None)
        if other is None:
            return
        edits = at.append({operand: ".float()"})
        note = at.note(other, "float32 in the other branch")
        yield at.finding(
            node,
            f"sigmoid of {half.dtype} scores, whose softmax is taken in float32: scores that "
            "differ in their third digit tie",
            Confidence.LIKELY,
            evidence=[note, *half.evidence],
            fix=Fix("take the sigmoid in float32", Applicability.SAFE, edits) if edits else None,
        )

    def _margin(self, node: ast.Call, operand: ast.expr, at: Context) -> Iterator[Finding]:
        """A pairwise loss, of the difference of two scores that a half model gives."""
        value = at.value(operand)
        margin = operand
        if isinstance(operand, ast.Name):
            margin = at.definition(operand.id, operand) or operand
        if not isinstance(margin, ast.BinOp) or not isinstance(margin.op, ast.Sub):
            return
        if isinstance(margin.right, ast.Constant) or "lse" in at.text(margin):
            return  # a shift; logarithms of sums of exponentials, which kernels give in float32
        half = at.half(value, at.region(node))
        if half is None or Care.in_test(at):
            return
        edits = at.append({margin.left: ".float()", margin.right: ".float()"})
        apart = at.statement(margin) is not at.statement(node)
        yield at.finding(
            node,
            f"the difference of two {half.dtype} scores has their third digit as its last, and "
            "logsigmoid runs in half",
            Confidence.POSSIBLE,
            evidence=(*half.evidence, *([at.note(margin, "the difference")] if apart else ())),
            fix=Fix("subtract in float32", Applicability.SAFE, edits) if edits else None,
        )


def _layer(node: ast.Call, at: Context) -> tuple[str, ast.expr] | None:
    """A softmax that is a module: an attribute of ``self``, or made where it is called."""
    if len(node.args) != 1:
        return None
    made = node.func
    named = at.qualify(made.func) if isinstance(made, ast.Call) else None
    cls = at.function.cls
    if isinstance(made, ast.Attribute) and cls is not None and at.text(made.value) == "self":
        kept = at.module.attribute(cls, made.attr)
        named = kept.const if isinstance(kept.const, str) and "instance" in kept.tags else None
    last = (named or "").rpartition(".")[2]
    return (MODULES[last], node.args[0]) if last in MODULES else None


def _softmaxes_instead(node: ast.expr, operand: ast.expr, at: Context) -> Iterator[ast.Call]:
    """Softmaxes in float32 of the same operand that the same name is given in other branches."""
    statement = at.statement(node)
    if not isinstance(statement, ast.Assign) or statement.value is not node:
        return
    wanted, target = ast.dump(operand), ast.dump(statement.targets[0])
    for branch in at.ancestors(statement):
        if not isinstance(branch, ast.If):
            return
        for part in (*branch.body, *branch.orelse):
            for other in ast.walk(part):
                if not isinstance(other, ast.Assign) or ast.dump(other.targets[0]) != target:
                    continue
                found = at.operation(other.value)
                if found is None or found[0] != "softmax" or other is statement:
                    continue
                same = ast.dump(_plain(found[1])) == wanted
                if same and at.value(other.value).dtype == "float32":
                    yield cast(ast.Call, other.value)


def _chosen(operand: ast.expr, at: Context) -> bool:
    """Whether scores are the largest ones, which were chosen before: `topk` gave them."""
    return isinstance(operand, ast.Name) and any(
        isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Tuple)
        and at.text(node.targets[0].elts[0]) == operand.id
        and node.lineno < operand.lineno
        and (at.operation(node.value) or ("",))[0] == "topk"
        for node in at.function.nodes
    )


def _plain(node: ast.expr) -> ast.expr:
    """What ``x.float()`` upcasts."""
    match node:
        case ast.Call(func=ast.Attribute(value=inner, attr="float" | "to")):
            return inner
    return node


def _in_log(node: ast.Call, at: Context) -> bool:
    for around in at.ancestors(node):
        operation = at.operation(around) if isinstance(around, ast.Call) else None
        if operation is not None and operation[0] in ("log", "log2", "float"):
            return True
        if isinstance(around, ast.stmt):
            break
    return False


def _fix(node: ast.Call, name: str, operand: ast.expr, at: Context) -> Fix | None:
    statement = at.statement(node)
    if statement is None or _layer(node, at) is not None:
        return None
    torch, imports = at.torch()
    if name == "cross_entropy":
        edits, imports = at.append({operand: ".float()"}), ()
    else:
        edits = at.edit.add_keyword(statement, node, "dtype", f"{torch}.float32")
    if edits is None:
        return None
    title = f"take {name} in float32"
    if name == "cross_entropy" or Outgrown.ends(node, at):
        return Fix(title, Applicability.SAFE, (*imports, *edits))
    return Fix(title, Applicability.UNSAFE, (*imports, *edits), TAKES_NO_FLOAT)
