"""Hold the tables of ``precision_lint/torchmodel`` against a CUDA device: its autocast, its kernels.

    python scripts/check_cuda.py [--output FILE]

The tables are made without a GPU: from torch's dispatcher, an emulated autocast and what torch's operator
tests declare.  Here every operation is called with samples of those tests on the device, in float32,
float16 and bfloat16, with and without autocast.  Exit code 1: something differs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
import make_torchmodel as made

from precision_lint.torchmodel import operations

HALF = {torch.float16: made.BITS["float16"], torch.bfloat16: made.BITS["bfloat16"]}
DEVICE = "cuda"
SAMPLES = 4


def _samples(entry: Any, dtype: torch.dtype) -> Iterator[Any]:
    """Calls with elements: of no elements no kernel is needed."""
    torch.manual_seed(0)
    full = (s for s in entry.sample_inputs(DEVICE, dtype) if all(t.numel() for t in _tensors(s)))
    yield from itertools.islice(full, SAMPLES)


def _tensors(sample: Any) -> list[torch.Tensor]:
    given = [sample.input, *sample.args, *sample.kwargs.values()]
    flat = [v for one in given for v in (one if isinstance(one, (tuple, list)) else [one])]
    return [value for value in flat if isinstance(value, torch.Tensor)]


def _dtype(result: Any) -> torch.dtype | None:
    while isinstance(result, (tuple, list)) and result:
        result = result[0]
    if isinstance(result, torch.Tensor) and result.is_floating_point():
        return result.dtype
    return None


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, torch.Tensor):
        return value.to(dtype) if value.dtype == torch.float32 else value
    if isinstance(value, (tuple, list)):
        return type(value)(_cast(one, dtype) for one in value)
    return value


def _kernel(entry: Any, dtype: torch.dtype) -> bool | None:
    """Whether the operation runs in a dtype; None: the samples fail for other reasons."""
    found: bool | None = None
    for sample in _samples(entry, torch.float32):
        args = [_cast(one, dtype) for one in (sample.input, *sample.args)]
        kwargs = {name: _cast(one, dtype) for name, one in sample.kwargs.items()}
        try:
            result = entry.op(*args, **kwargs)
        except (RuntimeError, NotImplementedError) as error:
            text = str(error)
            if any(one in text for one in ("not implemented for", "Low precision", "not support")):
                found = bool(found)
            continue
        except Exception:
            continue
        if not (isinstance(result, torch.Tensor) and not result.numel()):  # nothing is no result
            return True
    return found


def _policy(entry: Any, low: torch.dtype) -> set[str]:
    """What autocast made of float32 and of half operands: the dtypes of the results."""
    found = set()
    for sample in _samples(entry, torch.float32):
        results = []
        for dtype in (torch.float32, low):
            args = [_cast(one, dtype) for one in (sample.input, *sample.args)]
            kwargs = {name: _cast(one, dtype) for name, one in sample.kwargs.items()}
            try:
                with torch.autocast(DEVICE, dtype=low):
                    results.append(_dtype(entry.op(*args, **kwargs)))
            except Exception as error:
                results.append("banned" if "unsafe to autocast" in str(error) else None)
        if "banned" in results:
            found.add("banned")
        elif None not in results:
            found.add(
                "lower" if results[0] == low else "fp32" if results[1] == torch.float32 else ""
            )
    return found


def check() -> tuple[int, list[str]]:
    """How many operations the device was asked about, and what it does otherwise than the tables say."""
    asked = 0
    differing = []
    for name, entries in sorted(made.entries(made.catalogue()).items()):
        row = operations.operation(name)
        if row is None:
            continue
        listed = [entry for entry in entries if torch.float32 in entry.dtypes]
        if not listed:
            continue
        asked += 1
        stated = row.policy.get("cuda", "")
        seen = set().union(*(_policy(entry, torch.float16) for entry in listed))
        expected = "fp32" if stated == "fp32_dtype" else stated
        if seen and expected not in ("widest", *seen):
            differing.append(
                f"{name}: autocast: {sorted(seen)} on the device, {stated or 'nothing'} here"
            )
        for dtype, bit in HALF.items():
            runs = {_kernel(entry, dtype) for entry in listed} - {None}
            if runs and (True in runs) == bool(row.missing.get("cuda", 0) & bit):
                has = "a kernel" if True in runs else "no kernel"
                differing.append(f"{name}: {str(dtype)[6:]}: {has} on the device")
    return asked, differing


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    asked, differing = check()
    print(f"{asked} operations, {len(differing)} differences")
    print("\n".join(differing))
    if given.output:
        about = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
        given.output.write_text(json.dumps({**about, "operations": asked, "differing": differing}))
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main())
