"""Record docs/assets/session.svg: a terminal in which the tutorial's files are linted and repaired.

    python scripts/make_session.py

The commands are executed, and their output is drawn as it is.
"""

from __future__ import annotations

import io
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
TUTORIAL = ROOT / "docs" / "tutorial.md"
PICTURE = ROOT / "docs" / "assets" / "session.svg"
FILE = re.compile(r'^```python title="([^"]+)"\n(.+?)^```$', re.MULTILINE | re.DOTALL)
COMMANDS = (
    "python train.py",
    "precision-lint",
    "precision-lint verify losses.py",
    "precision-lint --fix",
    "python train.py",
)
WIDTH = 120


def files() -> dict[str, str]:
    """The files that the tutorial has the reader write, by name."""
    return dict(FILE.findall(TUTORIAL.read_text("utf8")))


def execute(command: str, folder: Path) -> str:
    """What a command of the tutorial writes to standard output, with its colours."""
    program, _, rest = command.partition(" ")
    module = ["-m", "precision_lint"] if program == "precision-lint" else []
    run = subprocess.run(
        [sys.executable, *module, *rest.split()],
        cwd=folder,
        env=os.environ | {"FORCE_COLOR": "1", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    return run.stdout


def record() -> str:
    """The session as SVG that loads nothing from elsewhere."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in {**files(), "pyproject.toml": ""}.items():
            (folder / path).write_text(text)
        for command in COMMANDS:
            console.print(Text(f"$ {command}", "bold"))
            console.print(Text.from_ansi(execute(command, folder).rstrip("\n")))
            console.print()
    svg = console.export_svg(title="from a nan to a proven fix", unique_id="session")
    return re.sub(r"\s*@font-face\s*\{[^}]*\}", "", svg)


def main() -> None:
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_text(record(), encoding="utf8")
    print(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
