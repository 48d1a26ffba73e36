"""Runs the machine over every function's trace."""

from __future__ import annotations

from typing import Any

from precision_lint.dataflow.interpreter import Interpreter
from precision_lint.dataflow.protocol import FINISHED
from precision_lint.typestate.machine import Machine

SCALED = frozenset({"scale", "unscale", "step", "update", "framework-backward", "backward"})


def follow(it: Interpreter, trace: list[Any]) -> None:
    """Follow a trace that has to do with scaled gradients."""
    if _speaks(trace):
        Machine(it, trace)


def _speaks(trace: list[Any]) -> bool:
    return any(step.kind in SCALED or any(map(_speaks, step.blocks)) for step in trace)


FINISHED.append(follow)
