"""float32 that a forward pass names for masks and constants, where activations meet them."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.semantics.care import Care
from precision_lint.semantics.meeting import Meeting
from precision_lint.semantics.provenance import Provenance

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

FLAGS = re.compile(
    r"(?<![a-z])(\w*mask(?:s|ed)?|one_?hot|valid\w*|keep|kept|present|is_\w+|gates?|visible|padding)(?![a-z])"
)
"""Names of tensors of zeros and ones."""
LEGACY = frozenset({"torch.FloatTensor", "torch.cuda.FloatTensor"})
NUMERIC = re.compile(r"loss|metric|accura|dice|iou|assign|match|target|schedule|sample|plot|draw")
"""Words of functions whose numbers had better be float32, whatever comes in."""
NUMBERS = re.compile(
    r"(?<![a-z])(\w*dims?|size|rat(e|io)?|\w*_rat|num\w*|[nhwbct]|height|width|scale|eps|theta|base|"
    r"temperature|alpha|beta|gamma|channels|sigma|std|period|max\w*|min\w*)(?![a-z])"
)
"""Names that numbers have as often as tensors."""
PLACES = re.compile(
    r"(?:^|_)(?:xyz|points?|pts|coords?|coordinates?|unknown|known|rois?|b?boxes|cent(?:er|re)s?|"
    r"centroids?|positions?|vert(?:ice)?s)(?=_|\d|$)"
)
"""Names of coordinates, which pass no layer."""
FEATURES = re.compile(r"feat|emb|logit|score")
RESULT = re.compile(r"logit|loss|score|prob|metric|target|label|mask|energy|entropy|temperature")
"""Words of what had better be float32, as a rule at the end of a model."""
_FLOAT32 = ("torch.float32", "torch.float")
_CASTS = ("float", "to", "type")
_CREATED = (
    "zeros", "ones", "full", "eye", "tensor", "rand", "randn", "as_tensor", "empty", "softmax",
)  # fmt: skip


class Hardcoded:
    """Calls that name float32, and the activations that they widen."""

    LEGACY = LEGACY

    @staticmethod
    def meeting(call: ast.Call, at: Context) -> Meeting | None:
        """Where what a call makes float32 widens the output of a layer of a half model."""
        if at.function.name != "forward" or at.function.cls is None or at.half_models is None:
            return None
        if not at.plausible or Care.in_test(at) or not _names_float32(call, at):
            return None
        met = Meeting.of(call, at, _activation)
        if met is None or at.region(met.use).on:
            return None
        return met

    @staticmethod
    def beside(call: ast.Call, at: Context) -> Meeting | None:
        """Where what a call makes float32 widens a tensor that the function is given.

        Nothing says that it is an activation; flags that are counted, to divide by, take part.
        """
        if Care.in_test(at) or not (_names_float32(call, at) or _counts_up(call, at)):
            return None
        if not at.function.parameters() or NUMERIC.search(at.function.name):
            return None
        met = Meeting.of(call, at, _given, counted=True)
        if met is None or at.region(met.use).on or _only_ranked(met.use, at):
            return None
        return met

    @staticmethod
    def kernel(call: ast.Call, at: Context) -> tuple[ast.Call, str] | None:
        """Where a buffer that is made float32 goes into a call beside a tensor that
        ``torch.autograd.Function.forward`` is given, and the name of that."""
        parameters = [p.arg for p in at.function.parameters()]
        if parameters[:1] != ["ctx"] or at.qualify(call.func) not in LEGACY or not call.args:
            return None
        if isinstance(call.args[0], (ast.List, ast.Tuple)) or at.function.name != "forward":
            return None
        statement = at.statement(call)
        if not isinstance(statement, ast.Assign) or not isinstance(statement.targets[0], ast.Name):
            return None
        for use in at.uses(statement.targets[0].id):
            parent = at.parents.get(id(use))
            if isinstance(parent, ast.keyword):
                parent = at.parents.get(id(parent))
            if isinstance(parent, ast.Call) and use is not parent.func:
                if at.text(parent.func).startswith("ctx."):
                    continue
                given = [*parent.args, *(k.value for k in parent.keywords)]
                for other in given:
                    value = at.value(other)
                    if isinstance(other, ast.Name) and value.variable and at.is_tensor(other):
                        if other.id in parameters:
                            return parent, other.id
        return None

    @staticmethod
    def coordinates(name: str, at: Context) -> bool:
        """Whether a parameter of an ``autograd.Function`` is a place in space, by its name or by
        those of what all calls outside of the file pass."""
        if PLACES.search(name) and not FEATURES.search(name):
            return True
        place = [p.arg for p in at.function.parameters()][1:].index(name)  # behind ctx
        given = [
            passed.call.args[place] if place < len(passed.call.args) else None
            for passed in at.module.arguments(at.function, name)
        ]
        texts = [ast.unparse(argument) if argument is not None else "" for argument in given]
        return bool(texts) and all(PLACES.search(t) and not FEATURES.search(t) for t in texts)

    @staticmethod
    def named(call: ast.Call, at: Context) -> bool:
        """Whether a call names float32 for any tensor: ``x.float()``, ``dtype=torch.float32``."""
        if at.value(call).dtype not in ("float32", ""):
            return False
        given = [*call.args, *(k.value for k in call.keywords if k.arg == "dtype")]
        qualified = at.qualify(call.func)
        if qualified in LEGACY:
            return True
        if isinstance(call.func, ast.Attribute) and qualified is None and call.func.attr == "float":
            return not given
        return any(at.qualify(g) in (*_FLOAT32, *LEGACY) for g in given)

    @staticmethod
    def left_wide(call: ast.Call, at: Context) -> ast.expr | None:
        """What a forward pass makes float32, if nothing in the function goes back to a dtype.

        Not logits and losses, which are meant to be float32, nor what is known to be no float.
        """
        func = call.func
        if not isinstance(func, ast.Attribute) or at.qualify(func) is not None:
            return None
        if func.attr not in _CASTS or not Hardcoded.named(call, at) or not at.function.cls:
            return None
        cls, operand = at.function.cls, at.value(func.value)
        forward = at.function.name.startswith(("forward", "extract_features", "_forward"))
        if not cls.is_module or not forward or Care.in_test(at):
            return None
        if operand.dtype in ("int", "bool", "float32", "float64") or not operand.maybe_tensor:
            return None
        words = at.text(func.value).lower()
        if RESULT.search(words) or NUMERIC.search(f"{cls.name} {at.function.name}".lower()):
            return None
        if "loss" in at.source.filename:
            return None
        if not Care.is_activation(words) or isinstance(at.statement(call), ast.Return):
            return None
        statement = at.statement(call)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else None
        name = re.escape(at.text(target)) if target is not None else r"\w+"
        back = r"\.(?:type_as|half|type|bfloat16)\(|\.to\((?!(?:dtype=)?torch\.float(?:32)?\b)"
        if at.mentions(rf"(?<!\w){name}\b[^\n]*(?:{back})|autocast|return .*\.(?:to|type_as)\("):
            return None
        parent = at.parents.get(id(call))
        return None if isinstance(parent, ast.Compare) else func.value

    @staticmethod
    def widened(node: ast.expr, at: Context) -> bool:
        """Whether a value is float32 because of such a call."""
        return any(
            isinstance(origin, ast.Call)
            and (
                Hardcoded.meeting(origin, at) is not None
                or (_names_float32(origin, at) and Hardcoded.beside(origin, at) is not None)
            )
            for origin in Provenance.of(node, at)
        )


def _only_ranked(use: ast.expr, at: Context) -> bool:
    """Whether only the places of the largest values are asked of what a statement binds."""
    statement = at.statement(use)
    if not isinstance(statement, ast.Assign) or statement.value is not use:
        return False
    target = statement.targets[0]
    reads = at.uses(target.id) if isinstance(target, ast.Name) else []
    calls = [at.parents.get(id(n)) for n in reads if isinstance(n.ctx, ast.Load)]
    calls = [at.parents.get(id(c)) if isinstance(c, ast.Attribute) else c for c in calls]
    return bool(calls) and all(isinstance(c, ast.Call) and _ranks(c, at) for c in calls)


def _ranks(call: ast.Call, at: Context) -> bool:
    """Whether a call gives places, or a pair of which only the places are kept."""
    operation, parent = at.operation(call), at.parents.get(id(call))
    if operation is None or operation[0] not in ("topk", "sort"):
        return operation is not None and operation[0] in ("argmax", "argmin", "argsort")
    match parent:
        case ast.Assign(targets=[ast.Tuple(elts=[ast.Name(id=name), _])]):
            return name.startswith("_") and not any(
                isinstance(n.ctx, ast.Load) for n in at.uses(name)
            )
        case ast.Attribute(attr="indices") | ast.Subscript(slice=ast.Constant(value=1)):
            return True
    return False


def _names_float32(node: ast.Call, at: Context) -> bool:
    """Whether a call names float32 for zeros and ones, or for a constant."""
    value = at.value(node)
    if value.dtype != "float32" or value.ndim == 0:
        return False
    qualified = at.qualify(node.func)
    if qualified is not None:
        named = any(k.arg == "dtype" and at.qualify(k.value) in _FLOAT32 for k in node.keywords)
        created = qualified.rpartition(".")[2] in _CREATED
        return (named and created) or qualified in LEGACY
    if not isinstance(node.func, ast.Attribute) or node.func.attr not in _CASTS:
        return False
    given = [*node.args, *(k.value for k in node.keywords)]
    if node.func.attr == "float":
        if given:
            return False
    elif len(given) != 1 or not (
        at.qualify(given[0]) in _FLOAT32
        or (node.func.attr == "type" and at.qualify(given[0]) in LEGACY)
    ):
        return False
    operand = at.value(node.func.value)
    flags = operand.dtype == "bool" or "normalized" in operand.tags
    words = at.text(node.func.value).lower()
    return flags or (FLAGS.search(words) is not None and not operand.tags & {"float", "cast"})


def _counts_up(call: ast.Call, at: Context) -> bool:
    """Whether a call makes a float32 range."""
    named = any(k.arg == "dtype" and at.qualify(k.value) in _FLOAT32 for k in call.keywords)
    return named and at.qualify(call.func) in ("torch.arange", "torch.linspace")


def _given(node: ast.expr, at: Context) -> bool:
    """Whether an operand has the dtype of what comes in, or of what a call returns."""
    value = at.value(node)
    if not value.maybe_tensor or value.dtype.startswith(("~cast", "~para")):
        return False
    known = value.variable or (value.dtype == "" and not isinstance(node, ast.Constant))
    text = at.text(node)
    if not at.is_tensor(node) and NUMBERS.search(text.lower()):
        return False
    return known and Care.is_activation(text)


def _activation(node: ast.expr, at: Context) -> bool:
    """Whether an operand comes out of a layer, in the dtype of its weights."""
    value = at.value(node)
    if not value.variable or not value.maybe_tensor or value.dtype == "~cast":
        return False
    return Provenance.computed(node, at) is not None
