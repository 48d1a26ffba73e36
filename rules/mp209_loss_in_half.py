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
    Rule,
    Severity,
    operators,
)

CLASSES = {
    "CrossEntropyLoss": "cross_entropy",
    "NLLLoss": "nll_loss",
    "MultiMarginLoss": "multi_margin_loss",
    "MSELoss": "mse_loss",
    "L1Loss": "l1_loss",
    "SmoothL1Loss": "smooth_l1_loss",
    "HuberLoss": "huber_loss",
    "BCEWithLogitsLoss": "binary_cross_entropy_with_logits",
    "BCELoss": "binary_cross_entropy",
    "KLDivLoss": "kl_div",
}
OF_CLASSES = frozenset({"cross_entropy", "nll_loss", "multi_margin_loss"})
"""Losses whose targets are integers, so that the scores alone decide on the dtype."""
LOSSES = frozenset(CLASSES.values())
HALVES = frozenset({"float16", "bfloat16", "low"})
NAMED = re.compile(r"criterion|loss_?(fn|func)|(^|_)loss$")
FOREIGN = re.compile(
    r"^(?!scale_)(.*_)?(ctc|rnnt|transducer)?_?loss(_smoothed|_pruned|_simple)?$|Loss$"
)
WITHOUT_GRADIENT = frozenset({"torch.no_grad", "torch.inference_mode"})
HARM = {
    "sum": "a sum above 65504 is inf",
    "square": "squares of differences above 255 are inf",
    "other": "the gradient of a half loss is the loss scale, and 65536 is inf",
}


class LossInHalf(Rule):
    """Loss taken behind the autocast region, of half outputs that nobody cast up.

    ## What it flags
    `F.cross_entropy`, `F.nll_loss`, `nn.CrossEntropyLoss` and their like outside of autocast, on
    scores that a region in the same function has left in half; regression losses, binary cross
    entropy and `kl_div` where the target comes out of a region in half too, as that of a teacher
    network.

    A loss of another library (`k2.ctc_loss`) under autocast, of which nothing is cast up, is
    `possible`.

    It stays silent for torch's losses inside the region, which autocast runs in float32, for scores
    with `.float()`, and for a float32 target, which brings an elementwise loss up by promotion. It
    is `possible` for a loss of which only the name is known (`criterion(...)`), for two outputs of
    one call, and in an evaluation, unless it is a sum.

    ## Why it breaks
    Behind the region torch takes the loss in the dtype that it finds. In float16 the mean squared
    error of 300 and 0 is inf, and so is a cross entropy of 1.6 summed over 41,000 tokens. A scalar
    half loss times the scale is float32, but the gradient that flows back into it is the scale
    itself, and 65536 is inf in float16: a GradScaler skips steps until it has come down to 32768.
    In bfloat16 the loss has 2 to 3 digits.

    ## Example
    ```python
    with torch.autocast("cuda"):
        logits = model(images)
    loss = F.cross_entropy(logits, labels)
    ```
    Use instead:
    ```python
    with torch.autocast("cuda"):
        logits = model(images)
    loss = F.cross_entropy(logits.float(), labels)
    ```
    or take the loss inside the region.

    ## Fix safety
    Safe: `.float()` on a float32 tensor does nothing.

    ## How to silence
    `# precision-lint: ignore[MP209] reason` or `# noqa: MP209` on the line.

    ## Sources
    PyTorch, Automatic Mixed Precision: CUDA ops that autocast to float32; "the forward pass(es),
    including the loss computation(s)".
    """

    code = "MP209"
    name = "loss-in-half"
    severity = Severity.WARNING
    applicability = Applicability.SAFE
    triggers = operators(ast.Call, pattern=r"[Aa]utocast|\.half\(\)")

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        loss = _loss(node, at)
        if loss is None and _foreign(node, at):
            yield at.finding(
                node,
                f"{at.text(node.func)} is no operation that autocast knows: it takes the loss in "
                "the dtype that it is given, half here",
                Confidence.POSSIBLE,
                evidence=at.why(at.region(node)),
            )
            return
        if loss is None or at.region(node).on:
            return
        given = [_argument(node, 0, "input"), _argument(node, 1, "target")]
        operands = [o for o in given if o is not None]
        if len(operands) < 2:
            return
        left = {o: made for o in operands if (made := _left(o, at)) is not None}
        alone = loss in OF_CLASSES or loss == ""
        if operands[0] not in left or (not alone and operands[1] not in left):
            return
        statement = at.statement(node)
        edits = None
        if statement is not None:
            edits = at.edit.append(statement, dict.fromkeys(left, ".float()"))
        together = len(left) > 1 and len({id(made) for made in left.values()}) == 1
        dtypes = {at.region(made).dtype for made in left.values()}
        name = loss or at.text(node.func)
        if dtypes == {"bfloat16"}:
            message = f"{name} is taken in bfloat16 behind the region: the loss has 2 to 3 digits"
        else:
            harm = (
                HARM["sum"] if _summed(node) else HARM["square" if loss == "mse_loss" else "other"]
            )
            message = f"{name} is taken in half behind the region: in float16 {harm}"
        # of two outputs of one call, the target may have been passed through as it came
        sure = loss and not together and not _only_measured(node, at)
        yield at.finding(
            node,
            message,
            Confidence.LIKELY if sure else Confidence.POSSIBLE,
            evidence=[
                *(at.note(made, "autocast leaves this in half") for made in left.values()),
                *at.around(node, "the loss"),
            ],
            fix=Fix("take the loss in float32", Applicability.SAFE, edits) if edits else None,
        )


def _loss(node: ast.Call, at: Context) -> str | None:
    """The functional name of a loss; ``""``: only its own name says that it is one."""
    qualified = at.qualify(node.func)
    if qualified is not None:
        home, _, last = qualified.rpartition(".")
        return last if home == "torch.nn.functional" and last in LOSSES else None
    func, cls = node.func, at.function.cls
    made = at.value(func)
    if isinstance(func, ast.Attribute) and cls is not None and at.text(func.value) == "self":
        made = at.module.attribute(cls, func.attr)
    if made.kind == "callable" and isinstance(made.const, str):
        home, _, last = made.const.rpartition(".")
        return CLASSES.get(last) if home == "torch.nn" and "instance" in made.tags else None
    last = getattr(func, "attr", getattr(func, "id", "")).lower()
    return "" if NAMED.search(last) else None


def _foreign(node: ast.Call, at: Context) -> bool:
    """Whether a call under autocast is the loss of another library, of operands not cast up."""
    qualified = at.qualify(node.func) or ""
    home, _, last = qualified.rpartition(".")
    if not home or home.partition(".")[0] in ("torch", "torchvision") or not FOREIGN.search(last):
        return False
    region = at.region(node)
    if not region.on and not (region.state == "inherited" and at.project.autocast is not None):
        return False
    if at.mentions(r"autocast|\.float\(\)|float32") or not node.args + node.keywords:
        return False
    made = at.module.callee(node.func, at.function)
    return made is None  # else its own operations are looked at


def _only_measured(node: ast.Call, at: Context) -> bool:
    """Whether a loss in range is taken without a gradient, as in an evaluation."""
    if _summed(node):
        return False
    managers = [
        item.context_expr
        for parent in at.ancestors(node)
        if isinstance(parent, (ast.With, ast.AsyncWith))
        for item in parent.items
    ]
    return at.without_gradient or any(
        isinstance(m, ast.Call) and at.qualify(m.func) in WITHOUT_GRADIENT for m in managers
    )


def _argument(node: ast.Call, place: int, name: str) -> ast.expr | None:
    named = next((k.value for k in node.keywords if k.arg == name), None)
    if named is not None or len(node.args) <= place:
        return named
    return node.args[place]


def _left(node: ast.expr, at: Context) -> ast.expr | None:
    """What made a value in a region of this function that it has left in half."""
    value = at.value(node)
    half = "amp" in value.tags or value.dtype in HALVES
    if not half or "cast" in value.tags or not value.maybe_tensor:
        return None
    source: ast.expr | None = node
    for _ in range(6):
        while isinstance(source, (ast.Attribute, ast.Subscript, ast.BinOp)) or (
            isinstance(source, ast.Call) and not at.region(source).on
        ):
            if isinstance(source, ast.BinOp):
                source = source.left
            elif isinstance(source, ast.Call):
                inner = at.operation(source)
                if inner is None:
                    return None
                source = inner[1]
            else:
                source = source.value
        if not isinstance(source, ast.Name):
            break
        source = at.definition(source.id, source)
    return source if isinstance(source, ast.Call) and at.region(source).on else None


def _summed(node: ast.Call) -> bool:
    return any(
        k.arg == "reduction" and isinstance(k.value, ast.Constant) and k.value.value == "sum"
        for k in node.keywords
    )
