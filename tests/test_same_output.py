"""What is reported does not depend on the order in which Python keeps sets."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CODE = """\
import torch


def step(scaler, model, loss, optimizer, how):
    if how == 1:
        scaler.scale(loss).backward()
    elif how == 2:
        scaler.scale(loss / 2).backward()
    elif how == 3:
        scaler.scale(loss / 3).backward()
    else:
        scaler.scale(loss / 4).backward()
    total = sum(p.grad.norm() for p in model.parameters())
    scaler.step(optimizer)
    scaler.update()
    return total
"""


def test_the_same_in_every_run(tmp_path: Path) -> None:
    (tmp_path / "step.py").write_text(CODE)
    command = [sys.executable, "-m", "precision_lint", "check", "-n", "--isolated", "--exit-zero"]
    said = {
        subprocess.run(
            [*command, "--output-format", "json", "step.py"],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": str(seed)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in range(5)
    }
    assert len(said) == 1
    assert b"MP101" in said.pop()
