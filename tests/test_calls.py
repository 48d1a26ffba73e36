"""What the analysis keeps apart, and what it keeps, where a function calls another."""

from __future__ import annotations

import pytest

from precision_lint import lint_source


def found(text: str) -> list[str]:
    """The codes of a text, with their rows."""
    said = lint_source("import torch\nfrom torch import nn\n" + text, isolated=True)
    return [f"{one.code} {one.start.row}" for one in said]


def test_each_wrapped_function_has_a_wrapper_of_its_own() -> None:
    lines = [
        "def traced(function):",
        "    def inner(x):",
        "        return function(x)",
        "    return inner",
    ]
    for number in range(5):
        lines += ["@traced", f"def part_{number}(x):", f"    return x * {number}"]
    lines[-1] = "    return x.float()"
    lines.append("def run(x):")
    for number in range(4):
        lines += [
            f"    part_{number}(x.{cast}())" for cast in ("half", "bfloat16", "float", "double")
        ]
    lines.append("    return part_4(x.half()) @ x.half()\n")
    assert found("\n".join(lines)) == [f"MP502 {len(lines) + 2}"]


CACHED = """\
def first(model, images):
    return model(images).sum()

def train(images):
    model = nn.Linear(4, 4).cuda()
    with torch.autocast("cuda"):
        {}
        with torch.no_grad():
            goal = model(images)
        return (model(images) - goal).square().mean()
"""


def test_what_a_callee_ran_first_is_in_the_cache() -> None:
    assert found(CACHED.format("pass")) == ["MP213 11"]
    assert found(CACHED.format("first(model, images)")) == []


HELD = """\
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)
        self.b = nn.Linear(4, 4)

def held(net):
    return {"net": net.a}

def train(x):
    one, two = Net(), Net()
    held(one)["net"].eval()
    held(two)["net"].half()
    y = one.a(x.float())
    return two.a(y.float())
"""


def test_a_dict_that_a_function_gives_holds_the_objects_of_its_caller() -> None:
    assert found(HELD) == ["MP502 17"]


KEPT = """\
def held(net):
    return {"net": net}

def train(one, two, x):
    held(one)["net"].eval()
    held(two)["net"].half()
    y = one(x.float())
    return two(x.float())
"""


def test_a_dict_that_a_function_gives_holds_the_unknown_objects_of_its_caller() -> None:
    assert found(KEPT) == ["MP502 10"]


RANGE = """\
from tqdm.auto import trange

def scaled(x):
    for step in trange(1, 4):
        y = torch.zeros(4, 4, dtype=torch.float16) * step
        x = y @ x.float()
    return x
"""


def test_a_bar_over_a_range_gives_whole_numbers() -> None:
    assert found(RANGE) == ["MP502 8"]


PARTS = """\
from dataclasses import dataclass
from typing import NamedTuple

@dataclass
class Shift:
    scale: torch.Tensor
    gate: torch.Tensor
    size: int = 1

class Named(NamedTuple):
    scale: torch.Tensor
    gate: torch.Tensor
    size: int = 1

class Kept:
    def __init__(self, scale, gate, size=1):
        self.scale, self.gate, self.size = scale, gate, size

    @staticmethod
    def of(scale, gate, size=1):
        return Kept(scale, gate, size)

def product(x, y, count):
    parts = x.half().chunk(count, -1)
    made = {}({})
    return made.{} @ torch.ones(4, made.size){}
"""


@pytest.mark.parametrize("made", ["Shift", "Named", "Kept", "Kept.of"])
@pytest.mark.parametrize(
    ("given", "part", "cast", "expected"),
    [
        ("*parts", "scale", "", ["MP502 28"]),
        ("*parts", "gate", "", ["MP502 28"]),
        ("*parts", "gate", ".half()", []),
        ("*parts", "size", "", []),
        ("*parts, gate=y.double()", "gate", ".double()", []),
        ("*parts, y.double()", "scale", "", ["MP502 28"]),
        ("*parts, y.double()", "gate", ".double()", []),
        ("y.double(), *parts", "gate", "", ["MP502 28"]),
        ("y.double(), *parts", "scale", ".double()", []),
    ],
)
def test_parts_of_unknown_number_are_given_to_each_parameter(
    made: str, given: str, part: str, cast: str, expected: list[str]
) -> None:
    assert found(PARTS.format(made, given, part, cast)) == expected


THREE = """\
from dataclasses import dataclass

@dataclass
class Three:
    a: torch.Tensor
    b: torch.Tensor
    c: torch.Tensor

def three(a, b, c):
    return Three(a, b, c)

def run(x, y, count):
    parts = x.half().chunk(count, -1)
    made = {}({})
    return made.b @ made.c
"""


@pytest.mark.parametrize("made", ["Three", "three"])
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("*parts", []),
        ("*parts, y.double()", ["MP502 17"]),
        ("y.double(), *parts", []),
        ("*parts, y.double(), c=y.double()", []),
    ],
)
def test_parts_of_unknown_number_leave_room_for_what_is_beside_them(
    made: str, given: str, expected: list[str]
) -> None:
    assert found(THREE.format(made, given)) == expected
