"""The wheel of pure Python, or with its core compiled by mypyc where that is asked for.

``PRECISION_LINT_MYPYC=1 pip install .`` compiles; everything else lives in ``pyproject.toml``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from setuptools import setup

if TYPE_CHECKING:
    from setuptools import Extension

ROOMS = ("domains", "syntax", "torchmodel", "dataflow", "typestate", "hazards")
"""What is compiled: the interpreter and all that it asks for each expression."""
COMPILER = "mypy[mypyc]==2.4.1"


def asked() -> bool:
    """Whether this build compiles; an editable install would leave the results beside the source."""
    wanted = os.environ.get("PRECISION_LINT_MYPYC", "") not in ("", "0")
    return wanted and "editable_wheel" not in sys.argv and "develop" not in sys.argv


def sources() -> list[str]:
    """The modules that are compiled, by their paths in this folder."""
    found = [one for room in ROOMS for one in sorted(Path("precision_lint", room).glob("*.py"))]
    return [one.as_posix() for one in found if one.name != "__init__.py"]


def extensions(folder: str) -> list[Extension]:
    """The compiled core, its C in a folder; none where only metadata and requirements are asked for."""
    if "egg_info" in sys.argv or "dist_info" in sys.argv:
        return []
    try:
        from mypyc.build import mypycify
    except ImportError:
        sys.exit(f"PRECISION_LINT_MYPYC needs {COMPILER} where this is built without isolation")
    options = ["--config-file=", "--ignore-missing-imports", f"--cache-dir={folder}/mypy"]
    return mypycify(
        [*options, *sources()],
        group_name="precision_lint",
        multi_file=True,
        debug_level="0",
        target_dir=folder,
    )


if __name__ == "__main__":
    if asked():
        with tempfile.TemporaryDirectory() as folder:
            setup(
                ext_modules=extensions(folder),
                setup_requires=[COMPILER],
                options={"build": {"build_base": folder}},
            )
    else:
        setup()
