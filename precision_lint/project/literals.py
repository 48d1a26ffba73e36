"""Names and literal values in a syntax tree, as far as settings need them."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator

from precision_lint.project.spellings import DTYPES, OPEN, Entry, Value, is_setting, normal

_WORDS = {"amp", "half", "mixed", "scaler", "dtype", "o1", "o2"}
_PARTS = ("fp16", "bf16", "float16", "precision", "autocast", "mixed_prec", "amp_", "opt_level")
_DEVICE = ("cuda", "device", "gpu", "is_available")
_TABLES = {"dict", "CN", "CfgNode", "ConfigDict", "L", "LazyCall", "OmegaConf", "create"}
_DEEPEST, _LONGEST = 12, 50


def dotted(node: ast.AST) -> list[str]:
    """``a.b.c`` as its parts; the first is "" if an expression stands there."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return parts[::-1]


def string(node: ast.AST | None) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def literal(node: ast.expr | None) -> Value:
    if isinstance(node, ast.Constant):
        value = node.value
        return value if value is None or isinstance(value, (bool, int, float, str)) else OPEN
    return None if node is None else OPEN


def path(target: ast.AST) -> tuple[str, ...]:
    """``a.b["c"]`` as keys; empty if it is something else."""
    keys: list[str] = []
    while isinstance(target, (ast.Attribute, ast.Subscript)):
        key = target.attr if isinstance(target, ast.Attribute) else string(target.slice)
        if key is None:
            return ()
        keys.append(key)
        target = target.value
    if isinstance(target, ast.Name):
        keys.append(target.id)
    return tuple(reversed(keys))


def text(node: ast.AST) -> str:
    """Source text of a node, on one line."""
    try:
        return " ".join(ast.unparse(node).split())
    except (RecursionError, ValueError):
        return "..."


def _words(test: ast.AST) -> Iterator[str]:
    for node in ast.walk(test):
        if isinstance(node, ast.Name):
            yield node.id.lower()
        elif isinstance(node, ast.Attribute):
            yield node.attr.lower()
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value.lower()


def on_precision(test: ast.AST) -> bool:
    """Whether a condition is about precision, so that what it guards is an option."""
    return any(
        any(part in word for part in _PARTS) or not _WORDS.isdisjoint(word.split("_"))
        for word in _words(test)
    )


def on_device(test: ast.AST) -> bool:
    """Whether a condition asks for the device only: what it guards is on where that is there."""
    return not on_precision(test) and any(part in word for word in _words(test) for part in _DEVICE)


class Names:
    """What the names of one file stand for, by its imports."""

    def __init__(self) -> None:
        self._homes: dict[str, str] = {}
        self._tables: dict[str, list[str]] = {}

    def add(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            if isinstance(node, ast.ImportFrom):
                self._homes[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
            elif alias.asname:
                self._homes[alias.asname] = alias.name

    def add_table(self, node: ast.Assign) -> None:
        """Note ``DTYPES = {"fp16": torch.float16, ...}``, a table of nothing but dtypes."""
        if isinstance(node.value, ast.Dict) and node.value.values:
            found = [self.dtypes(value) for value in node.value.values]
            halves = [dtype for some in found for dtype in some or ()]
            for target in node.targets:
                if isinstance(target, ast.Name) and halves and None not in found:
                    self._tables[target.id] = halves

    def table(self, node: ast.AST | None) -> list[str] | None:
        """The half dtypes that an entry of a table of dtypes may be; None: it is none."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            owner = node.func.value if node.func.attr in ("get", "pop") else None
        else:
            owner = node.value if isinstance(node, ast.Subscript) else None
        return self._tables.get(owner.id) if isinstance(owner, ast.Name) else None

    def imports(self, names: Collection[str]) -> bool:
        """Whether one of these names is imported from somewhere."""
        return any(home.rpartition(".")[2] in names for home in self._homes.values())

    def home(self, node: ast.AST) -> list[str]:
        """The parts of a dotted name, its first replaced by what was imported under it."""
        head, *rest = dotted(node)
        return [*self._homes.get(head, head).split("."), *rest]

    def dtypes(self, node: ast.AST | None) -> list[str] | None:
        """The half dtypes that an expression names; None if it is no dtype that can be read."""
        if isinstance(node, ast.IfExp):
            arms = (self.dtypes(node.body), self.dtypes(node.orelse))
            return None if None in arms else [dtype for arm in arms for dtype in arm or ()]
        if (entries := self.table(node)) is not None:
            return entries
        name = string(node)
        if name is None and isinstance(node, (ast.Attribute, ast.Name)):
            name = ".".join(self.home(node))
        if name is None or not (name.startswith("torch.") or (string(node) and name in DTYPES)):
            return None
        return [DTYPES[name]] if name in DTYPES else []

    def values(self, node: ast.expr) -> list[tuple[Value, bool]]:
        """The literals that a value may be, and whether it is that one for sure."""
        if isinstance(node, ast.IfExp):
            sure = on_device(node.test)
            arms = [*self.values(node.body), *self.values(node.orelse)]
            return [(value, sure and was) for value, was in arms if value is not OPEN]
        if (entries := self.table(node)) is not None:
            return [(f"torch.{dtype}", False) for dtype in entries]
        if isinstance(node, (ast.Attribute, ast.Name)):
            *_, last = home = self.home(node)
            if ".".join(home) in DTYPES:
                return [(".".join(home), True)]
            if last.isupper() and re.search(r"16|AMP", last):  # Precision.AMP_FP16
                return [(last.lower(), True)]
        return [(literal(node), True)]

    def entries(self, path: tuple[str, ...], node: ast.expr) -> Iterator[Entry]:
        """The leaves of a nested dictionary that may say something of the precision."""
        stack: list[tuple[tuple[str, ...], ast.expr]] = [(path, node)]
        while stack:
            at, value = stack.pop()
            inner: list[tuple[str | None, ast.expr]] = []
            if isinstance(value, ast.Dict):
                inner = [(string(k), v) for k, v in zip(value.keys, value.values, strict=True)]
            elif isinstance(value, ast.Call) and dotted(value.func)[-1] in _TABLES:
                inner = [(keyword.arg, keyword.value) for keyword in value.keywords]
            elif isinstance(value, (ast.List, ast.Tuple)) and len(value.elts) < _LONGEST:
                inner = [(str(number), element) for number, element in enumerate(value.elts)]
            elif len(at) > len(path) and (is_setting(normal(at[-1])) or "loss_scale" in at):
                for found, sure in self.values(value):
                    yield Entry(at, found if sure else OPEN, value.lineno)
            if len(at) < _DEEPEST:
                stack += reversed([((*at, key), v) for key, v in inner if key])
