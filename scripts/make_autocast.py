"""Regenerate autocast's lists in ``precision_lint/torchmodel`` out of the installed torch.

    python scripts/make_autocast.py [--check]

No list is copied from a document.

``autocast.json``: every operator that has an autocast kernel for a device is called once with
stand-in arguments, and the casts that the kernel makes before the operator runs are read off.
Tensors of ``cuda`` and ``xpu`` are fake, so no device is needed.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

FOLDER = Path(__file__).parent.parent / "precision_lint" / "torchmodel"
LOW = {"float16": torch.float16, "bfloat16": torch.bfloat16}
DEVICES = ("cpu", "cuda", "xpu")
POLICIES = ("lower", "fp32", "fp32_set_opt_dtype", "promote", "banned")


class Casts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the dtypes that tensors are cast to, and those passed as ``dtype=``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.tensors: list[Any] = []
        self.arguments: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        dtype = (kwargs or {}).get("dtype")
        if func is torch.ops.aten._to_copy.default:
            self.tensors.append(dtype)
        elif any(isinstance(arg, torch.dtype) for arg in (*args, dtype)):
            self.arguments.append(torch.float32)
        return func(*args, **(kwargs or {}))


def stand_in(kind: str, tensors: Any) -> Any:
    """A value that a schema accepts; casts come before any check of shapes."""
    if kind == "Tensor":
        return next(tensors)
    if kind in ("List[Tensor]", "List[Optional[Tensor]]"):
        return [next(tensors), next(tensors)]
    if kind.startswith("Optional"):
        return None
    plain = {"int": 1, "SymInt": 1, "float": 1.0, "number": 1.0, "bool": False, "str": "ij,jk->ik"}
    for name, value in plain.items():
        if kind in (name, f"List[{name}]"):
            return [value, value] if kind.startswith("List") else value
    raise ValueError(f"no stand-in for an argument of type {kind}")


def casts(
    op: Any, device: str, dtypes: tuple[torch.dtype, torch.dtype], **keywords: torch.dtype
) -> Casts | None:
    """Call ``op`` with tensors of alternating dtypes; None: it refuses to run under autocast."""

    def tensors() -> Any:
        while True:
            for dtype in dtypes:
                yield torch.ones(2, 2, dtype=dtype, device=device)

    source = tensors()
    arguments = [
        stand_in(str(argument.type), source)
        for argument in op._schema.arguments
        if not argument.has_default_value()
    ]
    record = Casts()
    try:
        with record, torch.no_grad():
            op(*arguments, **keywords)
    except Exception as error:  # stand-in shapes fit few operators; the casts are made by then
        if "unsafe to autocast" in str(error):
            return None
    return record


def policy(op: Any, device: str, low: torch.dtype) -> str:
    """Which of POLICIES an operator follows under the autocast of a device."""
    full = torch.float32
    wide = casts(op, device, (full, full))
    narrow = casts(op, device, (low, low))
    if wide is None or narrow is None:
        return "banned"
    if low in wide.tensors:
        return "lower"
    if full in narrow.tensors and "dtype" in {a.name for a in op._schema.arguments}:
        asked = casts(op, device, (low, low), dtype=torch.float64)
        return "fp32" if asked is None or full in asked.tensors else "fp32_set_opt_dtype"
    if full in narrow.tensors:
        return "fp32"
    if narrow.arguments:
        return "fp32_set_opt_dtype"
    for dtypes in ((low, full), (full, low)):
        mixed = casts(op, device, dtypes)
        if mixed is not None and full in mixed.tensors:
            return "promote"
    raise ValueError(f"{op} under {device} autocast makes no cast that is known")


def lists(device: str) -> dict[str, list[str]]:
    """The operators of a device by policy, as plain names."""
    key = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA", "xpu": "AutocastXPU"}[device]
    low = torch.bfloat16
    found: dict[str, set[str]] = {name: set() for name in POLICIES}
    torch.set_autocast_enabled(device, True)
    torch.set_autocast_dtype(device, low)
    try:
        for full_name in torch._C._dispatch_get_registrations_for_dispatch_key(key):
            namespace, _, rest = full_name.partition("::")
            name, _, overload = rest.partition(".")
            if namespace != "aten":
                continue
            op = getattr(getattr(torch.ops.aten, name), overload or "default")
            with FakeTensorMode(allow_non_fake_inputs=True):
                found[policy(op, device, low)].add(name)
    finally:
        torch.set_autocast_enabled(device, False)
    return {name: sorted(found[name]) for name in POLICIES}


def facts() -> dict[str, dict[str, Any]]:
    """What the files hold, by name."""
    logging.getLogger("torch._subclasses.fake_tensor").disabled = True  # it reports every misfit
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        devices = {device: lists(device) for device in DEVICES}
    version = torch.__version__.partition("+")[0]
    return {"autocast.json": {"torch": version, "autocast": devices}}


def main() -> int:
    parser = argparse.ArgumentParser(description="Regenerate the facts about torch.")
    parser.add_argument("--check", action="store_true", help="compare with the files only")
    arguments = parser.parse_args()
    for name, content in facts().items():
        target = FOLDER / name
        text = json.dumps(content, indent=1, sort_keys=True) + "\n"
        if not arguments.check:
            target.write_text(text, encoding="utf-8")
        elif target.read_text(encoding="utf-8") != text:
            print(f"{target}: differs from torch {torch.__version__}; run scripts/make_autocast.py")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
