"""Events of the engine for a text, for tests of the scaler's protocol."""

from __future__ import annotations

import ast

import precision_lint.hazards.catalogue  # registers the hazards
from precision_lint.dataflow.program import Program
from precision_lint.events import Event
from precision_lint.syntax.imports import Layout

HEAD = "import torch\nfrom torch import Tensor\n"
CLIP_SCALED, READ_SCALED, UNSCALED_TWICE = "scaled-clip", "scaled-gradient-read", "double-unscale"
BYPASSED, PLAIN_BACKWARD, UPDATE = "plain-step", "unscaled-backward", "update-order"
ZEROED = "zeroed-gradients"
PROTOCOL = {CLIP_SCALED, READ_SCALED, UNSCALED_TWICE, BYPASSED, PLAIN_BACKWARD, UPDATE, ZEROED}

assert precision_lint.hazards.catalogue is not None


def events(text: str) -> list[tuple[Event, str]]:
    """The breaks of the protocol in a text below ``HEAD``, with the lines they stand on."""
    whole = HEAD + text
    tree = ast.parse(whole)
    program = Program(Layout(["loop.py"]), lambda path: tree)
    lines = whole.splitlines()
    return [
        (event, lines[event.place.row - 1].strip())
        for event in program.analyse("loop.py")
        if event.kind in PROTOCOL
    ]
