"""The examples in the rules' documentation: flagged and broken before, silent and right after."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import pytest
import torch

from precision_lint import dispatch, registry
from precision_lint.harness.policy import cuda_policy
from precision_lint.harness.redirect import redirected
from precision_lint.project.amp import Project
from precision_lint.source import Source, decode
from tests.doc_examples import EXAMPLES, HALF, Example, Names, region

FENCE = re.compile(r"```python\n(.+?)```", re.S)
PROJECT = Project().with_file(
    "train.py", b"import torch\nscaler = torch.amp.GradScaler()\nmodel.half()\n"
)
IMPORTS = """\
import math
import torch
import torch.nn.functional as F
from torch import nn


class Module(nn.Module):
    def forward(self, {names}):
{body}
        return {bound}
"""


def blocks(code: str) -> list[str]:
    return FENCE.findall(registry.document(registry.rules()[code]).sections["Example"])


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with cuda_policy(), redirected(HALF):
        yield


def run(text: str, example: Example) -> tuple[Names, str]:
    """The names after a block, and the message of what it raised."""
    names = {"torch": torch, "F": torch.nn.functional, "nn": torch.nn, **example.names()}
    exec("import math", names)
    try:
        with region(example.region):
            exec(text, names)
    except (RuntimeError, ValueError, TypeError, AssertionError, NotImplementedError) as error:
        return names, str(error)
    return names, ""


@pytest.mark.parametrize("code", registry.rules())
def test_both_blocks_are_executed(code: str) -> None:
    example = EXAMPLES[code]
    assert bool(example.fails) != bool(example.raises)
    before, after = blocks(code)
    names, message = run(before, example)
    if example.raises:
        assert example.raises in message
    else:
        assert not message and example.fails and example.fails(names)
    names, message = run(after, example)
    assert not message
    assert not (example.fails and example.fails(names))


@pytest.mark.parametrize("code", registry.rules())
def test_the_first_block_is_flagged_and_the_second_is_not(code: str) -> None:
    rule = registry.rules()[code]
    found = []
    for text in blocks(code):
        example = EXAMPLES[code]
        opened = f"with torch.autocast('cuda', dtype={example.region}):\n"
        body = opened + textwrap.indent(text, "    ") if example.region else text
        names = sorted(set(example.names()) - {"self"})
        module = IMPORTS.format(
            names=", ".join(names), body=textwrap.indent(body, " " * 8), bound="None"
        )
        source = decode(module.encode(), "model.py")
        assert isinstance(source, Source)
        found.append([d.code for d in dispatch.lint(source, [rule], PROJECT)])
    assert set(found[0]) == {code} and not found[1], found


def test_every_rule_has_an_example_that_is_executed() -> None:
    assert set(EXAMPLES) == set(registry.rules())
