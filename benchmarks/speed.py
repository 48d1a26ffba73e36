"""Speed of ``precision-lint check`` beside flake8, TorchFix and ruff: CPU time, wall time, memory.

Every tool lints the same seeded sample of real files in one process, all tools in turn and several
times, so that their ratios say more than their times.  Then a project is linted as one works on it:
for the first time, again, with one file changed, five files as a hook does, and nothing at all.
The times of a child are those that the kernel counts for it and its own children (``wait4``), start
of the interpreter included.  Each peer gets a virtual environment of its own.

    python -m benchmarks.speed CACHE --output benchmarks/results/speed.json
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.speed_page import rows

WHEELS = ("transformers==5.23.0", "timm==1.0.31")
PEERS = {"flake8": ["flake8==7.3.0"], "torchfix": ["torchfix==0.7.0"], "ruff": ["ruff==0.17.6"]}
"""What is installed for each peer; TorchFix brings flake8 along, whose plugin it is."""
OURS = (sys.executable, "-m", "precision_lint")
CHECK = (*OURS, "check", "--isolated", "--no-respect-gitignore", "--exit-zero", "--jobs", "1")
MIB = 2**20 if sys.platform == "darwin" else 2**10
"""``ru_maxrss`` units of a MiB: bytes on macOS, KiB elsewhere."""
Command = Sequence[str | Path]


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


def installed(cache: Path, peer: str) -> Path:
    """A peer's directory of commands, made the first time; none of them needs torch."""
    environment = cache / "-".join(PEERS[peer]).replace("==", "-")
    commands = environment / "bin"
    if not (commands / peer).is_file():
        venv.create(environment, clear=True, with_pip=True)
        pip: Command = [commands / "python", "-m", "pip", "install", "--quiet", *PEERS[peer]]
        subprocess.run(pip, check=True)
    return commands


def run(command: Command, where: Path) -> dict[str, float]:
    """CPU and wall time in seconds and the peak in MiB of the largest process of a command."""
    env = {name: text for name, text in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        started = time.perf_counter()
        child = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, cwd=where, env=env
        )
        _, status, usage = os.wait4(child.pid, 0)
        wall = time.perf_counter() - started
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, 1):  # flake8 and TorchFix say 1 for findings
            output.seek(0)
            raise SystemExit(f"{command} ended with {child.returncode}:\n{output.read()[-2000:]!r}")
    cpu = usage.ru_utime + usage.ru_stime
    return {"cpu_s": cpu, "wall_s": wall, "peak_mib": usage.ru_maxrss / MIB}


def measured(
    commands: dict[str, Command],
    where: Path,
    rounds: int,
    before: Callable[[], None] = lambda: None,
) -> dict[str, dict[str, list[float]]]:
    """Least, median and most of each measure, of commands that take turns."""
    times: dict[str, list[dict[str, float]]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            before()
            times[name].append(run(command, where))
    found = {}
    for name, runs in times.items():
        columns = {key: sorted(one[key] for one in runs) for key in runs[0]}
        found[name] = {
            key: [round(value, 3) for value in (all_[0], statistics.median(all_), all_[-1])]
            for key, all_ in columns.items()
        }
        cpu, wall = found[name]["cpu_s"], found[name]["wall_s"]
        print(f"{name:34} {cpu[1]:8.3f} s CPU ({cpu[0]} to {cpu[2]}), {wall[1]:8.3f} s", flush=True)
    return found


def copied(files: Sequence[Path], packages: Path, top: Path) -> list[Path]:
    """These files only, at the places that they have in their packages."""
    targets = [top / file.relative_to(packages) for file in files]
    for file, target in zip(files, targets, strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return targets


def cold(cache: Path, top: Path, rounds: int) -> dict[str, Any]:
    """All tools on files that none of them has seen."""
    ruff = installed(cache, "ruff") / "ruff"
    fix = installed(cache, "torchfix")
    commands: dict[str, Command] = {
        "precision-lint": [*CHECK, "--no-cache", "."],
        "ruff, all rules": [ruff, "check", "--isolated", "-n", "-e", "--select", "ALL", "-q", "."],
        "flake8": [installed(cache, "flake8") / "flake8", "-j", "1", "--isolated", "-q", "."],
        "flake8 with TorchFix": [fix / "flake8", "-j", "1", "--isolated", "-q", "."],
        "TorchFix": [fix / "torchfix", "--jobs", "1", "--select", "ALL", "."],
    }
    return measured(commands, top, rounds)


def working(
    cache: Path, top: Path, files: Sequence[Path], rounds: int, seed: int
) -> dict[str, Any]:
    """A project as one works on it."""
    kept: list[str | Path] = ["--cache-dir", top.parent / "ours"]
    ruff: list[str | Path] = [installed(cache, "ruff") / "ruff", "check", "--isolated", "-e", "-q"]
    ruff += ["--cache-dir", top.parent / "theirs"]
    five = random.Random(seed).sample(files, 5)
    changing = max(files, key=lambda file: file.stat().st_size)
    (top.parent / "empty").mkdir(exist_ok=True)
    every = [*CHECK, *kept, "."], [*ruff, "."]
    found: dict[str, Any] = {"first": run(every[0], top)}
    run(every[1], top)
    time.sleep(3)  # files that were written just now are read again
    run(every[0], top)
    names = ("precision-lint", "ruff")

    def change() -> None:
        with changing.open("a") as file:
            file.write(f"# {time.time()}\n")

    found["again"] = measured(dict(zip(names, every, strict=True)), top, rounds)
    hook: dict[str, Command] = {names[0]: [*CHECK, *kept, *five], names[1]: [*ruff, *five]}
    run(hook[names[0]], top)
    found["five files"] = measured(hook, top, rounds)
    found["one file changed"] = measured(dict(zip(names, every, strict=True)), top, rounds, change)
    empty: dict[str, Command] = {
        "--version": [*OURS, "--version"],
        "--help": [*OURS, "--help"],
        "no file": [*CHECK, top.parent / "empty"],
    }
    return found | {"nothing": measured(empty, top, rounds)}


def main() -> None:
    parser = argparse.ArgumentParser(description="Compare the speed of precision-lint to others")
    parser.add_argument("cache", type=Path, help="directory for wheels and environments")
    parser.add_argument(
        "--packages", type=Path, help="directory with the wheels unpacked, instead of the cache's"
    )
    parser.add_argument("--cold", type=int, default=100, metavar="FILES", help="0: all files")
    parser.add_argument("--project", type=int, default=0, metavar="FILES", help="0: all files")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, metavar="FILE", help="write the results as JSON")
    options = parser.parse_args()
    cache = options.cache.resolve()
    packages = options.packages.resolve() if options.packages else unpacked(cache)
    files = sorted(packages.rglob("*.py"))
    shuffled = random.Random(options.seed).sample(files, len(files))
    sizes = {}
    with tempfile.TemporaryDirectory() as folder:
        some = copied(shuffled[: options.cold or None], packages, Path(folder, "sample"))
        project = copied(shuffled[: options.project or None], packages, Path(folder, "project"))
        for what, chosen in (("cold", some), ("project", project)):
            lines = sum(file.read_bytes().count(b"\n") for file in chosen)
            sizes[what] = {"files": len(chosen), "lines": lines}
        results = {
            "date": datetime.date.today().isoformat(),
            "machine": {
                "system": f"{platform.system()} {platform.machine()}",
                "cores": os.cpu_count(),
                "load": [round(load, 1) for load in os.getloadavg()],
                "python": platform.python_version(),
            },
            "versions": {"precision-lint": version("precision-lint"), **PEERS},
            "wheels": list(WHEELS),
            "seed": options.seed,
            "sizes": sizes,
            "measures": "least, median and most of each",
            "cold": cold(cache, Path(folder, "sample"), options.rounds),
            "project": working(
                cache, Path(folder, "project"), project, options.rounds, options.seed
            ),
        }
    for what, asked, told, met in rows([results]):
        print(f"{what:40} {told[0]:>16}   asked {asked}{'' if met else ': not reached'}")
    if options.output:
        options.output.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
