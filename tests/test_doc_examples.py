"""The examples in the rules' documentation: flagged and broken before, silent and right after."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from precision_lint import engine, registry
from precision_lint.api import Confidence, Diagnostic
from precision_lint.harness.policy import cuda_policy
from precision_lint.harness.redirect import redirected
from precision_lint.precision.modes import MODES, Force, Strength
from precision_lint.project.code import Code
from precision_lint.source import Source, decode
from tests.doc_examples import EXAMPLES, HALF, Example, Names, finite

FENCE = re.compile(r"```python\n(.+?)```", re.S)
HARMS = (RuntimeError, ValueError, TypeError, AssertionError, FutureWarning)


POSSIBLE = frozenset({"MP115", "MP304", "MP402", "MP404", "MP501", "MP507", "MP601"})
"""Rules whose fragments do not show that they are about half tensors: there it is only possible.  So it is of
half weights, and of hazards that are rarely right, where nobody states a mode."""


def blocks(code: str) -> list[str]:
    return FENCE.findall(registry.document(registry.rules()[code]).sections["Example"])


@pytest.fixture
def gpu() -> Iterator[None]:
    with cuda_policy(), redirected(HALF):
        yield


def run(text: str, example: Example) -> tuple[Names, str]:
    """The names after a block, and the message of what it raised."""
    module: Names = {}
    torch.manual_seed(0)
    exec(example.module(text), module)
    names = example.names()
    with warnings.catch_warnings():
        if example.deprecated:
            warnings.simplefilter("ignore", FutureWarning)
        try:
            after = module["Module"]().forward(**example.arguments(text, names))
        except HARMS as error:
            return names, str(error)
    return names | (after if isinstance(after, dict) else {"returned": after}), ""


STATED = Force({MODES[name]: (Strength.STATED, None) for name in ("amp-float16", "float16")})


def found(text: str, example: Example) -> list[Diagnostic]:
    source = decode(example.module(text).encode(), "model.py")
    assert isinstance(source, Source)
    code = Code(Path(), {"model.py"}, (example.release, None), {"model.py": source})
    with engine.deep_recursion():
        known = engine.told("model.py", {"model.py": engine.Engine(code).facts("model.py")})
        known = replace(known, around=STATED)
        return engine.lint(source, code, "model.py", known, list(registry.rules().values()))


def shown(found: list[Diagnostic]) -> set[str]:
    """What the tool says at default confidence."""
    return {d.code for d in found if d.confidence is not Confidence.POSSIBLE}


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("code", registry.rules())
def test_both_blocks_are_executed(code: str) -> None:
    example = EXAMPLES[code]
    assert sum(map(bool, (example.fails, example.raises, example.harmless))) == 1
    before, after = blocks(code)
    names, message = run(before, example)
    if example.raises:
        assert example.raises in message
    elif example.fails:
        assert not message and example.fails(names)
    else:
        assert not message and finite(names)
    names, message = run(after, example)
    assert not message and finite(names)
    assert not (example.fails and example.fails(names))


@pytest.mark.parametrize("code", registry.rules())
def test_the_first_block_is_flagged_and_the_second_is_not(code: str) -> None:
    before, after = blocks(code)
    first = found(before, EXAMPLES[code])
    assert code in ({d.code for d in first} if code in POSSIBLE else shown(first))
    second = found(after, EXAMPLES[code])
    assert code not in {d.code for d in second}
    beside = {"MP212"} if EXAMPLES[code].deprecated else set()
    assert not shown(second) - registry.previews() - beside


def test_every_rule_has_an_example_that_is_executed() -> None:
    assert set(EXAMPLES) == set(registry.rules())
