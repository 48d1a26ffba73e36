from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from precision_lint.api import Confidence, Context, Evidence, Finding, Guard, Rule, Severity, calls

DEFAULTS = {
    "Adam": 1e-8, "AdamW": 1e-8, "NAdam": 1e-8, "RAdam": 1e-8, "Adamax": 1e-8, "RMSprop": 1e-8,
    "Adagrad": 1e-10,
}  # fmt: skip
"""The epsilon of an optimizer where none is passed."""
PLACES = {"Adam": 3, "AdamW": 3, "NAdam": 3, "RAdam": 3, "Adamax": 3, "RMSprop": 3}
MASTER = re.compile(
    r"(?<!on_)(?<!is_)(?<!if_)master(?!_(addr|port|rank|process|only))|fp32_param|FP16_?Optimizer|get_peft_model|LoraConfig|kbit",
    re.I,
)
"""Code that keeps float32 copies of what it trains."""
HALVES = {"torch.float16": "float16", "torch.half": "float16", "torch.bfloat16": "bfloat16"}
HINTS = re.compile(r"fp16|float16|\bhalf\b", re.I)
"""Words of a script that offers float16."""
MODELS = frozenset({"parameters", "named_parameters"})


class OptimizerEpsInHalf(Rule):
    """Adam and its relatives on float16 parameters: their epsilon is 0.

    ## What it flags
    `torch.optim.Adam`, `AdamW`, `NAdam`, `RAdam`, `Adamax`, `RMSprop` and `Adagrad` with an
    epsilon of at most 2.98e-8, which includes the default of each, on the parameters of a model
    that the same function, or the same class, makes float16: `model.half()`,
    `.to(torch.float16)`, `from_pretrained(..., torch_dtype=torch.float16)`. As `likely` also on
    those of a model that a function gives back in float16, and on tensors cut out of one.

    It stays silent for bfloat16, whose range holds 1e-8, for a model that goes back to float32,
    where adapters or master copies are trained instead, and for a larger epsilon. A cast under a
    condition, and one in another method, are `likely`; a literal cast in sight is `certain`. In a
    file that offers float16 it is `possible`.

    ## Why it breaks
    An optimizer keeps its moments in the dtype of the parameters. The second moment of a gradient
    of 1e-4 is 1e-11 after the first step, which is 0 in float16, and so is the epsilon of 1e-8
    that should guard the division: the first step is inf, or nan where the gradient is 0 as well.
    With `fused=True` the step is finite and up to 34 times too long. The root cause is the half
    parameters, not the epsilon: eps=1e-4 hides the infinity and makes small gradients ten times
    too weak.

    ## Example
    ```python
    model = nn.Linear(4, 4).half()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ```
    Use instead:
    ```python
    model = nn.Linear(4, 4)  # float32 parameters, run under autocast
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ```

    ## Fix safety
    There is no fix: what cures it is float32 parameters with autocast and a GradScaler, which
    changes more than this line.

    ## How to silence
    `# precision-lint: ignore[MP312] reason` or `# noqa: MP312` on the line.

    ## Sources
    PyTorch, `torch.optim.Adam` (`eps=1e-8`); Automatic Mixed Precision examples (parameters stay
    float32). Mixed Precision Training, arXiv:1710.03740, section 3.1 (master weights).
    """

    code, name = "MP312", "optimizer-eps-in-half"
    severity, applicability = Severity.ERROR, None
    triggers = calls(*(f"torch.optim.{name}" for name in DEFAULTS))

    def check(self, node: ast.Call, at: Context) -> Iterator[Finding]:
        name = (at.qualify(node.func) or "").rpartition(".")[2]
        epsilon = _epsilon(node, name, at)
        if epsilon is None or epsilon > Guard.VANISHES or not node.args:
            return
        if at.mentions(MASTER.pattern):
            return
        for model in sorted(_models(node.args[0], at)):
            cast, confidence = _half_cast(model, node, at)
            if cast is None:
                continue
            given = "epsilon" if any(k.arg == "eps" for k in node.keywords) else "default epsilon"
            fused = any(
                k.arg == "fused" and isinstance(k.value, ast.Constant) and k.value.value is True
                for k in node.keywords
            )
            fate = "steps are up to 34 times too long" if fused else "the first step is inf or nan"
            yield at.finding(
                node,
                f"{name} on float16 parameters: its {given} {epsilon:g} is 0 there, so {fate}; "
                "the parameters should be float32",
                confidence,
                evidence=[cast],
            )
            return
        source = _by_flow(node.args[0], at)
        if source is not None:
            yield at.finding(
                node,
                f"{name} on float16 parameters: its epsilon {epsilon:g} is 0 there, so the first "
                "step is inf or nan; the parameters should be float32",
                Confidence.LIKELY,
                evidence=[at.note(source, "this may be float16"), *at.settings[-1:]],
            )
            return
        models = at.half_models if "float16" in at.project.half_dtypes else None
        if HINTS.search(at.source.text):
            where = "the project makes models float16" if models else "the file speaks of float16"
            yield at.finding(
                node,
                f"{name} keeps its default epsilon {epsilon:g}, which is 0 on float16 parameters, "
                f"and {where}",
                Confidence.POSSIBLE,
                evidence=[models] if models is not None else [],
            )


def _epsilon(node: ast.Call, name: str, at: Context) -> float | None:
    given = [k.value for k in node.keywords if k.arg == "eps"]
    if any(k.arg is None for k in node.keywords) or name not in DEFAULTS:
        return None
    place = PLACES.get(name)
    if not given and place is not None and len(node.args) > place:
        given = [node.args[place]]
    if not given:
        return DEFAULTS[name]
    const = at.value(given[0]).const
    return float(const) if isinstance(const, (int, float)) else None


def _models(node: ast.expr, at: Context, depth: int = 3) -> set[str]:
    """Names of the models whose parameters are optimized."""
    found: set[str] = set()
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in MODELS:
                found.add(at.text(owner))
            case ast.Name(id=name) if depth:
                source = at.definition(name, part)
                if source is not None:
                    found |= _models(source, at, depth - 1)
    return found


def _by_flow(node: ast.expr, at: Context, depth: int = 3) -> ast.expr | None:
    """A model, or a tensor that is optimized, which the flow of values shows to be float16."""
    for part in ast.walk(node):
        match part:
            case ast.Call(func=ast.Attribute(value=owner, attr=attr)) if attr in MODELS:
                if at.module_dtypes(owner) == {"float16"}:
                    return owner
            case ast.List(elts=parts) | ast.Tuple(elts=parts):
                for tensor in parts:
                    value = at.value(tensor)
                    half = at.half(value, at.region(node)) if value.is_tensor else None
                    if half is not None and half.outside and half.dtypes == {"float16"}:
                        return tensor
            case ast.Name(id=name) if depth:
                source = at.definition(name, part)
                found = _by_flow(source, at, depth - 1) if source is not None else None
                if found is not None:
                    return found
    return None


def _half_cast(model: str, node: ast.expr, at: Context) -> tuple[Evidence | None, Confidence]:
    """The last cast of a model to float16 in this function or class, and how sure it is."""
    casts: list[tuple[ast.Call, Context]] = [
        (call, at) for call in _casts(at.function.node, model, at)
    ]
    if model.startswith("self.") and at.function.cls is not None:
        for method in at.function.cls.methods.values():
            if method is not at.function:
                inner = at.inside(method)
                casts += [(call, inner) for call in _casts(method.node, model, inner)]
    here = [call for call, where in casts if where is at]
    before = [call for call in here if call.lineno <= node.lineno]
    chosen = max(before or here, key=lambda call: call.lineno, default=None)
    if chosen is not None:
        if _dtype(chosen, at) != "float16":
            return None, Confidence.POSSIBLE
        sure = chosen in before and not _conditional(chosen, at) and "eval" not in at.function.name
        level = Confidence.CERTAIN if sure else Confidence.LIKELY
        return at.note(chosen, f"{model} is made float16 here"), level
    foreign = [(call, where) for call, where in casts if _dtype(call, where) == "float16"]
    if len(foreign) != len(casts) or not foreign:
        return None, Confidence.POSSIBLE
    call, where = foreign[0]
    if re.search(r"eval|valid|infer|predict|export|deploy|test", where.function.name):
        return None, Confidence.POSSIBLE
    return at.note(call, f"{model} is made float16 here"), Confidence.LIKELY


def _casts(function: ast.AST, model: str, at: Context) -> Iterator[ast.Call]:
    """Calls that give a model a dtype: ``model.half()``, ``model = Net().to(torch.float16)``."""
    for part in ast.walk(function):
        match part:
            case ast.Assign(targets=[target], value=value) if at.text(target) == model:
                yield from _chain(value, at)
            case ast.Expr(value=ast.Call() as call):
                for cast in _chain(call, at):
                    owner: ast.expr = call
                    while isinstance(owner, ast.Call) and isinstance(owner.func, ast.Attribute):
                        owner = owner.func.value
                    if at.text(owner) == model:
                        yield cast


def _chain(node: ast.expr, at: Context) -> Iterator[ast.Call]:
    """The casts in a chain of calls, the last one only."""
    while isinstance(node, ast.Call):
        if _dtype(node, at):
            yield node
            return
        if not isinstance(node.func, ast.Attribute):
            return
        node = node.func.value


def _dtype(call: ast.Call, at: Context) -> str:
    """The dtype that a call gives a model, or ""."""
    last = getattr(call.func, "attr", "")
    if last in ("half", "float", "bfloat16", "double") and not call.args:
        return {"half": "float16", "float": "float32", "double": "float64"}.get(last, last)
    named = [k.value for k in call.keywords if k.arg in ("dtype", "torch_dtype")]
    given = [*call.args, *named] if last in ("to", "type") else named
    if last not in ("to", "type", "from_pretrained"):
        return ""
    return next((named for named in (_named(g, at) for g in given) if named), "")


def _named(node: ast.expr, at: Context) -> str:
    """The dtype that an expression names, a default argument included; or ""."""
    value = at.value(node)
    if value.kind == "dtype":
        return value.dtype
    default = at.function.defaults().get(node.id) if isinstance(node, ast.Name) else None
    return HALVES.get(at.qualify(default) or "", "") if default is not None else ""


def _conditional(cast: ast.Call, at: Context) -> bool:
    """Whether a cast depends on a condition or on an argument."""
    if any(isinstance(parent, (ast.If, ast.IfExp)) for parent in at.ancestors(cast)):
        return True
    names = {n.id for n in ast.walk(cast) if isinstance(n, ast.Name)}
    return bool(names & at.function.defaults().keys())
