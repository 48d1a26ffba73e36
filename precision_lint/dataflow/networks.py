"""What models that nobody saw give."""

from __future__ import annotations

import ast
from typing import Final

from precision_lint.dataflow.interpreter import OPERATIONS, Interpreter
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import Dtypes
from precision_lint.domains.joining import unknown
from precision_lint.domains.values import (
    DETACHED,
    IN_BFLOAT16,
    PARAMETER,
    REGIONAL,
    Batch,
    Sequence,
    Symbol,
    Tensor,
    Unknown,
    Value,
)
from precision_lint.torchmodel.foreign import LANGUAGE_MODELS

HALVES: Final = (dtypes.V_FLOAT16, dtypes.V_BFLOAT16)


def network(
    it: Interpreter, label: str, weights: Dtypes, arguments: list[Value], node: ast.AST
) -> Value:
    """What an unknown model gives: the region's dtype, or that of its weights; float64 if all that it is
    given is, which no region casts and no other weights take; half outside of a region if that is."""
    vector = []
    known = not weights[0] & dtypes.OTHER
    given = [
        v.dtypes if isinstance(v, Tensor) else v.symbol.vector
        for v in arguments
        if isinstance(v, Tensor) or (isinstance(v, Unknown) and v.symbol.vector != dtypes.V_ANY)
    ]
    floats = [one for one in given if one[0] & dtypes.FLOATS]
    if floats and not known and all(one == dtypes.V_FLOAT64 for one in floats):
        return it.unknown(label, dtypes.V_FLOAT64, assume.NETWORK)
    alike = bool(floats) and floats[0] in HALVES and all(one == floats[0] for one in floats)
    left = it.region.explicit and it.region.dtypes == dtypes.V_OFF and weights is dtypes.FOLLOWS
    compared = not known and _is_compared(arguments)
    wide = 0 if known else _modes_cast_up(it, arguments)
    for mode, (region, own) in enumerate(zip(it.region.dtypes, weights, strict=True)):
        if region:
            cast = dtypes.ANY if compared and mode < dtypes.HALF16 else region & dtypes.FLOATS
            vector.append(cast | (own & dtypes.ANY if region & dtypes.MAYBE else 0))
        elif alike and mode and not known:
            vector.append(floats[0][mode])
        elif wide >> mode & 1:
            vector.append(dtypes.ANY)
        elif own & dtypes.OTHER and mode:
            vector.append(dtypes.BATCHES[mode])
        else:
            vector.append(dtypes.HANDED_IN[mode] if left else own)
    made = it.unknown(label, tuple(vector), 0 if known else assume.NETWORK)
    made.symbol.node, made.symbol.home = node, it.module
    made.symbol.uses |= Symbol.FLOAT if known else 0
    if weights[dtypes.CODE] == dtypes.BFLOAT16 and not it.region.mark:
        made.symbol.flags |= IN_BFLOAT16
    if it.region.explicit and dtypes.regions_on(it.region.dtypes):
        made.symbol.flags |= REGIONAL | (DETACHED if it.no_grad else it.region.mark)
    if it.region.explicit:
        made.symbol.assumptions |= it.region.assumptions
    return made


def _modes_cast_up(it: Interpreter, arguments: list[Value]) -> int:
    """Half modes in which all floats that a model is given are float32 by the code's own doing.

    Half weights do not take them: a model that runs is not in half then, and what another one gives nobody
    sees.  What a processor makes does not count: models cast that themselves; nor what a loader gives.
    """
    modes = dtypes.HALF_MODES
    found = False
    for one in arguments:
        if isinstance(one, Unknown) and ("cast of", "") in one.symbol.attributes:
            one = one.symbol.tensor or one
        if isinstance(one, Unknown):
            if one.symbol.vector != dtypes.V_ANY and _may_be_float(one.symbol.vector):
                return 0
        elif isinstance(one, Tensor) and _may_be_float(one.dtypes):
            found = True
            if one.assumptions & (assume.LIBRARY | assume.BATCH) or one.flags & PARAMETER:
                return 0
            for mode in (dtypes.HALF16, dtypes.HALFBF):
                if one.dtypes[mode] != dtypes.FLOAT32:
                    modes &= ~(1 << mode)
    return modes if found else 0


def _may_be_float(vector: Dtypes) -> bool:
    return dtypes.kind(vector) not in ("int", "bool")


def _is_compared(arguments: list[Value]) -> bool:
    """Whether half activations come with something else: a loss, which autocast may compute in float32."""
    half = []
    for one in arguments[:2]:
        of = one.symbol if isinstance(one, Unknown) else one
        if isinstance(of, (Tensor, Symbol)):
            dtype = (of.dtypes if isinstance(of, Tensor) else of.vector)[dtypes.AMP16]
            sure = of.flags & REGIONAL or not dtype & dtypes.OTHER
            half.append(bool(sure and dtype & dtypes.LOW))
    return half == [True, False]


OPERATIONS["network"] = network


def generated(it: Interpreter, cls: str, node: ast.AST) -> Value | None:
    """What ``generate`` of a language model gives: ids, and scores in float32; None: it is no such."""
    given = {one.arg for one in node.keywords} if isinstance(node, ast.Call) else set()
    if not (cls.endswith(LANGUAGE_MODELS) or "input_ids" in given):
        return None
    ids = Tensor(
        dtypes.V_INTEGER, "processed", (), node, it.module, assumptions=assume.LIBRARY, rank=2
    )
    if "return_dict_in_generate" not in given:
        return ids
    scores = Tensor(
        dtypes.V_FLOAT32, "processed", (), node, it.module, assumptions=assume.LIBRARY, rank=2
    )
    found: dict[str, Value] = {name: Sequence(None, scores, "tuple") for name in SCORES}
    return Batch({"sequences": ids, **found}, unknown())


SCORES: Final = ("scores", "logits")
"""What ``generate`` casts to float32 at each step, and keeps of it."""
