"""Prove the rules under other releases of torch, each in a fresh environment.

    python scripts/check_torches.py 2.4.0 newest [--select MP301] [--jobs 2]

``newest`` is what pip chooses by itself.  PyPI's wheels for Linux take 6 GB a release; each environment is
removed afterwards.  Exit code 1: something is not proven, or cannot be installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).parent.parent


def prove(release: str, options: list[str]) -> str:
    """What the proofs come to under one release, in a line."""
    wanted = "torch" if release == "newest" else f"torch=={release}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder, "Scripts" if sys.platform == "win32" else "bin")
        pip = (programs / "python", "-m", "pip", "install", "--quiet", "--no-cache-dir")
        for what in ([wanted, "numpy"], [str(ROOT)]):
            made = subprocess.run([*pip, *what], capture_output=True, text=True)
            if made.returncode:
                return f"not installed: {made.stderr.strip().splitlines()[-1]}"
        command = (programs / "precision-lint", "verify", *options)
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
        return lines[-1] if lines else f"exit code {done.returncode}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("releases", nargs="+")
    parser.add_argument("--select", default="MP")
    parser.add_argument("--jobs", default="2")
    options = parser.parse_args()
    fine = True
    for release in options.releases:
        said = prove(release, ["--select", options.select, "--jobs", options.jobs])
        print(f"{release}: {said}", flush=True)
        fine &= said.endswith("all proven") or ": all as declared (" in said
    return int(not fine)


if __name__ == "__main__":
    sys.exit(main())
