"""``torch.save`` and ``torch.load``."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.libraries import TORCH, Arguments, Keywords
from precision_lint.dataflow.protocol import SAVED, note
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import NONE, Symbol, Unknown, Value

LOADED: Final = "loaded", ""
"""What marks an unknown object that came from a file."""


def _loaded(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    note(it, "load", node, *arguments)
    made = it.unknown("checkpoint", dtypes.BATCHES, assume.BATCH)
    made.symbol.attributes[LOADED] = NONE
    return made


def _saved(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    values = [*arguments, *keywords.values()]
    for look in SAVED:
        look(it, values, node)
    for value in values:
        if isinstance(value, Unknown) and LOADED in value.symbol.attributes:
            _forget_casts(it, value)
    return NONE


def _forget_casts(it: Interpreter, checkpoint: Unknown) -> None:
    """What is loaded, made half and saved again, and never called, takes less room: nothing runs so."""
    for part in checkpoint.symbol.attributes.values():
        if not isinstance(part, Unknown) or part.symbol.uses & Symbol.CALLED:
            continue
        made = part.symbol.attributes.get(("cast as", ""))
        if isinstance(made, Unknown) and made.symbol.node is not None:
            place = it.place(made.symbol.node)
            it.signs = {sign for sign in it.signs if sign.place != place}


TORCH["torch.save"] = _saved
TORCH["torch.load"] = _loaded
