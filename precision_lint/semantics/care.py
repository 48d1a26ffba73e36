"""Whether code shows that its tensors may be half: it asks for a dtype, or casts to one."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from precision_lint.api import Confidence
from precision_lint.semantics.index import Class, walk_function

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context
    from precision_lint.semantics.index import Function

INTEGERS = re.compile(
    r"(?<![a-z])(ids?|idx|index|indices|labels?|steps?|(?:cu_?|seq_?)*lens?|lengths?|counts?|mask\w*|"
    r"tokens?(?!_(?:emb|feat|hidden|repr|vec|state)))(?![a-z])"
)
"""Words of names whose tensors hold integers or flags."""
COORDINATES = re.compile(
    r"(?<![a-z])(points?|coords?|coordinates|box(es)?|xyz?|pos|positions?|position_ids|rays?|"
    r"time|timesteps?|t|freqs?)(?![a-z])"
)
"""Words of names whose tensors had better stay float32, and as a rule do."""
CHOOSES = re.compile(
    r"\bis_half\b|(?:\.dtype\b|\.type\(\)).*(?:[Hh]alf|b?float16|float32|FloatTensor|torch\.float\b)"
)
"""Tests of a tensor's dtype that tell half from float32."""
_SOLVERS = frozenset({
    "torch.inverse", "torch.cholesky", "torch.svd", "torch.det", "torch.logdet", "torch.pinverse",
})  # fmt: skip
_TRAINS = re.compile(r"loss|criteri|metric|match|assign", re.IGNORECASE)
"""Names of what only training runs."""
_FLOAT32 = re.compile(r"torch\.float(32)?\b|\.float\(\)")
_CASTS = frozenset({"float", "to", "type"})
_HALVES = frozenset({"float16", "bfloat16", "half"})
_WHOLE = frozenset({
    "bool", "long", "int", "int64", "int32", "uint8", "int8", "short", "int16", "complex64",
})  # fmt: skip
_OWNERS = frozenset({"torch", "np", "numpy", "jnp", "tf"})


def is_test(filename: str) -> bool:
    """Whether a file is a test, by its name or its directory's."""
    parts = filename.replace("\\", "/").split("/")
    return bool({"test", "tests"} & set(parts[:-1])) or parts[-1].startswith("test_")


class Care:
    """What in a function, or in the methods of its class, speaks of the dtype of activations."""

    @staticmethod
    def of(at: Context) -> ast.expr | None:
        """The first expression of a function that asks for a float dtype or casts to a half one."""
        return at.function.fact(_shown)

    @staticmethod
    def half_models(at: Context) -> bool:
        """Whether models may be half: by the project, or by the code where nothing says autocast.

        Under autocast weights are float32, code that follows a dtype does so for its
        activations, and the next listed operation casts a widened tensor down.
        """
        if Care.in_test(at):
            return False
        if at.project.half is not None:
            return True
        return at.project.autocast is None and Care.of(at) is not None

    @staticmethod
    def expects_half(at: Context) -> bool:
        """Whether this code is expected in half models, outside of autocast.

        Where the project trains under autocast as well, the module has to show it: it follows a
        dtype somewhere, and is no loss, which only training needs.
        """
        if at.project.half is None:
            return Care.half_models(at)
        if Care.in_test(at) or not at.believes(at.project.half):
            return False
        if at.half_models is None:
            return False
        if at.project.autocast is None:
            return True
        if _TRAINS.search(at.function.qualname) or _TRAINS.search(at.source.filename):
            return False
        known = at.module.memo
        if _shown not in known:
            functions = at.module.index.functions
            known[_shown] = any(f.fact(_shown) is not None for f in functions)
        found: bool = known[_shown]
        return found

    @staticmethod
    def offered(at: Context, *, half: bool = False) -> Confidence:
        """``likely`` where the project says that it runs half precision, and no more is needed for
        harm; ``half``: where it makes whole models half, because autocast would help."""
        settings = (at.half_models,) if half else at.settings
        told = any(known is not None and at.believes(known) for known in settings)
        return Confidence.LIKELY if told and not Care.in_test(at) else Confidence.POSSIBLE

    @staticmethod
    def created_wide(origins: list[ast.expr], node: ast.expr, at: Context) -> Confidence:
        """The same of half models, for a layer's input that this code creates in float32.

        What it casts up is meant to be so; and only training runs losses, or the branches that ask
        for it.
        """
        asked = (at.text(a.test) for a in at.ancestors(node) if isinstance(a, ast.If))
        trains = any("train" in test for test in asked)
        trains |= bool(_TRAINS.search(at.function.qualname) or _TRAINS.search(at.source.filename))
        casts = (o.func for o in origins if isinstance(o, ast.Call) and at.qualify(o.func) is None)
        cast = any(isinstance(f, ast.Attribute) and f.attr in _CASTS for f in casts)
        return Confidence.POSSIBLE if trains or cast else Care.offered(at, half=True)

    @staticmethod
    def solves(at: Context) -> bool:
        """Whether a function decomposes or solves, which does not exist in half."""
        calls = (node for node in walk_function(at.function) if isinstance(node, ast.Call))
        names = (at.qualify(call.func) or f"torch.{_method(call)}" for call in calls)
        return any(name.startswith("torch.linalg.") or name in _SOLVERS for name in names)

    @staticmethod
    def chosen_by_dtype(node: ast.expr, at: Context) -> bool:
        """Whether a node stands in a branch of a test for half or float32 of what comes in."""
        return any(
            isinstance(parent, (ast.If, ast.IfExp))
            and CHOOSES.search(at.text(parent.test)) is not None
            and all(part is not node for part in ast.walk(parent.test))
            for parent in at.ancestors(node)
        )

    @staticmethod
    def is_additive(name: str, at: Context) -> bool:
        """Whether a mask is treated as floats: padded with one, or added up with a minimum."""
        return any(
            isinstance(part, ast.Call)
            and any(at.text(given).lower() == name for given in part.args[:1])
            and any(
                isinstance(given, ast.Constant) and isinstance(given.value, float)
                for given in [*part.args[1:], *(k.value for k in part.keywords)]
            )
            for part in ast.walk(at.function.node)
        )

    @staticmethod
    def is_activation(text: str) -> bool:
        """Whether an expression may name activations: no integers, flags, positions or times."""
        words = text.lower()
        return INTEGERS.search(words) is None and COORDINATES.search(words) is None

    @staticmethod
    def in_test(at: Context) -> bool:
        """Whether the file is a test, whose models are float32 unless it says otherwise."""
        return is_test(at.source.filename)

    @staticmethod
    def in_benchmark(at: Context) -> bool:
        """Whether the file lies among benchmarks, which compare speeds and train nothing to use."""
        parts = at.source.filename.replace("\\", "/").split("/")
        return bool({"benchmark", "benchmarks"} & set(parts[:-1]))

    @staticmethod
    def keeps_float32(name: str, at: Context) -> bool:
        """Whether the code keeps an attribute of ``self`` float32, or looks at its dtype.

        It may say so where it is made, by a cast of it, or in a list of a model in this file that
        names it or an instance of its class (``_keep_in_fp32_modules``).
        """
        cls = at.function.cls
        if cls is None:
            return False
        path = f"self.{name}"
        for node in ast.walk(cls.node):
            if isinstance(node, ast.Attribute) and node.attr in ("float", "dtype", "to"):
                if f"{ast.unparse(node.value)}.".startswith(f"{path}."):
                    return True
        stored = at.module.stores(cls).get(name)
        if stored is not None and _FLOAT32.search(ast.unparse(stored[0])):
            return True
        names = {name} | at.module.index.instances.get(cls.name, set())
        return any(kept in path for kept in _kept(at) for path in names)

    @staticmethod
    def of_class(at: Context) -> ast.expr | None:
        """The same for the class around."""
        cls: Class | None = at.function.cls
        found = (method.fact(_shown) for method in cls.methods.values()) if cls is not None else ()
        return next((node for node in found if node is not None), None)


def _method(call: ast.Call) -> str:
    """Name of a method that is called without arguments, as ``x.inverse()``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) and not call.args else ""


def _shown(function: Function) -> ast.expr | None:
    compared: set[int] = set()
    for node in walk_function(function):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(isinstance(s, ast.Attribute) and s.attr in _WHOLE for s in sides):
                compared |= {id(s) for s in sides}
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in ("half", "bfloat16") and not node.args:
                return node
            if node.func.attr == "type_as":
                return node
        elif isinstance(node, ast.Attribute) and id(node) not in compared:
            owner = node.value
            if node.attr == "dtype" and not _whole(owner):
                return node
            if node.attr in _HALVES and isinstance(owner, ast.Name) and owner.id == "torch":
                return node
    return None


def _whole(owner: ast.expr) -> bool:
    """Whether the owner of a dtype is no tensor of floats: a library, or a tensor of integers."""
    if isinstance(owner, ast.Name):
        return owner.id in _OWNERS or INTEGERS.search(owner.id.lower()) is not None
    return isinstance(owner, ast.Attribute) and INTEGERS.search(owner.attr.lower()) is not None


def _kept(at: Context) -> set[str]:
    """Names of modules that classes of this file keep in float32."""
    return {
        piece
        for cls in at.module.index.classes.values()
        for statement in cls.node.body
        if isinstance(statement, ast.Assign)
        and any("fp32" in t.id or "float32" in t.id for t in statement.targets
                if isinstance(t, ast.Name))
        for part in ast.walk(statement.value)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
        for piece in part.value.split(".")
        if piece not in ("", "weight", "bias")
    }  # fmt: skip
