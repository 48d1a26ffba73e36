"""Build the compiled wheel, install it by itself, and hold it against the pure package.

Both must pass the tests of the fixtures, and say the same of every file that they are given. Takes some
minutes, and a C compiler.

    python scripts/check_compiled.py [FILE_OR_FOLDER ...]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
TESTS = ("tests", "benchmarks", "rules", "fixtures", "pyproject.toml")
"""What tests of the installed package need beside it; the package itself would take its place."""
CHECK = ("check", "--no-cache", "--isolated", "--jobs", "1", "--exit-zero", "--quiet")


def built(folder: Path, name: str, asked: str) -> Path:
    """The Python of an environment that holds a wheel and nothing of this folder."""
    wheels, home = folder / f"wheel-{name}", folder / name
    environment = {**os.environ, "PRECISION_LINT_MYPYC": asked}
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", str(wheels), str(HERE)], env=environment, check=True
    )
    venv.create(home, with_pip=True)
    python = home / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    (wheel,) = wheels.glob("*.whl")
    print(f"{name}: {wheel.name}", flush=True)
    pip[0] = str(python)
    subprocess.run([*pip, "install", str(wheel), "pytest", "pytest-xdist"], check=True)
    return python


def linted(python: Path, paths: list[str]) -> tuple[str, float]:
    """What is found in some files, and the seconds of CPU that took."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    command = [str(python), "-m", "precision_lint", *CHECK, "--confidence", "possible"]
    found = subprocess.run(
        [*command, "--output-format", "json", *paths],
        cwd=python.parent,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return found, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def passes(python: Path, folder: Path) -> bool:
    """Whether the fixtures' findings and goldens come out as they are written."""
    for name in TESTS:
        source = HERE / name
        if not (folder / name).exists():
            (shutil.copytree if source.is_dir() else shutil.copy)(source, folder / name)
    chosen = ["tests/test_rules.py", "-k", "findings_are_the_expected or goldens"]
    command = [str(python), "-m", "pytest", "-q", "-n", "2", *chosen]
    return subprocess.run(command, cwd=folder, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path)
    paths = [str(path.resolve()) for path in parser.parse_args().paths]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compiled, pure = built(folder, "compiled", "1"), built(folder, "pure", "0")
        good = passes(compiled, folder)
        if paths:
            (found, fast), (expected, slow) = linted(compiled, paths), linted(pure, paths)
            print(f"compiled {fast:.1f} s, pure {slow:.1f} s, {slow / fast:.2f} times")
            good &= found == expected
            if found != expected:
                print("the compiled package says something else", file=sys.stderr)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
