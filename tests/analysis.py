"""Short ways into the analysis of a text."""

from __future__ import annotations

import ast

from precision_lint.semantics.index import Function, build, walk_function
from precision_lint.semantics.module import Module
from precision_lint.semantics.values import Value

HEAD = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def module(text: str) -> Module:
    """The analysed module that a text makes, behind the usual imports."""
    return Module(build(ast.parse(HEAD + text), {ast.With, ast.AsyncWith}))


def function(made: Module, name: str) -> Function:
    """The function or method of a qualified name."""
    (found,) = (f for f in made.index.functions if f.qualname == name)
    return found


def call_of(made: Module, name: str) -> ast.Call:
    """The only call whose callee's last component is ``name``."""
    ((call, _),) = made.index.calls[name]
    return call


def returned(text: str) -> Value:
    """What the last ``return`` of the text's first function gives."""
    made = module(text)
    first = made.index.functions[0]
    returns = [node for node in walk_function(first) if isinstance(node, ast.Return)]
    last = max(returns, key=lambda node: node.lineno)
    assert last.value is not None
    return made.analysis(first).values[id(last.value)]
