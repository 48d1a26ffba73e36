from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import (
    Applicability,
    Care,
    Confidence,
    Context,
    Finding,
    Fix,
    Half,
    Provenance,
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
LOGITS = re.compile(r"logits$")
FLAG = re.compile(r"\bfp16\b|\.half\(\)|use_half|half_precision", re.I)
"""Words of a file that offers float16."""
PER_LEVEL = re.compile(r"(^|_)loss(es)?(_|$)")
LOSS = re.compile(r"loss|criterion|entropy|kl_div|ctc|transducer")
KERNELS = re.compile(r"(^|_)(ctc|rnnt|transducer|crf|ctc_crf)(_|$)")
"""Names of losses that extensions compute, which autocast knows nothing of."""
RANKS = frozenset({"topk", "argsort", "sort", "nms", "batched_nms", "kthvalue"})
WITHOUT_GRADIENT = frozenset({"torch.no_grad", "torch.inference_mode"})
HARM = {
    "sum": "a sum above 65504 is inf",
    "square": "squares of differences above 255 are inf",
    "other": "the gradient of a half loss is the loss scale, and 65536 is inf",
}


UPCAST = r"(?:logit|score|out|pred|model)[^\n=]*\.float\(\)|float32"
"""What a class does that casts its scores up."""


class LossInHalf(Rule):
    """Loss taken behind the autocast region, of half outputs that nobody cast up.

    ## What it flags
    `F.cross_entropy`, `F.nll_loss`, `nn.CrossEntropyLoss` and their like outside of autocast, on
    scores that a region in the same function has left in half; regression losses, binary cross
    entropy and `kl_div` where the target comes out of a region in half too, as that of a teacher
    network.

    Without a region in sight it is `possible`: a cross entropy or a summed loss of scores that
    nothing upcasts, losses of extensions (CTC, transducers) and of a detector's heads, logits that
    a module returns as they are, scores of a sigmoid or softmax that are ranked (`topk`, `sort`,
    `argsort`), and an `nn.CrossEntropyLoss` made in a file that offers float16 (likely where the
    same class makes its model half and casts no scores up).

    It stays silent for losses inside the region, which autocast runs in float32, for scores with
    `.float()`, and for a float32 target, which brings an elementwise loss up by promotion. It is
    `possible` for a loss of which only the name is known (`criterion(...)`), for two outputs of one
    call, and in an evaluation, unless it is a sum.

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
    triggers = operators(
        ast.Call,
        ast.Return,
        pattern=r"[Aa]utocast|\.half\(\)|[Ll]oss|cross_entropy|kl_div|logits|sigmoid|softmax",
    )

    def check(self, node: ast.Call | ast.Return, at: Context) -> Iterator[Finding]:
        if at.is_plain(node):
            return
        behind = list(self._behind(node, at)) if isinstance(node, ast.Call) else []
        yield from behind
        if not behind and not Care.in_test(at):
            yield from self._suspected(node, at)

    def _suspected(self, node: ast.Call | ast.Return, at: Context) -> Iterator[Finding]:
        """What is lost if the model runs in half, of which the function itself shows no sign."""
        if isinstance(node, ast.Return):
            found = _returned(node, at)
            harm = "logits leave the model in {}: losses and searches lose their third digit"
        elif (criterion := _criterion(node, at)) is not None:
            yield at.finding(
                node,
                f"{criterion} in a file that offers half: of half logits its sum is inf in float16 "
                "above 65504, and its log-probabilities have 3 digits",
                Confidence.LIKELY if _halves_its_model(at) else Confidence.POSSIBLE,
            )
            return
        elif (ranked := _ranked(node, at)) is not None:
            found, harm = ranked, "scores in {} tie in their third digit: the index decides"
        else:
            found, harm = (
                _unguarded(node, at),
                "loss of {} scores, which nothing upcasts: "
                + (HARM["sum"] if _summed(node) else HARM["other"]),
            )
        if found is None:
            return
        half = at.half(at.value(found), at.region(found))
        if half is None and isinstance(found, ast.Name) and at.value(found).kind == "object":
            half = Half(frozenset({"float16"}), Confidence.POSSIBLE, ())  # logits by their name
        if half is None:
            return
        yield at.finding(node, harm.format(half.dtype), Confidence.POSSIBLE, evidence=half.evidence)

    def _behind(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        """A loss behind the region that made its scores."""
        given = [_argument(node, 0, "input"), _argument(node, 1, "target")]
        operands = [o for o in given if o is not None]
        if len(operands) < 2 or not at.changes_region:
            return
        loss = _loss(node, at)
        if loss is None or at.region(node).on:
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
    if "Loss" in at.source.text:  # else there is no instance of such a class
        own = isinstance(func, ast.Attribute) and cls is not None and at.text(func.value) == "self"
        if own and isinstance(func, ast.Attribute) and cls is not None:
            made = at.module.attribute(cls, func.attr)
        else:
            made = at.value(func)
        if made.kind == "callable" and isinstance(made.const, str):
            home, _, last = made.const.rpartition(".")
            known = home == "torch.nn" and "instance" in made.tags
            return CLASSES.get(last) if known else None
    last = getattr(func, "attr", getattr(func, "id", "")).lower()
    return "" if NAMED.search(last) else None


def _returned(node: ast.Return, at: Context) -> ast.expr | None:
    """Logits of a layer, or of a model, that a module returns as they are."""
    if at.function.cls is None or not at.plausible or node.value is None:
        return None
    value = node.value
    parts: list[ast.expr] = list(value.elts) if isinstance(value, ast.Tuple) else [value]
    if isinstance(value, ast.Call):
        parts = [k.value for k in value.keywords]
    for part in parts:
        if isinstance(part, ast.Name) and LOGITS.search(part.id):
            source = at.definition(part.id, part)
            read = isinstance(source, ast.Attribute) and LOGITS.search(source.attr)
            if source is not None and (read or Provenance.is_layer(source, at)):
                return part
    return None


def _criterion(node: ast.Call, at: Context) -> str | None:
    """A cross entropy that is made where the file offers half by a flag."""
    last = (at.qualify(node.func) or "").removeprefix("torch.nn.")
    if last not in ("CrossEntropyLoss", "NLLLoss") or "autocast" in at.source.text:
        return None
    return last if at.inside(at.module.index.top).mentions(f"(?i:{FLAG.pattern})") else None


def _halves_its_model(at: Context) -> bool:
    """Whether the class that makes a criterion makes its model half and casts nothing up."""
    text = ast.unparse(at.function.cls.node) if at.function.cls is not None else ""
    return re.search(r"\bself\.\w*(?:model|net)\.half\(\)", text) is not None and not re.search(
        UPCAST, text
    )


def _ranked(node: ast.Call, at: Context) -> ast.expr | None:
    """Scores of a sigmoid or softmax that are ranked in the same function."""
    operation = at.operation(node)
    if operation is None or operation[0] not in ("sigmoid", "softmax"):
        return None
    if at.value(node).dtype in ("float32", "float64"):
        return None
    return node if _is_ranked(node, at, 3) else None


def _is_ranked(node: ast.expr, at: Context, depth: int) -> bool:
    for parent in at.ancestors(node):
        if isinstance(parent, ast.Call):
            operation = at.operation(parent)
            if operation is not None and operation[0] in RANKS:
                return True
        elif isinstance(parent, ast.Assign):
            target = parent.targets[0]
            return (
                depth > 0
                and isinstance(target, ast.Name)
                and any(
                    _is_ranked(use, at, depth - 1)
                    for use in at.uses(target.id)
                    if isinstance(use.ctx, ast.Load)
                    and at.definition(target.id, use) is parent.value
                )
            )
        elif isinstance(parent, ast.stmt):
            return False
    return False


def _unguarded(node: ast.Call, at: Context) -> ast.expr | None:
    """The scores of a loss outside of any known region that nothing upcasts."""
    last = at.text(node.func).rpartition(".")[2].lower()
    home = (at.qualify(node.func) or "").partition(".")[0]
    if home not in ("", "torch") and KERNELS.search(last) is not None:
        # autocast knows nothing of it, so that a region does not help
        given = [a for a in (*node.args, *(k.value for k in node.keywords))
                 if at.half(at.value(a), at.region(a)) is not None]  # fmt: skip
        return given[0] if given else None
    first = next(iter(node.args), None)
    if isinstance(first, ast.Attribute) and len(node.args) > 1 and PER_LEVEL.search(first.attr):
        return node.args[1]  # multi_apply(self.loss_by_feat_single, scores, ...)
    scores = _argument(node, 0, "input")
    if scores is None or isinstance(scores, ast.Starred) or not at.plausible:
        return None
    if not LOSS.search(last) and "Loss" not in at.source.text:
        return None
    if at.region(node).on or at.region(node).state == "off":
        return None
    method = at.text(node.func).startswith("self.") and last.startswith("loss_")
    made = at.function.cls is not None and last in ("ctc", "ctc_loss", "rnnt_loss", "transducer")
    if made or (method and len(node.args) > 1):
        return scores
    loss = _loss(node, at)
    return scores if loss in OF_CLASSES or (loss is not None and _summed(node)) else None


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
