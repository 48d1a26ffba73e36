"""Users' code to be searched for witnesses, as tests want it."""

from __future__ import annotations

from pathlib import Path

from precision_lint import inspection
from precision_lint.config import Overrides, Resolver
from precision_lint.harness import users
from precision_lint.harness.plan import Plan

REGION = '@torch.autocast("cuda", dtype=torch.float16)\n'


def write(directory: Path, text: str, name: str = "user.py") -> Path:
    path = directory / name
    path.write_text(
        f"import torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n{text}"
    )
    return path


def plans(path: Path, *select: str) -> list[Plan]:
    """The plans of a file's findings, of some rules or of all."""
    errors: list[str] = []
    resolver = Resolver(Overrides(select=select or None, no_cache=True), None, True)
    found = users.plans(inspection.examine([path], resolver), errors)
    assert not errors
    return found


def plan(directory: Path, text: str, *select: str) -> Plan:
    """The only plan of a text."""
    [found] = plans(write(directory, text), *select)
    return found
