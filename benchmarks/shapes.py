"""How the cost of ``precision-lint check`` grows with generated shapes: user CPU at n, 2n and 4n.

Each shape is one file of one kind of code, repeated.  A linear one costs about twice as much at
twice the size; ``growth`` is the exponent between n and 4n, after the start of the process is taken
off: 1 is linear, 2 quadratic.

    python benchmarks/shapes.py [--only NAME] [--scale 1.0] [--output shapes.json]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
COMMAND = (
    sys.executable, "-m", "precision_lint", "check", "--isolated", "--no-cache", "-j", "1",
    "--exit-zero", "--confidence", "possible", "--output-format", "json",
)  # fmt: skip
STEPS = 4
LEAST = 0.02
"""Seconds below which a difference of two runs is noise."""


def module_lines(n: int) -> str:
    """Flagged lines at a file's top level, each with a comment that silences it."""
    line = "y{0} = torch.log(torch.rand(8).half().sigmoid() + 1e-8)  # noqa: MP301\n"
    return HEAD + "".join(line.format(i) for i in range(n))


def statements(n: int) -> str:
    """Flagged statements in one function."""
    line = "    y{0} = torch.log(x.half().sigmoid() + 1e-8)\n"
    return HEAD + "def f(x):\n" + "".join(line.format(i) for i in range(n)) + "    return x\n"


def dict_of_logs(n: int) -> str:
    """A dict literal of logarithms."""
    inside = "".join(f'        "k{i}": torch.log(x.sigmoid() + 1e-8),\n' for i in range(n))
    return HEAD + "def f(x):\n    x = x.half()\n    return {\n" + inside + "    }\n"


def elifs(n: int) -> str:
    """One long chain of ``elif``."""
    arms = "".join(f"    elif k == {i}:\n        y = torch.exp(x) + {i}\n" for i in range(1, n))
    first = "    if k == 0:\n        y = x\n"
    return HEAD + "def f(x, k):\n" + first + arms + "    return y\n"


def chained_casts(n: int) -> str:
    """One expression of casts behind each other."""
    return HEAD + "def f(x):\n    return x" + ".float().half()" * (n // 2) + "\n"


def chained_calls(n: int) -> str:
    """One expression of operations behind each other."""
    return HEAD + "def f(x):\n    return x.half()" + ".exp()" * n + "\n"


def long_sum(n: int) -> str:
    """A sum of many terms."""
    return HEAD + "def f(x):\n    return " + " + ".join(f"x[{i}]" for i in range(n)) + "\n"


def scaler_blocks(n: int) -> str:
    """Scale, clip, step, update, over and over in one function."""
    block = (
        "    optimizer.zero_grad()\n"
        '    with torch.autocast("cuda", dtype=torch.float16):\n'
        "        loss = model(x).mean()\n"
        "    scaler.scale(loss).backward()\n"
        "    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n"
        "    scaler.step(optimizer)\n"
        "    scaler.update()\n"
    )
    head = "def f(model, x):\n    optimizer = torch.optim.SGD(model.parameters(), 0.1)\n"
    return HEAD + head + '    scaler = torch.amp.GradScaler("cuda")\n' + block * n


def functions(n: int) -> str:
    """Functions that call the one before them."""
    first = "def f0(x):\n    return torch.log(x.half().sigmoid() + 1e-8)\n\n\n"
    rest = (f"def f{i}(x):\n    return f{i - 1}(x) * 2\n\n\n" for i in range(1, n))
    return HEAD + first + "".join(rest)


def shared_calls(n: int) -> str:
    """Functions that hand a model on to each of the three before them."""
    made = []
    for i in range(n):
        calls = [f"f{j}(model, x)" for j in range(max(0, i - 3), i)] or ["model(x)"]
        region = '    with torch.autocast("cuda", dtype=torch.float16):\n'
        made.append(f"def f{i}(model, x):\n{region}        return {' + '.join(calls)}\n\n\n")
    return HEAD + "".join(made)


def layers(n: int) -> str:
    """Classes of modules, each of which holds the one before it."""
    parts = [
        f"class M{i}(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        f"        self.inner = {f'M{i - 1}()' if i else 'torch.nn.Linear(8, 8)'}\n\n"
        "    def forward(self, x):\n        return torch.log(self.inner(x).sigmoid() + 1e-8)\n\n\n"
        for i in range(n)
    ]
    return HEAD + "".join(parts)


def numbers(n: int) -> str:
    """A table of numbers beside an import of torch."""
    return HEAD + "T = [\n" + "".join(f"    {i}.5, {i}, -{i},\n" for i in range(n)) + "]\n"


SHAPES: dict[str, tuple[Callable[[int], str], int]] = {
    "module-lines": (module_lines, 2000),
    "statements": (statements, 800),
    "dict-of-logs": (dict_of_logs, 400),
    "elifs": (elifs, 400),
    "chained-casts": (chained_casts, 600),
    "chained-calls": (chained_calls, 600),
    "long-sum": (long_sum, 600),
    "scaler-blocks": (scaler_blocks, 110),
    "functions": (functions, 400),
    "shared-calls": (shared_calls, 200),
    "layers": (layers, 50),
    "numbers": (numbers, 20000),
}
"""Shapes and the largest size of each; the others are a half and a quarter of it."""


def user_seconds(text: str, folder: Path) -> tuple[float, int]:
    """User CPU of linting one file, and the number of findings; raises where the run fails."""
    path = folder / "shape.py"
    path.write_text(text, "utf8")
    with tempfile.TemporaryFile() as out:
        child = subprocess.Popen([*COMMAND, str(path)], stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        found = json.loads(out.read())
    diagnostics = found["diagnostics"] if isinstance(found, dict) else found
    return usage.ru_utime, len(diagnostics)


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--only", action="append", choices=SHAPES, default=[])
    parser.add_argument("--scale", type=float, default=1.0, help="times the sizes")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        start = min(user_seconds(HEAD + "x = 1\n", Path(name))[0] for _ in range(3))
        print(f"{'shape':16} {'n':>6} {'s(n)':>7} {'s(2n)':>7} {'s(4n)':>7} growth findings")
        for shape, (make, largest) in SHAPES.items():
            if options.only and shape not in options.only:
                continue
            n = max(1, int(largest * options.scale) // STEPS)
            runs = [user_seconds(make(n * k), Path(name)) for k in (1, 2, STEPS)]
            first, second, last = (max(seconds - start, LEAST) for seconds, _ in runs)
            growth = math.log(last / first, STEPS)
            findings = [count for _, count in runs]
            print(
                f"{shape:16} {n:6} {first:7.2f} {second:7.2f} {last:7.2f} {growth:6.2f} {findings}"
            )
            rows.append({
                "shape": shape, "n": n, "seconds": [first, second, last], "growth": growth,
                "findings": findings,
            })  # fmt: skip
    if options.output is not None:
        options.output.write_text(json.dumps(rows, indent=2) + "\n", "utf8")


if __name__ == "__main__":
    main()
