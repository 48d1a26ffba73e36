"""Half dtypes that code names although another one was asked for, or is needed next."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from precision_lint.api import Confidence, Evidence
from precision_lint.semantics.care import Care
from precision_lint.semantics.halved import MODULES, Halved
from precision_lint.semantics.names import dotted

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

_ASKED = re.compile(r"dtype|precision|half|fp16|bf16|float16|cpu|cuda|device|amp", re.IGNORECASE)
"""Words of conditions under which a cast to half is somebody's choice."""
_GIVEN = re.compile(r"(?:^|_)dtype$")
_FLAG = re.compile(r"^(?P<owner>[A-Za-z_][\w.]*)\.(?:use_)?(?:fp16|half|is_half|float16)$")
_FLAGGED = re.compile(r"^(?!.*(?:cpu|cuda|device)).*(?:half|fp16)")
"""A condition that asks for half; what asks for the device is a matter of its kernels (MP505)."""
_NORMAL = frozenset({"torch.randn", "torch.randn_like", "torch.normal"})
_TO_FLOAT32 = re.compile(r"\.float\(\)|\.(?:to|type)\([^()]*\bfloat(?:32)?\b")
_GRIDS = ("meshgrid", "arange", "linspace")


@dataclass(frozen=True)
class Forced:
    """``node`` names a dtype that does not fit; ``harm`` says why, in words."""

    node: ast.expr
    harm: str
    confidence: Confidence
    evidence: tuple[Evidence, ...] = ()

    @classmethod
    def of(cls, call: ast.Call, at: Context) -> Forced | None:
        """What is wrong with a call that makes something half; None: nothing is known."""
        if Care.in_test(at):
            return None
        owner = _halved(call, at)
        if owner is not None:
            return _ignored(call, owner, at) or _widened(call, at) or _always(call, owner, at)
        return None

    @classmethod
    def drawn(cls, call: ast.Call, at: Context) -> Forced | None:
        """Normal noise that is drawn in half and made float32 behind that."""
        if at.qualify(call.func) not in _NORMAL or Care.in_test(at):
            return None
        given = next((k.value for k in call.keywords if k.arg == "dtype"), None)
        if given is None:
            return None
        named = given
        if isinstance(given, ast.Name):
            named = at.definition(given.id, given) or given
        literal = Halved.dtype(named, at)
        if literal is not None:
            if (wide := _made_wide(call, at)) is None:
                return None
            bits = 11 if literal == "float16" else 8
            harm = f"the noise is drawn in {literal} and cast up: it keeps its {bits} bits"
            return cls(named, harm, Confidence.LIKELY, (at.note(wide, "cast up here"),))
        later = _upcast_later(given, call, at)
        if later is None:
            return None
        source = at.text(given)
        harm = f"the noise is drawn in {source}, which may be half, and used in float32 behind that"
        evidence = (at.note(later, "made float32 here"), *at.settings[:1])
        return cls(given, harm, Care.offered(at), evidence)

    @classmethod
    def target(cls, call: ast.Call, at: Context) -> Forced | None:
        """A target that is made float32 for a binary cross entropy of what may be half."""
        func, loss = call.func, at.parents.get(id(call))
        if isinstance(loss, ast.keyword):
            loss = at.parents.get(id(loss))
        if not isinstance(func, ast.Attribute) or func.attr != "float" or call.args:
            return None
        if not isinstance(loss, ast.Call) or not _is_bce(loss, at):
            return None
        given = {k.arg: k.value for k in loss.keywords}
        predicted = loss.args[0] if loss.args else given.get("input")
        if predicted is None or predicted is call or Care.in_test(at):
            return None
        if at.value(predicted).dtype in ("float32", "float64"):
            return None
        name = dotted(predicted)
        if name is None or at.mentions(rf"\b{re.escape(name)}\s*=.*(?:float|sigmoid|softmax)"):
            return None
        harm = (
            f"the target is float32 and {name} has the dtype of its model: binary_cross_entropy "
            "wants one dtype and raises in half"
        )
        return cls(call, harm, Care.offered(at))

    @classmethod
    def grid(cls, call: ast.Call, at: Context) -> Forced | None:
        """Coordinates that a helper makes float32 from sizes, on a device that it is given."""
        func = call.func
        if not isinstance(func, ast.Attribute) or func.attr != "float" or call.args:
            return None
        names = [p.arg for p in at.function.parameters()]
        if at.function.is_method or "device" not in names or any("dtype" in n for n in names):
            return None
        if not at.mentions(r"\breturn\b") or not at.mentions("meshgrid") or Care.in_test(at):
            return None
        parts = list(ast.walk(func.value))
        for part in [*parts]:
            if isinstance(part, ast.Name):
                parts += [n for v in at.function.assigned.get(part.id, []) for n in ast.walk(v)]
        made = {(dotted(p.func) or "").rpartition(".")[2] for p in parts if isinstance(p, ast.Call)}
        if not made & set(_GRIDS):
            return None
        harm = (
            f"{at.function.name} takes a device and no dtype: its grid is float32 and promotes the "
            "half features of its callers"
        )
        return cls(call, harm, Confidence.POSSIBLE)


def _halved(call: ast.Call, at: Context) -> ast.expr | None:
    """What a call makes float16 (or bfloat16) by a literal dtype."""
    func = call.func
    if not isinstance(func, ast.Attribute):
        return None
    given = [*call.args, *(k.value for k in call.keywords)]
    if func.attr == "half":
        return None if given else func.value
    if func.attr in ("to", "type") and any(
        at.qualify(g) in ("torch.float16", "torch.half") for g in given
    ):
        return func.value
    return None


def _tests(node: ast.AST, at: Context) -> list[ast.expr]:
    """The conditions around a node."""
    return [a.test for a in at.ancestors(node) if isinstance(a, (ast.If, ast.IfExp))]


def _is_module(call: ast.Call, owner: ast.expr, at: Context) -> bool:
    """Whether what is cast is a module: in place, or by its name and the one it is given."""
    statement = at.statement(call)
    path = dotted(owner)
    if path is None:
        return False
    if isinstance(statement, ast.Expr) and statement.value is call:
        return True
    if not isinstance(statement, ast.Assign):
        return False
    target = (dotted(statement.targets[0]) or "").rpartition(".")[2]
    return bool(MODULES.search(target.lower()) and MODULES.search(path.rpartition(".")[2].lower()))


def _ignored(call: ast.Call, owner: ast.expr, at: Context) -> Forced | None:
    """A whole model that is made float16 where its class was given a dtype, or a flag says bf16."""
    if not _is_module(call, owner, at):
        return None
    path = at.text(owner)
    tests = [at.text(test) for test in _tests(call, at)]
    for text in tests:
        flag = _FLAG.match(text)
        if flag is None:
            continue
        other = rf"\b{re.escape(flag['owner'])}\.(?:use_)?(?:bf16|bfloat16)\b"
        asked = re.search(other, at.source.text)
        if asked is not None and not at.mentions(r"bf16|bfloat16"):
            harm = f"{path} is made float16 by one flag, and {asked[0]} is not asked"
            return Forced(call, harm, Confidence.LIKELY)
    if any(_ASKED.search(text) for text in tests):
        return None
    cls = at.function.cls
    given = _dtype_given(at)
    if given is None or at.mentions(rf"\b{re.escape(given.arg)}\b.*(?:==|!=|\bin\b|\bis\b)"):
        return None
    scope = ast.unparse(cls.node if cls is not None else at.function.node)
    passed = re.search(rf"(?:dtype\s*=\s*|\.to\()(?:self\.)?{re.escape(given.arg)}\b", scope)
    compared = re.search(rf"\b{re.escape(given.arg)}\s*(?:==|!=|in\b|is\b)", scope)
    if passed is None or compared is not None:
        return None
    harm = f"{path} is made float16 whatever dtype was asked for by {given.arg}"
    return Forced(call, harm, Confidence.LIKELY)


def _dtype_given(at: Context) -> ast.arg | None:
    """The parameter of a function, or of the constructor of its class, that is a dtype."""
    cls = at.function.cls
    made = cls.methods.get("__init__") if cls is not None else None
    functions = [at.function] if made is None or made is at.function else [at.function, made]
    for function in functions:
        for parameter in function.parameters():
            if _GIVEN.search(parameter.arg):
                return parameter
    return None


def _widened(call: ast.Call, at: Context) -> Forced | None:
    """Activations that are made float16 where they came as float32, without a look at bfloat16."""
    statement = at.statement(call)
    if not isinstance(statement, ast.Assign) or not at.function.parameters():
        return None
    if not isinstance(statement.targets[0], ast.Name):
        return None
    if at.mentions(r"bfloat16|get_autocast|weight\.dtype|_pre_quantization|target_dtype"):
        return None
    for around in at.ancestors(call):
        if not isinstance(around, ast.If):
            continue
        first = around.body[0] if around.body else None
        text = at.text(around.test)
        if not re.fullmatch(r"[\w.]+\s*(?:==|is)\s*torch\.float(?:32)?", text):
            continue
        same = [s for s in around.body if isinstance(s, ast.Assign)]
        if not same or same[0] is not statement or first is None:
            return None  # one finding says it for all
        harm = "what came in float32 is made float16 here, of a model in bfloat16 as well"
        return Forced(call, harm, Confidence.LIKELY)
    return None


def _always(call: ast.Call, owner: ast.expr, at: Context) -> Forced | None:
    """Inputs that are always made half, where their class makes the model half on conditions."""
    if _is_module(call, owner, at):
        return None
    if any(_ASKED.search(at.text(test)) for test in _tests(call, at)):
        return None
    name = (dotted(owner) or "").rpartition(".")[2]
    if name and MODULES.search(name.lower()):
        return None
    found = list(_conditional(at))
    if len(found) != 1 or at.mentions(r"\breturn\b[^\n]*\n[^\n]*cpu"):
        return None
    cast, test, there = found[0]
    harm = f"{at.text(call.func)}() is always called, and the model is half only if {test}"
    if len(harm) > 160:
        return None
    return Forced(call, harm, Confidence.LIKELY, (there.note(cast, "the model is made half here"),))


def _conditional(at: Context) -> Iterator[tuple[ast.Call, str, Context]]:
    """Casts of models of a class, or script, to half under a condition, and that condition."""
    cls = at.function.cls
    for method in cls.methods.values() if cls is not None else [at.function]:
        there = at.inside(method)
        for node in method.nodes:
            if not isinstance(node, ast.Call):
                continue
            owner = _halved(node, there)
            inner = owner
            while isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
                inner = inner.func.value
            path = dotted(inner) if inner is not None else None
            if path is None or (cls is not None and not path.startswith("self.")):
                continue
            if not MODULES.search(path.rpartition(".")[2].lower()):
                continue
            tests = [there.text(test) for test in _tests(node, there)]
            asked = [text for text in tests if _FLAGGED.search(text)]
            if asked:
                yield node, asked[0], there
            elif not tests:
                return  # always half


def _made_wide(call: ast.Call, at: Context) -> ast.expr | None:
    """The cast around or behind a draw that makes it another dtype than the one it was drawn in."""
    inner: ast.AST = call
    for parent in at.ancestors(call):
        match parent:
            case ast.Attribute(attr=attr) if attr in ("to", "float", "type"):
                pass
            case ast.Call(func=ast.Attribute(attr="float") as func) if func is inner:
                return parent
            case ast.Call(func=ast.Attribute(attr="to" | "type") as func) if func is inner:
                if _names_dtype(parent, at):
                    return parent
            case ast.BinOp():
                pass
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                for use in at.uses(name):
                    held = at.parents.get(id(use))
                    cast = at.parents.get(id(held)) if isinstance(held, ast.Attribute) else None
                    if (
                        isinstance(cast, ast.Call)
                        and isinstance(held, ast.Attribute)
                        and use.lineno > call.lineno
                        and _TO_FLOAT32.search(at.text(cast)[len(at.text(held.value)) :])
                    ):
                        return None if _used_as_is(name, value, at) else cast
                return None
            case _:
                return None
        inner = parent
    return None


def _names_dtype(call: ast.Call, at: Context) -> bool:
    """Whether ``x.to(...)`` names a dtype that is not half."""
    for given in [*call.args, *(k.value for k in call.keywords)]:
        qualified = at.qualify(given) or ""
        if qualified in ("torch.float32", "torch.float", "torch.float64"):
            return True
        if _GIVEN.search((dotted(given) or "").rpartition(".")[2]):
            return True
    return False


def _used_as_is(name: str, value: ast.expr, at: Context) -> bool:
    """Whether what a name was bound to is also handed on as it is: to a kernel, say."""
    return any(
        isinstance(use.ctx, ast.Load)
        and not isinstance(at.parents.get(id(use)), ast.Attribute)
        and at.definition(name, use) is value
        for use in at.uses(name)
    )


def _upcast_later(given: ast.expr, call: ast.Call, at: Context) -> ast.expr | None:
    """Where the tensor whose dtype a draw takes is made float32 next, in the same block."""
    owner = given.value if isinstance(given, ast.Attribute) and given.attr == "dtype" else None
    name = dotted(owner) if owner is not None else None
    statement = at.statement(call)
    if name is None or statement is None or owner is None:
        return None
    if at.value(owner).dtype in ("float32", "float64"):
        return None
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    if not isinstance(target, ast.Name):
        return None
    for after in at.after(statement)[:6]:
        if isinstance(after, ast.Assign) and [dotted(t) for t in after.targets] == [name]:
            text = at.text(after.value)
            wide = re.match(
                rf"{re.escape(name)}\.(?:float\(\)|to\((?:dtype=)?torch\.float32\))$", text
            )
            return after.value if wide else None
    return None


def _is_bce(call: ast.Call, at: Context) -> bool:
    if at.qualify(call.func) == "torch.nn.functional.binary_cross_entropy":
        return True
    made = at.value(call.func).const
    return isinstance(made, str) and made.endswith("nn.BCELoss")
