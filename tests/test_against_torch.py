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
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from precision_lint.engine import Told, deep_recursion
from precision_lint.harness.policy import cuda_policy
from precision_lint.observing import Known, Observation
from precision_lint.project.code import Code
from precision_lint.source import Source
from precision_lint.torchmodel import exports, layers, operations, optimizers
from tests.expressions import TABLE

NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex32: "complex32",
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
UNBOUND = {
    "HalfTensor",
    "BFloat16Tensor",
    "from_dlpack",
    "lu",
    "pca_lowrank",
    "svd_lowrank",
    "unique",
}
"""Names of torch that ``from torch import *`` leaves out; a file that uses them so does not run."""
EXPRESSIONS = [p for line in TABLE.splitlines() for part in line.split(";") if (p := part.strip())]
HEAD = "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"

WRONG = {
    "torch.unique(a, return_inverse=True)[1]",
    "F.max_pool2d(a[None], 2, return_indices=True)[1]",
    "a.softmax(-1, torch.float32)",
    "torch.softmax(a, -1, torch.float32)",
    "torch.normal(a, b)",
    "torch.zeros(4, out=torch.empty(4, dtype=torch.float64))",
    "torch.where(a > 0, 1, 0)",
    "a.float()[0, 0] * b.half()",
    "torch.ldexp(a, a.argmax(1))",
    'F.interpolate(a[None, None], size=2, mode="area")',
    "torch.linalg.pinv(a.float())",
    'F.pad(a[None], (1, 1), mode="reflect")',
    'F.pad(a[None], (1, 1), mode="replicate")',
    "nn.ReflectionPad1d(1)(a[None])",
    "torch.inner(a, b)",
    'torch.einsum("ij->i", a)',
    'torch.einsum("ij->ji", a)',
    'torch.einsum("i,j->ij", a[0], b[0])',
}
"""Expressions of whose dtype the engine is wrong, for some operands: to be mended."""
OUTSIDE = {
    "F.dropout(a.sigmoid(), 0.9)",
    "nn.Dropout(0.8)(a.sigmoid())",
    'F.interpolate(a.sigmoid()[None, None], size=9, mode="bicubic")',
    'nn.Upsample(scale_factor=2, mode="bicubic")(a.sigmoid()[None, None])',
    "F.binary_cross_entropy_with_logits(a, b)",
    "F.multilabel_soft_margin_loss(a, b)",
    "nn.BCEWithLogitsLoss()(a, b)",
}
"""Expressions whose values leave the range that the engine gives, for some operands: the same."""


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
def analysed(*heads: str, inside: str | None = None) -> dict[str, Known]:
    """What is known of the same expressions, as statements of one function."""
    lines = [f"r{i} = {expression}" for i, expression in enumerate(EXPRESSIONS)]
    if inside is not None:
        lines = [f"with {inside}:", *(f"    {line}" for line in lines)]
    body = "".join(f"    {x}\n" for x in [*heads, *lines])
    text = Source("a.py", f"{HEAD}def f(a, b):\n{body}")
    with deep_recursion():
        seen = Observation(Code(Path(), {"a.py"}, texts={"a.py": text}), "a.py", Told())
    assigned = [n.value for n in ast.walk(ast.parse(text.text)) if isinstance(n, ast.Assign)]
    places = assigned[-len(EXPRESSIONS) :]
    return {e: seen.value(node) for e, node in zip(EXPRESSIONS, places, strict=True)}


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
    found = {e: values[e].dtype for e in wanted if values[e].kind == "tensor"}
    known = {e for e in found if found[e] not in ("", "complex")} - WRONG
    assert {e: found[e] for e in known} == {e: wanted[e] for e in known}
    assert len(known) > 0.9 * len(wanted)


@pytest.mark.parametrize("home", ["torch", "torch.nn", "torch.nn.functional", "torch.optim"])
def test_names_that_a_star_binds(home: str) -> None:
    bound: dict[str, object] = {}
    exec(f"from {home} import *", bound)
    everything = (*operations.names(), *layers.names(), *optimizers.names(), *dir(torch), "Module")
    plain = {name for name in everything if "." not in name}
    known = {name for name in plain if exports.exported(f"{home}.{name}")}
    assert len(known) > 10
    assert {one for one in known - set(bound) if not one.endswith("_")} <= UNBOUND


def test_what_is_mended_is_held_from_then_on() -> None:
    wrong = set()
    for name, first, second in PAIRS:
        wanted = executed(name, first, second)
        heads = f"a = a.to(torch.{first})", f"b = b.to(torch.{second})"
        values = analysed(*heads, inside=REGIONS[name])
        for expression in wanted:
            value = values[expression]
            if value.kind == "tensor" and value.dtype not in ("", "complex"):
                if value.dtype != wanted[expression]:
                    wrong.add(expression)
    assert wrong == WRONG


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
    assert set(outside) <= OUTSIDE, outside


def test_ranges_that_matter_are_known() -> None:
    found = analysed()
    bounded = [e for e in EXPRESSIONS if (found[e].lo, found[e].hi) != (-math.inf, math.inf)]
    assert len(bounded) > 0.3 * len(EXPRESSIONS)
    positive = (
        "F.relu(a) @ F.relu(b)",
        'torch.einsum("ij,jk->ik", a.abs(), b.abs())',
        "F.elu(a) + 1",
    )
    assert [found[one].lo for one in positive] == [0, 0, 0]
