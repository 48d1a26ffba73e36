"""The results of ``speed.py`` as a page and a plot: what was asked, and what each run gave.

python -m benchmarks.speed_page RUN.json... --page benchmarks/results/speed.md --plot docs/assets/speed.svg
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

US = "precision-lint"


class Goal(NamedTuple):
    """A ratio of CPU times, median against median: ``ours`` to ``theirs``, each a path into the results.

    seconds: as good as the ratio, where it is met.
    """

    what: str
    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    most: float
    seconds: float = 0.0


GOALS = (
    Goal("first run, to flake8", ("cold", US), ("cold", "flake8"), 1 / 4),
    Goal("first run, to TorchFix alone", ("cold", US), ("cold", "TorchFix"), 1 / 40),
    Goal("first run, to ruff with all rules", ("cold", US), ("cold", "ruff, all rules"), 3),
    Goal("nothing changed, to ruff", ("project", "again", US), ("project", "again", "ruff"), 2),
    Goal(
        "one file changed, to nothing changed",
        ("project", "one file changed", US),
        ("project", "again", US),
        2,
    ),
    Goal(
        "five unchanged files, to ruff",
        ("project", "five files", US),
        ("project", "five files", "ruff"),
        2,
        0.15,
    ),
)
NOTHING = 0.12
"""Seconds that ``--version``, ``--help`` and an empty run may take."""


def cpu(results: dict[str, Any], path: Sequence[str]) -> tuple[float, float, float]:
    """Least, median and most CPU seconds."""
    found: Any = results
    for name in path:
        found = found[name]
    least, median, most = found["cpu_s"]
    return least, median, most


def rows(runs: Sequence[dict[str, Any]]) -> list[tuple[str, str, list[str], bool]]:
    """What is measured, what is asked, each run's figure, and whether all of them are good enough."""
    found = []
    for goal in GOALS:
        ours = [cpu(run, goal.ours)[1] for run in runs]
        ratios = [o / cpu(run, goal.theirs)[1] for o, run in zip(ours, runs, strict=True)]
        met = all(
            ratio <= goal.most or own <= goal.seconds
            for ratio, own in zip(ratios, ours, strict=True)
        )
        asked = f"{goal.most:.3g}" + (f", or {goal.seconds} s" if goal.seconds else "")
        told = [
            f"{ratio:.2g} ({own:.2f} s)" if goal.seconds else f"{ratio:.2g}"
            for ratio, own in zip(ratios, ours, strict=True)
        ]
        found.append((goal.what, asked, told, met))
    for name in ("--version", "--help", "no file"):
        ours = [cpu(run, ("project", "nothing", name))[1] for run in runs]
        told = [f"{one:.2f} s" for one in ours]
        found.append((f"`{name}`", f"{NOTHING} s", told, all(one <= NOTHING for one in ours)))
    return found


def page(runs: Sequence[dict[str, Any]]) -> str:
    """Markdown: versions, machine, goals, and all times with their spread."""
    first = runs[0]
    machine, versions = first["machine"], first["versions"]
    tools = ", ".join(
        one.replace("==", " ") for name in versions if name != US for one in versions[name]
    )
    sizes = {
        name: f"{one['files']} files with {one['lines']:,} lines"
        for name, one in first["sizes"].items()
    }
    head = "".join(f" run {number} |" for number, _ in enumerate(runs, 1))
    lines = [
        "# Speed, measured",
        "",
        f"{first['date']}, {machine['system']}, {machine['cores']} cores, Python {machine['python']}; {tools}.",
        f"Files of {' and '.join(one.replace('==', ' ') for one in first['wheels'])}, drawn with seed "
        f"{first['seed']}: {sizes['cold']} for a first run, {sizes['project']} as a project that is worked on.",
        "CPU time of one process, medians; the tools took turns. Written by `python -m benchmarks.speed_page`.",
        "",
        "![CPU time of a first run](../../docs/assets/speed.svg)",
        "",
        f"| ratio | asked, at most |{head} |",
        f"| --- | ---: |{' ---: |' * len(runs)} --- |",
    ]
    for what, asked, told, met in rows(runs):
        lines.append(
            f"| {what} | {asked} | {' | '.join(told)} | {'' if met else '**not reached**'} |"
        )
    for number, run in enumerate(runs, 1):
        lines += [
            "",
            f"Run {number}, CPU seconds (least, median, most):",
            "",
            "| | least | median | most |",
        ]
        lines.append("| --- | ---: | ---: | ---: |")
        groups = {"first run": run["cold"]} | {
            k: v for k, v in run["project"].items() if k != "first"
        }
        for group, tools_ in groups.items():
            for name, one in tools_.items():
                times = " | ".join(f"{value:.2f}" for value in one["cpu_s"])
                lines.append(f"| {group}: {name} | {times} |")
    return "\n".join(lines) + "\n"


def plot(run: dict[str, Any], path: Path) -> None:
    """CPU time of a first run for each tool, with its spread, as SVG."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "precision-lint"
    names = sorted(run["cold"], key=lambda name: -run["cold"][name]["cpu_s"][1])
    times = [run["cold"][name]["cpu_s"] for name in names]
    figure, axes = pyplot.subplots(figsize=(7, 2.6), layout="constrained")
    spread = [[m - low for low, m, _ in times], [high - m for _, m, high in times]]
    colours = ["#1f6feb" if name == US else "#9aa4b2" for name in names]
    axes.barh(names, [m for _, m, _ in times], xerr=spread, color=colours, ecolor="#57606a")
    size = run["sizes"]["cold"]
    axes.set(
        xscale="log", xlabel=f"CPU seconds for {size['files']} files, {size['lines']:,} lines (log)"
    )
    for row, (_, median, high) in enumerate(times):
        axes.text(high * 1.08, row, f"{median:.2g} s", va="center")
    axes.spines[["top", "right"]].set_visible(False)
    axes.margins(x=0.15)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the results of speed.py as a page and a plot"
    )
    parser.add_argument("runs", type=Path, nargs="+", help="what speed.py wrote")
    parser.add_argument("--page", type=Path, required=True, help="Markdown file")
    parser.add_argument("--plot", type=Path, required=True, help="SVG file")
    options = parser.parse_args()
    runs = [json.loads(file.read_text()) for file in options.runs]
    options.page.write_text(page(runs))
    plot(runs[0], options.plot)


if __name__ == "__main__":
    main()
