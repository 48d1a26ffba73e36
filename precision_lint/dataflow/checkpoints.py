"""``torch.save`` and ``torch.load``."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.libraries import TORCH, Arguments, Keywords
from precision_lint.dataflow.protocol import SAVED, note
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.values import NONE, Unknown, Value

CHECKPOINT: Final = "checkpoint"


def _loaded(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    note(it, "load", node, *arguments)
    return it.unknown(CHECKPOINT, dtypes.BATCHES, assume.BATCH)


def _saved(
    it: Interpreter, name: str, arguments: Arguments, keywords: Keywords, node: ast.AST
) -> Value:
    values = [*arguments, *keywords.values()]
    for look in SAVED:
        look(it, values, node)
    for value in values:
        if isinstance(value, Unknown) and value.symbol.label == CHECKPOINT:
            _forget_casts(it, value)
    return NONE


def _forget_casts(it: Interpreter, checkpoint: Unknown) -> None:
    """What is loaded, made half and saved again takes less room: nothing runs so here."""
    for part in checkpoint.symbol.attributes.values():
        made = part.symbol.attributes.get(("cast as", "")) if isinstance(part, Unknown) else None
        if isinstance(made, Unknown) and made.symbol.node is not None:
            place = it.place(made.symbol.node)
            it.signs = {sign for sign in it.signs if sign.place != place}


TORCH["torch.save"] = _saved
TORCH["torch.load"] = _loaded
