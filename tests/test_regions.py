"""Autocast regions: what a context manager opens, compared with torch, and where it reaches."""

from __future__ import annotations

import ast
import warnings
from typing import Any

import pytest
import torch

from precision_lint.semantics.names import Names
from precision_lint.semantics.regions import (
    INHERITED,
    Region,
    decorated,
    region_of,
    without_gradient,
)
from tests import analysis

IMPORTS = """
import contextlib
import torch
from contextlib import nullcontext
from torch import autocast
from torch.cuda import amp
from torch.cuda.amp import autocast as cuda_autocast
"""
CUDA = Region("on", "float16", "cuda", True)


def names() -> Names:
    found = Names()
    for statement in ast.parse(IMPORTS).body:
        assert isinstance(statement, (ast.Import, ast.ImportFrom))
        found.add_import(statement)
    return found


def opened(expression: str, around: Region = INHERITED) -> Region | None:
    return region_of(ast.parse(expression, mode="eval").body, names(), around)


def facts(region: Region | None) -> tuple[str, str, str, bool] | None:
    return (region.state, region.dtype, region.device, region.sure) if region else None


@pytest.mark.parametrize(
    "expression",
    [
        "torch.autocast('cpu')",
        "torch.autocast(device_type='cpu')",
        "torch.autocast('cpu', torch.float16)",
        "torch.autocast('cpu', torch.bfloat16, True)",
        "torch.autocast('cpu', torch.float16, False)",
        "torch.autocast('cpu', dtype=torch.half)",
        "torch.autocast('cpu', dtype=None)",
        "torch.autocast('cpu', enabled=False)",
        "torch.autocast('cpu', enabled=True, cache_enabled=False)",
        "torch.amp.autocast('cpu', dtype=torch.float16)",
        "torch.amp.autocast_mode.autocast('cpu')",
        "autocast('cpu')",
        "torch.cpu.amp.autocast()",
        "torch.cpu.amp.autocast(False)",
        "torch.cpu.amp.autocast(True, torch.float16)",
        "torch.cpu.amp.autocast(enabled=False, dtype=torch.float16)",
        "torch.cpu.amp.autocast(dtype=torch.float16)",
    ],
)
def test_literal_regions_are_what_torch_opens(expression: str) -> None:
    region = opened(expression)
    assert region is not None
    namespace: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # torch.cpu.amp is deprecated
        exec(IMPORTS, namespace)
        with eval(expression, namespace):
            enabled = torch.is_autocast_enabled("cpu")
            dtype = str(torch.get_autocast_dtype("cpu")).removeprefix("torch.")
    assert facts(region) == ("on" if enabled else "off", dtype, "cpu", True)


@pytest.mark.parametrize("device", ["cuda", "cpu", "xpu", "mps"])
def test_default_dtype_is_that_of_torch(device: str) -> None:
    default = str(torch.get_autocast_dtype(device)).removeprefix("torch.")
    assert facts(opened(f"torch.autocast({device!r})")) == ("on", default, device, True)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("torch.autocast('cuda')", ("on", "float16", "cuda", True)),
        ("torch.autocast('cuda', torch.bfloat16)", ("on", "bfloat16", "cuda", True)),
        ("torch.autocast('cuda', torch.float16, False)", ("off", "float16", "cuda", True)),
        ("torch.autocast('cuda:0')", ("on", "float16", "cuda", True)),
        ("torch.cuda.amp.autocast()", ("on", "float16", "cuda", True)),
        ("torch.cuda.amp.autocast(False)", ("off", "float16", "cuda", True)),
        ("torch.cuda.amp.autocast(dtype=torch.bfloat16)", ("on", "bfloat16", "cuda", True)),
        ("cuda_autocast(enabled=False)", ("off", "float16", "cuda", True)),
        # flags and dtypes that are decided at run time: on, because the code is written for it
        ("amp.autocast(enabled=flag)", ("on", "float16", "cuda", False)),
        ("torch.autocast('cuda', enabled=has_gpu())", ("on", "float16", "cuda", False)),
        ("torch.autocast('cuda', dtype=amp_dtype)", ("on", "low", "cuda", False)),
        ("torch.autocast(x.device.type)", ("on", "float16", "", False)),
        ("torch.autocast(x.device.type, enabled=False)", ("off", "float16", "", False)),
        ("torch.autocast('cuda') if amp_on else nullcontext()", ("on", "float16", "cuda", False)),
        ("nullcontext() if full else torch.autocast('cuda')", ("on", "float16", "cuda", False)),
        # wrappers of frameworks and projects
        ("accelerator.autocast()", ("on", "low", "", False)),
        ("self.amp_autocast()", ("on", "low", "", False)),
        ("maybe_autocast(x.device.type, enabled=False)", ("off", "low", "", False)),
        ("disable_autocast()", ("off", "low", "", False)),
        ("force_fp32()", ("off", "float32", "", True)),
        ("torch.cuda.amp.custom_fwd(cast_inputs=torch.float32)", ("off", "float32", "", True)),
        # no autocast at all
        ("torch.amp.custom_fwd(device_type='cuda')", None),
        ("torch.no_grad()", None),
        ("nullcontext()", None),
        ("contextlib.nullcontext()", None),
        ("open('autocast.txt')", None),
    ],
)  # fmt: skip
def test_regions(expression: str, expected: tuple[str, str, str, bool] | None) -> None:
    assert facts(opened(expression)) == expected


def test_float32_autocast_lowers_nothing() -> None:
    region = opened("torch.autocast('cuda', dtype=torch.float32)")
    assert region is not None and region.state == "on" and not region.on


@pytest.mark.parametrize(
    ("inner", "around", "expected"),
    [
        ("torch.autocast('cuda', enabled=False)", CUDA, "off"),
        ("torch.autocast(x.device.type, enabled=False)", CUDA, "off"),
        ("torch.autocast('cpu', enabled=False)", CUDA, "on"),
        ("torch.autocast('cpu', enabled=False)", INHERITED, "off"),
        ("torch.autocast('cuda', enabled=False)", Region("on", "low", "", False), "off"),
    ],
)
def test_disabling_another_device_changes_nothing(
    inner: str, around: Region, expected: str
) -> None:
    region = opened(inner, around)
    assert region is not None
    assert region.state == expected


def test_torch_agrees_that_disabling_another_device_changes_nothing() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2)
    with warnings.catch_warnings(), torch.autocast("cpu"):
        warnings.simplefilter("ignore")  # there is no CUDA device to switch off
        with torch.autocast("cuda", enabled=False):
            assert (a @ b).dtype is torch.bfloat16
        with torch.autocast("cpu", enabled=False):
            assert (a @ b).dtype is torch.float32


# where a region reaches inside a function

SCOPES = """
def f(model, x, flag):
    before(x)
    with torch.no_grad(), torch.autocast("cuda"):
        inside(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            nested(x)
        with torch.autocast("cuda", enabled=False):
            disabled(x)
            with open("log") as log:
                unrelated(x)
        with torch.autocast("cpu", enabled=False):
            other_device(x)
        if flag:
            branch(x)
        else:
            return early(x)
        for _ in x:
            loop(x)
        try:
            attempt(x)
        finally:
            final(x)
        [comprehension(y) for y in x]
        x = x.to(argument(x))
        last(x)
    after(x)
    return result(x)
"""


@pytest.mark.parametrize(
    ("name", "state", "dtype"),
    [
        ("before", "inherited", "low"),
        ("inside", "on", "float16"),
        ("nested", "on", "bfloat16"),
        ("disabled", "off", "float16"),
        ("unrelated", "off", "float16"),
        ("other_device", "on", "float16"),
        ("branch", "on", "float16"),
        ("early", "on", "float16"),
        ("loop", "on", "float16"),
        ("attempt", "on", "float16"),
        ("final", "on", "float16"),
        ("comprehension", "on", "float16"),
        ("argument", "on", "float16"),
        ("last", "on", "float16"),
        ("after", "inherited", "low"),
        ("result", "inherited", "low"),
    ],
)
def test_state_at_every_point(name: str, state: str, dtype: str) -> None:
    made = analysis.module(SCOPES)
    run = made.analysis(analysis.function(made, "f"))
    region = run.regions[id(analysis.call_of(made, name))]
    assert (region.state, region.dtype) == (state, dtype)


# managers that are not spelled out in the with statement

MANAGERS = """
import contextlib
from functools import partial

FLAG = True
everywhere = torch.autocast("cuda")
cast = partial(torch.autocast, "cuda", dtype=torch.bfloat16)

def make(dtype):
    if FLAG:
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()

def chosen(flag):
    return torch.autocast("cuda") if flag else contextlib.nullcontext()

def nothing():
    return contextlib.nullcontext()

def endless():
    return endless()

@contextlib.contextmanager
def managed():
    print("entering")
    with torch.autocast("cuda", enabled=False):
        yield

@contextlib.contextmanager
def plain():
    with open("log"):
        yield

class Trainer:
    shared = torch.autocast("cuda", dtype=torch.bfloat16)

    def __init__(self, flag):
        self.context = torch.autocast("cuda") if flag else contextlib.nullcontext()
        self.partial = partial(torch.autocast, "cuda")
        self.file = open("log")

    def make(self):
        return self.context

    def step(self, x, flag, given):
        local = torch.autocast("cuda", enabled=False)
        none = contextlib.nullcontext()
        with {}:
            inside(x)
"""


@pytest.mark.parametrize(
    ("manager", "state", "dtype"),
    [
        ("local", "off", "float16"),
        ("everywhere", "on", "float16"),
        ("torch.autocast('cuda') if flag else none", "on", "float16"),
        ("none if flag else torch.autocast('cuda')", "on", "float16"),
        ("local if flag else none", "off", "float16"),
        ("make(1)", "on", "bfloat16"),
        ("chosen(flag)", "on", "float16"),
        ("managed()", "off", "float16"),
        ("cast()", "on", "bfloat16"),
        ("cast(enabled=False)", "off", "bfloat16"),
        ("partial(torch.autocast, 'cuda')()", None, ""),
        ("self.context", "on", "float16"),
        ("self.shared", "on", "bfloat16"),
        ("self.partial(enabled=False)", "off", "float16"),
        ("self.make()", "on", "float16"),
        ("open('a'), self.context", "on", "float16"),
        ("self.context, local", "off", "float16"),
        ("none", None, ""),
        ("nothing()", None, ""),
        ("endless()", None, ""),
        ("plain()", None, ""),
        ("given", None, ""),
        ("given()", None, ""),
        ("self.file", None, ""),
        ("self.missing", None, ""),
    ],
)
def test_managers_are_followed(manager: str, state: str | None, dtype: str) -> None:
    made = analysis.module(MANAGERS.replace("{}", manager))
    step = analysis.function(made, "Trainer.step")
    region = made.lexical(step, analysis.call_of(made, "inside"))
    assert (region and region.state) == state
    if region is not None:
        assert region.dtype == dtype
        assert not region.sure
        run = made.analysis(step).regions[id(analysis.call_of(made, "inside"))]
        assert (run.state, run.dtype) == (state, dtype)


STACK = """
import contextlib

def f(x, flag):
    with contextlib.ExitStack() as stack:
        before(x)
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch.autocast("cuda"))
        inside(x)
        with torch.autocast("cuda", enabled=False):
            disabled(x)
    after(x)
"""


@pytest.mark.parametrize(
    ("name", "state"), [("before", None), ("inside", "on"), ("disabled", "off"), ("after", None)]
)
def test_exit_stacks(name: str, state: str | None) -> None:
    made = analysis.module(STACK)
    call = analysis.call_of(made, name)
    region = made.lexical(analysis.function(made, "f"), call)
    assert (region and region.state) == state
    run = made.analysis(analysis.function(made, "f")).regions[id(call)]
    assert run.state == (state or "inherited")


# at a function's entry

CALLERS = """
class Head(nn.Module):
    def forward(self, x):
        return self.project(x)

    def project(self, x):
        return x

class Matcher(nn.Module):
    @torch.no_grad()
    def forward(self, x):
        return x

@torch.autocast("cuda", dtype=torch.bfloat16)
def decorated(x):
    return helper(x)

def helper(x):
    return x

def sometimes(x):
    return x

def never(x):
    return x

def mixed(x):
    return x

def recursive(x):
    return recursive(x)

def exact(x):
    return x

def train(loader):
    head, matcher = Head(), Matcher()
    exact(loader)
    for x in loader:
        with torch.autocast("cuda"):
            head(x)
            sometimes(x)
            mixed(x)
            with torch.autocast("cuda", enabled=False):
                exact(x)
        sometimes(x)
        never(x)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            mixed(x)
        matcher(x)

never(torch.ones(3))
"""


@pytest.mark.parametrize(
    ("name", "state", "dtype"),
    [
        ("Head.forward", "on", "float16"),
        ("Head.project", "on", "float16"),
        ("Matcher.forward", "inherited", "low"),
        ("decorated", "on", "bfloat16"),
        ("helper", "on", "bfloat16"),
        ("sometimes", "inherited", "float16"),
        ("never", "inherited", "low"),
        ("mixed", "on", "low"),
        ("recursive", "inherited", "low"),
        ("exact", "inherited", "low"),
        ("train", "inherited", "low"),
    ],
)
def test_state_at_entry(name: str, state: str, dtype: str) -> None:
    made = analysis.module(CALLERS)
    region = made.entry_region(analysis.function(made, name))
    assert (region.state, region.dtype) == (state, dtype)


def test_inherited_region_knows_its_with_and_its_call() -> None:
    made = analysis.module(CALLERS)
    region = made.entry_region(analysis.function(made, "Head.project"))
    assert region.node is not None and ast.unparse(region.node) == "torch.autocast('cuda')"
    assert region.called is not None and ast.unparse(region.called) == "head(x)"
    assert not region.sure


def test_module_level_starts_outside_of_autocast() -> None:
    made = analysis.module(CALLERS)
    assert made.entry_region(made.index.top).state == "off"


@pytest.mark.parametrize(
    ("decorator", "state"),
    [
        ("torch.autocast('cuda')", "on"),
        ("torch.cuda.amp.autocast(enabled=False)", "off"),
        ("torch.amp.custom_fwd(device_type='cuda', cast_inputs=torch.float32)", "off"),
        ("torch.no_grad()", None),
        ("staticmethod", None),
    ],
)
def test_decorators(decorator: str, state: str | None) -> None:
    node = ast.parse(f"@{decorator}\ndef f(x): ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    region = decorated(node, names())
    assert (region.state if region else None) == state


@pytest.mark.parametrize(
    ("decorator", "gradient"),
    [
        ("torch.no_grad()", False),
        ("torch.no_grad", False),
        ("torch.inference_mode()", False),
        ("torch.enable_grad()", True),
        ("torch.autocast('cuda')", True),
    ],
)
def test_functions_without_gradient(decorator: str, gradient: bool) -> None:
    node = ast.parse(f"@{decorator}\ndef f(x): ...").body[0]
    assert without_gradient(node, names()) is not gradient
