"""Abstract values: promotion as torch does it, joins that lose nothing that may happen."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from precision_lint.semantics import values
from precision_lint.semantics.values import HALVES, INF, UNKNOWN, Value, is_float, join, promote

DTYPES = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int": torch.int64,
    "bool": torch.bool,
}
SPELLED = {dtype: name for name, dtype in DTYPES.items()}
FLOATS = ("float16", "bfloat16", "float32", "float64")
RANKS = (0, 1, 2)


def operand(dtype: str, rank: int) -> tuple[Value, torch.Tensor]:
    return Value("tensor", dtype, ndim=rank), torch.ones([2] * rank, dtype=DTYPES[dtype])


def product(a: torch.Tensor | float, b: torch.Tensor | float) -> str:
    """dtype of a product, executed."""
    return SPELLED[torch.as_tensor(a * b).dtype]


@pytest.mark.parametrize(
    ("x", "y"), [p for p in itertools.product(DTYPES, DTYPES) if set(p) != {"int", "bool"}]
)
def test_tensors_promote_as_in_torch(x: str, y: str) -> None:
    for m, n in itertools.product(RANKS, RANKS):
        (a, real_a), (b, real_b) = operand(x, m), operand(y, n)
        assert promote(a, b) == product(real_a, real_b), (m, n)


@pytest.mark.parametrize(
    ("dtype", "const"),
    [*itertools.product(FLOATS, (2, 2.5, True)), ("int", 2), ("int", True), ("bool", True)],
)
def test_python_numbers_do_not_promote(dtype: str, const: float) -> None:
    for rank in RANKS:
        tensor, real = operand(dtype, rank)
        number = values.number(const)
        assert promote(tensor, number) == product(real, const)
        assert promote(number, tensor) == product(const, real)


def test_operands_of_unknown_rank_are_taken_to_have_dimensions() -> None:
    half, wide = Value("tensor", "float16"), Value("tensor", "float32")
    assert promote(half, wide) == "float32"
    assert promote(half, wide.but(ndim=0)) == "float16"
    assert promote(half.but(ndim=0), wide) == "float32"
    assert promote(half.but(ndim=0), wide.but(ndim=0)) == "float32"


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        ("~a", "~a", "~a"),
        ("~a", "int", "~a"),
        ("~a", "float32", "float32"),
        ("~a", "float64", "float64"),
        ("low", "float16", "low"),
        ("low", "float32", "float32"),
        ("low", "low", "low"),
    ],
)
def test_open_dtypes(x: str, y: str, expected: str) -> None:
    a, b = Value("tensor", x), Value("tensor", y)
    assert promote(a, b) == promote(b, a) == expected


@pytest.mark.parametrize("other", ["~b", "float16", "bfloat16", "low", ""])
def test_a_variable_with_another_half_stays_open(other: str) -> None:
    a, b = Value("tensor", "~a"), Value("tensor", other)
    mixed = promote(a, b)
    assert mixed == promote(b, a)
    assert mixed.startswith("~") and mixed not in ("~a", "~b")


# joins

dtypes = st.sampled_from([*DTYPES, "low", "~x", "~y", ""])
bounds = st.sampled_from([-INF, -1.0, 0.0, 1e-8, 1.0, INF])


@st.composite
def abstract(draw: st.DrawFn) -> Value:
    lo, hi = sorted((draw(bounds), draw(bounds)))
    return Value(
        draw(st.sampled_from(["tensor", "unknown", "number"])),
        draw(dtypes),
        lo,
        hi,
        draw(st.sampled_from([None, 0, 1])),
        wide=draw(st.booleans()),
        tags=draw(st.frozensets(st.sampled_from(["normalized", "spatial-last", "cast"]))),
    )


def admits(wide: str, narrow: str) -> bool:
    """Whether a value of dtype ``narrow`` is among what ``wide`` stands for."""
    if wide == narrow or wide == "" or wide.startswith("~"):
        return True
    return {wide, narrow} <= {"float32", "float64"}  # either is wide enough


@given(abstract(), abstract())
def test_join_admits_both_sides(a: Value, b: Value) -> None:
    both = join(a, b)
    for side in (a, b):
        assert both.lo <= side.lo and both.hi >= side.hi
        assert admits(both.dtype, side.dtype)
        assert both.ndim in (None, side.ndim)
        assert side.wide or not both.wide
        assert both.tags - {"spatial-last"} <= side.tags


@given(abstract(), abstract())
def test_join_has_no_sides(a: Value, b: Value) -> None:
    assert join(a, b) == join(b, a)


@given(abstract())
def test_join_with_itself_changes_nothing(a: Value) -> None:
    assert join(a, a) == a


def test_a_path_that_flattens_space_is_not_forgotten() -> None:
    flat = Value("tensor", tags=frozenset({"spatial-last"}))
    assert "spatial-last" in join(flat, Value("tensor")).tags


# small predicates


@pytest.mark.parametrize("dtype", [*DTYPES, "low", "~x", ""])
def test_what_may_be_half(dtype: str) -> None:
    value = Value("tensor", dtype)
    assert value.may_be_half == (dtype in ("float16", "bfloat16", "low", "~x"))
    assert is_float(dtype) == (dtype in (*FLOATS, "low"))


def test_half_dtypes_are_those_that_torch_has_in_two_bytes() -> None:
    two_bytes = {n for n, d in DTYPES.items() if d.is_floating_point and d.itemsize == 2}
    assert two_bytes | {"low"} == HALVES
    assert set(FLOATS) == {n for n, d in DTYPES.items() if d.is_floating_point}


def test_unknown_may_be_a_tensor_of_any_range() -> None:
    assert UNKNOWN.maybe_tensor and not UNKNOWN.is_tensor
    assert (UNKNOWN.lo, UNKNOWN.hi) == (-INF, INF)
    assert values.number(3).const == 3 and not values.number(3).maybe_tensor
