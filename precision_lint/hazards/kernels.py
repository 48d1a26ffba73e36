"""Operations that torch has no half kernels for, and NumPy, which has no bfloat16."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Final, NamedTuple

from precision_lint.dataflow import devices
from precision_lint.dataflow.graph import peel
from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.tensors import Applied, hazard
from precision_lint.domains import assumptions as assume
from precision_lint.domains import dtypes
from precision_lint.domains.dtypes import ALL_MODES, BFLOAT16, FLOAT16, LOW, MODES, OTHER
from precision_lint.domains.values import (
    ON_CPU,
    ON_DEVICE,
    ON_OTHER,
    REGIONAL,
    Tensor,
    number,
    truth,
)
from precision_lint.events import Place
from precision_lint.hazards.places import operand_node


class Device(NamedTuple):
    """Where an operation runs: whether the code or the user says so, and what it takes in modes that the code
    does not write."""

    name: str
    shown: bool
    assumed: int = 0


@hazard("*")
def missing_kernel(it: Interpreter, applied: Applied) -> None:
    """An operation on a dtype that the device has no kernel for."""
    operation = applied.operation
    late = operation.since and it.program.torch is not None
    if not (operation.missing or late) or it.caught:
        return
    for device in _devices(it, applied):
        if operation.missing.get(device.name) and _report(it, applied, device, ()):
            return
        if device.shown:
            for (name, dtype), release in operation.since.items():
                if name == device.name and _is_older(it, release):
                    _report(it, applied, device, release, dtype)


def _devices(it: Interpreter, applied: Applied) -> Iterator[Device]:
    """Where an operation runs; in a mode that is stated, on the GPU if the code picks one of both."""
    tensors = [t for i in applied.seen if (t := applied.tensor(i)) is not None]
    found = devices.of_all(tensors)
    stated = it.program.devices
    if it.region.explicit and it.region.device in applied.operation.missing:
        yield Device(it.region.device, True)
    elif found & ON_CPU:
        either = found & ON_OTHER
        for one in (stated or ("cuda", "cpu")) if either else ("cpu",):
            doubt = one == "cpu" and either and not stated
            yield Device(one, True, assume.ON_CPU if doubt else 0)
    elif stated:
        yield from (Device(one, True) for one in stated if one != "cpu" or not found)
    else:
        yield Device("cuda", True)
        late = bool(applied.operation.since) and it.program.torch is not None
        yield Device("cpu", late and not found and devices.upcasts_on_cpu(it.module))


def _is_older(it: Interpreter, release: tuple[int, ...]) -> bool:
    """Whether the least torch that has to work came before a release."""
    least = it.program.torch
    return least is not None and least < release


def _report(
    it: Interpreter,
    applied: Applied,
    device: Device,
    release: tuple[int, ...],
    lacking: int = 0,
) -> bool:
    """Report that a device lacks a kernel, in the modes where an operand has its dtype.

    release: that brought the kernel.
    """
    lacking = lacking or applied.operation.missing[device.name]
    modes, found = _modes(applied, lacking)
    cuda = device.name == "cuda" or not device.shown
    if device.name == "cuda" and _draws_by_argmax(applied):
        return False
    if modes and cuda and _power_of_two(applied):
        modes, found = _modes(applied, lacking & BFLOAT16)
    operands = [i for i in applied.seen if applied.tensor(i) is not None]
    tensors = [t for i in operands if (t := applied.tensor(i)) is not None]
    assumptions = 0
    for one in tensors:
        assumptions |= one.assumptions
    if applied.name in OF_LOG_PROBABILITIES and assumptions & SUPPOSED:
        modes &= ~dtypes.AMP_MODES  # what computes them is run in float32 there
        if any(one.flags & REGIONAL for one in tensors):
            modes = 0
            applied.result.dtypes = dtypes.V_FLOAT32
    if not modes:
        return False
    matrix = applied.name.startswith("linalg.") or applied.name in ("logdet", "svd", "lu")
    kind = "missing-decomposition" if matrix else "missing-kernel"
    written = modes & 1 << dtypes.CODE if device.assumed else modes
    for some, assumed in ((written, 0), (modes & ~written, device.assumed)):
        it.emit(
            kind if device.shown else "missing-kernel-elsewhere",
            applied.node,
            some,
            assumptions | assumed,
            about=tensors[0] if tensors else None,
            operation=applied.name,
            dtype=dtypes.NAMES[FLOAT16 if found & FLOAT16 else BFLOAT16],
            operands=_places(it, applied, operands),
            device=device.name,
            release=".".join(map(str, release)),
        )
    if (
        device.shown and device.name != "cpu"
    ):  # what raises gives nothing that a hazard could come of
        applied.result.dtypes = tuple(
            dtypes.ANY if modes >> mode & 1 and one & LOW else one
            for mode, one in enumerate(applied.result.dtypes)
        )
    return True


OF_LOG_PROBABILITIES: Final = ("ctc_loss", "nll_loss")
"""Losses of what ``log_softmax`` gives."""
SUPPOSED: Final = assume.INPUT | assume.NETWORK | assume.BATCH
ENOUGH: Final = (2, 2)
"""The release from which the CPU multiplies and convolves in float16."""


@hazard("cast")
def half_anywhere(it: Interpreter, applied: Applied) -> None:
    """A tensor that is made float16 whatever its device is, which the code lets be the CPU."""
    value = applied.tensor()
    if value is None or value.flags & ON_DEVICE != ON_DEVICE or it.branches or it.caught:
        return
    least = it.program.torch
    if applied.result.dtypes != dtypes.V_FLOAT16 or applied.result.data != "explicit":
        return
    if value.dtypes != dtypes.V_FLOAT16 and (least is None or least < ENOUGH):
        it.emit("half-anywhere", applied.node, ALL_MODES, assume.BRANCH)


def _power_of_two(applied: Applied) -> bool:
    """Whether a Fourier transform is told a size that CUDA's half kernels take."""
    if applied.name != "stft" and not applied.name.startswith("fft."):
        return False
    size = number(applied["n_fft" if applied.name == "stft" else "n"])
    return size is not None and size > 0 and int(size) & (int(size) - 1) == 0


def _draws_by_argmax(applied: Applied) -> bool:
    """Whether ``multinomial`` draws once, or without replacement: then it divides by exponential noise, for
    which CUDA has always had kernels, and needs none of its own (ATen, ``native/Distributions.cpp``)."""
    if applied.name != "multinomial":
        return False
    again = applied["replacement"]
    return number(applied["num_samples"]) == 1 or again is None or truth(again) is False


def _modes(applied: Applied, lacking: int) -> tuple[int, int]:
    """Modes in which an operand has one of these dtypes for sure, and the dtypes."""
    modes = found = 0
    vectors = list(applied.seen.values())
    if applied.policy == "lower":  # a region lowers what it multiplies inside, not what it is given
        vectors = [one.dtypes for i in applied.seen if (one := applied.tensor(i)) is not None]
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
        node = operand_node(applied.node, it.module, index, applied.parameter(index))
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
        about=value,
        operand=it.place(operand) if operand is not None else None,
        made=isinstance(peel(value), Tensor),
    )
