"""Operations of torch on tensors: signatures, dtype rules, autocast policies, missing kernels, ranges.

The facts come from executing torch (``scripts/make_torchmodel.py``), the ranges are kept by hand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from precision_lint.domains.dtypes import BFLOAT16, FLOAT16
from precision_lint.torchmodel.tables import INF, bounds, table, words

POLICIES: Final = {"L": "lower", "F": "fp32", "D": "fp32_dtype", "W": "widest", "B": "banned"}
HOMES: Final = {
    "nn.functional": "n", "functional": "t", "linalg": "l", "fft": "f", "special": "s", "Tensor": "m",
    "": "t",
}  # fmt: skip
"""Modules below ``torch``, as the table abbreviates them."""
DTYPES: Final = {"float16": FLOAT16, "bfloat16": BFLOAT16}
PREFIXES: Final = {"l": "linalg.", "f": "fft.", "s": "special."}


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation.

    name: ``log``, ``linalg.inv``.  parameters: in the order of positional arguments, then those by keyword
    only.  operands: the parameters that are tensors whose dtypes matter together.  listed: the first
    operand is a list or tuple of tensors.  result: the dtype it gives: that of the ``first`` or
    ``second`` operand, ``promoted``, ``floating`` (promoted, and float32 for integers), ``bool``, ``int``,
    ``int_like`` (int64 for integers and booleans, floats as they are), ``complex``, ``real`` (the float
    of a complex operand, else as it is), ``number``, ``none`` or ``unknown``.  outputs, fields: of
    operations that give several tensors (``max`` and its like with a dimension only).

    strict: the operands that must have one dtype outside of autocast.  wide: those that may be wider
    than the first operand, but not narrower.  policy: what autocast does, by device.  missing: the dtypes
    without a kernel, by device.  since: the release of torch that brought a kernel, by device and dtype.
    lo, hi: bounds of every result.

    floats: it refuses integers.  pieces: it gives as many tensors as it is told.

    receiver: the parameter that is the object of the method form.  variadic: the parameter that takes
    all positional arguments from there on; -1: there is none.
    """

    name: str
    parameters: tuple[str, ...] = ("input",)
    operands: tuple[int, ...] = (0,)
    listed: bool = False
    result: str = "unknown"
    outputs: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    strict: tuple[int, ...] = ()
    policy: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, int] = field(default_factory=dict)
    dtype_argument: bool = False
    method: bool = False
    function: bool = False
    lo: float = -INF
    hi: float = INF
    view: bool = False
    elementwise: bool = False
    reduction: bool = False
    floats: bool = False
    pieces: bool = False
    wide: tuple[int, ...] = ()
    receiver: int = 0
    variadic: int = -1
    since: Mapping[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    def takes(self, count: int) -> bool:
        """Whether its method can be given so many positional arguments."""
        return self.variadic >= 0 or count < len(self.parameters)


_built: dict[str, Operation] = {}


def _build(name: str) -> Operation | None:
    known = _built.get(name)
    if known is not None:
        return known
    row = table("operations")["operations"].get(name)
    if row is None:
        return None
    plain = name.removeprefix("torch.").removeprefix("Tensor.")
    policies = {
        device: POLICIES[letter]
        for device, letter in zip(("cuda", "cpu", "xpu"), _three(row.get("a", "--")), strict=True)
        if letter != "-"
    }
    kernels = zip(("cuda", "cpu"), row.get("k", (0, 0)), strict=True)
    flags, homes = row.get("f", ""), row["at"]
    lo, hi = bounds(table("ranges").get(name))
    _built[name] = made = Operation(
        plain,
        words(row["p"]),
        tuple(row.get("o", (0,))),
        "l" in flags,
        row.get("r", "first"),
        words(row.get("m", "")),
        words(row.get("n", "")),
        tuple(row.get("s", ())),
        policies,
        {device: bits for device, bits in kernels if bits},
        "d" in flags,
        "m" in homes,
        homes != "m",
        lo,
        hi,
        "v" in flags,
        "e" in flags,
        "r" in flags,
        "i" in flags,
        "p" in flags,
        tuple(row.get("w", ())),
        row.get("x", 0),
        row.get("v", -1),
        _since().get(name, {}),
    )
    return made


@lru_cache(maxsize=1)
def _since() -> dict[str, dict[tuple[str, int], tuple[int, ...]]]:
    """By operation, device and dtype: the release of torch that brought the kernel."""
    found: dict[str, dict[tuple[str, int], tuple[int, ...]]] = {}
    for device in ("cpu", "cuda"):
        for dtype, by_release in table("kernels")[device].items():
            for release, brought in by_release.items():
                since = tuple(int(part) for part in release.split("."))
                for name in words(brought):
                    found.setdefault(name, {})[device, DTYPES[dtype]] = since
    return found


def _three(letters: str) -> str:
    """Policies of CUDA and the CPU, and of Intel's GPUs, whose lists are those of CUDA."""
    return letters + letters[0]


def operation(name: str) -> Operation | None:
    """An operation by its canonical name or another one (``clip``), without the ``_`` in place."""
    found = _build(name)
    if found is None:
        aliases = table("operations")["aliases"]
        alias = aliases.get(name) or aliases.get(f"special.{name}")
        found = _build(alias[0]) if alias is not None else _build(f"special.{name}")
    return found


@lru_cache(maxsize=8192)
def _at(letter: str, name: str) -> Operation | None:
    """The operation that a home has under a name."""
    if name.endswith("_") and not name.endswith("__"):
        name = name[:-1]
    everything = table("operations")
    own = {"t": "torch.", "m": "Tensor."}.get(letter)
    if own is not None and own + name in everything["operations"]:
        return _build(own + name)
    full = PREFIXES.get(letter, "") + name
    row = everything["operations"].get(full)
    if row is not None:
        return _build(full) if letter in row["at"] else None
    alias = everything["aliases"].get(full)
    return _build(alias[0]) if alias is not None and letter in alias[1] else None


def of_function(qualified: str) -> Operation | None:
    """The operation of a function or unbound method: ``torch.linalg.inv``, ``torch.Tensor.log``."""
    home, _, name = qualified.rpartition(".")
    if home != "torch" and not home.startswith("torch."):
        return None
    letter = HOMES.get(home[6:])
    return _at(letter, name) if letter is not None else None


def of_method(name: str) -> Operation | None:
    """The operation of a method of tensors, in place or not."""
    return _at("m", name)


def names() -> tuple[str, ...]:
    """All canonical names."""
    return tuple(table("operations")["operations"])
