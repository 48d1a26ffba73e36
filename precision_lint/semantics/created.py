"""What a tensor that is created without a dtype meets, and where it is kept."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from precision_lint.semantics.care import Care
from precision_lint.semantics.fed import Fed
from precision_lint.semantics.meeting import Meeting
from precision_lint.semantics.names import dotted
from precision_lint.semantics.sinks import Sink

if TYPE_CHECKING:
    from precision_lint.semantics.context import Context

NUMPY = frozenset({"eye", "zeros", "ones", "identity", "linspace", "full", "diag", "random.rand"})
"""Functions of numpy that make float64."""
DEFAULTS = frozenset({
    "zeros", "ones", "full", "empty", "rand", "randn", "linspace", "logspace", "eye", "tensor",
    "as_tensor", "from_numpy", "Tensor",
})  # fmt: skip
"""Functions of torch that make tensors of the default dtype."""
OF_DATA = ("tensor", "as_tensor", "from_numpy", "Tensor")
"""Creations whose dtype is that of their data, or float32."""
MOVES = ("cuda", "to", "view", "reshape", "unsqueeze")
"""Methods behind a creation that keep its dtype."""
SAMPLERS = re.compile(r"(?:^|_)(?:sampler?|grid_sample|warp)$")


@dataclass(frozen=True, eq=False)
class Created:
    """What a creation meets: ``other`` in ``use``, or a whole model that ``use`` calls."""

    use: ast.expr
    other: ast.expr
    at: Context
    stored: bool
    """Whether it is kept in a plain attribute, which ``model.half()`` leaves as it is."""

    OF_DATA: ClassVar[tuple[str, ...]] = OF_DATA

    @staticmethod
    def loose(node: ast.Call, at: Context) -> Created | None:
        """Where a creation meets what may be half, although nothing says that this is a tensor."""
        if Care.in_test(at) or at.function.name == "<module>":
            return None
        name = _attribute(node, at)
        if at.value(node).ndim == 0 and (name is None or not _asked_for_rank(name, at)):
            return None
        met = Meeting.of(node, at, _open)
        if met is not None:
            return Created(met.use, met.other, met.at, False)
        met = Meeting.of_attribute(name, at, _open) if name is not None else None
        if met is not None:
            return Created(met.use, met.other, met.at, True)
        statement = at.statement(node)
        placed = statement is not None and (
            any(k.arg == "device" for k in node.keywords)
            or any(
                isinstance(a, ast.Attribute) and a.attr in ("to", "cuda")
                for a in at.ancestors(node)
            )
        )
        model = Fed.to_model(node, at) if placed else None
        return Created(model, model.func, at, False) if model is not None else None

    @staticmethod
    def sampled(node: ast.Call, at: Context) -> Created | None:
        """Where offsets of a grid go into the sampling of features, by way of a sum with places."""
        statement = at.statement(node)
        if not isinstance(statement, ast.Assign) or Care.in_test(at):
            return None
        names = {t.id for t in statement.targets if isinstance(t, ast.Name)}
        added = False
        for later in at.function.nodes:
            if isinstance(later, (ast.Assign, ast.Return)) and later.lineno > statement.lineno:
                if later.value is None:
                    continue
                used = {n.id for n in ast.walk(later.value) if isinstance(n, ast.Name)}
                if not names & used or len(names) > 10:
                    continue
                if re.search(r"dtype|type_as|\.half\(", at.text(later.value)):
                    return None
                added |= isinstance(later.value, ast.BinOp) and isinstance(later.value.op, ast.Add)
                kept = _samples(later.value, names)
                if kept is not None and added and not at.region(kept).on:
                    return Created(kept, kept.args[0], at, False)
                targets = later.targets if isinstance(later, ast.Assign) else []
                names |= {t.id for t in targets if isinstance(t, ast.Name)}
        return None

    @staticmethod
    def replaced(node: ast.Call, at: Context) -> str | None:
        """The buffer that a call makes anew on a device, in the default dtype."""
        statement, cls = at.statement(node), at.function.cls
        if not isinstance(statement, ast.Assign) or statement.value is not node or cls is None:
            return None
        target = dotted(statement.targets[0]) or ""
        if not re.fullmatch(r"self\.\w+", target) or at.function.name == "__init__":
            return None
        if not any(k.arg == "device" for k in node.keywords) or "dtype" in at.text(node):
            return None
        stored = at.module.stores(cls).get(target[5:])
        buffer = isinstance(stored[0], ast.Call) if stored is not None else False
        if stored is None or not buffer or "register_buffer" not in ast.unparse(stored[0]):
            return None
        if Care.in_test(at) or re.search(r"mask|idx|index|ids|position|count", target):
            return None
        again = at.mentions(rf"{re.escape(target)}\b[^\n]*(?:\.to\(|\.half\(|type_as|dtype)")
        return None if again else target

    @staticmethod
    def by_default(node: ast.expr, at: Context) -> bool:
        """Whether an expression creates a tensor in the default dtype."""
        if not isinstance(node, ast.Call) or any(k.arg == "dtype" for k in node.keywords):
            return False
        home = at.qualify(node.func) or ""
        return home.startswith("torch.") and home.rpartition(".")[2] in DEFAULTS

    @staticmethod
    def numpy_default(node: ast.Call, at: Context) -> bool:
        """Whether an array comes from a function of numpy that makes float64, uncast."""
        origins = [part for given in node.args for part in Sink.origins(given, at, 0)]
        homes = [at.qualify(o.func) or "" for o in origins if isinstance(o, ast.Call)]
        cast = any(
            (isinstance(part, ast.keyword) and part.arg == "dtype")
            or (isinstance(part, ast.Attribute) and part.attr == "astype")
            for origin in origins
            for part in ast.walk(origin)
        )
        return not cast and any(h.startswith("numpy.") and h[6:] in NUMPY for h in homes)

    @staticmethod
    def only_prepares(at: Context) -> bool:
        """Whether a function runs only while a model is set up: all that call it do."""
        callers = [caller for _, caller in at.module.call_sites(at.function)]
        return not at.plausible or (
            bool(callers)
            and at.function.name != "forward"
            and not any(at.inside(caller).plausible for caller in callers)
        )

    @staticmethod
    def device_owner(node: ast.Call) -> ast.expr | None:
        """The tensor or module whose device a call follows."""
        for keyword in node.keywords:
            if keyword.arg == "device" and isinstance(keyword.value, ast.Attribute):
                return keyword.value.value if keyword.value.attr == "device" else None
        return None

    @staticmethod
    def parameter(node: ast.Call, at: Context) -> ast.Call | None:
        """The ``nn.Parameter(...)`` or ``register_buffer(...)`` around a creation."""
        for parent in at.ancestors(node):
            if isinstance(parent, ast.Call):
                name = at.text(parent.func).rpartition(".")[2]
                if name in ("Parameter", "register_buffer", "register_parameter"):
                    return parent
            elif isinstance(parent, ast.stmt):
                return None
        return None

    @staticmethod
    def one_element(made: ast.Call, at: Context) -> bool:
        """Whether the tensor is a one-element accumulator, which widens nothing that matters."""
        if not made.args:
            return False
        name = at.text(made.func).rpartition(".")[2]
        first = made.args[0]
        if name in ("tensor", "as_tensor"):
            return isinstance(first, (ast.List, ast.Tuple)) and len(first.elts) == 1
        if isinstance(first, (ast.List, ast.Tuple)):
            sizes = [at.value(item).const for item in first.elts]
        else:
            sizes = [at.value(item).const for item in made.args]
        return name in ("zeros", "ones", "full", "empty") and sizes[:1] == [1] and len(sizes) == 1


def _open(node: ast.expr, at: Context) -> bool:
    """Whether an operand has the dtype of something else, as far as is known."""
    value = at.value(node)
    if value.ndim == 0 or not value.maybe_tensor or not value.variable:
        return False
    return Care.is_activation(at.text(node)) and not value.dtype.startswith("~cast")


def _attribute(node: ast.Call, at: Context) -> str | None:
    """The attribute of a module that a tensor is stored in, other than as a buffer."""
    cls, statement = at.function.cls, at.statement(node)
    if cls is None or not cls.is_module or not isinstance(statement, ast.Assign):
        return None
    for parent in at.ancestors(node):
        if isinstance(parent, ast.Call):
            name = at.text(parent.func).rpartition(".")[2]
            if name in ("Parameter", "register_buffer", "Embedding", "from_pretrained"):
                return None
    text = at.text(statement.targets[0])
    plain = text.startswith("self.") and text.count(".") == 1 and "[" not in text
    value = statement.value
    while value is not node and isinstance(value, ast.Call):
        if not isinstance(value.func, ast.Attribute) or value.func.attr not in MOVES:
            return None
        if "dtype" in at.text(value) or "half" in at.text(value):
            return None
        value = value.func.value  # cuda, to(device), view
    return text[5:] if plain and value is node else None


def _asked_for_rank(name: str, at: Context) -> bool:
    """Whether a class looks at the dimensions of an attribute, which a default alone has not."""
    return at.mentions(rf"self\.{re.escape(name)}(?:\.shape|\.ndim|\.dim\(|\[None)")


def _samples(value: ast.expr, names: set[str]) -> ast.Call | None:
    """The call in an expression that samples something at the places that a name holds."""
    for part in ast.walk(value):
        if isinstance(part, ast.Call) and len(part.args) > 1:
            last = (dotted(part.func) or "").rpartition(".")[2]
            first, place = part.args[:2]
            known = isinstance(place, ast.Name) and place.id in names
            if SAMPLERS.search(last) and known and isinstance(first, ast.Name):
                return part if first.id not in names else None
    return None
