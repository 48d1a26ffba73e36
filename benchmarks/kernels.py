"""What kernels do with half tensors on a device, for facts that differ between the CPU and CUDA.

    python -m benchmarks.kernels [--device cuda]

Prints JSON: the device, the torch, and by dtype and case the number that came out, or what was raised.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F

ONES = 3000
LARGE = -1e9


def _sums(one: torch.Tensor, index: torch.Tensor) -> Mapping[str, Callable[[], Any]]:
    """3,000 ones added up, in several ways."""

    def zeros(*shape: int) -> torch.Tensor:
        return one.new_zeros(shape)

    def gradient(use: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        leaf = zeros(3, 1).requires_grad_()
        return torch.autograd.grad(use(leaf).sum(), leaf)[0][0, 0]

    return {
        "sum": lambda: one.sum(),
        "cumsum": lambda: one.cumsum(0)[-1],
        "index_add_": lambda: zeros(3).index_add_(0, index, one)[0],
        "index_add_ of rows": lambda: zeros(3, 2).index_add_(0, index, one[:, None].repeat(1, 2))[
            0, 0
        ],
        "index_put_, accumulate": lambda: zeros(3).index_put_((index,), one, accumulate=True)[0],
        "scatter_add_": lambda: zeros(3).scatter_add_(0, index, one)[0],
        "scatter_reduce_, sum": lambda: zeros(3).scatter_reduce_(0, index, one, "sum")[0],
        "gradient of an embedding": lambda: gradient(lambda w: F.embedding(index, w)),
        "gradient of gather": lambda: gradient(lambda w: w.gather(0, index[:, None])),
        "gradient of an index": lambda: gradient(lambda w: w[index]),
    }


def _others(one: torch.Tensor) -> Mapping[str, Callable[[], Any]]:
    return {
        "logit(1, eps=1e-6)": lambda: one[:1].logit(eps=1e-6),
        "clamp(min=-1e9)": lambda: one[:1].clamp(min=LARGE),
        "where(mask, -1e9, x)": lambda: torch.where(one > 0, LARGE, one)[0],
        "masked_fill(mask, -1e9)": lambda: one.masked_fill(one > 0, LARGE)[0],
        "histc": lambda: one.histc(3, 0, 2).max(),
    }


def measure(device: str) -> dict[str, Any]:
    """By dtype and case: a number, or the words of an exception."""
    found: dict[str, Any] = {}
    for dtype in (torch.float16, torch.bfloat16):
        one = torch.ones(ONES, dtype=dtype, device=device)
        index = torch.zeros(ONES, dtype=torch.long, device=device)
        results = found[str(dtype).removeprefix("torch.")] = {}
        for name, case in {**_sums(one, index), **_others(one)}.items():
            try:
                results[name] = float(case())
            except (RuntimeError, NotImplementedError) as error:
                results[name] = str(error).partition("\n")[0]
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    device = parser.parse_args().device
    where = torch.cuda.get_device_name() if device == "cuda" else device
    print(json.dumps({"device": where, "torch": torch.__version__, **measure(device)}, indent=1))


if __name__ == "__main__":
    main()
