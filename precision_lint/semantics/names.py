"""Local names to qualified names, through imports and aliases of one module."""

from __future__ import annotations

import ast

CANONICAL = {
    "torch.functional": "torch",
    "torch.special": "torch",
    "torch.nn.functional": "torch.nn.functional",
    "torch.amp.autocast_mode": "torch.amp",
    "torch.cuda.amp.autocast_mode": "torch.cuda.amp",
    "torch.cuda.amp.grad_scaler": "torch.cuda.amp",
    "torch.amp.grad_scaler": "torch.amp",
    "torch.nn.modules.loss": "torch.nn",
    "torch.nn.utils.clip_grad": "torch.nn.utils",
}
"""Private or alternative homes of public names, by the home users read about."""


def dotted(node: ast.expr) -> str | None:
    """``a.b.c`` for a chain of names and attributes, None for anything else."""
    if type(node) is ast.Name:
        return node.id
    if type(node) is not ast.Attribute:
        return None
    known = vars(node)
    if _DOTTED not in known:
        known[_DOTTED] = _dotted(node)
    found: str | None = known[_DOTTED]
    return found


_DOTTED = "_dotted"
"""Where a node keeps its dotted name: it is asked for three times on average."""


def _dotted(node: ast.expr) -> str | None:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    parts.append(node.id)
    return ".".join(reversed(parts))


class Names:
    """What the names of one module stand for.

    Imports anywhere in the module count, because torch is often imported inside functions;
    ``alias = torch`` and ``alias = torch.nn.functional`` at module level count too.
    """

    def __init__(self) -> None:
        self.bound: dict[str, str] = {}
        self.stars: list[str] = []

    def add_import(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.asname:
                    self.bound[alias.asname] = alias.name
                else:
                    top = alias.name.partition(".")[0]
                    self.bound[top] = top
            return
        home = "." * node.level + (node.module or "")
        for alias in node.names:
            if alias.name == "*":
                self.stars.append(home)
            else:
                joint = "" if home.endswith(".") or not home else "."
                self.bound[alias.asname or alias.name] = f"{home}{joint}{alias.name}"

    def add_alias(self, name: str, value: ast.expr) -> None:
        """Note ``name = value`` at module level if the value is an imported thing."""
        qualified = self.qualify(value)
        if qualified and name not in self.bound:
            self.bound[name] = qualified

    def qualify(self, node: ast.expr) -> str | None:
        """The qualified name of an expression, or None if it isn't a dotted imported name."""
        path = dotted(node)
        if path is None:
            return None
        head, _, rest = path.partition(".")
        home = self.bound.get(head)
        if home is None:
            if not rest and "torch" in self.stars and head in STAR_NAMES:
                home = f"torch.{head}"
            else:
                return None
        full = f"{home}.{rest}" if rest else home
        if not full.startswith("torch"):
            return full
        parent, _, last = full.rpartition(".")
        return f"{CANONICAL[parent]}.{last}" if parent in CANONICAL else full

    def spelling(self, module: str) -> str | None:
        """The local name of an imported module such as ``torch``, or None."""
        if self.bound.get(module) == module:
            return module
        return next((name for name, home in self.bound.items() if home == module), None)


STAR_NAMES = frozenset(
    {
        "einsum",
        "cdist",
        "matmul",
        "bmm",
        "baddbmm",
        "autocast",
        "log",
        "zeros",
        "ones",
        "eye",
        "full",
        "rand",
        "randn",
        "linspace",
        "cat",
        "stack",
    }
)
"""Names that ``from torch import *`` is believed to bind; builtins' names are left alone."""
