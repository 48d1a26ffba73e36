"""Small programs of modules that are built, cast and called in many ways; torch says what becomes of them."""

from __future__ import annotations

import random
from collections.abc import Iterator

LAYERS = (
    "nn.Linear(4, 4)",
    "nn.Linear(4, 4, bias=False)",
    "nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))",
)
CASTS = (".half()", ".to(torch.float16)", ".to(dtype=HALF)", ".type(torch.float16)", ".bfloat16()")
INPUTS = ("", ".half()", ".to(HALF)", ".bfloat16()")
HEAD = """\
import copy

import torch
from torch import nn

HALF = torch.float16


def lower(module):
    return module{cast}


def like(x, module):
    return x.to(next(module.parameters()).dtype)


class Pair(nn.Module):
    def __init__(self, first, second):
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x):
        return self.second(self.first(x))
"""


class Maker:
    """The text of one program, by a seed."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.cast = self.draw.choice(CASTS)
        self.classes: list[str] = []

    def text(self) -> str:
        parts = [HEAD.replace("{cast}", self.cast)]
        for number in range(self.draw.randint(1, 3)):
            parts.append("\n".join(self.module(f"Part{number}")))
            self.classes.append(f"Part{number}")
        parts.append("\n".join(self.whole()))
        return "\n\n".join(parts) + "\n\n\nmain()\n"

    def built(self) -> str:
        """What makes a layer or a module, perhaps cast at once."""
        own = f"{self.draw.choice(self.classes)}()" if self.classes and self.flip(0.5) else None
        made = own or self.draw.choice(LAYERS)
        if self.flip(0.15):
            return f"lower({made})"
        if self.flip(0.15):
            made = f"Pair({made}, {self.draw.choice(LAYERS)}{self.draw.choice(('', self.cast))})"
        return made + self.draw.choice((self.cast, ".float()", ".eval()", "", "", ""))

    def flip(self, share: float) -> bool:
        return self.draw.random() < share

    def module(self, name: str) -> Iterator[str]:
        yield f"class {name}(nn.Module):"
        yield "    def __init__(self, low=True):"
        yield "        super().__init__()"
        calls: list[str] = []
        for number in range(self.draw.randint(1, 3)):
            yield from self.part(f"self.part{number}", calls)
        if self.flip(0.2):
            yield f"        self{self.cast}"
        yield "\n    def forward(self, x):"
        for call in calls:
            if self.flip(0.25):
                yield f"        x = {self.draw.choice(('x.half()', 'x.float()', 'x * 2', 'x.relu()'))}"
            yield call
        yield "        return x"

    def part(self, name: str, calls: list[str]) -> Iterator[str]:
        """An attribute of a module; ``calls`` takes the line of ``forward`` that uses it."""
        how = self.draw.choice(("plain", "local", "flag", "list", "dict", "chain", "later", "copy"))
        called = {"dict": f'{name}["a"]'}.get(how, name)
        calls.append(f"        x = {called}(x)")
        if how in ("local", "flag"):
            yield f"        made = {self.built()}"
            if how == "flag":
                yield f"        if low:\n            made = made{self.cast}"
            yield f"        {name} = made"
        elif how == "list":
            calls[-1] = f"        for one in {name}:\n            x = one(x)"
            yield f"        {name} = nn.ModuleList([{self.built()} for _ in range(2)])"
        elif how == "dict":
            yield f'        {name} = nn.ModuleDict({{"a": {self.built()}}})'
        elif how == "chain":
            yield f"        {name} = nn.Sequential({self.built()}, {self.built()})"
        else:
            copies = how == "copy"
            yield f"        {name} = " + (
                f"copy.deepcopy({self.built()})" if copies else self.built()
            )
            if how == "later":
                yield f"        {name}{self.cast}"

    def whole(self) -> Iterator[str]:
        """A module of all others, and what calls it."""
        yield "class Whole(nn.Module):\n    def __init__(self):\n        super().__init__()"
        for number, name in enumerate(self.classes):
            yield f"        self.child{number} = {name}()"
        yield "\n    def forward(self, x):"
        for number in range(len(self.classes)):
            yield f"        x = self.child{number}(x){self.draw.choice(('', '.half()', '.float()'))}"
        yield "        return x\n\n\ndef main():\n    net = Whole()"
        yield self.draw.choice(
            (f"    net{self.cast}", f"    net = net{self.cast}", "    net.eval()")
        )
        yield f"    return net(torch.ones(2, 4){self.draw.choice(INPUTS)})"
