"""The wheel of pure Python, or with its core compiled by mypyc where that is asked for.

``PRECISION_LINT_MYPYC=1 pip install .`` compiles; everything else lives in ``pyproject.toml``.
"""

from __future__ import annotations

import gzip
import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from setuptools import setup
from setuptools.command.sdist import sdist

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


def without_times(path: Path, epoch: int) -> None:
    """Write an archive again, so that it depends on what is in it only, and not on when it was made."""
    packed = io.BytesIO()
    with tarfile.open(path) as old, tarfile.open(fileobj=packed, mode="w") as new:
        for one in sorted(old.getmembers(), key=lambda member: member.name):
            one.mtime, one.uid, one.gid, one.uname, one.gname, one.pax_headers = (
                epoch,
                0,
                0,
                "",
                "",
                {},
            )
            one.mode = 0o755 if one.isdir() or one.mode & 0o100 else 0o644
            new.addfile(one, old.extractfile(one) if one.isfile() else None)
    path.write_bytes(gzip.compress(packed.getvalue(), mtime=epoch))


class Reproducible(sdist):  # type: ignore[misc]
    """A source distribution that is the same each time where ``SOURCE_DATE_EPOCH`` is set."""

    def run(self) -> None:
        super().run()
        epoch = os.environ.get("SOURCE_DATE_EPOCH")
        for name in self.archive_files if epoch is not None else ():
            if name.endswith(".tar.gz"):
                without_times(Path(name), int(epoch))


if __name__ == "__main__":
    commands = {"sdist": Reproducible}
    if asked():
        with tempfile.TemporaryDirectory() as folder:
            setup(
                cmdclass=commands,
                ext_modules=extensions(folder),
                setup_requires=[COMPILER],
                options={"build": {"build_base": folder}},
            )
    else:
        setup(cmdclass=commands)
