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

def product(x, count):
    parts = x.half().chunk(count, -1)
    made = {}(*parts)
    return made.gate @ torch.ones(4, made.size)
"""


@pytest.mark.parametrize("made", ["Shift", "Named", "Kept", "Kept.of"])
def test_parts_of_unknown_number_are_given_to_each_parameter(made: str) -> None:
    assert found(PARTS.format(made)) == ["MP502 28"]
    half = PARTS.replace("torch.ones(4, made.size)", "torch.ones(4, made.size).half()")
    assert found(half.format(made)) == []
    assert found(PARTS.replace("made.gate @", "made.size @").format(made)) == [], "it has a default"
