"""Local names to qualified names, compared with what Python itself binds."""

from __future__ import annotations

import ast
import importlib

import pytest
import torch

from precision_lint.semantics.index import build
from precision_lint.semantics.names import CANONICAL, STAR_NAMES, Names, dotted


def qualify(code: str) -> str | None:
    """Qualified name of the last line of a module, an expression."""
    tree = ast.parse(code)
    last = tree.body[-1]
    assert isinstance(last, ast.Expr)
    return build(tree, ()).names.qualify(last.value)


@pytest.mark.parametrize(
    ("code", "qualified"),
    [
        ("import torch; torch.einsum", "torch.einsum"),
        ("import torch as T; T.einsum", "torch.einsum"),
        ("import torch.nn.functional as F; F.softmax", "torch.nn.functional.softmax"),
        ("import torch.nn.functional; torch.nn.functional.softmax", "torch.nn.functional.softmax"),
        ("from torch.nn import functional as F; F.softmax", "torch.nn.functional.softmax"),
        ("from torch import nn; nn.functional.softmax", "torch.nn.functional.softmax"),
        ("from torch.nn.functional import softmax as sm; sm", "torch.nn.functional.softmax"),
        ("from torch import einsum as contract; contract", "torch.einsum"),
        ("from torch.functional import einsum; einsum", "torch.einsum"),
        ("import torch.functional as TF; TF.cdist", "torch.cdist"),
        ("from torch.special import log1p; log1p", "torch.log1p"),
        ("from torch.nn.modules.loss import MSELoss; MSELoss", "torch.nn.MSELoss"),
        ("from torch.cuda.amp import autocast; autocast", "torch.cuda.amp.autocast"),
        ("from torch.amp.autocast_mode import autocast; autocast", "torch.amp.autocast"),
        ("from torch.cuda import amp; amp.GradScaler", "torch.cuda.amp.GradScaler"),
        ("import torch; xp = torch; xp.log", "torch.log"),
        ("import torch.nn.functional as F; act = F.relu; act", "torch.nn.functional.relu"),
        ("def f():\n    import torch as T\nT.log", "torch.log"),
        ("if True:\n    from torch import bmm\nelse:\n    bmm = None\nbmm", "torch.bmm"),
        ("import numpy as np; np.float32", "numpy.float32"),
        ("from einops import rearrange as rr; rr", "einops.rearrange"),
        ("from . import losses; losses.dfl", ".losses.dfl"),
        ("from ..utils.box import cdist; cdist", "..utils.box.cdist"),
        ("from torch import *; einsum", "torch.einsum"),
        ("from torch import *; sum", None),
        ("from torch import *; einsum.x", None),
        ("from numpy import *; einsum", None),
        ("import torch; torchvision.ops", None),
        ("import torch; x.log", None),
        ("import torch; torch.zeros(3).log", None),
        ("import torch.nn as nn; torch.log", None),
    ],
)
def test_qualified_names(code: str, qualified: str | None) -> None:
    assert qualify(code) == qualified


@pytest.mark.parametrize("home", CANONICAL)
def test_private_homes_hold_the_public_objects(home: str) -> None:
    """A name that both homes have means the same; ``torch.special`` renames kernels only."""
    private = vars(importlib.import_module(home))
    public = vars(importlib.import_module(CANONICAL[home]))
    shared = {n for n in private.keys() & public.keys() if n[0] != "_" and callable(public[n])}
    assert shared
    if home != "torch.special":
        assert [name for name in sorted(shared) if private[name] is not public[name]] == []


def test_special_functions_compute_what_their_namesakes_do() -> None:
    x = torch.linspace(0.1, 0.9, 5)
    for name in ("log1p", "exp2", "expm1", "sinc", "logit"):
        assert torch.equal(getattr(torch.special, name)(x), getattr(torch, name)(x)), name


def test_starred_names_are_torch_functions_and_no_builtins() -> None:
    exported = set(torch.__all__) | {n for n in dir(torch) if not n.startswith("_")}
    assert exported >= STAR_NAMES
    assert not STAR_NAMES & set(vars(importlib.import_module("builtins")))


@pytest.mark.parametrize(
    ("code", "path"),
    [("a", "a"), ("a.b.c", "a.b.c"), ("a().b", None), ("a[0].b", None), ("1 .real", None)],
)
def test_dotted(code: str, path: str | None) -> None:
    assert dotted(ast.parse(code, mode="eval").body) == path


@pytest.mark.parametrize(
    ("code", "spelling"),
    [
        ("import torch", "torch"),
        ("import torch as T", "T"),
        ("import torch.nn as nn", None),
        ("import torch.nn", "torch"),
        ("from torch import nn", None),
    ],
)
def test_spelling_of_torch(code: str, spelling: str | None) -> None:
    found = Names()
    for statement in ast.parse(code).body:
        assert isinstance(statement, (ast.Import, ast.ImportFrom))
        found.add_import(statement)
    assert found.spelling("torch") == spelling


def test_first_alias_wins_over_later_assignments() -> None:
    found = Names()
    found.add_import(ast.Import([ast.alias("torch", "T")]))
    found.add_alias("log", ast.parse("T.log", mode="eval").body)
    found.add_alias("log", ast.parse("T.exp", mode="eval").body)
    found.add_alias("own", ast.parse("helper", mode="eval").body)
    assert found.bound == {"T": "torch", "log": "torch.log"}
