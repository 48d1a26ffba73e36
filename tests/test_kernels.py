"""The tables of kernels that torch lacks for half tensors."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from precision_lint.semantics.kernels import Kernels

BOTH = frozenset({"float16", "bfloat16"})


def resolve(name: str) -> Any:
    if name.startswith("Tensor."):
        return getattr(torch.Tensor, name[7:])
    return functools.reduce(getattr, name.split(".")[1:], torch)


def test_every_name_is_one_of_torch() -> None:
    assert [name for name in Kernels.names() if not callable(resolve(name))] == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_decompositions_have_no_half_kernels(device: str) -> None:
    for name in ("torch.linalg.inv", "torch.inverse", "Tensor.inverse", "torch.quantile",
                 "torch.linalg.svd", "torch.slogdet", "Tensor.det"):  # fmt: skip
        assert Kernels.absent(name, device) == BOTH


def test_devices_differ() -> None:
    assert Kernels.absent("torch.fft.rfft", "cpu") == BOTH
    assert Kernels.absent("torch.fft.rfft", "cuda") == {"bfloat16"}
    assert Kernels.absent("torch.histc", "cpu") == frozenset()
    assert Kernels.absent("torch.histc", "cuda") == BOTH
    assert Kernels.absent("torch.nn.functional.avg_pool3d", "cuda") == frozenset()


def test_what_exists_is_not_listed() -> None:
    known = set(Kernels.names())
    exists = {"torch.linalg.norm", "torch.matmul", "torch.bmm", "torch.linalg.matrix_power"}
    assert known & exists == set()


def test_only_the_cpu_casts_linear_algebra_up() -> None:
    assert Kernels.casts_up("torch.linalg.inv", "cpu")
    assert not Kernels.casts_up("torch.linalg.inv", "cuda")
    assert not Kernels.casts_up("torch.linalg.det", "cpu")
    assert Kernels.casts_up("torch.nn.functional.ctc_loss", "cuda")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_absent_on_the_cpu_raises(dtype: str) -> None:
    """One matrix is an operand that most of them take; whatever takes it in float32 must not."""
    matrix = torch.eye(3) * 4 + 0.5
    refused = taken = 0
    for name in Kernels.names():
        operator = resolve(name)
        try:
            operator(matrix)
        except Exception:  # needs other arguments, or has no kernel for two dimensions
            continue
        taken += 1
        if dtype in Kernels.absent(name, "cpu"):
            with pytest.raises((RuntimeError, NotImplementedError)):
                operator(matrix.to(getattr(torch, dtype)))
            refused += 1
    assert taken > 60
    assert refused > 60
