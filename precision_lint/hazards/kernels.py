"""Operations that torch has no half kernels for, and NumPy, which has no bfloat16."""

from __future__ import annotations

import functools

from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import BFLOAT16, FLOAT16, LOW, MODES, OTHER
from precision_lint.domains.values import Tensor, number
from precision_lint.events import Place
from precision_lint.hazards.places import operand_node


@hazard("*")
def missing_kernel(it: Interpreter, applied: Applied) -> None:
    """An operation on a dtype that the device has no kernel for."""
    missing = applied.operation.missing
    if not missing or it.caught:
        return
    device = it.region.device if it.region.explicit and it.region.device in missing else "cuda"
    lacking = missing.get(device, 0)
    modes, found = _modes(applied, lacking)
    everywhere = 0
    for bits in missing.values():
        everywhere |= bits
    elsewhere, other = _modes(applied, everywhere & ~lacking)
    if not modes and not elsewhere:
        return
    if applied.name.startswith("fft.") and _power_of_two(applied):
        modes, lacking = _modes(applied, lacking & BFLOAT16)
        if not modes:
            return
    operands = [i for i in applied.seen if applied.tensor(i) is not None]
    tensors = [t for i in operands if (t := applied.tensor(i)) is not None]
    assumptions = 0
    for one in tensors:
        assumptions |= one.assumptions
    it.emit(
        "missing-kernel" if modes else "missing-kernel-elsewhere",
        applied.node,
        modes or elsewhere,
        assumptions,
        about=tensors[0] if tensors else None,
        operation=applied.name,
        dtype=dtypes.NAMES[FLOAT16 if (found or other) & FLOAT16 else BFLOAT16],
        operands=_places(it, applied, operands),
        device=device if modes else "cpu",
    )


def _power_of_two(applied: Applied) -> bool:
    """Whether a transform is told a size that CUDA's half kernels take."""
    size = number(applied["n"])
    return size is not None and size > 0 and int(size) & (int(size) - 1) == 0


def _modes(applied: Applied, lacking: int) -> tuple[int, int]:
    """Modes in which an operand has one of these dtypes for sure, and the dtypes."""
    modes = found = 0
    vectors = list(applied.seen.values())
    if not applied.operation.strict and len(vectors) > 1:
        vectors = [functools.reduce(dtypes.promote, vectors)]
    for mode in range(len(MODES)):
        for vector in vectors:
            dtype = vector[mode]
            if dtype & OTHER or dtype > dtypes.ANY or not dtype & LOW or dtype & ~LOW:
                continue
            if dtype & lacking and not dtype & ~lacking:
                modes |= 1 << mode
                found |= dtype
    return modes, found


def _places(it: Interpreter, applied: Applied, indices: list[int]) -> tuple[Place, ...]:
    found = []
    for index in indices:
        value = applied.tensor(index)
        node = operand_node(applied.node, it.module, index, applied.operation.parameters[index])
        if node is not None and value is not None and any(d & LOW for d in value.dtypes[1:]):
            found.append(it.place(node))
    return tuple(found)


@hazard("numpy")
def to_numpy(it: Interpreter, applied: Applied) -> None:
    """A bfloat16 tensor that NumPy is given."""
    value = applied.tensor()
    if value is None:
        return
    modes = 0
    for mode, dtype in enumerate(value.dtypes):
        if dtype & BFLOAT16 and not dtype & (OTHER | ~dtypes.ANY) and not dtype & ~LOW:
            modes |= 1 << mode
    if modes & 1 << dtypes.AMP16:
        modes &= ~(1 << dtypes.AMP16)
    operand = operand_node(applied.node, it.module, 0, "")
    it.emit(
        "bfloat16-to-numpy",
        applied.node,
        modes,
        value.assumptions,
        about=None if value.assumptions & assume.NETWORK else value,
        operand=it.place(operand) if operand is not None else None,
        made=isinstance(peel(value), Tensor),
    )
