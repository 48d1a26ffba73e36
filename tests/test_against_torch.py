"""What the analysis says of single expressions, compared with what torch computes.

Every expression of ``expressions.TABLE`` is executed: in half, in float32 and with mixed operands,
without autocast, under that of the CPU, and with CUDA's lists on CPU tensors (``harness.policy``).
The analysis may not know a dtype; it may not be wrong.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import math
import warnings
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from precision_lint.semantics import ops
from precision_lint.semantics.values import Value
from torch import nn

from precision_lint.harness.policy import cuda_policy
from tests import analysis
from tests.expressions import TABLE

NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
    torch.bool: "bool",
    **dict.fromkeys((torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8), "int"),
}
REGIONS = {
    "off": "torch.autocast('cuda', enabled=False)",
    "cuda": "torch.autocast('cuda', dtype=torch.float16)",
    "cpu": "torch.autocast('cpu', dtype=torch.bfloat16)",
}
LOW = {"off": "float16", "cuda": "float16", "cpu": "bfloat16"}
EXPRESSIONS = [p for line in TABLE.splitlines() for part in line.split(";") if (p := part.strip())]
OPEN = {
    # what a path or a position decides
    "a.to(a.dtype if a.is_floating_point() else torch.float32)",
    "a.float() if a.dtype == torch.float16 else a",
    "a.float()[0, 0] * b.half()",
    "max(a[0, 0], a[0, 1])",
    "sum([a, b])",
    "nn.Embedding(4, 4)(a.argmax(1))",  # its parameters'
}
"""Expressions whose dtype the analysis leaves open, for some operands at least."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sixteen elements are computed sooner than threads are woken."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@contextlib.contextmanager
def region(name: str) -> Iterator[None]:
    """The region, with CUDA's lists where it is CUDA's."""
    if name == "off":
        yield
    elif name == "cpu":
        with torch.autocast("cpu", dtype=torch.bfloat16):
            yield
    else:
        with cuda_policy(), torch.autocast("cpu", dtype=torch.float16):
            yield


def computed(a: torch.Tensor, b: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Results of the expressions, less those that raise for these operands."""
    names = {"torch": torch, "F": F, "nn": nn, "math": math, "a": a, "b": b}
    for expression in EXPRESSIONS:
        with contextlib.suppress(RuntimeError, NotImplementedError, ValueError):
            yield expression, eval(expression, names)


@functools.cache
def executed(name: str, first: str, second: str) -> dict[str, str]:
    """Result dtypes of the expressions."""
    torch.manual_seed(0)
    a = (torch.rand(4, 4) * 0.5 + 0.2 + torch.eye(4)).to(getattr(torch, first))
    b = (torch.rand(4, 4) * 0.5 + 0.2).to(getattr(torch, second))
    with warnings.catch_warnings(), region(name):
        warnings.simplefilter("ignore")  # deprecated spellings are part of the table
        return {expression: NAMES[result.dtype] for expression, result in computed(a, b)}


@functools.cache
def analysed(*heads: str, inside: str | None = None) -> dict[str, Value]:
    """Abstract values of the same expressions, as statements of one function."""
    lines = [f"r{i} = {expression}" for i, expression in enumerate(EXPRESSIONS)]
    if inside is not None:
        lines = [f"with {inside}:", *(f"    {line}" for line in lines)]
    body = "".join(f"    {x}\n" for x in [*heads, *lines])
    made = analysis.module(f"import math\ndef f(a, b):\n{body}")
    run = made.analysis(made.index.functions[0])
    assigned = [n.value for n in ast.walk(made.index.tree) if isinstance(n, ast.Assign)]
    places = assigned[-len(EXPRESSIONS) :]
    return {e: run.values[id(n)] for e, n in zip(EXPRESSIONS, places, strict=True)}


def test_every_expression_is_executed() -> None:
    assert len(set(EXPRESSIONS)) == len(EXPRESSIONS)
    runs = [executed(r, d, d) for r in REGIONS for d in ("float32", LOW[r])]
    assert set().union(*runs) == set(EXPRESSIONS)


PAIRS = [
    *((r, LOW[r], LOW[r]) for r in REGIONS),
    *((r, "float32", "float32") for r in REGIONS),
    *((r, LOW[r], "float32") for r in REGIONS),
    *((r, "float32", LOW[r]) for r in REGIONS),
]


@pytest.mark.parametrize(("name", "first", "second"), PAIRS)
def test_dtypes_are_those_that_torch_computes(name: str, first: str, second: str) -> None:
    wanted = executed(name, first, second)
    heads = f"a = a.to(torch.{first})", f"b = b.to(torch.{second})"
    values = analysed(*heads, inside=REGIONS[name])
    found = {e: values[e].dtype for e in wanted}
    unknown = {e for e in found if found[e] in ("", "complex") or values[e].variable}
    assert {e: found[e] for e in found if e not in unknown} == {
        e: wanted[e] for e in wanted if e not in unknown
    }
    assert unknown <= OPEN


def test_what_is_left_open_is_open() -> None:
    pairs = [analysed(f"a = a.to(torch.{x})", f"b = b.to(torch.{y})", inside=REGIONS[r])
             for r, x, y in PAIRS]  # fmt: skip
    assert {e for e in OPEN if any(p[e].variable or not p[e].dtype for p in pairs)} == OPEN


def test_wide_is_what_cuda_autocast_widens() -> None:
    """Of operands with an open dtype: half outside of autocast, float32 inside, is ``wide``."""
    outside = executed("off", "float16", "float16")
    inside = executed("cuda", "float16", "float16")
    found = analysed()
    named = {e for e in outside.keys() & inside.keys() if found[e].variable} - OPEN
    named = {e for e in named if not found[e].dtype.startswith("~call")}
    wanted = {e: (outside[e], inside[e]) == ("float16", "float32") for e in named}
    assert sum(wanted.values()) > 100 and not all(wanted.values())
    assert {e: found[e].wide for e in wanted} == wanted


def test_a_concrete_dtype_without_a_region_holds_with_and_without_autocast() -> None:
    runs = [executed(r, d, d) for r in ("off", "cuda") for d in ("float16", "float32")]
    found = analysed()
    fixed = {e: found[e].dtype for e in EXPRESSIONS if found[e].dtype and not found[e].variable}
    fixed = {e: dtype for e, dtype in fixed.items() if dtype != "complex"}
    assert len(fixed) > 100
    for run in runs:
        assert {e: run[e] for e in fixed if e in run} == {e: fixed[e] for e in fixed if e in run}


@pytest.mark.parametrize("scale", [0.3, 1.0, 5.0, 50.0])
def test_no_element_leaves_the_range(scale: float) -> None:
    """In float64, up to the rounding of the constants."""
    torch.manual_seed(1)
    a, b = (torch.randn(4, 4, dtype=torch.float64) * scale for _ in range(2))
    found = analysed()
    outside = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = list(computed(a, b))
    for expression, result in results:
        lo, hi = found[expression].lo, found[expression].hi
        if result.is_complex():
            continue
        result = result.detach().double()
        result = result[torch.isfinite(result)]
        slack = 1e-6 * max([1.0, *(abs(x) for x in (lo, hi) if abs(x) < 1e6)])
        if result.numel() and (result.min() < lo - slack or result.max() > hi + slack):
            outside[expression] = (result.min().item(), result.max().item(), lo, hi)
    assert outside == {}


def test_functions_that_tensors_lack_as_methods() -> None:
    homes = (torch, F, torch.linalg, torch.fft, torch.special)
    functions = {n for home in homes for n in dir(home) if callable(getattr(home, n))}
    assert functions >= ops.FUNCTIONS
    assert not [name for name in ops.FUNCTIONS if hasattr(torch.Tensor, name)]
    lacking = {n for n in functions & (ops.KNOWN | ops.SHAPES) if not hasattr(torch.Tensor, n)}
    assert lacking <= ops.FUNCTIONS


def test_ranges_that_matter_are_known() -> None:
    found = analysed()
    bounded = [e for e in EXPRESSIONS if (found[e].lo, found[e].hi) != (-math.inf, math.inf)]
    assert len(bounded) > 0.3 * len(EXPRESSIONS)
