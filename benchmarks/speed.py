"""Speed of ``precision-lint check`` beside TorchFix: user CPU time and peak memory.

Both tools lint the same seeded samples of real files in one process each, one after the other, so
that their ratio says more than either time; precision-lint then lints all of the files alone.
The times of a child are those that the kernel counts for it and its own children (``wait4``), start
of the interpreter included.  TorchFix gets a virtual environment of its own.

    python benchmarks/speed.py CACHE --output benchmarks/results/speed-0.1.0.json
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

WHEELS = ("transformers==5.23.0", "timm==1.0.31")
TORCHFIX = "0.7.0"
PRECISION_LINT = (
    sys.executable, "-m", "precision_lint", "check", "--isolated", "--no-respect-gitignore",
    "--exit-zero", "--output-format", "concise",
)  # fmt: skip
FINDING = re.compile(r":\d+:\d+: (?:\S+ )?(?:MP|TOR)\d{3}\b")
MIB = 2**20 if sys.platform == "darwin" else 2**10
"""``ru_maxrss`` units of a MiB: bytes on macOS, KiB elsewhere."""


@dataclass(frozen=True)
class Run:
    """One run of one tool; ``peak_mib`` is the resident memory of its largest process."""

    tool: str
    files: int
    lines: int
    jobs: int
    user_s: float
    system_s: float
    wall_s: float
    peak_mib: float
    findings: int


def unpacked(cache: Path) -> Path:
    """The directory with the unpacked wheels, which are downloaded the first time."""
    packages = cache / "packages"
    for wheel in WHEELS:
        stem = wheel.replace("==", "-")
        if (packages / f"{stem}.dist-info" / "RECORD").is_file():  # a wheel's last file
            continue
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest"]
        subprocess.run([*pip, cache / "wheels", wheel], check=True)
        (archive,) = (cache / "wheels").glob(f"{stem}-*.whl")
        zipfile.ZipFile(archive).extractall(packages)
    return packages


def torchfix(cache: Path) -> Path:
    """TorchFix's command, installed the first time; it needs no torch."""
    environment = cache / f"torchfix-{TORCHFIX}"
    command = environment / "bin" / "torchfix"
    if not command.is_file():
        venv.create(environment, clear=True, with_pip=True)
        pip: list[str | Path] = [environment / "bin" / "python", "-m", "pip", "install", "--quiet"]
        subprocess.run([*pip, f"torchfix=={TORCHFIX}"], check=True)
    return command


def measured(
    tool: str, command: Sequence[str | Path], top: Path, files: Sequence[Path], jobs: int
) -> Run:
    """Lint the directory ``top``, which holds ``files``, and take the child's usage."""
    with tempfile.TemporaryFile("w+") as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            [*command, "--jobs", str(jobs), str(top)], stdout=output, stderr=subprocess.STDOUT
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read()
    if child.returncode:
        raise SystemExit(f"{tool} ended with {child.returncode}:\n{text[-2000:]}")
    run = Run(
        tool,
        len(files),
        sum(file.read_bytes().count(b"\n") for file in files),
        jobs,
        round(usage.ru_utime, 2),
        round(usage.ru_stime, 2),
        round(wall, 2),
        round(usage.ru_maxrss / MIB, 1),
        sum(bool(FINDING.search(line)) for line in text.splitlines()),
    )
    print(
        f"{tool:14} {run.files:5,} files {run.lines:9,} lines, {jobs} jobs: {run.user_s:7.2f} s "
        f"user, {run.wall_s:7.2f} s wall, {run.peak_mib:6.1f} MiB, {run.findings} findings",
        flush=True,
    )
    return run


def copied(files: Sequence[Path], packages: Path, top: Path) -> Path:
    """A directory with these files only, at the places that they have in their packages."""
    for file in files:
        target = top / file.relative_to(packages)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return top


def compared(
    files: Sequence[Path], packages: Path, command: Path, sizes: Sequence[int], seed: int
) -> list[tuple[Run, Run]]:
    """precision-lint and TorchFix on samples of each size; the smaller are parts of the larger."""
    shuffled = random.Random(seed).sample(files, len(files))
    pairs = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            sample = sorted(shuffled[:size])
            top = copied(sample, packages, Path(folder))
            ours = measured("precision-lint", PRECISION_LINT, top, sample, 1)
            theirs = measured("torchfix", [command, "--select", "ALL"], top, sample, 1)
            pairs.append((ours, theirs))
    return pairs


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of precision-lint to TorchFix")
    parser.add_argument("cache", type=Path, help="directory for wheels and TorchFix's environment")
    parser.add_argument(
        "--packages", type=Path, help="directory with the wheels unpacked, instead of the cache's"
    )
    parser.add_argument("--sizes", type=int, nargs="*", default=[50, 100, 200], metavar="FILES")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    cache = options.cache.resolve()
    packages = options.packages.resolve() if options.packages else unpacked(cache)
    files = sorted(packages.rglob("*.py"))
    pairs = compared(files, packages, torchfix(cache), options.sizes, options.seed)
    alone = [
        measured("precision-lint", PRECISION_LINT, packages, files, jobs)
        for jobs in sorted({1, os.cpu_count() or 1})
    ]
    ratios = [
        {
            "files": ours.files,
            "user": round(theirs.user_s / ours.user_s, 1),
            "peak": round(theirs.peak_mib / ours.peak_mib, 1),
        }
        for ours, theirs in pairs
    ]
    for ratio in ratios:
        print(f"TorchFix takes {ratio['user']} x the user CPU time on {ratio['files']:,} files")
    if options.output:
        results: dict[str, Any] = {
            "date": datetime.date.today().isoformat(),
            "machine": {
                "system": f"{platform.system()} {platform.machine()}",
                "cores": os.cpu_count(),
                "python": platform.python_version(),
            },
            "versions": {"precision-lint": version("precision-lint"), "torchfix": TORCHFIX},
            "wheels": list(WHEELS),
            "seed": options.seed,
            "torchfix_over_precision_lint": ratios,
            "runs": [asdict(run) for run in (*itertools.chain(*pairs), *alone)],
        }
        options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
